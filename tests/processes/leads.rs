//! Two leads of one workspace, and what signals do to one.

use std::fs;

use super::support::{PATIENCE, Place, Process, wait_until};

/// Two tasks that run until they are ended, and a third that waits for room.
const ENDLESS: &str = "## One\n```sh\nsleep 300\n```\n## Two\n```sh\nsleep 300\n```\n## Three\n```sh\ntrue\n```\n";

/// Starts a run and waits until both members run a command.
fn at_work(place: &Place) -> Process {
    let run = place.start(&["run"]);
    wait_until("two commands run", || run.said().matches("bash sleep 300").count() == 2);
    run
}

#[test]
fn a_second_lead_is_told_who_holds_the_workspace() {
    let place = Place::with_team(2, ENDLESS);
    let mut first = at_work(&place);
    for command in [&["run"][..], &["up", "--headless"], &["run", "--output-format", "json"]] {
        let second = place.run(command);
        assert_eq!(second.code, Some(4), "{second:?}");
        let pid = first.id().to_string();
        assert!(second.err.contains("crew") && second.err.contains(&pid), "pid {pid}: {second:?}");
        assert!(second.err.contains("brigade stop"), "{second:?}");
        assert!(second.out.is_empty(), "{second:?}");
    }
    // What only looks and acts is not kept out.
    assert_eq!(place.json(&["tasks"]).as_array().unwrap().len(), 3);
    assert_eq!(place.run(&["tasks", "add", "Four"]).code, Some(0));
    // Stopped is not gone: the second must not take over, nor hang.
    first.signal("STOP");
    let second = place.run(&["run"]);
    assert_eq!(second.code, Some(4), "{second:?}");
    assert_eq!(place.json(&["tasks"]).as_array().unwrap().len(), 4);
    first.signal("CONT");
    first.kill();
    let mut second = at_work(&place);
    assert_eq!(place.task(1)["attempt"], 2);
    second.kill();
    place.assert_nothing_is_left_running();
}

/// What has to hold once a team was asked to stop and is gone.
fn assert_stopped_in_order(place: &Place, run: &mut Process, signal: &str) {
    assert_eq!(run.code(), Some(130), "{signal}: {}", run.said());
    place.assert_nothing_is_left_running();
    assert_eq!(place.state()["current_state"], "pause", "{signal}: {}", place.state());
    for (name, teammate) in place.state()["teammates"].as_object().unwrap() {
        assert_eq!((&teammate["phase"], &teammate["task"]), (&"stopped".into(), &().into()), "{signal}: {name}");
    }
    for task in place.tasks() {
        assert!(task["status"] == "pending" || task["status"] == "completed", "{signal}: {task}");
        assert!(task.get("claim").is_none() && task["owner"].is_null(), "{signal}: {task}");
        assert_eq!(task["failures"].as_u64().unwrap_or(0), 0, "{signal}: {task}");
    }
    let events = place.events();
    assert_eq!(events.last().unwrap()["kind"], "team_stopped", "{signal}: {events:#?}");
    place.assert_no_temporaries();
}

#[test]
fn each_signal_lets_running_turns_finish_and_releases_the_rest() {
    for signal in ["INT", "TERM", "HUP"] {
        let gate = "while ! test -e open; do sleep 0.01; done";
        let plan = format!(
            "## One\n```sh\n{gate}\necho done > one\n```\n```sh\necho no > two\n```\n## Two\nafter: One\n```sh\ntrue\n```\n"
        );
        let place = Place::with_team(2, &plan);
        let mut run = place.start(&["run"]);
        wait_until("the command runs", || place.events().iter().any(|event| event["kind"] == "tool_started"));
        run.signal(signal);
        wait_until("it says that it stops", || run.said().contains("stopping"));
        assert!(!run.has_ended(), "{signal}: a running turn is not broken off: {}", run.said());
        place.write("open", "");
        assert_stopped_in_order(&place, &mut run, signal);
        assert_eq!(place.read("one"), "done\n", "{signal}");
        assert_eq!(place.task(1)["status"], "pending", "the second turn is not begun");
        assert!(!place.join("two").exists(), "{signal}");
        let mut again = place.start(&["run"]);
        assert_eq!(again.code(), Some(0), "{signal}: {}", again.said());
        assert!(place.all_are("completed"), "{signal}");
    }
}

#[test]
fn what_was_done_when_the_team_was_asked_to_stop_is_reported_and_not_done_again() {
    let plan = "## One\nverify: test -s log\n```sh\ntouch begun; while ! test -e open; do sleep 0.01; done\necho done >> log\n```\n";
    for ask in [&["stop", "--wait", "0"][..], &["stop", "m1"]] {
        let place = Place::with_team(1, plan);
        let mut run = place.start(&["run"]);
        wait_until("the command runs", || place.join("begun").exists());
        place.run(ask);
        wait_until("it is heard", || ask.len() == 2 || run.said().contains("stopping"));
        place.write("open", "");
        assert!(run.code().is_some());
        assert_eq!(place.task(1)["status"], "completed", "{ask:?}: {}", run.said());
        assert_eq!(place.read("log"), "done\n");
        let mut again = place.start(&["run"]);
        assert_eq!((again.code(), place.read("log").as_str()), (Some(0), "done\n"), "{ask:?}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for (first, second) in [("INT", "INT"), ("TERM", "HUP")] {
        let place = Place::with_team(2, ENDLESS);
        let mut run = at_work(&place);
        run.signal(first);
        wait_until("it says that it stops", || run.said().contains("stopping"));
        run.signal(second);
        let ended = run.end_within(PATIENCE);
        assert!(ended.is_some(), "{first}, {second}: it goes on: {}", run.said());
        assert_stopped_in_order(&place, &mut run, first);
    }
}

#[test]
fn stop_from_another_terminal_stops_in_order_and_says_so() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place);
    let impatient = place.run(&["stop", "--wait", "0"]);
    assert_eq!(impatient.code, Some(1), "{impatient:?}");
    assert!(impatient.err.contains("--now"), "{impatient:?}");
    let stopped = place.run(&["stop", "--now"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.out.contains("crew"), "{stopped:?}");
    assert_stopped_in_order(&place, &mut run, "stop --now");
    assert_eq!(place.run(&["stop"]).code, Some(0), "there is nothing left to stop, which is what was wanted");
}

#[test]
fn one_teammate_is_stopped_in_the_middle_of_its_command_and_the_rest_goes_on() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place);
    let owner = place.task(1)["owner"].as_str().unwrap().to_owned();
    // Asked to stop after its turn, it goes on with that, and is said to.
    let asked = place.run(&["stop", &owner]);
    assert!(asked.out.contains("after its turn"), "{asked:?}");
    wait_until("it is said", || place.state()["teammates"][&owner]["phase"] == "stopping");
    assert!(place.run(&["team"]).out.contains("the end of its turn"));
    assert!(place.run(&["why", "1"]).out.contains("waits for the end of its turn, to stop then"));
    wait_until("it is told", || run.said().contains("is asked to stop, after its turn"));
    let asked = place.run(&["stop", &owner, "--now"]);
    assert!(asked.code == Some(0) && asked.out.contains("broken off"), "{asked:?}");
    wait_until("it is stopped", || place.state()["teammates"][&owner]["phase"] == "stopped");
    assert_ne!(place.task(1)["owner"], owner.as_str());
    assert_eq!(place.task(1)["failures"].as_u64().unwrap_or(0), 0);
    assert_eq!(place.task(2)["status"], "in_progress", "the other goes on");
    assert!(!run.has_ended());
    let unknown = place.run(&["stop", "nobody", "--now"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("nobody"), "{unknown:?}");
    let lead = place.run(&["stop", "lead"]);
    assert!(lead.code == Some(2) && lead.err.contains("brigade stop"), "{lead:?}");
    assert_eq!(place.run(&["stop", "--now"]).code, Some(0));
    assert_eq!(run.code(), Some(130));
}

#[test]
fn a_killed_lead_leaves_a_workspace_that_says_so() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place);
    run.kill();
    place.assert_nothing_is_left_running();
    let team = place.json(&["team"]);
    assert!(team["members"].as_array().unwrap().iter().all(|member| member["phase"] != "work"), "{team}");
    let why = place.run(&["why", "1"]);
    assert!(why.code == Some(0) && why.out.contains("is gone"), "{why:?}");
    let doctor = place.run(&["doctor"]);
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    // Someone removes what the lead left: the next one starts all the same.
    for file in ["lead.json", "lead.lock"] {
        fs::remove_file(place.join(".team").join(file)).unwrap();
    }
    let second = at_work(&place);
    wait_until("the claims are anew", || place.task(1)["attempt"] == 2);
    drop(second);
}

#[test]
fn a_lead_that_is_suspended_or_gives_no_sign_of_life_is_said_to() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place);
    assert!(place.run(&["team"]).out.contains("runs (pid"));
    run.signal("STOP");
    // A write that was under way ends first.
    let status = || fs::read_to_string(format!("/proc/{}/stat", run.id())).unwrap_or_default();
    wait_until("it is stopped", || !fs::exists("/proc/self").unwrap_or(false) || status().contains(") T "));
    for command in [&["team"][..], &["doctor"], &["why", "1"], &["why", "3"]] {
        let said = place.run(command).out;
        assert!(said.contains("is suspended"), "{command:?}: {said}");
    }
    // As if it were on another machine, and that long ago: all that tells of it is set back by a minute.
    let worker = fs::read_dir(place.join(".team/workers")).unwrap().map(|entry| entry.unwrap().path());
    let record = worker.into_iter().find(|path| path.extension().is_some_and(|end| end == "json")).unwrap();
    let mut told: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let host = told["host"].clone();
    told["heartbeat"] = (told["heartbeat"].as_i64().unwrap() - 60_000).into();
    told["host"] = "elsewhere".into();
    fs::write(&record, told.to_string()).unwrap();
    let mut state = place.state();
    for (_, teammate) in state["teammates"].as_object_mut().unwrap() {
        teammate["heartbeat"] = "2020-01-01T00:00:00.000Z".into();
    }
    place.write("agent_state.json", &state.to_string());
    for command in [&["team"][..], &["doctor"], &["why", "1"], &["why", "3"]] {
        let said = place.run(command).out;
        assert!(said.contains("no sign of life for 1 min"), "{command:?}: {said}");
    }
    told["host"] = host;
    fs::write(&record, told.to_string()).unwrap();
    // It goes on to hear that it is to end, and both signals of it.
    assert_eq!(place.run(&["stop", "--now"]).code, Some(0));
    assert_eq!(run.code(), Some(130));
    place.assert_nothing_is_left_running();
}

#[test]
fn what_a_killed_team_held_is_named_before_and_as_it_is_taken_up() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place);
    let owner = place.task(1)["owner"].as_str().unwrap().to_owned();
    assert!(!place.run(&["team"]).err.contains("killed"));
    run.kill();
    let team = place.run(&["team"]);
    assert!(team.err.contains("it was killed at work") && team.err.contains(&format!("#1 of {owner}")), "{team:?}");
    let mut run = at_work(&place);
    let said = run.said();
    assert!(said.contains("the run before was killed; taken up: #1 One of"), "{said}");
    assert!(!place.run(&["team"]).err.contains("killed"));
    run.signal("INT");
    run.signal("INT");
    run.code();
    let mut run = at_work(&place);
    assert!(!run.said().contains("killed"), "stopped in order it held nothing: {}", run.said());
    run.kill();
    place.assert_nothing_is_left_running();
}
