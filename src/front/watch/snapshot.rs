//! The facts about a team at one moment, as lines of text for `brigade watch`.

use std::sync::Arc;

use crate::api::task::load_context;
use crate::api::team::{MemberView, TeamStatus, TeamView};
use crate::domain::task::{Task, TaskId};
use crate::domain::team::approval::{Request, RequestKind};
use crate::domain::team::message::Message;
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::pending_questions::{Question, Questions};
use crate::domain::team::state::Mode;
use crate::domain::text::{first_line, one_line};
use crate::domain::time::UnixMs;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::team::killed_team_note;
use crate::front::text::lines::ago;
use crate::front::text::live::{LiveView, board_line};
use crate::front::text::requests;
use crate::front::text::style::{BOLD, DIM, PLAIN, WARN, paint};
use crate::front::text::table::{Cell, Table};
use crate::front::text::tasks;
use crate::front::text::team::{self, members};
use crate::service::pending::PendingForPerson;

/// A team at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// The name of the team, its process, its state and the reason why it waits.
    pub title: String,
    /// The progress of the board.
    pub progress: String,
    /// The desired state, if it is set.
    pub desired: Option<Mode>,
    pub tasks: List,
    pub members: List,
    /// Questions, plans, reviews and mail for the person.
    pub for_you: List,
    /// The number of answers that others wait for.
    pub answers_needed: usize,
}

/// A table with one row for each item.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct List {
    pub header: String,
    pub rows: Vec<(Item, String)>,
}

/// The subject of a row of a list.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A task, and its owner.
    Task(TaskId, Option<String>),
    /// The lead or a teammate.
    Member(String),
    /// A plan, a review or a permission that waits for an answer, its id, its author, and the digest of its call.
    Approval { kind: RequestKind, id: String, from: String, digest: Option<String> },
    /// A question or other mail: its sender and its text.
    Mail { from: String, text: String },
}

impl Item {
    /// Returns true if both are about the same thing.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Task(task, _), Self::Task(other, _)) => task == other,
            (one, other) => one == other,
        }
    }
}

impl List {
    /// Splits a rendered table into its header and its rows, which have these items.
    fn of(text: &str, items: Vec<Item>) -> Self {
        let mut lines = text.lines().map(str::to_owned);
        let header = lines.next().unwrap_or_default();
        Self { header, rows: items.into_iter().zip(lines).collect() }
    }
}

impl Snapshot {
    /// Reads the team: `team`, else the running one, else the last one, for a terminal of this width. Lists are at most `list_columns` wide.
    ///
    /// # Errors
    /// The team does not exist, or the workspace cannot be read.
    pub async fn read(
        context: &Context,
        team: Option<&String>,
        columns: usize,
        list_columns: usize,
    ) -> CliResult<Self> {
        let status = TeamStatus::read(&context.workspace, team).await?;
        let now = context.workspace.now();
        let board = &status.board;
        let board_tasks: Vec<&Task> = board.tasks.values().map(Arc::as_ref).collect();
        let text =
            tasks::list(board_tasks.iter().copied(), &load_context(&context.workspace, board).await?, list_columns);
        let task = |task: &&Task| Item::Task(task.id, task.owner.clone());
        let team = &status.team;
        let killed = killed_team_note(&status).map(|note| context.hint(note));
        let rows: Vec<MemberView> = team.rows().cloned().collect();
        let mut names: Vec<Item> = rows.iter().map(|member| Item::Member(member.name.clone())).collect();
        let mut member_table = members(team, now).render(list_columns);
        if team.lead.is_none() {
            names.push(Item::Member(LEAD.to_owned()));
            member_table.push_str(&format!("{}\n", paint(DIM, LEAD)));
        }
        let live = LiveView {
            members: rows,
            task_counts: team.task_counts.unwrap_or_default(),
            answers_needed: team.answers_needed,
            state: String::new(),
            is_running: team.process.running,
        };
        Ok(Self {
            title: title(team, killed.as_deref()),
            progress: board_line(&live, columns),
            desired: team.state.desired,
            tasks: List::of(&text, board_tasks.iter().map(task).collect()),
            members: List::of(&member_table, names),
            for_you: for_you(&status.waiting, now, list_columns),
            answers_needed: team.answers_needed,
        })
    }
}

fn title(team: &TeamView, killed: Option<&str>) -> String {
    let running = team::process(&team.process).lines().next().unwrap_or_default().to_owned();
    let running = killed.map_or(running, |note| paint(WARN, note));
    let waiting_for =
        team.waiting_for.as_ref().map(|reason| paint(WARN, &format!("  waits for {}", one_line(&reason.to_string()))));
    // In every other state, the note only repeats the state.
    let is_paused = team.state.desired == Some(Mode::Pause);
    let reason = Some(one_line(&team.state.note)).filter(|note| is_paused && !note.is_empty());
    let reason = reason.map(|note| format!(": {note}")).unwrap_or_default();
    let state = team::modes(&team.state).map(|modes| paint(DIM, &format!("  {modes}{reason}"))).unwrap_or_default();
    format!("{} {running}{state}{}", paint(BOLD, &one_line(&team.team)), waiting_for.unwrap_or_default())
}

/// The questions, the plans and reviews that the person answers, those that others answer, and the other mail, in this order.
fn for_you(waiting: &PendingForPerson, now: UnixMs, columns: usize) -> List {
    let mut table = Table::new(&["FROM", "WHAT", "SINCE", "TEXT"]).flexible(&["FROM", "TEXT"]).optional(&["SINCE"]);
    let mut items = Vec::new();
    let mut add = |from: &str, what: &str, since: String, text: &str, item: Item| {
        table.row(vec![
            Cell::new(from, BOLD),
            Cell::new(what, if what == "mail" { PLAIN } else { WARN }),
            Cell::new(&since, DIM),
            Cell::new(text, PLAIN),
        ]);
        items.push(item);
    };
    for Question { from, text, .. } in &waiting.questions {
        let item = Item::Mail { from: from.clone(), text: text.clone() };
        add(from, "question", String::new(), &first_line(text), item);
    }
    let for_person = |request: &&Request| request.to == HUMAN;
    let (yours, others): (Vec<&Request>, Vec<&Request>) = waiting.approvals.iter().partition(for_person);
    for request in yours.into_iter().chain(others) {
        let what = if request.to == HUMAN {
            request.kind.noun().to_owned()
        } else {
            format!("{} for {}", request.kind.noun(), one_line(&request.to))
        };
        let digest = (request.kind == RequestKind::Permission).then(|| request.digest());
        let item = Item::Approval { kind: request.kind, id: request.id.clone(), from: request.from.clone(), digest };
        add(&request.from, &what, ago(request.at, now), &requests::title(request).to_string(), item);
    }
    let is_other = |message: &&Message| !Questions::is_question_to_person(message);
    for message in waiting.mail.iter().filter(is_other) {
        let item = Item::Mail { from: message.from.clone(), text: message.content.clone() };
        add(&message.from, "mail", String::new(), &first_line(&message.content), item);
    }
    List::of(&table.render(columns), items)
}
