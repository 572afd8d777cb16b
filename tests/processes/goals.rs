//! A goal that a command decides: red it leaves the team as it is, green it ends the mode in a pause.

use super::support::{Place, wait_until};

fn sessions_over(place: &Place) -> usize {
    place.events().iter().filter(|event| event["kind"] == "session_finished").count()
}

#[test]
fn a_goal_checked_by_a_command_is_red_and_then_green_and_ends_in_a_pause() {
    let place = Place::new();
    place.write("plan.md", "## First\n```sh\ntrue\n```\n");
    place.write_team(2, "plan = \"plan.md\"\ndone_when = \"echo looked >> looks; test -e reached\"");
    let mut up = place.start(&["up", "--headless"]);
    wait_until("the first session is over", || sessions_over(&place) == 1);
    let summary = place.events().into_iter().find(|event| event["kind"] == "session_finished").unwrap();
    assert!(summary["summary"].as_str().unwrap().contains("not met"), "{summary}");
    assert_eq!(place.state()["desired_state"], "continuous", "a red goal ends nothing");
    let task = ["tasks", "add", "Reach it", "--description", "```sh\ntouch reached\n```"];
    assert_eq!(place.run(&task).code, Some(0));
    wait_until("the goal is met", || place.state()["desired_state"] == "pause");
    wait_until("the team is paused", || place.state()["current_state"] == "pause");
    let state = place.state();
    assert_eq!(state["setBy"], "agent", "{state}");
    assert!(
        state["note"].as_str().unwrap().contains("goal met: `echo looked >> looks; test -e reached` exited 0"),
        "{state}"
    );
    assert!(place.all_are("completed"));
    assert_eq!((place.read("looks").lines().count(), sessions_over(&place)), (2, 2), "once a session");
    assert!(!up.has_ended(), "a paused team stays: {}", up.said());
    up.signal("INT");
    assert_eq!(up.code(), Some(130), "{}", up.said());
    place.assert_nothing_is_left_running();
}
