//! The stop of the team.

use std::time::Duration;

use tokio::time::Instant;

use crate::team::handle::TeamEnd;
use crate::team::supervisor::Supervisor;
use crate::team::teammate::{TeammateCommand, WorkGates};

/// Time for a member to end after an abort command; its task is aborted then.
const ABORT_GRACE: Duration = Duration::from_secs(2);

/// A stop in progress, if there is one.
#[derive(Default)]
pub(super) struct Stop {
    in_progress: Option<StopInProgress>,
    /// True if the lead stops because it cannot continue.
    has_resigned: bool,
}

#[derive(Clone, Copy)]
struct StopInProgress {
    end: TeamEnd,
    /// The time at which running turns are aborted.
    abort_at: Instant,
    /// The same, while requests are open whose budget is reserved.
    abort_requests_at: Instant,
}

impl Stop {
    /// Returns true if the team is stopping.
    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    /// Returns the reason for the end, if the team is stopping.
    pub fn end(&self) -> Option<TeamEnd> {
        self.in_progress.map(|stop| stop.end)
    }

    /// Returns true if the lead stops because it cannot continue.
    pub fn has_resigned(&self) -> bool {
        self.has_resigned
    }

    /// Records that the lead cannot continue. Returns false if it has resigned before.
    pub fn resign(&mut self) -> bool {
        !std::mem::replace(&mut self.has_resigned, true)
    }

    /// Stops all members within this time. A second request can only shorten the time, and does not change the reason for the end.
    pub fn begin(&mut self, end: TeamEnd, command: TeammateCommand, within: Duration, members: &mut Supervisor) {
        let abort_at = Instant::now() + within;
        self.in_progress = Some(match self.in_progress {
            Some(stop) => StopInProgress {
                end: stop.end,
                abort_at: stop.abort_at.min(abort_at),
                abort_requests_at: stop.abort_requests_at.min(abort_at),
            },
            None => StopInProgress { end, abort_at, abort_requests_at: abort_at },
        });
        members.set_work_gates(WorkGates::default());
        members.by_name.values_mut().for_each(|member| member.stop(command.clone()));
    }

    /// Gives open requests this much more time.
    pub fn extend_for_requests(&mut self, more: Duration) {
        if let Some(stop) = &mut self.in_progress {
            stop.abort_requests_at += more;
        }
    }

    /// Aborts members that did not stop in time.
    pub fn enforce_deadline(&self, members: &Supervisor, has_open_requests: bool) {
        let Some(stop) = self.in_progress else { return };
        let abort_at = if has_open_requests { stop.abort_requests_at } else { stop.abort_at };
        let now = Instant::now();
        if now < abort_at {
            return;
        }
        for member in members.by_name.values().filter(|member| member.exit.is_none()) {
            if now >= abort_at + ABORT_GRACE {
                member.commands.abort();
            } else {
                member.commands.send(TeammateCommand::Abort);
            }
        }
    }
}
