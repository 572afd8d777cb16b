//! Concurrent users, each in a thread: claimers by command, people who add tasks, senders of mail. Their commands are
//! killed and suspended too. The account relies only on the answers they got.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::setup::{MEMBERS, World, script};
use super::workspace::signal;
use crate::testkit::process::{WAIT_TIME_MAX, until};

/// One command in this many is killed; one in this many is suspended for longer than a claim's lease.
const KILLED_ONE_IN: u32 = 4;
const STOPPED_ONE_IN: u32 = 12;
const LEASE: &str = "1s";
const STOPPED_FOR: Duration = Duration::from_millis(1300);
/// The capability that only claimers by command have.
const OUTSIDE: &str = "outsider";
/// The most tasks added to one workspace, for the team and for the claimers.
const ADDED_MAX: usize = 4;
const OUTSIDE_MAX: usize = 25;
/// The most messages of one sender.
const MAIL_MAX: usize = 60;

/// The numbers of messages by recipient and sender.
pub type Numbers = BTreeMap<(String, String), BTreeSet<usize>>;

/// The answers that users got.
#[derive(Default)]
pub struct Answers {
    pub tasks: BTreeMap<u64, String>,
    /// The names that were granted an attempt of a task.
    pub holders: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// The attempt whose completion was confirmed.
    pub completed: BTreeMap<u64, u64>,
    /// The highest attempt seen.
    pub attempts: BTreeMap<u64, u64>,
    pub done: BTreeSet<u64>,
    pub mail: Numbers,
}

/// The loops of the threads. Each runs until the workspace is finished.
pub const WORK: [fn(&World, fastrand::Rng); 5] = [claim_as_ann, claim_as_bea, add, send, write_foreign_mail];

/// Runs a command; at random, kills it or suspends it past its lease. Returns its data if it succeeded.
fn run_or_kill(world: &World, arguments: &[&str], random: &mut fastrand::Rng) -> Option<Value> {
    let mut command = world.workspace.brigade(&[arguments, &["--json"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let later = |random: &mut fastrand::Rng| std::thread::sleep(Duration::from_micros(random.u64(..30_000)));
    if random.u32(..KILLED_ONE_IN) == 0 {
        later(random);
        child.kill().unwrap();
        child.wait().unwrap();
        world.counts.kill("kills-command");
        return None;
    }
    if random.u32(..STOPPED_ONE_IN) == 0 {
        later(random);
        signal(pid, Signal::STOP);
        std::thread::sleep(STOPPED_FOR);
        signal(pid, Signal::CONT);
        world.counts.add("stops", 1);
    }
    let waiting = std::thread::spawn(move || child.wait_with_output());
    if !until(WAIT_TIME_MAX, || waiting.is_finished()) {
        world.wrong("hung", &format!("{arguments:?}"));
        signal(pid, Signal::KILL);
    }
    let output = waiting.join().unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("panicked at") {
        world.wrong("panics", &stderr);
    }
    let value: Value = output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())??;
    Some(value["data"].clone())
}

fn pause(random: &mut fastrand::Rng, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(random.u64(most_ms / 4..most_ms)));
}

fn is_over(world: &World) -> bool {
    world.is_over.load(Ordering::Relaxed)
}

fn claim_as_ann(world: &World, random: fastrand::Rng) {
    claim(world, "ann", random);
}

fn claim_as_bea(world: &World, random: fastrand::Rng) {
    claim(world, "bea", random);
}

/// Claims tasks for outsiders and completes them. Sometimes takes a task from the team and releases it.
fn claim(world: &World, name: &str, mut random: fastrand::Rng) {
    while !is_over(world) {
        pause(&mut random, 400);
        if random.u32(..10) == 0 {
            claim_and_release(world, name, &mut random);
        }
        claim_one(world, name, &mut |arguments| run_or_kill(world, arguments, &mut random));
    }
}

/// Claims and completes one task for outsiders. Returns true if there was one.
fn claim_one(world: &World, name: &str, run: &mut dyn FnMut(&[&str]) -> Option<Value>) -> bool {
    let Some(task) = run(&["tasks", "claim", "--as", name, "--can", OUTSIDE, "--lease", LEASE]) else { return true };
    let Some((id, attempt)) = record_claim(world, &task, name) else { return false };
    let (id_text, attempt_text) = (id.to_string(), attempt.to_string());
    let complete = ["tasks", "complete", &id_text, "--as", name, "--attempt", &attempt_text];
    if let Some(task) = run(&complete) {
        if task["status"] != "completed" || task["attempt"].as_u64() != Some(attempt) {
            world.wrong("two-owners", &format!("{name} completed attempt {attempt} and was told {task}"));
        }
        if let Some(other) = world.answers.lock().unwrap().completed.insert(id, attempt) {
            world.wrong("completed-twice", &format!("task {id}: attempts {other} and {attempt}"));
        }
    }
    true
}

/// Records that `name` was granted an attempt.
fn record_claim(world: &World, task: &Value, name: &str) -> Option<(u64, u64)> {
    let claim = (task["id"].as_u64()?, task["attempt"].as_u64()?);
    world.counts.add("claims", 1);
    world.answers.lock().unwrap().holders.entry(claim).or_default().insert(name.to_owned());
    Some(claim)
}

/// Claims a task of the team and releases it.
fn claim_and_release(world: &World, name: &str, random: &mut fastrand::Rng) {
    let tasks = world.workspace.tasks().0;
    let mut pending = tasks.iter().filter(|task| task["status"] == "pending").filter_map(|task| task["id"].as_u64());
    let Some(id) = pending.next().map(|id| id.to_string()) else { return };
    let Some(task) = world.workspace.json(&["tasks", "claim", &id, "--as", name, "--can", "worker", "--lease", LEASE])
    else {
        return;
    };
    if let Some((id, attempt)) = record_claim(world, &task, name) {
        let (id, attempt) = (id.to_string(), attempt.to_string());
        pause(random, 200);
        world.workspace.run(&["tasks", "release", &id, "--as", name, "--attempt", &attempt]);
    }
}

/// Adds tasks to the board, as a person does.
fn add(world: &World, mut random: fastrand::Rng) {
    let out = world.workspace.outside.display().to_string();
    for number in 0.. {
        pause(&mut random, 900);
        if is_over(world) || number >= OUTSIDE_MAX {
            return;
        }
        let ours = ["--max-attempts", "1000", "--requires"];
        let (subject, rest) = if number % (OUTSIDE_MAX / ADDED_MAX) == 0 {
            let name = format!("person-{number}");
            (
                format!("Task {name}"),
                [
                    &ours[..],
                    &["worker", "--description", &format!("```sh\n{}```", script(&name, &out, world.ballast()))],
                ]
                .concat()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            )
        } else {
            let rest = [&ours[..], &[OUTSIDE]].concat();
            (format!("Outside {number}"), rest.iter().map(ToString::to_string).collect())
        };
        let mut arguments = vec!["tasks", "add", subject.as_str()];
        arguments.extend(rest.iter().map(String::as_str));
        if let Some(id) = run_or_kill(world, &arguments, &mut random).and_then(|task| task["id"].as_u64()) {
            world.answers.lock().unwrap().tasks.insert(id, subject);
            world.counts.add("tasks", 1);
        }
    }
}

/// Records an accepted message.
fn record_message(world: &World, to: &str, sender: &str, number: usize) {
    let mut answers = world.answers.lock().unwrap();
    answers.mail.entry((to.to_owned(), sender.to_owned())).or_default().insert(number);
    world.counts.add("mail", 1);
}

/// Sends numbered messages to the teammates and the lead by command.
fn send(world: &World, mut random: fastrand::Rng) {
    for number in 0..MAIL_MAX {
        pause(&mut random, 500);
        if is_over(world) {
            return;
        }
        let to = *random.choice(&["m1", "m2", "lead"]).unwrap();
        let text = format!("mail-person-{number};");
        if run_or_kill(world, &["send", to, &text], &mut random).is_some() {
            record_message(world, to, "person", number);
        }
    }
}

/// Appends lines to an inbox as another program does: it knows the format and takes no locks.
fn write_foreign_mail(world: &World, mut random: fastrand::Rng) {
    let (to, mut torn) = (MEMBERS[2], "");
    for number in 0..MAIL_MAX {
        pause(&mut random, 500);
        if is_over(world) {
            return;
        }
        let line = format!(
            "{torn}{{\"type\": \"message\", \"from\": \"tutor\", \"content\": \"mail-tutor-{number};\", \"timestamp\": 1763688000.5}}\n"
        );
        let inbox = world.workspace.join(&format!(".team/inbox/{to}.jsonl"));
        let file = fs::File::options().create(true).append(true).open(inbox);
        // Writes the line at once. On a full disk the line may be torn; it then does not count as accepted.
        let Ok(written) = file.and_then(|mut file| file.write(line.as_bytes())) else { continue };
        torn = if written == line.len() { "" } else { "\n" };
        if torn.is_empty() {
            record_message(world, to, "tutor", number);
        }
    }
}

/// Claims and completes the remaining tasks for outsiders, without attacks.
pub fn finish_outside_tasks(world: &World) {
    let mut run = |arguments: &[&str]| world.workspace.json(arguments);
    for _ in 0..4 * OUTSIDE_MAX {
        let tasks = world.workspace.tasks().0;
        let is_left = |task: &&Value| task["requires"][0] == OUTSIDE && task["status"] != "completed";
        if !tasks.iter().any(|task| is_left(&task)) {
            return;
        }
        if !claim_one(world, "cid", &mut run) {
            // A killed claimer holds it by a lease, or the task waits for its back-off.
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// Runs `program` to its end. Returns true if it succeeded.
pub fn runs(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
