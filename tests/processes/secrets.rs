//! Secrets: keys in the environment, files with open modes, a port that other users could reach.

use std::os::unix::fs::PermissionsExt;

use crate::testkit::process::{ProcessOutput, files_below, wait_until};
use crate::testkit::workspace::TestWorkspace;

#[test]
fn secret_values_are_in_no_file_or_output() {
    let plan = "## Print all\n```sh\nset +e\nenv | tee env.txt\nprintenv ANTHROPIC_API_KEY; printenv MY_TOKEN; printenv DB_PASSWORD\nset\n```\n## Verify\nverify: env\n```sh\ntrue\n```\n";
    let workspace = TestWorkspace::with_team(1, plan);
    let secrets = [
        ("ANTHROPIC_API_KEY", "sk-secret-xyz"),
        ("OPENAI_API_KEY", "sk-other-secret"),
        ("MY_TOKEN", "abc-token-value"),
        ("DB_PASSWORD", "hunter2-value"),
        ("GITHUB_TOKEN", "ghp-value"),
        ("AWS_SECRET_ACCESS_KEY", "aws-value"),
    ];
    let mut run = workspace.brigade(&["run"]);
    run.envs(secrets).env("MY_PLAIN", "plain-value");
    let answer = ProcessOutput::of(run);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(workspace.read("env.txt").contains("MY_PLAIN=plain-value"), "other variables are not passed on");
    let files = files_below(workspace.path());
    assert!(files.len() > 8, "{files:?}");
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes) + file.to_string_lossy();
        for (name, value) in secrets {
            assert!(!text.contains(value), "the value of {name} is in {}", file.display());
        }
    }
    for (name, value) in secrets {
        assert!(!(answer.out.clone() + &answer.err).contains(value), "the value of {name} was printed");
    }
}

#[test]
fn created_files_respect_umask() {
    let workspace = TestWorkspace::with_team(2, "## One\n```sh\ntrue\n```\n## Two\nverify: true\n```sh\ntrue\n```\n");
    let before = files_below(workspace.path());
    let mut run = workspace.command("sh");
    run.args(["-c", "umask 077; exec \"$0\" run crew", env!("CARGO_BIN_EXE_brigade")]);
    let answer = ProcessOutput::of(run);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let made: Vec<_> = files_below(workspace.path()).into_iter().filter(|file| !before.contains(file)).collect();
    assert!(made.len() > 8, "{made:?}");
    for file in made {
        let mode = std::fs::symlink_metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", file.display());
    }
    for folder in [".tasks", ".team", ".team/inbox", ".team/transcripts"] {
        let mode = std::fs::metadata(workspace.join(folder)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{folder} has mode {mode:o}");
    }
}

/// The inodes of the open sockets of a process.
#[cfg(target_os = "linux")]
fn sockets_of(process: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: &str| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    links.filter_map(|link| inode(&link.to_string_lossy())).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn running_team_has_no_listening_socket() {
    let workspace = TestWorkspace::with_team(2, "## One\n```sh\nuntil test -e go; do sleep 0.02; done\n```\n");
    let mut run = workspace.start(&["run", "crew"]);
    wait_until("the member works", || workspace.tasks().first().is_some_and(|task| task["status"] == "in_progress"));
    let sockets = sockets_of(run.id());
    // `/proc/net/*`: the state 0A is "listening" for TCP, the flag 00010000 for Unix sockets; the inode is one of the fields.
    for (table, listens) in [("tcp", " 0A "), ("tcp6", " 0A "), ("udp", " "), ("udp6", " "), ("unix", " 00010000 ")] {
        let lines = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let is_ours = |line: &&str| line.split_whitespace().any(|field| sockets.iter().any(|inode| inode == field));
        let sockets: Vec<&str> = lines.lines().skip(1).filter(|line| line.contains(listens)).filter(is_ours).collect();
        assert!(sockets.is_empty(), "{table}: {sockets:?}");
    }
    workspace.write("go", "");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
}
