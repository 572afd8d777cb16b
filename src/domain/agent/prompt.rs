//! The texts that models read: identity, tasks and mail, and the context built from a transcript.
//!
//! Text of others (task subjects, mail) is escaped before it is put next to Brigade's tags. So only the harness can write
//! `<identity>`, `<inbox>` or `<auto-claimed>`.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::transcript::{Block, MessageRecord, PromptKind, Record, Role, SentPrompt, TranscriptEntry};
use crate::domain::task::Task;
use crate::domain::team::message::{Message, MessageType};
use crate::domain::text::tags::escape_tags;
use crate::domain::text::{one_line, shorten};

/// The most members that an identity block names. Other programs can add any number to the roster.
const MEMBERS_NAMED_MAX: usize = 200;
/// The longest name or role in it, in characters.
const MEMBER_CHARS_MAX: usize = 100;

/// The name, role and team of an agent.
#[derive(Debug, Clone, Copy)]
pub struct AgentProfile<'a> {
    /// Name of the agent.
    pub name: &'a str,
    /// Its role.
    pub role: &'a str,
    /// Name of its team.
    pub team: &'a str,
}

impl AgentProfile<'_> {
    /// Returns the first line of every system prompt and identity block.
    pub fn introduction(&self) -> String {
        format!("You are '{}', role: {}, team: {}", self.name, escape_tags(self.role), self.team)
    }

    fn identity_start(&self) -> String {
        format!("<identity>{}.\n", self.introduction())
    }

    /// Returns true if this identity block is about the agent, with its role and team.
    pub fn is_introduced_by(&self, identity_block: &str) -> bool {
        identity_block.starts_with(&self.identity_start())
    }
}

/// Returns the first message of a sub-agent that answers a question of the agent.
pub fn question_block(agent: AgentProfile<'_>, question: &str) -> String {
    format!(
        "{}You answer a question of your own.</identity>\n<question>{}</question>",
        agent.identity_start(),
        escape_tags(question)
    )
}

/// The claimed task in an identity block.
#[derive(Debug, Clone, Copy)]
pub struct HeldTask<'a> {
    /// The task.
    pub task: &'a Task,
    /// Describes the task's folder, if it is not the workspace.
    pub location: Option<&'a str>,
    /// True if the task's text is in the context after the block.
    pub is_in_context: bool,
}

/// Returns the identity block: the agent, its team and the task it holds, all from durable state. `team` has names and roles.
/// It says nothing that changes while the context lasts, such as who is busy.
pub fn identity_block(agent: AgentProfile<'_>, team: &[(&str, &str)], held: Option<HeldTask<'_>>) -> String {
    let mut text = agent.identity_start();
    if !team.is_empty() {
        let short = |text: &str| escape_tags(&shorten(&one_line(text), MEMBER_CHARS_MAX)).into_owned();
        let mut members: Vec<String> = Vec::new();
        members.extend(
            team.iter().take(MEMBERS_NAMED_MAX).map(|(name, role)| format!("{} ({})", short(name), short(role))),
        );
        if team.len() > MEMBERS_NAMED_MAX {
            members.push(format!("and {} more", team.len() - MEMBERS_NAMED_MAX));
        }
        // Writing into a string cannot fail.
        let _ = writeln!(text, "Team: {}.", members.join(", "));
    }
    match held {
        Some(HeldTask { task, location, is_in_context }) => {
            let _ =
                writeln!(text, "You hold task {} (attempt {}): {}", task.id, task.attempt, escape_tags(&task.subject));
            if !is_in_context {
                write_task_text(&mut text, task, location);
            }
        }
        None => text.push_str("You hold no task.\n"),
    }
    text.push_str("Continue your work.</identity>");
    text
}

/// Returns the text of a claimed task. `location` describes the task's folder, if it is not the workspace.
pub fn claimed_block(task: &Task, location: Option<&str>) -> String {
    let mut text = format!("<auto-claimed>Task {}: {}\n", task.id, escape_tags(&task.subject));
    write_task_text(&mut text, task, location);
    write_failures(&mut text, task);
    text.push_str("</auto-claimed>");
    text
}

/// Writes everything that a task's holder needs apart from the subject.
fn write_task_text(text: &mut String, task: &Task, location: Option<&str>) {
    // The command is placed before the description: a small model took a bare command at the end for its next tool call.
    if let Some(verify) = &task.verify {
        let _ = writeln!(text, "{}", verify_line(verify));
    }
    if !task.description.is_empty() {
        let _ = writeln!(text, "{}", escape_tags(&task.description));
    }
    if let Some(location) = location {
        let _ = writeln!(text, "{}", escape_tags(location));
    }
}

/// Writes how the earlier attempts at a task ended, the last one first.
fn write_failures(text: &mut String, task: &Task) {
    let Some(result) = &task.result else { return };
    if task.failures == 0 && task.failed_attempts.is_empty() {
        return;
    }
    let is_failure = result.is_failure() || result.evidence.is_empty();
    let (verb, before) = if is_failure { ("failed", "") } else { ("ended", result.evidence.as_str()) };
    let _ = writeln!(text, "An earlier attempt {verb}: {}", escape_tags(&result.summary));
    if !before.is_empty() {
        let _ = writeln!(text, "Before that: {}", escape_tags(before));
    }
    let last = task.failed_attempts.last().map(|failed| failed.attempt);
    let shown = if before.is_empty() { result.failed_attempt } else { last };
    for failed in task.failed_attempts.iter().rev().filter(|failed| shown != Some(failed.attempt)) {
        let _ = writeln!(text, "Attempt {} failed: {}", failed.attempt, escape_tags(&failed.reason));
    }
}

/// Returns the line about a task's verify command for its holder.
pub fn verify_line(verify: &str) -> String {
    format!(
        "Verify command. Brigade runs it when you report `completed`, and it must exit 0: `{}`",
        escape_tags(verify)
    )
}

const INBOX_START: &str = "<inbox>\n";
const INBOX_END: &str = "</inbox>";

/// Returns the text of mail, in the order of delivery.
pub fn inbox_block(messages: &[Message]) -> String {
    let mut text = String::from(INBOX_START);
    for message in messages {
        text.push_str(&message_heading(message.kind, &message.from));
        if let Some(request_id) = &message.request_id {
            let _ = write!(text, " (request_id: {})", escape_tags(request_id));
        }
        if let Some(approve) = message.approve {
            let _ = write!(text, " (approve: {approve})");
        }
        let _ = write!(text, ": {}", escape_tags(&message.content));
        for (label, field) in [("plan", &message.plan), ("feedback", &message.feedback)] {
            if let Some(field) = field.as_ref().filter(|field| **field != message.content) {
                let _ = write!(text, "\n{label}: {}", escape_tags(field));
            }
        }
        text.push('\n');
    }
    text.push_str(INBOX_END);
    text
}

/// Returns true if [`inbox_block`] made this text, and one of its messages is `content` from `from`, without a request.
pub fn has_message_text(text: &str, from: &str, content: &str) -> bool {
    let Some(messages) = text.strip_prefix(INBOX_START) else { return false };
    let message = format!("{}: {}\n", message_heading(MessageType::Message, from), escape_tags(content));
    let ends_there = |at: usize| {
        let (before, after) = (&messages[..at], &messages[at + message.len()..]);
        (before.is_empty() || before.ends_with('\n')) && (after.starts_with('[') || after == INBOX_END)
    };
    messages.match_indices(&message).any(|(at, _)| ends_there(at))
}

fn message_heading(kind: MessageType, from: &str) -> String {
    format!("[{}] from {}", kind.as_str(), escape_tags(from))
}

/// Returns the transcript entry for mail. `keys` are those of its deliveries.
pub fn mail_record(messages: &[Message], keys: Vec<String>) -> MessageRecord {
    let needs_answer = messages.iter().any(|message| message.kind.needs_answer());
    MessageRecord {
        prompt: needs_answer.then_some(PromptKind::Mail),
        delivered: keys,
        ..MessageRecord::new(Role::User, vec![Block::text(inbox_block(messages))])
    }
}

/// Returns the text of a compaction: the summary, and the todo list if it has one.
pub fn summary_block(summary: &str, todo_list: &str) -> String {
    let mut text = format!("<summary>Your own summary of your work so far:\n{}", escape_tags(summary));
    if !todo_list.trim().is_empty() {
        let _ = write!(text, "\n\nYour list of steps, as the tool `todo` keeps it:\n{}", escape_tags(todo_list));
    }
    text + "</summary>"
}

/// Returns the list of the tool `todo`: from the last successful call in the transcript, or from a later summary.
pub fn last_todo_list(records: &[Record]) -> String {
    let mut todo_list = String::new();
    let mut calls: Vec<(&str, &str)> = Vec::new();
    for record in records {
        let message = match &record.entry {
            TranscriptEntry::Message(message) => message,
            TranscriptEntry::Sent(_) => continue,
            TranscriptEntry::Compaction { todo_list: stored, .. } => {
                if record.entry.starts_context() || !stored.is_empty() {
                    stored.clone_into(&mut todo_list);
                }
                continue;
            }
        };
        if message.role == Role::Assistant {
            // Results follow the answer that called for them.
            calls.clear();
        }
        for block in &message.content {
            match block {
                Block::ToolUse { id, name, input, .. } if name == "todo" => {
                    calls.extend(
                        input.get("content").and_then(|content| content.as_str()).map(|list| (id.as_str(), list)),
                    );
                }
                Block::ToolResult { tool_use_id, is_error: false, .. } => {
                    let call = calls.iter().find(|(id, _)| id == tool_use_id);
                    if let Some((_, list)) = call {
                        (*list).clone_into(&mut todo_list);
                    }
                }
                _ => {}
            }
        }
    }
    todo_list
}

/// A context: the part of a transcript that the model still reads.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Context {
    /// The identity block that begins it; `None` before its first request.
    pub identity: Option<String>,
    /// The summary of earlier records.
    pub summary: Option<String>,
    /// The recorded messages after the summary.
    pub messages: Vec<MessageRecord>,
    /// The last prompt to an external agent, with the number of messages before it.
    pub last_sent: Option<(SentPrompt, usize)>,
    /// The number of messages in earlier prompts of the same session that arrived.
    pub sent_before: usize,
}

impl Context {
    /// Builds the context from a transcript: the records since its last compaction.
    pub fn from_records(records: &[Record]) -> Self {
        let mut context = Self::default();
        for record in records {
            context.push(&record.entry);
        }
        // A transcript that starts in the middle of a turn has results of calls that the context lacks.
        let is_result = |block: &Block| matches!(block, Block::ToolResult { .. });
        for message in context.messages.iter_mut().take_while(|message| message.role == Role::User) {
            message.content.retain(|block| !is_result(block));
        }
        context
    }

    /// Adds a record. Mail that the model has not answered stays when a new context starts.
    pub fn push(&mut self, entry: &TranscriptEntry) {
        match entry {
            TranscriptEntry::Message(message) if message.identity => {
                self.identity = message.content.iter().find_map(Block::as_text).map(str::to_owned);
            }
            TranscriptEntry::Message(message) => self.messages.push(message.clone()),
            TranscriptEntry::Sent(prompt) => {
                let last = self.last_sent.as_ref().filter(|(last, _)| last.session == prompt.session);
                self.sent_before = match last {
                    Some(_) if prompt.includes_last => self.sent_before,
                    Some((_, messages)) => *messages,
                    None => 0,
                };
                self.last_sent = Some((prompt.clone(), self.messages.len()));
            }
            TranscriptEntry::Compaction { summary, todo_list, .. } => {
                self.identity = None;
                self.last_sent = None;
                self.sent_before = 0;
                let answered = self.messages.iter().rposition(|message| message.role == Role::Assistant);
                self.messages.drain(..answered.map_or(0, |last| last + 1));
                self.messages.retain(|message| entry.starts_context() && message.is_mail());
                self.summary = (!summary.is_empty()).then(|| summary_block(summary, todo_list));
            }
        }
    }

    /// Returns the ids and names of the last tool calls without a result. Their process ended before it recorded one.
    pub fn unanswered_tool_calls(&self) -> Vec<(String, String)> {
        let Some(last) = self.messages.iter().rposition(|message| message.role == Role::Assistant) else {
            return Vec::new();
        };
        let has_result = |call: &str| {
            self.messages[last + 1..]
                .iter()
                .flat_map(|message| &message.content)
                .any(|block| matches!(block, Block::ToolResult { tool_use_id, .. } if tool_use_id == call))
        };
        let calls = self.messages[last].content.iter().filter_map(|block| match block {
            Block::ToolUse { id, name, .. } if !has_result(id) => Some((id.clone(), name.clone())),
            _ => None,
        });
        calls.collect()
    }
}

/// Returns the keys of the mail in these records.
pub fn delivered_keys(records: &[Record]) -> HashSet<String> {
    let messages = records.iter().filter_map(|record| match &record.entry {
        TranscriptEntry::Message(message) => Some(&message.delivered),
        TranscriptEntry::Compaction { .. } | TranscriptEntry::Sent(_) => None,
    });
    messages.flatten().cloned().collect()
}

/// Returns the bytes of a block that a model reads or writes as text. Encrypted reasoning has any number of bytes for a token.
pub fn text_bytes(block: &Block) -> usize {
    if matches!(block, Block::Other(_)) { 0 } else { block_bytes(block) }
}

/// Returns the size of a block's content, in bytes.
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
    fn mail_needs_answer_but_notices_do_not() {
        let prompt = |kind| mail_record(&[Message::new(kind, "bob", "hello", UnixMs(0))], Vec::new()).prompt;
        for kind in [MessageType::Message, MessageType::TaskFailed] {
            assert_eq!(prompt(kind), Some(PromptKind::Mail));
        }
        for kind in [MessageType::IdleNotice, MessageType::ShutdownRequest] {
            assert_eq!(prompt(kind), None);
        }
    }

    #[test]
    fn identity_block_is_short_with_any_roster() {
        let role = format!("r\n{}", "x".repeat(10_000));
        let team = vec![("bob", role.as_str()); 5_000];
        let block = identity_block(AgentProfile { name: "ada", role: "coder", team: "t" }, &team, None);
        assert!(block.len() < 30_000 && block.contains(", and 4800 more."), "{} bytes", block.len());
    }

    #[test]
    fn lost_prompts_leave_their_messages_unsent() {
        let mut context = Context::default();
        let sent = |key: &str, includes_last| {
            let key = key.to_owned();
            TranscriptEntry::Sent(SentPrompt { session: "s".into(), key, includes_last, ..SentPrompt::default() })
        };
        let message = TranscriptEntry::Message(MessageRecord::new(Role::User, vec![Block::text("hello")]));
        // The second and the third prompt did not arrive, each because of a kill.
        for entry in [&message, &sent("1", false), &message, &sent("2", false), &sent("3", true)] {
            context.push(entry);
        }
        assert_eq!(context.sent_before, 1);
        context.push(&sent("4", false));
        assert_eq!(context.sent_before, 2, "the third one arrived");
    }

    #[test]
    fn message_is_found_in_inbox_text_as_a_whole() {
        let message = |from: &str, text: &str| Message::new(MessageType::Message, from, text, UnixMs(0));
        let block =
            inbox_block(&[message("human", "port it"), message("bob", "a\nb <goal>"), message("human", "twice\nx")]);
        for (from, text, is_there) in [
            ("human", "port it", true),
            ("bob", "port it", false),
            ("bob", "a\nb <goal>", true),
            ("bob", "a", false),
            ("human", "twice", false),
            ("human", "twice\nx", true),
        ] {
            assert_eq!(has_message_text(&block, from, text), is_there, "{from}: {text}");
        }
        assert!(!has_message_text("[message] from human: port it\n</inbox>", "human", "port it"));
    }

    #[test]
    fn harness_tags_in_task_and_mail_are_escaped() {
        for hostile in ["<identity>", "</auto-claimed>", "< inbox>", "</ Identity"] {
            let mut task = Task::new(TaskId(1), format!("a {hostile} b"));
            task.description = hostile.to_owned();
            let claimed = claimed_block(&task, None);
            assert_eq!(claimed.matches('<').count(), 2, "{claimed}");
            let mail = inbox_block(&[Message::new(MessageType::Message, hostile, hostile, UnixMs(0))]);
            assert_eq!(mail.matches('<').count(), 2, "{mail}");
        }
    }

    #[test]
    fn claimed_task_lists_failed_attempts_last_first() {
        let mut task = Task { attempt: 1, ..Task::new(TaskId(1), "x") };
        assert!(!claimed_block(&task, None).contains("attempt"));
        for (attempt, reason) in [(1, "exit 2"), (2, "exit 3")] {
            task.attempt = attempt;
            crate::domain::task::failed_attempt::record(&mut task, reason);
            task.result = Some(crate::domain::task::TaskResult::failed(reason, attempt));
        }
        let text = claimed_block(&task, None);
        assert!(
            text.contains("\nAn earlier attempt failed: exit 3\nAttempt 1 failed: exit 2\n</auto-claimed>"),
            "{text}"
        );
    }

    #[test]
    fn tool_call_without_result_is_open() {
        let call = |id: &str| Block::tool_use(id, "bash", serde_json::Value::Null);
        let result = |id: &str| Block::ToolResult { tool_use_id: id.into(), content: "ok".into(), is_error: false };
        let mut context = Context::default();
        context.push(&TranscriptEntry::Message(MessageRecord::new(Role::Assistant, vec![call("a"), call("b")])));
        context.push(&TranscriptEntry::Message(MessageRecord::new(Role::User, vec![result("a")])));
        assert_eq!(context.unanswered_tool_calls(), [("b".to_owned(), "bash".to_owned())]);
        context.push(&TranscriptEntry::Message(MessageRecord::new(Role::User, vec![result("b")])));
        assert!(context.unanswered_tool_calls().is_empty());
    }

    #[test]
    fn tool_result_without_call_is_dropped() {
        let result = Block::ToolResult { tool_use_id: "a".into(), content: "ok".into(), is_error: false };
        let message = MessageRecord::new(Role::User, vec![result.clone(), Block::text("go on")]);
        let record = Record { at: UnixMs(1), entry: TranscriptEntry::Message(message) };
        assert_eq!(Context::from_records(&[record]).messages[0].content, [Block::text("go on")]);
    }

    #[test]
    fn todo_list_is_last_successful_todo_call() {
        let record = |entry| Record { at: UnixMs(1), entry };
        let call = |id: &str, list: &str| {
            let (id, name, input) = (id.to_owned(), "todo".to_owned(), serde_json::json!({"content": list}));
            record(TranscriptEntry::Message(MessageRecord::new(
                Role::Assistant,
                vec![Block::tool_use(id, name, input)],
            )))
        };
        let result = |id: &str, is_error| {
            let result = Block::ToolResult { tool_use_id: id.to_owned(), content: "kept".to_owned(), is_error };
            record(TranscriptEntry::Message(MessageRecord::new(Role::User, vec![result])))
        };
        let mut records = vec![call("a", "one\ntwo"), result("a", false), call("b", "x"), result("b", true)];
        assert_eq!(last_todo_list(&records), "one\ntwo");
        assert!(
            summary_block("So far.", "two").contains("So far.\n\n")
                && summary_block("So far.", "two").contains("`todo` keeps it:\ntwo<")
        );
        let (summary, todo_list) = ("So far.".to_owned(), "two".to_owned());
        records.push(record(TranscriptEntry::Compaction { summary, covers: 4, todo_list }));
        assert_eq!(last_todo_list(&records[4..]), "two", "also if all earlier records are archived");
        records.extend([call("a", ""), result("a", false)]);
        assert_eq!(last_todo_list(&records), "");
    }
}
