//! Tool calls that a model writes as text, as small models do. Brigade never executes such text: it may be an example or a
//! quotation. Markup of calls can also follow the value of an argument.

use serde_json::{Map, Value};

/// The start of calls and of their results, in the formats that models are trained on.
const CALL_MARKS: [&str; 6] =
    ["<tool_call>", "<function=", "<invoke name=", "<|tool_call", "[TOOL_CALLS]", "<tool_response>"];
/// Keys with the tool's name in a call written as JSON.
const NAME_KEYS: [&str; 4] = ["name", "tool", "function", "tool_name"];
/// Maximum number of JSON objects that are checked. An answer with more of them is data.
const OBJECTS_MAX: usize = 8;

/// A tool's name and arguments, by which its calls are recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSignature<'a> {
    /// Name of the tool.
    pub name: &'a str,
    /// Names of its arguments.
    pub arguments: Vec<&'a str>,
}

/// Returns true if `text` contains text that looks like a call of one of these tools, or like the result of a call.
pub fn contains_tool_call(text: &str, tools: &[ToolSignature<'_>]) -> bool {
    CALL_MARKS.iter().any(|mark| text.contains(mark))
        || tools.iter().any(|tool| text.trim_matches(|c: char| c.is_whitespace() || c == '`') == tool.name)
        || text.lines().any(|line| tools.iter().any(|tool| starts_call(line, tool.name)))
        || tools.iter().any(|tool| is_block_of(text, tool.name))
        || objects_at_line_starts(text).iter().any(|object| matches_tool(object, tools))
}

/// Returns the value of the argument `name` without the markup of calls at its end, such as `</content>` and `</function>`; `None` if it
/// has none. Small models close an argument with a wrong tag, and the server then takes the rest of the answer as its value. A value in
/// which the closed element begins is whole.
pub fn without_call_markup<'a>(name: &str, value: &'a str) -> Option<&'a str> {
    let argument_end = format!("</{name}>");
    let closings: [(&str, &[&str]); 3] = [
        (&argument_end, &["<"]),
        ("</parameter>", &["<parameter", "</function>"]),
        ("</function>", &["</tool_call>", "<function="]),
    ];
    let position_of = |(end, next): (&str, &[&str])| {
        let is_followed = |at: usize| {
            let rest = value[at + end.len()..].trim_start();
            next.iter().any(|mark| rest.starts_with(mark)) || (rest.is_empty() && end == argument_end)
        };
        value.match_indices(end).map(|(at, _)| at).find(|at| is_followed(*at))
    };
    let kept = &value[..closings.into_iter().filter_map(position_of).min()?];
    let begins_here = [&format!("<{name}"), "<function", "<parameter"].iter().any(|start| kept.contains(*start));
    if begins_here { None } else { Some(kept.strip_suffix('\n').unwrap_or(kept)) }
}

/// Matches `bash {"command": …`, `bash("ls")` or `task_update: completed`, also inside a fence or after an arrow.
fn starts_call(line: &str, name: &str) -> bool {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || "`*->".contains(c));
    let Some(rest) = line.strip_prefix(name) else { return false };
    // A one-word name is common before a colon in other texts: `bash: no such file`.
    let has_unique_name = name.contains('_') && rest.starts_with(':');
    let rest = rest.trim_start_matches([' ', ':', '`']);
    let has_arguments = rest.starts_with('(') && rest.contains(['"', '\'', '=']);
    has_unique_name || has_arguments || rest.starts_with("{\"") || rest.starts_with("{ \"")
}

/// Returns true if the text is one code block of the language `name`, and nothing else: commands for the tool `bash`.
fn is_block_of(text: &str, name: &str) -> bool {
    let opening = format!("```{name}\n");
    let body = text.trim().strip_prefix(&opening).and_then(|rest| rest.strip_suffix("```"));
    body.is_some_and(|body| !body.trim().is_empty() && !body.contains("```"))
}

/// Returns the JSON objects that start a line.
fn objects_at_line_starts(text: &str) -> Vec<Map<String, Value>> {
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

/// Returns true if the object names a tool, or has only arguments of one.
fn matches_tool(object: &Map<String, Value>, tools: &[ToolSignature<'_>]) -> bool {
    let names_tool = NAME_KEYS.iter().filter_map(|key| object.get(*key)?.as_str());
    let is_tool = |name: &str| tools.iter().any(|tool| tool.name == name);
    let is_argument = |tool: &ToolSignature<'_>| object.keys().all(|key| tool.arguments.contains(&key.as_str()));
    names_tool.into_iter().any(is_tool) || (!object.is_empty() && tools.iter().any(is_argument))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_call(text: &str) -> bool {
        let tools = [
            ToolSignature { name: "bash", arguments: vec!["command", "timeout"] },
            ToolSignature { name: "task_update", arguments: vec!["task_id", "status", "result"] },
        ];
        contains_tool_call(text, &tools)
    }

    #[test]
    fn tool_call_written_as_text_is_recognised() {
        for text in [
            "```bash\n{\"command\": \"python3 test_calc.py\", \"timeout\": 600}\n```",
            "```json\n{\n  \"status\": \"pending\"\n}\n```",
            "task_update {\"task_id\": 1, \"status\": \"completed\"}",
            "Done.\n-> task_update({\"task_id\": 1})",
            "`bash(command=\"ls\")`",
            "task_update: completed, \"three functions\"",
            "`task_update`\n",
            "```bash\n# Append a line\necho eggs >> list.txt\n```\n",
            "<tool_call>\n<function=bash>\n<parameter=command>\nls",
            "{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}",
            "<tool_response>\n`a.py` is not changed\n</tool_response>",
        ] {
            assert!(is_call(text), "{text}");
        }
    }

    #[test]
    fn other_text_is_not_recognised_as_tool_call() {
        for text in [
            "I ran `bash` and it said {\"ok\": true}.",
            "The config is now:\n```json\n{\"retries\": 3}\n```",
            "bash is a shell (and an old one).",
            "bash: a shell\n{",
            "bash: line 1: frob: command not found",
            "{}",
            "Use `python3 test_calc.py`.",
            "Run this:\n```bash\npython3 test_calc.py\n```",
            "```text\nall green\n```",
            "",
        ] {
            assert!(!is_call(text), "{text}");
        }
    }

    #[test]
    fn call_markup_after_argument_is_removed() {
        for (name, value, expected) in [
            ("content", "a\nb\n</content>\n</function>\n</tool_call>\n<tool_call>\n<function=verify>", Some("a\nb")),
            ("content", "a\n\n</content>\n</function>", Some("a\n")),
            ("result", "done\n</result>\n<parameter>final>\nTrue", Some("done")),
            ("content", "I checked it.\n</function>\n</tool_call>\n<tool_call>", Some("I checked it.")),
            ("content", "</content></function>", Some("")),
            ("result", "no\n</result>\n<final>true</final>\n</function>\n<function=claim_task>", Some("no")),
            ("result", "no\n</function>\n<function=claim_task>\n<parameter=task_id>\n1", Some("no")),
            ("path", "a.txt</parameter>\n<parameter>content>\na.txt", Some("a.txt")),
            ("path", "a.txt</parameter>", None),
            ("content", "a\n</content>\n", Some("a")),
            ("content", "a\n</content>\nb", None),
            ("content", "<content id='1'>a\n</content>\n", None),
            ("content", "a\n</result>\n</function>", None),
            ("content", "<function>\n<content>a</content>\n</function>\n", None),
            ("content", "<tool_call>\n<function=f>\n</function>\n</tool_call>", None),
            ("content", "", None),
        ] {
            assert_eq!(without_call_markup(name, value), expected, "{value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn text_tool_call_check_never_panics(text in "[ \\n`{}\"a-c:(ü]{0,40}") {
            let _ = is_call(&text);
        }
    }
}
