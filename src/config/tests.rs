//! Tests of resolved configs: precedence, sources, inheritance, checks.

use std::fs;

use super::*;
use serde_json::json;

use crate::domain::team::model_spec::{CostSource, Effort, ReasoningBack, SessionHeader, ThinkingForm, ToolCalls};
use crate::domain::team::team_spec::{Memory, ModelSpec, SetupSpec, TeamSpec};

struct ConfigFolder {
    folder: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl ConfigFolder {
    fn new(workspace: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("prompts")).unwrap();
        fs::write(folder.path().join(CONFIG_FILE), workspace).unwrap();
        fs::write(folder.path().join("prompts/coder.md"), "Write good code.\n").unwrap();
        fs::write(folder.path().join("plan.md"), "## A\n").unwrap();
        Self { folder, variables: BTreeMap::new() }
    }

    fn user(self, text: &str) -> Self {
        fs::write(self.folder.path().join("user.toml"), text).unwrap();
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    fn load(&self) -> Result<Config, ConfigError> {
        let environment = Environment {
            current_folder: "/nowhere".into(),
            user_file: Some(self.folder.path().join("user.toml")),
            variables: self.variables.clone(),
        };
        Config::load(Some(&self.folder.path().join(CONFIG_FILE)), environment)
    }

    fn team(&self, flags: &TeamFlags) -> Result<Resolved, ConfigError> {
        let config = self.load()?;
        config.team(&config.select(None)?, flags)
    }

    fn errors(&self) -> String {
        let root = self.folder.path().display().to_string();
        self.team(&TeamFlags::default()).unwrap_err().to_string().replace(&root, "WORKSPACE")
    }
}

fn source_of(resolved: &Resolved, key: &str) -> (serde_json::Value, Source) {
    let value = resolved.values.iter().find(|value| value.key == key);
    let value = value.unwrap_or_else(|| panic!("{key} is not shown"));
    (value.value.clone(), value.source.clone())
}

#[test]
fn config_sources_apply_in_precedence_order() {
    let workspace = "[teams.a]\ngoal = \"workspace\"\n[[teams.a.members]]\nname = \"bob\"\n[limits]\nturns_max = 3\n";
    let user = "[teams.a]\ngoal = \"user\"\ndone_when = \"true\"\nlimits = { turns_max = 2, respawns_max = 9 }\n";
    let workspace = ConfigFolder::new(workspace).user(user);
    let resolved = workspace.team(&TeamFlags::default()).unwrap();
    assert_eq!(resolved.spec.goal.as_deref(), Some("workspace"));
    assert_eq!(resolved.spec.done_when.as_deref(), Some("true"));
    assert_eq!((resolved.spec.limits.turns_max, resolved.spec.limits.respawns_max), (3, 9));
    let file = workspace.folder.path().join(CONFIG_FILE);
    assert_eq!(source_of(&resolved, "goal"), ("workspace".into(), Source::File { path: file, line: 2 }));
    assert_eq!(source_of(&resolved, "limits.idle_timeout_ms"), (60_000.into(), Source::Default));
    assert_eq!(source_of(&resolved, "limits.idle_shutdown_ms"), (0.into(), Source::Default));
    for unset in ["plan", "deny", "lead.pass_env", "budget.usd", "notify.url", "writable"] {
        assert_eq!(source_of(&resolved, unset), (serde_json::Value::Null, Source::Default), "{unset}");
    }

    let workspace = workspace.variable("BRIGADE_GOAL", "variable").variable("BRIGADE_TURNS_MAX", "7");
    let resolved = workspace.team(&TeamFlags::default()).unwrap();
    let variable = Source::Environment { variable: "BRIGADE_GOAL".into() };
    assert_eq!(source_of(&resolved, "goal"), ("variable".into(), variable));
    assert_eq!(resolved.spec.limits.turns_max, 7);

    let resolved = workspace.team(&TeamFlags { goal: Some("flag".into()), plan: None }).unwrap();
    assert_eq!(source_of(&resolved, "goal"), ("flag".into(), Source::Flag { flag: "--goal" }));
}

#[test]
fn number_of_any_source_is_shown_as_number() {
    let text = "[teams.a]\nbudget = { tokens = 5, usd = 0.50 }\n\
        lead = { provider = \"scripted\", model = \"plan.md\", context_window_tokens = 9_000 }\nmembers = [{ name = \"b\" }]\n";
    let workspace = ConfigFolder::new(text).variable("BRIGADE_BUDGET_TOKENS", "7_000");
    let resolved = workspace.team(&TeamFlags::default()).unwrap();
    let shown = |key| source_of(&resolved, key).0;
    assert_eq!((shown("budget.tokens"), shown("budget.usd")), (7_000.into(), 0.5.into()));
    let windows = (shown("lead.context_window_tokens"), shown("members.b.context_window_tokens"));
    assert_eq!(windows, (9_000.into(), 9_000.into()));
}

#[test]
fn members_and_lead_have_budgets_of_their_own() {
    let text = "[teams.a]\nbudget = { tokens = 5 }\nlimits = { task_tokens_max = 90_000 }\n\
        lead = { provider = \"scripted\", model = \"plan.md\", budget = { usd = 0.50 } }\n\
        members = [{ name = \"b\", budget = { tokens = 7_000, usd = 2 } }, { name = \"c\" }]\n";
    let resolved = ConfigFolder::new(text).team(&TeamFlags::default()).unwrap();
    let TeamSpec { budget, lead, members, limits, .. } = &resolved.spec;
    let budgets = [*budget, lead.budget, members[0].budget, members[1].budget].map(|one| (one.tokens, one.usd));
    assert_eq!(budgets, [(Some(5), None), (None, Some(0.5)), (Some(7_000), Some(2.0)), (None, None)]);
    assert_eq!(limits.task_tokens_max, 90_000);
    let shown = |key| source_of(&resolved, key).0;
    assert_eq!(shown("lead.budget.usd"), 0.5);
    assert_eq!((shown("members.b.budget.tokens"), shown("members.b.budget.usd")), (7_000.into(), 2.0.into()));
    assert!(resolved.values.iter().all(|value| !value.key.starts_with("members.c.budget")), "it is not inherited");
}

#[test]
fn unusable_budget_of_member_is_refused() {
    let refusal = |member: &str| {
        let text = format!("[teams.a]\nisolation = \"worktree\"\nmembers = [{{ name = \"b\", {member} }}]\n");
        ConfigFolder::new(&text).team(&TeamFlags::default()).unwrap_err().to_string()
    };
    let unpriced = refusal("provider = \"anthropic\", model = \"m-1\", budget = { usd = 2 }");
    assert!(unpriced.contains("`budget.usd` needs the price of every model: `m-1` has none"), "{unpriced}");
    assert!(unpriced.contains("add [prices.\"m-1\"] with your provider's input_usd_per_mtok"), "{unpriced}");
    let hosted = "provider = \"ollama\", model = \"m-2\", base_url = \"https://ollama.com/v1\", budget = { usd = 2 }";
    assert!(refusal(hosted).contains("`m-2` has none"), "a local server is free only on this machine");
    let runbook = refusal("budget = { tokens = 5 }");
    assert!(runbook.contains("`budget` has no effect: `b` has the provider `runbook`"), "{runbook}");
    let small = refusal("provider = \"claude-code\", budget = { tokens = 5 }");
    assert!(small.contains("`claude-code` needs 82000 for the first request of `b`"), "{small}");
    let unknown = refusal("budget = { token = 5 }");
    assert!(unknown.contains("unknown key `token` in [budget]") && unknown.contains("tokens"), "{unknown}");
}

#[test]
fn team_without_lead_defaults_to_runbook() {
    let resolved = ConfigFolder::new("[teams.a]\nplan = \"plan.md\"\n[[teams.a.members]]\nname = \"bob\"\ncapabilities = [\"rust\"]\nprompt = \"prompts/coder.md\"\n")
        .team(&TeamFlags::default())
        .unwrap();
    let bob = &resolved.spec.members[0];
    assert_eq!((resolved.spec.lead.model.provider.as_str(), bob.model.provider.as_str()), ("runbook", "runbook"));
    assert_eq!(bob.capabilities(), ["worker", "rust"]);
    assert_eq!(bob.prompt, "Write good code.\n");
    assert!(resolved.spec.plans[0].is_absolute());
    let source = Source::Lead { source: Box::new(Source::Default) };
    assert_eq!(source_of(&resolved, "members.bob.provider"), ("runbook".into(), source));
    assert_eq!(resolved.durability, Durability::Power);
}

#[test]
fn member_inherits_lead_model_if_same_provider() {
    let text = "[teams.a]\nlead = { provider = \"scripted\", model = \"plan.md\", base_url = \"http://x\" }\n\
        members = [{ name = \"b\" }, { name = \"c\", provider = \"runbook\" }, { name = \"d\", base_url = \"http://y\" }]\n";
    let resolved = ConfigFolder::new(text).team(&TeamFlags::default()).unwrap();
    let models: Vec<_> = resolved.spec.members.iter().map(|member| &member.model).collect();
    assert!(models[0].model.ends_with("/plan.md") && models[0].base_url.as_deref() == Some("http://x"));
    assert_eq!((models[1].model.as_str(), &models[1].base_url), ("", &None));
    assert_eq!((&models[2].model, models[2].base_url.as_deref()), (&models[0].model, Some("http://y")));
}

#[test]
fn prompts_folder_file_replaces_built_in_prompt() {
    let workspace = ConfigFolder::new("[teams.a]\nmembers = [{ name = \"b\", prompt = \"Be kind.\" }]\n");
    fs::write(workspace.folder.path().join("prompts/cleanup.md"), "Tidy up.").unwrap();
    let spec = workspace.team(&TeamFlags::default()).unwrap().spec;
    assert_eq!(spec.prompts.cleanup, "Tidy up.");
    assert_eq!(spec.prompts.lead, crate::domain::team::team_spec::Prompts::default().lead);
    assert_eq!(spec.members[0].prompt, "Be kind.");
}

#[test]
fn prompt_outside_config_folder_is_refused() {
    use std::os::unix::fs::symlink;

    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().canonicalize().unwrap().join("secret.md");
    fs::write(&secret, "the secret").unwrap();
    let up = format!("prompts/../../{}/secret.md", outside.path().file_name().unwrap().to_string_lossy());
    for prompt in [secret.to_str().unwrap(), &up, "prompts/link.md", "prompts/folder/secret.md", "bare"] {
        let workspace = ConfigFolder::new(&format!("[teams.a]\nmembers = [{{ name = \"b\", prompt = {prompt:?} }}]\n"));
        symlink(&secret, workspace.folder.path().join("prompts/link.md")).unwrap();
        symlink(&secret, workspace.folder.path().join("bare")).unwrap();
        symlink(outside.path(), workspace.folder.path().join("prompts/folder")).unwrap();
        let errors = workspace.errors();
        assert!(errors.contains("cannot read the prompt") && errors.contains(secret.to_str().unwrap()), "{errors}");
        assert!(!errors.contains("the secret"), "{errors}");
    }

    let workspace = ConfigFolder::new("[teams.a]\nmembers = [{ name = \"b\" }]\n");
    symlink(&secret, workspace.folder.path().join("prompts/lead.md")).unwrap();
    assert!(workspace.errors().contains(secret.to_str().unwrap()), "prompts in prompts/ too");

    let workspace = ConfigFolder::new(&format!("[teams.a]\nplan = {secret:?}\nmembers = [{{ name = \"b\" }}]\n"));
    assert!(workspace.errors().contains("cannot read the plan"), "models read the plan too");
    let flags = TeamFlags { goal: None, plan: Some(secret.clone()) };
    assert!(workspace.team(&flags).is_ok(), "the person named the plan");

    let workspace = ConfigFolder::new("[teams.a]\nmembers = [{ name = \"b\", prompt = \"../missing-prompt.md\" }]\n");
    assert!(workspace.errors().contains("cannot read the prompt"), "a missing file");
}

#[test]
fn prompt_next_to_linked_user_config_is_read() {
    use std::os::unix::fs::symlink;

    let dotfiles = tempfile::tempdir().unwrap();
    fs::create_dir(dotfiles.path().join("prompts")).unwrap();
    fs::write(dotfiles.path().join("prompts/kind.md"), "Be kind.").unwrap();
    let user = "[teams.a]\nlead = { prompt = \"prompts/kind.md\" }\n";
    fs::write(dotfiles.path().join("config.toml"), user).unwrap();
    let workspace = ConfigFolder::new("[teams.a]\nmembers = [{ name = \"b\" }]\n");
    symlink(dotfiles.path().join("config.toml"), workspace.folder.path().join("user.toml")).unwrap();
    symlink(dotfiles.path().join("prompts/kind.md"), workspace.folder.path().join("prompts/kind.md")).unwrap();
    assert_eq!(workspace.team(&TeamFlags::default()).unwrap().spec.lead.prompt, "Be kind.");
}

#[test]
fn team_config_errors_are_reported_together() {
    let text = "[teams.a]\nplan = \"no.md\"\nlead = { model = \"x\", prompt = \"prompts/no.md\" }\n\
        [teams.a.limits]\ncommand_timeout_ms = 5000\ncommand_timeout_max_ms = 100\n\
        [[teams.a.members]]\nname = \"bob\"\n[[teams.a.members]]\nname = \"Bob\"\n[[teams.a.members]]\nname = \"Lead\"\n\
        [[teams.a.members]]\nname = \"a b\"\n[[teams.a.members]]\nrole = \"x\"\n";
    let workspace = ConfigFolder::new(text)
        .variable("BRIGADE_TURNS_MAX", "many")
        .variable("BRIGADE_DURABILITY", "some")
        .variable("BRIGADE_TRUNS_MAX", "1");
    insta::assert_snapshot!(workspace.errors());
    let error = workspace.load().unwrap().check_variables().unwrap_err();
    assert_eq!(error.to_string(), "unknown variable `BRIGADE_TRUNS_MAX`");
    assert!(error.hint().unwrap().contains("did you mean `BRIGADE_TURNS_MAX`?"));
    assert!(workspace.variable("BRIGADE_TRUNS_MAX", "1").load().is_ok(), "commands that launch nothing work");
    let foreign = ConfigFolder::new("").variable("BRIGADE_FOREIGN", "1").load().unwrap();
    assert!(foreign.check_variables().is_ok(), "it may belong to another program");
    insta::assert_snapshot!(ConfigFolder::new("[teams.a]\ngoal = \"x\"\n").errors());
    insta::assert_snapshot!(ConfigFolder::new("[teams.\"no good\"]\nmembers = [{ name = \"x\" }]\n").errors());
}

#[test]
fn unknown_team_error_lists_teams() {
    let two = ConfigFolder::new("[teams.one]\n[teams.two]\n").load().unwrap();
    assert_eq!(two.select(None).unwrap_err().to_string(), "cannot choose a team: there are one, two");
    let error = two.select(Some("tow")).unwrap_err();
    assert_eq!(error.to_string(), "cannot find the team `tow`: the config has one, two");
    assert_eq!(error.hint().as_deref(), Some("did you mean `two`?"));
    assert!(matches!(ConfigFolder::new("").load().unwrap().select(None), Err(ConfigError::NoTeam(_))));
}

#[test]
fn user_team_without_reference_is_refused() {
    let user = "[teams.evil]\ndone_when = \"touch ran\"\nlead = { provider = \"anthropic\", model = \"m\", base_url = \"http://x\" }\n\
        members = [{ name = \"eve\" }]\n[limits]\nturns_max = 2\n";
    let bob = "[[teams.a.members]]\nname = \"bob\"\n";
    let workspace = ConfigFolder::new(bob).user(user);
    let resolved = workspace.team(&TeamFlags::default()).unwrap();
    assert_eq!((resolved.spec.done_when, resolved.spec.limits.turns_max), (None, 2), "plain defaults apply everywhere");
    assert_eq!(workspace.load().unwrap().team_names(), ["a"]);
    let file = workspace.folder.path().join("user.toml");
    let error = workspace.load().unwrap().select(Some("evil")).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot use the team `evil`: only {} has it", file.display()));
    let hint =
        format!("add [teams.evil] to the workspace's brigade.toml, or pass --config {} --workspace .", file.display());
    assert_eq!(error.hint(), Some(hint));
    assert!(matches!(
        workspace.load().unwrap().team("evil", &TeamFlags::default()),
        Err(ConfigError::OnlyInUserFile { .. })
    ));

    let environment = workspace.load().unwrap().environment;
    let nothing = Config::load(None, environment.clone()).unwrap();
    assert!(matches!(nothing.select(None), Err(ConfigError::OnlyInUserFile { .. })), "no workspace file, no team");
    let named = Config::load(Some(&file), environment).unwrap();
    assert_eq!(named.select(None).unwrap(), "evil", "the person named the file");

    let named = ConfigFolder::new("[teams.evil]\n").user(user).team(&TeamFlags::default()).unwrap();
    assert_eq!(named.spec.done_when.as_deref(), Some("touch ran"), "the workspace's file refers to it");
}

#[test]
fn workspace_durability_is_strictest_of_teams() {
    let members = "members = [{ name = \"x\" }]\n";
    let durability = |text: &str| ConfigFolder::new(text).load().unwrap().durability();
    assert_eq!(durability("durability = \"process\"\n"), Durability::Process);
    assert_eq!(durability(&format!("durability = \"process\"\n[teams.a]\n{members}")), Durability::Process);
    assert_eq!(
        durability(&format!(
            "durability = \"process\"\n[teams.a]\n{members}[teams.b]\ndurability = \"power\"\n{members}"
        )),
        Durability::Power
    );
    assert_eq!(durability("# nothing\n"), Durability::Power);
}

#[test]
fn missing_config_file_is_unreadable_error() {
    let workspace = ConfigFolder::new("");
    let missing = Config::load(Some(&workspace.folder.path().join("a").join(CONFIG_FILE)), Environment::default());
    assert!(matches!(missing, Err(ConfigError::Unreadable { .. })));
}

#[test]
fn writable_setting_in_workspace_config_is_refused() {
    let team = "[teams.a]\nmembers = [{ name = \"x\" }]\n";
    let writable = |workspace: &ConfigFolder| workspace.team(&TeamFlags::default()).unwrap().spec.writable;
    let from_user_file = ConfigFolder::new(team).user("writable = [\"~/.cargo/bin\"]\n");
    assert_eq!(writable(&from_user_file), [PathBuf::from("~/.cargo/bin")]);
    assert_eq!(
        writable(&ConfigFolder::new(team).variable("BRIGADE_WRITABLE", "/a:/b")),
        ["/a", "/b"].map(PathBuf::from)
    );
    let from_workspace = ConfigFolder::new(&format!("writable = [\"/a\"]\n{team}")).team(&TeamFlags::default());
    let error = from_workspace.unwrap_err().to_string();
    assert!(error.contains("not allowed in a workspace's config") && error.contains("BRIGADE_WRITABLE"), "{error}");
}

#[test]
fn isolated_team_named_as_task_folder_is_refused() {
    let team = |name: &str, isolation: &str| {
        ConfigFolder::new(&format!(
            "[teams.{name}]\nisolation = \"{isolation}\"\ngoal = \"x\"\n[[teams.{name}.members]]\nname = \"bob\"\n"
        ))
    };
    let errors = team("x-task-3", "worktree").errors();
    assert!(errors.contains(".worktrees/x-task-3 would be that of task #3 of a team `x`"), "{errors}");
    for (name, isolation) in [("x-task-3", "none"), ("x-task", "worktree"), ("x-merge", "worktree")] {
        assert!(team(name, isolation).team(&TeamFlags::default()).is_ok(), "{name}");
    }
}

#[test]
fn external_agent_without_isolation_is_refused() {
    let program = "provider = \"claude-code\"";
    let team = |isolation: &str, lead: &str, member: &str| {
        ConfigFolder::new(&format!(
            "[teams.a]\n{isolation}\n[teams.a.lead]\n{lead}\n[[teams.a.members]]\nname = \"bob\"\n{member}\n"
        ))
    };
    for (lead, member, name) in [("", program, "bob"), (program, "provider = \"runbook\"", "lead")] {
        let errors = team("", lead, member).errors();
        let problem = format!("`{name}` has the provider `claude-code`, which needs a worktree for each task");
        assert!(errors.contains(&problem) && errors.contains("add isolation = \"worktree\""), "{errors}");
        assert!(team("isolation = \"none\"", lead, member).errors().contains(&problem));
        assert!(team("isolation = \"worktree\"", lead, member).team(&TeamFlags::default()).is_ok());
    }
}

#[test]
fn team_flag_is_read_from_file_and_variable() {
    let workspace =
        |text: &str| ConfigFolder::new(&format!("[teams.a]\n{text}\n[[teams.a.members]]\nname = \"bob\"\n{MODEL}"));
    let ask = |workspace: &ConfigFolder| {
        let resolved = workspace.team(&TeamFlags::default()).unwrap();
        assert_eq!(source_of(&resolved, "ask").0, resolved.spec.ask);
        resolved.spec.ask
    };
    assert!(!ask(&workspace("")) && ask(&workspace("ask = true")));
    assert!(!ask(&workspace("ask = true").variable("BRIGADE_ASK", "false")));
    let errors = workspace("").variable("BRIGADE_ASK", "yes").errors();
    assert!(errors.contains("BRIGADE_ASK: `ask` must be true or false, not `yes`"), "{errors}");
    let errors = workspace("ask = \"yes\"").errors();
    assert!(errors.contains("`ask` must be true or false"), "{errors}");
}

/// The lines that give a member a model.
const MODEL: &str = "provider = \"anthropic\"\nmodel = \"m\"\n";

#[test]
fn settings_of_models_need_one() {
    let team = |text: &str| {
        ConfigFolder::new(&format!("[teams.a]\nisolation = \"worktree\"\n{text}[[teams.a.members]]\nname = \"bob\"\n"))
    };
    let claude = "[teams.a.lead]\nprovider = \"claude-code\"\nmodel = \"m\"\n";
    for (key, value, fits_claude) in [("ask", "true", false), ("memory", "\"task\"", true)] {
        let set = format!("{key} = {value}\n");
        let problem = format!("`{key}` has no effect: no agent of the team has a model for it");
        assert!(team(&set).errors().contains(&problem));
        assert_eq!(team(&format!("{set}{claude}")).team(&TeamFlags::default()).is_ok(), fits_claude, "{key}");
        assert!(team(&format!("{set}[teams.a.lead]\n{MODEL}")).team(&TeamFlags::default()).is_ok(), "{key}");
    }
    assert!(team("ask = false\nmemory = \"session\"\n").team(&TeamFlags::default()).is_ok());
}

#[test]
fn keep_pattern_that_cannot_match_is_refused() {
    let errors = |keep: &str| {
        let text = format!("[teams.a]\nisolation = \"worktree\"\nkeep = {keep}\n[[teams.a.members]]\nname = \"bob\"\n");
        let folder = ConfigFolder::new(&text);
        if folder.team(&TeamFlags::default()).is_ok() { String::new() } else { folder.errors() }
    };
    for (keep, reason) in [
        ("[\" reports/**\"]", "it begins or ends with a space"),
        ("[\"!x\"]", "a pattern cannot exclude files"),
        ("[\"[abc\"]", "its `[` has no `]`"),
    ] {
        assert!(errors(keep).contains(reason), "{keep}: {}", errors(keep));
    }
    assert_eq!(errors("[\"app/[slug]/**\", \"a b\"]"), "");
}

#[test]
fn setup_of_worktrees_needs_isolation() {
    let team = |text: &str| ConfigFolder::new(&format!("[teams.a]\n{text}\n[[teams.a.members]]\nname = \"bob\"\n"));
    let isolated = |text: &str| team(&format!("isolation = \"worktree\"\n{text}"));
    let all = ["setup = \"npm ci\"", "copy = [\".env\", \"config/key\"]", "submodules = true"];
    let resolved = isolated(&all.join("\n")).team(&TeamFlags::default()).unwrap();
    let copy = vec![PathBuf::from(".env"), PathBuf::from("config/key")];
    let expected = SetupSpec { command: Some("npm ci".to_owned()), copy, submodules: true };
    assert_eq!(resolved.spec.setup, expected);
    assert_eq!(source_of(&resolved, "copy").0, serde_json::json!([".env", "config/key"]));
    for line in all {
        let key = line.split(' ').next().unwrap();
        let errors = team(line).errors();
        assert!(errors.contains(&format!("`{key}` has no effect without isolation")), "{errors}");
    }
    let errors = team("").variable("BRIGADE_SETUP", "npm ci").errors();
    assert!(errors.contains("BRIGADE_SETUP: `setup` has no effect without isolation"), "{errors}");
    assert!(team("setup = \"\"\ncopy = []\nsubmodules = false").team(&TeamFlags::default()).is_ok());
    for path in ["/etc/passwd", "../x", "a/../../x", "", ".team/config.json", "brigade.toml"] {
        let errors = isolated(&format!("copy = [\"{path}\"]")).errors();
        assert!(errors.contains(&format!("cannot copy `{path}`: it ")), "{errors}");
    }
}

#[test]
fn memory_of_member_overrides_memory_of_team() {
    let team = |memory: &str| {
        ConfigFolder::new(&format!(
            "[teams.a]\nmemory = \"{memory}\"\n[[teams.a.members]]\nname = \"bob\"\nmemory = \"session\"\n\
             [[teams.a.members]]\nname = \"eve\"\n{MODEL}"
        ))
    };
    let spec = team("task").team(&TeamFlags::default()).unwrap().spec;
    let of_members: Vec<_> = spec.members.iter().map(|member| member.memory).collect();
    assert_eq!((spec.memory, of_members), (Memory::Task, vec![Some(Memory::Session), None]));
    let from_variable = team("session").variable("BRIGADE_MEMORY", "task").team(&TeamFlags::default()).unwrap();
    assert_eq!(from_variable.spec.memory, Memory::Task);
    assert!(team("forever").errors().contains("`memory` must be one of session, task"));
}

/// A config with models under names and a member that names one.
const NAMED_MODELS: &str = r#"
    [models.big]
    provider = "openai"
    model = "gpt-6-luna"
    effort = "high"
    headers = { X-Team = "a", Authorization = "Bearer sk-config-4711-secret" }
    compat = { max_tokens_field = "max_tokens", stream_options = false, thinking = "reasoning", reasoning_back = "none", cache = true, session_header = "x-session-id", cost = "prices", include = false }
    extra_body = { top_p = 0.5, reasoning = { max = 3 } }
    key_command = "print-key"
    output_tokens_max = 4000
    fallback = ["spare"]
    [models.spare]
    provider = "ollama"
    tool_calls = "json"
    [teams.a.lead]
    model = "big"
    temperature = 0.2
    [[teams.a.members]]
    name = "heir"
    [[teams.a.members]]
    name = "own"
    model = "gpt-6-mini"
    [[teams.a.members]]
    name = "elsewhere"
    model = "big"
    base_url = "http://127.0.0.1:9"
    effort = "low"
    fallback = []
"#;

#[test]
fn named_model_gives_its_settings_to_members() {
    let folder = ConfigFolder::new(NAMED_MODELS);
    let resolved = folder.team(&TeamFlags::default()).unwrap();
    let lead = &resolved.spec.lead.model;
    assert_eq!((lead.provider.as_str(), lead.model.as_str()), ("openai", "gpt-6-luna"));
    assert_eq!((lead.effort, lead.temperature), (Some(Effort::High), Some(0.2)));
    assert_eq!((lead.output_tokens_max, lead.key_command.as_deref()), (Some(4000), Some("print-key")));
    assert_eq!(lead.headers.get("x-team").map(String::as_str), Some("a"));
    assert_eq!(serde_json::Value::from(lead.extra_body.clone()), json!({ "top_p": 0.5, "reasoning": { "max": 3 } }));
    let compat = lead.compat;
    assert_eq!((compat.stream_options, compat.thinking), (Some(false), Some(ThinkingForm::Reasoning)));
    let (header, back) = (compat.session_header, compat.reasoning_back);
    assert_eq!((header, back), (Some(SessionHeader::XSessionId), Some(ReasoningBack::None)));
    assert_eq!((compat.cost, compat.cache, compat.include), (Some(CostSource::Prices), Some(true), Some(false)));
    assert_eq!(lead.fallback, [ModelSpec { tool_calls: ToolCalls::Json, ..ModelSpec::new("ollama", "spare") }]);
    let [heir, own, elsewhere] = [0, 1, 2].map(|index| &resolved.spec.members[index].model);
    assert_eq!(heir, lead, "a member without a model has the lead's");
    assert_eq!((own.effort, own.temperature, own.output_tokens_max), (None, None, None), "they are of another model");
    assert_eq!((own.fallback.len(), &own.headers, &own.key_command), (0, &lead.headers, &lead.key_command));
    assert_eq!((elsewhere.effort, elsewhere.fallback.len()), (Some(Effort::Low), 0));
    let has_key = elsewhere.key_command.is_some() || !elsewhere.headers.is_empty();
    assert!(!has_key, "another address gets no key of the definition");
}

#[test]
fn shown_headers_have_no_secrets() {
    let folder = ConfigFolder::new(NAMED_MODELS);
    let resolved = folder.team(&TeamFlags::default()).unwrap();
    let (shown, _) = source_of(&resolved, "lead.headers");
    assert_eq!(shown, json!({ "X-Team": "a", "Authorization": "[key]" }));
    assert!(!serde_json::to_string(&resolved.values).unwrap().contains("4711"));
    assert_eq!(crate::secrets::masked("Bearer sk-config-4711-secret".into()), "[key]");
    let broken = NAMED_MODELS.replace("sk-config-4711-secret", "sk-4711\\nx-other: 1");
    let errors = ConfigFolder::new(&broken).errors();
    assert!(
        errors.contains("header `Authorization` has characters in its value") && !errors.contains("4711"),
        "{errors}"
    );
}

/// The agreement of a person covers the scripts of members, not those of fallbacks.
#[test]
fn fallback_without_server_is_refused() {
    for provider in ["scripted", "recorded", "runbook", "claude-code"] {
        let config = NAMED_MODELS.replace(
            "provider = \"ollama\"\n    tool_calls = \"json\"",
            &format!("provider = \"{provider}\"\n    model = \".\""),
        );
        let errors = ConfigFolder::new(&config).errors();
        assert!(errors.contains(&format!("cannot use `spare`: `{provider}` is no model")), "{errors}");
    }
}

/// A definition of the user must not give its key to an address of the workspace.
#[test]
fn definition_of_model_comes_from_one_file() {
    let workspace =
        "[models.big]\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:9\"\n[teams.a.lead]\nmodel = \"big\"\n";
    let user = "[models.big]\nprovider = \"openai\"\nkey_command = \"mine\"\n[models.mine]\nprovider = \"groq\"\n";
    let folder = ConfigFolder::new(workspace).user(user);
    let lead = folder.team(&TeamFlags::default()).unwrap().spec.lead.model;
    assert_eq!((lead.key_command, lead.base_url.as_deref()), (None, Some("http://127.0.0.1:9")));
    let folder = ConfigFolder::new(&workspace.replace("\"big\"", "\"mine\"")).user(user);
    assert_eq!(folder.team(&TeamFlags::default()).unwrap().spec.lead.model.provider, "groq");
}

/// The variables of the user's command must not go to a command of the workspace.
#[test]
fn variables_stay_with_their_key_command() {
    let user = "[models.gpt]\nprovider = \"openai\"\nkey_command = \"mine\"\npass_env = [\"VAULT_TOKEN\"]\n";
    let workspace = "[teams.a.lead]\nmodel = \"gpt\"\n\
        [[teams.a.members]]\nname = \"heir\"\n\
        [[teams.a.members]]\nname = \"same\"\nmodel = \"gpt\"\n\
        [[teams.a.members]]\nname = \"command\"\nmodel = \"gpt\"\nkey_command = \"other\"\n\
        [[teams.a.members]]\nname = \"address\"\nmodel = \"gpt\"\nbase_url = \"http://127.0.0.1:9\"\n\
        [[teams.a.members]]\nname = \"inherits\"\nkey_command = \"other\"\n";
    let resolved = ConfigFolder::new(workspace).user(user).team(&TeamFlags::default()).unwrap();
    let variables = resolved.spec.members.iter().map(|member| (member.name.as_str(), member.model.pass_env.len()));
    let expected = [("heir", 1), ("same", 1), ("command", 0), ("address", 0), ("inherits", 0)];
    assert_eq!(variables.collect::<Vec<_>>(), expected);
}

#[test]
fn problems_of_model_settings_name_the_remedy() {
    let text = "[models.fast]\nprovider = \"openai\"\nfallback = [\"fsat\"]\n\
        headers = { \"Content-Type\" = \"x\" }\nextra_body = { max_tokens = 3 }\n\
        [models.cc]\nprovider = \"claude-code\"\n\
        [teams.a]\nisolation = \"worktree\"\n[teams.a.lead]\nprovider = \"runbook\"\n\
        [[teams.a.members]]\nname = \"m1\"\nmodel = \"fast\"\n\
        [[teams.a.members]]\nname = \"m2\"\nmodel = \"fats\"\n\
        [[teams.a.members]]\nname = \"m3\"\nmodel = \"fast\"\nprovider = \"groq\"\n\
        [[teams.a.members]]\nname = \"m4\"\nprovider = \"claude-code\"\neffort = \"low\"\n\
        [[teams.a.members]]\nname = \"m5\"\nmodel = \"fast\"\nfallback = [\"cc\", \"fast\"]\n\
        [[teams.a.members]]\nname = \"m6\"\nprovider = \"openai\"\nmodel = \"m\"\ntool_calls = \"json\"\n\
        [[teams.a.members]]\nname = \"m7\"\nprovider = \"ollama\"\nmodel = \"m\"\napi = \"messages\"\ntool_calls = \"json\"\n";
    insta::assert_snapshot!(ConfigFolder::new(text).errors());
    let parsed = "[models.x]\nmodel = \"y\"\n[models.z]\nprovider = \"openai\"\ncompat = { max_token = 3, thinking = \"much\" }\n\
        headers = { a = 1 }\nextra_body = 3\ntemperature = 3\neffort = \"hihg\"\n";
    insta::assert_snapshot!(ConfigFolder::new(parsed).errors());
}
