//! What a typed line means, and the table of slash commands. Pure.

use crate::ui::style::{BOLD, DIM, paint};
use crate::ui::text::{indented, pad};

/// The list of commands begins behind so many spaces.
const INDENT: usize = 2;
/// What a command does stands below it where there is less room beside it.
const ABOUT_WIDTH_MIN: usize = 30;

/// A slash command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlashCommand {
    /// Its name, without the slash.
    pub name: &'static str,
    /// What goes behind it.
    pub arguments: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Whose it is.
    does: Does,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// What `brigade` does in any terminal.
    Brigade,
    /// Something only a session has.
    Own(Own),
}

/// Commands that only a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// Shows the commands.
    Help,
    /// Has a member's context compacted.
    Compact,
    /// Shows teammates' words as they come, or no more.
    Watch,
    /// Ends the session, and the team.
    Quit,
}

const fn brigade(name: &'static str, arguments: &'static str, about: &'static str) -> SlashCommand {
    SlashCommand { name, arguments, about, does: Does::Brigade }
}

const fn own(name: &'static str, arguments: &'static str, own: Own, about: &'static str) -> SlashCommand {
    SlashCommand { name, arguments, about, does: Does::Own(own) }
}

/// All slash commands.
#[rustfmt::skip]
pub const COMMANDS: &[SlashCommand] = &[
    brigade("tasks",  "[show|add|update|retry|rm …]", "the board: status, owner, blockers; with a word behind it, work on it"),
    brigade("team",   "",                 "who does what since when, and what they wait for"),
    brigade("why",    "ID",               "why a task is not being worked on"),
    brigade("inbox",  "[NAME]",           "mail that waits, yours or another's"),
    brigade("send",   "NAME TEXT",        "write to somebody; @NAME TEXT is shorter"),
    brigade("plan",   "[show|approve|reject] [ID]", "plans that wait for an answer; --feedback TEXT says what to change"),
    brigade("review", "[show|approve|reject] [ID]", "work that waits to be approved before its task is completed"),
    brigade("state",  "[MODE]",           "what the team is to do: continuous, run_once, run_cleanup, pause"),
    brigade("cost",   "",                 "tokens used so far, what they cost, what is left of the budget"),
    brigade("log",    "[-n COUNT]",       "what happened, from the event log"),
    brigade("replay", "[--at EVENT|TIME]", "board and team as they were at an event"),
    brigade("stop",   "NAME [--now]",     "stop a teammate"),
    brigade("config", "show",             "every setting and where it comes from"),
    brigade("doctor", "",                 "what this machine offers, and what is amiss"),
    own("compact", "[NAME]", Own::Compact, "replace the context of the lead, or a teammate, by a summary"),
    own("watch",   "[NAME]", Own::Watch,   "show a teammate's words as they come; again: no more"),
    own("help",    "",       Own::Help,    "this list"),
    own("quit",    "",       Own::Quit,    "stop the team and leave; twice: at once"),
];

/// A typed line, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Nothing was typed.
    Nothing,
    /// A message to these.
    To {
        /// Whom, as they were written.
        names: Vec<String>,
        /// What.
        text: String,
    },
    /// A message to the lead.
    ToLead(String),
    /// A command of `brigade`.
    Brigade {
        /// Which.
        name: &'static str,
        /// What stands behind it.
        arguments: Vec<String>,
    },
    /// A command of the session.
    Own {
        /// Which.
        own: Own,
        /// What stands behind it.
        arguments: Vec<String>,
    },
}

impl Line {
    /// Understands a line.
    ///
    /// # Errors
    /// A sentence for the person who typed it.
    pub fn parse(typed: &str) -> Result<Self, String> {
        let typed = typed.trim();
        if typed.is_empty() {
            return Ok(Self::Nothing);
        }
        if typed.starts_with('@') {
            return to(typed);
        }
        match typed.strip_prefix('/') {
            Some(command) => slash(command),
            None => Ok(Self::ToLead(typed.to_owned())),
        }
    }
}

/// `@alice @bob text`.
fn to(typed: &str) -> Result<Line, String> {
    let mut names = Vec::new();
    let mut rest = typed;
    while let Some(named) = rest.strip_prefix('@') {
        let (name, behind) = named.split_once(char::is_whitespace).unwrap_or((named, ""));
        let name = name.trim_end_matches([',', ':']);
        if name.is_empty() {
            return Err("Whom? @NAME TEXT writes to a teammate, @all TEXT to all of them".to_owned());
        }
        names.push(name.to_owned());
        rest = behind.trim_start();
    }
    if rest.is_empty() {
        return Err(format!("What? @{} TEXT", names.join(" @")));
    }
    Ok(Line::To { names, text: rest.to_owned() })
}

fn slash(command: &str) -> Result<Line, String> {
    let (name, behind) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let Some(found) = COMMANDS.iter().find(|command| command.name == name) else {
        let nearest = crate::config::problem::nearest(name, COMMANDS.iter().map(|command| command.name));
        let meant = nearest.map_or_else(String::new, |nearest| format!(" Did you mean /{nearest}?"));
        return Err(format!("There is no command /{name}.{meant} /help shows all."));
    };
    let arguments = shlex::split(behind).ok_or_else(|| format!("/{name}: a quotation mark is not closed"))?;
    Ok(match found.does {
        Does::Own(own) => Line::Own { own, arguments },
        Does::Brigade => Line::Brigade { name: found.name, arguments },
    })
}

/// A text with the commands of `brigade` it names as they are typed in a session.
#[must_use]
pub fn as_typed(text: &str) -> String {
    let mut parts = text.split("brigade ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let word = part.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        let is_known = COMMANDS.iter().any(|command| command.name == word && command.does == Does::Brigade);
        match part.strip_prefix("send ") {
            Some(behind) => out.extend(["@", behind]),
            None if is_known => out.extend(["/", part]),
            None => out.extend(["brigade ", part]),
        }
    }
    out
}

/// The list of commands, for a screen of so many columns.
#[must_use]
pub fn help(columns: usize) -> String {
    let commands = COMMANDS
        .iter()
        .map(|command| (format!("/{} {}", command.name, command.arguments).trim_end().to_owned(), command.about));
    let others = [("@NAME TEXT", "write to a teammate; @all TEXT to all of them"), ("TEXT", "goes to the lead")];
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
    let more =
        indented("Behind a command --help says more; Tab completes, Up brings back what you typed.", columns, INDENT);
    rows.into_iter().map(row).chain([paint(DIM, more.trim_end()) + "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn lines_are_understood() {
        for (typed, line) in [
            ("  ", Line::Nothing),
            ("hello there", Line::ToLead("hello there".into())),
            ("@alice look at #3", Line::To { names: words(&["alice"]), text: "look at #3".into() }),
            ("@alice, @bob: both", Line::To { names: words(&["alice", "bob"]), text: "both".into() }),
            ("/tasks show 3", Line::Brigade { name: "tasks", arguments: words(&["show", "3"]) }),
            (
                "/tasks add 'a b' --after 2",
                Line::Brigade { name: "tasks", arguments: words(&["add", "a b", "--after", "2"]) },
            ),
            ("/quit", Line::Own { own: Own::Quit, arguments: Vec::new() }),
            ("/compact ada", Line::Own { own: Own::Compact, arguments: words(&["ada"]) }),
        ] {
            assert_eq!(Line::parse(typed), Ok(line), "{typed}");
        }
    }

    #[test]
    fn the_list_fits_its_columns() {
        for columns in [40, 60, 100, 200] {
            let list = anstream::adapter::strip_str(&help(columns)).to_string();
            assert!(list.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{list}");
            assert!(list.contains("/compact [NAME]"));
        }
    }

    #[test]
    fn hints_name_commands_as_they_are_typed() {
        for (hint, typed) in [
            ("brigade plan approve 9b, or brigade send ada TEXT", "/plan approve 9b, or @ada TEXT"),
            ("`brigade why ID` says why", "`/why ID` says why"),
            ("brigade up starts it", "brigade up starts it"),
        ] {
            assert_eq!(as_typed(hint), typed);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (typed, said) in [
            ("@", "Whom?"),
            ("@alice", "What?"),
            ("/taks", "Did you mean /tasks?"),
            ("/xyzzy", "no command /xyzzy"),
            ("/tasks add 'a", "not closed"),
        ] {
            let error = Line::parse(typed).unwrap_err();
            assert!(error.contains(said), "{typed}: {error}");
        }
    }

    #[test]
    fn the_commands_of_brigade_are_commands_of_brigade() {
        use clap::CommandFactory;
        let brigade = crate::cli::Cli::command();
        for command in COMMANDS.iter().filter(|command| command.does == Does::Brigade) {
            assert!(brigade.find_subcommand(command.name).is_some(), "{}", command.name);
        }
    }
}
