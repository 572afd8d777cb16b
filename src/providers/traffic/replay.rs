//! Answers from recorded traffic.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
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

/// The recording of a member: its requests with their answers.
struct Recording(Vec<RecordedExchange>);

/// A line of a recording.
struct RecordedExchange {
    request: ComparableRequest,
    answer: String,
    is_used: bool,
}

/// The texts by which requests are compared.
#[derive(Clone, PartialEq, Eq)]
struct ComparableRequest {
    purpose: RequestPurpose,
    system: Arc<str>,
    tools: Arc<str>,
    messages: Vec<Arc<str>>,
}

impl ComparableRequest {
    fn of(request: &ModelRequest, workspace: &str) -> Self {
        Self {
            purpose: request.purpose,
            system: recorded_text(&request.system, workspace).into(),
            tools: recorded_text(&request.tools, workspace).into(),
            messages: request.messages.iter().map(|message| comparable_text(message, workspace).into()).collect(),
        }
    }

    /// Returns the request of an exchange, which can begin as the one before.
    fn after(before: Option<Self>, exchange: &Exchange) -> Option<Self> {
        let system = exchange.system.as_ref().map(|system| recorded_text(system, NO_PATH).into());
        let tools = exchange.tools.as_ref().map(|tools| recorded_text(tools, NO_PATH).into());
        let system = system.or_else(|| before.as_ref().map(|before| Arc::clone(&before.system)))?;
        let tools = tools.or_else(|| before.as_ref().map(|before| Arc::clone(&before.tools)))?;
        let mut messages = before.map(|before| before.messages).unwrap_or_default();
        if messages.len() < exchange.kept {
            return None;
        }
        messages.truncate(exchange.kept);
        messages.extend(exchange.messages.iter().map(|message| comparable_text(message, NO_PATH).into()));
        Some(Self { purpose: exchange.purpose, system, tools, messages })
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

impl Recording {
    /// Reads the requests of a recording.
    fn read(path: &Path) -> io::Result<Self> {
        let mut exchanges = Vec::new();
        // The request of the line before. `None` after a cut line: the next complete request begins a new one.
        let mut before: Option<ComparableRequest> = None;
        reading::read_lines(path, AllowedKinds::within_folder_of(path), LIMITS, |line| {
            let exchange = serde_json::from_slice(line).ok().filter(|exchange: &Exchange| exchange.v == VERSION);
            before = exchange.as_ref().and_then(|exchange| ComparableRequest::after(before.take(), exchange));
            if let (Some(request), Some(exchange)) = (before.clone(), exchange) {
                let answer = serde_json::to_string(&exchange.answer).unwrap_or_default();
                exchanges.push(RecordedExchange { request, answer, is_used: false });
            }
            ControlFlow::<()>::Continue(())
        })?;
        Ok(Self(exchanges))
    }

    /// Returns the answer to a request.
    fn answer(&mut self, request: &ModelRequest, workspace: &str) -> Result<ModelResponse, String> {
        let wanted = ComparableRequest::of(request, workspace);
        let is_equal = |exchange: &RecordedExchange| exchange.request == wanted;
        let unused = self.0.iter().position(|exchange| !exchange.is_used && is_equal(exchange));
        // The same request again, as after a lost answer.
        let Some(found) = unused.or_else(|| self.0.iter().rposition(is_equal)) else {
            return Err(self.difference(&wanted));
        };
        self.0[found].is_used = true;
        let answer = self.0[found].answer.replace(WORKSPACE, workspace);
        serde_json::from_str(&answer).map_err(|error| error.to_string())
    }

    /// Names the first part of a request that differs from the one of the recording that begins like it.
    fn difference(&self, wanted: &ComparableRequest) -> String {
        let left = self.0.iter().enumerate().filter(|(_, exchange)| !exchange.is_used);
        let left = left.filter(|(_, exchange)| exchange.request.purpose == wanted.purpose);
        let nearest = left.rev().max_by_key(|(_, exchange)| exchange.request.common_messages(wanted));
        let Some((at, next)) = nearest else {
            return format!("all its {} requests are answered", self.0.len());
        };
        let number = at + 1;
        if next.request.system != wanted.system {
            return format!("request {number} differs in the system prompt");
        }
        if next.request.tools != wanted.tools {
            return format!("request {number} differs in the tools");
        }
        let index = next.request.common_messages(wanted);
        let [recorded, now] =
            [&next.request, wanted].map(|request| request.messages.get(index).map_or("", |text| text));
        let same = recorded.chars().zip(now.chars()).take_while(|(recorded, now)| recorded == now).count();
        let shown = |text: &str| -> String {
            text.chars().skip(same.saturating_sub(SHOWN_BEFORE)).take(SHOWN_BEFORE + SHOWN_AFTER).collect()
        };
        format!(
            "request {number} differs in message {}: recorded `{}`, now `{}`",
            index + 1,
            shown(recorded),
            shown(now)
        )
    }
}

impl Replay {
    fn recording(&self, member: &Arc<str>) -> io::Result<Arc<Mutex<Recording>>> {
        let mut members = self.members.lock();
        if let Some(recording) = members.get(member) {
            return Ok(Arc::clone(recording));
        }
        let recording = Arc::new(Mutex::new(Recording::read(&file_of(&self.folder, member))?));
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
