//! The layout of a line: the time since the start, the name, and the text, within the width of the terminal.

use std::collections::HashMap;

use anstyle::Style;

use crate::domain::text::one_line;
use crate::domain::time::UnixMs;
use crate::front::text::lines::{cut, elapsed, fold, pad, width};
use crate::front::text::markdown;
use crate::front::text::style::{self, BOLD, DIM, paint};

/// Names are aligned up to this width.
const NAME_WIDTH_MAX: usize = 14;
/// The width of a terminal below which lines have no time, and names are not aligned.
const ALIGNED_COLUMNS_MIN: usize = 40;
const FOLDED_LINES_MAX: usize = 16;
/// A narrower text column is cut, not folded.
const FOLDED_WIDTH_MIN: usize = 16;
/// Spaces before the lines of a text that is shown in full.
const TEXT_INDENT: usize = 9;

/// The lines that a text may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Height {
    OneLine,
    Folded,
    /// The first line is folded. The rest is a text that follows in full, below that line unless it fits there.
    Whole,
}

/// The layout of all lines of a timeline.
#[derive(Debug)]
pub(super) struct LineLayout {
    pub columns: usize,
    renders_markdown: bool,
    /// The moment that all times are relative to.
    pub started: Option<UnixMs>,
    name_width: usize,
    color_indexes: HashMap<String, usize>,
}

impl LineLayout {
    /// Creates the layout of lines of at most `columns`. The column of names is at least as wide as `name`.
    pub fn new(columns: usize, renders_markdown: bool, name: &str) -> Self {
        Self { columns, renders_markdown, started: None, name_width: name.len(), color_indexes: HashMap::new() }
    }

    /// Adds a name: it gets the next color, and the column of names gets its width.
    pub fn add_name(&mut self, name: &str) {
        let next = self.color_indexes.len();
        self.color_indexes.entry(name.to_owned()).or_insert(next);
        self.name_width = self.name_width.max(width(&one_line(name)).min(NAME_WIDTH_MAX));
    }

    /// The time since the start, the name and the text, in one line.
    pub fn line(&self, at: UnixMs, who: &str, text: &str, style: Style) -> String {
        self.lines(at, who, text, style, Height::OneLine)
    }

    pub fn lines(&self, at: UnixMs, who: &str, text: &str, style: Style, height: Height) -> String {
        let who = one_line(who);
        let (head, used) = self.head(at, &who);
        if self.columns <= used {
            return format!("{}\n", cut(&who, self.columns));
        }
        let columns_left = self.columns - used;
        if let (Height::Whole, Some((head, body))) = (height, text.split_once('\n'))
            && (body.trim().contains('\n') || width(&one_line(text)) > columns_left)
        {
            let body = markdown::body(body, self.columns, TEXT_INDENT, self.renders_markdown);
            return self.lines(at, &who, head, style, Height::Folded) + &body;
        }
        // Failures and results are shown to their end: their last words matter.
        let is_folded = !matches!(height, Height::OneLine) && columns_left >= FOLDED_WIDTH_MIN;
        let mut lines = fold(&one_line(text), columns_left, if is_folded { FOLDED_LINES_MAX } else { 1 }).into_iter();
        let first = lines.next().unwrap_or_default();
        let mut out = format!("{head}{}\n", paint(style, &first));
        for line in lines {
            out.push_str(&format!("{}{}\n", " ".repeat(used), paint(style, &line)));
        }
        out
    }

    /// The time and the name before a text, and their width.
    fn head(&self, at: UnixMs, who: &str) -> (String, usize) {
        let color = self.color_indexes.get(who).map_or(BOLD, |index| style::teammate(*index));
        if self.columns < ALIGNED_COLUMNS_MIN {
            let name = cut(who, self.columns / 3);
            return (format!("{} ", paint(color, &name)), width(&name) + 1);
        }
        let clock = elapsed(at.since(self.started.unwrap_or(at)));
        // The names of programs outside the team may be wider than the column.
        let name = pad(&cut(who, NAME_WIDTH_MAX), self.name_width);
        (format!("{}  {}  ", paint(DIM, &clock), paint(color, &name)), width(&clock) + width(&name) + 4)
    }
}
