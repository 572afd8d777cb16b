//! Runs programs of others, such as Claude Code, as members. Each program has its own agent loop. The member's claim, worktree,
//! messages, budget and evidence are the same as with Brigade's own agent.
//!
//! - A turn is one model request of the agent and the tools that it calls: after the first of them has ended or was denied, the agent
//!   waits until the member's next turn.
//! - Each task has its own session, in the task's worktree. A message for the agent is in Brigade's transcript first. A prompt has all
//!   messages that the session does not have yet, and its key is in the transcript before it is sent. After a crash, the agent's own
//!   history shows whether the last prompt arrived.
//! - The program ends with its claim: the guard ends it and all that it started.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::host::AgentHost;
use super::{AgentBackend, AgentError, CompactionOutcome, TurnOutcome};
use crate::domain::task::Task;
use crate::ports::ToolSpec;
use crate::run::progress::Progress;
use crate::tools::{Tool, table};
use protocol::AgentProgram;
use running_agent::RunningAgent;
use turn::ProcessEnd;

pub mod board_server;
pub mod claude;
mod connection;
mod events;
pub mod programs;
pub mod protocol;
mod running_agent;
mod start;
mod turn;
mod usage;

/// The folder of external agents in the workspace: their sockets, and below it the private folder of each.
pub const AGENTS_FOLDER: &str = ".team/agents";

/// Brigade's tools for the board that external agents do not get: they have their own, or the tool needs Brigade's loop. A claimed
/// task needs a worktree and a session before the agent starts.
const EXCLUDED_TOOLS: [&str; 5] = ["todo", "ask", "idle", "read_inbox", "claim_task"];

/// Returns true for a tool that external agents get. They have their own tools for files and commands.
fn is_offered(tool: &str) -> bool {
    !table::kind_of(tool).is_for_files() && !EXCLUDED_TOOLS.contains(&tool)
}

/// The agent of one member.
pub struct ExternalAgent {
    state: AgentState,
    running: Option<RunningAgent>,
}

/// The state of an agent that outlives its processes.
struct AgentState {
    program: &'static dyn AgentProgram,
    /// The member's private folder for this kind of agent.
    home: PathBuf,
    tools: Vec<Arc<dyn Tool>>,
    /// The descriptions of the tools, in the same order.
    tool_specs: Vec<ToolSpec>,
    /// Shows its program in the state of the worktree.
    progress: Arc<Progress>,
    /// The number of times that its program ended by itself since the last request of its model.
    ends_in_a_row: u32,
    /// True if its model made a request since its program last ended by itself.
    has_requested: bool,
    /// True if a tool call ended or was denied since then.
    has_called: bool,
    /// The id of its session; empty before the first one.
    session: String,
    /// True from the start of a session, and after the agent shortened its context, until it has the identity block.
    is_identity_due: bool,
    /// True if a session was lost, until the next one has an account of the work.
    needs_recap: bool,
    /// True after a warning about wrong usage in its reports.
    has_warned_of_misreport: bool,
}

impl AgentState {
    fn new(
        program: &'static dyn AgentProgram,
        home: PathBuf,
        tools: Vec<Arc<dyn Tool>>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            program,
            home,
            tool_specs: tools.iter().map(|tool| tool.spec()).collect(),
            tools,
            progress,
            ends_in_a_row: 0,
            has_requested: false,
            has_called: false,
            session: String::new(),
            is_identity_due: false,
            needs_recap: false,
            has_warned_of_misreport: false,
        }
    }
}

impl ExternalAgent {
    /// Creates the agent of this member. `tools` are the tools of a member in Brigade's own loop.
    pub fn new(program: &'static dyn AgentProgram, tools: Vec<Arc<dyn Tool>>, host: &AgentHost) -> Self {
        let tools = tools.into_iter().filter(|tool| is_offered(&tool.spec().name)).collect();
        let folder = host.services.workspace.root.join(AGENTS_FOLDER);
        let home = folder.join(&host.spec.model.provider).join(host.name());
        Self { state: AgentState::new(program, home, tools, Arc::clone(&host.progress)), running: None }
    }

    async fn run_turn(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError> {
        host.refresh_working_dir().await;
        if let Some(outcome) = self.ensure_running(host).await? {
            return Ok(vec![outcome]);
        }
        let Some(running) = &mut self.running else { return Ok(vec![TurnOutcome::Aborted]) };
        let turn = Turn { agent: &mut self.state, running, host, recorded_call: None };
        let (outcomes, process) = turn.run().await?;
        if process == ProcessEnd::Now {
            self.end().await;
        }
        Ok(outcomes)
    }

    /// Ends the program, if it runs.
    async fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.connection.process.end().await;
            self.state.progress.record_program_end();
        }
    }
}

/// The agent, its process and its host during one turn.
struct Turn<'a> {
    agent: &'a mut AgentState,
    running: &'a mut RunningAgent,
    host: &'a mut AgentHost,
    /// The call that ended the turn. Its result is in the transcript, and the program does not get it.
    recorded_call: Option<String>,
}

#[async_trait]
impl AgentBackend for ExternalAgent {
    async fn begin_task(&mut self, _task: &Task, host: &mut AgentHost) -> Result<(), AgentError> {
        self.end().await;
        start::leave_other_session(host).await
    }

    async fn turn(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError> {
        // The futures of a turn are large.
        Box::pin(self.run_turn(host)).await
    }

    async fn compact(&mut self, _host: &mut AgentHost) -> Result<CompactionOutcome, AgentError> {
        Ok(CompactionOutcome::Kept(format!("{} compacts its context itself", self.state.program.name())))
    }
}
