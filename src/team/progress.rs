//! What the harness sees of a teammate's life: when it last got on, what it is busy with and for how long at most, what it
//! holds. Written by the teammate's loop, read by the lead; never by a model.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::phase::Held;

/// What a teammate is busy with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// Its model is asked, and may stream.
    AskingModel,
    /// Its model is asked again after a while: when, and why.
    AskingAgain(Arc<str>),
    /// Others' requests have to leave enough of the budget first.
    WaitingForBudget,
    /// The disk is full.
    WaitingForRoom,
    /// A tool runs, which may be a command.
    RunningTool,
    /// Its worktree is made.
    MakingWorktree,
}

/// See the module.
#[derive(Debug)]
pub struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Clone)]
struct State {
    at: Instant,
    busy: Option<Doing>,
    held: Option<Held>,
}

#[derive(Debug, Clone)]
struct Doing {
    what: Activity,
    bound: Duration,
    until: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { state: Mutex::new(State { at: Instant::now(), busy: None, held: None }) }
    }
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the teammate got on.
    pub fn touch(&self) {
        self.state().at = Instant::now();
    }

    /// Says that the teammate does something that may take up to `bound`; when the result is dropped, what it did before goes on.
    pub fn busy(&self, activity: Activity, bound: Duration) -> Busy<'_> {
        let mut state = self.state();
        state.at = Instant::now();
        let doing = Doing { what: activity, bound, until: state.at + bound };
        Busy { before: state.busy.replace(doing), progress: self }
    }

    /// Says that what it is busy with goes on: its bound begins anew.
    pub fn renew(&self) {
        let mut state = self.state();
        let now = Instant::now();
        state.at = now;
        if let Some(doing) = &mut state.busy {
            doing.until = now + doing.bound;
        }
    }

    /// What it is busy with.
    #[must_use]
    pub fn doing(&self) -> Option<Activity> {
        self.state().busy.as_ref().map(|doing| doing.what.clone())
    }

    /// Sets what it holds.
    pub fn hold(&self, held: Option<Held>) {
        self.state().held = held;
    }

    /// What it holds.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        self.state().held
    }

    /// How long ago it last got on.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.state().at.elapsed()
    }

    /// How long it has given no sign of life, where it should: a command may run, and a limit be waited for, without one.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        let state = self.state();
        let should_speak = matches!(state.busy.as_ref().map(|doing| &doing.what), None | Some(Activity::AskingModel));
        should_speak.then(|| state.at.elapsed())
    }

    /// Whether it hangs: busy beyond its bound, or without a sign of life for `stall_timeout` while it should get on.
    #[must_use]
    pub fn is_stalled(&self, stall_timeout: Duration) -> bool {
        let state = self.state();
        match &state.busy {
            Some(doing) => Instant::now() > doing.until,
            None => state.at.elapsed() > stall_timeout,
        }
    }
}

/// Ends what [`Progress::busy`] began.
pub struct Busy<'a> {
    progress: &'a Progress,
    before: Option<Doing>,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.progress.state();
        state.busy = self.before.take();
        state.at = Instant::now();
    }
}
