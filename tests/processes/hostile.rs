//! A board full of invalid files: every command answers, names them, keeps them all, and the good tasks are done.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::Instant;

use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

/// Valid task files that look unusual.
fn write_valid_tasks(workspace: &TestWorkspace) {
    let runs = r#""status":"pending","description":"```sh\ntrue\n```""#;
    let write = |id: u64, text: String| workspace.write(&format!(".tasks/task_{id}.json"), &text);
    write(1, format!(r#"{{"id":1,"subject":"plain",{runs}}}"#));
    write(8, format!("\u{feff}{{\"id\":8,\"subject\":\"byte order mark\",{runs}}}"));
    write(9, format!("{{\r\n  \"id\": 9,\r\n  \"subject\": \"crlf\",\r\n  {runs}\r\n}}\r\n"));
    write(12, format!(r#"{{"id":12,"subject":"\u001b[2J\u001b]0;title\u0007 \u202e\u0000 end\nsecond line",{runs}}}"#));
    write(13, format!(r#"{{"id":13,"subject":"first","subject":"second","status":"completed",{runs}}}"#));
    let ones = vec!["1"; 400_000].join(",");
    write(14, format!(r#"{{"id":14,"subject":"wide","x_wide":[{ones}],{runs}}}"#));
    write(15, format!(r#"{{"id":15,"subject":"deep","x_deep":{}{},{runs}}}"#, "[".repeat(90), "]".repeat(90)));
    write(
        16,
        format!(
            r#"{{"id":16,"subject":"much tried","attempt":4294967290,"maxAttempts":0,"priority":-9223372036854775808,{runs}}}"#
        ),
    );
}

/// Tasks that can never be claimed, and the reason.
const NEVER_CLAIMABLE: [(u64, &str, &str); 6] = [
    (20, r#""status":"pending","blockedBy":[21]"#, "waits for itself"),
    (21, r#""status":"pending","blockedBy":[20]"#, "waits for itself"),
    (22, r#""status":"pending","blockedBy":[22]"#, "waits for itself"),
    (23, r#""status":"pending","blockedBy":[999]"#, "missing"),
    (24, r#""status":"pending","blockedBy":[40]"#, "#40"),
    (25, r#""status":"in_progress","owner":"ghost""#, "Another program"),
];

/// Invalid task files: the name, and the message. All except the last few can be moved away.
fn write_invalid_files(workspace: &TestWorkspace) -> Vec<(String, &'static str)> {
    let too_deep =
        format!(r#"{{"id":44,"subject":"s","status":"pending","x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let no_room = format!(r#"{{"id":45,"subject":"s","status":"pending","x":"{}"}}"#, "x".repeat((1 << 20) - 100));
    let large = format!(r#"{{"id":46,"subject":"{}","status":"pending"}}"#, "x".repeat(5_000_000));
    let texts: [(&str, &[u8], &'static str); 15] = [
        ("task_40.json", b"", "not a JSON object"),
        ("task_41.json", b"{\"id\":41,\"subject\":\"nul \0 byte\",\"status\":\"pending\"}", "not a JSON object"),
        ("task_42.json", b"\xff\xfe{\0\"\0", "not a JSON object"),
        ("task_43.json", br#"{"id":6,"subject":"another's","status":"pending"}"#, "its id is 6"),
        ("task_44.json", too_deep.as_bytes(), "levels deep"),
        ("task_45.json", no_room.as_bytes(), "leaves no space for a claim"),
        ("task_46.json", large.as_bytes(), "more than"),
        ("task_48.json", br#"{"id":"48","subject":"s","status":"pending"}"#, "field `id`"),
        ("task_49.json", br#"{"id":49,"status":"pending"}"#, "field `subject`"),
        ("task_50.json", br#"[1, 2, 3]"#, "not a JSON object"),
        ("task_51.json", br#"{"id":51,"subject":"s","status":"pending","blockedBy":[-1]}"#, "field `blockedBy[0]`"),
        ("task_52.json", br#"{"id":52,"subject":"s","status":"pending","attempt":1e99}"#, "field `attempt`"),
        ("task_53.json", b"{\"id\":53,\"subject\":\"\xc3\x28\",\"status\":\"pending\"}", "not a JSON object"),
        ("task_54.json", b"{\"id\":54,\"subject\":\"\\ud800\",\"status\":\"pending\"}", "field `subject`"),
        ("task_55.json", br#"{"id":55,"subject":"s","status":"pending"} trailing"#, "not a JSON object"),
    ];
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    for (name, bytes, _) in &texts {
        let path = workspace.join(".tasks").join(name);
        fs::write(&path, bytes).unwrap();
        // Another program may still be writing a new file.
        fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let sparse = fs::File::create(workspace.join(".tasks/task_60.json")).unwrap();
    sparse.set_len(200 << 20).unwrap();
    symlink("/etc/passwd", workspace.join(".tasks/task_61.json")).unwrap();
    symlink("task_62.json", workspace.join(".tasks/task_62.json")).unwrap();
    let mut bad: Vec<(String, &str)> = texts.iter().map(|(name, _, said)| ((*name).to_owned(), *said)).collect();
    for (name, said) in
        [("task_60.json", "more than"), ("task_61.json", "symbolic link"), ("task_62.json", "symbolic link")]
    {
        bad.push((name.to_owned(), said));
    }
    bad
}

/// Files that cannot be moved away: they have no id or are not Brigade's.
fn write_unmovable_files(workspace: &TestWorkspace) -> Vec<(String, &'static str)> {
    let tasks = workspace.join(".tasks");
    fs::create_dir(tasks.join("task_70.json")).unwrap();
    fs::write(tasks.join("task_70.json/inside"), "kept").unwrap();
    assert!(Command::new("mkfifo").arg(tasks.join("task_71.json")).status().unwrap().success());
    let task = r#"{"id":1,"subject":"s","status":"pending"}"#;
    let names: [&[u8]; 7] = [
        b"task_9999999999999999999.json",
        b"task_-1.json",
        b"task_007.json",
        b"task_x.json",
        b"task_\x1b[31m.json",
        b"task_two\nlines.json",
        b"task_\xff\xfe.json",
    ];
    for name in names {
        fs::write(tasks.join(OsStr::from_bytes(name)), task).unwrap();
    }
    let mut strays =
        vec![("task_70.json".to_owned(), "it is a folder"), ("task_71.json".to_owned(), "not a plain file")];
    for shown in [
        "task_9999999999999999999.json",
        "task_-1.json",
        "task_007.json",
        "task_x.json",
        "[31m.json",
        "lines.json",
        "task_\u{fffd}\u{fffd}.json",
    ] {
        strays.push((shown.to_owned(), "its name is not"));
    }
    strays
}

/// Asserts that the text has no terminal control sequences.
fn assert_no_control_sequences(text: &str) {
    let harmful = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.contains(harmful), "{text:?}");
}

#[test]
fn invalid_files_are_reported_and_good_tasks_run() {
    let workspace = TestWorkspace::with_idle_team(2);
    fs::create_dir(workspace.join(".tasks")).unwrap();
    write_valid_tasks(&workspace);
    for (id, rest, _) in NEVER_CLAIMABLE {
        workspace.write(&format!(".tasks/task_{id}.json"), &format!(r#"{{"id":{id},"subject":"stuck {id}",{rest}}}"#));
    }
    let (bad, strays) = (write_invalid_files(&workspace), write_unmovable_files(&workspace));
    for (name, text) in [(".batch-1-2", "rubbish"), (".highwatermark", "many"), (".tmp-4000000-1-1", "left")] {
        workspace.write(&format!(".tasks/{name}"), text);
    }
    let is_root = crate::testkit::process::is_root("unreadable file");
    let before = fs::read_dir(workspace.join(".tasks")).unwrap().count();

    let listed = workspace.run(&["tasks"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert_no_control_sequences(&listed.out);
    assert_no_control_sequences(&listed.err);
    assert!(listed.err.contains("more invalid files: `brigade doctor` lists all"), "{listed:?}");
    let checked = workspace.run(&["doctor"]).out;
    assert_no_control_sequences(&checked);
    for (name, said) in bad.iter().chain(&strays) {
        let one_line = |warning: &str| warning.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut warnings = checked.split("warn ").map(one_line);
        let named = warnings.any(|warning| warning.contains(name.as_str()) && warning.contains(said));
        assert!(named, "{name} ({said}) is not named in\n{checked}");
    }
    assert_eq!(workspace.json(&["tasks"]).as_array().unwrap().len(), 8 + NEVER_CLAIMABLE.len());
    assert_eq!(fs::read_dir(workspace.join(".tasks")).unwrap().count(), before, "reading changes the folder");
    for (id, _, why) in NEVER_CLAIMABLE {
        let answer = workspace.run(&["why", &id.to_string()]);
        assert!(answer.code == Some(0) && answer.out.contains(why), "{id}: {answer:?}");
    }
    for (name, said) in &bad {
        let id = name.trim_start_matches("task_").trim_end_matches(".json");
        let answer = workspace.run(&["why", id]);
        assert!(answer.out.contains(said), "{name} ({said}): {answer:?}");
    }
    if !is_root {
        fs::set_permissions(workspace.join(".tasks/task_1.json"), fs::Permissions::from_mode(0o000)).unwrap();
        assert!(workspace.run(&["tasks"]).err.contains("permission denied"));
        fs::set_permissions(workspace.join(".tasks/task_1.json"), fs::Permissions::from_mode(0o644)).unwrap();
    }
    run_with_invalid_files(&workspace, &bad, &strays, before);
}

/// A run does the possible tasks, names the others, and moves only invalid files away.
fn run_with_invalid_files(workspace: &TestWorkspace, bad: &[(String, &str)], strays: &[(String, &str)], before: usize) {
    let mut run = workspace.start(&["run"]);
    assert_eq!(run.code(), Some(1), "{}", run.output_so_far());
    assert_no_control_sequences(&run.output_so_far());
    for id in [1, 8, 9, 12, 13, 14, 15, 16] {
        assert_eq!(workspace.run(&["tasks", "show", &id.to_string(), "--json"]).code, Some(0));
        let text = workspace.read(&format!(".tasks/task_{id}.json"));
        assert!(text.contains(r#""completed""#), "{id}: {:.300}", text);
    }
    assert!(workspace.read(".tasks/task_15.json").replace([' ', '\n'], "").contains(&"[".repeat(90)));
    assert_eq!(workspace.read(".tasks/task_14.json").matches('1').count() / 1000, 400);
    for (id, rest, _) in NEVER_CLAIMABLE {
        let status = if rest.contains("in_progress") { "in_progress" } else { "pending" };
        assert_eq!(workspace.task(id)["status"], status);
    }
    // Invalid files are moved after they stay the same for two seconds.
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the run has started", || up.output_so_far().contains("crew starts"));
    wait_until("the invalid files are moved away", || {
        bad.iter().all(|(name, _)| fs::symlink_metadata(workspace.join(".tasks/.spoiled").join(name)).is_ok())
    });
    up.signal("INT");
    assert_eq!(up.code(), Some(130), "{}", up.output_so_far());
    assert_eq!(fs::metadata(workspace.join(".tasks/.spoiled/task_60.json")).unwrap().len(), 200 << 20);
    assert_eq!(fs::read_link(workspace.join(".tasks/.spoiled/task_61.json")).unwrap(), OsStr::new("/etc/passwd"));
    assert_eq!(workspace.read(".tasks/task_70.json/inside"), "kept");
    // All files are still there, except for one temporary file; .spoiled and .lock are new.
    let remaining = fs::read_dir(workspace.join(".tasks")).unwrap().count();
    let moved = fs::read_dir(workspace.join(".tasks/.spoiled")).unwrap().count();
    assert_eq!(remaining + moved, before - 1 + 2);
    assert!(strays.len() > 8 && moved >= bad.len());
    let added = workspace.json(&["tasks", "add", "New"]);
    assert!(added["id"].as_u64().unwrap() > 62, "an id of an invalid file was reused: {added}");
}

#[test]
fn quarantined_task_fails_run_and_is_not_added_again() {
    let workspace = TestWorkspace::with_idle_team(2);
    let plan = ["One", "Two"].map(|name| format!("## {name}\n\n```sh\ntrue\n```\n\n")).concat();
    workspace.write("plan.md", &plan);
    assert_eq!(workspace.run(&["tasks", "import", "plan.md"]).code, Some(0));
    let path = workspace.join(".tasks/task_1.json");
    fs::write(&path, "").unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    for run in ["the run that moves it", "a later run"] {
        let ended = workspace.run(&["run", "--plan", "plan.md"]);
        let text = format!("{run}: {}\n{}", ended.out, ended.err);
        assert_eq!(ended.code, Some(1), "{text}");
        assert_eq!(text.matches(".tasks/.spoiled/task_1.json is not a valid task: ").count(), 1, "{text}");
        assert!(text.contains("Tasks with an invalid file: #1 (.tasks/.spoiled/task_1.json)"), "{text}");
        assert!(!workspace.join(".tasks/task_3.json").exists(), "{text}");
    }
    assert_eq!(workspace.task(2)["status"], "completed");
}

#[test]
fn board_of_ten_thousand_tasks_works() {
    let workspace = TestWorkspace::with_idle_team(2);
    fs::create_dir(workspace.join(".tasks")).unwrap();
    for id in 1..=10_000 {
        let status = if id % 5_000 == 0 { "pending" } else { "completed" };
        let task =
            format!(r#"{{"id":{id},"subject":"Task {id}","description":"```sh\ntrue\n```","status":"{status}"}}"#);
        fs::write(workspace.join(&format!(".tasks/task_{id}.json")), task).unwrap();
    }
    let started_at = Instant::now();
    assert_eq!(workspace.json(&["tasks"]).as_array().unwrap().len(), 10_000);
    assert_eq!(workspace.run(&["why", "5000"]).code, Some(0));
    assert_eq!(workspace.run(&["tasks", "claim", "--as", "ann", "--json"]).code, Some(0));
    assert_eq!(workspace.run(&["tasks", "complete", "5000", "--as", "ann", "--attempt", "1"]).code, Some(0));
    let mut run = workspace.start(&["run"]);
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert_eq!(workspace.task(10_000)["status"], "completed");
    println!("10,000 tasks: {:?}", started_at.elapsed());
}

/// Returns true if control files are read-only for commands.
pub fn is_confined(workspace: &TestWorkspace) -> bool {
    workspace.run(&["doctor"]).out.contains("they see the control files read-only")
}

#[test]
fn command_cannot_write_exchanged_state_file() {
    let workspace = TestWorkspace::new();
    if !is_confined(&workspace) {
        return;
    }
    workspace.write(
        "brigade.toml",
        "[teams.t]\nplan = \"plan.md\"\n[[teams.t.members]]\nname = \"a\"\n[[teams.t.members]]\nname = \"b\"\n",
    );
    let tries = "for i in $(seq 200); do (echo '{\"desired_state\":\"pause\",\"note\":\"forged\"}' >agent_state.json) 2>/dev/null \
                 && echo WRITTEN; echo '{\"desired_state\":\"pause\",\"note\":\"forged\"}' >mine; mv -f mine agent_state.json 2>/dev/null \
                 && echo MOVED; ls -i agent_state.json >>inodes; sleep 0.01; done; uniq inodes | wc -l";
    let short = "sleep 0.2";
    let plan = format!("## A\n\n```sh\n{tries}\n```\n\n## B\n\n```sh\n{short}\n```\n\n## C\n\n```sh\n{short}\n```\n");
    workspace.write("plan.md", &plan);
    let answer = workspace.run(&["run"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let summary = workspace.task(1)["result"]["summary"].as_str().unwrap().to_owned();
    assert!(!summary.contains("WRITTEN") && !summary.contains("MOVED"), "{summary}");
    assert!(!workspace.read("agent_state.json").contains("forged"));
    let exchanged: u32 = summary.trim().parse().unwrap();
    // A few versions take turns, so the same file appears again.
    assert!(exchanged > 1, "the file was exchanged too few times: {exchanged}");
}

#[test]
fn command_cannot_write_config_outside_workspace() {
    let workspace = TestWorkspace::new();
    if !is_confined(&workspace) {
        return;
    }
    workspace.write("brigade.toml", "[teams.t]\nplan = \"plan.md\"\n[[teams.t.members]]\nname = \"a\"\n");
    fs::create_dir_all(workspace.join("prompts")).unwrap();
    workspace.write("prompts/lead.md", "You lead.");
    fs::create_dir_all(workspace.join("sub")).unwrap();
    let plan = "## A\n\n```sh\nset +e; cd ..; for file in brigade.toml plan.md prompts/lead.md; do echo '# evil' >>$file; rm -f $file; done; \
                touch prompts/cleanup.md; rm -rf prompts; echo fine >sub/mine; echo fine >beside; exit 0\n```\n";
    workspace.write("plan.md", plan);
    let answer = workspace.run(&["run", "--workspace", "sub"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!((workspace.read("sub/mine").trim(), workspace.read("beside").trim()), ("fine", "fine"));
    assert!(!workspace.read("brigade.toml").contains("evil"));
    assert_eq!(workspace.read("plan.md"), plan);
    assert_eq!(workspace.read("prompts/lead.md"), "You lead.");
    assert!(!workspace.join("prompts/cleanup.md").exists());
}
