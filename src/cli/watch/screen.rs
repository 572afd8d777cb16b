//! Draws `brigade watch`.

use ansi_to_tui::IntoText as _;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use super::keys::HELP;
use super::model::{Model, Tab, TaskDetails};
use crate::ui::text::{cut, one_line, pad, width, wrap};

/// Draws the model.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    let row = |y: u16| Rect { y: area.y + y.min(area.height.saturating_sub(1)), height: 1.min(area.height), ..area };
    frame.render_widget(text(model, &model.snapshot().title), row(0));
    frame.render_widget(text(model, &model.snapshot().progress), row(1));
    frame.render_widget(tabs(model), row(2));
    let body = Rect { y: area.y + 3, height: area.height.saturating_sub(4), ..area };
    if body.height > 0 {
        draw_body(frame, model, body);
    }
    let foot = row(area.height.saturating_sub(1));
    frame.render_widget(foot_line(model, usize::from(area.width)), foot);
    if let Some(input) = &model.input {
        let x = width(&shown_input(&input.prompt(), &input.text, usize::from(area.width)));
        frame.set_cursor_position((
            foot.x + u16::try_from(x).unwrap_or(u16::MAX).min(foot.width.saturating_sub(1)),
            foot.y,
        ));
    }
}

fn draw_body(frame: &mut Frame<'_>, model: &Model, body: Rect) {
    if model.shows_help {
        return frame.render_widget(help(model.columns()), body);
    }
    let list_width = u16::try_from(model.list_columns()).unwrap_or(u16::MAX).min(body.width);
    match (model.shows_both(), model.is_open || model.tab == Tab::Log) {
        (true, _) => {
            frame.render_widget(list(model, body), Rect { width: list_width, ..body });
            let right = Rect { x: body.x + list_width + 2, width: body.width.saturating_sub(list_width + 2), ..body };
            frame.render_widget(details(model, right), right);
        }
        (false, true) => frame.render_widget(details(model, body), body),
        (false, false) => frame.render_widget(list(model, body), body),
    }
}

/// A text with colours, or without them on a terminal that has none.
fn text(model: &Model, text: &str) -> Text<'static> {
    // A cell has no tabs.
    let text = &text.replace('\t', "    ");
    let plain = || Text::from(anstream::adapter::strip_str(text).to_string());
    if model.has_colours() { text.into_text().unwrap_or_else(|_| plain()) } else { plain() }
}

fn tabs(model: &Model) -> Line<'static> {
    let waiting = model.snapshot().answers_needed;
    let for_you = if waiting > 0 { format!(" 3 For you ({waiting}) ") } else { " 3 For you ".to_owned() };
    let names = [" 1 Tasks ".to_owned(), " 2 Team ".to_owned(), for_you, " 4 Log ".to_owned()];
    let is_narrow = names.iter().map(|name| width(name)).sum::<usize>() > model.columns();
    let spans = Tab::ALL.iter().zip(names).enumerate().map(|(index, (tab, name))| {
        let is_selected = *tab == model.tab;
        let name = match tab {
            Tab::ForYou if is_narrow && waiting > 0 => format!(" 3 ({waiting}) "),
            _ if is_narrow && !is_selected => format!(" {} ", index + 1),
            _ => name,
        };
        let style = if is_selected { Modifier::REVERSED } else { Modifier::empty() };
        Span::styled(name, Style::new().add_modifier(style))
    });
    Line::from(spans.collect::<Vec<_>>())
}

/// The rows of the list around the selected one, below their titles.
fn list(model: &Model, body: Rect) -> Text<'static> {
    let Some(list) = model.list(model.tab) else { return Text::default() };
    if list.rows.is_empty() {
        return Text::from(empty_text(model.tab));
    }
    let rows = usize::from(body.height).saturating_sub(1).max(1);
    let selected = model.selected_row();
    let first = selected.saturating_sub(rows / 2).min(list.rows.len().saturating_sub(rows));
    let mut out = text(model, &list.titles);
    for (index, (_, row)) in list.rows.iter().enumerate().skip(first).take(rows) {
        for mut line in text(model, row).lines {
            if index == selected {
                line = line.style(Style::new().add_modifier(Modifier::REVERSED));
            }
            out.lines.push(line);
        }
    }
    out
}

fn empty_text(tab: Tab) -> &'static str {
    match tab {
        Tab::Tasks => "no tasks",
        Tab::Team => "no members",
        Tab::ForYou => "nothing waits for you",
        Tab::Log => "",
    }
}

/// The lines of the details from the scroll position on.
fn details(model: &Model, area: Rect) -> Paragraph<'static> {
    let lines = model.details().lines().skip(model.scroll_position()).take(usize::from(area.height));
    Paragraph::new(text(model, &lines.collect::<Vec<_>>().join("\n")))
}

fn help(columns: usize) -> Text<'static> {
    let keys_width = HELP.iter().map(|(keys, _)| width(keys)).max().unwrap_or(0);
    let aligned = HELP.map(|(keys, effect)| format!("{}  {effect}", pad(keys, keys_width)));
    if aligned.iter().all(|line| width(line) <= columns) {
        return Text::from(aligned.join("\n"));
    }
    Text::from(HELP.map(|(keys, effect)| wrap(&format!("{keys}: {effect}"), columns, 2)).join("\n"))
}

/// The line that the person types, the answer of the last command, or the keys.
fn foot_line(model: &Model, columns: usize) -> Line<'static> {
    if let Some(input) = &model.input {
        return Line::from(shown_input(&input.prompt(), &input.text, columns));
    }
    if !model.message().is_empty() {
        return Line::from(cut(model.message(), columns));
    }
    let keys = match (model.tab, model.task_details) {
        (Tab::Tasks, TaskDetails::Card) => "? keys  Enter details  d diff  w why  m message  p pause  q quit",
        (Tab::Tasks, _) => "? keys  Esc card  PgUp PgDn scroll  m message  q quit",
        (Tab::Team, _) => "? keys  Enter transcript  m message  p pause  q quit",
        (Tab::ForYou, _) => "? keys  Enter read  a approve  A for the run  r reject  m message  q quit",
        (Tab::Log, _) => "? keys  PgUp PgDn scroll  p pause  q quit",
    };
    Line::styled(cut(keys, columns), Style::new().add_modifier(Modifier::DIM))
}

/// The prompt and the end of the typed text that fits before the cursor.
fn shown_input(prompt: &str, text: &str, columns: usize) -> String {
    let prompt = one_line(prompt) + " ";
    let columns = columns.saturating_sub(width(&prompt) + 1);
    let mut start = 0;
    while width(&text[start..]) > columns {
        start += text[start..].chars().next().map_or(1, char::len_utf8);
    }
    prompt + &text[start..]
}
