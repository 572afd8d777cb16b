//! A team from a config file: what `brigade run` does, in your program. The config and its plan lie beside this file.
//!
//!     cargo run --locked --example from_config            # in a new folder
//!     cargo run --locked --example from_config -- FOLDER  # in this one

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use brigade::embed::{self, Team};

fn main() -> Result<(), Box<dyn Error>> {
    embed::run(work())?
}

async fn work() -> Result<(), Box<dyn Error>> {
    let new_folder = || std::env::temp_dir().join(format!("from_config-{}", std::process::id()));
    let folder = std::env::args_os().nth(1).map_or_else(new_folder, PathBuf::from);
    fs::create_dir_all(&folder)?;

    // One config serves many folders: the team works in `folder`, wherever the config lies.
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/from_config/brigade.toml");
    let mut team = Team::of_config(&config, Some("census"))?.launch(&folder).await?;
    for warning in team.warnings() {
        eprintln!("warning: {warning}");
    }
    let outcome = team.wait().await?;
    println!("{}", outcome.summary);
    println!("{}", fs::read_to_string(folder.join("census.txt"))?);
    Ok(())
}
