//! The arguments of tools: one list of parameters gives the schema and the check of the input.
//!
//! Unambiguous mistakes of models are accepted: "#3" for 3, "true" for true, a list as text. The error for any other mistake
//! names the expected value.

use serde_json::{Map, Value, json};

use super::ToolError;
use crate::domain::task::{TASK_ID_MAX, TaskId};

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterType {
    Text,
    Word(&'static [&'static str]),
    Integer,
    Boolean,
    Task,
    Tasks,
    Texts,
}

#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    name: &'static str,
    parameter_type: ParameterType,
    is_required: bool,
    about: &'static str,
}

#[must_use]
pub const fn required(name: &'static str, parameter_type: ParameterType, about: &'static str) -> Parameter {
    Parameter { name, parameter_type, is_required: true, about }
}

#[must_use]
pub const fn optional(name: &'static str, parameter_type: ParameterType, about: &'static str) -> Parameter {
    Parameter { name, parameter_type, is_required: false, about }
}

/// The JSON Schema of the parameters.
pub(super) fn schema(parameters: &[Parameter]) -> Value {
    let properties: Map<String, Value> = parameters
        .iter()
        .map(|parameter| {
            let mut property = parameter.parameter_type.schema();
            property["description"] = parameter.about.into();
            (parameter.name.to_owned(), property)
        })
        .collect();
    let required: Vec<&str> = parameters.iter().filter(|p| p.is_required).map(|p| p.name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

impl ParameterType {
    fn schema(self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Word(words) => json!({ "type": "string", "enum": words }),
            Self::Integer | Self::Task => json!({ "type": "integer" }),
            Self::Boolean => json!({ "type": "boolean" }),
            Self::Tasks => json!({ "type": "array", "items": { "type": "integer" } }),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        }
    }

    fn expected(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Integer => "a whole number".to_owned(),
            Self::Boolean => "true or false".to_owned(),
            Self::Task => "the number of a task, such as 3".to_owned(),
            Self::Tasks => "a list of task numbers, such as [1, 2]".to_owned(),
            Self::Texts => "a list of texts, such as [\"a\", \"b\"]".to_owned(),
        }
    }

    /// The value in its normal form; `None` if it does not fit this type.
    fn read(self, value: &Value) -> Option<Value> {
        match self {
            Self::Text => match value {
                Value::String(_) => Some(value.clone()),
                Value::Number(number) => Some(number.to_string().into()),
                _ => None,
            },
            Self::Word(words) => {
                let text = value.as_str()?.trim();
                words.iter().find(|word| word.eq_ignore_ascii_case(text)).map(|word| Value::from(*word))
            }
            Self::Integer => integer(value).map(Value::from),
            Self::Boolean => match value {
                Value::Bool(_) => Some(value.clone()),
                Value::String(text) if text.trim().eq_ignore_ascii_case("true") => Some(true.into()),
                Value::String(text) if text.trim().eq_ignore_ascii_case("false") => Some(false.into()),
                _ => None,
            },
            Self::Task => task(value).map(|id| id.0.into()),
            Self::Tasks => list(value)?.iter().map(|item| task(item).map(|id| Value::from(id.0))).collect(),
            Self::Texts => list(value)?.iter().map(|item| Self::Text.read(item)).collect(),
        }
    }
}

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
            Some(float as i64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn task(value: &Value) -> Option<TaskId> {
    let id = match value {
        Value::String(text) => text.trim().trim_start_matches('#').parse().ok()?,
        other => u64::try_from(integer(other)?).ok()?,
    };
    (id <= TASK_ID_MAX).then_some(TaskId(id))
}

/// Accepts a list, a list as text (JSON or separated by commas), and a single number.
fn list(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) => Some(items.clone()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Array(items)) => Some(items),
            _ => Some(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect()),
        },
        Value::Number(_) => Some(vec![value.clone()]),
        _ => None,
    }
}

/// The checked arguments of a call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arguments(Map<String, Value>);

impl Arguments {
    /// Checks `input` against the parameters. `null` counts as a missing argument.
    ///
    /// # Errors
    /// [`ToolError::Recoverable`] names the argument, the expected value and the given one.
    pub fn read(parameters: &[Parameter], input: &Value) -> Result<Self, ToolError> {
        let values = object(input)?;
        let mut arguments = Map::new();
        for (name, value) in values.iter().filter(|(_, value)| !value.is_null()) {
            let parameter = parameters.iter().find(|parameter| parameter.name == name);
            let parameter = parameter.ok_or_else(|| unknown(name, parameters))?;
            let read = parameter.parameter_type.read(value).ok_or_else(|| wrong(parameter, value))?;
            arguments.insert(name.clone(), read);
        }
        let missing =
            parameters.iter().find(|parameter| parameter.is_required && !arguments.contains_key(parameter.name));
        match missing {
            Some(parameter) => Err(ToolError::Recoverable(format!(
                "argument `{}` is missing: {} ({})",
                parameter.name,
                parameter.about,
                parameter.parameter_type.expected()
            ))),
            None => Ok(Self(arguments)),
        }
    }

    /// A required text. Empty if it is missing, which only an optional parameter can be.
    pub(super) fn text(&self, name: &str) -> &str {
        self.optional_text(name).unwrap_or_default()
    }

    pub(super) fn optional_text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    pub(super) fn integer(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.as_i64()
    }

    /// A flag; false if it is missing.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// A task's number. If it is missing, 0, which is no task.
    pub(super) fn task(&self, name: &str) -> TaskId {
        TaskId(self.0.get(name).and_then(Value::as_u64).unwrap_or_default())
    }

    /// The numbers of tasks; empty if they are missing.
    pub(super) fn tasks(&self, name: &str) -> Vec<TaskId> {
        self.items(name).filter_map(Value::as_u64).map(TaskId).collect()
    }

    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        self.0.get(name)?;
        Some(self.items(name).filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Returns true if an argument other than `names` was given.
    pub(super) fn has_other_than(&self, names: &[&str]) -> bool {
        self.0.keys().any(|name| !names.contains(&name.as_str()))
    }

    fn items(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.0.get(name).and_then(Value::as_array).into_iter().flatten()
    }
}

/// The input as an object. Accepts an object as text, and nothing as an empty object.
fn object(input: &Value) -> Result<Map<String, Value>, ToolError> {
    match input {
        Value::Object(map) => Ok(map.clone()),
        Value::Null => Ok(Map::new()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(map),
            _ if text.trim().is_empty() => Ok(Map::new()),
            _ => Err(ToolError::Recoverable("the arguments are not a JSON object".to_owned())),
        },
        _ => Err(ToolError::Recoverable("the arguments are not a JSON object".to_owned())),
    }
}

fn unknown(name: &str, parameters: &[Parameter]) -> ToolError {
    let nearest = parameters
        .iter()
        .map(|parameter| (strsim::jaro_winkler(name, parameter.name), parameter.name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = nearest.map(|(_, near)| format!(" Did you mean `{near}`?")).unwrap_or_default();
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    let takes = if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") };
    ToolError::Recoverable(format!("unknown argument `{}`; this tool takes {takes}.{hint}", name.escape_debug()))
}

fn wrong(parameter: &Parameter, value: &Value) -> ToolError {
    let text = value.to_string();
    let text = crate::domain::output::head_of(&text, 80);
    ToolError::Recoverable(format!(
        "argument `{}` must be {}; got {text}",
        parameter.name,
        parameter.parameter_type.expected()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETERS: [Parameter; 7] = [
        required("task_id", ParameterType::Task, "the task"),
        optional("subject", ParameterType::Text, "its line"),
        optional("status", ParameterType::Word(&["pending", "completed"]), "its status"),
        optional("limit", ParameterType::Integer, "how many"),
        optional("final", ParameterType::Boolean, "no retry"),
        optional("blocked_by", ParameterType::Tasks, "its blockers"),
        optional("requires", ParameterType::Texts, "its roles"),
    ];

    fn read(input: Value) -> Result<Arguments, String> {
        Arguments::read(&PARAMETERS, &input).map_err(|error| error.to_string())
    }

    #[test]
    fn unambiguous_sloppy_arguments_are_accepted() {
        for id in [json!(3), json!("3"), json!("#3"), json!(3.0), json!(" #3 ")] {
            assert_eq!(read(json!({ "task_id": id })).unwrap().task("task_id"), TaskId(3));
        }
        for ids in [json!([1, "#2"]), json!("[1, 2]"), json!("1, #2"), json!("1,2")] {
            let arguments = read(json!({ "task_id": 3, "blocked_by": ids })).unwrap();
            assert_eq!(arguments.tasks("blocked_by"), [TaskId(1), TaskId(2)]);
        }
        let one =
            read(json!({ "task_id": 3, "blocked_by": 1, "requires": "rust, go", "final": "True", "limit": "-4" }));
        let one = one.unwrap();
        assert_eq!(one.tasks("blocked_by"), [TaskId(1)]);
        assert_eq!(one.texts("requires").unwrap(), ["rust", "go"]);
        assert_eq!((one.flag("final"), one.integer("limit")), (true, Some(-4)));
        assert_eq!(read(json!(r##"{"task_id": "#3", "status": "Completed", "subject": null}"##)).unwrap().0.len(), 2);
    }

    #[test]
    fn ambiguous_argument_error_names_expected_value() {
        for (input, expected) in [
            (json!({}), "`task_id` is missing"),
            (json!({ "task_id": null }), "`task_id` is missing"),
            (json!({ "task_id": "three" }), "`task_id` must be the number of a task, such as 3; got \"three\""),
            (json!({ "task_id": -3 }), "must be the number of a task"),
            (json!({ "task_id": 3.5 }), "must be the number of a task"),
            (json!({ "task_id": 1, "status": "done" }), "one of pending, completed; got \"done\""),
            (json!({ "task_id": 1, "requires": { "a": 1 } }), "a list of texts"),
            (json!({ "task_id": 1, "blocked_by": [1, "x"] }), "a list of task numbers"),
            (json!({ "task": 1 }), "unknown argument `task`; this tool takes task_id, subject"),
            (json!({ "task": 1 }), "Did you mean `task_id`?"),
            (json!([1]), "not a JSON object"),
            (json!("hello"), "not a JSON object"),
        ] {
            let error = read(input.clone()).unwrap_err();
            assert!(error.contains(expected), "{input}: {error} should contain {expected}");
        }
    }

    #[test]
    fn tool_schema_matches_parameters() {
        let schema = schema(&PARAMETERS);
        assert_eq!(schema["required"], json!(["task_id"]));
        assert_eq!(schema["properties"]["status"]["enum"], json!(["pending", "completed"]));
        assert_eq!(schema["additionalProperties"], json!(false));
    }
}
