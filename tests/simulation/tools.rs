//! The tools of a run's models that differ from the product's: a slow tool that checks the claim of its user, and the
//! product's write tool with checks.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::task::TaskStatus;
use brigade::domain::team::phase::ClaimRef;
use brigade::ports::ToolSpec;
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

use super::calls::call_of;
use super::files::ProcessFiles;
use super::host::lock;

/// A teammate learns of a lost claim within this time if the stores have no faults: the poll interval and a second.
const LOST_CLAIM_NOTICED_MAX: Duration = Duration::from_secs(6);

/// The product's write tool.
pub const WRITE: &str = "write_file";

/// A slow tool.
pub struct SlowTool {
    pub files: Arc<ProcessFiles>,
}

impl SlowTool {
    /// Checks that the tool's claim is live, or was until a moment ago.
    fn check_claim(&self, context: &ToolContext, lost_since: Duration) {
        let host = &self.files.host;
        let Some(ClaimRef { task: id, attempt }) = *context.caller.claim.borrow() else { return };
        if self.files.is_dead() || lost_since < LOST_CLAIM_NOTICED_MAX || host.had_fault_within(Duration::from_secs(60))
        {
            return;
        }
        let mut invariants = lock(&host.invariants);
        let is_live =
            invariants.task(id).is_some_and(|task| task.status == TaskStatus::InProgress && task.attempt == attempt);
        if !is_live {
            invariants.violate(format!(
                "one owner: {} works on {id}, attempt {attempt}, {lost_since:?} after it lost it",
                context.caller.name
            ));
        }
    }
}

#[async_trait]
impl Tool for SlowTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec { name: "work".to_owned(), description: String::new(), input_schema: json!({"type": "object"}) }
    }
    fn about(&self, input: &Value) -> String {
        input.to_string()
    }
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        record_call(&self.files, input["call"].as_str());
        let mut remaining = Duration::from_millis(input["ms"].as_u64().unwrap_or(0));
        let mut lost_since = Duration::ZERO;
        while !remaining.is_zero() {
            let step = remaining.min(Duration::from_millis(500));
            tokio::time::sleep(step).await;
            remaining -= step;
            let is_live = (*context.caller.claim.borrow()).is_none_or(|ClaimRef { task: id, attempt }| {
                let invariants = lock(&self.files.host.invariants);
                invariants.task(id).is_some_and(|task| task.status == TaskStatus::InProgress && task.attempt == attempt)
            });
            lost_since = if is_live { Duration::ZERO } else { lost_since + step };
            self.check_claim(context, lost_since);
        }
        Ok(ToolOutput::text("done"))
    }
}

fn record_call(files: &ProcessFiles, call: Option<&str>) {
    let mut invariants = lock(&files.host.invariants);
    let wrong = call.and_then(|call| invariants.calls.record_run(call));
    wrong.into_iter().for_each(|wrong| invariants.violate(wrong));
}

/// Waits for another thread. No other task may run in between, or a run would not be repeatable.
fn block_on_ready<R>(future: impl Future<Output = R>) -> R {
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        std::thread::yield_now();
    }
}

/// The write tool, with a check of its permission.
pub struct CheckedWriteTool {
    pub inner: Arc<dyn Tool>,
    pub files: Arc<ProcessFiles>,
}

#[async_trait]
impl Tool for CheckedWriteTool {
    fn spec(&self) -> ToolSpec {
        self.inner.spec()
    }
    fn about(&self, input: &Value) -> String {
        self.inner.about(input)
    }
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        record_call(&self.files, input["content"].as_str().and_then(call_of));
        let (name, held) = (context.caller.name.as_str(), *context.caller.claim.borrow());
        let may = lock(&self.files.host.invariants).approvals.may_write(name, held);
        let outcome = block_on_ready(self.inner.run(input, context));
        if outcome.is_ok() && !may && !self.files.is_dead() {
            let what = format!("plan before writing: {name} wrote for {held:?}");
            lock(&self.files.host.invariants).violate(what);
        }
        outcome
    }
}
