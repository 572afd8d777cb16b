//! The stage: the process that becomes the shell where a command cannot have a process namespace of its own. It confines
//! itself, tells the guard, waits for the word, and execs.
//!
//! What std does between fork and exec would be unsafe code of ours; a process that execs itself needs none.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::GO;

/// Becomes the command; returns an exit code only where it does not come to that.
pub(super) fn run(arguments: &[OsString]) -> Option<i32> {
    let [guard, shell, command, read_only @ ..] = arguments else { return None };
    let guard: i32 = guard.to_str()?.parse().ok()?;
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    if let Err(reason) = confine(read_only) {
        let _ = write!(channel, "x{reason}");
        return Some(1);
    }
    if !die_with(guard) || channel.write_all(b"r").is_err() {
        return Some(1);
    }
    let mut go = [0];
    if channel.read_exact(&mut go).is_err() || go != GO {
        return Some(1);
    }
    drop(channel);
    let error = Command::new(shell).arg("-c").arg(command).stdin(Stdio::null()).exec();
    // Standard error is the command's output here.
    let _ = writeln!(io::stderr(), "{}: {error}", shell.display());
    Some(127)
}

/// Has the system kill this process when the guard dies; false when the guard is gone already.
fn die_with(guard: i32) -> bool {
    // Only a second line: the guard ends everything itself before it goes.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == guard)
}

#[cfg(target_os = "linux")]
fn confine(read_only: &[OsString]) -> Result<(), String> {
    if read_only.is_empty() {
        return Ok(());
    }
    super::namespaces::enter(false)?;
    super::namespaces::protect(read_only)?;
    super::namespaces::seal();
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn confine(read_only: &[OsString]) -> Result<(), String> {
    if read_only.is_empty() { Ok(()) } else { Err("only Linux has mount namespaces".to_owned()) }
}
