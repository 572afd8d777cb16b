//! One session: how the lead opens it, has it reported and closes it; by its model, or by rule where that does not think.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::agent::request_of;
use super::conversation::Conversation;
use super::lead::Lead;
use super::members::Member;
use super::spec::TeamSpec;
use super::teammate::{Control, Prompt};
use crate::domain::context::inbox_block;
use crate::domain::event::{Fact, GoalCheck, Tally};
use crate::domain::graph;
use crate::domain::message::{Message, MessageType};
use crate::domain::mode::Stage;
use crate::domain::name::{HUMAN, LEAD};
use crate::domain::reason;
use crate::domain::request::RequestKind;
use crate::domain::state::Mode;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::transcript::{Block, MessageRecord, Role};
use crate::ports::{BoardView, StoreResult};
use crate::tools::command::{self, CommandSetting};

/// How often a lead may add tasks in its closing report before the session ends all the same.
const ROUNDS_MAX: u32 = 5;
/// How long `done_when` may take.
const DONE_WHEN_TIMEOUT: Duration = Duration::from_secs(1800);
/// Failed and blocked tasks a summary names; more are counted.
const NAMED_MAX: usize = 5;

/// What came of `done_when`.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Whether it exited 0.
    pub is_met: bool,
    /// How it ended, with the end of its output.
    pub text: String,
}

impl Checked {
    /// The command and how it ended, and why where that is not as it should be.
    fn evidence(&self) -> String {
        let text =
            if self.is_met { self.text.lines().next().unwrap_or("").to_owned() } else { reason::short(&self.text) };
        text.trim_end_matches('.').to_owned()
    }

    fn for_event(&self) -> GoalCheck {
        GoalCheck { met: self.is_met, evidence: self.evidence() }
    }
}

/// See the module.
pub struct Session {
    /// Where it is.
    pub stage: Stage,
    /// How the last one came out, in words.
    pub summary: String,
    /// What kept the last one from what it was for, other than its tasks.
    pub trouble: Option<String>,
    number: u64,
    rounds: u32,
    is_only_one: bool,
    is_over_for_good: bool,
    lead_thinks: bool,
    goal: Option<String>,
    /// The last prompt of the lead: it works until it says that it has answered it.
    prompt: Option<Prompt>,
    /// How often the goal had been called done when the session began.
    goals_done: u64,
    report_asked: bool,
    checked: Option<Checked>,
    check: Option<JoinHandle<Checked>>,
    rule_conversation: Option<Conversation>,
}

impl Session {
    /// None yet. `is_only_one`: the process ends with the first. A lead that does not think keeps its mail in `conversation`.
    #[must_use]
    pub fn new(
        spec: &TeamSpec,
        is_only_one: bool,
        has_plan: bool,
        conversation: Option<Conversation>,
        told: bool,
    ) -> Self {
        let lead_thinks = conversation.is_none();
        let goal = spec.goal.clone().filter(|_| lead_thinks && !has_plan && !told);
        Self {
            stage: Stage::Between,
            summary: String::new(),
            trouble: None,
            number: 0,
            rounds: 0,
            is_only_one,
            is_over_for_good: false,
            lead_thinks,
            goal,
            prompt: None,
            goals_done: 0,
            report_asked: false,
            checked: None,
            check: None,
            rule_conversation: conversation,
        }
    }

    /// Whether the lead has a model that thinks.
    #[must_use]
    pub fn lead_thinks(&self) -> bool {
        self.lead_thinks
    }

    /// Whether the goal still has to be handed to the lead.
    #[must_use]
    pub fn goal_unplanned(&self) -> bool {
        self.goal.is_some()
    }

    /// Whether the process had the one session it is for.
    #[must_use]
    pub fn is_over_for_good(&self) -> bool {
        self.is_over_for_good
    }

    /// Whether the lead was asked something and has not answered, or the goal is being checked.
    #[must_use]
    pub fn lead_is_prompted(&self, lead: Option<&Member>) -> bool {
        if self.check.as_ref().is_some_and(|check| !check.is_finished()) {
            return true;
        }
        lead.is_some_and(|lead| lead.is_usable() && (lead.works() || self.unanswered(lead).is_some()))
    }

    fn unanswered(&self, lead: &Member) -> Option<&Prompt> {
        self.prompt.as_ref().filter(|prompt| lead.standing.borrow().prompts_answered < prompt.number)
    }

    fn prompt(&mut self, lead: &Member, text: String) {
        let number = self.prompt.as_ref().map_or(1, |prompt| prompt.number + 1);
        let prompt = self.prompt.insert(Prompt { number, text });
        lead.tell(Control::Prompt(prompt.clone()));
    }

    /// Asks a lead that was started again what the one before it has not answered.
    pub fn prompt_again(&mut self, lead: Option<&Member>) {
        if let Some(lead) = lead
            && let Some(prompt) = self.unanswered(lead)
        {
            lead.tell(Control::Prompt(prompt.clone()));
        }
    }

    /// Hands the goal to the lead, unless that was done, as soon as it can be reached.
    pub fn hand_over_goal(&mut self, lead: Option<&Member>) {
        if let Some(lead) = lead.filter(|lead| lead.is_usable())
            && let Some(goal) = self.goal.take()
        {
            self.prompt(lead, goal_text(&goal));
        }
    }

    /// Takes in mail for a lead that does not think: its transcript keeps it, and people see it as it comes.
    ///
    /// # Errors
    /// The stores'.
    pub async fn read_by_rule(&mut self, lead: &super::agent::Shared) -> StoreResult<()> {
        let Some(conversation) = &mut self.rule_conversation else { return Ok(()) };
        let mailbox = &lead.stores.mailbox;
        let deliveries = mailbox.take(LEAD, conversation.delivered()).await?;
        if !deliveries.is_empty() {
            let messages: Vec<_> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
            for message in &messages {
                note_plan(lead, message).await;
            }
            let mut record = MessageRecord::new(Role::User, vec![Block::text(inbox_block(&messages))]);
            record.delivered = deliveries.iter().map(|delivery| delivery.key.clone()).collect();
            conversation.record(record).await?;
            for delivery in deliveries {
                pass_on_plan(lead, &delivery.message).await?;
                lead.notes.fact(Fact::MessageDelivered {
                    to: LEAD.to_owned(),
                    from: delivery.message.from,
                    message: delivery.key,
                });
            }
        }
        mailbox.settle(LEAD, conversation.carried().await?).await
    }
}

/// A plan that another program handed in to a lead that goes by rule is the person's to answer: it is recorded as such before its
/// mail counts as read.
async fn note_plan(lead: &super::agent::Shared, plan: &Message) {
    let request = request_of(plan, RequestKind::PlanApproval, HUMAN, lead.clock.now());
    if let Some(request) = request.filter(|_| plan.kind == MessageType::PlanApprovalRequest)
        && let Err(error) = lead.stores.requests.open(request).await
    {
        lead.notes.warn(LEAD, format!("a plan of {} cannot be recorded: {error}", plan.from));
    }
}

/// Hands such a plan on to the person.
async fn pass_on_plan(lead: &super::agent::Shared, plan: &Message) -> StoreResult<()> {
    if plan.kind != MessageType::PlanApprovalRequest {
        return Ok(());
    }
    let message = lead.stores.mailbox.send(HUMAN, Message { id: None, ..plan.clone() }).await?;
    let about = plan.content.lines().next().unwrap_or_default().to_owned();
    lead.notes.fact(Fact::MessageSent { from: plan.from.clone(), to: HUMAN.to_owned(), message, about });
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
    /// Opens a session: the teammates may claim, and the lead is told what is wanted.
    pub(super) fn begin(&mut self, mode: Mode) {
        let session = &mut self.session;
        session.number += 1;
        session.rounds = 0;
        session.report_asked = false;
        session.checked = None;
        session.trouble = None;
        session.stage = Stage::Running(mode);
        session.goals_done = self.members.lead().map_or(0, |lead| lead.standing.borrow().goals_done.0);
        self.shared.notes.fact(Fact::SessionStarted { session: session.number, mode });
        if mode == Mode::RunCleanup
            && let Some(lead) = self.members.lead().filter(|lead| lead.is_usable())
        {
            session.prompt(lead, format!("<goal>{}</goal>", self.shared.prompts.cleanup.trim()));
        }
    }

    /// All is settled: checks whether the goal is met, and has the lead report.
    pub(super) fn ask_for_report(&mut self) {
        let Stage::Running(mode) = self.session.stage else { return };
        self.session.stage = Stage::Reporting(mode);
        if let Some(command) = self.spec.done_when.clone()
            && self.desired != Mode::Pause
        {
            self.session.check = Some(tokio::spawn(check(command, self.command_setting(), Arc::clone(&self.reported))));
        }
    }

    fn command_setting(&self) -> CommandSetting {
        // Nothing is held, so nothing can be lost; the channel may close.
        let (_, holding) = watch::channel(None);
        CommandSetting {
            workspace: self.shared.workspace.clone(),
            sandbox: self.shared.sandbox.clone(),
            rules: Vec::new(),
            commands: self.worker.enlist(LEAD, Arc::default()),
            output_bytes_max: self.shared.limits.tool_output_bytes_max,
            team: self.spec.name.to_string(),
            teammate: LEAD.to_owned(),
            holding,
            must_be_confined: false,
            variables: Vec::new(),
            is_noise: |_| false,
        }
    }

    /// Ends the session once the lead has reported, or opens it again for tasks the lead added.
    pub(super) async fn finish_session(&mut self) {
        let Stage::Reporting(mode) = self.session.stage else { return };
        if let Some(check) = self.session.check.take() {
            self.session.checked = check.await.ok();
        }
        self.look_at_board().await;
        self.ready.look(&self.view);
        if !self.session.report_asked
            && let Some(lead) = self.members.lead().filter(|lead| lead.is_usable())
        {
            self.session.report_asked = true;
            let by_rule = summary_by_rule(&self.view, self.tally(), None);
            let by_rule = by_rule + &failures(&self.view);
            let text = report_request(&by_rule, &self.spec, self.session.checked.as_ref());
            self.session.prompt(lead, text);
            return;
        }
        let has_mail = self.has_unread_mail().await;
        if (has_mail || self.has_more()) && self.desired != Mode::Pause && self.session.rounds < ROUNDS_MAX {
            self.session.rounds += 1;
            self.session.report_asked = false;
            self.session.stage = Stage::Running(mode);
            return;
        }
        self.conclude(mode).await;
    }

    /// Whether the report left something to do.
    fn has_more(&self) -> bool {
        let usable = self.members.teammates().filter(|member| member.is_usable());
        let members = usable.map(|member| (member.spec.name.as_str(), member.can_do.as_slice()));
        self.ready.is_any_due_for(self.shared.clock.now(), members)
    }

    async fn conclude(&mut self, mode: Mode) {
        let tally = self.tally();
        self.has_unread_mail().await;
        let unread = if self.desired == Mode::Pause { None } else { self.unread() };
        self.session.trouble = self.trouble(tally).or(unread);
        let by_rule = summary_by_rule(&self.view, tally, self.session.checked.as_ref());
        let standing = self.members.lead().map(|lead| lead.standing.borrow().clone()).unwrap_or_default();
        let said = standing.last_said.filter(|_| self.session.report_asked && !standing.owes_answer);
        let outcome = said.as_ref().map(|_| in_figures(&self.view, tally));
        let mut summary = said.unwrap_or(by_rule);
        if let Some(trouble) = &self.session.trouble {
            summary.push_str(&format!(" {trouble}"));
        }
        self.session.summary.clone_from(&summary);
        let goal = self.session.checked.as_ref().map(Checked::for_event);
        self.shared.notes.fact(Fact::SessionFinished { session: self.session.number, summary, outcome, tally, goal });
        self.session.stage = Stage::Between;
        self.session.is_over_for_good = self.session.is_only_one;
        let (goals_done, goal_summary) = standing.goals_done;
        let met = match (&self.spec.done_when, &self.session.checked) {
            (Some(command), Some(checked)) if checked.is_met => Some(format!("goal met: `{command}` exited 0")),
            (None, _) if goals_done > self.session.goals_done => Some(format!("goal met: {goal_summary}")),
            _ => None,
        };
        if mode.is_one_shot() {
            self.end_mode(mode, &format!("{mode} is done")).await;
        } else if let Some(note) = met {
            self.end_mode(mode, &note).await;
        }
    }

    /// What keeps the team from its work, where that is not in its tasks: nobody is left who could do them, or plan them.
    fn trouble(&self, tally: Tally) -> Option<String> {
        if let Some(vanished) = self.vanished() {
            return Some(vanished);
        }
        let names = |members: Vec<&Member>| {
            let named = members.iter().take(NAMED_MAX).map(|member| {
                let reason = member.trouble().unwrap_or_else(|| "it was asked to stop".to_owned());
                format!("{}: {}", member.spec.name, reason.lines().next().unwrap_or("").trim_end_matches('.'))
            });
            named.collect::<Vec<_>>().join("; ")
        };
        let lost: Vec<&Member> = self.members.teammates().filter(|member| !member.is_usable()).collect();
        if tally.pending > 0 && self.members.teammates().all(|member| !member.is_usable()) {
            return Some(format!("Nobody is left who can work ({}).", names(lost)));
        }
        let lead = self.members.lead().filter(|lead| !lead.is_usable())?;
        let was_planned = !self.session.goal_unplanned() && self.session.unanswered(lead).is_none();
        (self.spec.goal.is_some() && !was_planned)
            .then(|| format!("The lead could not do its part ({}).", names(vec![lead])))
    }

    /// Whose mail was not read, in words.
    fn unread(&self) -> Option<String> {
        let names: Vec<&str> = self.whose_mail_waits().chain(self.unreadable_mail()).take(NAMED_MAX).collect();
        (!names.is_empty()).then(|| format!("Mail was not read: brigade inbox {}.", names.join(", ")))
    }

    /// How the tasks of the board stand.
    pub(super) fn tally(&self) -> Tally {
        graph::tally(self.view.tasks.values().map(AsRef::as_ref), &*self.view)
    }
}

/// The goal as the lead is handed it.
#[must_use]
pub fn goal_text(goal: &str) -> String {
    format!("<goal>{goal}</goal>")
}

async fn check(command: String, setting: CommandSetting, done: Arc<tokio::sync::Notify>) -> Checked {
    let checked = match command::run(&command, DONE_WHEN_TIMEOUT, &setting).await {
        Ok(outcome) => {
            let text = format!("`{command}`: {}\n{}", outcome.ending_text(), outcome.output);
            Checked { is_met: outcome.is_success(), text }
        }
        Err(error) => Checked { is_met: false, text: format!("`{command}`: {error}") },
    };
    // The task is finished a moment after this; the lead looks again when it is told and finds it so, or at its next tick.
    done.notify_one();
    checked
}

fn report_request(by_rule: &str, spec: &TeamSpec, checked: Option<&Checked>) -> String {
    let goal = spec.goal.as_deref().unwrap_or("(none was given)");
    let checked = checked.map_or_else(String::new, |checked| {
        format!("\nThe check of the goal: {}", crate::domain::tags::defuse(&checked.text))
    });
    let by_rule = crate::domain::tags::defuse(by_rule);
    format!(
        "<report>The board is settled. {by_rule}\nThe goal: {goal}{checked}\nReport to the person, or add tasks for what is missing.</report>"
    )
}

/// How a session came out, in a sentence or two.
#[must_use]
pub fn summary_by_rule(view: &BoardView, tally: Tally, checked: Option<&Checked>) -> String {
    let noun = if view.tasks.len() == 1 { "task" } else { "tasks" };
    let mut text = format!("{} {noun}: {}.", view.tasks.len(), in_figures(view, tally));
    if let Some(checked) = checked {
        let word = if checked.is_met { "met" } else { "not met" };
        text.push_str(&format!(" The goal is {word}: {}.", checked.evidence()));
    }
    text
}

/// Why tasks failed, for a lead that reports: a person was told when they were given up.
fn failures(view: &BoardView) -> String {
    let failed = view.tasks.values().filter(|task| task.status == TaskStatus::Failed);
    let tell = |task: &Arc<Task>| {
        let reason = reason::short(task.result.as_ref().map_or("", |result| result.summary.as_str()));
        format!(" {} ({}) failed: {}.", task.id, task.subject, reason.trim_end_matches('.'))
    };
    failed.take(NAMED_MAX).map(tell).collect()
}

/// How many tasks stand how, and which have failed.
fn in_figures(view: &BoardView, tally: Tally) -> String {
    let mut parts = vec![format!("{} completed", tally.completed)];
    let failed = view.tasks.values().filter(|task| task.status == TaskStatus::Failed);
    let mut ids: Vec<String> = failed.take(NAMED_MAX + 1).map(|task| task.id.to_string()).collect();
    if ids.len() > NAMED_MAX {
        ids[NAMED_MAX] = "…".to_owned();
    }
    for (count, word) in [
        (tally.failed, format!("failed ({})", ids.join(", "))),
        (tally.blocked, "blocked".to_owned()),
        (tally.pending, "pending".to_owned()),
        (tally.in_progress, "in progress".to_owned()),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    parts.join(", ")
}
