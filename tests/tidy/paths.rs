//! The paths that a source uses: expanded `use` trees and paths in the code, with `super` and `self` resolved. No rule
//! is decided here.

use super::source::Source;

/// A path in the code, such as `["std", "time", "Instant"]`, and its offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPath {
    pub parts: Vec<String>,
    pub at: usize,
}

/// All used paths, and all other paths of more than one part, in the shipped code of `source`. Paths of our own crate
/// begin with `crate`.
pub fn paths_of(source: &Source) -> Vec<NamedPath> {
    let module = source.module();
    let mut paths = named_in(&source.code);
    paths.iter_mut().for_each(|path| path.parts = absolute(&path.parts, &module));
    paths
}

/// `path` from the crate's root if it begins with `self` or `super`.
fn absolute(path: &[String], module: &[String]) -> Vec<String> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let own = match path.first().map(String::as_str) {
        Some("self") => (module.len(), 1),
        // In an inline module, `super` may still be in the same file; this finds too many paths at worst.
        Some("super") => (module.len().saturating_sub(supers), supers),
        _ => return path.to_vec(),
    };
    let base = std::iter::once("crate".to_owned()).chain(module[..own.0].iter().cloned());
    base.chain(path[own.1..].iter().cloned()).collect()
}

/// A word, or a sign that matters for paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    PathSeparator,
    Sign(u8),
}

fn tokens_of(code: &str) -> Vec<(usize, Token<'_>)> {
    let (bytes, mut tokens, mut at) = (code.as_bytes(), Vec::new(), 0);
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
    while at < bytes.len() {
        let word = bytes[at..].iter().take_while(|byte| is_word(byte)).count();
        match &bytes[at..] {
            _ if word > 0 => tokens.push((at, Token::Word(&code[at..at + word]))),
            [b':', b':', ..] => tokens.push((at, Token::PathSeparator)),
            [byte, ..] if !byte.is_ascii_whitespace() => tokens.push((at, Token::Sign(*byte))),
            _ => {}
        }
        at += if bytes[at..].starts_with(b"::") { 2 } else { word.max(1) };
    }
    tokens
}

fn named_in(code: &str) -> Vec<NamedPath> {
    let tokens = tokens_of(code);
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_use = at > 0 && tokens[at - 1].1 == Token::Word("use");
        let is_start = matches!(tokens[at].1, Token::Word(_)) && (at == 0 || tokens[at - 1].1 != Token::PathSeparator);
        let goes_on = tokens.get(at + 1).is_some_and(|(_, token)| *token == Token::PathSeparator);
        at = if is_start && (is_use || goes_on) { spread(&tokens, at, &[], &mut paths) } else { at + 1 };
    }
    paths
}

/// Reads one path or tree from `at`, adds its paths to `paths`, and returns its end.
fn spread(tokens: &[(usize, Token<'_>)], mut at: usize, before: &[String], paths: &mut Vec<NamedPath>) -> usize {
    let (begins, mut parts) = (tokens[at].0, before.to_vec());
    loop {
        match tokens.get(at).map(|token| token.1) {
            Some(Token::Word(word)) => parts.push(word.to_owned()),
            Some(Token::Sign(b'*')) => parts.push("*".to_owned()),
            Some(Token::Sign(b'{')) => return spread_all(tokens, at + 1, &parts, paths),
            // The generic arguments of a path in the code are separate paths.
            _ => break,
        }
        at += 1;
        if tokens.get(at).map(|token| token.1) != Some(Token::PathSeparator) {
            break;
        }
        at += 1;
    }
    paths.push(NamedPath { parts, at: begins });
    at
}

/// Reads the branches of a tree up to its closing bracket.
fn spread_all(tokens: &[(usize, Token<'_>)], mut at: usize, before: &[String], paths: &mut Vec<NamedPath>) -> usize {
    while let Some((_, token)) = tokens.get(at) {
        at = match token {
            Token::Sign(b'}') => return at + 1,
            Token::Word("as") => at + 2,
            Token::Sign(b',') => at + 1,
            _ => spread(tokens, at, before, paths).max(at + 1),
        };
    }
    at
}

#[test]
fn use_trees_are_expanded_and_super_resolved() {
    let code = "use std::{fs, time::{Duration as D, self}};\nuse tokio;\nfn a(b: super::c::D) -> crate::e::F<g::H> { i::<J>() }";
    let module = ["tools".to_owned(), "bash".to_owned()];
    let named: Vec<String> = named_in(code).iter().map(|path| absolute(&path.parts, &module).join("::")).collect();
    assert_eq!(
        named,
        [
            "std::fs",
            "std::time::Duration",
            "std::time::self",
            "tokio",
            "crate::tools::c::D",
            "crate::e::F",
            "g::H",
            "i"
        ]
    );
}
