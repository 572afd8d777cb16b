//! The plans and reviews that wait for an answer.

use crate::agents::AgentServices;
use crate::domain::task::dependencies::TaskLookup;
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::team::approval::{Request, RequestKind};
use crate::domain::team::name::{HUMAN, LEAD, Name};
use crate::domain::team::waiting_for::WaitingFor;
use crate::ports::BoardView;
use crate::service::request_mail;
use crate::team::supervisor::Supervisor;

/// The open approvals at the last poll.
#[derive(Default)]
pub(super) struct ApprovalWatch {
    open: Vec<Request>,
    /// All requests, open or not.
    all: Vec<Request>,
}

impl ApprovalWatch {
    /// Reads the open approvals. Withdraws those that are void, and reassigns those whose responder is gone.
    pub async fn poll(&mut self, services: &AgentServices, view: &BoardView, members: &Supervisor) {
        match services.stores.requests.all().await {
            Ok(approvals) => {
                self.open = approvals.open_approvals().cloned().collect();
                if self.all != approvals.requests {
                    self.all = approvals.requests;
                    services.events.request_requests_read();
                }
            }
            Err(error) => return tracing::warn!("cannot read the approvals: {error}"),
        }
        self.withdraw_void_reviews(services, view).await;
        self.reassign_reviews(services, members).await;
    }

    /// Returns the ids of the open approvals.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.open.iter().map(|request| request.id.as_str())
    }

    /// Returns the answer to its own plan or review that this member waits for.
    pub fn answer_awaited_by(&self, name: &Name, task: Option<TaskId>) -> Option<WaitingFor> {
        let is_awaited = |request: &&Request| name.is_same(&request.from) && request.concerns(task);
        self.open.iter().find(is_awaited).map(Request::awaited_answer)
    }

    /// Returns true if a plan of this member waits for the lead's answer.
    pub fn is_plan_for_lead_open(&self, name: &Name) -> bool {
        let is_its_plan = |request: &Request| request.kind == RequestKind::PlanApproval && name.is_same(&request.from);
        self.open.iter().any(|request| is_its_plan(request) && request.to == LEAD)
    }

    /// Returns true if a running member waits for the answer to its plan or review.
    pub fn is_answer_awaited(&self, members: &Supervisor) -> bool {
        let is_running = |name: &str| {
            let mut running = members.by_name.values().filter(|member| member.exit.is_none());
            running.any(|member| member.spec.name.is_same(name))
        };
        self.open.iter().any(|request| is_running(&request.from))
    }

    /// Withdraws reviews of tasks that are completed, failed or gone.
    async fn withdraw_void_reviews(&mut self, services: &AgentServices, view: &BoardView) {
        let is_void = |request: &&Request| {
            let Some(about) = &request.about else { return false };
            let is_task_over = match view.task(about.task) {
                Some(task) => matches!(task.status, TaskStatus::Completed | TaskStatus::Failed),
                None => !view.is_invalid(about.task),
            };
            request.kind == RequestKind::Review && is_task_over
        };
        let void: Vec<Request> = self.open.iter().filter(is_void).cloned().collect();
        for request in &void {
            let requests = &services.stores.requests;
            let withdrawn =
                requests.withdraw(&request.id, request.kind, "its task is over", services.clock.now()).await;
            if let Err(error) = withdrawn {
                tracing::warn!("cannot withdraw a request: {error}");
            }
        }
        self.open.retain(|request| !void.contains(request));
    }

    /// Gives the reviews of stopped members to others.
    async fn reassign_reviews(&self, services: &AgentServices, members: &Supervisor) {
        let Some(capability) = &services.spec.review else { return };
        let is_available = |to: &str| {
            let mut members = members.by_name.values();
            to == HUMAN || members.any(|member| member.spec.name.is_same(to) && member.is_usable())
        };
        let reviews = self.open.iter().filter(|request| request.kind == RequestKind::Review);
        for review in reviews.filter(|request| !is_available(&request.to)) {
            let Ok(author) = Name::new(&review.from) else { continue };
            let mut to = members.spawn_context.team_control.reviewer(&author, capability);
            if !is_available(&to) {
                // The configured reviewer is the one that is gone.
                HUMAN.clone_into(&mut to);
            }
            let about = format!("review {} goes to {to}, because {} is not available", review.id, review.to);
            if let Err(error) = request_mail::reassign(&services.outbox(), &review.id, review.kind, &to, about).await {
                services.events.warn(to, format!("cannot be asked for a review: {error}"));
            }
        }
    }
}
