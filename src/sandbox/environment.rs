//! The environment of commands: Brigade's own at launch, without secrets, and with variables for the command.
//!
//! Models write commands, and the output of a command is sent to a model's provider. So variables whose names usually carry secrets
//! are removed. Only names count: a password inside `DATABASE_URL` stays. `SSH_AUTH_SOCK` stays too: it contains no secret,
//! only the path to a process that signs without giving away its keys, and `git push` needs it.

use std::ffi::OsString;

use super::protected_paths::SearchPath;
use crate::secrets::Secret;

/// Whole words of a secret's name, also in the plural or with a number. Characters other than letters and digits separate words.
const SECRET_WORDS: &[&str] = &["AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "CRED", "DSN", "JWT", "KEY", "PAT", "PWD"];

/// Ends of words of a secret's name, and whole words.
#[rustfmt::skip]
const SECRET_SUFFIXES: &[&str] = &[
    "ACCESSKEY", "APIKEY", "AUTHKEY", "DEPLOYKEY", "ENCRYPTIONKEY", "MASTERKEY", "PASS", "PRIVATEKEY", "SECRET",
    "SECRETKEY", "SIGNINGKEY", "SSHKEY", "TOKEN", "WEBHOOK",
];

/// Parts of a secret's name, in any place.
const SECRET_PARTS: &[&str] = &["PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"];

/// Prefixes of a secret's name: all variables of these providers. The keys of other providers have a word for a secret in their names.
const SECRET_PREFIXES: &[&str] = &["ANTHROPIC_", "OPENAI_"];

/// Names and words that look like secrets but are not.
const HARMLESS_NAMES: &[&str] = &["PWD", "SSH_AUTH_SOCK"];
const HARMLESS_WORDS: &[&str] = &["ASKPASS", "BYPASS", "COMPASS", "ENCOMPASS"];

/// Fixed variables of every command: no prompts, no pagers, no colors.
const FIXED_VARIABLES: &[(&str, &str)] =
    &[("TERM", "dumb"), ("PAGER", "cat"), ("GIT_PAGER", "cat"), ("GIT_TERMINAL_PROMPT", "0"), ("SYSTEMD_PAGER", "cat")];

/// Variables that could make git work in another repository than that of the command's folder.
const GIT_REDIRECT_VARIABLES: [&str; 7] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
];

/// Scripts that a shell reads first. A command could write them for the next command. See bash(1), INVOCATION.
const SHELL_STARTUP_VARIABLES: [&str; 2] = ["BASH_ENV", "ENV"];

/// Variables that lead to the user's terminal multiplexer, which could type a command's text into a terminal outside. See tmux(1),
/// screen(1).
const MULTIPLEXER_VARIABLES: [&str; 4] = ["TMUX", "TMUX_PANE", "STY", "WINDOW"];

/// The variable with the path of the socket on which an agent's processes reach the board.
pub const BOARD_SOCKET_VARIABLE: &str = "BRIGADE_BOARD_SOCKET";
/// The variable with the credential for that socket.
pub const BOARD_CREDENTIAL_VARIABLE: &str = "BRIGADE_BOARD_CREDENTIAL";

/// The variable by which a person agrees to all that the files of a workspace do. Commands and agents must not agree for the person.
pub const TRUST_VARIABLE: &str = "BRIGADE_TRUST";

/// Prefixes of the variables by which a coding agent that started Brigade identifies itself and its session. Another agent would take
/// itself for a part of that session.
const SURROUNDING_AGENT_PREFIXES: [&str; 2] = ["CLAUDECODE", "CLAUDE_CODE_"];

/// Brigade's variables that identify the agent of a command and its ports. Those of an outer Brigade are never inherited.
const IDENTITY_VARIABLES: [&str; 7] = [
    "BRIGADE_TEAM",
    "BRIGADE_TEAMMATE",
    "BRIGADE_TASK",
    "BRIGADE_ATTEMPT",
    "BRIGADE_PORT_BASE",
    BOARD_SOCKET_VARIABLE,
    BOARD_CREDENTIAL_VARIABLE,
];

/// Returns true if the name of a variable or a header says that its value is a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    if HARMLESS_NAMES.contains(&name.as_str()) {
        return false;
    }
    SECRET_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || names_secret(&name)
}

/// Returns true if the name, in capitals, has a word for a secret.
fn names_secret(name: &str) -> bool {
    SECRET_PARTS.iter().any(|part| name.contains(part))
        || name.split(|character: char| !character.is_ascii_alphanumeric()).any(is_secret_word)
}

fn is_secret_word(word: &str) -> bool {
    let word = word.trim_end_matches(|character: char| character.is_ascii_digit());
    let is_secret = |word: &str| {
        SECRET_WORDS.contains(&word)
            || (SECRET_SUFFIXES.iter().any(|suffix| word.ends_with(suffix)) && !HARMLESS_WORDS.contains(&word))
    };
    is_secret(word) || word.strip_suffix('S').is_some_and(is_secret)
}

/// The environment of this launch without secrets. Its `PATH` comes from `SearchPath`.
pub fn launch_environment() -> Vec<(OsString, OsString)> {
    let path = std::env::var_os("PATH").map(|path| SearchPath::of(&path).value);
    let others = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name != "PATH"
            && name != TRUST_VARIABLE
            && !is_secret(&name)
            && !SURROUNDING_AGENT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            && !SHELL_STARTUP_VARIABLES.contains(&&*name)
            && !MULTIPLEXER_VARIABLES.contains(&&*name)
    });
    path.map(|path| ("PATH".into(), path)).into_iter().chain(others).collect()
}

/// The variables of this process with these names, for a program that needs them although commands do not get them. From now on the
/// values of those that name a secret are masked.
pub fn passed_variables(names: &[String]) -> Vec<(String, String)> {
    let passed = names.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
    let passed: Vec<(String, String)> = passed.collect();
    for (_, value) in passed.iter().filter(|(name, _)| is_secret(name)) {
        Secret::new(value);
    }
    passed
}

/// The environment of a command: that of the launch, the fixed variables, and `own`.
pub fn command_environment(launch: &[(OsString, OsString)], own: &[(&str, String)]) -> Vec<(OsString, OsString)> {
    let is_inherited = |name: &str| {
        !IDENTITY_VARIABLES.contains(&name)
            && !GIT_REDIRECT_VARIABLES.contains(&name)
            && !FIXED_VARIABLES.iter().any(|(fixed, _)| *fixed == name)
            && !own.iter().any(|(own, _)| *own == name)
    };
    let inherited = launch.iter().filter(|(name, _)| is_inherited(&name.to_string_lossy())).cloned();
    let fixed = FIXED_VARIABLES.iter().map(|(name, value)| (name.into(), value.into()));
    let own = own.iter().map(|(name, value)| (name.into(), value.into()));
    inherited.chain(fixed).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: &[&str] = &[
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
        "SECRET_KEY_BASE",
        "FOO_SECRETS",
        "VAULT_TOKENS",
        "API_KEYS",
        "ENCRYPTION_KEYS",
        "TOKEN_GH",
        "HF_TOKEN_FILE",
        "ACCESSTOKEN",
        "CLIENTSECRET",
        "PRIVATEKEY",
        "OPENROUTER_KEY_1",
        "OPENROUTER_KEY2",
        "AZURE_CLIENT_SECRET_VALUE",
        "PGPASS",
        "PGPASSFILE_PASSWORDS",
        "MYPASS",
        "GCP_CREDS",
        "GITHUB_AUTH",
        "NPM_AUTH",
        "npm_config_//registry.npmjs.org/:_authToken",
        "SLACK_WEBHOOK_URL",
        "MYSQL_PWD",
        "MYSQL_PASSWORD",
        "SENTRY_DSN",
        "SESSION_COOKIE",
        "JWT",
    ];
    const PLAIN: &[&str] = &[
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
        "MONKEY",
        "AUTHOR",
        "COMPASS",
        "GIT_ASKPASS",
        "KEYTIMEOUT",
        "PASSENV",
        "XAUTHORITY",
        "PATHEXT",
        "PYTHONPATH",
    ];

    #[test]
    fn secret_variable_is_recognised_by_name() {
        for secret in SECRETS {
            assert!(is_secret(secret), "{secret} is a secret");
        }
        for plain in PLAIN {
            assert!(!is_secret(plain), "{plain} is not a secret");
        }
    }

    #[test]
    fn command_environment_overrides_launch() {
        let launch = [("TERM", "xterm"), ("BRIGADE_TASK", "9"), ("A", "1")]
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment = command_environment(&launch, &[("BRIGADE_TEAM", "t".to_owned())]);
        let of = |name: &str| {
            environment.iter().filter(|(has, _)| has == name).map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of("TERM"), ["dumb"]);
        assert_eq!(of("A"), ["1"]);
        assert_eq!(of("BRIGADE_TEAM"), ["t"]);
        assert!(of("BRIGADE_TASK").is_empty());
    }
}
