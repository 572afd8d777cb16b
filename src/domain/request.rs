//! Requests that wait for an answer: a plan to approve, a teammate to stop. Each is known by its id and answered once.

use serde::{Deserialize, Serialize};

use super::time::UnixMs;

/// The most requests that are remembered; of more, the oldest answered ones are forgotten.
pub const REQUESTS_MAX: usize = 500;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// That a plan is approved.
    PlanApproval,
    /// That somebody stops.
    Shutdown,
}

impl RequestKind {
    /// The words people read.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PlanApproval => "plan approval",
            Self::Shutdown => "shutdown",
        }
    }
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its id, as the messages carry it.
    pub id: String,
    /// What is asked for.
    pub kind: RequestKind,
    /// Who asks.
    pub from: String,
    /// Who is to answer.
    pub to: String,
    /// When.
    pub at: UnixMs,
    /// The answer, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Yes or no.
    pub approve: bool,
    /// Why, or what is to be changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// When.
    pub at: UnixMs,
}

/// Why a request is not recorded or not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No request of that kind has that id.
    #[error("there is no {} request `{}`; {}", kind.as_str(), id.escape_debug(), open_ones(open))]
    Unknown {
        /// The id that was given.
        id: String,
        /// The kind of request that was looked for.
        kind: RequestKind,
        /// Those of the kind that do wait for whoever asked.
        open: Vec<String>,
    },
    /// It was answered before.
    #[error("request `{id}` was answered already ({}); an answer is given once", if *approve { "approved" } else { "rejected" })]
    Answered {
        /// Which.
        id: String,
        /// How.
        approve: bool,
    },
    /// Somebody else is to answer it.
    #[error("request `{id}` is for {to} to answer")]
    NotYours {
        /// Which.
        id: String,
        /// Who is.
        to: String,
    },
    /// Too many wait.
    #[error("{REQUESTS_MAX} requests wait for an answer already; no more are taken")]
    TooMany,
}

fn open_ones(open: &[String]) -> String {
    if open.is_empty() { "none waits for you".to_owned() } else { format!("these wait for you: {}", open.join(", ")) }
}

/// All requests that are remembered, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestBook {
    /// Version of the form.
    pub v: u32,
    /// The requests.
    #[serde(default)]
    pub requests: Vec<Request>,
}

impl RequestBook {
    /// Records a request. One whose id is known is left as it is, so that recording it twice does no harm.
    ///
    /// # Errors
    /// [`RequestError::TooMany`].
    pub fn open(&mut self, request: Request) -> Result<(), RequestError> {
        if self.requests.iter().any(|known| known.id == request.id) {
            return Ok(());
        }
        if self.requests.len() >= REQUESTS_MAX {
            let answered =
                self.requests.iter().position(|known| known.answer.is_some()).ok_or(RequestError::TooMany)?;
            self.requests.remove(answered);
        }
        self.requests.push(request);
        Ok(())
    }

    /// The open request that `by` may answer.
    ///
    /// # Errors
    /// [`RequestError`]: unknown, answered, or for somebody else.
    pub fn find_open(&self, id: &str, kind: RequestKind, by: &str) -> Result<&Request, RequestError> {
        let place = self.place(id, kind, by)?;
        self.requests.get(place).ok_or(RequestError::TooMany)
    }

    /// Records the answer of `by`, and returns the request with it.
    ///
    /// # Errors
    /// As [`RequestBook::find_open`]; nothing changed then.
    pub fn answer(&mut self, id: &str, kind: RequestKind, by: &str, answer: Answer) -> Result<Request, RequestError> {
        let place = self.place(id, kind, by)?;
        let request = &mut self.requests[place];
        request.answer = Some(answer);
        Ok(request.clone())
    }

    fn place(&self, id: &str, kind: RequestKind, by: &str) -> Result<usize, RequestError> {
        let is_theirs = |request: &Request| request.to.eq_ignore_ascii_case(by);
        let Some(place) = self.requests.iter().position(|request| request.id == id && request.kind == kind) else {
            let open = self
                .requests
                .iter()
                .filter(|request| request.kind == kind && request.answer.is_none() && is_theirs(request));
            let open = open.map(|request| format!("{} (from {})", request.id, request.from)).collect();
            return Err(RequestError::Unknown { id: id.to_owned(), kind, open });
        };
        let request = &self.requests[place];
        if !is_theirs(request) {
            return Err(RequestError::NotYours { id: id.to_owned(), to: request.to.clone() });
        }
        match &request.answer {
            Some(answer) => Err(RequestError::Answered { id: id.to_owned(), approve: answer.approve }),
            None => Ok(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str) -> Request {
        let (from, to) = ("bob".to_owned(), "lead".to_owned());
        Request { id: id.to_owned(), kind: RequestKind::PlanApproval, from, to, at: UnixMs(1), answer: None }
    }

    fn answer() -> Answer {
        Answer { approve: true, text: String::new(), at: UnixMs(2) }
    }

    #[test]
    fn a_request_is_answered_once_by_whom_it_is_for() {
        let mut book = RequestBook::default();
        book.open(request("a")).unwrap();
        let plan = RequestKind::PlanApproval;
        assert!(matches!(book.answer("a", plan, "carol", answer()), Err(RequestError::NotYours { .. })));
        assert!(matches!(book.answer("a", RequestKind::Shutdown, "lead", answer()), Err(RequestError::Unknown { .. })));
        let unknown = book.answer("b", plan, "lead", answer()).unwrap_err();
        assert!(unknown.to_string().contains("a (from bob)"), "{unknown}");
        assert_eq!(book.answer("a", plan, "lead", answer()).unwrap().from, "bob");
        let again = book.answer("a", plan, "lead", answer());
        assert_eq!(again, Err(RequestError::Answered { id: "a".into(), approve: true }));
        book.open(request("a")).unwrap();
        assert!(book.requests[0].answer.is_some(), "recorded again, it is still answered");
    }

    #[test]
    fn answered_requests_make_room_and_open_ones_do_not() {
        let mut book = RequestBook::default();
        for number in 0..REQUESTS_MAX {
            book.open(request(&number.to_string())).unwrap();
        }
        assert_eq!(book.open(request("more")), Err(RequestError::TooMany));
        book.answer("7", RequestKind::PlanApproval, "lead", answer()).unwrap();
        book.open(request("more")).unwrap();
        assert_eq!(book.requests.len(), REQUESTS_MAX);
        assert!(!book.requests.iter().any(|request| request.id == "7"));
    }
}
