//! Wakes the members that have something to do.

use super::Lead;
use crate::domain::claim_queue::Candidate;
use crate::domain::name::Name;
use crate::team::running_member::{ExitReason, RunningMember};

impl Lead {
    /// Wakes one fit idle member for each claimable task, and idle members with mail. No member is woken twice. A teammate that ended
    /// because it was idle is started for its mail, or for a task without a running member that is free.
    pub(super) fn wake(&mut self) {
        self.mail.wake(&self.members);
        let work_gate = self.members.work_gates().teammates;
        if work_gate.read_mail {
            let ended = self.members.teammates().filter(|member| member.has_ended_idle());
            let ended = ended.filter(|member| self.mail.has_mail_to_answer(member));
            let names: Vec<Name> = ended.map(|member| member.spec.name.clone()).collect();
            names.iter().for_each(|name| self.wake_member(name));
        }
        if !work_gate.claim {
            return;
        }
        let is_available = |member: &&RunningMember| member.is_ready() || member.has_ended_idle();
        let mut ready: Vec<&RunningMember> = self.members.teammates().filter(is_available).collect();
        if ready.is_empty() {
            return;
        }
        // After a poll, another member is woken first, in case the first one does not answer.
        let shift = self.timers.polls % ready.len();
        ready.rotate_left(shift);
        ready.sort_by_key(|member| member.has_ended_idle());
        let idle: Vec<Candidate<'_>> = ready.iter().map(|member| member.as_candidate()).collect();
        let woken = self.board.queue.members_to_wake(self.services.clock.now(), &idle);
        let names: Vec<Name> = woken.into_iter().map(|index| ready[index].spec.name.clone()).collect();
        names.iter().for_each(|name| self.wake_member(name));
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
