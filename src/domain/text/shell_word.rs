//! Values of others in shell commands.

use super::one_line;

/// Returns a value from a file or from another program as one word of a shell command. A shell runs nothing in it.
///
/// Control characters are escaped first, so that the text is harmless on a terminal. A value that has some then no longer names what it
/// named.
pub fn shell_word(value: &str) -> String {
    let line = one_line(value);
    // Only a NUL cannot be quoted, and it is escaped.
    shlex::try_quote(&line).map_or_else(|_| String::from("''"), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_word_quotes_what_a_shell_would_run() {
        for (value, word) in [
            ("ada", "ada"),
            (".worktrees/a-task-7", ".worktrees/a-task-7"),
            ("a;touch b", "'a;touch b'"),
            ("`brigade tasks rm 1`", "'`brigade tasks rm 1`'"),
            ("$(id)", "'$(id)'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(value), word);
        }
        assert!(!shell_word("a\u{1b}]0;title\u{7}").contains(['\u{1b}', '\u{7}']));
    }
}
