//! Agents: prompts, transcripts, permissions, commands.

pub mod access;
pub mod last_words;
pub mod path_pattern;
pub mod permission;
pub mod prompt;
pub mod prompt_cut;
pub mod reading_commands;
pub mod shell_commands;
pub mod shell_words;
pub mod text_tool_call;
pub mod transcript;
pub mod turn_count;
