//! A teammate's loop: it acts on what [`crate::domain::phase::step`] decides, and turns what comes of it into events.
//!
//! The lead is one too, without claiming: goals and reports reach it as prompts. What a teammate does besides turns (mail,
//! claims, requests to stop) is in `errands`; how a turn is driven, in `driving`.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::agent::{Agent, AgentError, Outcome};
use super::handle::Reply;
use super::reins::Reins;
use crate::domain::event::Fact;
use crate::domain::measure::duration;
use crate::domain::phase::{self, Bounds, Effect, Event, Held, Phase};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::domain::waiting_for::WaitingFor;

/// What others say to a teammate.
#[derive(Debug, Clone)]
pub enum Control {
    /// There may be mail or a task.
    Look,
    /// A text for its model, as the lead gets its goals.
    Prompt(Prompt),
    /// Compact the context between two turns, and say here what came of it.
    Compact(Reply),
    /// What kept its model out of reach may be mended: try again.
    TryAgain,
    /// An order waits in its mail that does not wait for the turn: the turn is broken off and the mail read.
    ReadNow,
    /// Finish the turn, give the claim back, end.
    Stop,
    /// End now: the turn is broken off.
    StopNow,
    /// The claim is somebody else's now.
    ClaimLost(Held),
}

/// A text for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Counts up from 1; it is answered once [`Standing::prompts_answered`] says so.
    pub number: u64,
    /// The text.
    pub text: String,
}

/// How a teammate stands, as the lead reads it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Standing {
    /// Its phase.
    pub phase: Phase,
    /// What it waits for.
    pub waiting_for: Option<WaitingFor>,
    /// Why its model cannot be reached, when asking again cannot help: it is of no use for tasks.
    pub down: Option<String>,
    /// Its model is out of reach for a while; it comes back by itself.
    pub is_away: bool,
    /// It was told or asked something that its model has not answered.
    pub owes_answer: bool,
    /// Counts up with every report.
    pub reports: u64,
    /// Counts up as it begins to look for mail and tasks.
    pub looks: u64,
    /// The last prompt that was answered.
    pub prompts_answered: u64,
    /// The last thing its model said since it was last prompted.
    pub last_said: Option<String>,
    /// How often the goal was called done, and with what summary.
    pub goals_done: (u64, String),
}

/// What an idle teammate may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gate {
    /// To claim a task.
    pub claim: bool,
    /// To read mail that sets its model to work.
    pub read: bool,
}

/// A part that a teammate cannot work without has failed, and the teammate is of no use until it is tried again. It holds the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outage {
    Model(String),
    Workspace(String),
}

impl Outage {
    fn reason(&self) -> &str {
        match self {
            Self::Model(reason) | Self::Workspace(reason) => reason,
        }
    }

    fn waiting_for(&self) -> WaitingFor {
        match self {
            Self::Model(reason) => WaitingFor::Model(reason.clone()),
            Self::Workspace(reason) => WaitingFor::Other(format!("its workspace: {reason}")),
        }
    }
}

/// A teammate's handle on its own life.
pub struct Teammate {
    pub(super) agent: Agent,
    pub(super) reins: Arc<Reins>,
    pub(super) phase: Phase,
    pub(super) bounds: Bounds,
    pub(super) control: mpsc::Receiver<Control>,
    pub(super) standing: watch::Sender<Standing>,
    pub(super) gate: watch::Receiver<Gate>,
    pub(super) prefers: Option<TaskId>,
    pub(super) pending_shutdown: Option<String>,
    pub(super) prompts: VecDeque<Prompt>,
    pub(super) prompts_taken: u64,
    /// Who wants the context compacted.
    pub(super) compactions_asked: Vec<Reply>,
    pub(super) outage: Option<Outage>,
    pub(super) away_until: Option<Instant>,
    away_for: String,
    pub(super) lost: Option<TaskId>,
    /// When it last claimed: plans from before are not about what it holds.
    pub(super) claimed_at: UnixMs,
    /// The plans and reviews it was reminded to answer.
    pub(super) approvals_reminded: HashSet<String>,
    pub(super) model_failures: u32,
    harness_failures: u32,
    /// What went wrong last, for the one who takes up what it gives back.
    pub(super) trouble: String,
}

/// The first wait after a model could not be reached; each further one doubles.
const MODEL_BACKOFF_FIRST: Duration = Duration::from_secs(15);
/// The longest such wait of our own choice.
const MODEL_BACKOFF_MAX: Duration = Duration::from_secs(600);

/// The first wait after a tool could not do its part; each further one doubles.
const HARNESS_BACKOFF_FIRST: Duration = Duration::from_secs(2);
/// Such failures in a row, no task finished between them, at which a teammate is of no use.
const HARNESS_FAILURES_MAX: u32 = 6;

impl Teammate {
    /// A teammate about to live. It prefers the task `prefers`, which it worked on before the process ended.
    #[must_use]
    pub fn new(
        agent: Agent,
        control: mpsc::Receiver<Control>,
        standing: watch::Sender<Standing>,
        gate: watch::Receiver<Gate>,
        prefers: Option<TaskId>,
    ) -> Self {
        let limits = &agent.shared.limits;
        let looks = limits.idle_timeout.as_millis() / limits.poll_interval.as_millis().max(1);
        let bounds = Bounds { turns_max: limits.turns_max, looks_max: u32::try_from(looks).unwrap_or(u32::MAX).max(1) };
        let prompts_taken = standing.borrow().prompts_answered;
        Self {
            reins: Arc::clone(&agent.reins),
            agent,
            phase: Phase::START,
            bounds,
            control,
            standing,
            gate,
            prefers,
            pending_shutdown: None,
            prompts: VecDeque::new(),
            prompts_taken,
            compactions_asked: Vec::new(),
            outage: None,
            away_until: None,
            away_for: String::new(),
            lost: None,
            claimed_at: UnixMs::default(),
            approvals_reminded: HashSet::new(),
            model_failures: 0,
            harness_failures: 0,
            trouble: String::new(),
        }
    }

    /// Lives until it stops.
    ///
    /// # Errors
    /// A store that fails, or an event that cannot happen; its claim is the lead's to take back then.
    pub async fn live(mut self) -> Result<(), AgentError> {
        let mut effects = VecDeque::from([Effect::Report, Effect::ReadInbox, Effect::ClaimNext]);
        loop {
            let events = match effects.pop_front() {
                Some(Effect::Exit) => return Ok(()),
                Some(effect @ Effect::RunTurn) if self.is_to_compact() => {
                    effects.push_front(effect);
                    self.compact().await?
                }
                Some(effect) => self.act(effect).await?,
                None if self.is_to_compact() => self.compact().await?,
                None => self.wait().await.into_iter().collect(),
            };
            for event in events {
                // What comes behind an end does not count.
                if self.phase == Phase::Stopped {
                    break;
                }
                let (next, more) = phase::step(self.phase, event, self.bounds)?;
                self.agent.progress.touch();
                self.phase = next;
                effects.extend(more);
            }
        }
    }

    /// About to work on mail, without a task: a model that does not think would take up one it held before.
    pub(super) async fn forget_tasks(&mut self) -> Result<(), AgentError> {
        if self.phase.held().is_none() && !self.agent.thinks() {
            self.agent.start_afresh().await?;
        }
        Ok(())
    }

    async fn act(&mut self, effect: Effect) -> Result<Vec<Event>, AgentError> {
        match effect {
            Effect::RunTurn => return self.run_turn().await,
            Effect::ReadInbox => return self.read_inbox().await,
            Effect::ClaimNext => return self.claim_next().await,
            Effect::InjectIdentity => self.agent.forget_identity(),
            Effect::Remind => self.remind().await?,
            Effect::TellClaimLost => self.tell_claim_lost().await?,
            Effect::Release { held, because } => self.release(held, because).await?,
            Effect::BackOff | Effect::Exit => {}
            Effect::Report => self.report(),
        }
        Ok(Vec::new())
    }

    /// The phase machine's events in what a turn or the mail brought; the rest is done here.
    pub(super) async fn events_of(&mut self, outcomes: Vec<Outcome>) -> Result<Vec<Event>, AgentError> {
        let mut events = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Event(Event::Claimed(held)) => {
                    self.claimed_at = self.agent.shared.clock.now();
                    self.note_task(held.task).await;
                    events.push(Event::Claimed(held));
                }
                Outcome::Event(Event::Finished) => {
                    self.harness_failures = 0;
                    if let Some(held) = self.phase.held() {
                        self.note_task(held.task).await;
                    }
                    events.push(Event::Finished);
                }
                Outcome::Event(event) => events.push(event),
                Outcome::ModelFailed { reason, is_final, retry_after } => {
                    self.model_failed(&reason, is_final, retry_after).await;
                    events.push(Event::ModelFailed);
                }
                Outcome::HarnessFailed(reason) => {
                    self.harness_failed(&reason);
                    events.push(Event::HarnessFailed);
                }
                Outcome::CutOff(reason) => {
                    self.trouble = reason;
                    events.push(Event::CutOff);
                }
                Outcome::ShutdownAsked { request_id } => self.pending_shutdown = Some(request_id),
                Outcome::GoalDone(summary) => {
                    self.standing.send_modify(|standing| standing.goals_done = (standing.goals_done.0 + 1, summary));
                }
                // The lead stops the team, once its refusal is known; nothing more is begun until then.
                Outcome::BudgetSpent(_) => events.extend([Event::BudgetSpent, Event::TurnEnded]),
                // How it was broken off is known to who did it.
                Outcome::BrokenOff => {}
            }
        }
        // A claim that is gone ends the work; what the turn said besides does not count.
        if events.contains(&Event::ClaimLost) {
            return Ok(vec![Event::ClaimLost]);
        }
        Ok(events)
    }

    async fn model_failed(&mut self, reason: &str, is_final: bool, retry_after: Option<Duration>) {
        if matches!(self.phase, Phase::Stopping { .. }) {
            return;
        }
        let was_told = self.model_failures > 0 && !is_final;
        self.outage = is_final.then(|| Outage::Model(reason.to_owned()));
        self.model_failures += 1;
        let own = MODEL_BACKOFF_FIRST
            .saturating_mul(1 << self.model_failures.saturating_sub(1).min(16))
            .min(MODEL_BACKOFF_MAX);
        let wait = own.max(retry_after.unwrap_or_default());
        let until = self.agent.shared.clock.now().plus(wait).to_clock();
        let (when, told) = match retry_after {
            _ if is_final => (String::new(), reason.to_owned()),
            Some(asked) if asked >= own => {
                let when = format!("limited until {until}");
                (when.clone(), format!("{when} ({}): {reason}", duration(wait)))
            }
            _ => {
                let when = format!("asked again at {until}");
                (when.clone(), format!("{reason}; {when}"))
            }
        };
        self.agent.shared.notes.warn(self.agent.name(), format!("its model: {told}"));
        self.trouble = told;
        self.stay_away(format!("its model, {when}: {reason}"), wait);
        if !was_told {
            self.tell_lead_of_model(reason).await;
        }
    }

    /// What it works with failed it: it waits, longer each time, and is of no use once that has gone on for long.
    pub(super) fn harness_failed(&mut self, reason: &str) {
        reason.clone_into(&mut self.trouble);
        if matches!(self.phase, Phase::Stopping { .. }) {
            return;
        }
        self.agent.shared.notes.warn(self.agent.name(), format!("a tool could not do its part: {reason}"));
        self.harness_failures += 1;
        let is_out = self.harness_failures >= HARNESS_FAILURES_MAX;
        self.outage = is_out.then(|| Outage::Workspace(reason.to_owned()));
        let wait = HARNESS_BACKOFF_FIRST.saturating_mul(1 << self.harness_failures.saturating_sub(1).min(16));
        self.stay_away("its workspace", wait.min(MODEL_BACKOFF_MAX));
    }

    /// Begins nothing for so long, because of what is named.
    pub(super) fn stay_away(&mut self, because_of: impl Into<String>, wait: Duration) {
        self.away_until = Some(Instant::now() + wait);
        self.away_for = because_of.into();
    }

    /// Whether it may begin something, as far as its model and the stores go.
    pub(super) fn is_able(&self) -> bool {
        self.outage.is_none() && self.away_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Waits for something to happen: a word from the lead, or the time for the next look.
    async fn wait(&mut self) -> Option<Event> {
        match self.phase {
            Phase::Idle { .. } | Phase::OnCall | Phase::Waiting { .. } => {}
            // Nothing is left of the turn it was to finish.
            _ => return Some(Event::TurnEnded),
        }
        loop {
            let now = Instant::now();
            let wait = match (self.phase, self.away_until) {
                (_, Some(until)) if self.outage.is_none() => Some(until.saturating_duration_since(now)),
                (Phase::Idle { .. } | Phase::Waiting { .. }, _) => Some(self.agent.shared.limits.poll_interval),
                _ => None,
            };
            let heard = tokio::select! {
                biased;
                heard = self.control.recv() => heard.unwrap_or(Control::Stop),
                () = sleep_if(wait) => Control::Look,
            };
            match heard {
                Control::Look | Control::ReadNow => return Some(self.look()),
                Control::Prompt(prompt) => {
                    self.prompts.push_back(prompt);
                    return Some(self.look());
                }
                Control::Compact(reply) => {
                    self.compactions_asked.push(reply);
                    return None;
                }
                Control::TryAgain => {
                    (self.outage, self.away_until) = (None, None);
                    self.report();
                    return Some(self.look());
                }
                Control::Stop | Control::StopNow => return Some(Event::StopAsked),
                Control::ClaimLost(lost) if self.phase.held() == Some(lost) => {
                    self.lost = Some(lost.task);
                    return Some(Event::ClaimLost);
                }
                Control::ClaimLost(_) => {}
            }
        }
    }

    pub(super) fn look(&mut self) -> Event {
        // What is there before it looks is seen by it; who has news later sees that it must be told again.
        self.standing.send_modify(|standing| standing.looks += 1);
        if self.away_until.is_some_and(|until| Instant::now() >= until) && self.outage.is_none() {
            self.away_until = None;
            self.report();
        }
        Event::Look
    }

    /// Says how it stands: to the lead at once, to people as a fact.
    pub(super) fn report(&mut self) {
        let is_idle = matches!(self.phase, Phase::Idle { .. } | Phase::OnCall);
        let waiting_for = match (is_idle, &self.outage) {
            (false, _) => None,
            (true, Some(outage)) => Some(outage.waiting_for()),
            (true, None) if !self.is_able() => Some(WaitingFor::Other(self.away_for.clone())),
            (true, None) => Some(WaitingFor::MailOrTask),
        };
        let held = self.phase.held();
        self.reins.hold(held);
        let fact = Fact::TeammatePhase {
            teammate: self.agent.name().to_owned(),
            phase: self.phase.word().to_owned(),
            task: held.map(|held| held.task),
            waiting_for: waiting_for.clone(),
        };
        self.agent.shared.notes.fact(fact);
        let is_away = !self.is_able();
        let owes_answer = self.agent.conversation.owes_answer();
        let last_said = self.agent.conversation.said_since_prompt().map(str::to_owned);
        let prompts_answered = (is_idle && !owes_answer).then_some(self.prompts_taken);
        self.standing.send_modify(|standing| {
            standing.phase = self.phase;
            standing.waiting_for = waiting_for;
            standing.down = self.outage.as_ref().map(|outage| outage.reason().to_owned());
            standing.is_away = is_away;
            standing.owes_answer = owes_answer;
            standing.reports += 1;
            standing.last_said = last_said;
            standing.prompts_answered = prompts_answered.unwrap_or(standing.prompts_answered);
        });
        self.agent.shared.reported.notify_one();
    }
}

async fn sleep_if(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
