//! Signals that ask a team to stop: SIGINT, SIGTERM and SIGHUP; on other systems Ctrl-C.
//!
//! Asked a second time, the process ends within [`STOP_NOW_TIME_MAX`], whatever hangs in it: a store, a disk, the runtime's threads.

use std::future::pending;
use std::io::Write as _;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::error::{CliError, CliResult};
use super::exit::Exit;
use crate::platform::terminal::Terminal;

/// Hears when a person wants the process suspended (Ctrl-Z), which does not suspend it by itself any more.
#[derive(Debug)]
pub struct Suspensions {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Suspensions {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> CliResult<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let kind = SignalKind::from_raw(crate::platform::terminal::SUSPEND_SIGNAL);
            let cannot = |error| CliError::refused(format!("cannot listen to signals: {error}"));
            Ok(Self { signal: signal(kind).map_err(cannot)? })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Waits for the next.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        if self.signal.recv().await.is_some() {
            return;
        }
        pending().await
    }
}

/// Which signal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ctrl-C, where nothing reads the terminal.
    Interrupt,
    /// The process is to end: SIGTERM, SIGHUP.
    End,
}

/// The longest time from the second request to stop to the end of the process. Members that hang are ended after two seconds, so that
/// a team whose stores answer is gone long before.
pub const STOP_NOW_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the last words may take: nobody may read them.
const LAST_WORDS_TIME: Duration = Duration::from_millis(200);

/// The settings of the terminal before a session changed them.
static TERMINAL: Mutex<Option<Terminal>> = Mutex::new(None);

/// Keeps the settings of the terminal, for [`end_in_time`] to put them back.
pub fn keep_terminal() {
    *TERMINAL.lock().unwrap_or_else(PoisonError::into_inner) = Terminal::remember();
}

/// Ends the process with exit code 130 after [`STOP_NOW_TIME_MAX`], unless it has ended by then. It waits in a thread of its own, which
/// needs no runtime and no store.
pub fn end_in_time() {
    static IS_SET: Once = Once::new();
    IS_SET.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(STOP_NOW_TIME_MAX);
            std::thread::spawn(|| {
                if let Some(terminal) = TERMINAL.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    terminal.put_back();
                }
                let seconds = STOP_NOW_TIME_MAX.as_secs();
                let text = format!(
                    "brigade: not all of the team had stopped within {seconds} s; the next launch takes up what it left\n"
                );
                let _ = std::io::stderr().write_all(text.as_bytes());
            });
            std::thread::sleep(LAST_WORDS_TIME);
            // Commands end with the process: their guards see that it is gone.
            std::process::exit(i32::from(Exit::Interrupted as u8));
        });
    });
}

/// The signals that came, in their order.
#[derive(Debug)]
pub struct Signals(mpsc::UnboundedReceiver<Kind>);

impl Signals {
    /// Listens from now on, in a task of its own; the signals do nothing else any more. In a session Ctrl-C does not always ask the team
    /// to stop: the session itself says there when it is asked for the second time.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen(is_session: bool) -> CliResult<Self> {
        let mut source = Source::listen()?;
        let (signals, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut count = 0_u32;
            loop {
                let kind = source.next().await;
                count += u32::from(kind == Kind::End || !is_session);
                if count == 2 {
                    end_in_time();
                }
                // A run that is over hears no more, and its end is still bounded.
                let _ = signals.send(kind);
            }
        });
        Ok(Self(received))
    }

    /// Waits for the next.
    pub async fn next(&mut self) -> Kind {
        match self.0.recv().await {
            Some(kind) => kind,
            None => pending().await,
        }
    }
}

/// The system's signals.
struct Source {
    #[cfg(unix)]
    kinds: [tokio::signal::unix::Signal; 3],
}

impl Source {
    #[cfg(unix)]
    fn listen() -> CliResult<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen =
            |kind| signal(kind).map_err(|error| CliError::refused(format!("cannot listen to signals: {error}")));
        Ok(Self {
            kinds: [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?],
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) -> Kind {
        let [interrupt, terminate, hangup] = &mut self.kinds;
        tokio::select! {
            Some(()) = interrupt.recv() => Kind::Interrupt,
            Some(()) = terminate.recv() => Kind::End,
            Some(()) = hangup.recv() => Kind::End,
            else => pending().await,
        }
    }

    #[cfg(not(unix))]
    fn listen() -> CliResult<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) -> Kind {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Kind::Interrupt,
            Err(_) => pending().await,
        }
    }
}
