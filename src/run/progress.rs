//! A teammate's signs of life: its last progress, its current activity with a time limit, and its claim. The teammate's loop
//! writes them and the lead reads them; a model never does.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::team::phase::ClaimRef;

/// A teammate's current activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// Its model is asked and may stream.
    AskingModel,
    /// It waits before the next request: the time and the reason.
    RetryingModel(Arc<str>),
    /// Others' requests must leave enough of the budget first.
    WaitingForBudget,
    /// The person must answer the permission request with this id.
    WaitingForPermission(Arc<str>),
    /// A write waits for this: room on the disk, or a lock.
    WaitingToWrite(Arc<str>),
    /// The tool of this name runs, possibly a command.
    RunningTool(Arc<str>),
    /// Its worktree is created.
    CreatingWorktree,
    /// The setup command of its worktree runs.
    SettingUpWorktree,
}

/// The program that works for a teammate, if its agent is an external program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentProgramStatus {
    /// The program's own id of its session; empty without one.
    pub session: String,
    /// Its process id; 0 while it does not run.
    pub pid: u32,
}

/// The signs of life of one teammate.
#[derive(Debug)]
pub struct Progress {
    state: Mutex<ProgressState>,
    claim: watch::Sender<Option<ClaimRef>>,
}

#[derive(Debug, Clone)]
struct ProgressState {
    last_progress: Instant,
    running: Option<RunningActivity>,
    /// The question that a sub-agent answers.
    question: Option<Arc<str>>,
    tool_calls: u64,
    has_new_message: bool,
    program: AgentProgramStatus,
    /// The model that answers in place of the member's own one.
    fallback: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
struct RunningActivity {
    activity: Activity,
    time_limit: Duration,
    until: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            state: Mutex::new(ProgressState {
                last_progress: Instant::now(),
                running: None,
                question: None,
                tool_calls: 0,
                has_new_message: false,
                program: AgentProgramStatus::default(),
                fallback: None,
            }),
            claim: watch::Sender::default(),
        }
    }
}

impl Progress {
    /// Sets the model that answers in place of the member's own one; `None` if its own one answers.
    pub fn set_fallback(&self, model: Option<Arc<str>>) {
        self.state.lock().fallback = model;
    }

    /// Returns the model that answers in place of the member's own one.
    pub fn fallback(&self) -> Option<Arc<str>> {
        self.state.lock().fallback.clone()
    }

    /// Records progress.
    pub fn record_activity(&self) {
        self.state.lock().last_progress = Instant::now();
    }

    /// Starts an activity that may take up to `time_limit`. When the result is dropped, the activity before it continues.
    pub fn start_activity(&self, activity: Activity, time_limit: Duration) -> ActivityGuard<'_> {
        let mut state = self.state.lock();
        state.last_progress = Instant::now();
        let running = RunningActivity { activity, time_limit, until: state.last_progress + time_limit };
        ActivityGuard { before: state.running.replace(running), progress: self }
    }

    /// Counts a tool call.
    pub fn record_tool_call(&self) {
        self.state.lock().tool_calls += 1;
    }

    /// Records progress within the current activity, and starts its time limit again.
    pub fn renew(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.last_progress = now;
        if let Some(running) = &mut state.running {
            running.until = now + running.time_limit;
        }
    }

    /// Returns the current activity.
    pub fn activity(&self) -> Option<Activity> {
        self.state.lock().running.as_ref().map(|running| running.activity.clone())
    }

    /// Records whether it took a message that it must answer and that its status does not show yet.
    pub fn set_new_message(&self, has_new_message: bool) {
        self.state.lock().has_new_message = has_new_message;
    }

    /// Returns true if it took a message that it must answer and that its status does not show yet.
    pub fn has_new_message(&self) -> bool {
        self.state.lock().has_new_message
    }

    /// Returns the number of tool calls so far.
    pub fn tool_calls(&self) -> u64 {
        self.state.lock().tool_calls
    }

    /// Records that a sub-agent answers this question, until the result is dropped.
    pub fn start_asking(&self, question: &str) -> AskGuard<'_> {
        self.state.lock().question = Some(question.into());
        AskGuard { progress: self }
    }

    /// Returns the question that a sub-agent answers.
    pub fn question(&self) -> Option<Arc<str>> {
        self.state.lock().question.clone()
    }

    /// Records the program that works for it.
    pub fn set_program(&self, program: AgentProgramStatus) {
        self.state.lock().program = program;
    }

    /// Records that the program has ended. Its session may be continued.
    pub fn record_program_end(&self) {
        self.state.lock().program.pid = 0;
    }

    /// Returns the program that works for it.
    pub fn program(&self) -> AgentProgramStatus {
        self.state.lock().program.clone()
    }

    /// Sets the claim. A command that was started under another claim ends.
    pub fn set_claim(&self, claim: Option<ClaimRef>) {
        self.claim.send_replace(claim);
    }

    /// Returns the claim.
    pub fn claim(&self) -> Option<ClaimRef> {
        *self.claim.borrow()
    }

    /// Returns a receiver of the current claim, for tools.
    pub fn claim_receiver(&self) -> watch::Receiver<Option<ClaimRef>> {
        self.claim.subscribe()
    }

    /// Returns the time since the last progress.
    pub fn age(&self) -> Duration {
        self.state.lock().last_progress.elapsed()
    }

    /// Returns the time since the last progress, or `None` if silence is normal: a command runs, or a limit is waited for.
    pub fn silent_for(&self) -> Option<Duration> {
        let state = self.state.lock();
        let is_expected =
            matches!(state.running.as_ref().map(|running| &running.activity), None | Some(Activity::AskingModel));
        is_expected.then(|| state.last_progress.elapsed())
    }

    /// Returns true if its activity is over its time limit, or if it made no progress for `stall_timeout` without an activity.
    pub fn is_stalled(&self, stall_timeout: Duration) -> bool {
        let state = self.state.lock();
        match &state.running {
            Some(running) => Instant::now() > running.until,
            None => state.last_progress.elapsed() > stall_timeout,
        }
    }
}

/// Ends the answering of a question when dropped.
pub struct AskGuard<'a> {
    progress: &'a Progress,
}

impl Drop for AskGuard<'_> {
    fn drop(&mut self) {
        self.progress.state.lock().question = None;
    }
}

/// Ends an activity when dropped.
pub struct ActivityGuard<'a> {
    progress: &'a Progress,
    before: Option<RunningActivity>,
}

impl Drop for ActivityGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.progress.state.lock();
        state.running = self.before.take();
        state.last_progress = Instant::now();
    }
}
