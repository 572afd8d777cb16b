//! Reviews and plans over real processes: what waits for a person is answered from another terminal, and outlives a kill.

use std::fs;

use serde_json::{Value, json};

use super::support::{Place, Process, git, wait_until};

/// A repository with a team of two that a person reviews, each task in a worktree of its own.
fn reviewed() -> Place {
    let place = Place::with_team(
        2,
        "## Write\nverify: grep -q line new.txt && echo it is there\n```sh\necho line > new.txt\n```\n",
    );
    place.write_team(2, "plan = \"plan.md\"\nisolation = \"worktree\"\nreview = \"human\"");
    place.write(".gitignore", ".tasks/\n.team/\nagent_state.json\nsaid-*\n");
    git(&place, &["init", "-q", "-b", "main", "."]);
    git(&place, &["add", "-A"]);
    git(&place, &["commit", "-q", "-m", "Begin"]);
    place
}

/// The only request of this kind that waits, once there is one.
fn waiting(place: &Place, kind: &str, run: &mut Process) -> Value {
    let mut found = Value::Null;
    wait_until("somebody asks", || {
        assert!(!run.has_ended(), "{}", run.said());
        found = place.json(&[kind]);
        found.as_array().is_some_and(|open| open.len() == 1)
    });
    found[0].clone()
}

#[test]
fn what_a_person_reviews_is_merged_once_it_is_approved() {
    let place = reviewed();
    let mut run = place.start(&["run", "crew"]);
    let review = waiting(&place, "review", &mut run);
    let text = review["plan"].as_str().unwrap();
    assert!(text.contains("exit status 0") && text.contains("it is there"), "{text}");
    assert!(text.contains("git diff main...brigade/crew/task-1"), "{text}");
    assert!(git(&place, &["diff", "main...brigade/crew/task-1"]).contains("+line"));
    assert!(!place.join("new.txt").exists());
    let holder = place.task(1)["owner"].clone();
    let early = place.run(&["tasks", "complete", "1", "--as", holder.as_str().unwrap(), "--attempt", "1"]);
    assert_eq!(early.code, Some(1), "{early:?}");
    assert!(!place.all_are("completed"), "{early:?}");

    // The same work is not asked about twice, whatever died meanwhile.
    run.kill();
    let mut run = place.start(&["run", "crew"]);
    wait_until("it waits again", || place.task(1)["attempt"] == 2 && place.task(1)["status"] == "in_progress");
    assert_eq!(waiting(&place, "review", &mut run)["id"], review["id"]);
    let id = review["id"].as_str().unwrap();
    let mail = place.run(&["inbox"]);
    assert!(mail.out.contains(&format!("brigade review approve {id}")), "{mail:?}");
    let waits = place.run(&["team"]);
    assert!(waits.err.contains("1 review waits") && !waits.err.contains("message for you"), "{waits:?}");
    assert_eq!(place.task(1)["owner"], holder, "who held it goes on with it");
    let approved = place.run(&["review", "approve"]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
    let mail = place.run(&["inbox"]);
    assert!(mail.out.contains("approved by human") && !mail.out.contains("brigade review approve"), "{mail:?}");
    assert_eq!(run.code(), Some(0), "{}", run.said());
    assert_eq!(place.read("new.txt"), "line\n");
    let result = &place.task(1)["result"];
    assert_eq!((&result["reviewedBy"], &result["verify"]["exitStatus"]), (&json!("human"), &json!(0)), "{result}");
    assert_eq!(result["verify"]["outputTail"], "it is there");
    assert_eq!(result["commit"], git(&place, &["rev-parse", "main"]));
    let shown = place.run(&["tasks", "show", "1"]).out;
    assert!(shown.contains("reviewed by human") && shown.contains("exit status 0"), "{shown}");
    place.assert_nothing_is_left_running();
}

#[test]
fn what_a_person_rejects_is_not_merged_and_says_why() {
    let place = reviewed();
    let mut run = place.start(&["run", "crew"]);
    let review = waiting(&place, "review", &mut run);
    let id = review["id"].as_str().unwrap();
    let note = place.run(&["tasks"]).out;
    assert!(note.contains(&format!("waits for your review {id}")), "{note}");
    let how = format!("brigade review approve {id}");
    wait_until("it is said how a review is answered", || run.said().contains(&how));
    let rejected = place.run(&["review", "reject", "--feedback", "it needs two lines"]);
    assert_eq!(rejected.code, Some(0), "{rejected:?}");
    assert_eq!(run.code(), Some(1), "the same commands would come to the same: {}", run.said());
    assert_eq!((&place.task(1)["status"], &place.task(1)["failures"]), (&json!("failed"), &json!(1)));
    let reason = place.task(1)["result"]["summary"].as_str().unwrap().to_owned();
    assert!(reason.contains("it needs two lines"), "{reason}");
    let why = place.run(&["why", "1"]).out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(why.contains("brigade tasks update 1 --description TEXT, then brigade tasks retry 1"), "{why}");
    assert!(!place.join("new.txt").exists());
}

#[test]
fn a_plan_first_member_changes_nothing_before_its_plan_is_approved() {
    let place = Place::new();
    let write = |name: &str| json!({ "tool": "bash", "input": { "command": format!("echo x > {name}") } });
    let script = json!({
        "task": [
            { "call": [write("early.txt"), { "tool": "plan_approval", "input": { "plan": "write late.txt" } }] },
            { "say": "I wait." },
        ],
        "mail": [
            { "call": [write("late.txt"), { "tool": "task_update", "input": {
                "task_id": 1, "status": "completed", "result": "written" } }] },
        ],
    });
    place.write("script.json", &script.to_string());
    place.write("plan.md", "## Write\n");
    place.write(
        "brigade.toml",
        "[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"m1\"\nplan_first = true\n\
         provider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    let mut run = place.start(&["run", "crew"]);
    let plan = waiting(&place, "plan", &mut run);
    assert_eq!(plan["plan"], "write late.txt");
    wait_until("it says what it waits for", || place.run(&["team"]).out.contains("a person (plan "));
    assert!(!place.join("early.txt").exists());
    assert_eq!(place.run(&["plan", "approve"]).code, Some(0));
    assert_eq!(run.code(), Some(0), "{}", run.said());
    assert_eq!(fs::read_to_string(place.join("late.txt")).unwrap(), "x\n");
    assert!(!place.join("early.txt").exists());
}

#[test]
fn what_the_lead_asks_is_seen_from_another_terminal_with_how_it_is_answered() {
    let place = Place::new();
    let ask =
        |to: &str| json!({ "call": [{ "tool": "send_message", "input": { "to": to, "content": "Which database?" } }] });
    let script = |first: Value| json!({ "goal": [first, { "say": "I wait." }], "mail": [{ "say": "I take it." }] });
    let team = "[teams.crew]\ngoal = \"Move it\"\n[teams.crew.lead]\nprovider = \"scripted\"\nmodel = \"lead.json\"\n\
                [[teams.crew.members]]\nname = \"ada\"\nprovider = \"runbook\"\n";
    place.write("brigade.toml", &format!("durability = \"process\"\n{team}"));
    for first in [ask("human"), json!({ "say": "I see two. Which database?" })] {
        let has_mail = first["say"].is_null();
        let mut script = script(first);
        if !has_mail {
            script["goal"].as_array_mut().unwrap().pop();
            script["report"] = script["goal"].clone();
        }
        place.write("lead.json", &script.to_string());
        let mut up = place.start(&["up", "--headless"]);
        let mut told = place.run(&["team"]);
        wait_until("it is told", || {
            told = place.run(&["team"]);
            assert!(!up.has_ended(), "{}", up.said());
            told.out.contains("a person:") && told.out.contains("Which database?")
        });
        assert!(told.err.contains("(brigade send lead TEXT answers)"), "{told:?}");
        let lead = &place.json(&["team"])["lead"];
        assert_eq!((&lead["name"], &lead["phase"]), (&"lead".into(), &"idle".into()), "{lead}");
        assert_eq!(place.state()["lead"]["phase"], "idle");
        if has_mail {
            // Read is not answered.
            assert!(place.run(&["inbox", "--take"]).out.contains("Which database?"));
            assert!(place.run(&["inbox"]).err.contains("(brigade send lead TEXT answers)"));
        }
        if has_mail {
            assert_eq!(place.run(&["send", "lead", "the old one"]).code, Some(0));
            wait_until("it is answered", || {
                let told = place.run(&["team"]);
                !told.out.contains("a person:") && !told.err.contains("brigade send lead")
            });
        }
        up.signal("INT");
        up.code();
        std::fs::remove_dir_all(place.join(".team")).unwrap();
    }
}
