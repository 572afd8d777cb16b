//! Resolves limits, isolation, budgets and prices from all sources.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::patterns::matching_files;
use super::resolve::{Resolver, Source, Sourced};
use super::settings::{self, LIMIT_SETTINGS};
use crate::domain::agent::path_pattern;
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::{WorktreeName, team_folder};
use crate::domain::team::budget::{Budget, EXTERNAL_INPUT_TOKENS_MAX, EXTERNAL_OUTPUT_TOKENS_MAX, Price, Prices};
use crate::domain::team::team_spec::{Isolation, Limits, MemberSpec, ModelSpec, NotifySpec, SetupSpec};
use crate::providers;

const PREFIX: &str = "prices.";
/// Files and folders that worktrees neither get nor give.
const NOT_COPIED: [&str; 7] = [".git", ".agent", ".tasks", ".team", ".worktrees", "agent_state.json", "brigade.toml"];

/// Checks the path of a file that worktrees get.
fn checked_copy(file: &str) -> Result<(), &'static str> {
    let path = Path::new(file);
    if file.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err("it must be a path within the workspace, such as \".env\"");
    }
    if NOT_COPIED.iter().any(|name| path.starts_with(name)) {
        return Err("it is a file of git or of Brigade");
    }
    Ok(())
}

/// Checks a pattern of files that are moved from worktrees into the workspace.
fn checked_keep(pattern: &str) -> Result<(), &'static str> {
    if pattern.trim().is_empty() || path_pattern::is_outside(pattern) {
        return Err("it must be a pattern of paths within the workspace, such as \"reports/**\"");
    }
    if NOT_COPIED.iter().any(|name| Path::new(pattern).starts_with(name)) {
        return Err("it is a file of git or of Brigade");
    }
    if pattern.trim() != pattern {
        return Err("it begins or ends with a space");
    }
    if pattern.starts_with('!') {
        return Err("a pattern cannot exclude files: without `!`, it names files that are moved");
    }
    if pattern.contains('[') && !pattern.contains(']') {
        return Err("its `[` has no `]`; only `*` and `**/` stand for other characters");
    }
    Ok(())
}

impl Resolver<'_> {
    /// Returns the isolation of a team, the branch to merge into and the set-up of worktrees.
    pub(super) fn isolation(&mut self, team: &str) -> (Isolation, Option<BranchName>, SetupSpec) {
        let worktree = self.value("isolation").filter(|isolation| isolation.text() == Isolation::Worktree.as_str());
        let is_worktree = worktree.is_some();
        let merge_into = self.value("merge_into");
        if !is_worktree && let Some(sourced) = &merge_into {
            self.needs_isolation("merge_into", sourced, "nothing is merged");
        }
        let folder = team_folder(team);
        if let Some((sourced, WorktreeName { task, team: other, .. })) = worktree.zip(WorktreeName::of_folder(&folder))
        {
            let problem = sourced.problem(format!(
                "team `{team}` cannot use isolation: its worktree {folder} would be that of task {task} of a team `{other}`"
            ));
            self.problems.push(problem.hint("rename the team, so that its name does not end with -task-NUMBER"));
        }
        let isolation = if is_worktree { Isolation::Worktree } else { Isolation::None };
        (isolation, merge_into.map(|sourced| BranchName::new(sourced.text().trim())), self.setup(is_worktree))
    }

    fn needs_isolation(&mut self, key: &str, sourced: &Sourced, why: &str) {
        let problem = sourced.problem(format!("`{key}` has no effect without isolation: {why}"));
        self.problems.push(problem.hint("add isolation = \"worktree\", or remove it"));
    }

    /// Returns the patterns of ignored files that completed tasks move into the workspace.
    pub(super) fn kept_files(&mut self, isolation: Isolation) -> Vec<String> {
        let (keep, patterns) = self.words("keep");
        let Some(keep) = keep.filter(|_| !patterns.is_empty()) else { return Vec::new() };
        if isolation == Isolation::None {
            self.needs_isolation("keep", &keep, "all files are in the workspace");
        }
        for pattern in &patterns {
            if let Err(reason) = checked_keep(pattern) {
                self.problems.push(keep.problem(format!("cannot keep `{}`: {reason}", pattern.escape_debug())));
            }
        }
        patterns
    }

    /// Returns the set-up of worktrees.
    fn setup(&mut self, is_worktree: bool) -> SetupSpec {
        let command: Option<String> = self.get("setup");
        let copy = self.find("copy");
        let files = copy.as_ref().map(|copy| self.copied_files(copy)).unwrap_or_default();
        self.show("copy", files.clone(), copy.as_ref().map_or(&Source::Default, |copy| &copy.source));
        let submodules: bool = self.get("submodules");
        let set = [("setup", command.is_some()), ("copy", !files.is_empty()), ("submodules", submodules)];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set && !is_worktree) {
            let Some(sourced) = self.find(key) else { continue };
            self.needs_isolation(key, &sourced, "it prepares worktrees");
        }
        SetupSpec { command, copy: files.into_iter().map(PathBuf::from).collect(), submodules }
    }

    /// Returns the files of the workspace that the setting names or matches, each once.
    fn copied_files(&mut self, copy: &Sourced) -> Vec<String> {
        let folder = self.workspace_folder();
        let mut files: Vec<String> = Vec::new();
        for text in copy.get::<Vec<String>>() {
            let matched = match checked_copy(&text) {
                Ok(()) => matching_files(&folder, &text),
                Err(reason) => Err(reason.to_owned()),
            };
            let named = matched.map(|paths| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect());
            let named: Vec<String> = named.unwrap_or_else(|reason| {
                self.problems.push(copy.problem(format!("cannot copy `{}`: {reason}", text.escape_debug())));
                Vec::new()
            });
            let is_new = |file: &String| !files.contains(file) && checked_copy(file).is_ok();
            let new: Vec<String> = named.into_iter().filter(is_new).collect();
            files.extend(new);
        }
        files
    }

    /// Returns the targets of notifications.
    pub(super) fn notify(&mut self) -> NotifySpec {
        let command = self.get("notify.command");
        let url = self.value("notify.url");
        let is_address = |url: &str| url.starts_with("http://") || url.starts_with("https://");
        if let Some(url) = url.as_ref().filter(|url| !is_address(url.text())) {
            let problem = url.problem("`notify.url` is no address: it must begin with http:// or https://");
            self.problems.push(problem);
        }
        NotifySpec { command, url: url.map(|url| url.get()) }
    }

    pub(super) fn limits(&mut self) -> Limits {
        let mut limits = serde_json::to_value(Limits::default()).unwrap_or_default();
        let mut command_timeout = None;
        for setting in LIMIT_SETTINGS {
            let key = format!("limits.{}", setting.key);
            let found = self.find(&key);
            if let Some(found) = &found {
                limits[setting.key] = found.value.clone();
            }
            let source = found.as_ref().map_or(&Source::Default, |found| &found.source);
            self.show(key, limits[setting.key].clone(), source);
            if setting.key.starts_with("command_timeout") {
                command_timeout = found.or(command_timeout);
            }
        }
        let limits: Limits = serde_json::from_value(limits).unwrap_or_default();
        if limits.tools.command_timeout > limits.tools.command_timeout_max
            && let Some(sourced) = command_timeout
        {
            let message = "`command_timeout_ms` must not be more than `command_timeout_max_ms`";
            self.problems.push(sourced.problem(message));
        }
        limits
    }

    /// Returns the prices of all models. Each key comes from the first file that has it.
    pub(super) fn prices(&mut self) -> Prices {
        let mut models: BTreeMap<String, BTreeMap<&'static str, Sourced>> = BTreeMap::new();
        for (key, sourced) in self.outside_teams(PREFIX) {
            // A model's name may have dots.
            let model_and_key = key.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('.'));
            let Some((model, price_key)) = model_and_key else { continue };
            let Some(setting) = settings::PRICE_SETTINGS.iter().find(|setting| setting.key == price_key) else {
                continue;
            };
            models.entry(model.to_owned()).or_default().entry(setting.key).or_insert(sourced);
        }
        let mut prices = Prices::new();
        for (model, price_values) in models {
            for (key, sourced) in &price_values {
                self.show(format!("{PREFIX}{model}.{key}"), sourced.value.clone(), &sourced.source);
            }
            let price = |key: &str| price_values.get(key)?.value.as_f64();
            let (Some(input), Some(output)) = (price("input_usd_per_mtok"), price("output_usd_per_mtok")) else {
                let message =
                    format!("the price of `{model}` needs both `input_usd_per_mtok` and `output_usd_per_mtok`");
                self.problems.extend(price_values.values().next().map(|sourced| sourced.problem(message)));
                continue;
            };
            let cache_read = price("cache_read_usd_per_mtok").unwrap_or(input);
            let cache_write = price("cache_write_usd_per_mtok").unwrap_or(input);
            prices.insert(model, Price { input, output, cache_read, cache_write });
        }
        prices
    }

    /// Returns the budget of the team, and checks those of its members. A limit in dollars needs a price for every model that costs money.
    pub(super) fn budget(&mut self, prices: &Prices, lead: &MemberSpec, members: &[MemberSpec]) -> Budget {
        let all: Vec<&MemberSpec> = std::iter::once(lead).chain(members).collect();
        let (tokens, usd) = (self.value("budget.tokens"), self.value("budget.usd"));
        self.check_tokens_of_programs(tokens.as_ref(), "budget.tokens", &all);
        self.check_prices(usd.as_ref(), prices, &all);
        let of_task = self.find("limits.task_tokens_max").filter(|sourced| sourced.value != 0);
        self.check_tokens_of_programs(of_task.as_ref(), "task_tokens_max", &all);
        for member in all {
            let [tokens, usd] = ["budget.tokens", "budget.usd"].map(|key| self.find_of_member(&member.name, key));
            if let Some(sourced) = tokens.as_ref().or(usd.as_ref()).filter(|_| !member.has_model()) {
                let (name, provider) = (&member.name, &member.model.provider);
                let text =
                    format!("`budget` has no effect: `{name}` has the provider `{provider}`, which has no model");
                self.problems.push(sourced.problem(text).hint("remove it, or set provider and model of this member"));
                continue;
            }
            self.check_tokens_of_programs(tokens.as_ref(), "budget.tokens", &[member]);
            self.check_prices(usd.as_ref(), prices, &[member]);
        }
        Budget { tokens: tokens.and_then(|sourced| sourced.get()), usd: usd.and_then(|sourced| sourced.get()) }
    }

    /// Adds a problem if there is a limit in dollars and one of these members has a model without a price.
    fn check_prices(&mut self, usd: Option<&Sourced>, prices: &Prices, members: &[&MemberSpec]) {
        let costs = |model: &ModelSpec| {
            providers::provider(&model.provider)
                .is_some_and(|provider| provider.costs_money_at(model.base_url.as_deref()))
        };
        let mut models = members.iter().flat_map(|member| std::iter::once(&member.model).chain(&member.model.fallback));
        let unknown = models.find(|model| costs(model) && !prices.contains_key(model.usage_name()));
        if let (Some(sourced), Some(model)) = (usd, unknown) {
            let model = model.usage_name();
            let text = format!("`budget.usd` needs the price of every model: `{model}` has none");
            self.problems.push(sourced.problem(text).hint(format!(
                "add [prices.{model:?}] with your provider's input_usd_per_mtok and output_usd_per_mtok (0 if it is free), or limit `tokens`"
            )));
        }
    }

    /// Adds a problem if this limit of tokens is less than the estimate for the first request of an external agent of these members.
    fn check_tokens_of_programs(&mut self, tokens: Option<&Sourced>, key: &str, members: &[&MemberSpec]) {
        let Some((sourced, tokens)) = tokens.and_then(|sourced| Some((sourced, sourced.value.as_u64()?))) else {
            return;
        };
        let needed = EXTERNAL_INPUT_TOKENS_MAX + EXTERNAL_OUTPUT_TOKENS_MAX;
        let member = members.iter().find(|member| member.model.agent.is_program());
        if let Some(MemberSpec { name, model, .. }) = member
            && tokens < needed
        {
            let provider = &model.provider;
            let text = format!("`{key}` is too small: `{provider}` needs {needed} for the first request of `{name}`");
            self.problems
                .push(sourced.problem(text).hint("Brigade estimates its requests, because it does not see them"));
        }
    }
}
