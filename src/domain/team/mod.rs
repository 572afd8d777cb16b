//! Teams: members, requests between them, phases and sessions, budgets, the shared state.

pub mod account;
pub mod approval;
pub mod budget;
pub mod budget_spent;
pub mod digest;
pub mod member_place;
pub mod message;
pub mod model_spec;
pub mod name;
pub mod next;
pub mod notification;
pub mod pending_questions;
pub mod phase;
pub mod question;
pub mod records;
pub mod request_error;
pub mod request_kind;
pub mod request_text;
pub mod run_verdict;
pub mod session;
pub mod state;
pub mod state_note;
pub mod team_spec;
pub mod waiting_for;
