//! A teammate's loop: it executes what [`crate::domain::team::phase::step`] decides, and turns the results into events.
//!
//! The lead's agent has such a loop too, but claims nothing: goals and report requests reach it as prompts. Each other module of this
//! folder has one part of the loop's state, with the methods that read and change it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::agents::turn_control::StopLevel;
use crate::agents::worktree::WorktreeSetup;
use crate::agents::{AgentBackend, AgentError, AgentHost, TurnOutcome, task_start};
use crate::domain::task::Task;
use crate::domain::team::message::MessageType;
use crate::domain::team::phase::{self, ClaimRef, Effect, Phase, PhaseEvent, PhaseLimits, ReleaseReason};
use crate::ports::StoreError;
use crate::team::running_member::ExitReason;
use approval_reminders::ApprovalReminders;
use back_off::{BackOff, sleep_if};
use claims::Claims;
use reclaim_order::ReclaimOrder;
use requests::PendingRequests;
use status::StatusReporter;
use turn_driver::{Control, Interruption, TurnKind};

mod approval_reminders;
mod back_off;
mod claims;
mod command;
mod failures;
pub mod reclaim_order;
mod requests;
mod status;
mod turn_driver;

pub use back_off::{MemberError, MemberErrorKind};
pub use command::{Prompt, TeammateCommand, WorkGates};
pub use status::{GoalReports, TeammateStatus};

/// The wait before a failed store is tried again.
const STORE_BACKOFF: Duration = Duration::from_secs(15);

/// One teammate and the state of its loop.
pub struct Teammate {
    host: AgentHost,
    backend: Box<dyn AgentBackend>,
    control: Control,
    work_gates: watch::Receiver<WorkGates>,
    claims: Claims,
    back_off: BackOff,
    reminders: ApprovalReminders,
}

impl Teammate {
    /// Creates a teammate. `reclaim_order` tells it whether it may claim yet.
    pub fn new(
        host: AgentHost,
        backend: Box<dyn AgentBackend>,
        commands: mpsc::Receiver<TeammateCommand>,
        status: watch::Sender<TeammateStatus>,
        work_gates: watch::Receiver<WorkGates>,
        reclaim_order: Arc<ReclaimOrder>,
    ) -> Self {
        let prompts_taken = status.borrow().prompts_answered;
        let control = Control {
            phase: Phase::START,
            limits: PhaseLimits::of(&host.services.spec.limits),
            commands,
            status: StatusReporter(status),
            requests: PendingRequests { prompts_taken, ..PendingRequests::default() },
        };
        Self {
            host,
            backend,
            control,
            work_gates,
            claims: Claims::new(reclaim_order),
            back_off: BackOff::default(),
            reminders: ApprovalReminders::default(),
        }
    }

    /// Runs until it stops. Returns the reason.
    ///
    /// # Errors
    /// A store failed, or the phase machine refused an event. The lead then reclaims the teammate's task.
    pub async fn run(mut self) -> Result<ExitReason, AgentError> {
        let mut effects = VecDeque::from([Effect::Report, Effect::ReadInbox, Effect::ClaimNext]);
        loop {
            let events = match effects.pop_front() {
                Some(Effect::Exit) => return Ok(ExitReason::Requested),
                Some(Effect::ExitIdle) => return Ok(ExitReason::Idle),
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
                if self.control.phase == Phase::Stopped {
                    break;
                }
                let (next, more) = phase::step(self.control.phase, event, self.control.limits)?;
                self.host.progress.record_activity();
                self.control.phase = next;
                effects.extend(more);
            }
        }
    }

    async fn execute(&mut self, effect: Effect) -> Result<Vec<PhaseEvent>, AgentError> {
        match effect {
            Effect::RunTurn => return self.run_turn(TurnKind::Turn).await,
            Effect::CompleteByEvidence => return self.run_turn(TurnKind::Completion).await,
            Effect::CheckEvidence { claim, is_ending } => return Ok(self.check_evidence(claim, is_ending).await),
            Effect::ReadInbox => return self.read_inbox().await,
            Effect::ClaimNext => {
                let events = self.claim_next().await?;
                return Ok(self.prompt_after_claim(events));
            }
            Effect::Remind => claims::remind(&mut self.host).await?,
            Effect::NotifyClaimLost => self.notify_claim_lost().await?,
            Effect::Release { claim, reason } => self.release(claim, reason).await?,
            // `run` handles them.
            Effect::Exit | Effect::ExitIdle => {}
            Effect::Report => self.report(),
        }
        Ok(Vec::new())
    }

    /// Handles the results of a turn or of mail, and returns those that are events of the phase machine.
    async fn handle_outcomes(&mut self, outcomes: Vec<TurnOutcome>) -> Result<Vec<PhaseEvent>, AgentError> {
        let mut events = Vec::new();
        for outcome in outcomes {
            match outcome {
                TurnOutcome::Event(PhaseEvent::Claimed(claim)) => {
                    let task = claims::record_task(&self.host, claim.task).await;
                    self.claims.first_attempt = task.map_or(claim.attempt, |task| task.first_continued_attempt());
                    task_start::begin_claimed_by_call(&mut self.host, claim).await?;
                    events.push(PhaseEvent::Claimed(claim));
                }
                TurnOutcome::Event(PhaseEvent::Finished) => {
                    self.back_off.record_finished_task();
                    if let Some(claim) = self.control.phase.claim() {
                        claims::record_task(&self.host, claim.task).await;
                        self.host.record_attempt_end(claim).await;
                    }
                    events.push(PhaseEvent::Finished);
                }
                TurnOutcome::Event(event) => events.push(event),
                TurnOutcome::ModelFailed { reason, kind } => events.push(self.model_failed(&reason, kind).await),
                TurnOutcome::HarnessFailed(reason) => {
                    self.harness_failed(&reason);
                    events.push(PhaseEvent::HarnessFailed);
                }
                TurnOutcome::AttemptFailed(reason) => {
                    self.back_off.set_last_error(reason);
                    events.push(PhaseEvent::AttemptFailed);
                }
                TurnOutcome::AgentFailed(reason) => {
                    self.agent_failed(&reason).await;
                    events.push(PhaseEvent::AttemptFailed);
                }
                TurnOutcome::ShutdownRequested { request_id } => self.control.requests.shutdown = Some(request_id),
                TurnOutcome::GoalDone(summary) => self.control.status.record_goal(summary),
                TurnOutcome::BudgetSpent(spent) => events.extend(self.budget_spent(&spent).await),
                TurnOutcome::AgentEnded { reason, is_fruitless } => {
                    events.push(self.agent_ended(&reason, is_fruitless).await);
                }
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

    /// Waits for a command or for the next poll.
    async fn wait(&mut self) -> Option<PhaseEvent> {
        match self.control.phase {
            Phase::Idle { .. } | Phase::OnCall | Phase::Waiting { .. } => {}
            // The turn that it had to finish has ended.
            _ => return Some(PhaseEvent::TurnEnded),
        }
        loop {
            let polls = matches!(self.control.phase, Phase::Idle { .. } | Phase::Waiting { .. });
            let poll_interval = polls.then_some(self.host.services.spec.limits.poll_interval);
            let wait = self.back_off.time_left().or(poll_interval);
            let time_to_idle_shutdown =
                self.control.status.time_to_idle_shutdown(&self.host, self.control.phase, &self.back_off);
            let command = tokio::select! {
                biased;
                command = self.control.commands.recv() => command.unwrap_or(TeammateCommand::Stop),
                () = sleep_if(time_to_idle_shutdown) => return Some(PhaseEvent::IdleShutdownDue),
                () = sleep_if(wait) => TeammateCommand::Poll,
            };
            match command {
                TeammateCommand::Poll | TeammateCommand::ReadInbox => return Some(self.poll()),
                TeammateCommand::Prompt(prompt) => {
                    self.control.requests.prompts.push_back(prompt);
                    return Some(self.poll());
                }
                TeammateCommand::Compact(reply) => {
                    self.control.requests.compactions.push(reply);
                    return None;
                }
                TeammateCommand::Retry => {
                    self.back_off.retry();
                    self.host.services.accounts.retry();
                    self.report();
                    return Some(self.poll());
                }
                TeammateCommand::Stop | TeammateCommand::Abort => return Some(PhaseEvent::StopRequested),
                TeammateCommand::ClaimLost(claim) if self.control.phase.claim() == Some(claim) => {
                    self.claims.lost = Some(claim.task);
                    return Some(PhaseEvent::ClaimLost);
                }
                TeammateCommand::ClaimLost(_) => {}
            }
        }
    }

    fn may_claim(&self) -> bool {
        self.work_gates.borrow().may_claim(self.host.name())
    }

    fn may_read(&self) -> bool {
        self.work_gates.borrow().may_read(self.host.name())
    }

    fn poll(&mut self) -> PhaseEvent {
        self.control.status.record_poll();
        if self.back_off.end_wait_if_over() {
            self.report();
        }
        PhaseEvent::PollDue
    }

    fn report(&mut self) {
        self.host.turn_control.set_claim(self.control.phase.claim());
        self.control.status.report(&self.host, self.control.phase, &self.back_off, self.control.requests.prompts_taken);
    }

    /// Reads the prompts and mail that may start a turn now. Mail that cannot be read waits.
    async fn read_inbox(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        match self.try_read_inbox().await {
            Err(AgentError::Store(error)) => {
                self.host.services.events.warn(self.host.name(), format!("cannot read its mail: {error}"));
                // If it is already waiting, the wait is not extended.
                if self.control.phase.is_idle() && self.back_off.can_work() {
                    self.back_off.begin_wait("its inbox", STORE_BACKOFF);
                    self.report();
                }
                Ok(Vec::new())
            }
            outcome => outcome,
        }
    }

    async fn try_read_inbox(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        let is_idle = self.control.phase.is_idle();
        if is_idle {
            self.wait_for_quota().await;
            if !self.back_off.can_work() {
                return self.read_mail_without_model().await;
            }
        }
        let may_act = !is_idle || self.may_read() || !self.control.requests.prompts.is_empty();
        while self.control.requests.record_next_prompt(&mut self.host).await? {
            self.report();
        }
        if !may_act {
            return self.read_mail_without_model().await;
        }
        let shutdown_before = self.control.requests.shutdown.clone();
        let outcomes = self.host.read_inbox().await?;
        let mut events = self.handle_outcomes(outcomes).await?;
        if matches!(self.control.phase, Phase::Waiting { .. }) && events.is_empty() {
            // The model answers a shutdown request. An answer that came before this wait is in its context already.
            if self.control.requests.shutdown != shutdown_before {
                events.push(PhaseEvent::Mail);
            } else if !self.claims.awaits_answer(&self.host).await {
                events.push(PhaseEvent::WorkEnded);
            }
        }
        if !is_idle {
            return Ok(events);
        }
        if !events.contains(&PhaseEvent::Mail) {
            // An idle teammate has no work to lose: the harness accepts for it, without a model request.
            events.extend(self.control.requests.accept_shutdown(&self.host).await);
        }
        if self.claims.reclaim_order.former_task(&self.host.spec.name).is_some() && self.may_claim() {
            // Its former task comes first: the mail is answered in the context of that task.
            events.retain(|event| *event != PhaseEvent::Mail);
            return Ok(events);
        }
        let has_unanswered = self.host.conversation.prompts.is_answer_due;
        if has_unanswered && !events.contains(&PhaseEvent::StopRequested) {
            events.retain(|event| *event != PhaseEvent::Mail);
            events.extend(self.unanswered_prompt().await);
        }
        Ok(events)
    }

    /// Reads the inbox if it has a shutdown request, or nothing but notices: these need no model. Otherwise all mail waits.
    async fn read_mail_without_model(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        let waiting = self.host.services.stores.mailbox.peek(self.host.name()).await?;
        let kinds = || waiting.iter().map(|delivery| delivery.message.kind);
        let has_stop_request = kinds().any(|kind| kind == MessageType::ShutdownRequest);
        let are_notices = kinds().all(MessageType::is_notice);
        if waiting.is_empty() || !(has_stop_request || are_notices) {
            return Ok(Vec::new());
        }
        let outcomes = self.host.read_inbox().await?;
        let mut events = self.handle_outcomes(outcomes).await?;
        events.extend(self.control.requests.accept_shutdown(&self.host).await);
        // No turn may start now. Other mail is in the transcript, and a later run answers it.
        events.retain(|event| *event == PhaseEvent::StopRequested);
        Ok(events)
    }

    /// Claims a task if it is idle and allowed to.
    async fn claim_next(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        if !self.control.phase.is_idle() {
            return Ok(Vec::new());
        }
        self.wait_for_quota().await;
        let may_claim = self.may_claim() && self.back_off.can_work();
        if !may_claim || self.claims.reclaim_order.must_wait(&self.host.spec.name) {
            return Ok(vec![PhaseEvent::NothingFound]);
        }
        let scope = self.host.services.spec.task_scope(&self.host.spec);
        loop {
            match self.claims.take_next(&self.host, scope).await {
                Ok(Some(task)) => {
                    let (interruption, setup) = self.prepare_worktree(&task).await?;
                    let has_ended = matches!(setup, WorktreeSetup::AlreadyMerged | WorktreeSetup::Failed(_));
                    if has_ended && interruption.is_none() {
                        continue;
                    }
                    return self.begin_task(&task, setup, &interruption).await;
                }
                Ok(None) | Err(StoreError::ClaimsPaused(_)) => return Ok(vec![PhaseEvent::NothingFound]),
                // The board cannot be written. The teammate waits before it tries again.
                Err(error) => {
                    self.host.services.events.warn(self.host.name(), format!("cannot claim: {error}"));
                    self.back_off.begin_wait("the board", STORE_BACKOFF);
                    self.report();
                    return Ok(vec![PhaseEvent::NothingFound]);
                }
            }
        }
    }

    /// Begins the work on a claimed task if its worktree is ready.
    async fn begin_task(
        &mut self,
        task: &Task,
        setup: WorktreeSetup,
        interruption: &Interruption,
    ) -> Result<Vec<PhaseEvent>, AgentError> {
        if matches!(setup, WorktreeSetup::Ready) {
            let mut events = self.claims.begin_work(&mut self.host, self.backend.as_mut(), task).await?;
            events.extend(self.claims.record_interruption(interruption));
            events.extend(interruption.stop_event());
            return Ok(events);
        }
        if let WorktreeSetup::Unavailable(reason) = setup {
            self.harness_failed(&reason);
        }
        self.report();
        let mut events = vec![PhaseEvent::NothingFound];
        if interruption.must_read_mail {
            events.extend(self.read_inbox().await?);
        }
        events.extend(interruption.stop_event());
        Ok(events)
    }

    async fn check_evidence(&mut self, claim: ClaimRef, is_ending: bool) -> Vec<PhaseEvent> {
        match self.claims.check_evidence(&mut self.host, claim, is_ending).await {
            Ok(event) => vec![event],
            Err(error) => {
                self.harness_failed(&error.to_string());
                vec![PhaseEvent::HarnessFailed]
            }
        }
    }

    async fn notify_claim_lost(&mut self) -> Result<(), AgentError> {
        if let Some(claim) = self.host.turn_control.claim() {
            // A person or the lead may have failed the attempt.
            self.host.record_attempt_end(claim).await;
        }
        self.host.turn_control.set_claim(None);
        let text = self.claims.take_loss_text(&self.host).await;
        self.host.append_message(text).await
    }

    async fn release(&mut self, claim: ClaimRef, cause: ReleaseReason) -> Result<(), AgentError> {
        let mut reason = match self.back_off.release_reason(cause) {
            Some(reason) => reason,
            None => claims::stop_reason(&self.host, self.may_read()),
        };
        if cause.counts_as_failure() {
            reason = self.host.failure_without_report(claim, &reason, cause == ReleaseReason::Unfinished);
        }
        match self.claims.cap_reached.take().filter(|(of, _)| *of == claim && cause == ReleaseReason::CapReached) {
            Some((_, cap)) => self.host.release_at_cap(claim, &reason, cap).await?,
            None => self.host.release_claim(claim, &reason, cause.counts_as_failure()).await?,
        }
        if cause == ReleaseReason::Unfinished {
            self.host.forward_question(claim).await;
        }
        self.host.record_attempt_end(claim).await;
        self.host.turn_control.set_claim(None);
        Ok(())
    }

    async fn run_turn(&mut self, kind: TurnKind) -> Result<Vec<PhaseEvent>, AgentError> {
        match self.control.phase {
            Phase::Work { .. } => self.host.turn_control.set_level(StopLevel::Run),
            // It stops between two turns.
            Phase::Stopping { .. } => return Ok(vec![PhaseEvent::TurnEnded]),
            _ => return Ok(Vec::new()),
        }
        self.back_off.record_turn_start();
        let (interruption, outcomes) = self.run_part(kind).await?;
        if kind == TurnKind::Turn {
            self.record_answer(&outcomes);
        }
        self.handle_turn_end(interruption, outcomes).await
    }

    /// Returns true if a compaction was requested and may start.
    fn has_pending_compaction(&self) -> bool {
        !self.control.requests.compactions.is_empty()
            && !matches!(self.control.phase, Phase::Stopping { .. } | Phase::Stopped)
    }

    /// Compacts the context on request: between two turns, or while it is idle.
    async fn compact(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        self.host.turn_control.set_level(StopLevel::Run);
        let (interruption, _) = self.run_part(TurnKind::Compaction).await?;
        let mut events = vec![PhaseEvent::Compacted];
        if self.control.phase.is_idle() {
            // Poll commands were ignored meanwhile.
            events.push(self.poll());
        } else if interruption.must_read_mail {
            events.extend(self.read_inbox().await?);
        }
        events.extend(self.claims.record_interruption(&interruption));
        events.extend(interruption.stop_event());
        Ok(events)
    }

    async fn handle_turn_end(
        &mut self,
        interruption: Interruption,
        outcomes: Vec<TurnOutcome>,
    ) -> Result<Vec<PhaseEvent>, AgentError> {
        let has_finished = outcomes.contains(&TurnOutcome::Event(PhaseEvent::Finished));
        if interruption.is_aborted || interruption.must_read_mail {
            let mut events = self.handle_outcomes(outcomes).await?;
            events
                .retain(|event| matches!(event, PhaseEvent::Finished | PhaseEvent::Claimed(_) | PhaseEvent::ClaimLost));
            if interruption.is_aborted && !matches!(self.control.phase, Phase::Stopping { .. }) {
                events.push(PhaseEvent::StopRequested);
            }
            events.push(PhaseEvent::TurnEnded);
            return Ok(events);
        }
        // Its own report may have ended the claim; that is no loss.
        let mut events = match interruption.claim_lost {
            Some(_) if !has_finished => vec![PhaseEvent::ClaimLost],
            _ => self.handle_outcomes(outcomes).await?,
        };
        if let Some(end) = events.iter_mut().find(|event| **event == PhaseEvent::WorkEnded)
            && self.reminders.remind(&mut self.host).await?
        {
            *end = PhaseEvent::TurnEnded;
        }
        if events.contains(&PhaseEvent::ClaimLost) {
            self.claims.lost = interruption.claim_lost.or(self.control.phase.claim()).map(|claim| claim.task);
        }
        Ok(events)
    }
}
