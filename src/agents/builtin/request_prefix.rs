//! The beginning of all requests of one context: system prompt and tools. It never changes, so providers find it in their caches.
//!
//! It also knows the size of a request: that of its beginning, which was the last request, and of the rest. A server's report is exact for the beginning of the next request. Without
//! one, the bound of the last request is that of its beginning. After it, texts count exactly if the model's own tokenizer is loaded. Each
//! other byte can be a token.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::agents::tokenizer::TokenCounter;
use crate::domain::agent::prompt::text_bytes;
use crate::domain::agent::prompt_cut::{ReportedPrompt, fewest_tokens, fewest_tokens_of};
use crate::domain::agent::transcript::{Block, Usage};
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
    /// The fewest tokens of all this.
    fewest_tokens: u64,
    /// The last request.
    counted: Mutex<Option<CountedRequest>>,
}

/// The size of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestSize {
    /// The most input tokens that its server can count.
    pub input_tokens_max: u64,
    /// The bytes of its texts, see [`ModelRequest::text_bytes`].
    pub text_bytes: u64,
    /// The fewest tokens of the texts of it and of the tools.
    fewest_tokens: u64,
    /// The report with which its own one is compared: of an earlier request that it extends.
    base: Option<ReportedPrompt>,
}

impl RequestSize {
    /// Returns true if the report shows that the server cut this request to its context window.
    pub fn is_cut(&self, usage: Usage) -> bool {
        self.reported(usage).is_cut(self.base)
    }

    fn reported(&self, usage: Usage) -> ReportedPrompt {
        ReportedPrompt { fewest_tokens: self.fewest_tokens, reported_tokens: usage.total_input() }
    }
}

/// A request and its size, with the input tokens that its server reported if it did.
struct CountedRequest {
    /// The model: another one counts in other tokens.
    model: Arc<str>,
    messages: Arc<[Arc<ChatMessage>]>,
    size: RequestSize,
}

impl RequestPrefix {
    /// Creates a prefix. `tool_specs` describes `tools`, in the same order.
    pub fn new(system_prompt: String, tools: Vec<Arc<dyn Tool>>, tool_specs: Arc<[ToolSpec]>) -> Self {
        let tool_texts = |tool: &ToolSpec| [tool.name.clone(), tool.description.clone(), tool.input_schema.to_string()];
        let texts: Vec<String> = tool_specs.iter().flat_map(tool_texts).chain([system_prompt.clone()]).collect();
        Self {
            system_prompt: system_prompt.into(),
            tool_specs,
            tools,
            bytes: texts.iter().map(|text| text.len() as u64).sum(),
            fewest_tokens: texts.iter().map(|text| fewest_tokens(text)).sum(),
            counted: Mutex::default(),
        }
    }

    /// Returns the size of a request with this prefix. `counter` counts texts by the model's own tokenizer. Without it, and beyond its
    /// limit, each byte can be a token.
    pub fn size(&self, request: &ModelRequest, counter: Option<&TokenCounter>) -> RequestSize {
        let text_tokens =
            |text: &str| counter.and_then(|counter| counter.count(text)).unwrap_or_else(|| escaped_bytes(text));
        let mut counted = self.counted.lock();
        // A tokenizer that was loaded since counts better than a size without a report.
        let is_usable =
            |last: &&CountedRequest| last.model == request.model && (last.size.base.is_some() || counter.is_none());
        let since_last = counted.as_ref().filter(is_usable).and_then(|last| {
            let added = added_after(&last.messages, &request.messages)?;
            Some(RequestSize {
                input_tokens_max: last.size.input_tokens_max + added.tokens_max(&text_tokens),
                text_bytes: last.size.text_bytes + added.text_bytes(),
                fewest_tokens: last.size.fewest_tokens + fewest_tokens_of(added.blocks()),
                base: last.size.base,
            })
        });
        let size = since_last.unwrap_or_else(|| RequestSize {
            input_tokens_max: request.input_tokens_max_with(&text_tokens),
            text_bytes: request.text_bytes(),
            fewest_tokens: self.fewest_tokens
                + fewest_tokens_of(request.messages.iter().flat_map(|message| &message.content)),
            base: None,
        });
        // Requests for summaries end with an instruction that the next request does not have, so they are no beginning of it.
        if !request.is_for_summary() {
            let (model, messages) = (Arc::clone(&request.model), Arc::clone(&request.messages));
            *counted = Some(CountedRequest { model, messages, size });
        }
        size
    }

    /// Records a plausible report of the usage of the last request.
    pub fn record_usage(&self, request: &ModelRequest, usage: Usage) {
        let mut counted = self.counted.lock();
        if let Some(CountedRequest { size, .. }) =
            counted.as_mut().filter(|last| Arc::ptr_eq(&last.messages, &request.messages))
        {
            size.base = Some(size.reported(usage).base_after(size.base));
            size.input_tokens_max = usage.total_input();
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

/// The part of a context that follows its beginning.
struct Added<'a> {
    /// The blocks in the last message of the beginning.
    blocks: &'a [Block],
    messages: &'a [Arc<ChatMessage>],
}

impl Added<'_> {
    fn tokens_max(&self, text_tokens: &dyn Fn(&str) -> u64) -> u64 {
        let messages = self.messages.iter().map(|message| message.tokens_max(text_tokens));
        blocks_tokens_max(self.blocks, text_tokens) + messages.sum::<u64>()
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().chain(self.messages.iter().flat_map(|message| &message.content))
    }

    fn text_bytes(&self) -> u64 {
        self.blocks().map(text_bytes).sum::<usize>() as u64
    }
}

/// Returns the part of `messages` that follows `start`; `None` if they do not begin with `start`.
fn added_after<'a>(start: &[Arc<ChatMessage>], messages: &'a [Arc<ChatMessage>]) -> Option<Added<'a>> {
    let (last, before) = start.split_last()?;
    let (same, rest) = messages.split_at_checked(before.len())?;
    let (grown, added) = rest.split_first()?;
    let is_same = |(one, other): (&Arc<ChatMessage>, &Arc<ChatMessage>)| Arc::ptr_eq(one, other) || one == other;
    if !before.iter().zip(same).all(is_same) || grown.role != last.role {
        return None;
    }
    Some(Added { blocks: grown.content.strip_prefix(last.content.as_slice())?, messages: added })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::transcript::Role;
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

    fn tokens_after(start: &[Arc<ChatMessage>], messages: &[Arc<ChatMessage>]) -> Option<u64> {
        added_after(start, messages).map(|added| added.tokens_max(&escaped_bytes))
    }

    fn body_bytes(messages: &[Arc<ChatMessage>]) -> u64 {
        messages.iter().map(|message| message.tokens_max(&escaped_bytes)).sum()
    }

    #[test]
    fn changed_beginning_has_no_report() {
        let [a, b, c] = ["a", "b", "c"].map(|text| vec![text.to_owned()]);
        let start = messages(&[a.clone(), b.clone()]);
        assert_eq!(tokens_after(&start, &messages(&[a.clone(), c.clone()])), None);
        assert_eq!(tokens_after(&start, &messages(&[c.clone(), b.clone(), a.clone()])), None);
        assert_eq!(tokens_after(&start, &start[..1]), None);
        assert_eq!(tokens_after(&[], &start), None);
        assert!(tokens_after(&start, &messages(&[a, b, c])).is_some());
    }

    fn request(model: &str, texts: &[Vec<String>], purpose: RequestPurpose) -> ModelRequest {
        ModelRequest {
            teammate: "bob".into(),
            model: model.into(),
            system: "s".into(),
            messages: messages(texts).into(),
            tools: [].into(),
            output_tokens_max: 9,
            purpose,
            silence_timeout: Duration::ZERO,
            answer_timeout: Duration::ZERO,
        }
    }

    fn usage(input_tokens: u64) -> Usage {
        Usage { input_tokens, ..Usage::default() }
    }

    /// Instructions and tools alone can be more than a small window, before the first task.
    #[test]
    fn cut_of_first_request_is_found() {
        let tool = |number: usize| ToolSpec {
            name: format!("tool_{number}"),
            description: "Searches the lines of files for a regular expression, as ripgrep does.".to_owned(),
            input_schema: serde_json::json!({"type": "object", "required": ["pattern"], "properties": {
                "pattern": {"type": "string", "description": "With `*` and `**`; without `/` it matches in any folder"},
                "path": {"type": "string"}, "files_only": {"type": "boolean"}, "limit": {"type": "integer"}}}),
        };
        let system_prompt = include_str!("../../../prompts/teammate.md").repeat(3);
        let prefix = RequestPrefix::new(system_prompt, Vec::new(), (0..35).map(tool).collect());
        let sent = prefix.bytes / 4;
        assert!((3_900..4_300).contains(&sent), "{sent}");
        let first = prefix.size(&request("m", &[vec!["Do it.".to_owned()]], RequestPurpose::Turn), None);
        assert!(first.is_cut(usage(2_050)));
        for honest in [sent / 2 + 500, sent * 2 / 3, sent, 2 * sent] {
            assert!(!first.is_cut(usage(honest)), "{honest}");
        }
    }

    /// A report belongs to the requests that continue the reported one. No other request is compared with it, such as one after a compaction.
    #[test]
    fn flat_report_of_another_context_is_no_cut() {
        let prefix = RequestPrefix::new("s".to_owned(), Vec::new(), [].into());
        let words = |text: &str, count: usize| vec![format!("{text} ").repeat(count)];
        let short = [words("a", 3_000)];
        let grown = [words("a", 3_000), words("b", 4_000)];
        let other = [words("c", 3_000), words("b", 4_000)];
        for (model, next, reported, is_cut) in [
            ("m", &grown, 7_100, true),
            ("m", &other, 7_100, false),
            ("n", &grown, 7_100, false),
            ("m", &grown, 12_000, false),
        ] {
            let first = request("m", &short, RequestPurpose::Turn);
            prefix.size(&first, None);
            prefix.record_usage(&first, usage(7_000));
            let next = prefix.size(&request(model, next, RequestPurpose::Turn), None);
            assert_eq!(next.is_cut(usage(reported)), is_cut, "{model} {reported}");
        }
    }

    /// Another model counts other tokens for the same text.
    #[test]
    fn report_of_another_model_does_not_count() {
        let prefix = RequestPrefix::new("s".to_owned(), Vec::new(), [].into());
        let request = |model: &str| request(model, &[vec!["x".repeat(5_000)]], RequestPurpose::Turn);
        let first = request("a");
        assert!(prefix.size(&first, None).input_tokens_max > 5_000);
        prefix.record_usage(&first, usage(1_000));
        assert_eq!(prefix.size(&request("a"), None).input_tokens_max, 1_000);
        assert!(prefix.size(&request("b"), None).input_tokens_max > 5_000);
    }

    #[test]
    fn size_without_report_is_that_of_whole_request() {
        let prefix = RequestPrefix::new("s".to_owned(), Vec::new(), [].into());
        let texts: Vec<_> = (0..6).map(|number| vec![format!("{number} \"quoted\"")]).collect();
        for count in 1..=texts.len() {
            for purpose in [RequestPurpose::Turn, RequestPurpose::Summary] {
                let mut texts = texts[..count].to_vec();
                if purpose == RequestPurpose::Summary {
                    texts[count - 1].push("Write a summary.".to_owned());
                }
                let request = request("a", &texts, purpose);
                let size = prefix.size(&request, None);
                assert_eq!(size.input_tokens_max, request.input_tokens_max(), "{count}");
                assert_eq!(size.text_bytes, request.text_bytes(), "{count}");
                let whole = RequestPrefix::new("s".to_owned(), Vec::new(), [].into());
                assert_eq!(size, whole.size(&request, None), "{count}");
            }
        }
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
            prop_assert_eq!(tokens_after(&start, &whole), Some(body_bytes(&whole) - body_bytes(&start)));
        }
    }
}
