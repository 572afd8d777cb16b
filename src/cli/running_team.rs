//! The team that runs in a workspace, and the process of its lead, as a command sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::CliResult;
use crate::domain::state::{Mode, SharedState, TeammateReport};
use crate::domain::time::UnixMs;
use crate::platform;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::workers::FileWorkers;
use crate::stores::file::workers::leader_lock::LOCK_FILE;
use crate::stores::workspace::{current_leader, recorded_leader};
use crate::ui::lead_health::LeadHealth;

/// The process of a team's lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadProcess {
    /// The name of the team.
    pub team: String,
    /// The id of the process.
    pub pid: u32,
    /// True if `pid` is certainly the lead's process, so that it may be signalled. On systems without start times of processes it is
    /// always true.
    pub is_certain: bool,
    /// The machine that the lead runs on, if its record names one.
    pub host: Option<String>,
    /// The last heartbeat of the lead, if known.
    pub heartbeat: Option<UnixMs>,
    /// True if the system reports the process as suspended.
    pub is_suspended: bool,
}

/// The age of the last heartbeat after which a lead counts as silent. A lead writes one every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);

impl LeadProcess {
    /// The reason why the lead does not work, if known: its process is suspended, or its last heartbeat is too old.
    #[must_use]
    pub fn health(&self, now: UnixMs) -> Option<LeadHealth> {
        if self.is_suspended {
            return Some(LeadHealth::Suspended);
        }
        let silence = self.heartbeat.map(|heartbeat| now.since(heartbeat)).filter(|silence| *silence > SILENCE_MAX);
        silence.map(LeadHealth::Silent)
    }
}

/// The team that runs in a workspace, and the contents of its state file.
#[derive(Debug, Clone, Default)]
pub struct RunningTeam {
    /// The name of the team.
    pub team: Option<String>,
    /// The process of its lead.
    pub lead: Option<LeadProcess>,
    /// The ids of all live workers.
    pub workers: Vec<String>,
    /// The mark of the team, if this process is a command of that team and its sandbox hides the workers; see
    /// [`crate::sandbox::WORKER_VARIABLE`].
    pub own_team_mark: Option<String>,
    /// The lock of the lead, if a process holds it that no record names as a lead.
    pub unrecorded_lock: Option<UnrecordedLock>,
    /// The desired state.
    pub desired: Option<Mode>,
    /// The state file.
    pub state: Option<SharedState>,
}

/// The lock of the lead, held by a process that is not known as a lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnrecordedLock {
    path: PathBuf,
    holder: Option<platform::LockHolder>,
}

impl UnrecordedLock {
    /// The holder and the lock as a sentence without a full stop.
    #[must_use]
    pub fn message(&self) -> String {
        let path = self.path.display();
        match &self.holder {
            Some(holder) => format!("{holder} holds {path}, and no record names it as the lead of a team"),
            None => format!("a process holds {path}, and no record names it as the lead of a team"),
        }
    }

    /// The steps that release the lock.
    #[must_use]
    pub fn remedy(&self) -> String {
        match &self.holder {
            Some(holder) => format!("end it (`kill {}`): no team can run until then", holder.pid),
            None => {
                format!("find it with `lsof {}` and end it: no team can run until then", self.path.display())
            }
        }
    }
}

impl RunningTeam {
    /// The team that runs in `workspace`, without the state file. `own_mark` is set if this process is a command of a team: it is that
    /// team's mark.
    ///
    /// # Errors
    /// The workspace cannot be read.
    pub fn of(workspace: &Path, workers: &FileWorkers, own_mark: Option<&str>) -> CliResult<Self> {
        let live_workers = workers.live_records()?;
        let leader = match current_leader(workspace)? {
            Some(leader) if leader.is_unknown() => {
                let path = workspace.join(TEAM_FOLDER).join(LOCK_FILE);
                let unrecorded_lock = Some(UnrecordedLock { holder: platform::lock_holder(&path), path });
                let workers = live_workers.into_iter().map(|worker| worker.worker).collect();
                return Ok(Self { unrecorded_lock, workers, ..Self::default() });
            }
            // A command in the team's sandbox sees neither the lead's process nor the workers.
            None => recorded_leader(workspace).filter(|leader| own_mark == Some(leader.mark().as_str())),
            known => known,
        };
        let mark = leader.as_ref().map(|leader| leader.mark()).filter(|mark| own_mark == Some(mark.as_str()));
        let own_team_mark = mark.filter(|_| live_workers.is_empty());
        let lead = leader.map(|leader| {
            let record = live_workers.iter().find(|worker| worker.pid == leader.pid);
            let is_on_this_host = record.is_some_and(|record| record.host == platform::host_name());
            let process =
                i32::try_from(leader.pid).ok().filter(|_| is_on_this_host).and_then(platform::processes::process);
            LeadProcess {
                is_certain: leader.is_running() == Some(true) || platform::processes::own_start_ms() == 0,
                is_suspended: process.is_some_and(|process| process.is_suspended),
                host: record.map(|record| record.host.clone()),
                heartbeat: record.map(|record| record.heartbeat),
                team: leader.team,
                pid: leader.pid,
            }
        });
        let workers = live_workers.into_iter().map(|worker| worker.worker).collect();
        let team = lead.as_ref().map(|lead| lead.team.clone());
        Ok(Self { team, lead, workers, own_team_mark, ..Self::default() })
    }
}

/// The newest heartbeat of the team in the state file.
pub(super) fn heartbeat_in(state: &SharedState, team: &str) -> Option<UnixMs> {
    let of_team = state.team();
    let teammates: BTreeMap<String, TeammateReport> = state.document.get("teammates").ok().flatten()?;
    let reports = teammates.values().map(|report| report.heartbeat.clone());
    let reports = reports.chain(state.lead().map(|lead| lead.heartbeat.clone()));
    reports.filter_map(|heartbeat| UnixMs::from_iso(&heartbeat)).max().filter(|_| of_team.as_deref() == Some(team))
}
