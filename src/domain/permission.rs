//! The rules that decide whether an agent may call a tool. They hold for Brigade's own tools and for those of external agents.
//!
//! | mode | reads | changes of files | commands |
//! |---|---|---|---|
//! | `auto` | allowed | allowed | allowed |
//! | `accept-edits` | allowed | allowed | the person is asked |
//! | `ask` | allowed | the person is asked | the person is asked |
//! | `plan` | allowed | denied | denied |
//!
//! A `deny` rule is stronger than everything else. An `allow` rule allows a call about which the person would be asked.

use serde::{Deserialize, Serialize};

/// The part of decisions that is left to the person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PermissionMode {
    /// Everything is allowed.
    #[default]
    Auto,
    /// The person is asked about commands.
    AcceptEdits,
    /// The person is asked about commands and changes of files.
    Ask,
    /// Nothing may be changed.
    Plan,
}

impl PermissionMode {
    /// The words in the config, in the order of the variants.
    pub const WORDS: [&'static str; 4] = ["auto", "accept-edits", "ask", "plan"];

    /// Returns the mode of a word in the config.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "accept-edits" => Some(Self::AcceptEdits),
            "ask" => Some(Self::Ask),
            "plan" => Some(Self::Plan),
            _ => None,
        }
    }
}

/// The effect of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolEffectKind {
    /// It changes nothing outside of Brigade: it reads, or it reaches the board and the team.
    Read,
    /// It changes a file.
    Edit,
    /// It runs a command, or its effects are not known.
    Command,
}

/// A call for which permission is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionCall {
    /// The tool, under Brigade's name for it.
    pub tool: String,
    /// The effect of the tool.
    pub kind: ToolEffectKind,
    /// The command or the path; empty for other calls.
    pub subject: String,
}

/// Returns the lines of a change, for the person who is asked about it.
#[must_use]
pub fn change_text(old: &str, new: &str) -> String {
    let lines = |mark: &str, text: &str| -> String { text.lines().map(|line| format!("{mark} {line}\n")).collect() };
    lines("-", old) + &lines("+", new)
}

/// A rule such as `bash(cargo test:*)`: a tool, and the subjects that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRule {
    tool: String,
    subject: SubjectPattern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SubjectPattern {
    /// `tool`: every subject.
    Any,
    /// `tool(text)`: this subject.
    Exact(String),
    /// `tool(text:*)`: the text alone, or followed by further words.
    Words(String),
    /// `tool(text*)`: every subject that begins with the text.
    Prefix(String),
}

/// The reason why a text is not a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a tool, such as `write_file`, or a tool and a pattern, such as `bash(cargo test:*)`")]
pub struct InvalidRule;

impl PermissionRule {
    /// Parses a rule.
    ///
    /// # Errors
    /// [`InvalidRule`].
    pub fn parse(text: &str) -> Result<Self, InvalidRule> {
        let text = text.trim();
        let (tool, pattern) = match text.split_once('(') {
            Some((tool, rest)) => (tool.trim(), Some(rest.strip_suffix(')').ok_or(InvalidRule)?.trim())),
            None => (text, None),
        };
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        if tool.is_empty() || !tool.chars().all(is_name) || pattern == Some("") {
            return Err(InvalidRule);
        }
        let subject = match pattern {
            None | Some("*") => SubjectPattern::Any,
            Some(pattern) => match (pattern.strip_suffix(":*"), pattern.strip_suffix('*')) {
                (Some(words), _) => SubjectPattern::Words(words.to_owned()),
                (None, Some(prefix)) => SubjectPattern::Prefix(prefix.to_owned()),
                (None, None) => SubjectPattern::Exact(pattern.to_owned()),
            },
        };
        Ok(Self { tool: tool.to_owned(), subject })
    }

    fn is_about(&self, tool: &str, subject: &str) -> bool {
        let matches_subject = match &self.subject {
            SubjectPattern::Any => true,
            SubjectPattern::Exact(text) => subject == text,
            SubjectPattern::Words(words) => {
                subject.strip_prefix(words.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            }
            SubjectPattern::Prefix(prefix) => subject.starts_with(prefix.as_str()),
        };
        self.tool.eq_ignore_ascii_case(tool) && matches_subject
    }

    /// Returns true if the rule allows the whole call. A command with shell operators can do more than it begins with.
    fn allows(&self, call: &PermissionCall) -> bool {
        let is_plain = call.kind != ToolEffectKind::Command || !has_shell_operators(&call.subject);
        is_plain && self.is_about(&call.tool, call.subject.trim())
    }

    /// Returns true if the rule denies a part of the call.
    fn denies(&self, call: &PermissionCall) -> bool {
        match call.kind {
            ToolEffectKind::Command => {
                let mut parts = call.subject.split(is_shell_operator);
                self.is_about(&call.tool, call.subject.trim())
                    || parts.any(|part| self.is_about(&call.tool, without_assignments(part)))
            }
            ToolEffectKind::Read | ToolEffectKind::Edit => self.is_about(&call.tool, call.subject.trim()),
        }
    }
}

impl std::fmt::Display for PermissionRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.subject {
            SubjectPattern::Any => f.write_str(&self.tool),
            SubjectPattern::Exact(text) => write!(f, "{}({text})", self.tool),
            SubjectPattern::Words(words) => write!(f, "{}({words}:*)", self.tool),
            SubjectPattern::Prefix(prefix) => write!(f, "{}({prefix}*)", self.tool),
        }
    }
}

fn is_shell_operator(letter: char) -> bool {
    matches!(letter, ';' | '&' | '|' | '<' | '>' | '`' | '$' | '(' | ')' | '{' | '}' | '\n')
}

fn has_shell_operators(command: &str) -> bool {
    command.contains(is_shell_operator)
}

/// Returns a command without the variables that it sets first, such as `A=1 make`.
fn without_assignments(command: &str) -> &str {
    let mut rest = command.trim();
    while let Some((word, tail)) = rest.split_once(' ') {
        let is_assignment = word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !name.contains('/'));
        if !is_assignment {
            break;
        }
        rest = tail.trim_start();
    }
    rest
}

/// The rules and the mode of one member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// The part of decisions that is left to the person.
    pub mode: PermissionMode,
    /// Calls about which the person is not asked.
    pub allow: Vec<PermissionRule>,
    /// Calls that are refused.
    pub deny: Vec<PermissionRule>,
}

/// The decision of the rules about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermissionDecision {
    /// The call is made.
    Allowed,
    /// The call is refused, for this reason.
    Denied(String),
    /// The person decides.
    Asked,
}

impl Permissions {
    /// Decides about a call.
    #[must_use]
    pub fn decide(&self, call: &PermissionCall) -> PermissionDecision {
        if let Some(rule) = self.deny.iter().find(|rule| rule.denies(call)) {
            return PermissionDecision::Denied(format!("the rule `{rule}` denies it"));
        }
        match (self.mode, call.kind) {
            (_, ToolEffectKind::Read)
            | (PermissionMode::Auto, _)
            | (PermissionMode::AcceptEdits, ToolEffectKind::Edit) => PermissionDecision::Allowed,
            (PermissionMode::Plan, _) => {
                PermissionDecision::Denied("you have the mode `plan`: you may read, and change nothing".to_owned())
            }
            (PermissionMode::AcceptEdits | PermissionMode::Ask, _)
                if self.allow.iter().any(|rule| rule.allows(call)) =>
            {
                PermissionDecision::Allowed
            }
            (PermissionMode::AcceptEdits | PermissionMode::Ask, _) => PermissionDecision::Asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(texts: &[&str]) -> Vec<PermissionRule> {
        texts.iter().map(|text| PermissionRule::parse(text).unwrap()).collect()
    }

    fn bash(command: &str) -> PermissionCall {
        PermissionCall { tool: "bash".into(), kind: ToolEffectKind::Command, subject: command.into() }
    }

    fn asked(allow: &[&str], deny: &[&str], call: &PermissionCall) -> PermissionDecision {
        Permissions { mode: PermissionMode::Ask, allow: rules(allow), deny: rules(deny) }.decide(call)
    }

    #[test]
    fn allow_rule_matches_whole_words() {
        let allow = ["bash(cargo test:*)", "bash(make)"];
        for command in ["cargo test", "cargo test --lib", " cargo test ", "make"] {
            assert_eq!(asked(&allow, &[], &bash(command)), PermissionDecision::Allowed, "{command}");
        }
        for command in ["cargo testing", "cargo", "make clean", "sudo make"] {
            assert_eq!(asked(&allow, &[], &bash(command)), PermissionDecision::Asked, "{command}");
        }
    }

    #[test]
    fn deny_rule_is_stronger_and_sees_every_part() {
        let deny = ["bash(git push:*)", "bash(rm:*)"];
        for command in ["git push", "make && git push -f", "echo $(rm -rf x)", "A=1 rm x", "true; rm x", "x | rm y"] {
            let decision = asked(&["bash"], &deny, &bash(command));
            assert!(matches!(decision, PermissionDecision::Denied(_)), "{command}: {decision:?}");
        }
        let auto = Permissions { deny: rules(&deny), ..Permissions::default() };
        assert!(matches!(auto.decide(&bash("rm x")), PermissionDecision::Denied(_)));
        assert_eq!(auto.decide(&bash("rmdir x")), PermissionDecision::Allowed);
    }

    #[test]
    fn mode_decides_without_rules() {
        let edit = PermissionCall { tool: "edit_file".into(), kind: ToolEffectKind::Edit, subject: "a.rs".into() };
        let read = PermissionCall { kind: ToolEffectKind::Read, ..edit.clone() };
        let decide = |word: &str, call: &PermissionCall| {
            let mode = PermissionMode::from_word(word).unwrap();
            match (Permissions { mode, ..Permissions::default() }).decide(call) {
                PermissionDecision::Allowed => "allowed",
                PermissionDecision::Denied(_) => "denied",
                PermissionDecision::Asked => "asked",
            }
        };
        let table = PermissionMode::WORDS.map(|word| [&read, &edit, &bash("ls")].map(|call| decide(word, call)));
        assert_eq!(
            table,
            [
                ["allowed", "allowed", "allowed"],
                ["allowed", "allowed", "asked"],
                ["allowed", "asked", "asked"],
                ["allowed", "denied", "denied"],
            ]
        );
    }

    #[test]
    fn invalid_rules_are_refused() {
        for text in ["", "bash(", "bash()", "(x)", "ba sh", "bash)x("] {
            assert_eq!(PermissionRule::parse(text), Err(InvalidRule), "{text}");
        }
        for text in ["bash", "bash(cargo test:*)", "write_file(src/*)", "bash(make)"] {
            assert_eq!(PermissionRule::parse(text).unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn command_with_operator_is_never_allowed_by_rule(
            head in "[a-z ]{0,12}",
            operator in "[;&|<>`$(){}\n]",
            tail in "[ -~]{0,12}",
        ) {
            let command = format!("cargo test {head}{operator}{tail}");
            prop_assert_eq!(asked(&["bash(cargo test:*)"], &[], &bash(&command)), PermissionDecision::Asked);
        }
    }
}
