//! The provider for the Messages API of Anthropic or another server: <https://platform.claude.com/docs/en/api/messages>.
//!
//! Answers are streamed, so that people see text early, and a slow server differs from a silent one. A call sends one request and
//! never retries.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url};

use super::http::{self, TransportError};
use super::sse::SseReader;
use crate::domain::team_spec::ModelSpec;
use crate::domain::transcript::Block;
use crate::ports::{Listener, ModelClient, ModelError, ModelRequest, ModelResponse};
use crate::secrets::{Secret, masked};
use assembly::{MessageAssembler, ProtocolError};

// `assembly` and `errors` are public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
mod body;
#[doc(hidden)]
pub mod errors;

/// The URL of Anthropic's server.
pub const BASE_URL_DEFAULT: &str = "https://api.anthropic.com";
/// The variable with the API key.
pub const API_KEY: &str = "ANTHROPIC_API_KEY";
/// The variable with a bearer token.
pub const AUTH_TOKEN: &str = "ANTHROPIC_AUTH_TOKEN";
/// The variable with a base URL, for members without `base_url` in the config.
pub const BASE_URL: &str = "ANTHROPIC_BASE_URL";

/// The version of the API (<https://platform.claude.com/docs/en/api/versioning>).
const VERSION: &str = "2023-06-01";
/// The smallest context window of all Claude models, in tokens (<https://platform.claude.com/docs/en/build-with-claude/context-windows>).
const CLAUDE_WINDOW_TOKENS: u64 = 200_000;
/// The longest answer as sent, in bytes: this, and `TOKEN_BYTES_MAX` (an event with one token) for each allowed output token.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
const TOKEN_BYTES_MAX: usize = 512;
/// The longest content of an answer, in bytes: this, and `TOKEN_CONTENT_BYTES_MAX` for each allowed output token. Most tokens have
/// about 4 bytes. Encrypted thinking has more.
const CONTENT_BYTES_MAX: usize = 64 * 1024;
const TOKEN_CONTENT_BYTES_MAX: usize = 32;
/// The longest part of an error that is read, in bytes.
const ERROR_BYTES_MAX: usize = 16 * 1024;

pub struct Anthropic {
    client: Client,
    url: Url,
    /// The setting or variable with the address; `None` for the default address.
    address_setting: Option<&'static str>,
    context_window_tokens: Option<u64>,
    headers: HeaderMap,
    /// The variables that hold the keys that are sent.
    key_variables: Vec<&'static str>,
}

/// Builds the client for a member.
///
/// # Errors
/// A text that names the missing or wrong setting or variable.
pub fn connect(spec: &ModelSpec) -> Result<Arc<dyn ModelClient>, String> {
    Ok(Arc::new(Anthropic::new(spec, &|name| std::env::var(name).ok())?))
}

/// The server that `base_url` or the variable names; `None` for Anthropic's server.
pub fn server(spec: &ModelSpec) -> Option<String> {
    let from_variable = || std::env::var(BASE_URL).ok().filter(|url| !url.trim().is_empty());
    let url = messages_url(&spec.base_url.clone().or_else(from_variable)?).ok()?;
    if BASE_URL_DEFAULT.split("//").nth(1) == url.host_str() {
        return None;
    }
    Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
}

impl Anthropic {
    /// Creates a client from these settings and the environment that `variable` reads.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn new(spec: &ModelSpec, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let configured = spec.base_url.clone().map(|url| ("base_url", url));
        let from_variable = || variable(BASE_URL).filter(|url| !url.trim().is_empty()).map(|url| (BASE_URL, url));
        let (address_setting, base) = configured.or_else(from_variable).unzip();
        let url = messages_url(base.as_deref().unwrap_or(BASE_URL_DEFAULT))
            .map_err(|reason| format!("`{}` {reason}", address_setting.unwrap_or("base_url")))?;
        let mut headers = HeaderMap::from_iter([
            (HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION)),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        ]);
        let mut key_variables = Vec::new();
        for (name, header, prefix) in [(API_KEY, "x-api-key", ""), (AUTH_TOKEN, "authorization", "Bearer ")] {
            let Some(secret) = variable(name).as_deref().and_then(Secret::new) else { continue };
            headers.insert(header, secret_header(prefix, &secret).map_err(|reason| format!("{name} {reason}"))?);
            key_variables.push(name);
        }
        if key_variables.is_empty() && BASE_URL_DEFAULT.split("//").nth(1) == url.host_str() {
            return Err(format!("{BASE_URL_DEFAULT} needs a key: set {API_KEY} (or {AUTH_TOKEN}) in the environment"));
        }
        let context_window_tokens = spec.model.starts_with("claude-").then_some(CLAUDE_WINDOW_TOKENS);
        let client = http::client(&url)?;
        Ok(Self { client, url, address_setting, context_window_tokens, headers, key_variables })
    }

    fn scrub_error(&self, error: ModelError) -> ModelError {
        let with_address = |text: String| masked(format!("{} {text}", self.address()));
        match error {
            ModelError::Temporary { message, retry_after } => {
                ModelError::Temporary { message: with_address(message), retry_after }
            }
            ModelError::ContextTooLong { message, window_tokens } => {
                ModelError::ContextTooLong { message: with_address(message), window_tokens }
            }
            ModelError::WrongSetting(text) => ModelError::WrongSetting(with_address(text)),
            ModelError::NoServer(text) => ModelError::NoServer(with_address(text)),
            ModelError::Final(text) => ModelError::Final(with_address(text)),
        }
    }

    /// The error of a request without an answer. The default address is right, so a failure to reach it is temporary.
    fn no_answer(&self, error: reqwest::Error) -> ModelError {
        let is_certain = !error.is_timeout();
        let text = http::no_answer_reason(error);
        match self.address_setting {
            Some(setting) if is_certain && !http::has_answered(&self.url) => {
                // The URL has neither a password nor a query.
                let url = &self.url;
                ModelError::NoServer(format!(
                    "{text}; the request went to {url}: start that server, or correct `{setting}`"
                ))
            }
            _ => temporary(text),
        }
    }

    /// The address of the last request, and the settings to correct.
    fn wrong_address(&self, model: &str) -> String {
        let address_setting = self.address_setting.map(|setting| format!("`{setting}` or ")).unwrap_or_default();
        format!("the request went to {}: correct {address_setting}`model`, which is `{model}`", self.url)
    }

    /// The server's host, with the port if it is not the default one.
    fn address(&self) -> String {
        let host = self.url.host_str().unwrap_or("the server");
        self.url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    async fn exchange(&self, request: &ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let post = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body::body(request));
        let post = post.build().map_err(|error| ModelError::Final(http::describe(error)))?;
        let response = match tokio::time::timeout(request.silence_timeout, http::send(&self.client, post)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                if error.is_connect() {
                    listener.on_declined();
                }
                return Err(self.no_answer(error));
            }
            Err(_) => return Err(transport_error(&TransportError::Silent(request.silence_timeout), None)),
        };
        listener.on_activity();
        let response = self.expect_stream(response, request, listener).await?;
        self.read(response, request, listener).await
    }

    /// Returns the response if it is the requested stream.
    async fn expect_stream(
        &self,
        response: Response,
        request: &ModelRequest,
        listener: &dyn Listener,
    ) -> Result<Response, ModelError> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let encoding = headers.get(CONTENT_ENCODING).filter(|encoding| encoding.as_bytes() != b"identity");
        if let Some(encoding) = encoding {
            let encoding = errors::shorten(&String::from_utf8_lossy(encoding.as_bytes()));
            let text = format!("answered {status} in the encoding {encoding}, which was not requested");
            return Err(ModelError::Final(errors::with_request_id(text, errors::request_id(&headers))));
        }
        let is_stream = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if status == 200 && is_stream {
            return Ok(response);
        }
        if status == 200 {
            let kind = headers.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
            let kind = kind.map(|kind| format!(", with {}", errors::shorten(&kind))).unwrap_or_default();
            let text = format!("answered without a stream of events{kind}; Brigade needs one");
            let text = errors::with_request_id(text, errors::request_id(&headers));
            return Err(ModelError::WrongSetting(format!("{text}; {}", self.wrong_address(&request.model))));
        }
        let bytes = http::read_beginning(response, request.silence_timeout, ERROR_BYTES_MAX).await;
        let body = masked(String::from_utf8_lossy(&bytes).into_owned());
        listener.on_declined();
        match errors::from_response(status, &headers, &body, SystemTime::now()) {
            ModelError::WrongSetting(_) if errors::refuses_key(status, &body) => {
                Err(ModelError::WrongSetting(errors::key_refused(status, &body, &self.key_variables)))
            }
            ModelError::WrongSetting(text) if !matches!(status, 300..=399) => {
                Err(ModelError::WrongSetting(format!("{text}; {}", self.wrong_address(&request.model))))
            }
            error => Err(error),
        }
    }

    async fn read(
        &self,
        mut response: Response,
        request: &ModelRequest,
        listener: &dyn Listener,
    ) -> Result<ModelResponse, ModelError> {
        let request_id = errors::request_id(response.headers());
        let tokens_max = request.output_tokens_max as usize;
        let bytes_max = ANSWER_BYTES_MAX + TOKEN_BYTES_MAX.saturating_mul(tokens_max);
        let content_bytes_max = CONTENT_BYTES_MAX + TOKEN_CONTENT_BYTES_MAX.saturating_mul(tokens_max);
        let too_long = |bytes_max: usize| {
            let text = format!("sent an answer of more than {bytes_max} bytes; `output_tokens_max` is {tokens_max}");
            ModelError::Final(text)
        };
        let mut reader = SseReader::default();
        let mut assembler = MessageAssembler::default();
        let mut bytes = 0;
        while !assembler.is_complete() {
            let piece = http::next_piece(&mut response, request.silence_timeout).await;
            let Some(piece) = piece.map_err(|reason| transport_error(&reason, request_id.clone()))? else {
                let text = "ended its answer too early".to_owned();
                return Err(temporary(errors::with_request_id(text, request_id)));
            };
            listener.on_activity();
            bytes += piece.as_ref().len();
            if bytes > bytes_max {
                return Err(too_long(bytes_max));
            }
            let events = reader
                .feed(piece.as_ref())
                .map_err(|error| ModelError::Final(format!("sent an invalid answer: {error}")))?;
            for mut event in events {
                event.data = masked(event.data);
                assembler.process_event(&event, listener).map_err(|error| protocol_error(error, request_id.clone()))?;
                if assembler.content_bytes() > content_bytes_max {
                    return Err(too_long(content_bytes_max));
                }
            }
        }
        if !assembler.is_repeating() {
            http::read_to_end(response).await;
        }
        let mut answer = assembler.finish(&format!("call-{}", request.messages.len()));
        answer.content = answer.content.into_iter().filter_map(masked_block).collect();
        Ok(answer)
    }
}

/// A header with `prefix` and the secret, marked as sensitive, so that it is not printed.
///
/// # Errors
/// The secret has characters that a header cannot carry. The text does not quote it.
fn secret_header(prefix: &str, secret: &Secret) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("{prefix}{}", secret.expose()))
        .map_err(|_| "has characters that an HTTP header cannot carry".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// A block with all secrets masked, or `None` if it is no block without them. A key that the server repeats must not get into a
/// transcript, even if it came in several pieces.
fn masked_block(block: Block) -> Option<Block> {
    let text = serde_json::to_string(&block).unwrap_or_default();
    let masked = masked(text.clone());
    if masked == text { Some(block) } else { serde_json::from_str(&masked).ok() }
}

#[async_trait]
impl ModelClient for Anthropic {
    fn context_window_tokens(&self) -> Option<u64> {
        self.context_window_tokens
    }

    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let answer = tokio::time::timeout(request.answer_timeout, self.exchange(&request, listener)).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(temporary(format!("did not end its answer within {} s", request.answer_timeout.as_secs_f32())))
        });
        answer.map_err(|error| self.scrub_error(error))
    }
}

/// The URL for messages below `base`. `base` can end with `/v1` or `/v1/messages`.
fn messages_url(base: &str) -> Result<Url, String> {
    let base = base.trim().trim_end_matches('/');
    if !["http://", "https://"]
        .iter()
        .any(|scheme| base.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
    {
        return Err("must start with http:// or https://".to_owned());
    }
    let base = base.strip_suffix("/messages").unwrap_or(base);
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let url: Url = format!("{base}/v1/messages").parse().map_err(|error| format!("is not a URL: {error}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("must not contain a password: set {API_KEY} or {AUTH_TOKEN}"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must not contain `?` or `#`".to_owned());
    }
    Ok(url)
}

fn temporary(message: String) -> ModelError {
    ModelError::Temporary { message, retry_after: None }
}

fn transport_error(reason: &TransportError, request_id: Option<String>) -> ModelError {
    let text = match reason {
        TransportError::Silent(timeout) => format!("sent nothing for {} s", timeout.as_secs_f32()),
        TransportError::Failed(reason) => format!("lost the connection: {reason}"),
    };
    temporary(errors::with_request_id(text, request_id))
}

fn protocol_error(error: ProtocolError, request_id: Option<String>) -> ModelError {
    match error {
        ProtocolError::Reported(error) => errors::from_event(&error, request_id),
        ProtocolError::Invalid(reason) => {
            temporary(errors::with_request_id(format!("sent an invalid answer: {reason}"), request_id))
        }
    }
}

#[cfg(test)]
mod tests;
