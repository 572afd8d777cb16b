//! Runs of the real program whose models are out of reach, or whose server, key or model is wrong.

use std::net::TcpListener;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answers::KEY;
use super::team::{both, run, sender_of, statuses, well_behaved, workspace};
use crate::testkit::model_server::{Reply, Server, ServerAction, call, error_reply, full_response, streamed_answer};
use crate::testkit::process::{Process, eventually};
use crate::testkit::workspace::TestWorkspace;

/// A limit for tests, in milliseconds.
const OUTAGE_MAX_MS: &str = "3000";

fn with_plan(url: &str, members: &[&str]) -> TestWorkspace {
    let workspace = workspace(url, members, "plan = \"plan.md\"");
    workspace.write("plan.md", "## First\nDo it.\n\n## Second\nDo it.\n");
    workspace
}

/// An address without a server.
fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// The printed text, without line breaks.
fn words_of(output: &Output) -> String {
    both(output).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn assert_no_attempt_failed(workspace: &TestWorkspace) {
    let failures: Vec<Value> = workspace.tasks().iter().map(|task| task["failures"].clone()).collect();
    assert!(failures.iter().all(|failures| failures.as_u64().unwrap_or(0) == 0), "{failures:?}");
}

#[tokio::test]
async fn model_that_goes_away_ends_run_with_code_5() {
    // One task is done before the server goes away. It is back for the next run.
    let server = Server::start(|request, count| match count {
        0..4 => well_behaved(request, count),
        _ => vec![ServerAction::Close],
    })
    .await;
    let workspace = with_plan(&server.url, &["alice"]);
    let limit = [("BRIGADE_MODEL_OUTAGE_MAX_MS", OUTAGE_MAX_MS)];
    let begun = Instant::now();
    let output = run(&workspace, &["run", "crew", "--json"], &limit).await;
    assert_eq!(output.status.code(), Some(5), "{}", both(&output));
    assert!(begun.elapsed() < Duration::from_secs(40), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed", "pending"]);
    assert_no_attempt_failed(&workspace);
    assert!(words_of(&output).contains("no work is lost: run the team again"), "{}", both(&output));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["data"]["reason"], "a model is out of reach");
    assert!(outcome["data"]["trouble"].as_str().unwrap().contains("gave no answer for "), "{outcome}");
    assert!(words_of(&run(&workspace, &["why", "2"], &[]).await).contains("its teammate's model failed: 127.0.0.1:"));
    let back = Server::start(well_behaved).await;
    let config = workspace.read("brigade.toml").replace(&server.url, &back.url);
    workspace.write("brigade.toml", &config);
    assert_eq!(run(&workspace, &["run", "crew"], &limit).await.status.code(), Some(0));
    assert_eq!(statuses(&workspace), ["completed"; 2]);
}

/// Runs a team whose server gives this answer, and returns the output of the run.
async fn refused_run(reply: Option<Reply>) -> (TestWorkspace, String) {
    let server = match reply {
        Some(reply) => Some(Server::start(move |_, _| reply.clone()).await),
        None => None,
    };
    let url = server.as_ref().map_or_else(unused_address, |server| server.url.clone());
    let workspace = with_plan(&url, &["alice"]);
    let begun = Instant::now();
    let output = run(&workspace, &["run", "crew"], &[("ANTHROPIC_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(begun.elapsed() < Duration::from_secs(20), "{}", both(&output));
    let printed = words_of(&output).replace(&url, "URL");
    assert!(printed.contains("No teammate can work (alice: model m-1 of anthropic: 127.0.0.1:"), "{printed}");
    assert!(
        printed.contains("no work is lost: correct the setting, the key or the login, and run the team again"),
        "{printed}"
    );
    assert_eq!(statuses(&workspace), ["pending"; 2]);
    assert_no_attempt_failed(&workspace);
    (workspace, printed)
}

#[tokio::test]
async fn wrong_server_key_or_model_ends_run_with_code_2() {
    let page = "content-type: text/html\r\n";
    for (reply, words) in [
        (None, "URL/v1/messages: start that server, or correct `base_url`"),
        (Some(full_response(404, page, "<title>Not found</title>")), "correct `base_url` or `model`, which is `m-1`"),
        (Some(full_response(200, page, "<title>Hello</title>")), "with text/html; Brigade needs one"),
        (Some(error_reply(401, "", "authentication_error", "no")), "refused the key in ANTHROPIC_API_KEY (401: no)"),
        (
            Some(error_reply(400, "", "invalid_request_error", "Your credit balance is too low")),
            "refused the key in ANTHROPIC_API_KEY (400: Your credit balance is too low)",
        ),
        (Some(error_reply(403, "", "permission_error", "no")), "refused the key in ANTHROPIC_API_KEY (403: no)"),
        (Some(error_reply(404, "", "not_found_error", "model: m-1")), "404 not_found_error: model: m-1"),
        (Some(error_reply(400, "", "model_not_found", "no")), "correct `base_url` or `model`, which is `m-1`"),
    ] {
        let (workspace, printed) = refused_run(reply).await;
        assert!(printed.contains(words), "{words}: {printed}");
        let why = words_of(&run(&workspace, &["why", "1"], &[]).await);
        assert!(why.contains("its teammate's model failed: 127.0.0.1:"), "{why}");
    }
}

#[tokio::test]
async fn up_waits_for_server_that_starts_later() {
    let url = unused_address();
    let workspace = with_plan(&url, &["alice"]);
    let up = workspace.start(&["up", "crew", "--headless"]);
    let wait = async |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {}", up.output_so_far());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    wait("it retries", &|| up.output_so_far().contains("cannot be reached")).await;
    let _server = Server::start_at(url.trim_start_matches("http://"), well_behaved).await;
    wait("the tasks are done", &|| workspace.all_are("completed")).await;
}

#[tokio::test]
async fn used_up_quota_pauses_team_if_configured() {
    let limited = || error_reply(429, "retry-after: 200000\r\n", "rate_limit_error", "the weekly limit is reached");
    let server = Server::start(move |_, _| limited()).await;
    let workspace = workspace(&server.url, &["alice", "bob"], "plan = \"plan.md\"\non_quota = \"pause\"");
    workspace.write("plan.md", "## First\nDo it.\n");
    let output = run(&workspace, &["run", "crew"], &[]).await;
    let printed = words_of(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("The team was paused before its work was done (the quota of anthropic"), "{printed}");
    let state = workspace.json(&["state"]);
    assert_eq!(state["desired_state"], "pause", "{state}");
    let note = state["note"].as_str().unwrap();
    let until = note.split_once(" is used up until ").unwrap().1;
    assert!(until.starts_with("20") && until.ends_with(" UTC"), "the day and the time: {note}");
    assert_eq!(statuses(&workspace), ["pending"]);
    assert_no_attempt_failed(&workspace);
}

/// All members of an account wait for the end of its quota window, also after a kill. Only one of them asks the server.
#[tokio::test(flavor = "multi_thread")]
async fn used_up_quota_holds_for_account_and_survives_kill() {
    let limited = || error_reply(429, "retry-after: 5000\r\n", "rate_limit_error", "the weekly limit is reached");
    let server = Server::start(move |_, _| limited()).await;
    let workspace = with_plan(&server.url, &["alice", "bob", "carol"]);
    let mut counts = Vec::new();
    for launch in 0..2 {
        let mut brigade = workspace.brigade(&["run", "crew"]);
        brigade.env(brigade::providers::messages::API_KEY, KEY);
        let mut run = Process::start(brigade, &workspace.join(&format!("said-{launch}.txt")));
        eventually("all wait for the quota", async || {
            let team = workspace.json(&["team"]).to_string();
            team.matches("quota until ").count() == 4
        })
        .await;
        run.kill();
        workspace.assert_nothing_is_left_running();
        counts.push(server.requests().len());
    }
    assert_eq!(counts[0], counts[1], "the second launch sends nothing");
    // Members that claimed at the same time may each ask once, before the first answer.
    assert!(server.requests().len() <= 2, "two tasks, one request each at most: {}", server.requests().len());
    assert_no_attempt_failed(&workspace);
}

/// After a refusal, no member of the account sends before the time that the server names: neither those of the same team nor those of
/// another process.
#[tokio::test(flavor = "multi_thread")]
async fn limit_of_account_holds_for_other_processes() {
    const WAIT: Duration = Duration::from_secs(3);
    let times = Arc::<Mutex<Vec<Instant>>>::default();
    let seen = Arc::clone(&times);
    let server = Server::start(move |request, count| {
        seen.lock().unwrap().push(Instant::now());
        let limited = || error_reply(429, "retry-after: 3\r\n", "rate_limit_error", "slow down");
        if count == 0 { limited() } else { well_behaved(request, count) }
    })
    .await;
    let state = tempfile::tempdir().unwrap();
    let start = |workspace: &TestWorkspace| {
        let mut brigade = workspace.brigade(&["run", "crew"]);
        brigade.env(brigade::providers::messages::API_KEY, KEY).env("XDG_STATE_HOME", state.path());
        Process::start(brigade, &workspace.join("said.txt"))
    };
    let accounts = state.path().join("brigade/accounts");
    let files = || std::fs::read_dir(&accounts).into_iter().flatten().flatten().map(|entry| entry.path());
    let records = || files().filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let (first, second) = (with_plan(&server.url, &["alice"]), with_plan(&server.url, &["bob", "carol"]));
    first.write("brigade.toml", &first.read("brigade.toml").replace("plan =", "record = \"traffic/\"\nplan ="));
    let mut running = vec![start(&first)];
    eventually("the limit is recorded", async || records().count() == 1).await;
    running.push(start(&second));
    for run in &mut running {
        assert_eq!(tokio::task::block_in_place(|| run.code()), Some(0), "{}", run.output_so_far());
    }
    let times = times.lock().unwrap();
    assert!(times[1] - times[0] >= WAIT, "{:?}", times[1] - times[0]);
    assert!(times.len() > 8, "both teams worked: {}", times.len());
    let text: String = records().map(|path| format!("{path:?} {}", std::fs::read_to_string(&path).unwrap())).collect();
    assert!(!text.contains(KEY) && text.contains("until"), "{text}");
    assert_no_attempt_failed(&first);
    assert_no_attempt_failed(&second);
}

/// After a refusal for missing credit, no member sends in vain, also none of another process that runs. A launch asks again.
#[tokio::test(flavor = "multi_thread")]
async fn missing_credit_holds_for_other_processes() {
    let server = Server::start(|request, _| match sender_of(request).as_str() {
        "alice" => {
            let command = "while [ ! -e go ]; do sleep 0.05; done";
            streamed_answer(&[call("id-1", "bash", json!({ "command": command }))])
        }
        _ => error_reply(429, "", "insufficient_quota", "You exceeded your current quota"),
    })
    .await;
    let state = tempfile::tempdir().unwrap();
    let start = |workspace: &TestWorkspace, said: &str| {
        let mut brigade = workspace.brigade(&["run", "crew"]);
        brigade.env(brigade::providers::messages::API_KEY, KEY).env("XDG_STATE_HOME", state.path());
        Process::start(brigade, &workspace.join(said))
    };
    let end = |running: &mut Process| {
        assert_eq!(tokio::task::block_in_place(|| running.code()), Some(2), "{}", running.output_so_far());
        running.output_so_far()
    };
    let (busy, poor) = (with_plan(&server.url, &["alice"]), with_plan(&server.url, &["carol", "dave"]));
    let mut first = start(&busy, "said.txt");
    eventually("alice has asked", async || server.requests().len() == 1).await;
    assert!(end(&mut start(&poor, "said.txt")).contains("You exceeded your current quota"));
    let sent = server.requests().len();
    assert!(sent <= 3, "alice, and two members that claimed at the same time");
    busy.write("go", "");
    let printed = end(&mut first).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        printed.contains("as another request showed; after a payment, launch the team again, or pause and"),
        "{printed}"
    );
    assert_eq!(server.requests().len(), sent, "alice sends nothing in vain");
    assert_eq!(statuses(&busy), ["pending"; 2]);
    end(&mut start(&poor, "said-2.txt"));
    assert!(server.requests().len() > sent, "the person may have paid before the launch");
}
