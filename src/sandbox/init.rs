//! The init of a command's process namespace: prepares the namespace, starts the shell and reaps processes.
//!
//! When the init ends for any reason, the kernel kills every process in its namespace, and the init disappears only
//! after them. So nothing of a command is left when its guard sees the init's end. No process inside can signal,
//! stop or inspect the init.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, set_parent_process_death_signal};

use super::command_spec::CommandSpec;
use super::guard::{PAUSE_MIN, READY, REFUSED, UNPROTECTED, wait_for};
use super::{CommandExit, GRACE, GuardMessage, START_BYTE, mounts, namespaces, shell, shell_process};
use crate::platform::processes::hide_this_process;

/// Runs the command and reports its exit over the channel on stdin. Returns `None` if the command spec is invalid.
pub(super) fn run() -> Option<i32> {
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let command_spec = CommandSpec::read(io::BufReader::new(&channel)).ok()?;
    let protect = |mounts| mounts::apply(&command_spec.rules, &mounts).map_err(|reason| (UNPROTECTED, reason));
    let close = |()| drop_rights().map_err(|reason| (REFUSED, reason));
    if let Err((word, reason)) = enter().map_err(|reason| (REFUSED, reason)).and_then(protect).and_then(close) {
        let _ = channel.write_all(&[&[word], reason.as_bytes()].concat());
        return Some(1);
    }
    let mut start_byte = [0];
    // This also notices a guard that was killed before the parent death signal was set.
    if channel.write_all(&[READY]).is_err() || channel.read_exact(&mut start_byte).is_err() || start_byte != START_BYTE
    {
        return Some(1);
    }
    let mut guard_channel = channel.try_clone().ok()?;
    let watcher = thread::Builder::new().spawn(move || {
        // A byte, the end of the channel or an error: the guard wants the command to end.
        while matches!(guard_channel.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::Interrupted) {}
        end_all();
        std::process::exit(0);
    });
    if let Err(error) = watcher {
        let failed = GuardMessage::Failed(format!("cannot start a thread: {error}"));
        let _ = channel.write_all(failed.to_line().as_bytes());
        return Some(1);
    }
    let end = run_shell(&command_spec);
    end_all();
    let _ = channel.write_all(GuardMessage::Ended(end).to_line().as_bytes());
    Some(0)
}

/// Gives the namespace its own processes and terminals, and makes the system's settings read-only. Returns the previous mounts.
pub(super) fn enter() -> Result<mounts::Mounts, String> {
    // A new group, whose id is known outside.
    rustix::process::setsid().map_err(|error| error.to_string())?;
    let outside = namespaces::outside_pid()?;
    namespaces::mount_proc()?;
    namespaces::set_first_pid(outside)?;
    mounts::protect_system()
}

/// Drops every right that could undo the mounts.
pub(super) fn drop_rights() -> Result<(), String> {
    namespaces::drop_bounding_capabilities();
    namespaces::drop_capabilities()?;
    hide_this_process();
    // Last, because a change of capabilities clears it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())
}

#[allow(clippy::zombie_processes, reason = "the init reaps all its children by waitpid")]
fn run_shell(command_spec: &CommandSpec) -> CommandExit {
    let shell_child = shell_process(command_spec).and_then(|mut process| process.process_group(0).spawn());
    let pid = match shell_child {
        Ok(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
        Err(error) => {
            // Standard error is the command's output here.
            let _ = writeln!(io::stderr(), "{}: {error}", shell().display());
            None
        }
    };
    pid.and_then(|pid| wait_for(pid).ok()).unwrap_or(CommandExit::Code(127))
}

/// Asks all other processes in the namespace to end. The kernel kills the rest when this process ends.
fn end_all() {
    if !has_processes_left() {
        return;
    }
    // For kill(2), the group of process 1 is every process of the namespace except the caller.
    let _ = kill_process_group(Pid::INIT, Signal::TERM);
    let (started_at, mut pause) = (Instant::now(), PAUSE_MIN);
    while started_at.elapsed() < GRACE && has_processes_left() {
        thread::sleep(pause);
        pause = (pause * 2).min(GRACE / 10);
    }
}

/// Returns `true` if processes of the command are left. It reaps dead ones. Orphans become the init's children, so no children means none.
fn has_processes_left() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
