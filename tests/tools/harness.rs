//! A team of alice, bob and the lead in one workspace, with a context for each.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::agent::access::PathRule;
use brigade::domain::agent::permission::Permissions;
use brigade::domain::log::event::EventKind;
use brigade::domain::task::{Task, TaskId};
use brigade::domain::team::name::Name;
use brigade::domain::team::phase::ClaimRef;
use brigade::domain::team::records::RunningCommand;
use brigade::domain::team::team_spec::ToolLimits;
use brigade::ports::{Clock, StoreResult, Stores};
use brigade::process::command::CommandRegistry;
use brigade::sandbox::Sandbox;
use brigade::service::attempt_log::AttemptLog;
use brigade::service::attempt_quota::AttemptQuota;
use brigade::stores::memory;
use brigade::tools::table::all_tools;
use brigade::tools::{Caller, TeamControl, Tool, ToolContext, ToolEffect, ToolError, ToolOutput, WorkingDir};
use serde_json::Value;
use tokio::sync::{broadcast, mpsc, watch};

use crate::testkit::clock::ManualClock;
use crate::testkit::process::guard;

struct NoRecord;

#[async_trait]
impl CommandRegistry for NoRecord {
    async fn record_start(&self, _: RunningCommand) -> StoreResult<()> {
        Ok(())
    }
    async fn record_end(&self, _: RunningCommand) {}
}

struct Members(Mutex<Vec<Name>>, bool);

#[async_trait]
impl TeamControl for Members {
    async fn spawn_teammate(&self, name: &Name, role: &str, _: &str) -> Result<String, String> {
        let mut members = self.0.lock().unwrap();
        if members.contains(name) {
            return Err(format!("{name} is there already"));
        }
        members.push(name.clone());
        Ok(format!("{name} ({role}) has started"))
    }
    async fn list_teammates(&self) -> String {
        self.0.lock().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
    fn members(&self) -> Vec<Name> {
        self.0.lock().unwrap().clone()
    }
    fn lead_has_model(&self) -> bool {
        self.1
    }
    fn reviewer(&self, author: &Name, what: &str) -> String {
        let members = self.0.lock().unwrap();
        let other = members.iter().find(|member| *member != author && member.as_str() != "lead");
        other.filter(|_| what != "human").map_or("human", |member| member.as_str()).to_owned()
    }
}

pub struct Member {
    pub context: ToolContext,
    pub tools: Vec<Arc<dyn Tool>>,
    pub holding: watch::Sender<Option<ClaimRef>>,
    pub events: mpsc::UnboundedReceiver<EventKind>,
}

impl Member {
    /// Calls a tool as a turn does, and records its effect on the claim.
    pub async fn call(&self, tool: &str, input: Value) -> Result<ToolOutput, ToolError> {
        let entry = self.tools.iter().find(|known| known.spec().name == tool);
        let entry = entry.unwrap_or_else(|| panic!("no tool {tool}"));
        let output = entry.run(input, &self.context).await?;
        match &output.effect {
            ToolEffect::Claimed(claim) => drop(self.holding.send_replace(Some(*claim))),
            ToolEffect::Finished => drop(self.holding.send_replace(None)),
            _ => {}
        }
        Ok(output)
    }

    /// The text of a call that succeeds.
    pub async fn expect_text(&self, tool: &str, input: Value) -> String {
        self.call(tool, input).await.unwrap().text
    }

    /// The text of a call that is refused.
    pub async fn expect_refusal(&self, tool: &str, input: Value) -> String {
        match self.call(tool, input).await {
            Err(error @ (ToolError::Recoverable(_) | ToolError::CommandFailed(_))) => error.to_string(),
            other => panic!("{tool} was not refused: {other:?}"),
        }
    }
}

pub struct TestTools {
    pub folder: tempfile::TempDir,
    pub stores: Stores,
    pub alice: Member,
    pub bob: Member,
    pub lead: Member,
}

pub async fn harness() -> TestTools {
    harness_with(true).await
}

/// A team whose lead is a model or a runbook.
pub async fn harness_with(lead_has_model: bool) -> TestTools {
    let folder = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let names: Vec<Name> = ["alice", "bob"].map(|name| Name::new(name).unwrap()).into();
    let stores = memory::stores(Arc::clone(&clock), broadcast::channel(16).0);
    stores.mailbox.open_inboxes(&names).await.unwrap();
    let team_control: Arc<dyn TeamControl> = Arc::new(Members(Mutex::new(names), lead_has_model));
    let member = |name: &str, role: &str| member(name, role, folder.path(), &stores, &clock, &team_control);
    let (alice, bob, lead) = (member("alice", "coder"), member("bob", "tester"), member("lead", "lead"));
    TestTools { stores: stores.clone(), alice, bob, lead, folder }
}

fn member(
    name: &str,
    role: &str,
    workspace: &Path,
    stores: &Stores,
    clock: &Arc<dyn Clock>,
    team_control: &Arc<dyn TeamControl>,
) -> Member {
    let is_lead = name == "lead";
    let (holding, receiver) = watch::channel(None);
    let (sender, events) = mpsc::unbounded_channel();
    let control_files = [".tasks", ".team", "agent_state.json", "brigade.toml"];
    let rules = control_files.map(|file| PathRule::read_only(workspace.join(file))).into();
    let sandbox = Sandbox::open(guard(), workspace, rules).unwrap();
    let context = ToolContext {
        caller: Caller {
            name: Name::new(name).unwrap(),
            capabilities: vec![role.to_owned()],
            team: Name::new("my-team").unwrap(),
            is_lead,
            claim: receiver,
            todos: Arc::default(),
            attempt_log: AttemptLog::default(),
            permissions: Permissions::default(),
            attempt_quota: AttemptQuota::default(),
        },
        stores: stores.clone(),
        work_inspector: None,
        clock: Arc::clone(clock),
        working_dir: WorkingDir::new(workspace.to_owned(), control_files.map(PathBuf::from).into()),
        review: None,
        sandbox,
        registry: Arc::new(NoRecord),
        limits: ToolLimits {
            command_timeout: Duration::from_secs(30),
            command_timeout_max: Duration::from_secs(60),
            output_bytes_max: 20_000,
        },
        team_control: Arc::clone(team_control),
        events: Arc::new(move |event| drop(sender.send(event))),
    };
    Member { context, tools: all_tools(is_lead), holding, events }
}

impl TestTools {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub async fn task(&self, id: u64) -> Task {
        self.stores.board.get(TaskId(id)).await.unwrap()
    }
}
