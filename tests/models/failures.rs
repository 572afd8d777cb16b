//! Servers that refuse, break off, fall silent or attack: what is made of each, within bounds.

use std::time::{Duration, Instant};

use brigade::ports::{ModelClient, ModelError, ModelRequest, StopReason};
use serde_json::json;

use super::answers::{KEY, ask, client, request};
use super::server::{Reply, Server, Step, call, chunk, events, head, plain, refused, says, streamed, text};

/// How the only request is answered by a server that replies so; its port is told as `PORT`.
async fn failure(reply: Reply) -> ModelError {
    let server = Server::start(move |_, _| reply.clone()).await;
    let failure = ask(&server).await.unwrap_err();
    assert_eq!(server.asked().len(), 1, "a provider asks once; who asks again is the turn");
    assert!(!failure.to_string().contains(KEY), "{failure}");
    let (_, port) = server.url.rsplit_once(':').unwrap();
    let portless = |text: String| text.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:PORT");
    match failure {
        ModelError::Temporary { message, retry_after } => {
            ModelError::Temporary { message: portless(message), retry_after }
        }
        ModelError::Final(message) => ModelError::Final(portless(message)),
        other => other,
    }
}

async fn passes(reply: Reply) -> (String, Option<Duration>) {
    match failure(reply).await {
        ModelError::Temporary { message, retry_after } => (message, retry_after),
        other => panic!("{other:?}"),
    }
}

async fn lasts(reply: Reply) -> String {
    match failure(reply).await {
        ModelError::Final(message) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn limits_and_overload_pass_and_say_when() {
    let limit = refused(429, "retry-after: 2\r\n", "rate_limit_error", "slow down");
    let (message, wait) = passes(limit).await;
    assert_eq!(message, "127.0.0.1:PORT answered 429 rate_limit_error: slow down (request req_429)");
    assert_eq!(wait, Some(Duration::from_secs(2)));
    let dated = "retry-after: Wed, 21 Oct 2015 07:28:00 GMT\r\ndate: Wed, 21 Oct 2015 07:27:30 GMT\r\n";
    assert_eq!(passes(refused(529, dated, "overloaded_error", "")).await.1, Some(Duration::from_secs(30)));
    let page = plain(500, "content-type: text/html\r\n", "<html><head><title>Oops</title></head><body>x</body>");
    assert_eq!(passes(page).await.0, "127.0.0.1:PORT answered 500: Oops (request req_500)");
    assert!(passes(refused(400, "x-should-retry: true\r\n", "x", "y")).await.1.is_none());
}

#[tokio::test]
async fn what_cannot_pass_is_final() {
    for status in [400, 401, 403, 422] {
        let message = lasts(refused(status, "retry-after: 1\r\n", "some_error", "no")).await;
        assert_eq!(message, format!("127.0.0.1:PORT answered {status} some_error: no (request req_{status})"));
    }
    let message = lasts(plain(404, "content-type: text/plain\r\n", "no such page")).await;
    assert_eq!(
        message,
        "127.0.0.1:PORT answered 404: no such page (request req_404); asked for http://127.0.0.1:PORT/v1/messages: does this server speak the Messages API, and know the model?"
    );
    assert!(lasts(refused(503, "x-should-retry: false\r\n", "x", "y")).await.contains("503"));
    let too_long = refused(400, "", "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum");
    assert!(
        matches!(failure(too_long).await, ModelError::ContextTooLong { message, window_tokens: Some(200_000) } if message.contains("210000"))
    );
}

#[tokio::test]
async fn a_key_that_is_echoed_is_masked() {
    let echo = lasts(refused(401, &format!("request-id: {KEY}\r\n"), KEY, &format!("bad key {KEY}"))).await;
    assert!(echo.contains("[key]"), "{echo}");
    let inside = format!("event: error\ndata: {{\"error\":{{\"type\":\"x\",\"message\":\"{KEY}\"}}}}\n\n");
    assert!(passes(streamed(&inside, 9)).await.0.contains("[key]"));
    lasts(plain(200, &format!("content-type: {KEY}\r\n"), KEY)).await;
    lasts(plain(302, &format!("location: http://{KEY}/\r\n"), KEY)).await;
}

#[tokio::test]
async fn a_stream_that_ends_before_its_message_is_cut() {
    let whole = events(&[text("words"), call("x", "bash", json!({"command": "true"}))], "tool_use");
    let (_, cut_text) = whole.rsplit_once("event: message_stop").map(|(most, last)| (last, most)).unwrap();
    for most in [cut_text, &cut_text[..cut_text.len() / 2], ""] {
        let (message, _) = passes(streamed(most, 50)).await;
        assert_eq!(message, "127.0.0.1:PORT ended its answer before it was whole (request req_200)");
        let torn = vec![head(), Step::Send(chunk(most.as_bytes())), Step::Close];
        // An empty chunk is the end of a body.
        let (message, _) = passes(torn).await;
        assert!(message.contains("broke off") || most.is_empty(), "{message}");
    }
    assert!(passes(vec![Step::Close]).await.0.contains("hung up before it answered"));
    let nobody = client("http://127.0.0.1:1").request(request(), &()).await;
    let is_told = |message: &str| message.contains("127.0.0.1:1 cannot be reached");
    assert!(matches!(&nobody, Err(ModelError::Temporary { message, .. }) if is_told(message)), "{nobody:?}");
}

#[tokio::test]
async fn what_is_no_answer_is_asked_for_again() {
    let (message, _) = passes(streamed("data: {\"type\": \"message_start\"\n\n", 99)).await;
    assert!(message.contains("sent what is no answer: an event cannot be read"), "{message}");
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let begun = events(&[text("half")], "end_turn");
    let begun = begun.split_once("event: message_delta").unwrap().0.to_owned();
    let (message, _) = passes(streamed(&(begun + overloaded), 99)).await;
    assert_eq!(message, "127.0.0.1:PORT broke its answer off overloaded_error: Overloaded (request req_200)");
    // One that does not stream does not the next time either, and what it says instead may be long.
    let message = lasts(plain(200, "content-type: application/json\r\n", "{\"content\":[]}")).await;
    assert_eq!(
        message,
        "127.0.0.1:PORT answers without a stream of events, with application/json: Brigade needs one (request req_200)"
    );
}

#[tokio::test]
async fn an_answer_cut_by_its_length_limit_says_so() {
    let server = Server::start(|_, _| {
        let cut = events(&[super::server::Part::Call("x".into(), "bash".into(), String::new())], "max_tokens");
        streamed(&cut, 99)
    })
    .await;
    let answer = ask(&server).await.unwrap();
    assert_eq!(answer.stop, StopReason::MaxTokens);
}

/// The failure of a request with little patience, and that it came soon.
async fn impatient(reply: Reply, change: impl Fn(&mut ModelRequest)) -> String {
    let server = Server::start(move |_, _| reply.clone()).await;
    let mut request = request();
    change(&mut request);
    let begun = Instant::now();
    let failure = client(&server.url).request(request, &()).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(50), "{failure} came after {:?}", begun.elapsed());
    assert!(matches!(failure, ModelError::Temporary { .. }), "{failure:?}");
    failure.to_string()
}

#[tokio::test]
async fn silence_is_bounded_before_an_answer_and_within_it() {
    let short = |request: &mut ModelRequest| request.silence_timeout = Duration::from_secs(2);
    let begun = events(&[text("half")], "end_turn").split_once("event: message_delta").unwrap().0.to_owned();
    let silent = vec![head(), Step::Send(chunk(begun.as_bytes())), Step::Silence];
    assert!(impatient(silent, short).await.contains("sent nothing for 2 s (request req_200)"));
    assert!(impatient(vec![Step::Silence], short).await.contains("sent nothing for 2 s"));
    assert!(impatient(vec![Step::Send(b"HTTP/1.1 2".to_vec()), Step::Silence], short).await.contains("sent nothing"));
    let error = b"HTTP/1.1 500 X\r\ncontent-length: 999\r\n\r\n{\"err".to_vec();
    assert!(impatient(vec![Step::Send(error), Step::Silence], short).await.contains("answered 500"));
}

#[tokio::test]
async fn signs_of_life_alone_do_not_hold_a_request_for_ever() {
    let ping = chunk(b"event: ping\ndata: {\"type\": \"ping\"}\n\n");
    let message = impatient(vec![head(), Step::Endless(ping, 20)], |request| {
        request.answer_timeout = Duration::from_millis(600);
    })
    .await;
    assert!(message.contains("did not end its answer within 0.6 s"), "{message}");
}

#[tokio::test]
async fn no_server_makes_a_client_keep_what_it_sends_without_end() {
    let line = lasts(vec![head(), Step::Endless(chunk(&[b'x'; 64 * 1024]), 0)]).await;
    assert!(line.contains("an event has more than 4194304 bytes"), "{line}");
    let piece = format!("data: {}\n", "x".repeat(1000));
    let event = lasts(vec![head(), Step::Endless(chunk(piece.as_bytes()), 0)]).await;
    assert!(event.contains("an event has more than"), "{event}");
    let start = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    let words = json!({"type": "content_block_delta", "index": 0, "delta": {"text": "x".repeat(10_000)}});
    let begun = Step::Send(chunk(format!("data: {start}\n\n").as_bytes()));
    let text = lasts(vec![head(), begun, Step::Endless(chunk(format!("data: {words}\n\n").as_bytes()), 0)]).await;
    assert!(text.contains("an answer of more than 8428032 bytes"), "{text}");
    let error = vec![
        Step::Send(b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()),
        Step::Endless(chunk(&[b'x'; 64 * 1024]), 0),
    ];
    assert!(passes(error).await.0.len() < 600);
    let headers =
        vec![Step::Send(b"HTTP/1.1 200 OK\r\n".to_vec()), Step::Endless(b"x-more: yyyyyyyyyyyyyyyy\r\n".to_vec(), 0)];
    passes(headers).await;
}

#[tokio::test]
async fn neither_redirects_nor_compression_are_followed() {
    let other = Server::start(|_, _| says(&[text("stolen")])).await;
    for status in [301, 302, 307, 308] {
        let message = lasts(plain(status, &format!("location: {}/v1/messages\r\n", other.url), "")).await;
        assert!(message.contains("redirects are not followed"), "{message}");
    }
    assert_eq!(other.asked().len(), 0);
    let zipped = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
    assert!(lasts(plain(200, zipped, "\u{1f}")).await.contains("in the encoding gzip, which was not asked for"));
}
