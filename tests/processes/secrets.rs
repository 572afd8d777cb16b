//! What must not get out: keys in the environment, files beyond the umask, a port that somebody else could reach.

use std::os::unix::fs::PermissionsExt;

use super::support::{Answer, Place, files_below, wait_until};

#[test]
fn the_values_of_keys_appear_in_no_file() {
    let plan = "## Print all\n```sh\nset +e\nenv | tee env.txt\nprintenv ANTHROPIC_API_KEY; printenv MY_TOKEN; printenv DB_PASSWORD\nset\n```\n## Verify\nverify: env\n```sh\ntrue\n```\n";
    let place = Place::with_team(1, plan);
    let secrets = [
        ("ANTHROPIC_API_KEY", "sk-secret-xyz"),
        ("OPENAI_API_KEY", "sk-other-secret"),
        ("MY_TOKEN", "abc-token-value"),
        ("DB_PASSWORD", "hunter2-value"),
        ("GITHUB_TOKEN", "ghp-value"),
        ("AWS_SECRET_ACCESS_KEY", "aws-value"),
    ];
    let mut run = place.brigade(&["run"]);
    run.envs(secrets).env("MY_PLAIN", "plain-value");
    let answer = Answer::of(run);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(place.read("env.txt").contains("MY_PLAIN=plain-value"), "other variables are handed on");
    let files = files_below(place.path());
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
fn no_file_is_more_open_than_the_umask_says() {
    let place = Place::with_team(2, "## One\n```sh\ntrue\n```\n## Two\nverify: true\n```sh\ntrue\n```\n");
    let before = files_below(place.path());
    let mut run = place.command("sh");
    run.args(["-c", "umask 077; exec \"$0\" run crew", env!("CARGO_BIN_EXE_brigade")]);
    let answer = Answer::of(run);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let made: Vec<_> = files_below(place.path()).into_iter().filter(|file| !before.contains(file)).collect();
    assert!(made.len() > 8, "{made:?}");
    for file in made {
        let mode = std::fs::symlink_metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", file.display());
    }
    for folder in [".tasks", ".team", ".team/inbox", ".team/transcripts"] {
        let mode = std::fs::metadata(place.join(folder)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{folder} has mode {mode:o}");
    }
}

/// The inodes of the sockets that a process has open.
#[cfg(target_os = "linux")]
fn sockets_of(process: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: &str| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    links.filter_map(|link| inode(&link.to_string_lossy())).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_running_team_listens_nowhere() {
    let place = Place::with_team(2, "## One\n```sh\nuntil test -e go; do sleep 0.02; done\n```\n");
    let mut run = place.start(&["run", "crew"]);
    wait_until("it works", || place.tasks().first().is_some_and(|task| task["status"] == "in_progress"));
    let sockets = sockets_of(run.id());
    // `/proc/net/*`: the state 0A is "listening" for TCP, the flag 00010000 for Unix sockets; the inode is one of the fields.
    for (table, listens) in [("tcp", " 0A "), ("tcp6", " 0A "), ("udp", " "), ("udp6", " "), ("unix", " 00010000 ")] {
        let lines = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let is_ours = |line: &&str| line.split_whitespace().any(|field| sockets.iter().any(|inode| inode == field));
        let found: Vec<&str> = lines.lines().skip(1).filter(|line| line.contains(listens)).filter(is_ours).collect();
        assert!(found.is_empty(), "{table}: {found:?}");
    }
    place.write("go", "");
    assert_eq!(run.code(), Some(0), "{}", run.said());
}
