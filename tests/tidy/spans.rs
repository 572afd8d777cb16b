//! Texts for people: each command of Brigade is a code span, because only there a command is shown as its reader types it.

use std::path::Path;

use brigade::front::cli::commands;

use super::assert_no_complaints;
use super::source::{Source, sources};

/// The sources of texts for people.
const FOLDERS: &[&str] = &[
    "src/agents",
    "src/front/cli",
    "src/config",
    "src/domain",
    "src/launch.rs",
    "src/service",
    "src/git",
    "src/team",
    "src/front/text",
];

/// Files with commands outside of code spans, and the reason.
const EXEMPT: &[(&str, &str)] = &[
    ("src/front/cli/argument_errors.rs", "a table of commands, which are printed as code spans"),
    ("src/front/cli/completions.rs", "shell scripts"),
];

/// The contents of the string literals of the shipped code, with their offsets.
fn literals(source: &Source) -> Vec<(usize, &str)> {
    let quotes: Vec<usize> = source.code.match_indices('"').map(|(at, _)| at).collect();
    quotes.chunks_exact(2).map(|pair| (pair[0] + 1, &source.text[pair[0] + 1..pair[1]])).collect()
}

/// Returns true if the text names a command outside of code spans.
fn has_bare_command(text: &str) -> bool {
    let is_command = |rest: &str| {
        let word = rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        rest.starts_with('{') || commands::root().find_subcommand(word).is_some()
    };
    text.split('`').step_by(2).any(|prose| prose.split("brigade ").skip(1).any(is_command))
}

#[test]
fn commands_in_texts_are_code_spans() {
    let is_checked = |path: &Path| {
        FOLDERS.iter().any(|folder| path.starts_with(folder))
            && EXEMPT.iter().all(|(exempt, _)| path != Path::new(exempt))
    };
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| is_checked(&source.path)) {
        let bare = literals(source).into_iter().filter(|(_, text)| has_bare_command(text));
        complaints.extend(bare.map(|(at, text)| format!("{}: \"{text}\"", source.at(at))));
    }
    assert_no_complaints("texts: write a command as a code span, such as `brigade why 3`", &complaints);
}

#[test]
fn command_outside_of_code_span_is_found() {
    for (text, is_bare) in [
        ("run brigade why 3", true),
        ("`a`, or brigade {noun} show", true),
        ("`brigade why 3` says why", false),
        ("a brigade of tasks", false),
    ] {
        assert_eq!(has_bare_command(text), is_bare, "{text}");
    }
}
