//! A team in this process, on real files: its members' model is a closure that is told who asks, and answers after a while.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::name::LEAD;
use brigade::domain::state::Mode;
use brigade::domain::transcript::{Block, Usage};
use brigade::models::runbook::Runbook;
use brigade::ports::{
    Board, Durability, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, ModelSpec, StopReason, ToolSpec,
};
use brigade::sandbox::{self, Sandbox};
use brigade::stores::open::{OpenOptions, Purpose, Workspace, open};
use brigade::team::handle::{Command, TeamHandle};
use brigade::team::spec::{Limits, TeamSpec};
use brigade::team::{self, Start, Surroundings};
use brigade::tools::table::tools_of;
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

use super::place::SystemClock;

/// What a model says to a request, and how long it takes.
pub type Thought = (ModelResponse, Duration);

/// A model made by two closures: one thinks, one is told when an answer is handed over.
pub struct Brain<T, A> {
    pub think: T,
    pub answered: A,
}

#[async_trait]
impl<T, A> ModelClient for Brain<T, A>
where
    T: Fn(&ModelRequest) -> Thought + Send + Sync,
    A: Fn(&str) + Send + Sync,
{
    async fn request(&self, request: ModelRequest, _: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let (response, time) = (self.think)(&request);
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        (self.answered)(&request.teammate);
        Ok(response)
    }
}

/// The model says something and ends its turn.
pub fn say(text: &str) -> ModelResponse {
    response(vec![Block::text(text)], StopReason::EndTurn)
}

/// The model asks for one tool.
pub fn call(tool: &str, input: Value) -> ModelResponse {
    let id = format!("call-{}", fastrand::u64(..));
    response(vec![Block::ToolUse { id, name: tool.to_owned(), input }], StopReason::ToolUse)
}

fn response(content: Vec<Block>, stop: StopReason) -> ModelResponse {
    ModelResponse { content, stop, usage: Some(Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() }) }
}

/// The model completes this task.
pub fn complete(task: u64) -> ModelResponse {
    call("task_update", json!({ "task_id": task, "status": "completed", "result": "done" }))
}

/// The number of the task the last message hands out, if it does.
pub fn new_task(request: &ModelRequest) -> Option<u64> {
    request.messages.last()?.content.iter().rev().find_map(|block| match block {
        Block::Text { text } => text.strip_prefix("<auto-claimed>Task #")?.split(':').next()?.parse().ok(),
        _ => None,
    })
}

/// A tool that does nothing, at once.
struct Nothing;

/// Its name.
pub const NOTHING: &str = "nothing";

#[async_trait]
impl Tool for Nothing {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({ "type": "object" });
        ToolSpec { name: NOTHING.to_owned(), description: "Does nothing.".to_owned(), input_schema }
    }
    fn about(&self, _: &Value) -> String {
        String::new()
    }
    async fn run(&self, _: Value, _: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text("Nothing was done, as asked."))
    }
}

/// What a team is made of.
pub struct Crew<'a> {
    pub workspace: &'a Path,
    pub members: usize,
    pub durability: Durability,
    pub limits: Limits,
    pub model: Arc<dyn ModelClient>,
}

/// A team at work; it is stopped by [`Crewed::stop`].
pub struct Crewed {
    pub workspace: Workspace,
    pub team: TeamHandle,
}

/// The name of the n-th member.
pub fn member_name(number: usize) -> String {
    format!("m{number}")
}

impl Crew<'_> {
    /// Launches it in continuous mode.
    pub async fn launch(self) -> Crewed {
        self.launch_watched(|board| board).await
    }

    /// The same with a board that `watch` stands in front of.
    pub async fn launch_watched(self, watch: impl FnOnce(Arc<dyn Board>) -> Arc<dyn Board>) -> Crewed {
        let clock = Arc::new(SystemClock);
        let purpose = Purpose::Lead { team: "bench".to_owned() };
        let options = OpenOptions { purpose, durability: self.durability, clock: clock.clone() };
        let workspace = open(self.workspace, options).await.unwrap();
        let mut stores = workspace.stores.clone();
        stores.board = watch(stores.board);
        let model = self.model;
        let connect = move |spec: &ModelSpec| -> Result<Arc<dyn ModelClient>, String> {
            Ok(if spec.provider == "runbook" { Arc::new(Runbook) } else { Arc::clone(&model) })
        };
        let tools = |is_lead| {
            let mut tools = tools_of(is_lead);
            tools.push(Arc::new(Nothing) as Arc<dyn Tool>);
            tools
        };
        let surroundings = Surroundings {
            stores,
            clock,
            workspace: self.workspace.to_owned(),
            control_files: Arc::<[PathBuf]>::default(),
            sandbox: Sandbox::open(sandbox::own_guard().unwrap(), self.workspace, Vec::new()).unwrap(),
            connect: Arc::new(connect),
            tools_of: Arc::new(tools),
            count_tokens: |text| text.len() as u64 / 4,
            repository: None,
        };
        let model = |name: &str, provider: &str| ModelSpec {
            provider: provider.to_owned(),
            model: name.to_owned(),
            ..ModelSpec::default()
        };
        let mut spec = TeamSpec { limits: self.limits, ..TeamSpec::new("bench", model(LEAD, "runbook")).unwrap() };
        for name in (1..=self.members).map(member_name) {
            spec = spec.with_member(&name, "coder", model(&name, "bench")).unwrap();
        }
        let start = Start { mode: Some(Mode::Continuous), ..Start::default() };
        let team = team::launch(spec, start, surroundings).await.unwrap();
        Crewed { workspace, team }
    }
}

impl Crewed {
    /// Whether all members are idle, or on call.
    pub fn is_idle(&self, members: usize) -> bool {
        let teammates = self.team.live().teammates();
        let is_idle = |phase: &str| phase == "idle" || phase == "on_call";
        teammates.len() == members && teammates.values().all(|teammate| is_idle(&teammate.phase))
    }

    /// Ends it without waiting for its turns.
    pub async fn stop(mut self) {
        self.team.command(Command::StopNow).await;
        self.team.wait().await.unwrap();
    }
}
