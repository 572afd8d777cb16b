//! The state of one run that its lead and its agents share: events, the models' output, progress, the budget and the limits of
//! accounts.
//!
//! Agents write it while they work. The lead and front ends read it. It knows neither of them.

#![warn(missing_docs)]

pub mod accounts;
pub mod budget;
pub mod event_sink;
pub mod progress;
pub mod recorder;
pub mod stream;
