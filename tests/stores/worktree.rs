//! The state of a worktree, in the format of the Go runner.

use std::fs;
use std::path::Path;

use brigade::domain::git::worktree_state::{WorkActivity, WorkStep, WorktreeReport, WorktreeState};
use brigade::domain::time::UnixMs;
use brigade::git::worktree_store::{WorktreeError, WorktreeStore};
use brigade::stores::file::Durability;

use crate::stores::support::{clock, real};

fn store() -> WorktreeStore {
    WorktreeStore::new(real(), Durability::Process, clock())
}

fn state(identifier: &str) -> WorktreeState {
    WorktreeState { issue_id: "3".into(), issue_identifier: identifier.into(), ..WorktreeState::default() }
}

fn report() -> WorktreeReport {
    WorktreeReport {
        step: WorkStep::Merging,
        session: "w1/alice".to_owned(),
        provider: "scripted".to_owned(),
        provider_session: String::new(),
        provider_pid: 0,
        worker_pid: 1,
        started_at: UnixMs(1),
        activity: WorkActivity::ToolUse,
        last_activity: UnixMs(1),
        tool: Some("bash".to_owned()),
        tool_calls: 1,
        todo_list: "[ ] test".to_owned(),
    }
}

fn count_up(state: &mut WorktreeState) -> Result<(), String> {
    state.attempt_count += 1;
    Ok(())
}

fn write(worktree: &Path, text: &str) {
    fs::create_dir_all(worktree.join(".agent")).unwrap();
    fs::write(WorktreeStore::path(worktree), text).unwrap();
}

#[test]
fn worktree_state_is_missing_until_written() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(store().read(folder.path()), Err(WorktreeError::NotFound { .. })));
    let written = store().write(folder.path(), state("t/task-3")).unwrap();
    assert!(written.last_updated_at > 1_700_000_000_000);
    let read = store().read(folder.path()).unwrap();
    assert_eq!((read.issue_id, read.last_updated_at), ("3".to_owned(), written.last_updated_at));
    let text = fs::read_to_string(WorktreeStore::path(folder.path())).unwrap();
    assert!(!text.contains("pid") && text.contains("\"attemptCount\": 0"), "{text}");
}

#[test]
fn worktree_state_keeps_foreign_fields() {
    let folder = tempfile::tempdir().unwrap();
    let sample = include_str!("../contracts/worktree_state.json");
    write(folder.path(), &sample.replacen('{', "{\n  \"theirs\": 1.50,", 1));
    let updated = store().update(folder.path(), count_up).unwrap();
    assert_eq!(updated.attempt_count, 3);
    let text = fs::read_to_string(WorktreeStore::path(folder.path())).unwrap();
    let expected = sample
        .replacen('{', "{\n  \"theirs\": 1.50,", 1)
        .replace("\"attemptCount\": 2", "\"attemptCount\": 3")
        .replace("1763688005000", &updated.last_updated_at.to_string());
    assert_eq!(text, expected);
}

#[test]
fn worktree_state_of_other_task_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    store().write(folder.path(), state("t/task-3")).unwrap();
    assert!(store().read_expect(folder.path(), "t/task-3").is_ok());
    assert!(store().read_expect(folder.path(), "").is_ok());
    assert!(store().report(folder.path(), state("t/task-4"), &report()).is_err());
    match store().read_expect(folder.path(), "t/task-4") {
        Err(WorktreeError::IdentifierMismatch { expected, loaded, .. }) => {
            assert_eq!((expected.as_str(), loaded.issue_identifier.as_str()), ("t/task-4", "t/task-3"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn worktree_state_without_identifier_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let states = brigade::embed::worktree_states();
    states.write(folder.path(), state("")).unwrap();
    assert!(states.read_expect(folder.path(), "t/task-4").is_ok());
}

#[test]
fn worktree_report_writes_files_but_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    assert!(store().report(folder.path(), state("t/task-3"), &report()).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    store().write(folder.path(), WorktreeState { attempt_count: 2, ..state("t/task-3") }).unwrap();
    store().report(folder.path(), state("t/task-3"), &report()).unwrap();
    let written = store().read(folder.path()).unwrap();
    assert_eq!((written.current_step.as_str(), written.attempt_count), ("merging", 2));
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(folder.path().join(".agent").join(name)).unwrap()).unwrap()
    };
    assert_eq!(json("heartbeat.json")["currentOperation"], "bash");
    assert_eq!(json("todos.json")["items"][0]["content"], "test");
    let emptied = WorktreeReport { todo_list: String::new(), ..report() };
    store().report(folder.path(), state("t/task-3"), &emptied).unwrap();
    assert_eq!(json("todos.json")["items"], serde_json::json!([]));
}

/// Another program may damage or remove the file while the work goes on.
#[test]
fn worktree_report_replaces_unreadable_state() {
    for damaged in [Some(""), None] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), damaged.unwrap_or_default());
        if damaged.is_none() {
            fs::remove_file(WorktreeStore::path(folder.path())).unwrap();
        }
        let fresh = WorktreeState { attempt_count: 2, ..state("t/task-3") };
        store().report(folder.path(), fresh, &report()).unwrap();
        let written = store().read_expect(folder.path(), "t/task-3").unwrap();
        assert_eq!((written.current_step.as_str(), written.attempt_count, written.started_at), ("merging", 2, 1));
        assert!(folder.path().join(".agent/heartbeat.json").exists());
    }
}

#[test]
fn invalid_worktree_state_can_be_overwritten() {
    for text in ["", "{\"issueId\": 3}", "{\"issueId\":", "[]", "{\"attemptCount\": \"two\"}"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), text);
        assert!(matches!(store().read(folder.path()), Err(WorktreeError::Malformed { .. })), "{text}");
        let updated = store().update(folder.path(), |_| Ok::<_, String>(()));
        assert!(matches!(updated, Err(WorktreeError::Malformed { .. })), "{text}");
        assert_eq!(fs::read_to_string(WorktreeStore::path(folder.path())).unwrap(), text);
        store().write(folder.path(), state("t/task-3")).unwrap();
        assert!(store().read(folder.path()).is_ok());
    }
}

#[test]
fn failed_worktree_state_change_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let refused = store().update(folder.path(), |state| {
        state.attempt_count = 9;
        Err("no".to_owned())
    });
    assert!(matches!(refused, Err(WorktreeError::Refused(_))));
    assert!(matches!(store().read(folder.path()), Err(WorktreeError::NotFound { .. })));
}

#[test]
fn concurrent_worktree_state_updates_lose_none() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        // Few at once: on a busy machine, many would wait longer for the lock than a store waits.
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..5 {
                    store().update(folder.path(), count_up).unwrap();
                }
            });
        }
    });
    assert_eq!(store().read(folder.path()).unwrap().attempt_count, 50);
    let mut names: Vec<String> = fs::read_dir(folder.path().join(".agent"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".state.lock", "state.json"]);
}
