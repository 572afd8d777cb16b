//! The roster, which other programs also read and write, without locks.

use std::fs;

use brigade::domain::team::records::{MemberStatus, RosterMember, SpawnSettings, StartedBy};
use brigade::ports::Roster;
use brigade::stores::file::Durability;
use brigade::stores::file::exchange_file::ExchangeFile;
use brigade::stores::file::roster::FileRoster;
use serde_json::{Value, json};

use crate::stores::support::{real, store_fixtures};
use crate::testkit::process::eventually;

fn member(name: &str, status: MemberStatus) -> RosterMember {
    let started_by = StartedBy::Brigade { team: "t".into(), spawned: None };
    RosterMember { name: name.into(), role: "coder".into(), status, started_by }
}

fn roster(team: &std::path::Path) -> FileRoster {
    FileRoster::new(ExchangeFile::new(real(), Durability::Process, team, "config.json", team, FileRoster::is_valid))
}

#[tokio::test]
async fn roster_report_is_read_back() {
    for fixture in store_fixtures().await {
        let roster = &fixture.stores.roster;
        assert!(roster.read().await.unwrap().is_empty());
        roster.report("t", &[member("alice", MemberStatus::Working), member("bob", MemberStatus::Idle)]).await.unwrap();
        roster.report("t", &[member("Alice", MemberStatus::Shutdown)]).await.unwrap();
        let expected = [member("Alice", MemberStatus::Shutdown), member("bob", MemberStatus::Idle)];
        assert_eq!(roster.read().await.unwrap(), expected, "{}", fixture.kind);
    }
}

#[tokio::test]
async fn spawned_members_are_read_back_and_removed() {
    for fixture in store_fixtures().await {
        let roster = &fixture.stores.roster;
        let settings = SpawnSettings { prompt: "Test.".into(), provider: "p".into(), model: "m".into() };
        let started_by = StartedBy::Brigade { team: "t".into(), spawned: Some(settings.clone()) };
        let spawned = RosterMember { started_by, ..member("ben", MemberStatus::Idle) };
        roster.report("t", &[member("alice", MemberStatus::Idle), spawned.clone()]).await.unwrap();
        let read = roster.read().await.unwrap();
        assert_eq!((read[1].spawned_in("t"), read[1].spawned_in("other")), (Some(&settings), None), "{}", fixture.kind);
        // Shut down on request: a later launch does not start it again.
        roster.report("t", &[member("ben", MemberStatus::Shutdown)]).await.unwrap();
        assert_eq!(roster.read().await.unwrap()[1].spawned_in("t"), None, "{}", fixture.kind);
        roster.remove("t", &["Ben".into(), "stranger".into()]).await.unwrap();
        assert_eq!(roster.read().await.unwrap(), [member("alice", MemberStatus::Idle)], "{}", fixture.kind);
        roster.report("t", std::slice::from_ref(&spawned)).await.unwrap();
        assert_eq!(roster.read().await.unwrap()[1], spawned, "{}", fixture.kind);
    }
}

#[tokio::test]
async fn overwritten_rows_return_with_next_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let roster = roster(folder.path());
    roster.report("t", &[member("alice", MemberStatus::Idle), member("bob", MemberStatus::Idle)]).await.unwrap();
    roster.remove("t", &["bob".into()]).await.unwrap();
    roster.read().await.unwrap();
    let copy = json!({ "team_name": "t", "members": [
        { "name": "pat", "role": "tutor", "status": "idle" },
        { "name": "bob", "role": "coder", "status": "idle", "startedBy": "brigade", "team": "t" },
    ] });
    fs::write(&path, copy.to_string()).unwrap();
    let names = |rows: Vec<RosterMember>| rows.into_iter().map(|row| row.name).collect::<Vec<_>>();
    assert_eq!(names(roster.read().await.unwrap()), ["pat", "alice"]);
    let file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((&file["members"][1]["name"], &file["members"][2]), (&json!("alice"), &Value::Null));
}

#[tokio::test]
async fn removal_keeps_rows_of_other_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let theirs = json!({"team_name": "t", "members": [{"name": "pat", "role": "tutor", "status": "idle"},
        {"name": "ben", "role": "coder", "status": "idle", "startedBy": "brigade", "team": "t", "desk": 1}]});
    fs::write(&path, theirs.to_string()).unwrap();
    let roster = roster(folder.path());
    roster.remove("t", &["pat".into(), "ben".into()]).await.unwrap();
    let names: Vec<String> = roster.read().await.unwrap().into_iter().map(|member| member.name).collect();
    assert_eq!(names, ["pat", "ben"], "another program added a field");
}

#[tokio::test]
async fn roster_report_without_team_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, json!({ "team_name": "crew", "members": [] }).to_string()).unwrap();
    let outside = RosterMember { started_by: StartedBy::Outside, ..member("sam", MemberStatus::Working) };
    roster(folder.path()).report("", std::slice::from_ref(&outside)).await.unwrap();
    let file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let row = json!({ "name": "sam", "role": "coder", "status": "working" });
    assert_eq!(file, json!({ "team_name": "crew", "members": [row] }));
}

#[tokio::test]
async fn roster_keeps_foreign_members_and_fields() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, include_str!("../contracts/roster.json")).unwrap();
    let roster = roster(folder.path());
    roster
        .report("my-team", &[member("alice", MemberStatus::Idle), member("dave", MemberStatus::Working)])
        .await
        .unwrap();
    let names: Vec<String> = roster.read().await.unwrap().into_iter().map(|member| member.name).collect();
    assert_eq!(names, ["alice", "bob", "carol", "dave"]);
    // A program without locks writes it in place, with its own list of members.
    let theirs = json!({"team_name": "my-team", "x": 1.50, "members": [{"name": "alice", "role": "coder", "status": "working"},
        {"name": "erin", "role": "guest", "status": "idle", "since": 3}]});
    fs::write(&path, theirs.to_string()).unwrap();
    roster.report("my-team", &[member("dave", MemberStatus::Idle)]).await.unwrap();
    eventually("both are in the roster", async || {
        let text = fs::read_to_string(&path).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap_or_default();
        let erin = file["members"].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == "erin").cloned());
        let alice = file["members"].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == "alice").cloned());
        erin.is_some_and(|erin| erin["since"] == 3)
            && alice.is_some_and(|alice| alice["status"] == "idle")
            && text.contains("1.5")
    })
    .await;
}

#[tokio::test]
async fn invalid_roster_is_quarantined_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{\"members\": 7}").unwrap();
    let roster = roster(folder.path());
    roster.report("t", &[member("alice", MemberStatus::Idle)]).await.unwrap();
    assert_eq!(roster.read().await.unwrap(), [member("alice", MemberStatus::Idle)]);
    assert_eq!(fs::read_to_string(folder.path().join("config.json.malformed-1")).unwrap(), "{\"members\": 7}");
}

#[tokio::test]
async fn roster_report_is_stored_at_return() {
    let folder = tempfile::tempdir().unwrap();
    let first = roster(folder.path());
    for status in [MemberStatus::Idle, MemberStatus::Working, MemberStatus::Shutdown] {
        first.report("t", &[member("alice", status)]).await.unwrap();
        assert_eq!(roster(folder.path()).read().await.unwrap(), [member("alice", status)]);
    }
    first.remove("t", &["alice".into()]).await.unwrap();
    assert!(roster(folder.path()).read().await.unwrap().is_empty());
}
