//! `brigade transcript`.

use super::arguments::number;
use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use super::pager::page_answer;
use crate::api;
use crate::domain::text::units::count;
use crate::domain::text::{one_line, shell_word};
use crate::front::text::commands::{hint, line};
use crate::front::text::transcript::render;

/// The most records that are shown without `-n`.
const RECORDS_DEFAULT: u64 = 100;
/// The largest value of `-n`.
const RECORDS_MAX: u64 = 1_000_000;

/// Show what a member's model read and wrote, and what its tools returned
#[derive(Debug, clap::Args)]
pub struct Transcript {
    /// A teammate or `lead`
    name: String,
    /// Only the last records, from 1 to 1000000
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = RECORDS_DEFAULT, value_parser = number::<u64>(1..=RECORDS_MAX))]
    last: u64,
}

impl Transcript {
    /// Selects the last records of a member.
    pub(in crate::front) fn of(name: String) -> Self {
        Self { name, last: RECORDS_DEFAULT }
    }

    /// Shows the transcript.
    ///
    /// # Errors
    /// There is no such member, or its transcript cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let api::transcript::Transcript { name, records } =
            api::transcript::Transcript::read(&context.workspace, &self.name).await?;
        let hidden = records.len().saturating_sub(usize::try_from(self.last).unwrap_or(usize::MAX));
        let output = context.output;
        let answer = output
            .answer(&&records[hidden..], || render(&records[hidden..], output.columns, output.renders_markdown()))?;
        let all = line(format!("transcript {} -n {}", shell_word(&name), records.len()));
        let answer = page_answer(context, answer, all.clone());
        Ok(match (records.len(), hidden) {
            (0, _) => answer.note(format!("the transcript of {} is empty", one_line(&name))),
            (_, 0) => answer,
            _ => answer.note(hint![count(hidden, "record"), " before: ", all]),
        })
    }
}
