//! Programs written as shell scripts: those that die, hang or have no login, and those that use `brigade mcp`.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::program::workspace;
use super::scenarios::{PLAN, check_task};
use crate::testkit::process::{Process, files_below, git, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// Reads the first message, and accepts prompts.
pub const ACCEPT: &str = "read -r line; echo '{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"brigade-initialize\",\"response\":{}}}'";

/// A message that ends a turn.
pub const RESULT: &str =
    "echo '{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"Done.\",\"modelUsage\":{}}'";

/// Sends a hook before or after a tool, and reads the answer into `$answer`.
pub fn hook(hook: &str, tool: &str, input: &str) -> String {
    let input = format!("{{\"tool_name\":\"{tool}\",\"tool_use_id\":\"t1\",\"tool_input\":{input}}}");
    let request = format!("{{\"subtype\":\"hook_callback\",\"callback_id\":\"{hook}\",\"input\":{input}}}");
    format!("echo '{{\"type\":\"control_request\",\"request_id\":\"{hook}\",\"request\":{request}}}'; read -r answer")
}

/// Reports task 1 as completed, through `brigade mcp`.
pub fn report() -> String {
    let arguments = "{\"task_id\":1,\"status\":\"completed\",\"result\":\"written\"}";
    let params = format!("{{\"name\":\"task_update\",\"arguments\":{arguments}}}");
    let call = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{params}}}\\n");
    format!("(printf '{call}'; sleep 60) | {} mcp", env!("CARGO_BIN_EXE_brigade"))
}

/// Reports task 1 as completed, in band.
const REPORT_IN_BAND: &str = "echo '{\"type\":\"control_request\",\"request_id\":\"m1\",\"request\":{\"subtype\":\"mcp_message\",\"message\":{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"task_update\",\"arguments\":{\"task_id\":1,\"status\":\"completed\",\"result\":\"written\"}}}}}'";

/// Starts a team whose agent is this shell script.
pub fn start(script: &str) -> (TestWorkspace, Process) {
    start_with(script, "", &[])
}

/// As [`start`], with further settings and variables.
pub fn start_with(script: &str, settings: &str, variables: &[(&str, &str)]) -> (TestWorkspace, Process) {
    start_plan(PLAN, script, settings, "", variables)
}

/// As [`start`], with further settings of the team and of its member.
pub fn start_member(script: &str, settings: &str, member: &str) -> (TestWorkspace, Process) {
    start_plan(PLAN, script, settings, member, &[])
}

/// As [`start_with`], with this plan.
fn start_plan(
    plan: &str,
    script: &str,
    settings: &str,
    member: &str,
    variables: &[(&str, &str)],
) -> (TestWorkspace, Process) {
    let workspace = workspace("AGENT", "http://127.0.0.1:9", plan, settings);
    workspace.write("agent.sh", &format!("[ \"$1\" = --version ] && echo 2.1.330 && exit\n{script}\n"));
    let command = format!("sh {}", workspace.join("agent.sh").display());
    workspace.write("brigade.toml", &(workspace.read("brigade.toml").replace("AGENT", &command) + member + "\n"));
    let mut brigade = workspace.brigade(&["run", "crew"]);
    brigade.env("BRIGADE_MODEL_OUTAGE_MAX_MS", "2000").envs(variables.iter().copied());
    let run = Process::start(brigade, &workspace.join("said-1.txt"));
    (workspace, run)
}

/// Asserts that the run ended with this code and these words, and that it counted no failures.
pub fn assert_ended(workspace: &TestWorkspace, run: &mut Process, code: i32, words: &str) {
    let ended = run.code();
    let printed = run.output_so_far();
    println!("{printed}");
    assert_eq!(ended, Some(code));
    assert!(printed.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{words}");
    let task = workspace.task(1);
    assert!(task.get("failures").is_none_or(|failures| failures == 0), "{task}");
    workspace.assert_nothing_is_left_running();
}

fn tokens(workspace: &TestWorkspace) -> Value {
    workspace.json(&["cost"])["tokens"].clone()
}

#[test]
fn program_that_dies_ends_run_without_usage() {
    for script in ["echo broken; exit 3".to_owned(), format!("{ACCEPT}; read -r prompt; echo broken; exit 3")] {
        let (workspace, mut run) = start(&script);
        assert_ended(&workspace, &mut run, 5, "Claude Code ended: broken");
        assert_eq!(tokens(&workspace), 0);
    }
}

/// The program hangs after its result: it does not take the next prompt. Another process continues the attempt.
#[test]
fn program_that_hangs_after_result_is_replaced() {
    let first = format!(": > $CLAUDE_CONFIG_DIR/started; {ACCEPT}; read -r prompt; {RESULT}; sleep 60");
    let second = format!("{ACCEPT}; read -r prompt; echo hello > hello.txt; {}", report());
    let script = format!("if [ -e $CLAUDE_CONFIG_DIR/started ]; then {second}; else {first}; fi");
    let (workspace, mut run) = start_with(&script, "[teams.crew.limits]\nmodel_silence_timeout_ms = 3000", &[]);
    assert_ended(&workspace, &mut run, 0, "Claude Code sent nothing for 3 s, so it was ended; its session continues");
    let task = workspace.task(1);
    assert!(task["status"] == "completed" && task["attempt"] == 1, "{task}");
}

/// A model request of 100 tokens.
fn request(id: &str) -> String {
    let event = |event: &str| format!("echo '{{\"type\":\"stream_event\",\"event\":{event}}}'");
    let usage = "\"usage\":{\"input_tokens\":100}";
    let begin = event(&format!("{{\"type\":\"message_start\",\"message\":{{\"id\":\"{id}\",{usage}}}}}"));
    format!("{begin}; {}", event("{\"type\":\"message_stop\"}"))
}

/// Reports the task, and answers the interrupt after that with a result: the process has used 149 tokens.
fn report_and_use_149_tokens() -> String {
    let usage = "\"modelUsage\":{\"m\":{\"inputTokens\":149}}";
    let result = format!("{{\"type\":\"result\",\"is_error\":true,\"terminal_reason\":\"aborted_tools\",{usage}}}");
    format!(
        "echo hello > hello.txt; {REPORT_IN_BAND}\n\
         until echo \"$line\" | grep -q '\"interrupt\"'; do read -r line; done; echo '{result}'; sleep 600"
    )
}

/// A request of 100 tokens has events, and another one of 49 is only in the result of the turn that the report ends. The closing line
/// has both.
#[test]
fn usage_in_result_after_report_is_counted() {
    let (workspace, mut run) =
        start(&format!("{ACCEPT}; read -r prompt; {}; {}", request("a"), report_and_use_149_tokens()));
    let code = run.code();
    println!("{}", run.output_so_far());
    check_task(&workspace, code);
    assert_eq!(tokens(&workspace), 149);
    assert!(run.output_so_far().contains(", 149 tokens)"));
    workspace.assert_nothing_is_left_running();
}

/// An agent that reports 0 or 10^18 tokens is not believed: each of its requests counts as its maximum, and one warning says so.
#[test]
fn impossible_usage_of_agent_counts_as_maximum() {
    for (tokens_reported, words) in [
        ("0", "reports a usage lower than expected"),
        ("1000000000000000000", "reports more tokens than the request can use"),
    ] {
        let one = |id: &str| request(id).replace(":100}", &format!(":{tokens_reported}}}"));
        let rest = report_and_use_149_tokens().replace(":149}", &format!(":{tokens_reported}}}"));
        let script = format!("{ACCEPT}; read -r prompt; {}; {}; {rest}", one("a"), one("b"));
        let (workspace, mut run) = start_with(&script, "[teams.crew.budget]\ntokens = 1000000", &[]);
        let code = run.code();
        println!("{}", run.output_so_far());
        check_task(&workspace, code);
        assert_eq!(run.output_so_far().matches(words).count(), 1, "{words}");
        let counted = tokens(&workspace).as_u64().unwrap();
        assert!((2 * 82_000..4 * 82_000).contains(&counted), "{counted}");
    }
}

/// The total of a resumed process starts at zero, as it says when it is asked. So its first result shows the request without events.
#[test]
fn usage_in_first_result_after_resume_is_counted() {
    let no_usage = "{\"text\":\"Usage:                 0 input, 0 output, 0 cache read, 0 cache write\"}";
    let answer =
        format!("{{\"subtype\":\"success\",\"request_id\":\"brigade-session-usage\",\"response\":{no_usage}}}");
    let (workspace, mut run) = start(&format!(
        "for a; do case $a in --session-id=*|--resume=*) session=$a;; esac; done; {ACCEPT}\n\
         case $session in --resume=*) read -r line; echo '{{\"type\":\"control_response\",\"response\":{answer}}}'\n\
         read -r prompt; {}; {};; esac\n\
         read -r prompt; mkdir -p $CLAUDE_CONFIG_DIR/projects/x\n\
         printf '%s\\n' \"$prompt\" > $CLAUDE_CONFIG_DIR/projects/x/${{session#*=}}.jsonl; {}",
        request("b"),
        report_and_use_149_tokens(),
        request("a"),
    ));
    let code = run.code();
    println!("{}", run.output_so_far());
    check_task(&workspace, code);
    assert_eq!(tokens(&workspace), 100 + 149);
    workspace.assert_nothing_is_left_running();
}

#[test]
fn missing_login_ends_run_at_start() {
    let result = "{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":true,\"result\":\"Please run /login\"}";
    let (workspace, mut run) = start(&format!("read -r line; echo '{result}'; sleep 60"));
    assert_ended(&workspace, &mut run, 2, "Please run /login");
    assert_eq!(tokens(&workspace), 0);
}

/// The team that `brigade init` writes, with a program `claude` in `PATH`.
#[test]
fn team_of_init_completes_its_plan() {
    let workspace = TestWorkspace::new();
    git(&workspace, &["init", "-q", "-b", "main"]);
    let init = workspace.run(&["init", "--provider", "claude-code"]);
    assert!(init.code == Some(0) && init.out.contains("git add ") && init.out.contains("git commit"), "{init:?}");
    let brigade = env!("CARGO_BIN_EXE_brigade");
    let report = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"task_update\",\"arguments\":{\"task_id\":%s,\"status\":\"completed\",\"result\":\"written\"}}}\\n";
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 2.1.330 && exit\n{ACCEPT}; read -r prompt\n\
         case $BRIGADE_TASK in 1) echo a > SUMMARY.md;; 2) echo b > TODO.md;; esac\n\
         (printf '{report}' \"$BRIGADE_TASK\"; sleep 60) | {brigade} mcp\n"
    );
    workspace.write("programs/claude", &script);
    let program = workspace.join("programs/claude");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-q", "-m", "start"]);
    let mut run = workspace.brigade(&["run"]);
    let path = std::env::var("PATH").unwrap();
    run.env("PATH", format!("{}:{path}", workspace.join("programs").display()));
    let mut run = Process::start(run, &workspace.join("said-1.txt"));
    let code = run.code();
    println!("{}", run.output_so_far());
    assert_eq!(code, Some(0));
    assert!(workspace.all_are("completed"));
    for file in ["SUMMARY.md", "TODO.md"] {
        git(&workspace, &["cat-file", "-e", &format!("brigade/my-team:{file}")]);
    }
    workspace.assert_nothing_is_left_running();
}

/// A process of the agent reports the task with `brigade mcp`, although the board is read-only there.
#[test]
fn process_of_agent_reaches_board_through_lead() {
    let call = |id: u32, method: &str, params: &str| {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\\n")
    };
    let report =
        "{\"name\":\"task_update\",\"arguments\":{\"task_id\":1,\"status\":\"completed\",\"result\":\"written\"}}";
    let messages = call(1, "initialize", "{}") + &call(2, "tools/list", "{}");
    let report = call(3, "tools/call", report);
    let brigade = env!("CARGO_BIN_EXE_brigade");
    let script = format!(
        "{ACCEPT}; read -r prompt; echo hello > hello.txt\n\
         printf '{messages}' | BRIGADE_BOARD_CREDENTIAL=wrong {brigade} mcp > wrong.txt\n\
         {brigade} mcp --as sam 2> name.txt\n\
         mv $BRIGADE_BOARD_SOCKET $BRIGADE_BOARD_SOCKET.moved 2> moved.txt\n\
         (printf '{messages}'; until grep -q task_update answers.txt; do sleep 0.02; done; printf '{report}'; sleep 60) |\
         {brigade} mcp > answers.txt\n"
    );
    let (workspace, mut run) = start(&script);
    assert_ended(&workspace, &mut run, 0, "completes #1");
    let shown = |file: &str| git(&workspace, &["show", &format!("brigade/crew:{file}")]);
    assert_eq!(shown("wrong.txt"), "", "a wrong credential gets no answer");
    assert!(shown("name.txt").contains("belongs to the agent of `alice`"), "{}", shown("name.txt"));
    assert!(shown("moved.txt").contains("Read-only file system"), "{}", shown("moved.txt"));
    assert!(shown("answers.txt").contains("\"task_update\""), "{}", shown("answers.txt"));
}

/// The agent shows its credential and a passed key in every way that it has: as text, in pieces, as a call, as its result, in a message, in
/// the result of its task, in a file that `verify` prints, and as an error.
#[test]
fn secrets_that_agent_shows_are_in_no_file_or_output() {
    let shared = tempfile::tempdir().unwrap();
    let shown = shared.path().join("secrets");
    let answer = |content: &str| {
        format!("{{\"type\":\"assistant\",\"message\":{{\"id\":\"a\",\"model\":\"m\",\"content\":[{content}]}}}}")
    };
    let delta = |text: &str| {
        format!(
            "{{\"type\":\"stream_event\",\"event\":{{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{text}\"}}}}}}"
        )
    };
    let result = "{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":\"SECRETS\"}";
    let messages = [
        answer("{\"type\":\"text\",\"text\":\"I have SECRETS.\"}"),
        delta("It is START"),
        delta("REST."),
        answer("{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"Bash\",\"input\":{\"command\":\"echo SECRETS\"}}"),
        format!("{{\"type\":\"user\",\"message\":{{\"content\":[{result}]}}}}"),
        "an error with SECRETS".to_owned(),
    ];
    let print = messages.map(|message| format!("say '{message}'\n")).concat();
    let board = |id: u32, tool: &str, arguments: &str| {
        let params = format!("{{\"name\":\"{tool}\",\"arguments\":{arguments}}}");
        format!("say '{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{params}}}'")
    };
    let script = format!(
        "say() {{ echo \"$1\" | sed \"s/SECRETS/$s/g; s/START/$start/; s/REST/$rest/\"; }}\n\
         s=\"$BRIGADE_BOARD_CREDENTIAL and $ANTHROPIC_API_KEY\"\n\
         start=$(echo $BRIGADE_BOARD_CREDENTIAL | cut -c 1-40) rest=$(echo $BRIGADE_BOARD_CREDENTIAL | cut -c 41-)\n\
         {ACCEPT}; read -r prompt; echo \"$BRIGADE_BOARD_CREDENTIAL\" >> {shown}\n\
         {before}\n{print}{after}\n\
         ({message}; echo \"hello $s\" > {shown}.txt; {report}; sleep 60) | {brigade} mcp",
        shown = shown.display(),
        before = hook("PreToolUse", "Bash", "{\"command\":\"'\"$BRIGADE_BOARD_CREDENTIAL\"'\"}"),
        after = hook("PostToolUse", "Bash", "{}"),
        message = board(1, "send_message", "{\"to\":\"human\",\"text\":\"SECRETS\"}"),
        report = board(2, "task_update", "{\"task_id\":1,\"status\":\"completed\",\"result\":\"SECRETS\"}"),
        brigade = env!("CARGO_BIN_EXE_brigade"),
    );
    const KEY: &str = "sk-ant-passed-0123456789";
    let plan = format!("## Write hello\nverify: cat {0}.txt && echo hello > hello.txt\nWrite.\n", shown.display());
    let variables = [("ANTHROPIC_API_KEY", KEY), ("RUST_LOG", "trace")];
    let (workspace, mut run) = start_plan(&plan, &script, "", "", &variables);
    let code = run.code();
    let printed = run.output_so_far();
    println!("{printed}");
    assert_eq!(code, Some(0));
    let credentials = std::fs::read_to_string(shown).unwrap();
    let secrets: Vec<&str> = credentials.lines().chain([KEY]).collect();
    assert!(secrets.len() > 1 && secrets[0].len() == 64, "{secrets:?}");
    let is_shown = |bytes: &[u8]| secrets.iter().any(|secret| String::from_utf8_lossy(bytes).contains(secret));
    assert!(!is_shown(printed.as_bytes()), "printed");
    for file in files_below(workspace.path()) {
        assert!(!is_shown(&std::fs::read(&file).unwrap_or_default()), "a secret is in {}", file.display());
    }
    let task = workspace.task(1);
    assert_eq!(task["result"]["summary"], "[key] and [key]", "{task}");
    let transcript = workspace.run(&["transcript", "alice"]).out;
    assert!(
        transcript.contains("I have [key] and [key].") && transcript.contains("echo [key] and [key]"),
        "{transcript}"
    );
}

/// Another member has the path of the socket and the credential.
#[test]
fn member_with_credential_of_another_gets_no_answer() {
    for level in ["full", "mounts", "off"] {
        steal_credential(level);
    }
}

fn steal_credential(level: &str) {
    let shared = tempfile::tempdir().unwrap();
    let at = |name: &str| shared.path().join(name).display().to_string();
    let brigade = env!("CARGO_BIN_EXE_brigade");
    let list = "printf '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{}}\\n'";
    let plan = format!(
        "{PLAN}\n## Steal\nrequires: thief\n\n```sh\n\
         until [ -e {found} ]; do sleep 0.05; done\nset -a; . {found}\n\
         {list} | {brigade} mcp > {stolen} 2>&1 || true\necho bob > bob.txt; : > {done}\n```\n",
        found = at("found"),
        stolen = at("stolen"),
        done = at("done"),
    );
    let script = format!(
        "{ACCEPT}; read -r prompt; echo hello > hello.txt\n\
         {list} | {brigade} mcp > {own}; env | grep ^BRIGADE_BOARD_ > {found}.new; mv {found}.new {found}\n\
         until [ -e {done} ]; do sleep 0.05; done\n{report}\n",
        own = at("own"),
        found = at("found"),
        done = at("done"),
        report = report(),
    );
    let bob = "[[teams.crew.members]]\nname = \"bob\"\nprovider = \"runbook\"\ncapabilities = [\"thief\"]";
    let (workspace, mut run) = start_plan(&plan, &script, bob, "", &[("BRIGADE_CONFINEMENT", level)]);
    let code = run.code();
    println!("{}", run.output_so_far());
    assert_eq!(code, Some(0));
    assert!(workspace.all_are("completed"));
    let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    assert!(read("own").contains("task_update"), "{}", read("own"));
    assert!(!read("stolen").contains("task_update"), "{}", read("stolen"));
}

#[test]
fn warning_about_quota_is_printed_once() {
    let info = "{\"status\":\"allowed_warning\",\"resetsAt\":4102444800,\"surpassedThreshold\":0.9}";
    let event = format!("echo '{{\"type\":\"rate_limit_event\",\"rate_limit_info\":{info}}}'");
    let before = format!("{event}; {event}; {}", report());
    // The report has its own way to the lead, so it can be read before a line that was written before it.
    let interrupted = "until echo \"$line\" | grep -q '\"interrupt\"'; do read -r line; done";
    let after = format!("{REPORT_IN_BAND}\n{interrupted}; {event}; {event}; {RESULT}; sleep 600");
    for work in [before, after] {
        let (workspace, mut run) = start(&format!("{ACCEPT}; read -r prompt; echo hello > hello.txt; {work}"));
        assert_ended(&workspace, &mut run, 0, "has used 90 % of its quota, which resets at 2100-01-01 00:00:00 UTC");
        let warnings = workspace.events().iter().filter(|event| event.to_string().contains("of its quota")).count();
        assert_eq!(warnings, 1);
    }
}

#[test]
fn stop_does_not_wait_for_silent_program() {
    let (workspace, mut run) = start("read -r line; sleep 600");
    wait_until("the task is claimed", || run.output_so_far().contains("claims #1"));
    wait_until("the state of the worktree names the program", || {
        let path = workspace.join(".worktrees/crew-task-1/.agent/state.json");
        let state: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap_or_default()).unwrap_or_default();
        state["pid"].as_u64().is_some_and(|pid| pid > 1) && state["providerSessionId"].is_string()
    });
    run.signal("INT");
    assert_ended(&workspace, &mut run, 130, "releases #1");
}

/// A program that hangs after its turn, and leaves a process in a session of its own.
#[test]
fn hanging_program_ends_with_its_task() {
    let (before, after) = (hook("PreToolUse", "Bash", "{\"command\":\"x\"}"), hook("PostToolUse", "Bash", "{}"));
    let work = format!("{before}; echo hello > hello.txt; setsid sleep 600 & {after}");
    let (workspace, mut run) = start(&format!("{ACCEPT}; read -r prompt; {work}; {RESULT}; {RESULT}; sleep 600"));
    assert_ended(&workspace, &mut run, 0, "completes #1");
}

/// The second result is about a turn that the agent began by itself. It does not complete the prompt that comes after it.
#[test]
fn second_result_does_not_complete_next_prompt() {
    let session =
        "for a; do case $a in --session-id=*) history=$CLAUDE_CONFIG_DIR/projects/x/${a#*=}.jsonl;; esac; done";
    let record = "printf '%s\\n' \"$prompt\" >> \"$history\"";
    let (workspace, mut run) = start(&format!(
        "{session}; mkdir -p \"${{history%/*}}\"; {ACCEPT}; read -r prompt; {record}; {RESULT}; {RESULT}\n\
         read -r prompt; sleep 1; {record}; echo hello > hello.txt; {}",
        report()
    ));
    assert_ended(&workspace, &mut run, 0, "completes #1");
    assert!(!run.output_so_far().contains("fails"), "{}", run.output_so_far());
}

/// The private folders of all members are below one folder. A command of one member writes only in its own.
#[test]
fn agent_cannot_write_in_home_of_another() {
    let agents = "${BRIGADE_BOARD_SOCKET%/*}/claude-code";
    let work = format!("echo hello > hello.txt; test -d {agents}/alice && mkdir {agents}/bob 2> denied.txt");
    let (workspace, mut run) = start(&format!("{ACCEPT}; read -r prompt; {work}; {}", report()));
    assert_ended(&workspace, &mut run, 0, "completes #1");
    let denied = git(&workspace, &["show", "brigade/crew:denied.txt"]);
    assert!(denied.contains("Read-only file system"), "{denied}");
}

/// Commands of an agent fill its private folder with links, a pipe, closed folders and a deep one, and close the folder itself. Commands of
/// the person and the next start of the agent work, and nothing is written elsewhere.
#[test]
fn private_folder_of_agent_stops_no_command() {
    let shared = tempfile::tempdir().unwrap();
    let at = |name: &str| shared.path().join(name).display().to_string();
    let fill = format!(
        "cd $CLAUDE_CONFIG_DIR; ln -sfn {elsewhere} link; ln -sfn {elsewhere} projects; ln -sfn nowhere settings.json\n\
         mkdir -p closed/closed sessions; ln -sfn {elsewhere} sessions/link; mkfifo pipe sessions/pipe\n\
         (for i in $(seq 300); do mkdir -p deep && cd deep; done); chmod 000 closed/closed closed .; cd $OLDPWD",
        elsewhere = at("elsewhere")
    );
    let wait = format!(": > {}; until [ -e {} ]; do sleep 0.02; done", at("filled"), at("go-on"));
    let report = report().replace("\"task_id\":1", "\"task_id\":'$BRIGADE_TASK'");
    let script = format!("{ACCEPT}; read -r prompt; echo hello >> hello.txt\n{fill}; {wait}; {report}");
    std::fs::create_dir(at("elsewhere")).unwrap();
    let (workspace, mut run) = start(&script);
    wait_until("the folder is filled", || shared.path().join("filled").exists());
    let work = || {
        let commands: [&[&str]; 5] =
            [&["send", "lead", "hello"], &["tasks", "add", "More"], &["doctor"], &["team"], &["why", "1"]];
        for arguments in commands {
            let answer = workspace.run(arguments);
            assert!(answer.code == Some(0), "{arguments:?}: {answer:?}");
        }
    };
    work();
    std::fs::write(at("go-on"), "").unwrap();
    let code = run.code();
    println!("{}", run.output_so_far());
    assert!(code == Some(0) && workspace.all_are("completed"));
    work();
    for arguments in [&["clean"][..], &["clean", "--yes"]] {
        assert_eq!(workspace.run(arguments).code, Some(0));
    }
    let again = workspace.run(&["run", "crew"]);
    assert!(again.code == Some(0) && workspace.tasks().len() == 3 && workspace.all_are("completed"), "{again:?}");
    assert_eq!(std::fs::read_dir(at("elsewhere")).unwrap().count(), 0);
}

#[test]
fn change_through_link_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let write = hook("PreToolUse", "Write", "{\"file_path\":\"'$PWD'/link/new\",\"content\":\"x\"}");
    let (workspace, mut run) = start(&format!(
        "{ACCEPT}; read -r prompt; echo hello > hello.txt; ln -s {} link\n\
         {write}; echo \"$answer\" > answer.txt; rm link; {}",
        outside.path().display(),
        report()
    ));
    assert_ended(&workspace, &mut run, 0, "completes #1");
    let answer = git(&workspace, &["show", "brigade/crew:answer.txt"]);
    assert!(answer.contains("\"deny\"") && answer.contains("is outside the workspace"), "{answer}");
}

#[test]
fn agent_search_shows_no_hidden_file() {
    let calls = [
        hook("PreToolUse", "Read", "{\"file_path\":\"'$PWD'/docs/../secrets/key\"}"),
        hook("PreToolUse", "Read", "{\"file_path\":\"docs/a\",\"path\":\"secrets/key\"}"),
        hook("PreToolUse", "Grep", "{\"pattern\":\"x\"}"),
        hook("PreToolUse", "Grep", "{\"pattern\":\"x\",\"path\":\"docs\"}"),
    ];
    let calls = calls.map(|call| format!("{call}; printf '%s\\n' \"$answer\" >> answers.txt"));
    let script = format!(
        "{ACCEPT}; read -r prompt; echo hello > hello.txt; mkdir secrets docs; echo x > secrets/key; echo x > docs/a; {}; {}",
        calls.join("; "),
        report()
    );
    let (workspace, mut run) = start_with(&script, "deny = [\"read_file(secrets/**)\"]", &[]);
    assert_ended(&workspace, &mut run, 0, "completes #1");
    let answers = git(&workspace, &["show", "brigade/crew:answers.txt"]);
    let answers: Vec<&str> = answers.lines().collect();
    for (answer, reason) in answers.iter().zip([
        "the rule `read_file(secrets/**)` denies it",
        "takes its path in `file_path`, and this call has `path`",
        "your rules hide files below this folder",
    ]) {
        assert!(answer.contains("\"deny\"") && answer.contains(reason), "{reason}: {answer}");
    }
    assert!(answers.len() == 4 && !answers[3].contains("deny"), "{answers:?}");
}

/// The rules see every part of a command, as for Brigade's own tool.
#[test]
fn command_of_agent_with_denied_part_is_refused() {
    let call = hook("PreToolUse", "Bash", "{\"command\":\">out nice -n 5 git -C lib push\"}");
    let script = format!(
        "{ACCEPT}; read -r prompt; echo hello > hello.txt; {call}; echo \"$answer\" > answer.txt; {}",
        report()
    );
    let (workspace, mut run) = start_with(&script, "deny = [\"bash(git push:*)\"]", &[]);
    assert_ended(&workspace, &mut run, 0, "completes #1");
    let answer = git(&workspace, &["show", "brigade/crew:answer.txt"]);
    let reason = "the rule `bash(git push:*)` denies it: `git` is word 4 of `nice -n 5 git -C lib push`";
    assert!(answer.contains("\"deny\"") && answer.contains(reason), "{answer}");
}
