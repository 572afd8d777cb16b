//! The filters and merge drivers that git settings name, and the settings that make git run them in the sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::command::{RepoPath, environment, path_of};
use super::settings::Setting;
use crate::domain::agent::access::PathRule;
use crate::domain::agent::shell_words::ShellText;
use crate::ports::RepositoryError;
use crate::sandbox::filter::{DriverKind, DriverSandbox};

/// A setting that Brigade replaces to run a driver in the sandbox.
#[derive(Debug)]
pub(super) struct ReplacedSetting {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// The original value.
    pub own: Vec<u8>,
}

/// The filters and merge drivers that settings name, by driver name.
#[derive(Debug, Default)]
pub(super) struct Drivers {
    filters: BTreeMap<Vec<u8>, Filter>,
    merges: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Default)]
struct Filter {
    clean: Vec<u8>,
    smudge: Vec<u8>,
    /// An empty value switches the filter off.
    process: Option<Vec<u8>>,
    is_required: bool,
}

/// The way in which git runs drivers.
pub(super) enum DriverRunner {
    /// As they are: git itself runs in the sandbox.
    InGitsSandbox,
    /// Each in a sandbox. Git LFS alone may write a folder of the repository.
    OwnSandbox { sandbox: DriverSandbox, lfs: PathBuf },
}

impl DriverRunner {
    fn command(&self, kind: DriverKind, name: &[u8], own: &[u8]) -> Vec<u8> {
        match self {
            Self::InGitsSandbox => own.to_vec(),
            Self::OwnSandbox { sandbox, lfs } if name == b"lfs" => {
                let mut sandbox = sandbox.clone();
                sandbox.rules.push(PathRule::writable(lfs));
                sandbox.wrap(kind, own)
            }
            Self::OwnSandbox { sandbox, .. } => sandbox.wrap(kind, own),
        }
    }

    /// The command of a filter that changes nothing.
    fn identity(&self) -> Vec<u8> {
        match self {
            Self::InGitsSandbox => b"cat".to_vec(),
            Self::OwnSandbox { sandbox, .. } => sandbox.identity(),
        }
    }
}

impl Drivers {
    pub(super) fn of(settings: &[&Setting]) -> Self {
        let mut drivers = Self::default();
        for setting in settings {
            let value = || setting.text().to_vec();
            match setting.parts() {
                Some((b"merge", name, b"driver")) => {
                    drivers.merges.insert(name.to_vec(), value());
                }
                Some((b"filter", name, part)) => {
                    let filter = drivers.filters.entry(name.to_vec()).or_default();
                    match part {
                        b"clean" => filter.clean = value(),
                        b"smudge" => filter.smudge = value(),
                        b"process" => filter.process = Some(value()),
                        b"required" => filter.is_required = setting.is_true(),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let is_driver =
            |filter: &Filter| !filter.clean.is_empty() || !filter.smudge.is_empty() || filter.process.is_some();
        drivers.filters.retain(|_, filter| is_driver(filter));
        drivers
    }

    /// The commands of these drivers that git runs. A filter with a `process` has no other one.
    fn commands(&self) -> Vec<DriverCommand> {
        let mut commands = Vec::new();
        for (name, filter) in &self.filters {
            let parts = match &filter.process {
                Some(process) if !process.is_empty() => vec![("process", process)],
                _ => vec![("smudge", &filter.smudge), ("clean", &filter.clean)],
            };
            let given = parts.into_iter().filter(|(_, command)| !command.is_empty());
            commands.extend(given.map(|(part, command)| DriverCommand::new("filter", name, part, command)));
        }
        commands.extend(self.merges.iter().map(|(name, own)| DriverCommand::new("merge", name, "driver", own)));
        commands
    }

    /// The settings that make git run these drivers in the sandbox. All filters are required: otherwise git would continue with unfiltered
    /// contents if one cannot run.
    pub(super) fn replaced(&self, runner: &DriverRunner) -> Vec<ReplacedSetting> {
        let mut replaced = Vec::new();
        for (name, filter) in &self.filters {
            let mut replace = |part: &str, value: Vec<u8>, own: &[u8]| {
                let key = [b"filter.", name.as_slice(), b".", part.as_bytes()].concat();
                replaced.push(ReplacedSetting { key, value, own: own.to_vec() });
            };
            for (part, own) in [("clean", &filter.clean), ("smudge", &filter.smudge)] {
                if !own.is_empty() {
                    replace(part, runner.command(DriverKind::Filter, name, own), own);
                } else if !filter.is_required {
                    replace(part, runner.identity(), b"cat");
                }
            }
            match &filter.process {
                Some(own) if own.is_empty() => continue,
                Some(own) => replace("process", runner.command(DriverKind::Process, name, own), own),
                None => {}
            }
            replace("required", b"true".to_vec(), b"true");
        }
        for (name, own) in &self.merges {
            let key = [b"merge.", name.as_slice(), b".driver"].concat();
            let value = runner.command(DriverKind::Merge, name, own);
            replaced.push(ReplacedSetting { key, value, own: own.clone() });
        }
        replaced
    }
}

/// A command that git runs for files with an attribute.
struct DriverCommand {
    attribute: &'static str,
    name: String,
    setting: String,
    command: String,
}

impl DriverCommand {
    fn new(attribute: &'static str, name: &[u8], part: &str, command: &[u8]) -> Self {
        let [name, command] = [name, command].map(|text| String::from_utf8_lossy(text).into_owned());
        Self { attribute, setting: format!("{attribute}.{name}.{part}"), name, command }
    }

    /// The program at the beginning; `None` if only a shell can tell it.
    fn program(&self) -> Option<String> {
        let text = ShellText::read(&self.command);
        let word = text.parts.into_iter().next()?.words.into_iter().next()?.written;
        let is_plain = !word.is_empty() && !word.contains(['$', '`', '~', '=', '{', '(', '*', '?', '[']);
        (is_plain && !text.is_unclear).then_some(word)
    }
}

/// A driver of tracked files whose program is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file} has the attribute {attribute}, for which git runs `{program}` ({setting}), and there is no such program", file = file.display())]
pub struct MissingDriver {
    /// The attribute, such as `filter=lfs`.
    pub attribute: String,
    /// The setting with the command, such as `filter.lfs.process`.
    pub setting: String,
    /// The program.
    pub program: String,
    /// A file with the attribute.
    pub file: PathBuf,
    /// True for a filter: without it, git writes no file with the attribute. A merge ends in a conflict instead.
    pub is_filter: bool,
}

impl MissingDriver {
    /// Returns the next step.
    pub fn hint(&self) -> String {
        let Self { program, attribute, setting, .. } = self;
        format!("install `{program}`, or remove {attribute} from the attributes or {setting} from git's settings")
    }
}

impl RepoPath {
    /// Returns the drivers of tracked files whose programs are not there, one for each setting.
    pub(super) fn missing_drivers(&self) -> Result<Vec<MissingDriver>, RepositoryError> {
        let mut missing = Vec::new();
        for driver in self.settings.drivers()?.commands() {
            let Some(program) = driver.program().filter(|program| !is_found(program, &self.work_tree)) else {
                continue;
            };
            let escaped: String = driver.name.chars().flat_map(escape).collect();
            let files = format!(":(top,attr:{}={escaped})", driver.attribute);
            let Some(file) = self.git(["ls-files", "-z", "--cached", "--", &files]).ok()?.fields().next().map(path_of)
            else {
                continue;
            };
            let DriverCommand { attribute, name, setting, .. } = driver;
            let is_filter = attribute == "filter";
            missing.push(MissingDriver { attribute: format!("{attribute}={name}"), setting, program, file, is_filter });
        }
        Ok(missing)
    }
}

/// A character of a value in a pathspec; see gitglossary(7), `attr`.
fn escape(letter: char) -> impl Iterator<Item = char> {
    let is_plain = letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    (!is_plain).then_some('\\').into_iter().chain([letter])
}

/// Returns true if a shell finds a program, as git starts it. Its own commands count too.
fn is_found(program: &str, folder: &Path) -> bool {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "command -v -- \"$1\"", "sh", program]).current_dir(folder);
    shell.env_clear().envs(environment().iter().map(|(name, value)| (name, value)));
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // If there is no shell, git tells more.
    shell.status().map_or(true, |status| status.success())
}
