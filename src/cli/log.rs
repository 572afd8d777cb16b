//! `brigade log`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::{number, task_id};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Answer;
use crate::domain::event::{Event, Fact};
use crate::domain::task::TaskId;
use crate::ports::Board as _;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::events::EventReader;
use crate::stores::fs::RealFileSystem;
use crate::ui::style::{DIM, paint};
use crate::ui::timeline::Timeline;

/// How often a log that is followed is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The most events `-n` asks for.
const COUNT_MAX: u64 = 1_000_000;

/// Show what happened in the newest run, from the event log
///
/// With --json the events as they stand in the log; with --follow besides, a line each.
#[derive(Debug, clap::Args)]
pub struct Log {
    /// Only the last so many events
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = number::<u64>(1..=COUNT_MAX))]
    last: Option<u64>,
    /// Only those about this task
    #[arg(long, value_name = "ID", value_parser = task_id)]
    task: Option<TaskId>,
    /// Only those about this teammate
    #[arg(long, value_name = "NAME")]
    teammate: Option<String>,
    /// Only those of this kind, such as task_completed; repeat it for several
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    /// Go on with what comes, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

impl Log {
    /// Shows the log.
    ///
    /// # Errors
    /// There is no workspace, or the log cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        if self.follow && context.is_in_session() {
            return Err(CliError::usage("what comes is shown here anyway").hint("brigade log -n 50 shows what came"));
        }
        let team_folder = context.workspace()?.join(TEAM_FOLDER);
        let mut reader = EventReader::new(Arc::new(RealFileSystem::default()), &team_folder);
        let mut timeline = Timeline::new(context.output.columns);
        for task in context.board_to_look_at()?.view().await?.tasks.values() {
            timeline.learn(task.id, &task.subject);
        }
        let mut events: VecDeque<Event> =
            reader.read_new()?.into_iter().filter(|event| self.is_wanted(event)).collect();
        if let Some(last) = self.last {
            let surplus = events.len().saturating_sub(usize::try_from(last).unwrap_or(usize::MAX));
            events.drain(..surplus);
        }
        let is_empty = events.is_empty();
        if self.follow {
            return self.go_on(context, reader, timeline, events.into()).await;
        }
        let answer = context.output.answer(&events, || self.render(context, &mut timeline, &events))?;
        Ok(if is_empty { answer.note(paint(DIM, "nothing of that kind is in the log")) } else { answer })
    }

    async fn go_on(
        self,
        context: &Context,
        mut reader: EventReader,
        mut timeline: Timeline,
        mut events: Vec<Event>,
    ) -> CliResult<Answer> {
        loop {
            let text = self.render(context, &mut timeline, &events);
            context.output.print(&text).map_err(|error| CliError::refused(format!("cannot write: {error}")))?;
            tokio::time::sleep(LOOK_INTERVAL).await;
            events = reader.read_new()?;
            events.retain(|event| self.is_wanted(event));
        }
    }

    /// Lines for people; for programs that follow, the events as they stand in the file.
    fn render<'a>(
        &self,
        context: &Context,
        timeline: &mut Timeline,
        events: impl IntoIterator<Item = &'a Event>,
    ) -> String {
        let mut text = String::new();
        for event in events {
            if context.output.json {
                text += &event.to_line();
                text.push('\n');
            } else {
                text += &timeline.push(event);
            }
        }
        text + &timeline.finish()
    }

    fn is_wanted(&self, event: &Event) -> bool {
        let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(&event.fact) else { return false };
        let is_named = |name: &String| {
            ["teammate", "by", "from", "to"].iter().any(|key| {
                fields.get(*key).and_then(|value| value.as_str()).is_some_and(|value| value.eq_ignore_ascii_case(name))
            })
        };
        let is_about = |task: TaskId| fields.get("task").and_then(serde_json::Value::as_u64) == Some(task.0);
        let is_of = |kind: &String| fields.get("kind").and_then(|value| value.as_str()) == Some(kind);
        // What began the run gives its time to all others.
        matches!(event.fact, Fact::TeamStarted { .. } if self.kind.is_empty() && self.task.is_none() && self.teammate.is_none())
            || (self.teammate.as_ref().is_none_or(is_named)
                && self.task.is_none_or(is_about)
                && (self.kind.is_empty() || self.kind.iter().any(is_of)))
    }
}
