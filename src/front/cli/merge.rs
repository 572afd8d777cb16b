//! `brigade merge`.

use super::consent::{self, TrustFlag};
use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use crate::api::lead_status::LeadStatus;
use crate::api::merge::{Merged, TakeOver, TeamBranch};
use crate::api::team::choice_refusal;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::log::event::Notice;
use crate::domain::team::team_spec::TeamSpec;
use crate::front::text::command_form::shell_word;
use crate::front::text::lines::{count, one_line};
use crate::front::text::pending::team_branch as team_branch_text;

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
        let team_branch = TeamBranch::required(&team, &context.workspace)?;
        consent::confirm_merge(context, &team, self.trust)?;
        if self.taken {
            record_taken(context, &team, &team_branch).await
        } else {
            merge(context, &team, &team_branch).await
        }
    }

    async fn selected_team(&self, context: &Context) -> CliResult<TeamSpec> {
        let name = LeadStatus::with_state(&context.workspace).await?.team_name(self.team.as_ref());
        if let Some(spec) = context.workspace.location.team_if_valid(name.as_deref()) {
            return Ok(spec);
        }
        let config = context.workspace.location.config()?;
        config.select(name.as_deref())?;
        Err(choice_refusal(&context.workspace).into())
    }
}

async fn merge(context: &Context, team: &TeamSpec, team_branch: &TeamBranch) -> CliResult<CommandAnswer> {
    let branch = team.target_branch();
    let Merged { take_over, status } = team_branch.take_over(&context.workspace).await?;
    let TakeOver { into, before, after, is_taken, unsigned_commits } = take_over;
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
    let unsigned = (unsigned_commits > 0).then(|| {
        format!(
            "{} of the team without a signature (commit.gpgSign is on). One signed commit instead: `git reset --keep {} && git merge --squash {} && git commit`",
            count(unsigned_commits, "commit"),
            short_commit(&before),
            shell_word(&branch.full())
        )
    });
    let sentence = status.as_ref().and_then(team_branch_text);
    Ok(answer.notes(unsigned.into_iter().chain(sentence)))
}

/// Records that the person's branch has the team's work in another form.
async fn record_taken(context: &Context, team: &TeamSpec, team_branch: &TeamBranch) -> CliResult<CommandAnswer> {
    let notices = team_branch.record_taken(&context.workspace).await?;
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
