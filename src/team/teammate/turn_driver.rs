//! Runs a teammate's turns, compactions and completions, and meanwhile receives commands, which decide how soon they must end.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::Instrument;

use super::command::TeammateCommand;
use super::requests::PendingRequests;
use super::status::StatusReporter;
use crate::agents::cancellation::StopLevel;
use crate::agents::{AgentBackend, AgentError, AgentHost, TurnOutcome};
use crate::domain::phase::{self, ClaimRef, Phase, PhaseEvent, PhaseLimits};
use crate::domain::turn_count::TurnCount;

/// The kind of a run between two waits for commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnKind {
    /// A turn.
    Turn,
    /// A compaction that a person requested.
    Compaction,
    /// The completion of its task without a report.
    Completion,
}

/// The commands that ended a run early.
#[derive(Default)]
pub(super) struct Interruption {
    /// A stop command during something other than a turn.
    pub has_stop_command: bool,
    pub claim_lost: Option<ClaimRef>,
    pub is_aborted: bool,
    /// Its mail has a stop request, so it must read its mail next.
    pub must_read_mail: bool,
}

/// Runs one turn, compaction or completion of a teammate.
pub(super) struct TurnDriver<'a> {
    pub host: &'a mut AgentHost,
    pub backend: &'a mut dyn AgentBackend,
    pub phase: &'a mut Phase,
    pub commands: &'a mut mpsc::Receiver<TeammateCommand>,
    pub status: &'a StatusReporter,
    pub requests: &'a mut PendingRequests,
}

impl TurnDriver<'_> {
    /// The span of the traces of one part.
    fn span(&self, kind: TurnKind) -> tracing::Span {
        let claim = self.host.turn_control.claim();
        let (task, attempt) = (claim.map(|claim| claim.task.0), claim.map(|claim| claim.attempt));
        match (kind, *self.phase) {
            (TurnKind::Turn, Phase::Work { turns, .. }) => tracing::info_span!("turn", task, attempt, turn = turns + 1),
            (TurnKind::Turn, _) => tracing::info_span!("turn", task, attempt),
            (TurnKind::Compaction, _) => tracing::info_span!("compaction", task, attempt),
            (TurnKind::Completion, _) => tracing::info_span!("completion", task, attempt),
        }
    }

    /// Records the start of one part, and returns the span of its traces.
    fn begin(&mut self, kind: TurnKind) -> tracing::Span {
        if let (TurnKind::Turn, Phase::Work { turns, .. }) = (kind, *self.phase) {
            let turns_max = self.host.services.spec.limits.turns_max;
            self.host.begin_turn(TurnCount { turn: turns.saturating_add(1), turns_max });
        }
        self.span(kind)
    }

    /// Runs one part to its end, and receives commands meanwhile.
    pub async fn run(mut self, kind: TurnKind) -> Result<(Interruption, Vec<TurnOutcome>), AgentError> {
        let mut interruption = Interruption::default();
        let span = self.begin(kind);
        let outcomes = {
            let replies =
                if kind == TurnKind::Compaction { std::mem::take(&mut self.requests.compactions) } else { Vec::new() };
            let Self { host, backend, phase, commands, status, requests } = self;
            let limits = PhaseLimits::of(&host.services.spec.limits);
            let turn_control = Arc::clone(&host.turn_control);
            let turn = async {
                match kind {
                    TurnKind::Turn if host.turn_control.level() >= StopLevel::FinishTurn => {
                        Ok(vec![TurnOutcome::Event(PhaseEvent::TurnEnded)])
                    }
                    TurnKind::Turn => {
                        host.services.events.wait_for_capacity().await;
                        backend.turn(host).await
                    }
                    TurnKind::Completion => host.complete_by_evidence().await,
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
                        *phase = phase::step(*phase, PhaseEvent::StopRequested, limits)?.0;
                        turn_control.request_stop(StopLevel::FinishTurn);
                        status.show_phase(*phase);
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
}
