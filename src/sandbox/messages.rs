//! Messages from the guard to the worker: one line each, on the guard's standard error.

use crate::domain::text::one_line;

/// The exit of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// A message of the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardMessage {
    /// The command is ready to start in this process group.
    Group(i32),
    /// The system refuses this level of confinement, for this reason.
    Refused(String),
    /// The command and every process that it started have ended.
    Ended(CommandExit),
    /// The command could not be started, for this reason.
    Failed(String),
}

impl GuardMessage {
    /// Parses a line. A line that no guard writes becomes a failure that quotes it.
    pub fn parse(line: &str) -> Self {
        let line = line.trim_end();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, rest.parse()) {
            ("group", Ok(id)) => Self::Group(id),
            ("exit", Ok(code)) => Self::Ended(CommandExit::Code(code)),
            ("signal", Ok(signal)) => Self::Ended(CommandExit::Signal(signal)),
            ("refused", _) => Self::Refused(rest.to_owned()),
            ("failed", _) => Self::Failed(rest.to_owned()),
            _ => Self::Failed(format!("unexpected message from the guard: `{}`", line.escape_debug())),
        }
    }

    /// The message as a line, with its newline.
    pub fn to_line(&self) -> String {
        match self {
            Self::Group(id) => format!("group {id}\n"),
            Self::Ended(CommandExit::Code(code)) => format!("exit {code}\n"),
            Self::Ended(CommandExit::Signal(signal)) => format!("signal {signal}\n"),
            Self::Refused(reason) => format!("refused {}\n", one_line(reason)),
            Self::Failed(reason) => format!("failed {}\n", one_line(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_message_round_trips() {
        for message in [
            GuardMessage::Group(77),
            GuardMessage::Refused("user namespaces: no".to_owned()),
            GuardMessage::Ended(CommandExit::Code(3)),
            GuardMessage::Ended(CommandExit::Signal(9)),
            GuardMessage::Failed("no such folder".to_owned()),
        ] {
            assert_eq!(GuardMessage::parse(&message.to_line()), message);
        }
        let unknown = GuardMessage::parse("thread panicked");
        assert!(matches!(unknown, GuardMessage::Failed(text) if text.contains("panicked")));
    }
}
