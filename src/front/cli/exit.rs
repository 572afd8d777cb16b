//! The exit codes and their meaning.

use std::process::ExitCode;

use crate::domain::team::run_verdict::RunVerdict;

/// The exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command succeeded.
    Done = 0,
    /// Tasks failed, stay blocked or were completed without evidence, the goal is not met, or the request was refused.
    Unfinished = 1,
    /// The command line or the config is invalid.
    Usage = 2,
    /// The budget is spent.
    BudgetSpent = 3,
    /// Another team runs in the workspace.
    AlreadyLed = 4,
    /// A model gave no answer for too long.
    ModelOutOfReach = 5,
    /// The team was stopped with work pending.
    Interrupted = 130,
}

impl Exit {
    /// All exit codes.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Unfinished,
        Self::Usage,
        Self::BudgetSpent,
        Self::AlreadyLed,
        Self::ModelOutOfReach,
        Self::Interrupted,
    ];

    /// The meaning, for the help and the table in `docs/commands.md`.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unfinished => {
                "the command was refused, tasks failed, are left or are `unverified`, `done_when` failed, or the lead asks you"
            }
            Self::Usage => "usage or config error, also a wrong server, key or model",
            Self::BudgetSpent => {
                "the budget does not cover the next request; nothing is lost; raise the budget and launch again"
            }
            Self::AlreadyLed => "another team runs in the workspace",
            Self::ModelOutOfReach => {
                "a model gave no answer for `model_outage_max_ms`; nothing is lost; run the team again later"
            }
            Self::Interrupted => "stopped with work pending",
        }
    }

    /// The list of exit codes at the end of the help.
    pub fn help() -> String {
        let rows = Self::ALL.map(|exit| format!("\n  {:<3}  {}", exit as u8, exit.meaning()));
        "Exit codes:".to_owned() + &rows.concat()
    }
}

impl From<RunVerdict> for Exit {
    fn from(verdict: RunVerdict) -> Self {
        match verdict {
            RunVerdict::Done => Self::Done,
            RunVerdict::TasksUnfinished
            | RunVerdict::WorkUnverified
            | RunVerdict::GoalNotMet
            | RunVerdict::GoalIgnored
            | RunVerdict::QuestionOpen
            | RunVerdict::SessionFailed
            | RunVerdict::LeadershipLost => Self::Unfinished,
            RunVerdict::WrongModelSetting => Self::Usage,
            RunVerdict::BudgetSpent => Self::BudgetSpent,
            RunVerdict::ModelOutOfReach => Self::ModelOutOfReach,
            RunVerdict::Interrupted => Self::Interrupted,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
