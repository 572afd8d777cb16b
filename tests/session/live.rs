//! The live view below the timeline of a run.

use std::fs;
use std::process::Command;

use rustix::termios::{Winsize, tcsetwinsize};

use crate::session::interactive::{asks, model_with_calls};
use crate::session::terminal::{TestSession, tasks_waiting_for_file};
use crate::testkit::process::brigade;

/// The rows of the screen that are not empty.
fn rows(session: &TestSession) -> Vec<String> {
    let parser = session.screen();
    let columns = parser.screen().size().1.get();
    let rows = parser.screen().rows(0, columns).map(|row| row.trim_end().to_owned());
    rows.filter(|row| !row.is_empty()).collect()
}

/// The number of board lines of the view, on the screen and above it.
fn board_lines(shown: &str) -> usize {
    shown.lines().filter(|line| line.contains(" done, ") && line.contains(" running")).count()
}

fn run_on_terminal(arguments: &[&str], rows: u16, columns: u16, term: &str) -> TestSession {
    TestSession::workspace(&tasks_waiting_for_file(6), arguments, rows, columns, term)
}

#[test]
fn live_view_stays_below_the_timeline() {
    for (height, columns) in [(30, 140), (24, 80), (24, 24)] {
        let mut session = run_on_terminal(&["run"], height, columns, "xterm-256color");
        session.wait_until("both work", |shown| shown.contains("0/6 done, 2 running"));
        session.run(&["tasks", "add", "A late one"]);
        // The view may be drawn at this moment.
        session.wait_until("the new view is the end of the screen, and the only one", |shown| {
            let rows = rows(&session);
            let is_last = rows.last().is_some_and(|row| row.contains("0/7 done, 2 running"));
            let working = rows.iter().filter(|row| row.contains(" working ")).count();
            is_last && working == 2 && board_lines(shown) == 1
        });
        fs::write(session.path().join("open"), "").unwrap();
        assert_eq!(session.code(), Some(1), "the late task has nothing to run: {}", session.shown());
        let shown = session.shown();
        assert_eq!(board_lines(&shown), 0, "the view is gone at the end: {shown}");
        assert!(shown.contains("#6"), "{shown}");
    }
}

#[test]
fn question_stays_above_the_live_view() {
    let question = "Which of the many shades of blue should the northern wall of the old shed have this summer?";
    let mut session = TestSession::scripted_with(&["run"], &model_with_calls(&[asks(question)]), None);
    assert_eq!(session.code(), Some(0), "{}", session.shown());
    let shown = session.shown().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(question) && shown.contains("`brigade send ada TEXT` answers)"), "{}", session.shown());
}

#[test]
fn live_view_follows_the_size_of_the_window() {
    let mut session = run_on_terminal(&["run"], 30, 120, "xterm-256color");
    session.wait_until("both work", |shown| shown.contains("0/6 done, 2 running"));
    let size = Winsize { ws_row: 30, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&session.ours, size).unwrap();
    session.screen().screen_mut().set_size(30.try_into().unwrap(), 60.try_into().unwrap());
    fs::write(session.path().join("open"), "").unwrap();
    assert_eq!(session.code(), Some(0), "{}", session.shown());
}

#[test]
fn live_view_is_left_out_where_it_cannot_be_drawn() {
    let simple = run_on_terminal(&["run"], 30, 100, "dumb");
    let plain = run_on_terminal(&["run", "--progress", "plain"], 30, 100, "xterm-256color");
    for mut session in [simple, plain] {
        fs::write(session.path().join("open"), "").unwrap();
        assert_eq!(session.code(), Some(0), "{}", session.shown());
        let shown = session.shown();
        assert!(shown.contains("completes #6") && board_lines(&shown) == 0, "{shown}");
    }
    let folder = tempfile::tempdir().unwrap();
    TestSession::write_workspace(folder.path(), "## One\n```sh\ntrue\n```\n");
    let piped = brigade(folder.path(), &["run", "--progress", "live"]).output().unwrap();
    let printed = String::from_utf8_lossy(&piped.stdout);
    assert!(piped.status.success() && printed.contains("completes #1") && !printed.contains('\u{1b}'), "{printed}");
}

#[test]
fn quiet_run_prints_only_the_result() {
    let mut session = TestSession::workspace(
        "## One\n```sh\ntrue\n```\n",
        &["run", "--progress", "quiet"],
        30,
        100,
        "xterm-256color",
    );
    assert_eq!(session.code(), Some(0), "{}", session.shown());
    let shown = session.shown();
    assert!(shown.contains("The task is done") && !shown.contains("claims #1"), "{shown}");
}

/// After Ctrl-Z the shell's prompt is not in the middle of the view, and `fg` draws it again.
#[test]
#[cfg(target_os = "linux")]
fn live_view_is_suspended_and_continued() {
    if Command::new("setsid").arg("--version").output().is_err() {
        println!("skipped: there is no setsid");
        return;
    }
    let mut session = TestSession::shell(&tasks_waiting_for_file(2));
    session.type_in("$P run crew\r");
    session.wait_until("the view is drawn", |shown| shown.contains("0/2 done, 1 running"));
    session.type_in("\u{1a}");
    session.wait_for_line("$");
    assert_eq!(board_lines(&session.shown()), 0, "{}", session.shown());
    session.type_in("fg\r");
    session.wait_until("the view is drawn again", |shown| shown.contains("0/2 done, 1 running"));
    fs::write(session.path().join("open"), "").unwrap();
    session.wait_until("the end", |shown| shown.contains("All 2 tasks done"));
    session.wait_for_line("$");
}
