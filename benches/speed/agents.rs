//! Claude Code as a member, compared with the same program alone, and the memory that Brigade adds to 20 agents.
//!
//! The program talks to a model server on loopback without latency. `scripts/install-agents` installs it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::report::{ROUNDS, Report, Target, format_figure, median, ms};
use super::workspace::{BenchWorkspace, now_ns, time_of, wait_until};
use crate::testkit::model_server::{ReceivedRequest, Reply, Server, call, full_response, streamed_answer, text};
use crate::testkit::process::{command, git};

/// Turns of a run, each a command that does nothing.
const TURNS: usize = 30;
/// The members whose memory is measured.
const MEMBERS: usize = 20;
/// The tool calls of each of these members before the measurement.
const CALLS: usize = 30;
/// The key of every run, which belongs to no account.
const KEY: (&str, &str) = ("ANTHROPIC_API_KEY", "sk-not-a-key");

/// The figures of one run, in milliseconds.
#[derive(Default)]
struct Run {
    /// From one request to the next, median.
    turn: f64,
    /// From the start or the claim to the first request.
    start: f64,
}

pub fn measure(report: &mut Report) {
    measure_memory(report);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/agents");
    let mut programs: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    programs.sort();
    if programs.is_empty() {
        eprintln!("agents: skipped, because scripts/install-agents has installed none");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for program in programs {
        let version = program.file_name().unwrap().to_string_lossy().into_owned();
        let program = program.join("node_modules/.bin/claude");
        let mut alone = Vec::new();
        let mut member = Vec::new();
        for _ in 0..ROUNDS {
            alone.push(runtime.block_on(run_alone(&program)));
            member.push(runtime.block_on(run_as_member(&program)));
        }
        add_difference(
            report,
            &format!("added to a turn of Claude Code {version}"),
            &alone,
            &member,
            |run| run.turn,
            10.0,
        );
        add_difference(
            report,
            &format!("added to its start, with the worktree, {version}"),
            &alone,
            &member,
            |run| run.start,
            200.0,
        );
    }
}

/// Adds the difference of the medians of a figure.
fn add_difference(
    report: &mut Report,
    title: &str,
    alone: &[Run],
    member: &[Run],
    figure_of: fn(&Run) -> f64,
    ms_max: f64,
) {
    let sorted_values = |runs: &[Run]| {
        let mut values: Vec<f64> = runs.iter().map(figure_of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let alone = sorted_values(alone);
    let member = sorted_values(member);
    let describe = |values: &[f64]| {
        format!("{} ({:.1} to {:.1})", format_figure(median(values), "ms"), values[0], values[ROUNDS - 1])
    };
    let comparison = format!("alone {}, as a member {}", describe(&alone), describe(&member));
    report.add(title, median(&member) - median(&alone), "ms", Target::AtMost(ms_max), comparison);
}

/// The times at which model requests arrived, by both clocks.
type Arrivals = Arc<Mutex<Vec<(Instant, u64)>>>;

/// A server whose model runs a command [`TURNS`] times, and then answers with `last`.
async fn server(last: fn() -> Reply) -> (Server, Arrivals) {
    let arrivals = Arrivals::default();
    let noted = Arc::clone(&arrivals);
    let server = Server::start(move |request, _| {
        if !is_model_request(request) {
            return full_response(200, "", "{\"input_tokens\":10}");
        }
        noted.lock().unwrap().push((Instant::now(), now_ns()));
        match request.body["messages"].to_string().matches("\"tool_use\"").count() {
            turns @ ..TURNS => {
                streamed_answer(&[call(&format!("toolu_{turns}"), "Bash", json!({ "command": "true" }))])
            }
            TURNS => last(),
            _ => streamed_answer(&[text("Done.")]),
        }
    });
    (server.await, arrivals)
}

/// Some versions ask for the server's state or count tokens first.
fn is_model_request(request: &ReceivedRequest) -> bool {
    request.head.starts_with("post /v1/messages") && !request.head.contains("count_tokens")
}

/// The figures of a run that began at `start_ns`.
fn run_of(arrivals: &Arrivals, start_ns: u64) -> Run {
    let arrivals = arrivals.lock().unwrap();
    assert!(arrivals.len() > TURNS, "{} requests", arrivals.len());
    let turns: Vec<f64> = arrivals.windows(2).take(TURNS).map(|pair| ms(pair[1].0 - pair[0].0)).collect();
    Run { turn: median(&turns), start: ms(Duration::from_nanos(arrivals[0].1.saturating_sub(start_ns))) }
}

fn repository(workspace: &BenchWorkspace, config: &str) {
    workspace.write(".gitignore", "/.tasks/\n/.team/\n/agent_state.json*\n");
    workspace.write("brigade.toml", config);
    git(workspace.path(), &["init", "-q", "-b", "main"]);
    git(workspace.path(), &["add", "."]);
    git(workspace.path(), &["commit", "-q", "-m", "start"]);
}

/// The program alone, with the options that Brigade uses, but without hooks and board tools.
async fn run_alone(program: &Path) -> Run {
    let (server, arrivals) = server(|| streamed_answer(&[text("Done.")])).await;
    let workspace = BenchWorkspace::new();
    repository(&workspace, "");
    let mut agent = command(&program.display().to_string(), workspace.path());
    agent.args([
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--verbose",
        "--include-partial-messages",
    ]);
    agent.args(["--setting-sources=", "--strict-mcp-config", "--tools=Bash", "--permission-mode=bypassPermissions"]);
    agent.envs([KEY, ("ANTHROPIC_BASE_URL", &server.url), ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")]);
    agent.envs([("DISABLE_AUTOUPDATER", "1"), ("IS_SANDBOX", "1"), ("ENABLE_TOOL_SEARCH", "false")]);
    agent.env("CLAUDE_CONFIG_DIR", workspace.join("home"));
    let prompt = json!({ "type": "user", "message": { "role": "user", "content": "Work." } });
    let start_ns = now_ns();
    let mut agent = agent.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // It ends after its turn, because its input ends.
    writeln!(agent.stdin.take().unwrap(), "{prompt}").unwrap();
    assert!(agent.wait().unwrap().success());
    run_of(&arrivals, start_ns)
}

async fn run_as_member(program: &Path) -> Run {
    let report = || {
        let input = json!({ "task_id": 1, "status": "completed", "result": "done" });
        streamed_answer(&[call("toolu_last", "mcp__brigade__task_update", input)])
    };
    let (server, arrivals) = server(report).await;
    let workspace = BenchWorkspace::new();
    workspace.write("plan.md", "## Work\n");
    repository(&workspace, &config(1, &program.display().to_string(), &server.url));
    time_of(workspace.brigade(&["run", "bench"]).env(KEY.0, KEY.1));
    let events = fs::read_to_string(workspace.join(".team/events.jsonl")).unwrap();
    let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let claim = events.find(|event| event["kind"] == "task_claimed").unwrap();
    run_of(&arrivals, claim["at"].as_u64().unwrap() * 1_000_000)
}

/// A team of this many members that run `command`.
fn config(members: usize, command: &str, base_url: &str) -> String {
    let member = |number| {
        format!(
            "[[teams.bench.members]]\nname = \"m{number}\"\nprovider = \"claude-code\"\nbase_url = \"{base_url}\"\n\
             command = {command:?}\npass_env = [\"{}\"]\n",
            KEY.0
        )
    };
    let members: String = (1..=members).map(member).collect();
    format!("[teams.bench]\nplan = \"plan.md\"\nisolation = \"worktree\"\n{members}")
}

/// Measures the memory of the lead, and of a guard and an init process for each agent. The agents are shell scripts.
fn measure_memory(report: &mut Report) {
    let workspace = BenchWorkspace::new();
    let plan: String = (1..=MEMBERS).map(|number| format!("## Task {number}\n")).collect();
    workspace.write("plan.md", &plan);
    workspace.write("agent.sh", &agent_script());
    let command = format!("sh {}", workspace.join("agent.sh").display());
    repository(&workspace, &config(MEMBERS, &command, "http://127.0.0.1:9"));
    let lead = workspace.start(&["up", "bench", "--headless"]);
    let is_working = |number: usize| workspace.join(&format!(".worktrees/bench-task-{number}/working")).exists();
    wait_until("all agents work", || (1..=MEMBERS).all(is_working));
    let own = brigade_processes();
    assert_eq!(own.len(), 1 + 2 * MEMBERS, "the lead, and a guard and an init for each agent");
    let kilobytes = |process: &u32| proportional_kilobytes(*process);
    let megabytes = own.iter().map(kilobytes).sum::<f64>() / 1024.0;
    let lead = format!("the lead alone: {}", format_figure(kilobytes(&lead.id()) / 1024.0, "MB"));
    report.add(format!("Brigade's memory with {MEMBERS} agents at work"), megabytes, "MB", Target::Below(60.0), lead);
}

/// A script that makes [`CALLS`] tool calls after its prompt, and then waits.
fn agent_script() -> String {
    let say = |message: Value| format!("echo '{message}'");
    let hook = |name: &str| {
        let input = json!({ "tool_name": "Bash", "tool_use_id": "t1", "tool_input": { "command": "true" } });
        let request = json!({ "subtype": "hook_callback", "callback_id": name, "input": input });
        say(json!({ "type": "control_request", "request_id": name, "request": request })) + "; read -r answer"
    };
    let ready = json!({ "subtype": "success", "request_id": "brigade-initialize", "response": {} });
    [
        "[ \"$1\" = --version ] && echo 2.1.330 && exit".to_owned(),
        format!("read -r line; {}; read -r prompt", say(json!({ "type": "control_response", "response": ready }))),
        format!("for call in $(seq {CALLS}); do {}; {}; done", hook("PreToolUse"), hook("PostToolUse")),
        "echo > working; sleep 1000\n".to_owned(),
    ]
    .join("\n")
}

/// The processes of the program that this benchmark starts.
fn brigade_processes() -> Vec<u32> {
    let program = Path::new(env!("CARGO_BIN_EXE_brigade")).canonicalize().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let is_own = |entry: &fs::DirEntry| fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program);
    entries.filter(is_own).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The memory of a process. Pages that several processes share count in part for each.
fn proportional_kilobytes(process: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
