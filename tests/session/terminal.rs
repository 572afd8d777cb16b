//! The program on a pseudo-terminal. A terminal emulator draws its output, and the test types into the other side.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use crate::testkit::process::brigade;

/// Time limit for a condition on a slow, busy machine.
const WAIT_TIME_MAX: Duration = Duration::from_secs(120);
/// A byte that no program prints and no terminal shows.
const END_MARK: u8 = 0;
/// Lines kept above the screen.
const SCROLLBACK: usize = 5_000;

pub struct TestSession {
    folder: Option<tempfile::TempDir>,
    pub terminal: File,
    pub ours: File,
    screen: Arc<Mutex<vt100::Parser>>,
    end_marks_drawn: Arc<AtomicUsize>,
    pub child: Child,
}

impl TestSession {
    /// Runs `brigade up` in a new workspace with this plan and two runbook members, on a terminal of this size.
    pub fn new(plan: &str, rows: u16, columns: u16, term: &str) -> Self {
        Self::workspace(plan, &["up"], rows, columns, term)
    }

    /// Runs `brigade` with these arguments in a new workspace with this plan and two runbook members.
    pub fn workspace(plan: &str, arguments: &[&str], rows: u16, columns: u16, term: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::write_workspace(folder.path(), plan);
        Self::with(folder, arguments, rows, columns, term)
    }

    /// Writes a config with two runbook members, and this plan.
    pub fn write_workspace(folder: &Path, plan: &str) {
        let config = "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n\
                      [[teams.crew.members]]\nname = \"ada\"\n[[teams.crew.members]]\nname = \"bob\"\n";
        fs::write(folder.join("brigade.toml"), config).unwrap();
        fs::write(folder.join("plan.md"), plan).unwrap();
    }

    /// Runs `brigade` with these arguments in the workspace of this session, on a terminal of its own.
    pub fn beside(&self, arguments: &[&str], rows: u16, columns: u16) -> Self {
        Self::of(brigade(self.path(), arguments), None, rows, columns, "xterm-256color")
    }

    /// Runs `brigade up` in a new workspace with scripted models for ada and, if given, the lead.
    pub fn scripted(ada: &Value, lead: Option<&Value>) -> Self {
        Self::scripted_with(&["up"], ada, lead)
    }

    /// The same, with `brigade` and these arguments.
    pub fn scripted_with(arguments: &[&str], ada: &Value, lead: Option<&Value>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let member = |name: &str, script: &Value| {
            let path = folder.path().join(format!("{name}.json"));
            fs::write(&path, script.to_string()).unwrap();
            format!("provider = \"scripted\"\nmodel = {:?}\n", path.to_str().unwrap())
        };
        let goal = lead.map_or("plan = \"plan.md\"", |_| "goal = \"Paint the shed\"");
        let lead = lead.map(|script| format!("[teams.crew.lead]\n{}", member("lead", script))).unwrap_or_default();
        let plans = ada.to_string().contains("plan_approval");
        let ada = format!("plan_first = {plans}\n{}", member("ada", ada));
        let config = format!(
            "durability = \"process\"\n[teams.crew]\n{goal}\n{lead}[[teams.crew.members]]\nname = \"ada\"\nrole = \"painter\"\n{ada}\
             [[teams.crew.members]]\nname = \"bob\"\nprovider = \"runbook\"\n"
        );
        fs::write(folder.path().join("brigade.toml"), config).unwrap();
        fs::write(folder.path().join("plan.md"), "## Paint\nrequires: painter\n").unwrap();
        Self::with(folder, arguments, 50, 120, "xterm-256color")
    }

    /// Runs `brigade up` in this workspace, on a terminal of this size.
    pub fn at(folder: tempfile::TempDir, rows: u16, columns: u16, term: &str) -> Self {
        Self::with(folder, &["up"], rows, columns, term)
    }

    /// Runs `brigade` with these arguments in this workspace, on a terminal of this size.
    pub fn with(folder: tempfile::TempDir, arguments: &[&str], rows: u16, columns: u16, term: &str) -> Self {
        let command = brigade(folder.path(), arguments);
        Self::of(command, Some(folder), rows, columns, term)
    }

    /// Runs a shell with job control in a new workspace with this plan. Its variable `P` is the path of `brigade`.
    #[cfg(target_os = "linux")]
    pub fn shell(plan: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config =
            "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"ada\"\n";
        fs::write(folder.path().join("brigade.toml"), config).unwrap();
        fs::write(folder.path().join("plan.md"), plan).unwrap();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "sh", "-i"]).current_dir(folder.path());
        command.env("P", env!("CARGO_BIN_EXE_brigade")).env("PS1", "$ ").env("XDG_CONFIG_HOME", folder.path());
        command.env("XDG_STATE_HOME", folder.path()).env("BRIGADE_TRUST", "1");
        let session = Self::of(command, Some(folder), 30, 100, "xterm-256color");
        session.wait_for_line("$");
        session
    }

    /// Runs this command on a new terminal of this size. The session removes `folder` at its end.
    pub fn of(mut command: Command, folder: Option<tempfile::TempDir>, rows: u16, columns: u16, term: &str) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(theirs.to_str().unwrap()).unwrap();
        let ours = File::from(ours);
        tcsetwinsize(&ours, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let child = command
            .env_remove("COLUMNS")
            // In continuous integration, Brigade asks no user.
            .env_remove("CI")
            .env("TERM", term)
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs.try_clone().unwrap())
            .spawn()
            .unwrap();
        let screen =
            Arc::new(Mutex::new(vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), SCROLLBACK)));
        let end_marks_drawn = Arc::new(AtomicUsize::new(0));
        let (mut from, to, drawn) = (ours.try_clone().unwrap(), Arc::clone(&screen), Arc::clone(&end_marks_drawn));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().process(&bytes[..count]);
                drawn.fetch_add(bytes[..count].iter().filter(|byte| **byte == END_MARK).count(), Ordering::SeqCst);
            }
        });
        Self { folder, terminal: theirs, ours, screen, end_marks_drawn, child }
    }

    /// The folder of the workspace. Panics for a session beside another one, which has no folder of its own.
    pub fn path(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    /// Kills the program at once, and keeps its workspace.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.folder.take().unwrap()
    }

    /// The current line with the cursor.
    pub fn line(&self) -> String {
        let parser = self.screen();
        let screen = parser.screen();
        let row = usize::from(screen.cursor_position().0);
        screen.rows(0, screen.size().1.get()).nth(row).unwrap()
    }

    /// Waits until the line with the cursor starts with this text.
    pub fn wait_for_line(&self, what: &str) {
        let began = Instant::now();
        while !self.line().starts_with(what) {
            assert!(
                began.elapsed() < WAIT_TIME_MAX,
                "the line never became {what:?}\n{}\n{}",
                self.line(),
                self.shown()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn type_in(&mut self, text: &str) {
        self.ours.write_all(text.as_bytes()).unwrap();
    }

    pub fn screen(&self) -> MutexGuard<'_, vt100::Parser> {
        self.screen.lock().unwrap()
    }

    /// All text that was ever shown; wrapped lines are joined.
    pub fn shown(&self) -> String {
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

    /// Waits until `holds` is true for all text that was ever shown. `what` names the condition.
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut(&str) -> bool) {
        let began = Instant::now();
        loop {
            let shown = self.shown();
            if holds(&shown) {
                return;
            }
            assert!(began.elapsed() < WAIT_TIME_MAX, "timed out waiting for: {what}\n{shown}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs `brigade` with these arguments in the workspace, without a terminal. Returns its stdout.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = brigade(self.path(), arguments).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until the program has ended and all its output is drawn. Returns its exit code.
    pub fn code(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let drawn = self.end_marks_drawn.load(Ordering::SeqCst);
                self.terminal.write_all(&[END_MARK]).unwrap();
                self.wait_until("the last output", |_| self.end_marks_drawn.load(Ordering::SeqCst) > drawn);
                return status.code();
            }
            assert!(began.elapsed() < WAIT_TIME_MAX, "the program did not end:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for TestSession {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A plan of tasks that each wait for a file `open`.
pub fn tasks_waiting_for_file(count: usize) -> String {
    let wait = "while ! test -e open; do sleep 0.02; done";
    (1..=count).map(|id| format!("## Task {id}\n```sh\n{wait}; echo done\n```\n")).collect()
}
