//! Commands: each a process that starts cold (the files are in memory, the process knows nothing).

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::child;
use super::place::{Place, mostly_closed, time_of};
use super::report::{Report, Target, figure, median, ms};

/// How often each is measured; they are short, and other processes come in between.
const TIMES: usize = 15;

pub fn measure(report: &mut Report) {
    for (tasks, bound) in [(10_000, 150.0), (1000, 50.0)] {
        let place = Place::with_board(mostly_closed(tasks));
        let (mut claims, mut lists, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TIMES {
            claims.push(ms(place.time_of(&["tasks", "claim", "--as", "bench", "--workspace", "."])));
            lists.push(ms(place.time_of(&["tasks", "--workspace", "."])));
            let mut read_all = child::command("read-all", place.path(), 0);
            bare.push(ms(time_of(read_all.stdin(Stdio::null()))));
        }
        let bare = format!("a process that only reads the files: {}", figure(median(&bare), "ms"));
        report.add(format!("brigade tasks claim, {tasks} tasks"), median(&claims), "ms", Target::Below(bound), &bare);
        report.add(format!("brigade tasks, {tasks} tasks"), median(&lists), "ms", Target::Below(bound), &bare);
    }
    let place = Place::new();
    let (mut helps, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        helps.push(ms(place.time_of(&["--help"])));
        nothing.push(ms(time_of(&mut std::process::Command::new("true"))));
    }
    let nothing = format!("`true`: {}", figure(median(&nothing), "ms"));
    report.add("brigade --help", median(&helps), "ms", Target::Below(10.0), nothing);
}

/// A child: lists the board's folder and reads every file, by one thread, and nothing else.
pub fn read_all(workspace: &Path, _: usize) {
    let mut bytes = 0;
    for entry in fs::read_dir(workspace.join(".tasks")).unwrap() {
        let path = entry.unwrap().path();
        bytes += fs::read(&path).map_or(0, |bytes| bytes.len());
    }
    assert!(bytes > 0, "there are tasks");
}
