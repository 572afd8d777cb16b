//! Attempts that Brigade ended, that only read, or that ended with a question: none of them is a report.

use std::time::Duration;

use brigade::domain::agent::transcript::Block;
use brigade::domain::log::event::EventKind;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::name::HUMAN;
use brigade::domain::team::pending_questions::Questions;
use brigade::ports::StopReason;
use serde_json::json;

use super::evidence::{alice_in, run_task, task, verify_runs, write};
use super::harness::{ModelResult, TestTeam, answer, call, has_new_task, new_task, say};

fn bash(command: &str) -> ModelResult {
    call(&[("bash", json!({ "command": command }))])
}

/// The agent writes a file, says something, and then repeats itself. The first time counts as the end of its work, so it is reminded or gets
/// the output of the verify command.
#[tokio::test]
async fn stopped_agent_is_completed_only_by_verify() {
    let reason = "it made the same calls again with the same results, so it was stopped; its last words: \"I look.\"";
    for (verify, status, summary) in [
        (Some("test -f out.txt"), TaskStatus::Completed, "I look."),
        (Some("echo no; false"), TaskStatus::Failed, reason),
        (None, TaskStatus::Failed, reason),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = alice_in(&folder);
        harness.set_model_fn("alice", |_, count| async move {
            let list = Block::tool_use(format!("call-{count}"), "task_list", json!({}));
            match count {
                0 => write(),
                1 => answer(vec![Block::text("I look."), list], StopReason::ToolUse),
                _ => answer(vec![list], StopReason::ToolUse),
            }
        });
        let task = run_task(&harness, task(verify)).await;
        assert_eq!(task.status, status, "{verify:?}: {}", harness.event_lines());
        let requests = if status == TaskStatus::Completed { 3 } else { 6 };
        let runs = if verify.is_some() { requests / 3 } else { 0 };
        assert_eq!((harness.requests(), verify_runs(&harness)), (requests, runs), "{verify:?}");
        let result = task.result.unwrap();
        assert!(result.summary.starts_with(summary), "{}", result.summary);
        assert_eq!(
            result.summary.contains("; verify `echo no; false` failed: exit status 1\nno"),
            verify.is_some_and(|verify| verify.contains("no;"))
        );
    }
}

/// Small models repeat a change instead of reporting it, and report when they are reminded.
#[tokio::test]
async fn reminded_agent_that_repeated_its_change_reports() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move {
        let report = json!({ "task_id": 1, "status": "completed", "result": "out.txt is written" });
        if count < 2 { write() } else { call(&[("task_update", report)]) }
    });
    let task = run_task(&harness, task(None)).await;
    assert_eq!((task.status, harness.requests()), (TaskStatus::Completed, 3), "{}", harness.event_lines());
    assert!(!task.result.unwrap().unverified);
}

/// Two commands, each with another result than the one before it.
#[tokio::test]
async fn loop_of_two_commands_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move { bash(["echo a", "echo b"][count % 2]) });
    let task = run_task(&harness, task(None)).await;
    assert_eq!((task.status, harness.requests()), (TaskStatus::Failed, 6), "{}", harness.event_lines());
    assert!(task.result.unwrap().summary.starts_with("it made the same calls again"));
}

#[tokio::test]
async fn repeated_passage_is_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move {
        if count == 0 { write() } else { answer(vec![Block::text("It is done.")], StopReason::Repetition) }
    });
    let task = run_task(&harness, task(None)).await;
    assert_eq!((task.status, harness.requests()), (TaskStatus::Failed, 2), "{}", harness.event_lines());
    let reason = "it wrote the same passage again and again, so it was stopped; its last words: \"It is done.\"";
    assert_eq!(task.result.unwrap().summary, reason);
}

#[tokio::test]
async fn only_reading_is_no_work() {
    for (command, status) in [
        ("ls && cat plan.md 2>/dev/null | head -3", TaskStatus::Failed),
        ("no-such-program-here", TaskStatus::Completed),
        ("echo x > out.txt", TaskStatus::Completed),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = alice_in(&folder);
        harness.set_model_fn("alice", move |_, count| async move {
            if count == 0 { bash(command) } else { say("I'll start by exploring the code.") }
        });
        let task = run_task(&harness, task(None)).await;
        assert_eq!(task.status, status, "{command}: {}", harness.event_lines());
        let result = task.result.unwrap();
        assert_eq!(result.unverified, status == TaskStatus::Completed, "{command}");
        if status == TaskStatus::Failed {
            let words = "its last words: \"I'll start by exploring the code.\"";
            assert_eq!(result.summary, format!("ended without a report and changed nothing; {words}"));
        }
    }
}

/// Returns the questions that wait for the person.
async fn questions(harness: &TestTeam) -> Vec<(String, String)> {
    let deliveries = harness.stores.mailbox.peek(HUMAN).await.unwrap();
    let mut questions = Questions::default();
    deliveries.iter().for_each(|delivery| questions.record_shown(&delivery.message));
    questions.waiting().iter().map(|question| (question.from.clone(), question.text.clone())).collect()
}

const QUESTION: &str = "Which database, Postgres or SQLite? Please tell me.";

#[tokio::test(start_paused = true)]
async fn question_without_answer_is_the_reason() {
    for recipient in [None, Some("human"), Some("bob")] {
        let mut harness = TestTeam::new(&["alice", "bob"]);
        harness.set_model_fn("alice", move |request, _| async move {
            match recipient {
                Some(to) if has_new_task(&request) => {
                    call(&[("send_message", json!({ "to": to, "content": QUESTION }))])
                }
                Some(_) => say("I wait."),
                None => say(QUESTION),
            }
        });
        harness.set_model_fn("bob", |_, _| async { say("Well.") });
        let begun = tokio::time::Instant::now();
        let task = NewTask { owner: Some("alice".into()), max_attempts: Some(2), ..new_task("choose") };
        let task = run_task(&harness, task).await;
        assert_eq!((task.status, task.failures), (TaskStatus::Failed, 2), "{}", harness.event_lines());
        assert_eq!(
            recipient.is_some(),
            begun.elapsed() > Duration::from_secs(300),
            "it waits for an answer to a message"
        );
        let to = if recipient == Some("bob") { " bob" } else { "" };
        let reason = format!("alice asked{to} and got no answer: \"{QUESTION}\"");
        assert_eq!(task.result.unwrap().summary, reason);
        let is_named =
            |event: &EventKind| matches!(event, EventKind::TaskFailed { reason: given, .. } if *given == reason);
        assert_eq!(harness.count(is_named), 1, "{}", harness.event_lines());
        let open = questions(&harness).await;
        assert!(open.len() == 1 && open[0].0 == "alice" && open[0].1.contains(QUESTION), "{open:?}");
    }
}

/// A red verify command is the reason too, after the question.
#[tokio::test]
async fn question_precedes_refusal_of_verify() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { bash("ls") } else { say(QUESTION) } });
    let task = run_task(&harness, task(Some("echo no; false"))).await;
    let summary = task.result.unwrap().summary;
    let reason = format!("alice asked and got no answer: \"{QUESTION}\"; verify `echo no; false` failed (3 times)");
    assert!(task.status == TaskStatus::Failed && summary.starts_with(&reason), "{summary}");
    assert_eq!(questions(&harness).await.len(), 1);
}

/// The person is asked only if the question is the reason.
#[tokio::test(start_paused = true)]
async fn question_before_other_failure_is_not_sent() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.turns_max = 3;
    harness.set_model_fn("alice", |_, count| async move {
        let nap = Block::tool_use(format!("call-{count}"), "nap", json!({ "count": count }));
        answer(vec![Block::text(QUESTION), nap], StopReason::ToolUse)
    });
    let task = run_task(&harness, task(None)).await;
    let summary = task.result.unwrap().summary;
    assert!(task.status == TaskStatus::Failed && summary.starts_with("reached the limit of 3 turns"), "{summary}");
    assert_eq!(questions(&harness).await, []);
}
