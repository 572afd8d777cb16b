//! Traces: problems that are in no event. They go to stderr. In an interactive session they are printed above the input line.
//!
//! `RUST_LOG=brigade=info` shows more. Each trace then names its spans: the lead, the teammate, the turn with its task and
//! attempt, and the tool. The start and the end of a span are traces too, with its duration.

use std::io::{self, IsTerminal, Write};

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::fmt::time::uptime;

use super::surface::Surface;
use crate::secrets::masked_in_place;

/// The place where traces appear.
static SURFACE: Mutex<Surface> = Mutex::new(Surface::Streams);

/// Starts to show traces. `RUST_LOG` selects them; the default is warnings and errors, without their module.
pub fn listen() {
    let filter = EnvFilter::try_from_default_env();
    let is_asked_for = filter.is_ok();
    let is_colored = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new("warn")))
        .with_ansi(is_colored)
        .with_target(is_asked_for)
        .with_writer(|| Line(Vec::new()));
    // A program that embeds Brigade may have set a subscriber; then this one is not used.
    let _ = if is_asked_for {
        lines.with_timer(uptime()).with_span_events(FmtSpan::NEW | FmtSpan::CLOSE).try_init()
    } else {
        lines.without_time().try_init()
    };
}

/// Shows the next traces here.
pub fn show_on(surface: Surface) {
    *SURFACE.lock() = surface;
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
        let surface = SURFACE.lock().clone();
        surface.trace(&masked_in_place(&self.0));
    }
}
