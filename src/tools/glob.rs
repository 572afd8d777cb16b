//! `glob`: finds files by path.

use std::path::Path;

use super::prelude::*;
use super::walk::{FilePattern, resolve_searched, walk};
use super::workspace::{FileAccess, OpenRoot};

/// The most paths in a result.
const PATHS_MAX: usize = 500;

/// Lists files by path. Files that git ignores are left out.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Glob {
    /// With `*` and `**`; without `/` it matches in any folder
    pattern: String,
    path: Option<String>,
}

impl TypedTool for Glob {
    const NAME: &'static str = "glob";

    fn about(&self) -> String {
        self.pattern.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let text =
            FileAccess::of_search(context, Self::NAME).run_blocking(move |workspace| glob(workspace, &self)).await?;
        Ok(ToolOutput::text(text))
    }
}

fn glob(workspace: &OpenRoot, call: &Glob) -> Result<String, ToolError> {
    let pattern = call.pattern.as_str();
    let relative_pattern = Path::new(pattern).strip_prefix(workspace.root()).ok().and_then(Path::to_str);
    let file_pattern = FilePattern::new(relative_pattern.unwrap_or(pattern))?;
    let searched_folder = resolve_searched(workspace, call.path.as_deref().unwrap_or("."))?;
    let (mut paths, mut count) = (Vec::new(), 0_usize);
    let walk_result = walk(workspace, &searched_folder, |file| {
        let relative = file.path.strip_prefix(&searched_folder).unwrap_or(file.path);
        if file_pattern.matches(relative) || file_pattern.matches(file.path) {
            count += 1;
            if paths.len() < PATHS_MAX {
                paths.push(format!("{}{}", file.path.display(), if file.is_link { " (symbolic link)" } else { "" }));
            }
        }
        true
    });
    if count == 0 {
        if let Some(error) = file_pattern.error() {
            return Err(error);
        }
        paths.push(format!("no file matches `{pattern}`"));
    }
    if count > PATHS_MAX {
        paths.push(format!("({PATHS_MAX} of {count} files are shown; narrow the pattern)"));
    }
    if !walk_result.is_complete {
        paths.push("(too many files to search all; give a `path`)".to_owned());
    }
    paths.extend(walk_result.notes);
    Ok(paths.join("\n"))
}
