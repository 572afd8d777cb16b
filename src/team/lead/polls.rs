//! The lead's polls of stores and members. Hints make them early; the regular poll misses nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::Lead;
use crate::domain::task::TaskId;
use crate::domain::team::name::Name;
use crate::domain::team::state::Mode;
use crate::ports::{LeadHolder, LeadershipCheck};
use crate::team::handle::TeamEnd;
use crate::team::running_member::RunningMember;
use crate::team::teammate::TeammateCommand;

impl Lead {
    /// Polls everything, in case a hint was missed.
    pub(super) async fn poll(&mut self) {
        self.timers.last_poll = Instant::now();
        self.timers.polls = self.timers.polls.wrapping_add(1);
        self.members.by_name.values_mut().for_each(|member| member.commands.reset_wake_throttle());
        self.mail.forget_wakes();
        self.check_leadership().await;
        self.write_end().await;
        self.board.claims.reclaim_lost(&self.services, &self.board.view).await;
        self.members.spawn_context.storage.probe();
        self.poll_state().await;
        self.poll_board().await;
        self.board.report_vanished(&self.services.events);
        self.board.claims.reclaim_unheld(&self.services, &self.board.view, &self.members).await;
        self.members.restore_roster().await;
        self.poll_mail().await;
        self.poll_approvals().await;
    }

    pub(super) async fn poll_mail(&mut self) {
        self.mail.poll(&self.services, &mut self.members).await;
    }

    pub(super) async fn poll_approvals(&mut self) {
        self.approvals.poll(&self.services, &self.board.view, &self.members).await;
    }

    pub(super) async fn poll_state(&mut self) {
        let desired = self.steering.read(&self.services).await;
        self.follow(desired);
    }

    /// Reads the board, and tells members which claims they lost.
    pub(super) async fn poll_board(&mut self) {
        if !self.read_board().await {
            return;
        }
        self.services.events.request_board_read();
        for member in self.members.by_name.values_mut() {
            if let Some(claim) = member.progress.claim()
                && self.board.has_lost(&member.spec.name, claim)
            {
                member.commands.send_claim_lost(claim);
            }
        }
    }

    /// Reads the board. Returns false if it cannot be read.
    pub(super) async fn read_board(&mut self) -> bool {
        match self.board.refresh(&self.services.stores).await {
            Ok(vanished) if vanished.is_empty() => {}
            Ok(vanished) => {
                // The board vanishes with its workspace. Then the lead resigns, and its reason names the workspace.
                self.check_leadership().await;
                if !self.stop.has_resigned() {
                    self.board.record_vanished(vanished);
                }
            }
            Err(error) => {
                self.services.events.warn("board", error.to_string());
                return false;
            }
        }
        true
    }

    /// Returns true if a teammate works or a task is claimed. In a run of one session, a teammate does not count if its plan waits for a
    /// lead that cannot work. It releases its task, and a later run continues it.
    pub(super) fn has_task_in_progress(&self) -> bool {
        let is_lead_lost = self.members.lead().is_some_and(|lead| !lead.is_usable());
        let waits_in_vain = |member: &RunningMember| {
            let is_answer_lost = is_lead_lost && self.session.only_session.is_some();
            is_answer_lost && member.waits_for_approval() && self.approvals.is_plan_for_lead_open(&member.spec.name)
        };
        let (waiting, others): (Vec<_>, Vec<_>) = self.members.teammates().partition(|member| waits_in_vain(member));
        let claims: Vec<TaskId> =
            waiting.iter().filter_map(|member| member.progress.claim()).map(|claim| claim.task).collect();
        others.into_iter().any(RunningMember::is_busy)
            || self.board.queue.claimed().iter().any(|task| !claims.contains(task))
    }

    /// Returns true if mail waits for a teammate that would act on it.
    pub(super) fn has_mail(&self) -> bool {
        self.mail.members_with_mail(&self.members).next().is_some()
    }

    /// Returns true if mail waits for a lead that would act on it.
    pub(super) fn has_lead_mail(&self) -> bool {
        self.members.lead().is_some_and(|lead| lead.is_usable() && self.mail.has_mail_to_answer(lead))
    }

    /// Checks for mail that must be read before the session ends. Under `pause`, mail waits.
    pub(super) async fn has_unread_mail(&mut self) -> bool {
        if self.steering.desired == Mode::Pause {
            return false;
        }
        self.poll_mail().await;
        self.has_mail()
    }

    /// Checks that this process still leads. A lead that lost the leadership lets its members finish their turns, and reclaims nothing.
    pub(super) async fn check_leadership(&mut self) {
        match self.services.stores.leadership.check().await {
            Ok(LeadershipCheck::Held) => {}
            Ok(LeadershipCheck::Restored) => {
                self.services.events.warn("lead", "the proof that this process leads was removed; it is restored");
                let names: Vec<Name> = self.members.teammates().map(|member| member.spec.name.clone()).collect();
                if let Err(error) = self.services.stores.mailbox.open_inboxes(&names).await {
                    self.services.events.warn("lead", format!("cannot open the inboxes again: {error}"));
                }
            }
            Ok(LeadershipCheck::Lost(LeadHolder { team, process })) => {
                let reason = format!("Another team, {team} ({process}), leads this workspace now.");
                self.resign(reason, TeammateCommand::Stop, self.services.spec.limits.stop_timeout);
            }
            Ok(LeadershipCheck::NoWorkspace) => {
                let folder = self.services.workspace.root.display();
                let reason = format!("The workspace {folder} is gone: it was removed or moved away.");
                self.resign(reason, TeammateCommand::Abort, Duration::ZERO);
            }
            Err(error) => tracing::warn!("cannot check the leadership: {error}"),
        }
    }

    fn resign(&mut self, reason: String, command: TeammateCommand, within: Duration) {
        if self.stop.resign() {
            self.services.events.warn("workspace", reason.as_str());
            self.session.result.error = Some(reason);
            self.stop.begin(TeamEnd::LeadershipLost, command, within, &mut self.members);
        }
    }
}
