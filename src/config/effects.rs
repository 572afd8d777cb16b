//! The values of a team that run, send, store or hand over something, and that a file of the workspace sets.

use std::path::Path;

use super::resolve::{Resolved, Source};
use super::settings::{self, Effect};
use crate::domain::team::name::LEAD;

/// A value with an effect, and the members that have it.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveValue {
    /// The effect; never [`Effect::None`].
    pub effect: Effect,
    /// The key of its setting: `goal`, `notify.url`, `base_url`.
    pub key: String,
    /// The value as `config show` prints it.
    pub value: serde_json::Value,
    /// The lead and the members that have it, in the order of the config. Empty for a value of the team.
    pub members: Vec<String>,
}

impl Resolved {
    /// Returns the values with an effect that this config file sets, each once. Values of flags, variables, the user's own file and
    /// defaults are not included: they did not come with the workspace.
    pub fn effects_of(&self, config: &Path) -> Vec<EffectiveValue> {
        let mut effects: Vec<EffectiveValue> = Vec::new();
        for value in self.values.iter().filter(|value| is_from(&value.source, config) && !value.value.is_null()) {
            let Some(setting) = settings::of_value(&value.key).filter(|setting| setting.effect != Effect::None) else {
                continue;
            };
            let (member, key) = match value.key.split_once('.') {
                Some((LEAD, key)) => (Some(LEAD), key),
                Some(("members", rest)) => rest.split_once('.').map_or((None, rest), |(name, key)| (Some(name), key)),
                _ => (None, value.key.as_str()),
            };
            let same = effects
                .iter_mut()
                .find(|other| member.is_some() && !other.members.is_empty() && other.is_value(key, &value.value));
            match same {
                Some(same) => same.members.extend(member.map(str::to_owned)),
                None => effects.push(EffectiveValue {
                    effect: setting.effect,
                    key: key.to_owned(),
                    value: value.value.clone(),
                    members: member.into_iter().map(str::to_owned).collect(),
                }),
            }
        }
        effects
    }
}

impl EffectiveValue {
    fn is_value(&self, key: &str, value: &serde_json::Value) -> bool {
        self.key == key && self.value == *value
    }
}

/// Returns true if the value is from this file, also if a member inherits it from the lead.
fn is_from(source: &Source, file: &Path) -> bool {
    match source {
        Source::File { path, .. } => path == file,
        Source::Lead { source } => is_from(source, file),
        Source::Default | Source::Flag { .. } | Source::Environment { .. } => false,
    }
}
