//! Writes a man page for `brigade` and one for each command into a folder: `cargo run --example man_pages -- FOLDER`.

#![allow(clippy::print_stderr, reason = "a program for the command line")]

use std::path::PathBuf;
use std::process::ExitCode;

use brigade::front::cli::Cli;
use clap::CommandFactory as _;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: man_pages FOLDER");
        return ExitCode::from(2);
    };
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write the man pages to {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
