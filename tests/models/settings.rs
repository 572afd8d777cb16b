//! The settings of requests, on real servers: fields and headers, keys that commands print, and fallbacks.

use std::sync::Mutex;

use brigade::domain::team::model_spec::{
    ApiKind, CompatSpec, Effort, InstructionRole, ModelSpec, SessionHeader, ToolCalls,
};
use brigade::ports::{Listener, ModelClient, ModelError};
use brigade::providers::exchange::HttpModel;
use brigade::providers::provider;
use serde_json::{Map, Value, json};

use super::answers::{KEY, request};
use super::chat::{chat_answer, diligent};
use super::team::{both, logged, run, statuses};
use crate::testkit::model_server::{Reply, Server, error_reply, full_response, text};
use crate::testkit::process::{Process, eventually, files_below};
use crate::testkit::workspace::TestWorkspace;

fn chat_client(spec: ModelSpec, key: &str) -> Result<HttpModel, String> {
    let service = provider("openai-compatible").unwrap().service.as_ref().unwrap();
    service.model(&spec, &|name| (name == "OPENAI_API_KEY").then(|| key.to_owned()))
}

fn spec(server: &Server) -> ModelSpec {
    ModelSpec { base_url: Some(server.url.clone()), ..ModelSpec::new("openai-compatible", "m-1") }
}

#[derive(Default)]
struct Notices(Mutex<Vec<String>>);

impl Listener for Notices {
    fn on_notice(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[tokio::test]
async fn settings_of_member_are_in_its_requests() {
    let server = Server::start(|_, _| chat_answer(&[text("hi")])).await;
    let spec = ModelSpec {
        effort: Some(Effort::Low),
        temperature: Some(0.25),
        headers: [("x-team".to_owned(), "port".to_owned())].into(),
        extra_body: Map::from_iter([("top_p".to_owned(), json!(0.5))]),
        compat: CompatSpec {
            stream_options: Some(false),
            instruction_role: Some(InstructionRole::Developer),
            ..CompatSpec::default()
        },
        ..spec(&server)
    };
    chat_client(spec.clone(), KEY).unwrap().request(request(), &()).await.unwrap();
    let sent = &server.requests()[0];
    assert_eq!((sent.header("x-team"), sent.header("authorization")), (Some("port"), Some(&*format!("bearer {KEY}"))));
    let field = |name: &str| sent.body.get(name).cloned();
    assert_eq!([field("reasoning_effort"), field("temperature")], [Some(json!("low")), Some(json!(0.25))]);
    assert_eq!([field("top_p"), field("stream_options")], [Some(json!(0.5)), None]);
    assert_eq!(sent.body["messages"][0]["role"], "developer");
    let messages = ModelSpec { api: Some(ApiKind::Messages), compat: CompatSpec::default(), ..spec };
    let _ = chat_client(messages, KEY).unwrap().request(request(), &()).await;
    let sent = &server.requests()[1];
    assert!(sent.head.starts_with("post /v1/messages http/1.1"), "{}", sent.head);
    assert_eq!(sent.body["output_config"], json!({ "effort": "low" }));
    assert_eq!(sent.header("anthropic-version"), Some("2023-06-01"));
}

/// The key of a session is in the field and the header of the service that knows them, and in none of others.
#[tokio::test]
async fn session_key_is_sent_to_services_that_know_it() {
    let server = Server::start(|_, _| chat_answer(&[text("hi")])).await;
    for (name, compat, has_field, header) in [
        ("openai", CompatSpec::default(), true, None),
        ("openrouter", CompatSpec::default(), false, Some("x-session-id")),
        ("ollama", CompatSpec::default(), false, None),
        (
            "ollama",
            CompatSpec {
                cache: Some(true),
                session_header: Some(SessionHeader::XSessionAffinity),
                ..Default::default()
            },
            true,
            Some("x-session-affinity"),
        ),
    ] {
        let spec = ModelSpec {
            api: Some(ApiKind::Chat),
            compat,
            base_url: Some(server.url.clone()),
            ..ModelSpec::new(name, "m")
        };
        let client = provider(name).unwrap().service.as_ref().unwrap().model(&spec, &|_| None).unwrap();
        client.request(request(), &()).await.unwrap();
        let requests = server.requests();
        let sent = requests.last().unwrap();
        assert_eq!(sent.body.get("prompt_cache_key").is_some(), has_field, "{name}");
        let headers = ["x-session-id", "x-session-affinity"].into_iter().filter(|header| sent.header(header).is_some());
        assert_eq!(headers.collect::<Vec<_>>(), header.into_iter().collect::<Vec<_>>(), "{name}");
    }
}

#[tokio::test]
async fn key_that_no_header_takes_is_named() {
    let server = Server::start(|_, _| chat_answer(&[text("hi")])).await;
    for key in ["sk-two\nlines-123456789", "sk-schlüssel-123456789", "sk-nul\0-123456789"] {
        let problem = chat_client(spec(&server), key).err().unwrap();
        assert_eq!(problem, "OPENAI_API_KEY has characters that an HTTP header cannot carry");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn redirect_gets_no_key_of_headers() {
    let other = Server::start(|_, _| chat_answer(&[text("stolen")])).await;
    let location = other.url.replace("127.0.0.1", "localhost");
    let server = Server::start(move |_, count| {
        let status = [301, 302, 303, 307, 308][count % 5];
        full_response(status, &format!("location: {location}/v1/chat/completions\r\n"), "")
    })
    .await;
    let headers = [("authorization".to_owned(), format!("Bearer {KEY}"))].into();
    let client = chat_client(ModelSpec { headers, ..spec(&server) }, KEY).unwrap();
    for _ in 0..5 {
        let error = client.request(request(), &()).await.unwrap_err();
        assert!(matches!(error, ModelError::WrongSetting(_)), "{error}");
    }
    assert_eq!((server.requests().len(), other.connections()), (5, 0));
}

#[tokio::test]
async fn refused_field_is_left_out_once_and_reported() {
    let server = Server::start(|request, _| {
        if request.body.get("stream_options").is_some() {
            return error_reply(400, "", "invalid_request_error", "Unknown parameter: 'stream_options'");
        }
        chat_answer(&[text("hi")])
    })
    .await;
    let client = chat_client(spec(&server), KEY).unwrap();
    let notices = Notices::default();
    for _ in 0..2 {
        client.request(request(), &notices).await.unwrap();
    }
    assert_eq!(server.requests().len(), 3, "the second request has no such field");
    let notices = notices.0.into_inner().unwrap();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].ends_with("set compat = { stream_options = false }"), "{notices:?}");
}

/// A setting of the person is not left out silently.
#[tokio::test]
async fn refused_setting_is_an_error_with_advice() {
    let refuse = |_: &_, _| error_reply(400, "", "invalid_request_error", "'reasoning_effort' must be one of 'high'");
    let server = Server::start(refuse).await;
    let client = chat_client(ModelSpec { effort: Some(Effort::Low), ..spec(&server) }, KEY).unwrap();
    let error = client.request(request(), &()).await.unwrap_err();
    assert!(matches!(&error, ModelError::WrongSetting(text) if text.contains("correct `effort`")), "{error}");
    assert_eq!(server.requests().len(), 1);
}

/// Calls in another form would not be what the person asked for, so nothing replaces the schema.
#[tokio::test]
async fn refused_schema_is_an_error_with_advice() {
    let refuse = |_: &_, _| error_reply(400, "", "invalid_request_error", "Unknown parameter: 'response_format'");
    let server = Server::start(refuse).await;
    let spec = ModelSpec { tool_calls: ToolCalls::Json, ..spec(&server) };
    let error = chat_client(spec.clone(), KEY).unwrap().request(request(), &()).await.unwrap_err();
    assert!(matches!(&error, ModelError::WrongSetting(text) if text.contains("remove `tool_calls`")), "{error}");
    assert_eq!(server.requests().len(), 1);
    for api in [ApiKind::Messages, ApiKind::Responses] {
        let problem = chat_client(ModelSpec { api: Some(api), ..spec.clone() }, KEY).err().unwrap();
        assert_eq!(problem, format!("`tool_calls` = \"json\" needs the API `chat`, not `{api}`"));
    }
}

/// A workspace with one member, whose model is at `url`, and one task for each title.
fn workspace(models: &str, member: &str, tasks: &[&str]) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    let config = format!(
        "durability = \"process\"\n{models}\n[teams.crew]\nplan = \"plan.md\"\nlimits = {{ model_retries_max = 0 }}\n\
         [[teams.crew.members]]\nname = \"alice\"\n{member}\n"
    );
    workspace.write("brigade.toml", &config);
    workspace.write("plan.md", &tasks.iter().map(|title| format!("## {title}\n\n")).collect::<String>());
    workspace
}

/// Prints another token each time: `tok-1-printed`, `tok-2-printed`, …
const COUNTER: &str = "printf x >> runs; echo noise >&2; echo tok-$(wc -c < runs | tr -d ' ')-printed";

#[tokio::test]
async fn key_command_runs_again_after_refusal() {
    let server = Server::start(|request, count| match request.header("authorization") {
        Some("bearer tok-1-printed") if count < 1 => diligent(request, count),
        Some("bearer tok-2-printed") => diligent(request, count),
        _ => error_reply(401, "", "authentication_error", "token expired"),
    })
    .await;
    let member = format!(
        "provider = \"openai-compatible\"\nmodel = \"m-1\"\nbase_url = \"{}\"\nkey_command = {COUNTER:?}",
        server.url
    );
    let workspace = workspace("", &member, &["One"]);
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"]);
    assert_eq!(workspace.read("runs"), "xx", "the key is kept until the server refuses it");
    assert!(server.requests().iter().all(|request| !request.head.contains(KEY)), "the command replaces the variable");
    assert!(!both(&output).contains("-printed"));
    for file in files_below(workspace.path()) {
        let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
        assert!(!text.contains("tok-1-printed") && !text.contains("tok-2-printed"), "{} has the key", file.display());
    }
}

#[tokio::test]
async fn failing_key_command_is_named_without_its_output() {
    let server = Server::start(|_, _| chat_answer(&[text("hi")])).await;
    let member = format!(
        "provider = \"openai-compatible\"\nmodel = \"m-1\"\nbase_url = \"{}\"\nkey_command = \"echo tok-half-made; echo not logged in >&2; exit 4\"",
        server.url
    );
    let workspace = workspace("", &member, &["One"]);
    let output = run(&workspace, &["run", "crew"], &[]).await;
    assert_ne!(output.status.code(), Some(0));
    let shown = both(&output);
    assert!(shown.contains("`key_command` failed: exit code 4: not logged in"), "{shown}");
    assert!(!shown.contains("tok-half-made") && server.requests().is_empty(), "{shown}");
    assert_eq!(workspace.json(&["cost"])["tokens"], 0, "no request was sent");
}

fn out_of_credit() -> Reply {
    error_reply(402, "", "billing_error", "add credits")
}

/// The first model answers, fails during the first task, and is back for the second.
#[tokio::test]
async fn fallback_answers_until_the_task_ends() {
    let refused = || error_reply(403, "", "permission_error", "not now");
    let first = Server::start(move |request, count| if count < 1 { refused() } else { diligent(request, count) }).await;
    let spare = Server::start(|request, count| diligent(request, count + 100)).await;
    let models = format!(
        "[models.big]\nprovider = \"openai-compatible\"\nmodel = \"m-big\"\nbase_url = \"{}\"\nfallback = [\"spare\"]\n\
         [models.spare]\nprovider = \"ollama\"\nmodel = \"m-spare\"\nbase_url = \"{}\"\noutput_tokens_max = 777\n",
        first.url, spare.url
    );
    let workspace = workspace(&models, "model = \"big\"", &["One", "Two"]);
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(statuses(&workspace), ["completed"; 2]);
    let switches = logged(&workspace, "model_switched");
    let texts: Vec<[&Value; 2]> = switches.iter().map(|event| [&event["from"], &event["to"]]).collect();
    let (big, small) = (json!("m-big of openai-compatible"), json!("m-spare of ollama"));
    assert_eq!(texts, [[&big, &small], [&small, &big]], "{switches:?}");
    assert!(switches[0]["reason"].as_str().unwrap().contains("403"), "{switches:?}");
    assert!(both(&output).contains("m-spare of ollama answers until the end of the task"), "{}", both(&output));
    let spare_requests = spare.requests();
    assert!(!spare_requests.is_empty() && first.requests().len() > 1, "both answered");
    for request in &spare_requests {
        assert_eq!((&request.body["model"], &request.body["max_tokens"]), (&json!("m-spare"), &json!(777)));
        assert_eq!(request.header("authorization"), None, "the other service gets no key");
    }
    let cost = both(&run(&workspace, &["cost"], &[]).await);
    let requests = if spare_requests.len() == 1 { "request" } else { "requests" };
    let note = format!("m-spare is a fallback of alice: {} {requests}", spare_requests.len());
    assert!(cost.contains(&note) && cost.contains("m-big"), "{cost}");
}

/// The models `big` and `spare` at these addresses; `spare` answers while `big` does not.
fn with_fallback(first: &str, spare: &str) -> String {
    format!(
        "[models.big]\nprovider = \"openai-compatible\"\nmodel = \"m-big\"\nbase_url = \"{first}\"\nfallback = [\"spare\"]\n\
         [models.spare]\nprovider = \"ollama\"\nmodel = \"m-spare\"\nbase_url = \"{spare}\"\n"
    )
}

/// Each refusal that only a person can end lets the fallback answer, and the event names it.
#[tokio::test]
async fn fallback_answers_while_first_model_is_refused() {
    let spare = Server::start(diligent).await;
    for (status, kind, message) in [
        (401, "authentication_error", "no such key"),
        (403, "permission_error", "not in your country"),
        (404, "not_found_error", "no model m-big"),
        (400, "invalid_request_error", "Model Not Exist"),
        (402, "payment", "add credits"),
        (429, "insufficient_quota", "check your plan"),
        (429, "1308", "used up for 5 hours"),
    ] {
        let first = Server::start(move |_, _| error_reply(status, "", kind, message)).await;
        let team = workspace(&with_fallback(&first.url, &spare.url), "model = \"big\"", &["One"]);
        let output = run(&team, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
        assert_eq!(output.status.code(), Some(0), "{status} {kind}: {}", both(&output));
        assert_eq!((statuses(&team), first.requests().len()), (vec!["completed".to_owned()], 1), "{status} {kind}");
        let switches = logged(&team, "model_switched");
        assert!(switches[0]["reason"].as_str().unwrap().contains(message), "{status} {kind}: {switches:?}");
        let cost = both(&run(&team, &["cost"], &[]).await);
        assert!(cost.contains("m-spare is a fallback of alice"), "{cost}");
    }
}

/// The member waits for the quota of one of its models if the other one is refused. Neither order is an outage or the end of its work.
#[tokio::test(flavor = "multi_thread")]
async fn refused_model_waits_for_quota_of_the_other() {
    let limited = || error_reply(429, "retry-after: 9000\r\n", "rate_limit_error", "the limit");
    let quota = Server::start(move |_, _| limited()).await;
    let refusing = Server::start(|_, _| error_reply(401, "", "authentication_error", "no")).await;
    for (first, spare) in [(&refusing.url, &quota.url), (&quota.url, &refusing.url)] {
        let team = workspace(&with_fallback(first, spare), "model = \"big\"", &["One"]);
        let mut brigade = team.brigade(&["run", "crew"]);
        brigade.env("OPENAI_API_KEY", KEY);
        let mut running = Process::start(brigade, &team.join("said.txt"));
        eventually("it waits for the quota", async || {
            let text = team.json(&["team"]).to_string();
            text.contains("quota until ") && text.contains("; next request at ")
        })
        .await;
        running.kill();
        assert_eq!(statuses(&team), ["pending"]);
    }
}

/// A quota is that of the model that reached it: its account is asked no more, the team goes on, and is not paused.
#[tokio::test]
async fn fallback_answers_while_a_quota_is_used_up() {
    let limited = |wait: u32| error_reply(429, &format!("retry-after: {wait}\r\n"), "rate_limit_error", "the limit");
    let first = Server::start(move |_, _| limited(5_000)).await;
    let spare = Server::start(diligent).await;
    let team = workspace(&with_fallback(&first.url, &spare.url), "model = \"big\"", &["One", "Two"]);
    team.write("brigade.toml", &team.read("brigade.toml").replace("plan =", "on_quota = \"pause\"\nplan ="));
    let output = run(&team, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!((statuses(&team), first.requests().len()), (vec!["completed".to_owned(); 2], 1));
    let reasons: Vec<Value> =
        logged(&team, "model_switched").into_iter().map(|event| event["reason"].clone()).collect();
    let is_quota = |reason: &Value| reason.as_str().unwrap_or_default().starts_with("its quota is used up until ");
    assert!(reasons.len() == 4 && is_quota(&reasons[2]), "skipped without a request: {reasons:?}");

    let other = Server::start(move |_, _| limited(9_000)).await;
    let team = workspace(&with_fallback(&first.url, &other.url), "model = \"big\"", &["One"]);
    team.write("brigade.toml", &team.read("brigade.toml").replace("plan =", "on_quota = \"pause\"\nplan ="));
    let output = run(&team, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    let printed = both(&output);
    assert!(printed.contains("the quota of ollama at") && output.status.code() == Some(1), "{printed}");
    assert_eq!((statuses(&team), other.requests().len()), (vec!["pending".to_owned()], 1));
}

/// All keys that one command prints are of one account. A key in `headers` is part of the account, other headers are not.
#[tokio::test]
async fn account_is_address_and_key() {
    let server = Server::start(|_, _| chat_answer(&[text("hi")])).await;
    let account = |change: &dyn Fn(&mut ModelSpec), key: &str| {
        let mut spec = spec(&server);
        change(&mut spec);
        chat_client(spec, key).unwrap().account().unwrap()
    };
    let own = account(&|_| {}, KEY);
    let header = |name: &'static str, value: &'static str| {
        move |spec: &mut ModelSpec| spec.headers = [(name.to_owned(), value.to_owned())].into()
    };
    let command = |script: &'static str| move |spec: &mut ModelSpec| spec.key_command = Some(script.to_owned());
    assert_eq!(account(&header("x-team", "port"), KEY), own);
    assert_ne!(account(&|_| {}, "sk-another-key-123456"), own);
    assert_ne!(account(&header("Authorization", "Bearer a"), KEY), account(&header("authorization", "Bearer b"), KEY));
    assert_eq!(account(&command("print-a"), KEY), account(&command("print-a"), "sk-another-key-123456"));
    assert_ne!(account(&command("print-a"), KEY), account(&command("print-b"), KEY));
}

/// The reservation of a request is that of the model that gets it.
#[tokio::test]
async fn budget_holds_for_the_price_of_the_fallback() {
    let first = Server::start(|_, _| out_of_credit()).await;
    let spare = Server::start(diligent).await;
    let price = |model: &str, usd: u32| {
        format!("[prices.{model:?}]\ninput_usd_per_mtok = {usd}\noutput_usd_per_mtok = {usd}\n")
    };
    let models = format!(
        "[models.big]\nprovider = \"openai-compatible\"\nmodel = \"m-big\"\nbase_url = \"{}\"\nfallback = [\"spare\"]\n\
         [models.spare]\nprovider = \"openai-compatible\"\nmodel = \"m-spare\"\nbase_url = \"{}\"\n{}{}",
        first.url,
        spare.url,
        price("m-big", 0),
        price("m-spare", 1_000_000)
    );
    let workspace = workspace(&models, "model = \"big\"", &["One"]);
    let config = workspace.read("brigade.toml").replace("[[teams", "budget = { usd = 5 }\n[[teams");
    workspace.write("brigade.toml", &config);
    let output = run(&workspace, &["run", "crew"], &[("OPENAI_API_KEY", KEY)]).await;
    assert_eq!(output.status.code(), Some(3), "{}", both(&output));
    assert_eq!((first.requests().len(), spare.requests().len()), (1, 0), "{}", both(&output));
}
