//! Resolves the lead, and the members of a team from the first file that lists them. Members inherit missing values from the lead.

use std::collections::{BTreeMap, HashMap};

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::file::{ConfigFile, MemberTable};
use super::permissions::RULE_KEYS;
use super::resolve::{Resolver, Source, Sourced, inherited, sourced};
use super::settings::{LEAD_SETTINGS, MEMBER_SETTINGS, MODEL_SETTINGS, ROLE_DEFAULT, ValueKind};
use crate::domain::agent::permission::Permissions;
use crate::domain::team::budget::Budget;
use crate::domain::team::name::{HUMAN, LEAD, Name, RESERVED};
use crate::domain::team::team_spec::{AgentKind, Isolation, MEMBERS_MAX, MemberSpec, ModelSpec};
use crate::providers;

/// The keys of a member's budget.
const BUDGET_KEYS: [&str; 2] = ["budget.tokens", "budget.usd"];

/// The members' names in lower case, with the spelling and the line of each.
type Names = HashMap<String, (Name, usize)>;

/// The values of a member, a lead or a model by their keys, without the rules about calls of tools.
pub(super) struct MemberValues(pub(super) BTreeMap<&'static str, Sourced>);

impl MemberValues {
    /// Returns true if a person set the value.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(Sourced::is_set)
    }

    /// Returns the value of a setting in its type. A blank text counts as none.
    pub(super) fn get<T: DeserializeOwned + Default>(&self, key: &str) -> T {
        self.0.get(key).filter(|value| !value.is_blank()).map(Sourced::get).unwrap_or_default()
    }

    pub(super) fn provider(&self) -> String {
        self.get("provider")
    }

    /// Returns the kind of agent that the provider determines. A launch refuses an unknown provider.
    pub(super) fn agent(&self) -> AgentKind {
        providers::provider(&self.provider()).map_or(AgentKind::Builtin, |known| known.agent)
    }

    pub(super) fn spec(&self, name: Name, permissions: Permissions, fallback: Vec<ModelSpec>) -> MemberSpec {
        MemberSpec {
            role: self.get::<Option<String>>("role").unwrap_or_else(|| name.to_string()),
            name,
            capabilities: self.get("capabilities"),
            prompt: self.get("prompt"),
            plan_first: self.get("plan_first"),
            memory: self.get("memory"),
            permissions,
            model: ModelSpec { fallback, ..self.model_spec() },
            budget: Budget { tokens: self.get("budget.tokens"), usd: self.get("budget.usd") },
            is_spawned: false,
        }
    }
}

/// Returns the keys of a member's values.
fn member_keys() -> impl Iterator<Item = &'static str> {
    MEMBER_SETTINGS.iter().map(|setting| setting.key).chain(BUDGET_KEYS)
}

impl Resolver<'_> {
    pub(super) fn lead(&mut self) -> MemberValues {
        let mut values = BTreeMap::new();
        for setting in LEAD_SETTINGS.iter().filter(|setting| !RULE_KEYS.contains(&setting.key)) {
            let key = format!("lead.{}", setting.key);
            let value = match setting.kind {
                ValueKind::Table(_) => continue,
                ValueKind::Words | ValueKind::Texts | ValueKind::Json | ValueKind::Record(_) => {
                    let found = self.find(&key);
                    found.inspect(|value| self.show(&key, value.value.clone(), &value.source))
                }
                _ => self.value(&key),
            };
            values.extend(value.map(|value| (setting.key, value)));
        }
        for key in BUDGET_KEYS {
            values.extend(self.value(&format!("lead.{key}")).map(|value| (key, value)));
        }
        let mut values = MemberValues(values);
        self.add_definition(&mut values);
        self.show_definition("lead.", &values);
        let is_unknown = self.check_definition(&values);
        if !is_unknown
            && !values.is_set("provider")
            && let Some(setting) = values.0.get("model").or(values.0.get("base_url"))
        {
            let hint = "add provider = \"anthropic\", or another: the default is `runbook`, which has no models";
            self.problems.push(setting.problem("the lead has a model but no provider").hint(hint));
        }
        self.read_prompt_setting(&mut values);
        self.resolve_model(&mut values);
        self.check_model(&values);
        self.check_request(&values);
        values
    }

    /// Shows the values of a lead that come from the definition of its model, in place of those that it does not set.
    fn show_definition(&mut self, prefix: &str, values: &MemberValues) {
        for setting in MODEL_SETTINGS {
            let Some(value) = values.0.get(setting.key) else { continue };
            let key = format!("{prefix}{}", setting.key);
            self.values.retain(|shown| shown.key != key);
            self.show(key, value.value.clone(), &value.source);
        }
    }

    pub(super) fn members(
        &mut self,
        team: &str,
        lead: &MemberValues,
        team_permissions: &Permissions,
    ) -> Vec<MemberSpec> {
        let of_layer = self.layers.iter().find_map(|layer| Some((layer.file, layer.team?.members.as_deref()?)));
        let Some((file, rows)) = of_layer.filter(|(_, rows)| !rows.is_empty()) else {
            if !lead.agent().has_model() {
                let hint = format!("add one: [[teams.{team}.members]] with name = \"…\" and role = \"…\"");
                self.team_problem("the team has no members to work on tasks", &hint);
            }
            return Vec::new();
        };
        if rows.len() > MEMBERS_MAX {
            let message = format!("{} members; at most {MEMBERS_MAX} are possible", rows.len());
            self.team_problem(&message, "");
            return Vec::new();
        }
        let mut names = Names::new();
        rows.iter().filter_map(|row| self.member(file, row, lead, &mut names, team_permissions)).collect()
    }

    fn member(
        &mut self,
        file: &ConfigFile,
        row: &MemberTable,
        lead: &MemberValues,
        names: &mut Names,
        team_permissions: &Permissions,
    ) -> Option<MemberSpec> {
        let name = self.member_name(file, row, names)?;
        let mut values = self.member_values(file, row, lead);
        for key in member_keys() {
            if let Some(value) = values.0.get(key) {
                self.show(format!("members.{name}.{key}"), value.value.clone(), &value.source);
            }
        }
        let plan_first = values.0.get("plan_first").filter(|flag| flag.value == true);
        if let Some(sourced) = plan_first
            && !values.agent().has_model()
        {
            let provider = values.provider();
            let problem =
                sourced.problem(format!("`plan_first` needs a model: `{name}` has the provider `{provider}`"));
            self.problems.push(problem.hint("remove `plan_first`, or set provider and model of this member"));
        }
        self.read_prompt_setting(&mut values);
        let rules = RULE_KEYS.map(|key| row.values.get(key).map(|spanned| sourced(file, spanned)));
        let permissions = self.permissions(&format!("members.{name}."), rules, team_permissions);
        let fallback = self.fallbacks(&values);
        Some(values.spec(name, permissions, fallback))
    }

    /// Returns the values of a member: its own, and those that it inherits from the lead.
    fn member_values(&mut self, file: &ConfigFile, row: &MemberTable, lead: &MemberValues) -> MemberValues {
        let keys = member_keys().filter(|key| *key != "name" && !RULE_KEYS.contains(key));
        let own = keys.filter_map(|key| Some((key, sourced(file, row.values.get(key)?))));
        let mut values = MemberValues(own.collect());
        let has_own_model = values.0.contains_key("model");
        self.add_definition(&mut values);
        if values.get::<String>("role").is_empty() {
            let role = Sourced { value: ROLE_DEFAULT.into(), source: Source::Default, location: None };
            values.0.insert("role", role);
        }
        if let (false, Some(provider)) = (values.0.contains_key("provider"), lead.0.get("provider")) {
            values.0.insert("provider", inherited(provider));
        }
        self.resolve_model(&mut values);
        // A member with another provider inherits nothing else: the lead's model is unknown there, and the lead's server must
        // not get the other provider's key.
        if values.provider() == lead.provider() {
            Self::inherit_model(&mut values, lead, has_own_model);
        } else {
            self.check_model(&values);
        }
        self.check_definition(&values);
        self.check_request(&values);
        values
    }

    /// Replaces a model that is a path by the absolute path.
    pub(super) fn resolve_model(&mut self, values: &mut MemberValues) {
        if let Some(model) = values.0.get("model") {
            let model = self.model(&values.provider(), model);
            values.0.insert("model", model);
        }
    }

    /// Replaces the name of a prompt file by its text.
    fn read_prompt_setting(&mut self, values: &mut MemberValues) {
        if let Some(prompt) = values.0.get("prompt") {
            let text = self.prompt(prompt);
            values.0.insert("prompt", prompt.with(text));
        }
    }

    /// Adds a problem if the provider needs a model and has none.
    fn check_model(&mut self, values: &MemberValues) {
        let needed = providers::provider(&values.provider()).and_then(|known| known.model);
        if values.get::<String>("model").is_empty()
            && let Some(model) = needed
            && let Some(provider) = values.0.get("provider")
        {
            let problem = provider.problem(format!("the provider `{}` needs `model`", provider.text()));
            self.problems.push(problem.hint(format!("add model = \"…\": {model}")));
        }
    }

    fn member_name(&mut self, file: &ConfigFile, row: &MemberTable, names: &mut Names) -> Option<Name> {
        let Some(spanned) = row.values.get("name") else {
            let problem = file.source.problem(row.span.clone(), "a member needs a name");
            self.problems.push(problem.hint("add name = \"…\""));
            return None;
        };
        let text = spanned.value.as_str().unwrap_or_default();
        let line = file.source.line(spanned.span.start);
        let message = match Name::new(text) {
            Ok(name) if name.is_reserved() => {
                format!("`{name}` is taken: Brigade uses the names {}", RESERVED.join(", "))
            }
            Ok(name) => match names.insert(text.to_lowercase(), (name.clone(), line)) {
                None => return Some(name),
                Some((first, line)) => {
                    let note = if first == name { "" } else { " (names ignore case)" };
                    format!("line {line} already has a member `{first}`{note}")
                }
            },
            Err(error) => error.to_string(),
        };
        self.problems.push(file.source.problem(spanned.span.clone(), message));
        None
    }

    /// Returns the value of a setting of a member or the lead, from the file that lists the members.
    pub(super) fn find_of_member(&mut self, name: &Name, key: &str) -> Option<Sourced> {
        if name.as_str() == LEAD {
            return self.find(&format!("lead.{key}"));
        }
        let (file, rows) = self.layers.iter().find_map(|layer| Some((layer.file, layer.team?.members.as_deref()?)))?;
        let is_named = |row: &&MemberTable| row.values.get("name").is_some_and(|own| own.value == name.as_str());
        Some(sourced(file, rows.iter().find(is_named)?.values.get(key)?))
    }

    /// Adds a problem for the first member that needs a worktree of its own and has none.
    pub(super) fn check_programs(&mut self, isolation: Isolation, lead: &MemberSpec, members: &[MemberSpec]) {
        let program = std::iter::once(lead).chain(members).find(|member| member.model.agent.is_program());
        if let (Isolation::None, Some(member)) = (isolation, program) {
            let (name, provider) = (&member.name, &member.model.provider);
            let message = format!("`{name}` has the provider `{provider}`, which needs a worktree for each task");
            self.team_problem(&message, "add isolation = \"worktree\"");
        }
    }

    /// Adds a problem for each setting of the team that needs a model, if no agent has a fitting one.
    pub(super) fn check_model_settings(&mut self, lead: &MemberSpec, members: &[MemberSpec]) {
        let agents: Vec<AgentKind> = std::iter::once(lead).chain(members).map(|member| member.model.agent).collect();
        let has_own_loop = agents.contains(&AgentKind::Builtin);
        let has_model = agents.into_iter().any(AgentKind::has_model);
        for (key, value, has_effect) in [("ask", Json::Bool(true), has_own_loop), ("memory", "task".into(), has_model)]
        {
            let set = self.find(key).filter(|sourced| sourced.value == value);
            if let Some(sourced) = set.filter(|_| !has_effect) {
                let problem =
                    sourced.problem(format!("`{key}` has no effect: no agent of the team has a model for it"));
                self.problems.push(problem.hint(format!("remove `{key}`, or give the lead or a member a model")));
            }
        }
    }

    /// Adds a problem if no member could review.
    pub(super) fn check_review(&mut self, review: Option<&Sourced>, members: &[MemberSpec]) {
        let Some(review) = review else { return };
        let reviewer = review.text().trim();
        if [LEAD, HUMAN].iter().any(|name| name.eq_ignore_ascii_case(reviewer)) {
            return;
        }
        let mut fit = members.iter().filter(|member| member.can(reviewer)).peekable();
        let problem = if fit.peek().is_none() {
            review.problem(format!("`review` needs a member with the role or capability `{reviewer}`"))
        } else if fit.all(|member| !member.has_model()) {
            review.problem(format!("`review` needs a model: members with `{reviewer}` have the provider `runbook`"))
        } else {
            return;
        };
        self.problems.push(problem.hint("name a member's role or capability, \"lead\", or \"human\""));
    }
}
