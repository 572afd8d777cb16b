//! Budgets of real teams, whose servers count tokens at any rate, and report them or something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use serde_json::{Value, json};

use super::team::{both, run, workspace};
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
    counted: AtomicU64,
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
        self.counted.fetch_add(input + output, Ordering::SeqCst);
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
        if rng.u8(..) < 12 {
            let torn = &events.as_bytes()[..events.len() * 2 / 3];
            return vec![head(), ServerAction::Send(chunk(torn)), ServerAction::Close];
        }
        streamed(&events, 4_096)
    }
}

/// A team that works until its budget of this many tokens is spent, or all tasks are done.
fn team(url: &str, tokens: u64) -> TestWorkspace {
    let limits = "limits = { output_tokens_max = 300, compact_at_tokens = 20000, model_retries_max = 3 }";
    let more = format!("plan = \"plan.md\"\nask = true\nbudget = {{ tokens = {tokens} }}\n{limits}");
    let workspace = workspace(url, &["alice", "bob", "carol"], &more);
    let config = workspace.read("brigade.toml");
    let lead = config.lines().find(|line| line.starts_with("lead = ")).unwrap();
    let member = format!("provider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"{url}\"\nrole = \"coder\"");
    let config = config.replace(lead, "lead = { provider = \"runbook\" }").replace("role = \"coder\"", &member);
    workspace.write("brigade.toml", &config);
    workspace.write("plan.md", "## One\n\n## Two\n\n## Three\n\n## Four\n\n## Five\n");
    workspace
}

#[tokio::main(flavor = "current_thread")]
async fn check_run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let report = REPORTS[usize::try_from(seed).unwrap() % REPORTS.len()];
    let tokens_per_byte = [1.0, rng.f64(), rng.f64() / 4.0][rng.usize(..3)];
    let meter = Arc::new(Meter { tokens_per_byte, report, counted: AtomicU64::new(0) });
    let budget = rng.u64(60_000..400_000);
    let counter = Arc::clone(&meter);
    let server = Server::start(move |request, number| {
        counter.reply(request, number, &mut Rng::with_seed(seed ^ (number as u64) << 32))
    })
    .await;
    let workspace = team(&server.url, budget);
    let output = run(&workspace, &["run", "crew"], &[]).await;
    let counted = meter.counted.load(Ordering::SeqCst);
    let facts = format!("seed {seed}: {tokens_per_byte} tokens a byte, reported as {report:?}, {counted} of {budget}");
    assert!(counted <= budget, "{facts}\n{}", both(&output));
    assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{facts}\n{}", both(&output));
    let cost = workspace.json(&["cost"]);
    assert_eq!(cost["open_requests"], 0, "{facts}");
    let recorded = cost["tokens"].as_u64().unwrap();
    assert!((counted..=budget).contains(&recorded), "{facts}, {recorded} recorded");
}

/// The servers count at most one token a byte. `BRIGADE_CHAOS_SEED` and `BRIGADE_CHAOS_COUNT` choose the runs.
#[test]
fn counted_tokens_never_exceed_budget() {
    run_in_threads(3, seeds("BRIGADE_CHAOS_SEED", "BRIGADE_CHAOS_COUNT", 12), check_run);
}

/// A server that counts nothing, or reports that, is found out: its requests count by their bytes, and one warning says so.
#[tokio::test]
async fn usage_below_text_counts_as_maximum() {
    for (report, has_warning) in [(Report::Zero, true), (Report::One, true), (Report::Nothing, false)] {
        let meter = Meter { tokens_per_byte: 0.25, report, counted: AtomicU64::new(0) };
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
