//! One member's conversation: its transcript on disk, and the context that its model gets.
//!
//! Every message is recorded before it has any effect. So is the identity block at the start of a context: a later process sends
//! the same bytes again, and providers find the start of the request in their cache.

use std::collections::HashSet;
use std::sync::Arc;

use super::context_content::ContextContent;
use super::message_list::{MessageList, Position};
use super::prompt_tracker::PromptTracker;
use super::token_estimate::ContextSize;
use super::transcript_writer::TranscriptWriter;
use crate::domain::agent::prompt::{Context, last_todo_list, summary_block};
use crate::domain::agent::transcript::{Block, MessageRecord, Role, SentPrompt, TranscriptEntry};
use crate::domain::team::phase::ClaimRef;
use crate::domain::text::tail;
use crate::ports::{ChatMessage, Clock, StoreResult, Transcripts};

/// Up to this many messages, a context is not compacted: that would not make it smaller.
const SHORT_CONTEXT_MESSAGES: usize = 3;

/// The result of a tool call that was not made because the process ended.
const NOT_REACHED_RESULT: &str = "Not called: Brigade ended before it reached this call. If it is still needed, call it again. After a power failure, first check whether it was made.";

/// The summary of a context without texts.
const NO_SUMMARY: &str = "(nothing)";

/// Returns the result of a tool call whose own result is missing. Such a call is not repeated.
fn interrupted_result(tool: &str) -> String {
    format!(
        "Interrupted: Brigade ended during this call of `{tool}`, before its result was recorded. Its effect is not known, and it was not repeated. Check its effect before you call it again."
    )
}

/// The transcript and the current context of one member.
pub struct Conversation {
    transcript: TranscriptWriter,
    /// The prompts and their answers.
    pub prompts: PromptTracker,
    /// The identity block at the start of the context; `None` before its first request.
    pub(super) identity: Option<String>,
    /// The claim whose task text is known to be in the context.
    described_claim: Option<ClaimRef>,
    pub(super) content: ContextContent,
    /// The block with the summary of everything before the context.
    pub(super) summary: Option<String>,
    messages: MessageList,
    /// The session of an external agent that has the context; `None` for other agents.
    session: Option<AgentSession>,
    /// The model's todo list in the loaded transcript.
    pub(super) todo_list: String,
}

/// The session of an external agent, and its last prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSession {
    /// The last prompt. After a crash it may not have arrived.
    pub last_prompt: SentPrompt,
    /// The end of the messages in the last prompt.
    sent: Position,
    /// The end of the messages in earlier prompts that arrived.
    sent_before: Position,
    /// True if the last prompt did not arrive.
    is_last_lost: bool,
}

impl Conversation {
    /// Continues the conversation of `name` at the end of its transcript. Records a result for each tool call that has none.
    ///
    /// # Errors
    /// The transcript cannot be read or written.
    pub async fn resume(name: &str, transcripts: Arc<dyn Transcripts>, clock: Arc<dyn Clock>) -> StoreResult<Self> {
        let records = transcripts.load(name).await?;
        let context = Context::from_records(&records);
        let open_calls = context.unanswered_tool_calls();
        let mut conversation = Self {
            transcript: TranscriptWriter::resume(name, transcripts, clock, &records),
            prompts: PromptTracker::resume(&records),
            identity: context.identity,
            described_claim: None,
            content: ContextContent::of_records(&records),
            summary: context.summary,
            messages: MessageList::default(),
            session: None,
            todo_list: last_todo_list(&records),
        };
        let mut positions = vec![conversation.messages.end()];
        for message in context.messages {
            conversation.messages.add(&message);
            positions.push(conversation.messages.end());
        }
        conversation.session = context.last_sent.map(|(last_prompt, sent)| AgentSession {
            last_prompt,
            sent: positions[sent],
            sent_before: positions[context.sent_before],
            is_last_lost: false,
        });
        if !open_calls.is_empty() {
            // Calls run one after the other, and each result is recorded before the next call.
            let results = open_calls.into_iter().enumerate().map(|(index, (id, tool))| Block::ToolResult {
                tool_use_id: id,
                content: if index == 0 { interrupted_result(&tool) } else { NOT_REACHED_RESULT.to_owned() },
                is_error: true,
            });
            conversation.record(MessageRecord::new(Role::User, results.collect())).await?;
        }
        Ok(conversation)
    }

    /// Records a message and adds it to the context. The record survives the death of the process. It survives a power cut after
    /// [`Self::synced_keys`].
    ///
    /// # Errors
    /// The transcript cannot be written. The context then lacks the message too.
    pub async fn record(&mut self, message: MessageRecord) -> StoreResult<()> {
        self.transcript.append_message(&message).await?;
        self.prompts.track(&message);
        self.content.add(&message);
        self.messages.add(&message);
        Ok(())
    }

    /// Records the identity block that begins the context. It stays the same until the context ends.
    ///
    /// # Errors
    /// The transcript cannot be written. The context then has no new identity block.
    pub async fn set_identity(&mut self, block: String) -> StoreResult<()> {
        let record = MessageRecord::identity(&block);
        self.transcript.append_message(&record).await?;
        self.content.add(&record);
        self.identity = Some(block);
        Ok(())
    }

    /// Records a prompt that is about to be sent to an external agent: it has all of [`Self::unsent_texts`]. The record survives the
    /// death of the process.
    ///
    /// # Errors
    /// The transcript cannot be written. The prompt must not be sent then.
    pub async fn record_sent(&mut self, mut prompt: SentPrompt) -> StoreResult<()> {
        let last = self.session.as_ref().filter(|session| session.last_prompt.session == prompt.session);
        prompt.includes_last = last.is_some_and(|session| session.is_last_lost);
        let sent_before = last.map(|session| session.sent).unwrap_or_default();
        self.transcript.append(TranscriptEntry::Sent(prompt.clone())).await?;
        self.content.add_sent();
        let sent = self.messages.end();
        self.session = Some(AgentSession { last_prompt: prompt, sent, sent_before, is_last_lost: false });
        Ok(())
    }

    /// Returns the session of an external agent that has the context.
    pub fn session(&self) -> Option<&AgentSession> {
        self.session.as_ref()
    }

    /// Records that the agent's history does not have the last prompt. Its messages are sent again.
    pub fn mark_last_prompt_unsent(&mut self) {
        if let Some(session) = &mut self.session {
            session.sent = session.sent_before;
            session.is_last_lost = true;
        }
    }

    /// Records that the agent does not know its session any more. All messages of the context are sent again, to a new session.
    pub fn forget_session(&mut self) {
        self.session = None;
    }

    /// Returns the texts for the agent that no prompt of its session has.
    pub fn unsent_texts(&self) -> Vec<&str> {
        self.messages.user_texts_after(self.session.as_ref().map(|session| session.sent).unwrap_or_default())
    }

    /// Records that the context has the text of this claim's task.
    pub fn mark_described(&mut self, claim: ClaimRef) {
        self.described_claim = Some(claim);
    }

    /// Returns true if the context has the text of this claim's task.
    pub fn describes(&self, claim: ClaimRef) -> bool {
        self.described_claim == Some(claim)
    }

    /// Replaces the context by a summary and the model's todo list. Returns the number of records before it.
    pub async fn compact(&mut self, summary: String, todo_list: String) -> StoreResult<u64> {
        // A record without a summary would start a new context.
        let summary = if summary.is_empty() { NO_SUMMARY.to_owned() } else { summary };
        let block = summary_block(&summary, &todo_list);
        let covers = self.transcript.record_count;
        self.transcript.append(TranscriptEntry::Compaction { summary, covers, todo_list }).await?;
        self.content.compact();
        self.clear_context(Some(block));
        Ok(covers)
    }

    /// Starts a new context. The model sees nothing of what was before, except for mail that it has not answered. The transcript keeps
    /// everything.
    pub async fn restart(&mut self) -> StoreResult<()> {
        let covers = self.transcript.record_count.saturating_sub(self.content.records_since_answer);
        let end = TranscriptEntry::Compaction { summary: String::new(), covers, todo_list: String::new() };
        self.transcript.append(end).await?;
        self.content.start_context();
        self.clear_context(None);
        for message in &self.content.unanswered_mail {
            self.messages.add(message);
        }
        Ok(())
    }

    /// Empties the context, except for this summary.
    fn clear_context(&mut self, summary: Option<String>) {
        self.identity = None;
        self.described_claim = None;
        self.session = None;
        self.messages.clear();
        self.summary = summary;
    }

    /// Returns the messages of a request: identity block, summary, then the messages since.
    pub fn messages(&self) -> Arc<[Arc<ChatMessage>]> {
        let start = [&self.identity, &self.summary].into_iter().flatten().map(Block::text);
        self.messages.to_request(start.collect())
    }

    /// Returns the bytes before the messages: identity block and summary.
    pub fn start_bytes(&self) -> usize {
        [&self.identity, &self.summary].into_iter().flatten().map(String::len).sum()
    }

    /// Returns true if the context is too short to be compacted.
    pub fn is_short(&self) -> bool {
        self.messages.messages.len() <= SHORT_CONTEXT_MESSAGES
    }

    /// Returns true if there was no message since the last compaction.
    pub fn is_empty(&self) -> bool {
        self.messages.messages.is_empty()
    }

    /// Returns true if the context has an answer of the model. A summary is none.
    pub fn has_answers(&self) -> bool {
        self.messages.messages.iter().any(|message| message.role == Role::Assistant)
    }

    /// Returns the size of the context.
    pub fn size(&self) -> &ContextSize {
        &self.messages.size
    }

    /// Returns the keys of all mail in this transcript.
    pub fn delivered_keys(&self) -> &HashSet<String> {
        &self.transcript.delivered
    }

    /// Syncs the transcript and returns the keys of all mail in it. This mail survives a power cut, so the mailbox can remove it.
    ///
    /// # Errors
    /// The sync failed. The mail still counts as delivered.
    pub async fn synced_keys(&mut self) -> StoreResult<&HashSet<String>> {
        self.transcript.synced_keys().await
    }

    /// Returns the last texts of the context, or those of one author, at most `bytes_max` bytes.
    pub fn tail_text(&self, author: Option<Role>, bytes_max: usize) -> String {
        let mut parts = Vec::new();
        let mut bytes_left = bytes_max;
        let messages = self.messages.messages.iter().rev();
        let messages = messages.filter(|message| author.is_none_or(|author| author == message.role));
        for block in messages.flat_map(|message| message.content.iter().rev()) {
            let Block::Text { text } = block else { continue };
            parts.push(tail(text, bytes_left).to_owned());
            bytes_left = bytes_left.saturating_sub(text.len());
            if bytes_left == 0 {
                break;
            }
        }
        parts.reverse();
        parts.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::SystemClock;
    use crate::stores::memory;

    async fn say(conversation: &mut Conversation, text: &str) {
        conversation.record(MessageRecord::new(Role::User, vec![Block::text(text)])).await.unwrap();
    }

    async fn send(conversation: &mut Conversation, key: &str) {
        let prompt = SentPrompt { session: "s".to_owned(), key: key.to_owned(), ..SentPrompt::default() };
        conversation.record_sent(prompt).await.unwrap();
    }

    #[tokio::test]
    async fn messages_of_lost_prompt_are_unsent() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let transcripts = memory::stores(Arc::clone(&clock), tokio::sync::broadcast::channel(8).0).transcripts;
        let open = async || Conversation::resume("alice", Arc::clone(&transcripts), Arc::clone(&clock)).await.unwrap();
        let mut conversation = open().await;
        say(&mut conversation, "one").await;
        send(&mut conversation, "k1").await;
        say(&mut conversation, "two").await;
        send(&mut conversation, "k2").await;
        assert!(conversation.unsent_texts().is_empty());
        conversation.mark_last_prompt_unsent();
        assert_eq!(conversation.unsent_texts(), ["two"]);
        say(&mut conversation, "three").await;
        send(&mut conversation, "k3").await;
        // The next process finds that the third prompt, which has the messages of the second one, did not arrive either.
        let mut conversation = open().await;
        assert!(conversation.unsent_texts().is_empty());
        conversation.mark_last_prompt_unsent();
        assert_eq!(conversation.unsent_texts(), ["two", "three"]);
    }
}
