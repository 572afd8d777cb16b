//! The lead's checks that it still leads, and that no task vanishes from the board without being deleted.

use std::sync::Arc;
use std::time::Duration;

use super::Lead;
use crate::domain::claim_queue::ClaimQueue;
use crate::domain::dependencies::TaskLookup;
use crate::domain::name::Name;
use crate::domain::task::TaskId;
use crate::ports::{BoardView, LeadHolder, LeadershipCheck};
use crate::team::handle::TeamEnd;
use crate::team::teammate::TeammateCommand;

/// Tasks named in a warning; more are counted.
const NAMED_MAX: usize = 5;

/// A task that vanished from the board.
pub(super) struct VanishedTask {
    subject: String,
    is_reported: bool,
}

impl Lead {
    /// Checks the lead's lock and record. A lead that lost them lets its members finish their turns, and reclaims nothing.
    pub(super) async fn check_leadership(&mut self) {
        match self.services.stores.leadership.check().await {
            Ok(LeadershipCheck::Held) => {}
            Ok(LeadershipCheck::Restored) => {
                self.services.events.warn("lead", "the lead's lock or record was removed; it is restored");
                let names: Vec<Name> = self.members.teammates().map(|member| member.spec.name.clone()).collect();
                if let Err(error) = self.services.stores.mailbox.open_inboxes(&names).await {
                    self.services.events.warn("lead", format!("cannot open the inboxes again: {error}"));
                }
            }
            Ok(LeadershipCheck::Lost(LeadHolder { team, process })) => {
                let reason = format!("Another team, {team} ({process}), leads this workspace now.");
                self.resign(reason, TeammateCommand::Stop, self.spec.limits.stop_timeout);
            }
            Ok(LeadershipCheck::NoWorkspace) => {
                let folder = self.services.workspace.display();
                let reason = format!("The workspace {folder} is gone: it was removed or moved away.");
                self.resign(reason, TeammateCommand::Abort, Duration::ZERO);
            }
            Err(error) => tracing::warn!("cannot check the lead's lock: {error}"),
        }
    }

    fn resign(&mut self, reason: String, command: TeammateCommand, within: Duration) {
        if self.state.leadership.has_resigned {
            return;
        }
        self.state.leadership.has_resigned = true;
        self.services.events.warn("workspace", reason.as_str());
        self.session.error = Some(reason);
        self.stop(command, within, TeamEnd::LeadershipLost);
    }

    /// Returns true if the lead stops because it cannot continue.
    pub(in crate::team) fn has_resigned(&self) -> bool {
        self.state.leadership.has_resigned
    }

    /// Replaces the known board and its claim queue.
    pub(super) async fn replace_view(&mut self, view: Arc<BoardView>) {
        let before = std::mem::replace(&mut self.view, view);
        if before.revision != self.view.revision {
            self.queue = ClaimQueue::of(self.view.tasks.values().map(Arc::as_ref), &*self.view);
        }
        self.record_vanished(&before).await;
    }

    /// Records the tasks that vanished since the view before, apart from those deleted on request.
    async fn record_vanished(&mut self, before: &BoardView) {
        if before.tasks.keys().eq(self.view.tasks.keys()) {
            return;
        }
        let view = &self.view;
        self.state.leadership.vanished.retain(|id, _| !view.tasks.contains_key(id));
        let is_missing = |id: &TaskId| !view.tasks.contains_key(id) && !view.is_invalid(*id);
        let missing: Vec<TaskId> = before.tasks.keys().copied().filter(is_missing).collect();
        if missing.is_empty() {
            return;
        }
        // A board that cannot tell has lost its record of deletions with the rest.
        let deleted = self.services.stores.board.deleted(&missing).await.unwrap_or_default();
        let vanished: Vec<TaskId> = missing.into_iter().filter(|id| !deleted.contains(id)).collect();
        if vanished.is_empty() {
            return;
        }
        // The board vanishes with its workspace. Then the lead resigns, and its reason names the workspace.
        self.check_leadership().await;
        if self.has_resigned() {
            return;
        }
        for id in vanished {
            let subject = before.tasks[&id].subject.clone();
            self.state.leadership.vanished.insert(id, VanishedTask { subject, is_reported: false });
        }
    }

    /// Reports each vanished task once, at the next poll. Until then a program that replaces its file has time to do so.
    pub(super) fn report_vanished(&mut self) {
        if self.state.leadership.vanished.values().all(|vanished| vanished.is_reported) {
            return;
        }
        self.state.leadership.vanished.values_mut().for_each(|vanished| vanished.is_reported = true);
        if let Some(text) = self.vanished_text() {
            self.services.events.warn("board", text);
        }
    }

    /// Returns a sentence that names the vanished tasks.
    pub(in crate::team) fn vanished_text(&self) -> Option<String> {
        let vanished = &self.state.leadership.vanished;
        if vanished.is_empty() {
            return None;
        }
        let names: Vec<String> =
            vanished.iter().take(NAMED_MAX).map(|(id, task)| format!("{id} ({})", task.subject)).collect();
        let more = match vanished.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("Missing from the board, but not deleted: {}{more}.", names.join(", ")))
    }
}
