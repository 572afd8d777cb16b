//! Every file and protocol that is parsed, as a target: samples, and checks for any bytes. The tests change the samples
//! on any compiler; `fuzz/` runs libFuzzer on the same table.
//!
//! Most output of `git` is split at NUL characters where it is used; only diffs are parsed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::SystemTime;

use brigade::config::diagnostics::SourceFile;
use brigade::config::file::parse as parse_config;
use brigade::config::{Config, Environment, TeamFlags};
use brigade::domain::agent::shell_commands::CommandParts;
use brigade::domain::agent::text_tool_call::{ToolSignature, contains_tool_call};
use brigade::domain::agent::transcript::Record;
use brigade::domain::git::dropped_lines::{LineChanges, missing_lines};
use brigade::domain::git::worktree_state::WorktreeState;
use brigade::domain::log::event::Event;
use brigade::domain::task::plan;
use brigade::domain::task::shell_blocks::skipped_languages;
use brigade::domain::task::{Task, TaskId, TaskStatus};
use brigade::domain::team::approval::Approvals;
use brigade::domain::team::budget::{LedgerRecord, LedgerTotals};
use brigade::domain::team::message::Message;
use brigade::domain::team::records::{
    MemberStatus, RosterMember, SpawnSettings, StartedBy, WorkerRecord, merge_roster, read_roster,
};
use brigade::domain::team::state::{DesiredStateChange, Mode, SetBy, SharedState, StateUpdate};
use brigade::domain::text::json_document::Document;
use brigade::domain::text::tags::{escape_tags, unescape_tags};
use brigade::domain::time::UnixMs;
use brigade::providers::api::Assembler;
use brigade::providers::chat::assembly::ChatAssembler;
use brigade::providers::errors::from_response;
use brigade::providers::messages::assembly::MessageAssembler;
use brigade::providers::responses::assembly::ResponseAssembler;
use brigade::providers::sse::{SseEvent, SseReader};
use brigade::stores::file::format::check_format;
use brigade::stores::fs::RealFileSystem;
use brigade::tools::arguments::ArgumentSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A parser to test.
pub struct Target {
    /// Its name, also of its libFuzzer program.
    pub name: &'static str,
    /// Valid samples.
    pub samples: &'static [&'static [u8]],
    /// Parses these bytes, and panics if an invariant does not hold.
    pub run: fn(&[u8]),
}

#[rustfmt::skip]
pub const TARGETS: [Target; 20] = [
    Target { name: "task_file", run: task_file, samples: &[
        include_bytes!("../contracts/task_full.json"), include_bytes!("../contracts/task_foreign_fields.json"),
        include_bytes!("../contracts/task_minimal.json"), include_bytes!("../contracts/task_claimed.json")] },
    Target { name: "state_file", run: state_file, samples: &[
        include_bytes!("../contracts/agent_state.json"), include_bytes!("../contracts/agent_state_team.json"),
        include_bytes!("../contracts/agent_state_unknown.json")] },
    Target { name: "roster", run: roster, samples: &[include_bytes!("../contracts/roster.json")] },
    Target { name: "worktree_state", run: worktree_state, samples: &[include_bytes!("../contracts/worktree_state.json")] },
    Target { name: "worker_record", run: worker_record, samples: &[include_bytes!("../contracts/worker.json")] },
    Target { name: "inbox", run: inbox, samples: &[include_bytes!("../contracts/inbox.jsonl")] },
    Target { name: "transcript", run: transcript, samples: &[
        include_bytes!("../contracts/transcript.jsonl"), include_bytes!("../contracts/transcript_origin.jsonl")] },
    Target { name: "events", run: events, samples: &[include_bytes!("../contracts/events.jsonl")] },
    Target { name: "ledger", run: ledger, samples: &[include_bytes!("samples/ledger.jsonl")] },
    Target { name: "requests", run: requests, samples: &[include_bytes!("samples/requests.json")] },
    Target { name: "format", run: format, samples: &[b"1\n", b"2", b" 18446744073709551615 "] },
    Target { name: "team_config", run: team_config, samples: &[
        include_bytes!("../../brigade.toml"), include_bytes!("../../examples/real-key/brigade.toml"),
        include_bytes!("../../brigade.toml"), include_bytes!("samples/team.toml")] },
    Target { name: "plan", run: plan_file, samples: &[
        include_bytes!("../plans/board.md"), include_bytes!("../../src/front/cli/init/plan.md")] },
    Target { name: "runbook", run: runbook, samples: &[
        b"Text\n```sh\necho one\n```\n~~~~bash title=x\necho two\n~~~\n~~~~\n    ```sh\n", b"```sh\nnever closed\n"] },
    Target { name: "shell_commands", run: shell_commands, samples: &[
        b"A=1 sudo -u x git -C dir push >out 2>&1 && sh -c 'git push' || $(git \\\n push)", b"cat <<-'E' | bash\n\tgit push\n\tE\n# don't\n",
        b"case $X in x) echo \"${X:-`git push`}\";; esac; echo $'\\x67it' {git,push} $((1<<2))"] },
    Target { name: "events_of_model", run: events_of_model, samples: &[
        include_bytes!("../models/llama_cpp.sse"), include_bytes!("samples/answer.sse"),
        include_bytes!("samples/chat.sse"), include_bytes!("samples/responses.sse"),
        include_bytes!("samples/thinking.sse"), include_bytes!("samples/chat_reasoning.sse")] },
    Target { name: "error_of_model", run: error_of_model, samples: &[
        br#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
        b"<html><title>502</title></html>"] },
    Target { name: "written_call", run: written_call, samples: &[
        b"I call it:\n```json\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}\n```\n", b"bash(\"ls\")\n-> task_update: completed"] },
    Target { name: "tool_arguments", run: tool_arguments, samples: &[
        br##"{"text": 3, "word": "COMPLETED", "integer": "4", "flag": "true", "task": "#3", "tasks": "1, #2", "texts": ["a", 2]}"##] },
    Target { name: "diff", run: diff, samples: &[
        b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@ fn x\n-old\n+new\n+newer\n same\n@@ -9 +10 @@\n-x\n+y\n\\ No newline at end of file\n"] },
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// The fields of a JSON object with their original text; for a repeated key, the last one.
fn raw_fields(bytes: &[u8]) -> BTreeMap<String, String> {
    let document = Document::parse(bytes).expect("a parsed file parses again");
    let raw = |name: &str| (name.to_owned(), document.raw(name).unwrap_or_default().to_owned());
    document.field_names().map(raw).collect()
}

/// Checks that unknown fields stay in the file unchanged.
fn assert_kept(before: &[u8], after: &str, own: &[&str]) {
    let (before, after) = (raw_fields(before), raw_fields(after.as_bytes()));
    for (name, value) in before.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
        let kept = after.get(name).unwrap_or_else(|| panic!("the field {name:?} is lost"));
        let (was, is): (Value, Value) = (json(value), json(kept));
        // `null` means the same as a missing field, and may be written.
        assert!(was == is || was.is_null(), "the field {name:?} was changed: {was} is {is} now");
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| Value::String(format!("{error}: {text}")))
}

fn task_file(bytes: &[u8]) {
    // The id is part of the file name; the samples have several.
    for id in [1, 3, 7, 12] {
        let Ok(mut task) = Task::parse(TaskId(id), bytes) else { continue };
        let written = task.to_file();
        let again = Task::parse(TaskId(id), written.as_bytes()).expect("the written text is a task");
        assert_eq!(again.to_file(), written, "a second write changes nothing");
        let same = |a: &Task, b: &Task| {
            (a.status, &a.owner, &a.blocked_by, a.attempt, &a.claim)
                == (b.status, &b.owner, &b.blocked_by, b.attempt, &b.claim)
        };
        assert!(same(&task, &again), "{again:?}");
        task.status = TaskStatus::Failed;
        task.attempt = task.attempt.wrapping_add(1);
        let changed = task.to_file();
        assert_kept(bytes, &changed, &["status", "attempt", "owner", "activeForm", "verify", "worktree", "createdBy"]);
        assert_eq!(
            Task::parse(TaskId(id), changed.as_bytes()).expect("the text is still valid").status,
            TaskStatus::Failed
        );
    }
}

fn state_file(bytes: &[u8]) {
    let Ok(state) = SharedState::parse(bytes) else { return };
    let desired = Some(DesiredStateChange { mode: Mode::RunOnce, by: SetBy::Person, note: "n".into(), only_if: None });
    let merged = state.merge(&StateUpdate { desired, ..StateUpdate::default() }, UnixMs(1_763_688_000_000));
    let written = merged.to_file();
    let again = SharedState::parse(written.as_bytes()).expect("the written text is a state");
    assert_eq!((again.desired, again.note.as_str()), (Mode::RunOnce, "n"));
    assert_kept(bytes, &written, &["desired_state", "setBy", "note", "timestamp"]);
}

fn roster(bytes: &[u8]) {
    let _ = read_roster(bytes);
    let spawned = SpawnSettings { prompt: "Code.".into(), provider: "p".into(), model: "m".into() };
    let member = RosterMember {
        name: "alice".into(),
        role: "coder".into(),
        status: MemberStatus::Idle,
        started_by: StartedBy::Brigade { team: "crew".into(), spawned: Some(spawned) },
    };
    let Ok(written) = merge_roster(Some(bytes), "crew", std::slice::from_ref(&member), &BTreeSet::new()) else {
        return;
    };
    let members = read_roster(written.as_bytes()).expect("the written text is a roster");
    let alice = members.iter().find(|member| member.name.eq_ignore_ascii_case("alice"));
    assert_eq!(alice, Some(&member), "{written}");
    assert_kept(bytes, &written, &["team_name", "members"]);
    let (before, after) = (read_roster(bytes).expect("the text was valid before"), members);
    let others = before.iter().filter(|member| !member.name.eq_ignore_ascii_case("alice"));
    assert!(others.clone().all(|member| after.iter().any(|there| there.name == member.name)), "{written}");
}

fn worktree_state(bytes: &[u8]) {
    let Ok(mut state) = WorktreeState::parse(bytes) else { return };
    state.current_step = "merging".to_owned();
    let written = state.to_file();
    let again = WorktreeState::parse(written.as_bytes()).expect("the written text is a state");
    assert_eq!((&again.issue_identifier, again.current_step.as_str()), (&state.issue_identifier, "merging"));
    let own = [
        "issueId",
        "issueIdentifier",
        "sessionId",
        "providerName",
        "providerSessionId",
        "workType",
        "currentStep",
        "attemptCount",
        "startedAt",
        "lastUpdatedAt",
        "lastHeartbeat",
        "pid",
        "workerId",
    ];
    assert_kept(bytes, &written, &own);
}

fn worker_record(bytes: &[u8]) {
    let Ok(record) = serde_json::from_slice::<WorkerRecord>(bytes) else { return };
    let written = serde_json::to_string_pretty(&record).expect("a record can be written");
    assert!(serde_json::from_str::<WorkerRecord>(&written).is_ok(), "{written}");
}

fn inbox(bytes: &[u8]) {
    for line in lines(bytes) {
        let Ok(message) = Message::parse(line) else { continue };
        let written = message.to_line();
        assert!(!written.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']), "{written:?}");
        let again = Message::parse(written.as_bytes()).expect("the written text is a message");
        assert_eq!(
            (&again.kind, &again.from, &again.content, &again.plan),
            (&message.kind, &message.from, &message.content, &message.plan)
        );
    }
}

fn transcript(bytes: &[u8]) {
    let mut records = Vec::new();
    for line in lines(bytes) {
        let Ok(record) = Record::parse(line) else { continue };
        let written = record.to_line();
        let again = Record::parse(written.as_bytes()).expect("the written text is a record").to_line();
        // A repeated key, which is invalid JSON in practice, is written once.
        assert_eq!(Record::parse(again.as_bytes()).expect("the text is still valid").to_line(), again);
        records.push(record);
    }
    let context = brigade::domain::agent::prompt::Context::from_records(&records);
    let _ = context.unanswered_tool_calls();
}

fn events(bytes: &[u8]) {
    for line in lines(bytes) {
        let Ok(event) = serde_json::from_slice::<Event>(line) else { continue };
        let written = event.to_line();
        let again: Event = serde_json::from_str(&written).expect("the written text is an event");
        assert_eq!(again.to_line(), written);
    }
}

fn ledger(bytes: &[u8]) {
    let mut book = LedgerTotals::default();
    for line in lines(bytes) {
        let Ok(line) = serde_json::from_slice::<LedgerRecord>(line) else { continue };
        book.apply(&line.entry);
        let written = line.to_line();
        let again: LedgerRecord = serde_json::from_str(&written).expect("the written text is a record");
        assert_eq!(again, line);
    }
    // Folding changes no total.
    let mut folded = LedgerTotals::default();
    for entry in book.entries() {
        folded.apply(&entry);
    }
    assert_eq!(folded.spent().keys().collect::<Vec<_>>(), book.spent().keys().collect::<Vec<_>>());
    book.settle_open_requests();
}

fn requests(bytes: &[u8]) {
    let Ok(book) = serde_json::from_slice::<Approvals>(bytes) else { return };
    let written = serde_json::to_vec(&book).expect("the approvals can be written");
    let again: Approvals = serde_json::from_slice(&written).expect("the written text is valid approvals");
    assert_eq!(again, book);
    let _ = book.open_approvals().map(brigade::domain::team::approval::Request::awaited_answer).count();
}

fn format(bytes: &[u8]) {
    thread_local!(static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder can be made"));
    FOLDER.with(|folder| {
        std::fs::write(folder.path().join("FORMAT"), bytes).expect("a file can be written");
        let outcome = check_format(&RealFileSystem::default(), folder.path());
        let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<u64>().ok());
        // A byte that is no text is no number.
        assert_eq!(outcome.is_ok(), number.is_some_and(|number| number <= 1) && bytes.len() <= 1024, "{outcome:?}");
    });
}

fn team_config(bytes: &[u8]) {
    let (path, text) = (PathBuf::from("/nowhere/brigade.toml"), text(bytes));
    let source = SourceFile { path: path.clone(), display_path: "brigade.toml".into(), text: text.clone() };
    if let Err(error) = parse_config(source) {
        let _ = (error.to_string(), error.hint());
        return;
    }
    thread_local!(static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder can be made"));
    FOLDER.with(|folder| {
        let file = folder.path().join("brigade.toml");
        std::fs::write(&file, text).expect("a file can be written");
        let environment = Environment { current_folder: folder.path().to_owned(), ..Environment::default() };
        let config = Config::load(Some(&file), environment).expect("the parsed file loads");
        for name in config.team_names() {
            if let Err(error) = config.team(&name, &TeamFlags::default()) {
                let _ = error.to_string();
            }
        }
        let _ = config.durability();
    });
}

fn plan_file(bytes: &[u8]) {
    match plan::parse("plan.md", &text(bytes)) {
        Ok(tasks) => {
            assert!(tasks.len() <= plan::PLAN_TASKS_MAX);
            for task in tasks {
                assert!(!task.subject.trim().is_empty() && !task.subject.contains('\n'), "{task:?}");
            }
        }
        Err(errors) => assert!(!errors.is_empty() && errors.iter().all(|error| error.to_string().len() < 100_000)),
    }
}

fn runbook(bytes: &[u8]) {
    let text = text(bytes);
    let _ = skipped_languages(&text);
    let harmless = escape_tags(&text);
    for tag in ["<identity>", "</identity>", "<inbox>", "</inbox>", "<auto-claimed>", "</auto-claimed>"] {
        assert!(!harmless.contains(tag), "{tag} in {harmless}");
    }
    let _ = unescape_tags(&harmless);
}

fn shell_commands(bytes: &[u8]) {
    let command = text(bytes);
    let Ok(parts) = CommandParts::read(&command) else { return };
    for pattern in ["git push", "git * push", "*push*"] {
        // An assignment and a redirection in front hide nothing.
        let prefixed = CommandParts::read(&format!("A=b >out {command}"));
        let is_hidden = parts.find(pattern).is_some() && prefixed.is_ok_and(|parts| parts.find(pattern).is_none());
        assert!(!is_hidden, "{pattern} is hidden");
    }
}

fn events_of_model(bytes: &[u8]) {
    let mut whole = SseReader::default();
    let at_once = whole.feed(bytes);
    // Reading in pieces gives the same events.
    let (mut pieces, mut events, mut is_too_large) = (SseReader::default(), Vec::<SseEvent>::new(), false);
    for piece in bytes.chunks(7) {
        match pieces.feed(piece) {
            Ok(more) => events.extend(more),
            Err(_) => {
                is_too_large = true;
                break;
            }
        }
    }
    match at_once {
        Ok(at_once) => assert_eq!((at_once, false), (events.clone(), is_too_large)),
        Err(_) => assert!(is_too_large),
    }
    let assemblers: [Box<dyn Assembler>; 3] =
        [Box::<MessageAssembler>::default(), Box::<ChatAssembler>::default(), Box::<ResponseAssembler>::default()];
    for mut assembler in assemblers {
        // The rest of a stream after an error is not read.
        let _ = events.iter().find(|event| assembler.process_event(event, &()).is_err());
        let _ = (assembler.may_end(), assembler.finish("spare"));
    }
}

fn error_of_model(bytes: &[u8]) {
    let body = text(bytes);
    for status in [200, 301, 400, 413, 429, 529] {
        let error = from_response(status, &Default::default(), &body, SystemTime::UNIX_EPOCH);
        assert!(error.to_string().len() < 10_000, "{error}");
    }
}

fn written_call(bytes: &[u8]) {
    let tools = [
        ToolSignature { name: "bash", arguments: vec!["command", "timeout"] },
        ToolSignature { name: "task_update", arguments: vec!["task_id", "status"] },
    ];
    let _ = contains_tool_call(&text(bytes), &tools);
}

/// Arguments of all types.
#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
struct Sample {
    text: String,
    word: Option<TaskStatus>,
    integer: Option<i64>,
    flag: Option<bool>,
    task: Option<TaskId>,
    tasks: Option<Vec<TaskId>>,
    texts: Option<Vec<String>>,
}

fn tool_arguments(bytes: &[u8]) {
    let Ok(input) = serde_json::from_slice::<Value>(bytes) else { return };
    let schema = ArgumentSchema::of::<Sample>();
    match schema.parse::<Sample>(&input) {
        Ok(sample) => assert_eq!(schema.parse::<Sample>(&serde_json::json!(sample)), Ok(sample)),
        // The schema finds every mistake, so that the error names the argument.
        Err(error) => assert!(!error.to_string().contains("wrong arguments"), "{error}"),
    }
    for entry in brigade::tools::table::TOOLS.iter() {
        let about = entry.tool.about(&input);
        assert!(about.chars().count() <= 201 && !about.contains('\n'), "{}: {about:?}", entry.name);
    }
}

fn diff(bytes: &[u8]) {
    let lines = LineChanges::of_diff(bytes);
    assert_eq!(missing_lines(&lines, &LineChanges::default(), &lines), Vec::<Vec<u8>>::new());
    let _ = missing_lines(&lines, &lines, &LineChanges::default());
}
