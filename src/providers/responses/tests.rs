//! Tests of bodies and the assembler.

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::assembly::ResponseAssembler;
use super::body::body;
use crate::domain::agent::transcript::{Block, Usage};
use crate::domain::team::model_spec::{ApiKind, CompatSpec};
use crate::ports::{ChatMessage, Listener, ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason};
use crate::providers::api::{Assembler, ProtocolError};
use crate::providers::compat::Compat;
use crate::providers::errors;
use crate::providers::repetition::ITEMS_MAX;
use crate::providers::sse::{SseEvent, SseReader};
use crate::providers::test_requests::{assistant, request, user};

/// An answer with reasoning, a message and a call.
const SAMPLE: &str = include_str!("../../../tests/parsers/samples/responses.sse");

#[derive(Default)]
struct RecordingListener(Mutex<String>);

impl Listener for RecordingListener {
    fn on_text(&self, delta: &str) {
        self.0.lock().push_str(delta);
    }
}

/// The answer of a stream that arrives in these pieces, and the streamed text. An error if the stream does not end the answer.
fn streamed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<(ModelResponse, String), ProtocolError> {
    let (mut reader, mut assembler) = (SseReader::default(), Box::new(ResponseAssembler::default()));
    let listener = RecordingListener::default();
    for piece in pieces {
        for event in reader.feed(piece).unwrap() {
            assembler.process_event(&event, &listener)?;
        }
    }
    if !assembler.may_end() {
        return Err(ProtocolError::Invalid("it is not complete".to_owned()));
    }
    Ok((assembler.finish("call-1")?, listener.0.into_inner()))
}

fn answer(events: &[Value]) -> Result<ModelResponse, ProtocolError> {
    let mut assembler = Box::new(ResponseAssembler::default());
    for event in events {
        assembler.process_event(&SseEvent { name: String::new(), data: event.to_string() }, &())?;
    }
    if !assembler.may_end() {
        return Err(ProtocolError::Invalid("it is not complete".to_owned()));
    }
    assembler.finish("call-1")
}

fn added(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

fn done(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": index, "item": item})
}

fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": {"status": "completed", "output": output}})
}

fn incomplete(reason: &str, output: Value) -> Value {
    let details = json!({ "reason": reason });
    json!({"type": "response.incomplete", "response": {"status": "incomplete", "incomplete_details": details, "output": output}})
}

fn call_item(id: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": format!("fc_{id}"), "status": "completed", "call_id": id, "name": "bash", "arguments": arguments})
}

fn message_item(text: &str) -> Value {
    let part = json!({"type": "output_text", "text": text, "annotations": []});
    json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]})
}

fn reasoning_item() -> Value {
    json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Z2F0ZQ=="})
}

fn delta(kind: &str, index: u64, delta: &str) -> Value {
    json!({"type": format!("response.{kind}.delta"), "output_index": index, "delta": delta})
}

/// The calls of an answer: id and input.
fn calls_of(response: &ModelResponse) -> Vec<(&str, &Value)> {
    let calls = response.content.iter().filter_map(|block| match block {
        Block::ToolUse { id, input, .. } => Some((id.as_str(), input)),
        _ => None,
    });
    calls.collect()
}

/// The items that a later request sends for this answer.
fn sent_items(response: &ModelResponse) -> Vec<Value> {
    sent_body(&request(&[assistant(response.content.clone())]))["input"].as_array().unwrap().clone()
}

/// The differences of a server that nothing is known about.
fn compat() -> Compat {
    Compat::DEFAULT.with(&CompatSpec::default(), ApiKind::Responses)
}

fn sent_body(request: &ModelRequest) -> Value {
    serde_json::from_slice(&body(request, &compat())).unwrap()
}

#[test]
fn streamed_answer_is_assembled() {
    let (response, text) = streamed(std::iter::once(SAMPLE.as_bytes())).unwrap();
    assert_eq!((text.as_str(), &response.stop), ("On it.", &StopReason::ToolUse));
    assert_eq!(calls_of(&response), [("call_1", &json!({"command": "ls"}))]);
    let usage = Usage {
        input_tokens: 30,
        output_tokens: 50,
        cache_read_tokens: 60,
        cache_write_tokens: 10,
        reasoning_tokens: 40,
        cost_ticks: None,
    };
    assert_eq!(response.usage, Some(usage));
    assert_eq!(response.content[2], Block::text("On it."));
}

/// A call without its reasoning, or reasoning without its follower, is refused. The arguments have the text of the model.
#[test]
fn items_go_back_as_they_came() {
    let (response, _) = streamed(std::iter::once(SAMPLE.as_bytes())).unwrap();
    let part = json!({"type": "output_text", "text": "On it."});
    assert_eq!(
        sent_items(&response),
        [
            reasoning_item(),
            json!({"type": "message", "role": "assistant", "content": [part], "id": "msg_1", "status": "completed", "phase": "commentary"}),
            json!({"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": "{\"command\": \"ls\"}", "id": "fc_1"}),
        ]
    );
}

#[test]
fn unknown_events_and_unknown_items_are_no_errors() {
    let item = json!({"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}});
    let response = answer(&[
        json!({"type": "response.novelty.started", "output_index": 7, "x": []}),
        json!({"type": "keepalive"}),
        json!({"type": "codex.rate_limits", "delta": 5}),
        done(0, item.clone()),
        done(1, message_item("Done.")),
        completed(json!([])),
    ])
    .unwrap();
    assert_eq!((sent_items(&response)[0].clone(), &response.stop), (item, &StopReason::EndTurn));
    let events = "event: future\ndata: x\n\ndata: [DONE]\n\ndata:\n\n".to_owned() + SAMPLE;
    assert!(streamed(std::iter::once(events.as_bytes())).is_ok());
}

/// Any part of an answer can be missing, except for its end.
#[test]
fn gaps_are_filled_from_later_events() {
    let output = json!([reasoning_item(), message_item("Done."), call_item("a", "{\"x\":1}")]);
    let mut partial = reasoning_item();
    partial["encrypted_content"] = Value::Null;
    let begun = added(0, json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "Z"}));
    let head = json!({"type": "function_call", "id": "fc_a", "call_id": "a", "name": "bash", "arguments": ""});
    let message = json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": []});
    let all: Vec<Vec<Value>> = vec![
        vec![completed(output.clone())],
        vec![json!({"object": "response", "status": "completed", "output": output.clone()})],
        vec![begun.clone(), done(0, partial), done(1, message_item("Done.")), completed(output.clone())],
        vec![begun, added(1, message.clone()), delta("output_text", 1, "Do"), completed(output.clone())],
        vec![
            done(0, reasoning_item()),
            added(1, message),
            delta("output_text", 1, "Done."),
            added(2, head),
            delta("function_call_arguments", 2, "{\"x\""),
            delta("function_call_arguments", 2, ":1}"),
            completed(json!([])),
        ],
        output
            .as_array()
            .unwrap()
            .iter()
            .zip(0..)
            .map(|(item, at)| done(at, item.clone()))
            .chain([completed(json!([]))])
            .collect(),
    ];
    let expected = answer(&all[0]).unwrap();
    assert_eq!(sent_items(&expected).len(), 3);
    for events in all {
        let response = answer(&events).unwrap();
        assert_eq!(sent_items(&response), sent_items(&expected), "{events:?}");
        assert_eq!(response.stop, StopReason::ToolUse);
    }
}

#[test]
fn argument_pieces_of_two_calls_can_alternate() {
    let head = |id: &str| json!({"type": "function_call", "id": id, "call_id": id, "name": "bash", "arguments": ""});
    let events = [
        added(0, head("a")),
        added(1, head("b")),
        delta("function_call_arguments", 0, "{\"x\""),
        delta("function_call_arguments", 1, "{\"y\""),
        json!({"type": "response.function_call_arguments.delta", "item_id": "a", "delta": ":1}"}),
        delta("function_call_arguments", 1, ":2}"),
        completed(json!([])),
    ];
    assert_eq!(calls_of(&answer(&events).unwrap()), [("a", &json!({"x": 1})), ("b", &json!({"y": 2}))]);
}

/// The server changes the ids of items between events, or gives two calls the same id.
#[test]
fn odd_ids_do_not_mix_calls() {
    let renamed = [
        added(0, json!({"type": "function_call", "id": "one", "call_id": "a", "name": "bash", "arguments": ""})),
        json!({"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "two", "delta": "{}"}),
        done(0, call_item("a", "{}")),
        completed(json!([call_item("a", "{}")])),
    ];
    assert_eq!(calls_of(&answer(&renamed).unwrap()), [("a", &json!({}))]);
    let same = [done(0, call_item("a", "{\"x\":1}")), done(1, call_item("a", "{}")), completed(json!([]))];
    let response = answer(&same).unwrap();
    assert_eq!(calls_of(&response), [("a", &json!({"x": 1})), ("call-1-1", &json!({}))]);
}

#[test]
fn call_of_cut_answer_is_never_run() {
    for (reason, stop) in [
        ("max_output_tokens", StopReason::MaxTokens),
        ("content_filter", StopReason::Refusal),
        ("novelty", StopReason::Other("novelty".to_owned())),
    ] {
        for arguments in ["{\"x\":1}", "{\"x\"", ""] {
            let response = answer(&[done(0, call_item("a", arguments)), incomplete(reason, json!([]))]).unwrap();
            assert_eq!(response.stop, stop);
            assert!(calls_of(&response).iter().all(|(_, input)| input.is_string()), "{reason} {arguments}");
            assert_eq!(sent_items(&response)[0]["arguments"], "{}");
        }
    }
    let gateway = answer(&[done(0, call_item("a", "{\"x\"")), completed(json!([]))]);
    assert!(matches!(gateway, Err(ProtocolError::Invalid(text)) if text.contains("cut")));
    let only_reasoning = answer(&[done(0, reasoning_item()), incomplete("max_output_tokens", json!([]))]).unwrap();
    assert_eq!(only_reasoning.content, [], "the server refuses reasoning without its follower");
}

#[test]
fn errors_end_the_answer() {
    let failed = |code: &str, message: &str| {
        let error = json!({"code": code, "message": message});
        json!({"type": "response.failed", "response": {"status": "failed", "error": error, "output": []}})
    };
    for error in [
        failed("rate_limit_exceeded", "slow down"),
        failed("server_error", "gone"),
        json!({"type": "error", "code": "server_error", "message": "gone", "param": null}),
        json!({"type": "error", "error": {"type": "server_error", "message": "gone"}}),
        json!({"type": "response.completed", "response": {"status": "failed", "error": {"message": "gone"}}}),
    ] {
        let result = answer(&[done(0, call_item("a", "{}")), error.clone()]);
        let Err(ProtocolError::Reported(reported)) = result else { panic!("{error}") };
        assert!(
            matches!(errors::from_event(&reported, None), ModelError::Temporary { .. } | ModelError::Limited { .. }),
            "{error}"
        );
    }
    let too_long = answer(&[failed("context_length_exceeded", "Your input exceeds the context window of this model.")]);
    let Err(ProtocolError::Reported(reported)) = too_long else { panic!("an error") };
    assert!(matches!(errors::from_event(&reported, None), ModelError::ContextTooLong { .. }));
    assert!(answer(&[done(0, call_item("a", "{}"))]).is_err(), "no event ended the answer");
}

#[test]
fn refusal_ends_the_turn() {
    let part = json!({"type": "refusal", "refusal": "no"});
    let item = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [part]});
    let whole = answer(&[done(0, reasoning_item()), done(1, item), completed(json!([]))]).unwrap();
    assert_eq!((whole.stop, whole.content), (StopReason::Refusal, vec![]));
    let pieces = answer(&[delta("refusal", 0, "no"), completed(json!([]))]).unwrap();
    assert_eq!(pieces.stop, StopReason::Refusal);
}

#[test]
fn invalid_usage_counts_as_unknown() {
    let with = |usage: Value| json!({"type": "response.completed", "response": {"output": [message_item("x")], "usage": usage}});
    for odd in [json!({"input_tokens": -1}), json!({"input_tokens": 1, "output_tokens": "9"})] {
        assert_eq!(answer(&[with(odd)]).unwrap().usage, None);
    }
    let billed = json!({"input_tokens": 9, "output_tokens": 2, "cost_in_usd_ticks": 37_756_000});
    assert_eq!(answer(&[with(billed)]).unwrap().usage.unwrap().cost_ticks, Some(37_756_000));
}

#[test]
fn repetition_ends_the_answer() {
    let events: Vec<Value> = (0..9).map(|index| done(index, call_item(&format!("c{index}"), "{\"a\":1}"))).collect();
    let response = answer(&events).unwrap();
    assert_eq!((&response.stop, response.usage, response.content.len()), (&StopReason::Repetition, None, 3));
    let line = "I will now read the file that the task names again.\n";
    let events: Vec<Value> = (0..20).map(|_| delta("output_text", 0, line)).collect();
    let response = answer(&events).unwrap();
    assert_eq!((&response.stop, response.content), (&StopReason::Repetition, vec![Block::text(line)]));
}

#[test]
fn answer_with_too_many_items_ends() {
    let item = |index: u64| call_item(&format!("c{index}"), &json!({ "a": index }).to_string());
    let events: Vec<Value> = (0..5_000).map(|index| done(index, item(index))).collect();
    let output: Vec<Value> = (0..5_000).map(item).collect();
    let whole = json!({"type": "response.completed", "response": {"status": "completed", "output": output}});
    for events in [events, vec![whole]] {
        let response = answer(&events).unwrap();
        assert_eq!((response.stop, response.content.len()), (StopReason::TooManyCalls, ITEMS_MAX));
    }
}

fn conversation() -> Vec<ChatMessage> {
    vec![
        user(vec![Block::text("<identity>"), Block::text("Do it.")]),
        assistant(vec![Block::text("On it."), Block::tool_use("c1", "bash", json!({"command": "ls"}))]),
        user(vec![
            Block::ToolResult { tool_use_id: "c1".into(), content: "a.txt".into(), is_error: false },
            Block::text("<inbox>"),
        ]),
    ]
}

#[test]
fn body_keeps_nothing_on_the_server() {
    let request = request(&conversation());
    let body = sent_body(&request);
    assert_eq!((&body["store"], body.get("previous_response_id")), (&json!(false), None));
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!((&body["instructions"], &body["max_output_tokens"]), (&json!("You are 'bob'"), &json!(99)));
    let tool = &body["tools"][0];
    assert_eq!((&tool["type"], &tool["name"], &tool["strict"]), (&json!("function"), &json!("bash"), &json!(false)));
    let message = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    assert_eq!(
        body["input"],
        json!([
            message("user", "input_text", "<identity>"),
            message("user", "input_text", "Do it."),
            message("assistant", "output_text", "On it."),
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{\"command\":\"ls\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
            message("user", "input_text", "<inbox>"),
        ])
    );
    let key = |body: &Value| body["prompt_cache_key"].as_str().unwrap().to_owned();
    assert!((1..=64).contains(&key(&body).len()));
    let other = ModelRequest { teammate: "ada".into(), ..request.clone() };
    assert_ne!(key(&body), key(&sent_body(&other)));
    let without_tools = ModelRequest { purpose: RequestPurpose::SummaryWithoutTools, ..request };
    assert_eq!(sent_body(&without_tools)["tool_choice"], "none");
}

/// Other servers put signatures into the ids of calls. A result still finds its call.
#[test]
fn long_ids_are_shortened() {
    for (id, is_kept) in [("c".repeat(64), true), (format!("c__thought__{}", "Z".repeat(900)), false)] {
        let result = Block::ToolResult { tool_use_id: id.clone(), content: "x".into(), is_error: false };
        let call = Block::tool_use(id.clone(), "bash", json!({}));
        let input = &sent_body(&request(&[assistant(vec![call]), user(vec![result])]))["input"];
        assert_eq!(input[0]["call_id"], input[1]["call_id"]);
        assert_eq!((input[0]["call_id"] == id, input[0]["call_id"].as_str().unwrap().len()), (is_kept, 64));
    }
}

#[test]
fn request_body_extends_previous_body_bytes() {
    let messages = conversation();
    let grown = user(messages[2].content[..1].to_vec());
    for start in [&messages[..1], &messages[..2], &[messages[0].clone(), messages[1].clone(), grown]] {
        let (start, whole) = (body(&request(start), &compat()), body(&request(&messages), &compat()));
        // Without the closing `]}`.
        assert!(whole.starts_with(&start[..start.len() - 2]));
    }
}

proptest! {
    /// A stream that is cut at any byte is no answer, so that none of its calls runs.
    #[test]
    fn cut_stream_is_no_answer(share in 0.0f64..1.0) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place")]
        let end = (share * (SAMPLE.len() - 1) as f64) as usize;
        // The last byte ends the last event.
        let end = end.min(SAMPLE.trim_end().len());
        prop_assert!(streamed(std::iter::once(&SAMPLE.as_bytes()[..end])).is_err());
    }

    /// The sizes of the pieces in which a stream arrives do not matter.
    #[test]
    fn answer_does_not_depend_on_pieces(size in 1usize..200) {
        let whole = streamed(std::iter::once(SAMPLE.as_bytes())).unwrap();
        prop_assert_eq!(streamed(SAMPLE.as_bytes().chunks(size)).unwrap(), whole);
    }

    /// Whatever events of the sample are lost, an answer that arrives is the whole one or has no call.
    #[test]
    fn lost_events_change_no_call(kept in proptest::collection::vec(any::<bool>(), 32)) {
        let events = SseReader::default().feed(SAMPLE.as_bytes()).unwrap();
        let mut assembler = Box::new(ResponseAssembler::default());
        let last = events.len() - 1;
        for (index, event) in events.iter().enumerate() {
            if kept[index] || index == last {
                assembler.process_event(event, &()).unwrap();
            }
        }
        let response = assembler.finish("x").unwrap();
        prop_assert_eq!(calls_of(&response), [("call_1", &json!({"command": "ls"}))]);
        let whole = streamed(std::iter::once(SAMPLE.as_bytes())).unwrap().0;
        prop_assert_eq!(sent_items(&response), sent_items(&whole));
    }
}
