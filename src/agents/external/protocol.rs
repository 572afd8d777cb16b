//! The interface of an external agent: a protocol turns the lines of its program into [`AgentEvent`]s, and Brigade's messages into
//! lines. It does no I/O, so recorded conversations test it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::programs::{ProgramError, ProgramReport};
use crate::domain::agent::permission::{PermissionCall, Permissions, ToolKind};
use crate::domain::agent::transcript::Usage;
use crate::domain::team::request_text::CallDetails;
use crate::domain::team::team_spec::ModelSpec;
use crate::domain::time::UnixMs;
use crate::sandbox::Sandbox;

/// The start of a program for one session of an agent.
pub struct SessionStart<'a> {
    /// The session's id, which Brigade chose, or the agent at its first start.
    pub session: &'a str,
    /// True if the agent has the session on disk.
    pub is_known: bool,
    /// The agent's identity and rules, for its system prompt.
    pub system_prompt: &'a str,
    /// The model's name; empty for the agent's default.
    pub model: &'a str,
    /// The address of the model's server, if it is not the default.
    pub base_url: Option<&'a str>,
    /// The member's private folder for this kind of agent. All its files are there.
    pub home: &'a Path,
    /// The time limit of a command whose call sets none.
    pub command_timeout: Duration,
    /// The longest time limit that a call may set.
    pub command_timeout_max: Duration,
    /// The rules of the member. Brigade decides about each call as well.
    pub permissions: &'a Permissions,
    /// The number of retries of a model request after temporary errors.
    pub retries_max: u32,
}

/// A program with its arguments and its additional environment variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invocation {
    /// The arguments after the command.
    pub arguments: Vec<String>,
    /// The variables.
    pub variables: Vec<(String, String)>,
}

/// The id of a control request: a request of an agent that waits for Brigade's response.
pub type ControlRequestId = String;

/// An action or a control request of an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// It accepts prompts.
    Ready {
        /// The id of the session, if the agent chose another one than Brigade.
        session: Option<String>,
    },
    /// It sends a request to its model.
    RequestStarted,
    /// The next piece of an answer's text.
    TextStreamed(String),
    /// The next piece of an answer that is not its text.
    AnswerContinued,
    /// A complete text of an answer.
    TextCompleted(String),
    /// An answer calls this tool.
    ToolCalled {
        /// The id of the call.
        call_id: String,
        /// The tool's name.
        tool: String,
        /// Its arguments.
        input: Value,
    },
    /// A model request ended and used this much.
    RequestEnded(Usage),
    /// It asks before it runs a tool. It waits for [`ControlResponse::AllowTool`] or [`ControlResponse::DenyTool`].
    ToolStarting {
        /// The id of the control request.
        request_id: ControlRequestId,
        /// The id of the call.
        call_id: String,
        /// The tool's name.
        tool: String,
        /// Its arguments.
        input: Value,
    },
    /// A tool has ended. Its next model request waits for [`ControlResponse::Continue`].
    ToolEnded {
        /// The id of the control request.
        request_id: ControlRequestId,
        /// The id of the call.
        call_id: String,
        /// The reason why it failed, if it did.
        failure: Option<String>,
    },
    /// The result of a tool call, as its model sees it.
    ToolResult {
        /// The id of the call.
        call_id: String,
        /// The output.
        text: String,
        /// True if the call failed.
        is_error: bool,
    },
    /// It asks for permission to run a tool.
    PermissionRequested {
        /// The id of the control request.
        request_id: ControlRequestId,
        /// The tool's name.
        tool: String,
        /// Its arguments.
        input: Value,
    },
    /// A request of the Model Context Protocol to Brigade's own server.
    McpRequest {
        /// The id of the control request.
        request_id: ControlRequestId,
        /// The agent's id of the tool call, if the message is one and names it.
        call_id: Option<String>,
        /// The JSON-RPC message.
        message: Value,
    },
    /// A control request that Brigade does not know. It may wait for [`ControlResponse::Refuse`].
    UnknownControlRequest(ControlRequestId),
    /// It takes a prompt, and waits for [`ControlResponse::Continue`].
    PromptTaken(ControlRequestId),
    /// It begins to shorten its context, and waits for [`ControlResponse::Continue`].
    Compacting(ControlRequestId),
    /// It has shortened its context, and waits for [`ControlResponse::Continue`].
    Compacted(ControlRequestId),
    /// It repeats a model request after an error.
    RequestRetried {
        /// The error.
        reason: String,
        /// The wait before the next request.
        wait: Duration,
        /// The number of the retry.
        retries: u32,
        /// True if the server refuses the key or the login, so that another request cannot help.
        is_refused: bool,
    },
    /// Its account has used most of its quota.
    QuotaLow {
        /// The used part that was exceeded last, in percent.
        used_percent: u32,
        /// The time at which the quota resets.
        until: UnixMs,
    },
    /// It has done what its prompts asked for, or gave up, and accepts the next prompt.
    PromptCompleted {
        /// The reason why it gave up, if it did.
        failure: Option<AgentFailure>,
        /// Its usage, if it reports it.
        usage: Option<ReportedUsage>,
    },
    /// A line that is no message: an error text of the program.
    Diagnostic(String),
    /// A line passed a limit, so it was not read. The reason is for people.
    LineRefused(String),
}

impl AgentEvent {
    /// Returns the bytes that Brigade keeps of the event in addition to records of the transcript; `None` for a piece of a stream.
    pub fn kept_bytes(&self) -> Option<usize> {
        let reason_bytes = |failure: &AgentFailure| match failure {
            AgentFailure::SessionUnknown | AgentFailure::Interrupted => 0,
            AgentFailure::WrongSetting(reason)
            | AgentFailure::Quota { reason, .. }
            | AgentFailure::Temporary(reason)
            | AgentFailure::Permanent(reason)
            | AgentFailure::Stopped(reason) => reason.len(),
        };
        match self {
            Self::TextStreamed(_) | Self::AnswerContinued | Self::Diagnostic(_) => None,
            Self::ToolStarting { call_id, tool, .. } => Some(call_id.len() + tool.len()),
            Self::ToolEnded { call_id, failure, .. } => Some(call_id.len() + failure.as_ref().map_or(0, String::len)),
            Self::PermissionRequested { tool, .. } => Some(tool.len()),
            Self::RequestRetried { reason, .. } => Some(reason.len()),
            Self::PromptCompleted { failure, .. } => Some(failure.as_ref().map_or(0, reason_bytes)),
            _ => Some(0),
        }
    }
}

/// The usage that an agent reports after a prompt. It includes requests without events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedUsage {
    /// The usage since the last report of the process, or since its start.
    SinceReport(Usage),
    /// The usage since the start of the process.
    SinceStart(Usage),
    /// The usage of the session, with that of its earlier processes as far as the agent knows it.
    OfSession(Usage),
}

/// The reason why an agent gave up its prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentFailure {
    /// It does not know the session.
    SessionUnknown,
    /// Brigade interrupted it.
    Interrupted,
    /// Its login, its key or its model is wrong, or its account has no credit.
    WrongSetting(String),
    /// Its quota is used up.
    Quota {
        /// The error.
        reason: String,
        /// The time at which the quota resets.
        until: UnixMs,
    },
    /// Its model could not be reached, or the agent failed.
    Temporary(String),
    /// Its model refuses the context.
    Permanent(String),
    /// The program stopped its agent at a limit of its own, such as a number of turns. That is no report.
    Stopped(String),
}

/// A response to a control request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ControlResponse<'a> {
    /// The tool may run.
    AllowTool,
    /// The tool must not run, for this reason.
    DenyTool(&'a str),
    /// The agent may go on. A text is added to its context, except when it begins to shorten it.
    Continue(Option<&'a str>),
    /// Brigade does not know the request.
    Refuse,
    /// The tool has the permission to run with this input.
    GrantPermission(&'a Value),
    /// The tool has no permission to run, for this reason.
    DenyPermission(&'a str),
    /// The answer of Brigade's own server; `None` to a notification.
    Mcp(Option<&'a Value>),
}

/// The protocol of one kind of agent, for one process.
pub trait AgentProtocol: Send + Sync {
    /// Returns the arguments and variables of the program.
    fn invocation(&self, start: &SessionStart<'_>) -> Invocation;

    /// Returns the lines that begin the conversation.
    fn handshake(&mut self, start: &SessionStart<'_>) -> Vec<String>;

    /// Reads a line of the program.
    fn read(&mut self, line: &str) -> Vec<AgentEvent>;

    /// Returns the line of a prompt. `key` is an id by which the prompt is found in the session's history. An agent that still works on
    /// another one reads this one before its next model request.
    fn prompt(&self, key: &str, text: &str) -> String;

    /// Returns the line of the response to a control request.
    fn response(&self, request_id: &str, response: ControlResponse<'_>) -> String;

    /// Returns the line that makes the agent give up its prompt now.
    fn interrupt(&self) -> String;

    /// Returns the call for which the rules of a member decide, with Brigade's name of the tool. `folder` is the working directory.
    ///
    /// # Errors
    /// The reason why the arguments do not say what the call is about.
    fn permission_call(&self, tool: &str, input: &Value, folder: &str) -> Result<PermissionCall, String>;

    /// Returns the arguments of a call that its subject does not name, such as the lines that it changes.
    fn permission_details(&self, tool: &str, input: &Value) -> CallDetails;

    /// Returns the name of a board tool, if the agent calls one under this name.
    fn board_tool<'t>(&self, tool: &'t str) -> Option<&'t str>;

    /// Describes a call in one line for people.
    fn about(&self, tool: &str, input: &Value) -> String;
}

/// A kind of external agent.
pub trait AgentProgram: Send + Sync {
    /// Returns its name for people.
    fn name(&self) -> &'static str;

    /// Returns the command that starts it, if the settings name none.
    fn default_command(&self) -> &'static str;

    /// Adds the installed program of these settings to `report`, with a warning if its version was not tested. Runs it in `folder`,
    /// confined as an agent is. Blocks for some tenths of a second.
    ///
    /// # Errors
    /// The program is missing or too old.
    fn check(
        &self,
        spec: &ModelSpec,
        sandbox: &Sandbox,
        folder: &Path,
        report: &mut ProgramReport,
    ) -> Result<(), ProgramError>;

    /// Returns the kind of its own tool with this name; `None` for other tools.
    fn tool_kind(&self, tool: &str) -> Option<ToolKind>;

    /// Returns the protocol of a new process.
    fn protocol(&self) -> Box<dyn AgentProtocol>;

    /// Returns the file with the history of a session; `None` if the agent does not know the session. Blocks.
    ///
    /// # Errors
    /// `FileTooLarge` if a folder of the agent has more entries than its limit.
    fn history(&self, home: &Path, session: &str) -> std::io::Result<Option<PathBuf>>;

    /// Returns true if a history has the prompt with this key. Blocks.
    ///
    /// # Errors
    /// `FileTooLarge` if the history passes a limit. Otherwise the file cannot be read.
    fn has_prompt(&self, history: &Path, key: &str) -> std::io::Result<bool>;
}
