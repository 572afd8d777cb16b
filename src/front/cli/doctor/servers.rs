//! The checks of the servers of models: address, key, models and context windows.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, fail, ok, warn};
use crate::api::consent::is_agreed;
use crate::config::TeamFlags;
use crate::domain::agent::prompt_cut::SMALL_WINDOW_TOKENS;
use crate::domain::team::team_spec::{MemberSpec, ModelSpec};
use crate::domain::text::one_line;
use crate::domain::text::suggestion::nearest_up_to;
use crate::domain::text::units::{count, join_up_to};
use crate::front::cli::context::Context;
use crate::providers::catalog::{Catalog, CatalogError, WindowSource};
use crate::providers::exchange::HttpModel;
use crate::providers::service::Service;
use crate::providers::{self, Provider};

/// The most servers that are asked.
const SERVERS_MAX: usize = 20;
/// The most names of models in a finding.
const MODELS_SHOWN_MAX: usize = 10;
/// The most members of one account in a finding.
const MEMBERS_SHOWN_MAX: usize = 5;
/// The most near names in a hint.
const NEAR_NAMES_MAX: usize = 3;

/// The settings of members that use the same account at the same address.
#[derive(Default)]
struct Usage {
    spec: ModelSpec,
    /// The names of models, with the context windows in the settings.
    models: BTreeMap<String, BTreeSet<Option<u64>>>,
    /// The names of the members, if other members use another account there; otherwise empty.
    members: BTreeSet<String>,
    /// True if the person agreed to the settings of one of the teams.
    is_agreed: bool,
}

/// Asks the servers of all teams with a valid config for their models. A server that only the files of the workspace name gets no
/// request before the person has agreed to them.
pub(super) async fn check_servers(context: &Context) -> Vec<Finding> {
    let usages = usages(context);
    let left = usages.len().saturating_sub(SERVERS_MAX);
    let mut checks = tokio::task::JoinSet::new();
    for (place, usage) in usages.into_iter().take(SERVERS_MAX).enumerate() {
        checks.spawn(async move { (place, check(&usage).await) });
    }
    let mut findings: Vec<(usize, Vec<Finding>)> = checks.join_all().await;
    findings.sort_by_key(|(place, _)| *place);
    let mut findings: Vec<Finding> = findings.into_iter().flat_map(|(_, findings)| findings).collect();
    if left > 0 {
        findings.push(warn("server", format!("{} not checked", count(left, "other server")), ""));
    }
    findings
}

fn usages(context: &Context) -> Vec<Usage> {
    let Some(config) = context.workspace.location.config_if_valid() else { return Vec::new() };
    let mut servers: BTreeMap<(String, Option<String>), BTreeMap<String, Usage>> = BTreeMap::new();
    for name in config.team_names() {
        let Ok(team) = config.team(&name, &TeamFlags::default()) else { continue };
        let is_agreed = is_agreed(&context.workspace, &config, &team);
        let members = team.spec.members.iter().chain([&team.spec.lead]);
        let models = members.flat_map(|MemberSpec { name, model, .. }| {
            std::iter::once(model).chain(&model.fallback).map(move |model| (name, model))
        });
        for (member, spec) in models {
            let server = servers.entry((spec.provider.clone(), spec.base_url.clone())).or_default();
            let usage = server.entry(account_of(spec)).or_default();
            usage.spec = spec.clone();
            usage.members.insert(member.to_string());
            usage.models.entry(spec.model.clone()).or_default().insert(spec.context_window_tokens);
            usage.is_agreed |= is_agreed;
        }
    }
    for server in servers.values_mut().filter(|server| server.len() == 1) {
        server.values_mut().for_each(|usage| usage.members.clear());
    }
    servers.into_values().flat_map(BTreeMap::into_values).collect()
}

/// Returns the account of a model with its key; the same text for all models that cannot be connected to.
fn account_of(spec: &ModelSpec) -> String {
    let service = providers::provider(&spec.provider).and_then(|provider| provider.service.as_ref());
    let model = service.and_then(|service| service.model(spec, &|name| std::env::var(name).ok()).ok());
    model.map(|model| model.account.as_str().to_owned()).unwrap_or_default()
}

async fn check(usage: &Usage) -> Vec<Finding> {
    let provider = providers::provider(&usage.spec.provider);
    let Some((provider, service)) = provider.and_then(|provider| Some((provider, provider.service.as_ref()?))) else {
        return Vec::new();
    };
    // The check of the models reports wrong settings.
    let Ok(model) = service.model(&usage.spec, &|name| std::env::var(name).ok()) else { return Vec::new() };
    let mut server = format!("{} at {}", provider.name, model.url.origin().ascii_serialization());
    if !usage.members.is_empty() {
        let members = join_up_to(usage.members.iter().map(|name| one_line(name)), MEMBERS_SHOWN_MAX);
        server = format!("{server} for {members}");
    }
    if usage.spec.base_url.is_some() && !usage.is_agreed {
        let text = format!("{server} is not contacted: you have not agreed to these settings yet");
        return vec![warn("server", text, super::agree())];
    }
    match service.catalog(&model).await {
        Ok(catalog) => {
            let models = usage.models.iter().flat_map(|(name, windows)| check_listed(service, &catalog, name, windows));
            std::iter::once(listed(&server, &model, &catalog)).chain(models).collect()
        }
        Err(error) => vec![not_listed(provider, &server, &model, &error)],
    }
}

/// The models that a server lists.
pub fn listed(server: &str, model: &HttpModel, catalog: &Catalog) -> Finding {
    let more = if catalog.is_cut { " and more" } else { "" };
    let names = join_up_to(catalog.models.iter().map(|model| one_line(&model.name)), MODELS_SHOWN_MAX);
    let models = count(catalog.models.len(), "model");
    let names = if names.is_empty() { names } else { format!(": {names}") };
    ok("server", format!("{server}, {}, lists {models}{more}{names}", key_text(model)))
}

/// The reason why a server lists no models, and the next step.
pub fn not_listed(provider: &Provider, server: &str, model: &HttpModel, error: &CatalogError) -> Finding {
    match error {
        CatalogError::NoServer(reason) => {
            let start = model.start.map_or("start it".to_owned(), |start| format!("start it: {start}"));
            let address = model.address_setting.unwrap_or("base_url");
            warn("server", format!("{server} {reason}"), format!("{start}, or correct {address}"))
        }
        CatalogError::KeyRefused(_) if model.key_command.is_some() => ok(
            "server",
            format!(
                "{server} is reachable; it lists models only with the key of `key_command`, which doctor does not run"
            ),
        ),
        CatalogError::KeyRefused(status) if model.key_variables.is_empty() => {
            let variables = provider.keys().collect::<Vec<_>>().join(" or ");
            fail("server", format!("{server} needs a key ({status})"), format!("set {variables}"))
        }
        CatalogError::KeyRefused(status) => {
            let variables = model.key_variables.join(" and ");
            let text = format!("{server} refused the key in {variables} ({status})");
            fail("server", text, format!("correct the value of {variables}"))
        }
        CatalogError::NoList(reason) => {
            let text = format!("{server}, {}, is reachable, but lists no models: {reason}", key_text(model));
            let key =
                if model.key_variables.is_empty() { format!(" or set {}", model.missing_key) } else { String::new() };
            let hint = |setting| format!("if its requests fail too, correct {setting}{key}");
            warn("server", text, model.address_setting.map(hint).unwrap_or_default())
        }
    }
}

/// The places of the keys for a server, never their values.
fn key_text(model: &HttpModel) -> String {
    match &model.key_variables[..] {
        [] if model.key_command.is_some() => "without the key of `key_command`".to_owned(),
        [] => "without a key".to_owned(),
        variables => format!("with the key in {}", variables.join(" and ")),
    }
}

/// Checks a model of the settings against the list, and its context window.
pub fn check_listed(
    service: &Service,
    catalog: &Catalog,
    name: &str,
    configured: &BTreeSet<Option<u64>>,
) -> Vec<Finding> {
    let source = service.first_use.windows;
    let only = catalog.models.first().filter(|_| source == WindowSource::LlamaCpp);
    let Some(model) = catalog.find(name).or(only) else {
        if catalog.is_cut {
            return Vec::new();
        }
        let names = nearest_up_to(NEAR_NAMES_MAX, name, catalog.models.iter().map(|model| model.name.as_str()));
        let hint = if names.is_empty() {
            "set `model` to a name of the list".to_owned()
        } else {
            format!("did you mean {}?", names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or "))
        };
        return vec![warn("model", format!("the server does not list `{name}`"), hint)];
    };
    let remedy = service.first_use.larger_window.unwrap_or("let the server give it a larger one");
    let Some(window) = model.context_window_tokens else {
        let is_silent = matches!(source, WindowSource::Ollama | WindowSource::LmStudio);
        let text = format!("`{name}` is not loaded, so the server does not tell its context window");
        return is_silent.then(|| warn("model", text, remedy)).into_iter().collect();
    };
    let larger = configured.iter().flatten().max().filter(|configured| **configured > window);
    let text = format!("`{name}` has a context window of {window} tokens");
    vec![match larger {
        Some(configured) => {
            let hint = format!("correct the setting, or: {remedy}");
            warn("model", format!("{text}, but context_window_tokens is {configured}"), hint)
        }
        None if window < SMALL_WINDOW_TOKENS => warn("model", format!("{text}, which is small for an agent"), remedy),
        None => ok("model", text),
    }]
}
