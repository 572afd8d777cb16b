//! Notifications for a person who does not watch the team: a command and an address, which may be slow or gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::testkit::process::wait_until;
use crate::testkit::seeds::run_in_threads;
use crate::testkit::workspace::TestWorkspace;

/// A task that completes, and one that fails for good.
const PLAN: &str = "## Dig\n```sh\ntrue\n```\n\n## Plant\n```sh\nexit 3\n```\n";

/// A server that keeps the JSON of each request and answers 200. Returns its URL.
fn server(received: &Arc<Mutex<Vec<Value>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let received = Arc::clone(received);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, received) = (stream.unwrap(), Arc::clone(&received));
            std::thread::spawn(move || while answer(&stream, &received).is_some() {});
        }
    });
    url
}

/// Reads one request and answers it; `None` at the end of the connection.
fn answer(mut stream: &TcpStream, received: &Mutex<Vec<Value>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    received.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
}

/// A team of two with this table of notifications.
fn team_with(notify: &str) -> TestWorkspace {
    let workspace = TestWorkspace::with_team(2, PLAN);
    workspace.write_team(2, &format!("plan = \"plan.md\"\nnotify = {{ {notify} }}"));
    workspace
}

#[test]
fn command_and_address_get_notifications() {
    let received = Arc::default();
    let command = r#"printf '%s %s\n' \"$BRIGADE_NOTICE_KIND\" \"$BRIGADE_NOTICE\" >> notices.txt; test -n \"$BRIGADE_NOTICE_JSON\""#;
    let workspace = team_with(&format!("command = \"{command}\", url = \"{}\"", server(&received)));
    workspace.run(&["send", "human", "the roof leaks"]);
    assert_eq!(workspace.run(&["run"]).code, Some(1));
    let kinds = |wanted: &str| received.lock().unwrap().iter().filter(|notice| notice["kind"] == wanted).count();
    assert_eq!((kinds("task_failed"), kinds("session_ended")), (1, 1), "{received:?}");
    let failed = received.lock().unwrap().iter().find(|notice| notice["kind"] == "task_failed").cloned().unwrap();
    assert_eq!((&failed["task"], &failed["team"]), (&Value::from(2), &Value::from("crew")), "{failed}");
    assert!(failed["text"].as_str().unwrap().contains("exit status 3"), "{failed}");
    let lines = workspace.read("notices.txt");
    assert!(
        lines.contains("task_failed #2 failed: ") && lines.contains("session_ended session 1 is over: "),
        "{lines}"
    );
    assert!(!workspace.events().iter().any(|event| event["about"] == "notify"), "a target failed");
}

#[test]
fn question_to_person_is_notified() {
    let received = Arc::default();
    let workspace = TestWorkspace::with_team(2, PLAN);
    let notify = format!("notify = {{ url = \"{}\" }}", server(&received));
    workspace.write_team(2, &format!("plan = \"plan.md\"\nreview = \"human\"\n{notify}"));
    let mut run = workspace.start(&["run"]);
    wait_until("the review is notified", || {
        assert!(!run.has_ended(), "{}", run.output_so_far());
        received.lock().unwrap().iter().any(|notice: &Value| notice["kind"] == "waits_for_you")
    });
    run.kill();
}

#[test]
fn silent_or_missing_target_holds_up_no_team() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let targets = [
        (format!("url = \"{silent_url}\""), ""),
        ("command = \"trap '' TERM; sleep 1000\"".to_owned(), ""),
        ("url = \"http://127.0.0.1:1\"".to_owned(), "notify.url: cannot be reached"),
        ("command = \"echo no >&2; exit 4\"".to_owned(), "exit status 4"),
    ];
    run_in_threads(targets.len(), targets, |(notify, failure)| {
        let workspace = team_with(&notify);
        assert_eq!(workspace.run(&["run"]).code, Some(1), "{notify}");
        let events = workspace.events();
        let warnings: Vec<&Value> = events.iter().filter(|event| event["about"] == "notify").collect();
        assert_eq!(warnings.len(), 1, "a failing target is reported once, for {notify}: {warnings:?}");
        assert!(warnings[0]["text"].as_str().unwrap().contains(failure), "{warnings:?}");
        assert_eq!(workspace.task(1)["status"], "completed");
    });
}

#[test]
fn notify_url_that_is_no_address_is_refused() {
    let workspace = team_with("url = \"example\"");
    let refused = workspace.run(&["run"]);
    assert!(refused.code == Some(2) && refused.err.contains("must begin with http:// or https://"), "{refused:?}");
}
