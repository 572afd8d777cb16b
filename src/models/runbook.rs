//! The provider without an LLM: it runs the fenced `sh` blocks of a task's description in order. A block ends at its first command
//! that fails.
//!
//! It keeps no state. Each answer depends only on the messages: the last claimed task, and the results of its blocks. It uses the
//! same tools and the same loop as every model.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use crate::domain::approval::{REVIEW_REJECTED_IT, WAITS_FOR_REVIEW};
use crate::domain::failure_summary;
use crate::domain::tags::unescape_tags;
use crate::domain::transcript::{Block, Role, Usage};
use crate::ports::{
    ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, ModelSpec, StopReason,
};

/// The longest part of the last block's output in a task's result, in bytes.
const RESULT_BYTES_MAX: usize = 400;

/// The prefix of a block: it ends the block at its first command that fails, like a step of a CI runner. It is in the block's first
/// line, so that the shell's line numbers are those of the block.
const FAILS_AT_ONCE: &str = "set -e; ";

#[derive(Debug, Default, Clone, Copy)]
pub struct Runbook;

/// Builds the client for a member.
///
/// # Errors
/// The settings have a base URL, but the provider uses no server.
pub fn connect(spec: &ModelSpec) -> Result<Arc<dyn ModelClient>, String> {
    match &spec.base_url {
        Some(_) => Err("the runbook provider uses no server: remove `base_url`".to_owned()),
        None => Ok(Arc::new(Runbook)),
    }
}

#[async_trait]
impl ModelClient for Runbook {
    async fn request(&self, request: ModelRequest, _: &dyn Listener) -> Result<ModelResponse, ModelError> {
        Ok(match Progress::read(&request.messages) {
            None => text_response("There is no task to run."),
            Some(progress) => progress.answer(),
        })
    }

    fn is_llm(&self) -> bool {
        false
    }
}

/// The progress of the last claimed task.
struct Progress {
    task: u64,
    scripts: Vec<String>,
    /// The results of all calls after the claim.
    results: Vec<CallResult>,
    /// The answer to the review that the last report waits for, if it has arrived.
    review: Option<Review>,
}

/// The answer to a review.
enum Review {
    Approved,
    /// The feedback in the mail.
    Rejected(String),
}

struct CallResult {
    tool: String,
    output: String,
    is_error: bool,
}

impl Progress {
    /// Reads the progress from the messages; `None` if they contain no claimed task.
    fn read(messages: &[Arc<ChatMessage>]) -> Option<Self> {
        let (at, text) = messages.iter().enumerate().rev().find_map(|(at, message)| {
            let texts = message.content.iter().rev().filter_map(|block| match block {
                Block::Text { text } if message.role == Role::User => Some(text),
                _ => None,
            });
            texts.into_iter().find(|text| text.starts_with("<auto-claimed>")).map(|text| (at, text))
        })?;
        let body = text.trim_start_matches("<auto-claimed>").trim_end_matches("</auto-claimed>");
        let task = body.strip_prefix("Task #")?.split(':').next()?.trim().parse().ok()?;
        let results = results_behind(&messages[at..]);
        let review = results.last().and_then(waits_for).and_then(|id| review_behind(&messages[at..], &id));
        Some(Self { task, scripts: shell_blocks(&unescape_tags(body)), results, review })
    }

    fn answer(&self) -> ModelResponse {
        let reported = self.results.iter().rposition(|result| result.tool == "task_update");
        if let Some(last) = reported {
            let result = &self.results[last];
            match &self.review {
                Some(Review::Approved) => return self.report_completed(),
                Some(Review::Rejected(words)) => {
                    // Another attempt would run the same commands.
                    return self.report_failed(&format!("{REVIEW_REJECTED_IT}: {words}"), true);
                }
                None => {}
            }
            return if result.is_error { self.report_failed(&verdict(&result.output), false) } else { finished() };
        }
        if self.scripts.is_empty() {
            let reason = "the runbook provider runs the fenced sh blocks of a task, and this task has none";
            return self.report_failed(reason, true);
        }
        match self.results.last() {
            Some(result) if result.is_error => {
                let block = format!("block {} of {}", self.results.len(), self.scripts.len());
                self.report_failed(&failure_summary::of_report(&block, &result.output), false)
            }
            _ => match self.scripts.get(self.results.len()) {
                Some(script) => self.call("bash", json!({ "command": format!("{FAILS_AT_ONCE}{script}") })),
                None => self.report_completed(),
            },
        }
    }

    fn report_completed(&self) -> ModelResponse {
        let summary = self.results.iter().rfind(|result| result.tool != "task_update");
        let summary = summary.map_or("", |result| result.output.as_str());
        self.call("task_update", json!({ "task_id": self.task, "status": "completed", "result": failure_summary::last_lines(summary, RESULT_BYTES_MAX) }))
    }

    fn report_failed(&self, reason: &str, is_final: bool) -> ModelResponse {
        let mut input = json!({ "task_id": self.task, "status": "failed", "result": reason });
        if is_final {
            input["final"] = json!(true);
        }
        // A refused failure report is not repeated: the loop releases the claim.
        let failures = self.results.iter().filter(|result| result.tool == "task_update").count();
        if failures > 1 { text_response("The task could not be reported.") } else { self.call("task_update", input) }
    }

    fn call(&self, tool: &str, input: serde_json::Value) -> ModelResponse {
        let id = format!("run-{}-{}", self.task, self.results.len() + 1);
        let content = vec![Block::ToolUse { id, name: tool.to_owned(), input }];
        ModelResponse { content, stop: StopReason::ToolUse, usage: Some(Usage::default()) }
    }
}

/// An empty end of turn: the report has said everything.
fn finished() -> ModelResponse {
    ModelResponse { content: Vec::new(), stop: StopReason::EndTurn, usage: Some(Usage::default()) }
}

fn text_response(text: &str) -> ModelResponse {
    ModelResponse { content: vec![Block::text(text)], stop: StopReason::EndTurn, usage: Some(Usage::default()) }
}

/// The results of the calls in these messages, in order.
fn results_behind(messages: &[Arc<ChatMessage>]) -> Vec<CallResult> {
    let blocks = || messages.iter().flat_map(|message| &message.content);
    let tool_of = |call: &str| {
        blocks().find_map(|block| match block {
            Block::ToolUse { id, name, .. } if id == call => Some(name.clone()),
            _ => None,
        })
    };
    let results = blocks().filter_map(|block| match block {
        Block::ToolResult { tool_use_id, content, is_error } => {
            Some(CallResult { tool: tool_of(tool_use_id)?, output: content.clone(), is_error: *is_error })
        }
        _ => None,
    });
    results.collect()
}

/// The id of the review that a report waits for.
fn waits_for(result: &CallResult) -> Option<String> {
    let (_, rest) = result.output.split_once(WAITS_FOR_REVIEW)?;
    (!result.is_error).then(|| rest.split(' ').next().unwrap_or_default().to_owned())
}

/// The answer to this review in the mail.
fn review_behind(messages: &[Arc<ChatMessage>], id: &str) -> Option<Review> {
    let texts = messages.iter().flat_map(|message| &message.content).filter_map(|block| match block {
        Block::Text { text } if text.starts_with("<inbox>") => Some(text),
        _ => None,
    });
    let answered = |approve: bool| format!("(request_id: {id}) (approve: {approve})");
    let mut lines = texts.flat_map(|text| text.lines());
    while let Some(line) = lines.next() {
        if line.contains(&answered(true)) {
            return Some(Review::Approved);
        }
        if line.contains(&answered(false)) {
            let feedback = lines.next().and_then(|line| line.strip_prefix("feedback: "));
            return Some(Review::Rejected(feedback.unwrap_or("no reason was given").to_owned()));
        }
    }
    None
}

/// The reason of a refused completion, and the evidence below it. It leaves out the advice for another try.
fn verdict(refusal: &str) -> String {
    let (sentence, shows) = refusal.split_once('\n').unwrap_or((refusal, ""));
    let sentence = sentence.split("; task #").next().unwrap_or(sentence);
    format!("{}\n{}", failure_summary::headline(sentence), failure_summary::bounded(shows)).trim_end().to_owned()
}

/// The languages of fenced blocks that are run.
pub const SHELLS: [&str; 3] = ["sh", "bash", "shell"];
/// The languages of programs that are not run.
const PROGRAMS: [&str; 20] = [
    "python",
    "python3",
    "py",
    "ruby",
    "rb",
    "perl",
    "php",
    "node",
    "js",
    "javascript",
    "ts",
    "typescript",
    "lua",
    "r",
    "zsh",
    "fish",
    "ksh",
    "powershell",
    "pwsh",
    "bat",
];

/// The languages of the program blocks that are not run, in a task with blocks that are run.
#[must_use]
pub fn blocks_not_run(description: &str) -> Vec<String> {
    let blocks = fenced_blocks(description);
    let has_shell = blocks.iter().any(|(language, _)| SHELLS.contains(&language.as_str()));
    let languages = blocks.into_iter().map(|(language, _)| language);
    languages.filter(|language| has_shell && PROGRAMS.contains(&language.to_lowercase().as_str())).collect()
}

/// The scripts of the fenced blocks that are run.
#[must_use]
pub fn shell_blocks(markdown: &str) -> Vec<String> {
    let blocks = fenced_blocks(markdown).into_iter();
    blocks.filter(|(language, _)| SHELLS.contains(&language.as_str())).map(|(_, script)| script).collect()
}

/// The fenced blocks as language and content. The closing fence has at least as many characters as the opening one.
fn fenced_blocks(markdown: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(char, usize, String, String)> = None;
    for line in markdown.lines() {
        let text = line.trim_start();
        let fence = text.chars().next().filter(|first| matches!(first, '`' | '~'));
        let length = fence.map_or(0, |mark| text.chars().take_while(|c| *c == mark).count());
        match &mut open {
            None if length >= 3 => {
                let language = text.trim_start_matches(['`', '~']).trim().split([' ', ',', '{']).next().unwrap_or("");
                open = fence.map(|mark| (mark, length, language.to_owned(), String::new()));
            }
            None => {}
            Some((mark, opened, language, script)) => {
                let closes = fence == Some(*mark) && length >= *opened && text.trim_end().chars().all(|c| c == *mark);
                if !closes {
                    script.push_str(line);
                    script.push('\n');
                    continue;
                }
                blocks.push((std::mem::take(language), std::mem::take(script)));
                open = None;
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::prompt::claimed_block;
    use crate::domain::task::{Task, TaskId};

    fn task(description: &str) -> ChatMessage {
        let mut task = Task::new(TaskId(7), "Count");
        task.description = description.to_owned();
        ChatMessage { role: Role::User, content: vec![Block::text(claimed_block(&task, None))] }
    }

    /// Answers the calls with `outputs`, and returns the calls with their main argument.
    fn play(description: &str, outputs: &[(&str, bool)]) -> Vec<String> {
        let mut messages = vec![Arc::new(task(description))];
        let mut calls = Vec::new();
        for turn in 0..10 {
            let response = Progress::read(&messages).unwrap().answer();
            let Some(Block::ToolUse { id, name, input }) = response.content.first() else { return calls };
            let argument = input.get("command").or(input.get("status")).unwrap();
            calls.push(format!("{name} {}", argument.as_str().unwrap().trim()));
            let (content, is_error) = outputs.get(turn).copied().unwrap_or(("ok", false));
            let result = Block::ToolResult { tool_use_id: id.clone(), content: content.into(), is_error };
            messages.push(Arc::new(ChatMessage { role: Role::Assistant, content: response.content.clone() }));
            messages.push(Arc::new(ChatMessage { role: Role::User, content: vec![result] }));
        }
        panic!("it does not end: {calls:?}");
    }

    const TWO: &str = "Text\n```sh\none\n```\nmore\n~~~bash\ntwo\n~~~\n```rust\nno\n```";

    #[test]
    fn runbook_runs_blocks_in_order_and_completes() {
        assert_eq!(play(TWO, &[]), ["bash set -e; one", "bash set -e; two", "task_update completed"]);
    }

    #[test]
    fn runbook_fails_task_on_block_or_completion_error() {
        assert_eq!(play(TWO, &[("exit 1", true)]), ["bash set -e; one", "task_update failed"]);
        assert_eq!(
            play(TWO, &[("", false), ("", false), ("verify: exit 1", true)]),
            ["bash set -e; one", "bash set -e; two", "task_update completed", "task_update failed"]
        );
        assert_eq!(play("nothing to run", &[]), ["task_update failed"]);
        assert_eq!(play(TWO, &[("", true), ("refused", true), ("refused", true)]).len(), 3);
    }

    /// The result that is reported after these outputs.
    fn reported(description: &str, outputs: &[(&str, bool)]) -> String {
        let mut messages = vec![Arc::new(task(description))];
        for (content, is_error) in outputs {
            let response = Progress::read(&messages).unwrap().answer();
            let Block::ToolUse { id, .. } = &response.content[0] else { panic!("no call") };
            let (tool_use_id, content) = (id.clone(), (*content).to_owned());
            let result = Block::ToolResult { tool_use_id, content, is_error: *is_error };
            messages.push(Arc::new(ChatMessage { role: Role::Assistant, content: response.content }));
            messages.push(Arc::new(ChatMessage { role: Role::User, content: vec![result] }));
        }
        let response = Progress::read(&messages).unwrap().answer();
        let Block::ToolUse { input, .. } = &response.content[0] else { panic!("no report") };
        input["result"].as_str().unwrap().to_owned()
    }

    #[test]
    fn runbook_failure_starts_with_exit_then_output() {
        let printed: String = (1..=30).map(|file| format!("compiling file {file}\n")).collect();
        let printed = format!("{printed}error: boom at line 7");
        let reason = reported("```sh\nx\n```", &[(&format!("{printed}\n[exit status 3]"), true)]);
        assert_eq!(reason, format!("block 1 of 1: exit status 3\n{printed}"));
        assert_eq!(failure_summary::summary_of(&reason), "block 1 of 1: exit status 3: error: boom at line 7");
        let conflict = "the work is not merged: the task branch and main conflict in a.py. Merge main into the task branch, and report again; task #7 stays in progress (failure 1 of 3).\ndiff --git a/a.py b/a.py\n";
        let reason = reported("```sh\nx\n```", &[("", false), (&format!("{conflict}{}", "+x\n".repeat(900)), true)]);
        assert!(
            reason.starts_with("the work is not merged: the task branch and main conflict in a.py\ndiff --git a/a.py"),
            "{reason}"
        );
        let refusal =
            "verify `x` failed: exit status 1; task #7 stays in progress (failure 1 of 3).\none\nerror: it is not so";
        let reason = reported("```sh\nx\n```", &[("", false), (refusal, true)]);
        assert_eq!(failure_summary::summary_of(&reason), "verify `x` failed: exit status 1: error: it is not so");
    }

    #[test]
    fn runbook_names_code_blocks_it_does_not_run() {
        assert_eq!(
            blocks_not_run("```sh\na\n```\n```python\nb\n```\n```json\n{}\n```\n~~~Ruby\nc\n~~~"),
            ["python", "Ruby"]
        );
        assert!(
            blocks_not_run("```python\nb\n```").is_empty(),
            "a task without shell blocks fails with its own reason"
        );
    }

    #[test]
    fn shell_block_fence_needs_matching_close() {
        assert_eq!(shell_blocks("````sh\necho '```'\n````\n"), ["echo '```'\n"]);
        assert_eq!(shell_blocks("```sh\nnever closed"), Vec::<String>::new());
        assert_eq!(play("```sh\necho '<inbox>'\n```", &[])[0], "bash set -e; echo '<inbox>'");
    }
}
