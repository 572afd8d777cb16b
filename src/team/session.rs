//! The lead's session: its begin, report and end, by the lead's model or, for a `runbook` lead, by fixed rules.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::agents::AgentServices;
use super::agents::conversation::Conversation;
use super::agents::mail::request_of;
use super::agents::worktree::WorktreeService;
use super::lead::Lead;
use super::running_member::RunningMember;
use super::spec::TeamSpec;
use super::teammate::{Prompt, TeammateCommand};
use crate::domain::approval::RequestKind;
use crate::domain::dependencies;
use crate::domain::event::{EventKind, GoalCheck, TaskCounts};
use crate::domain::failure_summary;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, LEAD};
use crate::domain::prompt::mail_record;
use crate::domain::session::SessionStage;
use crate::domain::state::Mode;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::transcript::PromptKind;
use crate::ports::{BoardView, CommandPlace, StoreResult};
use crate::service::command::{self, CommandContext};

/// Maximum number of times that a session continues because tasks or mail were left after the report.
const CONTINUATIONS_MAX: u32 = 5;
/// The time limit of `done_when`.
const DONE_WHEN_TIMEOUT: Duration = Duration::from_secs(1800);
/// Failed and blocked tasks named in a summary; more are counted.
const NAMED_MAX: usize = 5;

/// The result of `done_when`.
#[derive(Debug, Clone)]
pub struct DoneWhenResult {
    /// True if the command exited 0.
    pub is_met: bool,
    /// The command's exit and the end of its output.
    pub text: String,
}

impl DoneWhenResult {
    /// Returns the command and its exit, with the reason if the goal is not met.
    fn evidence(&self) -> String {
        let text = if self.is_met {
            self.text.lines().next().unwrap_or("").to_owned()
        } else {
            failure_summary::summary_of(&self.text)
        };
        text.trim_end_matches('.').to_owned()
    }

    fn for_event(&self) -> GoalCheck {
        GoalCheck { met: self.is_met, evidence: self.evidence() }
    }
}

/// The current session and the result of the last one.
pub struct Session {
    /// The current stage.
    pub stage: SessionStage,
    /// The summary of the last session.
    pub summary: String,
    /// An error of the last session other than failed tasks.
    pub error: Option<String>,
    number: u64,
    continuations: u32,
    is_single_session: bool,
    is_last_session_over: bool,
    lead_is_llm: bool,
    goal: Option<String>,
    /// The lead's last prompt. The lead works until it reports that this prompt is answered.
    prompt: Option<Prompt>,
    /// The number of the lead's goal reports at the begin of the session.
    goal_reports_at_begin: u64,
    is_report_requested: bool,
    check_result: Option<DoneWhenResult>,
    check: Option<JoinHandle<DoneWhenResult>>,
    /// The transcript of a `runbook` lead's mail.
    runbook_conversation: Option<Conversation>,
}

impl Session {
    /// Creates the state before the first session. With `is_single_session`, the process ends with it. A `runbook` lead keeps its mail
    /// in `conversation`.
    #[must_use]
    pub fn new(
        spec: &TeamSpec,
        is_single_session: bool,
        has_plan: bool,
        conversation: Option<Conversation>,
        was_given_goal: bool,
    ) -> Self {
        let lead_is_llm = conversation.is_none();
        let goal = spec.goal.clone().filter(|_| lead_is_llm && !has_plan && !was_given_goal);
        Self {
            stage: SessionStage::NoSession,
            summary: String::new(),
            error: None,
            number: 0,
            continuations: 0,
            is_single_session,
            is_last_session_over: false,
            lead_is_llm,
            goal,
            prompt: None,
            goal_reports_at_begin: 0,
            is_report_requested: false,
            check_result: None,
            check: None,
            runbook_conversation: conversation,
        }
    }

    /// Returns true if the lead has a model; a `runbook` lead has none.
    #[must_use]
    pub fn lead_is_llm(&self) -> bool {
        self.lead_is_llm
    }

    /// Returns true if the lead was not given the goal yet.
    #[must_use]
    pub fn has_unplanned_goal(&self) -> bool {
        self.goal.is_some()
    }

    /// Returns true after the only session of this process.
    #[must_use]
    pub fn is_last_session_over(&self) -> bool {
        self.is_last_session_over
    }

    /// Returns true if the lead has not answered a prompt, or the goal is being checked.
    #[must_use]
    pub fn lead_is_busy(&self, lead: Option<&RunningMember>) -> bool {
        if self.check.as_ref().is_some_and(|check| !check.is_finished()) {
            return true;
        }
        lead.is_some_and(|lead| lead.is_usable() && (lead.is_busy() || self.unanswered_prompt(lead).is_some()))
    }

    fn unanswered_prompt(&self, lead: &RunningMember) -> Option<&Prompt> {
        self.prompt.as_ref().filter(|prompt| lead.status.borrow().prompts_answered < prompt.number)
    }

    fn send_prompt(&mut self, lead: &RunningMember, kind: PromptKind, text: String) {
        let number = self.prompt.as_ref().map_or(1, |prompt| prompt.number + 1);
        let prompt = self.prompt.insert(Prompt { number, kind, text });
        lead.send(TeammateCommand::Prompt(prompt.clone()));
    }

    /// Repeats the unanswered prompt to a restarted lead.
    pub fn resend_prompt(&mut self, lead: Option<&RunningMember>) {
        if let Some(lead) = lead
            && let Some(prompt) = self.unanswered_prompt(lead)
        {
            lead.send(TeammateCommand::Prompt(prompt.clone()));
        }
    }

    /// Gives the goal to the lead once, as soon as its model can be reached.
    pub fn send_goal(&mut self, lead: Option<&RunningMember>) {
        if let Some(lead) = lead.filter(|lead| lead.is_usable())
            && let Some(goal) = self.goal.take()
        {
            self.send_prompt(lead, PromptKind::Goal, goal_prompt(&goal));
        }
    }

    /// Records mail for a `runbook` lead in its transcript and reports its delivery.
    ///
    /// # Errors
    /// A store failed.
    pub async fn read_as_runbook(&mut self, services: &AgentServices) -> StoreResult<()> {
        let Some(conversation) = &mut self.runbook_conversation else { return Ok(()) };
        let mailbox = &services.stores.mailbox;
        let deliveries = mailbox.take(LEAD, conversation.delivered_keys()).await?;
        if !deliveries.is_empty() {
            let messages: Vec<_> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
            for message in &messages {
                record_plan(services, message).await;
            }
            let keys = deliveries.iter().map(|delivery| delivery.key.clone()).collect();
            conversation.record(mail_record(&messages, keys)).await?;
            for delivery in deliveries {
                forward_plan(services, &delivery.message).await?;
                services.events.record(EventKind::MessageDelivered {
                    to: LEAD.to_owned(),
                    from: delivery.message.from,
                    message: delivery.key,
                });
            }
        }
        mailbox.settle(LEAD, conversation.persisted_keys().await?).await
    }
}

/// Records the plan of another program as a request to the person, because a `runbook` lead answers no plans. The record is written
/// before the mail counts as read.
async fn record_plan(services: &AgentServices, plan: &Message) {
    let request = request_of(plan, RequestKind::PlanApproval, HUMAN, services.clock.now());
    if let Some(request) = request.filter(|_| plan.kind == MessageType::PlanApprovalRequest)
        && let Err(error) = services.stores.requests.record(request).await
    {
        services.events.warn(LEAD, format!("cannot record a plan of {}: {error}", plan.from));
    }
}

/// Forwards such a plan to the person.
async fn forward_plan(services: &AgentServices, plan: &Message) -> StoreResult<()> {
    if plan.kind != MessageType::PlanApprovalRequest {
        return Ok(());
    }
    let message = services.stores.mailbox.send(HUMAN, Message { id: None, ..plan.clone() }).await?;
    let about = plan.content.lines().next().unwrap_or_default().to_owned();
    services.events.record(EventKind::MessageSent { from: plan.from.clone(), to: HUMAN.to_owned(), message, about });
    Ok(())
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(check) = &self.check {
            check.abort();
        }
    }
}

impl Lead {
    /// Begins a session, so that teammates may claim. In mode `run_cleanup`, sends the cleanup instructions to the lead.
    pub(super) fn begin(&mut self, mode: Mode) {
        let session = &mut self.session;
        session.number += 1;
        session.continuations = 0;
        session.is_report_requested = false;
        session.check_result = None;
        session.error = None;
        session.stage = SessionStage::Running(mode);
        session.goal_reports_at_begin = self.members.lead().map_or(0, |lead| lead.status.borrow().goal_reports.count);
        self.services.events.record(EventKind::SessionStarted { session: session.number, mode });
        if mode == Mode::RunCleanup
            && let Some(lead) = self.members.lead().filter(|lead| lead.is_usable())
        {
            session.send_prompt(lead, PromptKind::Goal, goal_prompt(self.services.prompts.cleanup.trim()));
        }
    }

    /// Enters the reporting stage. Starts `done_when`, unless the desired state is `pause`.
    pub(super) fn start_report(&mut self) {
        let SessionStage::Running(mode) = self.session.stage else { return };
        self.session.stage = SessionStage::Reporting(mode);
        if let Some(command) = self.spec.done_when.clone()
            && self.desired != Mode::Pause
        {
            let isolation = self.services.isolation.clone();
            let check = run_done_when(command, self.command_context(), isolation, Arc::clone(&self.member_reported));
            self.session.check = Some(tokio::spawn(check));
        }
    }

    fn command_context(&self) -> CommandContext {
        // Without a claim none can be lost, so the channel may close.
        let (_, claim) = watch::channel(None);
        let isolation = self.services.isolation.as_ref();
        let rules = isolation.map(|isolation| isolation.boundaries(CommandPlace::Lead, &self.services.control_files));
        let rules = rules.unwrap_or_default();
        CommandContext {
            workspace: self.services.work_folder().to_owned(),
            sandbox: self.services.sandbox.clone(),
            rules,
            registry: self.worker.register(LEAD, Arc::default()),
            output_bytes_max: self.services.limits.tool_output_bytes_max,
            team: self.spec.name.to_string(),
            teammate: LEAD.to_owned(),
            claim,
            confined_only_reason: None,
            variables: Vec::new(),
            is_ignored_line: |_| false,
        }
    }

    /// Requests the lead's report at the first call. At the next call, ends the session, or continues it if tasks or mail are left.
    pub(super) async fn request_report_or_finish(&mut self) {
        let SessionStage::Reporting(mode) = self.session.stage else { return };
        if let Some(check) = self.session.check.take() {
            self.session.check_result = check.await.ok();
        }
        self.poll_board().await;
        if self.has_resigned() {
            return;
        }
        self.ready.refresh(&self.view);
        if !self.session.is_report_requested
            && let Some(lead) = self.members.lead().filter(|lead| lead.is_usable())
        {
            self.session.is_report_requested = true;
            let facts = session_facts(&self.view, self.task_counts(), None) + &failures(&self.view);
            let text = report_prompt(&facts, &self.spec, self.session.check_result.as_ref());
            self.session.send_prompt(lead, PromptKind::Report, text);
            return;
        }
        let has_mail = self.has_unread_mail().await;
        if (has_mail || self.has_claimable_task())
            && self.desired != Mode::Pause
            && self.session.continuations < CONTINUATIONS_MAX
        {
            self.session.continuations += 1;
            self.session.is_report_requested = false;
            self.session.stage = SessionStage::Running(mode);
            return;
        }
        self.finish_session(mode).await;
    }

    /// Returns true if the report left claimable tasks.
    fn has_claimable_task(&self) -> bool {
        let usable = self.members.teammates().filter(|member| member.is_usable());
        let members = usable.map(|member| (member.spec.name.as_str(), member.capabilities.as_slice()));
        self.ready.has_task_for(self.services.clock.now(), members)
    }

    async fn finish_session(&mut self, mode: Mode) {
        let counts = self.task_counts();
        self.has_unread_mail().await;
        let unread_error = if self.desired == Mode::Pause { None } else { self.unread_mail_error() };
        self.session.error = self.session_error(counts).or(unread_error);
        let facts = session_facts(&self.view, counts, self.session.check_result.as_ref());
        let status = self.members.lead().map(|lead| lead.status.borrow().clone()).unwrap_or_default();
        let report = status.last_text.filter(|_| self.session.is_report_requested && !status.has_unanswered);
        let outcome = report.as_ref().map(|_| task_counts_sentence(&self.view, counts));
        let mut summary = report.unwrap_or(facts);
        if let Some(error) = &self.session.error {
            summary.push_str(&format!(" {error}"));
        }
        self.session.summary.clone_from(&summary);
        let goal = self.session.check_result.as_ref().map(DoneWhenResult::for_event);
        self.services.events.record(EventKind::SessionFinished {
            session: self.session.number,
            summary,
            outcome,
            tally: counts,
            goal,
        });
        self.session.stage = SessionStage::NoSession;
        self.session.is_last_session_over = self.session.is_single_session;
        let met = match (&self.spec.done_when, &self.session.check_result) {
            (Some(command), Some(result)) if result.is_met => Some(format!("goal met: `{command}` exited 0")),
            (None, _) if status.goal_reports.count > self.session.goal_reports_at_begin => {
                Some(format!("goal met: {}", status.goal_reports.last_summary))
            }
            _ => None,
        };
        if mode.is_one_shot() {
            self.end_mode(mode, &format!("{mode} is done")).await;
        } else if let Some(note) = met {
            self.end_mode(mode, &note).await;
        }
    }

    /// Returns the reason, other than failed tasks, why the work could not be done: no member could do or plan it.
    fn session_error(&self, counts: TaskCounts) -> Option<String> {
        if let Some(vanished) = self.vanished_text() {
            return Some(vanished);
        }
        let unusable: Vec<&RunningMember> = self.members.teammates().filter(|member| !member.is_usable()).collect();
        if counts.pending > 0 && self.members.teammates().all(|member| !member.is_usable()) {
            return Some(format!("No teammate can work ({}).", members_by_reason(&unusable)));
        }
        let lead = self.members.lead().filter(|lead| !lead.is_usable())?;
        let is_goal_planned = !self.session.has_unplanned_goal() && self.session.unanswered_prompt(lead).is_none();
        if self.spec.goal.is_some() && !is_goal_planned {
            Some(format!("The lead cannot work ({}).", members_by_reason(&[lead])))
        } else {
            None
        }
    }

    /// Returns a sentence that names the members with unread mail.
    fn unread_mail_error(&self) -> Option<String> {
        let names: Vec<&str> = self.members_with_mail().chain(self.unreadable_mail()).take(NAMED_MAX).collect();
        if names.is_empty() {
            return None;
        }
        Some(format!("Mail was not read: `brigade inbox {}`.", names.join(", ")))
    }

    /// Counts the tasks of the board by status.
    pub(super) fn task_counts(&self) -> TaskCounts {
        dependencies::count_tasks(self.view.tasks.values().map(AsRef::as_ref), &*self.view)
    }
}

/// Returns the members that cannot work, grouped by reason: `alice, bob: the disk is full; carol: it was asked to stop`.
fn members_by_reason(members: &[&RunningMember]) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for member in members.iter().take(NAMED_MAX) {
        let reason = member.unusable_reason().unwrap_or_else(|| "it was asked to stop".to_owned());
        let reason = reason.lines().next().unwrap_or("").trim_end_matches('.').to_owned();
        match groups.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, names)) => names.push(member.spec.name.as_str()),
            None => groups.push((reason, vec![member.spec.name.as_str()])),
        }
    }
    let groups: Vec<String> =
        groups.into_iter().map(|(reason, names)| format!("{}: {reason}", names.join(", "))).collect();
    groups.join("; ")
}

/// Returns the prompt that gives the lead its goal.
#[must_use]
pub fn goal_prompt(goal: &str) -> String {
    format!("<goal>{goal}</goal>")
}

/// Runs `done_when` in the folder with the merged work.
async fn run_done_when(
    script: String,
    context: CommandContext,
    isolation: Option<WorktreeService>,
    done: Arc<tokio::sync::Notify>,
) -> DoneWhenResult {
    let updated = match isolation {
        Some(isolation) => isolation.repository.update_team_worktree().await,
        None => Ok(None),
    };
    let result = match updated {
        Ok(None) => match command::run(&script, DONE_WHEN_TIMEOUT, &context).await {
            Ok(outcome) => {
                let text = format!("`{script}`: {}\n{}", outcome.ending_text(), outcome.output);
                DoneWhenResult { is_met: outcome.is_success(), text }
            }
            Err(error) => DoneWhenResult { is_met: false, text: format!("`{script}`: {error}") },
        },
        Ok(Some(reason)) => DoneWhenResult { is_met: false, text: format!("`{script}` was not run: {reason}") },
        Err(error) => DoneWhenResult { is_met: false, text: format!("`{script}` was not run: {error}") },
    };
    // This task finishes just after the notification. The lead may notice only at its next tick.
    done.notify_one();
    result
}

fn report_prompt(facts: &str, spec: &TeamSpec, check_result: Option<&DoneWhenResult>) -> String {
    let goal = spec.goal.as_deref().unwrap_or("(none)");
    let check = check_result.map_or_else(String::new, |result| {
        format!("\nThe check of the goal: {}", crate::domain::tags::escape_tags(&result.text))
    });
    let facts = crate::domain::tags::escape_tags(facts);
    format!(
        "<report>The team has no work left. {facts}\nThe goal: {goal}{check}\nReport to the person, or add tasks for what is missing.</report>"
    )
}

/// Returns the result of a session in one or two sentences.
#[must_use]
pub fn session_facts(view: &BoardView, counts: TaskCounts, check_result: Option<&DoneWhenResult>) -> String {
    let noun = if view.tasks.len() == 1 { "task" } else { "tasks" };
    let mut text = format!("{} {noun}: {}.", view.tasks.len(), task_counts_sentence(view, counts));
    if let Some(result) = check_result {
        text.push_str(&format!(" {}", result.for_event().sentence(counts)));
    }
    text
}

/// Returns the reasons of failed tasks for the lead's report; people have seen them already.
fn failures(view: &BoardView) -> String {
    let failed = view.tasks.values().filter(|task| task.status == TaskStatus::Failed);
    let sentence = |task: &Arc<Task>| {
        let reason = failure_summary::summary_of(task.result.as_ref().map_or("", |result| result.summary.as_str()));
        format!(" {} ({}) failed: {}.", task.id, task.subject, reason.trim_end_matches('.'))
    };
    failed.take(NAMED_MAX).map(sentence).collect()
}

/// Returns the number of tasks in each status, and the failed tasks.
fn task_counts_sentence(view: &BoardView, counts: TaskCounts) -> String {
    let mut parts = vec![format!("{} completed", counts.completed)];
    let failed = view.tasks.values().filter(|task| task.status == TaskStatus::Failed);
    let mut ids: Vec<String> = failed.take(NAMED_MAX + 1).map(|task| task.id.to_string()).collect();
    if ids.len() > NAMED_MAX {
        ids[NAMED_MAX] = "…".to_owned();
    }
    for (count, word) in [
        (counts.failed, format!("failed ({})", ids.join(", "))),
        (counts.blocked, "blocked".to_owned()),
        (counts.pending, "pending".to_owned()),
        (counts.in_progress, "in progress".to_owned()),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    parts.join(", ")
}
