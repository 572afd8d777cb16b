//! The end of an agent: after a lost claim, a killed lead or a spent budget.

use super::scenarios::check_task;
use super::scripts::{ACCEPT, hook, report, start, start_member, start_with};
use crate::testkit::process::{running_processes, wait_until};

/// A command that only this test runs. It leaves the agent's process group and clears its environment.
struct Background(String);

impl Background {
    fn new(seconds: u32) -> Self {
        Self(format!("sleep {seconds}.{}", std::process::id()))
    }

    fn start(&self) -> String {
        format!("setsid env -i {} > /dev/null 2>&1 &", self.0)
    }

    fn runs(&self) -> bool {
        !running_processes(|process| process.command.trim_end() == self.0).is_empty()
    }
}

/// A model request that uses 180 tokens.
fn request() -> String {
    let stream = |event: &str| format!("echo '{{\"type\":\"stream_event\",\"event\":{event}}}'");
    let events = [
        "{\"type\":\"message_start\",\"message\":{\"id\":\"m1\",\"usage\":{\"input_tokens\":150,\"output_tokens\":1}}}",
        "{\"type\":\"message_delta\",\"usage\":{\"output_tokens\":30}}",
        "{\"type\":\"message_stop\"}",
    ];
    events.map(stream).join("; ")
}

/// A call waits for permission when the claim is lost. It is not made, and the agent ends with all that it started. The next attempt does
/// the task.
#[test]
fn lost_claim_ends_agent_before_its_call() {
    let background = Background::new(3_001);
    let call = hook("PreToolUse", "Bash", "{\"command\":\"touch made\"}");
    let (workspace, mut run) = start_with(
        &format!(
            "{ACCEPT}; read -r prompt\n\
             if [ $BRIGADE_ATTEMPT = 2 ]; then echo hello > hello.txt; {}; exit; fi\n\
             {}\n\
             {}; {call}; case $answer in *deny*) ;; *) : > $CLAUDE_CONFIG_DIR/made;; esac; sleep 600",
            report(),
            background.start(),
            request()
        ),
        "mode = \"ask\"",
        &[],
    );
    wait_until("the call waits for permission", || {
        background.runs() && workspace.json(&["permissions"]).as_array().is_some_and(|open| open.len() == 1)
    });
    let lead = run.id();
    let of_agent: Vec<u32> =
        workspace.processes().iter().map(|process| process.pid).filter(|pid| *pid != lead).collect();
    let release = workspace.run(&["tasks", "release", "1", "--force", "--reason", "a person does it"]);
    assert_eq!(release.code, Some(0), "{release:?}");
    wait_until("the processes of the agent end", || {
        !background.runs() && !workspace.processes().iter().any(|process| of_agent.contains(&process.pid))
    });
    let code = run.code();
    println!("{}", run.output_so_far());
    check_task(&workspace, code);
    assert_eq!(workspace.task(1)["attempt"], 2);
    assert_eq!(workspace.json(&["cost"])["tokens"], 180);
    assert!(!workspace.join(".team/agents/claude-code/alice/made").exists(), "the call was made");
    assert_eq!(workspace.json(&["permissions"]), serde_json::json!([]));
    workspace.assert_nothing_is_left_running();
}

/// The guard ends the processes that the agent left in sessions of their own too.
#[test]
fn killed_lead_ends_all_processes_of_agent() {
    let background = Background::new(3_002);
    let (workspace, mut run) = start(&format!("{ACCEPT}; read -r prompt; {} sleep 600", background.start()));
    wait_until("the background process runs", || background.runs());
    run.kill();
    wait_until("the background process ends", || !background.runs());
    workspace.assert_nothing_is_left_running();
}

/// A cap of an external agent is watched: a request can exceed it, and the next one is not made.
#[test]
fn member_and_task_caps_of_agent_are_watched() {
    let before = hook("PreToolUse", "Bash", "{\"command\":\"true\"}");
    let after = hook("PostToolUse", "Bash", "{}");
    let aborted = "{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"terminal_reason\":\"aborted_tools\"}";
    let large = request().replace("\"input_tokens\":150", "\"input_tokens\":90000");
    let script = format!(
        "{ACCEPT}; read -r prompt; {large}; {before}; {after}\n\
         read -r next; printf '%s\\n' \"$next\" > $CLAUDE_CONFIG_DIR/next; echo '{aborted}'; sleep 600"
    );
    let of_member = ("", "budget = { tokens = 82_100 }", 3, false);
    let of_task = ("[limits]\ntask_tokens_max = 82_100", "", 1, true);
    for (limits, member, code, is_at_cap) in [of_member, of_task] {
        let (workspace, mut run) = start_member(&script, limits, member);
        let ended = run.code();
        println!("{}", run.output_so_far());
        assert_eq!(ended, Some(code), "{limits}{member}");
        let next = workspace.read(".team/agents/claude-code/alice/next");
        assert!(next.contains("\"subtype\":\"interrupt\""), "{next}");
        // Its one request used more than the cap.
        let cost = workspace.json(&["cost"]);
        assert_eq!((&cost["tokens"], &cost["tasks"][0]["tokens"]), (&90_030.into(), &90_030.into()), "{cost}");
        let task = workspace.task(1);
        assert!(task["status"] == "pending" && task.get("failures").is_none_or(|failures| failures == 0), "{task}");
        assert_eq!(task["capReached"]["tokensMax"] == 82_100, is_at_cap, "{task}");
        workspace.assert_nothing_is_left_running();
    }
}

/// The first request fits into the budget, and the next one does not. The agent is interrupted before it.
#[test]
fn spent_budget_interrupts_agent() {
    let before = hook("PreToolUse", "Bash", "{\"command\":\"true\"}");
    let after = hook("PostToolUse", "Bash", "{}");
    let aborted = "{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"terminal_reason\":\"aborted_tools\"}";
    let (workspace, mut run) = start_with(
        &format!(
            "{ACCEPT}; read -r prompt; {}; {before}; {after}\n\
             read -r next; printf '%s\\n' \"$next\" > $CLAUDE_CONFIG_DIR/next; echo '{aborted}'; sleep 600",
            request()
        ),
        "[teams.crew.budget]\ntokens = 82_100",
        &[],
    );
    let code = run.code();
    println!("{}", run.output_so_far());
    assert_eq!(code, Some(3));
    let next = workspace.read(".team/agents/claude-code/alice/next");
    assert!(next.contains("\"subtype\":\"interrupt\""), "{next}");
    assert_eq!(workspace.json(&["cost"])["tokens"], 180);
    let task = workspace.task(1);
    assert!(task["status"] == "pending" && task.get("failures").is_none_or(|failures| failures == 0), "{task}");
    workspace.assert_nothing_is_left_running();
}
