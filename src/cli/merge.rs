//! `brigade merge`.

use serde::Serialize;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::team::team_choice_error;
use crate::domain::dropped_lines::short_commit;
use crate::domain::state::SharedState;
use crate::domain::team_spec::{Isolation, TeamSpec};
use crate::stores::git::GitRepository;
use crate::stores::git::take_over::TakeOver;
use crate::ui::text::one_line;

/// Take over the work of a team: merge its branch into yours
///
/// It runs `git merge` for the team branch in your checkout, with your settings and hooks. If git cannot merge, nothing is changed.
#[derive(Debug, clap::Args)]
pub struct Merge {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
}

/// The result of the merge.
#[derive(Debug, Serialize)]
struct MergeView {
    team: String,
    branch: String,
    into: String,
    before: String,
    after: String,
}

impl Merge {
    /// Merges the team branch.
    ///
    /// # Errors
    /// The team has no branch, or git cannot merge it.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let team = self.selected_team(context).await?;
        if team.isolation != Isolation::Worktree {
            let message =
                format!("cannot merge: team {} has no branch, because it works in the workspace itself", team.name);
            return Err(CliError::refused(message).hint("isolation = \"worktree\" gives a team its own branch"));
        }
        let branch = team.target_branch();
        let TakeOver { into, before, after } = GitRepository::take_over(&context.workspace()?, &branch)?;
        let view = MergeView { team: team.name.to_string(), branch, into, before, after };
        context.output.answer(&view, || {
            let (branch, into) = (one_line(&view.branch), one_line(&view.into));
            if view.before == view.after {
                return format!("{into} already has all commits of {branch}\n");
            }
            format!("merged {branch} into {into}, which is at {} now\n", short_commit(&view.after))
        })
    }

    async fn selected_team(&self, context: &Context) -> CliResult<TeamSpec> {
        let running_team = context.running_team_with_state().await?;
        let last = running_team.state.as_ref().and_then(SharedState::team);
        let name = self.team.clone().or(running_team.team).or(last);
        if let Some(spec) = context.team_if_valid(name.as_deref()) {
            return Ok(spec);
        }
        let config = context.config()?;
        config.select(name.as_deref())?;
        Err(team_choice_error(context))
    }
}
