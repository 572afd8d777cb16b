//! Commands of Brigade in texts: one module of the front writes them as their reader types them. Elsewhere they are typed data.

use brigade::front::cli::commands::root;

use super::assert_no_complaints;
use super::source::{Source, sources};

/// The module that writes commands.
const WRITER: &str = "src/front/text/commands.rs";

/// Files whose texts contain commands as text, and the reason.
const PERMITTED: &[(&str, &str)] = &[("src/front/cli/init/starter.rs", "comments in the config file that it writes")];

/// The contents of the string literals of the shipped code, with their offsets.
fn literals(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let quotes: Vec<usize> = source.code.match_indices('"').map(|(at, _)| at).collect();
    let pairs: Vec<(usize, usize)> = quotes.chunks_exact(2).map(|pair| (pair[0] + 1, pair[1])).collect();
    pairs.into_iter().map(|(start, end)| (start, &source.text[start..end]))
}

/// Returns true if the text contains a command of Brigade.
fn has_command(text: &str) -> bool {
    let is_command = |rest: &str| {
        let word = rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        rest.starts_with('{') || root().find_subcommand(word).is_some()
    };
    text.split("brigade ").skip(1).any(is_command)
}

#[test]
fn commands_are_written_in_one_module() {
    let mut complaints = Vec::new();
    for source in sources() {
        let path = source.path.to_str().expect("a path");
        if path == WRITER || PERMITTED.iter().any(|(permitted, _)| *permitted == path) {
            continue;
        }
        let found = literals(source).filter(|(_, text)| has_command(text));
        complaints.extend(found.map(|(at, text)| format!("{}: \"{text}\"", source.at(at))));
    }
    let rule = "commands: pass a question, an order or a launch, and let src/front/text/commands.rs write it";
    assert_no_complaints(rule, &complaints);
}

#[test]
fn permitted_commands_are_in_use() {
    let is_used = |path: &str| {
        let mut of_path = sources().iter().filter(|source| source.path.to_str() == Some(path));
        of_path.any(|source| literals(source).any(|(_, text)| has_command(text)))
    };
    let unused = PERMITTED.iter().filter(|(path, _)| !is_used(path)).map(|(path, _)| (*path).to_owned());
    assert_no_complaints("commands: a line of PERMITTED is not used; remove it", &unused.collect::<Vec<_>>());
}

#[test]
fn command_in_text_is_found() {
    for (text, is_found) in [
        ("run brigade why 3", true),
        ("`a`, or `brigade {noun} show`", true),
        ("`brigade why 3` says why", true),
        ("a brigade of tasks", false),
    ] {
        assert_eq!(has_command(text), is_found, "{text}");
    }
}
