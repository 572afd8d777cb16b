//! Shared parts of the store tests.

use std::path::Path;
use std::sync::Arc;

use brigade::embed::SystemClock;
use brigade::ports::{Clock, StoreChange, Stores, WaitLimit};
use brigade::stores::file::Durability;
use brigade::stores::file::exchange_file::ExchangeFile;
use brigade::stores::file::mailbox::FileMailbox;
use brigade::stores::file::state::FileState;
use brigade::stores::fs::{FileSystem, RealFileSystem};
use brigade::stores::workspace::{OpenMode, OpenOptions, OpenStores, STORES};
use tempfile::TempDir;
use tokio::sync::broadcast;

use crate::stores::database::DATABASE;

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

pub fn real() -> Arc<dyn FileSystem> {
    Arc::new(RealFileSystem::default())
}

pub fn changes() -> broadcast::Sender<StoreChange> {
    broadcast::channel(1024).0
}

pub fn options(mode: OpenMode) -> OpenOptions {
    OpenOptions { mode, durability: Durability::Process, clock: clock(), wait_limit: WaitLimit::default() }
}

pub fn lead() -> OpenOptions {
    options(OpenMode::Lead { team: "my-team".into() })
}

/// The stores of one kind, in a separate workspace.
pub struct StoreFixture {
    pub kind: &'static str,
    pub stores: Stores,
    _folder: TempDir,
    _workspace: OpenStores,
}

/// New stores of each kind: all kinds keep the same contract.
pub async fn store_fixtures() -> Vec<StoreFixture> {
    let mut fixtures = Vec::new();
    for kind in STORES.into_iter().chain([&DATABASE]) {
        let folder = tempfile::tempdir().unwrap();
        let workspace = kind.open(folder.path(), lead()).await.unwrap();
        fixtures.push(StoreFixture {
            kind: kind.name,
            stores: workspace.stores.clone(),
            _folder: folder,
            _workspace: workspace,
        });
    }
    fixtures
}

/// The shared state of a workspace, without file events.
pub fn state_store(workspace: &Path, durability: Durability) -> FileState {
    let team = workspace.join(".team");
    let file = ExchangeFile::new(real(), durability, workspace, "agent_state.json", &team, FileState::is_valid)
        .with_spare_inodes(&team.join("spare"));
    FileState::new(file, clock(), changes(), false)
}

pub fn mailbox(files: Arc<dyn FileSystem>, workspace: &Path, durability: Durability) -> FileMailbox {
    FileMailbox::new(files, durability, clock(), changes(), &workspace.join(".team"))
}
