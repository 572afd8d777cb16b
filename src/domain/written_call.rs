//! Tool calls that a model writes as text instead of making them, as small models do. Such text stays text: it is never
//! carried out, because what only looks like a call may be an example, or somebody else's words.

use serde_json::{Map, Value};

/// How calls begin in the forms models are trained on.
const MARKS: [&str; 5] = ["<tool_call>", "<function=", "<invoke name=", "<|tool_call", "[TOOL_CALLS]"];
/// Keys under which a call written as JSON names its tool.
const NAME_KEYS: [&str; 4] = ["name", "tool", "function", "tool_name"];
/// JSON objects that are looked at; an answer with more of them is data.
const OBJECTS_MAX: usize = 8;

/// A tool, as far as its calls can be told by their looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callable<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its arguments.
    pub arguments: Vec<&'a str>,
}

/// Whether `text` holds what looks like a call of one of these tools.
#[must_use]
pub fn is_written_call(text: &str, tools: &[Callable<'_>]) -> bool {
    MARKS.iter().any(|mark| text.contains(mark))
        || tools.iter().any(|tool| text.trim_matches(|c: char| c.is_whitespace() || c == '`') == tool.name)
        || text.lines().any(|line| tools.iter().any(|tool| begins_call(line, tool.name)))
        || objects(text).iter().any(|object| fits(object, tools))
}

/// `bash {"command": …`, `bash("ls")` or `task_update: completed`, also within a fence or behind an arrow.
fn begins_call(line: &str, name: &str) -> bool {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || "`*->".contains(c));
    let Some(rest) = line.strip_prefix(name) else { return false };
    // A name of one word stands before a colon in other texts too: `bash: no such file`.
    let is_told_apart = name.contains('_') && rest.starts_with(':');
    let rest = rest.trim_start_matches([' ', ':', '`']);
    let has_arguments = rest.starts_with('(') && rest.contains(['"', '\'', '=']);
    is_told_apart || has_arguments || rest.starts_with("{\"") || rest.starts_with("{ \"")
}

/// The JSON objects that begin a line.
fn objects(text: &str) -> Vec<Map<String, Value>> {
    let mut next_line = 0;
    let starts = text.split_inclusive('\n').filter_map(|line| {
        let rest = line.trim_start_matches([' ', '`', '\t']);
        let at = next_line + line.len() - rest.len();
        next_line += line.len();
        rest.starts_with('{').then_some(at)
    });
    let objects = starts.take(OBJECTS_MAX).filter_map(|at| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Map<String, Value>>();
        values.next()?.ok()
    });
    objects.collect()
}

/// Whether the object names a tool, or has nothing but arguments of one.
fn fits(object: &Map<String, Value>, tools: &[Callable<'_>]) -> bool {
    let names_tool = NAME_KEYS.iter().filter_map(|key| object.get(*key)?.as_str());
    let is_tool = |name: &str| tools.iter().any(|tool| tool.name == name);
    let is_argument = |tool: &Callable<'_>| object.keys().all(|key| tool.arguments.contains(&key.as_str()));
    names_tool.into_iter().any(is_tool) || (!object.is_empty() && tools.iter().any(is_argument))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_call(text: &str) -> bool {
        let tools = [
            Callable { name: "bash", arguments: vec!["command", "timeout"] },
            Callable { name: "task_update", arguments: vec!["task_id", "status", "result"] },
        ];
        is_written_call(text, &tools)
    }

    #[test]
    fn calls_are_known_in_the_forms_small_models_write_them() {
        for text in [
            "```bash\n{\"command\": \"python3 test_calc.py\", \"timeout\": 600}\n```",
            "```json\n{\n  \"status\": \"pending\"\n}\n```",
            "task_update {\"task_id\": 1, \"status\": \"completed\"}",
            "Done.\n-> task_update({\"task_id\": 1})",
            "`bash(command=\"ls\")`",
            "task_update: completed, \"three functions\"",
            "`task_update`\n",
            "<tool_call>\n<function=bash>\n<parameter=command>\nls",
            "{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}",
        ] {
            assert!(is_call(text), "{text}");
        }
    }

    #[test]
    fn other_text_is_no_call() {
        for text in [
            "I ran `bash` and it said {\"ok\": true}.",
            "The config is now:\n```json\n{\"retries\": 3}\n```",
            "bash is a shell (and an old one).",
            "bash: a shell\n{",
            "bash: line 1: frob: command not found",
            "{}",
            "Use `python3 test_calc.py`.",
            "",
        ] {
            assert!(!is_call(text), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_look_fail(text in "[ \\n`{}\"a-c:(ü]{0,40}") {
            let _ = is_call(&text);
        }
    }
}
