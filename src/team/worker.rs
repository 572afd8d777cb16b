//! What this worker says about the teammates it runs: progress and the process groups of their commands, kept in its record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::progress::Progress;
use crate::domain::record::{RunningCommand, WorkerTeammate};
use crate::ports::{Clock, StoreResult, Workers};
use crate::tools::CommandRegistry;

/// The record of this worker, kept up to date.
pub struct WorkerReporter {
    workers: Arc<dyn Workers>,
    clock: Arc<dyn Clock>,
    teammates: Mutex<BTreeMap<String, Entry>>,
}

struct Entry {
    progress: Arc<Progress>,
    commands: BTreeSet<RunningCommand>,
}

impl WorkerReporter {
    /// A reporter that knows no teammates yet.
    #[must_use]
    pub fn new(workers: Arc<dyn Workers>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { workers, clock, teammates: Mutex::default() })
    }

    /// Takes a teammate in; its commands are recorded through the result.
    pub fn enlist(self: &Arc<Self>, name: &str, progress: Arc<Progress>) -> Arc<dyn CommandRegistry> {
        let entry = Entry { progress, commands: BTreeSet::new() };
        self.lock().insert(name.to_owned(), entry);
        Arc::new(Registry { reporter: Arc::clone(self), name: name.to_owned() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.teammates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self) -> BTreeMap<String, WorkerTeammate> {
        let now = self.clock.now().0;
        let teammates = self.lock();
        let rows = teammates.iter().map(|(name, entry)| {
            let held = entry.progress.held();
            let age = i64::try_from(entry.progress.age().as_millis()).unwrap_or(i64::MAX);
            let row = WorkerTeammate {
                progress: crate::domain::time::UnixMs(now.saturating_sub(age)),
                task: held.map(|held| held.task),
                attempt: held.map(|held| held.attempt),
                process_groups: entry.commands.iter().map(|command| command.group).collect(),
                guards: entry.commands.iter().map(|command| command.guard).collect(),
            };
            (name.clone(), row)
        });
        rows.collect()
    }

    /// Writes the record: the worker's heartbeat.
    ///
    /// # Errors
    /// The store's.
    pub async fn beat(&self) -> StoreResult<()> {
        self.workers.report(self.record()).await
    }
}

/// Records the commands of one teammate.
struct Registry {
    reporter: Arc<WorkerReporter>,
    name: String,
}

impl Registry {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<RunningCommand>)) {
        if let Some(entry) = self.reporter.lock().get_mut(&self.name) {
            change(&mut entry.commands);
        }
    }
}

#[async_trait]
impl CommandRegistry for Registry {
    async fn started(&self, command: RunningCommand) -> StoreResult<()> {
        self.change(|commands| {
            commands.insert(command);
        });
        self.reporter.beat().await
    }

    async fn ended(&self, command: RunningCommand) {
        self.change(|commands| {
            commands.remove(&command);
        });
    }
}
