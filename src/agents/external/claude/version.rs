//! The installed Claude Code.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::super::programs::{ProgramError, ProgramReport};
use crate::domain::team::team_spec::ModelSpec;
use crate::sandbox::{CommandExit, Sandbox};

/// The versions with which the protocol was tested, the oldest first.
const TESTED: [Version; 2] = [[2, 1, 197], [2, 1, 330]];

/// The command that starts the program, if the settings name none.
pub(super) const DEFAULT_COMMAND: &str = "claude";

/// The command that installs the program.
const INSTALL: &str = "npm install --global @anthropic-ai/claude-code";

/// A version of the program: major, minor, patch.
type Version = [u32; 3];

/// Parses the start of the output of `claude --version`, such as `2.1.330 (Claude Code)`.
fn parse_version(text: &str) -> Option<Version> {
    let number = text.split_whitespace().next()?.split('-').next()?;
    let parts: Option<Vec<u32>> = number.split('.').take(3).map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

fn version_text(version: Version) -> String {
    version.map(|part| part.to_string()).join(".")
}

/// The longest time for the program to print its version, on a busy machine too.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the version that `command --version` printed.
///
/// # Errors
/// The program is missing, or too old, or `run` is an error.
fn installed_version(command: &str, run: io::Result<(CommandExit, String)>) -> Result<Version, ProgramError> {
    let error = |problem: String, verb: &str| ProgramError {
        problem,
        hint: format!("{verb} it: `{INSTALL}`; or set `command` to its path"),
    };
    let missing = |reason: &str| error(format!("cannot run `{command} --version`: {}", reason.trim()), "install");
    let (exit, output) = run.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => missing(&format!("it did not end within {} s", VERSION_TIMEOUT.as_secs())),
        _ => missing(&error.to_string()),
    })?;
    match parse_version(&output) {
        Some(version) if version < TESTED[0] => {
            let (version, needed) = (version_text(version), version_text(TESTED[0]));
            let problem = format!("`{command}` has version {version}, and Brigade needs {needed} or newer");
            Err(error(problem, "update"))
        }
        Some(version) => Ok(version),
        None if exit == CommandExit::Code(0) => Err(missing(&format!("it printed `{}`", output.trim()))),
        None => Err(missing(&output)),
    }
}

/// See [`super::AgentProgram::check`].
pub(super) fn check(
    spec: &ModelSpec,
    sandbox: &Sandbox,
    folder: &Path,
    report: &mut ProgramReport,
) -> Result<(), ProgramError> {
    let command = spec.command.as_deref().unwrap_or(DEFAULT_COMMAND);
    let run = sandbox.output_of(&format!("{command} --version"), folder, VERSION_TIMEOUT);
    let version = installed_version(command, run)?;
    report.installed.push(format!("Claude Code {} (`{command}`)", version_text(version)));
    report.warnings.extend(warning(version));
    Ok(())
}

/// Returns a warning about a version that was not tested.
fn warning(version: Version) -> Option<String> {
    let (shown, tested) = (version_text(version), TESTED.map(version_text).join(", "));
    (!TESTED.contains(&version)).then(|| format!("Claude Code {shown} is not tested; tested versions: {tested}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_output() {
        assert_eq!(parse_version("2.1.330 (Claude Code)\n"), Some([2, 1, 330]));
        assert_eq!(parse_version("2.1.331-beta.1"), Some([2, 1, 331]));
        assert_eq!(parse_version("claude"), None);
        assert_eq!(parse_version(""), None);
        assert!([2, 1, 330] > [2, 1, 197]);
    }

    #[test]
    fn missing_and_old_programs_are_errors() {
        let after = |code, text: &str| installed_version("claude", Ok((CommandExit::Code(code), text.to_owned())));
        let missing = after(127, "claude: not found\n").unwrap_err();
        assert_eq!(missing.problem, "cannot run `claude --version`: claude: not found");
        assert!(missing.hint.contains(INSTALL), "{missing}");
        let old = after(0, "2.0.5\n").unwrap_err();
        assert!(old.problem.contains("2.0.5") && old.hint.contains("update"), "{old}");
        assert_eq!(after(0, "2.1.330\n"), Ok([2, 1, 330]));
        let late = installed_version("claude", Err(io::ErrorKind::TimedOut.into())).unwrap_err();
        assert!(late.problem.ends_with("it did not end within 30 s"), "{late}");
    }

    #[test]
    fn every_untested_version_has_warning() {
        assert_eq!(TESTED.map(warning), [None, None]);
        for version in [[2, 1, 198], [2, 1, 331], [3, 0, 0]] {
            let warning = warning(version).unwrap();
            assert!(warning.contains(&version_text(version)) && warning.contains("2.1.197, 2.1.330"), "{warning}");
        }
    }
}
