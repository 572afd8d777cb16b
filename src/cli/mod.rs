//! The command line: what was typed, checked, done, printed. One command a file; its doc comment is its help.
//!
//! Only this layer touches the terminal and the environment. What `up` and `run` launch is handed in by `main`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub mod approvals;
pub mod arguments;
pub mod asks;
pub mod clean;
pub mod completions;
pub mod config;
pub mod context;
pub mod cost;
pub mod doctor;
pub mod error;
pub mod exit;
mod first_run;
pub mod headless;
pub mod inbox;
pub mod init;
pub mod launch;
pub mod log;
pub mod output;
pub mod replay;
pub mod run;
pub mod running;
pub mod runs;
pub mod send;
pub mod session;
pub mod signals;
pub mod state;
pub mod stop;
pub mod tasks;
pub mod team;
pub mod traces;
pub mod up;
pub mod waiting;
pub mod why;

use crate::config::problem::nearest;
use crate::platform::threads;
use crate::ui::text::harmless;
use context::Context;
use error::{CliError, CliResult};
use exit::Exit;
use launch::Launcher;
use output::{Answer, Color, Output};

/// Launch a named team of LLM agents from one config file, and see and steer what it does.
///
/// The teams are in brigade.toml; their tasks are plain files in .tasks/, which people, scripts and other agents work on
/// by the same rules. `brigade init` begins; `brigade up` launches.
#[derive(Debug, Parser)]
#[command(name = "brigade", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done; 1 refused, or tasks failed or are left blocked; 2 usage or config; \
    3 budget spent; 4 another team holds the workspace; 130 interrupted.")]
pub struct Cli {
    /// The flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that go with every command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "With every command")]
pub struct Global {
    /// The config [default: the nearest brigade.toml upwards]
    #[arg(long, global = true, value_name = "FILE", env = "BRIGADE_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// The folder the team works in [default: the config's]
    #[arg(long, global = true, value_name = "DIR", env = "BRIGADE_WORKSPACE", hide_env_values = true)]
    pub workspace: Option<PathBuf>,
    /// Answer in JSON, for programs
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t, hide_possible_values = true)]
    pub color: Color,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "the doc comment of each command's arguments is its help")]
pub enum Command {
    Init(init::Init),
    Up(up::Up),
    Run(run::Run),
    Stop(stop::Stop),
    #[command(alias = "task")]
    Tasks(Box<tasks::Tasks>),
    Team(team::Team),
    Inbox(inbox::Inbox),
    Send(send::Send),
    Plan(approvals::Plan),
    Review(approvals::Review),
    Why(why::Why),
    State(state::State),
    Cost(cost::Cost),
    Log(log::Log),
    Replay(replay::Replay),
    Doctor(doctor::Doctor),
    Config(config::ConfigCommand),
    Clean(clean::Clean),
    Completions(completions::Completions),
}

/// Words new users try, and what does that here.
const TIPS: [(&str, &str); 26] = [
    ("start", "brigade up"),
    ("launch", "brigade up"),
    ("serve", "brigade up"),
    ("exec", "brigade run TEAM GOAL"),
    ("status", "brigade team, brigade tasks"),
    ("ps", "brigade team"),
    ("list", "brigade tasks"),
    ("ls", "brigade tasks"),
    ("board", "brigade tasks"),
    ("usage", "brigade cost"),
    ("tokens", "brigade cost"),
    ("budget", "brigade cost"),
    ("logs", "brigade log"),
    ("tail", "brigade log --follow"),
    ("kill", "brigade stop --now"),
    ("down", "brigade stop"),
    ("pause", "brigade state pause"),
    ("resume", "brigade state continuous"),
    ("mail", "brigade inbox NAME, brigade send NAME TEXT"),
    ("add", "brigade tasks add SUBJECT"),
    ("claim", "brigade tasks claim --as NAME"),
    ("import", "brigade tasks import FILE"),
    ("check", "brigade doctor"),
    ("approve", "brigade review approve ID, brigade plan approve ID"),
    ("reject", "brigade review reject ID, brigade plan reject ID"),
    ("version", "brigade --version"),
];

/// Does what `arguments` say, prints what comes of it, and says how the process ends. `launcher` launches teams.
pub fn run(arguments: impl IntoIterator<Item = OsString>, launcher: Launcher) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let early = Early::of(&arguments);
    match threads::with_own_stack(|| obey(&arguments, &early, launcher)) {
        Ok(exit) => exit,
        Err(error) => Output::new(early.json, early.color).fail(&CliError::not_started(&error)),
    }
}

fn obey(arguments: &[OsString], early: &Early, launcher: Launcher) -> Exit {
    let command = Cli::command().color(early.color.for_clap());
    let parsed = command.try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return early.explain(error),
    };
    let output = Output::new(cli.global.json, cli.global.color);
    let outcome = Context::new(cli.global, output).and_then(|context| cli.command.act_with_hints(&context, launcher));
    match outcome {
        Ok(answer) => output.deliver(&answer),
        Err(error) => output.fail(&error),
    }
}

impl Command {
    /// Acts; what is hinted at names the workspace as it was named.
    fn act_with_hints(self, context: &Context, launcher: Launcher) -> CliResult<Answer> {
        let complete = |text: String| context.hint(&text);
        match self.act(context, launcher) {
            Ok(answer) => Ok(Answer { notes: answer.notes.into_iter().map(complete).collect(), ..answer }),
            Err(error) => Err(CliError { hint: error.hint.map(complete), ..error }),
        }
    }

    fn act(self, context: &Context, launcher: Launcher) -> CliResult<Answer> {
        match self {
            Self::Init(command) => command.run(context),
            Self::Up(command) => command.run(context, launcher),
            Self::Run(command) => command.run(context, launcher),
            Self::Config(command) => command.run(context),
            Self::Completions(command) => command.run(context),
            Self::Stop(command) => wait_for(command.run(context)),
            Self::Tasks(command) => wait_for(command.run(context)),
            Self::Team(command) => wait_for(command.run(context)),
            Self::Inbox(command) => wait_for(command.run(context)),
            Self::Send(command) => wait_for(command.run(context)),
            Self::Plan(command) => wait_for(command.run(context)),
            Self::Review(command) => wait_for(command.run(context)),
            Self::Why(command) => wait_for(command.run(context)),
            Self::State(command) => wait_for(command.run(context)),
            Self::Cost(command) => wait_for(command.run(context)),
            Self::Log(command) => wait_for(command.run(context)),
            Self::Replay(command) => wait_for(command.run(context)),
            Self::Doctor(command) => wait_for(command.run(context)),
            Self::Clean(command) => wait_for(command.run(context)),
        }
    }
}

/// Does what these words say, in a session: what it has to say is returned, coloured, not printed.
#[must_use]
pub fn answer(context: &Context, words: Vec<String>) -> String {
    let is_harmful = words.iter().any(|word| harmless(word) != *word);
    let parsed = Cli::command().color(clap::ColorChoice::Always).try_get_matches_from(words);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return rendered(&error, is_harmful),
    };
    let output = Output { json: cli.global.json, ..context.output };
    let context = context.for_next_command(output);
    match cli.command.act_with_hints(&context, |_| Err(CliError::usage("a team runs here already"))) {
        Ok(answer) => output.render(&answer),
        Err(error) => output.render_error(&error),
    }
}

fn wait_for(command: impl Future<Output = CliResult<Answer>>) -> CliResult<Answer> {
    on_one_thread(command)
}

/// Runs what does one thing after the other: one thread is enough, and begun in no time.
fn on_one_thread<T>(command: impl Future<Output = CliResult<T>>) -> CliResult<T> {
    threads::runtime_on_this_thread().map_err(|error| CliError::not_started(&error))?.block_on(command)
}

/// clap's text, which repeats what was typed: without colours, and harmless, where that would be obeyed by a terminal.
fn rendered(error: &clap::Error, is_harmful: bool) -> String {
    let text = error.render();
    if is_harmful { harmless(&text.to_string()) } else { text.ansi().to_string() }
}

/// What must be known before the arguments are understood, to say that they are not.
struct Early {
    json: bool,
    color: Color,
    /// Whether a terminal would take part of the arguments for orders.
    is_harmful: bool,
    /// The first word that is no flag, where a command stands.
    first: Option<String>,
}

impl Early {
    fn of(arguments: &[OsString]) -> Self {
        let words = || arguments.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--");
        let mut color = Color::Auto;
        for (word, next) in words().zip(words().skip(1).chain([""])) {
            let value = if word == "--color" { Some(next) } else { word.strip_prefix("--color=") };
            match value {
                Some("always") => color = Color::Always,
                Some("never") => color = Color::Never,
                _ => {}
            }
        }
        let is_harmful = arguments.iter().any(|word| harmless(&word.to_string_lossy()) != word.to_string_lossy());
        // The first of all is the program.
        let first = words().skip(1).find(|word| !word.starts_with('-')).map(str::to_owned);
        Self { json: words().any(|word| word == "--json"), color, is_harmful, first }
    }

    /// Prints help, the version, or what is wrong with the arguments.
    fn explain(&self, mut error: clap::Error) -> Exit {
        let tip = tip(&error);
        if let Some(tip) = tip {
            // clap's own guess by spelling is worse than a word we know.
            error.remove(ContextKind::SuggestedSubcommand);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![format!("here that is: {tip}").into()]));
        } else if let Some(meant) = self.first.as_deref().and_then(|first| misspelled(&error, first)) {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![meant]));
        }
        let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        let output = Output::new(self.json, self.color);
        let text = rendered(&error, self.is_harmful);
        if is_help {
            return match output.print(&text) {
                Ok(()) => Exit::Done,
                Err(_) => Exit::Unfinished,
            };
        }
        if self.json {
            let text = harmless(&error.render().to_string());
            let message = text.trim().trim_start_matches("error: ").to_owned();
            return output.fail(&CliError::usage(message));
        }
        output.note(text.trim_end());
        Exit::Usage
    }
}

/// The command that is spelled much like this unknown one, where clap has no guess: by its measure short words are never alike.
fn misspelled(error: &clap::Error, first: &str) -> Option<String> {
    let is_it = error.get(ContextKind::InvalidSubcommand) == Some(&ContextValue::String(first.to_owned()));
    let is_guessed = error.get(ContextKind::SuggestedSubcommand).is_some();
    let command = Cli::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    nearest(first, names).filter(|_| is_it && !is_guessed).map(str::to_owned)
}

/// What does here what the unknown command does elsewhere.
fn tip(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    TIPS.iter().find(|(known, _)| known == word).map(|(_, tip)| *tip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn tips_are_for_words_that_are_no_commands() {
        let command = Cli::command();
        for (word, _) in TIPS {
            assert!(command.find_subcommand(word).is_none(), "{word} is a command");
        }
    }
}
