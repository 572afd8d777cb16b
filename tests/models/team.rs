//! Whole teams, as the program runs them, whose models are behind the Messages API.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::answers::KEY;
use super::server::{Asked, Part, Reply, Server, Step, call, chunk, events, head, refused, says, streamed, text};

/// How long a team may take on a slow, busy machine before the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A workspace.
struct Place(tempfile::TempDir);

impl Place {
    /// One whose team `crew` has these members, all with their models at `url`.
    fn new(url: &str, members: &[&str], more: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let members: String = members
            .iter()
            .map(|name| format!("[[teams.crew.members]]\nname = \"{name}\"\nrole = \"coder\"\n"))
            .collect();
        let lead = format!("lead = {{ provider = \"anthropic\", model = \"m-1\", base_url = \"{url}\" }}");
        place.write("brigade.toml", &format!("durability = \"process\"\n[teams.crew]\n{lead}\n{more}\n{members}"));
        place
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    async fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_brigade"));
        command.current_dir(self.path()).args(arguments).kill_on_drop(true).stdin(std::process::Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("BRIGADE_") || name.starts_with("ANTHROPIC_") {
                command.env_remove(name);
            }
        }
        command.env("XDG_CONFIG_HOME", self.path().join("no-config")).envs(variables.iter().copied());
        tokio::time::timeout(PATIENCE, command.output()).await.expect("the team ends").unwrap()
    }

    fn facts(&self, kind: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.path().join(".team/events.jsonl")).unwrap();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["kind"] == kind).collect()
    }

    fn statuses(&self) -> Vec<String> {
        let mut statuses = Vec::new();
        for id in 1.. {
            let Ok(text) = std::fs::read_to_string(self.path().join(format!(".tasks/task_{id}.json"))) else { break };
            let task: Value = serde_json::from_str(&text).unwrap();
            statuses.push(task["status"].as_str().unwrap().to_owned());
        }
        statuses
    }

    fn has(&self, name: &str) -> bool {
        self.path().join(name).exists()
    }
}

fn both(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// Who asks, by the system prompt.
fn who(asked: &Asked) -> String {
    let system = asked.body["system"][0]["text"].as_str().unwrap();
    system.split('\'').nth(1).unwrap().to_owned()
}

fn blocks(message: &Value) -> &[Value] {
    message["content"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn last_blocks(asked: &Asked) -> &[Value] {
    blocks(asked.body["messages"].as_array().unwrap().last().unwrap())
}

/// The tools whose results stand in the last message, and whether each failed.
fn results(asked: &Asked) -> Vec<(String, bool)> {
    let said = asked.body["messages"].as_array().unwrap().iter().flat_map(blocks);
    let tools: HashMap<&str, &str> = said
        .filter(|block| block["type"] == "tool_use")
        .map(|block| (block["id"].as_str().unwrap(), block["name"].as_str().unwrap()))
        .collect();
    let results = last_blocks(asked).iter().filter(|block| block["type"] == "tool_result");
    let result = |block: &Value| {
        let tool = tools[block["tool_use_id"].as_str().unwrap()];
        (tool.to_owned(), block["is_error"] == true)
    };
    results.map(result).collect()
}

/// The task at hand, from what was claimed last or from the identity block.
fn task_at_hand(asked: &Asked) -> Option<u64> {
    let messages = asked.body["messages"].to_string();
    let (_, rest) = messages.rsplit_once("-claimed>Task #").or_else(|| messages.split_once("You hold task #"))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn is_told(asked: &Asked, start: &str) -> bool {
    last_blocks(asked).iter().any(|block| block["text"].as_str().is_some_and(|text| text.starts_with(start)))
}

/// A model that does what it is there for: the lead plans and reports, teammates write a file and complete.
fn sensible(asked: &Asked, count: usize) -> Reply {
    // Ids need not look like the API's own.
    let id = format!("id-{count}");
    if who(asked) == "lead" {
        let task = |letter: &str| {
            call(&format!("{id}_{letter}"), "task_create", json!({"subject": letter, "description": "write a file"}))
        };
        return if is_told(asked, "<goal>") {
            says(&[text("Four tasks."), task("a"), task("b"), task("c"), task("d")])
        } else {
            says(&[text("All four are done.")])
        };
    }
    let Some(task) = task_at_hand(asked) else { return says(&[text("Nothing to do.")]) };
    let complete = json!({"task_id": task, "status": "completed", "result": "written"});
    match results(asked).last() {
        Some((tool, false)) if tool == "bash" => says(&[call(&id, "task_update", complete)]),
        Some((tool, false)) if tool == "task_update" => says(&[text("Done.")]),
        _ => says(&[text("On it."), call(&id, "bash", json!({"command": format!("echo {task} > out-{task}.txt")}))]),
    }
}

#[tokio::test]
async fn a_lead_and_two_teammates_drain_a_board() {
    let server = Server::start(sensible).await;
    let place = Place::new(&server.url, &["alice", "bob"], "goal = \"four files\"");
    let output = place.run(&["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(place.statuses(), ["completed"; 4]);
    assert!((1..=4).all(|task| place.has(&format!("out-{task}.txt"))));
    assert!(both(&output).contains("All four are done."), "{}", both(&output));
    let finished = place.facts("turn_finished");
    assert!(finished.len() >= 10, "{finished:?}");
    assert!(finished.iter().all(|fact| fact["input_tokens"] == 100 && fact["output_tokens"] == 9), "{finished:?}");
    assert!(finished.iter().all(|fact| fact["cache_read_tokens"] == 40), "{finished:?}");
    for asked in server.asked() {
        assert_eq!(asked.body["model"], "m-1");
        assert_eq!(asked.header("x-api-key"), None, "there is no key, and none is needed here");
    }
}

/// What alice's server does to her requests, one after the other, before it comes to its senses.
fn trouble(number: usize) -> Option<Reply> {
    let touch = |name: &str| json!({"command": format!("touch {name}.txt")}).to_string();
    let called = |input: String, stop: &str| {
        streamed(&events(&[text("Well."), Part::Call(format!("t{number}"), "bash".into(), input)], stop), 200)
    };
    match number {
        0 => Some(refused(429, "retry-after: 0\r\n", "rate_limit_error", "slow down")),
        1 => Some(refused(529, "", "overloaded_error", "Overloaded")),
        2 => {
            let whole = events(&[Part::Call("torn".into(), "bash".into(), touch("torn"))], "tool_use");
            Some(vec![head(), Step::Send(chunk(&whole.as_bytes()[..whole.len() * 2 / 3])), Step::Close])
        }
        3 => Some(called(touch("cut"), "max_tokens")),
        4 => Some(called(touch("bad").replace('}', ""), "tool_use")),
        5 => Some(called(touch("odd"), "brand_new")),
        6 => Some(called(touch("refused"), "refusal")),
        7 => Some(refused(400, "", "invalid_request_error", "prompt is too long: 3 tokens > 2 maximum")),
        _ => None,
    }
}

#[tokio::test]
async fn a_team_gets_through_all_that_goes_wrong() {
    let asked_by_alice = Mutex::new(0);
    let server = Server::start(move |asked, count| {
        let number = {
            let mut number = asked_by_alice.lock().unwrap();
            *number += 1;
            *number - 1
        };
        if is_told(asked, "Your conversation has become too long") {
            return says(&[text("SUMMARY: nothing is written yet.")]);
        }
        trouble(number).unwrap_or_else(|| sensible(asked, count))
    })
    .await;
    let place = Place::new(&server.url, &["alice"], "plan = \"plan.md\"");
    place.write("plan.md", "## Write a file\nWrite it.\n");
    let lead = "[teams.crew]\nlead = { provider = \"runbook\" }";
    let config = std::fs::read_to_string(place.path().join("brigade.toml")).unwrap();
    let member = format!("role = \"coder\"\nprovider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"{}\"", server.url);
    let (start, rest) = config.split_once("[teams.crew]\n").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    place.write("brigade.toml", &format!("{start}{lead}\n{}", rest.replace("role = \"coder\"", &member)));
    let output = place.run(&["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(place.statuses(), ["completed"]);
    assert!(place.has("out-1.txt"));
    for never in ["torn", "cut", "bad", "odd", "refused"] {
        assert!(!place.has(&format!("{never}.txt")), "the call {never} was run");
    }
    let reasons: Vec<String> =
        place.facts("model_retried").iter().map(|fact| fact["reason"].as_str().unwrap().to_owned()).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    for (reason, word) in reasons.iter().zip(["429", "529", "broke off"]) {
        assert!(reason.contains(word), "{reasons:?}");
    }
    assert_eq!(place.facts("compacted").len(), 1);
    let asked = server.asked();
    let told = |number: usize| serde_json::to_string(&asked[number].body["messages"]).unwrap();
    assert!(told(4).contains("cut by its length limit"), "{}", told(4));
    assert!(told(5).contains("not a JSON object") && told(5).contains("INVALID_JSON"), "{}", told(5));
    assert!(told(6).contains("a reason Brigade does not know"), "{}", told(6));
    assert!(told(9).contains("SUMMARY: nothing is written yet."), "{}", told(9));
    let prefix = |number: usize| (asked[number].body["tools"].clone(), asked[number].body["system"].clone());
    assert!((1..asked.len()).all(|number| prefix(number) == prefix(0)), "tools and system prompt stay the same");
}

/// All files below `folder`.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn a_key_is_in_nothing_a_run_leaves_though_the_server_echoes_it() {
    let asked_by_alice = Mutex::new(0);
    let server = Server::start(move |asked, count| {
        let mut number = asked_by_alice.lock().unwrap();
        *number += usize::from(who(asked) == "alice");
        let echo = asked.header("x-api-key").unwrap_or("none").to_owned();
        match (who(asked).as_str(), *number) {
            ("lead", _) if is_told(asked, "<goal>") => sensible(asked, count),
            ("alice", 1) => refused(529, "retry-after: 0\r\n", &echo, &format!("overloaded {echo}")),
            ("alice", 2) => streamed(&format!("event: error\ndata: {{\"error\":{{\"message\":\"{echo}\"}}}}\n\n"), 7),
            ("alice", 3) => {
                let command = format!("echo {echo}; env; printenv ANTHROPIC_API_KEY");
                says(&[text(&format!("It is {echo}.")), call("x", "bash", json!({"command": command}))])
            }
            _ => refused(401, &format!("request-id: {echo}\r\n"), "authentication_error", &format!("bad key {echo}")),
        }
    })
    .await;
    let place = Place::new(&server.url, &["alice", "bob"], "goal = \"four files\"");
    let key = [("ANTHROPIC_API_KEY", KEY), ("RUST_LOG", "trace")];
    let mut printed = String::new();
    for arguments in [&["run", "crew"][..], &["doctor"], &["config", "show"], &["team"], &["why", "1"]] {
        printed += &both(&place.run(arguments, &key).await);
    }
    assert!(server.asked().len() > 4 && server.asked().iter().all(|asked| asked.header("x-api-key") == Some(KEY)));
    for words in ["set: ANTHROPIC_API_KEY", "overloaded [key]", "bad key [key]", "It is [key]."] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(!printed.contains(KEY), "printed: {printed}");
    let files = files_below(place.path());
    assert!(files.len() > 8, "{files:?}");
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(KEY), "the key is in {}", file.display());
    }
}

#[tokio::test]
async fn what_is_missing_is_said_before_anything_begins() {
    let place = Place::new("https://api.anthropic.com", &["alice"], "goal = \"x\"");
    let output = place.run(&["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(both(&output).contains("set ANTHROPIC_API_KEY"), "{}", both(&output));
    let output = place.run(&["doctor"], &[]).await;
    assert!(output.status.code() == Some(1) && both(&output).contains("ANTHROPIC_API_KEY"), "{}", both(&output));
    let config = std::fs::read_to_string(place.path().join("brigade.toml")).unwrap();
    place.write("brigade.toml", &config.replace("model = \"m-1\", ", ""));
    let output = place.run(&["run", "crew"], &[("ANTHROPIC_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(both(&output).contains("the anthropic provider needs `model`"), "{}", both(&output));
}

/// A usage of 2^63 tokens, in an answer that is whole and in one that breaks off, must not spend the budget.
#[tokio::test]
async fn usage_beyond_the_request_spends_no_budget() {
    let server = Server::start(|asked, count| {
        let reply = |parts: &[Part]| {
            let stop = if matches!(parts, [Part::Text(_)]) { "end_turn" } else { "tool_use" };
            events(parts, stop).replace("\"input_tokens\":100", &format!("\"input_tokens\":{}", 1_u64 << 63))
        };
        if count == 0 {
            let whole = reply(&[text("Well.")]);
            return vec![head(), Step::Send(chunk(&whole.as_bytes()[..whole.len() / 2])), Step::Close];
        }
        let is_done = results(asked).last().is_some_and(|(tool, failed)| tool == "task_update" && !failed);
        match task_at_hand(asked).filter(|_| who(asked) == "alice" && !is_done) {
            Some(task) => {
                let input = json!({"task_id": task, "status": "completed", "result": "done"});
                streamed(&reply(&[call(&format!("id-{count}"), "task_update", input)]), 200)
            }
            None => streamed(&reply(&[text("Done.")]), 200),
        }
    })
    .await;
    let place = Place::new(&server.url, &["alice"], "plan = \"plan.md\"\nbudget = { tokens = 1000000 }");
    place.write("plan.md", "## One\n");
    let output = place.run(&["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(place.statuses(), ["completed"]);
    let warnings = place.facts("warning");
    let told = warnings.iter().filter(|fact| fact["text"].as_str().unwrap().contains("more tokens than the request"));
    assert!((1..=2).contains(&told.count()), "once for each member: {warnings:?}");
    assert!(place.facts("turn_finished").iter().all(|fact| fact["input_tokens"] == 0), "nothing of it is believed");
    let cost = place.run(&["cost", "--json"], &[]).await;
    let cost: Value = serde_json::from_slice(&cost.stdout).unwrap();
    let (tokens, requests) = (cost["data"]["tokens"].as_u64().unwrap(), server.asked().len() as u64);
    assert!((requests..=200_000 * requests).contains(&tokens), "each counts as the most it could use: {cost}");
}
