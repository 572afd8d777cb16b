//! The command line: parses the arguments, runs one command and prints its answer. Each command has one file; the doc comment
//! of its arguments is its help.
//!
//! Only this layer touches the terminal and the environment. `main` passes in the function that launches a team.

use crate::front::text::commands::Commands;
use std::ffi::OsString;

use clap::{Parser, Subcommand};

mod api;
mod argument_errors;
pub(super) mod arguments;
mod clean;
pub mod commands;
pub(super) mod complete;
mod completions;
mod config;
mod consent;
pub(super) mod context;
mod cost;
mod destination;
mod doctor;
pub(crate) mod error;
pub mod exit;
mod footer;
pub(super) mod inbox;
mod init;
pub(crate) mod launch;
mod location;
pub(super) mod log;
pub(super) mod logging;
mod merge;
mod nesting;
pub(super) mod order;
mod outcome;
pub(super) mod output;
mod pager;
mod progress;
mod reminders;
mod replay;
pub(super) mod requests;
pub(super) mod run_output;
mod run_selection;
mod send;
pub(crate) mod signals;
mod state;
mod stop;
pub(super) mod surface;
pub(super) mod tasks;
pub(super) mod team;
pub(super) mod transcript;
pub(super) mod why;

use crate::platform::threads;
use crate::sandbox::environment::BOARD_CREDENTIAL_VARIABLE;
use crate::secrets::Secret;
use argument_errors::{argument_error, is_help};
use context::{Context, on_one_thread};
use error::{CliError, CliResult};
use exit::Exit;
use launch::Launcher;
use location::Global;
use output::{Color, CommandAnswer, Output};

/// The version, the commit and the kind of the build.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BRIGADE_BUILD"), ")");

/// Launch a named team of LLM agents from one config file, watch it and steer it.
///
/// The teams are in brigade.toml. Their tasks are plain files in .tasks/, and people, scripts and other agents work on them
/// by the same rules. Start with `brigade init`, then `brigade run`.
#[derive(Debug, Parser)]
#[command(name = "brigade", bin_name = "brigade", version = VERSION, max_term_width = 100)]
#[command(after_help = Exit::help())]
pub struct Cli {
    /// The options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "the doc comment of each command's arguments is its help")]
pub enum Command {
    Init(init::Init),
    Up(launch::Up),
    Run(launch::Run),
    Stop(stop::Stop),
    #[command(alias = "task")]
    Tasks(Box<tasks::Tasks>),
    Team(team::Team),
    Watch(crate::front::watch::Watch),
    Transcript(transcript::Transcript),
    Inbox(inbox::Inbox),
    Send(send::Send),
    Plan(requests::Plan),
    Review(requests::Review),
    #[command(visible_alias = "permissions")]
    Permission(requests::Permission),
    Merge(merge::Merge),
    Why(why::Why),
    State(state::State),
    Cost(cost::Cost),
    Log(log::Log),
    Replay(replay::Replay),
    Doctor(doctor::Doctor),
    Config(config::ConfigCommand),
    Clean(clean::Clean),
    Mcp(crate::front::mcp::Mcp),
    Api(api::Api),
    Completions(completions::Completions),
    #[command(hide = true)]
    Complete(complete::Complete),
}

/// Runs the command line `arguments`, prints its answer and returns the exit code. `launcher` launches teams.
pub fn run(arguments: impl IntoIterator<Item = OsString>, launcher: Launcher) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match threads::with_own_stack(|| run_command(&arguments, launcher)) {
        Ok(exit) => exit,
        Err(error) => Output::new(false, Color::Auto).print_error(&CliError::not_started(&error), &Commands::default()),
    }
}

fn run_command(arguments: &[OsString], launcher: Launcher) -> Exit {
    // A command of an agent may write to the board without Brigade's sandbox.
    std::env::var(BOARD_CREDENTIAL_VARIABLE).ok().and_then(|credential| Secret::received(&credential));
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return explain(&error, arguments),
    };
    let output = Output::new(cli.global.json, cli.global.color);
    // A shell must not show traces while it completes a word.
    if !matches!(cli.command, Command::Complete(_)) {
        logging::listen();
    }
    let context = match Context::new(cli.global, output) {
        Ok(context) => context,
        Err(error) => return output.print_error(&error, &Commands::default()),
    };
    if cli.command.warns_of_variables() && !output.json {
        location::variable_warnings(&context.workspace.location).iter().for_each(|warning| output.print_note(warning));
    }
    match cli.command.run(&context, launcher) {
        Ok(answer) => output.print_answer(&answer, &context.commands()),
        Err(error) => output.print_error(&error, &context.commands()),
    }
}

/// Prints the help, the version, or the error in the arguments.
fn explain(error: &clap::Error, arguments: &[OsString]) -> Exit {
    let words: Vec<_> = arguments.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let json = words.iter().take_while(|word| **word != "--").any(|word| *word == "--json");
    let output = Output::new(json, Color::Auto);
    // For a missing command, programs get an error and people get the help.
    if !is_help(error) || (json && error.exit_code() != 0) {
        let commands = Commands::default();
        return output.print_error(&argument_error(error, &words, &commands), &commands);
    }
    let text = error.render().ansi().to_string();
    if error.exit_code() != 0 {
        output.print_note(text.trim_end());
        return Exit::Usage;
    }
    output.print_answer(&CommandAnswer::text(text), &Commands::default())
}

impl Command {
    /// Returns true if the command warns of unknown variables. A shell reads the output of some commands, a launch refuses misspelt
    /// variables, and `doctor` reports them as a check.
    fn warns_of_variables(&self) -> bool {
        !matches!(
            self,
            Self::Init(_)
                | Self::Up(_)
                | Self::Run(_)
                | Self::Doctor(_)
                | Self::Api(_)
                | Self::Completions(_)
                | Self::Complete(_)
        )
    }

    fn run(self, context: &Context, launcher: Launcher) -> CliResult<CommandAnswer> {
        match self {
            Self::Init(command) => on_one_thread(command.run(context)),
            Self::Up(command) => command.run(context, launcher),
            Self::Run(command) => command.run(context, launcher),
            Self::Config(command) => command.run(context),
            Self::Api(command) => command.run(context),
            Self::Completions(command) => command.run(context),
            Self::Complete(command) => command.run(context),
            Self::Stop(command) => on_one_thread(command.run(context)),
            Self::Tasks(command) => on_one_thread(command.run(context)),
            Self::Team(command) => on_one_thread(command.run(context)),
            Self::Watch(command) => on_one_thread(command.run(context)),
            Self::Transcript(command) => on_one_thread(command.run(context)),
            Self::Inbox(command) => on_one_thread(command.run(context)),
            Self::Send(command) => on_one_thread(command.run(context)),
            Self::Plan(command) => on_one_thread(command.run(context)),
            Self::Review(command) => on_one_thread(command.run(context)),
            Self::Permission(command) => on_one_thread(command.run(context)),
            Self::Merge(command) => on_one_thread(command.run(context)),
            Self::Why(command) => on_one_thread(command.run(context)),
            Self::State(command) => on_one_thread(command.run(context)),
            Self::Cost(command) => on_one_thread(command.run(context)),
            Self::Log(command) => on_one_thread(command.run(context)),
            Self::Replay(command) => on_one_thread(command.run(context)),
            Self::Doctor(command) => on_one_thread(command.run(context)),
            Self::Clean(command) => on_one_thread(command.run(context)),
            Self::Mcp(command) => on_one_thread(command.run(context)),
        }
    }
}

/// Runs the command that a person typed in an interactive session. Returns its coloured answer, or its error as coloured text.
///
/// # Errors
/// The words are no command, or the command fails.
pub(super) fn run_typed(context: &Context, words: Vec<String>) -> Result<String, String> {
    let cli = match Cli::try_parse_from(std::iter::once("brigade").chain(words.iter().map(String::as_str))) {
        Ok(cli) => cli,
        Err(error) if is_help(&error) => return Ok(error.render().ansi().to_string()),
        Err(error) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            return context.text_of(Err(argument_error(&error, &words, &context.commands())));
        }
    };
    let context = context.for_next_command(Output { json: cli.global.json, ..context.output });
    let no_launch = |_| Err(CliError::usage("a team runs in this interactive session already"));
    context.text_of(cli.command.run(&context, no_launch))
}
