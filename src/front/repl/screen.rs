//! The screen of an interactive session. Its own thread prints texts in order: above the line being typed, or plainly if none is. A
//! slow terminal delays only that thread.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustyline::ExternalPrinter;

use crate::front::cli::output::Output;

/// Texts that wait to be printed. At this number the next print blocks.
const WAITING_MAX: usize = 1024;
/// A text that leaves the screen as it is: one line up, and down again.
const NOTHING_VISIBLE: &str = "\x1b[A\n";
/// The longest time that the end of an interactive session waits for texts to be printed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Prints texts on the screen of an interactive session. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Printer {
    jobs: SyncSender<PrintJob>,
    line: Arc<EditedLine>,
    has_colors: bool,
    /// The number of texts so far.
    texts_count: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum PrintJob {
    Print(String),
    /// Acknowledge after everything before was printed, or waits for the line editor.
    Flush(SyncSender<()>),
}

/// The line being edited, as the threads of the screen and of the line editor share it.
#[derive(Debug)]
struct EditedLine {
    state: Mutex<EditedLineState>,
    /// Makes the line editor draw its line again; `None` on a terminal that is too simple for one.
    redraws: Option<SyncSender<()>>,
}

#[derive(Debug, Default)]
struct EditedLineState {
    /// True while a line is being edited. Only the line editor writes to the terminal then.
    is_edited: bool,
    /// The texts that it draws above the line, together with the line.
    texts_above: String,
}

impl EditedLine {
    fn redraw(&self) {
        if let Some(redraws) = &self.redraws {
            // If one is waiting already, it draws everything.
            let _ = redraws.try_send(());
        }
    }

    /// Prints this text now, or leaves it to the line editor.
    fn print(&self, text: &str) {
        let mut state = self.state.lock();
        if state.is_edited {
            state.texts_above.push_str(text);
            drop(state);
            self.redraw();
        } else {
            write_to_terminal(text);
        }
    }
}

impl Printer {
    /// A screen that prints through the line editor that reads `printer`, or plainly on a terminal that is too simple for one.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn start(printer: Option<impl ExternalPrinter + Send + 'static>, output: Output) -> io::Result<Self> {
        let redraws = printer.map(start_redraws).transpose()?;
        let line = Arc::new(EditedLine { state: Mutex::default(), redraws });
        let (jobs, waiting) = sync_channel(WAITING_MAX);
        let printed_on = Arc::clone(&line);
        std::thread::Builder::new().name("screen".to_owned()).spawn(move || print_all(&waiting, &printed_on))?;
        Ok(Self { jobs, line, has_colors: output.has_colors(), texts_count: Arc::default() })
    }

    /// Returns true if the terminal gets colours.
    pub fn has_colors(&self) -> bool {
        self.has_colors
    }

    /// Returns the text as this terminal shows it: without styles if it gets no colours.
    pub fn styled(&self, text: String) -> String {
        if self.has_colors { text } else { anstream::adapter::strip_str(&text).to_string() }
    }

    /// Prints whole lines above what is being typed.
    pub fn print(&self, text: &str) {
        if text.is_empty() {
            return;
        }
        let text = self.styled(text.to_owned());
        let text = if text.ends_with('\n') { text } else { text + "\n" };
        self.texts_count.fetch_add(1, Ordering::Relaxed);
        // The send fails only if the screen's thread has ended.
        let _ = self.jobs.send(PrintJob::Print(text));
    }

    /// Returns the number of texts that were printed so far, by all clones.
    pub fn texts_count(&self) -> usize {
        self.texts_count.load(Ordering::Relaxed)
    }

    /// Draws the prompt again: its text has changed.
    pub fn redraw_prompt(&self) {
        self.line.redraw();
    }

    /// Prints whole lines. Returns true if they were printed, or given to the line editor, within two seconds.
    pub fn print_and_wait(&self, text: &str) -> bool {
        self.print(text);
        self.flush()
    }

    /// Waits up to two seconds until everything is printed, or given to the line editor. Returns true if it is.
    pub fn flush(&self) -> bool {
        let (done, is_done) = sync_channel(1);
        self.jobs.send(PrintJob::Flush(done)).is_ok() && is_done.recv_timeout(END_TIMEOUT).is_ok()
    }

    /// Leaves the terminal to the line editor until [`Self::end_line`], if it can draw texts above its line.
    pub fn begin_line(&self) {
        self.line.state.lock().is_edited = self.line.redraws.is_some();
    }

    /// Returns the texts that the line editor must draw above its line, each of them once.
    pub fn take_texts_above(&self) -> String {
        std::mem::take(&mut self.line.state.lock().texts_above)
    }

    /// Prints what the line editor has not drawn, and all later texts, plainly.
    pub fn end_line(&self) {
        let mut state = self.line.state.lock();
        state.is_edited = false;
        write_to_terminal(&std::mem::take(&mut state.texts_above));
    }
}

fn print_all(jobs: &Receiver<PrintJob>, line: &EditedLine) {
    while let Ok(job) = jobs.recv() {
        match job {
            PrintJob::Print(text) => line.print(&text),
            PrintJob::Flush(done) => {
                // The caller may have stopped to wait.
                let _ = done.send(());
            }
        }
    }
}

fn write_to_terminal(text: &str) {
    let mut out = io::stdout().lock();
    // An error means that the terminal is closed.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Starts a thread that makes the line editor draw its line again for each message. A text that an editor does not take, because its line
/// was just entered, blocks the thread until the next line.
fn start_redraws(mut printer: impl ExternalPrinter + Send + 'static) -> io::Result<SyncSender<()>> {
    let (redraws, requests) = sync_channel(1);
    let run = move || {
        while requests.recv().is_ok() {
            // The print fails only if no line is being read. The next line is drawn anyway.
            let _ = printer.print(NOTHING_VISIBLE.to_owned());
        }
    };
    std::thread::Builder::new().name("redraws".to_owned()).spawn(run)?;
    Ok(redraws)
}
