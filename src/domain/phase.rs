//! A teammate's life as a state machine: [`step`] says what follows from an event, and touches nothing.
//!
//! WORK ends when the model stops calling tools, calls `idle`, or has had its turns. IDLE looks at mail, then at the board,
//! every few seconds for a while; then the teammate is on call. IDLE never holds a claim.

use std::fmt;

use super::task::TaskId;

/// Turns a model has left after it was reminded of its claim at its turn limit.
pub const TURNS_AFTER_REMINDER: u32 = 5;

/// A claim as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The task.
    pub task: TaskId,
    /// The attempt: the fence.
    pub attempt: u32,
}

/// What a teammate is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It takes turns.
    Work {
        /// The task it holds, if it works on one.
        held: Option<Held>,
        /// Turns it has had in this phase.
        turns: u32,
        /// Whether it was reminded of its claim.
        reminded: bool,
    },
    /// It holds a task and waits for the answer to a plan it handed in; that costs no turn.
    Waiting {
        /// The task.
        held: Held,
        /// Turns it has had in this WORK phase.
        turns: u32,
        /// Whether it was reminded of its claim.
        reminded: bool,
    },
    /// It looks for mail and tasks.
    Idle {
        /// How often it has looked.
        looks: u32,
    },
    /// It has looked long enough; mail or a claimable task brings it back.
    OnCall,
    /// It was asked to stop and finishes its turn.
    Stopping {
        /// The task it holds.
        held: Option<Held>,
    },
    /// It is gone.
    Stopped,
}

impl Default for Phase {
    fn default() -> Self {
        Self::START
    }
}

impl Phase {
    /// A new teammate: it looks before it waits.
    pub const START: Self = Self::Idle { looks: 0 };

    /// The word reports use.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Work { .. } | Self::Waiting { .. } => "work",
            Self::Idle { .. } | Self::OnCall => "idle",
            Self::Stopping { .. } => "stopping",
            Self::Stopped => "stopped",
        }
    }

    /// The claim it holds.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        match self {
            Self::Work { held, .. } | Self::Stopping { held } => *held,
            Self::Waiting { held, .. } => Some(*held),
            Self::Idle { .. } | Self::OnCall | Self::Stopped => None,
        }
    }
}

/// What happened to a teammate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The model asked for tools and has their results.
    TurnEnded,
    /// The model asked for nothing more, or called `idle`.
    WorkEnded,
    /// The model asked for nothing more, because it waits for the answer to a plan it handed in.
    AnswerAwaited,
    /// The model could not be reached within its retries.
    ModelFailed,
    /// A tool could not do its part through no fault of the task or the model: a store, the workspace.
    HarnessFailed,
    /// The model's answers are cut again and again: it gets nowhere.
    CutOff,
    /// Mail that wants an answer was put into the context.
    Mail,
    /// A task was claimed, by looking or by the model's own call.
    Claimed(Held),
    /// The held task was completed, failed or released by the model's own call.
    Finished,
    /// The held task belongs to somebody else now.
    ClaimLost,
    /// It looked and found nothing.
    NothingFound,
    /// It is time to look, or somebody said there is something.
    Look,
    /// The context was compacted.
    Compacted,
    /// The team's budget is spent.
    BudgetSpent,
    /// Somebody asked it to stop.
    StopAsked,
}

/// What the loop around it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Asks the model, runs what it asks for.
    RunTurn,
    /// Puts waiting mail into the context.
    ReadInbox,
    /// Looks for a task.
    ClaimNext,
    /// Puts the identity block in front of the context anew.
    InjectIdentity,
    /// Reminds the model that it still holds a task.
    Remind,
    /// Tells the model that its claim is gone.
    TellClaimLost,
    /// Gives the claim back.
    Release {
        /// Which.
        held: Held,
        /// Why.
        because: Because,
    },
    /// Waits for a while before it looks again, because its model is out of reach.
    BackOff,
    /// Says how it stands.
    Report,
    /// Ends.
    Exit,
}

/// Why a claim is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// The model ended its work twice without saying what came of the task.
    Unfinished,
    /// The model could not be reached.
    ModelFailed,
    /// A tool could not do its part.
    HarnessFailed,
    /// The model's answers were cut again and again.
    CutOff,
    /// The teammate stops.
    Stopping,
}

impl Because {
    /// Whether it counts as a failure of the task.
    #[must_use]
    pub fn counts(self) -> bool {
        matches!(self, Self::Unfinished | Self::CutOff)
    }
}

/// An event that cannot happen in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} cannot happen in {phase:?}")]
pub struct Illegal {
    /// The phase.
    pub phase: Phase,
    /// The event.
    pub event: Event,
}

/// The bounds a life keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Turns of one WORK phase.
    pub turns_max: u32,
    /// How often an idle teammate looks before it is on call.
    pub looks_max: u32,
}

const GO_IDLE: &[Effect] = &[Effect::Report, Effect::ReadInbox, Effect::ClaimNext];
const NEXT_TURN: &[Effect] = &[Effect::ReadInbox, Effect::RunTurn];

/// What follows from `event` in `phase`.
///
/// # Errors
/// [`Illegal`] names both when the event cannot happen there.
pub fn step(phase: Phase, event: Event, bounds: Bounds) -> Result<(Phase, Vec<Effect>), Illegal> {
    let idle = Phase::Idle { looks: 0 };
    let next = match (phase, event) {
        (Phase::Work { held, turns, reminded }, event) => return step_work(held, turns, reminded, event, bounds),
        (Phase::Waiting { held, turns, reminded }, event) => return step_waiting(held, turns, reminded, event, bounds),
        (Phase::Idle { .. } | Phase::OnCall, Event::Claimed(held)) => {
            (work(Some(held)), vec![Effect::Report, Effect::RunTurn])
        }
        (Phase::Idle { .. } | Phase::OnCall, Event::Mail) => (work(None), vec![Effect::Report, Effect::RunTurn]),
        (Phase::Idle { .. } | Phase::OnCall, Event::Look) => (phase, vec![Effect::ReadInbox, Effect::ClaimNext]),
        (Phase::Idle { looks }, Event::NothingFound) if looks + 1 >= bounds.looks_max => {
            (Phase::OnCall, vec![Effect::Report])
        }
        (Phase::Idle { looks }, Event::NothingFound) => (Phase::Idle { looks: looks + 1 }, vec![]),
        (Phase::OnCall, Event::NothingFound) => (Phase::OnCall, vec![]),
        (Phase::Idle { .. } | Phase::OnCall, Event::StopAsked | Event::BudgetSpent) => {
            (Phase::Stopped, vec![Effect::Report, Effect::Exit])
        }
        (Phase::Idle { .. } | Phase::OnCall | Phase::Stopping { .. }, Event::Compacted) => {
            (phase, vec![Effect::InjectIdentity])
        }
        (Phase::Stopping { .. }, Event::StopAsked | Event::BudgetSpent | Event::Mail) => (phase, vec![]),
        (Phase::Stopping { .. }, Event::Claimed(held)) => (Phase::Stopping { held: Some(held) }, vec![]),
        (Phase::Stopping { .. }, Event::Finished | Event::ClaimLost) => (Phase::Stopping { held: None }, vec![]),
        (
            Phase::Stopping { held },
            Event::TurnEnded
            | Event::WorkEnded
            | Event::AnswerAwaited
            | Event::ModelFailed
            | Event::HarnessFailed
            | Event::CutOff,
        ) => (Phase::Stopped, stop_effects(held)),
        (Phase::Stopped, Event::StopAsked | Event::BudgetSpent) => (phase, vec![]),
        // A loss that is told twice, or told of a task that was already given back.
        (Phase::Idle { .. } | Phase::OnCall, Event::ClaimLost) => (idle, vec![]),
        (phase, event) => return Err(Illegal { phase, event }),
    };
    Ok(next)
}

fn step_work(
    held: Option<Held>,
    turns: u32,
    reminded: bool,
    event: Event,
    bounds: Bounds,
) -> Result<(Phase, Vec<Effect>), Illegal> {
    let here = Phase::Work { held, turns, reminded };
    let idle = Phase::Idle { looks: 0 };
    let next = match event {
        Event::TurnEnded if turns + 1 < bounds.turns_max => {
            (Phase::Work { held, turns: turns + 1, reminded }, NEXT_TURN.to_vec())
        }
        Event::TurnEnded | Event::WorkEnded => match held {
            Some(_) if !reminded => {
                let turns = (turns + 1).min(bounds.turns_max.saturating_sub(TURNS_AFTER_REMINDER));
                (Phase::Work { held, turns, reminded: true }, vec![Effect::Remind, Effect::ReadInbox, Effect::RunTurn])
            }
            Some(held) => (idle, [&[Effect::Release { held, because: Because::Unfinished }], GO_IDLE].concat()),
            None => (idle, GO_IDLE.to_vec()),
        },
        Event::AnswerAwaited => match held {
            Some(held) => {
                (Phase::Waiting { held, turns: turns + 1, reminded }, vec![Effect::Report, Effect::ReadInbox])
            }
            None => (idle, GO_IDLE.to_vec()),
        },
        Event::ModelFailed => (idle, back_off(held, Because::ModelFailed)),
        Event::HarnessFailed => (idle, back_off(held, Because::HarnessFailed)),
        Event::CutOff => {
            let release = held.map(|held| Effect::Release { held, because: Because::CutOff });
            (idle, release.into_iter().chain(GO_IDLE.iter().copied()).collect())
        }
        Event::Mail => (here, vec![]),
        Event::Claimed(held) => (work(Some(held)), vec![Effect::Report]),
        Event::Finished => (Phase::Work { held: None, turns, reminded: false }, vec![Effect::Report]),
        Event::ClaimLost => (idle, [&[Effect::TellClaimLost], GO_IDLE].concat()),
        Event::Compacted => (here, vec![Effect::InjectIdentity]),
        Event::StopAsked | Event::BudgetSpent => (Phase::Stopping { held }, vec![Effect::Report]),
        Event::NothingFound | Event::Look => return Err(Illegal { phase: here, event }),
    };
    Ok(next)
}

/// What follows while an answer is awaited: it comes as mail. [`Event::WorkEnded`] says that nobody owes one any more.
fn step_waiting(
    held: Held,
    turns: u32,
    reminded: bool,
    event: Event,
    bounds: Bounds,
) -> Result<(Phase, Vec<Effect>), Illegal> {
    let here = Phase::Waiting { held, turns, reminded };
    let next = match event {
        Event::Mail => (Phase::Work { held: Some(held), turns, reminded }, vec![Effect::Report, Effect::RunTurn]),
        Event::Look => (here, vec![Effect::ReadInbox]),
        Event::ClaimLost => (Phase::Idle { looks: 0 }, [&[Effect::TellClaimLost], GO_IDLE].concat()),
        Event::Compacted => (here, vec![Effect::InjectIdentity]),
        Event::WorkEnded => return step_work(Some(held), turns, reminded, event, bounds),
        Event::StopAsked | Event::BudgetSpent => (Phase::Stopped, stop_effects(Some(held))),
        event => return Err(Illegal { phase: here, event }),
    };
    Ok(next)
}

fn work(held: Option<Held>) -> Phase {
    Phase::Work { held, turns: 0, reminded: false }
}

fn back_off(held: Option<Held>, because: Because) -> Vec<Effect> {
    let release = held.map(|held| Effect::Release { held, because });
    release.into_iter().chain([Effect::BackOff, Effect::Report]).collect()
}

fn stop_effects(held: Option<Held>) -> Vec<Effect> {
    let release = held.map(|held| Effect::Release { held, because: Because::Stopping });
    release.into_iter().chain([Effect::Report, Effect::Exit]).collect()
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { turns_max: 10, looks_max: 3 };
    const HELD: Held = Held { task: TaskId(3), attempt: 2 };

    fn check(phase: Phase, event: Event, next: Phase, effects: &[Effect]) {
        assert_eq!(step(phase, event, BOUNDS), Ok((next, effects.to_vec())), "{event:?} in {phase:?}");
    }

    #[test]
    fn an_idle_teammate_looks_for_a_while_and_is_then_on_call() {
        let look = [Effect::ReadInbox, Effect::ClaimNext];
        check(Phase::START, Event::Look, Phase::START, &look);
        check(Phase::START, Event::NothingFound, Phase::Idle { looks: 1 }, &[]);
        check(Phase::Idle { looks: 2 }, Event::NothingFound, Phase::OnCall, &[Effect::Report]);
        check(Phase::OnCall, Event::Look, Phase::OnCall, &look);
        check(Phase::OnCall, Event::Claimed(HELD), work(Some(HELD)), &[Effect::Report, Effect::RunTurn]);
    }

    #[test]
    fn work_that_ends_with_a_live_claim_is_reminded_once_and_then_released_as_a_failure() {
        let reminded = Phase::Work { held: Some(HELD), turns: 1, reminded: true };
        check(work(Some(HELD)), Event::WorkEnded, reminded, &[Effect::Remind, Effect::ReadInbox, Effect::RunTurn]);
        let release = Effect::Release { held: HELD, because: Because::Unfinished };
        assert!(Because::Unfinished.counts());
        check(
            reminded,
            Event::WorkEnded,
            Phase::START,
            &[release, Effect::Report, Effect::ReadInbox, Effect::ClaimNext],
        );
    }

    #[test]
    fn who_waits_for_an_answer_keeps_its_task_and_takes_no_turn_until_it_comes() {
        let waiting = Phase::Waiting { held: HELD, turns: 1, reminded: false };
        check(work(Some(HELD)), Event::AnswerAwaited, waiting, &[Effect::Report, Effect::ReadInbox]);
        check(waiting, Event::Look, waiting, &[Effect::ReadInbox]);
        let at_work = Phase::Work { held: Some(HELD), turns: 1, reminded: false };
        check(waiting, Event::Mail, at_work, &[Effect::Report, Effect::RunTurn]);
        let release = Effect::Release { held: HELD, because: Because::Stopping };
        check(waiting, Event::StopAsked, Phase::Stopped, &[release, Effect::Report, Effect::Exit]);
        check(work(None), Event::AnswerAwaited, Phase::START, GO_IDLE);
    }

    #[test]
    fn answers_that_are_cut_again_and_again_cost_an_attempt() {
        let release = Effect::Release { held: HELD, because: Because::CutOff };
        assert!(Because::CutOff.counts());
        check(work(Some(HELD)), Event::CutOff, Phase::START, &[&[release], GO_IDLE].concat());
        check(work(None), Event::CutOff, Phase::START, GO_IDLE);
    }

    #[test]
    fn a_model_that_is_out_of_reach_costs_the_task_no_attempt() {
        let release = Effect::Release { held: HELD, because: Because::ModelFailed };
        assert!(!Because::ModelFailed.counts());
        check(work(Some(HELD)), Event::ModelFailed, Phase::START, &[release, Effect::BackOff, Effect::Report]);
    }

    #[test]
    fn a_failure_of_the_harness_costs_the_task_no_attempt() {
        let release = Effect::Release { held: HELD, because: Because::HarnessFailed };
        assert!(!Because::HarnessFailed.counts());
        check(work(Some(HELD)), Event::HarnessFailed, Phase::START, &[release, Effect::BackOff, Effect::Report]);
    }

    #[test]
    fn one_asked_to_stop_finishes_its_turn_and_gives_its_claim_back() {
        check(work(Some(HELD)), Event::StopAsked, Phase::Stopping { held: Some(HELD) }, &[Effect::Report]);
        let release = Effect::Release { held: HELD, because: Because::Stopping };
        check(
            Phase::Stopping { held: Some(HELD) },
            Event::TurnEnded,
            Phase::Stopped,
            &[release, Effect::Report, Effect::Exit],
        );
        check(Phase::OnCall, Event::StopAsked, Phase::Stopped, &[Effect::Report, Effect::Exit]);
    }

    #[test]
    fn an_illegal_pair_names_both() {
        let illegal = step(Phase::Stopped, Event::TurnEnded, BOUNDS).unwrap_err().to_string();
        assert!(illegal.contains("TurnEnded") && illegal.contains("Stopped"), "{illegal}");
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::TurnEnded), 2 => Just(Event::WorkEnded), 1 => Just(Event::AnswerAwaited), 1 => Just(Event::ModelFailed), 1 => Just(Event::HarnessFailed), 1 => Just(Event::CutOff),
            2 => Just(Event::Mail),
            3 => (1_u64..9, 1_u32..4).prop_map(|(task, attempt)| Event::Claimed(Held { task: TaskId(task), attempt })),
            2 => Just(Event::Finished), 1 => Just(Event::ClaimLost), 2 => Just(Event::NothingFound), 2 => Just(Event::Look),
            1 => Just(Event::Compacted), 1 => Just(Event::BudgetSpent), 1 => Just(Event::StopAsked),
        ]
    }

    proptest! {
        /// Whatever happens: a claim leaves a teammate only by finishing, loss or release; work takes a bounded number of
        /// turns; idle and stopped hold nothing; the dead do nothing.
        #[test]
        fn laws_of_a_life(events in prop::collection::vec(event(), 0..200)) {
            let mut phase = Phase::START;
            let mut turns_in_a_row: u32 = 0;
            for event in events {
                let Ok((next, effects)) = step(phase, event, BOUNDS) else { continue };
                if let Some(held) = phase.held() && next.held() != Some(held) {
                    let released = effects.iter().any(|effect| matches!(effect, Effect::Release { held: given, .. } if *given == held));
                    let explained = released || matches!(event, Event::Finished | Event::ClaimLost | Event::Claimed(_));
                    prop_assert!(explained, "{event:?} in {phase:?} dropped a claim");
                }
                if effects.contains(&Effect::RunTurn) {
                    prop_assert!(matches!(next, Phase::Work { .. }), "a turn outside WORK");
                }
                turns_in_a_row = match (event, next) {
                    (Event::TurnEnded | Event::WorkEnded | Event::AnswerAwaited, Phase::Work { .. } | Phase::Waiting { .. }) => turns_in_a_row + 1,
                    (Event::Claimed(_), _) | (_, Phase::Idle { .. }) => 0,
                    _ => turns_in_a_row,
                };
                prop_assert!(turns_in_a_row <= BOUNDS.turns_max + TURNS_AFTER_REMINDER + 1, "{turns_in_a_row} turns in one phase");
                if phase == Phase::Stopped {
                    prop_assert_eq!(next, Phase::Stopped);
                    prop_assert!(effects.is_empty());
                }
                phase = next;
            }
        }
    }
}
