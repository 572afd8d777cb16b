//! The questions whose answers are the details on the screen of `brigade watch`.

use crate::domain::task::TaskId;
use crate::domain::team::approval::RequestKind;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::log::Log;
use crate::front::cli::output::CommandAnswer;
use crate::front::cli::requests;
use crate::front::cli::tasks::diff::Diff;
use crate::front::cli::tasks::show::Show;
use crate::front::cli::transcript::Transcript;
use crate::front::cli::why::Why;

/// Lines of the log that are shown.
const LOG_LINES: u64 = 500;

/// A question about the team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// The last lines of the log.
    Log,
    /// All details of a task.
    Task(TaskId),
    /// The diff of its work.
    Diff(TaskId),
    /// The reasons for its state.
    Why(TaskId),
    /// The last records of a member.
    Transcript(String),
    /// A plan, a review or a permission in full. A call with another digest is not shown.
    Request { kind: RequestKind, id: String, digest: Option<String> },
}

impl Question {
    /// Answers the question, as the command of the same name does.
    ///
    /// # Errors
    /// There is no such thing, or it cannot be read.
    pub async fn answer(self, context: &Context) -> CliResult<CommandAnswer> {
        match self {
            Self::Log => Log::last_lines(LOG_LINES).run(context).await,
            Self::Task(id) => Show::one(id).run(context).await,
            Self::Diff(id) => Diff::of(id).run(context).await,
            Self::Why(id) => Why::of(id).run(context).await,
            Self::Transcript(name) => Transcript::of(name).run(context).await,
            Self::Request { kind, id, digest } => {
                requests::show(context, kind, Some(&id), digest.as_deref(), false).await
            }
        }
    }
}
