//! The lead: one loop that owns the session and the members. Only the lead decides when work begins, ends or restarts.
//!
//! `select!` only builds a [`LeadEvent`]. [`Lead::handle`] processes it, and [`Lead::advance`] does the step that
//! [`crate::domain::team::session::decide`] returns. `polls` reads the stores, and `status` reports to them. Each other module of this
//! folder has one part of the lead's memory, with the methods that read and change it.

mod approval_watch;
mod board;
mod claims;
mod done_when;
mod mail;
mod polls;
mod prompts;
mod report;
mod session;
mod status;
mod steering;
mod stop;
mod summary;
mod wake;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::{self, error::TryRecvError};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::handle::{LiveStatus, TEAM_STOPPING, TeamCommand, TeamEnd, TeamOutcome};
use super::running_member::{ExitReason, RunningMember};
use super::supervisor::{MemberExit, Supervisor};
use super::teammate::{TeammateCommand, WorkGates};
use crate::agents::AgentServices;
use crate::agents::conversation::Conversation;
use crate::domain::log::event::{EventKind, NewEvent};
use crate::domain::team::name::{LEAD, Name};
use crate::domain::team::session::{NextStep, SessionInputs, SessionStage, decide};
use crate::domain::team::state::Mode;
use crate::domain::team::team_spec::OnQuota;
use crate::domain::text::units::duration;
use crate::ports::{BoardView, StoreChange};
use approval_watch::ApprovalWatch;
use board::BoardWatch;
use claims::EndedMember;
use mail::MailWatch;
use session::{Session, SessionError};
use steering::Steering;
use stop::Stop;

pub(super) use done_when::command_context;

/// The time between checks of members and waits while the team works.
const TICK: Duration = Duration::from_secs(1);
/// The time between heartbeats in the worker's record and the state file.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The same while no member works: a third of the silence after which a worker counts as dead.
const HEARTBEAT_INTERVAL_IDLE: Duration = Duration::from_secs(10);
/// The reason of a requested stop in its event.
const NO_REASON: &str = "";

enum LeadEvent {
    StoreChanged(StoreChange),
    MemberReported,
    /// A back-off has ended.
    RetryDue,
    Tick,
    MemberExited(MemberExit),
    Command(TeamCommand),
}

/// The loop of one team.
pub struct Lead {
    services: Arc<AgentServices>,
    members: Supervisor,
    session: Session,
    board: BoardWatch,
    mail: MailWatch,
    approvals: ApprovalWatch,
    steering: Steering,
    live: Arc<LiveStatus>,
    timers: Timers,
    stop: Stop,
}

/// The last times of regular steps.
struct Timers {
    last_poll: Instant,
    last_tick: Instant,
    last_heartbeat: Instant,
    /// The last write of the roster.
    last_roster: Option<Instant>,
    polls: usize,
}

impl Lead {
    /// Creates a lead that has started none of its members yet. With `only_session`, the team ends with its first session. Without a
    /// model, the lead keeps its mail in the transcript `runbook_lead`.
    pub fn new(
        members: Supervisor,
        view: Arc<BoardView>,
        live: Arc<LiveStatus>,
        only_session: Option<Mode>,
        runbook_lead: Option<Conversation>,
    ) -> Self {
        let now = Instant::now();
        Self {
            services: Arc::clone(&members.services),
            members,
            session: Session::new(only_session),
            board: BoardWatch::new(view),
            mail: MailWatch::new(runbook_lead),
            approvals: ApprovalWatch::default(),
            steering: Steering::default(),
            live,
            timers: Timers { last_poll: now, last_tick: now, last_heartbeat: now, last_roster: None, polls: 0 },
            stop: Stop::default(),
        }
    }

    /// Starts the members, and runs until the team is stopped, or until its only session is over.
    pub async fn run(mut self, mut commands: mpsc::Receiver<TeamCommand>) -> TeamOutcome {
        let mut changes = self.services.stores.changes.subscribe();
        self.start_members();
        self.poll().await;
        loop {
            if let Some(end) = self.advance().await {
                return self.finish(end).await;
            }
            let due = self.board.queue.next_due(self.services.clock.now()).unwrap_or(TICK);
            let tick = self.next_tick();
            let event = tokio::select! {
                biased;
                Some(command) = commands.recv() => LeadEvent::Command(command),
                exit = self.members.next_exit() => LeadEvent::MemberExited(exit),
                // After missed hints, and with a store that sends none, everything is polled.
                change = changes.recv() => LeadEvent::StoreChanged(change.unwrap_or(StoreChange::Everything)),
                () = self.services.member_reported.notified() => LeadEvent::MemberReported,
                () = tokio::time::sleep_until(tick) => LeadEvent::Tick,
                () = tokio::time::sleep(due), if due < TICK => LeadEvent::RetryDue,
            };
            self.handle(event, &mut changes).await;
        }
    }

    fn start_members(&mut self) {
        let spec = Arc::clone(&self.services.spec);
        let lead = if spec.lead.has_model() { Some(&spec.lead) } else { None };
        for member in lead.into_iter().chain(&spec.members) {
            if let Err(reason) = self.members.spawn(member.clone(), 0) {
                self.services.events.warn(member.name.as_str(), reason);
            }
        }
    }

    /// Processes an event and all hints that wait. However many there are, each store is polled once.
    async fn handle(&mut self, event: LeadEvent, hints: &mut broadcast::Receiver<StoreChange>) {
        let mut changes = HashSet::new();
        match event {
            LeadEvent::StoreChanged(change) => {
                changes.insert(change);
            }
            // A member that went idle has read its mail.
            LeadEvent::MemberReported if !self.mail.is_empty() => self.poll_mail().await,
            // Afterwards, [`Self::advance`] wakes a member for the task.
            LeadEvent::MemberReported | LeadEvent::RetryDue => {}
            LeadEvent::Tick => self.tick().await,
            LeadEvent::MemberExited(exit) => self.handle_exit(exit).await,
            LeadEvent::Command(command) => self.handle_command(command).await,
        }
        loop {
            match hints.try_recv() {
                Ok(change) => changes.insert(change),
                Err(TryRecvError::Lagged(_)) => changes.insert(StoreChange::Everything),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
        }
        if changes.remove(&StoreChange::Everything) {
            return self.poll().await;
        }
        if changes.remove(&StoreChange::Board) {
            self.poll_board().await;
        }
        if changes.remove(&StoreChange::State) {
            self.poll_state().await;
        }
        if !changes.is_empty() {
            for change in &changes {
                if let StoreChange::Mail(to) = change {
                    self.mail.forget_wake_of(to);
                }
            }
            self.poll_mail().await;
            // Approvals and their answers arrive as mail.
            self.poll_approvals().await;
        }
    }

    /// Returns true if nothing but the next poll depends on time.
    fn is_idle(&self) -> bool {
        let is_between_sessions = self.session.stage == SessionStage::NoSession && !self.stop.is_in_progress();
        let is_any_busy = self.members.by_name.values().any(RunningMember::is_busy);
        is_between_sessions && !is_any_busy && !self.members.is_roster_due()
    }

    fn next_tick(&self) -> Instant {
        let poll_interval = self.services.spec.limits.poll_interval;
        if self.is_idle() {
            self.timers.last_poll + poll_interval
        } else {
            self.timers.last_tick + TICK.min(poll_interval)
        }
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        self.timers.last_tick = now;
        self.members.end_stalled();
        if self.timers.last_poll.elapsed() >= self.services.spec.limits.poll_interval {
            self.poll().await;
        }
        let heartbeat = if self.is_idle() { HEARTBEAT_INTERVAL_IDLE } else { HEARTBEAT_INTERVAL };
        if self.timers.last_heartbeat.elapsed() >= heartbeat {
            self.timers.last_heartbeat = now;
            self.write_worker_record().await;
            self.report(true).await;
        }
        self.stop.enforce_deadline(&self.members, self.services.budget.has_open_requests());
        self.session.report_wait(&self.services, &self.board, &self.members);
    }

    /// Does all steps that are due now. Returns the end of the team once it has ended.
    async fn advance(&mut self) -> Option<TeamEnd> {
        loop {
            self.members.refresh_status();
            if self.members.is_roster_due() && self.timers.last_roster.is_none_or(|last| last.elapsed() >= TICK) {
                self.timers.last_roster = Some(Instant::now());
                self.members.write_roster().await;
            }
            self.check_budget().await;
            self.check_quota().await;
            if let Some(end) = self.stop.end() {
                self.report(false).await;
                return self.members.all_exited().then_some(end);
            }
            let work_gates = WorkGates::of_stage(self.session.stage, self.steering.desired);
            let may_claim = self.members.spawn_context.storage.claim_pause().is_none();
            self.members.set_work_gates(if may_claim { work_gates } else { WorkGates::default() });
            match decide(&self.session_inputs()) {
                NextStep::Begin(mode) => self.session.begin(mode, &self.services, &self.board, self.members.lead()),
                // Mail may have come since the last poll; its recipient continues to work.
                NextStep::Report if self.has_unread_mail().await => {}
                NextStep::Report => {
                    self.start_report();
                    // Also a session without work shows its mode.
                    self.report(false).await;
                }
                NextStep::Finish => self.request_report_or_finish().await,
                NextStep::Exit => self.stop_members(self.session.result.end),
                NextStep::Pause | NextStep::Wait => {
                    self.wake().await;
                    let desired = self.steering.desired;
                    self.report(false).await;
                    // The report reads the desired state, too.
                    if self.steering.desired == desired {
                        return None;
                    }
                }
            }
        }
    }

    fn session_inputs(&self) -> SessionInputs {
        let reporter = self.members.lead().filter(|lead| lead.is_report_awaited(self.steering.desired));
        SessionInputs {
            desired: self.steering.desired,
            stage: self.session.stage,
            has_claimable_task: self.board.queue.has_ready_or_waiting_task_for(self.members.candidates()),
            // A member that has not reported yet may have a message to answer from before.
            has_task_in_progress: self.members.by_name.values().any(RunningMember::is_starting)
                || self.has_task_in_progress(),
            has_mail: self.has_mail(),
            has_lead_mail: self.has_lead_mail(),
            is_lead_busy: self.session.is_lead_busy(reporter),
            only_session: self.session.only_session,
            is_last_session_over: self.session.is_last_session_over(),
        }
    }
}

/// The steps of the session, the ends of members and the commands of front ends.
impl Lead {
    /// Enters the reporting stage. Starts `done_when`, unless the desired state is `pause`.
    fn start_report(&mut self) {
        let SessionStage::Running(mode) = self.session.stage else { return };
        self.session.stage = SessionStage::Reporting(mode);
        if let Some(command) = self.services.spec.done_when.clone()
            && self.steering.desired != Mode::Pause
        {
            self.session.done_when.start(command, &self.services, &self.members.spawn_context.worker);
        }
    }

    /// Requests the lead's report at the first call. At the next call, ends the session, or continues it if tasks or mail are left.
    async fn request_report_or_finish(&mut self) {
        let SessionStage::Reporting(mode) = self.session.stage else { return };
        self.session.done_when.collect().await;
        self.poll_board().await;
        let lead = self.members.lead().filter(|lead| lead.is_report_awaited(self.steering.desired));
        if self.stop.has_resigned() || self.session.request_report(&self.services.spec, &self.board, lead) {
            return;
        }
        let has_mail = self.has_unread_mail().await;
        let has_task = self.board.queue.has_ready_task_for(self.services.clock.now(), self.members.candidates());
        if (has_mail || has_task) && self.steering.desired != Mode::Pause && self.session.continue_after_report(mode) {
            return;
        }
        let error = self.session_error().await;
        self.session.record_error(error);
        self.poll_approvals().await;
        if self.steering.desired == Mode::Pause {
            self.session.forget_goal_reports(self.members.lead());
        }
        let is_answer_awaited = self.approvals.is_answer_awaited(&self.members);
        let lead = self.members.lead();
        let note = self.session.finish(mode, &self.services, &self.board, lead, is_answer_awaited);
        let is_budget_spent = self.session.result.end == TeamEnd::BudgetSpent;
        let spent = self.members.spent_budgets().filter(|_| is_budget_spent);
        if let Some(note) = spent.clone().or(note) {
            self.end_mode(mode, &note).await;
        }
        if spent.is_some() {
            self.stop_members(TeamEnd::BudgetSpent);
        }
    }

    /// Returns the error of the session that ends, other than failed tasks.
    async fn session_error(&mut self) -> Option<SessionError> {
        self.has_unread_mail().await;
        let has_lead_mail = self.members.lead().is_some_and(|lead| self.mail.has_mail_to_answer(lead));
        let vanished = self.board.vanished_text().map(SessionError::from);
        let invalid = self.board.invalid_text(&self.services.stores).await;
        vanished
            .or_else(|| self.session.find_error(&self.board, &self.members, has_lead_mail))
            .or_else(|| self.mail_error().or_else(|| self.pause_error()).or(invalid).map(SessionError::from))
    }

    /// Returns a sentence about a pause that ends the only session of this process before its work is done.
    fn pause_error(&self) -> Option<String> {
        let is_goal_unchecked = self.services.spec.done_when.is_some() && self.session.done_when.result.is_none();
        let has_claimable_task = self.board.queue.has_ready_or_waiting_task_for(self.members.candidates());
        let has_work = has_claimable_task || self.has_mail() || self.has_lead_mail() || is_goal_unchecked;
        let is_cut_short = self.session.only_session.is_some() && self.steering.desired == Mode::Pause && has_work;
        is_cut_short.then(|| match self.steering.note.trim_end_matches('.') {
            "" => "The team was paused before its work was done.".to_owned(),
            note => format!("The team was paused before its work was done ({note})."),
        })
    }

    /// Returns a sentence that names the members with unread mail. Under `pause`, mail waits.
    fn mail_error(&self) -> Option<String> {
        let names = self.mail.members_with_mail(&self.members).chain(self.mail.unreadable());
        let names: Vec<&str> = names.take(super::NAMED_MAX).collect();
        if names.is_empty() || self.steering.desired == Mode::Pause {
            return None;
        }
        Some(format!("Mail of {} was not read.", names.join(", ")))
    }

    /// Ends the team once the budget is spent: nothing new starts, and open requests get their answers, because they are paid for. A later
    /// launch with a larger budget continues.
    async fn check_budget(&mut self) {
        if let Some((limit, spent)) = self.services.budget.take_low() {
            self.services.events.record(EventKind::BudgetLow { limit, spent });
        }
        let Some(spent) = self.services.budget.spent() else { return };
        if self.stop.is_in_progress() {
            return;
        }
        self.services.events.record(EventKind::BudgetSpent {
            limit: spent.limit.clone(),
            spent: spent.spent.clone(),
            teammate: None,
        });
        self.stop_members(TeamEnd::BudgetSpent);
        self.stop.extend_for_requests(self.services.spec.limits.model.answer_timeout);
        if self.steering.desired != Mode::Pause {
            self.end_mode(self.steering.desired, &spent.state_note().to_file_text()).await;
        }
    }

    /// Pauses the team after a quota was used up, if the config says so.
    async fn check_quota(&mut self) {
        let Some(note) = self.services.accounts.take_used_quota() else { return };
        if self.services.spec.on_quota == OnQuota::Pause && self.steering.desired != Mode::Pause {
            self.end_mode(self.steering.desired, &note.to_file_text()).await;
        }
    }

    /// Lets the members finish their turns, and ends the team.
    fn stop_members(&mut self, end: TeamEnd) {
        let within = self.services.spec.limits.stop_timeout;
        self.stop.begin(end, TeammateCommand::Stop, within, &mut self.members);
    }

    /// Reports the end of a member. Restarts it after a failure, within a limit.
    async fn handle_exit(&mut self, exit: MemberExit) {
        let Some(member) = self.members.by_name.get(&exit.name) else { return };
        let (spec, respawns, is_stopping) = (member.spec.clone(), member.respawns, member.commands.is_stop_sent);
        let name = exit.name.to_string();
        if exit.reason == ExitReason::Idle {
            let reason = format!("idle for {}", duration(self.services.spec.limits.idle_shutdown));
            return self.report_stopped(&exit.name, &reason, false);
        }
        let ExitReason::Failed(reason) = exit.reason else {
            let is_budget_spent = self.services.budget.spent().is_some();
            if !is_budget_spent && !self.stop.is_in_progress() {
                self.members.record_dismissal(&exit.name).await;
            }
            let reason = if is_budget_spent { "the budget is spent" } else { NO_REASON };
            return self.report_stopped(&exit.name, reason, false);
        };
        let is_failure = !exit.is_harness_failure;
        self.reclaim_from(EndedMember { name: exit.name.clone(), reason: reason.clone(), is_failure }).await;
        if is_stopping || self.stop.is_in_progress() {
            self.members.set_exit(&exit.name, ExitReason::Requested);
            return self.report_stopped(&exit.name, NO_REASON, false);
        }
        if respawns >= self.services.spec.limits.respawns_max {
            let reason = format!("{reason}; restarted {respawns} times, which is the limit");
            self.members.set_exit(&exit.name, ExitReason::Failed(reason.clone()));
            return self.report_stopped(&exit.name, &reason, true);
        }
        let respawns = respawns + 1;
        let spawned = self.members.spawn(spec, respawns);
        self.record_member(&exit.name, EventKind::TeammateRespawned { teammate: name, reason, respawns });
        if let Err(reason) = spawned {
            self.report_stopped(&exit.name, &reason, true);
        } else if exit.name.as_str() == LEAD
            && let Some(lead) = self.members.lead()
        {
            self.session.prompts.resend(lead);
        }
    }

    fn report_stopped(&self, name: &Name, reason: &str, is_dead: bool) {
        let (teammate, reason) = (name.to_string(), reason.to_owned());
        self.record_member(name, EventKind::TeammateStopped { teammate, reason, is_dead });
    }

    /// Records an event that changes the status of a member.
    fn record_member(&self, name: &Name, kind: EventKind) {
        let event = match self.members.by_name.get(name) {
            Some(member) => NewEvent::with_member(kind, self.member_row(member)),
            None => kind.into(),
        };
        self.services.events.record(event);
    }

    async fn handle_command(&mut self, command: TeamCommand) {
        match command {
            TeamCommand::Stop => self.stop_members(TeamEnd::Interrupted),
            TeamCommand::Abort => {
                self.services.stores.wait_limit.end();
                self.stop.begin(TeamEnd::Interrupted, TeammateCommand::Abort, Duration::ZERO, &mut self.members);
            }
            TeamCommand::Compact { name, reply } => {
                let requested = if self.stop.is_in_progress() {
                    Err(TEAM_STOPPING.to_owned())
                } else {
                    self.members.request_compaction(&name, reply.clone())
                };
                if let Err(reason) = requested {
                    // The caller may be gone.
                    let _ = reply.try_send(Err(reason));
                }
            }
            TeamCommand::Spawn { spec, reply } => {
                let name = spec.name.clone();
                let spawned = if self.stop.is_in_progress() {
                    Err(TEAM_STOPPING.to_owned())
                } else {
                    self.members.spawn_at_run_time(*spec, &self.live).await
                };
                // The caller may have been aborted.
                let _ = reply.send(spawned.map(|()| format!("`{name}` is started; it claims tasks by itself.")));
            }
        }
    }
}
