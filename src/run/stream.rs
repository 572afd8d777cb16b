//! The models' output while it is streamed: a bounded, lossy stream for front ends. The event log has the complete texts.
//!
//! A slow receiver loses pieces and never delays the team.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::secrets::StreamMasker;

/// The number of chunks by which a front end can be late before it misses some.
pub const CHUNKS_BEHIND_MAX: usize = 1024;

/// The longest piece of text, in bytes. The rest of a longer one is left out; the event log has it.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// A piece of an answer, or a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamChunk {
    /// The member whose model answers.
    pub teammate: Arc<str>,
    /// The piece or mark.
    pub event: StreamEvent,
}

/// A step in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEvent {
    /// A request is sent. An answer that started before and did not end is void, and is requested again.
    Started,
    /// The next piece of text.
    Text(String),
    /// The answer is complete; its texts follow as `said` events.
    Ended,
}

/// Sends chunks to all receivers, without secrets. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OutputBroadcast {
    chunks: broadcast::Sender<Arc<StreamChunk>>,
    /// For each member, the text of its answer that can be the beginning of a secret.
    maskers: Arc<Mutex<HashMap<Arc<str>, StreamMasker>>>,
}

impl Default for OutputBroadcast {
    fn default() -> Self {
        Self { chunks: broadcast::channel(CHUNKS_BEHIND_MAX).0, maskers: Arc::default() }
    }
}

impl OutputBroadcast {
    /// Returns a receiver of the chunks from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<StreamChunk>> {
        self.chunks.subscribe()
    }

    /// Sends a chunk to all receivers. Text that can be the beginning of a secret waits for the next chunk.
    pub fn publish(&self, teammate: &Arc<str>, event: StreamEvent) {
        if self.chunks.receiver_count() == 0 {
            return;
        }
        let mut maskers = self.maskers.lock();
        match event {
            StreamEvent::Started => {
                maskers.remove(teammate);
                self.send(teammate, StreamEvent::Started);
            }
            StreamEvent::Text(text) => {
                let masked = maskers.entry(Arc::clone(teammate)).or_default().take(text.as_bytes());
                self.send_text(teammate, &masked);
            }
            StreamEvent::Ended => {
                self.send_text(teammate, &maskers.remove(teammate).unwrap_or_default().rest());
                self.send(teammate, StreamEvent::Ended);
            }
        }
    }

    fn send_text(&self, teammate: &Arc<str>, text: &[u8]) {
        if !text.is_empty() {
            let text = String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)]).into_owned();
            self.send(teammate, StreamEvent::Text(text));
        }
    }

    fn send(&self, teammate: &Arc<str>, event: StreamEvent) {
        // The last receiver may be gone by now.
        let _ = self.chunks.send(Arc::new(StreamChunk { teammate: Arc::clone(teammate), event }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::Secret;

    #[test]
    fn secret_in_chunks_is_masked_in_stream() {
        Secret::new("sk-streamed-1");
        let output = OutputBroadcast::default();
        let mut chunks = output.subscribe();
        let [alice, bob] = ["alice", "bob"].map(Arc::from);
        output.publish(&alice, StreamEvent::Text("The key sk-str".to_owned()));
        output.publish(&bob, StreamEvent::Text("eamed-1".to_owned()));
        output.publish(&alice, StreamEvent::Text("eamed-1 is bad, like sk-s".to_owned()));
        // A secret of another test may begin with the last character.
        for member in [&alice, &bob] {
            output.publish(member, StreamEvent::Ended);
        }
        let mut text = HashMap::<_, String>::new();
        while let Ok(chunk) = chunks.try_recv() {
            let part = match &chunk.event {
                StreamEvent::Text(text) => text,
                _ => "|",
            };
            text.entry(Arc::clone(&chunk.teammate)).or_default().push_str(part);
        }
        assert_eq!((&*text[&alice], &*text[&bob]), ("The key [key] is bad, like sk-s|", "eamed-1|"));
    }
}
