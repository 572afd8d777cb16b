//! The timeline of a run without a screen of its own: a line for each fact a person cares about.
//!
//! Facts of the same kind that come together (twenty tasks created, ten teammates stopped) become one line, so a fact is
//! held back until the next one comes or [`Timeline::finish`] is called.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use anstyle::Style;

use super::style::{self, BAD, BOLD, DIM, GOOD, PLAIN, WARN, paint};
use super::text::{self, ago, count, cut, duration, first_line, fold, one_line, pad, width};
use crate::domain::event::{Event, Fact, HeldRow};
use crate::domain::name::LEAD;
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;

/// Tasks that are named of those a run takes up; more are counted.
const TAKEN_UP_MAX: usize = 5;
/// Names are aligned up to this width.
const NAME_WIDTH_MAX: usize = 14;
/// Names in one line; more are counted.
const NAMES_MAX: usize = 8;
/// Tasks created together in up to this number have a line each.
const CREATED_APART_MAX: usize = 3;
/// A tool that took longer is worth a line.
const TOOL_SLOW: Duration = Duration::from_secs(10);
/// Subjects that are remembered to name tasks by; those of more tasks are not shown.
const SUBJECTS_MAX: usize = 100_000;

/// Tools whose effect is a fact of its own, told as such; their calls are told only when they fail.
const TOLD_BY_FACTS: [&str; 7] =
    ["task_create", "task_update", "claim_task", "send_message", "broadcast", "plan_approval", "idle"];

/// What a report of a task is, and what it does by itself.
const REPORT: &str = "task_update";
const VERIFY: &str = "verify";
const MERGE: &str = "merge";

/// A fact that is told whole takes at most so many lines.
const FOLDED_LINES_MAX: usize = 16;
/// In less room than this lines are cut, not folded.
const FOLDED_WIDTH_MIN: usize = 16;

/// How much of a fact is told.
#[derive(Debug, Clone, Copy)]
enum Extent {
    /// What fits one line.
    Line,
    /// All of it.
    Whole,
}

impl Extent {
    fn of(fact: &Fact) -> Self {
        match fact {
            Fact::SessionFinished { .. }
            | Fact::TaskFailed { .. }
            | Fact::TaskReleased { .. }
            | Fact::TaskReclaimed { .. }
            | Fact::Warning { .. }
            | Fact::ToolFinished { ok: false, .. } => Self::Whole,
            _ => Self::Line,
        }
    }
}

/// Who acts where no teammate does.
const TEAM: &str = "team";

/// What is told of a fact: who, and what in which style.
type Told = (String, String, Style);

/// Facts that wait for more of their kind.
#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    Created {
        at: UnixMs,
        by: String,
        tasks: Vec<TaskId>,
    },
    Stopped {
        at: UnixMs,
        reason: String,
        teammates: Vec<String>,
    },
}

/// Turns events into lines, in their order.
#[derive(Debug)]
pub struct Timeline {
    columns: usize,
    started: Option<UnixMs>,
    name_width: usize,
    order: HashMap<String, usize>,
    expected: HashSet<String>,
    subjects: BTreeMap<TaskId, String>,
    /// Who was told of to have a red verify or a refused merge since it began its report: what follows from that is not told again.
    reds: HashSet<String>,
    /// What was last told of a task's status, so that a change of its text alone is not told.
    statuses: HashMap<TaskId, String>,
    held: Held,
    /// What the lead said and nobody was told yet: its report comes with the end of the session.
    waits_to_be_said: Option<(UnixMs, String)>,
    /// What the lead said last, where it was told whole.
    last_said: Option<String>,
}

impl Timeline {
    /// A timeline for lines of at most `columns`.
    #[must_use]
    pub fn new(columns: usize) -> Self {
        Self {
            columns,
            started: None,
            name_width: TEAM.len(),
            order: HashMap::new(),
            expected: HashSet::new(),
            subjects: BTreeMap::new(),
            reds: HashSet::new(),
            statuses: HashMap::new(),
            held: Held::Nothing,
            waits_to_be_said: None,
            last_said: None,
        }
    }

    /// Lines have at most so many columns from now on.
    pub fn set_columns(&mut self, columns: usize) {
        self.columns = columns;
    }

    /// Times are told since then, whatever event comes first.
    pub fn begin(&mut self, started: UnixMs) {
        self.started = Some(started);
    }

    /// Says who is in the team.
    pub fn know<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            self.expected.insert(name.to_owned());
            self.place(name);
        }
    }

    /// Says what a task is about that was on the board before.
    pub fn learn(&mut self, task: TaskId, subject: &str) {
        if self.subjects.len() < SUBJECTS_MAX {
            self.subjects.insert(task, one_line(subject));
        }
    }

    /// Says that the lead said this, and it was shown elsewhere.
    pub fn heard(&mut self, text: &str) {
        self.last_said = Some(text.to_owned());
    }

    /// The lines this event is the reason for, each ended by a newline; often none.
    pub fn push(&mut self, event: &Event) -> String {
        self.started.get_or_insert(event.at);
        // What the facts around it say is told of them.
        if matches!(event.fact, Fact::Board { .. } | Fact::Team { .. }) {
            return String::new();
        }
        self.meet(&event.fact);
        let is_news = self.is_news(&event.fact) && !self.follows_from_red(&event.fact);
        if !is_news || self.hold(event) {
            return String::new();
        }
        match &event.fact {
            Fact::Said { teammate, text, .. } if teammate == LEAD && !text.trim().is_empty() => {
                let lines = self.finish();
                self.waits_to_be_said = Some((event.at, text.clone()));
                return lines;
            }
            Fact::SessionFinished { summary, .. } => {
                let is_in = |(_, said): &mut (UnixMs, String)| summary.starts_with(said.as_str());
                self.waits_to_be_said.take_if(is_in);
            }
            _ => {}
        }
        let mut lines = self.finish_held();
        let is_held = self.hold(event);
        let told = if is_held { None } else { self.tell(event) };
        if is_held || told.is_some() {
            lines.push_str(&self.finish_said());
        }
        if let Some((who, what, style)) = told {
            lines.push_str(&self.lines(event.at, &who, &what, style, Extent::of(&event.fact)));
        }
        lines
    }

    /// The line of what the lead said.
    fn finish_said(&mut self) -> String {
        let Some((at, text)) = self.waits_to_be_said.take() else { return String::new() };
        let line = self.line(at, LEAD, &format!("says: {text}"), DIM);
        // What was cut is said whole at the end of the session.
        self.last_said = Some(text).filter(|text| line.contains(&one_line(text)));
        line
    }

    /// The lines of what was held back.
    pub fn finish(&mut self) -> String {
        let held = self.finish_held();
        held + &self.finish_said()
    }

    fn finish_held(&mut self) -> String {
        match std::mem::take(&mut self.held) {
            Held::Nothing => String::new(),
            Held::Created { at, by, tasks } if tasks.len() <= CREATED_APART_MAX => tasks
                .iter()
                .map(|task| {
                    let what = format!("adds {}", self.named(*task));
                    self.line(at, &by, &what, DIM)
                })
                .collect(),
            Held::Created { at, by, tasks } => {
                let (first, last) = (tasks.iter().min(), tasks.iter().max());
                let span = first.zip(last).map(|(first, last)| format!(": {first} to {last}")).unwrap_or_default();
                self.line(at, &by, &format!("adds {}{span}", count(tasks.len(), "task")), DIM)
            }
            Held::Stopped { at, reason, teammates } => {
                let what = format!("stopped: {}", one_line(&reason));
                match teammates.as_slice() {
                    [one] => self.line(at, one, &what, DIM),
                    several => self.line(at, TEAM, &format!("{} {what}", names(several)), DIM),
                }
            }
        }
    }

    /// Takes note of names and subjects, whether the fact is told or not.
    fn meet(&mut self, fact: &Fact) {
        match fact {
            Fact::TeamStarted { members, .. } => self.know(members.iter().map(String::as_str)),
            Fact::TeammateSpawned { teammate, .. } | Fact::TaskClaimed { teammate, .. } => self.place(teammate),
            Fact::TaskCreated { task, subject, by } => {
                self.learn(*task, subject);
                self.place(by);
            }
            Fact::TaskChanged { by, .. } | Fact::TaskDeleted { by, .. } => self.place(by),
            _ => {}
        }
    }

    /// Takes note of where a task stands after the fact; whether that is news.
    fn is_news(&mut self, fact: &Fact) -> bool {
        let (task, status) = match fact {
            Fact::TaskCreated { task, .. } | Fact::TaskReleased { task, .. } | Fact::TaskReclaimed { task, .. } => {
                (task, "pending")
            }
            Fact::TaskClaimed { task, .. } => (task, "in_progress"),
            Fact::TaskCompleted { task, .. } => (task, "completed"),
            Fact::TaskFailed { task, .. } => (task, "failed"),
            Fact::TaskChanged { task, status, .. } => (task, status.as_str()),
            _ => return true,
        };
        let before = if self.statuses.len() < SUBJECTS_MAX || self.statuses.contains_key(task) {
            self.statuses.insert(*task, status.to_owned())
        } else {
            None
        };
        !matches!(fact, Fact::TaskChanged { .. }) || before.as_deref().unwrap_or("pending") != status
    }

    /// Takes note of a red verify and a refused merge; whether the fact is only that the merge, or the report, failed for that.
    fn follows_from_red(&mut self, fact: &Fact) -> bool {
        match fact {
            Fact::ToolStarted { teammate, tool, .. } if tool == REPORT => {
                self.reds.remove(teammate);
                false
            }
            Fact::ToolFinished { teammate, tool, ok: false, .. } if tool == VERIFY || tool == MERGE => {
                !self.reds.insert(teammate.clone()) && tool == MERGE
            }
            Fact::ToolFinished { teammate, tool, .. } if tool == REPORT => self.reds.remove(teammate),
            _ => false,
        }
    }

    fn place(&mut self, name: &str) {
        let next = self.order.len();
        self.order.entry(name.to_owned()).or_insert(next);
        self.name_width = self.name_width.max(width(&one_line(name)).min(NAME_WIDTH_MAX));
    }

    /// Adds the event to those held back, where it is of their kind or the first of one.
    fn hold(&mut self, event: &Event) -> bool {
        match (&event.fact, &mut self.held) {
            (Fact::TaskCreated { task, by, .. }, Held::Created { by: same, tasks, .. }) if by == same => {
                tasks.push(*task);
            }
            (Fact::TaskCreated { task, by, .. }, Held::Nothing) => {
                self.held = Held::Created { at: event.at, by: by.clone(), tasks: vec![*task] };
            }
            (Fact::TeammateStopped { teammate, reason, .. }, Held::Stopped { reason: same, teammates, .. })
                if reason == same =>
            {
                teammates.push(teammate.clone());
            }
            (Fact::TeammateStopped { teammate, reason, .. }, Held::Nothing) => {
                let teammates = vec![teammate.clone()];
                self.held = Held::Stopped { at: event.at, reason: reason.clone(), teammates };
            }
            _ => return false,
        }
        true
    }

    fn named(&self, task: TaskId) -> String {
        match self.subjects.get(&task) {
            Some(subject) => format!("{task} {subject}"),
            None => task.to_string(),
        }
    }

    /// One line: the time since the start, who, what.
    fn line(&self, at: UnixMs, who: &str, what: &str, style: Style) -> String {
        self.lines(at, who, what, style, Extent::Line)
    }

    /// The same in as many lines as it needs, where it is to be told whole.
    fn lines(&self, at: UnixMs, who: &str, what: &str, style: Style, extent: Extent) -> String {
        let clock = elapsed(at.since(self.started.unwrap_or(at)));
        let who = one_line(who);
        let name = pad(&cut(&who, self.name_width), self.name_width);
        let color = self.order.get(&who).map_or(BOLD, |index| style::teammate(*index));
        let used = width(&clock) + width(&name) + 4;
        if self.columns <= used {
            return format!("{}\n", cut(&format!("{clock}  {}", name.trim_end()), self.columns));
        }
        let room = self.columns - used;
        // What went wrong, and how it ended, is told to its end: its last words matter.
        let is_whole = matches!(extent, Extent::Whole) && room >= FOLDED_WIDTH_MIN;
        let mut lines = fold(&one_line(what), room, if is_whole { FOLDED_LINES_MAX } else { 1 }).into_iter();
        let first = lines.next().unwrap_or_default();
        let mut out = format!("{}  {}  {}\n", paint(DIM, &clock), paint(color, &name), paint(style, &first));
        for line in lines {
            out.push_str(&format!("{}{}\n", " ".repeat(used), paint(style, &line)));
        }
        out
    }

    /// What a person is told of the fact; `None` for what nobody needs to read as it happens.
    fn tell(&self, event: &Event) -> Option<Told> {
        let told = |who: &str, what: String, style: Style| Some((who.to_owned(), what, style));
        match &event.fact {
            Fact::TeamStarted { team, members } => told(TEAM, format!("{team} starts: {}", names(members)), BOLD),
            Fact::TeamStopped { team, reason } => told(TEAM, format!("{team} stops: {reason}"), BOLD),
            Fact::TakenUp { claims } => {
                let held = |row: &HeldRow| format!("{} of {}", self.named(row.task), row.teammate);
                let named: Vec<String> = claims.iter().take(TAKEN_UP_MAX).map(held).collect();
                let more = claims.len().saturating_sub(TAKEN_UP_MAX);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                told(TEAM, format!("the run before was killed; taken up: {}{more}", named.join(", ")), WARN)
            }
            Fact::ModeChanged { desired, current, note } => {
                let note = if note.is_empty() { String::new() } else { format!(": {note}") };
                told(TEAM, format!("desired {desired}, current {current}{note}"), DIM)
            }
            Fact::SessionStarted { session, mode } => told(TEAM, format!("session {session} begins ({mode})"), DIM),
            Fact::SessionFinished { session, summary, outcome: Some(outcome), .. } => {
                let rest = self.last_said.as_ref().and_then(|said| summary.strip_prefix(said.as_str()));
                let words = match rest {
                    Some(rest) => rest.to_owned(),
                    None => format!(" The lead says: {summary}"),
                };
                told(TEAM, format!("session {session} is over: {outcome}.{words}"), PLAIN)
            }
            Fact::SessionFinished { session, summary, .. } => {
                told(TEAM, format!("session {session} is over: {summary}"), PLAIN)
            }
            Fact::TeammateSpawned { teammate, .. } if self.expected.contains(teammate) => None,
            Fact::TeammateSpawned { teammate, role } => told(teammate, format!("joins as {role}"), PLAIN),
            Fact::TeammateRespawned { teammate, reason, respawns } => {
                told(teammate, format!("started again (restart {respawns}): {}", text::reason(reason)), WARN)
            }
            Fact::StopAsked { teammate, now } => {
                let when = if *now { "now" } else { "after its turn" };
                told(teammate, format!("is asked to stop, {when}"), PLAIN)
            }
            Fact::MessageSent { from, to, about, .. } => told(from, format!("to {to}: {about}"), PLAIN),
            Fact::Compacted { teammate, covers } => {
                told(teammate, format!("context compacted: a summary stands for {covers} records"), DIM)
            }
            Fact::BudgetSpent { limit, spent } => told(TEAM, format!("budget spent: {spent} of {limit}"), BAD),
            Fact::Warning { about, text } => told(TEAM, format!("warning: {about}: {text}"), WARN),
            Fact::Note { about, text } => told(TEAM, format!("{about}: {text}"), GOOD),
            Fact::TaskSpoiled { file, reason } => told(TEAM, format!("{file} is no task: {reason}"), WARN),
            Fact::Said { teammate, text, .. } if !text.trim().is_empty() => {
                told(teammate, format!("says: {text}"), DIM)
            }
            other => self.tell_task(event.at, other).or_else(|| tell_tool(other)),
        }
    }

    fn tell_task(&self, at: UnixMs, fact: &Fact) -> Option<Told> {
        let told = |who: &str, what: String, style: Style| Some((who.to_owned(), what, style));
        match fact {
            Fact::TaskClaimed { task, attempt, teammate } => {
                let again = if *attempt > 1 { format!(" (attempt {attempt})") } else { String::new() };
                told(teammate, format!("claims {}{again}", self.named(*task)), PLAIN)
            }
            Fact::TaskCompleted { task, teammate, evidence, .. } => {
                let evidence = if evidence.is_empty() { String::new() } else { format!(" ({})", first_line(evidence)) };
                told(teammate, format!("completes {}{evidence}", self.named(*task)), GOOD)
            }
            Fact::TaskFailed { task, teammate, reason, .. } => {
                told(teammate, format!("{task} failed and is given up: {}", text::reason(reason)), BAD)
            }
            Fact::TaskReleased { task, teammate, reason, not_before, .. } => {
                let again = not_before.map(|until| format!("; again {}", ago(until, at))).unwrap_or_default();
                let reason = if reason.is_empty() { "unfinished".to_owned() } else { text::reason(reason) };
                told(teammate, format!("gives {task} back: {reason}{again}"), WARN)
            }
            Fact::TaskReclaimed { task, teammate, reason, .. } => {
                told(teammate, format!("loses {task}: {}", text::reason(reason)), WARN)
            }
            Fact::TaskChanged { task, status, by } => told(by, format!("sets {} to {status}", self.named(*task)), DIM),
            Fact::TaskDeleted { task, by } => told(by, format!("deletes {}", self.named(*task)), DIM),
            _ => None,
        }
    }
}

fn tell_tool(fact: &Fact) -> Option<Told> {
    match fact {
        Fact::ToolStarted { tool, .. } if TOLD_BY_FACTS.contains(&tool.as_str()) => None,
        Fact::ToolStarted { teammate, tool, about, .. } => Some((teammate.clone(), format!("{tool}  {about}"), DIM)),
        Fact::ToolFinished { teammate, tool, ok: false, ms, reason, .. } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let text = format!("{tool} failed after {}{reason}", duration(Duration::from_millis(*ms)));
            Some((teammate.clone(), text, WARN))
        }
        Fact::ToolFinished { teammate, tool, ms, .. } if Duration::from_millis(*ms) >= TOOL_SLOW => {
            let text = format!("{tool} took {}", duration(Duration::from_millis(*ms)));
            Some((teammate.clone(), text, DIM))
        }
        Fact::ModelRetried { teammate, reason, wait_ms, retries } => {
            let wait = duration(Duration::from_millis(*wait_ms));
            Some((teammate.clone(), format!("asks the model again in {wait} (retry {retries}): {reason}"), WARN))
        }
        _ => None,
    }
}

fn names(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `0:07`, `12:30`, `1:02:03`.
#[must_use]
pub fn elapsed(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds / 3600 {
        0 => format!("{:>2}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::state::Mode;
    use proptest::prelude::*;

    fn events() -> Vec<Event> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/contracts/events.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let mut events: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let start = events.last().unwrap().at;
        let (alice, bob) = ("alice".to_owned(), "bob-the-very-long-name".to_owned());
        let mut facts: Vec<Fact> = (10..30)
            .map(|id| Fact::TaskCreated { task: TaskId(id), subject: format!("Part {id}"), by: "lead".into() })
            .collect();
        facts.extend([
            Fact::TaskClaimed { task: TaskId(12), attempt: 2, teammate: bob.clone() },
            Fact::TaskReleased {
                task: TaskId(12),
                attempt: 2,
                teammate: bob.clone(),
                reason: "verify `make` came out red: exit status 1\na.c:3: error: no\nmake: *** [all] Error 1".into(),
                not_before: Some(start.plus(Duration::from_secs(14))),
            },
            Fact::TaskFailed {
                task: TaskId(12),
                attempt: 3,
                teammate: alice.clone(),
                reason: "gave \x1b[2J up".into(),
            },
            Fact::TaskReclaimed { task: TaskId(13), attempt: 1, teammate: alice.clone(), reason: "stalled".into() },
            Fact::TeammateRespawned { teammate: alice.clone(), reason: "panicked".into(), respawns: 1 },
            Fact::TeammateSpawned { teammate: "carol".into(), role: "reviewer".into() },
            Fact::TeammateSpawned { teammate: alice.clone(), role: "coder".into() },
            Fact::MessageSent {
                from: bob.clone(), to: "lead".into(), message: "m-1".into(), about: "日本語".into()
            },
            Fact::ToolFinished {
                teammate: bob.clone(),
                task: None,
                tool: "bash".into(),
                call: "c".into(),
                ok: false,
                ms: 12_000,
                reason: Some("exit status 1: docs/z.txt: Read-only file system".into()),
            },
            Fact::ModelRetried { teammate: alice.clone(), reason: "429".into(), wait_ms: 2_000, retries: 1 },
            Fact::TaskChanged { task: TaskId(14), status: "pending".into(), by: "human".into() },
            Fact::TaskChanged { task: TaskId(12), status: "pending".into(), by: "human".into() },
            Fact::Warning { about: "disk".into(), text: "nearly full".into() },
            Fact::ModeChanged { desired: Mode::Pause, current: Mode::RunOnce, note: String::new() },
            Fact::TeammateStopped { teammate: alice, reason: "the session is over".into(), is_dead: false },
            Fact::TeammateStopped { teammate: bob, reason: "the session is over".into(), is_dead: false },
            Fact::TeammateStopped { teammate: "carol".into(), reason: "asked to".into(), is_dead: false },
            Fact::TeamStopped { team: "my-team".into(), reason: "done".into() },
        ]);
        let next = events.len() as u64 + 1;
        events.extend(facts.into_iter().enumerate().map(|(index, fact)| Event {
            v: 1,
            seq: next + index as u64,
            at: start.plus(Duration::from_millis(500 * index as u64)),
            fact,
        }));
        events
    }

    fn told(columns: usize) -> String {
        let mut timeline = Timeline::new(columns);
        let mut out: String = events().iter().map(|event| timeline.push(event)).collect();
        out.push_str(&timeline.finish());
        anstream::adapter::strip_str(&out).to_string()
    }

    #[test]
    fn a_run_is_told_line_by_line() {
        insta::assert_snapshot!(format!("{}---\n{}", told(100), told(40)));
    }

    #[test]
    fn the_end_of_a_session_is_told_by_its_figures_and_the_lead_s_words_once() {
        let said = |text: &str| Fact::Said { teammate: LEAD.into(), task: None, text: text.into() };
        let over = Fact::SessionFinished {
            session: 1,
            summary: "All is done. Nobody is left.".into(),
            outcome: Some("3 completed, 2 failed (#2, #3)".into()),
            tally: crate::domain::event::Tally::default(),
            goal: None,
        };
        let phase = Fact::TeammatePhase { teammate: LEAD.into(), phase: "idle".into(), task: None, waiting_for: None };
        let told = |facts: &[&Fact], is_quiet: bool| {
            let mut timeline = Timeline::new(200);
            let mut out = String::new();
            for (seq, fact) in facts.iter().enumerate() {
                out += &timeline.push(&Event { v: 1, seq: seq as u64, at: UnixMs(5), fact: (*fact).clone() });
                if is_quiet {
                    out += &timeline.finish();
                }
            }
            anstream::adapter::strip_str(&(out + &timeline.finish())).to_string()
        };
        let end = "session 1 is over: 3 completed, 2 failed (#2, #3).";
        let whole = format!(" 0:00  team  {end} The lead says: All is done. Nobody is left.\n");
        assert_eq!(told(&[&said("All is done."), &phase, &over], false), whole);
        let before = " 0:00  lead  says: All is done.\n";
        let rest = format!("{before} 0:00  team  {end} Nobody is left.\n");
        assert_eq!(told(&[&said("All is done."), &phase, &over], true), rest);
        assert_eq!(told(&[&over], false), whole, "who begins to look later is told all");
        assert_eq!(told(&[&said("All is done."), &phase], false), before);
        let mut timeline = Timeline::new(200);
        timeline.heard("All is done. Nobody is left.");
        let end = Event { v: 1, seq: 1, at: UnixMs(5), fact: over };
        assert!(!timeline.push(&end).contains("The lead says"), "it was shown elsewhere");
    }

    #[test]
    fn long_runs_show_hours() {
        assert_eq!(elapsed(Duration::from_secs(3723)), "1:02:03");
        assert_eq!(elapsed(Duration::from_secs(59)), " 0:59");
    }

    #[test]
    fn a_red_report_is_told_once_whatever_failed_for_it() {
        let fact = |tool: &str, reason: Option<&str>| {
            let (teammate, task, tool, call) = ("bob".to_owned(), None, tool.to_owned(), "c".to_owned());
            let (reason, about) = (reason.map(str::to_owned), String::new());
            match reason {
                None => Fact::ToolStarted { teammate, task, tool, call, about },
                Some(_) => Fact::ToolFinished { teammate, task, tool, call, ok: false, ms: 5, reason },
            }
        };
        let red = "exit status 1: assert 1+1==3 / AssertionError";
        let facts = [
            fact("task_update", None),
            fact("verify", Some(red)),
            fact("merge", Some(red)),
            fact("task_update", Some("it came out red")),
            fact("task_update", None),
            fact("merge", Some("its branch and main conflict in a.py")),
            fact("task_update", Some("it is not merged")),
            fact("task_update", None),
            fact("task_update", Some("task #9 is not yours")),
        ];
        let mut timeline = Timeline::new(80);
        let told: String =
            facts.into_iter().map(|fact| timeline.push(&Event { v: 1, seq: 1, at: UnixMs(0), fact })).collect();
        insta::assert_snapshot!(anstream::adapter::strip_str(&told).to_string());
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(columns in 1_usize..120) {
            for line in told(columns).lines() {
                prop_assert!(width(line) <= columns, "{line:?}");
            }
        }
    }
}
