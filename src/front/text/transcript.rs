//! A transcript for people: the texts that a member's model was given, its answers, and the results of its tools.

use serde_json::Value;

use super::lines::{cut, indented};
use super::markdown;
use super::style::{BAD, BOLD, BUSY, DIM, PLAIN, paint};
use crate::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use crate::domain::text::units::count;
use crate::domain::text::{one_line, printable};

/// Spaces before the lines of a text.
const INDENT: usize = 2;
/// The most lines of a text that the model was given.
const INPUT_LINES_MAX: usize = 12;

/// The records as text, in their order. Control characters of agents and tools are escaped.
pub fn render(records: &[Record], columns: usize, renders_markdown: bool) -> String {
    let mut out = String::new();
    for record in records {
        let clock = paint(DIM, &record.at.to_clock());
        match &record.entry {
            TranscriptEntry::Message(message) => {
                out.push_str(&format!("{clock}  {}\n", heading(message)));
                for block in &message.content {
                    out.push_str(&block_text(block, message.role, columns, renders_markdown));
                }
            }
            TranscriptEntry::Compaction { summary, covers, .. } => {
                let records = count(usize::try_from(*covers).unwrap_or(usize::MAX), "record");
                let text = if summary.is_empty() {
                    "a new context begins".to_owned()
                } else {
                    format!("a summary replaces {records}")
                };
                out.push_str(&format!("{clock}  {}\n", paint(BOLD, &text)));
                out.push_str(&input_lines(summary, columns));
            }
            TranscriptEntry::Sent(prompt) => {
                let text = format!("sent to the session {}", prompt.session);
                out.push_str(&format!("{clock}  {}\n", paint(DIM, &text)));
            }
        }
    }
    out
}

fn heading(message: &MessageRecord) -> String {
    let task = message.task.map(|task| format!(", task {task}")).unwrap_or_default();
    match message.role {
        Role::Assistant => {
            let tokens = message.usage.map(|usage| format!(", {} tokens", super::cost::grouped(usage.total())));
            format!("{}{}", paint(BOLD, "model"), paint(DIM, &format!("{task}{}", tokens.unwrap_or_default())))
        }
        Role::User => paint(DIM, &format!("given{task}")),
    }
}

fn block_text(block: &Block, role: Role, columns: usize, renders_markdown: bool) -> String {
    match block {
        Block::Text { text } if role == Role::Assistant => markdown::body(text, columns, INDENT, renders_markdown),
        Block::Text { text } => input_lines(text, columns),
        Block::ToolUse { name, input, .. } => {
            let call = format!("{} {}", one_line(name), arguments(input));
            format!("{}{}\n", " ".repeat(INDENT), paint(BUSY, &cut(call.trim_end(), columns.saturating_sub(INDENT))))
        }
        Block::ToolResult { content, is_error, .. } => {
            let text = input_lines(content, columns);
            if *is_error { format!("{}{}\n{text}", " ".repeat(INDENT), paint(BAD, "failed:")) } else { text }
        }
        // For example signed thinking, which only its provider can read.
        Block::Other(_) => String::new(),
    }
}

/// The arguments of a call in one line: a single one without its name.
fn arguments(input: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match input {
        Value::Object(fields) if fields.len() == 1 => fields.values().map(|value| one_line(&text(value))).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{}: {}", one_line(name), one_line(&text(value))));
            fields.collect::<Vec<_>>().join(", ")
        }
        other => one_line(&text(other)),
    }
}

/// The first lines of a text that the model was given, and the number of the others.
fn input_lines(text: &str, columns: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let mut out = String::new();
    for line in lines.iter().take(INPUT_LINES_MAX) {
        let line = cut(&printable(line).replace('\t', "    "), columns.saturating_sub(INDENT));
        out.push_str(&format!("{}{}\n", " ".repeat(INDENT), paint(DIM, &line)));
    }
    if lines.len() > INPUT_LINES_MAX {
        let more = format!("… {}", count(lines.len() - INPUT_LINES_MAX, "more line"));
        out.push_str(&indented(&paint(PLAIN, &more), columns, INDENT));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::task::TaskId;
    use crate::domain::time::UnixMs;

    #[test]
    fn transcript_shows_calls_and_results() {
        let message = |role, content| {
            let message = MessageRecord { task: Some(TaskId(2)), ..MessageRecord::new(role, content) };
            Record { at: UnixMs(1_000), entry: TranscriptEntry::Message(message) }
        };
        let call = |name: &str, input| Block::tool_use("1", name, input);
        let result = |content: String, is_error| Block::ToolResult { tool_use_id: "1".into(), content, is_error };
        let compaction =
            TranscriptEntry::Compaction { summary: "So far so good.".into(), covers: 3, todo_list: String::new() };
        let records = [
            message(Role::User, vec![Block::text("Task #2: Count\nthe \x1b[2Jlines")]),
            message(
                Role::Assistant,
                vec![
                    Block::text("I look at the **files** first."),
                    call("bash", json!({"command": "ls\npwd"})),
                    call("read_file", json!({"path": "a.txt", "offset": 2})),
                ],
            ),
            message(
                Role::User,
                vec![result((1..=20).map(|n| format!("line {n}\n")).collect(), false), result("no file".into(), true)],
            ),
            Record { at: UnixMs(61_000), entry: compaction },
        ];
        let text = anstream::adapter::strip_str(&render(&records, 60, true)).to_string();
        insta::assert_snapshot!(text);
    }
}
