//! A deterministic provider: answers come from a script. The messages of a request select the step.
//!
//! A script is a JSON object. Its keys are triggers, and `<teammate>.<trigger>` overrides `<trigger>`. Its values are lists of
//! steps:
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
//! Triggers: `task` (a task was claimed), `goal` (the person's first message to the lead, before any compaction), `mail` (all other
//! messages), `report`, `compact`, and `question` (of a sub-agent). Without steps for `goal`, those for `mail` apply. The n-th answer after
//! the trigger is the n-th step. After the last step, the answer ends the turn. A step can have `delay_ms`, `error` (`{"temporary": "text",
//! "retry_after_ms": 5}`, `{"too_long": "text"}`, `{"final": "text"}`), `stop` (`max_tokens`, `repetition`, `refusal`, `pause_turn`) and
//! `usage`.

#![warn(missing_docs)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;

use super::key_command::KeyCommands;
use crate::domain::agent::transcript::{Block, Role, Usage};
use crate::domain::team::message::MessageType;
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::team_spec::ModelSpec;
use crate::domain::text::system_error;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::{
    ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason,
};

/// The largest script file, in bytes.
const SCRIPT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// One answer of the model.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, default, expecting = "a step, such as {\"say\": \"Done.\"}")]
pub struct ScriptStep {
    /// The text of the answer.
    pub say: String,
    /// The tool calls of the answer.
    pub call: Vec<ScriptedCall>,
    /// The delay of the answer, in milliseconds.
    pub delay_ms: u64,
    /// An error instead of the answer. Each such step is used once, then the next one follows.
    pub error: Option<ScriptedError>,
    /// The stop reason. By default it depends on `call`.
    pub stop: Option<String>,
    /// The token usage of the answer.
    pub usage: Usage,
}

impl ScriptStep {
    /// Returns true if the answer is a message of the conversation. An error and an empty answer are not.
    fn leaves_message(&self) -> bool {
        self.error.is_none() && !(self.say.is_empty() && self.call.is_empty())
    }
}

/// A tool call.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a call, such as {\"tool\": \"bash\", \"input\": {\"command\": \"ls\"}}")]
pub struct ScriptedCall {
    /// The name of the tool.
    pub tool: String,
    /// The arguments. In texts, `{{task}}` is replaced by the number of the task.
    #[serde(default)]
    pub input: Value,
}

/// An error instead of an answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "`error` must have one of `temporary` (with `retry_after_ms`), `too_long` and `final`"
)]
pub enum ScriptedError {
    /// A retry can succeed.
    Temporary {
        /// The error message.
        temporary: String,
        /// The requested wait before a retry, in milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// The context is too long.
    TooLong {
        /// The error message.
        too_long: String,
    },
    /// A retry cannot succeed.
    Final {
        /// The error message.
        #[serde(rename = "final")]
        message: String,
    },
}

/// The steps by trigger.
pub type Script = HashMap<String, Vec<ScriptStep>>;

/// A model that follows a script; see the module.
#[derive(Debug)]
pub struct Scripted {
    script: Script,
    /// The number of steps so far that left no message, for each trigger and teammate. All other steps are visible in the messages.
    unseen_steps: parking_lot::Mutex<HashMap<String, usize>>,
}

/// The client for a member whose `model` names a script file.
///
/// # Errors
/// The file cannot be read, or is not a script.
pub fn connect(spec: &ModelSpec, _: &KeyCommands) -> Result<Arc<dyn ModelClient>, String> {
    let path = &spec.model;
    let file = Path::new(path);
    let text = reading::read_text(file, AllowedKinds::within_folder_of(file), SCRIPT_BYTES_MAX)
        .map_err(|error| format!("cannot read the script {path}: {}", system_error::reason(&error)))?;
    let script = parse(&text).map_err(|error| format!("cannot use the script {path}: {error}"))?;
    Ok(Arc::new(Scripted::new(script)))
}

/// Parses a script.
///
/// # Errors
/// The text is not a script. The error names the wrong key or step and what is allowed.
pub fn parse(text: &str) -> Result<Script, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(entries) = value else { return Err("it must be a JSON object with steps by trigger".to_owned()) };
    let mut script = Script::new();
    for (key, steps) in entries {
        let trigger = key.rsplit('.').next().unwrap_or_default();
        if !TRIGGER_NAMES.contains(&trigger) {
            let allowed = TRIGGER_NAMES.join(", ");
            return Err(format!("unknown key `{key}`; allowed are {allowed}, each also for one teammate: ada.task"));
        }
        let Value::Array(steps) = steps else { return Err(format!("`{key}` must be a list of steps")) };
        let mut parsed = Vec::with_capacity(steps.len());
        for (index, step) in steps.into_iter().enumerate() {
            let step =
                ScriptStep::deserialize(step).map_err(|error| format!("`{key}`, step {}: {error}", index + 1))?;
            parsed.push(step);
        }
        script.insert(key, parsed);
    }
    Ok(script)
}

impl Scripted {
    /// Creates a model that follows `script`.
    pub fn new(script: Script) -> Self {
        Self { script, unseen_steps: parking_lot::Mutex::default() }
    }

    /// The steps of a trigger, with their key for this member.
    fn steps_of(&self, teammate: &str, trigger: &str) -> Option<(String, &Vec<ScriptStep>)> {
        let own_key = format!("{teammate}.{trigger}");
        match self.script.get(&own_key).or_else(|| self.script.get(trigger)) {
            Some(steps) => Some((own_key, steps)),
            None if trigger == GOAL => self.steps_of(teammate, MAIL),
            None => None,
        }
    }

    /// The step for this request: the next one of the latest trigger that has a step left. Mail that came during a task is
    /// answered first, and its answers do not count for the task.
    fn step(&self, request: &ModelRequest) -> Option<(ScriptStep, String)> {
        let triggers = match request.purpose {
            RequestPurpose::Turn => Trigger::read_all(&request.messages, &*request.teammate == LEAD),
            RequestPurpose::Question => vec![Trigger::question(request)],
            RequestPurpose::Summary | RequestPurpose::SummaryWithoutTools => vec![Trigger::compaction(request)],
        };
        let mut unseen_steps = self.unseen_steps.lock();
        let mut answers_of_later = 0;
        for trigger in triggers {
            let Some((own_key, steps)) = self.steps_of(&request.teammate, trigger.name) else { continue };
            let answers = trigger.answers.saturating_sub(answers_of_later);
            let unseen = unseen_steps.entry(format!("{own_key} {}", trigger.message_index)).or_insert(0);
            if let Some(step) = next_step(steps, answers, *unseen) {
                *unseen += usize::from(!step.leaves_message());
                return Some((step.clone(), trigger.task));
            }
            answers_of_later += answers.min(steps.iter().filter(|step| step.leaves_message()).count());
            if trigger.name != MAIL {
                break;
            }
        }
        None
    }
}

/// The first step after this number of answers, and of steps that left no message.
fn next_step(steps: &[ScriptStep], mut answers: usize, mut unseen: usize) -> Option<&ScriptStep> {
    steps.iter().find(|step| {
        let remaining = if step.leaves_message() { &mut answers } else { &mut unseen };
        let is_next = *remaining == 0;
        *remaining = remaining.saturating_sub(1);
        is_next
    })
}

/// A trigger in the messages, and the number of answers after it.
struct Trigger {
    name: &'static str,
    task: String,
    answers: usize,
    /// The index of the trigger's message, which distinguishes two of a kind.
    message_index: usize,
}

/// The beginnings of messages, and their triggers.
const TRIGGERS: [(&str, &str); 4] =
    [("<auto-claimed>", "task"), (INBOX, MAIL), ("<goal>", GOAL), ("<report>", "report")];

const QUESTION: &str = "question";

/// The triggers that a script can have steps for.
const TRIGGER_NAMES: [&str; 6] = ["task", MAIL, GOAL, "report", COMPACT, QUESTION];

const INBOX: &str = "<inbox>";
const MAIL: &str = "mail";
const GOAL: &str = "goal";
const COMPACT: &str = "compact";

impl Trigger {
    fn compaction(request: &ModelRequest) -> Self {
        Self { name: COMPACT, task: String::new(), answers: 0, message_index: request.messages.len() }
    }

    /// The question of a sub-agent. Each one begins with the first step.
    fn question(request: &ModelRequest) -> Self {
        let answers = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        Self { name: QUESTION, task: String::new(), answers, message_index: 0 }
    }

    /// All triggers in the messages, the latest first.
    fn read_all(messages: &[Arc<ChatMessage>], is_lead: bool) -> Vec<Self> {
        let goal = if is_lead { first_message_of_person(messages) } else { None };
        let mut answers = 0;
        let mut triggers = Vec::new();
        for (message_index, message) in messages.iter().enumerate().rev() {
            if message.role == Role::Assistant {
                answers += 1;
                continue;
            }
            for (block_index, block) in message.content.iter().enumerate().rev() {
                let Block::Text { text } = block else { continue };
                let Some((_, name)) = TRIGGERS.iter().find(|(start, _)| text.starts_with(start)) else { continue };
                let name = if goal == Some((message_index, block_index)) { GOAL } else { name };
                let task = text.split_once("Task #").and_then(|(_, rest)| rest.split(':').next()).unwrap_or("");
                triggers.push(Self { name, task: task.to_owned(), answers, message_index });
            }
        }
        triggers
    }
}

/// Returns the indices of the message and the block with the person's first message, unless a summary replaced earlier ones.
fn first_message_of_person(messages: &[Arc<ChatMessage>]) -> Option<(usize, usize)> {
    let from_person = format!("\n[{}] from {HUMAN}: ", MessageType::Message.as_str());
    for (message_index, message) in messages.iter().enumerate().filter(|(_, message)| message.role == Role::User) {
        for (block_index, block) in message.content.iter().enumerate() {
            let Block::Text { text } = block else { continue };
            if text.starts_with("<summary>") {
                return None;
            }
            if text.starts_with(INBOX) && text.contains(&from_person) {
                return Some((message_index, block_index));
            }
        }
    }
    None
}

#[async_trait]
impl ModelClient for Scripted {
    fn has_server(&self) -> bool {
        false
    }

    async fn request(&self, request: ModelRequest, listener: &dyn Listener) -> Result<ModelResponse, ModelError> {
        let turn = request.messages.len();
        let Some((step, task)) = self.step(&request) else {
            return Ok(ModelResponse {
                content: vec![Block::text("Done.")],
                stop: StopReason::EndTurn,
                usage: Some(Usage::default()),
                origin: None,
            });
        };
        tokio::time::sleep(Duration::from_millis(step.delay_ms)).await;
        if step.error.is_some() {
            listener.on_declined();
        }
        match step.error {
            Some(ScriptedError::Temporary { temporary, retry_after_ms }) => Err(ModelError::Temporary {
                message: temporary,
                retry_after: retry_after_ms.map(Duration::from_millis),
            }),
            Some(ScriptedError::TooLong { too_long }) => {
                Err(ModelError::ContextTooLong { message: too_long, window_tokens: None })
            }
            Some(ScriptedError::Final { message }) => Err(ModelError::Final(message)),
            None => {
                let response = respond(&step, &task, turn);
                if let Some(Block::Text { text }) = response.content.first() {
                    listener.on_bytes(text.len());
                    listener.on_text(text);
                }
                Ok(response)
            }
        }
    }
}

fn respond(step: &ScriptStep, task: &str, turn: usize) -> ModelResponse {
    let mut content = Vec::new();
    if !step.say.is_empty() {
        content.push(Block::text(step.say.replace("{{task}}", task)));
    }
    for (index, call) in step.call.iter().enumerate() {
        let input = fill(&call.input, task);
        content.push(Block::tool_use(format!("call-{turn}-{}", index + 1), call.tool.clone(), input));
    }
    let stop = match step.stop.as_deref() {
        Some("max_tokens") => StopReason::MaxTokens,
        Some("repetition") => StopReason::Repetition,
        Some("refusal") => StopReason::Refusal,
        Some("pause_turn") => StopReason::PauseTurn,
        Some(other) => StopReason::Other(other.to_owned()),
        None if step.call.is_empty() => StopReason::EndTurn,
        None => StopReason::ToolUse,
    };
    ModelResponse { content, stop, usage: Some(step.usage), origin: None }
}

/// Replaces `{{task}}` in `value`. A text that is only `{{task}}` becomes a number.
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
        Arc::new(ChatMessage::new(Role::User, vec![Block::text(text)]))
    }

    fn assistant() -> Arc<ChatMessage> {
        Arc::new(ChatMessage::new(Role::Assistant, vec![]))
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
            purpose: crate::ports::RequestPurpose::Turn,
            silence_timeout: Duration::MAX,
            answer_timeout: Duration::MAX,
        };
        let response = model.request(request, &()).await?;
        Ok(match &response.content[0] {
            Block::Text { text } => text.clone(),
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn script_error_names_key_step_and_allowed_values() {
        for (text, says) in [
            ("[]", "it must be a JSON object"),
            (r#"{"foo": []}"#, "unknown key `foo`; allowed are task, mail, goal, report, compact"),
            (r#"{"ada": []}"#, "unknown key `ada`"),
            (r#"{"task": {}}"#, "`task` must be a list of steps"),
            (r#"{"ada.task": [{}, 3]}"#, "`ada.task`, step 2: invalid type: integer `3`, expected a step, such as"),
            (r#"{"task": [{"sya": "x"}]}"#, "`task`, step 1: unknown field `sya`, expected one of `say`, `call`"),
            (r#"{"task": [{"call": [1]}]}"#, "expected a call, such as"),
            (r#"{"task": [{"error": 1}]}"#, "`error` must have one of `temporary`"),
            (r#"{"task": [{"error": {"final": "a", "too_long": "b"}}]}"#, "`error` must have one of `temporary`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!(parse(r#"{"ada.task": [{"error": {"final": "no"}}], "compact": []}"#).unwrap().len(), 2);
    }

    #[tokio::test]
    async fn scripted_model_follows_context_and_fails_once() {
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
