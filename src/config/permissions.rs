//! Resolves the rules about calls of tools: those of the team, and those of a member in addition.

use super::diagnostics::Problem;
use super::resolve::{Resolver, Sourced};
use crate::domain::agent::permission::{EXTERNAL_TOOLS, PermissionRule, Permissions, ToolKind};
use crate::domain::text::suggestion::did_you_mean;
use crate::tools::table::TOOLS;

/// The settings with the rules.
pub(super) const RULE_KEYS: [&str; 3] = ["mode", "allow", "deny"];

impl Resolver<'_> {
    /// Returns the rules of these values, with those of the team, which hold for the lead too. `prefix` begins the keys that
    /// `config show` prints.
    pub(super) fn permissions(
        &mut self,
        prefix: &str,
        values: [Option<Sourced>; 3],
        team: &Permissions,
    ) -> Permissions {
        let [mode, allow, deny] = values;
        if let Some(sourced) = &mode {
            self.show(format!("{prefix}mode"), sourced.value.clone(), &sourced.source);
        }
        let allow = self.rules(&format!("{prefix}allow"), allow);
        let deny = self.rules(&format!("{prefix}deny"), deny);
        Permissions {
            mode: mode.map_or(team.mode, |mode| mode.get()),
            allow: [team.allow.clone(), allow].concat(),
            deny: [team.deny.clone(), deny].concat(),
        }
    }

    fn rules(&mut self, key: &str, value: Option<Sourced>) -> Vec<PermissionRule> {
        let Some(texts) = value else { return Vec::new() };
        self.show(key, texts.value.clone(), &texts.source);
        let mut rules = Vec::new();
        for text in texts.get::<Vec<String>>() {
            let (reason, hint) = match PermissionRule::parse(&text) {
                Ok(rule) if rule_tools().any(|tool| rule.is_about_tool(tool)) => {
                    rules.push(rule);
                    continue;
                }
                Ok(rule) => {
                    let hint = did_you_mean(rule.tool(), rule_tools()).unwrap_or_else(usual_tools_hint);
                    (format!("there is no tool `{}`", rule.tool()), Some(hint))
                }
                Err(error) => (error.to_string(), None),
            };
            let problem = texts.problem(format!("invalid rule `{}`: {reason}", text.escape_debug()));
            self.problems.push(Problem { hint, ..problem });
        }
        rules
    }
}

/// The tools that a rule can name: those of Brigade, and those of external agents under Brigade's names.
fn rule_tools() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|entry| entry.name).chain(EXTERNAL_TOOLS)
}

/// Names the tools that rules are usually about.
fn usual_tools_hint() -> String {
    let own = TOOLS.iter().filter(|entry| entry.kind != ToolKind::Board).map(|entry| entry.name);
    format!("name a tool: {}", own.chain(EXTERNAL_TOOLS).collect::<Vec<_>>().join(", "))
}
