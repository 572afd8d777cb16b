//! The init of a command's process namespace: it readies the namespace, starts the shell, reaps, and is the end of all that is in it.
//!
//! When the init of a namespace ends, whoever ends it, the system kills every process inside and lets the init go only
//! once they are gone. So nothing of a command is left when its guard sees the init's end. Nothing inside can signal,
//! stop or look into the init.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, set_parent_process_death_signal};

use super::guard::{PAUSE_MIN, READY, REFUSED, UNPROTECTED, wait_for};
use super::order::Order;
use super::{CommandExit, GO, GRACE, GuardMessage, mounts, namespaces, shell, shell_process};
use crate::platform::processes::hide_this_process;

/// Runs the command and says over the channel on stdin how it ended; `None` when the order is not the guard's.
pub(super) fn run() -> Option<i32> {
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let order = Order::read(io::BufReader::new(&channel)).ok()?;
    let protect = |mounts| mounts::apply(&order.rules, &mounts).map_err(|reason| (UNPROTECTED, reason));
    let close = |()| close_up().map_err(|reason| (REFUSED, reason));
    if let Err((word, reason)) = enter().map_err(|reason| (REFUSED, reason)).and_then(protect).and_then(close) {
        let _ = channel.write_all(&[&[word], reason.as_bytes()].concat());
        return Some(1);
    }
    let mut go = [0];
    // A guard that was killed before we asked to die with it is noticed here.
    if channel.write_all(&[READY]).is_err() || channel.read_exact(&mut go).is_err() || go != GO {
        return Some(1);
    }
    let mut leash = channel.try_clone().ok()?;
    let leash = thread::Builder::new().spawn(move || {
        // Any byte means that the guard ends the command; so does an error.
        while matches!(leash.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::Interrupted) {}
        end_all();
        std::process::exit(0);
    });
    if let Err(error) = leash {
        let failed = GuardMessage::Failed(format!("cannot start a thread: {error}"));
        let _ = channel.write_all(failed.to_line().as_bytes());
        return Some(1);
    }
    let end = run_shell(&order);
    end_all();
    let _ = channel.write_all(GuardMessage::Ended(end).to_line().as_bytes());
    Some(0)
}

/// Gives the namespace its own processes and terminals, and makes the system's settings read-only. Returns the mounts that were there.
pub(super) fn enter() -> Result<mounts::Mounts, String> {
    // A group of its own, by which it is known outside.
    rustix::process::setsid().map_err(|error| error.to_string())?;
    let outside = namespaces::number_outside()?;
    namespaces::mount_proc()?;
    namespaces::number_processes_from(outside)?;
    mounts::protect_system()
}

/// Gives up every right that could undo the mounts.
pub(super) fn close_up() -> Result<(), String> {
    namespaces::seal();
    namespaces::give_up_capabilities()?;
    hide_this_process();
    // Last: changing capabilities takes it back.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())
}

#[allow(clippy::zombie_processes, reason = "the init reaps all its children by waitpid")]
fn run_shell(order: &Order) -> CommandExit {
    let pid = match shell_process(&order.script).process_group(0).spawn() {
        Ok(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
        Err(error) => {
            // Standard error is the command's output here.
            let _ = writeln!(io::stderr(), "{}: {error}", shell().display());
            None
        }
    };
    pid.and_then(|pid| wait_for(pid).ok()).unwrap_or(CommandExit::Code(127))
}

/// Asks everything else in the namespace to end; what does not is killed when this process ends.
fn end_all() {
    if !is_anything_left() {
        return;
    }
    // The group that begins with the init is, for kill(2), every process of the namespace but the caller.
    let _ = kill_process_group(Pid::INIT, Signal::TERM);
    let (asked, mut pause) = (Instant::now(), PAUSE_MIN);
    while asked.elapsed() < GRACE && is_anything_left() {
        thread::sleep(pause);
        pause = (pause * 2).min(GRACE / 10);
    }
}

/// Reaps what is dead. Whoever lost its parent is the init's child, so without children nothing is left.
fn is_anything_left() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
