//! Moves the tools and commands of a member to the place where it works.

use std::path::PathBuf;
use std::sync::Arc;

use super::host::AgentHost;
use super::isolation::WorktreeService;
use super::services::AgentServices;
use crate::domain::agent::access::{Access, PathRule};
use crate::domain::git::worktree_state::WorkStep;
use crate::domain::team::member_place::{MemberPlace, MemberSituation, ReadOnly, WorkFolder};
use crate::domain::team::phase::ClaimRef;
use crate::ports::CommandPlace;
use crate::service::merge::TaskWorktree;
use crate::service::request_mail;
use crate::tools::WorkingDir;

/// The control files of each worktree, in addition to those of the workspace.
const WORKTREE_CONTROL_FILES: [&str; 2] = [".git", ".agent"];

impl AgentHost {
    /// Moves the tools to the place where the member works now. Its work in the worktree of its task begins, if it has one.
    pub(super) async fn refresh_working_dir(&mut self) {
        self.check_plan_approval().await;
        self.move_tools();
        if let Some(task_worktree) = self.task_worktree() {
            task_worktree.step.send_if_modified(|step| {
                let is_first_turn = *step == WorkStep::Spawning;
                if is_first_turn {
                    *step = WorkStep::Streaming;
                }
                is_first_turn
            });
        }
    }

    /// As [`Self::refresh_working_dir`], with the approvals that are known already.
    pub(super) fn move_tools(&mut self) {
        let place = self.place();
        // The rules of the team worktree follow its control files. Those of a task's worktree stay the same while the task lasts.
        let is_there =
            place.folder == WorkFolder::TaskWorktree && place.read_only == self.context.working_dir.read_only;
        if !is_there {
            let task_worktree = self.worktree_at(place).cloned();
            self.context.working_dir = self.services.working_dir(place, task_worktree);
        }
    }

    /// Moves the tools to a worktree that is not set up yet. The setup command writes there, even if a plan must be approved first.
    pub(super) fn move_tools_for_setup(&mut self, task_worktree: Arc<TaskWorktree>) {
        let place = MemberPlace { folder: WorkFolder::TaskWorktree, read_only: None };
        self.context.working_dir = self.services.working_dir(place, Some(task_worktree));
    }

    /// Returns the worktree of the claimed task.
    pub(super) fn task_worktree(&self) -> Option<&Arc<TaskWorktree>> {
        self.worktree_at(self.place())
    }

    fn worktree_at(&self, place: MemberPlace) -> Option<&Arc<TaskWorktree>> {
        match place.folder {
            WorkFolder::TaskWorktree => self.context.working_dir.task_worktree.as_ref(),
            WorkFolder::Workspace | WorkFolder::TeamWorktree => None,
        }
    }

    fn place(&self) -> MemberPlace {
        let situation = MemberSituation {
            has_isolation: self.services.isolation.is_some(),
            is_lead: self.context.caller.is_lead,
            plan_first: self.spec.plan_first,
            claim: self.turn_control.claim(),
            approved_claim: self.approved_claim,
            worktree_task: self.context.working_dir.task_worktree.as_ref().map(|task_worktree| task_worktree.task()),
        };
        situation.place()
    }

    /// Looks for the approval of the plan for the current claim, if the member needs one.
    async fn check_plan_approval(&mut self) {
        if self.spec.plan_first
            && let Some(claim) = self.turn_control.claim()
            && self.approved_claim != Some(claim)
            && self.has_approved_plan(claim).await
        {
            self.approved_claim = Some(claim);
        }
    }

    async fn has_approved_plan(&self, claim: ClaimRef) -> bool {
        let stores = &self.services.stores;
        let Ok(requests) = request_mail::load_approvals(stores, self.name()).await else { return false };
        let Ok(task) = stores.board.get(claim.task).await else { return false };
        ClaimRef::of(&task) == claim && requests.has_approved_plan(self.name(), &task)
    }
}

impl AgentServices {
    /// Returns the folder of this place, with its rules. `task_worktree` is that of the claimed task, for a place there.
    fn working_dir(&self, place: MemberPlace, task_worktree: Option<Arc<TaskWorktree>>) -> WorkingDir {
        let control_files = &self.workspace.control_files;
        let mut working_dir = match &self.isolation {
            Some(isolation) => isolation.working_dir(place, task_worktree, control_files),
            None => {
                let root = self.workspace.root.clone();
                WorkingDir { read_only: place.read_only, ..WorkingDir::new(root, Arc::clone(control_files)) }
            }
        };
        if place.read_only == Some(ReadOnly::NoPlan) {
            let rules = working_dir.boundaries.iter().filter(|rule| rule.access != Access::Writable).cloned();
            working_dir.boundaries = rules.chain([PathRule::read_only(&working_dir.root)]).collect();
        }
        working_dir
    }
}

impl WorktreeService {
    fn working_dir(
        &self,
        place: MemberPlace,
        task_worktree: Option<Arc<TaskWorktree>>,
        control_files: &[PathBuf],
    ) -> WorkingDir {
        let (command_place, port_base) = match (&task_worktree, place.read_only) {
            (Some(task_worktree), _) => (CommandPlace::Task(&task_worktree.worktree), Some(task_worktree.port_base)),
            (None, None) => (CommandPlace::Lead, Some(self.team_port_base)),
            (None, Some(_)) => (CommandPlace::NoTask, None),
        };
        let own = WORKTREE_CONTROL_FILES.map(PathBuf::from);
        WorkingDir {
            root: self.root_of(command_place).to_owned(),
            control_files: control_files.iter().cloned().chain(own).collect(),
            boundaries: self.boundaries(command_place, control_files).into(),
            port_base,
            read_only: place.read_only,
            task_worktree,
        }
    }
}
