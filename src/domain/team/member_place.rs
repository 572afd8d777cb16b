//! The place where a member works. The isolation of the team, the member's claim and its plan decide it. Mail and reviews do not change
//! it.

use super::phase::ClaimRef;
use crate::domain::task::TaskId;

/// The folder where the tools and commands of a member work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkFolder {
    /// The workspace, in a team without isolation.
    Workspace,
    /// The worktree of the claimed task.
    TaskWorktree,
    /// The worktree of the team branch.
    TeamWorktree,
}

/// The reason why a member can write no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// The team has isolation, and the member has no worktree of a claimed task.
    NoTask,
    /// The plan for its task is not approved yet.
    NoPlan,
}

impl ReadOnly {
    /// The reason and the next step, for the model.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::NoTask => "files can be written only in the worktree of a task, and you hold no task",
            Self::NoPlan => {
                "the workspace is read-only until the plan is approved: claim a task, read the files, submit a plan with `plan_approval`, and end your turn"
            }
        }
    }
}

/// The place where a member works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberPlace {
    /// The folder.
    pub folder: WorkFolder,
    /// The reason why the member can write no file there; `None` if it can.
    pub read_only: Option<ReadOnly>,
}

/// The facts that decide where a member works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberSituation {
    /// True if each task has its own worktree.
    pub has_isolation: bool,
    /// True for the lead.
    pub is_lead: bool,
    /// True if it may write only after its plan for the current task was approved.
    pub plan_first: bool,
    /// The claim that it holds.
    pub claim: Option<ClaimRef>,
    /// The last claim whose plan was approved.
    pub approved_claim: Option<ClaimRef>,
    /// The task of the worktree that was last prepared for it.
    pub worktree_task: Option<TaskId>,
}

impl MemberSituation {
    /// Decides where the member works.
    pub fn place(&self) -> MemberPlace {
        let has_worktree = self.claim.is_some_and(|claim| self.worktree_task == Some(claim.task));
        let folder = match (self.has_isolation, has_worktree) {
            (false, _) => WorkFolder::Workspace,
            (true, true) => WorkFolder::TaskWorktree,
            (true, false) => WorkFolder::TeamWorktree,
        };
        let is_plan_approved = self.claim.is_some() && self.claim == self.approved_claim;
        let read_only = if self.plan_first && !is_plan_approved {
            Some(ReadOnly::NoPlan)
        } else if folder == WorkFolder::TeamWorktree && !self.is_lead {
            Some(ReadOnly::NoTask)
        } else {
            None
        };
        MemberPlace { folder, read_only }
    }
}

#[cfg(test)]
mod tests {
    use super::ReadOnly::{NoPlan, NoTask};
    use super::WorkFolder::{TaskWorktree, TeamWorktree, Workspace};
    use super::*;

    const CLAIM: Option<ClaimRef> = Some(ClaimRef { task: TaskId(7), attempt: 2 });
    const EARLIER_CLAIM: Option<ClaimRef> = Some(ClaimRef { task: TaskId(7), attempt: 1 });
    const TASK: Option<TaskId> = Some(TaskId(7));
    const OTHER_TASK: Option<TaskId> = Some(TaskId(6));

    #[test]
    fn place_depends_on_isolation_claim_and_worktree() {
        let teammate = MemberSituation {
            has_isolation: true,
            is_lead: false,
            plan_first: false,
            claim: None,
            approved_claim: None,
            worktree_task: None,
        };
        let place = |has_isolation, is_lead, claim, worktree_task| {
            let place = MemberSituation { has_isolation, is_lead, claim, worktree_task, ..teammate }.place();
            (place.folder, place.read_only)
        };
        // isolation, lead, claim, worktree
        assert_eq!(place(false, false, None, None), (Workspace, None));
        assert_eq!(place(false, false, CLAIM, None), (Workspace, None));
        assert_eq!(place(false, true, None, None), (Workspace, None));
        assert_eq!(place(false, true, CLAIM, None), (Workspace, None));
        assert_eq!(place(true, false, None, None), (TeamWorktree, Some(NoTask)));
        assert_eq!(place(true, false, None, TASK), (TeamWorktree, Some(NoTask)));
        assert_eq!(place(true, false, CLAIM, None), (TeamWorktree, Some(NoTask)));
        assert_eq!(place(true, false, CLAIM, OTHER_TASK), (TeamWorktree, Some(NoTask)));
        assert_eq!(place(true, false, CLAIM, TASK), (TaskWorktree, None));
        assert_eq!(place(true, true, None, None), (TeamWorktree, None));
    }

    #[test]
    fn place_is_read_only_until_plan_is_approved() {
        let place = |has_isolation, claim, approved_claim, worktree_task| {
            let situation = MemberSituation {
                has_isolation,
                is_lead: false,
                plan_first: true,
                claim,
                approved_claim,
                worktree_task,
            };
            let place = situation.place();
            (place.folder, place.read_only)
        };
        // isolation, claim, approved claim, worktree
        assert_eq!(place(false, None, None, None), (Workspace, Some(NoPlan)));
        assert_eq!(place(false, None, CLAIM, None), (Workspace, Some(NoPlan)));
        assert_eq!(place(false, CLAIM, None, None), (Workspace, Some(NoPlan)));
        assert_eq!(place(false, CLAIM, EARLIER_CLAIM, None), (Workspace, Some(NoPlan)));
        assert_eq!(place(false, CLAIM, CLAIM, None), (Workspace, None));
        assert_eq!(place(true, None, None, None), (TeamWorktree, Some(NoPlan)));
        assert_eq!(place(true, CLAIM, CLAIM, None), (TeamWorktree, Some(NoTask)));
        assert_eq!(place(true, CLAIM, None, TASK), (TaskWorktree, Some(NoPlan)));
        assert_eq!(place(true, CLAIM, EARLIER_CLAIM, TASK), (TaskWorktree, Some(NoPlan)));
        assert_eq!(place(true, CLAIM, CLAIM, TASK), (TaskWorktree, None));
    }
}
