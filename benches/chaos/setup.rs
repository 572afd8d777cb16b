//! One workspace from its first to its last commit. It has the plan, rounds of attacks with concurrent users, the
//! runs that must finish all tasks, and the final account.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::attacks::{ATTACKS, Attack};
use super::checks;
use super::counts::Counts;
use super::users::{self, Answers};
use super::workspace::{ChaosWorkspace, Lead};
use crate::testkit::process::until;

pub const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// Files of the repository that no task changes.
const BALLAST: usize = 600;
const PLANNED: usize = 7;
/// The most runs until everything must be done, and the time limit of one run.
const RUNS_MAX: usize = 25;
const RUN_TIME: Duration = Duration::from_secs(150);
/// Time limit for the end of a killed lead's processes: the guard gives a command 200 ms, and the machine is busy.
const ORPHAN_TIME: Duration = Duration::from_secs(15);
const DISK_MEGABYTES: u32 = 48;

/// The state that the threads of one workspace share.
pub struct World {
    pub workspace: ChaosWorkspace,
    pub counts: Arc<Counts>,
    pub answers: Mutex<Answers>,
    /// True if the workspace is on a small disk.
    pub is_small: bool,
    pub is_over: AtomicBool,
    /// The commit of the team branch at the last check.
    pub seen: Mutex<String>,
    seed: u64,
    /// The number of violations in this workspace.
    wrong: AtomicU64,
}

/// A small disk, unmounted when the value is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let size = format!("size={DISK_MEGABYTES}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).stderr(std::process::Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(path))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The mount stays until open files on it are closed.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Runs one workspace with this seed and number of attacks. Counts violations; a workspace with violations is kept for
/// inspection.
pub fn run_workspace(seed: u64, rounds: usize, counts: &Arc<Counts>, is_over: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut folder = tempfile::tempdir().unwrap();
    let wants_disk = random.u32(..3) == 0;
    let disk = if wants_disk { Disk::mount(folder.path().join("repository")) } else { None };
    let world = World {
        workspace: ChaosWorkspace::new(folder.path()),
        counts: Arc::clone(counts),
        answers: Mutex::default(),
        is_small: disk.is_some(),
        is_over: AtomicBool::new(false),
        seen: Mutex::default(),
        seed,
        wrong: AtomicU64::new(0),
    };
    world.create_repository();
    counts.add("workspaces", 1);
    std::thread::scope(|scope| {
        for (number, work) in users::WORK.iter().enumerate() {
            let (world, random) = (&world, fastrand::Rng::with_seed(seed ^ (number as u64 + 1) << 32));
            scope.spawn(move || work(world, random));
        }
        for _ in 0..rounds {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            world.round(&mut random);
        }
        world.is_over.store(true, Ordering::Relaxed);
    });
    world.drain();
    checks::check_at_end(&world);
    if world.wrong.load(Ordering::Relaxed) > 0 {
        folder.disable_cleanup(true);
        eprintln!("seed {seed}: see {}", folder.path().display());
        if disk.is_some() {
            // The small disk is unmounted at the end.
            let copy = folder.path().join("copy");
            let _ = Command::new("cp").arg("-a").arg(&world.workspace.root).arg(copy).status();
        }
    }
}

/// The command of a task. It updates its branch, adds its line where all other tasks add theirs, and removes one of
/// its own lines again. It writes a separate file, and commits. It repeats a merge that lost lines because the disk
/// was full. It discards uncommitted changes of earlier attempts. First it counts the files that no task changes;
/// there must be `ballast` of them. The shell itself counts them, because a kill could end one half of a pipe. `{out}` is a
/// folder outside the workspace.
pub fn script(name: &str, out: &str, ballast: usize) -> String {
    let leftover = match name.bytes().map(u32::from).sum::<u32>() % 4 {
        0 => "sleep 300 &",
        1 => "setsid sleep 300 > /dev/null 2>&1 &",
        _ => "",
    };
    format!(
        "set +e\n\
         whole() {{ ! grep -q '^[<=>]' log.txt; }}\n\
         sane() {{\n\
         m=$(git rev-list --min-parents=2 --max-count=1 brigade/crew..HEAD)\n\
         test -z \"$m\" || test -z \"$(git diff --diff-filter=DM --name-only $m^2 $m -- . ':!log.txt')\" ||\n\
         {{ git reset -q --hard $m^1; exit 1; }}\n\
         }}\n\
         echo \"$BRIGADE_TASK $BRIGADE_ATTEMPT $BRIGADE_TEAMMATE\" >> {out}/begun\n{leftover}\n\
         set -- ballast/*\n\
         test $# = {ballast} || echo \"$BRIGADE_TASK $BRIGADE_ATTEMPT $#\" >> {out}/short\n\
         git reset -q --hard && git clean -qfd\n\
         sane\n\
         git merge -q brigade/crew || {{ sed -i '/^[<=>]/d' log.txt && whole && git add -A && git commit -q --no-edit; }}\n\
         sane\n\
         grep -qx 'of {name}' log.txt\n\
         case $? in\n\
         0) ;;\n\
         1) sed -i 's/^begin$/begin\\nof {name}\\ndraft of {name}/' log.txt || exit 1 ;;\n\
         *) exit 1 ;;\n\
         esac\n\
         whole || exit 1\ngit add -A && git commit -q -m 'Begin {name}'\n\
         sed -i '/^draft of {name}$/d' log.txt && echo {name} > file-{name}.txt || exit 1\n\
         git add -A && git commit -q -m 'Finish {name}'\n\
         git diff --quiet HEAD || exit 1\n\
         echo \"$BRIGADE_TASK $BRIGADE_ATTEMPT $(git rev-parse 'HEAD^{{tree}}')\" >> {out}/commits\n"
    )
}

impl World {
    /// Creates the repository with the team's config, its plan and the first commit.
    fn create_repository(&self) {
        let workspace = &self.workspace;
        let members: String =
            MEMBERS.map(|name| format!("[[teams.crew.members]]\nname = \"{name}\"\nrole = \"worker\"\n")).concat();
        let limits = "limits = { free_bytes_min = 262144, poll_interval_ms = 500 }";
        let team = format!("[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\n{limits}\n{members}");
        // A small disk is in memory, where a sync has no effect.
        let durability = if self.is_small { "process" } else { "power" };
        fs::write(workspace.join("brigade.toml"), format!("durability = \"{durability}\"\n{team}")).unwrap();
        let out = workspace.outside.display().to_string();
        let plan: String = (1..=PLANNED)
            .map(|number| {
                let name = format!("plan-{number}");
                let after = if number > 4 { format!("after: Task plan-{}\n", number - 4) } else { String::new() };
                let script = script(&name, &out, self.ballast());
                format!("## Task {name}\n{after}requires: worker\nverify: grep -qx 'of {name}' log.txt\n```sh\n{script}```\n")
            })
            .collect();
        fs::write(workspace.join("plan.md"), plan).unwrap();
        fs::write(workspace.join("log.txt"), "begin\nend\n").unwrap();
        fs::create_dir(workspace.join("ballast")).unwrap();
        for number in 0..self.ballast() {
            fs::write(workspace.join(&format!("ballast/{number}")), format!("ballast {number}\n")).unwrap();
        }
        let ignored = ".tasks/\n.team/\nagent_state.json*\nhog\n";
        fs::write(workspace.join(".gitignore"), ignored).unwrap();
        for step in [&["init", "-q", "-b", "main", "."][..], &["add", "-A"], &["commit", "-q", "-m", "Begin"]] {
            workspace.git(step).expect("the repository is created");
        }
        // The board has its tasks before the first attack, so the set of accepted tasks is known from the start.
        let imported = workspace.json(&["tasks", "import", "plan.md"]).expect("the plan is imported");
        let tasks = workspace.tasks().0;
        assert_eq!(tasks.len(), PLANNED, "{imported}");
        for task in tasks {
            let (id, subject) = (task["id"].as_u64().unwrap(), task["subject"].as_str().unwrap().to_owned());
            self.answers.lock().unwrap().tasks.insert(id, subject);
            self.counts.add("tasks", 1);
        }
        *self.seen.lock().unwrap() = workspace.git(&["rev-parse", "main"]).unwrap();
    }

    /// The number of files that no task changes. It is large enough for git to be killed in the middle of writing them.
    pub fn ballast(&self) -> usize {
        if self.is_small { 1 } else { BALLAST }
    }

    /// Starts the team with one of the two commands.
    pub fn launch(&self, random: &mut fastrand::Rng) -> Lead {
        self.counts.add("launches", 1);
        match random.bool() {
            true => self.workspace.launch(&["run", "crew"]),
            false => self.workspace.launch(&["up", "crew", "--headless", "--mode", "continuous"]),
        }
    }

    fn round(&self, random: &mut fastrand::Rng) {
        let weight: u32 = ATTACKS.iter().map(|(weight, _)| weight).sum();
        let mut drawn = random.u32(..weight);
        let attack: Attack = ATTACKS
            .iter()
            .find_map(|(weight, attack)| {
                let is_it = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                is_it.then_some(*attack)
            })
            .expect("the random number is below the sum of the weights");
        attack(self, random);
        checks::check_always(self);
    }

    /// Kills a lead, and asserts that all processes it started end.
    pub fn kill(&self, lead: &mut Lead) {
        lead.kill();
        self.counts.kill("kills-lead");
        self.assert_alone(lead);
    }

    /// Asserts that no process of an ended lead still runs.
    pub fn assert_alone(&self, lead: &Lead) {
        let mut descendants = Vec::new();
        let is_alone = until(ORPHAN_TIME, || {
            descendants = lead.descendants();
            descendants.is_empty()
        });
        if !is_alone {
            self.wrong("orphans", &format!("{descendants:?}"));
        }
        let output = lead.output();
        if output.contains("panicked at") {
            self.wrong("panics", &output);
        }
    }

    /// Counts a violation and prints its seed.
    pub fn wrong(&self, row: &'static str, text: &str) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        self.counts.wrong(row, &format!("(seed {}, {}) {text}", self.seed, self.workspace.root.display()));
    }

    /// Runs the team until no task is left, and retries failed tasks as a person would.
    fn drain(&self) {
        let started_at = Instant::now();
        let mut output = String::new();
        for _ in 0..RUNS_MAX {
            users::finish_outside_tasks(self);
            let mut run = self.workspace.launch(&["run", "crew"]);
            self.counts.add("launches", 1);
            let code = run.end_within(RUN_TIME);
            output = run.output();
            if code.is_none() {
                self.wrong("hung", &format!("a run of {RUN_TIME:?}: {output}"));
                run.kill();
                return;
            }
            self.assert_alone(&run);
            let tasks = self.workspace.tasks().0;
            if code == Some(0) && tasks.iter().all(|task| task["status"] == "completed") {
                return;
            }
            for task in tasks.iter().filter(|task| task["status"] == "failed") {
                self.workspace.run(&["tasks", "retry", &task["id"].to_string()]);
            }
        }
        self.wrong("hung", &format!("not done after {RUNS_MAX} runs and {:?}: {output}", started_at.elapsed()));
    }
}
