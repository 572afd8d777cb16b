//! The verdict on a run. Its exit code follows from [`RunVerdict`], and its first closing sentence from [`RunAchievement`].

use serde::Serialize;

use crate::domain::log::event::{GoalCheck, TaskCounts};

/// The reason why a team ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TeamEnd {
    /// Its one session is over.
    SessionOver,
    /// It was asked to stop.
    Interrupted,
    /// Its budget is spent.
    BudgetSpent,
    /// No member could continue, and the model of at least one was out of reach for too long.
    ModelOutOfReach,
    /// No member could continue, because its server, key, login or model is wrong.
    WrongModelSetting,
    /// It could not continue: another team leads its workspace, or the workspace is gone.
    LeadershipLost,
}

/// A goal without tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct UnplannedGoal {
    /// A sentence with the reason.
    pub reason: String,
    /// The lead's answer to it.
    pub answer: GoalAnswer,
}

/// The lead's answer to a goal that it created no tasks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoalAnswer {
    /// It gave none.
    Nothing,
    /// It answered in words, which may be all that the goal needs.
    Words,
    /// It asked the person a question that is not answered yet.
    Question,
}

/// The facts about a run at its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunFacts<'a> {
    /// The counts of all tasks of the board.
    pub task_counts: TaskCounts,
    /// The number of tasks completed in this run.
    pub completed_now: usize,
    /// The number of tasks that the team's own agents completed in this run without a report and without a verify command.
    pub unverified_now: usize,
    /// An error of the team itself, not of its tasks.
    pub error: Option<&'a str>,
    /// The last check of the goal.
    pub goal: Option<&'a GoalCheck>,
    /// The goal, if it has no tasks.
    pub unplanned: Option<&'a UnplannedGoal>,
}

/// Every way in which a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunVerdict {
    /// The team did its work. Tasks in progress belong to other programs.
    Done,
    /// Tasks failed, are blocked or are pending.
    TasksUnfinished,
    /// All tasks are completed, but no one reported or verified the work of some.
    WorkUnverified,
    /// The check of the goal failed.
    GoalNotMet,
    /// The lead neither planned the goal nor answered it in words.
    GoalIgnored,
    /// The lead did not plan the goal, and waits for the person's answer to its question.
    QuestionOpen,
    /// An error kept the session from its work.
    SessionFailed,
    /// The team was stopped with work or mail pending.
    Interrupted,
    /// The budget does not cover the next request.
    BudgetSpent,
    /// A model gave no answer for too long.
    ModelOutOfReach,
    /// The server, key, login or name of a model is wrong.
    WrongModelSetting,
    /// Another team leads the workspace, or the workspace is gone.
    LeadershipLost,
}

/// The achievement of a run, however it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAchievement<'a> {
    /// Nothing, because of this error. Tasks that earlier runs completed do not count.
    Nothing(&'a str),
    /// The goal has no tasks.
    UnplannedGoal(&'a UnplannedGoal),
    /// The board has no tasks.
    NoTasks,
    /// All tasks of the board are completed.
    AllTasks,
    /// Tasks of the board are not completed.
    SomeTasks,
}

impl From<UnplannedGoal> for String {
    fn from(goal: UnplannedGoal) -> Self {
        goal.reason
    }
}

impl TeamEnd {
    /// Returns the problem of a model that ended the team, if there is one.
    pub fn model_problem(self) -> Option<&'static str> {
        match self {
            Self::ModelOutOfReach => Some("a model is out of reach"),
            Self::WrongModelSetting => Some("the settings, the key or the login of a model is wrong"),
            _ => None,
        }
    }
}

impl<'a> RunFacts<'a> {
    /// Returns the verdict on the run of a team that ended for this reason.
    pub fn verdict(&self, end: TeamEnd) -> RunVerdict {
        let has_work_left = self.task_counts.pending + self.task_counts.in_progress > 0 || self.unplanned.is_some();
        match end {
            TeamEnd::BudgetSpent => RunVerdict::BudgetSpent,
            TeamEnd::ModelOutOfReach => RunVerdict::ModelOutOfReach,
            TeamEnd::WrongModelSetting => RunVerdict::WrongModelSetting,
            TeamEnd::LeadershipLost => RunVerdict::LeadershipLost,
            TeamEnd::SessionOver if self.error.is_some() => RunVerdict::SessionFailed,
            TeamEnd::Interrupted if self.error.is_some() || has_work_left => RunVerdict::Interrupted,
            TeamEnd::SessionOver | TeamEnd::Interrupted => self.verdict_of_work(),
        }
    }

    /// Returns the verdict on the goal and the tasks.
    fn verdict_of_work(&self) -> RunVerdict {
        let counts = self.task_counts;
        if self.goal.is_some_and(|goal| !goal.met) {
            RunVerdict::GoalNotMet
        } else if self.unplanned.is_some_and(|goal| goal.answer == GoalAnswer::Nothing) {
            RunVerdict::GoalIgnored
        } else if self.unplanned.is_some_and(|goal| goal.answer == GoalAnswer::Question) {
            RunVerdict::QuestionOpen
        } else if counts.failed + counts.blocked + counts.pending > 0 {
            RunVerdict::TasksUnfinished
        } else if self.unverified_now > 0 {
            RunVerdict::WorkUnverified
        } else {
            RunVerdict::Done
        }
    }

    /// Returns the achievement of the run.
    pub fn achievement(&self) -> RunAchievement<'a> {
        let is_all_completed = self.task_counts.is_all_completed();
        match (self.error, self.unplanned) {
            (Some(error), _) if is_all_completed && self.completed_now == 0 => RunAchievement::Nothing(error),
            (_, Some(goal)) => RunAchievement::UnplannedGoal(goal),
            _ if self.task_counts.total() == 0 => RunAchievement::NoTasks,
            _ if is_all_completed => RunAchievement::AllTasks,
            _ => RunAchievement::SomeTasks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(failed: usize, blocked: usize, in_progress: usize, pending: usize) -> TaskCounts {
        TaskCounts { completed: 1, failed, blocked, in_progress, pending }
    }

    #[test]
    fn verdict_of_stopped_run_depends_on_work_left() {
        for (task_counts, stopped, over) in [
            (counts(0, 0, 0, 0), RunVerdict::Done, RunVerdict::Done),
            (counts(0, 1, 0, 1), RunVerdict::Interrupted, RunVerdict::TasksUnfinished),
            (counts(0, 0, 1, 0), RunVerdict::Interrupted, RunVerdict::Done),
            (counts(1, 1, 0, 0), RunVerdict::TasksUnfinished, RunVerdict::TasksUnfinished),
        ] {
            let facts = RunFacts { task_counts, ..RunFacts::default() };
            assert_eq!(facts.verdict(TeamEnd::Interrupted), stopped, "{task_counts:?}");
            assert_eq!(facts.verdict(TeamEnd::SessionOver), over, "{task_counts:?}");
            assert_eq!(facts.verdict(TeamEnd::BudgetSpent), RunVerdict::BudgetSpent);
        }
    }

    #[test]
    fn verdict_names_error_before_goal_before_tasks() {
        let task_counts = counts(1, 0, 0, 0);
        let goal = |met| GoalCheck { met, evidence: String::new() };
        let unplanned = |answer| UnplannedGoal { reason: String::new(), answer };
        let (missed, passed) = (goal(false), goal(true));
        let [ignored, answered, asked] = [GoalAnswer::Nothing, GoalAnswer::Words, GoalAnswer::Question].map(unplanned);
        let none = RunFacts::default();
        for (facts, stopped, over) in [
            (
                RunFacts { error: Some("no key"), task_counts, ..none },
                RunVerdict::Interrupted,
                RunVerdict::SessionFailed,
            ),
            (RunFacts { goal: Some(&missed), task_counts, ..none }, RunVerdict::GoalNotMet, RunVerdict::GoalNotMet),
            (
                RunFacts { goal: Some(&passed), task_counts, ..none },
                RunVerdict::TasksUnfinished,
                RunVerdict::TasksUnfinished,
            ),
            (RunFacts { unverified_now: 1, ..none }, RunVerdict::WorkUnverified, RunVerdict::WorkUnverified),
            (
                RunFacts { unverified_now: 1, task_counts, ..none },
                RunVerdict::TasksUnfinished,
                RunVerdict::TasksUnfinished,
            ),
            (RunFacts { unplanned: Some(&ignored), ..none }, RunVerdict::Interrupted, RunVerdict::GoalIgnored),
            (RunFacts { unplanned: Some(&answered), ..none }, RunVerdict::Interrupted, RunVerdict::Done),
            (RunFacts { unplanned: Some(&asked), ..none }, RunVerdict::Interrupted, RunVerdict::QuestionOpen),
        ] {
            assert_eq!(facts.verdict(TeamEnd::Interrupted), stopped, "{facts:?}");
            assert_eq!(facts.verdict(TeamEnd::SessionOver), over, "{facts:?}");
        }
    }
}
