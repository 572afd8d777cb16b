//! Classifies errors of the Messages API: temporary, context too long, or final.
//!
//! Statuses and kinds: <https://platform.claude.com/docs/en/api/errors>. `retry-after` and `x-should-retry` are used as in the
//! API's clients (anthropics/anthropic-sdk-typescript, `src/client.ts`, `shouldRetry` and `retryRequest`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::domain::output::{one_line, shortened};
use crate::ports::ModelError;

/// The longest quote of a server's text, in characters.
const QUOTE_CHARS_MAX: usize = 400;
/// The longest quote of a request id, in characters.
const REQUEST_ID_CHARS_MAX: usize = 80;
/// The longest `retry-after` that is used.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

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
/// The texts of errors that are about the rate, even if they name tokens, in lower case.
const RATE_LIMITED: [&str; 2] = ["rate limit", "too many requests"];
/// The kinds of errors of a wrong key or model: those of the API, and that of servers that are compatible with other APIs too.
const WRONG_SETTING_KINDS: [&str; 4] =
    ["authentication_error", "permission_error", "not_found_error", "model_not_found"];
/// The kind of an error about an account without credit.
const BILLING_ERROR: &str = "billing_error";
/// A part of the message about an account without credit, which can be an `invalid_request_error`.
const NO_CREDIT: &str = "credit balance";
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
                Self { kind: field("type"), code: field("code"), message, n_ctx }
            }
            Value::String(text) => Self { message: Some(text.clone()), ..Self::default() },
            _ => Self::default(),
        }
    }

    /// Returns true if the account of the key has no credit.
    fn is_about_credit(&self) -> bool {
        let message = self.message.as_deref().unwrap_or("").to_lowercase();
        self.kind.as_deref() == Some(BILLING_ERROR) || message.contains(NO_CREDIT)
    }

    /// Returns true if the key or the model in the settings is wrong, or the account has no credit.
    fn is_wrong_setting(&self) -> bool {
        let mut kinds = self.kind.as_deref().into_iter().chain(self.code.as_deref());
        self.is_about_credit() || kinds.any(|kind| WRONG_SETTING_KINDS.contains(&kind))
    }

    /// The context window in an error about too many tokens.
    fn window_tokens(&self) -> Option<u64> {
        let message = self.message.as_deref().unwrap_or("");
        // `… 210000 tokens > 200000 maximum`, `… exceed context limit: 190000 + 21333 > 200000`
        let limit = message.rsplit_once('>').map(|(_, limit)| limit.trim_start());
        let number = limit.and_then(|limit| limit.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
        self.n_ctx.or(number).filter(|tokens| *tokens >= WINDOW_TOKENS_MIN)
    }
}

/// Returns true if the server refuses the key: it is wrong, or its account has no credit.
pub fn refuses_key(status: u16, body: &str) -> bool {
    matches!(status, 401..=403) || ApiError::of_body(body).is_about_credit()
}

/// The error for a key that the server refuses. It names the variables that hold the keys, not the request, so that
/// every member with the same key gets the same text. `missing` is the variable to set if no key was sent.
pub fn key_refused(status: u16, body: &str, variables: &[&str], missing: &str) -> String {
    let message = shorten(&ApiError::of_body(body).message.unwrap_or_default());
    let answer = if message.is_empty() { status.to_string() } else { format!("{status}: {message}") };
    if variables.is_empty() {
        return format!("needs a key ({answer}): set {missing} in the environment");
    }
    format!("refused the key in {} ({answer})", variables.join(" and "))
}

/// Classifies a response other than a stream. `body` is its beginning.
pub fn from_response(status: u16, headers: &HeaderMap, body: &str, now: SystemTime) -> ModelError {
    let error = ApiError::of_body(body);
    let text = error_text(&format!("answered {status}"), &error, request_id(headers));
    if is_too_long(status, &error) {
        return ModelError::ContextTooLong { message: text, window_tokens: error.window_tokens() };
    }
    let is_temporary = match headers.get("x-should-retry").map(|value| value.as_bytes()) {
        Some(b"true") => true,
        Some(b"false") => false,
        // 501 is the answer of a server that has no such API.
        _ => matches!(status, 408 | 409 | 429 | 500 | 502..),
    };
    match (is_temporary, status) {
        (true, _) => ModelError::Temporary { message: text, retry_after: retry_after(headers, now) },
        (false, 300..=399) => {
            ModelError::WrongSetting(format!("{text}; redirects are not followed: set `base_url` to the final address"))
        }
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
    } else if error.is_wrong_setting() {
        ModelError::WrongSetting(text)
    } else if error.kind.as_deref() == Some(FINAL_KIND) {
        ModelError::Final(text)
    } else {
        ModelError::Temporary { message: text, retry_after: None }
    }
}

/// The id of the request, for the operators of the server.
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("request-id")?.to_str().ok()?.trim();
    let id: String = id.chars().take(REQUEST_ID_CHARS_MAX).collect();
    (!id.is_empty()).then_some(id)
}

/// Joins `what`, the error and the request's id to one sentence.
fn error_text(what: &str, error: &ApiError, request_id: Option<String>) -> String {
    let mut text = what.to_owned();
    if let Some(kind) = &error.kind {
        text = format!("{text} {}", shorten(kind));
    }
    if let Some(message) = error.message.as_deref().map(shorten).filter(|message| !message.is_empty()) {
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
pub fn shorten(text: &str) -> String {
    shortened(&one_line(text), QUOTE_CHARS_MAX)
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

fn http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

fn bounded(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, RETRY_AFTER_MAX.as_secs_f64()))
}

#[cfg(test)]
mod tests {
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
        for status in [408, 409, 429, 500, 502, 503, 504, 529] {
            assert!(matches!(of(status, &[], OVERLOADED), ModelError::Temporary { .. }), "{status}");
        }
        for status in [204, 400, 422] {
            assert!(matches!(of(status, &[], OVERLOADED), ModelError::Final(_)), "{status}");
        }
        for status in [302, 401, 402, 403, 404, 405, 501] {
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
        ] {
            assert!(matches!(of(status, &[], body), ModelError::ContextTooLong { .. }), "{body}");
        }
    }

    #[test]
    fn unknown_model_is_wrong_setting_with_any_status() {
        for (status, body) in [
            (404, r#"{"type":"error","error":{"type":"not_found_error","message":"model: m-9"}}"#),
            (404, r#"{"error":{"message":"The model `m-9` does not exist","type":"NotFoundError","code":404}}"#),
            (400, r#"{"error":{"message":"no","type":"invalid_request_error","code":"model_not_found"}}"#),
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
            let ModelError::Temporary { retry_after, .. } = of(429, &pairs, "") else { panic!("{pairs:?}") };
            assert_eq!(retry_after.map(|wait| wait.as_secs_f64()), seconds, "{pairs:?}");
        }
    }

    #[test]
    fn server_error_text_is_one_line_with_request_id() {
        let error = of(529, &[("request-id", "req_7")], OVERLOADED);
        assert_eq!(error.to_string(), "answered 529 overloaded_error: Overloaded (request req_7)");
        let page = of(502, &[], "<html>\n<head><title>502\n Bad\x1b[31m Gateway</title>").to_string();
        assert_eq!(page, "answered 502: 502 Bad [31m Gateway");
        assert_eq!(of(500, &[], "<html>").to_string(), "answered 500: a page without a title");
        assert!(of(500, &[], &"ü".repeat(9999)).to_string().chars().count() < 500);
        assert_eq!(of(500, &[], "").to_string(), "answered 500");
    }

    #[test]
    fn stream_error_kind_decides_temporary_or_final() {
        let of = |kind: &str| from_event(&ApiError { kind: Some(kind.into()), ..ApiError::default() }, None);
        assert!(matches!(of("overloaded_error"), ModelError::Temporary { .. }));
        assert!(matches!(of("brand_new_error"), ModelError::Temporary { .. }));
        assert!(matches!(of("billing_error"), ModelError::WrongSetting(_)));
        assert!(matches!(of("authentication_error"), ModelError::WrongSetting(_)));
    }
}
