//! `brigade plan` and `brigade review`: what waits to be approved, shown and answered. They differ in what they are about.

use clap::Subcommand;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Answer;
use crate::config::problem::nearest;
use crate::domain::name::HUMAN;
use crate::domain::request::{Request, RequestBook, RequestError, RequestKind};
use crate::domain::state::Mode;
use crate::ports::{StoreError, Stores};
use crate::stores::open::Purpose;
use crate::tools::answers::{self, Answerer, Asked};
use crate::ui::approvals;
use crate::ui::text::one_line;

/// Show the plans that wait for an answer, and answer them
///
/// A teammate hands in a plan before work that is large or hard to undo. The lead answers it; a person may too, and has to where the
/// lead goes by rule. An answer is given once.
#[derive(Debug, clap::Args)]
pub struct Plan {
    #[command(subcommand)]
    command: Option<ApprovalCommand>,
}

/// Show the work that waits to be approved, and approve it or send it back
///
/// In a team with `review` a task is completed only once somebody else approved what was done. Who that is, is said beside it; a
/// person may answer too. An answer is given once.
#[derive(Debug, clap::Args)]
pub struct Review {
    #[command(subcommand)]
    command: Option<ApprovalCommand>,
}

#[derive(Debug, Subcommand)]
enum ApprovalCommand {
    /// List what waits for an answer
    List,
    /// Show one, answered or not
    Show {
        /// Which [default: the one that waits]
        id: Option<String>,
    },
    /// Approve it
    Approve {
        /// Which [default: the one that waits]
        id: Option<String>,
        /// What to mind
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
    /// Send it back
    Reject {
        /// Which [default: the one that waits]
        id: Option<String>,
        /// What to change
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
}

impl Plan {
    /// Shows or answers plans.
    ///
    /// # Errors
    /// No such plan, one that is answered already, or several where none is named.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        run(context, RequestKind::PlanApproval, self.command).await
    }
}

impl Review {
    /// Shows or answers reviews.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        run(context, RequestKind::Review, self.command).await
    }
}

async fn run(context: &Context, kind: RequestKind, command: Option<ApprovalCommand>) -> CliResult<Answer> {
    match command.unwrap_or(ApprovalCommand::List) {
        ApprovalCommand::List => list(context, kind).await,
        ApprovalCommand::Show { id } => show(context, kind, id.as_deref()).await,
        ApprovalCommand::Approve { id, feedback } => {
            answer(context, kind, id.as_deref(), true, feedback.as_deref()).await
        }
        ApprovalCommand::Reject { id, feedback } => {
            answer(context, kind, id.as_deref(), false, feedback.as_deref()).await
        }
    }
}

async fn list(context: &Context, kind: RequestKind) -> CliResult<Answer> {
    let book = context.stores(Purpose::Look).await?.requests.all().await?;
    let open: Vec<&Request> = book.open(kind).collect();
    let (now, columns) = (context.now(), context.output.columns);
    let answer = context.output.answer(&open, || approvals::list(&open, now, columns))?;
    let noun = kind.noun();
    Ok(match open.as_slice() {
        [] => answer.note(format!("no {noun} waits for an answer")),
        [_] => answer.note(format!(
            "brigade {noun} show shows it, brigade {noun} approve or brigade {noun} reject --feedback TEXT answers it"
        )),
        _ => answer.note(format!(
            "brigade {noun} show ID shows one, brigade {noun} approve ID or brigade {noun} reject ID --feedback TEXT answers it"
        )),
    })
}

async fn show(context: &Context, kind: RequestKind, id: Option<&str>) -> CliResult<Answer> {
    let book = context.stores(Purpose::Look).await?.requests.all().await?;
    let request = find(&book, kind, id)?;
    let (now, columns) = (context.now(), context.output.columns);
    let answer = context.output.answer(request, || approvals::whole(request, now, columns))?;
    Ok(match request.is_open_approval() {
        true => answer.note(approvals::how_to_answer(kind, &request.id)),
        false => answer,
    })
}

async fn answer(
    context: &Context,
    kind: RequestKind,
    id: Option<&str>,
    approve: bool,
    feedback: Option<&str>,
) -> CliResult<Answer> {
    let stores = context.stores(Purpose::Act).await?;
    let book = stores.requests.all().await?;
    let id = find(&book, kind, id)?.id.clone();
    let feedback = feedback.map(str::trim).filter(|feedback| !feedback.is_empty());
    let now = context.now();
    let compose = |request: &Request| answers::reply(request, HUMAN, approve, feedback, now);
    // Another terminal of the same person is somebody else here.
    let process = format!("{HUMAN} {}", std::process::id());
    let by = Answerer { name: HUMAN, process: &process };
    let asked = Asked { id: &id, kind };
    let given = answers::answer(&stores, by, now, asked, approve, compose).await;
    let given = given.map_err(|error| refused(error, kind))?;
    let from = one_line(&given.request.from);
    let word = if approve { "approved" } else { "rejected" };
    let data =
        serde_json::json!({ "id": id, "from": given.request.from, "approve": approve, "message": given.message });
    let answer = context.output.answer(&data, || format!("{from} is told: {} {id} is {word}\n", kind.noun()))?;
    told_when(context, &stores, answer).await
}

/// Says when whoever handed it in gets to read the answer, unless that is now.
async fn told_when(context: &Context, stores: &Stores, answer: Answer) -> CliResult<Answer> {
    let is_running = context.who_runs().is_ok_and(|running| running.lead.is_some());
    let desired = stores.state.read().await.ok().flatten().map(|state| state.desired);
    Ok(match (is_running, desired) {
        (false, _) => answer.note("no team runs: it is delivered when one does"),
        (true, Some(Mode::Pause)) => {
            answer.note("the team pauses: it is read when it goes on (brigade state continuous)")
        }
        (true, _) => answer,
    })
}

fn refused(error: StoreError, kind: RequestKind) -> CliError {
    let is_answered = matches!(&error, StoreError::Request(RequestError::Answered { .. }));
    let is_busy = matches!(&error, StoreError::Request(RequestError::BeingAnswered { .. }));
    let error = CliError::from(error);
    match (is_answered, is_busy) {
        (true, _) => error.hint("brigade send NAME TEXT tells the teammate something else"),
        (_, true) => error.hint(format!("brigade {} shows in a moment what came of it", kind.noun())),
        _ => error,
    }
}

/// The request that is meant: the one of this id, or the only one that waits.
fn find<'a>(book: &'a RequestBook, kind: RequestKind, id: Option<&str>) -> CliResult<&'a Request> {
    let noun = kind.noun();
    let open: Vec<&Request> = book.open(kind).collect();
    let named = |requests: &[&Request]| {
        let names: Vec<String> =
            requests.iter().map(|request| format!("{} (from {})", request.id, one_line(&request.from))).collect();
        names.join(", ")
    };
    let Some(id) = id.map(|id| id.trim().trim_start_matches('#')) else {
        return match open.as_slice() {
            [] => Err(CliError::refused(format!("no {noun} waits for an answer"))),
            [request] => Ok(request),
            several => Err(CliError::usage(format!("which {noun}? {} wait: {}", several.len(), named(several)))),
        };
    };
    let is_it = |request: &&Request| request.kind == kind && request.id == id;
    if let Some(request) = book.requests.iter().find(is_it) {
        return Ok(request);
    }
    let error = CliError::refused(format!("there is no {noun} `{}`", one_line(id)));
    Err(match (nearest(id, open.iter().map(|request| request.id.as_str())), open.as_slice()) {
        (Some(meant), _) => error.hint(format!("did you mean `{meant}`?")),
        (None, []) => error.hint(format!("no {noun} waits for an answer")),
        (None, several) => error.hint(format!("these wait: {}", named(several))),
    })
}
