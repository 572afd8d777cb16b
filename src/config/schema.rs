//! Generates the JSON Schema of `brigade.toml` from the tables of settings, for editors.

use serde_json::{Map, Value, json};

use super::settings::{self, Setting, ValueKind};

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
            json!({ "type": "string" })
        }
        ValueKind::Name => json!({ "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$" }),
        ValueKind::Provider => json!({ "type": "string", "enum": settings::providers().collect::<Vec<_>>() }),
        ValueKind::Choice(words) => json!({ "type": "string", "enum": words }),
        ValueKind::Words => json!({ "type": "array", "items": { "type": "string" } }),
        ValueKind::Flag => json!({ "type": "boolean" }),
        ValueKind::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueKind::Decimal(max) => json!({ "type": "number", "minimum": 0, "maximum": max }),
        ValueKind::Texts => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        ValueKind::Json => json!({ "type": "object" }),
        ValueKind::Table(inner) | ValueKind::Record(inner) => table(inner, &[]).into(),
        ValueKind::Tables(inner) => json!({ "type": "array", "items": table(inner, &["name"]) }),
        ValueKind::Named(inner) if setting.key == "teams" => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$" },
            "additionalProperties": table(inner, &[]),
        }),
        ValueKind::Named(inner) => {
            let required: &[&str] = if setting.key == "models" { &["provider"] } else { &[] };
            json!({ "type": "object", "additionalProperties": table(inner, required) })
        }
    };
    if let Some(default) = settings::limit_default(setting) {
        schema["default"] = default;
    }
    let variable = setting.variable.map(|variable| format!(" Environment: {variable}.")).unwrap_or_default();
    schema["description"] = json!(format!("{}{variable}", setting.description));
    schema
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
