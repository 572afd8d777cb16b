//! A deterministic provider: answers come from a script, chosen by what the last request is about and how far it has come.
//!
//! A script is a JSON object. Keys are triggers, `<teammate>.<trigger>` before the plain `<trigger>`; values are lists of steps:
//!
//! ```json
//! {
//!   "task": [
//!     { "say": "On it.", "call": [{ "tool": "bash", "input": { "command": "echo {{task}}" } }] },
//!     { "call": [{ "tool": "task_update", "input": { "task_id": "{{task}}", "status": "completed", "result": "done" } }] }
//!   ],
//!   "lead.goal": [{ "call": [{ "tool": "task_create", "input": { "subject": "a", "description": "b" } }] }],
//!   "mail": [{ "say": "Read." }],
//!   "report": [{ "say": "All done." }]
//! }
//! ```
//!
//! Triggers: `task` (a task was claimed), `mail`, `goal`, `report`, `compact`. The n-th answer since the trigger is the n-th
//! step; behind the last, the answer is an end of turn. A step may have `delay_ms`, `error` (`{"temporary": "text",
//! "retry_after_ms": 5}`, `{"too_long": "text"}`, `{"final": "text"}`), `stop` (`max_tokens`, `refusal`) and `usage`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;

use crate::domain::transcript::{Block, Role, Usage};
use crate::platform::reading::{self, Accept};
use crate::ports::{
    ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, ModelSpec, StopReason,
};

/// The largest script file, in bytes.
const SCRIPT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// One answer.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// Text the model says.
    pub say: String,
    /// Tools it asks for.
    pub call: Vec<Call>,
    /// How long it takes, in milliseconds.
    pub delay_ms: u64,
    /// An error in place of the answer; each such step is met once, then the next one follows.
    pub error: Option<ScriptedError>,
    /// Why it stops; by default as its calls say.
    pub stop: Option<String>,
    /// What it used.
    pub usage: Usage,
}

/// A tool call.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Which tool.
    pub tool: String,
    /// Its arguments; `{{task}}` in a text stands for the number of the task.
    #[serde(default)]
    pub input: Value,
}

/// An error in place of an answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum ScriptedError {
    /// The context is too long.
    TooLong(String),
    /// Asking again cannot help.
    Final(String),
    /// Asking again may help.
    #[serde(untagged)]
    Temporary {
        /// What it says.
        temporary: String,
        /// How long it asks to wait.
        retry_after_ms: Option<u64>,
    },
}

/// The steps by trigger.
pub type Script = HashMap<String, Vec<Step>>;

/// The provider; see the module.
#[derive(Debug)]
pub struct Scripted {
    script: Script,
    /// Errors met so far, by trigger and teammate: they are the only steps that do not show in the context.
    errors_met: std::sync::Mutex<HashMap<String, usize>>,
    requests: AtomicUsize,
}

/// The client for a member whose `model` names a script file.
///
/// # Errors
/// When the file cannot be read or is no script.
pub fn connect(spec: &ModelSpec) -> Result<Arc<dyn ModelClient>, String> {
    let path = &spec.model;
    if path.is_empty() {
        return Err("the scripted provider needs `model`: the path of its script".to_owned());
    }
    let file = Path::new(path);
    let text = reading::read_text(file, Accept::within_folder_of(file), SCRIPT_BYTES_MAX)
        .map_err(|error| format!("script {path}: {error}"))?;
    let script: Script = serde_json::from_str(&text).map_err(|error| format!("script {path}: {error}"))?;
    Ok(Arc::new(Scripted::new(script)))
}

impl Scripted {
    /// A model that follows `script`.
    #[must_use]
    pub fn new(script: Script) -> Self {
        Self { script, errors_met: std::sync::Mutex::default(), requests: AtomicUsize::new(0) }
    }

    /// How many requests it was sent: idle must cost none.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// The step for this request: that of the latest trigger which has one left. A trigger that came in between (mail during
    /// a task) is answered first, and its answers do not count for the earlier one.
    fn step(&self, request: &ModelRequest) -> Option<(Step, String)> {
        let moments = if request.is_for_summary() {
            vec![Moment::compaction(request)]
        } else {
            Moment::read_all(&request.messages)
        };
        let mut met = self.errors_met.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut answers_of_later = 0;
        for moment in moments {
            let own = format!("{}.{}", request.teammate, moment.trigger);
            let Some(steps) = self.script.get(&own).or_else(|| self.script.get(moment.trigger)) else { continue };
            let answers = moment.answers.saturating_sub(answers_of_later);
            let errors = met.entry(format!("{own} {}", moment.at)).or_insert(0);
            if let Some(step) = next_step(steps, answers, *errors) {
                *errors += usize::from(step.error.is_some());
                return Some((step.clone(), moment.task));
            }
            answers_of_later += answers.min(steps.iter().filter(|step| step.error.is_none()).count());
            if moment.trigger != "mail" {
                break;
            }
        }
        None
    }
}

/// The first step that is behind as many answers and errors as there were.
fn next_step(steps: &[Step], mut answers: usize, mut errors: usize) -> Option<&Step> {
    steps.iter().find(|step| {
        let left = if step.error.is_some() { &mut errors } else { &mut answers };
        let is_next = *left == 0;
        *left = left.saturating_sub(1);
        is_next
    })
}

/// What a request is about, and how far it has come.
struct Moment {
    trigger: &'static str,
    task: String,
    answers: usize,
    /// Which message the trigger is, to tell two of a kind apart.
    at: usize,
}

/// The texts that start something, and the trigger each is.
const TRIGGERS: [(&str, &str); 4] =
    [("<auto-claimed>", "task"), ("<inbox>", "mail"), ("<goal>", "goal"), ("<report>", "report")];

impl Moment {
    fn compaction(request: &ModelRequest) -> Self {
        Self { trigger: "compact", task: String::new(), answers: 0, at: request.messages.len() }
    }

    /// All that started something, the latest first.
    fn read_all(messages: &[Arc<ChatMessage>]) -> Vec<Self> {
        let mut answers = 0;
        let mut moments = Vec::new();
        for (at, message) in messages.iter().enumerate().rev() {
            if message.role == Role::Assistant {
                answers += 1;
                continue;
            }
            for block in message.content.iter().rev() {
                let Block::Text { text } = block else { continue };
                let Some((_, trigger)) = TRIGGERS.iter().find(|(start, _)| text.starts_with(start)) else { continue };
                let task = text.split_once("Task #").and_then(|(_, rest)| rest.split(':').next()).unwrap_or("");
                moments.push(Self { trigger, task: task.to_owned(), answers, at });
            }
        }
        moments
    }
}

#[async_trait]
impl ModelClient for Scripted {
    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let turn = request.messages.len();
        let Some((step, task)) = self.step(&request) else {
            return Ok(ModelResponse {
                content: vec![Block::text("Done.")],
                stop: StopReason::EndTurn,
                usage: Some(Usage::default()),
            });
        };
        tokio::time::sleep(Duration::from_millis(step.delay_ms)).await;
        if step.error.is_some() {
            listener.declined();
        }
        match step.error {
            Some(ScriptedError::Temporary { temporary, retry_after_ms }) => Err(ModelError::Temporary {
                message: temporary,
                retry_after: retry_after_ms.map(Duration::from_millis),
            }),
            Some(ScriptedError::TooLong(message)) => Err(ModelError::ContextTooLong { message, window_tokens: None }),
            Some(ScriptedError::Final(message)) => Err(ModelError::Final(message)),
            None => {
                let response = respond(&step, &task, turn);
                if let Some(Block::Text { text }) = response.content.first() {
                    listener.wrote(text.len());
                    listener.text(text);
                }
                Ok(response)
            }
        }
    }
}

fn respond(step: &Step, task: &str, turn: usize) -> ModelResponse {
    let mut content = Vec::new();
    if !step.say.is_empty() {
        content.push(Block::text(step.say.replace("{{task}}", task)));
    }
    for (index, call) in step.call.iter().enumerate() {
        let input = fill(&call.input, task);
        content.push(Block::ToolUse { id: format!("call-{turn}-{}", index + 1), name: call.tool.clone(), input });
    }
    let stop = match step.stop.as_deref() {
        Some("max_tokens") => StopReason::MaxTokens,
        Some("refusal") => StopReason::Refusal,
        Some("pause_turn") => StopReason::PauseTurn,
        Some(other) => StopReason::Other(other.to_owned()),
        None if step.call.is_empty() => StopReason::EndTurn,
        None => StopReason::ToolUse,
    };
    ModelResponse { content, stop, usage: Some(step.usage) }
}

/// `value` with `{{task}}` filled in; a text that is nothing else becomes a number.
fn fill(value: &Value, task: &str) -> Value {
    match value {
        Value::String(text) if text == "{{task}}" => {
            task.parse::<u64>().map_or_else(|_| Value::from(task), Value::from)
        }
        Value::String(text) => Value::from(text.replace("{{task}}", task)),
        Value::Array(items) => items.iter().map(|item| fill(item, task)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), fill(value, task))).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Arc<ChatMessage> {
        Arc::new(ChatMessage { role: Role::User, content: vec![Block::text(text)] })
    }

    fn assistant() -> Arc<ChatMessage> {
        Arc::new(ChatMessage { role: Role::Assistant, content: vec![] })
    }

    async fn ask(model: &Scripted, messages: &[Arc<ChatMessage>]) -> Result<String, ModelError> {
        let tool =
            crate::ports::ToolSpec { name: "idle".into(), description: String::new(), input_schema: Value::Null };
        let request = ModelRequest {
            teammate: "bob".into(),
            model: "m".into(),
            system: "s".into(),
            messages: messages.into(),
            tools: [tool].into(),
            output_tokens_max: 9,
            purpose: crate::ports::Purpose::Turn,
            silence_timeout: Duration::MAX,
            answer_timeout: Duration::MAX,
        };
        let response = model.request(request, &()).await?;
        Ok(match &response.content[0] {
            Block::Text { text } => text.clone(),
            other => format!("{other:?}"),
        })
    }

    #[tokio::test]
    async fn steps_follow_the_context_and_errors_are_met_once() {
        let script = r#"{"task": [{"say": "one {{task}}"}, {"error": {"temporary": "busy"}}, {"say": "two"}], "bob.mail": [{"say": "read"}]}"#;
        let model = Scripted::new(serde_json::from_str(script).unwrap());
        let mut messages = vec![user("<auto-claimed>Task #4: x</auto-claimed>")];
        assert_eq!(ask(&model, &messages).await.unwrap(), "one 4");
        messages.push(assistant());
        assert!(ask(&model, &messages).await.is_err());
        assert_eq!(ask(&model, &messages).await.unwrap(), "two");
        messages.extend([assistant(), user("<inbox>hello</inbox>")]);
        assert_eq!(ask(&model, &messages).await.unwrap(), "read");
        messages.push(assistant());
        assert_eq!(ask(&model, &messages).await.unwrap(), "Done.");
        messages.push(user("<auto-claimed>Task #5: y</auto-claimed>"));
        assert_eq!(ask(&model, &messages).await.unwrap(), "one 5");
        messages.extend([user("<inbox>hello</inbox>"), assistant(), assistant()]);
        assert!(ask(&model, &messages).await.is_err(), "mail answered, the task goes on");
    }
}
