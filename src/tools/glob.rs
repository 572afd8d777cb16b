//! `glob`: finds files by path.

use std::path::Path;

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, optional, required};
use super::walk::{matcher, walk};
use super::workspace::{Workspace, WorkspaceRoot};
use super::{ToolContext, ToolError, ToolOutput};

/// The most paths in a result.
const PATHS_MAX: usize = 500;

pub(super) struct Glob;

#[async_trait::async_trait]
impl TypedTool for Glob {
    const NAME: &'static str = "glob";
    const DESCRIPTION: &'static str = "Lists files of the workspace whose path matches a pattern. Leaves out .git, Brigade's files and files that git ignores. To search in files use `grep`.";
    const PARAMETERS: &'static [Parameter] = &[
        required(
            "pattern",
            ParameterType::Text,
            "A pattern for paths relative to the workspace or to `path`: `*` stays within a folder, `**` crosses folders, `{a,b}` matches one; without `/` it matches names in any folder",
        ),
        optional("path", ParameterType::Text, "The folder to search; default: the workspace"),
    ];

    fn about(&self, input: &Value) -> String {
        text_argument(input, "pattern")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let pattern = arguments.text("pattern").to_owned();
        let path = arguments.optional_text("path").unwrap_or(".").to_owned();
        let text = WorkspaceRoot::of(context).run_blocking(move |workspace| glob(workspace, &pattern, &path)).await?;
        Ok(ToolOutput::text(text))
    }
}

fn glob(workspace: &Workspace, pattern: &str, path: &str) -> Result<String, ToolError> {
    let relative_pattern = Path::new(pattern).strip_prefix(workspace.root()).ok().and_then(Path::to_str);
    let matcher = matcher(relative_pattern.unwrap_or(pattern))?;
    let searched_folder = workspace.resolve(path)?;
    let (mut paths, mut count) = (Vec::new(), 0_usize);
    let walk_result = walk(workspace, &searched_folder, |file| {
        let relative = file.path.strip_prefix(&searched_folder).unwrap_or(file.path);
        if matcher.is_match(relative) || matcher.is_match(file.path) {
            count += 1;
            if paths.len() < PATHS_MAX {
                paths.push(format!("{}{}", file.path.display(), if file.is_link { " (symbolic link)" } else { "" }));
            }
        }
        true
    });
    if count == 0 {
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
