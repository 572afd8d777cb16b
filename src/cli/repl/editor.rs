//! The line editor of an interactive session, in its own thread. It hands over one line at a time and reads the next on request. At the
//! end it restores the terminal, also in the middle of a line.

use std::borrow::Cow;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config};
use tokio::sync::mpsc;

use super::completion::{CompletionIndex, Hint};
use super::screen::{Pause, Printer};
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::Output;
use crate::platform::reading::{self as files, AllowedKinds};
use crate::platform::terminal::{self, Terminal};
use crate::ui::style::{BOLD, DIM, WARN, paint};
use crate::ui::text::{cut, width};

/// Lines that the history keeps from one interactive session to the next.
const HISTORY_MAX: usize = 1_000;
/// The largest history file that is read, in bytes.
const HISTORY_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The widest prompt, in columns. A longer name of a team is left out.
const PROMPT_WIDTH_MAX: usize = 20;
/// The editor's thread is asked so often to leave a line before the interactive session ends without it.
const LEAVE_TRIES_MAX: usize = 100;
/// The time between two such requests.
const LEAVE_TRY_TIME: Duration = Duration::from_millis(20);

/// The result of reading a line.
#[derive(Debug)]
pub enum EditorEvent {
    /// A complete line.
    Line(String),
    /// Ctrl-C on an empty line.
    Interrupt,
    /// Ctrl-C that deleted a started line.
    Cleared,
    /// Ctrl-D, or the terminal was closed.
    End,
    /// A signal to end the process.
    Signal,
    /// The terminal cannot be read any more, for this reason.
    Failed(String),
}

/// The handle of the editor's thread.
pub struct Editor {
    typed: mpsc::Receiver<EditorEvent>,
    go_on: SyncSender<()>,
    screen: Printer,
    terminal: Option<Terminal>,
    /// True after a line was handed over, until the next is requested.
    is_waiting: bool,
    /// True if lines can be edited. If not, the settings of the terminal are never changed.
    can_edit: bool,
    leaving: Leaving,
}

/// The reason why the editor must leave the line that it reads; `None` while it may read on.
type Leaving = Arc<Mutex<Option<LeaveReason>>>;

#[derive(Debug)]
enum LeaveReason {
    /// The process is suspended. Nothing is printed while the pause lives.
    Suspend { _pause: Pause },
    /// The interactive session ends.
    End,
}

impl Editor {
    /// Starts to read lines. Texts on the returned screen appear above them.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn start(
        team: &str,
        history: PathBuf,
        completion_index: Arc<Mutex<CompletionIndex>>,
        output: Output,
    ) -> CliResult<(Self, Printer)> {
        let cannot = |error: &dyn std::fmt::Display| CliError::refused(format!("cannot use the terminal: {error}"));
        let terminal = Terminal::save();
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .max_history_size(HISTORY_MAX)
            .map_err(|error| cannot(&error))?
            .history_ignore_space(true)
            .auto_add_history(true)
            .build();
        let mut lines: rustyline::Editor<Helper, FileHistory> =
            rustyline::Editor::with_config(config).map_err(|error| cannot(&error))?;
        // There is no external printer for a terminal that can only print.
        let printer = lines.create_external_printer().ok();
        let can_edit = printer.is_some();
        let screen = Printer::start(printer, output).map_err(|error| cannot(&error))?;
        let prompt = if team.len() <= PROMPT_WIDTH_MAX { format!("{team}> ") } else { "> ".to_owned() };
        let (text, leaving) = (Arc::new(Mutex::default()), Leaving::default());
        let helper = Helper {
            completion_index,
            text: Arc::clone(&text),
            prompt_width: width(&prompt),
            has_colours: screen.has_colours(),
        };
        lines.set_helper(Some(helper));
        // The first interactive session has no history. A history that is not a plain file, or too large, is neither read nor written.
        let history = match files::read(&history, AllowedKinds::FilesHere, HISTORY_BYTES_MAX) {
            Err(error) if error.kind() != ErrorKind::NotFound => None,
            _ => Some(history),
        };
        if let Some(history) = &history {
            let _ = lines.load_history(history);
        }
        let (sender, typed) = mpsc::channel(1);
        let (go_on, may_go_on) = sync_channel(1);
        let reading = Reading { prompt, history, text, leaving: Arc::clone(&leaving), screen: screen.clone() };
        let read = move || reading.read_lines(&mut lines, &sender, &may_go_on);
        std::thread::Builder::new().name("editor".to_owned()).spawn(read).map_err(|error| cannot(&error))?;
        let editor = Self { typed, go_on, screen: screen.clone(), terminal, is_waiting: false, can_edit, leaving };
        Ok((editor, screen))
    }

    /// The next result. Dropping the future loses nothing.
    pub async fn next(&mut self) -> EditorEvent {
        match self.typed.recv().await {
            Some(typed) => {
                self.is_waiting = true;
                typed
            }
            // The thread has ended, after it reported that.
            None => std::future::pending().await,
        }
    }

    /// Reads the next line.
    pub fn go_on(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            let _ = self.go_on.try_send(());
        }
    }

    /// Suspends the process, as Ctrl-Z does elsewhere. The terminal is restored meanwhile, and the started line is kept.
    pub fn suspend(&self) {
        if self.is_waiting || !self.can_edit {
            drop(take(&self.leaving));
            return terminal::suspend();
        }
        let pause = self.screen.pause();
        set(&self.leaving, LeaveReason::Suspend { _pause: pause });
        terminal::interrupt();
    }

    /// Returns true while the editor was asked to leave its line and has not done so.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        is_set(&self.leaving)
    }

    /// Ends the editor, also in the middle of a line. Everything printed before is on the terminal afterwards.
    pub async fn end(mut self) {
        drop(take(&self.leaving));
        if cfg!(unix) && self.can_edit && !self.is_waiting && terminal::is_in_foreground() {
            self.leave_line().await;
        }
        let Self { screen, terminal, .. } = self;
        let put_back = move || {
            screen.flush();
            if let Some(terminal) = terminal {
                terminal.restore();
            }
        };
        // An error means that the runtime is being shut down.
        let _ = tokio::task::spawn_blocking(put_back).await;
    }

    /// Makes the editor's thread draw what was printed, and end. It may be about to read: it is interrupted until it ends.
    async fn leave_line(&mut self) {
        let screen = self.screen.clone();
        let _ = tokio::task::spawn_blocking(move || screen.hand_over()).await;
        set(&self.leaving, LeaveReason::End);
        for _ in 0..LEAVE_TRIES_MAX {
            terminal::interrupt();
            if tokio::time::timeout(LEAVE_TRY_TIME, self.typed.recv()).await.is_ok() {
                return;
            }
        }
    }
}

/// The started line, and the position of the cursor in it, in bytes.
type Text = Arc<Mutex<(String, usize)>>;

/// The state of the editor's thread.
struct Reading {
    prompt: String,
    history: Option<PathBuf>,
    /// Updated at every key.
    text: Text,
    leaving: Leaving,
    screen: Printer,
}

impl Reading {
    fn read_lines(
        &self,
        lines: &mut rustyline::Editor<Helper, FileHistory>,
        typed: &mpsc::Sender<EditorEvent>,
        may_go_on: &Receiver<()>,
    ) {
        terminal::block_background_signals();
        let mut before = (String::new(), 0);
        loop {
            // A background job of a shell must not read the terminal.
            terminal::wait_for_foreground();
            *text_of(&self.text) = before.clone();
            let (left, right) = before.0.split_at(before.1);
            let line = lines.readline_with_initial(&self.prompt, (left, right));
            before = Default::default();
            let text = std::mem::take(&mut *text_of(&self.text));
            let (what, is_last) = match line {
                Ok(line) => {
                    // Without a history file only later interactive sessions miss the line.
                    if let Some(history) = &self.history {
                        let _ = lines.save_history(history);
                    }
                    (EditorEvent::Line(line), false)
                }
                Err(ReadlineError::Interrupted) if is_set(&self.leaving) => {
                    if matches!(take(&self.leaving), Some(LeaveReason::End)) {
                        erase_line(width(&self.prompt) + width(&text.0));
                        return;
                    }
                    before = text;
                    self.screen.flush();
                    terminal::suspend();
                    continue;
                }
                Err(ReadlineError::Interrupted) if !text.0.is_empty() => (EditorEvent::Cleared, false),
                Err(ReadlineError::Interrupted) => (EditorEvent::Interrupt, false),
                Err(ReadlineError::Eof) => (EditorEvent::End, false),
                Err(ReadlineError::Signal(_)) => continue,
                // The process was suspended by another signal.
                Err(_) if !terminal::is_in_foreground() => {
                    before = text;
                    continue;
                }
                Err(error) => (EditorEvent::Failed(error.to_string()), true),
            };
            if typed.blocking_send(what).is_err() || is_last || may_go_on.recv().is_err() {
                return;
            }
        }
    }
}

fn set(leaving: &Leaving, reason: LeaveReason) {
    *leaving.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
}

fn is_set(leaving: &Leaving) -> bool {
    leaving.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

fn take(leaving: &Leaving) -> Option<LeaveReason> {
    leaving.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Clears the line that the editor left. It is `typed` columns wide, and the cursor is below it.
fn erase_line(typed: usize) {
    let rows = typed / super::columns().max(1) + 1;
    let mut out = std::io::stdout().lock();
    // A terminal that is gone shows nothing.
    let _ = write!(out, "\x1b[{rows}A\r\x1b[J").and_then(|()| out.flush());
}

fn text_of(text: &Text) -> std::sync::MutexGuard<'_, (String, usize)> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Completion, hints and highlighting of the line being typed.
struct Helper {
    completion_index: Arc<Mutex<CompletionIndex>>,
    text: Text,
    prompt_width: usize,
    /// Without colours the open requests are a hint, because nothing is highlighted. The editor updates hints only at a key.
    has_colours: bool,
}

impl Helper {
    /// The text of an empty line about open requests.
    fn empty_line_text(&self) -> Option<String> {
        let columns_left = super::columns().saturating_sub(self.prompt_width + 1);
        CompletionIndex::lock(&self.completion_index).empty_line_text(columns_left)
    }
}

impl rustyline::hint::Hint for Hint {
    fn display(&self) -> &str {
        &self.display
    }

    fn completion(&self) -> Option<&str> {
        self.completion.as_deref()
    }
}

impl rustyline::Helper for Helper {}

impl rustyline::validate::Validator for Helper {}

impl Completer for Helper {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, candidates) = CompletionIndex::lock(&self.completion_index).complete(&line[..pos]);
        let columns = super::columns();
        let pair = |candidate: super::completion::InputCandidate| Pair {
            display: cut(&candidate.display, columns),
            replacement: candidate.replacement,
        };
        Ok((start, candidates.into_iter().map(pair).collect()))
    }
}

impl Hinter for Helper {
    type Hint = Hint;

    fn hint(&self, line: &str, pos: usize, _: &rustyline::Context<'_>) -> Option<Hint> {
        *text_of(&self.text) = (line.to_owned(), pos);
        if pos < line.len() {
            return None;
        }
        if line.is_empty() && !self.has_colours {
            return self.empty_line_text().map(|display| Hint { display, completion: None });
        }
        CompletionIndex::lock(&self.completion_index).hint(line)
    }
}

impl Highlighter for Helper {
    /// The prompt ends with `?` instead of `>` while a request waits for an answer. Its width stays the same.
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, is_default: bool) -> Cow<'b, str> {
        let has_open_question = is_default && CompletionIndex::lock(&self.completion_index).has_open_question();
        Cow::Owned(match prompt.strip_suffix("> ").filter(|_| has_open_question) {
            Some(team) => paint(BOLD, team) + &paint(WARN, "? "),
            None => paint(BOLD, prompt),
        })
    }

    /// An empty line names the open requests. A hint would not do: the editor updates hints only at a key.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        let text = if line.is_empty() { self.empty_line_text() } else { None };
        text.map_or(Cow::Borrowed(line), |text| Cow::Owned(paint(DIM, &text)))
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(paint(DIM, hint))
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        // The text of an empty line disappears with the first key.
        CompletionIndex::lock(&self.completion_index).has_empty_line_text()
    }
}
