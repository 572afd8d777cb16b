//! Teammates that are not in the config or do not run all the time. Spawned teammates survive kills and stops with role, instructions
//! and provider, and get their mail. A teammate that ended while idle returns for a task.

use std::fs;

use serde_json::{Value, json};

use crate::testkit::process::{Process, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// The script of the lead, which spawns two teammates, and of these teammates. `work` is their answer to a task.
fn script(work: &Value) -> Value {
    let spawn = |name: &str, role: &str| {
        let input = json!({ "name": name, "role": role, "prompt": format!("You are the {role}: look around.") });
        json!({ "tool": "spawn_teammate", "input": input })
    };
    let task =
        json!({ "tool": "task_create", "input": { "subject": "Build", "description": "", "requires": ["builder"] } });
    json!({
        "lead.goal": [{ "call": [spawn("ada", "builder"), spawn("ben", "tester"), task] }, { "say": "Planned." }],
        "mail": [{ "say": "I have read it." }],
        "task": work,
        "report": [{ "say": "It is built." }],
    })
}

/// The answer that completes a task.
fn completion() -> Value {
    json!([{ "call": [{
        "tool": "task_update",
        "input": { "task_id": "{{task}}", "status": "completed", "result": "done" },
    }] }])
}

fn workspace(work: &Value) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.write("script.json", &script(work).to_string());
    workspace.write(
        "brigade.toml",
        "durability = \"process\"\n[teams.crew.lead]\nprovider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    workspace
}

fn kill(process: &mut Process, workspace: &TestWorkspace) {
    process.signal("KILL");
    process.code();
    workspace.assert_nothing_is_left_running();
}

/// The members that `brigade team` shows: name, role and phase.
fn members(workspace: &TestWorkspace) -> Vec<[String; 3]> {
    let team = workspace.json(&["team"]);
    let field = |member: &Value, name: &str| member[name].as_str().unwrap_or_default().to_owned();
    let row = |member: &Value| ["name", "role", "phase"].map(|name| field(member, name));
    team["members"].as_array().unwrap().iter().map(row).collect()
}

fn names(workspace: &TestWorkspace) -> Vec<String> {
    members(workspace).into_iter().map(|[name, _, _]| name).collect()
}

fn transcript(workspace: &TestWorkspace, name: &str) -> String {
    fs::read_to_string(workspace.join(&format!(".team/transcripts/{name}.jsonl"))).unwrap_or_default()
}

/// The number of times that a teammate was given its instructions.
fn times_instructed(workspace: &TestWorkspace, name: &str) -> usize {
    transcript(workspace, name).matches("[message] from lead: You are the ").count()
}

#[test]
fn spawned_teammates_survive_kills_and_get_mail() {
    let endless = json!([{ "call": [{ "tool": "bash", "input": { "command": "echo ran >> ran.txt; sleep 300" } }] }]);
    let workspace = workspace(&endless);
    let refused = workspace.run(&["send", "all", "hello"]);
    assert!(refused.code == Some(2) && refused.err.contains("the team has no teammates"), "{refused:?}");
    let mut up = workspace.start(&["up", "crew", "Build it", "--headless"]);
    wait_until("the command runs", || workspace.join("ran.txt").exists());
    wait_until("both have read their instructions", || {
        ["ada", "ben"].iter().all(|name| times_instructed(&workspace, name) == 1)
    });
    kill(&mut up, &workspace);
    assert_eq!(names(&workspace), ["ada", "ben"], "a killed team has the same members");

    workspace.write("script.json", &script(&completion()).to_string());
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the task is done", || workspace.task(1)["status"] == "completed");
    assert_eq!(workspace.task(1)["owner"], "ada", "the role survives");
    let broadcast = workspace.run(&["send", "all", "hello everyone"]);
    assert!(broadcast.code == Some(0) && broadcast.out.contains("all 2 members"), "{broadcast:?}");
    wait_until("both have read it", || {
        ["ada", "ben"].iter().all(|name| transcript(&workspace, name).contains("from human: hello everyone"))
    });
    for name in ["ada", "ben"] {
        assert_eq!(times_instructed(&workspace, name), 1, "the instructions of {name} ran again");
    }
    let roster: Value = serde_json::from_str(&workspace.read(".team/config.json")).unwrap();
    let ada = roster["members"].as_array().unwrap().iter().find(|row| row["name"] == "ada").unwrap();
    assert_eq!(
        (&ada["role"], &ada["startedBy"], &ada["provider"], &ada["prompt"]),
        (&"builder".into(), &"brigade".into(), &"scripted".into(), &"You are the builder: look around.".into())
    );

    // A program that loaded the roster before the spawns writes its copy back.
    workspace.write(".team/config.json", r#"{"team_name": "crew", "members": []}"#);
    wait_until("both rows are in the roster again", || names(&workspace) == ["ada", "ben"]);

    // A teammate that was shut down on request stays down. The other one is started again.
    let stopped = workspace.run(&["stop", "ben"]);
    assert!(stopped.code == Some(0) && stopped.out.contains("starts again if the lead spawns it"), "{stopped:?}");
    wait_until("the roster says that ben was shut down", || {
        let roster: Value = serde_json::from_str(&workspace.read(".team/config.json")).unwrap_or_default();
        let rows = roster["members"].as_array().cloned().unwrap_or_default();
        rows.iter().any(|row| row["name"] == "ben" && row["status"] == "shutdown" && row["provider"].is_null())
    });
    kill(&mut up, &workspace);
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("only ada is there again", || {
        let members = members(&workspace);
        members.len() == 1 && members[0][0] == "ada" && members[0][2] == "idle"
    });
    assert!(workspace.run(&["send", "ben", "still there?"]).code != Some(0), "ben is no member any more");
    up.signal("INT");
    assert_eq!(up.code(), Some(0), "{}", up.output_so_far());
    assert_eq!(names(&workspace), ["ada"], "a stopped team has the same members");
}

#[test]
fn spawned_teammates_survive_kill_at_any_moment() {
    // The team is killed after a growing number of events, so that the kill falls before, into and after the spawns.
    for events in [1, 3, 5, 7, 9, 12, 15] {
        let workspace = workspace(&completion());
        let mut up = workspace.start(&["up", "crew", "Build it", "--headless"]);
        wait_until("some events are logged", || workspace.events().len() >= events);
        kill(&mut up, &workspace);
        let before = names(&workspace);
        let mut up = workspace.start(&["up", "--headless"]);
        wait_until("the members are there", || {
            let running = members(&workspace);
            before.iter().all(|name| running.iter().any(|[other, _, phase]| other == name && phase != "stopped"))
        });
        wait_until("each member has its instructions", || {
            names(&workspace).iter().all(|name| times_instructed(&workspace, name) == 1)
        });
        kill(&mut up, &workspace);
        assert!(before.iter().all(|name| names(&workspace).contains(name)), "after {events} events");
    }
}

#[test]
fn idle_teammate_ends_and_returns_for_task() {
    let workspace = TestWorkspace::new();
    workspace.write_team(2, "limits = { idle_shutdown_ms = 300 }");
    let mut up = workspace.start(&["up", "--headless"]);
    let rows = || workspace.json(&["team"])["members"].as_array().unwrap().clone();
    let have_ended = || rows().iter().all(|row| row["phase"] == "stopped" && !row["waiting_for"].is_null());
    wait_until("both teammates have ended", have_ended);
    assert_eq!(rows()[0]["waiting_for"], "mail or a claimable task");
    let task = ["tasks", "add", "One", "--description", "```sh\ntrue\n```"];
    assert_eq!(workspace.run(&task).code, Some(0));
    wait_until("the task is completed", || workspace.all_are("completed"));
    wait_until("its teammate has ended again", have_ended);
    let output = up.output_so_far();
    assert_eq!(output.matches("joins as worker").count(), 1, "{output}");
    assert!(output.contains("stopped: idle for 300 ms"), "{output}");
    up.signal("INT");
    assert_eq!(up.code(), Some(0), "{}", up.output_so_far());
}
