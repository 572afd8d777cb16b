//! `brigade doctor`: checks the requirements of a team and prints how to meet them.

mod board;
mod servers;

use crate::api::Launch;
use crate::api::consent::is_agreed;
use crate::front::text::commands::{Hint, hint};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, Serializer};
pub(super) use servers::{check_listed, listed, not_listed};

use super::context::Context;
use super::error::CliResult;
use super::exit::Exit;
use super::nesting::nesting_note;
use super::output::CommandAnswer;
use crate::agents::external::programs;
use crate::api::Refusal;
use crate::api::lead_status::LeadStatus;
use crate::api::merge::{MissingDriver, TeamBranch, TeamBranchStatus};
use crate::api::task;
use crate::config::diagnostics::Problem;
use crate::config::{Config, Resolved, TeamFlags, UnknownVariable};
use crate::domain::team::team_spec::{ModelSpec, TeamSpec};
use crate::domain::text::units::{bytes, count};
use crate::domain::text::{one_line, printable};
use crate::embed;
use crate::front::text::lead_status;
use crate::front::text::lines::{cut, wrap};
use crate::front::text::pending::team_branch;
use crate::front::text::style::{BAD, DIM, GOOD, WARN, paint};
use crate::git::UNSIGNED_WORK;
use crate::git::inspection::{Inspection, inspect};
use crate::platform;
use crate::platform::watch::FolderWatch;
use crate::ports::BoardView;
use crate::providers;
use crate::sandbox::Level;
use crate::stores::file::exchange_file::QUARANTINE_SUFFIX;
use crate::stores::file::links::refuse_links;
use crate::stores::file::state::STATE_FILE;
use crate::stores::fs::{FileSystem, RealFileSystem};
use crate::team::model_connection::{ModelConnector, check_model};

/// The hint for a workspace inside another one.
const NESTING_HINT: &str = "name the other one with --workspace DIR, or move one of them";
/// Free space below this gives a warning, in bytes.
const FREE_BYTES_WARN: u64 = 1024 * 1024 * 1024;

/// Check locks, file events, confinement, disk, board, keys and models
///
/// The exit code is 1 if a check fails.
#[derive(Debug, clap::Args)]
pub struct Doctor {}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// A check and its result.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    check: &'static str,
    verdict: Verdict,
    pub(super) text: String,
    #[serde(serialize_with = "as_text")]
    hint: Option<Hint>,
}

impl Finding {
    pub(super) fn is_ok(&self) -> bool {
        self.verdict == Verdict::Ok
    }

    /// The text and the hint, as a note.
    pub(super) fn into_note(self) -> String {
        let hint = self.hint.filter(|hint| !hint.is_empty()).map(|hint| format!("; {hint}")).unwrap_or_default();
        self.text + &hint
    }
}

fn as_text<S: Serializer>(hint: &Option<Hint>, serializer: S) -> Result<S::Ok, S::Error> {
    hint.as_ref().map(Hint::to_string).serialize(serializer)
}

/// The step before a server is asked or a program is run.
fn agree() -> Hint {
    hint!["read brigade.toml; at a terminal, ", Launch::Run { team: None }, " asks"]
}

fn ok(check: &'static str, text: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Ok, text: text.into(), hint: None }
}

fn warn(check: &'static str, text: impl Into<String>, hint: impl Into<Hint>) -> Finding {
    Finding { check, verdict: Verdict::Warn, text: text.into(), hint: Some(hint.into()) }
}

fn fail(check: &'static str, text: impl Into<String>, hint: impl Into<Hint>) -> Finding {
    Finding { check, verdict: Verdict::Fail, text: text.into(), hint: Some(hint.into()) }
}

impl Doctor {
    /// Runs all checks.
    ///
    /// # Errors
    /// The answer cannot be written as JSON.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let view = task::board(&context.workspace).await.ok();
        let mut findings = check_config(context, view.as_deref());
        findings.extend(check_variables(context));
        match context.workspace.folder() {
            Ok(workspace) => {
                findings.extend(nesting_note(context, &workspace).map(|note| warn("workspace", note, NESTING_HINT)));
                findings.extend(check_links(&workspace));
                findings.push(check_git(&workspace));
                findings.extend(check_file_system(&workspace));
                findings.push(check_events(&workspace).await);
                findings.push(check_free_space(&workspace, context));
                findings.extend(board::check_board(context).await);
                findings.extend(check_lead(context).await);
                findings.extend(board::check_usage(context).await);
            }
            Err(error) => {
                findings.push(fail("workspace", error.message, Hint::of_steps(&error.next).unwrap_or_default()))
            }
        }
        findings.push(check_confinement(context));
        let specs = model_specs(context);
        findings.push(check_keys(&specs, |name| std::env::var_os(name).is_some_and(|value| !value.is_empty())));
        findings.extend(servers::check_servers(context).await);
        for hint in findings.iter_mut().filter_map(|finding| finding.hint.as_mut()) {
            *hint = context.hint(hint.clone()).into();
        }
        let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
        let answer = context.output.answer(&findings, || render(&findings, context.output.columns))?;
        Ok(if failed { answer.exit(Exit::Unfinished) } else { answer })
    }
}

fn render(findings: &[Finding], columns: usize) -> String {
    let mut out = String::new();
    for finding in findings {
        let (mark, style) = match finding.verdict {
            Verdict::Ok => ("ok  ", GOOD),
            Verdict::Warn => ("warn", WARN),
            Verdict::Fail => ("FAIL", BAD),
        };
        let (first, excerpt) = finding.text.split_once('\n').unwrap_or((&finding.text, ""));
        let line = wrap(&one_line(&format!("{}: {first}", finding.check)), columns.saturating_sub(6), 6);
        out.push_str(&format!("{}  {line}\n", paint(style, mark)));
        for line in excerpt.lines() {
            out.push_str(&format!("      {}\n", cut(&printable(line), columns.saturating_sub(6))));
        }
        if let Some(hint) = finding.hint.as_ref().filter(|hint| !hint.is_empty()) {
            out.push_str(&format!(
                "      {}\n",
                paint(DIM, &wrap(&format!("→ {}", one_line(&hint.to_string())), columns.saturating_sub(6), 8))
            ));
        }
    }
    out
}

fn check_config(context: &Context, view: Option<&BoardView>) -> Vec<Finding> {
    let config = match context.workspace.location.config() {
        Ok(config) => config,
        Err(error) => return config_errors(error),
    };
    let names = config.team_names();
    let has_no_team = names.is_empty();
    if has_no_team && let Err(error) = config.select(None) {
        return config_errors(error.into());
    }
    let check = |name: &String| match config.team(name, &TeamFlags::default()) {
        Ok(team) => {
            let mut findings = vec![ok("config", format!("team {name}, {}", count(team.spec.members.len(), "member")))];
            findings.extend(check_models(name, &team.spec));
            findings.extend(check_programs(context, &config, &team));
            findings.extend(check_isolation(name, &team.spec, context, view));
            findings
        }
        Err(error) => config_errors(error.into()),
    };
    names.iter().flat_map(check).collect()
}

/// The errors of a config, each with its own hint.
fn config_errors(error: Refusal) -> Vec<Finding> {
    if error.problems.is_empty() {
        return vec![fail("config", error.message, Hint::of_steps(&error.next).unwrap_or_default())];
    }
    let finding = |problem: Problem| fail("config", problem.report(), problem.hint.unwrap_or_default());
    error.problems.into_iter().map(finding).collect()
}

/// The errors in the members' model settings, each once. It sends no requests.
fn check_models(team: &str, spec: &TeamSpec) -> Vec<Finding> {
    let mut errors = BTreeMap::new();
    let connect: ModelConnector = Arc::new(providers::connect);
    for member in std::iter::once(&spec.lead).chain(&spec.members) {
        if let Err(error) = check_model(&member.model, &connect) {
            errors.entry(error).or_insert(&member.name);
        }
    }
    let text = |(error, member)| format!("team {team} cannot use the model of {member}: {error}");
    errors.into_iter().map(|error| fail("model", text(error), "")).collect()
}

/// Checks the programs of external agents, unless no team can start here. Runs no command of a config that the person may not have read.
fn check_programs(context: &Context, config: &Config, team: &Resolved) -> Vec<Finding> {
    let (spec, name) = (&team.spec, &team.spec.name);
    let members = || std::iter::once(&spec.lead).chain(&spec.members);
    if members().any(|member| member.model.command.is_some()) && !is_agreed(&context.workspace, config, team) {
        let text = format!("team {name}: its `command` is not run: you have not agreed to these settings yet");
        return vec![warn("agent", text, agree())];
    }
    let (Ok(folder), Ok(sandbox)) = (context.workspace.folder(), context.workspace.location.sandbox(Some(spec))) else {
        return Vec::new();
    };
    match programs::check_programs(members(), &sandbox, &folder) {
        Ok(programs::ProgramReport { installed, warnings }) => {
            let warnings = warnings.into_iter().map(|text| warn("agent", text, ""));
            installed.into_iter().map(|text| ok("agent", text)).chain(warnings).collect()
        }
        Err(error) => vec![fail("agent", format!("team {name}: {error}"), error.hint)],
    }
}

/// Checks that tasks can have worktrees, if the team uses isolation.
fn check_isolation(team: &str, spec: &TeamSpec, context: &Context, view: Option<&BoardView>) -> Vec<Finding> {
    let workspace = context.workspace.folder().ok();
    let Some(branch) = workspace.and_then(|workspace| TeamBranch::of(spec, &workspace)) else { return Vec::new() };
    let mut findings = missing_drivers(team, &branch);
    findings.extend(check_branch(team, &branch, view));
    findings
}

/// Reports the filters and merge drivers of tracked files whose programs are missing. A launch refuses such filters.
fn missing_drivers(team: &str, branch: &TeamBranch) -> Vec<Finding> {
    // If git cannot be used, the next check tells it.
    let missing = branch.missing_drivers().unwrap_or_default();
    let finding = |driver: MissingDriver| {
        let report = if driver.is_filter { fail } else { warn };
        report("isolation", format!("team {team}: {driver}"), driver.hint())
    };
    missing.into_iter().map(finding).collect()
}

fn check_branch(team: &str, branch: &TeamBranch, view: Option<&BoardView>) -> Vec<Finding> {
    match branch.check_launch().and_then(|()| branch.status(view)) {
        Ok(TeamBranchStatus { problems, .. }) if !problems.is_empty() => problems
            .into_iter()
            .map(|problem| warn("isolation", problem.reason, Hint::of_steps(&problem.next).unwrap_or_default()))
            .collect(),
        Ok(status) => {
            let next = team_branch(&status).map(|text| format!("; {text}")).unwrap_or_default();
            let text = format!("team {team}: a worktree for each task, merged into {}{next}", status.branch);
            let signing = status.signs_commits.then(|| ok("signing", UNSIGNED_WORK.to_owned()));
            [ok("isolation", text)].into_iter().chain(signing).collect()
        }
        Err(error) => {
            vec![fail(
                "isolation",
                format!("team {team}: {}", error.message),
                Hint::of_steps(&error.next).unwrap_or_default(),
            )]
        }
    }
}

fn check_variables(context: &Context) -> Vec<Finding> {
    let finding = |unknown: UnknownVariable| {
        let hint = unknown.meant.map(|meant| format!("did you mean `{meant}`?")).unwrap_or_default();
        warn("environment", format!("unknown variable `{}`", unknown.name), hint)
    };
    context.workspace.location.environment().unknown_variables().into_iter().map(finding).collect()
}

/// Reports a control file that is a symbolic link, which a launch refuses.
fn check_links(workspace: &Path) -> Option<Finding> {
    let error = refuse_links(workspace).err()?;
    Some(fail("control files", error.to_string(), "remove the link"))
}

fn check_git(workspace: &Path) -> Finding {
    // The name of a copy that Brigade keeps of an invalid state file.
    match inspect(workspace, &format!("{STATE_FILE}{QUARANTINE_SUFFIX}1")) {
        Inspection::NoGit => warn("git", "not found", "install git: without it changes cannot be undone"),
        Inspection::NoRepository(version) => {
            warn("git", format!("{version}; the workspace is not in a repository"), "`git init`")
        }
        Inspection::NotIgnored(version) => warn(
            "git",
            format!("{version}; run-time files are not ignored"),
            "add /.tasks/, /.team/ and /agent_state.json* to .gitignore",
        ),
        Inspection::Failed(reason) => warn("git", reason, "correct this: teammates with isolation need git"),
        Inspection::Good(version) => ok("git", version),
    }
}

/// A temporary folder in the workspace. Dropping it removes the folder.
struct Scratch(PathBuf);

impl Scratch {
    fn new(workspace: &Path, purpose: &str) -> std::io::Result<Self> {
        // The name is new, so that no other program can have put a link there.
        let folder = workspace.join(format!(".brigade-doctor-{:08x}-{purpose}", fastrand::u32(..)));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover folder does no harm.
        let _ = platform::remove_folder(&self.0);
    }
}

/// Checks locks and the atomic exchange of files.
fn check_file_system(workspace: &Path) -> Vec<Finding> {
    let scratch = match Scratch::new(workspace, "files") {
        Ok(scratch) => scratch,
        Err(error) => return vec![fail("workspace", format!("cannot write: {error}"), "check its owner and mode")],
    };
    let mut findings = vec![check_locks(&scratch.0), check_exchange(&scratch.0)];
    if let Some(kind) = platform::network_file_system(workspace) {
        let text = format!("the workspace is on {kind}: its locks and file events are not reliable");
        findings.push(warn("file system", text, "use a local disk; here Brigade uses heartbeats and polling"));
    }
    findings
}

fn check_locks(folder: &Path) -> Finding {
    let path = folder.join(".lock");
    let (first, second) = (RealFileSystem::default(), RealFileSystem::default());
    let held = first.hold(&path);
    match (held, second.hold(&path)) {
        (Ok(Some(_)), Ok(None)) => ok("locks", "a held lock excludes others"),
        (Ok(Some(_)), Ok(Some(_))) => {
            fail("locks", "two holders of one lock: this file system does not support locks", "use a local disk")
        }
        (Err(error), _) | (_, Err(error)) => fail("locks", error.to_string(), "use a local disk"),
        (Ok(None), _) => fail("locks", "cannot take a new lock", "use a local disk"),
    }
}

fn check_exchange(folder: &Path) -> Finding {
    let (a, b) = (folder.join("a"), folder.join("b"));
    let swapped = fs::write(&a, "a").and_then(|()| fs::write(&b, "b")).and_then(|()| platform::exchange(&a, &b));
    match swapped {
        Ok(()) if fs::read(&a).is_ok_and(|bytes| bytes == b"b") => ok("exchange", "files are swapped atomically"),
        Ok(()) => fail("exchange", "the system reported a swap that did not happen", "use a local disk"),
        Err(error) => {
            let text = format!("cannot swap files atomically ({error})");
            warn("exchange", text, "a change by another program during a write of the state file can be lost")
        }
    }
}

async fn check_events(workspace: &Path) -> Finding {
    let hint = "Brigade polls for changes by other programs every few seconds";
    let scratch = match Scratch::new(workspace, "events") {
        Ok(scratch) => scratch,
        Err(error) => return fail("file events", error.to_string(), "check the workspace's owner and mode"),
    };
    let folder = scratch.0.clone();
    let seen = tokio::task::spawn_blocking(move || event_arrives(&folder)).await;
    match seen.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
        Ok(true) => ok("file events", "changes by other programs are seen immediately"),
        Ok(false) => warn("file events", "none arrived", hint),
        Err(error) => warn("file events", error.to_string(), hint),
    }
}

/// Returns true if the system reports a written file.
fn event_arrives(folder: &Path) -> std::io::Result<bool> {
    let Some(mut watch) = FolderWatch::start(folder) else { return Ok(false) };
    fs::write(folder.join("written"), "x")?;
    let mut seen = false;
    // The system queues the event before the write returns.
    watch.drain(&mut |name, _| seen |= name == "written");
    Ok(seen)
}

fn check_free_space(workspace: &Path, context: &Context) -> Finding {
    if let Some(reason) =
        context.workspace.location.low_disk_reason(context.workspace.location.team_if_valid(None).as_ref())
    {
        return fail("free space", format!("the team takes no work: {reason}"), "free space on the disk");
    }
    match platform::free_bytes(workspace) {
        Ok(free) if free < FREE_BYTES_WARN => warn(
            "free space",
            format!("{} left", bytes(free)),
            "free space on the disk: a team takes no work when the disk is nearly full",
        ),
        Ok(free) => ok("free space", format!("{} left", bytes(free))),
        Err(error) => warn("free space", format!("unknown: {error}"), ""),
    }
}

fn check_confinement(context: &Context) -> Finding {
    let sandbox = match context.workspace.folder() {
        Ok(_) => context
            .workspace
            .location
            .sandbox(context.workspace.location.team_if_valid(None).as_ref())
            .map_err(|error| error.message),
        // Without a workspace, doctor can only check the level.
        Err(_) => embed::open_sandbox(&std::env::temp_dir(), &[], &[]).map_err(|error| error.to_string()),
    };
    let confinement = match &sandbox {
        Ok(sandbox) => sandbox.confinement(),
        Err(error) => return fail("commands", error.clone(), "correct this: no team can start until it is corrected"),
    };
    let reason = &confinement.reason;
    match confinement.level {
        Level::Full => ok("commands", "they see the control files read-only, and only their own processes"),
        Level::MountsOnly => {
            let text = format!("they see the control files read-only, but also other processes ({reason})");
            warn("commands", text, "a command can signal Brigade; allow process namespaces to prevent this")
        }
        Level::Off => {
            let text = format!("they can write the control files ({reason})");
            warn("commands", text, "only the agents' prompt forbids this; allow user namespaces to prevent it")
        }
    }
}

/// The models of all teams with a valid config.
fn model_specs(context: &Context) -> Vec<ModelSpec> {
    let Some(config) = context.workspace.location.config_if_valid() else { return Vec::new() };
    let teams = config.team_names().into_iter().filter_map(|name| config.team(&name, &TeamFlags::default()).ok());
    teams.flat_map(|team| team.spec.members.into_iter().chain([team.spec.lead])).map(|member| member.model).collect()
}

/// Checks the providers' keys. The finding contains the names of variables, never their values.
fn check_keys(specs: &[ModelSpec], is_set: impl Fn(&str) -> bool) -> Finding {
    // Several providers can use the same variable.
    let set: BTreeSet<&str> =
        providers::all().flat_map(providers::Provider::keys).filter(|name| is_set(name)).collect();
    if !set.is_empty() {
        return ok("keys", format!("set: {}", Vec::from_iter(set).join(", ")));
    }
    let is_used = |provider: &&providers::Provider| specs.iter().any(|spec| spec.provider == provider.name);
    let used: Vec<&providers::Provider> = providers::all().filter(is_used).collect();
    match used.iter().find(|provider| provider.keys().next().is_some()) {
        Some(provider)
            if specs.iter().any(|spec| spec.provider == provider.name && provider.server(spec).is_none()) =>
        {
            let variables = provider.keys().collect::<Vec<_>>().join(" or ");
            warn("keys", format!("none set; the provider `{}` needs one", provider.name), format!("set {variables}"))
        }
        Some(provider) => ok("keys", format!("none set; servers of `{}` may need none", provider.name)),
        None if used.is_empty() => ok("keys", "none set"),
        None => ok("keys", "none set, and none needed"),
    }
}

/// Reports a lead without heartbeats.
async fn check_lead(context: &Context) -> Option<Finding> {
    let lead = LeadStatus::with_state(&context.workspace).await.ok()?.lead?;
    let health = lead.health(context.workspace.now())?;
    let text = format!("team {} (pid {}) {}", one_line(&lead.team), lead.pid, lead_status::message(health));
    Some(warn("lead", text, lead_status::hint(health, lead.pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(provider: &str, base_url: Option<&str>) -> ModelSpec {
        ModelSpec { base_url: base_url.map(Into::into), ..ModelSpec::new(provider, "m") }
    }

    #[test]
    fn missing_key_is_warned_only_if_provider_needs_it() {
        let checked = |specs: &[ModelSpec]| {
            let finding = check_keys(specs, |_| false);
            (finding.verdict, finding.text)
        };
        assert_eq!(checked(&[spec("runbook", None)]), (Verdict::Ok, "none set, and none needed".to_owned()));
        let own = "none set; servers of `anthropic` may need none".to_owned();
        assert_eq!(checked(&[spec("anthropic", Some("http://127.0.0.1:1"))]), (Verdict::Ok, own));
        let missed = "none set; the provider `anthropic` needs one".to_owned();
        assert_eq!(
            checked(&[spec("runbook", None), spec("anthropic", Some("https://api.anthropic.com"))]),
            (Verdict::Warn, missed)
        );
        assert_eq!(check_keys(&[], |name| name == "ANTHROPIC_API_KEY").text, "set: ANTHROPIC_API_KEY");
        assert_eq!(check_keys(&[], |name| name == "OPENAI_API_KEY").text, "set: OPENAI_API_KEY", "of two providers");
    }
}
