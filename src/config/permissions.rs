//! Resolves the rules about calls of tools: those of the team, and those of a member in addition.

use super::file::{ConfigFile, MemberTable, Value};
use super::resolve::{Resolver, Sourced, sourced, text_of, words_of};
use crate::domain::permission::{PermissionMode, PermissionRule, Permissions, RULE_TOOLS};
use crate::domain::suggestion::did_you_mean;

impl Resolver<'_> {
    /// Returns the rules of the team. They hold for the lead too.
    pub(super) fn team_permissions(&mut self) -> Permissions {
        let [mode, allow, deny] = ["mode", "allow", "deny"].map(|key| self.find(key, None));
        self.permissions("", [mode, allow, deny], &Permissions::default())
    }

    /// Returns the rules of the lead.
    pub(super) fn lead_permissions(&mut self, team: &Permissions) -> Permissions {
        let values = ["lead.mode", "lead.allow", "lead.deny"].map(|key| self.find(key, None));
        self.permissions("lead.", values, team)
    }

    /// Returns the rules of a member.
    pub(super) fn member_permissions(
        &mut self,
        file: &ConfigFile,
        row: &MemberTable,
        name: &str,
        team: &Permissions,
    ) -> Permissions {
        let values = ["mode", "allow", "deny"].map(|key| row.values.get(key).map(|spanned| sourced(file, spanned)));
        self.permissions(&format!("members.{name}."), values, team)
    }

    /// Returns the rules of these values, with those of the team. `prefix` begins the keys that `config show` prints.
    fn permissions(&mut self, prefix: &str, values: [Option<Sourced<Value>>; 3], team: &Permissions) -> Permissions {
        let [mode, allow, deny] = values;
        let mode = mode.map(|mode| mode.map(text_of));
        if let Some(sourced) = &mode {
            self.show(format!("{prefix}mode"), sourced.value.clone(), &sourced.source);
        }
        let own_mode = mode.and_then(|mode| PermissionMode::from_word(&mode.value));
        let allow = self.rules(&format!("{prefix}allow"), allow);
        let deny = self.rules(&format!("{prefix}deny"), deny);
        Permissions {
            mode: own_mode.unwrap_or(team.mode),
            allow: [team.allow.clone(), allow].concat(),
            deny: [team.deny.clone(), deny].concat(),
        }
    }

    fn rules(&mut self, key: &str, value: Option<Sourced<Value>>) -> Vec<PermissionRule> {
        let Some(texts) = value.map(|value| value.map(words_of)) else { return Vec::new() };
        self.show(key.to_owned(), texts.value.clone(), &texts.source);
        let mut rules = Vec::new();
        for text in &texts.value {
            match PermissionRule::parse(text) {
                Ok(rule) if RULE_TOOLS.iter().any(|tool| rule.is_about_tool(tool)) => rules.push(rule),
                Ok(rule) => {
                    let message = format!("invalid rule `{}`: there is no tool `{}`", text.escape_debug(), rule.tool());
                    let hint = did_you_mean(rule.tool(), RULE_TOOLS.into_iter());
                    let hint = hint.unwrap_or_else(|| format!("name a tool: {}", RULE_TOOLS[..8].join(", ")));
                    self.problems.push(texts.problem(message).hint(hint));
                }
                Err(error) => {
                    let message = format!("invalid rule `{}`: {error}", text.escape_debug());
                    self.problems.push(texts.problem(message));
                }
            }
        }
        rules
    }
}
