//! The screen of an interactive session. Its own thread prints texts in order: above the line being typed, or plainly if none is. A
//! slow terminal delays only that thread.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustyline::ExternalPrinter;

use crate::cli::output::Output;

/// Texts that wait to be printed. At this number the next print blocks.
const WAITING_MAX: usize = 1024;
/// A text that leaves the screen as it is: one line up, and down again.
const NOTHING_VISIBLE: &str = "\x1b[A\n";
/// The longest time that the end of an interactive session waits for texts to be printed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Prints texts on the screen of an interactive session. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Printer {
    texts: SyncSender<PrintJob>,
    has_colors: bool,
    /// The number of texts so far.
    texts_count: Arc<AtomicUsize>,
}

enum PrintJob {
    Print(String),
    /// Draw the prompt again, if a line editor shows one.
    RedrawPrompt,
    /// Acknowledge after everything before was printed.
    Flush(SyncSender<()>),
    /// Acknowledge after a line editor has taken everything before.
    HandOver(SyncSender<()>),
    /// Acknowledge after everything before was printed; print the next text when the channel closes.
    Pause(SyncSender<()>, Receiver<()>),
}

/// Keeps the screen from printing until it is dropped.
#[derive(Debug)]
pub struct Pause {
    _resume: SyncSender<()>,
}

impl Printer {
    /// A screen that prints through `printer`, or plainly on a terminal that is too simple for a line editor.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(printer: Option<impl ExternalPrinter + Send + 'static>, output: Output) -> io::Result<Self> {
        let (texts, waiting) = sync_channel(WAITING_MAX);
        std::thread::Builder::new().name("screen".to_owned()).spawn(move || print_all(&waiting, printer))?;
        Ok(Self { texts, has_colors: output.has_colors(), texts_count: Arc::default() })
    }

    /// Returns true if the terminal gets colours.
    pub fn has_colors(&self) -> bool {
        self.has_colors
    }

    /// Prints whole lines above what is being typed.
    pub fn print(&self, text: &str) {
        if text.is_empty() {
            return;
        }
        let text = if self.has_colors { text.to_owned() } else { anstream::adapter::strip_str(text).to_string() };
        let text = if text.ends_with('\n') { text } else { text + "\n" };
        self.texts_count.fetch_add(1, Ordering::Relaxed);
        // The send fails only if the screen's thread has ended.
        let _ = self.texts.send(PrintJob::Print(text));
    }

    /// Returns the number of texts that were printed so far, by all clones.
    pub fn texts_count(&self) -> usize {
        self.texts_count.load(Ordering::Relaxed)
    }

    /// Draws the prompt again: its text has changed.
    pub fn redraw_prompt(&self) {
        // The send fails only if the screen's thread has ended.
        let _ = self.texts.send(PrintJob::RedrawPrompt);
    }

    /// Prints whole lines. Returns true if they were printed within two seconds.
    pub fn print_and_wait(&self, text: &str) -> bool {
        self.print(text);
        self.flush()
    }

    /// Waits up to two seconds until everything is printed. Returns true if it is.
    pub fn flush(&self) -> bool {
        self.wait_for(PrintJob::Flush)
    }

    /// Waits up to two seconds until a line editor that reads a line has taken every text. It draws them before it reacts to a signal.
    pub fn hand_over(&self) -> bool {
        self.wait_for(PrintJob::HandOver)
    }

    /// Prints nothing until the result is dropped. Returns when everything before is printed, or after two seconds.
    ///
    /// A line editor that stops reading takes no more text. A text that it is given at that moment waits for the next line.
    pub fn pause(&self) -> Pause {
        let (resume, resumed) = sync_channel(0);
        self.wait_for(|done| PrintJob::Pause(done, resumed));
        Pause { _resume: resume }
    }

    /// Waits up to two seconds until this job is done. Returns true if it is.
    fn wait_for(&self, job: impl FnOnce(SyncSender<()>) -> PrintJob) -> bool {
        let (done, is_done) = sync_channel(1);
        self.texts.try_send(job(done)).is_ok() && is_done.recv_timeout(END_TIMEOUT).is_ok()
    }
}

fn print_all(waiting: &Receiver<PrintJob>, mut printer: Option<impl ExternalPrinter>) {
    while let Ok(text) = waiting.recv() {
        match text {
            PrintJob::Print(text) => {
                let printed = printer.as_mut().is_some_and(|printer| printer.print(text.clone()).is_ok());
                if !printed {
                    let mut out = io::stdout().lock();
                    // An error means that the terminal is closed.
                    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                }
            }
            PrintJob::RedrawPrompt => draw_prompt(printer.as_mut()),
            PrintJob::Flush(done) => {
                let _ = done.send(());
            }
            PrintJob::HandOver(done) => {
                // The editor's queue holds one text: this one is queued once the one before was taken.
                draw_prompt(printer.as_mut());
                let _ = done.send(());
            }
            PrintJob::Pause(done, resumed) => {
                let _ = done.send(());
                let _ = resumed.recv();
            }
        }
    }
}

/// Makes a line editor draw its line again. It does so after each text.
fn draw_prompt(printer: Option<&mut impl ExternalPrinter>) {
    if let Some(printer) = printer {
        // The print fails only if no line is being read. The next line is drawn anyway.
        let _ = printer.print(NOTHING_VISIBLE.to_owned());
    }
}
