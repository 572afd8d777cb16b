//! The process that becomes the shell where a command cannot have a process namespace of its own. It confines
//! itself, tells the guard, waits for the word, and executes the shell.
//!
//! A process of our own needs no unsafe code between fork and exec.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;

use super::guard::{READY, REFUSED, UNPROTECTED};
use super::order::Order;
use super::{GO, Level, shell, shell_process};

/// Why the process is not confined.
pub(super) enum NotReady {
    /// The system refuses it.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has namespaces"))]
    Refused(String),
    /// A path cannot be protected.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has namespaces"))]
    Unprotected(String),
}

/// Becomes the command; returns an exit code only where it cannot.
pub(super) fn run(arguments: &[OsString]) -> Option<i32> {
    let [guard] = arguments else { return None };
    let guard: i32 = guard.to_str()?.parse().ok()?;
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let order = Order::read(io::BufReader::new(&channel)).ok()?;
    if let Err(error) = confine(&order) {
        let (word, reason) = match error {
            NotReady::Refused(reason) => (REFUSED, reason),
            NotReady::Unprotected(reason) => (UNPROTECTED, reason),
        };
        let _ = channel.write_all(&[&[word], reason.as_bytes()].concat());
        return Some(1);
    }
    if !die_with(guard) || channel.write_all(&[READY]).is_err() {
        return Some(1);
    }
    let mut go = [0];
    if channel.read_exact(&mut go).is_err() || go != GO {
        return Some(1);
    }
    drop(channel);
    let error = shell_process(&order.script).exec();
    // Standard error is the command's output here.
    let _ = writeln!(io::stderr(), "{}: {error}", shell().display());
    Some(127)
}

/// Has the system kill this process when the guard dies; false when the guard is gone already.
fn die_with(guard: i32) -> bool {
    // A second line of defence: the guard ends every process of the command before it exits.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == guard)
}

/// Confines this process without a process namespace.
#[cfg(target_os = "linux")]
pub(super) fn confine(order: &Order) -> Result<(), NotReady> {
    if order.level == Level::Off {
        return Ok(());
    }
    super::namespaces::enter(false).map_err(NotReady::Refused)?;
    let mounts = super::mounts::protect_system().map_err(NotReady::Refused)?;
    super::mounts::apply(&order.rules, &mounts).map_err(NotReady::Unprotected)?;
    super::namespaces::seal();
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn confine(order: &Order) -> Result<(), NotReady> {
    match order.level {
        Level::Off => Ok(()),
        _ => Err(NotReady::Refused("only Linux has mount namespaces".to_owned())),
    }
}
