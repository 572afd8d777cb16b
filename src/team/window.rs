//! How much fits into a request: the model's window, when a context is to be compacted, and the most a request can use.

use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};

use super::agent::Agent;
use super::size::count_message;
use crate::domain::transcript::Usage;
use crate::ports::ToolSpec;

/// The window of a model that nobody says anything of. One that is smaller says so when it is met.
const WINDOW_UNKNOWN_TOKENS: u64 = 128_000;
/// The part of a window an answer may take at the most.
const ANSWER_SHARE: u64 = 4;

/// What stands in every request besides its messages.
#[derive(Debug, Default)]
pub struct Frame {
    bytes: u64,
    /// Once counted.
    tokens: Option<u64>,
}

impl Frame {
    /// System prompt and tools.
    #[must_use]
    pub fn of(system: &str, tools: &[ToolSpec]) -> Self {
        Self {
            bytes: (system.len() + tools.iter().map(|tool| text_of(tool).len()).sum::<usize>()) as u64,
            tokens: None,
        }
    }
}

fn text_of(tool: &ToolSpec) -> String {
    format!("{} {} {}", tool.name, tool.description, tool.input_schema)
}

impl Agent {
    /// How many tokens its model takes in all: as it said itself, as the config says, as its provider knows.
    fn window_tokens(&self) -> u64 {
        let configured = || self.spec.model.context_window_tokens.or_else(|| self.model.context_window_tokens());
        self.window_learned.or_else(configured).unwrap_or(WINDOW_UNKNOWN_TOKENS)
    }

    /// The longest answer, in tokens.
    pub(super) fn output_tokens_max(&self) -> u32 {
        let share = u32::try_from(self.window_tokens() / ANSWER_SHARE).unwrap_or(u32::MAX);
        self.shared.limits.output_tokens_max.min(share).max(1)
    }

    /// Tokens of context at which it is compacted.
    fn compact_at_tokens(&self) -> u64 {
        let limits = &self.shared.limits;
        let room = self.window_tokens().saturating_sub(u64::from(self.output_tokens_max()));
        limits.compact_at_tokens.min(room / 100 * u64::from(limits.compact_at_percent))
    }

    /// Whether the context is so large that it is time to compact it, and not merely because what stands before it is.
    pub(super) async fn is_context_large(&mut self) -> bool {
        let at = self.compact_at_tokens();
        if self.conversation.is_short() {
            return false;
        }
        let identity = self.identity().await;
        self.conversation.size().at_most(self.frame_bytes(&identity)) >= at && self.count_context(&identity).await >= at
    }

    /// The most that a request of the context, with `more_bytes` behind it, can use.
    pub(super) async fn most(&mut self, identity: &str, more_bytes: usize) -> Usage {
        let input_tokens = if self.shared.purse.counts() && self.thinks() {
            self.count_context(identity).await + more_bytes as u64
        } else {
            // Nobody is held to it.
            self.conversation.size().roughly(self.frame_bytes(identity))
        };
        Usage { input_tokens, output_tokens: u64::from(self.output_tokens_max()), ..Usage::default() }
    }

    fn frame_bytes(&self, identity: &str) -> u64 {
        self.frame.bytes + (identity.len() + self.conversation.summary().map_or(0, str::len)) as u64
    }

    /// About how many tokens the context has. Counts what was not counted yet, off the runtime's threads where it has several.
    async fn count_context(&mut self, identity: &str) -> u64 {
        let uncounted = self.conversation.uncounted();
        let needs_frame = self.conversation.size().needs_frame();
        let frame = (needs_frame && self.frame.tokens.is_none()).then(|| Arc::clone(&self.system));
        let (count, tools) = (self.shared.count_tokens, Arc::clone(&self.tool_specs));
        let around = needs_frame.then(|| format!("{identity}{}", self.conversation.summary().unwrap_or("")));
        let counting = move || {
            let messages: Vec<(usize, u64)> =
                uncounted.iter().map(|(place, message)| (*place, count_message(count, message))).collect();
            let frame =
                frame.map(|system| count(&system) + tools.iter().map(|tool| count(&text_of(tool))).sum::<u64>());
            (messages, frame, around.map_or(0, |text| count(&text)))
        };
        let is_alone = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        // Counting does not fail; were it ended with the runtime, bytes stand in for what was not counted.
        let (messages, frame, around) =
            if is_alone { counting() } else { tokio::task::spawn_blocking(counting).await.unwrap_or_default() };
        self.conversation.counted(messages);
        self.frame.tokens = frame.or(self.frame.tokens);
        self.conversation.size().estimate(self.frame.tokens.unwrap_or(self.frame.bytes) + around)
    }
}
