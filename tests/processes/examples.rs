//! The examples that need no key: each runs as its first lines say, in a separate folder.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::testkit::process::cargo;
use brigade::front::cli::Cli;
use clap::CommandFactory as _;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs an example in `folder` and returns its output.
fn run(example: &str, folder: &Path) -> String {
    let mut cargo = cargo(&["run", "--quiet", "--locked", "--example", example]);
    let output = cargo.env("XDG_STATE_HOME", folder.join("state")).arg("--").arg(folder).output().unwrap();
    assert!(output.status.success(), "{example}: {}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).unwrap()
}

/// The status and the blockers of each task on the board in `folder`.
fn tasks(folder: &Path) -> Vec<String> {
    let task = |number: usize| {
        let text = fs::read_to_string(folder.join(format!(".tasks/task_{number}.json"))).ok()?;
        let task: serde_json::Value = serde_json::from_str(&text).unwrap();
        Some(task["status"].as_str().unwrap().to_owned())
    };
    (1..).map_while(task).collect()
}

#[test]
fn example_two_teammates_completes_plan() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("two_teammates", folder.path());
    assert_eq!(read(folder.path(), "report.txt"), "3 trees.\nThe pond is 3 m deep.\n");
    assert_eq!(tasks(folder.path()), ["completed"; 3]);
    for said in ["claims #1", "claims #3", "3 tasks: 3 completed.", "The pond is 3 m deep."] {
        assert!(printed.contains(said), "{said}: {printed}");
    }
    let line = |wanted: &str| printed.lines().position(|line| line.contains(wanted)).unwrap();
    assert!(line("claims #3") > line("#1 is done").max(line("#2 is done")), "the report waits: {printed}");
}

#[test]
fn man_pages_describe_each_command() {
    let folder = tempfile::tempdir().unwrap();
    run("man_pages", folder.path());
    assert!(read(folder.path(), "brigade.1").contains("brigade"));
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let page = read(folder.path(), &format!("brigade-{}.1", command.get_name()));
        let summary = command.get_about().unwrap().to_string();
        let words = summary.split([' ', '-']).filter(|word| word.chars().all(char::is_alphanumeric));
        assert!(page.contains(".TH brigade-") && words.clone().all(|word| page.contains(word)), "{summary}\n{page}");
    }
}

#[test]
fn example_custom_tool_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("custom_tool", folder.path());
    assert_eq!(read(folder.path(), "attic.txt"), "9 °C in the attic\n");
    assert_eq!(tasks(folder.path()), ["completed"]);
    assert!(printed.contains("ada reads the thermometer: 9 °C"), "{printed}");
    let transcript = read(folder.path(), ".team/transcripts/ada.jsonl");
    assert!(transcript.contains("unknown room"), "an invalid call is an error result: {transcript}");
}

#[test]
fn example_goal_becomes_dependent_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("goal", folder.path());
    assert_eq!(read(folder.path(), "cake.txt"), "base\ncream\n");
    assert_eq!(tasks(folder.path()), ["completed"; 3]);
    assert!(printed.contains("The cake is ready"), "{printed}");
    let events = read(folder.path(), ".team/events.jsonl");
    let workspace = |what: &str, task: u64| {
        let at =
            |line: &str| line.contains(&format!("\"kind\":\"{what}\"")) && line.contains(&format!("\"task\":{task},"));
        events.lines().position(at).unwrap_or_else(|| panic!("{what} {task}: {events}"))
    };
    assert!(
        workspace("task_claimed", 3) > workspace("task_completed", 1).max(workspace("task_completed", 2)),
        "{events}"
    );
}

#[test]
fn example_from_config_completes_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run("from_config", folder.path());
    assert_eq!(read(folder.path(), "census.txt"), "3 cats\n1 dog\n");
    assert_eq!(tasks(folder.path()), ["completed"; 3]);
    assert!(printed.contains("The goal is met"), "{printed}");
}

#[test]
fn example_configs_are_valid() {
    for (folder, provider) in [("real-key", "anthropic"), ("local-server", "llamacpp"), ("recorded", "recorded")] {
        let config = root().join("examples").join(folder).join("brigade.toml");
        let mut brigade = Command::new(env!("CARGO_BIN_EXE_brigade"));
        let Output { status, stdout, stderr } =
            brigade.args(["config", "show", "--config"]).arg(&config).output().unwrap();
        assert!(status.success(), "{folder}: {}", text(&stderr));
        assert!(text(&stdout).contains(provider), "{folder}: {}", text(&stdout));
    }
}

#[test]
fn example_recorded_works_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut brigade = Command::new(env!("CARGO_BIN_EXE_brigade"));
    brigade.args(["run", "--config"]).arg(root().join("examples/recorded/brigade.toml"));
    brigade.arg("--workspace").arg(folder.path()).current_dir(folder.path());
    brigade.env("XDG_STATE_HOME", folder.path().join("state")).env("BRIGADE_TRUST", "1");
    let output = brigade.output().unwrap();
    let printed = text(&output.stdout) + &text(&output.stderr);
    let again =
        "after a change of prompts or tools: UPDATE_RECORDINGS=1 cargo test --locked --test program models::recording";
    assert!(output.status.success(), "{again}\n{printed}");
    assert_eq!(tasks(folder.path()), ["completed"; 2], "{again}\n{printed}");
    assert!(read(folder.path(), "convert.sh").contains("* 9 / 5 + 32"));
    assert!(printed.contains("The converter is done, and its test passes."), "{printed}");
}
