//! The current session, from its begin to its report, and the result of the last one.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::board::BoardWatch;
use super::done_when::DoneWhen;
use super::prompts::LeadPrompts;
use super::summary::{failures, members_by_reason, report_prompt, session_facts, task_counts_sentence};
use crate::agents::AgentServices;
use crate::domain::agent::transcript::PromptKind;
use crate::domain::log::event::EventKind;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::name::LEAD;
use crate::domain::team::session::SessionStage;
use crate::domain::team::state::Mode;
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::time::UnixMs;
use crate::ports::BoardView;
use crate::team::handle::TeamEnd;
use crate::team::running_member::RunningMember;
use crate::team::supervisor::Supervisor;
use crate::team::teammate::MemberErrorKind;

/// Maximum number of times that a session continues because tasks or mail were left after the report.
const CONTINUATIONS_MAX: u32 = 5;
/// Time after which the lead reports the tasks that a session waits for.
const WAIT_REPORTED_AFTER: Duration = Duration::from_secs(5);
/// Tasks named in that report; more are left out.
const WAITS_NAMED_MAX: usize = 4;

/// The current session and the result of the last one.
pub(super) struct Session {
    /// The current stage.
    pub stage: SessionStage,
    /// The mode of the session, if the process ends with it.
    pub only_session: Option<Mode>,
    /// The result of the last session.
    pub result: SessionResult,
    pub prompts: LeadPrompts,
    pub done_when: DoneWhen,
    number: u64,
    progress: SessionProgress,
    /// The number of the lead's goal reports that have had their effect.
    goal_reports_seen: u64,
}

/// The result of a session.
pub(super) struct SessionResult {
    /// Its summary.
    pub summary: String,
    /// An error other than failed tasks.
    pub error: Option<String>,
    /// The end of the team, if the process ends with this session.
    pub end: TeamEnd,
}

/// An error of a session other than failed tasks, and the end of the team that follows.
pub(super) struct SessionError {
    pub text: String,
    pub end: TeamEnd,
}

impl From<String> for SessionError {
    fn from(text: String) -> Self {
        Self { text, end: TeamEnd::SessionOver }
    }
}

/// The progress of one session.
#[derive(Default)]
struct SessionProgress {
    /// The board at its begin.
    view_at_begin: Arc<BoardView>,
    /// The number of the lead's texts before it.
    lead_texts_at_begin: u64,
    is_report_requested: bool,
    /// The number of times that it continued after its report.
    continuations: u32,
    /// The current wait for tasks, while no member works.
    wait: Option<TaskWait>,
}

/// A wait for tasks that no member works on.
struct TaskWait {
    tasks: Vec<TaskId>,
    since: Instant,
    is_reported: bool,
}

impl Session {
    /// Creates the state before the first session. With `only_session`, the process runs one session of this mode and ends.
    pub fn new(only_session: Option<Mode>) -> Self {
        Self {
            stage: SessionStage::NoSession,
            only_session,
            result: SessionResult { summary: String::new(), error: None, end: TeamEnd::SessionOver },
            prompts: LeadPrompts::default(),
            done_when: DoneWhen::default(),
            number: 0,
            progress: SessionProgress::default(),
            goal_reports_seen: 0,
        }
    }

    /// Returns true after the only session of this process.
    pub fn is_last_session_over(&self) -> bool {
        self.only_session.is_some() && self.number > 0 && self.stage == SessionStage::NoSession
    }

    /// Returns true if the lead has not answered a prompt, or the goal is being checked.
    pub fn is_lead_busy(&self, lead: Option<&RunningMember>) -> bool {
        let is_answering =
            |lead: &RunningMember| lead.is_usable() && (lead.is_busy() || self.prompts.unanswered(lead).is_some());
        self.done_when.is_running() || lead.is_some_and(is_answering)
    }

    /// Returns true if a task was worked on in this session: it was claimed, or it ended.
    fn has_worked(&self, board: &BoardWatch) -> bool {
        let before =
            |task: &Task| self.progress.view_at_begin.task(task.id).map(|before| (before.status, before.attempt));
        let is_worked_on = |task: &Arc<Task>| match before(task) {
            Some(before) => before != (task.status, task.attempt),
            None => task.status != TaskStatus::Pending,
        };
        board.view.tasks.values().any(is_worked_on)
    }

    /// Begins a session, so that teammates may claim. In mode `run_cleanup`, sends the cleanup instructions to the lead.
    pub fn begin(&mut self, mode: Mode, services: &AgentServices, board: &BoardWatch, lead: Option<&RunningMember>) {
        self.number += 1;
        self.done_when = DoneWhen::default();
        self.result.error = None;
        self.result.end = TeamEnd::SessionOver;
        self.stage = SessionStage::Running(mode);
        self.progress = SessionProgress {
            view_at_begin: Arc::clone(&board.view),
            lead_texts_at_begin: lead.map_or(0, |lead| lead.status.borrow().new_texts),
            ..SessionProgress::default()
        };
        services.events.record(EventKind::SessionStarted { session: self.number, mode });
        if mode == Mode::RunCleanup {
            match lead {
                Some(lead) if lead.is_usable() => {
                    let text = format!("<goal>{}</goal>", services.spec.prompts.cleanup.trim());
                    self.prompts.send(lead, PromptKind::Goal, text);
                }
                Some(_) => {}
                None => services.events.warn(LEAD, "it has no model and cannot lead a cleanup session"),
            }
        }
    }

    /// Requests the lead's report, unless it was requested already, the lead cannot answer, or no task was worked on. Returns true
    /// if it was requested now.
    pub fn request_report(&mut self, spec: &TeamSpec, board: &BoardWatch, lead: Option<&RunningMember>) -> bool {
        let Some(lead) = lead.filter(|lead| lead.is_usable()) else { return false };
        if self.progress.is_report_requested || !self.has_worked(board) {
            return false;
        }
        self.progress.is_report_requested = true;
        let facts = session_facts(&board.view, board.task_counts(), None) + &failures(&board.view);
        let text = report_prompt(&facts, spec.goal.as_deref(), self.done_when.result.as_ref());
        self.prompts.send(lead, PromptKind::Report, text);
        true
    }

    /// Continues the session after its report, because tasks or mail are left. Returns false if it continued too often.
    pub fn continue_after_report(&mut self, mode: Mode) -> bool {
        if self.progress.continuations >= CONTINUATIONS_MAX {
            return false;
        }
        self.progress.continuations += 1;
        self.progress.is_report_requested = false;
        self.stage = SessionStage::Running(mode);
        true
    }

    /// Forgets that the lead reported the goal as met, because a pause ended the session before its work was done.
    pub fn forget_goal_reports(&mut self, lead: Option<&RunningMember>) {
        self.goal_reports_seen = lead.map_or(0, |lead| lead.status.borrow().goal_reports.count);
    }

    /// Records an error of the session that ends.
    pub fn record_error(&mut self, error: Option<SessionError>) {
        self.result.end = error.as_ref().map_or(TeamEnd::SessionOver, |error| error.end);
        self.result.error = error.map(|error| error.text);
    }

    /// Ends the session and records its result. Returns the reason why the mode ends with it, if it does. A met goal does not end it
    /// while a member waits for an answer (`is_answer_awaited`), because the answer would stay unread during the pause.
    pub fn finish(
        &mut self,
        mode: Mode,
        services: &AgentServices,
        board: &BoardWatch,
        lead: Option<&RunningMember>,
        is_answer_awaited: bool,
    ) -> Option<String> {
        let counts = board.task_counts();
        let check = self.done_when.result.as_ref();
        let status = lead.map(|lead| lead.status.borrow().clone()).unwrap_or_default();
        let is_new = self.progress.is_report_requested || status.new_texts > self.progress.lead_texts_at_begin;
        let lead_text = if is_new && !status.has_unanswered { status.last_text } else { None };
        let outcome = lead_text.as_ref().map(|_| task_counts_sentence(&board.view, counts));
        let mut summary = lead_text.unwrap_or_else(|| session_facts(&board.view, counts, check));
        if let Some(error) = &self.result.error {
            summary.push_str(&format!(" {error}"));
        }
        self.result.summary.clone_from(&summary);
        services.events.record(EventKind::SessionFinished {
            session: self.number,
            summary,
            outcome,
            error: self.result.error.clone(),
            tally: counts,
            goal: check.map(|result| result.for_event()),
        });
        self.stage = SessionStage::NoSession;
        if mode.is_one_shot() {
            return Some(match self.result.end.model_problem() {
                Some(problem) => format!("{mode} ended: {problem}"),
                None => format!("{mode} is done"),
            });
        }
        if is_answer_awaited {
            return None;
        }
        let goal_reports_seen = std::mem::replace(&mut self.goal_reports_seen, status.goal_reports.count);
        match (&services.spec.done_when, check) {
            (Some(command), Some(result)) if result.is_met => Some(format!("goal met: `{command}` exited 0")),
            (None, _) if status.goal_reports.count > goal_reports_seen => {
                Some(format!("goal met: {}", status.goal_reports.last_summary))
            }
            _ => None,
        }
    }

    /// Returns an error if no member could do or plan the work. `has_lead_mail` is true if the lead has mail to answer.
    pub fn find_error(&self, board: &BoardWatch, members: &Supervisor, has_lead_mail: bool) -> Option<SessionError> {
        let unusable: Vec<&RunningMember> = members.teammates().filter(|member| !member.is_usable()).collect();
        if board.task_counts().pending > 0 && members.teammates().all(|member| !member.is_usable()) {
            let text = format!("No teammate can work ({}).", members_by_reason(&unusable));
            return Some(SessionError { text, end: end_of(&unusable) });
        }
        let has_task =
            |member: &RunningMember| board.queue.has_ready_or_waiting_task_for(iter::once(member.as_candidate()));
        let missed: Vec<&RunningMember> =
            unusable.into_iter().filter(|member| member.exit.is_none() && has_task(member)).collect();
        if !missed.is_empty() && !board.queue.has_ready_or_waiting_task_for(members.candidates()) {
            let text = format!("Tasks wait for teammates that cannot work ({}).", members_by_reason(&missed));
            return Some(SessionError { text, end: end_of(&missed) });
        }
        let lead = members.lead().filter(|lead| !lead.is_usable())?;
        if !has_lead_mail && self.prompts.unanswered(lead).is_none() {
            return None;
        }
        let text = format!("The lead cannot work ({}).", members_by_reason(&[lead]));
        Some(SessionError { text, end: end_of(&[lead]) })
    }

    /// Reports once the tasks that the session waits for if no member works. Nothing else would show them.
    pub fn report_wait(&mut self, services: &AgentServices, board: &BoardWatch, members: &Supervisor) {
        let now = services.clock.now();
        if !matches!(self.stage, SessionStage::Running(_)) || members.by_name.values().any(RunningMember::is_busy) {
            self.progress.wait = None;
            return;
        }
        let waits = |task: &&Arc<Task>| match task.status {
            TaskStatus::InProgress => task.claim.is_some(),
            TaskStatus::Pending => task.not_before.is_some_and(|until| until > now),
            _ => false,
        };
        let tasks: Vec<&Arc<Task>> = board.view.tasks.values().filter(waits).collect();
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        match &mut self.progress.wait {
            Some(wait) if wait.tasks == ids => {
                if wait.is_reported || ids.is_empty() || wait.since.elapsed() < WAIT_REPORTED_AFTER {
                    return;
                }
                wait.is_reported = true;
            }
            other => {
                *other = Some(TaskWait { tasks: ids, since: Instant::now(), is_reported: false });
                return;
            }
        }
        let reasons: Vec<String> = tasks.iter().take(WAITS_NAMED_MAX).map(|task| wait_reason(task, now)).collect();
        let more = if tasks.len() > WAITS_NAMED_MAX { ", …" } else { "" };
        services.events.warn("session", format!("waits, because {}{more}", reasons.join(", ")));
    }
}

/// Returns the end of a team that these members could not continue. A model that is out of reach comes first, because only time helps.
fn end_of(members: &[&RunningMember]) -> TeamEnd {
    let kind = |member: &&RunningMember| member.status.borrow().error.as_ref().map(|error| error.kind);
    match members.iter().filter_map(kind).min() {
        Some(MemberErrorKind::ModelOutOfReach) => TeamEnd::ModelOutOfReach,
        Some(MemberErrorKind::WrongModelSetting) => TeamEnd::WrongModelSetting,
        Some(MemberErrorKind::BudgetSpent) => TeamEnd::BudgetSpent,
        _ => TeamEnd::SessionOver,
    }
}

fn wait_reason(task: &Task, now: UnixMs) -> String {
    match (&task.claim, task.not_before) {
        (Some(_), _) => {
            format!("{} is claimed by {}", task.id, task.owner.as_deref().unwrap_or("a program outside the team"))
        }
        (None, Some(until)) => format!("{} is retried in {} s", task.id, until.since(now).as_secs() + 1),
        (None, None) => task.id.to_string(),
    }
}
