//! What searches meet: rules of git, pipes and devices in their place, folders that are exchanged for links meanwhile.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brigade::platform;
use proptest::prelude::*;
use serde_json::json;

use super::stage::{Stage, stage};

/// Calls made while another thread exchanges folders: before the walk went by open folders, one in twelve was led outside.
const RACE_CALLS: usize = 150;

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// What a call says, which must not wait for a pipe.
async fn says_soon(stage: &Stage, tool: &str, input: serde_json::Value) -> String {
    let said = tokio::time::timeout(Duration::from_secs(20), stage.alice.says(tool, input));
    said.await.unwrap_or_else(|_| panic!("{tool} waits"))
}

#[tokio::test]
async fn walk_notes_rule_files_that_are_not_plain() {
    let stage = stage().await;
    for (path, text) in [("a.rs", "fn"), ("src/b.rs", "fn"), ("lib/c.rs", "fn"), ("lib/.git/info/x", "")] {
        stage.write(path, text);
    }
    make_pipe(&stage.path(".gitignore"));
    std::os::unix::fs::symlink("/dev/zero", stage.path(".ignore")).unwrap();
    std::fs::create_dir(stage.path("src/.gitignore")).unwrap();
    stage.write("lib/.gitignore", "c.rs\n".repeat(100_000));
    make_pipe(&stage.path("lib/.git/info/exclude"));
    let globbed = says_soon(&stage, "glob", json!({ "pattern": "*.rs" })).await;
    let found = says_soon(&stage, "grep", json!({ "pattern": "fn" })).await;
    assert!(globbed.starts_with("a.rs\nlib/c.rs\nsrc/b.rs\n"), "{globbed}");
    for text in [&globbed, &found] {
        for (file, why) in [
            ("`.gitignore`", "it is a pipe"),
            ("`.ignore`", "it is a symbolic link"),
            ("`src/.gitignore`", "it is a folder"),
            ("`lib/.gitignore`", "more than 131072 bytes"),
            ("`lib/.git/info/exclude`", "it is a pipe"),
        ] {
            assert!(text.lines().any(|line| line.contains(file) && line.contains(why)), "{file} {why}: {text}");
        }
    }
}

#[tokio::test]
async fn file_tools_refuse_what_is_not_a_plain_file() {
    let stage = stage().await;
    make_pipe(&stage.path("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(stage.path("socket")).unwrap();
    for path in ["pipe", "socket"] {
        for (tool, input) in [
            ("read_file", json!({ "path": path })),
            ("edit_file", json!({ "path": path, "old_text": "a", "new_text": "b" })),
            ("write_file", json!({ "path": path, "content": "a" })),
        ] {
            let refused = tokio::time::timeout(Duration::from_secs(20), stage.alice.refused(tool, input));
            let text = refused.await.unwrap_or_else(|_| panic!("{tool} waits"));
            assert!(text.contains(path) && text.contains("not a plain file"), "{tool}: {text}");
        }
    }
    assert_eq!(says_soon(&stage, "grep", json!({ "pattern": "." })).await, "no match\n");
}

#[tokio::test]
async fn hard_link_to_control_file_is_not_searched() {
    let stage = stage().await;
    stage.write("agent_state.json", "steering");
    stage.write("src/a", "none");
    std::fs::hard_link(stage.path("agent_state.json"), stage.path("src/state")).unwrap();
    assert_eq!(stage.alice.says("grep", json!({ "pattern": "steering" })).await, "no match\n");
}

#[tokio::test]
async fn pattern_nested_without_end_is_refused() {
    let stage = stage().await;
    stage.write("a", "");
    let nested = "{a,".repeat(100_000) + &"}".repeat(100_000);
    let refused = stage.alice.refused("glob", json!({ "pattern": nested })).await;
    assert!(refused.contains("more than 4096 bytes"), "{refused}");
    stage.alice.refused("glob", json!({ "pattern": "{a,".repeat(1360) })).await;
    stage.write(".gitignore", format!("{nested}\n{}\n", "{a,".repeat(1000) + &"}".repeat(1000)));
    assert!(stage.alice.says("glob", json!({ "pattern": "a" })).await.starts_with('a'));
}

#[tokio::test]
async fn walk_ends_where_folders_are_too_deep() {
    let stage = stage().await;
    stage.write(&format!("{}a.rs", "d/".repeat(200)), "fn");
    stage.write("b.rs", "fn");
    let found = stage.alice.says("glob", json!({ "pattern": "*.rs" })).await;
    assert!(found.starts_with("b.rs\n") && found.contains("give a `path`"), "{found}");
    let below = "d/".repeat(100);
    let found = stage.alice.says("glob", json!({ "pattern": "*.rs", "path": below })).await;
    assert!(found.ends_with("/a.rs"), "{found}");
}

#[tokio::test]
async fn exclude_file_of_a_worktree_counts() {
    let stage = stage().await;
    let repository = tempfile::tempdir().unwrap();
    let git_dir = repository.path().join("worktrees/one");
    std::fs::create_dir_all(&git_dir).unwrap();
    std::fs::create_dir(repository.path().join("info")).unwrap();
    std::fs::write(repository.path().join("info/exclude"), "secret.rs\n").unwrap();
    std::fs::write(git_dir.join("commondir"), "../..\n").unwrap();
    stage.write(".git", format!("gitdir: {}\n", git_dir.display()));
    stage.write("secret.rs", "");
    stage.write("a.rs", "");
    assert_eq!(stage.alice.says("glob", json!({ "pattern": "*.rs" })).await, "a.rs");
    // A folder below names no repository outside.
    stage.write("sub/.git", format!("gitdir: {}\n", git_dir.display()));
    std::fs::remove_file(stage.path(".git")).unwrap();
    stage.write("sub/secret.rs", "");
    assert_eq!(stage.alice.says("glob", json!({ "pattern": "sub/*.rs" })).await, "sub/secret.rs");
}

/// Exchanges two paths again and again while `calls` run.
async fn while_exchanged(a: &Path, b: &Path, calls: impl Future<Output = ()>) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                platform::exchange(a, b).unwrap();
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(calls));
        }));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn search_of_an_exchanged_folder_stays_inside() {
    let stage = stage().await;
    let outside = tempfile::tempdir().unwrap();
    for number in 0..30 {
        stage.write(&format!("src/deep/inside_{number}.txt"), "word");
        std::fs::create_dir_all(outside.path().join("deep")).unwrap();
        std::fs::write(outside.path().join(format!("deep/outside_{number}.txt")), "word").unwrap();
    }
    std::os::unix::fs::symlink(outside.path(), stage.path("link")).unwrap();
    let calls = async {
        let mut found = 0;
        for _ in 0..RACE_CALLS {
            for (tool, input) in [
                ("glob", json!({ "pattern": "**" })),
                ("grep", json!({ "pattern": "word" })),
                ("glob", json!({ "pattern": "*", "path": "src/deep" })),
            ] {
                // Where the folder is a link just now, a path in it is refused.
                let Ok(said) = stage.alice.call(tool, input).await else { continue };
                assert!(!said.text.contains("outside"), "{tool}: {}", said.text);
                found += usize::from(said.text.contains("inside_0.txt"));
            }
        }
        assert!(found > 0, "the folder was never found");
    };
    while_exchanged(&stage.path("src"), &stage.path("link"), calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanged_folder_leads_to_no_control_file() {
    let stage = stage().await;
    stage.write("src/a", "plain");
    stage.write(".tasks/a", "control");
    std::os::unix::fs::symlink(".tasks", stage.path("link")).unwrap();
    let calls = async {
        for _ in 0..4 * RACE_CALLS {
            if let Ok(said) = stage.alice.call("read_file", json!({ "path": "src/a" })).await {
                assert!(!said.text.contains("control"), "{}", said.text);
            }
            let _ = stage.alice.call("write_file", json!({ "path": "src/b", "content": "forged" })).await;
            assert!(!stage.path(".tasks/b").exists(), "a control folder was written in");
        }
    };
    while_exchanged(&stage.path("src"), &stage.path("link"), calls).await;
}

/// The files that the `ignore` crate finds when it reads the rules itself.
fn found_by_crate(root: &Path) -> Vec<String> {
    let mut builder = ignore::WalkBuilder::new(root);
    builder.hidden(false).parents(false).git_global(false).require_git(false).follow_links(false);
    builder.sort_by_file_path(Ord::cmp).filter_entry(|entry| entry.file_name() != ".git");
    let entries = builder.build().map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_file());
    entries.map(|entry| entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned()).collect()
}

const FILES: [&str; 11] = [
    "a.rs",
    "b.log",
    "build/out.rs",
    "keep.log",
    "src/a.rs",
    "src/build/x.rs",
    "src/deep/a.rs",
    "src/deep/keep.log",
    "src/deep/target/c.rs",
    "src/x y",
    "target/a.rs",
];
const RULE_FILES: [&str; 8] = [
    ".gitignore",
    ".ignore",
    ".git/info/exclude",
    "src/.gitignore",
    "src/.ignore",
    "src/deep/.gitignore",
    "src/deep/.ignore",
    "src/.git/info/exclude",
];
const RULES: [&str; 20] = [
    "*.log",
    "!keep.log",
    "target/",
    "/build",
    "build",
    "*.rs",
    "!a.rs",
    "src/*.rs",
    "!src/deep/",
    "deep",
    "**/x.rs",
    "src/**",
    "!/src/deep/a.rs",
    "# a.rs",
    "[ab].*",
    "x\\ y",
    "{a,b}.rs",
    "!*",
    "",
    "a[",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn walk_leaves_out_what_the_ignore_crate_does(
        rules in prop::collection::vec((prop::sample::select(&RULE_FILES[..]), prop::collection::vec(prop::sample::select(&RULES[..]), 1..5)), 0..5),
        end in prop::sample::select(&["\n", "\r\n"][..]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stage = stage().await;
            for file in FILES {
                stage.write(file, "");
            }
            for (file, lines) in &rules {
                stage.write(file, lines.join(end));
            }
            let expected = found_by_crate(stage.folder.path());
            let found = stage.alice.says("glob", json!({ "pattern": "**" })).await;
            let found: Vec<&str> = found.lines().filter(|line| !line.starts_with("no file matches")).collect();
            assert_eq!(found, expected);
        });
    }
}
