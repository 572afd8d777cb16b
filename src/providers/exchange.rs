//! The exchange of all APIs over HTTP: a request as JSON, and an answer as a stream of events.
//!
//! Answers are streamed, so that people see text early, and a slow server differs from a silent one. A call sends one request. It
//! sends the request again only after a refusal that it can repair: without a field that the server does not know, or with a new key.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use parking_lot::RwLock;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, Response, Url};
use serde_json::Value;

use super::api::{Assembler, ProtocolError};
use super::errors::{self, ApiError};
use super::http;
use super::joining::{JoinedStream, finished_block};
use super::key_command::{KeyCommand, secret_header};
use super::options::RequestOptions;
use super::sse::{EVENT_BYTES_MAX, SseError, SseEvent, SseReader};
use super::text_calls::read_text_calls;
use super::{provider, usage};
use crate::domain::agent::transcript::Origin;
use crate::domain::team::account::AccountId;
use crate::domain::team::team_spec::ApiKind;
use crate::domain::text::characters::{self, readable_json};
use crate::ports::{Listener, ModelClient, ModelError, ModelRequest, ModelResponse};
use crate::secrets::{Secret, masked};

/// The longest answer as sent, in bytes: this, and `TOKEN_BYTES_MAX` (an event with one token) for each allowed output token.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
const TOKEN_BYTES_MAX: usize = 512;
/// The longest content of an answer, in bytes: this, and `TOKEN_CONTENT_BYTES_MAX` for each allowed output token. Most tokens have
/// about 4 bytes. Encrypted thinking has more.
const CONTENT_BYTES_MAX: usize = 64 * 1024;
const TOKEN_CONTENT_BYTES_MAX: usize = 32;
/// The longest part of an error that is read, in bytes.
const ERROR_BYTES_MAX: usize = 16 * 1024;
/// The types of answers.
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

/// A key that a command prints, and the header that carries it.
pub struct CommandKey {
    pub command: Arc<KeyCommand>,
    pub header: &'static str,
    /// The text before the key in the header.
    pub prefix: &'static str,
}

/// A server with an API, and the keys for it.
pub struct HttpModel {
    /// The form of its requests, as far as the server has not refused it.
    pub options: RwLock<RequestOptions>,
    /// The command that prints the key, in place of variables.
    pub key_command: Option<CommandKey>,
    pub api: ApiKind,
    /// The name of the provider.
    pub provider: String,
    pub client: Client,
    pub url: Url,
    /// The setting or variable with the address; `None` for the address of a service on the internet.
    pub address_setting: Option<&'static str>,
    /// The way to start the server, for people.
    pub start: Option<&'static str>,
    /// Its account at that address.
    pub account: AccountId,
    pub context_window_tokens: Option<u64>,
    pub headers: HeaderMap,
    /// The variables that hold the keys that are sent, and `headers` if one is there.
    pub key_variables: Vec<&'static str>,
    /// The variable to set if the server needs a key and got none.
    pub missing_key: &'static str,
}

impl HttpModel {
    fn scrub_error(&self, error: ModelError) -> ModelError {
        let with_address = |text: String| masked(format!("{} {}", self.address(), characters::joined(&text).text));
        match error {
            ModelError::Temporary { message, retry_after } => {
                ModelError::Temporary { message: with_address(message), retry_after }
            }
            ModelError::Limited { message, wait, is_quota } => {
                ModelError::Limited { message: with_address(message), wait, is_quota }
            }
            ModelError::ContextTooLong { message, window_tokens } => {
                ModelError::ContextTooLong { message: with_address(message), window_tokens }
            }
            ModelError::WrongSetting(text) => ModelError::WrongSetting(with_address(text)),
            ModelError::NoCredit(text) => ModelError::NoCredit(with_address(text)),
            ModelError::NoServer(text) => ModelError::NoServer(with_address(text)),
            ModelError::InvalidAnswer(text) => ModelError::InvalidAnswer(with_address(text)),
            ModelError::Final(text) => ModelError::Final(with_address(text)),
        }
    }

    /// The error of a request without an answer. The address of a service is right, so a failure to reach it is temporary.
    fn no_answer(&self, error: reqwest::Error) -> ModelError {
        let is_certain = !error.is_timeout();
        let text = http::no_answer_reason(error);
        match self.address_setting {
            Some(setting) if is_certain && !http::has_answered(&self.url) => {
                // The URL has neither a password nor a query.
                let url = &self.url;
                let start = self.start.map_or("start that server".to_owned(), |start| format!("start it: {start}"));
                ModelError::NoServer(format!("{text}; the request went to {url}: {start}, or correct `{setting}`"))
            }
            _ => temporary(text),
        }
    }

    /// The address of the last request, and the settings to correct.
    fn wrong_address(&self, model: &str) -> String {
        let address_setting = self.address_setting.map(|setting| format!("`{setting}` or ")).unwrap_or_default();
        let other_api = match (self.api, self.address_setting) {
            (ApiKind::Responses, Some(_)) => "; a server without this API needs `api = \"chat\"`",
            _ => "",
        };
        format!("the request went to {}: correct {address_setting}`model`, which is `{model}`{other_api}", self.url)
    }

    /// The server's host, with the port if it is not the default one.
    fn address(&self) -> String {
        let host = self.url.host_str().unwrap_or("the server");
        self.url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// The source of answers to this request.
    fn origin(&self, request: &ModelRequest) -> Origin {
        let (api, model) = (self.api.as_str().to_owned(), request.model.to_string());
        Origin { provider: self.provider.clone(), api, model }
    }

    /// Returns the request without parts of its context that only another model accepts.
    fn without_foreign_parts(&self, request: &ModelRequest) -> ModelRequest {
        let origin = self.origin(request);
        let messages = request.messages.iter().map(|message| message.for_reader(&origin)).collect();
        ModelRequest { messages, ..request.clone() }
    }

    async fn exchange(&self, request: &ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let mut key = self.printed_key().await.inspect_err(|_| listener.on_declined())?;
        let mut may_renew = true;
        loop {
            let response = self.send(request, key.as_ref(), listener).await?;
            match self.expect_answer(response, request, key.as_ref().filter(|_| may_renew), listener).await? {
                Expected::Answer(response) => return self.read_answer(response, request, listener).await,
                // Each optional field is left out once.
                Expected::WithoutField => {}
                Expected::Renewed(renewed) => {
                    key = Some(renewed);
                    may_renew = false;
                }
            }
        }
    }

    /// Returns the key that the command prints, if there is a command.
    async fn printed_key(&self) -> Result<Option<Secret>, ModelError> {
        match &self.key_command {
            Some(key) => Ok(Some(key.command.key().await?)),
            None => Ok(None),
        }
    }

    async fn send(
        &self,
        request: &ModelRequest,
        key: Option<&Secret>,
        listener: &dyn Listener,
    ) -> Result<Response, ModelError> {
        let mut headers = self.headers.clone();
        if let (Some(CommandKey { header, prefix, .. }), Some(key)) = (&self.key_command, key) {
            let value = secret_header(prefix, key)
                .map_err(|reason| ModelError::WrongSetting(format!("`key_command` printed a key that {reason}")))?;
            headers.insert(*header, value);
        }
        let (body, session_header) = {
            let options = self.options.read();
            (options.body(self.api, &self.without_foreign_parts(request)), options.session_header(request))
        };
        if let Some((name, value)) = session_header {
            headers.entry(name).or_insert(value);
        }
        let post = self.client.post(self.url.clone()).headers(headers).body(body);
        let post = post.build().map_err(|error| ModelError::Final(http::describe(error)))?;
        let response = match tokio::time::timeout(request.silence_timeout, http::send(&self.client, post)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                if error.is_connect() {
                    listener.on_declined();
                }
                return Err(self.no_answer(error));
            }
            Err(_) => return Err(temporary(http::silent(request.silence_timeout))),
        };
        listener.on_activity();
        Ok(response)
    }

    /// Returns the response if it can be an answer. If the server refused an optional field, or `renewable`, an old key of the command, the
    /// request can be sent again.
    async fn expect_answer(
        &self,
        response: Response,
        request: &ModelRequest,
        renewable: Option<&Secret>,
        listener: &dyn Listener,
    ) -> Result<Expected, ModelError> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let encoding = headers.get(CONTENT_ENCODING).filter(|encoding| encoding.as_bytes() != b"identity");
        if let Some(encoding) = encoding {
            let encoding = errors::quoted(&String::from_utf8_lossy(encoding.as_bytes()));
            let text = format!("answered {status} in the encoding {encoding}, which was not requested");
            return Err(ModelError::Final(errors::with_request_id(text, errors::request_id(&headers))));
        }
        if status == 200 {
            return Ok(Expected::Answer(response));
        }
        let bytes = http::read_beginning(response, request.silence_timeout, ERROR_BYTES_MAX).await;
        let body = masked(String::from_utf8_lossy(&bytes).into_owned());
        if matches!(status, 400 | 422)
            && let Some(setting) = self.options.write().adapt(&body)
        {
            listener.on_notice(&format!("{} refused a field of the request; {setting}", self.address()));
            return Ok(Expected::WithoutField);
        }
        if status == 401
            && let (Some(CommandKey { command, .. }), Some(refused)) = (&self.key_command, renewable)
            && let Some(renewed) = command.renewed(refused).await.inspect_err(|_| listener.on_declined())?
        {
            return Ok(Expected::Renewed(renewed));
        }
        if !errors::may_have_used_tokens(status) {
            listener.on_declined();
        }
        match errors::from_response(status, &headers, &body, SystemTime::now()) {
            ModelError::NoCredit(_) => Err(ModelError::NoCredit(self.key_refused(status, &body))),
            ModelError::WrongSetting(_) if errors::refuses_key(status, &body) => {
                Err(ModelError::WrongSetting(self.key_refused(status, &body)))
            }
            ModelError::Final(text) if matches!(status, 400 | 422) => Err(match self.options.read().advice(&body) {
                Some(advice) => ModelError::WrongSetting(format!("{text}; {advice}")),
                None => ModelError::Final(text),
            }),
            ModelError::WrongSetting(text) if !matches!(status, 300..=399) => {
                Err(ModelError::WrongSetting(format!("{text}; {}", self.wrong_address(&request.model))))
            }
            error => Err(error),
        }
    }

    fn key_refused(&self, status: u16, body: &str) -> String {
        let sources: &[&str] = if self.key_command.is_some() { &["`key_command`"] } else { &self.key_variables };
        errors::key_refused(status, body, sources, self.missing_key)
    }

    /// The error of an answer that is neither a stream of events nor a whole one.
    fn no_stream(&self, headers: &HeaderMap, model: &str) -> ModelError {
        let kind = headers.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
        let kind = kind.map(|kind| format!(", with {}", errors::quoted(&kind))).unwrap_or_default();
        let text = format!("answered without a stream of events{kind}; Brigade needs one");
        let text = errors::with_request_id(text, errors::request_id(headers));
        ModelError::WrongSetting(format!("{text}; {}", self.wrong_address(model)))
    }

    /// Reads an answer that is one JSON value, of whatever type: an error, or the whole answer of a server that does not stream.
    async fn read_whole(
        &self,
        response: Response,
        request: &ModelRequest,
        listener: &dyn Listener,
    ) -> Result<ModelResponse, ModelError> {
        let headers = response.headers().clone();
        let request_id = errors::request_id(&headers);
        let bytes = http::read_beginning(response, request.silence_timeout, EVENT_BYTES_MAX).await;
        let body = characters::text_of(&bytes);
        let body = masked(readable_json(body.trim_start_matches('\u{feff}')).into_owned());
        let value = match serde_json::from_str::<Value>(&body) {
            Ok(value) => value,
            Err(_) if !has_type(&headers, JSON) => return Err(self.no_stream(&headers, &request.model)),
            Err(error) if error.is_eof() => return Err(cut_short(request_id)),
            Err(error) => return Err(protocol_error(ProtocolError::Invalid(error.to_string()), request_id)),
        };
        if let Some(error) = ApiError::in_answer(&value) {
            return Err(protocol_error(ProtocolError::Reported(Box::new(error)), request_id));
        }
        let mut assembler = self.options.read().assembler(self.api);
        let event = SseEvent { name: String::new(), data: body };
        assembler.process_event(&event, listener).map_err(|error| protocol_error(error, request_id.clone()))?;
        if !assembler.may_end() {
            return Err(self.no_stream(&headers, &request.model));
        }
        finished(assembler, request, request_id)
    }

    /// Reads an answer, and adds its source and the bill in the headers.
    async fn read_answer(
        &self,
        response: Response,
        request: &ModelRequest,
        listener: &dyn Listener,
    ) -> Result<ModelResponse, ModelError> {
        let bill = usage::cost_ticks_of_headers(response.headers());
        let stream = JoinedStream::new(listener);
        let mut answer = self.read(response, request, &stream).await?;
        stream.end();
        if let Some(usage) = &mut answer.usage {
            usage.cost_ticks = usage.cost_ticks.or(bill);
        }
        Ok(ModelResponse { origin: Some(self.origin(request)), ..answer })
    }

    async fn read(
        &self,
        mut response: Response,
        request: &ModelRequest,
        listener: &dyn Listener,
    ) -> Result<ModelResponse, ModelError> {
        if !has_type(response.headers(), EVENTS) {
            return self.read_whole(response, request, listener).await;
        }
        let request_id = errors::request_id(response.headers());
        let tokens_max = request.output_tokens_max as usize;
        let bytes_max = ANSWER_BYTES_MAX + TOKEN_BYTES_MAX.saturating_mul(tokens_max);
        let content_bytes_max = CONTENT_BYTES_MAX + TOKEN_CONTENT_BYTES_MAX.saturating_mul(tokens_max);
        let too_long = |bytes_max: usize| {
            let text = format!("sent an answer of more than {bytes_max} bytes; `output_tokens_max` is {tokens_max}");
            ModelError::Final(text)
        };
        let mut reader = SseReader::default();
        let mut assembler = self.options.read().assembler(self.api);
        let mut bytes = 0;
        while !assembler.is_complete() {
            let piece = match http::next_piece(&mut response, request.silence_timeout).await {
                Ok(Some(piece)) => piece,
                _ if assembler.may_end() => break,
                Ok(None) => return Err(cut_short(request_id)),
                Err(reason) => return Err(temporary(errors::with_request_id(reason, request_id))),
            };
            listener.on_activity();
            bytes += piece.as_ref().len();
            if bytes > bytes_max {
                return Err(too_long(bytes_max));
            }
            let events = reader.feed(piece.as_ref()).map_err(|error| match error {
                SseError::TooLarge => ModelError::Final(format!("sent an invalid answer: {error}")),
                SseError::Encoding => protocol_error(ProtocolError::Invalid(error.to_string()), request_id.clone()),
            })?;
            for mut event in events {
                event.data = masked(readable_json(&event.data).into_owned());
                assembler.process_event(&event, listener).map_err(|error| protocol_error(error, request_id.clone()))?;
                if assembler.progress().content_bytes > content_bytes_max {
                    return Err(too_long(content_bytes_max));
                }
            }
        }
        if !assembler.progress().is_repeating {
            http::read_to_end(response).await;
        }
        finished(assembler, request, request_id)
    }
}

/// The step after a response.
enum Expected {
    /// The response can be an answer.
    Answer(Response),
    /// The request is sent again, without a field that the server does not know.
    WithoutField,
    /// The request is sent again, with this new key of the command.
    Renewed(Secret),
}

/// Returns the complete answer without secrets and without parts of characters.
fn finished(
    assembler: Box<dyn Assembler>,
    request: &ModelRequest,
    request_id: Option<String>,
) -> Result<ModelResponse, ModelError> {
    let spare_id = format!("call-{}", request.messages.len());
    let mut answer = assembler.finish(&spare_id).map_err(|error| protocol_error(error, request_id))?;
    if !request.is_for_summary() {
        read_text_calls(&mut answer, &request.tools, &spare_id);
    }
    answer.content = answer.content.into_iter().filter_map(finished_block).collect();
    Ok(answer)
}

fn has_type(headers: &HeaderMap, expected: &str) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes().trim_ascii());
    kind.and_then(|kind| kind.get(..expected.len())).is_some_and(|kind| kind.eq_ignore_ascii_case(expected.as_bytes()))
}

#[async_trait]
impl ModelClient for HttpModel {
    fn account(&self) -> Option<AccountId> {
        Some(self.account.clone())
    }

    fn larger_window(&self) -> Option<&'static str> {
        provider(&self.provider)?.service.as_ref()?.first_use.larger_window
    }

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

fn temporary(message: String) -> ModelError {
    ModelError::Temporary { message, retry_after: None }
}

/// The error of an answer without its end.
fn cut_short(request_id: Option<String>) -> ModelError {
    temporary(errors::with_request_id("ended its answer too early".to_owned(), request_id))
}

fn protocol_error(error: ProtocolError, request_id: Option<String>) -> ModelError {
    match error {
        ProtocolError::Reported(error) => errors::from_event(&error, request_id),
        ProtocolError::Invalid(reason) => {
            let text = format!("sent an invalid answer: {reason}");
            ModelError::InvalidAnswer(errors::with_request_id(text, request_id))
        }
    }
}
