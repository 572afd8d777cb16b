//! What an error of the Messages API means for who asked: ask again, make the context shorter, or give up.
//!
//! Statuses and kinds: <https://platform.claude.com/docs/en/api/errors>. `retry-after` and `x-should-retry` are honoured as
//! the API's own clients do (anthropics/anthropic-sdk-typescript, `src/client.ts`, `shouldRetry` and `retryRequest`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde::Deserialize;

use crate::ports::ModelError;

/// The most of a server's words that is repeated, in characters.
const WORDS_CHARS_MAX: usize = 400;
/// The longest request id that is repeated, in characters.
const REQUEST_ID_CHARS_MAX: usize = 80;
/// The longest wait that is believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// No window is smaller, in tokens; a smaller number in an error is another one.
const WINDOW_TOKENS_MIN: u64 = 512;

/// How servers say that the context is too long: the API itself, and llama.cpp's server.
const TOO_LONG: [&str; 4] =
    ["prompt is too long", "exceed context limit", "exceeds the available context size", "exceed_context_size_error"];
/// Kinds of errors that do not pass. A server says an error inside a stream that began well; any other kind there passes:
/// `overloaded_error`, `api_error`, and what is not known.
const LASTING: [&str; 5] =
    ["invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error"];

/// An error as the API describes it.
#[derive(Debug, Deserialize, Default)]
pub struct ApiError {
    /// Its kind, such as `overloaded_error`.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// What is wrong.
    #[serde(default)]
    pub message: Option<String>,
    /// The window of llama.cpp's server, when that was met.
    #[serde(default)]
    pub n_ctx: Option<u64>,
}

impl ApiError {
    /// How many tokens the model takes, as an error about too many of them says.
    fn window_tokens(&self) -> Option<u64> {
        let message = self.message.as_deref().unwrap_or("");
        // `… 210000 tokens > 200000 maximum`, `… exceed context limit: 190000 + 21333 > 200000`
        let behind = message.rsplit_once('>').map(|(_, behind)| behind.trim_start());
        let number = behind.and_then(|behind| behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
        self.n_ctx.or(number).filter(|tokens| *tokens >= WINDOW_TOKENS_MIN)
    }
}

/// Where an error description stands: in the body of a response, or the data of an `error` event.
#[derive(Debug, Deserialize)]
pub struct ApiErrorBody {
    /// It.
    pub error: ApiError,
}

/// What a response other than the wanted one means. `body` is its beginning.
#[must_use]
pub fn of_response(status: u16, headers: &HeaderMap, body: &str, now: SystemTime) -> ModelError {
    let error = match serde_json::from_str::<ApiErrorBody>(body) {
        Ok(ApiErrorBody { error }) => error,
        Err(_) => ApiError { message: Some(words_of_page(body)), ..ApiError::default() },
    };
    let text = sentence(&format!("answered {status}"), &error, request_id(headers));
    if is_too_long(status, &error) {
        return ModelError::ContextTooLong { message: text, window_tokens: error.window_tokens() };
    }
    let passes = match headers.get("x-should-retry").map(|value| value.as_bytes()) {
        Some(b"true") => true,
        Some(b"false") => false,
        _ => matches!(status, 408 | 409 | 429 | 500..),
    };
    match (passes, status) {
        (true, _) => ModelError::Temporary { message: text, retry_after: retry_after(headers, now) },
        (false, 300..400) => ModelError::Final(format!(
            "{text}; redirects are not followed, so `base_url` has to say where it really is"
        )),
        (false, _) => ModelError::Final(text),
    }
}

/// What an `error` event inside a stream means.
#[must_use]
pub fn of_event(error: &ApiError, request_id: Option<String>) -> ModelError {
    let text = sentence("broke its answer off", error, request_id);
    if is_too_long(0, error) {
        ModelError::ContextTooLong { message: text, window_tokens: error.window_tokens() }
    } else if error.kind.as_deref().is_some_and(|kind| LASTING.contains(&kind)) {
        ModelError::Final(text)
    } else {
        ModelError::Temporary { message: text, retry_after: None }
    }
}

/// The id of a request, for those who run the server.
#[must_use]
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("request-id")?.to_str().ok()?.trim();
    let id: String = id.chars().take(REQUEST_ID_CHARS_MAX).collect();
    (!id.is_empty()).then_some(id)
}

/// `what`, the error and the request's id as one sentence.
fn sentence(what: &str, error: &ApiError, request_id: Option<String>) -> String {
    let mut text = what.to_owned();
    if let Some(kind) = &error.kind {
        text = format!("{text} {}", shorten(kind));
    }
    if let Some(message) = error.message.as_deref().map(shorten).filter(|message| !message.is_empty()) {
        text = format!("{text}: {message}");
    }
    with_request_id(text, request_id)
}

/// A sentence with the request's id behind it.
#[must_use]
pub fn with_request_id(text: String, request_id: Option<String>) -> String {
    match request_id {
        Some(id) => format!("{text} (request {id})"),
        None => text,
    }
}

/// A request of too many bytes is one too: only a shorter context mends it.
fn is_too_long(status: u16, error: &ApiError) -> bool {
    let says = |text: &Option<String>| {
        text.as_ref().is_some_and(|text| {
            let text = text.to_lowercase();
            TOO_LONG.iter().any(|words| text.contains(words))
        })
    };
    status == 413 || says(&error.kind) || says(&error.message)
}

/// What a server that speaks no JSON says: the title of its page, or its text.
fn words_of_page(body: &str) -> String {
    let title = body.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    match title {
        Some((title, _)) => title.to_owned(),
        None if body.trim_start().starts_with('<') => "a page without a title".to_owned(),
        None => body.to_owned(),
    }
}

/// A server's words on one line, bounded.
#[must_use]
pub fn shorten(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.take(WORDS_CHARS_MAX).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(WORDS_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// How long the server asks to wait: milliseconds, seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    if let Some(ms) = text("retry-after-ms").and_then(number) {
        return Some(bounded(ms / 1000.0));
    }
    let asked = text(RETRY_AFTER.as_str())?;
    if let Some(seconds) = number(asked) {
        return Some(bounded(seconds));
    }
    // The server's own clock, where it says what it shows, is the one its date was made with.
    let here = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_s = text(DATE.as_str()).and_then(http_date).map_or(here.as_secs_f64(), |date| date.as_second() as f64);
    http_date(asked).map(|until| bounded(until.as_second() as f64 - now_s))
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
        of_response(status, &headers(pairs), body, UNIX_EPOCH + Duration::from_secs(1_445_412_420))
    }

    const OVERLOADED: &str = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"x":1}"#;

    #[test]
    fn what_passes_is_asked_for_again_and_what_does_not_is_not() {
        for status in [408, 409, 429, 500, 502, 503, 504, 529] {
            assert!(matches!(of(status, &[], OVERLOADED), ModelError::Temporary { .. }), "{status}");
        }
        for status in [204, 302, 400, 401, 402, 403, 404, 422] {
            assert!(matches!(of(status, &[], OVERLOADED), ModelError::Final(_)), "{status}");
        }
        assert!(matches!(of(400, &[("x-should-retry", "true")], "{}"), ModelError::Temporary { .. }));
        assert!(matches!(of(529, &[("x-should-retry", "false")], "{}"), ModelError::Final(_)));
    }

    #[test]
    fn a_context_that_is_too_long_is_known_by_its_words() {
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
    fn the_window_is_what_the_error_says() {
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
    fn waits_are_seconds_or_dates_and_bounded() {
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
    fn the_words_of_a_server_are_one_bounded_line_with_the_requests_id() {
        let error = of(529, &[("request-id", "req_7")], OVERLOADED);
        assert_eq!(error.to_string(), "answered 529 overloaded_error: Overloaded (request req_7)");
        let page = of(502, &[], "<html>\n<head><title>502\n Bad\x1b[31m Gateway</title>").to_string();
        assert_eq!(page, "answered 502: 502 Bad [31m Gateway");
        assert_eq!(of(500, &[], "<html>").to_string(), "answered 500: a page without a title");
        assert!(of(500, &[], &"ü".repeat(9999)).to_string().chars().count() < 500);
        assert_eq!(of(500, &[], "").to_string(), "answered 500");
    }

    #[test]
    fn errors_inside_a_stream_go_by_their_kind() {
        let of = |kind: &str| of_event(&ApiError { kind: Some(kind.into()), ..ApiError::default() }, None);
        assert!(matches!(of("overloaded_error"), ModelError::Temporary { .. }));
        assert!(matches!(of("brand_new_error"), ModelError::Temporary { .. }));
        assert!(matches!(of("authentication_error"), ModelError::Final(_)));
    }
}
