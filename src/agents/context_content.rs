//! The attempts and the unanswered mail in a member's context. They decide whether a claimed task starts a new context.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::external::programs::tool_kind;
use crate::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use crate::domain::task::Task;
use crate::domain::task::evidence::AttemptActivity;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::team_spec::Memory;
use crate::tools::table;

/// Returns true for a call that can change something: one of Brigade's, or of an external agent.
fn is_work(tool: &str, input: &Value) -> bool {
    let kind = tool_kind(tool).unwrap_or_else(|| table::kind_of(tool));
    kind.is_work(input["command"].as_str())
}

/// The content of a member's context. A compaction does not change it, because the summary is about the same.
#[derive(Debug, Default)]
pub struct ContextContent {
    /// The attempts with messages in the context, and what the agent did in them.
    attempts: HashMap<ClaimRef, AttemptActivity>,
    /// The calls that change files or run commands, without a result.
    work_calls: HashSet<String>,
    /// The mail since the model's last answer.
    pub unanswered_mail: Vec<MessageRecord>,
    /// The number of records since then.
    pub records_since_answer: u64,
}

impl ContextContent {
    /// Returns the content of the context at the end of a transcript.
    pub fn of_records(records: &[Record]) -> Self {
        let mut content = Self::default();
        for record in records {
            match &record.entry {
                TranscriptEntry::Message(message) => content.add(message),
                entry if entry.starts_context() => content.start_context(),
                TranscriptEntry::Compaction { .. } => content.compact(),
                TranscriptEntry::Sent(_) => content.add_sent(),
            }
        }
        content
    }

    /// Adds a message.
    pub fn add(&mut self, message: &MessageRecord) {
        if let (Some(task), Some(attempt)) = (message.task, message.attempt) {
            let activity = self.attempts.entry(ClaimRef { task, attempt }).or_default();
            for block in &message.content {
                match block {
                    Block::ToolUse { id, name, input, .. } => {
                        activity.has_called_tool = true;
                        if is_work(name, input) {
                            self.work_calls.insert(id.clone());
                        }
                    }
                    Block::ToolResult { tool_use_id, is_error, .. } => {
                        activity.has_worked |= self.work_calls.remove(tool_use_id) && !is_error;
                    }
                    _ => {}
                }
            }
        }
        self.records_since_answer += 1;
        if message.role == Role::Assistant {
            self.unanswered_mail.clear();
            self.records_since_answer = 0;
        } else if message.is_mail() {
            self.unanswered_mail.push(message.clone());
        }
    }

    /// Records a prompt to an external agent.
    pub fn add_sent(&mut self) {
        self.records_since_answer += 1;
    }

    /// Records a compaction. Its summary is about all mail.
    pub fn compact(&mut self) {
        self.unanswered_mail.clear();
        self.records_since_answer += 1;
    }

    /// Records the start of a new context. Mail since the model's last answer stays.
    pub fn start_context(&mut self) {
        self.attempts.clear();
        self.records_since_answer += 1;
    }

    /// Returns true if a claimed task starts a new context: after a failed attempt, or with the memory of one task. An attempt that
    /// resumes an interrupted one continues in its context. An attempt before a reopening is not interrupted.
    pub fn must_restart(&self, task: &Task, memory: Memory) -> bool {
        (task.last_failed_attempt() > 0 || memory == Memory::Task) && self.interrupted_attempts(task).next().is_none()
    }

    /// Returns what the agent did in the interrupted attempts that the claimed attempt resumes.
    pub fn interrupted_activity(&self, task: &Task) -> AttemptActivity {
        self.interrupted_attempts(task).fold(AttemptActivity::default(), |sum, activity| AttemptActivity {
            has_called_tool: sum.has_called_tool || activity.has_called_tool,
            has_worked: sum.has_worked || activity.has_worked,
        })
    }

    fn interrupted_attempts(&self, task: &Task) -> impl Iterator<Item = &AttemptActivity> {
        let attempts = task.first_continued_attempt()..task.attempt;
        let id = task.id;
        let interrupted =
            self.attempts.iter().filter(move |(claim, _)| claim.task == id && attempts.contains(&claim.attempt));
        interrupted.map(|(_, activity)| activity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::prompt::Context;
    use crate::domain::agent::transcript::PromptKind;
    use crate::domain::task::TaskId;
    use crate::domain::task::failed_attempt::FailedAttempt;
    use crate::domain::time::UnixMs;

    fn message(role: Role, claim: Option<(u64, u32)>) -> MessageRecord {
        let (task, attempt) = claim.unzip();
        MessageRecord { task: task.map(TaskId), attempt, ..MessageRecord::new(role, vec![Block::text("x")]) }
    }

    fn record(message: MessageRecord) -> Record {
        Record { at: UnixMs(1), entry: TranscriptEntry::Message(message) }
    }

    fn compaction(summary: &str) -> Record {
        let (summary, covers, todo_list) = (summary.to_owned(), 1, String::new());
        Record { at: UnixMs(1), entry: TranscriptEntry::Compaction { summary, covers, todo_list } }
    }

    fn task(attempt: u32, failed: &[u32]) -> Task {
        let failed = failed.iter().map(|attempt| FailedAttempt {
            attempt: *attempt,
            owner: String::new(),
            reason: String::new(),
        });
        Task { attempt, failed_attempts: failed.collect(), ..Task::new(TaskId(7), "x") }
    }

    #[test]
    fn work_of_interrupted_attempt_is_found() {
        let calls = |attempt, tool: &str, is_error| {
            let id = format!("call-{attempt}");
            let call = Block::tool_use(id.clone(), tool, serde_json::Value::Null);
            let result = Block::ToolResult { tool_use_id: id, content: String::new(), is_error };
            [(Role::Assistant, call), (Role::User, result)].map(|(role, block)| {
                record(MessageRecord { content: vec![block], ..message(role, Some((7, attempt))) })
            })
        };
        let activity = |records: &[Record], task: &Task| {
            let AttemptActivity { has_called_tool, has_worked } =
                ContextContent::of_records(records).interrupted_activity(task);
            (has_called_tool, has_worked)
        };
        assert_eq!(activity(&calls(1, "write_file", false), &task(2, &[])), (true, true));
        assert_eq!(activity(&calls(1, "write_file", true), &task(2, &[])), (true, false), "it failed");
        assert_eq!(activity(&calls(1, "read_file", false), &task(2, &[])), (true, false));
        assert_eq!(activity(&calls(1, "bash", false), &task(2, &[1])), (false, false), "of a failed attempt");
        let reopened = |attempt| Task { reopened_after: 1, ..task(attempt, &[]) };
        assert_eq!(activity(&calls(1, "bash", false), &reopened(2)), (false, false), "of a completed attempt");
        assert_eq!(activity(&calls(2, "bash", false), &reopened(3)), (true, true));
        assert_eq!(activity(&calls(1, "bash", false), &Task { id: TaskId(8), ..task(2, &[]) }), (false, false));
    }

    #[test]
    fn failed_attempt_restarts_context_and_crash_does_not() {
        let worked = |attempts: &[u32]| {
            let messages = attempts.iter().map(|attempt| record(message(Role::User, Some((7, *attempt)))));
            ContextContent::of_records(&messages.collect::<Vec<_>>())
        };
        let restarts = |context: &ContextContent, task: &Task| context.must_restart(task, Memory::Session);
        assert!(!restarts(&worked(&[]), &task(1, &[])), "the first attempt");
        assert!(!restarts(&worked(&[1]), &task(2, &[])), "after a crash");
        assert!(restarts(&worked(&[1]), &task(2, &[1])), "after a failure");
        assert!(restarts(&worked(&[]), &task(2, &[1])), "after the failure of another member");
        assert!(!restarts(&worked(&[2]), &task(3, &[1])), "a failure, and then a crash");
        assert!(restarts(&worked(&[1]), &task(3, &[1])), "a kill between claim and new context");
        assert!(restarts(&worked(&[1, 2]), &task(2, &[1])), "claimed by a call, whose result is in the context");
    }

    #[test]
    fn memory_of_one_task_restarts_context_for_each_task() {
        let records = [record(message(Role::User, Some((6, 1))))];
        let context = ContextContent::of_records(&records);
        assert!(context.must_restart(&task(1, &[]), Memory::Task));
        assert!(!context.must_restart(&task(1, &[]), Memory::Session));
        let records = [record(message(Role::User, Some((7, 1)))), compaction("so far")];
        assert!(!ContextContent::of_records(&records).must_restart(&task(2, &[]), Memory::Task), "after a crash");
        let records = [record(message(Role::User, Some((7, 1)))), compaction("")];
        assert!(
            ContextContent::of_records(&records).must_restart(&task(2, &[]), Memory::Task),
            "another context since"
        );
    }

    #[test]
    fn unanswered_mail_stays_in_new_context() {
        let mail = |key: &str| {
            let delivered = vec![key.to_owned()];
            record(MessageRecord { prompt: Some(PromptKind::Mail), delivered, ..message(Role::User, None) })
        };
        let answer = record(message(Role::Assistant, None));
        let other = record(message(Role::User, None));
        let mut records = vec![mail("a"), answer.clone(), mail("b"), other, compaction(""), compaction("")];
        let content = ContextContent::of_records(&records);
        let keys: Vec<&str> = content.unanswered_mail.iter().map(|message| message.delivered[0].as_str()).collect();
        assert_eq!((keys, content.records_since_answer), (vec!["b"], 4));
        assert_eq!(Context::from_records(&records).messages, content.unanswered_mail);
        records.extend([answer, compaction("")]);
        assert!(ContextContent::of_records(&records).unanswered_mail.is_empty());
        assert!(Context::from_records(&records).messages.is_empty());
        let records = [mail("a"), compaction("a summary"), compaction("")];
        assert!(ContextContent::of_records(&records).unanswered_mail.is_empty());
        assert!(Context::from_records(&records).messages.is_empty());
    }
}
