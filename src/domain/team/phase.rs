//! A teammate's life cycle as a state machine. [`step`] is pure: it returns the next phase and the effects of an event.
//!
//! WORK ends when the model stops calling tools, calls `idle`, or cannot go on. If it then holds a task, the evidence of the
//! attempt decides whether the task is completed. IDLE checks mail and then the board, every few seconds for a limited time; then
//! the teammate is on call. IDLE never holds a claim.

use schemars::JsonSchema;
use std::fmt;

use super::team_spec::Limits;
use crate::domain::task::evidence::Evidence;
use crate::domain::task::{Task, TaskId};
use crate::domain::text::words::words;

/// A task and attempt, by which a holder refers to its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimRef {
    /// The task.
    pub task: TaskId,
    /// The attempt, which is the fence.
    pub attempt: u32,
}

impl ClaimRef {
    /// Returns the task and its current attempt.
    pub fn of(task: &Task) -> Self {
        Self { task: task.id, attempt: task.attempt }
    }
}

/// The phase of a teammate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It takes turns.
    Work {
        /// The claim it holds, if it works on a task.
        claim: Option<ClaimRef>,
        /// Number of turns in this phase.
        turns: u32,
        /// True after it was reminded of its claim.
        reminded: bool,
        /// The reason for which the attempt fails, unless a passed verify command completes the task; `None` while it can take turns.
        ending: Option<ReleaseReason>,
    },
    /// It holds a task and waits for the answer to a plan, a review or a question. This costs no turns.
    Waiting {
        /// The claim it holds.
        claim: ClaimRef,
        /// Number of turns in this WORK phase.
        turns: u32,
        /// True after it was reminded of its claim.
        reminded: bool,
    },
    /// It polls for mail and tasks.
    Idle {
        /// Number of polls so far.
        polls: u32,
    },
    /// It has polled long enough. Mail or a claimable task returns it to WORK.
    OnCall,
    /// It was asked to stop and finishes its turn.
    Stopping {
        /// The claim it holds.
        claim: Option<ClaimRef>,
    },
    /// It has ended.
    Stopped,
}

words! {
    /// The phase of a member in its reports, in the event log and in the state file.
    #[derive(Default, JsonSchema)]
    pub enum ReportedPhase {
        /// It has not reported yet.
        #[default]
        Starting = "",
        /// It is in WORK.
        Work = "work",
        /// It is in WORK, and has made no progress for long.
        Stalled = "stalled",
        /// It is in IDLE or on call.
        Idle = "idle",
        /// It was asked to stop.
        Stopping = "stopping",
        /// It ended by mistake.
        Dead = "dead",
        /// It ended on request, or because it was idle. Words that this version does not know count as this one.
        #[serde(other)]
        Stopped = "stopped",
    }
}

impl Default for Phase {
    fn default() -> Self {
        Self::START
    }
}

impl Phase {
    /// The phase of a new teammate: it polls first.
    pub const START: Self = Self::Idle { polls: 0 };

    /// Returns the phase that reports show.
    pub fn reported(&self) -> ReportedPhase {
        match self {
            Self::Work { .. } | Self::Waiting { .. } => ReportedPhase::Work,
            Self::Idle { .. } | Self::OnCall => ReportedPhase::Idle,
            Self::Stopping { .. } => ReportedPhase::Stopping,
            Self::Stopped => ReportedPhase::Stopped,
        }
    }

    /// Returns true in IDLE, on call or not.
    pub fn is_idle(&self) -> bool {
        matches!(self, Self::Idle { .. } | Self::OnCall)
    }

    /// Returns the claim it holds.
    pub fn claim(&self) -> Option<ClaimRef> {
        match self {
            Self::Work { claim, .. } | Self::Stopping { claim } => *claim,
            Self::Waiting { claim, .. } => Some(*claim),
            Self::Idle { .. } | Self::OnCall | Self::Stopped => None,
        }
    }
}

/// An event in a teammate's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseEvent {
    /// The model called tools and has their results.
    TurnEnded,
    /// The model ended its work: it called no tools, or called `idle`.
    WorkEnded,
    /// The model ended its work on a task because it waits for the answer to a plan, a review or a question.
    AnswerAwaited,
    /// The model ended its work on a task, or the attempt cannot go on, and the attempt has this evidence.
    EvidenceFound(Evidence),
    /// The task was not completed by its evidence. The model has the reason in its context.
    CompletionRefused,
    /// The model could not be reached within its retries.
    ModelFailed,
    /// A tool failed for a reason outside the task and the model: a store or the workspace.
    HarnessFailed,
    /// The harness stopped the agent, which is no report: it repeated itself, its answers were cut off repeatedly, or its model refuses the
    /// context.
    AttemptFailed,
    /// Mail that needs an answer was added to the context.
    Mail,
    /// A task was claimed, by a poll or by a tool call.
    Claimed(ClaimRef),
    /// The held task was completed, failed or released, by a tool call or by its evidence.
    Finished,
    /// Another holder has the task now, or the claim was removed.
    ClaimLost,
    /// A poll found nothing.
    NothingFound,
    /// A poll is due, by time or because of a hint.
    PollDue,
    /// The context was compacted.
    Compacted,
    /// The team's budget is spent.
    BudgetSpent,
    /// The budget of the member is spent, or the task has reached its cap.
    CapReached,
    /// It was idle for the time after which it ends.
    IdleShutdownDue,
    /// It was asked to stop.
    StopRequested,
}

/// An action that the teammate's loop must do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Calls the model once and runs its tool calls.
    RunTurn,
    /// Adds waiting mail to the context.
    ReadInbox,
    /// Claims the next claimable task.
    ClaimNext,
    /// Finds out what the attempt of this claim waits for or, if it waits for nothing, what evidence it has.
    CheckEvidence {
        /// The claim.
        claim: ClaimRef,
        /// True if the attempt cannot go on. The agent then does not wait for the answer to a question.
        is_ending: bool,
    },
    /// Completes the held task by its evidence, if the completion gate allows it.
    CompleteByEvidence,
    /// Reminds the model that it still holds a task.
    Remind,
    /// Tells the model that its claim is lost.
    NotifyClaimLost,
    /// Releases the claim.
    Release {
        /// The claim.
        claim: ClaimRef,
        /// The reason.
        reason: ReleaseReason,
    },
    /// Reports the status.
    Report,
    /// Ends the teammate.
    Exit,
    /// Ends the teammate until mail or a claimable task needs it.
    ExitIdle,
}

/// The reason for releasing a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReason {
    /// The model ended its work twice without a report, and the attempt has no evidence.
    Unfinished,
    /// The model reached this maximum number of turns.
    TurnLimit(u32),
    /// The model could not be reached.
    ModelFailed,
    /// A tool failed for a reason outside the task and the model.
    HarnessFailed,
    /// The harness stopped the agent.
    AttemptFailed,
    /// The budget of the member is spent, or the task has reached its cap.
    CapReached,
    /// The teammate stops.
    Stopping,
}

impl ReleaseReason {
    /// Returns true if the release counts as a failure of the task.
    pub fn counts_as_failure(self) -> bool {
        matches!(self, Self::Unfinished | Self::TurnLimit(_) | Self::AttemptFailed)
    }
}

/// An event that cannot happen in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} cannot happen in {phase:?}")]
pub struct IllegalTransition {
    /// The phase.
    pub phase: Phase,
    /// The event.
    pub event: PhaseEvent,
}

/// The limits of the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseLimits {
    /// Maximum number of turns in one WORK phase.
    pub turns_max: u32,
    /// Number of polls before an idle teammate is on call.
    pub polls_max: u32,
}

impl PhaseLimits {
    /// Returns the limits of a team's members.
    pub fn of(limits: &Limits) -> Self {
        let polls_max = limits.idle_timeout.as_millis() / limits.poll_interval.as_millis().max(1);
        Self { turns_max: limits.turns_max, polls_max: u32::try_from(polls_max).unwrap_or(u32::MAX).max(1) }
    }
}

const IDLE_EFFECTS: &[Effect] = &[Effect::Report, Effect::ReadInbox, Effect::ClaimNext];
const NEXT_TURN_EFFECTS: &[Effect] = &[Effect::ReadInbox, Effect::RunTurn];

/// Returns the next phase and the effects of `event` in `phase`.
///
/// # Errors
/// [`IllegalTransition`] if the event cannot happen in this phase.
pub fn step(phase: Phase, event: PhaseEvent, limits: PhaseLimits) -> Result<(Phase, Vec<Effect>), IllegalTransition> {
    let idle = Phase::Idle { polls: 0 };
    let next = match (phase, event) {
        (Phase::Work { claim, turns, reminded, ending }, event) => {
            return step_work(claim, turns, reminded, ending, event, limits);
        }
        (Phase::Waiting { claim, turns, reminded }, event) => {
            return step_waiting(claim, turns, reminded, event, limits);
        }
        (Phase::Idle { .. } | Phase::OnCall, PhaseEvent::Claimed(claim)) => {
            (new_work(Some(claim)), vec![Effect::Report, Effect::RunTurn])
        }
        (Phase::Idle { .. } | Phase::OnCall, PhaseEvent::Mail) => {
            (new_work(None), vec![Effect::Report, Effect::RunTurn])
        }
        (Phase::Idle { .. } | Phase::OnCall, PhaseEvent::PollDue) => {
            (phase, vec![Effect::ReadInbox, Effect::ClaimNext])
        }
        (Phase::Idle { polls }, PhaseEvent::NothingFound) if polls + 1 >= limits.polls_max => {
            (Phase::OnCall, vec![Effect::Report])
        }
        (Phase::Idle { polls }, PhaseEvent::NothingFound) => (Phase::Idle { polls: polls + 1 }, vec![]),
        (Phase::OnCall, PhaseEvent::NothingFound) => (Phase::OnCall, vec![]),
        (Phase::Idle { .. } | Phase::OnCall, PhaseEvent::StopRequested | PhaseEvent::BudgetSpent) => {
            (Phase::Stopped, vec![Effect::Report, Effect::Exit])
        }
        (Phase::Idle { .. } | Phase::OnCall, PhaseEvent::IdleShutdownDue) => {
            (Phase::Stopped, vec![Effect::Report, Effect::ExitIdle])
        }
        (Phase::Idle { .. } | Phase::OnCall | Phase::Stopping { .. }, PhaseEvent::Compacted) => (phase, vec![]),
        (Phase::Stopping { .. }, PhaseEvent::StopRequested | PhaseEvent::BudgetSpent | PhaseEvent::Mail) => {
            (phase, vec![])
        }
        (Phase::Stopping { .. }, PhaseEvent::Claimed(claim)) => (Phase::Stopping { claim: Some(claim) }, vec![]),
        (Phase::Stopping { .. }, PhaseEvent::Finished | PhaseEvent::ClaimLost) => {
            (Phase::Stopping { claim: None }, vec![])
        }
        (
            Phase::Stopping { claim },
            PhaseEvent::TurnEnded
            | PhaseEvent::WorkEnded
            | PhaseEvent::AnswerAwaited
            | PhaseEvent::EvidenceFound(_)
            | PhaseEvent::CompletionRefused
            | PhaseEvent::ModelFailed
            | PhaseEvent::HarnessFailed
            | PhaseEvent::AttemptFailed
            | PhaseEvent::CapReached,
        ) => (Phase::Stopped, stop_effects(claim)),
        (Phase::Stopped, PhaseEvent::StopRequested | PhaseEvent::BudgetSpent) => (phase, vec![]),
        // A loss that is reported twice, or after the task was released.
        (Phase::Idle { .. } | Phase::OnCall, PhaseEvent::ClaimLost) => (idle, vec![]),
        (phase, event) => return Err(IllegalTransition { phase, event }),
    };
    Ok(next)
}

fn step_work(
    claim: Option<ClaimRef>,
    turns: u32,
    reminded: bool,
    ending: Option<ReleaseReason>,
    event: PhaseEvent,
    limits: PhaseLimits,
) -> Result<(Phase, Vec<Effect>), IllegalTransition> {
    let current = Phase::Work { claim, turns, reminded, ending };
    let idle = Phase::Idle { polls: 0 };
    let turns_now = turns.saturating_add(1);
    let next = match (event, claim) {
        (PhaseEvent::TurnEnded, _) if turns_now < limits.turns_max => {
            (Phase::Work { claim, turns: turns_now, reminded, ending: None }, NEXT_TURN_EFFECTS.to_vec())
        }
        (
            PhaseEvent::TurnEnded
            | PhaseEvent::WorkEnded
            | PhaseEvent::EvidenceFound(_)
            | PhaseEvent::CompletionRefused
            | PhaseEvent::AnswerAwaited
            | PhaseEvent::AttemptFailed,
            None,
        ) => (idle, IDLE_EFFECTS.to_vec()),
        (PhaseEvent::TurnEnded | PhaseEvent::WorkEnded, Some(held)) => {
            check_evidence(held, turns_now, reminded, turn_limit(turns_now, limits))
        }
        (PhaseEvent::AttemptFailed, Some(held)) => {
            check_evidence(held, turns_now, reminded, Some(ReleaseReason::AttemptFailed))
        }
        (PhaseEvent::CapReached, Some(held)) => {
            check_evidence(held, turns_now, reminded, Some(ReleaseReason::CapReached))
        }
        (PhaseEvent::CapReached, None) => (idle, vec![Effect::Report]),
        (PhaseEvent::EvidenceFound(evidence), Some(held)) => step_evidence(held, turns, reminded, ending, evidence),
        (PhaseEvent::CompletionRefused, Some(held)) => match ending {
            Some(reason) => release(held, reason),
            None => (current, NEXT_TURN_EFFECTS.to_vec()),
        },
        (PhaseEvent::AnswerAwaited, Some(claim)) => {
            (Phase::Waiting { claim, turns, reminded }, vec![Effect::Report, Effect::ReadInbox])
        }
        (PhaseEvent::ModelFailed, _) => (idle, release_and_report(claim, ReleaseReason::ModelFailed)),
        (PhaseEvent::HarnessFailed, _) => (idle, release_and_report(claim, ReleaseReason::HarnessFailed)),
        (PhaseEvent::Mail | PhaseEvent::Compacted, _) => (current, vec![]),
        (PhaseEvent::Claimed(claim), _) => (new_work(Some(claim)), vec![Effect::Report]),
        (PhaseEvent::Finished, _) => {
            (Phase::Work { claim: None, turns, reminded: false, ending: None }, vec![Effect::Report])
        }
        (PhaseEvent::ClaimLost, _) => (idle, [&[Effect::NotifyClaimLost], IDLE_EFFECTS].concat()),
        (PhaseEvent::StopRequested | PhaseEvent::BudgetSpent, _) => (Phase::Stopping { claim }, vec![Effect::Report]),
        (PhaseEvent::NothingFound | PhaseEvent::PollDue | PhaseEvent::IdleShutdownDue, _) => {
            return Err(IllegalTransition { phase: current, event });
        }
    };
    Ok(next)
}

/// Decides about a task whose agent ended its work, or whose attempt cannot go on, without a report and without a wait for an answer.
fn step_evidence(
    claim: ClaimRef,
    turns: u32,
    reminded: bool,
    ending: Option<ReleaseReason>,
    evidence: Evidence,
) -> (Phase, Vec<Effect>) {
    let work = |reminded| Phase::Work { claim: Some(claim), turns, reminded, ending };
    match (evidence, ending) {
        (Evidence::Approved | Evidence::Verify, _) => (work(reminded), vec![Effect::CompleteByEvidence]),
        // Only an approval or a passed verify command completes a task then.
        (_, Some(reason)) => release(claim, reason),
        _ if !reminded => (work(true), vec![Effect::Remind, Effect::ReadInbox, Effect::RunTurn]),
        (Evidence::Work, _) => (work(true), vec![Effect::CompleteByEvidence]),
        (Evidence::None, _) => release(claim, ReleaseReason::Unfinished),
    }
}

/// The answer comes as mail. [`PhaseEvent::WorkEnded`] means that no answer is pending any more.
fn step_waiting(
    claim: ClaimRef,
    turns: u32,
    reminded: bool,
    event: PhaseEvent,
    limits: PhaseLimits,
) -> Result<(Phase, Vec<Effect>), IllegalTransition> {
    let current = Phase::Waiting { claim, turns, reminded };
    let next = match event {
        PhaseEvent::Mail => {
            (Phase::Work { claim: Some(claim), turns, reminded, ending: None }, vec![Effect::Report, Effect::RunTurn])
        }
        PhaseEvent::PollDue => (current, vec![Effect::ReadInbox]),
        PhaseEvent::ClaimLost => (Phase::Idle { polls: 0 }, [&[Effect::NotifyClaimLost], IDLE_EFFECTS].concat()),
        PhaseEvent::Compacted => (current, vec![]),
        PhaseEvent::WorkEnded if reminded => check_evidence(claim, turns, reminded, turn_limit(turns, limits)),
        PhaseEvent::WorkEnded => step_evidence(claim, turns, reminded, turn_limit(turns, limits), Evidence::None),
        PhaseEvent::StopRequested | PhaseEvent::BudgetSpent => (Phase::Stopped, stop_effects(Some(claim))),
        event => return Err(IllegalTransition { phase: current, event }),
    };
    Ok(next)
}

fn check_evidence(claim: ClaimRef, turns: u32, reminded: bool, ending: Option<ReleaseReason>) -> (Phase, Vec<Effect>) {
    let check = Effect::CheckEvidence { claim, is_ending: ending.is_some() };
    (Phase::Work { claim: Some(claim), turns, reminded, ending }, vec![check])
}

/// Returns the reason for which an attempt after this number of turns ends.
fn turn_limit(turns: u32, limits: PhaseLimits) -> Option<ReleaseReason> {
    (turns >= limits.turns_max).then_some(ReleaseReason::TurnLimit(limits.turns_max))
}

fn new_work(claim: Option<ClaimRef>) -> Phase {
    Phase::Work { claim, turns: 0, reminded: false, ending: None }
}

fn release(claim: ClaimRef, reason: ReleaseReason) -> (Phase, Vec<Effect>) {
    (Phase::START, [&[Effect::Release { claim, reason }], IDLE_EFFECTS].concat())
}

/// Releases the claim, if there is one, and reports. Nothing starts before the next poll.
fn release_and_report(claim: Option<ClaimRef>, reason: ReleaseReason) -> Vec<Effect> {
    let release = claim.map(|claim| Effect::Release { claim, reason });
    release.into_iter().chain([Effect::Report]).collect()
}

fn stop_effects(claim: Option<ClaimRef>) -> Vec<Effect> {
    let mut effects = release_and_report(claim, ReleaseReason::Stopping);
    effects.push(Effect::Exit);
    effects
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reported().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: PhaseLimits = PhaseLimits { turns_max: 10, polls_max: 3 };
    const CLAIM: ClaimRef = ClaimRef { task: TaskId(3), attempt: 2 };

    fn check(phase: Phase, event: PhaseEvent, next: Phase, effects: &[Effect]) {
        assert_eq!(step(phase, event, LIMITS), Ok((next, effects.to_vec())), "{event:?} in {phase:?}");
    }

    #[test]
    fn unknown_reported_phase_counts_as_stopped() {
        let read = |word: &str| serde_json::from_value::<ReportedPhase>(word.into()).unwrap();
        assert_eq!(
            (read("hibernating"), read("work"), read("")),
            (ReportedPhase::Stopped, ReportedPhase::Work, ReportedPhase::Starting)
        );
    }

    #[test]
    fn idle_teammate_goes_on_call_after_some_polls() {
        let poll = [Effect::ReadInbox, Effect::ClaimNext];
        check(Phase::START, PhaseEvent::PollDue, Phase::START, &poll);
        check(Phase::START, PhaseEvent::NothingFound, Phase::Idle { polls: 1 }, &[]);
        check(Phase::Idle { polls: 2 }, PhaseEvent::NothingFound, Phase::OnCall, &[Effect::Report]);
        check(Phase::OnCall, PhaseEvent::PollDue, Phase::OnCall, &poll);
        check(Phase::OnCall, PhaseEvent::Claimed(CLAIM), new_work(Some(CLAIM)), &[Effect::Report, Effect::RunTurn]);
    }

    fn at_work(turns: u32, reminded: bool) -> Phase {
        Phase::Work { claim: Some(CLAIM), turns, reminded, ending: None }
    }

    fn at_end(turns: u32, reminded: bool, reason: ReleaseReason) -> Phase {
        Phase::Work { claim: Some(CLAIM), turns, reminded, ending: Some(reason) }
    }

    fn check_of(is_ending: bool) -> Effect {
        Effect::CheckEvidence { claim: CLAIM, is_ending }
    }

    fn released(reason: ReleaseReason) -> Vec<Effect> {
        assert!(reason.counts_as_failure());
        [&[Effect::Release { claim: CLAIM, reason }], IDLE_EFFECTS].concat()
    }

    const REMINDED: &[Effect] = &[Effect::Remind, Effect::ReadInbox, Effect::RunTurn];

    #[test]
    fn end_of_work_without_verify_is_reminded_first() {
        check(new_work(Some(CLAIM)), PhaseEvent::WorkEnded, at_work(1, false), &[check_of(false)]);
        for evidence in [Evidence::Work, Evidence::None] {
            check(at_work(1, false), PhaseEvent::EvidenceFound(evidence), at_work(1, true), REMINDED);
        }
        let (work, none) = (PhaseEvent::EvidenceFound(Evidence::Work), PhaseEvent::EvidenceFound(Evidence::None));
        check(at_work(2, true), work, at_work(2, true), &[Effect::CompleteByEvidence]);
        check(at_work(2, true), none, Phase::START, &released(ReleaseReason::Unfinished));
        check(new_work(None), PhaseEvent::WorkEnded, Phase::START, IDLE_EFFECTS);
    }

    #[test]
    fn end_of_work_with_verify_is_a_report() {
        let verify = PhaseEvent::EvidenceFound(Evidence::Verify);
        check(at_work(1, false), verify, at_work(1, false), &[Effect::CompleteByEvidence]);
        check(at_work(1, false), PhaseEvent::CompletionRefused, at_work(1, false), NEXT_TURN_EFFECTS);
        let finished = Phase::Work { claim: None, turns: 1, reminded: false, ending: None };
        check(at_work(1, false), PhaseEvent::Finished, finished, &[Effect::Report]);
        check(finished, PhaseEvent::WorkEnded, Phase::START, IDLE_EFFECTS);
    }

    #[test]
    fn only_passed_verify_completes_ending_attempt() {
        let limit = LIMITS.turns_max;
        let (at_limit, failed) = (ReleaseReason::TurnLimit(limit), ReleaseReason::AttemptFailed);
        for event in [PhaseEvent::TurnEnded, PhaseEvent::WorkEnded] {
            check(at_work(limit - 1, false), event, at_end(limit, false, at_limit), &[check_of(true)]);
        }
        check(at_work(1, true), PhaseEvent::AttemptFailed, at_end(2, true, failed), &[check_of(true)]);
        let found = PhaseEvent::EvidenceFound;
        for reason in [at_limit, failed] {
            let (end, over) = (at_end(limit, true, reason), released(reason));
            check(end, found(Evidence::Work), Phase::START, &over);
            check(end, found(Evidence::None), Phase::START, &over);
            check(end, found(Evidence::Verify), end, &[Effect::CompleteByEvidence]);
            check(end, PhaseEvent::CompletionRefused, Phase::START, &over);
        }
        check(new_work(None), PhaseEvent::AttemptFailed, Phase::START, IDLE_EFFECTS);
    }

    #[test]
    fn waiting_for_answer_keeps_claim_and_takes_no_turn() {
        let waiting = Phase::Waiting { claim: CLAIM, turns: 1, reminded: false };
        check(at_work(1, false), PhaseEvent::AnswerAwaited, waiting, &[Effect::Report, Effect::ReadInbox]);
        check(waiting, PhaseEvent::PollDue, waiting, &[Effect::ReadInbox]);
        check(waiting, PhaseEvent::Mail, at_work(1, false), &[Effect::Report, Effect::RunTurn]);
        check(waiting, PhaseEvent::WorkEnded, at_work(1, true), REMINDED);
        let reminded = Phase::Waiting { claim: CLAIM, turns: 1, reminded: true };
        check(reminded, PhaseEvent::WorkEnded, at_work(1, true), &[check_of(false)]);
        let release = Effect::Release { claim: CLAIM, reason: ReleaseReason::Stopping };
        check(waiting, PhaseEvent::StopRequested, Phase::Stopped, &[release, Effect::Report, Effect::Exit]);
        check(new_work(None), PhaseEvent::AnswerAwaited, Phase::START, IDLE_EFFECTS);
    }

    #[test]
    fn model_failure_costs_no_attempt() {
        let release = Effect::Release { claim: CLAIM, reason: ReleaseReason::ModelFailed };
        assert!(!ReleaseReason::ModelFailed.counts_as_failure());
        check(new_work(Some(CLAIM)), PhaseEvent::ModelFailed, Phase::START, &[release, Effect::Report]);
    }

    #[test]
    fn harness_failure_costs_no_attempt() {
        let release = Effect::Release { claim: CLAIM, reason: ReleaseReason::HarnessFailed };
        assert!(!ReleaseReason::HarnessFailed.counts_as_failure());
        check(new_work(Some(CLAIM)), PhaseEvent::HarnessFailed, Phase::START, &[release, Effect::Report]);
    }

    #[test]
    fn stop_request_finishes_turn_and_releases_claim() {
        check(
            new_work(Some(CLAIM)),
            PhaseEvent::StopRequested,
            Phase::Stopping { claim: Some(CLAIM) },
            &[Effect::Report],
        );
        let release = Effect::Release { claim: CLAIM, reason: ReleaseReason::Stopping };
        check(
            Phase::Stopping { claim: Some(CLAIM) },
            PhaseEvent::TurnEnded,
            Phase::Stopped,
            &[release, Effect::Report, Effect::Exit],
        );
        check(Phase::OnCall, PhaseEvent::StopRequested, Phase::Stopped, &[Effect::Report, Effect::Exit]);
    }

    #[test]
    fn only_idle_teammate_ends_by_idle_shutdown() {
        let due = PhaseEvent::IdleShutdownDue;
        for idle in [Phase::START, Phase::OnCall] {
            check(idle, due, Phase::Stopped, &[Effect::Report, Effect::ExitIdle]);
        }
        let waiting = Phase::Waiting { claim: CLAIM, turns: 1, reminded: false };
        for busy in [new_work(None), new_work(Some(CLAIM)), waiting] {
            assert!(step(busy, due, LIMITS).is_err(), "{busy:?}");
        }
    }

    /// At a cap no request follows: only an approval or a passed verify command completes the task.
    #[test]
    fn cap_releases_task_without_failure() {
        let ending = Some(ReleaseReason::CapReached);
        let work = Phase::Work { claim: Some(CLAIM), turns: 2, reminded: false, ending: None };
        let checked = Phase::Work { claim: Some(CLAIM), turns: 3, reminded: false, ending };
        check(work, PhaseEvent::CapReached, checked, &[Effect::CheckEvidence { claim: CLAIM, is_ending: true }]);
        let release = [&[Effect::Release { claim: CLAIM, reason: ReleaseReason::CapReached }], IDLE_EFFECTS].concat();
        check(checked, PhaseEvent::EvidenceFound(Evidence::Work), Phase::START, &release);
        check(checked, PhaseEvent::EvidenceFound(Evidence::Verify), checked, &[Effect::CompleteByEvidence]);
        check(checked, PhaseEvent::CompletionRefused, Phase::START, &release);
        assert!(!ReleaseReason::CapReached.counts_as_failure());
        check(
            Phase::Work { claim: None, turns: 1, reminded: false, ending: None },
            PhaseEvent::CapReached,
            Phase::START,
            &[Effect::Report],
        );
    }

    #[test]
    fn illegal_transition_error_names_phase_and_event() {
        let illegal = step(Phase::Stopped, PhaseEvent::TurnEnded, LIMITS).unwrap_err().to_string();
        assert!(illegal.contains("TurnEnded") && illegal.contains("Stopped"), "{illegal}");
    }

    fn any_event() -> impl Strategy<Value = PhaseEvent> {
        let evidence = prop::sample::select(vec![Evidence::Verify, Evidence::Work, Evidence::None]);
        prop_oneof![
            4 => Just(PhaseEvent::TurnEnded), 2 => Just(PhaseEvent::WorkEnded), 1 => Just(PhaseEvent::AnswerAwaited), 1 => Just(PhaseEvent::ModelFailed), 1 => Just(PhaseEvent::HarnessFailed), 1 => Just(PhaseEvent::AttemptFailed), 1 => Just(PhaseEvent::CapReached),
            4 => evidence.prop_map(PhaseEvent::EvidenceFound), 2 => Just(PhaseEvent::CompletionRefused),
            2 => Just(PhaseEvent::Mail),
            3 => (1_u64..9, 1_u32..4).prop_map(|(task, attempt)| PhaseEvent::Claimed(ClaimRef { task: TaskId(task), attempt })),
            2 => Just(PhaseEvent::Finished), 1 => Just(PhaseEvent::ClaimLost), 2 => Just(PhaseEvent::NothingFound), 2 => Just(PhaseEvent::PollDue),
            1 => Just(PhaseEvent::Compacted), 1 => Just(PhaseEvent::BudgetSpent), 1 => Just(PhaseEvent::StopRequested), 1 => Just(PhaseEvent::IdleShutdownDue),
        ]
    }

    /// Returns true if the loop can produce `event` as the result of these effects.
    fn can_follow(effects: &[Effect], event: PhaseEvent) -> bool {
        let checks = effects.iter().any(|effect| matches!(effect, Effect::CheckEvidence { .. }));
        let completes = effects.contains(&Effect::CompleteByEvidence);
        match event {
            PhaseEvent::EvidenceFound(_) => checks,
            PhaseEvent::CompletionRefused => completes,
            PhaseEvent::AnswerAwaited => checks || completes,
            PhaseEvent::Finished => !checks,
            PhaseEvent::HarnessFailed | PhaseEvent::ClaimLost | PhaseEvent::StopRequested | PhaseEvent::BudgetSpent => {
                true
            }
            _ => !checks && !completes,
        }
    }

    proptest! {
        /// A teammate drops a claim only by finishing, loss or release. Work takes a limited number of turns: only mail that ends a wait
        /// adds one. Idle and stopped teammates hold no claim. Stopped teammates have no effects.
        #[test]
        fn phase_machine_keeps_invariants(events in prop::collection::vec(any_event(), 0..200)) {
            let mut phase = Phase::START;
            let mut last_effects = Vec::new();
            let mut turns: u32 = 0;
            for event in events {
                if !can_follow(&last_effects, event) {
                    continue;
                }
                let Ok((next, effects)) = step(phase, event, LIMITS) else { continue };
                if let Some(claim) = phase.claim() && next.claim() != Some(claim) {
                    let released = effects.iter().any(|effect| matches!(effect, Effect::Release { claim: given, .. } if *given == claim));
                    let explained = released || matches!(event, PhaseEvent::Finished | PhaseEvent::ClaimLost | PhaseEvent::Claimed(_));
                    prop_assert!(explained, "{event:?} in {phase:?} dropped a claim");
                }
                if matches!(event, PhaseEvent::Claimed(_)) || next.is_idle() {
                    turns = 0;
                }
                if effects.contains(&Effect::RunTurn) {
                    prop_assert!(matches!(next, Phase::Work { .. }), "a turn outside of WORK");
                    turns += u32::from(!matches!(phase, Phase::Waiting { .. }));
                }
                prop_assert!(turns <= LIMITS.turns_max, "{turns} turns in one phase");
                if phase == Phase::Stopped {
                    prop_assert_eq!(next, Phase::Stopped);
                    prop_assert!(effects.is_empty());
                }
                (phase, last_effects) = (next, effects);
            }
        }
    }
}
