//! `delete_file`: deletes one file.
//!
//! Small models that have no such tool empty the file, or write `delete` as text. They do not call `bash` for it.

use std::io;
use std::path::Path;

use super::prelude::*;
use super::walk::missing_file;
use super::workspace::{FileAccess, OpenRoot, path_error};
use super::write_file::with_change_lock;

/// Deletes one file, not a folder.
#[derive(Deserialize, JsonSchema)]
pub(super) struct DeleteFile {
    path: String,
}

impl TypedTool for DeleteFile {
    const NAME: &'static str = "delete_file";

    fn about(&self) -> String {
        self.path.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let text = FileAccess::of(context).run_blocking(move |workspace| delete(workspace, &self.path)).await?;
        context.record_work();
        Ok(ToolOutput::text(text))
    }
}

/// Deletes the file, or the symbolic link itself. Returns the text for the model.
fn delete(workspace: &OpenRoot, path: &str) -> Result<String, ToolError> {
    let target = workspace.resolve_to_delete(path)?;
    let remove = || {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        workspace.open_folder(target.parent().unwrap_or(Path::new("")))?.to_dir()?.remove_file(name)
    };
    match with_change_lock(remove) {
        Ok(()) => Ok(format!("deleted `{path}`")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing_file(workspace, path, "")),
        Err(_) if workspace.dir.is_dir(&target) => {
            Err(ToolError::Recoverable(format!("`{path}` is a folder; use `bash` to delete it")))
        }
        Err(error) => Err(path_error("delete", path, &error)),
    }
}
