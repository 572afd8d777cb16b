//! What a member says, line by line as it comes. A text that was heard is not shown again when its fact comes, which is later.

use std::collections::VecDeque;

use crate::team::words::Saying;
use crate::ui::style::{BOLD, paint};
use crate::ui::text::{indented, width, wrap};

/// Answers that are remembered, so that their facts are not shown besides.
const ANSWERS_MAX: usize = 16;
/// The longest answer that is remembered whole, in bytes; of a longer one the facts are shown too.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Lines of an answer begin behind so many spaces.
const INDENT: usize = 2;

/// See the module.
#[derive(Debug, Default)]
pub struct Speech {
    /// Who speaks.
    name: String,
    /// What was heard of the answer that is being given.
    answer: String,
    /// How much of it was shown, in bytes.
    shown: usize,
    heard: VecDeque<String>,
}

impl Speech {
    /// Nothing was heard of this member yet.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// The lines to show now that this was said: whole ones, or as much as fills one.
    pub fn hear(&mut self, saying: &Saying, columns: usize) -> String {
        match saying {
            Saying::Begun if self.answer.is_empty() => String::new(),
            // It broke off; what was shown of it is void.
            Saying::Begun => {
                let shown = self.rest(columns) + &indented("(it is asked again)", columns, INDENT);
                self.finish();
                shown
            }
            Saying::Text(text) if self.answer.len() + text.len() <= ANSWER_BYTES_MAX => {
                self.answer.push_str(text);
                self.whole_lines(columns)
            }
            Saying::Text(_) => String::new(),
            Saying::Ended => {
                let rest = self.rest(columns);
                let answer = self.finish();
                if !answer.trim().is_empty() {
                    self.heard.truncate(ANSWERS_MAX - 1);
                    self.heard.push_front(answer);
                }
                rest
            }
        }
    }

    /// The lines to show of a text that was said: none when it was heard.
    pub fn said(&mut self, text: &str, columns: usize) -> String {
        if text.trim().is_empty() || self.heard.iter().any(|heard| heard.contains(text)) {
            return String::new();
        }
        self.heading() + &indented(text.trim_end(), columns, INDENT)
    }

    /// What can be shown of what was not shown yet: up to the last end of a line, or of a word where a line is full.
    fn whole_lines(&mut self, columns: usize) -> String {
        let pending = &self.answer[self.shown..];
        let end = match pending.rfind('\n') {
            Some(at) => at + 1,
            None => full_lines(pending, columns.saturating_sub(INDENT)),
        };
        self.show(end, columns)
    }

    fn rest(&mut self, columns: usize) -> String {
        self.show(self.answer.len() - self.shown, columns)
    }

    fn show(&mut self, bytes: usize, columns: usize) -> String {
        let is_first = self.answer[..self.shown].trim().is_empty();
        let text = self.answer[self.shown..self.shown + bytes].to_owned();
        self.shown += bytes;
        if text.is_empty() || (is_first && text.trim().is_empty()) {
            return String::new();
        }
        let heading = if is_first { self.heading() } else { String::new() };
        let text = if is_first { text.trim_start() } else { &text };
        heading + &indented(text.strip_suffix('\n').unwrap_or(text), columns, INDENT)
    }

    fn heading(&self) -> String {
        paint(BOLD, &self.name) + "\n"
    }

    fn finish(&mut self) -> String {
        self.shown = 0;
        std::mem::take(&mut self.answer)
    }
}

/// How many bytes of a line make whole ones of this width: what fills none yet is shown with what follows it.
fn full_lines(line: &str, columns: usize) -> usize {
    if width(line) <= columns {
        return 0;
    }
    let wrapped = wrap(line, columns, 0);
    let last = wrapped.rsplit('\n').next().unwrap_or_default();
    if last.len() < wrapped.len() && line.ends_with(last) { line.len() - last.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Saying {
        Saying::Text(text.to_owned())
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn lines_are_shown_when_they_are_whole_and_facts_are_no_second_time() {
        let mut speech = Speech::of("lead");
        let mut shown = String::new();
        for piece in [Saying::Begun, text("Hel"), text("lo.\nI pl"), text("an three tasks\n\nnow"), Saying::Ended] {
            let now = plain(&speech.hear(&piece, 80));
            assert!(now.is_empty() || now.ends_with('\n'), "{now:?}");
            shown += &now;
        }
        assert_eq!(shown, "lead\n  Hello.\n  I plan three tasks\n  \n  now\n");
        // The next request may begin before the fact comes.
        speech.hear(&Saying::Begun, 80);
        assert_eq!(speech.said("Hello.\nI plan three tasks\n\nnow", 80), "");
        assert_eq!(plain(&speech.said("Something else", 80)), "lead\n  Something else\n");
    }

    #[test]
    fn a_long_line_is_shown_as_it_fills_the_width_and_steers_no_terminal() {
        let mut speech = Speech::of("lead");
        let shown = plain(&speech.hear(&text("one two three four five six \u{1b}[2Jseven"), 20));
        assert!(shown.starts_with("lead\n  one two three") && !shown.contains('\u{1b}'), "{shown:?}");
        assert!(shown.lines().all(|line| width(line) <= 20), "{shown:?}");
        assert!(plain(&speech.hear(&Saying::Ended, 20)).contains("seven"));
    }

    #[test]
    fn an_answer_that_broke_off_is_said_to() {
        let mut speech = Speech::of("lead");
        speech.hear(&text("half an ans"), 80);
        assert_eq!(plain(&speech.hear(&Saying::Begun, 80)), "lead\n  half an ans\n  (it is asked again)\n");
        assert_eq!(plain(&speech.hear(&text("whole\n"), 80)), "lead\n  whole\n");
    }
}
