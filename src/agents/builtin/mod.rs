//! Brigade's own agent: a loop of requests to a model and calls of tools.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;

use super::host::AgentHost;
use super::worktree::{ABOUT_ISOLATION, ABOUT_PLAN_FIRST, ABOUT_TEAM_WORKTREE};
use super::{AgentBackend, AgentError, TurnOutcome};
use crate::domain::prompt::{AgentProfile, identity_block};
use crate::ports::{ModelClient, ToolSpec};
use crate::tools::Tool;
use context_window::fixed_prompt_bytes;

mod compaction;
mod context_window;
mod response_listener;
mod retry;
mod tool_calls;
mod turn;

/// A model and its tools.
pub struct BuiltinAgent {
    model: Arc<dyn ModelClient>,
    tools: Vec<Arc<dyn Tool>>,
    /// The descriptions of the tools, in the same order.
    tool_specs: Arc<[ToolSpec]>,
    system_prompt: Arc<str>,
    /// The size of system prompt and tools.
    fixed_prompt_bytes: u64,
    identity_block: Option<String>,
    /// The context window that an error of the provider reported, if one did.
    reported_window: Option<u64>,
    compactions_in_a_row: u32,
    /// Consecutive answers that the length limit cut off.
    truncated_in_a_row: u32,
    /// True after a warning that tool calls written as text are not run, until it calls a tool.
    has_warned_of_text_call: bool,
    /// True after a warning about an impossible usage report of the provider.
    has_warned_of_misreport: AtomicBool,
}

impl BuiltinAgent {
    /// Creates the agent of this member. `tool_specs` describes `tools`, in the same order.
    #[must_use]
    pub fn new(
        model: Arc<dyn ModelClient>,
        tools: Vec<Arc<dyn Tool>>,
        tool_specs: Arc<[ToolSpec]>,
        host: &AgentHost,
    ) -> Self {
        let system = system_prompt(host);
        Self {
            model,
            tools,
            fixed_prompt_bytes: fixed_prompt_bytes(&system, &tool_specs),
            tool_specs,
            system_prompt: system.into(),
            identity_block: None,
            reported_window: None,
            compactions_in_a_row: 0,
            truncated_in_a_row: 0,
            has_warned_of_text_call: false,
            has_warned_of_misreport: AtomicBool::new(false),
        }
    }
}

fn system_prompt(host: &AgentHost) -> String {
    let (services, spec) = (&host.services, &host.spec);
    let is_lead = host.context.caller.is_lead;
    let instructions = if is_lead { &services.spec.prompts.lead } else { &services.spec.prompts.teammate };
    let profile = AgentProfile { name: host.name(), role: &spec.role, team: services.spec.name.as_str() };
    let mut rules = String::new();
    if services.isolation.is_some() {
        rules.push_str(&format!("\n{}\n", if is_lead { ABOUT_TEAM_WORKTREE } else { ABOUT_ISOLATION }));
    }
    if spec.plan_first {
        rules.push_str(&format!("\n{ABOUT_PLAN_FIRST}\n"));
    }
    let system = format!(
        "{}, at {}.\n\n{}\n{rules}One WORK phase has at most {} turns.\n\n{}",
        profile.introduction(),
        services.work_folder().display(),
        instructions.trim(),
        services.spec.limits.turns_max,
        spec.prompt.trim()
    );
    system.trim_end().to_owned()
}

/// The agent and its host during one turn or one compaction.
struct Turn<'a> {
    agent: &'a mut BuiltinAgent,
    host: &'a mut AgentHost,
}

impl Turn<'_> {
    /// Returns the identity block, from the roster and the board. It stays the same while the context is long, so that requests
    /// keep a common beginning.
    async fn identity_block(&mut self) -> String {
        let host = &*self.host;
        if let Some(block) = &self.agent.identity_block
            && !host.conversation.is_short()
        {
            return block.clone();
        }
        let mut roster = host.services.stores.roster.read().await.unwrap_or_default();
        roster.retain(|member| member.is_colleague_in(host.services.spec.name.as_str()));
        let task = match host.task() {
            Some(id) => host.services.stores.board.get(id).await.ok(),
            None => None,
        };
        let profile = AgentProfile { name: host.name(), role: &host.spec.role, team: host.services.spec.name.as_str() };
        let text = identity_block(profile, &roster, task.as_ref(), host.worktree_note().as_deref());
        self.agent.identity_block = Some(text.clone());
        text
    }
}

#[async_trait]
impl AgentBackend for BuiltinAgent {
    async fn turn(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError> {
        Turn { agent: self, host }.run().await
    }

    async fn compact(&mut self, host: &mut AgentHost) -> Result<Result<(), String>, AgentError> {
        Turn { agent: self, host }.compact_on_request().await
    }

    fn forget_identity_block(&mut self) {
        self.identity_block = None;
    }
}
