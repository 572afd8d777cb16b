//! The model of a new team: the one that the person names, or a suitable one of the server.

use std::collections::BTreeSet;

use super::starter::{Model, Provider};
use crate::domain::team::team_spec::ModelSpec;
use crate::domain::text::shell_word;
use crate::front::cli::doctor::{Finding, check_listed, listed, not_listed};
use crate::front::cli::error::{CliError, CliResult};
use crate::front::text::commands::{hint, line};
use crate::providers::catalog::{Catalog, WindowSource};
use crate::providers::exchange::HttpModel;
use crate::providers::service::Service;

/// A model for a new team.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) model: Model,
    /// The server's models and problems, for the person.
    pub(super) notes: Vec<String>,
}

/// Chooses the model of a team with this provider. Asks its server for its models, with the key in the environment. Without a key that
/// the service needs, no request is sent.
///
/// # Errors
/// The address is missing or wrong, or no model is known.
pub(super) async fn choose(provider: Provider, model: Option<&str>, base_url: Option<&str>) -> CliResult<Choice> {
    let Some((row, service)) = provider.row().and_then(|row| Some((row, row.service.as_ref()?))) else {
        if let Some(option) = model.map(|_| "--model").or(base_url.map(|_| "--base-url")) {
            let message = format!("cannot use {option}: the provider `{}` has no server", provider.name());
            return Err(CliError::usage(message).hint(hint![line("init --help"), " lists the providers"]));
        }
        return Ok(Choice::default());
    };
    let spec = ModelSpec {
        base_url: base_url.map(str::to_owned),
        ..ModelSpec::new(provider.name(), model.unwrap_or_default())
    };
    let mut choice = Choice::default();
    choice.model.base_url = spec.base_url.clone();
    match service.model(&spec, &|name| std::env::var(name).ok()) {
        Ok(client) => {
            let server = format!("{} at {}", row.name, client.url.origin().ascii_serialization());
            match service.catalog(&client).await {
                Ok(catalog) => choice.use_catalog(service, &server, &client, model, &catalog),
                Err(error) => {
                    choice.notes.push(not_listed(row, &server, &client, &error).into_note());
                }
            }
        }
        // A key can be set later, an address is part of the file.
        Err(_) if base_url.is_none() && service.base_url.is_some() => {}
        Err(reason) => {
            let hint = line(format!("init --provider {} --base-url URL", provider.name()));
            return Err(CliError::usage(format!("cannot write the team: {reason}")).hint(hint));
        }
    }
    if choice.model.name.is_empty() {
        choice.model.name = model.or(service.first_use.model).unwrap_or_default().to_owned();
    }
    if choice.model.name.is_empty() {
        let reason = choice.notes.first().cloned().unwrap_or("the server names no model".to_owned());
        let address = base_url.map(|url| format!(" --base-url {}", shell_word(url))).unwrap_or_default();
        let command = format!("init --provider {}{address} --model NAME", provider.name());
        let hint = hint!["name one: ", line(command)];
        return Err(CliError::usage(format!("cannot choose a model: {reason}")).hint(hint));
    }
    Ok(choice)
}

impl Choice {
    /// Takes the named model, or a suitable one, of the server's list.
    fn use_catalog(
        &mut self,
        service: &Service,
        server: &str,
        client: &HttpModel,
        named: Option<&str>,
        catalog: &Catalog,
    ) {
        self.notes.push(listed(server, client, catalog).text);
        // The server of llama.cpp has one model, whatever its name.
        let only = catalog.models.first().filter(|_| service.first_use.windows == WindowSource::LlamaCpp);
        let chosen = match named {
            Some(name) => catalog.find(name).or(only),
            None => catalog.choose(service.first_use.model),
        };
        let Some(name) = named.or(chosen.map(|model| model.name.as_str())) else { return };
        self.model.name = name.to_owned();
        // A hosted service lists the windows of its models, but a team needs no setting for a large one.
        let is_local = !service.needs_key || self.model.base_url.is_some();
        let window = chosen.and_then(|model| model.context_window_tokens);
        self.model.context_window_tokens = window.filter(|_| is_local);
        let problems = check_listed(service, catalog, name, &BTreeSet::new()).into_iter();
        self.notes.extend(problems.filter(|finding| !finding.is_ok()).map(Finding::into_note));
    }
}
