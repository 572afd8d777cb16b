//! Opens the stores of a workspace. A table has all kinds of stores.
//!
//! A process opens a workspace to lead it (one process at a time), to work in it, to change it by a command, or to read it.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::ports::{Clock, Durability, StoreResult, Stores, WaitLimit};

use super::file;
use super::memory;

/// The folder of Brigade's files in a workspace on this machine, except the tasks.
pub use super::file::TEAM_FOLDER;
/// The folder of the tasks.
pub use super::file::board::BOARD_FOLDER;

/// The most change notices that wait for a slow listener. A listener that lags further must read everything again.
pub const CHANGES_MAX: usize = 1024;

/// The access that a process needs to a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenMode {
    /// Lead this team: the process registers as a worker, watches for changes by others, and excludes other leads.
    Lead {
        /// The team's name.
        team: String,
    },
    /// Run teammates of this team without leading it: the process registers as a worker.
    Work {
        /// The team's name.
        team: String,
    },
    /// Change the workspace by a command, with or without a running team: send mail, change tasks, set the desired state.
    Write,
    /// Read only: creates, locks and repairs nothing on the board.
    ReadOnly,
}

/// The options for opening a workspace.
#[derive(Clone)]
pub struct OpenOptions {
    /// The access to the workspace.
    pub mode: OpenMode,
    /// The failures that accepted writes survive.
    pub durability: Durability,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The limit for waits for other processes.
    pub wait_limit: WaitLimit,
}

/// The open stores of a workspace. The leadership and the worker's registration last until it is dropped.
pub struct OpenStores {
    /// The stores.
    pub stores: Stores,
    /// Warnings for the person: no file events, unreliable locks.
    pub warnings: Vec<String>,
    _resources: Box<dyn Any + Send + Sync>,
}

impl OpenStores {
    /// Creates open stores. `resources` are dropped with it.
    pub fn new(stores: Stores, warnings: Vec<String>, resources: impl Any + Send + Sync) -> Self {
        Self { stores, warnings, _resources: Box::new(resources) }
    }
}

/// One kind of stores.
pub struct StoreKind {
    /// The name. No setting chooses a kind yet: [`crate::embed::STORE`] does.
    pub name: &'static str,
    /// The paths in the workspace that commands of agents do not need, such as lock files. Their sandbox hides them.
    pub hidden_paths: &'static [&'static str],
    /// Opens the stores of a workspace. Blocks.
    pub open: fn(&Path, &OpenOptions) -> StoreResult<OpenStores>,
}

/// Plain files in the workspace, shared with other programs.
pub static FILE: StoreKind = StoreKind { name: "file", hidden_paths: &file::HIDDEN_PATHS, open: file::open::open };

/// The memory of this process: keeps nothing on disk, for tests.
pub static MEMORY: StoreKind = StoreKind { name: "memory", hidden_paths: &[], open: open_memory };

/// All kinds of stores. The contract tests run against each of them.
pub static STORES: [&StoreKind; 2] = [&FILE, &MEMORY];

impl StoreKind {
    /// Opens the stores of `workspace`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::AlreadyLed`] if another process leads, [`crate::ports::StoreError::NewerFormat`], and
    /// [`crate::ports::StoreError::Io`].
    pub async fn open(&self, workspace: &Path, options: OpenOptions) -> StoreResult<OpenStores> {
        file::blocking(|| (self.open)(workspace, &options)).await
    }
}

fn open_memory(_: &Path, options: &OpenOptions) -> StoreResult<OpenStores> {
    let changes = broadcast::channel(CHANGES_MAX).0;
    Ok(OpenStores::new(memory::stores(Arc::clone(&options.clock), changes), Vec::new(), ()))
}
