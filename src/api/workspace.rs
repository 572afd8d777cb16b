//! A workspace as front ends reach it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::location::Location;
use super::refusal::ApiResult;
use super::trust;
use crate::config::Durability;
use crate::domain::time::UnixMs;
use crate::embed::{STORE, SystemClock};
use crate::ports::{Board, Clock, Stores, WaitLimit};
use crate::service::messages::Outbox;
use crate::stores::workspace::{OpenMode, OpenOptions, OpenStores};

/// A workspace: its place, and how its stores are opened. It need not exist: each function that needs its folder refuses without it.
///
/// It holds nothing open. Clones share the wait limit.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The folder and the config.
    pub location: Location,
    wait_limit: WaitLimit,
    durability: OnceLock<Durability>,
}

impl Workspace {
    /// Creates a workspace at this location. Waits for other processes end at this limit.
    pub fn new(location: Location, wait_limit: WaitLimit) -> Self {
        Self { location, wait_limit, durability: OnceLock::new() }
    }

    /// Returns the same workspace with this limit for waits. Its config is read again when it is needed.
    #[must_use]
    pub fn with_wait_limit(&self, wait_limit: WaitLimit) -> Self {
        Self::new(self.location.clone(), wait_limit)
    }

    /// The folder of the workspace: the one from `--workspace`, else the folder of the config. Without a config it is the nearest folder
    /// upwards that has a board or the files of a team.
    ///
    /// # Errors
    /// No workspace was found, or it is not a folder.
    pub fn folder(&self) -> ApiResult<PathBuf> {
        self.location.workspace()
    }

    /// The current time.
    pub fn now(&self) -> UnixMs {
        SystemClock.now()
    }

    /// The outbox of the person's messages.
    pub fn outbox<'a>(&self, stores: &'a Stores) -> Outbox<'a> {
        Outbox { stores, now: self.now(), events: None }
    }

    /// Opens the stores with this access. It must be called in the runtime. The first change of a new workspace records that its board
    /// and its mail are the user's own.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn open(&self, access: OpenMode) -> ApiResult<OpenStores> {
        let folder = self.folder()?;
        if access == OpenMode::Write {
            trust::record_if_new(&folder);
        }
        let options = OpenOptions {
            mode: access,
            durability: self.durability(),
            clock: Arc::new(SystemClock),
            wait_limit: self.wait_limit.clone(),
        };
        Ok(STORE.open(&folder, options).await?)
    }

    /// Opens all stores. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn stores(&self, access: OpenMode) -> ApiResult<Stores> {
        Ok(self.open(access).await?.stores)
    }

    /// Opens the board. It must be called in the runtime.
    ///
    /// # Errors
    /// The workspace does not exist, or a store cannot be opened.
    pub async fn board(&self, access: OpenMode) -> ApiResult<Arc<dyn Board>> {
        Ok(self.stores(access).await?.board)
    }

    /// The durability from the config, or the stronger one if the config is missing or invalid. The config is read once.
    fn durability(&self) -> Durability {
        let of_config = || self.location.config_if_valid().map_or(Durability::Power, |config| config.durability());
        *self.durability.get_or_init(of_config)
    }
}
