//! The tool calls of a run's models. Each has a number that its effect carries, so that a repeated effect is noticed. The requests
//! of each model are compared: within a context, each begins with the one before.

use std::collections::{BTreeMap, BTreeSet};

use brigade::domain::agent::transcript::Block;
use brigade::domain::task::TaskId;
use brigade::ports::ModelRequest;

/// The start of the result of a call that was never made.
const NOT_CALLED: &str = "Not called:";

/// A text marked with its call.
pub fn marked(text: &str, call: &str) -> String {
    format!("{text} {call}")
}

/// The call in a marked text.
pub fn call_of(text: &str) -> Option<&str> {
    let last = text.lines().next()?.rsplit(' ').next()?;
    last.strip_prefix('c').filter(|number| number.parse::<u64>().is_ok()).map(|_| last)
}

/// The effects of the calls.
#[derive(Default)]
pub struct Calls {
    ran: BTreeSet<String>,
    created: BTreeMap<String, TaskId>,
    sent: BTreeSet<(String, String)>,
    /// Calls with an effect; a power cut may undo their records.
    with_effect: BTreeSet<String>,
    /// The parts of each member's last request for a turn.
    last_requests: BTreeMap<String, Vec<String>>,
}

impl Calls {
    /// Records that a tool runs for the call. Returns the violation, if any, as the other methods do.
    pub fn record_run(&mut self, call: &str) -> Option<String> {
        self.with_effect.insert(call.to_owned());
        (!self.ran.insert(call.to_owned())).then(|| format!("no call twice: {call} runs again"))
    }

    pub fn record_creation(&mut self, subject: &str, id: TaskId) -> Option<String> {
        let call = call_of(subject)?;
        self.with_effect.insert(call.to_owned());
        let former = self.created.insert(call.to_owned(), id).filter(|former| *former != id)?;
        Some(format!("no call twice: {call} made {former} and {id}"))
    }

    pub fn record_message(&mut self, content: &str, to: &str) -> Option<String> {
        let call = call_of(content)?;
        self.with_effect.insert(call.to_owned());
        let is_new = self.sent.insert((call.to_owned(), to.to_owned()));
        (!is_new).then(|| format!("no call twice: {call} wrote to {to} again"))
    }

    pub fn check_request(&mut self, request: &ModelRequest) -> Vec<String> {
        let blocks = request.messages.iter().flat_map(|message| &message.content);
        let results = blocks.filter_map(|block| match block {
            Block::ToolResult { tool_use_id, content, .. } => self.check_result(tool_use_id, content),
            _ => None,
        });
        let mut wrong: Vec<String> = results.collect();
        wrong.extend(self.check_prefix(request));
        wrong
    }

    fn check_prefix(&mut self, request: &ModelRequest) -> Option<String> {
        let parts = parts_of(request);
        let last = self.last_requests.entry(request.teammate.to_string()).or_default();
        // The first request of a context has one message. A member that was started again can have other instructions.
        let is_repeated = parts.starts_with(last) || request.messages.len() == 1 || last.first() != parts.first();
        let wrong = (!is_repeated).then(|| {
            let at = last.iter().zip(&parts).position(|(before, now)| before != now);
            format!("identity stays: {} does not repeat its last request from part {at:?}", request.teammate)
        });
        if !request.is_for_summary() {
            *last = parts;
        }
        wrong
    }

    fn check_result(&self, call: &str, content: &str) -> Option<String> {
        let is_denied = content.starts_with(NOT_CALLED) && self.with_effect.contains(call);
        is_denied.then(|| format!("no call twice: {call} was made: {content}"))
    }

    /// Results are not synced; a model that learns of a power cut checks first.
    pub fn power_was_cut(&mut self) {
        self.with_effect.clear();
        self.last_requests.clear();
    }
}

/// The system prompt and the blocks of a request.
fn parts_of(request: &ModelRequest) -> Vec<String> {
    let blocks = request.messages.iter().flat_map(|message| message.content.iter().map(|block| (message.role, block)));
    std::iter::once(request.system.to_string()).chain(blocks.map(|part| format!("{part:?}"))).collect()
}
