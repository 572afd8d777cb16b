//! The rules that decide whether an agent may call a tool. They hold for Brigade's own tools and for those of external agents.
//!
//! | mode | reads, board and team | changes of files | commands, unknown tools | web |
//! |---|---|---|---|---|
//! | `auto` | allowed | allowed | allowed | allowed |
//! | `accept-edits` | allowed | allowed | the person is asked | the person is asked |
//! | `ask` | allowed | the person is asked | the person is asked | the person is asked |
//! | `plan` | allowed | denied | denied | the person is asked |
//!
//! A `deny` rule is stronger than everything else. An `allow` rule allows a call about which the person would be asked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path_pattern;
use super::reading_commands::only_reads;
use super::shell_commands::{CommandParts, TooLong};
use crate::domain::text::pattern::{begins_with_words, matches_pattern};
use crate::domain::text::words::words;

words! {
    /// The calls that need the person's permission.
    #[derive(Default)]
    pub enum PermissionMode {
        /// Everything is allowed.
        #[default]
        Auto = "auto",
        /// The person is asked about commands.
        AcceptEdits = "accept-edits",
        /// The person is asked about commands and changes of files.
        Ask = "ask",
        /// Nothing may be changed.
        Plan = "plan",
    }
}

/// A kind of tools, by their effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// It reaches only the board, the mail, the team, or what Brigade keeps for the member.
    Board,
    /// It reads files.
    Read,
    /// It changes a file.
    Edit,
    /// It runs a command.
    Command,
    /// It reads from the web. Its address or query can carry data out.
    Web,
    /// Its effects are not known.
    Other,
}

impl ToolKind {
    /// Returns true if a tool of this kind can change files or anything else.
    pub fn changes_something(self) -> bool {
        matches!(self, Self::Edit | Self::Command | Self::Other)
    }

    /// Returns true if a call of this kind can change something. A command that only reads cannot; `command` is `None` if it is not known.
    pub fn is_work(self, command: Option<&str>) -> bool {
        self.changes_something() && !(self == Self::Command && command.is_some_and(only_reads))
    }

    /// Returns true if a tool of this kind reads files, changes files or runs commands.
    pub fn is_for_files(self) -> bool {
        matches!(self, Self::Read | Self::Edit | Self::Command)
    }
}

/// A call for which permission is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PermissionCall {
    /// The tool, under Brigade's name for it.
    pub tool: String,
    /// The kind of the tool.
    pub kind: ToolKind,
    /// The command, the path or the address; the arguments as JSON for [`ToolKind::Other`]; empty for tools of the board.
    pub subject: String,
}

impl PermissionCall {
    /// Returns true if the call changes a file, and its path is outside of the member's folder. Links are not followed.
    pub fn changes_file_outside(&self) -> bool {
        self.kind == ToolKind::Edit && path_pattern::is_outside(&self.subject)
    }

    /// Returns true if the call can change something. A command that only reads cannot.
    pub fn is_work(&self) -> bool {
        self.kind.is_work(Some(&self.subject))
    }

    /// Returns true if the call shows the paths or the contents of many files.
    pub fn is_search(&self) -> bool {
        ["glob", "grep"].contains(&self.tool.as_str())
    }

    /// Returns true if the call is about a file or folder.
    pub fn is_about_path(&self) -> bool {
        matches!(self.kind, ToolKind::Read | ToolKind::Edit)
    }
}

/// Returns the lines of a change, for the person who is asked about it.
pub fn change_text(old: &str, new: &str) -> String {
    let lines = |mark: &str, text: &str| -> String {
        text.split_terminator('\n').map(|line| format!("{mark} {line}\n")).collect()
    };
    lines("-", old) + &lines("+", new)
}

/// Brigade's names for the tools that only external agents have.
pub const EXTERNAL_TOOLS: [&str; 4] = ["web_fetch", "web_search", "bash_output", "bash_stop"];

/// A rule such as `bash(cargo test:*)`: a tool, and the subjects that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRule {
    tool: String,
    subject: SubjectPattern,
}

/// The subjects of a rule. In a text, `*` stands for any characters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SubjectPattern {
    /// `tool`: every subject.
    Any,
    /// `tool(text)`: this subject. In a rule that denies commands, it covers further words too.
    Text(String),
    /// `tool(text:*)`: the text alone, or followed by further words.
    Words(String),
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
            Some(pattern) => match pattern.strip_suffix(":*") {
                Some(words) => SubjectPattern::Words(words.to_owned()),
                None => SubjectPattern::Text(pattern.to_owned()),
            },
        };
        Ok(Self { tool: tool.to_owned(), subject })
    }

    /// The tool that the rule names.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Returns the rule's text with the name that another program has for its tool.
    pub fn text_with_tool(&self, tool: &str) -> String {
        match &self.subject {
            SubjectPattern::Any => tool.to_owned(),
            SubjectPattern::Text(text) => format!("{tool}({text})"),
            SubjectPattern::Words(words) => format!("{tool}({words}:*)"),
        }
    }

    /// Returns true if the rule is about this tool, for some subjects at least.
    pub fn is_about_tool(&self, tool: &str) -> bool {
        self.tool.eq_ignore_ascii_case(tool)
    }

    /// Returns true if the rule holds for this tool. A rule about reading holds for each tool that shows parts of files.
    fn governs(&self, tool: &str) -> bool {
        let shows_files = SHOW_FILES.iter().any(|name| name.eq_ignore_ascii_case(tool));
        self.is_about_tool(tool) || (shows_files && self.is_about_tool(READ_TOOL))
    }

    fn matches_path(&self, path: &str) -> bool {
        match &self.subject {
            SubjectPattern::Any => true,
            SubjectPattern::Text(pattern) => path_pattern::matches(path, pattern),
            SubjectPattern::Words(words) => begins_with_words(&path_pattern::normalised(path, ""), words),
        }
    }

    /// Returns true if the rule is about this path or a folder above it. A pattern that begins with `/` is about absolute paths.
    fn denies_path(&self, path: &str, folder: &str) -> bool {
        match &self.subject {
            SubjectPattern::Text(pattern) => {
                let is_absolute = pattern.starts_with('/') && !path.starts_with('/');
                path_pattern::matches_at_or_above(path, pattern)
                    || (is_absolute && path_pattern::matches_at_or_above(&format!("{folder}/{path}"), pattern))
            }
            _ => self.matches_path(path),
        }
    }

    fn matches(&self, subject: &str) -> bool {
        match &self.subject {
            SubjectPattern::Any => true,
            SubjectPattern::Text(text) => matches_pattern(subject, text),
            SubjectPattern::Words(words) => begins_with_words(subject, words),
        }
    }

    /// Returns true if the rule is about the call as a whole.
    fn covers(&self, call: &PermissionCall) -> bool {
        self.is_about_tool(&call.tool)
            && match call.kind {
                ToolKind::Board | ToolKind::Read | ToolKind::Edit => self.matches_path(&call.subject),
                ToolKind::Command | ToolKind::Web => self.matches(call.subject.trim()),
                ToolKind::Other => self.subject == SubjectPattern::Any,
            }
    }

    /// Returns true if the rule allows the whole call. A command with shell operators can do more than it begins with.
    fn allows(&self, call: &PermissionCall) -> bool {
        let is_compound = call.kind == ToolKind::Command && call.subject.contains(is_shell_operator);
        !is_compound && self.covers(call)
    }

    /// Returns the reason if the rule denies the call or, of a command, one of its parts.
    fn denial(&self, call: &PermissionCall, parts: &Result<CommandParts, TooLong>) -> Option<String> {
        if call.is_about_path() {
            let is_denied = self.governs(&call.tool) && self.denies_path(&call.subject, "");
            return is_denied.then(|| format!("the rule `{self}` denies it"));
        }
        if self.is_about_tool(&call.tool)
            && let SubjectPattern::Text(pattern) | SubjectPattern::Words(pattern) = &self.subject
        {
            match parts.as_ref().map(|parts| parts.find(pattern)) {
                Ok(Some(found)) => return Some(format!("the rule `{self}` denies it: {found}")),
                Ok(None) => {}
                Err(error) => return Some(format!("it cannot be compared with the rule `{self}`: {error}")),
            }
        }
        self.covers(call).then(|| format!("the rule `{self}` denies it"))
    }
}

impl std::fmt::Display for PermissionRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text_with_tool(&self.tool))
    }
}

fn is_shell_operator(letter: char) -> bool {
    matches!(letter, ';' | '&' | '|' | '<' | '>' | '`' | '$' | '(' | ')' | '{' | '}' | '\n')
}

/// The tool whose rules decide about the contents of files.
const READ_TOOL: &str = "read_file";
/// Other tools that show paths, or parts of files.
const SHOW_FILES: [&str; 3] = ["edit_file", "glob", "grep"];

/// The rules that hide files from one tool of a member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HiddenPaths {
    rules: Vec<PermissionRule>,
    folder: String,
}

impl HiddenPaths {
    /// Returns true if no path is hidden.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the rule that hides a path below the member's folder, or a folder above it.
    pub fn rule_about(&self, path: &str) -> Option<&PermissionRule> {
        self.rules.iter().find(|rule| rule.denies_path(path, &self.folder))
    }
}

/// The rules and the mode of one member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// The calls that need the person's permission.
    pub mode: PermissionMode,
    /// Calls about which the person is not asked.
    pub allow: Vec<PermissionRule>,
    /// Calls that are refused.
    pub deny: Vec<PermissionRule>,
}

/// The decision of the rules about a call. Each is stricter than the one before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermissionDecision {
    /// The call is made.
    Allow,
    /// The person decides.
    Ask,
    /// The call is refused, for this reason.
    Deny(String),
}

fn denied_by(rule: &PermissionRule) -> PermissionDecision {
    PermissionDecision::Deny(format!("the rule `{rule}` denies it"))
}

impl Permissions {
    /// Returns true if there are rules.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty())
    }

    /// Returns true if no call of this tool can be allowed.
    pub fn excludes(&self, tool: &str, kind: ToolKind) -> bool {
        let is_denied = |rule: &PermissionRule| rule.subject == SubjectPattern::Any && rule.governs(tool);
        (self.mode == PermissionMode::Plan && kind.changes_something()) || self.deny.iter().any(is_denied)
    }

    /// Returns the paths that a tool must not show or change. `folder` is the member's folder.
    pub fn hidden_from(&self, tool: &str, folder: &str) -> HiddenPaths {
        let rules = self.deny.iter().filter(|rule| rule.governs(tool)).cloned().collect();
        HiddenPaths { rules, folder: folder.to_owned() }
    }

    /// Decides about a call with a path: by the path, and by the `real_paths` inside of `folder` to which it leads. The strictest decision
    /// counts.
    pub fn decide_path(&self, call: &PermissionCall, real_paths: &[String], folder: &str) -> PermissionDecision {
        let path = path_pattern::normalised(&call.subject, folder);
        // Some programs ignore the white space around a path.
        let trimmed = path_pattern::normalised(call.subject.trim(), folder);
        let hidden = self.hidden_from(&call.tool, folder);
        let mut paths = [&path, &trimmed].into_iter().chain(real_paths);
        if let Some(rule) = paths.find_map(|path| hidden.rule_about(path)) {
            return denied_by(rule);
        }
        // An absolute path can lead into the folder under another name. Then only its real path says where.
        let own_path = (real_paths.is_empty() || !path.starts_with('/')).then_some(&path);
        let decide = |subject: &String| self.decide(&PermissionCall { subject: subject.clone(), ..call.clone() });
        let decisions = own_path.into_iter().chain(real_paths).map(decide);
        decisions.max().unwrap_or(PermissionDecision::Ask)
    }

    /// Decides about a call.
    pub fn decide(&self, call: &PermissionCall) -> PermissionDecision {
        let is_ruled = |rule: &PermissionRule| call.kind == ToolKind::Command && rule.is_about_tool(&call.tool);
        let parts = if self.deny.iter().any(is_ruled) {
            CommandParts::read(&call.subject)
        } else {
            Ok(CommandParts::default())
        };
        if let Some(reason) = self.deny.iter().find_map(|rule| rule.denial(call, &parts)) {
            return PermissionDecision::Deny(reason);
        }
        match (self.mode, call.kind) {
            (_, ToolKind::Board | ToolKind::Read)
            | (PermissionMode::Auto, _)
            | (PermissionMode::AcceptEdits, ToolKind::Edit) => PermissionDecision::Allow,
            (PermissionMode::Plan, kind) if kind.changes_something() => {
                PermissionDecision::Deny("you have the mode `plan`: you may read, and change nothing".to_owned())
            }
            _ if self.allow.iter().any(|rule| rule.allows(call)) => PermissionDecision::Allow,
            _ => PermissionDecision::Ask,
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
        PermissionCall { tool: "bash".into(), kind: ToolKind::Command, subject: command.into() }
    }

    fn asked(allow: &[&str], deny: &[&str], call: &PermissionCall) -> PermissionDecision {
        Permissions { mode: PermissionMode::Ask, allow: rules(allow), deny: rules(deny) }.decide(call)
    }

    #[test]
    fn allow_rule_matches_whole_words() {
        let allow = ["bash(cargo test:*)", "bash(make)"];
        for command in ["cargo test", "cargo test --lib", " cargo test ", "make"] {
            assert_eq!(asked(&allow, &[], &bash(command)), PermissionDecision::Allow, "{command}");
        }
        for command in ["cargo testing", "cargo", "make clean", "sudo make"] {
            assert_eq!(asked(&allow, &[], &bash(command)), PermissionDecision::Ask, "{command}");
        }
    }

    #[test]
    fn deny_rule_is_stronger_and_sees_every_part() {
        let deny = ["bash(git push:*)", "bash(rm:*)"];
        for command in [
            "git push",
            "make && git push -f",
            "git  push",
            "echo $(rm -rf x)",
            "A=1 rm x",
            "true; rm x",
            "x | rm y",
            "for f in a; do rm x; done",
            "if ! rm\tx; then true; fi",
            "'rm' x",
            "/bin/rm x",
            "sudo rm x",
            "timeout -k 5 60 git push",
            "/usr/bin/env -i A=1 rm x",
            "bash -c 'rm x'",
            "find . | xargs -n1 /bin/rm",
            "GIT_SSH_COMMAND='ssh -i key' git push",
            "A='b c' bash -c \"D='e' 'rm' x\"",
            "git \\\n  push origin",
            "make && git pu\\\nsh",
        ] {
            let decision = asked(&["bash"], &deny, &bash(command));
            assert!(matches!(decision, PermissionDecision::Deny(_)), "{command}: {decision:?}");
        }
        let auto = Permissions { deny: rules(&deny), ..Permissions::default() };
        assert!(matches!(auto.decide(&bash("rm x")), PermissionDecision::Deny(_)));
        for command in ["rmdir x", "git commit -m 'rm x'", "./form x", "timeout 60 make rmdir"] {
            assert_eq!(auto.decide(&bash(command)), PermissionDecision::Allow, "{command}");
        }
        let exact = Permissions { deny: rules(&["bash(git push)"]), ..Permissions::default() };
        for command in ["git push", "git push 2>&1", "git push origin"] {
            assert!(matches!(exact.decide(&bash(command)), PermissionDecision::Deny(_)), "{command}");
        }
    }

    #[test]
    fn star_matches_any_characters() {
        let deny = ["bash(git * push:*)", "edit_file(*/secret.txt)", "write_file(a*b*c)"];
        for command in ["git -C x push", "make && git -c a=b push origin"] {
            assert!(matches!(asked(&[], &deny, &bash(command)), PermissionDecision::Deny(_)), "{command}");
        }
        assert_eq!(asked(&[], &deny, &bash("git pull")), PermissionDecision::Ask);
        let allow = ["bash(npm run *)", "bash(make * test)"];
        for (command, is_allowed) in
            [("npm run lint", true), ("npm run", false), ("make -j 2 test", true), ("make test", false)]
        {
            assert_eq!(asked(&allow, &[], &bash(command)) == PermissionDecision::Allow, is_allowed, "{command}");
        }
        let change =
            |tool: &str, path: &str| PermissionCall { tool: tool.into(), kind: ToolKind::Edit, subject: path.into() };
        for (tool, path, is_denied) in [
            ("edit_file", "a/b/secret.txt", true),
            ("edit_file", "secret.txt", false),
            ("write_file", "a1b2c", true),
            ("write_file", "abc", true),
            ("write_file", "acb", false),
        ] {
            let decision = asked(&[], &deny, &change(tool, path));
            assert_eq!(matches!(decision, PermissionDecision::Deny(_)), is_denied, "{path}");
        }
    }

    #[test]
    fn mode_decides_without_rules() {
        let edit = PermissionCall { tool: "edit_file".into(), kind: ToolKind::Edit, subject: "a.rs".into() };
        let read = PermissionCall { kind: ToolKind::Read, ..edit.clone() };
        let decide = |word: &str, call: &PermissionCall| {
            let mode = PermissionMode::from_word(word).unwrap();
            match (Permissions { mode, ..Permissions::default() }).decide(call) {
                PermissionDecision::Allow => "allowed",
                PermissionDecision::Deny(_) => "denied",
                PermissionDecision::Ask => "asked",
            }
        };
        let web = PermissionCall { kind: ToolKind::Web, ..edit.clone() };
        let table = PermissionMode::WORDS.map(|word| [&read, &edit, &bash("ls"), &web].map(|call| decide(word, call)));
        assert_eq!(
            table,
            [
                ["allowed", "allowed", "allowed", "allowed"],
                ["allowed", "allowed", "asked", "asked"],
                ["allowed", "asked", "asked", "asked"],
                ["allowed", "denied", "denied", "asked"],
            ]
        );
    }

    #[test]
    fn rule_about_path_sees_where_it_leads() {
        let edit = |path: &str| PermissionCall { tool: "edit_file".into(), kind: ToolKind::Edit, subject: path.into() };
        let (allow, deny) = (["edit_file(src/*)"], ["edit_file(src/keys/*)"]);
        for path in ["src/a.rs", "./src//a.rs", "docs/../src/a.rs"] {
            assert_eq!(asked(&allow, &deny, &edit(path)), PermissionDecision::Allow, "{path}");
        }
        for path in ["src/../brigade.toml", "src/../../a", "/src/a.rs", "../src/a.rs"] {
            assert_eq!(asked(&allow, &deny, &edit(path)), PermissionDecision::Ask, "{path}");
        }
        for path in ["src/keys/a", "src/./keys/a", "src/x/../keys/a"] {
            assert!(matches!(asked(&allow, &deny, &edit(path)), PermissionDecision::Deny(_)), "{path}");
        }
        let address = "https://example.org/a";
        let fetch = PermissionCall { tool: "web_fetch".into(), kind: ToolKind::Web, subject: address.into() };
        let denied = asked(&[], &["web_fetch(https://example.org/*)"], &fetch);
        assert!(matches!(denied, PermissionDecision::Deny(_)), "{denied:?}");
    }

    #[test]
    fn rule_about_unknown_tool_has_no_pattern() {
        let call = PermissionCall { tool: "Deploy".into(), kind: ToolKind::Other, subject: "{\"to\":1}".into() };
        assert_eq!(asked(&["deploy"], &[], &call), PermissionDecision::Allow);
        assert_eq!(asked(&["deploy({*)"], &[], &call), PermissionDecision::Ask);
    }

    #[test]
    fn tool_without_allowed_calls_is_excluded() {
        let plan = Permissions { mode: PermissionMode::Plan, ..Permissions::default() };
        assert!(plan.excludes("bash", ToolKind::Command) && !plan.excludes("grep", ToolKind::Read));
        let denied = Permissions { deny: rules(&["bash(rm:*)", "Glob"]), ..Permissions::default() };
        assert!(denied.excludes("glob", ToolKind::Read) && !denied.excludes("bash", ToolKind::Command));
        let unread = Permissions { deny: rules(&["read_file"]), ..Permissions::default() };
        assert!(unread.excludes("grep", ToolKind::Read) && !unread.excludes("write_file", ToolKind::Edit));
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
            prop_assert_eq!(asked(&["bash(cargo test:*)"], &[], &bash(&command)), PermissionDecision::Ask);
        }
    }
}
