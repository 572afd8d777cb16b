//! Patterns in which `*` stands for any characters.

/// Returns true if a text matches a pattern.
pub fn matches_pattern(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|start| text.strip_prefix(start)) else { return false };
    let Some(end) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(end)
}

/// Returns true if a text matches a pattern, alone or followed by further words.
pub fn begins_with_words(text: &str, pattern: &str) -> bool {
    matches_pattern(text, pattern) || matches_pattern(text, &format!("{pattern} *"))
}
