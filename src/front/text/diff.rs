//! A diff of git as a person reads it.

use super::style::{BAD, BOLD, BUSY, GOOD, PLAIN, paint};
use crate::domain::text::printable;

/// A diff of git, coloured and without anything that a terminal obeys.
pub fn patch(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    let mut is_header = true;
    for line in text.split_terminator('\n') {
        if line.starts_with("diff --git ") {
            is_header = true;
        } else if line.starts_with("@@ ") {
            is_header = false;
        }
        let style = match line.as_bytes().first() {
            _ if is_header => BOLD,
            Some(b'@') => BUSY,
            Some(b'+') => GOOD,
            Some(b'-') => BAD,
            _ => PLAIN,
        };
        out.push_str(&paint(style, &printable(line)));
        out.push('\n');
    }
    out
}

/// The changed lines per file, as git summarises them.
pub fn summary(text: &str) -> String {
    text.split_terminator('\n').map(|line| format!("  {}\n", printable(line).trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_is_colored_and_escaped() {
        let text = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new \u{1b}]0;title\u{7}\n same\r\n";
        let shown = patch(text);
        assert!(shown.contains("\u{1b}[32m+new \\u{1b}]0;title\\u{7}"), "{shown:?}");
        assert!(shown.contains("\u{1b}[31m-old") && shown.contains("\u{1b}[1m--- a/x"), "{shown:?}");
        assert!(shown.contains(" same\\r\n"), "{shown:?}");
    }
}
