//! Tests of rules that all APIs keep. Each API continues the answers of each other one, after a change of the model, API or provider.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::api;
use super::compat::Compat;
use super::sse::SseReader;
use super::test_requests::{request, user};
use crate::domain::agent::transcript::{Block, Origin, Role};
use crate::domain::team::model_spec::{CompatSpec, MaxTokensField, ReasoningBack, ToolCalls};
use crate::domain::team::team_spec::ApiKind;
use crate::ports::{ChatMessage, ModelRequest, ToolSpec};

/// An answer of each API, with a call of `bash`, and with all that only its model accepts.
const ANSWERS: [(ApiKind, &str); 3] = [
    (ApiKind::Messages, include_str!("../../tests/parsers/samples/thinking.sse")),
    (ApiKind::Chat, include_str!("../../tests/parsers/samples/chat_reasoning.sse")),
    (ApiKind::Responses, include_str!("../../tests/parsers/samples/responses.sse")),
];
/// Parts of the answers that another model must not get.
const BOUND: [&str; 8] = ["c2ln", "Z2F0ZQ==", "rs_1", "msg_1", "fc_1", "I think", "thought_signature", "phase"];

fn origin(kind: ApiKind, model: &str) -> Origin {
    Origin { provider: "p".to_owned(), api: kind.as_str().to_owned(), model: model.to_owned() }
}

/// The context after this answer and the result of its call.
fn context(kind: ApiKind, stream: &str) -> Vec<ChatMessage> {
    context_of(kind, &Compat::DEFAULT, stream)
}

fn context_of(kind: ApiKind, compat: &Compat, stream: &str) -> Vec<ChatMessage> {
    let mut assembler = api::assembler(kind, compat);
    for event in SseReader::default().feed(stream.as_bytes()).unwrap() {
        assembler.process_event(&event, &()).unwrap();
    }
    assert!(assembler.is_complete(), "{kind:?}");
    let content = assembler.finish("spare").unwrap().content;
    let id = content.iter().find_map(|block| match block {
        Block::ToolUse { id, input, .. } => {
            assert_eq!(input, &json!({"command": "ls"}));
            Some(id.clone())
        }
        _ => None,
    });
    let result = Block::ToolResult { tool_use_id: id.unwrap(), content: "a.txt".into(), is_error: false };
    let answer = ChatMessage { role: Role::Assistant, content, origin: Some(origin(kind, "m")) };
    vec![user(vec![Block::text("Do it.")]), answer, user(vec![result])]
}

/// The body that this reader's client sends.
fn sent(kind: ApiKind, model: &str, context: &[ChatMessage]) -> String {
    let request = request(context);
    let messages = request.messages.iter().map(|message| message.for_reader(&origin(kind, model))).collect();
    let compat = Compat::DEFAULT.with(&CompatSpec::default(), kind);
    let request = ModelRequest { messages, model: model.into(), ..request };
    String::from_utf8(api::body(kind, &request, &compat)).unwrap()
}

#[test]
fn each_api_continues_context_of_each_other() {
    for (maker, stream) in ANSWERS {
        let context = context(maker, stream);
        for (reader, _) in ANSWERS {
            for model in ["m", "other"] {
                let body = sent(reader, model, &context);
                let is_own = (reader, model) == (maker, "m");
                let bound: Vec<&str> = BOUND.into_iter().filter(|part| body.contains(part)).collect();
                assert_eq!(!bound.is_empty(), is_own, "{maker:?} to {reader:?} {model}: {bound:?} in {body}");
                for part in ["Do it.", "On it.", "bash", "ls", "a.txt"] {
                    assert!(body.contains(part), "{maker:?} to {reader:?}: {part} in {body}");
                }
                let body: Value = serde_json::from_str(&body).unwrap();
                let ids = ids_of(&body);
                assert_eq!((ids.len(), ids.first()), (2, ids.last()), "the result names its call: {body}");
            }
        }
    }
}

/// A chunk with a call as JSON text, as a server streams it that constrains its answers.
const JSON_CALL: &str = r#"data: {"choices":[{"delta":{"content":"{\"tool\": \"bash\", \"arguments\": {\"command\": \"ls\"}}"},"finish_reason":"stop"}]}

data: [DONE]

"#;

/// Calls as JSON continue contexts of all APIs, and all APIs continue theirs.
#[test]
fn json_calls_continue_each_context_and_the_reverse() {
    let json = Compat { tool_calls: ToolCalls::Json, ..Compat::DEFAULT };
    for (maker, stream) in ANSWERS {
        let request = request(&context(maker, stream));
        let messages = request.messages.iter().map(|message| message.for_reader(&origin(ApiKind::Chat, "m"))).collect();
        let body: Value =
            serde_json::from_slice(&api::body(ApiKind::Chat, &ModelRequest { messages, ..request }, &json)).unwrap();
        let texts = body["messages"].as_array().unwrap().iter().map(|message| {
            assert_eq!(message.as_object().unwrap().len(), 2, "a role and a text: {message}");
            message["content"].as_str().unwrap()
        });
        let texts: Vec<&str> = texts.collect();
        assert_eq!((texts.len(), texts[1], texts[3]), (4, "Do it.", r#"{"result": "a.txt"}"#), "{maker:?}");
        let (words, call) = texts[2].split_once('\n').unwrap();
        let call: Value = serde_json::from_str(call).unwrap();
        assert_eq!((words, call), ("On it.", json!({"tool": "bash", "arguments": {"command": "ls"}})), "{maker:?}");
    }
    let context = context_of(ApiKind::Chat, &json, JSON_CALL);
    for (reader, _) in ANSWERS {
        let body: Value = serde_json::from_str(&sent(reader, "m", &context)).unwrap();
        assert_eq!(ids_of(&body), ["spare-0"; 2], "{reader:?}: {body}");
    }
}

/// The ids of calls and results in a body, in their order.
fn ids_of(body: &Value) -> Vec<String> {
    fn walk(value: &Value, ids: &mut Vec<String>) {
        let is_call = matches!(value["type"].as_str(), Some("tool_use" | "function"));
        let keys = ["call_id", "tool_call_id", "tool_use_id"].into_iter().chain(is_call.then_some("id"));
        ids.extend(keys.filter_map(|key| value[key].as_str()).map(str::to_owned));
        match value {
            Value::Array(values) => values.iter().for_each(|value| walk(value, ids)),
            Value::Object(fields) => fields.values().for_each(|value| walk(value, ids)),
            _ => {}
        }
    }
    let mut ids = Vec::new();
    walk(body.get("input").unwrap_or(&body["messages"]), &mut ids);
    ids
}

/// The same context gives the same bytes, also after its transcript was written and read.
#[test]
fn own_context_is_sent_in_the_same_bytes() {
    for (kind, stream) in ANSWERS {
        let context = context(kind, stream);
        let read = context.iter().map(|message| {
            let content = serde_json::to_string(&message.content).unwrap();
            ChatMessage { content: serde_json::from_str(&content).unwrap(), ..message.clone() }
        });
        let read: Vec<ChatMessage> = read.collect();
        assert_eq!(sent(kind, "m", &read), sent(kind, "m", &context));
    }
}

/// Transcripts of earlier versions do not name the source of answers. All of them are from the Messages API.
#[test]
fn answers_without_source_are_from_messages() {
    let (kind, stream) = ANSWERS[0];
    let mut context = context(kind, stream);
    context[1].origin = None;
    assert!(sent(ApiKind::Messages, "any", &context).contains("c2ln"));
    assert!(!sent(ApiKind::Responses, "any", &context).contains("c2ln"));
}

#[test]
fn unchanged_messages_are_shared() {
    let (kind, stream) = ANSWERS[2];
    for message in context(kind, stream).into_iter().map(Arc::new) {
        assert!(Arc::ptr_eq(&message.for_reader(&origin(kind, "m")), &message));
    }
}

fn any_block() -> impl Strategy<Value = Block> {
    let text = || "(?s).{0,40}";
    let fields = || prop::sample::select(vec!["extra_content", "id"]);
    prop_oneof![
        text().prop_map(|text| Block::Text { text }),
        (text(), text(), text()).prop_map(|(id, name, text)| Block::tool_use(id, name, json!({ "a": text }))),
        (text(), text()).prop_map(|(id, name)| Block::tool_use(id.clone(), name, json!(id))),
        (text(), text(), text(), fields()).prop_map(|(id, name, text, field)| Block::ToolUse {
            id,
            name,
            input: json!({ "a": text }),
            arguments: Some(format!("{{ \"a\": {} }}", json!(text))),
            extra: [(field.to_owned(), json!(text))].into_iter().collect(),
        }),
        (text(), text(), any::<bool>()).prop_map(|(tool_use_id, content, is_error)| Block::ToolResult {
            tool_use_id,
            content,
            is_error
        }),
        text().prop_map(|text| Block::Other(json!({"type": "thinking", "thinking": text, "signature": "c2ln"}))),
        text().prop_map(|text| Block::Other(json!({"type": "thinking", "thinking": [{"type": "text", "text": text}]}))),
        text().prop_map(|text| Block::Other(json!({"type": "reasoning", "reasoning_content": text}))),
        text().prop_map(|text| Block::Other(json!({"type": "reasoning", "encrypted_content": text}))),
        text().prop_map(|text| Block::Other(json!({"type": "message", "id": text}))),
    ]
}

proptest! {
    /// A token has at least one byte, so a server cannot count more tokens than the body has bytes.
    #[test]
    fn body_has_at_most_input_tokens_max_bytes(
        blocks in prop::collection::vec(prop::collection::vec(any_block(), 0..4), 1..4),
        system in "(?s).{0,40}", description in "(?s).{0,40}",
    ) {
        let roles = [Role::User, Role::Assistant].into_iter().cycle();
        let messages: Vec<ChatMessage> = roles.zip(blocks).map(|(role, content)| ChatMessage::new(role, content)).collect();
        let request = request(&messages);
        let tools = [ToolSpec { description, ..request.tools[0].clone() }].into();
        let request = ModelRequest { system: system.into(), tools, ..request };
        let longest = CompatSpec {
            cache: Some(true),
            max_tokens_field: Some(MaxTokensField::MaxCompletionTokens),
            reasoning_back: Some(ReasoningBack::Content),
            ..CompatSpec::default()
        };
        for (kind, _) in ANSWERS {
            let body = api::body(kind, &request, &Compat::DEFAULT.with(&longest, kind));
            prop_assert!(body.len() as u64 <= request.input_tokens_max(), "{:?}", kind);
        }
    }
}
