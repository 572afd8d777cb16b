//! Budgets over real processes: spent they end a run with their own exit code, and no kill gives anything back.

use serde_json::Value;

use super::support::{Place, wait_until};

/// A model that uses 1,000 tokens for each answer, and completes a task with its first one.
const SCRIPT: &str = r#"{
  "task": [
    { "say": "On it.", "call": [{ "tool": "task_update", "input": { "task_id": "{{task}}", "status": "completed", "result": "done" } }],
      "usage": { "input_tokens": 950, "output_tokens": 50 } },
    { "say": "Next.", "usage": { "input_tokens": 950, "output_tokens": 50 } }
  ]
}"#;

/// One that does not answer for an hour.
const SLOW: &str = r#"{ "task": [{ "say": "Hm.", "delay_ms": 3600000 }] }"#;

fn place(script: &str, tokens: u64) -> Place {
    let place = Place::new();
    place.write("script.json", script);
    place.write("plan.md", &(1..=8).map(|number| format!("## Task {number}\n")).collect::<String>());
    configure(&place, tokens);
    place
}

fn configure(place: &Place, tokens: u64) {
    place.write(
        "brigade.toml",
        &format!(
            "durability = \"process\"\n[prices.\"script\"]\ninput_usd_per_mtok = 3\noutput_usd_per_mtok = 15\n\
             [teams.crew]\nplan = \"plan.md\"\nbudget = {{ tokens = {tokens} }}\nlimits = {{ output_tokens_max = 100 }}\n\
             [[teams.crew.members]]\nname = \"m1\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n"
        ),
    );
}

fn cost(place: &Place) -> Value {
    place.json(&["cost"])
}

#[test]
fn a_spent_budget_ends_a_run_with_its_own_code_and_a_larger_one_goes_on() {
    // Besides what is used, it has to hold the most that one more request can use.
    let place = place(SCRIPT, 12_000);
    let run = place.run(&["run"]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.out.contains("The budget of 12000 tokens is spent"), "{run:?}");
    assert!(run.err.contains("brigade cost --reset"), "{run:?}");
    let used = cost(&place)["tokens"].as_u64().unwrap();
    assert!((4_000..=12_000).contains(&used) && used.is_multiple_of(1_000), "{used}");
    let tasks = place.tasks();
    let is_free = |task: &Value| task["status"] == "pending" && task["owner"].is_null() && task["failures"].is_null();
    assert!(tasks.iter().all(|task| task["status"] == "completed" || is_free(task)), "{tasks:?}");
    assert!(tasks.iter().any(is_free) && tasks.iter().any(|task| task["status"] == "completed"), "{tasks:?}");
    let state = place.state();
    assert_eq!((&state["desired_state"], &state["current_state"]), (&"pause".into(), &"pause".into()), "{state}");
    assert_eq!((&state["setBy"], &state["teammates"]["m1"]["tokens"]), (&"agent".into(), &used.into()), "{state}");

    assert_eq!(place.run(&["run"]).code, Some(3), "the same budget is spent in the next launch too");
    assert_eq!(cost(&place)["tokens"], used);
    // Nobody is sent in a circle: what helps is said wherever the pause is.
    let is_told = |said: &str| said.contains("is spent") && said.contains("brigade cost --reset");
    let id = tasks.iter().find(|task| is_free(task)).unwrap()["id"].to_string();
    let why = place.run(&["why", &id]);
    assert!(is_told(&why.out), "{why:?}");
    let mut up = place.start(&["up", "--headless"]);
    wait_until("it is said at the launch", || is_told(&up.said()));
    let why = place.run(&["why", &id]);
    assert!(is_told(&why.out), "{why:?}");
    up.signal("INT");
    up.code();
    configure(&place, 1_000_000);
    let why = place.run(&["why", &id]);
    assert!(!is_told(&why.out) && why.out.contains("brigade up"), "{why:?}");
    let run = place.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(place.all_are("completed"));
    let all = cost(&place);
    assert!(all["tokens"].as_u64().unwrap() > used, "{all}");
    let m1 = &all["accounts"][0];
    assert_eq!((&m1["teammate"], &m1["unconfirmed"]), (&"m1".into(), &0.into()), "{all}");

    let reset = place.json(&["cost", "--reset"]);
    assert_eq!((&reset["tokens"], &cost(&place)["tokens"]), (&0.into(), &0.into()), "{reset}");
}

#[test]
fn a_kill_in_the_middle_of_a_request_gives_nothing_back() {
    let place = place(SLOW, 100_000);
    let mut run = place.start(&["run"]);
    wait_until("a request is under way", || cost(&place)["open_requests"] == 1);
    let refused = place.run(&["cost", "--reset"]);
    assert_eq!((refused.code, refused.err.contains("runs in this workspace")), (Some(4), true), "{refused:?}");
    run.signal("KILL");
    run.code();
    let mut run = place.start(&["run"]);
    wait_until("the next launch has counted it", || cost(&place)["accounts"][0]["unconfirmed"] == 1);
    let cost = cost(&place);
    assert!(cost["tokens"].as_u64().unwrap() > 1_000, "the request that was killed counts: {cost}");
    run.signal("KILL");
    run.code();
    place.assert_nothing_is_left_running();
}
