//! The guard process: it starts the command, waits, and ends everything when its leash is let go.
//!
//! It does as little as it can before the command begins: every command of every teammate waits for it.

use std::ffi::OsString;
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
use super::{CommandEnd, GO, GRACE, GuardSays, Level, own_arguments, own_program};
use crate::platform::processes::hide_this_process;

/// How long the stage may take to get ready.
const STAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest pause between two looks at what is left.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What the worker asks for: how it is confined, the shell, the command, what is to be read-only.
struct Order<'a> {
    level: Level,
    shell: &'a OsString,
    command: &'a OsString,
    read_only: &'a [OsString],
}

/// Runs one command; `None` when the arguments are not the worker's. Exits 0 only when the command did: what is said on stderr
/// could be somebody else's words, the exit status could not.
pub(super) fn run(arguments: &[OsString]) -> Option<i32> {
    let [level, shell, command, read_only @ ..] = arguments else { return None };
    let order = Order { level: Level::from_word(level.to_str()?)?, shell, command, read_only };
    let says = guard(&order).unwrap_or_else(|error| Some(GuardSays::Failed(error.to_string())));
    if let Some(says) = &says {
        say(says);
    }
    Some(i32::from(says != Some(GuardSays::Ended(CommandEnd::Exit(0)))))
}

/// Tells the worker. It may be gone; then the leash says so.
fn say(says: &GuardSays) {
    let _ = io::stderr().write_all(says.to_line().as_bytes());
}

fn guard(order: &Order<'_>) -> io::Result<Option<GuardSays>> {
    // A session of its own keeps the terminal's signals and the terminal itself away from commands. It fails for a
    // process that leads one already, which is as good.
    let _ = rustix::process::setsid();
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut stage = match Stage::start(order)? {
        Ok(stage) => stage,
        Err(why_not) => return Ok(Some(GuardSays::Refused(why_not))),
    };
    say(&GuardSays::Group(stage.group.as_raw_nonzero().get()));
    let mut leash = io::stdin().lock();
    let mut go = [0];
    if leash.read_exact(&mut go).is_err() || go != GO {
        stage.give_up();
        return Ok(None);
    }
    drop(leash);
    stage.channel.write_all(GO)?;
    let end = if order.level == Level::Whole { stage.follow()? } else { follow_group(stage.group)? };
    Ok(Some(GuardSays::Ended(end)))
}

/// What becomes the shell, or the init that starts it.
struct Stage {
    group: Pid,
    channel: UnixStream,
}

impl Stage {
    /// Starts the stage and waits until it is ready; the inner error says why it cannot be confined.
    fn start(order: &Order<'_>) -> io::Result<Result<Self, String>> {
        #[cfg(target_os = "linux")]
        if order.level == Level::Whole
            && let Err(why_not) = super::confine::enter(true).and_then(|()| super::confine::hand_on_capabilities())
        {
            return Ok(Err(why_not));
        }
        // Only now: one that hides itself may not map its own ids any more.
        hide_this_process();
        let (channel, theirs) = UnixStream::pair()?;
        channel.set_read_timeout(Some(STAGE_TIMEOUT))?;
        let child = spawn(order, theirs.into())?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let mut stage = Self { group, channel };
        Ok(match stage.greet()? {
            None => Ok(stage),
            Some(why_not) => {
                stage.give_up();
                Err(why_not)
            }
        })
    }

    fn greet(&mut self) -> io::Result<Option<String>> {
        let mut word = [0];
        self.channel.read_exact(&mut word)?;
        if &word == b"r" {
            self.channel.set_read_timeout(None)?;
            return Ok(None);
        }
        let mut reason = String::new();
        self.channel.read_to_string(&mut reason)?;
        Ok(Some(reason))
    }

    /// Lets a stage go that never began, and waits for it.
    fn give_up(self) {
        drop(self.channel);
        let _ = kill_process(self.group, Signal::KILL);
        signal_all(self.group, Signal::KILL);
        let _ = wait_for(self.group);
    }

    /// Follows an init until it is gone, and with it everything in its namespace. One thread does it: a process whose
    /// children live in another namespace cannot start threads.
    fn follow(mut self) -> io::Result<CommandEnd> {
        self.wait_for_word()?;
        let mut word = String::new();
        self.channel.read_to_string(&mut word)?;
        wait_for(self.group)?;
        match GuardSays::parse(&word) {
            GuardSays::Ended(end) => Ok(end),
            _ => Err(io::Error::other("it was ended from outside")),
        }
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

/// Follows a command that is not in a namespace of its own: its processes are found by their parents.
fn follow_group(group: Pid) -> io::Result<CommandEnd> {
    thread::spawn(move || {
        // Anything but silence means that the worker is done with us; so does an error.
        while matches!(io::stdin().lock().read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::Interrupted) {}
        end_without_mercy(group);
    });
    let end = wait_for(group)?;
    end_left_overs(group);
    Ok(end)
}

#[allow(clippy::zombie_processes, reason = "the guard reaps all its children by waitpid")]
fn spawn(order: &Order<'_>, channel: OwnedFd) -> io::Result<Child> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let mut stage = Command::new(own_program()?);
    stage.args(own_arguments());
    match order.level {
        Level::Whole => stage.arg("init"),
        Level::Mounts | Level::Plain => stage.arg("stage").arg(std::process::id().to_string()).process_group(0),
    };
    stage.arg(order.shell).arg(order.command);
    if order.level != Level::Plain {
        stage.args(order.read_only);
    }
    stage.stdin(channel).stdout(output.try_clone()?).stderr(output).spawn()
}

/// Waits for the leader of the group, and reaps on the way what became our child.
pub(super) fn wait_for(leader: Pid) -> io::Result<CommandEnd> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((process, status))) if process == leader => return Ok(end_of(status)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn end_of(status: WaitStatus) -> CommandEnd {
    match (status.exit_status(), status.terminating_signal()) {
        (_, Some(signal)) => CommandEnd::Signal(signal),
        (code, None) => CommandEnd::Exit(code.unwrap_or(0)),
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
