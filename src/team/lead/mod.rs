//! The lead: one loop that owns the session and the members. Only the lead decides when work begins, ends or restarts.
//!
//! `select!` only builds a [`LeadEvent`]. [`Lead::handle`] processes it, and [`Lead::advance`] does the step that
//! [`crate::domain::session::decide`] returns. [`reconcile`] polls the stores, [`lifecycle`] handles exits and commands,
//! [`status`] reports, and [`leadership`] checks the lead's lock.

mod leadership;
mod lifecycle;
mod memory;
mod reconcile;
mod status;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use super::agents::AgentServices;
use super::handle::{LiveStatus, TeamCommand, TeamEnd, TeamOutcome};
use super::heartbeat::WorkerReporter;
use super::running_member::RunningMember;
use super::session::Session;
use super::spec::TeamSpec;
use super::supervisor::{MemberExit, Supervisor};
use super::teammate::Permissions;
use crate::domain::approval::Request;
use crate::domain::claim_queue::{Candidate, ClaimQueue};
use crate::domain::name::{LEAD, Name};
use crate::domain::session::{self, NextStep, SessionInputs, SessionStage};
use crate::domain::state::Mode;
use crate::domain::task::TaskId;
use crate::ports::{BoardView, StoreChange};
use memory::{LeadState, WaitingMail};

/// The time between checks of members and waits while the team works.
const TICK: Duration = Duration::from_secs(1);
/// The time between heartbeats in the worker's record and the state file.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The same while no member works: a third of the silence after which a worker counts as dead.
const HEARTBEAT_INTERVAL_IDLE: Duration = Duration::from_secs(10);

enum LeadEvent {
    StoreChanged(StoreChange),
    MemberReported,
    Tick,
    MemberExited(MemberExit),
    Command(TeamCommand),
}

/// PendingChanges since the last poll, collected from hints.
#[derive(Debug, Default)]
struct PendingChanges {
    everything: bool,
    board: bool,
    state: bool,
    mail: BTreeSet<String>,
}

impl PendingChanges {
    fn add(&mut self, change: StoreChange) {
        match change {
            StoreChange::Board => self.board = true,
            StoreChange::State => self.state = true,
            StoreChange::Mail(to) => {
                self.mail.insert(to);
            }
            StoreChange::Everything => self.everything = true,
        }
    }
}

/// The loop of one team.
pub struct Lead {
    pub(super) spec: TeamSpec,
    pub(super) services: Arc<AgentServices>,
    pub(super) members: Supervisor,
    pub(super) session: Session,
    pub(super) view: Arc<BoardView>,
    pub(super) queue: ClaimQueue,
    pub(super) desired: Mode,
    pub(super) live: Arc<LiveStatus>,
    pub(super) member_reported: Arc<tokio::sync::Notify>,
    pub(super) worker: Arc<WorkerReporter>,
    commands: mpsc::Receiver<TeamCommand>,
    permissions: PermissionSenders,
    reclaim_first: HashMap<String, TaskId>,
    state: LeadState,
}

/// Sets the current permissions of members.
pub struct PermissionSenders {
    /// For teammates.
    pub teammates: watch::Sender<Permissions>,
    /// For the lead's own agent.
    pub lead: watch::Sender<Permissions>,
}

/// The parts of a lead.
pub struct LeadParts {
    /// The team.
    pub spec: TeamSpec,
    /// The services that agents share.
    pub services: Arc<AgentServices>,
    /// The members, none started yet.
    pub members: Supervisor,
    /// The session, not begun yet.
    pub session: Session,
    /// The board at launch.
    pub view: Arc<BoardView>,
    /// The status that front ends read.
    pub live: Arc<LiveStatus>,
    /// The commands of front ends.
    pub commands: mpsc::Receiver<TeamCommand>,
    /// Notified when a member reports.
    pub member_reported: Arc<tokio::sync::Notify>,
    /// The permissions of members.
    pub permissions: PermissionSenders,
    /// This worker's record.
    pub worker: Arc<WorkerReporter>,
    /// The tasks that teammates held when the process before ended.
    pub reclaim_first: HashMap<String, TaskId>,
}

impl Lead {
    /// Creates a lead that has not started yet.
    #[must_use]
    pub fn new(parts: LeadParts) -> Self {
        let LeadParts {
            spec,
            services,
            members,
            session,
            view,
            live,
            commands,
            member_reported,
            permissions,
            worker,
            reclaim_first,
        } = parts;
        let queue = ClaimQueue::of(view.tasks.values().map(Arc::as_ref), &*view);
        Self {
            spec,
            services,
            members,
            session,
            view,
            queue,
            desired: Mode::Pause,
            live,
            member_reported,
            worker,
            commands,
            permissions,
            reclaim_first,
            state: LeadState::new(Instant::now()),
        }
    }

    /// Runs until the team is stopped, or until its only session is over.
    pub async fn run(mut self) -> TeamOutcome {
        let mut changes = self.services.stores.changes.subscribe();
        self.start_members();
        self.poll().await;
        loop {
            if let Some(end) = self.advance().await {
                return self.finish(end).await;
            }
            let due = self.queue.next_due(self.services.clock.now()).unwrap_or(TICK);
            let tick = self.next_tick();
            let event = tokio::select! {
                biased;
                Some(command) = self.commands.recv() => LeadEvent::Command(command),
                exit = self.members.next_exit() => LeadEvent::MemberExited(exit),
                change = changes.recv() => LeadEvent::StoreChanged(change_or_everything(change)),
                () = self.member_reported.notified() => LeadEvent::MemberReported,
                () = tokio::time::sleep_until(tick) => LeadEvent::Tick,
                () = tokio::time::sleep(due), if due < TICK => LeadEvent::MemberReported,
            };
            self.handle(event, &mut changes).await;
        }
    }

    fn start_members(&mut self) {
        let lead = if self.session.lead_is_llm() { Some(self.spec.lead.clone()) } else { None };
        for spec in lead.into_iter().chain(self.spec.members.clone()) {
            let name = spec.name.clone();
            let reclaim_first = self.reclaim_first.remove(name.as_str());
            if let Err(reason) = self.members.spawn(spec, reclaim_first, 0) {
                self.services.events.warn(name.as_str(), reason);
            }
        }
    }

    /// Processes an event and all hints that wait. However many there are, each store is polled once.
    async fn handle(&mut self, event: LeadEvent, hints: &mut broadcast::Receiver<StoreChange>) {
        let mut changes = PendingChanges::default();
        match event {
            LeadEvent::StoreChanged(change) => changes.add(change),
            // A member that went idle has read its mail.
            LeadEvent::MemberReported if !self.state.mail.waiting.is_empty() => self.poll_mail().await,
            LeadEvent::MemberReported => {}
            LeadEvent::Tick => self.tick().await,
            LeadEvent::MemberExited(exit) => self.handle_exit(exit).await,
            LeadEvent::Command(command) => self.handle_command(command).await,
        }
        loop {
            match hints.try_recv() {
                Ok(change) => changes.add(change),
                Err(broadcast::error::TryRecvError::Lagged(_)) => changes.add(StoreChange::Everything),
                Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => break,
            }
        }
        self.handle_changes(changes).await;
    }

    /// Returns true if nothing but the next poll depends on time.
    fn is_idle(&self) -> bool {
        let is_between_sessions = self.session.stage == SessionStage::NoSession && self.state.stopping.is_none();
        is_between_sessions && !self.members.teammates().chain(self.members.lead()).any(RunningMember::is_busy)
    }

    fn next_tick(&self) -> Instant {
        let poll_interval = self.spec.limits.poll_interval;
        if self.is_idle() {
            self.state.timers.last_poll + poll_interval
        } else {
            self.state.timers.last_tick + TICK.min(poll_interval)
        }
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        self.state.timers.last_tick = now;
        self.members.end_stalled();
        if self.state.timers.last_poll.elapsed() >= self.spec.limits.poll_interval {
            self.poll().await;
        }
        let heartbeat = if self.is_idle() { HEARTBEAT_INTERVAL_IDLE } else { HEARTBEAT_INTERVAL };
        if self.state.timers.last_heartbeat.elapsed() >= heartbeat {
            self.state.timers.last_heartbeat = now;
            self.write_heartbeat().await;
        }
        self.enforce_stop_deadline();
        self.report_waiting();
    }

    /// Does all steps that are due now. Returns the end of the team once it has ended.
    async fn advance(&mut self) -> Option<TeamEnd> {
        loop {
            if self.members.refresh_status() {
                self.report_roster().await;
            }
            self.check_budget().await;
            if let Some(stopping) = self.state.stopping {
                self.report(false).await;
                return self.members.all_exited().then_some(stopping.end);
            }
            if matches!(self.session.stage, SessionStage::Running(mode) if mode != Mode::RunCleanup) {
                self.session.send_goal(self.members.lead());
            }
            self.update_permissions();
            match session::decide(&self.session_inputs()) {
                NextStep::Begin(mode) => self.begin(mode),
                // Mail may have come since the last poll; its recipient continues to work.
                NextStep::Report if self.has_unread_mail().await => {}
                NextStep::Report => self.start_report(),
                NextStep::Finish => self.request_report_or_finish().await,
                NextStep::Exit => self.stop(
                    super::teammate::TeammateCommand::Stop,
                    self.spec.limits.stop_timeout,
                    TeamEnd::SessionOver,
                ),
                NextStep::Pause | NextStep::Wait => {
                    self.wake();
                    let desired = self.desired;
                    self.report(false).await;
                    // The report reads the desired state, too.
                    if self.desired == desired {
                        return None;
                    }
                }
            }
        }
    }

    fn update_permissions(&self) {
        let has_disk_space = !self.services.disk.is_nearly_full();
        let stage = self.session.stage;
        let teammates = Permissions {
            claim: has_disk_space && session::may_claim(stage, self.desired),
            read_mail: has_disk_space && session::may_read(stage, self.desired),
        };
        let lead = Permissions { claim: false, read_mail: has_disk_space && session::lead_may_read(stage) };
        for (sender, permissions) in [(&self.permissions.teammates, teammates), (&self.permissions.lead, lead)] {
            sender.send_if_modified(|now| std::mem::replace(now, permissions) != permissions);
        }
    }

    fn session_inputs(&self) -> SessionInputs {
        let usable = || self.members.teammates().filter(|member| member.is_usable());
        let lead = self.members.lead().filter(|lead| lead.is_usable());
        SessionInputs {
            desired: self.desired,
            stage: self.session.stage,
            has_claimable_task: self.queue.has_any_task_for(usable().map(RunningMember::as_candidate)),
            has_task_in_progress: self.members.teammates().any(RunningMember::is_busy)
                || !self.queue.claimed().is_empty(),
            has_mail: self.has_mail(),
            has_lead_mail: lead.is_some_and(|lead| self.has_mail_to_answer(lead)),
            has_unplanned_goal: lead.is_some() && self.session.has_unplanned_goal(),
            is_lead_busy: self.session.lead_is_busy(self.members.lead()),
            is_last_session_over: self.session.is_last_session_over(),
        }
    }

    /// Returns true if mail waits for a teammate that would act on it.
    pub(super) fn has_mail(&self) -> bool {
        self.members_with_mail().next().is_some()
    }

    /// Returns the members whose mail could not be read at the last poll.
    pub(super) fn unreadable_mail(&self) -> impl Iterator<Item = &str> {
        self.state.mail.unreadable.iter().map(String::as_str)
    }

    /// Returns the ids of the plans and reviews that wait for an answer.
    pub(super) fn approvals(&self) -> impl Iterator<Item = &str> {
        self.state.approvals.iter().map(|request| request.id.as_str())
    }

    /// Returns a text about the answer to its own plan or review that this member waits for.
    pub(super) fn answer_awaited_by(&self, name: &Name, task: Option<TaskId>) -> Option<String> {
        let is_its = |request: &&Request| name.is_same(&request.from) && request.concerns(task);
        self.state.approvals.iter().find(is_its).map(Request::responder)
    }

    /// Returns the teammates that would act on their waiting mail.
    pub(super) fn members_with_mail(&self) -> impl Iterator<Item = &str> {
        let members = self.members.teammates().filter(|member| member.is_usable() && self.has_mail_to_answer(member));
        members.map(|member| member.spec.name.as_str())
    }

    /// Checks for mail that must be read before the session ends. Under `pause`, mail waits.
    pub(super) async fn has_unread_mail(&mut self) -> bool {
        if self.desired == Mode::Pause {
            return false;
        }
        self.poll_mail().await;
        self.has_mail()
    }

    /// Returns true if this member has mail to act on, or an unanswered message.
    fn has_mail_to_answer(&self, member: &RunningMember) -> bool {
        let starts_its_turn = |mail: &WaitingMail| mail.starts_turn && member.spec.name.is_same(&mail.to);
        member.status.borrow().has_unanswered || self.state.mail.waiting.iter().any(starts_its_turn)
    }

    /// Wakes one fit idle member for each claimable task, and idle members with mail. No member is woken twice.
    fn wake(&mut self) {
        let permissions = *self.permissions.teammates.borrow();
        self.wake_for_mail(permissions);
        if !permissions.claim {
            return;
        }
        let mut ready: Vec<&RunningMember> = self.members.teammates().filter(|member| member.is_ready()).collect();
        if ready.is_empty() {
            return;
        }
        // After a poll, another member is woken first, in case the first one does not answer.
        let shift = self.state.timers.polls % ready.len();
        ready.rotate_left(shift);
        let idle: Vec<Candidate<'_>> = ready.iter().map(|member| member.as_candidate()).collect();
        let woken = self.queue.members_to_wake(self.services.clock.now(), &idle);
        let names: Vec<Name> = woken.into_iter().map(|index| ready[index].spec.name.clone()).collect();
        for name in names {
            if let Some(member) = self.members.by_name.get_mut(&name) {
                member.wake();
            }
        }
    }

    fn wake_for_mail(&mut self, teammates: Permissions) {
        let lead = *self.permissions.lead.borrow();
        let mut woken = Vec::new();
        for member in self.members.by_name.values().filter(|member| member.is_idle() || member.waits_for_approval()) {
            let name = &member.spec.name;
            let permissions = if name.as_str() == LEAD { lead } else { teammates };
            let has_own_mail = self.state.mail.waiting.iter().any(|mail| name.is_same(&mail.to));
            let is_answer_due = permissions.read_mail && member.is_ready() && member.status.borrow().has_unanswered;
            if (has_own_mail || is_answer_due) && !self.state.mail.woken.contains(name) {
                member.send(super::teammate::TeammateCommand::Poll);
                woken.push(name.clone());
            }
        }
        self.state.mail.woken.extend(woken);
    }
}

fn change_or_everything(change: Result<StoreChange, broadcast::error::RecvError>) -> StoreChange {
    // After missed hints, and with a store that sends none, everything is polled.
    change.unwrap_or(StoreChange::Everything)
}
