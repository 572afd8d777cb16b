//! Wakes the members that have something to do.

use super::Lead;
use crate::domain::task::claim_queue::Candidate;
use crate::domain::team::name::Name;
use crate::team::running_member::{ExitReason, RunningMember};

impl Lead {
    /// Wakes one fit idle member for each claimable task, and idle members with mail. No member is woken twice. A teammate that ended
    /// because it was idle is started for its mail, or for a task without a running member that is free.
    pub(super) async fn wake(&mut self) {
        self.mail.wake(&self.members);
        if !self.members.work_gates().teammates_work {
            return;
        }
        let ended = self.members.teammates().filter(|member| member.has_ended_idle());
        let ended = ended.filter(|member| self.mail.has_mail_to_answer(member));
        let names: Vec<Name> = ended.map(|member| member.spec.name.clone()).collect();
        names.iter().for_each(|name| self.wake_member(name));
        let available = self.available_members();
        let mut woken = self.members_to_wake(&available);
        if woken.iter().any(|name| self.members.by_name[name].has_ended_idle()) {
            // A member that works now may have claimed the task after the board was read. The board shows the claims of all members
            // that are not in `available`, because it is read after them.
            if !self.read_board().await {
                return;
            }
            woken = self.members_to_wake(&available);
        }
        woken.iter().for_each(|name| self.wake_member(name));
    }

    /// Returns the teammates that could claim a task now: those that run, then those that ended because they were idle.
    fn available_members(&self) -> Vec<Name> {
        let is_available = |member: &&RunningMember| member.is_ready() || member.has_ended_idle();
        let mut available: Vec<&RunningMember> = self.members.teammates().filter(is_available).collect();
        // After a poll, another member is woken first, in case the first one does not answer.
        let shift = self.timers.polls.checked_rem(available.len()).unwrap_or(0);
        available.rotate_left(shift);
        available.sort_by_key(|member| member.has_ended_idle());
        available.into_iter().map(|member| member.spec.name.clone()).collect()
    }

    /// Returns one of these members for each task that is claimable on the board as it was last read.
    fn members_to_wake(&mut self, available: &[Name]) -> Vec<Name> {
        let candidates: Vec<Candidate<'_>> =
            available.iter().map(|name| self.members.by_name[name].as_candidate()).collect();
        let woken = self.board.queue.members_to_wake(self.services.clock.now(), &candidates);
        woken.into_iter().map(|index| available[index].clone()).collect()
    }

    fn wake_member(&mut self, name: &Name) {
        let Some(member) = self.members.by_name.get_mut(name) else { return };
        if !member.has_ended_idle() {
            member.wake();
            return;
        }
        let spec = member.spec.clone();
        if let Err(reason) = self.members.spawn(spec, 0) {
            self.services.events.warn(name.as_str(), reason.as_str());
            self.members.set_exit(name, ExitReason::Failed(reason));
        }
    }
}
