//! What Brigade decides, and nothing it does: tasks, messages, phases, contexts, states.
//!
//! Pure by rule: no files, no environment, no clock, no runtime. A test keeps it so.

pub mod access;
pub mod change;
pub mod context;
pub mod document;
pub mod event;
pub mod facts;
pub mod graph;
pub mod imported;
pub mod measure;
pub mod merge;
pub mod message;
pub mod mode;
pub mod name;
pub mod phase;
pub mod plan;
pub mod questions;
pub mod reason;
pub mod record;
pub mod refusal;
pub mod replay;
pub mod request;
pub mod row;
pub mod spend;
pub mod state;
pub mod tags;
pub mod task;
pub mod time;
pub mod transcript;
pub mod waiting_for;
pub mod written_call;
