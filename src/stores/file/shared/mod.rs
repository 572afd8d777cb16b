//! One file that outside programs write too, without our locks: the shared state, the roster. It knows nothing of what is in it.
//!
//! Outside writers come in two kinds. One puts a new file in place by a rename; the other empties the file that lies there
//! and writes into it. Neither may lose a change to us, so a new version goes in by an atomic exchange, and what came out is
//! looked at: if it is not the version that was merged, an outside change came between, and it is merged and swapped in anew.
//! What came out stays aside for a second, because a writer of the second kind may have opened it before the swap. Of several
//! changes the one written last wins, by the time the file system gives them.
//!
//! Processes of ours keep each other out by a lock; outside writers are never waited for while it is held.

mod aside;
mod look;
mod spares;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::ports::StoreResult;
use crate::stores::fs::{FileSystem, Stamp, locked};

use super::replace::sweep_temporaries;
use super::{Durability, blocking, failed};
use aside::{AsideName, Content, print};
use look::Glimpse;
use spares::Spares;

/// How long the same broken bytes count as a writer at work, and how long a file that was swapped out is watched.
pub const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The largest shared file that is read, in bytes.
pub const SHARED_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How many broken versions are kept beside the file.
const MALFORMED_KEPT_MAX: usize = 5;

/// How long a file may be in the making before a call gives up on it; broken bytes that stay the same end it sooner.
const UNSETTLED_TIME_MAX: Duration = Duration::from_secs(10);

/// How long to wait before a file in the making is looked at again.
const RETRY_TIME: Duration = Duration::from_millis(10);

/// Outside changes that are merged within one call; with more of them somebody writes without pause, and is asked to wait.
const ROUNDS_MAX: usize = 64;

/// What new contents are made from.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// There is no file.
    Missing,
    /// The file was broken for [`SETTLE_TIME`] and is kept aside.
    Malformed,
    /// The latest version, whoever wrote it.
    Whole(&'a [u8]),
}

/// How a merge ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// The file has these bytes.
    Whole(Vec<u8>),
    /// There is no file, and none was wanted.
    Missing,
    /// The file is being written; try again in a moment.
    Unsettled,
}

/// What new contents are made by: from what was found, or `None` to leave it. Called again when an outside change came between.
pub type Make<'a> = &'a mut dyn FnMut(Base<'_>) -> Option<String>;

/// A shared file.
pub struct SharedFile {
    files: Arc<dyn FileSystem>,
    durability: Durability,
    folder: PathBuf,
    name: String,
    lock: PathBuf,
    is_whole: fn(&[u8]) -> bool,
    /// Prints of whole versions, the last one first: what is read again and again need not be parsed each time.
    whole: Mutex<VecDeque<u64>>,
    spares: Option<Spares>,
    state: Mutex<State>,
}

struct State {
    /// Where swapped-out files are kept; in the file's own folder when the usual place is on another disk.
    aside: PathBuf,
    is_swept: bool,
    /// The print of the version that is known: put there by us, or merged. Any other is an outside change.
    known: Option<u64>,
    /// When the outside change was made that the known version carries.
    change_ns: i128,
    /// What the last swap brought out, until it was looked at.
    came_out: Option<String>,
    /// Since when the file has been the same broken bytes.
    torn: Option<(u64, Instant)>,
    /// Since when the files aside have been as they are.
    watched: HashMap<String, (Stamp, Instant)>,
    /// What the files aside hold, as far as their stamps vouch for it.
    glimpses: HashMap<String, Glimpse>,
}

/// A version aside that nobody merged yet: its file, what that file's name says, and what is in it.
type Unseen = (String, AsideName, Content);

/// A version to merge: from the file itself or from one aside.
struct Version {
    content: Content,
    change_ns: i128,
}

impl SharedFile {
    /// The shared file `name` in `folder`. What is swapped out is kept in `team_folder`, and the lock that keeps processes of
    /// ours apart; `is_whole` tells a whole file from a broken one.
    pub fn new(
        files: Arc<dyn FileSystem>,
        durability: Durability,
        folder: &Path,
        name: &str,
        team_folder: &Path,
        is_whole: fn(&[u8]) -> bool,
    ) -> Self {
        let state = State {
            aside: team_folder.join("aside"),
            is_swept: false,
            known: None,
            change_ns: 0,
            came_out: None,
            torn: None,
            watched: HashMap::new(),
            glimpses: HashMap::new(),
        };
        Self {
            files,
            durability,
            folder: folder.to_owned(),
            name: name.to_owned(),
            lock: team_folder.join(format!(".{name}.lock")),
            is_whole,
            whole: Mutex::default(),
            spares: None,
            state: Mutex::new(state),
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// The stamp of what lies there; `None` without a file.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        self.files.stamp(&self.path()).ok()
    }

    /// The stamp of what lies there, without waiting for the disk: nothing while a merge is under way, which may hold the folder.
    #[must_use]
    pub fn stamp_at_hand(&self) -> Option<Stamp> {
        self.state.try_lock().ok().and_then(|_state| self.stamp())
    }

    /// Whether files are aside that have to be looked at again; there are while a merge is under way. Does not block.
    #[must_use]
    pub fn has_asides(&self) -> bool {
        self.state.try_lock().map_or(true, |state| !state.watched.is_empty())
    }

    /// What the file says. Waits for a merge of this process, so that no half of one is seen.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`].
    pub fn read(&self) -> StoreResult<Merged> {
        let _state = self.state();
        Ok(match self.content(&self.path())? {
            None => Merged::Missing,
            Some(content) if content.is_whole => Merged::Whole(content.bytes),
            Some(_) => Merged::Unsettled,
        })
    }

    /// Merges: makes new contents from the latest version and puts them in its place, until no outside change came between.
    /// With `own_change_ns` what is made counts as a change of that time (nanoseconds since 1970) like those of outside
    /// writers: an earlier one that is found later is passed over.
    ///
    /// # Errors
    /// [`crate::ports::StoreError::Io`]; the file is as it was, or the new version.
    pub fn merge(&self, own_change_ns: Option<i128>, make: Make<'_>) -> StoreResult<Merged> {
        // The lock lies in the team's folder, where files aside usually are too.
        let team_folder = self.lock.parent().unwrap_or(&self.folder);
        self.files.create_folder(team_folder).map_err(failed("make", team_folder))?;
        let outcome = locked(&*self.files, &self.lock, || {
            // Only now: whoever reads never waits for the lock.
            let mut state = self.state();
            self.files.create_folder(&state.aside).map_err(failed("make", &state.aside))?;
            self.sweep(&mut state)?;
            for _ in 0..ROUNDS_MAX {
                if let Some(merged) = self.round(&mut state, own_change_ns, make)? {
                    self.retire(&mut state)?;
                    return Ok(merged);
                }
            }
            self.retire(&mut state)?;
            Ok(Merged::Unsettled)
        });
        outcome.map_err(failed("lock", &self.lock))?
    }

    /// One look and at most one swap; `None` when it has to be looked again.
    fn round(&self, state: &mut State, own_change_ns: Option<i128>, make: Make<'_>) -> StoreResult<Option<Merged>> {
        let there = self.content(&self.path())?;
        if let Some(content) = there.as_ref().filter(|content| !content.is_whole) {
            return self.mend(state, content, make);
        }
        state.torn = None;
        let unseen = self.unseen(state)?;
        let there_print = there.as_ref().map(|content| content.print);
        let latest = self.latest(state, there, &unseen)?;
        let made = match &latest {
            Some(version) => make(Base::Whole(&version.content.bytes)),
            None => make(Base::Missing),
        };
        let text = match (&latest, made) {
            (None, None) => return Ok(Some(Merged::Missing)),
            (_, Some(text)) => text.into_bytes(),
            (Some(version), None) => version.content.bytes.clone(),
        };
        let change_ns = latest.map_or(0, |version| version.change_ns).max(own_change_ns.unwrap_or(0));
        if there_print == Some(print(&text)) {
            state.known = there_print;
            state.change_ns = change_ns;
            self.mark_seen(state, &unseen)?;
            return Ok(Some(Merged::Whole(text)));
        }
        if self.swap(state, there_print, &text, change_ns)? {
            self.mark_seen(state, &unseen)?;
        }
        Ok(None)
    }

    /// The latest of the version that lies there and those unseen.
    ///
    /// What lies there is later than what came out, which is later than what was merged, whatever their times say: clocks
    /// of file systems may stand still for some milliseconds. Only a late write into an older file goes by time.
    fn latest(&self, state: &mut State, there: Option<Content>, unseen: &[Unseen]) -> StoreResult<Option<Version>> {
        let came_out = state.came_out.take();
        let is_ours = there.as_ref().is_some_and(|content| Some(content.print) == state.known);
        let mut latest = match there {
            Some(content) => {
                let change_ns = self.change_time(state, &content)?;
                Some(Version { content, change_ns })
            }
            None => None,
        };
        for (name, _, content) in unseen {
            let change_ns = content.stamp.modified_ns;
            let is_later = latest.as_ref().is_none_or(|version| {
                change_ns > version.change_ns
                    || (is_ours && (change_ns == version.change_ns || came_out.as_ref() == Some(name)))
            });
            if is_later {
                latest = Some(Version { content: content.clone(), change_ns: change_ns.max(state.change_ns) });
            }
        }
        Ok(latest)
    }

    /// When the outside change was made that this version carries. One of ours says it by what was put aside for it.
    fn change_time(&self, state: &State, content: &Content) -> StoreResult<i128> {
        if state.known == Some(content.print) {
            return Ok(state.change_ns);
        }
        let by_us = self.asides(state)?.into_iter().filter(|(_, aside)| aside.put == content.print);
        let said = by_us.max_by_key(|(_, aside)| aside.number).map(|(_, aside)| aside.change_ns);
        Ok(said.unwrap_or_else(|| content.stamp.modified_ns.max(state.change_ns)))
    }

    /// Puts `text` in the place of the version with the print `from`. Says whether that was done; if not, something else lies
    /// there.
    fn swap(&self, state: &mut State, from: Option<u64>, text: &[u8], change_ns: i128) -> StoreResult<bool> {
        let number = self.asides(state)?.iter().map(|(_, aside)| aside.number).max().unwrap_or(0) + 1;
        let aside = AsideName { number, change_ns, seen: from.unwrap_or(0), put: print(text) };
        self.know_whole(aside.put);
        let name = aside.file_name(&self.name);
        let path = state.aside.join(&name);
        let staged = self.stage(&state.aside, &name, text)?;
        if self.durability == Durability::Power {
            staged.sync()?;
        }
        staged.commit()?;
        let outcome = match from {
            Some(_) => self.files.exchange(&path, &self.path()),
            None => self.files.rename_new(&path, &self.path()),
        };
        self.swapped(state, outcome, from, &path, &aside)
    }

    fn swapped(
        &self,
        state: &mut State,
        outcome: io::Result<()>,
        from: Option<u64>,
        path: &Path,
        aside: &AsideName,
    ) -> StoreResult<bool> {
        let outcome = match outcome {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.replace_unless_changed(from, path),
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                state.aside.clone_from(&self.folder);
                Ok(false)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => Ok(false),
            other => other.map(|()| true),
        };
        match outcome {
            Ok(true) => {
                state.known = Some(aside.put);
                state.change_ns = aside.change_ns;
                state.came_out = Some(aside.file_name(&self.name));
                Ok(true)
            }
            Ok(false) => {
                // It is removed at the next look otherwise: its name says that it was never swapped in.
                let _ = self.files.remove(path);
                Ok(false)
            }
            Err(error) => {
                let _ = self.files.remove(path);
                Err(failed("replace", &self.path())(error))
            }
        }
    }

    /// Where files cannot be exchanged: looks once more and renames. A change in the few microseconds between is lost.
    fn replace_unless_changed(&self, from: Option<u64>, path: &Path) -> io::Result<bool> {
        let there = self.read_content(&self.path())?.map(|content| content.print);
        if there != from {
            return Ok(false);
        }
        self.files.rename(path, &self.path())?;
        Ok(true)
    }

    /// A file that is broken: left alone for [`SETTLE_TIME`], then kept beside and replaced.
    fn mend(&self, state: &mut State, broken: &Content, make: Make<'_>) -> StoreResult<Option<Merged>> {
        let since = match state.torn {
            Some((print, since)) if print == broken.print => since,
            _ => Instant::now(),
        };
        state.torn = Some((broken.print, since));
        if since.elapsed() < SETTLE_TIME {
            return Ok(Some(Merged::Unsettled));
        }
        let Some(text) = make(Base::Malformed) else {
            return Ok(Some(Merged::Unsettled));
        };
        let change_ns = broken.stamp.modified_ns;
        if self.swap(state, Some(broken.print), text.as_bytes(), change_ns)? {
            state.torn = None;
            for (name, aside) in self.asides(state)? {
                let path = state.aside.join(name);
                // A writer may have mended it at the last moment; then it is a change to merge.
                if aside.seen == broken.print && self.content(&path)?.is_some_and(|out| out.print == broken.print) {
                    self.keep_malformed(&path)?;
                }
            }
        }
        Ok(None)
    }

    /// Keeps a broken version beside the file, and only the last few of them.
    fn keep_malformed(&self, from: &Path) -> StoreResult<()> {
        let prefix = format!("{}.malformed-", self.name);
        let names = self.files.list(&self.folder).map_err(failed("list", &self.folder))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).collect();
        numbers.sort_unstable();
        let next = numbers.last().copied().unwrap_or(0) + 1;
        let kept = self.folder.join(format!("{prefix}{next}"));
        self.files.rename(from, &kept).map_err(failed("keep", &kept))?;
        tracing::warn!(file = %self.path().display(), kept = %kept.display(), "the file was malformed; it is kept beside and made anew");
        for old in numbers.iter().rev().skip(MALFORMED_KEPT_MAX - 1) {
            // One that cannot be removed is tried again with the next.
            let _ = self.files.remove(&self.folder.join(format!("{prefix}{old}")));
        }
        Ok(())
    }

    /// The files aside that hold a whole version nobody merged yet, in the order they were swapped out.
    fn unseen(&self, state: &mut State) -> StoreResult<Vec<Unseen>> {
        let is_unseen =
            |aside: &AsideName, print: u64, is_whole: bool| is_whole && print != aside.seen && print != aside.put;
        let mut unseen = Vec::new();
        for (name, aside) in self.asides(state)? {
            let glimpse = self.glimpse(state, &name)?;
            if !glimpse.is_some_and(|glimpse| is_unseen(&aside, glimpse.print, glimpse.is_whole)) {
                continue;
            }
            if let Some(content) = self.content(&state.aside.join(&name))?
                && is_unseen(&aside, content.print, content.is_whole)
            {
                unseen.push((name, aside, content));
            }
        }
        unseen.sort_by_key(|(_, aside, _)| aside.number);
        Ok(unseen)
    }

    /// Notes in their names that these versions are merged.
    fn mark_seen(&self, state: &State, unseen: &[Unseen]) -> StoreResult<()> {
        for (name, aside, content) in unseen {
            let seen = AsideName { seen: content.print, ..*aside }.file_name(&self.name);
            let (from, to) = (state.aside.join(name), state.aside.join(seen));
            self.files.rename(&from, &to).map_err(failed("rename", &from))?;
        }
        Ok(())
    }

    /// Removes the files aside that have been as they are for [`SETTLE_TIME`] and were merged.
    fn retire(&self, state: &mut State) -> StoreResult<()> {
        let asides = self.asides(state)?;
        state.watched.retain(|name, _| asides.iter().any(|(there, _)| there == name));
        state.glimpses.retain(|name, _| asides.iter().any(|(there, _)| there == name));
        for (name, aside) in asides {
            let path = state.aside.join(&name);
            let Some(content) = self.glimpse(state, &name)? else {
                continue;
            };
            let was_never_swapped_in = content.print == aside.put && content.print != aside.seen;
            let watched = state.watched.entry(name.clone()).or_insert((content.stamp, Instant::now()));
            if watched.0 != content.stamp {
                *watched = (content.stamp, Instant::now());
            }
            let is_settled = watched.1.elapsed() >= SETTLE_TIME;
            if was_never_swapped_in || (is_settled && content.print == aside.seen) {
                self.put_away(&path)?;
                state.watched.remove(&name);
            } else if is_settled && !content.is_whole {
                self.keep_malformed(&path)?;
                state.watched.remove(&name);
            }
        }
        Ok(())
    }

    /// Removes what killed processes of ours left half written, once.
    fn sweep(&self, state: &mut State) -> StoreResult<()> {
        if !state.is_swept {
            sweep_temporaries(&*self.files, &state.aside)?;
            self.spares.as_ref().map_or(Ok(()), |spares| spares.fill(&*self.files))?;
            state.is_swept = true;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Merges, and again while an outside writer is at work, for as long as `UNSETTLED_TIME_MAX`.
///
/// # Errors
/// [`crate::ports::StoreError::Io`], also when the file never came to rest.
pub async fn merge_patiently<M>(
    file: &Arc<SharedFile>,
    own_change_ns: Option<i128>,
    make: M,
) -> StoreResult<Option<Vec<u8>>>
where
    M: FnMut(Base<'_>) -> Option<String> + Send + 'static,
{
    let make = Arc::new(Mutex::new(make));
    let began = Instant::now();
    loop {
        let (shared, make) = (Arc::clone(file), Arc::clone(&make));
        let merged = blocking(move || {
            let mut make = make.lock().unwrap_or_else(PoisonError::into_inner);
            shared.merge(own_change_ns, &mut *make)
        });
        match merged.await? {
            Merged::Whole(bytes) => return Ok(Some(bytes)),
            Merged::Missing => return Ok(None),
            Merged::Unsettled if began.elapsed() > UNSETTLED_TIME_MAX => {
                let error = io::Error::new(io::ErrorKind::TimedOut, "others write it without pause");
                return Err(failed("merge into", &file.path())(error));
            }
            Merged::Unsettled => tokio::time::sleep(RETRY_TIME).await,
        }
    }
}
