//! `brigade merge` is killed at every step, alone or together with its git. The next one finishes or undoes it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::testkit::process::{ProcessOutput, git};
use crate::testkit::seeds::{PROCESS_CHECKS_AT_ONCE, run_in_threads};
use crate::testkit::workspace::TestWorkspace;

/// A `git` that kills Brigade before or after one of its calls, or in the middle of `git read-tree`, together with git.
const KILLING_GIT: &str = r#"#!/bin/sh
PATH=ORIGINAL_PATH
echo x >> FOLDER/calls
case "WHEN $*" in
*" --dry-run "*) exec git "$@";;
"within "*" read-tree "*)
    git "$@" &
    while ! test -e FOLDER/blocked && kill -0 $! 2> /dev/null; do sleep 0.01; done
    kill -9 $!
    test -e FOLDER/survives || kill -9 $PPID
    exit 137;;
esac
is_it() { test $(wc -l < FOLDER/calls) = CALL && touch FOLDER/killed; }
case WHEN in
before) if is_it; then kill -9 $PPID; exit 1; fi; exec git "$@";;
after) git "$@"; code=$?; if is_it; then kill -9 $PPID; fi; exit $code;;
*) exec git "$@";;
esac
"#;

/// The local changes of the person, as `git status` shows them.
const LOCAL_CHANGES: &str = " M own.txt\nM  staged.txt\n?? note.txt";

/// A checkout with local changes. The branch of the team changes files of all kinds.
struct Checkout {
    workspace: TestWorkspace,
    /// The folder of the killing git.
    folder: tempfile::TempDir,
}

impl Checkout {
    fn new(is_fast_forward: bool) -> Self {
        let workspace = TestWorkspace::with_idle_team(1);
        workspace.write_team(1, "isolation = \"worktree\"");
        for name in ["a.txt", "file", "folder/a", "gone.txt", "own.txt", "slow.txt", "staged.txt", "z.txt"] {
            workspace.write(name, &format!("{name}\n"));
        }
        workspace.write(".gitattributes", "slow.txt filter=slow\n");
        workspace.write(".gitignore", ".tasks/\n.team/\nagent_state.json*\nno-config/\n");
        let at = |arguments: &[&str]| git(workspace.path(), arguments);
        at(&["init", "-q", "-b", "main", "."]);
        at(&["config", "user.name", "Person"]);
        at(&["config", "user.email", "person@example.invalid"]);
        at(&["add", "-A"]);
        at(&["commit", "-q", "-m", "Begin"]);
        at(&["switch", "-q", "-c", "brigade/crew"]);
        for file in ["a.txt", "slow.txt", "z.txt", "b/new.txt"] {
            workspace.write(file, &format!("{file} of the team\nmore\n"));
        }
        for file in ["gone.txt", "file"] {
            fs::remove_file(workspace.join(file)).unwrap();
        }
        fs::remove_dir_all(workspace.join("folder")).unwrap();
        workspace.write("file/inside", "inside\n");
        workspace.write("folder", "a file now\n");
        at(&["add", "-A"]);
        at(&["commit", "-q", "-m", "Of the team"]);
        at(&["switch", "-q", "main"]);
        if !is_fast_forward {
            at(&["commit", "-q", "--allow-empty", "-m", "Of the person"]);
        }
        workspace.write("staged.txt", "staged\n");
        at(&["add", "staged.txt"]);
        workspace.write("own.txt", "unsaved\n");
        workspace.write("note.txt", "untracked\n");
        let folder = tempfile::tempdir().unwrap();
        let smudge = "if test -e FOLDER/armed && mkdir FOLDER/blocked; then \
                      while test -e FOLDER/armed; do sleep 0.02; done; fi; cat";
        at(&["config", "filter.slow.smudge", &smudge.replace("FOLDER", &folder.path().display().to_string())]);
        Self { workspace, folder }
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(self.workspace.path(), arguments)
    }

    /// Merges, and kills at this call of git. Returns the answer, and whether there was such a call.
    fn killed_merge(&self, when: &str, call: usize) -> (ProcessOutput, bool) {
        self.killed(&["merge"], when, call)
    }

    /// Runs a command, and kills it at this call of git. Returns the answer, and whether there was such a call.
    fn killed(&self, command: &[&str], when: &str, call: usize) -> (ProcessOutput, bool) {
        let (folder, path) = (self.folder.path().display().to_string(), std::env::var("PATH").unwrap());
        let text = KILLING_GIT.replace("ORIGINAL_PATH", &format!("'{path}'")).replace("FOLDER", &folder);
        let text = text.replace("WHEN", when).replace("CALL", &call.to_string());
        let program = self.folder.path().join("git");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        for file in ["calls", "killed"] {
            let _ = fs::remove_file(self.folder.path().join(file));
        }
        let mut command = self.workspace.brigade(command);
        command.env("PATH", format!("{folder}:{path}"));
        (ProcessOutput::of(command), self.folder.path().join("killed").exists())
    }

    /// Arms the filter that stops git in the middle of its files.
    fn arm(&self) {
        fs::write(self.folder.path().join("armed"), "").unwrap();
    }

    fn disarm(&self) {
        fs::remove_file(self.folder.path().join("armed")).unwrap();
        let _ = fs::remove_dir(self.folder.path().join("blocked"));
    }

    fn assert_merged(&self, case: &str) {
        let merge = self.workspace.run(&["merge"]);
        assert_eq!(merge.code, Some(0), "{case}: {merge:?}");
        self.git(&["merge-base", "--is-ancestor", "brigade/crew", "main"]);
        self.assert_tidy(case);
        assert_eq!(self.workspace.read("b/new.txt"), "b/new.txt of the team\nmore\n");
        // One merge, and the commit of the person.
        assert!(["0", "2"].contains(&self.git(&["rev-list", "--count", "main", "^brigade/crew"]).as_str()), "{case}");
    }

    /// Checks that the files are those of the branch, except for local changes, and that nothing is left of a merge.
    fn assert_tidy(&self, case: &str) {
        assert_eq!(self.git(&["status", "--porcelain"]), LOCAL_CHANGES.trim_end(), "{case}");
        assert_eq!(
            [self.workspace.read("own.txt"), self.workspace.read("staged.txt"), self.workspace.read("note.txt")],
            ["unsaved\n", "staged\n", "untracked\n"],
            "{case}"
        );
        for left in ["index.lock", "brigade-merge-index", "brigade-merge-index.lock", "refs/heads/main.lock"] {
            assert!(!self.workspace.join(".git").join(left).exists(), "{case}: {left}");
        }
        assert_eq!(self.workspace.read(".git/brigade-merge"), "", "{case}");
        self.git(&["fsck", "--no-dangling"]);
    }
}

/// Kills a merge at this call, the next one at another call, and lets a third one finish. Returns false if there is no such call.
fn survives_kill_at(call: usize, when: &str, is_fast_forward: bool) -> bool {
    let checkout = Checkout::new(is_fast_forward);
    let case = format!("{when} call {call}, fast-forward: {is_fast_forward}");
    let (_, is_killed) = checkout.killed_merge(when, call);
    let second = fastrand::usize(1..30);
    checkout.killed_merge(["before", "after"][second % 2], second);
    checkout.assert_merged(&format!("{case}, then call {second}"));
    is_killed
}

#[test]
fn merge_killed_at_any_call_of_git_is_completed() {
    let is_full = std::env::var_os("BRIGADE_CHAOS_COUNT").is_some();
    let (first, step) = if is_full { (1, 1) } else { (fastrand::usize(1..=4), 4) };
    let last = AtomicUsize::new(usize::MAX);
    let calls = (first..).step_by(step).take_while(|call| *call < last.load(Ordering::Relaxed));
    run_in_threads(PROCESS_CHECKS_AT_ONCE, calls, |call| {
        let when = if call % 2 == 0 { "before" } else { "after" };
        let whens = if is_full { vec!["before", "after"] } else { vec![when] };
        for when in whens {
            if !survives_kill_at(call, when, call % 3 == 0) {
                last.fetch_min(call, Ordering::Relaxed);
            }
        }
    });
    assert!(last.load(Ordering::Relaxed) > 15, "{last:?} calls of git");
}

#[test]
fn merge_killed_within_its_files_is_completed() {
    let checkout = Checkout::new(false);
    checkout.arm();
    let (killed, _) = checkout.killed_merge("within", 0);
    assert_eq!(killed.code, None, "{killed:?}");
    assert!(checkout.folder.path().join("blocked").exists(), "git was killed while it wrote files");
    assert!(checkout.workspace.join(".git/index.lock").exists());
    assert!(checkout.workspace.read("a.txt").contains("of the team"), "some files are written");
    assert_eq!(checkout.workspace.read("z.txt"), "z.txt\n", "others are not");
    checkout.disarm();
    checkout.assert_merged("within");
}

/// Git alone is killed, or ends by an error in the middle of its files.
#[test]
fn merge_whose_git_fails_changes_nothing() {
    for fails in [false, true] {
        let checkout = Checkout::new(true);
        let before = checkout.git(&["rev-parse", "main"]);
        if fails {
            let smudge = "text=$(cat); case $text in *team*) exit 1;; esac; echo \"$text\"";
            for (key, value) in [("smudge", smudge), ("clean", "cat"), ("required", "true")] {
                checkout.git(&["config", &format!("filter.slow.{key}"), value]);
            }
        } else {
            checkout.arm();
        }
        fs::write(checkout.folder.path().join("survives"), "").unwrap();
        let (merge, _) = checkout.killed_merge(if fails { "never" } else { "within" }, 0);
        assert_eq!(merge.code, Some(1), "{merge:?}");
        assert_eq!(checkout.git(&["rev-parse", "main"]), before);
        checkout.assert_tidy("git failed");
        if fails {
            assert!(merge.err.contains("git cannot write the files: ") && merge.err.contains("slow"), "{merge:?}");
            checkout.git(&["config", "filter.slow.smudge", "cat"]);
        } else {
            checkout.disarm();
        }
        checkout.assert_merged("git failed");
    }
}

#[test]
fn change_of_person_after_killed_merge_is_kept() {
    let checkout = Checkout::new(true);
    checkout.arm();
    checkout.killed_merge("within", 0);
    checkout.disarm();
    checkout.workspace.write("a.txt", "what the person wrote\n");
    let merge = checkout.workspace.run(&["merge"]);
    assert!(merge.code == Some(1) && merge.err.contains("uncommitted changes: a.txt"), "{merge:?}");
    assert_eq!(checkout.workspace.read("a.txt"), "what the person wrote\n");
    assert!(!Path::new(&checkout.workspace.join(".git/index.lock")).exists());
    checkout.git(&["checkout", "-q", "--", "a.txt"]);
    checkout.assert_tidy("after the change is undone");
    checkout.assert_merged("after the change is undone");
}

/// The commits of the team are always on its branch, or kept by a ref.
#[test]
fn killed_record_of_taken_work_is_completed() {
    let is_full = std::env::var_os("BRIGADE_CHAOS_COUNT").is_some();
    let (first, step) = if is_full { (1, 1) } else { (fastrand::usize(1..=4), 4) };
    let last = AtomicUsize::new(usize::MAX);
    let calls = (first..).step_by(step).take_while(|call| *call < last.load(Ordering::Relaxed));
    run_in_threads(PROCESS_CHECKS_AT_ONCE, calls, |call| {
        let checkout = Checkout::new(false);
        let (main, old) = (checkout.git(&["rev-parse", "main"]), checkout.git(&["rev-parse", "brigade/crew"]));
        let when = if call % 2 == 0 { "before" } else { "after" };
        let record = ["merge", "--taken"];
        if !checkout.killed(&record, when, call).1 {
            last.fetch_min(call, Ordering::Relaxed);
        }
        let containing = format!("--contains={old}");
        assert_ne!(checkout.git(&["for-each-ref", &containing]), "", "{when} call {call}");
        let recorded = checkout.workspace.run(&record);
        assert_eq!(recorded.code, Some(0), "{when} call {call}: {recorded:?}");
        assert_eq!(checkout.git(&["rev-parse", "brigade/crew"]), main, "{when} call {call}");
        let cleaned = checkout.workspace.run(&["clean"]);
        let name = format!("refs/brigade/crew/taken/{}", &old[..12]);
        assert!(cleaned.err.contains(&name) && cleaned.err.contains("`brigade clean --taken --yes`"), "{cleaned:?}");
    });
    assert!(last.load(Ordering::Relaxed) > 15, "{last:?} calls of git");
    let checkout = Checkout::new(false);
    assert_eq!(checkout.workspace.run(&["merge", "--taken"]).code, Some(0));
    let removed = checkout.workspace.run(&["clean", "--taken", "--yes"]);
    assert!(removed.out.contains("removed ref refs/brigade/crew/taken/"), "{removed:?}");
    assert_eq!(checkout.git(&["for-each-ref", "refs/brigade"]), "");
}
