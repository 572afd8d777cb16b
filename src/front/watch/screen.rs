//! Draws `brigade watch`.

use ansi_to_tui::IntoText as _;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use super::model::{Input, Model, Tab, TaskDetails};
use crate::domain::text::one_line;
use crate::front::text::lines::{cut, pad, width};

/// Draws the model.
pub fn draw(frame: &mut Frame<'_>, model: &Model, has_colors: bool) {
    let area = frame.area();
    let row = |y: u16| Rect { y: area.y + y.min(area.height.saturating_sub(1)), height: 1.min(area.height), ..area };
    frame.render_widget(text(&model.snapshot().title, has_colors), row(0));
    frame.render_widget(text(&model.snapshot().progress, has_colors), row(1));
    frame.render_widget(tabs(model), row(2));
    let body = Rect { y: area.y + 3, height: area.height.saturating_sub(4), ..area };
    if body.height > 0 {
        draw_body(frame, model, body, has_colors);
    }
    let foot = row(area.height.saturating_sub(1));
    let columns = usize::from(area.width);
    let Some(input) = &model.input else {
        return frame.render_widget(foot_line(model, columns), foot);
    };
    if !model.message().is_empty() {
        frame.render_widget(
            Line::from(pad(&cut(model.message(), columns), columns)),
            row(area.height.saturating_sub(2)),
        );
    }
    let (line, cursor) = input_line(input, columns);
    frame.render_widget(Line::from(line), foot);
    let cursor = u16::try_from(cursor).unwrap_or(u16::MAX).min(foot.width.saturating_sub(1));
    frame.set_cursor_position((foot.x + cursor, foot.y));
}

fn draw_body(frame: &mut Frame<'_>, model: &Model, body: Rect, has_colors: bool) {
    let list_width = u16::try_from(model.list_columns()).unwrap_or(u16::MAX).min(body.width);
    if model.shows_help || model.tab == Tab::Log || (model.is_open && !model.shows_both()) {
        return frame.render_widget(details(model, body, has_colors), body);
    }
    let width = if model.shows_both() { list_width } else { body.width };
    frame.render_widget(list(model, body, has_colors), Rect { width, ..body });
    if model.shows_both() {
        let right = Rect { x: body.x + list_width + 2, width: body.width.saturating_sub(list_width + 2), ..body };
        frame.render_widget(details(model, right, has_colors), right);
    }
}

/// A text with colours, or without them on a terminal that has none.
fn text(text: &str, has_colors: bool) -> Text<'static> {
    // A cell has no tabs.
    let text = &text.replace('\t', "    ");
    let plain = || Text::from(anstream::adapter::strip_str(text).to_string());
    if has_colors { text.into_text().unwrap_or_else(|_| plain()) } else { plain() }
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
fn list(model: &Model, body: Rect, has_colors: bool) -> Text<'static> {
    let Some(list) = model.list(model.tab) else { return Text::default() };
    if list.rows.is_empty() {
        return Text::from(empty_text(model.tab));
    }
    let rows = usize::from(body.height).saturating_sub(1).max(1);
    let selected = model.selected_row();
    let first = selected.saturating_sub(rows / 2).min(list.rows.len().saturating_sub(rows));
    let mut out = text(&list.header, has_colors);
    for (index, (_, row)) in list.rows.iter().enumerate().skip(first).take(rows) {
        for mut line in text(row, has_colors).lines {
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
fn details(model: &Model, area: Rect, has_colors: bool) -> Paragraph<'static> {
    let lines = model.details().lines().skip(model.scroll_position()).take(usize::from(area.height));
    Paragraph::new(text(&lines.collect::<Vec<_>>().join("\n"), has_colors))
}

/// The answer of the last command, or the keys.
fn foot_line(model: &Model, columns: usize) -> Line<'static> {
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

/// The prompt and the part of the typed text around the cursor that fits, and the column of the cursor.
fn input_line(input: &Input, columns: usize) -> (String, usize) {
    let prompt = one_line(&input.prompt()) + " ";
    let columns = columns.saturating_sub(width(&prompt) + 1);
    let mut start = 0;
    while width(&input.text[start..input.cursor]) > columns {
        start += input.text[start..].chars().next().map_or(1, char::len_utf8);
    }
    let cursor = width(&prompt) + width(&input.text[start..input.cursor]);
    (prompt + &input.text[start..], cursor)
}
