//! Tests of request bodies, stream assembler and the client's settings.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::assembly::MessageAssembler;
use super::*;
use crate::domain::agent::transcript::{Block, Usage};
use crate::domain::team::team_spec::ModelSpec;
use crate::ports::{Listener, ModelRequest, ModelResponse, RequestPurpose, StopReason};
use crate::providers::api::{Assembler, ProtocolError};
use crate::providers::repetition::ITEMS_MAX;
use crate::providers::sse::{SseEvent, SseReader};
use crate::providers::test_requests::{assistant, request, user};

/// Records all calls.
#[derive(Default)]
struct RecordingListener {
    texts: Mutex<Vec<String>>,
    signs: AtomicUsize,
    bytes: AtomicUsize,
}

impl Listener for RecordingListener {
    fn on_activity(&self) {
        self.signs.fetch_add(1, Ordering::Relaxed);
    }

    fn on_text(&self, delta: &str) {
        self.texts.lock().push(delta.to_owned());
    }

    fn on_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn on_usage(&self, _usage: Usage) {}
}

/// The answer of a stream in pieces of these sizes, and the streamed text.
fn answer_in_pieces(stream: &str, sizes: &[usize]) -> (ModelResponse, String) {
    let (answer, text) = assembled(stream, sizes);
    (answer.unwrap(), text)
}

/// The answer or the error at its end, and the streamed text.
fn assembled(stream: &str, sizes: &[usize]) -> (Result<ModelResponse, ProtocolError>, String) {
    let (mut reader, mut assembler, listener) =
        (SseReader::default(), MessageAssembler::default(), RecordingListener::default());
    let mut rest = stream.as_bytes();
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let (piece, remaining) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        for event in reader.feed(piece).unwrap() {
            assembler.process_event(&event, &listener).unwrap();
        }
        rest = remaining;
    }
    assert!(assembler.is_complete());
    let text = listener.texts.lock().concat();
    (Box::new(assembler).finish("call-1"), text)
}

fn stream(events: &[Value]) -> String {
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).collect()
}

fn start(index: u64, block: Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn delta(index: u64, delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn closed(index: u64) -> Value {
    json!({"type": "content_block_stop", "index": index})
}

fn end(stop_reason: Value) -> Vec<Value> {
    let usage = json!({"output_tokens": 15});
    let delta = json!({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage});
    vec![delta, json!({"type": "message_stop"})]
}

/// All events of the API's page on streaming, with unknown ones in between.
fn full_stream() -> Vec<Value> {
    let usage = json!({"input_tokens": 25, "output_tokens": 1, "cache_read_input_tokens": 7, "cache_creation_input_tokens": null});
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": usage, "new": [1]}}),
        json!({"type": "ping"}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "Ich grü"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "ße."})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        closed(0),
        start(1, json!({"type": "redacted_thinking", "data": "xyz=="})),
        closed(1),
        start(2, json!({"type": "text", "text": ""})),
        json!({"type": "brand_new", "index": "odd", "delta": "odder"}),
        delta(2, json!({"type": "text_delta", "text": "Hallo, "})),
        delta(2, json!({"type": "text_delta", "text": "Welt 🌍\n\n"})),
        delta(2, json!({"type": "brand_new_delta", "what": 1})),
        closed(2),
        start(3, json!({"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}})),
    ];
    for part in ["", "{\"comm", "and\": \"echo \\u00", "fc\", \"n\"", ": [1.50, 2]}"] {
        events.push(delta(3, json!({"type": "input_json_delta", "partial_json": part})));
    }
    events.push(closed(3));
    events.push(start(4, json!({"type": "text", "text": ""})));
    events.push(closed(4));
    events.extend(end(json!("tool_use")));
    events
}

#[test]
fn stream_assembly_keeps_every_content_block() {
    let (answer, listener) = answer_in_pieces(&stream(&full_stream()), &[9999]);
    let input = json!({"command": "echo ü", "n": [1.5, 2]});
    let expected = [
        Block::Other(json!({"type": "thinking", "thinking": "Ich grüße.", "signature": "c2ln"})),
        Block::Other(json!({"type": "redacted_thinking", "data": "xyz=="})),
        Block::text("Hallo, Welt 🌍\n\n"),
        Block::tool_use("toolu_1", "bash", input),
    ];
    assert_eq!(answer.content, expected);
    assert_eq!(answer.stop, StopReason::ToolUse);
    let usage = Usage { input_tokens: 25, output_tokens: 15, cache_read_tokens: 7, ..Usage::default() };
    assert_eq!((answer.usage, listener.as_str()), (Some(usage), "Hallo, Welt 🌍\n\n"));
}

#[test]
fn stream_with_missing_fields_is_assembled() {
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": 7}}),
        start(0, json!({"type": "tool_use", "id": "any id: 1", "name": "idle", "odd": true})),
        closed(0),
        start(1, json!({"type": "tool_use", "name": "idle", "input": {"whole": 1}})),
        closed(1),
        start(2, json!({"type": "tool_use", "id": "any id: 1", "name": "idle", "input": null})),
        closed(2),
    ];
    events.extend(end(Value::Null));
    let nameless = stream(&events).replace("event: ", "ignored: ");
    let (answer, _) = answer_in_pieces(&nameless, &[9999]);
    let call = |id: &str, input: Value| Block::tool_use(id, "idle", input);
    let expected = [call("any id: 1", json!({})), call("call-1-1", json!({"whole": 1})), call("call-1-2", json!({}))];
    assert_eq!((answer.content.as_slice(), answer.stop), (expected.as_slice(), StopReason::ToolUse));
    assert_eq!(answer.usage, Some(Usage { output_tokens: 15, ..Usage::default() }));
}

#[test]
fn sse_event_name_replaces_missing_type() {
    let event = |name: &str, data: &str| SseEvent { name: name.to_owned(), data: data.to_owned() };
    let mut assembler = MessageAssembler::default();
    for event in [
        event("message_start", "{}"),
        event("content_block_start", r#"{"index":0,"content_block":{"type":"text","text":"a"}}"#),
        event("content_block_delta", r#"{"index":0,"delta":{"text":"b"}}"#),
        event("message_stop", "{}"),
    ] {
        assembler.process_event(&event, &()).unwrap();
    }
    assert_eq!(Box::new(assembler).finish("").unwrap().content, [Block::text("ab")]);
}

#[test]
fn stop_reasons_are_mapped() {
    for (reason, expected) in [
        (json!("end_turn"), StopReason::EndTurn),
        (json!("tool_use"), StopReason::ToolUse),
        (json!("max_tokens"), StopReason::MaxTokens),
        (json!("model_context_window_exceeded"), StopReason::ContextFull),
        (json!("pause_turn"), StopReason::PauseTurn),
        (json!("refusal"), StopReason::Refusal),
        (json!("stop_sequence"), StopReason::Other("stop_sequence".into())),
        (json!("brand_new"), StopReason::Other("brand_new".into())),
        (Value::Null, StopReason::EndTurn),
    ] {
        assert_eq!(answer_in_pieces(&stream(&end(reason)), &[9999]).0.stop, expected);
    }
}

#[test]
fn repeated_call_ends_the_answer() {
    let call = |index: u64, line: u64, is_closed: bool| {
        let json = format!("{{\"line\": {line}}}");
        let mut events = vec![
            start(index, json!({"type": "tool_use", "id": index.to_string(), "name": "read_file", "input": {}})),
            delta(index, json!({"type": "input_json_delta", "partial_json": json})),
        ];
        events.extend(is_closed.then(|| closed(index)));
        events
    };
    for is_closed in [true, false] {
        let calls = |lines: &[u64]| {
            let calls = lines.iter().enumerate().flat_map(|(index, line)| call(index as u64, *line, is_closed));
            let mut events: Vec<_> = calls.collect();
            events.extend((0..lines.len() as u64).filter(|_| !is_closed).map(closed));
            events.extend(end(json!("tool_use")));
            answer_in_pieces(&stream(&events), &[9999]).0
        };
        let repeating = calls(&[1, 2, 1, 2, 3, 1, 1, 4]);
        assert_eq!((repeating.stop, repeating.usage), (StopReason::Repetition, None));
        let ids: Vec<&str> = repeating.content.iter().filter_map(call_id).collect();
        assert_eq!(ids, ["0", "1", "2", "3", "4", "5"], "the third copy is the last call");
        assert!(repeating.content.iter().all(|block| matches!(block, Block::ToolUse { input: Value::Object(_), .. })));
        assert_eq!(calls(&[1, 2, 1, 2, 3, 4]).stop, StopReason::ToolUse);
    }
}

#[test]
fn answer_with_too_many_calls_ends() {
    let call = |index: u64| {
        let block = json!({"type": "tool_use", "id": index.to_string(), "name": format!("tool-{index}"), "input": {}});
        [start(index, block), closed(index)]
    };
    let events: Vec<_> = (0..5_000).flat_map(call).collect();
    let response = answer_in_pieces(&stream(&events), &[9999]).0;
    assert_eq!((response.stop, response.content.len()), (StopReason::TooManyCalls, ITEMS_MAX));
}

#[test]
fn repeated_passage_ends_the_answer() {
    let answer = |passages: &[String]| {
        let mut events = vec![start(0, json!({"type": "text", "text": ""}))];
        events.extend(passages.iter().map(|text| delta(0, json!({"type": "text_delta", "text": text}))));
        events.extend([closed(0)].into_iter().chain(end(json!("end_turn"))));
        answer_in_pieces(&stream(&events), &[9999]).0
    };
    let passage = "<tool_response>\nNot called: the answer was cut by its limit.\n</tool_response>\n".to_owned();
    let copies = |count: usize| -> Vec<String> {
        ["I look.\n"].into_iter().chain(vec![passage.as_str(); count]).map(str::to_owned).collect()
    };
    let repeating = answer(&copies(9));
    assert_eq!(repeating.stop, StopReason::Repetition);
    assert_eq!(repeating.content[0].as_text().unwrap(), format!("I look.\n{passage}"));
    assert_eq!(answer(&copies(5)).stop, StopReason::EndTurn);
    assert_eq!(answer(&vec!["| a | b |\n".to_owned(); 20]).stop, StopReason::EndTurn, "short rows can be meant");
    let numbered: Vec<String> = (0..20).map(|number| format!("{number}: {passage}")).collect();
    assert_eq!(answer(&numbered).stop, StopReason::EndTurn);
}

fn call_id(block: &Block) -> Option<&str> {
    match block {
        Block::ToolUse { id, .. } => Some(id),
        _ => None,
    }
}

/// At a limit or after a refusal, a cut call stays text, which is never run. A gateway can hide the cut: then the answer is an error.
#[test]
fn cut_call_is_never_run() {
    for (json, is_closed) in [("{\"command\": \"rm -r", true), ("[1]", true), ("7", true), ("{}", false), ("", false)] {
        let mut events = vec![
            start(0, json!({"type": "tool_use", "id": "x", "name": "bash", "input": {}})),
            delta(0, json!({"type": "input_json_delta", "partial_json": json})),
        ];
        events.extend(is_closed.then(|| closed(0)));
        let answer = |reason: Value| assembled(&stream(&[events.clone(), end(reason)].concat()), &[9999]).0;
        for reason in ["max_tokens", "model_context_window_exceeded", "refusal"] {
            let answer = answer(json!(reason)).unwrap();
            let Block::ToolUse { input, .. } = &answer.content[0] else { panic!("{answer:?}") };
            assert_eq!(*input, Value::String(json.to_owned()), "{reason}");
        }
        for reason in [json!("tool_use"), json!("end_turn"), json!("brand_new"), Value::Null] {
            let hidden = answer(reason.clone()).unwrap_err();
            assert!(
                matches!(&hidden, ProtocolError::Invalid(text) if text.contains("was cut")),
                "{reason}: {hidden:?}"
            );
        }
    }
}

#[test]
fn invalid_stream_event_is_an_error() {
    for data in
        ["{", "7", "", r#"{"type":"content_block_delta","index":4,"delta":{}}"#, r#"{"type":"message_delta"} x"#]
    {
        let event = SseEvent { name: String::new(), data: data.to_owned() };
        assert!(
            matches!(MessageAssembler::default().process_event(&event, &()), Err(ProtocolError::Invalid(_))),
            "{data}"
        );
    }
    let odd = SseEvent { name: "brand_new".into(), data: "[DONE]".to_owned() };
    assert!(MessageAssembler::default().process_event(&odd, &()).is_ok());
    let event = SseEvent { name: "error".into(), data: r#"{"error":{"type":"overloaded_error"}}"#.to_owned() };
    assert!(matches!(MessageAssembler::default().process_event(&event, &()), Err(ProtocolError::Reported(_))));
}

#[test]
fn client_config_error_never_quotes_key() {
    let new = |model: &str, base_url: Option<&str>, variables: &[(&str, &str)]| {
        let spec = ModelSpec {
            provider: "anthropic".into(),
            model: model.into(),
            base_url: base_url.map(str::to_owned),
            ..ModelSpec::default()
        };
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        ANTHROPIC.model(&spec, &variable).map(|client| client.url.to_string())
    };
    let key = (API_KEY, "sk-123456");
    for variables in [vec![], vec![(API_KEY, " ")], vec![(BASE_URL, "https://api.anthropic.com/v1/")]] {
        let missing = new("m", None, &variables).unwrap_err();
        assert!(missing.contains(API_KEY) && missing.contains(AUTH_TOKEN), "{missing}");
    }
    assert_eq!(new("m", None, &[key]).unwrap(), "https://api.anthropic.com/v1/messages");
    assert_eq!(new("m", None, &[(AUTH_TOKEN, "t")]).unwrap(), "https://api.anthropic.com/v1/messages");
    assert_eq!(new("m", None, &[(BASE_URL, "http://a:1/x/")]).unwrap(), "http://a:1/x/v1/messages");
    assert_eq!(new("m", Some("http://b/v1/messages"), &[]).unwrap(), "http://b/v1/messages");
    assert_eq!(new("m", Some("http://b/v1"), &[(BASE_URL, "http://a")]).unwrap(), "http://b/v1/messages");
    for (url, word) in [
        ("ftp://x", "http://"),
        ("127.0.0.1:1", "must start with http:// or https://"),
        ("x y", "`base_url`"),
        ("http://me:pw12345@x", "password"),
        ("http://x/?a", "?"),
    ] {
        let refused = new("m", Some(url), &[]).unwrap_err();
        assert!(refused.contains(word) && !refused.contains("pw12345"), "{refused}");
    }
    let refused = new("m", None, &[(API_KEY, "sk-\u{1}-987654")]).unwrap_err();
    assert!(refused.contains(API_KEY) && !refused.contains("987654"), "{refused}");
}

fn sent_body(request: &ModelRequest) -> Value {
    serde_json::from_slice(&body::body(request)).unwrap()
}

/// A model can invent the name of a tool. The API refuses the characters of some, also in later requests.
#[test]
fn names_and_ids_of_calls_have_valid_characters() {
    let request = request(&[
        assistant(vec![
            Block::tool_use("a b", String::new(), json!({})),
            Block::tool_use("c", format!("\u{1b}\"é{}", "x".repeat(200)), json!({})),
        ]),
        user(vec![Block::ToolResult { tool_use_id: "a b".into(), content: "no such tool".into(), is_error: true }]),
    ]);
    let messages = sent_body(&request)["messages"].clone();
    assert_eq!(messages[0]["content"][0]["name"], "_");
    assert_eq!(messages[0]["content"][0]["id"], messages[1]["content"][0]["tool_use_id"]);
    assert_eq!(messages[0]["content"][1]["name"], format!("___{}", "x".repeat(125)));
}

/// Some servers report usage only at the start of an answer, when its output is not known.
#[test]
fn answer_without_final_usage_has_unknown_usage() {
    let first = json!({"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}});
    let last = |usage: Value| {
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}});
        let mut delta = delta.as_object().unwrap().clone();
        delta.extend(usage.as_object().unwrap().clone());
        let events = [first.clone(), Value::Object(delta), json!({"type": "message_stop"})];
        answer_in_pieces(&stream(&events), &[9999]).0.usage
    };
    assert_eq!(last(json!({})), None);
    assert_eq!(last(json!({"usage": {"output_tokens": 7}})).map(|usage| usage.output_tokens), Some(7));
}

#[test]
fn request_body_has_only_fields_of_the_api() {
    let call = |id: &str, input: Value| Block::tool_use(id, "bash", input);
    let result =
        |id: &str, is_error: bool| Block::ToolResult { tool_use_id: id.into(), content: String::new(), is_error };
    let signed = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let mut request = request(&[
        user(vec![Block::text("go"), Block::text(" ")]),
        assistant(vec![
            Block::Other(signed.clone()),
            Block::Other(json!({"type": "thinking", "thinking": "cut"})),
            call("a", json!({"z": 1, "a": 2})),
            call("b", Value::Null),
            call("c", json!("{\"comm")),
        ]),
        user(vec![result("a", false), result("b", true), result("c", true)]),
        assistant(vec![Block::Other(json!({"type": "thinking", "thinking": "cut"}))]),
        user(vec![Block::Other(json!({"type": "image"}))]),
    ]);
    let body = sent_body(&request);
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": [
                signed,
                {"type": "tool_use", "id": "a", "name": "bash", "input": {"z": 1, "a": 2}},
                {"type": "tool_use", "id": "b", "name": "bash", "input": {}},
                {"type": "tool_use", "id": "c", "name": "bash", "input": {"INVALID_JSON": "{\"comm"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": ""},
                {"type": "tool_result", "tool_use_id": "b", "content": "", "is_error": true},
                {"type": "tool_result", "tool_use_id": "c", "content": "", "is_error": true, "cache_control": mark},
                {"type": "image"},
            ]},
        ])
    );
    let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["model", "max_tokens", "stream", "tools", "system", "messages"]);
    assert_eq!((&body["max_tokens"], &body["stream"]), (&json!(99), &json!(true)));
    assert_eq!(body["system"], json!([{"type": "text", "text": "You are 'bob'", "cache_control": mark}]));
    assert_eq!((&body["tools"][0].get("cache_control"), &body["tools"][1]["cache_control"]), (&None, &mark));
    request.purpose = RequestPurpose::Summary;
    assert_eq!(sent_body(&request), body, "a summary request uses the cache");
    request.purpose = RequestPurpose::SummaryWithoutTools;
    assert_eq!(sent_body(&request)["tool_choice"], json!({"type": "none"}));
}

/// A block that a model can send.
fn model_block() -> impl Strategy<Value = Block> {
    prop_oneof![
        "[ a-zü\n\"]{0,6}".prop_map(Block::text),
        ("[a-z]{1,3}", "[ a\"]{0,4}").prop_map(|(key, text)| Block::tool_use(
            "x",
            "bash",
            json!({key: text, "a": 1.5})
        )),
        "[a-z]{0,2}".prop_map(|signature| {
            Block::Other(json!({"type": "thinking", "thinking": "t", "signature": signature}))
        }),
    ]
}

/// The harness's answer: a result for every call, and a text.
fn harness_answer(blocks: &[Block], text: &str) -> Vec<Block> {
    let calls = blocks.iter().filter(|block| matches!(block, Block::ToolUse { .. }));
    let result = |_| Block::ToolResult { tool_use_id: "x".into(), content: text.to_owned(), is_error: false };
    let mut content: Vec<Block> = calls.map(result).collect();
    content.push(Block::text(format!("next {text}")));
    content
}

proptest! {
    #[test]
    fn stream_assembly_is_independent_of_chunking(sizes in prop::collection::vec(1..40_usize, 1..60)) {
        let whole = answer_in_pieces(&stream(&full_stream()), &[99_999]);
        prop_assert_eq!(answer_in_pieces(&stream(&full_stream()), &sizes), whole);
    }

    /// The provider's cache needs this: without the marks, a body begins with all bytes of the body before it.
    #[test]
    fn request_body_extends_previous_body_bytes(
        turns in prop::collection::vec((prop::collection::vec(model_block(), 0..30), "[a-z<\"]{0,5}"), 1..8),
    ) {
        const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;
        let mut messages = vec![user(vec![Block::text("<identity>"), Block::text("task")])];
        let mut before = String::new();
        let mut ends_before = None;
        for (blocks, text) in turns {
            let bytes = String::from_utf8(body::body(&request(&messages))).unwrap();
            prop_assert!(bytes.matches(MARK).count() <= 4, "{bytes}");
            let body: Value = serde_json::from_str(&bytes).unwrap();
            let sent = body["messages"].as_array().unwrap();
            let blocks_sent: Vec<&Value> = sent.iter().flat_map(|message| message["content"].as_array().unwrap()).collect();
            let is_marked = |place: usize| blocks_sent[place]["cache_control"].is_object();
            prop_assert!(is_marked(blocks_sent.len() - 1));
            if let Some(place) = ends_before {
                prop_assert!(is_marked(place), "the end of the request before is still marked");
            }
            ends_before = Some(blocks_sent.len() - 1);
            let roles: Vec<&Value> = sent.iter().map(|message| &message["role"]).collect();
            prop_assert!(roles.windows(2).all(|pair| pair[0] != pair[1]), "{bytes}");
            let plain = bytes.replace(MARK, "");
            // An empty answer is left out, and the next message continues the last one.
            prop_assert!(plain.starts_with(before.strip_suffix("]}]}").unwrap_or("")), "{before}\n{plain}");
            before = plain;
            let results = harness_answer(&blocks, &text);
            messages.push(assistant(blocks));
            messages.push(user(results));
        }
    }
}

#[test]
fn received_bytes_count_every_block_kind() {
    let listener = RecordingListener::default();
    let mut assembler = MessageAssembler::default();
    let blocks = [
        (json!({"type": "thinking", "thinking": "ab"}), json!({"thinking": "cde"})),
        (json!({"type": "thinking"}), json!({"signature": "xyz="})),
        (json!({"type": "redacted_thinking", "data": "12345"}), json!({})),
        (json!({"type": "tool_use", "id": "t", "name": "bash", "input": {}}), json!({"partial_json": "{\"a\":1}"})),
        (json!({"type": "text", "text": "h"}), json!({"text": "i"})),
    ];
    for (index, (block, more)) in blocks.into_iter().enumerate() {
        for event in [start(index as u64, block), delta(index as u64, more)] {
            let name = event["type"].as_str().unwrap().to_owned();
            assembler.process_event(&SseEvent { name, data: event.to_string() }, &listener).unwrap();
        }
    }
    assert_eq!(listener.bytes.load(Ordering::Relaxed), 5 + 4 + 5 + 7 + 2);
}
