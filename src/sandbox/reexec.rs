//! The process that becomes the shell if a command cannot have a process namespace. It confines itself, tells the guard,
//! waits for the start byte, and executes the shell.
//!
//! A separate process avoids unsafe code between fork and exec.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;

use super::command_spec::CommandSpec;
use super::guard::{READY, REFUSED, UNPROTECTED};
use super::{Level, START_BYTE, shell, shell_process};

/// The reason why the process is not confined.
pub(super) enum ConfinementError {
    /// The system refuses it.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has namespaces"))]
    Refused(String),
    /// A path cannot be protected.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has namespaces"))]
    Unprotected(String),
}

/// Becomes the command. It returns an exit code only on failure.
pub(super) fn run(arguments: &[OsString]) -> Option<i32> {
    let [guard] = arguments else { return None };
    let guard: i32 = guard.to_str()?.parse().ok()?;
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let command_spec = CommandSpec::read(io::BufReader::new(&channel)).ok()?;
    if let Err(error) = confine(&command_spec) {
        let (word, reason) = match error {
            ConfinementError::Refused(reason) => (REFUSED, reason),
            ConfinementError::Unprotected(reason) => (UNPROTECTED, reason),
        };
        let _ = channel.write_all(&[&[word], reason.as_bytes()].concat());
        return Some(1);
    }
    if !die_with(guard) || channel.write_all(&[READY]).is_err() {
        return Some(1);
    }
    let mut start_byte = [0];
    if channel.read_exact(&mut start_byte).is_err() || start_byte != START_BYTE {
        return Some(1);
    }
    drop(channel);
    let error = match shell_process(&command_spec) {
        Ok(mut process) => process.exec(),
        Err(error) => error,
    };
    // Standard error is the command's output here.
    let _ = writeln!(io::stderr(), "{}: {error}", shell().display());
    Some(127)
}

/// Makes the kernel kill this process when the guard dies. Returns `false` if the guard has already ended.
fn die_with(guard: i32) -> bool {
    // An additional protection: the guard ends every process of the command before it exits.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == guard)
}

/// Confines this process without a process namespace.
#[cfg(target_os = "linux")]
pub(super) fn confine(command_spec: &CommandSpec) -> Result<(), ConfinementError> {
    if command_spec.level == Level::Off {
        return Ok(());
    }
    super::namespaces::enter(false).map_err(ConfinementError::Refused)?;
    let mounts = super::mounts::protect_system().map_err(ConfinementError::Refused)?;
    super::mounts::apply(&command_spec.rules, &mounts).map_err(ConfinementError::Unprotected)?;
    super::namespaces::drop_bounding_capabilities();
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn confine(command_spec: &CommandSpec) -> Result<(), ConfinementError> {
    match command_spec.level {
        Level::Off => Ok(()),
        _ => Err(ConfinementError::Refused("only Linux has mount namespaces".to_owned())),
    }
}
