//! Messages about a lead process that is alive but suspended or silent for too long.

use super::text::duration;
use crate::api::team::LeadHealth;

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
pub fn hint(health: LeadHealth, pid: u32) -> String {
    match health {
        LeadHealth::Suspended => {
            format!("to continue: `fg` in its terminal, or `kill -CONT {pid}`; to stop: `brigade stop`")
        }
        LeadHealth::Silent(_) => {
            format!("to stop: `brigade stop`, or `kill -KILL {pid}`; the next launch continues the work")
        }
    }
}
