//! Reads the lines of the program.

use std::time::Duration;

use serde_json::Value;

use super::tools::find_tool;
use super::{SERVER_NAME, invocation, messages};
use crate::agents::external::protocol::{
    AgentEvent, AgentFailure, AgentProtocol, ControlResponse, Invocation, ReportedUsage, SessionStart,
};
use crate::domain::agent::permission::{PermissionCall, ToolKind};
use crate::domain::agent::transcript::Usage;
use crate::domain::team::request_text::CallDetails;
use crate::domain::text::characters::{joined, readable_json};
use crate::domain::time::UnixMs;

/// The fields of an input with the subject of a call, for people.
const SUBJECT_FIELDS: [&str; 7] = ["command", "file_path", "notebook_path", "pattern", "url", "query", "path"];

/// The prefix of a board tool's name in the program.
const BOARD_TOOL_PREFIX: &str = "mcp__brigade__";

/// Error texts in the result of a turn, which the program has no other field for. Seen in versions 2.1.197 and 2.1.330.
const UNKNOWN_SESSION: &str = "No conversation found";
const CREDIT_TOO_LOW: &str = "Credit balance is too low";
const NO_LOGIN: &str = "/login";
/// The start of the `subtype` of a result after a limit of the program, such as `error_max_turns`. Such a result is no error.
const STOPPED_PREFIX: &str = "error_max_";

/// The line of a report about a session without usage. Seen in versions 2.1.197 and 2.1.330.
const NO_USAGE: &str = "Usage:                 0 input, 0 output, 0 cache read, 0 cache write";

/// The protocol of one process of Claude Code.
#[derive(Debug, Default)]
pub struct ClaudeProtocol {
    /// The usage of the current model request so far.
    request: Option<Usage>,
    /// The id of the last answer whose usage is counted.
    answer: String,
    /// True if the total of the process starts at zero.
    has_own_total: bool,
    /// The reset of the account's quota, if it was refused for the current prompt.
    quota_until: Option<UnixMs>,
}

impl AgentProtocol for ClaudeProtocol {
    fn invocation(&self, start: &SessionStart<'_>) -> Invocation {
        invocation::invocation(start)
    }

    fn handshake(&mut self, start: &SessionStart<'_>) -> Vec<String> {
        self.has_own_total = !start.is_known;
        // Some versions continue the total of a resumed session, others start at zero.
        let session_usage = start.is_known.then(messages::session_usage);
        let messages = [messages::initialize(start.system_prompt)].into_iter().chain(session_usage);
        messages.map(|message| message.to_string()).collect()
    }

    fn read(&mut self, line: &str) -> Vec<AgentEvent> {
        // The program writes half of a character as it is.
        let Ok(message @ Value::Object(_)) = serde_json::from_str::<Value>(&joined(&readable_json(line)).text) else {
            let text = line.trim();
            return if text.is_empty() { Vec::new() } else { vec![AgentEvent::Diagnostic(text.to_owned())] };
        };
        match text_of(&message["type"]) {
            "control_response" if message["response"]["request_id"] == messages::INITIALIZE_ID => {
                vec![AgentEvent::Ready { session: None }]
            }
            "control_response" if message["response"]["request_id"] == messages::SESSION_USAGE_ID => {
                self.has_own_total =
                    text_of(&message["response"]["response"]["text"]).lines().any(|line| line == NO_USAGE);
                Vec::new()
            }
            "control_request" => vec![Self::control_request(&message)],
            "stream_event" => self.stream_event(&message["event"]),
            "assistant" => self.assistant(&message["message"]),
            "user" => tool_results(&message["message"]["content"]),
            "system" if message["subtype"] == "api_retry" => vec![retry_event(&message)],
            "rate_limit_event" => self.rate_limit(&message["rate_limit_info"]).into_iter().collect(),
            "result" => vec![self.prompt_completed(&message)],
            _ => Vec::new(),
        }
    }

    fn prompt(&self, key: &str, text: &str) -> String {
        messages::prompt(key, text).to_string()
    }

    fn response(&self, request_id: &str, response: ControlResponse<'_>) -> String {
        messages::control_response(request_id, response).to_string()
    }

    fn interrupt(&self) -> String {
        messages::interrupt().to_string()
    }

    fn permission_call(&self, tool: &str, input: &Value, folder: &str) -> Result<PermissionCall, String> {
        if let Some(board_tool) = self.board_tool(tool) {
            return Ok(PermissionCall { tool: board_tool.to_owned(), kind: ToolKind::Board, subject: String::new() });
        }
        let Some(known) = find_tool(tool) else {
            return Ok(PermissionCall { tool: tool.to_owned(), kind: ToolKind::Other, subject: input.to_string() });
        };
        let mut subject = known.subject_of(input)?;
        if known.subject.path_field().is_some()
            && let Some(below_folder) = subject.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'))
        {
            subject = below_folder.to_owned();
        }
        Ok(PermissionCall { tool: known.brigade_name.to_owned(), kind: known.kind, subject })
    }

    fn permission_details(&self, tool: &str, input: &Value) -> CallDetails {
        match find_tool(tool) {
            Some(known) => CallDetails::of(tool, input, known.subject.field(), known.change),
            // The subject has all arguments.
            None => CallDetails::of_whole_subject(tool, input),
        }
    }

    fn board_tool<'t>(&self, tool: &'t str) -> Option<&'t str> {
        debug_assert!(BOARD_TOOL_PREFIX.contains(SERVER_NAME));
        tool.strip_prefix(BOARD_TOOL_PREFIX)
    }

    fn about(&self, _tool: &str, input: &Value) -> String {
        subject_of(input).map_or_else(|| input.to_string(), str::to_owned)
    }
}

impl ClaudeProtocol {
    fn control_request(message: &Value) -> AgentEvent {
        let request_id = string_of(&message["request_id"]);
        let request = &message["request"];
        match text_of(&request["subtype"]) {
            "hook_callback" => {
                let name = text_of(&request["callback_id"]);
                hook(format!("{name} {request_id}"), name, &request["input"])
            }
            "can_use_tool" => AgentEvent::PermissionRequested {
                request_id,
                tool: string_of(&request["tool_name"]),
                input: request["input"].clone(),
            },
            "mcp_message" => {
                let message = request["message"].clone();
                let call_id = message["params"]["_meta"]["claudecode/toolUseId"].as_str().map(str::to_owned);
                AgentEvent::McpRequest { request_id, call_id, message }
            }
            _ => AgentEvent::UnknownControlRequest(request_id),
        }
    }

    fn stream_event(&mut self, event: &Value) -> Vec<AgentEvent> {
        match text_of(&event["type"]) {
            "message_start" => {
                self.request = Some(usage_of(&event["message"]["usage"]));
                self.answer = string_of(&event["message"]["id"]);
                vec![AgentEvent::RequestStarted]
            }
            "content_block_delta" => match event["delta"]["text"].as_str() {
                Some(text) => vec![AgentEvent::TextStreamed(text.to_owned())],
                // The input of a tool, or a thought.
                None => vec![AgentEvent::AnswerContinued],
            },
            "ping" => vec![AgentEvent::AnswerContinued],
            "message_delta" => {
                if let Some(usage) = &mut self.request {
                    *usage = updated_usage(*usage, usage_of(&event["usage"]));
                }
                Vec::new()
            }
            "message_stop" => self.request.take().map(AgentEvent::RequestEnded).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the blocks of an answer. Texts of the program itself, such as its errors, have no model.
    fn assistant(&mut self, message: &Value) -> Vec<AgentEvent> {
        if message["model"] == "<synthetic>" {
            return Vec::new();
        }
        let mut events = Vec::new();
        let answer = text_of(&message["id"]);
        if self.answer != answer {
            // After a broken stream the program repeats the request without a stream, and reports only the answer.
            self.answer = answer.to_owned();
            events.extend(self.request.take().map(AgentEvent::RequestEnded));
            events.extend([AgentEvent::RequestStarted, AgentEvent::RequestEnded(usage_of(&message["usage"]))]);
        }
        let blocks = message["content"].as_array().into_iter().flatten();
        events.extend(blocks.filter_map(answer_block));
        events
    }

    fn rate_limit(&mut self, info: &Value) -> Option<AgentEvent> {
        let until = info["resetsAt"].as_i64().map(|seconds| UnixMs(seconds.saturating_mul(1000)));
        match text_of(&info["status"]) {
            "rejected" => {
                self.quota_until = until;
                None
            }
            "allowed_warning" => {
                let used = info["surpassedThreshold"].as_f64().or_else(|| info["utilization"].as_f64())?;
                let used_percent = (used * 100.0).clamp(0.0, 100.0).round() as u32;
                Some(AgentEvent::QuotaLow { used_percent, until: until? })
            }
            _ => None,
        }
    }

    fn prompt_completed(&mut self, result: &Value) -> AgentEvent {
        // A request that was cut off has no end of its own.
        self.request = None;
        let quota_until = self.quota_until.take();
        // `subtype` is "success" even if the model could not be reached.
        let failure = match text_of(&result["subtype"]) {
            limit if limit.starts_with(STOPPED_PREFIX) => Some(AgentFailure::Stopped(limit.to_owned())),
            _ => (result["is_error"] == true).then(|| failure_of(result, quota_until)),
        };
        AgentEvent::PromptCompleted { failure, usage: self.reported_usage(result) }
    }

    /// Returns the usage in a result. Version 2.1.197 has only a total.
    fn reported_usage(&self, result: &Value) -> Option<ReportedUsage> {
        let since_report = usage_of_models(&result["model_usage_since_last_result"]).map(ReportedUsage::SinceReport);
        let total = if self.has_own_total { ReportedUsage::SinceStart } else { ReportedUsage::OfSession };
        since_report.or_else(|| usage_of_models(&result["modelUsage"]).map(total))
    }
}

fn failure_of(result: &Value, quota_until: Option<UnixMs>) -> AgentFailure {
    let errors = result["errors"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text: Vec<&str> = result["result"].as_str().into_iter().chain(errors).collect();
    let text = text.join("; ");
    if text.contains(UNKNOWN_SESSION) {
        return AgentFailure::SessionUnknown;
    }
    if text_of(&result["terminal_reason"]).starts_with("aborted") {
        return AgentFailure::Interrupted;
    }
    if let Some(until) = quota_until {
        return AgentFailure::Quota { reason: text, until };
    }
    match result["api_error_status"].as_u64() {
        Some(401 | 403 | 404) => AgentFailure::WrongSetting(text),
        Some(400) if text.contains(CREDIT_TOO_LOW) => AgentFailure::WrongSetting(text),
        Some(400 | 413) => AgentFailure::Permanent(text),
        None if text.contains(CREDIT_TOO_LOW) => AgentFailure::WrongSetting(text),
        None if text.contains(NO_LOGIN) => {
            AgentFailure::WrongSetting(format!("{text}: start `claude` in a terminal and log in"))
        }
        _ => AgentFailure::Temporary(text),
    }
}

fn hook(request_id: String, name: &str, input: &Value) -> AgentEvent {
    let call_id = string_of(&input["tool_use_id"]);
    match name {
        "PreToolUse" => AgentEvent::ToolStarting {
            request_id,
            call_id,
            tool: string_of(&input["tool_name"]),
            input: input["tool_input"].clone(),
        },
        "PostToolUse" => AgentEvent::ToolEnded { request_id, call_id, failure: None },
        "PostToolUseFailure" => {
            AgentEvent::ToolEnded { request_id, call_id, failure: Some(string_of(&input["error"])) }
        }
        "PreCompact" => AgentEvent::Compacting(request_id),
        // It comes after compactions only, not at the start of the program.
        "SessionStart" => AgentEvent::Compacted(request_id),
        _ => AgentEvent::PromptTaken(request_id),
    }
}

fn answer_block(block: &Value) -> Option<AgentEvent> {
    match text_of(&block["type"]) {
        "text" => Some(AgentEvent::TextCompleted(string_of(&block["text"]))),
        "tool_use" => Some(AgentEvent::ToolCalled {
            call_id: string_of(&block["id"]),
            tool: string_of(&block["name"]),
            input: block["input"].clone(),
        }),
        _ => None,
    }
}

fn tool_results(content: &Value) -> Vec<AgentEvent> {
    let blocks = content.as_array().into_iter().flatten();
    let results = blocks.filter(|block| block["type"] == "tool_result");
    let event = |block: &Value| AgentEvent::ToolResult {
        call_id: string_of(&block["tool_use_id"]),
        text: result_text(&block["content"]),
        is_error: block["is_error"] == true,
    };
    results.map(event).collect()
}

fn result_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

fn retry_event(message: &Value) -> AgentEvent {
    let reason = match message["error_status"].as_u64() {
        Some(status) => format!("{} (status {status})", text_of(&message["error"])),
        None => string_of(&message["error"]),
    };
    let wait = Duration::from_millis(message["retry_delay_ms"].as_f64().map_or(0, |ms| ms.max(0.0) as u64));
    let retries = message["attempt"].as_u64().and_then(|retries| u32::try_from(retries).ok()).unwrap_or(0);
    // The program repeats such requests for minutes.
    let is_refused = matches!(message["error_status"].as_u64(), Some(401 | 403));
    AgentEvent::RequestRetried { reason, wait, retries, is_refused }
}

/// Returns the usage in the format of the Messages API.
fn usage_of(usage: &Value) -> Usage {
    usage_in(usage, ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"])
}

/// Returns the usage in the fields with these names: of input, output, input read from the cache and input written to it.
fn usage_in(usage: &Value, fields: [&str; 4]) -> Usage {
    let [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens] =
        fields.map(|field| usage[field].as_u64().unwrap_or(0));
    Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, ..Usage::default() }
}

/// Returns the later report about a request. Counts that it leaves out keep their values.
fn updated_usage(before: Usage, now: Usage) -> Usage {
    before.each(now, |before, now| if now == 0 { before } else { now })
}

/// Returns the sum of the usage of all models.
fn usage_of_models(by_model: &Value) -> Option<Usage> {
    const FIELDS: [&str; 4] = ["inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens"];
    let models = by_model.as_object()?.values();
    Some(models.fold(Usage::default(), |sum, model| sum.plus(usage_in(model, FIELDS))))
}

fn subject_of(input: &Value) -> Option<&str> {
    SUBJECT_FIELDS.iter().find_map(|field| input[*field].as_str())
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn string_of(value: &Value) -> String {
    text_of(value).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn half_of_character_in_line_is_replaced() {
        let line = r#"{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"a\ud83d"}]}}"#;
        let events = format!("{:?}", ClaudeProtocol::default().read(line));
        assert!(events.contains("a\u{fffd}") && !events.contains("Diagnostic"), "{events}");
    }

    fn hook_request(id: &str, hook: &str) -> String {
        let request = json!({ "subtype": "hook_callback", "callback_id": hook, "input": {} });
        json!({ "type": "control_request", "request_id": id, "request": request }).to_string()
    }

    #[test]
    fn added_text_names_hook_that_asked() {
        let mut protocol = ClaudeProtocol::default();
        for hook in ["PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "SessionStart"] {
            assert_eq!(protocol.read(&hook_request("r", hook)).len(), 1);
            let response = protocol.response(&format!("{hook} r"), ControlResponse::Continue(Some("news")));
            let answer: Value = serde_json::from_str(&response).unwrap();
            assert_eq!(answer["response"]["request_id"], "r");
            let output = &answer["response"]["response"]["hookSpecificOutput"];
            assert_eq!((&output["hookEventName"], &output["additionalContext"]), (&json!(hook), &json!("news")));
        }
    }

    /// Without its folder, a program of the member would pass for another one.
    #[test]
    fn folder_of_member_is_removed_from_paths_only() {
        let subject =
            |tool: &str, input: Value| ClaudeProtocol::default().permission_call(tool, &input, "/ws").unwrap().subject;
        assert_eq!(subject("Read", json!({"file_path": "/ws/a/b"})), "a/b");
        assert_eq!(subject("Bash", json!({"command": "/ws/cargo test"})), "/ws/cargo test");
    }

    #[test]
    fn warning_about_quota_names_threshold_and_reset() {
        let read = |info: Value| {
            let line = json!({ "type": "rate_limit_event", "rate_limit_info": info });
            ClaudeProtocol::default().read(&line.to_string())
        };
        let info =
            json!({ "status": "allowed_warning", "resetsAt": 7, "utilization": 0.94, "surpassedThreshold": 0.9 });
        assert_eq!(read(info), [AgentEvent::QuotaLow { used_percent: 90, until: UnixMs(7_000) }]);
        assert_eq!(read(json!({ "status": "allowed", "resetsAt": 7, "utilization": 0.2 })), []);
    }

    #[test]
    fn every_piece_of_answer_is_an_event() {
        let mut protocol = ClaudeProtocol::default();
        let delta = |delta: Value| json!({ "type": "content_block_delta", "index": 0, "delta": delta });
        let thought = delta(json!({ "type": "thinking_delta", "thinking": "hm" }));
        let input = delta(json!({ "type": "input_json_delta", "partial_json": "{\"content\":\"" }));
        for event in [thought, input, json!({ "type": "ping" })] {
            let line = json!({ "type": "stream_event", "event": event }).to_string();
            assert_eq!(protocol.read(&line), [AgentEvent::AnswerContinued], "{line}");
        }
    }

    #[test]
    fn usage_since_last_result_is_preferred() {
        let usage = |tokens: u64| json!({ "m": { "inputTokens": tokens, "outputTokens": 1 } });
        let reported = |session_usage: &str, result: Value| {
            let mut protocol = ClaudeProtocol::default();
            let response = json!({ "request_id": messages::SESSION_USAGE_ID, "response": { "text": session_usage } });
            assert_eq!(protocol.read(&json!({ "type": "control_response", "response": response }).to_string()), []);
            match &protocol.read(&result.to_string())[..] {
                [AgentEvent::PromptCompleted { usage, .. }] => *usage,
                events => panic!("{events:?}"),
            }
        };
        let tokens = |input_tokens| Usage { input_tokens, output_tokens: 1, ..Usage::default() };
        let old = json!({ "type": "result", "modelUsage": usage(90) });
        let unused = format!("Total cost:            $0.0000\n{NO_USAGE}");
        let used = NO_USAGE.replace(" 0 input", "10 input");
        assert_eq!(reported(&unused, old.clone()), Some(ReportedUsage::SinceStart(tokens(90))));
        assert_eq!(reported(&used, old), Some(ReportedUsage::OfSession(tokens(90))));
        let new = json!({ "type": "result", "modelUsage": usage(90), "model_usage_since_last_result": usage(20) });
        assert_eq!(reported(&used, new), Some(ReportedUsage::SinceReport(tokens(20))));
        assert_eq!(reported(&used, json!({ "type": "result" })), None);
    }

    #[test]
    fn limit_of_program_is_no_end_of_work() {
        let result = json!({ "type": "result", "subtype": "error_max_turns", "is_error": false });
        let events = ClaudeProtocol::default().read(&result.to_string());
        let stopped = AgentFailure::Stopped("error_max_turns".to_owned());
        assert_eq!(events, [AgentEvent::PromptCompleted { failure: Some(stopped), usage: None }]);
    }

    #[test]
    fn repeated_request_after_broken_stream_is_counted() {
        let mut protocol = ClaudeProtocol::default();
        let usage = |tokens: u64| json!({ "input_tokens": tokens, "output_tokens": 1 });
        let stream = |event: Value| json!({ "type": "stream_event", "event": event }).to_string();
        let answer = |id: &str| {
            let message = json!({ "id": id, "model": "m", "content": [], "usage": usage(70) });
            json!({ "type": "assistant", "message": message }).to_string()
        };
        let counted = |tokens| AgentEvent::RequestEnded(usage_of(&usage(tokens)));
        let start = stream(json!({ "type": "message_start", "message": { "id": "a", "usage": usage(50) } }));
        assert_eq!(protocol.read(&start), [AgentEvent::RequestStarted]);
        assert_eq!(protocol.read(&answer("a")), []);
        assert_eq!(protocol.read(&answer("b")), [counted(50), AgentEvent::RequestStarted, counted(70)]);
        assert_eq!(protocol.read(&answer("b")), []);
        assert_eq!(protocol.read(&stream(json!({ "type": "message_stop" }))), []);
        assert_eq!(protocol.read(&answer("c")), [AgentEvent::RequestStarted, counted(70)]);
    }

    #[test]
    fn board_call_has_id_of_tool_call() {
        let message = json!({ "method": "tools/call", "params": { "_meta": { "claudecode/toolUseId": "t1" } } });
        let request = json!({ "subtype": "mcp_message", "message": message });
        let line = json!({ "type": "control_request", "request_id": "r", "request": request });
        let call_id = Some("t1".to_owned());
        let expected = AgentEvent::McpRequest { request_id: "r".to_owned(), call_id, message };
        assert_eq!(ClaudeProtocol::default().read(&line.to_string()), [expected]);
    }

    #[test]
    fn unknown_control_request_is_refused() {
        let mut protocol = ClaudeProtocol::default();
        let line = json!({ "type": "control_request", "request_id": "r", "request": { "subtype": "new_dialog" } });
        assert_eq!(protocol.read(&line.to_string()), [AgentEvent::UnknownControlRequest("r".to_owned())]);
        let answer: Value = serde_json::from_str(&protocol.response("r", ControlResponse::Refuse)).unwrap();
        assert_eq!((&answer["response"]["subtype"], &answer["response"]["request_id"]), (&json!("error"), &json!("r")));
    }
}
