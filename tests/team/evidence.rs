//! Agents that end their work without a report: the evidence of the attempt decides.

use std::time::Duration;

use brigade::domain::agent::transcript::Block;
use brigade::domain::log::event::EventKind;
use brigade::domain::task::transition::{Actor, ActorKind, Change};
use brigade::domain::task::{NewTask, Task, TaskId, TaskStatus};
use brigade::ports::{ModelError, ModelRequest, StopReason};
use brigade::sandbox::Sandbox;
use brigade::team::handle::TeamCommand;
use serde_json::json;

use super::harness::{
    ModelResult, Sent, TestTeam, answer, block_text, call, complete, has_new_task, new_task, once, say, text_of,
};
use crate::testkit::process::guard;

/// A team of one whose tools and commands work in a folder.
pub fn alice_in(folder: &tempfile::TempDir) -> TestTeam {
    let mut harness = TestTeam::new(&["alice"]);
    harness.workspace = folder.path().canonicalize().unwrap();
    harness.sandbox = Sandbox::open(guard(), &harness.workspace, Vec::new()).unwrap();
    harness.spec.limits.poll_interval = Duration::from_millis(50);
    harness
}

pub fn task(verify: Option<&str>) -> NewTask {
    NewTask { verify: verify.map(str::to_owned), max_attempts: Some(1), ..new_task("write a file") }
}

pub fn write() -> ModelResult {
    call(&[("write_file", json!({"path": "out.txt", "content": "x"}))])
}

fn nap() -> ModelResult {
    call(&[("nap", json!({}))])
}

pub fn verify_runs(harness: &TestTeam) -> usize {
    harness.count(|event| matches!(event, EventKind::ToolStarted { tool, .. } if tool == "verify"))
}

/// The marks `unverified` of the completions in the log.
fn logged_unverified(harness: &TestTeam) -> Vec<bool> {
    let mark = |event| match event {
        EventKind::TaskCompleted { unverified, .. } => Some(unverified),
        _ => None,
    };
    harness.event_kinds().into_iter().filter_map(mark).collect()
}

pub async fn run_task(harness: &TestTeam, task: NewTask) -> Task {
    harness.create(vec![task]).await;
    harness.run_once().await;
    harness.check_invariants().await;
    harness.task(1).await
}

#[tokio::test]
async fn end_of_work_with_passed_verify_completes_task() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { write() } else { say("I wrote it.") } });
    let task = run_task(&harness, task(Some("test -f out.txt"))).await;
    assert_eq!(task.status, TaskStatus::Completed, "{}", harness.event_lines());
    assert_eq!(harness.requests(), 2, "one request follows the work");
    let result = task.result.unwrap();
    assert_eq!((result.summary.as_str(), result.evidence.as_str()), ("I wrote it.", "verify exited 0"));
    assert!(!result.unverified && result.verify.unwrap().exit_status == Some(0));
    assert_eq!(logged_unverified(&harness), [false]);
}

#[tokio::test(start_paused = true)]
async fn work_before_model_outage_counts_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.spec.limits.model.retries_max = 0;
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            0 => write(),
            1 => Err(ModelError::Temporary { message: "overloaded".to_owned(), retry_after: None }),
            _ => say("I wrote it."),
        }
    });
    let task = run_task(&harness, task(None)).await;
    assert_eq!((task.status, task.attempt, task.failures), (TaskStatus::Completed, 2, 0), "{}", harness.event_lines());
    assert_eq!(logged_unverified(&harness), [true]);
}

#[tokio::test]
async fn red_verify_is_shown_and_third_one_fails_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { nap() } else { say("Done, I think.") } });
    let task = run_task(&harness, task(Some("echo it is missing; false"))).await;
    assert_eq!((task.status, verify_runs(&harness)), (TaskStatus::Failed, 3), "{}", harness.event_lines());
    let sent = harness.sent_by("alice");
    assert_eq!(sent.len(), 4, "each red result but the last goes back");
    for (index, count) in [(2, 1), (3, 2)] {
        let last = block_text(sent[index].last().last().unwrap());
        let head = "verify `echo it is missing; false` failed: exit status 1; task #1 stays in progress";
        let advice = "Look at the files, correct them with a tool call, and report again.";
        assert_eq!(last.trim_end(), format!("{head} (failure {count} of 3).\nit is missing\n{advice}"));
    }
    let reason = task.result.unwrap().summary;
    assert!(reason.contains("failed (3 times): exit status 1\nit is missing"), "{reason}");
    let transcript = harness.transcript("alice").await.join("\n");
    assert!(transcript.contains("this attempt of task #1 has failed and is over"), "{transcript}");
}

#[tokio::test]
async fn silent_red_verify_is_traced() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { write() } else { say("Done.") } });
    let task = run_task(&harness, task(Some("test \"$(cat out.txt)\" = y"))).await;
    assert_eq!((task.status, verify_runs(&harness)), (TaskStatus::Failed, 3), "{}", harness.event_lines());
    let sent = harness.sent_by("alice");
    let answer = block_text(sent[2].last().last().unwrap());
    assert!(
        answer.contains("failed: exit status 1")
            && answer.contains("It printed nothing. The shell ran:\ncat out.txt\ntest x = y\nLook at the files"),
        "{answer}"
    );
}

#[tokio::test(start_paused = true)]
async fn attempt_without_tool_call_runs_no_verify() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, _| async { say("Done.") });
    let task = run_task(&harness, task(Some("true"))).await;
    assert_eq!((task.status, verify_runs(&harness), harness.requests()), (TaskStatus::Failed, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn verify_that_cannot_start_fails_attempt() {
    // A team without a guard starts no commands.
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { nap() } else { say("Done.") } });
    let task = run_task(&harness, task(Some("true"))).await;
    assert_eq!((task.status, harness.requests()), (TaskStatus::Failed, 4), "{}", harness.event_lines());
    assert!(task.result.unwrap().summary.starts_with("cannot start the command"));
}

#[tokio::test]
async fn stop_during_verify_releases_task_without_failure() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { nap() } else { say("Done.") } });
    harness.create(vec![task(Some("sleep 300"))]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("the command runs", |harness| verify_runs(harness) == 1).await;
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures, harness.requests()), (TaskStatus::Pending, 0, 2));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn work_without_verify_or_report_is_unverified() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = TestTeam::new(&["alice"]);
    harness.workspace = folder.path().to_owned();
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { write() } else { say("I wrote it.") } });
    let task = run_task(&harness, task(None)).await;
    assert_eq!(task.status, TaskStatus::Completed, "{}", harness.event_lines());
    let sent = harness.sent_by("alice");
    assert!(sent.len() == 3 && sent[2].text().contains("You still hold task #1"), "{} requests", sent.len());
    let result = task.result.unwrap();
    assert_eq!((result.summary.as_str(), result.unverified), ("I wrote it.", true));
    assert_eq!(logged_unverified(&harness), [true]);
    assert!(harness.transcript("alice").await.last().unwrap().contains("task #1 is completed"));
}

#[tokio::test(start_paused = true)]
async fn attempt_without_work_or_report_fails() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move { if count == 0 { nap() } else { say("Done.") } });
    let task = run_task(&harness, task(None)).await;
    assert_eq!((task.status, harness.requests()), (TaskStatus::Failed, 3));
    let reason = task.result.unwrap().summary;
    assert_eq!(reason, "ended without a report and changed nothing; its last words: \"Done.\"");
}

#[tokio::test(start_paused = true)]
async fn explicit_report_is_not_unverified() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    assert!(!run_task(&harness, task(None)).await.result.unwrap().unverified);
    assert_eq!(logged_unverified(&harness), [false]);
}

#[tokio::test(start_paused = true)]
async fn turn_limit_is_named_as_the_reason() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.turns_max = 4;
    harness.set_model_fn("alice", |_, _| async { nap() });
    let task = run_task(&harness, task(None)).await;
    assert_eq!((task.status, harness.requests()), (TaskStatus::Failed, 4));
    assert_eq!(task.result.unwrap().summary, "reached the limit of 4 turns");
    let is_named = |event: &EventKind| matches!(event, EventKind::TaskFailed { reason, .. } if reason.contains("limit of 4 turns"));
    assert_eq!(harness.count(is_named), 1);
}

#[tokio::test]
async fn verify_decides_once_at_turn_limit() {
    let folder = tempfile::tempdir().unwrap();
    for (verify, status) in [("true", TaskStatus::Completed), ("echo no; false", TaskStatus::Failed)] {
        let mut harness = alice_in(&folder);
        harness.spec.limits.turns_max = 3;
        harness.set_model_fn("alice", |_, _| async { nap() });
        let task = run_task(&harness, task(Some(verify))).await;
        assert_eq!((task.status, verify_runs(&harness), harness.requests()), (status, 1, 3), "{verify}");
        let summary = task.result.unwrap().summary;
        if status == TaskStatus::Failed {
            let begin = "reached the limit of 3 turns; verify `echo no; false` failed: exit status 1\nno";
            assert_eq!(summary, begin);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn turn_count_is_appended_to_last_result() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.turns_max = 12;
    harness.set_model_fn("alice", |_, count| async move {
        let nap = || ("nap", json!({ "count": count }));
        if count < 10 { call(&[nap(), nap()]) } else { call(&[complete(1)]) }
    });
    assert_eq!(run_task(&harness, task(None)).await.status, TaskStatus::Completed);
    let sent = harness.sent_by("alice");
    let told = |sent: &Sent| -> Vec<bool> {
        let is_told =
            |block: &Block| matches!(block, Block::ToolResult { content, .. } if content.contains("[Brigade]"));
        sent.last().iter().map(is_told).collect()
    };
    let told: Vec<(usize, Vec<bool>)> = (1..sent.len()).map(|index| (index, told(&sent[index]))).collect();
    let told: Vec<_> = told.into_iter().filter(|(_, blocks)| blocks.contains(&true)).collect();
    assert_eq!(told, [(7, vec![false, true]), (10, vec![false, true])]);
    assert!(sent[7].text().ends_with("nap\n\n[Brigade] 5 turns left. Report with task_update."), "{}", sent[7].text());
    assert!(sent[10].text().ends_with("nap\n\n[Brigade] Turn 10 of 12."), "{}", sent[10].text());
    for pair in sent.windows(2) {
        let (before, after) = (pair[0].text(), pair[1].text());
        assert!(before.lines().skip(4).zip(after.lines().skip(4)).all(|(a, b)| a == b), "{before}\n---\n{after}");
    }
}

/// Returns true if the last message has a text that starts like this.
fn is_told(request: &ModelRequest, start: &str) -> bool {
    request.messages.last().is_some_and(|last| last.content.iter().any(|block| block_text(block).starts_with(start)))
}

const REMINDER: &str = "You still hold task #1";

#[tokio::test(start_paused = true)]
async fn agent_that_asked_waits_for_the_answer() {
    for answers in [true, false] {
        let mut harness = TestTeam::new(&["alice", "bob"]);
        harness.set_model_fn("alice", |request, count| async move {
            match () {
                () if count == 0 => call(&[("send_message", json!({"to": "bob", "content": "Which port?"}))]),
                () if is_told(&request, "<inbox>") || is_told(&request, REMINDER) => call(&[complete(1)]),
                () => say("I wait."),
            }
        });
        harness.set_model_fn("bob", move |request, _| async move {
            let is_asked =
                text_of(&request).contains("Which port?") && !text_of(&request).contains("call: send_message");
            if answers && is_asked {
                tokio::time::sleep(Duration::from_secs(100)).await;
                return call(&[("send_message", json!({"to": "alice", "content": "80"}))]);
            }
            say("Well.")
        });
        harness.create(vec![NewTask { owner: Some("alice".into()), ..task(None) }]).await;
        let begun = tokio::time::Instant::now();
        let outcome = harness.run_once().await;
        assert_eq!(outcome.task_counts.completed, 1, "{}", harness.event_lines());
        let sent = harness.sent_by("alice");
        assert_eq!(
            sent.iter().any(|sent| is_told(&sent.request, REMINDER)),
            !answers,
            "{}",
            sent.last().unwrap().text()
        );
        let waited = begun.elapsed().as_secs();
        assert!(if answers { (100..200).contains(&waited) } else { (300..400).contains(&waited) }, "{waited} s");
        assert!(sent.len() <= 4, "a waiting agent made requests");
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreported_work_is_reviewed_before_completion() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = TestTeam::new(&["alice"]);
    harness.workspace = folder.path().to_owned();
    harness.spec.review = Some("human".to_owned());
    harness
        .set_model_fn("alice", |request, _| async move { if has_new_task(&request) { write() } else { say("Done.") } });
    harness.create(vec![task(None)]).await;
    let team = harness.launch(once()).await;
    harness
        .wait_until("the review waits", |_| {
            team.live().teammates().get("alice").is_some_and(|report| {
                report.waiting_for.as_ref().is_some_and(|reason| reason.to_file_text().starts_with("a person (review "))
            })
        })
        .await;
    let requests = harness.requests();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(harness.requests(), requests, "a waiting member made requests");
    super::reviews::approve(&harness).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    let result = harness.task(1).await.result.unwrap();
    assert_eq!((result.reviewed_by.as_deref(), result.unverified), (Some("human"), true));
    harness.check_invariants().await;
}

/// A small model repeats its last call instead of ending its work.
#[tokio::test]
async fn repeated_calls_end_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |request, _| async move {
        if has_new_task(&request) { write() } else { call(&[("task_list", json!({}))]) }
    });
    let task = run_task(&harness, task(None)).await;
    assert_eq!(
        (task.status, harness.requests()),
        (TaskStatus::Failed, 6),
        "the work, then the same list twice, and after the reminder thrice"
    );
    let is_named =
        |event: &EventKind| matches!(event, EventKind::Warning { text, .. } if text.contains("the same calls again"));
    assert_eq!(harness.count(is_named), 2);
}

#[tokio::test]
async fn verify_decides_about_calls_without_effect() {
    let edit = || call(&[("edit_file", json!({ "path": "out.txt", "old_text": "x", "new_text": "x" }))]);
    for has_edit in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = alice_in(&folder);
        harness.set_model_fn("alice", move |request, _| async move {
            if has_edit && !has_new_task(&request) { edit() } else { write() }
        });
        let task = run_task(&harness, task(Some("test -f out.txt"))).await;
        assert_eq!((task.status, verify_runs(&harness)), (TaskStatus::Completed, 1), "{}", harness.event_lines());
        assert_eq!(harness.requests(), 2, "{has_edit}");
    }
}

/// A small model closes an argument with a wrong tag, and its server takes the rest of the answer as the value.
#[tokio::test]
async fn call_markup_after_an_argument_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, _| async {
        let content = "x\n</content>\n</function>\n</tool_call>\n<tool_call>\n<function=verify>";
        call(&[("write_file", json!({"path": "out.txt", "content": content}))])
    });
    let task = run_task(&harness, task(Some("test \"$(cat out.txt)\" = x"))).await;
    assert_eq!(task.status, TaskStatus::Completed, "{}", harness.event_lines());
    let transcript = harness.transcript("alice").await.join("\n");
    assert!(!transcript.contains("</content>"), "{transcript}");
    let is_named = |event: &EventKind| matches!(event, EventKind::Warning { text, .. } if text == "removed the markup of a tool call from `content` of write_file");
    assert_eq!(harness.count(is_named), 2);
}

/// A small model plans all calls in one answer, and its last one would undo a correct edit. A text with all lines of the file is written.
#[tokio::test]
async fn file_with_unseen_content_loses_no_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    std::fs::write(folder.path().join("out.txt"), "one\ntwo\n").unwrap();
    harness.set_model_fn("alice", |_, _| async {
        let write = |path: &str| ("write_file", json!({"path": path, "content": "three\n"}));
        call(&[
            ("read_file", json!({"path": "new.txt"})),
            write("new.txt"),
            ("edit_file", json!({"path": "out.txt", "old_text": "two", "new_text": "2"})),
            write("out.txt"),
            ("read_file", json!({"path": "new.txt"})),
            ("write_file", json!({"path": "new.txt", "content": "three\nfour\n"})),
            complete(1),
        ])
    });
    let verify = "test \"$(cat out.txt new.txt)\" = \"$(printf 'one\\n2\\nthree\\nfour')\"";
    let task = run_task(&harness, task(Some(verify))).await;
    assert_eq!(task.status, TaskStatus::Completed, "{}", harness.event_lines());
    let transcript = harness.transcript("alice").await.join("\n");
    assert_eq!(transcript.matches("you have not seen them").count(), 1, "{transcript}");
}

/// An agent replaces a file that it has not read, and that another member changes meanwhile. If it means its text, it calls again.
#[tokio::test]
async fn file_of_others_loses_no_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    let path = folder.path().join("out.txt");
    std::fs::write(&path, "one\n").unwrap();
    harness.set_model_fn("alice", move |_, count| {
        let path = path.clone();
        async move {
            let write = call(&[("write_file", json!({"path": "out.txt", "content": "1\n"}))]);
            let content = std::fs::read_to_string(&path).unwrap();
            match count {
                0 => write,
                1 => {
                    assert_eq!(content, "one\n", "it has not read the file");
                    std::fs::write(path, "one\ntwo\n").unwrap();
                    write
                }
                2 => {
                    assert_eq!(content, "one\ntwo\n", "the file has changed");
                    write
                }
                _ => call(&[complete(1)]),
            }
        }
    });
    let task = run_task(&harness, task(Some("test \"$(cat out.txt)\" = 1"))).await;
    assert_eq!(task.status, TaskStatus::Completed, "{}", harness.event_lines());
}

/// A small model takes `verify` for a tool and calls it as text, or writes a report without end.
#[tokio::test]
async fn verify_decides_after_unusable_report() {
    for (is_cut, requests) in [(false, 2), (true, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = alice_in(&folder);
        harness.set_model_fn("alice", move |_, count| async move {
            let use_of = |tool: &str, input| Block::tool_use(tool, tool, input);
            match count {
                0 if is_cut => {
                    let write = use_of("write_file", json!({"path": "out.txt", "content": "x"}));
                    answer(vec![write, use_of("task_update", json!({}))], StopReason::MaxTokens)
                }
                0 => write(),
                _ => say("<function=verify>\n<parameter=command>\ntest -f out.txt\n</parameter>\n</function>"),
            }
        });
        let task = run_task(&harness, task(Some("test -f out.txt"))).await;
        assert_eq!(task.status, TaskStatus::Completed, "{}", harness.event_lines());
        assert_eq!(harness.requests(), requests, "{}", harness.event_lines());
    }
}

/// The attempt cannot go on, although the file is right.
#[tokio::test]
async fn verify_decides_before_attempt_fails() {
    type ModelFn = fn(usize) -> ModelResult;
    let cut_words = |_| answer(vec![Block::text("On and")], StopReason::MaxTokens);
    let cut_call = |count: usize| {
        let name = ["bash", "write_file", "edit_file"][count % 3].to_owned();
        answer(vec![Block::tool_use(name.clone(), name, json!({}))], StopReason::MaxTokens)
    };
    let refusal = |_| Err(ModelError::Final("no such context".to_owned()));
    let cases: [(ModelFn, usize, &str); 3] = [
        (cut_words, 2, ""),
        (cut_call, 4, "3 answers of its model in a row were cut at"),
        (refusal, 2, "its teammate's model refused the request: no such context"),
    ];
    for (end, requests, reason) in cases {
        for verify in ["test -f out.txt", "echo no; false"] {
            let folder = tempfile::tempdir().unwrap();
            let mut harness = alice_in(&folder);
            harness.set_model_fn("alice", move |_, count| async move { if count == 0 { write() } else { end(count) } });
            let task = run_task(&harness, task(Some(verify))).await;
            if verify == "test -f out.txt" {
                assert_eq!(task.status, TaskStatus::Completed, "{}", harness.event_lines());
                assert_eq!((verify_runs(&harness), harness.requests()), (1, requests), "{}", harness.event_lines());
            } else {
                let summary = task.result.unwrap().summary;
                assert!(summary.starts_with(reason) && summary.contains("verify `echo no; false` failed"), "{summary}");
                assert_eq!(task.status, TaskStatus::Failed);
            }
        }
    }
}

#[tokio::test]
async fn reopened_task_needs_new_work() {
    for verify in [None, Some("test -f out.txt")] {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = alice_in(&folder);
        harness.set_model_fn("alice", |_, count| async move {
            if count == 0 { write() } else { say("It is done already.") }
        });
        assert_eq!(run_task(&harness, task(verify)).await.status, TaskStatus::Completed);
        let person = Actor::new("human", ActorKind::Person);
        harness.stores.board.change(TaskId(1), Change::Reopen, &person).await.unwrap();
        harness.restart();
        harness.run_once().await;
        let task = harness.task(1).await;
        assert_eq!((task.status, task.attempt), (TaskStatus::Failed, 2), "{}", harness.event_lines());
        harness.check_invariants().await;
    }
}

/// Closing words after a report would cost a request for each task.
#[tokio::test(start_paused = true)]
async fn report_ends_the_work() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.tasks(&["a", "b"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 2);
    assert_eq!(harness.requests(), 2);
    harness.check_invariants().await;
}

/// An answer passes the limit of one record. It is not recorded, and its calls are not made.
#[tokio::test]
async fn answer_beyond_limit_fails_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = alice_in(&folder);
    harness.set_model_fn("alice", |_, _| async {
        let call = Block::tool_use("1", "nap", json!({}));
        answer(vec![Block::text("x".repeat(9 * 1024 * 1024)), call], StopReason::ToolUse)
    });
    let task = run_task(&harness, task(None)).await;
    let reason = &task.failed_attempts.last().unwrap().reason;
    assert!(reason.contains("bytes, and 8388608 is the limit"), "{reason}");
    assert_eq!((task.status, harness.requests()), (TaskStatus::Failed, 1));
    assert_eq!(harness.count(|event| matches!(event, EventKind::ToolStarted { .. })), 0);
}
