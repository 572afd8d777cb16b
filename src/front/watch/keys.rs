//! The keys of `brigade watch`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Input, InputPurpose, Model, Tab, TaskDetails};
use super::snapshot::Item;
use crate::api::Order;
use crate::api::request::Decision;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::state::Mode;

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
    /// This order must be carried out.
    Give(Order),
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
    if model.shows_help {
        model.shows_help = scroll(model, key.code);
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
        KeyCode::Enter => model.is_open = model.selected_item().is_some(),
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
            model.input = Some(Input::new(purpose));
        }
        KeyCode::Char('p') => {
            let is_paused = model.snapshot().desired == Some(Mode::Pause);
            let mode = if is_paused { model.mode_to_continue } else { Mode::Pause };
            return Effect::Give(Order::SetMode { mode, note: String::new() });
        }
        code => {
            scroll(model, code);
        }
    }
    Effect::None
}

/// Moves the selection or scrolls. Returns false if the key does neither.
fn scroll(model: &mut Model, code: KeyCode) -> bool {
    let page = isize::try_from(model.body_rows().saturating_sub(1).max(1)).unwrap_or(1);
    let (by, is_page) = match code {
        KeyCode::Up | KeyCode::Char('k') => (-1, false),
        KeyCode::Down | KeyCode::Char('j') => (1, false),
        KeyCode::PageUp | KeyCode::Char('b') => (-page, true),
        KeyCode::PageDown | KeyCode::Char(' ') => (page, true),
        KeyCode::Home | KeyCode::Char('g') => (isize::MIN, true),
        KeyCode::End | KeyCode::Char('G') => (isize::MAX, true),
        _ => return false,
    };
    let has_no_list = model.shows_help || model.tab == Tab::Log || (model.is_open && !model.shows_both());
    // A page key scrolls visible details, also beside a list.
    if has_no_list || (is_page && model.shows_both()) {
        model.scroll(by)
    } else {
        model.select(by)
    }
    true
}

fn open_tab(model: &mut Model, tab: Tab) {
    model.tab = tab;
    model.is_open = false;
}

fn cycle_tab(model: &mut Model, by: usize) {
    open_tab(model, Tab::ALL[(model.tab as usize + by) % Tab::ALL.len()]);
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
        Some((kind, ..)) if for_run && kind != RequestKind::Permission => {
            model.set_message(NO_PERMISSION);
            Effect::None
        }
        // An answer cannot be taken back.
        Some((kind, id, digest)) if model.shows_selected() && model.shows_end() => {
            let digest = digest.map(str::to_owned);
            let decision = Decision { approve: true, for_run, digest, ..Decision::default() };
            Effect::Give(Order::Answer { kind, id: Some(id.to_owned()), decision })
        }
        Some(_) if model.shows_selected() => {
            model.set_message("read it to its end (PgDn or End), and press the key again");
            Effect::None
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
    let Some((kind, id, _)) = model.selected_approval() else { return model.set_message(NO_APPROVAL) };
    let purpose = InputPurpose::Rejection { kind, id: id.to_owned() };
    model.input = Some(Input::new(purpose));
}

/// Adds pasted text to the input line. Without one, it is ignored: its characters are no keys.
pub fn paste(model: &mut Model, text: &str) {
    match &mut model.input {
        Some(input) => input.insert(&text.split(['\r', '\n']).collect::<Vec<_>>().join(" ")),
        None => model.set_message("pasted text is ignored: press m to write a message"),
    }
    model.mark_changed();
}

/// Edits the input line. Returns its order after Enter. An empty line is closed.
fn edit(model: &mut Model, code: KeyCode) -> Effect {
    let Some(input) = model.input.as_mut().filter(|input| !input.is_sent) else { return Effect::None };
    match code {
        KeyCode::Char(character) => input.insert(character.encode_utf8(&mut [0; 4])),
        KeyCode::Left => input.cursor = input.neighbour(false),
        KeyCode::Right => input.cursor = input.neighbour(true),
        KeyCode::Home => input.cursor = 0,
        KeyCode::End => input.cursor = input.text.len(),
        KeyCode::Backspace => {
            let start = input.neighbour(false);
            input.text.replace_range(start..input.cursor, "");
            input.cursor = start;
        }
        KeyCode::Delete => {
            let end = input.neighbour(true);
            input.text.replace_range(input.cursor..end, "");
        }
        KeyCode::Enter if !input.text.trim().is_empty() => {
            input.is_sent = true;
            return Effect::Give(input.order());
        }
        KeyCode::Esc | KeyCode::Enter => model.input = None,
        _ => {}
    }
    model.set_message("");
    Effect::None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;
    use crate::front::text::lines::width;
    use crate::front::watch::help::HELP;
    use crate::front::watch::snapshot::{List, Snapshot};

    fn press(model: &mut Model, code: KeyCode) -> Effect {
        handle(model, KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn refused_line_stays_and_can_be_corrected() {
        let mut model = Model::new((80, 24));
        press(&mut model, KeyCode::Char('m'));
        "né".chars().for_each(|c| drop(press(&mut model, KeyCode::Char(c))));
        for code in [KeyCode::Left, KeyCode::Char('o'), KeyCode::Home, KeyCode::Delete, KeyCode::Char('N')] {
            press(&mut model, code);
        }
        let sent = || Effect::Give(Order::Send { to: "lead".to_owned(), text: "Noé".to_owned() });
        assert_eq!(press(&mut model, KeyCode::Enter), sent());
        assert_eq!(press(&mut model, KeyCode::Char('x')), Effect::None, "the order is carried out");
        model.take_answer(&Err("error: the inbox is full\nhint: wait".to_owned()));
        assert_eq!(model.message(), "error: the inbox is full");
        assert_eq!(press(&mut model, KeyCode::Enter), sent());
        model.take_answer(&Ok("sent to lead\n".to_owned()));
        assert_eq!((model.message(), &model.input), ("sent to lead", &None));
    }

    #[test]
    fn long_lines_of_details_are_broken() {
        let mut model = Model::new((40, 8));
        let tasks = List { header: String::new(), rows: vec![(Item::Task(TaskId(1), None), "1 Paint".to_owned())] };
        model.set_snapshot(Snapshot { tasks, ..Snapshot::default() });
        press(&mut model, KeyCode::Enter);
        let question = model.next_question().unwrap();
        model.set_details(
            &question,
            Ok(format!("\x1b[1m#1 Paint\x1b[0m\n\n{}{}\n", "blue paint ".repeat(9), "漢".repeat(50))),
        );
        let lines: Vec<&str> = model.details().lines().collect();
        assert!(lines.iter().all(|line| width(line) <= 40), "{lines:?}");
        let text = lines.concat();
        assert_eq!((text.matches("paint").count(), text.matches('漢').count()), (9, 50), "{lines:?}");
    }

    #[test]
    fn enter_opens_nothing_in_an_empty_list() {
        let mut model = Model::new((80, 24));
        press(&mut model, KeyCode::Char('3'));
        press(&mut model, KeyCode::Enter);
        assert!(!model.is_open, "the list says that nothing waits");
    }

    #[test]
    fn help_scrolls_and_any_other_key_closes_it() {
        let mut model = Model::new((80, 8));
        press(&mut model, KeyCode::Char('?'));
        assert_eq!(model.next_question(), None);
        assert!(model.details().contains("quit; the team goes on"));
        press(&mut model, KeyCode::Down);
        assert!(model.shows_help && model.scroll_position() == 1);
        press(&mut model, KeyCode::End);
        assert_eq!(model.scroll_position(), HELP.len() - model.body_rows());
        press(&mut model, KeyCode::Char('q'));
        assert!(!model.shows_help);
    }
}
