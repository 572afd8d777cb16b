//! The summary of a run: the closing table and sentences for people, and the same data for programs.

mod closing;
mod outcome;

pub use closing::{WorkspaceView, render, setting_hint};
pub use outcome::RunOutcome;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::api::run_summary::{RunSummary, RunUsage, RunView};
    use crate::domain::log::event::{Event, EventKind, GoalCheck, NewEvent, Notice};
    use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
    use crate::domain::team::name::LEAD;
    use crate::domain::time::UnixMs;
    use crate::front::text::commands::Commands;
    use crate::front::text::pending::PendingNotes;
    use crate::front::text::style::{BAD, GOOD, WARN};
    use crate::ports::BoardView;

    fn outcome(view: RunView) -> RunOutcome {
        RunOutcome::of(view, PendingNotes::default())
    }

    fn event(seq: u64, at: i64, kind: EventKind) -> Event {
        NewEvent::from(kind).number(seq, UnixMs(at))
    }

    fn run() -> RunSummary {
        let mut summary = RunSummary::default();
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
            let mut summary = RunSummary::default();
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
            summary.view("t", &view).unverified_now
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
            let mut summary = RunSummary::new(Vec::new(), has_goal);
            kinds.into_iter().for_each(|kind| summary.observe(&event(1, 0, kind)));
            render(&outcome(summary.view("t", &BoardView::default())), &place, 200)
        };
        let refused = || EventKind::of_notice(LEAD, Notice::warning("its model: Connection refused; asked again"));
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
            let mut summary = RunSummary::new(Vec::new(), true);
            kinds.into_iter().for_each(|kind| summary.observe(&event(1, 0, kind)));
            let mut view = board();
            view.tasks.retain(|_, task| task.status == TaskStatus::Completed);
            render(&outcome(summary.view("t", &view)), &place, 200)
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
        let closing = |summary: RunSummary| {
            let error = Some("The lead cannot work (its key was refused).".to_owned());
            render(&outcome(RunView { error, ..summary.view("t", &done) }), &place, 200)
        };
        let text = closing(RunSummary::default());
        assert!(!text.contains("All 2 tasks done"), "tasks of earlier runs: {text}");
        assert_eq!(text.matches("The lead cannot work").count(), 1, "{text}");
        assert!(closing(run()).contains("All 2 tasks done, 1 in this run"));
    }

    #[test]
    fn passed_goal_check_is_no_success_if_tasks_failed() {
        let place = WorkspaceView { results: Some(Path::new("/w")), commands: &Commands::default() };
        let closing = |board: &BoardView, met: bool| {
            let goal = Some(GoalCheck { met, evidence: "`true`: exit status 0".into() });
            render(&outcome(RunView { goal, ..run().view("t", board) }), &place, 200)
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
        let outcome_of = |board: &BoardView| outcome(RunView { usage, ..run().view("t", board) });
        let whole = outcome_of(&board());
        let repo = WorkspaceView { results: Some(Path::new("/srv/repo")), commands: &Commands::default() };
        let flags = "--workspace repo".to_owned();
        let narrow = render(&whole, &WorkspaceView { commands: &Commands::Shell(flags), ..repo }, 40);
        let text = render(&whole, &repo, 90) + "---" + &narrow;
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let all = render(&outcome_of(&done), &repo, 40);
        let none = render(&outcome(RunSummary::default().view("t", &BoardView::default())), &repo, 80);
        let plain = anstream::adapter::strip_str(&format!("{text}---{all}---{none}")).to_string();
        insta::assert_snapshot!(format!("{plain}---\n{}", serde_json::to_string_pretty(&whole).unwrap()));
    }
}
