//! `brigade watch` beside a running team.

use std::fs;

use serde_json::json;

use crate::session::interactive::model_with_calls;
use crate::session::terminal::{TestSession, tasks_waiting_for_file};
use crate::testkit::process::brigade;

#[test]
fn watch_shows_board_team_details_and_log() {
    for (height, columns) in [(40, 140), (24, 80)] {
        let mut team = TestSession::workspace(&tasks_waiting_for_file(6), &["run"], 30, 100, "xterm-256color");
        team.wait_until("both work", |shown| shown.contains("0/6 done, 2 running"));
        let mut watch = team.beside(&["watch"], height, columns);
        watch.wait_until("the board", |shown| shown.contains("0/6 done, 2 running") && shown.contains("Task 6"));
        watch.type_in("jj\r");
        watch.wait_until("the details of the third task", |shown| shown.contains("#3 Task 3"));
        watch.type_in("2");
        watch.wait_until("the members", |shown| shown.contains("ada") && shown.contains("bob"));
        watch.type_in("4");
        watch.wait_until("the log", |shown| shown.contains("claims #1"));
        watch.type_in("1?");
        watch.wait_until("the keys", |shown| shown.contains("the team goes on"));
        watch.type_in("?");
        fs::write(team.path().join("open"), "").unwrap();
        watch.wait_until("the end of the work", |shown| shown.contains("6/6 done"));
        watch.type_in("q");
        assert_eq!(watch.code(), Some(0), "{}", watch.shown());
        assert_eq!(team.code(), Some(0), "{}", team.shown());
    }
}

#[test]
fn watch_answers_plan_and_question_by_keys() {
    let plan = ("plan_approval", json!({ "plan": "Two coats of blue." }));
    let team = TestSession::scripted(&model_with_calls(&[plan]), None);
    team.wait_until("the plan waits", |shown| shown.contains("Two coats of blue."));
    let mut watch = team.beside(&["watch"], 40, 140);
    watch.wait_until("something waits", |shown| shown.contains("For you (1)"));
    watch.type_in("3");
    // The row has the words of the plan too.
    watch.wait_until("the plan in full", |shown| shown.contains("brigade plan approve"));
    watch.type_in("r");
    watch.wait_until("the reason is asked for", |shown| shown.contains("reject plan"));
    watch.type_in("\u{1b}");
    watch.wait_until("the line is closed", |shown| shown.contains("a approve"));
    // Ada may soon submit another plan, so that something waits again.
    watch.type_in("a1");
    watch.wait_until("the plan is approved", |shown| shown.contains("approved by human"));
    watch.type_in("2mWell donf\u{7f}e");
    watch.type_in("\u{1b}[200~,\rquit\u{1b}[201~\r");
    let transcript = team.path().join(".team/transcripts/ada.jsonl");
    team.wait_until("the message arrives", |_| fs::read_to_string(&transcript).unwrap().contains("Well done, quit"));
    // Until then the line takes no keys.
    watch.wait_until("the line is closed", |shown| shown.contains("sent to ada"));
    watch.type_in("q");
    assert_eq!(watch.code(), Some(0), "{}", watch.shown());
}

#[test]
fn watch_restores_the_terminal_and_needs_one() {
    let folder = tempfile::tempdir().unwrap();
    TestSession::write_workspace(folder.path(), "## One\n```sh\ntrue\n```\n");
    let piped = brigade(folder.path(), &["watch"]).output().unwrap();
    assert_eq!(piped.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&piped.stderr).contains("needs a terminal"));
    assert!(brigade(folder.path(), &["state", "pause", "--note", "back at noon"]).status().unwrap().success());
    let mut watch = TestSession::with(folder, &["watch"], 24, 80, "xterm-256color");
    watch.wait_until("the team and its reason", |shown| shown.contains("is not running  state pause: back at noon"));
    watch.type_in("q");
    assert_eq!(watch.code(), Some(0), "{}", watch.shown());
    assert!(!watch.screen().screen().alternate_screen());
}
