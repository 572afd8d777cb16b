//! The picture of a run in the README. It shows a real run, and the test compares it with a new run. This command updates it:
//!
//!     UPDATE_DOCS=1 cargo test --locked --test program session::picture

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::session::terminal::TestSession;

const PICTURE: &str = "docs/terminal.svg";
const ROWS: u16 = 22;
const COLUMNS: u16 = 96;

const CONFIG: &str = "[teams.shop]\nplan = \"plan.md\"\n\
    [[teams.shop.members]]\nname = \"alice\"\n[[teams.shop.members]]\nname = \"bob\"\n[[teams.shop.members]]\nname = \"carol\"\n";

/// The tasks: the subject, the step, and the line of the plan that names the tasks before it.
const TASKS: [(&str, &str, &str); 7] = [
    ("Read the configuration", "config", ""),
    ("Parse the command line", "arguments", ""),
    ("Store the orders", "store", ""),
    ("Print the invoice", "invoice", ""),
    ("Import last year's orders", "import", ""),
    ("Describe the commands", "help", "after: Parse the command line\n"),
    ("Test everything", "all", "after: Print the invoice, Import last year's orders\n"),
];

/// The program of each step. It waits until the test creates the file of the step.
const CHECK: &str = "#!/bin/sh\nwhile ! test -e \".done/$1\"; do sleep 0.02; done\n";

/// Runs a team of three until two of seven tasks are done.
fn run() -> TestSession {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("brigade.toml"), CONFIG).unwrap();
    let task =
        |(subject, step, after): &(&str, &str, &str)| format!("## {subject}\n{after}```sh\n./check {step}\n```\n");
    fs::write(folder.path().join("plan.md"), TASKS.iter().map(task).collect::<String>()).unwrap();
    fs::write(folder.path().join("check"), CHECK).unwrap();
    fs::set_permissions(folder.path().join("check"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(folder.path().join(".done")).unwrap();
    let session = TestSession::with(folder, &["run"], ROWS, COLUMNS, "xterm-256color");
    session.wait_until("three tasks are worked on", |shown| shown.contains("0/7 done, 3 running"));
    for (done, step) in ["config", "arguments"].iter().enumerate() {
        fs::write(session.path().join(".done").join(step), "").unwrap();
        let counts = format!("{}/7 done, 3 running", done + 1);
        session.wait_until("the next task is worked on", |shown| {
            shown.contains(&counts) && shown.matches("bash ./check").count() == done + 4
        });
    }
    session
}

/// The colour of a cell in the picture.
fn fill_of(color: vt100::Color, default: &'static str) -> &'static str {
    match color {
        vt100::Color::Idx(1 | 9) => "#f7768e",
        vt100::Color::Idx(2 | 10) => "#9ece6a",
        vt100::Color::Idx(3 | 11) => "#e0af68",
        vt100::Color::Idx(4 | 12) => "#7aa2f7",
        vt100::Color::Idx(5 | 13) => "#bb9af7",
        vt100::Color::Idx(6 | 14) => "#7dcfff",
        _ => default,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The screen as a picture, below the command that was typed.
fn svg(screen: &vt100::Screen) -> String {
    let (cell_width, row_height, margin) = (8.4, 19.0, 16.0);
    let used = (0..ROWS).rev().find(|row| !row_text(screen, *row).is_empty()).map_or(0, |row| row + 1);
    let width = f64::from(COLUMNS) * cell_width + 2.0 * margin;
    let height = f64::from(used + 1) * row_height + 2.0 * margin;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
         aria-label=\"A team of three at work\">\n\
         <style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#c0caf5}}.b{{font-weight:bold}}.d{{opacity:.6}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1a1b26\"/>\n\
         <text x=\"{margin}\" y=\"{:.1}\">$ brigade run</text>\n",
        margin + 14.0
    );
    for row in 0..used {
        let y = margin + 14.0 + f64::from(row + 1) * row_height;
        let _ = write!(out, "<text y=\"{y:.1}\">");
        let mut column = 0;
        while column < COLUMNS {
            let style_of = |column: u16| {
                let cell = screen.cell(row, column).unwrap();
                (cell.fgcolor(), cell.bold(), cell.dim())
            };
            let (style, start) = (style_of(column), column);
            let mut text = String::new();
            while column < COLUMNS && style_of(column) == style {
                let contents = screen.cell(row, column).unwrap().contents();
                text.push_str(if contents.is_empty() { " " } else { contents });
                column += 1;
            }
            if !text.trim().is_empty() {
                let class = match style {
                    (_, true, _) => " class=\"b\"",
                    (_, _, true) => " class=\"d\"",
                    _ => "",
                };
                let x = margin + f64::from(start) * cell_width;
                let fill = fill_of(style.0, "#c0caf5");
                let text = escaped(text.trim_end());
                let _ = write!(out, "<tspan x=\"{x:.1}\" fill=\"{fill}\"{class}>{text}</tspan>");
            }
        }
        out.push_str("</text>\n");
    }
    out + "</svg>\n"
}

/// The text of a row without spaces at its end.
fn row_text(screen: &vt100::Screen, row: u16) -> String {
    screen.rows(0, COLUMNS).nth(usize::from(row)).unwrap_or_default().trim_end().to_owned()
}

/// The sorted lines of a picture without times, numbers and names, which differ between runs. Added tasks are left out: one line or
/// several show them, as their events arrive.
fn comparable_lines(svg: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in svg.lines().filter(|line| line.starts_with("<text")) {
        let mut text = String::new();
        let mut is_tag = false;
        for c in line.chars() {
            match c {
                '<' => (is_tag, text) = (true, text + " "),
                '>' => is_tag = false,
                _ if is_tag => {}
                c if c.is_ascii_digit() => text.push('0'),
                c => text.push(c),
            }
        }
        let words = text.split_whitespace().map(|word| {
            let is_number = word.trim_matches(['0', ':', '#']).is_empty();
            if is_number {
                "0"
            } else if ["alice", "bob", "carol"].contains(&word) {
                "NAME"
            } else {
                word
            }
        });
        let mut words: Vec<&str> = words.collect();
        words.dedup();
        lines.push(words.join(" ").replace("0 min 0 s", "0 s").replace("0 ms", "0 s"));
    }
    lines.retain(|line| !line.contains("lead adds"));
    lines.sort();
    lines
}

#[test]
fn readme_picture_shows_current_output() {
    let session = run();
    let picture = svg(session.screen().screen());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &picture).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    let command = "UPDATE_DOCS=1 cargo test --locked --test program session::picture";
    let (old, new) = (comparable_lines(&stored), comparable_lines(&picture));
    assert_eq!(old, new, "{PICTURE} does not show the current output; update it: {command}");
}
