//! Commands under the guard, with real processes: that nothing outlives its reason to run, and nothing starts unrecorded.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use brigade::domain::task::TaskId;
use brigade::platform::guard::{self, CommandEnd, Confinement};
use brigade::ports::StoreResult;
use brigade::tools::command::{CommandOutcome, CommandSetting, Ending, Holding, run};
use brigade::tools::{CommandRegistry, ToolError};
use tokio::sync::watch;

const LONG: Duration = Duration::from_secs(60);
/// How long a condition may take to come true before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes down what is recorded, and where the file of a command's first act stood then.
#[derive(Default)]
struct Record {
    groups: Mutex<Vec<(i32, &'static str)>>,
    begun: Option<PathBuf>,
    had_begun_when_recorded: Mutex<bool>,
}

#[async_trait]
impl CommandRegistry for Record {
    async fn started(&self, group: i32) -> StoreResult<()> {
        // Long enough for a command to begin, were it not held back.
        tokio::time::sleep(Duration::from_millis(30)).await;
        if let Some(begun) = &self.begun {
            *self.had_begun_when_recorded.lock().unwrap() = begun.exists();
        }
        self.groups.lock().unwrap().push((group, "started"));
        Ok(())
    }
    async fn ended(&self, group: i32) {
        self.groups.lock().unwrap().push((group, "ended"));
    }
}

struct Bench {
    folder: tempfile::TempDir,
    setting: CommandSetting,
    holding: watch::Sender<Holding>,
    record: Arc<Record>,
}

fn guard_of_brigade() -> Arc<[OsString]> {
    Arc::from([OsString::from(env!("CARGO_BIN_EXE_brigade")), guard::GUARD_ARGUMENT.into()])
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let record = Arc::new(Record { begun: Some(folder.path().join("begun")), ..Record::default() });
    let (holding, receiver) = watch::channel(None);
    let setting = setting(folder.path(), Arc::clone(&record) as Arc<dyn CommandRegistry>, receiver);
    Bench { folder, setting, holding, record }
}

fn setting(folder: &Path, commands: Arc<dyn CommandRegistry>, holding: watch::Receiver<Holding>) -> CommandSetting {
    CommandSetting {
        workspace: folder.to_owned(),
        control_files: [".tasks", ".team", "agent_state.json", "brigade.toml"].map(PathBuf::from).into(),
        guard: guard_of_brigade(),
        commands,
        output_bytes_max: 10_000,
        team: "t".into(),
        teammate: "alice".into(),
        holding,
    }
}

impl Bench {
    async fn run(&self, command: &str) -> CommandOutcome {
        run(command, LONG, &self.setting).await.unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The process id a command wrote into a file.
    async fn pid_in(&self, name: &str) -> i32 {
        let path = self.path(name);
        eventually("a process id is written", || std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')))
            .await;
        std::fs::read_to_string(&path).unwrap().trim().parse().unwrap()
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "in vain waited until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whether a process runs; a zombie that only waits to be reaped does not.
fn is_alive(pid: i32) -> bool {
    if cfg!(target_os = "linux") {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        return stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'));
    }
    rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid).unwrap()).is_ok()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn output_comes_interleaved_and_the_exit_status_is_handed_on() {
    let bench = bench();
    let outcome = bench.run("echo one; echo two >&2; echo three; exit 7").await;
    assert_eq!(outcome.output, "one\ntwo\nthree\n");
    assert_eq!(outcome.ending, Ending::Ended(CommandEnd::Exit(7)));
    assert_eq!(bench.run("kill -SEGV $$").await.ending, Ending::Ended(CommandEnd::Signal(11)));
    assert_eq!(bench.run("kill -KILL $$").await.ending_text(), "ended by signal 9 (SIGKILL)");
    assert_eq!(bench.run("exec true").await.ending, Ending::Ended(CommandEnd::Exit(0)));
}

#[tokio::test]
async fn a_group_is_recorded_before_its_command_begins_and_until_it_has_ended() {
    let bench = bench();
    let outcome = bench.run("touch begun; ps -o pgid= -p $$ || cut -d' ' -f5 /proc/$$/stat").await;
    assert!(!*bench.record.had_begun_when_recorded.lock().unwrap(), "the command began before it was recorded");
    assert!(bench.path("begun").exists());
    let group: i32 = outcome.output.trim().parse().unwrap();
    assert_eq!(*bench.record.groups.lock().unwrap(), [(group, "started"), (group, "ended")]);
}

#[tokio::test]
async fn commands_have_no_input_and_no_terminal_and_know_what_they_run_for() {
    let bench = bench();
    bench.holding.send_replace(Some((TaskId(3), 2)));
    assert_eq!(bench.run("cat; echo end").await.output, "end\n");
    let outcome = bench.run("echo $BRIGADE_TEAM $BRIGADE_TEAMMATE $BRIGADE_TASK $BRIGADE_ATTEMPT $TERM $PAGER").await;
    assert_eq!(outcome.output, "t alice 3 2 dumb cat\n");
    assert_ne!(bench.run("true </dev/tty").await.ending, Ending::Ended(CommandEnd::Exit(0)));
    bench.holding.send_replace(None);
    assert_eq!(bench.run("echo ${BRIGADE_TASK-none}").await.output, "none\n");
}

#[tokio::test]
async fn a_lost_claim_ends_the_command_within_a_second() {
    let bench = bench();
    bench.holding.send_replace(Some((TaskId(3), 2)));
    let command =
        "echo $$ >pid; sh -c 'trap \"\" TERM; echo $$ >stubborn; while :; do sleep 0.05; done' & sleep 5; touch x";
    let running = tokio::spawn({
        let setting = bench.setting.clone();
        async move { run(command, LONG, &setting).await }
    });
    let pids = [bench.pid_in("pid").await, bench.pid_in("stubborn").await];
    let lost_at = Instant::now();
    bench.holding.send_replace(Some((TaskId(3), 3)));
    let error = running.await.unwrap().unwrap_err();
    // It would have slept for five.
    assert!(lost_at.elapsed() < Duration::from_secs(4), "it took {:?}", lost_at.elapsed());
    assert!(matches!(&error, ToolError::ClaimLost(text) if text.contains("#3")), "{error:?}");
    assert!(!pids.into_iter().any(is_alive), "processes are left");
    assert!(!bench.path("x").exists());
}

#[tokio::test]
async fn time_that_is_over_ends_the_command_and_keeps_its_output() {
    let bench = bench();
    let command = "trap '' TERM; echo working; while :; do sleep 0.05; done";
    let outcome = run(command, Duration::from_millis(300), &bench.setting).await.unwrap();
    assert_eq!(outcome.ending, Ending::TimedOut);
    assert_eq!(outcome.output, "working\n");
    let groups = bench.record.groups.lock().unwrap();
    assert_eq!(groups.iter().map(|(_, what)| *what).collect::<Vec<_>>(), ["started", "ended"]);
}

#[tokio::test]
async fn a_dropped_call_ends_the_command_and_its_record() {
    let bench = bench();
    let running = tokio::spawn({
        let setting = bench.setting.clone();
        async move { run("echo $$ >pid; sleep 300", LONG, &setting).await }
    });
    let pid = bench.pid_in("pid").await;
    running.abort();
    eventually("the command is gone", || !is_alive(pid)).await;
    eventually("its end is recorded", || bench.record.groups.lock().unwrap().contains(&(pid, "ended"))).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_a_command_leaves_in_the_background_is_ended_and_holds_nothing_up() {
    let bench = bench();
    let command = "sleep 300 & echo $! >a; setsid sh -c 'trap \"\" TERM; echo $$ >b; while :; do sleep 0.05; done' & \
                   (setsid sleep 300 & echo $! >c) ; while ! [ -s b ]; do sleep 0.01; done; echo done";
    let outcome = bench.run(command).await;
    assert_eq!((outcome.output.as_str(), outcome.is_success()), ("done\n", true));
    for name in ["a", "b", "c"] {
        assert!(!is_alive(bench.pid_in(name).await), "{name} outlived its command");
    }
}

#[tokio::test]
async fn endless_output_is_read_on_and_kept_within_bounds() {
    let bench = bench();
    let outcome = bench.run("echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last").await;
    assert!(outcome.output.starts_with("first\n") && outcome.output.ends_with("\nlast\n"));
    assert!(outcome.output.len() < 10_100, "{}", outcome.output.len());
    assert!(outcome.output.contains("bytes left out"));
    let endless = run("yes", Duration::from_millis(300), &bench.setting).await.unwrap();
    assert_eq!(endless.ending, Ending::TimedOut);
}

#[tokio::test]
async fn a_command_that_closes_its_output_is_waited_for() {
    let bench = bench();
    let outcome = bench.run("exec >&- 2>&-; sleep 0.2; touch begun; exit 4").await;
    assert_eq!(outcome.ending, Ending::Ended(CommandEnd::Exit(4)));
    assert!(bench.path("begun").exists());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_small_fork_bomb_in_sessions_of_its_own_is_ended_wholly() {
    let bench = bench();
    std::fs::write(
        bench.path("bomb.sh"),
        "depth=$1; echo $$ >>pids; trap '' TERM; [ $depth -eq 0 ] || for i in 1 2 3; do setsid sh bomb.sh $((depth - 1)) & done\n\
         while :; do sleep 1; done\n",
    )
    .unwrap();
    let running = tokio::spawn({
        let setting = bench.setting.clone();
        async move { run("sh bomb.sh 3 & sleep 300", LONG, &setting).await }
    });
    let pids = || std::fs::read_to_string(bench.path("pids")).unwrap_or_default();
    eventually("all of the bomb has started", || pids().lines().count() == 40).await;
    running.abort();
    let left = || pids().lines().any(|pid| is_alive(pid.parse().unwrap()));
    eventually("nothing of it is left", || !left()).await;
    assert_eq!(pids().lines().count(), 40);
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_why() {
    let bench = bench();
    for (command, reason) in [("x".repeat(200_000), "too long"), ("a\0b".to_owned(), "NUL")] {
        match run(&command, LONG, &bench.setting).await {
            Err(ToolError::Mendable(text)) => assert!(text.contains(reason), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let mut setting = bench.setting.clone();
    setting.workspace = bench.path("nowhere");
    assert!(matches!(run("true", LONG, &setting).await, Err(ToolError::Mendable(_))));
}

/// Not a test of its own: the worker that the next tests kill. It runs a command until it is killed.
#[tokio::test]
async fn helper_worker() {
    let Some(folder) = std::env::var_os("BRIGADE_GUARD_TEST_FOLDER") else { return };
    let (_sender, holding) = watch::channel(None);
    let setting = setting(Path::new(&folder), Arc::new(Record::default()), holding);
    let command = "echo $PPID >guard; echo $$ >a; setsid sleep 300 & echo $! >b; \
                   (setsid sh -c 'trap \"\" TERM HUP; echo $$ >c; while :; do sleep 0.05; done' &) ; sleep 300";
    run(command, LONG, &setting).await.unwrap();
}

fn start_worker(bench: &Bench) -> std::process::Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_worker"])
        .env("BRIGADE_GUARD_TEST_FOLDER", bench.folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_killed_worker_leaves_no_orphan() {
    let bench = bench();
    let mut worker = start_worker(&bench);
    let mut pids = Vec::new();
    for name in ["guard", "a", "b", "c"] {
        pids.push(bench.pid_in(name).await);
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    eventually("all are gone", || !pids.iter().any(|pid| is_alive(*pid))).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_killed_guard_takes_its_command_with_it() {
    let bench = bench();
    let running = tokio::spawn({
        let setting = bench.setting.clone();
        async move { run("echo $PPID >guard; sleep 300 & echo $! >a; echo $$ >b; wait", LONG, &setting).await }
    });
    let pids = [bench.pid_in("a").await, bench.pid_in("b").await];
    kill(bench.pid_in("guard").await);
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(&error, ToolError::Mendable(text) if text.contains("guard was killed")), "{error:?}");
    eventually("all are gone", || !pids.into_iter().any(is_alive)).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_shell_dies_with_its_guard_though_nobody_looks() {
    use rustix::process::{Pid, Signal, kill_process};
    let bench = bench();
    let mut worker = start_worker(&bench);
    let (shell, escaped) = (bench.pid_in("a").await, [bench.pid_in("b").await, bench.pid_in("c").await]);
    let pid = Pid::from_raw(i32::try_from(worker.id()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    kill(bench.pid_in("guard").await);
    eventually("the shell is gone", || !is_alive(shell)).await;
    // What left the group is beyond reach once its guard was killed: that is said in `platform::guard`.
    escaped.into_iter().filter(|pid| is_alive(*pid)).for_each(kill);
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn confined_commands_see_control_files_read_only_and_all_else_as_ever() {
    if let Confinement::Unavailable(reason) = guard::confinement(&guard_of_brigade()) {
        println!("not confined here: {reason}");
        return;
    }
    let bench = bench();
    std::fs::create_dir_all(bench.path(".tasks")).unwrap();
    std::fs::write(bench.path(".tasks/task_1.json"), "{}").unwrap();
    std::fs::write(bench.path("brigade.toml"), "").unwrap();
    for command in
        ["echo x >.tasks/task_1.json", "touch .tasks/new", "rm -rf .tasks", "mv .tasks other", "echo >>brigade.toml"]
    {
        let outcome = bench.run(command).await;
        assert!(!outcome.is_success(), "`{command}` should fail: {}", outcome.output);
    }
    let outcome = bench.run("umount .tasks; mount -o remount,bind,rw .tasks; echo x >.tasks/task_1.json").await;
    assert!(!outcome.is_success(), "the mount was undone: {}", outcome.output);
    assert_eq!(std::fs::read_to_string(bench.path(".tasks/task_1.json")).unwrap(), "{}");
    // Outside, nothing is mounted.
    std::fs::write(bench.path(".tasks/task_1.json"), "{ }").unwrap();
    let outcome =
        bench.run("cat .tasks/task_1.json; id -u; id -g; echo $HOME; touch mine; git init -q . && git status -s").await;
    let me = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let home = std::env::var("HOME").unwrap_or_default();
    assert!(outcome.output.starts_with(&format!("{{ }}{}\n{}\n{home}\n", me.0, me.1)), "{}", outcome.output);
    assert!(outcome.is_success() && !outcome.output.contains("dubious"), "{}", outcome.output);
    let metadata = std::fs::metadata(bench.path("mine")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((metadata.uid(), metadata.gid()), me);
}
