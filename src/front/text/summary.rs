//! The summary of a run: the closing table and sentences for people, and the same data for programs. It observes the events
//! of the run and reads the board at the end.

mod closing;
mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::evidence::{evidence_text, with_evidence};
use super::pending::PendingNotes;
use super::planning::Planning;
use super::tasks::obstacles;
use crate::api::task::ClaimCandidate;
use crate::domain::log::event::{Event, EventKind, GoalCheck};
use crate::domain::task::dependencies::{self, unfinished_blockers};
use crate::domain::task::evidence::joined;
use crate::domain::task::failure_summary::summary_of;
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::text::first_line;
use crate::domain::time::UnixMs;
use crate::ports::BoardView;
pub use closing::{WorkspaceView, next_steps, render, setting_hint};
pub use outcome::{OutcomeStatus, RunOutcome, RunUsage, TaskOutcome};

/// The time that the run spent on one task.
#[derive(Debug, Clone, Copy, Default)]
struct TaskTime {
    /// The time of all finished attempts.
    spent: Duration,
    /// The start of the current attempt.
    since: Option<UnixMs>,
}

/// Collects the data of the summary from the events of a run.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    first: Option<UnixMs>,
    last: UnixMs,
    times: BTreeMap<TaskId, TaskTime>,
    completed: BTreeSet<TaskId>,
    /// The members that this run started.
    members: BTreeSet<String>,
    /// The attempts that completed a task without a report and without a verify command, by these members.
    unverified: BTreeMap<TaskId, u32>,
    stopped: Option<String>,
    goal: Option<GoalCheck>,
    /// The members, to explain unfinished tasks.
    candidates: Vec<ClaimCandidate>,
    planning: Planning,
}

impl Summary {
    /// Returns an empty summary of a team with these members. `has_goal` is true if its lead plans a goal.
    pub fn new(candidates: Vec<ClaimCandidate>, has_goal: bool) -> Self {
        Self { candidates, planning: Planning::new(has_goal), ..Self::default() }
    }

    /// Records an event of the run.
    pub fn observe(&mut self, event: &Event) {
        self.first.get_or_insert(event.at);
        self.last = self.last.max(event.at);
        self.planning.observe(&event.kind);
        match &event.kind {
            EventKind::TaskClaimed { task, .. } => {
                self.times.entry(*task).or_default().since = Some(event.at);
            }
            EventKind::TeamStarted { members, .. } => self.members.extend(members.iter().cloned()),
            EventKind::TeammateSpawned { teammate, .. } => {
                self.members.insert(teammate.clone());
            }
            EventKind::TaskCompleted { task, attempt, teammate, unverified, .. } => {
                self.completed.insert(*task);
                if *unverified && self.members.contains(teammate) {
                    self.unverified.insert(*task, *attempt);
                }
                self.end_claim(*task, event.at);
            }
            EventKind::TaskFailed { task, .. }
            | EventKind::TaskReleased { task, .. }
            | EventKind::TaskReclaimed { task, .. } => {
                self.end_claim(*task, event.at);
            }
            EventKind::SessionFinished { goal, .. } => self.goal.clone_from(goal),
            EventKind::TeamStopped { reason, .. } => self.stopped = Some(reason.clone()),
            _ => {}
        }
    }

    fn end_claim(&mut self, task: TaskId, at: UnixMs) {
        let time = self.times.entry(task).or_default();
        if let Some(since) = time.since.take() {
            time.spent += at.since(since);
        }
    }

    /// Returns the outcome of the run, with the board's current tasks. Its usage is zero: the caller sets it, because the events do not show all
    /// requests.
    pub fn outcome(&self, team: &str, view: &BoardView) -> RunOutcome {
        let task_counts = dependencies::count_tasks(view.tasks.values().map(AsRef::as_ref), view);
        let is_goal_met = self.goal.as_ref().is_some_and(|goal| goal.met);
        let mut tasks = Vec::new();
        for task in view.tasks.values() {
            if task.status != TaskStatus::Completed || self.times.contains_key(&task.id) {
                tasks.push(self.task_outcome(task, view));
            }
        }
        let unplanned = if is_goal_met { None } else { self.planning.unplanned(!view.tasks.is_empty()) };
        RunOutcome {
            team: team.to_owned(),
            task_counts,
            completed_now: self.completed.len(),
            unverified_now: self.unverified.iter().filter(|(id, attempt)| is_unverified(**id, **attempt, view)).count(),
            ms: millis(self.first.map_or(Duration::ZERO, |first| self.last.since(first))),
            usage: RunUsage::default(),
            reason: self.stopped.clone(),
            goal: self.goal.clone(),
            error: None,
            unplanned,
            pending: PendingNotes::default(),
            tasks,
            next: Vec::new(),
        }
    }

    fn task_outcome(&self, task: &Task, view: &BoardView) -> TaskOutcome {
        let time = self.times.get(&task.id).copied().unwrap_or_default();
        let running = time.since.map_or(Duration::ZERO, |since| self.last.since(since));
        let result = task.result.as_ref().filter(|result| !result.summary.trim().is_empty());
        let result = result.map(|result| match task.status {
            TaskStatus::Completed => first_line(&result.summary),
            TaskStatus::Pending if !result.is_failure() => format!("released: {}", summary_of(&result.summary)),
            _ => summary_of(&result.summary),
        });
        let mut note = Vec::new();
        if task.status == TaskStatus::Pending {
            let blockers: Vec<_> = unfinished_blockers(task, view).collect();
            note = obstacles(task, &blockers, &self.candidates, self.last);
        }
        note.extend(result);
        let completed = task.completion();
        let note = joined(note);
        TaskOutcome {
            id: task.id,
            subject: task.subject.clone(),
            status: OutcomeStatus::of(task, view),
            owner: task.owner.clone(),
            attempt: task.attempt,
            ms: millis(time.spent + running),
            note_and_evidence: completed.map_or(note.clone(), |result| with_evidence(&note, result)),
            note,
            evidence: completed.map(evidence_text).unwrap_or_default(),
            unverified: completed.is_some_and(|result| result.unverified),
            nothing_ran: completed.is_some_and(TaskResult::nothing_ran),
            ignored_files: completed.and_then(|result| result.ignored_files.clone()),
            worktree: task.worktree.clone(),
        }
    }
}

/// Returns true if this attempt completed the task, and neither a report, a review nor a verify command shows its work now. A completion by
/// another than its holder is that person's or program's word.
fn is_unverified(id: TaskId, attempt: u32, view: &BoardView) -> bool {
    let Some(task) = view.tasks.get(&id) else { return false };
    let is_unchecked =
        |result: &TaskResult| result.unverified && result.ended_by.is_none() && result.reviewed_by.is_none();
    task.attempt == attempt && task.completion().is_some_and(is_unchecked)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::domain::log::event::NewEvent;
    use crate::domain::team::name::LEAD;
    use crate::front::text::commands::Commands;
    use crate::front::text::style::{BAD, GOOD, WARN};

    fn event(seq: u64, at: i64, kind: EventKind) -> Event {
        NewEvent::from(kind).number(seq, UnixMs(at))
    }

    fn run() -> Summary {
        let mut summary = Summary::default();
        let claim =
            |task: u64, attempt: u32| EventKind::TaskClaimed { task: TaskId(task), attempt, teammate: "alice".into() };
        let kinds = [
            (0, EventKind::TeamStarted { team: "t".into(), members: vec!["alice".into()] }),
            (1_000, claim(1, 1)),
            (
                3_000,
                EventKind::TaskReleased {
                    task: TaskId(1),
                    attempt: 1,
                    teammate: "alice".into(),
                    reason: "x".into(),
                    not_before: None,
                    by: None,
                },
            ),
            (4_000, claim(1, 2)),
            (
                9_000,
                EventKind::TaskCompleted {
                    task: TaskId(1),
                    attempt: 2,
                    teammate: "alice".into(),
                    evidence: "e".into(),
                    unverified: false,
                    nothing_ran: false,
                },
            ),
            (9_000, claim(2, 1)),
            (
                9_500,
                EventKind::TaskFailed {
                    task: TaskId(2),
                    attempt: 1,
                    teammate: "alice".into(),
                    reason: "y".into(),
                    by: None,
                },
            ),
            (70_000, EventKind::TeamStopped { team: "t".into(), reason: "done".into() }),
        ];
        for (seq, (at, kind)) in kinds.into_iter().enumerate() {
            summary.observe(&event(seq as u64 + 1, at, kind));
        }
        summary
    }

    fn board() -> BoardView {
        let mut tasks: Vec<Task> = (1..=5).map(|id| Task::new(TaskId(id), format!("Task {id}"))).collect();
        tasks[0].status = TaskStatus::Completed;
        tasks[0].attempt = 2;
        tasks[0].owner = Some("alice".into());
        tasks[1].status = TaskStatus::Failed;
        tasks[1].attempt = 1;
        tasks[1].owner = Some("alice".into());
        tasks[1].result = Some(TaskResult::new("the compiler said no", ""));
        tasks[2].blocked_by = vec![TaskId(2)];
        tasks[4].status = TaskStatus::Completed;
        BoardView { tasks: tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(), ..BoardView::default() }
    }

    #[test]
    fn only_unchecked_work_of_own_agents_counts() {
        let unverified = || TaskResult { unverified: true, ..TaskResult::new("done", "") };
        let counted = |teammate: &str, attempt: u32, result: TaskResult| {
            let mut summary = Summary::default();
            let completed = EventKind::TaskCompleted {
                task: TaskId(1),
                attempt,
                teammate: teammate.into(),
                evidence: String::new(),
                unverified: true,
                nothing_ran: false,
            };
            let started = EventKind::TeamStarted { team: "t".into(), members: vec!["alice".into()] };
            [started, completed].into_iter().for_each(|kind| summary.observe(&event(1, 0, kind)));
            let mut view = board();
            let task = Task { result: Some(result), ..Task::clone(&view.tasks[&TaskId(1)]) };
            view.tasks.insert(task.id, Arc::new(task));
            summary.outcome("t", &view).unverified_now
        };
        assert_eq!(counted("alice", 2, unverified()), 1);
        assert_eq!(counted("outsider", 2, unverified()), 0, "the word of another program");
        assert_eq!(counted("alice", 1, unverified()), 0, "completed again since");
        let by_person = TaskResult { ended_by: Some("human".into()), ..unverified() };
        assert_eq!(counted("alice", 2, by_person), 0);
        assert_eq!(counted("alice", 2, TaskResult { reviewed_by: Some("bob".into()), ..unverified() }), 0);
        assert_eq!(counted("alice", 2, TaskResult::new("done", "")), 0);
    }

    #[test]
    fn summary_says_why_goal_has_no_tasks() {
        let place = WorkspaceView { results: Some(Path::new("/w")), commands: &Commands::default() };
        let closing = |kinds: Vec<EventKind>, has_goal: bool| {
            let mut summary = Summary::new(Vec::new(), has_goal);
            kinds.into_iter().for_each(|kind| summary.observe(&event(1, 0, kind)));
            render(&summary.outcome("t", &BoardView::default()), &place, 200)
        };
        let refused =
            || EventKind::Warning { about: LEAD.into(), text: "its model: Connection refused; asked again".into() };
        let said = || EventKind::Said { teammate: LEAD.into(), task: None, text: "Which database?".into() };
        assert!(closing(vec![refused()], false).contains("The board has no tasks."));
        assert!(closing(vec![], true).contains("The lead created no tasks for the goal."));
        let text = closing(vec![said(), refused()], true);
        assert!(text.contains("no tasks for the goal: its model: Connection refused; asked again."), "{text}");
        let text = closing(vec![refused(), said()], true);
        assert!(text.contains("no tasks for the goal. It said last: Which database?"), "{text}");
        assert!(text.contains("waits for your answer: `brigade send lead TEXT`"), "{text}");
        let said_more = EventKind::Said { teammate: LEAD.into(), task: None, text: "Hello.\nWhich database?".into() };
        assert!(closing(vec![said_more], true).contains("It said last: Hello. … ("));
        // A completed task of an earlier run is no result of this goal.
        let with_old_task = |kinds: Vec<EventKind>| {
            let mut summary = Summary::new(Vec::new(), true);
            kinds.into_iter().for_each(|kind| summary.observe(&event(1, 0, kind)));
            let mut view = board();
            view.tasks.retain(|_, task| task.status == TaskStatus::Completed);
            render(&summary.outcome("t", &view), &place, 200)
        };
        assert!(with_old_task(vec![said()]).contains("no tasks for the goal. It said last: Which database?"));
        assert!(with_old_task(vec![]).contains("All 2 tasks done"), "the goal was planned before");
        let answered = || EventKind::TurnFinished {
            teammate: LEAD.into(),
            task: None,
            input_tokens: 1,
            output_tokens: 1,
            cache_read_tokens: 0,
            cache_write_tokens: 0,
            ms: 1,
        };
        assert!(with_old_task(vec![answered()]).contains("The lead created no tasks for the goal."), "without words");
        let created = EventKind::TaskCreated { task: TaskId(9), subject: "a".into(), by: LEAD.into() };
        assert!(with_old_task(vec![created, said()]).contains("All 2 tasks done"));
    }

    #[test]
    fn problem_comes_first_if_run_did_nothing() {
        let place = WorkspaceView { results: Some(Path::new("/w")), commands: &Commands::default() };
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let closing = |summary: Summary| {
            let error = Some("The lead cannot work (its key was refused).".to_owned());
            render(&RunOutcome { error, ..summary.outcome("t", &done) }, &place, 200)
        };
        let text = closing(Summary::default());
        assert!(!text.contains("All 2 tasks done"), "tasks of earlier runs: {text}");
        assert_eq!(text.matches("The lead cannot work").count(), 1, "{text}");
        assert!(closing(run()).contains("All 2 tasks done, 1 in this run"));
    }

    #[test]
    fn passed_goal_check_is_no_success_if_tasks_failed() {
        let place = WorkspaceView { results: Some(Path::new("/w")), commands: &Commands::default() };
        let closing = |board: &BoardView, met: bool| {
            let goal = Some(GoalCheck { met, evidence: "`true`: exit status 0".into() });
            render(&RunOutcome { goal, ..run().outcome("t", board) }, &place, 200)
        };
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let met = format!("{GOOD}The goal is met: `true`: exit status 0.{GOOD:#}\n");
        assert!(closing(&done, true).contains(&met));
        let text = closing(&board(), true);
        assert!(!text.contains("The goal is met"), "{text}");
        let but = "`done_when` passed (`true`: exit status 0), but not all tasks are completed: 1 failed, 1 blocked, 1 not done.";
        let last = text.find(&format!("{WARN}{but}{WARN:#}\n"));
        assert!(last > text.find("left to do") && last.is_some(), "{text}");
        assert!(closing(&board(), false).contains(&format!("{BAD}The goal is not met")));
    }

    #[test]
    fn summary_shows_results_and_next_steps() {
        let usage = RunUsage { input_tokens: 900, output_tokens: 100 };
        let outcome_of = |board: &BoardView| RunOutcome { usage, ..run().outcome("t", board) };
        let outcome = outcome_of(&board());
        let repo = WorkspaceView { results: Some(Path::new("/srv/repo")), commands: &Commands::default() };
        let flags = "--workspace repo".to_owned();
        let narrow = render(&outcome, &WorkspaceView { commands: &Commands::Shell(flags), ..repo }, 40);
        let text = render(&outcome, &repo, 90) + "---" + &narrow;
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let all = render(&outcome_of(&done), &repo, 40);
        let none = render(&Summary::default().outcome("t", &BoardView::default()), &repo, 80);
        let plain = anstream::adapter::strip_str(&format!("{text}---{all}---{none}")).to_string();
        insta::assert_snapshot!(format!("{plain}---\n{}", serde_json::to_string_pretty(&outcome).unwrap()));
    }
}
