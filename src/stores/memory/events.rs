//! The event log in memory: assigns numbers and keeps the newest events.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::log::event::{Event, NewEvent};
use crate::domain::time::UnixMs;
use crate::ports::{Clock, EventLog, EventReader, Runs, StoreResult};

const KEPT_EVENTS_MAX: usize = 100_000;

/// The event log in memory. It has one run.
#[derive(Clone)]
pub struct MemoryEventLog {
    clock: Arc<dyn Clock>,
    log: Arc<Mutex<LogState>>,
}

#[derive(Default)]
struct LogState {
    /// The time of the first event.
    began: Option<UnixMs>,
    last_seq: u64,
    kept: VecDeque<Event>,
}

impl MemoryEventLog {
    /// An empty log.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, log: Arc::default() }
    }

    /// The kept events, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().kept.iter().cloned().collect()
    }
}

#[async_trait]
impl EventLog for MemoryEventLog {
    async fn append(&self, new: Vec<NewEvent>) -> StoreResult<Vec<Event>> {
        let at = self.clock.now();
        let mut log = self.log.lock();
        let mut events = Vec::with_capacity(new.len());
        for event in new {
            log.last_seq += 1;
            let began = *log.began.get_or_insert(at);
            events.push(event.number(log.last_seq, at).in_run(began));
        }
        log.kept.extend(events.iter().cloned());
        let surplus = log.kept.len().saturating_sub(KEPT_EVENTS_MAX);
        log.kept.drain(..surplus);
        Ok(events)
    }

    fn parts_begun(&self) -> u64 {
        0
    }

    fn reader(&self, _: Runs) -> Box<dyn EventReader> {
        Box::new(MemoryEventReader { log: self.clone(), last_seq: 0 })
    }
}

struct MemoryEventReader {
    log: MemoryEventLog,
    last_seq: u64,
}

#[async_trait]
impl EventReader for MemoryEventReader {
    async fn read_new(&mut self) -> StoreResult<Vec<Event>> {
        let new: Vec<Event> = self.log.events().into_iter().filter(|event| event.seq > self.last_seq).collect();
        self.last_seq = new.last().map_or(self.last_seq, |event| event.seq);
        Ok(new)
    }
}
