//! The terminal: its saved settings, which a line editor changes and may not restore when it is ended, and its foreground process group. A
//! shell with job control gives the terminal to one process group at a time.

use std::io::{Write as _, stdin, stdout};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use rustix::process::{getpgrp, getpid, kill_process};
use rustix::termios::{OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcsetattr};

/// The interval between checks whether this process is in the foreground again. Shells send no notice.
const FOREGROUND_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The number of the signal that Ctrl-Z sends.
pub const SUSPEND_SIGNAL: i32 = rustix::process::Signal::TSTP.as_raw();

/// Saved settings of the terminal.
#[derive(Debug)]
pub struct Terminal {
    settings: Termios,
}

/// Switches bracketed paste off, which line editors switch on, and clears the current input line.
const END_OF_EDITING: &[u8] = b"\x1b[?2004l\r\x1b[J";

impl Terminal {
    /// Saves the settings of the terminal on stdin. `None` if stdin is not a terminal.
    #[must_use]
    pub fn save() -> Option<Self> {
        Some(Self { settings: tcgetattr(stdin()).ok()? })
    }

    /// Restores the settings, unless this process is in the background.
    pub fn restore(self) {
        if !is_in_foreground() {
            return;
        }
        if can_draw() {
            let mut out = stdout().lock();
            // A terminal that is gone needs no restore.
            let _ = out.write_all(END_OF_EDITING).and_then(|()| out.flush());
        }
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.settings);
    }
}

/// Returns true if the terminal's type says that it can move its cursor.
pub fn can_draw() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term != "dumb" && !term.is_empty())
}

/// Discards what was typed at the terminal and not read yet, so that it answers no later question.
pub fn discard_input() {
    // It fails if there is no terminal.
    let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
}

/// Returns true if this process is in the foreground of the terminal on stdin, or on stdout, so that it may read it and change its settings. `true`
/// without job control.
pub fn is_in_foreground() -> bool {
    // The input may come from a file.
    let group = tcgetpgrp(stdin()).or_else(|_| tcgetpgrp(stdout()));
    group.map_or(true, |group| group == getpgrp())
}

/// Blocks until this process is in the foreground.
pub fn wait_for_foreground() {
    while !is_in_foreground() {
        std::thread::sleep(FOREGROUND_CHECK_INTERVAL);
    }
}

/// Makes reading the terminal from the background an error in this thread. Otherwise the system would stop the whole
/// process each time it continues.
pub fn block_background_signals() {
    // If that is refused, the system's default stays.
    let _ = background_signals().thread_block();
}

/// The signals that the system sends to a background process that uses the terminal.
fn background_signals() -> SigSet {
    [Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect()
}

/// The signals by which a terminal suspends processes.
fn stop_signals() -> SigSet {
    let mut signals = background_signals();
    signals.add(Signal::SIGTSTP);
    signals
}

/// Calls `start`, which starts a process. The terminal cannot suspend that process before it executes its program. Otherwise
/// Ctrl-Z at that moment would stop it forever. The starting thread waits for it, so this process would not stop, and the shell
/// would wait.
///
/// The process starts with these signals blocked; [`unblock_stops`] unblocks them.
pub fn with_stops_blocked<T>(start: impl FnOnce() -> T) -> T {
    let before = stop_signals().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = start();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}

/// Unblocks the signals that [`with_stops_blocked`] blocked for this process. If it leads a session, the system drops a pending one.
pub fn unblock_stops() {
    let _ = stop_signals().thread_unblock();
}

/// Suspends this process, as an unhandled Ctrl-Z does, and returns when it continues. Without a shell that could
/// continue it, the system does not suspend it.
pub fn suspend() {
    // Sent to this thread, the signal stops the process before the call returns. SIGSTOP would also stop a process that no shell
    // continues.
    if let Ok(before) = background_signals().thread_swap_mask(SigmaskHow::SIG_UNBLOCK) {
        let _ = raise(Signal::SIGTTIN);
        let _ = before.thread_set_mask();
    }
}

/// Interrupts the line editor while it reads a line, as Ctrl-C does.
pub fn interrupt() {
    let _ = kill_process(getpid(), rustix::process::Signal::INT);
}
