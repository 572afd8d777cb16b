//! Errors of the config, with the file, the line, a caret and a hint.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::domain::log::snapshot::is_default;
use crate::domain::text::suggestion::did_you_mean;
use crate::domain::text::system_error;

/// The text of a config file, for errors that point into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    pub path: PathBuf,
    /// The path as errors show it.
    pub display_path: PathBuf,
    pub text: String,
}

impl SourceFile {
    /// Returns the folder that paths in the file are relative to.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Returns the real path of `path`, which this file names. Models read such files, so it must be in the folder of this file
    /// or below. If this file is a link, as dotfile managers create, the folder of its target is allowed too.
    ///
    /// # Errors
    /// The file is outside of these folders or does not exist.
    pub fn real_path_below(&self, path: &Path) -> Result<PathBuf, String> {
        let path = path.canonicalize().map_err(|error| system_error::reason(&error))?;
        let real = self.path.canonicalize().ok();
        let folders = [self.folder().canonicalize().ok(), real.and_then(|file| file.parent().map(Path::to_owned))];
        if folders.into_iter().flatten().any(|folder| path.starts_with(folder)) {
            return Ok(path);
        }
        Err(format!("{} is outside of the folder {}", path.display(), self.folder().display()))
    }

    /// Returns the line of a byte, from 1.
    pub fn line(&self, offset: usize) -> usize {
        self.before(offset).matches('\n').count() + 1
    }

    fn before(&self, offset: usize) -> &str {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        &self.text[..end]
    }

    /// Returns a problem with the bytes `span` of this file.
    pub fn problem(&self, span: Range<usize>, message: impl Into<String>) -> Problem {
        let before = self.before(span.start);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let marked_text = self.before(span.end)[before.len().min(self.before(span.end).len())..].lines().next();
        Problem {
            file: Some(self.display_path.display().to_string()),
            line: self.line(span.start),
            column: before[line_start..].chars().count() + 1,
            text: line.to_owned(),
            marked_chars: marked_text.map_or(1, |text| text.chars().count().max(1)),
            message: message.into(),
            hint: None,
        }
    }
}

/// One problem of a config. As JSON it has the known parts of the position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub message: String,
    pub hint: Option<String>,
    /// The file; `None` for a variable or a flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line, from 1; 0 without a file.
    #[serde(skip_serializing_if = "is_default")]
    pub line: usize,
    /// The character in the line, from 1; 0 for the whole line.
    #[serde(skip_serializing_if = "is_default")]
    pub column: usize,
    /// The text of the line.
    #[serde(skip)]
    pub text: String,
    /// The number of characters that are underlined.
    #[serde(skip)]
    pub marked_chars: usize,
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self::without_file(message)
    }
}

impl Problem {
    /// Returns a problem of a variable or a flag.
    pub fn without_file(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { file: None, line: 0, column: 0, text: String::new(), marked_chars: 0, message, hint: None }
    }

    /// Returns a problem with a whole line of a file.
    pub fn in_line(file: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { file: Some(file.into()), line, ..Self::without_file(message) }
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns the position and the message, in one line.
    pub fn headline(&self) -> String {
        match &self.file {
            Some(file) if self.column == 0 => format!("{file}:{}: {}", self.line, self.message),
            Some(file) => format!("{file}:{}:{}: {}", self.line, self.column, self.message),
            None => self.message.clone(),
        }
    }

    /// Returns the headline and the marked line of the file, without the hint.
    pub fn report(&self) -> String {
        if self.text.is_empty() {
            return self.headline();
        }
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        // A tab before the mark must be as wide as the tab above it.
        let before = self.text.chars().take(self.column.saturating_sub(1));
        let before: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let mark = "^".repeat(self.marked_chars);
        format!("{}\n {number} | {}\n {gutter} | {before}{mark}", self.headline(), self.text)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report())?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Returns the problems as text, one after the other.
pub fn problem_list(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The reason why a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot find brigade.toml in {} or any folder above it", .0.display())]
    NotFound(PathBuf),
    /// Another user could have written the file or folder that was found.
    #[error("cannot use {}: {reason}", path.display())]
    NotTrusted { path: PathBuf, reason: String },
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{}", problem_list(.0))]
    Problems(Vec<Problem>),
    #[error("cannot find the team `{}`{}", name.escape_debug(), known_teams(known))]
    UnknownTeam { name: String, known: Vec<String> },
    #[error("cannot choose a team: there are {}", .0.join(", "))]
    AmbiguousTeam(Vec<String>),
    /// The workspace's file has none of these teams.
    #[error("cannot use {}: only {} has {}", teams(names), file.display(), if names.len() == 1 { "it" } else { "them" })]
    OnlyInUserFile {
        names: Vec<String>,
        /// The user's file.
        file: PathBuf,
    },
    /// A variable with a name similar to that of a setting's variable.
    #[error("unknown variable `{}`", name.escape_debug())]
    UnknownVariable { name: String, meant: &'static str },
    #[error("cannot choose a team: {} has no team", .0.display())]
    NoTeam(PathBuf),
}

fn teams(names: &[String]) -> String {
    let word = if names.len() == 1 { "the team" } else { "the teams" };
    format!("{word} `{}`", names.join("`, `"))
}

fn known_teams(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!(": the config has {}", known.join(", ")) }
}

impl ConfigError {
    /// Returns the command to run or the change to make.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound(_) => Some("or pass --workspace DIR or --config FILE".to_owned()),
            Self::NotTrusted { path, .. } if path.is_dir() => {
                let workspace = path.parent().unwrap_or(path).display();
                Some(format!("if you trust its author, pass --workspace {workspace}"))
            }
            Self::NotTrusted { path, .. } => Some(format!("if you trust its author, pass --config {}", path.display())),
            Self::UnknownTeam { name, known } => did_you_mean(name, known.iter().map(String::as_str)),
            Self::AmbiguousTeam(_) => Some("add the name of one to the command".to_owned()),
            Self::OnlyInUserFile { names, file } => {
                let name = names.first().map_or("NAME", String::as_str);
                let file = file.display();
                Some(format!(
                    "add [teams.{name}] to the workspace's brigade.toml, or pass --config {file} --workspace ."
                ))
            }
            Self::UnknownVariable { name, meant } => {
                Some(format!("did you mean `{meant}`? Otherwise remove it: `unset {}`", name.escape_debug()))
            }
            Self::NoTeam(_) => Some("add [teams.NAME] with its lead and members".to_owned()),
            Self::Problems(problems) => problems.first()?.hint.clone(),
            Self::Unreadable { .. } => Some("name another config with --config FILE or BRIGADE_CONFIG".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_problem_shows_line_column_and_caret() {
        let file = SourceFile {
            path: "/brigade.toml".into(),
            display_path: "brigade.toml".into(),
            text: "a = 1\n\té = 2 # x\n".into(),
        };
        let problem = file.problem(7..9, "no such key").hint("did you mean `e`?");
        assert_eq!(
            problem.to_string(),
            "brigade.toml:2:2: no such key\n 2 | \té = 2 # x\n   | \t^\nhint: did you mean `e`?"
        );
        assert_eq!(file.problem(99..120, "ends early").line, 3);
        assert_eq!(file.problem(8..8, "within a letter").column, 2);
    }
}
