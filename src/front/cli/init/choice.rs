//! The model of a new team: the one that the person names, or a suitable one of the server.

use super::starter::{Model, Provider};
use crate::domain::agent::prompt_cut::SMALL_WINDOW_TOKENS;
use crate::domain::team::team_spec::ModelSpec;
use crate::domain::text::suggestion::nearest_up_to;
use crate::domain::text::units::{count, join_up_to};
use crate::domain::text::{one_line, shell_word};
use crate::front::cli::doctor::not_listed;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::text::commands::{hint, line};
use crate::providers::catalog::{Catalog, ListedModel, WindowSource};
use crate::providers::service::Service;

/// The most names of models in a note.
const MODELS_SHOWN_MAX: usize = 10;
/// The most near names in a note.
const NEAR_NAMES_MAX: usize = 3;

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
                Ok(catalog) => choice.use_catalog(service, &server, model, &catalog),
                Err(error) => {
                    let problem = not_listed(row, &server, &client, &error);
                    let hint = problem.hint.filter(|hint| !hint.is_empty());
                    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                    choice.notes.push(format!("{}{hint}", problem.text));
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
    fn use_catalog(&mut self, service: &Service, server: &str, named: Option<&str>, catalog: &Catalog) {
        let names = join_up_to(catalog.models.iter().map(|model| one_line(&model.name)), MODELS_SHOWN_MAX);
        let models = count(catalog.models.len(), "model");
        self.notes.push(format!("{server} lists {models}{}{names}", if names.is_empty() { "" } else { ": " }));
        // The server of llama.cpp has one model, whatever its name.
        let only = catalog.models.first().filter(|_| service.first_use.windows == WindowSource::LlamaCpp);
        let chosen = match named {
            Some(name) => catalog.find(name).or(only),
            None => catalog.choose(service.first_use.model),
        };
        match (chosen, named) {
            (Some(chosen), _) => self.take(service, chosen, named),
            (None, Some(name)) if !catalog.is_cut => {
                let near = nearest_up_to(NEAR_NAMES_MAX, name, catalog.models.iter().map(|model| model.name.as_str()));
                let near = near.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ");
                let near = if near.is_empty() { near } else { format!("; did you mean {near}?") };
                self.notes.push(format!("the server does not list `{name}`{near}"));
            }
            _ => {}
        }
    }

    /// Takes a model of the list.
    fn take(&mut self, service: &Service, chosen: &ListedModel, named: Option<&str>) {
        self.model.name = named.unwrap_or(&chosen.name).to_owned();
        // A hosted service lists the windows of its models, but a team needs no setting for a large one.
        let is_local = !service.needs_key || self.model.base_url.is_some();
        self.model.context_window_tokens = chosen.context_window_tokens.filter(|_| is_local);
        let is_unknown = matches!(service.first_use.windows, WindowSource::Ollama | WindowSource::LmStudio)
            && chosen.context_window_tokens.is_none();
        let is_small = self.model.context_window_tokens.is_some_and(|tokens| tokens < SMALL_WINDOW_TOKENS);
        if let Some(remedy) = service.first_use.larger_window.filter(|_| is_unknown || is_small) {
            let window = self.model.context_window_tokens;
            let window = window.map_or("unknown".to_owned(), |tokens| format!("{tokens} tokens, which is small"));
            self.notes.push(format!("the context window of {} is {window}: {remedy}", one_line(&chosen.name)));
        }
    }
}
