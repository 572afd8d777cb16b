//! The start of the work on a claimed task: the context, and the message with the task.

use super::host::AgentHost;
use super::{AgentBackend, AgentError};
use crate::domain::task::Task;
use crate::domain::team::phase::ClaimRef;
use crate::service::request_mail;

/// Begins the work on a task that the member's loop claimed.
///
/// # Errors
/// The transcript cannot be written.
pub async fn begin(host: &mut AgentHost, backend: &mut dyn AgentBackend, task: &Task) -> Result<ClaimRef, AgentError> {
    let claim = ClaimRef::of(task);
    host.turn_control.set_claim(Some(claim));
    begin_context(host, task).await?;
    backend.begin_task(task, host).await?;
    host.append_claimed_task(task).await?;
    Ok(claim)
}

/// Starts a new context for a task that the agent claimed by a tool call, if the task needs one. Otherwise the result of the call has
/// the task.
///
/// # Errors
/// The transcript cannot be written.
pub async fn begin_claimed_by_call(host: &mut AgentHost, claim: ClaimRef) -> Result<(), AgentError> {
    // The same turn may have claimed the task and reported it.
    if host.turn_control.claim() != Some(claim) {
        return Ok(());
    }
    let Ok(task) = host.services.stores.board.get(claim.task).await else { return Ok(()) };
    if begin_context(host, &task).await? {
        host.append_claimed_task(&task).await?;
    }
    Ok(())
}

/// Starts a new context after a failed attempt at the task, or if the member remembers only one task. Returns true if it did.
///
/// Otherwise the context stays, and the work of an interrupted attempt counts as evidence for this one. Its reviews count in both cases.
async fn begin_context(host: &mut AgentHost, task: &Task) -> Result<bool, AgentError> {
    if host.context.review.is_some()
        && let Err(error) = request_mail::continue_reviews(&host.services.stores, host.name(), task).await
    {
        host.services.events.warn(host.name(), format!("cannot find its reviews of {}: {error}", task.id));
    }
    let memory = host.spec.memory.unwrap_or(host.services.spec.memory);
    let content = &host.conversation.content;
    if !content.must_restart(task, memory) {
        let activity = content.interrupted_activity(task);
        host.context.caller.attempt_log.resume(ClaimRef::of(task), activity);
        return Ok(false);
    }
    host.reset_conversation().await?;
    Ok(true)
}
