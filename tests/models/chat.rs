//! Teams in the real program, with models that use chat completions.

use serde_json::{Value, json};

use super::answers::KEY;
use super::team::{both, run, statuses};
use crate::testkit::model_server::{Part, ReceivedRequest, Reply, Server, call, streamed, text};
use crate::testkit::workspace::TestWorkspace;

/// A streamed answer with these parts.
fn chat_answer(parts: &[Part]) -> Reply {
    let mut deltas = vec![json!({"role": "assistant", "content": null})];
    let mut calls = 0;
    for part in parts {
        match part {
            Part::Text(text) => deltas.push(json!({ "content": text })),
            Part::Call(id, name, arguments) => {
                let head =
                    json!({"index": calls, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
                let rest = json!({"index": calls, "function": {"arguments": arguments}});
                deltas.extend([json!({"tool_calls": [head]}), json!({"tool_calls": [rest]})]);
                calls += 1;
            }
        }
    }
    let mut chunks: Vec<Value> =
        deltas.into_iter().map(|delta| json!({"choices": [{"index": 0, "delta": delta}]})).collect();
    let reason = if calls > 0 { "tool_calls" } else { "stop" };
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    let usage =
        json!({"prompt_tokens": 2_000, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 500}});
    chunks.push(json!({"choices": [], "usage": usage}));
    let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    streamed(&(events + "data: [DONE]\n\n"), 64)
}

/// Writes a file for the task, then reports it.
fn diligent(request: &ReceivedRequest, count: usize) -> Reply {
    let messages = request.body["messages"].as_array().unwrap();
    let all = request.body["messages"].to_string();
    let task = all.rsplit_once("-claimed>Task #").map(|(_, rest)| rest.split(':').next().unwrap().to_owned());
    let Some(task) = task else { return chat_answer(&[text("Nothing to do.")]) };
    let results = messages.iter().rev().take_while(|message| message["role"] == "tool").count();
    let id = format!("call_{count}");
    let part = if results > 0 {
        call(&id, "task_update", json!({"task_id": task, "status": "completed", "result": "written"}))
    } else {
        call(&id, "bash", json!({"command": format!("echo {task} > out-{task}.txt")}))
    };
    chat_answer(&[text("On it."), part])
}

#[tokio::test]
async fn team_on_chat_server_completes_tasks() {
    let server = Server::start(diligent).await;
    let workspace = TestWorkspace::new();
    let member = |name: &str| {
        format!(
            "[[teams.crew.members]]\nname = \"{name}\"\nprovider = \"openai-compatible\"\nmodel = \"m-1\"\nbase_url = \"{}\"\n",
            server.url
        )
    };
    let config =
        format!("durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n{}{}", member("alice"), member("bob"));
    workspace.write("brigade.toml", &config);
    workspace.write("plan.md", "## One\n\n## Two\n\n## Three\n");
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"; 3]);
    assert!((1..=3).all(|task| workspace.join(&format!("out-{task}.txt")).exists()));
    for request in server.requests() {
        assert!(request.head.starts_with("post /v1/chat/completions http/1.1"), "{}", request.head);
        assert_eq!(request.header("authorization"), Some(&*format!("bearer {KEY}")));
        assert_eq!((&request.body["model"], &request.body["stream"]), (&json!("m-1"), &json!(true)));
    }
    let finished: Vec<Value> =
        workspace.events().into_iter().filter(|event| event["kind"] == "turn_finished").collect();
    assert!(finished.iter().all(|event| event["input_tokens"] == 1_500 && event["cache_read_tokens"] == 500));
    assert!(!both(&output).contains(KEY));
}
