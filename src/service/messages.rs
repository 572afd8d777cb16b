//! Sends messages between members, the lead and the person. Every message goes through [`Outbox`].

use super::RecordEvent;
use crate::domain::agent::transcript::{Record, TranscriptEntry};
use crate::domain::log::event::EventKind;
use crate::domain::log::request_log::RequestSnapshot;
use crate::domain::log::snapshot::bounded_text;
use crate::domain::task::failure_summary;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::{ALL, HUMAN, LEAD, Name, SYSTEM};
use crate::domain::team::pending_questions::{self, Questions};
use crate::domain::text::headline;
use crate::domain::time::UnixMs;
use crate::ports::{StoreError, StoreResult, Stores};

/// The longest part of a message in an event, in characters.
pub(super) const ABOUT_CHARS_MAX: usize = 120;

/// The reason why a member's message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The recipient is the sender.
    #[error("a member cannot send a message to itself; use `todo` for notes")]
    ToSelf,
    /// The name stands for several recipients or for Brigade.
    #[error("`{name}` has no inbox; {hint}")]
    NoInbox {
        /// The name, as the sender wrote it.
        name: String,
        /// The way to reach a recipient.
        hint: &'static str,
    },
    /// The mailbox refused the message or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A member that sends messages.
#[derive(Debug, Clone)]
pub struct Sender<'a> {
    /// Its name.
    pub name: &'a Name,
    /// True for the lead.
    pub is_lead: bool,
    /// All members of the team.
    pub members: Vec<Name>,
}

impl Sender<'_> {
    /// Returns the recipient's name as the team spells it. The mailbox refuses names without an inbox.
    fn recipient(&self, to: &str) -> Result<String, SendError> {
        let to = to.trim().trim_start_matches('@');
        if self.name.is_same(to) {
            return Err(SendError::ToSelf);
        }
        let hint = if to.eq_ignore_ascii_case(SYSTEM) {
            Some("send to `lead` or to `human`")
        } else if !to.eq_ignore_ascii_case(ALL) {
            None
        } else if self.is_lead {
            Some("use `broadcast`")
        } else {
            Some("send to each member by name, or to `lead`")
        };
        if let Some(hint) = hint {
            return Err(SendError::NoInbox { name: to.to_owned(), hint });
        }
        let member = self.members.iter().find(|member| member.is_same(to));
        Ok(member.map_or_else(|| to.to_owned(), ToString::to_string))
    }
}

/// A message that is in its recipient's inbox.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct SentMessage {
    /// The recipient.
    pub to: String,
    /// The message's id.
    pub id: String,
}

/// Sends messages at one time.
pub struct Outbox<'a> {
    /// The stores of the workspace.
    pub stores: &'a Stores,
    /// The time of its messages.
    pub now: UnixMs,
    /// Records the event of each message; `None` for a command outside of the team, which writes no event log.
    pub events: Option<RecordEvent>,
}

impl Outbox<'_> {
    /// Sends a member's text to another member or to the person.
    ///
    /// # Errors
    /// [`SendError`]: nothing was sent.
    pub async fn send_from_member(
        &self,
        sender: &Sender<'_>,
        to: &str,
        kind: MessageType,
        text: &str,
    ) -> Result<(), SendError> {
        let to = sender.recipient(to)?;
        let message = Message::new(kind, sender.name.as_str(), text, self.now);
        self.send(&to, message).await?;
        Ok(())
    }

    /// Sends the person's text to `to`, a name or `all`, and records it as the answer to open questions. `members` are the
    /// recipients of `all`; those without an inbox are left out, unless none has one.
    ///
    /// # Errors
    /// The mailbox refuses a recipient. Recipients before it have got the message.
    pub async fn send_from_person(&self, to: &str, members: &[Name], text: &str) -> StoreResult<Vec<SentMessage>> {
        let (kind, recipients) = if to.eq_ignore_ascii_case(ALL) {
            (MessageType::Broadcast, members.iter().map(Name::as_str).collect())
        } else {
            (MessageType::Message, vec![to])
        };
        let mut sent = Vec::with_capacity(recipients.len());
        let mut unknown = None;
        for recipient in recipients {
            let message = Message::new(kind, HUMAN, text, self.now);
            match self.send(recipient, message).await {
                Err(error @ StoreError::UnknownRecipient { .. }) => unknown = Some(error),
                id => sent.push(SentMessage { to: recipient.to_owned(), id: id? }),
            }
        }
        if let Some(error) = unknown.filter(|_| sent.is_empty()) {
            return Err(error);
        }
        let answer = TranscriptEntry::Message(pending_questions::record_of_message(to, text));
        // The message is sent already, so an error here is only a warning.
        if let Err(error) =
            self.stores.transcripts.append(HUMAN, &[Record { at: self.now, entry: answer }], false).await
        {
            tracing::warn!("cannot record the message as an answer: {error}");
        }
        Ok(sent)
    }

    /// Sends a teammate the person's request to stop: after its turn, or at once. Returns the message's id.
    ///
    /// # Errors
    /// The mailbox refuses the message or fails.
    pub async fn send_stop_request(&self, teammate: &str, is_immediate: bool) -> StoreResult<String> {
        let text = if is_immediate { "Stop now; your turn was broken off." } else { "Stop after this turn." };
        let message = Message {
            request_id: Some(format!("stop-{}", self.now.0)),
            now: is_immediate.then_some(true),
            ..Message::new(MessageType::ShutdownRequest, HUMAN, text, self.now)
        };
        self.send(teammate, message).await
    }

    /// Sends the person a text of a member.
    ///
    /// # Errors
    /// The mailbox refuses the message or fails.
    pub async fn ask_person(&self, member: &str, text: String) -> StoreResult<String> {
        self.send(HUMAN, Message::new(MessageType::Message, member, text, self.now)).await
    }

    /// Sends the lead a notice of the harness. It causes no event of its own, because its cause has one.
    ///
    /// # Errors
    /// The mailbox refuses the message or fails.
    pub async fn notify_lead(&self, message: Message) -> StoreResult<()> {
        self.stores.mailbox.send(LEAD, message).await?;
        Ok(())
    }

    /// Sends the lead a notice that an attempt of a task failed. Subject and reason are cut, because other programs write them without
    /// a limit.
    ///
    /// # Errors
    /// The mailbox refuses the message or fails.
    pub async fn notify_lead_of_failure(&self, task: &Task, reason: &str) -> StoreResult<()> {
        let verb = if task.status == TaskStatus::Failed { " has failed" } else { "" };
        let subject = bounded_text(&task.subject);
        let reason = failure_summary::stored_text(reason.trim_end_matches('.'));
        let text = format!("Task {} ({subject}){verb}: {reason}.", task.id);
        self.notify_lead(Message::new(MessageType::TaskFailed, SYSTEM, text, self.now)).await
    }

    /// Sends a spawned teammate its instructions from the lead. Without instructions it gets no message.
    ///
    /// # Errors
    /// The mailbox refuses the message or fails.
    pub async fn send_instructions(&self, teammate: &Name, prompt: &str) -> StoreResult<()> {
        if !prompt.trim().is_empty() {
            self.send(teammate.as_str(), Message::new(MessageType::Message, LEAD, prompt, self.now)).await?;
        }
        Ok(())
    }

    /// Sends the person a message that reached a lead without a model.
    ///
    /// # Errors
    /// The mailbox refuses the message or fails.
    pub async fn forward_to_person(&self, message: &Message) -> StoreResult<String> {
        self.send(HUMAN, Message { id: None, ..message.clone() }).await
    }

    /// Sends a message and records its event. Returns the message's id.
    ///
    /// # Errors
    /// There is no such recipient, the inbox is full, the message is too long, or a store fails.
    pub(super) async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        let about = headline(&message.content, ABOUT_CHARS_MAX);
        self.send_about(to, message, about, None).await
    }

    /// Returns the name of an agent of another program in the roster.
    async fn outside_agent(&self, name: &str) -> Option<Name> {
        let roster = self.stores.roster.read().await.ok()?;
        let row = roster.into_iter().find(|row| row.is_outside() && row.name.eq_ignore_ascii_case(name))?;
        Name::new(&row.name).ok().filter(|name| !name.is_reserved())
    }

    /// As [`Self::send`]. `about` describes the message in its event, and `task` is the task of the request that it brings.
    pub(super) async fn send_about(
        &self,
        to: &str,
        message: Message,
        about: String,
        task: Option<TaskId>,
    ) -> StoreResult<String> {
        let id = self.deliver(to, message.clone()).await?;
        if let Some(record) = &self.events {
            let from = message.from.clone();
            // After the team has stopped, the event is lost. The message is in the inbox.
            record(EventKind::MessageSent { from, to: to.to_owned(), message: id.clone(), about, task });
            if to == HUMAN && Questions::is_question_to_person(&message) {
                record(EventKind::RequestMade(RequestSnapshot::question(&id, &message, self.now)));
            }
        }
        Ok(id)
    }

    /// As [`Self::send`], without an event.
    pub(super) async fn deliver(&self, to: &str, message: Message) -> StoreResult<String> {
        let (from, kind) = (message.from.clone(), message.kind);
        let id = match self.stores.mailbox.send(to, message.clone()).await {
            Err(error @ StoreError::UnknownRecipient { .. }) => {
                // An agent of another program may have joined since the launch.
                let Some(name) = self.outside_agent(to).await else { return Err(error) };
                self.stores.mailbox.add_inboxes(std::slice::from_ref(&name)).await?;
                self.stores.mailbox.send(name.as_str(), message).await?
            }
            sent => sent?,
        };
        tracing::debug!(%from, %to, kind = kind.as_str(), "message sent");
        Ok(id)
    }
}
