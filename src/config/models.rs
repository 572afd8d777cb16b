//! Resolves the models under names, the fallbacks of a member, and the settings of requests.

use serde_json::{Map, Value as Json};

use super::diagnostics::Problem;
use super::members::MemberValues;
use super::resolve::{Resolver, inherited, sourced};
use super::settings::{self, MODEL_SETTINGS, OF_ADDRESS, OF_MODEL};
use crate::domain::team::model_spec::{EXTRA_BODY_BYTES_MAX, ModelSpec, OWN_BODY_FIELDS, OWN_HEADERS};
use crate::domain::team::team_spec::AgentKind;
use crate::domain::text::suggestion::did_you_mean;
use crate::providers;
use crate::sandbox::environment::is_secret;
use crate::secrets::Secret;

const PREFIX: &str = "models.";
/// The most models of one `fallback`.
const FALLBACKS_MAX: usize = 8;

impl MemberValues {
    /// Returns the settings that these own values of a member take neither from a definition nor from the lead: those of another address,
    /// and the variables of another command.
    fn foreign_keys(&self) -> Vec<&'static str> {
        let has_own_address = self.0.contains_key("base_url");
        let of_address = OF_ADDRESS.into_iter().filter(|_| has_own_address);
        of_address.chain((has_own_address || self.0.contains_key("key_command")).then_some("pass_env")).collect()
    }

    /// Returns the model, without its fallbacks.
    pub(super) fn model_spec(&self) -> ModelSpec {
        let set = self.0.iter().filter(|(_, value)| !value.is_blank());
        let fields: Map<String, Json> = set.map(|(key, value)| ((*key).to_owned(), value.value.clone())).collect();
        // Each value was checked when its source was read.
        let spec: ModelSpec = serde_json::from_value(fields.into()).unwrap_or_default();
        let headers = spec.headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
        ModelSpec { agent: self.agent(), headers, ..spec }
    }
}

impl Resolver<'_> {
    /// Returns the definition of [models.NAME] from the first file that has it. Definitions of several files are not mixed: the key of one
    /// must not go to the address of another.
    fn definition(&self, name: &str) -> Option<MemberValues> {
        let key = |setting: &'static str| format!("{PREFIX}{name}.{setting}");
        let layer = self.layers.iter().find(|layer| layer.file.values.contains_key(&key("provider")))?;
        let value = |setting: &settings::Setting| {
            Some((setting.key, sourced(layer.file, layer.file.values.get(&key(setting.key))?)))
        };
        let mut values = MemberValues(MODEL_SETTINGS.iter().filter_map(value).collect());
        if let (None, Some(provider)) = (values.0.get("model"), values.0.get("provider")) {
            let model = provider.with(name);
            values.0.insert("model", model);
        }
        Some(values)
    }

    fn definition_names(&self) -> Vec<String> {
        let names = self.layers.iter().flat_map(|layer| layer.file.values.keys());
        let name = |key: &String| Some(key.strip_prefix(PREFIX)?.strip_suffix(".provider")?.to_owned());
        names.filter_map(name).collect()
    }

    /// Adds the values of the definition that `model` names to these own values of a member. Own values take precedence, but a member with
    /// its own address gets no key of the definition, and one with its own `key_command` no variables.
    pub(super) fn add_definition(&mut self, values: &mut MemberValues) {
        let name: String = values.get("model");
        let Some(defined) = self.definition(&name) else { return };
        if let (Some(own), Some(provider)) = (values.0.get("provider"), defined.0.get("provider"))
            && own.is_set()
            && own.value != provider.value
        {
            let problem = own.problem(format!("the model `{name}` has the provider `{}`", provider.text()));
            self.problems.push(problem.hint("remove `provider`, or name another model"));
        }
        let foreign = values.foreign_keys();
        for (key, value) in defined.0 {
            let is_replaced = key == "model" || (key == "provider" && !values.is_set("provider"));
            if is_replaced || !(values.0.contains_key(key) || foreign.contains(&key)) {
                values.0.insert(key, value);
            }
        }
    }

    /// Returns true if a member with a model but no provider could only mean a definition, and adds a problem.
    pub(super) fn check_definition(&mut self, values: &MemberValues) -> bool {
        let Some(model) = values.0.get("model") else { return false };
        let known = self.definition_names();
        if known.is_empty() || values.agent() != AgentKind::Runbook {
            return false;
        }
        let problem = model.problem(format!("unknown model `{}`", model.text().escape_debug()));
        let hint = did_you_mean(model.text(), known.iter().map(String::as_str));
        self.problems.push(problem.hint(hint.unwrap_or_else(|| format!("known models: {}", known.join(", ")))));
        true
    }

    /// Adds the lead's values that hold for a member of the same provider too.
    pub(super) fn inherit_model(values: &mut MemberValues, lead: &MemberValues, has_own_model: bool) {
        let foreign = values.foreign_keys();
        let keys = ["model", "base_url", "command", "pass_env"].into_iter().chain(OF_ADDRESS).chain(OF_MODEL);
        for key in keys {
            let is_foreign = has_own_model && OF_MODEL.contains(&key) || foreign.contains(&key);
            if let (false, false, Some(value)) = (is_foreign, values.0.contains_key(key), lead.0.get(key)) {
                values.0.insert(key, inherited(value));
            }
        }
    }

    /// Returns the models of `fallback`, checked.
    pub(super) fn fallbacks(&mut self, values: &MemberValues) -> Vec<ModelSpec> {
        let Some(names) = values.0.get("fallback").cloned() else { return Vec::new() };
        let words: Vec<String> = names.get();
        if words.len() > FALLBACKS_MAX {
            self.problems.push(names.problem(format!("`fallback` has more than {FALLBACKS_MAX} models")));
        }
        let mut specs = Vec::new();
        for name in words {
            let Some(mut defined) = self.definition(&name) else {
                let known = self.definition_names();
                let hint = did_you_mean(&name, known.iter().map(String::as_str))
                    .unwrap_or_else(|| format!("define it: [models.{name:?}] with provider = \"…\""));
                self.problems.push(names.problem(format!("`fallback` names an unknown model {name:?}")).hint(hint));
                continue;
            };
            self.resolve_model(&mut defined);
            self.check_request(&defined);
            let spec = defined.model_spec();
            let (provider, model, base_url) = (&spec.provider, &spec.model, &spec.base_url);
            let own = values.model_spec();
            if (provider, model, base_url) == (&own.provider, &own.model, &own.base_url) {
                self.problems.push(names.problem(format!("`fallback` names the model itself: `{name}`")));
            }
            if providers::provider(&spec.provider).is_some_and(|known| known.service.is_none()) {
                let problem = names.problem(format!("`fallback` cannot use `{name}`: `{}` is no model", spec.provider));
                self.problems.push(problem.hint("name a model whose provider reaches a server"));
            }
            for (key, value) in defined.0 {
                let key = format!("{PREFIX}{name}.{key}");
                if !self.values.iter().any(|shown| shown.key == key) {
                    self.show(key, value.value, &value.source);
                }
            }
            specs.push(spec);
        }
        specs
    }

    /// Adds a problem for each setting of requests that is invalid or that nothing enforces. Secrets in headers are masked from now on.
    pub(super) fn check_request(&mut self, values: &MemberValues) {
        let provider = values.provider();
        let known = providers::provider(&provider);
        let has_service = known.is_none_or(|provider| provider.service.is_some());
        let is_builtin = values.agent() == AgentKind::Builtin;
        for key in OF_ADDRESS.into_iter().chain(OF_MODEL).filter(|key| *key != "context_window_tokens") {
            let has_effect = has_service || is_builtin && ["fallback", "output_tokens_max"].contains(&key);
            if let (false, Some(sourced)) = (has_effect, values.0.get(key)) {
                let problem = sourced.problem(format!("`{key}` has no effect with the provider `{provider}`"));
                self.problems.push(problem.hint(format!("remove `{key}`, or set another provider")));
            }
        }
        if let (Some(service), Some(tool_calls)) =
            (known.and_then(|provider| provider.service.as_ref()), values.0.get("tool_calls"))
            && let Err(reason) = service.check_tool_calls(&values.model_spec())
        {
            self.problems.push(tool_calls.problem(reason).hint("remove `tool_calls`, or set api = \"chat\""));
        }
        if let Some(headers) = values.0.get("headers") {
            let invalid = headers.get::<Map<String, Json>>().into_iter().find_map(|(name, value)| {
                let value = value.as_str().unwrap_or_default();
                register_secret(&name, value);
                invalid_header(&name, value).map(|reason| format!("header `{}` {reason}", name.escape_debug()))
            });
            // The line of the file can contain a secret.
            let problem = invalid.map(|text| Problem { text: String::new(), ..headers.problem(text) });
            self.problems.extend(problem);
        }
        if let Some(extra) = values.0.get("extra_body") {
            let table: Map<String, Json> = extra.get();
            let own = table.keys().find(|key| OWN_BODY_FIELDS.contains(&key.as_str()));
            if let Some(key) = own {
                let hint = match key.as_str() {
                    "temperature" => "set `temperature` of the member",
                    "max_tokens" | "max_completion_tokens" | "max_output_tokens" => "set `output_tokens_max`",
                    _ => "remove it",
                };
                let problem = extra.problem(format!("`extra_body` must not have `{key}`, which Brigade sets"));
                self.problems.push(problem.hint(hint));
            }
            if Json::Object(table).to_string().len() > EXTRA_BODY_BYTES_MAX {
                self.problems.push(extra.problem(format!("`extra_body` has more than {EXTRA_BODY_BYTES_MAX} bytes")));
            }
        }
    }
}

/// Masks the value of a header whose name says that it is a secret, from now on.
fn register_secret(name: &str, value: &str) {
    if is_secret(name) {
        Secret::new(value);
        let token = value.split_once(' ').map(|(_, token)| token);
        token.and_then(Secret::new);
    }
}

/// Returns the reason why a request cannot have this header.
fn invalid_header(name: &str, value: &str) -> Option<&'static str> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        Some("has characters in its name that HTTP does not allow")
    } else if OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        Some("is set by Brigade")
    } else if value.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        Some("has characters in its value that an HTTP header cannot carry")
    } else {
        None
    }
}
