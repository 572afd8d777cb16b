//! The real programs, against a model server on loopback. `scripts/install-agents` installs them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::program::{installed, record_command, workspace};
use super::scenarios::{PLAN, SCENARIOS, answer_task, bash, check_task, is_model_request, refuse_quota, report};
use super::starts::{contains, contents_below};
use crate::testkit::model_server::{
    CACHE_READ_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, ReceivedRequest, Server, ServerAction, call, events, streamed,
    streamed_answer, text,
};
use crate::testkit::process::{Process, ProcessOutput, eventually, files_below, git};
use crate::testkit::workspace::TestWorkspace;

/// A key that belongs to no account.
const KEY: &str = "sk-not-a-key";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn real_agents_do_tasks() {
    let programs = installed();
    assert!(!programs.is_empty(), "run scripts/install-agents first");
    let records = std::env::var_os("UPDATE_RECORDINGS").is_some();
    for (version, program) in programs {
        for scenario in &SCENARIOS {
            println!("{version} {}", scenario.name);
            let server = Server::start(scenario.answer).await;
            let command = match records {
                true => record_command(version, scenario.name, &program),
                false => program.display().to_string(),
            };
            let workspace = workspace(&command, &server.url, scenario.plan, "");
            let mut brigade = workspace.brigade(&["run", "crew"]);
            let login = if scenario.name == "quota" { "CLAUDE_CODE_OAUTH_TOKEN" } else { "ANTHROPIC_API_KEY" };
            brigade.env(login, KEY);
            let run = tokio::task::spawn_blocking(move || ProcessOutput::of(brigade));
            let run = run.await.unwrap();
            println!("{}{}", run.out, run.err);
            (scenario.check)(&workspace, run.code);
            workspace.assert_nothing_is_left_running();
        }
    }
}

/// The mail of the test, which must be in the agent's context once.
const MAIL: &str = "the greeting is for Ada";

/// Returns how often a request has the mail.
fn mails_in(request: &ReceivedRequest) -> usize {
    request.body["messages"].to_string().matches(MAIL).count()
}

/// Starts a team of the real agent, whose command runs until the file `go` is in its worktree.
fn start(workspace: &TestWorkspace, log: &str) -> Process {
    let mut brigade = workspace.brigade(&["run", "crew"]);
    brigade.env("ANTHROPIC_API_KEY", KEY);
    Process::start(brigade, &workspace.join(log))
}

/// Mail that arrives during a command is in the next model request, and once in the context after a kill before the answer.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn mail_during_turn_reaches_real_agent_once() {
    for (version, program) in installed() {
        for kills in [false, true] {
            println!("{version}, killed: {kills}");
            // The first request with the mail is not answered if the team is killed then.
            let is_killed = Arc::new(AtomicBool::new(!kills));
            let is_over = Arc::clone(&is_killed);
            let server = Server::start(move |request, before| {
                let context = request.body["messages"].to_string();
                if !is_model_request(request) || context.contains("toolu_2") {
                    // It reports, and then ends its turn.
                    return answer_task(request, before);
                }
                match (context.contains("toolu_1"), mails_in(request)) {
                    (false, _) => {
                        let command = "until [ -e go ]; do sleep 0.05; done";
                        streamed_answer(&[call("toolu_1", "Bash", json!({ "command": command }))])
                    }
                    (true, 1..) if !is_over.load(Ordering::SeqCst) => vec![ServerAction::Silence],
                    (true, _) => streamed_answer(&[bash("toolu_2", "echo hello > hello.txt"), report("toolu_9")]),
                }
            })
            .await;
            let workspace = workspace(&program.display().to_string(), &server.url, PLAN, "");
            let mut run = start(&workspace, "said-1.txt");
            let worktree = workspace.join(".worktrees/crew-task-1");
            eventually("the command runs", async || run.output_so_far().contains("alice  Bash until")).await;
            assert_eq!(workspace.run(&["send", "alice", MAIL]).code, Some(0));
            std::fs::write(worktree.join("go"), "").unwrap();
            if kills {
                eventually("the mail is sent", async || server.requests().iter().any(|request| mails_in(request) > 0))
                    .await;
                run.kill();
                is_killed.store(true, Ordering::SeqCst);
                workspace.assert_nothing_is_left_running();
                run = start(&workspace, "said-2.txt");
            }
            let code = run.code();
            println!("{}", run.output_so_far());
            check_task(&workspace, code);
            let last = server.requests().into_iter().rfind(is_model_request).unwrap();
            assert_eq!(mails_in(&last), 1, "{}", last.body["messages"]);
        }
    }
}

/// An agent without a task answers mail: it keeps its process from one turn to the next, so it sees the results of its tools.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn idle_agent_answers_mail_with_tools() {
    for (version, program) in installed() {
        println!("{version}");
        let server = Server::start(|request, before| {
            let context = request.body["messages"].to_string();
            match (is_model_request(request), context.contains("toolu_1"), context.contains("toolu_2")) {
                (false, ..) => answer_task(request, before),
                (true, false, _) => streamed_answer(&[bash("toolu_1", "echo seen-$((40 + 2))")]),
                (true, true, false) => {
                    let answer = json!({ "to": "human", "content": "it printed seen-42" });
                    streamed_answer(&[call("toolu_2", "mcp__brigade__send_message", answer)])
                }
                (true, true, true) => streamed_answer(&[text("Done.")]),
            }
        })
        .await;
        let workspace = workspace(&program.display().to_string(), &server.url, PLAN, "");
        workspace.write("brigade.toml", &workspace.read("brigade.toml").replace("plan = \"plan.md\"", ""));
        let mut brigade = workspace.brigade(&["up", "crew", "--headless"]);
        brigade.env("ANTHROPIC_API_KEY", KEY);
        let mut run = Process::start(brigade, &workspace.join("said-1.txt"));
        eventually("the team runs", async || run.output_so_far().contains("crew starts")).await;
        assert_eq!(workspace.run(&["send", "alice", "what does it print?"]).code, Some(0));
        eventually("the mail is answered", async || workspace.run(&["inbox"]).out.contains("it printed seen-42")).await;
        eventually("the agent is idle again", async || {
            let is_request = |request: &&ReceivedRequest| is_model_request(request);
            server.requests().iter().filter(is_request).count() >= 3
        })
        .await;
        run.signal("TERM");
        println!("{:?} {}", run.code(), run.output_so_far());
        let requests: Vec<ReceivedRequest> = server.requests().into_iter().filter(is_model_request).collect();
        assert_eq!(requests.len(), 3, "one request for each answer");
        let last = requests[2].body["messages"].to_string();
        assert!(last.contains("seen-42") && !last.contains("interrupted"), "{last}");
        workspace.assert_nothing_is_left_running();
    }
}

/// The agent compacts its context by itself. Each request after that has the identity block.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn identity_survives_compaction_of_real_agent() {
    let is_summary = |request: &ReceivedRequest| request.body["messages"].to_string().contains("Do NOT call any tools");
    for (version, program) in installed() {
        println!("{version}");
        let server = Server::start(move |request, before| {
            let context = request.body["messages"].to_string();
            if !is_model_request(request) {
                return answer_task(request, before);
            }
            match (is_summary(request), context.contains("hello is written")) {
                (true, _) => streamed_answer(&[text("<summary>hello is written</summary>")]),
                (false, true) => streamed_answer(&[report("toolu_9")]),
                // The size of the context is more than the agent's limit, which the variables below set.
                (false, false) => {
                    let answer = events(&[bash("toolu_1", "echo hello > hello.txt")], "tool_use");
                    streamed(&answer.replace(&format!("\"input_tokens\":{INPUT_TOKENS}"), "\"input_tokens\":90000"), 64)
                }
            }
        })
        .await;
        let workspace = workspace(&program.display().to_string(), &server.url, PLAN, "");
        let limits = [("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "100000"), ("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE", "50")];
        let passed = limits.map(|(name, _)| format!("{name:?}, ")).concat();
        let config = workspace.read("brigade.toml").replace("pass_env = [", &format!("pass_env = [{passed}"));
        workspace.write("brigade.toml", &config);
        let mut brigade = workspace.brigade(&["run", "crew"]);
        brigade.env("ANTHROPIC_API_KEY", KEY).envs(limits);
        let mut run = Process::start(brigade, &workspace.join("said-1.txt"));
        let code = run.code();
        println!("{}", run.output_so_far());
        check_task(&workspace, code);
        let requests: Vec<ReceivedRequest> = server.requests().into_iter().filter(is_model_request).collect();
        assert_eq!(requests.iter().filter(|request| is_summary(request)).count(), 1);
        // Only the result of the turn has the usage of the summary.
        let is_large = |request: &&ReceivedRequest| {
            !is_summary(request) && !request.body["messages"].to_string().contains("hello is written")
        };
        let large = requests.iter().filter(is_large).count();
        let of_each = INPUT_TOKENS + CACHE_READ_TOKENS + OUTPUT_TOKENS;
        let served = of_each * requests.len() as u64 + (90_000 - INPUT_TOKENS) * large as u64;
        assert_eq!(workspace.json(&["cost"])["tokens"], served, "{requests:?}");
        for request in &requests {
            assert!(request.body["messages"].to_string().contains("<identity>"), "{}", request.body["messages"]);
        }
        workspace.assert_nothing_is_left_running();
    }
}

/// A command of the agent that leaves a process in a session of its own, and runs until the file `go` is in its worktree.
const BACKGROUND: &str =
    "setsid sleep 1000 > /dev/null 2>&1 & until [ -e go ]; do sleep 0.05; done; echo hello > hello.txt";

/// Returns true if the process that [`BACKGROUND`] leaves runs.
fn has_background(workspace: &TestWorkspace) -> bool {
    workspace.processes().iter().any(|process| process.command.trim_end() == "sleep 1000")
}

/// After a lost claim the agent, its command and its background process end. The next attempt does the task.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn lost_claim_ends_all_processes_of_real_agent() {
    for (version, program) in installed() {
        println!("{version}");
        let is_lost = Arc::new(AtomicBool::new(false));
        let was_lost = Arc::clone(&is_lost);
        let server = Server::start(move |request, before| {
            let has_worked = request.body["messages"].to_string().contains("toolu_2");
            match (is_model_request(request), was_lost.load(Ordering::SeqCst), has_worked) {
                (true, false, _) => streamed_answer(&[bash("toolu_1", BACKGROUND)]),
                (true, true, false) => streamed_answer(&[bash("toolu_2", "echo hello > hello.txt"), report("toolu_9")]),
                _ => answer_task(request, before),
            }
        })
        .await;
        let workspace = workspace(&program.display().to_string(), &server.url, PLAN, "");
        let mut run = start(&workspace, "said-1.txt");
        eventually("the background process runs", async || has_background(&workspace)).await;
        let lead = run.id();
        let of_agent: Vec<u32> =
            workspace.processes().iter().map(|process| process.pid).filter(|pid| *pid != lead).collect();
        is_lost.store(true, Ordering::SeqCst);
        let release = workspace.run(&["tasks", "release", "1", "--force", "--reason", "a person does it"]);
        assert_eq!(release.code, Some(0), "{release:?}");
        let lost_at = Instant::now();
        let are_left = || workspace.processes().iter().any(|process| of_agent.contains(&process.pid));
        eventually("the processes of the agent end", async || !are_left()).await;
        let time = lost_at.elapsed();
        println!("{} processes ended within {time:?}", of_agent.len());
        assert!(time < Duration::from_secs(1), "{time:?}");
        let code = run.code();
        println!("{}", run.output_so_far());
        check_task(&workspace, code);
        workspace.assert_nothing_is_left_running();
    }
}

/// A process that the agent leaves ends with its task, and not only with the team.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn process_left_by_real_agent_ends_with_task() {
    for (version, program) in installed() {
        println!("{version}");
        let server = Server::start(|request, before| {
            match (is_model_request(request), request.body["messages"].to_string().contains("toolu_1")) {
                (true, false) => streamed_answer(&[bash("toolu_1", BACKGROUND)]),
                _ => answer_task(request, before),
            }
        })
        .await;
        let workspace = workspace(&program.display().to_string(), &server.url, PLAN, "");
        let mut brigade = workspace.brigade(&["up", "crew", "--headless"]);
        brigade.env("ANTHROPIC_API_KEY", KEY);
        let mut run = Process::start(brigade, &workspace.join("said-1.txt"));
        eventually("the background process runs", async || has_background(&workspace)).await;
        std::fs::write(workspace.join(".worktrees/crew-task-1/go"), "").unwrap();
        eventually("the task is completed", async || workspace.all_are("completed")).await;
        eventually("the background process ends", async || !has_background(&workspace)).await;
        assert!(!run.has_ended(), "{}", run.output_so_far());
        run.signal("TERM");
        println!("{:?} {}", run.code(), run.output_so_far());
        workspace.assert_nothing_is_left_running();
    }
}

/// A quota error pauses a team of two, if it is configured so. No attempt fails.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn used_up_quota_of_real_agents_pauses_team() {
    for (version, program) in installed() {
        println!("{version}");
        let server = Server::start(|request, before| match is_model_request(request) {
            true => refuse_quota(200_000),
            false => answer_task(request, before),
        })
        .await;
        let plan = "## One\nDo it.\n## Two\nDo it.\n";
        let workspace = workspace(&program.display().to_string(), &server.url, plan, "on_quota = \"pause\"");
        let config = workspace.read("brigade.toml");
        let alice = config.find("[[teams.crew.members]]").unwrap();
        workspace.write("brigade.toml", &format!("{config}{}", config[alice..].replace("alice", "bob")));
        let mut brigade = workspace.brigade(&["run", "crew"]);
        brigade.env("CLAUDE_CODE_OAUTH_TOKEN", KEY);
        let run = tokio::task::spawn_blocking(move || ProcessOutput::of(brigade)).await.unwrap();
        let printed = (run.out + &run.err).split_whitespace().collect::<Vec<_>>().join(" ");
        println!("{printed}");
        assert_eq!(run.code, Some(1));
        assert!(printed.contains("The team was paused before its work was done (the quota of claude-code"));
        assert_eq!(workspace.json(&["state"])["desired_state"], "pause");
        for task in workspace.tasks() {
            assert!(task["status"] == "pending" && task.get("failures").is_none_or(|failures| failures == 0), "{task}");
        }
        let requests = server.requests().iter().filter(|request| is_model_request(request)).count();
        assert!((1..=2).contains(&requests), "{requests} requests, at most one of each member");
        workspace.assert_nothing_is_left_running();
    }
}

/// Asserts that the program left the person's folder as it was. Only its logs about tool servers may be new.
fn assert_home_is_unchanged(home: &Path, before: &BTreeMap<String, Vec<u8>>) {
    let logs = home.join(".cache/claude-cli-nodejs");
    let mut after = contents_below(home);
    after.retain(|path, _| before.contains_key(path) || !Path::new(path).starts_with(&logs));
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert!(after == *before, "a file of the person was changed");
}

/// The agent uses the login in the person's folder. It stays as it is, and no file of the workspace has it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn login_of_person_is_used_and_never_copied() {
    for (version, program) in installed() {
        println!("{version}");
        let server = Server::start(answer_task).await;
        let workspace = workspace(&program.display().to_string(), &server.url, PLAN, "");
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".claude")).unwrap();
        let (token, refresh_token) = ("sk-ant-oat01-not-a-token", "sk-ant-ort01-not-a-token");
        let login = json!({ "claudeAiOauth": {
            "accessToken": token,
            "refreshToken": refresh_token,
            "expiresAt": 4_102_444_800_000_u64,
            "scopes": ["user:inference", "user:profile"],
            "subscriptionType": "max",
        }});
        std::fs::write(home.path().join(".claude/.credentials.json"), login.to_string()).unwrap();
        let before = contents_below(home.path());
        let mut brigade = workspace.brigade(&["run", "crew"]);
        brigade.env("HOME", home.path());
        let run = tokio::task::spawn_blocking(move || ProcessOutput::of(brigade)).await.unwrap();
        println!("{}{}", run.out, run.err);
        check_task(&workspace, run.code);
        let requests: Vec<ReceivedRequest> = server.requests().into_iter().filter(is_model_request).collect();
        let bearer = format!("bearer {token}");
        assert!(
            requests.iter().all(|request| request.header("authorization") == Some(bearer.as_str())),
            "{requests:?}"
        );
        assert_home_is_unchanged(home.path(), &before);
        for (path, text) in contents_below(workspace.path()) {
            assert!(!contains(&text, token) && !contains(&text, refresh_token), "{path}");
        }
        workspace.assert_nothing_is_left_running();
    }
}

/// In a fresh home folder and without a terminal, the agent uses no settings of the person or the repository: neither hooks nor tool
/// servers nor instructions. It writes nothing there.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs scripts/install-agents"]
async fn foreign_settings_are_not_used_by_real_agent() {
    for (version, program) in installed() {
        println!("{version}");
        let outside = tempfile::tempdir().unwrap();
        let touch = |name: &str| format!("touch {}/{name}", outside.path().display());
        let shell = touch("shell");
        let server = Server::start(move |request, before| {
            match (is_model_request(request), request.body["messages"].to_string().contains("toolu_1")) {
                (true, false) => streamed_answer(&[bash("toolu_1", &format!("{shell}; echo hello > hello.txt"))]),
                _ => answer_task(request, before),
            }
        })
        .await;
        let workspace = workspace(&program.display().to_string(), &server.url, PLAN, "");
        let home = tempfile::tempdir().unwrap();
        for folder in [workspace.path(), home.path()] {
            let hook = json!([{ "matcher": "", "hooks": [{ "type": "command", "command": touch("hook") }] }]);
            let settings = json!({ "hooks": { "PreToolUse": hook, "UserPromptSubmit": hook } });
            let servers = json!({ "mcpServers": { "own": { "command": "sh", "args": ["-c", touch("server")] } } });
            let skill = "---\nname: foreign\ndescription: foreign-words\n---\nforeign-words\n";
            std::fs::create_dir_all(folder.join(".claude/skills/foreign")).unwrap();
            for (name, text) in [
                (".claude/settings.json", settings.to_string()),
                (".claude/CLAUDE.md", "foreign-words".to_owned()),
                (".claude/skills/foreign/SKILL.md", skill.to_owned()),
                ("CLAUDE.md", "foreign-words".to_owned()),
                (".mcp.json", servers.to_string()),
                (".claude.json", servers.to_string()),
            ] {
                std::fs::write(folder.join(name), text).unwrap();
            }
        }
        git(&workspace, &["add", "."]);
        git(&workspace, &["commit", "-q", "-m", "settings"]);
        let before = contents_below(home.path());
        let mut brigade = workspace.brigade(&["run", "crew"]);
        brigade.env("ANTHROPIC_API_KEY", KEY).env("HOME", home.path());
        let run = tokio::task::spawn_blocking(move || ProcessOutput::of(brigade)).await.unwrap();
        println!("{}{}", run.out, run.err);
        check_task(&workspace, run.code);
        assert_eq!(files_below(outside.path()), [outside.path().join("shell")]);
        for request in server.requests() {
            assert!(!request.body.to_string().contains("foreign-words"), "{}", request.body);
        }
        assert_home_is_unchanged(home.path(), &before);
        workspace.assert_nothing_is_left_running();
    }
}
