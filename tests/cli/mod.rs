//! The command line as people and programs use it: whole outputs of the real program on real files.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::testkit::process::{command, wait_until};

struct ShellWorkspace {
    folder: tempfile::TempDir,
    transcript: String,
}

impl ShellWorkspace {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), transcript: String::new() }
    }

    /// A workspace after `brigade init`, without git.
    fn initialized() -> Self {
        let workspace = Self::new();
        assert!(workspace.output("brigade init").status.success());
        workspace
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Runs a shell line to its end.
    fn output(&self, line: &str) -> Output {
        self.shell(line).output().unwrap()
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        wait_until(what, || is_so(self));
    }

    /// Waits until a team runs and has reported. Then it has opened its inboxes.
    fn wait_until_team_has_started(&self) {
        self.wait_until("the team is running", |workspace| workspace.json("brigade team --json")["running"] == true);
        self.wait_until("the team has started", |workspace| {
            let members = workspace.json("brigade team --json")["members"].clone();
            members.as_array().unwrap().iter().all(|member| member["phase"] != "stopped")
        });
    }

    fn shell(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_brigade"));
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut shell = command("sh", self.path());
        shell.args(["-c", line]).env("PATH", path);
        shell
    }

    /// Runs the line and adds its output to the transcript.
    fn run(&mut self, line: &str) -> &mut Self {
        let output = self.output(line);
        self.transcript.push_str(&format!("$ {line}\n{}", String::from_utf8_lossy(&output.stdout)));
        for error in String::from_utf8_lossy(&output.stderr).lines() {
            self.transcript.push_str(&format!("! {error}\n"));
        }
        match output.status.code() {
            Some(0) => {}
            code => self.transcript.push_str(&format!("[exit {}]\n", code.unwrap_or(-1))),
        }
        self
    }

    /// The transcript without values that differ between runs.
    fn normalized(&self) -> String {
        let real = self.path().canonicalize().unwrap().display().to_string();
        let text = self.transcript.replace(&real, "WORKSPACE").replace(&self.path().display().to_string(), "WORKSPACE");
        without_times(&text)
    }

    fn json(&self, line: &str) -> Value {
        let output = self.output(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer.as_object().unwrap().keys().collect::<Vec<_>>(), ["schema_version", "data"]);
        assert_eq!(answer["schema_version"], 1);
        answer["data"].clone()
    }
}

/// `just now`, `12 s ago` and `in 14 min 59 s` become `SOME_TIME ago` and `in SOME_TIME`.
fn without_times(text: &str) -> String {
    let text = text.replace("just now", "0 s ago");
    let is_time = |words: &[&str]| {
        let unit = words[1].trim_end_matches([',', ';', '.', ')']);
        words[0].parse::<u64>().is_ok() && ["ms", "s", "min", "h", "d"].contains(&unit)
    };
    let lines = text.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut out: Vec<String> = Vec::new();
        let mut at = 0;
        while at < words.len() {
            if at + 1 < words.len() && is_time(&words[at..at + 2]) {
                let tail: String = words[at + 1].chars().skip_while(|c| c.is_alphanumeric()).collect();
                match out.last_mut() {
                    Some(last) if last.starts_with("SOME_TIME") => *last = format!("SOME_TIME{tail}"),
                    _ => out.push(format!("SOME_TIME{tail}")),
                }
                at += 2;
            } else {
                out.push(words[at].to_owned());
                at += 1;
            }
        }
        out.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn init_creates_workspace_files_once() {
    let mut workspace = ShellWorkspace::new();
    workspace.run("brigade tasks").run("brigade init").run("ls -A . prompts").run("cat .gitignore").run("brigade init");
    workspace
        .run("mkdir sub && cd sub && brigade tasks && brigade config show my-team | head -3")
        .run("brigade init --force");
    workspace.run("grep -c brigade .gitignore").run("brigade init --prompts").run("brigade init 'my team' --force");
    insta::assert_snapshot!(workspace.normalized());
}

#[test]
fn tasks_commands_follow_board_rules() {
    let mut workspace = ShellWorkspace::initialized();
    workspace.write("plan.md", include_str!("../plans/board.md"));
    workspace
        .run("brigade tasks import plan.md")
        .run("brigade tasks import plan.md")
        .run("brigade tasks")
        .run("echo 'From stdin.' | brigade tasks add 'One more' -d - --after '3, #1' --priority -2 --for bob")
        .run("brigade tasks claim --as alice")
        .run("brigade tasks complete 1")
        .run("brigade tasks done 1 --as alice")
        .run("brigade tasks done 1 --as alice --attempt 1")
        .run("echo x > files.txt; brigade tasks done 1 --as alice --attempt 1 --summary 'All listed'")
        .run("brigade tasks done 1 --as alice --attempt 1")
        .run("brigade tasks claim 2 --as bob")
        .run("brigade tasks claim 2 --as zoe --can coder --lease 1h")
        .run("brigade tasks renew 2 --as zoe --attempt 1 --lease 2h")
        .run("brigade tasks fail 2 --as zoe --attempt 1 --reason 'no words'")
        .run("brigade tasks rm 2")
        .run("brigade tasks update 3 --requires '' --max-attempts 1 --verify '' --subject 'Write it all'")
        .run("brigade tasks update 3 --before 1")
        .run("brigade tasks update 4 --not-after 3")
        .run("brigade tasks claim --as carol")
        .run("brigade tasks release 3")
        .run("brigade tasks release 3 --force --reason 'not today'")
        .run("brigade tasks claim 3 --as carol >/dev/null")
        .run("brigade tasks update 3 --status failed --reason 'gave up' --as carol --attempt 2")
        .run("brigade tasks update 3 --status pending")
        .run("brigade tasks reopen 1")
        .run("brigade tasks rm 4 1")
        .run("brigade tasks show 3")
        .run("brigade tasks show 2")
        .run("brigade tasks list --status failed")
        .run("brigade tasks");
    insta::assert_snapshot!(workspace.normalized());
}

#[test]
fn wrong_command_gets_help_and_suggestion() {
    let mut workspace = ShellWorkspace::initialized();
    for line in [
        "brigade task",
        "brigade taks",
        "brigade rn",
        "brigade tasks shw",
        "brigade status",
        "brigade start",
        "brigade help | head -1",
        "brigade tasks frobnicate",
        "brigade tasks done",
        "brigade tasks show x",
        "brigade tasks show 99",
        "brigade tasks add",
        "brigade tasks add ''",
        "brigade tasks add x --after 9",
        "brigade tasks add x --priority high",
        "brigade tasks claim",
        "brigade tasks claim --as all",
        "brigade tasks claim --as 'a b'",
        "brigade tasks claim --as x --lease 15",
        "brigade tasks claim --as x",
        "brigade tasks update 1",
        "brigade tasks update 1 --status done",
        "brigade tasks import nothing.md",
        "brigade tasks --statsu x",
        "brigade up ghost",
        "brigade --workspace /nowhere tasks",
        "brigade --workspace brigade.toml tasks",
        "brigade --config nothing.toml config show",
        "brigade state running",
        "brigade completions tcsh",
        "BRIGADE_TURNS_MAX=none brigade config show",
    ] {
        workspace.run(line);
    }
    insta::assert_snapshot!(workspace.normalized());
}

#[test]
fn invalid_config_and_plan_errors_name_lines() {
    let mut workspace = ShellWorkspace::new();
    workspace.write("brigade.toml", "[teams.a]\nmembrs = []\nhooks = \"x\"\n");
    workspace.run("brigade up a").run("brigade config show --json").run("brigade tasks");
    workspace.write(
        "brigade.toml",
        "[teams.a]\nplan = \"plan.md\"\nmembers = [{ name = \"x\" }]\n[teams.b]\nmembers = [{ name = \"y\" }]\n",
    );
    workspace.write("plan.md", "## A\nafter: C\n## B\npriority: soon\n");
    workspace.run("brigade up").run("brigade run a").run("brigade tasks import plan.md");
    insta::assert_snapshot!(workspace.normalized());
}

#[test]
fn json_option_prints_one_line_of_json() {
    let workspace = ShellWorkspace::initialized();
    assert_eq!(workspace.json("brigade tasks --json"), serde_json::json!([]));
    assert_eq!(workspace.json("brigade --json tasks claim --as alice"), Value::Null);
    let added = workspace.json("brigade tasks add 'List the largest files' --json");
    let keys = [
        "id",
        "subject",
        "description",
        "status",
        "owner",
        "blockedBy",
        "blocks",
        "createdBy",
        "createdAt",
        "updatedAt",
    ];
    assert_eq!(added.as_object().unwrap().keys().take(10).collect::<Vec<_>>(), keys);
    let claimed = workspace.json("brigade tasks claim --as bob --json");
    let sample = include_str!("../contracts/cli_tasks.json");
    let sample: Value = serde_json::from_str(sample).unwrap();
    for (field, value) in sample["data"][0].as_object().unwrap() {
        if field != "id" {
            assert_eq!(&claimed[field], value, "{field}");
        }
    }
    let listed = workspace.json("brigade tasks --json --status in_progress");
    assert_eq!(listed[0]["claim"]["worker"], "lease:bob");
    let reasons = workspace.json("brigade why 1 --json")["reasons"].clone();
    assert_eq!(reasons[0]["kind"], "held");
    assert_eq!(workspace.json("brigade config show --json")[0]["values"][0]["key"], "goal");

    let refused = workspace.output("brigade tasks show 9 --json");
    assert!(refused.stdout.is_empty() && refused.status.code() == Some(1));
    let error: Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(error["schema_version"], 1);
    assert_eq!(error["error"]["code"], 1);
    assert_eq!(error["error"]["hint"], "`brigade tasks`");
    let usage: Value = serde_json::from_slice(&workspace.output("brigade tasks frob --json").stderr).unwrap();
    assert_eq!(usage["error"]["code"], 2);
}

#[test]
fn foreign_task_is_shown_without_control_codes() {
    let workspace = ShellWorkspace::initialized();
    fs::create_dir_all(workspace.path().join(".tasks")).unwrap();
    let foreign = fs::read_to_string("tests/contracts/task_foreign_fields.json").unwrap();
    workspace.write(".tasks/task_7.json", &foreign.replace("Refactor auth", "evil \\u001b[2J\\u202e name"));
    let text =
        String::from_utf8(workspace.output("brigade tasks; brigade tasks show 7; brigade why 7").stdout).unwrap();
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    assert!(text.contains("another program"), "{text}");
    let shown = workspace.json("brigade tasks show 7 --json");
    assert_eq!(shown["x_other_tool"]["keep"], serde_json::json!(["every", "byte"]));
}

#[test]
fn color_option_and_variables_control_colors() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add x");
    let has_color = |line: &str| workspace.output(line).stdout.contains(&0x1b);
    assert!(!has_color("brigade tasks"));
    assert!(has_color("brigade tasks --color always"));
    assert!(has_color("brigade --color=always tasks"));
    assert!(has_color("CLICOLOR_FORCE=1 brigade tasks"));
    assert!(!has_color("CLICOLOR_FORCE=1 brigade tasks --color never"));
    assert!(!has_color("NO_COLOR=1 brigade tasks"));
}

#[test]
fn output_fits_terminal_and_closed_pipe_is_ok() {
    let workspace = ShellWorkspace::initialized();
    workspace
        .output("brigade tasks add 'a subject that is far too long for the narrow terminal it is shown in 日本語'");
    let narrow = String::from_utf8(workspace.output("COLUMNS=40 brigade tasks").stdout).unwrap();
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    for line in ["brigade tasks", "brigade --help", "brigade completions bash", "brigade config schema"] {
        // The reader closes before anything is written.
        let output = workspace.output(&format!("{{ sleep 0.2; {line}; echo \"exit $?\" >&2; }} | true"));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_note = |line: &&str| line.starts_with("1 task") || line.starts_with("no member with a model");
        let messages: Vec<&str> = errors.lines().filter(|line| !is_note(line)).collect();
        assert_eq!(messages, ["exit 0"], "{line}");
    }
}

#[test]
fn schema_and_completions_are_printed() {
    let workspace = ShellWorkspace::new();
    let schema = workspace.output("brigade config schema").stdout;
    let published = include_bytes!("../../schema/brigade.schema.json");
    assert!(schema == published, "brigade config schema > schema/brigade.schema.json");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = workspace.output(&format!("brigade completions {shell}")).stdout;
        assert!(String::from_utf8(script).unwrap().contains("brigade"), "{shell}");
    }
}

/// The words that bash offers for a line, with the script of `brigade completions bash`.
fn offered_by_bash(place: &ShellWorkspace, words: &str) -> Vec<String> {
    let count = words.split(' ').count() - 1;
    let words = words.split(' ').map(|word| format!("'{word}' ")).collect::<String>();
    let line = format!(
        "bash --norc -c 'source <(brigade completions bash); COMP_WORDS=(\"$@\"); COMP_CWORD={count}; _brigade; \
         printf \"%s\\n\" \"${{COMPREPLY[@]}}\"' bash {words}"
    );
    let output = place.output(&line);
    assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn shell_completes_task_numbers_and_names() {
    let place = ShellWorkspace::initialized();
    place.output("brigade tasks add One; brigade tasks add Two");
    for (words, offered) in [
        ("brigade why ", vec!["1", "2"]),
        ("brigade tasks sh", vec!["show"]),
        ("brigade tasks list --status = fai", vec!["failed"]),
        ("brigade tasks claim --as al", vec!["alice"]),
        ("brigade run ", vec!["my-team"]),
    ] {
        assert_eq!(offered_by_bash(&place, words), offered, "{words}");
    }
    let lines = |line: &str| String::from_utf8(place.output(line).stdout).unwrap();
    assert_eq!(lines("brigade complete -- tasks show ''"), "1\tOne\n2\tTwo\n");
    assert_eq!(lines("brigade complete -- --workspace /nowhere why ''"), "");
    let outside = ShellWorkspace::new();
    let flagged = format!("brigade complete -- --workspace {} why ''", place.path().display());
    assert_eq!(outside.output(&flagged).stdout, b"1\tOne\n2\tTwo\n");
    for words in ["why ''", "run ''", "send ''"] {
        let output = outside.output(&format!("brigade complete -- {words}"));
        assert!(output.status.success() && output.stderr.is_empty(), "{words}");
        let names: &[u8] = if words.starts_with("send") { b"lead\nall\n" } else { b"" };
        assert_eq!(output.stdout, names, "{words}");
    }
}

#[test]
fn help_lists_commands_and_options() {
    let mut workspace = ShellWorkspace::new();
    workspace.run("brigade --help").run("brigade tasks --help").run("brigade tasks claim --help").run("brigade run -h");
    insta::assert_snapshot!(workspace.normalized());
}

#[test]
fn broken_only_team_error_names_its_problem() {
    let workspace = ShellWorkspace::initialized();
    workspace.write("brigade.toml", "[teams.crew]\n[[teams.crew.members]]\nname = \"lead\"\n");
    for command in ["brigade team", "brigade cost"] {
        let output = workspace.output(command);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("`lead`") && !said.contains("cannot choose a team"), "{command}: {said}");
    }
}

#[test]
fn doctor_reports_cycle_and_unknown_variable() {
    let workspace = ShellWorkspace::initialized();
    let findings = workspace.json("brigade doctor --json");
    let verdict = |check: &str| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["check"] == check);
        found.map(|finding| finding["verdict"].clone())
    };
    for check in ["config", "locks", "board", "keys"] {
        assert_eq!(verdict(check), Some("ok".into()), "{check}");
    }
    workspace.write(".tasks/task_1.json", "{\"id\":1,\"subject\":\"a\",\"status\":\"pending\",\"blockedBy\":[2]}");
    workspace.write(".tasks/task_2.json", "{\"id\":2,\"subject\":\"b\",\"status\":\"pending\",\"blockedBy\":[1]}");
    let output = workspace.output("ANTHROPIC_API_KEY=sk-secret BRIGADE_TRUNS_MAX=1 brigade doctor");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAIL  board: tasks wait for each other: #1 -> #2 -> #1"), "{text}");
    assert!(text.contains("did you mean `BRIGADE_TURNS_MAX`?") && text.contains("set: ANTHROPIC_API_KEY"), "{text}");
    assert!(!text.contains("sk-secret"));
    let left: Vec<_> = fs::read_dir(workspace.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("doctor")), "{left:?}");
}

#[test]
fn send_and_inbox_work_without_running_team() {
    let mut workspace = ShellWorkspace::initialized();
    for line in [
        "brigade send alice start with the parser",
        "brigade send Alcie hello",
        "printf 'two\\nlines' | brigade send lead -",
        "brigade send all main is green",
        "brigade send alice ''",
        "brigade inbox alice",
        "brigade inbox lead",
        "brigade inbox zoe",
        "brigade inbox alice --take",
        "brigade inbox",
        "brigade send human 'note to myself'",
        "brigade inbox",
        "brigade inbox --take",
        "brigade inbox --take",
        "brigade inbox",
    ] {
        workspace.run(line);
    }
    insta::assert_snapshot!(workspace.normalized());
    let mail = workspace.json("brigade inbox bob --json");
    assert_eq!((&mail[0]["type"], &mail[0]["from"]), (&Value::from("broadcast"), &Value::from("human")));
    assert!(mail[0]["timestamp"].is_f64() && mail[0]["id"].is_string());
}

#[test]
fn state_command_shows_and_sets_desired_state() {
    let mut workspace = ShellWorkspace::initialized();
    workspace
        .run("brigade state")
        .run("brigade state continuous")
        .run("brigade state pause --note 'not now'")
        .run("brigade state");
    workspace.run("brigade team");
    let unknown = include_str!("../contracts/agent_state_unknown.json");
    workspace.write("agent_state.json", unknown);
    workspace.run("brigade state").run("brigade team my-team | head -2");
    insta::assert_snapshot!(workspace.normalized());
    let state = workspace.json("brigade state run_once --json");
    let fields: Vec<&String> = state.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["desired_state", "current_state", "timestamp", "setBy", "note"]);
    assert_eq!((&state["desired_state"], &state["setBy"]), (&Value::from("run_once"), &Value::from("human")));
}

#[test]
fn team_and_stop_commands_reach_running_team() {
    let workspace = ShellWorkspace::initialized();
    let mut up = workspace.shell("exec brigade up --headless --mode pause >/dev/null 2>&1").spawn().unwrap();
    workspace.wait_until_team_has_started();
    let sample: Value = serde_json::from_str(include_str!("../contracts/cli_team.json")).unwrap();
    let team = workspace.json("brigade team --json");
    for field in sample["data"].as_object().unwrap().keys() {
        assert!(team.get(field).is_some(), "{field}");
    }
    for field in sample["data"]["members"][0].as_object().unwrap().keys() {
        assert!(team["members"][0].get(field).is_some(), "{field}");
    }
    assert_eq!(team["pid"], up.id());
    let second = workspace.output("brigade run");
    assert_eq!(second.status.code(), Some(4), "{}", String::from_utf8_lossy(&second.stderr));
    assert_eq!(workspace.output("brigade clean").status.code(), Some(4));
    assert!(workspace.output("brigade send alice hello").status.success());
    let config = fs::read_to_string(workspace.path().join("brigade.toml")).unwrap();
    workspace.write("brigade.toml", &(config + "[[teams.two.members]]\nname = \"carol\"\n"));
    let other = format!("team `my-team` (pid {}) runs here; `two` does not\n", up.id());
    let error = |line: &str| String::from_utf8(workspace.output(line).stderr).unwrap();
    let text = error("brigade team two");
    assert!(text.contains(&other) && !text.contains("`brigade run` continues"), "{text}");
    assert!(error("brigade stop two").contains(&format!("cannot stop `two`: {other}hint: `brigade stop`")));
    assert!(error("brigade stop my-team").contains("it is the team, not a teammate\nhint: `brigade stop`"));
    let stopped = workspace.output("brigade stop");
    assert_eq!(String::from_utf8_lossy(&stopped.stdout), "team my-team is stopped\n");
    up.wait().unwrap();
    assert_eq!(workspace.json("brigade team --json")["running"], false);
    assert_eq!(workspace.json("brigade stop --json")["stopped"], false);
}

#[test]
fn run_prints_events_and_exits_with_outcome() {
    let workspace = ShellWorkspace::initialized();
    let done = workspace.json("brigade run --json");
    assert_eq!((&done["tally"]["completed"], &done["completed_now"]), (&Value::from(4), &Value::from(4)));
    assert_eq!(fs::read_to_string(workspace.path().join("report.txt")).unwrap().lines().count(), 2);
    workspace.output("brigade tasks add 'Too hard' --requires gpu");
    let events = workspace.output("brigade run my-team --output-format stream-json");
    assert_eq!(events.status.code(), Some(1));
    let kinds: Vec<Value> = String::from_utf8(events.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone())
        .collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"team_started".into()), Some(&"team_stopped".into())));
    let text = String::from_utf8(workspace.output("brigade run").stdout).unwrap();
    assert!(text.contains("4 of 5 tasks done") && text.contains("`brigade why 5`"), "{text}");
    let why = workspace.json("brigade why 5 --json")["reasons"].clone();
    assert_eq!((&why[0]["kind"], &why[1]["kind"]), (&Value::from("nobody_fit"), &Value::from("no_team")));
}

#[test]
fn traces_name_teammate_turn_and_tool() {
    let workspace = ShellWorkspace::initialized();
    let traces = String::from_utf8(workspace.output("RUST_LOG=brigade=info brigade run").stderr).unwrap();
    let spans = [
        "lead{team=my-team}:teammate{name=",
        ":turn{task=1 attempt=1 turn=1}:tool{tool=\"bash\" call=",
        " close time.busy=",
    ];
    let is_tool_end = |line: &str| spans.iter().all(|span| line.contains(span));
    assert!(traces.lines().any(is_tool_end), "{traces}");
    let quiet = workspace.output("brigade run");
    assert!(quiet.stderr.is_empty(), "{}", String::from_utf8_lossy(&quiet.stderr));
}

#[test]
fn log_command_filters_and_follows() {
    let workspace = ShellWorkspace::initialized();
    let empty = String::from_utf8(workspace.output("brigade log").stderr).unwrap();
    assert_eq!(empty, "the event log is empty: no team has run yet\n");
    workspace.output("brigade run");
    let text = |line: &str| String::from_utf8(workspace.output(line).stdout).unwrap();
    let all = text("brigade log");
    assert!(all.contains("my-team starts") && all.contains("completes #3"), "{all}");
    let of_two = text("brigade log --task 2");
    assert!(of_two.contains("completes #2") && !of_two.contains("#3") && !of_two.contains("starts"), "{of_two}");
    let kinds = |line: &str| -> Vec<Value> {
        workspace.json(line).as_array().unwrap().iter().map(|event| event["kind"].clone()).collect()
    };
    assert_eq!(kinds("brigade log --json --kind task_completed --kind task_claimed").len(), 8);
    assert_eq!(kinds("brigade log --json -n 2").last(), Some(&"team_stopped".into()));
    let mut follow = workspace.shell("exec brigade log --follow > followed.txt").spawn().unwrap();
    let starts = |workspace: &ShellWorkspace| {
        let followed = fs::read_to_string(workspace.path().join("followed.txt")).unwrap_or_default();
        followed.matches("my-team starts").count()
    };
    workspace.wait_until("the earlier state is printed", |workspace| starts(workspace) == 1);
    workspace.output("brigade run");
    workspace.wait_until("the team continues", |workspace| starts(workspace) == 2);
    follow.kill().unwrap();
    follow.wait().unwrap();
}

#[test]
fn log_lists_runs_and_replay_shows_them() {
    let workspace = ShellWorkspace::initialized();
    let (data, text) =
        (|line: &str| workspace.json(line), |line: &str| String::from_utf8(workspace.output(line).stdout).unwrap());
    assert_eq!(data("brigade log --runs --json"), serde_json::json!([]));
    let none = String::from_utf8(workspace.output("brigade replay").stderr).unwrap();
    assert!(none.contains("the event log is empty"), "{none}");
    workspace.output("brigade run");
    workspace.output("brigade tasks add Later");
    workspace.output("brigade run");
    let runs = data("brigade log --runs --json");
    let last = runs[1]["last"].as_u64().unwrap();
    assert_eq!(
        (runs.as_array().unwrap().len(), &runs[0]["run"], &runs[1]["outcome"]),
        (2, &1.into(), &"its session is over".into())
    );
    assert!(text("brigade log --runs").contains("my-team"));

    // The log: of the newest run, of an earlier run, of all runs, since a time.
    let claims = |line: &str| data(&format!("brigade log --json --kind task_claimed {line}")).as_array().unwrap().len();
    let of_runs = (claims("--run 1"), claims("--run 2"));
    assert_eq!((of_runs.1, claims(""), claims("--run all")), (4, of_runs.0, of_runs.0 + 4));
    assert_eq!((claims("--since 1h"), claims("--since 2099-01-01T00:00:00Z")), (of_runs.0 + 4, 0));
    assert!(claims("--task 1") == 1 && claims("--task 1 --run 1") == 0, "a task is searched in all runs");
    let all = text("brigade log --run all --kind task_completed");
    assert_eq!((all.matches("run of ").count() >= 1, all.matches("completes #").count() >= 3), (true, true), "{all}");
    let before = text("brigade log --run 2 --teammate alice") + &text("brigade log --run 2 --teammate bob");
    assert!(before.matches("claims #").count() == 4 && !before.contains("run of "), "{before}");

    // A replay: the end of a run, and one moment.
    let first = data("brigade replay --run 2 --json");
    assert_eq!((&first["event"]["kind"], first["tasks"].as_array().unwrap().len()), (&"team_stopped".into(), 4));
    assert_eq!(first["unknown"], serde_json::json!([]));
    assert_eq!(data("brigade replay --run 2 --at first --json")["tasks"], serde_json::json!([]));
    let at_first_claim = |event: &Value| event["kind"] == "task_claimed";
    let log = data("brigade log --run 2 --json");
    let seq = log.as_array().unwrap().iter().find(|event| at_first_claim(event)).unwrap()["seq"].clone();
    let shown = text(&format!("brigade replay --run 2 --at {seq}"));
    assert!(shown.contains(&format!("event {seq} of {last}")) && shown.contains("was pending"), "{shown}");
    assert!(shown.contains("in_progress") && shown.contains("waits for #"), "{shown}");
    let done = text("brigade replay --run 2 --task 3");
    assert!(done.contains("#3 is completed"), "{done}");
    assert!(text("brigade replay --run 1 --at first").contains("my-team"));

    // Unknown runs, events and times.
    for (line, says) in [
        ("brigade replay --run 3", "there is no run 3: the log has 2"),
        ("brigade replay --at 9999", "the last of the run is"),
        ("brigade replay --at 0", "there is no event 0: the first of a run is 1"),
        ("brigade log --kind task_complete", "did you mean `task_completed`?"),
        ("brigade replay --at soon", "expected an event number, `first`, `latest`, or a time"),
        ("brigade replay --run all", "cannot replay all runs"),
        ("brigade log --run 2 --follow", "cannot follow this run"),
        ("brigade log --since soon", "expected 10m (ago), 0:42 (into the run)"),
    ] {
        let output = workspace.output(line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(says), "{line}: {said}");
    }

    for (line, says) in [
        ("brigade log --teammate ghost", "cannot find the teammate `ghost`: there are alice, bob, lead, human"),
        ("brigade log --task 99", "cannot find #99: no event matches, and it is not on the board"),
        ("brigade log --kind budget_spent", "no event of this run matches; `--run all` searches all runs"),
    ] {
        let said = String::from_utf8(workspace.output(line).stderr).unwrap();
        assert!(said.contains(says), "{line}: {said}");
    }

    // The oldest part of a large log is removed. The rest is replayed with a notice.
    let path = workspace.path().join(".team/events.1.jsonl");
    let rest = fs::read_to_string(&path).unwrap();
    let rest: String = rest.split_inclusive('\n').skip(9).collect();
    fs::write(&path, rest).unwrap();
    let torn = data("brigade replay --run 2 --at 12 --json");
    assert!(torn["unknown"][0].as_str().unwrap().contains("events 1 to 9 were removed"), "{torn}");
    assert!(text("brigade replay --run 2 --at 12").contains("not known: events 1 to 9 were removed"));
    assert_eq!(workspace.output("brigade replay --run 2 --at 5").status.code(), Some(2));
}

#[test]
fn clean_removes_old_files_and_board_only_on_request() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add x");
    workspace.write(".team/events.1.jsonl", "{}\n");
    workspace.write(".team/events.jsonl", "{}\n");
    workspace.write(".team/workers/1-1-dead.json", "{}");
    workspace.write(".team/workers/1-1-dead.lock", "");
    workspace.write(".team/transcripts/alice.jsonl", "{}\n");
    let names = |line: &str| -> Vec<String> {
        let items = workspace.json(line)["files"].clone();
        let path = |item: &Value| item["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        items.as_array().unwrap().iter().map(path).collect()
    };
    let old = ["1-1-dead.json", "1-1-dead.lock", "events.1.jsonl"];
    assert_eq!(names("brigade clean --json"), old);
    assert_eq!(names("brigade clean --all --board --json").len(), 5);
    assert!(workspace.path().join(".team/workers/1-1-dead.json").exists(), "listing removes nothing");
    assert_eq!(names("brigade clean --yes --json"), old);
    assert!(names("brigade clean --json").is_empty());
    assert!(workspace.path().join(".team/transcripts/alice.jsonl").exists());
    workspace.output("brigade tasks claim 1 --as bob");
    let refused = workspace.output("brigade clean --yes --board");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("cannot clean the board: tasks are claimed under a lease: #1\n"), "{text}");
    assert!(text.contains("`brigade tasks release 1 --force`"), "{text}");
    workspace.output("brigade tasks release 1 --force");
    assert_eq!(names("brigade clean --yes --all --board --json"), ["alice.jsonl", "task_1.json"]);
    assert_eq!(workspace.json("brigade tasks add y --json")["id"], 2, "ids are never reused");
}

#[test]
fn tasks_bulk_change_is_all_or_nothing() {
    let workspace = ShellWorkspace::initialized();
    let error = |line: &str| {
        let output = workspace.output(line);
        assert_ne!(output.status.code(), Some(0), "{line}");
        String::from_utf8(output.stderr).unwrap()
    };
    for subject in ["a", "b", "c"] {
        workspace.output(&format!("brigade tasks add {subject}"));
    }
    assert!(error("brigade tasks rm 2 3 77").contains("no task #77 on the board; no task was deleted"));
    assert_eq!(workspace.json("brigade tasks --json").as_array().unwrap().len(), 3);
    assert_eq!(workspace.json("brigade tasks rm 2 '#2' --json").as_array().unwrap().len(), 1);
    workspace.output("brigade tasks claim 1 --as bob && brigade tasks claim 3 --as bob");
    assert_eq!(workspace.json("brigade tasks release 1 3 --as bob --attempt 1 --json").as_array().unwrap().len(), 2);
    for id in [1, 3] {
        workspace
            .output(&format!("brigade tasks claim {id} --as bob; brigade tasks complete {id} --as bob --attempt 2"));
    }
    let shown = String::from_utf8(workspace.output("brigade tasks show 1 3").stdout).unwrap();
    assert!(shown.starts_with("#1 a\n") && shown.contains("\n\n#3 c\n"), "{shown}");
    assert!(error("brigade tasks reopen 1 3 2").contains("no task was reopened"));
    assert!(error("brigade tasks retry 1").contains("hint: `brigade tasks reopen 1`"));
    let reopened = String::from_utf8(workspace.output("brigade tasks reopen 1 3").stdout).unwrap();
    assert_eq!(reopened, "reopened #1 a\nreopened #3 c\n");
    assert!(error("brigade tasks retry 1 3").contains("cannot retry task #1: it is pending"));
}

#[test]
fn completing_unclaimed_task_error_says_claim_first() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add a");
    let error = |line: &str| String::from_utf8(workspace.output(line).stderr).unwrap();
    for verb in ["complete", "release", "renew"] {
        let text = error(&format!("brigade tasks {verb} 1"));
        assert!(text.contains("#1: it is pending") && text.contains("claim it first"), "{text}");
    }
    assert!(error("brigade tasks complete 9").contains("no task #9"));
    let text = error("brigade tasks complete 1 --as bob --attempt 3");
    assert!(text.contains("in attempt 3: it was not claimed in this attempt, and it has no holder"), "{text}");
    workspace.output("brigade tasks claim --as bob; brigade tasks release 1 --as bob --attempt 1");
    let text = error("brigade tasks complete 1 --as bob --attempt 1");
    assert!(
        text.contains("cannot change task #1 in attempt 1: its lease expired or it was released, and it has no holder")
    );
    assert!(text.contains("`brigade tasks claim 1 --as bob`"), "{text}");
    workspace.output("brigade tasks claim --as bob");
    assert!(
        error("brigade tasks complete 1")
            .contains("cannot complete #1: bob holds it in attempt 2, and must name both\n")
    );
    assert!(error("brigade tasks complete 1").contains("add `--as bob --attempt 2`, or add `--force` as a person"));
    // Only the holder may renew a lease.
    let text = error("brigade tasks renew 1");
    assert!(text.contains("hint: add `--as bob --attempt 2`\n"), "{text}");
    assert!(!error("brigade tasks renew 1 --as ann").contains("--force"));
    assert!(error("brigade tasks renew 1 --force").contains("unknown option `--force`"));
}

#[test]
fn foreign_task_hint_names_only_force() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add a");
    let task = fs::read_to_string(workspace.path().join(".tasks/task_1.json")).unwrap();
    workspace.write(".tasks/task_1.json", &task.replace("pending", "in_progress"));
    let text = String::from_utf8(workspace.output("brigade tasks release 1").stderr).unwrap();
    assert!(text.contains("cannot release #1: another program holds it without a claim\n"), "{text}");
    assert!(text.contains("hint: add `--force` as a person\n") && !text.contains("--as"), "{text}");
    assert_eq!(workspace.output("brigade tasks release 1 --force").status.code(), Some(0));
}

#[test]
fn foreign_status_is_named_and_deleted_with_force() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add a");
    let task = fs::read_to_string(workspace.path().join(".tasks/task_1.json")).unwrap();
    workspace.write(".tasks/task_1.json", &task.replace("pending", "in_review"));
    let error = |line: &str| String::from_utf8(workspace.output(line).stderr).unwrap();
    let text = error("brigade tasks complete 1");
    assert!(text.contains("cannot complete task #1: it is in_review"), "{text}");
    let text = error("brigade tasks rm 1");
    assert!(text.contains("#1: it is in_review, a status of another program; only force deletes it"), "{text}");
    assert_eq!(workspace.json("brigade tasks rm 1 --force --json")[0]["id"], 1);
}

#[test]
fn removed_dependency_must_exist() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add a; brigade tasks add b; brigade tasks add c --after 1");
    let error = |line: &str| String::from_utf8(workspace.output(line).stderr).unwrap();
    let text = error("brigade tasks update 3 --not-after 1,2");
    assert!(text.contains("cannot change #3: it does not wait for #2"), "{text}");
    assert_eq!(error("brigade tasks update 3 --not-after 1"), "");
}

#[test]
fn init_force_keeps_backup_of_replaced_files() {
    let workspace = ShellWorkspace::initialized();
    workspace.write("plan.md", "## Mine\n");
    workspace.write("plan.md.bak", "## Older\n");
    let text = String::from_utf8(workspace.output("brigade init --force").stdout).unwrap();
    assert!(text.contains("replaced plan.md (the old one is plan.md.bak.1)"), "{text}");
    assert!(!text.contains("brigade.toml ("), "equal values are not shown: {text}");
    let read = |name: &str| fs::read_to_string(workspace.path().join(name)).unwrap();
    assert_eq!((read("plan.md.bak.1"), read("plan.md.bak")), ("## Mine\n".into(), "## Older\n".into()));
    workspace.write("prompts/coder.md", "Mine.\n");
    let replaced = workspace.json("brigade init --force --json")["replaced"].clone();
    assert_eq!(replaced, serde_json::json!([{ "file": "prompts/coder.md", "kept": "prompts/coder.md.bak" }]));
}

#[test]
fn init_names_files_it_kept() {
    let workspace = ShellWorkspace::new();
    workspace.write("plan.md", "## Mine\n");
    let text = String::from_utf8(workspace.output("brigade init").stdout).unwrap();
    assert!(text.contains("wrote brigade-plan.md") && text.contains("wrote brigade.toml"), "{text}");
    assert!(text.contains("Your plan.md stays as it is: the team uses brigade-plan.md"), "{text}");
    assert_eq!(fs::read_to_string(workspace.path().join("plan.md")).unwrap(), "## Mine\n");
    let config = fs::read_to_string(workspace.path().join("brigade.toml")).unwrap();
    assert!(config.contains("plan = \"brigade-plan.md\" "), "{config}");
    let text = String::from_utf8(workspace.output("brigade init --prompts").stdout).unwrap();
    assert!(text.contains("kept plan.md, which existed") && !text.contains("brigade-plan"), "{text}");
    let text = String::from_utf8(ShellWorkspace::new().output("brigade init").stdout).unwrap();
    assert!(text.contains("wrote plan.md") && !text.contains("our plan.md"), "{text}");
}

#[test]
fn init_with_unreadable_gitignore_writes_nothing() {
    let workspace = ShellWorkspace::new();
    fs::create_dir(workspace.path().join(".gitignore")).unwrap();
    let output = workspace.output("brigade init");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains(".gitignore: it is a folder"), "{error}");
    assert_eq!(fs::read_dir(workspace.path()).unwrap().count(), 1);
}

#[test]
fn log_counts_printed_lines() {
    let workspace = ShellWorkspace::initialized();
    assert!(workspace.output("brigade run").status.success());
    for count in 1..=6 {
        let text = String::from_utf8(workspace.output(&format!("brigade log -n {count}")).stdout).unwrap();
        assert_eq!(text.lines().count(), count, "{text}");
    }
}

#[test]
fn clean_hint_repeats_given_options() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add a");
    let text = String::from_utf8(workspace.output("brigade clean --board --all").stderr).unwrap();
    assert!(text.contains("`brigade clean --all --board --yes` removes them"), "{text}");
}

#[test]
fn changed_plan_import_updates_only_untouched_tasks() {
    let workspace = ShellWorkspace::initialized();
    let import = |workspace: &ShellWorkspace| {
        let output = workspace.output("brigade tasks import plan.md");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    workspace.write(
        "plan.md",
        "## Build\n\nold\n## Test\nafter: Build\n\nold\n## Ship\nafter: Test\n\nold\n## Drop\n\nold\n",
    );
    import(&workspace);
    assert_eq!(import(&workspace), ("4 tasks already on the board\n".into(), String::new()));
    workspace.output("brigade tasks update 3 --priority 9");
    workspace.write(
        "plan.md",
        "## Build\nverify: true\n\nnew\n## Test\nrequires: tester\npriority: 2\n\nnew\n## Ship\nafter: Test\n\nnew\n## Sign\n",
    );
    let (out, notes) = import(&workspace);
    assert_eq!(out, "added #5 Sign\nupdated #1 Build\nupdated #2 Test\n1 task already on the board\n");
    assert!(
        notes.contains("#3 Ship differs from plan.md line 10: the board's text is used, because it was changed there")
    );
    assert!(notes.contains("`brigade tasks rm 3`; then import"), "{notes}");
    assert!(notes.contains("#4 Drop is no longer in plan.md") && notes.contains("`brigade tasks rm 4`"), "{notes}");
    let task = |id: u64| workspace.json(&format!("brigade tasks show {id} --json"));
    let test = task(2);
    assert_eq!((&test["description"], &test["priority"], &test["verify"]), (&"new".into(), &2.into(), &Value::Null));
    assert_eq!((&test["requires"][0], &test["blockedBy"]), (&"tester".into(), &serde_json::json!([])));
    assert_eq!((&task(1)["verify"], &task(1)["blocks"]), (&"true".into(), &serde_json::json!([])));
    assert_eq!(task(3)["description"], "old");
    // A plan that reverses the order makes no cycle in between.
    workspace.write("plan.md", "## Build\nafter: Sign\n\nnew\n## Sign\nafter: Test\n## Test\n\nnewer\n");
    assert!(import(&workspace).0.contains("updated #5 Sign"));
    workspace.write("plan.md", "## Build\n\nnew\n## Sign\nafter: Build\n## Test\nafter: Sign\n\nnewer\n");
    let (out, notes) = import(&workspace);
    assert!(out.contains("updated #2 Test") && !notes.contains("cycle"), "{out}{notes}");
    assert_eq!(task(2)["blockedBy"], serde_json::json!([5]));
}

#[test]
fn run_with_changed_plan_names_tasks_it_kept() {
    let workspace = ShellWorkspace::initialized();
    workspace.write("plan.md", "## Build\n\n```sh\necho old\n```\n");
    workspace.output("brigade tasks import plan.md; brigade tasks update 1 --priority 1");
    workspace.write("plan.md", "## Build\n\n```sh\necho new\n```\n");
    let text = String::from_utf8(workspace.output("COLUMNS=300 brigade run").stdout).unwrap();
    assert!(text.contains("#1 Build differs from plan.md line 1: the board's text is used"), "{text}");
    assert_eq!(workspace.json("brigade tasks show 1 --json")["result"]["summary"], "old");
}

#[test]
fn plans_of_same_name_in_two_folders_are_distinct() {
    let workspace = ShellWorkspace::initialized();
    for folder in ["a", "b"] {
        workspace.write(&format!("{folder}/plan.md"), "## Build\n");
        workspace.output(&format!("brigade tasks import {folder}/plan.md"));
    }
    workspace.output("cd b && brigade tasks import plan.md");
    let tasks = workspace.json("brigade tasks --json");
    let sources: Vec<&Value> = tasks.as_array().unwrap().iter().map(|task| &task["metadata"]["source"]).collect();
    assert_eq!(sources, ["plan:a/plan.md#Build", "plan:b/plan.md#Build"]);
    // The format of an earlier version.
    workspace.write(
        ".tasks/task_9.json",
        r#"{"id":9,"subject":"Root","status":"completed","metadata":{"source":"plan:plan.md#Root"}}"#,
    );
    workspace.write("plan.md", "## Root\n");
    let again = String::from_utf8(workspace.output("brigade tasks import plan.md").stdout).unwrap();
    assert_eq!(again, "1 task already on the board\n");
}

#[test]
fn why_names_stopped_teammates() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade tasks add 'Build it' -d '```sh\ntrue\n```'");
    let mut up = workspace.shell("exec brigade up --headless --mode pause >/dev/null 2>&1").spawn().unwrap();
    workspace.wait_until_team_has_started();
    let members = workspace.json("brigade team --json")["members"].clone();
    for member in members.as_array().unwrap() {
        assert!(workspace.output(&format!("brigade stop {}", member["name"].as_str().unwrap())).status.success());
    }
    workspace.wait_until("all members are stopped", |workspace| {
        let reasons = workspace.json("brigade why 1 --json")["reasons"].clone();
        reasons.as_array().unwrap().iter().any(|reason| reason["kind"] == "stopped")
    });
    let text = String::from_utf8(workspace.output("brigade why 1").stdout).unwrap();
    assert!(text.contains("Every teammate that could do it is stopped") && !text.contains("It is ready"), "{text}");
    workspace.output("brigade stop");
    up.wait().unwrap();
}

#[test]
fn quarantined_task_file_is_named_with_restore_hint() {
    let workspace = ShellWorkspace::initialized();
    workspace.write(".tasks/.spoiled/task_1.json", "{");
    workspace.write(".tasks/.spoiled/task_1.json.2", "{\n  \"id\": 1,\n  \"subject\": \"a\",\n  \"status\" 5\n}");
    workspace.write(".tasks/task_2.json", r#"{"id":2,"subject":"b","status":"pending","blockedBy":[1]}"#);
    let text = |line: &str| {
        let output = workspace.output(line);
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let changes =
        ["rm 1", "retry 1", "update 1 --subject b", "claim 1 --as ann"].map(|change| format!("brigade tasks {change}"));
    let shown = ["brigade why 1", "brigade tasks show 1", "brigade why 2", "brigade doctor"].map(str::to_owned);
    for line in shown.iter().chain(&changes) {
        let text = text(&format!("COLUMNS=400 {line}"));
        let place = "set aside as .tasks/.spoiled/task_1.json.2: not a JSON object: expected `:` at line 4 column 12, in `status`";
        assert!(text.contains(place), "{line}: {text}");
        assert!(text.contains("`mv .tasks/.spoiled/task_1.json.2 .tasks/task_1.json`"), "{line}: {text}");
    }
}

#[test]
fn run_summary_says_why_tasks_are_left() {
    let workspace = ShellWorkspace::initialized();
    workspace.write("plan.md", "## Fail\n\n```sh\nfalse\n```\n## Next\nafter: Fail\n\n## Last\nafter: Next\n");
    workspace.output("brigade tasks import plan.md; brigade tasks update 1 --max-attempts 1");
    workspace.output("brigade tasks add Gpu --requires gpu; brigade tasks add Zoe --for zoe");
    let run = String::from_utf8(workspace.output("COLUMNS=200 brigade run").stdout).unwrap();
    assert!(run.contains("5 tasks: 0 completed, 1 failed (#1), 2 blocked, 2 pending."), "{run}");
    assert!(run.contains("2 blocked: #2, #3;") && run.contains("2 left to do: #4, #5;"), "{run}");
    for note in [
        "waits for #1 (failed)",
        "waits for #2",
        "requires gpu, which no teammate has",
        "reserved for zoe, who is not in the team",
    ] {
        assert!(run.contains(note), "{note}: {run}");
    }
    let listed = workspace.output("brigade tasks --status blocked");
    assert!(String::from_utf8_lossy(&listed.stderr).contains("2 of 5 tasks: 1 failed, 2 blocked, 2 pending"));
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 3);
    assert_eq!(workspace.json("brigade tasks --owner ZOE --json")[0]["id"], 5);
}

#[test]
fn task_of_dead_worker_is_marked() {
    let workspace = ShellWorkspace::initialized();
    workspace.write(
        ".tasks/task_1.json",
        r#"{"id":1,"subject":"Left","status":"in_progress","owner":"bob","attempt":1,"claim":{"worker":"1-1-gone","at":5}}"#,
    );
    let text = |line: &str| String::from_utf8(workspace.output(line).stdout).unwrap();
    assert!(text("brigade tasks").contains("its worker is gone"), "{}", text("brigade tasks"));
    assert!(text("COLUMNS=200 brigade doctor").contains("tasks in progress whose worker has died: #1"));
}

#[test]
fn runbook_lead_refuses_goal_and_cleanup() {
    let workspace = ShellWorkspace::initialized();
    for line in ["brigade run my-team 'Make me a sandwich'", "brigade up --headless --goal 'Make me a sandwich'"] {
        let output = workspace.output(line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("cannot plan the goal `Make me a sandwich`") && text.contains("hint: "), "{text}");
    }
    for line in ["brigade run --cleanup", "brigade up --headless --mode run_cleanup"] {
        let output = workspace.output(line);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot lead a cleanup session"));
    }
    assert!(!workspace.path().join(".tasks").exists(), "nothing was created");
}

#[test]
fn unclaimable_task_and_unrun_block_are_noted() {
    let workspace = ShellWorkspace::initialized();
    let notes = |line: &str| String::from_utf8(workspace.output(line).stderr).unwrap();
    assert!(notes("brigade tasks add A --requires gpu").contains("#1 A: requires gpu, which no teammate has"));
    assert!(notes("brigade tasks add B --for zoe").contains("#2 B: reserved for zoe, who is not in the team"));
    assert!(notes("brigade tasks add C --requires coder").contains("#3 C: has no `sh` block"));
    assert_eq!(notes("brigade tasks update 3 -d '```sh\ntrue\n```'"), "");
    workspace.write("plan.md", "## D\nrequires: gpu\n\n```sh\ntrue\n```\n```python\nprint()\n```\n");
    let text = notes("brigade tasks import plan.md");
    assert!(
        text.contains("#4 D: requires gpu")
            && text.contains("#4 D: its `python` block is not run; blocks that run: sh, bash, shell")
    );
    assert_eq!(notes("brigade tasks import plan.md"), "");
    assert!(notes("brigade run").contains("line 1, D: its `python` block is not run"));
}

#[test]
fn board_without_config_is_found_and_hints_have_flags() {
    let workspace = ShellWorkspace::initialized();
    fs::create_dir_all(workspace.path().join("there/sub")).unwrap();
    workspace.write("there/plan.md", "## Fail\n\n```sh\nfalse\n```\n");
    let outside = ShellWorkspace::new();
    let root = workspace.path().canonicalize().unwrap();
    let flags = format!("--config {}/brigade.toml --workspace {}", root.display(), outside.path().display());
    workspace.write("plan.md", "## Fail\n\n```sh\nfalse\n```\n");
    outside.output(&format!("brigade {flags} tasks import {}/plan.md", root.display()));
    outside.output("brigade tasks update 1 --max-attempts 1");
    let run = outside.output(&format!("COLUMNS=400 brigade {flags} run"));
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(text.contains(&format!("`brigade {flags} tasks retry 1`")), "{text}");
    fs::create_dir_all(outside.path().join("sub")).unwrap();
    let listed = outside.output("cd sub && brigade tasks --json");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert!(outside.output("cd sub && brigade tasks retry 1").status.success());
    let error = workspace.output(&format!("brigade --workspace {} tasks show 9", outside.path().display())).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains(&format!("`brigade --workspace {} tasks`", outside.path().display())), "{error}");
}

#[test]
fn values_out_of_range_and_typos_are_explained() {
    let workspace = ShellWorkspace::initialized();
    workspace.output("brigade state pause");
    assert_eq!(workspace.json("brigade state --json")["desired_state"], "pause");
    let error = |line: &str| String::from_utf8(workspace.output(line).stderr).unwrap();
    assert!(error("brigade tasks claim --as x --lease 99999d").contains("at most 7d"));
    assert!(error("brigade stop --wait abc").contains("expected a whole number from 0 to 86400"));
    assert!(error("brigade log -n abc").contains("expected a whole number from 1 to"));
    assert!(error("BRIGADE_PROGRESS=foo brigade run").contains("cannot use `foo` as `BRIGADE_PROGRESS`: allowed are"));
    assert!(error("BRIGADE_PROGRESS=live brigade run --progress foo").contains("cannot use `foo` as `--progress`"));
    assert!(
        error("brigade tasks import prompts")
            .contains("cannot read the plan prompts: it is a folder\nhint: name a file")
    );
    let text = error("BRIGADE_TRUNS_MAX=3 brigade config show");
    assert_eq!(text, "warning: unknown variable `BRIGADE_TRUNS_MAX`; did you mean `BRIGADE_TURNS_MAX`?\n");
    for line in ["run", "up --headless"] {
        let output = workspace.output(&format!("BRIGADE_BUDGET_TOKEN=9 brigade {line}"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains(
                "error: unknown variable `BRIGADE_BUDGET_TOKEN`\nhint: did you mean `BRIGADE_BUDGET_TOKENS`?"
            ),
            "{text}"
        );
    }
    workspace.output("brigade tasks add a");
    workspace.output("brigade tasks claim --as x; brigade tasks complete 1 --as x --attempt 1 --summary 'Well done'");
    let shown = String::from_utf8(workspace.output("brigade tasks show 1").stdout).unwrap();
    assert_eq!(shown.matches("Well done").count(), 1, "{shown}");
}

#[test]
fn newer_format_is_refused_by_every_command() {
    let workspace = ShellWorkspace::initialized();
    workspace.write(".team/FORMAT", "99\n");
    for line in ["tasks", "tasks add x", "tasks show 1", "tasks claim --as z", "why 1", "team", "inbox"] {
        let output = workspace.output(&format!("brigade {line}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("format 99"), "{line}: {error}");
    }
    assert!(!workspace.path().join(".tasks/task_1.json").exists());
}

#[test]
fn errors_escape_control_codes_of_arguments() {
    let workspace = ShellWorkspace::initialized();
    for typed in
        ["$(printf '\\302\\233')31m", "$(printf 'a\\rb')", "$(printf '\\342\\200\\256')", "$(printf '\\033[31m')"]
    {
        for line in ["state", "tasks show", "frobnicate --color always", "tasks --json list --status"] {
            let output = workspace.output(&format!("brigade {line} \"{typed}\""));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{line}");
            let is_harmful = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!said.contains(is_harmful), "{line}: {said:?}");
        }
    }
}

#[test]
fn complete_force_without_attempt_is_refused() {
    let workspace = ShellWorkspace::initialized();
    assert!(workspace.output("brigade tasks add One && brigade tasks claim 1 --as z").status.success());
    let output = workspace.output("brigade tasks complete 1 --as z --force");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("cannot use force as `z`"), "{error}");
}

#[test]
fn complete_shows_bounded_output_of_verify() {
    let workspace = ShellWorkspace::initialized();
    let claimed =
        workspace.output("brigade tasks add Big --verify 'seq 100000; false' && brigade tasks claim 1 --as z");
    assert!(claimed.status.success(), "{claimed:?}");
    let output = workspace.output("brigade tasks complete 1 --as z --attempt 1");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("bytes left out") && error.contains("100000") && error.len() < 10_000, "{error}");
}

#[test]
fn hint_quotes_team_name_with_space() {
    let workspace = ShellWorkspace::new();
    workspace.write("brigade.toml", "[teams.\"my team\"]\n[teams.other]\n");
    let error = String::from_utf8_lossy(&workspace.output("brigade run").stderr).into_owned();
    assert!(error.contains("`brigade run 'my team'`"), "{error}");
}

#[test]
fn state_command_clears_earlier_note() {
    let workspace = ShellWorkspace::initialized();
    assert!(workspace.output("brigade state continuous --note 'all night'").status.success());
    assert_eq!(workspace.json("brigade --json state pause")["note"], "");
}

#[test]
fn global_options_before_subcommand_work() {
    let place = ShellWorkspace::initialized();
    place.output("brigade tasks add One");
    assert_eq!(place.json("brigade tasks --json show 1")["id"], 1);
    let outside = ShellWorkspace::new();
    let listed = outside.output(&format!("brigade tasks --workspace {} list --ready", place.path().display()));
    assert!(String::from_utf8(listed.stdout).unwrap().contains("One"));
    let refused = place.output("brigade tasks --ready show 1");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn server_of_runbook_is_refused() {
    let place = ShellWorkspace::new();
    place.write(
        "brigade.toml",
        "[teams.a]\nlead = { provider = \"runbook\", base_url = \"http://x\" }\nmembers = [{ name = \"bob\" }]\n",
    );
    let refused = place.output("brigade run");
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("the provider `runbook` uses no server: remove `base_url`"), "{error}");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn ready_option_lists_claimable_tasks() {
    let place = ShellWorkspace::initialized();
    place.output("brigade tasks add One --requires gpu --for bob; brigade tasks add Two --after 1");
    let ready = place.json("brigade tasks --ready --json");
    assert_eq!((&ready[0]["subject"], &ready[1]), (&"One".into(), &serde_json::Value::Null));
}

#[test]
fn usage_error_is_json_with_json_option() {
    let place = ShellWorkspace::initialized();
    let error: Value = serde_json::from_slice(&place.output("brigade taks --json").stderr).unwrap();
    let expected = serde_json::json!({
        "message": "unknown command `brigade taks`", "hint": "did you mean `brigade tasks`?", "code": 2
    });
    assert_eq!(error["error"], expected);
}

#[test]
fn hints_name_the_workspace_and_real_values() {
    let place = ShellWorkspace::initialized();
    let stop = place.output("brigade stop alcie");
    assert_eq!(stop.status.code(), Some(1));
    let said = String::from_utf8(stop.stderr).unwrap();
    assert!(
        said.contains("cannot find the teammate `alcie`: there are alice, bob")
            && said.contains("did you mean `alice`?"),
        "{said}"
    );
    assert_eq!(place.output("brigade stop alice").status.code(), Some(0), "no team runs");
    let flags = format!("--workspace {}", place.path().display());
    let log = ShellWorkspace::new().output(&format!("brigade {flags} replay"));
    let said = String::from_utf8(log.stderr).unwrap();
    assert!(said.contains(&format!("hint: `brigade {flags} run my-team`")), "{said}");
}
