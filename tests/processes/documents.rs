//! The commands of the guide and the reference pages, run as a reader would run them: from top to bottom, in an empty folder.
//!
//! The words after the language of a fenced block decide about it:
//!
//! - `sh` is run. A second word names a part of [`PRELUDES`] that is run before it, once on each page.
//! - `sh background` is started, and runs until the page ends.
//! - Another language with a file name is written to that file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::testkit::process::{Process, WAIT_TIME_MAX, command};
use crate::testkit::seeds::{PROCESS_CHECKS_AT_ONCE, run_in_threads};

/// The setup that the commands of a page assume, by the second word of their blocks.
const PRELUDES: &[(&str, &str)] = &[
    (
        "model",
        r#"cat > answers.json <<'END_OF_FILE'
{"goal": [{"call": [{"tool": "task_create", "input": {"subject": "List the files", "description": "", "verify": "test -s files.txt"}}]}, {"say": "Planned."}],
 "task": [{"call": [{"tool": "bash", "input": {"command": "ls > files.txt"}}]}, {"say": "Done."}],
 "mail": [{"say": "I will."}], "report": [{"say": "It is written."}]}
END_OF_FILE
export BRIGADE_PROVIDER=scripted BRIGADE_MODEL=answers.json BRIGADE_TRUST=1"#,
    ),
    (
        "isolated",
        "git init -q -b main
brigade init
git add -A
git commit -qm 'Begin'
export BRIGADE_ISOLATION=worktree",
    ),
    (
        "review",
        "brigade tasks reopen 3
BRIGADE_REVIEW=human brigade up --headless --mode continuous > up.log 2>&1 &
wait_for_id review",
    ),
    (
        "plan",
        r#"until brigade tasks show 3 --json | grep -q '"status": *"completed"'; do sleep 0.1; done
brigade stop --wait 60
brigade tasks reopen 3
echo '{"task": [{"call": [{"tool": "plan_approval", "input": {"plan": "1. Count."}}]}], "mail": [{"say": "Good."}]}' > answers.json
printf '%s\n' '[teams.crew]' '[[teams.crew.members]]' 'name = "alice"' 'role = "coder"' 'plan_first = true' \
    'provider = "scripted"' 'model = "answers.json"' > brigade.toml
brigade up --headless --mode continuous > up.log 2>&1 &
wait_for_id plan"#,
    ),
];

/// The pages whose commands need no agreement.
const WITHOUT_QUESTION: [&str; 2] = ["README.md", "first-team.md"];

const HEAD: &str = r#"set -eu
wait_for_id() {
    until ID=$(brigade "$1" --json | grep -o '"id": *"[^"]*"' | head -n 1 | cut -d '"' -f 4) && [ -n "$ID" ]; do sleep 0.1; done
}
stop_team() {
    [ ! -e .team/lead.json ] || brigade stop --now --wait 60 > stop.log 2>&1 || true
}
trap stop_team EXIT
"#;

/// Makes one script of the blocks of a page. Returns it with the number of blocks that are run.
fn script_of(page: &str) -> (String, usize) {
    let (mut script, mut count) = (HEAD.to_owned(), 0);
    let mut done = Vec::new();
    for (words, body) in blocks_of(page) {
        match words.as_slice() {
            // `.ci/run` runs the commands that build Brigade.
            ["sh", ..] if body.contains("cargo ") => {}
            ["sh", "background"] => {
                script += &format!("( {} ) > background.log 2>&1 &\n", body.trim());
                script += "until [ -e .team/lead.json ]; do sleep 0.1; done\n";
                count += 1;
            }
            ["sh", more @ ..] => {
                for word in more.iter().filter(|word| !done.contains(*word)).copied().collect::<Vec<_>>() {
                    let prelude = PRELUDES.iter().find(|(name, _)| *name == word);
                    let (name, prelude) = prelude.unwrap_or_else(|| panic!("there is no prelude {word}"));
                    script += &format!("{prelude}\n");
                    done.push(*name);
                }
                script += &format!("set -x\n{body}{{ set +x; }} 2>&-\n");
                count += 1;
            }
            [_, file] => script += &format!("cat > {file} <<'END_OF_FILE'\n{body}END_OF_FILE\n"),
            _ => {}
        }
    }
    (script, count)
}

/// The fenced blocks: the words after the fence, and the lines.
fn blocks_of(page: &str) -> Vec<(Vec<&str>, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, Vec<&str>, String)> = None;
    for line in page.lines() {
        match &mut open {
            Some((fence, words, body)) if line.trim_end() == *fence => {
                blocks.push((std::mem::take(words), std::mem::take(body)));
                open = None;
            }
            Some((_, _, body)) => *body += &format!("{line}\n"),
            None if line.starts_with("```") => {
                let (fence, words) = line.split_at(line.len() - line.trim_start_matches('`').len());
                open = Some((fence, words.split_whitespace().collect(), String::new()));
            }
            None => {}
        }
    }
    blocks
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["docs", "docs/guide"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let pages = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    pages.filter(is_page).chain([root.join("README.md")]).collect()
}

/// Runs the commands of a page in an empty folder.
fn run_page(page: &Path, script: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = command("bash", folder.path());
    shell.args(["-c", script]).env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", folder.path());
    // A reader at a terminal is asked about files that `brigade init` did not write.
    if !WITHOUT_QUESTION.iter().any(|name| page.ends_with(name)) {
        shell.env("BRIGADE_TRUST", "1");
    } else {
        shell.env_remove("BRIGADE_TRUST");
    }
    for variable in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
        shell.env(variable, "reader@example.invalid");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_brigade")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [program.to_owned()].into_iter().chain(std::env::split_paths(&path));
    shell.env("PATH", std::env::join_paths(folders).unwrap());
    let logs = tempfile::tempdir().unwrap();
    let mut reader = Process::start(shell, &logs.path().join("page.log"));
    let status = reader.end_within(WAIT_TIME_MAX);
    let output = reader.output_so_far();
    assert!(status.is_some_and(|status| status.success()), "{}: {status:?}\n{output}", page.display());
}

#[test]
fn commands_of_pages_run_from_top_to_bottom() {
    let count = AtomicUsize::new(0);
    run_in_threads(PROCESS_CHECKS_AT_ONCE, pages(), |page| {
        let (script, blocks) = script_of(&fs::read_to_string(&page).unwrap());
        if blocks > 0 {
            run_page(&page, &script);
            count.fetch_add(blocks, Ordering::Relaxed);
        }
    });
    let count = count.into_inner();
    assert!(count >= 15, "only {count} blocks of the pages are run");
}
