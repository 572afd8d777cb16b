//! What a team is, once its config has been read and checked: names, members, limits. Built by the config, used by the lead.

use std::path::PathBuf;
use std::time::Duration;

use crate::domain::name::{InvalidName, LEAD, Name};
use crate::domain::spend::{Budget, Prices};
pub use crate::ports::ModelSpec;

/// The most members a team may have.
pub const MEMBERS_MAX: usize = 2_000;

/// Where a team's teammates work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Together in the workspace.
    #[default]
    None,
    /// Each task in a git worktree of its own.
    Worktree,
}

/// A team that can be launched.
#[derive(Debug, Clone, PartialEq)]
pub struct TeamSpec {
    /// Its name.
    pub name: Name,
    /// What it is to reach.
    pub goal: Option<String>,
    /// A plan file to import tasks from.
    pub plan: Option<PathBuf>,
    /// A command that exits 0 once the goal is met.
    pub done_when: Option<String>,
    /// Where its teammates work.
    pub isolation: Isolation,
    /// The branch that is merged into, where each task has a worktree; `None` for the one that is checked out.
    pub merge_into: Option<String>,
    /// Who reviews what is done before it is completed: a role, a capability, `lead`, `human`; nobody without it.
    pub review: Option<String>,
    /// The lead. Its name is always `lead`.
    pub lead: MemberSpec,
    /// The teammates, each under a name of its own.
    pub members: Vec<MemberSpec>,
    /// Bounds on everything.
    pub limits: Limits,
    /// The texts that tell members what to do.
    pub prompts: Prompts,
    /// What it may use in all.
    pub budget: Budget,
    /// What tokens cost.
    pub prices: Prices,
    /// Folders of `PATH` that commands may write although the person runs programs from there; absolute, or `~/…`.
    pub writable: Vec<PathBuf>,
}

/// The texts that tell members what to do; each can be replaced by a file of the same name in the config's `prompts/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    /// For the lead.
    pub lead: String,
    /// For every teammate.
    pub teammate: String,
    /// How a context is to be summarised.
    pub compact: String,
    /// What a cleanup session is for.
    pub cleanup: String,
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            lead: include_str!("../../prompts/lead.md").to_owned(),
            teammate: include_str!("../../prompts/teammate.md").to_owned(),
            compact: include_str!("../../prompts/compact.md").to_owned(),
            cleanup: include_str!("../../prompts/cleanup.md").to_owned(),
        }
    }
}

/// One member of a team.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberSpec {
    /// Its name.
    pub name: Name,
    /// Its role.
    pub role: String,
    /// What it can do besides; the role counts as one.
    pub capabilities: Vec<String>,
    /// Its own instructions, added to those every member has.
    pub prompt: String,
    /// Whether it works read-only until its plan for the task it holds is approved.
    pub plan_first: bool,
    /// How its model is reached.
    pub model: ModelSpec,
}

impl TeamSpec {
    /// A team of nobody yet but its lead.
    ///
    /// # Errors
    /// `name` is no name.
    pub fn new(name: &str, lead: ModelSpec) -> Result<Self, InvalidName> {
        Ok(Self {
            name: Name::new(name)?,
            goal: None,
            plan: None,
            done_when: None,
            isolation: Isolation::None,
            merge_into: None,
            review: None,
            lead: MemberSpec::new(LEAD, LEAD, lead)?,
            members: Vec::new(),
            limits: Limits::default(),
            prompts: Prompts::default(),
            budget: Budget::default(),
            prices: Prices::new(),
            writable: Vec::new(),
        })
    }

    /// The same, with one more teammate.
    ///
    /// # Errors
    /// `name` is no name.
    pub fn with_member(mut self, name: &str, role: &str, model: ModelSpec) -> Result<Self, InvalidName> {
        self.members.push(MemberSpec::new(name, role, model)?);
        Ok(self)
    }
}

impl MemberSpec {
    /// A member without capabilities besides its role, or instructions of its own.
    ///
    /// # Errors
    /// `name` is no name.
    pub fn new(name: &str, role: &str, model: ModelSpec) -> Result<Self, InvalidName> {
        let (name, role) = (Name::new(name)?, role.to_owned());
        Ok(Self { name, role, capabilities: Vec::new(), prompt: String::new(), plan_first: false, model })
    }

    /// Whether `what` is its role or one of its capabilities, whatever the case.
    #[must_use]
    pub fn can(&self, what: &str) -> bool {
        self.can_do().iter().any(|known| known.eq_ignore_ascii_case(what))
    }

    /// All it can do: its role, then its capabilities.
    #[must_use]
    pub fn can_do(&self) -> Vec<String> {
        std::iter::once(self.role.clone()).chain(self.capabilities.iter().cloned()).collect()
    }
}

/// The bounds of a team, with their defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How often an idle teammate looks at its mail and the board.
    pub poll_interval: Duration,
    /// How long it looks before it is on call.
    pub idle_timeout: Duration,
    /// Turns of one WORK phase.
    pub turns_max: u32,
    /// How long a command may run unless the call says otherwise.
    pub command_timeout: Duration,
    /// The longest a call may ask for.
    pub command_timeout_max: Duration,
    /// The most a tool's output may be, in bytes; the middle of a longer one is left out.
    pub tool_output_bytes_max: usize,
    /// How often a teammate is started again after a panic or a hang within one run.
    pub respawns_max: u32,
    /// How long a teammate may go without any progress before it counts as stalled and loses its task.
    pub stall_timeout: Duration,
    /// How often a model is asked again after temporary errors.
    pub model_retries_max: u32,
    /// How long a model's provider may send nothing while an answer is waited for.
    pub model_silence_timeout: Duration,
    /// How long one answer of a model may take in all.
    pub model_answer_timeout: Duration,
    /// The part of a model's window, less the longest answer, at which a context is compacted, in percent.
    pub compact_at_percent: u32,
    /// Tokens of context at which it is compacted at the latest, whatever the window.
    pub compact_at_tokens: u64,
    /// The longest answer of a model, in tokens.
    pub output_tokens_max: u32,
    /// How long running turns may take to finish once the team is asked to stop.
    pub stop_timeout: Duration,
    /// Bytes that must be free on the disk for new work to be taken.
    pub free_bytes_min: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            turns_max: 50,
            command_timeout: Duration::from_secs(120),
            command_timeout_max: Duration::from_secs(3600),
            tool_output_bytes_max: 50_000,
            respawns_max: 3,
            stall_timeout: Duration::from_secs(900),
            model_retries_max: 5,
            model_silence_timeout: Duration::from_secs(300),
            model_answer_timeout: Duration::from_secs(3600),
            compact_at_percent: 80,
            compact_at_tokens: 100_000_000,
            output_tokens_max: 8_000,
            stop_timeout: Duration::from_secs(60),
            free_bytes_min: 4 * 1024 * 1024,
        }
    }
}
