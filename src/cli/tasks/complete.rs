//! `brigade tasks complete`.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::change::{change_text, holder_or_person, refusal};
use super::show::document;
use crate::api::lead_status::LeadStatus;
use crate::api::members;
use crate::cli::arguments::{ActingAs, task_id};
use crate::cli::consent;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::CommandAnswer;
use crate::domain::git::worktree_name::{WorktreeName, team_folder};
use crate::domain::task::failure_summary;
use crate::domain::task::transition::{Action, Actor, ActorKind, permit};
use crate::domain::task::{Task, TaskId};
use crate::domain::team::name::HUMAN;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::records::RunningCommand;
use crate::domain::team::state::TeammateReport;
use crate::domain::team::team_spec::{Isolation, TeamSpec, ToolLimits};
use crate::embed::SystemClock;
use crate::git::DriverOptions;
use crate::git::inspection::GitWorkInspector;
use crate::ports::{StoreResult, Stores, UnmergedWork, WorkInspector};
use crate::process::command::{CommandContext, CommandRegistry};
use crate::sandbox::filter::own_program_path;
use crate::service::ServiceError;
use crate::service::completion::{Completion, CompletionGate, Incomplete, TaskReport, WorkPlace};
use crate::service::review::{ReviewCandidate, choose_reviewer};
use crate::service::verify::Verifier;
use crate::stores::workspace::OpenMode;
use crate::ui::command_form::shell_word;
use crate::ui::text::one_line;

/// Complete a task
///
/// If the task has a `verify` command, it runs first. Unless it exits 0, nothing changes.
#[derive(Debug, clap::Args)]
pub struct Complete {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    #[command(flatten)]
    by: ActingAs,
    /// A summary of the work
    #[arg(long, alias = "result", value_name = "TEXT", default_value = "", hide_default_value = true)]
    summary: String,
    /// The evidence: a commit, or a command and its exit status
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    evidence: String,
}

impl Complete {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = holder_or_person(context, &self.by, Action::Complete, self.id).await?;
        let report = TaskReport { summary: self.summary, evidence: self.evidence, ..TaskReport::default() };
        complete(context, self.id, report, &by).await
    }
}

/// Completes a task if the completion gate allows it.
pub(in crate::cli) async fn complete(
    context: &Context,
    id: TaskId,
    report: TaskReport,
    by: &Actor,
) -> CliResult<CommandAnswer> {
    let task = context.workspace.board(OpenMode::Write).await?.get(id).await?;
    // This check comes before any question, so that a refusal comes at once.
    permit(&task, Action::Complete, by).map_err(|error| refusal(error.into(), by))?;
    // With --force a person takes responsibility for work that is not merged or not reviewed.
    let is_override = by.kind == ActorKind::Person && by.force;
    let team = if is_override { None } else { context.workspace.location.team_if_valid(None) };
    let inspector = match &team {
        Some(team) if team.isolation == Isolation::Worktree => Some(work_inspector(context, team)?),
        _ => None,
    };
    let inspector = inspector.as_ref().map(|inspector| inspector as &dyn WorkInspector);
    let place = WorkPlace::find(&task, by, None, inspector).await?;
    if let Some(command) = &task.verify {
        consent::confirm_verify(context, &task, command)?;
    }
    let stores = context.workspace.stores(OpenMode::Write).await?;
    let reviewer = match &team {
        Some(team) => reviewer(context, &stores, team, by).await?,
        None => None,
    };
    let gate = CompletionGate {
        stores: &stores,
        clock: &SystemClock,
        by: by.clone(),
        verifier: verifier(context, &task, &by.name)?,
        place,
        reviewer,
        refusals: None,
    };
    let completion = gate.complete(id, report).await.map_err(|error| match error {
        ServiceError::Store(error) => refusal(error, by),
        error => CliError::refused(format!("cannot complete {id}: {error}")),
    })?;
    match completion {
        Completion::Completed(task) => {
            context.output.answer(&document(&task), || change_text(&task, Action::Complete, context.workspace.now()))
        }
        Completion::Incomplete(incomplete) => Err(incomplete_error(id, incomplete)),
    }
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
fn verifier(context: &Context, task: &Task, by: &str) -> CliResult<Verifier> {
    let team = context.workspace.location.team_if_valid(None);
    let limits = team.as_ref().map_or_else(ToolLimits::default, |team| team.limits.tools);
    let claim = watch::Sender::new(Some(ClaimRef::of(task)));
    let command_context = CommandContext {
        working_dir: context.workspace.location.workspace()?,
        sandbox: context.workspace.location.sandbox(team.as_ref())?,
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

/// The error of a task that is not completed.
fn incomplete_error(id: TaskId, incomplete: Incomplete) -> CliError {
    let number = id.0;
    match incomplete {
        Incomplete::ReviewPending { id: review, to, rejection } => {
            let (review, to) = (one_line(&review), one_line(&to));
            let mut message = format!("cannot complete {id} yet: it waits for review {review} by {to}");
            if let Some(feedback) = rejection {
                message.push_str(&format!("; an earlier review rejected it: {}", one_line(&feedback)));
            }
            let review = shell_word(&review);
            CliError::refused(message).hint(format!("`brigade review approve {review}`, then complete the task again"))
        }
        Incomplete::ReviewRejected { feedback } => {
            let message = format!("cannot complete {id}: the review rejected it: {}", one_line(&feedback));
            CliError::refused(message)
                .hint(format!("`brigade tasks release {number}`, or `brigade tasks fail {number} --reason TEXT`"))
        }
        Incomplete::Refused { refusal, .. } => {
            let evidence = failure_summary::stored_text(&refusal.evidence);
            let message = format!("cannot complete {id}: {}\n{evidence}", refusal.sentence);
            CliError::refused(message.trim_end().to_owned())
                .hint("correct the work and complete the task again, or release or fail it")
        }
        Incomplete::NotMerged(work) => {
            let otherwise = "or release it for a teammate; --force skips the merge";
            let hint = match (&work.uncommitted_in, merge_command(&work)) {
                (Some(folder), _) => format!("commit it in {folder} and merge it, {otherwise}"),
                (None, Some(merge)) => format!("`{merge}`, then complete the task again; {otherwise}"),
                (None, None) => otherwise.to_owned(),
            };
            CliError::refused(format!("cannot complete {id}: {work}")).hint(hint)
        }
        Incomplete::AttemptFailed { reason } => {
            let message = format!("cannot complete {id}: {}; this attempt has failed", one_line(&reason));
            CliError::refused(message).hint(format!("`brigade why {number}`"))
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

/// Returns what finds unmerged work of this team's tasks.
fn work_inspector(context: &Context, team: &TeamSpec) -> CliResult<GitWorkInspector> {
    Ok(GitWorkInspector {
        workspace: context.workspace.location.workspace()?,
        team: team.name.to_string(),
        target: team.target_branch(),
        drivers: DriverOptions {
            program: own_program_path(),
            launch_sandbox: Some(context.workspace.location.sandbox(Some(team))?),
        },
    })
}

/// Returns the reviewer of the work, if the team reviews its tasks: a fit member of the running team, or else a person.
async fn reviewer(context: &Context, stores: &Stores, team: &TeamSpec, by: &Actor) -> CliResult<Option<String>> {
    let Some(required) = &team.review else { return Ok(None) };
    members::open_inboxes(&context.workspace, stores).await?;
    let running = LeadStatus::with_state(&context.workspace).await?;
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
