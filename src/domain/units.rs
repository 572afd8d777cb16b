//! Durations and sizes in words for people.

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
