//! Resolves one team from flags, variables, the workspace's file, the user's file and defaults, in this order.
//! Every value keeps its source.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::diagnostics::{Problem, SourceFile};
use super::file::{ConfigFile, SpannedValue, TeamTable, value_of_text};
use super::patterns::matching_files;
use super::permissions::RULE_KEYS;
use super::settings::{self, Setting, ValueKind};
use super::{Config, Durability, TeamFlags};
use crate::domain::agent::permission::Permissions;
use crate::domain::team::name::{LEAD, Name};
use crate::domain::team::team_spec::{Prompts, TeamSpec};
use crate::domain::text::system_error;
use crate::platform::reading::{self, AllowedKinds};
use crate::platform::{has_same_owner, is_trusted_owner};
use crate::providers;
use crate::sandbox::environment::is_secret;
use crate::secrets::MASK;

/// The maximum size of a prompt file in bytes.
const PROMPT_BYTES_MAX: u64 = 256 * 1024;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Source {
    Default,
    Flag {
        flag: &'static str,
    },
    Environment {
        variable: String,
    },
    File {
        #[serde(serialize_with = "super::path_as_text")]
        path: PathBuf,
        line: usize,
    },
    /// The value is inherited from the lead.
    Lead {
        /// The source of the lead's value.
        source: Box<Source>,
    },
}

/// A value as `config show` prints it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResolvedValue {
    /// Its key: `lead.provider`, `members.alice.role`.
    pub key: String,
    /// The value; `null` if it is not set.
    pub value: serde_json::Value,
    pub source: Source,
}

/// A resolved team.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    pub spec: TeamSpec,
    pub durability: Durability,
    /// All values and their sources.
    pub values: Vec<ResolvedValue>,
}

impl Resolved {
    /// Returns the kinds of files allowed as the plan. A plan that a person named may be a pipe. A plan that a config file named
    /// must not be a link out of its folder.
    pub fn accepts_for_plan(&self) -> AllowedKinds<'_> {
        match self.values.iter().find(|value| value.key == "plan").map(|value| &value.source) {
            Some(Source::File { path, .. }) => AllowedKinds::within_folder_of(path),
            _ => AllowedKinds::FilesAndPipes,
        }
    }
}

/// A value, its source, and its position in a file for errors.
#[derive(Debug, Clone)]
pub(super) struct Sourced {
    pub(super) value: Json,
    pub(super) source: Source,
    pub(super) location: Option<(Arc<SourceFile>, Range<usize>)>,
}

impl Sourced {
    /// Returns the value that a setting has without a source, if it has one.
    pub(super) fn of_default(setting: &Setting) -> Option<Self> {
        let value = value_of_text(setting, setting.default?).ok()?;
        Some(Self { value, source: Source::Default, location: None })
    }

    /// Returns true if a person set the value.
    pub(super) fn is_set(&self) -> bool {
        self.source != Source::Default
    }

    /// Returns true for a text without words, which counts as no value.
    pub(super) fn is_blank(&self) -> bool {
        self.value.as_str().is_some_and(|text| text.trim().is_empty())
    }

    /// Returns the value of a setting that is a text; empty for others.
    pub(super) fn text(&self) -> &str {
        self.value.as_str().unwrap_or_default()
    }

    /// Returns the value in the type of its setting.
    pub(super) fn get<T: DeserializeOwned + Default>(&self) -> T {
        serde_json::from_value(self.value.clone()).unwrap_or_default()
    }

    /// Returns another value with the same source.
    pub(super) fn with(&self, value: impl Into<Json>) -> Self {
        Self { value: value.into(), ..self.clone() }
    }

    pub(super) fn problem(&self, message: impl Into<String>) -> Problem {
        match (&self.location, &self.source) {
            (Some((file, span)), _) => file.problem(span.clone(), message),
            (None, Source::Environment { variable }) => {
                Problem::without_file(format!("{variable}: {}", message.into()))
            }
            (None, Source::Flag { flag }) => Problem::without_file(format!("{flag}: {}", message.into())),
            (None, _) => Problem::without_file(message),
        }
    }
}

/// The tables of one file for the team.
pub(super) struct FileLayer<'a> {
    pub(super) file: &'a ConfigFile,
    pub(super) team: Option<&'a TeamTable>,
}

/// Resolves the team `name`.
///
/// # Errors
/// All problems of the team.
pub(super) fn resolve(config: &Config, name: &str, flags: &TeamFlags) -> Result<Resolved, Vec<Problem>> {
    let layers = config
        .files()
        .map(|file| {
            let team = file.teams.iter().find(|(team_name, _)| team_name == name).map(|(_, team)| team);
            FileLayer { file, team }
        })
        .collect();
    let mut resolver = Resolver { config, flags, layers, values: Vec::new(), problems: Vec::new() };
    let resolved = resolver.team(name);
    match resolved {
        Some(resolved) if resolver.problems.is_empty() => Ok(resolved),
        _ => Err(without_repetitions(resolver.problems)),
    }
}

/// Returns each problem once: several members can have the same value.
fn without_repetitions(problems: Vec<Problem>) -> Vec<Problem> {
    let mut once: Vec<Problem> = Vec::new();
    for problem in problems {
        if !once.contains(&problem) {
            once.push(problem);
        }
    }
    once
}

pub(super) struct Resolver<'a> {
    config: &'a Config,
    flags: &'a TeamFlags,
    pub(super) layers: Vec<FileLayer<'a>>,
    pub(super) values: Vec<ResolvedValue>,
    pub(super) problems: Vec<Problem>,
}

impl Resolver<'_> {
    fn team(&mut self, name: &str) -> Option<Resolved> {
        let team_name = Name::new(name).map_err(|error| self.team_problem(&error.to_string(), "")).ok();
        let goal = self.get("goal");
        let plans = self.value("plan").map(|plan| self.plans(&plan)).unwrap_or_default();
        let done_when = self.get("done_when");
        let (isolation, merge_into, setup) = self.isolation(name);
        let keep = self.kept_files(isolation);
        let memory = self.get("memory");
        let on_quota = self.get("on_quota");
        let review = self.value("review");
        let record = self.value("record").map(|folder| self.absolute(&folder, folder.text()));
        let ask = self.get("ask");
        let durability = self.get("durability");
        let lead = self.lead();
        let rules = RULE_KEYS.map(|key| self.find(key));
        let team_permissions = self.permissions("", rules, &Permissions::default());
        let lead_rules = RULE_KEYS.map(|key| self.find(&format!("lead.{key}")));
        let lead_permissions = self.permissions("lead.", lead_rules, &team_permissions);
        let members = self.members(name, &lead, &team_permissions);
        self.check_review(review.as_ref(), &members);
        let lead_fallback = self.fallbacks(&lead);
        let lead = lead.spec(Name::new(LEAD).ok()?, lead_permissions, lead_fallback);
        self.check_programs(isolation, &lead, &members);
        self.check_model_settings(&lead, &members);
        let limits = self.limits();
        let prices = self.prices();
        let budget = self.budget(&prices, &lead, &members);
        let spec = TeamSpec {
            name: team_name?,
            goal,
            plans,
            done_when,
            isolation,
            merge_into,
            keep,
            setup,
            memory,
            on_quota,
            review: review.map(|review| review.text().trim().to_owned()),
            ask,
            lead,
            members,
            limits,
            prompts: self.prompts(),
            budget,
            prices,
            notify: self.notify(),
            writable: self.writable(),
            record,
        };
        self.show_unset("", settings::TEAM_SETTINGS);
        self.show_unset("", &[settings::WRITABLE]);
        Some(Resolved { spec, durability, values: std::mem::take(&mut self.values) })
    }

    /// Adds a problem of the whole team, at its name. An empty hint is left out.
    pub(super) fn team_problem(&mut self, message: &str, hint: &str) {
        let location = self.layers.iter().find_map(|layer| Some((layer.file, layer.team?)));
        let problem = match location {
            Some((file, team)) => file.source.problem(team.span.clone(), message),
            None => Problem::without_file(message),
        };
        self.problems.push(if hint.is_empty() { problem } else { problem.hint(hint) });
    }

    /// Shows a value. The secrets in headers are masked.
    pub(super) fn show(&mut self, key: impl Into<String>, value: impl Into<Json>, source: &Source) {
        let (key, mut value) = (key.into(), value.into());
        if let (true, Json::Object(headers)) = (key.ends_with(".headers"), &mut value) {
            headers.iter_mut().filter(|(name, _)| is_secret(name)).for_each(|(_, value)| *value = MASK.into());
        }
        self.values.push(ResolvedValue { key, value, source: source.clone() });
    }

    /// Shows the settings that no source has, and that have no default.
    fn show_unset(&mut self, prefix: &str, settings: &[Setting]) {
        for setting in settings {
            let key = format!("{prefix}{}", setting.key);
            match setting.kind {
                ValueKind::Table(inner) => self.show_unset(&format!("{key}."), inner),
                ValueKind::Tables(_) | ValueKind::Named(_) => {}
                _ if self.values.iter().any(|value| value.key == key) => {}
                _ => self.show(key, Json::Null, &Source::Default),
            }
        }
    }

    /// Returns the value of `key` from the first source that has one. Adds a problem if a variable or flag has no value of its kind.
    pub(super) fn find(&mut self, key: &str) -> Option<Sourced> {
        let setting = settings::of_key(key)?;
        let flag = match key {
            "goal" => self.flags.goal.clone().map(|goal| ("--goal", goal)),
            "plan" => self.flags.plan.as_ref().map(|plan| ("--plan", plan.to_string_lossy().into_owned())),
            _ => None,
        };
        let variable = setting.variable.and_then(|variable| self.config.variable(variable));
        let typed = match (flag, variable) {
            (Some((flag, text)), _) => Some((Source::Flag { flag }, text)),
            (None, Some((name, text))) => Some((Source::Environment { variable: name.to_owned() }, text.to_owned())),
            (None, None) => None,
        };
        if let Some((source, text)) = typed {
            let sourced = Sourced { value: Json::Null, source, location: None };
            return match value_of_text(setting, &text) {
                Ok(value) => Some(Sourced { value, ..sourced }),
                Err(Problem { message, hint, .. }) => {
                    self.problems.push(Problem { hint, ..sourced.problem(message) });
                    None
                }
            };
        }
        self.layers.iter().find_map(|layer| {
            let values = [layer.team.map(|team| &team.values), Some(&layer.file.values)];
            values.into_iter().flatten().find_map(|values| Some(sourced(layer.file, values.get(key)?)))
        })
    }

    /// Returns a value of the team or its default, and shows it. A blank text counts as none.
    pub(super) fn value(&mut self, key: &str) -> Option<Sourced> {
        let found = self.find(key).or_else(|| Sourced::of_default(settings::of_key(key)?));
        let (value, source) =
            found.as_ref().map_or((Json::Null, Source::Default), |found| (found.value.clone(), found.source.clone()));
        self.show(key, value, &source);
        found.filter(|found| !found.is_blank())
    }

    /// Returns a value of the team in the type of its setting, as [`Self::value`].
    pub(super) fn get<T: DeserializeOwned + Default>(&mut self, key: &str) -> T {
        self.value(key).map(|value| value.get()).unwrap_or_default()
    }

    /// Returns a list of words of the team; empty without one. Shows it.
    pub(super) fn words(&mut self, key: &str) -> (Option<Sourced>, Vec<String>) {
        let found = self.find(key);
        let words: Vec<String> = found.as_ref().map(Sourced::get).unwrap_or_default();
        self.show(key, words.clone(), found.as_ref().map_or(&Source::Default, |found| &found.source));
        (found, words)
    }

    /// Returns the plan files that the setting names or matches.
    fn plans(&mut self, plan: &Sourced) -> Vec<PathBuf> {
        let folder = self.absolute(plan, "");
        // A path that is not UTF-8 has no text that could be a pattern.
        let named = self.flags.plan.as_ref().filter(|path| path.to_str().is_none());
        let files = named.map_or_else(|| matching_files(&folder, plan.text()), |path| Ok(vec![path.clone()]));
        let files = files.unwrap_or_else(|reason| {
            let problem = plan.problem(format!("cannot read the plan: {reason}"));
            self.problems
                .push(problem.hint("name a file in the config's folder or below, or a pattern such as plans/*.md"));
            Vec::new()
        });
        let paths: Vec<PathBuf> = files.iter().map(|file| folder.join(file)).collect();
        paths.iter().for_each(|path| self.check_plan(plan, path));
        paths
    }

    fn check_plan(&mut self, plan: &Sourced, path: &Path) {
        // A pipe that a person named can be read only once, by the command.
        let checked = match &plan.location {
            None => path.metadata().map(drop).map_err(|error| system_error::reason(&error)),
            Some((file, _)) => open_below(path, file).map(drop),
        };
        let Err(reason) = checked else { return };
        let shown_path = path.display();
        let problem = match path.try_exists() {
            Ok(false) => plan.problem(format!("cannot read the plan {shown_path}: no such file")),
            _ => plan
                .problem(format!("cannot read the plan {shown_path}: {reason}"))
                .hint(format!("move it below the config's folder, or pass --plan {shown_path}")),
        };
        self.problems.push(problem);
    }

    /// Returns the folders that commands may write. The workspace's file must not set them: a repository must not give write
    /// access to folders from which the person runs programs.
    fn writable(&mut self) -> Vec<PathBuf> {
        let setting = settings::WRITABLE;
        let Some(sourced) = self.find(setting.key) else { return Vec::new() };
        let of_workspace = self.config.workspace_file.as_ref().filter(|file| !self.config.is_user_file(file));
        if let (Some(file), Some((location, _))) = (of_workspace, &sourced.location)
            && Arc::ptr_eq(&file.source, location)
        {
            let problem = sourced.problem("`writable` is not allowed in a workspace's config");
            self.problems.push(problem.hint("set it in the user's config file, or set BRIGADE_WRITABLE"));
        }
        let folders: Vec<PathBuf> = sourced.get();
        for folder in folders.iter().filter(|folder| !folder.is_absolute() && !folder.starts_with("~")) {
            let text =
                format!("`writable` must have absolute paths or paths such as \"~/bin\", not `{}`", folder.display());
            self.problems.push(sourced.problem(text));
        }
        self.show(setting.key, sourced.value.clone(), &sourced.source);
        folders
    }

    /// Returns the values outside of teams whose keys start with `prefix`, in order of precedence.
    pub(super) fn outside_teams(&self, prefix: &str) -> Vec<(String, Sourced)> {
        let of_file = |layer: &FileLayer<'_>| -> Vec<(String, Sourced)> {
            let values = layer.file.values.iter().filter(|(key, _)| key.starts_with(prefix));
            values.map(|(key, value)| (key.clone(), sourced(layer.file, value))).collect()
        };
        self.layers.iter().flat_map(of_file).collect()
    }

    /// Resolves a path relative to the file that has it, or to the current folder.
    fn absolute(&self, sourced: &Sourced, path: &str) -> PathBuf {
        let base = sourced.location.as_ref().map_or(self.config.current_folder(), |(file, _)| file.folder());
        base.join(path)
    }

    /// The folder of the workspace's config, or the current one.
    pub(super) fn workspace_folder(&self) -> PathBuf {
        let file = self.config.workspace_file.as_ref().map(|file| file.source.folder());
        file.unwrap_or(self.config.current_folder()).to_owned()
    }

    /// Returns the model's name. If it is a path, returns the absolute path of the file, which must exist.
    pub(super) fn model(&mut self, provider: &str, model: &Sourced) -> Sourced {
        let is_path = providers::provider(provider).is_some_and(|known| known.model_is_path);
        if !is_path || model.text().is_empty() {
            return model.clone();
        }
        let path = self.absolute(model, model.text());
        if !path.exists() {
            self.problems.push(model.problem(format!("cannot read the script {}: no such file", path.display())));
        }
        model.with(path.to_string_lossy())
    }

    /// Returns the prompt: the text itself, or that of the file it names.
    pub(super) fn prompt(&mut self, prompt: &Sourced) -> String {
        let text = prompt.text().trim();
        if text.is_empty() || text.contains('\n') || text.len() > 1024 {
            return prompt.text().to_owned();
        }
        let path = self.absolute(prompt, text);
        let looks_like_a_path = text.starts_with("prompts/")
            || (!text.contains(char::is_whitespace) && (text.ends_with(".md") || text.ends_with(".txt")));
        if !path.is_file() && !looks_like_a_path {
            return prompt.text().to_owned();
        }
        let file = prompt.location.as_ref().map(|(file, _)| &**file);
        read_prompt(&path, file).unwrap_or_else(|reason| {
            self.problems.push(prompt.problem(format!("cannot read the prompt {}: {reason}", path.display())));
            String::new()
        })
    }

    /// Returns the built-in prompts, or those of the same name in `prompts/` next to a config file.
    fn prompts(&mut self) -> Prompts {
        let mut prompts = Prompts::default();
        for (file, text) in [
            ("lead.md", &mut prompts.lead),
            ("teammate.md", &mut prompts.teammate),
            ("external.md", &mut prompts.external),
            ("compact.md", &mut prompts.compact),
            ("cleanup.md", &mut prompts.cleanup),
        ] {
            let own = |layer: &FileLayer<'_>| {
                let source = Arc::clone(&layer.file.source);
                (source.folder().join("prompts").join(file), source)
            };
            let own = self.layers.iter().map(own).find(|(path, _)| path.symlink_metadata().is_ok());
            let Some((path, source)) = own else { continue };
            match read_prompt(&path, Some(&source)) {
                Ok(own) => *text = own,
                Err(reason) => {
                    let problem = format!("cannot read the prompt {}: {reason}", path.display());
                    self.problems.push(Problem::without_file(problem));
                }
            }
        }
        prompts
    }
}

pub(super) fn sourced(file: &ConfigFile, spanned: &SpannedValue) -> Sourced {
    Sourced {
        value: spanned.value.clone(),
        source: Source::File { path: file.source.path.clone(), line: file.source.line(spanned.span.start) },
        location: Some((Arc::clone(&file.source), spanned.span.clone())),
    }
}

pub(super) fn inherited(lead: &Sourced) -> Sourced {
    Sourced { source: Source::Lead { source: Box::new(lead.source.clone()) }, ..lead.clone() }
}

/// Opens a file that this config file names. It must be a regular file in the config's folder or below, owned by this user,
/// root, or the config's owner.
fn open_below(path: &Path, file: &SourceFile) -> Result<File, String> {
    let path = file.real_path_below(path)?;
    let opened = reading::open(&path, AllowedKinds::FilesHere).map_err(|error| system_error::reason(&error))?;
    let (metadata, config) = (opened.metadata(), file.path.metadata());
    let is_trusted = |metadata: &Metadata| {
        is_trusted_owner(metadata) || config.is_ok_and(|config| has_same_owner(&config, metadata))
    };
    if metadata.is_ok_and(|metadata| is_trusted(&metadata)) {
        Ok(opened)
    } else {
        Err("it belongs to another user".to_owned())
    }
}

/// Reads a prompt that `file` names. A prompt that a variable names may be anywhere.
fn read_prompt(path: &Path, file: Option<&SourceFile>) -> Result<String, String> {
    let opened = match file {
        Some(file) => open_below(path, file)?,
        None => reading::open(path, AllowedKinds::FilesAndPipes).map_err(|error| system_error::reason(&error))?,
    };
    let bytes = reading::read_all(opened, PROMPT_BYTES_MAX).map_err(|error| system_error::reason(&error))?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// Returns the value outside of teams for `key`, from the first file that has it.
pub(super) fn outside_teams<'a>(config: &'a Config, key: &str) -> Option<&'a Json> {
    config.files().find_map(|file| file.values.get(key)).map(|spanned| &spanned.value)
}
