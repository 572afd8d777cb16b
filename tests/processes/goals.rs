//! A goal with a `done_when` command: a failing command leaves the team running, a passing one pauses it.

use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

fn sessions_over(workspace: &TestWorkspace) -> usize {
    workspace.events().iter().filter(|event| event["kind"] == "session_finished").count()
}

#[test]
fn goal_check_failing_then_passing_ends_in_pause() {
    let workspace = TestWorkspace::new();
    workspace.write("plan.md", "## First\n```sh\ntrue\n```\n");
    workspace.write_team(2, "plan = \"plan.md\"\ndone_when = \"echo looked >> looks; test -e reached\"");
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the first session is over", || sessions_over(&workspace) == 1);
    let summary = workspace.events().into_iter().find(|event| event["kind"] == "session_finished").unwrap();
    assert!(summary["summary"].as_str().unwrap().contains("not met"), "{summary}");
    assert_eq!(workspace.state()["desired_state"], "continuous", "a failing goal command ends nothing");
    let reason = "a claimable task: the goal is not met (`echo looked >> looks; test -e reached`: exit status 1)";
    wait_until("the state file says why the team waits", || workspace.state()["waiting_for"] == reason);
    for command in ["state", "team"] {
        let words = workspace.run(&[command]).out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("waits for {reason}")), "{words}");
    }
    assert_eq!(workspace.json(&["team"])["waiting_for"], reason);
    let task = ["tasks", "add", "Reach it", "--description", "```sh\ntouch reached\n```"];
    assert_eq!(workspace.run(&task).code, Some(0));
    wait_until("the goal is met", || workspace.state()["desired_state"] == "pause");
    wait_until("the team is paused", || workspace.state()["current_state"] == "pause");
    let state = workspace.state();
    assert_eq!(state["setBy"], "agent", "{state}");
    assert!(state.get("waiting_for").is_none(), "{state}");
    assert!(
        state["note"].as_str().unwrap().contains("goal met: `echo looked >> looks; test -e reached` exited 0"),
        "{state}"
    );
    assert!(workspace.all_are("completed"));
    // The log is written a little later than the state file.
    wait_until("the second session is over", || sessions_over(&workspace) == 2);
    assert_eq!(workspace.read("looks").lines().count(), 2, "the goal command runs once a session");
    assert!(!up.has_ended(), "a paused team ended: {}", up.output_so_far());
    up.signal("INT");
    assert_eq!(up.code(), Some(0), "nothing is pending: {}", up.output_so_far());
    workspace.assert_nothing_is_left_running();
}

#[test]
fn running_goal_check_is_shown() {
    let workspace = TestWorkspace::new();
    workspace.write("plan.md", "## First\n```sh\ntrue\n```\n");
    let command = "until test -e reached; do sleep 0.02; done";
    workspace.write_team(1, &format!("plan = \"plan.md\"\ndone_when = \"{command}\""));
    let mut run = workspace.start(&["run"]);
    let reason = format!("the check of the goal (`{command}`)");
    wait_until("the team shows the check", || workspace.json(&["team"])["waiting_for"] == reason.as_str());
    wait_until("the timeline has the check", || run.output_so_far().contains(&format!("done_when {command}")));
    workspace.write("reached", "");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
}
