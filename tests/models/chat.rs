//! Teams in the real program, with models that use chat completions.

use brigade::domain::agent::transcript::Block;
use brigade::domain::team::team_spec::ModelSpec;
use brigade::ports::{ModelClient, ModelError, ModelResponse, StopReason};
use brigade::providers::exchange::HttpModel;
use brigade::providers::provider;
use serde_json::{Value, json};

use super::answers::{KEY, request};
use super::team::{both, run, statuses};
use crate::testkit::model_server::{
    Part, ReceivedRequest, Reply, Server, ServerAction, call, chunk, full_response, head, streamed, text,
};
use crate::testkit::workspace::TestWorkspace;

/// The client of this service at this address.
fn client(service: &str, url: &str) -> HttpModel {
    let spec = ModelSpec {
        provider: service.into(),
        model: "m".into(),
        base_url: Some(url.to_owned()),
        ..ModelSpec::default()
    };
    let service = provider(service).unwrap().service.as_ref().unwrap();
    service.model(&spec, &|name| (name == "OPENAI_API_KEY").then(|| KEY.to_owned())).unwrap()
}

/// The result of one request to a server that answers each with `reply`.
async fn ask(reply: Reply) -> Result<ModelResponse, ModelError> {
    let server = Server::start(move |_, _| reply.clone()).await;
    let result = client("openai-compatible", &server.url).request(request(), &()).await;
    assert_eq!(server.requests().len(), 1, "the turn repeats requests, not the provider");
    result
}

/// The events of an answer with these parts.
fn chat_events(parts: &[Part]) -> String {
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
    events + "data: [DONE]\n\n"
}

/// A streamed answer with these parts.
pub fn chat_answer(parts: &[Part]) -> Reply {
    streamed(&chat_events(parts), 64)
}

/// Writes a file for the task, then reports it.
pub fn diligent(request: &ReceivedRequest, count: usize) -> Reply {
    match next_call(request, count) {
        Some(part) => chat_answer(&[text("On it."), part]),
        None => chat_answer(&[text("Nothing to do.")]),
    }
}

/// As [`diligent`], with each call as text.
fn diligent_in_text(request: &ReceivedRequest, count: usize) -> Reply {
    let Some(Part::Call(_, name, arguments)) = next_call(request, count) else {
        return chat_answer(&[text("Nothing to do.")]);
    };
    let arguments: Value = serde_json::from_str(&arguments).unwrap();
    chat_answer(&[text(&format!("```json\n{:#}\n```", json!({"name": name, "arguments": arguments})))])
}

/// The text of an answer that a schema forces.
fn json_text(name: &str, arguments: &Value) -> String {
    json!({"tool": name, "arguments": arguments}).to_string()
}

/// As [`diligent`], with each call as JSON. The first answer is cut by its limit, the second by a gateway.
fn diligent_in_json(request: &ReceivedRequest, count: usize) -> Reply {
    let all = request.body["messages"].to_string();
    let (_, task) = all.rsplit_once("-claimed>Task #").unwrap();
    let task = task.split(':').next().unwrap();
    let last = request.body["messages"].as_array().unwrap().last().unwrap();
    let has_result = last["content"].as_str().unwrap().contains("{\"result\": \"[exit status 0]");
    let (name, arguments) = match count {
        0 | 1 => ("bash", json!({"command": "touch cut.txt"})),
        _ if has_result => ("task_update", json!({"task_id": task, "status": "completed", "result": "written"})),
        _ => ("bash", json!({"command": format!("echo {task} > out-{task}.txt")})),
    };
    let answer = json_text(name, &arguments);
    match count {
        0 => streamed(&chat_events(&[text(&answer)]).replace("\"stop\"", "\"length\""), 64),
        1 => chat_answer(&[text(&answer[..answer.len() - 1])]),
        _ => chat_answer(&[text(&answer)]),
    }
}

fn next_call(request: &ReceivedRequest, count: usize) -> Option<Part> {
    let messages = request.body["messages"].as_array().unwrap();
    let all = request.body["messages"].to_string();
    let (_, task) = all.rsplit_once("-claimed>Task #")?;
    let task = task.split(':').next().unwrap().to_owned();
    let results = messages.iter().rev().take_while(|message| message["role"] == "tool").count();
    let id = format!("call_{count}");
    Some(if results > 0 {
        call(&id, "task_update", json!({"task_id": task, "status": "completed", "result": "written"}))
    } else {
        call(&id, "bash", json!({"command": format!("echo {task} > out-{task}.txt")}))
    })
}

/// A team of two with the tasks One, Two and Three.
fn team_on(server: &Server) -> TestWorkspace {
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
    workspace
}

#[tokio::test]
async fn calls_as_text_complete_tasks() {
    let server = Server::start(diligent_in_text).await;
    let workspace = team_on(&server);
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"; 3]);
    assert!((1..=3).all(|task| workspace.join(&format!("out-{task}.txt")).exists()));
}

#[tokio::test]
async fn json_calls_complete_tasks() {
    let server = Server::start(diligent_in_json).await;
    let workspace = team_on(&server);
    let config = workspace.read("brigade.toml").replace("model =", "tool_calls = \"json\"\nmodel =");
    workspace.write("brigade.toml", &config);
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"; 3]);
    assert!((1..=3).all(|task| workspace.join(&format!("out-{task}.txt")).exists()));
    assert!(!workspace.join("cut.txt").exists(), "a cut call is not made");
    assert!(!both(&output).contains("\"tool\":"), "people see no JSON: {}", both(&output));
    for ReceivedRequest { body, .. } in server.requests() {
        assert_eq!((body.get("tools"), &body["response_format"]["type"]), (None, &json!("json_schema")), "{body}");
        let roles = body["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap());
        let expected = ["system"].into_iter().chain(["user", "assistant"].into_iter().cycle());
        assert!(roles.zip(expected).all(|(role, expected)| role == expected), "{body}");
    }
}

/// Small models repeat a call after its result.
#[tokio::test]
async fn repeated_json_call_ends_work() {
    let answer = json_text("bash", &json!({"command": "echo again"}));
    let server = Server::start(move |_, _| chat_answer(&[text(&answer)])).await;
    let workspace = team_on(&server);
    let config = workspace.read("brigade.toml").replace("model =", "tool_calls = \"json\"\nmodel =");
    workspace.write("brigade.toml", &config);
    workspace.write("plan.md", "## One\n");
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert!(both(&output).contains("made the same calls again with the same results"), "{}", both(&output));
    assert!(server.requests().len() <= 18, "{}", server.requests().len());
}

#[tokio::test]
async fn team_on_chat_server_completes_tasks() {
    let server = Server::start(diligent).await;
    let workspace = team_on(&server);
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

/// A cut stream is never an answer, wherever it is cut; one without `[DONE]` after its reason is.
#[tokio::test]
async fn cut_chat_stream_is_a_temporary_error() {
    let whole = chat_events(&[text("On it."), call("c", "bash", json!({"command": "true"}))]);
    let reason = whole.find("\"finish_reason\"").unwrap();
    let end_of_call = whole[..reason].rfind("data: ").unwrap();
    for end in [0, 40, end_of_call / 2, end_of_call, reason] {
        let cut = ask(streamed(&whole[..end], 50)).await;
        assert!(matches!(&cut, Err(ModelError::Temporary { message, .. }) if message.contains("too early")), "{cut:?}");
        let torn = vec![head(), ServerAction::Send(chunk(&whole.as_bytes()[..end.max(1)])), ServerAction::Close];
        let torn = ask(torn).await;
        assert!(matches!(torn, Err(ModelError::Temporary { .. })), "{torn:?}");
    }
    let until_reason = &whole[..reason + whole[reason..].find("\n\n").unwrap() + 2];
    let torn = vec![head(), ServerAction::Send(chunk(until_reason.as_bytes())), ServerAction::Close];
    for reply in [streamed(until_reason, 50), torn] {
        let answer = ask(reply).await.unwrap();
        assert_eq!((answer.stop, answer.content.len(), answer.usage), (StopReason::ToolUse, 2, None));
    }
}

#[tokio::test]
async fn answer_in_other_encoding_makes_no_call() {
    let whole = chat_events(&[text("caf@"), call("c", "bash", json!({"command": "echo caf@"}))]);
    let latin: Vec<u8> = whole.bytes().map(|byte| if byte == b'@' { 0xe9 } else { byte }).collect();
    let answer = ask(vec![head(), ServerAction::Send(chunk(&latin)), ServerAction::Close]).await.unwrap();
    let [words, Block::ToolUse { input: Value::String(_), .. }] = &answer.content[..] else { panic!("{answer:?}") };
    assert_eq!(words, &Block::text("caf\u{fffd}"));
}

#[tokio::test]
async fn comments_and_keepalives_are_signs_of_life() {
    let events = chat_events(&[text("Done.")]);
    let life = ": OPENROUTER PROCESSING\n\n\n\nevent: keepalive\ndata: x\n\ndata:\n\n";
    let answer = ask(streamed(&format!("{life}{}", events.replace("\n\n", &format!("\n\n{life}"))), 7)).await.unwrap();
    assert_eq!((answer.content, answer.stop), (vec![Block::text("Done.")], StopReason::EndTurn));
}

#[tokio::test]
async fn whole_json_answer_is_read() {
    let json = |body: &str| full_response(200, "content-type: application/json; charset=utf-8\r\n", body);
    let arguments = json!({"command": "ls"}).to_string();
    let call = json!({"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}});
    let message = json!({"role": "assistant", "content": "On it.", "tool_calls": [call]});
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 3});
    let body = json!({"object": "chat.completion", "choices": [{"message": message}], "usage": usage});
    let answer = ask(json(&body.to_string())).await.unwrap();
    assert_eq!((answer.content.len(), answer.stop), (2, StopReason::ToolUse));
    assert_eq!(answer.usage.unwrap().input_tokens, 9);
    let cut = ask(json(&body.to_string()[..60])).await;
    assert!(matches!(cut, Err(ModelError::Temporary { .. })), "{cut:?}");
    for (body, message) in [
        (json!({"error": {"message": "Provider returned error", "code": 502}}), "Provider returned error"),
        (json!([{"error": {"message": "Provider returned error"}}]), "Provider returned error"),
        (json!({"object": "error", "message": "no"}), "no"),
    ] {
        for kind in ["content-type: application/json\r\n", "content-type: text/plain\r\n", ""] {
            let failed = ask(full_response(200, kind, &body.to_string())).await;
            assert!(
                matches!(&failed, Err(ModelError::Temporary { message: text, .. }) if text.contains(message)),
                "{kind}: {failed:?}"
            );
        }
    }
    let long = ask(json(r#"{"error": "The prompt is greater than the context length"}"#)).await;
    assert!(matches!(long, Err(ModelError::ContextTooLong { .. })), "{long:?}");
    for (kind, body) in [("application/json", "{\"ok\": true}"), ("text/html", "<html>Welcome</html>")] {
        let page = ask(full_response(200, &format!("content-type: {kind}\r\n"), body)).await;
        let is_clear = |text: &str| text.contains("without a stream of events") && text.contains("`base_url`");
        assert!(matches!(&page, Err(ModelError::WrongSetting(text)) if is_clear(text)), "{page:?}");
    }
}

#[tokio::test]
async fn error_in_chat_stream_keeps_nothing() {
    let begun = chat_events(&[text("half"), call("c", "bash", json!({"command": "true"}))]);
    let begun = &begun[..begun.find("\"finish_reason\"").unwrap()];
    let begun = &begun[..begun.rfind("data: ").unwrap()];
    for end in [
        "data: {\"error\":{\"code\":502,\"message\":\"gone\"},\"choices\":[]}\n\n",
        "event: error\ndata: {\"message\":\"gone\"}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"network_error\"}]}\n\ndata: [DONE]\n\n",
    ] {
        let failed = ask(streamed(&format!("{begun}{end}"), 99)).await;
        assert!(matches!(failed, Err(ModelError::Temporary { .. })), "{end}: {failed:?}");
    }
}

#[tokio::test]
async fn refused_limit_field_is_sent_under_its_other_name() {
    let server = Server::start(|request, _| {
        if request.body.get("max_tokens").is_none() {
            return chat_answer(&[text("Done.")]);
        }
        let error =
            json!({"error": {"message": "Unsupported parameter: 'max_tokens'", "code": "unsupported_parameter"}});
        full_response(400, "content-type: application/json\r\n", &error.to_string())
    })
    .await;
    let client = client("openai-compatible", &server.url);
    for _ in 0..2 {
        client.request(request(), &()).await.unwrap();
    }
    let limits: Vec<bool> =
        server.requests().iter().map(|request| request.body["max_completion_tokens"].is_u64()).collect();
    assert_eq!(limits, [false, true, true], "the client keeps the name that works");
    let stubborn = Server::start(|_, _| {
        let error = json!({"error": {"message": "unknown field max_tokens, unknown field max_completion_tokens"}});
        full_response(422, "content-type: application/json\r\n", &error.to_string())
    })
    .await;
    let refused = self::client("openai-compatible", &stubborn.url).request(request(), &()).await;
    assert!(matches!(&refused, Err(ModelError::Final(text)) if text.contains("unknown field")), "{refused:?}");
    assert_eq!(stubborn.requests().len(), 2);
}

/// Local servers need no key. One of their operator goes into the header, and nowhere else.
#[tokio::test]
async fn local_services_need_no_key() {
    for service in ["ollama", "lmstudio", "vllm", "llamacpp", "litellm"] {
        let server = Server::start(|_, _| chat_answer(&[text("Done.")])).await;
        client(service, &server.url).request(request(), &()).await.unwrap();
        assert_eq!(server.requests()[0].header("authorization"), None, "{service}");
        let refusing = Server::start(|_, _| full_response(401, "", "")).await;
        let refused = client(service, &refusing.url).request(request(), &()).await;
        let key = provider(service).unwrap().keys().next().unwrap();
        let names_key = |text: &str| text.contains("needs a key") && text.contains(key);
        assert!(matches!(&refused, Err(ModelError::WrongSetting(text)) if names_key(text)), "{refused:?}");
    }
}

#[tokio::test]
async fn chat_redirect_does_not_carry_the_key() {
    let other = Server::start(|_, _| chat_answer(&[text("stolen")])).await;
    let location = format!("location: {}/v1/chat/completions\r\n", other.url);
    let refused = ask(full_response(307, &location, "")).await;
    assert!(matches!(&refused, Err(ModelError::WrongSetting(text)) if text.contains("redirects")), "{refused:?}");
    assert_eq!(other.requests().len(), 0);
}
