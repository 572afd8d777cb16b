//! `brigade team`.

use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use super::reminders::question_line;
use crate::api::Launch;
use crate::api::merge::TeamBranch;
use crate::api::pending::PendingView;
use crate::api::task::abandoned_tasks;
use crate::api::team::{TeamStatus, TeamView};
use crate::domain::task::Task;
use crate::domain::team::state::{Mode, SharedState};
use crate::domain::text::one_line;
use crate::domain::text::units::join_up_to;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::lead_status as lead_text;
use crate::front::text::pending::{PendingNotes, team_branch as team_branch_text};
use crate::front::text::style::warning;
use crate::front::text::team::render;
use crate::ports::{BoardView, LeadObstacle};

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
        let status = TeamStatus::read(&context.workspace, self.team.as_ref()).await?;
        let TeamStatus { team, board, waiting, lead_status, spec } = &status;
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
        let stopped = status
            .is_stopped_run()
            .then(|| hint!["the last run was stopped before its end: ", Launch::Run { team: None }, " continues"]);
        if let Some(warning) = lead_status.state.as_ref().and_then(SharedState::unknown_desired_warning) {
            warnings.push(one_line(&warning));
            pause = None;
        }
        // While the team runs, its branch grows: the end of the run names the work to take over.
        let mut team_branch = None;
        if !is_running
            && let Some(spec) = spec
            && let Ok(workspace) = context.workspace.location.workspace()
        {
            let status = TeamBranch::of(spec, &workspace).and_then(|branch| branch.status(Some(board)).ok());
            team_branch = status.as_ref().and_then(team_branch_text);
        }
        let killed = killed_team_note(context, team, board).await.map(|note| hint!["the team ", note]);
        Ok(answer
            .notes(PendingNotes { waiting: PendingView::of(waiting), team_branch }.sentences())
            .notes(other_team.or(killed).or(stopped))
            .notes(status.questions().iter().map(question_line))
            .notes(pause.as_ref().map(lead_text::pause))
            .notes(warnings.iter().map(|text| warning(text))))
    }
}

/// The note about the tasks that a killed team held, which the next launch continues. `None` if the team runs or held no task.
pub(in crate::front) async fn killed_team_note(context: &Context, team: &TeamView, view: &BoardView) -> Option<Hint> {
    let task_of_owner = |task: &&Task| format!("{} of {}", task.id, one_line(task.owner.as_deref().unwrap_or("?")));
    let held: Vec<String> = abandoned_tasks(&context.workspace, view).await.iter().map(task_of_owner).collect();
    let named = join_up_to(held.iter(), NAMED_MAX);
    if team.process.running || held.is_empty() {
        return None;
    }
    let is_one_run = team.state.desired.is_some_and(Mode::is_one_shot);
    let launch = if is_one_run { Launch::Run { team: None } } else { Launch::Up { team: None } };
    Some(hint!["was killed while it worked: ", launch, format!(" continues {named}")])
}
