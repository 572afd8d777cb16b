//! A teammate's loop: it executes what [`crate::domain::phase::step`] decides, and turns the results into events.
//!
//! The lead's agent runs in it too, without claims: goals and report requests reach it as prompts. `idle` has the work between
//! turns (mail, claims, shutdown requests), and `turn_driver` runs the turns.

mod back_off;
mod idle;
pub mod reclaim_order;
mod turn_driver;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::handle::Reply;
use crate::agents::cancellation::TurnControl;
use crate::agents::{AgentBackend, AgentError, AgentHost, TurnOutcome};
use crate::domain::event::{EventKind, NewEvent};
use crate::domain::phase::{self, ClaimRef, Effect, Phase, PhaseEvent, PhaseLimits};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::domain::transcript::PromptKind;
use crate::domain::waiting_for::WaitingFor;
use back_off::BackOff;
use reclaim_order::ReclaimOrder;

/// A command to a teammate.
#[derive(Debug, Clone)]
pub enum TeammateCommand {
    /// There may be mail or a task.
    Poll,
    /// A text for its model; the lead gets its goals this way.
    Prompt(Prompt),
    /// Compact the context between two turns, and send the result here.
    Compact(Reply),
    /// The cause of its permanent error may be fixed: try again.
    Retry,
    /// A message waits that must not wait for the turn: abort the turn and read the mail.
    ReadInbox,
    /// Finish the turn, release the claim, end.
    Stop,
    /// Abort the turn and end.
    Abort,
    /// The claim is lost.
    ClaimLost(ClaimRef),
}

/// A text for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Counts up from 1. The prompt is answered when [`TeammateStatus::prompts_answered`] has reached it.
    pub number: u64,
    /// Its kind.
    pub kind: PromptKind,
    /// The text.
    pub text: String,
}

/// A teammate's status, as the lead reads it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TeammateStatus {
    /// Its phase.
    pub phase: Phase,
    /// The start of its phase.
    pub since: UnixMs,
    /// The reason why it waits.
    pub waiting_for: Option<WaitingFor>,
    /// The permanent error of its model or workspace. It can do no task until it is told to retry.
    pub permanent_error: Option<String>,
    /// True while a temporary or permanent error keeps it from work.
    pub cannot_work: bool,
    /// True if its model has not answered a message or a prompt.
    pub has_unanswered: bool,
    /// The number of its reports.
    pub reports: u64,
    /// The number of its polls for mail and tasks.
    pub polls: u64,
    /// The number of the last answered prompt.
    pub prompts_answered: u64,
    /// The model's last text since its last prompt.
    pub last_text: Option<String>,
    /// Its calls of `goal_done`.
    pub goal_reports: GoalReports,
}

/// A lead's reports that the goal is met.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GoalReports {
    /// The number of reports.
    pub count: u64,
    /// The summary of the last one.
    pub last_summary: String,
}

/// The permissions of an idle teammate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Permissions {
    /// It may claim a task.
    pub claim: bool,
    /// It may read mail that starts a turn.
    pub read_mail: bool,
}

/// The requests to a teammate that it has not dealt with yet.
#[derive(Default)]
struct PendingRequests {
    /// The id of a shutdown request.
    pub shutdown: Option<String>,
    /// The prompts that are not in its transcript yet.
    pub prompts: VecDeque<Prompt>,
    /// The number of the last prompt in its transcript.
    pub prompts_taken: u64,
    /// The receivers of the results of requested compactions.
    pub compactions: Vec<Reply>,
}

/// One teammate and the state of its loop.
pub struct Teammate {
    host: AgentHost,
    backend: Box<dyn AgentBackend>,
    turn_control: Arc<TurnControl>,
    phase: Phase,
    /// The word of the last reported phase, and the start of that phase.
    phase_reported: &'static str,
    phase_since: UnixMs,
    limits: PhaseLimits,
    commands: mpsc::Receiver<TeammateCommand>,
    status: watch::Sender<TeammateStatus>,
    permissions: watch::Receiver<Permissions>,
    reclaim_first: Option<TaskId>,
    reclaim_order: Arc<ReclaimOrder>,
    requests: PendingRequests,
    back_off: BackOff,
    lost_claim: Option<TaskId>,
    /// The time of its last claim. Earlier plans are not about this claim.
    claimed_at: UnixMs,
    /// The ids of approvals that it was reminded to answer.
    approvals_reminded: HashSet<String>,
}

impl Teammate {
    /// Creates a teammate. It first claims `reclaim_first`, the task it held before the process ended.
    #[must_use]
    pub fn new(
        host: AgentHost,
        backend: Box<dyn AgentBackend>,
        commands: mpsc::Receiver<TeammateCommand>,
        status: watch::Sender<TeammateStatus>,
        permissions: watch::Receiver<Permissions>,
        reclaim_first: Option<TaskId>,
        reclaim_order: Arc<ReclaimOrder>,
    ) -> Self {
        let limits = &host.services.spec.limits;
        let polls_max = limits.idle_timeout.as_millis() / limits.poll_interval.as_millis().max(1);
        let phase_limits =
            PhaseLimits { turns_max: limits.turns_max, polls_max: u32::try_from(polls_max).unwrap_or(u32::MAX).max(1) };
        let prompts_taken = status.borrow().prompts_answered;
        Self {
            turn_control: Arc::clone(&host.turn_control),
            host,
            backend,
            phase: Phase::START,
            phase_reported: "",
            phase_since: UnixMs::default(),
            limits: phase_limits,
            commands,
            status,
            permissions,
            reclaim_first,
            reclaim_order,
            requests: PendingRequests { prompts_taken, ..PendingRequests::default() },
            back_off: BackOff::default(),
            lost_claim: None,
            claimed_at: UnixMs::default(),
            approvals_reminded: HashSet::new(),
        }
    }

    /// Runs until it stops.
    ///
    /// # Errors
    /// A store fails, or the phase machine refuses an event. The lead then reclaims its task.
    pub async fn run(mut self) -> Result<(), AgentError> {
        let mut effects = VecDeque::from([Effect::Report, Effect::ReadInbox, Effect::ClaimNext]);
        loop {
            let events = match effects.pop_front() {
                Some(Effect::Exit) => return Ok(()),
                Some(effect @ Effect::RunTurn) if self.has_pending_compaction() => {
                    effects.push_front(effect);
                    self.compact().await?
                }
                Some(effect) => self.execute(effect).await?,
                None if self.has_pending_compaction() => self.compact().await?,
                None => self.wait().await.into_iter().collect(),
            };
            for event in events {
                // Events after the end are ignored.
                if self.phase == Phase::Stopped {
                    break;
                }
                let (next, more) = phase::step(self.phase, event, self.limits)?;
                self.host.progress.record_activity();
                self.phase = next;
                effects.extend(more);
            }
        }
    }

    async fn execute(&mut self, effect: Effect) -> Result<Vec<PhaseEvent>, AgentError> {
        match effect {
            Effect::RunTurn => return self.run_turn().await,
            Effect::ReadInbox => return self.read_inbox().await,
            Effect::ClaimNext => return self.claim_next().await,
            Effect::RenderIdentity => self.backend.forget_identity_block(),
            Effect::Remind => self.remind().await?,
            Effect::TellClaimLost => self.notify_claim_lost().await?,
            Effect::Release { claim, reason } => self.release(claim, reason).await?,
            Effect::BackOff | Effect::Exit => {}
            Effect::Report => self.report(),
        }
        Ok(Vec::new())
    }

    /// Handles the results of a turn or of mail, and returns those that are events of the phase machine.
    pub(super) async fn handle_outcomes(&mut self, outcomes: Vec<TurnOutcome>) -> Result<Vec<PhaseEvent>, AgentError> {
        let mut events = Vec::new();
        for outcome in outcomes {
            match outcome {
                TurnOutcome::Event(PhaseEvent::Claimed(claim)) => {
                    self.claimed_at = self.host.services.clock.now();
                    self.record_task(claim.task).await;
                    events.push(PhaseEvent::Claimed(claim));
                }
                TurnOutcome::Event(PhaseEvent::Finished) => {
                    self.back_off.record_finished_task();
                    if let Some(claim) = self.phase.claim() {
                        self.record_task(claim.task).await;
                    }
                    events.push(PhaseEvent::Finished);
                }
                TurnOutcome::Event(event) => events.push(event),
                TurnOutcome::ModelFailed { reason, is_permanent, retry_after } => {
                    self.model_failed(&reason, is_permanent, retry_after).await;
                    events.push(PhaseEvent::ModelFailed);
                }
                TurnOutcome::HarnessFailed(reason) => {
                    self.harness_failed(&reason);
                    events.push(PhaseEvent::HarnessFailed);
                }
                TurnOutcome::Truncated(reason) => {
                    self.back_off.set_last_error(reason);
                    events.push(PhaseEvent::Truncated);
                }
                TurnOutcome::ShutdownRequested { request_id } => self.requests.shutdown = Some(request_id),
                TurnOutcome::GoalDone(summary) => {
                    self.status.send_modify(|status| {
                        status.goal_reports.count += 1;
                        status.goal_reports.last_summary = summary;
                    });
                }
                // The lead sees the refusal and stops the team; nothing new starts until then.
                TurnOutcome::BudgetSpent(_) => events.extend([PhaseEvent::BudgetSpent, PhaseEvent::TurnEnded]),
                // The sender of the abort knows the reason.
                TurnOutcome::Aborted => {}
            }
        }
        // A lost claim ends the work, so the other events are void.
        if events.contains(&PhaseEvent::ClaimLost) {
            return Ok(vec![PhaseEvent::ClaimLost]);
        }
        Ok(events)
    }

    async fn model_failed(&mut self, reason: &str, is_permanent: bool, retry_after: Option<Duration>) {
        if matches!(self.phase, Phase::Stopping { .. }) {
            return;
        }
        let services = Arc::clone(&self.host.services);
        let is_first = if is_permanent {
            services.events.warn_once("model", reason);
            self.back_off.record_permanent_model_failure(reason);
            true
        } else {
            let is_first = self.back_off.record_model_failure(reason, retry_after, services.clock.now());
            services.events.warn(self.host.name(), format!("its model: {}", self.back_off.last_error()));
            is_first
        };
        if is_first {
            self.notify_lead_of_model(reason).await;
        }
    }

    /// Handles a failure of its tools or workspace: waits, longer each time, and gives up after too many.
    pub(super) fn harness_failed(&mut self, reason: &str) {
        self.back_off.set_last_error(reason);
        if matches!(self.phase, Phase::Stopping { .. }) {
            return;
        }
        self.host.services.events.warn(self.host.name(), format!("its tools or workspace failed: {reason}"));
        self.back_off.record_harness_failure(reason);
    }

    /// Waits for a command or for the next poll.
    async fn wait(&mut self) -> Option<PhaseEvent> {
        match self.phase {
            Phase::Idle { .. } | Phase::OnCall | Phase::Waiting { .. } => {}
            // The turn that it had to finish has ended.
            _ => return Some(PhaseEvent::TurnEnded),
        }
        loop {
            let wait = match (self.phase, self.back_off.time_left()) {
                (_, Some(time_left)) => Some(time_left),
                (Phase::Idle { .. } | Phase::Waiting { .. }, None) => {
                    Some(self.host.services.spec.limits.poll_interval)
                }
                (_, None) => None,
            };
            let command = tokio::select! {
                biased;
                command = self.commands.recv() => command.unwrap_or(TeammateCommand::Stop),
                () = sleep_if(wait) => TeammateCommand::Poll,
            };
            match command {
                TeammateCommand::Poll | TeammateCommand::ReadInbox => return Some(self.poll()),
                TeammateCommand::Prompt(prompt) => {
                    self.requests.prompts.push_back(prompt);
                    return Some(self.poll());
                }
                TeammateCommand::Compact(reply) => {
                    self.requests.compactions.push(reply);
                    return None;
                }
                TeammateCommand::Retry => {
                    self.back_off.retry();
                    self.report();
                    return Some(self.poll());
                }
                TeammateCommand::Stop | TeammateCommand::Abort => return Some(PhaseEvent::StopRequested),
                TeammateCommand::ClaimLost(claim) if self.phase.claim() == Some(claim) => {
                    self.lost_claim = Some(claim.task);
                    return Some(PhaseEvent::ClaimLost);
                }
                TeammateCommand::ClaimLost(_) => {}
            }
        }
    }

    pub(super) fn poll(&mut self) -> PhaseEvent {
        // This poll finds everything from before. So the lead knows that later news needs another wake-up.
        self.status.send_modify(|status| status.polls += 1);
        if self.back_off.end_if_over() {
            self.report();
        }
        PhaseEvent::PollDue
    }

    /// Reports its status: to the lead, and to people as an event.
    pub(super) fn report(&mut self) {
        let is_idle = matches!(self.phase, Phase::Idle { .. } | Phase::OnCall);
        let waiting_for =
            if is_idle { Some(self.back_off.waiting_for().unwrap_or(WaitingFor::MailOrTask)) } else { None };
        let claim = self.phase.claim();
        self.turn_control.set_claim(claim);
        if self.phase_reported != self.phase.word() {
            self.phase_reported = self.phase.word();
            self.phase_since = self.host.services.clock.now();
        }
        let kind = EventKind::TeammatePhase {
            teammate: self.host.name().to_owned(),
            phase: self.phase.word().to_owned(),
            task: claim.map(|claim| claim.task),
            waiting_for: waiting_for.clone(),
        };
        let services = &self.host.services;
        let row = services.member_row(&self.host.spec, self.phase, self.phase_since, waiting_for.as_ref());
        services.events.record(NewEvent::with_member(kind, row));
        let cannot_work = !self.back_off.can_work();
        let has_unanswered = self.host.conversation.prompts().has_unanswered();
        let last_text = self.host.conversation.prompts().last_text().map(str::to_owned);
        let prompts_answered = (is_idle && !has_unanswered).then_some(self.requests.prompts_taken);
        self.status.send_modify(|status| {
            status.phase = self.phase;
            status.since = self.phase_since;
            status.waiting_for = waiting_for;
            status.permanent_error = self.back_off.permanent_error().map(|error| error.reason().to_owned());
            status.cannot_work = cannot_work;
            status.has_unanswered = has_unanswered;
            status.reports += 1;
            status.last_text = last_text;
            status.prompts_answered = prompts_answered.unwrap_or(status.prompts_answered);
        });
        self.host.services.member_reported.notify_one();
    }
}

async fn sleep_if(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
