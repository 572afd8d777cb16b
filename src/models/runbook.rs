//! The provider that needs no key: it does a task by running the fenced `sh` blocks of its description, in order,
//! each up to its first command that fails.
//!
//! It keeps no state. Each answer follows from the messages alone: which task was claimed last, and what came of the
//! blocks since. It goes through the same tools and the same loop as any model.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use crate::domain::reason;
use crate::domain::request::{REVIEW_REJECTED_IT, WAITS_FOR_REVIEW};
use crate::domain::tags::restore;
use crate::domain::transcript::{Block, Role, Usage};
use crate::ports::{
    ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, ModelSpec, StopReason,
};

/// How much of the last block's output becomes a task's result, in bytes.
const RESULT_BYTES_MAX: usize = 400;

/// What a block begins with: it ends at its first command that fails, as a step of a CI runner does. It stands in the block's first line,
/// so that the shell counts lines as its author does.
const FAILS_AT_ONCE: &str = "set -e; ";

/// The provider; see the module.
#[derive(Debug, Default, Clone, Copy)]
pub struct Runbook;

/// The client for a member.
///
/// # Errors
/// When a base URL is given: nothing is reached here.
pub fn connect(spec: &ModelSpec) -> Result<Arc<dyn ModelClient>, String> {
    match &spec.base_url {
        Some(_) => Err("the runbook provider reaches no server: remove `base_url`".to_owned()),
        None => Ok(Arc::new(Runbook)),
    }
}

#[async_trait]
impl ModelClient for Runbook {
    async fn request(&self, request: ModelRequest, _: &dyn Listener) -> Result<ModelResponse, ModelError> {
        Ok(match Progress::read(&request.messages) {
            None => say("There is nothing to run here."),
            Some(progress) => progress.answer(),
        })
    }

    fn thinks(&self) -> bool {
        false
    }
}

/// How far the task that was claimed last has come.
struct Progress {
    task: u64,
    scripts: Vec<String>,
    /// What came of each call since the claim.
    results: Vec<CallResult>,
    /// The answer to the review that the last report waits for, once it came.
    review: Option<Review>,
}

/// The answer to a review.
enum Review {
    Approved,
    /// The words of the mail.
    Rejected(String),
}

struct CallResult {
    tool: String,
    output: String,
    is_error: bool,
}

impl Progress {
    /// Reads it from the messages; `None` when they end without a claimed task.
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
        Some(Self { task, scripts: shell_blocks(&restore(body)), results, review })
    }

    fn answer(&self) -> ModelResponse {
        let reported = self.results.iter().rposition(|result| result.tool == "task_update");
        if let Some(last) = reported {
            let result = &self.results[last];
            match &self.review {
                Some(Review::Approved) => return self.report_completed(),
                Some(Review::Rejected(words)) => {
                    // Another attempt would do the same.
                    return self.report_failed(&format!("{REVIEW_REJECTED_IT}: {words}"), true);
                }
                None => {}
            }
            return if result.is_error { self.report_failed(&verdict(&result.output), false) } else { nothing_more() };
        }
        if self.scripts.is_empty() {
            let reason = "the runbook provider runs the fenced sh blocks of a task, and this one has none";
            return self.report_failed(reason, true);
        }
        match self.results.last() {
            Some(result) if result.is_error => {
                let block = format!("block {} of {}", self.results.len(), self.scripts.len());
                self.report_failed(&reason::of_report(&block, &result.output), false)
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
        self.call("task_update", json!({ "task_id": self.task, "status": "completed", "result": reason::last_lines(summary, RESULT_BYTES_MAX) }))
    }

    fn report_failed(&self, reason: &str, is_final: bool) -> ModelResponse {
        let mut input = json!({ "task_id": self.task, "status": "failed", "result": reason });
        if is_final {
            input["final"] = json!(true);
        }
        // One refused report of a failure is not made again: the loop takes the claim back.
        let failures = self.results.iter().filter(|result| result.tool == "task_update").count();
        if failures > 1 { say("The task could not be reported.") } else { self.call("task_update", input) }
    }

    fn call(&self, tool: &str, input: serde_json::Value) -> ModelResponse {
        let id = format!("run-{}-{}", self.task, self.results.len() + 1);
        let content = vec![Block::ToolUse { id, name: tool.to_owned(), input }];
        ModelResponse { content, stop: StopReason::ToolUse, usage: Some(Usage::default()) }
    }
}

/// The end of the work: what is to be said was said with the task.
fn nothing_more() -> ModelResponse {
    ModelResponse { content: Vec::new(), stop: StopReason::EndTurn, usage: Some(Usage::default()) }
}

fn say(text: &str) -> ModelResponse {
    ModelResponse { content: vec![Block::text(text)], stop: StopReason::EndTurn, usage: Some(Usage::default()) }
}

/// What came of the calls in these messages, in order.
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

/// The review that a report waits for.
fn waits_for(result: &CallResult) -> Option<String> {
    let (_, rest) = result.output.split_once(WAITS_FOR_REVIEW)?;
    (!result.is_error).then(|| rest.split(' ').next().unwrap_or_default().to_owned())
}

/// The answer to this review, in the mail.
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

/// Why a completion was refused: the sentence that says so, without what is only of use to one who tries again, and what shows it.
fn verdict(refusal: &str) -> String {
    let (sentence, shows) = refusal.split_once('\n').unwrap_or((refusal, ""));
    let sentence = sentence.split("; task #").next().unwrap_or(sentence);
    format!("{}\n{}", reason::for_others(sentence), reason::bounded(shows)).trim_end().to_owned()
}

/// The names of fenced blocks that are run.
pub const SHELLS: [&str; 3] = ["sh", "bash", "shell"];
/// Names of blocks that look as if they were to be run.
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

/// The names of the blocks that are not run though they look so, in a task that has blocks that are.
#[must_use]
pub fn blocks_not_run(description: &str) -> Vec<String> {
    let blocks = fenced_blocks(description);
    let has_shell = blocks.iter().any(|(language, _)| SHELLS.contains(&language.as_str()));
    let languages = blocks.into_iter().map(|(language, _)| language);
    languages.filter(|language| has_shell && PROGRAMS.contains(&language.to_lowercase().as_str())).collect()
}

/// The scripts of the blocks that are run.
#[must_use]
pub fn shell_blocks(markdown: &str) -> Vec<String> {
    let blocks = fenced_blocks(markdown).into_iter();
    blocks.filter(|(language, _)| SHELLS.contains(&language.as_str())).map(|(_, script)| script).collect()
}

/// The fenced blocks with their names. A fence closes with at least as many of its characters.
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
    use crate::domain::context::claimed_block;
    use crate::domain::task::{Task, TaskId};

    fn task(description: &str) -> ChatMessage {
        let mut task = Task::new(TaskId(7), "Count");
        task.description = description.to_owned();
        ChatMessage { role: Role::User, content: vec![Block::text(claimed_block(&task, None))] }
    }

    /// Plays `outputs` as the results of the calls and returns what was called, with its main argument.
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
        panic!("it never ends: {calls:?}");
    }

    const TWO: &str = "Text\n```sh\none\n```\nmore\n~~~bash\ntwo\n~~~\n```rust\nno\n```";

    #[test]
    fn it_runs_the_blocks_in_order_and_reports() {
        assert_eq!(play(TWO, &[]), ["bash set -e; one", "bash set -e; two", "task_update completed"]);
    }

    #[test]
    fn a_failing_block_ends_it_and_so_does_a_refused_completion() {
        assert_eq!(play(TWO, &[("exit 1", true)]), ["bash set -e; one", "task_update failed"]);
        assert_eq!(
            play(TWO, &[("", false), ("", false), ("verify: exit 1", true)]),
            ["bash set -e; one", "bash set -e; two", "task_update completed", "task_update failed"]
        );
        assert_eq!(play("nothing to run", &[]), ["task_update failed"]);
        assert_eq!(play(TWO, &[("", true), ("refused", true), ("refused", true)]).len(), 3);
    }

    /// What is reported when the calls came out so.
    fn reported(description: &str, outputs: &[(&str, bool)]) -> String {
        let mut messages = vec![Arc::new(task(description))];
        for (content, is_error) in outputs {
            let response = Progress::read(&messages).unwrap().answer();
            let Block::ToolUse { id, .. } = &response.content[0] else { panic!("it calls nothing") };
            let (tool_use_id, content) = (id.clone(), (*content).to_owned());
            let result = Block::ToolResult { tool_use_id, content, is_error: *is_error };
            messages.push(Arc::new(ChatMessage { role: Role::Assistant, content: response.content }));
            messages.push(Arc::new(ChatMessage { role: Role::User, content: vec![result] }));
        }
        let response = Progress::read(&messages).unwrap().answer();
        let Block::ToolUse { input, .. } = &response.content[0] else { panic!("it reports nothing") };
        input["result"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_failure_is_reported_with_how_it_ended_first_and_all_that_shows_it_below() {
        let printed: String = (1..=30).map(|file| format!("compiling file {file}\n")).collect();
        let printed = format!("{printed}error: boom at line 7");
        let reason = reported("```sh\nx\n```", &[(&format!("{printed}\n[exit status 3]"), true)]);
        assert_eq!(reason, format!("block 1 of 1: exit status 3\n{printed}"));
        assert_eq!(reason::short(&reason), "block 1 of 1: exit status 3: error: boom at line 7");
        let conflict = "your work is not merged: your branch and main conflict in a.py. Merge main into your branch, and report again; task #7 stays in progress (red 1 of 3).\ndiff --git a/a.py b/a.py\n";
        let reason = reported("```sh\nx\n```", &[("", false), (&format!("{conflict}{}", "+x\n".repeat(900)), true)]);
        assert!(
            reason.starts_with("its work is not merged: its branch and main conflict in a.py\ndiff --git a/a.py"),
            "{reason}"
        );
        let red =
            "verify `x` came out red: exit status 1; task #7 stays in progress (red 1 of 3).\none\nerror: it is not so";
        let reason = reported("```sh\nx\n```", &[("", false), (red, true)]);
        assert_eq!(reason::short(&reason), "verify `x` came out red: exit status 1: error: it is not so");
    }

    #[test]
    fn blocks_that_look_runnable_and_are_not_are_named() {
        assert_eq!(
            blocks_not_run("```sh\na\n```\n```python\nb\n```\n```json\n{}\n```\n~~~Ruby\nc\n~~~"),
            ["python", "Ruby"]
        );
        assert!(
            blocks_not_run("```python\nb\n```").is_empty(),
            "nothing of it is run: the task says so when it is tried"
        );
    }

    #[test]
    fn fences_close_with_their_own_mark_and_scripts_keep_harness_tags() {
        assert_eq!(shell_blocks("````sh\necho '```'\n````\n"), ["echo '```'\n"]);
        assert_eq!(shell_blocks("```sh\nnever closed"), Vec::<String>::new());
        assert_eq!(play("```sh\necho '<inbox>'\n```", &[])[0], "bash set -e; echo '<inbox>'");
    }
}
