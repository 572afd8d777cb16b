//! Compaction: a summary replaces the context.

use std::sync::Arc;

use super::Turn;
use super::retry::RequestFailure;
use crate::agents::{AgentError, CompactionOutcome, TurnOutcome};
use crate::domain::agent::transcript::{Block, Role};
use crate::domain::log::event::EventKind;
use crate::ports::{ChatMessage, ModelError, RequestPurpose};

/// Bytes of the context's end that replace a summary if no model can write one.
const SUMMARY_FALLBACK_BYTES: usize = 8 * 1024;

impl Turn<'_> {
    /// Replaces the context by a summary from its model or, if the model cannot write one, by the end of the context. Returns an
    /// outcome if the context was kept: the model is out of reach, the budget is spent or the turn was aborted.
    pub(super) async fn compact(&mut self) -> Result<Option<TurnOutcome>, AgentError> {
        let keeps_context = |error: &ModelError| {
            !matches!(error, ModelError::ContextTooLong { .. } | ModelError::InvalidAnswer(_) | ModelError::Final(_))
        };
        self.compact_unless(keeps_context).await
    }

    /// Compacts as [`Self::compact`], but keeps the context if `keeps_context` is true for the error.
    async fn compact_unless(
        &mut self,
        keeps_context: fn(&ModelError) -> bool,
    ) -> Result<Option<TurnOutcome>, AgentError> {
        self.agent.compactions_in_a_row += 1;
        self.begin_context().await?;
        let summary = match self.summarise().await {
            Ok(summary) => summary,
            Err(RequestFailure::Model(error)) if !keeps_context(&error) => {
                self.host.conversation.tail_text(None, SUMMARY_FALLBACK_BYTES)
            }
            Err(failure) => return Ok(Some(self.outcome_without_answer(failure))),
        };
        let todo_list = self.host.context.caller.todos.lock().clone();
        let covers = self.host.conversation.compact(summary, todo_list).await?;
        self.host.services.events.record(EventKind::Compacted { teammate: self.host.name().to_owned(), covers });
        Ok(None)
    }

    /// Compacts on a person's request. Compacts without a summary only if the context is too long for the model.
    pub(super) async fn compact_on_request(&mut self) -> Result<CompactionOutcome, AgentError> {
        if self.host.conversation.is_empty() {
            return Ok(CompactionOutcome::Kept("there is nothing to compact: the context is empty".to_owned()));
        }
        let compactions_before = self.agent.compactions_in_a_row;
        let outcome = self.compact_unless(|error| !matches!(error, ModelError::ContextTooLong { .. })).await?;
        self.agent.compactions_in_a_row = compactions_before;
        let reason = match outcome {
            None => return Ok(CompactionOutcome::Compacted),
            Some(TurnOutcome::ModelFailed { reason, .. } | TurnOutcome::AgentFailed(reason)) => {
                format!("its model gave no answer: {reason}")
            }
            Some(TurnOutcome::BudgetSpent(spent)) => spent.to_string(),
            Some(_) => "it was aborted".to_owned(),
        };
        Ok(CompactionOutcome::Kept(format!("cannot compact, the context stays as it is: {reason}")))
    }

    async fn summarise(&mut self) -> Result<String, RequestFailure> {
        let mut messages = self.host.conversation.messages().to_vec();
        let instruction = Block::text(self.host.services.spec.prompts.compact.clone());
        match messages.last_mut() {
            Some(last) if last.role == Role::User => Arc::make_mut(last).content.push(instruction),
            _ => messages.push(Arc::new(ChatMessage::new(Role::User, vec![instruction]))),
        }
        let messages: Arc<[Arc<ChatMessage>]> = messages.into();
        let mut summary = None;
        for purpose in [RequestPurpose::Summary, RequestPurpose::SummaryWithoutTools] {
            let response = self.send(&self.agent.prefix, Arc::clone(&messages), purpose).await?;
            let has_calls = response.content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
            summary = response.content.into_iter().find_map(|block| match block {
                Block::Text { text } if !text.trim().is_empty() => Some(text),
                _ => None,
            });
            // Text next to a call announces the call; it is no summary.
            if !has_calls {
                break;
            }
        }
        Ok(summary.unwrap_or_else(|| self.host.conversation.tail_text(None, SUMMARY_FALLBACK_BYTES)))
    }
}
