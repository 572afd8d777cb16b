//! Answers of models made of closures.

use std::sync::atomic::{AtomicU64, Ordering};

use brigade::domain::agent::transcript::{Block, Usage};
use brigade::ports::{ModelRequest, ModelResponse, StopReason};
use serde_json::{Value, json};

/// An answer that used eleven tokens.
pub fn answer(content: Vec<Block>, stop: StopReason) -> ModelResponse {
    let usage = Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() };
    ModelResponse { content, stop, usage: Some(usage), origin: None }
}

/// A text answer that ends the turn.
pub fn say(text: &str) -> ModelResponse {
    answer(vec![Block::text(text)], StopReason::EndTurn)
}

/// An answer with tool calls.
pub fn call(calls: &[(&str, Value)]) -> ModelResponse {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let block = |(tool, input): &(&str, Value)| {
        let id = format!("c{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Block::tool_use(id, (*tool).to_owned(), input.clone())
    };
    answer(calls.iter().map(block).collect(), StopReason::ToolUse)
}

/// The call that completes this task.
pub fn complete(task: u64) -> (&'static str, Value) {
    ("task_update", json!({ "task_id": task, "status": "completed", "result": "done" }))
}

/// The task that the last message assigns, also next to mail or results.
pub fn new_task(request: &ModelRequest) -> Option<u64> {
    request.messages.last()?.content.iter().rev().find_map(|block| match block {
        Block::Text { text } => text.strip_prefix("<auto-claimed>Task #")?.split(':').next()?.parse().ok(),
        _ => None,
    })
}
