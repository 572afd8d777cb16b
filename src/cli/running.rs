//! The team that runs in a workspace, and the process that leads it, as a command sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::CliResult;
use crate::domain::state::{Mode, SharedState, TeammateReport};
use crate::domain::time::UnixMs;
use crate::platform;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::workers::FileWorkers;
use crate::stores::file::workers::lead::LOCK_FILE;
use crate::stores::open::{leader, recorded_leader};
use crate::ui::stillness::Stillness;

/// The process that leads a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadProcess {
    /// Its team.
    pub team: String,
    /// Its number.
    pub pid: u32,
    /// True if that number is certainly the lead's: then it may be signalled. Where the system tells no start times it is taken to be.
    pub is_certain: bool,
    /// The machine it runs on, where its record says so.
    pub host: Option<String>,
    /// Its last sign of life, where anything says so.
    pub heartbeat: Option<UnixMs>,
    /// True if the system says that it is suspended.
    pub is_suspended: bool,
}

/// A lead that gave no sign of life for longer than this is said to: it gives one every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);

impl LeadProcess {
    /// The reason why it does not go on, if known: it is suspended, or has given no sign of life for too long.
    #[must_use]
    pub fn stillness(&self, now: UnixMs) -> Option<Stillness> {
        if self.is_suspended {
            return Some(Stillness::Suspended);
        }
        let silence = self.heartbeat.map(|heartbeat| now.since(heartbeat)).filter(|silence| *silence > SILENCE_MAX);
        silence.map(Stillness::Silent)
    }
}

/// The team that runs in a workspace, and the contents of its state file.
#[derive(Debug, Clone, Default)]
pub struct Running {
    /// The team that runs.
    pub team: Option<String>,
    /// The process that leads it.
    pub lead: Option<LeadProcess>,
    /// The ids of all workers that live.
    pub workers: Vec<String>,
    /// The mark of the team's commands, for one of them that sees no workers: see [`crate::sandbox::WORKER_VARIABLE`].
    pub hidden_workers: Option<String>,
    /// The lock of the lead, where a process holds it that no record names as a lead: that process, where the system tells it.
    pub stray: Option<StrayLock>,
    /// The desired state.
    pub desired: Option<Mode>,
    /// The state file.
    pub state: Option<SharedState>,
}

/// The lock of the lead in the hands of a process that is not known to lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrayLock {
    path: PathBuf,
    holder: Option<platform::LockHolder>,
}

impl StrayLock {
    /// The holder and the lock, in words.
    #[must_use]
    pub fn says(&self) -> String {
        let path = self.path.display();
        match &self.holder {
            Some(holder) => format!("{holder} holds {path}, and no record names it as the lead of a team"),
            None => format!("a process holds {path}, and no record names it as the lead of a team"),
        }
    }

    /// The way to release the lock.
    #[must_use]
    pub fn remedy(&self) -> String {
        match &self.holder {
            Some(holder) => format!("end it (kill {}): no team can run until then", holder.pid),
            None => {
                format!("find it with lsof {} and end it: no team can run until then", self.path.display())
            }
        }
    }
}

impl Running {
    /// The team that runs in `workspace`, without the state. `own_mark` is the mark of the team whose command this process is, if it is
    /// one.
    ///
    /// # Errors
    /// The workspace cannot be read.
    pub fn of(workspace: &Path, workers: &FileWorkers, own_mark: Option<&str>) -> CliResult<Self> {
        let living = workers.living()?;
        let leader = match leader(workspace)? {
            Some(leader) if leader.is_unknown() => {
                let path = workspace.join(TEAM_FOLDER).join(LOCK_FILE);
                let stray = Some(StrayLock { holder: platform::lock_holder(&path), path });
                let workers = living.into_iter().map(|worker| worker.worker).collect();
                return Ok(Self { stray, workers, ..Self::default() });
            }
            // A confined command of the team sees neither its lead's process nor the workers.
            None => recorded_leader(workspace).filter(|leader| own_mark == Some(leader.mark().as_str())),
            known => known,
        };
        let mark = leader.as_ref().map(|leader| leader.mark()).filter(|mark| own_mark == Some(mark.as_str()));
        let hidden_workers = mark.filter(|_| living.is_empty());
        let lead = leader.map(|leader| {
            let record = living.iter().find(|worker| worker.pid == leader.pid);
            let is_here = record.is_some_and(|record| record.host == platform::host_name());
            let process = i32::try_from(leader.pid).ok().filter(|_| is_here).and_then(platform::processes::process);
            LeadProcess {
                is_certain: leader.lives() == Some(true) || platform::processes::own_start_ms() == 0,
                is_suspended: process.is_some_and(|process| process.is_suspended),
                host: record.map(|record| record.host.clone()),
                heartbeat: record.map(|record| record.heartbeat),
                team: leader.team,
                pid: leader.pid,
            }
        });
        let workers = living.into_iter().map(|worker| worker.worker).collect();
        let team = lead.as_ref().map(|lead| lead.team.clone());
        Ok(Self { team, lead, workers, hidden_workers, ..Self::default() })
    }
}

/// The last sign of life that a team's lead gave in the state file.
pub(super) fn heartbeat_in(state: &SharedState, team: &str) -> Option<UnixMs> {
    let of_team = state.team();
    let teammates: BTreeMap<String, TeammateReport> = state.document.get("teammates").ok().flatten()?;
    let reports = teammates.values().map(|report| report.heartbeat.clone());
    let reports = reports.chain(state.lead().map(|lead| lead.heartbeat.clone()));
    reports.filter_map(|heartbeat| UnixMs::from_iso(&heartbeat)).max().filter(|_| of_team.as_deref() == Some(team))
}
