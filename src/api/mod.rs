//! What a front end can ask, order and hear in one workspace. Each question has a typed view, without text for people.
//!
//! | module | content |
//! |---|---|
//! | [`team`] | a team at one moment, its process and its members |
//! | [`cost`] | the usage of a team and its budgets |
//! | [`task`] | the board and the facts that explain the state of its tasks |

pub mod cost;
pub mod task;
pub mod team;
