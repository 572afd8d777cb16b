//! Traces: problems that are in no event. They go to stderr. In an interactive session they are printed above the input line.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::EnvFilter;

use super::repl::screen::Printer;

/// The screen of the interactive session that uses the terminal.
static SCREEN: Mutex<Option<Printer>> = Mutex::new(None);

/// Starts to show traces. `RUST_LOG` selects them; the default is warnings and errors, without their module.
pub fn listen() {
    let filter = EnvFilter::try_from_default_env();
    let is_asked_for = filter.is_ok();
    let is_coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new("warn")))
        .with_ansi(is_coloured)
        .with_target(is_asked_for)
        .without_time();
    // A program that embeds Brigade may have set a subscriber; then this one is not used.
    let _ = lines.with_writer(|| Line(Vec::new())).try_init();
}

/// Sends the next traces to this screen, or to stderr for `None`.
pub fn show_on(screen: Option<Printer>) {
    *SCREEN.lock().unwrap_or_else(PoisonError::into_inner) = screen;
}

/// One trace. Dropping it prints it in one write.
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let screen = SCREEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match screen {
            Some(screen) => screen.print(&String::from_utf8_lossy(&self.0)),
            // If stderr is closed, the trace is lost.
            None => drop(io::stderr().write_all(&self.0)),
        }
    }
}
