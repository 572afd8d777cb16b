//! The models' output while it is streamed: a bounded, lossy stream for front ends. The event log has the complete texts.
//!
//! A slow receiver loses pieces and never delays the team.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::broadcast;

use super::budget::Reservation;
use super::liveness::Progress;
use crate::domain::transcript::Usage;
use crate::ports::{Listener, ModelRequest};

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
    #[must_use]
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

/// Receives one answer: text goes to front ends, every sign of life counts as progress, and usage goes to the reservation.
pub struct ResponseListener<'a> {
    /// The request that is answered.
    pub request: &'a ModelRequest,
    /// The member's signs of life.
    pub progress: &'a Progress,
    /// Receives text; `None` for a summary.
    pub output: Option<&'a OutputBroadcast>,
    /// The request's reservation.
    pub reservation: &'a Reservation,
    /// True after the first part of the answer.
    pub has_received: AtomicBool,
}

impl ResponseListener<'_> {
    /// Sends a step of the answer to front ends.
    pub fn publish(&self, event: StreamEvent) {
        if let Some(output) = self.output {
            output.publish(&self.request.teammate, event);
        }
    }
}

impl Listener for ResponseListener<'_> {
    fn on_activity(&self) {
        self.progress.renew();
    }

    fn on_text(&self, delta: &str) {
        self.progress.renew();
        self.has_received.store(true, Ordering::Relaxed);
        self.publish(StreamEvent::Text(delta.to_owned()));
    }

    fn on_bytes(&self, bytes: usize) {
        self.has_received.store(true, Ordering::Relaxed);
        self.reservation.record_bytes(bytes);
    }

    fn on_usage(&self, usage: Usage) {
        self.has_received.store(true, Ordering::Relaxed);
        let is_possible = self.request.can_have_used(usage);
        if is_possible {
            self.reservation.record_usage(usage);
        } else {
            self.reservation.mark_misreported();
        }
    }

    fn on_declined(&self) {
        self.reservation.mark_declined();
    }
}
