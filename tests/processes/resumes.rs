//! A lead that is killed and launched again: the same teammate goes on with its task, what it was told and spent stays, what waits for
//! the person waits on, no call is made twice unasked. And the log of each run, replayed, says what there was.

use std::fs;

use serde_json::{Value, json};

use super::support::{Place, Process, wait_until};

fn place(script: &Value, plan: &str) -> Place {
    let place = Place::new();
    place.write("script.json", &script.to_string());
    place.write("plan.md", plan);
    place.write(
        "brigade.toml",
        "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n\
         [[teams.crew.members]]\nname = \"m1\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    place
}

fn kill(process: &mut Process, place: &Place) {
    process.signal("KILL");
    process.code();
    place.assert_nothing_is_left_running();
}

fn usage() -> Value {
    json!({ "input_tokens": 900, "output_tokens": 100 })
}

fn complete() -> Value {
    json!({ "call": [{ "tool": "task_update", "input": { "task_id": "{{task}}", "status": "completed", "result": "done" } }] })
}

/// What people see of a task on board and in a replay.
fn shown(tasks: &Value) -> Vec<Value> {
    let fields = ["id", "subject", "status", "owner", "blockedBy", "attempt", "failures", "priority"];
    let row = |task: &Value| fields.iter().map(|field| task.get(field).cloned().unwrap_or_default()).collect();
    tasks.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn after_a_kill_the_same_teammate_goes_on_and_no_call_is_made_twice() {
    let stuck = json!({ "task": [
        { "call": [{ "tool": "todo", "input": { "content": "look\nleap" } }], "usage": usage() },
        { "call": [{ "tool": "bash", "input": { "command": "echo ran >> ran.txt; sleep 300" } },
                   { "tool": "bash", "input": { "command": "echo never >> ran.txt" } }], "usage": usage() },
    ] });
    let place = place(&stuck, "## First\n\n## Second\nafter: First\n");
    let mut run = place.start(&["up", "--headless"]);
    wait_until("the command runs", || fs::read_to_string(place.join("ran.txt")).is_ok_and(|text| text == "ran\n"));
    // Somebody else works on the board meanwhile; the lead sees it.
    assert_eq!(place.run(&["tasks", "add", "By hand", "--priority", "-5"]).code, Some(0));
    let created = || place.json(&["log", "--kind", "task_created"]).as_array().unwrap().len();
    wait_until("the log tells of it", || created() == 3);
    let told = |board: &Value| shown(&place.json(&["replay"])["tasks"]) == shown(board);
    wait_until("the log says how it stands", || told(&place.json(&["tasks"])));
    let spent = place.json(&["cost"])["tokens"].as_u64().unwrap();
    let transcript = place.read(".team/transcripts/m1.jsonl");
    kill(&mut run, &place);

    let killed = place.json(&["replay"]);
    let m1 = &killed["team"]["members"][0];
    assert_eq!(
        (&m1["name"], &m1["phase"], &m1["task"], &m1["attempt"]),
        (&"m1".into(), &"work".into(), &1.into(), &1.into())
    );
    assert_eq!(
        (&killed["team"]["running"], &killed["unknown"]),
        (&true.into(), &json!([])),
        "nobody said that it ended"
    );

    place.write(
        "script.json",
        &json!({ "task": [{ "call": [{ "tool": "todo" }], "usage": usage() }, complete()] }).to_string(),
    );
    let mut run = place.start(&["up", "--headless"]);
    wait_until("all is done", || place.tasks().len() == 3 && place.all_are("completed"));
    assert_eq!(place.read("ran.txt"), "ran\n", "neither the call that was begun nor the one behind it was made");
    let task = place.task(1);
    assert_eq!(
        (&task["owner"], &task["attempt"], task["failures"].as_u64()),
        (&"m1".into(), &2.into(), None),
        "{task}"
    );
    let after = place.read(".team/transcripts/m1.jsonl");
    let behind = after.strip_prefix(&transcript).expect("the transcript goes on where it was");
    let first = behind.lines().next().unwrap();
    assert!(
        first.contains("Interrupted: ") && first.contains("is not known") && first.contains("Not called: "),
        "{first}"
    );
    assert!(behind.contains(r#""content":"look\nleap""#), "its list of steps: {behind}");
    run.signal("INT");
    assert_eq!(run.code(), Some(130));
    let now = place.json(&["cost"])["tokens"].as_u64().unwrap();
    assert!(spent >= 2000 && now >= spent + 3000, "{spent} and then {now}");

    // The log of the whole run ends as board and team did, whoever replays it.
    let ended = place.json(&["replay"]);
    assert_eq!(shown(&ended["tasks"]), shown(&place.json(&["tasks"])));
    let (m1, said) = (&ended["team"]["members"][0], &place.state()["teammates"]["m1"]);
    for field in ["role", "phase", "task", "tokens", "cost_usd"] {
        assert_eq!(m1[field], said[field], "{field}");
    }
    assert_eq!((&ended["unknown"], &ended["team"]["running"]), (&json!([]), &false.into()));
    let mut before = place.json(&["replay", "--run", "2"]);
    before["run"]["run"] = 1.into();
    assert_eq!(before, killed, "the run before is kept as it was");
    let runs = place.json(&["log", "--runs"]);
    assert_eq!((runs.as_array().unwrap().len(), &runs[1]["outcome"]), (2, &"it was killed".into()), "{runs}");
    let claims = place.json(&["log", "--run", "all", "--task", "1", "--kind", "task_claimed"]);
    assert_eq!(claims.as_array().unwrap().len(), 2, "{claims}");
}

#[test]
fn a_plan_and_a_question_wait_for_their_answers_over_a_kill() {
    let plan = json!({ "plan": "1. look 2. leap" });
    let ask = json!({ "to": "human", "content": "Which way?" });
    let place = place(
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
    let waits = || place.json(&["team"])["members"][0]["waiting_for"].as_str().unwrap_or_default().to_owned();
    let requests = || place.json(&["cost"])["tokens"].clone();
    let mut run = place.start(&["up", "--headless"]);
    let turns = || place.json(&["log", "--kind", "turn_finished"]).as_array().unwrap().len();
    wait_until("it waits", || turns() == 2 && waits().starts_with("a person (plan "));
    let (plans, asked) = (place.json(&["plan"]), requests());
    kill(&mut run, &place);
    assert_eq!(place.json(&["plan"]), plans, "while no team runs it can be shown and answered");
    assert!(place.run(&["inbox", "human"]).out.contains("Which way?"));

    let mut run = place.start(&["up", "--headless"]);
    wait_until("it waits again", || place.task(1)["attempt"] == 2 && waits().starts_with("a person (plan "));
    assert!(run.said().contains("brigade plan"), "who launches it is told what waits: {}", run.said());
    assert_eq!((place.json(&["plan"]), requests()), (plans, asked), "waiting on asks no model");
    assert!(place.run(&["inbox", "human"]).out.contains("Which way?"));
    assert_eq!(place.run(&["plan", "approve"]).code, Some(0));
    wait_until("it goes on", || place.task(1)["status"] == "completed");
    assert_eq!((&place.task(1)["owner"], place.json(&["plan"])), (&"m1".into(), json!([])));
    kill(&mut run, &place);
}
