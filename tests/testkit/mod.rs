//! Shared parts of tests and benches: clocks, interceptors of stores, and file systems that fail, stop or lose power.

#![allow(dead_code, clippy::unwrap_used, reason = "each group of tests uses some of it, and test helpers may panic")]

pub mod clock;
pub mod fault_injection;
pub mod interceptors;
pub mod simulated;
