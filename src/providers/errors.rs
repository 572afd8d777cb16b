//! Classifies errors of all APIs, see [`ModelError`]: among others temporary ones, limits of the account, and wrong settings.
//!
//! Statuses and kinds: <https://platform.claude.com/docs/en/api/errors>, <https://platform.openai.com/docs/guides/error-codes>.
//! `retry-after` and `x-should-retry` are used as in the API's clients (anthropics/anthropic-sdk-typescript, `src/client.ts`,
//! `shouldRetry` and `retryRequest`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::domain::text::{one_line, shorten};
use crate::ports::ModelError;

/// The longest quote of a server's text, in characters.
const QUOTE_CHARS_MAX: usize = 400;
/// The longest quote of a request id, in characters.
const REQUEST_ID_CHARS_MAX: usize = 80;
/// The longest wait that a server can ask for.
const RETRY_AFTER_MAX: Duration = crate::domain::team::account::LIMIT_TIME_MAX;

/// The smallest context window, in tokens. A smaller number in an error has another meaning.
const WINDOW_TOKENS_MIN: u64 = 512;

/// The texts for a context that is too long, of all known servers, in lower case.
const TOO_LONG: [&str; 17] = [
    "prompt is too long",
    "exceed context limit",
    "exceed_context_size_error",
    "context_length_exceeded",
    "exceeds the context window",
    "context window exceeds limit",
    "exceeds the available context size",
    "available context size (",
    "maximum context length",
    "exceeds the maximum number of tokens allowed",
    "maximum prompt length is",
    "reduce the length of the messages",
    "longer than the model's context length",
    "greater than the context length",
    "exceeded model token limit",
    "range of input length",
    "model_context_window_exceeded",
];
/// The texts that precede the size of the context window, in lower case.
const WINDOW_PREFIXES: [&str; 8] = [
    "maximum context length",
    "available context size (",
    "exceeds the maximum number of tokens allowed",
    "maximum prompt length is",
    "exceeded model token limit",
    "range of input length",
    "context length of only",
    "n_ctx:",
];
/// The texts of errors that are about the rate, even if they name tokens, in lower case.
const RATE_LIMITED: [&str; 2] = ["rate limit", "too many requests"];
/// The kinds of errors of a wrong key or model: those of the API, and that of servers that are compatible with other APIs too.
const WRONG_SETTING_KINDS: [&str; 4] =
    ["authentication_error", "permission_error", "not_found_error", "model_not_found"];
/// The kind of LiteLLM's answer to a wrong key, if it has no database of keys.
const NO_KEY_DATABASE: &str = "no_db_connection";
/// Parts of messages about an unknown model in answers without such a kind: of LiteLLM, OpenRouter, Mistral and DeepSeek, in lower case.
const UNKNOWN_MODEL: [&str; 4] = ["invalid model name", "is not a valid model id", "invalid model:", "model not exist"];
/// The kinds of errors about an account without credit. Time alone does not help.
const BILLING_ERRORS: [&str; 3] = ["billing_error", "insufficient_quota", "credit_balance_exhausted"];
/// The kind of an error about a plan that is used up for hours.
const PLAN_USED_UP: &str = "1308";
/// The kinds of errors about the rate of an account, in a stream.
const RATE_ERRORS: [&str; 3] = ["rate_limit_error", "rate_limit_exceeded", SLOW_DOWN];
/// The status of a refused request, which some services put into a stream as the code of its error.
const TOO_MANY_REQUESTS: &str = "429";
/// The kind of an answer whose call the server could not read. The next answer can be right.
const TOOL_USE_FAILED: &str = "tool_use_failed";
/// The kind of an error about a rate that rose too fast, and the wait without another one.
const SLOW_DOWN: &str = "slow_down";
const SLOW_DOWN_WAIT: Duration = Duration::from_secs(15);
/// A part of messages about an account without credit, which can be an `invalid_request_error`, in lower case.
const NO_CREDIT: &str = "credit balance";
/// The same in answers about the account. Other errors can quote a request about billing.
const BILLING: &str = "billing";
/// The kind of other final errors in a stream. Every other kind in a stream is temporary:
/// `overloaded_error`, `api_error` and unknown kinds.
const FINAL_KIND: &str = "invalid_request_error";

/// An error as the server describes it.
#[derive(Debug, Default)]
pub struct ApiError {
    /// The kind, such as `overloaded_error`.
    pub kind: Option<String>,
    /// A more exact kind, such as `model_not_found`, or a number.
    pub code: Option<String>,
    /// The message for people.
    pub message: Option<String>,
    /// The context window in an error of llama.cpp's server.
    pub n_ctx: Option<u64>,
    /// The wait that the body asks for.
    pub wait: Option<Duration>,
}

impl ApiError {
    /// Reads the beginning of a response. One that is not JSON is a page or a text.
    fn of_body(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => Self::of_value(&value),
            _ => Self { message: Some(page_text(body)), ..Self::default() },
        }
    }

    /// Reads an error in any of the forms that servers use: an object, a list of one, or a text; alone, or under `error` or `detail`.
    pub fn of_value(value: &Value) -> Self {
        let word = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        match value {
            Value::Array(errors) => errors.first().map(Self::of_value).unwrap_or_default(),
            Value::Object(fields) => {
                let inner =
                    ["error", "detail"].iter().filter_map(|key| fields.get(*key)).find(|inner| !inner.is_null());
                if let Some(inner) = inner {
                    return Self::of_value(inner);
                }
                let field = |key: &str| fields.get(key).and_then(word);
                let message = field("message").or_else(|| field("msg"));
                let n_ctx = fields.get("n_ctx").and_then(Value::as_u64);
                let wait = wait_in_details(value).or_else(|| wait_in_text(message.as_deref()?));
                Self { kind: field("type"), code: field("code"), message, n_ctx, wait }
            }
            Value::String(text) => Self { message: Some(text.clone()), wait: wait_in_text(text), ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Returns the error in an answer with status 200.
    pub fn in_answer(answer: &Value) -> Option<Self> {
        let is_error =
            |value: &Value| !matches!(value["error"], Value::Null | Value::Bool(false)) || value["object"] == "error";
        (is_error(answer) || is_error(&answer[0])).then(|| Self::of_value(answer))
    }

    /// Returns true if its kind or code is one of these.
    fn is_one_of(&self, kinds: &[&str]) -> bool {
        [&self.kind, &self.code].into_iter().flatten().any(|kind| kinds.contains(&kind.as_str()))
    }

    /// Returns true if its message contains one of these texts, which are in lower case.
    fn mentions(&self, texts: &[&str]) -> bool {
        let message = self.message.as_deref().unwrap_or("").to_lowercase();
        texts.iter().any(|text| message.contains(text))
    }

    /// Returns true if the server refuses the key.
    fn refuses_key(&self, status: u16) -> bool {
        matches!(status, 401 | 403) || self.is_one_of(&[NO_KEY_DATABASE])
    }

    /// Returns true if the account of the key has no credit. Errors about a rate name the page for billing too.
    fn is_about_credit(&self, status: u16) -> bool {
        if self.is_one_of(&BILLING_ERRORS) {
            return true;
        }
        let is_about_rate = self.wait.is_some() || self.is_one_of(&RATE_ERRORS);
        let is_about_account = matches!(status, 402 | 403 | 429);
        !is_about_rate && (self.mentions(&[NO_CREDIT]) || (is_about_account && self.mentions(&[BILLING])))
    }

    /// Returns true if the key or the model in the settings is wrong.
    fn is_wrong_setting(&self) -> bool {
        self.refuses_key(0) || self.is_one_of(&WRONG_SETTING_KINDS) || self.mentions(&UNKNOWN_MODEL)
    }

    /// The context window in an error about too many tokens.
    fn window_tokens(&self) -> Option<u64> {
        let message = self.message.as_deref().unwrap_or("").to_lowercase();
        let after_prefix = WINDOW_PREFIXES.iter().filter_map(|prefix| message.split_once(prefix));
        let named = after_prefix.flat_map(|(_, rest)| numbers(rest)).find(|tokens| *tokens >= WINDOW_TOKENS_MIN);
        if let Some(tokens) = self.n_ctx.filter(|tokens| *tokens >= WINDOW_TOKENS_MIN).or(named) {
            return Some(tokens);
        }
        // `… 210000 tokens > 200000 maximum`, `… exceed context limit: 190000 + 21333 > 200000`
        let limit = message.rsplit_once('>').map(|(_, limit)| limit.trim_start());
        let number = limit.and_then(|limit| limit.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
        number.filter(|tokens| *tokens >= WINDOW_TOKENS_MIN)
    }
}

/// The whole numbers in a text.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok())
}

/// Returns true if the server refuses the key.
pub fn refuses_key(status: u16, body: &str) -> bool {
    ApiError::of_body(body).refuses_key(status)
}

/// The error for a key that the server refuses. It names the variables that hold the keys, not the request, so that
/// every member with the same key gets the same text. `missing` is the variable to set if no key was sent.
pub fn key_refused(status: u16, body: &str, variables: &[&str], missing: &str) -> String {
    let message = quoted(&ApiError::of_body(body).message.unwrap_or_default());
    let answer = if message.is_empty() { status.to_string() } else { format!("{status}: {message}") };
    if variables.is_empty() {
        return format!("needs a key ({answer}): set {missing} in the environment");
    }
    format!("refused the key in {} ({answer})", variables.join(" and "))
}

/// Returns true for the answer of a gateway that stopped to wait for its server. The server can have worked on the request.
pub fn may_have_used_tokens(status: u16) -> bool {
    matches!(status, 504 | 524)
}

/// Classifies a response other than a stream. `body` is its beginning.
pub fn from_response(status: u16, headers: &HeaderMap, body: &str, now: SystemTime) -> ModelError {
    let error = ApiError::of_body(body);
    let text = error_text(&format!("answered {status}"), &error, request_id(headers));
    // Some servers refuse a context that is too long without a word.
    if is_too_long(status, &error) || (status == 400 && body.trim().is_empty()) {
        return ModelError::ContextTooLong { message: text, window_tokens: error.window_tokens() };
    }
    let wait = retry_after(headers, now);
    let is_temporary = match headers.get("x-should-retry").map(|value| value.as_bytes()) {
        Some(b"true") => true,
        Some(b"false") => false,
        _ if error.is_one_of(&[TOOL_USE_FAILED]) => true,
        // A service whose account is refilled says when.
        _ if status == 402 => wait.is_some(),
        _ if error.is_about_credit(status) => false,
        // 501 is the answer of a server that has no such API. 498 is one about capacity.
        _ => matches!(status, 408 | 409 | 429 | 498 | 500 | 502..),
    };
    match (is_temporary, status) {
        (true, _) => {
            let least_wait = error.is_one_of(&[SLOW_DOWN]).then_some(SLOW_DOWN_WAIT);
            let wait = wait.or_else(|| rate_limit_reset(headers)).or(error.wait).or(least_wait);
            match status {
                429 => limited(&error, text, wait),
                402 | 503 | 529 if wait.is_some() => limited(&error, text, wait),
                _ => ModelError::Temporary { message: text, retry_after: wait },
            }
        }
        (false, 300..=399) => {
            ModelError::WrongSetting(format!("{text}; redirects are not followed: set `base_url` to the final address"))
        }
        (false, _) if status == 402 || error.is_about_credit(status) => ModelError::NoCredit(text),
        (false, 401..=405 | 501) => ModelError::WrongSetting(text),
        (false, _) if error.is_wrong_setting() => ModelError::WrongSetting(text),
        (false, _) => ModelError::Final(text),
    }
}

/// Classifies an `error` event in a stream.
pub fn from_event(error: &ApiError, request_id: Option<String>) -> ModelError {
    let text = error_text("ended its answer with error", error, request_id);
    if is_too_long(0, error) {
        ModelError::ContextTooLong { message: text, window_tokens: error.window_tokens() }
    } else if error.is_about_credit(0) {
        ModelError::NoCredit(text)
    } else if error.is_wrong_setting() {
        ModelError::WrongSetting(text)
    } else if error.is_one_of(&RATE_ERRORS) || error.is_one_of(&[PLAN_USED_UP, TOO_MANY_REQUESTS]) {
        limited(error, text, error.wait)
    } else if error.kind.as_deref() == Some(FINAL_KIND) {
        ModelError::Final(text)
    } else {
        ModelError::Temporary { message: text, retry_after: error.wait }
    }
}

fn limited(error: &ApiError, message: String, wait: Option<Duration>) -> ModelError {
    ModelError::Limited { message, wait, is_quota: error.is_one_of(&[PLAN_USED_UP]) }
}

/// The id of the request, for the operators of the server.
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("request-id").or_else(|| headers.get("x-request-id"))?.to_str().ok()?.trim();
    let id: String = id.chars().take(REQUEST_ID_CHARS_MAX).collect();
    (!id.is_empty()).then_some(id)
}

/// Joins `what`, the error and the request's id to one sentence.
fn error_text(what: &str, error: &ApiError, request_id: Option<String>) -> String {
    let mut text = what.to_owned();
    if let Some(kind) = &error.kind {
        text = format!("{text} {}", quoted(kind));
    }
    if let Some(message) = error.message.as_deref().map(quoted).filter(|message| !message.is_empty()) {
        text = format!("{text}: {message}");
    }
    with_request_id(text, request_id)
}

/// Appends the request's id to a sentence.
pub fn with_request_id(text: String, request_id: Option<String>) -> String {
    match request_id {
        Some(id) => format!("{text} (request {id})"),
        None => text,
    }
}

/// Returns true if only a shorter context helps. This includes a request with too many bytes (413).
fn is_too_long(status: u16, error: &ApiError) -> bool {
    let texts = [&error.kind, &error.code, &error.message].into_iter().flatten().map(|text| text.to_lowercase());
    let text = texts.collect::<Vec<_>>().join("\n");
    let has = |patterns: &[&str]| patterns.iter().any(|pattern| text.contains(pattern));
    status == 413 || (has(&TOO_LONG) && !has(&RATE_LIMITED))
}

/// The text of a response that is not JSON: the title of the page, or all of it.
fn page_text(body: &str) -> String {
    let title = body.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    match title {
        Some((title, _)) => title.to_owned(),
        None if body.trim_start().starts_with('<') => "a page without a title".to_owned(),
        None => body.to_owned(),
    }
}

/// A server's text in one line of at most `QUOTE_CHARS_MAX` characters.
pub fn quoted(text: &str) -> String {
    shorten(&one_line(text), QUOTE_CHARS_MAX)
}

/// The wait that the server asks for, given in milliseconds, in seconds or as a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    if let Some(ms) = text("retry-after-ms").and_then(number) {
        return Some(bounded(ms / 1000.0));
    }
    let value = text(RETRY_AFTER.as_str())?;
    if let Some(seconds) = number(value) {
        return Some(bounded(seconds));
    }
    // Compare with the server's clock, if it sent its date: it calculated the date of `retry-after` by that clock.
    let local = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_s = text(DATE.as_str()).and_then(http_date).map_or(local.as_secs_f64(), |date| date.as_second() as f64);
    http_date(value).map(|until| bounded(until.as_second() as f64 - now_s))
}

/// The time until the limits of the rate that are used up are reset, as OpenAI and compatible services report it.
fn rate_limit_reset(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: String| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let of_kind = |kind: &str| {
        let remaining = text(format!("x-ratelimit-remaining-{kind}"))?;
        text(format!("x-ratelimit-reset-{kind}")).filter(|_| remaining == "0").and_then(duration)
    };
    ["tokens", "requests"].into_iter().filter_map(of_kind).max()
}

/// The wait in the details of an error: `metadata.retry_after_seconds`, or the `retryDelay` of an entry of `details`.
fn wait_in_details(error: &Value) -> Option<Duration> {
    if let Some(seconds) = error["metadata"]["retry_after_seconds"].as_f64() {
        return Some(bounded(seconds));
    }
    let details = error["details"].as_array()?;
    details.iter().filter_map(|detail| detail["retryDelay"].as_str()).find_map(duration)
}

/// The wait in a text such as `Please try again in 5.289s.`
fn wait_in_text(text: &str) -> Option<Duration> {
    let (_, rest) = text.split_once("try again in ")?;
    duration(rest.split_whitespace().next()?.trim_end_matches(['.', ',', ';', ')']))
}

/// Reads a duration such as `2.5s`, `6m0s`, `120ms`, or a number of seconds.
fn duration(text: &str) -> Option<Duration> {
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_start = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(unit_start);
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let unit_seconds = match unit {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit_seconds;
        rest = after;
    }
    (!text.is_empty()).then(|| bounded(seconds))
}

fn http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

fn bounded(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, RETRY_AFTER_MAX.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    fn of(status: u16, pairs: &[(&'static str, &'static str)], body: &str) -> ModelError {
        from_response(status, &headers(pairs), body, UNIX_EPOCH + Duration::from_secs(1_445_412_420))
    }

    const OVERLOADED: &str = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"x":1}"#;

    #[test]
    fn http_status_decides_temporary_or_final() {
        for status in [408, 409, 500, 502, 503, 504, 529] {
            assert!(matches!(of(status, &[], OVERLOADED), ModelError::Temporary { .. }), "{status}");
        }
        for status in [204, 400, 422] {
            assert!(matches!(of(status, &[], OVERLOADED), ModelError::Final(_)), "{status}");
        }
        for status in [302, 401, 403, 404, 405, 501] {
            assert!(matches!(of(status, &[], OVERLOADED), ModelError::WrongSetting(_)), "{status}");
        }
        assert!(matches!(of(400, &[("x-should-retry", "true")], "{}"), ModelError::Temporary { .. }));
        assert!(matches!(of(529, &[("x-should-retry", "false")], "{}"), ModelError::Final(_)));
    }

    #[test]
    fn context_too_long_is_recognised_in_error_body() {
        for (status, body) in [
            (400, r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}"#),
            (400, r#"{"error":{"message":"input length and `max_tokens` exceed context limit: 1 + 2 > 2"}}"#),
            (400, r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"too many"}}"#),
            (413, "<html><title>413</title>"),
            (400, ""),
            (400, r#"{"error":{"message":"no","type":"invalid_request_error","code":"context_length_exceeded"}}"#),
            (400, r#"{"error":"The prompt is greater than the context length"}"#),
            (
                400,
                r#"[{"error":{"code":400,"message":"input token count (9) exceeds the maximum number of tokens allowed (8)."}}]"#,
            ),
            (400, r#"{"object":"error","message":"Prompt is longer than the model's context length","code":1}"#),
        ] {
            assert!(matches!(of(status, &[], body), ModelError::ContextTooLong { .. }), "{body}");
        }
        let event = ApiError::in_answer(&serde_json::json!({"error": "greater than the context length"})).unwrap();
        assert!(matches!(from_event(&event, None), ModelError::ContextTooLong { .. }));
        let rate = r#"{"error":{"message":"Rate limit reached: reduce the length of the messages"}}"#;
        assert!(matches!(of(429, &[], rate), ModelError::Limited { .. }));
    }

    #[test]
    fn error_without_credit_is_not_repeated() {
        for (status, body) in [
            (429, r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#),
            (429, r#"{"error":{"message":"no","type":"credit_balance_exhausted"}}"#),
            (429, r#"{"error":{"message":"check your plan and billing details"}}"#),
            (402, r#"{"error":{"message":"add credits","code":402}}"#),
        ] {
            assert!(matches!(of(status, &[], body), ModelError::NoCredit(_)), "{body}");
        }
        let litellm = r#"{"error":{"message":"No connected db.","type":"no_db_connection","code":"400"}}"#;
        assert!(matches!(of(400, &[], litellm), ModelError::WrongSetting(_)) && refuses_key(400, litellm));
        for status in [400, 422, 500] {
            let quoted = of(status, &[], r#"{"error":{"message":"invalid value: fn billing() {}"}}"#);
            assert!(matches!(quoted, ModelError::Final(_) | ModelError::Temporary { .. }), "{quoted:?}");
        }
        let refilled = of(402, &[("retry-after", "60")], "{}");
        assert!(matches!(refilled, ModelError::Limited { wait: Some(_), is_quota: false, .. }), "{refilled:?}");
    }

    #[test]
    fn limit_of_account_differs_from_other_failures() {
        let limit = |error| match error {
            ModelError::Limited { is_quota, .. } => Some(is_quota),
            _ => None,
        };
        let wait = [("retry-after", "3")];
        for code in ["\"1308\"", "1308"] {
            let plan = format!(r#"{{"error":{{"code":{code},"message":"Usage limit reached for 5 hours"}}}}"#);
            assert_eq!(limit(of(429, &[], &plan)), Some(true), "{plan}");
        }
        assert_eq!(limit(of(429, &[], OVERLOADED)), Some(false));
        for status in [503, 529] {
            assert_eq!((limit(of(status, &wait, "")), limit(of(status, &[], ""))), (Some(false), None), "{status}");
        }
        assert!(matches!(of(500, &wait, ""), ModelError::Temporary { retry_after: Some(_), .. }));
        let event = |code: &str| from_event(&ApiError { code: Some(code.to_owned()), ..ApiError::default() }, None);
        assert_eq!(limit(event("rate_limit_exceeded")), Some(false));
        assert_eq!(limit(event("1308")), Some(true));
        assert_eq!(limit(event("server_error")), None);
    }

    #[test]
    fn invalid_call_and_missing_capacity_are_temporary() {
        let failed = r#"{"error":{"message":"Failed to call a function","type":"invalid_request_error","code":"tool_use_failed","failed_generation":"<function=bash>"}}"#;
        assert!(matches!(of(400, &[], failed), ModelError::Temporary { .. }));
        assert!(matches!(of(498, &[], "{}"), ModelError::Temporary { .. }));
        let slow = r#"{"error":{"message":"no","code":"slow_down"}}"#;
        let ModelError::Limited { wait, .. } = of(429, &[], slow) else { panic!() };
        assert_eq!(wait, Some(SLOW_DOWN_WAIT));
    }

    #[test]
    fn error_bodies_of_all_forms_are_read() {
        for (body, text) in [
            (r#"{"error":{"message":"no","type":"t","param":null,"code":null}}"#, "answered 400 t: no"),
            (r#"[{"error":{"code":400,"message":"no","status":"INVALID"}}]"#, "answered 400: no"),
            (r#"{"error":"no"}"#, "answered 400: no"),
            (r#"{"object":"error","message":"no","type":"t","param":null,"code":7}"#, "answered 400 t: no"),
            (r#"{"detail":"no"}"#, "answered 400: no"),
            (
                r#"{"detail":[{"type":"extra_forbidden","loc":["body","x"],"msg":"no"}]}"#,
                "answered 400 extra_forbidden: no",
            ),
            ("<html><title>no</title></html>", "answered 400: no"),
            ("[]", "answered 400"),
            ("[[[]]]", "answered 400"),
        ] {
            assert_eq!(of(400, &[], body).to_string(), text, "{body}");
        }
    }

    #[test]
    fn unknown_model_is_wrong_setting_with_any_status() {
        for (status, body) in [
            (404, r#"{"type":"error","error":{"type":"not_found_error","message":"model: m-9"}}"#),
            (404, r#"{"error":{"message":"The model `m-9` does not exist","type":"NotFoundError","code":404}}"#),
            (400, r#"{"error":{"message":"no","type":"invalid_request_error","code":"model_not_found"}}"#),
            // Of LiteLLM, OpenRouter, Mistral and DeepSeek.
            (400, r#"{"error":{"message":"/chat/completions: Invalid model name passed in model=m-9.","code":"400"}}"#),
            (400, r#"{"error":{"message":"v/m-9 is not a valid model ID","code":400}}"#),
            (400, r#"{"object":"error","message":"Invalid model: m-9","type":"invalid_model"}"#),
            (400, r#"{"error":{"message":"Model Not Exist","type":"invalid_request_error"}}"#),
        ] {
            assert!(matches!(of(status, &[], body), ModelError::WrongSetting(_)), "{body}");
        }
        let other = r#"{"error":{"message":"no","type":"invalid_request_error","code":400}}"#;
        assert!(matches!(of(400, &[], other), ModelError::Final(_)));
    }

    #[test]
    fn context_window_size_is_read_from_error() {
        for (message, window) in [
            (r#""prompt is too long: 210000 tokens > 200000 maximum""#, Some(200_000)),
            (
                r#""input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000, decrease""#,
                Some(200_000),
            ),
            (r#""the request exceeds the available context size", "n_ctx": 16384"#, Some(16_384)),
            (
                r#""This model's maximum context length is 8192 tokens. However, you requested 9000 tokens""#,
                Some(8_192),
            ),
            (r#""request (5000 tokens) exceeds the available context size (4096 tokens)""#, Some(4_096)),
            (
                r#""The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).""#,
                Some(1_048_576),
            ),
            (
                r#""This model's maximum prompt length is 131072 but the request contains 200000 tokens.""#,
                Some(131_072),
            ),
            (r#""Your request exceeded model token limit: 262144 (requested: 300000)""#, Some(262_144)),
            (r#""Range of input length should be [1, 129024]""#, Some(129_024)),
            (r#""n_keep: 5000 is greater than the context length (n_keep: 5000>= n_ctx: 4096)""#, Some(4_096)),
            (r#""prompt is too long: 9 tokens > 8 maximum""#, None),
            (r#""prompt is too long""#, None),
        ] {
            let body = format!(r#"{{"error":{{"type":"exceed_context_size_error","message":{message}}}}}"#);
            let ModelError::ContextTooLong { window_tokens, .. } = of(400, &[], &body) else { panic!("{body}") };
            assert_eq!(window_tokens, window, "{body}");
        }
    }

    #[test]
    fn retry_after_parses_seconds_and_dates_bounded() {
        let date = "Wed, 21 Oct 2015 07:28:00 GMT";
        for (pairs, seconds) in [
            (vec![("retry-after", "2")], Some(2.0)),
            (vec![("retry-after", "0.5")], Some(0.5)),
            (vec![("retry-after-ms", "1500"), ("retry-after", "9")], Some(1.5)),
            (vec![("retry-after", date)], Some(60.0)),
            (vec![("retry-after", date), ("date", "Wed, 21 Oct 2015 07:27:50 GMT")], Some(10.0)),
            (vec![("retry-after", "Wed, 21 Oct 2015 07:20:00 GMT")], Some(0.0)),
            (vec![("retry-after", "-3")], Some(0.0)),
            (vec![("retry-after", "1e300")], Some(RETRY_AFTER_MAX.as_secs_f64())),
            (vec![("retry-after", "soon")], None),
            (vec![("retry-after", "NaN")], None),
            (vec![], None),
        ] {
            let ModelError::Limited { wait: retry_after, .. } = of(429, &pairs, "") else { panic!("{pairs:?}") };
            assert_eq!(retry_after.map(|wait| wait.as_secs_f64()), seconds, "{pairs:?}");
        }
    }

    #[test]
    fn wait_is_read_from_limits_and_body() {
        let used_up = ("x-ratelimit-remaining-tokens", "0");
        for (pairs, body, seconds) in [
            (vec![used_up, ("x-ratelimit-reset-tokens", "6m0s")], "", Some(360.0)),
            (vec![used_up, ("x-ratelimit-reset-tokens", "120ms")], "", Some(0.12)),
            (vec![used_up, ("x-ratelimit-reset-tokens", "7")], "", Some(7.0)),
            (vec![("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "1m2.5s")], "", Some(62.5)),
            (vec![("x-ratelimit-remaining-tokens", "5"), ("x-ratelimit-reset-tokens", "6m0s")], "", None),
            (vec![used_up, ("x-ratelimit-reset-tokens", "2s"), ("retry-after", "9")], "", Some(9.0)),
            (vec![used_up, ("x-ratelimit-reset-tokens", "soon")], "", None),
            (vec![], r#"{"error":{"message":"no","metadata":{"retry_after_seconds":3}}}"#, Some(3.0)),
            (vec![], r#"[{"error":{"details":[{"@type":"x"},{"retryDelay":"2s"}]}}]"#, Some(2.0)),
            (vec![], r#"{"error":{"message":"Rate limit reached. Please try again in 5.289s. Visit x"}}"#, Some(5.289)),
            (vec![], r#"{"error":{"message":"Please try again in 1h2m3s."}}"#, Some(3_723.0)),
            (vec![], r#"{"error":{"message":"try again in a moment"}}"#, None),
            (vec![], r#"{"error":{"message":"try again in 9999999999999h"}}"#, Some(RETRY_AFTER_MAX.as_secs_f64())),
        ] {
            let ModelError::Limited { wait: retry_after, .. } = of(429, &pairs, body) else {
                panic!("{pairs:?} {body}")
            };
            assert_eq!(retry_after.map(|wait| wait.as_secs_f64()), seconds, "{pairs:?} {body}");
        }
    }

    #[test]
    fn server_error_text_is_one_line_with_request_id() {
        let error = of(529, &[("request-id", "req_7")], OVERLOADED);
        assert_eq!(error.to_string(), "answered 529 overloaded_error: Overloaded (request req_7)");
        let page = of(502, &[], "<html>\n<head><title>502\n Bad\x1b[31m Gateway</title>").to_string();
        assert_eq!(page, "answered 502: 502 Bad\\u{1b}[31m Gateway");
        assert_eq!(of(500, &[], "<html>").to_string(), "answered 500: a page without a title");
        assert!(of(500, &[], &"ü".repeat(9999)).to_string().chars().count() < 500);
        assert_eq!(of(500, &[], "").to_string(), "answered 500");
    }

    #[test]
    fn rate_error_that_names_billing_is_a_limit() {
        let advice = "Please check your plan and billing details.";
        for body in [
            json!([{"error": {"code": 429, "message": advice, "details": [{"retryDelay": "2s"}]}}]),
            json!({"error": {"message": format!("Please try again in 2s. {advice}"), "type": "requests"}}),
            json!({"error": {"message": advice, "code": "rate_limit_exceeded"}}),
        ] {
            assert!(matches!(of(429, &[], &body.to_string()), ModelError::Limited { .. }), "{body}");
            assert!(!refuses_key(429, &body.to_string()), "{body}");
        }
        for body in
            [json!({"error": {"code": 429, "message": advice}}), json!({"error": {"code": "insufficient_quota"}})]
        {
            assert!(matches!(of(429, &[], &body.to_string()), ModelError::NoCredit(_)), "{body}");
        }
    }

    #[test]
    fn stream_error_kind_decides_temporary_or_final() {
        let code = json!({"error": {"code": 429, "message": "slow", "metadata": {"retry_after_seconds": 3}}});
        let limit = from_event(&ApiError::in_answer(&code).unwrap(), None);
        assert!(matches!(limit, ModelError::Limited { wait: Some(wait), .. } if wait.as_secs() == 3), "{limit:?}");
        let of = |kind: &str| from_event(&ApiError { kind: Some(kind.into()), ..ApiError::default() }, None);
        assert!(matches!(of("overloaded_error"), ModelError::Temporary { .. }));
        assert!(matches!(of("brand_new_error"), ModelError::Temporary { .. }));
        assert!(matches!(of("billing_error"), ModelError::NoCredit(_)));
        assert!(matches!(of("authentication_error"), ModelError::WrongSetting(_)));
    }
}
