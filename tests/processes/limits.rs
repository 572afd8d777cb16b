//! Limits of the system: threads, processes, stack. A program that lacks one of them says so and ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::testkit::process::{ProcessOutput, is_root};
use crate::testkit::workspace::TestWorkspace;

const BRIGADE: &str = env!("CARGO_BIN_EXE_brigade");
const PLAN: &str = "## One\n```sh\necho done\n```\n";

/// Runs the program as the last line of a `bash` script, as `"$0" "$@"`. A panic or a hang fails the test.
fn run_in(workspace: &TestWorkspace, script: &str, arguments: &[&str]) -> ProcessOutput {
    let mut command = workspace.command("bash");
    command.args(["-c", script, BRIGADE]).args(arguments);
    ProcessOutput::of(command)
}

#[test]
fn stack_of_128_kib_is_enough() {
    let workspace = TestWorkspace::with_team(1, PLAN);
    for arguments in [&["--help"][..], &["run", "crew"], &["tasks"], &["why", "1"], &["doctor"]] {
        let answer = run_in(&workspace, "ulimit -s 128 && exec \"$0\" \"$@\"", arguments);
        assert_eq!(answer.code, Some(0), "{arguments:?}: {answer:?}");
    }
    assert!(workspace.all_are("completed"));
}

/// Root is exempt from the limit, so the program becomes another user, whose processes are counted. For an ordinary
/// user every process of the machine counts, and only the lowest limit has the same result everywhere.
#[cfg(target_os = "linux")]
#[test]
fn process_limit_is_an_error_not_a_hang() {
    let is_root = is_root("more than one process limit");
    // Another run of this test on the machine has another user.
    let id = 50_000 + std::process::id() % 10_000;
    let user = if is_root { format!("setpriv --reuid={id} --regid={id} --clear-groups") } else { String::new() };
    for count in if is_root { &[1, 2, 3, 5, 8, 12][..] } else { &[1] } {
        // The program is executed through an open file: that user may not enter its folder.
        let script = format!("exec 9<\"$0\" && exec {user} prlimit --nproc={count} /proc/self/fd/9 \"$@\"");
        for arguments in [&["--help"][..], &["tasks"], &["run", "crew"]] {
            let workspace = TestWorkspace::with_team(1, PLAN);
            fs::set_permissions(workspace.path(), fs::Permissions::from_mode(0o777)).unwrap();
            let answer = run_in(&workspace, &script, arguments);
            let case = format!("{arguments:?} with {count} processes: {answer:?}");
            let is_refused = answer.err.contains("cannot start a thread: ") && answer.err.contains("hint: ");
            match answer.code {
                Some(0) => assert!(*count > 1 && !is_refused, "{case}"),
                Some(1) => assert!(is_refused || answer.out.contains("temporarily unavailable"), "{case}"),
                _ => panic!("{case}"),
            }
            assert!(*count > 3 || arguments[0] != "run" || is_refused, "{case}");
        }
    }
}
