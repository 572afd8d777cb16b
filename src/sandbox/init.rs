//! The init of a command's process namespace: prepares the namespace, starts the shell and reaps processes.
//!
//! When the init ends for any reason, the kernel kills every process in its namespace, and the init disappears only
//! after them. So nothing of a command is left when its guard sees the init's end. No process inside can signal,
//! stop or inspect the init.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

use super::command_spec::CommandSpec;
use super::guard::{PAUSE_MIN, has_children, wait_for, wait_for_order};
use super::reexec::{confine, is_started, receive_spec};
use super::{CommandExit, GRACE, GuardMessage, mounts, namespaces, shell, shell_process};
use crate::platform::processes::hide_this_process;

/// Runs the command and reports its exit over the channel on stdin. Returns `None` if the command spec is invalid.
pub(super) fn run() -> Option<i32> {
    let (command_spec, mut channel) = receive_spec()?;
    if !is_started(&mut channel, confine(&command_spec)) {
        return Some(1);
    }
    let guard_channel = channel.try_clone().ok()?;
    let watcher = thread::Builder::new().spawn(move || {
        wait_for_order(guard_channel);
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

/// Gives the namespace its own processes and terminals, and makes the kernel's settings read-only. Returns the mount table from before.
pub(super) fn enter() -> Result<mounts::MountTable, String> {
    // A new group, whose id is known outside.
    rustix::process::setsid().map_err(|error| error.to_string())?;
    let outside = namespaces::outside_pid()?;
    namespaces::mount_proc()?;
    namespaces::set_first_pid(outside)?;
    mounts::prepare_namespace()
}

/// Drops the rights of this process that could undo the mounts.
pub(super) fn drop_rights() -> Result<(), String> {
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
    // Orphans become the init's children.
    if !has_children() {
        return;
    }
    // For kill(2), the group of process 1 is every process of the namespace except the caller.
    let _ = kill_process_group(Pid::INIT, Signal::TERM);
    let started_at = Instant::now();
    let mut pause = PAUSE_MIN;
    while started_at.elapsed() < GRACE && has_children() {
        thread::sleep(pause);
        pause = (pause * 2).min(GRACE / 10);
    }
}
