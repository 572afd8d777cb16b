//! Models on a server, in each API: the overhead of a turn if the server answers at once, and the rate of many members.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade::domain::team::team_spec::{ApiKind, Limits, ModelSpec};
use brigade::ports::Durability;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::child_process::{ChildProcess, next_line, say};
use super::report::{ROUNDS, Report, Target, format_figure, median, ms, percentile};
use super::team::{NO_OP, RunningTeam, TeamSetup};
use super::workspace::{BenchWorkspace, pending};
use crate::testkit::answers::complete;

/// The measured time of a round, and the time before it, when all first turns begin at once.
const ROUND: Duration = Duration::from_millis(1200);
const WARM_UP: Duration = Duration::from_millis(600);
const MEMBERS: usize = 3;
/// More tasks than a round completes.
const TASKS: u64 = 400;
const TURNS_PER_TASK: usize = 40;

const CROWD: usize = 300;
const CROWD_LATENCY_MS: usize = 1000;
/// The measured time of each round with 300 members, and their warm-up time.
const CROWD_ROUND: Duration = Duration::from_secs(2);
const CROWD_WARM_UP: Duration = Duration::from_secs(5);

/// The size of a token in the usage that the server reports.
const BYTES_PER_TOKEN: usize = 4;

pub fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cases: Vec<(ApiKind, Durability)> = [ApiKind::Messages, ApiKind::Chat, ApiKind::Responses]
        .into_iter()
        .flat_map(|api| [Durability::Process, Durability::Power].map(|durability| (api, durability)))
        .collect();
    let mut results = vec![(Vec::new(), Vec::new(), 0_usize); cases.len()];
    for _ in 0..ROUNDS {
        for ((api, durability), (p50, p99, count)) in cases.iter().zip(&mut results) {
            let overheads = runtime.block_on(round(*api, *durability));
            p50.push(percentile(&overheads, 50));
            p99.push(percentile(&overheads, 99));
            *count += overheads.len();
        }
    }
    for ((api, durability), (p50, p99, count)) in cases.into_iter().zip(results) {
        let title = |of: &str| format!("{of}, {}, durability {}", api.as_str(), durability.as_str());
        let comparison = format!("{count} turns of {MEMBERS} teammates, server without latency");
        report.add(title("p50"), median(&p50), "ms", Target::AtMost(2.0), &comparison);
        report.add(title("p99"), median(&p99), "ms", Target::AtMost(5.0), &comparison);
    }
}

/// The turn overheads of one round, in milliseconds.
async fn round(api: ApiKind, durability: Durability) -> Vec<f64> {
    let workspace = BenchWorkspace::with_board(pending(TASKS));
    let mut server = ModelServer::start(workspace.path(), 0);
    let team = server.launch_team(&workspace, MEMBERS, api, durability).await;
    tokio::time::sleep(WARM_UP).await;
    server.measure();
    tokio::time::sleep(ROUND).await;
    let overheads: Vec<f64> = serde_json::from_value(server.measure()["overheads_ms"].take()).unwrap();
    team.stop().await;
    assert!(overheads.len() > 50, "too few turns: {}", overheads.len());
    overheads
}

pub fn measure_crowd(report: &mut Report) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rates = runtime.block_on(crowd());
    let share = median(&rates) / CROWD as f64 * 100.0;
    let comparison = format!("{} of the ideal {CROWD} turns/s", format_figure(median(&rates), "turns/s"));
    report.add("300 members on one `chat` server, latency 1 s", share, "% of ideal", Target::AtLeast(90.0), comparison);
}

/// Turns per second, for each window.
async fn crowd() -> Vec<f64> {
    let workspace = BenchWorkspace::with_board(pending(CROWD as u64));
    let mut server = ModelServer::start(workspace.path(), CROWD_LATENCY_MS);
    let team = server.launch_team(&workspace, CROWD, ApiKind::Chat, Durability::Power).await;
    tokio::time::sleep(CROWD_WARM_UP).await;
    let mut rates = Vec::new();
    server.measure();
    for _ in 0..ROUNDS {
        let started_at = Instant::now();
        tokio::time::sleep(CROWD_ROUND).await;
        rates.push(server.measure()["answers"].as_f64().unwrap() / started_at.elapsed().as_secs_f64());
    }
    team.stop().await;
    rates
}

/// In the parent: a model server in a separate process.
struct ModelServer {
    process: ChildProcess,
    address: String,
}

impl ModelServer {
    fn start(folder: &Path, latency_ms: usize) -> Self {
        let mut process = ChildProcess::ready("model-server", folder, latency_ms);
        let address = process.read_reply();
        Self { process, address }
    }

    /// The measurement since the last call.
    fn measure(&mut self) -> Value {
        self.process.send_line("measure");
        self.process.read_json()
    }

    async fn launch_team(
        &self,
        workspace: &BenchWorkspace,
        members: usize,
        api: ApiKind,
        durability: Durability,
    ) -> RunningTeam {
        let base_url = Some(format!("http://{}/v1", self.address));
        let spec = ModelSpec { api: Some(api), base_url, ..ModelSpec::new("openai-compatible", "m") };
        let model = brigade::providers::connect(&spec).unwrap();
        let limits = Limits::default();
        TeamSetup { workspace: workspace.path(), members, durability, limits, model }.launch().await
    }
}

/// The turns that the server saw since the last measurement.
#[derive(Default)]
struct Served {
    members: HashMap<String, MemberTurns>,
    overheads_ms: Vec<f64>,
    answers: usize,
}

#[derive(Default)]
struct MemberTurns {
    task: u64,
    /// Requests for the task.
    turns: usize,
    answered_at: Option<Instant>,
}

/// A child: a model server that answers after this latency. It prints its address, and a measurement for each line that it reads.
pub fn serve(_: &Path, latency_ms: usize) {
    let latency = Duration::from_millis(latency_ms as u64);
    let served = Arc::new(Mutex::new(Served::default()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    say("ready");
    say(&listener.local_addr().unwrap().to_string());
    let connections = Arc::clone(&served);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that disconnects ends only its own connection.
            let served = Arc::clone(&connections);
            tokio::spawn(async move { serve_connection(stream, &served, latency).await.ok() });
        }
    });
    while next_line().is_some() {
        let mut served = served.lock().unwrap();
        let (overheads, answers) = (std::mem::take(&mut served.overheads_ms), std::mem::take(&mut served.answers));
        say(&json!({ "overheads_ms": overheads, "answers": answers }).to_string());
    }
}

async fn serve_connection(mut stream: TcpStream, served: &Mutex<Served>, latency: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await? {
        let received_at = Instant::now();
        let member = after(&body, "\"model\":\"").and_then(|rest| rest.split('"').next()).unwrap().to_owned();
        let task = after_last(&body, "<auto-claimed>Task #").and_then(|rest| rest.split(':').next()?.parse().ok());
        let turns = served.lock().unwrap().record_request(&member, task.unwrap_or_default(), received_at);
        let (tool, input) = match task {
            Some(task) if turns >= TURNS_PER_TASK => complete(task),
            _ => (NO_OP, json!({})),
        };
        let events = match head.split(' ').nth(1).unwrap_or_default() {
            path if path.ends_with("/messages") => messages_events(tool, &input, body.len() / BYTES_PER_TOKEN),
            path if path.ends_with("/responses") => responses_events(tool, &input, body.len() / BYTES_PER_TOKEN),
            _ => chat_events(tool, &input, body.len() / BYTES_PER_TOKEN),
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{events}",
            events.len()
        );
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        served.lock().unwrap().record_answer(&member);
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

impl Served {
    /// Records a request, and the overhead of the turn before it. Returns the number of earlier requests for the same task.
    fn record_request(&mut self, member: &str, task: u64, at: Instant) -> usize {
        let turns = self.members.entry(member.to_owned()).or_default();
        let answered_at = turns.answered_at.take();
        if turns.task != task {
            *turns = MemberTurns { task, ..MemberTurns::default() };
            return 0;
        }
        turns.turns += 1;
        self.overheads_ms.extend(answered_at.map(|answered_at| ms(at - answered_at)));
        turns.turns
    }

    fn record_answer(&mut self, member: &str) {
        self.answers += 1;
        self.members.entry(member.to_owned()).or_default().answered_at = Some(Instant::now());
    }
}

/// The head and the body of the next request; `None` if the client disconnects.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<(String, String)>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
            let length: usize = after(&head, "content-length: ").unwrap().lines().next().unwrap().parse().unwrap();
            let size = end + 4 + length;
            while buffer.len() < size {
                if stream.read_buf(buffer).await? == 0 {
                    return Ok(None);
                }
            }
            let rest = buffer.split_off(size);
            let request = std::mem::replace(buffer, rest);
            return Ok(Some((head, String::from_utf8(request[end + 4..].to_vec()).unwrap())));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn after<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    text.split_once(start).map(|(_, rest)| rest)
}

fn after_last<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    text.rsplit_once(start).map(|(_, rest)| rest)
}

/// The id of the next call.
fn next_call_id() -> String {
    format!("call_{:016x}", fastrand::u64(..))
}

fn messages_events(tool: &str, input: &Value, input_tokens: usize) -> String {
    let usage = json!({ "input_tokens": input_tokens, "output_tokens": 20 });
    let block = json!({ "type": "tool_use", "id": next_call_id(), "name": tool, "input": {} });
    let delta = json!({ "type": "input_json_delta", "partial_json": input.to_string() });
    let events = [
        json!({ "type": "message_start", "message": { "id": "msg_1", "type": "message", "role": "assistant", "usage": usage } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": usage }),
        json!({ "type": "message_stop" }),
    ];
    events.iter().map(named_event).collect()
}

fn chat_events(tool: &str, input: &Value, input_tokens: usize) -> String {
    let function = json!({ "name": tool, "arguments": input.to_string() });
    let call = json!({ "index": 0, "id": next_call_id(), "type": "function", "function": function });
    let usage = json!({ "prompt_tokens": input_tokens, "completion_tokens": 20 });
    let chunks = [
        json!({ "choices": [{ "index": 0, "delta": { "role": "assistant", "tool_calls": [call] } }] }),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] }),
        json!({ "choices": [], "usage": usage }),
    ];
    let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    events + "data: [DONE]\n\n"
}

fn responses_events(tool: &str, input: &Value, input_tokens: usize) -> String {
    let item = json!({
        "type": "function_call", "id": "fc_1", "status": "completed", "call_id": next_call_id(), "name": tool,
        "arguments": input.to_string()
    });
    let usage = json!({ "input_tokens": input_tokens, "output_tokens": 20 });
    let events = [
        json!({ "type": "response.created", "response": { "status": "in_progress" } }),
        json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
        json!({ "type": "response.completed", "response": { "status": "completed", "output": [item], "usage": usage } }),
    ];
    events.iter().map(named_event).collect()
}

fn named_event(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}
