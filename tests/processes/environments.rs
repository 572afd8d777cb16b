//! Unusual environments: no config, invalid configs, closed streams, full streams, no home, odd folder names.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use crate::testkit::process::ProcessOutput;
use crate::testkit::seeds::{PROCESS_CHECKS_AT_ONCE, run_in_threads};
use crate::testkit::workspace::TestWorkspace;

const COMMANDS: [&[&str]; 11] = [
    &["tasks"],
    &["tasks", "add", "x"],
    &["team"],
    &["up"],
    &["run"],
    &["state"],
    &["clean"],
    &["why", "1"],
    &["inbox"],
    &["config", "show"],
    &["stop"],
];

#[test]
fn empty_folder_gets_init_hint_and_stays_empty() {
    let workspace = TestWorkspace::new();
    for command in COMMANDS {
        let answer = workspace.run(command);
        assert_eq!(answer.code, Some(2), "{command:?}: {answer:?}");
        assert!(answer.err.contains("brigade.toml") && answer.err.contains("brigade init"), "{command:?}: {answer:?}");
    }
    assert_eq!(workspace.run(&["doctor"]).code, Some(1));
    assert_eq!(fs::read_dir(workspace.path()).unwrap().count(), 0);
}

#[test]
fn broken_config_error_names_problem() {
    const MEMBER: &str = "\n[[teams.x.members]]\nname = \"a\"\n";
    let with_member = |text: &str| format!("{text}{MEMBER}");
    let broken: [(String, &str); 28] = [
        (String::new(), "no team"),
        ("teams".into(), ":1:6"),
        ("[teams.x".into(), "unclosed"),
        ("[teams.x]".into(), "no members"),
        ("[teams.x]\nmembers = []".into(), "no members"),
        ("[teams.x]\nmembers = 3".into(), "members"),
        (with_member("a = 1"), "unknown key `a`"),
        (with_member("[team.x]"), "`team`"),
        (with_member("[teams.x]\ngoal = 3"), "`goal` must be a string"),
        (with_member("[teams.x]\ngaol = \"g\""), "goal"),
        (with_member("[teams.x]\nplan = \"nope.md\""), "nope.md"),
        (with_member("[teams.x]\nhooks = \"coder\""), "unknown key `hooks`"),
        (with_member("[teams.x]\nreview = \"critic\""), "needs a member with the role or capability `critic`"),
        (with_member("[teams.x]\nreview = \"worker\""), "`review` needs a model"),
        (with_member("[teams.x]\nbudget = { tokens = 0 }"), "from 1 to"),
        (with_member("[teams.x]\nbudget = { usd = \"1\" }"), "must be a number"),
        (
            "[teams.x]\nlead = { provider = \"anthropic\", model = \"m\", base_url = \"http://127.0.0.1:9\" }\nbudget = { usd = 1.0 }\n"
                .to_owned(),
            "needs the price of every model",
        ),
        (with_member("[prices.m]\ninput_usd_per_mtok = 1\n[teams.x]"), "needs both"),
        (with_member("[teams.x]\nlimits = { turns_max = 0 }"), "from 1 to"),
        (with_member("[teams.x]\nlimits = { turns_max = \"many\" }"), "whole number"),
        (with_member("[teams.x]\nlimits = { turns = 5 }"), "turns_max"),
        (with_member("durability = \"weak\""), "process, power"),
        ("[[teams.\"a b\".members]]\nname=\"b\"".into(), "`a b`"),
        ("[[teams.x.members]]\nname = \"lead\"".into(), "`lead` is taken"),
        ("[[teams.x.members]]\nrole = \"coder\"".into(), "name"),
        (
            format!(
                "{MEMBER}{}",
                MEMBER.to_uppercase().replace("TEAMS.X.MEMBERS", "teams.x.members").replace("NAME", "name")
            ),
            "already",
        ),
        (format!("{MEMBER}provider = \"magic\""), "runbook"),
        (format!("{MEMBER}[[teams.y.members]]\nname = \"b\""), "cannot choose a team"),
    ];
    run_in_threads(PROCESS_CHECKS_AT_ONCE, &broken, |(text, expected)| {
        let workspace = TestWorkspace::new();
        workspace.write("brigade.toml", text);
        for command in [&["run"][..], &["up", "--headless"]] {
            let answer = workspace.run(command);
            assert!(answer.code == Some(2) && answer.err.contains(expected), "{text}\n{expected}: {answer:?}");
        }
        let doctor = workspace.run(&["doctor"]);
        assert!(doctor.code == Some(1) || *expected == "cannot choose a team", "{text}: {doctor:?}");
        // The board needs no config, only a folder.
        assert_eq!(workspace.run(&["tasks", "add", "x"]).code, Some(0), "{text}");
        assert!(!workspace.join(".team/lead.json").exists(), "{text}: a team was launched");
    });
    for bytes in [&b"\xff\xfe"[..], &vec![b'#'; 2 << 20]] {
        let workspace = TestWorkspace::new();
        fs::write(workspace.join("brigade.toml"), bytes).unwrap();
        let answer = workspace.run(&["run"]);
        assert!(answer.code == Some(2) && answer.err.contains("cannot read brigade.toml"), "{answer:?}");
    }
}

/// A team with two tasks, and a shell line in its folder. Returns the exit and the output of the line.
fn in_shell(line: &str, change: impl FnOnce(&mut Command)) -> (TestWorkspace, ProcessOutput) {
    let workspace = TestWorkspace::with_team(2, "## One\n```sh\ntrue\n```\n## Two\nafter: One\n```sh\ntrue\n```\n");
    let program = env!("CARGO_BIN_EXE_brigade");
    let mut shell = workspace.command("sh");
    shell.args(["-c", &line.replace("brigade", program)]);
    change(&mut shell);
    let answer = ProcessOutput::of(shell);
    (workspace, answer)
}

#[test]
fn closed_or_full_output_stream_loses_no_work() {
    let runs = [
        ("brigade run <&-", 0),
        ("brigade run >&-", 0),
        ("brigade run 2>&-", 0),
        ("brigade run <&- >&- 2>&-", 0),
        ("brigade run >/dev/full", 1),
        ("brigade run --output-format stream-json >/dev/full", 1),
        ("brigade run --output-format json >/dev/full", 1),
        ("brigade run 2>/dev/full", 0),
        ("brigade run | head -1", 0),
        ("brigade run | true", 0),
        ("brigade run --output-format stream-json | head -1", 0),
    ];
    run_in_threads(PROCESS_CHECKS_AT_ONCE, runs, |(line, code)| {
        let (workspace, answer) = in_shell(line, |_| {});
        assert_eq!(answer.code, Some(code), "{line}: {answer:?}");
        assert!(workspace.all_are("completed"), "{line}: {:#?}", workspace.tasks());
        workspace.assert_nothing_is_left_running();
    });
    for line in
        ["brigade tasks >&-", "brigade tasks | true", "brigade --help | true", "brigade completions bash | true"]
    {
        let (_, answer) = in_shell(line, |_| {});
        assert_eq!(answer.code, Some(0), "{line}: {answer:?}");
    }
    let (_, answer) = in_shell("brigade doctor >/dev/full", |_| {});
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert!(answer.err.contains("No space"), "{answer:?}");
}

#[test]
fn home_and_locale_do_not_change_results() {
    let homes: [(&str, Option<&str>); 4] =
        [("unset", None), ("empty", Some("")), ("read-only", Some("/proc")), ("missing", Some("/no/where"))];
    for (label, home) in homes {
        let (workspace, answer) = in_shell("brigade run && brigade doctor && brigade team", |shell| {
            shell.env_remove("XDG_CONFIG_HOME").env_remove("HOME");
            if let Some(home) = home {
                shell.env("HOME", home);
            }
        });
        assert_eq!(answer.code, Some(0), "{label}: {answer:?}");
        assert!(workspace.all_are("completed"), "{label}");
    }
    for language in ["C", "POSIX", "tr_TR.UTF-8", "nonsense"] {
        let (workspace, answer) = in_shell("brigade tasks add 'Größe — ✓' && brigade tasks", |shell| {
            shell.env("LANG", language).env("LC_ALL", language);
        });
        assert!(answer.code == Some(0) && answer.out.contains("Größe — ✓"), "{language}: {answer:?}");
        assert_eq!(workspace.task(1)["subject"], "Größe — ✓");
    }
    let bare =
        Command::new(env!("CARGO_BIN_EXE_brigade")).arg("--version").env_clear().stdin(Stdio::null()).output().unwrap();
    let version = String::from_utf8_lossy(&bare.stdout);
    let begin = concat!("brigade ", env!("CARGO_PKG_VERSION"), " (");
    assert!(
        bare.status.success() && version.starts_with(begin) && version.contains(std::env::consts::ARCH),
        "{version}"
    );
}

#[test]
fn workspace_with_odd_folder_name_works() {
    let names: [&[u8]; 7] = [
        b"with spaces",
        b"it's \"quoted\"",
        b"two\nlines",
        b"\xff\xfe no text",
        b"-dash",
        b"$(touch evil)`;&|",
        "Größe✓".as_bytes(),
    ];
    run_in_threads(PROCESS_CHECKS_AT_ONCE, names, |name| {
        let workspace = TestWorkspace::named(OsStr::from_bytes(name));
        let folder_name = OsString::from(OsStr::from_bytes(name));
        for command in
            [&["init"][..], &["run"], &["tasks"], &["team"], &["doctor"], &["why", "1"], &["stop"], &["clean"]]
        {
            let answer = workspace.run(command);
            assert_eq!(answer.code, Some(0), "{folder_name:?} {command:?}: {answer:?}");
        }
        assert!(workspace.all_are("completed"), "{folder_name:?}");
        assert_eq!(workspace.json(&["tasks"]).as_array().unwrap().len(), 4);
        for command in [&["clean"][..], &["team"], &["init", "--force"], &["config", "show"], &["doctor"]] {
            workspace.json(command);
        }
        assert!(!workspace.join("evil").exists());
        // From another folder, by name.
        let mut elsewhere = workspace.command(env!("CARGO_BIN_EXE_brigade"));
        elsewhere.current_dir("/").args(["tasks", "--workspace"]).arg(workspace.path());
        assert_eq!(ProcessOutput::of(elsewhere).code, Some(0), "{folder_name:?}");
    });
}
