//! Brigade or its git is killed at every step at which it changes a file of the workspace. The next launch finds all work, finishes it,
//! and leaves nothing.
//!
//! A step is a call of libc that creates, opens for writing, renames or removes a file. `step_signals.c` is preloaded into a child process
//! and into the git processes that it starts. It counts the steps, and sends a signal at one of them. The child is this test again.
//! Calls that Brigade makes without libc, such as those that delete a folder's files, are no steps.

mod life;
mod signals;

use std::fmt;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use brigade::ports::{Assignment, PublishOutcome, Repository, WorktreeOutcome};

use self::life::{Life, STAGES, Stage, assert_work, attempt};
use self::signals::{ARMED, COUNT, SharedFile, TARGET, Victim, build};
use crate::harness::{TestRepository, git, git_output, insert_after, task, ten_lines};
use crate::testkit::process::{Process, WAIT_TIME_MAX, command, files_below, running_processes, signal, until};
use crate::testkit::seeds::{PROCESS_CHECKS_AT_ONCE, number, run_in_threads};

/// The branch that keeps the work of the failed attempt.
const KEPT: &str = "brigade-tasks/crew/task-1-attempt-1";
/// The person's uncommitted changes.
const LOCAL_CHANGES: &str = " M brigade.toml\nA  staged.txt\n?? note.txt";
/// The number of cases of a quick run, about twelve seconds in total.
const CASES: usize = 16;
/// The most steps from a SIGTERM to the next kill.
const STEPS_BETWEEN_MAX: u32 = 32;
/// The variables of the child: its stage, and those of `step_signals.c`.
const STAGE: &str = "STEPS_STAGE";
const FOLDER: &str = "STEPS_FOLDER";
const SHARED: &str = "STEPS_FILE";
const TRACE: &str = "STEPS_TRACE";

/// One signal at one step.
#[derive(Debug, Clone, Copy)]
struct Case {
    stage: Stage,
    step: u32,
    is_after: bool,
    victim: Victim,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = if self.is_after { "after" } else { "before" };
        write!(f, "{:?} {moment} {} {:?}", self.stage, self.step, self.victim)
    }
}

/// Lives in the child process until the end of a stage. Steps of the last stage count; if no signal is planned, steps of all stages do.
/// A stage that fails because its git was killed is tried again, as a team does.
#[tokio::main(flavor = "current_thread")]
async fn run_child(last: &str) {
    let shared = SharedFile::open(Path::new(&std::env::var_os(SHARED).unwrap()));
    let last = STAGES.into_iter().find(|stage| format!("{stage:?}") == last).unwrap();
    let folder = std::env::var_os(FOLDER).unwrap();
    let mut life = Life::open(Path::new(&folder)).await.unwrap();
    for stage in STAGES.into_iter().filter(|stage| *stage <= last) {
        life.prepare(stage).await.unwrap();
        shared.set(ARMED, u32::from(stage == last || shared.number(TARGET) == 0));
        let first = life.enter(stage).await;
        let second = if first.is_err() { life.enter(stage).await } else { Ok(()) };
        shared.set(ARMED, 0);
        println!("{} steps until the end of {stage:?}: {first:?}, {second:?}", shared.number(COUNT));
    }
}

/// A workspace with a repository and a person's changes, and the files of a kill outside of it.
struct World {
    folder: tempfile::TempDir,
    workspace: PathBuf,
    /// The person's config and exclude file.
    settings: String,
    shared: SharedFile,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap().join("workspace");
        fs::create_dir(&workspace).unwrap();
        git(&workspace, &["init", "-q", "-b", "main", "."]);
        fs::write(workspace.join("f.txt"), ten_lines()).unwrap();
        fs::write(workspace.join("brigade.toml"), "# the person's\n").unwrap();
        fs::create_dir(workspace.join("folder")).unwrap();
        fs::write(workspace.join("folder/other.txt"), "other\n").unwrap();
        git(&workspace, &["add", "-A"]);
        git(&workspace, &["commit", "-q", "-m", "Begin"]);
        fs::write(workspace.join("brigade.toml"), "# the person's, changed\n").unwrap();
        fs::write(workspace.join("staged.txt"), "staged\n").unwrap();
        git(&workspace, &["add", "staged.txt"]);
        fs::write(workspace.join("note.txt"), "note\n").unwrap();
        let shared = SharedFile::create(&folder.path().join("shared"));
        Self { settings: Self::settings(&workspace), folder, workspace, shared }
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(&self.workspace, arguments)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.workspace.join(file)).unwrap_or_default()
    }

    fn settings(workspace: &Path) -> String {
        let read = |file: &str| fs::read_to_string(workspace.join(file)).unwrap();
        read(".git/config") + &read(".git/info/exclude")
    }

    /// A variable of all processes of this world.
    fn mark(&self) -> String {
        format!("{SHARED}={}", self.folder.path().join("shared").display())
    }

    fn start(&self, library: &Path, stage: Stage) -> Process {
        let mut child = command(std::env::current_exe().unwrap().to_str().unwrap(), self.folder.path());
        child.args(["--exact", "killed_steps::step_killed_anywhere_loses_no_work", "--nocapture"]);
        child.env("LD_PRELOAD", library).env(STAGE, format!("{stage:?}")).env(FOLDER, &self.workspace);
        child.env(SHARED, self.folder.path().join("shared")).env(TRACE, self.folder.path().join("trace"));
        Process::start(child, &self.folder.path().join("log"))
    }

    /// The steps of each stage, as the name of the program, the call and the file. The word `git` stands before a git that a git started.
    fn steps(library: &Path) -> Vec<(Stage, Vec<String>)> {
        let world = Self::new();
        let mut child = world.start(library, Stage::Adoption);
        assert_eq!(child.code(), Some(0));
        let output = child.output_so_far();
        let trace = fs::read_to_string(world.folder.path().join("trace")).unwrap_or_default();
        let mut lines = trace.lines().map(str::to_owned);
        let mut begin = 0;
        let steps = STAGES.map(|stage| {
            let end_of = |line: &str| {
                line.strip_suffix(&format!(" steps until the end of {stage:?}: Ok(()), Ok(())"))?.parse().ok()
            };
            let end: usize = output.lines().find_map(end_of).unwrap_or_else(|| panic!("{stage:?}: {output}"));
            let steps = lines.by_ref().take(end - std::mem::replace(&mut begin, end)).collect();
            (stage, steps)
        });
        assert_eq!(lines.next(), None, "all steps belong to a stage");
        steps.to_vec()
    }

    /// Runs the child until its signal, and ends the victims. Returns the step, and the child's output.
    fn kill(&self, library: &Path, case: Case) -> (String, String) {
        self.shared.plan(case.step, case.is_after, case.victim);
        let mut child = self.start(library, case.stage);
        let has_ended = until(WAIT_TIME_MAX, || self.shared.is_waiting() || child.has_ended());
        assert!(has_ended, "{}", child.output_so_far());
        let output = child.output_so_far();
        child.kill();
        if case.victim == Victim::All {
            for process in running_processes(|process| process.has_variable(&self.mark())) {
                signal(process.pid, "KILL");
            }
        }
        self.shared.release();
        if case.victim != Victim::Brigade {
            self.wait_for_processes();
            self.age_locks();
        }
        (self.shared.step(), output)
    }

    fn wait_for_processes(&self) {
        let is_left = || running_processes(|process| process.has_variable(&self.mark()));
        assert!(until(WAIT_TIME_MAX, || is_left().is_empty()), "a process is left: {:?}", is_left());
    }

    /// Makes the locks of refs that killed git processes left a minute old.
    fn age_locks(&self) {
        let time = SystemTime::now() - Duration::from_secs(60);
        let is_of_refs = |path: &PathBuf| is_lock(path) && !path.ends_with("index.lock");
        for path in files_below(&self.workspace).into_iter().filter(is_of_refs) {
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
    }

    /// Launches the team again, and finishes all tasks. Then nothing may be lost, and nothing left.
    #[tokio::main(flavor = "current_thread")]
    async fn recover(&self, stage: Stage) {
        let life = Life::open(&self.workspace).await.unwrap();
        let mut completed = Vec::new();
        if stage >= Stage::UpdatedWorktree {
            completed.push(task(2));
        }
        if stage >= Stage::CleanUp {
            completed.push(attempt(2, true));
        }
        life.repository.prepare_launch(completed.clone()).await.expect("a team starts");
        self.assert_person(stage);
        if stage < Stage::CleanUp {
            self.finish(&life, &attempt(3, stage >= Stage::NewAttempt), stage).await;
            completed.push(attempt(3, false));
        }
        if stage >= Stage::NextLaunch {
            self.finish(&life, &task(3), stage).await;
            completed.push(task(3));
        }
        life.repository.prepare_launch(completed).await.expect("a team starts again");
        self.assert_works(stage);
        self.assert_person(stage);
        self.assert_tidy(stage);
    }

    /// Finishes a task as the next attempt does.
    async fn finish(&self, life: &Life, assignment: &Assignment, stage: Stage) {
        let worktree = match life.repository.provision(assignment).await.expect("the worktree is there") {
            WorktreeOutcome::Merged { worktree, .. } => {
                assert_eq!(stage, Stage::Publish, "the task is merged too early");
                worktree
            }
            WorktreeOutcome::Ready(worktree) => {
                let root = &worktree.root;
                let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
                match stage {
                    Stage::ResumedWorktree | Stage::EndedAttempt => assert_work("first", &worktree.name, read),
                    Stage::Commit | Stage::Merge | Stage::CheckOut | Stage::Publish => {
                        assert_work("second", &worktree.name, read);
                    }
                    Stage::NextLaunch => assert_work("third", &worktree.name, read),
                    Stage::Adoption => {
                        assert_work("third", &worktree.name, read);
                        assert_eq!(git(root, &["rev-parse", "MERGE_HEAD"]), self.git(&["rev-parse", "main"]));
                        assert_eq!(git(root, &["diff", "--cached", "--name-only"]), "person.txt", "the index");
                    }
                    _ => assert_eq!(git(root, &["status", "--porcelain"]), "", "the worktree is new"),
                }
                insert_after(root, "f.txt", "line 6", &format!("finished {}", assignment.task.0));
                let merge = life.created(&worktree).await.expect("the task can be merged");
                life.repository.check_out(&merge).await.expect("the merge can be checked out");
                let published = life.repository.publish(&merge, assignment).await.expect("it is published");
                assert_eq!(published, PublishOutcome::Done(None));
                worktree
            }
        };
        assert_eq!(life.repository.clean_up(&worktree).await.expect("it is removed"), None);
    }

    /// Asserts that the person's checkout, branch, config and hooks are unchanged.
    fn assert_person(&self, stage: Stage) {
        let log = if stage >= Stage::NextLaunch { "The person's\nBegin" } else { "Begin" };
        assert_eq!(self.git(&["log", "--format=%s", "main"]), log);
        assert_eq!(self.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(git_output(&self.workspace, &["status", "--porcelain"]).1, LOCAL_CHANGES, "the person's changes");
        assert_eq!(self.read("brigade.toml"), "# the person's, changed\n");
        assert_eq!(Self::settings(&self.workspace), self.settings, "the person's config");
    }

    /// Asserts that the team branch and the branch of the failed attempt have all work.
    fn assert_works(&self, stage: Stage) {
        let at = |branch: &'static str| {
            move |file: &str| git_output(&self.workspace, &["show", &format!("{branch}:{file}")]).1
        };
        match stage {
            Stage::FirstLaunch | Stage::NewWorktree | Stage::UpdatedWorktree => {}
            Stage::ResumedWorktree | Stage::EndedAttempt => assert_work("first", "the team branch", at("brigade/crew")),
            _ => assert_work("first", "the kept branch", at(KEPT)),
        }
        if stage >= Stage::Commit {
            assert_work("second", "the team branch", at("brigade/crew"));
        }
        if stage >= Stage::NextLaunch {
            assert_work("third", "the team branch", at("brigade/crew"));
        }
        if stage >= Stage::UpdatedWorktree {
            assert!(at("brigade/crew")("f.txt").contains("of task 2"), "the work of task 2 is lost");
        }
    }

    /// Asserts that the team worktree has the team branch, and that nothing else is left in the workspace.
    fn assert_tidy(&self, stage: Stage) {
        let team = self.workspace.join(".worktrees/crew");
        assert_eq!(git(&team, &["branch", "--show-current"]), "brigade/crew");
        assert_eq!(git(&team, &["rev-parse", "HEAD"]), self.git(&["rev-parse", "brigade/crew"]), "its commit");
        assert_eq!(git(&team, &["status", "--porcelain"]), "", "files of the team worktree");
        self.git(&["fsck", "--connectivity-only"]);
        git(&team, &["fsck", "--connectivity-only"]);
        let mut refs = vec!["refs/heads/brigade/crew".to_owned(), "refs/heads/main".to_owned()];
        if stage >= Stage::NewAttempt {
            refs.insert(0, format!("refs/heads/{KEPT}"));
        }
        let found = self.git(&["for-each-ref", "--format=%(refname)"]);
        assert_eq!(found.lines().collect::<Vec<_>>(), refs, "refs");
        let names = fs::read_dir(self.workspace.join(".worktrees")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let others = names.filter(|name| !["crew", "crew.merge", ".gitignore"].contains(&name.as_str()));
        assert_eq!(others.collect::<Vec<_>>(), [""; 0], "entries of .worktrees");
        let linked = fs::read_dir(self.workspace.join(".git/worktrees")).into_iter().flatten();
        assert_eq!(linked.count(), 0, "linked worktrees");
        let left = files_below(&self.workspace).into_iter().filter(|path| is_lock(path) || is_temporary(path));
        assert_eq!(left.collect::<Vec<_>>(), [""; 0].map(PathBuf::from), "files are left");
    }
}

/// A lock file of git, or the file that replaces the packed refs.
fn is_lock(path: &Path) -> bool {
    let is_ours = path.ends_with(".agent/.state.lock");
    path.ends_with("packed-refs.new") || (path.extension().is_some_and(|end| end == "lock") && !is_ours)
}

fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [".tmp-", ".making-", ".gone-", ".driver-"].iter().any(|start| name.starts_with(start))
}

/// All cases. A step of Brigade itself has one victim.
fn all_cases(library: &Path, random: &mut fastrand::Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    for (stage, steps) in World::steps(library) {
        for (step, text) in (1..).zip(&steps) {
            let [twice, parent] =
                [Victim::Twice, Victim::Parent].map(|victim| victim(random.u32(1..=STEPS_BETWEEN_MAX)));
            let all = [Victim::Process, Victim::Terminated, twice, Victim::Brigade, Victim::All, parent];
            let count = match text.split(' ').filter(|word| *word == "git").count() {
                0 => 1,
                1 => all.len() - 1,
                _ => all.len(),
            };
            for victim in &all[..count] {
                cases.extend([false, true].map(|is_after| Case { stage, step, is_after, victim: *victim }));
            }
        }
    }
    cases
}

/// Kills at one step, and recovers. Returns the reason if something is lost or left.
fn run_case(library: &Path, case: Case) -> Result<(), String> {
    let world = World::new();
    let (step, output) = world.kill(library, case);
    let recovered = catch_unwind(AssertUnwindSafe(|| world.recover(case.stage)));
    world.wait_for_processes();
    recovered.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let reason = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        let last = output.lines().rfind(|line| line.contains(" steps until ")).unwrap_or("no stage has ended");
        format!("{case} ({step}): {reason}\n    before: {last}")
    })
}

#[tokio::test]
async fn only_old_locks_of_refs_are_removed() {
    let repo = TestRepository::new().await;
    assert_eq!(repo.launch().await, [""; 0]);
    let lock = |file: &str, seconds: u64| {
        let file = File::create(repo.path().join(file)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    let removed = [
        ".git/packed-refs.lock",
        ".git/packed-refs.new",
        ".git/refs/heads/brigade/crew.lock",
        ".worktrees/crew/.git/HEAD.lock",
    ];
    // A person may hold these.
    let kept = [".git/index.lock", ".git/refs/heads/main.lock", ".worktrees/crew/.git/index.lock"];
    removed.iter().chain(&kept).for_each(|file| lock(file, 60));
    repo.repository.prepare_launch(Vec::new()).await.unwrap();
    let left = |files: &[&'static str]| -> Vec<&str> {
        files.iter().copied().filter(|file| repo.path().join(file).exists()).collect()
    };
    assert_eq!((left(&removed), left(&kept)), (Vec::new(), kept.to_vec()));
    kept.iter().for_each(|file| fs::remove_file(repo.path().join(file)).unwrap());
    lock(removed[0], 5);
    repo.provision(1).await;
    assert_eq!(left(&removed), [removed[0]], "another git may hold it");
}

/// Runs [`CASES`] random cases, or as many as `BRIGADE_STEP_COUNT` says: 10000 are all. A failure prints `BRIGADE_CHAOS_SEED`, which draws
/// the same cases again. `BRIGADE_CHAOS_CASE` selects all cases whose text has its words, such as `FirstLaunch Terminated`.
#[test]
fn step_killed_anywhere_loses_no_work() {
    if let Ok(stage) = std::env::var(STAGE) {
        return run_child(&stage);
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = build(folder.path()) else { return };
    let seed = number("BRIGADE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cases = all_cases(&library, &mut random);
    if !cases.iter().any(|case| case.victim != Victim::Process) {
        println!("skipped: git or this test is linked statically, so that no library can be preloaded");
        return;
    }
    assert!(STAGES.into_iter().all(|stage| cases.iter().any(|case| case.stage == stage)), "each stage has steps");
    random.shuffle(&mut cases);
    if let Ok(words) = std::env::var("BRIGADE_CHAOS_CASE") {
        cases.retain(|case| words.split(' ').all(|word| case.to_string().contains(word)));
    } else {
        cases.truncate(number("BRIGADE_STEP_COUNT").map_or(CASES, |count| count as usize));
    }
    let failures = Mutex::new(Vec::new());
    run_in_threads(PROCESS_CHECKS_AT_ONCE, cases, |case| {
        if let Err(failure) = run_case(&library, case) {
            failures.lock().unwrap().push(failure);
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "BRIGADE_CHAOS_SEED={seed}: {} failures:\n{}", failures.len(), failures.join("\n"));
}
