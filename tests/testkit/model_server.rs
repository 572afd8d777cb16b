//! A server of the Messages API on plain sockets: it reads requests and answers with scripted bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A received request.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// The request line and the headers, in lower case.
    pub head: String,
    pub body: Value,
    /// The number of earlier requests on the same connection.
    pub before_on_connection: usize,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// The next action of the server on a connection.
#[derive(Debug, Clone)]
pub enum ServerAction {
    Send(Vec<u8>),
    /// Sends this again and again, this many milliseconds apart, until the client disconnects.
    Endless(Vec<u8>, u64),
    /// Sends nothing more until the client disconnects.
    Silence,
    Close,
}

pub type Reply = Vec<ServerAction>;

/// A server that ends with the test's runtime.
pub struct Server {
    pub url: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Answers each request with `answer`, which gets the number of earlier requests.
    pub async fn start(answer: impl Fn(&ReceivedRequest, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", answer).await
    }

    /// Listens at this address.
    pub async fn start_at(
        address: &str,
        answer: impl Fn(&ReceivedRequest, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (requests, connections) = (Arc::<Mutex<Vec<ReceivedRequest>>>::default(), Arc::<AtomicUsize>::default());
        let (answer, seen, count) = (Arc::new(answer), Arc::clone(&requests), Arc::clone(&connections));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                // A client that disconnects ends only its own connection.
                tokio::spawn(async move { serve(stream, &*answer, &seen).await.ok() });
            }
        });
        Self { url, requests, connections }
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: &(dyn Fn(&ReceivedRequest, usize) -> Reply + Send + Sync),
    seen: &Mutex<Vec<ReceivedRequest>>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    for before_on_connection in 0.. {
        let Some(request) = read_request(&mut stream, &mut buffer).await? else { return Ok(()) };
        let request = ReceivedRequest { before_on_connection, ..request };
        let before = {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(request.clone());
            seen.len() - 1
        };
        for step in answer(&request, before) {
            match step {
                ServerAction::Send(bytes) => stream.write_all(&bytes).await?,
                ServerAction::Endless(bytes, apart_ms) => loop {
                    stream.write_all(&bytes).await?;
                    if apart_ms > 0 {
                        tokio::time::sleep(std::time::Duration::from_millis(apart_ms)).await;
                    }
                },
                ServerAction::Silence => {
                    stream.read_to_end(&mut buffer).await?;
                    return Ok(());
                }
                ServerAction::Close => return Ok(()),
            }
        }
    }
    Ok(())
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<ReceivedRequest>> {
    let end_of = |buffer: &[u8]| buffer.windows(4).position(|window| window == b"\r\n\r\n");
    loop {
        if let Some(end) = end_of(buffer) {
            let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if buffer.len() >= end + 4 + length {
                let rest = buffer.split_off(end + 4 + length);
                let body = serde_json::from_slice(&buffer[end + 4..]).unwrap_or(Value::Null);
                *buffer = rest;
                return Ok(Some(ReceivedRequest { head, body, before_on_connection: 0 }));
            }
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// A complete response.
pub fn full_response(status: u16, headers: &str, body: &str) -> Reply {
    let head =
        format!("HTTP/1.1 {status} X\r\nrequest-id: req_{status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    vec![ServerAction::Send((head + body).into_bytes())]
}

/// An error in the format of the API.
pub fn error_reply(status: u16, headers: &str, kind: &str, message: &str) -> Reply {
    let body = json!({"type": "error", "error": {"type": kind, "message": message}}).to_string();
    full_response(status, &format!("content-type: application/json\r\n{headers}"), &body)
}

pub fn head() -> ServerAction {
    let text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nrequest-id: req_200\r\ntransfer-encoding: chunked\r\n\r\n";
    ServerAction::Send(text.as_bytes().to_vec())
}

pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A whole stream in pieces of `size` bytes.
pub fn streamed(events: &str, size: usize) -> Reply {
    let mut reply = vec![head()];
    reply.extend(events.as_bytes().chunks(size).map(|piece| ServerAction::Send(chunk(piece))));
    reply.push(ServerAction::Send(chunk(b"")));
    reply
}

#[derive(Debug, Clone)]
pub enum Part {
    Text(String),
    Call(String, String, String),
}

pub fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

pub fn call(id: &str, tool: &str, input: Value) -> Part {
    Part::Call(id.to_owned(), tool.to_owned(), input.to_string())
}

/// The usage that [`events`] reports. It is plausible for requests of up to 20 bytes of text a token.
pub const INPUT_TOKENS: u64 = 1_000;
pub const CACHE_READ_TOKENS: u64 = 400;
pub const OUTPUT_TOKENS: u64 = 30;

pub fn events(parts: &[Part], stop_reason: &str) -> String {
    let usage = json!({
        "input_tokens": INPUT_TOKENS, "cache_read_input_tokens": CACHE_READ_TOKENS, "output_tokens": OUTPUT_TOKENS
    });
    events_with_usage(parts, stop_reason, &usage)
}

/// The events of an answer that reports this usage at its start and at its end.
pub fn events_with_usage(parts: &[Part], stop_reason: &str, usage: &Value) -> String {
    // Clients join answers with the same id.
    let id = format!("msg_{:016x}", fastrand::u64(..));
    let message = json!({
        "id": id, "type": "message", "role": "assistant", "model": "a-model", "content": [], "usage": usage
    });
    let mut events = vec![json!({"type": "message_start", "message": message})];
    for (index, part) in parts.iter().enumerate() {
        let (block, kind, key, whole) = match part {
            Part::Text(text) => (json!({"type": "text", "text": ""}), "text_delta", "text", text),
            Part::Call(id, name, input) => (
                json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                "input_json_delta",
                "partial_json",
                input,
            ),
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        let letters: Vec<char> = whole.chars().collect();
        for piece in letters.chunks(5) {
            let piece: String = piece.iter().collect();
            events.push(json!({"type": "content_block_delta", "index": index, "delta": {"type": kind, key: piece}}));
        }
        events.push(json!({"type": "content_block_stop", "index": index}));
        events.push(json!({"type": "ping"}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage}));
    events.push(json!({"type": "message_stop"}));
    let line = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    events.iter().map(line).collect()
}

/// A streamed answer.
pub fn streamed_answer(parts: &[Part]) -> Reply {
    let calls = parts.iter().any(|part| matches!(part, Part::Call(..)));
    streamed(&events(parts, if calls { "tool_use" } else { "end_turn" }), 64)
}
