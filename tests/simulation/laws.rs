//! What must always hold, checked against the disk at each change of it and after each step: the invariants of ARCHITECTURE.md.
//! It is told what was accepted, asked for and clicked; what is there it reads itself.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade::domain::change::Change;
use brigade::domain::name::LEAD;
use brigade::domain::state::{Mode, SharedState};
use brigade::domain::task::{Task, TaskId, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::domain::transcript::{Block, Entry, Record};
use brigade::ports::ModelRequest;
use brigade::stores::fs::FileSystem;
use brigade::stores::fs::simulated::SimulatedDisk;

use super::approvals::Approvals;
use super::calls::Calls;
use super::plan::Setup;
use super::spending::Spending;
use super::world::{LIMITS_TURNS, MEMBERS};

/// Mail that was sent so short before the end need not have been read.
const LATE: Duration = Duration::from_secs(2);
/// The largest file a check reads, in bytes.
const BYTES_MAX: u64 = 1 << 24;

/// A task whose creation was accepted, and what was asked for it since.
#[derive(Default)]
struct Accepted {
    is_completed: bool,
    may_be_reopened: bool,
    may_be_gone: bool,
    /// What it waits for, whatever its file says by now.
    waits_for: BTreeSet<u64>,
}

/// A message that was accepted.
struct Sent {
    from: String,
    id: String,
    /// By a program that syncs nothing: a power cut may take it.
    is_foreign: bool,
}

/// What has been read of a transcript.
#[derive(Default)]
struct Heard {
    offset: u64,
    keys: Vec<String>,
}

/// What a model said since its member claimed what it holds.
#[derive(Default, Clone, Copy)]
struct Tries {
    turns: u32,
    /// Answers that asked for nothing.
    ends: u32,
}

/// See the module.
pub struct Laws {
    pub spending: Spending,
    pub approvals: Approvals,
    pub calls: Calls,
    tries: BTreeMap<String, Tries>,
    tasks: BTreeMap<u64, Task>,
    accepted: BTreeMap<u64, Accepted>,
    mail: BTreeMap<String, Vec<Sent>>,
    heard: BTreeMap<String, Heard>,
    /// Files that a program without locks wrote in place, unsynced.
    touched: BTreeSet<u64>,
    click: Option<(u64, Mode)>,
    pub violations: Vec<String>,
}

impl Laws {
    pub fn new(setup: Setup) -> Self {
        Self {
            spending: Spending::new(&setup),
            approvals: Approvals::new(setup, MEMBERS[setup.members - 1]),
            calls: Calls::default(),
            tries: BTreeMap::new(),
            tasks: BTreeMap::new(),
            accepted: BTreeMap::new(),
            mail: BTreeMap::new(),
            heard: BTreeMap::new(),
            touched: BTreeSet::new(),
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

    /// The tasks on the board.
    pub fn known(&self) -> BTreeMap<u64, Task> {
        self.tasks.clone()
    }

    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id.0)
    }
}

/// What the stores accepted, and what was asked of them.
impl Laws {
    pub fn created(&mut self, tasks: &[Task]) {
        for task in tasks {
            let is_new = !self.accepted.contains_key(&task.id.0);
            self.expect(is_new, || format!("number: {} was given twice", task.id));
            self.entry(task.id.0).waits_for.extend(task.blocked_by.iter().map(|id| id.0));
        }
    }

    /// Somebody asks for a change. From now on it may be made, be it accepted or not.
    pub fn asked(&mut self, id: TaskId, change: &Change) {
        if matches!(change, Change::Reopen) {
            self.entry_if_there(id, |accepted| accepted.may_be_reopened = true);
        }
    }

    fn entry_if_there(&mut self, id: TaskId, note: impl FnOnce(&mut Accepted)) {
        self.accepted.get_mut(&id.0).into_iter().for_each(note_once(note));
    }

    pub fn asked_to_delete(&mut self, id: TaskId) {
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

    /// A member's model is asked: in a turn at the most.
    pub fn asked_model(&mut self, name: &str) {
        self.tries.entry(name.to_owned()).or_default().turns += 1;
    }

    /// It answered, and asked for nothing.
    pub fn ended_work(&mut self, name: &str) {
        self.tries.entry(name.to_owned()).or_default().ends += 1;
    }

    /// A member claims.
    pub fn claims(&mut self, name: &str) {
        self.tries.remove(name);
    }

    /// A member gave back what it held, and that counted: only where its model had ended its work twice, or had had all its turns.
    pub fn gave_up(&mut self, id: TaskId, name: &str) {
        let Tries { turns, ends } = self.tries.get(name).copied().unwrap_or_default();
        self.expect(ends >= 2 || turns >= LIMITS_TURNS, || {
            format!("a release that counts: {name} gave {id} back after {turns} turns, {ends} of which ended its work")
        });
    }

    /// What a model is told of calls that were not made.
    pub fn check_results(&mut self, request: &ModelRequest) {
        for block in request.messages.iter().flat_map(|message| &message.content) {
            if let Block::ToolResult { tool_use_id, content, .. } = block {
                self.violations.extend(self.calls.check_result(tool_use_id, content));
            }
        }
    }

    /// The requests for decisions were written.
    pub fn look_at_requests(&mut self, disk: &SimulatedDisk, path: &Path, by: &str) {
        let wrong = self.approvals.look(disk, path, by);
        self.violations.extend(wrong);
    }

    pub fn sent(&mut self, to: &str, from: &str, id: &str, is_foreign: bool) {
        let sent = Sent { from: from.to_owned(), id: id.to_owned(), is_foreign };
        self.mail.entry(to.to_ascii_lowercase()).or_default().push(sent);
    }

    pub fn clicked(&mut self, click: Option<(u64, Mode)>) {
        self.click = click;
    }

    /// A program without locks writes the file in place; nobody else answers for it after a power cut.
    pub fn touched(&mut self, id: u64) {
        self.touched.insert(id);
    }

    /// The same, and it never wrote it whole again.
    pub fn spoiled(&mut self, id: u64) {
        self.entry_if_there(TaskId(id), |accepted| accepted.may_be_gone = true);
    }

    pub fn power_was_cut(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let (board, team) = (&workspace.join(".tasks"), workspace.join(".team"));
        self.spending.power_was_cut(disk);
        self.calls.power_was_cut();
        self.approvals.power_was_cut(disk, &team.join(super::approvals::REQUESTS_FILE));
        for id in std::mem::take(&mut self.touched) {
            self.spoiled(id);
        }
        self.click = None;
        self.heard.clear();
        self.mail.values_mut().for_each(|sent| sent.retain(|sent| !sent.is_foreign));
        self.tasks.clear();
        for name in disk.list(board).unwrap_or_default() {
            if let Some(id) = TaskId::from_file_name(&name)
                && let Some(task) = read_task(disk, &board.join(name), id)
            {
                if task.status == TaskStatus::InProgress {
                    self.approvals.begun(&task);
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

/// What is on the disk from one change to the next.
impl Laws {
    /// The file of a task was written, renamed or removed.
    pub fn look_at_task(&mut self, disk: &SimulatedDisk, path: &Path, id: TaskId, by: &str) {
        if disk.stamp(path).is_err() {
            let may_be_gone = self.accepted.get(&id.0).is_none_or(|accepted| accepted.may_be_gone);
            let was_there = self.tasks.remove(&id.0).is_some();
            return self.expect(may_be_gone || !was_there, || format!("nothing lost: {by} took {id} away"));
        }
        // One that is being written in place stays what it was.
        let Some(new) = read_task(disk, path, id) else { return };
        match self.tasks.remove(&id.0) {
            Some(old) if old == new => {}
            Some(old) => self.check_step(&old, &new, by),
            None => {
                self.expect(new.status != TaskStatus::InProgress, || format!("one owner: {id} is born claimed"));
                self.violations.extend(self.calls.created(&new.subject, id));
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
                self.approvals.begun(new);
            }
            // Others complete by command, or by force.
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

    /// A reopened task holds up those that have not begun, and no others.
    fn reopened(&mut self, id: TaskId) {
        for (waiting, accepted) in &mut self.accepted {
            if self.tasks.get(waiting).is_none_or(|task| task.status != TaskStatus::Pending) {
                accepted.waits_for.remove(&id.0);
            }
        }
    }

    fn unfinished_blocker(&self, task: &Task) -> Option<u64> {
        let accepted = self.accepted.get(&task.id.0);
        let asked = accepted.into_iter().flat_map(|accepted| accepted.waits_for.iter().copied());
        let mut blockers = task.blocked_by.iter().map(|id| id.0).chain(asked);
        blockers.find(|id| {
            let may_be_gone = self.accepted.get(id).is_some_and(|accepted| accepted.may_be_gone);
            match self.tasks.get(id) {
                Some(blocker) => blocker.status != TaskStatus::Completed,
                None => !may_be_gone,
            }
        })
    }
}

/// How things stand between two steps.
impl Laws {
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

    /// Every accepted message is in the transcript once, or waits for it; transcripts name no message twice.
    fn check_mail(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let team = workspace.join(".team");
        let names: Vec<String> = self.mail.keys().cloned().collect();
        for name in names {
            self.hear(disk, &team, &name);
            let heard: HashSet<&String> =
                self.heard.get(&name).map(|heard| heard.keys.iter().collect()).unwrap_or_default();
            let missing: Vec<&Sent> = self.mail[&name].iter().filter(|sent| !heard.contains(&sent.id)).collect();
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

    /// Reads on in a transcript.
    fn hear(&mut self, disk: &SimulatedDisk, team: &Path, name: &str) {
        let path = team.join("transcripts").join(format!("{name}.jsonl"));
        let heard = self.heard.entry(name.to_owned()).or_default();
        let Ok((bytes, _)) = disk.read(&path, heard.offset, BYTES_MAX) else { return };
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else { return };
        heard.offset += end as u64 + 1;
        for line in bytes[..=end].split(|byte| *byte == b'\n') {
            if let Ok(Record { entry: Entry::Message(message), .. }) = Record::parse(line) {
                for key in message.delivered {
                    if heard.keys.contains(&key) {
                        self.violations.push(format!("mail arrives once: {name} was delivered {key} twice"));
                    }
                    heard.keys.push(key);
                }
            }
        }
    }

    /// Between calls only locks for life are held.
    fn check_locks(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let team = workspace.join(".team");
        let is_for_life = |path: &PathBuf| *path == team.join("lead.lock") || path.starts_with(team.join("workers"));
        let held: Vec<PathBuf> = disk.locks().into_iter().filter(|path| !is_for_life(path)).collect();
        self.expect(held.is_empty(), || format!("short locks: {held:?} are held between calls"));
    }

    /// The last click is what the team goes by, unless the team came to its end.
    pub fn check_click(&mut self, disk: &SimulatedDisk, workspace: &Path) {
        let Some((number, mode)) = self.click else { return };
        let bytes = disk.read(&workspace.join("agent_state.json"), 0, BYTES_MAX).map(|(bytes, _)| bytes);
        let state = bytes.ok().and_then(|bytes| SharedState::parse(&bytes).ok());
        let Some(state) = state else { return self.violate("the person wins: the state file is gone or broken") };
        let found = state.document.get::<u64>("click").ok().flatten();
        self.expect(found == Some(number), || format!("the person wins: click {number} is lost, there is {found:?}"));
        let is_ending = state.set_by == "agent" && state.desired == Mode::Pause && mode != Mode::Pause;
        self.expect(state.desired == mode || is_ending, || {
            format!("the person wins: clicked {mode:?}, wanted is {:?} set by {}", state.desired, state.set_by)
        });
    }

    /// In the end what was sent to teammates has arrived, in order for each sender.
    pub fn check_arrivals(&mut self, members: &[&str], disk: &SimulatedDisk, inboxes: &Path, now: UnixMs) {
        let mut wrong = Vec::new();
        // What came as the team went home is there for the next launch.
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
            let none = Heard::default();
            let keys = &self.heard.get(to).unwrap_or(&none).keys;
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

    /// A team that ended in peace holds nothing.
    pub fn check_released(&mut self, worker: &str) {
        let is_its = |task: &&Task| task.claim.as_ref().is_some_and(|claim| claim.worker == worker);
        let held = self.tasks.values().filter(is_its);
        let held = held.map(|task| format!("one owner: {} is held by a team whose budget is spent", task.id));
        self.violations.extend(held.collect::<Vec<_>>());
    }

    /// In the end nobody holds anything, and what is left undone has its reason.
    pub fn check_end(&mut self, disk: &SimulatedDisk, board: &Path) {
        let held: Vec<String> = (self.tasks.values())
            .filter(|task| task.status == TaskStatus::InProgress)
            .map(|task| format!("one owner: {} is held by {:?} though all is over", task.id, task.owner))
            .collect();
        self.violations.extend(held);
        let idle: Vec<String> = (self.tasks.values())
            .filter(|task| task.status == TaskStatus::Pending && self.unfinished_blocker(task).is_none())
            // One that waits for a file that is gone, or broken, waits for the person.
            .filter(|task| task.blocked_by.iter().all(|id| self.tasks.contains_key(&id.0)))
            .map(|task| format!("progress: {} is left though nothing is in its way", task.id))
            .collect();
        self.violations.extend(idle);
        for name in disk.list(board).unwrap_or_default() {
            self.expect(!name.starts_with(".tmp-"), || format!("bounded: {name} is left on the board"));
        }
    }
}

/// What waits for `name`, as one text.
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
