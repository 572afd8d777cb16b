//! Announces changes by other processes to the board, mail and shared state, from file events. It reads none of these files.
//!
//! A thread waits for events of three folders and turns the relevant names into [`StoreChange`]s. It sends the first at once,
//! and those of the next few milliseconds together. If there are no file events, [`start`] returns the reason, and polling
//! finds the changes.

use std::path::Path;

use tokio::sync::broadcast::Sender;

use crate::ports::StoreChange;

/// The reason why there are no file events, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no file events ({0}): Brigade checks for changes by other programs every few seconds")]
pub struct NoEvents(pub String);

#[cfg(target_os = "linux")]
pub use linux::{Watcher, start};
#[cfg(not(target_os = "linux"))]
pub use none::{Watcher, start};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::io::{self, PipeReader, PipeWriter};
    use std::path::PathBuf;
    use std::thread;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;

    use crate::domain::task::TaskId;
    use crate::platform::watch::{FolderWatch, WatchEvents};
    use crate::stores::file::TEAM_FOLDER;
    use crate::stores::file::board::BOARD_FOLDER;
    use crate::stores::file::state::STATE_FILE;

    use super::{NoEvents, Path, Sender, StoreChange};

    /// Events within this time are announced together, once for each kind.
    const BATCH_TIME: Duration = Duration::from_millis(4);

    /// With more names within [`BATCH_TIME`], listeners must check everything.
    const NAMES_MAX: usize = 4096;

    /// A watched folder, in the order of [`WatchThread::folders`].
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Folder {
        Board,
        Inbox,
        Workspace,
    }

    /// Watches until it is dropped.
    #[derive(Debug)]
    pub struct Watcher {
        _stop_pipe: PipeWriter,
    }

    struct WatchThread {
        folders: [(Folder, PathBuf, Option<FolderWatch>); 3],
        stop_signal: PipeReader,
        changes: Sender<StoreChange>,
    }

    /// Watches the workspace. The folders of the board and the inboxes must exist.
    ///
    /// # Errors
    /// [`NoEvents`] if the system has no file events.
    pub fn start(workspace: &Path, changes: Sender<StoreChange>) -> Result<Watcher, NoEvents> {
        if let Some(kind) = crate::platform::network_file_system(workspace) {
            return Err(NoEvents(format!("{kind} does not report changes by other machines")));
        }
        let (stop_signal, stop_pipe) = io::pipe().map_err(|error| NoEvents(error.to_string()))?;
        let folders = [
            (Folder::Board, workspace.join(BOARD_FOLDER)),
            (Folder::Inbox, workspace.join(TEAM_FOLDER).join("inbox")),
            (Folder::Workspace, workspace.to_owned()),
        ]
        .map(|(kind, path)| {
            let watch = FolderWatch::start(&path);
            (kind, path, watch)
        });
        if let Some((_, path, _)) = folders.iter().find(|(_, _, watch)| watch.is_none()) {
            return Err(NoEvents(format!("the system cannot watch {}", path.display())));
        }
        let watching = WatchThread { folders, stop_signal, changes };
        thread::Builder::new()
            .name("brigade-watch".to_owned())
            .spawn(move || watching.run())
            .map_err(|error| NoEvents(error.to_string()))?;
        Ok(Watcher { _stop_pipe: stop_pipe })
    }

    impl WatchThread {
        fn run(mut self) {
            loop {
                match self.wait() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(%error, "file events ended; polling for changes by other programs");
                        return;
                    }
                }
                for change in self.drain() {
                    // There may be no listener.
                    let _ = self.changes.send(change);
                }
                thread::sleep(BATCH_TIME);
            }
        }

        /// Waits for events. Returns false once the watcher was dropped.
        fn wait(&self) -> io::Result<bool> {
            let mut waiting = vec![PollFd::new(&self.stop_signal, PollFlags::IN)];
            let watches = self.folders.iter().filter_map(|(_, _, watch)| watch.as_ref());
            waiting.extend(watches.map(|watch| PollFd::new(watch, PollFlags::IN)));
            match poll(&mut waiting, None) {
                Ok(_) | Err(Errno::INTR) => Ok(waiting[0].revents().is_empty()),
                Err(error) => Err(error.into()),
            }
        }

        fn drain(&mut self) -> Vec<StoreChange> {
            let mut drained = DrainedChanges::default();
            let inbox = self.folders[1].1.clone();
            for (kind, path, watch) in &mut self.folders {
                let Some(watching) = watch else {
                    // A removed folder may exist again.
                    *watch = FolderWatch::start(path);
                    drained.all |= watch.is_some();
                    continue;
                };
                match watching.drain(&mut |name, _| drained.add(*kind, name)) {
                    WatchEvents::All => {}
                    WatchEvents::SomeLost => drained.all = true,
                    WatchEvents::Ended => {
                        drained.all = true;
                        *watch = FolderWatch::start(path);
                    }
                }
            }
            if drained.folders {
                // The watches may be on removed folders: a lock file that is open in one keeps its watch from ending.
                for (_, path, watch) in self.folders.iter_mut().filter(|(kind, ..)| *kind != Folder::Workspace) {
                    *watch = FolderWatch::start(path);
                }
            }
            drained.into_changes(&inbox)
        }
    }

    /// The changes that the drained events report.
    #[derive(Default)]
    struct DrainedChanges {
        all: bool,
        /// A watched folder was created or removed.
        folders: bool,
        board: bool,
        state: bool,
        mail: BTreeSet<String>,
    }

    impl DrainedChanges {
        fn add(&mut self, kind: Folder, name: &str) {
            match kind {
                Folder::Board => self.board |= TaskId::from_file_name(name).is_some() || name.starts_with("task_"),
                Folder::Workspace => {
                    self.state |= name == STATE_FILE;
                    self.folders |= [BOARD_FOLDER, TEAM_FOLDER].contains(&name);
                }
                Folder::Inbox => {
                    let inbox = name.strip_suffix(".jsonl").filter(|name| !name.starts_with('.'));
                    self.mail.extend(inbox.map(str::to_owned));
                    self.all |= self.mail.len() > NAMES_MAX;
                }
            }
        }

        fn into_changes(self, inbox: &Path) -> Vec<StoreChange> {
            if self.all || self.folders {
                return vec![StoreChange::Everything];
            }
            let mut changes = Vec::new();
            if self.board {
                changes.push(StoreChange::Board);
            }
            if self.state {
                changes.push(StoreChange::State);
            }
            // An empty or missing inbox has no mail to announce.
            let has_mail = |name: &String| {
                std::fs::symlink_metadata(inbox.join(format!("{name}.jsonl"))).is_ok_and(|inbox| inbox.len() > 0)
            };
            changes.extend(self.mail.into_iter().filter(has_mail).map(StoreChange::Mail));
            changes
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod none {
    use super::{NoEvents, Path, Sender, StoreChange};

    /// There are no file events on this system.
    #[derive(Debug)]
    pub struct Watcher;

    /// Always fails.
    ///
    /// # Errors
    /// [`NoEvents`].
    pub fn start(_: &Path, _: Sender<StoreChange>) -> Result<Watcher, NoEvents> {
        Err(NoEvents("this system does not support them".to_owned()))
    }
}
