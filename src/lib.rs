//! Brigade launches a named team of LLM agents from one config file.
//!
//! To run a team from another program, start at [`embed`]. The program `brigade` does the same through [`front`].
//!
//! | module | content |
//! |---|---|
//! | [`front`] | the command line and the other front ends: parse what a person types, and render the answer |
//! | [`api`] | what a front end can ask, order and hear in one workspace |
//! | [`launch`] | a team with a terminal: signals, events, exit code |
//! | [`config`] | files, variables and flags, turned into a checked team |
//! | [`embed`] | a team in a folder: connects stores, providers, tools and clock |
//! | [`team`] | the lead and the teammates: sessions, claims, mail, restarts |
//! | [`agents`] | the agents that do the work of a member: a model's loop of tool calls, or a runbook |
//! | [`run`] | the state of one run that lead and agents share: events, output, progress, budget |
//! | [`tools`] | the tools of models |
//! | [`service`] | use cases, each written once: complete a task, send a message, answer an approval |
//! | [`process`] | commands and programs under the guard |
//! | [`providers`] | how a model is reached |
//! | [`stores`] | task board, mail, transcripts, state and event log |
//! | [`git`] | the repository of a workspace: worktrees, branches, merges |
//! | [`sandbox`] | confined commands and their guard process |
//! | [`ports`] | traits for what the team needs from outside |
//! | [`domain`] | pure decisions and file formats |
//! | [`secrets`] | the secrets of this process, masked in all texts |
//! | [`platform`] | differences between operating systems |
//!
//! `ARCHITECTURE.md` is a map of the code; `docs/` has the invariants, the file formats and the decisions.
pub mod agents;
pub mod api;
pub mod config;
pub mod domain;
pub mod embed;
pub mod front;
pub mod git;
pub mod launch;
pub mod platform;
pub mod ports;
pub mod process;
pub mod providers;
pub mod run;
pub mod sandbox;
pub mod secrets;
pub mod service;
pub mod stores;
pub mod team;
pub mod tools;
