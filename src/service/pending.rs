//! The things that wait for the person: new mail, open questions, and the plans and reviews that only the person can answer.

use std::collections::HashSet;

use super::request_mail::current_approvals;
use crate::domain::agent::prompt::delivered_keys;
use crate::domain::team::approval::{Request, RequestKind};
use crate::domain::team::message::Message;
use crate::domain::team::name::HUMAN;
use crate::domain::team::pending_questions::{Question, Questions};
use crate::domain::time::UnixMs;
use crate::ports::{Delivery, StoreResult, Stores};

/// The things that wait for the person at one moment.
#[derive(Debug, Clone, Default)]
pub struct PendingForPerson {
    /// New mail, without messages that bring a plan or a review, and without answered questions.
    pub mail: Vec<Message>,
    /// True if any mail is new.
    pub has_new_mail: bool,
    /// Open questions, also those in new mail.
    pub questions: Vec<Question>,
    /// All plans, reviews and permissions that wait for an answer, oldest first.
    pub approvals: Vec<Request>,
}

impl PendingForPerson {
    /// Reads what waits now.
    ///
    /// # Errors
    /// A store cannot be read. Mail that cannot be read is only a warning.
    pub async fn of(stores: &Stores) -> StoreResult<Self> {
        let records = stores.transcripts.load(HUMAN).await?;
        let mail = stores.mailbox.peek(HUMAN).await.unwrap_or_else(|error| {
            // `brigade inbox` reports the error to a person who reads the mail.
            tracing::warn!("your mail cannot be read: {error}");
            Vec::new()
        });
        let mut questions = Questions::of(&records);
        let new = new_mail(mail, &delivered_keys(&records));
        new.iter().for_each(|delivery| questions.record_shown(&delivery.message));
        // The time of an answer does not matter here.
        let approvals = current_approvals(stores, UnixMs::default()).await?;
        // Messages that bring a plan or a review are left out: an open one is among the approvals, and an answered one needs no reading.
        let brings_approval = |delivery: &&Delivery| {
            let id = delivery.message.request_id.as_ref();
            id.is_some_and(|id| {
                approvals.requests.iter().any(|request| request.id == *id && request.kind != RequestKind::Shutdown)
            })
        };
        let has_new_mail = !new.is_empty();
        let open_approvals = approvals.open_approvals().cloned().collect();
        let messages = new.iter().filter(|delivery| !brings_approval(delivery)).map(|delivery| &delivery.message);
        let is_unread =
            |message: &&Message| !(Questions::is_question_to_person(message) && questions.is_answered(message));
        let mail = messages.filter(is_unread).cloned().collect();
        Ok(Self { mail, has_new_mail, questions: questions.waiting().to_vec(), approvals: open_approvals })
    }

    /// Returns the number of questions, plans and reviews that wait for the person's answer.
    pub fn answers_needed(&self) -> usize {
        self.questions.len() + self.approvals_for_person().count()
    }

    /// Returns the plans and reviews that only the person can answer.
    pub fn approvals_for_person(&self) -> impl Iterator<Item = &Request> {
        self.approvals.iter().filter(|request| request.to == HUMAN)
    }
}

/// Returns the mail whose keys are not among the delivered ones.
pub fn new_mail(mail: Vec<Delivery>, delivered: &HashSet<String>) -> Vec<Delivery> {
    mail.into_iter().filter(|delivery| !delivered.contains(&delivery.key)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::agent::transcript::{Record, TranscriptEntry};
    use crate::domain::team::message::MessageType;
    use crate::domain::team::pending_questions::record_of_message;
    use crate::embed::SystemClock;
    use crate::stores::memory;

    #[tokio::test]
    async fn answered_question_is_not_unread() {
        let stores = memory::stores(Arc::new(SystemClock), tokio::sync::broadcast::channel(8).0);
        for text in ["It is done.", "Which port?"] {
            let message = Message::new(MessageType::Message, "bob", text, UnixMs(1_000));
            stores.mailbox.send(HUMAN, message).await.unwrap();
        }
        let counts = async || {
            let PendingForPerson { mail, questions, has_new_mail, .. } = PendingForPerson::of(&stores).await.unwrap();
            (mail.len(), questions.len(), has_new_mail)
        };
        assert_eq!(counts().await, (2, 1, true));
        let answer = TranscriptEntry::Message(record_of_message("bob", "80"));
        stores.transcripts.append(HUMAN, &[Record { at: UnixMs(2_000), entry: answer }], true).await.unwrap();
        assert_eq!(counts().await, (1, 0, true));
    }
}
