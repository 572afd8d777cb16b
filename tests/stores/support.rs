//! What the tests of the stores share.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use brigade::domain::time::UnixMs;
use brigade::ports::{Clock, StoreChange, Stores};
use brigade::stores::file::Durability;
use brigade::stores::file::mailbox::FileMailbox;
use brigade::stores::file::shared::SharedFile;
use brigade::stores::file::state::FileState;
use brigade::stores::fs::{FileSystem, RealFileSystem};
use brigade::stores::open::{OpenOptions, Purpose, STORES, Workspace};
use tempfile::TempDir;
use tokio::sync::broadcast;

/// The machine's clock.
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> UnixMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        UnixMs(i64::try_from(since.as_millis()).unwrap())
    }
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(WallClock)
}

pub fn real() -> Arc<dyn FileSystem> {
    Arc::new(RealFileSystem::default())
}

/// How long a test waits for what has to come; only a failure takes as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds`, and fails when it never does.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub fn changes() -> broadcast::Sender<StoreChange> {
    broadcast::channel(1024).0
}

pub fn options(purpose: Purpose) -> OpenOptions {
    OpenOptions { purpose, durability: Durability::Process, clock: clock() }
}

pub fn lead() -> OpenOptions {
    options(Purpose::Lead { team: "my-team".into() })
}

/// The stores of one kind, in a workspace of their own.
pub struct World {
    pub kind: &'static str,
    pub stores: Stores,
    _folder: TempDir,
    _workspace: Workspace,
}

/// A fresh world of each kind: what one keeps, all must keep.
pub async fn worlds() -> Vec<World> {
    let mut worlds = Vec::new();
    for kind in &STORES {
        let folder = tempfile::tempdir().unwrap();
        let workspace = kind.open(folder.path(), lead()).await.unwrap();
        worlds.push(World {
            kind: kind.name,
            stores: workspace.stores.clone(),
            _folder: folder,
            _workspace: workspace,
        });
    }
    worlds
}

/// The shared state of a workspace, without file events.
pub fn state_store(workspace: &Path, durability: Durability) -> FileState {
    let team = workspace.join(".team");
    let file = SharedFile::new(real(), durability, workspace, "agent_state.json", &team, FileState::is_whole)
        .by_turns(&team.join("spare"));
    FileState::new(file, clock(), changes(), false)
}

/// The inboxes of a workspace.
pub fn mailbox(files: Arc<dyn FileSystem>, workspace: &Path, durability: Durability) -> FileMailbox {
    FileMailbox::new(files, durability, clock(), changes(), &workspace.join(".team"))
}
