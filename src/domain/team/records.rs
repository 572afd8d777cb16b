//! The records beside the board that are small files: the roster, a worker and the lead. Pure: text in, text out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::domain::log::snapshot::is_default;
use crate::domain::task::TaskId;
use crate::domain::text::json_document::{Document, DocumentError};
use crate::domain::text::words::words;
use crate::domain::time::UnixMs;

words! {
    /// A member's status in the roster, in the words of the file format.
    pub enum MemberStatus {
        /// It is in its WORK phase.
        Working = "working",
        /// It is in its IDLE phase, or on call.
        Idle = "idle",
        /// It has stopped.
        Shutdown = "shutdown",
    }
}

/// A member of the roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RosterMember {
    /// Name of the member.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Its status.
    pub status: MemberStatus,
    /// The program that started it.
    pub started_by: StartedBy,
}

/// The program that started a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartedBy {
    /// Another program.
    Outside,
    /// Brigade.
    Brigade {
        /// The member's team.
        team: String,
        /// The settings of a teammate that the lead spawned. The config has the settings of the others.
        spawned: Option<SpawnSettings>,
    },
}

/// The settings of a teammate that the lead spawned, with which a later launch starts it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnSettings {
    /// Its instructions.
    pub prompt: String,
    /// The provider of its model.
    pub provider: String,
    /// The name of its model.
    pub model: String,
}

/// The value of `startedBy` in the rows of members that Brigade started.
const BRIGADE: &str = "brigade";
/// The fields of a row that Brigade writes.
const ROW_FIELDS: [&str; 8] = ["name", "role", "status", "startedBy", "team", "prompt", "provider", "model"];

impl RosterMember {
    /// Returns true if another program started it.
    pub fn is_outside(&self) -> bool {
        self.started_by == StartedBy::Outside
    }

    /// Returns the settings of a teammate that the lead of `team` spawned.
    pub fn spawned_in(&self, team: &str) -> Option<&SpawnSettings> {
        match &self.started_by {
            StartedBy::Brigade { team: own, spawned } if own == team => spawned.as_ref(),
            _ => None,
        }
    }

    /// Returns true if it can work with this team: another program started it, or Brigade started it for the team.
    pub fn is_colleague_in(&self, team: &str) -> bool {
        match &self.started_by {
            StartedBy::Outside => true,
            StartedBy::Brigade { team: own, .. } => own == team,
        }
    }

    fn of_row(row: &Document) -> Option<Self> {
        let text = |field: &str| row.get::<String>(field).ok().flatten();
        let spawned = || {
            let (prompt, model) = (text("prompt").unwrap_or_default(), text("model").unwrap_or_default());
            Some(SpawnSettings { prompt, provider: text("provider")?, model })
        };
        let started_by = match text("startedBy") {
            Some(by) if by == BRIGADE => {
                StartedBy::Brigade { team: text("team").unwrap_or_default(), spawned: spawned() }
            }
            _ => StartedBy::Outside,
        };
        Some(Self {
            name: text("name")?,
            role: text("role").unwrap_or_default(),
            status: row.get("status").ok().flatten().unwrap_or(MemberStatus::Shutdown),
            started_by,
        })
    }

    fn write_to(&self, row: &mut Document) {
        row.put("name", &self.name);
        row.put("role", &self.role);
        row.put("status", &self.status);
        let StartedBy::Brigade { team, spawned } = &self.started_by else { return };
        row.put("startedBy", &BRIGADE);
        row.put("team", team);
        let settings = spawned.as_ref();
        row.set_optional("prompt", settings.map(|spawned| &spawned.prompt));
        row.set_optional("provider", settings.map(|spawned| &spawned.provider));
        row.set_optional("model", settings.map(|spawned| &spawned.model));
    }
}

/// Returns `.team/config.json` with `members` merged in, without the rows of `removed` that Brigade started. Members of other programs
/// keep their fields and positions. An empty `team` keeps the name in the file.
///
/// # Errors
/// [`DocumentError`] if `file` is not a roster.
pub fn merge_roster(
    file: Option<&[u8]>,
    team: &str,
    members: &[RosterMember],
    removed: &BTreeSet<String>,
) -> Result<String, DocumentError> {
    let mut document = file.map_or_else(|| Ok(Document::default()), Document::parse)?;
    let mut rows: Vec<Document> = parse_members(&document)?;
    rows.retain(|row| !is_removable(row, removed));
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
        member.write_to(&mut rows[index]);
    }
    if !team.is_empty() || !document.contains("team_name") {
        document.put("team_name", &team);
    }
    document.put("members", &rows);
    Ok(document.to_pretty())
}

/// Returns the members in a roster file.
///
/// # Errors
/// [`DocumentError`] if `file` is not a roster.
pub fn read_roster(file: &[u8]) -> Result<Vec<RosterMember>, DocumentError> {
    let rows = parse_members(&Document::parse(file)?)?;
    Ok(rows.iter().filter_map(RosterMember::of_row).collect())
}

/// Returns true if the row is to be removed, and no other program has written into it. `removed` has names in lower case.
fn is_removable(row: &Document, removed: &BTreeSet<String>) -> bool {
    let Some(member) = RosterMember::of_row(row).filter(|member| !member.is_outside()) else { return false };
    removed.contains(&member.name.to_ascii_lowercase()) && row.field_names().all(|field| ROW_FIELDS.contains(&field))
}

fn parse_members(document: &Document) -> Result<Vec<Document>, DocumentError> {
    let raw: Vec<Box<serde_json::value::RawValue>> = document.get("members")?.unwrap_or_default();
    raw.iter().map(|row| Document::parse(row.get().as_bytes())).collect()
}

/// A worker's record of one of its teammates.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTeammate {
    /// Time of the last progress that the harness saw.
    pub progress: UnixMs,
    /// The task it holds.
    pub task: Option<TaskId>,
    /// Its attempt of that task.
    pub attempt: Option<u32>,
    /// The process groups of its running commands.
    pub process_groups: Vec<i32>,
    /// The guards of its running commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
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
    pub fn mark(&self) -> String {
        format!("{}-{}", self.pid, self.started_ms)
    }
}
