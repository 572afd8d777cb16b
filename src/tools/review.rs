//! `review`: in a team with reviews a task is completed only once somebody else approved what was done. Here is the gate that a report
//! of completion goes through, and the tool that answers.
//!
//! An approval is of the work: of the commit where a task has a worktree of its own, otherwise of the attempt. What was changed since is
//! reviewed anew.

use serde_json::Value;

use super::answers;
use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::Checked;
use super::plan_approval::{about_answer, approve_or_reject};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::message::{Message, MessageType};
use crate::domain::request::{About, Request, RequestBook, RequestKind};
use crate::domain::task::{Task, VerifyRun};
use crate::domain::time::UnixMs;
use crate::ports::{StoreResult, Stores};

/// Rejections of one attempt at which it is given up.
pub const REJECTIONS_MAX: usize = 3;

/// How a report stands with its review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// Approved, by this one.
    Approved(String),
    /// Asked for as this request, and not answered.
    Waits {
        /// The request's id.
        id: String,
        /// Who is to answer.
        to: String,
    },
    /// This very work was rejected, with these words.
    Rejected(String),
    /// The attempt was rejected so often that it is over; the last words.
    GivenUp(String),
    /// Nobody was asked yet.
    Unasked,
}

impl Stand {
    /// How `work` stands.
    #[must_use]
    pub fn of(book: &RequestBook, work: &About) -> Self {
        let review = book.review_of(work);
        let words =
            || review.and_then(|review| review.answer.as_ref()).map(|answer| answer.text.clone()).unwrap_or_default();
        match review {
            Some(review) if review.is_approved() => {
                Self::Approved(review.answer.as_ref().map(|answer| answer.by.clone()).unwrap_or_default())
            }
            Some(review) if review.answer.is_none() => Self::Waits { id: review.id.clone(), to: review.to.clone() },
            _ if book.rejections_of(work) >= REJECTIONS_MAX => Self::GivenUp(words()),
            Some(_) if work.commit.is_some() => Self::Rejected(words()),
            _ => Self::Unasked,
        }
    }
}

/// Work that is to be reviewed.
pub struct Work<'a> {
    /// The task.
    pub task: &'a Task,
    /// What of it.
    pub about: About,
    /// Who did it.
    pub by: &'a str,
    /// What they say they did.
    pub summary: &'a str,
    /// How its verify command came out.
    pub verify: Option<&'a VerifyRun>,
    /// Where it is to be seen.
    pub place: String,
}

/// Asks `to` to review `work`, in place of whoever was asked before about this task. Returns the request's id and the message's.
///
/// # Errors
/// As [`answers::ask`].
pub async fn ask(stores: &Stores, work: &Work<'_>, to: &str, now: UnixMs) -> StoreResult<(String, String)> {
    let book = stores.requests.all().await?;
    let is_former = |request: &&Request| request.about.as_ref().is_some_and(|about| about.task == work.task.id);
    for former in book.open(RequestKind::Review).filter(is_former) {
        stores.requests.withdraw(&former.id, RequestKind::Review, "asked for anew", now).await?;
    }
    let id = answers::new_request_id();
    let text = text_of(work);
    let request = Request {
        plan: text.clone(),
        about: Some(work.about.clone()),
        ..Request::new(&id, RequestKind::Review, work.by, to, now)
    };
    let sent = answers::ask(stores, request, Message::new(MessageType::Message, work.by, text, now)).await?;
    Ok((id, sent))
}

/// What a reviewer reads.
fn text_of(work: &Work<'_>) -> String {
    let Work { task, about, by, summary, verify, place } = work;
    let mut text = format!(
        "Review of task {} ({}), attempt {}, by {by}: it is completed only once you approve. Look at the work itself, then answer: a member with its tool review and this request_id, a person with brigade review.",
        task.id, task.subject, about.attempt
    );
    if !summary.is_empty() {
        text.push_str(&format!("\nSaid to be done: {summary}"));
    }
    if let Some(run) = verify {
        let status =
            run.exit_status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit status {status}"));
        let end =
            if run.output_tail.is_empty() { String::new() } else { format!("; it ends with\n{}", run.output_tail) };
        text.push_str(&format!("\nVerify `{}`: {status}{end}", run.command));
    }
    if !place.is_empty() {
        text.push_str(&format!("\n{place}"));
    }
    text
}

/// The reviewer's tool.
pub(super) struct Review;

#[async_trait::async_trait]
impl Checked for Review {
    const NAME: &'static str = "review";
    const DESCRIPTION: &'static str = "Answers a review you were asked for, once: whether a teammate's work may count as completed. The request_id stands in its mail. Look at the work itself first: the diff, the files, a test. Say in `feedback` what to mend when you reject it.";
    const PARAMETERS: &'static [Parameter] = &[
        required("request_id", Kind::Text, "Which review, as its mail says"),
        required("approve", Kind::Boolean, "Whether the work is good as it is"),
        optional("feedback", Kind::Text, "What to mend, or to mind"),
    ];

    fn about(&self, input: &Value) -> String {
        about_answer(input)
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        approve_or_reject(&arguments, RequestKind::Review, context).await
    }
}
