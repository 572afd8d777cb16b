//! The requests in the event log. Each appears once as made, and once as answered or withdrawn, over all runs of a log.
//!
//! A run continues the list of the previous run, and is not launched if that cannot be read. Only a log that lost events, or a clock that was
//! set back between two runs, can repeat the events of a request. Readers keep requests by their id, so a repetition changes nothing.

use std::collections::{BTreeMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::event::{Event, EventKind};
use super::snapshot::bounded_text;
use crate::domain::agent::permission::PermissionCall;
use crate::domain::task::TaskId;
use crate::domain::team::approval::{ApprovalAnswer, Approvals, Request, RequestKind};
use crate::domain::team::message::Message;
use crate::domain::team::name::{HUMAN, SYSTEM};
use crate::domain::team::request_text::RequestLine;
use crate::domain::time::UnixMs;

/// Maximum number of requests in one event.
const REQUESTS_PER_EVENT_MAX: usize = 100;
/// The feedback of an answer to a question, which the mail of its author brings.
const ANSWERED_BY_MESSAGE: &str = "";

/// The kind of a request in the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskKind {
    /// A member asks the person a question by a message.
    Question,
    /// A stored request.
    #[serde(untagged)]
    Request(RequestKind),
}

impl AskKind {
    /// Returns the noun of a request that is approved or rejected; `None` for one that a message answers.
    pub fn approval_noun(self) -> Option<&'static str> {
        match self {
            Self::Question | Self::Request(RequestKind::Shutdown) => None,
            Self::Request(kind) => Some(kind.noun()),
        }
    }
}

/// A request in the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestSnapshot {
    /// Its id; of a question, the id of its message.
    pub request: String,
    /// Its kind.
    pub request_kind: AskKind,
    /// Name of the requester.
    pub from: String,
    /// Name of the responder.
    pub to: String,
    /// Time of the request.
    pub made_at: UnixMs,
    /// The task that the requester held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The attempt at that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The plan, the call or the question, in one line of limited length.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The call of a permission. Its subject is shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<PermissionCall>,
}

impl RequestSnapshot {
    /// Creates the snapshot of a request.
    pub fn of(request: &Request) -> Self {
        let about = request.about.as_ref();
        let shortened = |call: &PermissionCall| PermissionCall { subject: bounded_text(&call.subject), ..call.clone() };
        Self {
            request: request.id.clone(),
            request_kind: AskKind::Request(request.kind),
            from: request.from.clone(),
            to: request.to.clone(),
            made_at: request.at,
            task: about.map(|about| about.task),
            attempt: about.map(|about| about.attempt),
            text: bounded_text(&RequestLine::of(&request.plan).text),
            call: request.call.as_ref().map(|call| shortened(&call.call)),
        }
    }

    /// Creates the snapshot of a question to the person.
    pub fn question(id: &str, message: &Message, now: UnixMs) -> Self {
        Self {
            request: id.to_owned(),
            request_kind: AskKind::Question,
            from: message.from.clone(),
            to: HUMAN.to_owned(),
            made_at: now,
            task: None,
            attempt: None,
            text: bounded_text(&RequestLine::of(&message.content).text),
            call: None,
        }
    }

    fn answered(&self, by: &str, approved: bool, feedback: &str) -> EventKind {
        EventKind::RequestAnswered {
            by: by.to_owned(),
            to: self.from.clone(),
            request: self.request.clone(),
            request_kind: self.request_kind,
            approved,
            feedback: bounded_text(feedback),
            task: self.task,
            attempt: self.attempt,
        }
    }

    fn withdrawn(&self, reason: &str) -> EventKind {
        EventKind::RequestWithdrawn {
            request: self.request.clone(),
            request_kind: self.request_kind,
            from: self.from.clone(),
            to: self.to.clone(),
            reason: bounded_text(reason),
            task: self.task,
            attempt: self.attempt,
        }
    }

    /// Returns the event of this stored answer. Brigade withdraws a request by answering it as `system`.
    pub fn closed_by(&self, answer: &ApprovalAnswer) -> EventKind {
        match answer.by.as_str() {
            SYSTEM => self.withdrawn(&answer.text),
            by => self.answered(by, answer.approve, &answer.text),
        }
    }
}

/// The requests as a log shows them. It decides which events the log still needs.
#[derive(Debug, Clone, Default)]
pub struct RequestLog {
    /// The open requests, by id.
    open: BTreeMap<String, RequestSnapshot>,
    /// The ids of requests that the log shows as answered or withdrawn, or that were so before it began.
    closed: HashSet<String>,
}

impl RequestLog {
    /// The requests after the log of the previous run. `earlier` are its stored events, and `stored` all requests now.
    pub fn resume(earlier: &[Event], stored: &Approvals) -> Self {
        let mut log = Self::default();
        earlier.iter().for_each(|event| log.apply(&event.kind));
        let began = earlier.first().map(|event| event.at);
        for request in &stored.requests {
            let is_older = |answer: &ApprovalAnswer| {
                began.is_none_or(|began| answer.at < began) && !log.open.contains_key(&request.id)
            };
            if request.answer.as_ref().is_some_and(is_older) {
                log.closed.insert(request.id.clone());
            }
        }
        log
    }

    /// The open requests, by id.
    pub fn open(&self) -> &BTreeMap<String, RequestSnapshot> {
        &self.open
    }

    /// Returns true if the log shows this request.
    pub fn is_known(&self, id: &str) -> bool {
        self.open.contains_key(id) || self.closed.contains(id)
    }

    /// Takes an event of the log.
    pub fn apply(&mut self, event: &EventKind) {
        match event {
            EventKind::RequestMade(request) => {
                self.open.insert(request.request.clone(), request.clone());
            }
            EventKind::RequestAnswered { request, .. } | EventKind::RequestWithdrawn { request, .. } => {
                self.open.remove(request);
                self.closed.insert(request.clone());
            }
            EventKind::Requests { open, is_full_list } => {
                if *is_full_list {
                    self.open.clear();
                }
                self.open.extend(open.iter().map(|request| (request.request.clone(), request.clone())));
            }
            _ => {}
        }
    }

    /// Returns the events that have all open requests.
    pub fn row_events(&self) -> Vec<EventKind> {
        let requests: Vec<RequestSnapshot> = self.open.values().cloned().collect();
        let chunks = requests.chunks(REQUESTS_PER_EVENT_MAX).enumerate();
        chunks.map(|(index, chunk)| EventKind::Requests { open: chunk.to_vec(), is_full_list: index == 0 }).collect()
    }

    /// Returns the events that the log needs to show these requests. Oldest first.
    pub fn missing_events(&self, stored: &Approvals) -> Vec<EventKind> {
        let mut events = Vec::new();
        let mut changed = Vec::new();
        for request in stored.requests.iter().filter(|request| !self.closed.contains(&request.id)) {
            let snapshot = RequestSnapshot::of(request);
            match self.open.get(&request.id) {
                None => events.push(EventKind::RequestMade(snapshot.clone())),
                Some(known) if *known != snapshot && request.answer.is_none() => changed.push(snapshot.clone()),
                Some(_) => {}
            }
            if let Some(answer) = &request.answer {
                events.push(snapshot.closed_by(answer));
            }
        }
        let is_stored = |id: &str| stored.requests.iter().any(|request| request.id == id);
        let lost = |known: &&RequestSnapshot| known.request_kind != AskKind::Question && !is_stored(&known.request);
        events.extend(self.open.values().filter(lost).map(|known| known.withdrawn("it is not stored any more")));
        if !changed.is_empty() {
            events.push(EventKind::Requests { open: changed, is_full_list: false });
        }
        events
    }

    /// Returns the events of a message of `from` to the person: the earlier question of `from` is not open any more.
    pub fn member_wrote(&self, from: &str) -> Vec<EventKind> {
        self.questions_of(from).map(|earlier| earlier.withdrawn("its author wrote again")).collect()
    }

    /// Returns the events of a message of the person to `to`: it answers the questions of `to`.
    pub fn person_wrote(&self, to: &str) -> Vec<EventKind> {
        self.questions_of(to).map(|question| question.answered(HUMAN, true, ANSWERED_BY_MESSAGE)).collect()
    }

    fn questions_of(&self, from: &str) -> impl Iterator<Item = &RequestSnapshot> {
        let is_theirs =
            move |one: &&RequestSnapshot| one.request_kind == AskKind::Question && one.from.eq_ignore_ascii_case(from);
        self.open.values().filter(is_theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(id: &str, at: i64) -> Request {
        Request::new(id, RequestKind::PlanApproval, "bob", "lead", UnixMs(at))
    }

    fn answered(id: &str, by: &str, at: i64) -> Request {
        let (approve, text) = (true, String::new());
        let answer = ApprovalAnswer { approve, text, by: by.into(), at: UnixMs(at), for_run: false, digest: None };
        Request { answer: Some(answer), ..plan(id, at - 1) }
    }

    fn stored(requests: Vec<Request>) -> Approvals {
        Approvals { v: 1, requests }
    }

    /// The events that the log gets, each as a word and an id.
    fn record(log: &mut RequestLog, requests: Vec<Request>) -> Vec<String> {
        let events = log.missing_events(&stored(requests));
        events.iter().for_each(|event| log.apply(event));
        let word = |event: &EventKind| match event {
            EventKind::RequestMade(made) => format!("made {}", made.request),
            EventKind::RequestAnswered { request, by, .. } => format!("{by} answered {request}"),
            EventKind::RequestWithdrawn { request, .. } => format!("withdrawn {request}"),
            EventKind::Requests { open, .. } => format!("{} changed to {}", open[0].request, open[0].to),
            other => panic!("{other:?}"),
        };
        events.iter().map(word).collect()
    }

    #[test]
    fn request_is_logged_once_as_made_and_closed() {
        let mut log = RequestLog::default();
        assert_eq!(
            record(&mut log, vec![plan("a", 1), answered("b", "lead", 3)]),
            ["made a", "made b", "lead answered b"]
        );
        assert!(record(&mut log, vec![plan("a", 1), answered("b", "lead", 3)]).is_empty());
        let reassigned = Request { to: HUMAN.into(), ..plan("a", 1) };
        assert_eq!(record(&mut log, vec![reassigned]), ["a changed to human"]);
        assert_eq!(record(&mut log, vec![answered("a", SYSTEM, 5), plan("c", 6)]), ["withdrawn a", "made c"]);
        assert_eq!(record(&mut log, vec![]), ["withdrawn c"]);
        assert!(log.open().is_empty());
    }

    #[test]
    fn next_run_continues_the_list_of_requests() {
        let made = EventKind::RequestMade(RequestSnapshot::of(&plan("a", 10)));
        let earlier = [super::super::event::NewEvent::from(made).number(1, UnixMs(10))];
        let now = stored(vec![answered("old", "lead", 5), answered("a", SYSTEM, 20), answered("b", HUMAN, 21)]);
        let mut log = RequestLog::resume(&earlier, &now);
        assert_eq!(record(&mut log, now.requests), ["withdrawn a", "made b", "human answered b"]);
        // Without a log, requests that need no answer are of no interest.
        let mut log = RequestLog::resume(&[], &stored(vec![answered("b", HUMAN, 21), plan("c", 30)]));
        assert_eq!(record(&mut log, vec![answered("b", HUMAN, 21), plan("c", 30)]), ["made c"]);
    }

    #[test]
    fn last_message_decides_about_the_question() {
        let mut log = RequestLog::default();
        let take = |log: &mut RequestLog, events: Vec<EventKind>| {
            events.iter().for_each(|event| log.apply(event));
            log.open().keys().cloned().collect::<Vec<_>>()
        };
        for id in ["m1", "m2"] {
            let message = Message::new(crate::domain::team::message::MessageType::Message, "ann", "Red?", UnixMs(1));
            let mut events = log.member_wrote("ann");
            events.push(EventKind::RequestMade(RequestSnapshot::question(id, &message, UnixMs(1))));
            assert_eq!(take(&mut log, events), [id]);
        }
        let events = log.person_wrote("Ann");
        assert!(take(&mut log, events).is_empty());
        assert!(log.is_known("m2"));
    }
}
