//! The interactive session on a pseudo-terminal, as a person sees it: what the program prints is drawn by a terminal emulator.
//!
//! The program gets a terminal of its own; what is typed goes in on the other side. Tests wait for what the screen shows.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what fails in a test is to stop it")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

/// How long a condition may take on a slow, busy machine before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lines that are kept above the screen.
const SCROLLBACK: usize = 5_000;

/// A person's terminal with the program in it.
struct Seat {
    folder: Option<tempfile::TempDir>,
    terminal: File,
    ours: File,
    screen: Arc<Mutex<vt100::Parser>>,
    child: Child,
}

impl Seat {
    /// A workspace with this plan and two runbook members, and `brigade up` on a terminal of this size.
    fn new(plan: &str, rows: u16, columns: u16, term: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n\
                      [[teams.crew.members]]\nname = \"ada\"\n[[teams.crew.members]]\nname = \"bob\"\n";
        fs::write(folder.path().join("brigade.toml"), config).unwrap();
        fs::write(folder.path().join("plan.md"), plan).unwrap();
        Self::at(folder, rows, columns, term)
    }

    /// The same with ada behind a scripted model, and the lead too where there is a script for it.
    fn scripted(ada: &Value, lead: Option<&Value>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let member = |name: &str, script: &Value| {
            let path = folder.path().join(format!("{name}.json"));
            fs::write(&path, script.to_string()).unwrap();
            format!("provider = \"scripted\"\nmodel = {:?}\n", path.to_str().unwrap())
        };
        let goal = lead.map_or("plan = \"plan.md\"", |_| "goal = \"Paint the shed\"");
        let lead = lead.map(|script| format!("[teams.crew.lead]\n{}", member("lead", script))).unwrap_or_default();
        let ada = member("ada", ada);
        let config = format!(
            "durability = \"process\"\n[teams.crew]\n{goal}\n{lead}[[teams.crew.members]]\nname = \"ada\"\nrole = \"painter\"\n{ada}\
             [[teams.crew.members]]\nname = \"bob\"\nprovider = \"runbook\"\n"
        );
        fs::write(folder.path().join("brigade.toml"), config).unwrap();
        fs::write(folder.path().join("plan.md"), "## Paint\nrequires: painter\n").unwrap();
        Self::at(folder, 50, 120, "xterm-256color")
    }

    /// `brigade up` in this workspace, on a terminal of this size.
    fn at(folder: tempfile::TempDir, rows: u16, columns: u16, term: &str) -> Self {
        Self::with(folder, &["up"], rows, columns, term)
    }

    /// `brigade` with these arguments in this workspace, on a terminal of this size.
    fn with(folder: tempfile::TempDir, arguments: &[&str], rows: u16, columns: u16, term: &str) -> Self {
        let command = brigade(folder.path(), arguments);
        Self::of(command, folder, rows, columns, term)
    }

    /// A shell with job control in a workspace with this plan, on a terminal of its own; `$P` is `brigade`.
    #[cfg(target_os = "linux")]
    fn shell(plan: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config =
            "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"ada\"\n";
        fs::write(folder.path().join("brigade.toml"), config).unwrap();
        fs::write(folder.path().join("plan.md"), plan).unwrap();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "sh", "-i"]).current_dir(folder.path());
        command.env("P", env!("CARGO_BIN_EXE_brigade")).env("PS1", "$ ").env("XDG_CONFIG_HOME", folder.path());
        let seat = Self::of(command, folder, 30, 100, "xterm-256color");
        seat.until_line("$");
        seat
    }

    /// This command on a terminal of this size.
    fn of(mut command: Command, folder: tempfile::TempDir, rows: u16, columns: u16, term: &str) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(theirs.to_str().unwrap()).unwrap();
        let ours = File::from(ours);
        tcsetwinsize(&ours, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let child = command
            .env("TERM", term)
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs.try_clone().unwrap())
            .spawn()
            .unwrap();
        let screen =
            Arc::new(Mutex::new(vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), SCROLLBACK)));
        let (mut from, to) = (ours.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { folder: Some(folder), terminal: theirs, ours, screen, child }
    }

    fn path(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    /// Kills the program at once, and leaves its workspace.
    fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.folder.take().unwrap()
    }

    /// The line with the cursor, as it is shown now.
    fn line(&self) -> String {
        let parser = self.screen();
        let screen = parser.screen();
        let row = usize::from(screen.cursor_position().0);
        screen.rows(0, screen.size().1.get()).nth(row).unwrap()
    }

    fn until_line(&self, what: &str) {
        let began = Instant::now();
        while !self.line().starts_with(what) {
            assert!(began.elapsed() < PATIENCE, "the line never was {what:?}\n{}\n{}", self.line(), self.shown());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The event a replay of `last` events asks at, once it asks at one behind `before`.
    fn stands_at(&self, last: usize, before: usize) -> usize {
        let began = Instant::now();
        loop {
            let asked = self.line();
            match asked.trim_end().strip_suffix(&format!("/{last}>")).and_then(|at| at.parse().ok()) {
                Some(at) if at > before => return at,
                _ => {}
            }
            assert!(began.elapsed() < PATIENCE, "it never moved on from event {before}\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn type_in(&mut self, text: &str) {
        self.ours.write_all(text.as_bytes()).unwrap();
    }

    fn screen(&self) -> MutexGuard<'_, vt100::Parser> {
        self.screen.lock().unwrap()
    }

    /// All that was ever shown, lines joined where they were broken by the width.
    fn shown(&self) -> String {
        let mut parser = self.screen();
        let screen = parser.screen_mut();
        let (rows, columns) = (usize::from(screen.size().0.get()), screen.size().1.get());
        screen.set_scrollback(usize::MAX);
        let mut text = String::new();
        let above = screen.scrollback();
        let mut left = above;
        loop {
            screen.set_scrollback(left);
            let take = if left == 0 { rows } else { rows.min(left) };
            for (row, line) in screen.rows(0, columns).take(take).enumerate() {
                text.push_str(&line);
                if !screen.row_wrapped(u16::try_from(row).unwrap()) {
                    text.push('\n');
                }
            }
            if left == 0 {
                break;
            }
            left = left.saturating_sub(rows);
        }
        screen.set_scrollback(0);
        text
    }

    fn until(&self, what: &str, mut holds: impl FnMut(&str) -> bool) {
        let began = Instant::now();
        loop {
            let shown = self.shown();
            if holds(&shown) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "this never came: {what}\n{shown}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = brigade(self.path(), arguments).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn code(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "it goes on:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn brigade(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brigade"));
    command.args(arguments).current_dir(folder);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("BRIGADE_") || name.ends_with("_API_KEY") || name == "COLUMNS" || name == "NO_COLOR" {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", folder.join("no-config"));
    command
}

/// Tasks that wait until a file `open` is there, and are done then.
fn gated(count: usize) -> String {
    let wait = "while ! test -e open; do sleep 0.02; done";
    (1..=count).map(|id| format!("## Task {id}\n```sh\n{wait}; echo done\n```\n")).collect()
}

#[test]
fn half_a_line_stays_whole_while_the_team_prints_more_than_two_hundred_lines() {
    for (rows, columns) in [(24, 100), (10, 40)] {
        let mut seat = Seat::new(&gated(75), rows, columns, "xterm-256color");
        seat.until("the prompt", |shown| shown.contains("crew>"));
        seat.until("the work has begun", |shown| shown.contains("claims #1"));
        let first = "/tasks add 'Half of a line that is long enough ";
        seat.type_in(first);
        seat.until("it is echoed", |shown| shown.contains("long enough"));
        fs::write(seat.path().join("open"), "").unwrap();
        seat.until("all is printed", |shown| shown.matches("completes #").count() == 75);
        let typed = format!("crew> {first}");
        seat.until("the line is as it was", |shown| shown.trim_end().ends_with(typed.trim_end()));
        let shown = seat.shown();
        assert_eq!(shown.matches("Half of a line").count(), 1, "{shown}");
        assert!(shown.lines().count() > 200, "{shown}");
        for id in 1..=75 {
            assert_eq!(shown.matches(&format!("claims #{id} Task {id}\n")).count(), 1, "#{id}: {shown}");
        }
        seat.type_in("to wrap around'\r");
        seat.until("it is obeyed", |shown| shown.contains("added #76"));
        let subject = "Half of a line that is long enough to wrap around";
        assert!(seat.run(&["tasks", "show", "76"]).contains(subject));
        seat.type_in("\u{4}");
        assert_eq!(seat.code(), Some(130));
    }
}

#[test]
fn commands_and_messages_are_obeyed_and_what_is_wrong_is_said() {
    let mut seat = Seat::new("## One\n```sh\ntrue\n```\n", 50, 120, "xterm");
    seat.until("it is done", |shown| shown.contains("completes #1"));
    for (typed, said) in [
        ("/tasks", "1  completed"),
        ("/team", "crew runs (pid"),
        ("/why 1", "It is completed by"),
        ("/tsaks", "Did you mean /tasks?"),
        ("/tasks sow", "unrecognized subcommand"),
        ("/tasks show 77", "#77"),
        ("/state", "desired"),
        ("/log -n 20", "completes #1"),
        ("/help", "@NAME TEXT"),
        ("hello", "answers nothing"),
        ("@ada well done", "sent to ada"),
        ("@nobody x", "there is nobody called `nobody`"),
        ("@all well done", "sent to all 2 members"),
        ("/send human 'a question for the person'", "a question for the person"),
        ("/tasks add 'one that\\", "not closed"),
    ] {
        let before = seat.shown().matches(said).count();
        // Tab completes nothing here that would change the line.
        seat.type_in(&format!("{typed}\r"));
        seat.until(said, |shown| shown.matches(said).count() > before);
    }
    let teams = seat.shown().matches("crew runs (pid").count();
    seat.type_in("/te\t\r");
    seat.until("completed", |shown| shown.matches("crew runs (pid").count() > teams);
    seat.until("the next prompt", |shown| shown.trim_end().ends_with("crew>"));
    // Up brings the last line back.
    seat.type_in("\u{1b}[A");
    seat.until("history", |shown| shown.trim_end().ends_with("crew> /team"));
    // With something typed it only does away with that.
    seat.type_in("\u{3}");
    seat.until("an empty line", |_| seat.line().trim_end() == "crew>");
    seat.type_in("\u{3}");
    seat.until("a hint", |shown| shown.contains("Ctrl-C once more"));
    seat.type_in("\u{3}");
    assert_eq!(seat.code(), Some(130));
    assert!(seat.shown().contains("The one task is done"), "{}", seat.shown());
    assert!(fs::read_to_string(seat.path().join(".team/history")).unwrap().contains("/why 1"));
}

#[test]
fn what_is_typed_ahead_is_obeyed_too() {
    let mut seat = Seat::new("## One\n```sh\ntrue\n```\n", 50, 120, "xterm");
    seat.until("it is done", |shown| shown.contains("completes #1"));
    seat.type_in("/tasks add 'typed ahead'\r/why 1\r/state\r");
    seat.until("the last of three", |shown| {
        shown.contains("desired continuous") && shown.contains("It is completed by")
    });
    assert!(seat.run(&["tasks"]).contains("typed ahead"));
}

#[test]
fn the_terminal_is_as_it_was_afterwards_however_it_ends() {
    for end in ["\u{4}", "/quit\r", "TERM", "done"] {
        let mut seat = Seat::new("## One\n```sh\ntrue\n```\n", 24, 80, "xterm");
        let before = format!("{:?}", tcgetattr(&seat.terminal).unwrap());
        seat.until("it is done", |shown| shown.contains("completes #1"));
        seat.until("the prompt", |shown| shown.trim_end().ends_with("crew>"));
        assert_ne!(format!("{:?}", tcgetattr(&seat.terminal).unwrap()), before, "a line is being edited");
        match end {
            "TERM" => {
                seat.type_in("half a line");
                seat.until("it is echoed", |shown| shown.contains("half a line"));
                let kill = Command::new("kill").arg(seat.child.id().to_string()).status();
                assert!(kill.unwrap().success());
            }
            "done" => {
                seat.run(&["stop"]);
            }
            typed => seat.type_in(typed),
        }
        assert_eq!(seat.code(), Some(130), "{end:?}");
        assert_eq!(format!("{:?}", tcgetattr(&seat.terminal).unwrap()), before, "{end:?}");
        assert!(seat.shown().contains("The one task is done"), "{end:?}: {}", seat.shown());
    }
}

#[test]
fn a_terminal_that_can_only_print_is_talked_to_line_by_line() {
    let mut seat = Seat::new("## One\n```sh\ntrue\n```\n", 24, 80, "dumb");
    seat.until("it is done", |shown| shown.contains("completes #1"));
    seat.type_in("/tasks\n");
    seat.until("the board", |shown| shown.contains("1  completed"));
    seat.type_in("/quit\n");
    assert_eq!(seat.code(), Some(130));
    let raw = seat.shown();
    assert!(!raw.contains('\u{1b}'), "{raw}");
}

/// A model that makes these calls at its first task, and reports it done.
fn painter(first: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> = first.iter().map(|(tool, input)| json!({ "tool": tool, "input": input })).collect();
    let done = json!({ "task_id": "{{task}}", "status": "completed", "result": "painted" });
    json!({
        "task": [{ "call": calls }, { "call": [{ "tool": "task_update", "input": done }] }, { "say": "Painted." }],
        "mail": [{ "say": "I note that." }],
        "compact": [{ "say": "SUMMARY of the painting" }],
    })
}

fn asks(question: &str) -> (&'static str, Value) {
    ("send_message", json!({ "to": "human", "content": question }))
}

#[test]
fn a_question_is_shown_as_it_comes_and_stands_on_the_empty_line_until_it_is_answered() {
    let mut seat = Seat::scripted(&painter(&[asks("Which colour?\n1. red\n2. 漢字")]), None);
    seat.until("the whole question", |shown| shown.contains("  1. red\n  2. 漢字\n  @ada TEXT answers"));
    seat.until_line("crew? ada asks: Which colour? 1. red 2. 漢字 (Tab begins the answer)");
    seat.type_in("x");
    seat.until_line("crew? x");
    assert_eq!(seat.line().trim_end(), "crew? x", "nothing of it is left behind what is typed");
    seat.type_in("\u{7f}");
    seat.until_line("crew? ada asks");
    // Killed and begun again, it is not told again and still waits.
    let mut seat = Seat::at(seat.kill(), 50, 120, "xterm-256color");
    seat.until_line("crew? ada asks: Which colour?");
    assert!(seat.shown().contains("ada asked: Which colour?") && !seat.shown().contains("@ada TEXT answers"));
    seat.type_in("\t");
    seat.until_line("crew? @ada");
    seat.type_in("green, please\r");
    seat.until("the answer", |shown| shown.contains("sent to ada"));
    seat.until("it was read", |shown| shown.contains("says: I note that."));
    seat.until_line("crew>");
    assert_eq!(seat.line().trim_end(), "crew>");
    assert!(seat.run(&["inbox", "--read"]).contains("Which colour?"));
}

#[test]
fn mail_that_came_while_nobody_was_there_is_shown_when_somebody_is() {
    let mut seat = Seat::scripted(&painter(&[]), None);
    seat.until("it is done", |shown| shown.contains("completes #1"));
    let folder = seat.kill();
    assert!(
        brigade(folder.path(), &["send", "human", "the roof leaks"]).stdin(Stdio::null()).status().unwrap().success()
    );
    seat = Seat::at(folder, 50, 120, "xterm-256color");
    seat.until("it is shown", |shown| shown.contains("  the roof leaks"));
    seat.until("it is taken", |_| seat.run(&["inbox", "--json"]).contains("\"data\":[]"));
}

#[test]
fn under_a_lead_by_rule_a_plan_waits_for_the_person_who_answers_it_in_place() {
    let plan = "1. Sand.\n2. Paint.";
    let mut seat = Seat::scripted(&painter(&[("plan_approval", json!({ "plan": plan }))]), None);
    seat.until("the plan", |shown| shown.contains("  1. Sand.\n  2. Paint.\n"));
    seat.until_line("crew? ada waits for plan ");
    let listed: Value = serde_json::from_str(&seat.run(&["plan", "--json"])).unwrap();
    let id = listed["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!((listed["data"][0]["to"].as_str(), listed["data"][0]["plan"].as_str()), (Some("human"), Some(plan)));
    seat.type_in("/team\r");
    seat.until("who waits for whom", |shown| shown.contains(&format!("a person (plan {id})")));
    assert!(seat.run(&["team"]).contains(&format!("a person (plan {id})")));
    seat.type_in("/plan approve nope\r");
    seat.until("no such plan", |shown| shown.contains("there is no plan `nope`"));
    seat.type_in(&format!("/plan reject {}\t--feedback 'sand twice'\r", &id[..3]));
    seat.until("answered", |shown| shown.contains(&format!("ada is told: plan {id} is rejected")));
    seat.until("it was read", |shown| shown.contains("says: I note that."));
    seat.until_line("crew>");
    let read = fs::read_to_string(seat.path().join(".team/transcripts/ada.jsonl")).unwrap();
    assert!(read.contains("(approve: false): sand twice"), "{read}");
    seat.type_in(&format!("/plan approve {id}\r"));
    seat.until("once", |shown| shown.contains("answered already (rejected by human)"));
    seat.type_in("/plan\r");
    seat.until("none", |shown| shown.contains("no plan waits for an answer"));
}

#[test]
fn contexts_are_compacted_and_words_watched_as_asked() {
    let lead = json!({
        "goal": [{ "call": [{ "tool": "task_create", "input": { "subject": "Paint", "description": "", "requires": ["painter"] } }] }, { "say": "Planned." }],
        "mail": [{ "say": "I hear you." }],
        "report": [{ "say": "It is painted." }],
        "compact": [{ "say": "SUMMARY of the plan" }],
    });
    let mut seat = Seat::scripted(&painter(&[]), Some(&lead));
    seat.until("it is over", |shown| shown.contains("session 1 is over"));
    for (typed, said) in [
        ("/compact", "lead  context compacted"),
        ("/compact", "nothing to compact"),
        ("/compact ada", "ada   context compacted"),
        ("/compact bob", "bob goes by rule (runbook)"),
        ("/compact nobody", "there is nobody called `nobody`; there are: ada, bob, lead"),
        ("/watch nobody", "there are: ada, bob\n"),
        ("/watch ada", "the words of ada are shown as they come"),
        ("@ada hello", "ada\n  I note that."),
        ("/watch ada", "only the lead's words are shown"),
        ("hello", "lead\n  I hear you."),
        ("/log --follow", "is shown here anyway"),
    ] {
        seat.until_line("crew>");
        seat.type_in(&format!("{typed}\r"));
        seat.until(&format!("{typed}: {said}"), |shown| shown.contains(said));
    }
    assert!(!seat.shown().contains("SUMMARY"), "a summary is for the model: {}", seat.shown());
}

#[test]
fn a_run_is_stepped_through_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("plan.md"),
        "## Dig\n\n```sh\ntrue\n```\n\n## Plant\nafter: Dig\n\n```sh\ntrue\n```\n",
    )
    .unwrap();
    let config = "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"ada\"\n";
    fs::write(folder.path().join("brigade.toml"), config).unwrap();
    assert!(brigade(folder.path(), &["run"]).output().unwrap().status.success());
    let log = fs::read_to_string(folder.path().join(".team/events.jsonl")).unwrap();
    let last = log.lines().count();
    let mut seat = Seat::with(folder, &["replay"], 40, 100, "xterm-256color");
    seat.until("it begins where all is known", |shown| {
        shown.contains(&format!("of {last}, run 1 of crew")) && !shown.contains("not known:")
    });
    let begun = seat.stands_at(last, 0);
    seat.type_in("b\r");
    seat.until("the first change of the board", |shown| shown.contains("#1 is on the board: Dig"));
    let plants = |shown: &str| shown.contains("#2 is in_progress (ada)") && shown.contains("in_progress  ada");
    let begun = seat.stands_at(last, begun);
    seat.type_in("#2\r");
    let mut at = seat.stands_at(last, begun);
    seat.until("what Enter does", |shown| shown.contains("Enter: `#2` again"));
    while !plants(&seat.shown()) {
        seat.type_in("\r");
        at = seat.stands_at(last, at);
    }
    seat.type_in("latest\r");
    seat.until("the end", |shown| shown.contains("crew does not run") && shown.contains("2 tasks: 2 completed"));
    seat.until_line(&format!("{last}/{last}> "));
    seat.type_in("n\r");
    seat.until("there is no more", |shown| shown.contains("this is the last event of the run"));
    seat.type_in("p 3\r");
    seat.until_line(&format!("{}/{last}> ", last - 3));
    seat.type_in("wohin\r");
    seat.until("it says what it takes", |shown| shown.contains("? says what else there is"));
    seat.type_in("q\r");
    assert_eq!(seat.code(), Some(0));
}

/// The terminal is lent to one group of processes; the others must neither read it nor hang for want of it.
#[cfg(target_os = "linux")]
#[test]
fn a_team_in_the_background_of_a_shell_works_and_can_be_stopped() {
    let mut seat = Seat::shell(&gated(2));
    seat.type_in("$P up &\r");
    seat.until("it says so", |shown| shown.contains("the team runs in the background"));
    seat.until("it works", |shown| shown.contains("claims #1"));
    assert!(seat.run(&["team"]).contains("runs (pid"));
    assert!(seat.run(&["stop", "--now"]).contains("is stopped"));
    // Suspended at half a line, it goes on without the terminal, and with it again.
    seat.type_in("\r$P up\r");
    seat.until_line("crew>");
    seat.type_in("/why 1");
    seat.until_line("crew> /why 1");
    seat.type_in("\u{1a}");
    seat.until("the shell has its terminal", |shown| shown.contains("Stopped"));
    seat.type_in("bg\r");
    seat.until("it goes on", |_| seat.run(&["team"]).contains("runs (pid"));
    seat.type_in("echo $((6 * 7))\r");
    seat.until("the shell works", |shown| shown.contains("\n42"));
    fs::write(seat.path().join("open"), "").unwrap();
    seat.until("the team works", |shown| shown.contains("completes #2"));
    seat.type_in("fg\r");
    seat.until_line("crew> /why 1");
    seat.type_in("\r");
    seat.until("it is obeyed", |shown| shown.contains("It is completed by"));
    // Suspended once more, it is said to be, and hears that it is to stop all the same.
    seat.until_line("crew>");
    seat.type_in("\u{1a}");
    seat.until("it is said", |_| seat.run(&["team"]).contains("is suspended"));
    assert!(seat.run(&["stop"]).contains("is stopped"));
    seat.until("it ends", |shown| shown.matches("crew stops: interrupted").count() == 2);
    seat.type_in("echo $((6 * 9))\r");
    seat.until("the shell has its terminal as it was", |shown| shown.contains("\n54"));
}

#[test]
fn a_paused_team_says_so_on_the_empty_line_until_it_is_to_go_on() {
    let seat = Seat::new("## One\n```sh\ntrue\n```\n", 24, 100, "xterm-256color");
    seat.until("it is done", |shown| shown.contains("completes #1"));
    seat.run(&["state", "pause"]);
    seat.until_line("crew> (paused: /state continuous lets the team work)");
    let mut seat = Seat::at(seat.kill(), 24, 100, "xterm-256color");
    seat.until_line("crew> (paused");
    seat.until("why", |shown| shown.contains("agent_state.json says pause: `/state continuous` lets the team work"));
    assert!(seat.shown().find("crew starts") < seat.shown().find("agent_state.json says"), "{}", seat.shown());
    seat.type_in("/state continuous\r");
    seat.until("it is obeyed", |shown| shown.contains("desired continuous, current"));
    seat.until("it is no more said", |_| seat.line().trim_end() == "crew>");
}

#[test]
fn what_a_typed_command_brings_about_is_told_behind_its_answer() {
    let lead = json!({ "goal": [{ "say": "Planned." }], "mail": [{ "say": "I hear you." }], "report": [{ "say": "So it is." }] });
    let mut seat = Seat::scripted(&painter(&[]), Some(&lead));
    for session in 1..=5 {
        seat.until("it is over", |shown| shown.contains(&format!("session {session} is over")));
        seat.until_line("crew>");
        seat.type_in("hello\r");
    }
    seat.until("the last is over", |shown| shown.contains("session 6 is over"));
    let shown = seat.shown();
    let told: Vec<&str> =
        shown.lines().filter(|line| line.contains("sent to lead") || line.contains(" begins (")).collect();
    assert_eq!(told.len(), 11, "{shown}");
    let is_begin = |line: &&str| line.contains("begins");
    assert!(told.iter().enumerate().all(|(place, line)| is_begin(line) == (place % 2 == 0)), "{shown}");
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=Person", "-c", "user.email=person@example.invalid"]).args(arguments);
    assert!(command.current_dir(folder).output().unwrap().status.success(), "{arguments:?}");
}

#[test]
fn verify_of_a_clone_asks_at_a_terminal() {
    for (typed, runs) in [("\r", false), ("n\r", false), ("y\r", true)] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(".tasks")).unwrap();
        let task = r#"{"id":1,"subject":"theirs","status":"in_progress","owner":"x","verify":"touch verified"}"#;
        fs::write(folder.path().join(".tasks/task_1.json"), task).unwrap();
        git(folder.path(), &["init", "-q"]);
        git(folder.path(), &["add", "-A"]);
        let mut command = brigade(folder.path(), &["tasks", "complete", "1", "--force"]);
        command.env_remove("CI");
        let mut seat = Seat::of(command, folder, 30, 120, "xterm-256color");
        seat.until("it asks", |shown| shown.contains("runs now: touch verified") && shown.contains("[y/N]"));
        assert!(!seat.path().join("verified").exists(), "it ran before the answer");
        seat.type_in(typed);
        assert_eq!(seat.code(), Some(if runs { 0 } else { 2 }), "{}", seat.shown());
        assert_eq!(seat.path().join("verified").exists(), runs, "{}", seat.shown());
        let task = fs::read_to_string(seat.path().join(".tasks/task_1.json")).unwrap();
        assert_eq!(task.contains("completed"), runs, "{task}");
    }
}

#[test]
fn first_run_of_a_clone_asks_at_a_terminal() {
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
        command.env_remove("CI");
        let mut seat = Seat::of(command, folder, 30, 120, "xterm-256color");
        seat.until("it asks", |shown| shown.contains("plan.md (1 task)") && shown.contains("[y/N]"));
        assert!(seat.shown().contains("touch ran"), "{}", seat.shown());
        seat.type_in(typed);
        if runs {
            seat.until("it works", |_| seat.path().join("ran").exists());
            seat.until("the session begins after the answer", |shown| shown.contains("completes #1"));
            continue;
        }
        assert_eq!(seat.code(), Some(2), "{}", seat.shown());
        let mut left: Vec<_> = fs::read_dir(seat.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".git", "brigade.toml", "plan.md"], "nothing was written");
    }
}
