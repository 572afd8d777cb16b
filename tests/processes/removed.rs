//! What somebody removes under a running team.

use std::fs;

use super::support::{Place, Process, wait_until};

/// Two tasks that run until they are ended, and a third that waits for room.
const ENDLESS: &str = "## One\n```sh\nsleep 300\n```\n## Two\n```sh\nsleep 300\n```\n## Three\n```sh\ntrue\n```\n";

fn at_work(place: &Place, arguments: &[&str]) -> Process {
    let run = place.start(arguments);
    wait_until("two commands run", || run.said().matches("bash sleep 300").count() == 2);
    run
}

#[test]
fn a_second_lead_is_refused_though_what_says_who_leads_was_removed() {
    for removed in [".team/lead.lock", ".team"] {
        let place = Place::with_team(2, ENDLESS);
        let mut first = at_work(&place, &["run"]);
        let path = place.join(removed);
        // The team may make a file in it meanwhile.
        wait_until("it is removed", || fs::remove_file(&path).is_ok() || fs::remove_dir_all(&path).is_ok());
        if removed == ".team/lead.lock" {
            let second = place.run(&["run"]);
            assert_eq!(second.code, Some(4), "{removed}: {second:?}");
        }
        wait_until("the lead says anew that it leads", || place.join(".team/lead.json").exists());
        let second = place.run(&["run"]);
        assert!(second.code == Some(4) && second.err.contains(&first.id().to_string()), "{removed}: {second:?}");
        assert_eq!((&place.task(1)["attempt"], &place.task(2)["attempt"]), (&1.into(), &1.into()), "{removed}");
        wait_until("its members can be written to", || place.run(&["send", "m1", "still there?"]).code == Some(0));
        first.signal("INT");
        // Two signals at once are one.
        wait_until("it stops", || first.said().contains("stopping"));
        first.signal("INT");
        assert_eq!(first.code(), Some(130), "{removed}: {}", first.said());
        place.assert_nothing_is_left_running();
    }
}

#[test]
fn a_board_that_vanishes_is_named_and_is_no_success() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place, &["run"]);
    fs::remove_dir_all(place.join(".tasks")).unwrap();
    assert_eq!(run.code(), Some(1), "{}", run.said());
    let said = run.said();
    assert!(said.contains("nobody deleted them: #1 (One), #2 (Two), #3 (Three)"), "{said}");
    assert!(!said.contains("There was nothing to do"), "{said}");
    place.assert_nothing_is_left_running();
}

#[test]
fn one_task_that_vanishes_is_named_and_one_that_is_deleted_is_not() {
    let place = Place::with_team(
        1,
        "## One\n```sh\nwhile ! test -e open; do sleep 0.01; done\n```\n## Two\n```sh\ntrue\n```\n## Three\n```sh\ntrue\n```\n",
    );
    let mut run = place.start(&["run"]);
    wait_until("it works", || run.said().contains("bash while"));
    assert_eq!(place.run(&["tasks", "rm", "2"]).code, Some(0));
    fs::remove_file(place.join(".tasks/task_3.json")).unwrap();
    place.write("open", "");
    assert_eq!(run.code(), Some(1), "{}", run.said());
    assert!(run.said().contains("nobody deleted them: #3 (Three)."), "{}", run.said());
}

#[test]
fn a_workspace_that_is_removed_or_moved_ends_the_run_and_is_not_made_anew() {
    for is_moved in [false, true] {
        let place = Place::with_team(2, ENDLESS);
        fs::create_dir(place.join("sub")).unwrap();
        let mut run = at_work(&place, &["run", "--workspace", "sub"]);
        // In one step: a team that finds half of its files removed says what is gone instead.
        fs::rename(place.join("sub"), place.join("moved")).unwrap();
        if !is_moved {
            wait_until("it is removed", || fs::remove_dir_all(place.join("moved")).is_ok());
        }
        assert_eq!(run.code(), Some(1), "{}", run.said());
        assert!(run.said().contains("it was removed or moved away"), "{}", run.said());
        assert!(!place.join("sub").exists(), "a ghost of the workspace was made: {}", run.said());
        place.assert_nothing_is_left_running();
    }
}

#[test]
fn the_workers_folder_that_is_removed_costs_no_task_an_attempt() {
    let gate = "while ! test -e open; do sleep 0.01; done";
    let place = Place::with_team(
        1,
        &format!("## One\n```sh\n{gate}\n```\n## Two\n```sh\ntrue\n```\n## Three\n```sh\ntrue\n```\n"),
    );
    let mut run = place.start(&["run"]);
    wait_until("it works", || run.said().contains("bash while"));
    fs::remove_dir_all(place.join(".team/workers")).unwrap();
    place.write("open", "");
    assert_eq!(run.code(), Some(0), "{}", run.said());
    assert!(place.all_are("completed"));
    assert!(place.tasks().iter().all(|task| task["failures"].as_u64().unwrap_or(0) == 0), "{:#?}", place.tasks());
}

#[test]
fn a_failure_of_the_harness_gives_the_task_back_without_counting() {
    let gate = "while ! test -e open; do sleep 0.01; done";
    let place = Place::with_team(1, &format!("## One\n```sh\n{gate}\n```\n## Two\n```sh\ntrue\n```\n"));
    let mut run = place.start(&["run"]);
    wait_until("it works", || run.said().contains("bash while"));
    // Nothing can be recorded as long as this lies there.
    fs::remove_dir_all(place.join(".team/workers")).unwrap();
    place.write(".team/workers", "");
    place.write("open", "");
    wait_until("it cannot record its command", || run.said().contains("could not do its part"));
    wait_until("the task is given back", || place.task(2)["status"] == "pending");
    assert_eq!(place.task(2)["failures"].as_u64().unwrap_or(0), 0);
    fs::remove_file(place.join(".team/workers")).unwrap();
    assert_eq!(run.code(), Some(0), "{}", run.said());
    assert!(place.all_are("completed"));
    assert_eq!(place.task(2)["failures"].as_u64().unwrap_or(0), 0);
}
