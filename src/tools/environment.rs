//! The environment of commands: Brigade's own, without secrets, with what a command should know.
//!
//! Models write commands, and what a command prints goes to a model's provider. So the names that usually carry secrets
//! are left out. It goes by names only: a password inside `DATABASE_URL` is not seen.

use std::ffi::OsString;

/// How a name is compared with a [`SECRETS`] pattern; letters are compared without case.
#[derive(Debug, Clone, Copy)]
enum Match {
    Whole(&'static str),
    Starts(&'static str),
    Ends(&'static str),
    Contains(&'static str),
}

impl Match {
    fn applies(self, name: &str) -> bool {
        match self {
            Self::Whole(word) => name == word,
            Self::Starts(start) => name.starts_with(start),
            Self::Ends(end) => name.ends_with(end),
            Self::Contains(part) => name.contains(part),
        }
    }
}

/// Names that carry secrets.
const SECRETS: &[Match] = &[
    Match::Ends("_TOKEN"),
    Match::Ends("_SECRET"),
    Match::Ends("_KEY"),
    Match::Ends("_KEY_ID"),
    Match::Ends("_APIKEY"),
    Match::Ends("_PAT"),
    Match::Ends("_PASS"),
    Match::Ends("_CREDENTIAL"),
    Match::Ends("_CREDENTIALS"),
    Match::Contains("PASSWORD"),
    Match::Contains("PASSWD"),
    Match::Contains("PASSPHRASE"),
    Match::Whole("TOKEN"),
    Match::Whole("SECRET"),
    Match::Whole("API_KEY"),
    Match::Whole("APIKEY"),
    Match::Starts("ANTHROPIC_"),
    Match::Starts("OPENAI_"),
    Match::Starts("AWS_SECRET"),
    Match::Starts("AWS_SESSION"),
];

/// What every command finds: nothing asks, nothing pages, nothing paints.
const FIXED: &[(&str, &str)] =
    &[("TERM", "dumb"), ("PAGER", "cat"), ("GIT_PAGER", "cat"), ("GIT_TERMINAL_PROMPT", "0"), ("SYSTEMD_PAGER", "cat")];

/// Names of Brigade's own that say who runs a command; an outer Brigade's are never handed on.
const OWN: [&str; 4] = ["BRIGADE_TEAM", "BRIGADE_TEAMMATE", "BRIGADE_TASK", "BRIGADE_ATTEMPT"];

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRETS.iter().any(|pattern| pattern.applies(&name))
}

/// The environment of a command: `outer` without secrets, the fixed variables, and `own`.
pub(super) fn of_command(
    outer: impl Iterator<Item = (OsString, OsString)>,
    own: &[(&str, String)],
) -> Vec<(OsString, OsString)> {
    let is_set_here = |name: &str| FIXED.iter().any(|(fixed, _)| *fixed == name) || OWN.contains(&name);
    let inherited = outer.filter(|(name, _)| {
        let name = name.to_string_lossy();
        !is_secret(&name) && !is_set_here(&name)
    });
    let fixed = FIXED.iter().map(|(name, value)| (name.into(), value.into()));
    let own = own.iter().map(|(name, value)| (name.into(), value.into()));
    inherited.chain(fixed).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names() {
        for secret in [
            "GITHUB_TOKEN",
            "NPM_TOKEN",
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_BASE_URL",
            "OPENAI_ORG",
            "MY_SECRET",
            "STRIPE_KEY",
            "stripe_api_key",
            "PGPASSWORD",
            "DB_PASSWORD_FILE",
            "MYSQL_PASSWD",
            "GPG_PASSPHRASE",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "AWS_SESSION_TOKEN",
            "GITHUB_PAT",
            "TOKEN",
        ] {
            assert!(is_secret(secret), "{secret} should not reach a command");
        }
        for plain in [
            "PATH",
            "HOME",
            "SSH_AUTH_SOCK",
            "LANG",
            "CARGO_HOME",
            "KEYBOARD",
            "TOKENIZERS_PARALLELISM",
            "PWD",
            "OLDPWD",
            "AWS_REGION",
            "GIT_AUTHOR_NAME",
            "SECRETARY",
        ] {
            assert!(!is_secret(plain), "{plain} is no secret");
        }
    }

    #[test]
    fn what_is_set_here_stands_once_and_wins() {
        let outer = [("TERM", "xterm"), ("BRIGADE_TASK", "9"), ("A", "1"), ("X_TOKEN", "t")]
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment = of_command(outer.into_iter(), &[("BRIGADE_TEAM", "t".to_owned())]);
        let of = |name: &str| {
            environment.iter().filter(|(has, _)| has == name).map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of("TERM"), ["dumb"]);
        assert_eq!(of("A"), ["1"]);
        assert_eq!(of("BRIGADE_TEAM"), ["t"]);
        assert!(of("BRIGADE_TASK").is_empty() && of("X_TOKEN").is_empty());
    }
}
