//! The few colours there are, and what each means.

use anstyle::{AnsiColor, Color, Style};

const fn color(color: AnsiColor) -> Style {
    Style::new().fg_color(Some(Color::Ansi(color)))
}

/// Nothing special.
pub const PLAIN: Style = Style::new();
/// Headings.
pub const BOLD: Style = Style::new().bold();
/// Of less interest.
pub const DIM: Style = Style::new().dimmed();
/// It went well.
pub const GOOD: Style = color(AnsiColor::Green);
/// It went wrong.
pub const BAD: Style = color(AnsiColor::Red);
/// Somebody should look.
pub const WARN: Style = color(AnsiColor::Yellow);
/// Something goes on.
pub const BUSY: Style = color(AnsiColor::Cyan);

/// The colours of teammates, in the order they appear.
const TEAMMATES: [Style; 8] = [
    color(AnsiColor::Cyan),
    color(AnsiColor::Magenta),
    color(AnsiColor::Blue),
    color(AnsiColor::Green),
    color(AnsiColor::BrightCyan),
    color(AnsiColor::BrightMagenta),
    color(AnsiColor::BrightBlue),
    color(AnsiColor::BrightGreen),
];

/// The colour of the `index`-th teammate.
#[must_use]
pub fn teammate(index: usize) -> Style {
    TEAMMATES[index % TEAMMATES.len()]
}

/// The text in a style.
#[must_use]
pub fn paint(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}
