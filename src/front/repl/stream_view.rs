//! The text of a member, line by line while its model writes it. The event of that text comes later and is not shown again.

use std::collections::VecDeque;

use crate::front::text::lines::indented;
use crate::front::text::markdown::{self, LineRenderer};
use crate::front::text::style::{BOLD, paint};
use crate::run::stream::StreamEvent;

/// Answers that are remembered, so that their events are not shown again.
const ANSWERS_MAX: usize = 16;
/// The longest answer that is remembered, in bytes. The events of a longer one are shown too.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Spaces before each line of an answer.
const INDENT: usize = 2;

/// The text of one member, shown while its model writes it.
#[derive(Debug, Default)]
pub struct StreamView {
    name: String,
    /// The part of the present answer that has arrived.
    answer: String,
    /// The part of it that was shown, in bytes.
    shown: usize,
    /// True if other text was printed since. The next lines then begin with the name again.
    is_interrupted: bool,
    heard: VecDeque<String>,
    /// Renders Markdown, where it is rendered.
    renderer: Option<LineRenderer>,
}

impl StreamView {
    /// The view of a member that has said nothing yet.
    pub fn of(name: &str, renders_markdown: bool) -> Self {
        let renderer = if renders_markdown { Some(LineRenderer::default()) } else { None };
        Self { name: name.to_owned(), renderer, ..Self::default() }
    }

    /// Records that something else was printed below the lines so far.
    pub fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// The complete lines to show after this event.
    pub fn push(&mut self, saying: &StreamEvent, columns: usize) -> String {
        match saying {
            StreamEvent::Started if self.answer.is_empty() => String::new(),
            // The request failed and is repeated.
            StreamEvent::Started => {
                let shown = self.rest(columns) + &indented("(interrupted; the model is asked again)", columns, INDENT);
                self.finish();
                shown
            }
            StreamEvent::Text(text) if self.answer.len() + text.len() <= ANSWER_BYTES_MAX => {
                self.answer.push_str(text);
                self.whole_lines(columns)
            }
            StreamEvent::Text(_) => String::new(),
            StreamEvent::Ended => {
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

    /// The lines to show for the event of a text: none if it was streamed before.
    pub fn text(&mut self, text: &str, columns: usize) -> String {
        if text.trim().is_empty() || self.heard.iter().any(|heard| heard.contains(text)) {
            return String::new();
        }
        self.heading() + &markdown::body(text, columns, INDENT, self.renderer.is_some())
    }

    /// Shows up to the last end of a line.
    fn whole_lines(&mut self, columns: usize) -> String {
        let end = self.answer[self.shown..].rfind('\n').map_or(0, |at| at + 1);
        self.show(end, columns)
    }

    fn rest(&mut self, columns: usize) -> String {
        let shown = self.show(self.answer.len() - self.shown, columns);
        shown + &self.renderer.as_mut().map(|renderer| renderer.finish(columns, INDENT)).unwrap_or_default()
    }

    fn show(&mut self, bytes: usize, columns: usize) -> String {
        let is_first = self.answer[..self.shown].trim().is_empty();
        let text = self.answer[self.shown..self.shown + bytes].to_owned();
        self.shown += bytes;
        let needs_heading = is_first || self.is_interrupted;
        if text.is_empty() || (needs_heading && text.trim().is_empty()) {
            return String::new();
        }
        self.is_interrupted = false;
        let heading = if needs_heading { self.heading() } else { String::new() };
        let text = if is_first { text.trim_start() } else { &text };
        let text = text.strip_suffix('\n').unwrap_or(text);
        match &mut self.renderer {
            Some(renderer) => text.split('\n').fold(heading, |out, line| out + &renderer.line(line, columns, INDENT)),
            None => heading + &indented(text, columns, INDENT),
        }
    }

    fn heading(&self) -> String {
        paint(BOLD, &self.name) + "\n"
    }

    fn finish(&mut self) -> String {
        self.shown = 0;
        self.renderer = self.renderer.take().map(|_| LineRenderer::default());
        std::mem::take(&mut self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::text::lines::width;

    fn text(text: &str) -> StreamEvent {
        StreamEvent::Text(text.to_owned())
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn streamed_text_is_printed_by_line_and_once() {
        let mut speech = StreamView::of("lead", false);
        let mut shown = String::new();
        for piece in
            [StreamEvent::Started, text("Hel"), text("lo.\nI pl"), text("an three tasks\n\nnow"), StreamEvent::Ended]
        {
            let now = plain(&speech.push(&piece, 80));
            assert!(now.is_empty() || now.ends_with('\n'), "{now:?}");
            shown += &now;
        }
        assert_eq!(shown, "lead\n  Hello.\n  I plan three tasks\n  \n  now\n");
        // The next request may begin before the event arrives.
        speech.push(&StreamEvent::Started, 80);
        assert_eq!(speech.text("Hello.\nI plan three tasks\n\nnow", 80), "");
        assert_eq!(plain(&speech.text("Something else", 80)), "lead\n  Something else\n");
    }

    #[test]
    fn interrupted_text_continues_below_its_name() {
        let mut speech = StreamView::of("lead", false);
        assert_eq!(plain(&speech.push(&text("One.\nTwo"), 80)), "lead\n  One.\n");
        speech.interrupt();
        assert_eq!(plain(&speech.push(&text(".\n"), 80)), "lead\n  Two.\n");
        assert_eq!(plain(&speech.push(&text("Three.\n"), 80)), "  Three.\n");
        speech.interrupt();
        assert_eq!(plain(&speech.push(&text("\n"), 80)), "", "white space needs no name");
        assert_eq!(plain(&speech.push(&text("Four.\n"), 80)), "lead\n  Four.\n");
    }

    #[test]
    fn streamed_markdown_is_rendered_line_by_line() {
        let mut speech = StreamView::of("lead", true);
        let shown: String =
            [text("# Re"), text("port\n- **do"), text("ne**\n```sh\nls *x*\n"), text("```\nend"), StreamEvent::Ended]
                .iter()
                .map(|piece| speech.push(piece, 80))
                .collect();
        assert_eq!(plain(&shown), "lead\n  Report\n  - done\n    ls *x*\n  end\n");
        assert!(shown.contains("\u{1b}[1mdone"), "{shown:?}");
    }

    #[test]
    fn streamed_long_line_is_wrapped_and_escaped() {
        let mut speech = StreamView::of("lead", false);
        assert_eq!(speech.push(&text("one two three four five six \u{1b}[2Jseven"), 20), "");
        let shown = plain(&speech.push(&StreamEvent::Ended, 20));
        assert!(shown.starts_with("lead\n  one two three") && !shown.contains('\u{1b}'), "{shown:?}");
        assert!(shown.contains("seven") && shown.lines().all(|line| width(line) <= 20), "{shown:?}");
    }

    #[test]
    fn interrupted_stream_is_marked_as_asked_again() {
        let mut speech = StreamView::of("lead", false);
        speech.push(&text("half an ans"), 80);
        assert_eq!(
            plain(&speech.push(&StreamEvent::Started, 80)),
            "lead\n  half an ans\n  (interrupted; the model is asked again)\n"
        );
        assert_eq!(plain(&speech.push(&text("whole\n"), 80)), "lead\n  whole\n");
    }
}
