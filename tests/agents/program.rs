//! The programs that play an external agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::testkit::process::{cargo, git};
use crate::testkit::workspace::TestWorkspace;

/// The versions with recordings.
pub const VERSIONS: [&str; 2] = ["2.1.197", "2.1.330"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The stand-in, built once.
static STAND_IN: LazyLock<PathBuf> = LazyLock::new(|| {
    assert!(cargo(&["build", "--quiet", "--locked", "--example", "agent_stand_in"]).status().unwrap().success());
    // This test is target/<profile>/deps/agents-<hash>.
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples/agent_stand_in")
});

pub fn recording(version: &str, scenario: &str) -> PathBuf {
    root().join("tests/agents/recordings").join(version).join(format!("{scenario}.jsonl"))
}

/// The command of an agent that plays a recording.
pub fn play_command(version: &str, scenario: &str, options: &str) -> String {
    // The real program answers `--version` too.
    let player = format!("{} play {} {options} --", STAND_IN.display(), recording(version, scenario).display());
    with_version(version, &player)
}

/// The command of an agent that is recorded.
pub fn record_command(version: &str, scenario: &str, program: &Path) -> String {
    let file = recording(version, scenario);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&file);
    with_version(version, &format!("{} record {} {} --", STAND_IN.display(), file.display(), program.display()))
}

/// A command that answers `--version`, and otherwise runs `command` with its arguments.
fn with_version(version: &str, command: &str) -> String {
    let script = format!("[ \"$1\" = --version ] && echo {version} && exit; exec {command} \"$@\"");
    format!("sh -c '{script}' agent")
}

/// The installed real programs: version and path.
pub fn installed() -> Vec<(&'static str, PathBuf)> {
    let path = |version| root().join("target/agents").join(version).join("node_modules/.bin/claude");
    let programs = VERSIONS.map(|version| (version, path(version)));
    programs.into_iter().filter(|(_, path)| path.exists()).collect()
}

/// A repository with a team of one external agent, `alice`, and this plan.
pub fn workspace(command: &str, base_url: &str, plan: &str, more: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.write("plan.md", plan);
    workspace.write(".gitignore", "/.tasks/\n/.team/\n/agent_state.json*\n/said-*\n");
    workspace.write(
        "brigade.toml",
        &format!(
            "[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\n{more}\n\
             [[teams.crew.members]]\nname = \"alice\"\nprovider = \"claude-code\"\nbase_url = \"{base_url}\"\n\
             command = {command:?}\npass_env = [\"ANTHROPIC_API_KEY\", \"CLAUDE_CODE_OAUTH_TOKEN\"]\n"
        ),
    );
    git(&workspace, &["init", "-q", "-b", "main"]);
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-q", "-m", "start"]);
    workspace
}
