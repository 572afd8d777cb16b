//! `brigade merge`.

use std::sync::Arc;

use super::consent::{self, TrustFlag};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::pending::TeamBranch;
use super::team::team_choice_error;
use crate::api::lead_status::LeadStatus;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::log::event::Notice;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::team_spec::{Isolation, TeamSpec};
use crate::git::take_over::TakeOver;
use crate::git::{DriverOptions, GitRepository};
use crate::ports::{BoardView, RecordedMerge};
use crate::sandbox::filter::own_program_path;
use crate::stores::workspace::OpenMode;
use crate::ui::command_form::shell_word;
use crate::ui::text::{count, one_line};

/// Take over the work of a team: merge its branch into yours
///
/// It updates your branch and files as `git merge` does, in your name. It overwrites no change of yours. If git cannot merge, nothing is
/// changed. If it is killed, run it again. It runs no hooks: use `git merge BRANCH` for that. With `commit.gpgSign`,
/// it signs the merge as your git does.
#[derive(Debug, clap::Args)]
pub struct Merge {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
    /// Merge nothing: your branch has the work already, in another form. The team branch starts from your commit, and a ref keeps its own
    #[arg(long)]
    taken: bool,
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
        consent::confirm_merge(context, &team, self.trust)?;
        let sandbox = context.workspace.location.sandbox(Some(&team))?;
        let drivers = DriverOptions { program: own_program_path(), launch_sandbox: Some(sandbox) };
        if self.taken { record_taken(context, &team, drivers).await } else { merge(context, &team, drivers).await }
    }

    async fn selected_team(&self, context: &Context) -> CliResult<TeamSpec> {
        let name = LeadStatus::with_state(&context.workspace).await?.team_name(self.team.as_ref());
        if let Some(spec) = context.workspace.location.team_if_valid(name.as_deref()) {
            return Ok(spec);
        }
        let config = context.workspace.location.config()?;
        config.select(name.as_deref())?;
        Err(team_choice_error(context))
    }
}

fn recorded_merges(view: &BoardView) -> Vec<RecordedMerge> {
    RecordedMerge::of_board(view.tasks.values().map(Arc::as_ref))
}

async fn merge(context: &Context, team: &TeamSpec, drivers: DriverOptions) -> CliResult<CommandAnswer> {
    let branch = team.target_branch();
    let workspace = context.workspace.location.workspace()?;
    // Without the board, only the text about a deleted branch is shorter.
    let board = context.workspace.board(OpenMode::ReadOnly).await?;
    let recorded = board.view().await.map(|view| recorded_merges(&view)).unwrap_or_default();
    let TakeOver { into, before, after, is_taken, unsigned_commits } =
        GitRepository::take_over(&workspace, team.name.as_str(), &branch, &recorded, drivers)?;
    let data = serde_json::json!({
        "team": team.name, "branch": branch, "into": into, "before": before, "after": after, "taken": is_taken,
        "unsigned_commits": unsigned_commits,
    });
    let answer = context.output.answer(&data, || {
        let (branch, into) = (one_line(branch.short()), one_line(into.short()));
        if is_taken {
            return format!("{into} already has the work of {branch}, in another form\n");
        }
        if before == after {
            return format!("{into} already has all commits of {branch}\n");
        }
        format!("merged {branch} into {into}, which is at {} now\n", short_commit(&after))
    })?;
    // The work is merged, so a board that cannot be read is no error here.
    let view = board.view().await.ok();
    let team_branch = TeamBranch::of(team, &workspace);
    let unsigned = (unsigned_commits > 0).then(|| {
        format!(
            "{} of the team without a signature (commit.gpgSign is on). One signed commit instead: `git reset --keep {} && git merge --squash {} && git commit`",
            count(unsigned_commits, "commit"),
            short_commit(&before),
            shell_word(&branch.full())
        )
    });
    let sentence = team_branch.and_then(|team_branch| team_branch.sentence(view.as_deref()));
    Ok(answer.notes(unsigned.into_iter().chain(sentence)))
}

/// Records that the person's branch has the team's work in another form.
async fn record_taken(context: &Context, team: &TeamSpec, drivers: DriverOptions) -> CliResult<CommandAnswer> {
    LeadStatus::of(&context.workspace).await?.refuse_if_running("set the team branch aside")?;
    if team.merge_into.is_some() {
        let message = format!("cannot set aside {}: it is a branch of yours", one_line(team.target_branch().short()));
        return Err(CliError::refused(message).hint("move it with `git branch -f`, or remove merge_into"));
    }
    let workspace = context.workspace.location.workspace()?;
    // No team can start meanwhile.
    let led = context.workspace.open(OpenMode::Lead { team: team.name.to_string() }).await?;
    let view = led.stores.board.view().await?;
    let is_completed = |task: &&Arc<Task>| task.status == TaskStatus::Completed;
    let completed: Vec<TaskId> = view.tasks.values().filter(is_completed).map(|task| task.id).collect();
    let recorded = recorded_merges(&view);
    let notices = GitRepository::record_taken(&workspace, team.name.as_str(), &completed, &recorded, drivers)?;
    let texts: Vec<String> = notices
        .into_iter()
        .map(|notice| match notice {
            Notice::Info(text) | Notice::Warning(text) => one_line(&text),
        })
        .collect();
    let data = serde_json::json!({ "team": team.name, "branch": team.target_branch(), "changes": texts });
    context.output.answer(&data, || {
        if texts.is_empty() {
            return format!("your branch already has all commits of {}\n", one_line(team.target_branch().short()));
        }
        texts.iter().map(|text| format!("{text}\n")).collect()
    })
}
