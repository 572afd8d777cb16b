//! Generates the JSON Schema of `brigade.toml` from the tables of settings, for editors.

use serde_json::{Map, Value, json};

use super::settings::{self, LIMITS, Setting, ValueKind};
use crate::domain::team::team_spec::Limits;

/// Returns the text of `schema/brigade.schema.json`.
pub fn text() -> String {
    let mut schema = table(settings::TOP_SETTINGS, &[]);
    schema.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".into(), json!("brigade.toml"));
    schema.insert("description".into(), json!("The teams of a workspace."));
    // Writing a value whose keys are all strings cannot fail.
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

fn table(settings: &[Setting], required: &[&str]) -> Map<String, Value> {
    let properties: Map<String, Value> =
        settings.iter().map(|setting| (setting.key.to_owned(), property(setting))).collect();
    let mut schema = Map::new();
    schema.insert("type".into(), json!("object"));
    schema.insert("additionalProperties".into(), json!(false));
    schema.insert("properties".into(), Value::Object(properties));
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    schema
}

fn property(setting: &Setting) -> Value {
    let mut schema = match setting.kind {
        ValueKind::Text | ValueKind::Command | ValueKind::Address | ValueKind::Prompt | ValueKind::Path => {
            object(json!({ "type": "string" }))
        }
        ValueKind::Name => object(json!({ "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$" })),
        ValueKind::Provider => {
            let names: Vec<&str> = settings::providers().collect();
            object(json!({ "type": "string", "enum": names }))
        }
        ValueKind::Choice(words) => object(json!({ "type": "string", "enum": words })),
        ValueKind::Words => object(json!({ "type": "array", "items": { "type": "string" } })),
        ValueKind::Flag => object(json!({ "type": "boolean" })),
        ValueKind::Integer(min, max) => object(json!({ "type": "integer", "minimum": min, "maximum": max })),
        ValueKind::Decimal(max) => object(json!({ "type": "number", "minimum": 0, "maximum": max })),
        ValueKind::Texts => object(json!({ "type": "object", "additionalProperties": { "type": "string" } })),
        ValueKind::Json => object(json!({ "type": "object" })),
        ValueKind::Table(inner) | ValueKind::Record(inner) => table(inner, &[]),
        ValueKind::Tables(inner) => object(json!({ "type": "array", "items": table(inner, &["name"]) })),
        ValueKind::Named(inner) if setting.key == "teams" => object(json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$" },
            "additionalProperties": table(inner, &[]),
        })),
        ValueKind::Named(inner) if setting.key == "models" => object(json!({
            "type": "object",
            "additionalProperties": table(inner, &["provider"]),
        })),
        ValueKind::Named(inner) => object(json!({ "type": "object", "additionalProperties": table(inner, &[]) })),
    };
    if let Some(limit) = LIMITS.iter().find(|limit| limit.setting == *setting) {
        schema.insert("default".into(), json!((limit.get)(&Limits::default())));
    }
    let variable = setting.variable.map(|variable| format!(" Environment: {variable}.")).unwrap_or_default();
    schema.insert("description".into(), json!(format!("{}{variable}", setting.description)));
    Value::Object(schema)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn published_schema_matches_settings_tables() {
        let published = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/brigade.schema.json");
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/schema")).unwrap();
            std::fs::write(published, super::text()).unwrap();
        }
        let text = std::fs::read_to_string(published).unwrap();
        assert!(text == super::text(), "run `brigade config schema > schema/brigade.schema.json`");
    }
}
