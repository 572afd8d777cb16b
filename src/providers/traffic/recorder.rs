//! Writes the traffic of a team's members.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Exchange, LIMITS, VERSION, WORKSPACE, file_of};
use crate::domain::team::account::AccountId;
use crate::domain::text::system_error;
use crate::domain::time::UnixMs;
use crate::platform;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::{ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, ToolSpec};
use crate::secrets::masked;

/// The recordings of a team.
pub struct Recorder {
    folder: PathBuf,
    workspace: Arc<str>,
    /// `None` after an error, or at a limit of a recording: the member is not recorded any more.
    members: Mutex<HashMap<Arc<str>, Option<MemberFile>>>,
}

/// The recording of a member, and the request that its last line has.
struct MemberFile {
    file: File,
    bytes: u64,
    lines: u64,
    system: Option<Arc<str>>,
    tools: Option<Arc<[ToolSpec]>>,
    messages: Arc<[Arc<ChatMessage>]>,
}

impl Recorder {
    /// Records in this folder. The path of `workspace` is replaced.
    pub fn new(folder: &Path, workspace: &Path) -> Self {
        let workspace = workspace.to_string_lossy().into();
        Self { folder: folder.to_owned(), workspace, members: Mutex::default() }
    }

    /// Returns a model that answers as `model` does, and records each answer.
    pub fn record(recorder: &Arc<Self>, model: Arc<dyn ModelClient>) -> Arc<dyn ModelClient> {
        Arc::new(RecordedModel { recorder: Arc::clone(recorder), model })
    }

    /// Records an answer. Without space, or at a limit of a recording, the team works on without it.
    fn write(&self, request: &ModelRequest, response: &ModelResponse) {
        let mut members = self.members.lock();
        let member = members.entry(Arc::clone(&request.teammate)).or_insert_with(|| {
            let opened = MemberFile::open(&self.folder, &request.teammate);
            opened.map_err(|error| self.warn(&request.teammate, &error)).ok()
        });
        let written = member.as_mut().map(|file| file.write(request, response, &self.workspace));
        if let Some(Err(error)) = written {
            self.warn(&request.teammate, &error);
            *member = None;
        }
    }

    fn warn(&self, member: &str, error: &io::Error) {
        let (path, reason) = (file_of(&self.folder, member), system_error::reason(error));
        tracing::warn!("cannot record the requests of {member} in {}: {reason}; the team works on", path.display());
    }
}

impl MemberFile {
    /// Opens the recording of a member. A line that a crash cut is ended. A recording that the provider `recorded` refuses is an error.
    fn open(folder: &Path, member: &str) -> io::Result<Self> {
        let path = file_of(folder, member);
        let mut file = platform::open_for_appending(&path)?;
        let bytes = file.metadata()?.len();
        let mut lines = 0;
        reading::read_lines(&path, AllowedKinds::within_folder_of(&path), LIMITS, |_| {
            lines += 1;
            ControlFlow::<()>::Continue(())
        })?;
        let mut last = [b'\n'];
        if bytes > 0 {
            platform::open_for_reading(&path)?.read_exact_at(&mut last, bytes - 1)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
        }
        Ok(Self { bytes: file.metadata()?.len(), file, lines, system: None, tools: None, messages: Arc::default() })
    }

    fn write(&mut self, request: &ModelRequest, response: &ModelResponse, workspace: &str) -> io::Result<()> {
        let is_kept = |pair: &(&Arc<ChatMessage>, &Arc<ChatMessage>)| Arc::ptr_eq(pair.0, pair.1) || pair.0 == pair.1;
        let kept = self.messages.iter().zip(request.messages.iter()).take_while(is_kept).count();
        let exchange = Exchange {
            v: VERSION,
            at: now(),
            purpose: request.purpose,
            model: request.model.to_string(),
            system: (self.system.as_ref() != Some(&request.system)).then(|| request.system.to_string()),
            tools: (self.tools.as_ref() != Some(&request.tools)).then(|| request.tools.to_vec()),
            kept,
            messages: request.messages.iter().skip(kept).map(|message| (**message).clone()).collect(),
            answer: response.clone(),
        };
        let line = masked(serde_json::to_string(&exchange)?).replace(workspace, WORKSPACE) + "\n";
        let bytes = line.len() as u64;
        let fits = bytes <= LIMITS.line_bytes_max && self.bytes + bytes <= LIMITS.file_bytes_max;
        if !fits || self.lines >= LIMITS.lines_max {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the recording is full"));
        }
        self.file.write_all(line.as_bytes())?;
        self.bytes += bytes;
        self.lines += 1;
        self.system = Some(Arc::clone(&request.system));
        self.tools = Some(Arc::clone(&request.tools));
        self.messages = Arc::clone(&request.messages);
        Ok(())
    }
}

fn now() -> UnixMs {
    UnixMs::default().plus(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// A model whose answers are recorded.
struct RecordedModel {
    recorder: Arc<Recorder>,
    model: Arc<dyn ModelClient>,
}

#[async_trait]
impl ModelClient for RecordedModel {
    fn has_server(&self) -> bool {
        self.model.has_server()
    }

    fn account(&self) -> Option<AccountId> {
        self.model.account()
    }

    fn larger_window(&self) -> Option<&'static str> {
        self.model.larger_window()
    }

    fn context_window_tokens(&self) -> Option<u64> {
        self.model.context_window_tokens()
    }

    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let response = self.model.request(request.clone(), listener).await?;
        let (recorder, copy) = (Arc::clone(&self.recorder), response.clone());
        // It fails only at the end of the runtime.
        let _ = tokio::task::spawn_blocking(move || recorder.write(&request, &copy)).await;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::StopReason;
    use crate::providers::test_requests::request;

    #[test]
    fn recording_ends_at_line_limit_of_its_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(folder.path(), "bob");
        let lines = |count: u64| "\n".repeat(usize::try_from(count).unwrap());
        std::fs::write(&path, lines(LIMITS.lines_max - 1)).unwrap();
        let response = ModelResponse { content: Vec::new(), stop: StopReason::EndTurn, usage: None, origin: None };
        let mut file = MemberFile::open(folder.path(), "bob").unwrap();
        file.write(&request(&[]), &response, "/w").unwrap();
        assert_eq!(file.write(&request(&[]), &response, "/w").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&path, lines(LIMITS.lines_max + 1)).unwrap();
        assert!(MemberFile::open(folder.path(), "bob").is_err(), "nothing can answer from it");
    }
}
