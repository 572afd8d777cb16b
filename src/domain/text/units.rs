//! Durations, sizes and lists in words for people, and growing waits.

use std::fmt::Display;
use std::time::Duration;

/// Returns a duration in words: `850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(duration: Duration) -> String {
    // Rounded to the smaller unit in the result.
    let exact = duration.as_millis();
    let seconds = match exact {
        0..1_000 => 0,
        1_000..3_600_000 => (exact + 500) / 1_000,
        3_600_000..86_400_000 => (exact + 30_000) / 60_000 * 60,
        _ => (exact + 1_800_000) / 3_600_000 * 3_600,
    };
    let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
    let with_smaller = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {small_unit}"),
    };
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => with_smaller(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => with_smaller(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => with_smaller(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// Returns a size in words: `12 bytes`, `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(size, _)| bytes >= *size) {
        // One decimal is enough, and sizes of disks are far below the precision of a float.
        Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
        None => format!("{bytes} bytes"),
    }
}

/// Returns `1 task`, `2 tasks`.
pub fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// Returns `a, b and 3 more`: the first `shown_max` items, and the number of the others.
pub fn join_up_to(items: impl ExactSizeIterator<Item: Display>, shown_max: usize) -> String {
    let more = items.len().saturating_sub(shown_max);
    let shown = items.take(shown_max).map(|item| item.to_string()).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Returns the wait after this number of failures in a row: `first` after one, doubled after each further one, at most `longest`.
pub fn exponential_backoff(first: Duration, failures: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest)
}
