//! Lives and commands: members that end are started again within a bound, the team is stopped, teammates are spawned.

use std::time::Duration;

use tokio::time::Instant;

use super::{Lead, Stopping};
use crate::domain::event::Fact;
use crate::domain::name::{LEAD, Name};
use crate::domain::task::TaskStatus;
use crate::ports::LostClaims;
use crate::team::handle::{Command, End, Reply};
use crate::team::members::{Ended, Member};
use crate::team::spec::{MEMBERS_MAX, MemberSpec};
use crate::team::teammate::Control;

/// How long a life may take to end once it was told to end now; it is ended then.
const END_NOW_GRACE: Duration = Duration::from_secs(2);

impl Lead {
    pub(super) async fn member_ended(&mut self, ended: Ended) {
        let Some(member) = self.members.by_name.get(&ended.name) else { return };
        let (spec, respawns, is_stopping) = (member.spec.clone(), member.respawns, member.is_stopping);
        let name = ended.name.to_string();
        let Some(reason) = ended.reason else {
            let reason = if self.shared.purse.spent().is_some() { "the budget is spent" } else { "stopped as asked" };
            self.say_stopped(name, reason.to_owned(), false);
            return;
        };
        self.take_back_from(&ended.name, &reason, !ended.by_harness).await;
        if is_stopping || self.state.stopping.is_some() {
            if let Some(member) = self.members.by_name.get_mut(&ended.name) {
                member.gone = Some(String::new());
            }
            self.say_stopped(name, "stopped as asked".to_owned(), false);
            return;
        }
        if respawns >= self.spec.limits.respawns_max {
            let reason = format!("{reason}; started again {respawns} times, which is the limit");
            if let Some(member) = self.members.by_name.get_mut(&ended.name) {
                member.gone = Some(reason.clone());
            }
            self.say_stopped(name, reason, true);
            return;
        }
        self.shared.notes.fact(Fact::TeammateRespawned { teammate: name.clone(), reason, respawns: respawns + 1 });
        if let Err(reason) = self.members.spawn(spec, None, respawns + 1) {
            self.say_stopped(name, reason, true);
        } else if name == LEAD {
            self.session.prompt_again(self.members.lead());
        }
    }

    fn say_stopped(&self, teammate: String, reason: String, is_dead: bool) {
        self.shared.notes.fact(Fact::TeammateStopped { teammate, reason, is_dead });
    }

    /// Takes back whatever a member that is gone holds on the board, whether it knew so or not; `counts` as a failure of the task.
    async fn take_back_from(&mut self, name: &Name, reason: &str, counts: bool) {
        let me = self.shared.stores.workers.me().to_owned();
        match self.shared.stores.board.view().await {
            Ok(view) => {
                let before = std::mem::replace(&mut self.view, view);
                self.note_vanished(&before).await;
            }
            Err(error) => return self.shared.notes.warn("board", error.to_string()),
        }
        let is_its = |task: &&std::sync::Arc<crate::domain::task::Task>| {
            task.status == TaskStatus::InProgress
                && task.claim.as_ref().is_some_and(|claim| claim.worker == me)
                && task.owner.as_deref().is_some_and(|owner| name.is_same(owner))
        };
        let claims: Vec<_> = self.view.tasks.values().filter(is_its).map(|task| (task.id, task.attempt)).collect();
        if !claims.is_empty() {
            let reason = format!("{name} is gone: {reason}");
            self.take_back(LostClaims { claims, counts, reason, ..LostClaims::default() }).await;
            self.look_at_board().await;
        }
    }

    pub(super) async fn obey(&mut self, command: Command) {
        match command {
            Command::Stop => self.stop(Control::Stop, self.spec.limits.stop_timeout, End::Interrupted),
            Command::StopNow => {
                self.shared.stores.workers.stop_waiting();
                self.stop(Control::StopNow, Duration::ZERO, End::Interrupted);
            }
            Command::StopTeammate { name, now } => {
                if let Some(member) = self.members.by_name.get_mut(&name) {
                    member.stop(if now { Control::StopNow } else { Control::Stop });
                }
            }
            Command::Compact { name, reply } => {
                if let Err(reason) = self.ask_to_compact(&name, reply.clone()) {
                    // Who asked may be gone.
                    let _ = reply.try_send(Err(reason));
                }
            }
            Command::Spawn { spec, reply } => {
                let name = spec.name.clone();
                let spawned = self.spawn_at_run_time(spec).await;
                // Who asked may have been broken off meanwhile.
                let _ = reply.send(spawned.map(|()| format!("`{name}` is started; it claims tasks by itself.")));
            }
        }
    }

    /// Has a member compact its context, where it has one.
    fn ask_to_compact(&self, name: &str, reply: Reply) -> Result<(), String> {
        if self.state.stopping.is_some() {
            return Err("the team is stopping".to_owned());
        }
        let by_rule = || "goes by rule (runbook): it keeps no context, so there is nothing to compact";
        let Some(member) = self.members.by_name.values().find(|member| member.spec.name.is_same(name)) else {
            if LEAD.eq_ignore_ascii_case(name) {
                return Err(format!("the lead {}", by_rule()));
            }
            let known: Vec<&str> = self.members.by_name.keys().map(AsRef::as_ref).collect();
            return Err(format!("there is nobody called `{name}`; there are: {}", known.join(", ")));
        };
        if member.gone.is_some() {
            return Err(format!("{} is stopped", member.spec.name));
        }
        if !member.thinks {
            return Err(format!("{} {}", member.spec.name, by_rule()));
        }
        member.tell(Control::Compact(reply));
        Ok(())
    }

    async fn spawn_at_run_time(&mut self, spec: MemberSpec) -> Result<(), String> {
        let name = spec.name.clone();
        // One that is started again is what it was, but for the role and the instructions it is given now.
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
        if let Some(other) = self.members.by_name.keys().find(|known| **known != name && known.is_same(name.as_str())) {
            return Err(format!("`{name}` and `{other}` differ only in case"));
        }
        if self.members.by_name.len() >= MEMBERS_MAX {
            return Err(format!("the team has {} members, which is the limit", self.members.by_name.len()));
        }
        let mailbox = &self.shared.stores.mailbox;
        mailbox.open_inboxes(std::slice::from_ref(&name)).await.map_err(|error| error.to_string())?;
        self.members.spawn(spec.clone(), None, 0)?;
        self.live.add_member(&spec, self.members.by_name.get(&name).is_some_and(|member| member.thinks));
        Ok(())
    }

    /// Stops the team within so long. Asked again it stops no later, and ends as it was to end first.
    pub(super) fn stop(&mut self, control: Control, within: Duration, end: End) {
        let until = Instant::now() + within;
        let stopping = self
            .state
            .stopping
            .map_or(Stopping { end, until }, |before| Stopping { until: before.until.min(until), ..before });
        self.state.stopping = Some(stopping);
        self.gates.teammates.send_replace(Default::default());
        self.gates.lead.send_replace(Default::default());
        self.members.by_name.values_mut().for_each(|member| member.stop(control.clone()));
    }

    /// Ends what does not stop in its time.
    pub(super) fn hurry(&self) {
        let Some(stopping) = self.state.stopping else { return };
        let late = Instant::now().saturating_duration_since(stopping.until);
        if Instant::now() < stopping.until {
            return;
        }
        for member in self.members.by_name.values().filter(|member| member.gone.is_none()) {
            if late >= END_NOW_GRACE { Member::abort(member) } else { member.tell(Control::StopNow) }
        }
    }
}
