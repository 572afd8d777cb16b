//! The record of this worker: its teammates' progress and the process groups of their commands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::team::records::{RunningCommand, WorkerTeammate};
use crate::domain::time::UnixMs;
use crate::ports::{Clock, StoreResult, Workers};
use crate::process::command::CommandRegistry;
use crate::run::progress::Progress;

/// The record of this worker, kept up to date.
pub struct WorkerReporter {
    workers: Arc<dyn Workers>,
    clock: Arc<dyn Clock>,
    teammates: Mutex<BTreeMap<String, TeammateEntry>>,
}

/// The signs of life and the running commands of one teammate.
struct TeammateEntry {
    progress: Arc<Progress>,
    commands: BTreeSet<RunningCommand>,
}

impl WorkerReporter {
    /// Creates a reporter without teammates.
    pub fn new(workers: Arc<dyn Workers>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { workers, clock, teammates: Mutex::default() })
    }

    /// Adds a teammate. Its commands are recorded through the returned registry, in its own `workers`.
    pub fn register(
        self: &Arc<Self>,
        name: &str,
        progress: Arc<Progress>,
        workers: Arc<dyn Workers>,
    ) -> Arc<dyn CommandRegistry> {
        let entry = TeammateEntry { progress, commands: BTreeSet::new() };
        self.teammates.lock().insert(name.to_owned(), entry);
        self.commands_of(name, workers)
    }

    /// Returns the registry for commands that run under this name. If a member has it, the commands are recorded beside its own.
    pub fn commands_of(self: &Arc<Self>, name: &str, workers: Arc<dyn Workers>) -> Arc<dyn CommandRegistry> {
        let entry = || TeammateEntry { progress: Arc::default(), commands: BTreeSet::new() };
        self.teammates.lock().entry(name.to_owned()).or_insert_with(entry);
        Arc::new(TeammateCommands { reporter: Arc::clone(self), workers, name: name.to_owned() })
    }

    fn record(&self) -> BTreeMap<String, WorkerTeammate> {
        let now = self.clock.now().0;
        let teammates = self.teammates.lock();
        let rows = teammates.iter().map(|(name, entry)| {
            let claim = entry.progress.claim();
            let age = i64::try_from(entry.progress.age().as_millis()).unwrap_or(i64::MAX);
            let row = WorkerTeammate {
                progress: UnixMs(now.saturating_sub(age)),
                task: claim.map(|claim| claim.task),
                attempt: claim.map(|claim| claim.attempt),
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
    /// The store cannot write the record.
    pub async fn write(&self) -> StoreResult<()> {
        self.workers.renew(self.record()).await
    }
}

/// Records the running commands of one teammate.
struct TeammateCommands {
    reporter: Arc<WorkerReporter>,
    workers: Arc<dyn Workers>,
    name: String,
}

#[async_trait]
impl CommandRegistry for TeammateCommands {
    async fn record_start(&self, command: RunningCommand) -> StoreResult<()> {
        if let Some(entry) = self.reporter.teammates.lock().get_mut(&self.name) {
            entry.commands.insert(command);
        }
        self.workers.renew(self.reporter.record()).await
    }

    async fn record_end(&self, command: RunningCommand) {
        if let Some(entry) = self.reporter.teammates.lock().get_mut(&self.name) {
            entry.commands.remove(&command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;
    use crate::domain::team::name::LEAD;
    use crate::domain::team::phase::ClaimRef;
    use crate::domain::team::records::GuardProcess;
    use crate::embed::SystemClock;
    use crate::stores::memory::MemoryWorkers;

    #[tokio::test]
    async fn team_command_is_recorded_beside_lead() {
        let workers: Arc<dyn Workers> = Arc::new(MemoryWorkers::default());
        let reporter = WorkerReporter::new(Arc::clone(&workers), Arc::new(SystemClock));
        let progress = Arc::new(Progress::default());
        let command = |group| RunningCommand { group, guard: GuardProcess { pid: group, started_ms: 1 } };
        let of_lead = reporter.register(LEAD, Arc::clone(&progress), Arc::clone(&workers));
        of_lead.record_start(command(7)).await.unwrap();
        let of_team = reporter.commands_of(LEAD, workers);
        of_team.record_start(command(8)).await.unwrap();
        progress.set_claim(Some(ClaimRef { task: TaskId(1), attempt: 1 }));
        let row = reporter.record().remove(LEAD).unwrap();
        assert_eq!((row.process_groups, row.task), (vec![7, 8], Some(TaskId(1))));
    }
}
