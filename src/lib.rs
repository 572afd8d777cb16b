//! Brigade launches a named team of LLM agents from one config file.
pub mod cli;
pub mod config;
pub mod domain;
pub mod embed;
pub mod models;
pub mod platform;
pub mod ports;
pub mod sandbox;
pub mod stores;
pub mod team;
pub mod tools;
pub mod ui;
