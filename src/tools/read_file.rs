//! `read_file`: lines of a text file, numbered.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::workspace::{Workspace, WorkspaceRoot, describe};
use super::{ToolContext, ToolError, ToolOutput};

/// Lines shown unless the call says otherwise.
const LINES_DEFAULT: u64 = 2000;
/// The longest part of a line that is shown, in bytes.
const LINE_BYTES_MAX: usize = 2000;
/// How much of a file is looked at to tell text from binary, in bytes.
const SNIFF_BYTES: usize = 8192;

pub(super) struct ReadFile;

#[async_trait::async_trait]
impl Checked for ReadFile {
    const NAME: &'static str = "read_file";
    const DESCRIPTION: &'static str = "Reads a text file of the workspace, up to 2000 lines at once. Each line comes as its number, a tab, and its text; the number and the tab are not part of the file. Use it rather than `cat`.";
    const PARAMETERS: &'static [Parameter] = &[
        required("path", Kind::Text, "The file, relative to the workspace"),
        optional("offset", Kind::Integer, "The first line to show, counting from 1; for long files"),
        optional("limit", Kind::Integer, "How many lines to show"),
    ];

    fn about(&self, input: &Value) -> String {
        text_of(input, "path")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let path = arguments.text("path").to_owned();
        let first = u64::try_from(arguments.integer("offset").unwrap_or(1)).unwrap_or(1).max(1);
        let limit = arguments.integer("limit").and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit > 0);
        let limit = limit.unwrap_or(LINES_DEFAULT);
        let text = WorkspaceRoot::of(context).work(move |workspace| read(workspace, &path, first, limit)).await?;
        Ok(ToolOutput::text(text))
    }
}

fn read(workspace: &Workspace, path: &str, first: u64, limit: u64) -> Result<String, ToolError> {
    let resolved = workspace.resolve(path)?;
    if workspace.dir.metadata(&resolved).is_ok_and(|metadata| metadata.is_dir()) {
        return Err(ToolError::Mendable(format!("`{path}` is a folder; use glob to see what is in it")));
    }
    let open = || workspace.open_file(&resolved).and_then(|file| Ok((file.metadata()?, file)));
    let (metadata, file) = open().map_err(|error| describe("read", path, &error))?;
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    if is_binary(&mut reader).map_err(|error| describe("read", path, &error))? {
        let what = format!("`{path}` is a binary file of {} bytes; it is not shown", metadata.len());
        return Ok(what);
    }
    if metadata.len() == 0 {
        return Ok(format!("`{path}` is empty"));
    }
    let mut window = Window {
        first,
        last: first.saturating_add(limit - 1),
        bytes_max: workspace.output_bytes_max(),
        ..Window::default()
    };
    window.fill(&mut reader, workspace).map_err(|error| describe("read", path, &error))?;
    window.into_text(path)
}

fn is_binary(reader: &mut BufReader<File>) -> std::io::Result<bool> {
    let start = reader.fill_buf()?;
    Ok(start[..start.len().min(SNIFF_BYTES)].contains(&0))
}

/// The lines that are shown, and what is known of the rest.
#[derive(Default)]
struct Window {
    first: u64,
    last: u64,
    bytes_max: usize,
    text: String,
    shown: u64,
    /// Lines read so far.
    lines: u64,
    is_more: bool,
}

impl Window {
    fn fill(&mut self, reader: &mut impl BufRead, workspace: &Workspace) -> std::io::Result<()> {
        while !workspace.is_stopped() {
            let Some(line) = next_line(reader)? else { return Ok(()) };
            if self.lines >= self.last || (self.shown > 0 && self.text.len() + line.len() + 8 > self.bytes_max) {
                self.is_more = true;
                return Ok(());
            }
            self.lines += 1;
            if self.lines >= self.first {
                self.shown += 1;
                self.text.push_str(&format!("{:>6}\t{line}\n", self.lines));
            }
        }
        Ok(())
    }

    fn into_text(mut self, path: &str) -> Result<String, ToolError> {
        if self.shown == 0 {
            return Err(ToolError::Mendable(format!("`{path}` has only {} lines", self.lines)));
        }
        if self.is_more {
            let next = self.lines + 1;
            self.text
                .push_str(&format!("(lines {} to {} are shown; go on with offset {next})\n", self.first, self.lines));
        }
        Ok(self.text)
    }
}

/// The next line without its end, cut where it is too long; never more than that in memory.
fn next_line(reader: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    if reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let mut left_out = 0;
    while line.len() > LINE_BYTES_MAX && line.last() != Some(&b'\n') {
        let mut rest = Vec::new();
        left_out += reader.by_ref().take(64 * 1024).read_until(b'\n', &mut rest)?;
        if rest.is_empty() || rest.ends_with(b"\n") {
            break;
        }
    }
    while line.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        line.pop();
    }
    let mut text = String::from_utf8_lossy(&line).into_owned();
    if left_out > 0 {
        text.push_str(&format!("… [{left_out} more bytes in this line]"));
    }
    Ok(Some(text))
}
