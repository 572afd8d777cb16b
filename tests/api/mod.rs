//! The questions and orders of a front end without a terminal.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

mod events;

use std::path::Path;
use std::time::Duration;

use brigade::api::consent::Agreed;
use brigade::api::lead_status::{Delivery, LeadStatus};
use brigade::api::schema::schema;
use brigade::api::send::{Reading, send};
use brigade::api::stop::{TeammateStop, stop_team, stop_teammate};
use brigade::api::{Location, Order, RefusalCode, Workspace, state};
use brigade::config::Environment;
use brigade::domain::log::event::KINDS;
use brigade::domain::team::state::Mode;
use brigade::ports::WaitLimit;
use serde_json::{Value, json};

const CONFIG: &str = "[teams.crew.lead]\nprovider = \"runbook\"\n[[teams.crew.members]]\nname = \"ada\"\nrole = \"coder\"\nprovider = \"runbook\"\n";

fn workspace(folder: &Path) -> Workspace {
    let environment = Environment { current_folder: folder.to_owned(), ..Environment::default() };
    Workspace::new(Location::new(None, Some(folder.to_owned()), environment), WaitLimit::for_command())
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_return_data_without_a_team() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = LeadStatus::of(&workspace(&folder.path().join("missing"))).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Invalid, "there is no such workspace");

    std::fs::write(folder.path().join("brigade.toml"), CONFIG).unwrap();
    // A workspace without a board would be recorded as the user's own, outside of this folder.
    std::fs::create_dir(folder.path().join(".tasks")).unwrap();
    let workspace = workspace(folder.path());
    assert!(state::read(&workspace).await.unwrap().is_none());
    assert_eq!(state::set_mode(&workspace, Mode::Pause, "lunch".to_owned()).await.unwrap().desired, Mode::Pause);
    let refusal = state::set_mode(&workspace, Mode::RunCleanup, String::new()).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Invalid, "a runbook cannot lead a cleanup");
    let pause = LeadStatus::with_state(&workspace).await.unwrap().pause().unwrap();
    assert_eq!((pause.is_running, pause.reason.as_str()), (false, "lunch"));

    let sent = send(&workspace, "ada", "hello").await.unwrap();
    assert_eq!((sent.messages.len(), sent.reading), (1, Reading::ByTeam(Delivery::AtNextLaunch)));
    assert!(sent.without_model.is_some_and(|name| name.is_same("ada")));

    assert_eq!(stop_team(&workspace, false, Duration::ZERO).await.unwrap(), None);
    assert_eq!(stop_teammate(&workspace, "ada", false).await.unwrap(), TeammateStop::NoTeam);
    let refusal = stop_teammate(&workspace, "eve", false).await.unwrap_err();
    let json = serde_json::to_value(&refusal).unwrap();
    assert_eq!(json["code"], "refused");
    assert!(json["message"].as_str().unwrap().contains("`eve`"), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_as_json_need_agreement_to_verify() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(".tasks")).unwrap();
    let workspace = workspace(folder.path());
    let with = async |order: Value, agreed: Agreed| {
        let order: Order = serde_json::from_value(order).unwrap();
        let outcome = order.carry_out(&workspace, &agreed).await;
        outcome.map(|outcome| serde_json::to_value(outcome).unwrap())
    };
    let order = async |order: Value| with(order, Agreed::default()).await;
    let task = json!({ "subject": "One", "verify": "true" });
    let added = order(json!({ "order": "add_task", "task": task })).await.unwrap();
    assert_eq!((&added["outcome"], &added["data"]["id"]), (&"added".into(), &1.into()), "{added}");
    let claim = json!({ "order": "claim_task", "id": 1, "name": "sam", "lease_s": 60 });
    let claimed = order(claim).await.unwrap();
    assert_eq!(claimed["data"]["claimed"]["task"]["attempt"], 1, "{claimed}");

    let complete = json!({ "order": "complete_task", "id": 1, "summary": "done" });
    let refusal = order(complete.clone()).await.unwrap_err();
    assert!(refusal.message.contains("sam holds it"), "{refusal}");
    let mut complete = complete;
    complete["by"] = json!({ "name": "sam", "attempt": 1 });
    let refusal = order(complete.clone()).await.unwrap_err();
    assert!(refusal.message.contains("not agreed to its verify command"), "{refusal}");
    let agreed = Agreed { verify: Some("false".to_owned()), ..Agreed::default() };
    with(complete.clone(), agreed).await.unwrap_err();
    let retried = order(json!({ "order": "change_tasks", "ids": [1], "change": "retry" })).await.unwrap_err();
    assert!(retried.message.contains("#1"), "{retried}");
    let released = json!({ "order": "change_tasks", "ids": [1], "change": { "release": {} }, "by": { "force": true } });
    let changed = order(released).await.unwrap();
    assert_eq!(changed["data"]["tasks"][0]["status"], "pending", "{changed}");
    assert!(serde_json::from_value::<Order>(json!({ "order": "send", "to": "ada", "txt": "x" })).is_err());
}

#[test]
fn schema_has_orders_answers_and_events() {
    let schema = serde_json::to_value(schema()).unwrap();
    let words = |name: &str, tag: &str| {
        let variants = schema["$defs"][name]["oneOf"].as_array().unwrap().clone();
        variants.iter().map(|one| one["properties"][tag]["const"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(words("Order", "order").contains(&"set_mode".to_owned()));
    assert!(words("Outcome", "outcome").contains(&"mode_set".to_owned()));
    assert_eq!(words("Event", "kind"), KINDS);
    for (name, fields) in [
        ("TeamView", &["desired_state", "running", "silent_ms", "wait", "members"][..]),
        ("MemberView", &["task", "waiting_for", "wait"]),
        ("RequestView", &["id", "kind", "call", "answer", "digest"]),
        ("RequestSnapshot", &["request", "request_kind", "call"]),
    ] {
        for field in fields {
            assert!(schema["$defs"][name]["properties"][field].is_object(), "{name} has no {field}");
        }
    }
    let reasons = schema["$defs"]["Reason"]["anyOf"].as_array().unwrap();
    let has_kind = |kind: &str| reasons.iter().any(|reason| reason["properties"]["kind"]["const"] == kind);
    assert!(has_kind("kept_for") && has_kind("awaits_approval"), "{reasons:?}");
}
