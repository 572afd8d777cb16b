//! `edit_file`: one passage of a file replaced by another.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, required};
use super::checked::{Checked, text_of};
use super::workspace::{Workspace, WorkspaceRoot, describe};
use super::write_file::{changing, existing, replace};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::tags::restore;
use crate::platform::reading;

/// The largest file that is edited, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The most places an error names.
const PLACES_MAX: usize = 10;

pub(super) struct EditFile;

#[async_trait::async_trait]
impl Checked for EditFile {
    const NAME: &'static str = "edit_file";
    const DESCRIPTION: &'static str = "Replaces one passage of a text file. Read the file first, and leave out the line numbers read_file shows. To write a whole file use write_file.";
    const PARAMETERS: &'static [Parameter] = &[
        required("path", Kind::Text, "The file, relative to the workspace"),
        required(
            "old_text",
            Kind::Text,
            "The passage as it stands in the file, character for character with its indentation; with enough lines around the change that it is there exactly once",
        ),
        required("new_text", Kind::Text, "What takes its place; empty removes it"),
    ];

    fn about(&self, input: &Value) -> String {
        text_of(input, "path")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let path = arguments.text("path").to_owned();
        let (old, new) = (arguments.text("old_text").to_owned(), arguments.text("new_text").to_owned());
        let text = WorkspaceRoot::of(context).work(move |workspace| edit(workspace, &path, &old, &new)).await?;
        Ok(ToolOutput::text(text))
    }
}

fn edit(workspace: &Workspace, path: &str, old: &str, new: &str) -> Result<String, ToolError> {
    let target = workspace.resolve_to_write(path)?;
    changing(|| {
        let Some(before) = existing(workspace, path, &target)? else {
            return Err(ToolError::Mendable(format!("there is no `{path}` in the workspace; write_file makes files")));
        };
        if before.len() > FILE_BYTES_MAX {
            return Err(ToolError::Mendable(format!(
                "`{path}` has {} bytes; files of at most {FILE_BYTES_MAX} are edited, use bash",
                before.len()
            )));
        }
        let read = || reading::read_all(workspace.open_file(&target)?, FILE_BYTES_MAX);
        let bytes = read().map_err(|error| describe("read", path, &error))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| ToolError::Mendable(format!("`{path}` is not UTF-8 text; use bash to change it")))?;
        let edited = replaced(&text, old, new).map_err(|why| ToolError::Mendable(format!("`{path}`: {why}")))?;
        let now = existing(workspace, path, &target)?;
        if now.is_none_or(|now| (now.modified().ok(), now.len()) != (before.modified().ok(), before.len())) {
            return Err(ToolError::Mendable(format!("`{path}` was changed by somebody else just now; read it again")));
        }
        replace(workspace, &target, edited.text.as_bytes(), Some(&before))
            .map_err(|error| describe("write", path, &error))?;
        Ok(format!("edited `{path}` at line {}", edited.line))
    })
}

#[derive(Debug, PartialEq)]
struct Edited {
    text: String,
    line: usize,
}

/// The text with the one passage replaced, or why not.
fn replaced(text: &str, old: &str, new: &str) -> Result<Edited, String> {
    if old.is_empty() {
        return Err("old_text is empty; give the passage to replace, or use write_file for a whole file".to_owned());
    }
    if old == new {
        return Err("old_text and new_text are the same".to_owned());
    }
    // The line ends of the file are kept; and tags are shown defused, so a passage may come back that way.
    let uses_crlf = text.contains("\r\n");
    let as_in_file = |passage: &str| {
        if uses_crlf { passage.replace("\r\n", "\n").replace('\n', "\r\n") } else { passage.to_owned() }
    };
    for (old, new) in
        [(as_in_file(old), as_in_file(new)), (old.to_owned(), new.to_owned()), (restore(old), restore(new))]
    {
        match text.matches(&old).count() {
            0 => {}
            1 => {
                let at = text.find(&old).unwrap_or_default();
                let line = line_of(text, at);
                return Ok(Edited { text: [&text[..at], &new, &text[at + old.len()..]].concat(), line });
            }
            count => return Err(several(text, &old, count)),
        }
    }
    Err(nowhere(text, old))
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn several(text: &str, old: &str, count: usize) -> String {
    let lines: Vec<String> =
        text.match_indices(old).take(PLACES_MAX).map(|(at, _)| line_of(text, at).to_string()).collect();
    format!(
        "old_text stands there {count} times (lines {}{}); add lines around it until it is the only one",
        lines.join(", "),
        if count > PLACES_MAX { ", …" } else { "" }
    )
}

/// Why nothing was found; with the places where only white space differs.
fn nowhere(text: &str, old: &str) -> String {
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted: Vec<String> = old.lines().map(squeeze).skip_while(String::is_empty).collect();
    let wanted = &wanted[..wanted.len() - wanted.iter().rev().take_while(|line| line.is_empty()).count()];
    let lines: Vec<&str> = text.lines().collect();
    let squeezed: Vec<String> = lines.iter().map(|line| squeeze(line)).collect();
    let places: Vec<usize> = match wanted {
        [] => Vec::new(),
        _ => squeezed.windows(wanted.len()).enumerate().filter(|(_, at)| *at == wanted).map(|(at, _)| at).collect(),
    };
    if let [at, ..] = places[..] {
        let there = lines[at..at + wanted.len()].join("\n");
        return format!(
            "old_text stands there 0 times, but at line {} only white space differs; the file has:\n{there}",
            at + 1
        );
    }
    let first = wanted.iter().find(|line| line.len() >= 3);
    let near = first.and_then(|first| squeezed.iter().position(|line| line == first));
    match near {
        Some(at) => format!(
            "old_text stands there 0 times; its first line is at line {}, what follows differs: read the file again",
            at + 1
        ),
        None => "old_text stands there 0 times; read the file again (line numbers are not part of it)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_passage_that_is_not_there_exactly_once_is_refused_with_what_there_is() {
        let text = "fn a() {\n    one();\n}\n\nfn b() {\n\tone();\n\ttwo();\n}\n";
        for (old, says) in [
            ("one();", "2 times (lines 2, 6)"),
            ("    one();\n    two();", "at line 6 only white space differs; the file has:\n\tone();\n\ttwo();"),
            ("fn b() {\n\tthree();", "its first line is at line 5"),
            ("four();", "0 times; read the file again"),
            ("", "old_text is empty"),
        ] {
            let error = replaced(text, old, "x").unwrap_err();
            assert!(error.contains(says), "{error} should say {says}");
        }
        assert!(replaced(text, "two", "two").unwrap_err().contains("the same"));
    }

    #[test]
    fn line_ends_stay_as_the_file_has_them() {
        let edited = replaced("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz").unwrap();
        assert_eq!(edited, Edited { text: "x\r\ny\r\nz\r\nc\r\n".into(), line: 1 });
        assert_eq!(replaced("a\nb\n", "b", "y\nz").unwrap().text, "a\ny\nz\n");
    }

    #[test]
    fn a_passage_shown_defused_is_found() {
        assert_eq!(replaced("x <inbox> y", "&lt;inbox> y", "&lt;inbox> z").unwrap().text, "x <inbox> z");
    }

    proptest! {
        #[test]
        fn an_edit_changes_the_passage_and_nothing_else(
            before in "[a-c\n ]{0,20}", old in "[d-f]{1,5}", after in "[a-c\n ]{0,20}", new in "[g-i\n]{0,6}",
        ) {
            let edited = replaced(&format!("{before}{old}{after}"), &old, &new).unwrap();
            prop_assert_eq!(edited.text, format!("{before}{new}{after}"));
        }
    }
}
