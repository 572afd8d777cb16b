//! The shared state file: the desired state, the current state, and how changes are merged into it.
//!
//! `desired_state` belongs to the person. Brigade changes it only when a mode ends, and only if the file still has that mode. The
//! other fields belong to Brigade, whose memory is authoritative. Fields of other programs are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::name::{HUMAN, LEAD};
use super::phase::ReportedPhase;
use super::state_note::StateNote;
use super::waiting_for::WaitingFor;
use crate::domain::task::TaskId;
use crate::domain::text::json_document::{Document, DocumentError};
use crate::domain::text::suggestion::did_you_mean;
use crate::domain::text::words::words;
use crate::domain::time::UnixMs;

/// The field with the reason why a team has no session.
const WAITING_FOR: &str = "waiting_for";

words! {
    /// The desired or current state of a team.
    #[derive(Default, schemars::JsonSchema)]
    pub enum Mode {
        /// One session after another, while there is work.
        Continuous = "continuous",
        /// One session.
        RunOnce = "run_once",
        /// One clean-up session.
        RunCleanup = "run_cleanup",
        /// No new work.
        #[default]
        Pause = "pause",
    }
}

impl Mode {
    /// Returns true if the mode ends after one session.
    pub fn is_one_shot(self) -> bool {
        matches!(self, Self::RunOnce | Self::RunCleanup)
    }
}

/// The author of the desired state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum SetBy {
    /// A person, or a program that acts for one.
    Person,
    /// Brigade, at the end of a mode.
    Brigade,
    /// Another word in the file. It is empty if the file names no author.
    Other(String),
}

impl SetBy {
    /// Returns the word in the file.
    pub fn as_word(&self) -> &str {
        match self {
            Self::Person => HUMAN,
            Self::Brigade => "agent",
            Self::Other(word) => word,
        }
    }

    /// Parses the word of a file.
    pub fn from_word(word: String) -> Self {
        let own = [Self::Person, Self::Brigade].into_iter().find(|own| own.as_word() == word);
        own.unwrap_or(Self::Other(word))
    }
}

impl Default for SetBy {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl From<SetBy> for String {
    fn from(set_by: SetBy) -> Self {
        set_by.as_word().to_owned()
    }
}

/// The status of a teammate, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeammateReport {
    /// Its role.
    pub role: String,
    /// Its phase.
    pub phase: ReportedPhase,
    /// The task it holds.
    pub task: Option<TaskId>,
    /// Its attempt of that task.
    pub attempt: Option<u32>,
    /// Start time of this phase.
    pub since: String,
    /// Time of the last progress that the harness saw.
    pub heartbeat: String,
    /// Number of tokens it has used.
    pub tokens: u64,
    /// Their cost, in US dollars.
    pub cost_usd: f64,
    /// The reason why it waits; `None` while it works.
    pub waiting_for: Option<WaitingFor>,
    /// The model that answers in place of its own one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}

impl TeammateReport {
    /// Returns true if it was stopped or died. A teammate that ended because it was idle still waits for work, and is started again.
    pub fn is_gone(&self) -> bool {
        let has_ended = matches!(self.phase, ReportedPhase::Stopped | ReportedPhase::Dead);
        has_ended && self.waiting_for != Some(WaitingFor::MailOrTask)
    }
}

/// The status of each teammate by name. Copies share unchanged reports.
pub type TeammateReports = BTreeMap<String, Arc<TeammateReport>>;

/// Brigade's part of the file.
#[derive(Debug, Clone, Default)]
pub struct StateReport {
    /// Name of the team.
    pub team: String,
    /// The current state; `None` keeps the one in the file.
    pub current: Option<Mode>,
    /// The status of each teammate.
    pub teammates: Arc<TeammateReports>,
    /// The lead's status, if it has a model. It is separate, so that programs that count teammates do not count the lead.
    pub lead: Option<Arc<TeammateReport>>,
    /// The reason why a `continuous` team has no session, if its goal is not met.
    pub waiting_for: Option<WaitingFor>,
}

impl PartialEq for StateReport {
    fn eq(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.teammates, &other.teammates) || self.teammates == other.teammates;
        is_same
            && (&self.team, self.current, &self.lead, &self.waiting_for)
                == (&other.team, other.current, &other.lead, &other.waiting_for)
    }
}

/// A change of the desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredStateChange {
    /// The new state.
    pub mode: Mode,
    /// Its author.
    pub by: SetBy,
    /// The reason, for people.
    pub note: String,
    /// Changes the state only if this holds. A change that no person asked for must not undo one of the person.
    pub only_if: Option<StatePrecondition>,
}

/// The precondition of a change of the desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatePrecondition {
    /// There is no file.
    NoFile,
    /// The desired state is pause, also because there is no file or its word is unknown.
    Paused,
    /// The file has this desired state.
    Mode(Mode),
    /// The file has this desired state with this note.
    ModeWithNote(Mode, String),
}

/// A change of the file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StateUpdate {
    /// Brigade's own fields.
    pub report: Option<StateReport>,
    /// A change of the desired state.
    pub desired: Option<DesiredStateChange>,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedState {
    /// The desired state. An unknown word counts as pause.
    pub desired: Mode,
    /// The word in the file, if it is unknown.
    pub unknown_desired: Option<String>,
    /// The current state.
    pub current: Mode,
    /// The author of the desired state.
    pub set_by: SetBy,
    /// The reason, for people.
    pub note: String,
    /// The file as it was read.
    pub document: Document,
    /// The last merged report, if no file was read since.
    merged_report: Option<StateReport>,
    /// True if there was no file.
    is_new: bool,
}

impl SharedState {
    /// Returns the state without a file: desired and current state are pause.
    pub fn paused(now: UnixMs) -> Self {
        let mut document = Document::default();
        document.put("desired_state", &Mode::Pause);
        document.put("current_state", &Mode::Pause);
        document.put("timestamp", &now.to_iso());
        document.put("setBy", &SetBy::Brigade);
        document.put("note", &"");
        Self { is_new: true, ..Self::of(document) }
    }

    /// Returns the state that replaces a missing or invalid file: pause, for this reason.
    pub fn paused_because(reason: &StateNote, now: UnixMs) -> Self {
        let mut state = Self::paused(now);
        state.note = reason.to_file_text();
        state.document.put("note", &state.note);
        state
    }

    /// Parses the bytes of `agent_state.json`.
    ///
    /// # Errors
    /// [`DocumentError`] if they are not a JSON object. A known field of a wrong type is no error: an unknown `desired_state`
    /// counts as pause, other fields as missing.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        Document::parse(bytes).map(Self::of)
    }

    fn of(document: Document) -> Self {
        let word = |field: &str| -> Option<String> {
            let value: Value = document.get(field).ok()??;
            Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        let desired_word = word("desired_state");
        let desired = desired_word.as_deref().and_then(Mode::from_word);
        let set_by = word("setBy").map(SetBy::from_word).unwrap_or_default();
        // Brigade sets only `pause`. For another state these fields are those of an earlier change: its author left them as they were.
        let is_outdated = set_by == SetBy::Brigade && desired.is_some_and(|mode| mode != Mode::Pause);
        let (set_by, note) = if is_outdated { Default::default() } else { (set_by, word("note").unwrap_or_default()) };
        Self {
            desired: desired.unwrap_or(Mode::Pause),
            unknown_desired: if desired.is_none() { desired_word } else { None },
            current: word("current_state").as_deref().and_then(Mode::from_word).unwrap_or(Mode::Pause),
            set_by,
            note,
            document,
            merged_report: None,
            is_new: false,
        }
    }

    /// Returns the state with `update` merged in. Pure. Merging the same update again changes only the time.
    #[must_use]
    pub fn merge(&self, update: &StateUpdate, now: UnixMs) -> Self {
        let mut next = Self { is_new: false, ..self.clone() };
        if let Some(report) = &update.report {
            if let Some(current) = report.current {
                next.current = current;
                next.document.put("current_state", &current);
            }
            if !has_desired_state(&next.document) {
                next.document.put("desired_state", &next.desired);
            }
            next.document.put("team", &report.team);
            let is_unchanged =
                self.merged_report.as_ref().is_some_and(|merged| Arc::ptr_eq(&merged.teammates, &report.teammates));
            if !is_unchanged {
                next.document.put("teammates", &report.teammates);
            }
            match &report.lead {
                Some(lead) if lead_report_in(&next.document).as_ref() != Some(lead) => next.document.put(LEAD, lead),
                // Removes the report of an earlier team here. A value of another program under this key is kept.
                None if lead_report_in(&next.document).is_some() => next.document.remove(LEAD),
                _ => {}
            }
            match &report.waiting_for {
                Some(waiting_for) => next.document.put(WAITING_FOR, waiting_for),
                None => next.document.remove(WAITING_FOR),
            }
            next.merged_report = Some(report.clone());
        }
        if let Some(set) = &update.desired
            && set.only_if.as_ref().is_none_or(|precondition| self.holds(precondition))
        {
            next.desired = set.mode;
            next.unknown_desired = None;
            next.set_by.clone_from(&set.by);
            next.note.clone_from(&set.note);
            next.document.put("desired_state", &set.mode);
            next.document.put("setBy", &set.by);
            next.document.put("note", &set.note);
        }
        next.document.put("timestamp", &now.to_iso());
        next
    }

    /// Returns the reason for the desired state.
    pub fn reason(&self) -> StateNote {
        StateNote::from_file_text(&self.note)
    }

    /// Returns a warning about an unknown word in `desired_state`: the nearest known word, or all of them.
    pub fn unknown_desired_warning(&self) -> Option<String> {
        let word = self.unknown_desired.as_ref()?;
        let advice = did_you_mean(word, Mode::WORDS.into_iter())
            .unwrap_or_else(|| format!("the states are {}", Mode::WORDS.join(", ")));
        Some(format!("unknown desired_state `{word}`, treated as pause ({advice})"))
    }

    fn holds(&self, precondition: &StatePrecondition) -> bool {
        let is_set_to = |mode: Mode| mode == self.desired && self.unknown_desired.is_none() && !self.is_new;
        match precondition {
            StatePrecondition::NoFile => self.is_new,
            StatePrecondition::Paused => self.desired == Mode::Pause,
            StatePrecondition::Mode(mode) => is_set_to(*mode),
            StatePrecondition::ModeWithNote(mode, note) => is_set_to(*mode) && self.note == *note,
        }
    }

    /// Returns the status of the lead of the last reporting team, if it has a model.
    pub fn lead(&self) -> Option<Arc<TeammateReport>> {
        lead_report_in(&self.document)
    }

    /// Returns the reason why the last reporting team had no session, if it reported one.
    pub fn waiting_for(&self) -> Option<WaitingFor> {
        self.document.get(WAITING_FOR).ok().flatten()
    }

    /// The status of each teammate, as the last report said.
    pub fn teammates(&self) -> TeammateReports {
        self.document.get("teammates").ok().flatten().unwrap_or_default()
    }

    /// The status of each teammate of this team; empty if another team made the last report.
    pub fn teammates_of(&self, team: &str) -> TeammateReports {
        if self.team().as_deref() == Some(team) { self.teammates() } else { TeammateReports::new() }
    }

    /// Returns the name of the last reporting team.
    pub fn team(&self) -> Option<String> {
        self.document.get("team").ok().flatten()
    }

    /// Returns the file's text.
    pub fn to_file(&self) -> String {
        self.document.to_pretty()
    }

    /// Returns true if the file has a desired state and the fields of `report`. The time of the file does not count.
    pub fn contains_report(&self, report: &StateReport) -> bool {
        if let Some(merged) = &self.merged_report {
            let current = report.current.unwrap_or(self.current);
            return current == self.current && *merged == StateReport { current: merged.current, ..report.clone() };
        }
        let teammates: Option<TeammateReports> = self.document.get("teammates").ok().flatten();
        let team = self.team();
        has_desired_state(&self.document)
            && report.current.is_none_or(|current| current == self.current)
            && team.as_deref() == Some(&report.team)
            && teammates.as_ref() == Some(&*report.teammates)
            && self.lead() == report.lead
            && self.waiting_for() == report.waiting_for
    }
}

/// Returns false if the field is missing or `null`. Another program may have written the file without it.
fn has_desired_state(document: &Document) -> bool {
    document.get::<Value>("desired_state").is_ok_and(|value| value.is_some())
}

fn lead_report_in(document: &Document) -> Option<Arc<TeammateReport>> {
    document.get(LEAD).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tokens: u64, cost_usd: f64) -> TeammateReport {
        TeammateReport {
            role: "coder".into(),
            phase: ReportedPhase::Work,
            task: None,
            attempt: None,
            since: String::new(),
            heartbeat: String::new(),
            tokens,
            cost_usd,
            waiting_for: None,
            fallback: None,
        }
    }

    #[test]
    fn lead_report_is_separate_and_removed_if_absent() {
        let team = |lead: Option<u64>| StateReport {
            team: "t".into(),
            lead: lead.map(|tokens| Arc::new(row(tokens, 0.0))),
            ..StateReport::default()
        };
        let merged = |file: &str, report: &StateReport| {
            let update = StateUpdate { report: Some(report.clone()), desired: None };
            SharedState::parse(file.as_bytes()).unwrap().merge(&update, UnixMs(9)).to_file()
        };
        let file = merged("{}", &team(Some(1)));
        let read = SharedState::parse(file.as_bytes()).unwrap();
        assert_eq!(read.lead().unwrap().tokens, 1);
        assert!(!read.document.raw("teammates").unwrap().contains("coder"));
        assert!(
            read.contains_report(&team(Some(1)))
                && !read.contains_report(&team(Some(2)))
                && !read.contains_report(&team(None))
        );
        let file = merged(&file, &team(None));
        assert!(
            !file.contains("\"lead\"") && SharedState::parse(file.as_bytes()).unwrap().contains_report(&team(None))
        );
        // A value of another program under this key is kept if possible.
        let file = merged(r#"{"lead":"Zoe"}"#, &team(None));
        assert!(
            file.contains("Zoe") && SharedState::parse(file.as_bytes()).unwrap().contains_report(&team(None)),
            "{file}"
        );
    }

    fn set(mode: Mode, only_if: Option<Mode>) -> StateUpdate {
        let only_if = only_if.map(StatePrecondition::Mode);
        StateUpdate {
            desired: Some(DesiredStateChange { mode, by: SetBy::Brigade, note: "done".into(), only_if }),
            report: None,
        }
    }

    #[test]
    fn session_end_keeps_newer_desired_state() {
        let set_by_person = SharedState::paused(UnixMs(0)).merge(&set(Mode::Continuous, None), UnixMs(1));
        let ended = set_by_person.merge(&set(Mode::Pause, Some(Mode::RunOnce)), UnixMs(2));
        assert_eq!(ended.desired, Mode::Continuous);
        assert_eq!(set_by_person.merge(&set(Mode::Pause, Some(Mode::Continuous)), UnixMs(2)).desired, Mode::Pause);
    }

    #[test]
    fn note_of_end_is_outdated_after_change_by_hand() {
        let parsed = |desired: &str, by: SetBy| {
            let by = by.as_word().to_owned();
            let file = format!(r#"{{"desired_state":"{desired}","setBy":"{by}","note":"run_once is done"}}"#);
            let SharedState { set_by, note, document, .. } = SharedState::parse(file.as_bytes()).unwrap();
            assert!(document.to_line().contains("run_once is done"), "the file stays as it is");
            (set_by, note)
        };
        let note = || "run_once is done".to_owned();
        assert_eq!(parsed("pause", SetBy::Brigade), (SetBy::Brigade, note()));
        assert_eq!(parsed("continuous", SetBy::Brigade), (SetBy::default(), String::new()));
        assert_eq!(parsed("continuous", SetBy::Person), (SetBy::Person, note()));
    }

    #[test]
    fn unknown_desired_state_is_pause_and_kept_in_file() {
        let state =
            SharedState::parse(br#"{"desired_state":"hyperdrive","current_state":"pause","mine":[1.0]}"#).unwrap();
        assert_eq!((state.desired, state.unknown_desired.as_deref()), (Mode::Pause, Some("hyperdrive")));
        let update =
            StateUpdate { report: Some(StateReport { team: "t".into(), ..StateReport::default() }), desired: None };
        let merged = state.merge(&update, UnixMs(0)).to_file();
        assert!(merged.contains("hyperdrive") && merged.contains("1.0"), "{merged}");
    }

    #[test]
    fn unknown_desired_state_warning_names_nearest() {
        let warning = |word: &str| {
            let file = format!(r#"{{"desired_state":"{word}","current_state":"pause"}}"#);
            SharedState::parse(file.as_bytes()).unwrap().unknown_desired_warning()
        };
        let nearest = "unknown desired_state `contineous`, treated as pause (did you mean `continuous`?)";
        assert_eq!(warning("contineous").as_deref(), Some(nearest));
        assert!(warning("hyperdrive").unwrap().ends_with("(the states are continuous, run_once, run_cleanup, pause)"));
        assert_eq!(warning("run_once"), None);
    }

    #[test]
    fn missing_desired_state_is_completed_by_report() {
        let report = StateReport { team: "t".into(), ..StateReport::default() };
        let update = StateUpdate { report: Some(report.clone()), desired: None };
        for file in
            [r#"{"team": "t", "teammates": {}, "mine": 1}"#, r#"{"team": "t", "desired_state": null, "mine": 1}"#]
        {
            let state = SharedState::parse(file.as_bytes()).unwrap();
            assert!(!state.contains_report(&report));
            let merged = state.merge(&update, UnixMs(9));
            assert!(merged.contains_report(&report) && merged.desired == Mode::Pause);
            let text = merged.to_file();
            assert!(text.contains("\"desired_state\": \"pause\"") && text.contains("\"mine\": 1"), "{text}");
        }
    }

    #[test]
    fn wait_without_session_is_removed_with_its_report() {
        let report = |waiting_for| StateReport { team: "t".into(), waiting_for, ..StateReport::default() };
        let (waits, works) = (report(Some(WaitingFor::Other("a task".to_owned()))), report(None));
        let merged = |state: SharedState, report: &StateReport| {
            let update = StateUpdate { report: Some(report.clone()), desired: None };
            SharedState::parse(state.merge(&update, UnixMs(9)).to_file().as_bytes()).unwrap()
        };
        let state = merged(SharedState::paused(UnixMs(0)), &waits);
        assert!(state.waiting_for() == waits.waiting_for && !state.contains_report(&works));
        let state = merged(state, &works);
        assert!(state.waiting_for().is_none() && state.contains_report(&works) && !state.contains_report(&waits));
    }

    #[test]
    fn merged_state_file_carries_report() {
        let report = StateReport { team: "t".into(), current: Some(Mode::RunOnce), ..StateReport::default() };
        let update = StateUpdate { report: Some(report.clone()), desired: None };
        let merged = SharedState::paused(UnixMs(0)).merge(&update, UnixMs(9));
        assert!(SharedState::parse(merged.to_file().as_bytes()).unwrap().contains_report(&report));
        assert!(!SharedState::paused(UnixMs(0)).contains_report(&report));
    }

    proptest::proptest! {
        /// Otherwise each read would find a different report in the file and correct it again.
        #[test]
        fn state_file_carries_report_with_any_cost(bits: u64, tokens: u64) {
            let cost_usd = Some(f64::from_bits(bits)).filter(|cost| cost.is_finite()).unwrap_or(0.103_256_999_999_999_99);
            let row = Arc::new(row(tokens, cost_usd));
            let teammates = Arc::new(TeammateReports::from([("ann".to_owned(), Arc::clone(&row))]));
            let waiting_for = (tokens % 2 == 0).then_some(WaitingFor::Other("a task".to_owned()));
            let report =
                StateReport { team: "t".into(), current: Some(Mode::RunOnce), teammates, lead: Some(row), waiting_for };
            let update = StateUpdate { report: Some(report.clone()), desired: None };
            let text = SharedState::paused(UnixMs(0)).merge(&update, UnixMs(9)).to_file();
            proptest::prop_assert!(SharedState::parse(text.as_bytes()).unwrap().contains_report(&report), "{text}");
        }
    }
}
