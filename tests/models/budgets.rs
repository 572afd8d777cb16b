//! Budgets of real teams, whose servers count tokens at any rate, and report them or something else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use serde_json::{Value, json};

use super::team::{both, run, sender_of, task_at_hand, workspace};
use crate::testkit::lock;
use crate::testkit::model_server::{
    Part, ReceivedRequest, Reply, Server, ServerAction, call, chunk, error_reply, events_with_usage, head, streamed,
    text,
};
use crate::testkit::seeds::{run_in_threads, seeds};
use crate::testkit::workspace::TestWorkspace;

/// The usage that a server reports.
#[derive(Debug, Clone, Copy)]
enum Report {
    Counted,
    Zero,
    One,
    Absurd,
    Negative,
    Nothing,
}

const REPORTS: [Report; 6] =
    [Report::Counted, Report::Zero, Report::One, Report::Absurd, Report::Negative, Report::Nothing];

impl Report {
    fn usage(self, input: u64, output: u64) -> Value {
        match self {
            Self::Counted => json!({"input_tokens": input, "output_tokens": output}),
            Self::Zero => json!({"input_tokens": 0, "output_tokens": 0}),
            Self::One => json!({"input_tokens": 1, "cache_read_input_tokens": 0, "output_tokens": 1}),
            Self::Absurd => json!({"input_tokens": 1_000_000_000_000_000_000_u64, "output_tokens": 7}),
            Self::Negative => json!({"input_tokens": -5, "output_tokens": -1}),
            Self::Nothing => Value::Null,
        }
    }
}

/// A server that counts this many tokens for each byte that it gets or sends.
struct Meter {
    tokens_per_byte: f64,
    report: Report,
    counted: Mutex<Counted>,
}

/// The tokens that a server counted.
#[derive(Debug, Clone, Default)]
struct Counted {
    all: u64,
    by_member: BTreeMap<String, u64>,
    by_task: BTreeMap<u64, u64>,
    /// The task that each member works on. The requests of its sub-agents do not name it.
    tasks: BTreeMap<String, u64>,
}

impl Counted {
    fn add(&mut self, request: &ReceivedRequest, tokens: u64) {
        let member = sender_of(request);
        if let Some(task) = task_at_hand(request) {
            self.tasks.insert(member.clone(), task);
        }
        self.all += tokens;
        if let Some(task) = self.tasks.get(&member) {
            *self.by_task.entry(*task).or_default() += tokens;
        }
        *self.by_member.entry(member).or_default() += tokens;
    }
}

impl Meter {
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a count")]
    fn count(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.tokens_per_byte) as u64
    }

    /// Counts a request and its answer, and returns the events of the answer.
    fn answer(&self, request: &ReceivedRequest, parts: &[Part]) -> String {
        let bytes = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Call(_, tool, input) => tool.len() + input.len(),
        };
        let input = self.count(request.body.to_string().len());
        let output_max = request.body["max_tokens"].as_u64().unwrap();
        let output = self.count(parts.iter().map(bytes).sum()).clamp(1, output_max);
        lock(&self.counted).add(request, input + output);
        let stop = if parts.iter().any(|part| matches!(part, Part::Call(..))) { "tool_use" } else { "end_turn" };
        events_with_usage(parts, stop, &self.report.usage(input, output))
    }

    fn reply(&self, request: &ReceivedRequest, number: usize, rng: &mut Rng) -> Reply {
        let id = format!("id-{number}");
        let command = |command: String| call(&id, "bash", json!({"command": command}));
        if rng.u8(..) < 12 {
            return error_reply(529, "retry-after: 0\r\n", "overloaded_error", "slow down");
        }
        let parts = match rng.u8(..10) {
            _ if request.body["messages"].to_string().contains("has become too long") => vec![text("Nothing is done.")],
            0 => vec![text("Nothing to say.")],
            1 => vec![call(&id, "ask", json!({"question": "What is in this folder?"}))],
            2..7 => vec![command(format!("head -c {} /dev/zero | tr '\\0' 7", rng.usize(..9_000)))],
            _ => vec![text(&"All of this is an answer. ".repeat(rng.usize(..30))), command("echo done".into())],
        };
        let events = self.answer(request, &parts);
        if number > 9 && rng.u8(..) < 12 {
            return vec![ServerAction::Close];
        }
        if rng.u8(..) < 12 {
            let torn = &events.as_bytes()[..events.len() * 2 / 3];
            return vec![head(), ServerAction::Send(chunk(torn)), ServerAction::Close];
        }
        streamed(&events, 4_096)
    }
}

/// The caps of a team, in tokens.
#[derive(Debug, Clone, Default)]
struct Caps {
    team: u64,
    members: BTreeMap<&'static str, u64>,
    /// The cap of each task without one of its own.
    task: Option<u64>,
    tasks: BTreeMap<u64, u64>,
}

impl Caps {
    fn any(rng: &mut Rng) -> Self {
        let members = ["alice", "bob"].into_iter().filter(|_| rng.bool()).collect::<Vec<_>>();
        let tasks = [2, 4].into_iter().filter(|_| rng.bool()).collect::<Vec<_>>();
        Self {
            team: rng.u64(60_000..600_000),
            members: members.into_iter().map(|name| (name, rng.u64(20_000..150_000))).collect(),
            task: rng.bool().then(|| rng.u64(20_000..100_000)),
            tasks: tasks.into_iter().map(|task| (task, rng.u64(20_000..100_000))).collect(),
        }
    }

    /// Asserts that no cap was passed, by the server's count and by the ledger's. The ledger counts no less than the server.
    fn check(&self, counted: &Counted, cost: &Value, facts: &str) {
        let recorded = cost["tokens"].as_u64().unwrap();
        assert!((counted.all..=self.team).contains(&recorded), "{facts}, {recorded} recorded");
        for (name, counted) in &counted.by_member {
            let accounts = cost["accounts"].as_array().unwrap().iter().filter(|account| account["teammate"] == **name);
            let kinds = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"];
            let tokens = |account: &Value| kinds.iter().filter_map(|kind| account[kind].as_u64()).sum::<u64>();
            let recorded: u64 = accounts.map(tokens).sum();
            let cap = self.members.get(name.as_str()).copied().unwrap_or(self.team);
            assert!((*counted..=cap).contains(&recorded), "{facts}: {name}, {recorded} recorded");
        }
        for (task, counted) in &counted.by_task {
            let row = cost["tasks"].as_array().unwrap().iter().find(|row| row["task"] == *task);
            let recorded = row.map_or(0, |row| row["tokens"].as_u64().unwrap());
            let cap = self.tasks.get(task).copied().or(self.task).unwrap_or(self.team);
            assert!((*counted..=cap).contains(&recorded), "{facts}: #{task}, {recorded} recorded");
        }
    }
}

/// A team that works until its budget of this many tokens is spent, or all tasks are done.
fn team(url: &str, tokens: u64) -> TestWorkspace {
    team_with(url, &Caps { team: tokens, ..Caps::default() })
}

/// A team that works until it has reached its caps, or all tasks are done.
fn team_with(url: &str, caps: &Caps) -> TestWorkspace {
    let tokens = caps.team;
    let of_task = caps.task.map(|tokens| format!(", task_tokens_max = {tokens}")).unwrap_or_default();
    let limits = "output_tokens_max = 300, compact_at_tokens = 20000, model_retries_max = 3";
    let limits = format!("limits = {{ {limits}{of_task} }}");
    let more = format!("plan = \"plan.md\"\nask = true\nbudget = {{ tokens = {tokens} }}\n{limits}");
    let workspace = workspace(url, &["alice", "bob", "carol"], &more);
    let config = workspace.read("brigade.toml");
    let lead = config.lines().find(|line| line.starts_with("lead = ")).unwrap();
    let member = format!("provider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"{url}\"\nrole = \"coder\"");
    let mut config = config.replace(lead, "lead = { provider = \"runbook\" }").replace("role = \"coder\"", &member);
    for (name, tokens) in &caps.members {
        let name = format!("name = \"{name}\"\n");
        config = config.replace(&name, &format!("{name}budget = {{ tokens = {tokens} }}\n"));
    }
    workspace.write("brigade.toml", &config);
    let section = |task: u64| {
        let cap = caps.tasks.get(&task).map(|tokens| format!("task_tokens_max: {tokens}\n")).unwrap_or_default();
        format!("## Task {task}\n{cap}\n")
    };
    workspace.write("plan.md", &(1..=5).map(section).collect::<String>());
    workspace
}

#[tokio::main(flavor = "current_thread")]
async fn check_run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let report = REPORTS[usize::try_from(seed).unwrap() % REPORTS.len()];
    let tokens_per_byte = [1.0, rng.f64(), rng.f64() / 4.0][rng.usize(..3)];
    let meter = Arc::new(Meter { tokens_per_byte, report, counted: Mutex::default() });
    let caps = Caps::any(&mut rng);
    let counter = Arc::clone(&meter);
    let server = Server::start(move |request, number| {
        counter.reply(request, number, &mut Rng::with_seed(seed ^ (number as u64) << 32))
    })
    .await;
    let workspace = team_with(&server.url, &caps);
    // The second launch knows the usage of the first one.
    for launch in 1..=2 {
        let output = run(&workspace, &["run", "crew"], &[]).await;
        let counted = lock(&meter.counted).clone();
        let facts = format!(
            "seed {seed}, launch {launch}: {tokens_per_byte} tokens a byte, reported as {report:?}, {counted:?} of {caps:?}"
        );
        // A server that counts very few tokens looks like one with a too small context window, which is a wrong setting.
        let has_cut = both(&output).contains("its server read");
        let is_expected =
            matches!(output.status.code(), Some(0 | 1 | 3)) || (has_cut && output.status.code() == Some(2));
        assert!(is_expected, "{facts}\n{}", both(&output));
        let cost = workspace.json(&["cost"]);
        assert_eq!(cost["open_requests"], 0, "{facts}");
        caps.check(&counted, &cost, &facts);
        let at_cap = |task: &Value| task["capReached"].is_object();
        let tasks = workspace.tasks();
        assert!(tasks.iter().filter(|task| at_cap(task)).all(|task| task["status"] == "pending"), "{facts}: {tasks:?}");
    }
}

/// The servers count at most one token a byte. No cap is passed: that of the team, of a member, of a task. `BRIGADE_CHAOS_SEED` and `BRIGADE_CHAOS_COUNT` choose the runs.
#[test]
fn counted_tokens_never_exceed_budget() {
    run_in_threads(3, seeds("BRIGADE_CHAOS_SEED", "BRIGADE_CHAOS_COUNT", 12), check_run);
}

/// A server that counts nothing, or reports that, is found out: its requests count by their bytes, and one warning says so.
#[tokio::test]
async fn usage_below_text_counts_as_maximum() {
    for (report, has_warning) in [(Report::Zero, true), (Report::One, true), (Report::Nothing, false)] {
        let meter = Meter { tokens_per_byte: 0.25, report, counted: Mutex::default() };
        let server =
            Server::start(move |request, _| streamed(&meter.answer(request, &[text("I look at it.")]), 4_096)).await;
        let workspace = team(&server.url, 60_000);
        let output = run(&workspace, &["run", "crew"], &[]).await;
        assert_eq!(output.status.code(), Some(3), "{report:?}: {}", both(&output));
        let warnings = workspace.events();
        let warnings = warnings.iter().filter(|event| {
            event["kind"] == "warning" && event["text"].as_str().unwrap().contains("usage lower than expected")
        });
        let mut warned: Vec<&str> = warnings.map(|event| event["about"].as_str().unwrap()).collect();
        let count = warned.len();
        warned.dedup();
        assert_eq!((warned.len(), !warned.is_empty()), (count, has_warning), "{report:?}: {warned:?}");
        let says_none = both(&output).contains("reports no usage; such requests count by their bytes");
        assert_eq!(says_none, matches!(report, Report::Nothing), "{report:?}");
        let doctor = both(&run(&workspace, &["doctor"], &[]).await);
        assert!(doctor.contains("so the budget counts bytes"), "{doctor}");
        let requests = server.requests().len();
        assert!(requests < 10, "{report:?}: {requests} requests under a budget for a few");
    }
}
