//! The files in `<worktree>/.agent/`: the state of the work on a task, its heartbeat and its list of steps. Other programs read and
//! write them too. Pure: text in, text out.

use serde_json::json;

use crate::domain::text::json_document::{Document, DocumentError};
use crate::domain::text::words::words;
use crate::domain::time::UnixMs;

/// `<worktree>/.agent/state.json`, which other programs also read and write. Times are Unix milliseconds. Empty values are
/// omitted, except fields that the contract requires.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorktreeState {
    /// The task's number as text.
    pub issue_id: String,
    /// `<team>/task-<id>`. It prevents using another task's worktree.
    pub issue_identifier: String,
    /// The session that uses the worktree.
    pub session_id: String,
    /// The provider of the session's model.
    pub provider_name: String,
    /// The provider's own session id.
    pub provider_session_id: String,
    /// The kind of work.
    pub work_type: String,
    /// The current step of the work.
    pub current_step: String,
    /// Number of attempts so far.
    pub attempt_count: i64,
    /// Start time of the session.
    pub started_at: i64,
    /// Time of the last write of this file.
    pub last_updated_at: i64,
    /// Time of the last heartbeat; 0 if there was none.
    pub last_heartbeat: i64,
    /// Process id; 0 if there is none.
    pub pid: i64,
    /// The worker that owns the worktree.
    pub worker_id: String,
    /// The file as it was read, with unknown fields.
    pub document: Document,
}

impl WorktreeState {
    /// Parses the file.
    ///
    /// # Errors
    /// [`DocumentError`] if the file is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let document = Document::parse(bytes)?;
        let text = |field: &str| document.get::<String>(field).map(Option::unwrap_or_default);
        let number = |field: &str| document.get::<i64>(field).map(Option::unwrap_or_default);
        Ok(Self {
            issue_id: text("issueId")?,
            issue_identifier: text("issueIdentifier")?,
            session_id: text("sessionId")?,
            provider_name: text("providerName")?,
            provider_session_id: text("providerSessionId")?,
            work_type: text("workType")?,
            current_step: text("currentStep")?,
            attempt_count: number("attemptCount")?,
            started_at: number("startedAt")?,
            last_updated_at: number("lastUpdatedAt")?,
            last_heartbeat: number("lastHeartbeat")?,
            pid: number("pid")?,
            worker_id: text("workerId")?,
            document,
        })
    }

    /// Returns the file's text.
    pub fn to_file(&self) -> String {
        let mut document = self.document.clone();
        document.set("issueId", &self.issue_id);
        document.set("issueIdentifier", &self.issue_identifier);
        for (field, text) in [
            ("sessionId", &self.session_id),
            ("providerName", &self.provider_name),
            ("providerSessionId", &self.provider_session_id),
            ("workType", &self.work_type),
            ("currentStep", &self.current_step),
        ] {
            document.set_optional(field, Some(text).filter(|text| !text.is_empty()));
        }
        document.set("attemptCount", &self.attempt_count);
        document.set("startedAt", &self.started_at);
        document.set("lastUpdatedAt", &self.last_updated_at);
        for (field, number) in [("lastHeartbeat", self.last_heartbeat), ("pid", self.pid)] {
            document.set_optional(field, Some(&number).filter(|number| **number != 0));
        }
        document.set_optional("workerId", Some(&self.worker_id).filter(|text| !text.is_empty()));
        document.to_pretty()
    }
}

words! {
    /// The step of the work in a worktree, as the value of `currentStep`.
    pub enum WorkStep {
        /// The worktree is prepared for an agent.
        Spawning = "spawning",
        /// The agent works.
        Streaming = "streaming",
        /// The verify command runs.
        Verifying = "verifying",
        /// The work is merged.
        Merging = "merging",
    }

    /// The activity of an agent, in the words of the heartbeat file.
    pub enum WorkActivity {
        /// It runs a tool.
        ToolUse = "tool_use",
        /// Its model answers.
        Thinking = "thinking",
        /// It waits: for a model, a budget or the disk.
        Waiting = "waiting",
        /// It does nothing now.
        Idle = "idle",
    }
}

/// A report of the work in a worktree, which its files show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorktreeReport {
    /// The current step.
    pub step: WorkStep,
    /// The session: the worker and the teammate.
    pub session: String,
    /// The provider of the teammate's model.
    pub provider: String,
    /// The provider's own id of the session; empty without one.
    pub provider_session: String,
    /// The id of the provider's process; 0 if it has none.
    pub provider_pid: u32,
    /// The process id of the worker.
    pub worker_pid: u32,
    /// The start of the work on this attempt.
    pub started_at: UnixMs,
    /// The agent's activity.
    pub activity: WorkActivity,
    /// The time of its last progress.
    pub last_activity: UnixMs,
    /// The name of the running tool.
    pub tool: Option<String>,
    /// The number of tool calls since the worker started the teammate.
    pub tool_calls: u64,
    /// The agent's list of steps, one a line.
    pub todo_list: String,
}

impl WorktreeReport {
    /// Changes the state to this report, with a heartbeat at `now`.
    pub fn apply_to(&self, state: &mut WorktreeState, now: UnixMs) {
        self.step.as_str().clone_into(&mut state.current_step);
        state.session_id.clone_from(&self.session);
        state.provider_name.clone_from(&self.provider);
        state.provider_session_id.clone_from(&self.provider_session);
        state.pid = i64::from(self.provider_pid);
        if state.started_at == 0 {
            state.started_at = self.started_at.0;
        }
        state.last_heartbeat = now.0;
    }

    /// Returns the text of `heartbeat.json` at `now`. The uptime is in seconds.
    pub fn heartbeat_file(&self, now: UnixMs) -> String {
        let heartbeat = json!({
            "timestamp": now.0,
            "pid": self.worker_pid,
            "uptime": now.0.saturating_sub(self.started_at.0).max(0) / 1000,
            "lastActivityType": self.activity,
            "lastActivityTimestamp": self.last_activity.0,
            "toolCallsCount": self.tool_calls,
            "currentOperation": self.tool,
        });
        format!("{heartbeat:#}\n")
    }

    /// Returns the text of `todos.json`, written at `now`.
    pub fn todos_file(&self, now: UnixMs) -> String {
        let items: Vec<_> = self.todo_list.lines().filter_map(todo_item).collect();
        format!("{:#}\n", json!({ "updatedAt": now.0, "items": items }))
    }
}

/// Returns the item of a line such as `- [x] read the file`. A line without a mark is pending.
fn todo_item(line: &str) -> Option<serde_json::Value> {
    let text = line.trim().trim_start_matches(['-', '*']).trim_start();
    let marks = [
        ("[x]", "completed"),
        ("[X]", "completed"),
        ("[~]", "in_progress"),
        ("[>]", "in_progress"),
        ("[ ]", "pending"),
    ];
    let marked = marks.iter().find_map(|(mark, status)| Some((text.strip_prefix(mark)?.trim_start(), *status)));
    let (content, status) = marked.unwrap_or((text, "pending"));
    (!content.is_empty()).then(|| json!({ "content": content, "status": status, "activeForm": content }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> WorktreeReport {
        WorktreeReport {
            step: WorkStep::Verifying,
            session: "w1/alice".to_owned(),
            provider: "claude-code".to_owned(),
            provider_session: "5f0c".to_owned(),
            provider_pid: 77,
            worker_pid: 42,
            started_at: UnixMs(1_000),
            activity: WorkActivity::ToolUse,
            last_activity: UnixMs(4_000),
            tool: Some("bash".to_owned()),
            tool_calls: 3,
            todo_list: "- [x] read a.rs\n[~] fix it\n\n3. test".to_owned(),
        }
    }

    #[test]
    fn report_is_in_all_three_files() {
        let mut state = WorktreeState { pid: 0, ..WorktreeState::default() };
        report().apply_to(&mut state, UnixMs(5_500));
        assert_eq!((state.current_step.as_str(), state.started_at, state.last_heartbeat), ("verifying", 1_000, 5_500));
        assert_eq!((state.session_id.as_str(), state.provider_name.as_str()), ("w1/alice", "claude-code"));
        assert_eq!((state.provider_session_id.as_str(), state.pid), ("5f0c", 77));
        let heartbeat: serde_json::Value = serde_json::from_str(&report().heartbeat_file(UnixMs(5_500))).unwrap();
        let expected = json!({
            "timestamp": 5_500, "pid": 42, "uptime": 4, "lastActivityType": "tool_use",
            "lastActivityTimestamp": 4_000, "toolCallsCount": 3, "currentOperation": "bash",
        });
        assert_eq!(heartbeat, expected);
        let todos: serde_json::Value = serde_json::from_str(&report().todos_file(UnixMs(9))).unwrap();
        let statuses: Vec<_> = todos["items"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
        assert_eq!(statuses, ["completed", "in_progress", "pending"]);
        assert_eq!(todos["items"][0]["content"], "read a.rs");
        let emptied = WorktreeReport { todo_list: "\n".to_owned(), ..report() }.todos_file(UnixMs(9));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&emptied).unwrap()["items"], json!([]));
    }
}
