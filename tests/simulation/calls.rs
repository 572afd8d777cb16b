//! The tool calls of a run's models: each has a number that goes with what it does, so that what is done twice is seen.

use std::collections::{BTreeMap, BTreeSet};

use brigade::domain::task::TaskId;

/// What calls that were never made are told.
const NOT_CALLED: &str = "Not called:";

/// A text that says which call it is of.
pub fn marked(text: &str, call: &str) -> String {
    format!("{text} {call}")
}

/// The call that a text is of.
pub fn call_of(text: &str) -> Option<&str> {
    let last = text.lines().next()?.rsplit(' ').next()?;
    last.strip_prefix('c').filter(|number| number.parse::<u64>().is_ok()).map(|_| last)
}

/// What calls did.
#[derive(Default)]
pub struct Calls {
    ran: BTreeSet<String>,
    created: BTreeMap<String, TaskId>,
    sent: BTreeSet<(String, String)>,
    /// All that did something; a power cut may take the records of that.
    made: BTreeSet<String>,
}

impl Calls {
    /// A tool runs for the call. Says what is wrong with that, as the others do.
    pub fn ran(&mut self, call: &str) -> Option<String> {
        self.made.insert(call.to_owned());
        (!self.ran.insert(call.to_owned())).then(|| format!("no call twice: {call} runs again"))
    }

    /// A task appeared.
    pub fn created(&mut self, subject: &str, id: TaskId) -> Option<String> {
        let call = call_of(subject)?;
        self.made.insert(call.to_owned());
        let former = self.created.insert(call.to_owned(), id).filter(|former| *former != id)?;
        Some(format!("no call twice: {call} made {former} and {id}"))
    }

    /// A message was accepted.
    pub fn sent(&mut self, content: &str, to: &str) -> Option<String> {
        let call = call_of(content)?;
        self.made.insert(call.to_owned());
        let is_new = self.sent.insert((call.to_owned(), to.to_owned()));
        (!is_new).then(|| format!("no call twice: {call} wrote to {to} again"))
    }

    /// A model reads this result of a call.
    pub fn check_result(&self, call: &str, content: &str) -> Option<String> {
        let is_denied = content.starts_with(NOT_CALLED) && self.made.contains(call);
        is_denied.then(|| format!("no call twice: {call} was made: {content}"))
    }

    /// Results are not synced; a model that is told so looks first.
    pub fn power_was_cut(&mut self) {
        self.made.clear();
    }
}
