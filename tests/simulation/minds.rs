//! The scripted models of a run, as their provider serves them: what each says follows from the seed, its name and how often it was
//! asked ([`super::sayings`]); what that costs is counted.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::transcript::{Block, Role, Usage};
use brigade::ports::{Listener, ModelClient, ModelError, ModelRequest, ModelResponse, StopReason};
use fastrand::Rng;

use super::files::ProcessFiles;
use super::nature::{Nature, lock};
use super::sayings::{improvise, settle, texts};

/// More than any run needs: then a team goes round in circles.
const REQUESTS_MAX: u64 = 5000;
/// Bytes of text that the provider takes for a token.
const BYTES_PER_TOKEN: usize = 4;

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

    /// The number of the next call of a tool.
    pub fn next_call(&self) -> String {
        format!("c{}", self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

/// The model as one process reaches it.
pub struct Mind {
    pub minds: Arc<Minds>,
    pub files: Arc<ProcessFiles>,
    /// Tokens of what stands in each of its requests.
    frame: OnceLock<u64>,
}

impl Mind {
    pub fn new(minds: &Arc<Minds>, files: &Arc<ProcessFiles>) -> Self {
        Self { minds: Arc::clone(minds), files: Arc::clone(files), frame: OnceLock::new() }
    }
}

/// What becomes of a request.
enum Service {
    /// The provider takes it no further.
    Declined(ModelError),
    /// It is answered, or the answer is lost.
    Served(Answer),
}

#[async_trait]
impl ModelClient for Mind {
    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Answer {
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
        lock(&nature.laws).asked_model(&request.teammate);
        lock(&nature.laws).check_results(&request);
        nature.note(|| format!("{} is asked, {} messages", request.teammate, request.messages.len()));
        let mut rng = self.minds.dice(&request.teammate);
        if nature.is_calm() {
            let answer = said(settle(&self.minds, &request));
            return self.serve(&mut rng, &request, listener, Duration::ZERO, answer).await;
        }
        let wait = Duration::from_millis(if rng.u8(..12) == 0 { rng.u64(..60_000) } else { rng.u64(..1500) });
        match self.service(&mut rng, &request) {
            Service::Served(answer) => self.serve(&mut rng, &request, listener, wait, answer).await,
            Service::Declined(error) => {
                tokio::time::sleep(wait).await;
                listener.declined();
                Err(error)
            }
        }
    }
}

impl Mind {
    fn service(&self, rng: &mut Rng, request: &ModelRequest) -> Service {
        let temporary = |message: &str| ModelError::Temporary { message: message.to_owned(), retry_after: None };
        match rng.u8(..100) {
            0..=1 => Service::Declined(temporary("busy")),
            2..=3 => Service::Served(Err(temporary("broke off"))),
            4..=5 => {
                let message = "too long".to_owned();
                Service::Declined(ModelError::ContextTooLong { message, window_tokens: None })
            }
            _ => Service::Served(said(improvise(&self.minds, rng, request))),
        }
    }

    /// Works on the request for so long, and counts that, whoever still waits for it.
    async fn serve(
        &self,
        rng: &mut Rng,
        request: &ModelRequest,
        listener: &dyn Listener,
        wait: Duration,
        answer: Answer,
    ) -> Answer {
        let Some(allowance) = self.minds.nature.setup.budget else {
            tokio::time::sleep(wait).await;
            return answer.map(|answer| self.heard(request, answer));
        };
        let cuts = lock(&self.minds.nature.laws).spending.cuts();
        let read = self.read(rng, request);
        self.bill(read, cuts);
        let written = match &answer {
            Ok(answer) => tokens_of(&answer.content).max(1),
            Err(_) => rng.u64(..=u64::from(request.output_tokens_max)),
        };
        tokio::time::sleep(wait / 2).await;
        self.bill(Usage { output_tokens: written / 2, ..Usage::default() }, cuts);
        if allowance.is_reported {
            listener.used(read);
        }
        tokio::time::sleep(wait / 2).await;
        self.bill(Usage { output_tokens: written - written / 2, ..Usage::default() }, cuts);
        let usage = allowance.is_reported.then_some(Usage { output_tokens: written, ..read });
        answer.map(|answer| self.heard(request, ModelResponse { usage, ..answer }))
    }

    fn heard(&self, request: &ModelRequest, answer: ModelResponse) -> ModelResponse {
        if answer.stop == StopReason::EndTurn {
            lock(&self.minds.nature.laws).ended_work(&request.teammate);
        }
        answer
    }

    fn bill(&self, usage: Usage, cuts: u64) {
        let mut laws = lock(&self.minds.nature.laws);
        let wrong = laws.spending.bill(usage, cuts);
        wrong.into_iter().for_each(|wrong| laws.violate(wrong));
    }

    /// What is read for a request; by chance from the cache, or into it.
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

fn said(content: Vec<Block>) -> Answer {
    let calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
    let stop = if calls { StopReason::ToolUse } else { StopReason::EndTurn };
    let usage = Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() };
    Ok(ModelResponse { content, stop, usage: Some(usage) })
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
