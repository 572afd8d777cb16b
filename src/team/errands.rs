//! What a teammate does besides turns: it reads its mail, claims, gives back, answers requests to stop, tells the lead.

use std::sync::Arc;
use std::time::Duration;

use super::agent::AgentError;
use super::lodging::Arrival;
use super::teammate::{Gate, Teammate};
use crate::domain::change::{Actor, Change};
use crate::domain::event::Fact;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, LEAD, SYSTEM};
use crate::domain::phase::{Because, Event, Held, Phase};
use crate::domain::request::{Answer, Request, RequestKind};
use crate::domain::task::{Task, TaskId};
use crate::ports::{Claimant, StoreError};
use crate::tools::answers;

/// How long a teammate waits before it looks again at a store that failed.
const STORE_BACKOFF: Duration = Duration::from_secs(15);

impl Teammate {
    /// Whether it waits for work.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle { .. } | Phase::OnCall)
    }

    /// Takes in prompts and mail, as far as that may set the model to work now. Mail that cannot be read waits.
    pub(super) async fn read_inbox(&mut self) -> Result<Vec<Event>, AgentError> {
        match self.try_read_inbox().await {
            Err(AgentError::Store(error)) => {
                self.agent.shared.notes.warn(self.agent.name(), format!("cannot read its mail: {error}"));
                // One that waits already waits no longer for each look.
                if self.is_idle() && self.is_able() {
                    self.stay_away("its inbox", STORE_BACKOFF);
                    self.report();
                }
                Ok(Vec::new())
            }
            outcome => outcome,
        }
    }

    async fn try_read_inbox(&mut self) -> Result<Vec<Event>, AgentError> {
        let is_idle = self.is_idle();
        if is_idle && !self.is_able() {
            return self.heed_orders().await;
        }
        let may_act = !is_idle || self.gate.borrow().read || !self.prompts.is_empty();
        while let Some(prompt) = self.prompts.front().cloned() {
            // One that was told before a crash is not told again.
            if !self.agent.conversation.was_told_before(&prompt.text) {
                self.agent.tell(prompt.text).await?;
                self.agent.conversation.owe();
            }
            // One that cannot be recorded now is told at the next look.
            self.prompts.pop_front();
            self.prompts_taken = prompt.number;
            self.report();
        }
        if !may_act {
            return self.heed_orders().await;
        }
        let stop_asked = self.pending_shutdown.clone();
        let outcomes = self.agent.read_inbox().await?;
        let mut events = self.events_of(outcomes).await?;
        if matches!(self.phase, Phase::Waiting { .. }) && events.is_empty() {
            // A request to stop is its model's to answer; and an answer that came before it waited is in its context.
            let is_asked = self.pending_shutdown != stop_asked;
            let is_over = !is_asked && !self.awaits_answer().await;
            events.extend(is_asked.then_some(Event::Mail).or(is_over.then_some(Event::WorkEnded)));
        }
        if !is_idle {
            return Ok(events);
        }
        if !events.contains(&Event::Mail) {
            // One that does nothing has nothing to lose: the harness agrees for it, without asking a model.
            events.extend(self.agree_to_stop().await);
        }
        let is_asked = self.agent.conversation.owes_answer();
        if is_asked && !events.iter().any(|event| matches!(event, Event::Mail | Event::StopAsked)) {
            events.push(Event::Mail);
        }
        if events.contains(&Event::Mail) {
            self.forget_tasks().await?;
        }
        Ok(events)
    }

    /// Reads mail that needs no model: requests to stop, and notices. The rest stays where it is.
    async fn heed_orders(&mut self) -> Result<Vec<Event>, AgentError> {
        let waiting = self.agent.shared.stores.mailbox.peek(self.agent.name()).await?;
        let kinds = || waiting.iter().map(|delivery| delivery.message.kind);
        let has_order = kinds().any(|kind| kind == MessageType::ShutdownRequest);
        let needs_no_thought = kinds().all(MessageType::is_notice);
        if waiting.is_empty() || !(has_order || needs_no_thought) {
            return Ok(Vec::new());
        }
        let outcomes = self.agent.read_inbox().await?;
        let mut events = self.events_of(outcomes).await?;
        events.extend(self.agree_to_stop().await);
        // It stops, or its model may not be asked; what came with the order is answered by a later life.
        events.retain(|event| *event == Event::StopAsked);
        Ok(events)
    }

    /// Agrees to a request to stop that its model has not answered.
    async fn agree_to_stop(&mut self) -> Option<Event> {
        let request_id = self.pending_shutdown.take()?;
        let shared = Arc::clone(&self.agent.shared);
        let name = self.agent.name().to_owned();
        let book = shared.stores.requests.all().await.unwrap_or_default();
        let is_it = |request: &&Request| request.id == request_id && request.kind == RequestKind::Shutdown;
        let answered = book.requests.iter().find(is_it).and_then(|request| request.answer.as_ref());
        if let Some(answer) = answered {
            return answer.approve.then_some(Event::StopAsked);
        }
        let text = "Idle, so it stops.";
        let mut message = Message::new(MessageType::ShutdownResponse, &name, text, shared.clock.now());
        message.request_id = Some(request_id.clone());
        message.approve = Some(true);
        if let Err(error) = shared.stores.mailbox.send(LEAD, message).await {
            shared.notes.warn(name.clone(), format!("cannot write to the lead: {error}"));
        }
        let answer = Answer { approve: true, text: text.to_owned(), by: name.clone(), at: shared.clock.now() };
        if let Err(error) = shared.stores.requests.answer(&request_id, RequestKind::Shutdown, answer).await {
            tracing::debug!("a request to stop is not in the book: {error}");
        }
        Some(Event::StopAsked)
    }

    /// Whether a plan or work that it handed in for the task it holds waits for an answer.
    pub(super) async fn awaits_answer(&self) -> bool {
        let (name, since) = (&self.agent.spec.name, self.claimed_at);
        let book = self.agent.shared.stores.requests.all().await;
        book.is_ok_and(|book| book.open_approvals().any(|asked| name.is_same(&asked.from) && asked.at >= since))
    }

    /// Whether it was asked to approve something and has not answered, and goes on because it is reminded now. What it was reminded of
    /// before is the person's to answer.
    pub(super) async fn owes_approval(&mut self) -> Result<bool, AgentError> {
        let shared = Arc::clone(&self.agent.shared);
        let name = self.agent.spec.name.clone();
        if !self.agent.thinks() {
            return Ok(false);
        }
        let Ok(book) = shared.stores.requests.all().await else { return Ok(false) };
        let mut is_reminded = false;
        for asked in book.open_approvals().filter(|asked| name.is_same(&asked.to)) {
            let (id, from, noun) = (&asked.id, &asked.from, asked.kind.noun());
            if self.approvals_reminded.insert(id.clone()) {
                let tool = if asked.kind == RequestKind::Review { "review" } else { "plan_approval" };
                let text = format!(
                    "{from} waits for your answer to {noun} {id}: look at it, then call {tool} with request_id {id}, approve, and feedback where you reject it."
                );
                self.agent.tell(text).await?;
                is_reminded = true;
                continue;
            }
            shared.notes.warn(name.as_str(), format!("gives no answer to {noun} {id}; it is a person's to give now"));
            match answers::hand_on(&shared.stores, id, asked.kind, HUMAN, shared.clock.now()).await {
                Ok(Some(message)) => {
                    let about = format!("{noun} {id} is yours to answer");
                    shared.notes.fact(Fact::MessageSent { from: from.clone(), to: HUMAN.to_owned(), message, about });
                }
                Ok(None) => {}
                Err(error) => shared.notes.warn(HUMAN, format!("cannot be asked for an answer: {error}")),
            }
        }
        Ok(is_reminded)
    }

    /// Looks for a task, when it is idle and may.
    pub(super) async fn claim_next(&mut self) -> Result<Vec<Event>, AgentError> {
        if !self.is_idle() {
            return Ok(Vec::new());
        }
        if !self.gate.borrow().claim || !self.is_able() {
            return Ok(vec![Event::NothingFound]);
        }
        if self.prefers.is_none() && self.agent.shared.firsts.has_others(&self.agent.spec.name) {
            return Ok(vec![Event::NothingFound]);
        }
        loop {
            let former = self.prefers;
            match self.claim().await {
                Ok(Some(task)) => {
                    self.agent.shared.notes.task(&task);
                    // What it held when the process before ended it holds since it began with it.
                    let since = self.agent.conversation.worked_since(task.id).filter(|_| former == Some(task.id));
                    self.claimed_at = since.unwrap_or_else(|| self.agent.shared.clock.now());
                    match self.agent.move_in(&task).await? {
                        Arrival::In => {
                            let claimed = Event::Claimed(self.agent.begin(&task).await?);
                            // A plan that it handed in then still waits for its answer, and so does it.
                            let awaits = since.is_some() && self.awaits_answer().await;
                            return Ok([claimed].into_iter().chain(awaits.then_some(Event::AnswerAwaited)).collect());
                        }
                        Arrival::Completed | Arrival::Failed(_) => {}
                        Arrival::Refused(reason) => {
                            self.harness_failed(&reason);
                            self.report();
                            return Ok(vec![Event::NothingFound]);
                        }
                    }
                }
                Ok(None) => return Ok(vec![Event::NothingFound]),
                // A board that cannot be written is a reason to wait, not to die.
                Err(error) => {
                    self.agent.shared.notes.warn(self.agent.name(), format!("cannot claim: {error}"));
                    self.stay_away("the board", STORE_BACKOFF);
                    self.report();
                    return Ok(vec![Event::NothingFound]);
                }
            }
        }
    }

    async fn claim(&mut self) -> Result<Option<Task>, StoreError> {
        let stores = &self.agent.shared.stores;
        let claimant = Claimant {
            name: self.agent.name().to_owned(),
            capabilities: self.agent.spec.can_do(),
            worker: stores.workers.me().to_owned(),
            lease: None,
        };
        if let Some(id) = self.prefers.take() {
            let claimed = stores.board.claim(id, &claimant).await;
            if self.agent.shared.firsts.has_tried(&self.agent.spec.name) {
                // The others may claim now, and the lead tells them.
                self.agent.shared.reported.notify_one();
            }
            if let Ok(task) = claimed {
                return Ok(Some(task));
            }
        }
        stores.board.claim_next(&claimant).await
    }

    pub(super) async fn remind(&mut self) -> Result<(), AgentError> {
        let Some(held) = self.phase.held() else { return Ok(()) };
        let text = format!(
            "You still hold task {}, and nobody knows yet what came of it. If it is done, call task_update now: task_id {}, status completed, a result. If it is not, call the tool for its next step. If you cannot do it, call task_update with status failed and the reason, or pending to give it back. If you end without that, it counts as a failed attempt.",
            held.task, held.task.0
        );
        self.agent.tell(text).await
    }

    pub(super) async fn tell_claim_lost(&mut self) -> Result<(), AgentError> {
        self.reins.hold(None);
        let task = match self.lost.take() {
            Some(id) => self.agent.shared.stores.board.get(id).await.ok(),
            None => None,
        };
        let what = match &task {
            Some(task) => {
                let owner = task.owner.as_ref().map_or_else(String::new, |owner| format!(", {owner}"));
                format!("Task {} is not yours any more ({}{owner})", task.id, task.status)
            }
            None => "The task you worked on is not yours any more".to_owned(),
        };
        self.agent.tell(format!("{what}: somebody took it over or changed it. Stop working on it.")).await
    }

    pub(super) async fn release(&mut self, held: Held, because: Because) -> Result<(), AgentError> {
        let shared = Arc::clone(&self.agent.shared);
        let trouble = self.trouble.as_str();
        let reason = match because {
            Because::Unfinished => "its teammate ended its work twice without saying what came of it".to_owned(),
            Because::ModelFailed => format!("the model of its teammate: {trouble}"),
            Because::HarnessFailed => format!("what its teammate works with failed: {trouble}"),
            Because::CutOff => trouble.to_owned(),
            Because::Stopping if shared.purse.spent().is_some() => "the budget is spent".to_owned(),
            Because::Stopping if *self.gate.borrow() == Gate::default() => "the team stops".to_owned(),
            Because::Stopping => format!("{} stops", self.agent.name()),
        };
        let change = Change::Release { reason: reason.clone(), counts: because.counts() };
        let by = Actor::holder(self.agent.name(), held.attempt);
        match shared.stores.board.change(held.task, change, &by).await {
            Ok(task) => {
                shared.notes.task(&task);
                if because.counts() {
                    let text = format!("Task {} ({}): {reason}.", task.id, task.subject);
                    self.tell_lead(MessageType::TaskFailed, text).await;
                }
            }
            // It was somebody else's already.
            Err(StoreError::Refused(_) | StoreError::NoTask(_) | StoreError::Spoiled { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.reins.hold(None);
        Ok(())
    }

    pub(super) async fn tell_lead_of_model(&self, reason: &str) {
        if self.agent.name() != LEAD {
            let gave_back = if self.phase.held().is_some() { " I gave back what I held and wait." } else { " I wait." };
            self.tell_lead(MessageType::Message, format!("My model gave no answer: {reason}.{gave_back}")).await;
        }
    }

    /// Tells the lead; that its inbox is full or the disk is must not end a teammate.
    async fn tell_lead(&self, kind: MessageType, text: String) {
        let shared = &self.agent.shared;
        let from = if kind == MessageType::TaskFailed { SYSTEM } else { self.agent.name() };
        let message = Message::new(kind, from, text, shared.clock.now());
        if let Err(error) = shared.stores.mailbox.send(LEAD, message).await {
            shared.notes.warn(self.agent.name(), format!("cannot write to the lead: {error}"));
        }
    }

    pub(super) async fn note_task(&self, id: TaskId) {
        if let Ok(task) = self.agent.shared.stores.board.get(id).await {
            self.agent.shared.notes.task(&task);
        }
    }
}
