//! Signals that ask a team to stop: SIGINT, SIGTERM and SIGHUP.
//!
//! After the second request the process ends within [`STOP_NOW_TIME_MAX`], even if a store, a disk or a thread of the runtime hangs.

use std::future::pending;
use std::io::Write as _;
use std::sync::Once;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::error::{CliError, CliResult};
use super::exit::Exit;
use crate::platform::terminal::{SUSPEND_SIGNAL, Terminal};

/// Receives the requests to suspend the process (Ctrl-Z). The signal no longer suspends the process by itself.
#[derive(Debug)]
pub struct Suspensions {
    signal: Signal,
}

impl Suspensions {
    /// Starts to listen.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> CliResult<Self> {
        Ok(Self { signal: listen(SignalKind::from_raw(SUSPEND_SIGNAL))? })
    }

    /// Waits for the next request.
    pub async fn next(&mut self) {
        if self.signal.recv().await.is_none() {
            pending().await
        }
    }
}

fn listen(kind: SignalKind) -> CliResult<Signal> {
    signal(kind).map_err(|error| CliError::refused(format!("cannot listen to signals: {error}")))
}

/// A signal that asks the team to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGINT: Ctrl-C while no prompt reads the terminal.
    Interrupt,
    /// SIGTERM: the process must end.
    Terminate,
    /// SIGHUP: the process must end, but a repetition is no second request. `brigade stop` sends it, and a closed terminal may send it
    /// twice.
    HangUp,
}

/// The longest time from the second request to the end of the process. Members that hang are ended after two seconds, so a team with
/// working stores ends much earlier.
pub const STOP_NOW_TIME_MAX: Duration = Duration::from_secs(10);

/// The longest time to restore the terminal and write the last message, because stderr may have no reader.
const EXIT_MESSAGE_TIME_MAX: Duration = Duration::from_millis(200);

/// The settings of the terminal before an interactive session changed them.
static TERMINAL: Mutex<Option<Terminal>> = Mutex::new(None);

/// Saves the settings of the terminal, so that [`start_exit_deadline`] can restore them.
pub fn save_terminal() {
    *TERMINAL.lock() = Terminal::save();
}

/// Starts the time limit of the process: after [`STOP_NOW_TIME_MAX`] it ends with exit code 130. A separate thread waits, without the
/// runtime and without a store.
pub fn start_exit_deadline() {
    static IS_SET: Once = Once::new();
    IS_SET.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(STOP_NOW_TIME_MAX);
            std::thread::spawn(|| {
                if let Some(terminal) = TERMINAL.lock().take() {
                    terminal.restore();
                }
                let seconds = STOP_NOW_TIME_MAX.as_secs();
                let text =
                    format!("brigade: the team did not stop within {seconds} s; the next launch continues its work\n");
                let _ = std::io::stderr().write_all(text.as_bytes());
            });
            std::thread::sleep(EXIT_MESSAGE_TIME_MAX);
            // Running commands end with the process: their guards notice its end.
            std::process::exit(i32::from(Exit::Interrupted as u8));
        });
    });
}

/// The received signals, in order.
#[derive(Debug)]
pub struct Signals(mpsc::UnboundedReceiver<StopSignal>);

impl Signals {
    /// Starts to listen in a separate task. The signals then have no other effect. In an interactive session Ctrl-C does not always ask
    /// the team to stop, so it is not counted here: that session calls [`start_exit_deadline`] itself.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen(is_repl: bool) -> CliResult<Self> {
        let mut source = Source::listen()?;
        let (signals, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut count = 0_u32;
            loop {
                let kind = source.next().await;
                count = match kind {
                    StopSignal::HangUp => count.max(1),
                    StopSignal::Interrupt if is_repl => count,
                    StopSignal::Interrupt | StopSignal::Terminate => count + 1,
                };
                if count == 2 {
                    start_exit_deadline();
                }
                // After the run the receiver is gone. This task continues, because it limits the time until the process ends.
                let _ = signals.send(kind);
            }
        });
        Ok(Self(received))
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> StopSignal {
        match self.0.recv().await {
            Some(kind) => kind,
            None => pending().await,
        }
    }
}

/// The signal handlers of the system.
struct Source {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Source {
    fn listen() -> CliResult<Self> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> StopSignal {
        tokio::select! {
            Some(()) = self.interrupt.recv() => StopSignal::Interrupt,
            Some(()) = self.terminate.recv() => StopSignal::Terminate,
            Some(()) = self.hangup.recv() => StopSignal::HangUp,
            else => pending().await,
        }
    }
}
