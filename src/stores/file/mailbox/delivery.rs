//! Taking mail, and letting go of what is carried. It never sends.

use super::{
    Arc, BTreeSet, Delivery, Duration, FileKind, HashSet, INBOX_BYTES_MAX, Inner, Instant, Message, Name, Path, Scan,
    Stamp, StoreChange, StoreResult, TAKEN_BYTES_MAX, UnixMs, Watched, Weak, failed, file_name, inbox_name, io,
    next_number, parse_name, sweep_temporaries, taken_at_ms,
};

impl Inner {
    pub(super) fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.locked(|| {
            if !std::mem::replace(&mut self.state().is_swept, true) {
                sweep_temporaries(&*self.files, &self.folder)?;
            }
            self.recipients.open(&*self.files, names)
        })
    }

    /// [`Self::take`], and notes when there was nothing.
    pub(super) fn take_watched(&self, name: &str) -> StoreResult<(String, Vec<(String, Scan)>)> {
        let since = self.stillness.begin(&*self.files);
        let (name, scans) = self.take(name)?;
        if scans.is_empty() {
            self.stillness.note(&name, since);
        }
        Ok((name, scans))
    }

    /// Moves the inbox of `name` to its taken files, and reads all of them.
    pub(super) fn take(&self, name: &str) -> StoreResult<(String, Vec<(String, Scan)>)> {
        let name = self.recipients.find(&*self.files, name)?;
        self.take_inbox(&name, &name)?;
        let (name, scans) = self.scan_taken(&name)?;
        for (_, scan) in &scans {
            for line in &scan.spoiled {
                self.spoiled.keep(&*self.files, line)?;
            }
        }
        Ok((name, scans))
    }

    /// Reads the taken files of `name`, in the order they were taken.
    pub(super) fn scan_taken(&self, name: &str) -> StoreResult<(String, Vec<(String, Scan)>)> {
        let name = self.recipients.find(&*self.files, name)?;
        let mut scans = Vec::new();
        for (_, file) in self.taken_of(&name)? {
            if let Some(scan) = self.scan(&file)? {
                scans.push((file, scan));
            }
        }
        Ok((name, scans))
    }

    /// Moves the inbox that is spelled `spelling` to the taken files of `name`, if there is anything in it.
    fn take_inbox(&self, name: &str, spelling: &str) -> StoreResult<()> {
        let path = self.inbox(spelling);
        let has_mail =
            |stamp: Option<Stamp>| stamp.is_some_and(|stamp| stamp.bytes > 0 && stamp.kind != FileKind::Folder);
        if !has_mail(self.stamp(&path)?) {
            return Ok(());
        }
        self.locked(|| {
            if !has_mail(self.stamp(&path)?) {
                return Ok(());
            }
            let number = next_number(self.clock.now(), self.last_number()?);
            let taken = self.taken.join(file_name(name, number));
            self.files.rename(&path, &taken).map_err(failed("take", &path))?;
            let mut state = self.state();
            state.counted.remove(&path);
            state.last_number = Some(number);
            Ok(())
        })
    }

    /// The greatest number of a taken file. One process takes the mail of a name, so the folder is looked at only once.
    fn last_number(&self) -> StoreResult<Option<u64>> {
        let known = self.state().last_number;
        if known.is_some() {
            return Ok(known);
        }
        Ok(self.list(&self.taken)?.iter().filter_map(|file| parse_name(file)).map(|(_, number)| number).max())
    }

    /// Reads a taken file; `None` when it is gone, or cannot be read and is kept aside.
    fn scan(&self, file: &str) -> StoreResult<Option<Scan>> {
        let path = self.taken.join(file);
        match self.files.read(&path, 0, TAKEN_BYTES_MAX) {
            Ok((bytes, stamp)) => {
                let mut scan = Scan::read(file, &bytes, self.is_settled(file, stamp));
                scan.stamp = Some(stamp);
                Ok(Some(scan))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if self.is_no_mail(&path, &error) => {
                self.spoiled.keep_file(&*self.files, &path, file, &error)?;
                self.state().watched.remove(file);
                Ok(None)
            }
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Puts an inbox aside that cannot be mail: nothing would ever be read from it. One that cannot be moved is named once.
    fn put_aside(&self, name: &str, file: &str, stamp: Stamp) {
        let reason = match stamp.kind {
            FileKind::File => format!("{} bytes, at most {TAKEN_BYTES_MAX} are read", stamp.bytes),
            FileKind::Folder => "it is a folder".to_owned(),
            FileKind::Link => "it is a symbolic link".to_owned(),
            FileKind::Other => "it is no plain file".to_owned(),
        };
        let path = self.folder.join(file);
        let moved = self.locked(|| {
            let number = next_number(self.clock.now(), self.last_number()?);
            self.spoiled.keep_file(&*self.files, &path, &file_name(name, number), &io::Error::other(reason.as_str()))
        });
        if let Err(error) = moved
            && self.state().unreadable.insert(file.to_owned())
        {
            tracing::warn!(inbox = %path.display(), reason, %error, "an inbox cannot be read, nor put aside");
        }
    }

    /// Whether what lies there is no plain file, or larger than any inbox.
    fn is_no_mail(&self, path: &Path, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::FileTooLarge
            || self.files.stamp(path).is_ok_and(|stamp| stamp.kind != FileKind::File)
    }

    /// Whether the file has been as it is for long enough.
    fn is_settled(&self, file: &str, stamp: Stamp) -> bool {
        let state = self.state();
        state
            .watched
            .get(file)
            .is_some_and(|watched| watched.stamp == stamp && watched.since.elapsed() >= self.settle_time)
    }

    /// Notes how taken files of `name` stand, once a transcript carries `delivered` besides what was said to be carried before.
    pub(super) fn note(&self, name: &str, scans: &[(String, Scan)], delivered: &HashSet<String>) {
        if scans.is_empty() {
            return;
        }
        let now = self.clock.now();
        let mut state = self.state();
        let state = &mut *state;
        let carried = state.carried.entry(name.to_owned()).or_default();
        for (file, scan) in scans {
            let keys = scan.messages.iter().map(|(key, _)| key);
            carried.extend(keys.filter(|key| delivered.contains(*key)).cloned());
            let Some(stamp) = scan.stamp else { continue };
            let age = age_of(file, stamp, now);
            let watched = state.watched.entry(file.clone()).or_insert_with(|| Watched::aged(stamp, age));
            if watched.stamp != stamp {
                *watched = Watched::new(stamp);
            }
            watched.is_carried = scan.is_carried(carried);
        }
    }

    /// Looks at the taken files that have been as they are for long enough: those that are carried are removed, for those with
    /// an open end their owner is told to look. Says whether any are left to look at.
    pub(super) fn sweep(&self) -> StoreResult<bool> {
        let settled: Vec<String> = {
            let state = self.state();
            let is_due = |watched: &Watched| {
                watched.since.elapsed() >= self.settle_time && (watched.is_carried || !watched.is_told)
            };
            state.watched.iter().filter(|(_, watched)| is_due(watched)).map(|(file, _)| file.clone()).collect()
        };
        for file in settled {
            self.sweep_file(&file)?;
        }
        let mut state = self.state();
        let names: BTreeSet<String> =
            state.watched.keys().filter_map(|file| parse_name(file)).map(|(name, _)| name.to_owned()).collect();
        state.carried.retain(|name, _| names.contains(name));
        Ok(state.watched.values().any(|watched| watched.is_carried || !watched.is_told))
    }

    fn sweep_file(&self, file: &str) -> StoreResult<()> {
        let Some((name, _)) = parse_name(file) else {
            return Ok(());
        };
        let Some(scan) = self.scan(file)? else {
            self.state().watched.remove(file);
            return Ok(());
        };
        for line in &scan.spoiled {
            self.spoiled.keep(&*self.files, line)?;
        }
        let (name, scans) = (name.to_owned(), [(file.to_owned(), scan)]);
        self.note(&name, &scans, &HashSet::new());
        let mut state = self.state();
        let Some(watched) = state.watched.get_mut(file) else {
            return Ok(());
        };
        if watched.since.elapsed() < self.settle_time {
            // It changed: somebody wrote into it after it was taken.
            let _ = self.changes.send(StoreChange::Mail(name));
        } else if watched.is_carried {
            let path = self.taken.join(file);
            state.watched.remove(file);
            state.counted.remove(&path);
            drop(state);
            match self.files.remove(&path) {
                // Another sweep was faster.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &path)(error)),
                _ => {}
            }
        } else if !watched.is_told {
            watched.is_told = true;
            let _ = self.changes.send(StoreChange::Mail(name));
        }
        Ok(())
    }

    /// Starts the task that looks at taken files once they have settled, unless it runs or there are none.
    pub(super) fn start_sweeping(self: &Arc<Self>) {
        let mut state = self.state();
        if state.watched.is_empty() || state.is_sweeping {
            return;
        }
        state.is_sweeping = true;
        tokio::spawn(sweep_while_needed(Arc::downgrade(self)));
    }

    pub(super) fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        let name = self.recipients.find(&*self.files, name)?;
        let path = self.inbox(&name);
        loop {
            let since = self.stillness.begin(&*self.files);
            let before = self.stamp(&path)?;
            let taken = self.taken_of(&name)?;
            if taken.is_empty() && before.is_none_or(|stamp| stamp.bytes == 0) {
                self.stillness.note(&name, since);
                return Ok(Vec::new());
            }
            let mut messages: Vec<(String, Message)> = Vec::new();
            for (_, file) in taken {
                let is_carried = self.state().watched.get(&file).is_some_and(|watched| watched.is_carried);
                if !is_carried && let Some(scan) = self.scan(&file)? {
                    messages.extend(scan.messages);
                }
            }
            if before.is_some() {
                match self.files.read(&path, 0, TAKEN_BYTES_MAX.max(INBOX_BYTES_MAX)) {
                    Ok((bytes, _)) => messages.extend(Scan::read("inbox", &bytes, true).messages),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed("read", &path)(error)),
                }
            }
            // Taken meanwhile: look where it went.
            if before.map(|stamp| stamp.inode) == self.stamp(&path)?.map(|stamp| stamp.inode) {
                let state = self.state();
                let carried = state.carried.get(&name);
                messages.retain(|(key, _)| !carried.is_some_and(|carried| carried.contains(key)));
                return Ok(messages.into_iter().map(|(key, message)| Delivery { key, message }).collect());
            }
        }
    }

    pub(super) fn waiting(&self) -> StoreResult<Vec<String>> {
        let since = self.stillness.begin(&*self.files);
        let spellings = self.recipients.spellings(&*self.files)?;
        let known = |name: &str| spellings.get(&name.to_ascii_lowercase()).cloned();
        let mut waiting = BTreeSet::new();
        for file in self.list(&self.folder)? {
            let Some((spelling, name)) = inbox_name(&file).and_then(|spelling| Some((spelling, known(spelling)?)))
            else {
                continue;
            };
            let Some(stamp) = self.stamp(&self.folder.join(&file))?.filter(|stamp| stamp.bytes > 0) else { continue };
            if stamp.kind != FileKind::File || stamp.bytes > TAKEN_BYTES_MAX {
                self.put_aside(&name, &file, stamp);
                continue;
            }
            if spelling != name {
                self.take_inbox(&name, spelling)?;
            }
            waiting.insert(name);
        }
        let taken = self.list(&self.taken)?;
        let state = self.state();
        for file in &taken {
            let is_carried = state.watched.get(file).is_some_and(|watched| watched.is_carried);
            waiting.extend(parse_name(file).filter(|_| !is_carried).and_then(|(name, _)| known(name)));
        }
        if waiting.is_empty() && taken.is_empty() {
            self.stillness.note_all(since);
        }
        Ok(waiting.into_iter().collect())
    }
}

impl Watched {
    fn new(stamp: Stamp) -> Self {
        Self::aged(stamp, Duration::ZERO)
    }

    /// One that has been as it is for so long already.
    fn aged(stamp: Stamp, age: Duration) -> Self {
        let since = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        Self { stamp, since, is_carried: false, is_told: false }
    }
}

/// How long a taken file has been as it is, when it is first seen: since it was taken, which its number says, and last written.
fn age_of(file: &str, stamp: Stamp, now: UnixMs) -> Duration {
    let taken_ms = parse_name(file).map(|(_, number)| i128::from(taken_at_ms(number)));
    let written_ms = stamp.modified_ns / 1_000_000;
    let since_ms = taken_ms.unwrap_or(i128::MAX).max(written_ms);
    u64::try_from(i128::from(now.0) - since_ms).map_or(Duration::ZERO, Duration::from_millis)
}

async fn sweep_while_needed(inner: Weak<Inner>) {
    loop {
        let Some(settle_time) = inner.upgrade().map(|inner| inner.settle_time) else { return };
        tokio::time::sleep(settle_time + Duration::from_millis(20)).await;
        let Some(inner) = inner.upgrade() else { return };
        let swept = Arc::clone(&inner);
        let is_left = super::blocking(move || swept.sweep()).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "taken mail cannot be tidied; it is tried again");
            true
        });
        let mut state = inner.state();
        if !is_left {
            state.is_sweeping = false;
            return;
        }
    }
}
