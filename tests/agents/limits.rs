//! The limits of what an agent writes, and of how often its program is started.

use super::scripts::{ACCEPT, RESULT, report, start, start_with};
use crate::testkit::process::{Process, files_below, wait_until};
use crate::testkit::workspace::TestWorkspace;

const MIB: u64 = 1024 * 1024;

/// The folder that alice's agent can write.
const HOME: &str = ".team/agents/claude-code/alice";

/// Waits for the end of a process. Returns its exit code, and the most memory that it used, in bytes.
fn end_with_memory(run: &mut Process) -> (Option<i32>, u64) {
    let status = format!("/proc/{}/status", run.id());
    let mut bytes = 0;
    wait_until("the run ends", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        bytes = bytes.max(kib.unwrap_or_default() * 1024);
        run.has_ended()
    });
    let code = run.code();
    println!("{}\n{} MiB", run.output_so_far(), bytes / MIB);
    (code, bytes)
}

/// A message with a text of the agent, of this script's variable `$text`.
const SAY: &str = "'{\"type\":\"assistant\",\"message\":{\"id\":\"m1\",\"model\":\"m\",\"content\":[{\"type\":\"text\",\"text\":\"'\"$text\"'\"}]}}'";

/// The agent makes its history a sparse file of 60 GiB, and ends. The next process begins a new session, and the lead reads nothing.
#[test]
fn sparse_history_begins_new_session() {
    let (workspace, mut run) = start(&format!(
        "for a; do case $a in --session-id=*|--resume=*) session=$a;; esac; done\n\
         echo \"$session\" >> $CLAUDE_CONFIG_DIR/sessions; {ACCEPT}; read -r prompt\n\
         if [ $(wc -l < $CLAUDE_CONFIG_DIR/sessions) = 1 ]; then\n\
         mkdir -p $CLAUDE_CONFIG_DIR/projects/x; truncate -s 60G $CLAUDE_CONFIG_DIR/projects/x/${{session#*=}}.jsonl\n\
         text=begun; echo {SAY}; exit\n\
         fi\n\
         echo hello > hello.txt; {}",
        report()
    ));
    let (code, memory_bytes) = end_with_memory(&mut run);
    assert_eq!((code, workspace.all_are("completed")), (Some(0), true));
    assert!(memory_bytes < 200 * MIB, "{memory_bytes}");
    let sessions = workspace.read(&format!("{HOME}/sessions"));
    assert!(sessions.lines().all(|session| session.starts_with("--session-id=")), "{sessions}");
    let printed = run.output_so_far();
    assert!(printed.contains("cannot continue its session"), "{printed}");
    let warned = workspace
        .events()
        .iter()
        .any(|event| event.to_string().contains(".jsonl: it has more than 1073741824 bytes, which is the limit"));
    assert!(warned, "no event names the file and the limit");
}

/// The agent writes texts without end. The attempt fails at the limit of its records, and the reason names the limit.
#[test]
fn endless_texts_fail_attempt() {
    let script = format!(
        "{ACCEPT}; read -r prompt; text=$(head -c 100000 /dev/zero | tr '\\0' x)\nyes \"$(echo {SAY})\"; sleep 600"
    );
    let workspace = team(&script, "", "");
    workspace.write("brigade.toml", &workspace.read("brigade.toml").replace("plan = \"plan.md\"\n", ""));
    let added = workspace.run(&["tasks", "add", "Write hello", "--max-attempts", "1"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let mut run = workspace.start(&["run", "crew"]);
    let (code, memory_bytes) = end_with_memory(&mut run);
    let task = workspace.task(1);
    assert_eq!((code, &task["status"]), (Some(1), &"failed".into()), "{task}");
    assert!(task.to_string().contains("more than 67108864 bytes, which is the limit of one attempt"), "{task}");
    assert!(memory_bytes < 400 * MIB, "{memory_bytes}");
    let folder = workspace.join(".team/transcripts");
    let bytes: u64 = files_below(&folder).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!((60 * MIB..80 * MIB).contains(&bytes), "{bytes} bytes of transcript");
    workspace.assert_nothing_is_left_running();
}

/// A repository with alice, whose agent is this script, and bob, who runs the tasks that require `shell`.
fn team(script: &str, plan: &str, more: &str) -> TestWorkspace {
    let bob = "[[teams.crew.members]]\nname = \"bob\"\nrole = \"shell\"\nprovider = \"runbook\"\n";
    let workspace = super::program::workspace("AGENT", "http://127.0.0.1:9", plan, &format!("{more}\n{bob}"));
    workspace.write("agent.sh", &format!("[ \"$1\" = --version ] && echo 2.1.330 && exit\n{script}\n"));
    let command = format!("sh {}", workspace.join("agent.sh").display());
    workspace.write("brigade.toml", &workspace.read("brigade.toml").replace("AGENT", &command));
    workspace
}

/// The number of starts that the agent's script counts.
fn starts(workspace: &TestWorkspace) -> usize {
    workspace.read(&format!("{HOME}/starts")).lines().count()
}

const COUNT: &str = "echo x >> $CLAUDE_CONFIG_DIR/starts";

/// Alice has mail and no task. Her agent keeps no session and ends without an answer, or after an empty one. It is started a few times,
/// and `brigade team` names the reason for which it is not started again. Bob completes the tasks.
#[test]
fn agent_without_answer_is_not_started_again() {
    let plan = "## Wait\nrequires: shell\n```sh\nuntil [ -e GO ]; do sleep 0.02; done\n```\n\n\
                ## Work\nrequires: shell\nafter: Wait\n```sh\necho done\n```\n";
    let silent =
        (format!("{ACCEPT}; read -r prompt; {RESULT}"), "without an answer to its mail (3 failures in a row)", 3);
    let empty = (
        format!("{ACCEPT}; read -r prompt; text=; echo {SAY}; exit"),
        "ended by itself 3 times in a row without a tool call",
        3,
    );
    for (script, reason, starts_max) in [silent, empty] {
        let workspace = team(&format!("{COUNT}; {script}"), plan, "");
        workspace.write("plan.md", &plan.replace("GO", workspace.join("said-go").to_str().unwrap()));
        let sent = workspace.run(&["send", "alice", "Which port?"]);
        assert_eq!(sent.code, Some(0), "{sent:?}");
        let mut run = workspace.start(&["run", "crew"]);
        wait_until("the reason is shown", || workspace.json(&["team"]).to_string().contains(reason));
        workspace.write("said-go", "");
        let code = run.code();
        println!("{}", run.output_so_far());
        assert_eq!((code, workspace.all_are("completed")), (Some(0), true));
        assert_eq!(starts(&workspace), starts_max);
        workspace.assert_nothing_is_left_running();
    }
}

/// Alice's agent says one text for each prompt and exits. It is started three times, although her task may be tried more often, and the
/// reason names the cause and the remedy. Bob completes the other task.
#[test]
fn agent_that_exits_after_text_is_not_started_again() {
    let plan = "## Write hello\nWrite hello.\n\n## Work\nrequires: shell\n```sh\necho done\n```\n";
    let exits = format!("{COUNT}; {ACCEPT}; read -r prompt; text=hi; echo {SAY}; exit 3");
    let after_result = format!("{COUNT}; {ACCEPT}; read -r prompt; text=hi; echo {SAY}; {RESULT}; exit");
    for (script, starts_max, reason) in [
        (
            exits,
            3,
            "ended by itself 3 times in a row without a tool call: Claude Code ended; start the program by hand",
        ),
        (after_result, 6, "ended without a report and changed nothing; its last words"),
    ] {
        let workspace = team(&script, plan, "");
        let mut run = workspace.start(&["run", "crew"]);
        let code = run.code();
        println!("{}", run.output_so_far());
        let task = workspace.task(1);
        assert_eq!((code, &workspace.task(2)["status"]), (Some(1), &"completed".into()), "{task}");
        assert!(task.to_string().contains(reason), "{task}");
        assert!(starts(&workspace) <= starts_max, "{} starts", starts(&workspace));
        workspace.assert_nothing_is_left_running();
    }
}

/// The agent runs one command for each prompt, and then only talks. A command that only reads is no work.
#[test]
fn agent_that_only_reads_fails_attempt() {
    let plan = "## Write hello\nWrite hello.\n";
    for (command, status) in [("ls -la", "failed"), ("make hello", "completed")] {
        let call = |hook: &str| super::scripts::hook(hook, "Bash", &format!("{{\"command\":\"{command}\"}}"));
        let (before, after) = (call("PreToolUse"), call("PostToolUseFailure"));
        let script =
            format!("{ACCEPT}; while read -r prompt; do {before}; {after}; text=hi; echo {SAY}; {RESULT}; done");
        let workspace = team(&script, plan, "");
        let mut run = workspace.start(&["run", "crew"]);
        let code = run.code();
        println!("{}", run.output_so_far());
        let task = workspace.task(1);
        assert_eq!((code, &task["status"]), (Some(1), &status.into()), "{command}: {task}");
        assert_eq!(task["result"]["unverified"] == true, status == "completed", "{task}");
        let words = "ended without a report and changed nothing; its last words: \"hi\"";
        assert_eq!(task["result"]["summary"] == words, status == "failed", "{task}");
        workspace.assert_nothing_is_left_running();
    }
}

/// An agent that starts one process for each step, and calls a tool in each, makes progress. It completes its task in the sixth process.
#[test]
fn agent_that_exits_after_each_tool_completes_task() {
    let call = |hook: &str| super::scripts::hook(hook, "Bash", "{\"command\":\"true\"}");
    let (workspace, mut run) = start(&format!(
        "{COUNT}; {ACCEPT}; read -r prompt; text=step; echo {SAY}\n\
         if [ $(wc -l < $CLAUDE_CONFIG_DIR/starts) -lt 6 ]; then {}; {}; exit; fi\n\
         echo hello > hello.txt; {}",
        call("PreToolUse"),
        call("PostToolUse"),
        report()
    ));
    super::scripts::assert_ended(&workspace, &mut run, 0, "completes #1");
    assert_eq!(starts(&workspace), 6);
}

/// The agent does not know any session, not even the one that it was told to begin. Each start is one failure of its model.
#[test]
fn agent_that_knows_no_session_waits() {
    let result = "{\"type\":\"result\",\"is_error\":true,\"errors\":[\"No conversation found with session ID: x\"]}";
    let (workspace, mut run) = start_with(&format!("{COUNT}; read -r line; echo '{result}'"), "", &[]);
    let code = run.code();
    println!("{}", run.output_so_far());
    assert_eq!(code, Some(5));
    assert!(run.output_so_far().contains("does not know the session"), "{}", run.output_so_far());
    assert!(starts(&workspace) <= 12, "{} starts", starts(&workspace));
    workspace.assert_nothing_is_left_running();
}
