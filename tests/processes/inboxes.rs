//! Mail that is unreadable, that comes in floods, or that no process reads.

use std::fs;

use crate::testkit::process::{ProcessOutput, wait_until};
use crate::testkit::workspace::TestWorkspace;

#[test]
fn unreadable_inbox_is_quarantined_and_run_ends() {
    for kind in ["folder", "large"] {
        let workspace = TestWorkspace::with_team(2, "## One\n```sh\ntrue\n```\n");
        let inbox = workspace.join(".team/inbox/m1.jsonl");
        fs::create_dir_all(inbox.parent().unwrap()).unwrap();
        match kind {
            "folder" => fs::create_dir(&inbox).unwrap(),
            _ => fs::File::create(&inbox).unwrap().set_len(65 * 1024 * 1024).unwrap(),
        }
        let run = workspace.run(&["run"]);
        assert_eq!(run.code, Some(0), "{kind}: {run:?}");
        assert_eq!(run.err.matches("cannot be read as mail").count(), 1, "{kind}: {run:?}");
        assert_eq!(fs::read_dir(workspace.join(".team/inbox/.spoiled")).unwrap().count(), 1, "{kind}");
    }
}

#[test]
fn large_inbox_is_delivered_before_run_ends() {
    let workspace = TestWorkspace::with_team(2, "## One\n```sh\ntrue\n```\n");
    let lines: String = (0..12_000)
        .map(|n| {
            format!(
                "{{\"type\":\"message\",\"from\":\"zed\",\"content\":\"m{n};{}\",\"timestamp\":1.5}}\n",
                "x".repeat(30)
            )
        })
        .collect();
    workspace.write(".team/inbox/m1.jsonl", &lines);
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let transcript = workspace.read(".team/transcripts/m1.jsonl");
    for n in [0, 1, 5_999, 11_998, 11_999] {
        assert_eq!(transcript.matches(&format!(": m{n};")).count(), 1, "message {n}");
    }
    let waiting = workspace.run(&["inbox", "m1"]);
    assert!(waiting.out.is_empty() && waiting.err.contains("no mail waits"), "{waiting:?}");
}

#[test]
fn mail_without_id_is_taken_once() {
    let workspace = TestWorkspace::with_idle_team(1);
    workspace.write(
        ".team/inbox/human.jsonl",
        "{\"type\":\"message\",\"from\":\"tutor\",\"content\":\"hello\",\"timestamp\":1.0}\n",
    );
    assert!(workspace.run(&["inbox"]).out.contains("hello"));
    assert!(workspace.run(&["inbox", "--take"]).out.contains("hello"));
    assert!(!workspace.run(&["inbox"]).out.contains("hello"));
    let is_empty = || fs::read_dir(workspace.join(".team/inbox/.taken")).unwrap().next().is_none();
    wait_until("no temporary file is left", || {
        assert!(!workspace.run(&["inbox", "--take"]).out.contains("hello"));
        is_empty()
    });
    assert!(!workspace.run(&["inbox"]).out.contains("hello"));
}

/// Runs a command whose reader has closed the pipe.
fn run_with_closed_pipe(workspace: &TestWorkspace, arguments: &[&str]) -> ProcessOutput {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = workspace.brigade(arguments).stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
    ProcessOutput::from_output(output.wait_with_output().unwrap())
}

#[test]
fn unread_take_or_claim_is_undone() {
    let workspace = TestWorkspace::with_idle_team(1);
    assert_eq!(workspace.run(&["send", "human", "important"]).code, Some(0));
    let taken = run_with_closed_pipe(&workspace, &["inbox", "--take"]);
    assert!(taken.code == Some(1) && taken.err.contains("it stays unread"), "{taken:?}");
    assert!(workspace.run(&["inbox"]).out.contains("important"));
    assert!(workspace.run(&["inbox", "--take"]).out.contains("important"));
    assert_eq!(workspace.run(&["tasks", "add", "One"]).code, Some(0));
    let claimed = run_with_closed_pipe(&workspace, &["tasks", "claim", "--as", "zoe", "--json"]);
    assert!(claimed.code == Some(1) && claimed.err.contains("was released"), "{claimed:?}");
    assert_eq!(workspace.task(1)["status"], "pending");
}

#[test]
fn mail_does_not_resume_attempt_of_dead_process() {
    let workspace = TestWorkspace::with_team(1, "## One\n```sh\ntest -e open || sleep 300\n```\n");
    let mut run = workspace.start(&["run"]);
    wait_until("the member works", || run.output_so_far().contains("bash test -e open"));
    run.kill();
    workspace.assert_nothing_is_left_running();
    workspace.write("open", "");
    assert_eq!(workspace.run(&["send", "m1", "hi"]).code, Some(0));
    let again = workspace.run(&["run"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(!again.out.contains("task_update failed") && !again.out.contains("could not be reported"), "{again:?}");
    assert_eq!(workspace.task(1)["attempt"], 2);
}

#[test]
fn broadcast_leaves_out_member_not_in_running_team() {
    let workspace = TestWorkspace::with_idle_team(2);
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the team is up", || workspace.join(".team/config.json").exists());
    workspace.write_team(3, "");
    let sent = workspace.run(&["send", "all", "hello"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
    assert!(sent.out.contains("all 2 members"), "{sent:?}");
    assert!(sent.err.contains("not sent to m3"), "{sent:?}");
    up.kill();
}
