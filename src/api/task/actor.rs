//! The actor of an order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{acting_name, find};
use crate::api::next::{Next, OrderForm};
use crate::api::workspace::Workspace;
use crate::api::{ApiResult, Refusal};
use crate::domain::task::task_error::TaskError;
use crate::domain::task::transition::{Action, Actor, ActorKind, permit};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::text::one_line;
use crate::ports::StoreError;

/// The actor of an order: the person, unless a name is given.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActingAs {
    /// The name of a member, or of an agent of another program.
    pub name: Option<String>,
    /// The attempt of its claim; an older one is refused.
    pub attempt: Option<u32>,
    /// True if the person overrides the holder of the task.
    pub force: bool,
}

impl ActingAs {
    /// Returns the actor.
    ///
    /// # Errors
    /// The name is invalid, or a teammate uses force.
    pub fn actor(&self) -> ApiResult<Actor> {
        let Some(name) = &self.name else {
            return Ok(Actor::new(HUMAN, ActorKind::Person).forcing(self.force));
        };
        let name = acting_name(name)?;
        let kind = match name.as_str() {
            HUMAN => ActorKind::Person,
            LEAD => ActorKind::Lead,
            _ if self.force => {
                let message = format!("cannot use force as `{name}`: only a person and the lead override a holder");
                return Err(Refusal::invalid(message).next(OrderForm::WithForce));
            }
            _ => ActorKind::Teammate,
        };
        let attempt = self.attempt;
        Ok(Actor { attempt, ..Actor::new(name.as_str(), kind).forcing(self.force) })
    }

    /// Returns the actor of a change that only the holder of the task, or a person with force, may make.
    ///
    /// # Errors
    /// Neither is given: the refusal names the holder.
    pub async fn holder(&self, workspace: &Workspace, action: Action, id: TaskId) -> ApiResult<Actor> {
        if (self.name.is_some() && self.attempt.is_some()) || self.force {
            return self.actor();
        }
        let task = find(workspace, id).await?;
        if task.status != TaskStatus::InProgress {
            let word = task.status_word().into_owned();
            return Err(StoreError::from(TaskError::WrongStatus { task: id, action, status: task.status, word }).into());
        }
        Err(self.not_holder(&task, action))
    }

    /// The refusal of a change that names neither the holder of the task nor force. Its next step has the options that the board accepts.
    fn not_holder(&self, task: &Task, action: Action) -> Refusal {
        let (id, verb) = (task.id, action.verb());
        let owner = one_line(task.owner.as_deref().unwrap_or("another program"));
        let (refusal, claim) = match self.name.as_deref() {
            Some(name) if !name.eq_ignore_ascii_case(&owner) => {
                (Refusal::refused(format!("cannot {verb} {id}: {owner} holds it, not {}", one_line(name))), None)
            }
            _ if task.is_foreign() => {
                (Refusal::invalid(format!("cannot {verb} {id}: {owner} holds it without a claim")), None)
            }
            _ => {
                let refusal = Refusal::invalid(format!(
                    "cannot {verb} {id}: {owner} holds it in attempt {}, and must name both",
                    task.attempt
                ));
                (refusal, Some(OrderForm::AsHolder { by: owner, attempt: task.attempt }))
            }
        };
        let can_force = permit(task, action, &Actor::new(HUMAN, ActorKind::Person).forcing(true)).is_ok();
        let force = can_force.then_some(OrderForm::WithForce);
        refusal.steps(claim.into_iter().chain(force).map(Next::from))
    }
}
