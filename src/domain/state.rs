//! The shared state file: what the person wants, what the team does, and how one is merged into the other.
//!
//! `desired_state` is the person's: Brigade changes it only at the documented endings, and only while it still is the one
//! being ended. The other fields are Brigade's and authoritative in its memory. Fields of others are kept.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::document::{Document, DocumentError};
use super::name::LEAD;
use super::task::TaskId;
use super::time::UnixMs;
use super::waiting_for::WaitingFor;

/// What a team is to do, or does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One session after the other, as long as there is work.
    Continuous,
    /// One session.
    RunOnce,
    /// One session that tidies up.
    RunCleanup,
    /// Nothing new.
    Pause,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Continuous, Self::RunOnce, Self::RunCleanup, Self::Pause];

    /// The word that stands in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Continuous => "continuous",
            Self::RunOnce => "run_once",
            Self::RunCleanup => "run_cleanup",
            Self::Pause => "pause",
        }
    }

    /// The mode this word stands for.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == word)
    }

    /// Whether it ends by itself after one session.
    #[must_use]
    pub fn is_one_shot(self) -> bool {
        matches!(self, Self::RunOnce | Self::RunCleanup)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a teammate does, as people and programs read it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeammateReport {
    /// Its role.
    pub role: String,
    /// `work`, `stalled` (at work without a sign of life), `idle`, `stopping`, `stopped` (as it was asked), `dead`.
    pub phase: String,
    /// The task it holds.
    pub task: Option<TaskId>,
    /// Its attempt of that task.
    pub attempt: Option<u32>,
    /// Since when it is in this phase.
    pub since: String,
    /// When the harness last saw it alive.
    pub heartbeat: String,
    /// Tokens it has used.
    pub tokens: u64,
    /// What they cost, in US dollars.
    pub cost_usd: f64,
    /// What it waits for: a person, a limit, mail; `None` while it works.
    pub waiting_for: Option<WaitingFor>,
}

impl TeammateReport {
    /// Whether it is not there any more, for whatever reason.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        ["stopped", "dead"].contains(&self.phase.as_str())
    }
}

/// How each teammate stands, by name. Copies share what did not change.
pub type TeammateReports = BTreeMap<String, Arc<TeammateReport>>;

/// Brigade's part of the file.
#[derive(Debug, Clone, Default)]
pub struct StateReport {
    /// The team.
    pub team: String,
    /// What it does; `None` leaves what the file says.
    pub current: Option<Mode>,
    /// How each teammate stands.
    pub teammates: Arc<TeammateReports>,
    /// How the lead stands, where it has a model. It is no teammate: who counts those must not count it.
    pub lead: Option<Arc<TeammateReport>>,
}

impl PartialEq for StateReport {
    fn eq(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.teammates, &other.teammates) || self.teammates == other.teammates;
        self.team == other.team && self.current == other.current && self.lead == other.lead && is_same
    }
}

/// A change of the desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetDesired {
    /// The new one.
    pub mode: Mode,
    /// `human` or `agent`.
    pub by: String,
    /// Why, for people.
    pub note: String,
    /// Do it only where this stands: what was not a person's wish must not undo one.
    pub only_if: Option<Expected>,
}

/// What a change of the desired state is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// There is no file.
    NoFile,
    /// The file says this, whoever set it.
    Mode(Mode),
    /// The file says this with this note.
    Noted(Mode, String),
}

/// What is to be merged into the file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StateUpdate {
    /// Brigade's own fields.
    pub report: Option<StateReport>,
    /// A change of the desired state.
    pub desired: Option<SetDesired>,
}

/// The shared state as a reader finds it.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedState {
    /// What the person wants. A word nobody knows counts as pause.
    pub desired: Mode,
    /// The word itself, where nobody knows it.
    pub unknown_desired: Option<String>,
    /// What the team says it does.
    pub current: Mode,
    /// Who set the desired state.
    pub set_by: String,
    /// Why.
    pub note: String,
    /// The file as it was read.
    pub document: Document,
    /// The report that was merged into it, where it was not read from a file since.
    merged: Option<StateReport>,
    /// Whether there was no file.
    is_fresh: bool,
}

impl SharedState {
    /// What stands where there was no file: pause, pause.
    #[must_use]
    pub fn fresh(now: UnixMs) -> Self {
        let mut document = Document::default();
        document.put("desired_state", &Mode::Pause);
        document.put("current_state", &Mode::Pause);
        document.put("timestamp", &now.to_iso());
        document.put("setBy", &"agent");
        document.put("note", &"");
        Self {
            desired: Mode::Pause,
            unknown_desired: None,
            current: Mode::Pause,
            set_by: "agent".into(),
            note: String::new(),
            document,
            merged: None,
            is_fresh: true,
        }
    }

    /// Reads the bytes of `agent_state.json`.
    ///
    /// # Errors
    /// [`DocumentError`] when they are no JSON object. Known fields of a wrong type do not make it malformed: a
    /// `desired_state` that is no known word counts as pause, the others as missing.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let document = Document::parse(bytes)?;
        let word = |field: &str| -> Option<String> {
            let value: Value = document.get(field).ok()??;
            Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        let desired_word = word("desired_state");
        let desired = desired_word.as_deref().and_then(Mode::from_word);
        Ok(Self {
            desired: desired.unwrap_or(Mode::Pause),
            unknown_desired: desired_word.filter(|_| desired.is_none()),
            current: word("current_state").as_deref().and_then(Mode::from_word).unwrap_or(Mode::Pause),
            set_by: word("setBy").unwrap_or_default(),
            note: word("note").unwrap_or_default(),
            document,
            merged: None,
            is_fresh: false,
        })
    }

    /// The state with `update` merged in. Pure: merging the same update again changes nothing but the time.
    #[must_use]
    pub fn merge(&self, update: &StateUpdate, now: UnixMs) -> Self {
        let mut next = Self { is_fresh: false, ..self.clone() };
        if let Some(report) = &update.report {
            if let Some(current) = report.current {
                next.current = current;
                next.document.put("current_state", &current);
            }
            next.document.put("team", &report.team);
            let is_there = self.merged.as_ref().is_some_and(|merged| Arc::ptr_eq(&merged.teammates, &report.teammates));
            if !is_there {
                next.document.put("teammates", &report.teammates);
            }
            match &report.lead {
                Some(lead) if lead_in(&next.document).as_ref() != Some(lead) => next.document.put(LEAD, lead),
                // That of a team that ran here before; what somebody else calls so is theirs.
                None if lead_in(&next.document).is_some() => next.document.remove(LEAD),
                _ => {}
            }
            next.merged = Some(report.clone());
        }
        if let Some(set) = &update.desired
            && set.only_if.as_ref().is_none_or(|expected| self.is_as(expected))
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

    fn is_as(&self, expected: &Expected) -> bool {
        let is_set_to = |mode: Mode| mode == self.desired && self.unknown_desired.is_none() && !self.is_fresh;
        match expected {
            Expected::NoFile => self.is_fresh,
            Expected::Mode(mode) => is_set_to(*mode),
            Expected::Noted(mode, note) => is_set_to(*mode) && self.note == *note,
        }
    }

    /// How the lead of the team that last reported stands, where it has a model.
    #[must_use]
    pub fn lead(&self) -> Option<Arc<TeammateReport>> {
        lead_in(&self.document)
    }

    /// The team that last reported into the file.
    #[must_use]
    pub fn team(&self) -> Option<String> {
        self.document.get("team").ok().flatten()
    }

    /// The file's text.
    #[must_use]
    pub fn to_file(&self) -> String {
        self.document.to_pretty()
    }

    /// Whether Brigade's own fields in the file are those of `report`, apart from times.
    #[must_use]
    pub fn carries(&self, report: &StateReport) -> bool {
        if let Some(merged) = &self.merged {
            let current = report.current.unwrap_or(self.current);
            return current == self.current && *merged == StateReport { current: merged.current, ..report.clone() };
        }
        let teammates: Option<TeammateReports> = self.document.get("teammates").ok().flatten();
        let team = self.team();
        report.current.is_none_or(|current| current == self.current)
            && team.as_deref() == Some(&report.team)
            && teammates.as_ref() == Some(&*report.teammates)
            && self.lead() == report.lead
    }
}

fn lead_in(document: &Document) -> Option<Arc<TeammateReport>> {
    document.get(LEAD).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tokens: u64, cost_usd: f64) -> TeammateReport {
        TeammateReport {
            role: "coder".into(),
            phase: "work".into(),
            task: None,
            attempt: None,
            since: String::new(),
            heartbeat: String::new(),
            tokens,
            cost_usd,
            waiting_for: None,
        }
    }

    #[test]
    fn a_lead_stands_beside_the_teammates_and_goes_with_its_team() {
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
        assert!(read.carries(&team(Some(1))) && !read.carries(&team(Some(2))) && !read.carries(&team(None)));
        let file = merged(&file, &team(None));
        assert!(!file.contains("\"lead\"") && SharedState::parse(file.as_bytes()).unwrap().carries(&team(None)));
        // What another program calls so is kept while it can be.
        let file = merged(r#"{"lead":"Zoe"}"#, &team(None));
        assert!(file.contains("Zoe") && SharedState::parse(file.as_bytes()).unwrap().carries(&team(None)), "{file}");
    }

    fn set(mode: Mode, only_if: Option<Mode>) -> StateUpdate {
        let only_if = only_if.map(Expected::Mode);
        StateUpdate {
            desired: Some(SetDesired { mode, by: "agent".into(), note: "done".into(), only_if }),
            report: None,
        }
    }

    #[test]
    fn an_ending_does_not_undo_a_click() {
        let clicked = SharedState::fresh(UnixMs(0)).merge(&set(Mode::Continuous, None), UnixMs(1));
        let ended = clicked.merge(&set(Mode::Pause, Some(Mode::RunOnce)), UnixMs(2));
        assert_eq!(ended.desired, Mode::Continuous);
        assert_eq!(clicked.merge(&set(Mode::Pause, Some(Mode::Continuous)), UnixMs(2)).desired, Mode::Pause);
    }

    #[test]
    fn an_unknown_word_is_pause_and_is_kept() {
        let state =
            SharedState::parse(br#"{"desired_state":"hyperdrive","current_state":"pause","mine":[1.0]}"#).unwrap();
        assert_eq!((state.desired, state.unknown_desired.as_deref()), (Mode::Pause, Some("hyperdrive")));
        let update =
            StateUpdate { report: Some(StateReport { team: "t".into(), ..StateReport::default() }), desired: None };
        let merged = state.merge(&update, UnixMs(0)).to_file();
        assert!(merged.contains("hyperdrive") && merged.contains("1.0"), "{merged}");
    }

    #[test]
    fn a_report_is_found_again_in_the_file_it_was_merged_into() {
        let report = StateReport { team: "t".into(), current: Some(Mode::RunOnce), ..StateReport::default() };
        let update = StateUpdate { report: Some(report.clone()), desired: None };
        let merged = SharedState::fresh(UnixMs(0)).merge(&update, UnixMs(9));
        assert!(SharedState::parse(merged.to_file().as_bytes()).unwrap().carries(&report));
        assert!(!SharedState::fresh(UnixMs(0)).carries(&report));
    }

    proptest::proptest! {
        /// Else each look at the file would find another's report in it, and correct that for ever.
        #[test]
        fn any_cost_is_found_again_in_the_file(bits: u64, tokens: u64) {
            let cost_usd = Some(f64::from_bits(bits)).filter(|cost| cost.is_finite()).unwrap_or(0.103_256_999_999_999_99);
            let row = Arc::new(row(tokens, cost_usd));
            let teammates = Arc::new(TeammateReports::from([("ann".to_owned(), Arc::clone(&row))]));
            let report =
                StateReport { team: "t".into(), current: Some(Mode::RunOnce), teammates, lead: Some(row) };
            let update = StateUpdate { report: Some(report.clone()), desired: None };
            let text = SharedState::fresh(UnixMs(0)).merge(&update, UnixMs(9)).to_file();
            proptest::prop_assert!(SharedState::parse(text.as_bytes()).unwrap().carries(&report), "{text}");
        }
    }
}
