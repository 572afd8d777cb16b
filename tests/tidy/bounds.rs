//! Every read of a file, a stream or a folder, and every queue, has a bound. `docs/internals/bounds.md` lists those of what agents can
//! write.

use super::assert_no_complaints;
use super::source::sources;

/// Calls that read to an end, wherever it is, and queues without a limit.
const UNBOUNDED: &[&str] = &[
    "fs::read(",
    "fs::read_to_string(",
    ".read_to_string(",
    ".read_to_end(",
    ".read_line(",
    ".read_until(",
    "BufReader::",
    "read_dir(",
    "unbounded_channel(",
    "mpsc::channel()",
];

/// The bound of such a call, if it is in the same statement.
const BOUND: &str = ".take(";

/// Permitted calls: the file, the call, and its bound. An unused line must be removed.
const BOUNDED: &[(&str, &str, &str)] = &[
    (
        "src/api/clean.rs",
        "read_dir(",
        "takes a limited number of entries, of folders that confined commands cannot write",
    ),
    ("src/front/cli/doctor.rs", "fs::read(", "a file that it has just written"),
    ("src/front/cli/consent.rs", ".read_line(", "the person's answer on a terminal"),
    ("src/front/cli/signals.rs", "unbounded_channel(", "signals, which the person sends"),
    ("src/front/watch/mod.rs", "unbounded_channel(", "keys, which the person types"),
    ("src/domain/task/plan.rs", ".read_line(", "its own method; it parses a line of a plan with a limit"),
    ("src/platform/locks.rs", "fs::read_to_string(", "the kernel's list of locks"),
    ("src/platform/mod.rs", "fs::read_to_string(", "the kernel's boot id"),
    ("src/platform/processes.rs", "fs::read(", "files of the kernel, which limits arguments and environments"),
    ("src/platform/processes.rs", "fs::read_to_string(", "files of the kernel"),
    ("src/platform/processes.rs", "read_dir(", "folders of the kernel, one entry for each process or thread"),
    ("src/platform/reading.rs", "BufReader::", "the reader with limits; the file has a limit"),
    ("src/platform/reading.rs", "read_dir(", "the listing with a limit"),
    ("src/run/budget.rs", "unbounded_channel(", "lines of the ledger: at most two for each reserved request"),
    ("src/run/event_sink.rs", "unbounded_channel(", "agents wait while the queue is full"),
    ("src/sandbox/guard.rs", ".read_to_string(", "the last word of the init, which is Brigade"),
    ("src/sandbox/launch.rs", "BufReader::", "the first line of a guard, within a limit"),
    ("src/sandbox/launch.rs", "mpsc::channel()", "one message"),
    ("src/sandbox/mounts.rs", "fs::read(", "the kernel's list of mounts"),
    ("src/sandbox/mounts.rs", "read_dir(", "the plain files of folders that become read-only"),
    (
        "src/sandbox/multiplexers.rs",
        "read_dir(",
        "one entry at a time; the folder is that of the multiplexer's sockets",
    ),
    ("src/sandbox/namespaces.rs", "fs::read_to_string(", "files of the kernel"),
    ("src/sandbox/reexec.rs", "BufReader::", "the command spec, whose length has a limit"),
    ("src/process/agent_process.rs", "BufReader::", "each line has a limit"),
    ("src/process/board_socket.rs", "BufReader::", "each line has a limit"),
    ("src/process/board_socket.rs", "read_dir(", "one entry at a time; confined commands cannot write the folder"),
    ("src/process/guarded_process.rs", "BufReader::", "each line has a limit"),
    ("src/stores/file/board/change_queue.rs", "mpsc::channel()", "one message"),
    ("src/stores/file/links.rs", "read_dir(", "one entry at a time; confined commands cannot write the folders"),
    ("src/stores/fs/real.rs", "read_dir(", "folders of board and team, which confined commands cannot write"),
    ("src/git/files.rs", "read_dir(", "one entry at a time"),
    ("src/git/index_flags.rs", "read_dir(", "only the first entry"),
    ("src/git/pipes.rs", "read_dir(", "the number of all entries has a limit"),
    ("src/git/setup.rs", "read_dir(", "one entry at a time; a path has a limit, and so the depth"),
    ("src/tools/read_file.rs", "BufReader::", "lines are skipped in pieces, and the shown part has a limit"),
];

#[test]
fn reads_and_queues_are_bounded() {
    let mut complaints = Vec::new();
    let mut used = Vec::new();
    for source in sources() {
        let path = source.path.to_string_lossy();
        for call in UNBOUNDED {
            for (at, _) in source.code.match_indices(call) {
                let start = source.code[..at].rfind([';', '{', '}']).map_or(0, |start| start + 1);
                if source.code[start..at].contains(BOUND) || source.code[..at].ends_with("fn ") {
                    continue;
                }
                match BOUNDED.iter().position(|(file, permitted, _)| *file == path && permitted == call) {
                    Some(line) => used.push(line),
                    None => complaints
                        .push(format!("{}: `{call}`: use `platform::reading`, or name its bound", source.at(at))),
                }
            }
        }
    }
    let unused = (0..BOUNDED.len()).filter(|line| !used.contains(line));
    complaints.extend(
        unused.map(|line| format!("{} has no `{}` any more: remove its line", BOUNDED[line].0, BOUNDED[line].1)),
    );
    assert_no_complaints("bounds: every read and every queue has a limit", &complaints);
}
