//! A checked team: names, members, models, limits. The config builds it, the lead uses it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::budget::{Budget, Prices};
use super::budget_spent::limit_of_member;
pub use super::model_spec::{ApiKind, ModelSpec};
use super::name::{InvalidName, LEAD, Name};
use crate::domain::agent::permission::{PermissionMode, Permissions};
use crate::domain::git::branch_name::BranchName;
use crate::domain::git::worktree_name::team_branch;
use crate::domain::task::Task;
use crate::domain::task::claim_queue::TaskScope;
use crate::domain::text::words::words;

/// The most members a team may have.
pub const MEMBERS_MAX: usize = 2_000;

words! {
    /// The place where teammates work.
    #[derive(Default)]
    pub enum Isolation {
        /// All in the workspace.
        #[default]
        None = "none",
        /// Each task in a separate git worktree.
        Worktree = "worktree",
    }

    /// The time for which a teammate remembers its work.
    #[derive(Default)]
    pub enum Memory {
        /// All tasks are in one context, until it is compacted. Only a failed attempt starts a new one.
        #[default]
        Session = "session",
        /// Each task starts a new context.
        Task = "task",
    }

    /// The reaction of a team to a used up quota of a provider.
    #[derive(Default)]
    pub enum OnQuota {
        /// The members of the account wait for the end of the quota window.
        #[default]
        Wait = "wait",
        /// The team is paused until a person continues it.
        Pause = "pause",
    }
}

/// The set-up of a worktree before work starts in it, with [`Isolation::Worktree`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetupSpec {
    /// A shell command that runs in each new worktree.
    pub command: Option<String>,
    /// The files that each worktree gets from the workspace, as paths relative to both.
    pub copy: Vec<PathBuf>,
    /// True if the submodules are filled in.
    pub submodules: bool,
}

/// The targets of notifications for the person.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NotifySpec {
    /// A shell command.
    pub command: Option<String>,
    /// An address that gets JSON by HTTP.
    pub url: Option<String>,
}

impl NotifySpec {
    /// Returns true if there is a target.
    pub fn is_set(&self) -> bool {
        self.command.is_some() || self.url.is_some()
    }
}

/// A team that can be launched.
#[derive(Debug, Clone, PartialEq)]
pub struct TeamSpec {
    /// Its name.
    pub name: Name,
    /// The goal.
    pub goal: Option<String>,
    /// The plan files to import tasks from.
    pub plans: Vec<PathBuf>,
    /// A shell command that exits 0 once the goal is met.
    pub done_when: Option<String>,
    /// The place where teammates work.
    pub isolation: Isolation,
    /// The branch that receives merges, with [`Isolation::Worktree`]. `None`: `brigade/<team>`.
    pub merge_into: Option<BranchName>,
    /// The set-up of worktrees.
    pub setup: SetupSpec,
    /// Patterns of ignored files that a completed task moves into the workspace, with [`Isolation::Worktree`]; see
    /// [`crate::domain::agent::path_pattern`].
    pub keep: Vec<String>,
    /// The time for which teammates remember their work.
    pub memory: Memory,
    /// The reaction to a used up quota.
    pub on_quota: OnQuota,
    /// The reviewer of work before its completion: a role, a capability, `lead` or `human`. `None`: no review.
    pub review: Option<String>,
    /// True if members have the tool `ask`.
    pub ask: bool,
    /// The lead. Its name is always `lead`.
    pub lead: MemberSpec,
    /// The teammates, with unique names.
    pub members: Vec<MemberSpec>,
    /// The limits.
    pub limits: Limits,
    /// The instructions for members.
    pub prompts: Prompts,
    /// The most that the team may use in all its runs.
    pub budget: Budget,
    /// The prices of models.
    pub prices: Prices,
    /// The targets of notifications.
    pub notify: NotifySpec,
    /// Folders in `PATH` that commands may write, although the person runs programs from them; absolute, or `~/…`.
    pub writable: Vec<PathBuf>,
    /// The folder that gets the requests and answers of models.
    pub record: Option<PathBuf>,
}

impl TeamSpec {
    /// Returns the branch that receives verified merges, with [`Isolation::Worktree`].
    pub fn target_branch(&self) -> BranchName {
        self.merge_into.clone().unwrap_or_else(|| team_branch(self.name.as_str()))
    }

    /// Returns true if a member runs the code blocks of its tasks.
    pub fn runs_blocks(&self) -> bool {
        self.members.iter().any(|member| !member.has_model())
    }
}

/// The instructions for members. A file of the same name in the config's `prompts/` replaces each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    /// The lead's instructions.
    pub lead: String,
    /// The instructions of every teammate.
    pub teammate: String,
    /// The instructions of teammates whose agent is an external program.
    pub external: String,
    /// The instruction to summarise a context.
    pub compact: String,
    /// The goal of a cleanup session.
    pub cleanup: String,
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            lead: include_str!("../../../prompts/lead.md").to_owned(),
            teammate: include_str!("../../../prompts/teammate.md").to_owned(),
            external: include_str!("../../../prompts/external.md").to_owned(),
            compact: include_str!("../../../prompts/compact.md").to_owned(),
            cleanup: include_str!("../../../prompts/cleanup.md").to_owned(),
        }
    }
}

/// The kind of agent that does a member's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentKind {
    /// Brigade's own loop with a model.
    #[default]
    Builtin,
    /// No model: the `sh` blocks of each task run in order. As the lead it plans, decides and reports by fixed rules.
    Runbook,
    /// An external program, with its own loop. It can only work in worktrees of its own.
    Program,
}

impl AgentKind {
    /// Returns true if a language model decides.
    pub fn has_model(self) -> bool {
        self != Self::Runbook
    }

    /// Returns true for an external program.
    pub fn is_program(self) -> bool {
        self == Self::Program
    }
}

/// One member of a team.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberSpec {
    /// Its name.
    pub name: Name,
    /// Its role.
    pub role: String,
    /// Its capabilities, apart from its role, which is one too.
    pub capabilities: Vec<String>,
    /// Its own instructions, added to the common ones.
    pub prompt: String,
    /// True if it may write only after its plan for the current task was approved.
    pub plan_first: bool,
    /// The time for which it remembers its work. `None`: as the team says.
    pub memory: Option<Memory>,
    /// The rules about its calls of tools.
    pub permissions: Permissions,
    /// Its model.
    pub model: ModelSpec,
    /// The most that it may use in all its runs, of the team's budget.
    pub budget: Budget,
    /// True if the lead spawned it. The config has no such member.
    pub is_spawned: bool,
}

impl TeamSpec {
    /// Creates a team of only a lead.
    ///
    /// # Errors
    /// `name` is not a valid name.
    pub fn new(name: &str, lead: ModelSpec) -> Result<Self, InvalidName> {
        Ok(Self {
            name: Name::new(name)?,
            goal: None,
            plans: Vec::new(),
            done_when: None,
            isolation: Isolation::None,
            merge_into: None,
            setup: SetupSpec::default(),
            keep: Vec::new(),
            memory: Memory::Session,
            on_quota: OnQuota::Wait,
            review: None,
            ask: false,
            lead: MemberSpec::new(LEAD, LEAD, lead)?,
            members: Vec::new(),
            limits: Limits::default(),
            prompts: Prompts::default(),
            budget: Budget::default(),
            prices: Prices::new(),
            notify: NotifySpec::default(),
            writable: Vec::new(),
            record: None,
        })
    }

    /// Adds a teammate.
    ///
    /// # Errors
    /// `name` is not a valid name.
    pub fn with_member(mut self, name: &str, role: &str, model: ModelSpec) -> Result<Self, InvalidName> {
        self.members.push(MemberSpec::new(name, role, model)?);
        Ok(self)
    }

    /// Returns true if the team has this limit, as the note of a spent budget names it: of its own budget, or of a member's.
    pub fn has_budget_limit(&self, limit: &str) -> bool {
        let has_limit = |member: &MemberSpec| {
            member.budget.limits().any(|own| limit_of_member(&own.to_string(), member.name.as_str()) == limit)
        };
        self.budget.limits().any(|own| own.to_string() == limit)
            || std::iter::once(&self.lead).chain(&self.members).any(has_limit)
    }

    /// Returns the tasks that a member can do. A member that may change nothing leaves tasks that do not name it to members that may,
    /// if there are any.
    #[must_use]
    pub fn task_scope(&self, member: &MemberSpec) -> TaskScope {
        let is_read_only = |member: &MemberSpec| member.permissions.mode == PermissionMode::Plan;
        if !member.has_model() {
            TaskScope::WithScript
        } else if is_read_only(member) && !self.members.iter().all(is_read_only) {
            TaskScope::Named
        } else {
            TaskScope::All
        }
    }
}

impl MemberSpec {
    /// Creates a member without capabilities other than its role, and without own instructions.
    ///
    /// # Errors
    /// `name` is not a valid name.
    pub fn new(name: &str, role: &str, model: ModelSpec) -> Result<Self, InvalidName> {
        Ok(Self {
            name: Name::new(name)?,
            role: role.to_owned(),
            capabilities: Vec::new(),
            prompt: String::new(),
            plan_first: false,
            memory: None,
            permissions: Permissions::default(),
            model,
            budget: Budget::default(),
            is_spawned: false,
        })
    }

    /// Returns true if a language model decides its steps.
    pub fn has_model(&self) -> bool {
        self.model.agent.has_model()
    }

    /// Returns true if `what` is its role or one of its capabilities, in any case.
    pub fn can(&self, what: &str) -> bool {
        self.capabilities().iter().any(|known| known.eq_ignore_ascii_case(what))
    }

    /// Returns its role, followed by its capabilities.
    pub fn capabilities(&self) -> Vec<String> {
        std::iter::once(self.role.clone()).chain(self.capabilities.iter().cloned()).collect()
    }
}

/// The limits of a team, with their defaults. In JSON they have the keys of the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The time between two polls of an idle teammate, and of the lead.
    #[serde(rename = "poll_interval_ms", with = "milliseconds")]
    pub poll_interval: Duration,
    /// The time that an idle teammate polls before it is on call.
    #[serde(rename = "idle_timeout_ms", with = "milliseconds")]
    pub idle_timeout: Duration,
    /// The time after which an idle teammate ends, until mail or a claimable task needs it. 0: it does not end.
    #[serde(rename = "idle_shutdown_ms", with = "milliseconds")]
    pub idle_shutdown: Duration,
    /// The turns of one WORK phase.
    pub turns_max: u32,
    /// The tokens of all attempts of a task without a cap of its own. 0: no cap.
    pub task_tokens_max: u64,
    /// The limits of commands and of tool output.
    #[serde(flatten)]
    pub tools: ToolLimits,
    /// The time limit of the setup command of a worktree.
    #[serde(rename = "setup_timeout_ms", with = "milliseconds")]
    pub setup_timeout: Duration,
    /// The number of restarts of a teammate in one run, after a panic or a stall.
    pub respawns_max: u32,
    /// The time without progress after which a teammate counts as stalled and loses its task.
    #[serde(rename = "stall_timeout_ms", with = "milliseconds")]
    pub stall_timeout: Duration,
    /// The limits of model requests.
    #[serde(flatten)]
    pub model: ModelLimits,
    /// The time for which a call waits for the person's permission. Zero: the person is not asked, and the call is refused.
    #[serde(rename = "permission_timeout_ms", with = "milliseconds")]
    pub permission_timeout: Duration,
    /// The time that running turns have to finish after a stop request.
    #[serde(rename = "stop_timeout_ms", with = "milliseconds")]
    pub stop_timeout: Duration,
    /// The bytes that must be free on the disk before new tasks are claimed.
    pub free_bytes_min: u64,
}

/// The limits of commands and of tool output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLimits {
    /// The time limit of a command whose call sets none.
    #[serde(rename = "command_timeout_ms", with = "milliseconds")]
    pub command_timeout: Duration,
    /// The longest time limit that a call may set.
    #[serde(rename = "command_timeout_max_ms", with = "milliseconds")]
    pub command_timeout_max: Duration,
    /// The size limit of a tool's output, in bytes. The middle of a longer output is left out.
    #[serde(rename = "tool_output_bytes_max")]
    pub output_bytes_max: usize,
}

/// The limits of model requests and of contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLimits {
    /// The number of retries of a request after temporary errors.
    #[serde(rename = "model_retries_max")]
    pub retries_max: u32,
    /// The time without an answer of its model after which a member no longer keeps a run going. Zero: it does so forever.
    #[serde(rename = "model_outage_max_ms", with = "milliseconds")]
    pub outage_max: Duration,
    /// The time that a provider may send nothing during an answer.
    #[serde(rename = "model_silence_timeout_ms", with = "milliseconds")]
    pub silence_timeout: Duration,
    /// The time limit of one answer.
    #[serde(rename = "model_answer_timeout_ms", with = "milliseconds")]
    pub answer_timeout: Duration,
    /// The part of the model's window, without the longest answer, at which a context is compacted; in percent.
    pub compact_at_percent: u32,
    /// The size of a context, in tokens, at which it is compacted even if the window is larger.
    pub compact_at_tokens: u64,
    /// The length limit of an answer, in tokens.
    pub output_tokens_max: u32,
}

/// A duration as a number of milliseconds.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

impl Limits {
    /// Returns the most tokens of all attempts of a task: its own cap, or that of the team.
    pub fn tokens_max_of(&self, task: &Task) -> Option<u64> {
        task.tokens_max.or(if self.task_tokens_max > 0 { Some(self.task_tokens_max) } else { None })
    }
}

impl ModelLimits {
    /// Returns [`Self::outage_max`]; `None` if there is no limit.
    pub fn outage_limit(&self) -> Option<Duration> {
        if self.outage_max.is_zero() { None } else { Some(self.outage_max) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            idle_shutdown: Duration::ZERO,
            turns_max: 50,
            task_tokens_max: 0,
            tools: ToolLimits::default(),
            setup_timeout: Duration::from_secs(600),
            respawns_max: 3,
            stall_timeout: Duration::from_secs(900),
            model: ModelLimits::default(),
            permission_timeout: Duration::from_secs(600),
            stop_timeout: Duration::from_secs(60),
            free_bytes_min: 4 * 1024 * 1024,
        }
    }
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            command_timeout: Duration::from_secs(120),
            command_timeout_max: Duration::from_secs(3600),
            output_bytes_max: 50_000,
        }
    }
}

impl Default for ModelLimits {
    fn default() -> Self {
        Self {
            retries_max: 5,
            outage_max: Duration::from_secs(600),
            silence_timeout: Duration::from_secs(300),
            answer_timeout: Duration::from_secs(3600),
            compact_at_percent: 80,
            compact_at_tokens: 100_000_000,
            output_tokens_max: 8_000,
        }
    }
}
