//! What a model is sent: identity, tasks and mail as text, and the context built from a transcript.
//!
//! Text of others (task subjects, mail) is defused before it stands beside our own tags, so that nothing but the harness
//! can say `<identity>`, `<inbox>` or `<auto-claimed>`.

use std::fmt::Write as _;

use super::message::{Message, MessageType};
use super::record::RosterMember;
use super::tags::defuse;
use super::task::Task;
use super::transcript::{Block, Entry, MessageRecord, Record, Role};

/// Who an agent is.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its role.
    pub role: &'a str,
    /// Its team.
    pub team: &'a str,
}

impl Identity<'_> {
    /// The first line of every system prompt and identity block.
    #[must_use]
    pub fn line(&self) -> String {
        format!("You are '{}', role: {}, team: {}", self.name, defuse(self.role), self.team)
    }
}

/// The identity block: who the agent is, who is in the team, what it works on and where, all from durable state.
#[must_use]
pub fn identity_block(
    identity: Identity<'_>,
    roster: &[RosterMember],
    task: Option<&Task>,
    place: Option<&str>,
) -> String {
    let mut text = format!("<identity>{}.\nThe team:\n", identity.line());
    for member in roster {
        let status = serde_json::to_string(&member.status).unwrap_or_default();
        // Writing into a string cannot fail.
        let _ =
            writeln!(text, "- {} (role: {}): {}", defuse(&member.name), defuse(&member.role), status.trim_matches('"'));
    }
    match task {
        Some(task) => {
            let _ = writeln!(
                text,
                "You hold task {} (attempt {}): {}\n{}",
                task.id,
                task.attempt,
                defuse(&task.subject),
                defuse(&task.description)
            );
            if let Some(verify) = &task.verify {
                let _ = writeln!(text, "{}", verify_line(verify));
            }
            if let Some(place) = place {
                let _ = writeln!(text, "{}", defuse(place));
            }
        }
        None => text.push_str("You hold no task.\n"),
    }
    text.push_str("Continue your work.</identity>");
    text
}

/// A claimed task as the model reads it; `place` says where it is worked on, where that is not the workspace.
#[must_use]
pub fn claimed_block(task: &Task, place: Option<&str>) -> String {
    let mut text = format!("<auto-claimed>Task {}: {}\n", task.id, defuse(&task.subject));
    // In front of what is asked for: a small model took a bare command that stood last for the call it was to make.
    if let Some(verify) = &task.verify {
        let _ = writeln!(text, "{}", verify_line(verify));
    }
    if !task.description.is_empty() {
        text.push_str(&defuse(&task.description));
        text.push('\n');
    }
    if let Some(place) = place {
        let _ = writeln!(text, "{}", defuse(place));
    }
    if task.failures > 0
        && let Some(result) = &task.result
    {
        let is_failure = result.is_failure() || result.evidence.is_empty();
        let (how, before) = if is_failure { ("failed", "") } else { ("ended", result.evidence.as_str()) };
        let _ = writeln!(text, "An earlier attempt {how}: {}", defuse(&result.summary));
        if !before.is_empty() {
            let _ = writeln!(text, "Before that: {}", defuse(before));
        }
    }
    text.push_str("</auto-claimed>");
    text
}

/// What a holder is told about its task's verify command.
#[must_use]
pub fn verify_line(verify: &str) -> String {
    format!("Verify command, run by itself when you report `completed`; it must exit 0: `{}`", defuse(verify))
}

/// Mail as the model reads it, in the order it came.
#[must_use]
pub fn inbox_block(messages: &[Message]) -> String {
    let mut text = String::from("<inbox>\n");
    for message in messages {
        let _ = write!(text, "[{}] from {}", message.kind.as_str(), defuse(&message.from));
        if let Some(request_id) = &message.request_id {
            let _ = write!(text, " (request_id: {})", defuse(request_id));
        }
        if let Some(approve) = message.approve {
            let _ = write!(text, " (approve: {approve})");
        }
        let _ = write!(text, ": {}", defuse(&message.content));
        for (label, more) in [("plan", &message.plan), ("feedback", &message.feedback)] {
            if let Some(more) = more.as_ref().filter(|more| **more != message.content) {
                let _ = write!(text, "\n{label}: {}", defuse(more));
            }
        }
        text.push('\n');
    }
    text.push_str("</inbox>");
    text
}

/// Whether a text that was told to a model asks it for something a later process should still answer: a goal, or mail that
/// is neither a notice nor a request to stop, which ends with the process it was made in.
#[must_use]
pub fn asks(text: &str) -> bool {
    let needs_no_answer = [MessageType::IdleNotice, MessageType::ShutdownRequest];
    let is_mail = |line: &str| {
        MessageType::ALL
            .iter()
            .any(|kind| !needs_no_answer.contains(kind) && line.starts_with(&format!("[{}] from ", kind.as_str())))
    };
    text.starts_with("<goal>") || (text.starts_with("<inbox>") && text.lines().any(is_mail))
}

/// The summary a compaction left, as the model reads it.
#[must_use]
pub fn summary_block(summary: &str) -> String {
    format!("<summary>What you did and learned so far, in your own words:\n{}</summary>", defuse(summary))
}

/// What stands between a summary and the list of steps that is kept beside it.
const STEPS_HEADING: &str = "\n\nYour list of steps, as the tool `todo` keeps it:\n";

/// The summary with the list of steps, which a model would otherwise forget with its context.
#[must_use]
pub fn summary_with_steps(summary: String, steps: &str) -> String {
    if summary.is_empty() || steps.trim().is_empty() { summary } else { summary + STEPS_HEADING + steps }
}

/// The list of steps a model kept by the tool `todo`, as its transcript tells: by the last call that was carried out, or beside a summary.
#[must_use]
pub fn steps_kept(records: &[Record]) -> String {
    let mut steps = String::new();
    let mut asked: Vec<(&str, &str)> = Vec::new();
    for record in records {
        let message = match &record.entry {
            Entry::Message(message) => message,
            Entry::Compaction { summary, .. } => {
                if let Some((_, kept)) = summary.rsplit_once(STEPS_HEADING) {
                    kept.clone_into(&mut steps);
                }
                continue;
            }
        };
        if message.role == Role::Assistant {
            // Results stand behind the answer that asked for them.
            asked.clear();
        }
        for block in &message.content {
            match block {
                Block::ToolUse { id, name, input } if name == "todo" => {
                    asked.extend(
                        input.get("content").and_then(|content| content.as_str()).map(|list| (id.as_str(), list)),
                    );
                }
                Block::ToolResult { tool_use_id, is_error: false, .. } => {
                    let kept = asked.iter().find(|(id, _)| id == tool_use_id);
                    kept.into_iter().for_each(|(_, list)| (*list).clone_into(&mut steps));
                }
                _ => {}
            }
        }
    }
    steps
}

/// A context: the part of a transcript a model still reads, as messages that alternate between user and assistant.
///
/// The first block is a place for the identity, which the caller renders anew while the context is short.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Context {
    /// The summary of what lies before it.
    pub summary: Option<String>,
    /// The messages behind the summary, as recorded.
    pub messages: Vec<MessageRecord>,
    /// How many records the transcript has in all.
    pub records: u64,
}

impl Context {
    /// The context a transcript leaves: what stands behind its last compaction.
    #[must_use]
    pub fn from_records(records: &[Record]) -> Self {
        let mut context = Self::default();
        for record in records {
            context.push(&record.entry);
        }
        // A transcript that was begun anew in the middle of a turn has results of calls that no model knows of.
        let is_result = |block: &Block| matches!(block, Block::ToolResult { .. });
        for message in context.messages.iter_mut().take_while(|message| message.role == Role::User) {
            message.content.retain(|block| !is_result(block));
        }
        context
    }

    /// Adds a record.
    pub fn push(&mut self, entry: &Entry) {
        self.records += 1;
        match entry {
            Entry::Message(message) => self.messages.push(message.clone()),
            Entry::Compaction { summary, .. } => {
                self.messages.clear();
                self.summary = Some(summary.clone());
            }
        }
    }

    /// The tool calls at the end that no result answers: a process that ended in between left them open.
    #[must_use]
    pub fn open_calls(&self) -> Vec<(String, String)> {
        let Some(asked) = self.messages.iter().rposition(|message| message.role == Role::Assistant) else {
            return Vec::new();
        };
        let answered = |call: &str| {
            self.messages[asked + 1..]
                .iter()
                .flat_map(|message| &message.content)
                .any(|block| matches!(block, Block::ToolResult { tool_use_id, .. } if tool_use_id == call))
        };
        let calls = self.messages[asked].content.iter().filter_map(|block| match block {
            Block::ToolUse { id, name, .. } if !answered(id) => Some((id.clone(), name.clone())),
            _ => None,
        });
        calls.collect()
    }

    /// The mail the context carries, by key.
    pub fn delivered(records: &[Record]) -> impl Iterator<Item = &str> {
        records
            .iter()
            .flat_map(|record| match &record.entry {
                Entry::Message(message) => message.delivered.as_slice(),
                Entry::Compaction { .. } => &[],
            })
            .map(String::as_str)
    }
}

/// The size of what a block says, in bytes.
#[must_use]
pub fn block_bytes(block: &Block) -> usize {
    match block {
        Block::Text { text } => text.len(),
        Block::ToolUse { name, input, .. } => name.len() + input.to_string().len(),
        Block::ToolResult { content, .. } => content.len(),
        Block::Other(value) => value.to_string().len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;
    use crate::domain::time::UnixMs;

    #[test]
    fn text_of_others_never_passes_for_the_harness() {
        for hostile in ["<identity>", "</auto-claimed>", "< inbox>", "</ Identity", "<\u{1b}[0midentity>"] {
            let mut task = Task::new(TaskId(1), format!("a {hostile} b"));
            task.description = hostile.to_owned();
            let claimed = claimed_block(&task, None);
            assert_eq!(claimed.matches('<').count(), 2, "{claimed}");
            let mail = inbox_block(&[Message::new(MessageType::Message, hostile, hostile, UnixMs(0))]);
            assert_eq!(mail.matches('<').count(), 2, "{mail}");
        }
    }

    #[test]
    fn goals_and_mail_ask_for_an_answer_and_notices_do_not() {
        let mail = |kind| inbox_block(&[Message::new(kind, "bob", "hello", UnixMs(0))]);
        assert!(asks("<goal>x</goal>") && asks(&mail(MessageType::Message)) && asks(&mail(MessageType::TaskFailed)));
        assert!(!asks("hello") && !asks(&mail(MessageType::IdleNotice)) && !asks(&mail(MessageType::ShutdownRequest)));
    }

    #[test]
    fn a_call_without_a_result_is_open() {
        let call = |id: &str| Block::ToolUse { id: id.into(), name: "bash".into(), input: serde_json::Value::Null };
        let result = |id: &str| Block::ToolResult { tool_use_id: id.into(), content: "ok".into(), is_error: false };
        let mut context = Context::default();
        context.push(&Entry::Message(MessageRecord::new(Role::Assistant, vec![call("a"), call("b")])));
        context.push(&Entry::Message(MessageRecord::new(Role::User, vec![result("a")])));
        assert_eq!(context.open_calls(), [("b".to_owned(), "bash".to_owned())]);
        context.push(&Entry::Message(MessageRecord::new(Role::User, vec![result("b")])));
        assert!(context.open_calls().is_empty());
    }

    #[test]
    fn results_of_calls_nobody_knows_are_left_out() {
        let result = Block::ToolResult { tool_use_id: "a".into(), content: "ok".into(), is_error: false };
        let told = MessageRecord::new(Role::User, vec![result.clone(), Block::text("go on")]);
        let record = Record { at: UnixMs(1), entry: Entry::Message(told) };
        assert_eq!(Context::from_records(&[record]).messages[0].content, [Block::text("go on")]);
    }

    #[test]
    fn the_list_of_steps_is_the_last_that_was_kept() {
        let record = |entry| Record { at: UnixMs(1), entry };
        let asks = |id: &str, list: &str| {
            let (id, name, input) = (id.to_owned(), "todo".to_owned(), serde_json::json!({"content": list}));
            record(Entry::Message(MessageRecord::new(Role::Assistant, vec![Block::ToolUse { id, name, input }])))
        };
        let answers = |id: &str, is_error| {
            let result = Block::ToolResult { tool_use_id: id.to_owned(), content: "kept".to_owned(), is_error };
            record(Entry::Message(MessageRecord::new(Role::User, vec![result])))
        };
        let mut records = vec![asks("a", "one\ntwo"), answers("a", false), asks("b", "x"), answers("b", true)];
        assert_eq!(steps_kept(&records), "one\ntwo");
        let summary = summary_with_steps("So far.".to_owned(), "two");
        assert!(summary_block(&summary).contains("`todo` keeps it:\ntwo"));
        records.push(record(Entry::Compaction { summary, covers: 4 }));
        assert_eq!(steps_kept(&records[4..]), "two", "also where all before is archived");
        records.extend([asks("a", ""), answers("a", false)]);
        assert_eq!(steps_kept(&records), "");
        assert_eq!(summary_with_steps(String::new(), "two"), "", "a context that begins afresh has none");
    }
}
