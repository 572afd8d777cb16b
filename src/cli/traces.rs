//! Traces: what went wrong and is in no event. They go to stderr, or above the line being typed while a session has the terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::EnvFilter;

use super::session::screen::Screen;

/// The session that has the terminal.
static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);

/// Shows traces from now on: as many as `RUST_LOG` asks for, by default warnings and errors as plain sentences.
pub fn listen() {
    let filter = EnvFilter::try_from_default_env();
    let is_asked_for = filter.is_ok();
    let is_coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new("warn")))
        .with_ansi(is_coloured)
        .with_target(is_asked_for)
        .without_time();
    // A second subscriber, in a program that embeds this one, is no reason to stop.
    let _ = lines.with_writer(|| Line(Vec::new())).try_init();
}

/// Shows traces on this screen from now on; `None`: on stderr.
pub fn show_on(screen: Option<Screen>) {
    *SCREEN.lock().unwrap_or_else(PoisonError::into_inner) = screen;
}

/// One trace, shown whole when it is dropped.
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
            // There is nobody left to tell when stderr is closed.
            None => drop(io::stderr().write_all(&self.0)),
        }
    }
}
