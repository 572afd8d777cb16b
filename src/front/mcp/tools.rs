//! The tools of agents of other programs: one struct of arguments and one line in [`TOOLS`] each. Each gives an order or asks a question
//! of the layer `api`, and answers with the text that members' tools have.

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Instant;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::agent::ServedAgent;
use crate::api::inbox::UnreadMail;
use crate::api::order::TaskChange;
use crate::api::outside_agent::OutsideAgent;
use crate::api::task::{self, StartObstacles, acting_name};
use crate::api::{Order, Outcome};
use crate::domain::agent::prompt::inbox_block;
use crate::domain::task::claim_queue::{Candidate, TaskScope};
use crate::domain::task::{NewTask, Task, TaskId, TaskStatus};
use crate::domain::team::message::Message;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::team_spec::ToolLimits;
use crate::domain::text::bound;
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::order;
use crate::front::text::why::no_claimant_note;
use crate::front::text::{self, lead_status};
use crate::tools::arguments::ArgumentSchema;
use crate::tools::table::Audience;
use crate::tools::{task_get, task_list};

/// The most bytes of messages in one result of `read_inbox`, unless a single message is longer.
const MAIL_BYTES_MAX: usize = 64 * 1024;

/// A tool. Its arguments are the fields of the struct; clients show the doc comments to their model.
#[async_trait]
trait AgentTool: DeserializeOwned + JsonSchema + Send {
    /// The name in a call.
    const NAME: &'static str;

    /// Runs the tool and returns the text for the agent.
    async fn run(self, agent: &ServedAgent, context: &Context) -> CliResult<String>;
}

/// Runs a tool with the arguments of a call.
type Run =
    for<'a> fn(Value, &'a ServedAgent, &'a Context) -> Pin<Box<dyn Future<Output = CliResult<String>> + Send + 'a>>;

/// One line of the table.
pub struct McpToolEntry {
    /// The name in a call.
    pub name: &'static str,
    run: Run,
    schema: ArgumentSchema,
}

impl McpToolEntry {
    /// Calls the tool for this agent.
    pub async fn call(&self, agent: &ServedAgent, arguments: Map<String, Value>) -> CliResult<String> {
        let (_running_call, context) = agent.begin_call().await?;
        (self.run)(Value::Object(arguments), agent, &context).await
    }

    /// The purpose of the tool.
    pub fn description(&self) -> String {
        self.schema.description()
    }

    /// The JSON Schema of the arguments.
    pub fn input_schema(&self) -> Value {
        self.schema.for_models(Audience::Teammate)
    }
}

/// All tools, in the order that clients see.
pub static TOOLS: LazyLock<Vec<McpToolEntry>> = LazyLock::new(|| {
    vec![
        entry::<TaskList>(),
        entry::<TaskGet>(),
        entry::<TaskCreate>(),
        entry::<ClaimTask>(),
        entry::<TaskUpdate>(),
        entry::<SendMessage>(),
        entry::<ReadInbox>(),
    ]
});

fn entry<T: AgentTool + 'static>() -> McpToolEntry {
    let run: Run = |input, agent, context| {
        Box::pin(async move {
            let call = ArgumentSchema::of::<T>().parse::<T>(&input);
            let call = call.map_err(|error| CliError::usage(error.to_string()))?;
            Ok(bound(&call.run(agent, context).await?, ToolLimits::default().output_bytes_max))
        })
    };
    McpToolEntry { name: T::NAME, run, schema: ArgumentSchema::of::<T>() }
}

/// Lists the tasks of the board.
#[derive(Deserialize, JsonSchema)]
struct TaskList {
    /// Only tasks with this status
    status: Option<TaskStatus>,
}

#[async_trait]
impl AgentTool for TaskList {
    const NAME: &'static str = "task_list";

    async fn run(self, _: &ServedAgent, context: &Context) -> CliResult<String> {
        Ok(task_list::list(&*task::board(&context.workspace).await?, self.status))
    }
}

/// Shows all of a task: description, owner, dependencies, result.
#[derive(Deserialize, JsonSchema)]
struct TaskGet {
    task_id: TaskId,
}

#[async_trait]
impl AgentTool for TaskGet {
    const NAME: &'static str = "task_get";

    async fn run(self, agent: &ServedAgent, context: &Context) -> CliResult<String> {
        describe(context, agent, &task::find(&context.workspace, self.task_id).await?).await
    }
}

/// Adds a task with one outcome that can be checked. Returns its number.
#[derive(Deserialize, JsonSchema)]
struct TaskCreate {
    /// One line
    subject: String,
    /// Files, goal, how to check
    #[serde(default)]
    description: String,
    /// Tasks to complete first
    #[serde(default)]
    blocked_by: Vec<TaskId>,
    /// Roles or capabilities; a member needs one of them. Omit for all
    #[serde(default)]
    requires: Vec<String>,
    /// Command that exits 0 once it is done
    verify: Option<String>,
    /// Higher is claimed first
    #[serde(default)]
    priority: i64,
    /// Only this member can claim it
    owner: Option<String>,
}

#[async_trait]
impl AgentTool for TaskCreate {
    const NAME: &'static str = "task_create";

    async fn run(self, agent: &ServedAgent, context: &Context) -> CliResult<String> {
        let owner = self.owner.as_deref().map(acting_name).transpose()?;
        let task = NewTask {
            subject: self.subject,
            description: self.description,
            blocked_by: self.blocked_by,
            requires: self.requires,
            verify: self.verify,
            priority: self.priority,
            owner: owner.map(|owner| owner.to_string()),
            ..NewTask::default()
        };
        outcome_text(
            context,
            order::carry_out(context, Order::AddTask { task: Box::new(task), by: agent.acting() }).await?,
        )
        .await
    }
}

/// Claims a pending task for you and shows it. You can hold one task at a time; report it with `task_update`.
#[derive(Deserialize, JsonSchema)]
struct ClaimTask {
    /// Omit for the best task that you can claim
    task_id: Option<TaskId>,
}

#[async_trait]
impl AgentTool for ClaimTask {
    const NAME: &'static str = "claim_task";

    async fn run(self, agent: &ServedAgent, context: &Context) -> CliResult<String> {
        let mut held = agent.held.lock().await;
        if let Some(claim) = held.claim {
            if agent.identity.renew(&context.workspace, claim).await? {
                let text = format!("cannot claim a task: you hold {}; report it first with `task_update`", claim.task);
                return Err(CliError::refused(text));
            }
            held.claim = None;
        }
        let Some(task) = agent.identity.claim(&context.workspace, self.task_id).await? else {
            return Ok(format!(
                "no task is claimable for {}; `task_list` shows why each task waits",
                agent.identity.name
            ));
        };
        held.claim = Some(ClaimRef::of(&task));
        let (id, attempt) = (task.id, task.attempt);
        Ok(format!(
            "you hold {id} until you report it (attempt {attempt})\n\n{}",
            describe(context, agent, &task).await?
        ))
    }
}

/// Reports your task: `completed`, `failed`, or `pending` to release it. If the task has a verify command, it runs first; unless it
/// exits 0, you still hold the task. If the team reviews work, the answer comes as a message: then report the task again.
#[derive(Deserialize, JsonSchema)]
struct TaskUpdate {
    task_id: TaskId,
    status: NewStatus,
    /// The work and its evidence, or why it failed
    #[serde(default)]
    result: String,
    /// With `failed`: do not retry
    #[serde(default, rename = "final")]
    is_final: bool,
    /// The attempt of your claim, if this server was restarted since
    attempt: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NewStatus {
    Completed,
    Failed,
    Pending,
}

#[async_trait]
impl AgentTool for TaskUpdate {
    const NAME: &'static str = "task_update";

    async fn run(self, agent: &ServedAgent, context: &Context) -> CliResult<String> {
        let id = self.task_id;
        let by = agent.acting_on(id, self.attempt).await;
        let attempt = by.attempt;
        let change = |change| Order::ChangeTasks { ids: vec![id], change, by: by.clone() };
        let order = match self.status {
            NewStatus::Completed => {
                Order::CompleteTask { id, summary: self.result, evidence: String::new(), by: by.clone() }
            }
            NewStatus::Failed if self.result.trim().is_empty() => {
                return Err(CliError::usage(format!("cannot fail {id}: a reason is needed; give it as `result`")));
            }
            NewStatus::Failed => change(TaskChange::Fail { reason: self.result, is_final: self.is_final }),
            NewStatus::Pending => change(TaskChange::Release { reason: self.result }),
        };
        let outcome = order::carry_out(context, order).await?;
        if let Some(attempt) = attempt {
            agent.forget(ClaimRef { task: id, attempt }).await;
        }
        outcome_text(context, outcome).await
    }
}

/// Sends a message to a member of the team: a question, an answer, or what the other needs to know.
#[derive(Deserialize, JsonSchema)]
struct SendMessage {
    /// A member, `lead` or `human`
    to: String,
    content: String,
}

#[async_trait]
impl AgentTool for SendMessage {
    const NAME: &'static str = "send_message";

    async fn run(self, agent: &ServedAgent, context: &Context) -> CliResult<String> {
        agent.identity.send(&context.workspace, &self.to, &self.content).await?;
        Ok(format!("sent to {}", self.to.trim()))
    }
}

/// Returns your new messages
#[derive(Deserialize, JsonSchema)]
struct ReadInbox {}

#[async_trait]
impl AgentTool for ReadInbox {
    const NAME: &'static str = "read_inbox";

    async fn run(self, agent: &ServedAgent, context: &Context) -> CliResult<String> {
        let mut held = agent.held.lock().await;
        let mut mail = UnreadMail::take(&context.workspace, agent.identity.name.as_str()).await?;
        if mail.new.is_empty() {
            return Ok("no mail waits for you".to_owned());
        }
        let mut bytes = 0;
        let fitting = mail.new.iter().take_while(|delivery| {
            bytes += delivery.message.content.len();
            bytes <= MAIL_BYTES_MAX
        });
        let number = fitting.count().max(1);
        let left = mail.new.split_off(number).len();
        let messages: Vec<Message> = mail.new.iter().map(|delivery| delivery.message.clone()).collect();
        let text = inbox_block(&messages);
        held.mail = Some((mail, Instant::now()));
        let more = if left > 0 { format!("\n{left} more: call `read_inbox` again\n") } else { String::new() };
        Ok(text + &more)
    }
}

/// All that the board has about a task, for this agent.
async fn describe(context: &Context, agent: &ServedAgent, task: &Task) -> CliResult<String> {
    let view = task::board(&context.workspace).await?;
    let OutsideAgent { name, capabilities, .. } = &agent.identity;
    let caller = Candidate { name: name.as_str(), capabilities, scope: TaskScope::All };
    Ok(task_get::describe(task, &view, &caller, context.workspace.now()))
}

/// The outcome of an order about tasks, and the reasons why a new task does not start.
async fn outcome_text(context: &Context, outcome: Outcome) -> CliResult<String> {
    match outcome {
        Outcome::Added(task) => {
            let StartObstacles { unclaimable, pause } = task::start_obstacles(&context.workspace, [&*task]).await;
            let reasons = unclaimable.iter().map(|(_, reason)| no_claimant_note(reason));
            let notes = reasons.chain(pause.as_ref().map(|pause| context.hint(lead_status::pause(pause))));
            Ok(notes.fold(format!("added {} {}\n", task.id, task.subject), |text, note| text + &note + "\n"))
        }
        Outcome::Changed { action, tasks } => {
            Ok(tasks.iter().map(|task| text::tasks::changed(task, action, context.workspace.now())).collect())
        }
        _ => Err(CliError::refused("the order has another outcome than a task")),
    }
}
