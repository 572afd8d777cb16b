//! A lead that is killed and launched again. The same teammate continues its task, and its messages and usage stay.
//! Open requests stay open, and no call is repeated without notice. The replayed log of each run matches the board.

use std::fs;

use serde_json::{Value, json};

use crate::testkit::process::{Process, wait_until};
use crate::testkit::workspace::TestWorkspace;

fn workspace(script: &Value, plan: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.write("script.json", &script.to_string());
    workspace.write("plan.md", plan);
    workspace.write(
        "brigade.toml",
        "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n\
         [[teams.crew.members]]\nname = \"m1\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    workspace
}

fn kill(process: &mut Process, workspace: &TestWorkspace) {
    process.signal("KILL");
    process.code();
    workspace.assert_nothing_is_left_running();
}

fn usage() -> Value {
    json!({ "input_tokens": 900, "output_tokens": 100 })
}

fn complete() -> Value {
    json!({ "call": [{ "tool": "task_update", "input": { "task_id": "{{task}}", "status": "completed", "result": "done" } }] })
}

/// The fields of a task that people see on the board and in a replay.
fn visible_fields(tasks: &Value) -> Vec<Value> {
    let fields = ["id", "subject", "status", "owner", "blockedBy", "attempt", "failures", "priority"];
    let row = |task: &Value| fields.iter().map(|field| task.get(field).cloned().unwrap_or_default()).collect();
    tasks.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn killed_teammate_resumes_and_repeats_no_call() {
    let stuck = json!({ "task": [
        { "call": [{ "tool": "todo", "input": { "content": "look\nleap" } }], "usage": usage() },
        { "call": [{ "tool": "bash", "input": { "command": "echo ran >> ran.txt; sleep 300" } },
                   { "tool": "bash", "input": { "command": "echo never >> ran.txt" } }], "usage": usage() },
    ] });
    let workspace = workspace(&stuck, "## First\n\n## Second\nafter: First\n");
    let mut run = workspace.start(&["up", "--headless"]);
    wait_until("the command runs", || fs::read_to_string(workspace.join("ran.txt")).is_ok_and(|text| text == "ran\n"));
    // A person works on the board in the meantime; the lead sees it.
    assert_eq!(workspace.run(&["tasks", "add", "By hand", "--priority", "-5"]).code, Some(0));
    let created = || workspace.json(&["log", "--kind", "task_created"]).as_array().unwrap().len();
    wait_until("the event is logged", || created() == 3);
    let is_replayed = |board: &Value| visible_fields(&workspace.json(&["replay"])["tasks"]) == visible_fields(board);
    wait_until("the current state is logged", || is_replayed(&workspace.json(&["tasks"])));
    let spent = workspace.json(&["cost"])["tokens"].as_u64().unwrap();
    let transcript = workspace.read(".team/transcripts/m1.jsonl");
    kill(&mut run, &workspace);

    let killed = workspace.json(&["replay"]);
    let m1 = &killed["team"]["members"][0];
    assert_eq!(
        (&m1["name"], &m1["phase"], &m1["task"], &m1["attempt"]),
        (&"m1".into(), &"work".into(), &1.into(), &1.into())
    );
    assert_eq!((&killed["team"]["running"], &killed["unknown"]), (&true.into(), &json!([])), "the log has no end");

    workspace.write(
        "script.json",
        &json!({ "task": [{ "call": [{ "tool": "todo" }], "usage": usage() }, complete()] }).to_string(),
    );
    let mut run = workspace.start(&["up", "--headless"]);
    wait_until("all tasks are done", || workspace.tasks().len() == 3 && workspace.all_are("completed"));
    assert_eq!(workspace.read("ran.txt"), "ran\n", "the interrupted call or the next one was repeated");
    let task = workspace.task(1);
    assert_eq!(
        (&task["owner"], &task["attempt"], task["failures"].as_u64()),
        (&"m1".into(), &2.into(), None),
        "{task}"
    );
    let after = workspace.read(".team/transcripts/m1.jsonl");
    let behind = after.strip_prefix(&transcript).expect("the transcript continues at the same place");
    let first = behind.lines().next().unwrap();
    assert!(
        first.contains("Interrupted: ") && first.contains("is not known") && first.contains("Not called: "),
        "{first}"
    );
    assert!(behind.contains(r#""content":"look\nleap""#), "its list of steps is missing: {behind}");
    run.signal("INT");
    assert_eq!(run.code(), Some(0), "nothing is pending: {}", run.output_so_far());
    let now = workspace.json(&["cost"])["tokens"].as_u64().unwrap();
    assert!(spent >= 2000 && now >= spent + 3000, "the usage did not grow from {spent}: {now}");

    // The replayed log of the whole run matches the board and the team.
    let ended = workspace.json(&["replay"]);
    assert_eq!(visible_fields(&ended["tasks"]), visible_fields(&workspace.json(&["tasks"])));
    let (m1, said) = (&ended["team"]["members"][0], &workspace.state()["teammates"]["m1"]);
    for field in ["role", "phase", "task", "tokens", "cost_usd"] {
        assert_eq!(m1[field], said[field], "{field}");
    }
    assert_eq!((&ended["unknown"], &ended["team"]["running"]), (&json!([]), &false.into()));
    let mut before = workspace.json(&["replay", "--run", "2"]);
    before["run"]["run"] = 1.into();
    assert_eq!(before, killed, "the log of the earlier run changed");
    let runs = workspace.json(&["log", "--runs"]);
    assert_eq!((runs.as_array().unwrap().len(), &runs[1]["outcome"]), (2, &"it was killed".into()), "{runs}");
    let claims = workspace.json(&["log", "--run", "all", "--task", "1", "--kind", "task_claimed"]);
    assert_eq!(claims.as_array().unwrap().len(), 2, "{claims}");
}

#[test]
fn pending_plan_and_question_survive_kill() {
    let plan = json!({ "plan": "1. look 2. leap" });
    let ask = json!({ "to": "human", "content": "Which way?" });
    let workspace = workspace(
        &json!({
            "task": [
                { "call": [{ "tool": "send_message", "input": ask }, { "tool": "plan_approval", "input": plan }], "usage": usage() },
                { "say": "I wait.", "usage": usage() },
            ],
            "mail": [{ "call": [{ "tool": "task_update", "input": { "task_id": 1, "status": "completed", "result": "done" } }] },
                  { "say": "Done." }],
        }),
        "## First\n",
    );
    let config = std::fs::read_to_string(workspace.path().join("brigade.toml")).unwrap();
    workspace.write("brigade.toml", &format!("{config}plan_first = true\n"));
    let waits = || workspace.json(&["team"])["members"][0]["waiting_for"].as_str().unwrap_or_default().to_owned();
    let requests = || workspace.json(&["cost"])["tokens"].clone();
    let mut run = workspace.start(&["up", "--headless"]);
    let turns = || workspace.json(&["log", "--kind", "turn_finished"]).as_array().unwrap().len();
    wait_until("the plan waits", || turns() == 2 && waits().starts_with("a person (plan "));
    let (plans, asked) = (workspace.json(&["plan"]), requests());
    kill(&mut run, &workspace);
    assert_eq!(workspace.json(&["plan"]), plans, "without a team the plan is not shown");
    assert!(workspace.run(&["inbox", "human"]).out.contains("Which way?"));

    let mut run = workspace.start(&["up", "--headless"]);
    wait_until("the request waits again", || {
        workspace.task(1)["attempt"] == 2 && waits().starts_with("a person (plan ")
    });
    assert!(
        run.output_so_far().contains("brigade plan"),
        "the launch does not name the waiting plan: {}",
        run.output_so_far()
    );
    assert_eq!((workspace.json(&["plan"]), requests()), (plans, asked), "a waiting plan makes requests");
    assert!(workspace.run(&["inbox", "human"]).out.contains("Which way?"));
    assert_eq!(workspace.run(&["plan", "approve"]).code, Some(0));
    wait_until("the team continues", || workspace.task(1)["status"] == "completed");
    assert_eq!((&workspace.task(1)["owner"], workspace.json(&["plan"])), (&"m1".into(), json!([])));
    kill(&mut run, &workspace);
}
