//! Reviews and plans in real processes: a request that waits for a person is answered from another terminal, and
//! survives a kill.

use std::fs;

use serde_json::{Value, json};

use crate::testkit::process::{Process, git, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// A repository with a team of two in worktrees, whose work a person reviews.
fn repo_with_review() -> TestWorkspace {
    let workspace = TestWorkspace::with_team(
        2,
        "## Write\nverify: grep -q line new.txt && echo it is there\n```sh\necho line > new.txt\n```\n",
    );
    workspace.write_team(2, "plan = \"plan.md\"\nisolation = \"worktree\"\nreview = \"human\"");
    workspace.write(".gitignore", ".tasks/\n.team/\nagent_state.json\nsaid-*\n");
    git(workspace.path(), &["init", "-q", "-b", "main", "."]);
    git(workspace.path(), &["add", "-A"]);
    git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
    workspace
}

/// Waits for the only open request of this kind.
fn wait_for_request(workspace: &TestWorkspace, kind: &str, run: &mut Process) -> Value {
    let mut requests = Value::Null;
    wait_until("a request waits", || {
        assert!(!run.has_ended(), "{}", run.output_so_far());
        requests = workspace.json(&[kind]);
        requests.as_array().is_some_and(|open| open.len() == 1)
    });
    requests[0].clone()
}

#[test]
fn task_is_merged_after_person_approves_review() {
    let workspace = repo_with_review();
    let mut run = workspace.start(&["run", "crew"]);
    let review = wait_for_request(&workspace, "review", &mut run);
    let text = review["plan"].as_str().unwrap();
    assert!(text.contains("exit status 0") && text.contains("it is there"), "{text}");
    let commits = "refs/heads/brigade/crew...refs/heads/brigade-tasks/crew/task-1";
    let diff = format!("In {} run: git diff {commits}", workspace.path().display());
    assert!(text.contains(&diff), "{text}");
    assert!(git(workspace.path(), &["diff", commits]).contains("+line"));
    assert!(!workspace.join("new.txt").exists());
    let holder = workspace.task(1)["owner"].clone();
    let early = workspace.run(&["tasks", "complete", "1", "--as", holder.as_str().unwrap(), "--attempt", "1"]);
    assert_eq!(early.code, Some(1), "{early:?}");
    assert!(!workspace.all_are("completed"), "{early:?}");
    let approve = format!("`brigade review approve {}`", review["id"].as_str().unwrap());
    assert!(early.err.contains("waits for review") && early.err.contains(&approve), "the merge comes later: {early:?}");

    // The same work is not reviewed twice after a kill.
    run.kill();
    let mut run = workspace.start(&["run", "crew"]);
    wait_until("the request waits again", || {
        workspace.task(1)["attempt"] == 2 && workspace.task(1)["status"] == "in_progress"
    });
    assert_eq!(wait_for_request(&workspace, "review", &mut run)["id"], review["id"]);
    let id = review["id"].as_str().unwrap();
    let mail = workspace.run(&["inbox"]);
    assert!(mail.out.contains(&format!("brigade review approve {id}")), "{mail:?}");
    let waits = workspace.run(&["team"]);
    assert!(waits.err.contains("1 review waits") && !waits.err.contains("unread message"), "{waits:?}");
    let team = workspace.json(&["team"]);
    let author = team["members"].as_array().unwrap().iter().find(|member| member["name"] == holder).unwrap();
    assert_eq!(author["wait"], json!({ "kind": "review", "id": id }));
    assert_eq!(workspace.task(1)["owner"], holder, "the owner keeps its task");
    let approved = workspace.run(&["review", "approve"]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
    let mail = workspace.run(&["inbox"]);
    assert!(mail.out.contains("approved by human") && !mail.out.contains("brigade review approve"), "{mail:?}");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    let answers = workspace.json(&["log", "--kind", "request_answered"]);
    assert_eq!((&answers[0]["by"], &answers[0]["approved"]), (&json!("human"), &json!(true)));
    let told_once = ["request_made", "request_answered"].map(|kind| json!([kind, "review", id]));
    assert_eq!(workspace.request_events(), told_once, "over both runs");
    assert_eq!(workspace.read(".worktrees/crew/new.txt"), "line\n");
    let result = &workspace.task(1)["result"];
    assert_eq!((&result["reviewedBy"], &result["verify"]["exitStatus"]), (&json!("human"), &json!(0)), "{result}");
    assert_eq!(result["verify"]["outputTail"], "it is there");
    assert_eq!(result["commit"], git(workspace.path(), &["rev-parse", "brigade/crew"]));
    let details = workspace.run(&["tasks", "show", "1"]).out;
    assert!(details.contains("reviewed by human") && details.contains("exit status 0"), "{details}");
    workspace.assert_nothing_is_left_running();
}

#[test]
fn rejected_review_fails_task_with_feedback() {
    let workspace = repo_with_review();
    let mut run = workspace.start(&["run", "crew"]);
    let review = wait_for_request(&workspace, "review", &mut run);
    let id = review["id"].as_str().unwrap();
    let note = workspace.run(&["tasks"]).out;
    assert!(note.contains(&format!("waits for your review {id}")), "{note}");
    let how = format!("brigade review approve {id}");
    wait_until("the hint to answer the review is shown", || run.output_so_far().contains(&how));
    let rejected = workspace.run(&["review", "reject", "--feedback", "it needs two lines"]);
    assert_eq!(rejected.code, Some(0), "{rejected:?}");
    assert_eq!(run.code(), Some(1), "the same commands would fail again: {}", run.output_so_far());
    assert_eq!((&workspace.task(1)["status"], &workspace.task(1)["failures"]), (&json!("failed"), &json!(1)));
    let reason = workspace.task(1)["result"]["summary"].as_str().unwrap().to_owned();
    assert!(reason.contains("it needs two lines"), "{reason}");
    let why = workspace.run(&["why", "1"]).out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(why.contains("`brigade tasks update 1 --verify COMMAND` → to retry it: `brigade tasks retry 1`"), "{why}");
    let log = workspace.run(&["log", "--task", "1"]).out;
    let asked = format!("asks for review {id} of task #1");
    let author = review["from"].as_str().unwrap();
    let answered = format!("to {author}: rejects review {id} of task #1: it needs two lines");
    assert!(log.contains(&asked) && log.contains(&answered), "{log}");
    assert!(!workspace.join("new.txt").exists());
}

/// The same commands would fail again. Other commands are run, and their work is reviewed.
#[test]
fn rejection_while_stopped_fails_runbook_task() {
    for is_plan_changed in [false, true] {
        let workspace = TestWorkspace::with_team(1, "## Write\n```sh\necho line >> ran.txt\n```\n");
        workspace.write_team(1, "plan = \"plan.md\"\nreview = \"human\"");
        let mut run = workspace.start(&["run", "crew"]);
        let first = wait_for_request(&workspace, "review", &mut run);
        assert_eq!(workspace.run(&["stop"]).code, Some(0));
        run.code();
        assert_eq!(workspace.run(&["review", "reject", "--feedback", "it needs two lines"]).code, Some(0));
        if is_plan_changed {
            workspace.write("plan.md", "## Write\n```sh\necho other >> ran.txt\n```\n");
        }
        let mut run = workspace.start(&["run", "crew"]);
        if is_plan_changed {
            assert_ne!(wait_for_request(&workspace, "review", &mut run)["id"], first["id"]);
            assert_eq!(workspace.run(&["review", "approve"]).code, Some(0));
            assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
            assert_eq!(workspace.read("ran.txt"), "line\nother\n");
        } else {
            assert_eq!(run.code(), Some(1), "{}", run.output_so_far());
            let task = workspace.task(1);
            assert_eq!((&task["status"], &task["failures"]), (&json!("failed"), &json!(1)));
            assert_eq!(task["result"]["summary"], "the review rejected it: it needs two lines");
            assert_eq!(workspace.read("ran.txt"), "line\n", "the commands were repeated");
        }
    }
}

#[test]
fn command_completion_returns_rejection_of_worktree() {
    let workspace = repo_with_review();
    let mut run = workspace.start(&["run", "crew"]);
    wait_for_request(&workspace, "review", &mut run);
    run.kill();
    let rejected = workspace.run(&["review", "reject", "--feedback", "it needs two lines"]);
    assert_eq!(rejected.code, Some(0), "{rejected:?}");
    let holder = workspace.task(1)["owner"].as_str().unwrap().to_owned();
    let complete = workspace.run(&["tasks", "complete", "1", "--as", &holder, "--attempt", "1"]);
    assert_eq!(complete.code, Some(1), "{complete:?}");
    assert!(complete.err.contains("the review rejected it: it needs two lines"), "{complete:?}");
}

#[test]
fn plan_first_member_writes_only_after_approval() {
    let workspace = TestWorkspace::new();
    let write = |name: &str| json!({ "tool": "bash", "input": { "command": format!("echo x > {name}") } });
    let script = json!({
        "task": [
            { "call": [write("early.txt"), { "tool": "plan_approval", "input": { "plan": "write late.txt" } }] },
            { "say": "I wait." },
        ],
        "mail": [
            { "call": [write("late.txt"), { "tool": "task_update", "input": {
                "task_id": 1, "status": "completed", "result": "written" } }] },
        ],
    });
    workspace.write("script.json", &script.to_string());
    workspace.write("plan.md", "## Write\n");
    workspace.write(
        "brigade.toml",
        "[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"m1\"\nplan_first = true\n\
         provider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    let mut run = workspace.start(&["run", "crew"]);
    let plan = wait_for_request(&workspace, "plan", &mut run);
    assert_eq!(plan["plan"], "write late.txt");
    wait_until("the request is shown", || workspace.run(&["team"]).out.contains("a person (plan "));
    assert!(!workspace.join("early.txt").exists());
    assert_eq!(workspace.run(&["plan", "approve"]).code, Some(0));
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert_eq!(fs::read_to_string(workspace.join("late.txt")).unwrap(), "x\n");
    assert!(!workspace.join("early.txt").exists());
}

/// A turn of the lead that asks the person by mail.
fn asks_person() -> Value {
    json!({ "call": [{ "tool": "send_message", "input": { "to": "human", "content": "Which database?" } }] })
}

#[test]
fn run_is_unfinished_if_lead_asks_in_place_of_plan() {
    let team = "durability = \"process\"\n[teams.crew]\ngoal = \"Move it\"\n[teams.crew.lead]\nprovider = \"scripted\"\n\
                model = \"lead.json\"\n[[teams.crew.members]]\nname = \"ada\"\nprovider = \"runbook\"\n";
    let mail_then_text = json!([asks_person(), { "say": "I wait." }]);
    for (goal, exit) in [
        (mail_then_text, 1),
        (json!([{ "say": "I see two.\nWhich database?" }]), 1),
        (json!([{ "say": "It is moved already." }]), 0),
    ] {
        let workspace = TestWorkspace::new();
        workspace.write("brigade.toml", team);
        workspace.write("lead.json", &json!({ "goal": goal }).to_string());
        let run = workspace.run(&["run"]);
        assert_eq!(run.code, Some(exit), "{run:?}");
        let hint = "The lead waits for your answer: `brigade send lead TEXT`";
        assert_eq!(run.out.contains(hint), exit == 1, "{run:?}");
    }
}

#[test]
fn lead_question_is_shown_with_answer_command() {
    let workspace = TestWorkspace::new();
    let script = |first: Value| json!({ "goal": [first, { "say": "I wait." }], "mail": [{ "say": "I take it." }] });
    let team = "[teams.crew]\ngoal = \"Move it\"\n[teams.crew.lead]\nprovider = \"scripted\"\nmodel = \"lead.json\"\n\
                [[teams.crew.members]]\nname = \"ada\"\nprovider = \"runbook\"\n";
    workspace.write("brigade.toml", &format!("durability = \"process\"\n{team}"));
    for first in [asks_person(), json!({ "say": "I see two. Which database?" })] {
        let has_mail = first["say"].is_null();
        let mut script = script(first);
        if !has_mail {
            script["goal"].as_array_mut().unwrap().pop();
            script["report"] = script["goal"].clone();
        }
        workspace.write("lead.json", &script.to_string());
        let mut up = workspace.start(&["up", "--headless"]);
        let mut team_answer = workspace.run(&["team"]);
        wait_until("the notice is printed", || {
            team_answer = workspace.run(&["team"]);
            assert!(!up.has_ended(), "{}", up.output_so_far());
            team_answer.out.contains("a person:") && team_answer.out.contains("Which database?")
        });
        assert!(team_answer.err.contains("(`brigade send lead TEXT` answers)"), "{team_answer:?}");
        let lead = &workspace.json(&["team"])["lead"];
        assert_eq!((&lead["name"], &lead["phase"]), (&"lead".into(), &"idle".into()), "{lead}");
        assert_eq!(workspace.state()["lead"]["phase"], "idle");
        if has_mail {
            // Reading a question does not answer it.
            assert!(workspace.run(&["inbox", "--take"]).out.contains("Which database?"));
            let read = workspace.run(&["inbox"]).err;
            assert!(read.contains("(`brigade send lead TEXT` answers)") && !read.contains("no mail"), "{read}");
            assert_eq!(workspace.run(&["send", "lead", "the old one"]).code, Some(0));
            wait_until("the question is answered", || {
                let team_answer = workspace.run(&["team"]);
                !team_answer.out.contains("a person:") && !team_answer.err.contains("brigade send lead")
            });
            let made = workspace.json(&["log", "--kind", "request_made"])[0].clone();
            assert_eq!((&made["from"], &made["text"]), (&json!("lead"), &json!("Which database?")));
            let told_once = ["request_made", "request_answered"].map(|kind| json!([kind, "question", made["request"]]));
            wait_until("the answer is in the log", || workspace.request_events() == told_once);
        }
        up.signal("INT");
        up.code();
        std::fs::remove_dir_all(workspace.join(".team")).unwrap();
    }
}

#[test]
fn command_completion_needs_review() {
    let workspace = TestWorkspace::new();
    workspace.write_team(1, "review = \"human\"");
    workspace.run(&["tasks", "add", "One", "--verify", "echo it is there"]);
    let claimed = workspace.run(&["tasks", "claim", "1", "--as", "carol"]);
    assert_eq!(claimed.code, Some(0), "{claimed:?}");
    let complete =
        || workspace.run(&["tasks", "complete", "1", "--as", "carol", "--attempt", "1", "--summary", "done"]);
    let waits = complete();
    assert!(waits.code == Some(1) && waits.err.contains("waits for review"), "{waits:?}");
    assert_eq!(complete().err, waits.err, "one review for the same work");
    workspace.run(&["review", "reject", "--feedback", "it needs two lines"]);
    let again = complete();
    assert!(again.err.contains("waits for review") && again.err.contains("it needs two lines"), "{again:?}");
    let approved = workspace.run(&["review", "approve"]);
    assert!(approved.out.contains("carol has no inbox"), "{approved:?}");
    let done = complete();
    assert_eq!(done.code, Some(0), "{done:?}");
    let result = &workspace.task(1)["result"];
    assert_eq!((&result["reviewedBy"], &result["evidence"]), (&json!("human"), &json!("verify exited 0")), "{result}");
}
