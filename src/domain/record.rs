//! The small whole-file records beside the board: roster, worker, worktree state. Pure: text in, text out.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::document::{Document, DocumentError};
use super::task::TaskId;
use super::time::UnixMs;

/// How a member stands in the roster; the tutorial program's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberStatus {
    /// In its WORK phase.
    Working,
    /// In its IDLE phase, or on call.
    Idle,
    /// Stopped.
    Shutdown,
}

/// One member of the roster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterMember {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// How it stands.
    pub status: MemberStatus,
}

/// `.team/config.json` with `members` merged in: those of others stay as they are, with all their fields, in their places.
///
/// # Errors
/// [`DocumentError`] when `file` is no roster.
pub fn merge_roster(file: Option<&[u8]>, team: &str, members: &[RosterMember]) -> Result<String, DocumentError> {
    let mut document = file.map_or_else(|| Ok(Document::default()), Document::parse)?;
    let mut rows: Vec<Document> = read_rows(&document)?;
    let mut places: HashMap<String, usize> = HashMap::with_capacity(rows.len());
    for (place, row) in rows.iter().enumerate() {
        if let Ok(Some(name)) = row.get::<String>("name") {
            places.entry(name.to_ascii_lowercase()).or_insert(place);
        }
    }
    for member in members {
        let index = *places.entry(member.name.to_ascii_lowercase()).or_insert_with(|| {
            rows.push(Document::default());
            rows.len() - 1
        });
        rows[index].put("name", &member.name);
        rows[index].put("role", &member.role);
        rows[index].put("status", &member.status);
    }
    document.put("team_name", &team);
    document.put("members", &rows);
    Ok(document.to_pretty())
}

/// The members a roster file names.
///
/// # Errors
/// [`DocumentError`] when `file` is no roster.
pub fn read_roster(file: &[u8]) -> Result<Vec<RosterMember>, DocumentError> {
    let rows = read_rows(&Document::parse(file)?)?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let text = |field: &str| row.get::<String>(field).ok().flatten();
            Some(RosterMember {
                name: text("name")?,
                role: text("role").unwrap_or_default(),
                status: row.get("status").ok().flatten().unwrap_or(MemberStatus::Shutdown),
            })
        })
        .collect())
}

fn read_rows(document: &Document) -> Result<Vec<Document>, DocumentError> {
    let raw: Vec<Box<serde_json::value::RawValue>> = document.get("members")?.unwrap_or_default();
    raw.iter().map(|row| Document::parse(row.get().as_bytes())).collect()
}

/// What a worker says of one teammate it runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerTeammate {
    /// When the harness last saw it get on.
    pub progress: UnixMs,
    /// The task it holds.
    #[serde(default)]
    pub task: Option<TaskId>,
    /// Its attempt of that task.
    #[serde(default)]
    pub attempt: Option<u32>,
    /// The process groups of its running commands.
    #[serde(default)]
    pub process_groups: Vec<i32>,
    /// The guards of its running commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<GuardProcess>,
}

/// The process that guards a command: which one it is, also when its number was used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GuardProcess {
    /// Its number.
    pub pid: i32,
    /// When it started, in milliseconds since boot; 0 where the system does not say.
    pub started_ms: u64,
}

/// A command that runs: what is needed to end it when nobody else does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningCommand {
    /// Its process group.
    pub group: i32,
    /// Its guard.
    pub guard: GuardProcess,
}

/// `.team/workers/<worker>.json`: a process that runs teammates. It lives as long as the lock beside it is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Version of the form.
    pub v: u32,
    /// The worker's id, as claims name it.
    pub worker: String,
    /// Its team.
    pub team: String,
    /// The machine it runs on.
    pub host: String,
    /// Its process, for display and signals.
    pub pid: u32,
    /// The machine's boot, so that a process id of an earlier boot is never signalled.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// When it started.
    pub started: UnixMs,
    /// When it last said so.
    pub heartbeat: UnixMs,
    /// That time in milliseconds since the boot, by a clock that never jumps; 0 where the system does not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uptime_ms: u64,
    /// Its teammates.
    #[serde(default)]
    pub teammates: BTreeMap<String, WorkerTeammate>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// `<worktree>/.agent/state.json`, which other runners read and write too. Times in Unix milliseconds; empties are left out
/// except those the contract names as always present.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorktreeState {
    /// The task's number as text.
    pub issue_id: String,
    /// `<team>/task-<id>`: the guard against taking over another task's worktree.
    pub issue_identifier: String,
    /// The session it belongs to.
    pub session_id: String,
    /// The provider that runs it.
    pub provider_name: String,
    /// The provider's own session.
    pub provider_session_id: String,
    /// What kind of work it is.
    pub work_type: String,
    /// How far it got.
    pub current_step: String,
    /// Attempts so far.
    pub attempt_count: i64,
    /// When the session started.
    pub started_at: i64,
    /// When this file was last written.
    pub last_updated_at: i64,
    /// When the runner last saw it alive; 0: never.
    pub last_heartbeat: i64,
    /// The process, 0: none.
    pub pid: i64,
    /// The worker that owns it.
    pub worker_id: String,
    /// The file it was read from, with the fields of others.
    pub document: Document,
}

impl WorktreeState {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// [`DocumentError`]: the file is malformed.
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

    /// The file's text.
    #[must_use]
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
