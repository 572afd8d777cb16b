//! Member exits and commands: members are restarted within a limit, the team is stopped, teammates are spawned.

use std::time::Duration;

use tokio::time::Instant;

use super::Lead;
use super::memory::StopInProgress;
use crate::domain::event::{EventKind, NewEvent};
use crate::domain::name::{LEAD, Name};
use crate::domain::phase::ClaimRef;
use crate::domain::task::TaskStatus;
use crate::ports::ReclaimRequest;
use crate::team::handle::{Reply, TeamCommand, TeamEnd, member_row};
use crate::team::running_member::{ExitReason, RunningMember};
use crate::team::spec::{MEMBERS_MAX, MemberSpec};
use crate::team::supervisor::MemberExit;
use crate::team::teammate::TeammateCommand;

/// Time for a member to end after an abort command; its task is aborted then.
const ABORT_GRACE: Duration = Duration::from_secs(2);

/// The reason of a requested stop in its event.
const NO_REASON: &str = "";

impl Lead {
    /// Reports the end of a member. Restarts it after a failure, within a limit.
    pub(super) async fn handle_exit(&mut self, exit: MemberExit) {
        let Some(member) = self.members.by_name.get(&exit.name) else { return };
        let (spec, respawns, is_stopping) = (member.spec.clone(), member.respawns, member.is_stopping);
        let name = exit.name.to_string();
        let ExitReason::Failed(reason) = exit.reason else {
            let reason = if self.services.budget.spent().is_some() { "the budget is spent" } else { NO_REASON };
            self.report_stopped(&exit.name, reason.to_owned(), false);
            return;
        };
        self.reclaim_from(&exit.name, &reason, !exit.is_harness_failure).await;
        if is_stopping || self.state.stopping.is_some() {
            if let Some(member) = self.members.by_name.get_mut(&exit.name) {
                member.exit = Some(ExitReason::Requested);
            }
            self.report_stopped(&exit.name, NO_REASON.to_owned(), false);
            return;
        }
        if respawns >= self.spec.limits.respawns_max {
            let reason = format!("{reason}; restarted {respawns} times, which is the limit");
            if let Some(member) = self.members.by_name.get_mut(&exit.name) {
                member.exit = Some(ExitReason::Failed(reason.clone()));
            }
            self.report_stopped(&exit.name, reason, true);
            return;
        }
        let respawned = EventKind::TeammateRespawned { teammate: name.clone(), reason, respawns: respawns + 1 };
        let spawned = self.members.spawn(spec, None, respawns + 1);
        self.record_member(&exit.name, respawned);
        if let Err(reason) = spawned {
            self.report_stopped(&exit.name, reason, true);
        } else if name == LEAD {
            self.session.resend_prompt(self.members.lead());
        }
    }

    fn report_stopped(&self, name: &Name, reason: String, is_dead: bool) {
        self.record_member(name, EventKind::TeammateStopped { teammate: name.to_string(), reason, is_dead });
    }

    /// Records an event that changes the status of a member.
    fn record_member(&self, name: &Name, kind: EventKind) {
        let event = match self.members.by_name.get(name) {
            Some(member) => NewEvent::with_member(kind, member_row(self, member)),
            None => kind.into(),
        };
        self.services.events.record(event);
    }

    /// Reclaims everything that a stopped member holds on the board. `counts` is true if this is a failed attempt.
    async fn reclaim_from(&mut self, name: &Name, reason: &str, counts: bool) {
        let worker = self.services.stores.workers.worker_id().to_owned();
        match self.services.stores.board.view().await {
            Ok(view) => {
                let before = std::mem::replace(&mut self.view, view);
                self.record_vanished(&before).await;
            }
            Err(error) => return self.services.events.warn("board", error.to_string()),
        }
        let is_claimed_by_member = |task: &&std::sync::Arc<crate::domain::task::Task>| {
            task.status == TaskStatus::InProgress
                && task.claim.as_ref().is_some_and(|claim| claim.worker == worker)
                && task.owner.as_deref().is_some_and(|owner| name.is_same(owner))
        };
        let tasks = self.view.tasks.values().filter(is_claimed_by_member);
        let claims: Vec<ClaimRef> = tasks.map(|task| ClaimRef::of(task)).collect();
        if !claims.is_empty() {
            let reason = format!("{name} has stopped: {reason}");
            self.reclaim(ReclaimRequest { claims, counts, reason, ..ReclaimRequest::default() }).await;
            self.poll_board().await;
        }
    }

    pub(super) async fn handle_command(&mut self, command: TeamCommand) {
        match command {
            TeamCommand::Stop => self.stop(TeammateCommand::Stop, self.spec.limits.stop_timeout, TeamEnd::Interrupted),
            TeamCommand::Abort => {
                self.services.stores.workers.stop_waiting();
                self.stop(TeammateCommand::Abort, Duration::ZERO, TeamEnd::Interrupted);
            }
            TeamCommand::StopTeammate { name, now } => {
                if let Some(member) = self.members.by_name.get_mut(&name) {
                    member.stop(if now { TeammateCommand::Abort } else { TeammateCommand::Stop });
                }
            }
            TeamCommand::Compact { name, reply } => {
                if let Err(reason) = self.request_compaction(&name, reply.clone()) {
                    // The caller may be gone.
                    let _ = reply.try_send(Err(reason));
                }
            }
            TeamCommand::Spawn { spec, reply } => {
                let name = spec.name.clone();
                let spawned = self.spawn_at_run_time(spec).await;
                // The caller may have been aborted.
                let _ = reply.send(spawned.map(|()| format!("`{name}` is started; it claims tasks by itself.")));
            }
        }
    }

    /// Tells a member to compact its context, if it keeps one.
    fn request_compaction(&self, name: &str, reply: Reply) -> Result<(), String> {
        if self.state.stopping.is_some() {
            return Err("the team is stopping".to_owned());
        }
        let no_context = "uses the `runbook` provider and keeps no context, so there is nothing to compact";
        let Some(member) = self.members.by_name.values().find(|member| member.spec.name.is_same(name)) else {
            if LEAD.eq_ignore_ascii_case(name) {
                return Err(format!("the lead {no_context}"));
            }
            let names: Vec<&str> = self.members.by_name.keys().map(AsRef::as_ref).collect();
            return Err(format!("there is no member `{name}`; members: {}", names.join(", ")));
        };
        if member.exit.is_some() {
            return Err(format!("{} has stopped", member.spec.name));
        }
        if !member.is_llm {
            return Err(format!("{} {no_context}", member.spec.name));
        }
        member.send(TeammateCommand::Compact(reply));
        Ok(())
    }

    async fn spawn_at_run_time(&mut self, spec: MemberSpec) -> Result<(), String> {
        let name = spec.name.clone();
        // A restarted teammate keeps its configuration, but gets the new role and instructions.
        let spec = match self.members.by_name.get(&name).map(|member| member.spec.clone()) {
            Some(former) => MemberSpec { role: spec.role, prompt: spec.prompt, ..former },
            None => spec,
        };
        if self.state.stopping.is_some() {
            return Err("the team is stopping".to_owned());
        }
        if name.is_reserved() {
            return Err(format!("the name `{name}` is reserved"));
        }
        if let Some(other) = self.members.by_name.keys().find(|other| **other != name && other.is_same(name.as_str())) {
            return Err(format!("`{name}` and `{other}` differ only in case"));
        }
        if self.members.by_name.len() >= MEMBERS_MAX {
            return Err(format!("the team has {} members, which is the limit", self.members.by_name.len()));
        }
        let mailbox = &self.services.stores.mailbox;
        mailbox.open_inboxes(std::slice::from_ref(&name)).await.map_err(|error| error.to_string())?;
        self.members.spawn(spec.clone(), None, 0)?;
        self.live.add_member(&spec, self.members.by_name.get(&name).is_some_and(|member| member.is_llm));
        Ok(())
    }

    /// Stops the team within this time. A second request can only shorten the time, and does not change the reason for the end.
    pub(super) fn stop(&mut self, command: TeammateCommand, within: Duration, end: TeamEnd) {
        let until = Instant::now() + within;
        let stopping = self.state.stopping.map_or(StopInProgress { end, until }, |before| StopInProgress {
            until: before.until.min(until),
            ..before
        });
        self.state.stopping = Some(stopping);
        self.permissions.teammates.send_replace(Default::default());
        self.permissions.lead.send_replace(Default::default());
        self.members.by_name.values_mut().for_each(|member| member.stop(command.clone()));
    }

    /// Aborts members that did not stop in time.
    pub(super) fn enforce_stop_deadline(&self) {
        let Some(stopping) = self.state.stopping else { return };
        let late = Instant::now().saturating_duration_since(stopping.until);
        if Instant::now() < stopping.until {
            return;
        }
        for member in self.members.by_name.values().filter(|member| member.exit.is_none()) {
            if late >= ABORT_GRACE { RunningMember::abort(member) } else { member.send(TeammateCommand::Abort) }
        }
    }
}
