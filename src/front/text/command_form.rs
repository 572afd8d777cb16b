//! The commands of Brigade in texts for people. A text has each command in a Markdown code span, such as `brigade why 3`.

pub use crate::domain::text::shell_word;

/// The flags that name a workspace, as a person gave them, and the commands that take them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GlobalFlags {
    /// The flags; empty where none are needed.
    pub flags: String,
    /// The names of the commands that work on a workspace.
    pub commands: &'static [&'static str],
}

/// The place where the reader of a text types its commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandForm {
    /// A shell: a command gets the flags that name the workspace.
    Shell(GlobalFlags),
    /// The line of an interactive session, which has the commands with these names: `/why 3`, and `@ada TEXT` for `brigade send ada TEXT`.
    Repl(&'static [&'static str]),
}

/// The program's name at the start of a command.
const PROGRAM: &str = "brigade ";

impl CommandForm {
    /// Returns the text with its commands in this form. Everything outside of their code spans stays, and so do commands that have no
    /// other form. Rendering a text twice is the same as rendering it once.
    ///
    /// A text may quote a model or another program. A command in a code span of the quotation changes its form too, which is
    /// harmless: it does the same. A backtick without a partner in the quotation hides no command after it.
    pub fn render(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, command, after)) = split_at_command(rest) {
            out.extend([before, &self.typed(command), "`"]);
            rest = after;
        }
        out + rest
    }

    /// Returns the command as it is typed.
    fn typed(&self, command: &str) -> String {
        let words = command.strip_prefix(PROGRAM).unwrap_or(command);
        let name = words.split(' ').next().unwrap_or_default();
        match self {
            Self::Shell(global) if !global.flags.is_empty() && global.commands.contains(&name) => {
                format!("{PROGRAM}{} {words}", global.flags)
            }
            Self::Repl(commands) if commands.contains(&name) => match words.strip_prefix("send ") {
                Some(message) if !message.starts_with('-') => format!("@{message}"),
                _ => format!("/{words}"),
            },
            Self::Shell(_) | Self::Repl(_) => command.to_owned(),
        }
    }
}

/// Splits the text at the first command in a code span. The first part has its opening backtick, the last part
/// does not have the closing one. A code span ends in its line.
fn split_at_command(text: &str) -> Option<(&str, &str, &str)> {
    let mut open = None;
    for (at, mark) in text.match_indices(['`', '\n']) {
        let (before, after) = (&text[..at], &text[at + 1..]);
        // In `a `brigade up` the first backtick has no partner.
        let opens_command = after.starts_with(PROGRAM) && before.ends_with([' ', '(']);
        match open {
            _ if mark == "\n" => open = None,
            Some(start) if !opens_command => {
                if text[start..at].starts_with(PROGRAM) {
                    return Some((&text[..start], &text[start..at], after));
                }
                open = None;
            }
            _ => open = Some(at + 1),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shell() -> CommandForm {
        CommandForm::Shell(GlobalFlags { flags: "--workspace w".to_owned(), commands: &["tasks", "up", "why"] })
    }

    const REPL: CommandForm = CommandForm::Repl(&["plan", "send", "why"]);

    #[test]
    fn shell_command_gets_workspace_flags() {
        let text = "`brigade tasks retry ID`, or `brigade up`; `brigade init`; `brigade`; `rm a`";
        let with =
            "`brigade --workspace w tasks retry ID`, or `brigade --workspace w up`; `brigade init`; `brigade`; `rm a`";
        assert_eq!(shell().render(text), with);
        assert_eq!(CommandForm::Shell(GlobalFlags::default()).render(text), text);
    }

    #[test]
    fn repl_command_gets_slash_or_at() {
        for (text, typed) in [
            ("`brigade plan approve 9b`, or `brigade send ada TEXT`", "`/plan approve 9b`, or `@ada TEXT`"),
            ("`brigade why ID` says why", "`/why ID` says why"),
            ("`brigade send`, `brigade send --help`", "`/send`, `/send --help`"),
            ("`brigade up` starts it", "`brigade up` starts it"),
        ] {
            assert_eq!(REPL.render(text), typed);
        }
    }

    #[test]
    fn prose_and_open_span_stay_unchanged() {
        for text in ["brigade why 3, a brigade of tasks", "`brigade why 3", "`brigade why\n3`", "(brigade why `3`)"] {
            assert_eq!(shell().render(text), text);
            assert_eq!(REPL.render(text), text);
        }
        for (text, typed) in [
            ("an open `quotation\n`brigade why 3`", "an open `quotation\n`/why 3`"),
            ("an open `quotation (`brigade why 3` says why)", "an open `quotation (`/why 3` says why)"),
            ("`quoted`brigade why `3`", "`quoted`brigade why `3`"),
        ] {
            assert_eq!(REPL.render(text), typed);
        }
    }

    proptest! {
        #[test]
        fn text_outside_of_command_spans_is_unchanged(
            parts in prop::collection::vec("([^`]{0,9}(brigade why 3)?(`[a-z]{1,6}`)?){0,3}", 1..6),
        ) {
            for (form, typed) in [(shell(), "`brigade --workspace w why 3`"), (REPL, "`/why 3`")] {
                let rendered = form.render(&parts.join("`brigade why 3`"));
                prop_assert_eq!(&rendered, &parts.join(typed));
                prop_assert_eq!(form.render(&rendered), rendered);
            }
        }

        #[test]
        fn text_without_command_span_is_unchanged(text in "(.|\n|`|brigade why 3| ){0,20}") {
            let text = text.replace("`brigade ", "");
            prop_assert_eq!(shell().render(&text), text.as_str());
            prop_assert_eq!(REPL.render(&text), text.as_str());
        }
    }
}
