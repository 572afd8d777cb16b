//! The process that becomes the shell if a command cannot have a process namespace. It confines itself, tells the guard,
//! waits for the start byte, and executes the shell. A separate process avoids unsafe code between fork and exec.
//!
//! The init and the filters confine themselves by the same function, [`confine`].

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;

use super::command_spec::CommandSpec;
use super::guard::{READY, REFUSED};
use super::{Level, START_BYTE, shell, shell_process};

/// The reason why the process is not confined.
pub(super) struct ConfinementError {
    /// The word for the guard: [`REFUSED`] by the system, or a path is [`super::guard::UNPROTECTED`].
    word: u8,
    pub(super) reason: String,
}

/// Becomes the command. It returns an exit code only on failure.
pub(super) fn run(arguments: &[OsString]) -> Option<i32> {
    let [guard] = arguments else { return None };
    let guard: i32 = guard.to_str()?.parse().ok()?;
    let (command_spec, mut channel) = receive_spec()?;
    let confined = confine(&command_spec);
    if confined.is_ok() && !die_with(guard) || !is_started(&mut channel, confined) {
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

/// Reads the command spec from the channel to the guard, which is stdin.
pub(super) fn receive_spec() -> Option<(CommandSpec, UnixStream)> {
    let channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    Some((CommandSpec::read(io::BufReader::new(&channel)).ok()?, channel))
}

/// Tells the guard whether the process is confined, and waits for the start byte. Returns false if the command must not start.
pub(super) fn is_started(channel: &mut UnixStream, confined: Result<(), ConfinementError>) -> bool {
    if let Err(ConfinementError { word, reason }) = confined {
        let _ = channel.write_all(&[&[word], reason.as_bytes()].concat());
        return false;
    }
    let mut start_byte = [0];
    // This also notices a guard that was killed before the parent death signal was set.
    channel.write_all(&[READY]).is_ok() && channel.read_exact(&mut start_byte).is_ok() && start_byte == START_BYTE
}

/// Makes the kernel kill this process when the guard dies. Returns false if the guard has already ended.
fn die_with(guard: i32) -> bool {
    // An additional protection: the guard ends every process of the command before it exits.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == guard)
}

fn refused(reason: String) -> ConfinementError {
    ConfinementError { word: REFUSED, reason }
}

/// Confines this process. At [`Level::Full`] it must be the first process of its process namespace.
#[cfg(target_os = "linux")]
pub(super) fn confine(command_spec: &CommandSpec) -> Result<(), ConfinementError> {
    use super::{init, mounts, namespaces};
    let entered = match command_spec.level {
        Level::Full => init::enter(),
        Level::MountsOnly => namespaces::enter(false).and_then(|()| mounts::prepare_namespace()),
        Level::Off => return Ok(()),
    };
    mounts::apply_rules(&command_spec.rules, &entered.map_err(refused)?)
        .map_err(|reason| ConfinementError { word: super::guard::UNPROTECTED, reason })?;
    namespaces::drop_bounding_capabilities();
    if command_spec.level == Level::Full { init::drop_rights().map_err(refused) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn confine(command_spec: &CommandSpec) -> Result<(), ConfinementError> {
    match command_spec.level {
        Level::Off => Ok(()),
        _ => Err(refused("only Linux has mount namespaces".to_owned())),
    }
}
