//! Models that use Responses, in the client and in teams of the real program.

use brigade::domain::agent::transcript::Block;
use brigade::domain::team::team_spec::{ApiKind, ModelSpec};
use brigade::ports::{ModelClient, ModelError, ModelResponse, StopReason};
use brigade::providers::provider;
use serde_json::{Value, json};

use super::answers::{KEY, request};
use super::team::{both, logged, run, statuses};
use crate::testkit::model_server::{
    ReceivedRequest, Reply, Server, ServerAction, chunk, error_reply, full_response, head, streamed,
};
use crate::testkit::workspace::TestWorkspace;

const SAMPLE: &str = include_str!("../parsers/samples/responses.sse");

fn event(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}

/// The events of an answer with these items.
pub fn events(items: &[Value], usage: &Value) -> String {
    let mut events = event(&json!({"type": "response.created", "response": {"status": "in_progress"}}));
    for (index, item) in items.iter().enumerate() {
        events += &event(&json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }
    let response = json!({"status": "completed", "output": items, "usage": usage});
    events + &event(&json!({"type": "response.completed", "response": response}))
}

fn client(url: &str, provider_name: &str, key: &str) -> impl ModelClient {
    let spec = ModelSpec { base_url: Some(url.to_owned()), ..ModelSpec::new(provider_name, "m") };
    let service = provider(provider_name).unwrap().service.as_ref().unwrap();
    service.model(&spec, &|name| (name == key).then(|| KEY.to_owned())).unwrap()
}

async fn ask(reply: Reply) -> Result<ModelResponse, ModelError> {
    let server = Server::start(move |_, _| reply.clone()).await;
    client(&server.url, "openai", "OPENAI_API_KEY").request(request(), &()).await
}

/// An answer with reasoning and a call: writes a file for the task, then reports it.
fn diligent(request: &ReceivedRequest, count: usize) -> Reply {
    let input = request.body["input"].as_array().unwrap();
    let all = request.body["input"].to_string();
    let usage = json!({"input_tokens": 2_000, "input_tokens_details": {"cached_tokens": 500},
        "output_tokens": 300, "output_tokens_details": {"reasoning_tokens": 270}, "cost_in_usd_ticks": 50_000_000});
    let task = all.rsplit_once("-claimed>Task #").map(|(_, rest)| rest.split(':').next().unwrap().to_owned());
    let part = json!({"type": "output_text", "text": "On it.", "annotations": []});
    let message = json!({"type": "message", "id": format!("msg_{count}"), "status": "completed", "role": "assistant",
        "phase": "commentary", "content": [part]});
    let Some(task) = task else { return streamed(&events(&[message], &usage), 64) };
    let results = input.iter().rev().take_while(|item| item["type"] == "function_call_output").count();
    let (name, arguments) = if results > 0 {
        ("task_update", json!({"task_id": task, "status": "completed", "result": "written"}))
    } else {
        ("bash", json!({"command": format!("echo {task} > out-{task}.txt")}))
    };
    let reasoning =
        json!({"type": "reasoning", "id": format!("rs_{count}"), "summary": [], "encrypted_content": "Z2F0ZQ=="});
    let call = json!({"type": "function_call", "id": format!("fc_{count}"), "status": "completed",
        "call_id": format!("call_{count}"), "name": name, "arguments": format!("{arguments} ")});
    streamed(&events(&[reasoning, message, call], &usage), 64)
}

/// A workspace with the team `crew` of one member at this server.
fn workspace(url: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    let member = format!("name = \"alice\"\nprovider = \"openai\"\nmodel = \"m-1\"\nbase_url = \"{url}\"\n");
    let config =
        format!("durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\n{member}");
    workspace.write("brigade.toml", &config);
    workspace.write("plan.md", "## One\n\n## Two\n");
    workspace
}

#[tokio::test]
async fn team_on_responses_server_completes_tasks() {
    let server = Server::start(diligent).await;
    let workspace = workspace(&server.url);
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"; 2]);
    let requests = server.requests();
    for request in &requests {
        assert!(request.head.starts_with("post /v1/responses http/1.1"), "{}", request.head);
        assert_eq!(request.header("authorization"), Some(&*format!("bearer {KEY}")));
        assert_eq!((&request.body["model"], &request.body["store"]), (&json!("m-1"), &json!(false)));
        assert_eq!(request.body["prompt_cache_key"], requests[0].body["prompt_cache_key"]);
    }
    // Each request has the items of the one before, in their order and with the model's own text of arguments.
    for pair in requests.windows(2) {
        let [before, after] = [&pair[0].body["input"], &pair[1].body["input"]].map(|input| input.as_array().unwrap());
        if after.len() < before.len() {
            continue;
        }
        assert_eq!(after[..before.len()], before[..]);
        let kinds: Vec<&str> = after[before.len()..].iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert!(kinds.starts_with(&["reasoning", "message", "function_call"]), "{kinds:?}");
        let call = &after[before.len() + 2];
        assert!(call["id"].as_str().unwrap().starts_with("fc_") && call["arguments"].as_str().unwrap().ends_with("} "));
        assert_eq!(after[before.len() + 1]["phase"], "commentary");
    }
    // The bill beats the price table, in which the model has none.
    let cost = run(&workspace, &["cost", "crew", "--json"], &[]).await;
    let cost: Value = serde_json::from_slice(&cost.stdout).unwrap();
    let cost = cost.get("data").unwrap_or(&cost);
    #[expect(clippy::cast_precision_loss, reason = "few requests")]
    let expected = requests.len() as f64 * 0.005;
    assert!((cost["usd"].as_f64().unwrap() - expected).abs() < 1e-9, "{cost}");
    assert_eq!((&cost["unpriced"], cost["tokens"].as_u64()), (&json!([]), Some(2_300 * requests.len() as u64)));
}

/// A server that knows no optional field is asked once without each of them, and the log names the settings.
#[tokio::test]
async fn unknown_fields_are_left_out_and_reported() {
    let server = Server::start(|request, count| {
        let optional = ["temperature", "include", "prompt_cache_key", "max_output_tokens"];
        match optional.iter().find(|field| request.body.get(**field).is_some()) {
            Some(field) => error_reply(400, "", "invalid_request_error", &format!("property '{field}' is unsupported")),
            None => diligent(request, count),
        }
    })
    .await;
    let workspace = workspace(&server.url);
    workspace.write("brigade.toml", &(workspace.read("brigade.toml") + "temperature = 0.5\n"));
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"; 2]);
    let requests = server.requests();
    assert!(requests[4..].iter().all(|request| request.body["max_tokens"].is_u64()), "the limit has its other name");
    assert_eq!(requests[..5].iter().filter(|request| request.body.get("include").is_some()).count(), 2);
    let warnings = logged(&workspace, "warning");
    for advice in [
        "remove `temperature`",
        "set compat = { include = false }",
        "set compat = { cache = false }",
        "set compat = { max_tokens_field = \"max_tokens\" }",
    ] {
        let named = warnings.iter().filter(|warning| warning["text"].as_str().unwrap().ends_with(advice)).count();
        assert_eq!(named, 1, "{advice}: {warnings:?}");
    }
}

#[tokio::test]
async fn prices_count_instead_of_bill_if_configured() {
    let server = Server::start(diligent).await;
    let workspace = workspace(&server.url);
    let prices = "compat = { cost = \"prices\" }\n[prices]\n\"m-1\" = { input_usd_per_mtok = 1000.0, output_usd_per_mtok = 0.0, cache_read_usd_per_mtok = 0.0 }\n";
    workspace.write("brigade.toml", &(workspace.read("brigade.toml") + prices));
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    let cost = run(&workspace, &["cost", "crew", "--json"], &[]).await;
    let cost: Value = serde_json::from_slice(&cost.stdout).unwrap();
    let usd = cost.get("data").unwrap_or(&cost)["usd"].as_f64().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "few requests")]
    let expected = server.requests().len() as f64 * 1.5;
    assert!((usd - expected).abs() < 1e-9, "{cost}");
}

/// A member that changes its model continues its transcript without the items of the other one.
#[tokio::test]
async fn team_continues_after_change_of_api() {
    let server = Server::start(|request, count| {
        if request.head.starts_with("post /v1/responses ") {
            return diligent(request, count);
        }
        let chunk = json!({"choices": [{"delta": {"content": "Nothing to do."}, "finish_reason": "stop"}]});
        streamed(&format!("data: {chunk}\n\ndata: [DONE]\n\n"), 64)
    })
    .await;
    let workspace = workspace(&server.url);
    let config = std::fs::read_to_string(workspace.join("brigade.toml")).unwrap();
    let first = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(first.status.code(), Some(0), "{}", both(&first));
    let before = server.requests().len();
    workspace.write("brigade.toml", &config.replace("\"openai\"", "\"openai-compatible\""));
    workspace.write("plan.md", "## One\n\n## Two\n\n## Three\n");
    let _ = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    let requests = server.requests();
    let after = requests[before..].iter().map(|request| request.body.to_string()).next().expect("a request");
    assert!(after.contains("out-1.txt") && after.contains("On it."), "the context goes on: {after}");
    for bound in ["rs_", "fc_", "msg_", "Z2F0ZQ==", "commentary"] {
        assert!(!after.contains(bound), "{bound} in {after}");
    }
}

#[tokio::test]
async fn cut_responses_stream_is_a_temporary_error() {
    let terminal = SAMPLE.rfind("event: response.completed").unwrap();
    for end in [0, 40, terminal / 2, terminal, SAMPLE.trim_end().len()] {
        let cut = ask(streamed(&SAMPLE[..end], 50)).await;
        assert!(matches!(&cut, Err(ModelError::Temporary { message, .. }) if message.contains("too early")), "{cut:?}");
        let torn = vec![head(), ServerAction::Send(chunk(&SAMPLE.as_bytes()[..end.max(1)])), ServerAction::Close];
        assert!(matches!(ask(torn).await, Err(ModelError::Temporary { .. })));
    }
    let failed = json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "gone"}}});
    let failed = ask(streamed(&format!("{}{}", &SAMPLE[..terminal], event(&failed)), 50)).await;
    assert!(matches!(&failed, Err(ModelError::Temporary { message, .. }) if message.contains("gone")), "{failed:?}");
    let whole = ask(streamed(SAMPLE, 9)).await.unwrap();
    assert_eq!((whole.stop, whole.content.len()), (StopReason::ToolUse, 4));
    let origin = whole.origin.unwrap();
    assert_eq!((&*origin.provider, &*origin.api, &*origin.model), ("openai", "responses", "a-model"));
}

#[tokio::test]
async fn whole_json_response_is_read() {
    let part = json!({"type": "output_text", "text": "Done."});
    let message = json!({"type": "message", "role": "assistant", "content": [part]});
    let usage = json!({"input_tokens": 9, "output_tokens": 3});
    let body = json!({"object": "response", "error": null, "status": "completed", "output": [message], "usage": usage});
    let headers = "content-type: application/json\r\nx-litellm-response-cost: 0.002\r\n";
    let answer = ask(full_response(200, headers, &body.to_string())).await.unwrap();
    assert_eq!((answer.content, answer.stop), (vec![Block::text("Done.")], StopReason::EndTurn));
    assert_eq!(answer.usage.unwrap().cost_ticks, Some(20_000_000), "the bill in the header");
}

/// Azure's address names the resource, and its key has a header of its own.
#[tokio::test]
async fn services_have_their_own_address_and_key() {
    for (name, key, path, header) in [
        ("azure", "AZURE_OPENAI_API_KEY", "post /openai/v1/responses ", "api-key"),
        ("xai", "XAI_API_KEY", "post /v1/responses ", "authorization"),
    ] {
        let server = Server::start(|_, _| streamed(SAMPLE, 99)).await;
        client(&server.url, name, key).request(request(), &()).await.unwrap();
        let received = &server.requests()[0];
        assert!(received.head.starts_with(path), "{}", received.head);
        assert!(received.header(header).is_some_and(|value| value.ends_with(KEY)), "{}", received.head);
    }
    let azure = provider("azure").unwrap().service.as_ref().unwrap();
    let error = azure.model(&ModelSpec::new("azure", "m"), &|_| Some(KEY.to_owned())).err().unwrap();
    assert!(error.contains("needs `base_url`"), "{error}");
    let server = Server::start(|_, _| full_response(404, "", "")).await;
    let openai = provider("openai").unwrap().service.as_ref().unwrap();
    let spec =
        ModelSpec { api: Some(ApiKind::Chat), base_url: Some(server.url.clone()), ..ModelSpec::new("openai", "m") };
    let _ = openai.model(&spec, &|_| None).unwrap().request(request(), &()).await;
    assert!(server.requests()[0].head.starts_with("post /v1/chat/completions "), "the setting beats the row");
}
