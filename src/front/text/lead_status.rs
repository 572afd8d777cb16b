//! Messages about the team that runs in a workspace, and its lead process.

use super::commands::{Hint, hint};
use crate::api::lead_status::{Delivery, LeadProcess, Pause};
use crate::api::team::LeadHealth;
use crate::api::{Launch, OrderForm};
use crate::domain::team::state::Mode;
use crate::domain::text::one_line;
use crate::domain::text::units::duration;

/// Returns the message, to follow the name of the process.
pub fn message(health: LeadHealth) -> String {
    match health {
        LeadHealth::Suspended => "is suspended".to_owned(),
        LeadHealth::Silent(silence) => {
            format!("has sent no heartbeat for {}: it hangs, or the machine is overloaded", duration(silence))
        }
    }
}

/// Returns the hint for the process `pid`.
pub fn hint(health: LeadHealth, pid: u32) -> Hint {
    let stop = OrderForm::Stop { now: false };
    match health {
        LeadHealth::Suspended => {
            hint![format!("to continue: `fg` in its terminal, or `kill -CONT {pid}`; to stop: "), stop]
        }
        LeadHealth::Silent(_) => {
            hint!["to stop: ", stop, format!(", or `kill -KILL {pid}`; the next launch continues the work")]
        }
    }
}

/// Returns the note that this lead's team runs, and not the one of this name.
pub fn other_team(lead: &LeadProcess, name: &str) -> String {
    format!("team `{}` (pid {}) runs here; `{}` does not", one_line(&lead.team), lead.pid, one_line(name))
}

/// Returns the note about a message (`what`) that is not read now.
pub fn delivery(delivery: Delivery, what: &str) -> Option<Hint> {
    match delivery {
        Delivery::Now => None,
        Delivery::AfterPause => Some(hint![format!("the team is paused: the {what} is read after "), continuous()]),
        Delivery::AtNextLaunch => Some(format!("no team runs: the {what} is delivered at the next launch").into()),
    }
}

/// Returns the pause of a team and its end, or its effect on the next launch.
pub fn pause(pause: &Pause) -> Hint {
    let reason = if pause.reason.is_empty() { String::new() } else { format!(" ({})", one_line(&pause.reason)) };
    if pause.is_running {
        return hint![format!("agent_state.json pauses the team{reason}; run "), continuous(), " to continue"];
    }
    hint![
        format!("agent_state.json says pause{reason}: "),
        Launch::Run { team: None },
        " works all the same, ",
        Launch::Up { team: None },
        " waits for ",
        continuous()
    ]
}

/// The order that ends a pause.
pub fn continuous() -> OrderForm {
    OrderForm::SetMode { mode: Mode::Continuous }
}
