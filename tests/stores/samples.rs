//! The contract samples: a sample that is read and written back differs only in the changed fields.

use std::collections::BTreeSet;

use brigade::domain::agent::transcript::{Record, TranscriptEntry};
use brigade::domain::log::event::Event;
use brigade::domain::task::transition::{Actor, Change, change};
use brigade::domain::task::{Task, TaskId, TaskResult};
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::records::{MemberStatus, RosterMember, StartedBy, WorkerRecord, merge_roster, read_roster};
use brigade::domain::team::state::{Mode, SetBy, SharedState, StateReport, StateUpdate, TeammateReports};
use brigade::domain::time::UnixMs;
use serde_json::Value;

fn sample(name: &str) -> String {
    let path = format!("{}/tests/contracts/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn task_sample_files_round_trip() {
    for (name, id) in
        [("task_minimal.json", 12), ("task_full.json", 3), ("task_claimed.json", 4), ("task_foreign_fields.json", 7)]
    {
        let text = sample(name);
        let task = Task::parse(TaskId(id), text.as_bytes()).unwrap();
        if name == "task_foreign_fields.json" {
            assert!(task.is_foreign());
            // The sample's program omits `blocks`; Brigade writes it.
            let written = value(&task.to_file());
            for (field, kept) in value(&text).as_object().unwrap() {
                assert_eq!(written[field], *kept, "{field}");
            }
            assert!(task.to_file().contains("1763688012.5"), "numbers keep their text");
        } else {
            assert_eq!(task.to_file(), text, "{name}");
        }
    }
}

#[test]
fn sample_claimed_task_can_be_completed() {
    let task = Task::parse(TaskId(4), sample("task_claimed.json").as_bytes()).unwrap();
    let result = TaskResult::new("done", "verify exited 0");
    let done = change(&task, &Change::Complete(result), &Actor::holder("bob", 1), UnixMs(1_763_688_009_000)).unwrap();
    let written = value(&done.to_file());
    assert_eq!(written["status"], "completed");
    assert_eq!(written.get("claim"), None);
    assert_eq!(written["result"]["evidence"], "verify exited 0");
    assert!(change(&task, &Change::Complete(TaskResult::default()), &Actor::holder("bob", 2), UnixMs(0)).is_err());
}

#[test]
fn sample_roster_keeps_members_when_merged() {
    let text = sample("roster.json");
    let (name, role) = ("bob".to_owned(), "tester".to_owned());
    let bob = RosterMember { name, role, status: MemberStatus::Working, started_by: StartedBy::Outside };
    let merged = merge_roster(Some(text.as_bytes()), "my-team", &[bob], &BTreeSet::new()).unwrap();
    assert_eq!(merged, text.replace("\"idle\"", "\"working\""));
    let names: Vec<String> = read_roster(merged.as_bytes()).unwrap().into_iter().map(|member| member.name).collect();
    assert_eq!(names, ["alice", "bob", "carol"]);
}

#[test]
fn sample_inbox_message_types_are_parsed() {
    let kinds: Vec<MessageType> =
        sample("inbox.jsonl").lines().map(|line| Message::parse(line.as_bytes()).unwrap().kind).collect();
    use MessageType::{Broadcast, Message as Plain, PlanApprovalResponse, ShutdownRequest};
    assert_eq!(kinds, [Plain, Broadcast, ShutdownRequest, PlanApprovalResponse]);
}

#[test]
fn transcript_event_worker_samples_round_trip() {
    for line in (sample("transcript.jsonl") + &sample("transcript_origin.jsonl")).lines() {
        let record = Record::parse(line.as_bytes()).unwrap();
        assert_eq!(value(&record.to_line()), value(line));
        assert!(!matches!(record.entry, TranscriptEntry::Compaction { covers: 0, .. }));
    }
    for (index, line) in sample("events.jsonl").lines().enumerate() {
        let event: Event = serde_json::from_str(line).unwrap();
        assert_eq!(event.seq, index as u64 + 1);
        assert_eq!(value(&event.to_line()), value(line));
    }
    let text = sample("worker.json");
    let worker: WorkerRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(value(&serde_json::to_string(&worker).unwrap()), value(&text));
}

#[test]
fn state_file_samples_are_read_and_merged() {
    let text = sample("agent_state_team.json");
    let state = SharedState::parse(text.as_bytes()).unwrap();
    let rows: TeammateReports = serde_json::from_value(value(&text)["teammates"].clone()).unwrap();
    let report = StateReport {
        team: "my-team".into(),
        current: Some(Mode::RunOnce),
        teammates: rows.into(),
        lead: None,
        waiting_for: None,
    };
    assert!(state.contains_report(&report));
    let at = UnixMs::from_iso("2025-11-21T09:15:02.118Z").unwrap();
    let merged = state.merge(&StateUpdate { report: Some(report), desired: None }, at);
    assert_eq!(merged.to_file(), text);

    let simple = SharedState::parse(sample("agent_state.json").as_bytes()).unwrap();
    assert_eq!((simple.desired, &simple.set_by), (Mode::Continuous, &SetBy::Person));
    let unknown = SharedState::parse(sample("agent_state_unknown.json").as_bytes()).unwrap();
    assert_eq!((unknown.desired, unknown.unknown_desired.as_deref()), (Mode::Pause, Some("hyperdrive")));
    assert!(SharedState::parse(sample("agent_state_truncated.json").as_bytes()).is_err());
}
