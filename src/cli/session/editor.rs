//! The line editor of a session, in a thread of its own: it hands typed lines over one at a time and reads the next when it is
//! told to go on. The terminal is put back as it was when it ends, also in the middle of a line.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config};
use tokio::sync::mpsc;

use super::completion::{Hint, Vocabulary};
use super::screen::{Pause, Screen};
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::Output;
use crate::platform::reading::{self as files, Accept};
use crate::platform::terminal::{self, Terminal};
use crate::ui::style::{BOLD, DIM, WARN, paint};
use crate::ui::text::width;

/// Lines that are kept from one session to the next.
const HISTORY_MAX: usize = 1_000;
/// The largest file of former lines that is read, in bytes.
const HISTORY_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The widest prompt; a longer team's name is left out.
const PROMPT_WIDTH_MAX: usize = 20;

/// What came of reading a line.
#[derive(Debug)]
pub enum Typed {
    /// A line.
    Line(String),
    /// Ctrl-C on an empty line.
    Interrupt,
    /// Ctrl-C that did away with what was typed.
    Cleared,
    /// Ctrl-D, or the terminal is gone.
    End,
    /// A signal to the process.
    Signal,
    /// Nothing can be read any more.
    Failed(String),
}

/// See the module.
pub struct Editor {
    typed: mpsc::Receiver<Typed>,
    go_on: SyncSender<()>,
    screen: Screen,
    terminal: Option<Terminal>,
    /// Whether a line was handed over and the next is not being read yet.
    is_waiting: bool,
    /// Whether lines can be edited; else the terminal is as it was all the time.
    can_edit: bool,
    leaving: Leaving,
}

/// While the line being read is to be left, for the process to be suspended: keeps the screen from printing.
type Leaving = Arc<Mutex<Option<Pause>>>;

impl Editor {
    /// Begins to read lines; what is printed on the screen it returns appears above them.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn start(
        team: &str,
        history: PathBuf,
        vocabulary: Arc<Mutex<Vocabulary>>,
        output: Output,
    ) -> CliResult<(Self, Screen)> {
        let cannot = |error: &dyn std::fmt::Display| CliError::refused(format!("cannot use the terminal: {error}"));
        let terminal = Terminal::remember();
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .max_history_size(HISTORY_MAX)
            .map_err(|error| cannot(&error))?
            .history_ignore_space(true)
            .auto_add_history(true)
            .build();
        let mut lines: rustyline::Editor<Helper, FileHistory> =
            rustyline::Editor::with_config(config).map_err(|error| cannot(&error))?;
        // A terminal that can do nothing but print has no printer of its own.
        let printer = lines.create_external_printer().ok();
        let can_edit = printer.is_some();
        let screen = Screen::start(printer, output).map_err(|error| cannot(&error))?;
        let prompt = if team.len() <= PROMPT_WIDTH_MAX { format!("{team}> ") } else { "> ".to_owned() };
        let (text, leaving) = (Arc::new(Mutex::default()), Leaving::default());
        let helper = Helper {
            vocabulary,
            text: Arc::clone(&text),
            prompt_width: width(&prompt),
            has_colours: screen.has_colours(),
        };
        lines.set_helper(Some(helper));
        // There is none the first time. What is no plain file, or too large, is neither read nor written.
        let history = match files::read(&history, Accept::FilesHere, HISTORY_BYTES_MAX) {
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

    /// The next thing that was typed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Typed {
        match self.typed.recv().await {
            Some(typed) => {
                self.is_waiting = true;
                typed
            }
            // It has said that it ended.
            None => std::future::pending().await,
        }
    }

    /// The line before is done: reads the next.
    pub fn go_on(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            let _ = self.go_on.try_send(());
        }
    }

    /// Suspends the process, as Ctrl-Z does elsewhere: the terminal is left as it was first, and what is typed is there again later.
    pub fn suspend(&self) {
        if self.is_waiting || !self.can_edit {
            drop(take(&self.leaving));
            return terminal::suspend();
        }
        let pause = self.screen.pause();
        *self.leaving.lock().unwrap_or_else(PoisonError::into_inner) = Some(pause);
        terminal::interrupt();
    }

    /// Whether the line being read is to be left, and was not yet.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends it, whatever is being typed.
    pub async fn end(self) {
        let Self { screen, terminal, leaving, .. } = self;
        drop(take(&leaving));
        let put_back = move || {
            screen.flush();
            if let Some(terminal) = terminal {
                terminal.put_back();
            }
        };
        // It cannot panic; a runtime that is being shut down has no terminal to care for.
        let _ = tokio::task::spawn_blocking(put_back).await;
    }
}

/// A line as it is being typed, and where the cursor stands in it.
type Text = Arc<Mutex<(String, usize)>>;

/// What the editor's thread goes by.
struct Reading {
    prompt: String,
    history: Option<PathBuf>,
    /// Told at every key.
    text: Text,
    leaving: Leaving,
    screen: Screen,
}

impl Reading {
    fn read_lines(
        &self,
        lines: &mut rustyline::Editor<Helper, FileHistory>,
        typed: &mpsc::Sender<Typed>,
        may_go_on: &Receiver<()>,
    ) {
        terminal::outlive_in_this_thread();
        let mut before = (String::new(), 0);
        loop {
            // In the background the terminal is the shell's.
            terminal::await_ours();
            *text_of(&self.text) = before.clone();
            let (left, right) = before.0.split_at(before.1);
            let line = lines.readline_with_initial(&self.prompt, (left, right));
            before = Default::default();
            let text = std::mem::take(&mut *text_of(&self.text));
            let (what, is_last) = match line {
                Ok(line) => {
                    // What cannot be kept is typed again.
                    if let Some(history) = &self.history {
                        let _ = lines.save_history(history);
                    }
                    (Typed::Line(line), false)
                }
                Err(ReadlineError::Interrupted) if take(&self.leaving).is_some() => {
                    before = text;
                    self.screen.flush();
                    terminal::suspend();
                    continue;
                }
                Err(ReadlineError::Interrupted) if !text.0.is_empty() => (Typed::Cleared, false),
                Err(ReadlineError::Interrupted) => (Typed::Interrupt, false),
                Err(ReadlineError::Eof) => (Typed::End, false),
                Err(ReadlineError::Signal(_)) => continue,
                // It was suspended some other way.
                Err(_) if !terminal::is_ours() => {
                    before = text;
                    continue;
                }
                Err(error) => (Typed::Failed(error.to_string()), true),
            };
            if typed.blocking_send(what).is_err() || is_last || may_go_on.recv().is_err() {
                return;
            }
        }
    }
}

fn take(leaving: &Leaving) -> Option<Pause> {
    leaving.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn text_of(text: &Text) -> std::sync::MutexGuard<'_, (String, usize)> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the editor asks while a line is typed.
struct Helper {
    vocabulary: Arc<Mutex<Vocabulary>>,
    text: Text,
    prompt_width: usize,
    /// Without colours nothing is highlighted: what waits is a hint then, which the editor renews at the next key.
    has_colours: bool,
}

impl Helper {
    /// What an empty line says of what the person is asked.
    fn asked(&self) -> Option<String> {
        let room = super::columns().saturating_sub(self.prompt_width + 1);
        Vocabulary::of(&self.vocabulary).asked(room)
    }
}

impl rustyline::hint::Hint for Hint {
    fn display(&self) -> &str {
        &self.shown
    }

    fn completion(&self) -> Option<&str> {
        self.typed.as_deref()
    }
}

impl rustyline::Helper for Helper {}

impl rustyline::validate::Validator for Helper {}

impl Completer for Helper {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, candidates) = Vocabulary::of(&self.vocabulary).complete(&line[..pos]);
        let pair =
            |candidate: super::completion::Candidate| Pair { display: candidate.shown, replacement: candidate.typed };
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
            return self.asked().map(|shown| Hint { shown, typed: None });
        }
        Vocabulary::of(&self.vocabulary).hint(line)
    }
}

impl Highlighter for Helper {
    /// The sign at the prompt's end says whether something waits for an answer; the prompt stays as wide as it is.
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, is_default: bool) -> Cow<'b, str> {
        let is_asked = is_default && Vocabulary::of(&self.vocabulary).is_asked();
        Cow::Owned(match prompt.strip_suffix("> ").filter(|_| is_asked) {
            Some(team) => paint(BOLD, team) + &paint(WARN, "? "),
            None => paint(BOLD, prompt),
        })
    }

    /// An empty line says what is asked: not as a hint, because the editor renews those only at a key.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        let asked = if line.is_empty() { self.asked() } else { None };
        asked.map_or(Cow::Borrowed(line), |asked| Cow::Owned(paint(DIM, &asked)))
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(paint(DIM, hint))
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        // What an empty line said goes with the first key.
        Vocabulary::of(&self.vocabulary).says_anything()
    }
}
