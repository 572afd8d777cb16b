//! Finds answers that repeat themselves. Small models can repeat a call or a passage up to the length limit.

use crate::ports::StopReason;

/// The number of equal calls at which an answer is ended.
pub const SAME_CALLS_MAX: usize = 3;
/// The number of calls or other items at which an answer is ended, whatever they are.
pub const ITEMS_MAX: usize = 500;
/// The same for equal passages of text, one after another.
const SAME_PASSAGES_MAX: usize = 6;
/// The longest passage that is compared, in lines.
const PASSAGE_LINES_MAX: usize = 8;
/// The shortest passage that is compared, in bytes. Shorter ones can be meant, such as the rows of a drawing.
const PASSAGE_BYTES_MIN: usize = 40;

/// Returns the reason for the end of an answer that repeats itself, or has too many items.
pub const fn stop_reason(items: usize) -> StopReason {
    if items >= ITEMS_MAX { StopReason::TooManyCalls } else { StopReason::Repetition }
}

/// Returns the end of the first copy if the whole lines of this text end with [`SAME_PASSAGES_MAX`] copies of a passage.
pub fn end_of_repeated_passage(text: &str) -> Option<usize> {
    let whole_lines = &text[..=text.rfind('\n')?];
    let lines_max = PASSAGE_LINES_MAX * SAME_PASSAGES_MAX;
    let last_lines: Vec<&str> = whole_lines.split_inclusive('\n').rev().take(lines_max).collect();
    let size = (1..=last_lines.len() / SAME_PASSAGES_MAX).find(|size| {
        let mut passages = last_lines.chunks_exact(*size).take(SAME_PASSAGES_MAX);
        let passage = passages.next().unwrap_or_default();
        passage.iter().map(|line| line.trim().len()).sum::<usize>() >= PASSAGE_BYTES_MIN
            && passages.all(|other| other == passage)
    })?;
    let copies = &last_lines[..size * (SAME_PASSAGES_MAX - 1)];
    Some(whole_lines.len() - copies.iter().map(|line| line.len()).sum::<usize>())
}
