//! The models' output while it is streamed: a bounded, lossy stream for front ends. The event log has the complete texts.
//!
//! A slow receiver loses pieces and never delays the team.

use std::sync::Arc;

use tokio::sync::broadcast;

/// The number of chunks by which a front end can be late before it misses some.
pub const CHUNKS_BEHIND_MAX: usize = 1024;

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

/// Sends chunks to all receivers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OutputBroadcast(broadcast::Sender<Arc<StreamChunk>>);

impl Default for OutputBroadcast {
    fn default() -> Self {
        Self(broadcast::channel(CHUNKS_BEHIND_MAX).0)
    }
}

impl OutputBroadcast {
    /// Returns a receiver of the chunks from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<StreamChunk>> {
        self.0.subscribe()
    }

    /// Sends a chunk to all receivers.
    pub fn publish(&self, teammate: &Arc<str>, event: StreamEvent) {
        if self.0.receiver_count() > 0 {
            // The last receiver may be gone by now.
            let _ = self.0.send(Arc::new(StreamChunk { teammate: Arc::clone(teammate), event }));
        }
    }
}
