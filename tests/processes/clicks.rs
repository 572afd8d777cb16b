//! A program without locks (a Mission Control, with buttons for people) changes the state file while a team reports into it.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brigade::stores::file::exchange_file::SETTLE_TIME;
use serde_json::{Value, json};

use crate::testkit::process::{Process, WAIT_TIME_MAX, files_below, put_folder, wait_until};
use crate::testkit::workspace::TestWorkspace;

const CLICKS: u32 = 240;
/// The clicks after which the test waits until the team obeys the last one.
const CLICKS_PER_CHECK: u32 = 20;

/// The way that a program saves the state file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SaveStyle {
    /// Writes a second file and renames it.
    Rename,
    /// Truncates and writes: others may read half of the file.
    InPlace,
}

/// A team with enough small tasks to report all the time.
fn team_at_work() -> (TestWorkspace, Process) {
    let plan: String = (1..=400).map(|id| format!("## Task {id}\n```sh\nsleep 0.05\n```\n")).collect();
    let workspace = TestWorkspace::with_team(2, &plan);
    let up = workspace.start(&["up", "--headless"]);
    wait_until("the team reports", || is_current_state(&workspace, "continuous"));
    (workspace, up)
}

/// Reads the state and retries after a torn read.
fn read_state_retrying(workspace: &TestWorkspace) -> Option<Value> {
    let started_at = Instant::now();
    loop {
        let bytes = fs::read(workspace.join("agent_state.json"));
        if let Some(value) = bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return Some(value);
        }
        if started_at.elapsed() > WAIT_TIME_MAX {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_current_state(workspace: &TestWorkspace, mode: &str) -> bool {
    workspace.join("agent_state.json").exists()
        && read_state_retrying(workspace).is_some_and(|state| state["current_state"] == mode)
}

/// The desired state that the team saw last.
fn last_seen_desired_state(workspace: &TestWorkspace) -> Option<Value> {
    workspace
        .events()
        .into_iter()
        .rev()
        .find(|event| event["kind"] == "mode_changed")
        .map(|event| event["desired"].clone())
}

fn save(path: &Path, text: &str, style: SaveStyle) {
    match style {
        SaveStyle::Rename => {
            let beside = path.with_extension("json.mc");
            fs::write(&beside, text).unwrap();
            fs::rename(&beside, path).unwrap();
        }
        SaveStyle::InPlace => fs::write(path, text).unwrap(),
    }
}

/// Reads the file, changes the desired state and writes the whole file. This overwrites reports that were made in between.
fn click(workspace: &TestWorkspace, word: &str, note: &str, style: SaveStyle) {
    let mut state = read_state_retrying(workspace).expect("the state file is valid again soon");
    state["desired_state"] = json!(word);
    state["setBy"] = json!("human");
    state["note"] = json!(note);
    save(&workspace.join("agent_state.json"), &serde_json::to_string_pretty(&state).unwrap(), style);
}

/// Returns true if this click is in effect, or if it asked for one session and that is over.
fn is_in_effect(state: &Value, word: &str, note: &str) -> bool {
    let is_as_clicked = state["desired_state"] == word && state["note"] == note && state["setBy"] == "human";
    let is_over = word == "run_once" && state["desired_state"] == "pause" && state["setBy"] == "agent";
    is_as_clicked || is_over
}

/// Waits until this click is in effect and returns the state. A report that was made from the earlier version may be
/// visible until the team has checked the displaced file and restored the click.
#[track_caller]
fn wait_until_in_effect(workspace: &TestWorkspace, word: &str, note: &str) -> Value {
    let mut state = Value::Null;
    wait_until(&format!("{note} ({word}) is in effect"), || {
        state = read_state_retrying(workspace).unwrap();
        is_in_effect(&state, word, note)
    });
    state
}

/// Clicks while a team reports. No reader sees half a file, and the team obeys.
fn check_clicks(style: SaveStyle) {
    let (workspace, mut up) = team_at_work();
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (workspace, is_over, reads) = (&workspace, &is_over, &reads);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let is_whole = match style {
                    SaveStyle::Rename => {
                        serde_json::from_slice::<Value>(&fs::read(workspace.join("agent_state.json")).unwrap()).is_ok()
                    }
                    SaveStyle::InPlace => read_state_retrying(workspace).is_some(),
                };
                assert!(is_whole, "a reader saw half a state file");
                reads.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let clicking = scope.spawn(move || save_random_states(workspace, style));
        let outcome = clicking.join();
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(reads.into_inner() > 100);
    assert!(!up.has_ended(), "{}", up.output_so_far());
    assert!(!up.output_so_far().contains("panicked"), "{}", up.output_so_far());
    let quarantined = quarantined_files(&workspace);
    assert!(quarantined.is_empty(), "no file was invalid, but these were quarantined: {quarantined:?}");
    up.signal("INT");
    assert!(matches!(up.code(), Some(0 | 130)), "all tasks may be done: {}", up.output_so_far());
    workspace.assert_no_temporaries();
}

fn save_random_states(workspace: &TestWorkspace, style: SaveStyle) {
    for number in 1..=CLICKS {
        let word = fastrand::choice(["continuous", "pause", "run_once"]).unwrap();
        let note = format!("click {number}");
        click(workspace, word, &note, style);
        if number % CLICKS_PER_CHECK != 0 {
            std::thread::sleep(Duration::from_micros(fastrand::u64(..8_000)));
            continue;
        }
        let accepted_words: &[&str] = if word == "run_once" { &["run_once", "pause"] } else { &[word] };
        let started_at = Instant::now();
        while !last_seen_desired_state(workspace).is_some_and(|mode| accepted_words.iter().any(|word| mode == *word)) {
            wait_until_in_effect(workspace, word, &note);
            assert!(started_at.elapsed() < WAIT_TIME_MAX, "{style:?}: click {number} ({word}) is not obeyed");
            std::thread::sleep(Duration::from_millis(2));
        }
        // The click stays in effect while the team reports.
        let mut reports = 0;
        let mut last = Value::Null;
        wait_until("the team continues to report", || {
            let state = wait_until_in_effect(workspace, word, &note);
            if state["timestamp"] != last {
                last = state["timestamp"].clone();
                reports += 1;
            }
            word != "continuous" || reports > 1
        });
    }
}

fn quarantined_files(workspace: &TestWorkspace) -> Vec<String> {
    let names = fs::read_dir(workspace.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("malformed")).collect()
}

#[test]
fn last_desired_state_saved_by_rename_wins() {
    check_clicks(SaveStyle::Rename);
}

#[test]
fn last_desired_state_saved_in_place_wins() {
    check_clicks(SaveStyle::InPlace);
}

#[test]
fn slowly_saved_state_file_is_not_invalid() {
    let text = json!({ "desired_state": "pause", "current_state": "continuous", "timestamp": "2026-01-01T00:00:00Z", "setBy": "human", "note": "slow" }).to_string();
    let (first, _) = text.split_at(text.len() / 2);
    loop {
        let (workspace, _up) = team_at_work();
        let started_at = Instant::now();
        fs::write(workspace.join("agent_state.json"), first).unwrap();
        std::thread::sleep(SETTLE_TIME / 2);
        fs::write(workspace.join("agent_state.json"), &text).unwrap();
        // An incomplete file counts as invalid after this time.
        if started_at.elapsed() >= SETTLE_TIME {
            println!("the machine is busy: the file was saved too slowly; trying again");
            continue;
        }
        wait_until("the team obeys", || is_current_state(&workspace, "pause"));
        assert_eq!(workspace.state()["note"], "slow");
        assert_eq!(quarantined_files(&workspace), [""; 0]);
        return;
    }
}

#[test]
fn invalid_state_file_pauses_team() {
    let (workspace, mut up) = team_at_work();
    let path = workspace.join("agent_state.json");
    let check_pause_and_resume = |what: &str| {
        wait_until(what, || {
            is_current_state(&workspace, "pause") && last_seen_desired_state(&workspace) == Some("pause".into())
        });
        assert_eq!(workspace.state()["desired_state"], "pause");
        assert_eq!(workspace.run(&["state", "continuous"]).code, Some(0));
        wait_until("the team continues", || is_current_state(&workspace, "continuous"));
    };
    for invalid in
        ["{\"desired_state\": \"run_once\", \"current_state\"", "", "[1, 2]", "\u{0}\u{0}\u{0}\u{0}", "<html>"]
    {
        let before = quarantined_files(&workspace).len();
        fs::write(&path, invalid).unwrap();
        wait_until("the file is quarantined", || quarantined_files(&workspace).len() > before);
        check_pause_and_resume("an invalid file means pause");
    }
    let quarantined: Vec<String> = quarantined_files(&workspace).iter().map(|name| workspace.read(name)).collect();
    assert!(quarantined.contains(&"<html>".to_owned()), "{quarantined:?}");
    fs::remove_file(&path).unwrap();
    check_pause_and_resume("a missing file means pause");
    fs::write(&path, json!({ "desired_state": "hyperdrive", "mine": 1.50 }).to_string()).unwrap();
    wait_until("an unknown word means pause", || is_current_state(&workspace, "pause"));
    assert_eq!((&workspace.state()["desired_state"], &workspace.state()["mine"]), (&"hyperdrive".into(), &1.5.into()));
    let warned = workspace
        .events()
        .iter()
        .any(|event| event["kind"] == "warning" && event["text"].to_string().contains("hyperdrive"));
    assert!(warned, "{}", up.output_so_far());
    assert!(workspace.run(&["state"]).out.contains("hyperdrive"));
    assert_eq!(workspace.run(&["state", "continuous"]).code, Some(0));
    wait_until("the team continues", || is_current_state(&workspace, "continuous"));
    put_folder(&path);
    fs::write(path.join("x"), "x").unwrap();
    wait_until("a folder means pause", || last_seen_desired_state(&workspace) == Some("pause".into()));
    fs::remove_dir_all(&path).unwrap();
    check_pause_and_resume("the folder is gone");
    assert!(!up.has_ended(), "{}", up.output_so_far());
}

/// The names in the workspace, and all files with their time and content.
fn content_of(workspace: &TestWorkspace) -> Vec<String> {
    let names = fs::read_dir(workspace.path()).unwrap().map(|entry| format!("{:?}", entry.unwrap().file_name()));
    let files = files_below(workspace.path()).into_iter().map(|path| {
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        format!("{path:?} {modified:?} {:?}", fs::read(&path).unwrap())
    });
    let mut content: Vec<String> = names.chain(files).collect();
    content.sort();
    content
}

#[test]
fn read_commands_write_nothing() {
    let invalid = "{\"desired_state\": ";
    for state in [None, Some("{\"desired_state\": \"continuous\", \"mine\": 1.50}"), Some(invalid)] {
        let workspace = TestWorkspace::with_idle_team(1);
        if let Some(text) = state {
            workspace.write("agent_state.json", text);
        }
        let before = content_of(&workspace);
        for arguments in [&["state"][..], &["team"], &["inbox"], &["inbox", "--read"], &["inbox", "M1"], &["tasks"]] {
            let shown = workspace.run(arguments);
            assert_eq!(shown.code, Some(0), "{arguments:?}: {shown:?}");
            assert_eq!(content_of(&workspace), before, "{arguments:?} wrote");
            let error = "agent_state.json is invalid: not a JSON object: EOF while parsing a value at line 1 column 18";
            let is_named = arguments == ["state"] && state == Some(invalid);
            assert!(!is_named || shown.out.contains(error), "{shown:?}");
        }
        let unknown = workspace.run(&["inbox", "zoe"]);
        assert!(unknown.code == Some(1) && unknown.err.contains("lead, human, m1"), "{unknown:?}");
        assert_eq!(content_of(&workspace), before);
    }
}

#[test]
fn summary_names_invalid_state_file() {
    let plan = "## One\n```sh\nwhile ! test -e go; do sleep 0.02; done\n```\n## Two\n```sh\ntrue\n```\n";
    let workspace = TestWorkspace::with_team(1, plan);
    let mut run = workspace.start(&["run"]);
    // A version that a report displaces at this moment is quarantined without a pause. After this report, the next is a heartbeat.
    wait_until("the work is reported", || {
        fs::read_to_string(workspace.join("agent_state.json")).is_ok_and(|text| text.contains("\"phase\": \"work\""))
    });
    save(&workspace.join("agent_state.json"), "{\n<html>", SaveStyle::Rename);
    wait_until("the team is paused", || last_seen_desired_state(&workspace) == Some("pause".into()));
    workspace.write("go", "");
    assert_eq!(run.code(), Some(1), "{}", run.output_so_far());
    let output = run.output_so_far();
    let reason = "(agent_state.json was invalid: not a JSON object: key must be a string at line 2 column 1; its copy is agent_state.json.malformed-1)";
    let (events, summary) = output.split_once("crew stopped").unwrap();
    assert!(summary.contains("The team was paused before its work was done"), "{output}");
    for text in [events, summary] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(reason.trim_matches(['(', ')'])), "{output}");
    }
}
