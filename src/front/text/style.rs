//! The colours of the output and their meanings.

use anstyle::{AnsiColor, Color, Style};

const fn color(color: AnsiColor) -> Style {
    Style::new().fg_color(Some(Color::Ansi(color)))
}

/// Ordinary text.
pub const PLAIN: Style = Style::new();
/// Headings.
pub const BOLD: Style = Style::new().bold();
/// Less important text.
pub const DIM: Style = Style::new().dimmed();
/// Success.
pub const GOOD: Style = color(AnsiColor::Green);
/// Failure.
pub const BAD: Style = color(AnsiColor::Red);
/// Needs the person's attention.
pub const WARN: Style = color(AnsiColor::Yellow);
/// In progress.
pub const BUSY: Style = color(AnsiColor::Cyan);

/// The colours of teammates, in the order of their first appearance.
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

/// Returns the colour of the teammate with this index in the order of first appearance. Colours repeat.
pub fn teammate(index: usize) -> Style {
    TEAMMATES[index % TEAMMATES.len()]
}

/// Returns the text in this style. An empty text stays empty.
pub fn paint(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// Returns `warning: ` and the text.
pub fn warning(text: &str) -> String {
    format!("{} {text}", paint(WARN, "warning:"))
}
