//! The first use of a server: `init` chooses a model of its list, `doctor` shows its models, and the team works.

use brigade::domain::team::team_spec::ModelSpec;
use brigade::providers::{all, connect};
use serde_json::{Value, json};

use super::answers::{KEY, request};
use super::chat::diligent;
use super::team::{both, run, statuses};
use crate::testkit::model_server::{ReceivedRequest, Reply, Server, ServerAction, chunk, full_response};
use crate::testkit::workspace::TestWorkspace;

/// The answer to a request for a page.
fn page(body: &Value) -> Reply {
    full_response(200, "content-type: application/json\r\n", &body.to_string())
}

fn list(names: &[&str]) -> Value {
    let data: Vec<Value> = names.iter().map(|name| json!({"id": name, "object": "model"})).collect();
    json!({"object": "list", "data": data})
}

fn is_get(request: &ReceivedRequest, path: &str) -> bool {
    request.head.starts_with(&format!("get {path} "))
}

/// A server with these pages, which works on tasks as a model.
async fn server(pages: Vec<(&'static str, Value)>) -> Server {
    Server::start(move |request, count| {
        if request.head.starts_with("post ") {
            return diligent(request, count);
        }
        let found = pages.iter().find(|(path, _)| is_get(request, path));
        found.map_or_else(|| full_response(404, "", "no such page"), |(_, body)| page(body))
    })
    .await
}

fn address(server: &Server) -> String {
    format!("{}/v1", server.url)
}

/// Runs `brigade init` for a service at this address.
async fn init(workspace: &TestWorkspace, provider: &str, url: &str, more: &[&str]) -> (Option<i32>, String) {
    let arguments = [&["init", "--provider", provider, "--base-url", url], more].concat();
    let output = run(workspace, &arguments, &[]).await;
    (output.status.code(), both(&output))
}

async fn doctor(workspace: &TestWorkspace, variables: &[(&str, &str)]) -> String {
    // Long lines are wrapped.
    let wide = [&[("COLUMNS", "999")], variables].concat();
    both(&run(workspace, &["doctor"], &wide).await)
}

const NAMES: [&str; 4] = ["nomic-embed-text", "llama3:8b", "qwen2.5-coder:7b", "qwen2.5-coder:0.5b"];

#[tokio::test]
async fn local_starter_takes_a_coder_model_and_works() {
    for provider in ["ollama", "lmstudio", "vllm", "llamacpp", "litellm", "openai-compatible"] {
        let server = server(vec![("/v1/models", list(&NAMES))]).await;
        let workspace = TestWorkspace::new();
        let (code, output) = init(&workspace, provider, &address(&server), &[]).await;
        assert_eq!(code, Some(0), "{provider}: {output}");
        assert!(output.contains("lists 4 models: nomic-embed-text, "), "{provider}: {output}");
        let config = workspace.read("brigade.toml");
        assert!(config.contains(&format!("provider = \"{provider}\"\nmodel = \"qwen2.5-coder:7b\"\n")), "{config}");
        workspace.write("plan.md", "## One\n\n## Two\n");
        let output = run(&workspace, &["run", "--plan", "plan.md"], &[]).await;
        assert_eq!(output.status.code(), Some(0), "{provider}: {}", both(&output));
        assert_eq!(statuses(&workspace), ["completed"; 2], "{provider}");
    }
}

#[tokio::test]
async fn every_service_has_a_starter() {
    for provider in all().filter(|provider| provider.service.is_some()) {
        let workspace = TestWorkspace::new();
        let address = "http://127.0.0.1:1/v1";
        let (code, output) = init(&workspace, provider.name, address, &["--model", "it's \"m\""]).await;
        assert_eq!(code, Some(0), "{}: {output}", provider.name);
        assert!(output.contains("cannot be reached"), "{}: {output}", provider.name);
        let shown = both(&run(&workspace, &["config", "show"], &[]).await);
        assert!(shown.contains(provider.name) && shown.contains(address), "{shown}");
    }
}

#[tokio::test]
async fn starter_without_a_known_model_is_refused() {
    let workspace = TestWorkspace::new();
    let (code, output) = init(&workspace, "vllm", "http://127.0.0.1:1/v1", &[]).await;
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("cannot choose a model") && output.contains("--model NAME"), "{output}");
    let only_embedding = server(vec![("/v1/models", list(&["nomic-embed-text"]))]).await;
    let (code, output) = init(&workspace, "vllm", &address(&only_embedding), &[]).await;
    assert_eq!(code, Some(2), "{output}");
    let (code, output) = init(&workspace, "vllm", "127.0.0.1:1", &["--model", "m"]).await;
    assert!(code == Some(2) && output.contains("must start with http://"), "{output}");
    let output = both(&run(&workspace, &["init", "--provider", "openai-compatible"], &[]).await);
    assert!(output.contains("needs `base_url`") && output.contains("--base-url URL"), "{output}");
    let output = both(&run(&workspace, &["init", "--model", "m"], &[]).await);
    assert!(output.contains("cannot use --model"), "{output}");
    assert!(!workspace.join("brigade.toml").exists());
}

#[tokio::test]
async fn starter_names_near_models_and_window() {
    let loaded = json!({"data": [{"id": "qwen2.5-coder:7b", "state": "loaded", "loaded_context_length": 4096}]});
    let server = server(vec![("/v1/models", list(&NAMES)), ("/api/v0/models", loaded)]).await;
    let workspace = TestWorkspace::new();
    let (code, output) = init(&workspace, "lmstudio", &address(&server), &["--model", "qwen2.5-coder"]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("did you mean `qwen2.5-coder:7b` or `qwen2.5-coder:0.5b`?"), "{output}");
    let (_, output) = init(&workspace, "lmstudio", &address(&server), &["--force"]).await;
    assert!(
        output.contains("4096 tokens, which is small for an agent; `lms load MODEL --context-length 32768`"),
        "{output}"
    );
    let config = workspace.read("brigade.toml");
    assert!(config.contains("context_window_tokens = 4096") && config.contains("output_tokens_max = 1024"), "{config}");
    assert_eq!(run(&workspace, &["config", "show"], &[]).await.status.code(), Some(0));
}

#[tokio::test]
async fn starter_names_missing_key_of_server() {
    let refusing = Server::start(|_, _| full_response(401, "", "no")).await;
    let workspace = TestWorkspace::new();
    let (code, output) = init(&workspace, "openai", &address(&refusing), &[]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("needs a key (401); set OPENAI_API_KEY"), "{output}");
    let config = workspace.read("brigade.toml");
    assert!(config.contains("If the server needs a key, set the environment variable OPENAI_API_KEY."), "{config}");
}

#[tokio::test]
async fn address_of_other_api_is_refused_by_name() {
    let workspace = TestWorkspace::new();
    let (code, output) = init(&workspace, "openai", "http://127.0.0.1:1/v1/chat/completions", &[]).await;
    assert_eq!(code, Some(2), "{output}");
    let reason = "ends with /chat/completions, but the API is `responses`: remove that, or set `api = \"chat\"`";
    assert!(output.contains(reason), "{output}");
    let gateway = Server::start(|_, _| full_response(404, "", "no such page")).await;
    let spec = ModelSpec { base_url: Some(gateway.url.clone()), ..ModelSpec::new("openai", "m") };
    let error = connect(&spec).unwrap().request(request(), &()).await.unwrap_err().to_string();
    assert!(error.ends_with("; a server without this API needs `api = \"chat\"`"), "{error}");
}

/// A server on this machine can be off: a request that cannot reach it fails at once, with the command that starts it.
#[test]
fn default_address_on_this_machine_can_be_wrong() {
    let key = |name: &str| (!name.ends_with("_URL")).then(|| KEY.to_owned());
    for row in all() {
        let Some(service) = row.service.as_ref().filter(|service| service.base_url.is_some()) else { continue };
        let model = service.model(&ModelSpec::new(row.name, "m"), &key).unwrap();
        let setting = (!service.needs_key).then_some("base_url");
        assert_eq!((model.address_setting, model.start), (setting, service.first_use.start), "{}", row.name);
    }
}

/// A list of a server is data: it is bounded, and no model of it can change the config or the terminal.
#[tokio::test]
async fn hostile_list_of_models_is_harmless() {
    let many: Vec<String> = (0..12_000).map(|number| format!("m-{number}")).collect();
    let mut names: Vec<&str> = vec!["coder\"\nevil = 1", "coder\u{1b}[2J", "coder\" # x"];
    names.extend(many.iter().map(String::as_str));
    let server = server(vec![("/v1/models", list(&names))]).await;
    let workspace = TestWorkspace::new();
    let (code, output) = init(&workspace, "vllm", &address(&server), &[]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.len() < 4_000 && !output.contains('\u{1b}') && !output.contains("evil"), "{output}");
    let shown = both(&run(&workspace, &["config", "show"], &[]).await);
    assert!(shown.contains("coder\" # x") && !shown.contains("evil"), "{shown}");
    assert!(doctor(&workspace, &[]).await.len() < 8_000);
    let endless = Server::start(|_, _| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        vec![ServerAction::Send(head.into()), ServerAction::Endless(chunk(&[b'['; 64 * 1024]), 0)]
    })
    .await;
    let (code, output) = init(&workspace, "vllm", &address(&endless), &["--force", "--model", "m"]).await;
    assert!(code == Some(0) && output.contains("lists no models"), "{output}");
    let other = Server::start(|_, _| page(&list(&["stolen"]))).await;
    let location = format!("location: {}/v1/models\r\n", other.url);
    let redirecting = Server::start(move |_, _| full_response(302, &location, "")).await;
    let (_, output) = init(&workspace, "vllm", &address(&redirecting), &["--force", "--model", "m"]).await;
    assert!(output.contains("it answered 302") && other.requests().is_empty(), "{output}");
}

fn config(provider: &str, url: &str, model: &str, more: &str) -> String {
    format!(
        "[teams.crew]\nlead = {{ provider = \"{provider}\", model = \"{model}\", base_url = \"{url}\"{more} }}\nmembers = [{{ name = \"bob\" }}]\n"
    )
}

#[tokio::test]
async fn doctor_shows_models_key_and_window() {
    let pages = vec![
        ("/v1/models", list(&NAMES)),
        ("/api/ps", json!({"models": [{"name": "llama3:8b", "context_length": 4096}]})),
        ("/props", json!({"default_generation_settings": {"n_ctx": 32_768}})),
    ];
    let server = server(pages).await;
    let workspace = TestWorkspace::new();
    let shown = async |provider: &str, model: &str, more: &str| {
        workspace.write("brigade.toml", &config(provider, &address(&server), model, more));
        doctor(&workspace, &[("OLLAMA_API_KEY", KEY)]).await
    };
    let output = shown("ollama", "llama3:8b", "").await;
    let listed = format!("ollama at {}, with the key in OLLAMA_API_KEY, lists 4 models: nomic-embed-text", server.url);
    assert!(output.contains(&listed), "{output}");
    assert!(output.contains("`llama3:8b` has a context window of 4096 tokens, which is small"), "{output}");
    assert!(output.contains("OLLAMA_CONTEXT_LENGTH=32768") && !output.contains(KEY), "{output}");
    let output = shown("ollama", "qwen2.5-coder:7b", "").await;
    assert!(output.contains("is not loaded") && output.contains("OLLAMA_CONTEXT_LENGTH=32768"), "{output}");
    let output = shown("ollama", "lama3:8b", "").await;
    assert!(output.contains("does not list `lama3:8b`") && output.contains("did you mean `llama3:8b`?"), "{output}");
    let output = shown("llamacpp", "any", "").await;
    assert!(output.contains("ok    model: `any` has a context window of 32768 tokens"), "{output}");
    let output = shown("llamacpp", "any", ", context_window_tokens = 65536").await;
    assert!(output.contains("but context_window_tokens is 65536"), "{output}");
    let keys: Vec<bool> = server.requests().iter().map(|request| request.header("authorization").is_some()).collect();
    assert!(keys.contains(&true) && keys.contains(&false), "only `ollama` gets its key: {keys:?}");
}

#[tokio::test]
async fn doctor_names_refused_key_and_missing_server() {
    let refusing = Server::start(|_, _| full_response(401, "", "no")).await;
    let workspace = TestWorkspace::new();
    workspace.write("brigade.toml", &config("openai-compatible", &refusing.url, "m", ""));
    let output = doctor(&workspace, &[("OPENAI_API_KEY", KEY)]).await;
    assert!(output.contains("refused the key in OPENAI_API_KEY (401)") && !output.contains(KEY), "{output}");
    assert!(doctor(&workspace, &[]).await.contains("needs a key (401)"));
    let in_headers = format!(", headers = {{ authorization = \"Bearer {KEY}\" }}");
    workspace.write("brigade.toml", &config("openai-compatible", &refusing.url, "m", &in_headers));
    let output = doctor(&workspace, &[]).await;
    assert!(output.contains("refused the key in `headers` (401)") && !output.contains(KEY), "{output}");
    let printed = ", key_command = \"touch ran; echo key-printed-1234\"";
    workspace.write("brigade.toml", &config("openai-compatible", &refusing.url, "m", printed));
    let output = doctor(&workspace, &[("OPENAI_API_KEY", KEY)]).await;
    assert!(output.contains("is reachable; it lists models only with the key of `key_command`"), "{output}");
    assert!(!workspace.join("ran").exists(), "doctor runs no command of the file");
    workspace.write("brigade.toml", &config("ollama", "http://127.0.0.1:1/v1", "m", ""));
    let output = doctor(&workspace, &[]).await;
    assert!(output.contains("cannot be reached") && output.contains("`ollama serve`"), "{output}");
    let without_list = Server::start(|_, _| full_response(404, "", "no")).await;
    workspace.write("brigade.toml", &config("vllm", &without_list.url, "m", ""));
    let output = doctor(&workspace, &[]).await;
    assert!(output.contains("is reachable, but lists no models: it answered 404"), "{output}");
    assert!(output.contains("if its requests fail too, correct base_url or set VLLM_API_KEY"), "{output}");
}

/// Members with different keys at one address have two accounts, and each is checked.
#[tokio::test]
async fn doctor_checks_each_account_of_a_server() {
    let models = list(&NAMES);
    let server = Server::start(move |request, _| match request.header("authorization") {
        Some("bearer sk-expired-123456") => full_response(401, "", "no"),
        _ => page(&models),
    })
    .await;
    let workspace = TestWorkspace::new();
    let member = |name: &str, more: &str| {
        let url = address(&server);
        format!(
            "[[teams.crew.members]]\nname = \"{name}\"\nprovider = \"openai-compatible\"\nmodel = \"llama3:8b\"\nbase_url = \"{url}\"\n{more}"
        )
    };
    let expired = "headers = { authorization = \"Bearer sk-expired-123456\" }\n";
    let members =
        [member("ada", ""), member("bob", ""), member("eve", expired), member("zoe", "key_command = \"k\"\n")];
    workspace.write("brigade.toml", &format!("[teams.crew]\n{}", members.concat()));
    let output = doctor(&workspace, &[("OPENAI_API_KEY", KEY)]).await;
    let at = format!("openai-compatible at {}", server.url);
    for text in [
        format!("ok    server: {at} for ada, bob, with the key in OPENAI_API_KEY, lists 4 models"),
        format!("FAIL  server: {at} for eve refused the key in "),
        format!("ok    server: {at} for zoe, without the key of `key_command`, lists 4 models"),
    ] {
        assert!(output.contains(&text), "{text}: {output}");
    }
}

/// The files of a clone must not make `doctor` send a key, or anything else, to a server of theirs.
#[tokio::test]
async fn doctor_asks_no_server_without_agreement() {
    let server = server(vec![("/v1/models", list(&NAMES))]).await;
    let workspace = TestWorkspace::new();
    workspace.write("brigade.toml", &config("openai-compatible", &address(&server), "llama3:8b", ""));
    let variables = [("OPENAI_API_KEY", KEY), ("BRIGADE_TRUST", "0")];
    let output = doctor(&workspace, &variables).await;
    assert!(output.contains("is not contacted: you have not agreed to these settings yet"), "{output}");
    assert_eq!((server.requests().len(), server.connections()), (0, 0));
    assert!(doctor(&workspace, &[("OPENAI_API_KEY", KEY)]).await.contains("lists 4 models"));
}

#[tokio::test]
async fn unknown_model_ends_run_with_hint_at_doctor() {
    let server = Server::start(|request, _| {
        if is_get(request, "/v1/models") {
            return page(&list(&NAMES));
        }
        let error = json!({"error": {"message": "model 'lama3:8b' not found", "code": "model_not_found"}});
        full_response(404, "content-type: application/json\r\n", &error.to_string())
    })
    .await;
    let workspace = TestWorkspace::new();
    workspace.write("brigade.toml", &config("ollama", &address(&server), "lama3:8b", ""));
    workspace.write("plan.md", "## One\n");
    let output = run(&workspace, &["run", "--plan", "plan.md"], &[]).await;
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(both(&output).contains("hint: `brigade doctor`"), "{}", both(&output));
    assert!(doctor(&workspace, &[]).await.contains("did you mean `llama3:8b`?"));
}
