//! One config file: its text taken apart by the tables of settings, every value with the place it stands at. It knows
//! nothing of other files, variables or flags.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{ConfigError, Problem, SourceFile, nearest};
use super::settings::{self, Kind, LIMITS, NOT_ENFORCED, Setting};
use crate::platform::reading::{self, Accept};

/// The largest config file that is read, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 1024 * 1024;

/// A value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// Several.
    Words(Vec<String>),
    /// A whole number.
    Integer(u64),
}

/// A value and the bytes of the file it stands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The value.
    pub value: Value,
    /// Where it stands.
    pub span: Range<usize>,
}

/// Values by key; those of tables within under `table.key`.
pub type Values = BTreeMap<String, Located>;

/// A team of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TeamTable {
    /// Where its name stands.
    pub span: Range<usize>,
    /// Its values, those of the lead as `lead.…`, of the limits as `limits.…`.
    pub values: Values,
    /// Its members, where the file says who they are.
    pub members: Option<Vec<MemberTable>>,
}

/// A member of a team of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberTable {
    /// Where it stands.
    pub span: Range<usize>,
    /// Its values.
    pub values: Values,
}

/// A file, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// The file.
    pub source: Arc<SourceFile>,
    /// What stands outside of teams; the limits as `limits.…`.
    pub values: Values,
    /// Its teams, in its order.
    pub teams: Vec<(String, TeamTable)>,
}

/// Reads and takes apart the file at `path`, which errors call `shown`.
///
/// # Errors
/// [`ConfigError`]: it cannot be read, or [`parse`] finds problems.
pub fn read(path: &Path, shown: &Path, accept: Accept<'_>) -> Result<ConfigFile, ConfigError> {
    let unreadable = |error: io::Error| ConfigError::Unreadable { path: shown.to_owned(), reason: error.to_string() };
    let text = reading::read_text(path, accept, CONFIG_BYTES_MAX).map_err(unreadable)?;
    parse(SourceFile { path: path.to_owned(), shown: shown.to_owned(), text })
}

/// Takes a file's text apart.
///
/// # Errors
/// [`ConfigError::Problems`]: all that is wrong with it.
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

type Entry<'a> = (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

impl Reader<'_> {
    fn file(&mut self, table: &DeTable<'_>, values: &mut Values, teams: &mut Vec<(String, TeamTable)>) {
        for (key, value) in table {
            match self.find(key, settings::TOP, "at the top of the file") {
                Some(Setting { kind: Kind::Named(inner), key: "prices", .. }) => self.prices(inner, value, values),
                Some(Setting { kind: Kind::Named(_), .. }) => {
                    for (name, team) in self.table(key.get_ref(), value).into_iter().flatten() {
                        teams.push((name.get_ref().to_string(), self.team((name, team))));
                    }
                }
                Some(setting) => self.value(setting, "", value, values),
                None => {}
            }
        }
    }

    /// The prices of models, as `prices.MODEL.KEY`.
    fn prices(&mut self, settings: &[Setting], value: &Spanned<DeValue<'_>>, values: &mut Values) {
        for (model, price) in self.table("prices", value).into_iter().flatten() {
            let place = format!("in [prices.{:?}]", model.get_ref());
            for (key, value) in self.table(model.get_ref(), price).into_iter().flatten() {
                if let Some(setting) = self.find(key, settings, &place) {
                    self.value(setting, &format!("prices.{}.", model.get_ref()), value, values);
                }
            }
        }
    }

    fn team(&mut self, (name, value): Entry<'_>) -> TeamTable {
        let mut team = TeamTable { span: name.span(), ..TeamTable::default() };
        let place = format!("in [teams.{}]", name.get_ref().escape_debug());
        for (key, value) in self.table(name.get_ref(), value).into_iter().flatten() {
            match self.find(key, settings::TEAM, &place) {
                Some(Setting { kind: Kind::Tables(members), .. }) => {
                    team.members = Some(self.members(name.get_ref(), members, value));
                }
                Some(setting) => self.value(setting, "", value, &mut team.values),
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
        let place = format!("in [[teams.{team}.members]]");
        let mut members = Vec::with_capacity(rows.len());
        for row in rows {
            let mut values = Values::new();
            for (key, value) in self.table("members", row).into_iter().flatten() {
                if let Some(setting) = self.find(key, settings, &place) {
                    self.value(setting, "", value, &mut values);
                }
            }
            members.push(MemberTable { span: row.span(), values });
        }
        members
    }

    /// The value as a table; a problem where it is none.
    fn table<'v>(&mut self, key: &str, value: &'v Spanned<DeValue<'v>>) -> Option<&'v DeTable<'v>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let message = format!("`{}` must be a table, not {}", key.escape_debug(), kind_of(value.get_ref()));
            self.problems.push(self.source.problem(value.span(), message));
        }
        table
    }

    /// The setting of this key; a problem where there is none, or none that is enforced.
    fn find<'s>(
        &mut self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        settings: &'s [Setting],
        place: &str,
    ) -> Option<&'s Setting> {
        let found = settings.iter().find(|setting| setting.key == key.get_ref());
        if found.is_none() {
            let allowed: Vec<&str> = settings.iter().map(|setting| setting.key).collect();
            self.unknown(key, &allowed, place);
        }
        found
    }

    fn unknown(&mut self, key: &Spanned<std::borrow::Cow<'_, str>>, allowed: &[&str], place: &str) {
        let name: &str = key.get_ref();
        let problem = match NOT_ENFORCED.iter().find(|(planned, _)| *planned == name) {
            Some((_, why)) => self
                .source
                .problem(key.span(), format!("`{name}` is not enforced by this version: {why}"))
                .hint("remove it: a setting that is not enforced is refused, so that nobody relies on it"),
            None => {
                let hint = match nearest(name, allowed.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("there are: {}", allowed.join(", ")),
                };
                self.source.problem(key.span(), format!("unknown key `{}` {place}", name.escape_debug())).hint(hint)
            }
        };
        self.problems.push(problem);
    }

    /// Puts the value of `setting`, or those of the table it is, into `values`.
    fn value(&mut self, setting: &Setting, prefix: &str, value: &Spanned<DeValue<'_>>, values: &mut Values) {
        match setting.kind {
            Kind::Table(inner) => {
                for (key, value) in self.table(setting.key, value).into_iter().flatten() {
                    if let Some(found) = self.find(key, inner, &format!("in `{}`", setting.key)) {
                        self.value(found, &format!("{}.", setting.key), value, values);
                    }
                }
            }
            Kind::Limits => self.limits(value, values),
            _ => match plain(setting, value.get_ref()) {
                Ok(plain) => {
                    let key = format!("{prefix}{}", setting.key);
                    values.insert(key, Located { value: plain, span: value.span() });
                }
                Err(message) => self.problems.push(self.source.problem(value.span(), message)),
            },
        }
    }

    fn limits(&mut self, value: &Spanned<DeValue<'_>>, values: &mut Values) {
        for (key, value) in self.table("limits", value).into_iter().flatten() {
            let Some(limit) = LIMITS.iter().find(|limit| limit.key == key.get_ref()) else {
                let allowed: Vec<&str> = LIMITS.iter().map(|limit| limit.key).collect();
                self.unknown(key, &allowed, "in `limits`");
                continue;
            };
            match integer(limit.key, limit.min, limit.max, value.get_ref()) {
                Ok(number) => {
                    let located = Located { value: Value::Integer(number), span: value.span() };
                    values.insert(format!("limits.{}", limit.key), located);
                }
                Err(message) => self.problems.push(self.source.problem(value.span(), message)),
            }
        }
    }
}

fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A value that is not a table, checked by its setting; the error says what it must be.
fn plain(setting: &Setting, value: &DeValue<'_>) -> Result<Value, String> {
    let key = setting.key;
    match setting.kind {
        Kind::Words => {
            let words = value.as_array().map(|list| list.iter().map(|word| word.get_ref().as_str()).collect());
            let words: Option<Option<Vec<&str>>> = words;
            let words =
                words.flatten().ok_or_else(|| format!("`{key}` must be a list of texts, such as [\"rust\"]"))?;
            Ok(Value::Words(words.into_iter().map(str::to_owned).collect()))
        }
        Kind::Flag => match value.as_bool() {
            Some(flag) => Ok(Value::Text(flag.to_string())),
            None => Err(format!("`{key}` must be true or false, not {}", kind_of(value))),
        },
        Kind::Integer(min, max) => integer(key, min, max, value).map(Value::Integer),
        Kind::Decimal(_) => {
            let spelled =
                value.as_float().map(toml::de::DeFloat::as_str).or(value.as_integer().map(|number| number.as_str()));
            let text = spelled.ok_or_else(|| format!("`{key}` must be a number, not {}", kind_of(value)))?;
            checked_text(setting, text)?;
            Ok(Value::Text(text.to_owned()))
        }
        _ => {
            let text = value.as_str().ok_or_else(|| format!("`{key}` must be a text, not {}", kind_of(value)))?;
            checked_text(setting, text)?;
            Ok(Value::Text(text.to_owned()))
        }
    }
}

/// Whether `text` may be the value of `setting`; the error says what may.
pub(super) fn checked_text(setting: &Setting, text: &str) -> Result<(), String> {
    match setting.kind {
        Kind::Choice(words) if !words.contains(&text) => {
            Err(format!("`{}` must be one of {}, not `{}`", setting.key, words.join(", "), text.escape_debug()))
        }
        Kind::Provider => checked_provider(text),
        Kind::Integer(min, max) if !number(text).is_some_and(|number| (min..=max).contains(&number)) => {
            Err(format!("`{}` must be a whole number from {min} to {max}, not `{}`", setting.key, text.escape_debug()))
        }
        Kind::Decimal(max) if !decimal(text).is_some_and(|number| number <= max as f64) => {
            Err(format!("`{}` must be a number from 0 to {max}, not `{}`", setting.key, text.escape_debug()))
        }
        Kind::Path | Kind::Name if text.is_empty() => Err(format!("`{}` must not be empty", setting.key)),
        _ => Ok(()),
    }
}

/// A whole number as people write it.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().replace('_', "").parse().ok()
}

/// A number that is not below nought, with or without a point.
pub(super) fn decimal(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

fn checked_provider(name: &str) -> Result<(), String> {
    if settings::providers().any(|known| known == name) {
        return Ok(());
    }
    let list = settings::providers().collect::<Vec<_>>().join(", ");
    if settings::PROVIDERS_PLANNED.contains(&name) {
        return Err(format!("the provider `{name}` is not available in this version; there are: {list}"));
    }
    let meant = nearest(name, settings::providers().chain(settings::PROVIDERS_PLANNED));
    let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
    Err(format!("there is no provider `{}`; there are: {list}{meant}", name.escape_debug()))
}

fn integer(key: &str, min: u64, max: u64, value: &DeValue<'_>) -> Result<u64, String> {
    let wanted = || format!("`{key}` must be a whole number from {min} to {max}, without a unit");
    let number = value.as_integer().ok_or_else(|| format!("{}, not {}", wanted(), kind_of(value)))?;
    let parsed = i128::from_str_radix(number.as_str(), number.radix()).ok();
    parsed
        .and_then(|parsed| u64::try_from(parsed).ok())
        .filter(|parsed| (min..=max).contains(parsed))
        .ok_or_else(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> SourceFile {
        SourceFile { path: "/brigade.toml".into(), shown: "brigade.toml".into(), text: text.into() }
    }

    fn problems(text: &str) -> String {
        parse(source(text)).unwrap_err().to_string()
    }

    fn values(text: &str) -> ConfigFile {
        parse(source(text)).unwrap()
    }

    #[test]
    fn every_way_toml_writes_tables_is_read_the_same() {
        let plain = "[teams.a]\ngoal = \"g\"\n[teams.a.lead]\nprovider = \"runbook\"\n[teams.a.limits]\nturns_max = 1_000\n[[teams.a.members]]\nname = \"bob\"\n";
        let dotted = "teams.a.goal = 'g'\nteams.a.lead.provider = \"runbook\"\nteams.a.limits.turns_max = 0x3e8\nteams.a.members = [{ name = \"bob\" }]\n";
        let inline = "\u{feff}[teams]\na = { goal = \"\"\"g\"\"\", lead = { provider = \"runbook\" }, limits = { turns_max = 1000 }, members = [{ name = \"bob\" }] }\r\n";
        let summary = |text: &str| {
            let file = values(text);
            let (name, team) = &file.teams[0];
            let values: Vec<_> =
                team.values.iter().map(|(key, located)| (key.clone(), located.value.clone())).collect();
            (name.clone(), values, team.members.as_ref().unwrap()[0].values["name"].value.clone())
        };
        assert_eq!(summary(plain), summary(dotted));
        assert_eq!(summary(plain), summary(inline));
        assert_eq!(summary(plain).1.len(), 3);
    }

    #[test]
    fn unknown_keys_are_named_with_what_was_meant() {
        let text = "[teams.a]\nmembrs = []\nhooks = \"x\"\n\
            lead = { provider = \"openai\", modell = \"x\" }\n\
            [teams.a.limits]\nturns = 3\nidle_timeout_ms = \"60s\"\nturns_max = -1\n\
            [[teams.a.members]]\nzzz = 1\nrole = 4\ncapabilities = \"rust\"\nprovider = \"runbok\"\n[limit]\n";
        insta::assert_snapshot!(problems(text));
    }

    #[test]
    fn syntax_errors_have_line_and_caret() {
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
