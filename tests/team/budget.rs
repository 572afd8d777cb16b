//! The budget of a team: never exceeded, kept across launches, and no work is lost at the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brigade::domain::budget::{Budget, Price, Prices};
use brigade::domain::event::EventKind;
use brigade::domain::state::{Mode, SetBy};
use brigade::domain::task::TaskStatus;
use brigade::domain::transcript::Usage;
use brigade::ports::ModelResponse;
use brigade::team::handle::TeamEnd;
use serde_json::json;

use super::harness::{ModelResult, TestTeam, call, complete, diligent, once, say, task_at_hand};

/// The usage of each answer.
const USED: Usage = Usage { input_tokens: 900, output_tokens: 100, cache_read_tokens: 0, cache_write_tokens: 0 };

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
