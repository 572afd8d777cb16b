//! Parses one config file by the tables of settings. Every value keeps its position in the file.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::{ConfigError, Problem, SourceFile};
use super::settings::{self, Setting, ValueKind};
use crate::domain::text::suggestion::did_you_mean;
use crate::domain::text::system_error;
use crate::platform::reading::{self, AllowedKinds};

/// The maximum size of a config file in bytes.
pub const CONFIG_BYTES_MAX: u64 = 1024 * 1024;

/// A value and its position in the file, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpannedValue {
    /// The value as JSON, of the kind of its setting.
    pub value: Json,
    pub span: Range<usize>,
}

/// Values by key. The keys of inner tables are `table.key`.
pub type Values = BTreeMap<String, SpannedValue>;

/// A team of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TeamTable {
    /// The position of its name.
    pub span: Range<usize>,
    /// Its values; those of the lead are `lead.…`, the limits `limits.…`.
    pub values: Values,
    /// `None` if the file does not list members.
    pub members: Option<Vec<MemberTable>>,
}

/// A member of a team of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberTable {
    pub span: Range<usize>,
    pub values: Values,
}

/// A parsed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    pub source: Arc<SourceFile>,
    /// The values outside of teams; the limits are `limits.…`.
    pub values: Values,
    /// The teams, in the order of the file.
    pub teams: Vec<(String, TeamTable)>,
}

/// Reads and parses the file at `path`. Errors show the path `display_path`.
///
/// # Errors
/// [`ConfigError`]: the file cannot be read, or [`parse`] finds problems.
pub fn read(path: &Path, display_path: &Path, accept: AllowedKinds<'_>) -> Result<ConfigFile, ConfigError> {
    let unreadable = |error: io::Error| ConfigError::Unreadable {
        path: display_path.to_owned(),
        reason: system_error::reason(&error),
    };
    let text = reading::read_text(path, accept, CONFIG_BYTES_MAX).map_err(unreadable)?;
    parse(SourceFile { path: path.to_owned(), display_path: display_path.to_owned(), text })
}

/// Parses a file's text.
///
/// # Errors
/// [`ConfigError::Problems`]: all problems of the file.
pub fn parse(source: SourceFile) -> Result<ConfigFile, ConfigError> {
    let mut reader = Reader { source: &source, problems: Vec::new() };
    let mut values = Values::new();
    let mut teams = Vec::new();
    match DeTable::parse(&source.text) {
        Ok(table) => reader.file(table.get_ref(), &mut values, &mut teams),
        Err(error) => {
            let end = source.text.trim_end().len();
            let span = error.span().unwrap_or(end..end);
            reader.problems.push(source.problem(span, error.message().trim()));
        }
    }
    let mut problems = reader.problems;
    if problems.is_empty() {
        teams.sort_by_key(|(_, team): &(String, TeamTable)| team.span.start);
        return Ok(ConfigFile { source: Arc::new(source), values, teams });
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    Err(ConfigError::Problems(problems))
}

struct Reader<'a> {
    source: &'a SourceFile,
    problems: Vec<Problem>,
}

type TableEntry<'a> = (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

impl Reader<'_> {
    fn file(&mut self, table: &DeTable<'_>, values: &mut Values, teams: &mut Vec<(String, TeamTable)>) {
        for (key, value) in table {
            match self.find(key, settings::TOP_SETTINGS, "at the top of the file") {
                Some(Setting { kind: ValueKind::Named(inner), key, .. }) if *key != "teams" => {
                    self.named(key, inner, value, values);
                }
                Some(Setting { kind: ValueKind::Named(_), .. }) => {
                    for (name, team) in self.table(key.get_ref(), value).into_iter().flatten() {
                        teams.push((name.get_ref().to_string(), self.team((name, team))));
                    }
                }
                Some(setting) => self.value(setting, "", "", value, values),
                None => {}
            }
        }
    }

    /// Adds the prices of models as `prices.MODEL.KEY`, or the models under names as `models.NAME.KEY`.
    fn named(&mut self, table: &str, settings: &[Setting], value: &Spanned<DeValue<'_>>, values: &mut Values) {
        for (key, inner) in self.table(table, value).into_iter().flatten() {
            let (span, name): (_, &str) = (key.span(), key.get_ref());
            let prefix = format!("{table}.{name}.");
            self.values((name, inner), settings, &format!("in [{table}.{name:?}]"), &prefix, values);
            if table == "models" && (name.trim().is_empty() || !values.contains_key(&format!("{prefix}provider"))) {
                let problem = self.source.problem(span, format!("the model {name:?} needs a name and `provider`"));
                self.problems.push(problem.hint("add provider = \"…\""));
            }
        }
    }

    fn team(&mut self, (name, value): TableEntry<'_>) -> TeamTable {
        let mut team = TeamTable { span: name.span(), ..TeamTable::default() };
        let table = format!("teams.{}", name.get_ref().escape_debug());
        for (key, value) in self.table(name.get_ref(), value).into_iter().flatten() {
            match self.find(key, settings::TEAM_SETTINGS, &format!("in [{table}]")) {
                Some(Setting { kind: ValueKind::Tables(members), .. }) => {
                    team.members = Some(self.members(name.get_ref(), members, value));
                }
                Some(setting) => self.value(setting, &format!("{table}."), "", value, &mut team.values),
                None => {}
            }
        }
        team
    }

    fn members(&mut self, team: &str, settings: &[Setting], value: &Spanned<DeValue<'_>>) -> Vec<MemberTable> {
        let Some(rows) = value.get_ref().as_array() else {
            let message = format!("`members` must be a list of tables, not {}", kind_of(value.get_ref()));
            let hint = format!("write one [[teams.{team}.members]] for each, with name = \"…\"");
            self.problems.push(self.source.problem(value.span(), message).hint(hint));
            return Vec::new();
        };
        let location = format!("in [[teams.{team}.members]]");
        let member = |row: &Spanned<DeValue<'_>>| {
            let mut values = Values::new();
            self.values(("members", row), settings, &location, "", &mut values);
            MemberTable { span: row.span(), values }
        };
        rows.iter().map(member).collect()
    }

    /// Adds the values of a table to `values`. `prefix` begins their keys there.
    fn values(
        &mut self,
        (name, table): (&str, &Spanned<DeValue<'_>>),
        settings: &[Setting],
        location: &str,
        prefix: &str,
        values: &mut Values,
    ) {
        for (key, value) in self.table(name, table).into_iter().flatten() {
            if let Some(setting) = self.find(key, settings, location) {
                self.value(setting, "", prefix, value, values);
            }
        }
    }

    /// Returns the value as a table, or adds a problem.
    fn table<'v>(&mut self, key: &str, value: &'v Spanned<DeValue<'v>>) -> Option<&'v DeTable<'v>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let message = format!("`{}` must be a table, not {}", key.escape_debug(), kind_of(value.get_ref()));
            self.problems.push(self.source.problem(value.span(), message));
        }
        table
    }

    /// Returns the setting of this key, or adds a problem.
    fn find<'s>(
        &mut self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        settings: &'s [Setting],
        location: &str,
    ) -> Option<&'s Setting> {
        let setting = settings.iter().find(|setting| setting.key == key.get_ref());
        if setting.is_none() {
            let allowed: Vec<&str> = settings.iter().map(|setting| setting.key).collect();
            self.unknown(key, &allowed, location);
        }
        setting
    }

    fn unknown(&mut self, key: &Spanned<std::borrow::Cow<'_, str>>, allowed: &[&str], location: &str) {
        let name: &str = key.get_ref();
        let hint = did_you_mean(name, allowed.iter().copied())
            .unwrap_or_else(|| format!("known keys: {}", allowed.join(", ")));
        let message = format!("unknown key `{}` {location}", name.escape_debug());
        let problem = self.source.problem(key.span(), message).hint(hint);
        self.problems.push(problem);
    }

    /// Adds the value of `setting`, or those of its table, to `values`. `parent` begins the name of its table, and `prefix` its key.
    fn value(
        &mut self,
        setting: &Setting,
        parent: &str,
        prefix: &str,
        value: &Spanned<DeValue<'_>>,
        values: &mut Values,
    ) {
        let key = setting.key;
        if let ValueKind::Table(inner) = setting.kind {
            let (location, prefix) = (format!("in [{parent}{prefix}{key}]"), format!("{prefix}{key}."));
            return self.values((key, value), inner, &location, &prefix, values);
        }
        let checked = if let ValueKind::Record(inner) = setting.kind {
            let mut record = Values::new();
            self.values((key, value), inner, &format!("in `{key}`"), "", &mut record);
            Ok(record.into_iter().map(|(key, inner)| (key, inner.value)).collect::<Map<_, _>>().into())
        } else {
            checked_value(setting, value.get_ref())
        };
        match checked {
            Ok(plain) => {
                values.insert(format!("{prefix}{key}"), SpannedValue { value: plain, span: value.span() });
            }
            Err(Problem { message, hint, .. }) => {
                self.problems.push(Problem { hint, ..self.source.problem(value.span(), message) });
            }
        }
    }
}

/// Returns the value as JSON, or a text about the part that JSON does not have.
fn json(value: &DeValue<'_>) -> Result<Json, &'static str> {
    let invalid = "a number that JSON does not have";
    Ok(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).map_err(|_| "a number that is too large")?.into()
        }
        DeValue::Float(number) => {
            let number = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            number.ok_or(invalid)?.into()
        }
        DeValue::Datetime(_) => return Err("a date"),
        DeValue::Array(list) => list.iter().map(|item| json(item.get_ref())).collect::<Result<Vec<_>, _>>()?.into(),
        DeValue::Table(table) => {
            let entry = |(key, value): TableEntry<'_>| Ok((key.get_ref().to_string(), json(value.get_ref())?));
            Json::Object(table.iter().map(entry).collect::<Result<_, &'static str>>()?)
        }
    })
}

fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Returns a value that is not a table, checked.
fn checked_value(setting: &Setting, value: &DeValue<'_>) -> Result<Json, Problem> {
    let key = setting.key;
    let text = match setting.kind {
        ValueKind::Words => {
            let text = |word: &Spanned<DeValue<'_>>| word.get_ref().as_str().map(Json::from);
            let words: Option<Vec<Json>> = value.as_array().and_then(|list| list.iter().map(text).collect());
            let example = match key {
                "keep" => "reports/**",
                "copy" => ".env",
                _ => "rust",
            };
            let expected = || format!("`{key}` must be a list of strings, such as [\"{example}\"]");
            return Ok(words.ok_or_else(expected)?.into());
        }
        ValueKind::Texts | ValueKind::Json => {
            return match json(value) {
                Ok(Json::Object(table)) => {
                    let is_text = setting.kind == ValueKind::Json || table.values().all(Json::is_string);
                    if is_text { Ok(table.into()) } else { Err(format!("`{key}` must have only strings").into()) }
                }
                Ok(_) => Err(format!("`{key}` must be a table, not {}", kind_of(value)).into()),
                Err(what) => Err(format!("`{key}` has {what}").into()),
            };
        }
        ValueKind::Flag => {
            let flag = value.as_bool().map(Json::from);
            return Ok(flag.ok_or_else(|| format!("`{key}` must be true or false, not {}", kind_of(value)))?);
        }
        ValueKind::Integer(min, max) => return Ok(integer(key, min, max, value)?.into()),
        ValueKind::Decimal(_) => {
            let spelled =
                value.as_float().map(toml::de::DeFloat::as_str).or(value.as_integer().map(|number| number.as_str()));
            spelled.ok_or_else(|| format!("`{key}` must be a number, not {}", kind_of(value)))?
        }
        _ => value.as_str().ok_or_else(|| format!("`{key}` must be a string, not {}", kind_of(value)))?,
    };
    value_of_text(setting, text)
}

/// Returns the value of `setting` that this text of a file, a variable or a flag stands for.
pub(super) fn value_of_text(setting: &Setting, text: &str) -> Result<Json, Problem> {
    let key = setting.key;
    let (value, allowed) = match setting.kind {
        ValueKind::Choice(words) if !words.contains(&text) => {
            let message = format!("`{key}` must be one of {}, not `{}`", words.join(", "), text.escape_debug());
            let hint = did_you_mean(text, words.iter().copied());
            return Err(Problem { hint, ..Problem::without_file(message) });
        }
        ValueKind::Provider => return checked_provider(text).map(|()| text.into()),
        ValueKind::Path | ValueKind::Name if text.is_empty() => return Err(format!("`{key}` must not be empty").into()),
        ValueKind::Integer(min, max) => {
            let number = digits(text).parse().ok().filter(|number: &u64| (min..=max).contains(number));
            (number.map(Json::from), format!("a whole number from {min} to {max}"))
        }
        ValueKind::Decimal(max) => {
            let number = digits(text).parse().ok().filter(|number: &f64| (0.0..=max as f64).contains(number));
            (number.map(Json::from), format!("a number from 0 to {max}"))
        }
        ValueKind::Flag => (text.parse::<bool>().ok().map(Json::from), "true or false".to_owned()),
        ValueKind::Words => {
            let paths = std::env::split_paths(text).map(|path| Json::from(path.to_string_lossy()));
            return Ok(paths.collect());
        }
        _ => return Ok(text.into()),
    };
    Ok(value.ok_or_else(|| format!("`{key}` must be {allowed}, not `{}`", text.escape_debug()))?)
}

/// Returns the text of a number, in which `_` may separate digits.
fn digits(text: &str) -> String {
    text.trim().replace('_', "")
}

fn checked_provider(name: &str) -> Result<(), Problem> {
    if settings::providers().any(|known| known == name) {
        return Ok(());
    }
    let known = settings::providers().collect::<Vec<_>>().join(", ");
    let hint = did_you_mean(name, settings::providers());
    let message = format!("unknown provider `{}`; known: {known}", name.escape_debug());
    Err(Problem { hint, ..Problem::without_file(message) })
}

fn integer(key: &str, min: u64, max: u64, value: &DeValue<'_>) -> Result<u64, String> {
    let message = || format!("`{key}` must be a whole number from {min} to {max}, without a unit");
    let number = value.as_integer().ok_or_else(|| format!("{}, not {}", message(), kind_of(value)))?;
    let parsed = i128::from_str_radix(number.as_str(), number.radix()).ok();
    parsed
        .and_then(|parsed| u64::try_from(parsed).ok())
        .filter(|parsed| (min..=max).contains(parsed))
        .ok_or_else(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> SourceFile {
        SourceFile { path: "/brigade.toml".into(), display_path: "brigade.toml".into(), text: text.into() }
    }

    fn problems(text: &str) -> String {
        parse(source(text)).unwrap_err().to_string()
    }

    fn values(text: &str) -> ConfigFile {
        parse(source(text)).unwrap()
    }

    #[test]
    fn toml_table_styles_parse_to_same_config() {
        let plain = "[teams.a]\ngoal = \"g\"\n[teams.a.lead]\nprovider = \"runbook\"\n[teams.a.limits]\nturns_max = 1_000\n[[teams.a.members]]\nname = \"bob\"\n";
        let dotted = "teams.a.goal = 'g'\nteams.a.lead.provider = \"runbook\"\nteams.a.limits.turns_max = 0x3e8\nteams.a.members = [{ name = \"bob\" }]\n";
        let inline = "\u{feff}[teams]\na = { goal = \"\"\"g\"\"\", lead = { provider = \"runbook\" }, limits = { turns_max = 1000 }, members = [{ name = \"bob\" }] }\r\n";
        let summary = |text: &str| {
            let file = values(text);
            let (name, team) = &file.teams[0];
            let values: Vec<_> =
                team.values.iter().map(|(key, limit_value)| (key.clone(), limit_value.value.clone())).collect();
            (name.clone(), values, team.members.as_ref().unwrap()[0].values["name"].value.clone())
        };
        assert_eq!(summary(plain), summary(dotted));
        assert_eq!(summary(plain), summary(inline));
        assert_eq!(summary(plain).1.len(), 3);
    }

    #[test]
    fn unknown_config_key_error_suggests_known_key() {
        let text = "[teams.a]\nmembrs = []\nhooks = \"x\"\n\
            lead = { provider = \"chatgpt\", modell = \"x\" }\n\
            [teams.a.limits]\nturns = 3\nidle_timeout_ms = \"60s\"\nturns_max = -1\n\
            [[teams.a.members]]\nzzz = 1\nrole = 4\ncapabilities = \"rust\"\nprovider = \"runbok\"\n[limit]\n";
        insta::assert_snapshot!(problems(text));
    }

    #[test]
    fn wrong_provider_name_gets_useful_hint() {
        let hints = ["claude", "OpenAI", "llama", "local", "bash", "anthropc", "magic"].map(|name| {
            let text = problems(&format!("teams.a.lead.provider = {name:?}\n"));
            assert!(text.contains(&format!("unknown provider `{name}`; known: claude-code, anthropic, ")), "{text}");
            text.split_once("hint: ").map_or("(none)".to_owned(), |(_, hint)| hint.to_owned())
        });
        insta::assert_snapshot!(hints.join("\n"));
    }

    #[test]
    fn toml_syntax_error_shows_line_and_caret() {
        let texts = [
            "[teams.a]\ngoal = \"no end\n",
            "[teams.a\n",
            "teams = 3\n",
            "[teams.a]\ngoal = \"x\"\ngoal = \"y\"\n",
            "[teams.a]\ngoal =",
            "[teams.a.members.bob]\nrole = \"x\"\n",
            "durability = \"none\"\n",
        ];
        insta::assert_snapshot!(texts.map(problems).join("\n---\n"));
    }
}
