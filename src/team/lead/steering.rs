//! The shared state file, as the lead reads and writes it.

use crate::agents::AgentServices;
use crate::domain::team::state::{
    DesiredStateChange, Mode, SetBy, SharedState, StatePrecondition, StateReport, StateUpdate,
};
use crate::domain::team::state_note::StateNote;

/// The name of the state file in warnings.
const STATE_FILE: &str = "agent_state.json";

/// The desired state, and the state file at the last read.
#[derive(Default)]
pub(super) struct Steering {
    /// The state that the team follows.
    pub desired: Mode,
    /// The reason for it, for people.
    pub note: String,
    unknown_desired: Option<String>,
    /// The reason why the file cannot be read or written.
    error: Option<String>,
    /// The end of a mode that is not written yet. It counts as written.
    unwritten_end: Option<DesiredStateChange>,
    last_report: Option<StateReport>,
}

/// A desired state and the reason for it.
pub(super) struct DesiredState {
    pub mode: Mode,
    pub note: String,
}

impl Steering {
    /// Reads the file. Without a readable file the team pauses, because the person could not steer it.
    pub async fn read(&mut self, services: &AgentServices) -> DesiredState {
        match services.stores.state.read().await {
            Ok(Some(state)) => {
                self.error = None;
                self.report_unknown_word(services, &state);
                if self.last_report.as_ref().is_some_and(|report| !state.contains_report(report)) {
                    self.last_report = None;
                }
                self.desired_of(state.desired, state.note)
            }
            Ok(None) => {
                // The next report creates the file again.
                let note = self.last_report.take().map(|_| StateNote::FileMissing.to_file_text());
                self.desired_of(Mode::Pause, note.unwrap_or_default())
            }
            Err(error) => {
                self.report_error(services, error.to_string());
                self.desired_of(Mode::Pause, "the state file cannot be read".to_owned())
            }
        }
    }

    /// Writes this report, unless the file already has it. Returns the desired state in the file.
    pub async fn write_report(&mut self, services: &AgentServices, report: StateReport) -> Option<DesiredState> {
        if self.last_report.as_ref() == Some(&report) {
            return None;
        }
        self.last_report = Some(report.clone());
        match services.stores.state.update(StateUpdate { report: Some(report), desired: None }).await {
            Ok(state) => Some(self.desired_of(state.desired, state.note)),
            Err(error) => {
                self.report_error(services, error.to_string());
                None
            }
        }
    }

    /// Ends this mode, unless the person chose another one meanwhile. [`Self::write_end`] writes it.
    pub fn end_mode(&mut self, ended: Mode, note: &str) {
        self.unwritten_end = Some(DesiredStateChange {
            mode: Mode::Pause,
            by: SetBy::Brigade,
            note: note.to_owned(),
            only_if: Some(StatePrecondition::Mode(ended)),
        });
    }

    /// Returns true if the end of a mode is not written yet.
    pub fn has_unwritten_end(&self) -> bool {
        self.unwritten_end.is_some()
    }

    /// Writes the end of a mode, with a report. If that fails, the team behaves as if it were written and retries at each poll.
    pub async fn write_end(&mut self, services: &AgentServices, report: StateReport) -> Option<DesiredState> {
        let end = self.unwritten_end.clone()?;
        let note = end.note.clone();
        match services.stores.state.update(StateUpdate { report: Some(report), desired: Some(end) }).await {
            Ok(state) => {
                self.unwritten_end = None;
                Some(self.desired_of(state.desired, state.note))
            }
            Err(error) => {
                services.events.warn(STATE_FILE, format!("cannot end the mode: {error}"));
                Some(self.desired_of(self.desired, note))
            }
        }
    }

    fn desired_of(&self, mode: Mode, note: String) -> DesiredState {
        let ended = Some(StatePrecondition::Mode(mode));
        let is_ended = self.unwritten_end.as_ref().is_some_and(|end| end.only_if == ended);
        DesiredState { mode: if is_ended { Mode::Pause } else { mode }, note }
    }

    fn report_unknown_word(&mut self, services: &AgentServices, state: &SharedState) {
        if state.unknown_desired == self.unknown_desired {
            return;
        }
        self.unknown_desired.clone_from(&state.unknown_desired);
        if let Some(warning) = state.unknown_desired_warning() {
            services.events.warn(STATE_FILE, warning);
        }
    }

    /// Reports an error of the file once, until it changes.
    fn report_error(&mut self, services: &AgentServices, error: String) {
        if self.error.as_ref() != Some(&error) {
            services.events.warn(STATE_FILE, error.as_str());
            self.error = Some(error);
        }
    }
}
