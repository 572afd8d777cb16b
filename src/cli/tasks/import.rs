//! `brigade tasks import`.

use std::collections::HashSet;
use std::path::PathBuf;

use super::show::document;
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::launch::read_plan;
use crate::cli::output::Answer;
use crate::domain::change::{Actor, ActorKind};
use crate::domain::name::HUMAN;
use crate::domain::task::TaskId;
use crate::ui::text::{count, one_line};

/// Put the tasks of a plan file on the board
///
/// A plan is Markdown: each `## Title` is a task; lines `after:` (titles), `requires:`, `verify:`, `priority:` below it; the
/// rest is its description. Importing it again adds only what is new.
#[derive(Debug, clap::Args)]
pub struct Import {
    /// The plan
    file: PathBuf,
}

impl Import {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let tasks = read_plan(&context.current_folder().join(&self.file))?;
        let board = context.board()?;
        let before: HashSet<TaskId> = board.view().await?.tasks.keys().copied().collect();
        let by = Actor::new(HUMAN, ActorKind::Person);
        let all = board.create(&by, tasks, true).await?;
        let (known, added): (Vec<_>, Vec<_>) = all.into_iter().partition(|task| before.contains(&task.id));
        let documents: Vec<_> = added.iter().map(document).collect();
        context.output.answer(&documents, || {
            let lines: String =
                added.iter().map(|task| format!("added {} {}\n", task.id, one_line(&task.subject))).collect();
            match known.len() {
                0 => lines,
                known => format!("{lines}{} on the board already\n", count(known, "task")),
            }
        })
    }
}
