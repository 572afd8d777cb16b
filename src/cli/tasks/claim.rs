//! `brigade tasks claim`.

use std::time::Duration;

use super::show::document;
use crate::cli::arguments::{acting_name, lease, task_id, word, words};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::Answer;
use crate::domain::change::{Actor, Change};
use crate::domain::name::{LEAD, Name};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::ports::{Board, Claimant, LostClaims, Workers};
use crate::stores::open::leader;
use crate::ui::tasks::{self, Look};
use crate::ui::text::{duration, one_line};

/// Claim a task, to work on it by the same rules as a teammate
///
/// Without a number it is the best that is claimable: highest priority, then lowest number. The answer says the attempt;
/// completing, failing, releasing and renewing take it, so that a claim that was lost meanwhile is noticed. The claim lives
/// by its lease: renew it, or it is taken back. Nothing claimable is no error: exit code 0, and `null` with --json.
#[derive(Debug, clap::Args)]
pub struct Claim {
    /// The task's number [default: the best that is claimable]
    #[arg(value_parser = task_id)]
    id: Option<TaskId>,
    /// Who claims it
    #[arg(long = "as", value_name = "NAME")]
    name: String,
    /// How long the claim lives unless it is renewed
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "15m")]
    lease: Duration,
    /// What NAME can do, such as coder,rust [default: as the config has it]
    #[arg(long, value_name = "WORDS", value_delimiter = ',', value_parser = word)]
    can: Vec<String>,
}

impl Claim {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let name = acting_name(&self.name)?;
        if name.is_same(LEAD) {
            return Err(CliError::usage("the lead holds no tasks").hint("claim under a name of your own"));
        }
        let board = context.board()?;
        take_back_leases(board.as_ref()).await?;
        take_back_from_the_dead(context, board.as_ref()).await?;
        let claimant = Claimant {
            capabilities: capabilities(&name, words(&self.can), context),
            worker: format!("lease:{name}"),
            lease: Some(self.lease),
            name: name.to_string(),
        };
        let claimed = match self.id {
            Some(id) => Some(board.claim(id, &claimant).await?),
            None => board.claim_next(&claimant).await?,
        };
        let Some(task) = claimed else {
            let nothing = context.output.answer(&(), String::new)?;
            return Ok(nothing.note(format!("nothing is claimable for {name}: brigade tasks, brigade why ID")));
        };
        let view = board.view().await?;
        let look = Look { view: &view, live_workers: None, approvals: &[], now: context.now() };
        let answer =
            context.output.answer(&document(&task), || tasks::card(&task, &[], &look, context.output.columns))?;
        // Who never learns the attempt could do nothing with the claim.
        if let Err(error) = context.print_whole(&answer.text) {
            let release = Change::Release { reason: String::new(), counts: false };
            let outcome = board.change(task.id, release, &Actor::holder(name.as_str(), task.attempt)).await;
            let then = match outcome {
                Ok(_) => "the task was given back".to_owned(),
                Err(error) => format!("the claim stands (attempt {}): {error}", task.attempt),
            };
            return Err(CliError::refused(format!("cannot write the output: {error}; {then}")));
        }
        Ok(Answer { text: String::new(), ..answer }.note(said(&task, &name, self.lease)))
    }
}

fn said(task: &Task, name: &Name, lease: Duration) -> String {
    let (id, attempt) = (task.id.0, task.attempt);
    format!(
        "claimed {} {} for {}; then: brigade tasks complete {id} --as {name} --attempt {attempt} (or fail, release, renew)",
        task.id,
        one_line(&task.subject),
        duration(lease)
    )
}

/// What this name can do: as it says, or as the config has it.
fn capabilities(name: &Name, said: Vec<String>, context: &Context) -> Vec<String> {
    if !said.is_empty() {
        return said;
    }
    let config = context.config_if_valid();
    let teams = config
        .iter()
        .flat_map(|config| config.team_names().into_iter().filter_map(|team| context.team_if_valid(Some(&team))));
    let mut members = teams.flat_map(|team| team.members);
    members.find(|member| member.name == *name).map(|member| member.can_do()).unwrap_or_default()
}

/// Takes back claims whose lease ran out: where no team runs, nobody else does.
async fn take_back_leases(board: &dyn Board) -> CliResult<()> {
    let lost = LostClaims { counts: true, reason: "its lease ran out".to_owned(), ..LostClaims::default() };
    board.reclaim(&lost).await?;
    Ok(())
}

/// Takes back what workers that are gone held, once their commands have ended: where no team runs, nobody else does. A claim is
/// looked at before its worker, and taken back by its attempt, so that a team that is launched meanwhile keeps its own.
async fn take_back_from_the_dead(context: &Context, board: &dyn Board) -> CliResult<()> {
    let view = board.view().await?;
    let held = view.tasks.values().filter(|task| task.status == TaskStatus::InProgress).filter_map(|task| {
        let claim = task.claim.as_ref().filter(|claim| claim.expires.is_none())?;
        Some((task.id, task.attempt, claim.worker.clone()))
    });
    let mut held: Vec<(TaskId, u32, String)> = held.collect();
    if held.is_empty() || leader(&context.workspace()?)?.is_some() {
        return Ok(());
    }
    let workers = context.workers()?;
    let mut live = workers.survey().await?.live;
    let unknown = held.iter().map(|(_, _, worker)| worker).filter(|worker| !live.contains(*worker)).cloned();
    live.extend(workers.unrecorded(unknown.collect()).await?);
    held.retain(|(_, _, worker)| !live.contains(worker));
    if !held.is_empty() {
        let claims = held.into_iter().map(|(id, attempt, _)| (id, attempt)).collect();
        let reason = "the team ended before it was done".to_owned();
        board.reclaim(&LostClaims { claims, reason, ..LostClaims::default() }).await?;
    }
    Ok(())
}
