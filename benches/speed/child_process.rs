//! Child processes of this program: their roles, and the protocol with the parent. A child prints `ready` after its
//! setup, and does its work for each line it reads.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::workspace::Process;
use super::{apis, claims, commands, scale, wakeups};

/// The argument that selects a role.
const ROLE: &str = "--role";

/// A role: its name, and the function that runs it in a workspace with a number.
type Role = (&'static str, fn(&Path, usize));

const ROLES: [Role; 7] = [
    ("claim", claims::claim_all),
    ("claim-bare", claims::claim_all_bare),
    ("edit", claims::edit_at_random),
    ("read-all", commands::read_all),
    ("create", wakeups::create_on_request),
    ("idle-crowd", scale::idle),
    ("model-server", apis::serve),
];

/// The role in these arguments, and the remaining arguments.
pub fn role_of(arguments: &[String]) -> Option<(&str, &[String])> {
    let (flag, rest) = arguments.split_first()?;
    let (role, rest) = rest.split_first()?;
    (flag == ROLE).then_some((role.as_str(), rest))
}

pub fn run_role(role: &str, arguments: &[String]) {
    let (_, run_role) = ROLES.iter().find(|(name, _)| *name == role).expect("the role exists");
    run_role(Path::new(&arguments[0]), arguments[1].parse().expect("a number"));
}

/// In a child: prints `ready` and waits for the first line.
pub fn ready() {
    say("ready");
    next_line();
}

/// In a child: prints a line.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").expect("the parent listens");
    out.flush().expect("the parent listens");
}

/// In a child: reads the next line, or `None` after the parent closed the pipe.
pub fn next_line() -> Option<String> {
    let mut line = String::new();
    let bytes = std::io::stdin().lock().read_line(&mut line).expect("stdin can be read");
    (bytes > 0).then(|| line.trim().to_owned())
}

/// In the parent: a child with a role.
pub struct ChildProcess {
    pub process: Process,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts a child with this role and waits until it is ready.
    pub fn ready(role: &str, workspace: &Path, number: usize) -> Self {
        let mut child_process = Self::start(role, workspace, number);
        assert_eq!(child_process.read_reply(), "ready");
        child_process
    }

    fn start(role: &str, workspace: &Path, number: usize) -> Self {
        let mut command = command(role, workspace, number);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { process: Process(child), to, from }
    }

    pub fn send_line(&mut self, line: &str) {
        let to = self.to.as_mut().expect("the parent still reads");
        writeln!(to, "{line}").and_then(|()| to.flush()).unwrap();
    }

    pub fn read_reply(&mut self) -> String {
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).unwrap() > 0, "the child ended before its last line");
        line.trim().to_owned()
    }

    pub fn read_json(&mut self) -> Value {
        serde_json::from_str(&self.read_reply()).unwrap()
    }

    /// Closes the pipe and waits for the child's end.
    pub fn finish(mut self) {
        self.to = None;
        assert!(self.process.wait().success());
    }
}

pub fn command(role: &str, workspace: &Path, number: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([ROLE, role]).arg(workspace).arg(number.to_string());
    command
}
