//! `brigade plan`, `brigade review` and `brigade permission`: list, show and answer the requests that wait for approval.

use clap::Subcommand;

use super::arguments::text;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::order;
use super::output::CommandAnswer;
use super::pager::page_answer;
use crate::api::Order;
use crate::api::Question;
use crate::api::lead_status::LeadStatus;
use crate::api::request::{self, Decision, RequestView};
use crate::api::task::Changes;
use crate::domain::team::approval::{Request, RequestKind};
use crate::domain::text::printable;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::{diff, requests};

/// The widest summary of changed files, in columns, and the spaces before it.
const SUMMARY_WIDTH_MAX: usize = 120;
const SUMMARY_INDENT: usize = 2;

/// List, show and answer plans
///
/// A teammate submits a plan before work that is large or hard to undo. The lead answers it. A person may answer too, and must if the
/// lead has no model. A plan is answered once.
#[derive(Debug, clap::Args)]
pub struct Plan {
    #[command(subcommand)]
    command: Option<PlanCommand>,
}

/// List, show and answer reviews of finished work
///
/// In a team with `review`, a task is completed only after its work is approved. The list names the reviewer; a person may always answer.
/// A review is answered once.
#[derive(Debug, clap::Args)]
#[command(mut_subcommand("approve", |command| command.about("Approve the work under review")))]
#[command(mut_subcommand("reject", |command| {
    command.about("Reject the work under review, so that its author changes it")
}))]
pub struct Review {
    #[command(subcommand)]
    command: Option<ReviewCommand>,
}

/// List, show and answer permission requests of agents
///
/// A member with the mode `ask` or `accept-edits` waits until you allow its call. After `permission_timeout_ms` the call is refused. A request
/// is answered once.
#[derive(Debug, clap::Args)]
pub struct Permission {
    #[command(subcommand)]
    command: Option<PermissionCommand>,
}

#[derive(Debug, Subcommand)]
enum PermissionCommand {
    /// List the requests without an answer
    List,
    /// Show the whole call and its digest
    Show {
        /// The request's id [default: the only one waiting]
        id: Option<String>,
    },
    /// Allow the call
    ///
    /// A call that does not fit on one line needs `--digest`, so that you allow what you have seen. At a terminal, the whole call is shown
    /// instead and you are asked.
    Approve {
        /// The id [default: the only one waiting]
        id: Option<String>,
        /// The digest that `brigade permission show` printed
        #[arg(long, value_parser = text)]
        digest: Option<String>,
        /// Allow the same command, or changes of the same file, in the rest of the run too
        #[arg(long)]
        for_run: bool,
    },
    /// Refuse the call
    Reject {
        /// The id [default: the only one waiting]
        id: Option<String>,
        /// The reason, for the agent
        #[arg(long, value_name = "TEXT", value_parser = text)]
        feedback: Option<String>,
        /// Refuse the same command, or changes of the same file, in the rest of the run too
        #[arg(long)]
        for_run: bool,
    },
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// List the plans without an answer
    List,
    /// Show a plan
    Show {
        /// The plan's id [default: the only one waiting]
        id: Option<String>,
    },
    #[command(flatten)]
    Answer(AnswerCommand),
}

#[derive(Debug, Subcommand)]
enum ReviewCommand {
    /// List the reviews without an answer
    List,
    /// Show the work to review and its diff
    Show {
        /// The review's id [default: the only one waiting]
        id: Option<String>,
        /// Show only the changed lines per file
        #[arg(long)]
        stat: bool,
    },
    #[command(flatten)]
    Answer(AnswerCommand),
}

#[derive(Debug, Subcommand)]
enum AnswerCommand {
    /// Approve the plan
    Approve {
        /// The id [default: the only one waiting]
        id: Option<String>,
        /// A comment for the author
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
    /// Reject the plan, so that its author changes it
    Reject {
        /// The id [default: the only one waiting]
        id: Option<String>,
        /// The changes to make
        #[arg(long, value_name = "TEXT", value_parser = text)]
        feedback: Option<String>,
    },
}

impl Plan {
    /// Shows or answers plans.
    ///
    /// # Errors
    /// There is no such plan, it is answered already, or several wait and none is named.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let kind = RequestKind::PlanApproval;
        match self.command {
            None | Some(PlanCommand::List) => list(context, kind).await,
            Some(PlanCommand::Show { id }) => show(context, kind, id.as_deref(), None, false).await,
            Some(PlanCommand::Answer(command)) => command.run(context, kind).await,
        }
    }
}

impl Review {
    /// Shows or answers reviews.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let kind = RequestKind::Review;
        match self.command {
            None | Some(ReviewCommand::List) => list(context, kind).await,
            Some(ReviewCommand::Show { id, stat }) => show(context, kind, id.as_deref(), None, stat).await,
            Some(ReviewCommand::Answer(command)) => command.run(context, kind).await,
        }
    }
}

impl Permission {
    /// Shows or answers permission requests.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let kind = RequestKind::Permission;
        match self.command {
            None | Some(PermissionCommand::List) => list(context, kind).await,
            Some(PermissionCommand::Show { id }) => show(context, kind, id.as_deref(), None, false).await,
            Some(PermissionCommand::Approve { id, digest, for_run }) => {
                let decision = Decision { approve: true, digest, for_run, ..Decision::default() };
                order::give(context, Order::Answer { kind, id, decision }).await
            }
            Some(PermissionCommand::Reject { id, feedback, for_run }) => {
                let decision = Decision { feedback, for_run, ..Decision::default() };
                order::give(context, Order::Answer { kind, id, decision }).await
            }
        }
    }
}

impl AnswerCommand {
    async fn run(self, context: &Context, kind: RequestKind) -> CliResult<CommandAnswer> {
        let (id, approve, feedback) = match self {
            Self::Approve { id, feedback } => (id, true, feedback),
            Self::Reject { id, feedback } => (id, false, feedback),
        };
        let decision = Decision { approve, feedback, ..Decision::default() };
        order::give(context, Order::Answer { kind, id, decision }).await
    }
}

async fn list(context: &Context, kind: RequestKind) -> CliResult<CommandAnswer> {
    let approvals = request::approvals(&context.workspace).await?;
    let open: Vec<&Request> = approvals.open(kind).collect();
    let now = context.workspace.now();
    let columns = context.output.columns;
    let views: Vec<RequestView<'_>> = open.iter().copied().map(RequestView::of).collect();
    let answer = context.output.answer(&views, || requests::list(&open, now, columns, &context.commands()))?;
    Ok(match open.as_slice() {
        [] => answer.note(format!("no {} waits for an answer", kind.noun())),
        [first, ..] => answer.notes(how_to_answer(first, None)),
    })
}

/// Shows a request in full; with a digest, only if it is that of its call. A review has the diff of the work, or only its summary.
pub(in crate::front) async fn show(
    context: &Context,
    kind: RequestKind,
    id: Option<&str>,
    digest: Option<&str>,
    is_summary: bool,
) -> CliResult<CommandAnswer> {
    let approvals = request::approvals(&context.workspace).await?;
    let request = request::find(&approvals, kind, id)?;
    if digest.is_some_and(|digest| digest != request.digest()) {
        return Err(CliError::refused("cannot show the call: it was changed"));
    }
    let output = context.output;
    let now = context.workspace.now();
    let columns = output.columns;
    let renders_markdown = output.renders_markdown();
    let is_review = request.kind == RequestKind::Review;
    let lead_status = LeadStatus::of(&context.workspace).await.unwrap_or_default();
    let mut answer = output.answer(&RequestView::of(request), || {
        let card = requests::card(request, now, columns, renders_markdown);
        if is_review { format!("{card}\n{}", changes(context, lead_status.team(), request, is_summary)) } else { card }
    })?;
    if is_review {
        answer =
            page_answer(context, answer, Question::Request { kind: RequestKind::Review, id: Some(request.id.clone()) });
    }
    Ok(if request.is_open_approval() {
        answer.notes(how_to_answer(request, Some(&request.digest())).into_iter().skip(1))
    } else {
        answer
    })
}

/// The diff of the work, or the reason why there is none. `team` is the running team.
fn changes(context: &Context, team: Option<&str>, request: &Request, is_summary: bool) -> String {
    let Some(commit) = request.about.as_ref().and_then(|about| about.commit.as_deref()) else {
        return "no diff: the team has no worktrees. Look at the files in the workspace\n".to_owned();
    };
    let changes = Changes::of_review(&context.workspace, team, commit.to_owned());
    let shown = changes.map_err(CliError::from).and_then(|changes| with_summary(context, is_summary, &changes));
    shown.unwrap_or_else(|error| format!("{}\n", printable(&error.message)))
}

/// The diff of work that changed no file.
pub(super) const NO_CHANGE: &str = "no file was changed\n";

/// A coloured diff after its summary, or only the summary.
pub(super) fn with_summary(context: &Context, is_summary: bool, changes: &Changes) -> CliResult<String> {
    let columns = context.output.columns.saturating_sub(SUMMARY_INDENT).clamp(20, SUMMARY_WIDTH_MAX);
    let summary = changes.summary(columns)?;
    if summary.trim().is_empty() {
        return Ok(NO_CHANGE.to_owned());
    }
    let summary = diff::summary(&summary);
    Ok(if is_summary { summary } else { format!("{summary}\n{}", diff::patch(&changes.patch()?)) })
}

/// The commands that show, approve and reject a request, each with its label. `digest` is that of the call, if it is shown.
fn how_to_answer(request: &Request, digest: Option<&str>) -> [Hint; 3] {
    let [show, approve, reject] = request::steps(request, digest);
    [hint!["show:    ", show], hint!["approve: ", approve], hint!["reject:  ", reject]]
}
