//! A team of Claude Code, Brigade's own agent and runbooks.

use serde_json::{Value, json};

use super::program::{VERSIONS, play_command, workspace};
use super::recorded::run;

/// Four tasks for Claude Code, two for Brigade's own agent, two for runbooks.
fn plan() -> String {
    let written = (1..=4).map(|number| {
        format!(
            "## Write hello {number}\nrequires: writer\nverify: grep -q hello hello.txt\nWrite hello into hello.txt.\n"
        )
    });
    let noted = (5..=6)
        .map(|number| format!("## Note {number}\nrequires: noter\nverify: test -s note-{number}.txt\nWrite it.\n"));
    let counted = (7..=8).map(|number| {
        format!("## Count {number}\nrequires: counter\n```sh\necho {number} > count-{number}.txt\n```\n")
    });
    written.chain(noted).chain(counted).collect()
}

/// The tokens of each answer of the scripted model.
const OWN_TOKENS: u64 = 55;
/// The tokens of each answer in the recordings: new, cached and output ones.
const RECORDED_TOKENS: u64 = 100 + 40 + 9;

fn script() -> Value {
    let usage = json!({ "input_tokens": OWN_TOKENS - 5, "output_tokens": 5 });
    let bash = json!({ "tool": "bash", "input": { "command": "echo noted > note-{{task}}.txt" } });
    let report = json!({ "tool": "task_update", "input": {
        "task_id": "{{task}}", "status": "completed", "result": "noted"
    } });
    json!({ "task": [
        { "call": [bash], "usage": usage },
        { "call": [report], "usage": usage },
    ] })
}

/// The command of an agent that plays the recording `task` for the first two tasks, and `quota` for later ones.
fn command(version: &str) -> String {
    let choice = "case $BRIGADE_TASK in 1|2) scenario=task;; *) scenario=quota;; esac; export scenario; exec \"$@\"";
    format!("sh -c '{choice}' agent {}", play_command(version, "$scenario", ""))
}

/// The quota of one account is used up while six members work. All tasks are completed, and each answer is billed once.
#[test]
fn mixed_team_completes_all_tasks_despite_quota() {
    let workspace = workspace("AGENT", "http://127.0.0.1:9", &plan(), "");
    workspace.write("script.json", &script().to_string());
    let member = |name: &str, role: &str, more: &str| {
        format!("[[teams.crew.members]]\nname = \"{name}\"\nrole = \"{role}\"\n{more}\n")
    };
    let agent = |version: &str| format!("provider = \"claude-code\"\ncommand = {:?}", command(version));
    let scripted = format!("provider = \"scripted\"\nmodel = {:?}", workspace.join("script.json"));
    let members = [
        member("alice", "writer", &agent(VERSIONS[0])),
        member("bea", "writer", &agent(VERSIONS[1])),
        member("cy", "noter", &scripted),
        member("dan", "noter", &scripted),
        member("eve", "counter", ""),
        member("fay", "counter", ""),
    ];
    let team = "[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\n";
    workspace.write("brigade.toml", &format!("{team}{}", members.concat()));
    assert_eq!(run(&workspace), Some(0));
    assert!(workspace.all_are("completed") && workspace.tasks().len() == 8, "{:?}", workspace.tasks());
    for task in workspace.tasks() {
        assert!(task.get("failures").is_none_or(|failures| failures == 0), "{task}");
    }
    assert!(workspace.read(".team/events.jsonl").contains("has used up its quota until"));
    // A task takes two answers: a command, and the report that ends it.
    let cost = workspace.json(&["cost"]);
    assert_eq!(cost["tokens"], 4 * 2 * RECORDED_TOKENS + 2 * 2 * OWN_TOKENS, "{cost}");
    let accounts = cost["accounts"].as_array().unwrap();
    assert!(accounts.iter().all(|account| account.get("unconfirmed").is_none_or(|count| count == 0)), "{cost}");
}
