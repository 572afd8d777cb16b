//! The demo on repositories that are not as one would wish.

use std::fs;

use super::support::{Answer, Place};

/// Runs the demo of this project on the workspace.
fn demo(place: &Place, folder: &str) -> Answer {
    let mut command = place.command(env!("CARGO_BIN_EXE_brigade"));
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/brigade.toml");
    command.args(["run", "demo", "--config", config, "--workspace"]).arg(place.join(folder));
    Answer::of(command)
}

fn git(place: &Place, line: &str) {
    let mut shell = place.command("sh");
    let identity = "git -c user.name=Ann -c user.email=ann@example.org";
    shell.args(["-c", &line.replace("git ", &format!("{identity} "))]);
    let answer = Answer::of(shell);
    assert_eq!(answer.code, Some(0), "{line}: {answer:?}");
}

fn assert_reported(place: &Place, folder: &str) -> String {
    let answer = demo(place, folder);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let report = place.read(&format!("{folder}/REPORT.md"));
    assert!(report.starts_with("# Audit of ") && report.contains("## Repository hygiene"), "{report}");
    report
}

#[test]
fn a_repository_without_commits_is_audited() {
    let place = Place::new();
    git(&place, "git init -q . && echo 'fn main() {}' > main.rs");
    assert!(assert_reported(&place, ".").contains("no commits yet"));
}

#[test]
fn names_with_spaces_quotes_and_worse_are_audited() {
    let place = Place::new();
    fs::create_dir(place.join("a b")).unwrap();
    for name in [
        "a b/with space.py",
        "it's.rs",
        "\"quoted\".c",
        "-n.sh",
        "größe.go",
        "two\nlines.txt",
        "tab\there.md",
        "$(evil).js",
    ] {
        fs::write(place.join(name), "x = 1  # TODO: tidy\n").unwrap();
    }
    git(&place, "git init -q . && git add -A && git commit -qm 'All names'");
    let report = assert_reported(&place, ".");
    assert!(report.contains("with space.py"), "{report}");
    assert!(!place.join("evil").exists());
}

#[test]
fn without_a_repository_it_says_so_and_what_to_do() {
    let place = Place::new();
    let answer = demo(&place, ".");
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let said = answer.out + &answer.err;
    assert!(said.contains("git init") && said.contains("--workspace"), "{said}");
    assert!(!place.join("REPORT.md").exists());
}

#[test]
fn a_subfolder_is_audited_as_itself() {
    let place = Place::new();
    fs::create_dir(place.join("part")).unwrap();
    place.write("part/lib.rs", "pub fn f() {}\n");
    place.write("other.py", "print(1)\n");
    git(&place, "git init -q . && git add -A && git commit -qm 'Two parts'");
    let report = assert_reported(&place, "part");
    assert!(report.contains("subfolder") && !report.contains("other.py"), "{report}");
}
