//! Whole teams in the real program, with models that use the Messages API.

use std::collections::HashMap;
use std::process::Output;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::answers::KEY;
use crate::testkit::model_server::{
    Part, ReceivedRequest, Reply, Server, ServerAction, call, chunk, error_reply, events, head, streamed,
    streamed_answer, text,
};
use crate::testkit::process::{WAIT_TIME_MAX, files_below};
use crate::testkit::workspace::TestWorkspace;

/// A workspace with a team `crew` of these members; all models are at `url`.
pub fn workspace(url: &str, members: &[&str], more: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    let members: String =
        members.iter().map(|name| format!("[[teams.crew.members]]\nname = \"{name}\"\nrole = \"coder\"\n")).collect();
    let lead = format!("lead = {{ provider = \"anthropic\", model = \"m-1\", base_url = \"{url}\" }}");
    workspace.write("brigade.toml", &format!("durability = \"process\"\n[teams.crew]\n{lead}\n{more}\n{members}"));
    workspace
}

/// Runs Brigade without blocking the runtime, which also serves the models.
pub async fn run(workspace: &TestWorkspace, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = tokio::process::Command::from(workspace.brigade(arguments));
    command.kill_on_drop(true).envs(variables.iter().copied());
    tokio::time::timeout(WAIT_TIME_MAX, command.output()).await.expect("the team ends").unwrap()
}

pub fn logged(workspace: &TestWorkspace, kind: &str) -> Vec<Value> {
    workspace.events().into_iter().filter(|event| event["kind"] == kind).collect()
}

pub fn statuses(workspace: &TestWorkspace) -> Vec<String> {
    workspace.tasks().iter().map(|task| task["status"].as_str().unwrap().to_owned()).collect()
}

pub fn both(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// The member that sent the request, from the system prompt.
pub fn sender_of(request: &ReceivedRequest) -> String {
    let system = request.body["system"][0]["text"].as_str().unwrap();
    system.split('\'').nth(1).unwrap().to_owned()
}

fn blocks(message: &Value) -> &[Value] {
    message["content"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn last_blocks(request: &ReceivedRequest) -> &[Value] {
    blocks(request.body["messages"].as_array().unwrap().last().unwrap())
}

/// The tools whose results are in the last message, and whether each failed.
fn results(request: &ReceivedRequest) -> Vec<(String, bool)> {
    let blocks_sent = request.body["messages"].as_array().unwrap().iter().flat_map(blocks);
    let tools: HashMap<&str, &str> = blocks_sent
        .filter(|block| block["type"] == "tool_use")
        .map(|block| (block["id"].as_str().unwrap(), block["name"].as_str().unwrap()))
        .collect();
    let results = last_blocks(request).iter().filter(|block| block["type"] == "tool_result");
    let result = |block: &Value| {
        let tool = tools[block["tool_use_id"].as_str().unwrap()];
        (tool.to_owned(), block["is_error"] == true)
    };
    results.map(result).collect()
}

/// The current task, from the last claim or from the identity block.
pub fn task_at_hand(request: &ReceivedRequest) -> Option<u64> {
    let messages = request.body["messages"].to_string();
    let (_, rest) = messages.rsplit_once("-claimed>Task #").or_else(|| messages.split_once("You hold task #"))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn is_prompted(request: &ReceivedRequest, start: &str) -> bool {
    last_blocks(request).iter().any(|block| block["text"].as_str().is_some_and(|text| text.starts_with(start)))
}

/// A well-behaved model: the lead plans and reports, teammates write a file and complete.
pub fn well_behaved(request: &ReceivedRequest, count: usize) -> Reply {
    // Ids may differ from the format of the API.
    let id = format!("id-{count}");
    if sender_of(request) == "lead" {
        let task = |letter: &str| {
            call(&format!("{id}_{letter}"), "task_create", json!({"subject": letter, "description": "write a file"}))
        };
        return if is_prompted(request, "<inbox>\n[message] from human: ") {
            streamed_answer(&[text("Four tasks."), task("a"), task("b"), task("c"), task("d")])
        } else {
            streamed_answer(&[text("All four are done.")])
        };
    }
    let Some(task) = task_at_hand(request) else { return streamed_answer(&[text("Nothing to do.")]) };
    let complete = json!({"task_id": task, "status": "completed", "result": "written"});
    match results(request).last() {
        Some((tool, false)) if tool == "bash" => streamed_answer(&[call(&id, "task_update", complete)]),
        Some((tool, false)) if tool == "task_update" => streamed_answer(&[text("Done.")]),
        _ => streamed_answer(&[
            text("On it."),
            call(&id, "bash", json!({"command": format!("echo {task} > out-{task}.txt")})),
        ]),
    }
}

#[tokio::test]
async fn lead_and_two_teammates_complete_goal() {
    let server = Server::start(well_behaved).await;
    let workspace = workspace(&server.url, &["alice", "bob"], "goal = \"four files\"");
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"; 4]);
    assert!((1..=4).all(|task| workspace.join(&format!("out-{task}.txt")).exists()));
    assert!(both(&output).contains("All four are done."), "{}", both(&output));
    let finished = logged(&workspace, "turn_finished");
    assert!(finished.len() >= 10, "{finished:?}");
    assert!(
        finished.iter().all(|event| event["input_tokens"] == 1_000 && event["output_tokens"] == 30),
        "{finished:?}"
    );
    assert!(finished.iter().all(|event| event["cache_read_tokens"] == 400), "{finished:?}");
    for request in server.requests() {
        assert_eq!(request.body["model"], "m-1");
        assert_eq!(request.header("x-api-key"), None, "no key is set, and none is needed");
    }
}

/// The faults of alice's server for her first requests, in sequence.
fn fault(number: usize) -> Option<Reply> {
    let touch = |name: &str| json!({"command": format!("touch {name}.txt")}).to_string();
    let called = |input: String, stop: &str| {
        streamed(&events(&[text("Well."), Part::Call(format!("t{number}"), "bash".into(), input)], stop), 200)
    };
    match number {
        0 => Some(error_reply(429, "retry-after: 0\r\n", "rate_limit_error", "slow down")),
        1 => Some(error_reply(529, "", "overloaded_error", "Overloaded")),
        2 => {
            let whole = events(&[Part::Call("torn".into(), "bash".into(), touch("torn"))], "tool_use");
            Some(vec![head(), ServerAction::Send(chunk(&whole.as_bytes()[..whole.len() * 2 / 3])), ServerAction::Close])
        }
        3 => Some(called(touch("cut"), "max_tokens")),
        4 => Some(called(touch("bad").replace('}', ""), "tool_use")),
        5 => Some(called(touch("odd"), "brand_new")),
        6 => Some(called(touch("refused"), "refusal")),
        7 => Some(error_reply(400, "", "invalid_request_error", "prompt is too long: 3 tokens > 2 maximum")),
        9 => {
            let copies = (1..=4).map(|copy| Part::Call(format!("copy-{copy}"), "bash".into(), repeated_call()));
            let copies: Vec<Part> = copies.collect();
            Some(streamed(&events(&copies, "tool_use"), 200))
        }
        _ => None,
    }
}

/// A call that leaves one letter in a file each time.
fn repeated_call() -> String {
    json!({"command": "printf x >> repeated.txt"}).to_string()
}

#[tokio::test]
async fn team_completes_despite_model_faults() {
    let requests_of_alice = Mutex::new(0);
    let server = Server::start(move |request, count| {
        let number = {
            let mut number = requests_of_alice.lock().unwrap();
            *number += 1;
            *number - 1
        };
        if is_prompted(request, "Your conversation has become too long") {
            return streamed_answer(&[text("SUMMARY: nothing is written yet.")]);
        }
        fault(number).unwrap_or_else(|| well_behaved(request, count))
    })
    .await;
    let workspace = workspace(&server.url, &["alice"], "plan = \"plan.md\"");
    workspace.write("plan.md", "## Write a file\nWrite it.\n");
    let lead = "[teams.crew]\nlead = { provider = \"runbook\" }";
    let config = std::fs::read_to_string(workspace.path().join("brigade.toml")).unwrap();
    let member = format!("role = \"coder\"\nprovider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"{}\"", server.url);
    let (start, rest) = config.split_once("[teams.crew]\n").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    workspace.write("brigade.toml", &format!("{start}{lead}\n{}", rest.replace("role = \"coder\"", &member)));
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"]);
    assert!(workspace.join("out-1.txt").exists());
    for never in ["torn", "cut", "bad", "odd", "refused"] {
        assert!(!workspace.join(&format!("{never}.txt")).exists(), "the call {never} ran");
    }
    let reasons: Vec<String> =
        logged(&workspace, "model_retried").iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    for (reason, word) in reasons.iter().zip(["429", "529", "lost the connection", "the answer was cut"]) {
        assert!(reason.contains(word), "{reasons:?}");
    }
    assert_eq!(logged(&workspace, "compacted").len(), 1);
    let requests = server.requests();
    let messages_of = |number: usize| serde_json::to_string(&requests[number].body["messages"]).unwrap();
    assert!(messages_of(4).contains("cut by its length limit"), "{}", messages_of(4));
    assert_eq!(messages_of(5), messages_of(4), "a cut answer is asked again");
    assert!(messages_of(6).contains("a reason Brigade does not know"), "{}", messages_of(6));
    assert!(messages_of(9).contains("SUMMARY: nothing is written yet."), "{}", messages_of(9));
    assert_eq!(std::fs::read_to_string(workspace.join("repeated.txt")).unwrap(), "xx", "the third copy is not run");
    assert!(messages_of(10).contains("Not called: the calls above are the same"), "{}", messages_of(10));
    let prefix = |number: usize| (requests[number].body["tools"].clone(), requests[number].body["system"].clone());
    assert!((1..requests.len()).all(|number| prefix(number) == prefix(0)), "tools and system prompt change");
}

#[tokio::test]
async fn key_echoed_by_server_is_in_no_file_or_output() {
    let requests_of_alice = Mutex::new(0);
    let server = Server::start(move |request, count| {
        let mut number = requests_of_alice.lock().unwrap();
        *number += usize::from(sender_of(request) == "alice");
        let echo = request.header("x-api-key").unwrap_or("none").to_owned();
        match (sender_of(request).as_str(), *number) {
            ("lead", _) if is_prompted(request, "<inbox>\n[message] from human: ") => well_behaved(request, count),
            ("alice", 1) => error_reply(529, "retry-after: 0\r\n", &echo, &format!("overloaded {echo}")),
            ("alice", 2) => streamed(&format!("event: error\ndata: {{\"error\":{{\"message\":\"{echo}\"}}}}\n\n"), 7),
            ("alice", 3) => {
                let command = format!("echo {echo}; env; printenv ANTHROPIC_API_KEY");
                streamed_answer(&[text(&format!("It is {echo}.")), call("x", "bash", json!({"command": command}))])
            }
            _ => {
                error_reply(401, &format!("request-id: {echo}\r\n"), "authentication_error", &format!("bad key {echo}"))
            }
        }
    })
    .await;
    let workspace = workspace(&server.url, &["alice", "bob"], "goal = \"four files\"");
    let key = [("ANTHROPIC_API_KEY", KEY), ("RUST_LOG", "trace")];
    let mut printed = String::new();
    for arguments in [&["run", "crew"][..], &["doctor"], &["config", "show"], &["team"], &["why", "1"]] {
        printed += &both(&run(&workspace, arguments, &key).await);
    }
    assert!(
        server.requests().len() > 4 && server.requests().iter().all(|request| request.header("x-api-key") == Some(KEY))
    );
    for words in ["set: ANTHROPIC_API_KEY", "overloaded [key]", "bad key [key]", "It is [key]."] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(!printed.contains(KEY), "printed: {printed}");
    let files = files_below(workspace.path());
    assert!(files.len() > 8, "{files:?}");
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(KEY), "the key is in {}", file.display());
    }
}

#[tokio::test]
async fn missing_key_or_model_is_reported_before_start() {
    let workspace = workspace("https://api.anthropic.com", &["alice"], "goal = \"x\"");
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(both(&output).contains("set ANTHROPIC_API_KEY"), "{}", both(&output));
    let output = run(&workspace, &["doctor"], &[]).await;
    assert!(output.status.code() == Some(1) && both(&output).contains("ANTHROPIC_API_KEY"), "{}", both(&output));
    let config = std::fs::read_to_string(workspace.path().join("brigade.toml")).unwrap();
    workspace.write("brigade.toml", &config.replace("model = \"m-1\", ", ""));
    let output = run(&workspace, &["run", "crew"], &[("ANTHROPIC_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(both(&output).contains("the provider `anthropic` needs `model`"), "{}", both(&output));
}

/// A usage of 2^63 tokens, in a complete or a broken answer, must not use up the budget.
#[tokio::test]
async fn usage_beyond_the_request_spends_no_budget() {
    let server = Server::start(|request, count| {
        let reply = |parts: &[Part]| {
            let stop = if matches!(parts, [Part::Text(_)]) { "end_turn" } else { "tool_use" };
            events(parts, stop).replace("\"input_tokens\":1000", &format!("\"input_tokens\":{}", 1_u64 << 63))
        };
        if count == 0 {
            let whole = reply(&[text("Well.")]);
            return vec![head(), ServerAction::Send(chunk(&whole.as_bytes()[..whole.len() / 2])), ServerAction::Close];
        }
        let is_done = results(request).last().is_some_and(|(tool, failed)| tool == "task_update" && !failed);
        match task_at_hand(request).filter(|_| sender_of(request) == "alice" && !is_done) {
            Some(task) => {
                let input = json!({"task_id": task, "status": "completed", "result": "done"});
                streamed(&reply(&[call(&format!("id-{count}"), "task_update", input)]), 200)
            }
            None => streamed(&reply(&[text("Done.")]), 200),
        }
    })
    .await;
    let workspace = workspace(&server.url, &["alice"], "plan = \"plan.md\"\nbudget = { tokens = 1000000 }");
    workspace.write("plan.md", "## One\n");
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"]);
    let warnings = logged(&workspace, "warning");
    let usage_warnings =
        warnings.iter().filter(|event| event["text"].as_str().unwrap().contains("more tokens than the request"));
    assert!((1..=2).contains(&usage_warnings.count()), "not one warning for each member: {warnings:?}");
    assert!(
        logged(&workspace, "turn_finished").iter().all(|event| event["input_tokens"] == 0),
        "an invalid usage was counted"
    );
    let cost = run(&workspace, &["cost", "--json"], &[]).await;
    let cost: Value = serde_json::from_slice(&cost.stdout).unwrap();
    let (tokens, requests) = (cost["data"]["tokens"].as_u64().unwrap(), server.requests().len() as u64);
    assert!((requests..=200_000 * requests).contains(&tokens), "each request counts as its upper limit: {cost}");
}

/// The parts of a request in the order in which the server compares them. Cache breakpoints are not content and may move.
fn parts_of(request: &ReceivedRequest) -> Vec<String> {
    let without_breakpoint = |part: &Value| {
        let mut part = part.clone();
        part.as_object_mut().unwrap().shift_remove("cache_control");
        part.to_string()
    };
    let list = |key: &str| request.body[key].as_array().unwrap().iter().map(without_breakpoint).collect::<Vec<_>>();
    let block = |message: &Value| {
        let role = message["role"].to_string();
        blocks(message).iter().map(|block| role.clone() + &without_breakpoint(block)).collect::<Vec<_>>()
    };
    let messages = request.body["messages"].as_array().unwrap().iter().flat_map(block);
    [list("tools"), list("system"), messages.collect()].concat()
}

#[tokio::test]
async fn relaunched_team_repeats_its_requests() {
    let server = Server::start(|request, count| {
        if count % 6 == 2 {
            error_reply(529, "retry-after: 0\r\n", "overloaded_error", "")
        } else {
            well_behaved(request, count)
        }
    })
    .await;
    let workspace = workspace(&server.url, &["alice", "bob"], "goal = \"four files\"");
    for more in ["", "one more", "the last one"] {
        if !more.is_empty() {
            run(&workspace, &["tasks", "add", more], &[]).await;
        }
        let output = run(&workspace, &["run", "crew"], &[]).await;
        assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    }
    assert_eq!(statuses(&workspace), ["completed"; 6]);
    let mut last: HashMap<String, Vec<String>> = HashMap::new();
    for request in server.requests() {
        let (sender, parts) = (sender_of(&request), parts_of(&request));
        let before = last.get(&sender).cloned().unwrap_or_default();
        assert!(parts.starts_with(&before), "{sender}: {}\n-- then\n{}", before.join("\n"), parts.join("\n"));
        last.insert(sender, parts);
    }
    assert_eq!(last.len(), 3);
}

#[tokio::test]
async fn stale_connections_cost_only_a_retry() {
    let server = Server::start(|request, count| match request.before_on_connection {
        0 => well_behaved(request, count),
        _ => vec![ServerAction::Close],
    })
    .await;
    let workspace = workspace(&server.url, &["alice", "bob"], "goal = \"four files\"");
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert!(server.requests().iter().any(|request| request.before_on_connection > 0), "no connection was used twice");
}
