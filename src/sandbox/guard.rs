//! The guard process: it starts the command, waits, and ends everything when its leash is let go.
//!
//! It does as little as it can before the command begins: every command of every teammate waits for it.

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
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process};

use super::descendants::signal_all;
use super::order::Order;
use super::{CommandExit, GO, GRACE, GuardMessage, Level, own_arguments, own_program};
use crate::platform::processes::hide_this_process;
use crate::platform::terminal::unblock_stops;

/// How long the init may take to get ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest pause between two looks at what is left.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The first byte that an init or a re-executed process writes: it is ready, the system refuses the level, or a path of the rules
/// cannot be protected. A reason follows the last two.
pub(super) const READY: u8 = b'r';
pub(super) const REFUSED: u8 = b'x';
pub(super) const UNPROTECTED: u8 = b'p';

/// Runs one command; `None` when the order is not the worker's. Exits 0 only when the command did: a command can forge a line on
/// stderr where it reaches that file, but not the exit status.
pub(super) fn run() -> Option<i32> {
    let order = Order::read(io::stdin().lock()).ok()?;
    let message = guard(&order).unwrap_or_else(|error| Some(GuardMessage::Failed(error.to_string())));
    if let Some(message) = &message {
        tell(message);
    }
    Some(i32::from(message != Some(GuardMessage::Ended(CommandExit::Code(0)))))
}

/// Tells the worker. It may be gone; then the leash closes.
fn tell(message: &GuardMessage) {
    let _ = io::stderr().write_all(message.to_line().as_bytes());
}

fn guard(order: &Order) -> io::Result<Option<GuardMessage>> {
    // A session of its own keeps the terminal's signals and the terminal itself away from commands. It fails for a
    // process that leads one already, which is as good.
    let _ = rustix::process::setsid();
    unblock_stops();
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let inner = match Inner::start(order)? {
        Ok(inner) => inner,
        Err(message) => return Ok(Some(message)),
    };
    tell(&GuardMessage::Group(inner.group.as_raw_nonzero().get()));
    let mut leash = io::stdin().lock();
    let mut go = [0];
    if leash.read_exact(&mut go).is_err() || go != GO {
        inner.give_up();
        return Ok(None);
    }
    drop(leash);
    let end = if order.level == Level::Full { inner.follow()? } else { inner.follow_group()? };
    Ok(Some(GuardMessage::Ended(end)))
}

/// The process that becomes the shell, or the init that starts it.
struct Inner {
    group: Pid,
    channel: UnixStream,
}

impl Inner {
    /// Starts the process and waits until it is ready; the inner error is what the worker is told instead.
    fn start(order: &Order) -> io::Result<Result<Self, GuardMessage>> {
        #[cfg(target_os = "linux")]
        if order.level == Level::Full
            && let Err(reason) = super::namespaces::enter(true).and_then(|()| super::namespaces::hand_on_capabilities())
        {
            return Ok(Err(GuardMessage::Refused(reason)));
        }
        // Only now: one that hides itself may not map its own ids any more.
        hide_this_process();
        let (channel, theirs) = UnixStream::pair()?;
        channel.set_read_timeout(Some(READY_TIMEOUT))?;
        let child = spawn(order.level, theirs.into())?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let mut inner = Self { group, channel };
        inner.channel.write_all(&order.encode())?;
        Ok(match inner.greet()? {
            None => Ok(inner),
            Some(message) => {
                inner.give_up();
                Err(message)
            }
        })
    }

    fn greet(&mut self) -> io::Result<Option<GuardMessage>> {
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

    /// Ends a process that never began, and waits for it.
    fn give_up(self) {
        drop(self.channel);
        let _ = kill_process(self.group, Signal::KILL);
        signal_all(self.group, Signal::KILL);
        let _ = wait_for(self.group);
    }

    /// Follows an init until it is gone, and with it everything in its namespace. One thread does it: a process whose
    /// children live in another namespace cannot start threads.
    fn follow(mut self) -> io::Result<CommandExit> {
        self.channel.write_all(GO)?;
        self.wait_for_word()?;
        let mut word = String::new();
        self.channel.read_to_string(&mut word)?;
        wait_for(self.group)?;
        match GuardMessage::parse(&word) {
            GuardMessage::Ended(end) => Ok(end),
            GuardMessage::Failed(reason) if !word.is_empty() => Err(io::Error::other(reason)),
            _ => Err(io::Error::other("the command was ended from outside")),
        }
    }

    /// Lets a command begin that is not in a namespace of its own, and follows it: its processes are found by their parents.
    fn follow_group(mut self) -> io::Result<CommandExit> {
        let group = self.group;
        let leash = thread::Builder::new().spawn(move || {
            // Anything but silence means that the worker is done with us; so does an error.
            while matches!(io::stdin().lock().read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::Interrupted)
            {
            }
            end_without_mercy(group);
        });
        if let Err(error) = leash {
            self.give_up();
            return Err(io::Error::new(error.kind(), format!("cannot start a thread: {error}")));
        }
        self.channel.write_all(GO)?;
        let end = wait_for(group)?;
        end_left_overs(group);
        Ok(end)
    }

    /// Returns when the init says how the command ended, or is gone; lets it go when we are let go.
    fn wait_for_word(&self) -> io::Result<()> {
        let stdin = io::stdin();
        let mut let_go = None;
        loop {
            let mut both = [PollFd::new(&self.channel, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            let (watched, timeout) = match let_go {
                None => (&mut both[..], None),
                Some(_) => (&mut both[..1], Timespec::try_from(GRACE * 2).ok()),
            };
            match poll(watched, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let [channel, leash] = &both;
            if !channel.revents().is_empty() {
                return Ok(());
            }
            if let_go.is_none() && !leash.revents().is_empty() {
                // Anything but silence means that the worker is done with us.
                let_go = Some(Instant::now());
                // One that is gone already is noticed in the next round.
                let _ = self.channel.shutdown(Shutdown::Write);
            } else if let_go.is_some_and(|since| since.elapsed() >= GRACE * 2) {
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

/// Waits for the leader of the group, and reaps on the way what became our child.
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

/// Whether anything of the command is still there; reaps what is dead.
fn is_anything_left(group: Pid) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            // No children: with a subreaper nothing is left. Without, what stayed in the group can still be seen.
            Err(_) if cfg!(target_os = "linux") => return false,
            Err(_) => return rustix::process::test_kill_process_group(group).is_ok(),
        }
    }
}

/// Ends what the command left behind: the background jobs of a shell that is gone.
fn end_left_overs(group: Pid) {
    if !is_anything_left(group) {
        return;
    }
    signal_all(group, Signal::TERM);
    let (asked, mut pause) = (Instant::now(), PAUSE_MIN);
    while is_anything_left(group) {
        if asked.elapsed() >= GRACE {
            signal_all(group, Signal::KILL);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(if asked.elapsed() < GRACE { GRACE / 10 } else { PAUSE_MAX });
    }
}

/// Ends everything, and goes on until this process ends: the main thread sees when nothing is left.
fn end_without_mercy(group: Pid) {
    signal_all(group, Signal::TERM);
    thread::sleep(GRACE);
    let mut pause = PAUSE_MIN;
    loop {
        signal_all(group, Signal::KILL);
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
