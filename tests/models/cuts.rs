//! Servers and gateways that cut a request or an answer and report success. Nothing of such an answer is run.

use std::sync::atomic::{AtomicUsize, Ordering};

use brigade::domain::team::team_spec::{ApiKind, ModelSpec};
use brigade::ports::{ModelClient, ModelError, ModelResponse, StopReason};
use brigade::providers::provider;
use serde_json::{Value, json};

use super::answers::request;
use super::team::{both, logged, run, statuses};
use crate::testkit::model_server::{
    Part, ReceivedRequest, Reply, Server, call, events_with_usage, full_response, streamed,
};
use crate::testkit::workspace::TestWorkspace;

const APIS: [ApiKind; 3] = [ApiKind::Messages, ApiKind::Chat, ApiKind::Responses];
/// The arguments of a call that a gateway cut.
const CUT: &str = "{\"command\": \"touch never.txt";
const PROSE: &str = "The member reads the whole file and then writes a short answer to the lead.\n";

/// The end of an answer.
#[derive(Debug, Clone, Copy)]
enum End {
    Normal,
    Length,
    Filter,
}

/// An answer with a call of the tool `bash` or another part, in any API.
struct Answer {
    part: Option<Part>,
    end: End,
    /// The reported tokens of the prompt and of the answer.
    usage: (u64, u64),
}

impl Answer {
    fn of(part: Part, input_tokens: u64) -> Self {
        Self { part: Some(part), end: End::Normal, usage: (input_tokens, 20) }
    }

    fn json(&self, api: ApiKind) -> Value {
        let (input, output) = self.usage;
        let usage = json!({"input_tokens": input, "output_tokens": output});
        match api {
            ApiKind::Messages => {
                let block = |part: &Part| match part {
                    Part::Text(text) => json!({"type": "text", "text": text}),
                    Part::Call(id, name, arguments) => {
                        let input = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
                        json!({"type": "tool_use", "id": id, "name": name, "input": input})
                    }
                };
                let content: Vec<Value> = self.part.iter().map(block).collect();
                json!({"type": "message", "content": content, "stop_reason": self.stop(api), "usage": usage})
            }
            ApiKind::Chat => {
                let message = match &self.part {
                    None => json!({"content": null}),
                    Some(Part::Text(text)) => json!({"content": text}),
                    Some(Part::Call(id, name, arguments)) => {
                        let function = json!({"name": name, "arguments": arguments});
                        json!({"tool_calls": [{"index": 0, "id": id, "function": function}]})
                    }
                };
                let usage = json!({"prompt_tokens": input, "completion_tokens": output});
                json!({"choices": [{"message": message, "finish_reason": self.stop(api)}], "usage": usage})
            }
            ApiKind::Responses => {
                let item = |part: &Part| match part {
                    Part::Text(text) => {
                        json!({"type": "message", "content": [{"type": "output_text", "text": text}]})
                    }
                    Part::Call(id, name, arguments) => {
                        json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
                    }
                };
                let output: Vec<Value> = self.part.iter().map(item).collect();
                let status = if matches!(self.end, End::Normal) { "completed" } else { "incomplete" };
                json!({"object": "response", "status": status, "output": output, "usage": usage,
                    "incomplete_details": {"reason": self.stop(api)}})
            }
        }
    }

    fn stop(&self, api: ApiKind) -> &'static str {
        match (api, self.end) {
            (ApiKind::Messages, End::Normal) => "tool_use",
            (ApiKind::Messages, End::Length) => "max_tokens",
            (ApiKind::Messages, End::Filter) => "refusal",
            (ApiKind::Chat, End::Normal) => "stop",
            (ApiKind::Chat, End::Length) => "length",
            (ApiKind::Responses, End::Length) => "max_output_tokens",
            (_, End::Filter) => "content_filter",
            (ApiKind::Responses, End::Normal) => "",
        }
    }

    /// The events of the answer, and those that end it.
    fn events(&self, api: ApiKind) -> (String, String) {
        let whole = self.json(api);
        let data = |value: Value| format!("data: {value}\n\n");
        match api {
            ApiKind::Messages => {
                let parts: Vec<Part> = self.part.iter().cloned().collect();
                let events = events_with_usage(&parts, self.stop(api), &whole["usage"]);
                let (begin, end) = events.split_at(events.find("event: message_delta").unwrap());
                (begin.to_owned(), end.to_owned())
            }
            ApiKind::Chat => {
                let choice = &whole["choices"][0];
                let begin = data(json!({"choices": [{"delta": choice["message"]}]}));
                let end = json!({"choices": [{"delta": {}, "finish_reason": choice["finish_reason"]}]});
                (begin, data(end) + &data(json!({"choices": [], "usage": whole["usage"]})) + "data: [DONE]\n\n")
            }
            ApiKind::Responses => {
                let done = |item: &Value| data(json!({"type": "response.output_item.done", "item": item}));
                let begin = whole["output"].as_array().unwrap().iter().map(done).collect();
                let kind = format!("response.{}", whole["status"].as_str().unwrap());
                (begin, data(json!({"type": kind, "response": whole})))
            }
        }
    }

    fn reply(&self, api: ApiKind, is_streamed: bool) -> Reply {
        if is_streamed {
            let (begin, end) = self.events(api);
            return streamed(&(begin + &end), 64);
        }
        json_reply(&self.json(api).to_string())
    }
}

fn json_reply(body: &str) -> Reply {
    full_response(200, "content-type: application/json\r\n", body)
}

fn bash(arguments: &str) -> Part {
    Part::Call("c1".to_owned(), "bash".to_owned(), arguments.to_owned())
}

fn shell(number: usize, command: &str) -> Part {
    call(&format!("c{number}"), "bash", json!({"command": command}))
}

fn completed(number: usize) -> Part {
    call(&format!("c{number}"), "task_update", json!({"task_id": 1, "status": "completed", "result": "done"}))
}

async fn ask(api: ApiKind, reply: Reply) -> Result<ModelResponse, ModelError> {
    let server = Server::start(move |_, _| reply.clone()).await;
    let spec =
        ModelSpec { api: Some(api), base_url: Some(server.url.clone()), ..ModelSpec::new("openai-compatible", "m") };
    let service = provider("openai-compatible").unwrap().service.as_ref().unwrap();
    service.model(&spec, &|_| None).unwrap().request(request(), &()).await
}

/// The tokens of a request, as a server counts them.
fn size(request: &ReceivedRequest) -> u64 {
    request.body.to_string().len() as u64 / 4
}

/// A workspace with one task for one member of this provider.
fn workspace(url: &str, provider: &str, more: &str, task: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    let member = format!("name = \"alice\"\nprovider = \"{provider}\"\nmodel = \"m-1\"\nbase_url = \"{url}\"\n{more}");
    let team = "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\nlead = { provider = \"runbook\" }";
    workspace.write("brigade.toml", &format!("{team}\n[[teams.crew.members]]\n{member}\n"));
    workspace.write("plan.md", &format!("## One\n{task}\n"));
    workspace
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn cut_answer_is_known_in_every_api_and_form() {
    for (api, is_streamed) in APIS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let facts = format!("{}, streamed: {is_streamed}", api.as_str());
        let answer = |arguments, end| Answer { part: Some(bash(arguments)), end, usage: (9, 3) };
        let hidden = ask(api, answer(CUT, End::Normal).reply(api, is_streamed)).await;
        let is_cut = |message: &str| message.contains("a call has incomplete arguments, so the answer was cut");
        assert!(matches!(&hidden, Err(ModelError::InvalidAnswer(message)) if is_cut(message)), "{facts}: {hidden:?}");
        for (end, stop) in [(End::Length, StopReason::MaxTokens), (End::Filter, StopReason::Refusal)] {
            for arguments in [CUT, "{\"command\": \"true\"}"] {
                let cut = ask(api, answer(arguments, end).reply(api, is_streamed)).await.unwrap();
                assert_eq!((&cut.stop, cut.content.len()), (&stop, 1), "{facts}: {cut:?}");
            }
        }
        let whole = answer("{\"command\": \"true\"}", End::Normal);
        let cut = if is_streamed {
            streamed(&whole.events(api).0, 64)
        } else {
            let body = whole.json(api).to_string();
            json_reply(&body[..body.len() - 2])
        };
        let cut = ask(api, cut).await;
        assert!(matches!(cut, Err(ModelError::Temporary { .. })), "{facts}: {cut:?}");
        let answer = ask(api, whole.reply(api, is_streamed)).await.unwrap();
        assert_eq!((answer.stop, answer.content.len()), (StopReason::ToolUse, 1), "{facts}");
        assert_eq!(answer.usage.unwrap().total(), 12, "{facts}");
    }
}

#[tokio::test]
async fn hidden_cut_is_asked_again() {
    for (api, is_streamed) in APIS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let server = Server::start(move |request, number| {
            let part = match number {
                0 => bash(CUT),
                1 => shell(1, "touch done.txt"),
                _ => completed(number),
            };
            Answer::of(part, size(request)).reply(api, is_streamed)
        })
        .await;
        let more = format!("api = \"{}\"", api.as_str());
        let workspace = workspace(&server.url, "openai-compatible", &more, "Do it.");
        let output = run(&workspace, &["run", "crew"], &[]).await;
        assert_eq!(output.status.code(), Some(0), "{more}: {}", both(&output));
        assert_eq!(statuses(&workspace), ["completed"]);
        assert!(workspace.join("done.txt").exists() && !workspace.join("never.txt").exists());
        let retried = logged(&workspace, "model_retried");
        assert!(
            retried.len() == 1 && retried[0]["reason"].as_str().unwrap().contains("the answer was cut"),
            "{retried:?}"
        );
        let requests = server.requests();
        assert_eq!((requests.len(), &requests[0].body), (3, &requests[1].body), "it is the same request");
        let reported: u64 = requests.iter().map(|request| size(request) + 20).sum();
        let counted = workspace.json(&["cost"])["tokens"].as_u64().unwrap();
        assert!(counted >= reported, "the cut answer counts: {counted} of {reported}");
    }
}

#[tokio::test]
async fn repeated_hidden_cut_ends_in_clear_error() {
    for api in APIS {
        let server = Server::start(move |request, _| Answer::of(bash(CUT), size(request)).reply(api, true)).await;
        let more = format!("api = \"{}\"", api.as_str());
        let workspace = workspace(&server.url, "openai-compatible", &more, "Do it.");
        let output = run(&workspace, &["run", "crew"], &[("BRIGADE_MODEL_RETRIES_MAX", "1")]).await;
        let printed = words(&both(&output));
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains("a call has incomplete arguments, so the answer was cut"), "{printed}");
        assert_eq!(statuses(&workspace), ["failed"], "it is no outage");
        assert!(!workspace.join("never.txt").exists());
        let requests = server.requests();
        assert_eq!(requests.len(), 6, "three attempts, each with one retry");
        let counted = workspace.json(&["cost"])["tokens"].as_u64().unwrap();
        assert!(counted >= requests.iter().map(size).sum(), "{counted}");
    }
}

/// Runs a team whose server is not to be trusted. Its member stops, and nothing of the last answer is run. Returns the printed text.
async fn stopped_run(server: &Server, provider: &str, task: &str) -> String {
    let workspace = workspace(&server.url, provider, "", task);
    workspace.write("big.txt", &PROSE.repeat(250));
    workspace.write("part.txt", &PROSE.repeat(80));
    let output = run(&workspace, &["run", "crew"], &[]).await;
    let printed = words(&both(&output));
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(!workspace.join("never.txt").exists(), "{printed}");
    let tasks = workspace.tasks();
    assert!(tasks[0]["status"] == "pending" && tasks[0]["failures"].as_u64().unwrap_or(0) == 0, "{tasks:?}");
    assert!(printed.contains("no work is lost: correct the setting"), "{printed}");
    printed
}

/// Ollama with its default window reads half of it, and answers as if that were the request.
#[tokio::test]
async fn cut_request_stops_member_with_remedy() {
    for (provider, remedy) in [
        ("ollama", "start it with `OLLAMA_CONTEXT_LENGTH=32768 ollama serve`, or set `num_ctx` in a Modelfile"),
        ("lmstudio", "`lms load MODEL --context-length 32768`"),
        ("openai-compatible", "or set `context_window_tokens` of the member to the real one"),
    ] {
        let server = Server::start(|request, number| {
            let tokens = if size(request) > 4_096 { 2_050 } else { size(request) };
            Answer::of(shell(number, "touch never.txt"), tokens).reply(ApiKind::Chat, true)
        })
        .await;
        let printed = stopped_run(&server, provider, &PROSE.repeat(250)).await;
        let sent = size(&server.requests()[0]);
        let error = format!("cannot use the answer of m-1 of {provider}: its server read 2050 of about ");
        let (_, rest) = printed.split_once(&error).expect(&printed);
        let estimate: u64 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!((sent / 2..sent * 2).contains(&estimate), "{estimate} of {sent}");
        assert!(rest.contains("prompt tokens, so the context window is too small. hint: "), "{printed}");
        assert!(rest.contains(remedy), "{printed}");
        assert_eq!(server.requests().len(), 1, "it is not asked again");
    }
}

#[tokio::test]
async fn request_that_outgrows_window_stops_member() {
    let server = Server::start(|request, number| {
        let part = shell(number, if number == 0 { "cat big.txt" } else { "touch never.txt" });
        let tokens = if size(request) > 4_096 { 2_051 } else { size(request) };
        Answer::of(part, tokens).reply(ApiKind::Chat, true)
    })
    .await;
    let printed = stopped_run(&server, "ollama", "Do it.").await;
    assert!(printed.contains("its server read 2051 of about "), "{printed}");
    assert_eq!(server.requests().len(), 2);
}

/// The reports stay below a window, while the requests grow.
#[tokio::test]
async fn flat_reports_of_growing_requests_stop_member() {
    let server = Server::start(|request, number| {
        let part = shell(number, &format!("cat part.txt; echo {number}"));
        Answer::of(part, size(request).min(3_300 + number as u64)).reply(ApiKind::Chat, true)
    })
    .await;
    let printed = stopped_run(&server, "lmstudio", "Do it.").await;
    assert!(printed.contains(" prompt tokens, so the context window is too small. hint: `lms load"), "{printed}");
    assert!((3..8).contains(&server.requests().len()), "{} requests", server.requests().len());
}

/// An empty answer at the length limit reports a full context window. If that is large enough, the context is compacted.
#[tokio::test]
async fn full_window_is_compacted() {
    let number = AtomicUsize::new(0);
    let server = Server::start(move |request, _| {
        let is_summary = request.body["messages"].to_string().contains("Your conversation has become too long");
        let part = match number.fetch_add(1, Ordering::SeqCst) {
            0 => shell(0, "cat big.txt"),
            1 => return Answer { part: None, end: End::Length, usage: (20_000, 0) }.reply(ApiKind::Chat, true),
            2 if is_summary => Part::Text("SUMMARY".to_owned()),
            3 => shell(3, "touch done.txt"),
            number => completed(number),
        };
        Answer::of(part, size(request)).reply(ApiKind::Chat, true)
    })
    .await;
    let workspace = workspace(&server.url, "openai-compatible", "", "Do it.");
    workspace.write("big.txt", &PROSE.repeat(300));
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert!(workspace.join("done.txt").exists());
    assert_eq!(logged(&workspace, "compacted").len(), 1);
    let printed = words(&both(&output));
    let warning =
        "cannot use the answer of m-1 of openai-compatible: 20000 prompt tokens fill its context window. hint: ";
    assert!(printed.contains(warning), "{printed}");
    // Answers are a quarter of the window that the server showed.
    assert_eq!(server.requests()[3].body["max_tokens"], 5_000);
}
