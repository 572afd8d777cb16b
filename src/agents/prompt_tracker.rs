//! The prompts of one member, and whether its model has answered them.

use crate::domain::agent::transcript::{Block, MessageRecord, PromptKind, Record, Role, TranscriptEntry};

/// The prompts in a transcript and the answers to them.
#[derive(Debug, Default)]
pub struct PromptTracker {
    /// The model has not answered since the last message that asks for an answer.
    pub is_answer_due: bool,
    /// The number of messages that ask for an answer since the transcript was loaded.
    pub prompts: u64,
    /// The model's last text since the last goal or request for a report.
    pub last_text: Option<String>,
    /// The number of texts since the transcript was loaded.
    pub new_texts: u64,
}

impl PromptTracker {
    /// Reads the prompts of a loaded transcript.
    pub fn resume(records: &[Record]) -> Self {
        let mut tracker = Self::default();
        for record in records {
            if let TranscriptEntry::Message(message) = &record.entry {
                tracker.track_loaded(message);
            }
        }
        tracker
    }

    /// Tracks a message that was just recorded.
    pub fn track(&mut self, message: &MessageRecord) {
        self.track_loaded(message);
        self.is_answer_due |= message.prompt.is_some();
        self.prompts += u64::from(message.prompt.is_some());
        self.new_texts += u64::from(message.role == Role::Assistant && text_of(message).is_some());
    }

    fn track_loaded(&mut self, message: &MessageRecord) {
        if message.role == Role::Assistant {
            self.is_answer_due = false;
            self.last_text = text_of(message).map(str::to_owned).or(self.last_text.take());
            return;
        }
        match message.prompt {
            Some(PromptKind::Goal) => {
                self.is_answer_due = true;
                self.last_text = None;
            }
            // It expires with its process, so a loaded one needs no answer.
            Some(PromptKind::Report) => self.last_text = None,
            Some(PromptKind::Mail) => self.is_answer_due = true,
            None => {}
        }
    }
}

fn text_of(message: &MessageRecord) -> Option<&str> {
    message.content.iter().filter_map(Block::as_text).rfind(|text| !text.trim().is_empty())
}
