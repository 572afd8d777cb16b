//! `brigade why`.

use std::collections::HashSet;

use super::arguments::task_id;
use super::context::Context;
use super::error::CliResult;
use super::exit::Exit;

use super::output::Answer;
use crate::domain::graph::TaskLookup;
use crate::domain::task::TaskId;
use crate::ports::Board as _;
use crate::ui::style::{BOLD, DIM, paint};
use crate::ui::text::{cut, one_line, wrap};
use crate::ui::why::{Candidate, Reason, Situation, explain};

/// Say why a task is not being worked on, and what to do about it
#[derive(Debug, clap::Args)]
pub struct Why {
    /// The task's number
    #[arg(value_parser = task_id)]
    id: TaskId,
}

impl Why {
    /// Looks at everything that could be in the way.
    ///
    /// # Errors
    /// There is no workspace, or it cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        let view = context.board_to_look_at()?.view().await?;
        let running = context.running().await?;
        let team = context.team_if_valid(running.team.as_deref()).or_else(|| context.team_if_valid(None));
        let members = team.iter().flat_map(|team| &team.members);
        let candidates: Vec<Candidate> =
            members.map(|member| Candidate { name: member.name.to_string(), capabilities: member.can_do() }).collect();
        let situation = Situation {
            view: &view,
            candidates,
            silence: running.lead.as_ref().and_then(|lead| lead.silent_for(context.now())),
            running: running.team,
            live_workers: running.workers.into_iter().collect::<HashSet<_>>(),
            desired: running.desired,
            now: context.now(),
        };
        let reasons = explain(self.id, &situation);
        let subject = view.tasks.get(&self.id).map(|task| task.subject.clone()).unwrap_or_default();
        let data = serde_json::json!({ "task": self.id, "subject": subject, "reasons": reasons });
        let answer = context.output.answer(&data, || text(self.id, &subject, &reasons, context.output.columns))?;
        let is_there = view.tasks.contains_key(&self.id) || view.is_spoiled(self.id);
        Ok(if is_there { answer } else { answer.exit(Exit::Unfinished) })
    }
}

fn text(id: TaskId, subject: &str, reasons: &[Reason], columns: usize) -> String {
    let title = cut(&format!("{id} {}", one_line(subject)), columns);
    let mut out = format!("{}\n", paint(BOLD, title.trim_end()));
    for reason in reasons {
        out.push_str(&format!("- {}\n", wrap(&reason.text, columns, 2).trim_end()));
        if let Some(hint) = &reason.hint {
            out.push_str(&format!("  {}\n", paint(DIM, &wrap(&format!("→ {hint}"), columns.saturating_sub(2), 4))));
        }
    }
    out
}
