//! A table that fits the terminal: columns are as wide as their text, flexible columns shrink, and optional columns are left out if the
//! others have no room.

use anstyle::Style;

use super::style::{BOLD, PLAIN, paint};
use super::text::{cut, cut_within, one_line, pad, pad_left, width};

/// Spaces between two columns.
const GAP: usize = 2;
/// The minimum width of a flexible column.
const FLEXIBLE_MIN: usize = 8;

#[derive(Debug, Clone, Copy)]
pub struct Column {
    title: &'static str,
    is_number: bool,
    is_flexible: bool,
    is_optional: bool,
}

impl Column {
    pub const fn new(title: &'static str) -> Self {
        Self { title, is_number: false, is_flexible: false, is_optional: false }
    }

    /// A column that is aligned to the right.
    pub const fn number(title: &'static str) -> Self {
        Self { is_number: true, ..Self::new(title) }
    }

    /// A column that shrinks in a narrow terminal.
    pub const fn flexible(title: &'static str) -> Self {
        Self { is_flexible: true, ..Self::new(title) }
    }

    /// The same column, but left out in a narrow terminal.
    pub const fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }
}

/// One escaped line of text.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    style: Style,
    /// Cuts the middle instead of the end.
    keeps_end: bool,
}

impl Cell {
    pub fn new(text: &str, style: Style) -> Self {
        Self { text: one_line(text), style, keeps_end: false }
    }

    /// A cell that keeps the end of its text, which says why something failed.
    pub fn reason(text: &str, style: Style) -> Self {
        Self { keeps_end: true, ..Self::new(text, style) }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::new(text, PLAIN)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::new(&text, PLAIN)
    }
}

#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Returns the text: each line is at most `columns` wide and ends with a newline. Empty columns are left out.
    pub fn render(&self, columns: usize) -> String {
        let heads: Vec<Cell> = self.columns.iter().map(|column| Cell::new(column.title, BOLD)).collect();
        self.lines(std::iter::once(&heads).chain(&self.rows), columns)
    }

    /// Returns the text without the line of titles.
    pub fn render_rows(&self, columns: usize) -> String {
        self.lines(self.rows.iter(), columns)
    }

    fn lines<'a>(&self, rows: impl Iterator<Item = &'a Vec<Cell>>, columns: usize) -> String {
        let needed: Vec<usize> = (0..self.columns.len()).map(|index| self.needed(index)).collect();
        let shown = self.shown(&needed, columns);
        let widths = self.widths(&needed, &shown, columns);
        let mut out = String::new();
        for row in rows {
            self.line(row, &shown, &widths, columns, &mut out);
        }
        out
    }

    fn has_text(&self, index: usize) -> bool {
        self.rows.iter().any(|row| row.get(index).is_some_and(|cell| !cell.text.is_empty()))
    }

    /// The width that a column needs for its whole text.
    fn needed(&self, index: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| width(&cell.text));
        cells.chain([width(self.columns[index].title)]).max().unwrap_or(0)
    }

    /// The columns with text. Without room for all, optional ones are left out, the last one first.
    fn shown(&self, needed: &[usize], columns: usize) -> Vec<usize> {
        let least = |index: &usize| {
            let needed = needed[*index];
            if self.columns[*index].is_flexible { needed.min(FLEXIBLE_MIN) } else { needed }
        };
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(|index| self.has_text(*index)).collect();
        while shown.iter().map(least).sum::<usize>() + GAP * shown.len().saturating_sub(1) > columns {
            let Some(last) = shown.iter().rposition(|index| self.columns[*index].is_optional) else { break };
            shown.remove(last);
        }
        shown
    }

    fn widths(&self, needed: &[usize], shown: &[usize], columns: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = shown.iter().map(|index| needed[*index]).collect();
        let gaps = GAP * shown.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
        while excess > 0 {
            // The widest column shrinks first, so that all flexible columns stay readable.
            let widest = (0..shown.len())
                .filter(|at| self.columns[shown[*at]].is_flexible && widths[*at] > FLEXIBLE_MIN)
                .max_by_key(|at| widths[*at]);
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
            excess -= 1;
        }
        widths
    }

    fn line(&self, row: &[Cell], shown: &[usize], widths: &[usize], columns: usize, out: &mut String) {
        let mut used = 0;
        // A row has no trailing spaces.
        let last = shown.iter().rposition(|index| row.get(*index).is_some_and(|cell| !cell.text.is_empty()));
        for (at, (index, column_width)) in shown.iter().zip(widths).enumerate().take(last.map_or(0, |last| last + 1)) {
            let gap = if at > 0 { GAP } else { 0 };
            let cell_width = columns.saturating_sub(used + gap).min(*column_width);
            let Some(cell) = row.get(*index).filter(|_| cell_width > 0) else { break };
            let text = if cell.keeps_end { cut_within(&cell.text, cell_width) } else { cut(&cell.text, cell_width) };
            let filled =
                if self.columns[*index].is_number { pad_left(&text, cell_width) } else { pad(&text, cell_width) };
            out.push_str(&" ".repeat(gap));
            out.push_str(&paint(cell.style, if Some(at) == last { filled.trim_end() } else { &filled }));
            used += gap + cell_width;
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn sample() -> Table {
        let mut table = Table::new(&[
            Column::number("ID"),
            Column::new("STATUS"),
            Column::new("EMPTY"),
            Column::flexible("SUBJECT"),
        ]);
        table.row(vec!["1".into(), "pending".into(), "".into(), "日本語 and a rather long subject line".into()]);
        table.row(vec!["12".into(), "completed".into(), "".into(), "evil \x1b[2J".into()]);
        table
    }

    #[test]
    fn table_columns_fit_their_text() {
        assert_eq!(
            plain(&sample().render(80)),
            "ID  STATUS     SUBJECT\n 1  pending    日本語 and a rather long subject line\n12  completed  evil \\u{1b}[2J\n"
        );
        assert_eq!(
            plain(&sample().render(30)),
            "ID  STATUS     SUBJECT\n 1  pending    日本語 and a r…\n12  completed  evil \\u{1b}[2J\n"
        );
    }

    #[test]
    fn narrow_table_leaves_out_optional_columns() {
        let mut table = Table::new(&[
            Column::number("ID"),
            Column::flexible("OWNER").optional(),
            Column::flexible("SUBJECT"),
            Column::new("NOTE").optional(),
        ]);
        table.row(vec!["1".into(), "frank-the-reviewer".into(), "Count the lines".into(), "exit 0".into()]);
        assert_eq!(plain(&table.render_rows(34)), " 1  frank-the…  Count the…  exit 0\n");
        assert_eq!(plain(&table.render_rows(29)), " 1  frank-the-r…  Count the …\n");
        assert_eq!(plain(&table.render_rows(19)), " 1  Count the lines\n");
    }

    proptest! {
        #[test]
        fn table_lines_fit_terminal_width(cells in prop::collection::vec("[ -~日\n]{0,30}", 4..16), columns in 1_usize..60) {
            let mut table = sample();
            for row in cells.chunks(4).filter(|row| row.len() == 4) {
                table.row(row.iter().map(|cell| cell.as_str().into()).collect());
            }
            for line in plain(&table.render(columns)).lines() {
                prop_assert!(width(line) <= columns, "{line:?}");
            }
        }
    }
}
