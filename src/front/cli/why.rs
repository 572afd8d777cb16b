//! `brigade why`.

use super::arguments::task_id;
use super::context::Context;
use super::error::CliResult;
use super::exit::Exit;
use super::output::CommandAnswer;
use crate::api::why::why;
use crate::domain::task::TaskId;
use crate::domain::text::one_line;
use crate::front::text::lines::{cut, wrap};
use crate::front::text::style::{BOLD, DIM, paint};
use crate::front::text::why::{ReasonText, render};

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
    /// Selects a task.
    pub(in crate::front) fn of(id: TaskId) -> Self {
        Self { id }
    }

    /// Explains the task.
    ///
    /// # Errors
    /// There is no workspace, or it cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let why = why(&context.workspace, self.id).await?;
        let reasons = render(self.id, &why.reasons, why.at, &context.commands());
        let data = serde_json::json!({ "task": self.id, "subject": why.subject, "reasons": reasons });
        let answer = context.output.answer(&data, || text(self.id, &why.subject, &reasons, context.output.columns))?;
        Ok(if why.is_on_board { answer } else { answer.exit(Exit::Unfinished) })
    }
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
