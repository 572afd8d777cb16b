//! Escaping of Brigade's own tags in texts of others.

use std::borrow::Cow;

/// The tags that only the harness may write.
pub const HARNESS_TAGS: [&str; 3] = ["identity", "inbox", "auto-claimed"];

const ESCAPED_OPENING: &str = "&lt;";

/// Escapes the `<` of each of [`HARNESS_TAGS`] in `text`, opening and closing ones. Upper and lower case are the same, and spaces and
/// slashes before the name are ignored, as models may do.
pub fn escape_tags(text: &str) -> Cow<'_, str> {
    replace_openings(text, "<", ESCAPED_OPENING)
}

/// Reverses [`escape_tags`], for readers that give tags no meaning.
pub fn unescape_tags(text: &str) -> Cow<'_, str> {
    replace_openings(text, ESCAPED_OPENING, "<")
}

fn replace_openings<'a>(text: &'a str, from: &str, to: &str) -> Cow<'a, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (at, opening) in text.match_indices(from) {
        let end = at + opening.len();
        if opens_harness_tag(&text[end..]) {
            out.push_str(&text[copied..at]);
            out.push_str(to);
            copied = end;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// Returns true if text after a `<` begins a harness tag.
fn opens_harness_tag(rest: &str) -> bool {
    let name = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '/').as_bytes();
    HARNESS_TAGS.iter().any(|tag| name.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn harness_tag_is_escaped() {
        for hostile in
            ["<identity>", "</ Identity", "<\n/inbox>", "< INBOX", "<\u{2003}auto-claimed>", "</auto-claimed id=1>"]
        {
            let escaped = escape_tags(hostile);
            assert_eq!(escaped, hostile.replacen('<', "&lt;", 1));
            assert_eq!(unescape_tags(&escaped), hostile);
        }
    }

    #[test]
    fn text_without_harness_tag_is_unchanged() {
        for plain in [
            "a < b && b > c",
            "<in box> <inner> <i>dent</i> <id> <input>",
            "v := <-inbox",
            "let x: Vec<Identifier> = 1 << 2;",
            "<идентичность> <входящие>",
            "\u{1b}[31mred\u{1b}[0m <b>",
            "&lt;b>",
            "identity inbox auto-claimed",
        ] {
            assert!(matches!(escape_tags(plain), Cow::Borrowed(_)), "{plain:?} is {:?}", escape_tags(plain));
            assert_eq!(unescape_tags(plain), plain);
        }
    }

    proptest! {
        #[test]
        fn escaped_text_has_no_tag_and_is_restored(text in "([<&lt;/a-d ]|inbox|INBOX|identity|auto-claimed){0,60}") {
            let escaped = escape_tags(&text);
            prop_assert!(text.match_indices('<').all(|(at, _)| !opens_harness_tag(&text[at + 1..])) == (escaped == text));
            prop_assert_eq!(&escape_tags(&escaped), &escaped);
            if !text.contains(ESCAPED_OPENING) {
                prop_assert_eq!(unescape_tags(&escaped), text.as_str());
            }
        }
    }
}
