//! Budgets in real processes: a spent budget ends a run with a separate exit code, and no kill resets the ledger.

use serde_json::Value;

use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

/// A model that uses 3,000 tokens for each answer, and completes a task with its first answer.
const SCRIPT: &str = r#"{
  "task": [
    { "say": "On it.", "call": [{ "tool": "task_update", "input": { "task_id": "{{task}}", "status": "completed", "result": "done" } }],
      "usage": { "input_tokens": 2950, "output_tokens": 50 } },
    { "say": "Next.", "usage": { "input_tokens": 2950, "output_tokens": 50 } }
  ]
}"#;

/// A model that takes an hour to answer.
const SLOW: &str = r#"{ "task": [{ "say": "Hm.", "delay_ms": 3600000 }] }"#;

fn workspace(script: &str, tokens: u64) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.write("script.json", script);
    workspace.write("plan.md", &(1..=8).map(|number| format!("## Task {number}\n")).collect::<String>());
    configure(&workspace, tokens);
    workspace
}

fn configure(workspace: &TestWorkspace, tokens: u64) {
    workspace.write(
        "brigade.toml",
        &format!(
            "durability = \"process\"\n[prices.\"script\"]\ninput_usd_per_mtok = 3\noutput_usd_per_mtok = 15\n\
             [teams.crew]\nplan = \"plan.md\"\nbudget = {{ tokens = {tokens} }}\nlimits = {{ output_tokens_max = 100 }}\n\
             [[teams.crew.members]]\nname = \"m1\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n"
        ),
    );
}

fn cost(workspace: &TestWorkspace) -> Value {
    workspace.json(&["cost"])
}

#[test]
fn spent_budget_exits_3_and_larger_one_continues() {
    // The first request is reserved at one token a byte: about 12,000.
    let workspace = workspace(SCRIPT, 17_000);
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.out.contains("The budget of 17000 tokens is spent"), "{run:?}");
    assert!(run.err.contains("brigade cost --reset"), "{run:?}");
    let used = cost(&workspace)["tokens"].as_u64().unwrap();
    assert!((2_000..=17_000).contains(&used) && used.is_multiple_of(1_000), "{used}");
    let tasks = workspace.tasks();
    let is_free = |task: &Value| task["status"] == "pending" && task["owner"].is_null() && task["failures"].is_null();
    assert!(tasks.iter().all(|task| task["status"] == "completed" || is_free(task)), "{tasks:?}");
    assert!(tasks.iter().any(is_free) && tasks.iter().any(|task| task["status"] == "completed"), "{tasks:?}");
    let state = workspace.state();
    assert_eq!((&state["desired_state"], &state["current_state"]), (&"pause".into(), &"pause".into()), "{state}");
    assert_eq!((&state["setBy"], &state["teammates"]["m1"]["tokens"]), (&"agent".into(), &used.into()), "{state}");

    assert_eq!(workspace.run(&["run"]).code, Some(3), "the budget stays spent in the next launch");
    assert_eq!(cost(&workspace)["tokens"], used);
    // The hint names the solution wherever the pause is shown.
    let is_told = |said: &str| said.contains("is spent") && said.contains("brigade cost --reset");
    let id = tasks.iter().find(|task| is_free(task)).unwrap()["id"].to_string();
    let why = workspace.run(&["why", &id]);
    assert!(is_told(&why.out), "{why:?}");
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the notice is printed at the launch", || is_told(&up.output_so_far()));
    let why = workspace.run(&["why", &id]);
    assert!(is_told(&why.out), "{why:?}");
    up.signal("INT");
    up.code();
    configure(&workspace, 1_000_000);
    let why = workspace.run(&["why", &id]);
    assert!(!is_told(&why.out) && why.out.contains("brigade up"), "{why:?}");
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(workspace.all_are("completed"));
    let all = cost(&workspace);
    assert!(all["tokens"].as_u64().unwrap() > used, "{all}");
    let m1 = &all["accounts"][0];
    assert_eq!((&m1["teammate"], &m1["unconfirmed"]), (&"m1".into(), &0.into()), "{all}");

    let reset = workspace.json(&["cost", "--reset"]);
    assert_eq!((&reset["tokens"], &cost(&workspace)["tokens"]), (&0.into(), &0.into()), "{reset}");
}

/// A plan gives the first task a cap below its first request. The hint of `brigade why` raises it.
#[test]
fn task_at_its_cap_waits_for_hinted_command() {
    let workspace = workspace(SCRIPT, 1_000_000);
    workspace.write("plan.md", "## Dear\ntask_tokens_max: 5000\n\n## Cheap\n");
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let statuses =
        || workspace.tasks().iter().map(|task| task["status"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(statuses(), ["pending", "completed"]);
    assert!(workspace.task(1).get("failures").is_none(), "{}", workspace.task(1));
    let list = workspace.run(&["tasks"]).out;
    assert!(list.contains("at its cap of 5,000 tokens"), "{list}");
    let why = workspace.json(&["why", "1"]);
    let reason = why["reasons"].as_array().unwrap().iter().find(|reason| reason["kind"] == "at_cap").unwrap();
    let (_, command) = reason["hint"].as_str().unwrap().split_once("`brigade ").unwrap();
    let command: Vec<&str> = command.trim_end_matches('`').split(' ').collect();
    assert_eq!(command[..4], ["tasks", "update", "1", "--tokens-max"], "{reason}");
    let refused = workspace.run(&["tasks", "claim", "1", "--as", "me"]);
    assert!(refused.code == Some(1) && refused.err.contains("reached its cap of 5000 tokens"), "{refused:?}");
    assert_eq!(workspace.run(&command).code, Some(0));
    let run = workspace.run(&["run"]);
    assert_eq!((run.code, statuses()), (Some(0), vec!["completed".to_owned(); 2]), "{run:?}");
    let tasks = cost(&workspace)["tasks"].clone();
    assert!(tasks.as_array().unwrap().iter().all(|row| row["tokens"].as_u64() >= Some(3_000)), "{tasks}");
}

#[test]
fn members_at_their_budgets_end_run_with_code_3() {
    let workspace = workspace(SCRIPT, 1_000_000);
    let config = workspace.read("brigade.toml");
    let member = |tokens: u64| format!("{config}budget = {{ tokens = {tokens} }}\n");
    workspace.write("brigade.toml", &member(17_000));
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.out.contains("the budget of 17000 tokens of m1 is spent") && run.err.contains("brigade cost --reset"));
    let used = cost(&workspace)["tokens"].as_u64().unwrap();
    assert!((2_000..=17_000).contains(&used), "{used}");
    let share = workspace.run(&["cost"]).out;
    assert!(share.contains(" % of the budget of 17,000 tokens of m1"), "{share}");
    let team = workspace.run(&["team"]).out;
    assert!(team.contains(" of 17,000"), "{team}");
    let id = workspace.tasks().iter().find(|task| task["status"] == "pending").unwrap()["id"].to_string();
    let why = workspace.run(&["why", &id]);
    assert!(why.out.contains("the budget of 17000 tokens of m1 is spent") && why.out.contains("raise the budget"));
    assert_eq!((workspace.run(&["run"]).code, cost(&workspace)["tokens"].as_u64()), (Some(3), Some(used)));
    workspace.write("brigade.toml", &member(1_000_000));
    let why = workspace.run(&["why", &id]);
    assert!(!why.out.contains("The team is paused: the budget"), "{why:?}");
    let run = workspace.run(&["run"]);
    assert!(run.code == Some(0) && workspace.all_are("completed"), "{run:?}");
}

#[test]
fn request_open_at_kill_stays_charged() {
    for has_budget in [true, false] {
        let workspace = workspace(SLOW, 100_000);
        if !has_budget {
            let config = workspace.read("brigade.toml");
            workspace.write("brigade.toml", &config.replace("budget = { tokens = 100000 }\n", ""));
        }
        let mut run = workspace.start(&["run"]);
        wait_until("a request is running", || cost(&workspace)["open_requests"] == 1);
        let refused = workspace.run(&["cost", "--reset"]);
        assert_eq!((refused.code, refused.err.contains("runs here")), (Some(4), true), "{refused:?}");
        run.signal("KILL");
        run.code();
        let killed = cost(&workspace);
        assert_eq!(
            (&killed["open_requests"], &killed["accounts"][0]["unconfirmed"]),
            (&0.into(), &1.into()),
            "{killed}"
        );
        assert!(killed["tokens"].as_u64().unwrap() > 1_000, "the request of the killed run is not counted: {killed}");
        let mut run = workspace.start(&["run"]);
        wait_until("the next launch counts the same and sends a request", || {
            let cost = cost(&workspace);
            cost["tokens"] == killed["tokens"] && cost["open_requests"] == 1
        });
        run.signal("KILL");
        run.code();
        // The outcome of a run has its own usage, not that of the killed ones.
        let before = cost(&workspace)["tokens"].as_u64().unwrap();
        workspace.write("script.json", SCRIPT);
        let outcome = workspace.json(&["run"]);
        let used = outcome["input_tokens"].as_u64().unwrap() + outcome["output_tokens"].as_u64().unwrap();
        assert_eq!(cost(&workspace)["tokens"], before + used);
        assert!(used >= 8_000, "{outcome}");
        workspace.assert_nothing_is_left_running();
    }
}
