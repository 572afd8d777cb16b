//! Mail that cannot be read, that comes in floods, that nobody reads.

use std::fs;

use super::support::{Answer, Place, wait_until};

#[test]
fn an_inbox_that_cannot_be_read_does_not_keep_a_run_from_its_end() {
    for kind in ["folder", "large"] {
        let place = Place::with_team(2, "## One\n```sh\ntrue\n```\n");
        let inbox = place.join(".team/inbox/m1.jsonl");
        fs::create_dir_all(inbox.parent().unwrap()).unwrap();
        match kind {
            "folder" => fs::create_dir(&inbox).unwrap(),
            _ => fs::File::create(&inbox).unwrap().set_len(65 * 1024 * 1024).unwrap(),
        }
        let run = place.run(&["run"]);
        assert_eq!(run.code, Some(0), "{kind}: {run:?}");
        assert_eq!(run.err.matches("kept aside").count(), 1, "{kind}: {run:?}");
        assert_eq!(fs::read_dir(place.join(".team/inbox/.spoiled")).unwrap().count(), 1, "{kind}");
    }
}

#[test]
fn a_flood_of_mail_is_delivered_before_the_run_ends() {
    let place = Place::with_team(2, "## One\n```sh\ntrue\n```\n");
    let lines: String = (0..12_000)
        .map(|n| {
            format!(
                "{{\"type\":\"message\",\"from\":\"zed\",\"content\":\"m{n};{}\",\"timestamp\":1.5}}\n",
                "x".repeat(30)
            )
        })
        .collect();
    place.write(".team/inbox/m1.jsonl", &lines);
    let run = place.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let transcript = place.read(".team/transcripts/m1.jsonl");
    for n in [0, 1, 5_999, 11_998, 11_999] {
        assert_eq!(transcript.matches(&format!(": m{n};")).count(), 1, "message {n}");
    }
    let waiting = place.run(&["inbox", "m1"]);
    assert!(waiting.out.is_empty() && waiting.err.contains("no mail waits"), "{waiting:?}");
}

#[test]
fn mail_without_an_id_is_shown_once_and_let_go_of() {
    let place = Place::with_idle_team(1);
    place.write(
        ".team/inbox/human.jsonl",
        "{\"type\":\"message\",\"from\":\"tutor\",\"content\":\"hello\",\"timestamp\":1.0}\n",
    );
    assert!(place.run(&["inbox"]).out.contains("hello"));
    assert!(place.run(&["inbox", "--take"]).out.contains("hello"));
    assert!(!place.run(&["inbox"]).out.contains("hello"));
    let is_empty = || fs::read_dir(place.join(".team/inbox/.taken")).unwrap().next().is_none();
    wait_until("nothing is left of it", || {
        assert!(!place.run(&["inbox", "--take"]).out.contains("hello"));
        is_empty()
    });
    assert!(!place.run(&["inbox"]).out.contains("hello"));
}

/// Runs a command whose reader is gone.
fn unread(place: &Place, arguments: &[&str]) -> Answer {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = place.brigade(arguments).stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
    Answer::from_output(output.wait_with_output().unwrap())
}

#[test]
fn what_nobody_read_was_not_taken() {
    let place = Place::with_idle_team(1);
    assert_eq!(place.run(&["send", "human", "important"]).code, Some(0));
    let taken = unread(&place, &["inbox", "--take"]);
    assert!(taken.code == Some(1) && taken.err.contains("stays where it is"), "{taken:?}");
    assert!(place.run(&["inbox"]).out.contains("important"));
    assert!(place.run(&["inbox", "--take"]).out.contains("important"));
    assert_eq!(place.run(&["tasks", "add", "One"]).code, Some(0));
    let claimed = unread(&place, &["tasks", "claim", "--as", "zoe", "--json"]);
    assert!(claimed.code == Some(1) && claimed.err.contains("given back"), "{claimed:?}");
    assert_eq!(place.task(1)["status"], "pending");
}

#[test]
fn mail_wakes_no_attempt_of_a_dead_process() {
    let place = Place::with_team(1, "## One\n```sh\ntest -e open || sleep 300\n```\n");
    let mut run = place.start(&["run"]);
    wait_until("it works", || run.said().contains("bash test -e open"));
    run.kill();
    place.assert_nothing_is_left_running();
    place.write("open", "");
    assert_eq!(place.run(&["send", "m1", "hi"]).code, Some(0));
    let again = place.run(&["run"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(!again.out.contains("task_update failed") && !again.out.contains("could not be reported"), "{again:?}");
    assert_eq!(place.task(1)["attempt"], 2);
}
