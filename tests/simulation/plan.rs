//! The events of one run, as data derived from its seed, so that parts can be left out and printed.

use fastrand::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    pub members: usize,
    pub tasks: u64,
    pub budget: Option<Allowance>,
    /// True if the lead is a model; otherwise it is a runbook.
    pub lead_has_model: bool,
    /// The reviewer of completions.
    pub review: Option<Reviewer>,
    /// True if the first member submits its plans first.
    pub plan_first: bool,
    /// True if accepted changes survive power cuts; otherwise there are none.
    pub is_durable: bool,
    pub renames_after_bytes: bool,
    /// True if folders can be watched; otherwise stamps are compared.
    pub has_watches: bool,
    /// True if silent workers count as dead, as on file systems with unreliable locks.
    pub by_lease: bool,
    /// True if the run ends with a team at rest; otherwise the team ends by itself.
    pub ends_at_rest: bool,
}

/// A budget, and the provider's use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    pub tokens: Option<u64>,
    pub cents: Option<u64>,
    /// The tokens of the first member.
    pub member_tokens: Option<u64>,
    /// The tokens of each task.
    pub task_tokens: Option<u64>,
    /// True if the provider reports the usage of a request.
    pub is_reported: bool,
}

/// The member or person whose approval a completion needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reviewer {
    /// The last member, which has the reviewer role.
    Role,
    Lead,
    Human,
}

/// All random choices of a run except for the models' answers, which follow from the seed as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub setup: Setup,
    pub steps: Vec<PlannedAction>,
}

/// An action, and its delay after the step before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedAction {
    pub wait_ms: u64,
    pub action: Action,
}

/// The process of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessRole {
    Lead,
    Worker,
    Person,
}

/// An action or a fault. Each `seed` chooses the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Actions of a person, by command.
    AddTasks {
        seed: u64,
    },
    ChangeTask {
        seed: u64,
    },
    ClaimTask {
        seed: u64,
    },
    SendMail {
        seed: u64,
    },
    AnswerRequests {
        seed: u64,
    },
    /// Takes effect at the next launch.
    RaiseBudget {
        stops: bool,
    },
    /// Resets the used budget, which needs a stopped team.
    ResetLedger {
        stops: bool,
    },
    /// Actions of another program, without our locks.
    Click {
        seed: u64,
    },
    ForeignMail {
        seed: u64,
    },
    TornTask {
        seed: u64,
    },
    /// A second process that works on tasks.
    WorkerClaims {
        seed: u64,
    },
    WorkerFinishes {
        seed: u64,
    },
    /// Ends of processes. The next step launches a lead again.
    Kill {
        who: ProcessRole,
    },
    StopLead {
        now: bool,
    },
    SecondLead,
    PowerCut {
        seed: u64,
    },
    /// Faults.
    JumpClock {
        ms: i64,
    },
    LoseHints {
        ms: u64,
    },
    LoseWatches,
    SlowStores {
        ms: u64,
    },
    /// A fault of a process in the middle of its calls.
    InjectFault {
        who: ProcessRole,
        after: u32,
        fault: ActionFault,
    },
}

/// A fault of a process at a call of its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionFault {
    /// This call, and this many after it, fail.
    Fail {
        how: Failure,
        times: u32,
    },
    /// The next write takes half of its bytes, and the disk is full.
    Tear,
    /// The process is killed; a write is left half done.
    Die,
    PowerCut {
        seed: u64,
    },
    /// Another process acts between this call and the one before.
    ConcurrentAction(Box<Action>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Io,
    Full,
    Denied,
}

/// Differs the choices of caps from all others, so that they change no other choice of a seed.
const CAPS_SEED: u64 = 1 << 40;
/// One seed in this many is a long run.
const LONG_EVERY: u64 = 16;

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Most bugs show in short runs, of which there are many; long runs have all faults at once.
        let is_long = seed.is_multiple_of(LONG_EVERY);
        let (tasks_max, steps, odds) = if is_long { (4, 4..=14, 3) } else { (2, 2..=5, 8) };
        let setup = Setup {
            members: rng.usize(2..=3),
            tasks: rng.u64(1..=tasks_max),
            budget: (rng.u8(..odds) == 0).then(|| allowance(&mut rng, seed)),
            lead_has_model: rng.u8(..odds) == 0,
            review: [Some(Reviewer::Role), Some(Reviewer::Lead), Some(Reviewer::Human)]
                .get(rng.usize(..2 * usize::from(odds)))
                .copied()
                .flatten(),
            plan_first: rng.u8(..odds) == 0,
            is_durable: rng.u8(..4) > 0,
            renames_after_bytes: rng.bool(),
            has_watches: rng.u8(..3) > 0,
            by_lease: false,
            ends_at_rest: is_long && rng.u8(..2) == 0,
        };
        let steps = (0..rng.usize(steps)).map(|_| step(&mut rng, setup, is_long)).collect();
        let setup = Setup { by_lease: rng.u8(..odds) == 0, ..setup };
        Self { seed, setup, steps }
    }
}

fn allowance(rng: &mut Rng, seed: u64) -> Allowance {
    let (tokens, cents) = (rng.u64(30_000..400_000), rng.u64(20..200));
    let kind = rng.u8(..3);
    let mut caps = Rng::with_seed(seed ^ CAPS_SEED);
    Allowance {
        tokens: (kind < 2).then_some(tokens),
        cents: (kind > 0).then_some(cents),
        member_tokens: caps.bool().then(|| caps.u64(15_000..60_000)),
        task_tokens: caps.bool().then(|| caps.u64(20_000..150_000)),
        is_reported: rng.u8(..4) > 0,
    }
}

fn step(rng: &mut Rng, setup: Setup, is_long: bool) -> PlannedAction {
    let wait_ms = match rng.u8(..10) {
        9 if is_long => rng.u64(..40_000),
        0..=4 => rng.u64(..400),
        _ => rng.u64(..4000),
    };
    PlannedAction { wait_ms, action: action(rng, setup) }
}

fn action(rng: &mut Rng, setup: Setup) -> Action {
    match rng.u8(..100) {
        0..=39 => outsider(rng),
        40..=43 => Action::Kill { who: who(rng) },
        44..=45 => Action::StopLead { now: rng.bool() },
        46 => Action::SecondLead,
        47..=51 if setup.is_durable => Action::PowerCut { seed: rng.u64(..) },
        52..=54 => Action::JumpClock { ms: rng.i64(-7_200_000..7_200_000) },
        55..=57 => Action::LoseHints { ms: rng.u64(..20_000) },
        58 => Action::LoseWatches,
        59..=61 => Action::SlowStores { ms: rng.u64(..5000) },
        62..=65 if setup.budget.is_some() => Action::RaiseBudget { stops: rng.bool() },
        66..=69 if setup.budget.is_some() => Action::ResetLedger { stops: rng.bool() },
        _ => {
            let calls_max = if rng.bool() { 12 } else { 120 };
            Action::InjectFault { who: who(rng), after: rng.u32(..calls_max), fault: fault(rng, setup) }
        }
    }
}

/// An action from outside the team.
fn outsider(rng: &mut Rng) -> Action {
    let seed = rng.u64(..);
    match rng.u8(..20) {
        0..=2 => Action::AddTasks { seed },
        3..=6 => Action::ChangeTask { seed },
        7 => Action::ClaimTask { seed },
        8..=9 => Action::SendMail { seed },
        10 => Action::AnswerRequests { seed },
        11..=13 => Action::Click { seed },
        14 => Action::ForeignMail { seed },
        15 => Action::TornTask { seed },
        16..=17 => Action::WorkerClaims { seed },
        _ => Action::WorkerFinishes { seed },
    }
}

fn fault(rng: &mut Rng, setup: Setup) -> ActionFault {
    match rng.u8(..12) {
        0..=3 => {
            let how = [Failure::Io, Failure::Full, Failure::Denied][rng.usize(..3)];
            ActionFault::Fail { how, times: if rng.bool() { 1 } else { rng.u32(1..30) } }
        }
        4 => ActionFault::Tear,
        5..=6 => ActionFault::Die,
        7 if setup.is_durable => ActionFault::PowerCut { seed: rng.u64(..) },
        _ => ActionFault::ConcurrentAction(Box::new(outsider(rng))),
    }
}

fn who(rng: &mut Rng) -> ProcessRole {
    [ProcessRole::Lead, ProcessRole::Lead, ProcessRole::Lead, ProcessRole::Worker, ProcessRole::Person][rng.usize(..5)]
}
