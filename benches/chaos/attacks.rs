//! Attacks on a running team. Each attack starts the team, disturbs it and kills its lead at a random moment.

use std::fs;
use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::setup::World;
use super::users::runs;
use super::workspace::{Lead, PLANTED_FROM, signal};
use crate::testkit::process::{RunningProcess, until};

pub type Attack = fn(&World, &mut fastrand::Rng);

/// All attacks. The number is the weight of the attack in the random choice.
pub const ATTACKS: [(u32, Attack); 13] = [
    (30, kill_lead),
    (6, kill_all),
    (10, kill_guards),
    (12, kill_gits),
    (6, kill_anything),
    (6, start_two_leads),
    (4, stop_lead),
    (4, stop_guard),
    (4, stop_and_kill),
    (8, replace),
    (4, make_read_only),
    (8, fill_disk),
    (8, click),
];

/// Time limit of the search for a process to kill.
const VICTIM_TIME: Duration = Duration::from_millis(200);
/// Time limit within which a second lead must find the first one, on a busy machine.
const SECOND_LEAD_TIME: Duration = Duration::from_secs(20);
/// Time limit for the board's lock while its holder may be suspended.
const LOCK_TIME: Duration = Duration::from_secs(3);
/// Time limit within which a launch must find the desired state of the person.
const CLICK_TIME: Duration = Duration::from_secs(20);

/// Waits for a random moment in the life of a lead: mostly right after its start, sometimes in the middle of its work.
fn wait(random: &mut fastrand::Rng) {
    let most_ms = match random.u32(..100) {
        0..65 => 300,
        65..92 => 1200,
        _ => 3000,
    };
    std::thread::sleep(Duration::from_micros(random.u64(1000..most_ms * 1000)));
}

fn kill_lead(world: &World, random: &mut fastrand::Rng) {
    let mut lead = world.launch(random);
    wait(random);
    world.kill(&mut lead);
}

/// Kills every process at once, as a power cut does.
fn kill_all(world: &World, random: &mut fastrand::Rng) {
    let mut lead = world.launch(random);
    wait(random);
    for process in lead.descendants() {
        signal(process.pid, Signal::KILL);
    }
    world.kill(&mut lead);
}

/// Sends one of these signals to one of the processes that `is_one` selects, as soon as there is one, several times. Then kills the lead.
fn kill_some(
    world: &World,
    random: &mut fastrand::Rng,
    row: &'static str,
    signals: &[Signal],
    is_one: impl Fn(&RunningProcess) -> bool,
) {
    let mut lead = world.launch(random);
    let own = lead.id();
    for _ in 0..random.u32(1..8) {
        std::thread::sleep(Duration::from_micros(random.u64(1000..250_000)));
        let mut victims: Vec<RunningProcess> = Vec::new();
        // Most gits end within milliseconds.
        until(VICTIM_TIME, || {
            victims = lead.descendants().into_iter().filter(|process| process.pid != own && is_one(process)).collect();
            !victims.is_empty()
        });
        if let Some(victim) = random.choice(&victims) {
            signal(victim.pid, *random.choice(signals).unwrap());
            world.counts.kill(row);
        }
    }
    world.kill(&mut lead);
}

fn is_guard(process: &RunningProcess) -> bool {
    process.command.contains("__guard")
}

/// A git of Brigade or of a command. Brigade starts it by its path.
fn is_git(process: &RunningProcess) -> bool {
    process.command.split(' ').next().is_some_and(|program| program.rsplit('/').next() == Some("git"))
}

fn kill_guards(world: &World, random: &mut fastrand::Rng) {
    kill_some(world, random, "kills-guard", &[Signal::KILL], is_guard);
}

/// Git removes its lock files on SIGTERM, and goes on to clean up by paths.
fn kill_gits(world: &World, random: &mut fastrand::Rng) {
    kill_some(world, random, "kills-git", &[Signal::KILL, Signal::TERM], is_git);
}

/// Kills any process: the shell of a command, its init, or a git.
fn kill_anything(world: &World, random: &mut fastrand::Rng) {
    kill_some(world, random, "kills-guard", &[Signal::KILL], |_| true);
}

/// Asserts that a process launched while a lead runs ends, and says that it is not the lead.
fn assert_refused(world: &World, first: &Lead, second: &mut Lead) {
    let code = second.end_within(SECOND_LEAD_TIME);
    // A lead that was suspended just before its end does not lead any more.
    if code != Some(4) && !first.output().contains(" stopped: ") {
        world.wrong("second-leads", &format!("it ended with {code:?}: {}", second.output()));
    }
    second.kill();
    world.assert_alone(second);
}

fn start_two_leads(world: &World, random: &mut fastrand::Rng) {
    let (mut one, mut other) = (world.launch(random), world.launch(random));
    world.counts.add("two-leads", 1);
    // One of them is refused. The other continues, or has finished all tasks.
    let is_one_gone = until(SECOND_LEAD_TIME, || one.exit_code().is_some() || other.exit_code().is_some());
    if !is_one_gone {
        world.wrong("second-leads", &format!("both lead: {} {}", one.output(), other.output()));
    }
    let codes = [one.exit_code(), other.exit_code()];
    if is_one_gone && !codes.contains(&Some(4)) && codes.contains(&None) {
        // The first lead may have ended normally before the second one tried.
        let ended_in_order = codes.iter().flatten().all(|code| [0, 1].contains(code));
        if !ended_in_order {
            world.wrong("second-leads", &format!("{codes:?}: {} {}", one.output(), other.output()));
        }
    }
    wait(random);
    world.kill(&mut one);
    world.kill(&mut other);
}

/// Suspends the lead for longer than any lease. Meanwhile another lead is refused, a person takes a task from it by
/// force, and a claimer claims that task. After it wakes up, the lead is no longer the owner.
fn stop_lead(world: &World, random: &mut fastrand::Rng) {
    let mut lead = world.launch(random);
    std::thread::sleep(Duration::from_millis(random.u64(100..1500)));
    if lead.exit_code().is_some() {
        return;
    }
    let leads = || serde_json::from_slice::<Value>(&world.workspace.read(".team/lead.json")).unwrap_or_default();
    let is_lead = leads()["pid"] == lead.id();
    lead.signal(Signal::STOP);
    world.counts.add("stops", 1);
    if is_lead {
        world.counts.add("two-leads", 1);
        let mut second = world.launch(random);
        assert_refused(world, &lead, &mut second);
    }
    let tasks = world.workspace.tasks().0;
    let is_teams = |task: &&Value| task["status"] == "in_progress" && task["requires"][0] == "worker";
    if let Some(number) = tasks.iter().find(is_teams).and_then(|task| task["id"].as_u64()) {
        let id = number.to_string();
        // A process suspended in the middle of a board change holds the lock. All others wait until it is woken.
        let is_free = world.workspace.run_within(LOCK_TIME, &["tasks", "release", &id, "--force"]).is_some();
        if !is_free {
            lead.signal(Signal::CONT);
        }
        if let Some(task) =
            world.workspace.json(&["tasks", "claim", &id, "--as", "dan", "--can", "worker", "--lease", "1s"])
        {
            let attempt = task["attempt"].as_u64().unwrap_or(0);
            let claim = (task["id"].as_u64().unwrap_or(0), attempt);
            world.answers.lock().unwrap().holders.entry(claim).or_default().insert("dan".to_owned());
            lead.signal(Signal::CONT);
            wait(random);
            let now = world
                .workspace
                .tasks()
                .0
                .into_iter()
                .find(|task| task["id"].as_u64() == Some(number))
                .unwrap_or_default();
            let is_owners =
                now["owner"] == "dan" || now["attempt"].as_u64() > Some(attempt) || now["status"] == "pending";
            if !is_owners {
                world.wrong("two-owners", &format!("the lead that woke up has it: {now}"));
            }
            world.workspace.run(&["tasks", "release", &id, "--as", "dan", "--attempt", &attempt.to_string()]);
        }
    }
    lead.signal(Signal::CONT);
    wait(random);
    world.kill(&mut lead);
}

/// A guard that is suspended when its lead is killed ends its command right after it is woken.
fn stop_guard(world: &World, random: &mut fastrand::Rng) {
    let mut lead = world.launch(random);
    std::thread::sleep(Duration::from_millis(random.u64(200..1500)));
    let guards: Vec<RunningProcess> = lead.descendants().into_iter().filter(is_guard).collect();
    for guard in &guards {
        signal(guard.pid, Signal::STOP);
        world.counts.add("stops", 1);
    }
    lead.kill();
    std::thread::sleep(Duration::from_millis(random.u64(..100)));
    for guard in &guards {
        signal(guard.pid, Signal::CONT);
    }
    world.kill(&mut lead);
}

/// Asks the lead to stop, and kills it while it stops.
fn stop_and_kill(world: &World, random: &mut fastrand::Rng) {
    let mut lead = world.launch(random);
    wait(random);
    lead.signal(*random.choice(&[Signal::INT, Signal::TERM, Signal::HUP]).unwrap());
    std::thread::sleep(Duration::from_micros(random.u64(..200_000)));
    world.kill(&mut lead);
}

/// Removes or replaces a file that the team can make again, before the team starts or while it runs.
fn replace(world: &World, random: &mut fastrand::Rng) {
    let workspace = &world.workspace;
    let mut lead = random.bool().then(|| world.launch(random));
    if lead.is_some() {
        wait(random);
    }
    let folder_for = |name: &str| {
        let path = workspace.join(name);
        let _ = fs::remove_file(&path);
        // The team may make the file again in between.
        let _ = fs::create_dir(&path);
    };
    let planted = |more: u64| format!(".tasks/task_{}.json", PLANTED_FROM + more);
    match random.u32(..8) {
        0 => folder_for(".team/lead.json"),
        1 => drop(fs::remove_file(workspace.join(".team/lead.lock"))),
        2 => drop(fs::remove_dir_all(workspace.join(".team/workers"))),
        3 => drop(fs::remove_dir_all(workspace.join(".team/spare"))),
        4 => folder_for(&planted(1)),
        5 => drop(fs::write(workspace.join(&planted(2)), "{\"id\": 700002, \"subject\": \"half a ta")),
        6 => folder_for(".team/events.jsonl"),
        _ => drop(fs::write(workspace.join(".tasks/.tmp-4194999-0-1"), "left by a dead process")),
    }
    world.counts.add("replaced", 1);
    let mut lead = lead.take().unwrap_or_else(|| world.launch(random));
    wait(random);
    world.kill(&mut lead);
    // The folder is removed by the attack that made it.
    for name in [".team/lead.json", ".team/events.jsonl", &planted(1)] {
        let _ = fs::remove_dir(workspace.join(name));
    }
    let _ = fs::remove_file(workspace.join(&planted(2)));
}

/// The workspace folder, mounted over itself read-only until the value is dropped.
struct ReadOnly(String);

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = runs("umount", &["--lazy", &self.0]);
    }
}

fn make_read_only(world: &World, random: &mut fastrand::Rng) {
    let path = world.workspace.root.display().to_string();
    let mut lead = world.launch(random);
    wait(random);
    if !runs("mount", &["--bind", &path, &path]) {
        world.kill(&mut lead);
        return;
    }
    let read_only = ReadOnly(path.clone());
    // The kernel refuses this while a file below is open for writing.
    if until(Duration::from_secs(2), || runs("mount", &["-o", "remount,bind,ro", &path])) {
        world.counts.add("read-only", 1);
    }
    wait(random);
    let dies_first = random.bool();
    if dies_first {
        world.kill(&mut lead);
    }
    drop(read_only);
    if !dies_first {
        wait(random);
        world.kill(&mut lead);
    }
}

/// Fills the disk to the last byte while the team runs.
fn fill_disk(world: &World, random: &mut fastrand::Rng) {
    if !world.is_small {
        return kill_lead(world, random);
    }
    let mut lead = world.launch(random);
    wait(random);
    let hog = world.workspace.join("hog");
    if let Ok(mut file) = fs::File::create(&hog) {
        for size in [1 << 20, 1 << 12, 1] {
            let bytes = vec![b'x'; size];
            while file.write_all(&bytes).is_ok() {}
        }
        world.counts.add("full-disk", 1);
    }
    wait(random);
    let dies_first = random.bool();
    if dies_first {
        world.kill(&mut lead);
    }
    let _ = fs::remove_file(&hog);
    if !dies_first {
        wait(random);
        world.kill(&mut lead);
    }
}

/// A Mission Control sets the desired state, and the lead is killed a moment later. The next launch must find that
/// state.
fn click(world: &World, random: &mut fastrand::Rng) {
    let workspace = &world.workspace;
    let up = ["up", "crew", "--headless"];
    let start = || {
        world.counts.add("launches", 1);
        workspace.launch(&up)
    };
    let path = workspace.join("agent_state.json");
    let read = || fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let mut lead = start();
    until(CLICK_TIME, || read().is_some_and(|state| state.is_object()) || !path.exists());
    wait(random);
    let Some(mut state) = read() else { return world.kill(&mut lead) };
    let (word, note) = (*random.choice(&["pause", "continuous"]).unwrap(), format!("click-{}", random.u64(..)));
    state["desired_state"] = json!(word);
    state["setBy"] = json!("human");
    state["note"] = json!(note);
    let text = serde_json::to_string_pretty(&state).unwrap();
    // Writes by a rename, or in place, where a reader may see half of the file.
    let beside = workspace.outside.parent().unwrap().join("click.json");
    let is_saved = if random.bool() && !world.is_small {
        fs::write(&beside, &text).and_then(|()| fs::rename(&beside, &path)).is_ok()
    } else {
        fs::write(&path, &text).is_ok()
    };
    if !is_saved {
        return world.kill(&mut lead);
    }
    world.counts.add("clicks", 1);
    std::thread::sleep(Duration::from_micros(random.u64(..60_000)));
    world.kill(&mut lead);
    let mut lead = start();
    let stands = |state: &Value| state["desired_state"] == word && state["note"] == note.as_str();
    if !until(CLICK_TIME, || read().as_ref().is_some_and(stands)) {
        world.wrong("lost-clicks", &format!("{word} ({note}), and there is {:?}: {}", read(), lead.output()));
    }
    world.kill(&mut lead);
}
