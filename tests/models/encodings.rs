//! Answers with characters that arrive in parts or broken, in each API.

use std::sync::Mutex;

use brigade::domain::agent::transcript::Block;
use brigade::domain::team::team_spec::{ApiKind, ModelSpec};
use brigade::ports::{Listener, ModelClient, ModelError, ModelResponse};
use brigade::providers::provider;
use serde_json::{Value, json};

use super::answers::request;
use super::team::{both, logged, run, statuses, workspace};
use crate::testkit::model_server::{
    Reply, Server, ServerAction, call, chunk, full_response, head, streamed_answer, text,
};

const APIS: [ApiKind; 3] = [ApiKind::Messages, ApiKind::Chat, ApiKind::Responses];

/// The stream of an answer whose text arrives in these pieces, each as the inside of a JSON string.
fn text_events(api: ApiKind, pieces: &[&[u8]]) -> Vec<u8> {
    let (begin, delta, end) = match api {
        ApiKind::Messages => (
            r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"@"}}"#,
            "data: {\"type\":\"content_block_stop\",\"index\":0}\n\ndata: {\"type\":\"message_stop\"}",
        ),
        ApiKind::Chat => ("", r#"data: {"choices":[{"delta":{"content":"@"}}]}"#, "data: [DONE]"),
        ApiKind::Responses => (
            "",
            r#"data: {"type":"response.output_text.delta","output_index":0,"delta":"@"}"#,
            r#"data: {"type":"response.completed","response":{"status":"completed"}}"#,
        ),
    };
    events(begin, delta, end, pieces)
}

/// The stream of an answer with a call of `bash` whose arguments arrive in these pieces.
fn call_events(api: ApiKind, pieces: &[&[u8]]) -> Vec<u8> {
    let (begin, delta, end) = match api {
        ApiKind::Messages => (
            r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"bash","input":{}}}"#,
            r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"@"}}"#,
            "data: {\"type\":\"content_block_stop\",\"index\":0}\n\ndata: {\"type\":\"message_stop\"}",
        ),
        ApiKind::Chat => (
            r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"bash"}}]}}]}"#,
            r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"@"}}]}}]}"#,
            "data: [DONE]",
        ),
        ApiKind::Responses => (
            r#"data: {"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c","name":"bash","arguments":""}}"#,
            r#"data: {"type":"response.function_call_arguments.delta","output_index":0,"delta":"@"}"#,
            r#"data: {"type":"response.completed","response":{"status":"completed"}}"#,
        ),
    };
    events(begin, delta, end, pieces)
}

fn events(begin: &str, delta: &str, end: &str, pieces: &[&[u8]]) -> Vec<u8> {
    let (before, after) = delta.split_once('@').unwrap();
    let mut events = vec![begin.as_bytes().to_vec()];
    events.extend(pieces.iter().map(|piece| [before.as_bytes(), piece, after.as_bytes()].concat()));
    events.push(end.as_bytes().to_vec());
    events.into_iter().filter(|event| !event.is_empty()).flat_map(|event| [event, b"\n\n".to_vec()]).flatten().collect()
}

/// The text that front ends show.
#[derive(Default)]
struct Shown(Mutex<String>);

impl Listener for Shown {
    fn on_text(&self, delta: &str) {
        self.0.lock().unwrap().push_str(delta);
    }
}

async fn ask(api: ApiKind, reply: Reply) -> Result<(ModelResponse, String), ModelError> {
    let server = Server::start(move |_, _| reply.clone()).await;
    let spec =
        ModelSpec { api: Some(api), base_url: Some(server.url.clone()), ..ModelSpec::new("openai-compatible", "m") };
    let service = provider("openai-compatible").unwrap().service.as_ref().unwrap();
    let shown = Shown::default();
    let answer = service.model(&spec, &|_| None).unwrap().request(request(), &shown).await?;
    Ok((answer, shown.0.into_inner().unwrap()))
}

fn raw(events: Vec<u8>) -> Reply {
    vec![head(), ServerAction::Send(chunk(&events)), ServerAction::Close]
}

#[tokio::test]
async fn text_is_joined_or_replaced_in_every_api() {
    let pieces: [(&[&[u8]], &str); 6] = [
        (&[br"a\ud83d", br"\ude00b"], "a😀b"),
        (&[b"\xf0\x9f", b"\x98", b"\x80 caf\xc3", b"\xa9"], "😀 café"),
        (&[br"a\ud83d", b"b", br"\ude00"], "a\u{fffd}b\u{fffd}"),
        (&[br"a\ud83d"], "a\u{fffd}"),
        (&[b"caf\xe9"], "caf\u{fffd}"),
        (&[b"a\0\tb", br"\u0000"], "a\0\tb\0"),
    ];
    for (api, (pieces, expected)) in APIS.into_iter().flat_map(|api| pieces.map(|pieces| (api, pieces))) {
        for is_crlf in [false, true] {
            let mut events = text_events(api, pieces);
            if is_crlf {
                let joined = events.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..]);
                events = ["\u{feff}".as_bytes(), &joined].concat();
            }
            let (answer, shown) = ask(api, raw(events)).await.unwrap();
            assert_eq!(answer.content, [Block::text(expected)], "{api:?} {pieces:?}");
            assert_eq!(shown, expected, "{api:?} {pieces:?}");
        }
    }
}

#[tokio::test]
async fn call_with_joined_character_is_made_as_written() {
    let pieces: [&[&[u8]]; 4] = [
        &[br#"{\"command\":\"echo \ud83d"#, br#"\ude00\"}"#],
        &[br#"{\"command\":\"echo \\ud83d"#, br#"\\ude00\"}"#],
        &[br#"{\"command\":\"echo \\ud8"#, br#"3d\\ude00\"}"#],
        &[b"{\\\"command\\\":\\\"echo \xf0\x9f", b"\x98\x80\\\"}"],
    ];
    for (api, pieces) in APIS.into_iter().flat_map(|api| pieces.map(|pieces| (api, pieces))) {
        let (answer, _) = ask(api, raw(call_events(api, pieces))).await.unwrap();
        let [Block::ToolUse { input, .. }] = &answer.content[..] else { panic!("{api:?} {pieces:?}: {answer:?}") };
        assert_eq!(input, &json!({"command": "echo 😀"}), "{api:?} {pieces:?}");
    }
}

#[tokio::test]
async fn call_with_replaced_character_is_not_made() {
    let pieces: [&[&[u8]]; 3] = [
        &[br#"{\"command\":\"rm \\ud83d*\"}"#],
        &[br#"{\"command\":\"rm \ud83d*\"}"#],
        &[b"{\\\"command\\\":\\\"rm \xe9*\\\"}"],
    ];
    for (api, pieces) in APIS.into_iter().flat_map(|api| pieces.map(|pieces| (api, pieces))) {
        let (answer, _) = ask(api, raw(call_events(api, pieces))).await.unwrap();
        let [Block::ToolUse { input, arguments: None, .. }] = &answer.content[..] else { panic!("{answer:?}") };
        assert_eq!(input, &json!("{\"command\":\"rm \u{fffd}*\"}"), "{api:?} {pieces:?}");
    }
    let arguments = json!({"command": "echo \u{fffd}"});
    let (answer, _) = ask(ApiKind::Messages, streamed_answer(&[call("c", "bash", arguments.clone())])).await.unwrap();
    let [Block::ToolUse { input, .. }] = &answer.content[..] else { panic!("{answer:?}") };
    assert_eq!(input, &arguments, "the model wrote this one");
}

#[tokio::test]
async fn whole_answer_with_lone_half_is_read() {
    for (api, body) in [
        (
            ApiKind::Messages,
            r#"{"type":"message","content":[{"type":"text","text":"a\ud83d"}],"stop_reason":"end_turn"}"#,
        ),
        (ApiKind::Chat, r#"{"choices":[{"message":{"content":"a\ud83d"},"finish_reason":"stop"}]}"#),
        (
            ApiKind::Responses,
            r#"{"object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a\ud83d"}]}]}"#,
        ),
    ] {
        let reply = full_response(200, "content-type: application/json\r\n", &format!("\u{feff}{body}\n"));
        assert_eq!(ask(api, reply).await.unwrap().0.content, [Block::text("a\u{fffd}")], "{api:?}");
    }
}

#[tokio::test]
async fn invalid_event_is_an_invalid_answer() {
    for api in APIS {
        for event in [&b"data: {\"type\": \"message_start\"\n\n"[..], b"\xff\xfed\0a\0t\0a\0:\0\n\0", b"data: {\0}\n\n"]
        {
            let error = ask(api, raw(event.to_vec())).await.unwrap_err();
            let is_told = |message: &str| message.contains("sent an invalid answer: ");
            assert!(matches!(&error, ModelError::InvalidAnswer(message) if is_told(message)), "{api:?}: {error:?}");
        }
    }
}

#[tokio::test]
async fn broken_call_is_told_and_then_made() {
    let server = Server::start(|_, number| match number {
        0 => raw(call_events(ApiKind::Messages, &[br#"{\"command\":\"touch \\ud83d.txt\"}"#])),
        1 => streamed_answer(&[call("c1", "bash", json!({"command": "touch done.txt"}))]),
        _ => streamed_answer(&[call("c2", "task_update", json!({"task_id": 1, "status": "completed"}))]),
    })
    .await;
    let workspace = workspace(&server.url, &["alice"], "plan = \"plan.md\"");
    workspace.write("plan.md", "## First\nDo it.\n");
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert!(server.requests()[1].body.to_string().contains("arrived broken"), "{}", server.requests()[1].body);
    assert!(workspace.join("done.txt").exists());
    assert!(logged(&workspace, "model_retried").is_empty());
}

#[tokio::test]
async fn invalid_answers_fail_the_attempt_and_are_no_outage() {
    let server = Server::start(|request, number| match number {
        0..3 if request.body.to_string().contains("Task #1") => raw(b"data: {\"type\": \"message_start\"\n\n".to_vec()),
        _ => streamed_answer(&[text("Nothing to do.")]),
    })
    .await;
    let workspace = workspace(&server.url, &["alice"], "");
    workspace.write(
        ".tasks/task_1.json",
        r#"{"id": 1, "subject": "First", "description": "Do it.", "status": "pending", "owner": null, "blockedBy": [], "blocks": [], "maxAttempts": 1}"#,
    );
    let output = run(&workspace, &["run", "crew"], &[("BRIGADE_MODEL_RETRIES_MAX", "2")]).await;
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["failed"]);
    let reason: Value = workspace.tasks()[0]["result"].clone();
    assert!(reason.to_string().contains("sent an invalid answer: cannot read an event"), "{reason}");
}
