//! The interactive session.

use std::fs;
use std::process::{Command, Stdio};

use rustix::termios::tcgetattr;
use serde_json::{Value, json};

use crate::session::terminal::{TestSession, tasks_waiting_for_file};
use crate::testkit::process::{ProcessOutput, brigade, git};

#[test]
fn typed_line_survives_team_output() {
    for (rows, columns) in [(24, 100), (10, 40)] {
        let mut session = TestSession::new(&tasks_waiting_for_file(75), rows, columns, "xterm-256color");
        session.wait_until("the prompt", |shown| shown.contains("crew>"));
        session.wait_until("the work has started", |shown| shown.contains("claims #1"));
        let first = "/tasks add 'Half of a line that is long enough ";
        session.type_in(first);
        session.wait_until("the input is echoed", |shown| shown.contains("long enough"));
        fs::write(session.path().join("open"), "").unwrap();
        session.wait_until("all lines are printed", |shown| shown.matches("completes #").count() == 75);
        let typed = format!("crew> {first}");
        session.wait_until("the line is unchanged", |shown| shown.trim_end().ends_with(typed.trim_end()));
        let shown = session.shown();
        assert_eq!(shown.matches("Half of a line").count(), 1, "{shown}");
        assert!(shown.lines().count() > 200, "{shown}");
        for id in 1..=75 {
            assert_eq!(shown.matches(&format!("claims #{id} Task {id}\n")).count(), 1, "#{id}: {shown}");
        }
        session.type_in("to wrap around'\r");
        session.wait_until("the team obeys", |shown| shown.contains("added #76"));
        let subject = "Half of a line that is long enough to wrap around";
        assert!(session.run(&["tasks", "show", "76"]).contains(subject));
        // Between two lines the terminal would take the key for itself.
        session.wait_for_line("crew>");
        session.type_in("\u{4}");
        // The added task has nothing to run: it fails, unless the team stops before.
        assert!(matches!(session.code(), Some(1 | 130)), "{}", session.shown());
    }
}

#[test]
fn session_end_prints_last_lines_in_order() {
    for end in ["\u{4}", "/quit\r", "q\r", "stop\r", "TERM", "stop by another"] {
        for _ in 0..3 {
            let mut session = TestSession::new("## One\n```sh\ntrue\n```\n", 24, 80, "xterm-256color");
            session.wait_until("it is done", |shown| shown.contains("completes #1"));
            session.wait_for_line("crew>");
            match end {
                "TERM" => {
                    let kill = Command::new("kill").arg(session.child.id().to_string()).status();
                    assert!(kill.unwrap().success());
                }
                "stop by another" => {
                    session.run(&["stop"]);
                }
                typed => session.type_in(typed),
            }
            assert_eq!(session.code(), Some(0), "{end:?}: {}", session.shown());
            let shown = session.shown();
            let position = |text: &str| shown.rfind(text).unwrap_or_else(|| panic!("{end:?}: no {text:?} in {shown}"));
            assert!(position("crew stopped: on request") < position("The task is done"), "{end:?}: {shown}");
            assert!(position("\nstopping") < position("crew stopped"), "{end:?}: {shown}");
            let last = &shown[position("\nstopping")..];
            assert!(!last.contains("crew>"), "{end:?}: a prompt is left: {shown}");
        }
    }
}

#[test]
fn session_runs_commands_and_reports_errors() {
    let mut session = TestSession::new("## One\n```sh\ntrue\n```\n", 50, 120, "xterm");
    session.wait_until("the tasks are done", |shown| shown.contains("completes #1"));
    for (typed, said) in [
        ("/tasks", "1  completed"),
        ("/team", "crew is running (pid"),
        ("/why 1", "It is completed by"),
        ("/tsaks", "did you mean `/tasks`?"),
        ("/tasks sow", "unknown command `/tasks sow`"),
        ("/tasks show 77", "#77"),
        ("/state", "desired"),
        ("/log -n 20", "completes #1"),
        ("/help", "@NAME TEXT"),
        ("hello", "the lead has no model"),
        ("@ada well done", "sent to ada"),
        ("@ghost x", "cannot send to `ghost`"),
        ("@all well done", "sent to all 2 members"),
        ("/send human 'a question for the person'", "a question for the person"),
        ("/tasks add 'one that\\", "not closed"),
    ] {
        let before = session.shown().matches(said).count();
        // Tab completes nothing here that changes the line.
        session.type_in(&format!("{typed}\r"));
        session.wait_until(said, |shown| shown.matches(said).count() > before);
    }
    let teams = session.shown().matches("crew is running (pid").count();
    session.type_in("/te\t\r");
    session.wait_until("completed", |shown| shown.matches("crew is running (pid").count() > teams);
    session.wait_until("the next prompt", |shown| shown.trim_end().ends_with("crew>"));
    // Up recalls the last line.
    session.type_in("\u{1b}[A");
    session.wait_until("history", |shown| shown.trim_end().ends_with("crew> /team"));
    // With typed text it only clears the line.
    session.type_in("\u{3}");
    session.wait_until("an empty line", |_| session.line().trim_end() == "crew>");
    session.type_in("\u{3}");
    // Between two lines the terminal would take the key for itself.
    session.wait_until("a hint", |shown| shown.contains("Ctrl-C once more"));
    session.wait_for_line("crew>");
    session.type_in("\u{3}");
    assert_eq!(session.code(), Some(0));
    assert!(session.shown().contains("The task is done"), "{}", session.shown());
    assert!(fs::read_to_string(session.path().join(".team/history")).unwrap().contains("/why 1"));
}

#[test]
fn session_runs_commands_typed_ahead() {
    let mut session = TestSession::new("## One\n```sh\ntrue\n```\n", 50, 120, "xterm");
    session.wait_until("the tasks are done", |shown| shown.contains("completes #1"));
    session.type_in("/tasks add 'typed ahead'\r/why 1\r/state\r");
    session.wait_until("the last of three", |shown| {
        shown.contains("desired continuous") && shown.contains("It is completed by")
    });
    assert!(session.run(&["tasks"]).contains("typed ahead"));
}

#[test]
fn terminal_settings_are_restored_at_exit() {
    for end in ["\u{4}", "/quit\r", "TERM", "done"] {
        let mut session = TestSession::new("## One\n```sh\ntrue\n```\n", 24, 80, "xterm");
        let before = format!("{:?}", tcgetattr(&session.terminal).unwrap());
        session.wait_until("the tasks are done", |shown| shown.contains("completes #1"));
        session.wait_until("the prompt", |shown| shown.trim_end().ends_with("crew>"));
        assert_ne!(
            format!("{:?}", tcgetattr(&session.terminal).unwrap()),
            before,
            "the terminal is not in line-editing mode"
        );
        match end {
            "TERM" => {
                session.type_in("half a line");
                session.wait_until("the input is echoed", |shown| shown.contains("half a line"));
                let kill = Command::new("kill").arg(session.child.id().to_string()).status();
                assert!(kill.unwrap().success());
            }
            "done" => {
                session.run(&["stop"]);
            }
            typed => session.type_in(typed),
        }
        assert_eq!(session.code(), Some(0), "{end:?}");
        assert_eq!(format!("{:?}", tcgetattr(&session.terminal).unwrap()), before, "{end:?}");
        assert!(session.shown().contains("The task is done"), "{end:?}: {}", session.shown());
    }
}

#[test]
fn dumb_terminal_gets_line_based_session() {
    let mut session = TestSession::new("## One\n```sh\ntrue\n```\n", 24, 80, "dumb");
    session.wait_until("the tasks are done", |shown| shown.contains("completes #1"));
    session.type_in("/tasks\n");
    session.wait_until("the board", |shown| shown.contains("1  completed"));
    session.type_in("/quit\n");
    assert_eq!(session.code(), Some(0));
    let raw = session.shown();
    assert!(!raw.contains('\u{1b}'), "{raw}");
}

/// A model that makes these calls at its first task, and completes it.
/// A model that makes these calls first, then completes its task.
pub fn model_with_calls(first: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> = first.iter().map(|(tool, input)| json!({ "tool": tool, "input": input })).collect();
    let done = json!({ "task_id": "{{task}}", "status": "completed", "result": "painted" });
    json!({
        "task": [{ "call": calls }, { "call": [{ "tool": "task_update", "input": done }] }, { "say": "Painted." }],
        "mail": [{ "say": "I note that." }],
        "compact": [{ "say": "SUMMARY of the painting" }],
    })
}

/// A question to the person.
pub fn asks(question: &str) -> (&'static str, Value) {
    ("send_message", json!({ "to": "human", "content": question }))
}

#[test]
fn open_question_stays_on_prompt_until_answered() {
    let mut session = TestSession::scripted(&model_with_calls(&[asks("Which colour?\n1. red\n2. 漢字")]), None);
    session.wait_until("the whole question", |shown| shown.contains("  1. red\n  2. 漢字\n  `@ada TEXT` answers"));
    session.wait_for_line("crew? ada asks: Which colour? 1. red 2. 漢字 (Tab starts the answer)");
    session.type_in("x");
    session.wait_for_line("crew? x");
    assert_eq!(session.line().trim_end(), "crew? x", "a piece of it is left after the input");
    session.type_in("\u{7f}");
    session.wait_for_line("crew? ada asks");
    session
        .wait_until("the question is recorded as read", |_| session.run(&["inbox", "--json"]).contains("\"data\":[]"));
    // Killed and started again, the program does not repeat the message and still waits.
    let mut session = TestSession::at(session.kill(), 50, 120, "xterm-256color");
    session.wait_for_line("crew? ada asks: Which colour?");
    session.wait_until("the question again", |shown| shown.contains("ada asked: Which colour?"));
    assert!(!session.shown().contains("`@ada TEXT` answers"), "{}", session.shown());
    session.type_in("\t");
    session.wait_for_line("crew? @ada");
    session.type_in("green, please\r");
    session.wait_until("the answer", |shown| shown.contains("sent to ada"));
    session.wait_until("the mail is read", |shown| shown.contains("says: I note that."));
    session.wait_for_line("crew>");
    assert_eq!(session.line().trim_end(), "crew>");
    assert!(session.run(&["inbox", "--read"]).contains("Which colour?"));
}

#[test]
fn first_tab_lists_all_that_waits() {
    let plan = ("plan_approval", json!({ "plan": "1. Sand.\n2. Paint." }));
    let mut session = TestSession::scripted(&model_with_calls(&[asks("Which colour?"), plan]), None);
    session.wait_until("both wait", |shown| shown.contains("(Tab lists all 2)"));
    session.type_in("\t");
    session.wait_until("both are listed", |shown| {
        shown.contains("@ada  ada asks: Which colour?") && shown.contains("/plan show ")
    });
    session.type_in("/plan\r");
    session.wait_until("nothing was typed by Tab", |shown| shown.contains("approve: `/plan approve"));
}

#[test]
fn mail_received_before_session_is_shown_at_start() {
    let mut session = TestSession::scripted(&model_with_calls(&[]), None);
    session.wait_until("the tasks are done", |shown| shown.contains("completes #1"));
    let folder = session.kill();
    assert!(
        brigade(folder.path(), &["send", "human", "the roof leaks"]).stdin(Stdio::null()).status().unwrap().success()
    );
    session = TestSession::at(folder, 50, 120, "xterm-256color");
    session.wait_until("the text is shown", |shown| shown.contains("  the roof leaks"));
    session.wait_until("the answer is accepted", |_| session.run(&["inbox", "--json"]).contains("\"data\":[]"));
}

#[test]
fn plan_under_runbook_lead_is_answered_in_session() {
    let plan = "1. Sand.\n2. Paint.";
    let mut session = TestSession::scripted(&model_with_calls(&[("plan_approval", json!({ "plan": plan }))]), None);
    session.wait_until("the plan", |shown| shown.contains("  1. Sand.\n  2. Paint.\n"));
    session.wait_for_line("crew? ada asks about plan ");
    let listed: Value = serde_json::from_str(&session.run(&["plan", "--json"])).unwrap();
    let id = listed["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!((listed["data"][0]["to"].as_str(), listed["data"][0]["plan"].as_str()), (Some("human"), Some(plan)));
    session.type_in("/team\r");
    session.wait_until("the dependencies", |shown| shown.contains(&format!("a person (plan {id})")));
    assert!(session.run(&["team"]).contains(&format!("a person (plan {id})")));
    session.type_in("/plan approve nope\r");
    session.wait_until("no such plan", |shown| shown.contains("there is no plan `nope`"));
    session.type_in(&format!("/plan reject {}\t--feedback 'sand twice'\r", &id[..3]));
    session.wait_until("answered", |shown| shown.contains(&format!("plan {id} rejected; ada is notified")));
    session.wait_until("the mail is read", |shown| shown.contains("says: I note that."));
    session.wait_for_line("crew>");
    let read = fs::read_to_string(session.path().join(".team/transcripts/ada.jsonl")).unwrap();
    assert!(read.contains("(approve: false): sand twice"), "{read}");
    session.type_in(&format!("/plan approve {id}\r"));
    session.wait_until("once", |shown| shown.contains("already answered (rejected by human)"));
    session.type_in("/plan\r");
    session.wait_until("none", |shown| shown.contains("no plan waits for an answer"));
}

#[test]
fn session_compacts_and_watches_teammates() {
    let lead = json!({
        "goal": [{ "call": [{ "tool": "task_create", "input": { "subject": "Paint", "description": "", "requires": ["painter"] } }] }, { "say": "Planned." }],
        "mail": [{ "say": "I hear you." }],
        "report": [{ "say": "It is painted." }],
        "compact": [{ "say": "SUMMARY of the plan" }],
    });
    let mut session = TestSession::scripted(&model_with_calls(&[]), Some(&lead));
    session.wait_until("the command has ended", |shown| shown.contains("session 1 is over"));
    for (typed, said) in [
        ("/compact", "lead   context compacted"),
        ("/compact", "nothing to compact"),
        ("/compact ada", "ada    context compacted"),
        ("/compact bob", "bob uses the `runbook` provider"),
        ("/compact ghost", "there is no member `ghost`; members: ada, bob, lead"),
        (
            "/watch ghost",
            "there is no teammate `ghost`; known: ada, bob
",
        ),
        ("/watch ada", "the text of ada is shown as it is written"),
        ("@ada hello", "ada\n  I note that."),
        ("/watch ada", "only the lead's text is shown"),
        ("hello", "lead\n  I hear you."),
        ("/log --follow", "it shows new events already"),
    ] {
        session.wait_for_line("crew>");
        session.type_in(&format!("{typed}\r"));
        session.wait_until(&format!("{typed}: {said}"), |shown| shown.contains(said));
    }
    assert!(!session.shown().contains("SUMMARY"), "a summary is shown to the person: {}", session.shown());
}

/// The terminal belongs to one process group. The others must neither read it nor hang without it.
#[cfg(target_os = "linux")]
#[test]
fn background_job_team_works_and_can_be_stopped() {
    let mut session = TestSession::shell(&tasks_waiting_for_file(2));
    session.type_in("$P up &\r");
    session.wait_until("the notice is shown", |shown| shown.contains("the team runs in the background"));
    session.wait_until("the member works", |shown| shown.contains("claims #1"));
    assert!(session.run(&["team"]).contains("is running (pid"));
    assert!(session.run(&["stop", "--now"]).contains("is stopped"));
    // Suspended in the middle of a line, it continues without the terminal, and later with it.
    session.type_in("\r$P up\r");
    session.wait_for_line("crew>");
    session.type_in("/why 1");
    session.wait_for_line("crew> /why 1");
    session.type_in("\u{1a}");
    session.wait_until("the shell has its terminal", |shown| shown.contains("Stopped"));
    session.type_in("bg\r");
    session.wait_until("the team continues", |_| session.run(&["team"]).contains("is running (pid"));
    // The prompt of the shell may come before or after this is typed, so its answer need not begin a line.
    session.type_in("echo shell-$((6 * 7))\r");
    session.wait_until("the shell works", |shown| shown.contains("shell-42"));
    fs::write(session.path().join("open"), "").unwrap();
    session.wait_until("the team works", |shown| shown.contains("completes #2"));
    session.type_in("fg\r");
    session.wait_for_line("crew> /why 1");
    session.type_in("\r");
    session.wait_until("the team obeys", |shown| shown.contains("It is completed by"));
    // Suspended again, it says so, and still obeys a stop.
    session.wait_for_line("crew>");
    session.type_in("\u{1a}");
    session.wait_until("the notice is printed", |_| session.run(&["team"]).contains("is suspended"));
    assert!(session.run(&["stop"]).contains("is stopped"));
    session.wait_until("the run ends", |shown| shown.matches("crew stopped: on request").count() == 2);
    session.type_in("echo shell-$((6 * 9))\r");
    session.wait_until("the shell has its terminal as it was", |shown| shown.contains("shell-54"));
}

#[test]
fn paused_team_is_shown_on_prompt() {
    let session = TestSession::new("## One\n```sh\ntrue\n```\n", 24, 100, "xterm-256color");
    session.wait_until("the tasks are done", |shown| shown.contains("completes #1"));
    session.run(&["state", "pause"]);
    session.wait_for_line("crew> (paused; `/state continuous` starts the team)");
    let mut session = TestSession::at(session.kill(), 24, 100, "xterm-256color");
    session.wait_for_line("crew> (paused");
    session.wait_until("why", |shown| {
        shown.contains("agent_state.json pauses the team; run `/state continuous` to continue")
    });
    assert!(
        session.shown().find("crew starts") < session.shown().find("agent_state.json pauses"),
        "{}",
        session.shown()
    );
    session.type_in("/state continuous\r");
    session.wait_until("it is obeyed", |shown| {
        shown.contains("  state continuous") || shown.contains("desired state continuous")
    });
    session.wait_until("the notice is gone", |_| session.line().trim_end() == "crew>");
}

#[test]
fn command_effects_are_printed_after_its_answer() {
    let lead = json!({ "goal": [{ "say": "Planned." }], "mail": [{ "say": "I hear you." }], "report": [{ "say": "So it is." }] });
    let mut session = TestSession::scripted(&model_with_calls(&[]), Some(&lead));
    for number in 1..=5 {
        session.wait_until("the command has ended", |shown| shown.contains(&format!("session {number} is over")));
        session.wait_for_line("crew> (waits for a claimable task or a message to the lead: the lead has not reported");
        session.type_in("hello\r");
    }
    session.wait_until("the last session is over", |shown| shown.contains("session 6 is over"));
    let shown = session.shown();
    let told: Vec<&str> =
        shown.lines().filter(|line| line.contains("sent to lead") || line.contains(" begins (")).collect();
    assert_eq!(told.len(), 11, "{shown}");
    let is_begin = |line: &&str| line.contains("begins");
    assert!(told.iter().enumerate().all(|(workspace, line)| is_begin(line) == (workspace % 2 == 0)), "{shown}");
}

#[test]
fn streamed_answer_is_shown_once() {
    let lead = json!({ "goal": [{ "say": "Planned." }], "mail": [{ "say": "I hear you.\nI write it down." }] });
    let mut session = TestSession::scripted(&model_with_calls(&[]), Some(&lead));
    session.wait_until("the goal is read", |shown| shown.contains("session 1 is over"));
    for number in 2..=7 {
        session.wait_for_line("crew>");
        // A slow command holds the output back. The pieces of the answer and its event then wait together.
        session.type_in("hello\r/doctor\r");
        session.wait_until("the answer", |shown| shown.contains(&format!("session {number} is over")));
    }
    session.type_in("/quit\r");
    assert_eq!(session.code(), Some(130), "the goal is not met");
    let shown = session.shown();
    assert_eq!(shown.matches("I hear you.").count(), 6, "{shown}");
    for number in 2..=7 {
        let before_end = shown.split(&format!("session {number} is over")).next().unwrap();
        assert_eq!(before_end.matches("I write it down.").count(), number - 1, "session {number}: {shown}");
    }
    assert_eq!(shown.matches("I write it down.").count(), 6, "{shown}");
}

#[test]
fn verify_of_clone_asks_on_terminal() {
    for (typed, runs) in [("\r", false), ("n\r", false), ("y\r", true)] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(".tasks")).unwrap();
        let task = r#"{"id":1,"subject":"theirs","status":"in_progress","owner":"x","verify":"touch verified"}"#;
        fs::write(folder.path().join(".tasks/task_1.json"), task).unwrap();
        git(folder.path(), &["init", "-q"]);
        git(folder.path(), &["add", "-A"]);
        let mut command = brigade(folder.path(), &["tasks", "complete", "1", "--force"]);
        command.env_remove("CI").env_remove("BRIGADE_TRUST");
        let mut session = TestSession::of(command, Some(folder), 30, 120, "xterm-256color");
        session.wait_until("the program asks", |shown| {
            shown.contains("verify of #1: touch verified") && shown.contains("[y/N]")
        });
        assert!(!session.path().join("verified").exists(), "the command ran before the answer");
        session.type_in(typed);
        assert_eq!(session.code(), Some(if runs { 0 } else { 2 }), "{}", session.shown());
        assert_eq!(session.path().join("verified").exists(), runs, "{}", session.shown());
        let task = fs::read_to_string(session.path().join(".tasks/task_1.json")).unwrap();
        assert_eq!(task.contains("completed"), runs, "{task}");
    }
}

#[test]
fn launch_of_clone_asks_on_terminal() {
    for (arguments, typed, runs) in [
        (["up"], "\r", false),
        (["up"], "no\r", false),
        (["run"], "\u{4}", false),
        (["run"], "y\r", true),
        (["up"], "yes\r", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config =
            "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"ada\"\n";
        fs::write(folder.path().join("brigade.toml"), config).unwrap();
        fs::write(folder.path().join("plan.md"), "## One\n```sh\ntouch ran\n```\n").unwrap();
        git(folder.path(), &["init", "-q"]);
        git(folder.path(), &["add", "-A"]);
        let mut command = brigade(folder.path(), &arguments);
        command.env_remove("CI").env_remove("BRIGADE_TRUST");
        let mut session = TestSession::of(command, Some(folder), 30, 120, "xterm-256color");
        session.wait_until("the program asks", |shown| {
            shown.contains("the plan plan.md (1 task, ") && shown.contains("[y/N]")
        });
        assert!(session.shown().contains("touch ran"), "{}", session.shown());
        session.type_in(typed);
        if runs {
            session.wait_until("the member works", |_| session.path().join("ran").exists());
            session.wait_until("the session starts after the answer", |shown| shown.contains("completes #1"));
            if arguments == ["run"] {
                assert_eq!(session.code(), Some(0));
                let mut again = brigade(session.path(), &["run"]);
                again.env_remove("BRIGADE_TRUST");
                let again = ProcessOutput::of(again);
                assert!(again.code == Some(0) && again.err.is_empty(), "the answer was not recorded: {again:?}");
            }
            continue;
        }
        assert_eq!(session.code(), Some(2), "{}", session.shown());
        let mut left: Vec<_> = fs::read_dir(session.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".git", "brigade.toml", "plan.md"], "a file was written");
    }
}

#[test]
fn agent_command_of_clone_waits_for_answer() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[teams.crew]\nisolation = \"worktree\"\n[[teams.crew.members]]\nname = \"ada\"\n\
                  provider = \"claude-code\"\ncommand = \"touch ran; echo 2.1.330 #\"\n";
    fs::write(folder.path().join("brigade.toml"), config).unwrap();
    git(folder.path(), &["init", "-q"]);
    git(folder.path(), &["add", "-A"]);
    git(folder.path(), &["commit", "-q", "-m", "start"]);
    let mut command = brigade(folder.path(), &["run"]);
    command.env_remove("CI").env_remove("BRIGADE_TRUST");
    let mut session = TestSession::of(command, Some(folder), 30, 120, "xterm-256color");
    session.wait_until("the program asks", |shown| shown.contains("touch ran") && shown.contains("[y/N]"));
    session.type_in("no\r");
    assert_eq!(session.code(), Some(2), "{}", session.shown());
    assert!(!session.path().join("ran").exists());
}

/// The first program of its name in `PATH` may come from a repository.
#[test]
fn pager_gets_no_key_of_provider() {
    let folder = tempfile::tempdir().unwrap();
    let plan = "## Change\n```sh\nseq 100 > numbers.txt\n```\n";
    TestSession::write_workspace(folder.path(), plan);
    let config = fs::read_to_string(folder.path().join("brigade.toml")).unwrap();
    let isolated = config.replace("[teams.crew]", "[teams.crew]\nisolation = \"worktree\"");
    fs::write(folder.path().join("brigade.toml"), isolated).unwrap();
    git(folder.path(), &["init", "-q", "-b", "main", "."]);
    git(folder.path(), &["add", "-A"]);
    git(folder.path(), &["commit", "-q", "-m", "Begin"]);
    let run = brigade(folder.path(), &["run", "crew"]).stdin(Stdio::null()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let variables = folder.path().join("variables");
    let mut diff = brigade(folder.path(), &["tasks", "diff", "1"]);
    diff.env("PAGER", format!("env > {}; cat", variables.display())).env("ANTHROPIC_API_KEY", "sk-ant-never");
    let mut session = TestSession::of(diff, Some(folder), 10, 100, "xterm-256color");
    assert_eq!(session.code(), Some(0), "{}", session.shown());
    assert!(session.shown().contains("+100"), "{}", session.shown());
    let variables = fs::read_to_string(variables).unwrap();
    assert!(variables.contains("TERM=xterm-256color") && !variables.contains("sk-ant-never"), "{variables}");
}
