//! The meaning of a typed line, and the interactive session's slash commands. Pure.

use std::sync::LazyLock;

use clap::Command;

use crate::domain::text::suggestion::nearest;
use crate::front::cli::commands::{about, arguments, root, visible_subcommands};
use crate::front::cli::error::{CliError, CliResult};
use crate::front::text::commands::is_shared;
use crate::front::text::lines::{indented, pad};
use crate::front::text::style::{BOLD, DIM, paint};

/// The indentation of the list of commands, in columns.
const INDENT: usize = 2;
/// The least width of a description beside its command, in columns. With less room, the description is below the command.
const ABOUT_WIDTH_MIN: usize = 30;

/// A slash command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlashCommand {
    /// The name, without the slash.
    pub name: &'static str,
    /// The words that follow the name.
    pub arguments: String,
    /// The description, in one line.
    pub about: String,
    target: CommandTarget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandTarget {
    /// A command that works in any terminal.
    Brigade,
    /// A command that only an interactive session has.
    Session(SessionCommand),
}

/// The commands that only an interactive session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionCommand {
    /// Lists the commands.
    Help,
    /// Compacts the context of a member.
    Compact,
    /// Starts or stops showing a teammate's output as it is written.
    Watch,
    /// Stops the team and the interactive session.
    Quit,
}

/// The commands that only an interactive session has. All others come from clap.
const SESSION_COMMANDS: [(&str, &str, SessionCommand, &str); 4] = [
    ("compact", "[NAME]", SessionCommand::Compact, "Replace the context of the lead, or a teammate, by a summary"),
    ("watch", "[NAME]", SessionCommand::Watch, "Show a teammate's output as it is written; again: stop that"),
    ("help", "", SessionCommand::Help, "Show this list; `help` and `?` too"),
    ("quit", "", SessionCommand::Quit, "Stop the team and leave; `q`, `exit` and Ctrl-D too"),
];

/// All slash commands.
pub fn commands() -> &'static [SlashCommand] {
    static COMMANDS: LazyLock<Vec<SlashCommand>> = LazyLock::new(|| {
        let shared = visible_subcommands(root()).filter(|command| is_shared(command.get_name()));
        let shared = shared.map(|command| SlashCommand {
            name: command.get_name(),
            arguments: arguments(command),
            about: about(command),
            target: CommandTarget::Brigade,
        });
        let session = SESSION_COMMANDS.map(|(name, arguments, command, about)| SlashCommand {
            name,
            arguments: arguments.to_owned(),
            about: about.to_owned(),
            target: CommandTarget::Session(command),
        });
        shared.chain(session).collect()
    });
    &COMMANDS
}

/// Whole lines that mean /quit. `/stop NAME` is another command: it stops one teammate.
const QUIT_WORDS: [&str; 8] = ["q", "quit", "exit", "stop", ":q", "/q", "/exit", "/stop"];

/// Whole lines that mean /help.
const HELP_WORDS: [&str; 3] = ["help", "?", "/?"];

/// A parsed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// An empty line.
    Nothing,
    /// A message to members.
    To {
        /// The recipients, as typed.
        names: Vec<String>,
        /// The text.
        text: String,
    },
    /// A message to the lead.
    ToLead(String),
    /// A command of `brigade`.
    Brigade {
        /// The command.
        name: &'static str,
        /// The words after the command.
        arguments: Vec<String>,
    },
    /// A command of the interactive session.
    Session {
        /// The command.
        command: SessionCommand,
        /// The words after the command.
        arguments: Vec<String>,
    },
}

impl Input {
    /// Parses a line.
    ///
    /// # Errors
    /// The command is unknown, or a name, a text or a quotation mark is missing.
    pub fn parse(typed: &str) -> CliResult<Self> {
        let typed = typed.trim();
        if typed.is_empty() {
            return Ok(Self::Nothing);
        }
        if typed.starts_with('@') {
            return parse_message(typed);
        }
        if QUIT_WORDS.contains(&typed) {
            return Ok(Self::Session { command: SessionCommand::Quit, arguments: Vec::new() });
        }
        if HELP_WORDS.contains(&typed) {
            return Ok(Self::Session { command: SessionCommand::Help, arguments: Vec::new() });
        }
        match typed.strip_prefix('/') {
            Some(command) => parse_slash_command(command),
            None => Ok(Self::ToLead(typed.to_owned())),
        }
    }
}

/// Parses a message to members: `@alice @bob text`.
fn parse_message(typed: &str) -> CliResult<Input> {
    let mut names = Vec::new();
    let mut text = typed;
    while let Some(named) = text.strip_prefix('@') {
        let (name, rest) = named.split_once(char::is_whitespace).unwrap_or((named, ""));
        let name = name.trim_end_matches([',', ':']);
        if name.is_empty() {
            let hint = "`@NAME TEXT` writes to a teammate, `@all TEXT` to all";
            return Err(CliError::usage("cannot send the message: a name is missing").hint(hint));
        }
        names.push(name.to_owned());
        text = rest.trim_start();
    }
    if text.is_empty() {
        let hint = format!("`@{} TEXT`", names.join(" @"));
        return Err(CliError::usage("cannot send the message: a text is missing").hint(hint));
    }
    Ok(Input::To { names, text: text.to_owned() })
}

fn parse_slash_command(command: &str) -> CliResult<Input> {
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let shared = root().find_subcommand(name).map(Command::get_name);
    let Some(found) = commands().iter().find(|command| command.name == shared.unwrap_or(name)) else {
        let nearest = nearest(name, commands().iter().map(|command| command.name));
        let hint = match nearest {
            Some(nearest) => format!("did you mean `/{nearest}`?"),
            None => "`/help` lists the commands".to_owned(),
        };
        return Err(CliError::usage(format!("unknown command `/{name}`")).hint(hint));
    };
    let arguments = shlex::split(rest)
        .ok_or_else(|| CliError::usage(format!("cannot run `/{name}`: a quotation mark is not closed")))?;
    Ok(match found.target {
        CommandTarget::Session(command) => Input::Session { command, arguments },
        CommandTarget::Brigade => Input::Brigade { name: found.name, arguments },
    })
}

/// The list of commands, for this width.
pub fn help(columns: usize) -> String {
    let commands = commands().iter().map(|command| {
        (format!("/{} {}", command.name, command.arguments).trim_end().to_owned(), command.about.as_str())
    });
    let others = [("@NAME TEXT", "Write to a teammate; @all TEXT writes to all"), ("TEXT", "Write to the lead")];
    let rows: Vec<(String, &str)> = commands.chain(others.map(|(what, about)| (what.to_owned(), about))).collect();
    let width = rows.iter().map(|(shown, _)| shown.chars().count()).max().unwrap_or(0);
    let is_narrow = columns < width + ABOUT_WIDTH_MIN;
    let margin = if is_narrow { 2 * INDENT } else { width + 2 * INDENT };
    let row = |(shown, about): (String, &str)| {
        let about = indented(about, columns, margin);
        let shown = paint(BOLD, &if is_narrow { shown } else { pad(&shown, width) });
        let between = if is_narrow { "\n".to_owned() + &about } else { "  ".to_owned() + about.trim_start() };
        format!("{}{shown}{between}", " ".repeat(INDENT))
    };
    let more = indented("Add --help to a command for more. Tab completes, Up recalls what you typed.", columns, INDENT);
    rows.into_iter().map(row).chain([paint(DIM, more.trim_end()) + "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn session_line_parses_to_message_or_command() {
        for (typed, line) in [
            ("  ", Input::Nothing),
            ("hello there", Input::ToLead("hello there".into())),
            ("@alice look at #3", Input::To { names: words(&["alice"]), text: "look at #3".into() }),
            ("@alice, @bob: both", Input::To { names: words(&["alice", "bob"]), text: "both".into() }),
            ("/tasks show 3", Input::Brigade { name: "tasks", arguments: words(&["show", "3"]) }),
            (
                "/tasks add 'a b' --after 2",
                Input::Brigade { name: "tasks", arguments: words(&["add", "a b", "--after", "2"]) },
            ),
            ("/permissions", Input::Brigade { name: "permission", arguments: Vec::new() }),
            ("/quit", Input::Session { command: SessionCommand::Quit, arguments: Vec::new() }),
            ("exit ", Input::Session { command: SessionCommand::Quit, arguments: Vec::new() }),
            ("/stop", Input::Session { command: SessionCommand::Quit, arguments: Vec::new() }),
            ("?", Input::Session { command: SessionCommand::Help, arguments: Vec::new() }),
            ("help me", Input::ToLead("help me".into())),
            ("/stop ada", Input::Brigade { name: "stop", arguments: words(&["ada"]) }),
            ("stop ada", Input::ToLead("stop ada".into())),
            ("/compact ada", Input::Session { command: SessionCommand::Compact, arguments: words(&["ada"]) }),
        ] {
            assert_eq!(Input::parse(typed), Ok(line), "{typed}");
        }
    }

    #[test]
    fn session_help_fits_terminal_width() {
        for columns in [40, 60, 100, 200] {
            let list = anstream::adapter::strip_str(&help(columns)).to_string();
            assert!(list.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{list}");
            assert!(list.contains("/compact [NAME]"));
        }
    }

    #[test]
    fn invalid_session_line_error_names_problem() {
        for (typed, said) in [
            ("@", "a name is missing"),
            ("@alice", "a text is missing"),
            ("/taks", "did you mean `/tasks`?"),
            ("/xyzzy", "unknown command `/xyzzy`"),
            ("/tasks add 'a", "not closed"),
        ] {
            let error = Input::parse(typed).unwrap_err();
            let error = format!("{} {}", error.message, error.hint.unwrap_or_default());
            assert!(error.contains(said), "{typed}: {error}");
        }
    }

    #[test]
    fn session_offers_every_command_but_a_few() {
        for name in ["tasks", "config", "review", "cost", "replay", "quit"] {
            assert!(commands().iter().any(|command| command.name == name), "{name}");
        }
        assert!(
            !commands()
                .iter()
                .any(|command| ["init", "up", "run", "clean", "completions", "complete"].contains(&command.name))
        );
    }
}
