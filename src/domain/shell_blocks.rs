//! Shell scripts: the fenced blocks of a task's description that a runbook runs, and a script in one line.

use super::code_fence::CodeFence;
use super::output::shortened;

/// The languages of fenced blocks that are run.
pub const SHELLS: [&str; 3] = ["sh", "bash", "shell"];
/// The languages of programs that are not run.
#[rustfmt::skip]
const PROGRAMS: [&str; 20] = [
    "python", "python3", "py", "ruby", "rb", "perl", "php", "node", "js", "javascript", "ts", "typescript",
    "lua", "r", "zsh", "fish", "ksh", "powershell", "pwsh", "bat",
];

/// The languages of the program blocks that are not run, in a task with blocks that are run.
pub fn blocks_not_run(description: &str) -> Vec<String> {
    let blocks = fenced_blocks(description);
    let has_shell = blocks.iter().any(|(language, _)| SHELLS.contains(&language.as_str()));
    let languages = blocks.into_iter().map(|(language, _)| language);
    languages.filter(|language| has_shell && PROGRAMS.contains(&language.to_lowercase().as_str())).collect()
}

/// Returns true if the description has a block that is run.
#[must_use]
pub fn has_shell_block(description: &str) -> bool {
    // Few descriptions without a block have a fence.
    (description.contains("```") || description.contains("~~~")) && !shell_blocks(description).is_empty()
}

/// The scripts of the fenced blocks that are run.
pub fn shell_blocks(markdown: &str) -> Vec<String> {
    let blocks = fenced_blocks(markdown).into_iter();
    blocks.filter(|(language, _)| SHELLS.contains(&language.as_str())).map(|(_, script)| script).collect()
}

/// The fenced blocks as language and content. The closing fence has at least as many characters as the opening one.
fn fenced_blocks(markdown: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(CodeFence, String, String)> = None;
    for line in markdown.lines() {
        let text = line.trim_start();
        match &mut open {
            None => {
                open = CodeFence::parse(text).map(|(fence, info)| {
                    let language = info.trim_start_matches(['`', '~']).trim().split([' ', ',', '{']).next();
                    (fence, language.unwrap_or_default().to_owned(), String::new())
                });
            }
            Some((fence, language, script)) if fence.is_closed_by(text) => {
                blocks.push((std::mem::take(language), std::mem::take(script)));
                open = None;
            }
            Some((_, _, script)) => {
                script.push_str(line);
                script.push('\n');
            }
        }
    }
    blocks
}

/// The longest headline, in characters.
const HEADLINE_CHARS_MAX: usize = 200;

/// A script in one line for people: the comment in its first line, or its first command.
pub fn headline(script: &str) -> String {
    let is_setup =
        |line: &str| line.is_empty() || line.starts_with('#') || line.starts_with("set -") || line.starts_with(". ");
    if let Some(comment) = script.trim_start().lines().next().and_then(|line| line.strip_prefix("# ")) {
        return shortened(comment, HEADLINE_CHARS_MAX);
    }
    let mut lines = script.lines().map(str::trim).filter(|line| !is_setup(line));
    let first = lines.next().unwrap_or_else(|| script.trim());
    let cut = shortened(first, HEADLINE_CHARS_MAX);
    if lines.next().is_some() && !cut.ends_with('…') { cut + "…" } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_headline_is_first_comment_or_command() {
        assert_eq!(headline("# Count the lines\nwc -l"), "Count the lines");
        assert_eq!(headline("set -eu\n\nwc -l\nls"), "wc -l…");
        assert_eq!(headline("ls"), "ls");
    }

    #[test]
    fn other_programs_blocks_are_named() {
        assert_eq!(
            blocks_not_run("```sh\na\n```\n```python\nb\n```\n```json\n{}\n```\n~~~Ruby\nc\n~~~"),
            ["python", "Ruby"]
        );
        assert!(
            blocks_not_run("```python\nb\n```").is_empty(),
            "a task without shell blocks fails with its own reason"
        );
    }

    #[test]
    fn shell_block_fence_needs_matching_close() {
        assert_eq!(shell_blocks("````sh\necho '```'\n````\n"), ["echo '```'\n"]);
        assert_eq!(shell_blocks("```sh\nnever closed"), Vec::<String>::new());
    }
}
