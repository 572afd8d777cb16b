//! The guard process: starts the command, waits for it, and ends everything when its stdin closes.
//!
//! It does little before the command starts, because every command of every teammate waits for it.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process, kill_process_group};

use super::command_spec::CommandSpec;
use super::{CommandExit, GRACE, GuardMessage, Level, START_BYTE, own_arguments, own_program};
use crate::platform::processes::{descendants, hide_this_process};
use crate::platform::terminal::unblock_stops;

/// The time limit for the init to get ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest pause between checks for remaining processes.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The first byte from an init or a re-executed process: ready, level refused by the system, or path cannot be protected. A reason
/// follows the last two.
pub(super) const READY: u8 = b'r';
pub(super) const REFUSED: u8 = b'x';
pub(super) const UNPROTECTED: u8 = b'p';

/// Runs one command. Returns `None` if the command spec is invalid. The exit code is 0 only if the command's was: a command may forge
/// a line on the guard's stderr, but not its exit status.
pub(super) fn run() -> Option<i32> {
    let command_spec = CommandSpec::read(io::stdin().lock()).ok()?;
    let message = guard(&command_spec).unwrap_or_else(|error| Some(GuardMessage::Failed(error.to_string())));
    if let Some(message) = &message {
        send(message);
    }
    Some(i32::from(message != Some(GuardMessage::Ended(CommandExit::Code(0)))))
}

/// Sends a message to the worker. If the worker is dead, stdin closes.
fn send(message: &GuardMessage) {
    let _ = io::stderr().write_all(message.to_line().as_bytes());
}

fn guard(command_spec: &CommandSpec) -> io::Result<Option<GuardMessage>> {
    // A new session keeps the terminal and its signals away from commands. The call fails only if this process already
    // leads one.
    let _ = rustix::process::setsid();
    unblock_stops();
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let process = match ConfinedProcess::start(command_spec)? {
        StartedProcess::Ready(process) => process,
        StartedProcess::Refused(message) => return Ok(Some(message)),
    };
    send(&GuardMessage::Group(process.group.as_raw_nonzero().get()));
    let mut stdin = io::stdin().lock();
    let mut start_byte = [0];
    if stdin.read_exact(&mut start_byte).is_err() || start_byte != START_BYTE {
        process.give_up();
        return Ok(None);
    }
    drop(stdin);
    let end = if command_spec.level == Level::Full { process.run_in_namespace()? } else { process.run_as_group()? };
    Ok(Some(GuardMessage::Ended(end)))
}

/// The init, or the process that becomes the shell.
struct ConfinedProcess {
    group: Pid,
    channel: UnixStream,
}

/// The result of [`ConfinedProcess::start`].
enum StartedProcess {
    Ready(ConfinedProcess),
    /// It is not started. The message is for the worker.
    Refused(GuardMessage),
}

impl ConfinedProcess {
    /// Starts the process and waits until it is ready.
    fn start(command_spec: &CommandSpec) -> io::Result<StartedProcess> {
        #[cfg(target_os = "linux")]
        if command_spec.level == Level::Full
            && let Err(reason) =
                super::namespaces::enter(true).and_then(|()| super::namespaces::raise_ambient_capabilities())
        {
            return Ok(StartedProcess::Refused(GuardMessage::Refused(reason)));
        }
        // After this, the process cannot map its own ids.
        hide_this_process();
        let (channel, child_channel) = UnixStream::pair()?;
        channel.set_read_timeout(Some(READY_TIMEOUT))?;
        let child = spawn(command_spec.level, child_channel.into())?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let mut process = Self { group, channel };
        process.channel.write_all(&command_spec.encode())?;
        Ok(match process.wait_until_ready()? {
            None => StartedProcess::Ready(process),
            Some(message) => {
                process.give_up();
                StartedProcess::Refused(message)
            }
        })
    }

    fn wait_until_ready(&mut self) -> io::Result<Option<GuardMessage>> {
        let mut word = [0];
        self.channel.read_exact(&mut word)?;
        if word == [READY] {
            self.channel.set_read_timeout(None)?;
            return Ok(None);
        }
        let mut reason = String::new();
        self.channel.read_to_string(&mut reason)?;
        Ok(Some(match word {
            [UNPROTECTED] => GuardMessage::Failed(reason),
            _ => GuardMessage::Refused(reason),
        }))
    }

    /// Ends a process that has not started the command, and waits for it.
    fn give_up(self) {
        drop(self.channel);
        let _ = kill_process(self.group, Signal::KILL);
        signal_all(self.group, Signal::KILL);
        let _ = wait_for(self.group);
    }

    /// Starts the command and waits until its init, and so everything in the namespace, has ended. It uses one thread: a process whose
    /// children are in another namespace cannot start threads.
    fn run_in_namespace(mut self) -> io::Result<CommandExit> {
        self.channel.write_all(START_BYTE)?;
        self.wait_for_init()?;
        let mut word = String::new();
        self.channel.read_to_string(&mut word)?;
        wait_for(self.group)?;
        match GuardMessage::parse(&word) {
            GuardMessage::Ended(end) => Ok(end),
            GuardMessage::Failed(reason) if !word.is_empty() => Err(io::Error::other(reason)),
            _ => Err(io::Error::other("the command was ended from outside")),
        }
    }

    /// Starts a command without a process namespace and waits for it. Its processes are found by their parents.
    fn run_as_group(mut self) -> io::Result<CommandExit> {
        let group = self.group;
        let watcher = thread::Builder::new().spawn(move || {
            wait_for_order(io::stdin().lock());
            kill_all(group);
        });
        if let Err(error) = watcher {
            self.give_up();
            return Err(io::Error::new(error.kind(), format!("cannot start a thread: {error}")));
        }
        self.channel.write_all(START_BYTE)?;
        let end = wait_for(group)?;
        end_remaining(group);
        Ok(end)
    }

    /// Returns when the init reports the command's exit or has ended. If stdin closes, tells the init to end the command.
    fn wait_for_init(&self) -> io::Result<()> {
        let stdin = io::stdin();
        let mut closing_since = None;
        loop {
            let mut sources = [PollFd::new(&self.channel, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            let (watched, timeout) = match closing_since {
                None => (&mut sources[..], None),
                Some(_) => (&mut sources[..1], Timespec::try_from(GRACE * 2).ok()),
            };
            match poll(watched, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let [channel, stdin] = &sources;
            if !channel.revents().is_empty() {
                return Ok(());
            }
            if closing_since.is_none() && !stdin.revents().is_empty() {
                // A byte, the end of stdin or an error: the worker wants the command to end.
                closing_since = Some(Instant::now());
                // If the init has ended, the next round notices it.
                let _ = self.channel.shutdown(Shutdown::Write);
            } else if closing_since.is_some_and(|since| since.elapsed() >= GRACE * 2) {
                kill_process(self.group, Signal::KILL)?;
                return Ok(());
            }
        }
    }
}

#[allow(clippy::zombie_processes, reason = "the guard reaps all its children by waitpid")]
fn spawn(level: Level, channel: OwnedFd) -> io::Result<Child> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let mut process = Command::new(own_program()?);
    process.args(own_arguments());
    match level {
        Level::Full => process.arg("init"),
        Level::MountsOnly | Level::Off => process.arg("reexec").arg(std::process::id().to_string()).process_group(0),
    };
    process.stdin(channel).stdout(output.try_clone()?).stderr(output).spawn()
}

/// Waits for the leader of the group, and reaps other children meanwhile.
pub(super) fn wait_for(leader: Pid) -> io::Result<CommandExit> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((process, status))) if process == leader => return Ok(end_of(status)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn end_of(status: WaitStatus) -> CommandExit {
    match (status.exit_status(), status.terminating_signal()) {
        (_, Some(signal)) => CommandExit::Signal(signal),
        (code, None) => CommandExit::Code(code.unwrap_or(0)),
    }
}

/// Waits until the other side wants the command to end: by a byte, the end of the channel or an error.
pub(super) fn wait_for_order(mut channel: impl Read) {
    while matches!(channel.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::Interrupted) {}
}

/// Returns true if this process has children. It reaps ended ones.
pub(super) fn has_children() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Returns true if processes of the command are left. All are children of a subreaper; elsewhere some may remain in the group.
fn has_processes_left(group: Pid) -> bool {
    has_children() || !cfg!(target_os = "linux") && rustix::process::test_kill_process_group(group).is_ok()
}

/// Sends `signal` to the group and to all descendants of this subreaper, including those that left the group. It misses only
/// processes that start meanwhile.
///
/// It signals whole groups, so that a process that forks at that moment cannot escape. A descendant's group has no other
/// members, because this process leads its own session.
pub(super) fn signal_all(group: Pid, signal: Signal) {
    // Every error here means that the process has ended or belongs to another user. The caller checks again.
    let _ = kill_process_group(group, signal);
    let own_group = getpgrp().as_raw_nonzero().get();
    let mut groups = BTreeSet::from([group.as_raw_nonzero().get()]);
    for descendant in descendants(getpid().as_raw_nonzero().get()) {
        let (Some(process), Some(its_group)) = (Pid::from_raw(descendant.pid), Pid::from_raw(descendant.group)) else {
            continue;
        };
        if descendant.group == own_group {
            let _ = kill_process(process, signal);
        } else if groups.insert(descendant.group) {
            let _ = kill_process_group(its_group, signal);
        }
    }
}

/// Ends what the command left running, for example background jobs of the shell.
fn end_remaining(group: Pid) {
    if !has_processes_left(group) {
        return;
    }
    signal_all(group, Signal::TERM);
    let started_at = Instant::now();
    let mut pause = PAUSE_MIN;
    while has_processes_left(group) {
        if started_at.elapsed() >= GRACE {
            signal_all(group, Signal::KILL);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(if started_at.elapsed() < GRACE { GRACE / 10 } else { PAUSE_MAX });
    }
}

/// Kills everything in a loop until this process ends. The main thread notices when nothing is left.
fn kill_all(group: Pid) {
    signal_all(group, Signal::TERM);
    thread::sleep(GRACE);
    let mut pause = PAUSE_MIN;
    loop {
        signal_all(group, Signal::KILL);
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
