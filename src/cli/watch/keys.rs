//! The keys of `brigade watch`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Argv, Input, InputPurpose, Model, Tab, TaskDetails, argv};
use super::snapshot::Item;
use crate::domain::approval::RequestKind;
use crate::domain::state::Mode;

/// The keys and their effects.
pub const HELP: [(&str, &str); 13] = [
    ("1 2 3 4, Tab", "tasks, team, what waits for you, log"),
    ("Up Down, j k", "select"),
    ("PgUp PgDn", "scroll the details or the list; Home and End too"),
    ("Enter, Esc", "open and close the details"),
    ("d", "the diff of the selected task"),
    ("w", "why the selected task is in its state"),
    ("a", "approve the selected plan, review or permission"),
    ("A", "grant the selected permission for the whole run"),
    ("r", "reject it, with your reason"),
    ("m", "message to the selected member, sender or owner"),
    ("p", "pause the team, or let it continue"),
    ("Ctrl-L, Ctrl-Z", "draw again, suspend"),
    ("q, Ctrl-C", "quit; the team goes on"),
];

/// The hint for an answer without a request.
const NO_APPROVAL: &str = "select a plan, a review or a permission first: 3 shows those that wait";
/// The hint for a grant without a permission request.
const NO_PERMISSION: &str = "select a permission first: 3 shows those that wait";

/// The action that a key asks for, outside the model.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    Quit,
    Suspend,
    Redraw,
    /// This command of `brigade` must run.
    Run(Argv),
}

/// Changes the model for a key. Returns the action that is left to the caller.
pub fn handle(model: &mut Model, key: KeyEvent) -> Effect {
    if key.kind == KeyEventKind::Release {
        return Effect::None;
    }
    model.mark_changed();
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => return Effect::Quit,
        KeyCode::Char('z') if is_control => return Effect::Suspend,
        KeyCode::Char('l') if is_control => return Effect::Redraw,
        _ if is_control || key.modifiers.contains(KeyModifiers::ALT) => return Effect::None,
        _ => {}
    }
    if model.input.is_some() {
        return edit(model, key.code);
    }
    model.set_message("");
    if std::mem::take(&mut model.shows_help) {
        return Effect::None;
    }
    match key.code {
        KeyCode::Char('q') => return Effect::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => model.shows_help = true,
        KeyCode::Char('1') => open_tab(model, Tab::Tasks),
        KeyCode::Char('2') => open_tab(model, Tab::Team),
        KeyCode::Char('3') => open_tab(model, Tab::ForYou),
        KeyCode::Char('4') => open_tab(model, Tab::Log),
        KeyCode::Tab | KeyCode::Right => cycle_tab(model, 1),
        KeyCode::BackTab | KeyCode::Left => cycle_tab(model, Tab::ALL.len() - 1),
        KeyCode::Up | KeyCode::Char('k') => step(model, -1),
        KeyCode::Down | KeyCode::Char('j') => step(model, 1),
        KeyCode::PageUp | KeyCode::Char('b') => turn_page(model, -page_lines(model)),
        KeyCode::PageDown | KeyCode::Char(' ') => turn_page(model, page_lines(model)),
        KeyCode::Home | KeyCode::Char('g') => turn_page(model, isize::MIN),
        KeyCode::End | KeyCode::Char('G') => turn_page(model, isize::MAX),
        KeyCode::Enter => model.is_open = true,
        KeyCode::Esc => {
            model.is_open = false;
            model.task_details = TaskDetails::Card;
        }
        KeyCode::Char('d') => show_task(model, TaskDetails::Diff),
        KeyCode::Char('w') => show_task(model, TaskDetails::Why),
        KeyCode::Char('a') => return approve(model, false),
        KeyCode::Char('A') => return approve(model, true),
        KeyCode::Char('r') => reject(model),
        KeyCode::Char('m') => {
            let purpose = InputPurpose::Message { to: model.recipient() };
            model.input = Some(Input { text: String::new(), purpose });
        }
        KeyCode::Char('p') => {
            let is_paused = model.snapshot().desired == Some(Mode::Pause);
            let mode = if is_paused { model.mode_to_continue } else { Mode::Pause };
            return Effect::Run(argv(["state", mode.as_str()]));
        }
        _ => {}
    }
    Effect::None
}

fn open_tab(model: &mut Model, tab: Tab) {
    model.tab = tab;
    model.is_open = false;
}

fn cycle_tab(model: &mut Model, by: usize) {
    open_tab(model, Tab::ALL[(model.tab as usize + by) % Tab::ALL.len()]);
}

/// Moves the selection by this many rows, or scrolls if no list is visible.
fn step(model: &mut Model, by: isize) {
    if model.tab == Tab::Log || (model.is_open && !model.shows_both()) { model.scroll(by) } else { model.select(by) }
}

/// Scrolls the details, or the list if only that is visible.
fn turn_page(model: &mut Model, by: isize) {
    if model.tab == Tab::Log || model.is_open || model.shows_both() { model.scroll(by) } else { model.select(by) }
}

/// The number of lines that a page key scrolls.
fn page_lines(model: &Model) -> isize {
    isize::try_from(model.body_rows().saturating_sub(1).max(1)).unwrap_or(1)
}

/// Shows these details of the selected task, or its card if they are shown already.
fn show_task(model: &mut Model, details: TaskDetails) {
    if !matches!(model.selected_item(), Some(Item::Task(..))) {
        return model.set_message("select a task first: 1 shows the board");
    }
    model.task_details = if model.task_details == details && model.is_open { TaskDetails::Card } else { details };
    model.is_open = true;
}

/// Approves the selected request; a permission with `for_run` until the team ends.
fn approve(model: &mut Model, for_run: bool) -> Effect {
    match model.selected_approval() {
        Some((kind, _)) if for_run && kind != RequestKind::Permission => {
            model.set_message(NO_PERMISSION);
            Effect::None
        }
        // An answer cannot be taken back.
        Some((kind, id)) if model.shows_selected() => {
            let options = for_run.then_some("--for-run");
            Effect::Run(argv([kind.noun(), "approve"].into_iter().chain(options).chain(["--", id])))
        }
        Some(_) => {
            model.is_open = true;
            model.set_message("read it, and press the key again");
            Effect::None
        }
        None => {
            model.set_message(NO_APPROVAL);
            Effect::None
        }
    }
}

fn reject(model: &mut Model) {
    let Some((kind, id)) = model.selected_approval() else { return model.set_message(NO_APPROVAL) };
    let purpose = InputPurpose::Rejection { kind, id: id.to_owned() };
    model.input = Some(Input { text: String::new(), purpose });
}

/// Adds pasted text to the input line. Without one, it is ignored: its characters are no keys.
pub fn paste(model: &mut Model, text: &str) {
    match &mut model.input {
        Some(input) => input.text.push_str(&text.split(['\r', '\n']).collect::<Vec<_>>().join(" ")),
        None => model.set_message("pasted text is ignored: press m to write a message"),
    }
    model.mark_changed();
}

/// Edits the input line. Returns its command after Enter, unless the line is empty.
fn edit(model: &mut Model, code: KeyCode) -> Effect {
    let Some(input) = &mut model.input else { return Effect::None };
    match code {
        KeyCode::Char(character) => input.text.push(character),
        KeyCode::Backspace => {
            input.text.pop();
        }
        KeyCode::Esc => model.input = None,
        KeyCode::Enter => {
            let Some(input) = model.input.take().filter(|input| !input.text.trim().is_empty()) else {
                return Effect::None;
            };
            return Effect::Run(input.command());
        }
        _ => {}
    }
    Effect::None
}
