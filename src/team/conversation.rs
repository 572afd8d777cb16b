//! One member's conversation: its transcript on disk and the context its model is sent.
//!
//! Every message is recorded before it is acted on. The identity block in front of the context is rendered from durable
//! state by the agent; it is not part of the transcript.

use std::collections::HashSet;
use std::sync::Arc;

use super::size::ContextSize;
use crate::domain::context::{Context, asks, steps_kept, summary_block};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::domain::transcript::{Block, Entry, MessageRecord, Record, Role};
use crate::ports::{ChatMessage, Clock, StoreResult, Transcripts};

/// Contexts of at most this many messages have the identity block rendered anew before each request.
pub const SHORT_CONTEXT_MESSAGES: usize = 3;

/// What a call is told that the process before did not come to.
const NOT_REACHED: &str = "Not called: Brigade ended before it came to this call. Call it again if it is still to be done; only if the machine lost its power, look first whether it was made.";

/// What a call is told of which nobody knows whether it was made: it is not made again unasked.
fn interrupted(tool: &str) -> String {
    format!(
        "Interrupted: Brigade ended after this call of `{tool}` was begun and before its result was kept. Whether it was carried out, wholly or in part, is not known, and it was not repeated. Look what it did before you call it again."
    )
}

/// What goals as they are told begin with.
const GOAL_START: &str = "<goal>";
/// What prompts of the harness begin with.
const PROMPTS: [&str; 2] = [GOAL_START, "<report>"];

/// See the module.
pub struct Conversation {
    name: String,
    transcripts: Arc<dyn Transcripts>,
    clock: Arc<dyn Clock>,
    summary: Option<String>,
    messages: Vec<Arc<ChatMessage>>,
    records: u64,
    delivered: HashSet<String>,
    /// Whether a power cut may take some of that from the transcript.
    owes_sync: bool,
    size: ContextSize,
    /// Something was told that asks for an answer, and the model has not said anything since.
    owes_answer: bool,
    /// The goals that were told, also those a summary stands for by now.
    goals: Vec<String>,
    /// What the transcript ended with, unanswered, when it was taken up.
    resumed_with: Vec<String>,
    /// Whether the model has said something since.
    has_said: bool,
    /// The task it worked on when the transcript was taken up, and since when.
    worked_on: Option<(TaskId, UnixMs)>,
    /// The list of steps its model kept when the transcript was taken up.
    steps: String,
}

impl Conversation {
    /// Takes up the conversation of `name` where its transcript ends. A tool call without a result is closed as interrupted.
    pub async fn resume(name: &str, transcripts: Arc<dyn Transcripts>, clock: Arc<dyn Clock>) -> StoreResult<Self> {
        let records = transcripts.load(name).await?;
        let context = Context::from_records(&records);
        let open_calls = context.open_calls();
        let mut conversation = Self {
            name: name.to_owned(),
            transcripts,
            clock,
            delivered: Context::delivered(&records).map(str::to_owned).collect(),
            // Whoever wrote it may have been killed before it was durable.
            owes_sync: true,
            summary: context.summary,
            messages: Vec::new(),
            records: context.records,
            size: ContextSize::default(),
            owes_answer: false,
            goals: Vec::new(),
            resumed_with: Vec::new(),
            has_said: false,
            worked_on: worked_on(&records),
            steps: steps_kept(&records),
        };
        records.iter().for_each(|record| conversation.note(&record.entry));
        for message in context.messages {
            conversation.add(&message);
        }
        conversation.has_said = false;
        if let Some(last) = conversation.messages.last().filter(|message| message.role == Role::User) {
            conversation.resumed_with = last.content.iter().filter_map(text_of).map(str::to_owned).collect();
        }
        if !open_calls.is_empty() {
            // Calls are made one after the other and each result is recorded before the next call.
            let closed = open_calls.into_iter().enumerate().map(|(place, (id, tool))| Block::ToolResult {
                tool_use_id: id,
                content: if place == 0 { interrupted(&tool) } else { NOT_REACHED.to_owned() },
                is_error: true,
            });
            conversation.record(MessageRecord::new(Role::User, closed.collect())).await?;
        }
        Ok(conversation)
    }

    /// Records a message and adds it to the context. It survives the death of the process; what it delivers survives a power cut once
    /// [`Self::carried`] says so.
    pub async fn record(&mut self, message: MessageRecord) -> StoreResult<()> {
        let record = Record { at: self.clock.now(), entry: Entry::Message(message) };
        self.transcripts.append(&self.name, std::slice::from_ref(&record), false).await?;
        self.records += 1;
        self.note(&record.entry);
        if let Entry::Message(message) = record.entry {
            self.owes_sync |= !message.delivered.is_empty();
            self.delivered.extend(message.delivered.iter().cloned());
            self.add(&message);
        }
        Ok(())
    }

    fn note(&mut self, entry: &Entry) {
        let Entry::Message(message) = entry else { return };
        if message.role == Role::Assistant {
            self.owes_answer = false;
            self.has_said = true;
            return;
        }
        for text in message.content.iter().filter_map(text_of) {
            self.owes_answer |= asks(text);
            if text.starts_with(GOAL_START) {
                self.goals.push(text.to_owned());
            }
        }
    }

    /// Since when it worked on this task, where it did so when the transcript was taken up.
    #[must_use]
    pub fn worked_since(&self, task: TaskId) -> Option<UnixMs> {
        self.worked_on.filter(|(on, _)| *on == task).map(|(_, since)| since)
    }

    /// The list of steps its model kept when the transcript was taken up.
    #[must_use]
    pub fn steps(&self) -> &str {
        &self.steps
    }

    /// Replaces the context by a summary.
    pub async fn compact(&mut self, summary: String) -> StoreResult<u64> {
        let covers = self.records;
        let record = Record { at: self.clock.now(), entry: Entry::Compaction { summary: summary.clone(), covers } };
        self.transcripts.append(&self.name, &[record], false).await?;
        self.records += 1;
        self.messages.clear();
        self.size.restart();
        self.summary = Some(summary).filter(|summary| !summary.is_empty());
        Ok(covers)
    }

    /// Adds to the context; consecutive messages of one side are one message to the model.
    fn add(&mut self, message: &MessageRecord) {
        match self.messages.last_mut() {
            Some(last) if last.role == message.role => {
                Arc::make_mut(last).content.extend(message.content.iter().cloned())
            }
            _ => self.messages.push(Arc::new(ChatMessage { role: message.role, content: message.content.clone() })),
        }
        self.size.grew(self.messages.len() - 1, &message.content);
        if let Some(usage) = message.usage.filter(|usage| message.role == Role::Assistant && usage.total() > 0) {
            self.size.reported(usage, self.messages.len());
        }
    }

    /// The messages of a request: the identity first, then the summary, then what was said since.
    #[must_use]
    pub fn messages(&self, identity: &str) -> Arc<[Arc<ChatMessage>]> {
        let mut first = vec![Block::text(identity)];
        first.extend(self.summary.as_ref().map(|summary| Block::text(summary_block(summary))));
        let mut rest = self.messages.as_slice();
        if let Some((head, tail)) = rest.split_first()
            && head.role == Role::User
        {
            first.extend(head.content.iter().cloned());
            rest = tail;
        }
        let first = Arc::new(ChatMessage { role: Role::User, content: first });
        std::iter::once(first).chain(rest.iter().cloned()).collect()
    }

    /// Whether the context is so short that the model could have forgotten who it is.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.messages.len() <= SHORT_CONTEXT_MESSAGES
    }

    /// Whether nothing was said since the last compaction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The summary of what lies before the context.
    #[must_use]
    pub fn summary(&self) -> Option<&str> {
        self.summary.as_deref()
    }

    /// How large the context is.
    #[must_use]
    pub fn size(&self) -> &ContextSize {
        &self.size
    }

    /// The messages nobody has counted yet.
    #[must_use]
    pub fn uncounted(&self) -> Vec<(usize, Arc<ChatMessage>)> {
        self.size.uncounted(&self.messages)
    }

    /// Takes in what was counted of them.
    pub fn counted(&mut self, counts: Vec<(usize, u64)>) {
        self.size.counted(counts);
    }

    /// The mail this transcript carries, by key.
    #[must_use]
    pub fn delivered(&self) -> &HashSet<String> {
        &self.delivered
    }

    /// The same, once a power cut takes none of it from the transcript: whatever else holds that mail may go then.
    ///
    /// # Errors
    /// The transcript cannot be made durable; all it says counts as delivered none the less.
    pub async fn carried(&mut self) -> StoreResult<&HashSet<String>> {
        if self.owes_sync && !self.delivered.is_empty() {
            self.transcripts.append(&self.name, &[], true).await?;
        }
        self.owes_sync = false;
        Ok(&self.delivered)
    }

    /// Whether this goal was told, ever.
    #[must_use]
    pub fn was_told_goal(&self, text: &str) -> bool {
        self.goals.iter().any(|goal| goal == text)
    }

    /// Whether the model was asked something it has not answered: mail, a goal, or what [`Conversation::owe`] said so of.
    #[must_use]
    pub fn owes_answer(&self) -> bool {
        self.owes_answer
    }

    /// Says that the model is asked something.
    pub fn owe(&mut self) {
        self.owes_answer = true;
    }

    /// Whether the process before told this and had no answer to it; that it did so is said once. It is answered by now if the
    /// model has said something.
    pub fn was_told_before(&mut self, text: &str) -> bool {
        let place = self.resumed_with.iter().position(|told| told == text);
        let Some(place) = place else { return false };
        self.resumed_with.swap_remove(place);
        self.owes_answer |= !self.has_said;
        true
    }

    /// The last thing the model said since it was last asked for something by a prompt.
    #[must_use]
    pub fn said_since_prompt(&self) -> Option<&str> {
        let is_prompt = |block: &Block| text_of(block).is_some_and(|text| PROMPTS.iter().any(|p| text.starts_with(p)));
        for message in self.messages.iter().rev() {
            let said = message.content.iter().rev().filter_map(text_of).find(|text| !text.trim().is_empty());
            match message.role {
                Role::Assistant if said.is_some() => return said,
                Role::User if message.content.iter().any(is_prompt) => return None,
                _ => {}
            }
        }
        None
    }

    /// The last texts of the context, for a summary no model could make: at most `bytes_max` in all.
    #[must_use]
    pub fn tail_text(&self, bytes_max: usize) -> String {
        let mut parts = Vec::new();
        let mut left = bytes_max;
        for block in self.messages.iter().rev().flat_map(|message| message.content.iter().rev()) {
            let Block::Text { text } = block else { continue };
            let from = text.len().saturating_sub(left);
            let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
            parts.push(text[from..].to_owned());
            left = left.saturating_sub(text.len());
            if left == 0 {
                break;
            }
        }
        parts.reverse();
        parts.join("\n")
    }
}

/// The task the last records are about, and since when.
fn worked_on(records: &[Record]) -> Option<(TaskId, UnixMs)> {
    let mut worked_on: Option<(TaskId, UnixMs)> = None;
    for record in records {
        if let Entry::Message(MessageRecord { task: Some(task), .. }) = &record.entry
            && worked_on.is_none_or(|(on, _)| on != *task)
        {
            worked_on = Some((*task, record.at));
        }
    }
    worked_on
}

/// The text of a block of text.
pub(super) fn text_of(block: &Block) -> Option<&str> {
    match block {
        Block::Text { text } => Some(text),
        _ => None,
    }
}
