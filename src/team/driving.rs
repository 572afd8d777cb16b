//! How a teammate's turns and compactions are driven: what others say meanwhile is heard, and says how soon they must end.

use super::agent::{AgentError, Outcome};
use super::reins::Pace;
use super::teammate::{Control, Teammate};
use crate::domain::phase::{self, Event, Held, Phase};

/// What is done between two looks at what others say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A turn.
    Turn,
    /// The last report of one that stops.
    Report,
    /// A compaction that a person asked for.
    Compaction,
}

/// How a running turn was made to end.
#[derive(Default)]
struct Interruption {
    /// It was asked to stop while it did something that is no turn.
    is_asked_to_stop: bool,
    lost: Option<Held>,
    is_broken_off: bool,
    /// It goes on with its mail, which says what to do.
    has_order: bool,
}

impl Teammate {
    /// Runs a turn to its end.
    pub(super) async fn run_turn(&mut self) -> Result<Vec<Event>, AgentError> {
        // Asked to stop between two turns, it reports at most.
        let is_stopping = match self.phase {
            Phase::Work { .. } => false,
            Phase::Stopping { .. } => true,
            _ => return Ok(Vec::new()),
        };
        if !is_stopping {
            self.reins.set_pace(Pace::Free);
        }
        let part = if is_stopping { Part::Report } else { Part::Turn };
        let (interruption, outcomes) = self.drive(part).await?;
        self.events_of_turn(interruption, outcomes).await
    }

    /// Whether somebody wants the context compacted, and it may begin that.
    pub(super) fn is_to_compact(&self) -> bool {
        !self.compactions_asked.is_empty() && !matches!(self.phase, Phase::Stopping { .. } | Phase::Stopped)
    }

    /// Compacts the context, as a person asked: between two turns, or while it is idle.
    pub(super) async fn compact(&mut self) -> Result<Vec<Event>, AgentError> {
        self.reins.set_pace(Pace::Free);
        let (interruption, _) = self.drive(Part::Compaction).await?;
        let mut events = vec![Event::Compacted];
        if self.is_idle() {
            // Words to look were passed over meanwhile.
            events.push(self.look());
        } else if interruption.has_order {
            events.extend(self.read_inbox().await?);
        }
        if let Some(lost) = interruption.lost {
            self.lost = Some(lost.task);
            events.push(Event::ClaimLost);
        }
        let stops = interruption.is_asked_to_stop || interruption.is_broken_off;
        events.extend(stops.then_some(Event::StopAsked));
        Ok(events)
    }

    /// Runs a part of a turn to its end, and hears meanwhile how soon that must be.
    async fn drive(&mut self, part: Part) -> Result<(Interruption, Vec<Outcome>), AgentError> {
        let mut interruption = Interruption::default();
        let outcomes = {
            let asked = if part == Part::Compaction { std::mem::take(&mut self.compactions_asked) } else { Vec::new() };
            let Self { agent, control, reins, phase, standing, prompts, bounds, compactions_asked, .. } = self;
            let turn = async {
                match part {
                    Part::Turn => agent.turn().await,
                    Part::Report => agent.report_if_done().await,
                    Part::Compaction => agent.compact_as_asked().await.map(|done| {
                        // Who asked may be gone.
                        asked.iter().for_each(|reply| drop(reply.try_send(done.clone())));
                        Vec::new()
                    }),
                }
            };
            tokio::pin!(turn);
            loop {
                // What was said before the turn begins is heeded first.
                let heard = tokio::select! {
                    biased;
                    heard = control.recv() => heard.unwrap_or(Control::StopNow),
                    outcomes = &mut turn => break outcomes?,
                };
                match heard {
                    Control::StopNow => {
                        interruption.is_broken_off = true;
                        reins.hasten(Pace::BreakOff);
                    }
                    Control::ClaimLost(lost) if reins.held() == Some(lost) => {
                        interruption.lost = Some(lost);
                        reins.hold(None);
                        reins.hasten(Pace::LetGo);
                    }
                    Control::Compact(reply) => compactions_asked.push(reply),
                    Control::Stop if matches!(phase, Phase::Idle { .. } | Phase::OnCall | Phase::Waiting { .. }) => {
                        interruption.is_asked_to_stop = true;
                        reins.hasten(Pace::Finish);
                    }
                    Control::Stop => {
                        *phase = phase::step(*phase, Event::StopAsked, *bounds)?.0;
                        reins.hasten(Pace::Finish);
                        standing.send_modify(|standing| standing.phase = *phase);
                        // The model may be slow; people see at once that it was heard.
                        tracing::debug!("a teammate was asked to stop and finishes its turn");
                    }
                    Control::ReadNow => {
                        interruption.has_order = true;
                        reins.hasten(Pace::BreakOff);
                    }
                    Control::Prompt(prompt) => prompts.push_back(prompt),
                    Control::ClaimLost(_) | Control::Look | Control::TryAgain => {}
                }
            }
        };
        Ok((interruption, outcomes))
    }

    async fn events_of_turn(
        &mut self,
        interruption: Interruption,
        outcomes: Vec<Outcome>,
    ) -> Result<Vec<Event>, AgentError> {
        let model_failed = outcomes.iter().any(|outcome| matches!(outcome, Outcome::ModelFailed { .. }));
        if !model_failed {
            (self.model_failures, self.outage, self.away_until) = (0, None, None);
        }
        let has_finished = outcomes.contains(&Outcome::Event(Event::Finished));
        if interruption.is_broken_off || interruption.has_order {
            let mut events = self.events_of(outcomes).await?;
            events.retain(|event| matches!(event, Event::Finished | Event::Claimed(_) | Event::ClaimLost));
            let stops = interruption.is_broken_off && !matches!(self.phase, Phase::Stopping { .. });
            events.extend(stops.then_some(Event::StopAsked));
            events.push(Event::TurnEnded);
            return Ok(events);
        }
        // A report of its own that came through is what ended the claim then.
        let mut events = match interruption.lost {
            Some(_) if !has_finished => vec![Event::ClaimLost],
            _ => self.events_of(outcomes).await?,
        };
        if let Some(end) = events.iter_mut().find(|event| **event == Event::WorkEnded) {
            if self.owes_approval().await? {
                *end = Event::TurnEnded;
            } else if self.reins.held().is_some() && self.awaits_answer().await {
                *end = Event::AnswerAwaited;
            }
        }
        if events.contains(&Event::ClaimLost) {
            self.lost = interruption.lost.or(self.phase.held()).map(|held| held.task);
        }
        Ok(events)
    }
}
