//! The engine in one process: parsers, stores, tools, and whole teams in paused time and in simulation.

mod api;
mod parsers;
mod simulation;
mod stores;
mod team;
mod testkit;
mod tools;
