//! Receives a model's answer while it is streamed, and checks the usage that its server reports.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::domain::agent::transcript::Usage;
use crate::domain::team::budget::{UsageFault, is_below_text};
use crate::ports::{Listener, ModelRequest};
use crate::run::accounts::Admission;
use crate::run::budget::Reservation;
use crate::run::event_sink::EventSink;
use crate::run::progress::Progress;
use crate::run::stream::{OutputBroadcast, StreamEvent};

/// Receives one answer: text goes to front ends, every sign of life counts as progress, and usage goes to the reservation.
pub struct ResponseListener<'a> {
    /// The request that is answered.
    pub request: &'a ModelRequest,
    /// The bytes of its texts.
    pub request_text_bytes: u64,
    /// The event log of the run.
    pub events: &'a EventSink,
    /// The member's signs of life.
    pub progress: &'a Progress,
    /// Receives text; `None` for text that is for the model only.
    pub output: Option<&'a OutputBroadcast>,
    /// The request's reservation.
    pub reservation: &'a Reservation,
    /// The permission of its account to send it.
    pub admission: &'a Admission,
    /// True if a server reports the usage, so that it can be wrong.
    pub has_server: bool,
    /// True if the bill that the server reports does not count.
    pub ignores_bill: bool,
    /// True after the first part of the answer.
    pub has_received: AtomicBool,
}

impl ResponseListener<'_> {
    /// Records that a part of the answer has arrived.
    fn record_part(&self) {
        self.has_received.store(true, Ordering::Relaxed);
        self.admission.accept();
    }

    /// Sends a step of the answer to front ends.
    pub fn publish(&self, event: StreamEvent) {
        if let Some(output) = self.output {
            output.publish(&self.request.teammate, event);
        }
    }

    /// Returns the usage at the end of an answer of this many bytes of text, if it can be true. Otherwise, the request counts as its
    /// maximum.
    pub fn checked(&self, usage: Usage, answer_bytes: u64) -> Option<Usage> {
        let usage = self.without_ignored_bill(usage);
        self.on_usage(usage);
        let is_below = is_below_text(usage.total_input(), self.request_text_bytes)
            || is_below_text(usage.output_tokens, answer_bytes);
        if self.has_server && is_below {
            self.reservation.mark_misreported(UsageFault::BelowText);
        }
        self.reservation.usage_fault().is_none().then_some(usage)
    }

    fn without_ignored_bill(&self, usage: Usage) -> Usage {
        Usage { cost_ticks: usage.cost_ticks.filter(|_| !self.ignores_bill), ..usage }
    }
}

impl Listener for ResponseListener<'_> {
    fn on_activity(&self) {
        self.progress.renew();
    }

    fn on_text(&self, delta: &str) {
        self.progress.renew();
        self.record_part();
        self.publish(StreamEvent::Text(delta.to_owned()));
    }

    fn on_bytes(&self, bytes: usize) {
        self.record_part();
        self.reservation.record_bytes(bytes);
    }

    fn on_usage(&self, usage: Usage) {
        self.record_part();
        let usage = self.without_ignored_bill(usage);
        if self.has_server && !self.request.can_have_used(usage) {
            self.reservation.mark_misreported(UsageFault::AboveRequest);
        } else {
            self.reservation.record_usage(usage);
        }
    }

    fn on_notice(&self, text: &str) {
        self.events.warn(&*self.request.teammate, text);
    }

    fn on_declined(&self) {
        self.reservation.mark_declined();
    }
}
