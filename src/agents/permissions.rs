//! Permission for the calls of agents: by the rules of the member, or by the person's answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::cancellation::StopLevel;
use super::host::AgentHost;
use crate::domain::approval::{ApprovalAnswer, Request, RequestKind, ReviewSubject};
use crate::domain::name::{HUMAN, SYSTEM};
use crate::domain::permission::{PermissionCall, PermissionDecision};
use crate::ports::StoreResult;
use crate::run::progress::Activity;
use crate::service::approvals::{new_request_id, send_request};

/// The time between two looks for an answer.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The longest text of a call in a request, in characters.
const CALL_CHARS_MAX: usize = 8_000;

/// The person's answers that hold for the rest of the run, by tool and subject. The inner error is the reason of a refusal.
pub type RememberedAnswers = Mutex<HashMap<(String, String), Result<(), String>>>;

impl AgentHost {
    /// Asks for permission for a call. `details` says more about it, such as its diff or the agent's reason. Returns the reason if the
    /// call must not be made.
    pub(super) async fn ask_permission(&self, call: &PermissionCall, details: &str) -> Result<(), String> {
        match self.spec.permissions.decide(call) {
            PermissionDecision::Allowed => Ok(()),
            PermissionDecision::Denied(reason) => Err(format!("Not called: {reason}.")),
            PermissionDecision::Asked => {
                let key = (call.tool.clone(), call.subject.clone());
                let remembered = || self.remembered_answers.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(answer) = remembered().get(&key) {
                    return answer.clone();
                }
                let answer = self.ask_person(call, details).await;
                if answer.holds_for_run {
                    remembered().insert(key, answer.result.clone());
                }
                answer.result
            }
        }
    }

    async fn ask_person(&self, call: &PermissionCall, details: &str) -> PersonAnswer {
        let time_max = self.services.spec.limits.permission_timeout;
        if time_max.is_zero() {
            return PersonAnswer::once(Err(
                "Not called: it needs a permission, and this team does not ask the person.".to_owned(),
            ));
        }
        let request = self.permission_request(call, details).await;
        let id = match send_request(&self.services.outbox(), request).await {
            Ok(id) => id,
            Err(error) => {
                return PersonAnswer::once(Err(format!(
                    "Not called: the person cannot be asked for permission: {error}"
                )));
            }
        };
        let activity = Activity::WaitingForPermission(id.as_str().into());
        let _waiting = self.progress.start_activity(activity, time_max + Duration::from_secs(60));
        let answer = tokio::select! {
            biased;
            () = self.turn_control.wait_for_level(StopLevel::FinishTurn) => None,
            answer = self.wait_for_answer(&id) => Some(answer),
            () = sleep(time_max) => None,
        };
        match answer {
            Some(answer) => PersonAnswer::of(answer),
            None => {
                let is_stopping = self.turn_control.level() >= StopLevel::FinishTurn;
                let reason = if is_stopping { "the team stops" } else { "no person answered in time" };
                self.withdraw_permission(&id, reason).await;
                PersonAnswer::once(Err(format!(
                    "Not called: it needs a permission, and {reason}. Do it in another way, or report the task as failed."
                )))
            }
        }
    }

    async fn permission_request(&self, call: &PermissionCall, details: &str) -> Request {
        let subject: String = call.subject.chars().take(CALL_CHARS_MAX).collect();
        let about = match self.turn_control.claim() {
            Some(claim) => self.services.stores.board.get(claim.task).await.ok(),
            None => None,
        };
        let text = format!("{}: {subject}\n\n{details}", call.tool);
        Request {
            plan: text.trim_end().to_owned(),
            about: about.map(|task| ReviewSubject::of(&task, None)),
            ..Request::new(&new_request_id(), RequestKind::Permission, self.name(), HUMAN, self.services.clock.now())
        }
    }

    async fn wait_for_answer(&self, id: &str) -> ApprovalAnswer {
        loop {
            let requests = self.services.stores.requests.all().await.unwrap_or_default().requests;
            let answer = requests.into_iter().find(|request| request.id == id).and_then(|request| request.answer);
            if let Some(answer) = answer {
                return answer;
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn withdraw_permission(&self, id: &str, reason: &str) {
        let (requests, now) = (&self.services.stores.requests, self.services.clock.now());
        if let Err(error) = requests.withdraw(id, RequestKind::Permission, reason, now).await {
            self.services.events.warn(self.name(), format!("cannot withdraw a permission request: {error}"));
        }
    }

    /// Withdraws the permission requests of an earlier process, for which no call waits any more.
    pub(super) async fn withdraw_old_permissions(&self) -> StoreResult<()> {
        let requests = Arc::clone(&self.services.stores.requests);
        let approvals = requests.all().await?;
        for request in approvals.open(RequestKind::Permission).filter(|request| self.spec.name.is_same(&request.from)) {
            let now = self.services.clock.now();
            requests.withdraw(&request.id, RequestKind::Permission, "its turn was interrupted", now).await?;
        }
        Ok(())
    }
}

/// The person's answer about a call.
struct PersonAnswer {
    result: Result<(), String>,
    holds_for_run: bool,
}

impl PersonAnswer {
    fn once(result: Result<(), String>) -> Self {
        Self { result, holds_for_run: false }
    }

    fn of(answer: ApprovalAnswer) -> Self {
        if answer.approve {
            return Self { result: Ok(()), holds_for_run: answer.for_run };
        }
        let reason = if answer.by == SYSTEM {
            answer.text.clone()
        } else {
            format!("the person refused it: {}", answer.feedback())
        };
        // The person's "never" holds for the same call. A withdrawal does not.
        Self { result: Err(format!("Not called: {reason}.")), holds_for_run: answer.by != SYSTEM }
    }
}
