//! A team in this process, on real files. A closure takes the place of its model: it gets the request and returns an
//! answer and a delay.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::state::Mode;
use brigade::domain::team::team_spec::{Limits, ModelSpec, TeamSpec};
use brigade::embed::SystemClock;
use brigade::ports::{
    Durability, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, Stores, ToolSpec, WaitLimit,
};
use brigade::sandbox::{self, Sandbox};
use brigade::stores::accounts::AccountFiles;
use brigade::stores::workspace::{FILE, OpenMode, OpenOptions, OpenStores};
use brigade::team::handle::{TeamCommand, TeamHandle};
use brigade::team::{self, StartOptions, TeamDependencies};
use brigade::tools::table::{ToolUser, tools_for};
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

/// A model's answer to a request, and its delay.
pub type TimedAnswer = (ModelResponse, Duration);

/// A model made of two closures: one answers a request, one is called when the answer is returned.
pub struct FnModel<R, A> {
    pub respond: R,
    pub on_answer: A,
}

#[async_trait]
impl<R, A> ModelClient for FnModel<R, A>
where
    R: Fn(&ModelRequest) -> TimedAnswer + Send + Sync,
    A: Fn(&str) + Send + Sync,
{
    async fn request(&self, request: ModelRequest, _: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let (response, delay) = (self.respond)(&request);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        (self.on_answer)(&request.teammate);
        Ok(response)
    }
}

/// A tool without an effect.
struct NoOp;

pub const NO_OP: &str = "nothing";

#[async_trait]
impl Tool for NoOp {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({ "type": "object" });
        ToolSpec { name: NO_OP.to_owned(), description: "Does nothing.".to_owned(), input_schema }
    }
    fn about(&self, _: &Value) -> String {
        String::new()
    }
    async fn run(&self, _: Value, _: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text("This tool has no effect."))
    }
}

/// The settings of a team.
pub struct TeamSetup<'a> {
    pub workspace: &'a Path,
    pub members: usize,
    pub durability: Durability,
    pub limits: Limits,
    pub model: Arc<dyn ModelClient>,
}

/// A running team; [`RunningTeam::stop`] ends it.
pub struct RunningTeam {
    pub workspace: OpenStores,
    pub team: TeamHandle,
}

pub fn member_name(number: usize) -> String {
    format!("m{number}")
}

impl TeamSetup<'_> {
    /// Launches the team in continuous mode.
    pub async fn launch(self) -> RunningTeam {
        self.launch_with(|stores| stores).await
    }

    /// Launches the team with the stores that `wrap` returns.
    pub async fn launch_with(self, wrap: impl FnOnce(Stores) -> Stores) -> RunningTeam {
        let clock = Arc::new(SystemClock);
        let options = OpenOptions {
            mode: OpenMode::Lead { team: "bench".to_owned() },
            durability: self.durability,
            clock: clock.clone(),
            wait_limit: WaitLimit::default(),
        };
        let workspace = FILE.open(self.workspace, options).await.unwrap();
        let stores = wrap(workspace.stores.clone());
        let model = self.model;
        let connect = move |_: &ModelSpec| Ok(Arc::clone(&model));
        let tools = |user: &ToolUser<'_>| {
            let mut tools = tools_for(user);
            tools.push(Arc::new(NoOp) as Arc<dyn Tool>);
            tools
        };
        let dependencies = TeamDependencies {
            stores,
            clock,
            workspace: self.workspace.to_owned(),
            control_files: Arc::<[PathBuf]>::default(),
            sandbox: Sandbox::open(sandbox::own_guard().unwrap(), self.workspace, Vec::new()).unwrap(),
            accounts: Some(Arc::new(AccountFiles::in_folder(self.workspace.join("accounts")))),
            connect: Arc::new(connect),
            tool_factory: Arc::new(tools),
            repository: None,
            webhook: Arc::new(brigade::providers::webhook::HttpWebhook),
        };
        let mut spec = TeamSpec { limits: self.limits, ..TeamSpec::new("bench", ModelSpec::runbook()).unwrap() };
        for name in (1..=self.members).map(member_name) {
            spec = spec.with_member(&name, "coder", ModelSpec::new("bench", &name)).unwrap();
        }
        let start = StartOptions { mode: Some(Mode::Continuous), ..StartOptions::default() };
        let team = team::launch(spec, start, dependencies).await.unwrap();
        RunningTeam { workspace, team }
    }
}

impl RunningTeam {
    /// Returns true if all members are idle or on call.
    pub fn is_idle(&self, members: usize) -> bool {
        let teammates = self.team.live().teammates();
        teammates.len() == members && teammates.values().all(|teammate| teammate.phase == ReportedPhase::Idle)
    }

    /// Ends the team without waiting for its turns.
    pub async fn stop(mut self) {
        self.team.command(TeamCommand::Abort).await;
        self.team.wait().await.unwrap();
    }
}
