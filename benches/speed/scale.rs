//! Many teammates: a thousand idle ones, three hundred at work.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use brigade::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use brigade::domain::team::team_spec::Limits;
use brigade::domain::time::UnixMs;
use brigade::ports::{Durability, ModelRequest, Transcripts};
use brigade::stores::file::TEAM_FOLDER;
use brigade::stores::file::transcripts::FileTranscripts;
use brigade::stores::fs::RealFileSystem;
use serde_json::{Value, json};

use super::child_process::{ChildProcess, next_line, say};
use super::report::{ROUNDS, Report, Target, format_figure, median};
use super::team::{FnModel, NO_OP, TeamSetup, member_name};
use super::wakeups::cpu_of;
use super::workspace::{BenchWorkspace, WAIT_TIME_MAX, pending};
use crate::testkit::answers::{self, call, complete, new_task};
use crate::testkit::interceptors::with_polls_noted;

const IDLE: usize = 1000;
const MESSAGES: usize = 200;
/// Tasks that are added, one per second.
const ADDED: usize = 10;

const BUSY: usize = 300;
/// The measured time of each round with 300 teammates, and their warm-up time.
const COUNTED: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(3);

pub fn measure_idle(report: &mut Report) {
    // On call, teammates do not poll, so the woken ones show. In the first minute all poll every five seconds.
    let on_call = watch_idle(5);
    let megabytes = on_call["rss_kb"].as_f64().unwrap() / 1024.0;
    let peak = format!("at most {}", format_figure(on_call["peak_kb"].as_f64().unwrap() / 1024.0, "MB"));
    report.add("memory of 1,000 idle teammates, 200 messages each", megabytes, "MB", Target::Below(250.0), peak);
    let asked = format!("{} requests", on_call["requests"]);
    let woken: Vec<f64> = on_call["woken"].as_array().unwrap().iter().map(|count| count.as_f64().unwrap()).collect();
    let most = woken.iter().copied().fold(0.0, f64::max);
    report.add("teammates woken for a task, at most", most, "", Target::AtMost(1.0), asked);
    let cpu = on_call["cpu_percent"].as_f64().unwrap();
    report.add("share of a core, on call, a task a second", cpu, "%", Target::Below(5.0), "");
    let looking = watch_idle(60);
    let cpu = looking["cpu_percent"].as_f64().unwrap();
    report.add("the same in their first minute, each looking every 5 s", cpu, "%", Target::Below(5.0), "");
}

/// The cost of many teammates in a separate process that poll for this many seconds until they are on call.
fn watch_idle(idle_timeout_s: usize) -> Value {
    let workspace = BenchWorkspace::new();
    write_transcripts(&workspace);
    let mut crowd = ChildProcess::ready("idle-crowd", workspace.path(), idle_timeout_s);
    let mut creator = ChildProcess::ready("create", workspace.path(), 0);
    let (started_at, cpu) = (Instant::now(), cpu_of(crowd.process.id()));
    for _ in 0..ADDED {
        thread::sleep(Duration::from_secs(1));
        crowd.send_line("count");
        creator.send_line("create");
        creator.read_reply();
    }
    thread::sleep(Duration::from_secs(1));
    crowd.send_line("count");
    let share = (cpu_of(crowd.process.id()) - cpu) / started_at.elapsed().as_secs_f64() * 100.0;
    let status = fs::read_to_string(format!("/proc/{}/status", crowd.process.id())).unwrap();
    let kilobytes = |field: &str| {
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let (rss, peak) = (kilobytes("VmRSS"), kilobytes("VmHWM"));
    crowd.send_line("end");
    let mut measurement = crowd.read_json();
    creator.finish();
    measurement["cpu_percent"] = json!(share);
    measurement["rss_kb"] = json!(rss);
    measurement["peak_kb"] = json!(peak);
    measurement
}

/// Writes a transcript for every teammate.
fn write_transcripts(workspace: &BenchWorkspace) {
    let files = Arc::new(RealFileSystem::default());
    let folder = workspace.join(TEAM_FOLDER);
    fs::create_dir_all(folder.join("transcripts")).unwrap();
    let transcripts = FileTranscripts::new(files, Durability::Process, &folder);
    let records: Vec<Record> = (0..MESSAGES)
        .map(|number| {
            let role = if number % 2 == 0 { Role::User } else { Role::Assistant };
            let text = format!("Message {number}: what was found in the file, and what is to be done about it next.");
            let entry = TranscriptEntry::Message(MessageRecord::new(role, vec![Block::text(text)]));
            Record { at: UnixMs(1_763_688_000_000), entry }
        })
        .collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for number in 1..=IDLE {
        runtime.block_on(transcripts.append(&member_name(number), &records, false)).unwrap();
    }
}

/// A child: idle teammates in a separate process, so that their memory can be measured.
pub fn idle(workspace: &Path, idle_timeout_s: usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let requests = Arc::new(AtomicUsize::new(0));
        let request_count = Arc::clone(&requests);
        let respond = move |request: &ModelRequest| {
            request_count.fetch_add(1, Ordering::Relaxed);
            let answer = new_task(request).map_or_else(|| answers::say("Done."), |task| call(&[complete(task)]));
            (answer, Duration::ZERO)
        };
        let model = Arc::new(FnModel { respond, on_answer: |_: &str| {} });
        let limits = Limits { idle_timeout: Duration::from_secs(idle_timeout_s as u64), ..Limits::default() };
        let looks = Arc::new(Mutex::new(Vec::new()));
        let watching = Arc::clone(&looks);
        let setup =
            TeamSetup { workspace, members: IDLE, durability: Durability::Power, limits: limits.clone(), model };
        let note = move |name: &str| watching.lock().unwrap().push(name.to_owned());
        let team = setup.launch_with(|stores| with_polls_noted(&stores, note)).await;
        let started_at = Instant::now();
        while !team.is_idle(IDLE) {
            assert!(started_at.elapsed() < WAIT_TIME_MAX, "not all members are idle");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Teammates with a short poll time are on call by then.
        tokio::time::sleep(limits.poll_interval * 2 + Duration::from_secs(1)).await;
        say("ready");
        requests.store(0, Ordering::Relaxed);
        let mut woken = Vec::new();
        while tokio::task::spawn_blocking(next_line).await.unwrap().is_some_and(|line| line == "count") {
            let looked = std::mem::take(&mut *looks.lock().unwrap());
            woken.push(looked.into_iter().collect::<HashSet<_>>().len());
        }
        // The first count is from before the first task.
        let measurement = json!({ "woken": woken[1..], "requests": requests.load(Ordering::Relaxed) });
        say(&measurement.to_string());
        team.stop().await;
    });
}

pub fn measure_busy(report: &mut Report) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rates = runtime.block_on(busy());
    let share = median(&rates) / BUSY as f64 * 100.0;
    let comparison = format!("{} of the ideal {BUSY} turns/s", format_figure(median(&rates), "turns/s"));
    report.add("300 teammates, model latency 1 s", share, "% of ideal", Target::AtLeast(90.0), comparison);
}

/// Turns per second, for each window.
async fn busy() -> Vec<f64> {
    let workspace = BenchWorkspace::with_board(pending(BUSY as u64));
    let turns = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&turns);
    // The measurement ends long before a WORK phase has used all its turns.
    let respond = |_: &ModelRequest| (call(&[(NO_OP, json!({}))]), Duration::from_secs(1));
    let on_answer = move |_: &str| {
        counting.fetch_add(1, Ordering::Relaxed);
    };
    let model = Arc::new(FnModel { respond, on_answer });
    let (durability, limits) = (Durability::Power, Limits::default());
    let team = TeamSetup { workspace: workspace.path(), members: BUSY, durability, limits, model }.launch().await;
    tokio::time::sleep(WARM_UP).await;
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let (before, started_at) = (turns.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(COUNTED).await;
        rates.push((turns.load(Ordering::Relaxed) - before) as f64 / started_at.elapsed().as_secs_f64());
    }
    team.stop().await;
    rates
}
