//! `brigade team`.

use std::sync::Arc;

use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use super::reminders::question_line;
use crate::api::pending::PendingView;
use crate::api::team::TeamStatus;
use crate::domain::task::Task;
use crate::domain::team::state::SharedState;
use crate::domain::text::one_line;
use crate::domain::text::units::join_up_to;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::lead_status as lead_text;
use crate::front::text::pending::PendingNotes;
use crate::front::text::style::warning;
use crate::front::text::team::render;
use crate::ports::LeadObstacle;

/// The most tasks that the note about a killed team names.
const NAMED_MAX: usize = 5;

/// Show the team: its state, its members and their work
#[derive(Debug, clap::Args)]
pub struct Team {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
}

impl Team {
    /// Shows the team.
    ///
    /// # Errors
    /// The team does not exist.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let mut status = TeamStatus::read(&context.workspace, self.team.as_ref()).await?;
        let team_branch = status.read_branch(&context.workspace);
        let TeamStatus { team, waiting, lead_status, spec, .. } = &status;
        let answer = context.output.answer(team, || render(team, context.workspace.now(), context.output.columns))?;
        let mut warnings = Vec::new();
        if let Some(LeadObstacle { reason, remedy }) = &lead_status.lead_obstacle {
            warnings.push(format!("{reason}; {remedy}"));
        }
        let is_running = team.process.running;
        if is_running && let Some(reason) = context.workspace.location.low_disk_reason(spec.as_ref()) {
            warnings.push(format!("the team takes no work: {reason}"));
        }
        // The first line of a team that does not run says so, whatever its state.
        let mut pause = if is_running { lead_status.pause() } else { None };
        let other_team = lead_status.other_lead(&team.team).map(|lead| lead_text::other_team(lead, &team.team).into());
        if let Some(warning) = lead_status.state.as_ref().and_then(SharedState::unknown_desired_warning) {
            warnings.push(one_line(&warning));
            pause = None;
        }
        let continuing = killed_team_note(&status).map(|note| hint!["the team ", note]).or_else(|| {
            let launch = status.continuing_launch()?;
            Some(hint!["the last run was stopped before its end: ", launch, " continues"])
        });
        Ok(answer
            .notes(PendingNotes::of(PendingView::of(waiting), team_branch.as_ref()).sentences())
            .notes(other_team.or(continuing))
            .notes(status.questions().iter().map(question_line))
            .notes(pause.as_ref().map(lead_text::pause))
            .notes(warnings.iter().map(|text| warning(text))))
    }
}

/// The note about the tasks that a killed team held, which the next launch continues. `None` if the team runs or held no task.
pub(in crate::front) fn killed_team_note(status: &TeamStatus) -> Option<Hint> {
    let task_of_owner = |task: &Arc<Task>| format!("{} of {}", task.id, one_line(task.owner.as_deref().unwrap_or("?")));
    if status.abandoned.is_empty() {
        return None;
    }
    let named = join_up_to(status.abandoned.iter().map(task_of_owner), NAMED_MAX);
    Some(hint!["was killed while it worked: ", status.continuing_launch()?, format!(" continues {named}")])
}
