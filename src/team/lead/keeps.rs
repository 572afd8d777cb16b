//! What the lead keeps watch over: that it still leads, and that no task goes which nobody deleted.

use std::time::Duration;

use super::Lead;
use crate::domain::graph::TaskLookup;
use crate::domain::name::Name;
use crate::domain::task::TaskId;
use crate::ports::{BoardView, Tenure};
use crate::team::handle::End;
use crate::team::teammate::Control;

/// Tasks that a warning names; more are counted.
const NAMED_MAX: usize = 5;

/// A task that is gone from the board.
pub(super) struct Vanished {
    subject: String,
    is_told: bool,
}

impl Lead {
    /// Looks whether it still leads. A lead that does not stops in order; it takes nothing back.
    pub(super) async fn look_at_tenure(&mut self) {
        match self.shared.stores.workers.tenure().await {
            Ok(Tenure::Held) => {}
            Ok(Tenure::Renewed) => {
                self.shared.notes.warn("lead", "somebody removed what says who leads here; it is made anew");
                let names: Vec<Name> = self.members.teammates().map(|member| member.spec.name.clone()).collect();
                if let Err(error) = self.shared.stores.mailbox.open_inboxes(&names).await {
                    self.shared.notes.warn("lead", format!("the inboxes cannot be opened anew: {error}"));
                }
            }
            Ok(Tenure::Lost { team, pid }) => {
                let trouble = format!("Another team, {team} (pid {pid}), leads this workspace by now.");
                self.give_up(trouble, Control::Stop, self.spec.limits.stop_timeout);
            }
            Ok(Tenure::NoWorkspace) => {
                let folder = self.shared.workspace.display();
                let trouble = format!("The workspace {folder} is gone: it was removed or moved away.");
                self.give_up(trouble, Control::StopNow, Duration::ZERO);
            }
            Err(error) => tracing::warn!("cannot look whether this process still leads: {error}"),
        }
    }

    fn give_up(&mut self, trouble: String, control: Control, within: Duration) {
        if self.state.has_given_up {
            return;
        }
        self.state.has_given_up = true;
        self.shared.notes.warn("workspace", trouble.as_str());
        self.session.trouble = Some(trouble);
        self.stop(control, within, End::GivenUp);
    }

    /// Takes in which tasks went since the view before, but for those that were deleted on request.
    pub(super) async fn note_vanished(&mut self, before: &BoardView) {
        if before.tasks.keys().eq(self.view.tasks.keys()) {
            return;
        }
        let view = &self.view;
        self.state.vanished.retain(|id, _| !view.tasks.contains_key(id));
        let is_gone = |id: &TaskId| !view.tasks.contains_key(id) && !view.is_spoiled(*id);
        let gone: Vec<TaskId> = before.tasks.keys().copied().filter(is_gone).collect();
        if gone.is_empty() {
            return;
        }
        // A board that cannot say so has lost what it knew with the rest.
        let deleted = self.shared.stores.board.deleted(&gone).await.unwrap_or_default();
        for id in gone.into_iter().filter(|id| !deleted.contains(id)) {
            let subject = before.tasks[&id].subject.clone();
            self.state.vanished.insert(id, Vanished { subject, is_told: false });
        }
    }

    /// Names the tasks that went, once each. A program that puts a file back at once has had its time by now.
    pub(super) fn tell_vanished(&mut self) {
        if self.state.vanished.values().all(|vanished| vanished.is_told) {
            return;
        }
        self.state.vanished.values_mut().for_each(|vanished| vanished.is_told = true);
        if let Some(text) = self.vanished() {
            self.shared.notes.warn("board", text);
        }
    }

    /// The tasks that went, in words.
    pub(in crate::team) fn vanished(&self) -> Option<String> {
        let vanished = &self.state.vanished;
        let named: Vec<String> =
            vanished.iter().take(NAMED_MAX).map(|(id, task)| format!("{id} ({})", task.subject)).collect();
        let more = match vanished.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!("Gone from the board, though nobody deleted them: {}{more}.", named.join(", "));
        (!vanished.is_empty()).then_some(text)
    }
}
