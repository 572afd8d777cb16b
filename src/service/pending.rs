//! The things that wait for the person: new mail, open questions, and the plans and reviews that only the person can answer.

use std::collections::HashSet;

use crate::domain::approval::{Request, RequestKind};
use crate::domain::message::Message;
use crate::domain::name::HUMAN;
use crate::domain::pending_questions::{Question, Questions};
use crate::domain::prompt::delivered_keys;
use crate::ports::{Delivery, StoreResult, Stores};

/// The things that wait for the person at one moment.
#[derive(Debug, Clone, Default)]
pub struct PendingForUser {
    /// New mail, without messages that bring a plan or a review.
    pub mail: Vec<Message>,
    /// True if any mail is new.
    pub has_new_mail: bool,
    /// Open questions, also those in new mail.
    pub questions: Vec<Question>,
    /// All plans and reviews without an answer, oldest first.
    pub approvals: Vec<Request>,
}

impl PendingForUser {
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
        let approvals = stores.requests.all().await?;
        // Messages that bring a plan or a review are left out: an open one is among the approvals, and an answered one needs no reading.
        let brings_approval = |delivery: &&Delivery| {
            let id = delivery.message.request_id.as_ref();
            id.is_some_and(|id| {
                approvals.requests.iter().any(|request| request.id == *id && request.kind != RequestKind::Shutdown)
            })
        };
        let has_new_mail = !new.is_empty();
        let open_approvals = approvals.open_approvals().cloned().collect();
        let mail =
            new.iter().filter(|delivery| !brings_approval(delivery)).map(|delivery| delivery.message.clone()).collect();
        Ok(Self { mail, has_new_mail, questions: questions.waiting().to_vec(), approvals: open_approvals })
    }

    /// Returns the number of questions, plans and reviews that wait for the person's answer.
    pub fn answers_needed(&self) -> usize {
        self.questions.len() + self.approvals_for_you().count()
    }

    /// Returns the plans and reviews that only the person can answer.
    pub fn approvals_for_you(&self) -> impl Iterator<Item = &Request> {
        self.approvals.iter().filter(|request| request.to == HUMAN)
    }
}

/// Returns the mail whose keys are not among the delivered ones.
pub fn new_mail(mail: Vec<Delivery>, delivered: &HashSet<String>) -> Vec<Delivery> {
    mail.into_iter().filter(|delivery| !delivered.contains(&delivery.key)).collect()
}
