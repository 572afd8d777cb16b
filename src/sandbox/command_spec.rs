//! The command that a worker sends to a guard. It goes over pipes, because other users can read arguments.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::Level;
use crate::domain::agent::access::{Access, PathRule};

/// The limit of an encoded command spec in bytes: enough for the script and some thousand rules.
const SPEC_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A command and its confinement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSpec {
    /// The level of confinement.
    pub level: Level,
    /// The command's standard input.
    pub input: Input,
    /// The text that the shell runs, without NUL characters.
    pub script: OsString,
    /// The path rules.
    pub rules: Vec<PathRule>,
}

/// The standard input of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// It is empty.
    Empty,
    /// It is the same socket as the command's output.
    Conversation,
}

const INPUT_WORDS: [(Input, &str); 2] = [(Input::Empty, "empty"), (Input::Conversation, "conversation")];

impl CommandSpec {
    /// The spec as bytes: its length in decimal digits, a newline, then fields that each end with a NUL character.
    pub fn encode(&self) -> Vec<u8> {
        let body: Vec<u8> =
            self.fields().into_iter().flat_map(|field| field.as_encoded_bytes().iter().copied().chain([0])).collect();
        [format!("{}\n", body.len()).as_bytes(), &body].concat()
    }

    /// The spec as fields: the level, the input, the script, and two fields for each rule.
    pub fn fields(&self) -> Vec<&OsStr> {
        let rules = self.rules.iter().flat_map(|rule| [OsStr::new(word_of(rule.access)), rule.path.as_os_str()]);
        let input = INPUT_WORDS.iter().find(|(input, _)| *input == self.input).map_or("", |(_, word)| word);
        [OsStr::new(self.level.as_str()), OsStr::new(input), &self.script].into_iter().chain(rules).collect()
    }

    /// Parses fields that [`CommandSpec::fields`] returned. Returns `None` for others.
    pub fn from_fields(fields: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut fields = fields.into_iter();
        let level = Level::from_word(fields.next()?.to_str()?)?;
        let input = fields.next()?;
        let input = INPUT_WORDS.iter().find(|(_, word)| input == *word)?.0;
        let script = fields.next()?;
        let mut rules = Vec::new();
        while let Some(word) = fields.next() {
            let access = ACCESS_WORDS.iter().find(|(_, word_or_access)| word == *word_or_access)?.0;
            rules.push(PathRule { path: PathBuf::from(fields.next()?), access });
        }
        Some(Self { level, input, script, rules })
    }

    /// Reads one spec and leaves the rest of the input.
    ///
    /// # Errors
    /// `InvalidData` for bytes that [`CommandSpec::encode`] does not write, and errors of `input`.
    pub fn read(mut input: impl BufRead) -> io::Result<Self> {
        let mut length = String::new();
        (&mut input).take(20).read_line(&mut length)?;
        let length: usize = length.trim_end().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        if length > SPEC_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body)?;
        let fields = body.strip_suffix(&[0]).ok_or(io::ErrorKind::InvalidData)?;
        let fields = fields.split(|byte| *byte == 0).map(|field| OsStr::from_bytes(field).to_owned());
        Self::from_fields(fields).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

const ACCESS_WORDS: [(Access, &str); 4] = [
    (Access::ReadOnly, "read-only"),
    (Access::ReadOnlyFiles, "read-only-files"),
    (Access::Writable, "writable"),
    (Access::Hidden, "hidden"),
];

fn word_of(access: Access) -> &'static str {
    ACCESS_WORDS.iter().find(|(word_or_access, _)| *word_or_access == access).map_or("", |(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_round_trips() {
        let rules = vec![
            PathRule::read_only("/a b/!c"),
            PathRule::read_only_files("/a/*"),
            PathRule::writable("/line\nbreak"),
            PathRule::hidden(OsStr::from_bytes(b"/\xff")),
        ];
        for script in ["", "echo 'x'\necho y"] {
            let input = if script.is_empty() { Input::Empty } else { Input::Conversation };
            let command_spec =
                CommandSpec { level: Level::MountsOnly, input, script: script.into(), rules: rules.clone() };
            let mut bytes = command_spec.encode();
            bytes.extend(b"g");
            let mut input = bytes.as_slice();
            assert_eq!(CommandSpec::read(&mut input).unwrap(), command_spec);
            assert_eq!(input, b"g", "the byte after the spec is left");
        }
    }

    #[test]
    fn truncated_order_is_an_error() {
        let rules = vec![PathRule::hidden("/x")];
        let command_spec = CommandSpec { level: Level::Full, input: Input::Empty, script: "x".into(), rules };
        let bytes = command_spec.encode();
        for length in 0..bytes.len() {
            assert!(CommandSpec::read(&bytes[..length]).is_err(), "{length}");
        }
        assert!(CommandSpec::read(&b"99999999999\n"[..]).is_err());
    }
}
