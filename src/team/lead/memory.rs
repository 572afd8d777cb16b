//! The lead's memory between events.

use std::collections::{BTreeMap, HashMap, HashSet};

use tokio::time::Instant;

use super::leadership::VanishedTask;
use crate::domain::approval::Request;
use crate::domain::name::Name;
use crate::domain::phase::ClaimRef;
use crate::domain::state::{DesiredStateChange, StateReport};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::team::handle::TeamEnd;

/// A stop of the team in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopInProgress {
    /// The result of the run.
    pub end: TeamEnd,
    /// The time at which running turns are aborted.
    pub until: Instant,
}

/// The lead's memory between events.
pub(super) struct LeadState {
    pub stopping: Option<StopInProgress>,
    pub timers: Timers,
    pub mail: MailMemory,
    /// The plans and reviews that wait for an answer.
    pub approvals: Vec<Request>,
    pub claims: ClaimMemory,
    pub state_file: StateFileMemory,
    pub leadership: LeadershipMemory,
    /// The generation of the supervisor's status that the roster has.
    pub roster_generation: u64,
    /// The current wait of the session for tasks, while no member works.
    pub session_wait: Option<SessionWait>,
}

impl LeadState {
    pub fn new(now: Instant) -> Self {
        Self {
            stopping: None,
            timers: Timers { last_poll: now, last_tick: now, last_heartbeat: now, polls: 0 },
            mail: MailMemory::default(),
            approvals: Vec::new(),
            claims: ClaimMemory::default(),
            state_file: StateFileMemory::default(),
            leadership: LeadershipMemory::default(),
            roster_generation: 0,
            session_wait: None,
        }
    }
}

/// The last times of regular steps.
pub(super) struct Timers {
    pub last_poll: Instant,
    pub last_tick: Instant,
    pub last_heartbeat: Instant,
    pub polls: usize,
}

/// The mail at the last poll.
#[derive(Default)]
pub(super) struct MailMemory {
    pub waiting: Vec<WaitingMail>,
    /// Recipients whose mail cannot be read.
    pub unreadable: Vec<String>,
    /// Members that were woken for their mail since the last poll.
    pub woken: HashSet<Name>,
}

/// Claims that the lead watches.
#[derive(Default)]
pub(super) struct ClaimMemory {
    /// Claims of this worker that no member holds, with the time at which they were first found.
    pub unheld: HashMap<ClaimRef, Instant>,
    /// The ends of leases of claims by command, on a clock that does not jump. Key: the claim and its end on the wall clock.
    pub leases: BTreeMap<(ClaimRef, UnixMs), Instant>,
}

/// The state file at the last poll.
#[derive(Default)]
pub(super) struct StateFileMemory {
    pub unknown_desired: Option<String>,
    /// The reason why it cannot be read.
    pub error: Option<String>,
    /// The end of a mode that is not written yet.
    pub unwritten_end: Option<DesiredStateChange>,
    pub last_report: Option<StateReport>,
}

/// Signs that the lead lost its board or its lock.
#[derive(Default)]
pub(super) struct LeadershipMemory {
    /// Tasks that vanished without being deleted.
    pub vanished: BTreeMap<TaskId, VanishedTask>,
    /// True if the lead stops because it cannot continue.
    pub has_resigned: bool,
}

/// The waiting mail of one recipient.
pub(super) struct WaitingMail {
    pub to: String,
    /// True if it would start a turn.
    pub starts_turn: bool,
}

/// A wait of the session for tasks that no member works on.
pub(super) struct SessionWait {
    pub tasks: Vec<TaskId>,
    pub since: Instant,
    pub is_reported: bool,
}
