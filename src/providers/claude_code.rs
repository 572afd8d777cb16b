//! The installed Claude Code. Its protocol is in `agents::external::claude`.

use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::{ProgramError, ProgramReport};
use crate::domain::team_spec::ModelSpec;
use crate::sandbox;

/// The versions with which the protocol was tested, the oldest first.
const TESTED: [Version; 2] = [Version(2, 1, 197), Version(2, 1, 330)];

/// The command that starts the program, if the settings name none.
pub const DEFAULT_COMMAND: &str = "claude";

/// The command that installs the program.
const INSTALL: &str = "npm install --global @anthropic-ai/claude-code";

/// A version of the program: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    /// Parses the start of the output of `claude --version`, such as `2.1.330 (Claude Code)`.
    fn parse(text: &str) -> Option<Self> {
        let number = text.split_whitespace().next()?.split('-').next()?;
        let mut parts = number.split('.').map(|part| part.parse().ok());
        Some(Self(parts.next()??, parts.next()??, parts.next()??))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The longest time for the program to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `command --version` in a shell, without the providers' keys. Blocks until it ends, for some tenths of a second.
///
/// # Errors
/// [`ProgramError`].
fn installed_version(command: &str) -> Result<Version, ProgramError> {
    let error = |problem: String, verb: &str| ProgramError {
        problem,
        hint: format!("{verb} it: `{INSTALL}`; or set `command` to its path"),
    };
    let missing = |reason: &str| error(format!("cannot run `{command} --version`: {}", reason.trim()), "install");
    let child = sandbox::shell_with(&format!("{command} --version"))
        .env_clear()
        .envs(sandbox::environment::command_environment(&sandbox::environment::launch_environment(), &[]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let output = child.and_then(output_in_time).map_err(|error| missing(&error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match Version::parse(&text) {
        Some(version) if version < TESTED[0] => {
            let needed = TESTED[0];
            let problem = format!("`{command}` has version {version}, and Brigade needs {needed} or newer");
            Err(error(problem, "update"))
        }
        Some(version) => Ok(version),
        None if output.status.success() => Err(missing(&format!("it printed `{}`", text.trim()))),
        None => Err(missing(&String::from_utf8_lossy(&output.stderr))),
    }
}

/// Waits for a program with little output. Ends it after [`VERSION_TIMEOUT`].
fn output_in_time(mut child: Child) -> io::Result<Output> {
    let started = Instant::now();
    while child.try_wait()?.is_none() {
        if started.elapsed() > VERSION_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("it printed nothing for {} s", VERSION_TIMEOUT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output()
}

/// Adds the program of these settings to `report`. Warns about a version that was not tested. Blocks for some tenths of a second.
///
/// # Errors
/// The program is missing or too old.
pub fn check(spec: &ModelSpec, report: &mut ProgramReport) -> Result<(), ProgramError> {
    let command = spec.command.as_deref().unwrap_or(DEFAULT_COMMAND);
    let version = installed_version(command)?;
    report.installed.push(format!("Claude Code {version} (`{command}`)"));
    report.warnings.extend(warning(version));
    Ok(())
}

/// Returns a warning about a version that was not tested.
fn warning(version: Version) -> Option<String> {
    let tested = TESTED.map(|version| version.to_string()).join(", ");
    (!TESTED.contains(&version)).then(|| format!("Claude Code {version} is not tested; tested versions: {tested}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_output() {
        assert_eq!(Version::parse("2.1.330 (Claude Code)\n"), Some(Version(2, 1, 330)));
        assert_eq!(Version::parse("2.1.331-beta.1"), Some(Version(2, 1, 331)));
        assert_eq!(Version::parse("claude"), None);
        assert_eq!(Version::parse(""), None);
        assert!(Version(2, 1, 330) > Version(2, 1, 197));
    }

    #[test]
    fn missing_and_old_programs_are_errors() {
        let missing = installed_version("/nowhere/claude").unwrap_err();
        assert!(missing.hint.contains(INSTALL), "{missing}");
        let old = installed_version("echo 2.0.5 #").unwrap_err();
        assert!(old.problem.contains("2.0.5") && old.hint.contains("update"), "{old}");
        assert_eq!(installed_version("echo 2.1.330 #"), Ok(Version(2, 1, 330)));
    }

    #[test]
    fn every_untested_version_has_warning() {
        assert_eq!(TESTED.map(warning), [None, None]);
        for version in [Version(2, 1, 198), Version(2, 1, 331), Version(3, 0, 0)] {
            let warning = warning(version).unwrap();
            assert!(warning.contains(&version.to_string()) && warning.contains("2.1.197, 2.1.330"), "{warning}");
        }
    }
}
