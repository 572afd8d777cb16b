//! `grep`: finds lines by regular expression.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use regex::bytes::{Regex, RegexBuilder};

use super::prelude::*;
use super::walk::{FilePattern, WalkResult, WalkedFile, resolve_searched, walk};
use super::workspace::FileAccess;
use crate::domain::text::head;
use crate::domain::text::output::without_control_characters;
use crate::platform::reading;

/// The largest file to search, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The longest part of a line in a result, in bytes.
const LINE_BYTES_MAX: usize = 400;
/// The most matching lines, or files, in a result.
const MATCHES_MAX: usize = 200;
/// The most context lines before and after a match.
const CONTEXT_LINES_MAX: i64 = 20;
/// The bytes at the start of a file that show if it is binary.
const SNIFF_BYTES: usize = 8192;
/// The largest compiled expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Searches the lines of files for a regular expression, as ripgrep does.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Grep {
    pattern: String,
    path: Option<String>,
    /// Only the files that match this pattern
    glob: Option<String>,
    /// Lines around a match
    context: Option<i64>,
    #[serde(default)]
    files_only: bool,
    // A model writes `(?i)` instead.
    #[serde(default)]
    #[schemars(extend("shown_to" = "no_one"))]
    ignore_case: bool,
}

impl TypedTool for Grep {
    const NAME: &'static str = "grep";

    fn about(&self) -> String {
        self.pattern.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut search = Search::of(&self)?;
        let path = self.path.unwrap_or_else(|| ".".to_owned());
        let text = FileAccess::of_search(context, Self::NAME).run_blocking(move |workspace| {
            let searched_path = resolve_searched(workspace, &path)?;
            let walk_result = walk(workspace, &searched_path, |file| {
                let relative = file.path.strip_prefix(&searched_path).unwrap_or(file.path);
                // A file that `path` names is searched with any `glob`.
                let is_named = relative.as_os_str().is_empty();
                if is_named || search.includes(file.path) || search.includes(relative) {
                    search.search_file(file);
                }
                search.matches < MATCHES_MAX && search.text.len() < workspace.output_bytes_max()
            });
            search.into_text(&walk_result)
        });
        Ok(ToolOutput::text(text.await?))
    }
}

struct Search {
    expression: Regex,
    glob: Option<FilePattern>,
    context_lines: usize,
    files_only: bool,
    text: String,
    matches: usize,
    files: usize,
    too_large: usize,
}

impl Search {
    fn of(call: &Grep) -> Result<Self, ToolError> {
        let pattern = &call.pattern;
        let expression = RegexBuilder::new(pattern)
            .case_insensitive(call.ignore_case)
            .size_limit(EXPRESSION_BYTES_MAX)
            .build()
            .map_err(|error| ToolError::Recoverable(format!("`{pattern}` is not a regular expression: {error}")))?;
        let context_lines = call.context.unwrap_or(0).clamp(0, CONTEXT_LINES_MAX);
        Ok(Self {
            expression,
            glob: call.glob.as_deref().map(FilePattern::new).transpose()?,
            context_lines: usize::try_from(context_lines).unwrap_or(0),
            files_only: call.files_only,
            text: String::new(),
            matches: 0,
            files: 0,
            too_large: 0,
        })
    }

    fn includes(&self, path: &Path) -> bool {
        self.glob.as_ref().is_none_or(|glob| glob.matches(path))
    }

    /// Searches one file. Skips it if it cannot be read.
    fn search_file(&mut self, file: &WalkedFile<'_>) {
        self.files += 1;
        let read = || {
            let file = file.open()?;
            if file.metadata()?.len() > FILE_BYTES_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            reading::read_all(file, FILE_BYTES_MAX)
        };
        match read() {
            Ok(bytes) if bytes[..bytes.len().min(SNIFF_BYTES)].contains(&0) => {}
            Ok(bytes) => self.search_lines(file.path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => self.too_large += 1,
            Err(_) => {}
        }
    }

    fn search_lines(&mut self, path: &Path, bytes: &[u8]) {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let lines: Vec<&[u8]> =
            bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect();
        let mut next_line = 0;
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
            let from = at.saturating_sub(self.context_lines).max(next_line);
            let to = (at + self.context_lines + 1).min(lines.len());
            if self.context_lines > 0 && from > next_line && !self.text.is_empty() {
                self.text.push_str("--\n");
            }
            for (index, line) in lines.iter().enumerate().take(to).skip(from) {
                let separator = if self.expression.is_match(line) { ':' } else { '-' };
                let _ = writeln!(self.text, "{}{separator}{}{separator}{}", path.display(), index + 1, line_text(line));
            }
            next_line = to.max(next_line);
            if self.matches >= MATCHES_MAX {
                return;
            }
        }
    }

    fn into_text(mut self, walk_result: &WalkResult) -> Result<String, ToolError> {
        match &self.glob {
            Some(glob) if self.files == 0 => {
                if let Some(error) = glob.error() {
                    return Err(error);
                }
                let _ = writeln!(self.text, "no match: no file matches the glob `{}`", glob.text);
            }
            _ if self.matches == 0 => self.text.push_str("no match\n"),
            _ => {}
        }
        if self.matches >= MATCHES_MAX {
            let _ = writeln!(self.text, "(the first {MATCHES_MAX} matches are shown; narrow the search)");
        }
        if self.too_large > 0 {
            let _ = writeln!(self.text, "({} files over 16 MiB were not searched)", self.too_large);
        }
        if !walk_result.is_complete {
            self.text.push_str("(too many files to search all; give a `path`)\n");
        }
        for note in &walk_result.notes {
            let _ = writeln!(self.text, "{note}");
        }
        Ok(self.text)
    }
}

fn line_text(line: &[u8]) -> String {
    let text = without_control_characters(line);
    if text.len() <= LINE_BYTES_MAX {
        return text;
    }
    let start = head(&text, LINE_BYTES_MAX);
    format!("{start}… [{} more bytes in this line]", text.len() - start.len())
}
