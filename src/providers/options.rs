//! The fields of requests that the settings of a member add, the same in all APIs: thinking, temperature and `extra_body`.

use serde_json::{Map, Value, json};

use crate::domain::model_spec::{ApiKind, Effort, ModelSpec, ThinkingForm};

/// The smallest budget of thinking, in tokens (<https://platform.claude.com/docs/en/build-with-claude/extended-thinking>).
const BUDGET_TOKENS_MIN: u32 = 1024;
/// The fields that carry the effort.
const EFFORT_FIELDS: [&str; 6] =
    ["reasoning_effort", "reasoning", "thinking", "output_config", "enable_thinking", "chat_template_kwargs"];

/// The fields that the settings of one member add.
pub struct RequestOptions {
    effort: Option<(Effort, ThinkingForm)>,
    temperature: Option<f64>,
    extra: Map<String, Value>,
}

impl RequestOptions {
    /// Takes the settings of a member with this API. `thinking` is the form of its service in chat completions.
    ///
    /// # Errors
    /// Two settings send the same field.
    pub fn new(spec: &ModelSpec, api: ApiKind, thinking: ThinkingForm) -> Result<Self, String> {
        let form = spec.compat.thinking.unwrap_or(match api {
            ApiKind::Messages => ThinkingForm::OutputConfig,
            ApiKind::Chat => thinking,
            ApiKind::Responses => ThinkingForm::Reasoning,
        });
        let effort = spec.effort.map(|effort| (effort, form));
        let options = Self { effort, temperature: spec.temperature, extra: spec.extra_body.clone() };
        let own = options.effort_fields(u32::MAX);
        match own.keys().find(|key| options.extra.contains_key(*key)) {
            Some(key) => Err(format!("`extra_body` has `{key}`, which `effort` sends too: remove one of them")),
            None => Ok(options),
        }
    }

    /// Returns the JSON body with these fields at its beginning. `output_tokens_max` is the limit of the answer.
    pub fn add_to(&self, body: Vec<u8>, output_tokens_max: u32) -> Vec<u8> {
        let mut fields = self.effort_fields(output_tokens_max);
        fields.extend(self.temperature.map(|temperature| ("temperature".to_owned(), temperature.into())));
        fields.extend(self.extra.clone());
        if fields.is_empty() {
            return body;
        }
        // A body is an object that is never empty, and it has none of these fields.
        let mut added = Value::Object(fields).to_string().into_bytes();
        added.pop();
        added.push(b',');
        added.extend_from_slice(body.get(1..).unwrap_or_default());
        added
    }

    fn effort_fields(&self, output_tokens_max: u32) -> Map<String, Value> {
        let Some((effort, form)) = self.effort else { return Map::new() };
        let (thinks, word) = (effort != Effort::None, effort.as_str());
        let kind = if thinks { "enabled" } else { "disabled" };
        let fields = match form {
            ThinkingForm::ReasoningEffort => json!({ "reasoning_effort": word }),
            ThinkingForm::Reasoning => json!({ "reasoning": { "effort": word } }),
            ThinkingForm::TypeAndEffort if thinks => json!({ "thinking": { "type": kind }, "reasoning_effort": word }),
            ThinkingForm::Type | ThinkingForm::TypeAndEffort => json!({ "thinking": { "type": kind } }),
            ThinkingForm::Budget => match budget_tokens(effort, output_tokens_max) {
                Some(tokens) => json!({ "thinking": { "type": "enabled", "budget_tokens": tokens } }),
                None => json!({ "thinking": { "type": "disabled" } }),
            },
            ThinkingForm::OutputConfig if effort == Effort::Minimal => json!({ "output_config": { "effort": "low" } }),
            ThinkingForm::OutputConfig if thinks => json!({ "output_config": { "effort": word } }),
            ThinkingForm::OutputConfig => json!({ "thinking": { "type": "disabled" } }),
            ThinkingForm::EnableThinking => json!({ "enable_thinking": thinks }),
            ThinkingForm::ChatTemplate => json!({ "chat_template_kwargs": { "enable_thinking": thinks } }),
        };
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    /// Returns the advice for a request that the server refused with this text, if the text names a field of these settings.
    pub fn advice(&self, refusal: &str) -> Option<&'static str> {
        let refusal = refusal.to_lowercase();
        let is_effort = self.effort.is_some()
            && (EFFORT_FIELDS.iter().any(|field| refusal.contains(field)) || refusal.contains("effort"));
        if is_effort {
            return Some("correct `effort`, or the form in which it is sent: compat = { thinking = \"…\" }");
        }
        if self.temperature.is_some() && refusal.contains("temperature") {
            return Some("correct or remove `temperature`");
        }
        let is_extra = self.extra.keys().any(|key| refusal.contains(&key.to_lowercase()));
        is_extra.then_some("correct `extra_body`")
    }
}

/// Returns the part of an answer for thinking, in tokens; `None` if there is none, or the answer is too short for it.
fn budget_tokens(effort: Effort, output_tokens_max: u32) -> Option<u32> {
    let eighths = match effort {
        Effort::None => return None,
        Effort::Minimal | Effort::Low => 1,
        Effort::Medium => 2,
        Effort::High => 4,
        Effort::Xhigh => 6,
        Effort::Max => 7,
    };
    let tokens = (output_tokens_max / 8 * eighths).max(BUDGET_TOKENS_MIN);
    (tokens < output_tokens_max).then_some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model_spec::CompatSpec;

    fn added(effort: Effort, form: Option<ThinkingForm>, api: ApiKind) -> Value {
        let compat = CompatSpec { thinking: form, ..CompatSpec::default() };
        let spec = ModelSpec { effort: Some(effort), compat, ..ModelSpec::default() };
        let options = RequestOptions::new(&spec, api, ThinkingForm::ReasoningEffort).unwrap();
        let mut body: Value = serde_json::from_slice(&options.add_to(b"{\"model\":\"m\"}".to_vec(), 8000)).unwrap();
        assert_eq!(body["model"], "m");
        body.as_object_mut().unwrap().remove("model");
        body
    }

    #[test]
    fn effort_has_form_of_its_api_and_service() {
        let of = |api| added(Effort::High, None, api);
        assert_eq!(of(ApiKind::Chat), json!({ "reasoning_effort": "high" }));
        assert_eq!(of(ApiKind::Responses), json!({ "reasoning": { "effort": "high" } }));
        assert_eq!(of(ApiKind::Messages), json!({ "output_config": { "effort": "high" } }));
        let of = |effort, form| added(effort, Some(form), ApiKind::Chat);
        let enabled = json!({ "thinking": { "type": "enabled" }, "reasoning_effort": "max" });
        assert_eq!(of(Effort::Max, ThinkingForm::TypeAndEffort), enabled);
        let disabled = json!({ "thinking": { "type": "disabled" } });
        for form in [ThinkingForm::Type, ThinkingForm::TypeAndEffort, ThinkingForm::Budget, ThinkingForm::OutputConfig]
        {
            assert_eq!(of(Effort::None, form), disabled, "{form}");
        }
        assert_eq!(of(Effort::None, ThinkingForm::EnableThinking), json!({ "enable_thinking": false }));
        let kwargs = json!({ "chat_template_kwargs": { "enable_thinking": true } });
        assert_eq!(of(Effort::Low, ThinkingForm::ChatTemplate), kwargs);
    }

    #[test]
    fn thinking_budget_is_part_of_answer_limit() {
        let budget = |effort, limit| budget_tokens(effort, limit);
        let all = [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::Xhigh, Effort::Max];
        assert_eq!(all.map(|effort| budget(effort, 16_000)), [2000, 2000, 4000, 8000, 12_000, 14_000].map(Some));
        assert_eq!((budget(Effort::Low, 4000), budget(Effort::Max, 1024)), (Some(1024), None));
    }

    #[test]
    fn extra_fields_come_first_and_never_twice() {
        let extra = Map::from_iter([("top_p".to_owned(), json!(0.5))]);
        let spec = ModelSpec { temperature: Some(0.25), extra_body: extra.clone(), ..ModelSpec::default() };
        let options = RequestOptions::new(&spec, ApiKind::Chat, ThinkingForm::ReasoningEffort).unwrap();
        let body = String::from_utf8(options.add_to(b"{\"model\":\"m\"}".to_vec(), 100)).unwrap();
        assert_eq!(body, r#"{"temperature":0.25,"top_p":0.5,"model":"m"}"#);
        let none = RequestOptions::new(&ModelSpec::default(), ApiKind::Chat, ThinkingForm::Type).unwrap();
        assert_eq!(none.add_to(b"{\"model\":\"m\"}".to_vec(), 100), b"{\"model\":\"m\"}");
        let extra_body = Map::from_iter([("reasoning".to_owned(), json!({}))]);
        let spec = ModelSpec { effort: Some(Effort::Low), extra_body, ..ModelSpec::default() };
        let problem = RequestOptions::new(&spec, ApiKind::Responses, ThinkingForm::Type).err().unwrap();
        assert!(problem.contains("`extra_body` has `reasoning`"), "{problem}");
    }

    #[test]
    fn refusal_that_names_field_gets_advice() {
        let spec = ModelSpec { effort: Some(Effort::Low), temperature: Some(1.0), ..ModelSpec::default() };
        let options = RequestOptions::new(&spec, ApiKind::Chat, ThinkingForm::ReasoningEffort).unwrap();
        assert!(options.advice("Unknown parameter: 'reasoning_effort'.").unwrap().contains("compat"));
        assert!(options.advice("Temperature must be 1").unwrap().contains("`temperature`"));
        assert_eq!(options.advice("no"), None);
    }
}
