//! `write_file`: creates or replaces a file in one step.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use cap_std::fs::{Metadata, MetadataExt as _};
use cap_tempfile::TempFile;
use parking_lot::Mutex;
use rustix::fs::{Gid, Uid};

use super::prelude::*;
use super::workspace::{FileAccess, OpenRoot, path_error};
use crate::platform::reading;

/// The name of the tool that replaces whole files.
pub const WRITE_TOOL: &str = "write_file";

/// Creates a file, or replaces all its content.
#[derive(Deserialize, JsonSchema)]
pub(super) struct WriteFile {
    path: String,
    content: String,
}

/// The extensions of text files. In them, a code fence around everything can be part of the text.
const TEXT_EXTENSIONS: [&str; 6] = [".md", ".mdx", ".markdown", ".txt", ".rst", ".adoc"];

/// The largest file whose lines are compared with a new text, in bytes.
const COMPARED_BYTES_MAX: u64 = 1024 * 1024;

/// Locked during each change of a file, so that two teammates of this process that edit the same file lose no edit.
static CHANGES: Mutex<()> = Mutex::new(());

impl TypedTool for WriteFile {
    const NAME: &'static str = WRITE_TOOL;

    fn about(&self) -> String {
        self.path.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let output = FileAccess::of(context).run_blocking(move |workspace| write(workspace, &self)).await?;
        if output.effect != ToolEffect::FileUnchanged {
            context.record_work();
        }
        Ok(output)
    }
}

/// Returns the text of a file in the workspace. Returns `None` if it cannot be read or is too long to be compared. Blocks for a short time.
pub fn file_text(path: &str, context: &ToolContext) -> Option<String> {
    let workspace = FileAccess::of(context).open(Arc::default()).ok()?;
    let file = workspace.open_file(&workspace.resolve(path).ok()?).ok()?;
    let bytes = reading::read_all(file, COMPARED_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn write(workspace: &OpenRoot, call: &WriteFile) -> Result<ToolOutput, ToolError> {
    let WriteFile { path, content } = call;
    let target = workspace.resolve_to_write(path)?;
    if path.ends_with('/') {
        return Err(ToolError::Recoverable(format!("`{path}` names a folder; add the file's name")));
    }
    if let Some(advice) = substitution_advice(path, content) {
        return Err(ToolError::Recoverable(format!(
            "`content` is written as it is, so its `$(…)` would not run. {advice}"
        )));
    }
    let (content, note) = match without_fence(path, content) {
        Some(content) => (content, " (without the code fence around it)"),
        None => (content.as_str(), ""),
    };
    let (before, is_same) = with_change_lock(|| {
        let before = replaceable_file(workspace, path, &target)?;
        if before.is_none() && path.contains('\n') {
            let text = "argument `path` contains a line break; give the path alone, and the text in `content`";
            return Err(ToolError::Recoverable(text.to_owned()));
        }
        let is_same = before.as_ref().is_some_and(|before| before.len() == content.len() as u64)
            && workspace.dir.read(&target).is_ok_and(|bytes| bytes == content.as_bytes());
        if !is_same {
            replace_atomically(workspace, &target, content.as_bytes(), before.as_ref())
                .map_err(|error| path_error("write", path, &error))?;
        }
        Ok::<_, ToolError>((before, is_same))
    })?;
    if is_same {
        let text = format!("`{path}` already has this content{note}; nothing is changed");
        return Ok(ToolOutput { text, effect: ToolEffect::FileUnchanged });
    }
    let lines = content.lines().count();
    let noun = if lines == 1 { "line" } else { "lines" };
    // Small models write the new lines alone; the size before shows that the others are gone.
    let done = match before {
        None => format!("created `{path}`"),
        Some(before) => format!("replaced the {} bytes of `{path}`", before.len()),
    };
    // Small models write line breaks in the form of a string literal. The text may also be meant so.
    let advice = if !content.trim_end().contains('\n') && content.contains("\\n") {
        "\nIt has `\\n` as two characters in one line. If you meant line breaks, write it again with real ones."
    } else {
        ""
    };
    Ok(ToolOutput::text(format!("{done}: {lines} {noun}, {} bytes{note}{advice}", content.len())))
}

/// Returns what to do instead if the content is the output of a command in the form of a shell, `$(sort names.txt)`, as small models
/// write it.
fn substitution_advice(path: &str, content: &str) -> Option<String> {
    let rest = content.trim().strip_prefix("$(")?;
    match rest.strip_suffix(')').filter(|command| !command.contains('\n')) {
        Some(command) if command.contains('>') => Some(format!("Call `bash` with `{command}`.")),
        Some(command) => Some(format!("Call `bash` with `{command} > {path}`.")),
        None => is_text_file(path).then(|| "Give the text itself, or call `edit_file`.".to_owned()),
    }
}

/// Returns the text inside a code fence around the whole content, which small models add; otherwise `None`. In files of
/// [`TEXT_EXTENSIONS`] a fence is part of the text.
fn without_fence<'a>(path: &str, content: &'a str) -> Option<&'a str> {
    let (first, rest) = content.trim_end().split_once('\n')?;
    let is_fence = first.strip_prefix("```").is_some_and(|word| word.chars().all(char::is_alphanumeric));
    if is_text_file(path) || !is_fence {
        return None;
    }
    let body = rest.strip_suffix("```")?;
    let ends_line = body.is_empty() || body.ends_with('\n');
    if ends_line && !body.contains("```") { Some(body) } else { None }
}

fn is_text_file(path: &str) -> bool {
    TEXT_EXTENSIONS.iter().any(|extension| path.to_lowercase().ends_with(extension))
}

/// Runs `change` while no other change of a file runs in this process. Returns its result.
pub(super) fn with_change_lock<R>(change: impl FnOnce() -> R) -> R {
    let _guard = CHANGES.lock();
    change()
}

/// Returns the metadata of the file to replace, or `None` if there is no file.
///
/// # Errors
/// `target` cannot be read, is not a plain file, or is read-only.
pub(super) fn replaceable_file(workspace: &OpenRoot, path: &str, target: &Path) -> Result<Option<Metadata>, ToolError> {
    let metadata = match workspace.dir.symlink_metadata(target) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(path_error("read", path, &error)),
    };
    if metadata.is_dir() {
        return Err(ToolError::Recoverable(format!("`{path}` is a folder")));
    }
    if metadata.is_symlink() {
        // Its target is missing: otherwise `resolve` would have followed it.
        return Err(ToolError::Recoverable(format!("`{path}` is a symbolic link without a target in the workspace")));
    }
    if !metadata.is_file() {
        return Err(ToolError::Recoverable(format!("`{path}` is not a plain file")));
    }
    if metadata.permissions().readonly() {
        return Err(ToolError::Recoverable(format!("`{path}` is read-only (its mode forbids writing)")));
    }
    Ok(Some(metadata))
}

/// Replaces `target` by `bytes` in one step: readers see the old file or the new one. Missing folders are created. The new file has the
/// mode of `before` and, if the system allows it, its owner.
///
/// # Errors
/// The folder or the file cannot be written.
pub(super) fn replace_atomically(
    workspace: &OpenRoot,
    target: &Path,
    bytes: &[u8],
    before: Option<&Metadata>,
) -> io::Result<()> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = workspace.make_folder(target.parent().unwrap_or(Path::new("")))?.to_dir()?;
    let mut file = TempFile::new(&folder)?;
    file.as_file_mut().write_all(bytes)?;
    if let Some(before) = before {
        keep_owner(&file, before)?;
        file.as_file().set_permissions(before.permissions())?;
    }
    file.replace(name)
}

fn keep_owner(file: &TempFile<'_>, before: &Metadata) -> io::Result<()> {
    let current = file.as_file().metadata()?;
    if (current.uid(), current.gid()) != (before.uid(), before.gid()) {
        // Only root may change the owner. For other users an error is normal, and the file becomes theirs.
        let _ =
            rustix::fs::fchown(file.as_file(), Some(Uid::from_raw(before.uid())), Some(Gid::from_raw(before.gid())));
    }
    Ok(())
}
