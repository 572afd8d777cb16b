//! File systems for tests of stores: one that fails or stops at the n-th call, and a simulated disk with power cuts.

#![allow(dead_code, reason = "each group of tests uses some of it")]

pub mod fault_injection;
pub mod simulated;
