//! The list of the keys of `brigade watch`.

use crate::front::text::lines::{pad, width, wrap};

/// The keys and their effects.
pub(super) const HELP: [(&str, &str); 13] = [
    ("1 2 3 4, Tab", "tasks, team, what waits for you, log"),
    ("Up Down, j k", "select"),
    ("PgUp PgDn", "scroll the details or the list; Home and End too"),
    ("Enter, Esc", "open and close the details"),
    ("d", "the diff of the selected task"),
    ("w", "why the selected task is in its state"),
    ("a", "approve the selected plan, review or permission, at its end"),
    ("A", "grant the selected permission for the whole run"),
    ("r", "reject it, with your reason"),
    ("m", "message to the selected member, sender or owner"),
    ("p", "pause the team, or let it continue"),
    ("Ctrl-L, Ctrl-Z", "draw again, suspend"),
    ("q, Ctrl-C", "quit; the team goes on"),
];

/// The list of keys, in lines of at most `columns`.
pub fn help(columns: usize) -> String {
    let keys_width = HELP.iter().map(|(keys, _)| width(keys)).max().unwrap_or(0);
    let aligned = HELP.map(|(keys, effect)| format!("{}  {effect}", pad(keys, keys_width)));
    if aligned.iter().all(|line| width(line) <= columns) {
        return aligned.join("\n");
    }
    HELP.map(|(keys, effect)| wrap(&format!("{keys}: {effect}"), columns, 2)).join("\n")
}
