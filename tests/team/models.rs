//! Models that fail, forget, reach limits, or call unknown tools.

use std::time::Duration;

use brigade::domain::agent::transcript::Block;
use brigade::domain::log::event::EventKind;
use brigade::domain::team::message::MessageType;
use brigade::domain::team::model_spec::ModelSpec;
use brigade::domain::team::state::Mode;
use brigade::domain::team::waiting_for::WaitingFor;
use brigade::ports::{ModelError, ModelRequest, ModelResponse, StopReason};
use brigade::team::handle::{TeamCommand, TeamEnd};
use serde_json::json;

use super::harness::{
    ModelResult, TestTeam, answer, block_text, call, complete, diligent, has_new_task, once, say, start_continuous,
};

fn temporary(retry_after_s: Option<u64>) -> ModelResult {
    let retry_after = retry_after_s.map(Duration::from_secs);
    Err(ModelError::Temporary { message: "overloaded".to_owned(), retry_after })
}

#[tokio::test(start_paused = true)]
async fn temporary_model_error_is_retried_after_wait() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        match count {
            0 => temporary(Some(7)),
            1 => temporary(Some(61)),
            2 => temporary(None),
            _ => diligent(&request),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let waits: Vec<Duration> = sent.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    for (wait, asked_s, most_s) in [(waits[0], 7.0, 7.71), (waits[1], 61.0, 66.01)] {
        assert!(
            (asked_s..most_s).contains(&wait.as_secs_f64()),
            "the wait is shorter than asked, or much longer: {wait:?}"
        );
    }
    assert!(waits[2] >= Duration::from_millis(500) && waits[2] <= Duration::from_secs(3), "{:?}", waits[2]);
    assert_eq!(harness.count(|event| matches!(event, EventKind::ModelRetried { .. })), 3);
    assert_eq!((harness.task(1).await.attempt, harness.task(1).await.failures), (1, 0));
}

/// Neither kind of error uses the retries of the other.
#[tokio::test(start_paused = true)]
async fn invalid_answers_have_retries_of_their_own() {
    for (outages, invalid, failures) in [(3, 3, 0), (5, 3, 0), (3, 4, 1)] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.spec.limits.model.retries_max = 5;
        harness.set_model_fn("alice", move |request, count| async move {
            match count {
                _ if count < outages => temporary(None),
                _ if count < outages + invalid => Err(ModelError::InvalidAnswer("is cut".to_owned())),
                _ => diligent(&request),
            }
        });
        harness.tasks(&["a"]).await;
        assert_eq!(harness.run_once().await.task_counts.completed, 1);
        assert_eq!(harness.task(1).await.failures, failures, "{outages}, {invalid}: {}", harness.event_lines());
    }
}

#[tokio::test(start_paused = true)]
async fn retries_exhausted_release_claim_and_back_off() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.retries_max = 2;
    harness.set_model_fn("alice", |request, count| async move {
        if count < 9 { temporary(Some(1)) } else { diligent(&request) }
    });
    harness.tasks(&["a"]).await;
    let begun = tokio::time::Instant::now();
    let outcome = harness.run_once().await;
    assert_eq!((outcome.task_counts.completed, outcome.error), (1, None));
    let task = harness.task(1).await;
    assert_eq!((task.attempt, task.failures), (4, 0), "not three rounds of three requests, or failures counted");
    let waited = begun.elapsed();
    let expected = Duration::from_secs(15 + 30 + 60 + 6);
    assert!(waited >= expected && waited < expected + Duration::from_secs(5), "the wait did not double: {waited:?}");
    let lead = harness.transcript("lead").await.join("\n");
    assert_eq!(lead.matches("My model gave no answer: overloaded").count(), 1, "not reported once: {lead}");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn long_retry_after_releases_claim_and_is_kept() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        if count == 0 { temporary(Some(5000)) } else { diligent(&request) }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    assert_eq!(sent[1].at - sent[0].at, Duration::from_secs(5000));
    assert_eq!((harness.task(1).await.attempt, harness.task(1).await.failures), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn run_with_all_models_failed_ends_with_reason() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        harness.set_model_fn(who, |_, _| async { Err(ModelError::Final("the key is not valid".to_owned())) });
    }
    harness.tasks(&["a", "b", "c"]).await;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.pending), (TeamEnd::SessionOver, 3));
    let trouble = outcome.error.unwrap();
    assert_eq!(trouble, "No teammate can work (alice, bob: the key is not valid).");
    assert_eq!(harness.requests(), 2, "a final error is not retried");
    assert_eq!(harness.task(1).await.failures, 0);
    let is_warning = |event: &EventKind| matches!(event, EventKind::Warning { text, .. } if text.contains("not valid"));
    assert_eq!(harness.count(is_warning), 1, "two members meet the same error");
}

#[tokio::test(start_paused = true)]
async fn unplanned_goal_is_reported_as_trouble() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("the moon".to_owned());
    harness.set_model_fn("lead", |_, _| async { Err(ModelError::Final("no credit".to_owned())) });
    let outcome = harness.run_once().await;
    assert_eq!(outcome.end, TeamEnd::SessionOver);
    assert_eq!(outcome.error.as_deref(), Some("The lead cannot work (lead: no credit)."));
}

#[tokio::test(start_paused = true)]
async fn pause_then_continuous_retries_failed_model() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        if count == 0 { Err(ModelError::Final("no credit".to_owned())) } else { diligent(&request) }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert_eq!(harness.requests(), 1, "a request was repeated");
    assert_eq!(team.live().teammates()["alice"].waiting_for, Some(WaitingFor::Model("no credit".into())));
    harness.click(Mode::Pause).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    harness.click(Mode::Continuous).await;
    harness.wait_for_status(1, brigade::domain::task::TaskStatus::Completed).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

/// Work without a task has no end that lets the first model answer again.
#[tokio::test(start_paused = true)]
async fn first_model_is_asked_after_fallback_failed() {
    for is_permanent in [false, true] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.spec.limits.model.retries_max = 0;
        harness
            .set_model_fn("alice", |_, count| async move { if count == 0 { temporary(None) } else { say("I see.") } });
        harness.set_model_fn("spare", move |_, _| async move {
            if is_permanent { Err(ModelError::Final("gone".to_owned())) } else { temporary(None) }
        });
        harness.spec.members[0].model.fallback = vec![ModelSpec::new("test", "spare")];
        let team = harness.launch(start_continuous()).await;
        harness.mail("human", "alice", "please answer").await;
        harness.wait_until("both were asked", |harness| harness.requests() == 2).await;
        if is_permanent {
            let failed = |_: &TestTeam| team.live().teammates()["alice"].waiting_for.is_some();
            harness.wait_until("the error is permanent", failed).await;
            harness.click(Mode::Pause).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            harness.click(Mode::Continuous).await;
        }
        let said = |harness: &TestTeam| harness.count(|event| matches!(event, EventKind::Said { .. })) == 1;
        harness.wait_until("the first one answers", said).await;
        assert_eq!(harness.requests(), 3, "{}", harness.event_lines());
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
    }
}

#[tokio::test(start_paused = true)]
async fn teammate_with_failed_model_can_be_stopped() {
    for way in ["now", "person", "lead"] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.set_model_fn("alice", |_, _| async { Err(ModelError::Final("no credit".to_owned())) });
        harness.tasks(&["a"]).await;
        let team = harness.launch(start_continuous()).await;
        let down =
            |harness: &TestTeam| harness.requests() == 1 && team.live().teammates()["alice"].waiting_for.is_some();
        harness.wait_until("the model is down", down).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        match way {
            "now" => harness.ask_to_stop("alice", true).await,
            from => {
                let from = if from == "lead" { "lead" } else { "human" };
                harness.mail("human", "alice", "before it").await;
                harness.mail_of(MessageType::ShutdownRequest, from, "alice", Some("stop-1")).await;
            }
        }
        let stopped =
            |event: &EventKind| matches!(event, EventKind::TeammateStopped { teammate, .. } if teammate == "alice");
        harness.wait_until("stopped", |harness| harness.count(stopped) == 1).await;
        assert_eq!(harness.requests(), 1, "{way}: the model got a request");
        let task = harness.task(1).await;
        assert_eq!((task.status, task.failures), (brigade::domain::task::TaskStatus::Pending, 0), "{way}");
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
        harness.check_invariants().await;
    }
}

const LONG_NOTE: &str = "a long note that fills the context, word by word, until there is no more room for it at all. ";

/// Calls the slow tool. The answer reports no usage, so its tokens are estimated.
fn nap_calls(count: usize) -> ModelResult {
    let asked = call(&[("nap", json!({"note": format!("{count}: {}", LONG_NOTE.repeat(4))}))]);
    asked.map(|response| ModelResponse { usage: None, ..response })
}

fn complete_and_end(request: &ModelRequest) -> ModelResult {
    if super::harness::text_of(request).contains("task #1 is completed") { say("Done.") } else { call(&[complete(1)]) }
}

#[tokio::test(start_paused = true)]
async fn compacted_context_starts_with_identity_block() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.spec.limits.model.compact_at_tokens = 1_000;
    harness.diligent(&["bob"]);
    harness.set_model_fn("alice", |request, count| async move {
        if request.is_for_summary() {
            let last = request.messages.last().unwrap().content.last().map(block_text).unwrap();
            assert_eq!(
                last,
                brigade::domain::team::team_spec::Prompts::default().compact,
                "the request lacks the compaction prompt"
            );
            return say("SUMMARY of what I did");
        }
        if count < 25 { nap_calls(count) } else { complete_and_end(&request) }
    });
    let mut task = super::harness::new_task("a very special subject");
    task.owner = Some("alice".to_owned());
    harness.create(vec![task]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let compacted = harness.count(|event| matches!(event, EventKind::Compacted { .. }));
    assert!(compacted >= 2, "{compacted}");
    let sent = harness.sent_by("alice");
    let summaries = sent.iter().filter(|sent| sent.request.is_for_summary()).count();
    assert_eq!(summaries, compacted);
    let at = sent.iter().position(|sent| sent.request.is_for_summary()).unwrap();
    for after in sent[at + 1..].iter().filter(|sent| !sent.request.is_for_summary()) {
        let first: Vec<String> = after.request.messages[0].content.iter().map(block_text).collect();
        assert!(first[0].starts_with("<identity>You are 'alice', role: coder, team: crew"), "{first:?}");
        assert!(first[0].contains("bob (coder)") && first[0].contains("a very special subject"), "{first:?}");
        assert!(first[1].starts_with("<summary>") && first[1].contains("SUMMARY"), "{first:?}");
    }
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn context_too_long_is_compacted_or_fails_the_attempt() {
    for (times, completed) in [(1, 1), (2, 1), (usize::MAX, 0)] {
        let mut harness = TestTeam::new(&["alice"]);
        let met = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        harness.set_model_fn("alice", move |request, count| {
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
                    0..3 => nap_calls(count),
                    _ => complete_and_end(&request),
                }
            }
        });
        harness.tasks(&["a"]).await;
        let outcome = harness.run_once().await;
        assert_eq!(outcome.task_counts.completed, completed, "{times}: {}", harness.event_lines());
        assert_eq!(outcome.task_counts.failed, 1 - completed, "{}", harness.event_lines());
        assert!(harness.requests() < 24, "{} requests", harness.requests());
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_model_skips_compaction() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.compact_at_tokens = 500;
    harness.spec.limits.model.retries_max = 0;
    harness.set_model_fn("alice", |request, count| async move {
        match count {
            _ if request.is_for_summary() && count < 8 => temporary(None),
            _ if request.is_for_summary() => say("SUMMARY"),
            0..6 => nap_calls(count),
            _ => complete_and_end(&request),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let transcript = harness.transcript("alice").await;
    let summaries: Vec<&String> = transcript.iter().filter(|line| line.starts_with("= ")).collect();
    assert!(!summaries.is_empty() && summaries.iter().all(|line| *line == "= SUMMARY"), "{summaries:?}");
}

#[tokio::test(start_paused = true)]
async fn turns_per_task_are_bounded() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.turns_max = 8;
    harness.set_model_fn("alice", |_, count| async move { call(&[("nap", json!({ "count": count }))]) });
    let mut task = super::harness::new_task("endless");
    task.max_attempts = Some(1);
    harness.create(vec![task]).await;
    assert_eq!(harness.run_once().await.task_counts.failed, 1);
    assert_eq!(harness.requests(), 8);
}

#[tokio::test(start_paused = true)]
async fn tool_call_in_cut_or_refused_answer_is_not_run() {
    for stop in [StopReason::MaxTokens, StopReason::Refusal] {
        let mut harness = TestTeam::new(&["alice"]);
        let stops = stop.clone();
        harness.set_model_fn("alice", move |request, count| {
            let stop = stops.clone();
            async move {
                if count == 0 {
                    let input = json!({"note": "never"});
                    return answer(vec![Block::tool_use("x", "nap", input)], stop);
                }
                if has_new_task(&request) || count < 3 { call(&[complete(1)]) } else { say("Done.") }
            }
        });
        harness.tasks(&["a"]).await;
        assert_eq!(harness.run_once().await.task_counts.completed, 1, "{stop:?}");
        assert!(harness.notes().is_empty(), "{:?}", harness.notes());
        let second = harness.sent_by("alice")[1].text();
        let reminded = second.contains("You still hold task #1");
        assert_eq!(reminded, stop == StopReason::Refusal, "a refusal did not end the turn: {second}");
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn whole_calls_of_cut_answer_are_run() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            0 => {
                let nap = |id: &str, input| Block::tool_use(id, "nap", input);
                let calls = vec![nap("x", json!({"note": "whole"})), nap("y", json!("{\"note\": \"and on and on"))];
                answer(calls, StopReason::MaxTokens)
            }
            1 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    assert_eq!(harness.notes(), ["alice begins whole", "alice ended whole"]);
    let second = harness.sent_by("alice")[1].text();
    assert!(second.contains("cut by its length limit in this call") && !second.contains("on and on"), "{second}");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn cut_answer_with_call_as_text_is_not_continued() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        let cut = |text: &str| answer(vec![Block::Text { text: text.to_owned() }], StopReason::MaxTokens);
        match count {
            0 => cut("<function=nap>\n</function>\n<function=nap>"),
            1 => cut("I begin with"),
            _ => call(&[complete(1)]),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let last = |request: usize| harness.sent_by("alice")[request].last().iter().map(block_text).collect::<String>();
    assert!(last(1).contains("as text") && !last(1).contains("Continue from there"), "{}", last(1));
    assert!(last(2).contains("Continue from there"), "{}", last(2));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn tool_that_is_not_offered_still_works() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            0 => call(&[("read_inbox", json!({})), ("goal_done", json!({"summary": "x"}))]),
            1 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["a"]).await;
    harness.run_once().await;
    let sent = harness.sent_by("alice");
    assert!(sent[0].request.tools.iter().all(|tool| tool.name != "read_inbox"));
    let text = sent[1].text();
    assert!(!text.contains("There is no tool `read_inbox`") && text.contains("There is no tool `goal_done`"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn invalid_tool_calls_return_errors_and_others_run() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
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
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let text = sent[1].text();
    assert!(text.contains("There is no tool `teleport`. There are: bash"), "{text}");
    assert_eq!(
        sent[1].last().iter().filter(|block| matches!(block, Block::ToolResult { is_error: true, .. })).count(),
        3
    );
    assert!(sent[2].text().contains("cut by its length limit"), "{}", sent[2].text());
    assert_eq!(harness.notes().len(), 2, "an invalid call stopped the others");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn tool_call_as_text_is_not_run_and_noted_once() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            0 | 2 | 3 => say("```json\n{\"task_id\": 1, \"status\": \"completed\", \"result\": \"done\"}\n```"),
            1 => call(&[("nap", json!({"note": "awake"}))]),
            4 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let told: Vec<bool> =
        (0..5).map(|index| block_text(sent[index].last().last().unwrap()).contains("nothing was called")).collect();
    assert_eq!(told, [false, true, false, true, false], "the notice is not shown once for each group of written calls");
    assert!(
        block_text(sent[4].last().last().unwrap()).contains("You still hold task #1"),
        "the member did not end its work"
    );
    assert_eq!((harness.task(1).await.attempt, harness.task(1).await.failures), (1, 0));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn lead_plans_goal_after_model_recovers() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.retries_max = 1;
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("a thing".to_owned());
    harness.set_model_fn("lead", |_, count| async move {
        match count {
            0..4 => temporary(None),
            4 => call(&[("task_create", json!({"subject": "the thing", "description": "do it"}))]),
            _ => say("Reported."),
        }
    });
    let team = harness.launch(once()).await;
    let outcome = harness.ended(team).await;
    assert_eq!(
        (outcome.task_counts.completed, outcome.summary.as_str()),
        (1, "Reported."),
        "{}",
        harness.event_lines()
    );
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn empty_answer_adds_no_message() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            0 => answer(Vec::new(), StopReason::EndTurn),
            1 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let second = &harness.sent_by("alice")[1];
    assert_eq!(second.request.messages.len(), 1, "{}", second.text());
    assert!(second.text().contains("You still hold task #1"), "{}", second.text());
    harness.check_invariants().await;
}
