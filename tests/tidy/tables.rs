//! Every extension is one file and one line of a table: every file that should be in a table is in it.

use super::source::{Source, sources};
use super::{assert_no_complaints, files_below, text_of};

/// The name after `marker`.
fn name_after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    let rest = &text[text.find(marker)? + marker.len()..];
    rest.split(|character: char| !character.is_alphanumeric() && character != '_').next()
}

fn stem(source: &Source) -> String {
    source.path.file_stem().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn every_tool_is_in_tools_table() {
    let table = text_of("src/tools/table.rs");
    let mut complaints = Vec::new();
    let mut tools = 0;
    for source in sources().iter().filter(|source| source.layer() == "tools") {
        for (at, marker) in source.code.match_indices("impl TypedTool for ") {
            tools += 1;
            let tool = name_after(&source.code[at..], marker).expect("a name");
            let entry = format!("{}::{tool}", stem(source));
            if !table.contains(&format!("entry::<{entry}>")) {
                complaints.push(format!("{}: add `entry::<{entry}>` to TOOLS in src/tools/table.rs", source.at(at)));
            }
        }
    }
    assert!(tools > 10, "too few tools");
    assert_no_complaints("tables: TOOLS has every tool", &complaints);
}

#[test]
fn every_provider_is_in_providers_table() {
    let table = text_of("src/providers/mod.rs");
    let mut complaints = Vec::new();
    let mut providers = 0;
    for source in sources().iter().filter(|source| source.layer() == "providers") {
        if source.module().len() == 2 && source.code.contains("impl ModelClient for ") {
            providers += 1;
            let module = source.module();
            // The client of all services is built from their rows.
            let builder = if module[1] == "exchange" { "service" } else { &module[1] };
            let entry = format!("connect: Some({builder}::connect)");
            if !table.contains(&entry) {
                complaints
                    .push(format!("{}: add `{entry}` to PROVIDERS in src/providers/mod.rs", source.path.display()));
            }
        }
    }
    assert!(providers > 0, "no providers");
    assert_no_complaints("tables: PROVIDERS has every provider", &complaints);
}

#[test]
fn every_command_is_in_command_enum() {
    let mut complaints = Vec::new();
    let mut commands = 0;
    for source in sources().iter().filter(|source| source.layer() == "front") {
        let parent = source.path.parent().expect("the file is in a folder").join("mod.rs");
        let own_enum = source.path.file_stem().is_some_and(|stem| stem == "mod");
        // A command's file has a `run` that answers; the type of that method is the parsed one.
        let is_command = source.code.contains("fn run(self, ") && source.code.contains("Args)]");
        if !is_command || own_enum {
            continue;
        }
        commands += 1;
        let text = text_of(&parent);
        if !text.contains(&format!("({}::", stem(source))) {
            complaints.push(format!("{}: add its type to `Command` in {}", source.path.display(), parent.display()));
        }
    }
    assert!(commands > 8, "too few commands: {commands}");
    assert_no_complaints("tables: every subcommand is in the command enum", &complaints);
}

#[test]
fn every_contract_sample_is_tested() {
    let tests: String = files_below("tests")
        .into_iter()
        .chain(files_below("src"))
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs") && !path.starts_with("tests/tidy"))
        .map(text_of)
        .map(|text| if text.contains("#[test]") || text.contains("#[tokio::test") { text } else { String::new() })
        .collect();
    let untested: Vec<String> = files_below("tests/contracts")
        .iter()
        .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
        .filter(|name| !tests.contains(name.as_str()))
        .map(|name| format!("tests/contracts/{name}: no test names it"))
        .collect();
    assert_no_complaints("contracts: each sample is read by a test", &untested);
}
