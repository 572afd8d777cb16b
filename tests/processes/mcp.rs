//! `brigade mcp` as its client sees it: the real program, with JSON-RPC on its stdin and stdout.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::testkit::process::{Process, signal, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// An MCP client with its server.
struct Client {
    server: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    last_id: u64,
}

impl Client {
    /// Starts a server for the agent `name` and completes the handshake.
    fn start(workspace: &TestWorkspace, name: &str, more: &[&str]) -> Self {
        let mut command = workspace.brigade(&[&["mcp", "--as", name], more].concat());
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (stdin, stdout) = (server.stdin.take(), BufReader::new(server.stdout.take().unwrap()));
        let mut client = Self { server, stdin, stdout, last_id: 0 };
        let about = json!({ "name": "test", "version": "1" });
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about });
        let answer = client.request("initialize", &hello);
        assert_eq!(answer["result"]["serverInfo"]["name"], "brigade", "{answer}");
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string());
        client
    }

    fn send(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Reads the next line of stdout, which must be a message of the protocol.
    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        message
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.last_id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params });
        self.send(&request.to_string());
        let answer = self.receive();
        assert_eq!(answer["id"], self.last_id, "{answer}");
        answer
    }

    /// Calls a tool. Returns the text of its result, and true if it is an error.
    fn call(&mut self, tool: &str, arguments: Value) -> (String, bool) {
        let answer = self.request("tools/call", &json!({ "name": tool, "arguments": arguments }));
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        (text.to_owned(), result["isError"].as_bool().unwrap())
    }

    /// As [`Self::call`], for a call that must succeed.
    fn ask(&mut self, tool: &str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments);
        assert!(!is_error, "{tool}: {text}");
        text
    }

    /// As [`Self::call`], for a call that must fail.
    fn refusal(&mut self, tool: &str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments);
        assert!(is_error, "{tool}: {text}");
        text
    }

    /// Closes stdin and returns the exit code.
    fn end(mut self) -> Option<i32> {
        self.stdin = None;
        self.server.wait().unwrap().code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn row_of(workspace: &TestWorkspace, name: &str) -> Value {
    let roster: Value = serde_json::from_str(&workspace.read(".team/config.json")).unwrap();
    roster["members"].as_array().unwrap().iter().find(|row| row["name"] == name).cloned().unwrap()
}

#[test]
fn mcp_client_works_on_the_board() {
    let workspace = TestWorkspace::with_idle_team(1);
    let mut sam = Client::start(&workspace, "sam", &["--can", "coder"]);
    assert_eq!(row_of(&workspace, "sam"), json!({ "name": "sam", "role": "coder", "status": "working" }));
    let tools = sam.request("tools/list", &json!({}));
    let tools: Vec<&str> =
        tools["result"]["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(
        tools,
        ["task_list", "task_get", "task_create", "claim_task", "task_update", "send_message", "read_inbox"]
    );

    let task =
        json!({ "subject": "Write it", "description": "-", "requires": ["coder"], "verify": "cat; test -e it.txt" });
    assert!(sam.ask("task_create", task.clone()).starts_with("added #1 Write it"));
    assert!(sam.refusal("task_create", task).contains("task #1 is the same"));
    assert_eq!((&workspace.task(1)["createdBy"], &workspace.task(1)["description"]), (&"sam".into(), &"-".into()));
    let claimed = sam.ask("claim_task", json!({}));
    assert!(claimed.starts_with("you hold #1") && claimed.contains("cat; test -e it.txt"), "{claimed}");
    assert_eq!((&workspace.task(1)["owner"], &workspace.task(1)["attempt"]), (&"sam".into(), &1.into()));
    assert!(sam.refusal("claim_task", json!({})).contains("you hold #1"));

    let report = json!({ "task_id": 1, "status": "completed", "result": "I wrote it" });
    let by_command = workspace.run(&["tasks", "complete", "1", "--as", "sam", "--attempt", "1"]);
    assert_eq!(by_command.code, Some(1), "{by_command:?}");
    let refusal = sam.refusal("task_update", report.clone());
    assert!(by_command.err.contains(&refusal), "{refusal} is not in {by_command:?}");
    assert_eq!(workspace.task(1)["status"], "in_progress");
    workspace.write("it.txt", "");
    assert!(sam.ask("task_update", report).starts_with("completed #1 Write it"));
    let task = workspace.task(1);
    assert_eq!((&task["status"], &task["result"]["summary"]), (&"completed".into(), &"I wrote it".into()));
    assert!(sam.ask("claim_task", json!({})).starts_with("no task is claimable for sam"));
    assert!(sam.ask("task_list", json!({ "status": "completed" })).contains("Write it"));
    assert!(sam.ask("task_get", json!({ "task_id": 1 })).contains("I wrote it"));
    assert_eq!(sam.end(), Some(0));
    assert_eq!(row_of(&workspace, "sam")["status"], "shutdown");
}

#[test]
fn mcp_client_exchanges_mail_with_a_running_team() {
    let workspace = TestWorkspace::new();
    let answer = json!({ "to": "sam", "content": "use the second form" });
    let script = json!({ "m1.mail": [{ "call": [{ "tool": "send_message", "input": answer }] }, { "say": "Sent." }] });
    workspace.write("script.json", &script.to_string());
    workspace.write(
        "brigade.toml",
        "durability = \"process\"\n[teams.crew]\n\
         [[teams.crew.members]]\nname = \"m1\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    let mut up: Process = workspace.start(&["up", "--headless", "--mode", "continuous"]);
    wait_until("the team is up", || workspace.events().iter().any(|event| event["kind"] == "teammate_phase"));
    let mut sam = Client::start(&workspace, "sam", &[]);
    assert_eq!(sam.ask("read_inbox", json!({})), "no mail waits for you");
    assert_eq!(sam.ask("send_message", json!({ "to": "m1", "content": "Which form?" })), "sent to m1");
    let mut mail = String::new();
    wait_until("the member answers", || {
        mail = sam.ask("read_inbox", json!({}));
        mail.contains("use the second form")
    });
    assert!(mail.starts_with("<inbox>\n[message] from m1: "), "{mail}");
    let refusal = sam.refusal("send_message", json!({ "to": "zoe", "content": "Hello?" }));
    assert!(refusal.contains("`zoe`") && refusal.contains("m1"), "{refusal}");
    assert_eq!(sam.ask("read_inbox", json!({})), "no mail waits for you");
    assert_eq!(workspace.run(&["send", "sam", "one more"]).code, Some(0));
    assert!(sam.ask("read_inbox", json!({})).contains("one more"));
    sam.server.kill().unwrap();
    // The agent made no call after the result, so it may not have seen it.
    let mut sam = Client::start(&workspace, "sam", &[]);
    let mail = sam.ask("read_inbox", json!({}));
    assert!(mail.contains("one more") && !mail.contains("second form"), "{mail}");
    // The next call shows that it has the result.
    assert_eq!(sam.ask("read_inbox", json!({})), "no mail waits for you");
    assert_eq!(sam.end(), Some(0));
    assert_eq!(workspace.json(&["inbox", "sam"]), json!([]));
    up.signal("INT");
    up.code();
}

#[test]
fn mcp_client_waits_for_review() {
    let workspace = TestWorkspace::new();
    workspace.write_team(1, "review = \"human\"");
    workspace.run(&["tasks", "add", "One"]);
    let mut sam = Client::start(&workspace, "sam", &[]);
    sam.ask("claim_task", json!({ "task_id": 1 }));
    let report = json!({ "task_id": 1, "status": "completed", "result": "it is done" });
    let refusal = sam.refusal("task_update", report.clone());
    assert!(refusal.contains("it waits for review"), "{refusal}");
    assert_eq!(workspace.task(1)["status"], "in_progress");
    let approved = workspace.run(&["review", "approve"]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
    assert!(sam.ask("read_inbox", json!({})).contains("from human"));
    assert!(sam.ask("task_update", report).starts_with("completed #1"));
    assert_eq!(workspace.task(1)["result"]["reviewedBy"], "human");
}

#[test]
fn mcp_servers_claim_different_tasks_and_hold_them() {
    let workspace = TestWorkspace::with_idle_team(1);
    workspace.run(&["tasks", "add", "One"]);
    workspace.run(&["tasks", "add", "Two"]);
    let mut sam = Client::start(&workspace, "sam", &["--lease", "3s"]);
    let mut kim = Client::start(&workspace, "kim", &[]);
    std::thread::scope(|scope| {
        scope.spawn(|| sam.ask("claim_task", json!({})));
        scope.spawn(|| kim.ask("claim_task", json!({})));
    });
    let task_of = |name: &str| workspace.tasks().into_iter().find(|task| task["owner"] == name).unwrap();
    let (mine, hers) = (task_of("sam"), task_of("kim"));
    assert_ne!(mine["id"], hers["id"]);
    let expires = |task: &Value| task["claim"]["expires"].as_i64().unwrap();
    wait_until("the lease is renewed", || expires(&task_of("sam")) > expires(&mine) + 3_000);
    assert!(workspace.json(&["tasks", "claim", "--as", "ann"]).is_null());
    let release = json!({ "task_id": mine["id"], "status": "pending" });
    assert!(kim.refusal("task_update", release).contains("sam holds it"));

    assert_eq!(sam.end(), Some(0));
    let released = workspace.task(mine["id"].as_u64().unwrap());
    assert_eq!((&released["status"], released["failures"].as_u64().unwrap_or(0)), (&"pending".into(), 0), "{released}");
    signal(kim.server.id(), "TERM");
    assert_eq!(kim.server.wait().unwrap().code(), Some(0));
    assert_eq!(workspace.task(hers["id"].as_u64().unwrap())["status"], "pending");
}

#[test]
fn mcp_server_answers_wrong_messages_and_stays() {
    let workspace = TestWorkspace::with_idle_team(1);
    let mut sam = Client::start(&workspace, "sam", &[]);
    sam.send("this is no JSON {");
    sam.send(r#"{"some": "other object"}"#);
    assert_eq!(sam.receive()["error"]["code"], -32600);
    let unknown = sam.request("tools/call", &json!({ "name": "bash", "arguments": {} }));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    assert!(unknown["error"]["message"].as_str().unwrap().contains("unknown tool `bash`"), "{unknown}");
    assert_eq!(sam.request("resources/list", &json!({}))["error"]["code"], -32601);
    let refusal = sam.refusal("task_get", json!({ "task": 1 }));
    assert!(refusal.contains("unknown argument `task`"), "{refusal}");
    assert!(sam.refusal("task_get", json!({})).contains("argument `task_id` is missing"));
    assert!(sam.refusal("task_get", json!({ "task_id": 7 })).contains("#7"));
    assert!(sam.refusal("task_create", json!({ "subject": "two\nlines" })).contains("one line"));
    assert!(
        sam.refusal("task_update", json!({ "task_id": 7, "status": "done" })).contains("completed, failed, pending")
    );
    assert!(sam.ask("task_list", json!({})).starts_with("0 tasks"));
    assert_eq!(sam.end(), Some(0));
}

#[test]
fn mcp_server_refuses_names_of_members() {
    let workspace = TestWorkspace::with_idle_team(1);
    for (name, reason) in [("M1", "a member of team crew"), ("lead", "reserved"), ("a b", "not a valid name")] {
        let refused = workspace.run(&["mcp", "--as", name]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains(reason) && refused.out.is_empty(), "{refused:?}");
    }
    assert!(!workspace.join(".team/config.json").exists());
    // A client that closes stdin at once has not begun a conversation.
    assert_eq!(workspace.run(&["mcp", "--as", "sam"]).code, Some(0));
}
