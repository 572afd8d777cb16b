//! Hints from the file system that another process changed something: the board, mail, the shared state. It reads none of it.
//!
//! A thread waits for events of three folders and turns the names that matter into [`StoreChange`]s. The first one goes out
//! at once; those that follow within a few milliseconds go out together. Where events are not to be had, [`start`] says why, and
//! the poll finds what no hint told.

use std::path::Path;

use tokio::sync::broadcast::Sender;

use crate::ports::StoreChange;

/// Why there are no file events, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no file events ({0}); changes by other programs are found by looking every few seconds")]
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
    use crate::platform::watch::{Drained, FolderWatch};
    use crate::stores::file::TEAM_FOLDER;
    use crate::stores::file::board::BOARD_FOLDER;
    use crate::stores::file::state::STATE_FILE;

    use super::{NoEvents, Path, Sender, StoreChange};

    /// Events within this time go out as one hint of each kind.
    const GATHER_TIME: Duration = Duration::from_millis(4);

    /// More names than this within [`GATHER_TIME`]: look at everything.
    const NAMES_MAX: usize = 4096;

    /// The folders, in the order of [`Watching::folders`].
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kind {
        Board,
        Inbox,
        Workspace,
    }

    /// Watches for as long as it is there.
    #[derive(Debug)]
    pub struct Watcher {
        _open_end: PipeWriter,
    }

    struct Watching {
        folders: [(Kind, PathBuf, Option<FolderWatch>); 3],
        stopped: PipeReader,
        changes: Sender<StoreChange>,
    }

    /// Watches the workspace; the folders of the board and the inboxes must be there.
    ///
    /// # Errors
    /// [`NoEvents`] where the system tells none.
    pub fn start(workspace: &Path, changes: Sender<StoreChange>) -> Result<Watcher, NoEvents> {
        if let Some(kind) = crate::platform::network_file_system(workspace) {
            return Err(NoEvents(format!("{kind} tells none of other machines")));
        }
        let (stopped, open_end) = io::pipe().map_err(|error| NoEvents(error.to_string()))?;
        let folders = [
            (Kind::Board, workspace.join(BOARD_FOLDER)),
            (Kind::Inbox, workspace.join(TEAM_FOLDER).join("inbox")),
            (Kind::Workspace, workspace.to_owned()),
        ]
        .map(|(kind, path)| {
            let watch = FolderWatch::start(&path);
            (kind, path, watch)
        });
        if let Some((_, path, _)) = folders.iter().find(|(_, _, watch)| watch.is_none()) {
            return Err(NoEvents(format!("the system gives no watch for {}", path.display())));
        }
        let watching = Watching { folders, stopped, changes };
        thread::Builder::new()
            .name("brigade-watch".to_owned())
            .spawn(move || watching.run())
            .map_err(|error| NoEvents(error.to_string()))?;
        Ok(Watcher { _open_end: open_end })
    }

    impl Watching {
        fn run(mut self) {
            loop {
                match self.wait() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(%error, "file events end; changes by other programs are found by looking");
                        return;
                    }
                }
                for hint in self.drain() {
                    // Nobody has to listen.
                    let _ = self.changes.send(hint);
                }
                thread::sleep(GATHER_TIME);
            }
        }

        /// Waits for events; `false` once the watcher was dropped.
        fn wait(&self) -> io::Result<bool> {
            let mut waiting = vec![PollFd::new(&self.stopped, PollFlags::IN)];
            let watches = self.folders.iter().filter_map(|(_, _, watch)| watch.as_ref());
            waiting.extend(watches.map(|watch| PollFd::new(watch, PollFlags::IN)));
            match poll(&mut waiting, None) {
                Ok(_) | Err(Errno::INTR) => Ok(waiting[0].revents().is_empty()),
                Err(error) => Err(error.into()),
            }
        }

        fn drain(&mut self) -> Vec<StoreChange> {
            let mut seen = Seen::default();
            let inbox = self.folders[1].1.clone();
            for (kind, path, watch) in &mut self.folders {
                let Some(watching) = watch else {
                    // A folder that was removed may be there again.
                    *watch = FolderWatch::start(path);
                    seen.all |= watch.is_some();
                    continue;
                };
                match watching.drain(&mut |name, _| seen.note(*kind, name)) {
                    Drained::All => {}
                    Drained::SomeLost => seen.all = true,
                    Drained::Ended => {
                        seen.all = true;
                        *watch = FolderWatch::start(path);
                    }
                }
            }
            if seen.folders {
                // The watches may be on folders that are removed, and kept from ending by a lock file that is open in them.
                for (_, path, watch) in self.folders.iter_mut().filter(|(kind, ..)| *kind != Kind::Workspace) {
                    *watch = FolderWatch::start(path);
                }
            }
            seen.hints(&inbox)
        }
    }

    /// What events told.
    #[derive(Default)]
    struct Seen {
        all: bool,
        /// A folder that is watched was made or removed.
        folders: bool,
        board: bool,
        state: bool,
        mail: BTreeSet<String>,
    }

    impl Seen {
        fn note(&mut self, kind: Kind, name: &str) {
            match kind {
                Kind::Board => self.board |= TaskId::from_file_name(name).is_some() || name.starts_with("task_"),
                Kind::Workspace => {
                    self.state |= name == STATE_FILE;
                    self.folders |= [BOARD_FOLDER, TEAM_FOLDER].contains(&name);
                }
                Kind::Inbox => {
                    let inbox = name.strip_suffix(".jsonl").filter(|name| !name.starts_with('.'));
                    self.mail.extend(inbox.map(str::to_owned));
                    self.all |= self.mail.len() > NAMES_MAX;
                }
            }
        }

        fn hints(self, inbox: &Path) -> Vec<StoreChange> {
            if self.all || self.folders {
                return vec![StoreChange::Everything];
            }
            let mut hints = Vec::new();
            if self.board {
                hints.push(StoreChange::Board);
            }
            if self.state {
                hints.push(StoreChange::State);
            }
            // An inbox that was emptied, or taken, has nothing to look for.
            let has_mail = |name: &String| {
                std::fs::symlink_metadata(inbox.join(format!("{name}.jsonl"))).is_ok_and(|inbox| inbox.len() > 0)
            };
            hints.extend(self.mail.into_iter().filter(has_mail).map(StoreChange::Mail));
            hints
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
        Err(NoEvents("this system tells none".to_owned()))
    }
}
