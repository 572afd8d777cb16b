//! Arguments that several commands share, and their parsers.

use std::io::Read;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::{CliError, CliResult};
use crate::api::task::ActingAs;
use crate::domain::task::{TASK_ID_MAX, TaskId, subject_problem};

/// The longest text that is read from stdin, in bytes.
pub const TEXT_BYTES_MAX: u64 = 1024 * 1024;
/// The bounds of a lease.
const LEASE_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 3600);

/// Parses `3` or `#3`.
///
/// # Errors
/// The expected form.
pub fn task_id(text: &str) -> Result<TaskId, String> {
    let digits = text.trim().trim_start_matches('#');
    let id = digits.parse::<u64>().ok().filter(|id| *id <= TASK_ID_MAX && digits.bytes().all(|b| b.is_ascii_digit()));
    id.map(TaskId).ok_or_else(|| "expected a task number such as 3 or #3".to_owned())
}

/// Parses a lease: `15m`, `2h 30m` or `90s`.
///
/// # Errors
/// The expected form or bounds.
pub fn lease(text: &str) -> Result<Duration, String> {
    let out_of_bounds = || "expected at least 1s and at most 7d".to_owned();
    let span: jiff::Span = text.parse().map_err(|_| "expected a time such as 90s, 15m or 2h30m".to_owned())?;
    let length = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| out_of_bounds())?;
    length.try_into().ok().filter(|lease| LEASE_RANGE.contains(lease)).ok_or_else(out_of_bounds)
}

/// Returns a parser for a whole number within these bounds.
pub fn number<T>(bounds: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    move |text| {
        let read = text.trim().parse().ok().filter(|number| bounds.contains(number));
        let sentence = || match *bounds.end() {
            end if end >= u32::MAX.into() => format!("expected a whole number from {}", bounds.start()),
            end => format!("expected a whole number from {} to {end}", bounds.start()),
        };
        read.and_then(|number| T::try_from(number).ok()).ok_or_else(sentence)
    }
}

/// Parses `5` or `-1`.
///
/// # Errors
/// The expected form.
pub fn whole_number(text: &str) -> Result<i64, String> {
    text.trim().parse().map_err(|_| "expected a whole number such as 5 or -1".to_owned())
}

/// Parses a text that must not be empty.
///
/// # Errors
/// The text is empty.
pub fn text(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("expected a text".to_owned()) } else { Ok(text.to_owned()) }
}

/// Parses the subject of a task.
///
/// # Errors
/// The board would refuse it.
pub fn subject(text: &str) -> Result<String, String> {
    subject_problem(text.trim()).map_or_else(|| Ok(text.to_owned()), Err)
}

/// Returns the text, or the content of stdin if the text is `-`.
///
/// # Errors
/// Stdin cannot be read, is longer than [`TEXT_BYTES_MAX`], or is not UTF-8.
pub fn text_or_stdin(text: String) -> CliResult<String> {
    if text != "-" {
        return Ok(text);
    }
    let mut read = String::new();
    let outcome = std::io::stdin().lock().take(TEXT_BYTES_MAX + 1).read_to_string(&mut read);
    outcome.map_err(|error| CliError::usage(format!("cannot read stdin: {error}")))?;
    if read.len() as u64 > TEXT_BYTES_MAX {
        return Err(CliError::usage(format!("cannot read stdin: it has more than {TEXT_BYTES_MAX} bytes")));
    }
    Ok(read.trim_end_matches(['\n', '\r']).to_owned())
}

/// The actor of a command: a person, unless `--as` names another.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ActorFlags {
    /// Act as this teammate [default: you]
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// The attempt that `tasks claim` printed, such as 1; an older one is refused
    #[arg(long, value_name = "N", requires = "name", value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub attempt: Option<u32>,
    /// As a person, override the holder of the task
    #[arg(long)]
    pub force: bool,
}

impl From<ActorFlags> for ActingAs {
    fn from(flags: ActorFlags) -> Self {
        Self { name: flags.name, attempt: flags.attempt, force: flags.force }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_id_argument_accepts_number_and_hash() {
        assert_eq!(task_id("3"), Ok(TaskId(3)));
        assert_eq!(task_id("#12"), Ok(TaskId(12)));
        for bad in ["", "#", "x", "-1", "+3", "3.0", "9007199254740992", "99999999999999999999"] {
            assert!(task_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lease_argument_accepts_time_spans_in_range() {
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
    fn number_out_of_range_error_names_bounds() {
        let read = number::<u32>(1..=9);
        assert_eq!(read("9"), Ok(9));
        for bad in ["abc", "0", "10", "-1", ""] {
            assert_eq!(read(bad), Err("expected a whole number from 1 to 9".to_owned()), "{bad}");
        }
    }
}
