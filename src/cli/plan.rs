//! `brigade plan`.

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
use crate::ui::plans;
use crate::ui::text::one_line;

/// Show the plans that wait for an answer, and answer them
///
/// A teammate hands in a plan before work that is large or hard to undo. The lead answers it; a person may too, and has to where the
/// lead goes by rule. An answer is given once.
#[derive(Debug, clap::Args)]
pub struct Plan {
    #[command(subcommand)]
    command: Option<PlanCommand>,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// List the plans that wait for an answer
    List,
    /// Show a plan, answered or not
    Show {
        /// Which [default: the one that waits]
        id: Option<String>,
    },
    /// Let a plan be carried out
    Approve {
        /// Which [default: the one that waits]
        id: Option<String>,
        /// What to mind
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
    /// Send a plan back
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
        match self.command.unwrap_or(PlanCommand::List) {
            PlanCommand::List => list(context).await,
            PlanCommand::Show { id } => show(context, id.as_deref()).await,
            PlanCommand::Approve { id, feedback } => answer(context, id.as_deref(), true, feedback.as_deref()).await,
            PlanCommand::Reject { id, feedback } => answer(context, id.as_deref(), false, feedback.as_deref()).await,
        }
    }
}

async fn list(context: &Context) -> CliResult<Answer> {
    let book = context.stores(Purpose::Look).await?.requests.all().await?;
    let open: Vec<&Request> = book.open_plans().collect();
    let (now, columns) = (context.now(), context.output.columns);
    let answer = context.output.answer(&open, || plans::list(&open, now, columns))?;
    Ok(match open.as_slice() {
        [] => answer.note("no plan waits for an answer"),
        [_] => answer.note("brigade plan show shows it, brigade plan approve or brigade plan reject --feedback TEXT answers it"),
        _ => answer.note("brigade plan show ID shows one, brigade plan approve ID or brigade plan reject ID --feedback TEXT answers it"),
    })
}

async fn show(context: &Context, id: Option<&str>) -> CliResult<Answer> {
    let book = context.stores(Purpose::Look).await?.requests.all().await?;
    let plan = find(&book, id)?;
    let (now, columns) = (context.now(), context.output.columns);
    let answer = context.output.answer(plan, || plans::whole(plan, now, columns))?;
    Ok(match plan.is_open_plan() {
        true => answer.note(plans::how_to_answer(&plan.id)),
        false => answer,
    })
}

async fn answer(context: &Context, id: Option<&str>, approve: bool, feedback: Option<&str>) -> CliResult<Answer> {
    let stores = context.stores(Purpose::Act).await?;
    let book = stores.requests.all().await?;
    let id = find(&book, id)?.id.clone();
    let feedback = feedback.map(str::trim).filter(|feedback| !feedback.is_empty());
    let message = answers::of_plan(HUMAN, approve, feedback, context.now());
    // Another terminal of the same person is somebody else here.
    let process = format!("{HUMAN} {}", std::process::id());
    let by = Answerer { name: HUMAN, process: &process };
    let asked = Asked { id: &id, kind: RequestKind::PlanApproval };
    let given = answers::answer(&stores, by, context.now(), asked, approve, message).await.map_err(refused)?;
    let from = one_line(&given.request.from);
    let word = if approve { "approved" } else { "rejected" };
    let data =
        serde_json::json!({ "id": id, "from": given.request.from, "approve": approve, "message": given.message });
    let answer = context.output.answer(&data, || format!("{from} is told: plan {id} is {word}\n"))?;
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

fn refused(error: StoreError) -> CliError {
    let is_answered = matches!(&error, StoreError::Request(RequestError::Answered { .. }));
    let is_busy = matches!(&error, StoreError::Request(RequestError::BeingAnswered { .. }));
    let error = CliError::from(error);
    match (is_answered, is_busy) {
        (true, _) => error.hint("brigade send NAME TEXT tells the teammate something else"),
        (_, true) => error.hint("brigade plan shows in a moment what came of it"),
        _ => error,
    }
}

/// The plan that is meant: the one of this id, or the only one that waits.
fn find<'a>(book: &'a RequestBook, id: Option<&str>) -> CliResult<&'a Request> {
    let open: Vec<&Request> = book.open_plans().collect();
    let named = |plans: &[&Request]| {
        let names: Vec<String> =
            plans.iter().map(|plan| format!("{} (from {})", plan.id, one_line(&plan.from))).collect();
        names.join(", ")
    };
    let Some(id) = id.map(|id| id.trim().trim_start_matches('#')) else {
        return match open.as_slice() {
            [] => Err(CliError::refused("no plan waits for an answer")),
            [plan] => Ok(plan),
            several => Err(CliError::usage(format!("which plan? {} wait: {}", several.len(), named(several)))),
        };
    };
    let is_plan = |request: &&Request| request.kind == RequestKind::PlanApproval;
    if let Some(plan) = book.requests.iter().filter(is_plan).find(|plan| plan.id == id) {
        return Ok(plan);
    }
    let error = CliError::refused(format!("there is no plan `{}`", one_line(id)));
    Err(match (nearest(id, open.iter().map(|plan| plan.id.as_str())), open.as_slice()) {
        (Some(meant), _) => error.hint(format!("did you mean `{meant}`?")),
        (None, []) => error.hint("no plan waits for an answer"),
        (None, several) => error.hint(format!("these wait: {}", named(several))),
    })
}
