//! Sub-agents: their contexts, their limits, and their end with the member that asks.

use std::time::Duration;

use brigade::domain::agent::permission::PermissionRule;
use brigade::domain::log::event::EventKind;
use brigade::domain::team::waiting_for::{WaitKind, WaitingFor};
use brigade::ports::{ModelRequest, RequestPurpose};
use brigade::team::handle::TeamCommand;
use serde_json::json;

use super::harness::{ModelResult, Sent, TestTeam, call, complete, parts_of, say, start_continuous, text_of};

const QUESTION: &str = "Where is the answer?";

/// Asks once, and completes its task with any result.
fn asks(request: &ModelRequest) -> ModelResult {
    let text = text_of(request);
    match () {
        () if text.contains("task #1 is completed") => say("Done."),
        () if text.contains("call: ask") => call(&[complete(1)]),
        () => call(&[("ask", json!({"question": QUESTION}))]),
    }
}

fn is_question(sent: &Sent) -> bool {
    sent.request.purpose == RequestPurpose::Question
}

/// A team of alice, who asks, with sub-agents that answer by `answer` from the number of their requests so far.
fn team(answer: fn(usize) -> ModelResult) -> TestTeam {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.ask = true;
    harness.set_model_fn("alice", move |request, _| async move {
        match request.purpose {
            RequestPurpose::Question => answer(request.messages.len() / 2),
            _ => asks(&request),
        }
    });
    harness
}

#[tokio::test(start_paused = true)]
async fn sub_agent_answers_in_its_own_context() {
    let mut harness = team(|turn| match turn {
        0 => {
            call(&[("read_file", json!({"path": "none.txt"})), ("send_message", json!({"to": "lead", "content": "x"}))])
        }
        _ => say("It is <inbox>42</inbox>."),
    });
    let folder = tempfile::tempdir().unwrap();
    harness.workspace = folder.path().to_owned();
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let questions: Vec<&Sent> = sent.iter().filter(|sent| is_question(sent)).collect();
    assert_eq!((questions.len(), sent.len()), (2, 4), "{}", harness.event_lines());
    let first = questions[0].text();
    assert!(first.starts_with("<identity>You are 'alice', role: coder, team: crew."), "{first}");
    assert!(first.contains(QUESTION) && !first.contains("auto-claimed"), "{first}");
    let tools: Vec<&str> = questions[0].request.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert!(["bash", "read_file", "glob", "grep"].iter().all(|tool| tools.contains(tool)), "{tools:?}");
    assert!(!["write_file", "edit_file", "task_update", "ask"].iter().any(|tool| tools.contains(tool)), "{tools:?}");
    assert!(parts_of(&questions[1].request).starts_with(&parts_of(&questions[0].request)));
    let second = questions[1].text();
    assert!(
        second.contains("there is no `none.txt`") && second.contains("There is no tool `send_message`"),
        "{second}"
    );
    let answered = sent[3].text();
    assert!(
        answered.contains("result: It is &lt;inbox>42&lt;/inbox>.") && !answered.contains("none.txt"),
        "{answered}"
    );
    let transcript = harness.transcript("alice").await.join("\n");
    assert!(!transcript.contains("none.txt") && transcript.contains("42"), "{transcript}");
    let tools_of = |kinds: Vec<EventKind>| -> Vec<String> {
        let started = kinds.into_iter().filter_map(|kind| match kind {
            EventKind::ToolStarted { tool, .. } => Some(tool),
            _ => None,
        });
        started.collect()
    };
    assert_eq!(tools_of(harness.event_kinds()), ["ask", "read_file", "task_update"]);
    let spent = brigade::domain::log::replay::ReplayState::of(&harness.events()).members["alice"].tokens;
    assert_eq!(spent, 11 * 4, "the sub-agent's requests count for alice");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn sub_agent_sees_no_hidden_file() {
    let mut harness = team(|turn| match turn {
        0 => call(&[
            ("grep", json!({"pattern": "token"})),
            ("glob", json!({"pattern": "*"})),
            ("read_file", json!({"path": "docs/../secrets/key"})),
        ]),
        _ => say("Done."),
    });
    let folder = tempfile::tempdir().unwrap();
    for path in ["secrets/key", "docs/open"] {
        let path = folder.path().join(path);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::write(path, "token").unwrap();
    }
    harness.workspace = folder.path().to_owned();
    harness.spec.members[0].permissions.deny = vec![PermissionRule::parse("read_file(secrets/**)").unwrap()];
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let text = sent.iter().rfind(|sent| is_question(sent)).unwrap().text();
    assert!(text.contains("docs/open:1:token") && !text.contains("secrets/key:"), "{text}");
    assert!(text.contains("the rule `read_file(secrets/**)` denies it"), "{text}");
    assert_eq!(text.matches("secrets/key").count(), 1, "only in the call of read_file: {text}");
}

#[tokio::test(start_paused = true)]
async fn sub_agent_turns_and_answer_are_bounded() {
    let harness = team(|_| call(&[("read_file", json!({"path": "none.txt"}))]));
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let questions: Vec<&Sent> = sent.iter().filter(|sent| is_question(sent)).collect();
    assert_eq!(questions.len(), 20);
    assert!(
        questions[19].text().ends_with("Answer now with what you know, and call no tool."),
        "{}",
        questions[19].text()
    );
    assert!(sent[21].text().contains("there is no answer after 20 turns"), "{}", sent[21].text());
    let mut harness = team(|_| say(&"x".repeat(100_000)));
    harness.spec.limits.tools.output_bytes_max = 1_000;
    harness.tasks(&["a"]).await;
    harness.run_once().await;
    let last = harness.sent_by("alice").pop().unwrap().text();
    assert!((1_000..6_000).contains(&last.len()), "{} bytes", last.len());
}

/// A team whose sub-agent waits forever for its model.
async fn asking_team() -> (TestTeam, brigade::team::handle::TeamHandle) {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.ask = true;
    harness.set_model_fn("alice", |request, count| async move {
        if request.purpose == RequestPurpose::Question {
            std::future::pending::<()>().await;
        }
        if count < 2 { asks(&request) } else { say("Done.") }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("the sub-agent works", |harness| harness.sent_by("alice").iter().any(is_question)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    (harness, team)
}

#[tokio::test(start_paused = true)]
async fn lost_claim_ends_sub_agent() {
    let (harness, team) = asking_team().await;
    let shown = team.live().teammates()["alice"].waiting_for.clone();
    assert_eq!(shown, Some(WaitingFor::detail(WaitKind::SubAgent, QUESTION)));
    harness.take_by_hand(1).await;
    let taken = tokio::time::Instant::now();
    let is_ended =
        |event: &EventKind| matches!(event, EventKind::ToolFinished { tool, ok: false, .. } if tool == "ask");
    harness.wait_until("the call has ended", |harness| harness.count(is_ended) == 1).await;
    assert!(taken.elapsed() < Duration::from_secs(1), "{:?}", taken.elapsed());
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn stop_ends_sub_agent() {
    for command in [TeamCommand::Stop, TeamCommand::Abort] {
        let (harness, team) = asking_team().await;
        let stopped = tokio::time::Instant::now();
        team.command(command).await;
        harness.ended(team).await;
        assert!(stopped.elapsed() < Duration::from_secs(2), "{:?}", stopped.elapsed());
        assert_eq!(harness.sent_by("alice").len(), 2, "{}", harness.event_lines());
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn team_without_setting_has_no_tool_ask() {
    let mut harness = team(|_| say("never"));
    harness.spec.ask = false;
    harness.tasks(&["a"]).await;
    harness.run_once().await;
    let sent = harness.sent_by("alice");
    assert!(sent[0].request.tools.iter().all(|tool| tool.name != "ask") && !sent.iter().any(is_question));
    assert!(sent[1].text().contains("this team has no sub-agents"), "{}", sent[1].text());
}
