//! The size of a first request: what a member reads before its first word.

use brigade::ports::{ModelRequest, ToolSpec};

use super::harness::{TestTeam, block_text, diligent, say};

/// Bytes of text for each token, as a server counted them in such requests.
const BYTES_PER_TOKEN: usize = 3;

/// The parts of a request, in bytes as they are sent.
struct Size {
    tools: usize,
    system: usize,
    first_message: usize,
}

impl Size {
    fn of(request: &ModelRequest) -> Self {
        let is_own = |tool: &&ToolSpec| !["nap", "fail", "boom"].contains(&tool.name.as_str());
        let sent = |tool: &ToolSpec| {
            let ToolSpec { name, description, input_schema } = tool;
            let tool = serde_json::json!({"name": name, "description": description, "input_schema": input_schema});
            tool.to_string().len() + 1
        };
        Self {
            tools: request.tools.iter().filter(is_own).map(sent).sum(),
            system: request.system.len(),
            first_message: request.messages[0].content.iter().map(|block| block_text(block).len()).sum(),
        }
    }

    fn total(&self) -> usize {
        self.tools + self.system + self.first_message
    }
}

/// `cargo test --test engine team::first_requests -- --nocapture` prints the sizes.
#[tokio::test(start_paused = true)]
async fn first_requests_are_short() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.set_model_fn("lead", |_, _| async { say("Planned.") });
    harness.set_model_fn("alice", |request, _| async move { diligent(&request) });
    harness.diligent(&["bob"]);
    harness.spec.goal = Some("Count the lines.".to_owned());
    harness.tasks(&["a"]).await;
    harness.open_inboxes().await;
    harness.mail("human", "alice", "hello").await;
    harness.run_once().await;
    for (who, bytes_max) in [("lead", 8_700), ("alice", 7_000)] {
        let size = Size::of(&harness.sent_by(who)[0].request);
        let Size { tools, system, first_message } = size;
        let (total, tokens) = (size.total(), size.total() / BYTES_PER_TOKEN);
        eprintln!(
            "{who}: {total} bytes, about {tokens} tokens (tools {tools}, system prompt {system}, first message {first_message})"
        );
        assert!(total <= bytes_max, "{who}: {total} bytes, at most {bytes_max}");
    }
}
