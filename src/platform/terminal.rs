//! The terminal: its settings, kept so that they can be put back (a line editor changes them, and may be ended in the middle of a
//! line), and whose it is at the moment: a shell with job control lends it to one process group, the one in the foreground.

use std::io::Write as _;
use std::time::Duration;

/// How often is looked whether the terminal is lent to this process again. Shells tell nobody.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The number of the signal that Ctrl-Z sends.
#[cfg(unix)]
pub const SUSPEND_SIGNAL: i32 = rustix::process::Signal::TSTP.as_raw();

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

    /// Puts the settings back; not those of a terminal that is somebody else's by now.
    pub fn put_back(self) {
        if !is_ours() {
            return;
        }
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

/// Whether the terminal that is stdin is lent to this process: it may be read, and its settings changed. Without job control it is.
#[must_use]
pub fn is_ours() -> bool {
    #[cfg(unix)]
    {
        rustix::termios::tcgetpgrp(std::io::stdin()).map_or(true, |group| group == rustix::process::getpgrp())
    }
    #[cfg(not(unix))]
    {
        true
    }
}

/// Blocks until the terminal is lent to this process.
pub fn await_ours() {
    while !is_ours() {
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Reading a terminal that is somebody else's is an error in this thread from now on; otherwise the system would stop the whole
/// process for it, each time it is told to go on.
pub fn outlive_in_this_thread() {
    // Where that is refused it is as it always was.
    #[cfg(unix)]
    let _ = background_signals().thread_block();
}

/// What the system sends to who uses a terminal from the background.
#[cfg(unix)]
fn background_signals() -> nix::sys::signal::SigSet {
    use nix::sys::signal::Signal;
    [Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect()
}

/// The signals by which a terminal suspends processes.
#[cfg(unix)]
fn stop_signals() -> nix::sys::signal::SigSet {
    let mut signals = background_signals();
    signals.add(nix::sys::signal::Signal::SIGTSTP);
    signals
}

/// Calls `start`, which starts a process. That process cannot be suspended by the terminal before it executes its program. Otherwise Ctrl-Z
/// at that moment would stop it for good: the thread that starts it waits for it, so this process would not stop, and the shell would wait.
///
/// The process begins with these signals blocked; [`unblock_stops`] ends that.
pub fn with_stops_blocked<T>(start: impl FnOnce() -> T) -> T {
    #[cfg(unix)]
    {
        use nix::sys::signal::SigmaskHow;
        let before = stop_signals().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let result = start();
        if let Ok(before) = before {
            let _: nix::Result<()> = before.thread_set_mask();
        }
        result
    }
    #[cfg(not(unix))]
    {
        start()
    }
}

/// Ends what [`with_stops_blocked`] began for this process. The system drops a signal that waits, if this process leads a session.
pub fn unblock_stops() {
    #[cfg(unix)]
    let _: nix::Result<()> = stop_signals().thread_unblock();
}

/// Suspends this process, as Ctrl-Z does where nobody catches that, and returns once it goes on. Where there is no shell that could
/// have it go on, the system does not suspend it.
pub fn suspend() {
    #[cfg(unix)]
    {
        use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
        // Sent to this thread, it has stopped the process before the call returns. SIGSTOP would stop one that nobody has go on.
        if let Ok(before) = background_signals().thread_swap_mask(SigmaskHow::SIG_UNBLOCK) {
            let _ = raise(Signal::SIGTTIN);
            let _: nix::Result<()> = SigSet::thread_set_mask(&before);
        }
    }
}

/// Has the line editor, while it reads a line, end that as Ctrl-C does.
pub fn interrupt() {
    #[cfg(unix)]
    {
        use rustix::process::{Signal, getpid, kill_process};
        let _ = kill_process(getpid(), Signal::INT);
    }
}
