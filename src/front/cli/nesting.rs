//! Points out a workspace inside another one: a command in a folder below both may act on the one that was not meant.

use std::path::Path;

use super::context::Context;
use crate::config::search::workspace_above;
use crate::domain::text::one_line;
use crate::stores::workspace::{BOARD_FOLDER, TEAM_FOLDER};

/// The note for a workspace inside another one. One config can serve several workspaces, so the folder of the config in use is no
/// other workspace.
pub fn nesting_note(context: &Context, workspace: &Path) -> Option<String> {
    let workspace = workspace.canonicalize().ok()?;
    let outer = workspace_above(&workspace, &[BOARD_FOLDER, TEAM_FOLDER])?;
    let config = context.workspace.location.config_file().ok().flatten().and_then(|file| file.canonicalize().ok());
    if config.as_deref().and_then(Path::parent) == Some(outer.as_path()) {
        return None;
    }
    let (inner, outer) = (workspace.display(), outer.display());
    let text = format!(
        "{inner} is inside another workspace, {outer}: they share no tasks, and a command uses the nearest one"
    );
    Some(one_line(&text))
}
