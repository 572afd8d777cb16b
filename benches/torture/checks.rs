//! Whether everything is there, and once. It reads files and asks git; nothing of Brigade's code has a part in it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::place::{Place, files_below};
use super::world::World;

/// What holds at every moment, whoever has just been killed.
pub fn look(world: &World) {
    let (tasks, torn) = world.place.tasks();
    for text in torn {
        world.wrong("torn-files", &text);
    }
    let by_id: BTreeMap<u64, &Value> = tasks.iter().filter_map(|task| Some((task["id"].as_u64()?, task))).collect();
    let mut known = world.known.lock().unwrap();
    let lost: Vec<u64> = known.tasks.keys().filter(|id| !by_id.contains_key(id)).copied().collect();
    for id in lost {
        let subject = known.tasks.remove(&id).unwrap_or_default();
        world.wrong("lost-tasks", &format!("#{id} {subject}"));
    }
    for (id, task) in by_id {
        let attempt = task["attempt"].as_u64().unwrap_or(0);
        let before = known.attempts.insert(id, attempt).unwrap_or(0);
        if attempt < before {
            world.wrong("two-owners", &format!("attempt {before} of #{id} was followed by {attempt}"));
        }
        let is_done = task["status"] == "completed";
        if known.done.contains(&id) && !is_done {
            world.wrong("undone-tasks", &task.to_string());
        }
        if is_done {
            known.done.insert(id);
        }
    }
    drop(known);
    look_at_branch(world);
}

/// The branch goes forwards only.
fn look_at_branch(world: &World) {
    let mut seen = world.seen.lock().unwrap();
    match world.place.git(&["rev-parse", "--verify", "main"]) {
        Some(now) if now == *seen => {}
        Some(now) if world.place.git(&["merge-base", "--is-ancestor", &seen, &now]).is_some() => *seen = now,
        now => world.wrong("broken-branches", &format!("{seen} was followed by {now:?}")),
    }
}

/// The account, once everything has been done.
pub fn account(world: &World) {
    look(world);
    account_for_tasks(world);
    account_for_attempts(world);
    account_for_mail(world);
    account_for_branch(world);
    account_for_lines(world);
    account_for_what_is_left(world);
}

fn account_for_tasks(world: &World) {
    let (tasks, known) = (world.place.tasks().0, world.known.lock().unwrap());
    for task in tasks.iter().filter(|task| task["status"] != "completed") {
        world.wrong("lost-tasks", &format!("in the end: {task}"));
    }
    let mut subjects: BTreeMap<&str, usize> = BTreeMap::new();
    for task in &tasks {
        *subjects.entry(task["subject"].as_str().unwrap_or_default()).or_default() += 1;
    }
    for (subject, times) in subjects.iter().filter(|(_, times)| **times > 1) {
        world.wrong("doubled-tasks", &format!("{subject}: {times} times"));
    }
    for (id, attempt) in &known.completed {
        let task = tasks.iter().find(|task| task["id"].as_u64() == Some(*id));
        if task.is_none_or(|task| task["attempt"].as_u64() != Some(*attempt)) {
            world.wrong("completed-twice", &format!("completed in attempt {attempt}, and now {task:?}"));
        }
    }
}

/// What commands noted when they began, and who was told to hold what.
fn account_for_attempts(world: &World) {
    let mut begun: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    for line in world.place.noted("begun") {
        let [task, attempt, name] = &line[..] else { continue };
        let key = (task.parse().unwrap_or(0), attempt.parse().unwrap_or(0));
        begun.entry(key).or_default().push(name.clone());
    }
    world.counts.add("attempts", begun.len());
    let mut holders = world.known.lock().unwrap().holders.clone();
    for (held, names) in begun {
        if names.len() > 1 {
            world.wrong("run-twice", &format!("task and attempt {held:?}: {names:?}"));
        }
        holders.entry(held).or_default().extend(names);
    }
    for (held, names) in holders.iter().filter(|(_, names)| names.len() > 1) {
        world.wrong("two-owners", &format!("task and attempt {held:?}: {names:?}"));
    }
}

/// The numbers of the messages in a transcript, by sender, in their order.
fn delivered(place: &Place, to: &str) -> BTreeMap<String, Vec<usize>> {
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let folder = place.join(".team/transcripts");
    let is_of = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.strip_prefix(to).is_some_and(|rest| rest.starts_with('.'))
    };
    let mut paths: Vec<PathBuf> = files_below(&folder).into_iter().filter(is_of).collect();
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            let Ok(record) = serde_json::from_str::<Value>(line) else { continue };
            if record["role"] != "user" {
                continue;
            }
            for part in line.split("mail-").skip(1) {
                let Some((sender, rest)) = part.split_once('-') else { continue };
                let Some((number, _)) = rest.split_once(';') else { continue };
                if let Ok(number) = number.parse() {
                    found.entry(sender.to_owned()).or_default().push(number);
                }
            }
        }
    }
    found
}

fn account_for_mail(world: &World) {
    let accepted = world.known.lock().unwrap().mail.clone();
    let recipients: BTreeSet<&str> = accepted.keys().map(|(to, _)| to.as_str()).collect();
    for to in recipients {
        let delivered = delivered(&world.place, to);
        for (sender, numbers) in &delivered {
            for pair in numbers.windows(2).filter(|pair| pair[0] > pair[1]) {
                world.wrong("reordered-mail", &format!("to {to} from {sender}: {pair:?} of {numbers:?}"));
            }
            let different: BTreeSet<&usize> = numbers.iter().collect();
            if different.len() < numbers.len() {
                world.wrong("doubled-mail", &format!("to {to} from {sender}: {numbers:?}"));
            }
        }
        for ((_, sender), numbers) in accepted.iter().filter(|((recipient, _), _)| recipient == to) {
            let there: BTreeSet<usize> = delivered.get(sender).into_iter().flatten().copied().collect();
            for number in numbers.difference(&there) {
                world.wrong("lost-mail", &format!("number {number} to {to} from {sender}; there are {there:?}"));
            }
        }
    }
}

/// The merged branch: sound, with every commit of a completed task, each merged once, every task's line once.
fn account_for_branch(world: &World) {
    let place = &world.place;
    if place.git(&["fsck", "--strict", "--no-dangling", "--no-progress"]).is_none() {
        world.wrong("broken-branches", "git fsck");
    }
    let merges = place.git(&[
        "log",
        "--merges",
        "--first-parent",
        "--format=%(trailers:key=Brigade-Task,valueonly,separator=%x2C)",
        "main",
    ]);
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for task in merges.unwrap_or_default().lines().filter(|line| !line.is_empty()) {
        *times.entry(task.to_owned()).or_default() += 1;
    }
    for (task, times) in times.iter().filter(|(_, times)| **times > 1) {
        world.wrong("doubled-merges", &format!("task {task}: {times} times"));
    }
    // A commit is known again by its tree: the team adds the task to its message, and it gets another name by that.
    let in_branch: HashSet<String> =
        place.git(&["log", "--format=%T", "main"]).unwrap_or_default().lines().map(str::to_owned).collect();
    let commits = place.noted("commits");
    world.counts.add("commits", commits.len());
    for commit in commits.iter().filter(|line| line.len() == 3 && !in_branch.contains(&line[2])) {
        world.wrong("lost-commits", &commit.join(" "));
    }
    for short in place.noted("short") {
        world.wrong("short-worktrees", &format!("task, attempt, files of {}: {}", world.ballast(), short.join(" ")));
    }
    let ballast = place.git(&["ls-tree", "--name-only", "main:ballast"]).unwrap_or_default();
    if ballast.lines().count() != world.ballast() {
        world.wrong("lost-lines", &format!("of the files nobody touched {} are left", ballast.lines().count()));
    }
    let log = place.git(&["show", "main:log.txt"]).unwrap_or_default();
    for task in place.tasks().0 {
        let Some(name) = task["subject"].as_str().and_then(|subject| subject.strip_prefix("Task ")) else { continue };
        let line = format!("of {name}");
        let times = log.lines().filter(|there| *there == line).count();
        let file = place.git(&["show", &format!("main:file-{name}.txt")]);
        if times != 1 || file.as_deref() != Some(name) {
            world.wrong("lost-lines", &format!("`{line}` is there {times} times, its file is {file:?}:\n{log}"));
        }
    }
    if log.contains("<<<<") || log.contains(">>>>") {
        world.wrong("broken-branches", &format!("half a merge:\n{log}"));
    }
    let status = place.git(&["status", "--porcelain"]);
    if status.as_deref() != Some("") {
        world.wrong("broken-branches", &format!("the person's checkout is not at the branch: {status:?}"));
    }
}

/// A line of a file.
type Line = (String, String);

/// Each line that a commit of the branch added is in the result, or was taken out by a later commit.
fn account_for_lines(world: &World) {
    let place = &world.place;
    let shown = place.git(&[
        "log",
        "--reverse",
        "--topo-order",
        "--no-merges",
        "--format=commit %H",
        "-p",
        "-U0",
        "--no-renames",
        "--text",
        "main",
    ]);
    let mut added: Vec<(String, Line)> = Vec::new();
    let mut removed: HashMap<Line, Vec<String>> = HashMap::new();
    let (mut commit, mut old, mut new) = (String::new(), String::new(), String::new());
    let name = |line: &str| line.trim_start_matches("a/").trim_start_matches("b/").to_owned();
    for line in shown.unwrap_or_default().lines() {
        if let Some(id) = line.strip_prefix("commit ") {
            id.clone_into(&mut commit);
        } else if let Some(file) = line.strip_prefix("--- ") {
            old = name(file);
        } else if let Some(file) = line.strip_prefix("+++ ") {
            new = name(file);
        } else if let Some(text) = line.strip_prefix('+') {
            added.push((commit.clone(), (new.clone(), text.to_owned())));
        } else if let Some(text) = line.strip_prefix('-') {
            removed.entry((old.clone(), text.to_owned())).or_default().push(commit.clone());
        }
    }
    world.counts.add("lines", added.len());
    let mut files: HashMap<String, Option<String>> = HashMap::new();
    for (commit, line) in added {
        let (file, text) = &line;
        let shown = files.entry(file.clone()).or_insert_with(|| place.git(&["show", &format!("main:{file}")]));
        let is_there = shown.as_ref().is_some_and(|all| all.lines().any(|there| there == text));
        let is_after =
            |later: &String| *later == commit || place.git(&["merge-base", "--is-ancestor", &commit, later]).is_some();
        if !is_there && !removed.get(&line).is_some_and(|commits| commits.iter().any(is_after)) {
            world.wrong("lost-lines", &format!("{file}: `{text}`, added by {commit}"));
        }
    }
}

/// Lock files in the repository's folder.
pub fn locks_of_git(place: &Place) -> Vec<PathBuf> {
    let is_lock = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "lock");
    files_below(&place.join(".git")).into_iter().filter(is_lock).collect()
}

fn account_for_what_is_left(world: &World) {
    let place = &world.place;
    let team = files_below(&place.join(".team")).into_iter().chain(files_below(&place.join(".tasks")));
    let is_left = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let starts = [".tmp-", ".batch-", ".deleted-"];
        starts.iter().any(|start| name.starts_with(start))
            || path.parent().is_some_and(|folder| folder.ends_with("workers"))
    };
    for path in team.filter(is_left).chain(locks_of_git(place)) {
        world.wrong("temporaries", &shown(place, &path));
    }
    let refs = place.git(&["for-each-ref", "--format=%(refname)"]).unwrap_or_default();
    if refs != "refs/heads/main" {
        world.wrong("worktrees", &format!("refs: {}", refs.replace('\n', " ")));
    }
    let listed = place.git(&["worktree", "list", "--porcelain"]).unwrap_or_default();
    // The checkout that merges are verified in is kept until the next launch: it has what git ignores, such as builds.
    let is_kept = |name: &str| name.ends_with("crew-merge");
    let listed = listed.lines().filter(|line| line.starts_with("worktree ") && !is_kept(line)).count();
    let there: Vec<String> = std::fs::read_dir(place.join(".worktrees"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !is_kept(name))
        .collect();
    if listed != 1 || !there.is_empty() {
        world.wrong("worktrees", &format!("{listed} are listed, {there:?} are there"));
    }
    let processes = place.processes();
    if !processes.is_empty() {
        world.wrong("orphans", &format!("in the end: {processes:?}"));
    }
}

fn shown(place: &Place, path: &Path) -> String {
    path.strip_prefix(&place.root).unwrap_or(path).display().to_string()
}
