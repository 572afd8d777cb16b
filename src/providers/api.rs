//! The bodies of requests in all APIs, and the answers, assembled from the events of their streams.

use std::collections::HashSet;

use super::chat::assembly::ChatAssembler;
use super::compat::Compat;
use super::errors::ApiError;
use super::messages::assembly::MessageAssembler;
use super::repetition::{ITEMS_MAX, SAME_CALLS_MAX, end_of_repeated_passage};
use super::responses::assembly::ResponseAssembler;
use super::sse::SseEvent;
use super::{chat, messages, responses};
use crate::domain::team::team_spec::ApiKind;
use crate::ports::{Listener, ModelRequest, ModelResponse};

/// Returns the JSON body of a request to a server with this API and these differences.
pub fn body(api: ApiKind, request: &ModelRequest, compat: &Compat) -> Vec<u8> {
    match api {
        ApiKind::Messages => messages::body::body(request),
        ApiKind::Chat => chat::body::body(request, compat),
        ApiKind::Responses => responses::body::body(request, compat),
    }
}

/// Starts an answer of a server with this API and these differences, without content.
pub fn assembler(api: ApiKind, compat: &Compat) -> Box<dyn Assembler> {
    match api {
        ApiKind::Messages => Box::new(MessageAssembler::default()),
        ApiKind::Chat => Box::new(ChatAssembler::new(compat.tool_calls)),
        ApiKind::Responses => Box::new(ResponseAssembler::default()),
    }
}

/// Assembles an answer from the events of its stream.
pub trait Assembler: Send {
    /// Processes an event. Its text and the counters go to `listener` immediately.
    ///
    /// # Errors
    /// The server reported an error, or the event does not conform to the API. The answer cannot be completed.
    fn process_event(&mut self, event: &SseEvent, listener: &dyn Listener) -> Result<(), ProtocolError>;

    /// Returns true after the end of the answer, or if the rest is not needed.
    fn is_complete(&self) -> bool;

    /// Returns true if the answer is complete in case the stream ends here.
    fn may_end(&self) -> bool {
        self.is_complete()
    }

    /// Returns the progress of the answer.
    fn progress(&self) -> &AnswerProgress;

    /// Returns the complete answer. A call without an id, or with the id of another call, gets an id that starts with `spare_id`.
    ///
    /// # Errors
    /// The content shows that the answer was cut.
    fn finish(self: Box<Self>, spare_id: &str) -> Result<ModelResponse, ProtocolError>;
}

/// The progress of an answer in any API.
#[derive(Debug, Default)]
pub struct AnswerProgress {
    /// The bytes of content so far. Content that arrives again counts again.
    pub content_bytes: usize,
    /// True if the answer repeats a call or a passage, so that its rest is not needed.
    pub is_repeating: bool,
}

impl AnswerProgress {
    /// Counts content.
    pub fn add(&mut self, bytes: usize, listener: &dyn Listener) {
        if bytes > 0 {
            self.content_bytes += bytes;
            listener.on_bytes(bytes);
        }
    }

    /// Appends a piece of text. If the text then repeats a passage, all copies but the first are removed, because the model would imitate
    /// them.
    pub fn append(&mut self, text: &mut String, piece: &str) {
        text.push_str(piece);
        if piece.contains('\n')
            && let Some(end) = end_of_repeated_passage(text)
        {
            text.truncate(end);
            self.is_repeating = true;
        }
    }

    /// Ends the answer if its last call is one that it has made `SAME_CALLS_MAX` times, or if it has too many items.
    pub fn check_calls(&mut self, same: usize, items: usize) {
        self.is_repeating |= same >= SAME_CALLS_MAX || items >= ITEMS_MAX;
    }
}

/// Gives a call without an id, or with the id of an earlier call, the id `spare_id-index`.
pub fn make_id_unique(id: &mut String, ids: &mut HashSet<String>, spare_id: &str, index: usize) {
    if id.is_empty() || !ids.insert(id.clone()) {
        *id = format!("{spare_id}-{index}");
    }
}

/// The reason why a stream has no usable answer.
#[derive(Debug)]
pub enum ProtocolError {
    /// The server reported an error.
    Reported(Box<ApiError>),
    /// The event does not conform to the API, or the answer was cut.
    Invalid(String),
}
