//! Notes about facts that a person would otherwise miss: a paused team, and a workspace inside another one.

use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

const NOT_RUNNING: &str = "agent_state.json says pause (lunch): `brigade run` works all the same, `brigade up` waits for `brigade state continuous`\n";
const RUNNING: &str = "agent_state.json pauses the team (lunch); run `brigade state continuous` to continue\n";

#[test]
fn pause_is_named_by_team_tasks_add_and_init() {
    let workspace = TestWorkspace::with_idle_team(1);
    let add = || workspace.run(&["tasks", "add", "a", "--description", "```sh\ntrue\n```"]).err;
    assert_eq!(add(), "", "no desired state is set");
    workspace.run(&["state", "pause", "--note", "lunch"]);
    assert_eq!(add(), NOT_RUNNING);
    assert_eq!(workspace.run(&["init", "crew", "--force"]).err, NOT_RUNNING);
    workspace.write_team(1, "");
    assert_eq!(workspace.run(&["team"]).err, "", "its first lines say that it does not run, and its state");
    workspace.write("plan.md", "## b\n```sh\ntrue\n```\n");
    assert_eq!(workspace.run(&["tasks", "import", "plan.md"]).err, NOT_RUNNING);
    let _up = workspace.start(&["up", "--headless"]);
    wait_until("the team runs", || workspace.json(&["team"])["running"] == true);
    assert_eq!((add().as_str(), workspace.run(&["team"]).err.as_str()), (RUNNING, RUNNING));
    workspace.run(&["state", "continuous"]);
    assert_eq!((add().as_str(), workspace.run(&["team"]).err.as_str()), ("", ""));
}

#[test]
fn workspace_inside_another_is_pointed_out() {
    let outer = TestWorkspace::with_idle_team(1);
    outer.write("inner/notes.txt", "");
    let note = |inner: &str| {
        let (outer, inner) = (outer.path().display(), outer.join(inner));
        let inner = inner.display();
        format!("{inner} is inside another workspace, {outer}: they share no tasks, and a command uses the nearest one")
    };
    let in_inner = |arguments: &[&str]| outer.run(&[&["--workspace", "inner"], arguments].concat());
    let shared = in_inner(&["doctor"]);
    assert!(!shared.out.contains("another workspace"), "the config serves both: {shared:?}");
    let init = in_inner(&["init"]);
    assert_eq!((init.code, init.err.trim_end()), (Some(0), note("inner").as_str()));
    for arguments in [&["run"][..], &["doctor"]] {
        let answer = in_inner(arguments);
        let printed = format!("{}{}", answer.out, answer.err).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(printed.contains(&note("inner")), "{arguments:?}: {printed}");
    }
    assert!(!outer.run(&["doctor"]).out.contains("another workspace"));
}

#[test]
fn member_that_does_not_run_is_named_with_its_start() {
    let workspace = TestWorkspace::with_idle_team(1);
    let _up = workspace.start(&["up", "--headless"]);
    let row = |number: usize| workspace.json(&["team"])["members"][number].clone();
    wait_until("the member reports", || row(0)["phase"] == "idle");
    let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");

    workspace.write_team(2, "");
    assert_eq!((&row(1)["name"], &row(1)["waiting_for"]), (&"m2".into(), &"the next launch".into()));
    workspace.run(&["tasks", "add", "One", "--for", "m2", "--description", "```sh\ntrue\n```"]);
    let why = in_one_line(&workspace.run(&["why", "1"]).out);
    assert!(why.contains("is stopped: m2 (starts at the next launch)"), "{why}");
    let send = workspace.run(&["send", "m2", "Hello"]);
    assert!(send.code == Some(1) && in_one_line(&send.err).contains("and starts at the next launch"), "{send:?}");

    workspace.run(&["stop", "m1"]);
    wait_until("the member stops", || row(0)["phase"] == "stopped");
    assert_ne!(row(0)["waiting_for"], "the next launch");
    let send = workspace.run(&["send", "m1", "Hello"]);
    let later = "m1 is stopped, and reads it later: the next launch starts it again";
    assert!(send.code == Some(0) && in_one_line(&send.err).contains(later), "{send:?}");
}

#[test]
fn owner_in_other_case_is_refused_with_meant_name() {
    let workspace = TestWorkspace::with_idle_team(1);
    let add = workspace.run(&["tasks", "add", "One", "--for", "M1"]);
    assert!(add.code == Some(1) && add.err.contains("did you mean `m1`?"), "{add:?}");
    assert_eq!(workspace.run(&["tasks", "add", "One", "--for", "m1"]).code, Some(0));
    assert_eq!(workspace.run(&["tasks", "update", "1", "--for", "other"]).code, Some(0), "another program's agent");
    assert_eq!(workspace.run(&["tasks", "update", "1", "--for", ""]).code, Some(0));
}

#[test]
fn cleanup_state_without_model_is_refused() {
    let workspace = TestWorkspace::with_idle_team(1);
    let state = workspace.run(&["state", "run_cleanup"]);
    assert!(state.code == Some(2) && state.err.contains("cannot lead a cleanup session"), "{state:?}");
    assert!(!workspace.join("agent_state.json").exists());
    // Another program can still set it.
    workspace.write("agent_state.json", r#"{"desired_state": "run_cleanup"}"#);
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the session is over", || workspace.state()["desired_state"] == "pause");
    up.signal("INT");
    assert_eq!(up.code(), Some(0));
    let log = up.output_so_far();
    assert!(log.contains("it has no model and cannot lead a cleanup session"), "{log}");
}

#[test]
fn invalid_request_file_blocks_no_command() {
    let workspace = TestWorkspace::with_team(1, "## One\n```sh\ntrue\n```\n");
    workspace.run(&["tasks", "import", "plan.md"]);
    workspace.write(".team/requests.json", "{ torn");
    for command in [&["tasks"][..], &["team"], &["why", "1"], &["inbox"]] {
        let answer = workspace.run(command);
        assert!(answer.code == Some(0) && answer.err.contains(".team/requests.json"), "{command:?}: {answer:?}");
        assert_eq!(workspace.read(".team/requests.json"), "{ torn", "{command:?} only shows something");
    }
    let run = workspace.run(&["run"]);
    assert!(run.code == Some(0) && run.err.contains("requests.json.malformed-1"), "{run:?}");
    assert_eq!(workspace.read(".team/requests.json.malformed-1"), "{ torn");
}
