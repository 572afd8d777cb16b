//! A team with isolation: its branches conflict, it is killed at every moment, its git is missing or old. Every line is counted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Answer, Place, git, wait_until};

/// How often a run is killed, each time one event later.
const KILLS: usize = 14;
/// Runs after which everything must be done.
const RUNS_MAX: usize = 12;

/// A repository with a team of three that keeps each task in a worktree, and these tasks.
fn repository(plan: &str) -> Place {
    let place = Place::with_team(3, plan);
    place.write_team(3, "plan = \"plan.md\"\nisolation = \"worktree\"");
    place.write("log.txt", "begin\nend\n");
    place.write(".gitignore", ".tasks/\n.team/\nagent_state.json\nsaid-*\nno-config/\n");
    git(&place, &["init", "-q", "-b", "main", "."]);
    git(&place, &["add", "-A"]);
    git(&place, &["commit", "-q", "-m", "Begin"]);
    place
}

/// Tasks that all put their line at the same place: they conflict, and who is refused merges by hand and tries again.
fn conflicting(tasks: usize) -> String {
    let task = |number: usize| {
        let line = format!("of task {number}");
        format!(
            "## Task {number}\nverify: grep -qx '{line}' log.txt\n```sh\n\
             git merge -q main || {{ sed -i '/^[<=>]/d' log.txt && git add -A && git commit -q --no-edit; }}\n\
             grep -qx '{line}' log.txt || sed -i 's/^begin$/begin\\n{line}/' log.txt\n\
             echo {number} > file-{number}.txt\n```\n"
        )
    };
    (1..=tasks).map(task).collect()
}

/// The lines of `log.txt` on `main`, sorted.
fn lines(place: &Place) -> Vec<String> {
    let mut lines: Vec<String> = git(place, &["show", "main:log.txt"]).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn all_lines(tasks: usize) -> Vec<String> {
    let mut lines: Vec<String> = (1..=tasks).map(|number| format!("of task {number}")).collect();
    lines.extend(["begin".to_owned(), "end".to_owned()]);
    lines.sort();
    lines
}

/// What holds at every moment at which the team does not run: the repository is whole, and the branch is nothing but whole merges.
fn assert_whole(place: &Place) {
    git(place, &["fsck", "--strict", "--no-dangling", "--no-progress"]);
    let text = git(place, &["show", "main:log.txt"]);
    assert!(!text.contains("<<<<") && !text.contains("===="), "{text}");
    // What is in is in once, with the file of the same task.
    for line in text.lines().filter_map(|line| line.strip_prefix("of task ")) {
        let file = git(place, &["show", &format!("main:file-{line}.txt")]);
        assert_eq!((file.as_str(), text.matches(&format!("of task {line}\n")).count()), (line, 1), "{text}");
    }
}

/// Runs the team until all tasks are completed.
fn finish(place: &Place, tasks: usize) {
    let mut said = Vec::new();
    for _ in 0..RUNS_MAX {
        said.push(place.run(&["run", "crew"]));
        if place.all_are("completed") {
            break;
        }
        for task in place.tasks().iter().filter(|task| task["status"] == "failed") {
            place.run(&["tasks", "retry", &task["id"].to_string()]);
        }
    }
    assert!(place.all_are("completed"), "{said:#?}");
    assert_eq!(lines(place), all_lines(tasks), "every line of every task, once");
    assert_eq!(git(place, &["status", "--porcelain"]), "", "the person's checkout has all of it");
    assert_eq!(fs::read_to_string(place.join("log.txt")).unwrap().lines().count(), tasks + 2);
    let left = git(place, &["for-each-ref", "--format=%(refname)"]);
    assert_eq!(left, "refs/heads/main", "neither branches nor marks are left");
    assert_whole(place);
}

#[test]
fn what_a_runbook_printed_is_no_message_of_a_commit() {
    let place = repository("## Print\n```sh\necho much > file.txt\necho loudly printed\n```\n");
    assert_eq!(place.run(&["run", "crew"]).code, Some(0));
    let said = git(&place, &["log", "--format=%B", "main"]);
    assert!(said.contains("Merge task 1: Print\n\nBrigade-Task: 1\n") && !said.contains("loudly"), "{said}");
}

#[test]
fn pipe_in_place_of_a_file_fails_its_task_alone() {
    let place = repository("## Break\n```sh\nrm log.txt; mkfifo log.txt\n```\n## Next\n```sh\necho y > y.txt\n```\n");
    // The person's rules for what git ignores are a pipe too.
    fs::create_dir_all(place.join("no-config/git")).unwrap();
    assert!(place.command("mkfifo").arg("no-config/git/ignore").status().unwrap().success());
    let run = place.run(&["run", "crew"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!([1, 2].map(|id| place.task(id)["status"].clone()), ["failed", "completed"], "{run:?}");
    assert_eq!(place.read("y.txt"), "y\n");
    let said = place.task(1).to_string();
    assert!(said.contains("log.txt: it is a pipe, not a plain file: remove it (rm)"), "{said}");
}

#[test]
fn what_stays_of_a_task_that_is_deleted_is_named() {
    let place = repository("## Merge\n```sh\ntrue\n```\n## Fail\n```sh\necho half > half.txt\nfalse\n```\n");
    assert_eq!(place.run(&["run", "crew"]).code, Some(1));
    let told = |arguments: &[&str]| {
        let answer = place.run(arguments);
        format!("{}{}", answer.out, answer.err)
    };
    let merged = told(&["tasks", "show", "1"]);
    assert!(merged.contains("commit") && !merged.contains("worktree"), "its folder was removed: {merged}");
    let folder = ".worktrees/crew-task-2";
    assert!(told(&["tasks", "show", "2"]).contains(folder));
    assert!(!told(&["clean"]).contains(folder), "it is the task's");
    let deleted = told(&["tasks", "rm", "2"]);
    assert!(deleted.contains(&format!("its work stays in {folder}, on branch brigade/crew/task-2")), "{deleted}");
    let left = told(&["clean", "--yes"]);
    let how = format!("git worktree remove --force {folder} && git branch -D brigade/crew/task-2");
    assert!(left.contains("work of #2 stays in the repository") && left.contains(&how), "{left}");
    let removed = std::process::Command::new("sh").args(["-c", &how]).current_dir(place.path()).status().unwrap();
    assert!(removed.success());
    assert!(!told(&["clean"]).contains("#2"));
}

#[test]
fn branches_that_conflict_are_merged_with_every_line_and_name_their_makers() {
    let tasks = 8;
    let place = repository(&conflicting(tasks));
    finish(&place, tasks);
    for number in 1..=tasks {
        let task = place.task(number as u64);
        assert_eq!(task["worktree"], format!(".worktrees/crew-task-{number}"), "{task}");
        let evidence = task["result"]["evidence"].as_str().unwrap();
        assert!(evidence.contains("verify exited 0 on the merged result; merged into main as "), "{evidence}");
    }
    let made = git(&place, &["log", "--format=%an|%(trailers:key=Brigade-Task,valueonly)", "--author=brigade.invalid"]);
    for number in 1..=tasks {
        let is_it = |line: &&str| line.starts_with('m') && line.ends_with(&format!(" (crew)|{number}"));
        assert!(made.lines().filter(is_it).count() >= 2, "task {number} has a commit and a merge:\n{made}");
    }
    place.assert_nothing_is_left_running();
}

#[test]
fn a_team_killed_at_any_event_leaves_a_whole_branch_and_the_next_launch_finishes() {
    let tasks = 5;
    let place = repository(&conflicting(tasks));
    for kill in 0..KILLS {
        let before = place.events().first().map(|event| event["at"].clone());
        let mut run = place.start(&["run", "crew"]);
        let enough = 12 + 4 * kill;
        wait_until("some events", || {
            let events = place.events();
            let is_new = events.first().map(|event| event["at"].clone()) != before;
            (is_new && events.len() >= enough) || run.has_ended()
        });
        run.kill();
        place.assert_nothing_is_left_running();
        assert_whole(&place);
        for task in place.tasks().iter().filter(|task| task["status"] == "failed") {
            place.run(&["tasks", "retry", &task["id"].to_string()]);
        }
    }
    finish(&place, tasks);
}

#[test]
fn a_red_merge_is_refused_and_who_waits_for_it_does_not_begin() {
    let plan = "## One\nverify: test $(ls part-* | wc -l) -lt 2\n```sh\necho x > part-1\n```\n\
                ## Two\nverify: test $(ls part-* | wc -l) -lt 2\n```sh\necho x > part-2\n```\n\
                ## After\nafter: One, Two\n```sh\necho x > after\n```\n";
    let place = repository(plan);
    // Both begin before either is merged, so each is green by itself and the second one red as merged.
    let answer = place.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let tasks = place.tasks();
    let of = |status: &str| tasks.iter().filter(|task| task["status"] == status).collect::<Vec<_>>();
    assert_eq!((of("completed").len(), of("failed").len(), of("pending").len()), (1, 1, 1), "{tasks:#?}");
    let reason = of("failed")[0]["result"]["summary"].as_str().unwrap().to_owned();
    assert!(reason.contains("came out red"), "{reason}");
    assert_eq!(git(&place, &["ls-tree", "--name-only", "main"]).matches("part-").count(), 1);
    assert_whole_without_tasks(&place);
}

fn assert_whole_without_tasks(place: &Place) {
    git(place, &["fsck", "--strict", "--no-dangling", "--no-progress"]);
    assert_eq!(git(place, &["status", "--porcelain"]), "");
}

#[test]
fn commands_in_a_worktree_write_nowhere_else() {
    let plan = "## Escape\n```sh\nset +e\n\
                (echo x > ../../escaped.txt) 2> /dev/null; (echo x >> ../../.git/config) 2> /dev/null\n\
                (echo x > ../other.txt) 2> /dev/null; (echo x > .git) 2> /dev/null; (echo x > brigade.toml) 2> /dev/null\n\
                for ref in refs/heads/main refs/heads/mine refs/tags/mine; do git update-ref $ref HEAD~0; done 2> /dev/null\n\
                echo inside > inside.txt; git add -A && git commit -q -m Inside\n\
                git update-ref refs/heads/main HEAD 2> /dev/null && echo moved >> ../../moved.txt\n\
                git --git-dir=../../.git symbolic-ref HEAD refs/heads/mine 2> /dev/null\n\
                (rm -f ../../.git/index; echo x >> ../../.git/HEAD; git stash) 2> /dev/null\n\
                own=$(git rev-parse --absolute-git-dir); common=$(git rev-parse --path-format=absolute --git-common-dir)\n\
                for file in gitdir commondir; do rm -f $own/$file 2> /dev/null && echo $file >> broken.txt; done\n\
                mv $own $own.other 2> /dev/null && echo own >> broken.txt\n\
                (touch $common/objects/pack/x; rm -rf $common/refs/remotes) 2> /dev/null\n\
                up=$(dirname $common); mv $up $up.old 2> /dev/null && echo up >> broken.txt; true\n```\n";
    let place = repository(plan);
    let doctor = place.run(&["doctor"]);
    assert!(doctor.out.contains("a worktree for each task, merged into main"), "{doctor:?}");
    let before = fs::read(place.join(".git/config")).unwrap();
    fs::create_dir_all(place.join(".git/refs/remotes/origin")).unwrap();
    let answer = place.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(place.read("inside.txt"), "inside\n");
    if doctor.out.contains("they see the control files read-only") {
        assert!(!place.join("escaped.txt").exists() && !place.join(".worktrees/other.txt").exists());
        assert_eq!(fs::read(place.join(".git/config")).unwrap(), before);
        assert!(!place.join("broken.txt").exists(), "{}", place.read("broken.txt"));
        assert!(place.join(".git/refs/remotes/origin").exists() && !place.join(".git/objects/pack/x").exists());
        let refs = git(&place, &["for-each-ref", "--format=%(refname)"]);
        assert_eq!(refs, "refs/heads/main", "no ref was made, and the task's own is gone with it");
        let merges = git(&place, &["log", "--first-parent", "--format=%an %s", "main"]);
        assert_eq!(merges.lines().count(), 2, "the branch moved by its one merge: {merges}");
        assert_eq!(git(&place, &["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_whole_without_tasks(&place);
    }
    assert!(place.read("brigade.toml").contains("isolation"));
}

#[test]
fn what_git_ignores_passes_no_verify() {
    let place = repository("## Build\nverify: test -s built/out\n```sh\nmkdir -p built; echo x > built/out\n```\n");
    place.write(".gitignore", &format!("{}/built/\n", place.read(".gitignore")));
    git(&place, &["commit", "-q", "-a", "-m", "Ignore"]);
    let answer = place.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let task = place.task(1);
    assert_eq!(task["status"], "failed", "{task}");
    assert!(place.join(".worktrees/crew-task-1/built/out").exists(), "what it made stays");
}

#[test]
fn a_checkout_that_could_not_follow_is_told_of_until_it_can() {
    let place = repository("## Change\n```sh\necho of the team >> log.txt\n```\n");
    place.write("log.txt", &format!("{}mine\n", place.read("log.txt")));
    let answer = place.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    for command in ["team", "doctor"] {
        let said = place.run(&[command]);
        assert!((said.out + &said.err).contains("brigade-yours/main"), "{command}");
    }
    assert_eq!(git(&place, &["diff", "--name-only"]), "log.txt");
    git(&place, &["stash", "--quiet"]);
    place.run(&["run", "crew"]);
    assert_eq!(git(&place, &["branch", "--show-current"]), "main");
    assert!(place.read("log.txt").contains("of the team"));
    assert!(!place.run(&["team"]).err.contains("brigade-yours"));
}

/// The program with a `git` of the test's own, or none, before all others in `PATH`.
fn with_git(place: &Place, folder: &Path) -> Answer {
    let mut command = place.brigade(&["run", "crew"]);
    command.env("PATH", folder);
    Answer::of(command)
}

#[test]
fn without_a_git_that_will_do_nothing_begins_and_it_is_said_why() {
    let place = repository(&conflicting(1));
    let folder = tempfile::tempdir().unwrap();
    let none = with_git(&place, folder.path());
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(none.err.contains("isolation needs git, and there is none in PATH"), "{none:?}");
    let git = folder.path().join("git");
    fs::write(&git, "#!/bin/sh\necho git version 2.30.1\n").unwrap();
    fs::set_permissions(&git, fs::Permissions::from_mode(0o755)).unwrap();
    let old = with_git(&place, folder.path());
    assert_eq!(old.code, Some(2), "{old:?}");
    assert!(old.err.contains("needs git 2.38 or newer, and this is git version 2.30.1"), "{old:?}");
    fs::remove_dir_all(place.join(".git")).unwrap();
    let outside = place.run(&["run", "crew"]);
    assert_eq!(outside.code, Some(2), "{outside:?}");
    assert!(outside.err.contains("isolation needs a git repository"), "{outside:?}");
    let doctor = place.run(&["doctor"]);
    assert!(doctor.out.contains("FAIL") && doctor.out.contains("isolation needs a git repository"), "{doctor:?}");
}

#[test]
fn who_made_a_conflict_is_answered_with_it_and_mends_it_in_the_same_attempt() {
    let put = |line: &str| format!("sed -i 's/^begin$/begin\\n{line}/' log.txt");
    let bash = |command: String| json!({ "call": [{ "tool": "bash", "input": { "command": command } }] });
    let report = json!({ "call": [{ "tool": "task_update", "input": {
        "task_id": "{{task}}", "status": "completed", "result": "done" } }] });
    let other_began = "until test -e ../crew-task-2/.agent/state.json; do sleep 0.02; done";
    let other_is_in = "until git show main:log.txt | grep -q 'task 1'; do sleep 0.02; done";
    let merge = "git merge -q main; sed -i '/^[<=>]/d' log.txt && git add -A && git commit -q --no-edit";
    let script = json!({
        "m1.task": [bash(format!("{other_began}; {}", put("of task 1"))), report],
        "m2.task": [bash(format!("{}; {other_is_in}", put("of task 2"))), report, bash(merge.to_owned()), report],
    });
    let place =
        repository("## One\nrequires: first\n\n## Two\nrequires: second\n\n## After\nafter: Two\nrequires: nobody\n");
    let member = |name: &str, role: &str| {
        format!(
            "[[teams.crew.members]]\nname = \"{name}\"\nrole = \"{role}\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n"
        )
    };
    let members = member("m1", "first") + &member("m2", "second");
    place.write(
        "brigade.toml",
        &format!("durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\n{members}"),
    );
    place.write("script.json", &script.to_string());
    git(&place, &["add", "-A"]);
    git(&place, &["commit", "-q", "-m", "Script"]);
    place.run(&["run", "crew"]);
    let [one, two, after] = [1, 2, 3].map(|id| place.task(id));
    let how = |task: &Value| (task["status"].as_str().unwrap().to_owned(), task["attempt"].as_u64().unwrap_or(0));
    assert_eq!((how(&one), how(&two)), (("completed".to_owned(), 1), ("completed".to_owned(), 1)), "{two}");
    assert_eq!(after["blockedBy"], json!([]), "what waited for it may begin");
    let told = place.read(".team/transcripts/m2.jsonl");
    assert!(told.contains("conflict in log.txt") && told.contains("task #2 stays in progress (red 1 of 3)"), "{told}");
    assert!(told.contains("Your worktree for it is "), "{told}");
    assert_eq!(lines(&place), all_lines(2));
    assert_eq!(git(&place, &["status", "--porcelain"]), "");
}

#[test]
fn a_task_that_gets_no_worktree_fails_and_keeps_nobody_from_the_others() {
    let others: String = (2..=6).map(|number| format!("## Task {number}\n```sh\ntrue\n```\n")).collect();
    let place = repository(&format!("## Task 1\npriority: 9\n```sh\ntrue\n```\n{others}"));
    // No name for its branch is left.
    for end in ["", "-2", "-3", "-4", "-5", "-6", "-7", "-8", "-9"] {
        git(&place, &["branch", &format!("brigade/crew/task-1{end}/below")]);
    }
    let run = place.brigade(&["run"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    let tasks = place.json(&["tasks"]);
    let status = |id: u64| {
        let task = tasks.as_array().unwrap().iter().find(|task| task["id"] == id).unwrap();
        task["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(status(1), "failed");
    assert!((2..=6).all(|id| status(id) == "completed"));
    let text = place.json(&["tasks", "show", "1"]).to_string();
    assert!(text.contains("there are branches below"), "{text}");
}

#[test]
fn what_is_wrong_with_the_whole_repository_is_no_tasks_failure() {
    let tasks: String = (1..=4).map(|number| format!("## Task {number}\n```sh\ntrue\n```\n")).collect();
    let place = repository(&tasks);
    // What every checkout needs, and is not there.
    git(&place, &["config", "filter.absent.smudge", "false"]);
    git(&place, &["config", "filter.absent.required", "true"]);
    place.write(".git/info/attributes", "log.txt filter=absent\n");
    let mut run = place.start(&["run"]);
    let given_back = || place.events().iter().filter(|event| event["kind"] == "task_released").count();
    wait_until("several tasks were given back", || given_back() >= 4 || run.has_ended());
    run.kill();
    let failures: u64 = place.tasks().iter().map(|task| task["failures"].as_u64().unwrap_or(0)).sum();
    assert!(failures <= 1, "{:?}", place.tasks());
    fs::remove_file(place.join(".git/info/attributes")).unwrap();
    assert_eq!(place.run(&["run"]).code, Some(0));
    assert!(place.all_are("completed"));
}

#[test]
fn what_is_not_committed_is_named_at_the_launch() {
    let place = repository("## One\n```sh\necho one > one.txt\n```\n");
    let clean = place.run(&["run"]);
    assert!(clean.code == Some(0) && !clean.err.contains("not committed"), "{clean:?}");
    place.write("log.txt", "mine\n");
    place.write("new/a.txt", "mine\n");
    let dirty = place.run(&["run"]);
    assert!(dirty.err.contains("not committed in your checkout: log.txt, new/."), "{dirty:?}");
}
