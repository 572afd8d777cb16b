//! The answers of the scripted models: random ones, and those that end the work in the calm phase.

use brigade::domain::agent::transcript::Block;
use brigade::domain::team::name::LEAD;
use brigade::ports::ModelRequest;
use fastrand::Rng;
use serde_json::{Value, json};

use super::agents::ScriptedModels;
use super::calls::marked;

/// The length of an approval id, in characters.
const ID_DIGITS: usize = 8;

/// The tool that answers a request to stop.
const STOP: &str = "shutdown_response";

type ToolCall = (&'static str, Value);

/// A request that waits for this model's answer.
#[derive(Clone, PartialEq)]
struct OpenRequest {
    tool: &'static str,
    id: String,
}

/// A random answer.
pub fn random_reply(models: &ScriptedModels, rng: &mut Rng, request: &ModelRequest) -> Vec<Block> {
    if request.tools.is_empty() {
        return vec![Block::text("A summary.")];
    }
    let mut calls = Vec::new();
    for _ in 0..rng.usize(..3) {
        let mark = models.next_call();
        let is_lead = &*request.teammate == LEAD;
        let call = if is_lead { lead_call(models, rng, &mark) } else { some_call(models, rng, &mark) };
        calls.push((mark, call));
    }
    let open = requests_in(texts(request));
    if let Some(open) = open.last().filter(|_| rng.u8(..100) < 50) {
        let open = if rng.u8(..4) == 0 { random_request(rng, &open_requests(request)) } else { open.clone() };
        let mark = models.next_call();
        calls.push((mark.clone(), answer(&open, rng.u8(..4) > 0, &mark)));
    }
    if let Some(task) = task_at_hand(request).filter(|_| rng.u8(..100) < 60) {
        let status = ["completed", "completed", "completed", "completed", "failed", "pending"][rng.usize(..6)];
        let call = ("task_update", json!({"task_id": task, "status": status, "result": "so it came out"}));
        calls.push((models.next_call(), call));
    }
    blocks(calls, "Well.")
}

fn open_requests(request: &ModelRequest) -> Vec<OpenRequest> {
    requests_in(texts(request))
}

fn random_request(rng: &mut Rng, all: &[OpenRequest]) -> OpenRequest {
    all[rng.usize(..all.len())].clone()
}

fn some_call(models: &ScriptedModels, rng: &mut Rng, mark: &str) -> ToolCall {
    let known = [models.members.as_slice(), &["lead", "human", "stranger"]].concat();
    let (recipient, task) = (known[rng.usize(..known.len())], rng.u64(1..9));
    match rng.u8(..14) {
        0..=3 => ("work", json!({"ms": rng.u64(..8000), "call": mark})),
        4..=5 => ("send_message", json!({"to": recipient, "content": marked("well?", mark)})),
        6 => {
            let subject = marked("more", mark);
            ("task_create", json!({"subject": subject, "description": "of it", "blocked_by": [task]}))
        }
        7 => ("claim_task", json!({"task_id": task})),
        8 => ("task_update", json!({"task_id": task, "status": "completed", "result": "not mine"})),
        9 => ("task_update", json!({"task_id": task, "add_blocked_by": [rng.u64(1..9)]})),
        10 => ("read_inbox", json!({})),
        11..=12 => write(mark),
        _ => ("plan_approval", json!({"plan": marked("to do it", mark)})),
    }
}

fn lead_call(models: &ScriptedModels, rng: &mut Rng, mark: &str) -> ToolCall {
    let known = [models.members.as_slice(), &["human", "dave"]].concat();
    let (recipient, task) = (known[rng.usize(..known.len())], rng.u64(1..9));
    match rng.u8(..20) {
        0..=2 => ("work", json!({"ms": rng.u64(..8000), "call": mark})),
        3..=4 => ("task_create", json!({"subject": marked("a part", mark), "description": "of the goal"})),
        5 => {
            let subject = marked("a later part", mark);
            ("task_create", json!({"subject": subject, "description": "of the goal", "blocked_by": [task]}))
        }
        6..=7 => ("send_message", json!({"to": recipient, "content": marked("how is it?", mark)})),
        8 => ("broadcast", json!({"content": marked("all of you", mark)})),
        9 => ("list_teammates", json!({})),
        10 => ("task_list", json!({})),
        11..=14 => {
            let status = ["completed", "failed", "pending", "pending"][rng.usize(..4)];
            let result = "the lead wants it so";
            ("task_update", json!({"task_id": task, "status": status, "result": result, "force": rng.bool()}))
        }
        15 => ("task_update", json!({"task_id": task, "priority": rng.i64(0..3)})),
        16 => ("shutdown_request", json!({"teammate": recipient})),
        17 => ("spawn_teammate", json!({"name": recipient, "role": "coder", "prompt": "Help."})),
        18 => write(mark),
        _ => ("goal_done", json!({"summary": "it is reached"})),
    }
}

fn write(mark: &str) -> ToolCall {
    (super::tools::WRITE, json!({"path": "notes.txt", "content": marked("noted", mark)}))
}

/// An answer in the calm phase: approves every request and completes every task.
pub fn calm_reply(models: &ScriptedModels, request: &ModelRequest) -> Vec<Block> {
    let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
    let texts_of_last: Vec<&str> = last.iter().filter_map(text_of).collect();
    let open = requests_in(texts_of_last.iter().copied());
    if !open.is_empty() {
        let approved = |open: &OpenRequest| {
            let mark = models.next_call();
            // A member that stops reads no mail any more.
            (mark.clone(), answer(open, open.tool != STOP, &mark))
        };
        return blocks(open.iter().map(approved).collect(), "Done.");
    }
    let is_write_refused = |block: &Block| matches!(block, Block::ToolResult { content, .. } if content.contains("until the plan is approved"));
    let is_due = |text: &&str| {
        ["<auto-claimed>", "You still hold"].iter().any(|start| text.starts_with(start))
            || (text.starts_with("<inbox>") && text.contains("(approve: "))
    };
    let mark = models.next_call();
    let calls = match task_at_hand(request) {
        Some(_) if last.iter().any(is_write_refused) => {
            vec![(mark.clone(), ("plan_approval", json!({"plan": marked("to do it", &mark)})))]
        }
        Some(task) if texts_of_last.iter().any(is_due) => {
            let completed = json!({"task_id": task, "status": "completed", "result": "done"});
            vec![(mark, ("task_update", completed))]
        }
        _ => Vec::new(),
    };
    blocks(calls, "Done.")
}

fn blocks(calls: Vec<(String, ToolCall)>, otherwise: &str) -> Vec<Block> {
    if calls.is_empty() {
        return vec![Block::text(otherwise)];
    }
    let block = |(id, (tool, input)): (String, ToolCall)| Block::tool_use(id, tool, input);
    calls.into_iter().map(block).collect()
}

fn answer(open: &OpenRequest, approve: bool, mark: &str) -> ToolCall {
    let mut input = json!({"request_id": open.id, "approve": approve});
    if open.tool != STOP {
        input["feedback"] = marked("go on", mark).into();
    }
    (open.tool, input)
}

/// The requests in these texts, from mail or a reminder.
fn requests_in<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<OpenRequest> {
    let mut all = Vec::new();
    for line in texts.flat_map(str::lines) {
        let tool = if line.starts_with("[plan_approval_request] ") || line.contains(" waits for your answer to plan ") {
            "plan_approval"
        } else if line.starts_with("[shutdown_request] from lead ") {
            STOP
        } else if line.contains("): Review of task ") || line.contains(" waits for your answer to review ") {
            "review"
        } else {
            continue;
        };
        let marks = ["(request_id: ", "your answer to plan ", "your answer to review "];
        let id = marks.iter().find_map(|mark| line.split_once(mark)?.1.get(..ID_DIGITS));
        all.extend(id.map(|id| OpenRequest { tool, id: id.to_owned() }));
    }
    all
}

fn text_of(block: &Block) -> Option<&str> {
    if let Block::Text { text } = block { Some(text) } else { None }
}

/// The texts of a request.
pub fn texts(request: &ModelRequest) -> impl DoubleEndedIterator<Item = &str> {
    request.messages.iter().flat_map(|message| &message.content).filter_map(text_of)
}

/// The task that the context was last given.
fn task_at_hand(request: &ModelRequest) -> Option<u64> {
    let found = texts(request).rev().find_map(|text| text.rsplit_once("<auto-claimed>Task #"));
    found?.1.split(':').next()?.parse().ok()
}
