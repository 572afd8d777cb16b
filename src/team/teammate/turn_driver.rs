//! Runs a teammate's turns and compactions, and meanwhile receives commands, which decide how soon they must end.

use tracing::Instrument;

use super::{Teammate, TeammateCommand};
use crate::agents::cancellation::StopLevel;
use crate::agents::{AgentError, TurnOutcome};
use crate::domain::phase::{self, ClaimRef, Phase, PhaseEvent};

/// The kind of a run between two waits for commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnKind {
    /// A turn.
    Turn,
    /// A compaction that a person requested.
    Compaction,
}

/// The commands that ended a run early.
#[derive(Default)]
struct Interruption {
    /// A stop command during something other than a turn.
    has_stop_command: bool,
    claim_lost: Option<ClaimRef>,
    is_aborted: bool,
    /// Its mail has a stop request, so it must read its mail next.
    must_read_mail: bool,
}

impl Teammate {
    /// Runs a turn to its end.
    pub(super) async fn run_turn(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        match self.phase {
            Phase::Work { .. } => self.turn_control.set_level(StopLevel::Run),
            // It stops between two turns.
            Phase::Stopping { .. } => return Ok(vec![PhaseEvent::TurnEnded]),
            _ => return Ok(Vec::new()),
        }
        let (interruption, outcomes) = self.drive(TurnKind::Turn).await?;
        self.handle_turn_end(interruption, outcomes).await
    }

    /// Returns true if a compaction was requested and may start.
    pub(super) fn has_pending_compaction(&self) -> bool {
        !self.requests.compactions.is_empty() && !matches!(self.phase, Phase::Stopping { .. } | Phase::Stopped)
    }

    /// Compacts the context on request: between two turns, or while it is idle.
    pub(super) async fn compact(&mut self) -> Result<Vec<PhaseEvent>, AgentError> {
        self.turn_control.set_level(StopLevel::Run);
        let (interruption, _) = self.drive(TurnKind::Compaction).await?;
        let mut events = vec![PhaseEvent::Compacted];
        if self.is_idle() {
            // Poll commands were ignored meanwhile.
            events.push(self.poll());
        } else if interruption.must_read_mail {
            events.extend(self.read_inbox().await?);
        }
        if let Some(lost) = interruption.claim_lost {
            self.lost_claim = Some(lost.task);
            events.push(PhaseEvent::ClaimLost);
        }
        if interruption.has_stop_command || interruption.is_aborted {
            events.push(PhaseEvent::StopRequested);
        }
        Ok(events)
    }

    /// The span of the traces of one part.
    fn span(&self, kind: TurnKind) -> tracing::Span {
        let claim = self.turn_control.claim();
        let (task, attempt) = (claim.map(|claim| claim.task.0), claim.map(|claim| claim.attempt));
        match (kind, self.phase) {
            (TurnKind::Turn, Phase::Work { turns, .. }) => tracing::info_span!("turn", task, attempt, turn = turns + 1),
            (TurnKind::Turn, _) => tracing::info_span!("turn", task, attempt),
            (TurnKind::Compaction, _) => tracing::info_span!("compaction", task, attempt),
        }
    }

    /// Runs one part to its end, and receives commands meanwhile.
    async fn drive(&mut self, kind: TurnKind) -> Result<(Interruption, Vec<TurnOutcome>), AgentError> {
        let mut interruption = Interruption::default();
        let span = self.span(kind);
        let outcomes = {
            let replies =
                if kind == TurnKind::Compaction { std::mem::take(&mut self.requests.compactions) } else { Vec::new() };
            let Self { host, backend, commands, turn_control, phase, status, limits, requests, .. } = self;
            let turn = async {
                match kind {
                    TurnKind::Turn if host.turn_control.level() >= StopLevel::FinishTurn => {
                        Ok(vec![TurnOutcome::Event(PhaseEvent::TurnEnded)])
                    }
                    TurnKind::Turn => {
                        host.services.events.wait_for_capacity().await;
                        backend.turn(host).await
                    }
                    TurnKind::Compaction => backend.compact(host).await.map(|done| {
                        // The requester may be gone.
                        replies.iter().for_each(|reply| drop(reply.try_send(done.clone())));
                        Vec::new()
                    }),
                }
            };
            let turn = turn.instrument(span);
            tokio::pin!(turn);
            loop {
                // Commands from before the turn come first.
                let command = tokio::select! {
                    biased;
                    command = commands.recv() => command.unwrap_or(TeammateCommand::Abort),
                    outcomes = &mut turn => break outcomes?,
                };
                match command {
                    TeammateCommand::Abort => {
                        interruption.is_aborted = true;
                        turn_control.request_stop(StopLevel::Abort);
                    }
                    TeammateCommand::ClaimLost(lost) if turn_control.claim() == Some(lost) => {
                        interruption.claim_lost = Some(lost);
                        turn_control.set_claim(None);
                        turn_control.request_stop(StopLevel::ClaimLost);
                    }
                    TeammateCommand::Compact(reply) => requests.compactions.push(reply),
                    TeammateCommand::Stop
                        if matches!(phase, Phase::Idle { .. } | Phase::OnCall | Phase::Waiting { .. }) =>
                    {
                        interruption.has_stop_command = true;
                        turn_control.request_stop(StopLevel::FinishTurn);
                    }
                    TeammateCommand::Stop => {
                        *phase = phase::step(*phase, PhaseEvent::StopRequested, *limits)?.0;
                        turn_control.request_stop(StopLevel::FinishTurn);
                        status.send_modify(|status| status.phase = *phase);
                        // The model may be slow, and people should see at once that the request arrived.
                        tracing::debug!("a teammate finishes its turn and then stops");
                    }
                    TeammateCommand::ReadInbox => {
                        interruption.must_read_mail = true;
                        turn_control.request_stop(StopLevel::Abort);
                    }
                    TeammateCommand::Prompt(prompt) => requests.prompts.push_back(prompt),
                    TeammateCommand::ClaimLost(_) | TeammateCommand::Poll | TeammateCommand::Retry => {}
                }
            }
        };
        Ok((interruption, outcomes))
    }

    async fn handle_turn_end(
        &mut self,
        interruption: Interruption,
        outcomes: Vec<TurnOutcome>,
    ) -> Result<Vec<PhaseEvent>, AgentError> {
        let model_failed = outcomes.iter().any(|outcome| matches!(outcome, TurnOutcome::ModelFailed { .. }));
        if !model_failed {
            self.back_off.record_answer();
        }
        let has_finished = outcomes.contains(&TurnOutcome::Event(PhaseEvent::Finished));
        if interruption.is_aborted || interruption.must_read_mail {
            let mut events = self.handle_outcomes(outcomes).await?;
            events
                .retain(|event| matches!(event, PhaseEvent::Finished | PhaseEvent::Claimed(_) | PhaseEvent::ClaimLost));
            if interruption.is_aborted && !matches!(self.phase, Phase::Stopping { .. }) {
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
        if let Some(end) = events.iter_mut().find(|event| **event == PhaseEvent::WorkEnded) {
            if self.remind_of_approvals().await? {
                *end = PhaseEvent::TurnEnded;
            } else if self.turn_control.claim().is_some() && self.awaits_answer().await {
                *end = PhaseEvent::AnswerAwaited;
            }
        }
        if events.contains(&PhaseEvent::ClaimLost) {
            self.lost_claim = interruption.claim_lost.or(self.phase.claim()).map(|claim| claim.task);
        }
        Ok(events)
    }
}
