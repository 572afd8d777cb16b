//! The budget of a team: never exceeded, kept across launches, and no work is lost at the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brigade::domain::agent::transcript::Usage;
use brigade::domain::log::event::EventKind;
use brigade::domain::task::transition::{Actor, ActorKind, Change, TaskEdit};
use brigade::domain::task::{TaskId, TaskStatus};
use brigade::domain::team::budget::{Budget, Price, Prices};
use brigade::domain::team::model_spec::ModelSpec;
use brigade::domain::team::state::{Mode, SetBy};
use brigade::ports::ModelResponse;
use brigade::team::handle::TeamEnd;
use serde_json::json;

use super::harness::{ModelResult, TestTeam, call, complete, diligent, once, say, task_at_hand};

/// The usage of each answer.
const USED: Usage = Usage {
    input_tokens: 900,
    output_tokens: 100,
    cache_read_tokens: 0,
    cache_write_tokens: 0,
    reasoning_tokens: 0,
    cost_ticks: None,
};

fn using(answer: ModelResult, used: Usage) -> ModelResult {
    answer.map(|response| ModelResponse { usage: Some(used), ..response })
}

/// Three teammates with ten tasks; each request is counted in `served`, as its provider would.
async fn crew(tokens: u64, served: &Arc<AtomicU64>) -> TestTeam {
    let mut harness = TestTeam::new(&["alice", "bob", "carol"]);
    harness.spec.limits.model.output_tokens_max = 200;
    harness.spec.budget = Budget { tokens: Some(tokens), usd: None };
    for who in ["alice", "bob", "carol"] {
        let served = Arc::clone(served);
        harness.set_model_fn(who, move |request, _| {
            served.fetch_add(USED.total(), Ordering::Relaxed);
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                using(diligent(&request), USED)
            }
        });
    }
    harness.tasks(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]).await;
    harness
}

async fn used(harness: &TestTeam) -> u64 {
    let book = harness.stores.ledger.read().await.unwrap();
    assert_eq!(book.open_requests("crew"), 0);
    book.spent().values().map(|spend| spend.usage.total()).sum()
}

#[tokio::test(start_paused = true)]
async fn budget_is_never_exceeded_and_run_can_continue() {
    let served = Arc::new(AtomicU64::new(0));
    let mut harness = crew(17_000, &served).await;
    let outcome = harness.run_once().await;
    assert_eq!(outcome.end, TeamEnd::BudgetSpent, "{}", harness.event_lines());
    let trouble = outcome.error.unwrap();
    assert!(trouble.starts_with("The budget of 17000 tokens is spent: "), "{trouble}");
    let spent = used(&harness).await;
    assert_eq!(spent, served.load(Ordering::Relaxed), "a request is not counted once");
    assert!((3_000..=17_000).contains(&spent), "{spent}");
    assert_eq!(harness.count(|event| matches!(event, EventKind::BudgetSpent { .. })), 1);
    let done = outcome.task_counts.completed;
    assert!(
        (1..10).contains(&done) && outcome.task_counts.in_progress + outcome.task_counts.failed == 0,
        "{:?}",
        outcome.task_counts
    );
    for id in 1..=10 {
        let task = harness.task(id).await;
        let is_free = task.status == TaskStatus::Pending && task.claim.is_none() && task.failures == 0;
        assert!(is_free || task.status == TaskStatus::Completed, "{task:?}");
    }
    let state = harness.stores.state.read().await.unwrap().unwrap();
    assert_eq!((state.desired, state.current, &state.set_by), (Mode::Pause, Mode::Pause, &SetBy::Brigade));
    assert!(state.note.contains("budget of 17000 tokens"), "{}", state.note);

    // The same budget: no task is started.
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, used(&harness).await), (TeamEnd::BudgetSpent, spent));
    // A larger budget: the run continues.
    harness.spec.budget.tokens = Some(1_000_000);
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 10), "{}", harness.event_lines());
    assert_eq!(used(&harness).await, served.load(Ordering::Relaxed));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn requests_wait_when_budget_fits_only_some() {
    let served = Arc::new(AtomicU64::new(0));
    // Enough for all tasks, but not for the upper limits of three concurrent requests.
    let mut harness = crew(40_000, &served).await;
    harness.spec.limits.model.output_tokens_max = 12_000;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 10), "{}", harness.event_lines());
    let mut times: Vec<_> =
        ["alice", "bob", "carol"].iter().flat_map(|who| harness.sent_by(who)).map(|sent| sent.at).collect();
    times.sort();
    // Each takes 100 ms: of three in a row, the third one began after the end of the first.
    assert!(times.windows(3).all(|three| three[2] - three[0] >= Duration::from_millis(100)), "{times:?}");
    harness.check_invariants().await;
}

/// The budget pays for a request in progress, so its answer is awaited, longer than other work at a stop.
#[tokio::test(start_paused = true)]
async fn open_request_is_awaited_when_budget_is_spent() {
    let served = Arc::new(AtomicU64::new(0));
    // Carol's first request waits, until the others leave too little for it.
    let mut harness = crew(17_000, &served).await;
    harness.spec.limits.stop_timeout = Duration::from_secs(5);
    let counter = Arc::clone(&served);
    harness.set_model_fn("bob", move |request, count| {
        counter.fetch_add(USED.total(), Ordering::Relaxed);
        async move {
            // Alice goes on during his second request.
            tokio::time::sleep(Duration::from_secs(if count == 1 { 60 } else { 0 })).await;
            using(diligent(&request), USED)
        }
    });
    let outcome = harness.run_once().await;
    assert_eq!(outcome.end, TeamEnd::BudgetSpent);
    let book = harness.stores.ledger.read().await.unwrap();
    let unconfirmed: u64 = book.spent().values().map(|spend| spend.unconfirmed).sum();
    assert_eq!((unconfirmed, used(&harness).await), (0, served.load(Ordering::Relaxed)));
    assert_eq!((harness.sent_by("bob").len(), harness.sent_by("carol").len()), (2, 0));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn usd_budget_stops_lead_and_teammates() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.output_tokens_max = 1_000;
    harness.spec.goal = Some("a goal".to_owned());
    harness.spec.budget = Budget { tokens: None, usd: Some(0.10) };
    let price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
    harness.spec.prices = Prices::from([("lead".to_owned(), price), ("alice".to_owned(), price)]);
    // 3,000 tokens read and 500 written cost 1.65 cents.
    let used = Usage { input_tokens: 3_000, output_tokens: 500, ..Usage::default() };
    harness.diligent(&["alice"]);
    harness.set_model_fn("lead", move |_, count| async move {
        using(call(&[("nap", json!({"note": format!("turn {count}")}))]), used)
    });
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, harness.requests()), (TeamEnd::BudgetSpent, 5), "{}", harness.event_lines());
    assert!(outcome.error.unwrap().starts_with("The budget of $0.10 is spent: $0.0825 were used"));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn usage_report_accumulates_over_launches() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move {
        match task_at_hand(&request) {
            Some(task) => using(call(&[complete(task)]), USED),
            None => say("nothing"),
        }
    });
    for launch in 1..=2_u64 {
        harness.tasks(&["a"]).await;
        let team = harness.launch(once()).await;
        let live = Arc::clone(team.live());
        harness.ended(team).await;
        let reported = live.teammates()["alice"].tokens;
        assert_eq!(reported, used(&harness).await, "launch {launch}");
        assert!(reported >= launch * USED.total(), "{reported}");
    }
}

/// The tokens that the ledger counted for a member.
async fn used_by(harness: &TestTeam, who: &str) -> u64 {
    let book = harness.stores.ledger.read().await.unwrap();
    book.spent().iter().filter(|(account, _)| account.teammate == who).map(|(_, spend)| spend.usage.total()).sum()
}

fn cap_member(harness: &mut TestTeam, who: &str, tokens: Option<u64>) {
    let member = harness.spec.members.iter_mut().find(|member| member.name.as_str() == who).unwrap();
    member.budget.tokens = tokens;
}

fn spent_members(harness: &TestTeam) -> Vec<String> {
    let events = harness.event_kinds().into_iter();
    let spent = events.filter_map(|event| match event {
        EventKind::BudgetSpent { teammate, .. } => Some(teammate.unwrap_or_default()),
        _ => None,
    });
    spent.collect()
}

#[tokio::test(start_paused = true)]
async fn member_at_its_budget_stops_and_team_goes_on() {
    let served = Arc::new(AtomicU64::new(0));
    let mut harness = crew(1_000_000, &served).await;
    cap_member(&mut harness, "alice", Some(15_000));
    harness.tasks(&(0..50).map(|_| "more").collect::<Vec<_>>()).await;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 60), "{}", harness.event_lines());
    let of_alice = used_by(&harness, "alice").await;
    assert!((3_000..=15_000).contains(&of_alice), "{of_alice}");
    assert_eq!(used(&harness).await, served.load(Ordering::Relaxed));
    assert_eq!(spent_members(&harness), ["alice"]);
    let waits = harness.event_kinds().into_iter().filter_map(|event| match event {
        EventKind::TeammatePhase { teammate, waiting_for: Some(reason), .. } if teammate == "alice" => {
            Some(reason.to_string())
        }
        _ => None,
    });
    let waits: Vec<String> = waits.collect();
    let start = "a larger budget: the budget of 15000 tokens of alice is spent: ";
    assert!(waits.iter().any(|reason| reason.starts_with(start)), "{waits:?}");
    let mail = harness.transcript("lead").await.join("\n");
    assert!(mail.contains("I cannot work any more: the budget of 15000 tokens of alice is spent: "), "{mail}");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn run_ends_when_all_members_are_at_their_budgets() {
    let served = Arc::new(AtomicU64::new(0));
    let mut harness = crew(1_000_000, &served).await;
    harness.spec.budget.tokens = None;
    for who in ["alice", "bob", "carol"] {
        cap_member(&mut harness, who, Some(15_000));
    }
    harness.tasks(&(0..50).map(|_| "more").collect::<Vec<_>>()).await;
    let outcome = harness.run_once().await;
    assert_eq!(outcome.end, TeamEnd::BudgetSpent, "{}", harness.event_lines());
    let trouble = outcome.error.unwrap();
    assert!(trouble.contains("the budget of 15000 tokens of alice is spent: "), "{trouble}");
    let mut spent = spent_members(&harness);
    spent.sort();
    assert_eq!(spent, ["alice", "bob", "carol"]);
    for who in ["alice", "bob", "carol"] {
        let used = used_by(&harness, who).await;
        assert!((1_000..=15_000).contains(&used), "{who}: {used}");
    }
    assert!(harness.shared().await.note.starts_with("the budget of 15000 tokens of "), "{:?}", harness.shared().await);

    // The usage survives the launch.
    let before = used(&harness).await;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, used(&harness).await), (TeamEnd::BudgetSpent, before));
    // A kept team ends, too.
    harness.click(Mode::Continuous).await;
    let team = harness.launch(super::harness::start_continuous()).await;
    assert_eq!(harness.ended(team).await.end, TeamEnd::BudgetSpent, "{}", harness.event_lines());
    let shared = harness.shared().await;
    assert_eq!((shared.desired, shared.note.contains(" is spent: ")), (Mode::Pause, true), "{shared:?}");
    assert_eq!(used(&harness).await, before);

    cap_member(&mut harness, "bob", None);
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 60), "{}", harness.event_lines());
    harness.check_invariants().await;
}

/// The tokens that the ledger counted for a task.
async fn used_for(harness: &TestTeam, task: u64) -> u64 {
    let book = harness.stores.ledger.read().await.unwrap();
    book.tokens_by_task().get(&TaskId(task)).copied().unwrap_or_default()
}

/// The tokens that the first request of a member with this model could use, as its budget or its task's cap of one token says.
async fn reserved(model: ModelSpec, has_cap: bool) -> u64 {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.output_tokens_max = 200;
    harness.set_model_fn(&model.model, |request, _| async move { diligent(&request) });
    harness.spec.members[0].model = model;
    if has_cap {
        harness.spec.limits.task_tokens_max = 1;
    } else {
        cap_member(&mut harness, "alice", Some(1));
    }
    harness.tasks(&["a"]).await;
    let error = harness.run_once().await.error.unwrap_or_default();
    let cap = harness.task(1).await.cap_reached;
    let of_member = || error.split("could use ").nth(1)?.split(|character: char| !character.is_ascii_digit()).next();
    cap.map_or_else(|| of_member().unwrap().parse().unwrap(), |cap| cap.tokens_needed)
}

/// A tokenizer is loaded when it is first needed, so the first requests count each byte.
#[tokio::test(start_paused = true)]
async fn texts_count_exactly_with_any_budget_or_cap() {
    for has_cap in [true, false] {
        let by_bytes = reserved(ModelSpec::new("test", "gpt-5"), has_cap).await;
        let begun = std::time::Instant::now();
        while reserved(ModelSpec::new("openai", "gpt-5"), has_cap).await + 1_000 > by_bytes {
            assert!(begun.elapsed() < Duration::from_secs(60), "never below {by_bytes}, with a cap: {has_cap}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Two teammates whose models never finish task 1, and finish all others.
async fn crew_with_endless_task() -> TestTeam {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.spec.limits.model.output_tokens_max = 200;
    for who in ["alice", "bob"] {
        harness.set_model_fn(who, move |request, count| async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let endless = || call(&[("nap", json!({"note": format!("turn {count}")}))]);
            using(if task_at_hand(&request) == Some(1) { endless() } else { diligent(&request) }, USED)
        });
    }
    harness.tasks(&["endless", "b", "c"]).await;
    harness
}

#[tokio::test(start_paused = true)]
async fn task_at_its_cap_is_released_until_cap_is_raised() {
    let mut harness = crew_with_endless_task().await;
    harness.spec.limits.task_tokens_max = 17_000;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 2), "{}", harness.event_lines());
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures, task.attempt), (TaskStatus::Pending, 0, 1), "{task:?}");
    let cap = task.cap_reached.unwrap();
    assert!(cap.tokens_max == 17_000 && cap.tokens_needed > 17_000, "{cap:?}");
    assert!(task.result.unwrap().summary.starts_with("the task reached its cap of 17000 tokens: its attempts used "));
    let used = used_for(&harness, 1).await;
    assert!((3_000..=17_000).contains(&used), "{used}");
    assert!(spent_members(&harness).is_empty());

    let outcome = harness.run_once().await;
    assert_eq!((outcome.task_counts.pending, harness.task(1).await.attempt), (1, 1), "it is not claimed again");
    // A higher cap of the team, then a higher cap of the task.
    harness.spec.limits.task_tokens_max = 18_000;
    harness.run_once().await;
    let task = harness.task(1).await;
    assert_eq!((task.attempt, task.cap_reached.unwrap().tokens_max), (2, 18_000));
    let edit = TaskEdit { tokens_max: Some(25_000), ..TaskEdit::default() };
    let by = Actor::new("human", ActorKind::Person);
    harness.stores.board.change(TaskId(1), Change::Edit(edit), &by).await.unwrap();
    harness.run_once().await;
    let task = harness.task(1).await;
    assert_eq!((task.attempt, task.cap_reached.unwrap().tokens_max, task.failures), (3, 25_000, 0));
    let used = used_for(&harness, 1).await;
    assert!((15_000..=25_000).contains(&used), "{used}");
    harness.check_invariants().await;
}

/// A person raises the cap during the work: the next request goes on.
#[tokio::test(start_paused = true)]
async fn cap_that_is_raised_during_attempt_holds_at_once() {
    let harness = crew_with_endless_task().await;
    let board = Arc::clone(&harness.stores.board);
    let set_cap = async |tokens_max| {
        let edit = TaskEdit { tokens_max: Some(tokens_max), ..TaskEdit::default() };
        let by = Actor::new("human", ActorKind::Person);
        board.change(TaskId(1), Change::Edit(edit), &by).await.unwrap();
    };
    set_cap(17_000).await;
    let team = harness.launch(once()).await;
    harness.wait_until("the attempt has begun", |harness| harness.requests() > 0).await;
    set_cap(30_000).await;
    harness.ended(team).await;
    let task = harness.task(1).await;
    assert_eq!((task.attempt, task.cap_reached.unwrap().tokens_max), (1, 30_000));
    let used = used_for(&harness, 1).await;
    assert!((17_001..=30_000).contains(&used), "{used}");
    harness.check_invariants().await;
}
