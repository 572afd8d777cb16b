//! Brigade's own agent: a loop of requests to a model and calls of tools.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;

use super::host::AgentHost;
use super::{AgentBackend, AgentError, CompactionOutcome, TurnOutcome, identity};
use crate::ports::ToolSpec;
use crate::tools::Tool;
use known_files::KnownFiles;
use model_chain::ModelChain;
use repetition::Repetition;
use request_prefix::RequestPrefix;

mod ask;
mod compaction;
mod context_window;
mod cut_prompt;
mod known_files;
pub mod model_chain;
mod repetition;
mod request_prefix;
mod response_listener;
mod retry;
mod tool_calls;
mod turn;

/// A model and its tools.
pub struct BuiltinAgent {
    model: ModelChain,
    prefix: RequestPrefix,
    /// The beginning of the requests of its sub-agents, if it has the tool `ask`.
    ask_prefix: Option<RequestPrefix>,
    compactions_in_a_row: u32,
    /// Consecutive answers that the length limit cut off.
    truncated_in_a_row: u32,
    repetition: Repetition,
    known_files: KnownFiles,
    /// True after a warning that tool calls written as text are not run, until it calls a tool.
    has_warned_of_text_call: bool,
    /// True after a warning about wrong or missing usage reports of its server.
    has_warned_of_usage: AtomicBool,
}

impl BuiltinAgent {
    /// Creates the agent of this member. `tool_specs` describes `tools`, in the same order.
    pub fn new(model: ModelChain, tools: Vec<Arc<dyn Tool>>, tool_specs: Arc<[ToolSpec]>, host: &AgentHost) -> Self {
        let prefix =
            RequestPrefix::new(identity::system_prompt(host, &host.services.spec.prompts.teammate), tools, tool_specs);
        host.progress.set_fallback(None);
        let ask_prefix = prefix.has_tool(ask::ASK_TOOL).then(|| ask::prefix(&prefix, host));
        Self {
            model,
            prefix,
            ask_prefix,
            compactions_in_a_row: 0,
            truncated_in_a_row: 0,
            repetition: Repetition::default(),
            known_files: KnownFiles::default(),
            has_warned_of_text_call: false,
            has_warned_of_usage: AtomicBool::new(false),
        }
    }
}

/// The agent and its host during one turn or one compaction.
struct Turn<'a> {
    agent: &'a mut BuiltinAgent,
    host: &'a mut AgentHost,
}

#[async_trait]
impl AgentBackend for BuiltinAgent {
    async fn turn(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError> {
        Turn { agent: self, host }.run().await
    }

    async fn compact(&mut self, host: &mut AgentHost) -> Result<CompactionOutcome, AgentError> {
        Turn { agent: self, host }.compact_on_request().await
    }
}
