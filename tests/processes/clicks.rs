//! A Mission Control that takes no locks clicks while a team reports into the same file.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{PATIENCE, Place, Process, put_folder, wait_until};

const CLICKS: u32 = 240;
/// After so many clicks the person waits and looks whether the last one is obeyed.
const CLICKS_AT_ONCE: u32 = 20;

/// How a Mission Control saves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Style {
    /// A file beside, then a rename.
    Rename,
    /// Truncate, then write: others may read half of it.
    InPlace,
}

/// A team that is up, with enough small tasks to have something to report all the time.
fn team_at_work() -> (Place, Process) {
    let plan: String = (1..=400).map(|id| format!("## Task {id}\n```sh\nsleep 0.05\n```\n")).collect();
    let place = Place::with_team(2, &plan);
    let up = place.start(&["up", "--headless"]);
    wait_until("the team reports", || current_is(&place, "continuous"));
    (place, up)
}

/// Reads the state as a careful program does: a torn file is read again.
fn read_carefully(place: &Place) -> Option<Value> {
    let began = Instant::now();
    loop {
        let bytes = fs::read(place.join("agent_state.json"));
        if let Some(value) = bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return Some(value);
        }
        if began.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn current_is(place: &Place, mode: &str) -> bool {
    place.join("agent_state.json").exists() && read_carefully(place).is_some_and(|state| state["current_state"] == mode)
}

/// What the team took the desired state for last.
fn heard(place: &Place) -> Option<Value> {
    place.events().into_iter().rev().find(|event| event["kind"] == "mode_changed").map(|event| event["desired"].clone())
}

fn save(path: &Path, text: &str, style: Style) {
    match style {
        Style::Rename => {
            let beside = path.with_extension("json.mc");
            fs::write(&beside, text).unwrap();
            fs::rename(&beside, path).unwrap();
        }
        Style::InPlace => fs::write(path, text).unwrap(),
    }
}

/// Reads, changes the wish, writes all of it back: whatever was reported in between is overwritten with what it read.
fn click(place: &Place, word: &str, note: &str, style: Style) {
    let mut state = read_carefully(place).expect("the state file is whole again soon");
    state["desired_state"] = json!(word);
    state["setBy"] = json!("human");
    state["note"] = json!(note);
    save(&place.join("agent_state.json"), &serde_json::to_string_pretty(&state).unwrap(), style);
}

/// Whether this click stands: as it was made, or because the one session it asked for is over.
fn stands(state: &Value, word: &str, note: &str) -> bool {
    let is_as_clicked = state["desired_state"] == word && state["note"] == note && state["setBy"] == "human";
    let is_over = word == "run_once" && state["desired_state"] == "pause" && state["setBy"] == "agent";
    is_as_clicked || is_over
}

/// The state, in which this click stands. A report that was made from the version before may be seen until what it took out was
/// looked at and put back, which takes as long as the system leaves the team without the processor.
#[track_caller]
fn look(place: &Place, word: &str, note: &str) -> Value {
    let mut state = Value::Null;
    wait_until(&format!("{note} ({word}) stands"), || {
        state = read_carefully(place).unwrap();
        stands(&state, word, note)
    });
    state
}

fn attack(style: Style) {
    let (place, mut up) = team_at_work();
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (place, is_over, reads) = (&place, &is_over, &reads);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let is_whole = match style {
                    Style::Rename => {
                        serde_json::from_slice::<Value>(&fs::read(place.join("agent_state.json")).unwrap()).is_ok()
                    }
                    Style::InPlace => read_carefully(place).is_some(),
                };
                assert!(is_whole, "a reader saw half a state file");
                reads.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let clicking = scope.spawn(move || click_through(place, style));
        let outcome = clicking.join();
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(reads.into_inner() > 100);
    assert!(!up.has_ended(), "{}", up.said());
    assert!(!up.said().contains("panicked"), "{}", up.said());
    let strange: Vec<_> = malformed(&place);
    assert!(strange.is_empty(), "nothing was malformed, and yet: {strange:?}");
    up.signal("INT");
    assert_eq!(up.code(), Some(130));
    place.assert_no_temporaries();
}

fn click_through(place: &Place, style: Style) {
    for number in 1..=CLICKS {
        let word = fastrand::choice(["continuous", "pause", "run_once"]).unwrap();
        let note = format!("click {number}");
        click(place, word, &note, style);
        if number % CLICKS_AT_ONCE != 0 {
            std::thread::sleep(Duration::from_micros(fastrand::u64(..8_000)));
            continue;
        }
        let wanted: &[&str] = if word == "run_once" { &["run_once", "pause"] } else { &[word] };
        let began = Instant::now();
        while !heard(place).is_some_and(|heard| wanted.iter().any(|word| heard == *word)) {
            look(place, word, &note);
            assert!(began.elapsed() < PATIENCE, "{style:?}: click {number} ({word}) is not obeyed");
            std::thread::sleep(Duration::from_millis(2));
        }
        // It stays so while the team goes on reporting.
        let reports = AtomicU64::new(0);
        let mut last = Value::Null;
        wait_until("the team reports on", || {
            let state = look(place, word, &note);
            if state["timestamp"] != last {
                last = state["timestamp"].clone();
                reports.fetch_add(1, Ordering::Relaxed);
            }
            word != "continuous" || reports.load(Ordering::Relaxed) > 1
        });
    }
}

fn malformed(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("malformed")).collect()
}

#[test]
fn the_last_click_stands_when_it_is_saved_by_a_rename() {
    attack(Style::Rename);
}

#[test]
fn the_last_click_stands_when_it_is_saved_in_place() {
    attack(Style::InPlace);
}

#[test]
fn a_click_saved_slowly_is_no_malformed_file() {
    let (place, _up) = team_at_work();
    let text = json!({ "desired_state": "pause", "current_state": "continuous", "timestamp": "2026-01-01T00:00:00Z", "setBy": "human", "note": "slow" }).to_string();
    let (first, _) = text.split_at(text.len() / 2);
    fs::write(place.join("agent_state.json"), first).unwrap();
    // Half of what counts as malformed.
    std::thread::sleep(Duration::from_millis(500));
    fs::write(place.join("agent_state.json"), &text).unwrap();
    wait_until("it is obeyed", || current_is(&place, "pause"));
    assert_eq!(place.state()["note"], "slow");
    assert_eq!(malformed(&place), [""; 0]);
}

#[test]
fn whatever_lies_in_the_place_of_the_state_file_the_team_pauses_and_lives() {
    let (place, mut up) = team_at_work();
    let path = place.join("agent_state.json");
    let resume = |what: &str| {
        wait_until(what, || current_is(&place, "pause") && heard(&place) == Some("pause".into()));
        assert_eq!(place.state()["desired_state"], "pause");
        assert_eq!(place.run(&["state", "continuous"]).code, Some(0));
        wait_until("it goes on", || current_is(&place, "continuous"));
    };
    for rubbish in
        ["{\"desired_state\": \"run_once\", \"current_state\"", "", "[1, 2]", "\u{0}\u{0}\u{0}\u{0}", "<html>"]
    {
        let before = malformed(&place).len();
        fs::write(&path, rubbish).unwrap();
        wait_until("it is kept beside", || malformed(&place).len() > before || before >= 3);
        resume("a malformed file means pause");
    }
    let kept: Vec<String> = malformed(&place).iter().map(|name| place.read(name)).collect();
    assert!(kept.contains(&"<html>".to_owned()), "{kept:?}");
    fs::remove_file(&path).unwrap();
    resume("a missing file means pause");
    fs::write(&path, json!({ "desired_state": "hyperdrive", "mine": 1.50 }).to_string()).unwrap();
    wait_until("an unknown word means pause", || current_is(&place, "pause"));
    assert_eq!((&place.state()["desired_state"], &place.state()["mine"]), (&"hyperdrive".into(), &1.5.into()));
    let warned = place
        .events()
        .iter()
        .any(|event| event["kind"] == "warning" && event["text"].to_string().contains("hyperdrive"));
    assert!(warned, "{}", up.said());
    assert!(place.run(&["state"]).out.contains("hyperdrive"));
    assert_eq!(place.run(&["state", "continuous"]).code, Some(0));
    wait_until("it goes on", || current_is(&place, "continuous"));
    put_folder(&path);
    fs::write(path.join("x"), "x").unwrap();
    wait_until("a folder means pause", || heard(&place) == Some("pause".into()));
    fs::remove_dir_all(&path).unwrap();
    resume("the folder is gone");
    assert!(!up.has_ended(), "{}", up.said());
}
