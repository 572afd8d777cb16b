//! The state of `brigade watch` between two events.

use super::help::help;
use super::question::Question;
use super::snapshot::{Item, List, Snapshot};
use crate::api::Order;
use crate::api::request::Decision;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::name::LEAD;
use crate::domain::team::state::Mode;
use crate::domain::text::one_line;
use crate::front::text::lines::{fold, indented, width};

/// The width of a terminal below which it shows either a list or details.
const BOTH_COLUMNS_MIN: usize = 110;
/// Rows of the head and the foot of the screen.
const FRAME_ROWS: usize = 4;

/// A page of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    Tasks,
    Team,
    ForYou,
    Log,
}

impl Tab {
    pub const ALL: [Self; 4] = [Self::Tasks, Self::Team, Self::ForYou, Self::Log];
}

/// The view of a task in its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskDetails {
    Card,
    Diff,
    Why,
}

/// A line that the person types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub text: String,
    /// The position of the cursor, in bytes.
    pub cursor: usize,
    pub purpose: InputPurpose,
    /// True while its order is carried out. It is closed if the order succeeds, and can be corrected if not.
    pub is_sent: bool,
}

/// The purpose of a line that the person types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputPurpose {
    /// A message to this member.
    Message { to: String },
    /// The reason for a rejection.
    Rejection { kind: RequestKind, id: String },
}

impl Input {
    /// An empty line.
    pub fn new(purpose: InputPurpose) -> Self {
        Self { text: String::new(), cursor: 0, purpose, is_sent: false }
    }

    /// Inserts a text at the cursor.
    pub fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    /// The position one character before the cursor, or after it.
    pub fn neighbour(&self, is_after: bool) -> usize {
        let (before, after) = self.text.split_at(self.cursor);
        if is_after {
            self.cursor + after.chars().next().map_or(0, char::len_utf8)
        } else {
            self.cursor - before.chars().next_back().map_or(0, char::len_utf8)
        }
    }

    /// The text before the typed one.
    pub fn prompt(&self) -> String {
        match &self.purpose {
            InputPurpose::Message { to } => format!("to {to}:"),
            InputPurpose::Rejection { kind, id } => format!("reject {} {id}:", kind.noun()),
        }
    }

    /// The order with the typed text.
    pub fn order(&self) -> Order {
        let text = self.text.clone();
        match &self.purpose {
            InputPurpose::Message { to } => Order::Send { to: to.clone(), text },
            InputPurpose::Rejection { kind, id } => {
                let decision = Decision { feedback: Some(text), ..Decision::default() };
                Order::Answer { kind: *kind, id: Some(id.clone()), decision }
            }
        }
    }
}

/// The subject of the details.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    /// The answer to this question.
    Answer(Question),
    Mail {
        from: String,
        text: String,
    },
    Help,
    /// No item is selected.
    Nothing,
}

/// The text beside a list, or in place of it.
#[derive(Debug)]
struct Details {
    subject: Subject,
    text: String,
    /// True if the text is what was asked for, and no error.
    is_answer: bool,
    /// True if the text may be out of date.
    is_stale: bool,
    /// The question that is being answered, if any.
    requested: Option<Question>,
    /// The first line on the screen.
    scroll: usize,
    /// True if the last line stays on the screen, as for texts that grow.
    follows_end: bool,
}

impl Details {
    /// The largest scroll position.
    fn scroll_max(&self, rows: usize) -> usize {
        self.text.lines().count().saturating_sub(rows)
    }

    /// The first line on the screen.
    fn position(&self, rows: usize) -> usize {
        let last = self.scroll_max(rows);
        if self.follows_end { last } else { self.scroll.min(last) }
    }
}

/// The state of `brigade watch`.
#[derive(Debug)]
pub struct Model {
    snapshot: Snapshot,
    /// The columns and rows of the terminal.
    size: (usize, usize),
    pub tab: Tab,
    /// The selected row of each list, by the order of [`Tab::ALL`].
    selected: [usize; 3],
    pub task_details: TaskDetails,
    /// True if a narrow terminal shows the details in place of the list.
    pub is_open: bool,
    pub shows_help: bool,
    pub input: Option<Input>,
    message: String,
    details: Details,
    /// The last desired state other than `pause`.
    pub mode_to_continue: Mode,
    has_changed: bool,
}

impl Model {
    /// A model without a team, for a terminal of this size.
    pub fn new((columns, rows): (u16, u16)) -> Self {
        let subject = Subject::Nothing;
        let text = String::new();
        let requested = None;
        Self {
            snapshot: Snapshot::default(),
            size: (usize::from(columns), usize::from(rows)),
            tab: Tab::Tasks,
            selected: [0; 3],
            task_details: TaskDetails::Card,
            is_open: false,
            shows_help: false,
            input: None,
            message: String::new(),
            details: Details {
                subject,
                text,
                is_answer: false,
                is_stale: false,
                requested,
                scroll: 0,
                follows_end: false,
            },
            mode_to_continue: Mode::Continuous,
            has_changed: true,
        }
    }

    /// Returns true if the model has changed since the last call, so that the screen must be drawn.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Makes the watcher draw the screen.
    pub fn mark_changed(&mut self) {
        self.has_changed = true;
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Takes a new snapshot. The selected items stay selected.
    pub fn set_snapshot(&mut self, snapshot: Snapshot) {
        if snapshot == self.snapshot {
            return;
        }
        self.mode_to_continue = snapshot.desired.filter(|mode| *mode != Mode::Pause).unwrap_or(self.mode_to_continue);
        let before: Vec<Option<Item>> =
            Tab::ALL.iter().filter_map(|tab| self.list(*tab).map(|_| self.selected_in(*tab).cloned())).collect();
        self.snapshot = snapshot;
        for (index, item) in before.into_iter().enumerate() {
            let Some(list) = self.list(Tab::ALL[index]) else { continue };
            let same = |item: &Item| list.rows.iter().position(|(other, _)| other.is_same(item));
            let index_of_item = item.as_ref().and_then(same);
            let last = list.rows.len().saturating_sub(1);
            self.selected[index] = index_of_item.unwrap_or(self.selected[index].min(last));
            if index_of_item.is_none() && item.is_some() && Tab::ALL[index] == self.tab {
                // Another item takes its row, and must not be answered by mistake.
                self.is_open = false;
                if self.message().is_empty() {
                    self.set_message("the selected item is gone");
                }
            }
        }
        self.mark_changed();
    }

    /// Takes a new size of the terminal.
    pub fn resize(&mut self, (columns, rows): (u16, u16)) {
        self.size = (usize::from(columns), usize::from(rows));
        self.details.is_stale = true;
        self.mark_changed();
    }

    /// Returns true if a list and its details are shown side by side.
    pub fn shows_both(&self) -> bool {
        self.size.0 >= BOTH_COLUMNS_MIN && self.tab != Tab::Log
    }

    /// The columns of the terminal.
    pub fn columns(&self) -> usize {
        self.size.0
    }

    /// The columns of a list.
    pub fn list_columns(&self) -> usize {
        if self.size.0 >= BOTH_COLUMNS_MIN { self.size.0 / 2 } else { self.size.0 }
    }

    /// The columns of the details.
    pub fn details_columns(&self) -> usize {
        if self.shows_both() { self.size.0 - self.list_columns() - 2 } else { self.size.0 }
    }

    /// The rows of the list and of the details.
    pub fn body_rows(&self) -> usize {
        self.size.1.saturating_sub(FRAME_ROWS)
    }

    /// The list of a page; the log has none.
    pub fn list(&self, tab: Tab) -> Option<&List> {
        match tab {
            Tab::Tasks => Some(&self.snapshot.tasks),
            Tab::Team => Some(&self.snapshot.members),
            Tab::ForYou => Some(&self.snapshot.for_you),
            Tab::Log => None,
        }
    }

    /// The index of the selected row in the present list.
    pub fn selected_row(&self) -> usize {
        self.selected.get(self.tab as usize).copied().unwrap_or(0)
    }

    fn selected_in(&self, tab: Tab) -> Option<&Item> {
        let row = *self.selected.get(tab as usize)?;
        self.list(tab)?.rows.get(row).map(|(item, _)| item)
    }

    /// The selected item of the present list.
    pub fn selected_item(&self) -> Option<&Item> {
        self.selected_in(self.tab)
    }

    /// Moves the selection by this many rows.
    pub fn select(&mut self, by: isize) {
        let Some(list) = self.list(self.tab) else { return };
        let last = list.rows.len().saturating_sub(1);
        self.selected[self.tab as usize] = self.selected_row().saturating_add_signed(by).min(last);
    }

    /// Scrolls the details by this many lines.
    pub fn scroll(&mut self, by: isize) {
        let rows = self.body_rows();
        let last = self.details.scroll_max(rows);
        self.details.scroll = self.details.position(rows).saturating_add_signed(by).min(last);
        self.details.follows_end = self.follows_end() && self.details.scroll == last;
    }

    /// The first line of the details on the screen.
    pub fn scroll_position(&self) -> usize {
        self.details.position(self.body_rows())
    }

    /// Returns true if the details grow at their end.
    fn follows_end(&self) -> bool {
        matches!(self.tab, Tab::Log | Tab::Team) && !self.shows_help
    }

    /// The text about the selected item, or the help.
    pub fn details(&self) -> &str {
        &self.details.text
    }

    /// Returns true if the text about the selected item is on the screen.
    pub fn shows_selected(&self) -> bool {
        let is_shown = self.subject().is_some_and(|subject| self.details.subject == subject);
        is_shown && self.details.is_answer && !self.details.text.is_empty()
    }

    /// Returns true if the end of the text about the selected item is on the screen.
    pub fn shows_end(&self) -> bool {
        let rows = self.body_rows();
        self.details.position(rows) == self.details.scroll_max(rows)
    }

    /// The subject of the visible details. `None` if no details are visible.
    fn subject(&self) -> Option<Subject> {
        let is_visible = self.shows_both() || self.is_open || self.tab == Tab::Log;
        Some(match self.selected_item() {
            _ if self.shows_help => Subject::Help,
            _ if !is_visible => return None,
            _ if self.tab == Tab::Log => Subject::Answer(Question::Log),
            Some(Item::Task(task, _)) => Subject::Answer(match self.task_details {
                TaskDetails::Card => Question::Task(*task),
                TaskDetails::Diff => Question::Diff(*task),
                TaskDetails::Why => Question::Why(*task),
            }),
            Some(Item::Member(name)) => Subject::Answer(Question::Transcript(name.clone())),
            // The text on the screen is that of the call that a key approves.
            Some(Item::Approval { kind, id, digest, .. }) => {
                Subject::Answer(Question::Request { kind: *kind, id: id.clone(), digest: digest.clone() })
            }
            Some(Item::Mail { from, text }) => Subject::Mail { from: from.clone(), text: text.clone() },
            None => Subject::Nothing,
        })
    }

    /// Returns the question to answer for the details, if the text is missing or out of date. Only one is answered at a time: until
    /// [`Model::set_details`] is called it returns `None`.
    pub fn next_question(&mut self) -> Option<Question> {
        let subject = self.subject()?;
        if self.details.requested.is_some() && matches!(subject, Subject::Answer(_)) {
            return None;
        }
        if self.details.subject != subject {
            self.details.text.clear();
            self.details.scroll = 0;
            self.details.follows_end = self.follows_end();
            self.mark_changed();
        } else if !self.details.is_stale {
            return None;
        }
        self.details.is_stale = false;
        self.details.subject = subject.clone();
        match subject {
            Subject::Answer(question) => {
                self.details.requested = Some(question);
                return self.details.requested.clone();
            }
            Subject::Mail { from, text } => {
                let body = indented(&text, self.details_columns(), 0);
                self.details.text = folded(&format!("{} writes:\n\n{body}", one_line(&from)), self.details_columns());
            }
            Subject::Help => self.details.text = help(self.columns()),
            Subject::Nothing => {}
        }
        None
    }

    /// Takes the answer to a question. It is ignored if the details are about another one.
    pub fn set_details(&mut self, question: &Question, answer: Result<String, String>) {
        self.details.requested = None;
        let is_answer = answer.is_ok();
        let text = folded(&answer.unwrap_or_else(|error| error), self.details_columns());
        let is_shown = matches!(&self.details.subject, Subject::Answer(shown) if shown == question);
        if is_shown {
            self.details.is_answer = is_answer;
        }
        if is_shown && self.details.text != text {
            self.details.text = text;
            self.mark_changed();
        }
    }

    /// Takes the answer to the order of a key. A line that it used is closed, unless it was refused.
    pub fn take_answer(&mut self, answer: &Result<String, String>) {
        self.set_message(answer.as_ref().unwrap_or_else(|error| error));
        match &mut self.input {
            Some(input) if input.is_sent && answer.is_err() => input.is_sent = false,
            Some(input) if input.is_sent => self.input = None,
            _ => {}
        }
        self.mark_changed();
    }

    /// Ends the request for details: its thread failed.
    pub fn end_request(&mut self) {
        self.details.requested = None;
    }

    /// Makes the watcher read the details again.
    pub fn mark_details_stale(&mut self) {
        self.details.is_stale = true;
    }

    /// Shows the first line of a text until the next key.
    pub fn set_message(&mut self, text: &str) {
        let plain = anstream::adapter::strip_str(text).to_string();
        let line = one_line(plain.trim().lines().next().unwrap_or_default());
        if line != self.message {
            self.message = line;
            self.mark_changed();
        }
    }

    /// The answer to the last order, a hint or an error, in one line. Empty if there is none.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The member that a message to the selected item goes to.
    pub fn recipient(&self) -> String {
        match self.selected_item() {
            Some(Item::Member(name) | Item::Mail { from: name, .. }) => name.clone(),
            Some(Item::Task(_, Some(owner))) => owner.clone(),
            Some(Item::Approval { from, .. }) => from.clone(),
            _ => LEAD.to_owned(),
        }
    }

    /// The plan, review or permission that is selected, and the digest of its call.
    pub fn selected_approval(&self) -> Option<(RequestKind, &str, Option<&str>)> {
        match self.selected_item() {
            Some(Item::Approval { kind, id, digest, .. }) => Some((*kind, id, digest.as_deref())),
            _ => None,
        }
    }
}

/// Breaks the lines that are wider than `columns`, such as the description of a task or the lines of a diff.
fn folded(text: &str, columns: usize) -> String {
    let parts_of = |line: &str| {
        // A cell has no tabs.
        let line = line.replace('\t', "    ");
        let is_wide = line.len() > columns && width(&anstream::adapter::strip_str(&line).to_string()) > columns;
        if is_wide { fold(&line, columns.max(2), usize::MAX) } else { vec![line] }
    };
    text.lines().flat_map(parts_of).collect::<Vec<_>>().join("\n")
}
