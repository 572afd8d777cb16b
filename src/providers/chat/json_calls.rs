//! Calls as JSON text, for servers that constrain answers by a schema. Each answer is one object, which calls a tool or ends the turn. The
//! system prompt describes the tools, because models do not see the schema.
//!
//! A context with native calls continues in this form, and the reverse: only the bodies of requests differ.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use super::body::joined_text;
use crate::domain::agent::transcript::Block;
use crate::domain::text::characters::readable_json;
use crate::ports::{ChatMessage, ModelRequest, ToolSpec};
use crate::providers::arguments::text_to_send;
use crate::providers::text_calls::TextCall;

/// The name in an answer that calls no tool.
const ANSWER: &str = "answer";
const INSTRUCTIONS: &str = "\n\nEach of your answers is one JSON object, {\"tool\": NAME, \"arguments\": {…}}. It calls that tool, \
    and nothing else is called. The next message has the result: {\"result\": TEXT}. Tools:";
const ANSWER_INSTRUCTIONS: &str = "\n- answer: Calls nothing and ends your turn.\n  text (string): Your words";
/// The most characters of an escape in a JSON string, in which an answer can be cut.
const ESCAPE_CHARS_MAX: usize = 6;

/// The content of an answer.
pub enum JsonAnswer {
    /// A call. Its arguments are not whole if the answer was cut.
    Call { name: String, arguments: String },
    /// The text that ends the turn.
    Words(String),
}

/// The arguments of [`ANSWER`].
#[derive(Deserialize)]
struct Words {
    text: String,
}

/// Returns the schema of an answer: an object for each tool, and one without a call. A summary calls nothing.
pub fn response_format(request: &ModelRequest, strict: Option<bool>) -> Value {
    let tools = if request.is_for_summary() { &[] } else { &*request.tools };
    let words = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    let calls = tools.iter().map(|tool| branch(&tool.name, plain(&tool.input_schema)));
    let branches: Vec<Value> = calls.chain([branch(ANSWER, words)]).collect();
    let mut schema = json!({"name": "call", "schema": {"anyOf": branches}});
    if let Some(strict) = strict {
        schema["strict"] = strict.into();
    }
    json!({"type": "json_schema", "json_schema": schema})
}

/// The schema of one call. The model writes the name first.
fn branch(name: &str, mut arguments: Value) -> Value {
    if let Value::Object(fields) = &mut arguments {
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    json!({
        "type": "object",
        "properties": {"tool": {"type": "string", "const": name}, "arguments": arguments},
        "required": ["tool", "arguments"],
        "additionalProperties": false,
    })
}

/// Returns a schema without the descriptions, which the system prompt has. A property can have the name `description`.
fn plain(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, value)| *key != "description" || !value.is_string());
            Value::Object(kept.map(|(key, value)| (key.clone(), plain(value))).collect())
        }
        Value::Array(values) => values.iter().map(plain).collect(),
        value => value.clone(),
    }
}

/// Returns the end of the system prompt: the form of answers, and the tools.
pub fn instructions(tools: &[ToolSpec]) -> String {
    let mut text = INSTRUCTIONS.to_owned();
    for tool in tools {
        // Writing into a string cannot fail.
        let _ = write!(text, "\n- {}: {}", tool.name, tool.description);
        let schema = &tool.input_schema;
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let plain = plain(property);
            let kind = match plain["type"].as_str() {
                Some(kind) if plain.as_object().is_some_and(|fields| fields.len() == 1) => kind.to_owned(),
                _ => plain.to_string(),
            };
            let optional = if required.iter().any(|required| required == name) { "" } else { ", optional" };
            let _ = write!(text, "\n  {name} ({kind}{optional})");
            if let Some(about) = property["description"].as_str() {
                let _ = write!(text, ": {about}");
            }
        }
    }
    text + ANSWER_INSTRUCTIONS
}

/// Returns an answer as the model wrote it in this form, or would have written it.
pub fn answer_text(message: &ChatMessage) -> String {
    let calls = message.content.iter().filter_map(|block| match block {
        Block::ToolUse { name, input, arguments, .. } => {
            Some(call_text(name, &text_to_send(input, arguments.as_deref())))
        }
        _ => None,
    });
    let calls: Vec<String> = calls.collect();
    let text = joined_text(message);
    match (calls.is_empty(), text.is_empty()) {
        (true, _) => call_text(ANSWER, &format!("{{\"text\": {}}}", Value::from(text))),
        (false, true) => calls.join("\n"),
        // Only native calls have words beside them.
        (false, false) => format!("{text}\n{}", calls.join("\n")),
    }
}

/// Returns a call with the spaces that most models write.
fn call_text(name: &str, arguments: &str) -> String {
    format!("{{\"tool\": {}, \"arguments\": {arguments}}}", Value::from(name))
}

/// Returns the results of calls and the texts of a message. A result is JSON, so that no text in it passes for one outside.
pub fn user_text(message: &ChatMessage) -> String {
    let results = message.content.iter().filter_map(|block| match block {
        Block::ToolResult { content, .. } => Some(format!("{{\"result\": {}}}", Value::from(content.as_str()))),
        _ => None,
    });
    let text = joined_text(message);
    results.chain((!text.trim().is_empty()).then_some(text)).collect::<Vec<_>>().join("\n\n")
}

/// Reads the text of an answer. Returns `None` if it is not whole although it was not cut, or if it was cut in the tool's name.
pub fn read(text: &str, is_cut: bool) -> Option<JsonAnswer> {
    let text = &*readable_json(text);
    let (name, arguments) = match serde_json::from_str::<TextCall>(text) {
        Ok(call) => (call.name, call.arguments.get().to_owned()),
        Err(_) if is_cut => beginning(text)?,
        Err(_) => return None,
    };
    if name != ANSWER {
        return Some(JsonAnswer::Call { name, arguments });
    }
    match serde_json::from_str(&arguments) {
        Ok(Words { text }) => Some(JsonAnswer::Words(text)),
        Err(_) if is_cut => Some(JsonAnswer::Words(cut_words(&arguments).unwrap_or_default())),
        Err(_) => None,
    }
}

/// Returns the tool's name at the beginning of a call that was cut, and the rest.
fn beginning(text: &str) -> Option<(String, String)> {
    let text = text.trim_start().strip_prefix('{')?.trim_start().strip_prefix("\"tool\"")?;
    let text = text.trim_start().strip_prefix(':')?;
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let name = values.next()?.ok()?;
    Some((name, text.get(values.byte_offset()..)?.to_owned()))
}

/// Returns the words of arguments that were cut in them.
fn cut_words(arguments: &str) -> Option<String> {
    let (_, fields) = arguments.split_once('{')?;
    let ends = fields.char_indices().map(|(at, _)| at).chain([fields.len()]).rev();
    let read = |end: usize| serde_json::from_str(&format!("{{{}\"}}", &fields[..end])).ok();
    ends.take(ESCAPE_CHARS_MAX).find_map(read).map(|Words { text }| text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::team::model_spec::ToolCalls;
    use crate::domain::team::team_spec::ApiKind;
    use crate::ports::{ModelResponse, RequestPurpose, StopReason};
    use crate::providers::api::{ProtocolError, assembler};
    use crate::providers::chat::body::body as body_of;
    use crate::providers::compat::Compat;
    use crate::providers::sse::SseEvent;
    use crate::providers::test_requests::{assistant, request, user};
    use proptest::prelude::*;

    const COMPAT: Compat = Compat { tool_calls: ToolCalls::Json, ..Compat::DEFAULT };

    fn body(request: &ModelRequest) -> String {
        String::from_utf8(body_of(request, &COMPAT)).unwrap()
    }

    /// The answer of a server that streams this text and ends it for this reason.
    fn answer(text: &str, reason: &str) -> Result<ModelResponse, ProtocolError> {
        let mut assembler = assembler(ApiKind::Chat, &COMPAT);
        let mut delta = |choice: Value| {
            let event = SseEvent { name: String::new(), data: json!({ "choices": [choice] }).to_string() };
            assembler.process_event(&event, &Deaf)
        };
        for piece in text.split_inclusive(' ') {
            delta(json!({"delta": {"content": piece}}))?;
        }
        delta(json!({"delta": {}, "finish_reason": reason}))?;
        assembler.finish("call-1")
    }

    /// Fails if people would see the JSON.
    struct Deaf;

    impl crate::ports::Listener for Deaf {
        fn on_text(&self, delta: &str) {
            panic!("{delta}");
        }
    }

    fn result(text: &str) -> ChatMessage {
        user(vec![Block::ToolResult { tool_use_id: "call-1-0".into(), content: text.into(), is_error: false }])
    }

    #[test]
    fn body_has_schema_and_described_tools() {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "The file"},
                "description": {"type": "array", "items": {"type": "string", "description": "A word"}},
            },
            "required": ["path"],
        });
        let tool = |name: &str, input_schema: Value| ToolSpec {
            name: name.to_owned(),
            description: "Does it.".to_owned(),
            input_schema,
        };
        let tools = [tool("read", schema), tool("idle", json!({"type": "object", "properties": {}}))];
        let call = Block::tool_use("c1", "read", json!({"path": "a"}));
        let mut messages = vec![
            user(vec![Block::text("Do it.")]),
            assistant(vec![call]),
            result("{\"result\": 1}\n"),
            assistant(vec![]),
        ];
        messages[2].content.push(Block::text("<inbox>"));
        messages.push(user(vec![Block::text("Go on.")]));
        messages.push(assistant(vec![Block::text("Done.")]));
        let request = ModelRequest { tools: tools.into(), ..request(&messages) };
        let sent: Value = serde_json::from_str(&body(&request)).unwrap();
        insta::assert_snapshot!(serde_json::to_string_pretty(&sent).unwrap());
        let summary = ModelRequest { purpose: RequestPurpose::Summary, ..request };
        let sent: Value = serde_json::from_str(&body(&summary)).unwrap();
        let branches = sent["response_format"]["json_schema"]["schema"]["anyOf"].as_array().unwrap();
        assert_eq!((branches.len(), &branches[0]["properties"]["tool"]["const"]), (1, &json!(ANSWER)));
        let strict = Compat { strict: Some(true), ..COMPAT };
        let sent: Value = serde_json::from_slice(&body_of(&summary, &strict)).unwrap();
        assert_eq!(sent["response_format"]["json_schema"]["strict"], true);
    }

    #[test]
    fn answer_is_one_call_or_words() {
        let call = |name: &str, arguments: &str| {
            let arguments = arguments.to_owned();
            crate::providers::arguments::call("call-1-0".into(), name.into(), arguments, Default::default())
        };
        for (text, content, stop) in [
            (
                r#"{"tool": "bash", "arguments": {"command": "ls -l"}}"#,
                call("bash", r#"{"command": "ls -l"}"#),
                StopReason::ToolUse,
            ),
            ("{ \"tool\":\"functions.idle\",\"arguments\":{ }}\n", call("idle", "{ }"), StopReason::ToolUse),
            (r#"{"tool": "unknown", "arguments": {}}"#, call("unknown", "{}"), StopReason::ToolUse),
            (
                r#"{"tool": "answer", "arguments": {"text": "It\u0020is\ndone."}}"#,
                Block::text("It is\ndone."),
                StopReason::EndTurn,
            ),
        ] {
            let answer = answer(text, "stop").unwrap();
            assert_eq!((answer.content, answer.stop), (vec![content], stop), "{text}");
        }
        let silent = answer(r#"{"tool": "answer", "arguments": {"text": ""}}"#, "stop").unwrap();
        assert_eq!((silent.content.len(), silent.stop), (0, StopReason::EndTurn));
    }

    /// An answer that a gateway cut, or that no schema constrained, is asked for again.
    #[test]
    fn answer_that_is_not_whole_is_invalid() {
        for text in [
            r#"{"tool": "bash", "arguments": {"command": "rm "#,
            r#"{"tool": "bash", "arguments": {}"#,
            r#"{"tool": "bash", "arguments": "ls"}"#,
            r#"{"tool": "bash""#,
            r#"{"tool": "bash"}"#,
            r#"{"tool": "answer", "arguments": {"text": "It "#,
            r#"{"tool": "answer", "arguments": {"text": 3}}"#,
            r#"{"tool": "bash", "arguments": {}} {"tool": "bash", "arguments": {}}"#,
            "I run it.",
        ] {
            assert!(matches!(answer(text, "stop"), Err(ProtocolError::Invalid(_))), "{text}");
        }
    }

    #[test]
    fn cut_answer_keeps_its_name_or_words() {
        let whole = r#"{"tool": "bash", "arguments": {"command": "ls"}}"#;
        for length in [17, 30, 40, whole.len()] {
            let answer = answer(&whole[..length], "length").unwrap();
            let [Block::ToolUse { name, input, .. }] = &answer.content[..] else { panic!("{answer:?}") };
            assert!(name == "bash" && input.is_string() && answer.stop == StopReason::MaxTokens, "{answer:?}");
        }
        let start = r#"{"tool": "answer", "arguments": {"text": "#;
        for (rest, words) in
            [("\"It is", "It is"), ("\"It\\u00", "It"), ("\"It\\", "It"), ("\"It\"}", "It"), ("\"größ", "größ")]
        {
            let answer = answer(&format!("{start}{rest}"), "length").unwrap();
            assert_eq!((answer.content, answer.stop), (vec![Block::text(words)], StopReason::MaxTokens), "{rest}");
        }
        for text in [start, r#"{"tool": "answer""#] {
            assert!(answer(text, "length").unwrap().content.is_empty(), "{text}");
        }
    }

    /// The model's own text goes back, also after its transcript was written and read.
    #[test]
    fn request_begins_with_bytes_of_previous_request() {
        let mut messages = vec![user(vec![Block::text("Do it.")])];
        let mut before = body(&request(&messages));
        for text in [
            r#"{"tool": "bash", "arguments": {"command":"ls",  "timeout": 1e1}}"#,
            r#"{"tool": "answer", "arguments": {"text": "Done."}}"#,
        ] {
            let content = serde_json::to_string(&answer(text, "stop").unwrap().content).unwrap();
            messages.extend([assistant(serde_json::from_str(&content).unwrap()), result("a.txt")]);
            let after = body(&request(&messages));
            // Without the closing `]}`.
            assert!(after.starts_with(&before[..before.len() - 2]), "{after}");
            let written = serde_json::to_string(text).unwrap();
            assert!(after.contains(&written), "{after}");
            before = after;
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in r#"(\{"tool": ?"(answer|bash)", "arguments": )?[{}"\\:,a1u ä]{0,30}"#) {
            for is_cut in [true, false] {
                let _ = read(&text, is_cut);
            }
        }

        /// The bytes that a server counts as tokens are those of the decoded texts.
        #[test]
        fn texts_have_at_most_input_tokens_max_bytes(text in "(?s).{0,200}", name in "(?s).{0,20}") {
            let call = Block::tool_use("c", name, json!({ "a": text }));
            let request = request(&[assistant(vec![Block::text(&*text), call]), result(&text), assistant(vec![Block::text(text)])]);
            let sent: Value = serde_json::from_str(&body(&request)).unwrap();
            let texts = sent["messages"].as_array().unwrap().iter().filter_map(|message| message["content"].as_str());
            let bytes = texts.map(str::len).sum::<usize>() + sent["response_format"].to_string().len();
            prop_assert!(bytes as u64 <= request.input_tokens_max());
        }
    }
}
