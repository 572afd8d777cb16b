//! The team as a front end sees it: commands in, events out, and a live index of how everybody stands.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dashmap::DashMap;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::lead::Lead;
use super::members::Member;
use super::patience::NO_ROOM;
use super::progress::Activity;
use super::spec::{MemberSpec, TeamSpec};
use super::words::{Mouth, Words};
use crate::domain::event::{Event, Tally};
use crate::domain::mode::Stage;
use crate::domain::name::{HUMAN, LEAD, Name};
use crate::domain::phase::Phase;
use crate::domain::questions;
use crate::domain::row::MemberRow;
use crate::domain::state::{StateReport, TeammateReport, TeammateReports};
use crate::domain::time::UnixMs;
use crate::domain::waiting_for::WaitingFor;
use crate::ports::ModelSpec;
use crate::tools::TeamControl;

/// A model that has said nothing for so long is said to be waited for.
const SILENCE_SAID_AFTER: Duration = Duration::from_secs(60);
/// Commands that wait to be heard.
pub(super) const COMMANDS_WAITING_MAX: usize = 64;

/// Where to say what came of a command: nothing more than its events, or why it was not done.
pub type Reply = mpsc::Sender<Result<(), String>>;

/// What a front end says to the team.
#[derive(Debug)]
pub enum Command {
    /// Finish the running turns, give claims back, end.
    Stop,
    /// End now.
    StopNow,
    /// Stop one teammate.
    StopTeammate {
        /// Whom.
        name: Name,
        /// Without finishing its turn.
        now: bool,
    },
    /// Have a member's context replaced by a summary: at once where it is idle, after its turn otherwise.
    Compact {
        /// Whose, as it was written.
        name: String,
        /// What came of it.
        reply: Reply,
    },
    /// Start a teammate.
    Spawn {
        /// Who.
        spec: MemberSpec,
        /// What came of it.
        reply: oneshot::Sender<Result<String, String>>,
    },
}

/// Why a team ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its one session is over.
    SessionOver,
    /// It was asked to stop.
    Interrupted,
    /// Its budget is spent.
    BudgetSpent,
    /// It could not go on: another leads its workspace, or there is none any more.
    GivenUp,
}

/// How a team ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Why.
    pub end: End,
    /// How the tasks of the board stand.
    pub tally: Tally,
    /// The last session's report.
    pub summary: String,
    /// What kept it from what it was for, other than its tasks: nobody was left who could work, or the goal was not planned.
    pub trouble: Option<String>,
}

/// A running team.
pub struct TeamHandle {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) events: broadcast::Sender<Arc<Event>>,
    /// Listens since before the first event.
    pub(super) from_the_first: Mutex<Option<broadcast::Receiver<Arc<Event>>>>,
    pub(super) mouth: Mouth,
    pub(super) live: Arc<Live>,
    pub(super) lead: JoinHandle<Outcome>,
    pub(super) lead_thinks: bool,
}

impl TeamHandle {
    /// Says something to the team; what comes of it shows in the events.
    pub async fn command(&self, command: Command) {
        // A team that is gone needs no commands.
        let _ = self.commands.send(command).await;
    }

    /// A sender of commands that outlives borrowing the handle.
    #[must_use]
    pub fn commands(&self) -> mpsc::Sender<Command> {
        self.commands.clone()
    }

    /// The events: all of the run for the first who asks, those from now on for others.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        let first = self.from_the_first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.unwrap_or_else(|| self.events.subscribe())
    }

    /// Whether the lead has a model that answers what it is told; one without goes by rule.
    #[must_use]
    pub fn lead_thinks(&self) -> bool {
        self.lead_thinks
    }

    /// What the models say from now on, while they say it. It is bounded and lossy: one who is slow to take loses pieces
    /// (`Lagged`). The events have the whole texts.
    #[must_use]
    pub fn words(&self) -> broadcast::Receiver<Arc<Words>> {
        self.mouth.listen()
    }

    /// How everybody stands.
    #[must_use]
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Ends the team where it stands, as the death of its process would: nothing is released, written or said. What it held stays its
    /// worker's for as long as the stores that were handed to it live.
    pub fn abort(&self) {
        self.lead.abort();
    }

    /// Waits until the team has ended.
    ///
    /// # Errors
    /// The lead itself broke: a mistake in Brigade.
    pub async fn wait(&mut self) -> Result<Outcome, tokio::task::JoinError> {
        (&mut self.lead).await
    }
}

/// How everybody stands, kept by the lead and read by front ends at any time.
#[derive(Default)]
pub struct Live {
    rows: Mutex<Rows>,
    members: DashMap<Name, Abilities>,
    stop_timeout: Duration,
}

/// What a teammate can be asked for.
#[derive(Debug, Clone, Default)]
struct Abilities {
    /// All it can do.
    can_do: Vec<String>,
    /// Whether its model thinks.
    thinks: bool,
}

/// How the teammates stood when that was last reported.
#[derive(Default)]
struct Rows {
    teammates: Arc<TeammateReports>,
    /// The same of the lead, where its model thinks.
    lead: Option<Arc<TeammateReport>>,
    /// The round of the members' phases that is in it.
    round: u64,
    /// The plans and reviews that waited for an answer.
    approvals: Vec<String>,
}

impl Live {
    /// Nobody has reported yet of these members.
    pub(super) fn of(spec: &TeamSpec, thinks: Vec<bool>) -> Self {
        let live = Self { stop_timeout: spec.limits.stop_timeout, ..Self::default() };
        spec.members.iter().zip(thinks).for_each(|(member, thinks)| live.add_member(member, thinks));
        live
    }

    /// How long running turns may take to finish once the team is asked to stop.
    #[must_use]
    pub fn stop_timeout(&self) -> Duration {
        self.stop_timeout
    }

    /// How each teammate stands.
    #[must_use]
    pub fn teammates(&self) -> Arc<TeammateReports> {
        Arc::clone(&self.rows().teammates)
    }

    /// How the lead stands, where its model thinks.
    #[must_use]
    pub fn lead(&self) -> Option<Arc<TeammateReport>> {
        self.rows().lead.clone()
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of all members but the lead.
    #[must_use]
    pub fn members(&self) -> Vec<Name> {
        self.members.iter().map(|entry| entry.key().clone()).collect()
    }

    pub(super) fn add_member(&self, spec: &MemberSpec, thinks: bool) {
        self.members.insert(spec.name.clone(), Abilities { can_do: spec.can_do(), thinks });
    }

    /// Who of those whose models think can do `what` and is not `author`: one that waits for work first, then by name.
    fn reviewer(&self, author: &Name, what: &str) -> Option<Name> {
        let teammates = self.teammates();
        let is_fit = |abilities: &Abilities| {
            abilities.thinks && abilities.can_do.iter().any(|known| known.eq_ignore_ascii_case(what))
        };
        let rank = |name: &Name| match teammates.get(name.as_str()) {
            Some(report) if report.is_gone() || waits_for_model(report) => None,
            Some(report) => Some((report.phase != "idle", name.clone())),
            None => Some((true, name.clone())),
        };
        let fit = self.members.iter().filter(|entry| entry.key() != author && is_fit(entry.value()));
        fit.filter_map(|entry| rank(entry.key())).min().map(|(_, name)| name)
    }

    /// What the lead reports; its own view of everybody is kept here too. `heartbeat`: the time, when it is to be told anew. Whoever has
    /// not stirred stands as before, so that a report costs what changed and not what the team is.
    pub(super) fn report(&self, lead: &Lead, heartbeat: Option<UnixMs>) -> StateReport {
        let mut rows = self.rows();
        let Rows { teammates, lead: lead_row, round, approvals } = &mut *rows;
        let has_other_approvals = lead.approvals().ne(approvals.iter().map(String::as_str));
        let mut noted = Vec::new();
        let is_due = |member: &&Member| heartbeat.is_some() || has_other_approvals || member.has_stirred_since(*round);
        for member in lead.members.teammates().filter(is_due) {
            let name = member.spec.name.as_str();
            let before = teammates.get(name);
            let row = row_of(lead, member, before.map(|before| before.heartbeat.as_str()), heartbeat);
            if before.is_none_or(|before| **before != row) {
                noted.push(MemberRow::of(name, &row));
                Arc::make_mut(teammates).insert(name.to_owned(), Arc::new(row));
            }
        }
        lead.shared.notes.team(noted);
        if let Some(member) = lead.members.lead() {
            let row = lead_row_of(lead, member, lead_row.as_deref().map(|row| row.heartbeat.as_str()), heartbeat);
            if lead_row.as_deref() != Some(&row) {
                *lead_row = Some(Arc::new(row));
            }
        }
        *round = lead.members.round();
        if has_other_approvals {
            *approvals = lead.approvals().map(str::to_owned).collect();
        }
        StateReport {
            team: lead.spec.name.to_string(),
            current: Some(lead.current_mode()),
            teammates: Arc::clone(teammates),
            lead: lead_row.clone(),
        }
    }
}

/// How a member stands. `before`: the heartbeat it had; `heartbeat`: the time, when that is to be told anew.
fn row_of(lead: &Lead, member: &Member, before: Option<&str>, heartbeat: Option<UnixMs>) -> TeammateReport {
    let standing = member.standing.borrow();
    let held = member.progress.held();
    let used = lead.shared.purse.used_by(member.spec.name.as_str());
    TeammateReport {
        role: member.spec.role.clone(),
        phase: phase_word(lead, member, standing.phase).to_owned(),
        task: held.map(|held| held.task),
        attempt: held.map(|held| held.attempt),
        since: member.since.to_iso(),
        heartbeat: match (heartbeat, before) {
            (Some(now), _) if member.gone.is_none() => now.to_iso(),
            (_, Some(before)) => before.to_owned(),
            _ => member.since.to_iso(),
        },
        tokens: used.tokens,
        cost_usd: (used.usd * MICROS).round() / MICROS,
        waiting_for: match &member.gone {
            Some(reason) => (!reason.is_empty()).then(|| WaitingFor::Other(format!("nothing: {reason}"))),
            None if matches!(standing.phase, Phase::Work { .. } | Phase::Stopping { .. }) => waits_at_work(member)
                .or_else(|| {
                    member.is_to_stop.then(|| WaitingFor::Other("the end of its turn, to stop then".to_owned()))
                }),
            None if standing.down.is_some() => standing.waiting_for.clone(),
            // An answer before mail and tasks.
            None => lead
                .answer_awaited_by(&member.spec.name, held.map(|held| held.task))
                .or_else(|| match standing.waiting_for {
                    Some(WaitingFor::MailOrTask) => lead.shared.room.awaited(),
                    _ => None,
                })
                .map(WaitingFor::Other)
                .or_else(|| standing.waiting_for.clone()),
        },
    }
}

/// How the lead stands. What it said last may ask the person something: it waits for the answer then, and nothing else.
fn lead_row_of(lead: &Lead, member: &Member, before: Option<&str>, heartbeat: Option<UnixMs>) -> TeammateReport {
    let row = row_of(lead, member, before, heartbeat);
    if row.waiting_for != Some(WaitingFor::MailOrTask) {
        return row;
    }
    let asked = member.standing.borrow().last_said.as_deref().and_then(questions::asked_at_the_end).map(str::to_owned);
    let waiting_for = match (asked, lead.session.stage) {
        (Some(question), _) => WaitingFor::Person(question),
        (None, Stage::Between) => WaitingFor::MailOrTask,
        (None, _) => WaitingFor::Other("mail, or the end of the teammates' work".to_owned()),
    };
    TeammateReport { waiting_for: Some(waiting_for), ..row }
}

/// A cost is told to the millionth of a dollar; what is counted is not rounded.
const MICROS: f64 = 1e6;

/// Whether its model is beyond reach.
fn waits_for_model(report: &TeammateReport) -> bool {
    matches!(report.waiting_for, Some(WaitingFor::Model(_)))
}

/// Its phase, in the word that people and programs read.
fn phase_word(lead: &Lead, member: &Member, phase: Phase) -> &'static str {
    let half_stalled = lead.spec.limits.stall_timeout / 2;
    // Who calls looks at the standing already, and a second look would wait for a writer that waits for the first.
    let is_at_work = matches!(phase, Phase::Work { .. } | Phase::Stopping { .. });
    let is_silent = || is_at_work && member.progress.silent_for().is_some_and(|silence| silence > half_stalled);
    match &member.gone {
        Some(reason) if reason.is_empty() => "stopped",
        Some(_) => "dead",
        None if is_silent() => "stalled",
        None if is_at_work && member.is_to_stop => "stopping",
        None => phase.word(),
    }
}

/// What somebody waits for who works.
fn waits_at_work(member: &Member) -> Option<WaitingFor> {
    let text = match member.progress.doing()? {
        Activity::AskingAgain(when_and_why) => Some(format!("its model, {when_and_why}")),
        Activity::WaitingForBudget => Some("others' requests, which may leave enough of the budget".to_owned()),
        Activity::WaitingForRoom => Some(NO_ROOM.to_owned()),
        Activity::AskingModel => {
            let silence = member.progress.silent_for().filter(|silence| *silence >= SILENCE_SAID_AFTER)?;
            // Said anew each time it has doubled, so that nobody writes it down every second.
            let minutes = 1_u64 << (silence.as_secs() / 60).ilog2();
            let unit = if minutes == 1 { "minute" } else { "minutes" };
            Some(format!("its model, silent for over {minutes} {unit}"))
        }
        Activity::RunningTool | Activity::MakingWorktree => None,
    };
    text.map(WaitingFor::Other)
}

/// What the lead's tools reach of the team.
pub struct Control {
    live: Arc<Live>,
    commands: mpsc::Sender<Command>,
    model: ModelSpec,
    lead_thinks: bool,
}

impl Control {
    /// Control over the team that hears `commands`; teammates it spawns use the lead's model.
    #[must_use]
    pub fn new(live: Arc<Live>, commands: mpsc::Sender<Command>, model: ModelSpec, lead_thinks: bool) -> Self {
        Self { live, commands, model, lead_thinks }
    }
}

#[async_trait]
impl TeamControl for Control {
    async fn spawn_teammate(&self, name: &Name, role: &str, prompt: &str) -> Result<String, String> {
        let spec = MemberSpec {
            name: name.clone(),
            role: role.to_owned(),
            capabilities: Vec::new(),
            prompt: prompt.to_owned(),
            plan_first: false,
            model: self.model.clone(),
        };
        let (reply, answer) = oneshot::channel();
        let gone = || "the team is stopping".to_owned();
        self.commands.send(Command::Spawn { spec, reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn list_teammates(&self) -> String {
        let teammates = self.live.teammates();
        if teammates.is_empty() {
            return "There are no teammates.".to_owned();
        }
        let rows = teammates.iter().map(|(name, report)| {
            let task = report.task.map_or_else(String::new, |task| format!(", task {task}"));
            let waiting = report.waiting_for.as_ref().map_or_else(String::new, |what| format!(", waits for {what}"));
            format!("{name} ({}): {}{task} since {}{waiting}", report.role, report.phase, report.since)
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    fn members(&self) -> Vec<Name> {
        let mut names = self.live.members();
        names.extend(Name::new(LEAD));
        names.sort();
        names
    }

    fn lead_thinks(&self) -> bool {
        self.lead_thinks
    }

    fn reviewer(&self, author: &Name, what: &str) -> String {
        if what.eq_ignore_ascii_case(HUMAN) {
            return HUMAN.to_owned();
        }
        let member = if what.eq_ignore_ascii_case(LEAD) { None } else { self.live.reviewer(author, what) };
        let otherwise = || if self.lead_thinks && author.as_str() != LEAD { LEAD } else { HUMAN };
        member.map_or_else(|| otherwise().to_owned(), |member| member.to_string())
    }
}
