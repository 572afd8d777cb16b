//! Texts and their formats, without a meaning of their own.

pub mod characters;
pub mod code_fence;
pub mod json_document;
pub mod json_place;
pub mod output;
pub mod path_glob;
pub mod pattern;
pub mod suggestion;
pub mod system_error;
pub mod tags;
pub mod units;
pub(crate) mod words;
