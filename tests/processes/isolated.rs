//! A team in worktrees: its branches conflict, it is killed at every moment, its git is missing or old. Every line is
//! counted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::testkit::process::{ProcessOutput, git, wait_until};
use crate::testkit::seeds::{PROCESS_CHECKS_AT_ONCE, run_in_threads};
use crate::testkit::workspace::TestWorkspace;

/// The number of kills, each one event later.
const KILLS: usize = 14;
/// Runs after which all tasks must be completed.
const RUNS_MAX: usize = 12;
/// The refs while no task is in progress.
const REFS: &str = "refs/heads/brigade/crew\nrefs/heads/main";

/// A repository with a team of three in worktrees, and these tasks.
fn repository(plan: &str) -> TestWorkspace {
    let workspace = TestWorkspace::with_team(3, plan);
    workspace.write_team(3, "plan = \"plan.md\"\nisolation = \"worktree\"");
    workspace.write("log.txt", "begin\nend\n");
    workspace.write(".gitignore", ".tasks/\n.team/\nagent_state.json\nsaid-*\n*-may-end\nno-config/\n");
    git(workspace.path(), &["init", "-q", "-b", "main", "."]);
    git(workspace.path(), &["add", "-A"]);
    git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
    workspace
}

#[test]
fn task_diff_shows_work_before_and_after_merge() {
    let workspace = repository("## Change\n```sh\ntrue\n```\n");
    let open = workspace.join("said-open");
    let script = format!(
        "sed -i s/begin/BEGIN/ log.txt\necho new > new.txt\nwhile ! test -e {}; do sleep 0.02; done",
        open.display()
    );
    workspace.write("plan.md", &format!("## Change\n```sh\n{script}\n```\n"));
    let mut run = workspace.start(&["run", "crew", "--progress", "quiet"]);
    let diff = || workspace.run(&["tasks", "diff", "1"]);
    wait_until("the work has begun", || diff().out.contains("+BEGIN"));
    wait_until("the new file is there", || diff().err.contains("1 new file not committed yet: new.txt"));
    let config = workspace.read("brigade.toml");
    workspace.write("brigade.toml", &config.replace("crew", "other"));
    assert!(diff().out.contains("+BEGIN"), "the team of the worktree is no longer in the config: {:?}", diff());
    workspace.write("brigade.toml", &config);
    fs::write(&open, "").unwrap();
    wait_until("the run ends", || run.has_ended());
    let merged = diff();
    assert!(merged.out.contains("+BEGIN") && merged.out.contains("+new"), "{}", merged.out);
    let stat = workspace.run(&["tasks", "diff", "1", "--stat"]);
    assert!(stat.out.contains("2 files changed") && !stat.out.contains("+BEGIN"), "{}", stat.out);
    workspace.run(&["tasks", "add", "Another"]);
    let none = workspace.run(&["tasks", "diff", "2"]);
    assert!(none.err.contains("#2 has no diff: it has no worktree and no commit"), "{}", none.err);
}

/// Tasks that put their lines at the same place, so that they conflict. A refused task merges by script and retries.
fn conflicting(tasks: usize) -> String {
    let task = |number: usize| {
        let line = format!("of task {number}");
        format!(
            "## Task {number}\nverify: grep -qx '{line}' log.txt\n```sh\n\
             git merge -q brigade/crew || {{ sed -i '/^[<=>]/d' log.txt && git add -A && git commit -q --no-edit; }}\n\
             grep -qx '{line}' log.txt || sed -i 's/^begin$/begin\\n{line}/' log.txt\n\
             echo {number} > file-{number}.txt\n```\n"
        )
    };
    (1..=tasks).map(task).collect()
}

/// The lines of `log.txt` on the team branch, sorted.
fn lines(workspace: &TestWorkspace) -> Vec<String> {
    let mut lines: Vec<String> =
        git(workspace.path(), &["show", "brigade/crew:log.txt"]).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn all_lines(tasks: usize) -> Vec<String> {
    let mut lines: Vec<String> = (1..=tasks).map(|number| format!("of task {number}")).collect();
    lines.extend(["begin".to_owned(), "end".to_owned()]);
    lines.sort();
    lines
}

/// Checks the repository while the team does not run: git finds no damage, and the branch consists of complete merges.
fn assert_branch_valid(workspace: &TestWorkspace) {
    git(workspace.path(), &["fsck", "--strict", "--no-dangling", "--no-progress"]);
    // Before the first launch has created it, the work is on the person's branch.
    let branch =
        git(workspace.path(), &["for-each-ref", "--format=%(refname:short)", "refs/heads/brigade", "refs/heads/main"]);
    let branch = branch.lines().next().unwrap();
    let text = git(workspace.path(), &["show", &format!("{branch}:log.txt")]);
    assert!(!text.contains("<<<<") && !text.contains("===="), "{text}");
    // Each merged line occurs once, with the file of the same task.
    for line in text.lines().filter_map(|line| line.strip_prefix("of task ")) {
        let file = git(workspace.path(), &["show", &format!("{branch}:file-{line}.txt")]);
        assert_eq!((file.as_str(), text.matches(&format!("of task {line}\n")).count()), (line, 1), "{text}");
    }
}

/// Runs the team until all tasks are completed.
fn finish(workspace: &TestWorkspace, tasks: usize) {
    let mut answers = Vec::new();
    for _ in 0..RUNS_MAX {
        answers.push(workspace.run(&["run", "crew"]));
        if workspace.all_are("completed") {
            break;
        }
        for task in workspace.tasks().iter().filter(|task| task["status"] == "failed") {
            workspace.run(&["tasks", "retry", &task["id"].to_string()]);
        }
    }
    assert!(workspace.all_are("completed"), "{answers:#?}");
    assert_eq!(lines(workspace), all_lines(tasks), "a line is missing or repeated");
    assert_eq!(git(workspace.path(), &["status", "--porcelain"]), "", "the person's checkout was changed");
    assert_eq!(workspace.read("log.txt"), "begin\nend\n", "the person's checkout was moved");
    assert_eq!(workspace.read(".worktrees/crew/log.txt").lines().count(), tasks + 2);
    let refs = git(workspace.path(), &["for-each-ref", "--format=%(refname)"]);
    // Those keep the work of attempts whose merge was refused.
    let refs: Vec<&str> = refs.lines().filter(|name| !name.contains("-attempt-")).collect();
    assert_eq!(refs.join("\n"), REFS, "branches or refs are left");
    assert_eq!(workspace.run(&["merge"]).code, Some(0));
    assert_eq!(workspace.read("log.txt").lines().count(), tasks + 2);
    assert_eq!(git(workspace.path(), &["rev-parse", "main"]), git(workspace.path(), &["rev-parse", "brigade/crew"]));
    assert_branch_valid(workspace);
}

#[test]
fn runbook_output_is_not_in_commit_message() {
    let workspace = repository("## Print\n```sh\necho much > file.txt\necho loudly printed\n```\n");
    assert_eq!(workspace.run(&["run", "crew"]).code, Some(0));
    let messages = git(workspace.path(), &["log", "--format=%B", "brigade/crew"]);
    assert!(
        messages.contains("Merge task 1: Print\n\nBrigade-Task: 1\n") && !messages.contains("loudly"),
        "{messages}"
    );
}

#[test]
fn pipe_in_worktree_fails_only_its_task() {
    let workspace =
        repository("## Break\n```sh\nrm log.txt; mkfifo log.txt\n```\n## Next\n```sh\necho y > y.txt\n```\n");
    // The person's global ignore file is a pipe too.
    fs::create_dir_all(workspace.join("no-config/git")).unwrap();
    assert!(workspace.command("mkfifo").arg("no-config/git/ignore").status().unwrap().success());
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!([1, 2].map(|id| workspace.task(id)["status"].clone()), ["failed", "completed"], "{run:?}");
    assert_eq!(workspace.read(".worktrees/crew/y.txt"), "y\n");
    let failed_task = workspace.task(1).to_string();
    assert!(failed_task.contains("log.txt: it is a pipe, not a plain file: remove it (rm)"), "{failed_task}");
}

#[test]
fn deleted_task_names_worktree_and_branch_left() {
    let workspace = repository("## Merge\n```sh\ntrue\n```\n## Fail\n```sh\necho half > half.txt\nfalse\n```\n");
    assert_eq!(workspace.run(&["run", "crew"]).code, Some(1));
    let output_of = |arguments: &[&str]| {
        let answer = workspace.run(arguments);
        format!("{}{}", answer.out, answer.err)
    };
    let merged = output_of(&["tasks", "show", "1"]);
    assert!(!merged.contains("worktree"), "its folder was removed: {merged}");
    let why = output_of(&["why", "1"]);
    assert!(why.contains("no changes: the branch had nothing to merge"), "{why}");
    assert!(!why.contains("commit") && !merged.contains("commit"), "the commit is of other work: {why}{merged}");
    let folder = ".worktrees/crew-task-2";
    assert!(output_of(&["tasks", "show", "2"]).contains(folder));
    assert!(!output_of(&["clean"]).contains(folder), "the worktree belongs to the task");
    assert!(!output_of(&["clean", "--board"]).contains(folder), "without --yes the task stays");
    let deleted = output_of(&["tasks", "rm", "2"]);
    assert!(
        deleted.contains(&format!("its worktree stays: {folder}, on branch brigade-tasks/crew/task-2")),
        "{deleted}"
    );
    let output = output_of(&["clean", "--yes"]);
    let how = format!("rm -rf {folder} && git branch -D brigade-tasks/crew/task-2");
    assert!(output.contains("work of deleted #2 is still there") && output.contains(&how), "{output}");
    let removed = std::process::Command::new("sh").args(["-c", &how]).current_dir(workspace.path()).status().unwrap();
    assert!(removed.success());
    assert!(!output_of(&["clean"]).contains("deleted #2"));
}

#[test]
fn retry_starts_in_new_worktree_and_work_is_kept() {
    let workspace = repository(
        "## Fail once\n```sh\nif [ $BRIGADE_ATTEMPT = 1 ]; then echo half > half.txt; false; fi\n\
         test ! -e half.txt\necho whole > whole.txt\n```\n",
    );
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let task = workspace.task(1);
    assert_eq!((&task["attempt"], &task["failedAttempts"][0]["attempt"]), (&json!(2), &json!(1)), "{task}");
    let kept = "brigade-tasks/crew/task-1-attempt-1";
    assert_eq!(git(workspace.path(), &["show", &format!("{kept}:half.txt")]), "half");
    assert!(workspace.events().iter().any(|event| event["text"].as_str().is_some_and(|text| text.contains(kept))));
    let output_of = |arguments: &[&str]| {
        let answer = workspace.run(arguments);
        format!("{}{}", answer.out, answer.err)
    };
    let listed = output_of(&["clean", "--yes"]);
    assert!(listed.contains(&format!("attempt 1 at #1 is kept on branch {kept}")), "{listed}");
    assert!(output_of(&["clean", "--attempts"]).contains(&format!("would remove branch {kept}")));
    assert!(output_of(&["clean", "--attempts", "--yes"]).contains(&format!("removed branch {kept}")));
    assert_eq!(git(workspace.path(), &["for-each-ref", "--format=%(refname)"]), REFS);
}

/// A `git` that waits for a kill of Brigade before the first of its calls at which a condition holds.
const KILLING_GIT: &str = r#"#!/bin/sh
if test ! -e FOLDER/reached && CONDITION
then touch FOLDER/reached; while test -e FOLDER/reached; do sleep 0.01; done; exit 1
fi
PATH=ORIGINAL_PATH exec git "$@"
"#;

/// The condition for one of the calls between the failure of attempt 1 and the start of attempt 2.
const PREPARES_RETRY: &str = r#"grep -q failedAttempts WORKSPACE/.tasks/task_1.json 2> /dev/null &&
    ! grep -q '"attemptCount": 2' WORKSPACE/.worktrees/crew-task-1/.agent/state.json 2> /dev/null &&
    echo x >> FOLDER/calls && test $(wc -l < FOLDER/calls) = CALL"#;

/// The condition for the calls after the merge of task 1 is visible, and before the board records it.
const IS_MERGED: &str = "test -e WORKSPACE/.git/refs/brigade/crew/merged/task-1 &&
    cmp -s WORKSPACE/.git/refs/brigade/crew/merged/task-1 WORKSPACE/.git/refs/heads/brigade/crew";

/// Runs the team, and kills it before the first call of git at which `condition` holds. Returns false if there is no such call.
fn run_and_kill(workspace: &TestWorkspace, condition: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("git");
    let path = std::env::var("PATH").unwrap();
    let text = KILLING_GIT.replace("CONDITION", condition).replace("ORIGINAL_PATH", &path);
    let text = text.replace("WORKSPACE", &workspace.path().display().to_string());
    fs::write(&program, text.replace("FOLDER", &folder.path().display().to_string())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = workspace.brigade(&["run", "crew"]);
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let has_reached = || folder.path().join("reached").exists();
    while !has_reached() && run.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    // The end of the folder ends the git that waits.
    has_reached()
}

#[test]
fn merge_found_after_kill_keeps_verify() {
    let workspace = repository("## One\nverify: test -e one.txt\n```sh\necho one > one.txt\n```\n");
    assert!(run_and_kill(&workspace, IS_MERGED));
    assert_eq!(workspace.task(1)["status"], "in_progress");
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let result = &workspace.task(1)["result"];
    let verify = json!({ "command": "test -e one.txt", "exitStatus": 0, "outputTail": "" });
    assert_eq!((&result["verify"], result.get("unverified")), (&verify, None), "{result}");
}

#[test]
fn merge_found_after_kill_keeps_unverified() {
    let call = r#"{"call": [{"tool": "bash", "input": {"command": "echo one > one.txt"}}]}"#;
    let report =
        r#"{"call": [{"tool": "task_update", "input": {"task_id": 1, "status": "completed", "result": "Made."}}]}"#;
    for (end, is_unverified) in [(report, false), (r#"{"say": "I made it."}"#, true)] {
        let workspace = repository("## One\n\nMake it.\n");
        workspace.write("script.json", &format!(r#"{{"task": [{call}, {end}, {end}]}}"#));
        let member = "provider = \"scripted\"\nmodel = \"script.json\"\n";
        workspace.write(
            "brigade.toml",
            &workspace.read("brigade.toml").replace("role = \"worker\"\n", &format!("role = \"worker\"\n{member}")),
        );
        assert!(run_and_kill(&workspace, IS_MERGED));
        let run = workspace.run(&["run", "crew"]);
        assert_eq!(run.code, Some(i32::from(is_unverified)), "{run:?}");
        let result = &workspace.task(1)["result"];
        assert_eq!(result["unverified"].as_bool().unwrap_or(false), is_unverified, "{result}");
        assert!(result["evidence"].as_str().unwrap().contains("ended before it could report"), "{result}");
    }
}

/// Kills the team before this call of git while it prepares a retry, and lets the next run finish. Returns false if there is no such call.
fn survives_kill_before(call: usize) -> bool {
    let workspace = repository(
        "## Fail once\n```sh\nif [ $BRIGADE_ATTEMPT = 1 ]; then echo one > one.txt; git add -A; git commit -q -m One; \
         echo half > half.txt; false; fi\ntest ! -e one.txt; test ! -e half.txt\necho whole > whole.txt\n```\n",
    );
    let is_killed = run_and_kill(&workspace, &PREPARES_RETRY.replace("CALL", &call.to_string()));
    let run = workspace.run(&["run", "crew"]);
    assert_eq!((run.code, &workspace.task(1)["status"]), (Some(0), &json!("completed")), "call {call}: {run:?}");
    let kept = "brigade-tasks/crew/task-1-attempt-1";
    let files = git(workspace.path(), &["ls-tree", "--name-only", kept]);
    assert!(files.contains("half.txt") && files.contains("one.txt"), "call {call}: {files}");
    let files = git(workspace.path(), &["ls-tree", "--name-only", "brigade/crew"]);
    assert!(
        files.contains("whole.txt") && !files.contains("half.txt") && !files.contains("one.txt"),
        "{call}: {files}"
    );
    let refs = git(workspace.path(), &["for-each-ref", "--format=%(refname:short)", "refs/heads/brigade-tasks"]);
    assert_eq!(refs, kept, "call {call}");
    assert!(!workspace.join(".worktrees/crew-task-1").exists(), "call {call}");
    is_killed
}

#[test]
fn retry_killed_at_any_call_of_git_is_completed() {
    // Each kill takes time, so the quick run tries fewer calls, and begins at a random one.
    let is_full = std::env::var_os("BRIGADE_CHAOS_COUNT").is_some();
    let (first, step) = if is_full { (1, 3) } else { (fastrand::usize(1..=9), 9) };
    let last = AtomicUsize::new(usize::MAX);
    let calls = (first..).step_by(step).take_while(|call| *call < last.load(Ordering::Relaxed));
    run_in_threads(PROCESS_CHECKS_AT_ONCE, calls, |call| {
        if !survives_kill_before(call) {
            last.fetch_min(call, Ordering::Relaxed);
        }
    });
    assert!(last.load(Ordering::Relaxed) > 10, "{last:?} calls of git");
}

#[test]
fn conflicting_branches_merge_with_every_line() {
    let tasks = 8;
    let workspace = repository(&conflicting(tasks));
    finish(&workspace, tasks);
    for number in 1..=tasks {
        let task = workspace.task(number as u64);
        assert_eq!(task["worktree"], format!(".worktrees/crew-task-{number}"), "{task}");
        let evidence = task["result"]["evidence"].as_str().unwrap();
        assert!(evidence.contains("verify exited 0 on the merged result; merged into brigade/crew as "), "{evidence}");
    }
    let merged = git(
        workspace.path(),
        &["log", "--merges", "--format=%an|%(trailers:key=Brigade-Task,valueonly)", "--author=brigade.invalid"],
    );
    for number in 1..=tasks {
        let is_it = |line: &str| line.starts_with('m') && line.ends_with(&format!(" (crew)|{number}"));
        assert!(merged.lines().any(is_it), "task {number} has a merge:\n{merged}");
    }
    workspace.assert_nothing_is_left_running();
}

#[test]
fn killed_team_leaves_valid_branch_and_next_finishes() {
    let tasks = 5;
    let workspace = repository(&conflicting(tasks));
    for kill in 0..KILLS {
        let before = workspace.events().first().map(|event| event["at"].clone());
        let mut run = workspace.start(&["run", "crew"]);
        let enough = 12 + 4 * kill;
        wait_until("some events are logged", || {
            let events = workspace.events();
            let is_new = events.first().map(|event| event["at"].clone()) != before;
            (is_new && events.len() >= enough) || run.has_ended()
        });
        run.kill();
        workspace.assert_nothing_is_left_running();
        assert_branch_valid(&workspace);
        for task in workspace.tasks().iter().filter(|task| task["status"] == "failed") {
            workspace.run(&["tasks", "retry", &task["id"].to_string()]);
        }
    }
    finish(&workspace, tasks);
}

#[test]
fn merge_failing_verify_is_refused_and_blocks() {
    // Both begin before either is merged. Each passes by itself; the second one fails as merged.
    let outside = tempfile::tempdir().unwrap();
    let part = |subject: &str, own: u32, other: u32| {
        let folder = outside.path().display();
        let both = format!("touch {folder}/{own}; until test -e {folder}/{other}; do sleep 0.02; done");
        format!("## {subject}\nverify: test $(ls part-* | wc -l) -lt 2\n```sh\n{both}\necho x > part-{own}\n```\n")
    };
    let after = "## After\nafter: One, Two\n```sh\necho x > after\n```\n";
    let workspace = repository(&(part("One", 1, 2) + &part("Two", 2, 1) + after));
    let answer = workspace.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let tasks = workspace.tasks();
    let of = |status: &str| tasks.iter().filter(|task| task["status"] == status).collect::<Vec<_>>();
    assert_eq!((of("completed").len(), of("failed").len(), of("pending").len()), (1, 1, 1), "{tasks:#?}");
    let reason = of("failed")[0]["result"]["summary"].as_str().unwrap().to_owned();
    assert!(reason.contains("` failed on"), "{reason}");
    assert_eq!(git(workspace.path(), &["ls-tree", "--name-only", "brigade/crew"]).matches("part-").count(), 1);
    assert_branch_valid_without_tasks(&workspace);
}

fn assert_branch_valid_without_tasks(workspace: &TestWorkspace) {
    git(workspace.path(), &["fsck", "--strict", "--no-dangling", "--no-progress"]);
    assert_eq!(git(workspace.path(), &["status", "--porcelain"]), "");
}

#[test]
fn command_writes_only_in_its_worktree() {
    let plan = "## Escape\n```sh\nset +e\n\
                (echo x > ../../escaped.txt) 2> /dev/null; (echo x >> ../../.git/config) 2> /dev/null\n\
                (echo x > ../other.txt) 2> /dev/null; (echo x > .git) 2> /dev/null; (echo x > brigade.toml) 2> /dev/null\n\
                for ref in refs/heads/main refs/heads/brigade/crew refs/heads/mine refs/tags/mine; do git -C ../.. update-ref $ref HEAD~0; done 2> /dev/null\n\
                echo inside > inside.txt; git add -A && git commit -q -m Inside\n\
                git push -q ../.. HEAD:refs/heads/main 2> /dev/null && echo moved >> broken.txt\n\
                git --git-dir=../../.git symbolic-ref HEAD refs/heads/mine 2> /dev/null\n\
                (rm -f ../../.git/index; echo x >> ../../.git/HEAD; git stash) 2> /dev/null\n\
                own=$(git rev-parse --absolute-git-dir); common=$(realpath ../../.git)\n\
                for file in config commondir; do rm -f $own/$file 2> /dev/null && echo $file >> broken.txt; done\n\
                git config core.fsmonitor ./evil 2> /dev/null && echo set >> broken.txt\n\
                mv $own $own.other 2> /dev/null && echo own >> broken.txt\n\
                (touch $common/objects/pack/x; rm -rf $common/refs/remotes) 2> /dev/null\n\
                up=$(dirname $own); mv $up $up.old 2> /dev/null && echo up >> broken.txt; true\n```\n";
    let workspace = repository(plan);
    let doctor = workspace.run(&["doctor"]);
    assert!(doctor.out.contains("a worktree for each task, merged into brigade/crew"), "{doctor:?}");
    let before = fs::read(workspace.join(".git/config")).unwrap();
    fs::create_dir_all(workspace.join(".git/refs/remotes/origin")).unwrap();
    let answer = workspace.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(workspace.read(".worktrees/crew/inside.txt"), "inside\n");
    if doctor.out.contains("they see the control files read-only") {
        assert!(!workspace.join("escaped.txt").exists() && !workspace.join(".worktrees/other.txt").exists());
        assert_eq!(fs::read(workspace.join(".git/config")).unwrap(), before);
        let broken = workspace.join(".worktrees/crew/broken.txt");
        assert!(!broken.exists(), "{:?}", fs::read_to_string(broken));
        assert!(workspace.join(".git/refs/remotes/origin").exists() && !workspace.join(".git/objects/pack/x").exists());
        let refs = git(workspace.path(), &["for-each-ref", "--format=%(refname)"]);
        assert_eq!(refs, REFS, "a ref was made, or the task's own branch is left");
        let merges = git(workspace.path(), &["log", "--first-parent", "--format=%an %s", "brigade/crew"]);
        assert_eq!(
            git(workspace.path(), &["rev-parse", "main"]),
            git(workspace.path(), &["rev-parse", "brigade/crew~1"])
        );
        assert_eq!(merges.lines().count(), 2, "the branch did not move by one merge: {merges}");
        assert_eq!(git(workspace.path(), &["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_branch_valid_without_tasks(&workspace);
    }
    assert!(workspace.read("brigade.toml").contains("isolation"));
}

/// To remove its marks of a cherry-pick, git locks the packed refs, which are read-only for a command in a worktree.
#[test]
fn ended_pick_revert_and_rebase_are_completed() {
    let task = |command: &str, mine: &str| {
        format!(
            "## Do {command}\n```sh\nseq 5 > {command}; git add {command}; git commit -q -m Base\n\
             sed -i 's/^3$/3 other/' {command}; git commit -q -a -m Other; other=$(git rev-parse HEAD)\n\
             {mine} {command}; git commit -q -a -m Mine\n\
             if git {command} $other; then exit 1; fi\n\
             sed -i '/^[<=>]/d' {command}; git add {command}; GIT_EDITOR=true git {command} --continue\n```\n"
        )
    };
    let beside = "git reset -q --hard HEAD~1; sed -i 's/^3$/3 mine/'";
    let plan = [task("cherry-pick", beside), task("rebase", beside), task("revert", "sed -i 's/other/other mine/'")];
    let workspace = repository(&plan.concat());
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    for (file, lines) in
        [("cherry-pick", "3 mine\n3 other"), ("rebase", "3 other\n3 mine"), ("revert", "3 other mine\n3")]
    {
        let text = git(workspace.path(), &["show", &format!("brigade/crew:{file}")]);
        assert_eq!(text, format!("1\n2\n{lines}\n4\n5"), "{file}");
    }
}

#[test]
fn ignored_file_does_not_satisfy_verify() {
    let workspace = repository("## Build\nverify: test -s built/out\n```sh\nmkdir -p built; echo x > built/out\n```\n");
    workspace.write(".gitignore", &format!("{}/built/\n", workspace.read(".gitignore")));
    git(workspace.path(), &["commit", "-q", "-a", "-m", "Ignore"]);
    let answer = workspace.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let task = workspace.task(1);
    assert_eq!(task["status"], "failed", "{task}");
    assert!(workspace.join(".worktrees/crew-task-1/built/out").exists(), "the built file was removed");
}

#[test]
fn team_branch_is_reported_and_taken_over() {
    let workspace = repository("## Change\n```sh\necho of the team >> log.txt\n```\n");
    let exclude = fs::read(workspace.join(".git/info/exclude")).unwrap_or_default();
    let config = fs::read(workspace.join(".git/config")).unwrap();
    workspace.write("log.txt", "begin\nmine\n");
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let next = "2 commits on brigade/crew to take over: `git merge brigade/crew`, or `brigade merge`";
    assert!((run.out.clone() + &run.err).contains(next), "{run:?}");
    assert!(run.out.contains("Log: `brigade log`.") && !run.out.contains("Results are in"), "{run:?}");
    let team = workspace.run(&["team"]);
    assert!((team.out.clone() + &team.err).contains(&next[..40]), "{team:?}");
    let doctor = workspace.run(&["doctor"]).out;
    let words = doctor.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("2 commits on brigade/crew to take over"), "{doctor}");
    assert_eq!(workspace.read("log.txt"), "begin\nmine\n");
    let refused = workspace.run(&["merge"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("uncommitted changes: log.txt") && refused.err.contains("git stash"));
    assert_eq!(
        (git(workspace.path(), &["diff", "--name-only"]).as_str(), workspace.read("log.txt").as_str()),
        ("log.txt", "begin\nmine\n")
    );
    git(workspace.path(), &["stash", "--quiet"]);
    let merged = workspace.json(&["merge", "crew"]);
    assert_eq!((merged["branch"].as_str(), merged["into"].as_str()), (Some("brigade/crew"), Some("main")), "{merged}");
    assert_eq!(workspace.read("log.txt"), "begin\nend\nof the team\n");
    assert!(workspace.run(&["merge"]).out.contains("main already has all commits of brigade/crew"));
    let unknown = workspace.run(&["merge", "crow"]);
    assert!(unknown.code == Some(2) && unknown.err.contains("crow"), "{unknown:?}");
    assert_eq!(fs::read(workspace.join(".git/info/exclude")).unwrap_or_default(), exclude);
    assert_eq!(fs::read(workspace.join(".git/config")).unwrap(), config);
}

#[test]
fn doctor_reports_conflict_that_stops_launch() {
    let workspace = repository("## Change\n```sh\nsed -i 's/^begin$/of the team/' log.txt\n```\n");
    assert_eq!(workspace.run(&["run", "crew"]).code, Some(0));
    assert_eq!(workspace.run(&["doctor"]).code, Some(0));
    workspace.write("log.txt", "mine\nend\n");
    git(workspace.path(), &["commit", "-q", "-a", "-m", "Mine"]);
    let (doctor, run) = (workspace.run(&["doctor"]), workspace.run(&["run", "crew"]));
    assert!(doctor.code == Some(1) && run.code == Some(2), "{doctor:?} {run:?}");
    let words = doctor.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("FAIL isolation: team crew: cannot merge your branch into brigade/crew: conflict in log.txt"),
        "{words}"
    );
}

#[test]
fn lost_merge_is_reported_by_doctor_and_run() {
    let workspace = repository("## Change\n```sh\necho of the team >> log.txt\n```\n");
    assert_eq!(workspace.run(&["run", "crew"]).code, Some(0));
    git(workspace.path(), &["branch", "--quiet", "-f", "brigade/crew", "main"]);
    let doctor = workspace.run(&["doctor"]);
    let words = doctor.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let lost = "merges of completed tasks are not on brigade/crew: #1 (";
    assert!(words.contains(lost) && words.contains("`git branch -f brigade/crew "), "{doctor:?}");
    let run = workspace.run(&["run", "crew"]);
    let end = run.out.rsplit_once("Note: merges of completed tasks").map(|(_, end)| end);
    assert!(end.is_some_and(|end| end.contains("adds them")), "{run:?}");
}

#[test]
fn renamed_team_reports_merges_it_lacks() {
    let workspace = repository("## Change\n```sh\necho of the team >> log.txt\n```\n");
    assert_eq!(workspace.run(&["run", "crew"]).code, Some(0));
    let config = workspace.read("brigade.toml").replace("teams.crew", "teams.band");
    workspace.write("brigade.toml", &config);
    git(workspace.path(), &["commit", "-q", "-a", "-m", "Rename"]);
    let run = workspace.run(&["run", "band"]);
    let lost = "merges of completed tasks are not on brigade/band: #1 (";
    let merge = workspace.run(&["merge"]);
    assert!(merge.code == Some(0) && merge.err.contains(lost), "{merge:?}");
    let report = run.out.split_once(lost).map(|(_, report)| report).unwrap_or_default();
    let command = report.split('`').nth(1).unwrap_or_default();
    assert!(command.starts_with("git -C .worktrees/band merge "), "{run:?}");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    git(workspace.path(), &words);
    let run = workspace.run(&["run", "band"]);
    assert!(run.code == Some(0) && !run.out.contains("merges of completed tasks"), "{run:?}");
}

/// The step in the state file of the task's worktree.
fn worktree_step(workspace: &TestWorkspace, identifier: &str) -> Option<Value> {
    let worktrees = fs::read_dir(workspace.join(".worktrees")).into_iter().flatten().flatten();
    let states = worktrees.filter_map(|worktree| fs::read(worktree.path().join(".agent/state.json")).ok());
    let mut states = states.filter_map(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    states.find(|state| state["issueIdentifier"] == identifier).map(|state| state["currentStep"].clone())
}

#[test]
fn worktree_state_follows_the_work() {
    let until = |file: &str| format!("until test -e ../../{file}; do sleep 0.05; done");
    let (setup, work, verify) = (until("setup-may-end"), until("work-may-end"), until("verify-may-end"));
    let workspace = repository(&format!("## Change\nverify: {verify}\n```sh\n{work}\necho x >> log.txt\n```\n"));
    workspace.write_team(3, &format!("plan = \"plan.md\"\nisolation = \"worktree\"\nsetup = \"{setup}\""));
    let mut run = workspace.start(&["run", "crew"]);
    let file = |name: &str| {
        let worktrees = fs::read_dir(workspace.join(".worktrees")).into_iter().flatten().flatten();
        let mut paths = worktrees.map(|worktree| worktree.path().join(".agent").join(name));
        let bytes = paths.find_map(|path| fs::read(path).ok())?;
        serde_json::from_slice::<Value>(&bytes).ok()
    };
    let step = || worktree_step(&workspace, "crew/task-1");
    wait_until("the worktree is set up", || step() == Some(json!("spawning")));
    workspace.write("setup-may-end", "");
    wait_until("the work is streamed", || step() == Some(json!("streaming")));
    let state = file("state.json").unwrap();
    assert_eq!((&state["issueId"], &state["issueIdentifier"]), (&json!("1"), &json!("crew/task-1")), "{state}");
    assert_eq!((&state["providerName"], &state["pid"]), (&json!("runbook"), &Value::Null), "{state}");
    assert!(state["sessionId"].as_str().is_some_and(|session| session.contains("/m")), "{state}");
    wait_until("a heartbeat shows the command", || {
        file("heartbeat.json").is_some_and(|beat| beat["lastActivityType"] == "tool_use" && beat["toolCallsCount"] == 1)
    });
    let before = state["lastHeartbeat"].as_i64().unwrap();
    wait_until("there is another heartbeat", || {
        file("state.json").is_some_and(|state| state["lastHeartbeat"].as_i64().unwrap() > before + 1000)
    });
    workspace.write("work-may-end", "");
    wait_until("the work is verified", || step() == Some(json!("verifying")));
    workspace.write("verify-may-end", "");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert_eq!(file("state.json"), None, "the worktree is removed");
}

#[test]
fn lost_claim_ends_wait_for_merge_queue() {
    let until = |file: &str| format!("until test -e ../../{file}; do sleep 0.05; done");
    let (first, work, second) = (until("first-may-end"), until("second-may-begin"), until("second-may-end"));
    let workspace = repository(&format!(
        "## First\nverify: {first}\n```sh\necho 1 > one.txt\n```\n## Second\nverify: {second}\n```sh\n{work}\necho 2 > two.txt\n```\n"
    ));
    workspace.write_team(2, "plan = \"plan.md\"\nisolation = \"worktree\"");
    let mut run = workspace.start(&["run", "crew"]);
    let count = |kind: &str, tool: &str| {
        workspace.events().iter().filter(|event| event["kind"] == kind && event["tool"] == tool).count()
    };
    wait_until("the first is in the queue", || count("tool_started", "verify") == 1);
    workspace.write("second-may-begin", "");
    wait_until("the other verifies before it", || count("tool_started", "verify") == 2);
    workspace.write("second-may-end", "");
    wait_until("the other waits for the queue", || count("tool_finished", "verify") == 1);
    let waits = workspace.events().into_iter().rev().find(|event| event["kind"] == "tool_finished").unwrap();
    let waiting = &waits["task"];
    wait_until("its state says that it is merged", || {
        worktree_step(&workspace, &format!("crew/task-{waiting}")) == Some(json!("merging"))
    });
    let release = workspace.run(&["tasks", "release", &waiting.to_string(), "--force"]);
    assert_eq!(release.code, Some(0), "{release:?}");
    wait_until("its member claims it again", || {
        workspace.tasks().iter().any(|task| task["id"] == *waiting && task["attempt"] == 2)
    });
    let tasks = workspace.tasks();
    let first = tasks.iter().find(|task| task["id"] != *waiting).unwrap();
    assert_eq!((&first["status"], &first["attempt"]), (&json!("in_progress"), &json!(1)), "the queue is still in use");
    workspace.write("first-may-end", "");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
}

#[test]
fn conflict_with_person_stops_launch() {
    let workspace = repository("## Change\n```sh\necho of the team >> log.txt\n```\n");
    assert_eq!(workspace.run(&["run", "crew"]).code, Some(0));
    let events = workspace.events();
    workspace.write("log.txt", "begin\nend\nmine\n");
    git(workspace.path(), &["commit", "-q", "-a", "-m", "Mine"]);
    let refused = workspace.run(&["run", "crew"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("cannot merge main into brigade/crew: conflict in log.txt"), "{refused:?}");
    assert!(refused.err.contains("hint: `git merge brigade/crew` in your checkout"), "{refused:?}");
    assert_eq!(workspace.events(), events, "a refused launch pushes out the log of the last run");
    let refused = workspace.run(&["merge"]);
    assert!(refused.code == Some(1) && refused.err.contains("conflicts with main in log.txt"), "{refused:?}");
    assert_eq!(
        (git(workspace.path(), &["status", "--porcelain"]).as_str(), workspace.read("log.txt").as_str()),
        ("", "begin\nend\nmine\n")
    );
}

#[test]
fn lead_and_done_when_see_team_branch() {
    let workspace = repository("## Change\n```sh\necho of the team >> log.txt\n```\n");
    let goal = "done_when = \"pwd > /dev/null; grep -q 'of the team' log.txt; echo built > ignored-said-x; echo x > said-built\"";
    workspace.write_team(3, &format!("plan = \"plan.md\"\nisolation = \"worktree\"\n{goal}"));
    git(workspace.path(), &["commit", "-q", "-a", "-m", "Goal"]);
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let finished = workspace.events().into_iter().find(|event| event["kind"] == "session_finished").unwrap();
    assert_eq!(finished["goal"]["met"], true, "{finished}");
    assert!(workspace.join(".worktrees/crew/said-built").exists() && !workspace.join("said-built").exists());
    // What `done_when` or the lead leaves there stays, and is not on the branch.
    assert_eq!(git(workspace.path(), &["-C", ".worktrees/crew", "status", "--porcelain"]), "?? ignored-said-x");
    assert_eq!(workspace.run(&["run", "crew"]).code, Some(0));
    assert!(workspace.join(".worktrees/crew/ignored-said-x").exists());
}

/// The program with a `git` of the test, or none, first in `PATH`.
fn with_git(workspace: &TestWorkspace, folder: &Path) -> ProcessOutput {
    let mut command = workspace.brigade(&["run", "crew"]);
    command.env("PATH", folder);
    ProcessOutput::of(command)
}

#[test]
fn isolation_without_usable_git_is_refused() {
    let workspace = repository(&conflicting(1));
    let folder = tempfile::tempdir().unwrap();
    let none = with_git(&workspace, folder.path());
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(none.err.contains("cannot use isolation: no git was found in PATH"), "{none:?}");
    let git = folder.path().join("git");
    fs::write(&git, "#!/bin/sh\necho git version 2.30.1\n").unwrap();
    fs::set_permissions(&git, fs::Permissions::from_mode(0o755)).unwrap();
    let old = with_git(&workspace, folder.path());
    assert_eq!(old.code, Some(2), "{old:?}");
    assert!(old.err.contains("needs git 2.38 or newer, and this is git version 2.30.1"), "{old:?}");
    fs::remove_dir_all(workspace.join(".git")).unwrap();
    let outside = workspace.run(&["run", "crew"]);
    assert_eq!(outside.code, Some(2), "{outside:?}");
    assert!(outside.err.contains("is not in a git repository"), "{outside:?}");
    let doctor = workspace.run(&["doctor"]);
    assert!(doctor.out.contains("FAIL") && doctor.out.contains("is not in a git repository"), "{doctor:?}");
}

/// A repository with two members in worktrees: `m1` of role `first` and `m2` of role `second`, with this script.
fn scripted_repository(plan: &str, script: &Value) -> TestWorkspace {
    let workspace = repository(plan);
    let member = |name: &str, role: &str| {
        format!(
            "[[teams.crew.members]]\nname = \"{name}\"\nrole = \"{role}\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n"
        )
    };
    let members = member("m1", "first") + &member("m2", "second");
    workspace.write(
        "brigade.toml",
        &format!("durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\n{members}"),
    );
    workspace.write("script.json", &script.to_string());
    git(workspace.path(), &["add", "-A"]);
    git(workspace.path(), &["commit", "-q", "-m", "Script"]);
    workspace
}

#[test]
fn conflict_is_returned_and_resolved_in_same_attempt() {
    let put = |line: &str| format!("sed -i 's/^begin$/begin\\n{line}/' log.txt");
    let bash = |command: String| json!({ "call": [{ "tool": "bash", "input": { "command": command } }] });
    let report = json!({ "call": [{ "tool": "task_update", "input": {
        "task_id": "{{task}}", "status": "completed", "result": "done" } }] });
    let other_began = "until test -e ../crew-task-2/.agent/state.json; do sleep 0.02; done";
    let other_is_in = "until git show brigade/crew:log.txt | grep -q 'task 1'; do sleep 0.02; done";
    let merge = "git merge -q brigade/crew; sed -i '/^[<=>]/d' log.txt && git add -A && git commit -q --no-edit";
    let script = json!({
        "m1.task": [bash(format!("{other_began}; {}", put("of task 1"))), report],
        "m2.task": [bash(format!("{}; {other_is_in}", put("of task 2"))), report, bash(merge.to_owned()), report],
    });
    let plan = "## One\nrequires: first\n\n## Two\nrequires: second\n\n## After\nafter: Two\nrequires: absent\n";
    let workspace = scripted_repository(plan, &script);
    workspace.run(&["run", "crew"]);
    let [one, two, after] = [1, 2, 3].map(|id| workspace.task(id));
    let how = |task: &Value| (task["status"].as_str().unwrap().to_owned(), task["attempt"].as_u64().unwrap_or(0));
    assert_eq!((how(&one), how(&two)), (("completed".to_owned(), 1), ("completed".to_owned(), 1)), "{two}");
    assert_eq!(after["blockedBy"], json!([]), "the dependent task is blocked");
    let transcript = workspace.read(".team/transcripts/m2.jsonl");
    assert!(
        transcript.contains("conflict in log.txt") && transcript.contains("task #2 stays in progress (failure 1 of 3)"),
        "{transcript}"
    );
    assert!(transcript.contains("Your worktree for it is "), "{transcript}");
    assert_eq!(lines(&workspace), all_lines(2));
    assert_eq!(git(workspace.path(), &["status", "--porcelain"]), "");
}

/// A report of a failure is checked in the worktree, before any merge.
#[test]
fn verify_before_merge_is_a_step() {
    let state = "../../.worktrees/crew-task-1/.agent/state.json";
    let verify = format!("for i in $(seq 100); do grep -q verifying {state} && exit 0; sleep 0.05; done; exit 1");
    let call = |tool: &str, input: Value| json!({ "call": [{ "tool": tool, "input": input }] });
    let report = |status: &str| call("task_update", json!({ "task_id": "{{task}}", "status": status, "result": "x" }));
    let work = call("bash", json!({ "command": "echo x >> log.txt" }));
    let script = json!({ "m1.task": [work, report("failed"), report("completed")] });
    let workspace = scripted_repository(&format!("## One\nrequires: first\nverify: {verify}\n"), &script);
    let run = workspace.run(&["run", "crew"]);
    assert_eq!((run.code, workspace.task(1)["attempt"].as_u64()), (Some(0), Some(1)), "{run:?}");
}

/// The results of the member's calls in order: what its model read.
fn member_results(workspace: &TestWorkspace, member: &str) -> Vec<String> {
    let transcript = workspace.read(&format!(".team/transcripts/{member}.jsonl"));
    let records = transcript.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let blocks = records.flat_map(|record| record["content"].as_array().cloned().unwrap_or_default());
    let results = blocks.filter(|block| block["type"] == "tool_result");
    results.map(|result| result["content"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn refused_git_command_says_what_to_do_instead() {
    let bash = |command: &str| json!({ "call": [{ "tool": "bash", "input": { "command": command } }] });
    let report = json!({ "call": [{ "tool": "task_update", "input": {
        "task_id": "{{task}}", "status": "completed", "result": "done" } }] });
    let lead_commits = [bash("git commit -q --allow-empty -m x"), json!({ "say": "Planned." })];
    let script = json!({ "lead.goal": lead_commits, "mail": [{ "say": "Read." }], "report": [{ "say": "Done." }], "m1.task": [
        bash("git -C ../.. commit -q --allow-empty -m x"),
        bash("git push ../.. HEAD:refs/heads/x"),
        bash("git worktree add ../x"),
        bash("git remote add y https://example.invalid 2>&1 | tail -5"),
        bash("git commit -q --allow-empty -m mine; git init -q $(mktemp -d)/elsewhere"),
        report,
    ] });
    let workspace = scripted_repository("## One\nrequires: first\n", &script);
    let config = workspace.read("brigade.toml");
    let lead = "[teams.crew.lead]\nprovider = \"scripted\"\nmodel = \"script.json\"\n";
    workspace.write("brigade.toml", &format!("{config}{lead}"));
    if !workspace.run(&["doctor"]).out.contains("they see the control files read-only") {
        return;
    }
    let run = workspace.run(&["run", "crew", "Try git"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let results = member_results(&workspace, "m1");
    let commit_here = "\nhint: outside of this folder the workspace is read-only. Commit here, ";
    for (result, message) in results.iter().zip([
        "index.lock': Read-only file system",
        "failed to push some refs to '../..'",
        "Preparing worktree",
    ]) {
        assert!(result.contains(message) && result.contains(commit_here), "{result}");
    }
    assert!(results[3].contains("\nhint: commands cannot change the repository's git settings. "), "{}", results[3]);
    assert_eq!(results[4], "[exit status 0]", "a commit in its own place, and a repository in a temporary folder");
    let lead_result = &member_results(&workspace, "lead")[0];
    assert!(
        lead_result.contains("\nhint: the lead's commands cannot change the repository. Add a task"),
        "{lead_result}"
    );
}

/// A place of its own has branches, tags and a stash. What is left on another branch is merged or dropped before the report counts.
#[test]
fn work_of_other_branch_is_merged_and_tag_is_not() {
    let bash = |command: &str| json!({ "call": [{ "tool": "bash", "input": { "command": command } }] });
    let report = json!({ "call": [{ "tool": "task_update", "input": {
        "task_id": "{{task}}", "status": "completed", "result": "done" } }] });
    let script = json!({ "m1.task": [
        bash("echo a > a.txt; git checkout -q -b feature/login; git tag v1; git add a.txt; git stash"),
        report,
        bash("git stash pop; git switch -q -c feature/login2; git commit -q -m 'Add a'; git switch -q -"),
        report,
        bash("git commit -q --allow-empty -m Here; git merge -q --no-edit feature/login2"),
        report,
    ] });
    let workspace = scripted_repository("## One\nrequires: first\n", &script);
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let results = member_results(&workspace, "m1");
    assert!(results[0].contains("hint: the commit that is checked out when you complete"), "{}", results[0]);
    for (result, how) in [(&results[1], "run git stash pop to take it"), (&results[3], "run git merge feature/login2")]
    {
        assert!(result.contains("the worktree has ") && result.contains(how), "{result}");
    }
    let merged = git(workspace.path(), &["log", "--format=%s", "brigade/crew"]);
    assert!(merged.contains("Add a\n") && merged.contains("Here\n"), "{merged}");
    assert_eq!(git(workspace.path(), &["tag"]), "");
}

#[test]
fn runbook_reads_hint_and_its_result_has_none() {
    let workspace = repository("## Log in\n```sh\ngit config user.name x 2>&1 || echo x > x.txt; echo made x\n```\n");
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let task = workspace.task(1);
    let results = member_results(&workspace, task["owner"].as_str().unwrap());
    assert!(results[0].contains("made x\n[exit status 0]\nhint: commands cannot change "), "{results:?}");
    let summary = task["result"]["summary"].as_str().unwrap();
    assert!(summary.ends_with("made x") && !summary.contains("hint"), "{task}");
    assert_eq!(workspace.read(".worktrees/crew/x.txt"), "x\n");
}

/// The member `m1` has no task, but mail gives it a turn.
#[test]
fn member_without_task_writes_nothing() {
    let call = |tool: &str, input: Value| json!({ "call": [{ "tool": tool, "input": input }] });
    let command = "echo x > by-command.txt; echo x >> log.txt; git commit -q --allow-empty -m x";
    let script = json!({
        "m2.task": [
            call("send_message", json!({ "to": "m1", "content": "Write a file." })),
            call("bash", json!({ "command": "until grep -q by-command ../../.team/events.jsonl; do sleep 0.02; done" })),
            call("task_update", json!({ "task_id": "{{task}}", "status": "completed", "result": "done" })),
        ],
        "m1.mail": [
            call("write_file", json!({ "path": "by-tool.txt", "content": "x" })),
            call("edit_file", json!({ "path": "log.txt", "old_text": "begin", "new_text": "x" })),
            call("bash", json!({ "command": command })),
        ],
    });
    let workspace = scripted_repository("## One\nrequires: second\n", &script);
    let is_confined = workspace.run(&["doctor"]).out.contains("they see the control files read-only");
    let answer = workspace.run(&["run", "crew"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let transcript = workspace.read(".team/transcripts/m1.jsonl");
    let refusal = "files can be written only in the worktree of a task";
    assert_eq!(transcript.matches(&format!("\"content\":\"{refusal}")).count(), 2, "{transcript}");
    assert!(!workspace.join("by-tool.txt").exists());
    if is_confined {
        assert!(transcript.contains("Read-only file system"), "{transcript}");
        assert!(transcript.contains(&format!("hint: {refusal}")), "{transcript}");
        assert!(!workspace.join("by-command.txt").exists());
        assert_eq!(git(workspace.path(), &["status", "--porcelain"]), "");
    }
}

#[test]
fn task_without_worktree_fails_and_others_complete() {
    let others: String = (2..=6).map(|number| format!("## Task {number}\n```sh\ntrue\n```\n")).collect();
    let workspace = repository(&format!("## Task 1\npriority: 9\n```sh\ntrue\n```\n{others}"));
    // No name for its branch is left.
    for end in ["", "-2", "-3", "-4", "-5", "-6", "-7", "-8", "-9"] {
        git(workspace.path(), &["branch", &format!("brigade-tasks/crew/task-1{end}/below")]);
    }
    let run = workspace.brigade(&["run"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    let tasks = workspace.json(&["tasks"]);
    let status = |id: u64| {
        let task = tasks.as_array().unwrap().iter().find(|task| task["id"] == id).unwrap();
        task["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(status(1), "failed");
    assert!((2..=6).all(|id| status(id) == "completed"));
    let text = workspace.json(&["tasks", "show", "1"]).to_string();
    assert!(text.contains("there is a branch brigade-tasks/crew/task-1-9/below"), "{text}");
    let mail = workspace.read(".team/transcripts/lead.jsonl");
    assert!(mail.contains("cannot create a worktree for task #1"), "the lead was not told: {mail}");
}

#[test]
fn repository_wide_error_is_no_task_failure() {
    let tasks: String = (1..=4).map(|number| format!("## Task {number}\n```sh\ntrue\n```\n")).collect();
    let workspace = repository(&tasks);
    // A filter that every checkout needs, and that is missing.
    git(workspace.path(), &["config", "filter.absent.smudge", "false"]);
    git(workspace.path(), &["config", "filter.absent.required", "true"]);
    workspace.write(".git/info/attributes", "log.txt filter=absent\n");
    let mut run = workspace.start(&["run"]);
    let given_back = || workspace.events().iter().filter(|event| event["kind"] == "task_released").count();
    wait_until("several tasks were released", || given_back() >= 4 || run.has_ended());
    run.kill();
    let failures: u64 = workspace.tasks().iter().map(|task| task["failures"].as_u64().unwrap_or(0)).sum();
    assert!(failures <= 1, "{:?}", workspace.tasks());
    fs::remove_file(workspace.join(".git/info/attributes")).unwrap();
    assert_eq!(workspace.run(&["run"]).code, Some(0));
    assert!(workspace.all_are("completed"));
}

#[test]
fn uncommitted_files_are_named_at_launch() {
    let workspace = repository("## One\n```sh\necho one > one.txt\n```\n");
    let clean = workspace.run(&["run"]);
    assert!(clean.code == Some(0) && !clean.err.contains("not committed"), "{clean:?}");
    workspace.write("log.txt", "mine\n");
    workspace.write("new/a.txt", "mine\n");
    let dirty = workspace.run(&["run"]);
    assert!(dirty.err.contains("uncommitted in your checkout: log.txt, new/."), "{dirty:?}");
}

#[test]
fn uncommitted_work_is_not_completed_by_command() {
    let plan = "## One\n```sh\necho line > new.txt\nwhile true; do sleep 0.05; done\n```\n";
    let workspace = repository(plan);
    let run = workspace.start(&["run"]);
    wait_until("the file is written", || workspace.join(".worktrees/crew-task-1/new.txt").exists());
    let owner = workspace.task(1)["owner"].as_str().unwrap().to_owned();
    let early = workspace.run(&["tasks", "complete", "1", "--as", &owner, "--attempt", "1"]);
    assert!(early.code == Some(1) && early.err.contains(".worktrees/crew-task-1 (uncommitted)"), "{early:?}");
    assert_eq!(workspace.task(1)["status"], "in_progress", "{}", run.output_so_far());
}
