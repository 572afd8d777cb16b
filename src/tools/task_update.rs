//! `task_update`: what came of a task, and changes to its text, order and dependencies.
//!
//! A task with a verify command is completed only after that command exited 0 here. What is allowed to whom is the
//! board's to say, by the rules of `domain::change`.

use serde_json::Value;

use super::answers;
use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::command::CommandOutcome;
use super::deliver::{self, Delivered};
use super::review::{self, Stand, Work};
use super::task_create::{actor, checked_description, checked_subject};
use super::verify::{REDS_MAX, Reds};
use super::{Lodging, ReadOnly, ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::change::{Action, Actor, Change, TaskEdit, permit};
use crate::domain::event::Fact;
use crate::domain::reason;
use crate::domain::request::{About, REVIEW_REJECTED_IT, RequestKind, WAITS_FOR_REVIEW};
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::ports::StoreError;

/// The longest result, in bytes.
const RESULT_BYTES_MAX: usize = 16 * 1024;
/// The longest command that a reason names, in characters.
const COMMAND_CHARS_MAX: usize = 120;

/// Arguments that are no edit.
const NOT_EDITS: [&str; 5] = ["task_id", "status", "result", "final", "force"];

#[derive(Default)]
pub(super) struct TaskUpdate {
    reds: Reds,
}

#[async_trait::async_trait]
impl Checked for TaskUpdate {
    const NAME: &'static str = "task_update";
    const DESCRIPTION: &'static str = "Reports what came of the task you hold: `completed`, `failed`, or `pending` to give it back. `completed` runs the task's verify command; when it is red you get its output and still hold the task: mend the cause and report again (after 3 reds the attempt has failed). A failed task is tried again later, unless `final` is true. The lead retries a failed task and reopens a completed one with `pending`, and removes one with `deleted`. The lead, a task's creator and its holder change its text, order and dependencies with the other arguments.";
    const PARAMETERS: &'static [Parameter] = &[
        required("task_id", Kind::Task, "The task's number"),
        optional(
            "status",
            Kind::Word(&["pending", "in_progress", "completed", "failed", "deleted"]),
            "What became of it",
        ),
        optional("result", Kind::Text, "What was done and what shows it, or why it failed"),
        optional("final", Kind::Boolean, "With `failed`: another attempt cannot help"),
        optional("add_blocked_by", Kind::Tasks, "Tasks this one is to wait for"),
        optional("remove_blocked_by", Kind::Tasks, "Tasks this one need not wait for any more"),
        optional("add_blocks", Kind::Tasks, "Tasks that are to wait for this one"),
        optional("subject", Kind::Text, "Its line"),
        optional("description", Kind::Text, "Its whole description"),
        optional("priority", Kind::Integer, "Higher is claimed first"),
        optional("requires", Kind::Texts, "Roles or capabilities, one of which is needed; [] for anyone"),
        optional("verify", Kind::Text, "The command that shows it is done; empty removes it"),
        optional("active_form", Kind::Text, "The subject as something going on, such as `Counting lines`"),
        optional("owner", Kind::Text, "Whom a pending task is kept for; empty frees it"),
        optional("force", Kind::Boolean, "The lead only: do it though a teammate holds the task"),
    ];

    fn about(&self, input: &Value) -> String {
        format!("#{} {}", text_of(input, "task_id").trim_start_matches('#'), text_of(input, "status"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let call = Call::of(&arguments, context)?;
        let mut said = Vec::new();
        if arguments.has_other_than(&NOT_EDITS) {
            let edited = context.stores.board.change(call.id, Change::Edit(edit(&arguments)?), &call.by).await?;
            said.push(format!("changed task {}", edited.id));
        } else if call.status.is_none() {
            return Err(ToolError::Mendable("nothing to change was given; a report needs `status`".to_owned()));
        }
        let mut output = match call.status {
            Some("completed") => self.complete(&call, context).await,
            Some("failed") => self.fail(&call, context).await,
            Some("pending") => self.reset(&call, context).await,
            Some("deleted") => delete(&call, context).await,
            Some(_) => Err(ToolError::Mendable("a task gets in progress by being claimed: use claim_task".to_owned())),
            None => Ok(ToolOutput::default()),
        }?;
        said.extend(Some(std::mem::take(&mut output.text)).filter(|text| !text.is_empty()));
        Ok(ToolOutput { text: said.join("\n"), ..output })
    }
}

/// One report.
struct Call<'a> {
    id: TaskId,
    status: Option<&'a str>,
    result: String,
    is_final: bool,
    by: Actor,
    /// Whether the caller holds this task.
    holds: bool,
}

impl<'a> Call<'a> {
    fn of(arguments: &'a Arguments, context: &ToolContext) -> Result<Self, ToolError> {
        let id = arguments.task("task_id");
        let result = arguments.optional_text("result").unwrap_or_default().trim().to_owned();
        if result.len() > RESULT_BYTES_MAX {
            return Err(ToolError::Mendable(format!(
                "argument `result` has {} bytes, at most {RESULT_BYTES_MAX} are taken; write it into a file and name that",
                result.len()
            )));
        }
        let attempt = context.holding.borrow().filter(|(held, _)| *held == id).map(|(_, attempt)| attempt);
        let force = arguments.flag("force");
        if force && !context.is_lead {
            return Err(ToolError::Mendable("`force` is for the lead".to_owned()));
        }
        let by = Actor { attempt, ..actor(context) }.forcing(force);
        let (status, is_final) = (arguments.optional_text("status"), arguments.flag("final"));
        Ok(Self { id, status, result, is_final, holds: attempt.is_some(), by })
    }

    /// What the harness does about a task that is over: nothing when it was not the caller's.
    fn effect(&self) -> ToolEffect {
        if self.holds { ToolEffect::Finished } else { ToolEffect::None }
    }
}

impl TaskUpdate {
    async fn complete(&self, call: &Call<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let task = context.stores.board.get(call.id).await?;
        // What is refused anyway needs no command to be run first.
        permit(&task, Action::Complete, &call.by).map_err(|refusal| ToolError::from(StoreError::from(refusal)))?;
        if call.holds && context.read_only == Some(ReadOnly::NoPlan) {
            return Err(ToolError::Mendable(ReadOnly::NoPlan.words().to_owned()));
        }
        if !call.holds && task.worktree.is_some() {
            let text = "the work is in a worktree, and only its holder's report merges it: give the task back or retry it, and it is reported anew; a person can complete it all the same";
            return Err(ToolError::Mendable(text.to_owned()));
        }
        let lodging = context.lodging.clone().filter(|lodging| call.holds && lodging.assignment.task == call.id);
        let mut result = TaskResult::said(call.result.as_str(), "");
        // What a command printed is no message of a commit.
        let words = if context.goes_by_rule { "" } else { call.result.as_str() };
        if let Some(lodging) = &lodging {
            match lodging.commit(words).await? {
                Ok(commit) => result.commit = Some(commit),
                Err(reason) => return self.red(call, &task, &Red::uncommitted(reason), context).await,
            }
        }
        if context.review.is_some() {
            match self.review(call, &task, lodging.as_deref(), result.commit.clone(), context).await? {
                Reviewed::By(name) => result.reviewed_by = Some(name),
                Reviewed::Over(output) => return Ok(output),
            }
        }
        let delivered = match &lodging {
            Some(lodging) => {
                let commit = result.commit.clone().unwrap_or_default();
                deliver::merge(lodging, &task, words, &commit, &call.by, context).await?
            }
            None => deliver::in_place(&task, context).await?,
        };
        match delivered {
            Delivered::Done { evidence, commit, verify } => {
                result = TaskResult { evidence, commit: commit.or(result.commit), verify, ..result };
            }
            Delivered::Refused(reason) => return self.red(call, &task, &Red::unmerged(reason), context).await,
            Delivered::Red { outcome, place } => {
                let verify = task.verify.as_deref().unwrap_or_default();
                return self.red(call, &task, &Red::verify(verify, &outcome, &place), context).await;
            }
        }
        let evidence = if result.evidence.is_empty() { String::new() } else { format!(" ({})", result.evidence) };
        context.stores.board.change(call.id, Change::Complete(result), &call.by).await?;
        self.reds.forget(context.name.as_str());
        if let Some(lodging) = &lodging {
            lodging.clear(context).await;
        }
        Ok(ToolOutput { text: format!("task {} is completed{evidence}", call.id), effect: call.effect() })
    }

    /// Has somebody else approve the work, once its verify command came out green where it was done.
    async fn review(
        &self,
        call: &Call<'_>,
        task: &Task,
        lodging: Option<&Lodging>,
        commit: Option<String>,
        context: &ToolContext,
    ) -> Result<Reviewed, ToolError> {
        let about = About::of(task, commit);
        let waits = |id: &str, to: &str| {
            let text = format!(
                "task {} {}{id} by {to}; end your turn now, the answer will come as mail",
                task.id, WAITS_FOR_REVIEW
            );
            Ok(Reviewed::Over(ToolOutput::text(text)))
        };
        match Stand::of(&answers::recorded(&context.stores, context.name.as_str()).await?, &about) {
            Stand::Approved(by) => return Ok(Reviewed::By(by)),
            Stand::Waits { id, to } => {
                if call.holds {
                    // It may have been asked for in a former attempt, by somebody else: the answer is the holder's.
                    let (name, now) = (context.name.as_str(), context.clock.now());
                    context.stores.requests.adopt(&id, RequestKind::Review, name, task.attempt, now).await?;
                }
                return waits(&id, &to);
            }
            Stand::Rejected(words) => {
                let text = format!("the review rejected exactly this work, and nothing was changed since: {words}");
                return Err(ToolError::Mendable(text));
            }
            Stand::GivenUp(words) => {
                let times = review::REJECTIONS_MAX;
                let reason = format!("{REVIEW_REJECTED_IT} {times} times; the last time: {words}");
                let fail = Change::Fail { reason: reason.clone(), is_final: false };
                context.stores.board.change(call.id, fail, &call.by).await?;
                self.reds.forget(context.name.as_str());
                let text = format!("{reason}; this attempt of task {} has failed and is over", call.id);
                return Ok(Reviewed::Over(ToolOutput { text, effect: call.effect() }));
            }
            Stand::Unasked if !call.holds => {
                let text = "the team has its tasks reviewed before they are completed: only who holds a task can have it reviewed; a person can complete it all the same";
                return Err(ToolError::Mendable(text.to_owned()));
            }
            Stand::Unasked => {}
        }
        let verify = match deliver::in_place(task, context).await? {
            Delivered::Red { outcome, place } => {
                let verify = task.verify.as_deref().unwrap_or_default();
                return self.red(call, task, &Red::verify(verify, &outcome, &place), context).await.map(Reviewed::Over);
            }
            Delivered::Done { verify, .. } => verify,
            Delivered::Refused(_) => None,
        };
        let to = context.control.reviewer(&context.name, context.review.as_deref().unwrap_or_default());
        let place = lodging.map(Lodging::seen_from_outside).unwrap_or_default();
        let work =
            Work { task, about, by: context.name.as_str(), summary: &call.result, verify: verify.as_ref(), place };
        let (id, message) = review::ask(&context.stores, &work, &to, context.clock.now()).await?;
        let (from, line) = (context.name.to_string(), format!("asks for review {id} of task {}", task.id));
        (context.facts)(Fact::MessageSent { from, to: to.clone(), message, about: line });
        waits(&id, &to)
    }

    /// After a report that does not hold: the holder goes on with what shows it, a bounded number of times.
    async fn red(
        &self,
        call: &Call<'_>,
        task: &Task,
        red: &Red,
        context: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let id = call.id;
        let reds = if call.holds { self.reds.count(context.name.as_str(), id, task.attempt) } else { 0 };
        if reds < REDS_MAX {
            let count = if call.holds { format!(" (red {reds} of {REDS_MAX})") } else { String::new() };
            let said = &red.said;
            return Err(ToolError::Mendable(format!("{said}; task {id} stays in progress{count}.\n{}", red.shows)));
        }
        let reason = red.reason(reds);
        context.stores.board.change(id, Change::Fail { reason, is_final: false }, &call.by).await?;
        self.reds.forget(context.name.as_str());
        let text = format!(
            "{} {reds} times ({}); this attempt of task {id} has failed and is over",
            red.came_out,
            red.short()
        );
        Ok(ToolOutput { text, effect: call.effect() })
    }

    async fn fail(&self, call: &Call<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if call.result.is_empty() {
            return Err(ToolError::Mendable(
                "a failure needs its reason: say in `result` why it cannot be done".to_owned(),
            ));
        }
        let change = Change::Fail { reason: call.result.clone(), is_final: call.is_final };
        let task = context.stores.board.change(call.id, change, &call.by).await?;
        self.reds.forget(context.name.as_str());
        let text = match task.status {
            TaskStatus::Failed => format!("task {} has failed for good", task.id),
            _ => format!("this attempt of task {} has failed; it will be tried again", task.id),
        };
        Ok(ToolOutput { text, effect: call.effect() })
    }

    async fn reset(&self, call: &Call<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let task = context.stores.board.get(call.id).await?;
        let (change, what) = match task.status {
            TaskStatus::InProgress => (
                Change::Release { reason: call.result.clone(), counts: false },
                "is released; somebody else may claim it",
            ),
            TaskStatus::Failed => (Change::Retry, "will be tried again"),
            TaskStatus::Completed => (Change::Reopen, "is open again"),
            TaskStatus::Pending => return Ok(ToolOutput::text(format!("task {} is pending already", call.id))),
        };
        context.stores.board.change(call.id, change, &call.by).await?;
        Ok(ToolOutput { text: format!("task {} {what}", call.id), effect: call.effect() })
    }
}

/// What became of the wish for a review.
enum Reviewed {
    /// This one approved the work.
    By(String),
    /// The report ends with this.
    Over(ToolOutput),
}

/// A report that does not hold, in the words of its several tellings.
struct Red {
    /// "verify came out red"
    came_out: &'static str,
    /// All of it in a sentence, to who holds the task.
    said: String,
    /// What is wrong, for others.
    told: String,
    /// How its command ended.
    ending: Option<String>,
    /// What shows it.
    shows: String,
}

impl Red {
    fn verify(verify: &str, outcome: &CommandOutcome, place: &str) -> Self {
        let mut command = verify.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some((end, _)) = command.char_indices().nth(COMMAND_CHARS_MAX) {
            command.replace_range(end.., "…");
        }
        let (ending, what) = (outcome.ending_text(), format!("verify `{command}` came out red{place}"));
        Self {
            came_out: "verify came out red",
            said: format!("{what}: {ending}"),
            told: reason::in_third_person(&what),
            ending: Some(ending),
            shows: outcome.output.clone(),
        }
    }

    fn unmerged(reason: String) -> Self {
        Self::of("the merge was refused", "your work is not merged", reason)
    }

    fn uncommitted(reason: String) -> Self {
        Self::of("the commit was refused", "your work cannot be committed", reason)
    }

    /// The first line of a reason says what is wrong, and the rest shows it.
    fn of(came_out: &'static str, said: &str, reason: String) -> Self {
        let (first, rest) = reason.split_once('\n').unwrap_or((&reason, ""));
        let said = format!("{said}: {}", first.trim_end_matches('.'));
        Self { came_out, told: reason::told(&said), said, ending: None, shows: rest.to_owned() }
    }

    /// Why the attempt failed after so many of these.
    fn reason(&self, reds: u32) -> String {
        let ending = self.ending.as_ref().map(|ending| format!(": {ending}")).unwrap_or_default();
        format!("{}, given up after {reds} tries{ending}\n{}", self.told, reason::bounded(&self.shows))
    }

    fn short(&self) -> &str {
        self.ending.as_deref().unwrap_or("see above")
    }
}

async fn delete(call: &Call<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let task = context.stores.board.delete(call.id, &call.by).await?;
    Ok(ToolOutput { text: format!("task {} is deleted", task.id), effect: call.effect() })
}

fn edit(arguments: &Arguments) -> Result<TaskEdit, ToolError> {
    let text = |name: &str| arguments.optional_text(name).map(str::to_owned);
    Ok(TaskEdit {
        subject: arguments.optional_text("subject").map(checked_subject).transpose()?,
        description: arguments.optional_text("description").map(checked_description).transpose()?,
        active_form: text("active_form"),
        priority: arguments.integer("priority"),
        requires: arguments.texts("requires"),
        verify: text("verify"),
        owner: text("owner"),
        max_attempts: None,
        add_blocked_by: arguments.tasks("add_blocked_by"),
        remove_blocked_by: arguments.tasks("remove_blocked_by"),
        add_blocks: arguments.tasks("add_blocks"),
        imported: None,
    })
}
