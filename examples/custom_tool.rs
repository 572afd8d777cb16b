//! Adds a custom tool to Brigade's tools. Here a scripted model calls it. Other models get the same description and schema.
//!
//!     cargo run --locked --example custom_tool            # in a new folder
//!     cargo run --locked --example custom_tool -- FOLDER  # in FOLDER

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use brigade::domain::team::team_spec::ModelSpec;
use brigade::domain::team::team_spec::TeamSpec;
use brigade::embed::{self, Team};
use brigade::ports::ModelClient;
use brigade::providers::scripted::{Script, Scripted};
use brigade::tools::{ToolContext, ToolError, ToolOutput, TypedTool, typed};
use schemars::JsonSchema;
use serde::Deserialize;

/// Reads the temperature of a room, in degrees Celsius. Rooms: kitchen, attic.
#[derive(Deserialize, JsonSchema)]
struct Thermometer {
    /// The room
    room: String,
}

// Models read the doc comments above. The arguments are checked before the call.
impl TypedTool for Thermometer {
    const NAME: &'static str = "thermometer";

    fn about(&self) -> String {
        self.room.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let degrees = match self.room.as_str() {
            "kitchen" => 21,
            "attic" => 9,
            // The model gets this as an error result and can try again.
            _ => return Err(ToolError::Recoverable("unknown room; the rooms are kitchen and attic".to_owned())),
        };
        println!("{} reads the thermometer: {degrees} °C", context.caller.name);
        Ok(ToolOutput::text(format!("{degrees} °C")))
    }
}

const SCRIPT: &str = r#"{ "task": [
    { "call": [{ "tool": "thermometer", "input": { "room": "cellar" } }, { "tool": "thermometer", "input": { "room": "attic" } }] },
    { "call": [{ "tool": "write_file", "input": { "path": "attic.txt", "content": "9 °C in the attic\n" } }] },
    { "call": [{ "tool": "task_update", "input": { "task_id": "{{task}}", "status": "completed", "result": "9 °C, see attic.txt" } }] }
] }"#;

fn main() -> Result<(), Box<dyn Error>> {
    embed::run(work())?
}

async fn work() -> Result<(), Box<dyn Error>> {
    let new_folder = || std::env::temp_dir().join(format!("custom_tool-{}", std::process::id()));
    let folder = std::env::args_os().nth(1).map_or_else(new_folder, PathBuf::from);
    fs::create_dir_all(&folder)?;

    // `models` replaces the providers. Without it, each member uses the provider of its `ModelSpec`.
    let script: Script = serde_json::from_str(SCRIPT)?;
    let model: Arc<dyn ModelClient> = Arc::new(Scripted::new(script));
    let connect = Arc::new(move |_: &ModelSpec| Ok(Arc::clone(&model)));

    let spec = TeamSpec::new("house", ModelSpec::default())?.with_member("ada", "caretaker", ModelSpec::default())?;
    let team = Team::new(spec).models(connect).tool(typed::<Thermometer>);
    let plan = "## How cold is the attic?\nverify: grep -q attic attic.txt\n\nWrite it to attic.txt.\n";
    let outcome = team.plan("house", plan)?.launch(&folder).await?.wait().await?;
    println!("{}", outcome.summary);
    println!("{}", fs::read_to_string(folder.join("attic.txt"))?);
    Ok(())
}
