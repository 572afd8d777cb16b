//! `grep`: lines of files by regular expression.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use regex::bytes::{Regex, RegexBuilder};
use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::walk::{Found, Walked, matcher, walk};
use super::workspace::WorkspaceRoot;
use super::{ToolContext, ToolError, ToolOutput};
use crate::platform::reading;

/// The largest file that is searched, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The longest part of a line that is shown, in bytes.
const LINE_BYTES_MAX: usize = 400;
/// The most lines that match, or files, handed back.
const MATCHES_MAX: usize = 200;
/// The most lines around a match.
const CONTEXT_LINES_MAX: i64 = 20;
/// How much of a file is looked at to tell text from binary, in bytes.
const SNIFF_BYTES: usize = 8192;
/// The largest compiled expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 4 * 1024 * 1024;

pub(super) struct Grep;

#[async_trait::async_trait]
impl Checked for Grep {
    const NAME: &'static str = "grep";
    const DESCRIPTION: &'static str = "Searches the text files of the workspace for a regular expression. Lines come as `path:line:text`, lines around them as `path-line-text`. Left out: binary files, files over 16 MiB, .git, Brigade's own files, and what git ignores. Use it rather than `grep -r`.";
    const PARAMETERS: &'static [Parameter] = &[
        required(
            "pattern",
            Kind::Text,
            "The expression, matched line by line, in Rust's syntax as in ripgrep: no look-around; `(`, `{` and `.` as they are take a `\\`",
        ),
        optional("path", Kind::Text, "The file or folder to search; the whole workspace if not given"),
        optional("glob", Kind::Text, "Only files whose path matches this pattern, such as `*.rs`"),
        optional("context", Kind::Integer, "How many lines to show before and after each match"),
        optional("files_only", Kind::Boolean, "Name the files that match, not the lines"),
        optional("ignore_case", Kind::Boolean, "Whether capital letters make no difference"),
    ];

    fn about(&self, input: &Value) -> String {
        text_of(input, "pattern")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut search = Search::of(&arguments)?;
        let path = arguments.optional_text("path").unwrap_or(".").to_owned();
        let glob = arguments.optional_text("glob").map(matcher).transpose()?;
        let text = WorkspaceRoot::of(context).work(move |workspace| {
            let below = workspace.resolve(&path)?;
            let walked = walk(workspace, &below, |found| {
                let relative = found.path.strip_prefix(&below).unwrap_or(found.path);
                if glob.as_ref().is_none_or(|glob| glob.is_match(found.path) || glob.is_match(relative)) {
                    search.file(found);
                }
                search.matches < MATCHES_MAX && search.text.len() < workspace.output_bytes_max()
            });
            Ok(search.into_text(&walked))
        });
        Ok(ToolOutput::text(text.await?))
    }
}

struct Search {
    expression: Regex,
    context_lines: usize,
    files_only: bool,
    text: String,
    matches: usize,
    too_large: usize,
}

impl Search {
    fn of(arguments: &Arguments) -> Result<Self, ToolError> {
        let pattern = arguments.text("pattern");
        let expression = RegexBuilder::new(pattern)
            .case_insensitive(arguments.flag("ignore_case"))
            .size_limit(EXPRESSION_BYTES_MAX)
            .build()
            .map_err(|error| ToolError::Mendable(format!("`{pattern}` is no regular expression: {error}")))?;
        let context_lines = arguments.integer("context").unwrap_or(0).clamp(0, CONTEXT_LINES_MAX);
        Ok(Self {
            expression,
            context_lines: usize::try_from(context_lines).unwrap_or(0),
            files_only: arguments.flag("files_only"),
            text: String::new(),
            matches: 0,
            too_large: 0,
        })
    }

    /// Searches one file; one that cannot be read is passed over.
    fn file(&mut self, found: &Found<'_>) {
        let read = || {
            let file = found.open()?;
            if file.metadata()?.len() > FILE_BYTES_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            reading::read_all(file, FILE_BYTES_MAX)
        };
        match read() {
            Ok(bytes) if bytes[..bytes.len().min(SNIFF_BYTES)].contains(&0) => {}
            Ok(bytes) => self.lines(found.path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => self.too_large += 1,
            Err(_) => {}
        }
    }

    fn lines(&mut self, path: &Path, bytes: &[u8]) {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let lines: Vec<&[u8]> =
            bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect();
        let mut shown_up_to = 0;
        for at in 0..lines.len() {
            if !self.expression.is_match(lines[at]) {
                continue;
            }
            self.matches += 1;
            if self.files_only {
                // Writing into a string cannot fail.
                let _ = writeln!(self.text, "{}", path.display());
                return;
            }
            let from = at.saturating_sub(self.context_lines).max(shown_up_to);
            let to = (at + self.context_lines + 1).min(lines.len());
            if self.context_lines > 0 && from > shown_up_to && !self.text.is_empty() {
                self.text.push_str("--\n");
            }
            for (index, line) in lines.iter().enumerate().take(to).skip(from) {
                let separator = if self.expression.is_match(line) { ':' } else { '-' };
                let _ = writeln!(self.text, "{}{separator}{}{separator}{}", path.display(), index + 1, shown(line));
            }
            shown_up_to = to.max(shown_up_to);
            if self.matches >= MATCHES_MAX {
                return;
            }
        }
    }

    fn into_text(mut self, walked: &Walked) -> String {
        if self.matches == 0 {
            self.text.push_str("no match\n");
        }
        if self.matches >= MATCHES_MAX {
            let _ = writeln!(self.text, "(the first {MATCHES_MAX} matches are shown; narrow the search)");
        }
        if self.too_large > 0 {
            let _ = writeln!(self.text, "({} files over 16 MiB were not searched)", self.too_large);
        }
        if !walked.is_complete {
            self.text.push_str("(there are too many files to search all; give a `path`)\n");
        }
        for note in &walked.notes {
            let _ = writeln!(self.text, "{note}");
        }
        self.text
    }
}

fn shown(line: &[u8]) -> String {
    let text = super::output::harmless(line);
    if text.len() <= LINE_BYTES_MAX {
        return text;
    }
    let kept = super::output::head_of(&text, LINE_BYTES_MAX);
    format!("{kept}… [{} more bytes in this line]", text.len() - kept.len())
}
