//! Commands under the guard, with real processes: none outlives its claim, and none starts unrecorded.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::agent::access::PathRule;
use brigade::domain::task::TaskId;
use brigade::domain::team::phase::ClaimRef;
use brigade::domain::team::records::RunningCommand;
use brigade::platform::processes;
use brigade::ports::StoreResult;
use brigade::process::CommandError;
use brigade::process::command::CommandRegistry;
use brigade::process::command::{CommandContext, CommandEnd, CommandOutcome, run};
use brigade::sandbox::{self, CONFINEMENT_VARIABLE, CommandExit, Level, Sandbox, SandboxError};
use rustix::process::{Pid, test_kill_process_group};
use tokio::sync::watch;

use crate::testkit::process::{eventually, guard};

const LONG: Duration = Duration::from_secs(60);

/// Records commands, and the existence of the file that a command creates first.
#[derive(Default)]
struct RecordingRegistry {
    commands: Mutex<Vec<(RunningCommand, &'static str)>>,
    /// The file for the guard's process id.
    guard_file: Option<PathBuf>,
    /// The file that the command creates first.
    start_file: Option<PathBuf>,
    had_started_when_recorded: Mutex<bool>,
}

#[async_trait]
impl CommandRegistry for RecordingRegistry {
    async fn record_start(&self, command: RunningCommand) -> StoreResult<()> {
        // Long enough for a command to start if it were not held back.
        tokio::time::sleep(Duration::from_millis(30)).await;
        if let Some(file) = &self.start_file {
            *self.had_started_when_recorded.lock().unwrap() = file.exists();
        }
        if let Some(file) = &self.guard_file {
            std::fs::write(file, format!("{}\n", command.guard.pid)).unwrap();
        }
        self.commands.lock().unwrap().push((command, "started"));
        Ok(())
    }
    async fn record_end(&self, command: RunningCommand) {
        self.commands.lock().unwrap().push((command, "ended"));
    }
}

impl RecordingRegistry {
    fn of(folder: &Path) -> Arc<Self> {
        let (guard_file, start_file) = (Some(folder.join("guard")), Some(folder.join("begun")));
        Arc::new(Self { guard_file, start_file, ..Self::default() })
    }

    fn recorded_stages(&self) -> Vec<&'static str> {
        self.commands.lock().unwrap().iter().map(|(_, what)| *what).collect()
    }
}

struct Bench {
    folder: tempfile::TempDir,
    command_context: CommandContext,
    claim_sender: watch::Sender<Option<ClaimRef>>,
    record: Arc<RecordingRegistry>,
}

/// A sandbox in which these files of the folder are read-only.
fn sandbox(folder: &Path, files: &[&str]) -> Result<Sandbox, SandboxError> {
    let folder = folder.canonicalize().unwrap();
    let rules = files.iter().map(|file| PathRule::read_only(folder.join(file))).collect();
    Sandbox::open(guard(), &folder, rules)
}

fn level() -> Level {
    sandbox(&std::env::temp_dir(), &[]).unwrap().confinement().level
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let record = RecordingRegistry::of(folder.path());
    let (claim_sender, receiver) = watch::channel(None);
    let command_context = command_context(folder.path(), Arc::clone(&record) as Arc<dyn CommandRegistry>, receiver);
    Bench { folder, command_context, claim_sender, record }
}

fn command_context(
    folder: &Path,
    registry: Arc<dyn CommandRegistry>,
    claim: watch::Receiver<Option<ClaimRef>>,
) -> CommandContext {
    CommandContext {
        confined_only_reason: None,
        working_dir: folder.to_owned(),
        sandbox: sandbox(folder, &[".tasks", ".team", "agent_state.json", "brigade.toml"]).unwrap(),
        rules: Vec::new(),
        registry,
        output_bytes_max: 10_000,
        team: "t".into(),
        // The processes of a test's commands are recognized by this name.
        teammate: folder.file_name().unwrap().to_string_lossy().into_owned(),
        claim,
        variables: Vec::new(),
    }
}

impl Bench {
    async fn run(&self, command: &str) -> CommandOutcome {
        run(command, LONG, &self.command_context).await.unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The running processes of its commands by their ids in this process namespace; theirs may differ.
    fn processes(&self) -> Vec<i32> {
        let mark = format!("BRIGADE_TEAMMATE={}\0", self.command_context.teammate);
        let all = std::fs::read_dir("/proc").into_iter().flatten();
        all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                is_alive(*pid) && environment.windows(mark.len()).any(|part| part == mark.as_bytes())
            })
            .collect()
    }

    async fn wait_until_started(&self) {
        eventually("the command has started", async || self.path("begun").exists()).await;
    }

    async fn wait_for_pid(&self, name: &str) -> i32 {
        let path = self.path(name);
        eventually("a process id is written", async || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))
        })
        .await;
        std::fs::read_to_string(&path).unwrap().trim().parse().unwrap()
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn guard_and_command_carry_worker_mark() {
    let bench = bench();
    let command = run("touch begun; exec sleep 300", LONG, &bench.command_context);
    let check = async {
        bench.wait_until_started().await;
        let recorded = bench.record.commands.lock().unwrap()[0].0;
        let mark = processes::own_mark();
        for pid in [recorded.guard.pid, recorded.group] {
            // The shell may just be replaced by its last command.
            eventually("it has the mark", async || sandbox::is_started_by_worker(pid, &mark)).await;
            assert!(!sandbox::is_started_by_worker(pid, "1-1") && !sandbox::is_started_by_worker(pid, ""), "{pid}");
        }
        let is_marked = |pid: &i32| sandbox::is_started_by_worker(*pid, &mark);
        eventually("the command has the mark", async || bench.processes().iter().any(is_marked)).await;
        assert!(
            !sandbox::is_started_by_worker(i32::try_from(std::process::id()).unwrap(), &mark),
            "the worker itself counts as a command"
        );
    };
    tokio::select! {
        outcome = command => panic!("{outcome:?}"),
        () = check => {}
    }
}

/// Waits for the command's file `begun`, and then lets the time of the command be over.
async fn time_out_after_start(begun: &Path) {
    eventually("the command has started", async || begun.exists()).await;
    tokio::time::pause();
    tokio::time::advance(LONG).await;
    tokio::time::resume();
}

/// Returns true if a process runs; a zombie does not count.
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
async fn command_output_is_interleaved_with_exit_status() {
    let bench = bench();
    let outcome = bench.run("echo one; echo two >&2; echo three; exit 7").await;
    assert_eq!(outcome.output, "one\ntwo\nthree\n");
    assert_eq!(outcome.end, CommandEnd::Ended(CommandExit::Code(7)));
    assert_eq!(bench.run("kill -SEGV $$").await.end, CommandEnd::Ended(CommandExit::Signal(11)));
    assert_eq!(bench.run("kill -KILL $$").await.ending_text(), "ended by signal 9 (SIGKILL)");
    assert_eq!(bench.run("exec true").await.end, CommandEnd::Ended(CommandExit::Code(0)));
}

/// Returns true if a group has any process, including ended ones.
fn group_exists(group: i32) -> bool {
    test_kill_process_group(Pid::from_raw(group).unwrap()).is_ok()
}

#[tokio::test]
async fn process_group_is_recorded_while_command_runs() {
    let bench = bench();
    let running = tokio::spawn({
        let command_context = bench.command_context.clone();
        async move { run("touch begun; while ! [ -e go ]; do sleep 0.01; done", LONG, &command_context).await }
    });
    bench.wait_until_started().await;
    assert!(!*bench.record.had_started_when_recorded.lock().unwrap(), "the command started before it was recorded");
    let command = bench.record.commands.lock().unwrap()[0].0;
    assert!(group_exists(command.group), "{command:?}");
    if cfg!(target_os = "linux") {
        let guard = processes::process(command.guard.pid).unwrap();
        assert_eq!((guard.group, guard.started_ms), (guard.pid, command.guard.started_ms));
    }
    std::fs::write(bench.path("go"), "").unwrap();
    assert!(running.await.unwrap().unwrap().is_success());
    assert_eq!(*bench.record.commands.lock().unwrap(), [(command, "started"), (command, "ended")]);
    assert!(!group_exists(command.group), "{command:?}");
}

#[tokio::test]
async fn command_has_task_variables_and_no_terminal() {
    let bench = bench();
    bench.claim_sender.send_replace(Some(ClaimRef { task: TaskId(3), attempt: 2 }));
    assert_eq!(bench.run("cat; echo end").await.output, "end\n");
    let outcome = bench.run("echo $BRIGADE_TEAM $BRIGADE_TEAMMATE $BRIGADE_TASK $BRIGADE_ATTEMPT $TERM $PAGER").await;
    assert_eq!(outcome.output, format!("t {} 3 2 dumb cat\n", bench.command_context.teammate));
    assert_ne!(bench.run("true </dev/tty").await.end, CommandEnd::Ended(CommandExit::Code(0)));
    bench.claim_sender.send_replace(None);
    assert_eq!(bench.run("echo ${BRIGADE_TASK-none}").await.output, "none\n");
}

#[tokio::test]
async fn lost_claim_ends_running_command() {
    let bench = bench();
    bench.claim_sender.send_replace(Some(ClaimRef { task: TaskId(3), attempt: 2 }));
    let command = "sh -c 'trap \"\" TERM; touch begun; while :; do sleep 0.05; done' & sleep 300; touch x";
    let running = tokio::spawn({
        let command_context = bench.command_context.clone();
        async move { run(command, LONG, &command_context).await }
    });
    bench.wait_until_started().await;
    bench.claim_sender.send_replace(Some(ClaimRef { task: TaskId(3), attempt: 3 }));
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(&error, CommandError::ClaimLost(text) if text.contains("#3")), "{error:?}");
    assert_eq!(bench.processes(), [0; 0]);
    assert!(!bench.path("x").exists());
}

#[tokio::test]
async fn command_timeout_ends_command_and_keeps_output() {
    let bench = bench();
    let command = "trap '' TERM; echo working; touch begun; while :; do sleep 0.05; done";
    let running = tokio::spawn({
        let command_context = bench.command_context.clone();
        async move { run(command, LONG, &command_context).await }
    });
    time_out_after_start(&bench.path("begun")).await;
    let outcome = running.await.unwrap().unwrap();
    assert_eq!(outcome.end, CommandEnd::TimedOut(LONG.into()));
    assert_eq!(outcome.output, "working\n");
    assert_eq!(bench.record.recorded_stages(), ["started", "ended"]);
}

#[test]
fn short_command_ends_with_all_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = sandbox(folder.path(), &[]).unwrap();
    let path = |name: &str| folder.path().join(name);
    let background = "(setsid sh -c 'sleep 0.3; touch late' &) ; ";
    let (exit, output) = sandbox.output_of(&format!("{background} echo 2.1.330; exit 3"), folder.path(), LONG).unwrap();
    assert_eq!((exit, output.as_str()), (CommandExit::Code(3), "2.1.330\n"));
    let error = sandbox.output_of("touch begun; sleep 60", folder.path(), Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    let (_, endless) = sandbox.output_of("yes", folder.path(), LONG).unwrap();
    assert_eq!(endless.len(), 64 * 1024);
    assert!(path("begun").exists() && !path("late").exists(), "the background process ran on");
}

#[tokio::test]
async fn dropped_call_ends_command_and_its_record() {
    let bench = bench();
    let running = tokio::spawn({
        let command_context = bench.command_context.clone();
        async move { run("touch begun; sleep 300", LONG, &command_context).await }
    });
    bench.wait_until_started().await;
    assert!(!cfg!(target_os = "linux") || !bench.processes().is_empty(), "its processes are not found");
    running.abort();
    eventually("the command has ended", async || bench.processes().is_empty()).await;
    eventually("its end is recorded", async || bench.record.recorded_stages() == ["started", "ended"]).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn background_processes_end_with_their_command() {
    let bench = bench();
    let command = "sleep 300 & echo $! >a; setsid sh -c 'trap \"\" TERM; echo $$ >b; while :; do sleep 0.05; done' & \
                   (setsid sleep 300 & echo $! >c) ; while ! [ -s b ]; do sleep 0.01; done; echo done";
    let outcome = bench.run(command).await;
    assert_eq!((outcome.output.as_str(), outcome.is_success()), ("done\n", true));
    assert_eq!(bench.processes(), [0; 0]);
}

#[tokio::test]
async fn endless_output_is_bounded() {
    let bench = bench();
    let outcome = bench.run("echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last").await;
    assert!(outcome.output.starts_with("first\n") && outcome.output.ends_with("\nlast\n"));
    assert!(outcome.output.len() < 10_100, "{}", outcome.output.len());
    assert!(outcome.output.contains("bytes left out"));
    let time_max = Duration::from_millis(300);
    let endless = run("yes", time_max, &bench.command_context).await.unwrap();
    assert_eq!(endless.end, CommandEnd::TimedOut(time_max.into()));
}

#[tokio::test]
async fn command_with_closed_output_is_waited_for() {
    let bench = bench();
    let outcome = bench.run("exec >&- 2>&-; sleep 0.2; touch begun; exit 4").await;
    assert_eq!(outcome.end, CommandEnd::Ended(CommandExit::Code(4)));
    assert!(bench.path("begun").exists());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn fork_bomb_in_own_sessions_is_killed() {
    let bench = bench();
    std::fs::write(
        bench.path("bomb.sh"),
        "depth=$1; echo $$ >>pids; trap '' TERM; [ $depth -eq 0 ] || for i in 1 2 3; do setsid sh bomb.sh $((depth - 1)) & done\n\
         while :; do sleep 1; done\n",
    )
    .unwrap();
    let running = tokio::spawn({
        let command_context = bench.command_context.clone();
        async move { run("sh bomb.sh 3 & sleep 300", LONG, &command_context).await }
    });
    let pids = || std::fs::read_to_string(bench.path("pids")).unwrap_or_default();
    eventually("the whole fork bomb has started", async || pids().lines().count() == 40).await;
    running.abort();
    eventually("no process of it is left", async || bench.processes().is_empty()).await;
    assert_eq!(pids().lines().count(), 40);
}

#[tokio::test]
async fn unstartable_command_error_names_reason() {
    let bench = bench();
    for (command, reason) in [("x".repeat(200_000), "the limit is"), ("a\0b".to_owned(), "NUL")] {
        match run(&command, LONG, &bench.command_context).await {
            Err(CommandError::Refused(text)) => assert!(text.contains(reason), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let mut command_context = bench.command_context.clone();
    command_context.working_dir = bench.path("nowhere");
    assert!(matches!(run("true", LONG, &command_context).await, Err(CommandError::Refused(_))));
}

/// Not a test: the worker process of the next tests. It runs a command in the given folder, writes down the result, and
/// keeps running.
#[tokio::test]
async fn helper_worker() {
    let Some(folder) = std::env::var_os("BRIGADE_GUARD_TEST_FOLDER") else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let (_sender, claim_sender) = watch::channel(None);
    let command_context = command_context(Path::new(&folder), RecordingRegistry::of(Path::new(&folder)), claim_sender);
    let command = variable("BRIGADE_GUARD_TEST_COMMAND");
    let running = run(&command, LONG, &command_context);
    let outcome = if variable("BRIGADE_GUARD_TEST_TIMES_OUT") == "true" {
        let begun = Path::new(&folder).join("begun");
        tokio::join!(running, time_out_after_start(&begun)).0
    } else {
        running.await
    };
    let text = outcome.map_or_else(|error| error.to_string(), |outcome| outcome.ending_text());
    std::fs::write(Path::new(&folder).join("outcome.new"), text).unwrap();
    std::fs::rename(Path::new(&folder).join("outcome.new"), Path::new(&folder).join("outcome")).unwrap();
    std::future::pending().await
}

/// A worker in a separate process, killed when the value is dropped.
struct Worker(std::process::Child);

impl Worker {
    fn start(bench: &Bench, confinement: &str, command: &str) -> Self {
        Self::with_timeout(bench, confinement, command, false)
    }

    /// With `times_out`, the time of the command is over once it has created the file `begun`.
    fn with_timeout(bench: &Bench, confinement: &str, command: &str, times_out: bool) -> Self {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::guard::helper_worker"])
            .env("BRIGADE_GUARD_TEST_FOLDER", bench.folder.path())
            .env("BRIGADE_GUARD_TEST_COMMAND", command)
            .env("BRIGADE_GUARD_TEST_TIMES_OUT", times_out.to_string())
            .env(CONFINEMENT_VARIABLE, confinement)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn kill(&mut self) {
        // It may have been killed before.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// All settings of confinement. The system may refuse one; the next weaker one is then used.
const CONFINEMENTS: [&str; 3] = ["", "mounts", "off"];

/// Processes in new sessions that ignore requests to end.
const STUBBORN: &str = "setsid sleep 300 & (setsid sh -c 'trap \"\" TERM HUP; touch begun; \
                        while :; do echo x >>beats; sleep 0.05; done' &) ; sleep 300";

#[cfg(target_os = "linux")]
#[tokio::test]
async fn killed_worker_leaves_no_orphan() {
    for confinement in CONFINEMENTS {
        let bench = bench();
        let mut worker = Worker::start(&bench, confinement, STUBBORN);
        bench.wait_until_started().await;
        let guard = bench.wait_for_pid("guard").await;
        worker.kill();
        eventually("all processes have ended", async || bench.processes().is_empty() && !is_alive(guard)).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn killed_guard_ends_its_command() {
    let bench = bench();
    let command = if level() == Level::Full { STUBBORN } else { "sleep 300 & touch begun; wait" };
    let running = tokio::spawn({
        let command_context = bench.command_context.clone();
        async move { run(command, LONG, &command_context).await }
    });
    bench.wait_until_started().await;
    kill(bench.wait_for_pid("guard").await);
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(&error, CommandError::Refused(text) if text.contains("guard was killed")), "{error:?}");
    eventually("all processes have ended", async || bench.processes().is_empty()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn command_ends_with_guard_if_worker_is_suspended() {
    use rustix::process::{Pid, Signal, kill_process};
    let bench = bench();
    let command = if level() == Level::Full { STUBBORN } else { "touch begun; exec sleep 300" };
    let worker = Worker::start(&bench, "", command);
    bench.wait_until_started().await;
    let pid = Pid::from_raw(i32::try_from(worker.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    kill(bench.wait_for_pid("guard").await);
    eventually("all processes have ended", async || bench.processes().is_empty()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn command_suspending_its_guard_is_ended() {
    for confinement in CONFINEMENTS {
        let bench = bench();
        let command = format!("kill -STOP $PPID; {STUBBORN}");
        let mut worker = Worker::with_timeout(&bench, confinement, &command, true);
        let guard = bench.wait_for_pid("guard").await;
        eventually("the command has ended", async || bench.path("outcome").exists()).await;
        // The answer holds at the time it is given.
        assert_eq!(bench.processes(), [0; 0], "{confinement}");
        let outcome = std::fs::read_to_string(bench.path("outcome")).unwrap();
        let expected = "timed out after 1 min: the command and all its processes were ended";
        assert_eq!(outcome, expected, "{confinement}");
        assert!(bench.path("begun").exists() && !is_alive(guard), "{confinement}");
        worker.kill();
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn guard_killed_by_its_command_leaves_no_orphan() {
    for confinement in ["mounts", "off"] {
        let bench = bench();
        let command = "sleep 300 & (setsid sleep 300 &); touch begun; kill -KILL $PPID; sleep 300";
        let mut worker = Worker::start(&bench, confinement, command);
        eventually("the command has ended", async || bench.path("outcome").exists()).await;
        let outcome = std::fs::read_to_string(bench.path("outcome")).unwrap();
        assert!(bench.path("begun").exists() && outcome.contains("its guard was killed"), "{confinement}: {outcome}");
        assert_eq!(bench.processes(), [0; 0], "{confinement}");
        worker.kill();
    }
}

#[test]
fn writable_rule_for_a_link_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("closed")).unwrap();
    std::fs::create_dir(root.join("other")).unwrap();
    let open = || {
        let rules = vec![PathRule::read_only(root.join("closed")), PathRule::writable(root.join("closed/open"))];
        Sandbox::open(guard(), &root, rules)
    };
    if open().unwrap().confinement().level == Level::Off {
        return;
    }
    std::os::unix::fs::symlink(root.join("other"), root.join("closed/open")).unwrap();
    let error = open().unwrap_err().to_string();
    assert!(error.contains("closed/open") && error.contains("symbolic link"), "{error}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn command_cannot_forge_its_exit_status() {
    for confinement in CONFINEMENTS {
        let bench = bench();
        let command = "for process in $PPID 1; do for file in 1 2 3 4 5; do \
                       (echo 'exit 0' >/proc/$process/fd/$file) 2>/dev/null; done; done; touch begun; sleep 0.5; exit 3";
        let mut worker = Worker::start(&bench, confinement, command);
        eventually("the command has ended", async || bench.path("outcome").exists()).await;
        let outcome = std::fs::read_to_string(bench.path("outcome")).unwrap();
        assert!(bench.path("begun").exists(), "{confinement}: {outcome}");
        let is_seen_through = outcome.contains("did not come from the guard");
        assert!(outcome == "exit status 3" || is_seen_through, "{confinement}: {outcome}");
        assert!(confinement == "off" || !is_seen_through, "{confinement}: the command reached its guard");
        worker.kill();
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn command_sees_only_its_own_processes() {
    if level() != Level::Full {
        return;
    }
    let bench = bench();
    let me = std::process::id();
    let outcome = bench.run(&format!("kill -0 {me} || cat /proc/{me}/environ; ls -d /proc/[0-9]* | wc -l")).await;
    assert!(outcome.output.contains("No such process") && outcome.output.contains("environ"), "{}", outcome.output);
    let seen: u32 = outcome.output.lines().last().unwrap().trim().parse().unwrap();
    assert!(seen <= 5, "{}", outcome.output);
    let outcome =
        bench.run("umount /proc; mount -t proc proc /proc; kill -KILL 1; kill -STOP 1; cat /proc/1/mem").await;
    assert!(!outcome.is_success(), "{}", outcome.output);
    // Commands work as usual.
    let command = "set -e; ps >/dev/null; test -r /proc/self/stat; test $$ = $(cut -d' ' -f1 /proc/$$/stat); \
                   git init -q . && git status -s >/dev/null; printf 'all:\\n\\techo made\\n' >Makefile; \
                   if command -v make >/dev/null; then make -s -j2; else echo made; fi; sleep 0.1 & wait; kill -TERM $$";
    let outcome = bench.run(command).await;
    assert_eq!((outcome.output.as_str(), outcome.end), ("made\n", CommandEnd::Ended(CommandExit::Signal(15))));
}

#[tokio::test]
async fn concurrent_commands_have_distinct_pids() {
    let bench = bench();
    let command = "echo $$; echo $$ >>numbers; while [ $(wc -l <numbers) -lt 8 ]; do sleep 0.02; done";
    let running: Vec<_> = (0..8)
        .map(|_| {
            let command_context = bench.command_context.clone();
            tokio::spawn(async move { run(command, LONG, &command_context).await.unwrap().output })
        })
        .collect();
    let mut numbers = std::collections::BTreeSet::new();
    for command in running {
        numbers.insert(command.await.unwrap());
    }
    assert_eq!(numbers.len(), 8, "{numbers:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn consecutive_commands_have_distinct_pids() {
    let bench = bench();
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..5 {
        numbers.insert(bench.run("echo $$").await.output);
    }
    // Two processes may share one of some thousands of ids by chance, five may not.
    assert!(numbers.len() >= 3, "{numbers:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn protected_path_missing_keeps_the_level() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    for path in ["no/such/folder/brigade.toml", "missing.toml", "link/brigade.toml"] {
        assert_eq!(sandbox(folder.path(), &[path]).unwrap().confinement().level, level(), "{path}");
    }
}

#[tokio::test]
async fn confined_command_sees_control_files_read_only() {
    if level() == Level::Off {
        println!("skipped: commands are not confined here");
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
        assert!(!outcome.is_success(), "`{command}` did not fail: {}", outcome.output);
    }
    // No other folder is put in the place of a parent folder either.
    let outcome =
        bench.run("w=$PWD; cd /; mv \"$w\" \"$w.old\" || mv \"$(dirname \"$w\")\" \"$(dirname \"$w\").old\"").await;
    assert!(!outcome.is_success() && bench.path(".tasks").exists(), "{}", outcome.output);
    let outcome = bench.run("umount .tasks; mount -o remount,bind,rw .tasks; echo x >.tasks/task_1.json").await;
    assert!(!outcome.is_success(), "the mount was undone: {}", outcome.output);
    assert_eq!(std::fs::read_to_string(bench.path(".tasks/task_1.json")).unwrap(), "{}");
    // Outside the sandbox, nothing is mounted.
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
