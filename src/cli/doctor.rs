//! `brigade doctor`: whether everything is there that a team needs, and what to do where it is not.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::context::Context;
use super::error::CliResult;
use super::exit::Exit;
use super::output::Answer;
use crate::config::TeamFlags;
use crate::domain::graph::{find_cycles, unfinished_blockers};
use crate::domain::task::TaskId;
use crate::embed;
use crate::models;
use crate::platform;
use crate::platform::watch::FolderWatch;
use crate::ports::{Board as _, BoardView, ModelSpec};
use crate::sandbox::Level;
use crate::stores::file::links::refuse_links;
use crate::stores::fs::{FileSystem, RealFileSystem};
use crate::stores::git::GitRepository;
use crate::stores::git::inspection::{Inspection, inspect};
use crate::team::spec::{Isolation, TeamSpec};
use crate::ui::style::{BAD, DIM, GOOD, WARN, paint};
use crate::ui::tasks::Look;
use crate::ui::text::{bytes, count, one_line, wrap};
use crate::ui::why::mend;

/// How long a server may take to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Less free space than this is worth a warning.
const FREE_BYTES_WARN: u64 = 1024 * 1024 * 1024;

/// Check that everything is there that a team needs
///
/// Exit code 1 when something fails.
#[derive(Debug, clap::Args)]
pub struct Doctor {}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One check that was made.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    text: String,
    hint: Option<String>,
}

fn ok(check: &'static str, text: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Ok, text: text.into(), hint: None }
}

fn warn(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Warn, text: text.into(), hint: Some(hint.into()) }
}

fn fail(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Fail, text: text.into(), hint: Some(hint.into()) }
}

impl Doctor {
    /// Makes all checks.
    ///
    /// # Errors
    /// None: what is wrong is found, not an error.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        let mut findings = config(context);
        findings.extend(variables(context));
        match context.workspace() {
            Ok(workspace) => {
                findings.extend(links(&workspace));
                findings.push(git(&workspace));
                findings.extend(file_system(&workspace));
                findings.push(events(&workspace).await);
                findings.push(free_space(&workspace, context));
                findings.extend(board(context).await);
                findings.extend(lead(context).await);
            }
            Err(error) => findings.push(fail("workspace", error.message, error.hint.unwrap_or_default())),
        }
        findings.push(confinement(context));
        let specs = specs(context);
        findings.push(keys(&specs, |name| std::env::var_os(name).is_some_and(|value| !value.is_empty())));
        findings.extend(servers(&specs));
        for hint in findings.iter_mut().filter_map(|finding| finding.hint.as_mut()) {
            *hint = context.hint(hint);
        }
        let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
        let answer = context.output.answer(&findings, || text(&findings, context.output.columns))?;
        Ok(if failed { answer.exit(Exit::Unfinished) } else { answer })
    }
}

fn text(findings: &[Finding], columns: usize) -> String {
    let mut out = String::new();
    for finding in findings {
        let (mark, style) = match finding.verdict {
            Verdict::Ok => ("ok  ", GOOD),
            Verdict::Warn => ("warn", WARN),
            Verdict::Fail => ("FAIL", BAD),
        };
        let line = wrap(&one_line(&format!("{}: {}", finding.check, finding.text)), columns.saturating_sub(6), 6);
        out.push_str(&format!("{}  {line}\n", paint(style, mark)));
        if let Some(hint) = finding.hint.as_ref().filter(|hint| !hint.is_empty()) {
            out.push_str(&format!(
                "      {}\n",
                paint(DIM, &wrap(&format!("→ {}", one_line(hint)), columns.saturating_sub(6), 8))
            ));
        }
    }
    out
}

fn config(context: &Context) -> Vec<Finding> {
    let config = match context.config() {
        Ok(config) => config,
        Err(error) => {
            let hint = error.hint.unwrap_or_else(|| "brigade config show says the same with lines".to_owned());
            return vec![fail("config", error.message, hint)];
        }
    };
    let names = config.team_names();
    if let (true, Err(error)) = (names.is_empty(), config.select(None)) {
        return vec![fail("config", error.to_string(), error.hint().unwrap_or_default())];
    }
    let check = |name: &String| match config.team(name, &TeamFlags::default()) {
        Ok(team) => {
            let mut findings = vec![ok("config", format!("team {name}, {}", count(team.spec.members.len(), "member")))];
            findings.extend(models_of(name, &team.spec));
            findings.extend(isolation_of(name, &team.spec, context));
            findings
        }
        Err(error) => vec![fail("config", error.to_string(), format!("team {name} cannot be launched"))],
    };
    names.iter().flat_map(check).collect()
}

/// What is wrong with the members' models, each trouble once: nothing is sent anywhere.
fn models_of(team: &str, spec: &TeamSpec) -> Vec<Finding> {
    let mut troubles: Vec<(String, &str)> = Vec::new();
    for member in std::iter::once(&spec.lead).chain(&spec.members) {
        if let Err(trouble) = models::connect(&member.model)
            && !troubles.iter().any(|(known, _)| *known == trouble)
        {
            troubles.push((trouble, member.name.as_str()));
        }
    }
    let finding = |(trouble, member): (String, &str)| {
        fail("model", format!("member `{member}`: {trouble}"), format!("team {team} cannot be launched"))
    };
    troubles.into_iter().map(finding).collect()
}

/// Whether each task can have a worktree, where a team wants that.
fn isolation_of(team: &str, spec: &TeamSpec, context: &Context) -> Option<Finding> {
    let workspace = context.workspace().ok().filter(|_| spec.isolation == Isolation::Worktree)?;
    Some(match GitRepository::check(&workspace, spec.merge_into.clone()) {
        Ok(into) => match GitRepository::behind(&workspace, spec.merge_into.clone()) {
            Ok(Some(why)) => warn("isolation", why, ""),
            _ => ok("isolation", format!("team {team}: a worktree for each task, merged into {into}")),
        },
        Err(error) => fail("isolation", error.to_string(), format!("team {team} cannot be launched")),
    })
}

fn variables(context: &Context) -> Vec<Finding> {
    let Some(config) = context.config_if_valid() else {
        return Vec::new();
    };
    let finding = |(name, meant): (String, Option<&'static str>)| {
        let hint = meant.map(|meant| format!("did you mean {meant}?")).unwrap_or_default();
        warn("environment", format!("{name} is set, and is no setting"), hint)
    };
    config.unknown_variables().into_iter().map(finding).collect()
}

/// Reports a control file that is a symbolic link, which a launch refuses.
fn links(workspace: &Path) -> Option<Finding> {
    let error = refuse_links(workspace).err()?;
    Some(fail("control files", error.to_string(), "remove the link"))
}

fn git(workspace: &Path) -> Finding {
    match inspect(workspace, ".team/x") {
        Inspection::NoGit => warn("git", "not found", "teammates work without it, but nothing can be undone"),
        Inspection::NoRepository(version) => warn(
            "git",
            format!("{version}; the workspace is in no repository"),
            "git init, so that changes can be seen and undone",
        ),
        Inspection::NotIgnored(version) => warn(
            "git",
            format!("{version}; run-time files are not ignored"),
            "add /.tasks/, /.team/ and /agent_state.json to .gitignore",
        ),
        Inspection::Failed(reason) => warn("git", reason, "teammates with isolation cannot work until that is mended"),
        Inspection::Good(version) => ok("git", version),
    }
}

/// A folder of the checks' own in the workspace, removed when they are over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(workspace: &Path, purpose: &str) -> std::io::Result<Self> {
        let folder = workspace.join(format!(".brigade-doctor-{}-{purpose}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // An empty folder left behind does no harm, and there is nobody to tell.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether locks keep others out here, and files can be swapped.
fn file_system(workspace: &Path) -> Vec<Finding> {
    let scratch = match Scratch::new(workspace, "files") {
        Ok(scratch) => scratch,
        Err(error) => {
            return vec![fail("workspace", format!("cannot be written to: {error}"), "check its owner and mode")];
        }
    };
    let mut findings = vec![locks(&scratch.0), exchange(&scratch.0)];
    if let Some(kind) = platform::network_file_system(workspace) {
        let text = format!("the workspace is on {kind}: locks and file events there are not to be trusted");
        findings.push(warn(
            "file system",
            text,
            "use a local disk; here, claims go by heartbeats, and changes by others are seen by polling",
        ));
    }
    findings
}

fn locks(folder: &Path) -> Finding {
    let path = folder.join(".lock");
    let (first, second) = (RealFileSystem::default(), RealFileSystem::default());
    let held = first.hold(&path);
    match (held, second.hold(&path)) {
        (Ok(Some(_)), Ok(None)) => ok("locks", "a held lock keeps others out"),
        (Ok(Some(_)), Ok(Some(_))) => {
            fail("locks", "two held the same lock: this file system does not keep locks", "use a local disk")
        }
        (Err(error), _) | (_, Err(error)) => fail("locks", error.to_string(), "use a local disk"),
        (Ok(None), _) => fail("locks", "a new lock cannot be taken", "use a local disk"),
    }
}

fn exchange(folder: &Path) -> Finding {
    let (a, b) = (folder.join("a"), folder.join("b"));
    let swapped = fs::write(&a, "a").and_then(|()| fs::write(&b, "b")).and_then(|()| platform::exchange(&a, &b));
    match swapped {
        Ok(()) if fs::read(&a).is_ok_and(|bytes| bytes == b"b") => ok("exchange", "files are swapped atomically"),
        Ok(()) => fail("exchange", "the system said files were swapped, and they were not", "use a local disk"),
        Err(error) => {
            let text = format!("files cannot be swapped atomically ({error})");
            warn("exchange", text, "a fast click in another program could be lost while the state file is written")
        }
    }
}

async fn events(workspace: &Path) -> Finding {
    let hint = "changes by other programs are seen by polling, every few seconds";
    let scratch = match Scratch::new(workspace, "events") {
        Ok(scratch) => scratch,
        Err(error) => return fail("file events", error.to_string(), "check the workspace's owner and mode"),
    };
    let folder = scratch.0.clone();
    let seen = tokio::task::spawn_blocking(move || event_arrives(&folder)).await;
    match seen {
        Ok(Ok(true)) => ok("file events", "changes by other programs are seen at once"),
        Ok(Ok(false)) => warn("file events", "none arrived", hint),
        Ok(Err(error)) => warn("file events", error.to_string(), hint),
        Err(error) => warn("file events", error.to_string(), hint),
    }
}

/// Whether the system tells of a file that is written.
fn event_arrives(folder: &Path) -> std::io::Result<bool> {
    let Some(mut watch) = FolderWatch::start(folder) else {
        return Ok(false);
    };
    fs::write(folder.join("written"), "x")?;
    let mut seen = false;
    // The event is in the queue before the write returns.
    watch.drain(&mut |name, _| seen |= name == "written");
    Ok(seen)
}

fn free_space(workspace: &Path, context: &Context) -> Finding {
    if let Some(trouble) = context.too_little_room(context.team_if_valid(None).as_ref()) {
        return fail("free space", format!("no work is taken: {trouble}"), "make room on the disk");
    }
    match platform::free_bytes(workspace) {
        Ok(free) if free < FREE_BYTES_WARN => warn(
            "free space",
            format!("{} left", bytes(free)),
            "the team stops taking work when the disk is nearly full",
        ),
        Ok(free) => ok("free space", format!("{} left", bytes(free))),
        Err(error) => warn("free space", format!("not known: {error}"), ""),
    }
}

fn confinement(context: &Context) -> Finding {
    let sandbox = match context.workspace() {
        Ok(_) => context.sandbox(context.team_if_valid(None).as_ref()).map_err(|error| error.message),
        // Without a workspace there is nothing to protect, but the level can be told.
        Err(_) => embed::sandbox(&std::env::temp_dir(), &[], &[]).map_err(|error| error.to_string()),
    };
    let confinement = match &sandbox {
        Ok(sandbox) => sandbox.confinement(),
        Err(error) => return fail("commands", error.clone(), "no team can be launched before this is mended"),
    };
    let reason = &confinement.reason;
    match confinement.level {
        Level::Full => ok("commands", "they see the control files read-only, and no process but their own"),
        Level::MountsOnly => {
            let text = format!("they see the control files read-only, but also other processes ({reason})");
            warn("commands", text, "a command can signal Brigade; allow process namespaces to keep it from that")
        }
        Level::Off => {
            let text = format!("they can write the control files ({reason})");
            warn("commands", text, "teammates are told not to; allow user namespaces to keep them from it")
        }
    }
}

/// The models of all teams that can be launched, as far as the config says.
fn specs(context: &Context) -> Vec<ModelSpec> {
    let Some(config) = context.config_if_valid() else { return Vec::new() };
    let teams = config.team_names().into_iter().filter_map(|name| config.team(&name, &TeamFlags::default()).ok());
    teams.flat_map(|team| team.spec.members.into_iter().chain([team.spec.lead])).map(|member| member.model).collect()
}

/// Whether the providers' keys are there: the variables' names only, never what they hold.
fn keys(specs: &[ModelSpec], is_set: impl Fn(&str) -> bool) -> Finding {
    let names = |provider: &models::Provider| provider.keys.iter().copied();
    let set: Vec<&str> = models::PROVIDERS.iter().flat_map(names).filter(|name| is_set(name)).collect();
    if !set.is_empty() {
        return ok("keys", format!("set: {}", set.join(", ")));
    }
    let is_used = |provider: &&models::Provider| specs.iter().any(|spec| spec.provider == provider.name);
    let used: Vec<&models::Provider> = models::PROVIDERS.iter().filter(is_used).collect();
    match used.iter().find(|provider| !provider.keys.is_empty()) {
        Some(provider)
            if specs.iter().any(|spec| spec.provider == provider.name && (provider.server)(spec).is_none()) =>
        {
            let variables = provider.keys.join(" or ");
            warn("keys", format!("none set; the provider `{}` needs one", provider.name), format!("set {variables}"))
        }
        Some(provider) => ok("keys", format!("none set; servers behind `{}` may do without", provider.name)),
        None if used.is_empty() => ok("keys", "none set"),
        None => ok("keys", "none set, and none needed"),
    }
}

/// Whether the servers that settings name can be reached: a connection is made and closed, nothing is sent.
fn servers(specs: &[ModelSpec]) -> Vec<Finding> {
    let server = |spec: &ModelSpec| {
        let provider = models::PROVIDERS.iter().find(|provider| provider.name == spec.provider)?;
        (provider.server)(spec)
    };
    let servers: BTreeSet<String> = specs.iter().filter_map(server).collect();
    let look = |server: String| match reach(&server) {
        Ok(()) => ok("server", format!("{server} takes connections")),
        Err(error) => warn("server", format!("{server} cannot be reached: {error}"), "start it, or mend base_url"),
    };
    servers.into_iter().map(look).collect()
}

fn reach(server: &str) -> std::io::Result<()> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "its name has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Claims of workers that are gone.
fn abandoned(context: &Context, view: &BoardView) -> Option<Finding> {
    let live = context.live_workers(view);
    let look = Look { view, live_workers: live.as_ref(), approvals: &[], now: context.now() };
    let tasks = view.tasks.values().filter(|task| look.is_abandoned(task));
    let named = tasks.map(|task| task.id.to_string()).collect::<Vec<_>>().join(", ");
    let text = format!("in progress, and their worker is gone: {named}");
    let hint = "the next `brigade up` or `brigade run` takes them back; or: brigade tasks release ID --force";
    (!named.is_empty()).then(|| warn("board", text, hint))
}

/// Whether a lead that runs gives signs of life.
async fn lead(context: &Context) -> Option<Finding> {
    let lead = context.running().await.ok()?.lead?;
    let stillness = lead.stillness(context.now())?;
    let text = format!("team {} (pid {}) {}", one_line(&lead.team), lead.pid, stillness.says());
    Some(warn("lead", text, stillness.remedy(lead.pid)))
}

async fn board(context: &Context) -> Vec<Finding> {
    let (view, set_aside) = match context.board_to_look_at() {
        Ok(board) => (board.view().await, board.set_aside()),
        Err(error) => return vec![fail("board", error.message, error.hint.unwrap_or_default())],
    };
    let view = match view {
        Ok(view) => view,
        Err(error) => return vec![fail("board", error.to_string(), "")],
    };
    let mut findings = Vec::new();
    for spoiled in &view.spoiled {
        let text = format!("{} is no task: {}", spoiled.file, spoiled.reason);
        findings.push(warn("board", text, "mend it by hand; it blocks what waits for it"));
    }
    let is_missing = |id: &TaskId| !view.tasks.contains_key(id);
    for (id, place) in set_aside.iter().filter(|(id, _)| is_missing(id)) {
        let text = format!("the file of {id} was no task, and was set aside as {place}");
        findings.push(warn("board", text, mend(*id, place)));
    }
    findings.extend(abandoned(context, &view));
    let blockers_of = |id: TaskId| {
        let task = view.tasks.get(&id).into_iter();
        task.flat_map(|task| unfinished_blockers(task, view.as_ref())).map(|blocker| blocker.id).collect()
    };
    for cycle in find_cycles(view.tasks.keys().copied(), blockers_of, |_| true) {
        let names: Vec<String> = cycle.iter().chain(cycle.first()).map(ToString::to_string).collect();
        let hint = format!("brigade why {}", cycle.first().map_or(0, |id| id.0));
        findings.push(fail("board", format!("tasks wait for each other: {}", names.join(" -> ")), hint));
    }
    let foreign: Vec<String> =
        view.tasks.values().filter(|task| task.is_foreign()).map(|task| task.id.to_string()).collect();
    if !foreign.is_empty() {
        let text = format!("in progress for other programs, without a claim: {}", foreign.join(", "));
        findings.push(warn("board", text, "brigade tasks release ID --force takes one back"));
    }
    findings.push(ok("board", crate::ui::tasks::tally(&view)));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(provider: &str, base_url: Option<&str>) -> ModelSpec {
        ModelSpec { base_url: base_url.map(Into::into), ..ModelSpec::new(provider, "m") }
    }

    #[test]
    fn a_key_is_missed_only_where_one_is_needed() {
        let told = |specs: &[ModelSpec]| {
            let finding = keys(specs, |_| false);
            (finding.verdict, finding.text)
        };
        assert_eq!(told(&[spec("runbook", None)]), (Verdict::Ok, "none set, and none needed".to_owned()));
        let own = "none set; servers behind `anthropic` may do without".to_owned();
        assert_eq!(told(&[spec("anthropic", Some("http://127.0.0.1:1"))]), (Verdict::Ok, own));
        let missed = "none set; the provider `anthropic` needs one".to_owned();
        assert_eq!(
            told(&[spec("runbook", None), spec("anthropic", Some("https://api.anthropic.com"))]),
            (Verdict::Warn, missed)
        );
        assert_eq!(keys(&[], |name| name == "ANTHROPIC_API_KEY").text, "set: ANTHROPIC_API_KEY");
    }

    #[test]
    fn a_server_is_reached_or_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let look = || servers(&[spec("anthropic", Some(&format!("http://{address}/v1")))]).remove(0);
        assert_eq!((look().verdict, look().text), (Verdict::Ok, format!("{address} takes connections")));
        drop(listener);
        assert_eq!(look().verdict, Verdict::Warn);
    }
}
