//! Pure decisions and formats: tasks, messages, phases, prompts, states.
//!
//! No files, environment, clock or runtime. A test checks this.

#![warn(missing_docs)]

pub mod access;
pub mod account;
pub mod approval;
pub mod budget;
pub mod budget_spent;
pub mod claim_queue;
pub mod code_fence;
pub mod conflict;
pub mod dependencies;
pub mod digest;
pub mod dropped_lines;
pub mod event;
pub mod evidence;
pub mod failed_attempt;
pub mod failure_summary;
pub mod json_document;
pub mod member_place;
pub mod message;
pub mod model_spec;
pub mod name;
pub mod new_task;
pub mod notification;
pub mod output;
pub mod path_pattern;
pub mod pattern;
pub mod pending_questions;
pub mod permission;
pub mod phase;
pub mod plan;
pub mod plan_update;
pub mod prompt;
pub mod prompt_cut;
pub mod records;
pub mod replay;
pub mod request_error;
pub mod request_text;
pub mod run_verdict;
pub mod session;
pub mod shell_blocks;
pub mod shell_commands;
pub mod shell_words;
pub mod snapshot;
pub mod state;
pub mod state_note;
pub mod suggestion;
pub mod system_error;
pub mod tags;
pub mod task;
pub mod task_diff;
pub mod task_error;
pub mod team_spec;
pub mod text_tool_call;
pub mod time;
pub mod transcript;
pub mod transition;
pub mod turn_count;
pub mod units;
pub mod verify_run;
pub mod waiting_for;
pub(crate) mod words;
pub mod worktree_name;
pub mod worktree_state;
