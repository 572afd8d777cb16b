//! The small whole-file records beside the board: roster, worker, worktree state. Pure: text in, text out.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::json_document::{Document, DocumentError};
use super::snapshot::is_default;
use super::task::TaskId;
use super::time::UnixMs;

/// A member's status in the roster, in the words of the file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberStatus {
    /// It is in its WORK phase.
    Working,
    /// It is in its IDLE phase, or on call.
    Idle,
    /// It has stopped.
    Shutdown,
}

/// A member of the roster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterMember {
    /// Name of the member.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Its status.
    pub status: MemberStatus,
}

/// Returns `.team/config.json` with `members` merged in. Members of other programs keep their fields and positions.
///
/// # Errors
/// [`DocumentError`] if `file` is not a roster.
pub fn merge_roster(file: Option<&[u8]>, team: &str, members: &[RosterMember]) -> Result<String, DocumentError> {
    let mut document = file.map_or_else(|| Ok(Document::default()), Document::parse)?;
    let mut rows: Vec<Document> = parse_members(&document)?;
    let mut positions: HashMap<String, usize> = HashMap::with_capacity(rows.len());
    for (position, row) in rows.iter().enumerate() {
        if let Ok(Some(name)) = row.get::<String>("name") {
            positions.entry(name.to_ascii_lowercase()).or_insert(position);
        }
    }
    for member in members {
        let index = *positions.entry(member.name.to_ascii_lowercase()).or_insert_with(|| {
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

/// Returns the members in a roster file.
///
/// # Errors
/// [`DocumentError`] if `file` is not a roster.
pub fn read_roster(file: &[u8]) -> Result<Vec<RosterMember>, DocumentError> {
    let rows = parse_members(&Document::parse(file)?)?;
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

fn parse_members(document: &Document) -> Result<Vec<Document>, DocumentError> {
    let raw: Vec<Box<serde_json::value::RawValue>> = document.get("members")?.unwrap_or_default();
    raw.iter().map(|row| Document::parse(row.get().as_bytes())).collect()
}

/// A worker's record of one of its teammates.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerTeammate {
    /// Time of the last progress that the harness saw.
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

/// The guard process of a command. The start time identifies it even if its process id is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GuardProcess {
    /// Process id.
    pub pid: i32,
    /// Start time in milliseconds since boot; 0 if the system does not tell.
    pub started_ms: u64,
}

/// A running command, with the data needed to end it after its worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningCommand {
    /// Id of its process group.
    pub group: i32,
    /// Its guard.
    pub guard: GuardProcess,
}

/// `.team/workers/<worker>.json`: a process that runs teammates. It is alive while the lock file next to the record is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Format version.
    pub v: u32,
    /// Id of the worker, as in claims.
    pub worker: String,
    /// Name of its team.
    pub team: String,
    /// The host it runs on.
    pub host: String,
    /// Process id, for display and signals.
    pub pid: u32,
    /// Boot id of the host, so that a process id of an earlier boot is never signalled.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Start time.
    pub started: UnixMs,
    /// Time of the last heartbeat.
    pub heartbeat: UnixMs,
    /// The heartbeat's time in milliseconds since boot, by a monotonic clock; 0 if the system does not tell.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uptime_ms: u64,
    /// Its teammates by name.
    #[serde(default)]
    pub teammates: BTreeMap<String, WorkerTeammate>,
}

/// The record of the process that leads a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadRecord {
    /// The team.
    pub team: String,
    /// The process id of the lead.
    pub pid: u32,
    /// The start time of that process, in milliseconds since boot; 0 if the system has none.
    #[serde(default)]
    pub started_ms: u64,
    /// The boot id of its machine.
    #[serde(default)]
    pub boot: String,
}

impl LeadRecord {
    /// Returns the mark that commands of its team inherit.
    #[must_use]
    pub fn mark(&self) -> String {
        format!("{}-{}", self.pid, self.started_ms)
    }
}
