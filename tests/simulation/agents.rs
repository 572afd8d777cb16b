//! The scripted models of a run. Each answer follows from the seed, the model's name and its number of requests
//! ([`super::replies`]); the usage is counted.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::agent::transcript::{Block, Role, Usage};
use brigade::ports::{Listener, ModelClient, ModelError, ModelRequest, ModelResponse, StopReason};
use fastrand::Rng;

use super::files::ProcessFiles;
use super::host::{SimulatedHost, lock};
use super::replies::{calm_reply, random_reply, texts};

/// More requests than any run needs: a team that reaches it makes no progress.
const REQUESTS_MAX: u64 = 5000;
/// Bytes of text per token at the provider.
const BYTES_PER_TOKEN: usize = 4;

type ModelResult = Result<ModelResponse, ModelError>;

/// The state that the models of all processes share.
pub struct ScriptedModels {
    pub host: Arc<SimulatedHost>,
    pub seed: u64,
    pub members: Vec<&'static str>,
    pub requests: AtomicU64,
    calls: AtomicU64,
    request_counts: Mutex<HashMap<String, u64>>,
}

impl ScriptedModels {
    pub fn new(host: &Arc<SimulatedHost>, seed: u64, members: Vec<&'static str>) -> Arc<Self> {
        let (requests, calls) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { host: Arc::clone(host), seed, members, requests, calls, request_counts: Mutex::default() })
    }

    fn rng_for(&self, who: &str) -> Rng {
        let mut request_counts = lock(&self.request_counts);
        let count = request_counts.entry(who.to_owned()).or_default();
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, who, *count).hash(&mut hasher);
        Rng::with_seed(hasher.finish())
    }

    /// The number of the next tool call.
    pub fn next_call(&self) -> String {
        format!("c{}", self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

/// The model as one process reaches it.
pub struct ScriptedModel {
    pub models: Arc<ScriptedModels>,
    pub files: Arc<ProcessFiles>,
    /// The tokens of the fixed part of each request.
    frame: OnceLock<u64>,
}

impl ScriptedModel {
    pub fn new(models: &Arc<ScriptedModels>, files: &Arc<ProcessFiles>) -> Self {
        Self { models: Arc::clone(models), files: Arc::clone(files), frame: OnceLock::new() }
    }
}

/// The result of a request.
enum Service {
    /// The provider refuses it.
    Declined(ModelError),
    /// It is answered, or the answer is lost.
    Served(ModelResult),
}

#[async_trait]
impl ModelClient for ScriptedModel {
    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> ModelResult {
        if self.files.is_dead() {
            return std::future::pending().await;
        }
        let host = &self.models.host;
        if self.models.requests.fetch_add(1, Ordering::Relaxed) > REQUESTS_MAX {
            lock(&host.invariants).violate("bounded: too many model requests");
            return std::future::pending().await;
        }
        if let Err(what) = check_request(&request) {
            lock(&host.invariants).violate(format!("identity stays: {}: {what}", request.teammate));
        }
        lock(&host.invariants).model_requested(&request.teammate);
        lock(&host.invariants).check_request(&request);
        host.note(|| format!("{} is asked, {} messages", request.teammate, request.messages.len()));
        let mut rng = self.models.rng_for(&request.teammate);
        if host.are_faults_cancelled() {
            let answer = response(calm_reply(&self.models, &request));
            return self.serve(&mut rng, &request, listener, Duration::ZERO, answer).await;
        }
        let wait = Duration::from_millis(if rng.u8(..12) == 0 { rng.u64(..60_000) } else { rng.u64(..1500) });
        match self.service(&mut rng, &request) {
            Service::Served(answer) => self.serve(&mut rng, &request, listener, wait, answer).await,
            Service::Declined(error) => {
                tokio::time::sleep(wait).await;
                listener.on_declined();
                Err(error)
            }
        }
    }
}

impl ScriptedModel {
    fn service(&self, rng: &mut Rng, request: &ModelRequest) -> Service {
        let temporary = |message: &str| ModelError::Temporary { message: message.to_owned(), retry_after: None };
        match rng.u8(..100) {
            0..=1 => Service::Declined(temporary("busy")),
            2..=3 => Service::Served(Err(temporary("broke off"))),
            4..=5 => {
                let message = "too long".to_owned();
                Service::Declined(ModelError::ContextTooLong { message, window_tokens: None })
            }
            _ => Service::Served(response(random_reply(&self.models, rng, request))),
        }
    }

    /// Works on the request for this time, and counts its usage even if the caller is gone.
    async fn serve(
        &self,
        rng: &mut Rng,
        request: &ModelRequest,
        listener: &dyn Listener,
        wait: Duration,
        answer: ModelResult,
    ) -> ModelResult {
        let Some(allowance) = self.models.host.setup.budget else {
            tokio::time::sleep(wait).await;
            return answer.map(|answer| self.count_end_of_work(request, answer));
        };
        let cuts = lock(&self.models.host.invariants).spending.cuts();
        let read = self.read(rng, request);
        self.bill(read, cuts);
        let written = match &answer {
            Ok(answer) => tokens_of(&answer.content).max(1),
            Err(_) => rng.u64(..=u64::from(request.output_tokens_max)),
        };
        tokio::time::sleep(wait / 2).await;
        self.bill(Usage { output_tokens: written / 2, ..Usage::default() }, cuts);
        if allowance.is_reported {
            listener.on_usage(read);
        }
        tokio::time::sleep(wait / 2).await;
        self.bill(Usage { output_tokens: written - written / 2, ..Usage::default() }, cuts);
        let usage = allowance.is_reported.then_some(Usage { output_tokens: written, ..read });
        answer.map(|answer| self.count_end_of_work(request, ModelResponse { usage, ..answer }))
    }

    fn count_end_of_work(&self, request: &ModelRequest, answer: ModelResponse) -> ModelResponse {
        if answer.stop == StopReason::EndTurn {
            lock(&self.models.host.invariants).work_ended(&request.teammate);
        }
        answer
    }

    fn bill(&self, usage: Usage, cuts: u64) {
        let mut invariants = lock(&self.models.host.invariants);
        let wrong = invariants.spending.bill(usage, cuts);
        wrong.into_iter().for_each(|wrong| invariants.violate(wrong));
    }

    /// The usage for reading a request; at random from the cache, or into it.
    fn read(&self, rng: &mut Rng, request: &ModelRequest) -> Usage {
        let frame = *self.frame.get_or_init(|| {
            let tools = request.tools.iter();
            let texts = tools.map(|tool| format!("{} {} {}", tool.name, tool.description, tool.input_schema).len());
            ((request.system.len() + texts.sum::<usize>()) / BYTES_PER_TOKEN) as u64
        });
        let tokens = frame + request.messages.iter().map(|message| tokens_of(&message.content)).sum::<u64>();
        let cached = rng.u64(..=tokens);
        match rng.u8(..3) {
            0 => Usage { input_tokens: tokens, ..Usage::default() },
            1 => Usage { input_tokens: tokens - cached, cache_read_tokens: cached, ..Usage::default() },
            _ => Usage { input_tokens: tokens - cached, cache_write_tokens: cached, ..Usage::default() },
        }
    }
}

fn response(content: Vec<Block>) -> ModelResult {
    let calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
    let stop = if calls { StopReason::ToolUse } else { StopReason::EndTurn };
    let usage = Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() };
    Ok(ModelResponse { content, stop, usage: Some(usage), origin: None })
}

fn tokens_of(content: &[Block]) -> u64 {
    let bytes = |block: &Block| match block {
        Block::Text { text } => text.len(),
        Block::ToolUse { name, input, .. } => name.len() + input.to_string().len(),
        Block::ToolResult { content, .. } => content.len(),
        Block::Other(_) => 0,
    };
    content.iter().map(|block| (bytes(block) / BYTES_PER_TOKEN) as u64).sum()
}

/// Checks that a provider would accept the request, and that it starts with the model's name.
fn check_request(request: &ModelRequest) -> Result<(), String> {
    let (mut open, mut last): (Vec<&String>, Option<Role>) = (Vec::new(), None);
    for message in request.messages.iter() {
        if last.replace(message.role) == Some(message.role) {
            return Err("two messages of one role in a row".to_owned());
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
