//! The event log in memory: assigns numbers and keeps the newest events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::event::{Event, NewEvent};
use crate::ports::{Clock, EventLog, StoreResult};

const KEPT_EVENTS_MAX: usize = 100_000;

/// The event log in memory.
pub struct MemoryEventLog {
    clock: Arc<dyn Clock>,
    events: Mutex<(u64, VecDeque<Event>)>,
}

impl MemoryEventLog {
    /// An empty log.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, events: Mutex::default() }
    }

    /// The kept events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).1.iter().cloned().collect()
    }
}

#[async_trait]
impl EventLog for MemoryEventLog {
    async fn append(&self, new: Vec<NewEvent>) -> StoreResult<Vec<Event>> {
        let at = self.clock.now();
        let mut log = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = Vec::with_capacity(new.len());
        for event in new {
            log.0 += 1;
            events.push(event.number(log.0, at));
        }
        log.1.extend(events.iter().cloned());
        let surplus = log.1.len().saturating_sub(KEPT_EVENTS_MAX);
        log.1.drain(..surplus);
        Ok(events)
    }
}
