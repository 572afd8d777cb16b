//! `brigade why`.

use super::arguments::task_id;
use super::context::Context;
use super::error::CliResult;
use super::exit::Exit;
use super::output::CommandAnswer;
use super::task_context;
use super::team::starts_at_next_launch;
use crate::api::cost::spent_budget;
use crate::api::lead_status::LeadStatus;
use crate::api::members::candidates;
use crate::api::task::{ClaimCandidate, Presence, TaskContext, TeamCondition};
use crate::api::why::explain;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::team::waiting_for::WaitingFor;
use crate::git::GitRepository;
use crate::ports::StoreError;
use crate::stores::workspace::OpenMode;
use crate::ui::style::{BOLD, DIM, paint};
use crate::ui::text::{cut, one_line, wrap};
use crate::ui::why::{ReasonText, render};

/// Explain the state of a task, and what to do about it
///
/// For a task that waits or failed, it names the causes. For a completed task, it names the evidence and the commit.
#[derive(Debug, clap::Args)]
pub struct Why {
    /// The number of the task
    #[arg(value_parser = task_id)]
    id: TaskId,
}

impl Why {
    /// Explains the task.
    ///
    /// # Errors
    /// There is no workspace, or it cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let stores = context.workspace.stores(OpenMode::ReadOnly).await?;
        let view = stores.board.view().await?;
        let lead_status = LeadStatus::with_state(&context.workspace).await?;
        let team = lead_status.spec(&context.workspace.location);
        let task_context = TaskContext {
            candidates: current_members(team.as_ref(), &lead_status),
            quarantined_tasks: stores.board.quarantined_tasks().await?,
            team: TeamCondition {
                lead_health: lead_status
                    .lead
                    .as_ref()
                    .and_then(|lead| Some((lead.health(context.workspace.now())?, lead.pid))),
                running: lead_status.team.clone(),
                desired: lead_status.desired(),
                spent_budget: match (&team, &lead_status.state) {
                    (Some(team), Some(state)) => spent_budget(&stores, team, state).await?,
                    _ => None,
                },
                disk_shortage: context.workspace.location.low_disk_reason(team.as_ref()),
            },
            dropped: dropped_line_reasons(context, view.task(self.id)),
            is_worktree_removed: is_worktree_removed(context, view.task(self.id))?,
            ..task_context::load(context, &view).await?
        };
        if !view.tasks.contains_key(&self.id)
            && !view.is_invalid(self.id)
            && !task_context.quarantined_tasks.contains_key(&self.id)
        {
            return Err(StoreError::NoTask(self.id.into()).into());
        }
        let mut reasons = render(self.id, &explain(self.id, &task_context), task_context.now);
        for hint in reasons.iter_mut().filter_map(|reason| reason.hint.as_mut()) {
            *hint = context.hint(hint);
        }
        let subject = view.tasks.get(&self.id).map(|task| task.subject.clone()).unwrap_or_default();
        let data = serde_json::json!({ "task": self.id, "subject": subject, "reasons": reasons });
        let answer = context.output.answer(&data, || text(self.id, &subject, &reasons, context.output.columns))?;
        let is_there = view.tasks.contains_key(&self.id) || view.is_invalid(self.id);
        Ok(if is_there { answer } else { answer.exit(Exit::Unfinished) })
    }
}

/// The reasons for removed lines in the merge of a completed task. They are extra information: an error only means that there are none.
fn dropped_line_reasons(context: &Context, task: Option<&Task>) -> Vec<String> {
    let commit = task.and_then(|task| task.result.as_ref()).and_then(|result| result.commit.as_deref());
    let (Some(commit), Ok(workspace)) = (commit, context.workspace.location.workspace()) else { return Vec::new() };
    GitRepository::dropped_line_reasons(&workspace, commit).unwrap_or_default()
}

/// The members as they are now: in a running team, without those that stopped or are new in the config, and with those that its lead
/// added.
fn current_members(team: Option<&TeamSpec>, lead_status: &LeadStatus) -> Vec<ClaimCandidate> {
    let mut candidates = team.map(candidates).unwrap_or_default();
    let (Some(name), Some(state)) = (&lead_status.team, &lead_status.state) else { return candidates };
    let reports = state.teammates_of(name);
    for candidate in &mut candidates {
        if starts_at_next_launch(team, &reports, &candidate.name) {
            candidate.presence = Presence::NextLaunch;
        }
    }
    for (name, report) in reports {
        let is_there = !report.is_gone();
        let waits_for = report.waiting_for.clone().filter(|what| *what != WaitingFor::MailOrTask);
        match candidates.iter_mut().find(|candidate| candidate.name == name) {
            Some(candidate) => {
                candidate.presence = if is_there { Presence::Here } else { Presence::Stopped };
                candidate.waits_for = waits_for;
            }
            None if is_there => {
                candidates.push(ClaimCandidate { waits_for, ..ClaimCandidate::of(name, vec![report.role.clone()]) });
            }
            None => {}
        }
    }
    candidates
}

fn text(id: TaskId, subject: &str, reasons: &[ReasonText], columns: usize) -> String {
    let title = cut(&format!("{id} {}", one_line(subject)), columns);
    let mut out = format!("{}\n", paint(BOLD, title.trim_end()));
    for reason in reasons {
        out.push_str(&format!("{}\n", wrap(&format!("- {}", reason.text), columns, 2).trim_end()));
        for hint in reason.hint.iter().flat_map(|hint| hint.lines()) {
            out.push_str(&format!("  {}\n", paint(DIM, &wrap(&format!("→ {hint}"), columns.saturating_sub(2), 4))));
        }
    }
    out
}

/// Returns true if the folder of the task's worktree does not exist any more.
fn is_worktree_removed(context: &Context, task: Option<&Task>) -> CliResult<bool> {
    let Some(folder) = task.and_then(|task| task.worktree.as_deref()) else { return Ok(false) };
    Ok(context.workspace.location.workspace()?.join(folder).symlink_metadata().is_err())
}
