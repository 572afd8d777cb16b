//! The messages that are written to the program.

use serde_json::{Value, json};

use crate::agents::external::protocol::ControlResponse;

/// The id of the request that begins a conversation.
pub(super) const INITIALIZE_ID: &str = "brigade-initialize";
/// The id of the request for the usage of the session so far.
pub(super) const SESSION_USAGE_ID: &str = "brigade-session-usage";
/// The id of the request to end a turn.
const INTERRUPT_ID: &str = "brigade-interrupt";

/// The time limit for answers, in seconds. Brigade may wait for the person or for budget meanwhile. Without an answer, a tool does not
/// run.
const ANSWER_TIMEOUT_S: u32 = 86_400;

/// The hooks that the program calls. The name of a hook is also its callback id.
const HOOKS: [&str; 6] =
    ["PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "PreCompact", "SessionStart"];

/// Returns the first message.
pub(super) fn initialize(system_prompt: &str) -> Value {
    let hook = |name: &str| {
        // Version 2.1.197 ignores `onFailure`: a tool runs there after an invalid answer.
        let matcher =
            json!({ "matcher": null, "hookCallbackIds": [name], "timeout": ANSWER_TIMEOUT_S, "onFailure": "block" });
        (name.to_owned(), json!([matcher]))
    };
    let hooks: serde_json::Map<String, Value> = HOOKS.into_iter().map(hook).collect();
    request(INITIALIZE_ID, json!({ "subtype": "initialize", "hooks": hooks, "appendSystemPrompt": system_prompt }))
}

/// Returns the request for the usage of the session so far.
pub(super) fn session_usage() -> Value {
    request(SESSION_USAGE_ID, json!({ "subtype": "get_session_cost" }))
}

/// Returns a prompt.
pub(super) fn prompt(key: &str, text: &str) -> Value {
    json!({
        "type": "user",
        "message": { "role": "user", "content": text },
        "parent_tool_use_id": null,
        "session_id": "",
        "uuid": key,
    })
}

/// Returns the request to end a turn.
pub(super) fn interrupt() -> Value {
    request(INTERRUPT_ID, json!({ "subtype": "interrupt" }))
}

/// Returns a response. The id of a request by a hook begins with the hook's name and a space.
pub(super) fn control_response(request_id: &str, response: ControlResponse<'_>) -> Value {
    let of_hook = HOOKS.iter().find_map(|hook| Some((*hook, request_id.strip_prefix(hook)?.strip_prefix(' ')?)));
    let (hook, request_id) = of_hook.unwrap_or(("", request_id));
    let answer = match response {
        ControlResponse::AllowTool | ControlResponse::Continue(None) => json!({}),
        ControlResponse::DenyTool(reason) => json!({ "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }}),
        // The program ignores an answer with the name of another hook.
        ControlResponse::Continue(Some(text)) => {
            json!({ "hookSpecificOutput": { "hookEventName": hook, "additionalContext": text } })
        }
        ControlResponse::Refuse => {
            let error = json!({ "subtype": "error", "request_id": request_id, "error": "unknown request" });
            return json!({ "type": "control_response", "response": error });
        }
        ControlResponse::GrantPermission(input) => json!({ "behavior": "allow", "updatedInput": input }),
        ControlResponse::DenyPermission(reason) => json!({ "behavior": "deny", "message": reason }),
        ControlResponse::Mcp(Some(message)) => json!({ "mcp_response": message }),
        // A notification is answered too. The program ignores the content.
        ControlResponse::Mcp(None) => json!({ "mcp_response": { "jsonrpc": "2.0", "id": 0, "result": {} } }),
    };
    let success = json!({ "subtype": "success", "request_id": request_id, "response": answer });
    json!({ "type": "control_response", "response": success })
}

fn request(id: &str, request: Value) -> Value {
    json!({ "type": "control_request", "request_id": id, "request": request })
}
