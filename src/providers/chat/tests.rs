//! Tests of bodies and the assembler: one for each difference between servers that was seen.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::assembly::ChatAssembler;
use super::body::body;
use crate::domain::agent::transcript::{Block, Origin, Usage};
use crate::domain::team::model_spec::{IdForm, MaxTokensField, ReasoningBack};
use crate::ports::{ChatMessage, Listener, ModelRequest, ModelResponse, RequestPurpose, StopReason};
use crate::providers::api::{Assembler, ProtocolError};
use crate::providers::compat::Compat;
use crate::providers::repetition::ITEMS_MAX;
use crate::providers::sse::{SseEvent, SseReader};
use crate::providers::test_requests::{assistant, request, user};

/// Records the streamed text and the last usage.
#[derive(Default)]
struct RecordingListener {
    text: Mutex<String>,
    usage: Mutex<Option<Usage>>,
}

impl Listener for RecordingListener {
    fn on_text(&self, delta: &str) {
        self.text.lock().push_str(delta);
    }

    fn on_usage(&self, usage: Usage) {
        *self.usage.lock() = Some(usage);
    }
}

/// Returns the answer of a stream with these chunks, or its error. `[DONE]` ends it if `is_done` is true.
fn answer(chunks: &[Value], is_done: bool) -> Result<ModelResponse, ProtocolError> {
    let mut assembler = Box::new(ChatAssembler::default());
    for chunk in chunks {
        let event = SseEvent { name: String::new(), data: chunk.to_string() };
        assembler.process_event(&event, &())?;
    }
    if is_done {
        assembler.process_event(&SseEvent { name: String::new(), data: "[DONE]".to_owned() }, &())?;
    }
    if !assembler.may_end() {
        return Err(ProtocolError::Invalid("it is not complete".to_owned()));
    }
    assembler.finish("call-1")
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn calls(calls: Value) -> Value {
    delta(json!({ "tool_calls": calls }))
}

fn finish(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// The calls of an answer: id, name and arguments.
fn calls_of(response: &ModelResponse) -> Vec<(String, String, Value)> {
    let calls = response.content.iter().filter_map(|block| match block {
        Block::ToolUse { id, name, input, .. } => Some((id.clone(), name.clone(), input.clone())),
        _ => None,
    });
    calls.collect()
}

fn call(id: &str, name: &str, input: Value) -> (String, String, Value) {
    (id.to_owned(), name.to_owned(), input)
}

#[test]
fn streamed_answer_is_assembled() {
    let chunks = [
        delta(json!({"role": "assistant", "content": null})),
        delta(json!({"content": "Let me "})),
        delta(json!({"content": "look."})),
        calls(json!([{"index": 0, "id": "c1", "type": "function", "function": {"name": "bash", "arguments": ""}}])),
        calls(json!([{"index": 0, "function": {"arguments": "{\"command\":"}}])),
        calls(json!([{"index": 0, "function": {"arguments": "\"ls\"}"}}])),
        finish("tool_calls"),
        json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10}}}),
    ];
    let response = answer(&chunks, true).unwrap();
    assert_eq!(response.content[0], Block::text("Let me look."));
    assert_eq!(calls_of(&response), [call("c1", "bash", json!({"command": "ls"}))]);
    let usage =
        Usage { input_tokens: 30, output_tokens: 7, cache_read_tokens: 60, cache_write_tokens: 10, ..Usage::default() };
    assert_eq!((response.stop, response.usage), (StopReason::ToolUse, Some(usage)));
}

/// The beginning of a call. Fields that are null are missing.
fn head(index: Value, id: Value, name: &str, arguments: &str) -> Value {
    piece(index, id, json!({"name": name, "arguments": arguments}))
}

/// A later piece of a call.
fn rest(index: Value, arguments: &str) -> Value {
    piece(index, Value::Null, json!({ "arguments": arguments }))
}

fn piece(index: Value, id: Value, function: Value) -> Value {
    let mut call = json!({"index": index, "id": id, "function": function});
    call.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    calls(json!([call]))
}

/// The forms in which servers stream one call after another.
fn streams_of_two_calls() -> Vec<Vec<Value>> {
    const NONE: Value = Value::Null;
    vec![
        // As documented.
        vec![
            head(json!(0), json!("a"), "one", "{\"x\":"),
            rest(json!(0), "1}"),
            head(json!(1), json!("b"), "two", "{\"y\":"),
            rest(json!(1), "2}"),
        ],
        // The index is missing, or always 0.
        vec![head(NONE, json!("a"), "one", "{\"x\":"), rest(NONE, "1}"), head(NONE, json!("b"), "two", "{\"y\":2}")],
        vec![
            head(json!(0), json!("a"), "one", "{\"x\":"),
            rest(json!(0), "1}"),
            head(json!(0), json!("b"), "two", "{\"y\":"),
            rest(json!(0), "2}"),
        ],
        // The id is repeated, and then empty.
        vec![
            head(json!(0), json!("a"), "one", "{"),
            head(json!(0), json!("a"), "one", "\"x\":1"),
            head(json!(0), json!(""), "", "}"),
            head(json!(1), json!("b"), "two", "{\"y\":2}"),
        ],
        // The index counts the pieces.
        vec![
            head(json!(0), json!("a"), "one", "{\"x\":"),
            rest(json!(1), "1"),
            head(json!(2), json!("a"), "one", "}"),
            head(json!(3), json!("b"), "two", "{\"y\":2"),
            rest(json!(4), "}"),
        ],
        // The last piece of a call repeats its id and name.
        vec![
            head(json!(0), json!("a"), "one", "{\"x\":1}"),
            head(json!(0), json!("a"), "one", ""),
            head(json!(0), json!("b"), "two", "{\"y\":2}"),
            head(json!(0), json!("b"), "two", ""),
        ],
        // The index is of another type, and the name has a namespace.
        vec![
            head(json!("0"), json!("a"), "functions.one", "{\"x\":1}"),
            head(json!(-1), json!("b"), "functions.two", "{\"y\":2}"),
        ],
        // The pieces of two calls alternate.
        vec![
            head(json!(0), json!("a"), "one", "{\"x\""),
            head(json!(1), json!("b"), "two", "{\"y\""),
            rest(json!(0), ":1}"),
            rest(json!(1), ":2}"),
        ],
    ]
}

/// A new call begins with a new id or index, or with a name after whole arguments, whatever the server leaves out or repeats.
#[test]
fn calls_are_separated_by_id_name_and_index() {
    let two = [call("a", "one", json!({"x": 1})), call("b", "two", json!({"y": 2}))];
    for chunks in streams_of_two_calls() {
        let response = answer(&[chunks.clone(), vec![finish("tool_calls")]].concat(), true).unwrap();
        assert_eq!(calls_of(&response), two, "{chunks:?}");
    }
}

#[test]
fn calls_without_own_id_get_one() {
    const NONE: Value = Value::Null;
    for (id, index, arguments, second) in [
        (NONE, json!(1), "{}", "two"),
        (json!("a"), json!(1), "{}", "two"),
        (json!("a"), json!(1), "{}", "one"),
        (json!("a"), json!(0), "{}", "one"),
        (NONE, NONE, "{}", "one"),
        (NONE, NONE, "", "two"),
    ] {
        let chunks = [
            head(if index.is_null() { NONE } else { json!(0) }, id.clone(), "one", arguments),
            head(index, id.clone(), second, "{}"),
            finish("stop"),
        ];
        let response = answer(&chunks, true).unwrap();
        let ids: Vec<String> = calls_of(&response).into_iter().map(|(id, ..)| id).collect();
        assert!(ids.len() == 2 && ids[0] != ids[1] && ids.iter().all(|id| !id.is_empty()), "{id}: {ids:?}");
    }
}

#[test]
fn content_decides_about_end_of_answer() {
    let bash = calls(json!([{"index": 0, "id": "c", "function": {"name": "bash", "arguments": "{}"}}]));
    let text = delta(json!({"content": "Done."}));
    for reason in ["stop", "tool_calls", "whatever", ""] {
        assert_eq!(answer(&[bash.clone(), finish(reason)], true).unwrap().stop, StopReason::ToolUse, "{reason}");
    }
    for reason in ["stop", "tool_calls", "eos", ""] {
        assert_eq!(answer(&[text.clone(), finish(reason)], true).unwrap().stop, StopReason::EndTurn, "{reason}");
    }
    assert_eq!(answer(&[text.clone(), finish("brand_new")], true).unwrap().stop, StopReason::Other("brand_new".into()));
    // Without `[DONE]`, the reason is the end; without both, the answer was cut.
    assert_eq!(answer(&[text.clone(), finish("stop")], false).unwrap().stop, StopReason::EndTurn);
    assert!(answer(std::slice::from_ref(&text), false).is_err() && answer(std::slice::from_ref(&bash), false).is_err());
    let refusal = delta(json!({"refusal": "I cannot help with that."}));
    assert_eq!(answer(&[refusal, finish("stop")], true).unwrap().stop, StopReason::Refusal);
}

/// A cut call is never run: not at a limit, even if it is whole, and not if a gateway hides the cut.
#[test]
fn cut_call_is_never_run() {
    let call =
        |arguments: &str| calls(json!([{"index": 0, "id": "c", "function": {"name": "bash", "arguments": arguments}}]));
    for arguments in ["{\"command\":\"rm ", "{}"] {
        for (reason, stop) in [("length", StopReason::MaxTokens), ("content_filter", StopReason::Refusal)] {
            let response = answer(&[call(arguments), finish(reason)], true).unwrap();
            assert_eq!(response.stop, stop);
            assert_eq!(calls_of(&response)[0].2, json!(arguments), "{reason}");
        }
    }
    let hidden = answer(&[call("{\"command\":\"rm "), finish("stop")], true).unwrap_err();
    assert!(matches!(&hidden, ProtocolError::Invalid(reason) if reason.contains("was cut")), "{hidden:?}");
}

#[test]
fn errors_inside_a_stream_end_it() {
    for chunk in [
        json!({"error": {"message": "overloaded", "code": 502}, "choices": []}),
        json!({"error": "overloaded"}),
        json!({"choices": [{"delta": {"content": "x"}, "finish_reason": "error"}], "error": {"message": "overloaded"}}),
    ] {
        let error = answer(std::slice::from_ref(&chunk), false).unwrap_err();
        let ProtocolError::Reported(error) = error else { panic!("{chunk}: {error:?}") };
        assert_eq!(error.message.as_deref(), Some("overloaded"), "{chunk}");
    }
    for reason in ["error", "network_error", "insufficient_system_resource"] {
        assert!(matches!(answer(&[finish(reason)], true), Err(ProtocolError::Reported(_))), "{reason}");
    }
    for data in [json!({"message": "no"}), json!({"error": {"message": "no"}}), json!([{"error": {"message": "no"}}])] {
        let event = SseEvent { name: "error".to_owned(), data: data.to_string() };
        let error = ChatAssembler::default().process_event(&event, &()).unwrap_err();
        let ProtocolError::Reported(error) = error else { panic!("{data}: {error:?}") };
        assert_eq!(error.message.as_deref(), Some("no"), "{data}");
    }
    for data in ["{", "7", "[]", "<html>"] {
        let event = SseEvent { name: String::new(), data: data.to_owned() };
        let error = ChatAssembler::default().process_event(&event, &()).unwrap_err();
        assert!(matches!(error, ProtocolError::Invalid(_)), "{data}: {error:?}");
    }
    let none = answer(&[json!({"error": null, "choices": []}), delta(json!({"content": "x"})), finish("stop")], true);
    assert_eq!(none.unwrap().content, [Block::text("x")]);
}

#[test]
fn signs_of_life_are_ignored() {
    let mut assembler = ChatAssembler::default();
    for (name, data) in [("keepalive", "{}"), ("keepalive", "now"), ("", ""), ("ping", "[1]"), ("", " ")] {
        let event = SseEvent { name: name.to_owned(), data: data.to_owned() };
        let result = assembler.process_event(&event, &());
        assert!(result.is_ok() && !assembler.may_end(), "{name} {data}: {result:?}");
    }
}

#[test]
fn usage_is_found_wherever_it_is() {
    let usage = json!({"prompt_tokens": 50, "completion_tokens": 5, "prompt_cache_hit_tokens": 20});
    let expected = Usage { input_tokens: 30, output_tokens: 5, cache_read_tokens: 20, ..Usage::default() };
    let text = || delta(json!({"content": "Done."}));
    let partial = json!({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 1}});
    for chunks in [
        vec![text(), finish("stop"), json!({"choices": [], "usage": usage})],
        vec![partial.clone(), text(), finish("stop"), json!({"choices": [], "usage": usage}), json!({"usage": null})],
        vec![text(), finish("stop"), json!({"choices": [], "x_groq": {"usage": usage}})],
        vec![text(), json!({"choices": [{"delta": {}, "finish_reason": "stop", "usage": usage}]})],
        vec![text(), finish("stop"), json!({"choices": [], "usage": usage}), json!({"choices": [], "usage": usage})],
    ] {
        assert_eq!(answer(&chunks, true).unwrap().usage, Some(expected), "{chunks:?}");
    }
    assert_eq!(answer(&[text(), finish("stop")], true).unwrap().usage, None);
    for odd in [json!({"prompt_tokens": -1, "completion_tokens": 5}), json!({"prompt_tokens": "9"})] {
        let chunks = [text(), finish("stop"), json!({"choices": [], "usage": odd}), json!({"usage": usage})];
        assert_eq!(answer(&chunks, true).unwrap().usage, None, "{odd}");
    }
}

#[test]
fn other_forms_of_content_are_read() {
    let parts = json!([{"type": "thinking", "thinking": []}, {"type": "text", "text": "Done."}]);
    for chunks in [
        vec![delta(json!({ "content": parts })), finish("stop")],
        vec![json!({"choices": [{"message": {"content": "Done."}, "finish_reason": "stop"}]})],
        vec![json!({"choices": [{"delta": null}]}), delta(json!({"content": "Done."})), finish("stop")],
        vec![
            json!({"choices": [{"index": 0, "delta": {"content": "Done.", "tool_calls": null}, "finish_reason": 5}]}),
            json!({"choices": {}, "usage": []}),
            json!({"choices": [null]}),
            finish("stop"),
        ],
        vec![
            json!({"id": 7, "object": []}),
            delta(json!({"content": "Done.", "audio": {}})),
            finish("stop"),
            finish("stop"),
        ],
    ] {
        assert_eq!(answer(&chunks, true).unwrap().content, [Block::text("Done.")], "{chunks:?}");
    }
    let object = calls(json!([{"index": 0, "id": "c", "function": {"name": "bash", "arguments": {"command": "ls"}}}]));
    assert_eq!(calls_of(&answer(&[object, finish("stop")], true).unwrap())[0].2, json!({"command": "ls"}));
}

#[test]
fn repeated_calls_end_the_answer() {
    let same = |index: u64| {
        let function = json!({"name": "bash", "arguments": "{\"command\":\"ls\"}"});
        calls(json!([{"index": index, "id": format!("c{index}"), "function": function}]))
    };
    let chunks: Vec<Value> = (0..9).map(same).collect();
    let response = answer(&chunks, false).unwrap();
    assert_eq!((response.stop, response.usage), (StopReason::Repetition, None));
    assert_eq!(response.content.len(), 3);
}

#[test]
fn last_chunk_sent_twice_has_one_call() {
    for id in [json!("c"), Value::Null] {
        let call = json!({"index": 0, "id": id, "function": {"name": "bash", "arguments": "{\"command\":\"ls\"}"}});
        let last = json!({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
        let response = answer(&[last.clone(), last], true).unwrap();
        assert_eq!(response.content.len(), 1, "{response:?}");
    }
}

/// Each new call is compared with all before it.
#[test]
fn answer_with_too_many_calls_ends() {
    let call = |number: usize| json!({"id": number.to_string(), "function": {"name": format!("tool-{number}")}});
    let chunk = calls((0..50_000).map(call).collect());
    let response = answer(&[chunk], false).unwrap();
    assert_eq!((response.stop, response.content.len()), (StopReason::TooManyCalls, ITEMS_MAX));
}

fn sent_body(request: &ModelRequest, compat: Compat) -> Value {
    serde_json::from_slice(&body(request, &compat)).unwrap()
}

fn conversation() -> Vec<ChatMessage> {
    let input = json!({"command": "ls"});
    vec![
        user(vec![Block::text("<identity>"), Block::text("Do it.")]),
        assistant(vec![Block::tool_use("c1", "bash", input)]),
        user(vec![
            Block::ToolResult { tool_use_id: "c1".into(), content: "a.txt".into(), is_error: false },
            Block::text("<inbox>"),
        ]),
    ]
}

#[test]
fn body_has_roles_calls_and_results() {
    let body = sent_body(&request(&conversation()), Compat::DEFAULT);
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\":\"ls\"}"}});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "system", "content": "You are 'bob'"},
            {"role": "user", "content": "<identity>\n\nDo it."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
            {"role": "user", "content": "<inbox>"},
        ])
    );
    assert_eq!((&body["max_tokens"], &body["stream"], body.get("tool_choice")), (&json!(99), &json!(true), None));
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    assert_eq!(body["tools"][0]["function"]["name"], "bash");
    for optional in ["strict", "store", "parallel_tool_calls", "temperature"] {
        assert_eq!(body.get(optional), None, "{optional}");
    }
    let compat =
        Compat { max_tokens_field: MaxTokensField::MaxCompletionTokens, stream_options: false, ..Compat::DEFAULT };
    let body = sent_body(&request(&conversation()), compat);
    let fields = (body.get("max_tokens"), &body["max_completion_tokens"], body.get("stream_options"));
    assert_eq!(fields, (None, &json!(99), None));
    let without_tools = ModelRequest { purpose: RequestPurpose::SummaryWithoutTools, ..request(&conversation()) };
    assert_eq!(sent_body(&without_tools, Compat::DEFAULT)["tool_choice"], "none");
}

/// Some servers refuse every later request if the history has a call with other arguments than an object.
#[test]
fn arguments_in_history_are_objects() {
    for input in [json!({"a": 1}), Value::Null, json!("{\"command\":\"rm "), json!([1])] {
        let call = Block::tool_use("c", "bash", input.clone());
        let body = sent_body(&request(&[assistant(vec![call])]), Compat::DEFAULT);
        let arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{input}: {arguments}");
    }
}

#[test]
fn request_body_extends_previous_body_bytes() {
    let messages = conversation();
    let start = body(&request(&messages[..1]), &Compat::DEFAULT);
    let whole = body(&request(&messages), &Compat::DEFAULT);
    // Without the closing `]}`.
    assert!(whole.starts_with(&start[..start.len() - 2]));
}

#[test]
fn ids_have_nine_letters_or_digits_on_request() {
    let compat = Compat { id_form: IdForm::NineAlphanumeric, ..Compat::DEFAULT };
    let sent = |id: &str| {
        let call = Block::tool_use(id, "bash", json!({}));
        let result = Block::ToolResult { tool_use_id: id.into(), content: "x".into(), is_error: false };
        let body = sent_body(&request(&[assistant(vec![call]), user(vec![result])]), compat);
        let messages = body["messages"].as_array().unwrap();
        assert_eq!(messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"], "{id}");
        messages[2]["tool_call_id"].as_str().unwrap().to_owned()
    };
    assert_eq!(sent("aB3456789"), "aB3456789");
    let others = ["call-1-0", "call-1-1", "toolu_01", "", "aB345678-"].map(sent);
    for (place, id) in others.iter().enumerate() {
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert!(!others[..place].contains(id), "{id}");
    }
}

/// The answer to these chunks, as a later request has it.
fn sent_back(chunks: &[Value], compat: Compat, is_foreign: bool) -> Value {
    let content = answer(chunks, true).unwrap().content;
    let maker = Origin { provider: "openai-compatible".to_owned(), ..Origin::default() };
    let message = Arc::new(ChatMessage { origin: Some(maker.clone()), ..assistant(content) });
    let reader = if is_foreign { Origin::default() } else { maker };
    sent_body(&request(&[message.for_reader(&reader).as_ref().clone()]), compat)["messages"][1].clone()
}

fn call_chunk(extra: Value) -> Value {
    let mut call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "bash", "arguments": "{ }"}});
    if let (Some(call), Value::Object(extra)) = (call.as_object_mut(), extra) {
        call.extend(extra);
    }
    calls(json!([call]))
}

#[test]
fn reasoning_goes_back_under_its_own_name() {
    for name in ["reasoning_content", "reasoning"] {
        let chunks =
            [delta(json!({name: "I "})), delta(json!({name: "think."})), call_chunk(json!({})), finish("stop")];
        let message = sent_back(&chunks, Compat::DEFAULT, false);
        assert_eq!(message[name], "I think.");
        assert_eq!(message.as_object().unwrap().len(), 4, "role, content, calls, reasoning: {message}");
    }
    // The same text under two names counts once.
    let both = delta(json!({"reasoning_content": "I think.", "reasoning": "I think."}));
    let mut assembler = ChatAssembler::default();
    let event = SseEvent { name: String::new(), data: both.to_string() };
    assembler.process_event(&event, &()).unwrap();
    assert_eq!(assembler.progress().content_bytes, "I think.".len());
    let message = sent_back(&[both, call_chunk(json!({})), finish("stop")], Compat::DEFAULT, false);
    assert_eq!((&message["reasoning_content"], message.get("reasoning")), (&json!("I think."), None));
}

#[test]
fn reasoning_is_sent_even_if_empty_on_request() {
    let compat = Compat { reasoning_back: ReasoningBack::Content, ..Compat::DEFAULT };
    let call = [call_chunk(json!({})), finish("stop")];
    for is_foreign in [true, false] {
        assert_eq!(sent_back(&call, compat, is_foreign)["reasoning_content"], "");
    }
    assert_eq!(sent_back(&call, Compat::DEFAULT, false).get("reasoning_content"), None);
    let words = [delta(json!({"content": "Done."})), finish("stop")];
    assert_eq!(sent_back(&words, compat, false).get("reasoning_content"), None);
}

#[test]
fn reasoning_goes_back_in_the_configured_field() {
    let chunks = [delta(json!({"reasoning": "I think."})), call_chunk(json!({})), finish("stop")];
    let sent = |reasoning_back| {
        let message = sent_back(&chunks, Compat { reasoning_back, ..Compat::DEFAULT }, false);
        ["reasoning", "reasoning_content"].map(|field| message.get(field).cloned())
    };
    let text = Some(json!("I think."));
    assert_eq!(sent(ReasoningBack::SameField), [text.clone(), None]);
    assert_eq!(sent(ReasoningBack::Reasoning), [text.clone(), None]);
    assert_eq!(sent(ReasoningBack::Content), [None, text]);
    assert_eq!(sent(ReasoningBack::None), [None, None]);
    let part = json!({"type": "thinking", "thinking": [{"type": "text", "text": "I think."}]});
    let parts = [delta(json!({"content": [part]})), call_chunk(json!({})), finish("stop")];
    let content =
        |reasoning_back| sent_back(&parts, Compat { reasoning_back, ..Compat::DEFAULT }, false)["content"].clone();
    assert_eq!((content(ReasoningBack::None), content(ReasoningBack::SameField)), (json!(""), json!([part])));
}

#[test]
fn reasoning_details_are_joined_and_sent_back() {
    let detail = |fields: Value| delta(json!({"reasoning": "I", "reasoning_details": [fields]}));
    let encrypted = json!({"type": "reasoning.encrypted", "data": "Z2F0ZQ==", "index": 0, "id": "r1"});
    let chunks = [
        detail(json!({"type": "reasoning.text", "text": "I ", "index": 0, "format": "x", "signature": null})),
        detail(json!({"type": "reasoning.text", "text": "think.", "index": 0})),
        detail(json!({"type": "reasoning.text", "index": 0, "signature": "c2ln"})),
        detail(json!({"type": "reasoning.summary", "summary": "Short.", "index": 1})),
        detail(encrypted.clone()),
        detail(encrypted.clone()),
        call_chunk(json!({})),
        finish("stop"),
    ];
    let message = sent_back(&chunks, Compat::DEFAULT, false);
    let text = json!({"type": "reasoning.text", "text": "I think.", "index": 0, "format": "x", "signature": "c2ln"});
    let summary = json!({"type": "reasoning.summary", "summary": "Short.", "index": 1});
    assert_eq!(message["reasoning_details"], json!([text, summary, encrypted, encrypted]));
    assert_eq!(message.get("reasoning"), None, "the details have its text");
}

#[test]
fn thinking_parts_go_back_as_parts() {
    let part = |text: &str| json!([{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]);
    let chunks = [
        delta(json!({"content": part("I ")})),
        delta(json!({"content": part("think.")})),
        delta(json!({"content": "Done."})),
        finish("stop"),
    ];
    let content = json!([part("I think.")[0], {"type": "text", "text": "Done."}]);
    assert_eq!(sent_back(&chunks, Compat::DEFAULT, false)["content"], content);
}

#[test]
fn signature_goes_back_inside_its_call() {
    let compat = Compat { needs_signature: true, ..Compat::DEFAULT };
    let signature = |text: &str| json!({"google": {"thought_signature": text}});
    let second = calls(json!([{"index": 1, "id": "d", "function": {"name": "bash", "arguments": "{}"}}]));
    let chunks = [call_chunk(json!({"extra_content": signature("c2ln")})), second.clone(), finish("stop")];
    let own = &sent_back(&chunks, compat, false)["tool_calls"];
    assert_eq!((&own[0]["extra_content"], own[1].get("extra_content")), (&signature("c2ln"), None));
    let chunks = [call_chunk(json!({})), second, finish("stop")];
    let foreign = &sent_back(&chunks, compat, true)["tool_calls"];
    let skip = signature("skip_thought_signature_validator");
    assert_eq!((&foreign[0]["extra_content"], foreign[1].get("extra_content")), (&skip, None));
    assert_eq!(sent_back(&chunks, Compat::DEFAULT, true)["tool_calls"][0].get("extra_content"), None);
}

#[test]
fn arguments_go_back_as_the_model_wrote_them() {
    let message = sent_back(&[call_chunk(json!({})), finish("stop")], Compat::DEFAULT, false);
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{ }");
    let cut = sent_back(&[call_chunk(json!({})), finish("length")], Compat::DEFAULT, false);
    assert_eq!(cut["tool_calls"][0]["function"]["arguments"], "{}");
}

proptest! {
    /// The sizes of the pieces in which a stream arrives do not matter.
    #[test]
    fn answer_does_not_depend_on_pieces(sizes in proptest::collection::vec(1usize..40, 1..9)) {
        let chunks = [
            delta(json!({"content": "Grüße 😀"})),
            calls(json!([{"index": 0, "id": "c", "function": {"name": "bash", "arguments": "{\"command\":"}}])),
            calls(json!([{"index": 0, "function": {"arguments": "\"ls\"}"}}])),
            finish("tool_calls"),
        ];
        let stream: String = chunks.iter().map(|chunk| format!(": life\ndata: {chunk}\n\n")).collect::<String>() + "data: [DONE]\n\n";
        let (mut reader, mut assembler, listener) = (SseReader::default(), Box::new(ChatAssembler::default()), RecordingListener::default());
        let mut sizes = sizes.iter().cycle();
        let mut rest = stream.as_bytes();
        while !rest.is_empty() {
            let (piece, remaining) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            for event in reader.feed(piece).unwrap() {
                assembler.process_event(&event, &listener).unwrap();
            }
            rest = remaining;
        }
        prop_assert_eq!(assembler.finish("x").unwrap(), answer(&chunks, true).unwrap());
        prop_assert_eq!(&*listener.text.lock(), "Grüße 😀");
    }
}
