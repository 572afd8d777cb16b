//! Recorded traffic: the requests and answers of models, one file for each member, and a provider that answers from them.
//!
//! `record` in a team's settings writes the files, and `provider = "recorded"` reads them. Both work below the APIs, so a recording has neither
//! headers nor keys. The path of the workspace is replaced in it: the recording works in another folder too.
//!
//! A file only grows. A line that a crash cut does not count.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::domain::time::UnixMs;
use crate::platform::reading::LineLimits;
use crate::ports::{ChatMessage, ModelResponse, RequestPurpose, ToolSpec};

mod recorder;
mod replay;

pub use recorder::Recorder;
pub use replay::{connect, replay};

/// The name of the provider that answers from recordings.
pub const RECORDED: &str = "recorded";

/// The text in a recording that stands for the path of the workspace.
const WORKSPACE: &str = "{{workspace}}";
/// The most entries of a folder of recordings. With more, the provider `recorded` refuses it.
pub const RECORDINGS_MAX: usize = 1_000;
/// The limits of a recording, for its writer and its reader. A line is an exchange.
const LIMITS: LineLimits =
    LineLimits { line_bytes_max: 64 * 1024 * 1024, lines_max: 100_000, file_bytes_max: 1024 * 1024 * 1024 };
/// The version of the format.
const VERSION: u32 = 1;

/// A request and its answer: a line of `<member>.jsonl`.
#[derive(Debug, Serialize, Deserialize)]
struct Exchange {
    v: u32,
    /// The time of the answer.
    at: UnixMs,
    purpose: RequestPurpose,
    model: String,
    /// The system prompt, if the line before has another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    /// The tools, if the line before has other ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<ToolSpec>>,
    /// The number of messages that are those of the line before.
    kept: usize,
    /// The messages after them.
    messages: Vec<ChatMessage>,
    answer: ModelResponse,
}

/// Creates the folder of recordings, which git ignores, unless there is one.
///
/// # Errors
/// Those of the system.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        fs::create_dir_all(folder)?;
        fs::write(folder.join(".gitignore"), "*\n")?;
    }
    Ok(())
}

/// The file of a member.
fn file_of(folder: &Path, member: &str) -> PathBuf {
    folder.join(format!("{member}.jsonl"))
}
