//! One workspace from its first commit to its last: the team's plan, the rounds of attacks with people at work beside them, the
//! runs in which everything has to be done after all, and the account.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::attacks::{ATTACKS, Attack};
use super::checks;
use super::counts::Counts;
use super::people::{self, Known};
use super::place::{Lead, Place, until};

/// The team.
pub const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// Tasks of the plan.
const PLANNED: usize = 7;
/// Runs after which everything must be done, and how long one may take.
const RUNS_MAX: usize = 25;
const RUN_TIME: Duration = Duration::from_secs(150);
/// How long a killed lead's processes may take to end: the guard gives a command 200 ms, the machine is busy.
const ORPHAN_TIME: Duration = Duration::from_secs(15);
/// The size of a small disk.
const DISK_MEGABYTES: u32 = 48;

/// What a workspace's threads share.
pub struct World {
    pub place: Place,
    pub counts: Arc<Counts>,
    pub known: Mutex<Known>,
    /// Whether it is on a small disk of its own.
    pub is_small: bool,
    pub is_over: AtomicBool,
    /// The merged branch when it was looked at last.
    pub seen: Mutex<String>,
    seed: u64,
    /// What was found wrong in it.
    wrong: AtomicU64,
}

/// A small disk, gone with the value.
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
        // What is still open there keeps it until it is closed.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Lives through one workspace with this seed and so many attacks. What is wrong is counted, and the workspace then kept for whoever looks.
pub fn live(seed: u64, rounds: usize, counts: &Arc<Counts>, is_over: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut folder = tempfile::tempdir().unwrap();
    let wants_disk = random.u32(..3) == 0;
    let disk = if wants_disk { Disk::mount(folder.path().join("repository")) } else { None };
    let world = World {
        place: Place::new(folder.path()),
        counts: Arc::clone(counts),
        known: Mutex::default(),
        is_small: disk.is_some(),
        is_over: AtomicBool::new(false),
        seen: Mutex::default(),
        seed,
        wrong: AtomicU64::new(0),
    };
    world.found();
    counts.add("workspaces", 1);
    std::thread::scope(|scope| {
        for (number, work) in people::WORK.iter().enumerate() {
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
    checks::account(&world);
    if world.wrong.load(Ordering::Relaxed) > 0 {
        folder.disable_cleanup(true);
        eprintln!("seed {seed}: see {}", folder.path().display());
        if disk.is_some() {
            // The small disk goes away.
            let copy = folder.path().join("copy");
            let _ = Command::new("cp").arg("-a").arg(&world.place.root).arg(copy).status();
        }
    }
}

/// What a teammate does for a task: it brings its branch up to date, puts its line where all the others put theirs, takes a
/// line out that it put in, writes a file of its own, and commits. A merge of its own that lost something, because the disk was full in the
/// middle, it makes anew; what an attempt before it left uncommitted it throws away, and does again. `{out}` is outside.
pub fn script(name: &str, out: &str) -> String {
    let left = match name.bytes().map(u32::from).sum::<u32>() % 4 {
        0 => "sleep 300 &",
        1 => "setsid sleep 300 > /dev/null 2>&1 &",
        _ => "",
    };
    format!(
        "set +e\n\
         whole() {{ ! grep -q '^[<=>]' log.txt; }}\n\
         sane() {{\n\
         m=$(git rev-list --min-parents=2 --max-count=1 main..HEAD)\n\
         test -z \"$m\" || test -z \"$(git diff --diff-filter=DM --name-only $m^2 $m -- . ':!log.txt')\" ||\n\
         {{ git reset -q --hard $m^1; exit 1; }}\n\
         }}\n\
         echo \"$BRIGADE_TASK $BRIGADE_ATTEMPT $BRIGADE_TEAMMATE\" >> {out}/begun\n{left}\n\
         git reset -q --hard && git clean -qfd\n\
         sane\n\
         git merge -q main || {{ sed -i '/^[<=>]/d' log.txt && whole && git add -A && git commit -q --no-edit; }}\n\
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
    /// The repository with the team's config, its plan and the first commit.
    fn found(&self) {
        let place = &self.place;
        let members: String =
            MEMBERS.map(|name| format!("[[teams.crew.members]]\nname = \"{name}\"\nrole = \"worker\"\n")).concat();
        let limits = "limits = { free_bytes_min = 262144, poll_interval_ms = 500 }";
        let team = format!("[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\n{limits}\n{members}");
        // A small disk is one of memory, where nothing is ever synced.
        let durability = if self.is_small { "process" } else { "power" };
        fs::write(place.join("brigade.toml"), format!("durability = \"{durability}\"\n{team}")).unwrap();
        let out = place.outside.display().to_string();
        let plan: String = (1..=PLANNED)
            .map(|number| {
                let name = format!("plan-{number}");
                let after = if number > 4 { format!("after: Task plan-{}\n", number - 4) } else { String::new() };
                let script = script(&name, &out);
                format!("## Task {name}\n{after}requires: worker\nverify: grep -qx 'of {name}' log.txt\n```sh\n{script}```\n")
            })
            .collect();
        fs::write(place.join("plan.md"), plan).unwrap();
        fs::write(place.join("log.txt"), "begin\nend\n").unwrap();
        let ignored = ".tasks/\n.team/\nagent_state.json*\nhog\n";
        fs::write(place.join(".gitignore"), ignored).unwrap();
        for step in [&["init", "-q", "-b", "main", "."][..], &["add", "-A"], &["commit", "-q", "-m", "Begin"]] {
            place.git(step).expect("a repository is made");
        }
        // The board with its plan is there before anybody attacks: what was accepted is known from the first moment.
        let imported = place.json(&["tasks", "import", "plan.md"]).expect("the plan is imported");
        let tasks = place.tasks().0;
        assert_eq!(tasks.len(), PLANNED, "{imported}");
        for task in tasks {
            let (id, subject) = (task["id"].as_u64().unwrap(), task["subject"].as_str().unwrap().to_owned());
            self.known.lock().unwrap().tasks.insert(id, subject);
            self.counts.add("tasks", 1);
        }
        *self.seen.lock().unwrap() = place.git(&["rev-parse", "main"]).unwrap();
    }

    /// Starts the team, one way or the other.
    pub fn launch(&self, random: &mut fastrand::Rng) -> Lead {
        self.counts.add("launches", 1);
        match random.bool() {
            true => self.place.launch(&["run", "crew"]),
            false => self.place.launch(&["up", "crew", "--headless", "--mode", "continuous"]),
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
            .expect("the weights' sum is never drawn");
        attack(self, random);
        checks::look(self);
    }

    /// Kills a lead; nothing it has started may live on.
    pub fn kill(&self, lead: &mut Lead) {
        lead.kill();
        self.counts.kill("kills-lead");
        self.assert_alone(lead);
    }

    /// Nothing that an ended lead has started lives on.
    pub fn assert_alone(&self, lead: &Lead) {
        let mut left = Vec::new();
        let is_alone = until(ORPHAN_TIME, || {
            left = lead.family();
            left.is_empty()
        });
        if !is_alone {
            self.wrong("orphans", &format!("{left:?}"));
        }
        let said = lead.said();
        if said.contains("panicked at") {
            self.wrong("panics", &said);
        }
    }

    /// Counts something as wrong, with the seed it happened under.
    pub fn wrong(&self, row: &'static str, text: &str) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        self.counts.wrong(row, &format!("(seed {}, {}) {text}", self.seed, self.place.root.display()));
    }

    /// Removes what a killed git left, as git itself says the person should, while none runs.
    pub fn remove_locks_of_git(&self) {
        if !self.place.processes().is_empty() {
            return;
        }
        for path in checks::locks_of_git(&self.place) {
            if fs::remove_file(&path).is_ok() {
                self.counts.add("locks-of-git", 1);
            }
        }
    }

    /// Lets the team work until nothing is left to do, with a person who retries what was given up.
    fn drain(&self) {
        let began = Instant::now();
        let mut said = String::new();
        for _ in 0..RUNS_MAX {
            self.remove_locks_of_git();
            people::finish_outside_tasks(self);
            let mut run = self.place.launch(&["run", "crew"]);
            self.counts.add("launches", 1);
            let code = run.end_within(RUN_TIME);
            said = run.said();
            if code.is_none() {
                self.wrong("hung", &format!("a run of {RUN_TIME:?}: {said}"));
                run.kill();
                return;
            }
            self.assert_alone(&run);
            let tasks = self.place.tasks().0;
            if code == Some(0) && tasks.iter().all(|task| task["status"] == "completed") {
                return;
            }
            for task in tasks.iter().filter(|task| task["status"] == "failed") {
                self.place.run(&["tasks", "retry", &task["id"].to_string()]);
            }
        }
        self.wrong("hung", &format!("not done after {RUNS_MAX} runs and {:?}: {said}", began.elapsed()));
    }
}
