//! The beginning of all requests of one context: system prompt and tools. It never changes, so providers find it in their caches.
//!
//! It also knows the most input tokens that a request can use. A server's report is exact for the beginning of the next request. After
//! it, texts count exactly if the model's own tokenizer is loaded. Each other byte can be a token.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::agents::tokenizer::TokenCounter;
use crate::domain::transcript::Usage;
use crate::ports::{ChatMessage, ModelRequest, ToolSpec, blocks_tokens_max, escaped_bytes};
use crate::tools::Tool;

/// The system prompt and the tools of the requests of a context.
pub(super) struct RequestPrefix {
    pub system_prompt: Arc<str>,
    /// The descriptions of the tools.
    pub tool_specs: Arc<[ToolSpec]>,
    /// The tools, in the same order.
    tools: Vec<Arc<dyn Tool>>,
    /// The size of all this, in bytes.
    pub bytes: u64,
    /// The last request with a plausible report of its usage.
    reported: Mutex<Option<ReportedRequest>>,
}

/// A request, and the input tokens that its server reported.
struct ReportedRequest {
    /// The model: another one counts in other tokens.
    model: Arc<str>,
    messages: Arc<[Arc<ChatMessage>]>,
    input_tokens: u64,
}

impl RequestPrefix {
    /// Creates a prefix. `tool_specs` describes `tools`, in the same order.
    pub fn new(system_prompt: String, tools: Vec<Arc<dyn Tool>>, tool_specs: Arc<[ToolSpec]>) -> Self {
        let tool_bytes =
            |tool: &ToolSpec| tool.name.len() + tool.description.len() + tool.input_schema.to_string().len();
        let bytes = system_prompt.len() + tool_specs.iter().map(tool_bytes).sum::<usize>();
        Self { system_prompt: system_prompt.into(), tool_specs, tools, bytes: bytes as u64, reported: Mutex::default() }
    }

    /// Returns the most input tokens that the server can count for a request with this prefix. `counter` counts texts by the model's own
    /// tokenizer. Without it, and beyond its limit, each byte can be a token.
    pub fn input_tokens_max(&self, request: &ModelRequest, counter: Option<&TokenCounter>) -> u64 {
        let text_tokens =
            |text: &str| counter.and_then(|counter| counter.count(text)).unwrap_or_else(|| escaped_bytes(text));
        let reported = self.reported.lock();
        let since_report = reported.as_ref().filter(|reported| reported.model == request.model).and_then(|reported| {
            let tokens = tokens_after(&reported.messages, &request.messages, &text_tokens);
            tokens.map(|tokens| reported.input_tokens + tokens)
        });
        since_report.unwrap_or_else(|| request.input_tokens_max_with(&text_tokens))
    }

    /// Records a plausible report of the usage of a request with this prefix. Requests for summaries end with an instruction that the
    /// next request does not have, so they are no beginning of it.
    pub fn record_usage(&self, request: &ModelRequest, usage: Usage) {
        if !request.is_for_summary() {
            let input_tokens = usage.total_input();
            let (model, messages) = (Arc::clone(&request.model), Arc::clone(&request.messages));
            *self.reported.lock() = Some(ReportedRequest { model, messages, input_tokens });
        }
    }

    /// Creates a prefix with the tools whose names `is_chosen` accepts.
    pub fn with_tools(&self, system_prompt: String, is_chosen: impl Fn(&str) -> bool) -> Self {
        let chosen: Vec<usize> =
            (0..self.tools.len()).filter(|index| is_chosen(&self.tool_specs[*index].name)).collect();
        let tools = chosen.iter().map(|index| Arc::clone(&self.tools[*index])).collect();
        let tool_specs = chosen.iter().map(|index| self.tool_specs[*index].clone()).collect();
        Self::new(system_prompt, tools, tool_specs)
    }

    /// Returns the tool with this name, or the error for the model if there is none.
    pub fn tool(&self, name: &str) -> Result<&Arc<dyn Tool>, String> {
        let index = self.tool_specs.iter().position(|spec| spec.name == name);
        index.and_then(|index| self.tools.get(index)).ok_or_else(|| {
            let names: Vec<&str> = self.tool_specs.iter().map(|spec| spec.name.as_str()).collect();
            format!("There is no tool `{name}`. There are: {}.", names.join(", "))
        })
    }

    /// Returns true if it has this tool.
    pub fn has_tool(&self, name: &str) -> bool {
        self.tool_specs.iter().any(|spec| spec.name == name)
    }
}

/// Returns the most tokens that follow `start` in a request with these messages; `None` if they do not begin with `start`.
fn tokens_after(
    start: &[Arc<ChatMessage>],
    messages: &[Arc<ChatMessage>],
    text_tokens: &dyn Fn(&str) -> u64,
) -> Option<u64> {
    let (last, before) = start.split_last()?;
    let (same, rest) = messages.split_at_checked(before.len())?;
    let (grown, added) = rest.split_first()?;
    let is_same = |(one, other): (&Arc<ChatMessage>, &Arc<ChatMessage>)| Arc::ptr_eq(one, other) || one == other;
    if !before.iter().zip(same).all(is_same) || grown.role != last.role {
        return None;
    }
    let new_blocks = grown.content.strip_prefix(last.content.as_slice())?;
    let added = added.iter().map(|message| message.tokens_max(text_tokens));
    Some(blocks_tokens_max(new_blocks, text_tokens) + added.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::transcript::{Block, Role};
    use crate::ports::RequestPurpose;
    use proptest::prelude::*;
    use std::time::Duration;

    fn message(role: Role, texts: &[String]) -> Arc<ChatMessage> {
        Arc::new(ChatMessage::new(role, texts.iter().map(Block::text).collect()))
    }

    fn messages(texts: &[Vec<String>]) -> Vec<Arc<ChatMessage>> {
        let role = |index: usize| if index.is_multiple_of(2) { Role::User } else { Role::Assistant };
        texts.iter().enumerate().map(|(index, texts)| message(role(index), texts)).collect()
    }

    fn body_bytes(messages: &[Arc<ChatMessage>]) -> u64 {
        messages.iter().map(|message| message.tokens_max(&escaped_bytes)).sum()
    }

    #[test]
    fn changed_beginning_has_no_report() {
        let [a, b, c] = ["a", "b", "c"].map(|text| vec![text.to_owned()]);
        let start = messages(&[a.clone(), b.clone()]);
        assert_eq!(tokens_after(&start, &messages(&[a.clone(), c.clone()]), &escaped_bytes), None);
        assert_eq!(tokens_after(&start, &messages(&[c.clone(), b.clone(), a.clone()]), &escaped_bytes), None);
        assert_eq!(tokens_after(&start, &start[..1], &escaped_bytes), None);
        assert_eq!(tokens_after(&[], &start, &escaped_bytes), None);
        assert!(tokens_after(&start, &messages(&[a, b, c]), &escaped_bytes).is_some());
    }

    /// Another model counts other tokens for the same text.
    #[test]
    fn report_of_another_model_does_not_count() {
        let prefix = RequestPrefix::new("s".to_owned(), Vec::new(), [].into());
        let request = |model: &str| ModelRequest {
            teammate: "bob".into(),
            model: model.into(),
            system: "s".into(),
            messages: messages(&[vec!["x".repeat(5_000)]]).into(),
            tools: [].into(),
            output_tokens_max: 9,
            purpose: RequestPurpose::Turn,
            silence_timeout: Duration::ZERO,
            answer_timeout: Duration::ZERO,
        };
        prefix.record_usage(&request("a"), Usage { input_tokens: 1_000, ..Usage::default() });
        assert_eq!(prefix.input_tokens_max(&request("a"), None), 1_000);
        assert!(prefix.input_tokens_max(&request("b"), None) > 5_000);
    }

    proptest! {
        /// A body is as long as its beginning and the bytes after it.
        #[test]
        fn bytes_after_beginning_complete_body(
            texts in proptest::collection::vec(proptest::collection::vec(".{0,9}", 1..4), 1..5), cut in 0usize..9,
        ) {
            let whole = messages(&texts);
            let mut start = texts.clone();
            start.truncate(1 + cut / 3);
            let last = start.last_mut().unwrap();
            last.truncate(1 + cut % 3);
            let start = messages(&start);
            prop_assert_eq!(tokens_after(&start, &whole, &escaped_bytes), Some(body_bytes(&whole) - body_bytes(&start)));
        }
    }
}
