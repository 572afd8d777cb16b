//! The start of an agent: its environment, its folders, its hooks and its session.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use brigade::agents::external::claude::ClaudeProtocol;
use brigade::agents::external::protocol::{AgentProtocol, SessionStart};
use brigade::domain::agent::permission::Permissions;
use serde_json::Value;

use super::scripts::{ACCEPT, assert_ended, report, start, start_with};
use crate::testkit::process::files_below;
use crate::testkit::workspace::TestWorkspace;

/// The folder of the agent's files.
const CONFIG_FOLDER: &str = ".team/agents/claude-code/alice";

/// An agent that keeps its environment in its config folder, and does the task.
fn script() -> String {
    format!(
        "env > $CLAUDE_CONFIG_DIR/environment; cat $HOME/.claude/login > $CLAUDE_CONFIG_DIR/read\n\
         wc -c < $CLAUDE_CONFIG_DIR/read > $CLAUDE_CONFIG_DIR/bytes; rm $CLAUDE_CONFIG_DIR/read\n\
         {ACCEPT}; read -r prompt; echo hello > hello.txt; {}",
        report()
    )
}

/// The environment that the agent of [`script`] got.
fn environment(workspace: &TestWorkspace) -> BTreeMap<String, String> {
    let text = workspace.read(&format!("{CONFIG_FOLDER}/environment"));
    let entry = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().filter_map(entry).collect()
}

/// The files below a folder with their contents.
pub fn contents_below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    files_below(folder)
        .into_iter()
        .map(|path| (path.display().to_string(), fs::read(path).unwrap_or_default()))
        .collect()
}

/// Returns true if the bytes contain the text.
pub fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The agent can read the login in the person's folder. Brigade copies it nowhere, and writes nothing there.
#[test]
fn home_of_person_stays_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let login = "login-of-the-person";
    fs::create_dir(home.path().join(".claude")).unwrap();
    for (name, text) in [(".claude/login", login), (".claude/settings.json", "{}"), (".claude.json", "{}")] {
        fs::write(home.path().join(name), text).unwrap();
    }
    let before = contents_below(home.path());
    let home_text = home.path().to_str().unwrap();
    let (workspace, mut run) = start_with(&script(), "", &[("HOME", home_text)]);
    assert_ended(&workspace, &mut run, 0, "completes #1");
    assert_eq!(contents_below(home.path()), before);
    assert_eq!(workspace.read(&format!("{CONFIG_FOLDER}/bytes")).trim(), login.len().to_string(), "it can be read");
    for (path, text) in contents_below(workspace.path()) {
        assert!(!contains(&text, login), "{path}");
    }
    let environment = environment(&workspace);
    let folder = workspace.join(CONFIG_FOLDER);
    assert_eq!(
        (&environment["HOME"], &environment["CLAUDE_CONFIG_DIR"]),
        (&home_text.to_owned(), &folder.display().to_string())
    );
    // An empty value is the person's own folder.
    assert_eq!(environment["CLAUDE_SECURESTORAGE_CONFIG_DIR"], "");
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
}

/// The program replaces its login after a refresh. That works in the person's folder, and no file of the workspace has the new login.
#[test]
fn refreshed_login_is_in_folder_of_person() {
    let home = tempfile::tempdir().unwrap();
    let login = home.path().join(".claude/.credentials.json");
    fs::create_dir(home.path().join(".claude")).unwrap();
    fs::write(&login, "old-login").unwrap();
    let refresh = "folder=${CLAUDE_SECURESTORAGE_CONFIG_DIR:-$HOME/.claude}; grep -q old-login $folder/.credentials.json &&\
                   printf refreshed-%s login > $folder/new && mv $folder/new $folder/.credentials.json";
    let work = format!("{refresh}; echo hello > hello.txt; {}", report());
    let home_text = home.path().to_str().unwrap();
    let (workspace, mut run) = start_with(&format!("{ACCEPT}; read -r prompt; {work}"), "", &[("HOME", home_text)]);
    assert_ended(&workspace, &mut run, 0, "completes #1");
    assert_eq!(fs::read_to_string(&login).unwrap(), "refreshed-login");
    for (path, text) in contents_below(workspace.path()) {
        assert!(!contains(&text, "refreshed-login"), "{path}");
    }
}

/// The variables of an agent that started Brigade do not reach the team's agent, nor do those of an outer team. `pass_env` names those
/// that do.
#[test]
fn variables_of_surrounding_agent_are_removed() {
    let (workspace, mut run) = start_with(
        &script(),
        "",
        &[
            ("CLAUDECODE", "1"),
            ("CLAUDE_CODE_ENTRYPOINT", "cli"),
            ("CLAUDE_CODE_SESSION_ID", "outer"),
            ("CLAUDE_CODE_SSE_PORT", "9"),
            ("CLAUDE_CODE_USE_BEDROCK", "1"),
            ("CLAUDE_CODE_OAUTH_TOKEN", "passed"),
            ("CLAUDE_CONFIG_DIR", "/person"),
            ("ANTHROPIC_API_KEY", "passed"),
            ("ANTHROPIC_AUTH_TOKEN", "secret"),
            ("ANTHROPIC_BASE_URL", "http://127.0.0.1:8"),
            ("ANTHROPIC_MODEL", "outer"),
            ("BRIGADE_ATTEMPT", "9"),
            ("BRIGADE_TASK", "9"),
            ("KEPT", "yes"),
        ],
    );
    assert_ended(&workspace, &mut run, 0, "completes #1");
    let environment = environment(&workspace);
    let starts = ["CLAUDECODE", "CLAUDE_CODE_", "ANTHROPIC_"];
    let of_agent = environment.iter().filter(|(name, _)| starts.iter().any(|start| name.starts_with(start)));
    let of_agent: Vec<(&str, &str)> = of_agent.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        of_agent,
        [
            ("ANTHROPIC_API_KEY", "passed"),
            ("ANTHROPIC_BASE_URL", "http://127.0.0.1:9"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("CLAUDE_CODE_MAX_RETRIES", &environment["CLAUDE_CODE_MAX_RETRIES"]),
            ("CLAUDE_CODE_OAUTH_TOKEN", "passed"),
        ]
    );
    assert_eq!(environment["CLAUDE_SECURESTORAGE_CONFIG_DIR"], "/person");
    let own = ["BRIGADE_TASK", "BRIGADE_ATTEMPT", "KEPT"].map(|name| environment[name].as_str());
    assert_eq!(own, ["1", "1", "yes"]);
}

/// A hook without a time limit would never end if Brigade does not answer. Without `onFailure`, a tool runs after an invalid answer.
#[test]
fn every_hook_has_timeout_and_blocks_on_failure() {
    let start = SessionStart {
        session: "s",
        is_known: false,
        system_prompt: "You are alice.",
        model: "",
        base_url: None,
        home: Path::new("/home"),
        command_timeout: Duration::from_secs(1),
        command_timeout_max: Duration::from_secs(1),
        permissions: &Permissions::default(),
        retries_max: 0,
    };
    let lines = ClaudeProtocol::default().handshake(&start);
    let message: Value = serde_json::from_str(&lines[0]).unwrap();
    let hooks = message["request"]["hooks"].as_object().unwrap();
    assert!(["PreToolUse", "PostToolUse", "PreCompact"].iter().all(|hook| hooks.contains_key(*hook)), "{message}");
    for (name, matchers) in hooks {
        let matchers = matchers.as_array().unwrap();
        assert!(!matchers.is_empty(), "{name}");
        for matcher in matchers {
            assert!(matcher["timeout"].as_u64().is_some_and(|seconds| seconds > 0), "{name}: {matcher}");
            assert_eq!(matcher["onFailure"], "block", "{name}: {matcher}");
        }
    }
}

/// The program has the history of its session and still refuses to resume it. A new session gets the task and the last words.
#[test]
fn refused_resume_begins_session_with_account() {
    let refusal = "echo '{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"errors\":[\"No conversation found with session ID: x\"]}'";
    let words = "echo '{\"type\":\"assistant\",\"message\":{\"id\":\"m1\",\"model\":\"a-model\",\"content\":[{\"type\":\"text\",\"text\":\"Half of it is written.\"}],\"usage\":{}}}'";
    let (workspace, mut run) = start(&format!(
        "cd $CLAUDE_CONFIG_DIR; for a; do case $a in --session-id=*|--resume=*) echo $a >> sessions;; esac; done\n\
         session=$(tail -n 1 sessions); mkdir -p projects/x\n\
         case $session in --resume=*) read -r line; {refusal}; exit 1;; esac\n\
         cd - > /dev/null; {ACCEPT}; read -r prompt\n\
         if [ $(wc -l < $CLAUDE_CONFIG_DIR/sessions) = 1 ]; then\n\
         printf '%s\\n' \"$prompt\" > $CLAUDE_CONFIG_DIR/projects/x/${{session#*=}}.jsonl; {words}; exit\n\
         fi\n\
         printf '%s\\n' \"$prompt\" > $CLAUDE_CONFIG_DIR/prompt; echo hello > hello.txt; {}",
        report()
    ));
    assert_ended(&workspace, &mut run, 0, "completes #1");
    let sessions = workspace.read(&format!("{CONFIG_FOLDER}/sessions"));
    let sessions: Vec<(&str, &str)> = sessions.lines().map(|line| line.split_once('=').unwrap()).collect();
    let [(first, lost), (second, refused), (third, new)] = sessions[..] else { panic!("{sessions:?}") };
    assert_eq!([first, second, third], ["--session-id", "--resume", "--session-id"]);
    assert!(lost == refused && lost != new, "{sessions:?}");
    let prompt = workspace.read(&format!("{CONFIG_FOLDER}/prompt"));
    for part in ["Write hello into hello.txt", "Your earlier session on this work is lost", "Half of it is written."] {
        assert!(prompt.contains(part), "{part} is missing: {prompt}");
    }
}
