//! Agents that end without a report, in the real program: what people and programs see of the evidence.

use crate::testkit::process::git;
use crate::testkit::workspace::TestWorkspace;

const PLAN: &str = "## First\nverify: test -f made-1\n\nMake it.\n\n## Second\nverify: echo 'Ran 0 tests in 0.000s'\n\nMake it.\n\n## Third\n\nMake it.\n";

/// A team whose model runs one command for each task, and then only talks.
fn workspace() -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.write("plan.md", PLAN);
    let steps = r#"{"task": [{"call": [{"tool": "bash", "input": {"command": "touch made-{{task}}"}}]}, {"say": "I made it."}, {"say": "I made it."}]}"#;
    workspace.write("script.json", steps);
    let member =
        "[[teams.crew.members]]\nname = \"ada\"\nrole = \"coder\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n";
    workspace.write(
        "brigade.toml",
        &format!(
            "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[teams.crew.lead]\nprovider = \"runbook\"\n{member}"
        ),
    );
    workspace
}

#[test]
fn evidence_of_completed_tasks_is_in_every_view() {
    let workspace = workspace();
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    for part in [
        "completes #1 First (verify exited 0)",
        "completes, no tests ran: #2 Second (verify exited 0)",
        "completes, unverified: #3 Third",
        "exit 0; I made it.",
        "exit 0, no tests ran; I made it.",
        "1 completed unverified: #3; `brigade why 3` for the reason.",
        "so the exit code is 1. `brigade tasks show 3` shows",
        "1 completed by a verify command that ran no tests: #2; `brigade why 2` for the reason.",
    ] {
        assert!(run.out.contains(part), "{part}\n{}", run.out);
    }
    assert!(run.out.lines().any(|line| line.starts_with("#3 Third") && line.contains("unverified")), "{}", run.out);
    assert!(
        run.out.lines().filter(|line| line.starts_with('#')).all(|line| line.chars().count() <= 100),
        "{}",
        run.out
    );

    let results: Vec<_> = (1..=3).map(|id| workspace.task(id)["result"].clone()).collect();
    assert!(results.iter().all(|result| result["summary"] == "I made it."), "{results:?}");
    assert!(results[0].get("unverified").is_none() && results[0]["verify"].get("nothingRan").is_none(), "{results:?}");
    assert_eq!(results[1]["verify"]["nothingRan"], true);
    assert_eq!(results[2]["unverified"], true);

    let tasks = workspace.run(&["tasks"]).out;
    assert!(tasks.contains("unverified; I made it.") && tasks.contains("no tests ran; I made it."), "{tasks}");
    let unverified = "Unverified: the task has no verify command";
    for command in [["tasks", "show", "3"].as_slice(), &["why", "3"]] {
        let shown = workspace.run(command).out;
        assert!(shown.split_whitespace().collect::<Vec<_>>().join(" ").contains(unverified), "{command:?}: {shown}");
    }
    assert!(workspace.run(&["why", "2"]).out.contains("it ran no tests"));
    let completed: Vec<_> = workspace.events().into_iter().filter(|event| event["kind"] == "task_completed").collect();
    assert_eq!((&completed[1]["nothing_ran"], &completed[1]["row"]["nothing_ran"]), (&true.into(), &true.into()));
    assert_eq!((&completed[2]["unverified"], &completed[2]["row"]["unverified"]), (&true.into(), &true.into()));
}

#[test]
fn unreported_work_in_worktrees_is_merged() {
    let workspace = workspace();
    let config = workspace.read("brigade.toml").replace("plan = ", "isolation = \"worktree\"\nplan = ");
    workspace.write("brigade.toml", &config);
    workspace.write(".gitignore", ".tasks/\n.team/\nagent_state.json\n");
    git(workspace.path(), &["init", "-q", "-b", "main", "."]);
    git(workspace.path(), &["add", "-A"]);
    git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let files = git(workspace.path(), &["ls-tree", "--name-only", "brigade/crew"]);
    assert!(["made-1", "made-2", "made-3"].iter().all(|file| files.lines().any(|line| line == *file)), "{files}");
    let result = &workspace.task(3)["result"];
    assert!(result["unverified"] == true && result["commit"].is_string(), "{result}");
    let subjects = git(workspace.path(), &["log", "--format=%s", "brigade/crew"]);
    assert!(subjects.contains("Third") && !subjects.contains("I made it"), "{subjects}");
}

#[test]
fn evidence_is_in_the_final_json() {
    let run = workspace().run(&["run", "--json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let last: serde_json::Value = serde_json::from_str(run.out.lines().last().unwrap()).unwrap();
    let tasks = last["data"]["tasks"].as_array().or(last["tasks"].as_array()).unwrap_or_else(|| panic!("{last}"));
    assert_eq!(tasks[0]["evidence"], "exit 0: test -f made-1");
    assert_eq!((&tasks[1]["nothing_ran"], &tasks[2]["unverified"]), (&true.into(), &true.into()));
    assert_eq!(tasks[2]["evidence"], "unverified");
    assert_eq!((&last["data"]["unverified_now"], &last["data"]["completed_now"]), (&1.into(), &3.into()), "{last}");
}

/// Only the own agents of this run decide: neither work of an earlier run, nor the word of another program.
#[test]
fn other_unverified_work_counts_as_done() {
    let workspace = workspace();
    assert_eq!(workspace.run(&["run"]).code, Some(1));
    let again = workspace.run(&["run"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    let mut task = workspace.task(3);
    task["id"] = 4.into();
    task["owner"] = "outsider".into();
    workspace.write(".tasks/task_4.json", &task.to_string());
    let foreign = workspace.run(&["run"]);
    assert_eq!(foreign.code, Some(0), "{foreign:?}");
}

/// The agent looks around and then only talks, or asks.
#[test]
fn talk_after_reading_fails_task_and_shows_words() {
    for (words, reason) in [
        ("I will begin now.", "ended without a report and changed nothing; its last words: \"I will begin now.\""),
        ("Which database?", "ada asked and got no answer: \"Which database?\""),
    ] {
        let workspace = workspace();
        workspace.write("plan.md", "## First\n\nMake it.\n");
        let say = format!(r#"{{"say": "{words}"}}"#);
        let call = r#"{"call": [{"tool": "bash", "input": {"command": "ls | head"}}]}"#;
        let again = vec![say; 9].join(", ");
        workspace.write("script.json", &format!(r#"{{"task": [{call}, {again}]}}"#));
        let run = workspace.run(&["run"]);
        assert_eq!(run.code, Some(1), "{run:?}");
        let words_of = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words_of(&run.out).contains(reason), "{}", run.out);
        for command in [["why", "1"].as_slice(), &["tasks"], &["tasks", "show", "1"]] {
            let shown = words_of(&workspace.run(command).out);
            assert!(shown.contains(words), "{command:?}: {shown}");
        }
        let inbox = workspace.run(&["inbox"]).out;
        assert_eq!(inbox.contains("Which database?"), words == "Which database?", "{inbox}");
        if words == "Which database?" {
            let why = words_of(&workspace.run(&["why", "1"]).out);
            assert!(why.contains("to answer:"), "{why}");
        }
    }
}
