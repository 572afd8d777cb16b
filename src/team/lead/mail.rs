//! The mail that waits for members, and the mail of a `runbook` lead, which the lead's loop reads itself.

use std::collections::HashSet;

use crate::agents::AgentServices;
use crate::agents::conversation::Conversation;
use crate::agents::mail::request_of;
use crate::domain::agent::prompt::mail_record;
use crate::domain::log::event::EventKind;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::{HUMAN, LEAD, Name};
use crate::ports::StoreResult;
use crate::team::running_member::RunningMember;
use crate::team::supervisor::Supervisor;
use crate::team::teammate::TeammateCommand;

/// The mail at the last poll.
pub(super) struct MailWatch {
    waiting: Vec<WaitingMail>,
    /// Members that were woken for their mail since the last poll.
    woken: HashSet<Name>,
    /// The transcript of a `runbook` lead's mail.
    runbook_lead: Option<Conversation>,
}

/// The waiting mail of one recipient.
struct WaitingMail {
    to: String,
    effect: MailEffect,
}

/// The effect of waiting mail on its recipient.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MailEffect {
    StartsTurn,
    /// The recipient reads it with its next other work.
    Waits,
    /// It keeps no session open. Its recipient reports the reason, and the session's end the recipient.
    Unreadable,
}

impl MailWatch {
    /// Creates a watch that found no mail yet. A `runbook` lead keeps its mail in `runbook_lead`.
    pub fn new(runbook_lead: Option<Conversation>) -> Self {
        Self { waiting: Vec::new(), woken: HashSet::new(), runbook_lead }
    }

    /// Returns true if the last poll found no mail.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Finds waiting mail, and whether it would start a turn. A `runbook` lead's mail is read here.
    pub async fn poll(&mut self, services: &AgentServices, members: &mut Supervisor) {
        let recipients = match services.stores.mailbox.recipients_with_mail().await {
            Ok(recipients) => recipients,
            Err(error) => return tracing::warn!("cannot look for mail: {error}"),
        };
        if recipients.iter().any(|to| to == LEAD)
            && let Err(error) = self.read_as_runbook_lead(services).await
        {
            services.events.warn(LEAD, format!("cannot read its mail: {error}"));
        }
        self.waiting.clear();
        for to in recipients {
            // The person and agents of other programs read their own mail.
            let Some(member) = members.by_name.values_mut().find(|member| member.spec.name.is_same(&to)) else {
                continue;
            };
            let may_read = member.is_idle() || member.is_busy() || member.has_ended_idle() || to == LEAD;
            let effect = if may_read { check_mail_of(services, member).await } else { MailEffect::Waits };
            self.waiting.push(WaitingMail { to, effect });
        }
    }

    /// Returns the teammates that would act on their waiting mail.
    pub fn members_with_mail<'a>(&'a self, members: &'a Supervisor) -> impl Iterator<Item = &'a str> {
        let members = members.teammates().filter(|member| member.is_usable() && self.has_mail_to_answer(member));
        members.map(|member| member.spec.name.as_str())
    }

    /// Returns the members whose mail could not be read at the last poll.
    pub fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.waiting.iter().filter(|mail| mail.effect == MailEffect::Unreadable).map(|mail| mail.to.as_str())
    }

    /// Returns true if this member has mail to act on, or an unanswered message.
    pub fn has_mail_to_answer(&self, member: &RunningMember) -> bool {
        let starts_its_turn =
            |mail: &WaitingMail| mail.effect == MailEffect::StartsTurn && member.spec.name.is_same(&mail.to);
        // In this order: a report first shows the message in the status.
        member.progress.has_new_message()
            || member.status.borrow().has_unanswered
            || self.waiting.iter().any(starts_its_turn)
    }

    /// Wakes members that wait and have mail, or an answer to give. A member is woken once for each poll.
    pub fn wake(&mut self, members: &Supervisor) {
        let work_gates = members.work_gates();
        for member in members.by_name.values().filter(|member| member.is_idle() || member.waits_for_approval()) {
            let name = &member.spec.name;
            let has_own_mail = self.waiting.iter().any(|mail| name.is_same(&mail.to));
            let may_answer = work_gates.may_read(name.as_str()) && member.is_ready();
            let is_answer_due = may_answer && member.status.borrow().has_unanswered;
            if (has_own_mail || is_answer_due) && self.woken.insert(name.clone()) {
                member.commands.send(TeammateCommand::Poll);
            }
        }
    }

    /// Lets [`Self::wake`] wake all members again.
    pub fn forget_wakes(&mut self) {
        self.woken.clear();
    }

    /// Lets [`Self::wake`] wake the recipient of new mail again.
    pub fn forget_wake_of(&mut self, to: &str) {
        self.woken.retain(|name| !name.is_same(to));
    }

    /// Records mail for a `runbook` lead in its transcript and reports its delivery.
    async fn read_as_runbook_lead(&mut self, services: &AgentServices) -> StoreResult<()> {
        let Some(conversation) = &mut self.runbook_lead else { return Ok(()) };
        let mailbox = &services.stores.mailbox;
        let deliveries = mailbox.take(LEAD, conversation.delivered_keys()).await?;
        if !deliveries.is_empty() {
            let messages: Vec<_> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
            for message in &messages {
                record_plan(services, message).await;
            }
            let keys = deliveries.iter().map(|delivery| delivery.key.clone()).collect();
            conversation.record(mail_record(&messages, keys)).await?;
            for delivery in deliveries {
                if delivery.message.kind == MessageType::PlanApprovalRequest {
                    services.outbox().forward_to_person(&delivery.message).await?;
                }
                services.events.record(EventKind::MessageDelivered {
                    to: LEAD.to_owned(),
                    from: delivery.message.from,
                    message: delivery.key,
                });
            }
        }
        mailbox.settle(LEAD, conversation.synced_keys().await?).await
    }
}

/// Returns the effect of a member's mail. A working member reads its mail anyway, and is interrupted only to stop now. People see a
/// person's stop request before the member reads it.
async fn check_mail_of(services: &AgentServices, member: &mut RunningMember) -> MailEffect {
    let Ok(waiting) = services.stores.mailbox.peek(member.spec.name.as_str()).await else {
        return MailEffect::Unreadable;
    };
    let messages = || waiting.iter().map(|delivery| &delivery.message);
    if !member.is_busy() {
        let starts_turn = |message: &Message| !message.kind.is_notice() && message.kind != MessageType::ShutdownRequest;
        return if messages().any(starts_turn) { MailEffect::StartsTurn } else { MailEffect::Waits };
    }
    let launched_at = services.launched_at.as_seconds();
    let is_stop_request = |message: &&Message| {
        message.kind == MessageType::ShutdownRequest && message.from == HUMAN && message.timestamp >= launched_at
    };
    if !member.has_stop_request
        && let Some(request) = messages().find(is_stop_request)
    {
        member.has_stop_request = true;
        let teammate = member.spec.name.to_string();
        let now = request.is_immediate_shutdown();
        services.events.record(EventKind::StopRequested { teammate, now });
    }
    if messages().any(Message::is_immediate_shutdown) {
        member.commands.send(TeammateCommand::ReadInbox);
    }
    MailEffect::Waits
}

/// Records the plan of another program as a request to the person, because a `runbook` lead answers no plans. The record is written
/// before the mail counts as read.
async fn record_plan(services: &AgentServices, plan: &Message) {
    if plan.kind == MessageType::PlanApprovalRequest
        && let Some(request) = request_of(plan, RequestKind::PlanApproval, HUMAN, services.clock.now())
        && let Err(error) = services.stores.requests.record(request).await
    {
        services.events.warn(LEAD, format!("cannot record a plan of {}: {error}", plan.from));
    }
}
