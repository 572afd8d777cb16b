//! The lead: one loop that owns the session and the members. Nobody else decides when work begins, ends or starts again.
//!
//! `select!` only makes an [`Event`]; [`Lead::handle`] takes it in, and [`Lead::advance`] then does what
//! [`crate::domain::mode::decide`] says follows from how things stand. What the lead looks at stands in [`looks`], lives and
//! commands in [`lives`], what it says in [`reports`].

mod keeps;
mod lives;
mod looks;
mod reports;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use super::agent::Shared;
use super::handle::{Command, End, Live, Outcome};
use super::members::{Ended, Member, Members};
use super::ready::Ready;
use super::session::Session;
use super::spec::TeamSpec;
use super::teammate::Gate;
use super::worker::WorkerReporter;
use crate::domain::mode::{self, Next, Situation, Stage};
use crate::domain::name::{LEAD, Name};
use crate::domain::request::Request;
use crate::domain::state::{Mode, SetDesired, StateReport};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::ports::{BoardView, StoreChange};
use keeps::Vanished;

/// How often the lead looks at lives and waits at the least, while there are any to look at.
const TICK: Duration = Duration::from_secs(1);
/// How often the worker's record and the state file say that the team lives.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The same while nobody works: a third of the time after which a worker that says nothing counts as gone.
const HEARTBEAT_CALM: Duration = Duration::from_secs(10);

/// What happens to the lead.
enum Event {
    Changed(StoreChange),
    Reported,
    Tick,
    Ended(Ended),
    Commanded(Command),
}

/// How the team is being stopped.
#[derive(Debug, Clone, Copy)]
struct Stopping {
    /// How it ends.
    end: End,
    /// When running turns are broken off.
    until: Instant,
}

/// What changed since the lead last looked, from any number of hints.
#[derive(Debug, Default)]
struct Changes {
    everything: bool,
    board: bool,
    state: bool,
    mail: BTreeSet<String>,
}

impl Changes {
    fn add(&mut self, change: StoreChange) {
        match change {
            StoreChange::Board => self.board = true,
            StoreChange::State => self.state = true,
            StoreChange::Mail(to) => {
                self.mail.insert(to);
            }
            StoreChange::Everything => self.everything = true,
        }
    }
}

/// See the module.
pub struct Lead {
    pub(super) spec: TeamSpec,
    pub(super) shared: Arc<Shared>,
    pub(super) members: Members,
    pub(super) session: Session,
    pub(super) view: Arc<BoardView>,
    pub(super) ready: Ready,
    pub(super) desired: Mode,
    pub(super) live: Arc<Live>,
    pub(super) reported: Arc<tokio::sync::Notify>,
    pub(super) worker: Arc<WorkerReporter>,
    commands: mpsc::Receiver<Command>,
    gates: GateKeys,
    prefers: HashMap<String, TaskId>,
    state: LeadState,
}

/// What the lead opens and shuts.
pub struct GateKeys {
    /// For teammates.
    pub teammates: watch::Sender<Gate>,
    /// For the lead's own agent.
    pub lead: watch::Sender<Gate>,
}

/// What the lead remembers from one event to the next.
struct LeadState {
    stopping: Option<Stopping>,
    unknown_desired: Option<String>,
    /// Why the state file cannot be read.
    state_trouble: Option<String>,
    /// An ending that could not be written yet.
    unwritten_end: Option<SetDesired>,
    last_report: Option<StateReport>,
    last_poll: Instant,
    last_tick: Instant,
    last_beat: Instant,
    polls: usize,
    /// Whose mail waits, and whether it sets a model to work.
    mail_waiting: Vec<(String, bool)>,
    /// Whose mail cannot be read.
    mail_unreadable: Vec<String>,
    /// The plans and reviews that wait for an answer.
    approvals: Vec<Request>,
    /// Who was told of its mail since the last poll.
    told_of_mail: HashSet<Name>,
    /// Claims of this worker that nobody of the team holds, and since when they look so.
    unheld: HashMap<(TaskId, u32), Instant>,
    /// Until when each lease of a claim by command lasts, by a clock that does not jump: task, attempt, and its end by the other.
    leases: BTreeMap<(TaskId, u32, UnixMs), Instant>,
    /// The round of the members' phases that is in the roster.
    roster_round: u64,
    /// What the session waits for while nobody works, since when, and whether that was said.
    waits_for: Option<(Vec<TaskId>, Instant, bool)>,
    /// Tasks that went though nobody deleted them.
    vanished: BTreeMap<TaskId, Vanished>,
    /// Whether it stops because it cannot go on.
    has_given_up: bool,
}

/// What a lead is made of.
pub struct LeadParts {
    /// The team.
    pub spec: TeamSpec,
    /// What agents share.
    pub shared: Arc<Shared>,
    /// Its members, none started yet.
    pub members: Members,
    /// The session to be.
    pub session: Session,
    /// The board as it was found.
    pub view: Arc<BoardView>,
    /// What front ends read.
    pub live: Arc<Live>,
    /// What front ends say.
    pub commands: mpsc::Receiver<Command>,
    /// Told when a member reported.
    pub reported: Arc<tokio::sync::Notify>,
    /// What members may begin.
    pub gates: GateKeys,
    /// This worker's record.
    pub worker: Arc<WorkerReporter>,
    /// Who worked on what before the process that led ended.
    pub prefers: HashMap<String, TaskId>,
}

impl Lead {
    /// A lead about to begin.
    #[must_use]
    pub fn new(parts: LeadParts) -> Self {
        let LeadParts { spec, shared, members, session, view, live, commands, reported, gates, worker, prefers } =
            parts;
        let now = Instant::now();
        let state = LeadState {
            stopping: None,
            unknown_desired: None,
            state_trouble: None,
            unwritten_end: None,
            last_report: None,
            last_poll: now,
            last_tick: now,
            last_beat: now,
            polls: 0,
            mail_waiting: Vec::new(),
            mail_unreadable: Vec::new(),
            approvals: Vec::new(),
            told_of_mail: HashSet::new(),
            unheld: HashMap::new(),
            leases: BTreeMap::new(),
            roster_round: 0,
            waits_for: None,
            vanished: BTreeMap::new(),
            has_given_up: false,
        };
        let (ready, desired) = (Ready::default(), Mode::Pause);
        Self {
            spec,
            shared,
            members,
            session,
            view,
            ready,
            desired,
            live,
            reported,
            worker,
            commands,
            gates,
            prefers,
            state,
        }
    }

    /// Leads until the team is stopped or, where it has only one session, that is over.
    pub async fn run(mut self) -> Outcome {
        let mut changes = self.shared.stores.changes.subscribe();
        self.start_members();
        self.poll().await;
        loop {
            if let Some(end) = self.advance().await {
                return self.finish(end).await;
            }
            let due = self.ready.next_due(self.shared.clock.now()).unwrap_or(TICK);
            let tick = self.next_tick();
            let event = tokio::select! {
                biased;
                Some(command) = self.commands.recv() => Event::Commanded(command),
                ended = self.members.ended() => Event::Ended(ended),
                change = changes.recv() => Event::Changed(heard(change)),
                () = self.reported.notified() => Event::Reported,
                () = tokio::time::sleep_until(tick) => Event::Tick,
                () = tokio::time::sleep(due), if due < TICK => Event::Reported,
            };
            self.handle(event, &mut changes).await;
        }
    }

    fn start_members(&mut self) {
        let thinks = self.session.lead_thinks();
        let lead = thinks.then(|| self.spec.lead.clone());
        for spec in lead.into_iter().chain(self.spec.members.clone()) {
            let name = spec.name.clone();
            let prefers = self.prefers.remove(name.as_str());
            if let Err(reason) = self.members.spawn(spec, prefers, 0) {
                self.shared.notes.warn(name.as_str(), reason);
            }
        }
    }

    /// Takes in an event, and the hints that came with it: however many there are, each store is looked at once.
    async fn handle(&mut self, event: Event, hints: &mut broadcast::Receiver<StoreChange>) {
        let mut changes = Changes::default();
        match event {
            Event::Changed(change) => changes.add(change),
            // Somebody who went idle has read its mail.
            Event::Reported if !self.state.mail_waiting.is_empty() => self.look_at_mail().await,
            Event::Reported => {}
            Event::Tick => self.tick().await,
            Event::Ended(ended) => self.member_ended(ended).await,
            Event::Commanded(command) => self.obey(command).await,
        }
        loop {
            match hints.try_recv() {
                Ok(change) => changes.add(change),
                Err(broadcast::error::TryRecvError::Lagged(_)) => changes.add(StoreChange::Everything),
                Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => break,
            }
        }
        self.look_at(changes).await;
    }

    /// Whether time alone changes nothing but the next poll.
    fn is_calm(&self) -> bool {
        let is_between = matches!(self.session.stage, Stage::Between) && self.state.stopping.is_none();
        is_between && !self.members.teammates().chain(self.members.lead()).any(Member::works)
    }

    fn next_tick(&self) -> Instant {
        let poll_interval = self.spec.limits.poll_interval;
        if self.is_calm() {
            self.state.last_poll + poll_interval
        } else {
            self.state.last_tick + TICK.min(poll_interval)
        }
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        self.state.last_tick = now;
        self.members.end_stalled();
        if self.state.last_poll.elapsed() >= self.spec.limits.poll_interval {
            self.poll().await;
        }
        let heartbeat = if self.is_calm() { HEARTBEAT_CALM } else { HEARTBEAT };
        if self.state.last_beat.elapsed() >= heartbeat {
            self.state.last_beat = now;
            self.beat().await;
        }
        self.hurry();
        self.say_what_is_waited_for();
    }

    /// Does what follows from how things stand, until nothing does. Says how the team ends once it does.
    async fn advance(&mut self) -> Option<End> {
        loop {
            if self.members.note_phases() {
                self.report_roster().await;
            }
            self.heed_budget().await;
            if let Some(stopping) = self.state.stopping {
                self.report(false).await;
                return self.members.are_gone().then_some(stopping.end);
            }
            self.ready.look(&self.view);
            if matches!(self.session.stage, Stage::Running(mode) if mode != Mode::RunCleanup) {
                self.session.hand_over_goal(self.members.lead());
            }
            self.set_gates();
            match mode::decide(&self.situation()) {
                Next::Begin(mode) => self.begin(mode),
                // Mail may have come since it was last looked at; who is asked works on.
                Next::Report if self.has_unread_mail().await => {}
                Next::Report => self.ask_for_report(),
                Next::Finish => self.finish_session().await,
                Next::Exit => {
                    self.stop(super::teammate::Control::Stop, self.spec.limits.stop_timeout, End::SessionOver)
                }
                Next::Pause | Next::Wait => {
                    self.wake();
                    let desired = self.desired;
                    self.report(false).await;
                    // Reporting reads what is wanted, too.
                    if self.desired == desired {
                        return None;
                    }
                }
            }
        }
    }

    fn set_gates(&self) {
        let is_open = !self.shared.room.is_scarce();
        let stage = self.session.stage;
        let teammates = Gate {
            claim: is_open && mode::may_claim(stage, self.desired),
            read: is_open && mode::may_read(stage, self.desired),
        };
        let lead = Gate { claim: false, read: is_open && mode::lead_may_read(stage) };
        for (key, gate) in [(&self.gates.teammates, teammates), (&self.gates.lead, lead)] {
            key.send_if_modified(|now| std::mem::replace(now, gate) != gate);
        }
    }

    fn situation(&self) -> Situation {
        let usable = || self.members.teammates().filter(|member| member.is_usable());
        let lead = self.members.lead().filter(|lead| lead.is_usable());
        Situation {
            desired: self.desired,
            stage: self.session.stage,
            claimable: self
                .ready
                .is_any_for(usable().map(|member| (member.spec.name.as_str(), member.can_do.as_slice()))),
            in_progress: self.members.teammates().any(Member::works) || self.ready.has_claims(),
            mail_waits: self.mail_waits(),
            lead_mail_waits: lead.is_some_and(|lead| self.is_asked(lead)),
            goal_unplanned: lead.is_some() && self.session.goal_unplanned(),
            lead_works: self.session.lead_is_prompted(self.members.lead()),
            had_its_session: self.session.is_over_for_good(),
        }
    }

    /// Whether mail waits for a teammate that would act on it.
    pub(super) fn mail_waits(&self) -> bool {
        self.whose_mail_waits().next().is_some()
    }

    /// Whose mail could not be read when it was last looked at.
    pub(super) fn unreadable_mail(&self) -> impl Iterator<Item = &str> {
        self.state.mail_unreadable.iter().map(String::as_str)
    }

    /// The ids of the plans and reviews that wait for an answer.
    pub(super) fn approvals(&self) -> impl Iterator<Item = &str> {
        self.state.approvals.iter().map(|request| request.id.as_str())
    }

    /// Whose answer to a plan or a review of its own this member waits for, in words.
    pub(super) fn answer_awaited_by(&self, name: &Name, held: Option<TaskId>) -> Option<String> {
        let is_its = |request: &&Request| name.is_same(&request.from) && request.concerns(held);
        self.state.approvals.iter().find(is_its).map(Request::who_answers)
    }

    /// The teammates that would act on mail that waits for them.
    pub(super) fn whose_mail_waits(&self) -> impl Iterator<Item = &str> {
        let members = self.members.teammates().filter(|member| member.is_usable() && self.is_asked(member));
        members.map(|member| member.spec.name.as_str())
    }

    /// Looks whether mail waits that is to be read before the session is over; under a pause it stays where it is.
    pub(super) async fn has_unread_mail(&mut self) -> bool {
        if self.desired == Mode::Pause {
            return false;
        }
        self.look_at_mail().await;
        self.mail_waits()
    }

    /// Whether this member has mail to act on, or mail it has not answered.
    fn is_asked(&self, member: &Member) -> bool {
        let is_for = |(to, sets_to_work): &(String, bool)| *sets_to_work && member.spec.name.is_same(to);
        member.standing.borrow().owes_answer || self.state.mail_waiting.iter().any(is_for)
    }

    /// Tells one fit idle teammate of each claimable task, and who is idle of its mail; nobody twice.
    fn wake(&mut self) {
        let gate = *self.gates.teammates.borrow();
        self.wake_for_mail(gate);
        if !gate.claim {
            return;
        }
        let mut ready: Vec<&Member> = self.members.teammates().filter(|member| member.is_ready()).collect();
        if ready.is_empty() {
            return;
        }
        // Who does not answer is not asked first again after a poll.
        let shift = self.state.polls % ready.len();
        ready.rotate_left(shift);
        let idle: Vec<(&str, &[String])> =
            ready.iter().map(|member| (member.spec.name.as_str(), member.can_do.as_slice())).collect();
        let woken = self.ready.whom_to_wake(self.shared.clock.now(), &idle);
        let names: Vec<Name> = woken.into_iter().map(|place| ready[place].spec.name.clone()).collect();
        for name in names {
            if let Some(member) = self.members.by_name.get_mut(&name) {
                member.nudge();
            }
        }
    }

    fn wake_for_mail(&mut self, teammates: Gate) {
        let lead = *self.gates.lead.borrow();
        let mut told = Vec::new();
        for member in self.members.by_name.values().filter(|member| member.is_idle() || member.awaits_answer()) {
            let name = &member.spec.name;
            let gate = if name.as_str() == LEAD { lead } else { teammates };
            let has_mail = self.state.mail_waiting.iter().any(|(to, _)| name.is_same(to));
            let owes = gate.read && member.is_ready() && member.standing.borrow().owes_answer;
            if (has_mail || owes) && !self.state.told_of_mail.contains(name) {
                member.tell(super::teammate::Control::Look);
                told.push(name.clone());
            }
        }
        self.state.told_of_mail.extend(told);
    }
}

fn heard(change: Result<StoreChange, broadcast::error::RecvError>) -> StoreChange {
    // Hints that were missed, or a store that sends none: look at everything.
    change.unwrap_or(StoreChange::Everything)
}
