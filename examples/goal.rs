//! A goal becomes tasks with dependencies: the lead plans, two teammates work, and the lead checks and reports. Here the lead
//! follows a script. With an LLM (`ModelSpec::new("anthropic", "…")`) it plans on its own.
//!
//!     cargo run --locked --example goal            # in a new folder
//!     cargo run --locked --example goal -- FOLDER  # in FOLDER

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use brigade::domain::team::team_spec::ModelSpec;
use brigade::domain::team::team_spec::TeamSpec;
use brigade::embed::{self, Team};

/// The lead's answers to the goal and to the request for the report. The tasks of one answer are numbered in order, so the third
/// task can name the first two.
const LEAD: &str = r#"{
    "goal": [
        { "say": "I plan three tasks.", "call": [
            { "tool": "task_create", "input": { "subject": "Bake the base", "description": "```sh\necho base > base.txt\n```", "verify": "test -s base.txt" } },
            { "tool": "task_create", "input": { "subject": "Whip the cream", "description": "```sh\necho cream > cream.txt\n```", "verify": "test -s cream.txt" } },
            { "tool": "task_create", "input": { "subject": "Put the cake together", "description": "```sh\ncat base.txt cream.txt > cake.txt\n```", "blocked_by": [1, 2], "verify": "grep -q cream cake.txt" } }
        ] },
        { "say": "Planned: base and cream at the same time, then the cake." }
    ],
    "report": [
        { "call": [{ "tool": "read_file", "input": { "path": "cake.txt" } }] },
        { "call": [{ "tool": "goal_done", "input": { "summary": "cake.txt has base and cream" } }] },
        { "say": "The cake is ready: cake.txt has base and cream." }
    ]
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    embed::run(work())?
}

async fn work() -> Result<(), Box<dyn Error>> {
    let new_folder = || std::env::temp_dir().join(format!("goal-{}", std::process::id()));
    let folder = std::env::args_os().nth(1).map_or_else(new_folder, PathBuf::from);
    fs::create_dir_all(&folder)?;
    let script = folder.join("lead.json");
    fs::write(&script, LEAD)?;

    let runbook = ModelSpec::runbook();
    let mut spec = TeamSpec::new("bakery", ModelSpec::new("scripted", &script.to_string_lossy()))?
        .with_member("ada", "baker", runbook.clone())?
        .with_member("ben", "baker", runbook)?;
    spec.goal = Some("Bake a cake".to_owned());
    spec.done_when = Some("test -s cake.txt".to_owned());

    let mut team = Team::new(spec).launch(&folder).await?;
    let outcome = team.wait().await?;
    for task in team.stores().board.view().await?.tasks.values() {
        let result = task.result.as_ref().map_or("", |result| result.summary.as_str());
        println!("{} {}: {}, {result}", task.id, task.subject, task.status);
    }
    println!("{}", outcome.summary);
    Ok(())
}
