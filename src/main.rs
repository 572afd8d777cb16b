//! Wiring only: what was typed goes to the command line, which is handed what launches a team.

use std::ffi::OsString;
use std::process::ExitCode;

use brigade::platform::processes::close_inherited_files;

mod launch;

fn main() -> ExitCode {
    brigade::sandbox::run_if_asked();
    close_inherited_files(&named_files(std::env::args_os()));
    brigade::cli::run(std::env::args_os(), launch::launch).into()
}

/// The numbers of open files that arguments name, such as the 63 of `--plan /dev/fd/63`, which is a shell's `<(command)`.
fn named_files(arguments: impl Iterator<Item = OsString>) -> Vec<i32> {
    let number = |argument: OsString| {
        let argument = argument.into_string().ok()?;
        let (_, number) = argument.rsplit_once("/fd/")?;
        number.parse().ok()
    };
    arguments.filter_map(number).collect()
}
