//! Messages about a lead process that is alive but suspended or silent for too long.

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap as _, Serializer};

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
}

/// One field: `suspended` or `silent_ms`.
impl Serialize for LeadHealth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(1))?;
        match self {
            Self::Suspended => fields.serialize_entry("suspended", &true)?,
            Self::Silent(silence) => {
                let silent_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
                fields.serialize_entry("silent_ms", &silent_ms)?;
            }
        }
        fields.end()
    }
}
