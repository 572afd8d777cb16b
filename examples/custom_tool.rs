//! Adds a custom tool to Brigade's tools. Here a scripted model calls it. Other models get the same description and schema.
//!
//!     cargo run --locked --example custom_tool            # in a new folder
//!     cargo run --locked --example custom_tool -- FOLDER  # in FOLDER

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use brigade::embed::{self, Team};
use brigade::models::scripted::{Script, Scripted};
use brigade::ports::{ModelClient, ModelSpec, ToolSpec};
use brigade::team::spec::TeamSpec;
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

/// Reads the temperature of a room.
struct Thermometer;

#[async_trait]
impl Tool for Thermometer {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "thermometer".to_owned(),
            description: "Reads the temperature of a room, in degrees Celsius. Rooms: kitchen, attic.".to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": { "room": { "type": "string", "description": "The room" } },
                "required": ["room"],
            }),
        }
    }

    fn about(&self, input: &Value) -> String {
        input["room"].as_str().unwrap_or("?").to_owned()
    }

    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let degrees = match input["room"].as_str() {
            Some("kitchen") => 21,
            Some("attic") => 9,
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
    let team = Team::new(spec).models(connect).tool(|| Thermometer);
    let plan = "## How cold is the attic?\nverify: grep -q attic attic.txt\n\nWrite it to attic.txt.\n";
    let outcome = team.plan("house", plan)?.launch(&folder).await?.wait().await?;
    println!("{}", outcome.summary);
    println!("{}", fs::read_to_string(folder.join("attic.txt"))?);
    Ok(())
}
