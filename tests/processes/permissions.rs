//! Permission requests in real processes: answered from another terminal, refused after a time, withdrawn after a kill.

use serde_json::{Value, json};

use crate::testkit::process::{Process, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// A team of one member with these settings, whose model runs `touch made` and then `touch again`.
fn workspace(settings: &str) -> TestWorkspace {
    workspace_with(settings, &["touch made", "touch made", "touch again"])
}

/// A team of one member with these settings, whose model runs these commands.
fn workspace_with(settings: &str, commands: &[&str]) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    let bash = |command: &&str| json!({ "call": [{ "tool": "bash", "input": { "command": command } }] });
    let report = json!({ "call": [{ "tool": "task_update", "input": {
        "task_id": "{{task}}", "status": "completed", "result": "done"
    } }] });
    let script = json!({ "task": commands.iter().map(bash).chain([report]).collect::<Vec<_>>() });
    workspace.write("script.json", &script.to_string());
    workspace.write("plan.md", "## Make files\nMake them.\n");
    workspace.write(
        "brigade.toml",
        &format!(
            "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"ann\"\n\
             provider = \"scripted\"\nmodel = \"script.json\"\n{settings}\n"
        ),
    );
    workspace
}

/// Waits for the only open permission request.
fn wait_for_request(workspace: &TestWorkspace, run: &mut Process) -> Value {
    let mut requests = Value::Null;
    wait_until("a call waits for permission", || {
        assert!(!run.has_ended(), "{}", run.output_so_far());
        requests = workspace.json(&["permission"]);
        requests.as_array().is_some_and(|open| open.len() == 1)
    });
    requests[0].clone()
}

fn id(request: &Value) -> &str {
    request["id"].as_str().unwrap()
}

#[test]
fn call_waits_for_permission_of_person() {
    let workspace = workspace("mode = \"ask\"");
    let mut run = workspace.start(&["run", "crew"]);
    let request = wait_for_request(&workspace, &mut run);
    assert_eq!((request["from"].as_str(), request["plan"].as_str()), (Some("ann"), Some("bash: touch made")));
    let call = json!({ "tool": "bash", "kind": "command", "subject": "touch made" });
    assert_eq!(request["call"], call);
    assert!(!workspace.join("made").exists());
    let show = json!({ "question": "request", "kind": "permission", "id": id(&request) });
    let approve = json!({ "order": "approve", "kind": "permission", "id": id(&request), "digest": "not_needed" });
    assert_eq!((&request["next"][0], &request["next"][1]), (&show, &approve));
    wait_until("the team shows what it waits for", || {
        let team = workspace.json(&["team"]);
        let wait = json!({ "kind": "permission", "id": id(&request) });
        let text = format!("a person (permission {})", id(&request));
        let member = &team["members"][0];
        team["for_you"] == 1 && team["next"][0] == show && member["wait"] == wait && member["waiting_for"] == text
    });
    let made = workspace.json(&["log", "--kind", "request_made"]);
    assert_eq!((&made[0]["call"], &made[0]["request"]), (&call, &request["id"]));
    let inbox = workspace.run(&["inbox"]).out;
    assert!(inbox.contains(&format!("asks for permission {}", id(&request))), "{inbox}");
    assert!(inbox.contains("brigade permission approve") && !inbox.contains("review"), "{inbox}");
    let answer = workspace.run(&["permission", "approve", "--for-run", id(&request)]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    // The same call is made again without a question; another one is asked about.
    let second = wait_for_request(&workspace, &mut run);
    assert_eq!(second["plan"], "bash: touch again");
    assert!(workspace.join("made").exists() && !workspace.join("again").exists());
    let answer = workspace.run(&["permissions", "reject", "--feedback", "not that file"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(!workspace.join("again").exists());
    let of =
        |request: &Value| ["request_made", "request_answered"].map(|kind| json!([kind, "permission", request["id"]]));
    assert_eq!(workspace.request_events(), [of(&request), of(&second)].concat());
    let log = workspace.run(&["log", "--task", "1"]).out;
    let answered = [
        format!("to ann: approves permission {} of task #1", id(&request)),
        format!("to ann: rejects permission {} of task #1: not that file", id(&second)),
    ];
    assert!(answered.iter().all(|line| log.contains(line)), "{log}");
    let transcript = workspace.read(".team/transcripts/ann.jsonl");
    assert!(transcript.contains("Not called: the person refused it: not that file."), "{transcript}");
}

#[test]
fn cut_call_needs_digest_of_what_was_shown() {
    let script: String = (1..=82).map(|number| format!("echo {number} >> made\n")).collect();
    let workspace = workspace_with("mode = \"ask\"", &[&script]);
    let mut run = workspace.start(&["run", "crew"]);
    let request = wait_for_request(&workspace, &mut run);
    let id = id(&request);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let start = "bash: echo 1 >> made ⏎ echo 2 >> made ⏎ ";
    let rest = "more lines";
    wait_until("the timeline has the call", || run.output_so_far().contains("asks for permission"));
    for (place, text) in [
        ("list", workspace.run(&["permission"]).out),
        ("inbox", workspace.run(&["inbox"]).out),
        ("log", workspace.run(&["log"]).out),
        ("run", run.output_so_far()),
    ] {
        let text = words(&text);
        assert!(text.contains(start) && text.contains(rest), "{place}: {text}");
        assert!(!text.contains("echo 82"), "{place}: {text}");
    }
    for arguments in
        [&["permission", "approve", id][..], &["permission", "approve", id, "--digest", "0123456789abcdef"]]
    {
        let refused = workspace.run(arguments);
        let text = words(&refused.err);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(text.contains("does not show") && text.contains("more lines"), "{text}");
        assert!(text.contains(&format!("`brigade permission show {id}`")), "{text}");
    }
    assert!(!workspace.join("made").exists());
    let shown = workspace.run(&["permission", "show"]);
    assert!((2..=82).all(|number| shown.out.contains(&format!("  echo {number} >> made\n"))), "{}", shown.out);
    let digest = shown.out.lines().find_map(|line| line.strip_prefix("digest ")).unwrap().to_owned();
    assert!(shown.err.contains(&format!("brigade permission approve {id} --digest {digest}")), "{shown:?}");
    assert_eq!(request["digest"], digest.as_str());
    let answer = workspace.run(&["permission", "approve", id, "--digest", &digest]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.read("made").ends_with("82\n"));
}

#[test]
fn approval_of_exchanged_request_allows_nothing() {
    for is_exchanged_back in [false, true] {
        let workspace = workspace("mode = \"ask\"");
        let mut run = workspace.start(&["run", "crew"]);
        let request = wait_for_request(&workspace, &mut run);
        let exchange = |from: &str, to: &str| {
            let requests = workspace.read(".team/requests.json");
            assert!(requests.contains(from), "{requests}");
            workspace.write(".team/requests.json", &requests.replace(from, to));
        };
        exchange("bash: touch made", "bash: touch fine");
        let shown = workspace.json(&["permission", "show"]);
        assert_eq!(shown["plan"], "bash: touch fine");
        let digest = shown["digest"].as_str().unwrap();
        assert_ne!(request["digest"], digest);
        if is_exchanged_back {
            exchange("bash: touch fine", "bash: touch made");
        }
        let answer = workspace.run(&["permission", "approve", id(&request), "--digest", digest]);
        if is_exchanged_back {
            assert!(answer.code == Some(1) && answer.err.contains("the digest is that of another call"), "{answer:?}");
            assert_eq!(workspace.run(&["permission", "reject"]).code, Some(0));
        }
        let reason = "the approval is for another call: its digest is not that of this call";
        let transcript = || workspace.read(".team/transcripts/ann.jsonl");
        wait_until("the call is refused", || transcript().contains("Not called:"));
        assert_eq!(transcript().contains(reason), !is_exchanged_back, "{}", transcript());
        assert!(!workspace.join("made").exists());
        run.kill();
    }
}

#[test]
fn rejection_for_run_refuses_same_call() {
    let workspace = workspace("mode = \"ask\"");
    let mut run = workspace.start(&["run", "crew"]);
    let request = wait_for_request(&workspace, &mut run);
    assert_eq!(request["plan"], "bash: touch made");
    let answer = workspace.run(&["permissions", "reject", "--for-run", "--feedback", "not that file"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    // The same call is refused without a question; another one is asked about.
    let second = wait_for_request(&workspace, &mut run);
    assert_eq!(second["plan"], "bash: touch again");
    let transcript = workspace.read(".team/transcripts/ann.jsonl");
    let refusals = transcript.matches("Not called: the person refused it: not that file.").count();
    assert_eq!(refusals, 2, "{transcript}");
    assert_eq!(workspace.run(&["permissions", "approve"]).code, Some(0));
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.join("again").exists() && !workspace.join("made").exists());
}

#[test]
fn permission_without_answer_is_refused() {
    for (settings, reason) in [
        ("[teams.crew.limits]\npermission_timeout_ms = 300", "no person answered in time"),
        ("[teams.crew.limits]\npermission_timeout_ms = 0", "this team does not ask the person"),
    ] {
        let workspace = workspace(&format!("mode = \"accept-edits\"\n{settings}"));
        let mut run = workspace.start(&["run", "crew"]);
        run.code();
        assert!(!workspace.join("made").exists());
        let transcript = workspace.read(".team/transcripts/ann.jsonl");
        assert!(transcript.contains(reason), "{transcript}");
        assert_eq!(workspace.json(&["permission"]), json!([]));
    }
}

#[test]
fn rules_decide_without_person() {
    let workspace = workspace("mode = \"ask\"\nallow = [\"bash(touch:*)\"]\ndeny = [\"bash(touch again)\"]");
    let mut run = workspace.start(&["run", "crew"]);
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.join("made").exists() && !workspace.join("again").exists());
    let reason = "the rule `bash(touch again)` denies it: `touch` is word 1 of `touch again`";
    assert!(workspace.read(".team/transcripts/ann.jsonl").contains(&format!("Not called: {reason}.")));
    let not_made: Vec<Value> = workspace.events().into_iter().filter(|event| event["not_made"] == true).collect();
    assert_eq!(not_made.len(), 1, "{not_made:?}");
    assert_eq!((&not_made[0]["tool"], &not_made[0]["reason"]), (&json!("bash"), &json!(reason)));
    // The log breaks long lines.
    let log = workspace.run(&["log"]).out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(log.contains(&format!("bash not called: {reason}")), "{log}");
}

#[test]
fn rule_about_file_holds_for_link_to_it() {
    let workspace = workspace("mode = \"accept-edits\"\ndeny = [\"write_file(keys/*)\"]");
    let write = |path: &str| json!({ "call": [{ "tool": "write_file", "input": { "path": path, "content": "x" } }] });
    let script =
        json!({ "task": [write("link/new"), write("keys/../keys/new"), write("other/new"), { "say": "Done." }] });
    workspace.write("script.json", &script.to_string());
    std::fs::create_dir(workspace.join("keys")).unwrap();
    std::os::unix::fs::symlink("keys", workspace.join("link")).unwrap();
    workspace.start(&["run", "crew"]).code();
    assert!(workspace.join("other/new").exists() && !workspace.join("keys/new").exists());
    let transcript = workspace.read(".team/transcripts/ann.jsonl");
    assert_eq!(transcript.matches("the rule `write_file(keys/*)` denies it").count(), 2, "{transcript}");
}

#[test]
fn permission_request_is_withdrawn_after_kill() {
    let workspace = workspace("mode = \"ask\"");
    let mut run = workspace.start(&["run", "crew"]);
    let first = wait_for_request(&workspace, &mut run);
    run.kill();
    for answer in ["approve", "reject"] {
        let early = workspace.run(&["permission", answer, id(&first)]);
        assert!(early.code == Some(1) && early.err.contains("no team runs"), "{early:?}");
    }
    assert_eq!(workspace.json(&["permission"]), json!([]), "no call waits for an answer");
    for command in [&["permission", "show", id(&first)][..], &["inbox"]] {
        let shown = workspace.run(command);
        assert!(shown.out.contains("rejected by system"), "{shown:?}");
        assert!(!shown.out.contains("waits for you") && !shown.out.contains("permission approve"), "{shown:?}");
    }
    assert_eq!(workspace.json(&["team"])["for_you"], 0);
    let mut run = workspace.start(&["run", "crew"]);
    let mut second = Value::Null;
    wait_until("the call asks again", || {
        second = wait_for_request(&workspace, &mut run);
        id(&second) != id(&first)
    });
    let late = workspace.run(&["permission", "approve", id(&first)]);
    assert!(late.code == Some(1) && late.err.contains("already answered"), "{late:?}");
    run.signal("INT");
    run.code();
    assert_eq!(workspace.json(&["permission"]), json!([]), "a stop withdraws it");
}
