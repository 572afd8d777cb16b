//! Checks that all work is present exactly once. The checks read files and call git; they use no code of Brigade.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::setup::World;
use super::workspace::ChaosWorkspace;
use crate::testkit::process::files_below;

/// The branch of the team.
const BRANCH: &str = "brigade/crew";

/// Checks what must hold at every moment, whichever process was just killed.
pub fn check_always(world: &World) {
    let (tasks, torn) = world.workspace.tasks();
    for text in torn {
        world.wrong("torn-files", &text);
    }
    let by_id: BTreeMap<u64, &Value> = tasks.iter().filter_map(|task| Some((task["id"].as_u64()?, task))).collect();
    let mut answers = world.answers.lock().unwrap();
    let lost: Vec<u64> = answers.tasks.keys().filter(|id| !by_id.contains_key(id)).copied().collect();
    for id in lost {
        let subject = answers.tasks.remove(&id).unwrap_or_default();
        world.wrong("lost-tasks", &format!("#{id} {subject}"));
    }
    for (id, task) in by_id {
        let attempt = task["attempt"].as_u64().unwrap_or(0);
        let before = answers.attempts.insert(id, attempt).unwrap_or(0);
        if attempt < before {
            world.wrong("two-owners", &format!("attempt {before} of #{id} was followed by {attempt}"));
        }
        let is_done = task["status"] == "completed";
        if answers.done.contains(&id) && !is_done {
            world.wrong("undone-tasks", &task.to_string());
        }
        if is_done {
            answers.done.insert(id);
        }
    }
    drop(answers);
    check_branch_moves_forward(world);
}

/// The team branch only moves forward. The first launch creates it at the person's commit, whose branch never moves.
fn check_branch_moves_forward(world: &World) {
    let mut seen = world.seen.lock().unwrap();
    if world.workspace.git(&["rev-list", "--count", "main"]).as_deref() != Some("1") {
        world.wrong("broken-branches", "the person's branch was moved");
    }
    match world.workspace.git(&["rev-parse", "--verify", BRANCH]) {
        None if world.workspace.git(&["rev-parse", "main"]).as_deref() == Some(seen.as_str()) => {}
        Some(now) if now == *seen => {}
        Some(now) if world.workspace.git(&["merge-base", "--is-ancestor", &seen, &now]).is_some() => *seen = now,
        now => world.wrong("broken-branches", &format!("{seen} was followed by {now:?}")),
    }
}

/// The final account, after all tasks are done.
pub fn check_at_end(world: &World) {
    check_always(world);
    check_tasks(world);
    check_attempts(world);
    check_mail(world);
    check_branch(world);
    check_lines(world);
    check_leftovers(world);
}

fn check_tasks(world: &World) {
    let (tasks, answers) = (world.workspace.tasks().0, world.answers.lock().unwrap());
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
    for (id, attempt) in &answers.completed {
        let task = tasks.iter().find(|task| task["id"].as_u64() == Some(*id));
        if task.is_none_or(|task| task["attempt"].as_u64() != Some(*attempt)) {
            world.wrong("completed-twice", &format!("completed in attempt {attempt}, and now {task:?}"));
        }
    }
}

/// Compares what commands noted at their start with the claims that were granted.
fn check_attempts(world: &World) {
    let mut begun: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    for line in world.workspace.noted("begun") {
        let [task, attempt, name] = &line[..] else { continue };
        let key = (task.parse().unwrap_or(0), attempt.parse().unwrap_or(0));
        begun.entry(key).or_default().push(name.clone());
    }
    world.counts.add("attempts", begun.len());
    let mut holders = world.answers.lock().unwrap().holders.clone();
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

/// The message numbers in a transcript by sender, in order.
fn delivered(workspace: &ChaosWorkspace, to: &str) -> BTreeMap<String, Vec<usize>> {
    let mut numbers_by_sender: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let folder = workspace.join(".team/transcripts");
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
                    numbers_by_sender.entry(sender.to_owned()).or_default().push(number);
                }
            }
        }
    }
    numbers_by_sender
}

fn check_mail(world: &World) {
    let accepted = world.answers.lock().unwrap().mail.clone();
    let recipients: BTreeSet<&str> = accepted.keys().map(|(to, _)| to.as_str()).collect();
    for to in recipients {
        let delivered = delivered(&world.workspace, to);
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

/// Checks the merged branch: git finds no damage, every commit of a completed task was merged once, and the line of
/// every task occurs once.
fn check_branch(world: &World) {
    let workspace = &world.workspace;
    if workspace.git(&["fsck", "--strict", "--no-dangling", "--no-progress"]).is_none() {
        world.wrong("broken-branches", "git fsck");
    }
    let merges = workspace.git(&[
        "log",
        "--merges",
        "--first-parent",
        "--format=%(trailers:key=Brigade-Task,valueonly,separator=%x2C)",
        BRANCH,
    ]);
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for task in merges.unwrap_or_default().lines().filter(|line| !line.is_empty()) {
        *times.entry(task.to_owned()).or_default() += 1;
    }
    for (task, times) in times.iter().filter(|(_, times)| **times > 1) {
        world.wrong("doubled-merges", &format!("task {task}: {times} times"));
    }
    // A commit is identified by its tree.
    // Branches of their own keep the commits of failed attempts.
    let of_failed = "--glob=refs/heads/brigade-tasks/crew/*-attempt-*";
    let trees = workspace.git(&["log", "--format=%T", BRANCH, of_failed]).unwrap_or_default();
    let in_branch: HashSet<String> = trees.lines().map(str::to_owned).collect();
    let commits = workspace.noted("commits");
    world.counts.add("commits", commits.len());
    for commit in commits.iter().filter(|line| line.len() == 3 && !in_branch.contains(&line[2])) {
        world.wrong("lost-commits", &commit.join(" "));
    }
    for short in workspace.noted("short") {
        world.wrong("short-worktrees", &format!("task, attempt, files of {}: {}", world.ballast(), short.join(" ")));
    }
    let ballast = workspace.git(&["ls-tree", "--name-only", "brigade/crew:ballast"]).unwrap_or_default();
    if ballast.lines().count() != world.ballast() {
        world.wrong("lost-lines", &format!("of the files without changes {} are left", ballast.lines().count()));
    }
    let log = workspace.git(&["show", "brigade/crew:log.txt"]).unwrap_or_default();
    for task in workspace.tasks().0 {
        let Some(name) = task["subject"].as_str().and_then(|subject| subject.strip_prefix("Task ")) else { continue };
        let line = format!("of {name}");
        let times = log.lines().filter(|there| *there == line).count();
        let file = workspace.git(&["show", &format!("{BRANCH}:file-{name}.txt")]);
        if times != 1 || file.as_deref() != Some(name) {
            world.wrong("lost-lines", &format!("`{line}` is there {times} times, its file is {file:?}:\n{log}"));
        }
    }
    if log.contains("<<<<") || log.contains(">>>>") {
        world.wrong("broken-branches", &format!("half a merge:\n{log}"));
    }
    for folder in [".", ".worktrees/crew"] {
        let status = workspace.git(&["-C", folder, "status", "--porcelain"]);
        if status.as_deref() != Some("") {
            world.wrong("broken-branches", &format!("{folder} is not at its branch: {status:?}"));
        }
    }
    let checked_out = workspace.git(&["-C", ".worktrees/crew", "symbolic-ref", "--short", "HEAD"]);
    if checked_out.as_deref() != Some(BRANCH) {
        world.wrong("broken-branches", &format!("the team worktree is on {checked_out:?}"));
    }
}

/// A file and a line of it.
type Line = (String, String);

/// Checks that each line a commit of the branch added is in the result, or was removed by a later commit.
fn check_lines(world: &World) {
    let workspace = &world.workspace;
    let log = workspace.git(&[
        "log",
        "--reverse",
        "--topo-order",
        "--no-merges",
        "--format=commit %H",
        "-p",
        "-U0",
        "--no-renames",
        "--text",
        BRANCH,
    ]);
    let mut added: Vec<(String, Line)> = Vec::new();
    let mut removed: HashMap<Line, Vec<String>> = HashMap::new();
    let (mut commit, mut old, mut new) = (String::new(), String::new(), String::new());
    let name = |line: &str| line.trim_start_matches("a/").trim_start_matches("b/").to_owned();
    for line in log.unwrap_or_default().lines() {
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
        let content =
            files.entry(file.clone()).or_insert_with(|| workspace.git(&["show", &format!("{BRANCH}:{file}")]));
        let is_there = content.as_ref().is_some_and(|all| all.lines().any(|there| there == text));
        let is_after = |later: &String| {
            *later == commit || workspace.git(&["merge-base", "--is-ancestor", &commit, later]).is_some()
        };
        if !is_there && !removed.get(&line).is_some_and(|commits| commits.iter().any(is_after)) {
            world.wrong("lost-lines", &format!("{file}: `{text}`, added by {commit}"));
        }
    }
}

fn git_locks(workspace: &ChaosWorkspace) -> Vec<PathBuf> {
    let is_lock = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "lock");
    files_below(&workspace.join(".git")).into_iter().filter(is_lock).collect()
}

fn check_leftovers(world: &World) {
    let workspace = &world.workspace;
    let team = files_below(&workspace.join(".team")).into_iter().chain(files_below(&workspace.join(".tasks")));
    let is_left = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let starts = [".tmp-", ".batch-", ".deleted-"];
        starts.iter().any(|start| name.starts_with(start))
            || path.parent().is_some_and(|folder| folder.ends_with("workers"))
    };
    for path in team.filter(is_left).chain(git_locks(workspace)) {
        world.wrong("temporaries", &relative_path(workspace, &path));
    }
    let refs = workspace.git(&["for-each-ref", "--format=%(refname)"]).unwrap_or_default();
    // Those keep the work of failed attempts.
    let refs = refs.lines().filter(|name| !name.contains("-attempt-")).collect::<Vec<_>>().join("\n");
    if refs != "refs/heads/brigade/crew\nrefs/heads/main" {
        world.wrong("worktrees", &format!("refs: {}", refs.replace('\n', " ")));
    }
    let listed = workspace.git(&["worktree", "list", "--porcelain"]).unwrap_or_default();
    // The team worktree is kept, and the checkout for verifying merges until the next launch: it holds ignored files, such as builds.
    let is_kept = |name: &str| ["crew", "crew.merge", ".gitignore"].contains(&name.rsplit('/').next().unwrap_or(name));
    let listed = listed.lines().filter(|line| line.starts_with("worktree ") && !is_kept(line)).count();
    let there: Vec<String> = std::fs::read_dir(workspace.join(".worktrees"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !is_kept(name))
        .collect();
    if listed != 1 || !there.is_empty() {
        world.wrong("worktrees", &format!("{listed} are listed, {there:?} are there"));
    }
    let processes = workspace.processes();
    if !processes.is_empty() {
        world.wrong("orphans", &format!("in the end: {processes:?}"));
    }
}

fn relative_path(workspace: &ChaosWorkspace, path: &Path) -> String {
    path.strip_prefix(&workspace.root).unwrap_or(path).display().to_string()
}
