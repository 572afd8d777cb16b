//! Mistyped commands, as new users type them: the exit code, a word that names the problem, and a hint.

use crate::testkit::workspace::TestWorkspace;

/// The typed line, the exit code, and the words that the answer must contain.
#[rustfmt::skip]
const TYPED: &[(&str, i32, &[&str])] = &[
    ("", 2, &["Usage", "init"]),
    ("strat", 2, &["strat", "brigade state"]),
    ("start", 2, &["start", "brigade state"]),
    ("status", 2, &["status", "brigade state"]),
    ("logs", 2, &["logs", "brigade log"]),
    ("UP", 2, &["UP", "brigade up"]),
    ("--verison", 2, &["--verison", "--version"]),
    ("help nothing", 2, &["nothing"]),
    ("approve 3", 2, &["approve", "brigade --help"]),
    ("run ghost", 2, &["ghost", "crew"]),
    ("run 'Build me a compiler'", 2, &["brigade run crew 'Build me a compiler'"]),
    ("review reject", 1, &["no review waits"]),
    ("plan reject 1 --feedback ''", 2, &["--feedback"]),
    ("run crew --plan nope.md", 2, &["nope.md"]),
    ("run crew --plan .", 2, &["folder"]),
    ("run --plan /dev/null", 2, &["/dev/null"]),
    ("run --output-format xml", 2, &["xml", "stream-json"]),
    ("run crew goal extra", 2, &["extra", "brigade run"]),
    ("up ghost", 2, &["ghost", "crew"]),
    ("up --mode fast", 2, &["fast", "run_once"]),
    ("up -x", 2, &["-x", "brigade up --help"]),
    ("state paws", 2, &["paws", "pause"]),
    ("state pause now", 2, &["now", "brigade state"]),
    ("state --note why", 2, &["MODE"]),
    ("tasks lst", 2, &["lst", "list"]),
    ("tasks list --status done", 2, &["done", "completed"]),
    ("tasks show", 2, &["ID"]),
    ("tasks show 1.5", 2, &["1.5", "#3"]),
    ("tasks show 99", 1, &["#99", "brigade tasks"]),
    ("tasks show 99999999999999999999", 2, &["99999999999999999999", "#3"]),
    ("tasks add", 2, &["SUBJECT"]),
    ("tasks add ''", 2, &["subject"]),
    ("tasks add x --after 77", 1, &["#77", "numbers"]),
    ("tasks add x --after foo", 2, &["foo", "#3"]),
    ("tasks add x --priority high", 2, &["high", "whole number"]),
    ("tasks add x --max-attempts 0", 2, &["0", "max-attempts"]),
    ("tasks add x --for 'a b'", 2, &["a b", "letters"]),
    ("tasks update 1", 2, &["no change is given", "--priority"]),
    ("tasks update 1 --after 1", 1, &["#1"]),
    ("tasks rm", 2, &["IDS"]),
    ("tasks rm 99", 1, &["#99", "brigade tasks"]),
    ("tasks import", 2, &["FILE"]),
    ("tasks import nope.md", 2, &["nope.md"]),
    ("tasks import .", 2, &["cannot read"]),
    ("tasks import brigade.toml", 2, &["brigade.toml", "## Title"]),
    ("tasks claim", 2, &["--as"]),
    ("tasks claim --as", 2, &["--as", "NAME"]),
    ("tasks claim --as 'a b'", 2, &["a b", "letters"]),
    ("tasks claim --as lead", 2, &["lead", "--as NAME"]),
    ("tasks claim --as all", 2, &["all"]),
    ("tasks claim --as me --lease 5", 2, &["5", "15m"]),
    ("tasks claim --as me --lease 0s", 2, &["0s", "1s"]),
    ("tasks claim x --as me", 2, &["x", "#3"]),
    ("tasks claim 99 --as me", 1, &["#99", "brigade tasks"]),
    ("tasks complete", 2, &["ID"]),
    ("tasks complete 1", 1, &["cannot complete task #1: it is pending", "--as "]),
    ("tasks complete 1 --as me", 1, &["cannot complete task #1: it is pending", "--as "]),
    ("tasks complete 1 --as me --attempt 7", 1, &["#1"]),
    ("tasks complete 1 --as me --attempt one", 2, &["one"]),
    ("tasks fail 1 --as me --attempt 1", 2, &["--reason"]),
    ("tasks fail 1 --as me --attempt 1 -r ''", 2, &["--reason"]),
    ("tasks retry 1", 1, &["#1", "pending"]),
    ("tasks reopen 1", 1, &["#1", "pending"]),
    ("why", 2, &["ID"]),
    ("why abc", 2, &["abc", "#3"]),
    ("why 42", 1, &["#42", "brigade tasks"]),
    ("send", 2, &["TO", "TEXT"]),
    ("send m1", 2, &["TEXT"]),
    ("send m1 ''", 2, &["empty message"]),
    ("send ghost hi", 1, &["ghost", "m1"]),
    ("inbox ghost", 1, &["ghost", "m1"]),
    ("inbox ../../etc", 1, &["../../etc"]),
    ("inbox m1 --take", 2, &["m1", "only its owner"]),
    ("team ghost", 2, &["ghost", "crew"]),
    ("stop --wait soon", 2, &["soon", "--wait"]),
    ("clean --al", 2, &["--al", "--all"]),
    ("config", 2, &["show", "schema"]),
    ("config shw", 2, &["shw", "show"]),
    ("config show ghost", 2, &["ghost", "crew"]),
    ("completions tcsh", 2, &["tcsh", "bash"]),
    ("completions", 2, &["SHELL"]),
    ("init", 2, &["brigade.toml", "--force"]),
    ("init 'my team' --force", 2, &["my team", "letters"]),
    ("doctor extra", 2, &["extra"]),
    ("--color sometimes tasks", 2, &["sometimes", "auto"]),
    ("tasks --workspace /nowhere", 2, &["/nowhere"]),
    ("tasks --workspace brigade.toml", 2, &["not a folder"]),
    ("tasks --config /nowhere/brigade.toml", 2, &["BRIGADE_CONFIG", "/nowhere/brigade.toml"]),
    ("tasks --config .", 2, &["it is a folder"]),
    ("run --config /nowhere/brigade.toml", 2, &["/nowhere/brigade.toml"]),
];

/// Splits at spaces; text between single quotes stays together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (Vec::new(), false);
    for part in line.split('\'') {
        if is_quoted {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
        is_quoted = !is_quoted;
    }
    words
}

#[test]
fn mistyped_command_error_names_word_and_next_step() {
    let workspace = TestWorkspace::with_idle_team(1);
    assert_eq!(workspace.run(&["tasks", "add", "One"]).code, Some(0));
    let before = workspace.task(1);
    let mut poor = Vec::new();
    for (line, code, named) in TYPED {
        let words = words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = workspace.run(&words);
        let output = answer.out.clone() + &answer.err;
        let is_silent = answer.err.trim().is_empty();
        if answer.code != Some(*code) || is_silent || !named.iter().all(|name| output.contains(name)) {
            poor.push(format!(
                "brigade {line}\n  expected exit {code} and {named:?}, got exit {:?}:\n{output}",
                answer.code
            ));
        }
        // With `--json`: one line of JSON with the error.
        if !line.is_empty() && *line != "config" {
            let answer = workspace.run(&[&words[..], &["--json"]].concat());
            let first: Option<serde_json::Value> = serde_json::from_str((answer.err + &answer.out).trim()).ok();
            let is_error = first.as_ref().is_some_and(|value| value["error"]["code"] == *code);
            if answer.code != Some(*code) || !is_error {
                poor.push(format!("brigade {line} --json\n  exit {:?}: {first:?}", answer.code));
            }
        }
    }
    assert!(poor.is_empty(), "{}", poor.join("\n"));
    assert_eq!(workspace.task(1), before, "a mistyped command changed the task");
    assert_eq!(workspace.tasks().len(), 1);
}
