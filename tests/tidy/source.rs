//! Rust sources for the rules: comments, strings and tests are blanked out, line numbers are kept. No rule is decided
//! here.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::LazyLock;

use super::{files_below, text_of};

/// The modules of the program itself; together they form the layer `main`.
const WIRING: &[&str] = &["main", "launch"];

pub struct Source {
    /// Its path from the project's root.
    pub path: PathBuf,
    pub text: String,
    /// The shipped code: comments, the contents of strings, and test-only items are spaces.
    pub code: String,
}

impl Source {
    /// The first part of its path below `src/`, without `.rs`: its layer.
    pub fn layer(&self) -> String {
        let below = self.path.strip_prefix("src").expect("a file of src/");
        let first = below.components().next().expect("a name").as_os_str().to_string_lossy();
        let name = first.trim_end_matches(".rs");
        if WIRING.contains(&name) { "main".to_owned() } else { name.to_owned() }
    }

    /// The module path from the crate's root: `["stores", "file", "replace"]`.
    pub fn module(&self) -> Vec<String> {
        let below = self.path.strip_prefix("src").expect("a file of src/").with_extension("");
        let mut parts: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if parts.last().is_some_and(|last| last == "mod") || parts == ["main"] || parts == ["lib"] {
            parts.pop();
        }
        parts
    }

    /// The position in the form `src/a.rs:12`.
    pub fn at(&self, offset: usize) -> String {
        format!("{}:{}", self.path.display(), line_of(&self.code, offset))
    }
}

pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The files of `src/`, except for test-only modules.
pub fn sources() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(shipped_sources);
    &SOURCES
}

fn shipped_sources() -> Vec<Source> {
    let rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let all: Vec<Source> = files_below("src").into_iter().filter(rust).map(read).collect();
    assert!(all.len() > 50, "too few sources below src/");
    let for_tests: Vec<PathBuf> = all.iter().flat_map(modules_for_tests).collect();
    all.into_iter().filter(|source| !for_tests.iter().any(|path| source.path.starts_with(path))).collect()
}

fn read(path: PathBuf) -> Source {
    let text = text_of(&path);
    let code = without_tests(&mask(&text));
    Source { path, text, code }
}

/// The paths of the test-only modules (`#[cfg(test)] mod tests;`) of a file, as file and as folder.
fn modules_for_tests(source: &Source) -> Vec<PathBuf> {
    let masked = mask(&source.text);
    let folder = match source.path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => source.path.parent().expect("the file is in a folder").to_owned(),
        _ => source.path.with_extension(""),
    };
    let declared = test_attributes(&masked).into_iter().filter_map(|at| {
        let item = &masked[item_start(&masked, at)..];
        let (head, _) = item.split_once(';').filter(|(head, _)| !head.contains('{'))?;
        head.rsplit_once("mod ").map(|(_, name)| folder.join(name.trim()))
    });
    declared.flat_map(|path| [path.with_extension("rs"), path]).collect()
}

/// Offsets of the attributes that make an item test-only.
fn test_attributes(masked: &str) -> Vec<usize> {
    ["#[cfg(test)]", "#[cfg(all(test"].iter().flat_map(|form| masked.match_indices(form).map(|(at, _)| at)).collect()
}

/// The start of the item after the attribute at `at`; other attributes are skipped.
fn item_start(masked: &str, at: usize) -> usize {
    let mut at = at;
    while masked[at..].starts_with('#') {
        at += masked[at..].find('[').map_or(0, |open| closing(masked, at + open) - at + 1);
        at += masked[at..].len() - masked[at..].trim_start().len();
    }
    at
}

/// `masked` with the test-only items blanked out.
pub fn without_tests(masked: &str) -> String {
    let mut code = masked.as_bytes().to_vec();
    for at in test_attributes(masked) {
        let item = item_start(masked, at);
        let end = match masked[item..].find([';', '{']).map(|found| item + found) {
            Some(end) if masked[end..].starts_with('{') => closing(masked, end),
            Some(end) => end,
            None => masked.len() - 1,
        };
        blank(&mut code[at..=end]);
    }
    String::from_utf8(code).expect("every blanked character becomes spaces")
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

/// The offset of the bracket that closes the one at `open`; the end of the text if there is none.
pub fn closing(masked: &str, open: usize) -> usize {
    let (mut depth, bytes) = (0_usize, masked.as_bytes());
    for (offset, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return offset;
        }
    }
    bytes.len() - 1
}

/// `text` with the contents of comments, strings and characters as spaces; every other byte keeps its place.
pub fn mask(text: &str) -> String {
    let mut masked = text.as_bytes().to_vec();
    let mut at = 0;
    while at < masked.len() {
        let (gone, next) = contents_at(text, at);
        blank(&mut masked[gone]);
        at = next;
    }
    String::from_utf8(masked).expect("every blanked character becomes spaces")
}

/// The range to blank out in the token at `at`, and the offset after the token.
fn contents_at(text: &str, at: usize) -> (Range<usize>, usize) {
    let bytes = text.as_bytes();
    let quoted = |inside: Range<usize>, quotes: usize| (inside.clone(), (inside.end + quotes).min(bytes.len()));
    match &bytes[at..] {
        [b'/', b'/', ..] => quoted(at..at + text[at..].find('\n').unwrap_or(text.len() - at), 0),
        [b'/', b'*', ..] => quoted(at..end_of_block_comment(bytes, at), 0),
        [b'"', ..] => quoted(at + 1..end_of_text(bytes, at + 1), 1),
        [b'\'', ..] => match end_of_character(text, at) {
            Some(end) => quoted(at + 1..end, 1),
            None => (at..at, at + 1),
        },
        [b'r', b'"' | b'#', ..] if !is_in_word(bytes, at) => match raw_text(text, at) {
            Some((inside, hashes)) => quoted(inside, 1 + hashes),
            None => (at..at, at + 1),
        },
        _ => (at..at, at + 1),
    }
}

/// Returns true if the letter at `at` continues a word. The prefixes of raw strings (`br"…"`, `cr"…"`) do not count.
fn is_in_word(bytes: &[u8], at: usize) -> bool {
    let is_word = |at: usize| bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_';
    let start = if at > 0 && matches!(bytes[at - 1], b'b' | b'c') { at - 1 } else { at };
    start > 0 && is_word(start - 1)
}

/// Nested comments count.
fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0_usize, start);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// The offset of the quote that ends the string whose contents begin at `at`.
fn end_of_text(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

/// The contents of the raw string (`r"…"`, `r#"…"#`) at `at`, and its hashes; `None` if there is none, as in `r#type`.
fn raw_text(text: &str, at: usize) -> Option<(Range<usize>, usize)> {
    let hashes = text[at + 1..].bytes().take_while(|byte| *byte == b'#').count();
    let start = at + 1 + hashes;
    text[start..].starts_with('"').then_some(())?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some((start + 1..start + 1 + text[start + 1..].find(&end)?, hashes))
}

/// The offset of the quote that ends the character at `at`; `None` for a lifetime.
fn end_of_character(text: &str, at: usize) -> Option<usize> {
    let mut inside = text[at + 1..].char_indices();
    match (inside.next()?, inside.next()?) {
        ((_, '\\'), (escaped, character)) => {
            let from = at + 1 + escaped + character.len_utf8();
            Some(from + text[from..].find('\'')?)
        }
        (_, (end, '\'')) => Some(at + 1 + end),
        _ => None,
    }
}

#[test]
fn mask_removes_strings_comments_and_tests() {
    let text = r##"fn a() { let _ = ("x.unwrap()", '"', '\'', b'"', r#"}"{"#, ""); } // panic!
/* { /* { */ */ struct B<'a>(&'a str, char);
#[cfg(test)]
#[allow(unused)]
mod tests { fn c() { panic!() } }
fn d() {}
"##;
    let code = without_tests(&mask(text));
    assert_eq!(code.lines().count(), text.lines().count());
    assert_eq!(code.len(), text.len());
    for gone in ["unwrap", "panic", "mod tests"] {
        assert!(!code.contains(gone), "{gone} in {code}");
    }
    assert!(code.contains("struct B<'a>(&'a str, char);") && code.contains("fn d() {}"), "{code}");
    assert_eq!(code.matches('{').count(), code.matches('}').count(), "{code}");
}
