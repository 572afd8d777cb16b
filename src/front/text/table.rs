//! A table that fits the terminal: columns are as wide as their text, flexible columns shrink, and optional columns are left out if the
//! others have no room.

use anstyle::Style;

use super::lines::{cut, cut_middle, fold, pad, pad_left, width};
use super::style::{BOLD, PLAIN, paint};
use crate::domain::text::one_line;

/// Spaces between two columns.
const GAP: usize = 2;
/// The minimum width of a flexible column.
const FLEXIBLE_MIN: usize = 8;
/// The width of a terminal below which [`Table::fit`] gives each row a few lines.
pub const TABLE_WIDTH_MIN: usize = 64;
/// The most lines of a row in such a terminal, after its first cell.
const ROW_LINES_MAX: usize = 6;

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

    /// Returns a cell that keeps the end of its text, which says why something failed.
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
    titles: &'static [&'static str],
    numbers: &'static [&'static str],
    flexible: &'static [&'static str],
    optional: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns an empty table with these columns.
    pub fn new(titles: &'static [&'static str]) -> Self {
        Self { titles, numbers: &[], flexible: &[], optional: &[], rows: Vec::new() }
    }

    /// Sets the columns that are aligned to the right.
    pub fn numbers(self, numbers: &'static [&'static str]) -> Self {
        Self { numbers, ..self }
    }

    /// Sets the columns that shrink in a narrow terminal.
    pub fn flexible(self, flexible: &'static [&'static str]) -> Self {
        Self { flexible, ..self }
    }

    /// Sets the columns that are left out in a narrow terminal.
    pub fn optional(self, optional: &'static [&'static str]) -> Self {
        Self { optional, ..self }
    }

    /// Adds a row with one cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Returns the text: each line is at most `columns` wide and ends with a newline. Empty columns are left out.
    pub fn render(&self, columns: usize) -> String {
        let heads: Vec<Cell> = self.titles.iter().map(|title| Cell::new(title, BOLD)).collect();
        let rows: Vec<&Vec<Cell>> = std::iter::once(&heads).chain(&self.rows).collect();
        self.lines(&rows, columns)
    }

    /// Returns the text without the line of titles.
    pub fn render_rows(&self, columns: usize) -> String {
        self.lines(&self.rows.iter().collect::<Vec<_>>(), columns)
    }

    /// Returns the table or, in a narrow terminal, a few lines for each row: its first cell, then the others with their titles.
    pub fn render_table_or_list(&self, columns: usize) -> String {
        if columns >= TABLE_WIDTH_MIN {
            return self.render(columns);
        }
        let mut out = String::new();
        for row in &self.rows {
            let Some((first, rest)) = row.split_first() else { continue };
            out.push_str(&format!("{}\n", paint(BOLD, &cut(&first.text, columns))));
            let rest = self.titles[1..].iter().zip(rest).filter(|(_, cell)| !cell.text.is_empty());
            let rest = rest.map(|(title, cell)| format!("{} {}", title.to_lowercase(), cell.text));
            let rest = rest.collect::<Vec<_>>().join(", ");
            for line in fold(&rest, columns.saturating_sub(GAP).max(2), ROW_LINES_MAX) {
                out.push_str(&format!("{}{line}\n", " ".repeat(GAP)));
            }
        }
        out
    }

    fn lines(&self, rows: &[&Vec<Cell>], columns: usize) -> String {
        let needed = |index: usize| rows.iter().map(|row| width(&row[index].text)).max().unwrap_or(0);
        let needed: Vec<usize> = (0..self.titles.len()).map(needed).collect();
        let shown = self.visible_columns(&needed, columns);
        let widths = self.widths(&needed, &shown, columns);
        rows.iter().map(|row| self.line(row, &shown, &widths, columns)).collect()
    }

    fn is_in(&self, list: &[&str], index: usize) -> bool {
        list.contains(&self.titles[index])
    }

    /// Returns the columns with text. Without room for all, optional ones are left out, the last one first.
    fn visible_columns(&self, needed: &[usize], columns: usize) -> Vec<usize> {
        let least = |index: &usize| {
            if self.is_in(self.flexible, *index) { needed[*index].min(FLEXIBLE_MIN) } else { needed[*index] }
        };
        let has_text = |index: &usize| self.rows.iter().any(|row| !row[*index].text.is_empty());
        let mut shown: Vec<usize> = (0..self.titles.len()).filter(has_text).collect();
        while shown.iter().map(least).sum::<usize>() + GAP * shown.len().saturating_sub(1) > columns {
            let Some(last) = shown.iter().rposition(|index| self.is_in(self.optional, *index)) else { break };
            shown.remove(last);
        }
        shown
    }

    fn widths(&self, needed: &[usize], shown: &[usize], columns: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = shown.iter().map(|index| needed[*index]).collect();
        let gaps = GAP * shown.len().saturating_sub(1);
        let excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
        for _ in 0..excess {
            // The widest column shrinks first, so that all flexible columns stay readable.
            let wide =
                (0..shown.len()).filter(|at| self.is_in(self.flexible, shown[*at]) && widths[*at] > FLEXIBLE_MIN);
            let Some(widest) = wide.max_by_key(|at| widths[*at]) else { break };
            widths[widest] -= 1;
        }
        widths
    }

    fn line(&self, row: &[Cell], shown: &[usize], widths: &[usize], columns: usize) -> String {
        let mut out = String::new();
        let mut used = 0;
        // A row has no trailing spaces.
        let last = shown.iter().rposition(|index| !row[*index].text.is_empty());
        for (at, (index, column_width)) in shown.iter().zip(widths).enumerate().take(last.map_or(0, |last| last + 1)) {
            let gap = if at > 0 { GAP } else { 0 };
            let cell = &row[*index];
            let cell_width = columns.saturating_sub(used + gap).min(*column_width);
            if cell_width == 0 {
                break;
            }
            let text = if cell.keeps_end { cut_middle(&cell.text, cell_width) } else { cut(&cell.text, cell_width) };
            let is_number = self.is_in(self.numbers, *index);
            let filled = if is_number { pad_left(&text, cell_width) } else { pad(&text, cell_width) };
            out.push_str(&" ".repeat(gap));
            out.push_str(&paint(cell.style, if Some(at) == last { filled.trim_end() } else { &filled }));
            used += gap + cell_width;
        }
        out.truncate(out.trim_end_matches(' ').len());
        out + "\n"
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
        let mut table = Table::new(&["ID", "STATUS", "EMPTY", "SUBJECT"]).numbers(&["ID"]).flexible(&["SUBJECT"]);
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
        let mut table = Table::new(&["ID", "OWNER", "SUBJECT", "NOTE"])
            .numbers(&["ID"])
            .flexible(&["OWNER", "SUBJECT"])
            .optional(&["OWNER", "NOTE"]);
        table.row(vec!["1".into(), "frank-the-reviewer".into(), "Count the lines".into(), "exit 0".into()]);
        assert_eq!(plain(&table.render_rows(34)), "1  frank-the-…  Count the…  exit 0\n");
        assert_eq!(plain(&table.render_rows(28)), "1  frank-the-r…  Count the …\n");
        assert_eq!(plain(&table.render_rows(18)), "1  Count the lines\n");
    }

    proptest! {
        #[test]
        fn table_lines_fit_terminal_width(cells in prop::collection::vec("[ -~日\n]{0,30}", 4..16), columns in 1_usize..60) {
            let mut table = sample();
            for row in cells.chunks(4).filter(|row| row.len() == 4) {
                table.row(row.iter().map(|cell| cell.as_str().into()).collect());
            }
            for line in plain(&(table.render(columns) + &table.render_table_or_list(columns.max(4)))).lines() {
                prop_assert!(width(line) <= columns.max(4), "{line:?}");
            }
        }
    }
}
