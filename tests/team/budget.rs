//! The budget of a team: never exceeded, kept over launches, and reaching it loses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brigade::domain::event::Fact;
use brigade::domain::spend::{Budget, Price, Prices};
use brigade::domain::state::Mode;
use brigade::domain::task::TaskStatus;
use brigade::domain::transcript::Usage;
use brigade::ports::ModelResponse;
use brigade::team::handle::End;
use serde_json::json;

use super::stage::{Answer, Stage, call, complete, diligent, once, say, task_at_hand};

/// What each answer uses.
const USED: Usage = Usage { input_tokens: 900, output_tokens: 100, cache_read_tokens: 0, cache_write_tokens: 0 };

fn using(answer: Answer, used: Usage) -> Answer {
    answer.map(|response| ModelResponse { usage: Some(used), ..response })
}

/// Three teammates with ten tasks; every request is counted in `served`, as its provider would.
async fn crew(tokens: u64, served: &Arc<AtomicU64>) -> Stage {
    let mut stage = Stage::new(&["alice", "bob", "carol"]);
    stage.spec.limits.output_tokens_max = 200;
    stage.spec.budget = Budget { tokens: Some(tokens), usd: None };
    for who in ["alice", "bob", "carol"] {
        let served = Arc::clone(served);
        stage.brain(who, move |request, _| {
            served.fetch_add(USED.total(), Ordering::Relaxed);
            async move {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                using(diligent(&request), USED)
            }
        });
    }
    stage.tasks(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]).await;
    stage
}

async fn used(stage: &Stage) -> u64 {
    let book = stage.stores.ledger.read().await.unwrap();
    assert_eq!(book.open_requests("crew"), 0);
    book.spent().values().map(|spend| spend.usage.total()).sum()
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_never_exceeded_and_reaching_it_loses_nothing() {
    let served = Arc::new(AtomicU64::new(0));
    let mut stage = crew(12_000, &served).await;
    let outcome = stage.run_once().await;
    assert_eq!(outcome.end, End::BudgetSpent, "{}", stage.story());
    let trouble = outcome.trouble.unwrap();
    assert!(trouble.starts_with("The budget of 12000 tokens is spent: "), "{trouble}");
    let spent = used(&stage).await;
    assert_eq!(spent, served.load(Ordering::Relaxed), "each request is counted once");
    assert!((5_000..=12_000).contains(&spent), "{spent}");
    assert_eq!(stage.count(|fact| matches!(fact, Fact::BudgetSpent { .. })), 1);
    let done = outcome.tally.completed;
    assert!((1..10).contains(&done) && outcome.tally.in_progress + outcome.tally.failed == 0, "{:?}", outcome.tally);
    for id in 1..=10 {
        let task = stage.task(id).await;
        let is_free = task.status == TaskStatus::Pending && task.claim.is_none() && task.failures == 0;
        assert!(is_free || task.status == TaskStatus::Completed, "{task:?}");
    }
    let state = stage.stores.state.read().await.unwrap().unwrap();
    assert_eq!((state.desired, state.current, state.set_by.as_str()), (Mode::Pause, Mode::Pause, "agent"));
    assert!(state.note.contains("budget of 12000 tokens"), "{}", state.note);

    // Not larger: nothing is begun.
    let outcome = stage.run_once().await;
    assert_eq!((outcome.end, used(&stage).await), (End::BudgetSpent, spent));
    // Larger: it goes on where it was.
    stage.spec.budget.tokens = Some(1_000_000);
    let outcome = stage.run_once().await;
    assert_eq!((outcome.end, outcome.tally.completed), (End::SessionOver, 10), "{}", stage.story());
    assert_eq!(used(&stage).await, served.load(Ordering::Relaxed));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_fit_only_one_after_the_other_wait_for_each_other() {
    let served = Arc::new(AtomicU64::new(0));
    // Enough for all there is to do, but not for the most that three requests at once can use.
    let mut stage = crew(40_000, &served).await;
    stage.spec.limits.output_tokens_max = 12_000;
    let outcome = stage.run_once().await;
    assert_eq!((outcome.end, outcome.tally.completed), (End::SessionOver, 10), "{}", stage.story());
    let mut times: Vec<_> =
        ["alice", "bob", "carol"].iter().flat_map(|who| stage.sent_by(who)).map(|sent| sent.at).collect();
    times.sort();
    // Each takes 100 ms: of three in a row, the third began after the first was over.
    assert!(times.windows(3).all(|three| three[2] - three[0] >= std::time::Duration::from_millis(100)), "{times:?}");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn dollars_bound_a_team_too_and_the_lead_is_bound_like_the_others() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.output_tokens_max = 1_000;
    stage.spec.goal = Some("a goal".to_owned());
    stage.spec.budget = Budget { tokens: None, usd: Some(0.10) };
    let price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
    stage.spec.prices = Prices::from([("lead".to_owned(), price), ("alice".to_owned(), price)]);
    // 3,000 tokens read and 500 written cost 1.65 cents.
    let used = Usage { input_tokens: 3_000, output_tokens: 500, ..Usage::default() };
    stage.diligent(&["alice"]);
    stage.brain("lead", move |_, _| async move { using(call(&[("list_teammates", json!({}))]), used) });
    let outcome = stage.run_once().await;
    assert_eq!((outcome.end, stage.requests()), (End::BudgetSpent, 5), "{}", stage.story());
    assert!(outcome.trouble.unwrap().starts_with("The budget of $0.10 is spent: $0.0825 were used"));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_used_is_reported_over_launches() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, _| async move {
        match task_at_hand(&request) {
            Some(task) => using(call(&[complete(task)]), USED),
            None => say("nothing"),
        }
    });
    for launch in 1..=2_u64 {
        stage.tasks(&["a"]).await;
        let team = stage.launch(once()).await;
        let live = Arc::clone(team.live());
        stage.ended(team).await;
        let reported = live.teammates()["alice"].tokens;
        assert_eq!(reported, used(&stage).await, "launch {launch}");
        assert!(reported >= launch * USED.total(), "{reported}");
    }
}
