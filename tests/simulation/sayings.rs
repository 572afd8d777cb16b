//! What the scripted models say: anything that may be said, or, in the calm, what ends the work.

use brigade::domain::name::LEAD;
use brigade::domain::transcript::Block;
use brigade::ports::ModelRequest;
use fastrand::Rng;
use serde_json::{Value, json};

use super::calls::marked;
use super::minds::Minds;

/// How a request for a decision ends its id, wherever it stands.
const ID_DIGITS: usize = 8;

/// The tool that answers a request to stop.
const STOP: &str = "shutdown_response";

/// A call of a tool.
type Call = (&'static str, Value);

/// Something that waits for this model's answer.
#[derive(Clone, PartialEq)]
struct Asked {
    tool: &'static str,
    id: String,
}

/// What is said on an ordinary day.
pub fn improvise(minds: &Minds, rng: &mut Rng, request: &ModelRequest) -> Vec<Block> {
    if request.tools.is_empty() {
        return vec![Block::text("A summary.")];
    }
    let mut calls = Vec::new();
    for _ in 0..rng.usize(..3) {
        let mark = minds.next_call();
        let is_lead = &*request.teammate == LEAD;
        let call = if is_lead { lead_call(minds, rng, &mark) } else { some_call(minds, rng, &mark) };
        calls.push((mark, call));
    }
    let asked = asked(texts(request));
    if let Some(asked) = asked.last().filter(|_| rng.u8(..100) < 50) {
        let asked = if rng.u8(..4) == 0 { asked_of(rng, &asked_all(request)) } else { asked.clone() };
        let mark = minds.next_call();
        calls.push((mark.clone(), answer(&asked, rng.u8(..4) > 0, &mark)));
    }
    if let Some(task) = task_at_hand(request).filter(|_| rng.u8(..100) < 60) {
        let status = ["completed", "completed", "completed", "completed", "failed", "pending"][rng.usize(..6)];
        let call = ("task_update", json!({"task_id": task, "status": status, "result": "so it came out"}));
        calls.push((minds.next_call(), call));
    }
    said(calls, "Well.")
}

fn asked_all(request: &ModelRequest) -> Vec<Asked> {
    asked(texts(request))
}

fn asked_of(rng: &mut Rng, all: &[Asked]) -> Asked {
    all[rng.usize(..all.len())].clone()
}

fn some_call(minds: &Minds, rng: &mut Rng, mark: &str) -> Call {
    let known = [minds.members.as_slice(), &["lead", "human", "nobody"]].concat();
    let (somebody, task) = (known[rng.usize(..known.len())], rng.u64(1..9));
    match rng.u8(..14) {
        0..=3 => ("work", json!({"ms": rng.u64(..8000), "call": mark})),
        4..=5 => ("send_message", json!({"to": somebody, "content": marked("well?", mark)})),
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

fn lead_call(minds: &Minds, rng: &mut Rng, mark: &str) -> Call {
    let known = [minds.members.as_slice(), &["human", "dave"]].concat();
    let (somebody, task) = (known[rng.usize(..known.len())], rng.u64(1..9));
    match rng.u8(..20) {
        0..=2 => ("work", json!({"ms": rng.u64(..8000), "call": mark})),
        3..=4 => ("task_create", json!({"subject": marked("a part", mark), "description": "of the goal"})),
        5 => {
            let subject = marked("a later part", mark);
            ("task_create", json!({"subject": subject, "description": "of the goal", "blocked_by": [task]}))
        }
        6..=7 => ("send_message", json!({"to": somebody, "content": marked("how is it?", mark)})),
        8 => ("broadcast", json!({"content": marked("all of you", mark)})),
        9 => ("list_teammates", json!({})),
        10 => ("task_list", json!({})),
        11..=14 => {
            let status = ["completed", "failed", "pending", "pending"][rng.usize(..4)];
            let result = "the lead wants it so";
            ("task_update", json!({"task_id": task, "status": status, "result": result, "force": rng.bool()}))
        }
        15 => ("task_update", json!({"task_id": task, "priority": rng.i64(0..3)})),
        16 => ("shutdown_request", json!({"teammate": somebody})),
        17 => ("spawn_teammate", json!({"name": somebody, "role": "coder", "prompt": "Help."})),
        18 => write(mark),
        _ => ("goal_done", json!({"summary": "it is reached"})),
    }
}

fn write(mark: &str) -> Call {
    (super::tools::WRITE, json!({"path": "notes.txt", "content": marked("noted", mark)}))
}

/// What is said in the calm: what was asked is approved, and every task is completed.
pub fn settle(minds: &Minds, request: &ModelRequest) -> Vec<Block> {
    let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
    let told: Vec<&str> = last.iter().filter_map(text_of).collect();
    let asked = asked(told.iter().copied());
    if !asked.is_empty() {
        let approved = |asked: &Asked| {
            let mark = minds.next_call();
            // Who stops reads no mail any more.
            (mark.clone(), answer(asked, asked.tool != STOP, &mark))
        };
        return said(asked.iter().map(approved).collect(), "Done.");
    }
    let is_shut = |block: &Block| matches!(block, Block::ToolResult { content, .. } if content.contains("until your plan is approved"));
    let is_due = |text: &&str| {
        ["<auto-claimed>", "You still hold"].iter().any(|start| text.starts_with(start))
            || (text.starts_with("<inbox>") && text.contains("(approve: "))
    };
    let mark = minds.next_call();
    let calls = match task_at_hand(request) {
        Some(_) if last.iter().any(is_shut) => {
            vec![(mark.clone(), ("plan_approval", json!({"plan": marked("to do it", &mark)})))]
        }
        Some(task) if told.iter().any(is_due) => {
            let completed = json!({"task_id": task, "status": "completed", "result": "done"});
            vec![(mark, ("task_update", completed))]
        }
        _ => Vec::new(),
    };
    said(calls, "Done.")
}

fn said(calls: Vec<(String, Call)>, otherwise: &str) -> Vec<Block> {
    if calls.is_empty() {
        return vec![Block::text(otherwise)];
    }
    let block = |(id, (tool, input)): (String, Call)| Block::ToolUse { id, name: tool.to_owned(), input };
    calls.into_iter().map(block).collect()
}

fn answer(asked: &Asked, approve: bool, mark: &str) -> Call {
    let mut input = json!({"request_id": asked.id, "approve": approve});
    if asked.tool != STOP {
        input["feedback"] = marked("go on", mark).into();
    }
    (asked.tool, input)
}

/// What these texts ask to be decided: by mail, or by a reminder.
fn asked<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<Asked> {
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
        all.extend(id.map(|id| Asked { tool, id: id.to_owned() }));
    }
    all
}

fn text_of(block: &Block) -> Option<&str> {
    if let Block::Text { text } = block { Some(text) } else { None }
}

/// What a request says in words.
pub fn texts(request: &ModelRequest) -> impl DoubleEndedIterator<Item = &str> {
    request.messages.iter().flat_map(|message| &message.content).filter_map(text_of)
}

/// The number of the task the context was last given.
fn task_at_hand(request: &ModelRequest) -> Option<u64> {
    let found = texts(request).rev().find_map(|text| text.rsplit_once("<auto-claimed>Task #"));
    found?.1.split(':').next()?.parse().ok()
}
