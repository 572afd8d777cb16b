//! Arguments several commands take, and how they are read.

use std::io::Read;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::{CliError, CliResult};
use crate::domain::change::{Actor, ActorKind};
use crate::domain::name::{ALL, HUMAN, LEAD, Name, SYSTEM};
use crate::domain::task::{TASK_ID_MAX, TaskId};

/// The longest text that is read from stdin or a file, in bytes.
pub const TEXT_BYTES_MAX: u64 = 1024 * 1024;
/// The shortest and the longest lease.
const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 3600);

/// Reads `3` or `#3`.
///
/// # Errors
/// A sentence for anything else.
pub fn task_id(text: &str) -> Result<TaskId, String> {
    let digits = text.trim().trim_start_matches('#');
    let id = digits.parse::<u64>().ok().filter(|id| *id <= TASK_ID_MAX && digits.bytes().all(|b| b.is_ascii_digit()));
    id.map(TaskId).ok_or_else(|| "tasks have numbers, such as 3 or #3".to_owned())
}

/// Reads `15m`, `2h 30m`, `90s`.
///
/// # Errors
/// A sentence for anything else, and for what is too short or too long.
pub fn lease(text: &str) -> Result<Duration, String> {
    let out_of_bounds = || "a lease is at least 1s and at most 7d".to_owned();
    let span: jiff::Span = text.parse().map_err(|_| "a lease is a time such as 90s, 15m or 2h30m".to_owned())?;
    let length = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| out_of_bounds())?;
    length.try_into().ok().filter(|lease| LEASE.contains(lease)).ok_or_else(out_of_bounds)
}

/// Reads a whole number within these bounds.
pub fn number<T>(bounds: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    move |text| {
        let read = text.trim().parse().ok().filter(|number| bounds.contains(number));
        let sentence = || format!("it is a whole number from {} to {}", bounds.start(), bounds.end());
        read.and_then(|number| T::try_from(number).ok()).ok_or_else(sentence)
    }
}

/// Reads `5` or `-1`.
///
/// # Errors
/// A sentence for anything else.
pub fn whole_number(text: &str) -> Result<i64, String> {
    text.trim().parse().map_err(|_| "it is a whole number, such as 5 or -1".to_owned())
}

/// Reads one of several words separated by commas; the empty text is none.
///
/// # Errors
/// None: the signature is clap's.
pub fn word(text: &str) -> Result<String, String> {
    Ok(text.trim().to_owned())
}

/// The words that are not empty: `--requires ""` is none at all.
#[must_use]
pub fn words(given: &[String]) -> Vec<String> {
    given.iter().filter(|word| !word.is_empty()).cloned().collect()
}

/// The text itself, or what comes on stdin where it is `-`.
///
/// # Errors
/// Stdin cannot be read, has too much, or is no UTF-8.
pub fn text_or_stdin(text: String) -> CliResult<String> {
    if text != "-" {
        return Ok(text);
    }
    let mut read = String::new();
    let outcome = std::io::stdin().lock().take(TEXT_BYTES_MAX + 1).read_to_string(&mut read);
    outcome.map_err(|error| CliError::usage(format!("cannot read stdin: {error}")))?;
    if read.len() as u64 > TEXT_BYTES_MAX {
        return Err(CliError::usage(format!("stdin has more than {TEXT_BYTES_MAX} bytes")));
    }
    Ok(read.trim_end_matches(['\n', '\r']).to_owned())
}

/// The name of somebody who acts by command.
///
/// # Errors
/// It is no name, or one nobody acts under.
pub fn acting_name(text: &str) -> CliResult<Name> {
    let name = Name::new(text)?;
    if name.is_same(ALL) || name.is_same(SYSTEM) {
        return Err(CliError::usage(format!("nobody acts under the name `{name}`")));
    }
    Ok(name)
}

/// Who acts: a person, unless it says otherwise.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct By {
    /// Who does it [default: a person]
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// The attempt that was claimed: a stale one is refused
    #[arg(long, value_name = "N", requires = "name", value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub attempt: Option<u32>,
    /// Insist, as a person, on a task somebody holds
    #[arg(long)]
    pub force: bool,
}

impl By {
    /// The one who acts.
    ///
    /// # Errors
    /// The name is none.
    pub fn actor(&self) -> CliResult<Actor> {
        let Some(name) = &self.name else {
            return Ok(Actor::new(HUMAN, ActorKind::Person).forcing(self.force));
        };
        let name = acting_name(name)?;
        let kind = match name.as_str() {
            HUMAN => ActorKind::Person,
            LEAD => ActorKind::Lead,
            _ => ActorKind::Teammate,
        };
        let attempt = self.attempt;
        Ok(Actor { attempt, ..Actor::new(name.as_str(), kind).forcing(self.force) })
    }

    /// The one who holds the task, or a person who insists.
    ///
    /// # Errors
    /// Neither is said.
    pub fn holder(&self, verb: &str, id: TaskId) -> CliResult<Actor> {
        let command = format!("brigade tasks {verb} {}", id.0);
        if self.name.is_none() && !self.force {
            let hint =
                format!("{command} --as NAME --attempt N, as `tasks claim` said; or as a person: {command} --force");
            return Err(CliError::usage(format!("who holds task {id}? Only its holder can {verb} it")).hint(hint));
        }
        if self.name.is_some() && self.attempt.is_none() && !self.force {
            let hint = format!("`tasks claim` said which; `brigade tasks show {}` shows the present one", id.0);
            return Err(CliError::usage("which attempt? Say --attempt N").hint(hint));
        }
        self.actor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_ids_are_numbers_with_or_without_a_hash() {
        assert_eq!(task_id("3"), Ok(TaskId(3)));
        assert_eq!(task_id("#12"), Ok(TaskId(12)));
        for bad in ["", "#", "x", "-1", "+3", "3.0", "9007199254740992", "99999999999999999999"] {
            assert!(task_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn leases_are_spans_of_time() {
        let minutes = |count: u64| Ok(Duration::from_secs(count * 60));
        assert_eq!(lease("15m"), minutes(15));
        assert_eq!(lease("1h 30m"), minutes(90));
        assert_eq!(lease("PT2M"), minutes(2));
        assert_eq!(lease("7d"), minutes(7 * 24 * 60));
        for bad in ["", "15", "soon"] {
            assert!(lease(bad).unwrap_err().contains("such as 90s"), "{bad}: {:?}", lease(bad));
        }
        for bad in ["-5m", "0s", "8d", "99999d", "1000000h", "1000y"] {
            assert!(lease(bad).unwrap_err().contains("at most 7d"), "{bad}: {:?}", lease(bad));
        }
    }

    #[test]
    fn numbers_are_refused_with_their_bounds() {
        let read = number::<u32>(1..=9);
        assert_eq!(read("9"), Ok(9));
        for bad in ["abc", "0", "10", "-1", ""] {
            assert_eq!(read(bad), Err("it is a whole number from 1 to 9".to_owned()), "{bad}");
        }
    }
}
