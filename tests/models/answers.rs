//! Answers that arrive: the request, the parsed answer, the streamed pieces, and the use of connections.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brigade::domain::agent::transcript::{Block, Role, Usage};
use brigade::domain::team::team_spec::ModelSpec;
use brigade::ports::{
    ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason,
};
use brigade::providers::exchange::HttpModel;
use brigade::providers::messages::{ANTHROPIC, API_KEY, AUTH_TOKEN};
use serde_json::json;
use tokio::sync::Barrier;

use crate::testkit::model_server::{Server, call, events, streamed, streamed_answer, text};

/// A key that belongs to no account.
pub const KEY: &str = "sk-not-a-key-0123456789";

#[derive(Default)]
pub struct RecordingListener {
    pub texts: Mutex<Vec<String>>,
    pub signs: AtomicUsize,
}

impl Listener for RecordingListener {
    fn on_activity(&self) {
        self.signs.fetch_add(1, Ordering::Relaxed);
    }

    fn on_text(&self, delta: &str) {
        self.texts.lock().unwrap().push(delta.to_owned());
    }

    fn on_bytes(&self, _bytes: usize) {}

    fn on_usage(&self, _usage: Usage) {}
}

pub fn client(url: &str) -> HttpModel {
    let spec = ModelSpec {
        provider: "anthropic".into(),
        model: "m".into(),
        base_url: Some(url.to_owned()),
        ..ModelSpec::default()
    };
    ANTHROPIC.model(&spec, &|name| (name == API_KEY).then(|| KEY.to_owned())).unwrap()
}

pub fn request() -> ModelRequest {
    let hello = ChatMessage::new(Role::User, vec![Block::text("hello")]);
    ModelRequest {
        teammate: "bob".into(),
        model: "a-model".into(),
        system: "You are 'bob'".into(),
        messages: [hello.into()].into(),
        tools: [].into(),
        output_tokens_max: 77,
        purpose: RequestPurpose::Turn,
        silence_timeout: Duration::from_secs(60),
        answer_timeout: Duration::from_secs(120),
    }
}

pub async fn ask(server: &Server) -> Result<ModelResponse, ModelError> {
    client(&server.url).request(request(), &()).await
}

#[tokio::test]
async fn key_echoed_in_chunks_is_masked_in_answer() {
    let server =
        Server::start(move |_, _| streamed_answer(&[text(&format!("The key {KEY} is bad; sk-n is not one, nor sk"))]))
            .await;
    let listener = RecordingListener::default();
    let answer = client(&server.url).request(request(), &listener).await.unwrap();
    let texts = listener.texts.lock().unwrap().clone();
    assert!(texts.len() > 2, "the text did not arrive in pieces: {texts:?}");
    assert_eq!(answer.content, [Block::text("The key [key] is bad; sk-n is not one, nor sk")]);
}

#[tokio::test]
async fn answer_is_streamed_and_assembled() {
    let parts = [text("On it, über alles."), call("toolu_1", "bash", json!({"command": "echo 'ä\n'"}))];
    let expected = parts.clone();
    let server = Server::start(move |_, _| streamed_answer(&parts)).await;
    let listener = RecordingListener::default();
    let answer = client(&server.url).request(request(), &listener).await.unwrap();
    let input = json!({"command": "echo 'ä\n'"});
    let call = Block::tool_use("toolu_1", "bash", input);
    assert_eq!(answer.content, [Block::text("On it, über alles."), call], "{expected:?}");
    assert_eq!(answer.stop, StopReason::ToolUse);
    let usage = Usage { input_tokens: 1_000, output_tokens: 30, cache_read_tokens: 400, ..Usage::default() };
    assert_eq!(answer.usage, Some(usage));
    let texts = listener.texts.lock().unwrap().clone();
    assert_eq!((texts.len(), texts.concat().as_str()), (4, "On it, über alles."));
    assert!(listener.signs.load(Ordering::Relaxed) >= 2, "the connection showed activity");
    let request = &server.requests()[0];
    assert!(request.head.starts_with("post /v1/messages http/1.1"), "{}", request.head);
    assert_eq!((request.header("x-api-key"), request.header("authorization")), (Some(KEY), None));
    assert_eq!(request.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(request.header("accept-encoding"), None, "the client asks for no compression");
    assert_eq!((&request.body["model"], &request.body["max_tokens"]), (&json!("a-model"), &json!(77)));
    assert_eq!(request.body.get("temperature"), None);
}

#[tokio::test]
async fn answer_sent_byte_by_byte_is_equal() {
    let events = events(&[text("wörter"), call("x", "idle", json!({"a": "🌍"}))], "tool_use");
    let crlf = events.replace('\n', "\r\n");
    let whole = ask(&Server::start(move |_, _| streamed(&events, 9999)).await).await.unwrap();
    let single = ask(&Server::start(move |_, _| streamed(&crlf, 1)).await).await.unwrap();
    assert_eq!(single, whole);
}

#[tokio::test]
async fn auth_token_is_bearer_and_local_server_needs_no_key() {
    let server = Server::start(|_, _| streamed_answer(&[text("hi")])).await;
    let spec = ModelSpec {
        provider: String::new(),
        model: "m".into(),
        base_url: Some(server.url.clone()),
        ..ModelSpec::default()
    };
    let with_token = ANTHROPIC.model(&spec, &|name| (name == AUTH_TOKEN).then(|| "a-token".to_owned())).unwrap();
    let without = ANTHROPIC.model(&spec, &|_| None).unwrap();
    for client in [with_token, without] {
        client.request(request(), &()).await.unwrap();
    }
    let requests = server.requests();
    assert_eq!((requests[0].header("authorization"), requests[0].header("x-api-key")), (Some("bearer a-token"), None));
    assert_eq!((requests[1].header("authorization"), requests[1].header("x-api-key")), (None, None));
}

#[tokio::test]
async fn sequential_requests_share_one_connection() {
    let server = Server::start(|_, _| streamed_answer(&[text("hi")])).await;
    for _ in 0..5 {
        ask(&server).await.unwrap();
    }
    assert_eq!((server.requests().len(), server.connections()), (5, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_concurrent_requests_are_answered() {
    const TEAMMATES: usize = 300;
    // The server answers after all clients have sent their requests.
    let all_sent = std::sync::Arc::new(Barrier::new(TEAMMATES));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let all_sent = std::sync::Arc::clone(&all_sent);
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut bytes = vec![0; 16 * 1024];
                let _ = stream.read(&mut bytes).await;
                all_sent.wait().await;
                for step in streamed_answer(&[text("hi")]) {
                    let crate::testkit::model_server::ServerAction::Send(bytes) = step else { continue };
                    let _ = stream.write_all(&bytes).await;
                }
            });
        }
    });
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..TEAMMATES {
        let url = url.clone();
        asking.spawn(async move { client(&url).request(request(), &()).await });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap().unwrap().content, [Block::text("hi")]);
    }
}

/// Recorded from llama.cpp's server with a model of 0.5 billion parameters: a call without an `input`, an unusual id,
/// no `ping`.
#[tokio::test]
async fn llama_cpp_recorded_answer_is_parsed() {
    let server = Server::start(|_, _| streamed(include_str!("llama_cpp.sse"), 100)).await;
    let answer = ask(&server).await.unwrap();
    let (id, name) = ("IpVEgFOBl6cKWw0GwnbmXb3LxkNbgok2".to_owned(), "get_weather".to_owned());
    assert_eq!(answer.content, [Block::tool_use(id, name, json!({"city": "Paris"}))]);
    let used = answer.usage.unwrap();
    assert_eq!((answer.stop, used.output_tokens), (StopReason::ToolUse, 24));
    assert!(used.input_tokens + used.cache_read_tokens > 100, "{:?}", answer.usage);
}
