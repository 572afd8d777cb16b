//! The list of everything that the files of a workspace run, send, store and hand over. The settings in it come from the table of all
//! settings. Each line stands for its complete content.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{DirEntry, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::config::effects::EffectiveValue;
use crate::config::resolve::Resolved;
use crate::config::settings::Effect;
use crate::domain::task::TaskId;
use crate::domain::task::plan::PLAN_BYTES_MAX;
use crate::domain::task::shell_blocks;
use crate::domain::team::digest::sha256;
use crate::domain::team::name::Name;
use crate::domain::team::team_spec::{MemberSpec, Prompts, TeamSpec};
use crate::domain::text::one_line;
use crate::domain::text::units::count;
use crate::domain::time::UnixMs;
use crate::embed::PlanFile;
use crate::platform::reading::{self, AllowedKinds};
use crate::providers;
use crate::providers::traffic::RECORDINGS_MAX;
use crate::stores::trust::{AgreedLine, Agreement, TrustStore};

/// The digits of a digest that people see.
const DIGEST_DIGITS: usize = 12;
/// The most bytes of a file that its line stands for. The time of its last change stands for the rest.
const CONTENT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The config and the plan of `brigade run demo`. Files with the same bytes need no agreement: the program that a person started brings
/// them along.
const EMBEDDED_CONFIG: &str = include_str!("../../../brigade.toml");
const EMBEDDED_PLAN: &str = include_str!("../../../demo/audit.md");

/// One thing that a file runs, sends, stores or hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The effect of the thing.
    pub effect: Effect,
    /// Its name and its value, on one line.
    pub text: String,
    /// The digest of effect, text and content.
    pub digest: String,
    /// The file that it comes from. `None` for files of board and mail.
    pub file: Option<PathBuf>,
    /// True for work, which can be done by the next launch.
    pub is_work: bool,
}

impl Line {
    fn new(effect: Effect, text: &str, content: &[u8]) -> Self {
        let text = one_line(text);
        let digest = sha256(&[effect.as_str().as_bytes(), text.as_bytes(), content]);
        Self { effect, text, digest, file: None, is_work: false }
    }

    /// A command of this part of the workspace.
    fn command(place: &str, command: &str) -> Self {
        let lines: Vec<String> = command.lines().map(one_line).collect();
        // A space in place of a line break would hide the end of a comment.
        let text = format!("{place}: {}", lines.join(" ⏎ "));
        Self { is_work: true, ..Self::new(Effect::Runs, &text, command.as_bytes()) }
    }

    /// The `verify` command of a task on the board.
    pub(super) fn verify(id: TaskId, command: &str) -> Self {
        Self::command(&format!("verify of {id}"), command)
    }

    /// The start of the digest, which is enough for people.
    pub fn short_digest(&self) -> &str {
        short(&self.digest)
    }
}

/// Returns the size and the digest of a content, for people.
fn size_and_digest(content: &[u8]) -> String {
    format!("{} bytes, digest {}", content.len(), short(&sha256(&[content])))
}

fn short(digest: &str) -> &str {
    digest.get(..DIGEST_DIGITS).unwrap_or(digest)
}

/// The relation of a list to what the person agreed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The person agreed to it.
    Agreed,
    /// The person agreed to no list of this team here.
    New,
    /// The person agreed to another list.
    Changed {
        /// The time of the agreement.
        since: UnixMs,
        /// The lines that it had, as they were shown.
        removed: Vec<String>,
        /// The lines that it had not.
        added: Vec<Line>,
    },
}

/// The list for one team.
#[derive(Debug, Clone, Default)]
pub struct ConsentList {
    /// The lines, the settings first.
    pub lines: Vec<Line>,
}

impl ConsentList {
    /// The values of settings, the prompts and the scripts of models.
    pub fn of_settings(config: &Config, resolved: &Resolved, workspace: &Path) -> Self {
        let mut list = Self::default();
        let spec = &resolved.spec;
        if let Some((file, text)) = config.workspace_text() {
            if text != EMBEDDED_CONFIG {
                let values = resolved.effects_of(file);
                // The script itself, or the plan, has its own line.
                let values = values.iter().filter(|value| value.key != "plan" && !is_script(spec, value));
                list.lines.extend(values.map(|value| Line { file: Some(file.to_owned()), ..value_line(spec, value) }));
            }
            list.lines.extend(prompt_lines(&spec.prompts, file));
        }
        let scripts: BTreeSet<&str> = members(spec).filter(|member| has_script(member)).map(script).collect();
        scripts.into_iter().for_each(|script| list.add_scripts(script, workspace));
        list
    }

    /// Adds the commands of a plan, and its text.
    pub(super) fn add_plan(
        &mut self,
        spec: &TeamSpec,
        PlanFile { path: file, tasks: plan }: &PlanFile,
        workspace: &Path,
    ) {
        // Another kind of file is a pipe of the person.
        if !file.is_file() || has_bytes(file, EMBEDDED_PLAN) {
            return;
        }
        let shown = display(file, workspace);
        let mut content = String::new();
        let mut commands = Vec::new();
        for task in plan {
            // Each text in quotes: it cannot move from one field into the next.
            content += &format!("{:?}", (&task.subject, &task.description, &task.verify));
            content.extend(task.tokens_max.map(|tokens_max| tokens_max.to_string()));
            let blocks = if spec.runs_blocks() { shell_blocks::shell_blocks(&task.description) } else { Vec::new() };
            commands.extend(blocks.iter().map(|block| Line::command(&shown, block)));
            let place = format!("{shown}, verify of {}", task.subject);
            commands.extend(task.verify.iter().map(|verify| Line::command(&place, verify)));
        }
        let tasks = count(plan.len(), "task");
        let text = format!("the plan {shown} ({tasks}, {})", size_and_digest(content.as_bytes()));
        let first = Line { is_work: true, ..Line::new(Effect::Sends, &text, content.as_bytes()) };
        let lines = std::iter::once(first).chain(commands);
        self.lines.extend(lines.map(|line| Line { file: Some(file.clone()), ..line }));
    }

    /// Adds a task of the board that is not completed.
    pub(super) fn add_task(&mut self, spec: &TeamSpec, id: TaskId, task: (&str, &str, Option<&str>)) {
        let (subject, description, verify) = task;
        let content = format!("{subject:?} {description:?}");
        let text = format!("{id} on the board: {subject} ({})", size_and_digest(content.as_bytes()));
        self.add_work(Effect::Sends, &text, content.as_bytes());
        if spec.runs_blocks() {
            let blocks = shell_blocks::shell_blocks(description);
            self.lines.extend(blocks.iter().map(|block| Line::command(&id.to_string(), block)));
        }
        self.lines.extend(verify.map(|verify| Line::verify(id, verify)));
    }

    /// Adds a member that the lead spawned in an earlier run.
    pub(super) fn add_spawned(&mut self, member: &MemberSpec, workspace: &Path) {
        let model = &member.model;
        let content = format!("{:?}", (&member.role, &member.prompt, &model.base_url, &model.command, &model.pass_env));
        let name = format!("{} {}", model.provider, model.model);
        let digest = size_and_digest(content.as_bytes());
        let text = format!("the member {} in .team/config.json: {} ({digest})", member.name, name.trim_end());
        self.add_work(Effect::Sends, &text, content.as_bytes());
        if has_script(member) {
            self.add_scripts(script(member), workspace);
        }
    }

    /// Adds the script of a model, or the recordings in its folder.
    fn add_scripts(&mut self, script: &str, workspace: &Path) {
        for file in files_of(Path::new(script)) {
            let content = content_of(&file);
            let text = format!("{}, a script of a model ({})", display(&file, workspace), content.text);
            self.lines.push(Line { file: Some(file), ..Line::new(Effect::Runs, &text, &content.bytes) });
        }
    }

    /// Adds a file of `.team`, by its path there.
    pub(super) fn add_file(&mut self, in_team: &Path, file: &Path, workspace: &Path) {
        let what = match in_team.iter().next().and_then(OsStr::to_str) {
            Some("inbox") => "mail",
            Some("transcripts") => "transcript",
            _ => "file",
        };
        let content = content_of(file);
        let shown = file.strip_prefix(workspace).unwrap_or(file).display();
        let text = format!("the {what} {shown} ({})", content.text);
        self.add_work(Effect::Sends, &text, &content.bytes);
    }

    fn add_work(&mut self, effect: Effect, text: &str, content: &[u8]) {
        self.lines.push(Line { is_work: true, ..Line::new(effect, text, content) });
    }

    /// Compares this list of a team in this folder with the one that the person agreed to. An empty list needs no agreement.
    pub fn standing(&self, folder: &Path, team: &Name) -> Standing {
        self.compare(TrustStore::of_user().agreement(folder, team.as_str()).as_ref())
    }

    /// Records that the person agrees to this list, and to its lines as they were shown. With `keeps_work`, the earlier agreement to work
    /// stays.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn record(
        &self,
        folder: &Path,
        team: &Name,
        at: UnixMs,
        keeps_work: bool,
        shown: fn(&Line) -> String,
    ) -> io::Result<()> {
        let store = TrustStore::of_user();
        let mut agreement = self.agreement(at, shown);
        if keeps_work && let Some(before) = store.agreement(folder, team.as_str()) {
            agreement.lines.extend(before.lines.into_iter().filter(|line| line.work));
        }
        store.record(folder, team.as_str(), agreement)
    }

    /// The agreement to this list at this time, to the lines as they were shown.
    fn agreement(&self, at: UnixMs, shown: fn(&Line) -> String) -> Agreement {
        let line = |line: &Line| AgreedLine { digest: line.digest.clone(), text: shown(line), work: line.is_work };
        Agreement { list: self.digest(), agreed_at: at, lines: self.lines.iter().map(line).collect() }
    }

    /// Work that is gone is no difference.
    fn compare(&self, agreed: Option<&Agreement>) -> Standing {
        if self.lines.is_empty() {
            return Standing::Agreed;
        }
        let Some(agreed) = agreed else { return Standing::New };
        let known: HashSet<&str> = agreed.lines.iter().map(|line| line.digest.as_str()).collect();
        let here: HashSet<&str> = self.lines.iter().map(|line| line.digest.as_str()).collect();
        let added = self.lines.iter().filter(|line| !known.contains(line.digest.as_str()));
        let removed: Vec<_> = agreed.lines.iter().filter(|line| !here.contains(line.digest.as_str())).collect();
        let added: Vec<Line> = added.cloned().collect();
        if agreed.list == self.digest() || added.is_empty() && removed.iter().all(|line| line.work) {
            return Standing::Agreed;
        }
        let removed = removed.into_iter().map(|line| line.text.clone()).collect();
        Standing::Changed { since: agreed.agreed_at, removed, added }
    }

    fn digest(&self) -> String {
        let digests: Vec<&[u8]> = self.lines.iter().map(|line| line.digest.as_bytes()).collect();
        sha256(&digests)
    }
}

fn members(spec: &TeamSpec) -> impl Iterator<Item = &MemberSpec> {
    std::iter::once(&spec.lead).chain(&spec.members)
}

fn has_script(member: &MemberSpec) -> bool {
    providers::provider(&member.model.provider).is_some_and(|known| known.model_is_path)
}

fn script(member: &MemberSpec) -> &str {
    &member.model.model
}

/// Returns the script itself, or the recordings in the folder.
fn files_of(script: &Path) -> Vec<PathBuf> {
    let entries = reading::list(script, RECORDINGS_MAX).unwrap_or_default();
    let files: BTreeSet<PathBuf> = entries.iter().map(DirEntry::path).filter(|path| !path.is_dir()).collect();
    if files.is_empty() { vec![script.to_owned()] } else { files.into_iter().collect() }
}

fn is_script(spec: &TeamSpec, value: &EffectiveValue) -> bool {
    value.key == "model" && of_members(spec, value).any(has_script)
}

/// The lead and the members that have a value.
fn of_members<'a>(spec: &'a TeamSpec, value: &'a EffectiveValue) -> impl Iterator<Item = &'a MemberSpec> {
    members(spec).filter(|member| value.members.iter().any(|name| name == member.name.as_str()))
}

fn value_line(spec: &TeamSpec, value: &EffectiveValue) -> Line {
    let mut text = format!("{} = {}", value.key, value.value);
    if !value.members.is_empty() {
        text += &format!(" ({})", value.members.join(", "));
    }
    let key = value.key.rsplit('.').next().unwrap_or_default();
    match key {
        "base_url" => Line::new(value.effect, &(text + ", which gets the provider's key"), b""),
        "key_command" => Line::new(value.effect, &(text + ", which prints the provider's key"), b""),
        "prompt" => {
            let prompt = of_members(spec, value).next().map(|member| member.prompt.as_str()).unwrap_or_default();
            let text = format!("{text}: {}", size_and_digest(prompt.as_bytes()));
            Line::new(value.effect, &text, prompt.as_bytes())
        }
        _ => Line::new(value.effect, &text, b""),
    }
}

/// The prompts next to the workspace's config that replace built-in ones.
fn prompt_lines(prompts: &Prompts, config: &Path) -> Vec<Line> {
    let built_in = Prompts::default();
    let folder = config.parent().unwrap_or(config).join("prompts");
    let all = [
        ("lead.md", &prompts.lead, built_in.lead),
        ("teammate.md", &prompts.teammate, built_in.teammate),
        ("external.md", &prompts.external, built_in.external),
        ("compact.md", &prompts.compact, built_in.compact),
        ("cleanup.md", &prompts.cleanup, built_in.cleanup),
    ];
    let own = all.into_iter().filter(|(name, text, built_in)| {
        // Without a file here, the prompt is from the user's own folder.
        *text != built_in && folder.join(name).symlink_metadata().is_ok()
    });
    let line = |(name, text, _): (&str, &String, String)| {
        let shown = format!("the prompt prompts/{name} ({})", size_and_digest(text.as_bytes()));
        Line { file: Some(folder.join(name)), ..Line::new(Effect::Sends, &shown, text.as_bytes()) }
    };
    own.map(line).collect()
}

/// A path as every command shows it: relative to the workspace if it is below it.
fn display(path: &Path, workspace: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    path.strip_prefix(workspace).unwrap_or(&path).display().to_string()
}

/// Returns true if the file has exactly this text.
fn has_bytes(file: &Path, text: &str) -> bool {
    reading::read(file, AllowedKinds::Files, PLAN_BYTES_MAX as u64).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// The content of a file.
struct Content {
    bytes: Vec<u8>,
    /// Its size and digest, for people.
    text: String,
}

/// Returns the content of a file, or the time of its last change in place of its end. A file that cannot be read has no content: nothing
/// else can read it either.
fn content_of(file: &Path) -> Content {
    let read = |file: File| -> std::io::Result<Vec<u8>> {
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        file.take(CONTENT_BYTES_MAX).read_to_end(&mut bytes)?;
        if metadata.len() > CONTENT_BYTES_MAX {
            bytes.extend(format!("{} {:?}", metadata.len(), metadata.modified().ok()).bytes());
        }
        Ok(bytes)
    };
    let bytes = reading::open(file, AllowedKinds::Files).and_then(read).unwrap_or_default();
    Content { text: size_and_digest(&bytes), bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::{
        BUDGET_SETTINGS, LEAD_SETTINGS, MEMBER_BUDGET_SETTINGS, MEMBER_SETTINGS, MODEL_SETTINGS, NOTIFY_SETTINGS,
        PRICE_SETTINGS, Setting, TEAM_SETTINGS, ValueKind,
    };
    use crate::config::{Environment, TeamFlags};
    use crate::domain::team::team_spec::ModelSpec;

    /// A config that sets every setting with an effect.
    const CONFIG: &str = r#"
        [teams.crew]
        goal = "g"
        plan = "plan.md"
        done_when = "make check"
        isolation = "worktree"
        merge_into = "main"
        setup = "npm ci"
        copy = [".env"]
        keep = ["reports/**"]
        submodules = true
        review = "lead"
        record = "traffic"
        mode = "ask"
        allow = ["bash(ls:*)"]
        deny = ["bash(rm:*)"]
        [teams.crew.budget]
        tokens = 900000
        usd = 5
        [teams.crew.notify]
        command = "notify-send x"
        url = "http://127.0.0.1:1/notice"
        [teams.crew.lead]
        provider = "openai-compatible"
        model = "opus"
        base_url = "http://127.0.0.1:1"
        api = "messages"
        headers = { x-team = "a" }
        extra_body = { top_k = 3 }
        key_command = "print-key"
        fallback = ["spare"]
        command = "claude --x"
        pass_env = ["GH_TOKEN"]
        mode = "auto"
        allow = ["bash(cat:*)"]
        deny = ["bash(mv:*)"]
        prompt = "Lead."
        budget = { tokens = 900000, usd = 1 }
        [[teams.crew.members]]
        name = "m1"
        role = "coder"
        capabilities = ["rust"]
        prompt = "prompts/coder.md"
        plan_first = true
        provider = "anthropic"
        model = "sonnet"
        base_url = "http://127.0.0.1:2"
        api = "chat"
        headers = { x-team = "b", authorization = "Bearer sk-agreed-0815" }
        extra_body = { top_k = 4 }
        key_command = "print-other"
        fallback = ["spare", "other"]
        command = "other"
        pass_env = ["NPM_TOKEN"]
        mode = "ask"
        allow = ["bash(cp:*)"]
        deny = ["bash(ln:*)"]
        budget = { tokens = 800000, usd = 2 }
        [models.spare]
        provider = "ollama"
        model = "small"
        base_url = "http://127.0.0.1:3"
        api = "chat"
        headers = { x-team = "c" }
        extra_body = { top_k = 5 }
        key_command = "print-spare"
        pass_env = ["SPARE_TOKEN"]
        fallback = ["other"]
        [models.other]
        provider = "ollama"
        [prices.opus]
        input_usd_per_mtok = 1
        output_usd_per_mtok = 1
        cache_read_usd_per_mtok = 1
        cache_write_usd_per_mtok = 1
        [prices.sonnet]
        input_usd_per_mtok = 1
        output_usd_per_mtok = 1
    "#;

    struct TestTeam {
        folder: tempfile::TempDir,
    }

    impl TestTeam {
        fn new() -> Self {
            let team = Self { folder: tempfile::tempdir().unwrap() };
            team.write("brigade.toml", CONFIG);
            team.write("plan.md", "## One\nverify: true\n");
            team.write("prompts/coder.md", "Code.");
            team
        }

        fn write(&self, name: &str, text: &str) {
            let file = self.folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }

        fn list(&self) -> ConsentList {
            self.list_with(Environment::default())
        }

        fn list_with(&self, environment: Environment) -> ConsentList {
            let workspace = self.folder.path().canonicalize().unwrap();
            let config = Config::load(Some(&workspace.join("brigade.toml")), environment).unwrap();
            let resolved = config.team("crew", &TeamFlags::default()).unwrap();
            let mut list = ConsentList::of_settings(&config, &resolved, &workspace);
            for plan in crate::embed::read_plans(&resolved.spec.plans, &workspace, AllowedKinds::Files).unwrap() {
                list.add_plan(&resolved.spec, &plan, &workspace);
            }
            list
        }
    }

    fn shown(line: &Line) -> String {
        format!("{} {}", line.effect, line.text)
    }

    fn texts(list: &ConsentList) -> Vec<String> {
        list.lines.iter().map(shown).collect()
    }

    #[test]
    fn every_setting_with_effect_is_listed() {
        let texts = texts(&TestTeam::new().list());
        let tables = [
            (TEAM_SETTINGS, "", None),
            (BUDGET_SETTINGS, "budget.", None),
            (PRICE_SETTINGS, "prices.opus.", None),
            (NOTIFY_SETTINGS, "notify.", None),
            (LEAD_SETTINGS, "", Some("lead")),
            (MEMBER_SETTINGS, "", Some("m1")),
            (MEMBER_BUDGET_SETTINGS, "budget.", Some("lead")),
            (MEMBER_BUDGET_SETTINGS, "budget.", Some("m1")),
            (MODEL_SETTINGS, "models.spare.", None),
        ];
        for (settings, prefix, member) in tables {
            let with_effect = settings.iter().filter(|setting| setting.effect != Effect::None);
            for Setting { key, effect, kind, .. } in with_effect.filter(|setting| setting.kind != ValueKind::Path) {
                let start = format!("{effect} {prefix}{key} = ");
                let is_listed = |text: &String| {
                    text.starts_with(&start) && member.is_none_or(|member| text.contains(&format!("({member})")))
                };
                assert!(texts.iter().any(is_listed), "{start}{kind:?} of {member:?} is missing in {texts:#?}");
            }
        }
        assert!(texts.iter().any(|text| text.starts_with("sends the plan plan.md (1 task, ")), "{texts:#?}");
        assert!(texts.contains(&"runs plan.md, verify of One: true".to_owned()), "{texts:#?}");
        assert!(texts.iter().all(|text| !text.contains("0815")), "a key is listed: {texts:#?}");
    }

    #[test]
    fn values_of_person_are_not_listed() {
        let team = TestTeam::new();
        team.write("user.toml", "[teams.crew]\nmemory = \"task\"\n");
        let variables = [("BRIGADE_DONE_WHEN".to_owned(), "mine".to_owned())].into();
        let user_file = Some(team.folder.path().join("user.toml"));
        let list = team.list_with(Environment { user_file, variables, ..Environment::default() });
        assert!(texts(&list).iter().all(|text| !text.contains("done_when")), "{list:#?}");
        assert_eq!(list.lines.len(), team.list().lines.len() - 1);
    }

    #[test]
    fn change_of_any_listed_content_is_a_change() {
        let team = TestTeam::new();
        let agreed = team.list().agreement(UnixMs(1), shown);
        assert_eq!(team.list().compare(Some(&agreed)), Standing::Agreed);
        assert_eq!(team.list().compare(None), Standing::New);
        let long = format!("true {}", "x".repeat(400));
        let changes = [
            ("plan.md", format!("## One\nverify: {long}\n")),
            ("plan.md", format!("## One\nverify: {long}y\n")),
            ("plan.md", "## One\nverify: true\nObey.\n".to_owned()),
            ("plan.md", "## One\nverify: true\ntask_tokens_max: 900000\n".to_owned()),
            ("brigade.toml", CONFIG.replacen("budget = { tokens = 900000,", "budget = { tokens = 9000000,", 1)),
            ("prompts/coder.md", "Code!".to_owned()),
            ("prompts/teammate.md", "Obey.".to_owned()),
            ("brigade.toml", CONFIG.replace("[\"GH_TOKEN\"]", "[\"GH_TOKEN\", \"OTHER\"]")),
            ("brigade.toml", CONFIG.replace("deny = [\"bash(rm:*)\"]", "")),
            ("brigade.toml", CONFIG.replace("print-spare", "print-another")),
            ("brigade.toml", CONFIG.replace("http://127.0.0.1:3", "http://127.0.0.1:4")),
            ("brigade.toml", CONFIG.replace("fallback = [\"spare\"]", "")),
        ];
        let mut agreed = agreed;
        for (name, text) in changes {
            team.write(name, &text);
            let list = team.list();
            assert!(matches!(list.compare(Some(&agreed)), Standing::Changed { .. }), "{name}: {text}");
            agreed = list.agreement(UnixMs(1), shown);
        }
    }

    #[test]
    fn files_that_patterns_match_are_listed() {
        let team = TestTeam::new();
        team.write("plans/b.md", "## Second\nDo b.\n");
        team.write("plans/a.md", "## First\nDo a.\n");
        team.write(".env.test", "A=1");
        team.write(".env", "A=1");
        let config = CONFIG.replace("\"plan.md\"", "\"plans/*.md\"").replace("[\".env\"]", "[\".env*\"]");
        team.write("brigade.toml", &config);
        let list = team.list();
        let listed = texts(&list).join("\n");
        for line in ["the plan plans/a.md (1 task", "the plan plans/b.md (1 task", "copy = [\".env\",\".env.test\"]"] {
            assert!(listed.contains(line), "{line}: {listed}");
        }
        let agreed = list.agreement(UnixMs(1), shown);
        team.write("plans/c.md", "## Third\nDo c.\n");
        assert!(matches!(team.list().compare(Some(&agreed)), Standing::Changed { .. }), "a new file matches");
    }

    #[test]
    fn script_of_spawned_member_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("x.json");
        let model = ModelSpec::new("scripted", script.to_str().unwrap());
        let member = MemberSpec::new("carol", "coder", model).unwrap();
        let texts = |content: &str| {
            std::fs::write(&script, content).unwrap();
            let mut list = ConsentList::default();
            list.add_spawned(&member, folder.path());
            list.lines.iter().map(shown).collect::<Vec<_>>()
        };
        let before = texts("{}");
        assert!(before.len() == 2 && before[1].contains("x.json, a script of a model"), "{before:?}");
        assert_ne!(texts("{\"task\": []}"), before);
    }

    #[test]
    fn work_that_is_gone_is_no_change() {
        let team = TestTeam::new();
        let mut list = team.list();
        list.lines.push(Line::verify(TaskId(1), "true"));
        let agreed = list.agreement(UnixMs(1), shown);
        assert_eq!(team.list().compare(Some(&agreed)), Standing::Agreed);
        list.lines.push(Line::verify(TaskId(1), "false"));
        assert!(matches!(list.compare(Some(&agreed)), Standing::Changed { .. }));
    }

    #[test]
    fn embedded_config_and_plan_are_not_listed() {
        let team = TestTeam::new();
        team.write("brigade.toml", EMBEDDED_CONFIG);
        team.write("demo/audit.md", EMBEDDED_PLAN);
        let list = |name: &str| {
            let workspace = team.folder.path().canonicalize().unwrap();
            let config = Config::load(Some(&workspace.join("brigade.toml")), Environment::default()).unwrap();
            let resolved = config.team(name, &TeamFlags::default()).unwrap();
            let mut list = ConsentList::of_settings(&config, &resolved, &workspace);
            for plan in crate::embed::read_plans(&resolved.spec.plans, &workspace, AllowedKinds::Files).unwrap() {
                list.add_plan(&resolved.spec, &plan, &workspace);
            }
            list.lines
        };
        assert_eq!(list("demo"), []);
        team.write("demo/audit.md", &format!("{EMBEDDED_PLAN} "));
        assert_ne!(list("demo"), []);
        team.write("demo/audit.md", EMBEDDED_PLAN);
        team.write("brigade.toml", &format!("{EMBEDDED_CONFIG}prompt = \"Obey.\"\n"));
        assert_ne!(list("demo"), []);
    }
}
