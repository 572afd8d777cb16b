//! Commands: each runs in a new process. The files are in the page cache; the process starts without state.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::child_process;
use super::report::{Report, Target, format_figure, median, ms};
use super::workspace::{BenchWorkspace, mostly_closed, time_of};

/// Repetitions of each measurement. Commands are short, and other processes disturb them.
const REPETITIONS: usize = 15;

pub fn measure(report: &mut Report) {
    for (tasks, bound) in [(10_000, 150.0), (1000, 50.0)] {
        let workspace = BenchWorkspace::with_board(mostly_closed(tasks));
        let (mut claims, mut lists, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..REPETITIONS {
            claims.push(ms(workspace.time_of(&["tasks", "claim", "--as", "bench", "--workspace", "."])));
            lists.push(ms(workspace.time_of(&["tasks", "--workspace", "."])));
            let mut read_all = child_process::command("read-all", workspace.path(), 0);
            bare.push(ms(time_of(read_all.stdin(Stdio::null()))));
        }
        let bare = format!("a process that only reads the files: {}", format_figure(median(&bare), "ms"));
        report.add(format!("brigade tasks claim, {tasks} tasks"), median(&claims), "ms", Target::Below(bound), &bare);
        report.add(format!("brigade tasks, {tasks} tasks"), median(&lists), "ms", Target::Below(bound), &bare);
    }
    let workspace = BenchWorkspace::new();
    let (mut helps, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        helps.push(ms(workspace.time_of(&["--help"])));
        nothing.push(ms(time_of(&mut std::process::Command::new("true"))));
    }
    let nothing = format!("`true`: {}", format_figure(median(&nothing), "ms"));
    report.add("brigade --help", median(&helps), "ms", Target::Below(10.0), nothing);
}

/// A child: only lists the board's folder and reads every file, in one thread.
pub fn read_all(workspace: &Path, _: usize) {
    let mut bytes = 0;
    for entry in fs::read_dir(workspace.join(".tasks")).unwrap() {
        let path = entry.unwrap().path();
        bytes += fs::read(&path).map_or(0, |bytes| bytes.len());
    }
    assert!(bytes > 0, "there are tasks");
}
