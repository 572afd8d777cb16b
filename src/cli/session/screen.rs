//! Where a session's words go: above the line being typed while one is, plainly otherwise. A thread of its own prints them in
//! order, so that a slow terminal holds nobody up but itself.

use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use rustyline::ExternalPrinter;

use crate::cli::output::{Color, Output};

/// Texts that wait to be printed; who prints waits then.
const WAITING_MAX: usize = 1024;
/// How long the end of a session waits for what is still to be printed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Screen {
    texts: SyncSender<Text>,
    has_colours: bool,
}

enum Text {
    Print(String),
    /// Say so once everything before is printed.
    Flush(SyncSender<()>),
    /// Say so once everything before is printed, and print the next when this closes.
    Pause(SyncSender<()>, Receiver<()>),
}

/// Nothing is printed while this lives.
#[derive(Debug)]
pub struct Pause {
    _resume: SyncSender<()>,
}

impl Screen {
    /// A screen that prints through `printer`, or plainly where the terminal is too simple for an editor.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(printer: Option<impl ExternalPrinter + Send + 'static>, output: Output) -> io::Result<Self> {
        let (texts, waiting) = sync_channel(WAITING_MAX);
        std::thread::Builder::new().name("screen".to_owned()).spawn(move || print_all(&waiting, printer))?;
        let has_colours = match output.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => AutoStream::choice(&io::stdout()) != ColorChoice::Never,
        };
        Ok(Self { texts, has_colours })
    }

    /// Whether it shows colours.
    #[must_use]
    pub fn has_colours(&self) -> bool {
        self.has_colours
    }

    /// Prints whole lines above what is being typed.
    pub fn print(&self, text: &str) {
        if text.is_empty() {
            return;
        }
        let text = if self.has_colours { text.to_owned() } else { anstream::adapter::strip_str(text).to_string() };
        let text = if text.ends_with('\n') { text } else { text + "\n" };
        // A screen that is gone has nobody in front of it.
        let _ = self.texts.send(Text::Print(text));
    }

    /// Prints whole lines, and says whether the terminal took them within a moment.
    #[must_use]
    pub fn print_and_wait(&self, text: &str) -> bool {
        self.print(text);
        self.flush()
    }

    /// Waits until everything is printed, but not for ever; says whether it is.
    pub fn flush(&self) -> bool {
        let (done, printed) = sync_channel(1);
        self.texts.try_send(Text::Flush(done)).is_ok() && printed.recv_timeout(END_TIMEOUT).is_ok()
    }

    /// Prints nothing while the result lives. Returns when everything before is printed, or after two seconds.
    ///
    /// A line editor that stops reading takes no more text. A text that is being handed to it at that moment waits for the next line.
    pub fn pause(&self) -> Pause {
        let (done, paused) = sync_channel(1);
        let (resume, resumed) = sync_channel(0);
        if self.texts.try_send(Text::Pause(done, resumed)).is_ok() {
            let _ = paused.recv_timeout(END_TIMEOUT);
        }
        Pause { _resume: resume }
    }
}

fn print_all(waiting: &Receiver<Text>, mut printer: Option<impl ExternalPrinter>) {
    while let Ok(text) = waiting.recv() {
        match text {
            Text::Print(text) => {
                let printed = printer.as_mut().is_some_and(|printer| printer.print(text.clone()).is_ok());
                if !printed {
                    let mut out = io::stdout().lock();
                    // Whoever closed the terminal sees nothing any more.
                    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                }
            }
            Text::Flush(done) => {
                let _ = done.send(());
            }
            Text::Pause(done, resumed) => {
                let _ = done.send(());
                let _ = resumed.recv();
            }
        }
    }
}
