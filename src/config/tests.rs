//! Tests of what a config comes to: precedence, sources, inheritance, checks.

use std::fs;

use super::*;

struct Place {
    folder: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Place {
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
        let surroundings = Surroundings {
            current_folder: "/nowhere".into(),
            user_file: Some(self.folder.path().join("user.toml")),
            variables: self.variables.clone(),
        };
        Config::load(Some(&self.folder.path().join(CONFIG_FILE)), surroundings)
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
    let shown = resolved.shown.iter().find(|shown| shown.key == key);
    let shown = shown.unwrap_or_else(|| panic!("{key} is not shown"));
    (shown.value.clone(), shown.source.clone())
}

#[test]
fn every_source_is_stronger_than_those_behind_it() {
    let workspace = "[teams.a]\ngoal = \"workspace\"\n[[teams.a.members]]\nname = \"bob\"\n[limits]\nturns_max = 3\n";
    let user = "[teams.a]\ngoal = \"user\"\ndone_when = \"true\"\nlimits = { turns_max = 2, respawns_max = 9 }\n";
    let place = Place::new(workspace).user(user);
    let resolved = place.team(&TeamFlags::default()).unwrap();
    assert_eq!(resolved.spec.goal.as_deref(), Some("workspace"));
    assert_eq!(resolved.spec.done_when.as_deref(), Some("true"));
    assert_eq!((resolved.spec.limits.turns_max, resolved.spec.limits.respawns_max), (3, 9));
    let file = place.folder.path().join(CONFIG_FILE);
    assert_eq!(source_of(&resolved, "goal"), ("workspace".into(), Source::File { path: file, line: 2 }));
    assert_eq!(source_of(&resolved, "limits.idle_timeout_ms"), (60_000.into(), Source::Default));

    let place = place.variable("BRIGADE_GOAL", "variable").variable("BRIGADE_TURNS_MAX", "7");
    let resolved = place.team(&TeamFlags::default()).unwrap();
    let variable = Source::Environment { variable: "BRIGADE_GOAL".into() };
    assert_eq!(source_of(&resolved, "goal"), ("variable".into(), variable));
    assert_eq!(resolved.spec.limits.turns_max, 7);

    let resolved = place.team(&TeamFlags { goal: Some("flag".into()), plan: None }).unwrap();
    assert_eq!(source_of(&resolved, "goal"), ("flag".into(), Source::Flag { flag: "--goal" }));
}

#[test]
fn a_team_without_a_lead_uses_the_runbook_and_members_take_it_over() {
    let resolved = Place::new("[teams.a]\nplan = \"plan.md\"\n[[teams.a.members]]\nname = \"bob\"\ncapabilities = [\"rust\"]\nprompt = \"prompts/coder.md\"\n")
        .team(&TeamFlags::default())
        .unwrap();
    let bob = &resolved.spec.members[0];
    assert_eq!((resolved.spec.lead.model.provider.as_str(), bob.model.provider.as_str()), ("runbook", "runbook"));
    assert_eq!(bob.can_do(), ["worker", "rust"]);
    assert_eq!(bob.prompt, "Write good code.\n");
    assert!(resolved.spec.plan.as_ref().unwrap().is_absolute());
    let source = Source::Lead { source: Box::new(Source::Default) };
    assert_eq!(source_of(&resolved, "members.bob.provider"), ("runbook".into(), source));
    assert_eq!(resolved.durability, Durability::Power);
}

#[test]
fn members_inherit_from_the_lead_unless_they_have_another_provider() {
    let text = "[teams.a]\nlead = { provider = \"scripted\", model = \"plan.md\", base_url = \"http://x\" }\n\
        members = [{ name = \"b\" }, { name = \"c\", provider = \"runbook\" }, { name = \"d\", base_url = \"http://y\" }]\n";
    let resolved = Place::new(text).team(&TeamFlags::default()).unwrap();
    let models: Vec<_> = resolved.spec.members.iter().map(|member| &member.model).collect();
    assert!(models[0].model.ends_with("/plan.md") && models[0].base_url.as_deref() == Some("http://x"));
    assert_eq!((models[1].model.as_str(), &models[1].base_url), ("", &None));
    assert_eq!((&models[2].model, models[2].base_url.as_deref()), (&models[0].model, Some("http://y")));
}

#[test]
fn a_file_in_prompts_stands_in_for_the_built_in_text() {
    let place = Place::new("[teams.a]\nmembers = [{ name = \"b\", prompt = \"Be kind.\" }]\n");
    fs::write(place.folder.path().join("prompts/cleanup.md"), "Tidy up.").unwrap();
    let spec = place.team(&TeamFlags::default()).unwrap().spec;
    assert_eq!(spec.prompts.cleanup, "Tidy up.");
    assert_eq!(spec.prompts.lead, crate::team::spec::Prompts::default().lead);
    assert_eq!(spec.members[0].prompt, "Be kind.");
}

#[cfg(unix)]
#[test]
fn prompt_outside_config_folder_is_refused() {
    use std::os::unix::fs::symlink;

    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().canonicalize().unwrap().join("secret.md");
    fs::write(&secret, "the secret").unwrap();
    let up = format!("prompts/../../{}/secret.md", outside.path().file_name().unwrap().to_string_lossy());
    for prompt in [secret.to_str().unwrap(), &up, "prompts/link.md", "prompts/folder/secret.md", "bare"] {
        let place = Place::new(&format!("[teams.a]\nmembers = [{{ name = \"b\", prompt = {prompt:?} }}]\n"));
        symlink(&secret, place.folder.path().join("prompts/link.md")).unwrap();
        symlink(&secret, place.folder.path().join("bare")).unwrap();
        symlink(outside.path(), place.folder.path().join("prompts/folder")).unwrap();
        let errors = place.errors();
        assert!(errors.contains("cannot read the prompt") && errors.contains(secret.to_str().unwrap()), "{errors}");
        assert!(!errors.contains("the secret"), "{errors}");
    }

    let place = Place::new("[teams.a]\nmembers = [{ name = \"b\" }]\n");
    symlink(&secret, place.folder.path().join("prompts/lead.md")).unwrap();
    assert!(place.errors().contains(secret.to_str().unwrap()), "the prompts beside the config too");

    let place = Place::new(&format!("[teams.a]\nplan = {secret:?}\nmembers = [{{ name = \"b\" }}]\n"));
    assert!(place.errors().contains("cannot read the plan"), "a plan is handed to models too");
    let flags = TeamFlags { goal: None, plan: Some(secret.clone()) };
    assert!(place.team(&flags).is_ok(), "the person named the plan");

    let place = Place::new("[teams.a]\nmembers = [{ name = \"b\", prompt = \"../prompt-of-nobody.md\" }]\n");
    assert!(place.errors().contains("cannot read the prompt"), "one that is not there");
}

#[cfg(unix)]
#[test]
fn prompt_beside_linked_user_file_is_read() {
    use std::os::unix::fs::symlink;

    let dotfiles = tempfile::tempdir().unwrap();
    fs::create_dir(dotfiles.path().join("prompts")).unwrap();
    fs::write(dotfiles.path().join("prompts/kind.md"), "Be kind.").unwrap();
    let user = "[teams.a]\nlead = { prompt = \"prompts/kind.md\" }\n";
    fs::write(dotfiles.path().join("config.toml"), user).unwrap();
    let place = Place::new("[teams.a]\nmembers = [{ name = \"b\" }]\n");
    symlink(dotfiles.path().join("config.toml"), place.folder.path().join("user.toml")).unwrap();
    symlink(dotfiles.path().join("prompts/kind.md"), place.folder.path().join("prompts/kind.md")).unwrap();
    assert_eq!(place.team(&TeamFlags::default()).unwrap().spec.lead.prompt, "Be kind.");
}

#[test]
fn what_is_wrong_with_a_team_is_said_all_at_once() {
    let text = "[teams.a]\nplan = \"no.md\"\nlead = { model = \"x\", prompt = \"prompts/no.md\" }\n\
        [teams.a.limits]\ncommand_timeout_ms = 5000\ncommand_timeout_max_ms = 100\n\
        [[teams.a.members]]\nname = \"bob\"\n[[teams.a.members]]\nname = \"Bob\"\n[[teams.a.members]]\nname = \"Lead\"\n\
        [[teams.a.members]]\nname = \"a b\"\n[[teams.a.members]]\nrole = \"x\"\n";
    let place = Place::new(text)
        .variable("BRIGADE_TURNS_MAX", "many")
        .variable("BRIGADE_DURABILITY", "some")
        .variable("BRIGADE_TRUNS_MAX", "1");
    insta::assert_snapshot!(place.errors());
    let unknown = place.load().unwrap().unknown_variables();
    assert_eq!(unknown, [("BRIGADE_TRUNS_MAX".to_owned(), Some("BRIGADE_TURNS_MAX"))]);
    insta::assert_snapshot!(Place::new("[teams.a]\ngoal = \"x\"\n").errors());
    insta::assert_snapshot!(Place::new("[teams.\"no good\"]\nmembers = [{ name = \"x\" }]\n").errors());
}

#[test]
fn the_team_that_is_meant_is_found_or_those_there_are_named() {
    let two = Place::new("[teams.one]\n[teams.two]\n").load().unwrap();
    assert_eq!(two.select(None).unwrap_err().to_string(), "which team? There are: one, two");
    let error = two.select(Some("tow")).unwrap_err();
    assert_eq!(error.to_string(), "there is no team `tow`; there are: one, two");
    assert_eq!(error.hint().as_deref(), Some("did you mean `two`?"));
    assert!(matches!(Place::new("").load().unwrap().select(None), Err(ConfigError::NoTeam(_))));
}

#[test]
fn user_team_without_reference_is_refused() {
    let user = "[teams.evil]\ndone_when = \"touch ran\"\nlead = { provider = \"anthropic\", base_url = \"http://x\" }\n\
        members = [{ name = \"eve\" }]\n[limits]\nturns_max = 2\n";
    let bob = "[[teams.a.members]]\nname = \"bob\"\n";
    let place = Place::new(bob).user(user);
    let resolved = place.team(&TeamFlags::default()).unwrap();
    assert_eq!((resolved.spec.done_when, resolved.spec.limits.turns_max), (None, 2), "plain defaults apply everywhere");
    assert_eq!(place.load().unwrap().team_names(), ["a"]);
    let file = place.folder.path().join("user.toml");
    let error = place.load().unwrap().select(Some("evil")).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot use the team `evil`: only {} names it", file.display()));
    let hint =
        format!("add [teams.evil] to the workspace's brigade.toml, or pass --config {} --workspace .", file.display());
    assert_eq!(error.hint(), Some(hint));
    assert!(matches!(
        place.load().unwrap().team("evil", &TeamFlags::default()),
        Err(ConfigError::OnlyInUserFile { .. })
    ));

    let surroundings = place.load().unwrap().surroundings;
    let nothing = Config::load(None, surroundings.clone()).unwrap();
    assert!(matches!(nothing.select(None), Err(ConfigError::OnlyInUserFile { .. })), "no workspace file, no team");
    let named = Config::load(Some(&file), surroundings).unwrap();
    assert_eq!(named.select(None).unwrap(), "evil", "the person named the file");

    let named = Place::new("[teams.evil]\n").user(user).team(&TeamFlags::default()).unwrap();
    assert_eq!(named.spec.done_when.as_deref(), Some("touch ran"), "the workspace's file refers to it");
}

#[test]
fn a_workspace_is_as_durable_as_its_strictest_team() {
    let members = "members = [{ name = \"x\" }]\n";
    let durability = |text: &str| Place::new(text).load().unwrap().durability();
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
fn config_that_is_missing_is_unreadable() {
    let place = Place::new("");
    let missing = Config::load(Some(&place.folder.path().join("a").join(CONFIG_FILE)), Surroundings::default());
    assert!(matches!(missing, Err(ConfigError::Unreadable { .. })));
}

#[test]
fn writable_folders_come_from_the_user_alone() {
    let team = "[teams.a]\nmembers = [{ name = \"x\" }]\n";
    let writable = |place: &Place| place.team(&TeamFlags::default()).unwrap().spec.writable;
    let by_file = Place::new(team).user("writable = [\"~/.cargo/bin\"]\n");
    assert_eq!(writable(&by_file), [PathBuf::from("~/.cargo/bin")]);
    assert_eq!(writable(&Place::new(team).variable("BRIGADE_WRITABLE", "/a:/b")), ["/a", "/b"].map(PathBuf::from));
    let by_workspace = Place::new(&format!("writable = [\"/a\"]\n{team}")).team(&TeamFlags::default());
    let error = by_workspace.unwrap_err().to_string();
    assert!(error.contains("not allowed in a workspace's config") && error.contains("BRIGADE_WRITABLE"), "{error}");
}
