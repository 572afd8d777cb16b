//! Checks that links, files, tests, commands and flags in the public documents exist.

use std::collections::HashMap;
use std::process::Command;

use super::generated::{command_table, exit_code_table, model_setting_tables, option_table, setting_tables};
use super::{assert_no_complaints, files_below, root, text_of};

const PAGES: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", ".tasks/README.md"];
/// The most lines of `ARCHITECTURE.md`, which is a map. Explanations go to `docs/`.
const MAP_LINES_MAX: usize = 150;

/// The most lines of the README and of each page in `docs/`.
const PAGE_LINES_MAX: usize = 200;

/// Folders of the project, its sources first. A path into one of them in a document must exist.
const FOLDERS: &[&str] = &["src/", "tests/", "prompts/", "schema/", "demo/", "benches/", "examples/", ".ci/", "docs/"];

/// The README's commands for a new machine are between these marks; `.ci/run` runs them.
const TWO_COMMANDS: &str = "<!-- two-commands -->";

/// The public documents: the pages above and everything in `docs/`.
fn documents() -> Vec<String> {
    let docs = files_below("docs").into_iter().map(|path| path.to_string_lossy().into_owned());
    PAGES.iter().map(|page| (*page).to_owned()).chain(docs).collect()
}

#[test]
fn architecture_map_is_short() {
    let lines = text_of("ARCHITECTURE.md").lines().count();
    assert!(
        lines <= MAP_LINES_MAX,
        "ARCHITECTURE.md has {lines} lines, at most {MAP_LINES_MAX}: move details to docs/"
    );
}

#[test]
fn pages_are_short() {
    let pages = files_below("docs").into_iter().filter(|path| path.extension().is_some_and(|one| one == "md"));
    let mut complaints = Vec::new();
    for page in pages.chain(["README.md".into()]) {
        let lines = text_of(&page).lines().count();
        if lines > PAGE_LINES_MAX {
            complaints.push(format!("{}: {lines} lines, at most {PAGE_LINES_MAX}", page.display()));
        }
    }
    assert_no_complaints("documents: a page is short; move a part to another page", &complaints);
}

#[test]
fn document_links_lead_to_existing_files() {
    let mut complaints = Vec::new();
    for document in documents() {
        let text = text_of(&document);
        let folder = root().join(&document).parent().expect("the file is in a folder").to_owned();
        for (number, line) in text.lines().enumerate() {
            for link in links_of(line) {
                let file = link.split('#').next().unwrap_or_default();
                if !link.contains("://") && !file.is_empty() && !folder.join(file).exists() {
                    complaints.push(format!("{document}:{}: there is no file {link}", number + 1));
                }
            }
        }
    }
    assert_no_complaints("documents: every relative link leads to a file", &complaints);
}

/// The targets of `[text](target)`.
fn links_of(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

#[test]
fn files_and_tests_named_in_documents_exist() {
    let mut complaints = Vec::new();
    let mut checked = 0;
    for document in documents() {
        let mut is_block = false;
        for (number, line) in text_of(&document).lines().enumerate() {
            is_block ^= line.trim_start().starts_with("```");
            // Paths in an example belong to the reader's workspace, except for our sources.
            let folders = if is_block { &FOLDERS[..2] } else { FOLDERS };
            for word in line.split(|character: char| character.is_whitespace() || "`()[]|,;\"'".contains(character)) {
                let word = word.trim_end_matches(['.', ':']);
                let is_pattern = word.contains(['<', '*', '…', '$']) || word.contains("NAME");
                if folders.iter().any(|folder| word.starts_with(folder)) && !is_pattern {
                    checked += 1;
                    let missing = missing_file_or_test(word);
                    complaints.extend(missing.map(|missing| format!("{document}:{}: {missing}", number + 1)));
                }
            }
        }
    }
    assert!(checked > 30, "too few files are named");
    assert_no_complaints("documents: every file and test that they name exists", &complaints);
}

/// Checks that the file of `tests/stores/board.rs` exists; for `tests/stores/board.rs::name`, also that it contains the word.
fn missing_file_or_test(word: &str) -> Option<String> {
    let (path, name) = word.split_once("::").map_or((word, None), |(path, name)| (path, Some(name)));
    if !root().join(path).exists() {
        return Some(format!("there is no {path}"));
    }
    let name = name?;
    let text = text_of(path);
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let has = |part: &str| text.split(|character| !is_word(character)).any(|word| word == part);
    (!name.split("::").all(has)).then(|| format!("{path} has no {name}"))
}

/// The output of `brigade … --help`, read once for each command.
#[derive(Default)]
struct Helps(HashMap<Vec<String>, String>);

impl Helps {
    fn of(&mut self, command: &[String]) -> &str {
        self.0.entry(command.to_vec()).or_insert_with(|| {
            let mut brigade = Command::new(env!("CARGO_BIN_EXE_brigade"));
            let output = brigade.args(command).arg("--help").current_dir(root()).output().expect("brigade runs");
            String::from_utf8(output.stdout).expect("help is text")
        })
    }

    fn commands_of(&mut self, command: &[String]) -> Vec<String> {
        let list = self.of(command).lines().skip_while(|line| *line != "Commands:").skip(1);
        let list = list.take_while(|line| !line.is_empty());
        list.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    }

    /// The problem in the words after `brigade`, if any.
    fn command_problem(&mut self, words: &[&str]) -> Option<String> {
        let mut command = Vec::new();
        for word in words.iter().take_while(|word| !word.starts_with('-')) {
            let known = self.commands_of(&command);
            if known.contains(&(*word).to_owned()) {
                command.push((*word).to_owned());
            } else if command.is_empty() || (known.len() > 1 && word.chars().all(|letter| letter.is_ascii_lowercase()))
            {
                return Some(format!("there is no command `brigade {} {word}`", command.join(" ")));
            } else {
                break;
            }
        }
        let help = self.of(&command).to_owned();
        let flags = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
        let mut flags = flags.map(|flag| flag.split('=').next().unwrap_or_default());
        let knows =
            |flag: &str| help.split(|letter: char| letter.is_whitespace() || letter == ',').any(|word| word == flag);
        let unknown = flags.find(|flag| !knows(flag))?;
        Some(format!("`brigade {}` has no {unknown}", command.join(" ")))
    }
}

#[test]
fn commands_named_in_documents_exist() {
    let mut helps = Helps::default();
    let mut complaints = Vec::new();
    let mut checked = 0;
    for document in documents() {
        for (number, command) in commands_in(&text_of(&document)) {
            checked += 1;
            let words: Vec<&str> = command.split_whitespace().collect();
            complaints.extend(helps.command_problem(&words).map(|wrong| format!("{document}:{number}: {wrong}")));
        }
    }
    assert!(checked > 10, "too few commands: {checked}");
    assert_no_complaints("documents: every command and flag that they name exists", &complaints);
}

/// The words after `brigade` in inline code and fenced blocks, with their line numbers.
fn commands_in(text: &str) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut is_block = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            let line = line.trim_start().trim_start_matches("$ ");
            commands.extend(command_of(line).map(|command| (number + 1, command)));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            commands.extend(spans.filter_map(command_of).map(|command| (number + 1, command)));
        }
    }
    commands
}

/// The words of a command after `brigade`, up to `#`, `|` or `&&`.
fn command_of(code: &str) -> Option<String> {
    let words = code.strip_prefix("brigade ").or_else(|| code.strip_prefix("cargo run --locked --release -- "))?;
    let end = words
        .find([';', '"', '\''])
        .into_iter()
        .chain([" #", " |", " && ", " > "].iter().filter_map(|end| words.find(end)));
    let words = &words[..end.min().unwrap_or(words.len())];
    words.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '-').then(|| words.to_owned())
}

#[test]
fn readme_starts_with_two_commands() {
    let readme = text_of("README.md");
    let parts: Vec<&str> = readme.split(TWO_COMMANDS).collect();
    assert_eq!(parts.len(), 3, "README.md has its two commands between two marks {TWO_COMMANDS}");
    let commands: Vec<&str> = parts[1].lines().filter(|line| line.starts_with("cargo ")).collect();
    assert_eq!(commands, ["cargo run --locked --release -- run demo", "cargo test --locked"]);
}

/// Set this variable to write the generated tables into the pages.
const UPDATE_VARIABLE: &str = "UPDATE_DOCS";

#[test]
fn generated_tables_match_the_program() {
    let tables = [
        ("docs/commands.md", "commands", command_table()),
        ("docs/commands.md", "options", option_table()),
        ("docs/commands.md", "exit codes", exit_code_table()),
        ("docs/configuration.md", "settings", setting_tables()),
        ("docs/model-settings.md", "model-settings", model_setting_tables()),
    ];
    let mut complaints = Vec::new();
    for (page, name, table) in tables {
        let text = text_of(page);
        let mark = format!("<!-- {name} -->\n");
        let parts: Vec<&str> = text.split(mark.as_str()).collect();
        assert_eq!(parts.len(), 3, "{page} has the table of {name} between two lines <!-- {name} -->");
        if parts[1] == table {
            continue;
        }
        if std::env::var_os(UPDATE_VARIABLE).is_some() {
            std::fs::write(root().join(page), [parts[0], &table, parts[2]].join(&mark))
                .expect("the page can be written");
        } else {
            let regenerate = format!("{UPDATE_VARIABLE}=1 cargo test --locked --test tidy generated_tables");
            complaints.push(format!("{page}: the table of {name} is out of date. Write it with: {regenerate}"));
        }
    }
    assert_no_complaints("documents: generated tables", &complaints);
}

/// Builds without `--locked` may use unreviewed versions of crates.
#[test]
fn cargo_commands_have_locked_flag() {
    const COMMANDS: &[&str] = &["run", "test", "bench", "build", "install", "check", "clippy", "doc", "fetch"];
    let mut complaints = Vec::new();
    let mut count = 0;
    for file in ["README.md", "CONTRIBUTING.md", ".ci/run"] {
        for (number, line) in text_of(file).lines().enumerate() {
            for words in line.split("cargo ").skip(1).map(|rest| rest.split([' ', '`']).collect::<Vec<_>>()) {
                let is_command = words.first().is_some_and(|word| COMMANDS.contains(word));
                count += usize::from(is_command);
                if is_command && words.get(1) != Some(&"--locked") {
                    complaints.push(format!("{file}:{}: {}", number + 1, line.trim()));
                }
            }
        }
    }
    assert!(count > 10, "too few commands: {count}");
    assert_no_complaints("`--locked` is the first flag of every cargo command", &complaints);
}

#[test]
fn document_commands_are_read_from_code_only() {
    let text =
        "`brigade tasks claim 3 --as me` and brigade no\n```\n$ brigade run demo # it\nbrigade.toml\n```\n`brigade`";
    let commands: Vec<String> = commands_in(text).into_iter().map(|(_, command)| command).collect();
    assert_eq!(commands, ["tasks claim 3 --as me", "run demo"]);
}
