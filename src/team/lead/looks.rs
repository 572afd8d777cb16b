//! What the lead looks at: the board, the mail, the shared state, the disk, the workers. Hints say when; the poll is the guarantee.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{Changes, Lead};
use crate::domain::event::Fact;
use crate::domain::graph::TaskLookup;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, LEAD, Name, SYSTEM};
use crate::domain::request::{Request, RequestKind};
use crate::domain::state::Mode;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::ports::LostClaims;
use crate::team::members::Member;
use crate::team::teammate::Control;
use crate::tools::answers;

impl Lead {
    /// Looks at everything: the guarantee behind the hints.
    pub(super) async fn poll(&mut self) {
        self.state.last_poll = Instant::now();
        self.state.polls = self.state.polls.wrapping_add(1);
        self.members.by_name.values_mut().for_each(Member::forget_nudge);
        self.state.told_of_mail.clear();
        self.look_at_tenure().await;
        self.write_end().await;
        self.reclaim().await;
        self.shared.room.look();
        self.look_at_state().await;
        self.look_at_board().await;
        self.tell_vanished();
        self.take_back_unheld().await;
        self.look_at_mail().await;
        self.look_at_approvals().await;
    }

    pub(super) async fn look_at(&mut self, changes: Changes) {
        if changes.everything {
            return self.poll().await;
        }
        if changes.board {
            self.look_at_board().await;
        }
        if changes.state {
            self.look_at_state().await;
        }
        if !changes.mail.is_empty() {
            let is_new = |to: &String| !changes.mail.iter().any(|mail| mail.eq_ignore_ascii_case(to));
            self.state.told_of_mail.retain(|name| is_new(&name.to_string()));
            self.look_at_mail().await;
            // They and their answers come as mail.
            self.look_at_approvals().await;
        }
    }

    /// Which plans and reviews wait for an answer, to say so.
    async fn look_at_approvals(&mut self) {
        match self.shared.stores.requests.all().await {
            Ok(book) => self.state.approvals = book.open_approvals().cloned().collect(),
            Err(error) => return tracing::warn!("cannot look at the requests: {error}"),
        }
        self.withdraw_what_is_over().await;
        self.hand_on_reviews().await;
    }

    /// Takes back reviews of tasks that are completed, given up or gone: nobody waits for them.
    async fn withdraw_what_is_over(&mut self) {
        let is_over = |asked: &&Request| {
            let is_review = asked.kind == RequestKind::Review;
            asked.about.as_ref().filter(|_| is_review).is_some_and(|about| {
                let status = self.view.task(about.task).map(|task| task.status);
                matches!(status, Some(TaskStatus::Completed | TaskStatus::Failed))
                    || (status.is_none() && !self.view.is_spoiled(about.task))
            })
        };
        let over: Vec<Request> = self.state.approvals.iter().filter(is_over).cloned().collect();
        for asked in &over {
            let now = self.shared.clock.now();
            if let Err(error) =
                self.shared.stores.requests.withdraw(&asked.id, asked.kind, "its task is over", now).await
            {
                tracing::warn!("a request cannot be withdrawn: {error}");
            }
        }
        self.state.approvals.retain(|asked| !over.contains(asked));
    }

    /// Has somebody else do the reviews of who is gone.
    async fn hand_on_reviews(&mut self) {
        let Some(what) = self.shared.review.clone() else { return };
        let is_there = |to: &str| {
            let mut members = self.members.by_name.values();
            to == HUMAN || members.any(|member| member.spec.name.is_same(to) && member.is_usable())
        };
        let reviews = self.state.approvals.iter().filter(|asked| asked.kind == RequestKind::Review);
        let left: Vec<Request> = reviews.filter(|asked| !is_there(&asked.to)).cloned().collect();
        for review in left {
            let Ok(author) = Name::new(&review.from) else { continue };
            // Whom the rule names may be just the one who is gone.
            let to = Some(self.members.control.reviewer(&author, &what)).filter(|to| is_there(to));
            let to = to.unwrap_or_else(|| HUMAN.to_owned());
            match answers::hand_on(&self.shared.stores, &review.id, review.kind, &to, self.shared.clock.now()).await {
                Ok(Some(message)) => {
                    let about = format!("review {} is {to}'s now: {} is not there", review.id, review.to);
                    self.shared.notes.fact(Fact::MessageSent { from: review.from, to, message, about });
                }
                Ok(None) => {}
                Err(error) => self.shared.notes.warn(to, format!("cannot be asked for a review: {error}")),
            }
        }
    }

    /// Whose mail waits, and whether it would set a model to work. A lead that does not think reads its own by rule.
    pub(super) async fn look_at_mail(&mut self) {
        let waiting = match self.shared.stores.mailbox.waiting().await {
            Ok(waiting) => waiting,
            Err(error) => return tracing::warn!("cannot look at the mail: {error}"),
        };
        if waiting.iter().any(|to| to == LEAD)
            && let Err(error) = self.session.read_by_rule(&self.shared).await
        {
            self.shared.notes.warn(LEAD, format!("cannot read its mail: {error}"));
        }
        self.note_stops(&waiting).await;
        let mut asks = Vec::with_capacity(waiting.len());
        let mut unreadable = Vec::new();
        for to in waiting {
            let member = self.members.by_name.values().find(|member| member.spec.name.is_same(&to));
            let sets_to_work = match member {
                Some(member) if member.is_idle() || member.works() => self.look_at_mail_of(member).await,
                _ => Some(false),
            };
            // What cannot be read keeps no session open; who has it says what is wrong, and the session's end whose it is.
            if sets_to_work.is_none() {
                unreadable.push(to.clone());
            }
            asks.push((to, sets_to_work.unwrap_or(false)));
        }
        (self.state.mail_waiting, self.state.mail_unreadable) = (asks, unreadable);
    }

    /// Takes in whom a person asks to stop who works: each reads that after its turn, and people see until then that it was heard.
    async fn note_stops(&mut self, waiting: &[String]) {
        let launched_at = self.shared.launched_at.as_seconds();
        let is_asked = |message: &Message| {
            message.kind == MessageType::ShutdownRequest && message.from == HUMAN && message.timestamp >= launched_at
        };
        for member in self.members.by_name.values_mut().filter(|member| member.works() && !member.is_to_stop) {
            let name = &member.spec.name;
            if !waiting.iter().any(|to| name.is_same(to)) {
                continue;
            }
            // What cannot be read is named by who reads it.
            let mail = self.shared.stores.mailbox.peek(name.as_str()).await.unwrap_or_default();
            if let Some(asked) = mail.iter().map(|delivery| &delivery.message).find(|message| is_asked(message)) {
                member.is_to_stop = true;
                self.shared.notes.fact(Fact::StopAsked { teammate: name.to_string(), now: asked.stops_now() });
            }
        }
    }

    /// Whether its mail would set it to work, were it told of it. Who works reads its mail anyway, but for an order that does not wait
    /// for that. `None` where it cannot be read.
    async fn look_at_mail_of(&self, member: &Member) -> Option<bool> {
        let waiting = self.shared.stores.mailbox.peek(member.spec.name.as_str()).await.ok()?;
        let mut messages = waiting.iter().map(|delivery| &delivery.message);
        if member.works() && messages.clone().any(Message::stops_now) {
            member.tell(Control::ReadNow);
        }
        let sets_to_work =
            |message: &Message| !message.kind.is_notice() && message.kind != MessageType::ShutdownRequest;
        Some(member.is_idle() && messages.any(sets_to_work))
    }

    /// Takes back the claims of workers that are gone, and leases that ran out.
    async fn reclaim(&mut self) {
        let live = match crate::team::who_lives(&self.shared.stores).await {
            Ok(live) => live,
            Err(error) => return tracing::warn!("cannot look at the workers: {error}"),
        };
        let reason = "its worker is gone".to_owned();
        // This worker lives on, so another's death counts against the task it held.
        let spared = self.leases_that_run();
        let lost = LostClaims { live_workers: Some(live), claims: Vec::new(), spared, counts: true, reason };
        self.take_back(lost).await;
    }

    /// The leases of claims by command that have not lasted as long as they had left when they were first seen, whatever the clock says:
    /// one that was set forward ends none.
    fn leases_that_run(&mut self) -> Vec<(TaskId, u32)> {
        let now = self.shared.clock.now();
        let lease = |task: &std::sync::Arc<Task>| {
            let expires = task.claim.as_ref().filter(|_| task.status == TaskStatus::InProgress)?.expires?;
            let left = Duration::from_millis(u64::try_from(expires.0.saturating_sub(now.0)).unwrap_or(0));
            Some(((task.id, task.attempt, expires), left))
        };
        let leases: BTreeMap<_, _> = self.view.tasks.values().filter_map(lease).collect();
        self.state.leases.retain(|lease, _| leases.contains_key(lease));
        for (lease, left) in leases {
            self.state.leases.entry(lease).or_insert_with(|| Instant::now() + left);
        }
        let runs = self.state.leases.iter().filter(|(_, until)| **until > Instant::now());
        runs.map(|((task, attempt, _), _)| (*task, *attempt)).collect()
    }

    /// Takes back claims of this worker that no member of it holds: their holder was ended just as it claimed. A claim that
    /// is being made looks the same for a moment, so it must look so for a while.
    async fn take_back_unheld(&mut self) {
        let me = self.shared.stores.workers.me();
        let held: HashSet<(TaskId, u32)> = self
            .members
            .by_name
            .values()
            .filter_map(|member| member.progress.held())
            .map(|held| (held.task, held.attempt))
            .collect();
        let is_mine = |task: &&std::sync::Arc<Task>| {
            task.status == TaskStatus::InProgress && task.claim.as_ref().is_some_and(|claim| claim.worker == me)
        };
        let claims = self.view.tasks.values().filter(is_mine).map(|task| (task.id, task.attempt));
        let unheld: Vec<(TaskId, u32)> = claims.filter(|claim| !held.contains(claim)).collect();
        self.state.unheld.retain(|claim, _| unheld.contains(claim));
        for claim in &unheld {
            self.state.unheld.entry(*claim).or_insert_with(Instant::now);
        }
        let is_old = |since: &Instant| since.elapsed() >= self.spec.limits.poll_interval;
        let claims: Vec<_> =
            self.state.unheld.iter().filter(|(_, since)| is_old(since)).map(|(claim, _)| *claim).collect();
        if !claims.is_empty() {
            let reason = "its teammate was ended just as it claimed it".to_owned();
            self.take_back(LostClaims { claims, reason, ..LostClaims::default() }).await;
        }
    }

    pub(super) async fn take_back(&mut self, lost: LostClaims) {
        let reclaimed = match self.shared.stores.board.reclaim(&lost).await {
            Ok(reclaimed) => reclaimed,
            Err(error) => return self.shared.notes.warn("board", format!("cannot take back claims: {error}")),
        };
        for claim in reclaimed {
            let (task, attempt) = (claim.task.id, claim.task.attempt);
            self.shared.notes.fact(Fact::TaskReclaimed {
                task,
                attempt,
                teammate: claim.owner,
                reason: claim.reason.clone(),
            });
            self.shared.notes.task(&claim.task);
            if claim.task.status == TaskStatus::Failed {
                self.tell_lead(&claim.task, &claim.reason).await;
            }
        }
    }

    async fn tell_lead(&self, task: &Task, reason: &str) {
        let text = format!("Task {} ({}) was given up: {reason}.", task.id, task.subject);
        let message = Message::new(MessageType::TaskFailed, SYSTEM, text, self.shared.clock.now());
        if let Err(error) = self.shared.stores.mailbox.send(LEAD, message).await {
            self.shared.notes.warn(LEAD, format!("cannot be written to: {error}"));
        }
    }

    pub(in crate::team) async fn look_at_board(&mut self) {
        match self.shared.stores.board.view().await {
            Ok(view) => {
                let before = std::mem::replace(&mut self.view, view);
                self.note_vanished(&before).await;
            }
            Err(error) => return self.shared.notes.warn("board", error.to_string()),
        }
        self.shared.notes.board();
        for member in self.members.by_name.values_mut() {
            let Some(held) = member.progress.held() else { continue };
            let is_held = self.view.task(held.task).is_some_and(|task| {
                task.status == TaskStatus::InProgress
                    && task.attempt == held.attempt
                    && task.owner.as_deref().is_some_and(|owner| member.spec.name.is_same(owner))
            });
            // A view may be older than a claim: only one that knows of the attempt can deny it.
            let is_known = match self.view.task(held.task) {
                Some(task) => task.attempt >= held.attempt,
                None => !self.view.is_spoiled(held.task),
            };
            if !is_held && is_known {
                member.tell_lost(held);
            }
        }
    }

    /// Tells once what is wrong with the state file, however often it is met.
    pub(super) fn tell_of_state_file(&mut self, trouble: String) {
        if self.state.state_trouble.as_ref() != Some(&trouble) {
            self.shared.notes.warn("agent_state.json", trouble.as_str());
            self.state.state_trouble = Some(trouble);
        }
    }

    pub(super) async fn look_at_state(&mut self) {
        let state = match self.shared.stores.state.read().await {
            Ok(Some(state)) => state,
            Ok(None) => {
                // Without a file nobody wants anything; the report below makes it anew.
                self.set_desired(Mode::Pause, "the state file is missing");
                self.state.last_report = None;
                return;
            }
            Err(error) => {
                // Whoever cannot steer the team any more does not want it to go on.
                self.set_desired(Mode::Pause, "the state file cannot be read");
                return self.tell_of_state_file(error.to_string());
            }
        };
        self.state.state_trouble = None;
        if state.unknown_desired != self.state.unknown_desired {
            self.state.unknown_desired.clone_from(&state.unknown_desired);
            if let Some(word) = &state.unknown_desired {
                let text = format!(
                    "desired_state `{word}` is none of continuous, run_once, run_cleanup, pause: taken as pause"
                );
                self.shared.notes.warn("agent_state.json", text);
            }
        }
        self.set_desired(state.desired, &state.note);
        let stale = self.state.last_report.as_ref().is_some_and(|report| !state.carries(report));
        if stale {
            self.state.last_report = None;
        }
    }
}
