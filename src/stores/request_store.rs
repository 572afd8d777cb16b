//! The stores of requests that wait for an answer: the file `.team/requests.json`, or memory.
//!
//! Every change replaces the file under its lock. An invalid file is quarantined. Mail that carries requests and answers is not
//! handled here.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::file::atomic_write::replace;
use super::file::exchange_file::QUARANTINE_SUFFIX;
use super::file::{Durability, blocking, failed, if_found, is_foreign_entry, move_aside};
use super::fs::{FileSystem, locked};
use crate::domain::team::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use crate::domain::time::UnixMs;
use crate::ports::{IoAction, Requests, StoreResult};

const FILE: &str = "requests.json";
const LOCK: &str = "requests.lock";
/// The largest file that is read, in bytes: many times the size that the limits allow.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The most quarantined files.
const QUARANTINED_MAX: u32 = 100;

/// Requests that wait for an answer.
pub enum RequestStore {
    /// In `.team/requests.json`.
    File(RequestFile),
    /// In memory, for tests and for teams that write no files.
    Memory(Mutex<Approvals>),
}

/// The file of the requests.
pub struct RequestFile {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    durability: Durability,
    /// True for a process that only reads: it quarantines nothing.
    is_read_only: bool,
}

/// The content of the file.
enum StoredApprovals {
    Valid(Approvals),
    /// It is invalid, for this reason.
    Invalid(String),
}

impl RequestStore {
    /// Requests of the workspace whose `.team` is `folder`. Creates nothing before the first request.
    pub fn file(files: Arc<dyn FileSystem>, folder: PathBuf, durability: Durability, is_read_only: bool) -> Self {
        Self::File(RequestFile { files, folder, durability, is_read_only })
    }

    /// Requests in memory.
    pub fn memory() -> Self {
        Self::Memory(Mutex::default())
    }

    async fn change<R: Send>(&self, change: impl FnOnce(&mut Approvals) -> R + Send) -> StoreResult<R> {
        match self {
            Self::File(file) => blocking(|| file.change(change)).await,
            Self::Memory(approvals) => Ok(change(&mut approvals.lock())),
        }
    }
}

impl RequestFile {
    fn change<R>(&self, change: impl FnOnce(&mut Approvals) -> R) -> StoreResult<R> {
        self.files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
        let lock = self.folder.join(LOCK);
        let read_change_write = || {
            let mut approvals = self.read_or_quarantine()?;
            let before = approvals.clone();
            let result = change(&mut approvals);
            if approvals != before {
                let bytes = serde_json::to_vec_pretty(&approvals)
                    .map_err(|error| failed("write", &self.folder.join(FILE))(error.into()))?;
                replace(&*self.files, &self.folder, FILE, &bytes, self.durability)?;
            }
            Ok(result)
        };
        locked(&*self.files, &lock, read_change_write).map_err(failed(IoAction::Lock, &lock))?
    }

    /// Returns all requests. A process that only reads ignores an invalid file.
    fn all(&self) -> StoreResult<Approvals> {
        match self.read()? {
            StoredApprovals::Valid(approvals) => Ok(approvals),
            StoredApprovals::Invalid(reason) if self.is_read_only => {
                let path = self.folder.join(FILE);
                tracing::warn!(file = %path.display(), reason, "ignored an invalid file of requests");
                Ok(no_requests())
            }
            StoredApprovals::Invalid(_) => self.change(|approvals| approvals.clone()),
        }
    }

    /// Reads the file, under its lock. Quarantines an invalid one: members then ask again.
    fn read_or_quarantine(&self) -> StoreResult<Approvals> {
        let reason = match self.read()? {
            StoredApprovals::Valid(approvals) => return Ok(approvals),
            StoredApprovals::Invalid(reason) => reason,
        };
        let path = self.folder.join(FILE);
        let names = (1..=QUARANTINED_MAX).map(|number| format!("{FILE}{QUARANTINE_SUFFIX}{number}"));
        let copy = move_aside(&*self.files, &path, &self.folder, names).map_err(failed("quarantine", &path))?;
        tracing::warn!(
            copy = %copy.display(), reason,
            "quarantined an invalid file of requests; members ask again for open plan and review approvals"
        );
        Ok(no_requests())
    }

    /// Reads the file. Takes no lock and creates nothing: the file is only ever replaced as a whole.
    fn read(&self) -> StoreResult<StoredApprovals> {
        let path = self.folder.join(FILE);
        let read = self.files.read(&path, 0, FILE_BYTES_MAX);
        if let Err(error) = &read
            && self.files.stamp(&path).is_ok_and(|stamp| is_foreign_entry(stamp, error))
        {
            return Ok(StoredApprovals::Invalid(error.to_string()));
        }
        Ok(match if_found("read", &path, read)? {
            Some((bytes, _)) => match serde_json::from_slice::<Approvals>(&bytes) {
                Ok(mut approvals) => {
                    approvals.requests.iter_mut().for_each(Request::drop_other_call);
                    StoredApprovals::Valid(approvals)
                }
                Err(error) => StoredApprovals::Invalid(error.to_string()),
            },
            None => StoredApprovals::Valid(no_requests()),
        })
    }
}

fn no_requests() -> Approvals {
    Approvals { v: 1, ..Approvals::default() }
}

#[async_trait]
impl Requests for RequestStore {
    async fn record(&self, request: Request) -> StoreResult<()> {
        Ok(self.change(|approvals| approvals.record(request)).await??)
    }

    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        Ok(self.change(|approvals| approvals.reserve(id, kind, by, process, now)).await??)
    }

    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        Ok(self.change(|approvals| approvals.answer(id, kind, answer)).await??)
    }

    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.change(|approvals| approvals.reassign(id, kind, to)).await
    }

    async fn rebind_review(&self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> StoreResult<()> {
        self.change(|approvals| approvals.rebind_review(id, from, work, at)).await
    }

    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.change(|approvals| approvals.withdraw(id, kind, reason, at)).await
    }

    async fn all(&self) -> StoreResult<Approvals> {
        match self {
            Self::File(file) => blocking(|| file.all()).await,
            Self::Memory(approvals) => Ok(approvals.lock().clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    use crate::domain::team::approval::RequestError;
    use crate::ports::StoreError;
    use crate::stores::fs::RealFileSystem;

    fn file(folder: &Path) -> RequestStore {
        opened(folder, false)
    }

    fn opened(folder: &Path, is_read_only: bool) -> RequestStore {
        let files = Arc::new(RealFileSystem::default());
        RequestStore::file(files, folder.join(".team"), Durability::Process, is_read_only)
    }

    fn request(id: &str) -> Request {
        Request::new(id, RequestKind::Shutdown, "lead", "bob", UnixMs(1))
    }

    fn answer(approve: bool) -> ApprovalAnswer {
        ApprovalAnswer {
            approve,
            text: "after this task".into(),
            by: "bob".into(),
            at: UnixMs(2),
            for_run: false,
            digest: None,
        }
    }

    #[tokio::test]
    async fn request_survives_reopening_the_store() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).record(request("a")).await.unwrap();
        let reopened = file(folder.path());
        let answered = reopened.answer("a", RequestKind::Shutdown, answer(false)).await.unwrap();
        assert_eq!(answered.answer.unwrap().text, "after this task");
        let again = file(folder.path()).answer("a", RequestKind::Shutdown, answer(true)).await;
        assert!(matches!(again, Err(StoreError::Request(RequestError::AlreadyAnswered { .. }))), "{again:?}");
    }

    #[tokio::test]
    async fn invalid_request_file_is_quarantined() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(".team").join(name);
        std::fs::create_dir(at("")).unwrap();
        std::fs::write(at("requests.json"), "{ torn").unwrap();
        assert_eq!(opened(folder.path(), true).all().await.unwrap().requests, []);
        assert_eq!(std::fs::read_to_string(at("requests.json")).unwrap(), "{ torn", "a reader writes nothing");
        assert_eq!(file(folder.path()).all().await.unwrap().requests, []);
        assert_eq!(std::fs::read_to_string(at("requests.json.malformed-1")).unwrap(), "{ torn");
        std::fs::create_dir(at("requests.json")).unwrap();
        file(folder.path()).record(request("a")).await.unwrap();
        assert!(at("requests.json.malformed-2").is_dir());
        assert_eq!(file(folder.path()).all().await.unwrap().requests, [request("a")]);
    }

    #[tokio::test]
    async fn concurrent_reservations_grant_exactly_one() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).record(request("a")).await.unwrap();
        let reservations = (0..16).map(|number| {
            let (store, process) = (file(folder.path()), format!("bob {number}"));
            let reserve = async move { store.reserve("a", RequestKind::Shutdown, "bob", &process, UnixMs(2)).await };
            tokio::spawn(reserve)
        });
        let mut granted = 0;
        for reservation in reservations.collect::<Vec<_>>() {
            granted += usize::from(reservation.await.unwrap().is_ok());
        }
        assert_eq!(granted, 1);
    }
}
