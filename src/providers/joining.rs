//! The text of an answer's stream and the blocks of the whole answer, without parts of characters.

use parking_lot::Mutex;

use super::arguments;
use crate::domain::agent::transcript::{Block, Usage};
use crate::domain::text::characters::{end_of_whole, joined};
use crate::ports::Listener;
use crate::secrets::masked;

/// Passes a stream on. A part of a character waits for the next text.
pub struct JoinedStream<'a> {
    listener: &'a dyn Listener,
    waiting: Mutex<String>,
}

impl<'a> JoinedStream<'a> {
    pub fn new(listener: &'a dyn Listener) -> Self {
        Self { listener, waiting: Mutex::default() }
    }

    /// Passes on what still waits at the end of the stream.
    pub fn end(self) {
        let waiting = self.waiting.into_inner();
        if !waiting.is_empty() {
            self.listener.on_text(&joined(&waiting).text);
        }
    }
}

impl Listener for JoinedStream<'_> {
    fn on_text(&self, delta: &str) {
        let mut waiting = self.waiting.lock();
        waiting.push_str(delta);
        let end = end_of_whole(&waiting);
        let parts = waiting.split_off(end);
        let whole = std::mem::replace(&mut *waiting, parts);
        if !whole.is_empty() {
            self.listener.on_text(&joined(&whole).text);
        }
    }

    fn on_activity(&self) {
        self.listener.on_activity();
    }

    fn on_bytes(&self, bytes: usize) {
        self.listener.on_bytes(bytes);
    }

    fn on_usage(&self, usage: Usage) {
        self.listener.on_usage(usage);
    }

    fn on_notice(&self, text: &str) {
        self.listener.on_notice(text);
    }

    fn on_declined(&self) {
        self.listener.on_declined();
    }
}

/// A block with its characters joined and all secrets masked, or `None` if it is no block without them. A key that the server repeats
/// must not get into a transcript, even if it came in several pieces. A call with a replaced character is not made: the model did not
/// write it.
pub fn finished_block(block: Block) -> Option<Block> {
    let text = serde_json::to_string(&block).unwrap_or_default();
    let joined = joined(&text);
    let masked = masked(joined.text.to_string());
    let block = if masked == text { block } else { serde_json::from_str(&masked).ok()? };
    Some(if joined.is_replaced { arguments::without_effect(block) } else { block })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::text::characters::text_of;

    #[derive(Default)]
    struct Shown(Mutex<Vec<String>>);

    impl Listener for Shown {
        fn on_text(&self, delta: &str) {
            self.0.lock().push(delta.to_owned());
        }
    }

    #[test]
    fn part_of_character_waits_for_the_rest() {
        let shown = Shown::default();
        let stream = JoinedStream::new(&shown);
        for piece in [&b"a\xf0\x9f"[..], b"\x98", b"\x80b", b"\xc3", b"c\xe2"] {
            stream.on_text(&text_of(piece));
        }
        stream.end();
        assert_eq!(shown.0.into_inner(), ["a", "😀b", "\u{fffd}c", "\u{fffd}"]);
    }
}
