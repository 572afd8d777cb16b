//! Lines that stay at the bottom of the terminal, below all other output.
//!
//! Brigade erases them before each output and draws them again after it. A narrower window wraps them into more rows, which are erased
//! too.
//!
//! No library fits. Some ask the terminal for the position of the cursor, and a person's keys can delay the answer. Others fill the
//! lines with spaces, which leave empty rows when they wrap.

use std::io::{self, Write as _};

use parking_lot::Mutex;

use crate::front::text::lines::width;
use crate::platform::terminal;

/// The lines at the bottom of the terminal on stdout, which this process has once.
static DRAWING: Mutex<Drawing> = Mutex::new(Drawing { has_colors: false, lines: Vec::new(), drawn: Vec::new() });

struct Drawing {
    has_colors: bool,
    /// The lines to show, without newlines. They are drawn only while this process is in the foreground.
    lines: Vec<String>,
    /// The widths of the lines that are on the screen, in columns. The cursor is in the row below them.
    drawn: Vec<usize>,
}

/// Shows these lines instead of the present ones. Each should be narrower than the terminal, and must not contain a newline. In the
/// background nothing is drawn.
pub fn show(lines: Vec<String>, has_colors: bool) {
    let mut drawing = DRAWING.lock();
    if lines == drawing.lines && !drawing.drawn.is_empty() {
        return;
    }
    drawing.erase();
    drawing.lines = lines;
    drawing.has_colors = has_colors;
    drawing.draw();
}

/// Erases the lines, calls `print` and draws them again. Returns the result of `print`, whose output must end with a newline.
pub fn print_above<T>(print: impl FnOnce() -> T) -> T {
    let mut drawing = DRAWING.lock();
    drawing.erase();
    let result = print();
    drawing.draw();
    result
}

/// Removes the lines from the screen, until [`show`] is called again.
pub fn erase() {
    let mut drawing = DRAWING.lock();
    drawing.erase();
    drawing.lines.clear();
}

impl Drawing {
    fn erase(&mut self) {
        if self.drawn.is_empty() {
            return;
        }
        if !terminal::is_in_foreground() {
            // The shell has written below the lines.
            return self.drawn.clear();
        }
        let columns = terminal_size::terminal_size().map(|(terminal_size::Width(columns), _)| usize::from(columns));
        write(&erase_sequence(&std::mem::take(&mut self.drawn), columns));
    }

    fn draw(&mut self) {
        if self.lines.is_empty() || !terminal::is_in_foreground() {
            return;
        }
        let text: String = self.lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let plain = anstream::adapter::strip_str(&text).to_string();
        self.drawn = plain.lines().map(width).collect();
        write(if self.has_colors { &text } else { &plain });
    }
}

/// The codes that erase lines of these widths above the cursor, in a window with this many columns.
fn erase_sequence(widths: &[usize], columns: Option<usize>) -> String {
    let rows_of = |width: &usize| columns.map_or(1, |columns| width.div_ceil(columns.max(1)).max(1));
    match widths.iter().map(rows_of).sum::<usize>() {
        0 => String::new(),
        rows => format!("\r\x1b[{rows}A\x1b[J"),
    }
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    // An error means that the terminal is closed.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erase_sequence_counts_wrapped_rows() {
        for (widths, columns, expected) in [
            (&[][..], Some(80), ""),
            (&[70, 0, 80], Some(80), "\r\x1b[3A\x1b[J"),
            (&[70, 0, 80], Some(40), "\r\x1b[5A\x1b[J"),
            (&[70], None, "\r\x1b[1A\x1b[J"),
        ] {
            assert_eq!(erase_sequence(widths, columns), expected, "{widths:?} {columns:?}");
        }
    }
}
