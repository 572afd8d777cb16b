//! The real program: its commands, its sessions on a terminal, its processes, and the models and agents outside of it.

mod agents;
mod cli;
mod models;
mod processes;
mod session;
mod testkit;
