//! The roster, which the tutorial program reads and writes too.

use std::fs;
use std::time::Duration;

use brigade::domain::record::{MemberStatus, RosterMember};
use brigade::ports::Roster;
use brigade::stores::file::Durability;
use brigade::stores::file::roster::FileRoster;
use brigade::stores::file::shared::SharedFile;
use serde_json::{Value, json};

use crate::support::{PATIENCE, eventually, real, worlds};

fn member(name: &str, status: MemberStatus) -> RosterMember {
    RosterMember { name: name.into(), role: "coder".into(), status }
}

fn roster(team: &std::path::Path) -> FileRoster {
    FileRoster::new(SharedFile::new(real(), Durability::Process, team, "config.json", team, FileRoster::is_whole))
}

#[tokio::test]
async fn members_are_reported_and_read_back() {
    for world in worlds().await {
        let roster = &world.stores.roster;
        assert!(roster.read().await.unwrap().is_empty());
        roster.report("t", &[member("alice", MemberStatus::Working), member("bob", MemberStatus::Idle)]).await.unwrap();
        roster.report("t", &[member("Alice", MemberStatus::Shutdown)]).await.unwrap();
        let expected = [member("Alice", MemberStatus::Shutdown), member("bob", MemberStatus::Idle)];
        assert_eq!(roster.read().await.unwrap(), expected, "{}", world.kind);
    }
}

#[tokio::test]
async fn members_and_fields_of_others_stay() {
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
    // The tutorial program writes it in place, with its own idea of our members.
    let theirs = json!({"team_name": "my-team", "x": 1.50, "members": [{"name": "alice", "role": "coder", "status": "working"},
        {"name": "erin", "role": "guest", "status": "idle", "since": 3}]});
    fs::write(&path, theirs.to_string()).unwrap();
    roster.report("my-team", &[member("dave", MemberStatus::Idle)]).await.unwrap();
    eventually("both are in it", async || {
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
async fn a_malformed_roster_is_kept_beside_and_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{\"members\": 7}").unwrap();
    let roster = roster(folder.path());
    roster.report("t", &[member("alice", MemberStatus::Idle)]).await.unwrap();
    assert_eq!(roster.read().await.unwrap(), [member("alice", MemberStatus::Idle)]);
    assert_eq!(fs::read_to_string(folder.path().join("config.json.malformed-1")).unwrap(), "{\"members\": 7}");
}

#[tokio::test]
async fn the_last_report_is_written_when_the_store_goes() {
    let folder = tempfile::tempdir().unwrap();
    let first = roster(folder.path());
    first.report("t", &[member("alice", MemberStatus::Idle)]).await.unwrap();
    first.report("t", &[member("alice", MemberStatus::Shutdown)]).await.unwrap();
    drop(first);
    tokio::time::timeout(PATIENCE, async {
        while roster(folder.path()).read().await.unwrap() != [member("alice", MemberStatus::Shutdown)] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}
