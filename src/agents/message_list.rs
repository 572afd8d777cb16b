//! The messages of a context.

use std::sync::Arc;

use super::token_estimate::ContextSize;
use crate::domain::agent::transcript::{Block, MessageRecord, Role};
use crate::ports::ChatMessage;

/// The messages of a context, and their size. Consecutive messages of one role and source become one message.
#[derive(Debug, Default)]
pub struct MessageList {
    pub messages: Vec<Arc<ChatMessage>>,
    pub size: ContextSize,
}

/// A position in a [`MessageList`]: the number of messages before it, and of blocks in the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    messages: usize,
    blocks: usize,
}

impl MessageList {
    /// Returns the position after the last block.
    pub fn end(&self) -> Position {
        Position {
            messages: self.messages.len(),
            blocks: self.messages.last().map_or(0, |message| message.content.len()),
        }
    }

    /// Returns the texts of messages for the model after a position, without results of tools.
    pub fn user_texts_after(&self, position: Position) -> Vec<&str> {
        let first = position.messages.saturating_sub(1);
        let mut texts = Vec::new();
        for (index, message) in self.messages.iter().enumerate().skip(first) {
            let seen = if index + 1 == position.messages { position.blocks } else { 0 };
            if message.role == Role::User {
                texts.extend(message.content.iter().skip(seen).filter_map(Block::as_text));
            }
        }
        texts
    }

    /// Adds a message. An empty answer is left out: providers refuse it, and a model would repeat a text in its place.
    pub fn add(&mut self, message: &MessageRecord) {
        if message.content.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            Some(last) if last.role == message.role && last.origin == message.origin => {
                Arc::make_mut(last).content.extend(message.content.iter().cloned())
            }
            _ => {
                let (content, origin) = (message.content.clone(), message.origin.clone());
                self.messages.push(Arc::new(ChatMessage { role: message.role, content, origin }));
            }
        }
        self.size.record_growth(self.messages.len() - 1, &message.content);
        if let Some(usage) = message.usage.filter(|usage| message.role == Role::Assistant && usage.total() > 0) {
            self.size.record_usage(usage, self.messages.len());
        }
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.size.restart();
    }

    /// Returns the messages of a request that begins with these blocks.
    pub fn to_request(&self, start: Vec<Block>) -> Arc<[Arc<ChatMessage>]> {
        let mut rest = self.messages.as_slice();
        let mut first = start;
        if let Some((head, tail)) = rest.split_first()
            && head.role == Role::User
        {
            first.extend(head.content.iter().cloned());
            rest = tail;
        }
        let first = Arc::new(ChatMessage::new(Role::User, first));
        std::iter::once(first).chain(rest.iter().cloned()).collect()
    }
}
