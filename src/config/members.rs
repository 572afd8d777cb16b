//! Resolves the members of a team from the first file that lists them. They inherit missing values from the lead.

use std::collections::HashMap;

use super::file::{ConfigFile, MemberTable, number};
use super::limits::memory_of;
use super::resolve::{Resolver, Source, Sourced, inherited, sourced, text_of, words_of};
use super::settings::ROLE_DEFAULT;
use crate::domain::name::{HUMAN, LEAD, Name, RESERVED};
use crate::domain::permission::Permissions;
use crate::domain::team_spec::{Isolation, MEMBERS_MAX, MemberSpec, ModelSpec};
use crate::models;

/// The members' names in lower case, with the spelling and the line of each.
type Names = HashMap<String, (Name, usize)>;

impl Resolver<'_> {
    pub(super) fn members(&mut self, lead: &Member, team_permissions: &Permissions) -> Vec<MemberSpec> {
        let layer = self.layers.iter().find_map(|layer| {
            Some((
                layer.file,
                layer.team.and_then(|team| team.members.as_deref().map(|members| (members, &team.span)))?,
            ))
        });
        let Some((file, (rows, span))) = layer.filter(|(_, (rows, _))| !rows.is_empty()) else {
            if !models::has_model(&lead.provider.value) {
                self.no_members();
            }
            return Vec::new();
        };
        if rows.len() > MEMBERS_MAX {
            let message = format!("{} members; at most {MEMBERS_MAX} are possible", rows.len());
            self.problems.push(file.source.problem(span.clone(), message));
            return Vec::new();
        }
        let file = file.clone();
        let mut names = Names::new();
        let mut members = Vec::new();
        for row in rows {
            if let Some(member) = self.member(&file, row, lead, &mut names) {
                let permissions = self.member_permissions(&file, row, member.name.as_str(), team_permissions);
                members.push(MemberSpec { permissions, ..member });
            }
        }
        members
    }

    fn no_members(&mut self) {
        let location = self.layers.iter().find_map(|layer| Some((layer.file, layer.team?)));
        let Some((file, team)) = location else { return };
        let problem = file.source.problem(team.span.clone(), "the team has no members to work on tasks");
        self.problems.push(problem.hint("add one: [[teams.NAME.members]] with name = \"…\" and role = \"…\""));
    }

    fn member(&mut self, file: &ConfigFile, row: &MemberTable, lead: &Member, names: &mut Names) -> Option<MemberSpec> {
        let name = self.member_name(file, row, names)?;
        let text = |key: &str| row.values.get(key).map(|spanned| sourced(file, spanned).map(text_of));
        let role = text("role").filter(|role| !role.value.trim().is_empty());
        let role = role.unwrap_or(Sourced { value: ROLE_DEFAULT.to_owned(), source: Source::Default, location: None });
        let capabilities = row.values.get("capabilities").map(|spanned| sourced(file, spanned).map(words_of));
        let prompt = text("prompt");
        let own_provider = text("provider").filter(|own| own.value != lead.provider.value);
        let is_leads = own_provider.is_none();
        let provider = text("provider").unwrap_or_else(|| inherited(&lead.provider));
        // A member with another provider inherits nothing else: the lead's model is unknown there, and the lead's server must
        // not get the other provider's key.
        let model = text("model").map(|model| self.model(&provider.value, &model));
        let model = model.or_else(|| lead.model.as_ref().filter(|_| is_leads).map(inherited));
        if !is_leads {
            self.check_model(&provider, model.as_ref());
        }
        let is_leads_model = is_leads && !row.values.contains_key("model");
        let context_window = text("context_window_tokens")
            .or_else(|| lead.context_window.as_ref().filter(|_| is_leads_model).map(inherited));
        let base_url = text("base_url").or_else(|| lead.base_url.as_ref().filter(|_| is_leads).map(inherited));
        let command = text("command").or_else(|| lead.command.as_ref().filter(|_| is_leads).map(inherited));
        let pass_env = row.values.get("pass_env").map(|spanned| sourced(file, spanned).map(words_of));
        let pass_env = pass_env.or_else(|| lead.pass_env.as_ref().filter(|_| is_leads).map(inherited));
        self.show(format!("members.{name}.role"), role.value.clone(), &role.source);
        for (key, sourced) in [
            ("prompt", &prompt),
            ("model", &model),
            ("base_url", &base_url),
            ("context_window_tokens", &context_window),
            ("command", &command),
        ] {
            if let Some(sourced) = sourced {
                self.show(format!("members.{name}.{key}"), sourced.value.clone(), &sourced.source);
            }
        }
        self.show(format!("members.{name}.provider"), provider.value.clone(), &provider.source);
        if let Some(sourced) = &pass_env {
            self.show(format!("members.{name}.pass_env"), sourced.value.clone(), &sourced.source);
        }
        if let Some(sourced) = &capabilities {
            self.show(format!("members.{name}.capabilities"), sourced.value.clone(), &sourced.source);
        }
        let plan_first = text("plan_first");
        if let Some(sourced) = &plan_first {
            self.show(format!("members.{name}.plan_first"), sourced.value == "true", &sourced.source);
            if sourced.value == "true" && !models::has_model(&provider.value) {
                let problem = sourced
                    .problem(format!("`plan_first` needs a model: `{name}` has the provider `{}`", provider.value));
                self.problems.push(problem.hint("remove `plan_first`, or set provider and model of this member"));
            }
        }
        let memory = text("memory");
        if let Some(sourced) = &memory {
            self.show(format!("members.{name}.memory"), sourced.value.clone(), &sourced.source);
        }
        let prompt = prompt.map(|prompt| self.prompt(&prompt)).unwrap_or_default();
        let capabilities = capabilities.map(|sourced| sourced.value).unwrap_or_default();
        let member = Member { prompt, capabilities, provider, model, base_url, context_window, command, pass_env };
        let plan_first = plan_first.is_some_and(|sourced| sourced.value == "true");
        let memory = memory.map(|sourced| memory_of(&sourced.value));
        Some(MemberSpec { plan_first, memory, ..member.spec(name, role.value) })
    }

    fn member_name(&mut self, file: &ConfigFile, row: &MemberTable, names: &mut Names) -> Option<Name> {
        let Some(spanned) = row.values.get("name") else {
            let problem = file.source.problem(row.span.clone(), "a member needs a name");
            self.problems.push(problem.hint("add name = \"…\""));
            return None;
        };
        let name_text = text_of(&spanned.value);
        let problem = |message: String| file.source.problem(spanned.span.clone(), message);
        let name = match Name::new(&name_text) {
            Ok(name) if name.is_reserved() => {
                let message = format!("`{name}` is taken: Brigade uses the names {}", RESERVED.join(", "));
                self.problems.push(problem(message));
                return None;
            }
            Ok(name) => name,
            Err(error) => {
                self.problems.push(problem(error.to_string()));
                return None;
            }
        };
        let line = file.source.line(spanned.span.start);
        if let Some((first, line)) = names.insert(name_text.to_lowercase(), (name.clone(), line)) {
            let note = if first == name { "" } else { " (names ignore case)" };
            let message = format!("line {line} already has a member `{first}`{note}");
            self.problems.push(problem(message));
            return None;
        }
        Some(name)
    }

    /// Adds a problem for the first member that needs a worktree of its own and has none.
    pub(super) fn check_programs(&mut self, isolation: Isolation, lead: &Member, members: &[MemberSpec]) {
        if isolation == Isolation::Worktree {
            return;
        }
        let needs_isolation = |member: &&MemberSpec| models::needs_isolation(&member.model.provider);
        let member = members.iter().find(needs_isolation).map(|member| (member.name.as_str(), &member.model.provider));
        let lead = models::needs_isolation(&lead.provider.value).then_some((LEAD, &lead.provider.value));
        let Some((name, provider)) = lead.or(member) else { return };
        let location = self.layers.iter().find_map(|layer| Some((layer.file, layer.team?)));
        let Some((file, team)) = location else { return };
        let message = format!("`{name}` has the provider `{provider}`, which needs a worktree for each task");
        let problem = file.source.problem(team.span.clone(), message);
        self.problems.push(problem.hint("add isolation = \"worktree\""));
    }

    /// Adds a problem if no member could review.
    pub(super) fn check_review(&mut self, review: Option<&Sourced<String>>, members: &[MemberSpec]) {
        let Some(review) = review else { return };
        let reviewer = review.value.trim();
        if [LEAD, HUMAN].iter().any(|name| name.eq_ignore_ascii_case(reviewer)) {
            return;
        }
        let mut fit = members.iter().filter(|member| member.can(reviewer)).peekable();
        let problem = if fit.peek().is_none() {
            review.problem(format!("`review` needs a member with the role or capability `{reviewer}`"))
        } else if fit.all(|member| !models::has_model(&member.model.provider)) {
            review.problem(format!("`review` needs a model: members with `{reviewer}` have the provider `runbook`"))
        } else {
            return;
        };
        self.problems.push(problem.hint("name a member's role or capability, \"lead\", or \"human\""));
    }
}

/// The resolved values of a member or the lead.
pub(super) struct Member {
    pub(super) prompt: String,
    pub(super) capabilities: Vec<String>,
    pub(super) provider: Sourced<String>,
    pub(super) model: Option<Sourced<String>>,
    pub(super) base_url: Option<Sourced<String>>,
    pub(super) context_window: Option<Sourced<String>>,
    pub(super) command: Option<Sourced<String>>,
    pub(super) pass_env: Option<Sourced<Vec<String>>>,
}

impl Member {
    pub(super) fn spec(self, name: Name, role: String) -> MemberSpec {
        let model = ModelSpec {
            provider: self.provider.value,
            model: self.model.map(|model| model.value).unwrap_or_default(),
            base_url: self.base_url.map(|url| url.value).filter(|url| !url.is_empty()),
            context_window_tokens: self.context_window.and_then(|window| number(&window.value)),
            command: self.command.map(|command| command.value).filter(|command| !command.trim().is_empty()),
            pass_env: self.pass_env.map(|names| names.value).unwrap_or_default(),
        };
        MemberSpec {
            name,
            role,
            capabilities: self.capabilities,
            prompt: self.prompt,
            plan_first: false,
            memory: None,
            permissions: Permissions::default(),
            model,
        }
    }
}
