//! The command line as people and programs meet it: whole outputs of the real program, on real files.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A workspace and a shell in it.
struct Place {
    folder: tempfile::TempDir,
    told: String,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), told: String::new() }
    }

    /// A workspace with the team of `brigade init` and no git around it.
    fn begun() -> Self {
        let place = Self::new();
        assert!(place.output("brigade init").status.success());
        place
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What the shell line prints, and how it ends.
    fn output(&self, line: &str) -> Output {
        self.shell(line).output().unwrap()
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_so(self) {
            assert!(std::time::Instant::now() < deadline, "waited in vain: {what}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn shell(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_brigade"));
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(self.path());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("BRIGADE_") || name.ends_with("_API_KEY"))
        {
            shell.env_remove(name);
        }
        shell.env("PATH", path).env("COLUMNS", "100").env("XDG_CONFIG_HOME", self.path().join("none"));
        shell.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        shell
    }

    /// Runs the line and adds all that can be seen of it to the transcript.
    fn run(&mut self, line: &str) -> &mut Self {
        let output = self.output(line);
        self.told.push_str(&format!("$ {line}\n{}", String::from_utf8_lossy(&output.stdout)));
        for error in String::from_utf8_lossy(&output.stderr).lines() {
            self.told.push_str(&format!("! {error}\n"));
        }
        match output.status.code() {
            Some(0) => {}
            code => self.told.push_str(&format!("[exit {}]\n", code.unwrap_or(-1))),
        }
        self
    }

    /// The transcript, with what differs from run to run taken out.
    fn told(&self) -> String {
        let real = self.path().canonicalize().unwrap().display().to_string();
        let text = self.told.replace(&real, "WORKSPACE").replace(&self.path().display().to_string(), "WORKSPACE");
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

/// `12 ms ago` and `in 14 min 59 s` become `SOME TIME ago` and `in SOME TIME`.
fn without_times(text: &str) -> String {
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
fn a_workspace_is_begun_once() {
    let mut place = Place::new();
    place.run("brigade tasks").run("brigade init").run("ls -A . prompts").run("cat .gitignore").run("brigade init");
    place
        .run("mkdir sub && cd sub && brigade tasks && brigade config show my-team | head -3")
        .run("brigade init --force");
    place.run("grep -c brigade .gitignore").run("brigade init --prompts").run("brigade init 'my team' --force");
    insta::assert_snapshot!(place.told());
}

#[test]
fn the_board_is_worked_on_by_the_rules() {
    let mut place = Place::begun();
    place.write("plan.md", include_str!("plans/board.md"));
    place
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
        .run("brigade tasks update 4 --not-after 3,1")
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
    insta::assert_snapshot!(place.told());
}

#[test]
fn what_new_users_try_is_answered_with_help() {
    let mut place = Place::begun();
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
        "brigade up nobody",
        "brigade --workspace /nowhere tasks",
        "brigade --workspace brigade.toml tasks",
        "brigade --config nothing.toml config show",
        "brigade state running",
        "brigade completions tcsh",
        "BRIGADE_TURNS_MAX=none brigade config show",
    ] {
        place.run(line);
    }
    insta::assert_snapshot!(place.told());
}

#[test]
fn wrong_configs_and_plans_are_refused_with_their_lines() {
    let mut place = Place::new();
    place.write("brigade.toml", "[teams.a]\nmembrs = []\nhooks = \"x\"\n");
    place.run("brigade up a").run("brigade config show --json").run("brigade tasks");
    place.write(
        "brigade.toml",
        "[teams.a]\nplan = \"plan.md\"\nmembers = [{ name = \"x\" }]\n[teams.b]\nmembers = [{ name = \"y\" }]\n",
    );
    place.write("plan.md", "## A\nafter: C\n## B\npriority: soon\n");
    place.run("brigade up").run("brigade run a").run("brigade tasks import plan.md");
    insta::assert_snapshot!(place.told());
}

#[test]
fn programs_get_one_line_of_json() {
    let place = Place::begun();
    assert_eq!(place.json("brigade tasks --json"), serde_json::json!([]));
    assert_eq!(place.json("brigade --json tasks claim --as alice"), Value::Null);
    let added = place.json("brigade tasks add 'List the largest files' --json");
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
    let claimed = place.json("brigade tasks claim --as bob --json");
    let sample = include_str!("contracts/cli_tasks.json");
    let sample: Value = serde_json::from_str(sample).unwrap();
    for (field, value) in sample["data"][0].as_object().unwrap() {
        if field != "id" {
            assert_eq!(&claimed[field], value, "{field}");
        }
    }
    let listed = place.json("brigade tasks --json --status in_progress");
    assert_eq!(listed[0]["claim"]["worker"], "lease:bob");
    let reasons = place.json("brigade why 1 --json")["reasons"].clone();
    assert_eq!(reasons[0]["kind"], "held");
    assert_eq!(place.json("brigade config show --json")[0]["values"][0]["key"], "goal");

    let refused = place.output("brigade tasks show 9 --json");
    assert!(refused.stdout.is_empty() && refused.status.code() == Some(1));
    let error: Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(error["schema_version"], 1);
    assert_eq!(error["error"]["code"], 1);
    assert_eq!(error["error"]["hint"], "see `brigade tasks`");
    let usage: Value = serde_json::from_slice(&place.output("brigade tasks frob --json").stderr).unwrap();
    assert_eq!(usage["error"]["code"], 2);
}

#[test]
fn other_programs_fields_and_orders_to_the_terminal_are_shown_harmlessly() {
    let place = Place::begun();
    fs::create_dir_all(place.path().join(".tasks")).unwrap();
    let foreign = fs::read_to_string("tests/contracts/task_foreign_fields.json").unwrap();
    place.write(".tasks/task_7.json", &foreign.replace("Refactor auth", "evil \\u001b[2J\\u202e name"));
    let text = String::from_utf8(place.output("brigade tasks; brigade tasks show 7; brigade why 7").stdout).unwrap();
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    assert!(text.contains("another program's"), "{text}");
    let shown = place.json("brigade tasks show 7 --json");
    assert_eq!(shown["x_other_tool"]["keep"], serde_json::json!(["every", "byte"]));
}

#[test]
fn colours_are_for_those_who_want_them() {
    let place = Place::begun();
    place.output("brigade tasks add x");
    let has_colour = |line: &str| place.output(line).stdout.contains(&0x1b);
    assert!(!has_colour("brigade tasks"));
    assert!(has_colour("brigade tasks --color always"));
    assert!(has_colour("brigade --color=always tasks"));
    assert!(has_colour("CLICOLOR_FORCE=1 brigade tasks"));
    assert!(!has_colour("CLICOLOR_FORCE=1 brigade tasks --color never"));
    assert!(!has_colour("NO_COLOR=1 brigade tasks"));
}

#[test]
fn lines_fit_the_terminal_and_a_closed_pipe_is_no_error() {
    let place = Place::begun();
    place.output("brigade tasks add 'a subject that is far too long for the narrow terminal it is shown in 日本語'");
    let narrow = String::from_utf8(place.output("COLUMNS=40 brigade tasks").stdout).unwrap();
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    for line in ["brigade tasks", "brigade --help", "brigade completions bash", "brigade config schema"] {
        // The reader is gone before anything is written.
        let output = place.output(&format!("{{ sleep 0.2; {line}; echo \"exit $?\" >&2; }} | true"));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let told: Vec<&str> = errors.lines().filter(|line| !line.starts_with("1 task")).collect();
        assert_eq!(told, ["exit 0"], "{line}");
    }
}

#[test]
fn the_published_schema_is_printed_and_completions_are_made() {
    let place = Place::new();
    let schema = place.output("brigade config schema").stdout;
    let published = include_bytes!("../schema/brigade.schema.json");
    assert!(schema == published, "brigade config schema > schema/brigade.schema.json");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.output(&format!("brigade completions {shell}")).stdout;
        assert!(String::from_utf8(script).unwrap().contains("brigade"), "{shell}");
    }
}

#[test]
fn help_says_what_there_is() {
    let mut place = Place::new();
    place.run("brigade --help").run("brigade tasks --help").run("brigade tasks claim --help").run("brigade run -h");
    insta::assert_snapshot!(place.told());
}

#[test]
fn tasks_of_a_lease_that_ran_out_can_be_claimed_again() {
    let place = Place::begun();
    place.output("brigade tasks add x");
    place.output("brigade tasks claim --as bob --lease 1s");
    // The lease is the condition that is waited for.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let claimed = place.json("brigade tasks claim --as carol --json");
        if claimed["owner"] == "carol" {
            assert_eq!((&claimed["attempt"], &claimed["failures"]), (&Value::from(2), &Value::from(1)));
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the lease never ran out");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let stale = place.output("brigade tasks complete 1 --as bob --attempt 1");
    assert_eq!(stale.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stale.stderr).contains("stale"));
}

#[test]
fn what_is_wrong_with_the_only_team_is_said_and_not_which_team_is_meant() {
    let place = Place::begun();
    place.write("brigade.toml", "[teams.crew]\n[[teams.crew.members]]\nname = \"lead\"\n");
    for command in ["brigade team", "brigade cost"] {
        let output = place.output(command);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("`lead`") && !said.contains("which team"), "{command}: {said}");
    }
}

#[test]
fn the_doctor_finds_what_is_wrong() {
    let place = Place::begun();
    let findings = place.json("brigade doctor --json");
    let verdict = |check: &str| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["check"] == check);
        found.map(|finding| finding["verdict"].clone())
    };
    for check in ["config", "locks", "board", "keys"] {
        assert_eq!(verdict(check), Some("ok".into()), "{check}");
    }
    place.write(".tasks/task_1.json", "{\"id\":1,\"subject\":\"a\",\"status\":\"pending\",\"blockedBy\":[2]}");
    place.write(".tasks/task_2.json", "{\"id\":2,\"subject\":\"b\",\"status\":\"pending\",\"blockedBy\":[1]}");
    let output = place.output("ANTHROPIC_API_KEY=sk-secret BRIGADE_TRUNS_MAX=1 brigade doctor");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAIL  board: tasks wait for each other: #1 -> #2 -> #1"), "{text}");
    assert!(text.contains("did you mean BRIGADE_TURNS_MAX?") && text.contains("set: ANTHROPIC_API_KEY"), "{text}");
    assert!(!text.contains("sk-secret"));
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("doctor")), "{left:?}");
}

#[test]
fn mail_is_sent_and_read_whether_a_team_runs_or_not() {
    let mut place = Place::begun();
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
        place.run(line);
    }
    insta::assert_snapshot!(place.told());
    let mail = place.json("brigade inbox bob --json");
    assert_eq!((&mail[0]["type"], &mail[0]["from"]), (&Value::from("broadcast"), &Value::from("human")));
    assert!(mail[0]["timestamp"].is_f64() && mail[0]["id"].is_string());
}

#[test]
fn the_desired_state_is_shown_and_set() {
    let mut place = Place::begun();
    place
        .run("brigade state")
        .run("brigade state continuous")
        .run("brigade state pause --note 'not now'")
        .run("brigade state");
    place.run("brigade team");
    let unknown = include_str!("contracts/agent_state_unknown.json");
    place.write("agent_state.json", unknown);
    place.run("brigade state").run("brigade team my-team | head -2");
    insta::assert_snapshot!(place.told());
    let state = place.json("brigade state run_once --json");
    let fields: Vec<&String> = state.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["desired_state", "current_state", "timestamp", "setBy", "note"]);
    assert_eq!((&state["desired_state"], &state["setBy"]), (&Value::from("run_once"), &Value::from("human")));
}

#[test]
fn a_team_that_runs_is_seen_and_stopped() {
    let place = Place::begun();
    let mut up = place.shell("exec brigade up --headless --mode pause >/dev/null 2>&1").spawn().unwrap();
    place.wait_until("the team runs", |place| place.json("brigade team --json")["running"] == true);
    let sample: Value = serde_json::from_str(include_str!("contracts/cli_team.json")).unwrap();
    let team = place.json("brigade team --json");
    for field in sample["data"].as_object().unwrap().keys() {
        assert!(team.get(field).is_some(), "{field}");
    }
    for field in sample["data"]["members"][0].as_object().unwrap().keys() {
        assert!(team["members"][0].get(field).is_some(), "{field}");
    }
    assert_eq!(team["pid"], up.id());
    let second = place.output("brigade run");
    assert_eq!(second.status.code(), Some(4), "{}", String::from_utf8_lossy(&second.stderr));
    assert_eq!(place.output("brigade clean").status.code(), Some(4));
    assert!(place.output("brigade send alice hello").status.success());
    let stopped = place.output("brigade stop");
    assert_eq!(String::from_utf8_lossy(&stopped.stdout), "team my-team is stopped\n");
    up.wait().unwrap();
    assert_eq!(place.json("brigade team --json")["running"], false);
    assert_eq!(place.json("brigade stop --json")["stopped"], false);
}

#[test]
fn a_run_is_told_and_its_outcome_is_the_exit_code() {
    let place = Place::begun();
    let done = place.json("brigade run --json");
    assert_eq!((&done["tally"]["completed"], &done["completed_now"]), (&Value::from(3), &Value::from(3)));
    assert_eq!(fs::read_to_string(place.path().join("report.txt")).unwrap().lines().count(), 2);
    place.output("brigade tasks add 'Nobody can' --requires gpu");
    let events = place.output("brigade run my-team --output-format stream-json");
    assert_eq!(events.status.code(), Some(1));
    let kinds: Vec<Value> = String::from_utf8(events.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone())
        .collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"team_started".into()), Some(&"team_stopped".into())));
    let text = String::from_utf8(place.output("brigade run").stdout).unwrap();
    assert!(text.contains("3 of 4 tasks done") && text.contains("`brigade why ID`"), "{text}");
    let why = place.json("brigade why 4 --json")["reasons"].clone();
    assert_eq!((&why[0]["kind"], &why[1]["kind"]), (&Value::from("nobody_fit"), &Value::from("no_team")));
}

#[test]
fn the_log_is_shown_chosen_from_and_followed() {
    let place = Place::begun();
    assert!(place.output("brigade log").stdout.is_empty());
    place.output("brigade run");
    let text = |line: &str| String::from_utf8(place.output(line).stdout).unwrap();
    let all = text("brigade log");
    assert!(all.contains("my-team starts") && all.contains("completes #3"), "{all}");
    let of_two = text("brigade log --task 2");
    assert!(of_two.contains("completes #2") && !of_two.contains("#3") && !of_two.contains("starts"), "{of_two}");
    let kinds = |line: &str| -> Vec<Value> {
        place.json(line).as_array().unwrap().iter().map(|event| event["kind"].clone()).collect()
    };
    assert_eq!(kinds("brigade log --json --kind task_completed --kind task_claimed").len(), 6);
    assert_eq!(kinds("brigade log --json -n 2").last(), Some(&"team_stopped".into()));
    let mut follow = place.shell("exec brigade log --follow > followed.txt").spawn().unwrap();
    let starts = |place: &Place| {
        let followed = fs::read_to_string(place.path().join("followed.txt")).unwrap_or_default();
        followed.matches("my-team starts").count()
    };
    place.wait_until("what was is told", |place| starts(place) == 1);
    place.output("brigade run");
    place.wait_until("it goes on", |place| starts(place) == 2);
    follow.kill().unwrap();
    follow.wait().unwrap();
}

#[test]
fn runs_are_told_apart_and_replayed() {
    let place = Place::begun();
    let (data, text) =
        (|line: &str| place.json(line), |line: &str| String::from_utf8(place.output(line).stdout).unwrap());
    assert_eq!(data("brigade log --runs --json"), serde_json::json!([]));
    let none = String::from_utf8(place.output("brigade replay").stderr).unwrap();
    assert!(none.contains("the event log is empty"), "{none}");
    place.output("brigade run");
    place.output("brigade tasks add Later");
    place.output("brigade run");
    let runs = data("brigade log --runs --json");
    let last = runs[1]["last"].as_u64().unwrap();
    assert_eq!(
        (runs.as_array().unwrap().len(), &runs[0]["run"], &runs[1]["outcome"]),
        (2, &1.into(), &"its session is over".into())
    );
    assert!(text("brigade log --runs").contains("my-team"));

    // The log: of the newest run, of one before, of all, of a time.
    let claims = |line: &str| data(&format!("brigade log --json --kind task_claimed {line}")).as_array().unwrap().len();
    let of_runs = (claims("--run 1"), claims("--run 2"));
    assert_eq!((of_runs.1, claims(""), claims("--run all")), (3, of_runs.0, of_runs.0 + 3));
    assert_eq!((claims("--since 1h"), claims("--since 2099-01-01T00:00:00Z")), (of_runs.0 + 3, 0));
    let all = text("brigade log --run all --kind task_completed");
    assert_eq!((all.matches("run of ").count() >= 1, all.matches("completes #").count() >= 3), (true, true), "{all}");
    let before = text("brigade log --run 2 --teammate alice") + &text("brigade log --run 2 --teammate bob");
    assert!(before.matches("claims #").count() == 3 && !before.contains("run of "), "{before}");

    // A replay: the whole, a moment, the steps between two.
    let first = data("brigade replay --run 2 --json");
    assert_eq!((&first["event"]["kind"], first["tasks"].as_array().unwrap().len()), (&"team_stopped".into(), 3));
    assert_eq!(first["unknown"], serde_json::json!([]));
    assert_eq!(data("brigade replay --run 2 --at first --json")["tasks"], serde_json::json!([]));
    let at_first_claim = |event: &Value| event["kind"] == "task_claimed";
    let log = data("brigade log --run 2 --json");
    let seq = log.as_array().unwrap().iter().find(|event| at_first_claim(event)).unwrap()["seq"].clone();
    let shown = text(&format!("brigade replay --run 2 --at {seq}"));
    assert!(shown.contains(&format!("event {seq} of {last}")) && shown.contains("was pending"), "{shown}");
    assert!(shown.contains("in_progress") && shown.contains("waits for #"), "{shown}");
    let steps = data(&format!("brigade replay --run 2 --from {seq} --to latest --task 3 --json"));
    let changes: Vec<&Value> =
        steps.as_array().unwrap().iter().flat_map(|step| step["changes"].as_array().unwrap()).collect();
    assert!(changes.iter().any(|change| change.as_str().unwrap().starts_with("#3 is completed")), "{changes:?}");
    assert!(text("brigade replay --run 1 --at first").contains("my-team"));

    // What there is not.
    for (line, says) in [
        ("brigade replay --run 3", "there is no run 3: 2 are kept"),
        ("brigade replay --at 9999", "the last of the run is"),
        ("brigade replay --at 0", "there is no event 0: the first of a run is 1"),
        ("brigade log --kind task_complete", "a similar value exists: 'task_completed'"),
        ("brigade replay --at soon", "a moment is the number of an event"),
        ("brigade replay --run all", "One is replayed at a time"),
        ("brigade log --run 2 --follow", "that run is over"),
        ("brigade log --since soon", "times are 10m for ten minutes ago"),
    ] {
        let output = place.output(line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(says), "{line}: {said}");
    }

    for (line, says) in [
        ("brigade log --teammate nobody", "nobody called `nobody` is in the log; these are: "),
        ("brigade log --task 99", "there is no task #99, neither in the log nor on the board"),
        ("brigade log --kind budget_spent", "nothing of that kind is in the log"),
    ] {
        let said = String::from_utf8(place.output(line).stderr).unwrap();
        assert!(said.contains(says), "{line}: {said}");
    }

    // The oldest part of a log goes when it has grown large: what is left is replayed, and says so.
    let path = place.path().join(".team/events.1.jsonl");
    let rest = fs::read_to_string(&path).unwrap();
    let rest: String = rest.split_inclusive('\n').skip(9).collect();
    fs::write(&path, rest).unwrap();
    let torn = data("brigade replay --run 2 --at 12 --json");
    assert!(torn["unknown"][0].as_str().unwrap().contains("events 1 to 9 are gone"), "{torn}");
    assert!(text("brigade replay --run 2 --at 12").contains("not known: events 1 to 9 are gone"));
    assert_eq!(place.output("brigade replay --run 2 --at 5").status.code(), Some(2));
}

#[test]
fn old_files_are_listed_then_removed_and_the_board_only_when_asked() {
    let place = Place::begun();
    place.output("brigade tasks add x");
    place.write(".team/events.1.jsonl", "{}\n");
    place.write(".team/events.jsonl", "{}\n");
    place.write(".team/workers/1-1-dead.json", "{}");
    place.write(".team/workers/1-1-dead.lock", "");
    place.write(".team/transcripts/alice.jsonl", "{}\n");
    let names = |line: &str| -> Vec<String> {
        let items = place.json(line)["files"].clone();
        let path = |item: &Value| item["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        items.as_array().unwrap().iter().map(path).collect()
    };
    let old = ["1-1-dead.json", "1-1-dead.lock", "events.1.jsonl"];
    assert_eq!(names("brigade clean --json"), old);
    assert_eq!(names("brigade clean --all --board --json").len(), 5);
    assert!(place.path().join(".team/workers/1-1-dead.json").exists(), "listing removes nothing");
    assert_eq!(names("brigade clean --yes --json"), old);
    assert!(names("brigade clean --json").is_empty());
    assert!(place.path().join(".team/transcripts/alice.jsonl").exists());
    assert_eq!(names("brigade clean --yes --all --board --json"), ["alice.jsonl", "task_1.json"]);
    assert_eq!(place.json("brigade tasks add y --json")["id"], 2, "numbers are never used again");
}

#[test]
fn several_tasks_are_changed_together_or_not_at_all() {
    let place = Place::begun();
    let error = |line: &str| {
        let output = place.output(line);
        assert_ne!(output.status.code(), Some(0), "{line}");
        String::from_utf8(output.stderr).unwrap()
    };
    for subject in ["a", "b", "c"] {
        place.output(&format!("brigade tasks add {subject}"));
    }
    assert!(error("brigade tasks rm 2 3 77").contains("no task #77 on the board; nothing was deleted"));
    assert_eq!(place.json("brigade tasks --json").as_array().unwrap().len(), 3);
    assert_eq!(place.json("brigade tasks rm 2 '#2' --json").as_array().unwrap().len(), 1);
    place.output("brigade tasks claim 1 --as bob && brigade tasks claim 3 --as bob");
    assert_eq!(place.json("brigade tasks release 1 3 --as bob --attempt 1 --json").as_array().unwrap().len(), 2);
    for id in [1, 3] {
        place.output(&format!("brigade tasks claim {id} --as bob; brigade tasks complete {id} --as bob --attempt 2"));
    }
    let shown = String::from_utf8(place.output("brigade tasks show 1 3").stdout).unwrap();
    assert!(shown.starts_with("#1 a\n") && shown.contains("\n\n#3 c\n"), "{shown}");
    assert!(error("brigade tasks reopen 1 3 2").contains("nothing was to be done again"));
    let reopened = String::from_utf8(place.output("brigade tasks reopen 1 3").stdout).unwrap();
    assert_eq!(reopened, "to be done again: #1 a\nto be done again: #3 c\n");
    assert!(error("brigade tasks retry 1 3").contains("cannot retry task #1: it is pending"));
}

#[test]
fn what_nobody_holds_is_said_to_be_held_by_nobody() {
    let place = Place::begun();
    place.output("brigade tasks add a");
    let error = |line: &str| String::from_utf8(place.output(line).stderr).unwrap();
    for verb in ["complete", "release", "renew"] {
        let text = error(&format!("brigade tasks {verb} 1"));
        assert!(text.contains("nobody holds task #1: it is pending") && text.contains("claim it first"), "{text}");
    }
    assert!(error("brigade tasks complete 9").contains("no task #9"));
    place.output("brigade tasks claim --as bob; brigade tasks release 1 --as bob --attempt 1");
    let text = error("brigade tasks complete 1 --as bob --attempt 1");
    assert!(
        text.contains(
            "attempt 1 of task #1 is stale: its lease ran out, or it was given back, and nobody holds it now"
        )
    );
    assert!(text.contains("brigade tasks claim 1 --as NAME"), "{text}");
    place.output("brigade tasks claim --as bob");
    assert!(error("brigade tasks complete 1").contains("who holds task #1?"));
}

#[test]
fn what_init_replaces_is_kept_beside_it() {
    let place = Place::begun();
    place.write("plan.md", "## Mine\n");
    place.write("plan.md.bak", "## Older\n");
    let text = String::from_utf8(place.output("brigade init --force").stdout).unwrap();
    assert!(text.contains("replaced plan.md (the former is plan.md.bak.1)"), "{text}");
    assert!(!text.contains("brigade.toml ("), "what does not differ is left alone: {text}");
    let read = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
    assert_eq!((read("plan.md.bak.1"), read("plan.md.bak")), ("## Mine\n".into(), "## Older\n".into()));
    place.write("prompts/coder.md", "Mine.\n");
    let replaced = place.json("brigade init --force --json")["replaced"].clone();
    assert_eq!(replaced, serde_json::json!([{ "file": "prompts/coder.md", "kept": "prompts/coder.md.bak" }]));
}

#[test]
fn init_names_files_it_kept() {
    let place = Place::new();
    place.write("plan.md", "## Mine\n");
    let text = String::from_utf8(place.output("brigade init").stdout).unwrap();
    assert!(text.contains("kept plan.md, which was there") && text.contains("wrote brigade.toml"), "{text}");
    assert_eq!(fs::read_to_string(place.path().join("plan.md")).unwrap(), "## Mine\n");
}

#[test]
fn log_counts_printed_lines() {
    let place = Place::begun();
    assert!(place.output("brigade run").status.success());
    for count in 1..=6 {
        let text = String::from_utf8(place.output(&format!("brigade log -n {count}")).stdout).unwrap();
        assert_eq!(text.lines().count(), count, "{text}");
    }
}

#[test]
fn the_hint_of_clean_removes_what_was_listed() {
    let place = Place::begun();
    place.output("brigade tasks add a");
    let text = String::from_utf8(place.output("brigade clean --board --all").stderr).unwrap();
    assert!(text.contains("brigade clean --all --board --yes removes them"), "{text}");
}

#[test]
fn a_changed_plan_changes_what_nobody_touched_and_says_what_it_does_not() {
    let place = Place::begun();
    let import = |place: &Place| {
        let output = place.output("brigade tasks import plan.md");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    place.write(
        "plan.md",
        "## Build\n\nold\n## Test\nafter: Build\n\nold\n## Ship\nafter: Test\n\nold\n## Drop\n\nold\n",
    );
    import(&place);
    assert_eq!(import(&place), ("4 tasks on the board already\n".into(), String::new()));
    place.output("brigade tasks update 3 --priority 9");
    place.write(
        "plan.md",
        "## Build\nverify: true\n\nnew\n## Test\nrequires: tester\npriority: 2\n\nnew\n## Ship\nafter: Test\n\nnew\n## Sign\n",
    );
    let (out, notes) = import(&place);
    assert_eq!(out, "added #5 Sign\nupdated #1 Build\nupdated #2 Test\n1 task on the board already\n");
    assert!(
        notes.contains("#3 Ship differs from plan.md line 10: the board's text is used, because it was changed there")
    );
    assert!(notes.contains("brigade tasks rm 3, then import"), "{notes}");
    assert!(notes.contains("#4 Drop stands in plan.md no more") && notes.contains("brigade tasks rm 4"), "{notes}");
    let task = |id: u64| place.json(&format!("brigade tasks show {id} --json"));
    let test = task(2);
    assert_eq!((&test["description"], &test["priority"], &test["verify"]), (&"new".into(), &2.into(), &Value::Null));
    assert_eq!((&test["requires"][0], &test["blockedBy"]), (&"tester".into(), &serde_json::json!([])));
    assert_eq!((&task(1)["verify"], &task(1)["blocks"]), (&"true".into(), &serde_json::json!([])));
    assert_eq!(task(3)["description"], "old");
    // What turns the order round makes no circle on the way.
    place.write("plan.md", "## Build\nafter: Sign\n\nnew\n## Sign\nafter: Test\n## Test\n\nnewer\n");
    assert!(import(&place).0.contains("updated #5 Sign"));
    place.write("plan.md", "## Build\n\nnew\n## Sign\nafter: Build\n## Test\nafter: Sign\n\nnewer\n");
    let (out, notes) = import(&place);
    assert!(out.contains("updated #2 Test") && !notes.contains("circle"), "{out}{notes}");
    assert_eq!(task(2)["blockedBy"], serde_json::json!([5]));
}

#[test]
fn a_run_with_a_changed_plan_says_what_the_board_keeps() {
    let place = Place::begun();
    place.write("plan.md", "## Build\n\n```sh\necho old\n```\n");
    place.output("brigade tasks import plan.md; brigade tasks update 1 --priority 1");
    place.write("plan.md", "## Build\n\n```sh\necho new\n```\n");
    let text = String::from_utf8(place.output("COLUMNS=300 brigade run").stdout).unwrap();
    assert!(text.contains("#1 Build differs from plan.md line 1: the board's text is used"), "{text}");
    assert_eq!(place.json("brigade tasks show 1 --json")["result"]["summary"], "old");
}

#[test]
fn plans_of_one_name_in_two_folders_are_two_plans() {
    let place = Place::begun();
    for folder in ["a", "b"] {
        place.write(&format!("{folder}/plan.md"), "## Build\n");
        place.output(&format!("brigade tasks import {folder}/plan.md"));
    }
    place.output("cd b && brigade tasks import plan.md");
    let tasks = place.json("brigade tasks --json");
    let sources: Vec<&Value> = tasks.as_array().unwrap().iter().map(|task| &task["metadata"]["source"]).collect();
    assert_eq!(sources, ["plan:a/plan.md#Build", "plan:b/plan.md#Build"]);
    // As a version before this one wrote it.
    place.write(
        ".tasks/task_9.json",
        r#"{"id":9,"subject":"Root","status":"completed","metadata":{"source":"plan:plan.md#Root"}}"#,
    );
    place.write("plan.md", "## Root\n");
    let again = String::from_utf8(place.output("brigade tasks import plan.md").stdout).unwrap();
    assert_eq!(again, "1 task on the board already\n");
}

#[test]
fn why_counts_only_who_is_there() {
    let place = Place::begun();
    place.output("brigade tasks add 'Build it'");
    let mut up = place.shell("exec brigade up --headless --mode pause >/dev/null 2>&1").spawn().unwrap();
    place.wait_until("the team runs", |place| place.json("brigade team --json")["running"] == true);
    // A team that has reported has opened its inboxes.
    place.wait_until("it has begun", |place| {
        let members = place.json("brigade team --json")["members"].clone();
        members.as_array().unwrap().iter().all(|member| member["phase"] != "stopped")
    });
    let members = place.json("brigade team --json")["members"].clone();
    for member in members.as_array().unwrap() {
        assert!(place.output(&format!("brigade stop {}", member["name"].as_str().unwrap())).status.success());
    }
    place.wait_until("all are stopped", |place| {
        let reasons = place.json("brigade why 1 --json")["reasons"].clone();
        reasons.as_array().unwrap().iter().any(|reason| reason["kind"] == "stopped")
    });
    let text = String::from_utf8(place.output("brigade why 1").stdout).unwrap();
    assert!(text.contains("Who could do it are stopped") && !text.contains("Nothing is in its way"), "{text}");
    place.output("brigade stop");
    up.wait().unwrap();
}

#[test]
fn a_file_that_was_set_aside_is_named_where_it_is_missed() {
    let place = Place::begun();
    place.write(".tasks/.spoiled/task_1.json", "{");
    place.write(".tasks/.spoiled/task_1.json.2", "{");
    place.write(".tasks/task_2.json", r#"{"id":2,"subject":"b","status":"pending","blockedBy":[1]}"#);
    let text = |line: &str| {
        let output = place.output(line);
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    for line in ["brigade why 1", "brigade tasks show 1", "brigade why 2", "brigade doctor"] {
        let text = text(&format!("COLUMNS=400 {line}"));
        assert!(text.contains("set aside as .tasks/.spoiled/task_1.json.2"), "{line}: {text}");
        assert!(text.contains("mv .tasks/.spoiled/task_1.json.2 .tasks/task_1.json"), "{line}: {text}");
    }
}

#[test]
fn blocked_means_one_thing_and_what_was_left_says_why() {
    let place = Place::begun();
    place.write("plan.md", "## Fail\n\n```sh\nfalse\n```\n## Next\nafter: Fail\n\n## Last\nafter: Next\n");
    place.output("brigade tasks import plan.md; brigade tasks update 1 --max-attempts 1");
    place.output("brigade tasks add Gpu --requires gpu; brigade tasks add Zoe --for zoe");
    let run = String::from_utf8(place.output("COLUMNS=200 brigade run").stdout).unwrap();
    assert!(run.contains("5 tasks: 0 completed, 1 failed (#1), 2 blocked, 2 pending."), "{run}");
    assert!(run.contains("2 blocked: #2, #3;") && run.contains("2 left to do: #4, #5;"), "{run}");
    for note in [
        "waits for #1 (failed)",
        "waits for #2 (pending), in the end for #1 (failed)",
        "requires gpu, which nobody in the team has",
        "kept for zoe, who is not in the team",
    ] {
        assert!(run.contains(note), "{note}: {run}");
    }
    let listed = place.output("brigade tasks --status blocked");
    assert!(String::from_utf8_lossy(&listed.stderr).contains("2 of 5 tasks: 1 failed, 2 blocked, 2 pending"));
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 3);
    assert_eq!(place.json("brigade tasks --owner ZOE --json")[0]["id"], 5);
}

#[test]
fn a_task_whose_worker_is_gone_says_so() {
    let place = Place::begun();
    place.write(
        ".tasks/task_1.json",
        r#"{"id":1,"subject":"Left","status":"in_progress","owner":"bob","attempt":1,"claim":{"worker":"1-1-gone","at":5}}"#,
    );
    let text = |line: &str| String::from_utf8(place.output(line).stdout).unwrap();
    assert!(text("brigade tasks").contains("its worker is gone"), "{}", text("brigade tasks"));
    assert!(text("COLUMNS=200 brigade doctor").contains("in progress, and their worker is gone: #1"));
}

#[test]
fn what_a_lead_by_rule_cannot_do_is_refused() {
    let place = Place::begun();
    for line in ["brigade run my-team 'Make me a sandwich'", "brigade up --headless --goal 'Make me a sandwich'"] {
        let output = place.output(line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("has no use for a goal: `Make me a sandwich`") && text.contains("hint: "), "{text}");
    }
    for line in ["brigade run --cleanup", "brigade up --headless --mode run_cleanup"] {
        let output = place.output(line);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot lead a session that tidies up"));
    }
    assert!(!place.path().join(".tasks").exists(), "nothing was begun");
}

#[test]
fn new_tasks_that_nobody_could_claim_and_blocks_that_are_not_run_are_noted() {
    let place = Place::begun();
    let notes = |line: &str| String::from_utf8(place.output(line).stderr).unwrap();
    assert!(notes("brigade tasks add A --requires gpu").contains("#1 A requires gpu, which nobody in the team has"));
    assert!(notes("brigade tasks add B --for zoe").contains("#2 B is kept for zoe, who is not in the team"));
    assert_eq!(notes("brigade tasks add C --requires coder"), "");
    place.write("plan.md", "## D\nrequires: gpu\n\n```sh\ntrue\n```\n```python\nprint()\n```\n");
    let text = notes("brigade tasks import plan.md");
    assert!(
        text.contains("#4 D requires gpu")
            && text.contains("#4 D: its `python` block is not run: only sh, bash, shell")
    );
    assert_eq!(notes("brigade tasks import plan.md"), "");
    assert!(notes("brigade run").contains("line 1, D: its `python` block is not run"));
}

#[test]
fn a_board_is_found_without_a_config_and_hints_name_the_workspace() {
    let place = Place::begun();
    fs::create_dir_all(place.path().join("there/sub")).unwrap();
    place.write("there/plan.md", "## Fail\n\n```sh\nfalse\n```\n");
    let outside = Place::new();
    let root = place.path().canonicalize().unwrap();
    let flags = format!("--config {}/brigade.toml --workspace {}", root.display(), outside.path().display());
    place.write("plan.md", "## Fail\n\n```sh\nfalse\n```\n");
    outside.output(&format!("brigade {flags} tasks import {}/plan.md", root.display()));
    outside.output("brigade tasks update 1 --max-attempts 1");
    let run = outside.output(&format!("COLUMNS=400 brigade {flags} run"));
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(text.contains(&format!("`brigade {flags} tasks retry ID`")), "{text}");
    fs::create_dir_all(outside.path().join("sub")).unwrap();
    let listed = outside.output("cd sub && brigade tasks --json");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert!(outside.output("cd sub && brigade tasks retry 1").status.success());
    let error = place.output(&format!("brigade --workspace {} tasks show 9", outside.path().display())).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains(&format!("`brigade --workspace {} tasks`", outside.path().display())), "{error}");
}

#[test]
fn small_things_are_said_as_people_say_them() {
    let place = Place::begun();
    place.output("brigade state pause");
    assert_eq!(place.json("brigade state --json")["desired_state"], "pause");
    let error = |line: &str| String::from_utf8(place.output(line).stderr).unwrap();
    assert!(error("brigade tasks claim --as x --lease 99999d").contains("at most 7d"));
    assert!(error("brigade stop --wait abc").contains("it is a whole number from 0 to 86400"));
    assert!(error("brigade log -n abc").contains("it is a whole number from 1 to"));
    let text = error("BRIGADE_TRUNS_MAX=3 brigade config show");
    assert!(text.contains("BRIGADE_TRUNS_MAX is set, and is no setting; did you mean BRIGADE_TURNS_MAX?"), "{text}");
    place.output("brigade tasks add a");
    place.output("brigade tasks claim --as x; brigade tasks complete 1 --as x --attempt 1 --summary 'Well done'");
    let shown = String::from_utf8(place.output("brigade tasks show 1").stdout).unwrap();
    assert_eq!(shown.matches("Well done").count(), 1, "{shown}");
}

#[test]
fn files_of_a_newer_brigade_are_left_alone_by_every_command() {
    let place = Place::begun();
    place.write(".team/FORMAT", "99\n");
    for line in ["tasks", "tasks add x", "tasks show 1", "tasks claim --as z", "why 1", "team", "inbox"] {
        let output = place.output(&format!("brigade {line}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("format 99"), "{line}: {error}");
    }
    assert!(!place.path().join(".tasks/task_1.json").exists());
}

#[test]
fn what_was_typed_is_repeated_harmlessly() {
    let place = Place::begun();
    for typed in
        ["$(printf '\\302\\233')31m", "$(printf 'a\\rb')", "$(printf '\\342\\200\\256')", "$(printf '\\033[31m')"]
    {
        for line in ["state", "tasks show", "frobnicate --color always", "tasks --json list --status"] {
            let output = place.output(&format!("brigade {line} \"{typed}\""));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{line}");
            let is_harmful = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!said.contains(is_harmful), "{line}: {said:?}");
        }
    }
}

#[test]
fn who_insists_without_an_attempt_is_told_so() {
    let place = Place::begun();
    assert!(place.output("brigade tasks add One && brigade tasks claim 1 --as z").status.success());
    let output = place.output("brigade tasks complete 1 --as z --force");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("held by z, who has to say which attempt"), "{error}");
}

#[test]
fn a_click_leaves_no_reason_of_an_earlier_one() {
    let place = Place::begun();
    assert!(place.output("brigade state continuous --note 'all night'").status.success());
    assert_eq!(place.json("brigade --json state pause")["note"], "");
}
