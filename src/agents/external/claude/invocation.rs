//! The arguments and the environment of the program.

use serde_json::json;

use super::SERVER_NAME;
use super::tools::TOOLS;
use crate::agents::external::protocol::{Invocation, SessionStart};
use crate::domain::agent::permission::{Permissions, ToolKind};

/// Returns the invocation of the program. Each value is joined to its option, so that no value can be taken for an option.
pub(super) fn invocation(start: &SessionStart<'_>) -> Invocation {
    let session = if start.is_known { "resume" } else { "session-id" };
    let server = json!({ "mcpServers": { SERVER_NAME: { "type": "sdk", "name": SERVER_NAME } } });
    let mut arguments = vec![
        "--output-format=stream-json".to_owned(),
        "--input-format=stream-json".to_owned(),
        "--verbose".to_owned(),
        // For the usage of each request, and for text while it is streamed.
        "--include-partial-messages".to_owned(),
        "--permission-prompt-tool=stdio".to_owned(),
        // Neither hooks nor instructions nor servers of the user or the project.
        "--setting-sources=".to_owned(),
        "--strict-mcp-config".to_owned(),
        format!("--mcp-config={server}"),
        format!("--allowedTools=mcp__{SERVER_NAME}"),
        format!("--tools={}", tools(start.permissions).join(",")),
        // The sandbox confines it, and each call is checked by a hook.
        "--permission-mode=bypassPermissions".to_owned(),
        format!("--{session}={}", start.session),
    ];
    let denied = denied_commands(start.permissions);
    if !denied.is_empty() {
        arguments.push(format!("--disallowedTools={}", denied.join(",")));
    }
    if !start.model.is_empty() {
        arguments.push(format!("--model={}", start.model));
    }
    Invocation { arguments, variables: variables(start) }
}

/// Returns the tools that the member can use.
fn tools(permissions: &Permissions) -> Vec<&'static str> {
    let tools = TOOLS.into_iter().filter(|tool| !permissions.excludes(tool.brigade_name, tool.kind));
    tools.map(|tool| tool.name).collect()
}

/// Returns the rules that deny commands. Rules about paths are left to Brigade, because the program reads them in another way.
fn denied_commands(permissions: &Permissions) -> Vec<String> {
    let commands = TOOLS.into_iter().filter(|tool| tool.kind == ToolKind::Command);
    let denied = commands.flat_map(|tool| {
        let rules = permissions.deny.iter().filter(move |rule| rule.is_about_tool(tool.brigade_name));
        rules.map(move |rule| rule.text_with_tool(tool.name))
    });
    denied.collect()
}

fn variables(start: &SessionStart<'_>) -> Vec<(String, String)> {
    let mut variables = vec![
        ("CLAUDE_CONFIG_DIR", start.home.display().to_string()),
        // The login stays in the user's own folder, where the program refreshes it. An empty value is the default folder.
        ("CLAUDE_SECURESTORAGE_CONFIG_DIR", std::env::var("CLAUDE_CONFIG_DIR").unwrap_or_default()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        ("DISABLE_AUTOUPDATER", "1".to_owned()),
        // The board's tools are in each request from the start.
        ("ENABLE_TOOL_SEARCH", "false".to_owned()),
        // As root, the program requires this to run without permission questions.
        ("IS_SANDBOX", "1".to_owned()),
        ("BASH_DEFAULT_TIMEOUT_MS", start.command_timeout.as_millis().to_string()),
        ("BASH_MAX_TIMEOUT_MS", start.command_timeout_max.as_millis().to_string()),
        ("CLAUDE_CODE_MAX_RETRIES", start.retries_max.to_string()),
        // A report runs the verify command and waits for the merge queue.
        ("MCP_TOOL_TIMEOUT", "86400000".to_owned()),
    ];
    if let Some(base_url) = start.base_url {
        variables.push(("ANTHROPIC_BASE_URL", base_url.to_owned()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::permission::{PermissionMode, PermissionRule};

    #[test]
    fn member_gets_tools_that_it_can_use() {
        let plan = Permissions { mode: PermissionMode::Plan, ..Permissions::default() };
        let tools = tools(&plan);
        assert!(tools.contains(&"Read") && !tools.contains(&"Bash") && !tools.contains(&"Write"), "{tools:?}");
        let deny =
            ["bash(git push:*)", "edit_file(keys/*)", "bash(make)"].map(|rule| PermissionRule::parse(rule).unwrap());
        let permissions = Permissions { deny: deny.to_vec(), ..Permissions::default() };
        assert_eq!(denied_commands(&permissions), ["Bash(git push:*)", "Bash(make)"]);
    }
}
