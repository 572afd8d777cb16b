//! Parses server-sent events from chunks of any size, within bounds. It does not interpret them. A byte that is not UTF-8 stays as a part
//! of a character, because the next event can have the rest.
//!
//! The format: <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>.

use crate::domain::text::characters;

/// The largest event, in bytes. A provider's largest is a complete tool call in one event.
pub const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// Its `event` field; empty if it is missing.
    pub name: String,
    /// Its `data` lines, joined by newlines.
    pub data: String,
}

/// The reason why a stream cannot be read on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event is larger than [`EVENT_BYTES_MAX`].
    #[error("an event has more than {EVENT_BYTES_MAX} bytes")]
    TooLarge,
    /// The name of a field is in another encoding, so the whole stream is.
    #[error("an event is not in UTF-8")]
    Encoding,
}

/// Parses a stream of events.
#[derive(Debug, Default)]
pub struct SseReader {
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
    /// The last byte was a carriage return: a newline directly after it belongs to the same line end.
    after_return: bool,
    has_started: bool,
}

impl SseReader {
    /// Parses the next bytes and returns the events that they complete. An event without its closing blank line is never returned.
    ///
    /// # Errors
    /// See [`SseError`]. The reader cannot be used after that.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, SseError> {
        let mut events = Vec::new();
        for byte in bytes {
            let is_crlf_end = *byte == b'\n' && std::mem::take(&mut self.after_return);
            match byte {
                b'\n' if is_crlf_end => {}
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    events.extend(self.end_line()?);
                }
                _ => {
                    self.after_return = false;
                    if self.line.len() + self.event.data.len() >= EVENT_BYTES_MAX {
                        return Err(SseError::TooLarge);
                    }
                    self.line.push(*byte);
                }
            }
        }
        Ok(events)
    }

    /// Processes a complete line. Returns the event if the line closes it.
    fn end_line(&mut self) -> Result<Option<SseEvent>, SseError> {
        let line = std::mem::take(&mut self.line);
        let is_first = !std::mem::replace(&mut self.has_started, true);
        let line = if is_first { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line) } else { &line };
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return Ok(std::mem::take(&mut self.has_data).then_some(event));
        }
        let text = characters::text_of(line);
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        if characters::has_parts(field) {
            return Err(SseError::Encoding);
        }
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // Comments, ids and unknown fields.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { name: name.to_owned(), data: data.to_owned() }
    }

    fn all(text: &str) -> Vec<SseEvent> {
        SseReader::default().feed(text.as_bytes()).unwrap()
    }

    #[test]
    fn sse_accepts_all_line_ends_and_joins_data() {
        for end in ["\n", "\r\n", "\r"] {
            let text = "\u{feff}event: a\ndata: 1\ndata:2\ndata\n\n: comment\nid: 7\n\n\ndata: x\n\ndata: open\n";
            assert_eq!(all(&text.replace('\n', end)), [event("a", "1\n2\n"), event("", "x")], "{end:?}");
        }
    }

    #[test]
    fn sse_stream_in_other_encoding_is_refused() {
        let events = SseReader::default().feed(b"data: caf\xe9\n\n").unwrap();
        assert_eq!(characters::joined(&events[0].data).text, "caf\u{fffd}", "one that only has such bytes is not");
        assert_eq!(SseReader::default().feed(b"\xff\xfed\0a\0t\0a\0:\0 \0x\0\n\0"), Err(SseError::Encoding));
    }

    #[test]
    fn sse_event_over_size_limit_is_refused() {
        let chunk = [b'x'; 64 * 1024];
        let mut reader = SseReader::default();
        let fed = (0..1000).take_while(|_| reader.feed(&chunk).is_ok()).count();
        assert_eq!(fed, EVENT_BYTES_MAX / chunk.len());
        let line = format!("data: {}\n", "x".repeat(1000));
        let mut reader = SseReader::default();
        assert!((0..10_000).any(|_| reader.feed(line.as_bytes()) == Err(SseError::TooLarge)));
    }

    proptest! {
        #[test]
        fn sse_parsing_is_independent_of_chunking(
            lines in prop::collection::vec(prop_oneof![
                "(event: [a-c]|data: [a-ü\0]{0,4}|: x|\u{feff}data: b|)".prop_map(String::into_bytes),
                Just(b"data: \xf0\x9f".to_vec()),
            ], 0..20),
            ends in prop::collection::vec(0..3_usize, 20),
            sizes in prop::collection::vec(1..7_usize, 200),
        ) {
            let ended = |(line, end): (&Vec<u8>, &usize)| [line, ["\n", "\r\n", "\r"][*end].as_bytes()].concat();
            let stream: Vec<u8> = lines.iter().zip(&ends).flat_map(ended).collect();
            let (mut reader, mut rest, mut cut) = (SseReader::default(), stream.as_slice(), Vec::new());
            for size in sizes.iter().cycle() {
                let (piece, remaining) = rest.split_at((*size).min(rest.len()));
                cut.extend(reader.feed(piece).unwrap());
                rest = remaining;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(cut, SseReader::default().feed(&stream).unwrap());
        }
    }
}
