//! Permission requests of an external agent, answered at a terminal.

use std::fs;

use serde_json::Value;

use crate::session::terminal::TestSession;
use crate::testkit::process::git;

/// A program that asks three times before it writes the same file, and keeps the answers.
const AGENT: &str = r#"[ "$1" = --version ] && echo 2.1.330 && exit
read -r line
echo '{"type":"control_response","response":{"subtype":"success","request_id":"brigade-initialize","response":{}}}'
read -r prompt
tool='{"file_path":"'"$PWD"'/shed.txt","content":"two coats of blue"}'
input='{"tool_name":"Write","tool_use_id":"t1","tool_input":'"$tool"'}'
hook='{"subtype":"hook_callback","callback_id":"PreToolUse","input":'"$input"'}'
for number in 1 2 3; do
    echo '{"type":"control_request","request_id":"'$number'","request":'"$hook"'}'
    read -r answer
    printf '%s\n' "$answer" >> "$CLAUDE_CONFIG_DIR/answers"
done
sleep 600
"#;

/// A team of the agent in an interactive session.
fn session() -> TestSession {
    session_writing("two coats of blue")
}

/// A team of an agent that writes this text, without quotes.
fn session_writing(text: &str) -> TestSession {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join(".gitignore"), "*\n").unwrap();
    fs::write(path.join("agent.sh"), AGENT.replace("two coats of blue", text)).unwrap();
    fs::write(path.join("plan.md"), "## Paint\nPaint the shed.\n").unwrap();
    let command = format!("sh {}", path.join("agent.sh").display());
    let config = format!(
        "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\nmode = \"ask\"\n\
         [[teams.crew.members]]\nname = \"ada\"\nprovider = \"claude-code\"\ncommand = {command:?}\n"
    );
    fs::write(path.join("brigade.toml"), config).unwrap();
    git(path, &["init", "-q", "-b", "main"]);
    git(path, &["commit", "-q", "--allow-empty", "-m", "start"]);
    TestSession::at(folder, 50, 120, "xterm-256color")
}

/// Waits for an open permission request with another id than `earlier`. Returns its id.
fn wait_for_request(session: &TestSession, earlier: &str) -> String {
    let mut id = String::new();
    session.wait_until("a call waits for permission", |_| {
        let answer: Value = serde_json::from_str(&session.run(&["permissions", "--json"])).unwrap();
        id = answer["data"][0]["id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty() && id != earlier
    });
    id
}

/// Waits until the agent has all its answers, and returns for each whether it was refused with this reason.
fn refusals(session: &TestSession, reason: &str) -> Vec<bool> {
    let path = session.path().join(".team/agents/claude-code/ada/answers");
    let mut answers = String::new();
    session.wait_until("the agent has three answers", |_| {
        answers = fs::read_to_string(&path).unwrap_or_default();
        answers.matches('\n').count() == 3
    });
    let is_refused = |answer: &str| answer.contains("\"deny\"") && answer.contains(reason);
    assert!(answers.lines().all(|answer| is_refused(answer) || !answer.contains("deny")), "{answers}");
    answers.lines().map(is_refused).collect()
}

#[test]
fn permission_of_agent_is_answered_in_session() {
    let mut session = session();
    session.wait_until("the call and its change", |shown| {
        shown.contains("asks for permission ")
            && shown.contains("write_file: shed.txt")
            && shown.contains("two coats of blue")
    });
    let first = wait_for_request(&session, "");
    session.wait_for_line(&format!("crew? ada asks about permission {first}: write_file: shed.txt"));
    session.type_in(&format!("/permission approve {first}\r"));
    session.wait_until("the answer", |shown| shown.contains(&format!("permission {first} approved; ada continues")));
    let second = wait_for_request(&session, &first);
    session.type_in(&format!("/permission reject {second} --for-run --feedback 'green, please'\r"));
    session.wait_until("the answer", |shown| shown.contains(&format!("permission {second} rejected; ada continues")));
    assert_eq!(refusals(&session, "green, please"), [false, true, true]);
    session.wait_for_line("crew>");
}

#[test]
fn permission_of_agent_is_answered_in_watch() {
    let team = session();
    let first = wait_for_request(&team, "");
    let mut watch = team.beside(&["watch"], 40, 140);
    watch.wait_until("something waits", |shown| shown.contains("For you (1)"));
    watch.type_in("3");
    watch.wait_until("the call and its change", |shown| {
        shown.contains(&format!("brigade permission approve {first}")) && shown.contains("two coats of blue")
    });
    watch.type_in("r");
    watch.wait_until("the reason is asked for", |shown| shown.contains(&format!("reject permission {first}")));
    watch.type_in("green, please\r");
    // Until then the line takes no keys.
    watch.wait_until("the line is closed", |shown| shown.contains(&format!("permission {first} rejected")));
    let second = wait_for_request(&team, &first);
    watch.wait_until("the next call", |shown| shown.contains(&format!("brigade permission approve {second}")));
    watch.type_in("A");
    assert_eq!(refusals(&team, "green, please"), [true, false, false]);
    watch.type_in("q");
    assert_eq!(watch.code(), Some(0), "{}", watch.shown());
}

/// The content of a file with more lines than a terminal shows, as in JSON.
fn long_content() -> String {
    (1..=99).map(|number| format!("coat {number}")).collect::<Vec<_>>().join("\\\\n")
}

#[test]
fn cut_call_is_shown_and_asked_about_at_terminal() {
    let mut team = session_writing(&long_content());
    let first = wait_for_request(&team, "");
    team.wait_until("the session shows the start of the call, and the command that shows the rest", |shown| {
        shown.contains("coat 1 ⏎ + coat 2") && shown.contains(&format!("more lines: `/permission show {first}`"))
    });
    team.wait_for_line(&format!("crew? ada asks about permission {first} (Tab shows it)"));
    team.type_in(&format!("/permission approve {first}\r"));
    team.wait_until("the session does not ask", |shown| shown.contains("needs its digest"));
    for (answer, words) in [("n\r", "you did not answer yes"), ("y\r", "approved; ada continues")] {
        let mut terminal = team.beside(&["permission", "approve", &first], 120, 120);
        terminal.wait_until("the whole call and a question", |shown| {
            shown.contains("+ coat 50") && shown.contains("+ coat 99") && shown.contains("Allow this call? [y/N]")
        });
        terminal.type_in(answer);
        terminal.wait_until("the answer", |shown| shown.contains(words));
        assert_eq!(terminal.code(), Some(if answer == "n\r" { 1 } else { 0 }));
    }
    assert_ne!(wait_for_request(&team, &first), first);
}

#[test]
fn watch_allows_call_only_at_the_end_of_its_text() {
    let team = session_writing(&long_content());
    let first = wait_for_request(&team, "");
    let mut watch = team.beside(&["watch"], 40, 140);
    watch.wait_until("something waits", |shown| shown.contains("For you (1)"));
    watch.type_in("3");
    watch.wait_until("the call", |shown| shown.contains("+ coat 20"));
    assert!(!watch.shown().contains("+ coat 99"), "the call fits the screen");
    watch.type_in("a");
    watch.wait_until("the key waits for the end", |shown| shown.contains("read it to its end"));
    watch.type_in("\u{1b}[F");
    watch.wait_until("the end of the call", |shown| shown.contains("+ coat 99") && shown.contains("digest "));
    watch.type_in("a");
    watch.wait_until("the answer", |shown| shown.contains(&format!("permission {first} approved")));
    assert_ne!(wait_for_request(&team, &first), first);
    watch.type_in("q");
    assert_eq!(watch.code(), Some(0), "{}", watch.shown());
}
