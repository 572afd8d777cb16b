//! The arguments of tools. One struct defines both the JSON Schema that models read and the values that the tool gets.
//!
//! Before serde reads the input, the schema corrects unambiguous mistakes of models: "#3" for 3, "true" for true, a list as text.
//! The error for any other mistake names the expected value.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ToolError;
use super::table::Audience;
use crate::domain::task::{TASK_ID_MAX, TaskId, TaskStatus};
use crate::domain::text::head;
use crate::domain::text::suggestion::nearest;

/// The `format` of task numbers in a schema, which distinguishes them from other integers. Models do not see it.
const TASK_FORMAT: &str = "task";
/// The key of an argument that not every model is told about: `lead`, or `no_one`. It is accepted from all.
const SHOWN_TO: &str = "shown_to";
const SHOWN_TO_LEAD: &str = "lead";

/// The JSON Schema of a tool's arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgumentSchema(Schema);

impl ArgumentSchema {
    /// The schema of the struct `T`, without what small models misread: `null` types, references, titles and defaults.
    pub fn of<T: JsonSchema>() -> Self {
        let settings = SchemaSettings::default().with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        });
        let simplify = RecursiveTransform(simplify);
        Self(settings.with_transform(simplify).into_generator().into_root_schema_for::<T>())
    }

    /// The doc comment of the struct.
    pub fn description(&self) -> String {
        self.0.get("description").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The schema for models, without what they do not need. [`Self::parse`] accepts hidden arguments too.
    pub fn for_models(&self, audience: Audience) -> Value {
        let mut schema = self.0.clone();
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.retain(|_, property| match property.get(SHOWN_TO).and_then(Value::as_str) {
                Some(SHOWN_TO_LEAD) => audience == Audience::Lead,
                Some(_) => false,
                None => true,
            });
        }
        if schema.get("required").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            remove_keys(&mut schema, &["required"]);
        }
        remove_keys(&mut schema, &["description", "additionalProperties"]);
        let simplify = |schema: &mut Schema| remove_keys(schema, &["format", "minimum", "maximum", SHOWN_TO]);
        RecursiveTransform(simplify).transform(&mut schema);
        schema.to_value()
    }

    /// Reads the arguments of a call. `null` counts as a missing argument.
    ///
    /// # Errors
    /// [`ToolError::Recoverable`] names the argument, the expected value and the given one.
    pub fn parse<T: DeserializeOwned>(&self, input: &Value) -> Result<T, ToolError> {
        let mut arguments = Map::new();
        for (name, value) in parse_object(input)?.into_iter().filter(|(_, value)| !value.is_null()) {
            let property = self.property(&name).ok_or_else(|| self.unknown_error(&name))?;
            let value = corrected(property, &value).ok_or_else(|| wrong_value_error(&name, property, &value))?;
            arguments.insert(name, value);
        }
        let mut required = self.0.get("required").and_then(Value::as_array).into_iter().flatten();
        if let Some(name) = required.find_map(|name| name.as_str().filter(|name| !arguments.contains_key(*name))) {
            return Err(self.missing_error(name));
        }
        serde_json::from_value(Value::Object(arguments))
            .map_err(|error| ToolError::Recoverable(format!("wrong arguments: {error}")))
    }

    fn property(&self, name: &str) -> Option<&Value> {
        self.0.get("properties")?.get(name)
    }

    fn missing_error(&self, name: &str) -> ToolError {
        let property = self.property(name).unwrap_or(&Value::Null);
        let about = property["description"].as_str().map(|about| format!(": {about}")).unwrap_or_default();
        ToolError::Recoverable(format!("argument `{name}` is missing{about} ({})", expected(property)))
    }

    fn unknown_error(&self, name: &str) -> ToolError {
        let properties = self.0.get("properties").and_then(Value::as_object);
        let names: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        let near = nearest(name, names.iter().copied());
        let hint = near.map(|near| format!(" Did you mean `{near}`?")).unwrap_or_default();
        let takes = if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") };
        ToolError::Recoverable(format!("unknown argument `{}`; this tool takes {takes}.{hint}", name.escape_debug()))
    }
}

/// Removes `null` types, defaults and titles, which neither models nor [`corrected`] need.
fn simplify(schema: &mut Schema) {
    remove_keys(schema, &["title", "default"]);
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    if let Some(Value::Array(types)) = schema.get("type") {
        let without_null = types.iter().find(|name| *name != "null").cloned();
        schema.insert("type".to_owned(), without_null.unwrap_or_default());
    }
    // The description goes last, so that the type is the first thing that a model reads. A doc comment has several lines.
    if let Some(Value::String(text)) = schema.remove("description") {
        schema.insert("description".to_owned(), text.replace('\n', " ").into());
    }
    if schema.get("type").is_some_and(|name| name == "object") {
        schema.ensure_object().entry("properties").or_insert_with(|| Value::Object(Map::new()));
        schema.ensure_object().entry("required").or_insert_with(|| Value::Array(Vec::new()));
        schema.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Removes keys and keeps the order of the others.
fn remove_keys(schema: &mut Schema, keys: &[&str]) {
    let Some(object) = schema.as_object_mut() else { return };
    for key in keys {
        object.shift_remove(*key);
    }
}

impl JsonSchema for TaskId {
    fn schema_name() -> Cow<'static, str> {
        "TaskId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "format": TASK_FORMAT })
    }
}

impl JsonSchema for TaskStatus {
    fn schema_name() -> Cow<'static, str> {
        "TaskStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": Self::OWN })
    }
}

/// Returns the type of an argument, as its schema says. A word of a list and the number of a task have their own.
fn type_of(schema: &Value) -> &str {
    match schema["type"].as_str().unwrap_or_default() {
        "string" if schema["enum"].is_array() => "enum",
        "integer" if schema["format"] == TASK_FORMAT => TASK_FORMAT,
        other => other,
    }
}

/// The value that an argument must have, for the model.
fn expected(schema: &Value) -> String {
    match type_of(schema) {
        "string" => "text".to_owned(),
        "enum" => {
            let words: Vec<&str> = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            format!("one of {}", words.join(", "))
        }
        "integer" => match (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
            (Some(min), Some(max)) => format!("a whole number from {min} to {max}"),
            (Some(min), None) => format!("a whole number from {min}"),
            _ => "a whole number".to_owned(),
        },
        TASK_FORMAT => "the number of a task, such as 3".to_owned(),
        "boolean" => "true or false".to_owned(),
        "array" => match type_of(&schema["items"]) {
            TASK_FORMAT => "a list of task numbers, such as [1, 2]".to_owned(),
            "string" => "a list of texts, such as [\"a\", \"b\"]".to_owned(),
            _ => "a list".to_owned(),
        },
        other => format!("of type {other}"),
    }
}

/// The value in the form that `schema` requires; `None` if it does not fit. Serde checks types that no correction is known for.
fn corrected(schema: &Value, value: &Value) -> Option<Value> {
    match type_of(schema) {
        "string" => match value {
            Value::String(_) => Some(value.clone()),
            Value::Number(number) => Some(number.to_string().into()),
            _ => None,
        },
        "enum" => {
            let text = value.as_str()?.trim();
            let words = schema["enum"].as_array()?;
            words.iter().find(|word| word.as_str().is_some_and(|word| word.eq_ignore_ascii_case(text))).cloned()
        }
        "integer" => {
            let integer = parse_integer(value)?;
            let min = schema["minimum"].as_i64().unwrap_or(i64::MIN);
            let max = schema["maximum"].as_i64().unwrap_or(i64::MAX);
            if (min..=max).contains(&integer) { Some(integer.into()) } else { None }
        }
        TASK_FORMAT => parse_task_id(value).map(Value::from),
        "boolean" => match value {
            Value::Bool(_) => Some(value.clone()),
            Value::String(text) => text.trim().to_ascii_lowercase().parse::<bool>().ok().map(Value::from),
            _ => None,
        },
        "array" => parse_list(value)?.iter().map(|item| corrected(&schema["items"], item)).collect(),
        _ => Some(value.clone()),
    }
}

fn parse_integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
            Some(float as i64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn parse_task_id(value: &Value) -> Option<u64> {
    let id = match value {
        Value::String(text) => text.trim().trim_start_matches('#').parse().ok()?,
        other => u64::try_from(parse_integer(other)?).ok()?,
    };
    (id <= TASK_ID_MAX).then_some(id)
}

/// Accepts a list, a list as text (JSON or separated by commas), and a single number.
fn parse_list(value: &Value) -> Option<Vec<Value>> {
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

/// The input as an object. Accepts an object as text, and nothing as an empty object.
fn parse_object(input: &Value) -> Result<Map<String, Value>, ToolError> {
    match input {
        Value::Object(map) => Ok(map.clone()),
        Value::Null => Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
        Value::String(text) => serde_json::from_str(text).map_err(|_| not_an_object()),
        _ => Err(not_an_object()),
    }
}

fn not_an_object() -> ToolError {
    ToolError::Recoverable("the arguments are not a JSON object".to_owned())
}

fn wrong_value_error(name: &str, schema: &Value, value: &Value) -> ToolError {
    let text = value.to_string();
    let text = head(&text, 80);
    ToolError::Recoverable(format!("argument `{name}` must be {}; got {text}", expected(schema)))
}

/// Refuses a text of more than `bytes_max` bytes. `advice` follows the limit.
pub(super) fn check_size(name: &str, text: &str, bytes_max: usize, advice: &str) -> Result<(), ToolError> {
    let bytes = text.len();
    if bytes > bytes_max {
        let text = format!("argument `{name}` has {bytes} bytes, at most {bytes_max} are allowed{advice}");
        return Err(ToolError::Recoverable(text));
    }
    Ok(())
}

/// Refuses an empty text.
pub(super) fn check_not_empty(name: &str, text: &str) -> Result<(), ToolError> {
    if text.trim().is_empty() {
        return Err(ToolError::Recoverable(format!("argument `{name}` is empty")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    /// Does nothing,
    /// in two lines.
    #[derive(Debug, Deserialize, JsonSchema)]
    struct Sample {
        /// the task
        task_id: TaskId,
        /// its line
        subject: Option<String>,
        /// its status
        status: Option<TaskStatus>,
        /// how many
        limit: Option<i64>,
        /// no retry
        #[serde(default, rename = "final")]
        is_final: bool,
        /// its blockers
        #[serde(default)]
        blocked_by: Vec<TaskId>,
        /// its roles
        requires: Option<Vec<String>>,
        /// its lines
        lines: Option<u64>,
        /// its level
        level: Option<u8>,
    }

    fn parse(input: Value) -> Result<Sample, String> {
        ArgumentSchema::of::<Sample>().parse(&input).map_err(|error| error.to_string())
    }

    #[test]
    fn unambiguous_sloppy_arguments_are_accepted() {
        for id in [json!(3), json!("3"), json!("#3"), json!(3.0), json!(" #3 ")] {
            assert_eq!(parse(json!({ "task_id": id })).unwrap().task_id, TaskId(3));
        }
        for ids in [json!([1, "#2"]), json!("[1, 2]"), json!("1, #2"), json!("1,2")] {
            let arguments = parse(json!({ "task_id": 3, "blocked_by": ids })).unwrap();
            assert_eq!(arguments.blocked_by, [TaskId(1), TaskId(2)]);
        }
        let one =
            parse(json!({ "task_id": 3, "blocked_by": 1, "requires": "rust, go", "final": "True", "limit": "-4" }));
        let one = one.unwrap();
        assert_eq!(one.blocked_by, [TaskId(1)]);
        assert_eq!(one.requires.unwrap(), ["rust", "go"]);
        assert_eq!((one.is_final, one.limit), (true, Some(-4)));
        let text = parse(json!(r##"{"task_id": "#3", "status": "Completed", "subject": null}"##)).unwrap();
        assert_eq!((text.status, text.subject), (Some(TaskStatus::Completed), None));
        let numbers = parse(json!({ "task_id": 3, "subject": 6, "lines": "7", "level": 8.0 })).unwrap();
        assert_eq!((numbers.subject.unwrap().as_str(), numbers.lines, numbers.level), ("6", Some(7), Some(8)));
    }

    #[test]
    fn ambiguous_argument_error_names_expected_value() {
        for (input, expected) in [
            (json!({}), "`task_id` is missing: the task (the number of a task, such as 3)"),
            (json!({ "task_id": null }), "`task_id` is missing"),
            (json!({ "task_id": "three" }), "`task_id` must be the number of a task, such as 3; got \"three\""),
            (json!({ "task_id": -3 }), "must be the number of a task"),
            (json!({ "task_id": 3.5 }), "must be the number of a task"),
            (json!({ "task_id": 1, "status": "done" }), "one of pending, in_progress, completed, failed; got \"done\""),
            (json!({ "task_id": 1, "requires": { "a": 1 } }), "a list of texts"),
            (json!({ "task_id": 1, "blocked_by": [1, "x"] }), "a list of task numbers"),
            (json!({ "task_id": 1, "lines": -1 }), "`lines` must be a whole number from 0; got -1"),
            (json!({ "task_id": 1, "level": 300 }), "`level` must be a whole number from 0 to 255; got 300"),
            (json!({ "task": 1 }), "unknown argument `task`; this tool takes task_id, subject"),
            (json!({ "task": 1 }), "Did you mean `task_id`?"),
            (json!([1]), "not a JSON object"),
            (json!("hello"), "not a JSON object"),
        ] {
            let error = parse(input.clone()).unwrap_err();
            assert!(error.contains(expected), "{input}: {error} should contain {expected}");
        }
    }

    #[test]
    fn tool_schema_is_simple() {
        let schema = ArgumentSchema::of::<Sample>();
        assert_eq!(schema.description(), "Does nothing, in two lines.");
        let numbers = json!({ "type": "array", "items": { "type": "integer" }, "description": "its blockers" });
        let statuses = json!(["pending", "in_progress", "completed", "failed"]);
        let expected = json!({
            "type": "object",
            "properties": {
                "task_id": { "type": "integer", "description": "the task" },
                "subject": { "type": "string", "description": "its line" },
                "status": { "type": "string", "enum": statuses, "description": "its status" },
                "limit": { "type": "integer", "description": "how many" },
                "final": { "type": "boolean", "description": "no retry" },
                "blocked_by": numbers,
                "requires": { "type": "array", "items": { "type": "string" }, "description": "its roles" },
                "lines": { "type": "integer", "description": "its lines" },
                "level": { "type": "integer", "description": "its level" },
            },
            "required": ["task_id"],
        });
        assert_eq!(schema.for_models(Audience::All).to_string(), expected.to_string());
    }
}
