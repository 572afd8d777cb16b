//! `brigade merge`.

use super::consent::TrustFlag;
use super::context::Context;
use super::error::CliResult;
use super::order;
use super::output::CommandAnswer;
use crate::api::Order;
use crate::api::merge::{Merged, SetAside, TakeOver};
use crate::domain::git::dropped_lines::short_commit;
use crate::front::text::commands::{Hint, shell_word};
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
        let team = self.team;
        let order = if self.taken { Order::SetAside { team } } else { Order::Merge { team } };
        order::give_with(context, order, self.trust).await
    }
}

/// A merge as the answer.
pub(super) fn answer(context: &Context, merged: &Merged) -> CliResult<CommandAnswer> {
    let Merged { branch, take_over, status, .. } = merged;
    let TakeOver { into, before, after, is_taken, unsigned_commits } = take_over;
    let answer = context.output.answer(merged, || {
        let (branch, into) = (one_line(branch.short()), one_line(into.short()));
        if *is_taken {
            return format!("{into} already has the work of {branch}, in another form\n");
        }
        if before == after {
            return format!("{into} already has all commits of {branch}\n");
        }
        format!("merged {branch} into {into}, which is at {} now\n", short_commit(after))
    })?;
    let unsigned = (*unsigned_commits > 0).then(|| {
        format!(
            "{} of the team without a signature (commit.gpgSign is on). One signed commit instead: `git reset --keep {} && git merge --squash {} && git commit`",
            count(*unsigned_commits, "commit"),
            short_commit(before),
            shell_word(&branch.full())
        )
    });
    let sentence = status.as_ref().and_then(team_branch_text);
    Ok(answer.notes(unsigned.map(Hint::from).into_iter().chain(sentence)))
}

/// Work that was recorded as taken over, as the answer.
pub(super) fn set_aside_answer(context: &Context, set_aside: &SetAside) -> CliResult<CommandAnswer> {
    context.output.answer(set_aside, || {
        if set_aside.changes.is_empty() {
            return format!("your branch already has all commits of {}\n", one_line(set_aside.branch.short()));
        }
        set_aside.changes.iter().map(|text| format!("{text}\n")).collect()
    })
}
