//! The example `recorded`: a team whose models use all three APIs is recorded, and a team without a server works from the recording.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};

use super::chat::chat_answer;
use super::responses;
use super::team::{both, run, statuses};
use crate::testkit::model_server::{Part, ReceivedRequest, Reply, Server, call, streamed, streamed_answer, text};
use crate::testkit::workspace::TestWorkspace;

/// The members, each with its API.
const MEMBERS: [(&str, &str); 3] = [("lead", "messages"), ("alice", "chat"), ("bob", "responses")];
const CONVERT: &str = "# Converts degrees Celsius to Fahrenheit.\necho $(( $1 * 9 / 5 + 32 ))\n";
const TEST: &str = "set -e\nfor pair in 0:32 100:212 -40:-40; do\n  test \"$(sh convert.sh \"${pair%:*}\")\" = \"${pair#*:}\"\ndone\necho 3 cases pass\n";

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recorded")
}

/// The answers of the models of a member, in sequence: a text and calls.
fn steps(api: &str) -> Vec<(&'static str, Vec<(&'static str, Value)>)> {
    let complete = |task: u64, result: &str| {
        vec![("task_update", json!({"task_id": task, "status": "completed", "result": result}))]
    };
    let write = |path: &str, content: &str| vec![("write_file", json!({"path": path, "content": content}))];
    let run = |command: &str| vec![("bash", json!({ "command": command }))];
    match api {
        "messages" => {
            let converter = json!({"subject": "Write convert.sh", "requires": ["coder"],
                "description": "convert.sh prints its argument, whole degrees Celsius, in Fahrenheit.",
                "verify": "test \"$(sh convert.sh 100)\" = 212"});
            let test = json!({"subject": "Write test.sh", "requires": ["tester"], "blocked_by": [1],
                "description": "test.sh exits 0 if convert.sh is right for 0, 100 and -40.", "verify": "sh test.sh"});
            vec![
                ("Two tasks: the converter, then its test.", vec![("task_create", converter), ("task_create", test)]),
                ("alice writes the converter. Then bob tests it.", vec![]),
                ("I run the test myself.", run("sh test.sh")),
                ("The converter is done, and its test passes.", vec![]),
            ]
        }
        "chat" => vec![
            ("The shell can compute this.", write("convert.sh", CONVERT)),
            ("Now I try it.", run("sh convert.sh 100")),
            ("212 is right.", complete(1, "convert.sh converts whole degrees; 100 gives 212")),
        ],
        _ => vec![
            ("One loop over the three cases.", write("test.sh", TEST)),
            ("It must pass.", run("sh test.sh")),
            ("It does.", complete(2, "test.sh checks 0, 100 and -40; all pass")),
        ],
    }
}

/// Answers with the steps of the API that the request uses.
fn scripted() -> impl Fn(&ReceivedRequest, usize) -> Reply + Send + Sync + 'static {
    let asked: Mutex<HashMap<&str, usize>> = Mutex::default();
    move |request, _| {
        let path = request.head.split_whitespace().nth(1).unwrap();
        let api = match path {
            "/v1/messages" => "messages",
            "/v1/chat/completions" => "chat",
            _ => "responses",
        };
        let step = {
            let mut asked = asked.lock().unwrap();
            let asked = asked.entry(api).or_default();
            *asked += 1;
            *asked - 1
        };
        let (said, calls) = steps(api).into_iter().nth(step).unwrap_or(("Nothing is left to do.", vec![]));
        let id = |number: usize| format!("call_{api}_{step}_{number}");
        if api == "responses" {
            return responses_answer(step, said, &calls);
        }
        let calls = calls.iter().enumerate().map(|(number, (tool, input))| call(&id(number), tool, input.clone()));
        let parts: Vec<Part> = std::iter::once(text(said)).chain(calls).collect();
        if api == "chat" { chat_answer(&parts) } else { streamed_answer(&parts) }
    }
}

/// An answer with reasoning, which goes back in the next request.
fn responses_answer(step: usize, said: &str, calls: &[(&str, Value)]) -> Reply {
    let usage = json!({"input_tokens": 2_000, "input_tokens_details": {"cached_tokens": 500},
        "output_tokens": 300, "output_tokens_details": {"reasoning_tokens": 270}});
    let part = json!({"type": "output_text", "text": said, "annotations": []});
    let mut items = vec![
        json!({"type": "reasoning", "id": format!("rs_{step}"), "summary": [], "encrypted_content": "Z2F0ZQ=="}),
        json!({"type": "message", "id": format!("msg_{step}"), "status": "completed", "role": "assistant",
            "content": [part]}),
    ];
    items.extend(calls.iter().map(|(tool, input)| {
        json!({"type": "function_call", "id": format!("fc_{step}"), "status": "completed",
            "call_id": format!("call_{step}"), "name": tool, "arguments": input.to_string()})
    }));
    streamed(&responses::events(&items, &usage), 64)
}

/// The config of the example, with models at this server, and `record`.
fn recording_config(url: &str) -> String {
    let config = fs::read_to_string(example().join("brigade.toml")).unwrap();
    let (_, team) = config.split_once("[teams.converter]\n").unwrap();
    let model = |name: &str, provider: &str, model: &str| {
        format!("[models.{name}]\nprovider = \"{provider}\"\nmodel = \"{model}\"\nbase_url = \"{url}\"\n")
    };
    let models = model("planner", "anthropic", "claude-sonnet-4-5")
        + &model("coder", "ollama", "qwen3-coder:30b")
        + &model("tester", "openai", "gpt-6-luna");
    format!("{models}[teams.converter]\nrecord = \"traffic\"\n{team}")
}

async fn expect_work(workspace: &TestWorkspace, arguments: &[&str]) {
    let output = run(workspace, arguments, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(workspace), ["completed"; 2], "{}", both(&output));
    assert_eq!((workspace.read("convert.sh"), workspace.read("test.sh")), (CONVERT.to_owned(), TEST.to_owned()));
    assert!(both(&output).contains("The converter is done"), "{}", both(&output));
}

/// `UPDATE_RECORDINGS=1` writes the recording to the example.
#[tokio::test]
async fn recording_of_each_api_answers_without_server() {
    let recorded = TestWorkspace::new();
    {
        let server = Server::start(scripted()).await;
        recorded.write("brigade.toml", &recording_config(&server.url));
        expect_work(&recorded, &["run"]).await;
        assert_eq!(server.requests().len(), MEMBERS.iter().map(|(_, api)| steps(api).len()).sum::<usize>());
    }
    let folder = |workspace: &TestWorkspace| workspace.join("traffic");
    let replayed = TestWorkspace::new();
    fs::copy(example().join("brigade.toml"), replayed.join("brigade.toml")).unwrap();
    fs::create_dir(folder(&replayed)).unwrap();
    for (member, _) in MEMBERS {
        let file = format!("traffic/{member}.jsonl");
        fs::copy(recorded.join(&file), replayed.join(&file)).unwrap();
        if std::env::var_os("UPDATE_RECORDINGS").is_some() {
            fs::create_dir_all(example().join("traffic")).unwrap();
            fs::copy(recorded.join(&file), example().join(&file)).unwrap();
        }
    }
    expect_work(&replayed, &["run"]).await;
    for (member, api) in MEMBERS {
        let transcript = replayed.read(&format!(".team/transcripts/{member}.jsonl"));
        assert!(transcript.contains(&format!("\"api\":\"{api}\"")), "{member}: {transcript}");
        assert_eq!(transcript.contains("Z2F0ZQ=="), api == "responses", "{member}: {transcript}");
    }
}
