//! Answers from recorded traffic.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Serialize;

use super::{Exchange, LIMITS, RECORDINGS_MAX, VERSION, WORKSPACE, file_of};
use crate::domain::agent::transcript::Block;
use crate::domain::team::team_spec::ModelSpec;
use crate::domain::text::system_error;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::{ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, RequestPurpose};
use crate::providers::key_command::KeyCommands;

/// The characters before and after the first difference that an error shows.
const SHOWN_BEFORE: usize = 20;
const SHOWN_AFTER: usize = 60;
/// No path, for texts that have the placeholder already.
const NO_PATH: &str = "\0";

/// Checks the folder of recordings that a member's `model` names, and returns a model that answers from it, in the workspace `/`.
///
/// # Errors
/// The folder has no recording that can be read.
pub fn connect(spec: &ModelSpec, _: &KeyCommands) -> Result<Arc<dyn ModelClient>, String> {
    replay(spec, Path::new("/"))
}

/// Returns a model that answers from the recordings in the folder that `model` names, in this workspace.
///
/// # Errors
/// As [`connect`].
pub fn replay(spec: &ModelSpec, workspace: &Path) -> Result<Arc<dyn ModelClient>, String> {
    let folder = Path::new(&spec.model);
    let refused = |reason: &str| format!("cannot answer from the recordings in {}: {reason}", folder.display());
    let entries = reading::list(folder, RECORDINGS_MAX).map_err(|error| refused(&system_error::reason(&error)))?;
    if !entries.iter().any(|entry| entry.path().extension().is_some_and(|extension| extension == "jsonl")) {
        return Err(refused("there is no file `MEMBER.jsonl`; `record = \"FOLDER\"` in a team's settings writes them"));
    }
    let workspace = workspace.to_string_lossy().into_owned();
    Ok(Arc::new(Arc::new(Replay { folder: folder.to_owned(), workspace, members: Mutex::default() })))
}

/// A model that answers from recordings.
struct Replay {
    folder: PathBuf,
    workspace: String,
    members: Mutex<HashMap<Arc<str>, Arc<Mutex<Recording>>>>,
}

/// The recording of a member.
struct Recording {
    path: PathBuf,
    exchanges: Vec<RecordedExchange>,
}

/// A line of a recording.
struct RecordedExchange {
    request: Fingerprint,
    /// The place of the line, in bytes.
    start: u64,
    bytes: usize,
    is_used: bool,
}

/// The hashes of a request's parts. Two requests with the same ones are equal.
#[derive(Clone, PartialEq, Eq)]
struct Fingerprint {
    purpose: RequestPurpose,
    system: u64,
    tools: u64,
    messages: Vec<u64>,
}

impl Fingerprint {
    fn of(request: &ModelRequest, workspace: &str) -> Self {
        Self {
            purpose: request.purpose,
            system: hash(&recorded_text(&request.system, workspace)),
            tools: hash(&recorded_text(&request.tools, workspace)),
            messages: request.messages.iter().map(|message| hash(&comparable_text(message, workspace))).collect(),
        }
    }

    /// Returns the number of messages with which both requests begin.
    fn common_messages(&self, other: &Self) -> usize {
        self.messages.iter().zip(&other.messages).take_while(|(one, other)| one == other).count()
    }
}

/// Returns the text of a message by which it is compared. In results of tools, words with a digit and the width of spaces do not count:
/// they are times, sizes, ids of commits and processes, and their columns.
fn comparable_text(message: &ChatMessage, workspace: &str) -> String {
    let mut message = ChatMessage { origin: None, ..message.clone() };
    for block in &mut message.content {
        if let Block::ToolResult { content, .. } = block {
            *content = without_numbers(&content.replace(workspace, WORKSPACE));
        }
    }
    recorded_text(&message, workspace)
}

/// Returns the text with `#` in place of each word that has a digit, and one space in place of several.
fn without_numbers(text: &str) -> String {
    let mut left = String::with_capacity(text.len());
    for piece in text.split_inclusive(|letter: char| !letter.is_alphanumeric() && letter != '_') {
        if piece == " " && left.ends_with(' ') {
            continue;
        }
        if piece.contains(|letter: char| letter.is_ascii_digit()) {
            left.push('#');
            left.extend(piece.chars().last().filter(|last| !last.is_alphanumeric() && *last != '_'));
        } else {
            left.push_str(piece);
        }
    }
    left
}

/// Returns the text of a part as a recording has it.
fn recorded_text(part: &impl Serialize, workspace: &str) -> String {
    serde_json::to_string(part).unwrap_or_default().replace(workspace, WORKSPACE)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Recording {
    /// Reads the requests of a recording.
    fn read(path: PathBuf) -> io::Result<Self> {
        let mut exchanges = Vec::new();
        let mut start = 0;
        // The request of the line before. `None` after a cut line: the next complete request begins a new one.
        let mut before: Option<Fingerprint> = None;
        reading::read_lines(&path, AllowedKinds::within_folder_of(&path), LIMITS, |line| {
            let exchange = serde_json::from_slice(line).ok().filter(|exchange: &Exchange| exchange.v == VERSION);
            before = exchange.and_then(|exchange| fingerprint_after(before.take(), &exchange));
            if let Some(request) = before.clone() {
                exchanges.push(RecordedExchange { request, start, bytes: line.len(), is_used: false });
            }
            start += line.len() as u64 + 1;
            ControlFlow::<()>::Continue(())
        })?;
        Ok(Self { path, exchanges })
    }

    /// Returns the answer to a request.
    fn answer(&mut self, request: &ModelRequest, workspace: &str) -> Result<ModelResponse, String> {
        let wanted = Fingerprint::of(request, workspace);
        let equal = |exchange: &&mut RecordedExchange| exchange.request == wanted;
        let found = self.exchanges.iter_mut().filter(|exchange| !exchange.is_used).find(equal);
        let found = match found {
            Some(found) => found,
            // The same request again, as after a lost answer.
            None => match self.exchanges.iter_mut().rfind(equal) {
                Some(found) => found,
                None => return Err(self.difference(request, &wanted, workspace)),
            },
        };
        found.is_used = true;
        let (start, bytes) = (found.start, found.bytes);
        let exchange = self.exchange(start, bytes).map_err(|error| system_error::reason(&error))?;
        let answer = serde_json::to_string(&exchange.answer).unwrap_or_default().replace(WORKSPACE, workspace);
        serde_json::from_str::<super::Answer>(&answer).map(ModelResponse::from).map_err(|error| error.to_string())
    }

    fn exchange(&self, start: u64, bytes: usize) -> io::Result<Exchange> {
        let file = reading::open(&self.path, AllowedKinds::within_folder_of(&self.path))?;
        let mut line = vec![0; bytes];
        file.read_exact_at(&mut line, start)?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Names the first part of a request that differs from the one of the recording that begins like it.
    fn difference(&self, request: &ModelRequest, wanted: &Fingerprint, workspace: &str) -> String {
        let left = self.exchanges.iter().enumerate().filter(|(_, exchange)| !exchange.is_used);
        let left = left.filter(|(_, exchange)| exchange.request.purpose == wanted.purpose);
        let nearest = left.rev().max_by_key(|(_, exchange)| exchange.request.common_messages(wanted));
        let Some((at, next)) = nearest else {
            return format!("all its {} requests are answered", self.exchanges.len());
        };
        let number = at + 1;
        if next.request.system != wanted.system {
            return format!("request {number} differs in the system prompt");
        }
        if next.request.tools != wanted.tools {
            return format!("request {number} differs in the tools");
        }
        let index = next.request.common_messages(wanted);
        let recorded = self.message(at, index).map(|message| comparable_text(&message, NO_PATH)).unwrap_or_default();
        let now = request.messages.get(index).map(|message| comparable_text(message, workspace)).unwrap_or_default();
        let same = recorded.chars().zip(now.chars()).take_while(|(recorded, now)| recorded == now).count();
        let shown = |text: &str| -> String {
            text.chars().skip(same.saturating_sub(SHOWN_BEFORE)).take(SHOWN_BEFORE + SHOWN_AFTER).collect()
        };
        format!(
            "request {number} differs in message {}: recorded `{}`, now `{}`",
            index + 1,
            shown(&recorded),
            shown(&now)
        )
    }

    /// Returns a message of the request of the exchange `at`.
    fn message(&self, at: usize, index: usize) -> Option<ChatMessage> {
        // The newest line that has the message among its new ones.
        self.exchanges.get(..=at)?.iter().rev().find_map(|exchange| {
            let exchange = self.exchange(exchange.start, exchange.bytes).ok()?;
            let index = index.checked_sub(exchange.kept)?;
            Some(exchange.messages.into_iter().nth(index))
        })?
    }
}

/// Returns the request of an exchange, which can begin as the one before.
fn fingerprint_after(before: Option<Fingerprint>, exchange: &Exchange) -> Option<Fingerprint> {
    let same = |part: fn(&Fingerprint) -> u64| before.as_ref().map(part);
    let system = exchange
        .system
        .as_ref()
        .map(|system| hash(&recorded_text(system, NO_PATH)))
        .or_else(|| same(|before| before.system))?;
    let tools = exchange
        .tools
        .as_ref()
        .map(|tools| hash(&recorded_text(tools, NO_PATH)))
        .or_else(|| same(|before| before.tools))?;
    let mut messages = before.map(|before| before.messages).unwrap_or_default();
    if messages.len() < exchange.kept {
        return None;
    }
    messages.truncate(exchange.kept);
    messages.extend(exchange.messages.iter().map(|message| hash(&comparable_text(message, NO_PATH))));
    Some(Fingerprint { purpose: exchange.purpose, system, tools, messages })
}

impl Replay {
    fn recording(&self, member: &Arc<str>) -> io::Result<Arc<Mutex<Recording>>> {
        let mut members = self.members.lock();
        if let Some(recording) = members.get(member) {
            return Ok(Arc::clone(recording));
        }
        let recording = Arc::new(Mutex::new(Recording::read(file_of(&self.folder, member))?));
        members.insert(Arc::clone(member), Arc::clone(&recording));
        Ok(recording)
    }

    fn answer(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let path = file_of(&self.folder, &request.teammate);
        let refused = |reason: String| ModelError::Final(format!("{} has no answer: {reason}", path.display()));
        let recording = self.recording(&request.teammate).map_err(|error| refused(system_error::reason(&error)))?;
        let answer = recording.lock().answer(request, &self.workspace);
        answer.map_err(refused)
    }
}

#[async_trait]
impl ModelClient for Arc<Replay> {
    fn has_server(&self) -> bool {
        false
    }

    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let replay = Self::clone(self);
        let answer = tokio::task::spawn_blocking(move || replay.answer(&request)).await;
        let answer = answer.unwrap_or_else(|_| Err(ModelError::Final("the program ends".to_owned())))?;
        listener.on_activity();
        answer.content.iter().filter_map(|block| block.as_text()).for_each(|text| listener.on_text(text));
        answer.usage.into_iter().for_each(|usage| listener.on_usage(usage));
        Ok(answer)
    }
}
