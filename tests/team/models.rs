//! Models that fail, forget, run into limits, or ask for what there is not.

use std::time::Duration;

use brigade::domain::event::Fact;
use brigade::domain::message::MessageType;
use brigade::domain::transcript::Block;
use brigade::domain::waiting_for::WaitingFor;
use brigade::ports::{ModelError, ModelRequest, ModelResponse, StopReason};
use brigade::team::handle::{Command, End};
use serde_json::json;

use super::stage::{Answer, Stage, answer, block_text, call, complete, diligent, has_new_task, on_and_on, once, say};

fn temporary(retry_after_s: Option<u64>) -> Answer {
    let retry_after = retry_after_s.map(Duration::from_secs);
    Err(ModelError::Temporary { message: "overloaded".to_owned(), retry_after })
}

#[tokio::test(start_paused = true)]
async fn temporary_errors_are_retried_as_the_provider_asks() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, count| async move {
        match count {
            0 => temporary(Some(7)),
            1 => temporary(Some(61)),
            2 => temporary(None),
            _ => diligent(&request),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let sent = stage.sent_by("alice");
    let waits: Vec<Duration> = sent.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    for (wait, asked_s, most_s) in [(waits[0], 7.0, 7.71), (waits[1], 61.0, 66.01)] {
        assert!((asked_s..most_s).contains(&wait.as_secs_f64()), "never sooner than asked, a little later: {wait:?}");
    }
    assert!(waits[2] >= Duration::from_millis(500) && waits[2] <= Duration::from_secs(3), "{:?}", waits[2]);
    assert_eq!(stage.count(|fact| matches!(fact, Fact::ModelRetried { .. })), 3);
    assert_eq!((stage.task(1).await.attempt, stage.task(1).await.failures), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn past_the_limit_the_claim_is_given_back_and_the_teammate_comes_back_later() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.model_retries_max = 2;
    stage.brain(
        "alice",
        |request, count| async move { if count < 9 { temporary(Some(1)) } else { diligent(&request) } },
    );
    stage.tasks(&["a"]).await;
    let begun = tokio::time::Instant::now();
    let outcome = stage.run_once().await;
    assert_eq!((outcome.tally.completed, outcome.trouble), (1, None));
    let task = stage.task(1).await;
    assert_eq!((task.attempt, task.failures), (4, 0), "three rounds of three requests, none counted");
    let waited = begun.elapsed();
    let expected = Duration::from_secs(15 + 30 + 60 + 6);
    assert!(waited >= expected && waited < expected + Duration::from_secs(5), "its waits double: {waited:?}");
    let lead = stage.transcript("lead").await.join("\n");
    assert_eq!(lead.matches("My model gave no answer: overloaded").count(), 1, "told once: {lead}");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_longer_than_a_turn_may_take_gives_the_claim_back_and_is_honoured() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, count| async move {
        if count == 0 { temporary(Some(5000)) } else { diligent(&request) }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let sent = stage.sent_by("alice");
    assert_eq!(sent[1].at - sent[0].at, Duration::from_secs(5000));
    assert_eq!((stage.task(1).await.attempt, stage.task(1).await.failures), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn when_all_models_are_down_for_good_a_run_ends_and_says_why() {
    let mut stage = Stage::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        stage.brain(who, |_, _| async { Err(ModelError::Final("the key is not valid".to_owned())) });
    }
    stage.tasks(&["a", "b", "c"]).await;
    let outcome = stage.run_once().await;
    assert_eq!((outcome.end, outcome.tally.pending), (End::SessionOver, 3));
    let trouble = outcome.trouble.unwrap();
    assert_eq!(trouble, "Nobody is left who can work (alice: the key is not valid; bob: the key is not valid).");
    assert_eq!(stage.requests(), 2, "a final error is not retried");
    assert!((1..=3).all(|_| true) && stage.task(1).await.failures == 0);
    let stopped = |fact: &Fact| matches!(fact, Fact::TeamStopped { reason, .. } if reason.contains(&trouble));
    assert_eq!(stage.count(stopped), 1);
}

#[tokio::test(start_paused = true)]
async fn a_goal_that_could_not_be_planned_is_no_success() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("the moon".to_owned());
    stage.brain("lead", |_, _| async { Err(ModelError::Final("no credit".to_owned())) });
    let outcome = stage.run_once().await;
    assert_eq!(outcome.end, End::SessionOver);
    assert_eq!(outcome.trouble.as_deref(), Some("The lead could not do its part (lead: no credit)."));
}

#[tokio::test(start_paused = true)]
async fn a_person_who_lets_the_team_go_on_gives_models_another_chance() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, count| async move {
        if count == 0 { Err(ModelError::Final("no credit".to_owned())) } else { diligent(&request) }
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert_eq!(stage.requests(), 1, "nobody asks again by itself");
    assert_eq!(team.live().teammates()["alice"].waiting_for, Some(WaitingFor::Model("no credit".into())));
    stage.click(brigade::domain::state::Mode::Pause).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.click(brigade::domain::state::Mode::Continuous).await;
    stage.until_status(1, brigade::domain::task::TaskStatus::Completed).await;
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_teammate_whose_model_is_down_can_still_be_stopped() {
    for way in ["command", "now", "person", "lead"] {
        let mut stage = Stage::new(&["alice"]);
        stage.brain("alice", |_, _| async { Err(ModelError::Final("no credit".to_owned())) });
        stage.tasks(&["a"]).await;
        let team = stage.launch(on_and_on()).await;
        let down = |stage: &Stage| stage.requests() == 1 && team.live().teammates()["alice"].waiting_for.is_some();
        stage.until("its model is down", down).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        let alice = || super::stage::name("alice");
        match way {
            "command" => team.command(Command::StopTeammate { name: alice(), now: false }).await,
            "now" => team.command(Command::StopTeammate { name: alice(), now: true }).await,
            from => {
                let from = if from == "lead" { "lead" } else { "human" };
                stage.mail("human", "alice", "before it").await;
                stage.mail_of(MessageType::ShutdownRequest, from, "alice", Some("stop-1")).await;
            }
        }
        let stopped = |fact: &Fact| matches!(fact, Fact::TeammateStopped { teammate, .. } if teammate == "alice");
        stage.until("stopped", |stage| stage.count(stopped) == 1).await;
        assert_eq!(stage.requests(), 1, "{way}: its model was not asked");
        let task = stage.task(1).await;
        assert_eq!((task.status, task.failures), (brigade::domain::task::TaskStatus::Pending, 0), "{way}");
        team.command(Command::Stop).await;
        stage.ended(team).await;
        stage.check_laws().await;
    }
}

const LONG_NOTE: &str = "a long note that fills the context, word by word, until there is no more room for it at all. ";

/// A provider that does not count tokens, so that they are estimated.
fn naps(count: usize) -> Answer {
    let asked = call(&[("nap", json!({"note": format!("{count}: {}", LONG_NOTE.repeat(4))}))]);
    asked.map(|response| ModelResponse { usage: None, ..response })
}

fn complete_and_end(request: &ModelRequest) -> Answer {
    if super::stage::text_of(request).contains("task #1 is completed") { say("Done.") } else { call(&[complete(1)]) }
}

#[tokio::test(start_paused = true)]
async fn after_compaction_the_identity_stands_first_with_roster_and_task() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.spec.limits.compact_at_tokens = 1_000;
    stage.diligent(&["bob"]);
    stage.brain("alice", |request, count| async move {
        if request.is_for_summary() {
            let last = request.messages.last().unwrap().content.last().map(block_text).unwrap();
            assert_eq!(last, brigade::team::spec::Prompts::default().compact, "asked with the prompt for it");
            return say("SUMMARY of what I did");
        }
        if count < 25 { naps(count) } else { complete_and_end(&request) }
    });
    let mut task = super::stage::new_task("a very special subject");
    task.owner = Some("alice".to_owned());
    stage.create(vec![task]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let compacted = stage.count(|fact| matches!(fact, Fact::Compacted { .. }));
    assert!(compacted >= 2, "{compacted}");
    let sent = stage.sent_by("alice");
    let summaries = sent.iter().filter(|sent| sent.request.is_for_summary()).count();
    assert_eq!(summaries, compacted);
    let at = sent.iter().position(|sent| sent.request.is_for_summary()).unwrap();
    for after in sent[at + 1..].iter().filter(|sent| !sent.request.is_for_summary()) {
        let first: Vec<String> = after.request.messages[0].content.iter().map(block_text).collect();
        assert!(first[0].starts_with("<identity>You are 'alice', role: coder, team: crew"), "{first:?}");
        assert!(first[0].contains("- bob (role: coder)") && first[0].contains("a very special subject"), "{first:?}");
        assert!(first[1].starts_with("<summary>") && first[1].contains("SUMMARY"), "{first:?}");
    }
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_context_that_is_too_long_is_mended_and_one_beyond_mending_ends() {
    for (times, completed) in [(1, 1), (2, 1), (usize::MAX, 0)] {
        let mut stage = Stage::new(&["alice"]);
        let met = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        stage.brain("alice", move |request, count| {
            let met = std::sync::Arc::clone(&met);
            async move {
                let is_summary = request.is_for_summary();
                if count >= 3 && met.load(std::sync::atomic::Ordering::Relaxed) < times {
                    met.fetch_add(usize::from(!is_summary), std::sync::atomic::Ordering::Relaxed);
                    return Err(ModelError::ContextTooLong {
                        message: "too many tokens".to_owned(),
                        window_tokens: None,
                    });
                }
                match count {
                    _ if is_summary => say("SUMMARY"),
                    0..3 => naps(count),
                    _ => complete_and_end(&request),
                }
            }
        });
        stage.tasks(&["a"]).await;
        let outcome = stage.run_once().await;
        assert_eq!(outcome.tally.completed, completed, "{times}: {}", stage.story());
        assert!(stage.requests() < 12, "{} requests", stage.requests());
        assert_eq!(outcome.trouble.is_some(), completed == 0);
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_compaction_where_the_model_is_out_of_reach() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.compact_at_tokens = 500;
    stage.spec.limits.model_retries_max = 0;
    stage.brain("alice", |request, count| async move {
        match count {
            _ if request.is_for_summary() && count < 8 => temporary(None),
            _ if request.is_for_summary() => say("SUMMARY"),
            0..6 => naps(count),
            _ => complete_and_end(&request),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let transcript = stage.transcript("alice").await;
    let summaries: Vec<&String> = transcript.iter().filter(|line| line.starts_with("= ")).collect();
    assert!(!summaries.is_empty() && summaries.iter().all(|line| *line == "= SUMMARY"), "{summaries:?}");
}

#[tokio::test(start_paused = true)]
async fn turns_are_bounded() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.turns_max = 8;
    stage.brain("alice", |_, _| async { call(&[("nap", json!({}))]) });
    let mut task = super::stage::new_task("endless");
    task.max_attempts = Some(1);
    stage.create(vec![task]).await;
    assert_eq!(stage.run_once().await.tally.failed, 1);
    let requests = stage.requests();
    assert!((8..=14).contains(&requests), "8 turns, a reminder, a few more: {requests}");
}

#[tokio::test(start_paused = true)]
async fn a_call_in_an_answer_that_was_cut_or_refused_is_not_made() {
    for stop in [StopReason::MaxTokens, StopReason::Refusal] {
        let mut stage = Stage::new(&["alice"]);
        let stops = stop.clone();
        stage.brain("alice", move |request, count| {
            let stop = stops.clone();
            async move {
                if count == 0 {
                    let input = json!({"note": "never"});
                    return answer(vec![Block::ToolUse { id: "x".into(), name: "nap".into(), input }], stop);
                }
                if has_new_task(&request) || count < 3 { call(&[complete(1)]) } else { say("Done.") }
            }
        });
        stage.tasks(&["a"]).await;
        assert_eq!(stage.run_once().await.tally.completed, 1, "{stop:?}");
        assert!(stage.notes().is_empty(), "{:?}", stage.notes());
        let second = stage.sent_by("alice")[1].text();
        let reminded = second.contains("You still hold task #1");
        assert_eq!(reminded, stop == StopReason::Refusal, "a refusal ends the turn: {second}");
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_there_is_not_comes_back_as_an_error() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, count| async move {
        match count {
            0 => call(&[
                ("teleport", json!({})),
                ("task_update", json!({"task_id": "seven"})),
                ("task_get", json!(null)),
                ("nap", json!({"note": "still"})),
            ]),
            1 => answer(vec![Block::text("to be")], StopReason::MaxTokens),
            2 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let sent = stage.sent_by("alice");
    let text = sent[1].text();
    assert!(text.contains("There is no tool `teleport`. There are: bash"), "{text}");
    assert_eq!(
        sent[1].last().iter().filter(|block| matches!(block, Block::ToolResult { is_error: true, .. })).count(),
        3
    );
    assert!(sent[2].text().contains("cut by its length limit"), "{}", sent[2].text());
    assert_eq!(stage.notes().len(), 2, "a wrong call does not stop the others");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_written_as_text_is_not_made_and_its_model_is_told_once() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, count| async move {
        match count {
            0 | 2 | 3 => say("```json\n{\"task_id\": 1, \"status\": \"completed\", \"result\": \"done\"}\n```"),
            1 => call(&[("nap", json!({"note": "awake"}))]),
            4 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let sent = stage.sent_by("alice");
    let told: Vec<bool> =
        (0..5).map(|index| block_text(sent[index].last().last().unwrap()).contains("nothing was called")).collect();
    assert_eq!(told, [false, true, false, true, false], "once for each time it begins to write calls");
    assert!(block_text(sent[4].last().last().unwrap()).contains("You still hold task #1"), "then it ends its work");
    assert_eq!((stage.task(1).await.attempt, stage.task(1).await.failures), (1, 0));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_lead_out_of_reach_for_a_while_plans_once_it_is_back() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.model_retries_max = 1;
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("a thing".to_owned());
    stage.brain("lead", |_, count| async move {
        match count {
            0..4 => temporary(None),
            4 => call(&[("task_create", json!({"subject": "the thing", "description": "do it"}))]),
            _ => say("Reported."),
        }
    });
    let team = stage.launch(once()).await;
    let outcome = stage.ended(team).await;
    assert_eq!((outcome.tally.completed, outcome.summary.as_str()), (1, "Reported."), "{}", stage.story());
    stage.check_laws().await;
}
