//! What happens in one run, as data derived from its seed: so that parts of it can be left out, and it can be printed.

use fastrand::Rng;

/// The team and the disk of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    pub members: usize,
    pub tasks: u64,
    /// What the team may use.
    pub budget: Option<Allowance>,
    /// Whether the lead is a model; otherwise it goes by rule.
    pub lead_thinks: bool,
    /// Who reviews what is done.
    pub review: Option<Reviewer>,
    /// Whether the first member hands in its plans first.
    pub plan_first: bool,
    /// Whether what is accepted survives power cuts; without that there are none.
    pub is_durable: bool,
    pub renames_after_bytes: bool,
    /// Whether folders can be watched; without that stamps are compared.
    pub has_watches: bool,
    /// Whether workers that fall silent count as gone, as where locks are not to be trusted.
    pub by_lease: bool,
    /// Whether the run ends with a team at rest, or with one that ends by itself.
    pub ends_at_rest: bool,
}

/// A budget, and what its provider does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    pub tokens: Option<u64>,
    pub cents: Option<u64>,
    /// Whether the provider says what a request used.
    pub is_reported: bool,
}

/// Whose approval a completion needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reviewer {
    /// The last member's, by its role.
    Role,
    Lead,
    Human,
}

/// Everything that is chosen by the seed but for what the models say, which follows from the seed as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub setup: Setup,
    pub steps: Vec<Step>,
}

/// Something that happens, and how long after the step before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub wait_ms: u64,
    pub deed: Deed,
}

/// Whose process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Lead,
    Worker,
    Person,
}

/// What happens. Numbers called `dice` pick the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// A person's doing, by command.
    AddTasks {
        dice: u64,
    },
    ChangeTask {
        dice: u64,
    },
    ClaimTask {
        dice: u64,
    },
    SendMail {
        dice: u64,
    },
    AnswerRequests {
        dice: u64,
    },
    /// In time for the next launch.
    RaiseBudget {
        stops: bool,
    },
    /// Has what was used counted anew, which needs the team to be stopped.
    ResetLedger {
        stops: bool,
    },
    /// Another program's doing, without our locks.
    Click {
        dice: u64,
    },
    ForeignMail {
        dice: u64,
    },
    TornTask {
        dice: u64,
    },
    /// A second process that works on tasks.
    WorkerClaims {
        dice: u64,
    },
    WorkerFinishes {
        dice: u64,
    },
    /// Ends of processes. Leads are launched again by the next step.
    Kill {
        who: Who,
    },
    StopLead {
        now: bool,
    },
    SecondLead,
    PowerCut {
        dice: u64,
    },
    /// Troubles.
    JumpClock {
        ms: i64,
    },
    LoseHints {
        ms: u64,
    },
    LoseWatches,
    Dawdle {
        ms: u64,
    },
    /// Something befalls a process in the middle of its calls.
    Befall {
        who: Who,
        after: u32,
        fate: Fate,
    },
}

/// What befalls a process at a call of its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// This call, and so many after it, fail.
    Fail {
        how: Failure,
        times: u32,
    },
    /// The next write takes half of its bytes, and the disk is full.
    Tear,
    /// The process is killed; a write is left half done.
    Die,
    PowerCut {
        dice: u64,
    },
    /// Somebody else acts between this call and the one before.
    Meanwhile(Box<Deed>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Io,
    Full,
    Denied,
}

/// One seed of so many is a long run.
const LONG_EVERY: u64 = 16;

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Most troubles need little to show; short runs are many, and the long ones have everything at once.
        let is_long = seed.is_multiple_of(LONG_EVERY);
        let (tasks_max, steps, odds) = if is_long { (4, 4..=14, 3) } else { (2, 2..=5, 8) };
        let setup = Setup {
            members: rng.usize(2..=3),
            tasks: rng.u64(1..=tasks_max),
            budget: (rng.u8(..odds) == 0).then(|| allowance(&mut rng)),
            lead_thinks: rng.u8(..odds) == 0,
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

fn allowance(rng: &mut Rng) -> Allowance {
    let (tokens, cents) = (rng.u64(30_000..400_000), rng.u64(20..200));
    let kind = rng.u8(..3);
    Allowance { tokens: (kind < 2).then_some(tokens), cents: (kind > 0).then_some(cents), is_reported: rng.u8(..4) > 0 }
}

fn step(rng: &mut Rng, setup: Setup, is_long: bool) -> Step {
    let wait_ms = match rng.u8(..10) {
        9 if is_long => rng.u64(..40_000),
        0..=4 => rng.u64(..400),
        _ => rng.u64(..4000),
    };
    Step { wait_ms, deed: deed(rng, setup) }
}

fn deed(rng: &mut Rng, setup: Setup) -> Deed {
    match rng.u8(..100) {
        0..=39 => outsider(rng),
        40..=43 => Deed::Kill { who: who(rng) },
        44..=45 => Deed::StopLead { now: rng.bool() },
        46 => Deed::SecondLead,
        47..=51 if setup.is_durable => Deed::PowerCut { dice: rng.u64(..) },
        52..=54 => Deed::JumpClock { ms: rng.i64(-7_200_000..7_200_000) },
        55..=57 => Deed::LoseHints { ms: rng.u64(..20_000) },
        58 => Deed::LoseWatches,
        59..=61 => Deed::Dawdle { ms: rng.u64(..5000) },
        62..=65 if setup.budget.is_some() => Deed::RaiseBudget { stops: rng.bool() },
        66..=69 if setup.budget.is_some() => Deed::ResetLedger { stops: rng.bool() },
        _ => {
            let calls_max = if rng.bool() { 12 } else { 120 };
            Deed::Befall { who: who(rng), after: rng.u32(..calls_max), fate: fate(rng, setup) }
        }
    }
}

/// What others than the team do.
fn outsider(rng: &mut Rng) -> Deed {
    let dice = rng.u64(..);
    match rng.u8(..20) {
        0..=2 => Deed::AddTasks { dice },
        3..=6 => Deed::ChangeTask { dice },
        7 => Deed::ClaimTask { dice },
        8..=9 => Deed::SendMail { dice },
        10 => Deed::AnswerRequests { dice },
        11..=13 => Deed::Click { dice },
        14 => Deed::ForeignMail { dice },
        15 => Deed::TornTask { dice },
        16..=17 => Deed::WorkerClaims { dice },
        _ => Deed::WorkerFinishes { dice },
    }
}

fn fate(rng: &mut Rng, setup: Setup) -> Fate {
    match rng.u8(..12) {
        0..=3 => {
            let how = [Failure::Io, Failure::Full, Failure::Denied][rng.usize(..3)];
            Fate::Fail { how, times: if rng.bool() { 1 } else { rng.u32(1..30) } }
        }
        4 => Fate::Tear,
        5..=6 => Fate::Die,
        7 if setup.is_durable => Fate::PowerCut { dice: rng.u64(..) },
        _ => Fate::Meanwhile(Box::new(outsider(rng))),
    }
}

fn who(rng: &mut Rng) -> Who {
    [Who::Lead, Who::Lead, Who::Lead, Who::Worker, Who::Person][rng.usize(..5)]
}
