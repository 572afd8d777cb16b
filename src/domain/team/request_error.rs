//! Reasons why a request is not recorded or not answered.

use super::approval::{PLAN_BYTES_MAX, REQUESTS_MAX, RequestKind};
use super::request_text::Hidden;

/// Reasons why a request is not recorded or not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No request of this kind has this id.
    #[error("there is no {} request `{}`; {}", kind.noun(), id.escape_debug(), describe_open(open))]
    Unknown {
        /// The given id.
        id: String,
        /// The requested kind.
        kind: RequestKind,
        /// The open requests of this kind that the caller may answer.
        open: Vec<String>,
    },
    /// It is already answered.
    #[error("cannot answer request `{id}`: already answered ({how})")]
    AlreadyAnswered {
        /// The request.
        id: String,
        /// The decision and the responder.
        how: String,
    },
    /// Another responder is answering it now.
    #[error("cannot answer request `{id}`: {by} is answering it now")]
    BeingAnswered {
        /// The request.
        id: String,
        /// The other responder.
        by: String,
    },
    /// Its plan is too long.
    #[error("the plan is longer than {PLAN_BYTES_MAX} bytes: put details into a file and name that file")]
    TooLong,
    /// The person did not see the whole call.
    #[error("cannot approve permission `{id}`: {}", describe_not_seen(*is_other, *hidden))]
    NotSeen {
        /// The request.
        id: String,
        /// True if the given digest is that of another call.
        is_other: bool,
        /// The part of the call that its line does not show.
        hidden: Option<Hidden>,
    },
    /// Another member is the responder.
    #[error("cannot answer request `{id}`: it is for {to} to answer")]
    OtherResponder {
        /// The request.
        id: String,
        /// Its responder.
        to: String,
    },
    /// Too many requests are open.
    #[error("cannot record the request: {REQUESTS_MAX} requests are open, or their plans are too long in total")]
    TooMany,
}

fn describe_not_seen(is_other: bool, hidden: Option<Hidden>) -> String {
    let reason =
        if is_other { "the digest is that of another call" } else { "an approval of a long call needs its digest" };
    let hidden = hidden.map(|hidden| format!(", and the line about this call does not show {hidden}"));
    format!("{reason}{}", hidden.unwrap_or_default())
}

fn describe_open(open: &[String]) -> String {
    if open.is_empty() {
        "no request waits for an answer".to_owned()
    } else {
        format!("waiting for an answer: {}", open.join(", "))
    }
}
