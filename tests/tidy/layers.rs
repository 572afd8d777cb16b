//! The permitted dependencies: between our layers, on other crates, and of the domain.

use std::path::Path;

use super::paths::paths_of;
use super::source::{Source, sources};
use super::{assert_no_complaints, text_of};

/// Permitted dependencies between layers, with their reasons. An unused line must be removed.
#[rustfmt::skip]
const LAYERS: &[(&str, &str, &str)] = &[
    ("main",   "front",      "hands over what was typed, and launches what it asks for"),
    ("main",   "embed",    "launches teams"),
    ("main",   "api",      "what waits for the person, and why a team is paused"),
    ("main",   "team",     "how a team begins and ends"),
    ("main",   "ports",    "the board that is shown in the end"),
    ("main",   "service",  "what waits for the person at the end"),
    ("main",   "domain",   "the vocabulary"),
    ("main",   "sandbox",  "becomes the guard before anything else"),
    ("main",   "platform", "a runtime whose threads may be refused"),
    ("embed",  "config",   "a team from a config file"),
    ("embed",  "team",     "puts the adapters together around a team"),
    ("embed",  "tools",    "hands the TOOLS table to the team"),
    ("embed",  "agents",   "checks the installed programs of external agents"),
    ("embed",  "providers",   "hands the PROVIDERS table to the team"),
    ("embed",  "stores",   "opens the workspace for the team"),
    ("embed",  "ports",    "the clock"),
    ("embed",  "domain",   "plans"),
    ("embed",  "sandbox",  "opens the sandbox of commands"),
    ("embed",  "platform", "opens plans; a runtime whose threads may be refused"),
    ("api",    "embed",    "opens stores and sandboxes as a team does"),
    ("api",    "config",   "the config of the workspace, and its problems"),
    ("api",    "team",     "why a team cannot be launched, or takes no work"),
    ("api",    "service",  "completes tasks, answers requests and sends messages, as agents do"),
    ("api",    "stores",   "opens the workspace, for every front end"),
    ("api",    "git",      "takes the team branch over"),
    ("api",    "process",  "runs the verify command of a completion"),
    ("api",    "ports",    "the stores that it opens, and their errors"),
    ("api",    "domain",   "the vocabulary"),
    ("api",    "providers", "connects the models of spawned members, to check them"),
    ("api",    "platform", "says if the process of a lead runs"),
    ("api",    "sandbox",  "the sandbox of commands in the workspace"),
    ("front",    "api",      "asks and orders everything in a workspace"),
    ("front",    "agents",   "the AGENTS table: doctor checks the programs, init names them"),
    ("front",    "embed",    "control files, plans and the clock are the same for commands"),
    ("front",    "config",   "reads what is to be launched"),
    ("front",    "team",     "launches teams and listens to them"),
    ("front",    "run",      "shows the models' output while it is streamed"),
    ("front",    "tools",    "`brigade mcp` reads arguments as the tools of members do"),
    ("front",    "service",  "completes tasks and answers approvals, as agents do"),
    ("front",    "providers",   "doctor says what keeps a member's model from being asked"),
    ("front",    "stores",   "opens the workspace, for commands with and without a running team"),
    ("front",    "ports",    "commands work on the board through the ports"),
    ("front",    "domain",   "the vocabulary"),
    ("front",    "platform", "processes, for doctor, stop and who holds the workspace"),
    ("front",    "sandbox",  "doctor reports the confinement"),
    ("config", "providers",   "checks that a provider exists, by the PROVIDERS table"),
    ("config", "tools",    "checks that the tool of a rule exists, by the TOOLS table"),
    ("config", "ports",    "what accepted work survives is a word of the ports"),
    ("config", "domain",   "names are checked in one place"),
    ("config", "sandbox",  "the name of its variable; the names of secrets"),
    ("config", "platform", "opens files that others may have put there; who owns them"),
    ("team",   "agents",   "starts an agent for each member, and runs its turns"),
    ("team",   "run",      "reads what agents do; starts the recorder"),
    ("team",   "tools",    "creates the tools of members; the lead's tools reach the team"),
    ("team",   "ports",    "stores and models are handed in"),
    ("team",   "domain",   "acts on what it decides"),
    ("team",   "platform", "free disk space"),
    ("team",   "service",  "approvals, merges, the goal's command"),
    ("agents", "platform", "reads the files of external agents within limits"),
    ("agents", "run",      "records events, output, progress and usage"),
    ("agents", "tools",    "runs what models ask for"),
    ("agents", "service",  "worktrees, merges, the commands of a runbook"),
    ("agents", "ports",    "stores and models are handed in"),
    ("agents", "domain",   "contexts, prompts, transcripts"),
    ("agents", "sandbox",  "hands it to tools; asks the program of an external agent for its version, without keys"),
    ("run",    "ports",    "event log and ledger"),
    ("run",    "domain",   "events, rows, budgets"),
    ("tools",  "service",  "completes tasks, runs commands, sends requests"),
    ("tools",  "ports",    "board and mail"),
    ("tools",  "domain",   "the vocabulary"),
    ("team",   "sandbox",  "hands it to tools; says how commands are confined"),
    ("tools",  "sandbox",  "runs commands"),
    ("tools",  "platform", "opens files below the workspace"),
    ("service", "ports",   "board, requests and repository"),
    ("service", "domain",  "the vocabulary"),
    ("service", "process", "runs commands"),
    ("service", "sandbox", "rules and exits of commands"),
    ("process", "ports",    "records what runs"),
    ("process", "domain",   "the vocabulary"),
    ("process", "sandbox",  "runs commands"),
    ("process", "secrets",  "masks the output of programs; the credentials of boards"),
    ("process", "platform", "process groups of commands"),
    ("git",    "stores",   "the file system, its locks and atomic writes"),
    ("git",    "ports",    "implements the repository"),
    ("git",    "domain",   "every change goes through its rules"),
    ("git",    "platform", "stamps, lives of processes"),
    ("git",    "sandbox",  "git's environment, and where its filters and merge drivers run"),
    ("embed",  "git",      "opens the repository of the team"),
    ("front",    "git",      "merges, and shows the state of the repository"),
    ("agents", "process",  "the programs of external agents"),
    ("team",   "process",  "the goal's command; opens the socket of the board"),
    ("tools",  "process",  "runs commands"),
    ("providers", "ports",    "implements ModelClient"),
    ("providers", "agents",   "the rows of external agents"),
    ("providers", "domain",   "transcript blocks"),
    ("providers", "platform", "reads a script as every file that a config names"),
    ("providers", "sandbox",  "runs the commands that print keys"),
    ("stores", "ports",    "implements them"),
    ("stores", "domain",   "every change goes through its rules"),
    ("stores", "platform", "exchange, stamps, file events, lives of processes"),
    ("stores", "sandbox",  "git's environment, and where its filters and merge drivers run"),
    ("sandbox", "platform", "processes"),
    ("sandbox", "domain",   "rules for paths"),
    ("ports",  "domain",   "the vocabulary"),
    ("config",    "secrets", "headers of requests that are keys"),
    ("front",       "secrets", "masks traces; the credential of an agent that runs a command"),
    ("team",      "secrets", "the address of notifications"),
    ("run",       "secrets", "masks the stream of answers"),
    ("tools",     "secrets", "masks the output of tools"),
    ("providers", "secrets", "masks answers and errors; the keys"),
    ("sandbox",   "secrets", "the variables that a program of an agent needs"),
    ("stores",    "secrets", "masks files"),
];

/// Crates that only some layers may use, with reasons.
#[rustfmt::skip]
const CRATES: &[(&str, &[&str], &str)] = &[
    ("anyhow",        &["main", "front"],          "elsewhere an error is a type that can be told apart"),
    ("clap",          &["front"],                  "only the command line parses arguments"),
    ("clap_complete", &["front"],                  "as clap"),
    ("cap_std",       &["tools", "platform", "git"], "what is below a folder is reached by its handle: file tools, files that a config names, refs of a place"),
    ("cap_tempfile",  &["tools"],                "as cap_std"),
    ("schemars",      &["tools", "front", "api", "service", "ports", "domain"], "the arguments of tools, as models read them; the schema of orders, outcomes and views"),
    ("rmcp",          &["front"],                  "the Model Context Protocol over stdio"),
    ("dashmap",       &["run"],                  "a registry that many tasks read and write"),
    ("tiktoken_rs",   &["agents"],               "counts the tokens of requests"),
    ("ignore",        &["tools"],                "walks the workspace for glob and grep"),
    ("globset",       &["domain"],               "patterns of files have one reading"),
    ("fd_lock",       &["stores"],               "locks live in stores and nowhere else"),
    ("reqwest",       &["providers"],               "only providers speak HTTP"),
    ("rustls",        &["providers"],               "as reqwest: which cryptography it uses"),
    ("ring",          &["domain", "git"],     "the digests of what a person approves; those of Git LFS"),
    ("rustix",        &["platform", "sandbox"],  "system calls are in two places"),
    ("nix",           &["platform", "sandbox"],             "as rustix: masks of signals, which that has none of"),
    ("indexmap",      &["domain", "stores"],     "JSON objects that keep the order of their fields"),
    ("toml",          &["config"],               "only the config is TOML"),
    ("anstream",      &["front", "domain"],         "the terminal; stripping escapes from what commands print"),
    ("anstyle",       &["front"],            "the terminal"),
    ("terminal_size", &["front"],            "the terminal"),
    ("rustyline",     &["front"],                  "the line editor of an interactive session"),
    ("shlex",         &["front", "agents", "domain"], "slash commands, the values of hints, arguments of programs and commands in rules are quoted as in a shell"),
    ("unicode_width", &["front"],                   "the terminal"),
];

/// Files that use a crate outside its layers, with reasons.
#[rustfmt::skip]
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("rustix", "src/stores/file/watch.rs", "waits for file events and its own end at once, by poll(2)"),
    ("rustix", "src/tools/write_file.rs",  "a replaced file keeps its owner; cap-std cannot say so"),
];

/// Files outside of `stores` and `git` that know one kind of store, with reasons. All others open stores through `embed::STORE` and use ports.
#[rustfmt::skip]
const KNOW_A_STORE: &[(&str, &str)] = &[
    ("src/embed.rs",         "refuses a config that is a symbolic link; the states of worktrees are files"),
    ("src/embed/confinement.rs", "connects the repository to files"),
    ("src/api/clean.rs",     "removes files"),
    ("src/api/consent/work.rs", "lists the members that the roster adds"),
    ("src/front/cli/doctor.rs",    "inspects the files of this machine"),
    ("src/api/refusal.rs",   "hints for locked files and symbolic links"),
    ("src/api/stop.rs",      "a stop needs no lock, but must not follow a symbolic link"),
];

/// The kinds of stores, and the file system below them.
const STORE_KINDS: &[&str] = &["file", "fs", "memory"];

/// Names that the domain must not use: it gets everything passed in, so that it can be tested and simulated.
const NOT_IN_DOMAIN: &[&str] = &[
    "tokio",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::net",
    "std::os",
    "std::time::SystemTime",
    "std::time::Instant",
];

/// This layer declares all others and uses none.
const DECLARES_ALL: &str = "lib";

fn is_allowed(from: &str, to: &str) -> bool {
    from == to || LAYERS.iter().any(|(layer, known, _)| *layer == from && *known == to)
}

/// All uses between layers: position, from, to.
fn layer_uses(sources: &[Source]) -> Vec<(String, String, String)> {
    let layers: Vec<String> = sources.iter().map(Source::layer).collect();
    let mut layer_uses = Vec::new();
    for source in sources {
        for path in paths_of(source) {
            let is_ours = matches!(path.parts[0].as_str(), "crate" | "brigade");
            if let Some(to) = path.parts.get(1).filter(|to| is_ours && layers.contains(to)) {
                layer_uses.push((source.at(path.at), source.layer(), to.clone()));
            } else if is_ours && path.parts.get(1).is_some_and(|part| part == "*") {
                layer_uses.push((source.at(path.at), source.layer(), "everything (*)".to_owned()));
            }
        }
    }
    layer_uses.retain(|(_, from, to)| from != to);
    layer_uses
}

#[test]
fn layers_use_only_allowed_layers() {
    let sources = sources();
    let layer_uses = layer_uses(sources);
    assert!(layer_uses.len() > 100, "too few paths between layers: {}", layer_uses.len());
    let mut complaints: Vec<String> = layer_uses
        .iter()
        .filter(|(_, from, to)| !is_allowed(from, to))
        .map(|(at, from, to)| format!("{at}: {from} uses {to}; pass it in, or add a line with a reason to LAYERS"))
        .collect();
    for (from, to, reason) in LAYERS {
        if !layer_uses.iter().any(|step| step.1 == *from && step.2 == *to) {
            complaints.push(format!("LAYERS: {from} does not use {to} ({reason}); remove the line"));
        }
    }
    assert_no_complaints(
        "layers: main -> cli, ui -> api -> embed, config -> team -> agents -> run, tools -> service -> ports -> domain; stores, providers -> ports",
        &complaints,
    );
}

#[test]
fn every_file_belongs_to_a_layer() {
    let known =
        |layer: &str| layer == DECLARES_ALL || LAYERS.iter().any(|(from, to, _)| layer == *from || layer == *to);
    let strangers: Vec<String> = sources()
        .iter()
        .filter(|source| !known(&source.layer()))
        .map(|source| format!("{}: add lines for {} to LAYERS", source.path.display(), source.layer()))
        .collect();
    assert_no_complaints("layers: each file belongs to a layer of LAYERS (tests/tidy/layers.rs)", &strangers);
}

#[test]
fn crates_are_used_only_in_allowed_layers() {
    let sources = sources();
    let strangers: Vec<(&str, &Source, String)> =
        sources.iter().flat_map(|source| foreign_crates_in(source, sources)).collect();
    let is_excepted = |name: &str, source: &Source| {
        EXCEPTIONS.iter().any(|(krate, file, _)| *krate == name && source.path == Path::new(file))
    };
    let mut complaints: Vec<String> = strangers
        .iter()
        .filter(|(name, source, _)| !is_excepted(name, source))
        .map(|(_, _, complaint)| complaint.clone())
        .collect();
    for (krate, file, reason) in EXCEPTIONS {
        if !strangers.iter().any(|(name, source, _)| name == krate && source.path == Path::new(file)) {
            complaints.push(format!("EXCEPTIONS: {file} does not use {krate} ({reason}); remove the line"));
        }
    }
    assert_no_complaints("crates: CRATES (tests/tidy/layers.rs) lists the layers that may use them", &complaints);
}

/// The crates that `source` uses although its layer may not.
fn foreign_crates_in<'a>(source: &'a Source, all: &[Source]) -> Vec<(&'static str, &'a Source, String)> {
    let layer = source.layer();
    // One of our modules may have the name of a crate, such as `glob` in the tools.
    let has_module = |name: &str| all.iter().any(|other| other.module() == [layer.as_str(), name]);
    let mut strangers = Vec::new();
    for path in paths_of(source) {
        let found = CRATES.iter().find(|(name, layers, _)| *name == path.parts[0] && !layers.contains(&layer.as_str()));
        if let Some((name, layers, reason)) = found.filter(|(name, ..)| !has_module(name)) {
            let complaint = format!("{}: only {} may use {name}: {reason}", source.at(path.at), layers.join(", "));
            strangers.push((*name, source, complaint));
        }
    }
    strangers
}

#[test]
fn stores_are_opened_through_their_table() {
    let knows_a_store = |source: &&Source| {
        let paths = paths_of(source);
        let mut stores = paths.iter().filter(|path| path.parts.len() > 2 && path.parts[..2] == ["crate", "stores"]);
        stores.any(|path| STORE_KINDS.contains(&path.parts[2].as_str()))
    };
    let users: Vec<&Source> = sources()
        .iter()
        .filter(|source| !["stores", "git"].contains(&source.layer().as_str()))
        .filter(knows_a_store)
        .collect();
    let is_user = |file: &str| users.iter().any(|source| source.path == Path::new(file));
    let is_known = |source: &&&Source| KNOW_A_STORE.iter().any(|(file, _)| source.path == Path::new(file));
    let strangers = users.iter().filter(|source| !is_known(source));
    let mut complaints: Vec<String> =
        strangers.map(|source| format!("{}: use `embed::STORE` and the ports", source.path.display())).collect();
    let unused = KNOW_A_STORE.iter().filter(|(file, _)| !is_user(file));
    complaints.extend(
        unused.map(|(file, reason)| format!("KNOW_A_STORE: {file} uses no kind of store ({reason}); remove the line")),
    );
    assert_no_complaints(
        "stores: only the files of KNOW_A_STORE (tests/tidy/layers.rs) use a kind of store",
        &complaints,
    );
}

#[test]
fn front_ends_open_no_store() {
    let opens = |source: &&Source| {
        let is_front_end = ["main", "front"].contains(&source.layer().as_str());
        is_front_end && paths_of(source).iter().any(|path| path.parts.iter().any(|part| part == "OpenMode"))
    };
    let openers = sources().iter().filter(opens);
    let complaints: Vec<String> = openers
        .map(|source| format!("{}: ask a function of `api`, which opens the stores", source.path.display()))
        .collect();
    assert_no_complaints("stores: no file above `api` opens them", &complaints);
}

#[test]
fn messages_are_sent_through_the_outbox() {
    let is_sender = |source: &&Source| {
        let code: String = source.code.split_whitespace().collect();
        source.layer() != "stores" && code.contains("mailbox.send(")
    };
    let senders: Vec<&Path> = sources().iter().filter(is_sender).map(|source| source.path.as_path()).collect();
    assert_eq!(senders, [Path::new("src/service/messages.rs")], "use Outbox, which records the event of each message");
}

#[test]
fn domain_uses_no_io_clock_or_runtime() {
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| source.layer() == "domain") {
        for path in paths_of(source) {
            let name = path.parts.join("::");
            let is = |banned: &&&str| name == **banned || name.starts_with(&format!("{banned}::"));
            if let Some(banned) = NOT_IN_DOMAIN.iter().find(is) {
                complaints.push(format!("{}: uses {banned}; pass it in", source.at(path.at)));
            }
        }
    }
    assert_no_complaints("domain: no runtime, files, environment, processes, clock, network", &complaints);
}

#[test]
fn every_cargo_dependency_is_used() {
    let manifest = text_of("Cargo.toml");
    let mut is_dependencies = false;
    let mut declared = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependencies = line.ends_with("dependencies]") && !line.contains("dev-");
        } else if let Some((name, _)) = line.split_once('=').filter(|_| is_dependencies) {
            declared.push(name.trim().replace('-', "_"));
        }
    }
    assert!(declared.len() > 10, "too few dependencies");
    // `async_trait` and similar crates also occur in attributes, so all words of the code count, not only its paths.
    let code: String = sources().iter().map(|source| source.code.as_str()).collect();
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let words: std::collections::HashSet<&str> = code.split(|character| !is_word(character)).collect();
    let unused = declared.iter().filter(|name| !words.contains(name.as_str()));
    assert_no_complaints(
        "Cargo.toml: every dependency is used",
        &unused.map(|name| format!("{name} is not used; remove it")).collect::<Vec<_>>(),
    );
}
