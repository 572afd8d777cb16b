//! The person's goal. It reaches the lead as a message of the person, like everything else that the person writes to it. So it survives a
//! crash, and is delivered once.

use super::StartOptions;
use crate::agents::AgentServices;
use crate::domain::agent::prompt::{delivered_keys, has_message_text};
use crate::domain::agent::transcript::{Block, Record, Role, TranscriptEntry};
use crate::domain::log::event::GOAL_TOOL;
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::state::Mode;
use crate::ports::StoreResult;
use crate::service::pending::new_mail;

/// Sends the goal to the lead. The lead gets a goal that the person gave for this launch each time. It gets the goal of the config until
/// it has planned tasks or reported that the goal is met, unless a plan or a cleanup replaces it. A lead without a model gets none.
pub(super) async fn send(services: &AgentServices, start: &StartOptions) -> StoreResult<()> {
    if !services.spec.lead.has_model() {
        return Ok(());
    }
    let is_cleanup = start.one_session && start.mode == Some(Mode::RunCleanup);
    let typed = start.goal.as_deref();
    let needs_goal = start.plan.is_empty() && !is_cleanup;
    let configured = if needs_goal { services.spec.goal.as_deref() } else { None };
    let Some(goal) = typed.or(configured).map(str::trim).filter(|goal| !goal.is_empty()) else { return Ok(()) };
    let stores = &services.stores;
    let records = stores.transcripts.load(LEAD).await?;
    let mail = stores.mailbox.peek(LEAD).await?;
    let answered_until = records.iter().rposition(is_answer).map_or(0, |answer| answer + 1);
    let is_unanswered = records[answered_until..].iter().any(|record| has_goal(record, goal));
    let was_given = records.iter().any(|record| has_goal(record, goal));
    let is_settled = !stores.board.view().await?.tasks.is_empty() || records.iter().any(reports_goal);
    let is_goal = |message: &Message| {
        message.kind == MessageType::Message && message.from == HUMAN && message.content.trim() == goal
    };
    let is_in_inbox = new_mail(mail, &delivered_keys(&records)).iter().any(|delivery| is_goal(&delivery.message));
    let is_due = !is_in_inbox && !is_unanswered && (typed.is_some() || !was_given || !is_settled);
    if is_due {
        services.outbox().send_from_person(LEAD, &[], goal).await?;
    }
    Ok(())
}

fn is_answer(record: &Record) -> bool {
    matches!(&record.entry, TranscriptEntry::Message(message) if message.role == Role::Assistant)
}

/// Returns true if the lead reported in this record that the goal is met.
fn reports_goal(record: &Record) -> bool {
    let TranscriptEntry::Message(message) = &record.entry else { return false };
    message.content.iter().any(|block| matches!(block, Block::ToolUse { name, .. } if name == GOAL_TOOL))
}

/// Returns true if this record of the lead's transcript gave it the goal.
fn has_goal(record: &Record, goal: &str) -> bool {
    let TranscriptEntry::Message(message) = &record.entry else { return false };
    message.role == Role::User
        && message.content.iter().filter_map(Block::as_text).any(|text| has_message_text(text, HUMAN, goal))
}
