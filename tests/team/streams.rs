//! Answers that come as streams: who hears them, what holds the team up and what does not, and answers that are cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::event::Fact;
use brigade::domain::transcript::Block;
use brigade::ports::{Listener, ModelClient, ModelError, ModelRequest, Purpose, StopReason};
use brigade::team::words::{Saying, WORDS_BEHIND_MAX};
use serde_json::json;
use tokio::sync::broadcast::error::TryRecvError;

use super::stage::{Answer, Stage, answer, call, complete, diligent, on_and_on, once, say};

/// A model that says some pieces, so far apart, before it does what is diligent.
struct Talker {
    pieces: usize,
    apart: Duration,
    /// How many requests break off before their end.
    cuts: AtomicUsize,
}

#[async_trait]
impl ModelClient for Talker {
    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Answer {
        for number in 0..self.pieces {
            tokio::time::sleep(self.apart).await;
            listener.alive();
            listener.wrote(2);
            listener.text(&format!("{number} "));
        }
        let left = self.cuts.load(Ordering::Relaxed);
        if left > 0 {
            self.cuts.store(left - 1, Ordering::Relaxed);
            return Err(ModelError::Temporary { message: "cut".to_owned(), retry_after: None });
        }
        diligent(&request)
    }
}

fn talker(pieces: usize, apart_s: u64, cuts: usize) -> Arc<Talker> {
    Arc::new(Talker { pieces, apart: Duration::from_secs(apart_s), cuts: AtomicUsize::new(cuts) })
}

#[tokio::test(start_paused = true)]
async fn what_is_said_is_heard_at_once_and_what_was_cut_is_void() {
    let mut stage = Stage::new(&["alice"]);
    stage.model("alice", talker(2, 1, 1));
    let team = stage.launch(once()).await;
    let mut words = team.words();
    stage.tasks(&["a"]).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1);
    let mut heard = Vec::new();
    while let Ok(piece) = words.try_recv() {
        assert_eq!(&*piece.teammate, "alice");
        heard.push(piece.saying.clone());
    }
    let text = |text: &str| Saying::Text(text.to_owned());
    let cut = [Saying::Begun, text("0 "), text("1 ")];
    let whole = [Saying::Begun, text("0 "), text("1 "), Saying::Ended];
    assert_eq!(heard, [&cut[..], &whole, &whole].concat());
}

#[tokio::test(start_paused = true)]
async fn who_does_not_listen_holds_nobody_up() {
    let mut stage = Stage::new(&["alice"]);
    stage.model("alice", talker(3 * WORDS_BEHIND_MAX, 0, 0));
    stage.tasks(&["a"]).await;
    let team = stage.launch(once()).await;
    let mut words = team.words();
    assert_eq!(stage.ended(team).await.tally.completed, 1);
    assert!(matches!(words.try_recv(), Err(TryRecvError::Lagged(lost)) if lost > WORDS_BEHIND_MAX as u64));
    assert!(words.try_recv().is_ok(), "the newest are kept");
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_is_no_stall_while_it_comes_and_silence_is_one() {
    for (apart_s, respawns) in [(50, 0), (70, 1)] {
        let mut stage = Stage::new(&["alice"]);
        stage.spec.limits.stall_timeout = Duration::from_secs(60);
        stage.spec.limits.respawns_max = 1;
        stage.model("alice", talker(20, apart_s, 0));
        stage.tasks(&["a"]).await;
        let team = stage.launch(on_and_on()).await;
        let is_respawned = |fact: &Fact| matches!(fact, Fact::TeammateRespawned { .. });
        stage
            .until("it is done, or was started again", |stage| {
                stage.count(is_respawned) > 0 || stage.count(|fact| matches!(fact, Fact::TaskCompleted { .. })) > 0
            })
            .await;
        assert_eq!(stage.count(is_respawned), respawns, "{apart_s} s apart: {}", stage.story());
        team.command(brigade::team::handle::Command::StopNow).await;
        stage.ended(team).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_calls_tools_for_a_summary_is_asked_again_without_them() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.compact_at_tokens = 1;
    stage.brain("alice", |request, count| async move {
        match request.purpose {
            Purpose::Summary => {
                let nap = Block::ToolUse { id: "n".into(), name: "nap".into(), input: json!({"note": "never"}) };
                answer(vec![Block::text("Let me look first."), nap], StopReason::ToolUse)
            }
            Purpose::SummaryWithoutTools => say("SUMMARY"),
            Purpose::Turn if count < 4 => call(&[("nap", json!({"note": "really"}))]),
            Purpose::Turn => call(&[complete(1)]),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let sent = stage.sent_by("alice");
    let insisted = sent.iter().position(|sent| sent.request.purpose == Purpose::SummaryWithoutTools).unwrap();
    let (first, again) = (&sent[insisted - 1].request, &sent[insisted].request);
    assert_eq!((first.purpose, &first.tools, &first.messages), (Purpose::Summary, &again.tools, &again.messages));
    assert_eq!(first.tools, sent[0].request.tools, "the beginning stays the same");
    let transcript = stage.transcript("alice").await;
    assert!(transcript.contains(&"= SUMMARY".to_owned()), "{transcript:?}");
    assert!(stage.notes().iter().all(|note| note.ends_with("really")), "{:?}", stage.notes());
}

#[tokio::test(start_paused = true)]
async fn an_answer_cut_by_a_full_context_is_not_followed_and_the_context_is_mended() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, count| async move {
        let nap = Block::ToolUse { id: "n".into(), name: "nap".into(), input: json!({}) };
        match count {
            _ if request.is_for_summary() => say("SUMMARY"),
            0 => answer(vec![nap], StopReason::ContextFull),
            _ => diligent_after_summary(),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    assert!(stage.notes().is_empty(), "{:?}", stage.notes());
    assert_eq!(stage.count(|fact| matches!(fact, Fact::Compacted { .. })), 1);
    stage.check_laws().await;
}

fn diligent_after_summary() -> Answer {
    call(&[complete(1)])
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_cut_are_told_and_cost_an_attempt_after_three_in_a_row() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.output_tokens_max = 700;
    stage.brain("alice", |_, count| async move {
        match count {
            // Two, one that is whole, and three.
            0 | 1 | 3..6 => answer(vec![Block::text("On and")], StopReason::MaxTokens),
            2 => call(&[("nap", json!({}))]),
            6 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let is_said = |fact: &Fact| matches!(fact, Fact::Warning { about, text } if about == "alice" && text == "answer cut at 700 tokens (output_tokens_max)");
    assert_eq!(stage.count(is_said), 5, "{}", stage.story());
    let reasons: Vec<String> = stage
        .facts()
        .into_iter()
        .filter_map(|fact| match fact {
            Fact::TaskReleased { reason, .. } => Some(reason),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, ["3 answers of its model in a row were cut at 700 tokens (output_tokens_max)"]);
    assert_eq!((stage.task(1).await.failures, stage.task(1).await.attempt), (1, 2));
    assert_eq!(stage.sent_by("alice").len(), 8);
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_may_not_be_whole_are_not_made() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, count| async move {
        let nap = |input| vec![Block::ToolUse { id: format!("n{count}"), name: "nap".into(), input }];
        match count {
            0 => answer(nap(json!({})), StopReason::Other("brand_new".into())),
            1 => answer(nap(json!("{\"note\": \"cu")), StopReason::ToolUse),
            2 => answer(nap(json!([1])), StopReason::ToolUse),
            3 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    assert!(stage.notes().is_empty(), "{:?}", stage.notes());
    let told = stage.sent_by("alice")[3].text();
    assert_eq!(told.matches("not a JSON object").count(), 2, "{told}");
    assert_eq!(told.matches("Brigade does not know").count(), 1, "{told}");
    let is_said = |fact: &Fact| matches!(fact, Fact::ToolFinished { tool, ok: false, reason: Some(reason), .. } if tool == "nap" && reason.contains("not a JSON object"));
    assert_eq!(stage.count(is_said), 2, "people are told too: {}", stage.story());
    stage.check_laws().await;
}
