//! The terminal's settings, kept so that they can be put back: a line editor changes them, and may be ended in the middle of a
//! line.

use std::io::Write as _;

/// The settings as they were.
#[derive(Debug)]
pub struct Terminal {
    #[cfg(unix)]
    settings: rustix::termios::Termios,
}

/// Ends the pasting mode that line editors switch on, and clears the line that was being typed.
const END_OF_EDITING: &[u8] = b"\x1b[?2004l\r\x1b[J";

impl Terminal {
    /// Takes note of the settings of the terminal that is stdin; `None` where it is none, or where the system's are not known.
    #[must_use]
    pub fn remember() -> Option<Self> {
        #[cfg(unix)]
        {
            Some(Self { settings: rustix::termios::tcgetattr(std::io::stdin()).ok()? })
        }
        #[cfg(not(unix))]
        {
            None
        }
    }

    /// Puts the settings back.
    pub fn put_back(self) {
        let is_simple = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if !is_simple {
            let mut out = std::io::stdout().lock();
            // A terminal that is gone needs nothing.
            let _ = out.write_all(END_OF_EDITING).and_then(|()| out.flush());
        }
        #[cfg(unix)]
        {
            use rustix::termios::{OptionalActions, tcsetattr};
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.settings);
        }
    }
}
