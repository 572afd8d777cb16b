//! `brigade merge`.

use super::consent::{self, TrustFlag};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::pending::TeamBranch;
use super::running_team::RunningTeam;
use super::team::team_choice_error;
use crate::domain::dropped_lines::short_commit;
use crate::domain::team_spec::{Isolation, TeamSpec};
use crate::sandbox::filter::own_program_path;
use crate::stores::git::take_over::TakeOver;
use crate::stores::git::{DriverOptions, GitRepository};
use crate::stores::workspace::OpenMode;
use crate::ui::text::one_line;

/// Take over the work of a team: merge its branch into yours
///
/// It updates your branch and files as `git merge` does, in your name. It overwrites no change of yours. If git cannot merge, nothing is
/// changed. If it is killed, run it again. It runs no hooks and signs no commit: use `git merge BRANCH` for that.
#[derive(Debug, clap::Args)]
pub struct Merge {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
    #[command(flatten)]
    trust: TrustFlag,
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
        let workspace = context.location.workspace()?;
        consent::confirm_merge(context, &team, self.trust)?;
        let sandbox = context.location.sandbox(Some(&team))?;
        let drivers = DriverOptions { program: own_program_path(), launch_sandbox: Some(sandbox) };
        let TakeOver { into, before, after } =
            GitRepository::take_over(&workspace, team.name.as_str(), &branch, drivers)?;
        let data = serde_json::json!({
            "team": team.name, "branch": branch, "into": into, "before": before, "after": after,
        });
        let answer = context.output.answer(&data, || {
            let (branch, into) = (one_line(branch.short()), one_line(into.short()));
            if before == after {
                return format!("{into} already has all commits of {branch}\n");
            }
            format!("merged {branch} into {into}, which is at {} now\n", short_commit(&after))
        })?;
        // The work is merged, so a board that cannot be read is no error here.
        let board = context.board(OpenMode::ReadOnly).await?.view().await.ok();
        let team_branch = TeamBranch::of(&team, &workspace);
        Ok(answer.notes(team_branch.and_then(|team_branch| team_branch.sentence(board.as_deref()))))
    }

    async fn selected_team(&self, context: &Context) -> CliResult<TeamSpec> {
        let name = RunningTeam::with_state(context).await?.team_name(self.team.as_ref());
        if let Some(spec) = context.location.team_if_valid(name.as_deref()) {
            return Ok(spec);
        }
        let config = context.location.config()?;
        config.select(name.as_deref())?;
        Err(team_choice_error(context))
    }
}
