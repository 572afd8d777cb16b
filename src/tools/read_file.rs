//! `read_file`: returns numbered lines of a text file.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};

use super::prelude::*;
use super::walk::missing_file;
use super::workspace::{FileAccess, OpenRoot, path_error};

/// The lines shown if the call names no limit.
const LINES_DEFAULT: u64 = 2000;
/// The longest part of a line in a result, in bytes.
const LINE_BYTES_MAX: usize = 2000;
/// The bytes of a line's number, its tab and its line end.
const LINE_NUMBER_BYTES: usize = 8;
/// The bytes at the start of a file that are searched for a NUL. A file with one is binary.
const SNIFF_BYTES: usize = 8192;

/// Reads a text file as lines with numbers.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ReadFile {
    path: String,
    /// First line, from 1
    offset: Option<i64>,
    /// Lines; default 2000
    limit: Option<i64>,
}

impl TypedTool for ReadFile {
    const NAME: &'static str = "read_file";

    fn about(&self) -> String {
        self.path.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let first = u64::try_from(self.offset.unwrap_or(1)).unwrap_or(1).max(1);
        let limit = self.limit.and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit > 0);
        let limit = limit.unwrap_or(LINES_DEFAULT);
        let read = move |workspace: &OpenRoot| read(workspace, &self.path, first, limit);
        let text = FileAccess::of(context).run_blocking(read).await?;
        Ok(ToolOutput::text(text))
    }
}

fn read(workspace: &OpenRoot, path: &str, first: u64, limit: u64) -> Result<String, ToolError> {
    let resolved = workspace.resolve(path)?;
    if workspace.dir.metadata(&resolved).is_ok_and(|metadata| metadata.is_dir()) {
        return Err(ToolError::Recoverable(format!("`{path}` is a folder; use `glob` to list its files")));
    }
    let open = || workspace.open_file(&resolved).and_then(|file| Ok((file.metadata()?, file)));
    let (metadata, file) = open().map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing_file(workspace, path, ""),
        _ => path_error("read", path, &error),
    })?;
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    if is_binary(&mut reader).map_err(|error| path_error("read", path, &error))? {
        return Ok(format!("`{path}` is a binary file of {} bytes; it is not shown", metadata.len()));
    }
    if metadata.len() == 0 {
        return Ok(format!("`{path}` is empty"));
    }
    let mut window = LineWindow {
        first,
        last: first.saturating_add(limit - 1),
        bytes_max: workspace.output_bytes_max(),
        ..LineWindow::default()
    };
    window.fill(&mut reader, workspace).map_err(|error| path_error("read", path, &error))?;
    window.into_text(path)
}

fn is_binary(reader: &mut BufReader<File>) -> std::io::Result<bool> {
    let start = reader.fill_buf()?;
    Ok(start[..start.len().min(SNIFF_BYTES)].contains(&0))
}

/// The lines to show, and the progress of reading.
#[derive(Default)]
struct LineWindow {
    first: u64,
    last: u64,
    bytes_max: usize,
    text: String,
    lines_shown: u64,
    /// The number of lines read so far.
    lines: u64,
    has_more: bool,
}

impl LineWindow {
    fn fill(&mut self, reader: &mut impl BufRead, workspace: &OpenRoot) -> std::io::Result<()> {
        while !workspace.is_stopped() {
            let Some(line) = next_line(reader)? else { return Ok(()) };
            if self.lines >= self.last
                || (self.lines_shown > 0 && self.text.len() + LINE_NUMBER_BYTES + line.len() > self.bytes_max)
            {
                self.has_more = true;
                return Ok(());
            }
            self.lines += 1;
            if self.lines >= self.first {
                self.lines_shown += 1;
                self.text.push_str(&format!("{:>6}\t{line}\n", self.lines));
            }
        }
        Ok(())
    }

    fn into_text(mut self, path: &str) -> Result<String, ToolError> {
        if self.lines_shown == 0 {
            return Err(ToolError::Recoverable(format!("`{path}` has only {} lines", self.lines)));
        }
        if self.has_more {
            let next = self.lines + 1;
            self.text.push_str(&format!(
                "(lines {} to {} are shown; continue with `offset` {next})\n",
                self.first, self.lines
            ));
        }
        Ok(self.text)
    }
}

/// Returns the next line without its line end, cut at [`LINE_BYTES_MAX`]. A longer line is never in memory as a whole.
fn next_line(reader: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    if reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let mut omitted_bytes = 0;
    while line.len() > LINE_BYTES_MAX && line.last() != Some(&b'\n') {
        let mut rest = Vec::new();
        omitted_bytes += reader.by_ref().take(64 * 1024).read_until(b'\n', &mut rest)?;
        if rest.is_empty() || rest.ends_with(b"\n") {
            break;
        }
    }
    while line.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        line.pop();
    }
    let mut text = String::from_utf8_lossy(&line).into_owned();
    if omitted_bytes > 0 {
        text.push_str(&format!("… [{omitted_bytes} more bytes in this line]"));
    }
    Ok(Some(text))
}
