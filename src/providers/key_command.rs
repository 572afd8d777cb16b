//! Keys that commands print, for tokens that expire. A command runs in the sandbox, as the commands of agents do. Its key is kept in
//! memory only, and masked in each text.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use parking_lot::Mutex;
use reqwest::header::HeaderValue;

use crate::domain::text::{one_line, shorten};
use crate::ports::ModelError;
use crate::sandbox::environment::passed_variables;
use crate::sandbox::{CommandExit, Sandbox};
use crate::secrets::{Secret, masked};

/// The longest time for a command to print its key.
const RUN_TIME_MAX: Duration = Duration::from_secs(30);
/// The age at which a key is replaced. Tokens of clouds are valid for an hour, and some commands print one that has been used before.
const KEY_AGE_MAX: Duration = Duration::from_secs(15 * 60);
/// The time for which a failure holds for all callers, so that waiting members do not run a failing command one after the other.
const FAILURE_AGE_MAX: Duration = Duration::from_secs(5);
/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 16 * 1024;
/// The longest quote of a command's error, in characters.
const QUOTE_CHARS_MAX: usize = 200;
/// Separates what the command wrote to stderr from its key.
const SEPARATOR: char = '\u{1e}';

/// The commands of one team: members with the same command share its key.
pub struct KeyCommands {
    runner: Option<Arc<Runner>>,
    known: Mutex<CommandsByText>,
}

/// Commands by their text and the variables that they get.
type CommandsByText = HashMap<(String, Vec<String>), Arc<KeyCommand>>;

/// The place and the confinement of commands.
struct Runner {
    sandbox: Sandbox,
    folder: PathBuf,
}

impl KeyCommands {
    /// Runs commands in this sandbox and folder.
    pub fn new(sandbox: Sandbox, folder: &Path) -> Self {
        let runner = Runner { sandbox, folder: folder.to_owned() };
        Self { runner: Some(Arc::new(runner)), known: Mutex::default() }
    }

    /// Runs no commands, for checks of settings. A request with such a key fails.
    pub fn without_runner() -> Self {
        Self { runner: None, known: Mutex::default() }
    }

    /// Returns the command with this text. It gets the variables with the names `pass_env`, although other commands do not.
    pub fn command(&self, script: &str, pass_env: &[String]) -> Arc<KeyCommand> {
        let key = (script.to_owned(), pass_env.to_vec());
        let mut commands = self.known.lock();
        Arc::clone(commands.entry(key).or_insert_with(|| {
            Arc::new(KeyCommand {
                script: script.to_owned(),
                pass_env: pass_env.to_vec(),
                runner: self.runner.clone(),
                last: tokio::sync::Mutex::default(),
            })
        }))
    }
}

/// A command that prints a key.
pub struct KeyCommand {
    script: String,
    pass_env: Vec<String>,
    runner: Option<Arc<Runner>>,
    last: tokio::sync::Mutex<Results>,
}

impl fmt::Debug for KeyCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyCommand").field("script", &self.script).finish_non_exhaustive()
    }
}

/// The results of the last runs, with their times.
#[derive(Default)]
struct Results {
    key: Option<(Secret, Instant)>,
    /// The failure of the last run, if it failed.
    failure: Option<(ModelError, Instant)>,
}

impl KeyCommand {
    /// Returns the key. Runs the command if there is none, or if it is too old. Other callers wait for the same run.
    ///
    /// # Errors
    /// The command failed. The text names the setting.
    pub async fn key(&self) -> Result<Secret, ModelError> {
        let mut last = self.last.lock().await;
        match &last.key {
            Some((key, at)) if at.elapsed() < KEY_AGE_MAX => Ok(key.clone()),
            _ => self.run(&mut last).await,
        }
    }

    /// Returns a new key after the server refused `refused`; `None` if the command prints the same one. A key that another caller
    /// renewed meanwhile counts as new.
    ///
    /// # Errors
    /// As [`Self::key`].
    pub async fn renewed(&self, refused: &Secret) -> Result<Option<Secret>, ModelError> {
        let mut last = self.last.lock().await;
        let key = match &last.key {
            Some((key, _)) if key.expose() != refused.expose() => key.clone(),
            _ => self.run(&mut last).await?,
        };
        Ok((key.expose() != refused.expose()).then_some(key))
    }

    /// Runs the command, unless it has just failed.
    async fn run(&self, last: &mut Results) -> Result<Secret, ModelError> {
        if let Some((error, at)) = &last.failure
            && at.elapsed() < FAILURE_AGE_MAX
        {
            return Err(error.clone());
        }
        let outcome = match self.runner.clone() {
            Some(runner) => {
                let script = wrapped(&self.script);
                let variables = passed_variables(&self.pass_env);
                let run = move || runner.sandbox.output_with(&script, &runner.folder, &variables, RUN_TIME_MAX);
                // It can only fail at the end of the runtime.
                tokio::task::spawn_blocking(run).await.unwrap_or_else(|error| Err(io::Error::other(error)))
            }
            None => Err(io::Error::other("this program runs no commands")),
        };
        match key_of(outcome) {
            Ok(key) => {
                *last = Results { key: Some((key.clone(), Instant::now())), failure: None };
                Ok(key)
            }
            Err(reason) => {
                let text = masked(format!("gets no request: `key_command` {reason}"));
                // A command that has worked before can fail because its service is out of reach.
                let error = match last.key {
                    Some(_) => ModelError::Temporary { message: text, retry_after: None },
                    None => ModelError::WrongSetting(text),
                };
                last.failure = Some((error.clone(), Instant::now()));
                Err(error)
            }
        }
    }
}

/// The script that runs the command, and prints its stdout after its stderr.
fn wrapped(script: &str) -> String {
    format!("key=$(\n{script}\n)\ncode=$?\nprintf '\\036%s' \"$key\"\nexit \"$code\"")
}

/// Returns the key that the command printed, or the reason why it is none. The reason never has the command's stdout.
fn key_of(outcome: io::Result<(CommandExit, String)>) -> Result<Secret, String> {
    let (exit, output) = outcome.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!("did not end within {} s", RUN_TIME_MAX.as_secs()),
        _ => format!("cannot be run: {error}"),
    })?;
    let (errors, printed) = output.rsplit_once(SEPARATOR).unwrap_or((&output, ""));
    let secret = Secret::new(printed);
    if exit != CommandExit::Code(0) {
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let last = shorten(&one_line(&masked(last.to_owned())), QUOTE_CHARS_MAX);
        let exit = match exit {
            CommandExit::Code(code) => format!("exit code {code}"),
            other => format!("{other:?}").to_lowercase(),
        };
        return Err(if last.is_empty() { format!("failed: {exit}") } else { format!("failed: {exit}: {last}") });
    }
    let key = secret.ok_or_else(|| "printed nothing".to_owned())?;
    if key.expose().contains('\n') {
        return Err("printed more than one line".to_owned());
    }
    if key.expose().len() > KEY_BYTES_MAX {
        return Err(format!("printed more than {KEY_BYTES_MAX} bytes"));
    }
    secret_header("", &key).map_err(|reason| format!("printed a key that {reason}"))?;
    Ok(key)
}

/// A header with `prefix` and the secret, marked as sensitive, so that it is not printed.
///
/// # Errors
/// The secret has characters that a header cannot carry. The text does not quote it.
pub fn secret_header(prefix: &str, secret: &Secret) -> Result<HeaderValue, String> {
    let invalid = || "has characters that an HTTP header cannot carry".to_owned();
    if secret.expose().bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        return Err(invalid());
    }
    let mut value = HeaderValue::try_from(format!("{prefix}{}", secret.expose())).map_err(|_| invalid())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: i32, output: &str) -> Result<String, String> {
        key_of(Ok((CommandExit::Code(code), output.to_owned()))).map(|key| key.expose().to_owned())
    }

    #[test]
    fn key_is_stdout_without_stderr() {
        assert_eq!(key(0, "a warning\n\u{1e}tok-printed-1\n"), Ok("tok-printed-1".to_owned()));
        assert_eq!(key(0, "a warning\n\u{1e}"), Err("printed nothing".to_owned()));
        assert_eq!(key(0, "\u{1e}tok-a-1234\ntok-b-1234"), Err("printed more than one line".to_owned()));
        let invalid = "printed a key that has characters that an HTTP header cannot carry";
        assert_eq!(key(0, "\u{1e}tok-ü-5678"), Err(invalid.to_owned()));
    }

    #[tokio::test]
    async fn failure_holds_for_all_callers_for_some_seconds() {
        let command = KeyCommands::without_runner().command("print-key", &[]);
        let mut times = Vec::new();
        for age in [0, 0, FAILURE_AGE_MAX.as_secs() + 1] {
            if let Some((_, at)) = &mut command.last.lock().await.failure {
                *at = at.checked_sub(Duration::from_secs(age)).unwrap();
            }
            assert!(command.key().await.is_err());
            times.extend(command.last.lock().await.failure.as_ref().map(|(_, at)| *at));
        }
        assert_eq!(times[0], times[1], "the command ran again at once");
        assert!(times[2] > times[1], "the command did not run again later");
    }

    #[test]
    fn failure_quotes_stderr_and_no_key() {
        let reason = key(3, "first\nnot logged in with tok-shown-77\n\n\u{1e}tok-shown-77").unwrap_err();
        assert_eq!(reason, "failed: exit code 3: not logged in with [key]");
        assert_eq!(key(1, "\u{1e}"), Err("failed: exit code 1".to_owned()));
        let late = key_of(Err(io::ErrorKind::TimedOut.into())).err().unwrap();
        assert_eq!(late, "did not end within 30 s");
    }
}
