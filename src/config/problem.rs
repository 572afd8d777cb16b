//! What can be wrong with a config, said so that it can be mended: the file, the line, a caret, what is allowed.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file that was read, for errors that point into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it is.
    pub path: PathBuf,
    /// How people are told where.
    pub shown: PathBuf,
    /// What it says.
    pub text: String,
}

impl SourceFile {
    /// The folder that paths in it are relative to.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Where `path`, which this file names, lies once links and `..` are followed. A model gets what such a file says, so it must
    /// lie in the folder of this file or below. Where this file is a link, as programs that manage a user's files make it,
    /// the folder that it leads to counts as well.
    ///
    /// # Errors
    /// It lies elsewhere, or is not there.
    pub fn real_path_below(&self, path: &Path) -> Result<PathBuf, String> {
        let path = path.canonicalize().map_err(|error| error.to_string())?;
        let real = self.path.canonicalize().ok();
        let folders = [self.folder().canonicalize().ok(), real.and_then(|file| file.parent().map(Path::to_owned))];
        if folders.into_iter().flatten().any(|folder| path.starts_with(folder)) {
            return Ok(path);
        }
        Err(format!("it is {}, outside of the folder {}", path.display(), self.folder().display()))
    }

    /// The line of a byte, from 1.
    #[must_use]
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

    /// A problem with the bytes `span` of this file.
    #[must_use]
    pub fn problem(&self, span: Range<usize>, message: impl Into<String>) -> Problem {
        let before = self.before(span.start);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let marked = self.before(span.end)[before.len().min(self.before(span.end).len())..].lines().next();
        Problem {
            file: Some(self.shown.clone()),
            line: self.line(span.start),
            column: before[line_start..].chars().count() + 1,
            text: line.to_owned(),
            marked: marked.map_or(1, |marked| marked.chars().count().max(1)),
            message: message.into(),
            hint: None,
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file; `None` for a variable or a flag.
    pub file: Option<PathBuf>,
    /// The line, from 1; 0 where the file has none that is to blame.
    pub line: usize,
    /// The character in it, from 1.
    pub column: usize,
    /// What the line says.
    pub text: String,
    /// How many characters are to blame.
    pub marked: usize,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem that is in no file.
    #[must_use]
    pub fn elsewhere(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { file: None, line: 0, column: 0, text: String::new(), marked: 0, message, hint: None }
    }

    /// The same, with what would be right.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}:{}:{}: {}", file.display(), self.line, self.column, self.message)?,
            None => f.write_str(&self.message)?,
        }
        if self.file.is_some() && !self.text.is_empty() {
            let number = self.line.to_string();
            let gutter = " ".repeat(number.len());
            // A tab before the mark must take as much room as above it.
            let lead: String =
                self.text.chars().take(self.column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            write!(f, "\n {number} | {}\n {gutter} | {lead}{}", self.text, "^".repeat(self.marked))?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n {hint}"),
            None => Ok(()),
        }
    }
}

/// Why there is no config.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No file was found.
    #[error("no brigade.toml in {} or any folder above it", .0.display())]
    NotFound(PathBuf),
    /// One was found that another user could have put there.
    #[error("cannot use {}: {reason}", path.display())]
    NotTrusted {
        /// The file or folder.
        path: PathBuf,
        /// Why it is not trusted.
        reason: String,
    },
    /// The file that was named is not there or cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Things are wrong in it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Problems(Vec<Problem>),
    /// There is no such team.
    #[error("there is no team `{}`{}", name.escape_debug(), known_teams(known))]
    UnknownTeam {
        /// The name that was given.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// Several teams, and none was named.
    #[error("which team? There are: {}", .0.join(", "))]
    WhichTeam(Vec<String>),
    /// Teams that only the user's file names: the workspace's file does not refer to them.
    #[error("cannot use {}: only {} names {}", teams(names), file.display(), if names.len() == 1 { "it" } else { "them" })]
    OnlyInUserFile {
        /// Their names.
        names: Vec<String>,
        /// The user's file.
        file: PathBuf,
    },
    /// No team at all.
    #[error("{} has no team", .0.display())]
    NoTeam(PathBuf),
}

fn teams(names: &[String]) -> String {
    let word = if names.len() == 1 { "the team" } else { "the teams" };
    format!("{word} `{}`", names.join("`, `"))
}

fn known_teams(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("; there are: {}", known.join(", ")) }
}

impl ConfigError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound(_) => Some("run `brigade init` to make one, or name one with --config FILE".to_owned()),
            Self::NotTrusted { path, .. } if path.is_dir() => {
                let workspace = path.parent().unwrap_or(path).display();
                Some(format!("where you trust who wrote it, pass --workspace {workspace}"))
            }
            Self::NotTrusted { path, .. } => {
                Some(format!("where you trust who wrote it, pass --config {}", path.display()))
            }
            Self::UnknownTeam { name, known } => {
                nearest(name, known.iter().map(String::as_str)).map(|meant| format!("did you mean `{meant}`?"))
            }
            Self::WhichTeam(_) => Some("name one behind the command".to_owned()),
            Self::OnlyInUserFile { names, file } => {
                let name = names.first().filter(|_| names.len() == 1).map_or("NAME", String::as_str);
                let file = file.display();
                Some(format!(
                    "add [teams.{name}] to the workspace's brigade.toml, or pass --config {file} --workspace ."
                ))
            }
            Self::NoTeam(_) => Some("add one: [teams.NAME], or see `brigade init`".to_owned()),
            Self::Unreadable { .. } | Self::Problems(_) => None,
        }
    }
}

/// The candidate that is spelled much like `word`.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let likeness = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        // Two letters that changed places make a short word look wholly different to the measure for longer ones.
        let one_slip = strsim::osa_distance(&candidate, &lower) == 1;
        strsim::jaro_winkler(&candidate, &lower).max(if one_slip { 0.9 } else { 0.0 })
    };
    candidates
        .map(|candidate| (likeness(candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_points_at_its_characters() {
        let file = SourceFile {
            path: "/brigade.toml".into(),
            shown: "brigade.toml".into(),
            text: "a = 1\n\té = 2 # x\n".into(),
        };
        let problem = file.problem(7..9, "no such key").hint("did you mean `e`?");
        assert_eq!(
            problem.to_string(),
            "brigade.toml:2:2: no such key\n 2 | \té = 2 # x\n   | \t^\n did you mean `e`?"
        );
        assert_eq!(file.problem(99..120, "ends early").line, 3);
        assert_eq!(file.problem(8..8, "within a letter").column, 2);
    }
}
