//! Two leads of one workspace, and signals to a lead.

use std::fs;

use crate::testkit::process::{Process, WAIT_TIME_MAX, wait_until};
use crate::testkit::workspace::{ENDLESS, TestWorkspace, start_working};

#[test]
fn second_lead_is_refused_with_pid_of_first() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut first = start_working(&workspace, &["run"]);
    for command in [&["run"][..], &["up", "--headless"], &["run", "--output-format", "json"]] {
        let second = workspace.run(command);
        assert_eq!(second.code, Some(4), "{second:?}");
        let pid = first.id().to_string();
        assert!(second.err.contains("crew") && second.err.contains(&pid), "pid {pid}: {second:?}");
        assert!(second.err.contains("brigade stop"), "{second:?}");
        assert!(second.out.is_empty(), "{second:?}");
    }
    // Commands that only read or act on the board still work.
    assert_eq!(workspace.json(&["tasks"]).as_array().unwrap().len(), 3);
    assert_eq!(workspace.run(&["tasks", "add", "Four"]).code, Some(0));
    // A suspended lead is not dead: the second must neither take over nor hang.
    first.signal("STOP");
    let second = workspace.run(&["run"]);
    assert_eq!(second.code, Some(4), "{second:?}");
    assert_eq!(workspace.json(&["tasks"]).as_array().unwrap().len(), 4);
    first.signal("CONT");
    first.kill();
    let mut second = start_working(&workspace, &["run"]);
    assert_eq!(workspace.task(1)["attempt"], 2);
    second.kill();
    workspace.assert_nothing_is_left_running();
}

/// Checks a team that was asked to stop and has ended.
fn assert_stopped_in_order(workspace: &TestWorkspace, run: &mut Process, signal: &str) {
    assert_eq!(run.code(), Some(130), "{signal}: {}", run.output_so_far());
    workspace.assert_nothing_is_left_running();
    assert_eq!(workspace.state()["current_state"], "pause", "{signal}: {}", workspace.state());
    for (name, teammate) in workspace.state()["teammates"].as_object().unwrap() {
        assert_eq!((&teammate["phase"], &teammate["task"]), (&"stopped".into(), &().into()), "{signal}: {name}");
    }
    for task in workspace.tasks() {
        assert!(task["status"] == "pending" || task["status"] == "completed", "{signal}: {task}");
        assert!(task.get("claim").is_none() && task["owner"].is_null(), "{signal}: {task}");
        assert_eq!(task["failures"].as_u64().unwrap_or(0), 0, "{signal}: {task}");
    }
    let events = workspace.events();
    assert_eq!(events.last().unwrap()["kind"], "team_stopped", "{signal}: {events:#?}");
    workspace.assert_no_temporaries();
}

#[test]
fn first_signal_finishes_turns_and_releases_claims() {
    for signal in ["INT", "TERM", "HUP"] {
        let gate = "while ! test -e open; do sleep 0.01; done";
        let plan = format!(
            "## One\n```sh\n{gate}\necho done > one\n```\n```sh\necho no > two\n```\n## Two\nafter: One\n```sh\ntrue\n```\n"
        );
        let workspace = TestWorkspace::with_team(2, &plan);
        let mut run = workspace.start(&["run"]);
        wait_until("the command runs", || workspace.events().iter().any(|event| event["kind"] == "tool_started"));
        run.signal(signal);
        wait_until("the run reports that it stops", || run.output_so_far().contains("stopping"));
        assert!(!run.has_ended(), "{signal}: a running turn was aborted: {}", run.output_so_far());
        workspace.write("open", "");
        assert_stopped_in_order(&workspace, &mut run, signal);
        assert_eq!(workspace.read("one"), "done\n", "{signal}");
        assert_eq!(workspace.task(1)["status"], "pending", "the second turn was started");
        assert!(!workspace.join("two").exists(), "{signal}");
        let mut again = workspace.start(&["run"]);
        assert_eq!(again.code(), Some(0), "{signal}: {}", again.output_so_far());
        assert!(workspace.all_are("completed"), "{signal}");
    }
}

#[test]
fn work_finished_during_stop_is_recorded_once() {
    let plan = "## One\nverify: test -s log\n```sh\ntouch begun; while ! test -e open; do sleep 0.01; done\necho done >> log\n```\n";
    for ask in [&["stop", "--wait", "0"][..], &["stop", "m1"]] {
        let workspace = TestWorkspace::with_team(1, plan);
        let mut run = workspace.start(&["run"]);
        wait_until("the command runs", || workspace.join("begun").exists());
        workspace.run(ask);
        wait_until("the signal is reported", || ask.len() == 2 || run.output_so_far().contains("stopping"));
        workspace.write("open", "");
        assert!(run.code().is_some());
        assert_eq!(workspace.task(1)["status"], "completed", "{ask:?}: {}", run.output_so_far());
        assert_eq!(workspace.read("log"), "done\n");
        let mut again = workspace.start(&["run"]);
        assert_eq!((again.code(), workspace.read("log").as_str()), (Some(0), "done\n"), "{ask:?}");
    }
}

#[test]
fn second_signal_stops_run_at_once() {
    for (first, second) in [("INT", "INT"), ("HUP", "TERM")] {
        let workspace = TestWorkspace::with_team(2, ENDLESS);
        let mut run = start_working(&workspace, &["run"]);
        run.signal(first);
        wait_until("the run reports that it stops", || run.output_so_far().contains("stopping"));
        run.signal(second);
        let ended = run.end_within(WAIT_TIME_MAX);
        assert!(ended.is_some(), "{first}, {second}: the run did not end: {}", run.output_so_far());
        assert_stopped_in_order(&workspace, &mut run, first);
    }
}

#[test]
fn stop_command_stops_running_team() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    let impatient = workspace.run(&["stop", "--wait", "0"]);
    assert_eq!(impatient.code, Some(1), "{impatient:?}");
    assert!(impatient.err.contains("--now"), "{impatient:?}");
    let stopped = workspace.run(&["stop", "--now"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.out.contains("crew"), "{stopped:?}");
    assert_stopped_in_order(&workspace, &mut run, "stop --now");
    assert_eq!(workspace.run(&["stop"]).code, Some(0), "without a team, stop succeeds");
}

#[test]
fn repeated_stop_does_not_abort_running_turn() {
    let plan = "## One\n```sh\ntouch begun; while ! test -e open; do sleep 0.01; done\necho done > one\n```\n";
    let workspace = TestWorkspace::with_team(1, plan);
    let mut run = workspace.start(&["run"]);
    wait_until("the command runs", || workspace.join("begun").exists());
    for wait in ["0", "1"] {
        let stop = workspace.run(&["stop", "--wait", wait]);
        assert_eq!(stop.code, Some(1), "{stop:?}");
        wait_until("the run reports that it stops", || run.output_so_far().contains("stopping"));
    }
    workspace.write("open", "");
    assert!(run.code().is_some());
    assert_eq!(workspace.read("one"), "done\n", "{}", run.output_so_far());
}

#[test]
fn stop_now_of_one_teammate_keeps_others_working() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    let owner = workspace.task(1)["owner"].as_str().unwrap().to_owned();
    // Asked to stop after its turn, the teammate continues that turn, and the answer says so.
    let stop = workspace.run(&["stop", &owner]);
    assert!(stop.out.contains("after its turn"), "{stop:?}");
    wait_until("the notice is printed", || workspace.state()["teammates"][&owner]["phase"] == "stopping");
    assert!(workspace.run(&["team"]).out.contains("the end of its turn"));
    assert!(workspace.run(&["why", "1"]).out.contains("waits for the end of its turn, to stop then"));
    wait_until("the notice is printed", || run.output_so_far().contains("stopping after its turn"));
    let stop = workspace.run(&["stop", &owner, "--now"]);
    assert!(stop.code == Some(0) && stop.out.contains("stops now"), "{stop:?}");
    wait_until("the member is stopped", || workspace.state()["teammates"][&owner]["phase"] == "stopped");
    wait_until("its task is released", || workspace.task(1)["owner"] != owner.as_str());
    assert_eq!(workspace.task(1)["failures"].as_u64().unwrap_or(0), 0);
    assert_eq!(workspace.task(2)["status"], "in_progress", "the other member continues");
    assert!(!run.has_ended());
    let unknown = workspace.run(&["stop", "ghost", "--now"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("ghost"), "{unknown:?}");
    let lead = workspace.run(&["stop", "lead"]);
    assert!(lead.code == Some(2) && lead.err.contains("brigade stop"), "{lead:?}");
    assert_eq!(workspace.run(&["stop", "--now"]).code, Some(0));
    assert_eq!(run.code(), Some(130));
    let team = workspace.run(&["team"]);
    assert!(team.err.contains("the last run was stopped before its end: `brigade run` continues"), "{team:?}");
}

#[test]
fn killed_lead_is_reported_by_commands() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    run.kill();
    workspace.assert_nothing_is_left_running();
    let team = workspace.json(&["team"]);
    assert!(team["members"].as_array().unwrap().iter().all(|member| member["phase"] != "work"), "{team}");
    let why = workspace.run(&["why", "1"]);
    assert!(why.code == Some(0) && why.out.contains("is gone"), "{why:?}");
    let doctor = workspace.run(&["doctor"]);
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    // The files of the lead are removed; the next one still starts.
    for file in ["lead.json", "lead.lock"] {
        fs::remove_file(workspace.join(".team").join(file)).unwrap();
    }
    let second = start_working(&workspace, &["run"]);
    wait_until("the tasks are claimed again", || workspace.task(1)["attempt"] == 2);
    drop(second);
}

#[test]
fn suspended_or_silent_lead_is_reported() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    assert!(workspace.run(&["team"]).out.contains("is running (pid"));
    run.signal("STOP");
    // A write in progress ends first.
    let status = || fs::read_to_string(format!("/proc/{}/stat", run.id())).unwrap_or_default();
    wait_until("the member is stopped", || !fs::exists("/proc/self").unwrap_or(false) || status().contains(") T "));
    for command in [&["team"][..], &["doctor"], &["why", "1"], &["why", "3"]] {
        let output = workspace.run(command).out;
        assert!(output.contains("is suspended"), "{command:?}: {output}");
    }
    // As if the worker were on another machine a minute ago: all its timestamps are set back by a minute.
    let worker = fs::read_dir(workspace.join(".team/workers")).unwrap().map(|entry| entry.unwrap().path());
    let record = worker.into_iter().find(|path| path.extension().is_some_and(|end| end == "json")).unwrap();
    let mut worker_record: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let host = worker_record["host"].clone();
    worker_record["heartbeat"] = (worker_record["heartbeat"].as_i64().unwrap() - 60_000).into();
    worker_record["host"] = "elsewhere".into();
    fs::write(&record, worker_record.to_string()).unwrap();
    let mut state = workspace.state();
    for (_, teammate) in state["teammates"].as_object_mut().unwrap() {
        teammate["heartbeat"] = "2020-01-01T00:00:00.000Z".into();
    }
    workspace.write("agent_state.json", &state.to_string());
    for command in [&["team"][..], &["doctor"], &["why", "1"], &["why", "3"]] {
        let output = workspace.run(command).out;
        assert!(output.contains("no heartbeat for 1 min"), "{command:?}: {output}");
    }
    worker_record["host"] = host;
    fs::write(&record, worker_record.to_string()).unwrap();
    // It continues to the point where it receives the command to end, and both signals.
    assert_eq!(workspace.run(&["stop", "--now"]).code, Some(0));
    assert_eq!(run.code(), Some(130));
    workspace.assert_nothing_is_left_running();
}

#[test]
fn claims_of_killed_team_are_named_until_reclaimed() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    let owner = workspace.task(1)["owner"].as_str().unwrap().to_owned();
    assert!(!workspace.run(&["team"]).err.contains("killed"));
    run.kill();
    let team = workspace.run(&["team"]);
    assert!(
        team.err.contains("the team was killed while it worked") && team.err.contains(&format!("#1 of {owner}")),
        "{team:?}"
    );
    let mut run = start_working(&workspace, &["run"]);
    let output = run.output_so_far();
    assert!(output.contains("the previous run was killed, resuming #1 One ("), "{output}");
    assert!(!workspace.run(&["team"]).err.contains("killed"));
    run.signal("INT");
    // Two signals at once are merged.
    wait_until("the run reports that it stops", || run.output_so_far().contains("stopping"));
    run.signal("INT");
    run.code();
    let mut run = start_working(&workspace, &["run"]);
    assert!(!run.output_so_far().contains("killed"), "a claim was left after an orderly stop: {}", run.output_so_far());
    run.kill();
    workspace.assert_nothing_is_left_running();
}
