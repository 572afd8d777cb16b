//! The questions, orders and events of one workspace, for every front end. Each question has a typed view, without text for people.
//!
//! A function takes a [`Workspace`] and returns data, or a [`Refusal`]. No function prints, asks a person, or reads the terminal or the
//! process's environment.
//!
//! | module | content |
//! |---|---|
//! | [`workspace`] | opens the stores of a workspace, for one question or order |
//! | [`question`], [`next`] | a question, and the next step of a person, as data |
//! | [`location`] | the folder and the config of a workspace |
//! | [`refusal`] | the answer of a function that does not do what it was asked for |
//! | [`lead_status`] | the team that runs, and the process of its lead |
//! | [`members`] | the members of the teams: their names, their inboxes, and their claims |
//! | [`events`] | the events of a workspace, from any position in its log on |
//! | [`run`] | the runs in the event log, and the choice of one |
//! | [`run_summary`] | the facts about a run at its end |
//! | [`inbox`] | the mail of a person, a member, or an agent of another program |
//! | [`request`] | the requests that wait for approval, and their answers |
//! | [`pending`] | the messages, plans and reviews that wait for the person |
//! | [`merge`] | the branch of a team, and how its work is taken over |
//! | [`stop`] | stops the team or a teammate |
//! | [`send`] | sends the person's messages |
//! | [`state`] | the desired state of the team |
//! | [`clean`] | finds and removes old files, branches and worktrees |
//! | [`transcript`] | what a member's model read and wrote |
//! | [`outside_agent`] | an agent of another program that works on the board |
//! | [`trust`] | the record that board and mail are the user's own |
//! | [`team`] | a team at one moment, its process and its members |
//! | [`why`] | the reasons for the state of a task |
//! | [`cost`] | the usage of a team and its budgets |
//! | [`order`], [`outcome`] | the orders of all front ends as data, and what came of them |
//! | [`findings`] | the problems of the board and of usage reports, for a check |
//! | [`consent`] | the agreement of the person to what orders and files run |
//! | [`schema`] | the JSON Schema of orders, outcomes, refusals and views |
//! | [`task`] | the board and the facts that explain the state of its tasks |

#![warn(missing_docs)]

pub mod clean;
pub mod consent;
pub mod cost;
pub mod events;
pub mod findings;
pub mod inbox;
pub mod lead_status;
pub mod location;
pub mod members;
pub mod merge;
pub mod order;
pub mod outcome;
pub mod outside_agent;
pub mod pending;
pub mod refusal;
pub mod request;
pub mod run;
pub mod run_summary;
pub mod schema;
pub mod send;
pub mod state;
pub mod stop;
pub mod task;
pub mod team;
pub mod transcript;
pub mod trust;
pub mod why;
pub mod workspace;

pub use crate::domain::team::question::Question;
pub use crate::domain::team::{next, question};
pub use location::Location;
pub use next::{Launch, Next, OrderForm};
pub use order::Order;
pub use outcome::Outcome;
pub use refusal::{ApiResult, Refusal, RefusalCode};
pub use workspace::Workspace;
