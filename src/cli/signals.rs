//! Signals that ask a team to stop: SIGINT, SIGTERM and SIGHUP; on other systems Ctrl-C.

use std::future::pending;

use super::error::{CliError, CliResult};

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

/// See the module.
#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    kinds: [tokio::signal::unix::Signal; 3],
}

impl Signals {
    /// Listens from now on; the signals do nothing else any more.
    ///
    /// # Errors
    /// The system refuses.
    #[cfg(unix)]
    pub fn listen() -> CliResult<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen =
            |kind| signal(kind).map_err(|error| CliError::refused(format!("cannot listen to signals: {error}")));
        Ok(Self {
            kinds: [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?],
        })
    }

    /// Waits for the next.
    #[cfg(unix)]
    pub async fn next(&mut self) -> Kind {
        let [interrupt, terminate, hangup] = &mut self.kinds;
        tokio::select! {
            Some(()) = interrupt.recv() => Kind::Interrupt,
            Some(()) = terminate.recv() => Kind::End,
            Some(()) = hangup.recv() => Kind::End,
            else => pending().await,
        }
    }

    /// Listens from now on.
    ///
    /// # Errors
    /// Never.
    #[cfg(not(unix))]
    pub fn listen() -> CliResult<Self> {
        Ok(Self {})
    }

    /// Waits for the next.
    #[cfg(not(unix))]
    pub async fn next(&mut self) -> Kind {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Kind::Interrupt,
            Err(_) => pending().await,
        }
    }
}
