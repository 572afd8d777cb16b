//! A killed team that is launched again: the time from the process start to the first model request.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use brigade::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry, Usage};
use brigade::domain::log::event::{EventKind, NewEvent};
use brigade::domain::task::TaskId;
use brigade::domain::time::UnixMs;
use brigade::ports::{Durability, Transcripts};
use brigade::stores::file::TEAM_FOLDER;
use brigade::stores::file::transcripts::FileTranscripts;
use brigade::stores::fs::RealFileSystem;
use serde_json::json;

use super::report::{ROUNDS, Report, Target, format_figure, median, ms};
use super::team::member_name;
use super::workspace::{BenchWorkspace, WAIT_TIME_MAX, pending};

const TEAMMATES: usize = 50;
const TASKS: u64 = 500;
const EVENTS: usize = 10_000;
/// Turns in each transcript; each is a tool call and its result.
const TURNS: usize = 100;
/// The size of a tool result.
const RESULT_BYTES: usize = 1500;

pub fn measure(report: &mut Report) {
    let server = SilentServer::listen();
    let workspace = BenchWorkspace::with_board(pending(TASKS));
    write_config(&workspace, &server.address);
    let transcripts_mb = write_transcripts(&workspace);
    // The first launch prepares the state that every further launch resumes. It is killed while all members wait for
    // their models.
    let (mut first_request_ms, mut last_request_ms) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let started_at = Instant::now();
        let mut process = workspace.start(&["up", "bench", "--headless"]);
        let times: Vec<Instant> = (0..TEAMMATES).map(|_| server.next_arrival()).collect();
        if round > 0 {
            first_request_ms.push(ms(times[0] - started_at));
            last_request_ms.push(ms(times[TEAMMATES - 1] - started_at));
        }
        process.0.kill().unwrap();
        process.wait();
        server.discard_arrivals();
        grow_log(&workspace);
    }
    let comparison = format!(
        "the last of {TEAMMATES}: {}; {transcripts_mb} MB of transcripts",
        format_figure(median(&last_request_ms), "ms")
    );
    let title = format!("killed with {TEAMMATES} at work, {EVENTS} events: up to the first request");
    report.add(title, median(&first_request_ms), "ms", Target::Below(1000.0), comparison);
}

/// A model server that accepts requests and never answers.
struct SilentServer {
    address: String,
    arrivals: Receiver<Instant>,
}

impl SilentServer {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, arrivals) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                std::thread::spawn(move || read_to_end(stream, || sender.send(Instant::now()).unwrap()));
            }
        });
        Self { address, arrivals }
    }

    fn next_arrival(&self) -> Instant {
        self.arrivals.recv_timeout(WAIT_TIME_MAX).expect("a request arrives")
    }

    fn discard_arrivals(&self) {
        while self.arrivals.try_recv().is_ok() {}
    }
}

/// Reads until the other side closes; calls `on_first_bytes` after the first bytes.
fn read_to_end(mut stream: TcpStream, on_first_bytes: impl FnOnce()) {
    let mut bytes = [0; 64 * 1024];
    let mut on_first_bytes = Some(on_first_bytes);
    while matches!(stream.read(&mut bytes), Ok(1..)) {
        if let Some(on_first_bytes) = on_first_bytes.take() {
            on_first_bytes();
        }
    }
}

fn write_config(workspace: &BenchWorkspace, address: &str) {
    let members: String = (0..TEAMMATES)
        .map(|number| {
            format!(
                "[[teams.bench.members]]\nname = \"{}\"\nrole = \"worker\"\nprovider = \"anthropic\"\nmodel = \"claude-sonnet-4-5\"\nbase_url = \"http://{address}\"\n",
                member_name(number)
            )
        })
        .collect();
    workspace.write("brigade.toml", &format!("[teams.bench]\n{members}"));
}

/// Writes the transcript of each teammate. Returns their size in megabytes.
fn write_transcripts(workspace: &BenchWorkspace) -> usize {
    let folder = workspace.join(TEAM_FOLDER);
    let transcripts = FileTranscripts::new(Arc::new(RealFileSystem::default()), Durability::Process, &folder);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut bytes = 0;
    for number in 0..TEAMMATES {
        let records: Vec<Record> = (0..TURNS).flat_map(turn).collect();
        bytes += records.iter().map(|record| record.to_line().len() + 1).sum::<usize>();
        runtime.block_on(transcripts.append(&member_name(number), &records, false)).unwrap();
    }
    bytes / 1_000_000
}

fn turn(number: usize) -> [Record; 2] {
    let id = format!("toolu_{number}");
    let call = Block::tool_use(id.clone(), "read_file", json!({"path": "src/main.rs"}));
    let mut call_message = MessageRecord::new(Role::Assistant, vec![Block::text("I look at the next part."), call]);
    call_message.usage =
        Some(Usage { input_tokens: 4000 + 400 * number as u64, output_tokens: 60, ..Usage::default() });
    let text: String = std::iter::repeat_with(|| if fastrand::u8(..6) == 0 { ' ' } else { fastrand::lowercase() })
        .take(RESULT_BYTES)
        .collect();
    let result = Block::ToolResult { tool_use_id: id, content: text, is_error: false };
    [call_message, MessageRecord::new(Role::User, vec![result])]
        .map(|message| Record { at: UnixMs(1_763_688_000_000), entry: TranscriptEntry::Message(message) })
}

/// Extends the log of the killed run to [`EVENTS`] events.
fn grow_log(workspace: &BenchWorkspace) {
    let path = workspace.join(TEAM_FOLDER).join("events.jsonl");
    let existing = std::fs::read_to_string(&path).unwrap().lines().count();
    let mut text = String::new();
    for seq in existing + 1..=EVENTS {
        let teammate = member_name(seq % TEAMMATES);
        let kind = EventKind::ToolStarted {
            teammate,
            task: Some(TaskId(seq as u64 % TASKS + 1)),
            tool: "bash".to_owned(),
            call: format!("toolu_{seq}"),
            about: "cargo test --test stores".to_owned(),
        };
        text += &NewEvent::from(kind).number(seq as u64, UnixMs(1_763_688_000_000)).to_line();
        text.push('\n');
    }
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}
