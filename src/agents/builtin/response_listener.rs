//! Receives a model's answer while it is streamed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::domain::transcript::Usage;
use crate::ports::{Listener, ModelRequest};
use crate::run::budget::Reservation;
use crate::run::progress::Progress;
use crate::run::stream::{OutputBroadcast, StreamEvent};

/// Receives one answer: text goes to front ends, every sign of life counts as progress, and usage goes to the reservation.
pub struct ResponseListener<'a> {
    /// The request that is answered.
    pub request: &'a ModelRequest,
    /// The member's signs of life.
    pub progress: &'a Progress,
    /// Receives text; `None` for text that is for the model only.
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
