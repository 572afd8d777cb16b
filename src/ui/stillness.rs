//! A team's process of which nothing is heard, in words: suspended, or silent for too long.

use std::time::Duration;

use super::text::duration;

/// Why nothing is heard of a process that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stillness {
    /// It was suspended, by Ctrl-Z or a signal.
    Suspended,
    /// It has given no sign of life for so long.
    Silent(Duration),
}

impl Stillness {
    /// What is said of the process, behind its name.
    #[must_use]
    pub fn says(self) -> String {
        match self {
            Self::Suspended => "is suspended".to_owned(),
            Self::Silent(silence) => {
                format!("has given no sign of life for {}: it hangs, or its machine is overloaded", duration(silence))
            }
        }
    }

    /// What can be done about the process of this number.
    #[must_use]
    pub fn remedy(self, pid: u32) -> String {
        match self {
            Self::Suspended => {
                format!("fg in its terminal, or kill -CONT {pid}, has it go on; brigade stop wakes and stops it")
            }
            Self::Silent(_) => {
                format!("brigade stop asks it to stop; kill -KILL {pid} ends it, and the next launch goes on")
            }
        }
    }

    /// How long it has been silent, in milliseconds, where that is the reason.
    #[must_use]
    pub fn silent_ms(self) -> Option<u64> {
        match self {
            Self::Suspended => None,
            Self::Silent(silence) => Some(u64::try_from(silence.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}
