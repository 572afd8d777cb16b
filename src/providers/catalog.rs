//! The models that a service lists, with their context windows where it tells them.

use std::cmp::Reverse;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Url};
use serde_json::Value;

use super::exchange::HttpModel;
use super::http;
use crate::secrets::masked;

/// The most models of a list that are read.
const MODELS_MAX: usize = 10_000;
/// The longest list, in bytes. The longest known one has some hundred models, with about 3 kB each.
const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The longest name of a model, in characters.
const NAME_CHARS_MAX: usize = 200;
/// The longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Parts of the names of models that do not chat, in lower case.
const NO_CHAT: [&str; 22] = [
    "embed",
    "bge-",
    "e5-",
    "minilm",
    "rerank",
    "whisper",
    "tts",
    "dall-e",
    "image",
    "moderation",
    "audio",
    "realtime",
    "transcribe",
    "sora",
    "guard",
    "davinci",
    "babbage",
    "diffusion",
    "video",
    "-base",
    "veo-",
    "ocr",
];
/// Parts of the names of models for code, and of those that follow instructions, in lower case.
const FOR_CODE: [&str; 2] = ["code", "devstral"];
const INSTRUCTED: [&str; 4] = ["instruct", "chat", "-it", ":it"];
/// The fields of a listed model that can have its context window.
const WINDOW_FIELDS: [&str; 4] = ["max_model_len", "context_length", "context_window", "max_context_length"];

/// The facts about a service for a first team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstUse {
    /// A model for a first team. For a local server it can be missing there.
    pub model: Option<&'static str>,
    /// The place where the server tells the context window that a model has there.
    pub windows: WindowSource,
    /// The way to start the server, for people.
    pub start: Option<&'static str>,
    /// The way to a larger context window, for people.
    pub larger_window: Option<&'static str>,
}

impl FirstUse {
    /// The facts about a server that nothing is known about.
    pub const UNKNOWN: Self = Self { model: None, windows: WindowSource::List, start: None, larger_window: None };
}

/// The place where a server tells the context windows of its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowSource {
    /// The list of models itself, if anywhere.
    List,
    /// `GET /api/ps` of Ollama, for models that are loaded.
    Ollama,
    /// `GET /api/v0/models` of LM Studio, for models that are loaded.
    LmStudio,
    /// `GET /props` of llama.cpp.
    LlamaCpp,
}

/// A model in the list of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedModel {
    /// Its name in requests.
    pub name: String,
    /// Its context window at this server.
    pub context_window_tokens: Option<u64>,
    /// True if the server reports that it is in memory.
    pub is_loaded: bool,
    /// True if it can answer as a member of a team, as far as its name and type tell.
    pub can_chat: bool,
}

/// The list of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Catalog {
    /// The models, in the server's order.
    pub models: Vec<ListedModel>,
    /// True if the server has more models.
    pub is_cut: bool,
}

/// The reason why there is no list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The server cannot be reached.
    #[error("{0}")]
    NoServer(String),
    /// The server needs another key.
    #[error("it answered {0}")]
    KeyRefused(u16),
    /// The server answered, but not with a list.
    #[error("{0}")]
    NoList(String),
}

impl Catalog {
    /// Returns the model with this name.
    pub fn find(&self, name: &str) -> Option<&ListedModel> {
        // Gemini lists its models with a prefix that requests do not need.
        self.models.iter().find(|model| model.name == name || model.name.strip_prefix("models/") == Some(name))
    }

    /// Returns the model for a first team: the preferred one if it is listed, else one for code, else one that follows instructions, else
    /// another one that can chat. Among equals, a loaded one comes first, then the largest.
    pub fn choose(&self, preferred: Option<&str>) -> Option<&ListedModel> {
        let preferred = preferred.and_then(|name| self.find(name));
        preferred
            .or_else(|| self.models.iter().filter(|model| model.can_chat).min_by_key(|model| Reverse(model.rank())))
    }

    /// Reads the names and windows of a list in any of the forms that servers use.
    fn of_list(list: &Value) -> Option<Self> {
        let items = [&list["data"], &list["models"], list].into_iter().find_map(Value::as_array)?;
        let models = items.iter().take(MODELS_MAX).filter_map(ListedModel::of_item).collect();
        Some(Self { models, is_cut: items.len() > MODELS_MAX || list["has_more"] == true })
    }

    /// Adds what another list tells about these models.
    fn add_details(&mut self, source: WindowSource, details: &Value) {
        match source {
            WindowSource::List => {}
            WindowSource::LlamaCpp => {
                let settings = &details["default_generation_settings"];
                let window = settings["n_ctx"].as_u64().or_else(|| details["n_ctx"].as_u64());
                for model in &mut self.models {
                    model.context_window_tokens = window;
                }
            }
            WindowSource::Ollama => self.add_items(&details["models"], |model, item| {
                model.is_loaded = true;
                model.context_window_tokens = item["context_length"].as_u64();
            }),
            WindowSource::LmStudio => self.add_items(&details["data"], |model, item| {
                model.is_loaded = item["state"] == "loaded";
                model.context_window_tokens = item["loaded_context_length"].as_u64();
                model.can_chat &= item["type"] != "embeddings";
            }),
        }
    }

    fn add_items(&mut self, items: &Value, add: impl Fn(&mut ListedModel, &Value)) {
        for item in items.as_array().into_iter().flatten().take(MODELS_MAX) {
            let model = name_of(item).and_then(|name| self.models.iter_mut().find(|model| model.name == name));
            if let Some(model) = model {
                add(model, item);
            }
        }
    }
}

/// The order of models for a first team.
type Rank = (bool, bool, bool, u64);

impl ListedModel {
    fn of_item(item: &Value) -> Option<Self> {
        let name = name_of(item)?;
        let lower = name.to_lowercase();
        let can_chat = item["type"] != "embeddings" && !NO_CHAT.iter().any(|part| lower.contains(part));
        let context_window_tokens = WINDOW_FIELDS.iter().find_map(|field| item[*field].as_u64());
        Some(Self { name, context_window_tokens, is_loaded: false, can_chat })
    }

    fn rank(&self) -> Rank {
        let name = self.name.to_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        (has(&FOR_CODE), has(&INSTRUCTED), self.is_loaded, tenths_of_billions(&name))
    }
}

/// Returns the name of a listed model, if it can be printed and sent.
fn name_of(item: &Value) -> Option<String> {
    let name = [&item["id"], &item["name"], &item["model"], item].into_iter().find_map(Value::as_str)?;
    let is_valid = !name.is_empty() && name.chars().count() <= NAME_CHARS_MAX && !name.chars().any(char::is_control);
    is_valid.then(|| name.to_owned())
}

/// The size in a name such as `qwen2.5-coder:1.5b`, in tenths of a billion parameters; 0 if it has none.
fn tenths_of_billions(name: &str) -> u64 {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let size = words.filter_map(|word| word.strip_suffix('b')?.parse::<f64>().ok()).find(|size| size.is_finite());
    size.map_or(0, |size| (size * 10.0) as u64)
}

/// Asks the server of `model` for its models. It sends the keys of `model`, as each request does.
///
/// # Errors
/// See [`CatalogError`].
pub async fn list(model: &HttpModel, path: &str, source: WindowSource) -> Result<Catalog, CatalogError> {
    let base = model.url.path().strip_suffix(path).unwrap_or(model.url.path()).to_owned();
    let at = |path: String| {
        let mut url = model.url.clone();
        url.set_path(&path);
        url
    };
    let list = get(&model.client, at(format!("{base}/models")), &model.headers).await?;
    let Some(mut catalog) = Catalog::of_list(&list) else {
        return Err(CatalogError::NoList("its answer has no models".to_owned()));
    };
    // These servers have their own interface beside the version.
    let root = base.strip_suffix("/v1").unwrap_or(&base);
    let details = match source {
        WindowSource::List => return Ok(catalog),
        WindowSource::Ollama => format!("{root}/api/ps"),
        WindowSource::LmStudio => format!("{root}/api/v0/models"),
        WindowSource::LlamaCpp => format!("{root}/props"),
    };
    // An older server has no such page. Its list is enough.
    if let Ok(details) = get(&model.client, at(details), &model.headers).await {
        catalog.add_details(source, &details);
    }
    Ok(catalog)
}

/// Returns a JSON page.
async fn get(client: &Client, url: Url, headers: &HeaderMap) -> Result<Value, CatalogError> {
    let request = client.get(url).headers(headers.clone()).build();
    let request = request.map_err(|error| CatalogError::NoList(http::describe(error)))?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, http::send(client, request)).await;
    let no_answer = || CatalogError::NoList(format!("no answer in {} s", ANSWER_TIMEOUT.as_secs()));
    let response = answer.map_err(|_| no_answer())?;
    let response = response.map_err(|error| CatalogError::NoServer(masked(http::no_answer_reason(error))))?;
    match response.status().as_u16() {
        200 => {}
        status @ (401 | 403) => return Err(CatalogError::KeyRefused(status)),
        status => return Err(CatalogError::NoList(format!("it answered {status}"))),
    }
    let bytes = http::read_beginning(response, ANSWER_TIMEOUT, LIST_BYTES_MAX).await;
    let text = masked(String::from_utf8_lossy(&bytes).into_owned());
    serde_json::from_str(&text).map_err(|_| CatalogError::NoList("its answer is no JSON, or is too long".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn catalog(names: &[&str]) -> Catalog {
        let items: Vec<Value> = names.iter().map(|name| json!({ "id": name })).collect();
        Catalog::of_list(&json!({ "data": items })).unwrap()
    }

    fn chosen(names: &[&str], preferred: Option<&str>) -> Option<String> {
        catalog(names).choose(preferred).map(|model| model.name.clone())
    }

    #[test]
    fn coder_model_is_chosen_before_others() {
        for (names, preferred, expected) in [
            (&["llama3:8b", "qwen2.5-coder:0.5b", "qwen2.5-coder:7b"][..], None, Some("qwen2.5-coder:7b")),
            (&["phi4", "gemma-3-12b-it", "mistral:7b-instruct"], None, Some("gemma-3-12b-it")),
            (&["nomic-embed-text", "llama3:8b", "qwen3:30b-a3b"], None, Some("qwen3:30b-a3b")),
            (&["nomic-embed-text", "whisper-1", "starcoder2-base"], None, None),
            (&["qwen2.5-coder:7b", "phi4"], Some("phi4"), Some("phi4")),
            (&["qwen2.5-coder:7b", "phi4"], Some("phi5"), Some("qwen2.5-coder:7b")),
            (&["models/gemini-x"], Some("gemini-x"), Some("models/gemini-x")),
            (&[], Some("phi4"), None),
        ] {
            assert_eq!(chosen(names, preferred).as_deref(), expected, "{names:?}");
        }
    }

    #[test]
    fn lists_of_all_forms_are_read() {
        for list in [
            json!({"object": "list", "data": [{"id": "a", "max_model_len": 8192}, {"no": 1}, {"id": "b\u{1b}[2J"}]}),
            json!({"models": [{"name": "a", "context_length": 8192}], "data": null}),
            json!([{"id": "a", "context_window": 8192}]),
            json!({"data": [{"id": "a", "max_context_length": 8192, "type": null}, {"id": "x".repeat(201)}]}),
        ] {
            let models = Catalog::of_list(&list).unwrap().models;
            assert_eq!(models.len(), 1, "{list}");
            assert_eq!((&*models[0].name, models[0].context_window_tokens), ("a", Some(8192)), "{list}");
        }
        for list in [json!({}), json!(7), json!({"data": {}})] {
            assert_eq!(Catalog::of_list(&list), None, "{list}");
        }
        let many: Vec<Value> = (0..20_000).map(|number| json!({"id": format!("m{number}")})).collect();
        let many = Catalog::of_list(&json!({ "data": many })).unwrap();
        assert_eq!((many.models.len(), many.is_cut), (MODELS_MAX, true));
    }

    #[test]
    fn windows_come_from_the_page_of_the_server() {
        let with = |source: WindowSource, details: Value| {
            let mut catalog = catalog(&["a", "b"]);
            catalog.add_details(source, &details);
            catalog.models.into_iter().map(|model| (model.context_window_tokens, model.can_chat)).collect::<Vec<_>>()
        };
        let loaded = json!({"models": [{"name": "b", "context_length": 4096}, {"name": "c"}]});
        assert_eq!(with(WindowSource::Ollama, loaded), [(None, true), (Some(4096), true)]);
        let lm_studio = json!({"data": [
            {"id": "a", "type": "llm", "state": "loaded", "max_context_length": 99_000, "loaded_context_length": 4096},
            {"id": "b", "type": "embeddings", "state": "not-loaded", "max_context_length": 2048},
        ]});
        assert_eq!(with(WindowSource::LmStudio, lm_studio), [(Some(4096), true), (None, false)]);
        for props in [json!({"default_generation_settings": {"n_ctx": 16_384}}), json!({"n_ctx": 16_384})] {
            assert_eq!(with(WindowSource::LlamaCpp, props), [(Some(16_384), true); 2]);
        }
        assert_eq!(with(WindowSource::LmStudio, json!([])), [(None, true); 2]);
    }
}
