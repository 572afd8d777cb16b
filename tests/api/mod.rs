//! The questions and orders of a front end without a terminal.

use std::path::Path;
use std::time::Duration;

use brigade::api::lead_status::{Delivery, LeadStatus};
use brigade::api::send::{Reading, send};
use brigade::api::stop::{TeammateStop, stop_team, stop_teammate};
use brigade::api::{Location, RefusalCode, Workspace, state};
use brigade::config::Environment;
use brigade::domain::team::state::Mode;
use brigade::ports::WaitLimit;

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
