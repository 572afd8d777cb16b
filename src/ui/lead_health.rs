//! Messages about a lead process that is alive but suspended or silent for too long.

use std::time::Duration;

use super::text::duration;

/// The trouble of a lead process that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadHealth {
    /// Suspended by Ctrl-Z or a signal.
    Suspended,
    /// Without a heartbeat for this time.
    Silent(Duration),
}

impl LeadHealth {
    /// Returns the message, to follow the name of the process.
    pub fn message(self) -> String {
        match self {
            Self::Suspended => "is suspended".to_owned(),
            Self::Silent(silence) => {
                format!("has sent no heartbeat for {}: it hangs, or the machine is overloaded", duration(silence))
            }
        }
    }

    /// Returns the hint for the process `pid`.
    pub fn hint(self, pid: u32) -> String {
        match self {
            Self::Suspended => {
                format!("to continue: `fg` in its terminal, or `kill -CONT {pid}`; to stop: `brigade stop`")
            }
            Self::Silent(_) => {
                format!("to stop: `brigade stop`, or `kill -KILL {pid}`; the next launch continues the work")
            }
        }
    }

    /// Returns the silence in milliseconds.
    pub fn silent_ms(self) -> Option<u64> {
        match self {
            Self::Suspended => None,
            Self::Silent(silence) => Some(u64::try_from(silence.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}
