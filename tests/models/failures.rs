//! Servers that refuse, disconnect, stall or attack: each causes a bounded error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brigade::ports::{Listener, ModelClient, ModelError, ModelRequest, StopReason};
use serde_json::json;

use super::answers::{KEY, ask, client, request};
use crate::testkit::model_server::{
    Reply, Server, ServerAction, call, chunk, error_reply, events, full_response, head, streamed, streamed_answer, text,
};

/// The error of a request that the server answers with `reply`; `PORT` stands for the server's port.
async fn failure(reply: Reply) -> ModelError {
    let server = Server::start(move |_, _| reply.clone()).await;
    let failure = ask(&server).await.unwrap_err();
    assert_eq!(server.requests().len(), 1, "a provider sends one request; the turn retries");
    assert!(!failure.to_string().contains(KEY), "{failure}");
    let (_, port) = server.url.rsplit_once(':').unwrap();
    let portless = |text: String| text.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:PORT");
    match failure {
        ModelError::Temporary { message, retry_after } => {
            ModelError::Temporary { message: portless(message), retry_after }
        }
        ModelError::Limited { message, wait, is_quota } => {
            ModelError::Limited { message: portless(message), wait, is_quota }
        }
        ModelError::Final(message) => ModelError::Final(portless(message)),
        ModelError::WrongSetting(message) => ModelError::WrongSetting(portless(message)),
        ModelError::NoServer(message) => ModelError::NoServer(portless(message)),
        other => other,
    }
}

async fn temporary_failure(reply: Reply) -> (String, Option<Duration>) {
    match failure(reply).await {
        ModelError::Temporary { message, retry_after: wait } | ModelError::Limited { message, wait, .. } => {
            (message, wait)
        }
        other => panic!("{other:?}"),
    }
}

async fn final_failure(reply: Reply) -> String {
    match failure(reply).await {
        ModelError::Final(message) => message,
        other => panic!("{other:?}"),
    }
}

async fn wrong_setting(reply: Reply) -> String {
    match failure(reply).await {
        ModelError::WrongSetting(message) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rate_limit_and_overload_are_temporary_with_wait() {
    let limit = error_reply(429, "retry-after: 2\r\n", "rate_limit_error", "slow down");
    let (message, wait) = temporary_failure(limit).await;
    assert_eq!(message, "127.0.0.1:PORT answered 429 rate_limit_error: slow down (request req_429)");
    assert_eq!(wait, Some(Duration::from_secs(2)));
    let page =
        full_response(500, "content-type: text/html\r\n", "<html><head><title>Oops</title></head><body>x</body>");
    assert_eq!(temporary_failure(page).await.0, "127.0.0.1:PORT answered 500: Oops (request req_500)");
    assert!(temporary_failure(error_reply(400, "x-should-retry: true\r\n", "x", "y")).await.1.is_none());
}

#[tokio::test]
async fn refused_key_error_names_its_variable() {
    for status in [401, 403] {
        let message = wrong_setting(error_reply(status, "", "some_error", "no")).await;
        assert_eq!(message, format!("127.0.0.1:PORT refused the key in ANTHROPIC_API_KEY ({status}: no)"));
    }
}

#[tokio::test]
async fn client_errors_are_final() {
    for status in [400, 422] {
        let message = final_failure(error_reply(status, "retry-after: 1\r\n", "some_error", "no")).await;
        assert_eq!(message, format!("127.0.0.1:PORT answered {status} some_error: no (request req_{status})"));
    }
    let message = wrong_setting(full_response(404, "content-type: text/plain\r\n", "no such page")).await;
    assert_eq!(
        message,
        "127.0.0.1:PORT answered 404: no such page (request req_404); the request went to http://127.0.0.1:PORT/v1/messages: correct `base_url` or `model`, which is `a-model`"
    );
    assert!(final_failure(error_reply(503, "x-should-retry: false\r\n", "x", "y")).await.contains("503"));
    let too_long = error_reply(400, "", "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum");
    assert!(
        matches!(failure(too_long).await, ModelError::ContextTooLong { message, window_tokens: Some(200_000) } if message.contains("210000"))
    );
}

#[tokio::test]
async fn key_echoed_in_error_is_masked() {
    let echo = wrong_setting(error_reply(401, &format!("request-id: {KEY}\r\n"), KEY, &format!("bad key {KEY}"))).await;
    assert!(echo.contains("[key]"), "{echo}");
    let inside = format!("event: error\ndata: {{\"error\":{{\"type\":\"x\",\"message\":\"{KEY}\"}}}}\n\n");
    assert!(temporary_failure(streamed(&inside, 9)).await.0.contains("[key]"));
    wrong_setting(full_response(200, &format!("content-type: {KEY}\r\n"), KEY)).await;
    wrong_setting(full_response(302, &format!("location: http://{KEY}/\r\n"), KEY)).await;
}

#[tokio::test]
async fn truncated_stream_is_a_temporary_error() {
    let whole = events(&[text("words"), call("x", "bash", json!({"command": "true"}))], "tool_use");
    let (_, cut_text) = whole.rsplit_once("event: message_stop").map(|(most, last)| (last, most)).unwrap();
    for most in [cut_text, &cut_text[..cut_text.len() / 2], ""] {
        let (message, _) = temporary_failure(streamed(most, 50)).await;
        assert_eq!(message, "127.0.0.1:PORT ended its answer too early (request req_200)");
        let torn = vec![head(), ServerAction::Send(chunk(most.as_bytes())), ServerAction::Close];
        // An empty chunk ends a body.
        let (message, _) = temporary_failure(torn).await;
        assert!(message.contains("lost the connection") || most.is_empty(), "{message}");
    }
}

#[tokio::test]
async fn server_that_never_answered_is_no_outage() {
    let no_server = client("http://127.0.0.1:1").request(request(), &()).await;
    let is_told = |message: &str| {
        message.starts_with("127.0.0.1:1 cannot be reached: ")
            && message.ends_with(
                "; the request went to http://127.0.0.1:1/v1/messages: start that server, or correct `base_url`",
            )
    };
    assert!(matches!(&no_server, Err(ModelError::NoServer(message)) if is_told(message)), "{no_server:?}");
    let closed = failure(vec![ServerAction::Close]).await;
    let is_told = |message: &str| message.contains("closed the connection before it answered");
    assert!(matches!(&closed, ModelError::NoServer(message) if is_told(message)), "{closed:?}");
    let invalid_host = client("http://no-such-host.invalid").request(request(), &()).await;
    assert!(matches!(&invalid_host, Err(ModelError::NoServer(_))), "{invalid_host:?}");
}

#[tokio::test]
async fn broken_answer_is_a_temporary_error() {
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let begun = events(&[text("half")], "end_turn");
    let begun = begun.split_once("event: message_delta").unwrap().0.to_owned();
    let (message, _) = temporary_failure(streamed(&(begun + overloaded), 99)).await;
    assert_eq!(message, "127.0.0.1:PORT ended its answer with error overloaded_error: Overloaded (request req_200)");
    // A server that does not stream will not stream at the next attempt either, and its answer may be long.
    let message = wrong_setting(full_response(200, "content-type: application/json\r\n", "{\"content\":[]}")).await;
    assert!(
        message.starts_with(
            "127.0.0.1:PORT answered without a stream of events, with application/json; Brigade needs one (request req_200); the request went to "
        ),
        "{message}"
    );
}

#[tokio::test]
async fn answer_at_length_limit_stops_with_max_tokens() {
    let server = Server::start(|_, _| {
        let cut =
            events(&[crate::testkit::model_server::Part::Call("x".into(), "bash".into(), String::new())], "max_tokens");
        streamed(&cut, 99)
    })
    .await;
    let answer = ask(&server).await.unwrap();
    assert_eq!(answer.stop, StopReason::MaxTokens);
}

/// The error of a request with short timeouts; it must come soon.
async fn failure_with_limits(reply: Reply, change: impl Fn(&mut ModelRequest)) -> String {
    let server = Server::start(move |_, _| reply.clone()).await;
    let mut request = request();
    change(&mut request);
    let begun = Instant::now();
    let failure = client(&server.url).request(request, &()).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(50), "{failure} took {:?}", begun.elapsed());
    assert!(matches!(failure, ModelError::Temporary { .. }), "{failure:?}");
    failure.to_string()
}

#[tokio::test]
async fn silent_server_hits_silence_timeout() {
    let short = |request: &mut ModelRequest| request.silence_timeout = Duration::from_secs(2);
    let begun = events(&[text("half")], "end_turn").split_once("event: message_delta").unwrap().0.to_owned();
    let silent = vec![head(), ServerAction::Send(chunk(begun.as_bytes())), ServerAction::Silence];
    assert!(failure_with_limits(silent, short).await.contains("sent nothing for 2 s (request req_200)"));
    assert!(failure_with_limits(vec![ServerAction::Silence], short).await.contains("sent nothing for 2 s"));
    assert!(
        failure_with_limits(vec![ServerAction::Send(b"HTTP/1.1 2".to_vec()), ServerAction::Silence], short)
            .await
            .contains("sent nothing")
    );
    let error = b"HTTP/1.1 500 X\r\ncontent-length: 999\r\n\r\n{\"err".to_vec();
    assert!(
        failure_with_limits(vec![ServerAction::Send(error), ServerAction::Silence], short)
            .await
            .contains("answered 500")
    );
}

#[tokio::test]
async fn endless_pings_hit_answer_timeout() {
    let ping = chunk(b"event: ping\ndata: {\"type\": \"ping\"}\n\n");
    let message = failure_with_limits(vec![head(), ServerAction::Endless(ping, 20)], |request| {
        request.answer_timeout = Duration::from_millis(600);
    })
    .await;
    assert!(message.contains("did not end its answer within 0.6 s"), "{message}");
}

#[tokio::test]
async fn endless_response_is_bounded() {
    let line = final_failure(vec![head(), ServerAction::Endless(chunk(&[b'x'; 64 * 1024]), 0)]).await;
    assert!(line.contains("an event has more than 4194304 bytes"), "{line}");
    let piece = format!("data: {}\n", "x".repeat(1000));
    let event = final_failure(vec![head(), ServerAction::Endless(chunk(piece.as_bytes()), 0)]).await;
    assert!(event.contains("an event has more than"), "{event}");
    let start = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    let words = json!({"type": "content_block_delta", "index": 0, "delta": {"text": "x".repeat(10_000)}});
    let begun = ServerAction::Send(chunk(format!("data: {start}\n\n").as_bytes()));
    let text =
        final_failure(vec![head(), begun, ServerAction::Endless(chunk(format!("data: {words}\n\n").as_bytes()), 0)])
            .await;
    assert!(text.contains("an answer of more than 68000 bytes; `output_tokens_max` is 77"), "{text}");
    let ping = chunk(format!("event: ping\ndata: \"{}\"\n\n", "x".repeat(10_000)).as_bytes());
    let pings = final_failure(vec![head(), ServerAction::Endless(ping, 0)]).await;
    assert!(pings.contains("an answer of more than 8428032 bytes"), "{pings}");
    let error = vec![
        ServerAction::Send(b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()),
        ServerAction::Endless(chunk(&[b'x'; 64 * 1024]), 0),
    ];
    assert!(temporary_failure(error).await.0.len() < 600);
    let headers = vec![
        ServerAction::Send(b"HTTP/1.1 200 OK\r\n".to_vec()),
        ServerAction::Endless(b"x-more: yyyyyyyyyyyyyyyy\r\n".to_vec(), 0),
    ];
    let headers = failure(headers).await;
    assert!(matches!(headers, ModelError::NoServer(_)), "{headers:?}");
}

#[tokio::test]
async fn redirect_and_compression_are_refused() {
    let other = Server::start(|_, _| streamed_answer(&[text("stolen")])).await;
    for status in [301, 302, 307, 308] {
        let message =
            wrong_setting(full_response(status, &format!("location: {}/v1/messages\r\n", other.url), "")).await;
        assert!(message.contains("redirects are not followed"), "{message}");
    }
    assert_eq!(other.requests().len(), 0);
    let zipped = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
    assert!(
        final_failure(full_response(200, zipped, "\u{1f}"))
            .await
            .contains("in the encoding gzip, which was not requested")
    );
}

#[tokio::test]
async fn server_that_closes_connections_is_temporary() {
    let server = Server::start(|_, count| match count {
        0 => streamed_answer(&[text("Well.")]),
        _ => vec![ServerAction::Close],
    })
    .await;
    let client = client(&server.url);
    client.request(request(), &()).await.unwrap();
    let failure = client.request(request(), &()).await.unwrap_err();
    let is_told = |message: &str| message.contains("closed the connection before it answered");
    assert!(matches!(&failure, ModelError::Temporary { message, .. } if is_told(message)), "{failure:?}");
    assert_eq!(server.requests().len(), 2);
}

/// Remembers that a request used nothing.
#[derive(Default)]
struct DeclineListener(AtomicBool);

impl Listener for DeclineListener {
    fn on_declined(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A gateway can give up while its server works on. The request then counts as its maximum.
#[tokio::test]
async fn timeout_of_gateway_can_have_used_tokens() {
    for (status, is_declined) in [(400, true), (429, true), (500, true), (502, true), (504, false), (524, false)] {
        let server = Server::start(move |_, _| error_reply(status, "", "api_error", "no")).await;
        let listener = DeclineListener::default();
        client(&server.url).request(request(), &listener).await.unwrap_err();
        assert_eq!(listener.0.load(Ordering::Relaxed), is_declined, "{status}");
    }
}
