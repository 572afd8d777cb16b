//! The scripted models of a run: what each says follows from the seed, its name and how often it was asked. And the tool they have for
//! work that takes time, which looks whether who uses it may still do so.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::task::TaskStatus;
use brigade::domain::transcript::{Block, Role, Usage};
use brigade::ports::{Listener, ModelClient, ModelError, ModelRequest, ModelResponse, StopReason, ToolSpec};
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use fastrand::Rng;
use serde_json::{Value, json};

use super::files::ProcessFiles;
use super::nature::{Nature, lock};

/// A teammate hears of a lost claim within this time where nothing is wrong with the stores: the poll, and a second.
const LOST_CLAIM_HEARD: Duration = Duration::from_secs(6);

/// More than any run needs: then a team goes round in circles.
const REQUESTS_MAX: u64 = 5000;

type Answer = Result<ModelResponse, ModelError>;

/// What the models of all processes of a run share.
pub struct Minds {
    pub nature: Arc<Nature>,
    pub seed: u64,
    pub members: Vec<&'static str>,
    pub requests: AtomicU64,
    calls: AtomicU64,
    asked: Mutex<HashMap<String, u64>>,
}

impl Minds {
    pub fn new(nature: &Arc<Nature>, seed: u64, members: Vec<&'static str>) -> Arc<Self> {
        let (requests, calls) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { nature: Arc::clone(nature), seed, members, requests, calls, asked: Mutex::default() })
    }

    fn dice(&self, who: &str) -> Rng {
        let mut asked = lock(&self.asked);
        let count = asked.entry(who.to_owned()).or_default();
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, who, *count).hash(&mut hasher);
        Rng::with_seed(hasher.finish())
    }

    fn say(text: &str) -> Answer {
        answer(vec![Block::text(text)], StopReason::EndTurn)
    }

    fn call(&self, calls: Vec<(&str, Value)>) -> Answer {
        let block = |(tool, input): (&str, Value)| {
            let id = format!("c{}", self.calls.fetch_add(1, Ordering::Relaxed));
            Block::ToolUse { id, name: tool.to_owned(), input }
        };
        answer(calls.into_iter().map(block).collect(), StopReason::ToolUse)
    }
}

fn answer(content: Vec<Block>, stop: StopReason) -> Answer {
    Ok(ModelResponse { content, stop, usage: Some(Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() }) })
}

/// The model as one process reaches it.
pub struct Mind {
    pub minds: Arc<Minds>,
    pub files: Arc<ProcessFiles>,
}

#[async_trait]
impl ModelClient for Mind {
    async fn request(&self, request: ModelRequest, _: &dyn Listener) -> Answer {
        if self.files.is_dead() {
            return std::future::pending().await;
        }
        let nature = &self.minds.nature;
        if self.minds.requests.fetch_add(1, Ordering::Relaxed) > REQUESTS_MAX {
            lock(&nature.laws).violate("bounded: models are asked without end");
            return std::future::pending().await;
        }
        if let Err(what) = check_request(&request) {
            lock(&nature.laws).violate(format!("identity holds: {}: {what}", request.teammate));
        }
        nature.note(|| format!("{} is asked, {} messages", request.teammate, request.messages.len()));
        if nature.is_calm() {
            return self.settle(&request);
        }
        let mut rng = self.minds.dice(&request.teammate);
        let wait = if rng.u8(..12) == 0 { rng.u64(..60_000) } else { rng.u64(..1500) };
        tokio::time::sleep(Duration::from_millis(wait)).await;
        match rng.u8(..100) {
            0..=3 => Err(ModelError::Temporary { message: "busy".to_owned(), retry_after: None }),
            4..=5 => Err(ModelError::ContextTooLong { message: "too long".to_owned(), window_tokens: None }),
            _ => self.improvise(&mut rng, &request),
        }
    }
}

impl Mind {
    /// In the calm every task is completed.
    fn settle(&self, request: &ModelRequest) -> Answer {
        let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
        let is_told = |block: &Block| matches!(block, Block::Text { text } if text.starts_with("<auto-claimed>") || text.starts_with("You still hold"));
        match task_at_hand(request).filter(|_| last.iter().any(is_told)) {
            Some(task) => self.minds.call(vec![complete(task)]),
            None => Minds::say("Done."),
        }
    }

    fn improvise(&self, rng: &mut Rng, request: &ModelRequest) -> Answer {
        if request.tools.is_empty() {
            return Minds::say("A summary.");
        }
        let mut calls: Vec<(&str, Value)> = (0..rng.usize(..3)).map(|_| self.some_call(rng)).collect();
        if let Some(task) = task_at_hand(request).filter(|_| rng.u8(..100) < 60) {
            let status = ["completed", "completed", "completed", "completed", "failed", "pending"][rng.usize(..6)];
            calls.push(("task_update", json!({"task_id": task, "status": status, "result": "so it came out"})));
        }
        if calls.is_empty() { Minds::say("Well.") } else { self.minds.call(calls) }
    }

    fn some_call(&self, rng: &mut Rng) -> (&'static str, Value) {
        let known = [self.minds.members.as_slice(), &["lead", "human", "nobody"]].concat();
        let (somebody, task) = (known[rng.usize(..known.len())], rng.u64(1..9));
        match rng.u8(..12) {
            0..=3 => ("work", json!({"ms": rng.u64(..8000)})),
            4..=5 => ("send_message", json!({"to": somebody, "content": "well?"})),
            6 => ("task_create", json!({"subject": "more", "description": "of it", "blocked_by": [task]})),
            7 => ("claim_task", json!({"task_id": task})),
            8 => ("task_update", json!({"task_id": task, "status": "completed", "result": "not mine"})),
            9 => ("task_update", json!({"task_id": task, "add_blocked_by": [rng.u64(1..9)]})),
            10 => ("read_inbox", json!({})),
            _ => ("plan_approval", json!({"plan": "to do it"})),
        }
    }
}

fn complete(task: u64) -> (&'static str, Value) {
    ("task_update", json!({"task_id": task, "status": "completed", "result": "done"}))
}

fn texts(request: &ModelRequest) -> impl DoubleEndedIterator<Item = &str> {
    let blocks = request.messages.iter().flat_map(|message| &message.content);
    blocks.filter_map(|block| if let Block::Text { text } = block { Some(text.as_str()) } else { None })
}

/// The number of the task the context was last given.
fn task_at_hand(request: &ModelRequest) -> Option<u64> {
    let found = texts(request).rev().find_map(|text| text.rsplit_once("<auto-claimed>Task #"));
    found?.1.split(':').next()?.parse().ok()
}

/// A request a provider would take, which begins with who is asked.
fn check_request(request: &ModelRequest) -> Result<(), String> {
    let (mut open, mut last): (Vec<&String>, Option<Role>) = (Vec::new(), None);
    for message in request.messages.iter() {
        if last.replace(message.role) == Some(message.role) {
            return Err("two messages of one side in a row".to_owned());
        }
        let results = message.content.iter().filter_map(|block| match block {
            Block::ToolResult { tool_use_id, .. } => Some(tool_use_id),
            _ => None,
        });
        if !results.eq(open.iter().copied()) {
            return Err("calls and results differ".to_owned());
        }
        let calls = message.content.iter().filter_map(|block| match block {
            Block::ToolUse { id, .. } => Some(id),
            _ => None,
        });
        open = calls.collect();
    }
    let begins = texts(request).next().unwrap_or_default();
    if !begins.starts_with(&format!("<identity>You are '{}'", request.teammate)) {
        return Err(format!("the context begins with {begins:?}"));
    }
    if !request.system.starts_with(&format!("You are '{}', role: ", request.teammate)) {
        return Err("the system prompt does not say who it is".to_owned());
    }
    if last == Some(Role::User) { Ok(()) } else { Err("the model has the last word".to_owned()) }
}

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
