//! Wiring only: what was typed goes to the command line, which is handed what launches a team.

use std::process::ExitCode;

mod launch;

fn main() -> ExitCode {
    brigade::sandbox::run_if_asked();
    brigade::sandbox::close_inherited_files(std::env::args_os());
    brigade::cli::run(std::env::args_os(), launch::launch).into()
}
