//! Permission for the calls of agents: by the rules of the member, or by the person's answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use super::services::AgentServices;
use super::turn_control::{StopLevel, TurnControl};
use crate::domain::agent::permission::PermissionCall;
use crate::domain::team::approval::{ApprovalAnswer, CALL_BYTES_MAX, Request, ReviewSubject};
use crate::domain::team::name::{Name, SYSTEM};
use crate::domain::team::request_text::CallDetails;
use crate::ports::StoreResult;
use crate::run::progress::Activity;
use crate::service::request_mail::{new_request_id, send_request, withdraw_permissions};

/// The time between two looks for an answer.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The reason why a tool call was not made. The message is for the model.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallNotMade {
    /// It was refused, and would be refused again.
    #[error("Not called: {0}.")]
    Refused(String),
    /// No person answered. Another request may get an answer.
    #[error("Not called: {0}.")]
    NotAnswered(String),
    /// The turn had to end before a person answered.
    #[error("Not called: {0}.")]
    Interrupted(String),
}

impl CallNotMade {
    /// Returns the reason without the words for the model.
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused(reason) | Self::NotAnswered(reason) | Self::Interrupted(reason) => reason,
        }
    }
}

/// The person's answers that hold for the rest of the run, by tool and subject.
type RememberedAnswers = Mutex<HashMap<(String, String), Result<(), CallNotMade>>>;

/// The permission requests of one member to the person, and the answers.
pub struct PermissionRequests {
    name: Name,
    services: Arc<AgentServices>,
    turn_control: Arc<TurnControl>,
    remembered_answers: RememberedAnswers,
}

impl PermissionRequests {
    /// Creates the requests of the member with this name. There are none yet.
    pub fn new(name: Name, services: Arc<AgentServices>, turn_control: Arc<TurnControl>) -> Self {
        Self { name, services, turn_control, remembered_answers: RememberedAnswers::default() }
    }

    /// Returns the person's remembered answer, or asks.
    pub(super) async fn ask(&self, call: &PermissionCall, details: &CallDetails) -> Result<(), CallNotMade> {
        let key = (call.tool.clone(), call.subject.clone());
        let remembered = || self.remembered_answers.lock();
        if let Some(answer) = remembered().get(&key) {
            return answer.clone();
        }
        let answer = self.ask_person(call, details).await?;
        if answer.for_run {
            remembered().insert(key, answer.result.clone());
        }
        answer.result
    }

    /// Asks the person. An error means that there is no answer.
    async fn ask_person(&self, call: &PermissionCall, details: &CallDetails) -> Result<PersonAnswer, CallNotMade> {
        let time_max = self.services.spec.limits.permission_timeout;
        if time_max.is_zero() {
            let reason = "it needs a permission, and this team does not ask the person";
            return Err(CallNotMade::Refused(reason.to_owned()));
        }
        let request = self.request(call, details).await;
        if request.plan.len() > CALL_BYTES_MAX {
            return Err(CallNotMade::Refused(format!(
                "it needs a permission, and its text is longer than {CALL_BYTES_MAX} bytes. Split it into smaller calls"
            )));
        }
        let id = send_request(&self.services.outbox(), request.clone())
            .await
            .map_err(|error| CallNotMade::NotAnswered(format!("the person cannot be asked for permission: {error}")))?;
        let activity = Activity::WaitingForPermission(id.as_str().into());
        let _waiting = self.turn_control.progress.start_activity(activity, time_max + Duration::from_secs(60));
        let answer = tokio::select! {
            biased;
            () = self.turn_control.wait_for_level(StopLevel::FinishTurn) => None,
            answer = self.wait_for_answer(&id) => Some(answer),
            () = sleep(time_max) => None,
        };
        if let Some(answer) = answer {
            return Ok(self.record_answer(&request, &answer));
        }
        let level = self.turn_control.level();
        let reason = match level {
            StopLevel::Run => "no person answered in time",
            StopLevel::FinishTurn => "the team stops",
            _ => "its task is not yours any more",
        };
        self.withdraw(reason).await;
        // An answer that came before the withdrawal counts.
        if let Some(answer) = self.stored_answer(&id).await.filter(|answer| answer.by != SYSTEM) {
            return Ok(self.record_answer(&request, &answer));
        }
        let text = format!("it needs a permission, and {reason}. Do it in another way, or report the task as failed");
        Err(if level == StopLevel::Run { CallNotMade::NotAnswered(text) } else { CallNotMade::Interrupted(text) })
    }

    /// Lets the recorder see the answer: the person's command writes no event log.
    fn record_answer(&self, request: &Request, answer: &ApprovalAnswer) -> PersonAnswer {
        self.services.events.request_requests_read();
        PersonAnswer::of(request, answer)
    }

    async fn request(&self, call: &PermissionCall, details: &CallDetails) -> Request {
        let about = match self.turn_control.claim() {
            Some(claim) => self.services.stores.board.get(claim.task).await.ok(),
            None => None,
        };
        let (id, now) = (new_request_id(), self.services.clock.now());
        Request {
            about: about.map(|task| ReviewSubject::of(&task, None)),
            ..Request::permission(&id, self.name.as_str(), call, details, now)
        }
    }

    async fn wait_for_answer(&self, id: &str) -> ApprovalAnswer {
        loop {
            if let Some(answer) = self.stored_answer(id).await {
                return answer;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn stored_answer(&self, id: &str) -> Option<ApprovalAnswer> {
        match self.services.stores.requests.all().await {
            Ok(approvals) => approvals.requests.into_iter().find(|request| request.id == id)?.answer,
            Err(error) => {
                let text = format!("cannot read the answers to permission requests: {error}");
                self.services.events.warn_once(self.name.as_str(), &text);
                None
            }
        }
    }

    /// Withdraws the member's permission requests; a failure becomes a warning.
    pub(super) async fn withdraw(&self, reason: &str) {
        if let Err(error) = self.try_withdraw(reason).await {
            let text = format!("cannot withdraw its permission requests: {error}");
            self.services.events.warn(self.name.as_str(), text);
        }
    }

    /// Withdraws the member's permission requests, for which no call waits any more.
    ///
    /// # Errors
    /// The requests cannot be read or written.
    pub async fn try_withdraw(&self, reason: &str) -> StoreResult<()> {
        withdraw_permissions(&self.services.stores, Some(&self.name), reason, self.services.clock.now()).await
    }
}

/// The person's answer about a call.
struct PersonAnswer {
    /// An error if the call must not be made.
    result: Result<(), CallNotMade>,
    /// True if the answer also holds for the same calls in the rest of the run.
    for_run: bool,
}

impl PersonAnswer {
    /// The answer to this request. An approval counts only for the call that the person saw: other programs can change the stored request
    /// while the person reads it.
    fn of(request: &Request, answer: &ApprovalAnswer) -> Self {
        let is_other_call = answer.approve && !request.is_approved_by(answer);
        let result = match (answer.approve, answer.by == SYSTEM) {
            (true, _) if is_other_call => Err(CallNotMade::Refused(
                "the approval is for another call: its digest is not that of this call".to_owned(),
            )),
            (true, _) => Ok(()),
            (false, true) => Err(CallNotMade::NotAnswered(answer.text.clone())),
            (false, false) => Err(CallNotMade::Refused(format!("the person refused it: {}", answer.feedback()))),
        };
        Self { result, for_run: answer.for_run && !is_other_call }
    }
}
