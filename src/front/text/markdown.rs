//! The Markdown of agents for a terminal, line by line: a text looks the same while it is written and afterwards.
//!
//! Headings, bold, italic and code get a style in place of their signs, and tables get aligned columns. All else stays as it is written.
//! The text is hostile: everything that is printed passes through [`printable`]. No line is wider than the terminal.

use anstyle::Style;

use super::lines::{chunks, fold, indented, width};
use super::style::{BOLD, BUSY, DIM, PLAIN, paint};
use crate::domain::text::code_fence::CodeFence;
use crate::domain::text::printable;

/// Code, inline and in blocks.
const CODE: Style = BUSY;
/// Columns of a tab.
const TAB_WIDTH: usize = 4;
/// Spaces before the lines of a code block.
const CODE_INDENT: usize = 2;
/// The text between two columns of a table.
const TABLE_GAP: &str = "  ";
/// A line has room for at least so many columns of text.
const TEXT_COLUMNS_MIN: usize = 4;

/// The lines of a text after `indent` spaces, as rendered Markdown. If `is_rendered` is false, it is printed as it is written.
pub fn body(text: &str, columns: usize, indent: usize, is_rendered: bool) -> String {
    let text = text.trim_end();
    if !is_rendered {
        return indented(text, columns, indent);
    }
    let mut lines = LineRenderer::default();
    let shown: String = text.split('\n').map(|line| lines.line(line, columns, indent)).collect();
    shown + &lines.finish(columns, indent)
}

/// Renders a text that arrives line by line.
#[derive(Debug, Default)]
pub struct LineRenderer {
    /// The fence of the code block that is open.
    fence: Option<CodeFence>,
    /// The lines of the table that is open.
    table: Vec<String>,
}

impl LineRenderer {
    /// One line of the text, without its newline, as lines of at most `columns` after `indent` spaces. A table is held back to its end.
    pub fn line(&mut self, line: &str, columns: usize, indent: usize) -> String {
        let line = plain_line(line);
        let body = line.trim();
        if self.fence.is_none() && body.starts_with('|') {
            self.table.push(body.to_owned());
            return String::new();
        }
        let table = self.finish(columns, indent);
        match (self.fence, CodeFence::opening(body)) {
            (Some(fence), _) if fence.is_closed_by(body) => self.fence = None,
            (Some(_), _) => return verbatim(&line, columns, indent + CODE_INDENT, CODE),
            (None, Some(fence)) => self.fence = Some(fence),
            (None, None) => return table + &text_line(&line, columns, indent),
        }
        table
    }

    /// The table that was held back, with aligned columns, or as it is written if it has no head or is wider than the terminal.
    pub fn finish(&mut self, columns: usize, indent: usize) -> String {
        let lines = std::mem::take(&mut self.table);
        let is_rule = |line: &String| line.chars().all(|c| "|-: ".contains(c));
        let rows: Vec<Vec<Vec<Span>>> = lines
            .iter()
            .enumerate()
            .filter(|(_, line)| !is_rule(line))
            .map(|(index, line)| cells(line, index))
            .collect();
        let cell_width = |cell: &Vec<Span>| cell.iter().map(|(_, text)| width(text)).sum::<usize>();
        let widest = |index: usize| rows.iter().filter_map(|row| row.get(index)).map(cell_width).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(widest).collect();
        let needed = indent + widths.iter().sum::<usize>() + TABLE_GAP.len() * widths.len().saturating_sub(1);
        if !lines.get(1).is_some_and(is_rule) || needed > columns {
            return lines.iter().map(|line| verbatim(line, columns, indent, PLAIN)).collect();
        }
        let rule = widths.iter().map(|columns| paint(DIM, &"─".repeat(*columns))).collect::<Vec<_>>().join(TABLE_GAP);
        let row = |row: &Vec<Vec<Span>>| {
            let cell = |(cell, columns): (&Vec<Span>, &usize)| {
                painted(cell) + &" ".repeat(columns.saturating_sub(cell_width(cell)))
            };
            row.iter().zip(&widths).map(cell).collect::<Vec<_>>().join(TABLE_GAP).trim_end().to_owned()
        };
        let mut shown: Vec<String> = rows.iter().map(row).collect();
        shown.insert(1.min(shown.len()), rule);
        shown.iter().map(|line| format!("{}{line}\n", " ".repeat(indent))).collect()
    }
}

/// A piece of a line, in its style.
type Span = (Style, String);

fn painted(spans: &[Span]) -> String {
    spans.iter().map(|(style, text)| paint(*style, text)).collect()
}

/// The cells of a row of a table. Those of the first row are its titles.
fn cells(line: &str, row: usize) -> Vec<Vec<Span>> {
    let style = if row == 0 { BOLD } else { PLAIN };
    let line = line.strip_prefix('|').unwrap_or(line);
    line.strip_suffix('|').unwrap_or(line).split('|').map(|cell| spans(cell.trim(), style)).collect()
}

/// A line outside of code blocks and tables. The lines after the first are indented to the text after a list's sign.
fn text_line(line: &str, columns: usize, indent: usize) -> String {
    let body = line.trim();
    if body.is_empty() {
        return "\n".to_owned();
    }
    let margin = indent.min(columns / 2) + (line.len() - line.trim_start().len()).min(columns / 3);
    let heading = body.trim_start_matches('#');
    let is_heading = heading.len() < body.len() && heading.starts_with(' ');
    let (style, body) = if is_heading { (BOLD, heading.trim()) } else { (PLAIN, body) };
    let marker = marker(body);
    let marker = if margin + marker.len() > columns / 2 { "" } else { marker };
    let text_columns = columns.saturating_sub(margin + marker.len()).max(TEXT_COLUMNS_MIN);
    let mut out = String::new();
    for part in wrapped(&spans(&body[marker.len()..], style), text_columns) {
        let before = if out.is_empty() { marker } else { "" };
        let whole = format!("{}{before:<width$}{part}", " ".repeat(margin), width = marker.len());
        out.push_str(whole.trim_end());
        out.push('\n');
    }
    out
}

/// The sign of a list item or a quotation at the start of a line; empty if it has none.
fn marker(body: &str) -> &str {
    let after_digits = body.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = body.len() - after_digits.len();
    let is_number = digits > 0 && after_digits.starts_with(". ");
    let is_sign = ["- ", "* ", "+ ", "> "].iter().any(|sign| body.starts_with(sign));
    &body[..if is_number || is_sign { digits + 2 } else { 0 }]
}

/// The pieces of a text in a line, without the signs of bold, italic and code.
fn spans(text: &str, style: Style) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*']) {
        let (before, marked) = rest.split_at(at);
        let after = marked.trim_start_matches(if marked.starts_with('*') { '*' } else { '`' });
        let sign = &marked[..marked.len() - after.len()];
        let Some((inside, after_sign)) = after.split_once(sign).filter(|(inside, _)| is_marked(before, sign, inside))
        else {
            spans.push((style, rest[..at + sign.len()].to_owned()));
            rest = after;
            continue;
        };
        spans.push((style, before.to_owned()));
        match sign {
            "*" => spans.extend(self::spans(inside, style.italic())),
            _ if sign.starts_with('*') => spans.extend(self::spans(inside, style.bold())),
            _ => spans.push((CODE, inside.to_owned())),
        }
        rest = after_sign;
    }
    spans.push((style, rest.to_owned()));
    spans
}

/// Returns true if two signs mark the text between them: `2 * 3 * 4` and `*.rs` have no italic text.
fn is_marked(before: &str, sign: &str, inside: &str) -> bool {
    let starts = sign.len() > 1 || !before.ends_with(|c: char| c.is_alphanumeric() || c == '/');
    sign.starts_with('`') || starts && !inside.is_empty() && inside.trim() == inside
}

/// A line as it is written, broken only where it is wider than the terminal.
fn verbatim(line: &str, columns: usize, indent: usize, style: Style) -> String {
    let text_columns = columns.saturating_sub(indent).max(TEXT_COLUMNS_MIN);
    let part =
        |part: String| format!("{}{}", " ".repeat(indent), paint(style, part.trim_end())).trim_end().to_owned() + "\n";
    chunks(line, text_columns).into_iter().map(part).collect()
}

/// The text on one line, without anything that a terminal obeys.
fn plain_line(text: &str) -> String {
    let text = text.strip_suffix('\r').unwrap_or(text);
    printable(text).replace('\t', &" ".repeat(TAB_WIDTH)).replace('\n', " ")
}

/// The spans in lines of at most `columns`, each in its style.
fn wrapped(spans: &[Span], columns: usize) -> Vec<String> {
    let text: String = spans.iter().map(|(_, text)| text.as_str()).collect();
    let mut styled = spans.iter().flat_map(|(style, text)| text.chars().map(move |c| (*style, c)));
    let mut lines = Vec::new();
    for line in fold(text.trim_end(), columns, usize::MAX) {
        let mut runs: Vec<Span> = Vec::new();
        for c in line.chars() {
            // Breaking a line drops only spaces.
            let Some((style, _)) = styled.by_ref().find(|(_, of_span)| *of_span == c) else { break };
            match runs.last_mut() {
                Some((last, run)) if *last == style => run.push(c),
                _ => runs.push((style, c.to_string())),
            }
        }
        lines.push(painted(&runs));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    const REPORT: &str = "# Report\nAll is **done**, and *nearly* `cargo test` is green.\n\n\
        1. first, with a text that is long enough to be wrapped\n2. second\n   - nested\n\n\
        > quoted\n> text\n\n```rust\nfn main() {\n    run();\n}\n```\n\
        | file | lines |\n|------|-------|\n| a.rs | **12** |\n\n\
        See [the docs](https://example.org).\n---\nsnake_case_name, **/*.rs, 2 * 3 * 4\n";

    #[test]
    fn markdown_is_rendered_within_width() {
        let shown = body(REPORT, 40, 2, true);
        assert_eq!(
            plain(&shown),
            "  Report\n  All is done, and nearly cargo test is\n  green.\n\n\
             \x20 1. first, with a text that is long\n     enough to be wrapped\n  2. second\n     - nested\n\n\
             \x20 > quoted\n  > text\n\n    fn main() {\n        run();\n    }\n\
             \x20 file  lines\n  ────  ─────\n  a.rs  12\n\n\
             \x20 See [the docs](https://example.org).\n  ---\n  snake_case_name, **/*.rs, 2 * 3 * 4\n"
        );
        assert!(shown.contains("\u{1b}[1mReport\u{1b}[0m") && shown.contains("\u{1b}[1mdone\u{1b}[0m"), "{shown:?}");
        assert!(shown.contains("\u{1b}[3mnearly\u{1b}[0m"), "{shown:?}");
        assert_eq!(body("**as** it `is`", 40, 0, false), "**as** it `is`\n");
    }

    #[test]
    fn wide_table_stays_as_written() {
        let table = "| file | lines |\n|---|--:|\n| `main.rs` | 3 |\n";
        assert_eq!(plain(&body(table, 20, 2, true)), "  file     lines\n  ───────  ─────\n  main.rs  3\n");
        assert!(plain(&body(table, 10, 2, true)).starts_with("  | file |\n"));
    }

    #[test]
    fn control_codes_in_markup_are_escaped() {
        for hostile in ["`\u{1b}[2J`", "[x](<a\u{9b}31m>)", "```\n\u{1b}]0;title\u{7}\n```", "\u{202e}abc"] {
            let shown = plain(&body(hostile, 60, 0, true));
            assert!(!shown.chars().any(|c| c.is_control() && c != '\n') && shown.contains("\\u{"), "{shown:?}");
        }
    }

    /// The text without our own colours.
    fn without_colors(text: &str) -> String {
        let color_codes = regex::Regex::new("\u{1b}\\[[0-9;]*m").unwrap();
        color_codes.replace_all(text, "").into_owned()
    }

    fn check(shown: &str, columns: usize) -> Result<(), TestCaseError> {
        let shown = without_colors(shown);
        prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        for line in shown.lines() {
            prop_assert!(width(line) <= columns, "{columns}: {line:?}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn rendered_markdown_is_harmless_and_fits(
            text in "([-#>*_`~|!&;\\[\\]() 0-9a-z日\\\\<\t\r\n\u{1b}\u{9b}\u{202e}]|&#27;|```|1\\. |> |- |\\*\\*|\\]\\(|\n\n|\\[a\\]: ){0,80}",
            columns in 20_usize..100,
            indent in 0_usize..4,
        ) {
            check(&body(&text, columns, indent, true), columns)?;
        }

        #[test]
        fn any_text_is_rendered_harmless(text in "(?s).*", columns in 20_usize..100) {
            check(&body(&text, columns, 2, true), columns)?;
        }
    }
}
