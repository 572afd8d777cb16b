//! `edit_file`: replaces one passage of a file.

use super::prelude::*;
use super::walk::missing_file;
use super::workspace::{FileAccess, OpenRoot, path_error};
use super::write_file::{replace_atomically, replaceable_file, with_change_lock};
use crate::domain::text::tags::unescape_tags;
use crate::platform::reading;

/// The largest file to edit, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The most line numbers that an error names.
const LINES_SHOWN_MAX: usize = 10;
/// The largest file, in bytes, whose text is part of the error if the passage was not found.
const FILE_SHOWN_BYTES_MAX: usize = 1_000;

/// Replaces one passage of a file.
#[derive(Deserialize, JsonSchema)]
pub(super) struct EditFile {
    path: String,
    /// Exactly as in the file, without line numbers; must occur only once
    old_text: String,
    new_text: String,
}

impl TypedTool for EditFile {
    const NAME: &'static str = "edit_file";

    fn about(&self) -> String {
        self.path.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let output = FileAccess::of(context).run_blocking(move |workspace| edit(workspace, &self)).await?;
        if output.effect != ToolEffect::FileUnchanged {
            context.record_work();
        }
        Ok(output)
    }
}

fn edit(workspace: &OpenRoot, call: &EditFile) -> Result<ToolOutput, ToolError> {
    let EditFile { path, old_text, new_text } = call;
    let target = workspace.resolve_to_write(path)?;
    if old_text == new_text {
        let text = format!("`old_text` and `new_text` are the same; `{path}` is not changed");
        return Ok(ToolOutput { text, effect: ToolEffect::FileUnchanged });
    }
    with_change_lock(|| {
        let Some(before) = replaceable_file(workspace, path, &target)? else {
            return Err(missing_file(workspace, path, "; use `write_file` to create it"));
        };
        if before.len() > FILE_BYTES_MAX {
            return Err(ToolError::Recoverable(format!(
                "`{path}` has {} bytes, at most {FILE_BYTES_MAX} are allowed; use `bash` to change it",
                before.len()
            )));
        }
        let read = || reading::read_all(workspace.open_file(&target)?, FILE_BYTES_MAX);
        let bytes = read().map_err(|error| path_error("read", path, &error))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| ToolError::Recoverable(format!("`{path}` is not UTF-8 text; use `bash` to change it")))?;
        let edited = replace_passage(&text, old_text, new_text)
            .map_err(|reason| ToolError::Recoverable(format!("`{path}`: {reason}")))?;
        let current = replaceable_file(workspace, path, &target)?;
        if current
            .is_none_or(|current| (current.modified().ok(), current.len()) != (before.modified().ok(), before.len()))
        {
            return Err(ToolError::Recoverable(format!(
                "`{path}` has just been changed by another program; read it again"
            )));
        }
        replace_atomically(workspace, &target, edited.text.as_bytes(), Some(&before))
            .map_err(|error| path_error("write", path, &error))?;
        Ok(ToolOutput::text(format!("edited `{path}` at line {}", edited.line)))
    })
}

#[derive(Debug, PartialEq)]
struct EditedText {
    text: String,
    line: usize,
}

/// Returns `text` with the passage `old` replaced by `new`, and the line of the passage.
///
/// # Errors
/// The reason why the passage cannot be replaced, in words for the model.
fn replace_passage(text: &str, old: &str, new: &str) -> Result<EditedText, String> {
    if old.is_empty() {
        return Err("`old_text` is empty; give the passage to replace, or use `write_file` for a whole file".to_owned());
    }
    // The first pair has the line ends of the file. The last pair is for a model that copied escaped tags from its prompt.
    let uses_crlf = text.contains("\r\n");
    let with_file_line_ends = |passage: &str| {
        if uses_crlf { passage.replace("\r\n", "\n").replace('\n', "\r\n") } else { passage.to_owned() }
    };
    for (old, new) in [
        (with_file_line_ends(old), with_file_line_ends(new)),
        (old.to_owned(), new.to_owned()),
        (unescape_tags(old).into_owned(), unescape_tags(new).into_owned()),
    ] {
        match text.matches(&old).count() {
            0 => {}
            1 => {
                let offset = text.find(&old).unwrap_or_default();
                return Ok(EditedText { text: text.replacen(&old, &new, 1), line: line_of(text, offset) });
            }
            count => return Err(several_matches_error(text, &old, count)),
        }
    }
    Err(no_match_error(text, old))
}

/// The number of the line at this byte offset, from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

fn several_matches_error(text: &str, old: &str, count: usize) -> String {
    let lines: Vec<String> =
        text.match_indices(old).take(LINES_SHOWN_MAX).map(|(offset, _)| line_of(text, offset).to_string()).collect();
    format!(
        "`old_text` was found {count} times (lines {}{}); add lines around it until it is unique",
        lines.join(", "),
        if count > LINES_SHOWN_MAX { ", …" } else { "" }
    )
}

/// The error for a passage that was not found. If only white space differs, or the file is short, it has the text of the file.
fn no_match_error(text: &str, old: &str) -> String {
    let normalized = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut searched: Vec<String> = old.lines().map(normalized).skip_while(String::is_empty).collect();
    while searched.last().is_some_and(String::is_empty) {
        searched.pop();
    }
    let lines: Vec<&str> = text.lines().collect();
    let normalized_lines: Vec<String> = lines.iter().map(|line| normalized(line)).collect();
    let similar = if searched.is_empty() {
        None
    } else {
        normalized_lines.windows(searched.len()).position(|window| window == searched)
    };
    if let Some(at) = similar {
        let passage = lines[at..at + searched.len()].join("\n");
        return format!(
            "`old_text` was not found, but at line {} only white space differs; the file has:\n{passage}",
            at + 1
        );
    }
    let first = searched.iter().find(|line| line.len() >= 3);
    let first_line = first.and_then(|first| normalized_lines.iter().position(|line| line == first));
    match first_line {
        Some(at) => format!(
            "`old_text` was not found; its first line is at line {}, the next lines differ: read the file again",
            at + 1
        ),
        None if old.contains("\\n") && text.contains(&old.replace("\\n", "\n")) => {
            "`old_text` has `\\n` as two characters; write real line breaks".to_owned()
        }
        None if text.len() <= FILE_SHOWN_BYTES_MAX => format!("`old_text` was not found; the file has:\n{text}"),
        None => "`old_text` was not found; read the file again (line numbers are not part of it)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edit_refuses_old_text_not_found_exactly_once() {
        let text = "fn a() {\n    one();\n}\n\nfn b() {\n\tone();\n\ttwo();\n}\n";
        for (old, expected) in [
            ("one();", "2 times (lines 2, 6)"),
            ("    one();\n    two();", "at line 6 only white space differs; the file has:\n\tone();\n\ttwo();"),
            ("fn b() {\n\tthree();", "its first line is at line 5"),
            ("four();", "`old_text` was not found; the file has:\nfn a() {"),
            ("one();\\n}", "`old_text` has `\\n` as two characters"),
            ("", "`old_text` is empty"),
        ] {
            let error = replace_passage(text, old, "x").unwrap_err();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
        let long = text.repeat(100);
        assert!(replace_passage(&long, "four();", "x").unwrap_err().contains("was not found; read the file again"));
    }

    #[test]
    fn edit_keeps_line_ends_of_file() {
        let edited = replace_passage("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz").unwrap();
        assert_eq!(edited, EditedText { text: "x\r\ny\r\nz\r\nc\r\n".into(), line: 1 });
        assert_eq!(replace_passage("a\nb\n", "b", "y\nz").unwrap().text, "a\ny\nz\n");
    }

    #[test]
    fn edit_finds_text_shown_escaped() {
        assert_eq!(replace_passage("x <inbox> y", "&lt;inbox> y", "&lt;inbox> z").unwrap().text, "x <inbox> z");
    }

    proptest! {
        #[test]
        fn edit_changes_only_the_matched_text(
            before in "[a-c\n ]{0,20}", old in "[d-f]{1,5}", after in "[a-c\n ]{0,20}", new in "[g-i\n]{0,6}",
        ) {
            let edited = replace_passage(&format!("{before}{old}{after}"), &old, &new).unwrap();
            prop_assert_eq!(edited.text, format!("{before}{new}{after}"));
        }
    }
}
