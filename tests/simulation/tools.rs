//! The tools of a run's models that are not quite the product's: one for work that takes time, which looks whether who uses it may still
//! do so; and the product's own for writing files, watched.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::task::TaskStatus;
use brigade::ports::ToolSpec;
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

use super::calls::call_of;
use super::files::ProcessFiles;
use super::nature::lock;

/// A teammate hears of a lost claim within this time where nothing is wrong with the stores: the poll, and a second.
const LOST_CLAIM_HEARD: Duration = Duration::from_secs(6);

/// The product's tool that writes.
pub const WRITE: &str = "write_file";

/// A tool that takes its time.
pub struct Work {
    pub files: Arc<ProcessFiles>,
}

impl Work {
    /// The claim the tool is used under is live, or was until a moment ago.
    fn check_claim(&self, context: &ToolContext, lost_since: Duration) {
        let nature = &self.files.nature;
        let Some((id, attempt)) = *context.holding.borrow() else { return };
        if self.files.is_dead() || lost_since < LOST_CLAIM_HEARD || nature.was_troubled(Duration::from_secs(60)) {
            return;
        }
        let mut laws = lock(&nature.laws);
        let is_live =
            laws.task(id).is_some_and(|task| task.status == TaskStatus::InProgress && task.attempt == attempt);
        if !is_live {
            laws.violate(format!(
                "one owner: {} works on {id}, attempt {attempt}, {lost_since:?} after it lost it",
                context.name
            ));
        }
    }
}

#[async_trait]
impl Tool for Work {
    fn spec(&self) -> ToolSpec {
        ToolSpec { name: "work".to_owned(), description: String::new(), input_schema: json!({"type": "object"}) }
    }
    fn about(&self, input: &Value) -> String {
        input.to_string()
    }
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        ran(&self.files, input["call"].as_str());
        let mut left = Duration::from_millis(input["ms"].as_u64().unwrap_or(0));
        let mut lost_since = Duration::ZERO;
        while !left.is_zero() {
            let step = left.min(Duration::from_millis(500));
            tokio::time::sleep(step).await;
            left -= step;
            let is_live = (*context.holding.borrow()).is_none_or(|(id, attempt)| {
                let laws = lock(&self.files.nature.laws);
                laws.task(id).is_some_and(|task| task.status == TaskStatus::InProgress && task.attempt == attempt)
            });
            lost_since = if is_live { Duration::ZERO } else { lost_since + step };
            self.check_claim(context, lost_since);
        }
        Ok(ToolOutput::text("done"))
    }
}

fn ran(files: &ProcessFiles, call: Option<&str>) {
    let mut laws = lock(&files.nature.laws);
    let wrong = call.and_then(|call| laws.calls.ran(call));
    wrong.into_iter().for_each(|wrong| laws.violate(wrong));
}

/// Waits for what is done in another thread: nobody else's turn may come between, or a run would not be the same each time.
fn at_once<R>(doing: impl Future<Output = R>) -> R {
    let mut doing = pin!(tokio::task::unconstrained(doing));
    loop {
        if let Poll::Ready(done) = doing.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        std::thread::yield_now();
    }
}

/// The tool that writes, and whether it may.
pub struct Watched {
    pub inner: Arc<dyn Tool>,
    pub files: Arc<ProcessFiles>,
}

#[async_trait]
impl Tool for Watched {
    fn spec(&self) -> ToolSpec {
        self.inner.spec()
    }
    fn about(&self, input: &Value) -> String {
        self.inner.about(input)
    }
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        ran(&self.files, input["content"].as_str().and_then(call_of));
        let (name, held) = (context.name.as_str(), *context.holding.borrow());
        let may = lock(&self.files.nature.laws).approvals.may_write(name, held);
        let outcome = at_once(self.inner.run(input, context));
        if outcome.is_ok() && !may && !self.files.is_dead() {
            let what = format!("who plans first writes nothing before: {name} wrote for {held:?}");
            lock(&self.files.nature.laws).violate(what);
        }
        outcome
    }
}
