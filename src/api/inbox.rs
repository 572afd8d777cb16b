//! The mail of a person, a member, or an agent of another program.

use std::collections::HashSet;

use super::lead_status::LeadStatus;
use super::members::names_of_team;
use super::refusal::ApiResult;
use super::workspace::Workspace;
use crate::domain::agent::prompt::delivered_keys;
use crate::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use crate::domain::team::approval::{Approvals, Request, RequestKind};
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::{HUMAN, Name};
use crate::domain::team::pending_questions::Questions;
use crate::ports::{Delivery, StoreError, Stores};
use crate::service::pending::new_mail;
use crate::stores::workspace::OpenMode;

/// The most messages that [`last_read`] returns.
const READ_MESSAGES_MAX: usize = 20;

/// The mail that its owner has not read.
#[derive(Debug)]
pub struct UnreadMail {
    /// The owner, spelled as in the team.
    pub owner: String,
    /// The messages, in order.
    pub new: Vec<Delivery>,
    /// The keys of the messages that the owner has read.
    read_keys: HashSet<String>,
}

impl UnreadMail {
    /// Returns the mail of `name` without taking it. The first launch or message opens the inboxes of members; until then they have no
    /// mail.
    ///
    /// # Errors
    /// There is no inbox of that name, or it cannot be read.
    pub async fn peek(workspace: &Workspace, name: &str) -> ApiResult<Self> {
        let stores = workspace.stores(OpenMode::ReadOnly).await?;
        let members = members(workspace, &stores).await?;
        let member = members.iter().find(|member| member.is_same(name));
        let owner = member.map_or(name, Name::as_str);
        let deliveries = match stores.mailbox.peek(owner).await {
            Err(StoreError::UnknownRecipient { .. }) if member.is_some() => Vec::new(),
            Err(StoreError::UnknownRecipient { name, mut recipients }) => {
                let others = members.iter().map(ToString::to_string).filter(|name| !recipients.contains(name));
                let others: Vec<String> = others.collect();
                recipients.extend(others);
                return Err(StoreError::UnknownRecipient { name, recipients }.into());
            }
            mail => mail?,
        };
        Self::of(&stores, owner, deliveries).await
    }

    /// Takes the mail of `owner`, a person or an agent of another program. Until it is settled, also after a crash, it can be taken
    /// again.
    ///
    /// # Errors
    /// The inbox cannot be read or written.
    pub async fn take(workspace: &Workspace, owner: &str) -> ApiResult<Self> {
        let stores = workspace.stores(OpenMode::Write).await?;
        let mail = Self::of(&stores, owner, stores.mailbox.take(owner, &HashSet::new()).await?).await?;
        // The store keeps taken mail until no other process can write to it. This removes the mail of earlier commands.
        stores.mailbox.settle(owner, &mail.read_keys).await?;
        Ok(mail)
    }

    /// A taken message may still be in the inbox. The transcript says which messages were delivered or shown.
    async fn of(stores: &Stores, owner: &str, deliveries: Vec<Delivery>) -> ApiResult<Self> {
        let read_keys =
            if deliveries.is_empty() { HashSet::new() } else { delivered_keys(&stores.transcripts.load(owner).await?) };
        Ok(Self { owner: owner.to_owned(), new: new_mail(deliveries, &read_keys), read_keys })
    }

    /// The messages, in order.
    pub fn messages(&self) -> Vec<&Message> {
        self.new.iter().map(|delivery| &delivery.message).collect()
    }

    /// Marks the messages as read: records them in the transcript of their owner, then lets the mailbox delete them.
    ///
    /// # Errors
    /// The transcript or the inbox cannot be written. Then the messages can be taken again.
    pub async fn settle(self, workspace: &Workspace) -> ApiResult<()> {
        let stores = workspace.stores(OpenMode::Write).await?;
        let content = self.new.iter().map(|delivery| Block::text(delivery.message.to_line())).collect();
        let delivered: Vec<String> = self.new.iter().map(|delivery| delivery.key.clone()).collect();
        let all = self.read_keys.into_iter().chain(delivered.iter().cloned()).collect();
        let record = MessageRecord { delivered, ..MessageRecord::new(Role::User, content) };
        let record = Record { at: workspace.now(), entry: TranscriptEntry::Message(record) };
        stores.transcripts.append(&self.owner, &[record], true).await?;
        stores.mailbox.settle(&self.owner, &all).await?;
        Ok(())
    }
}

/// The names of the running team's members, or of those of the config's only team.
async fn members(workspace: &Workspace, stores: &Stores) -> ApiResult<Vec<Name>> {
    let team = LeadStatus::of(workspace).await?.spec(&workspace.location);
    Ok(match team {
        Some(team) => names_of_team(&team, &stores.roster.read().await?),
        None => Vec::new(),
    })
}

/// Returns the last messages that the person has read, at most twenty.
///
/// # Errors
/// The transcript cannot be read.
pub async fn last_read(workspace: &Workspace) -> ApiResult<Vec<Message>> {
    let records = workspace.stores(OpenMode::ReadOnly).await?.transcripts.load(HUMAN).await?;
    let contents = records.into_iter().filter_map(|record| match record.entry {
        TranscriptEntry::Message(message) if message.role == Role::User => Some(message.content),
        _ => None,
    });
    let text_of = |block: Block| match block {
        Block::Text { text } => Message::parse(text.as_bytes()).ok(),
        _ => None,
    };
    let mut messages: Vec<Message> = contents.flatten().filter_map(text_of).collect();
    messages.drain(..messages.len().saturating_sub(READ_MESSAGES_MAX));
    Ok(messages)
}

/// A message and the request that it makes or answers.
#[derive(Debug, Clone, Copy)]
pub struct MessageView<'a> {
    /// The message.
    pub message: &'a Message,
    /// The request with the id of the message, if it is stored.
    pub request: Option<&'a Request>,
    /// The kind of the request that the message makes; `None` if it makes none. An unknown request has the kind that the message shows.
    pub makes: Option<RequestKind>,
    /// True if it is a question to the person, and no request.
    pub is_question: bool,
}

impl<'a> MessageView<'a> {
    /// Returns the view of a message.
    pub fn of(message: &'a Message, approvals: Option<&'a Approvals>) -> Self {
        let id = message.request_id.as_ref();
        let request = approvals.zip(id).and_then(|(approvals, id)| approvals.requests.iter().find(|one| one.id == *id));
        let makes = match (request, message.kind) {
            _ if id.is_none() || message.approve.is_some() => None,
            (Some(request), _) => Some(request.kind),
            (None, MessageType::PlanApprovalRequest) => Some(RequestKind::PlanApproval),
            (None, MessageType::Message) => Some(RequestKind::Review),
            _ => None,
        };
        Self { message, request, makes, is_question: Questions::is_question_to_person(message) }
    }
}
