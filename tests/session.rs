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

/// How long a condition may take on a slow, busy machine before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lines that are kept above the screen.
const SCROLLBACK: usize = 5_000;

/// A person's terminal with the program in it.
struct Seat {
    folder: tempfile::TempDir,
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
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(theirs.to_str().unwrap()).unwrap();
        let ours = File::from(ours);
        tcsetwinsize(&ours, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let child = brigade(folder.path(), &["up"])
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
        Self { folder, terminal: theirs, ours, screen, child }
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
        let output = brigade(self.folder.path(), arguments).stdin(Stdio::null()).output().unwrap();
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
        fs::write(seat.folder.path().join("open"), "").unwrap();
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
    let before = seat.shown().matches("crew runs (pid").count();
    seat.type_in("/te\t\r");
    // Its answer, and the prompt behind that: what is typed before would not reach the line editor.
    seat.until("completed", |shown| shown.matches("crew runs (pid").count() > before);
    seat.until("the prompt", |shown| shown.trim_end().ends_with("crew>"));
    // Up brings the last line back.
    seat.type_in("\u{1b}[A");
    seat.until("history", |shown| shown.trim_end().ends_with("crew> /team"));
    seat.type_in("\u{3}");
    seat.until("a hint", |shown| shown.contains("Ctrl-C once more"));
    seat.type_in("\u{3}");
    assert_eq!(seat.code(), Some(130));
    assert!(seat.shown().contains("The one task is done"), "{}", seat.shown());
    assert!(fs::read_to_string(seat.folder.path().join(".team/history")).unwrap().contains("/why 1"));
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
