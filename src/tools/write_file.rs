//! `write_file`: a whole file, replaced in one step.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cap_std::fs::Metadata;
use cap_tempfile::TempFile;
use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, required};
use super::checked::{Checked, text_of};
use super::workspace::{Workspace, WorkspaceRoot, describe};
use super::{ToolContext, ToolError, ToolOutput};

pub(super) struct WriteFile;

/// One change of a file at a time in this process: two teammates that edit the same file lose neither's edit.
static CHANGES: Mutex<()> = Mutex::new(());

#[async_trait::async_trait]
impl Checked for WriteFile {
    const NAME: &'static str = "write_file";
    const DESCRIPTION: &'static str = "Writes a whole file of the workspace: makes it, with the folders above it, or replaces all that is in it. To change a part of a file use edit_file.";
    const PARAMETERS: &'static [Parameter] = &[
        required("path", Kind::Text, "The file, relative to the workspace"),
        required("content", Kind::Text, "All of its new content"),
    ];

    fn about(&self, input: &Value) -> String {
        text_of(input, "path")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let (path, content) = (arguments.text("path").to_owned(), arguments.text("content").to_owned());
        let text = WorkspaceRoot::of(context).work(move |workspace| write(workspace, &path, &content)).await?;
        Ok(ToolOutput::text(text))
    }
}

fn write(workspace: &Workspace, path: &str, content: &str) -> Result<String, ToolError> {
    let target = workspace.resolve_to_write(path)?;
    if path.ends_with('/') {
        return Err(ToolError::Mendable(format!("`{path}` names a folder; give the file's name too")));
    }
    let is_new = changing(|| {
        let before = existing(workspace, path, &target)?;
        replace(workspace, &target, content.as_bytes(), before.as_ref())
            .map_err(|error| describe("write", path, &error))?;
        Ok::<_, ToolError>(before.is_none())
    })?;
    let lines = content.lines().count();
    Ok(format!("{} `{path}`: {lines} lines, {} bytes", if is_new { "made" } else { "replaced" }, content.len()))
}

/// Runs a change of a file while no other one runs.
pub(super) fn changing<R>(change: impl FnOnce() -> R) -> R {
    let _held = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    change()
}

/// What lies at `target`, if it may be replaced; `None` when nothing does.
pub(super) fn existing(workspace: &Workspace, path: &str, target: &Path) -> Result<Option<Metadata>, ToolError> {
    let metadata = match workspace.dir.symlink_metadata(target) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(describe("look at", path, &error)),
    };
    if metadata.is_dir() {
        return Err(ToolError::Mendable(format!("`{path}` is a folder")));
    }
    if metadata.is_symlink() {
        // Its target is missing, else the path had been resolved further.
        return Err(ToolError::Mendable(format!("`{path}` is a symbolic link that leads nowhere in the workspace")));
    }
    if !metadata.is_file() {
        return Err(ToolError::Mendable(format!("`{path}` is not a plain file")));
    }
    if metadata.permissions().readonly() {
        return Err(ToolError::Mendable(format!("`{path}` is read-only (its mode forbids writing)")));
    }
    Ok(Some(metadata))
}

/// Puts `bytes` in the place of `target` in one step: readers see the old file or the new one. Mode and, where allowed,
/// owner stay as they were.
pub(super) fn replace(workspace: &Workspace, target: &Path, bytes: &[u8], before: Option<&Metadata>) -> io::Result<()> {
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

#[cfg(unix)]
fn keep_owner(file: &TempFile<'_>, before: &Metadata) -> io::Result<()> {
    use cap_std::fs::MetadataExt;
    use rustix::fs::{Gid, Uid};
    let now = file.as_file().metadata()?;
    if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
        // Only root may; for others the file becomes theirs, as with any editor that replaces files.
        let _ =
            rustix::fs::fchown(file.as_file(), Some(Uid::from_raw(before.uid())), Some(Gid::from_raw(before.gid())));
    }
    Ok(())
}

#[cfg(not(unix))]
fn keep_owner(_: &TempFile<'_>, _: &Metadata) -> io::Result<()> {
    Ok(())
}
