//! The conversations that are recorded: the answers of the model, and what holds after the run.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::testkit::model_server::{
    Part, ReceivedRequest, Reply, call, error_reply, full_response, streamed_answer, text,
};
use crate::testkit::workspace::TestWorkspace;

/// One conversation.
pub struct Scenario {
    pub name: &'static str,
    pub plan: &'static str,
    /// The model's answer to the request with this number.
    pub answer: fn(&ReceivedRequest, usize) -> Reply,
    /// Asserts what holds after the team ended with this exit code.
    pub check: fn(&TestWorkspace, Option<i32>),
}

pub const PLAN: &str = "## Write hello\nverify: grep -q hello hello.txt\nWrite hello into hello.txt.\n";

pub const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "task", plan: PLAN, answer: answer_task, check: check_task },
    Scenario { name: "parallel", plan: PLAN, answer: answer_parallel, check: check_task },
    Scenario { name: "no-report", plan: PLAN, answer: answer_without_report, check: check_task },
    // With the token of a subscription. Without one, the program knows no quota.
    Scenario { name: "quota", plan: PLAN, answer: answer_after_quota, check: check_quota },
    Scenario { name: "wrong-key", plan: PLAN, answer: refuse_key, check: check_wrong_key },
];

pub fn bash(id: &str, command: &str) -> Part {
    call(id, "Bash", json!({ "command": command }))
}

pub fn report(id: &str) -> Part {
    let input = json!({ "task_id": 1, "status": "completed", "result": "hello.txt has hello" });
    call(id, "mcp__brigade__task_update", input)
}

/// Some versions ask for the server's state or count tokens first.
fn answer_other(request: &ReceivedRequest) -> Option<Reply> {
    if request.head.starts_with("head ") || request.head.starts_with("get ") {
        return Some(full_response(200, "", ""));
    }
    request.head.contains("count_tokens").then(|| full_response(200, "", "{\"input_tokens\":10}"))
}

/// Returns true for a request to the model.
pub fn is_model_request(request: &ReceivedRequest) -> bool {
    answer_other(request).is_none()
}

/// The number of answers with tool calls that the request's context has. The program itself adds answers with texts, such as errors.
fn answers(request: &ReceivedRequest) -> usize {
    let messages = request.body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let calls_tools = |message: &&Value| message["content"].to_string().contains("\"tool_use\"");
    messages.iter().filter(|message| message["role"] == "assistant").filter(calls_tools).count()
}

pub fn answer_task(request: &ReceivedRequest, _: usize) -> Reply {
    if let Some(reply) = answer_other(request) {
        return reply;
    }
    match answers(request) {
        0 => streamed_answer(&[text("I write the file."), bash("toolu_1", "echo hello > hello.txt")]),
        1 => streamed_answer(&[report("toolu_2")]),
        _ => streamed_answer(&[text("Done.")]),
    }
}

fn answer_parallel(request: &ReceivedRequest, _: usize) -> Reply {
    if let Some(reply) = answer_other(request) {
        return reply;
    }
    match answers(request) {
        0 => streamed_answer(&[bash("toolu_1", "echo hello > hello.txt"), bash("toolu_2", "exit 3")]),
        1 => streamed_answer(&[report("toolu_3")]),
        _ => streamed_answer(&[text("Done.")]),
    }
}

fn answer_without_report(request: &ReceivedRequest, _: usize) -> Reply {
    if let Some(reply) = answer_other(request) {
        return reply;
    }
    match answers(request) {
        0 => streamed_answer(&[bash("toolu_1", "echo hello > hello.txt")]),
        _ => streamed_answer(&[text("The file is written.")]),
    }
}

/// Refuses the first requests, until the quota window ends two seconds later.
fn answer_after_quota(request: &ReceivedRequest, before: usize) -> Reply {
    if before > 1 || answers(request) > 0 {
        return answer_task(request, before);
    }
    answer_other(request).unwrap_or_else(|| refuse_quota(2))
}

/// The answer while the quota of a subscription is used up. It resets after this many seconds.
pub fn refuse_quota(resets_after_s: u64) -> Reply {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let headers = format!(
        "anthropic-ratelimit-unified-status: rejected\r\nanthropic-ratelimit-unified-reset: {0}\r\n\
         anthropic-ratelimit-unified-representative-claim: five_hour\r\nanthropic-ratelimit-unified-5h-reset: {0}\r\n",
        now + resets_after_s
    );
    error_reply(429, &headers, "rate_limit_error", "the limit is reached")
}

/// The team waits for the end of the quota window, and counts no failure.
fn check_quota(workspace: &TestWorkspace, code: Option<i32>) {
    check_task(workspace, code);
    let events = workspace.read(".team/events.jsonl");
    assert!(events.contains("has used up its quota until"), "{events}");
    let task = workspace.task(1);
    assert!(task.get("failures").is_none_or(|failures| failures == 0), "{task}");
}

fn refuse_key(request: &ReceivedRequest, _: usize) -> Reply {
    answer_other(request).unwrap_or_else(|| error_reply(401, "", "authentication_error", "invalid x-api-key"))
}

/// The task is completed once, by one merge, with the evidence of its verify command.
pub fn check_task(workspace: &TestWorkspace, code: Option<i32>) {
    let task = workspace.task(1);
    assert_eq!((code, task["status"].as_str()), (Some(0), Some("completed")), "{task}");
    assert!(task["result"]["evidence"].as_str().unwrap().contains("verify exited 0"), "{task}");
    let completions = workspace.events().iter().filter(|event| is_completion(event)).count();
    assert_eq!(completions, 1);
}

fn is_completion(event: &Value) -> bool {
    event["kind"] == "task_completed"
}

/// A wrong key ends the run with the exit code of a wrong setting, and counts no attempt.
fn check_wrong_key(workspace: &TestWorkspace, code: Option<i32>) {
    let task = workspace.task(1);
    assert_eq!((code, task["status"].as_str()), (Some(2), Some("pending")), "{task}");
    assert!(task.get("failures").is_none_or(|failures| failures == 0), "{task}");
}
