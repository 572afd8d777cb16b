//! This program as a process of its own: the roles it plays, and how its parent speaks to it. A child says `ready` once it is
//! prepared, and does its work when it is told a line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::place::Process;
use super::{claims, commands, crowds, wakes};

/// What makes this program play a role.
const ROLE: &str = "--play";

/// A role: what it is called, and what plays it in a workspace, with a number.
type Role = (&'static str, fn(&Path, usize));

const ROLES: [Role; 6] = [
    ("claim", claims::claim_all),
    ("claim-bare", claims::claim_all_bare),
    ("edit", claims::edit_at_random),
    ("read-all", commands::read_all),
    ("create", wakes::create_when_told),
    ("idle-crowd", crowds::idle),
];

/// The role these arguments ask for, and what is left of them.
pub fn role_of(arguments: &[String]) -> Option<(&str, &[String])> {
    let (flag, rest) = arguments.split_first()?;
    let (role, rest) = rest.split_first()?;
    (flag == ROLE).then_some((role.as_str(), rest))
}

/// Plays a role to its end.
pub fn play(role: &str, arguments: &[String]) {
    let (_, play) = ROLES.iter().find(|(name, _)| *name == role).expect("a role there is");
    play(Path::new(&arguments[0]), arguments[1].parse().expect("a number"));
}

/// As a child: says that it is ready, and waits for the word.
pub fn ready() {
    say("ready");
    heard();
}

/// As a child: says a line.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").expect("the parent listens");
    out.flush().expect("the parent listens");
}

/// As a child: the next line, or nothing once the parent is done with it.
pub fn heard() -> Option<String> {
    let mut line = String::new();
    let bytes = std::io::stdin().lock().read_line(&mut line).expect("stdin can be read");
    (bytes > 0).then(|| line.trim().to_owned())
}

/// As a parent: a child in a role.
pub struct Player {
    pub process: Process,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Player {
    /// Starts a child in this role and waits until it is ready.
    pub fn ready(role: &str, workspace: &Path, number: usize) -> Self {
        let mut player = Self::start(role, workspace, number);
        assert_eq!(player.hear(), "ready");
        player
    }

    /// Starts a child in this role.
    fn start(role: &str, workspace: &Path, number: usize) -> Self {
        let mut command = command(role, workspace, number);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { process: Process(child), to, from }
    }

    pub fn tell(&mut self, line: &str) {
        let to = self.to.as_mut().expect("it is still listened to");
        writeln!(to, "{line}").and_then(|()| to.flush()).unwrap();
    }

    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).unwrap() > 0, "the child ended before it had said all");
        line.trim().to_owned()
    }

    pub fn hear_json(&mut self) -> Value {
        serde_json::from_str(&self.hear()).unwrap()
    }

    /// Says that nothing more comes, and waits for its end.
    pub fn dismiss(mut self) {
        self.to = None;
        assert!(self.process.wait().success());
    }
}

/// The command that plays a role.
pub fn command(role: &str, workspace: &Path, number: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([ROLE, role]).arg(workspace).arg(number.to_string());
    command
}
