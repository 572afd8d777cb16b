//! Calls that a model wrote as text. Models with the wrong chat template answer so: a fenced JSON object, or one in `<tool_call>`, with the
//! keys `name` and `arguments`.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::arguments;
use crate::domain::agent::transcript::{Block, Extra};
use crate::ports::{ModelResponse, StopReason, ToolSpec};

/// The namespace that some models write before the name of a tool, because their template has it.
pub(super) const NAMESPACE: &str = "functions.";
/// The markup around a call; the second can be missing at the end of an answer.
const MARKUP: [(&str, &str); 3] = [("```json", "```"), ("```", "```"), ("<tool_call>", "</tool_call>")];

/// A call as text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TextCall {
    /// The name of the tool.
    #[serde(alias = "tool")]
    pub name: String,
    /// Its arguments, as the model wrote them.
    #[serde(alias = "parameters")]
    pub arguments: Box<RawValue>,
}

/// Replaces an answer that is nothing but calls of these tools as text by the calls. Their ids start with `spare_id`.
pub(super) fn read_text_calls(answer: &mut ModelResponse, tools: &[ToolSpec], spare_id: &str) {
    let [Block::Text { text }] = &answer.content[..] else { return };
    if answer.stop != StopReason::EndTurn {
        return;
    }
    let Some(calls) = calls_in(text, tools).filter(|calls| !calls.is_empty()) else { return };
    let block = |(index, call): (usize, TextCall)| {
        let arguments = call.arguments.get().to_owned();
        arguments::call(format!("{spare_id}-{}", index + 1), call.name, arguments, Extra::new())
    };
    answer.content = calls.into_iter().enumerate().map(block).collect();
    answer.stop = StopReason::ToolUse;
}

/// Returns the calls of a text that has nothing else.
fn calls_in(text: &str, tools: &[ToolSpec]) -> Option<Vec<TextCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (start, end) = MARKUP.into_iter().find(|(start, _)| rest.starts_with(start)).unwrap_or(("", ""));
        rest = rest.strip_prefix(start)?;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<TextCall>();
        let mut call = values.next()?.ok()?;
        rest = rest.get(values.byte_offset()..)?.trim_start();
        rest = rest.strip_prefix(end).or_else(|| rest.is_empty().then_some(rest))?.trim_start();
        call.name = call.name.strip_prefix(NAMESPACE).unwrap_or(&call.name).to_owned();
        if !call.arguments.get().starts_with('{') || !tools.iter().any(|tool| tool.name == call.name) {
            return None;
        }
        calls.push(call);
    }
    Some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn names(text: &str) -> Vec<String> {
        let tool = |name: &str| ToolSpec { name: name.into(), description: String::new(), input_schema: Value::Null };
        let content = vec![Block::text(text)];
        let mut answer = ModelResponse { content, stop: StopReason::EndTurn, usage: None, origin: None };
        read_text_calls(&mut answer, &[tool("bash"), tool("write_file")], "call-3");
        let name = |block: &Block| match block {
            Block::ToolUse { id, name, input, .. } => Some(format!("{id} {name} {input}")),
            _ => None,
        };
        answer.content.iter().filter_map(name).collect()
    }

    #[test]
    fn whole_answer_as_text_is_a_call() {
        let call = r#"{"name": "bash", "arguments": {"command": "ls"}}"#;
        let expected = [r#"call-3-1 bash {"command":"ls"}"#];
        for text in [
            format!("```json\n{call}\n```"),
            format!("```\n{call}\n```\n"),
            format!("\n```json\n{call}"),
            format!("<tool_call>\n{call}\n</tool_call>"),
            format!("<tool_call>{call}"),
            call.to_owned(),
            call.replace("bash", "functions.bash"),
            call.replace("arguments", "parameters"),
        ] {
            assert_eq!(names(&text), expected, "{text}");
        }
        let both = format!("<tool_call>{call}</tool_call>\n<tool_call>{call}</tool_call>");
        assert_eq!(names(&both), [expected[0], &expected[0].replace("3-1", "3-2")]);
    }

    #[test]
    fn other_text_is_no_call() {
        let call = r#"{"name": "bash", "arguments": {"command": "ls"}}"#;
        for text in [
            format!("I run this:\n```json\n{call}\n```"),
            format!("```json\n{call}\n```\nThen I report."),
            format!("```json\n{}\n```", call.replace("bash", "other_tool")),
            format!("```json\n{}\n```", call.replace("{\"command\": \"ls\"}", "\"ls\"")),
            format!("```json\n{}\n```", call.replace("\"name\"", "\"id\": 1, \"name\"")),
            format!("```json\n{}", &call[..30]),
            r#"{"command": "ls"}"#.to_owned(),
            String::new(),
        ] {
            assert!(names(&text).is_empty(), "{text}");
        }
    }
}
