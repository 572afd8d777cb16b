//! The Markdown of agents, rendered for a terminal.
//!
//! The text is hostile. Everything that is printed passes through [`printable`] after parsing, because Markdown can name control characters
//! by references such as `&#27;`. No line is wider than the terminal.

use std::ops::Range;

use anstyle::{Effects, Style};
use pulldown_cmark::{Alignment, CowStr, Event, Options, Parser, Tag, TagEnd};

use super::lines::{chunks, fold, indented, width};
use super::style::{BUSY, DIM, PLAIN, paint};
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
/// The widest rule, in columns.
const RULE_WIDTH_MAX: usize = 40;
/// A line has room for at least so many columns of text.
const TEXT_COLUMNS_MIN: usize = 4;

/// A longer text is printed as it is written, because rendering nested links takes quadratic time.
const RENDERED_BYTES_MAX: usize = 64 * 1024;

/// The lines of a text after `indent` spaces, as rendered Markdown. If `is_rendered` is false or the text is longer than 64 KiB, it is
/// printed as it is written.
pub fn body(text: &str, columns: usize, indent: usize, is_rendered: bool) -> String {
    let text = text.trim_end();
    if is_rendered && text.len() <= RENDERED_BYTES_MAX {
        render(text, columns, indent)
    } else {
        indented(text, columns, indent)
    }
}

/// A text of Markdown as lines of at most `columns`, each after `indent` spaces. Tables that are too wide and link definitions stay as
/// they are.
pub fn render(text: &str, columns: usize, indent: usize) -> String {
    let mut page = Page::new(text, columns, indent);
    let mut events = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    let mut definitions: Vec<Range<usize>> =
        events.reference_definitions().iter().map(|(_, definition)| definition.span.clone()).collect();
    for (event, range) in events.by_ref() {
        match event {
            Event::Start(Tag::Table(alignments)) => {
                page.begin_block(range.start);
                page.table = Some(TableRows { source: text[range].trim_end(), alignments, rows: Vec::new() });
            }
            event => page.event(event, range.start),
        }
    }
    page.end_line();
    definitions.sort_by_key(|span| span.start);
    for span in definitions {
        page.verbatim(&text[span], 0, PLAIN);
    }
    page.out
}

/// Renders a text that arrives line by line. Markup that spans several lines is only known for code blocks and tables.
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
        let body = line.trim();
        if self.fence.is_none() && body.starts_with('|') {
            self.table.push(body.to_owned());
            return String::new();
        }
        self.finish(columns, indent) + &self.next_line(line, columns, indent)
    }

    /// The table that was held back, as lines of at most `columns` after `indent` spaces.
    pub fn finish(&mut self, columns: usize, indent: usize) -> String {
        render(&std::mem::take(&mut self.table).join("\n"), columns, indent)
    }

    fn next_line(&mut self, line: &str, columns: usize, indent: usize) -> String {
        let body = line.trim();
        let mut page = Page::new("", columns, indent);
        match (self.fence, CodeFence::opening(body)) {
            (Some(fence), _) if fence.is_closed_by(body) => self.fence = None,
            (Some(_), _) => page.verbatim(line, CODE_INDENT, CODE),
            (None, Some(fence)) => self.fence = Some(fence),
            (None, None) if body.is_empty() => page.out.push('\n'),
            (None, None) => {
                let spaces = line.chars().take_while(|c| c.is_whitespace());
                let margin: usize = spaces.map(|c| if c == '\t' { TAB_WIDTH } else { 1 }).sum();
                return render(body, columns, indent + margin.min(columns / 3));
            }
        }
        page.out
    }
}

/// A block that indents the lines in it.
#[derive(Debug)]
enum Container {
    Quote,
    Item {
        /// The sign of the item, until its first line is printed.
        marker: Option<String>,
        width: usize,
    },
}

/// A piece of a line, in its style.
type Span = (Style, String);

/// A table that is being collected: its rows of cells, the head first.
struct TableRows<'a> {
    source: &'a str,
    alignments: Vec<Alignment>,
    rows: Vec<Vec<Vec<Span>>>,
}

/// The lines rendered so far, and the line that is being collected.
struct Page<'a> {
    source: &'a str,
    columns: usize,
    indent: usize,
    out: String,
    containers: Vec<Container>,
    /// No line was written since the innermost block began.
    is_fresh: bool,
    /// The first number of each open list; `None` for a list of bullets.
    lists: Vec<Option<u64>>,
    /// The code block that is open.
    code: Option<String>,
    /// The table that is open.
    table: Option<TableRows<'a>>,
    line: Line,
}

/// The text of one line, and the markup that is open in it.
#[derive(Default)]
struct Line {
    bold: usize,
    italic: usize,
    spans: Vec<Span>,
    /// The address of each open link or image, and the span with which its text begins.
    links: Vec<(String, usize)>,
}

impl Line {
    fn style(&self) -> Style {
        let mut effects = Effects::new();
        if self.bold > 0 {
            effects |= Effects::BOLD;
        }
        if self.italic > 0 {
            effects |= Effects::ITALIC;
        }
        Style::new().effects(effects)
    }

    fn push(&mut self, style: Style, text: &str) {
        let text = plain_line(text);
        if !text.is_empty() {
            self.spans.push((style, text));
        }
    }

    /// The address follows the text of a link, unless they are the same.
    fn end_link(&mut self) {
        let Some((address, first)) = self.links.pop() else { return };
        let text: String = self.spans.iter().skip(first).map(|(_, text)| text.as_str()).collect();
        if address.is_empty() || text == address || Some(text.as_str()) == address.strip_prefix("mailto:") {
            return;
        }
        let address = if text.is_empty() { format!("({address})") } else { format!(" ({address})") };
        self.push(DIM, &address);
    }

    /// Takes the text. The markup stays open.
    fn take_spans(&mut self) -> Vec<Span> {
        for (_, first) in &mut self.links {
            *first = 0;
        }
        std::mem::take(&mut self.spans)
    }
}

impl<'a> Page<'a> {
    fn new(source: &'a str, columns: usize, indent: usize) -> Self {
        Self {
            source,
            columns,
            indent: indent.min(columns / 2),
            out: String::new(),
            containers: Vec::new(),
            is_fresh: true,
            lists: Vec::new(),
            code: None,
            table: None,
            line: Line::default(),
        }
    }

    fn event(&mut self, event: Event<'_>, start: usize) {
        match event {
            Event::Start(tag) => self.start(tag, start),
            Event::End(tag) => self.end(tag, start),
            Event::Text(text) => match &mut self.code {
                Some(code) => code.push_str(&text),
                None => self.line.push(self.line.style(), &text),
            },
            Event::Code(text) => self.line.push(CODE, &text),
            Event::Html(text) => {
                for line in text.lines() {
                    self.line.push(PLAIN, line);
                    self.end_line();
                }
            }
            Event::SoftBreak | Event::HardBreak => self.end_line(),
            Event::Rule => {
                self.begin_block(start);
                let rule = "─".repeat(self.text_columns().min(RULE_WIDTH_MAX));
                self.line.push(DIM, &rule);
                self.end_line();
            }
            Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.line.push(self.line.style(), &text),
            Event::TaskListMarker(is_done) => self.line.push(PLAIN, if is_done { "[x] " } else { "[ ] " }),
        }
    }

    /// True if the markup at this place is written with `_`. It is shown as it is written, because names such as `__init__.py` have it.
    fn has_underscore(&self, start: usize) -> bool {
        self.source[start..].starts_with('_')
    }

    fn start(&mut self, tag: Tag<'_>, start: usize) {
        match tag {
            Tag::Strong if self.has_underscore(start) => self.line.push(self.line.style(), "__"),
            Tag::Emphasis if self.has_underscore(start) => self.line.push(self.line.style(), "_"),
            Tag::Strong => self.line.bold += 1,
            Tag::Emphasis => self.line.italic += 1,
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.begin_link(&dest_url),
            Tag::Item => {
                self.begin_block(start);
                let marker = match self.lists.last() {
                    // The number as it is written: Markdown would count from the first one.
                    Some(Some(_)) => {
                        let item = &self.source[start..];
                        let digits = item.bytes().take_while(u8::is_ascii_digit).count();
                        format!("{}. ", &item[..digits])
                    }
                    _ => "- ".to_owned(),
                };
                self.containers.push(Container::Item { width: width(&marker), marker: Some(marker) });
                self.is_fresh = true;
            }
            Tag::List(number) => {
                self.end_line();
                self.lists.push(number);
            }
            Tag::BlockQuote(_) => {
                self.begin_block(start);
                self.containers.push(Container::Quote);
                self.is_fresh = true;
            }
            Tag::CodeBlock(_) => {
                self.begin_block(start);
                self.code = Some(String::new());
            }
            Tag::Heading { .. } => {
                self.begin_block(start);
                self.line.bold += 1;
            }
            Tag::TableHead | Tag::TableRow => {
                self.line.bold += usize::from(matches!(tag, Tag::TableHead));
                self.table.iter_mut().for_each(|table| table.rows.push(Vec::new()));
            }
            Tag::TableCell => {}
            _ => self.begin_block(start),
        }
    }

    fn end(&mut self, tag: TagEnd, start: usize) {
        match tag {
            TagEnd::Strong if self.has_underscore(start) => self.line.push(self.line.style(), "__"),
            TagEnd::Emphasis if self.has_underscore(start) => self.line.push(self.line.style(), "_"),
            TagEnd::Strong => self.line.bold = self.line.bold.saturating_sub(1),
            TagEnd::Emphasis => self.line.italic = self.line.italic.saturating_sub(1),
            TagEnd::Link | TagEnd::Image => self.line.end_link(),
            TagEnd::Heading(_) => {
                self.end_line();
                self.line.bold = self.line.bold.saturating_sub(1);
            }
            TagEnd::List(_) => {
                self.end_line();
                self.lists.pop();
            }
            TagEnd::Item => {
                self.end_line();
                if matches!(self.containers.pop(), Some(Container::Item { marker: Some(_), .. })) {
                    self.write_line("- ", 0);
                }
            }
            TagEnd::BlockQuote(_) => {
                self.end_line();
                self.containers.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.line.spans);
                self.table.iter_mut().filter_map(|table| table.rows.last_mut()).for_each(|row| row.push(cell.clone()));
            }
            TagEnd::TableHead => self.line.bold = self.line.bold.saturating_sub(1),
            TagEnd::TableRow => {}
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.write_table(&table);
                }
            }
            TagEnd::CodeBlock => {
                let code = self.code.take().unwrap_or_default();
                self.verbatim(code.strip_suffix('\n').unwrap_or(&code), CODE_INDENT, CODE);
            }
            _ => self.end_line(),
        }
    }

    fn begin_link(&mut self, address: &CowStr<'_>) {
        self.line.links.push((address.to_string(), self.line.spans.len()));
    }

    /// Ends the line before, and leaves a blank line where the source has one before this block.
    fn begin_block(&mut self, start: usize) {
        self.end_line();
        let before = &self.source[..start];
        let line = before.rfind('\n').map_or("", |end| &before[..end]);
        let is_blank = |line: &str| line.trim_matches([' ', '\t', '\r', '>']).is_empty();
        if !self.is_fresh && !line.is_empty() && line.rsplit('\n').next().is_some_and(is_blank) {
            let prefix = self.prefix();
            self.out.push_str(prefix.0.trim_end());
            self.out.push('\n');
        }
    }

    fn end_line(&mut self) {
        let spans = self.line.take_spans();
        if spans.iter().all(|(_, text)| text.trim().is_empty()) {
            return;
        }
        for line in wrapped(&spans, self.text_columns()) {
            self.write_line(&line, 0);
        }
    }

    /// The table with aligned columns, or its source if it is wider than the terminal.
    fn write_table(&mut self, table: &TableRows<'_>) {
        let cell_width = |cell: &Vec<Span>| cell.iter().map(|(_, text)| width(text)).sum::<usize>();
        let widths: Vec<usize> = (0..table.alignments.len())
            .map(|index| table.rows.iter().filter_map(|row| row.get(index)).map(cell_width).max().unwrap_or(0))
            .collect();
        if widths.iter().sum::<usize>() + TABLE_GAP.len() * widths.len().saturating_sub(1) > self.text_columns() {
            return self.verbatim(table.source, 0, PLAIN);
        }
        for (number, row) in table.rows.iter().enumerate() {
            let aligned = row.iter().zip(&table.alignments).zip(&widths).map(|((cell, alignment), columns)| {
                let text: String = cell.iter().map(|(style, text)| paint(*style, text)).collect();
                let space = " ".repeat(columns.saturating_sub(cell_width(cell)));
                if *alignment == Alignment::Right { space + &text } else { text + &space }
            });
            self.write_line(&aligned.collect::<Vec<_>>().join(TABLE_GAP), 0);
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|columns| "─".repeat(*columns)).collect();
                self.write_line(&paint(DIM, &rules.join(TABLE_GAP)), 0);
            }
        }
    }

    /// Lines as they are written, broken only where they are wider than the terminal.
    fn verbatim(&mut self, text: &str, indent: usize, style: Style) {
        let columns = self.text_columns().saturating_sub(indent).max(TEXT_COLUMNS_MIN);
        for line in text.split('\n') {
            for part in chunks(&plain_line(line), columns) {
                self.write_line(&paint(style, &part), indent);
            }
        }
    }

    fn write_line(&mut self, line: &str, indent: usize) {
        let indent = if self.columns >= 4 * TEXT_COLUMNS_MIN { indent } else { 0 };
        let (prefix, _) = self.prefix();
        self.is_fresh = false;
        for container in &mut self.containers {
            if let Container::Item { marker, .. } = container {
                *marker = None;
            }
        }
        let whole = format!("{prefix}{}{line}", " ".repeat(indent));
        self.out.push_str(whole.trim_end());
        self.out.push('\n');
    }

    /// The columns that a line has for text.
    fn text_columns(&self) -> usize {
        self.columns.saturating_sub(self.prefix().1).max(TEXT_COLUMNS_MIN)
    }

    /// The indentation of the next line, and its width. It takes at most half of the line: deeper blocks are indented no further.
    fn prefix(&self) -> (String, usize) {
        let mut prefix = " ".repeat(self.indent);
        let mut used = self.indent;
        for container in &self.containers {
            let more = match container {
                Container::Quote => 2,
                Container::Item { width, .. } => *width,
            };
            if used + more > self.columns / 2 {
                break;
            }
            used += more;
            match container {
                Container::Quote => prefix.push_str(&paint(DIM, "│ ")),
                Container::Item { marker: Some(marker), .. } => prefix.push_str(marker),
                Container::Item { marker: None, width } => prefix.push_str(&" ".repeat(*width)),
            }
        }
        (prefix, used)
    }
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
        lines.push(runs.iter().map(|(style, run)| paint(*style, run)).collect());
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
        See [the docs](https://example.org/docs) or <https://example.org>.\n\n---\nsnake_case_name &lt;end&gt;\n";

    #[test]
    fn markdown_is_rendered_within_width() {
        let shown = render(REPORT, 40, 2);
        assert_eq!(
            plain(&shown),
            "  Report\n  All is done, and nearly cargo test is\n  green.\n\n\
             \x20 1. first, with a text that is long\n     enough to be wrapped\n  2. second\n     - nested\n\n\
             \x20 │ quoted\n  │ text\n\n    fn main() {\n        run();\n    }\n\
             \x20 file  lines\n  ────  ─────\n  a.rs  12\n\n\
             \x20 See the docs\n  (https://example.org/docs) or\n  https://example.org.\n\n\
             \x20 ──────────────────────────────────────\n  snake_case_name <end>\n"
        );
        assert!(shown.contains("\u{1b}[1mReport\u{1b}[0m") && shown.contains("\u{1b}[1mdone\u{1b}[0m"), "{shown:?}");
        assert!(shown.contains("\u{1b}[3mnearly\u{1b}[0m"), "{shown:?}");
        assert_eq!(body("**as** it `is`", 40, 0, false), "**as** it `is`\n");
    }

    #[test]
    fn wide_table_stays_as_written() {
        let table = "| file | lines |\n|---|--:|\n| `main.rs` | 3 |\n";
        assert_eq!(plain(&render(table, 20, 2)), "  file     lines\n  ───────  ─────\n  main.rs      3\n");
        assert!(plain(&render(table, 10, 2)).starts_with("  | file |\n"));
    }

    #[test]
    fn streamed_lines_render_like_whole_text() {
        let mut lines = LineRenderer::default();
        let shown: String = REPORT.lines().map(|line| lines.line(line, 80, 2)).collect();
        assert_eq!(plain(&shown).replace("> quoted", "│ quoted"), plain(&render(REPORT, 80, 2)));
    }

    #[test]
    fn control_codes_of_character_references_are_escaped() {
        for hostile in ["&#27;[2J", "`\u{1b}[2J`", "[x](<a\u{9b}31m>)", "```\n\u{1b}]0;title\u{7}\n```", "\u{202e}abc"]
        {
            let shown = plain(&render(hostile, 60, 0));
            assert!(!shown.chars().any(|c| c.is_control() && c != '\n') && shown.contains("\\u{"), "{shown:?}");
        }
        assert_eq!(plain(&render("[label]: hidden\n", 60, 0)), "[label]: hidden\n");
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
            check(&render(&text, columns, indent), columns)?;
            let mut lines = LineRenderer::default();
            for line in text.split('\n') {
                check(&lines.line(line, columns, indent), columns)?;
            }
            check(&lines.finish(columns, indent), columns)?;
        }

        #[test]
        fn any_text_is_rendered_harmless(text in "(?s).*", columns in 20_usize..100) {
            check(&render(&text, columns, 2), columns)?;
        }
    }
}
