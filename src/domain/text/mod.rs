//! Texts and their formats, without a meaning of their own: texts of others on one line, in limited length, and without what a terminal
//! could execute.

pub mod characters;
pub mod code_fence;
pub mod json_document;
pub mod json_place;
mod length;
mod line;
pub mod output;
pub mod path_glob;
pub mod pattern;
mod shell_word;
pub mod suggestion;
pub mod system_error;
pub mod tags;
pub mod units;
pub(crate) mod words;

pub(super) use length::OMISSION_START;
pub use length::{bound, head, shorten, shorten_middle, tail};
pub use line::{first_line, headline, is_harmful, one_line, printable};
pub use shell_word::shell_word;
