//! The guard process: it starts the stage, waits, and ends everything when its leash is let go.
//!
//! It does as little as it can before the command begins: every command of every teammate waits for it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::descendants::signal_all;
use super::{CommandEnd, Confinement, GO, GRACE, GUARD_ARGUMENT, GuardSays, own_program};

/// How long the stage may take to get ready.
const STAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest pause between two looks at what is left.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What the worker asks for: the shell, the command, what is to be read-only.
struct Order<'a> {
    shell: &'a OsString,
    command: &'a OsString,
    read_only: &'a [OsString],
}

/// Runs one command; `None` when the arguments are not the worker's.
pub(super) fn run(arguments: &[OsString]) -> Option<i32> {
    let [shell, command, read_only @ ..] = arguments else { return None };
    match guard(&Order { shell, command, read_only }) {
        Ok(Some(end)) => say(&GuardSays::Ended(end)),
        Ok(None) => {}
        Err(error) => say(&GuardSays::Failed(error.to_string())),
    }
    Some(0)
}

/// Tells the worker. It may be gone; then the leash says so.
fn say(says: &GuardSays) {
    let _ = io::stderr().write_all(says.to_line().as_bytes());
}

fn guard(order: &Order<'_>) -> io::Result<Option<CommandEnd>> {
    // A session of its own keeps the terminal's signals and the terminal itself away from commands. It fails for a
    // process that leads one already, which is as good.
    let _ = rustix::process::setsid();
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut stage = Stage::start(order)?;
    say(&GuardSays::Group { id: stage.group.as_raw_nonzero().get(), confinement: stage.confinement.clone() });
    let mut leash = io::stdin().lock();
    let mut go = [0];
    if leash.read_exact(&mut go).is_err() || go != GO {
        stage.give_up();
        return Ok(None);
    }
    drop(leash);
    stage.channel.write_all(GO)?;
    let group = stage.group;
    thread::spawn(move || {
        // Anything but silence means that the worker is done with us; so does an error.
        while matches!(io::stdin().lock().read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::Interrupted) {}
        end_without_mercy(group);
    });
    let end = wait_for(group)?;
    end_left_overs(group);
    Ok(Some(end))
}

struct Stage {
    group: Pid,
    channel: UnixStream,
    confinement: Confinement,
}

impl Stage {
    /// Starts the stage, confined if it can be.
    fn start(order: &Order<'_>) -> io::Result<Self> {
        let mut reason = String::new();
        if !order.read_only.is_empty() {
            match Self::start_as(order, order.read_only)? {
                (stage, None) => return Ok(stage),
                (stage, Some(why_not)) => {
                    stage.give_up();
                    reason = why_not;
                }
            }
        }
        match Self::start_as(order, &[])? {
            (stage, None) => Ok(Self { confinement: Confinement::Unavailable(reason), ..stage }),
            (_, Some(why_not)) => Err(io::Error::other(why_not)),
        }
    }

    /// Starts the stage and waits until it is ready; the text says why it is not.
    fn start_as(order: &Order<'_>, read_only: &[OsString]) -> io::Result<(Self, Option<String>)> {
        let (channel, theirs) = UnixStream::pair()?;
        channel.set_read_timeout(Some(STAGE_TIMEOUT))?;
        let child = spawn(order, read_only, theirs.into())?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let mut stage = Self { group, channel, confinement: Confinement::Confined };
        let why_not = stage.greet()?;
        Ok((stage, why_not))
    }

    fn greet(&mut self) -> io::Result<Option<String>> {
        let mut word = [0];
        loop {
            self.channel.read_exact(&mut word)?;
            match &word {
                b"r" => return Ok(None),
                b"m" => {
                    // A stage that is not told to go on says why it could not.
                    let answer = if map_ids(self.group).is_ok() { b"m" } else { b"x" };
                    self.channel.write_all(answer)?;
                }
                _ => {
                    let mut reason = String::new();
                    self.channel.read_to_string(&mut reason)?;
                    return Ok(Some(reason));
                }
            }
        }
    }

    /// Lets a stage go that never began, and waits for it.
    fn give_up(self) {
        drop(self.channel);
        signal_all(self.group, Signal::KILL);
        let _ = wait_for(self.group);
    }
}

#[allow(clippy::zombie_processes, reason = "the guard reaps all its children by waitpid")]
fn spawn(order: &Order<'_>, read_only: &[OsString], channel: OwnedFd) -> io::Result<Child> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Command::new(own_program()?)
        .args([GUARD_ARGUMENT, "stage", &std::process::id().to_string()])
        .arg(order.shell)
        .arg(order.command)
        .args(read_only)
        .stdin(channel)
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
}

/// Maps every id of the stage's new user namespace to itself: all of them where we may, else its own. See user_namespaces(7).
fn map_ids(stage: Pid) -> io::Result<()> {
    let folder = format!("/proc/{}", stage.as_raw_nonzero());
    let all = |file: &str| -> io::Result<String> {
        let own = fs::read_to_string(format!("/proc/self/{file}"))?;
        let lines = own.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (inside, count) = (fields.next()?, fields.nth(1)?);
            Some(format!("{inside} {inside} {count}\n"))
        });
        Ok(lines.collect())
    };
    let write = |file: &str, text: String| fs::write(format!("{folder}/{file}"), text);
    if write("uid_map", all("uid_map")?).is_ok() {
        return write("gid_map", all("gid_map")?);
    }
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {user} 1\n"))?;
    write("gid_map", format!("{group} {group} 1\n"))
}

/// Waits for the leader of the group, and reaps on the way what became our child.
fn wait_for(leader: Pid) -> io::Result<CommandEnd> {
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
