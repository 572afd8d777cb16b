//! The lead's polls of board, mail, shared state, disk and workers. Hints make them early; the regular poll misses nothing.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::memory::WaitingMail;
use super::{Lead, PendingChanges};
use crate::domain::approval::{Request, RequestKind};
use crate::domain::dependencies::TaskLookup;
use crate::domain::event::EventKind;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, LEAD, Name, SYSTEM};
use crate::domain::phase::ClaimRef;
use crate::domain::state::Mode;
use crate::domain::task::{Task, TaskStatus};
use crate::ports::{QuarantinedTranscript, ReclaimRequest};
use crate::service::{approvals, workers};
use crate::team::running_member::RunningMember;
use crate::team::teammate::TeammateCommand;

impl Lead {
    /// Polls everything, in case a hint was missed.
    pub(super) async fn poll(&mut self) {
        self.state.timers.last_poll = Instant::now();
        self.state.timers.polls = self.state.timers.polls.wrapping_add(1);
        self.members.by_name.values_mut().for_each(RunningMember::reset_wake_throttle);
        self.state.mail.woken.clear();
        self.check_leadership().await;
        self.write_end().await;
        self.reclaim_lost().await;
        self.services.disk.probe();
        self.report_quarantined_transcripts();
        self.poll_state().await;
        self.poll_board().await;
        self.report_vanished();
        self.reclaim_unheld().await;
        self.poll_mail().await;
        self.poll_approvals().await;
    }

    /// Reports files and folders that were in the place of transcripts.
    fn report_quarantined_transcripts(&self) {
        for QuarantinedTranscript { teammate, kind, moved_to } in self.services.stores.transcripts.take_quarantined() {
            let text = format!("its transcript was {kind}, which is now {moved_to}; it continues without memory");
            self.services.events.warn(teammate, text);
        }
    }

    pub(super) async fn handle_changes(&mut self, changes: PendingChanges) {
        if changes.everything {
            return self.poll().await;
        }
        if changes.board {
            self.poll_board().await;
        }
        if changes.state {
            self.poll_state().await;
        }
        if !changes.mail.is_empty() {
            let is_new = |to: &String| !changes.mail.iter().any(|mail| mail.eq_ignore_ascii_case(to));
            self.state.mail.woken.retain(|name| is_new(&name.to_string()));
            self.poll_mail().await;
            // Approvals and their answers arrive as mail.
            self.poll_approvals().await;
        }
    }

    /// Reads the open approvals.
    async fn poll_approvals(&mut self) {
        match self.services.stores.requests.all().await {
            Ok(approvals) => self.state.approvals = approvals.open_approvals().cloned().collect(),
            Err(error) => return tracing::warn!("cannot read the approvals: {error}"),
        }
        self.withdraw_stale_approvals().await;
        self.reassign_reviews().await;
    }

    /// Withdraws reviews of tasks that are completed, failed or gone.
    async fn withdraw_stale_approvals(&mut self) {
        let is_over = |request: &&Request| {
            let Some(about) = &request.about else { return false };
            let is_task_over = match self.view.task(about.task) {
                Some(task) => matches!(task.status, TaskStatus::Completed | TaskStatus::Failed),
                None => !self.view.is_invalid(about.task),
            };
            request.kind == RequestKind::Review && is_task_over
        };
        let over: Vec<Request> = self.state.approvals.iter().filter(is_over).cloned().collect();
        for request in &over {
            let now = self.services.clock.now();
            if let Err(error) =
                self.services.stores.requests.withdraw(&request.id, request.kind, "its task is over", now).await
            {
                tracing::warn!("cannot withdraw a request: {error}");
            }
        }
        self.state.approvals.retain(|request| !over.contains(request));
    }

    /// Gives the reviews of stopped members to others.
    async fn reassign_reviews(&mut self) {
        let Some(capability) = self.services.review.clone() else { return };
        let is_available = |to: &str| {
            let mut members = self.members.by_name.values();
            to == HUMAN || members.any(|member| member.spec.name.is_same(to) && member.is_usable())
        };
        let reviews = self.state.approvals.iter().filter(|request| request.kind == RequestKind::Review);
        let orphaned: Vec<Request> = reviews.filter(|request| !is_available(&request.to)).cloned().collect();
        for review in orphaned {
            let Ok(author) = Name::new(&review.from) else { continue };
            // The configured reviewer may be the one that is gone.
            let to = Some(self.members.team_control().reviewer(&author, &capability)).filter(|to| is_available(to));
            let to = to.unwrap_or_else(|| HUMAN.to_owned());
            match approvals::reassign(&self.services.stores, &review.id, review.kind, &to, self.services.clock.now())
                .await
            {
                Ok(Some(message)) => {
                    let about = format!("review {} goes to {to}, because {} is not available", review.id, review.to);
                    self.services.events.record(EventKind::MessageSent { from: review.from, to, message, about });
                }
                Ok(None) => {}
                Err(error) => self.services.events.warn(to, format!("cannot be asked for a review: {error}")),
            }
        }
    }

    /// Finds waiting mail, and whether it would start a turn. A `runbook` lead's mail is read here.
    pub(super) async fn poll_mail(&mut self) {
        let recipients = match self.services.stores.mailbox.recipients_with_mail().await {
            Ok(recipients) => recipients,
            Err(error) => return tracing::warn!("cannot look for mail: {error}"),
        };
        if recipients.iter().any(|to| to == LEAD)
            && let Err(error) = self.session.read_as_runbook(&self.services).await
        {
            self.services.events.warn(LEAD, format!("cannot read its mail: {error}"));
        }
        self.report_stop_requests(&recipients).await;
        let mut waiting_mail = Vec::with_capacity(recipients.len());
        let mut unreadable = Vec::new();
        for to in recipients {
            let member = self.members.by_name.values().find(|member| member.spec.name.is_same(&to));
            let starts_turn = match member {
                Some(member) if member.is_idle() || member.is_busy() => self.check_mail_of(member).await,
                _ => Some(false),
            };
            // Unreadable mail keeps no session open. Its recipient reports the reason, and the session's end the recipient.
            if starts_turn.is_none() {
                unreadable.push(to.clone());
            }
            waiting_mail.push(WaitingMail { to, starts_turn: starts_turn.unwrap_or(false) });
        }
        (self.state.mail.waiting, self.state.mail.unreadable) = (waiting_mail, unreadable);
    }

    /// Reports a person's stop requests to busy members, so that people see them before the members read them.
    async fn report_stop_requests(&mut self, recipients: &[String]) {
        let launched_at = self.services.launched_at.as_seconds();
        let is_stop_request = |message: &Message| {
            message.kind == MessageType::ShutdownRequest && message.from == HUMAN && message.timestamp >= launched_at
        };
        for member in self.members.by_name.values_mut().filter(|member| member.is_busy() && !member.has_stop_request) {
            let name = &member.spec.name;
            if !recipients.iter().any(|to| name.is_same(to)) {
                continue;
            }
            // Its reader reports mail that cannot be read.
            let mail = self.services.stores.mailbox.peek(name.as_str()).await.unwrap_or_default();
            if let Some(request) =
                mail.iter().map(|delivery| &delivery.message).find(|message| is_stop_request(message))
            {
                member.has_stop_request = true;
                self.services
                    .events
                    .record(EventKind::StopAsked { teammate: name.to_string(), now: request.is_immediate_shutdown() });
            }
        }
    }

    /// Returns true if its mail would start a turn, and `None` if the mail cannot be read. A working member reads its mail
    /// anyway, and is interrupted only to stop now.
    async fn check_mail_of(&self, member: &RunningMember) -> Option<bool> {
        let waiting = self.services.stores.mailbox.peek(member.spec.name.as_str()).await.ok()?;
        let mut messages = waiting.iter().map(|delivery| &delivery.message);
        if member.is_busy() && messages.clone().any(Message::is_immediate_shutdown) {
            member.send(TeammateCommand::ReadInbox);
        }
        let starts_turn = |message: &Message| !message.kind.is_notice() && message.kind != MessageType::ShutdownRequest;
        Some(member.is_idle() && messages.any(starts_turn))
    }

    /// Reclaims the claims of dead workers, and leases that ran out.
    async fn reclaim_lost(&mut self) {
        let stores = &self.services.stores;
        let claims = match workers::claims_of_dead(&*stores.board, &*stores.workers).await {
            Ok(claims) => claims,
            Err(error) => return tracing::warn!("cannot read the workers' records: {error}"),
        };
        let reason = "its worker is gone".to_owned();
        // This worker lives, so the death of another counts as a failed attempt of its task.
        let running_leases = self.running_leases();
        self.reclaim(ReclaimRequest { claims, running_leases, counts: true, reason }).await;
    }

    /// Returns the leases of claims by command that have not run out by a monotonic clock. So a wall clock that is set forward
    /// ends none.
    fn running_leases(&mut self) -> Vec<ClaimRef> {
        let now = self.services.clock.now();
        let lease = |task: &std::sync::Arc<Task>| {
            let expires = task.claim.as_ref().filter(|_| task.status == TaskStatus::InProgress)?.expires?;
            let remaining = Duration::from_millis(u64::try_from(expires.0.saturating_sub(now.0)).unwrap_or(0));
            Some(((ClaimRef::of(task), expires), remaining))
        };
        let leases: BTreeMap<_, _> = self.view.tasks.values().filter_map(lease).collect();
        self.state.claims.leases.retain(|lease, _| leases.contains_key(lease));
        for (lease, remaining) in leases {
            self.state.claims.leases.entry(lease).or_insert_with(|| Instant::now() + remaining);
        }
        let runs = self.state.claims.leases.iter().filter(|(_, until)| **until > Instant::now());
        runs.map(|((claim, _), _)| *claim).collect()
    }

    /// Reclaims claims of this worker that no member holds, because their holder ended just as it claimed. A claim in progress
    /// looks the same for a moment, so only a claim that looks so for a whole poll interval is reclaimed.
    async fn reclaim_unheld(&mut self) {
        let worker = self.services.stores.workers.worker_id();
        let held_claims: HashSet<ClaimRef> =
            self.members.by_name.values().filter_map(|member| member.progress.claim()).collect();
        let is_of_this_worker = |task: &&std::sync::Arc<Task>| {
            task.status == TaskStatus::InProgress && task.claim.as_ref().is_some_and(|claim| claim.worker == worker)
        };
        let claims = self.view.tasks.values().filter(is_of_this_worker).map(|task| ClaimRef::of(task));
        let unheld_claims: Vec<ClaimRef> = claims.filter(|claim| !held_claims.contains(claim)).collect();
        self.state.claims.unheld.retain(|claim, _| unheld_claims.contains(claim));
        for claim in &unheld_claims {
            self.state.claims.unheld.entry(*claim).or_insert_with(Instant::now);
        }
        let is_old = |since: &Instant| since.elapsed() >= self.spec.limits.poll_interval;
        let claims: Vec<_> =
            self.state.claims.unheld.iter().filter(|(_, since)| is_old(since)).map(|(claim, _)| *claim).collect();
        if !claims.is_empty() {
            let reason = "its teammate ended just as it claimed the task".to_owned();
            self.reclaim(ReclaimRequest { claims, reason, ..ReclaimRequest::default() }).await;
        }
    }

    pub(super) async fn reclaim(&mut self, request: ReclaimRequest) {
        let reclaimed = match self.services.stores.board.reclaim(&request).await {
            Ok(reclaimed) => reclaimed,
            Err(error) => return self.services.events.warn("board", format!("cannot reclaim tasks: {error}")),
        };
        for claim in reclaimed {
            let (task, attempt) = (claim.task.id, claim.task.attempt);
            self.services.events.record(EventKind::TaskReclaimed {
                task,
                attempt,
                teammate: claim.owner,
                reason: claim.reason.clone(),
            });
            self.services.events.record_task(&claim.task);
            if claim.task.status == TaskStatus::Failed {
                self.send_task_failed(&claim.task, &claim.reason).await;
            }
        }
    }

    async fn send_task_failed(&self, task: &Task, reason: &str) {
        let text = format!("Task {} ({}) has failed: {reason}.", task.id, task.subject);
        let message = Message::new(MessageType::TaskFailed, SYSTEM, text, self.services.clock.now());
        if let Err(error) = self.services.stores.mailbox.send(LEAD, message).await {
            self.services.events.warn(LEAD, format!("cannot be sent a message: {error}"));
        }
    }

    pub(in crate::team) async fn poll_board(&mut self) {
        match self.services.stores.board.view().await {
            Ok(view) => self.replace_view(view).await,
            Err(error) => return self.services.events.warn("board", error.to_string()),
        }
        self.services.events.request_board_read();
        for member in self.members.by_name.values_mut() {
            let Some(claim) = member.progress.claim() else { continue };
            let is_held = self.view.task(claim.task).is_some_and(|task| {
                task.status == TaskStatus::InProgress
                    && task.attempt == claim.attempt
                    && task.owner.as_deref().is_some_and(|owner| member.spec.name.is_same(owner))
            });
            // A view may be older than the claim. Then it has an earlier attempt, and does not show that the claim is lost.
            let is_current = match self.view.task(claim.task) {
                Some(task) => task.attempt >= claim.attempt,
                None => !self.view.is_invalid(claim.task),
            };
            if !is_held && is_current {
                member.send_claim_lost(claim);
            }
        }
    }

    /// Reports an error of the state file once, until it changes.
    pub(super) fn report_state_file(&mut self, error: String) {
        if self.state.state_file.error.as_ref() != Some(&error) {
            self.services.events.warn("agent_state.json", error.as_str());
            self.state.state_file.error = Some(error);
        }
    }

    pub(super) async fn poll_state(&mut self) {
        let state = match self.services.stores.state.read().await {
            Ok(Some(state)) => state,
            Ok(None) => {
                // Without a file there is no desired state. The next report creates the file again.
                self.set_desired(Mode::Pause, "the state file is missing");
                self.state.state_file.last_report = None;
                return;
            }
            Err(error) => {
                // A person who cannot steer the team does not want it to continue.
                self.set_desired(Mode::Pause, "the state file cannot be read");
                return self.report_state_file(error.to_string());
            }
        };
        self.state.state_file.error = None;
        if state.unknown_desired != self.state.state_file.unknown_desired {
            self.state.state_file.unknown_desired.clone_from(&state.unknown_desired);
            if let Some(word) = &state.unknown_desired {
                let text = format!(
                    "unknown desired_state `{word}`, treated as pause; known: continuous, run_once, run_cleanup, pause"
                );
                self.services.events.warn("agent_state.json", text);
            }
        }
        self.set_desired(state.desired, &state.note);
        let stale = self.state.state_file.last_report.as_ref().is_some_and(|report| !state.contains_report(report));
        if stale {
            self.state.state_file.last_report = None;
        }
    }
}
