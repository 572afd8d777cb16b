//! The settings that Brigade's git uses, and the sandbox of the programs that they name.
//!
//! Teammates' commands can write files that git reads settings from: the user's, and files that the repository's settings include. So git
//! gets all settings through its environment, which outranks files. The system's and the user's settings are read once, at launch. The
//! repository's are read again when one of its files changes. Each filter and merge driver is replaced by a command that runs it in the
//! sandbox; see [`DriverSandbox`]. A git that runs in the sandbox itself gets the original ones.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::command::{GitOutput, RepoPath, git_in, path_of};
use super::drivers::{DriverRunner, Drivers, ReplacedSetting};
use super::git_folder::alternates;
use super::write_scope::task_rules;
use crate::domain::agent::access::PathRule;
use crate::domain::git::worktree_name::WORKTREES_FOLDER;
use crate::platform::stamp_of;
use crate::ports::RepositoryError;
use crate::sandbox::filter::{DriverSandbox, own_program_path};
use crate::sandbox::{Level, Sandbox};
use crate::stores::fs::FileStamp;

/// The sections that matter to Brigade's calls. Other sections of the repository stay in its files; the user's other sections are ignored.
#[rustfmt::skip]
const SECTIONS: [&str; 24] = [
    "add", "advice", "apply", "attr", "author", "checkout", "clean", "commit", "committer", "core", "diff", "feature",
    "filter", "i18n", "index", "log", "merge", "pack", "safe", "sparse", "status", "submodule", "user", "worktree",
];
/// The section with the signing programs. Git runs them outside of the sandbox, so only those of the system and the user count.
const SIGNING_SECTION: &str = "gpg";
/// The person's key. That of a repository does not count.
const SIGNING_KEY: &str = "user.signingkey";
/// The sections with the name of the person in commits.
const IDENTITY_SECTIONS: [&str; 4] = ["author", "committer", "i18n", "user"];
/// The setting that switches signatures on.
const SIGNS_COMMITS: &str = "commit.gpgsign";
/// Settings that git takes only from the repository's own file.
const FILE_ONLY_KEYS: [&str; 3] = ["core.bare", "core.repositoryformatversion", "core.worktree"];
/// A section that git must not take from a repository.
const PROTECTED_SECTION: &str = "safe";
/// The user's files, other than settings, that git reads: the setting that names each, and its default name in the folder of the user's
/// settings.
const USER_FILES: [(&str, &str); 2] = [("core.attributesfile", "attributes"), ("core.excludesfile", "ignore")];
/// The limit of all settings together, in bytes: systems limit a program's environment.
const BYTES_MAX: usize = 512 * 1024;
/// The number of attempts to list settings while included files appear.
const ATTEMPTS_MAX: usize = 3;

/// Options for the sandbox of filters and merge drivers. Without both options, every driver fails.
#[derive(Debug, Clone, Default)]
pub struct DriverOptions {
    /// A program that calls [`crate::sandbox::run_if_guard`]; see [`crate::sandbox::filter::own_program_path`].
    pub program: Option<PathBuf>,
    /// The sandbox of the launch.
    pub launch_sandbox: Option<Sandbox>,
}

impl DriverOptions {
    /// The drivers of this program, in the sandbox of a launch.
    pub fn of_launch(sandbox: Sandbox) -> Self {
        Self { program: own_program_path(), launch_sandbox: Some(sandbox) }
    }
}

/// The settings of the person's checkout, for all places too.
#[derive(Debug)]
pub(super) struct Settings {
    git_dir: PathBuf,
    common_dir: PathBuf,
    /// The person's checkout.
    work_tree: PathBuf,
    options: DriverOptions,
    /// The settings of the system and the user.
    user_settings: OnceLock<Vec<Setting>>,
    /// The last listing.
    listing: Mutex<Option<Arc<Listing>>>,
}

/// All settings, as they were at one time.
#[derive(Debug)]
struct Listing {
    /// The files that the settings come from or may come from, with their stamps.
    files: Vec<(PathBuf, Option<FileStamp>)>,
    /// Included files outside of the repository and the workspace.
    included: Vec<PathBuf>,
    /// `true` if the set of included files may change although no file does.
    is_conditional: bool,
    /// The settings of the repository.
    of_repository: Vec<Setting>,
}

/// Environment variables of a call.
pub(super) type Variables = Vec<(OsString, OsString)>;

/// A setting as git lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// The file that contains it.
    file: PathBuf,
    /// Section and name are lowercase.
    key: Vec<u8>,
    /// `None` if the file has no `=`, which means true.
    value: Option<Vec<u8>>,
}

impl Setting {
    fn section(&self) -> &[u8] {
        self.key.split(|byte| *byte == b'.').next().unwrap_or_default()
    }

    fn is_in(&self, sections: &[&str]) -> bool {
        sections.iter().any(|section| section.as_bytes() == self.section())
    }

    fn is_needed(&self) -> bool {
        self.is_in(&SECTIONS)
    }

    fn is_key(&self, key: &str) -> bool {
        self.key == key.as_bytes()
    }

    /// The value as git reads a boolean; see git-config(1), Values.
    pub(super) fn is_true(&self) -> bool {
        let text = String::from_utf8_lossy(self.text()).to_ascii_lowercase();
        ["true", "yes", "on"].contains(&text.as_str()) || text.parse::<i64>().is_ok_and(|number| number != 0)
    }

    /// Section, subsection and name, if there is a subsection.
    pub(super) fn parts(&self) -> Option<(&[u8], &[u8], &[u8])> {
        let (first, last) =
            (self.key.iter().position(|byte| *byte == b'.')?, self.key.iter().rposition(|byte| *byte == b'.')?);
        (first < last).then(|| (&self.key[..first], &self.key[first + 1..last], &self.key[last + 1..]))
    }

    pub(super) fn text(&self) -> &[u8] {
        self.value.as_deref().unwrap_or(b"true")
    }

    /// The file that this setting includes, and whether the include is conditional. The inner `None`: only git can resolve the path.
    fn include(&self) -> Option<(Option<PathBuf>, bool)> {
        let is_conditional = self.section() == b"includeif";
        if self.key != b"include.path" && !(is_conditional && self.key.ends_with(b".path")) {
            return None;
        }
        let text = self.text();
        let path = match text.strip_prefix(b"~/") {
            Some(rest) => std::env::home_dir().map(|home| home.join(path_of(rest))),
            None if text.starts_with(b"~") || text.starts_with(b"%(") => None,
            None => self.file.parent().map(|folder| folder.join(path_of(text))),
        };
        Some((path, is_conditional))
    }
}

impl Settings {
    pub(super) fn new([git_dir, common_dir, work_tree]: [&Path; 3], options: DriverOptions) -> Arc<Self> {
        let [git_dir, common_dir, work_tree] = [git_dir, common_dir, work_tree].map(Path::to_owned);
        let (user_settings, listing) = (OnceLock::new(), Mutex::default());
        Arc::new(Self { git_dir, common_dir, work_tree, options, user_settings, listing })
    }

    /// The environment variables that pass all settings to a call in `at`.
    ///
    /// # Errors
    /// The settings cannot be listed, are too large, or include a file that a command could replace.
    pub(super) fn variables(&self, at: &RepoPath) -> Result<Variables, RepositoryError> {
        let listing = self.listing()?;
        let replaced = self.replaced(&listing, &at.common_dir, at.is_confined);
        encode_all(self.of_user(), &listing.of_repository, &replaced)
    }

    /// A command that runs these words in the sandbox of a task's place. `None` if commands are not confined.
    ///
    /// # Errors
    /// The settings cannot be listed, or there is no program that confines it.
    pub(super) fn confined(&self, at: &RepoPath, words: &[OsString]) -> Result<Option<Command>, RepositoryError> {
        let mut sandbox = self.driver_sandbox();
        if sandbox.level == Level::Off {
            return Ok(None);
        }
        if self.replaced(&*self.listing()?, &self.common_dir, false).is_empty() {
            sandbox.level = Level::MountsOnly;
        }
        sandbox.rules.extend(task_rules(&at.work_tree));
        let command = sandbox.command(words).ok_or_else(|| RepositoryError::Failed {
            action: format!("run git in {}", at.work_tree.display()),
            reason: "this program cannot confine it".to_owned(),
        });
        command.map(Some)
    }

    /// Returns true if the person's git signs commits in this repository.
    pub(super) fn signs_commits(&self) -> Result<bool, RepositoryError> {
        let listing = self.listing()?;
        let settings = passed(self.of_user(), &listing.of_repository);
        Ok(settings.iter().rfind(|setting| setting.is_key(SIGNS_COMMITS)).is_some_and(|setting| setting.is_true()))
    }

    /// The variables that pass a git that signs its settings: the programs and the key of the user, and the name of the person.
    pub(super) fn signing_variables(&self) -> Result<Variables, RepositoryError> {
        let listing = self.listing()?;
        let own =
            self.of_user().iter().filter(|setting| setting.is_in(&[SIGNING_SECTION]) || setting.is_key(SIGNING_KEY));
        let all = passed(self.of_user(), &listing.of_repository).into_iter();
        let names = all.filter(|setting| setting.is_in(&IDENTITY_SECTIONS) && !setting.is_key(SIGNING_KEY));
        encode(own.chain(names).map(|setting| (setting.key.as_slice(), setting.text())))
    }

    /// The settings of the system and the user. A listing sets them.
    fn of_user(&self) -> &[Setting] {
        self.user_settings.get().map_or(&[][..], Vec::as_slice)
    }

    /// Included files outside of the repository and the workspace. Commands must not write them.
    pub(super) fn included(&self) -> Result<Vec<PathBuf>, RepositoryError> {
        Ok(self.listing()?.included.clone())
    }

    /// The filters and merge drivers that all settings name.
    pub(super) fn drivers(&self) -> Result<Drivers, RepositoryError> {
        Ok(self.drivers_in(&*self.listing()?))
    }

    fn drivers_in(&self, listing: &Listing) -> Drivers {
        Drivers::of(&passed(self.of_user(), &listing.of_repository))
    }

    /// The settings that replace those of drivers in a repository or place.
    fn replaced(&self, listing: &Listing, common_dir: &Path, is_confined: bool) -> Vec<ReplacedSetting> {
        self.drivers_in(listing).replaced(&self.driver_runner(common_dir, is_confined))
    }

    /// The user's files, other than settings, that git reads. Commands must not write them.
    pub(super) fn user_files(&self) -> Vec<PathBuf> {
        let user_settings = self.user_settings.get().into_iter().flatten();
        let files = user_settings.filter(|setting| USER_FILES.iter().any(|(key, _)| key.as_bytes() == setting.key));
        files.map(|setting| path_of(setting.text())).filter(|path| path.is_file()).collect()
    }

    /// Puts each driver's original command back into a text of git.
    pub(super) fn with_original_values(&self, output: String) -> String {
        let Ok(listing) = self.listing() else { return output };
        let replaced = self.replaced(&listing, &self.common_dir, false);
        replaced.iter().fold(output, |output, ReplacedSetting { value, own, .. }| {
            output.replace(&*String::from_utf8_lossy(value), &String::from_utf8_lossy(own))
        })
    }

    fn listing(&self) -> Result<Arc<Listing>, RepositoryError> {
        let mut last = self.listing.lock();
        if let Some(cached) = last.as_ref().filter(|cached| cached.is_current()) {
            return Ok(Arc::clone(cached));
        }
        let files = vec![self.common_dir.join("config"), self.git_dir.join("config.worktree")];
        let listing = Arc::new(self.list(files)?);
        *last = Some(Arc::clone(&listing));
        Ok(listing)
    }

    /// Lists all settings. If a file changes meanwhile, the next call notices it: its stamp is older than the listing.
    fn list(&self, mut paths: Vec<PathBuf>) -> Result<Listing, RepositoryError> {
        for _ in 0..ATTEMPTS_MAX {
            let files: Vec<_> = paths.iter().map(|path| (path.clone(), stamp(path))).collect();
            let is_first = self.user_settings.get().is_none();
            let options = ["config", "--list", "-z", "--show-scope", "--show-origin"];
            let place =
                [("GIT_DIR", &self.git_dir), ("GIT_COMMON_DIR", &self.common_dir), ("GIT_WORK_TREE", &self.work_tree)];
            let call = git_in(&self.work_tree, options).variables(place).with_settings_files();
            let without_user_files =
                [("GIT_CONFIG_GLOBAL", "/dev/null".to_owned()), ("GIT_CONFIG_NOSYSTEM", "1".to_owned())];
            let output = if is_first { call } else { call.variables(without_user_files) }.ok()?;
            let of_repository = parse(&output, &["local", "worktree"]);
            self.user_settings.get_or_init(|| {
                let user_settings = parse(&output, &["system", "global"]).into_iter();
                let user_settings =
                    user_settings.filter(|setting| setting.is_needed() || setting.is_in(&[SIGNING_SECTION]));
                with_user_files(user_settings.collect())
            });
            let includes: Vec<_> = of_repository.iter().filter_map(Setting::include).collect();
            let is_conditional = includes.iter().any(|(path, is_conditional)| *is_conditional || path.is_none());
            let before = paths.len();
            for path in includes.iter().filter_map(|(path, _)| path.as_ref()) {
                if !paths.contains(path) {
                    paths.push(path.clone());
                }
            }
            // New files were found: their stamps must be taken before the listing.
            if paths.len() > before && !is_conditional {
                continue;
            }
            let included = includes.iter().filter_map(|(path, _)| path.as_deref());
            return Ok(Listing {
                included: included.filter_map(|path| self.outside(path).transpose()).collect::<Result<_, _>>()?,
                is_conditional,
                of_repository,
                files,
            });
        }
        Err(unusable("the included files keep changing"))
    }

    /// The resolved path of an included file that commands could otherwise write: one outside of the repository and the workspace.
    fn outside(&self, path: &Path) -> Result<Option<PathBuf>, RepositoryError> {
        let folder = path.parent().unwrap_or(path);
        let resolved =
            folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).join(path.file_name().unwrap_or_default());
        let is_inside = |folder: &PathBuf| folder.canonicalize().is_ok_and(|folder| resolved.starts_with(folder));
        if is_inside(&self.common_dir) || is_inside(&self.work_tree) {
            return Ok(None);
        }
        if resolved.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(Some(resolved));
        }
        let config = self.common_dir.join("config");
        Err(unusable(&format!(
            "{} includes {}, which is not a file, so a command could create it. hint: create it, or remove the include",
            config.display(),
            resolved.display()
        )))
    }

    /// The way in which a git in this repository or place runs drivers.
    fn driver_runner(&self, common_dir: &Path, is_confined: bool) -> DriverRunner {
        let sandbox = self.driver_sandbox();
        if is_confined && sandbox.level != Level::Off && sandbox.program.is_some() {
            return DriverRunner::InGitsSandbox;
        }
        let common_dir = common_dir.canonicalize().unwrap_or_else(|_| common_dir.to_owned());
        DriverRunner::OwnSandbox { sandbox, lfs: common_dir.join("lfs") }
    }

    /// The sandbox of drivers. They cannot write the repository, the workspace, or what commands of the launch cannot write.
    fn driver_sandbox(&self) -> DriverSandbox {
        let own = [&self.common_dir, &self.work_tree].into_iter().cloned().chain(alternates(&self.common_dir));
        let own = own.map(|path| PathRule::read_only(path.canonicalize().unwrap_or(path)));
        let (level, launch) = match &self.options.launch_sandbox {
            Some(sandbox) => (sandbox.confinement().level, sandbox.rules()),
            None => (Level::Full, [].as_slice()),
        };
        let has_sandbox = self.options.launch_sandbox.is_some();
        let program = if has_sandbox { self.options.program.clone() } else { None };
        let rules = own.chain(launch.iter().cloned()).collect();
        DriverSandbox { program, level, rules, scratch: WORKTREES_FOLDER.into() }
    }
}

/// The settings that calls get.
fn passed<'a>(user_settings: &'a [Setting], of_repository: &'a [Setting]) -> Vec<&'a Setting> {
    let is_trusted = |setting: &&Setting| setting.section() != PROTECTED_SECTION.as_bytes();
    let trusted = of_repository.iter().filter(is_trusted);
    let is_passed = |setting: &&Setting| FILE_ONLY_KEYS.iter().all(|key| key.as_bytes() != setting.key);
    user_settings.iter().chain(trusted).filter(|setting| setting.is_needed()).filter(is_passed).collect()
}

/// The environment variables for the settings that calls get.
fn encode_all(
    user_settings: &[Setting],
    of_repository: &[Setting],
    replaced: &[ReplacedSetting],
) -> Result<Variables, RepositoryError> {
    let all = passed(user_settings, of_repository);
    let hooks = hooks_off(of_repository);
    let pairs = all.iter().map(|setting| (setting.key.as_slice(), setting.text()));
    let pairs = pairs.chain(replaced.iter().map(|replaced| (replaced.key.as_slice(), replaced.value.as_slice())));
    encode(pairs.chain(hooks.iter().map(|key| (key.as_slice(), b"false".as_slice()))))
}

/// The environment variables for these settings.
fn encode<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<Variables, RepositoryError> {
    let mut variables: Variables =
        vec![("GIT_CONFIG_GLOBAL".into(), "/dev/null".into()), ("GIT_CONFIG_NOSYSTEM".into(), "1".into())];
    let (mut bytes, mut count) = (0, 0_usize);
    for (key, value) in pairs {
        variables.push((format!("GIT_CONFIG_KEY_{count}").into(), path_of(key).into_os_string()));
        variables.push((format!("GIT_CONFIG_VALUE_{count}").into(), path_of(value).into_os_string()));
        bytes += key.len() + value.len();
        count += 1;
    }
    if bytes > BYTES_MAX {
        return Err(unusable(&format!("they have {bytes} bytes, and the limit is {BYTES_MAX}")));
    }
    variables.push(("GIT_CONFIG_COUNT".into(), count.to_string().into()));
    Ok(variables)
}

impl Listing {
    fn is_current(&self) -> bool {
        !self.is_conditional && self.files.iter().all(|(path, cached)| stamp(path) == *cached)
    }
}

/// The settings that switch off the hooks which a repository's settings name. Git 2.54 and newer run them; see git-hook(1).
fn hooks_off(of_repository: &[Setting]) -> BTreeSet<Vec<u8>> {
    let names = of_repository.iter().filter_map(|setting| match setting.parts() {
        Some((b"hook", name, _)) => Some([b"hook.", name, b".enabled"].concat()),
        _ => None,
    });
    names.collect()
}

/// The settings of these scopes, in order; see git-config(1), `--show-scope`, `--show-origin`, `-z`.
fn parse(output: &GitOutput, scopes: &[&str]) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut fields = output.fields();
    while let (Some(scope), Some(origin), Some(setting)) = (fields.next(), fields.next(), fields.next()) {
        if !scopes.iter().any(|cached| cached.as_bytes() == scope) {
            continue;
        }
        let (key, value) = match setting.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&setting[..end], Some(setting[end + 1..].to_vec())),
            None => (setting, None),
        };
        let file = path_of(origin.strip_prefix(b"file:").unwrap_or(origin));
        settings.push(Setting { file, key: key.to_vec(), value });
    }
    settings
}

/// Adds the resolved paths of the user's files to the settings of the system and the user. A missing file becomes `/dev/null`, because a
/// command could create it.
fn with_user_files(mut user_settings: Vec<Setting>) -> Vec<Setting> {
    for (key, name) in USER_FILES {
        let named =
            user_settings.iter().rfind(|setting| setting.key == key.as_bytes()).map(|setting| setting.text().to_vec());
        let path = match &named {
            Some(text) => text.strip_prefix(b"~/").map_or_else(
                || Some(path_of(text)).filter(|path| path.is_absolute()),
                |rest| Some(std::env::home_dir()?.join(path_of(rest))),
            ),
            None => user_file(name),
        };
        // Only git can resolve a relative path.
        let Some(path) = path else { continue };
        let file = path.canonicalize().ok().filter(|file| file.is_file()).unwrap_or_else(|| "/dev/null".into());
        user_settings.retain(|setting| setting.key != key.as_bytes());
        let value = file.into_os_string().into_encoded_bytes();
        user_settings.push(Setting { file: path, key: key.into(), value: Some(value) });
    }
    user_settings
}

/// A file in the folder of the user's git settings; see git-config(1), FILES.
pub(super) fn user_file(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    Some(folder.or_else(|| Some(std::env::home_dir()?.join(".config")))?.join("git").join(name))
}

fn stamp(path: &Path) -> Option<FileStamp> {
    fs::metadata(path).ok().map(|metadata| stamp_of(&metadata))
}

fn unusable(reason: &str) -> RepositoryError {
    RepositoryError::unusable(format!("cannot use the repository's git settings: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::super::command::git_in;
    use super::super::opening::find_checkout;
    use super::*;

    #[test]
    fn hooks_of_settings_are_off() {
        let folder = tempfile::tempdir().unwrap();
        git_in(folder.path(), ["init", "-q", "."]).ok().unwrap();
        let settings =
            "[hook \"a.b \\\"c\\\"\"]\n\tevent = reference-transaction\n\tcommand = touch ran\n\tenabled = true\n";
        let config = folder.path().join(".git/config");
        fs::write(&config, fs::read_to_string(&config).unwrap() + settings).unwrap();
        let main = find_checkout(folder.path(), DriverOptions::default()).unwrap();
        let value = main.git(["config", "--get", "hook.a.b \"c\".enabled"]).ok().unwrap().line();
        assert_eq!(value, "false");
    }
}
