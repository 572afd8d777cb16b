//! `brigade mcp`: offers the task board to an agent of another program, over the Model Context Protocol on stdin and stdout.
//!
//! `agent.rs` has the agent's claim and mail, `tools.rs` the tools. Stdout carries only messages of the protocol.

mod agent;
mod forward;
mod tools;

use crate::api::Launch;
use crate::front::text::commands::hint;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt as _;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer, ServerInitializeError};
use rmcp::transport::stdio;

use self::agent::ServedAgent;
use self::tools::{McpToolEntry, TOOLS};
use crate::api::outside_agent::OutsideAgent;
use crate::domain::task::trimmed_words;
use crate::front::cli::arguments::lease;
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::output::CommandAnswer;
use crate::front::cli::signals::Signals;
use crate::sandbox::environment::{BOARD_CREDENTIAL_VARIABLE, BOARD_SOCKET_VARIABLE};

/// Serve the task board to an agent of another program, over MCP
///
/// A client of the Model Context Protocol starts this command and speaks to it on stdin and stdout. Its agent can claim, report and add
/// tasks, and exchange messages with the team, even if the team does not run. When the client closes stdin, the agent's task is
/// released.
#[derive(Debug, clap::Args)]
pub struct Mcp {
    /// The agent's name, which no member may have. A process of a member's agent omits it and acts as the member
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// The capabilities of the agent, such as coder,rust
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    can: Vec<String>,
    /// Length of the lease, which is renewed while this process lives: a time such as 90s, 15m or 2h30m, from 1s to 7d
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "15m")]
    lease: Duration,
}

impl Mcp {
    /// Serves the client until it closes stdin, or until a signal ends the process.
    ///
    /// # Errors
    /// The name belongs to a member, the workspace cannot be opened, or the client does not speak the protocol.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if let Some((socket, credential)) = self.board_socket(context)? {
            let mut signals = Signals::listen(false)?;
            tokio::select! {
                forwarded = forward::forward(socket.as_ref(), &credential) => forwarded?,
                _ = signals.next() => {}
            }
            return Ok(CommandAnswer::text(String::new()));
        }
        let Some(name) = &self.name else {
            return Err(CliError::usage("cannot serve an agent without a name").hint(hint!["pass one: ", Launch::Mcp]));
        };
        let name = OutsideAgent::checked_name(&context.workspace, name).await?;
        let mut signals = Signals::listen(false)?;
        let identity = OutsideAgent { name, capabilities: trimmed_words(&self.can), lease: self.lease };
        let agent = Arc::new(ServedAgent::new(identity, context));
        agent.join().await?;
        let served = tokio::select! {
            served = serve(Arc::clone(&agent)) => served,
            () = agent.renew_repeatedly() => Ok(()),
            _ = signals.next() => Ok(()),
        };
        agent.leave().await;
        served?;
        Ok(CommandAnswer::text(String::new()))
    }

    /// Returns the socket and the credential of the member whose agent started this process, if one did.
    ///
    /// # Errors
    /// `--as` names another agent.
    fn board_socket(&self, context: &Context) -> CliResult<Option<(String, String)>> {
        let variable = |name: &str| context.workspace.location.environment().variables.get(name).cloned();
        let socket = variable(BOARD_SOCKET_VARIABLE).zip(variable(BOARD_CREDENTIAL_VARIABLE));
        let member = variable("BRIGADE_TEAMMATE").unwrap_or_default();
        match &self.name {
            Some(name) if socket.is_some() && !name.eq_ignore_ascii_case(&member) => {
                let text =
                    format!("cannot serve an agent as `{name}`: this process belongs to the agent of `{member}`");
                Err(CliError::usage(text).hint("leave out `--as`"))
            }
            _ => Ok(socket),
        }
    }
}

/// Serves the client on stdin and stdout until it closes stdin.
async fn serve(agent: Arc<ServedAgent>) -> CliResult<()> {
    let failed = |error: String| CliError::refused(format!("cannot serve the MCP client: {error}"));
    let server = match McpHandler(agent).serve(stdio()).await {
        Ok(server) => server,
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(failed(error.to_string())),
    };
    server.waiting().await.map_err(|error| failed(error.to_string()))?;
    Ok(())
}

/// The MCP server of one agent.
struct McpHandler(Arc<ServedAgent>);

impl ServerHandler for McpHandler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("brigade", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.0.instructions())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(to_mcp_tool).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(entry) = TOOLS.iter().find(|entry| entry.name == request.name) else {
            let names: Vec<&str> = TOOLS.iter().map(|entry| entry.name).collect();
            let text = format!("unknown tool `{}`; the tools are {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(text, None));
        };
        let result = match entry.call(&self.0, request.arguments.unwrap_or_default()).await {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            // A hint is for a person at a shell.
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.message)]),
        };
        Ok(result.into())
    }
}

/// The tool as clients see it.
fn to_mcp_tool(entry: &McpToolEntry) -> Tool {
    let schema = entry.input_schema().as_object().cloned().unwrap_or_default();
    Tool::new(entry.name, entry.description(), schema)
}
