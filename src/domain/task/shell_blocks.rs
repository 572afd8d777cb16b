//! Shell scripts: the fenced blocks of a task's description that a runbook runs, and a script in one line.

use crate::domain::text::code_fence::CodeFence;
use crate::domain::text::{headline, one_line, shorten};

/// The languages of fenced blocks that are run.
pub const SHELLS: [&str; 3] = ["sh", "bash", "shell"];
/// The languages of programs that are not run.
#[rustfmt::skip]
const PROGRAMS: [&str; 20] = [
    "python", "python3", "py", "ruby", "rb", "perl", "php", "node", "js", "javascript", "ts", "typescript",
    "lua", "r", "zsh", "fish", "ksh", "powershell", "pwsh", "bat",
];

/// The languages of the program blocks that a runbook skips. It is empty if the runbook runs no block: then the task fails with
/// its own reason.
pub fn skipped_languages(description: &str) -> Vec<String> {
    let blocks = fenced_blocks(description);
    if !blocks.iter().any(FencedBlock::is_shell) {
        return Vec::new();
    }
    let languages = blocks.into_iter().map(|block| block.language);
    languages.filter(|language| PROGRAMS.contains(&language.to_lowercase().as_str())).collect()
}

/// Returns true if the description has a block that is run.
#[must_use]
pub fn has_shell_block(description: &str) -> bool {
    // Most descriptions have no fence, and this search is faster than parsing.
    (description.contains("```") || description.contains("~~~")) && !shell_blocks(description).is_empty()
}

/// The scripts of the fenced blocks that are run.
pub fn shell_blocks(markdown: &str) -> Vec<String> {
    fenced_blocks(markdown).into_iter().filter(FencedBlock::is_shell).map(|block| block.content).collect()
}

struct FencedBlock {
    language: String,
    content: String,
}

impl FencedBlock {
    fn is_shell(&self) -> bool {
        SHELLS.contains(&self.language.as_str())
    }
}

/// The fenced blocks. A block without a closing fence does not count.
fn fenced_blocks(markdown: &str) -> Vec<FencedBlock> {
    let mut blocks = Vec::new();
    let mut open: Option<(CodeFence, FencedBlock)> = None;
    for line in markdown.lines() {
        let text = line.trim_start();
        match &mut open {
            None => {
                open = CodeFence::parse(text).map(|(fence, info)| {
                    let language = info.trim_start_matches(['`', '~']).trim().split([' ', ',', '{']).next();
                    let language = language.unwrap_or_default().to_owned();
                    (fence, FencedBlock { language, content: String::new() })
                });
            }
            Some((fence, _)) if fence.is_closed_by(text) => {
                blocks.extend(open.take().map(|(_, block)| block));
            }
            Some((_, block)) => {
                block.content.push_str(line);
                block.content.push('\n');
            }
        }
    }
    blocks
}

/// The longest headline, in characters.
const HEADLINE_CHARS_MAX: usize = 200;

/// A script in one line for people: the comment in its first line, or its first command.
pub fn script_headline(script: &str) -> String {
    let script = script.trim();
    if let Some(comment) = script.lines().next().and_then(|line| line.strip_prefix("# ")) {
        return shorten(&one_line(comment), HEADLINE_CHARS_MAX);
    }
    let is_setup =
        |line: &str| line.is_empty() || line.starts_with('#') || line.starts_with("set -") || line.starts_with(". ");
    let commands: Vec<&str> = script.lines().map(str::trim).filter(|line| !is_setup(line)).collect();
    let text = if commands.is_empty() { script } else { &commands.join("\n") };
    headline(text, HEADLINE_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_headline_is_first_comment_or_command() {
        assert_eq!(script_headline("# Count the lines\nwc -l"), "Count the lines");
        assert_eq!(script_headline("set -eu\n\nwc -l\nls"), "wc -l …");
        assert_eq!(script_headline("ls"), "ls");
    }

    #[test]
    fn skipped_program_blocks_are_named() {
        assert_eq!(
            skipped_languages("```sh\na\n```\n```python\nb\n```\n```json\n{}\n```\n~~~Ruby\nc\n~~~"),
            ["python", "Ruby"]
        );
        assert!(
            skipped_languages("```python\nb\n```").is_empty(),
            "a task without shell blocks fails with its own reason"
        );
    }

    #[test]
    fn shell_block_fence_needs_matching_close() {
        assert_eq!(shell_blocks("````sh\necho '```'\n````\n"), ["echo '```'\n"]);
        assert_eq!(shell_blocks("```sh\nnever closed"), Vec::<String>::new());
    }
}
