//! The program: passes the arguments, and the function that launches a team, to the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade::sandbox::run_if_guard();
    brigade::sandbox::close_inherited_files(std::env::args_os());
    brigade::front::cli::run(std::env::args_os(), brigade::launch::launch).into()
}
