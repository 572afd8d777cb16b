//! Streamed answers: their listeners, slow listeners, and cut answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::agent::transcript::Block;
use brigade::domain::log::event::EventKind;
use brigade::ports::{Listener, ModelClient, ModelError, ModelRequest, RequestPurpose, StopReason};
use brigade::run::stream::{CHUNKS_BEHIND_MAX, StreamEvent};
use serde_json::json;
use tokio::sync::broadcast::error::TryRecvError;

use super::harness::{ModelResult, TestTeam, answer, call, complete, diligent, once, say, start_continuous};

/// A model that streams some pieces at an interval before it completes its task.
struct StreamingModel {
    pieces: usize,
    apart: Duration,
    /// The number of requests that break off before their end.
    cuts: AtomicUsize,
}

#[async_trait]
impl ModelClient for StreamingModel {
    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> ModelResult {
        for number in 0..self.pieces {
            tokio::time::sleep(self.apart).await;
            listener.on_activity();
            listener.on_bytes(2);
            listener.on_text(&format!("{number} "));
        }
        let left = self.cuts.load(Ordering::Relaxed);
        if left > 0 {
            self.cuts.store(left - 1, Ordering::Relaxed);
            return Err(ModelError::Temporary { message: "cut".to_owned(), retry_after: None });
        }
        diligent(&request)
    }
}

fn talker(pieces: usize, apart_s: u64, cuts: usize) -> Arc<StreamingModel> {
    Arc::new(StreamingModel { pieces, apart: Duration::from_secs(apart_s), cuts: AtomicUsize::new(cuts) })
}

#[tokio::test(start_paused = true)]
async fn stream_restarts_after_cut_answer() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.model("alice", talker(2, 1, 1));
    let team = harness.launch(once()).await;
    let mut words = team.subscribe_output();
    harness.tasks(&["a"]).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1);
    let mut heard = Vec::new();
    while let Ok(piece) = words.try_recv() {
        assert_eq!(&*piece.teammate, "alice");
        heard.push(piece.event.clone());
    }
    let text = |text: &str| StreamEvent::Text(text.to_owned());
    let cut = [StreamEvent::Started, text("0 "), text("1 ")];
    let whole = [StreamEvent::Started, text("0 "), text("1 "), StreamEvent::Ended];
    assert_eq!(heard, [&cut[..], &whole].concat());
}

#[tokio::test(start_paused = true)]
async fn slow_stream_listener_blocks_nothing() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.model("alice", talker(3 * CHUNKS_BEHIND_MAX, 0, 0));
    harness.tasks(&["a"]).await;
    let team = harness.launch(once()).await;
    let mut words = team.subscribe_output();
    assert_eq!(harness.ended(team).await.task_counts.completed, 1);
    assert!(matches!(words.try_recv(), Err(TryRecvError::Lagged(lost)) if lost > CHUNKS_BEHIND_MAX as u64));
    assert!(words.try_recv().is_ok(), "the newest pieces were dropped");
}

#[tokio::test(start_paused = true)]
async fn slow_stream_is_no_stall_but_silence_is() {
    for (apart_s, respawns) in [(50, 0), (70, 1)] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.spec.limits.stall_timeout = Duration::from_secs(60);
        harness.spec.limits.respawns_max = 1;
        harness.model("alice", talker(20, apart_s, 0));
        harness.tasks(&["a"]).await;
        let team = harness.launch(start_continuous()).await;
        let is_respawned = |event: &EventKind| matches!(event, EventKind::TeammateRespawned { .. });
        harness
            .wait_until("the task is done or was started again", |harness| {
                harness.count(is_respawned) > 0
                    || harness.count(|event| matches!(event, EventKind::TaskCompleted { .. })) > 0
            })
            .await;
        assert_eq!(harness.count(is_respawned), respawns, "{apart_s} s apart: {}", harness.event_lines());
        team.command(brigade::team::handle::TeamCommand::Abort).await;
        harness.ended(team).await;
    }
}

#[tokio::test(start_paused = true)]
async fn summary_with_tool_calls_is_retried_without_tools() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.compact_at_tokens = 1;
    harness.set_model_fn("alice", |request, count| async move {
        match request.purpose {
            RequestPurpose::Summary => {
                let nap = Block::tool_use("n", "nap", json!({"note": "never"}));
                answer(vec![Block::text("Let me look first."), nap], StopReason::ToolUse)
            }
            RequestPurpose::SummaryWithoutTools | RequestPurpose::Question => say("SUMMARY"),
            RequestPurpose::Turn if count < 4 => call(&[("nap", json!({"note": "really"}))]),
            RequestPurpose::Turn => call(&[complete(1)]),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let insisted = sent.iter().position(|sent| sent.request.purpose == RequestPurpose::SummaryWithoutTools).unwrap();
    let (first, again) = (&sent[insisted - 1].request, &sent[insisted].request);
    assert_eq!(
        (first.purpose, &first.tools, &first.messages),
        (RequestPurpose::Summary, &again.tools, &again.messages)
    );
    assert_eq!(first.tools, sent[0].request.tools, "the start of the request changed");
    let transcript = harness.transcript("alice").await;
    assert!(transcript.contains(&"= SUMMARY".to_owned()), "{transcript:?}");
    assert!(harness.notes().iter().all(|note| note.ends_with("really")), "{:?}", harness.notes());
}

#[tokio::test(start_paused = true)]
async fn answer_cut_by_full_context_triggers_compaction() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        let nap = Block::tool_use("n", "nap", json!({}));
        match count {
            _ if request.is_for_summary() => say("SUMMARY"),
            0 => answer(vec![nap], StopReason::ContextFull),
            _ => diligent_after_summary(),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    assert!(harness.notes().is_empty(), "{:?}", harness.notes());
    assert_eq!(harness.count(|event| matches!(event, EventKind::Compacted { .. })), 1);
    harness.check_invariants().await;
}

fn diligent_after_summary() -> ModelResult {
    call(&[complete(1)])
}

#[tokio::test(start_paused = true)]
async fn three_cut_answers_in_a_row_cost_an_attempt() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.output_tokens_max = 700;
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            // Two cut ones, one whole one, and three cut ones.
            0 | 1 | 3..6 => answer(vec![Block::text("On and")], StopReason::MaxTokens),
            2 => call(&[("nap", json!({}))]),
            6 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let is_said = |event: &EventKind| matches!(event, EventKind::Warning { about, text, .. } if about == "alice" && text == "answer cut at 700 tokens (output_tokens_max)");
    assert_eq!(harness.count(is_said), 5, "{}", harness.event_lines());
    let reasons: Vec<String> = harness
        .event_kinds()
        .into_iter()
        .filter_map(|event| match event {
            EventKind::TaskReleased { reason, .. } => Some(reason),
            _ => None,
        })
        .collect();
    let cause = "3 answers of its model in a row were cut at 700 tokens (output_tokens_max)";
    assert_eq!(reasons, [format!("{cause}; its last words: \"On and\"")]);
    assert_eq!((harness.task(1).await.failures, harness.task(1).await.attempt), (1, 2));
    assert_eq!(harness.sent_by("alice").len(), 7);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn incomplete_tool_calls_are_not_run() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        let nap = |input| vec![Block::tool_use(format!("n{count}"), "nap", input)];
        match count {
            0 => answer(nap(json!({})), StopReason::Other("brand_new".into())),
            1 => answer(nap(json!("{\"note\": \"cu")), StopReason::ToolUse),
            2 => answer(nap(json!([1])), StopReason::ToolUse),
            3 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    assert!(harness.notes().is_empty(), "{:?}", harness.notes());
    let told = harness.sent_by("alice")[3].text();
    assert_eq!(told.matches("not a JSON object").count(), 2, "{told}");
    assert_eq!(told.matches("Brigade does not know").count(), 1, "{told}");
    let is_said = |event: &EventKind| matches!(event, EventKind::ToolFinished { tool, not_made: true, reason: Some(reason), .. } if tool == "nap" && reason.contains("not a JSON object"));
    assert_eq!(harness.count(is_said), 2, "the notice is not logged twice: {}", harness.event_lines());
    harness.check_invariants().await;
}
