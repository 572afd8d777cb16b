//! The completion of a task by a person or a program, outside of a team.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::change::refusal;
use crate::api::lead_status::LeadStatus;
use crate::api::next::{Digest, OrderForm};
use crate::api::question::Question;
use crate::api::workspace::Workspace;
use crate::api::{ApiResult, Refusal, members};
use crate::domain::git::worktree_name::{WorktreeName, team_folder};
use crate::domain::task::transition::{Action, Actor, ActorKind, permit};
use crate::domain::task::{Task, TaskId, failure_summary};
use crate::domain::team::approval::RequestKind;
use crate::domain::team::name::HUMAN;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::records::RunningCommand;
use crate::domain::team::state::TeammateReport;
use crate::domain::team::team_spec::{Isolation, TeamSpec, ToolLimits};
use crate::domain::text::{one_line, shell_word};
use crate::embed::SystemClock;
use crate::git::DriverOptions;
use crate::git::inspection::GitWorkInspector;
use crate::ports::{StoreError, StoreResult, Stores, UnmergedWork, WorkInspector};
use crate::process::command::{CommandContext, CommandRegistry};
use crate::service::ServiceError;
use crate::service::completion::{Completion, CompletionGate, Incomplete, TaskReport, WorkPlace};
use crate::service::review::{ReviewCandidate, choose_reviewer};
use crate::service::verify::Verifier;
use crate::stores::workspace::OpenMode;

/// Completes a task if the completion gate allows it: its verify command exits 0, its work is merged and approved. The front end agrees to
/// the command in `confirm` before it runs. A crash before the end leaves the task as it was.
///
/// # Errors
/// The board refuses it, `confirm` does not agree, or the repository, a store or the sandbox fails.
pub async fn complete<E: From<Refusal>>(
    workspace: &Workspace,
    id: TaskId,
    report: TaskReport,
    by: &Actor,
    confirm: impl FnOnce(&Task, &str) -> Result<(), E>,
) -> Result<Completion, E> {
    let refusal = |error: StoreError| refusal(error, by);
    let stores = workspace.stores(OpenMode::Write).await?;
    let task = stores.board.get(id).await.map_err(refusal)?;
    // This check comes before any question, so that a refusal comes at once.
    permit(&task, Action::Complete, by).map_err(|error| refusal(error.into()))?;
    // With --force a person takes responsibility for work that is not merged or not reviewed.
    let is_override = by.kind == ActorKind::Person && by.force;
    let team = if is_override { None } else { workspace.location.team_if_valid(None) };
    let inspector = match &team {
        Some(team) if team.isolation == Isolation::Worktree => Some(work_inspector(workspace, team)?),
        _ => None,
    };
    let inspector = inspector.as_ref().map(|inspector| inspector as &dyn WorkInspector);
    let place = WorkPlace::find(&task, by, None, inspector).await.map_err(Refusal::from)?;
    if let Some(command) = &task.verify {
        confirm(&task, command)?;
    }
    let reviewer = match &team {
        Some(team) => reviewer(workspace, &stores, team, by).await?,
        None => None,
    };
    let gate = CompletionGate {
        stores: &stores,
        clock: &SystemClock,
        by: by.clone(),
        verifier: verifier(workspace, &task, &by.name)?,
        place,
        reviewer,
        refusals: None,
    };
    let completion = gate.complete(id, report).await.map_err(|error| match error {
        ServiceError::Store(error) => refusal(error),
        error => Refusal::refused(format!("cannot complete {id}: {error}")),
    })?;
    Ok(completion)
}

/// Keeps no record of running commands: the guard ends the command together with this process.
struct NoRegistry;

#[async_trait]
impl CommandRegistry for NoRegistry {
    async fn record_start(&self, _: RunningCommand) -> StoreResult<()> {
        Ok(())
    }

    async fn record_end(&self, _: RunningCommand) {}
}

/// Returns the runner of this task's verify command.
fn verifier(workspace: &Workspace, task: &Task, by: &str) -> ApiResult<Verifier> {
    let team = workspace.location.team_if_valid(None);
    let limits = team.as_ref().map_or_else(ToolLimits::default, |team| team.limits.tools);
    let claim = watch::Sender::new(Some(ClaimRef::of(task)));
    let command_context = CommandContext {
        working_dir: workspace.folder()?,
        sandbox: workspace.location.sandbox(team.as_ref())?,
        rules: Vec::new(),
        registry: Arc::new(NoRegistry),
        output_bytes_max: limits.output_bytes_max,
        team: team.map(|team| team.name.to_string()).unwrap_or_default(),
        teammate: by.to_owned(),
        claim: claim.subscribe(),
        confined_only_reason: None,
        variables: Vec::new(),
    };
    Ok(Verifier { context: command_context, timeout: limits.command_timeout, events: Arc::new(|_| {}) })
}

/// Returns what finds unmerged work of this team's tasks.
fn work_inspector(workspace: &Workspace, team: &TeamSpec) -> ApiResult<GitWorkInspector> {
    Ok(GitWorkInspector {
        workspace: workspace.folder()?,
        team: team.name.to_string(),
        target: team.target_branch(),
        drivers: DriverOptions::of_launch(workspace.location.sandbox(Some(team))?),
    })
}

/// Returns the reviewer of the work, if the team reviews its tasks: a fit member of the running team, or else a person.
async fn reviewer(workspace: &Workspace, stores: &Stores, team: &TeamSpec, by: &Actor) -> ApiResult<Option<String>> {
    let Some(required) = &team.review else { return Ok(None) };
    members::open_inboxes(workspace, stores).await?;
    let running = LeadStatus::with_state(workspace).await?;
    let (Some(state), Some(_)) = (running.state, running.lead) else {
        // Without a running team no member answers, so a person does.
        return Ok(Some(HUMAN.to_owned()));
    };
    let reports = state.teammates();
    let capabilities: Vec<Vec<String>> = reports.iter().map(|(name, report)| reviews_as(team, name, report)).collect();
    let members = reports.iter().zip(&capabilities).map(|((name, report), capabilities)| ReviewCandidate {
        name,
        capabilities,
        report: Some(report.as_ref()),
    });
    Ok(Some(choose_reviewer(required, &by.name, members, team.lead.has_model())))
}

/// Returns the capabilities by which a member can review.
fn reviews_as(team: &TeamSpec, name: &str, report: &TeammateReport) -> Vec<String> {
    match team.members.iter().find(|member| member.name.is_same(name)) {
        Some(member) if member.has_model() => member.capabilities(),
        Some(_) => Vec::new(),
        // The lead spawned it, so it has the lead's model.
        None => vec![report.role.clone()],
    }
}

/// The refusal of a task that is not completed.
pub fn incomplete(id: TaskId, incomplete: Incomplete) -> Refusal {
    match incomplete {
        Incomplete::ReviewPending { id: review, to, rejection } => {
            let (review, to) = (one_line(&review), one_line(&to));
            let mut message = format!("cannot complete {id} yet: it waits for review {review} by {to}");
            if let Some(feedback) = rejection {
                message.push_str(&format!("; an earlier review rejected it: {}", one_line(&feedback)));
            }
            let approve = OrderForm::Approve { kind: RequestKind::Review, id: review, digest: Digest::NotNeeded };
            Refusal::refused(message).steps([approve.into(), "then complete the task again".into()])
        }
        Incomplete::ReviewRejected { feedback } => {
            let message = format!("cannot complete {id}: the review rejected it: {}", one_line(&feedback));
            Refusal::refused(message).steps([
                OrderForm::Release { tasks: vec![id], force: false }.into(),
                OrderForm::Fail { task: id }.into(),
            ])
        }
        Incomplete::Refused { refusal, .. } => {
            let evidence = failure_summary::stored_text(&refusal.evidence);
            let message = format!("cannot complete {id}: {}\n{evidence}", refusal.sentence);
            Refusal::refused(message.trim_end().to_owned())
                .next("correct the work and complete the task again, or release or fail it")
        }
        Incomplete::NotMerged(work) => {
            let otherwise = "or release it for a teammate";
            let hint = match (&work.uncommitted_in, merge_command(&work)) {
                (Some(folder), _) => format!("commit it in {folder} and merge it, {otherwise}"),
                (None, Some(merge)) => format!("`{merge}`, then complete the task again, {otherwise}"),
                (None, None) => "release it for a teammate".to_owned(),
            };
            Refusal::refused(format!("cannot complete {id}: {work}")).steps([hint.into(), OrderForm::WithForce.into()])
        }
        Incomplete::AttemptFailed { reason } => {
            let message = format!("cannot complete {id}: {}; this attempt has failed", one_line(&reason));
            Refusal::refused(message).next(Question::Why { task: Some(id) })
        }
    }
}

/// The command that merges the work of a task in the team worktree, which is a clone of its own.
fn merge_command(work: &UnmergedWork) -> Option<String> {
    let (team, from, name) = match (work.branches.first(), &work.commits_in) {
        (Some(branch), _) => (WorktreeName::of_branch(branch)?.team, "../..".to_owned(), branch.full()),
        (None, Some(folder)) => (WorktreeName::of_folder(folder)?.team, format!("../../{folder}"), "HEAD".to_owned()),
        (None, None) => return None,
    };
    let [folder, from, name] = [team_folder(&team), from, name].map(|word| shell_word(&word));
    Some(format!("git -C {folder} pull --no-rebase {from} {name}"))
}
