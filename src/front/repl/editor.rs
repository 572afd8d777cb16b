//! The line editor of an interactive session, in its own thread. It reads a line, and the next one on request. At the end it restores the
//! terminal, also in the middle of a line.

use std::borrow::Cow;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::{ColorMode, CompletionType, Config};
use tokio::sync::mpsc;

use super::completion::{EmptyLine, complete, hint};
use super::screen::Printer;
use crate::front::cli::complete::{SharedVocabulary, WorkspaceVocabulary};
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::text::lines::{cut, width};
use crate::front::text::style::{BOLD, DIM, WARN, paint};
use crate::platform::reading::{self as files, AllowedKinds};
use crate::platform::terminal::{self, Terminal};

/// Lines that the history keeps from one interactive session to the next.
const HISTORY_MAX: usize = 1_000;
/// The largest history file that is read, in bytes.
const HISTORY_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The longest team name in the prompt, in bytes. A longer one is left out.
const TEAM_BYTES_MAX: usize = 20;
/// The number of interrupts to make the editor's thread leave its line. After them the interactive session ends without it.
const INTERRUPTS_MAX: usize = 100;
/// The time between two interrupts.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

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
    events: mpsc::Receiver<EditorEvent>,
    line_requests: SyncSender<()>,
    screen: Printer,
    terminal: Option<Terminal>,
    /// True between an event and the request of the next line.
    is_waiting: bool,
    /// True if lines can be edited. If not, the settings of the terminal are never changed.
    can_edit: bool,
    leave_reason: SharedLeaveReason,
}

/// The reason why the editor must leave the line that it reads; `None` while it may read on.
type SharedLeaveReason = Arc<Mutex<Option<LeaveReason>>>;

#[derive(Debug, PartialEq, Eq)]
enum LeaveReason {
    /// The process is suspended.
    Suspend,
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
        empty_line: Arc<Mutex<EmptyLine>>,
        context: &Context,
    ) -> CliResult<(Self, Printer)> {
        let cannot = |error: &dyn std::fmt::Display| CliError::refused(format!("cannot use the terminal: {error}"));
        let terminal = Terminal::save();
        let config = Config::builder()
            .completion_type(CompletionType::List)
            // The helper decides about colours. Without this mode the editor would not ask it for the prompt.
            .color_mode(ColorMode::Forced)
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
        let screen = Printer::start(printer, context.output).map_err(|error| cannot(&error))?;
        let prompt = if team.len() <= TEAM_BYTES_MAX { format!("{team}> ") } else { "> ".to_owned() };
        let draft = SharedDraft::default();
        let leave_reason = SharedLeaveReason::default();
        let helper = Helper {
            empty_line,
            vocabulary: Arc::new(WorkspaceVocabulary { context: context.clone() }),
            draft: Arc::clone(&draft),
            prompt_width: width(&prompt),
            screen: screen.clone(),
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
        let (event_sender, events) = mpsc::channel(1);
        let (line_requests, request_receiver) = sync_channel(1);
        let thread =
            EditorThread { prompt, history, draft, leave_reason: Arc::clone(&leave_reason), screen: screen.clone() };
        let read = move || thread.read_lines(&mut lines, &event_sender, &request_receiver);
        std::thread::Builder::new().name("editor".to_owned()).spawn(read).map_err(|error| cannot(&error))?;
        let editor =
            Self { events, line_requests, screen: screen.clone(), terminal, is_waiting: false, can_edit, leave_reason };
        Ok((editor, screen))
    }

    /// Returns the next event. It is cancel safe.
    pub async fn next(&mut self) -> EditorEvent {
        match self.events.recv().await {
            Some(event) => {
                self.is_waiting = true;
                event
            }
            // The thread has ended. Its last event said so.
            None => std::future::pending().await,
        }
    }

    /// Requests the next line.
    pub fn request_line(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            let _ = self.line_requests.try_send(());
        }
    }

    /// Suspends the process, as Ctrl-Z does elsewhere. The terminal is restored meanwhile, and the started line is kept.
    pub fn suspend(&self) {
        if self.is_waiting || !self.can_edit {
            *self.leave_reason.lock() = None;
            return terminal::suspend();
        }
        *self.leave_reason.lock() = Some(LeaveReason::Suspend);
        terminal::interrupt();
    }

    /// Returns true while the editor was asked to leave its line and has not done so.
    pub fn is_leaving(&self) -> bool {
        self.leave_reason.lock().is_some()
    }

    /// Ends the editor, also in the middle of a line. Afterwards everything that was printed before is on the terminal.
    pub async fn end(mut self) {
        *self.leave_reason.lock() = None;
        if self.can_edit && !self.is_waiting && terminal::is_in_foreground() {
            self.leave_line().await;
        }
        let Self { screen, terminal, .. } = self;
        let flush_and_restore = move || {
            screen.flush();
            screen.end_line();
            if let Some(terminal) = terminal {
                terminal.restore();
            }
        };
        // An error means that the runtime is being shut down.
        let _ = tokio::task::spawn_blocking(flush_and_restore).await;
    }

    /// Makes the editor's thread end. An interrupt has no effect before the thread reads, so it is repeated.
    async fn leave_line(&mut self) {
        *self.leave_reason.lock() = Some(LeaveReason::End);
        for _ in 0..INTERRUPTS_MAX {
            terminal::interrupt();
            if tokio::time::timeout(INTERRUPT_INTERVAL, self.events.recv()).await.is_ok() {
                return;
            }
        }
    }
}

/// A line that is being typed.
#[derive(Clone, Default)]
struct Draft {
    text: String,
    /// The position of the cursor, in bytes.
    cursor: usize,
}

/// The current draft. The helper updates it at every key.
type SharedDraft = Arc<Mutex<Draft>>;

/// The state of the editor's thread.
struct EditorThread {
    prompt: String,
    history: Option<PathBuf>,
    draft: SharedDraft,
    leave_reason: SharedLeaveReason,
    screen: Printer,
}

impl EditorThread {
    fn read_lines(
        &self,
        lines: &mut rustyline::Editor<Helper, FileHistory>,
        events: &mpsc::Sender<EditorEvent>,
        line_requests: &Receiver<()>,
    ) {
        terminal::block_background_signals();
        let mut initial = Draft::default();
        loop {
            // A background job of a shell must not read the terminal.
            terminal::wait_for_foreground();
            *self.draft.lock() = initial.clone();
            self.screen.begin_line();
            let line = lines.readline_with_initial(&self.prompt, initial.text.split_at(initial.cursor));
            initial = Draft::default();
            let draft = std::mem::take(&mut *self.draft.lock());
            let is_interrupted = matches!(line, Err(ReadlineError::Interrupted));
            let leave_reason = if is_interrupted { self.leave_reason.lock().take() } else { None };
            if leave_reason == Some(LeaveReason::End) {
                erase_line(width(&self.prompt) + width(&draft.text));
            }
            self.screen.end_line();
            let (event, is_last) = match line {
                Ok(line) => {
                    // Without a history file only later interactive sessions miss the line.
                    if let Some(history) = &self.history {
                        let _ = lines.save_history(history);
                    }
                    (EditorEvent::Line(line), false)
                }
                Err(ReadlineError::Interrupted) if leave_reason == Some(LeaveReason::End) => return,
                Err(ReadlineError::Interrupted) if leave_reason == Some(LeaveReason::Suspend) => {
                    initial = draft;
                    self.screen.flush();
                    terminal::suspend();
                    continue;
                }
                Err(ReadlineError::Interrupted) if !draft.text.is_empty() => (EditorEvent::Cleared, false),
                Err(ReadlineError::Interrupted) => (EditorEvent::Interrupt, false),
                Err(ReadlineError::Eof) => (EditorEvent::End, false),
                Err(ReadlineError::Signal(_)) => continue,
                // The process was suspended by another signal.
                Err(_) if !terminal::is_in_foreground() => {
                    initial = draft;
                    continue;
                }
                Err(error) => (EditorEvent::Failed(error.to_string()), true),
            };
            if events.blocking_send(event).is_err() || is_last || line_requests.recv().is_err() {
                return;
            }
        }
    }
}

/// Clears the line that the editor left. It is `typed` columns wide, and the cursor is below it.
fn erase_line(typed: usize) {
    let rows = typed / super::columns().max(1) + 1;
    let mut out = std::io::stdout().lock();
    // A terminal that is gone shows nothing.
    let _ = write!(out, "\x1b[{rows}A\r\x1b[J").and_then(|()| out.flush());
}

/// Completion, hints and highlighting of the line being typed.
struct Helper {
    empty_line: Arc<Mutex<EmptyLine>>,
    vocabulary: SharedVocabulary,
    draft: SharedDraft,
    prompt_width: usize,
    screen: Printer,
}

impl Helper {
    /// The text about open requests that an empty line shows.
    fn empty_line_text(&self) -> Option<String> {
        let columns_left = super::columns().saturating_sub(self.prompt_width + 1);
        self.empty_line.lock().text(columns_left)
    }
}

/// The text after the cursor.
pub struct Hint {
    display: String,
    /// The part that the right arrow key inserts.
    completion: Option<String>,
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
        let empty_line = self.empty_line.lock().clone();
        let (start, candidates) = complete(&line[..pos], &empty_line, &self.vocabulary);
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
        *self.draft.lock() = Draft { text: line.to_owned(), cursor: pos };
        if pos < line.len() {
            return None;
        }
        hint(line).map(|(display, completion)| Hint { display, completion })
    }
}

impl Highlighter for Helper {
    /// The prompt, below the texts that wait to be printed. It ends with `?` instead of `>` while a request waits for an answer. Its width
    /// stays the same.
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, is_default: bool) -> Cow<'b, str> {
        let has_open_question = is_default && !self.empty_line.lock().questions.is_empty();
        let team = if has_open_question { prompt.strip_suffix("> ") } else { None };
        let prompt = match team {
            Some(team) => paint(BOLD, team) + &paint(WARN, "? "),
            None => paint(BOLD, prompt),
        };
        Cow::Owned(self.screen.take_texts_above() + &self.screen.styled(prompt))
    }

    /// An empty line names the open requests. A hint would be late, because the editor updates hints only at a key.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        let text = if line.is_empty() { self.empty_line_text() } else { None };
        text.map_or(Cow::Borrowed(line), |text| Cow::Owned(self.screen.styled(paint(DIM, &text))))
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(self.screen.styled(paint(DIM, hint)))
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        // The text of an empty line disappears with the first key.
        self.empty_line.lock().text(super::columns()).is_some()
    }
}
