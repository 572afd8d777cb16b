//! The form of the requests of a member: the differences of its server, and the fields that its settings add in all APIs: thinking,
//! temperature and `extra_body`. A refusal of an optional field changes the form of all later requests.

use reqwest::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::api::{self, Assembler};
use super::compat::{Compat, session_key};
use crate::domain::team::model_spec::{
    ApiKind, Effort, MaxTokensField, ModelSpec, SessionHeader, ThinkingForm, ToolCalls,
};
use crate::ports::ModelRequest;

/// The smallest budget of thinking, in tokens (<https://platform.claude.com/docs/en/build-with-claude/extended-thinking>).
const BUDGET_TOKENS_MIN: u32 = 1024;
/// The fields that carry the effort.
const EFFORT_FIELDS: [&str; 6] =
    ["reasoning_effort", "reasoning", "thinking", "output_config", "enable_thinking", "chat_template_kwargs"];
/// The parts of refusals of a schema for answers: names of fields, and the form into which llama.cpp brings the schema.
const SCHEMA_WORDS: [&str; 3] = ["response_format", "json_schema", "grammar"];

/// Parts of refusals of a field that the server does not know, in lower case.
const UNKNOWN_FIELD: [&str; 13] = [
    "unsupported_parameter",
    "unsupported parameter",
    "is unsupported",
    "does not support parameter",
    "extra_forbidden",
    "extra inputs",
    "additional propert",
    "unexpected",
    "unknown",
    "unrecognized",
    "not supported",
    "not permitted",
    "not allowed",
];
/// A field whose name is also a word of refusals, as in "supported parameters include …".
const INCLUDE: &str = "include";
/// The path of Responses in a refusal of chat completions.
const RESPONSES_PATH: &str = "/v1/responses";

/// The form of the requests of one member.
pub struct RequestOptions {
    compat: Compat,
    effort: Option<Effort>,
    temperature: Option<f64>,
    extra: Map<String, Value>,
    /// True if the field with the limit of an answer can have its other name.
    has_other_limit: bool,
}

impl RequestOptions {
    /// Takes the settings of a member with this API. `row` has the differences of its service.
    ///
    /// # Errors
    /// Two settings send the same field.
    pub fn new(spec: &ModelSpec, api: ApiKind, row: Compat) -> Result<Self, String> {
        let options = Self {
            compat: Compat { tool_calls: spec.tool_calls, ..row.with(&spec.compat, api) },
            effort: spec.effort,
            temperature: spec.temperature,
            extra: spec.extra_body.clone(),
            has_other_limit: api != ApiKind::Messages,
        };
        if spec.tool_calls == ToolCalls::Json && options.extra.contains_key(SCHEMA_WORDS[0]) {
            return Err(
                "`extra_body` has `response_format`, which `tool_calls` sends too: remove one of them".to_owned()
            );
        }
        let own = options.effort_fields(u32::MAX);
        match own.keys().find(|key| options.extra.contains_key(*key)) {
            Some(key) => Err(format!("`extra_body` has `{key}`, which `effort` sends too: remove one of them")),
            None => Ok(options),
        }
    }

    /// Returns the JSON body of a request.
    pub fn body(&self, api: ApiKind, request: &ModelRequest) -> Vec<u8> {
        self.add_to(api::body(api, request, &self.compat), request.output_tokens_max)
    }

    /// Returns an assembler for an answer.
    pub fn assembler(&self, api: ApiKind) -> Box<dyn Assembler> {
        api::assembler(api, &self.compat)
    }

    /// Returns the header with the key of a request's session, if the service has one.
    pub fn session_header(&self, request: &ModelRequest) -> Option<(HeaderName, HeaderValue)> {
        let name = self.compat.session_header;
        if name == SessionHeader::None {
            return None;
        }
        Some((HeaderName::from_static(name.as_str()), HeaderValue::try_from(session_key(request)).ok()?))
    }

    /// Returns the JSON body with the fields of the settings at its beginning. `output_tokens_max` is the limit of the answer.
    fn add_to(&self, body: Vec<u8>, output_tokens_max: u32) -> Vec<u8> {
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

    /// Changes all later requests if the server does not know an optional field of this one: leaves it out, or uses the other name of the
    /// limit, each once. Returns the advice that makes the change permanent, or `None` if nothing can be changed.
    pub fn adapt(&mut self, refusal: &str) -> Option<&'static str> {
        let refusal = refusal.to_lowercase();
        if !UNKNOWN_FIELD.iter().any(|text| refusal.contains(text)) || refusal.contains(RESPONSES_PATH) {
            return None;
        }
        let own = [
            ("stream_options", &mut self.compat.stream_options, "set compat = { stream_options = false }"),
            ("prompt_cache_key", &mut self.compat.cache, "set compat = { cache = false }"),
            (INCLUDE, &mut self.compat.include, "set compat = { include = false }"),
        ];
        for (field, is_sent, advice) in own {
            if *is_sent && names(&refusal, field) {
                *is_sent = false;
                return Some(advice);
            }
        }
        if self.temperature.is_some() && names(&refusal, "temperature") {
            self.temperature = None;
            return Some("remove `temperature`");
        }
        if self.effort_fields(u32::MAX).keys().any(|field| names(&refusal, field)) {
            self.effort = None;
            return Some("remove `effort`, or set the form in which it is sent: compat = { thinking = \"…\" }");
        }
        let limit = &mut self.compat.max_tokens_field;
        if !self.has_other_limit || !names(&refusal, limit.as_str()) {
            return None;
        }
        self.has_other_limit = false;
        *limit = limit.other();
        Some(match limit {
            MaxTokensField::MaxTokens => "set compat = { max_tokens_field = \"max_tokens\" }",
            MaxTokensField::MaxCompletionTokens => "set compat = { max_tokens_field = \"max_completion_tokens\" }",
            MaxTokensField::MaxOutputTokens => "set compat = { max_tokens_field = \"max_output_tokens\" }",
        })
    }

    fn effort_fields(&self, output_tokens_max: u32) -> Map<String, Value> {
        let Some(effort) = self.effort else { return Map::new() };
        let (thinks, word) = (effort != Effort::None, effort.as_str());
        let kind = if thinks { "enabled" } else { "disabled" };
        let fields = match self.compat.thinking {
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
        if refusal.contains(RESPONSES_PATH) {
            return Some("set api = \"responses\"");
        }
        let is_effort = self.effort.is_some()
            && (EFFORT_FIELDS.iter().any(|field| refusal.contains(field)) || refusal.contains("effort"));
        if is_effort {
            return Some("correct `effort`, or the form in which it is sent: compat = { thinking = \"…\" }");
        }
        if self.temperature.is_some() && refusal.contains("temperature") {
            return Some("correct or remove `temperature`");
        }
        if self.compat.tool_calls == ToolCalls::Json && SCHEMA_WORDS.iter().any(|word| refusal.contains(word)) {
            return Some("this server does not take the schema of tool_calls = \"json\": remove `tool_calls`");
        }
        let is_extra = self.extra.keys().any(|key| refusal.contains(&key.to_lowercase()));
        is_extra.then_some("correct `extra_body`")
    }
}

/// Returns true if a text has the name of a field, and not only as a part of another word. A name that is also a word follows a quote.
fn names(text: &str, field: &str) -> bool {
    let is_of_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let is_quote = |character: char| matches!(character, '\'' | '"' | '`');
    let begins =
        |before: &str| if field == INCLUDE { before.ends_with(is_quote) } else { !before.ends_with(is_of_word) };
    let ends = |start: usize| (&text[..start], &text[start + field.len()..]);
    let mut places = text.match_indices(field).map(|(start, _)| ends(start));
    places.any(|(before, after)| begins(before) && !after.starts_with(is_of_word))
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
    use crate::domain::team::model_spec::CompatSpec;
    use crate::providers::test_requests::request;

    fn added(effort: Effort, form: Option<ThinkingForm>, api: ApiKind) -> Value {
        let compat = CompatSpec { thinking: form, ..CompatSpec::default() };
        let spec = ModelSpec { effort: Some(effort), compat, ..ModelSpec::default() };
        let options = RequestOptions::new(&spec, api, Compat::DEFAULT).unwrap();
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
        let options = RequestOptions::new(&spec, ApiKind::Chat, Compat::DEFAULT).unwrap();
        let body = String::from_utf8(options.add_to(b"{\"model\":\"m\"}".to_vec(), 100)).unwrap();
        assert_eq!(body, r#"{"temperature":0.25,"top_p":0.5,"model":"m"}"#);
        let none = RequestOptions::new(&ModelSpec::default(), ApiKind::Chat, Compat::DEFAULT).unwrap();
        assert_eq!(none.add_to(b"{\"model\":\"m\"}".to_vec(), 100), b"{\"model\":\"m\"}");
        let extra_body = Map::from_iter([("reasoning".to_owned(), json!({}))]);
        let spec = ModelSpec { effort: Some(Effort::Low), extra_body, ..ModelSpec::default() };
        let problem = RequestOptions::new(&spec, ApiKind::Responses, Compat::DEFAULT).err().unwrap();
        assert!(problem.contains("`extra_body` has `reasoning`"), "{problem}");
    }

    /// A refusal that names an unknown field changes the next body, once for each field.
    #[test]
    fn unknown_field_is_left_out_in_all_apis() {
        const FIELDS: [&str; 11] = [
            "stream_options",
            "include",
            "prompt_cache_key",
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "temperature",
            "reasoning_effort",
            "reasoning",
            "output_config",
            "model",
        ];
        let spec = ModelSpec { effort: Some(Effort::Low), temperature: Some(1.0), ..ModelSpec::default() };
        let unknown = |field: &str| format!(r#"{{"error":{{"message":"Unknown parameter: '{field}'"}}}}"#);
        type Case = (ApiKind, &'static [&'static str], &'static [&'static str]);
        let apis: [Case; 3] = [
            (ApiKind::Messages, &["temperature", "output_config"], &["max_tokens"]),
            (
                ApiKind::Chat,
                &["stream_options", "prompt_cache_key", "temperature", "reasoning_effort", "max_tokens"],
                &["max_completion_tokens"],
            ),
            (
                ApiKind::Responses,
                &["include", "prompt_cache_key", "temperature", "reasoning", "max_output_tokens"],
                &["max_tokens"],
            ),
        ];
        for (api, optional, rest) in apis {
            let row = Compat { cache: true, ..Compat::DEFAULT };
            let mut options = RequestOptions::new(&spec, api, row).unwrap();
            let sent = |options: &RequestOptions| {
                let body: Value = serde_json::from_slice(&options.body(api, &request(&[]))).unwrap();
                FIELDS.into_iter().filter(|field| body.get(field).is_some()).collect::<Vec<_>>()
            };
            let before = sent(&options);
            assert!(optional.iter().all(|field| before.contains(field)), "{:?}: {before:?}", api);
            for field in FIELDS {
                let advice = options.adapt(&unknown(field));
                assert_eq!(advice.is_some(), optional.contains(&field), "{:?} {field}: {advice:?}", api);
            }
            let after = sent(&options);
            assert_eq!(after, [rest, &["model"]].concat(), "{:?}", api);
            assert!(FIELDS.into_iter().all(|field| options.adapt(&unknown(field)).is_none()), "each only once");
        }
    }

    #[test]
    fn refusal_of_value_or_other_field_changes_nothing() {
        let spec = ModelSpec { effort: Some(Effort::Low), temperature: Some(1.0), ..ModelSpec::default() };
        let mut options = RequestOptions::new(&spec, ApiKind::Responses, Compat::DEFAULT).unwrap();
        for refusal in [
            "max_output_tokens is too large: 99. This model supports at most 50.",
            "Unknown parameter: 'top_p'. See the included list of reasoning_models.",
            "Unsupported value: 'temperature' does not support 0.2 with this model.",
            "'reasoning.effort' must be one of 'high'",
            "Unsupported parameter: 'top_p'. Supported parameters include 'model'.",
            "Function tools with reasoning_effort are not supported for m in /v1/chat/completions, use /v1/responses",
        ] {
            assert_eq!(options.adapt(refusal), None, "{refusal}");
        }
        let refusal = "Unsupported parameter: 'temperature'. Supported parameters include 'model'.";
        assert_eq!(options.adapt(refusal), Some("remove `temperature`"));
        assert!(options.adapt("unknown field `include`, expected one of").is_some());
    }

    #[test]
    fn limit_of_answer_has_its_other_name_once() {
        let other_name = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        let mut options = RequestOptions::new(&ModelSpec::default(), ApiKind::Chat, Compat::DEFAULT).unwrap();
        let advice = "set compat = { max_tokens_field = \"max_completion_tokens\" }";
        assert_eq!(options.adapt(other_name), Some(advice));
        assert_eq!((options.adapt(other_name), options.adapt("unknown field max_completion_tokens")), (None, None));
    }

    #[test]
    fn refusal_that_names_field_gets_advice() {
        let spec = ModelSpec { effort: Some(Effort::Low), temperature: Some(1.0), ..ModelSpec::default() };
        let options = RequestOptions::new(&spec, ApiKind::Chat, Compat::DEFAULT).unwrap();
        assert!(options.advice("Unknown parameter: 'reasoning_effort'.").unwrap().contains("compat"));
        assert!(options.advice("Temperature must be 1").unwrap().contains("`temperature`"));
        assert_eq!(options.advice("'reasoning_effort' … use /v1/responses"), Some("set api = \"responses\""));
        assert_eq!(options.advice("no"), None);
        assert_eq!(options.advice("response_format is not supported"), None);
    }

    #[test]
    fn refused_schema_names_its_setting() {
        let spec = ModelSpec { tool_calls: ToolCalls::Json, ..ModelSpec::default() };
        let options = RequestOptions::new(&spec, ApiKind::Chat, Compat::DEFAULT).unwrap();
        for text in ["Unknown parameter: 'response_format'", "failed to parse grammar", "json_schema: no"] {
            assert!(options.advice(text).unwrap().ends_with("remove `tool_calls`"), "{text}");
        }
        assert_eq!(options.advice("no"), None);
        let extra_body = Map::from_iter([("response_format".to_owned(), json!({}))]);
        let spec = ModelSpec { extra_body, ..spec };
        let problem = RequestOptions::new(&spec, ApiKind::Chat, Compat::DEFAULT).err().unwrap();
        assert!(problem.contains("which `tool_calls` sends too"), "{problem}");
    }
}
