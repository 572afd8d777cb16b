//! Searches over ignore rules, pipes and devices, and folders that are replaced by links meanwhile.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brigade::domain::agent::permission::{
    PermissionCall, PermissionDecision, PermissionMode, PermissionRule, Permissions, ToolKind,
};
use brigade::platform;
use brigade::tools::ToolContext;
use brigade::tools::table::permission_call;
use proptest::prelude::*;
use serde_json::json;

use super::harness::{TestTools, harness};

/// The number of calls while another thread exchanges folders. Before searches used open folders, one call in twelve
/// was led outside.
const RACE_CALLS: usize = 150;

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The text of a call that must not wait for a pipe.
async fn call_within_timeout(harness: &TestTools, tool: &str, input: serde_json::Value) -> String {
    let output = tokio::time::timeout(Duration::from_secs(20), harness.alice.expect_text(tool, input));
    output.await.unwrap_or_else(|_| panic!("{tool} waits"))
}

#[tokio::test]
async fn search_notes_ignore_files_that_are_not_plain() {
    let harness = harness().await;
    for (path, text) in [("a.rs", "fn"), ("src/b.rs", "fn"), ("lib/c.rs", "fn"), ("lib/.git/info/x", "")] {
        harness.write(path, text);
    }
    make_pipe(&harness.path(".gitignore"));
    std::os::unix::fs::symlink("/dev/zero", harness.path(".ignore")).unwrap();
    std::fs::create_dir(harness.path("src/.gitignore")).unwrap();
    harness.write("lib/.gitignore", "c.rs\n".repeat(100_000));
    make_pipe(&harness.path("lib/.git/info/exclude"));
    let globbed = call_within_timeout(&harness, "glob", json!({ "pattern": "*.rs" })).await;
    let matches = call_within_timeout(&harness, "grep", json!({ "pattern": "fn" })).await;
    assert!(globbed.starts_with("a.rs\nlib/c.rs\nsrc/b.rs\n"), "{globbed}");
    for text in [&globbed, &matches] {
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

fn rules(texts: &[&str]) -> Vec<PermissionRule> {
    texts.iter().map(|text| PermissionRule::parse(text).unwrap()).collect()
}

/// Gives alice these rules.
fn deny(harness: &mut TestTools, texts: &[&str]) {
    harness.alice.context.caller.permissions = Permissions { deny: rules(texts), ..Permissions::default() };
}

async fn is_denied(context: &ToolContext, tool: &str, input: serde_json::Value) -> bool {
    matches!(context.decide(&permission_call(tool, &input)).await, PermissionDecision::Deny(_))
}

#[tokio::test]
async fn search_leaves_out_files_that_may_not_be_read() {
    let mut harness = harness().await;
    for path in ["secrets/key", "secrets/deep/key", ".env", "src/a.rs", "src/.env"] {
        harness.write(path, "token");
    }
    std::os::unix::fs::symlink("secrets/key", harness.path("link")).unwrap();
    std::os::unix::fs::symlink(harness.path("secrets"), harness.path("folder")).unwrap();
    deny(&mut harness, &["read_file(secrets/**)", "read_file(**/.env)", "read_file(7)"]);
    let note = "(files that you may not read are left out)";
    let alice = &harness.alice;
    assert_eq!(
        alice.expect_text("grep", json!({ "pattern": "token", "context": 2 })).await.trim_end(),
        format!("src/a.rs:1:token\n{note}")
    );
    assert_eq!(
        alice.expect_text("grep", json!({ "pattern": "", "files_only": true })).await.trim_end(),
        format!("src/a.rs\n{note}")
    );
    assert_eq!(alice.expect_text("glob", json!({ "pattern": "**" })).await, format!("src/a.rs\n{note}"));
    let absolute = harness.path("secrets/deep").display().to_string();
    for path in
        ["secrets", "secrets/", "./secrets/deep", "src/../secrets/key", "folder", "link", "folder/deep", &absolute]
    {
        for tool in ["grep", "glob"] {
            let input = json!({ "pattern": "*key*", "path": path });
            assert!(is_denied(&alice.context, tool, input.clone()).await, "{tool} {path}");
            let shown = alice.call(tool, input).await.map_or_else(|error| error.to_string(), |output| output.text);
            assert!(!shown.contains("secrets/"), "{tool} {path}: {shown}");
        }
        assert!(is_denied(&alice.context, "read_file", json!({ "path": path })).await, "{path}");
        let edit = json!({ "path": path, "old_text": "x", "new_text": "y" });
        assert!(is_denied(&alice.context, "edit_file", edit).await, "its errors show parts of the file: {path}");
    }
    assert!(is_denied(&alice.context, "read_file", json!({ "path": 7 })).await, "a number is a name too");
    let missing = alice.expect_refusal("read_file", json!({ "path": "docs/key" })).await;
    assert!(!missing.contains("secrets"), "{missing}");
    assert!(!is_denied(&alice.context, "write_file", json!({ "path": "secrets/key", "content": "" })).await);
    deny(&mut harness, &["grep(src)"]);
    let globbed = harness.alice.expect_text("glob", json!({ "pattern": "*.rs" })).await;
    assert_eq!(globbed, "src/a.rs", "a rule about one search tool holds for that tool");
    assert!(!harness.alice.expect_text("grep", json!({ "pattern": "token" })).await.contains("src/"));
}

#[tokio::test]
async fn search_of_other_program_reaches_no_hidden_file() {
    let mut harness = harness().await;
    for (path, text) in [("secrets/key", ""), ("src/a.rs", ""), (".gitignore", "secrets\n")] {
        harness.write(path, text);
    }
    let root = harness.folder.path().canonicalize().unwrap();
    let reached = [root.display().to_string(), root.parent().unwrap().display().to_string()];
    let call = |path: &str| PermissionCall { tool: "grep".into(), kind: ToolKind::Read, subject: path.into() };
    assert!(!harness.alice.context.search_would_show_hidden(&call("")).await, "no rule hides a file");
    deny(&mut harness, &["read_file(secrets/**)"]);
    for path in ["", ".", "..", "src/..", "secrets", &reached[0], &reached[1]] {
        assert!(harness.alice.context.search_would_show_hidden(&call(path)).await, "{path}");
    }
    for path in ["src", "/proc/self", "missing"] {
        assert!(!harness.alice.context.search_would_show_hidden(&call(path)).await, "{path}");
    }
}

#[tokio::test]
async fn allow_rule_sees_where_path_leads() {
    let mut harness = harness().await;
    for path in ["src/a.rs", "brigade.toml", "docs/x"] {
        harness.write(path, "text");
    }
    std::os::unix::fs::symlink("../docs", harness.path("src/out")).unwrap();
    let permissions = Permissions { mode: PermissionMode::Ask, allow: rules(&["edit_file(src/**)"]), deny: Vec::new() };
    harness.alice.context.caller.permissions = permissions;
    let root = harness.folder.path().display();
    for (path, is_allowed) in [
        ("src/a.rs".to_owned(), true),
        ("./src//new.rs".to_owned(), true),
        ("docs/../src/a.rs".to_owned(), true),
        (format!("{root}/src/a.rs"), true),
        (format!("{root}/docs/.././src/new/"), true),
        ("src/../brigade.toml".to_owned(), false),
        (format!("{root}/src/../brigade.toml"), false),
        ("src/out/x".to_owned(), false),
        ("src/out/../a.rs".to_owned(), false),
        ("../src/a.rs".to_owned(), false),
        (" src/a.rs".to_owned(), false),
        ("/src/a.rs".to_owned(), false),
    ] {
        let call = PermissionCall { tool: "edit_file".into(), kind: ToolKind::Edit, subject: path.clone() };
        let decision = harness.alice.context.decide(&call).await;
        let expected = if is_allowed { PermissionDecision::Allow } else { PermissionDecision::Ask };
        assert_eq!(decision, expected, "{path}");
    }
}

#[tokio::test]
async fn file_tools_refuse_pipes_and_sockets() {
    let harness = harness().await;
    make_pipe(&harness.path("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(harness.path("socket")).unwrap();
    for path in ["pipe", "socket"] {
        for (tool, input) in [
            ("read_file", json!({ "path": path })),
            ("edit_file", json!({ "path": path, "old_text": "a", "new_text": "b" })),
            ("write_file", json!({ "path": path, "content": "a" })),
        ] {
            let refused = tokio::time::timeout(Duration::from_secs(20), harness.alice.expect_refusal(tool, input));
            let text = refused.await.unwrap_or_else(|_| panic!("{tool} waits"));
            assert!(text.contains(path) && text.contains("not a plain file"), "{tool}: {text}");
        }
    }
    assert_eq!(call_within_timeout(&harness, "grep", json!({ "pattern": "." })).await, "no match\n");
}

#[tokio::test]
async fn hard_link_to_control_file_is_not_searched() {
    let harness = harness().await;
    harness.write("agent_state.json", "steering");
    harness.write("src/a", "none");
    std::fs::hard_link(harness.path("agent_state.json"), harness.path("src/state")).unwrap();
    assert_eq!(harness.alice.expect_text("grep", json!({ "pattern": "steering" })).await, "no match\n");
}

#[tokio::test]
async fn deeply_nested_glob_pattern_is_refused() {
    let harness = harness().await;
    harness.write("a", "");
    let nested = "{a,".repeat(100_000) + &"}".repeat(100_000);
    let refused = harness.alice.expect_refusal("glob", json!({ "pattern": nested })).await;
    assert!(refused.contains("more than 4096 bytes"), "{refused}");
    harness.alice.expect_refusal("glob", json!({ "pattern": "{a,".repeat(1360) })).await;
    harness.write(".gitignore", format!("{nested}\n{}\n", "{a,".repeat(1000) + &"}".repeat(1000)));
    assert!(harness.alice.expect_text("glob", json!({ "pattern": "a" })).await.starts_with('a'));
}

#[tokio::test]
async fn search_stops_at_maximum_folder_depth() {
    let harness = harness().await;
    harness.write(&format!("{}a.rs", "d/".repeat(200)), "fn");
    harness.write("b.rs", "fn");
    let matches = harness.alice.expect_text("glob", json!({ "pattern": "*.rs" })).await;
    assert!(matches.starts_with("b.rs\n") && matches.contains("give a `path`"), "{matches}");
    let below = "d/".repeat(100);
    let matches = harness.alice.expect_text("glob", json!({ "pattern": "*.rs", "path": below })).await;
    assert!(matches.ends_with("/a.rs"), "{matches}");
}

#[tokio::test]
async fn worktree_exclude_file_is_respected() {
    let harness = harness().await;
    let repository = tempfile::tempdir().unwrap();
    let git_dir = repository.path().join("worktrees/one");
    std::fs::create_dir_all(&git_dir).unwrap();
    std::fs::create_dir(repository.path().join("info")).unwrap();
    std::fs::write(repository.path().join("info/exclude"), "secret.rs\n").unwrap();
    std::fs::write(git_dir.join("commondir"), "../..\n").unwrap();
    harness.write(".git", format!("gitdir: {}\n", git_dir.display()));
    harness.write("secret.rs", "");
    harness.write("a.rs", "");
    assert_eq!(harness.alice.expect_text("glob", json!({ "pattern": "*.rs" })).await, "a.rs");
    // A folder below names no repository outside.
    harness.write("sub/.git", format!("gitdir: {}\n", git_dir.display()));
    std::fs::remove_file(harness.path(".git")).unwrap();
    harness.write("sub/secret.rs", "");
    assert_eq!(harness.alice.expect_text("glob", json!({ "pattern": "sub/*.rs" })).await, "sub/secret.rs");
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
async fn search_of_exchanged_folder_stays_inside() {
    let harness = harness().await;
    let outside = tempfile::tempdir().unwrap();
    for number in 0..30 {
        harness.write(&format!("src/deep/inside_{number}.txt"), "word");
        std::fs::create_dir_all(outside.path().join("deep")).unwrap();
        std::fs::write(outside.path().join(format!("deep/outside_{number}.txt")), "word").unwrap();
    }
    std::os::unix::fs::symlink(outside.path(), harness.path("link")).unwrap();
    let calls = async {
        let mut matched_calls = 0;
        for _ in 0..RACE_CALLS {
            for (tool, input) in [
                ("glob", json!({ "pattern": "**" })),
                ("grep", json!({ "pattern": "word" })),
                ("glob", json!({ "pattern": "*", "path": "src/deep" })),
            ] {
                // A path in the folder is refused while the folder is a link.
                let Ok(said) = harness.alice.call(tool, input).await else { continue };
                assert!(!said.text.contains("outside"), "{tool}: {}", said.text);
                matched_calls += usize::from(said.text.contains("inside_0.txt"));
            }
        }
        assert!(matched_calls > 0, "no call found the folder");
    };
    while_exchanged(&harness.path("src"), &harness.path("link"), calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanged_folder_leads_to_no_control_file() {
    let harness = harness().await;
    harness.write("src/a", "plain");
    harness.write(".tasks/a", "control");
    std::os::unix::fs::symlink(".tasks", harness.path("link")).unwrap();
    let calls = async {
        for _ in 0..4 * RACE_CALLS {
            if let Ok(said) = harness.alice.call("read_file", json!({ "path": "src/a" })).await {
                assert!(!said.text.contains("control"), "{}", said.text);
            }
            let _ = harness.alice.call("write_file", json!({ "path": "src/b", "content": "forged" })).await;
            assert!(!harness.path(".tasks/b").exists(), "a call wrote into a control folder");
        }
    };
    while_exchanged(&harness.path("src"), &harness.path("link"), calls).await;
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
    fn search_ignores_same_files_as_ignore_crate(
        rules in prop::collection::vec((prop::sample::select(&RULE_FILES[..]), prop::collection::vec(prop::sample::select(&RULES[..]), 1..5)), 0..5),
        end in prop::sample::select(&["\n", "\r\n"][..]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let harness = harness().await;
            for file in FILES {
                harness.write(file, "");
            }
            for (file, lines) in &rules {
                harness.write(file, lines.join(end));
            }
            let expected = found_by_crate(harness.folder.path());
            let matches = harness.alice.expect_text("glob", json!({ "pattern": "**" })).await;
            let matches: Vec<&str> = matches.lines().filter(|line| !line.starts_with("no file matches")).collect();
            assert_eq!(matches, expected);
        });
    }
}

/// The files of a random workspace: two letters for names, at most three folders deep.
fn tree() -> impl Strategy<Value = Vec<String>> {
    let path = proptest::collection::vec("[ab]{1,2}", 1..4).prop_map(|parts| format!("{}.x", parts.join("/")));
    proptest::collection::vec(path, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn searches_show_exactly_the_files_that_may_be_read(
        files in tree(),
        patterns in proptest::collection::vec("(\\*\\*/)?[ab*]{1,2}(/[ab*]{1,2}|/\\*\\*|\\.x|/)?", 0..3),
        links in proptest::collection::vec(0..8_usize, 0..3),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut harness = harness().await;
            files.iter().for_each(|path| harness.write(path, "text"));
            let mut paths = files.clone();
            for (number, file) in links.iter().enumerate() {
                let target = &files[file % files.len()];
                std::os::unix::fs::symlink(harness.path(target), harness.path(&format!("link{number}"))).unwrap();
                paths.push(format!("link{number}"));
            }
            let texts: Vec<String> = patterns.iter().map(|pattern| format!("read_file({pattern})")).collect();
            deny(&mut harness, &texts.iter().map(String::as_str).collect::<Vec<_>>());
            let alice = &harness.alice;
            let globbed = alice.expect_text("glob", json!({ "pattern": "**" })).await;
            let found = alice.expect_text("grep", json!({ "pattern": "text", "files_only": true })).await;
            for path in &paths {
                let may_read = !is_denied(&alice.context, "read_file", json!({ "path": path })).await;
                let is_shown = |text: &str| text.lines().any(|line| line.trim_end_matches(" (symbolic link)") == path);
                assert_eq!(is_shown(&globbed), may_read, "{texts:?} {path}: {globbed}");
                assert_eq!(is_shown(&found), may_read && !path.starts_with("link"), "{texts:?} {path}: {found}");
                for detour in [format!("./{path}/"), format!("zz/../{path}"), harness.path(path).display().to_string()] {
                    let may_read_so = !is_denied(&alice.context, "read_file", json!({ "path": detour })).await;
                    assert_eq!(may_read_so, may_read, "{texts:?} {detour}");
                }
            }
        });
    }
}
