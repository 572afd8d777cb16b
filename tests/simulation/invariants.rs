//! The invariants of docs/internals/invariants.md, checked against the disk at each change and after each step. The run reports
//! accepted, requested and desired changes; the checks read the disk themselves.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade::domain::agent::transcript::{Record, TranscriptEntry};
use brigade::domain::task::transition::Change;
use brigade::domain::task::{Task, TaskId, TaskStatus};
use brigade::domain::team::name::LEAD;
use brigade::domain::team::state::{Mode, SetBy, SharedState};
use brigade::domain::time::UnixMs;
use brigade::ports::ModelRequest;
use brigade::stores::fs::FileSystem;

use super::approvals::ApprovalChecks;
use super::calls::Calls;
use super::plan::Setup;
use super::spending::SpendingChecks;
use super::world::{LIMITS_TURNS, MEMBERS};
use crate::testkit::simulated::SimulatedDisk;

/// Mail sent within this time before the end may stay unread.
const LATE: Duration = Duration::from_secs(2);
/// The largest file a check reads, in bytes.
const BYTES_MAX: u64 = 1 << 24;

/// A task whose creation was accepted, and the changes requested since.
#[derive(Default)]
struct Accepted {
    is_completed: bool,
    may_be_reopened: bool,
    may_be_gone: bool,
    /// Its blockers, independent of its file.
    waits_for: BTreeSet<u64>,
}

struct Sent {
    from: String,
    id: String,
    /// Sent by a program that syncs nothing: a power cut may undo it.
    is_foreign: bool,
}

/// The part of a transcript that has been read.
#[derive(Default)]
struct ReadTranscript {
    offset: u64,
    keys: Vec<String>,
}

/// The answers of a model since its member claimed its task.
#[derive(Default, Clone, Copy)]
struct AttemptCounts {
    turns: u32,
    /// Answers without a tool call.
    ends: u32,
}

/// The invariant checks of a run, and the facts they need.
pub struct Invariants {
    pub spending: SpendingChecks,
    pub approvals: ApprovalChecks,
    pub calls: Calls,
    attempt_counts: BTreeMap<String, AttemptCounts>,
    /// The tasks that members released without a failure.
    released: BTreeSet<(String, TaskId)>,
    tasks: BTreeMap<u64, Task>,
    accepted: BTreeMap<u64, Accepted>,
    mail: BTreeMap<String, Vec<Sent>>,
    delivered: BTreeMap<String, ReadTranscript>,
    /// Files that a program without locks wrote in place, unsynced.
    written_in_place: BTreeSet<u64>,
    click: Option<(u64, Mode)>,
    pub violations: Vec<String>,
}

impl Invariants {
    pub fn new(setup: Setup) -> Self {
        Self {
            spending: SpendingChecks::new(&setup),
            approvals: ApprovalChecks::new(setup, MEMBERS[setup.members - 1]),
            calls: Calls::default(),
            attempt_counts: BTreeMap::new(),
            released: BTreeSet::new(),
            tasks: BTreeMap::new(),
            accepted: BTreeMap::new(),
            mail: BTreeMap::new(),
            delivered: BTreeMap::new(),
            written_in_place: BTreeSet::new(),
            click: None,
            violations: Vec::new(),
        }
    }

    pub fn violate(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(what());
        }
    }

    fn entry(&mut self, id: u64) -> &mut Accepted {
        self.accepted.entry(id).or_default()
    }

    pub fn tasks(&self) -> BTreeMap<u64, Task> {
        self.tasks.clone()
    }

    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id.0)
    }
}

/// Accepted and requested changes.
impl Invariants {
    pub fn created(&mut self, tasks: &[Task]) {
        for task in tasks {
            let is_new = !self.accepted.contains_key(&task.id.0);
            self.expect(is_new, || format!("number: {} was given twice", task.id));
            self.entry(task.id.0).waits_for.extend(task.blocked_by.iter().map(|id| id.0));
        }
    }

    /// A change is requested. From now on it may appear, even if it is not accepted.
    pub fn change_requested(&mut self, id: TaskId, change: &Change) {
        if matches!(change, Change::Reopen) {
            self.entry_if_there(id, |accepted| accepted.may_be_reopened = true);
        }
    }

    fn entry_if_there(&mut self, id: TaskId, note: impl FnOnce(&mut Accepted)) {
        self.accepted.get_mut(&id.0).into_iter().for_each(note_once(note));
    }

    pub fn delete_requested(&mut self, id: TaskId) {
        self.entry_if_there(id, |accepted| accepted.may_be_gone = true);
    }

    pub fn changed(&mut self, id: TaskId, change: &Change, attempt: Option<u32>, after: &Task) {
        match change {
            Change::Complete(_) => self.entry_if_there(id, |accepted| accepted.is_completed = true),
            Change::Edit(edit) => {
                let more: Vec<u64> = edit.add_blocked_by.iter().map(|id| id.0).collect();
                self.entry_if_there(id, |accepted| accepted.waits_for.extend(more));
                for blocked in &edit.add_blocks {
                    self.entry_if_there(*blocked, |accepted| accepted.waits_for.extend([id.0]));
                }
            }
            _ => {}
        }
        if let Some(attempt) = attempt {
            self.expect(after.attempt == attempt, || {
                format!("one owner: attempt {attempt} of {id} changed it ({change:?}) in attempt {}", after.attempt)
            });
        }
    }

    /// A member's model gets a request; this happens in turns only.
    pub fn model_requested(&mut self, name: &str) {
        self.attempt_counts.entry(name.to_owned()).or_default().turns += 1;
    }

    /// The model answered without a tool call.
    pub fn work_ended(&mut self, name: &str) {
        self.attempt_counts.entry(name.to_owned()).or_default().ends += 1;
    }

    pub fn claims(&mut self, name: &str) {
        self.attempt_counts.remove(name);
    }

    /// A member released its task, which is no failure.
    pub fn released(&mut self, id: TaskId, name: &str) {
        self.released.insert((name.to_owned(), id));
    }

    /// A member released its task, and the release counted as a failure. This is allowed only if its model had ended its work twice, had
    /// used all its turns, had repeated itself, or released the same task again.
    pub fn released_as_failure(&mut self, id: TaskId, name: &str, reason: &str) {
        let is_again = self.released.contains(&(name.to_owned(), id));
        let AttemptCounts { turns, ends } = self.attempt_counts.get(name).copied().unwrap_or_default();
        let has_repeated = turns >= 2 && reason.starts_with("it made the same calls again");
        // The turn in which a call claimed the task counts too, and its request came before the claim.
        self.expect(is_again || has_repeated || ends >= 2 || turns + 1 >= LIMITS_TURNS, || {
            format!("counted release: {name} released {id} after {turns} turns, {ends} of which ended its work")
        });
    }

    pub fn check_request(&mut self, request: &ModelRequest) {
        self.violations.extend(self.calls.check_request(request));
    }

    pub fn check_request_file(&mut self, disk: &SimulatedDisk, path: &Path, by: &str) {
        let wrong = self.approvals.check_file(disk, path, by);
        self.violations.extend(wrong);
    }

    pub fn sent(&mut self, to: &str, from: &str, id: &str, is_foreign: bool) {
        let sent = Sent { from: from.to_owned(), id: id.to_owned(), is_foreign };
        self.mail.entry(to.to_ascii_lowercase()).or_default().push(sent);
    }

    pub fn clicked(&mut self, click: Option<(u64, Mode)>) {
        self.click = click;
    }

    /// A program without locks writes the file in place; no other process is responsible for it after a power cut.
    pub fn written_in_place(&mut self, id: u64) {
        self.written_in_place.insert(id);
    }

    /// The program never completed its write.
    pub fn left_invalid(&mut self, id: u64) {
        self.entry_if_there(TaskId(id), |accepted| accepted.may_be_gone = true);
    }

    pub fn power_was_cut(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let (board, team) = (&workspace.join(".tasks"), workspace.join(".team"));
        self.spending.power_was_cut(disk);
        self.calls.power_was_cut();
        self.approvals.power_was_cut(disk, &team.join(super::approvals::REQUESTS_FILE));
        for id in std::mem::take(&mut self.written_in_place) {
            self.left_invalid(id);
        }
        self.click = None;
        self.delivered.clear();
        self.mail.values_mut().for_each(|sent| sent.retain(|sent| !sent.is_foreign));
        self.tasks.clear();
        for name in disk.list(board).unwrap_or_default() {
            if let Some(id) = TaskId::from_file_name(&name)
                && let Some(task) = read_task(disk, &board.join(name), id)
            {
                if task.status == TaskStatus::InProgress {
                    self.approvals.attempt_started(&task);
                }
                self.tasks.insert(id.0, task);
            }
        }
    }
}

fn note_once<T>(note: impl FnOnce(&mut T)) -> impl FnMut(&mut T) {
    let mut note = Some(note);
    move |value| {
        if let Some(note) = note.take() {
            note(value);
        }
    }
}

fn read_task(disk: &SimulatedDisk, path: &Path, id: TaskId) -> Option<Task> {
    let (bytes, _) = disk.read(path, 0, BYTES_MAX).ok()?;
    Task::parse(id, &bytes).ok()
}

/// Checks of the disk after each change.
impl Invariants {
    /// The file of a task was written, renamed or removed.
    pub fn check_task_file(&mut self, disk: &SimulatedDisk, path: &Path, id: TaskId, by: &str) {
        if disk.stamp(path).is_err() {
            let may_be_gone = self.accepted.get(&id.0).is_none_or(|accepted| accepted.may_be_gone);
            let was_there = self.tasks.remove(&id.0).is_some();
            return self.expect(may_be_gone || !was_there, || format!("nothing lost: {by} removed {id}"));
        }
        // A file that is being written in place keeps its last state.
        let Some(new) = read_task(disk, path, id) else { return };
        match self.tasks.remove(&id.0) {
            Some(old) if old == new => {}
            Some(old) => self.check_step(&old, &new, by),
            None => {
                self.expect(new.status != TaskStatus::InProgress, || format!("one owner: {id} was created as claimed"));
                self.violations.extend(self.calls.record_creation(&new.subject, id));
            }
        }
        self.tasks.insert(id.0, new);
    }

    fn check_step(&mut self, old: &Task, new: &Task, by: &str) {
        let id = new.id;
        let tell = |what: &str| {
            let side = |task: &Task| format!("{} {:?} attempt {}", task.status, task.owner, task.attempt);
            format!("{what}: {by} wrote {id}, from {} to {}", side(old), side(new))
        };
        self.expect(new.attempt >= old.attempt, || tell("one owner, attempts only grow"));
        match (old.status, new.status) {
            (TaskStatus::InProgress, TaskStatus::InProgress) => {
                let worker = |task: &Task| task.claim.as_ref().map(|claim| claim.worker.clone());
                let is_same = (old.attempt, &old.owner, worker(old)) == (new.attempt, &new.owner, worker(new));
                self.expect(is_same, || tell("one owner, two claims"));
            }
            (TaskStatus::Pending, TaskStatus::InProgress) => {
                self.expect(new.attempt == old.attempt + 1, || tell("one owner, a claim raises the attempt"));
                let blocker = self.unfinished_blocker(new);
                self.expect(blocker.is_none(), || tell(&format!("order, {blocker:?} is unfinished")));
                self.approvals.attempt_started(new);
            }
            // Other processes complete by command, or by force.
            (TaskStatus::InProgress, TaskStatus::Completed) if by.starts_with("lead") => {
                self.violations.extend(self.approvals.check_completion(old, new, by));
            }
            (_, TaskStatus::InProgress) => self.violate(tell("one owner, only pending tasks are claimed")),
            (TaskStatus::Completed, TaskStatus::Completed) => {}
            (TaskStatus::Completed, _) => {
                let may = self.accepted.get(&id.0).is_some_and(|accepted| accepted.may_be_reopened);
                self.expect(may, || tell("nothing lost, a completion"));
                self.reopened(id);
            }
            _ => {}
        }
    }

    /// A reopened task blocks only tasks that are not started.
    fn reopened(&mut self, id: TaskId) {
        for (waiting, accepted) in &mut self.accepted {
            if self.tasks.get(waiting).is_none_or(|task| task.status != TaskStatus::Pending) {
                accepted.waits_for.remove(&id.0);
            }
        }
    }

    fn unfinished_blocker(&self, task: &Task) -> Option<u64> {
        let accepted = self.accepted.get(&task.id.0);
        let accepted_blockers = accepted.into_iter().flat_map(|accepted| accepted.waits_for.iter().copied());
        let mut blockers = task.blocked_by.iter().map(|id| id.0).chain(accepted_blockers);
        blockers.find(|id| {
            let may_be_gone = self.accepted.get(id).is_some_and(|accepted| accepted.may_be_gone);
            match self.tasks.get(id) {
                Some(blocker) => blocker.status != TaskStatus::Completed,
                None => !may_be_gone,
            }
        })
    }
}

/// Checks between two steps.
impl Invariants {
    pub fn check(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        self.check_accepted();
        self.violations.extend(self.spending.check(disk));
        self.check_mail(disk, workspace);
        self.check_locks(disk, workspace);
    }

    fn check_accepted(&mut self) {
        let mut lost = Vec::new();
        for (id, accepted) in self.accepted.iter().filter(|(_, accepted)| !accepted.may_be_gone) {
            match self.tasks.get(id) {
                None => lost.push(format!("nothing lost: task #{id} is gone")),
                Some(task) if accepted.is_completed && !accepted.may_be_reopened => {
                    if task.status != TaskStatus::Completed {
                        lost.push(format!("nothing lost: #{id} was completed and is {}", task.status));
                    }
                }
                Some(_) => {}
            }
        }
        self.violations.extend(lost);
    }

    /// Every accepted message is in the transcript once, or waits for delivery; transcripts contain no message twice.
    fn check_mail(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let team = workspace.join(".team");
        let names: Vec<String> = self.mail.keys().cloned().collect();
        for name in names {
            self.read_transcript(disk, &team, &name);
            let delivered: HashSet<&String> =
                self.delivered.get(&name).map(|delivered| delivered.keys.iter().collect()).unwrap_or_default();
            let missing: Vec<&Sent> = self.mail[&name].iter().filter(|sent| !delivered.contains(&sent.id)).collect();
            if missing.is_empty() {
                continue;
            }
            let waiting = waiting_mail(disk, &team, &name);
            let lost: Vec<String> = missing
                .iter()
                .filter(|sent| !waiting.contains(&sent.id))
                .map(|sent| format!("nothing lost: message {} of {} to {name}", sent.id, sent.from))
                .collect();
            self.violations.extend(lost);
        }
    }

    /// Reads the new part of a transcript.
    fn read_transcript(&mut self, disk: &SimulatedDisk, team: &Path, name: &str) {
        let path = team.join("transcripts").join(format!("{name}.jsonl"));
        let delivered = self.delivered.entry(name.to_owned()).or_default();
        let Ok((bytes, _)) = disk.read(&path, delivered.offset, BYTES_MAX) else { return };
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else { return };
        delivered.offset += end as u64 + 1;
        for line in bytes[..=end].split(|byte| *byte == b'\n') {
            if let Ok(Record { entry: TranscriptEntry::Message(message), .. }) = Record::parse(line) {
                for key in message.delivered {
                    if delivered.keys.contains(&key) {
                        self.violations.push(format!("mail arrives once: {name} was delivered {key} twice"));
                    }
                    delivered.keys.push(key);
                }
            }
        }
    }

    /// Between calls only locks for life are held.
    fn check_locks(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let team = workspace.join(".team");
        let is_for_life = |path: &PathBuf| *path == team.join("lead.lock") || path.starts_with(team.join("workers"));
        let short_locks: Vec<PathBuf> = disk.locks().into_iter().filter(|path| !is_for_life(path)).collect();
        self.expect(short_locks.is_empty(), || format!("short locks: {short_locks:?} are held between calls"));
    }

    /// The team obeys the last click, unless the team has ended.
    pub fn check_click(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let Some((number, mode)) = self.click else { return };
        let bytes = disk.read(&workspace.join("agent_state.json"), 0, BYTES_MAX).map(|(bytes, _)| bytes);
        let state = bytes.ok().and_then(|bytes| SharedState::parse(&bytes).ok());
        let Some(state) = state else { return self.violate("the person wins: the state file is gone or broken") };
        let click = state.document.get::<u64>("click").ok().flatten();
        self.expect(click == Some(number), || format!("the person wins: click {number} is lost, there is {click:?}"));
        let is_ending = state.set_by == SetBy::Brigade && state.desired == Mode::Pause && mode != Mode::Pause;
        self.expect(state.desired == mode || is_ending, || {
            format!("the person wins: clicked {mode:?}, desired is {:?} set by {:?}", state.desired, state.set_by)
        });
    }

    /// At the end, all messages to teammates were delivered, in order for each sender.
    pub fn check_arrivals(&mut self, members: &[&str], disk: &SimulatedDisk, inboxes: &Path, now: UnixMs) {
        let mut wrong = Vec::new();
        // Messages that arrived while the team stopped wait for the next launch.
        let waiting = |to: &str| {
            let bytes = disk.read(&inboxes.join(format!("{to}.jsonl")), 0, BYTES_MAX).map(|(bytes, _)| bytes);
            let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let is_late = |line: &serde_json::Value| {
                let sent =
                    Duration::try_from_secs_f64(line["timestamp"].as_f64().unwrap_or_default()).unwrap_or_default();
                UnixMs::default().plus(sent + LATE) >= now
            };
            lines.filter(is_late).filter_map(|line| Some(line["id"].as_str()?.to_owned())).collect::<Vec<String>>()
        };
        for (to, sent) in self.mail.iter().filter(|(to, _)| members.contains(&to.as_str()) || *to == LEAD) {
            let none = ReadTranscript::default();
            let keys = &self.delivered.get(to).unwrap_or(&none).keys;
            let mut by_sender: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
            sent.iter()
                .filter(|sent| !sent.is_foreign)
                .for_each(|sent| by_sender.entry(&sent.from).or_default().push(&sent.id));
            for (from, ids) in by_sender {
                let mut arrived: Vec<&String> = keys.iter().filter(|key| ids.contains(key)).collect();
                let waiting = if arrived == ids { Vec::new() } else { waiting(to) };
                arrived.extend(waiting.iter().filter(|id| ids.contains(id)));
                if arrived != ids {
                    wrong.push(format!(
                        "mail arrives once, in order: {from} sent {ids:?} to {to}, which got {arrived:?}"
                    ));
                }
            }
        }
        self.violations.extend(wrong);
    }

    /// A team that ended normally holds nothing.
    pub fn check_released(&mut self, worker: &str) {
        let is_its = |task: &&Task| task.claim.as_ref().is_some_and(|claim| claim.worker == worker);
        let claimed = self.tasks.values().filter(is_its);
        let violations = claimed.map(|task| format!("one owner: {} is held by a team whose budget is spent", task.id));
        self.violations.extend(violations.collect::<Vec<_>>());
    }

    /// At the end no member holds a task, and each open task has a reason.
    pub fn check_end(&mut self, disk: &SimulatedDisk, board: &Path) {
        let claimed: Vec<String> = (self.tasks.values())
            .filter(|task| task.status == TaskStatus::InProgress)
            .map(|task| format!("one owner: {} is held by {:?} after the end", task.id, task.owner))
            .collect();
        self.violations.extend(claimed);
        let idle: Vec<String> = (self.tasks.values())
            .filter(|task| task.status == TaskStatus::Pending && self.unfinished_blocker(task).is_none())
            // A task that waits for a removed or invalid file waits for the person.
            .filter(|task| task.blocked_by.iter().all(|id| self.tasks.contains_key(&id.0)))
            .map(|task| format!("progress: {} is left although it is not blocked", task.id))
            .collect();
        self.violations.extend(idle);
        for name in disk.list(board).unwrap_or_default() {
            self.expect(!name.starts_with(".tmp-"), || format!("bounded: {name} is left on the board"));
        }
    }
}

/// The waiting mail of `name`, as one text.
fn waiting_mail(disk: &SimulatedDisk, team: &Path, name: &str) -> String {
    let inbox = team.join("inbox");
    let taken = inbox.join(".taken");
    let is_its = |file: &String| file.to_ascii_lowercase().starts_with(name);
    let inside = |folder: &Path| -> Vec<PathBuf> {
        disk.list(folder).unwrap_or_default().into_iter().filter(is_its).map(|file| folder.join(file)).collect()
    };
    let files = inside(&inbox).into_iter().chain(inside(&taken));
    let texts = files.filter_map(|path| disk.read(&path, 0, BYTES_MAX).ok());
    texts.map(|(bytes, _)| String::from_utf8_lossy(&bytes).into_owned()).collect()
}
