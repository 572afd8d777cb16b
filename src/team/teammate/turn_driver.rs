//! Runs a teammate's turns, compactions and completions, and prepares its worktrees. Meanwhile it receives commands, which decide how
//! soon that must end.

use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::Instrument;

use super::Teammate;
use super::command::TeammateCommand;
use super::requests::PendingRequests;
use super::status::StatusReporter;
use crate::agents::turn_control::{StopLevel, TurnControl};
use crate::agents::worktree::WorktreeSetup;
use crate::agents::{AgentError, CompactionOutcome, TurnOutcome};
use crate::domain::agent::turn_count::TurnCount;
use crate::domain::task::Task;
use crate::domain::team::phase::{self, ClaimRef, Phase, PhaseEvent, PhaseLimits};

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

impl Interruption {
    /// Returns true if nothing must end early.
    pub fn is_none(&self) -> bool {
        !(self.has_stop_command || self.claim_lost.is_some() || self.is_aborted || self.must_read_mail)
    }

    /// Returns the event of a command to stop.
    pub fn stop_event(&self) -> Option<PhaseEvent> {
        (self.has_stop_command || self.is_aborted).then_some(PhaseEvent::StopRequested)
    }
}

impl Teammate {
    /// Runs one turn, compaction or completion to its end, and receives commands meanwhile.
    pub(super) async fn run_part(&mut self, kind: TurnKind) -> Result<(Interruption, Vec<TurnOutcome>), AgentError> {
        let Self { host, backend, control, .. } = self;
        if let (TurnKind::Turn, Phase::Work { turns, .. }) = (kind, control.phase) {
            host.begin_turn(TurnCount { turn: turns.saturating_add(1), turns_max: control.limits.turns_max });
        }
        let span = span_of(kind, control.phase);
        let replies =
            if kind == TurnKind::Compaction { std::mem::take(&mut control.requests.compactions) } else { Vec::new() };
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
                TurnKind::Compaction => backend.compact(host).await.map(|outcome| {
                    let done = match outcome {
                        CompactionOutcome::Compacted => Ok(()),
                        CompactionOutcome::Kept(reason) => Err(reason),
                    };
                    // The requester may be gone.
                    replies.iter().for_each(|reply| drop(reply.try_send(done.clone())));
                    Vec::new()
                }),
            }
        };
        control.receive_during(&turn_control, pin!(turn.instrument(span))).await
    }

    /// Prepares the worktree of a task that was just claimed, and receives commands meanwhile.
    pub(super) async fn prepare_worktree(&mut self, task: &Task) -> Result<(Interruption, WorktreeSetup), AgentError> {
        let Self { host, control, .. } = self;
        let turn_control = Arc::clone(&host.turn_control);
        turn_control.set_level(StopLevel::Run);
        control.receive_during(&turn_control, pin!(host.prepare_worktree(task))).await
    }
}

/// Returns the span of the traces of one part.
fn span_of(kind: TurnKind, phase: Phase) -> tracing::Span {
    let (task, attempt) = (phase.claim().map(|claim| claim.task.0), phase.claim().map(|claim| claim.attempt));
    match (kind, phase) {
        (TurnKind::Turn, Phase::Work { turns, .. }) => tracing::info_span!("turn", task, attempt, turn = turns + 1),
        (TurnKind::Turn, _) => tracing::info_span!("turn", task, attempt),
        (TurnKind::Compaction, _) => tracing::info_span!("compaction", task, attempt),
        (TurnKind::Completion, _) => tracing::info_span!("completion", task, attempt),
    }
}

/// The phase of a teammate, and what the lead and the teammate tell each other while its agent works.
pub(super) struct Control {
    pub phase: Phase,
    pub limits: PhaseLimits,
    pub commands: mpsc::Receiver<TeammateCommand>,
    pub status: StatusReporter,
    pub requests: PendingRequests,
}

impl Control {
    /// Does the work to its end, and receives commands meanwhile.
    async fn receive_during<T>(
        &mut self,
        turn_control: &TurnControl,
        mut work: Pin<&mut impl Future<Output = Result<T, AgentError>>>,
    ) -> Result<(Interruption, T), AgentError> {
        let mut interruption = Interruption::default();
        loop {
            // Commands from before the work come first.
            let command = tokio::select! {
                biased;
                command = self.commands.recv() => command.unwrap_or(TeammateCommand::Abort),
                done = work.as_mut() => return Ok((interruption, done?)),
            };
            self.receive(command, turn_control, &mut interruption)?;
        }
    }

    fn receive(
        &mut self,
        command: TeammateCommand,
        turn_control: &TurnControl,
        interruption: &mut Interruption,
    ) -> Result<(), AgentError> {
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
            TeammateCommand::Compact(reply) => self.requests.compactions.push(reply),
            TeammateCommand::Stop
                if matches!(self.phase, Phase::Idle { .. } | Phase::OnCall | Phase::Waiting { .. }) =>
            {
                interruption.has_stop_command = true;
                turn_control.request_stop(StopLevel::FinishTurn);
            }
            TeammateCommand::Stop => {
                self.phase = phase::step(self.phase, PhaseEvent::StopRequested, self.limits)?.0;
                turn_control.request_stop(StopLevel::FinishTurn);
                // The model may be slow, and people should see at once that the request arrived.
                self.status.show_phase(self.phase);
            }
            TeammateCommand::ReadInbox => {
                interruption.must_read_mail = true;
                turn_control.request_stop(StopLevel::Abort);
            }
            TeammateCommand::Prompt(prompt) => self.requests.prompts.push_back(prompt),
            TeammateCommand::ClaimLost(_) | TeammateCommand::Poll | TeammateCommand::Retry => {}
        }
        Ok(())
    }
}
