//! Runs a teammate's turns, compactions and completions, and prepares its worktrees. Meanwhile it receives commands, which decide how
//! soon that must end.

use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::Instrument;

use super::command::TeammateCommand;
use super::requests::PendingRequests;
use super::status::StatusReporter;
use crate::agents::cancellation::{StopLevel, TurnControl};
use crate::agents::worktree::WorktreeSetup;
use crate::agents::{AgentBackend, AgentError, AgentHost, TurnOutcome};
use crate::domain::phase::{self, ClaimRef, Phase, PhaseEvent, PhaseLimits};
use crate::domain::task::Task;
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
        let span = self.begin(kind);
        let replies =
            if kind == TurnKind::Compaction { std::mem::take(&mut self.requests.compactions) } else { Vec::new() };
        let (receiver, host, backend) = self.split();
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
        receiver.receive_during(pin!(turn.instrument(span))).await
    }

    /// Prepares the worktree of a task that was just claimed, and receives commands meanwhile.
    pub async fn prepare_worktree(self, task: &Task) -> Result<(Interruption, WorktreeSetup), AgentError> {
        let (receiver, host, _) = self.split();
        host.turn_control.set_level(StopLevel::Run);
        receiver.receive_during(pin!(host.prepare_worktree(task))).await
    }
}

impl<'a> TurnDriver<'a> {
    fn split(self) -> (CommandReceiver<'a>, &'a mut AgentHost, &'a mut dyn AgentBackend) {
        let Self { host, backend, phase, commands, status, requests } = self;
        let turn_control = Arc::clone(&host.turn_control);
        let limits = PhaseLimits::of(&host.services.spec.limits);
        (CommandReceiver { phase, commands, status, requests, turn_control, limits }, host, backend)
    }
}

/// Receives commands while a teammate does something else.
struct CommandReceiver<'a> {
    phase: &'a mut Phase,
    commands: &'a mut mpsc::Receiver<TeammateCommand>,
    status: &'a StatusReporter,
    requests: &'a mut PendingRequests,
    turn_control: Arc<TurnControl>,
    limits: PhaseLimits,
}

impl CommandReceiver<'_> {
    /// Does the work to its end, and receives commands meanwhile.
    async fn receive_during<T>(
        mut self,
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
            self.receive(command, &mut interruption)?;
        }
    }

    fn receive(&mut self, command: TeammateCommand, interruption: &mut Interruption) -> Result<(), AgentError> {
        let Self { phase, turn_control, requests, .. } = self;
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
            TeammateCommand::Stop if matches!(phase, Phase::Idle { .. } | Phase::OnCall | Phase::Waiting { .. }) => {
                interruption.has_stop_command = true;
                turn_control.request_stop(StopLevel::FinishTurn);
            }
            TeammateCommand::Stop => {
                **phase = phase::step(**phase, PhaseEvent::StopRequested, self.limits)?.0;
                turn_control.request_stop(StopLevel::FinishTurn);
                self.status.show_phase(**phase);
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
        Ok(())
    }
}
