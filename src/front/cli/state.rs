//! `brigade state`.

use crate::api::{Launch, OrderForm};
use crate::front::text::commands::hint;

use super::context::Context;
use super::error::CliResult;
use super::launch::mode_parser;
use super::order;
use super::outcome;
use super::output::CommandAnswer;
use crate::api::Order;
use crate::api::state;
use crate::domain::team::state::Mode;

/// Show or set the desired state of the team
///
/// continuous: a session whenever there is work. run_once: one session, then pause. run_cleanup: one session that tidies up, then
/// pause. pause: the team claims no tasks, and finishes those in progress.
#[derive(Debug, clap::Args)]
pub struct State {
    /// The desired state
    #[arg(value_parser = mode_parser(&Mode::ALL))]
    mode: Option<Mode>,
    /// The reason, shown to other people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "mode")]
    note: String,
}

impl State {
    /// Shows or sets the desired state.
    ///
    /// # Errors
    /// The state file cannot be read or written, or the lead cannot follow the state.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if let Some(mode) = self.mode {
            return order::give(context, Order::SetMode { mode, note: self.note }).await;
        }
        match state::read(&context.workspace).await? {
            Some(state) => outcome::state(context, state, false).await,
            None => {
                let none = context.output.answer(&(), || "no desired state is set\n".to_owned())?;
                let (run, up) = (Launch::Run { team: None }, Launch::Up { team: None });
                let pause = OrderForm::SetMode { mode: Mode::Pause };
                Ok(none.note(hint![run, " or ", up, " starts the team; ", pause, " sets a state before"]))
            }
        }
    }
}
