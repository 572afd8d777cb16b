//! `brigade tasks import`.

use crate::api::OrderForm;
use crate::front::text::commands::{Hint, hint};
use std::path::PathBuf;

use crate::api::task::{self, document};
use crate::domain::task::{Task, TaskStatus};
use crate::domain::text::one_line;
use crate::domain::text::units::count;
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::launch::warn_of_skipped_blocks;
use crate::front::cli::outcome::waiting_notes;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::style::warning;
use crate::service::plan_import::Import as PlanImport;

/// Add the tasks of a plan file
///
/// A plan is Markdown. Each `## Title` is a task. The lines `after:` (titles), `requires:`, `verify:` and `priority:` follow the
/// title; the rest is the description. A second import adds new tasks and updates tasks that were not started and not changed
/// on the board. Other differences are reported.
#[derive(Debug, clap::Args)]
pub struct Import {
    /// The plan file
    file: PathBuf,
}

impl Import {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let file = context.workspace.location.current_folder().join(&self.file);
        if file.is_dir() {
            let file = one_line(&self.file.display().to_string());
            return Err(CliError::usage(format!("cannot read the plan {file}: it is a folder")).hint("name a file"));
        }
        let import = task::import(&context.workspace, &file).await?;
        let documents: Vec<_> = import.added.iter().chain(&import.updated).map(document).collect();
        let answer = context.output.answer(&documents, || import_text(context, &import))?;
        let imported: Vec<&Task> = import.added.iter().chain(&import.updated).collect();
        let named: Vec<_> =
            imported.iter().map(|task| (format!("{} {}", task.id, task.subject), task.description.as_str())).collect();
        warn_of_skipped_blocks(context, context.workspace.location.team_if_valid(None).as_ref(), &named);
        let answer = answer.notes(waiting_notes(context, imported).await);
        Ok(import.differences.iter().fold(answer, |answer, difference| {
            let text = warning(&one_line(&difference.text));
            answer.note(text).notes(Hint::of_steps(&difference.next).map(|steps| hint!["  → ", steps]))
        }))
    }
}

fn import_text(context: &Context, import: &PlanImport) -> String {
    let line = |verb: &str, task: &Task| format!("{verb} {} {}\n", task.id, one_line(&task.subject));
    let mut lines: String = import.added.iter().map(|task| line("added", task)).collect();
    for task in &import.updated {
        let is_failed = task.status == TaskStatus::Failed;
        let retry = if is_failed {
            context.hint(hint![" (it failed: ", OrderForm::Retry { tasks: vec![task.id] }, ")"])
        } else {
            String::new()
        };
        lines.push_str(&format!("{}{retry}\n", line("updated", task).trim_end()));
    }
    match import.existing - import.updated.len() {
        0 => lines,
        known => format!("{lines}{} already on the board\n", count(known, "task")),
    }
}
