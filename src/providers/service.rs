//! A service that models are reached through over HTTP: its address, its keys and its API.

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::catalog::{self, Catalog, CatalogError, FirstUse};
use super::compat::Compat;
use super::exchange::{CommandKey, HttpModel};
use super::http;
use super::key_command::{KeyCommands, secret_header};
use super::messages;
use super::options::RequestOptions;
use super::provider;
use crate::domain::team::account::AccountId;
use crate::domain::team::model_spec::ToolCalls;
use crate::domain::team::team_spec::{ApiKind, ModelSpec};
use crate::ports::ModelClient;
use crate::secrets::Secret;

/// A service of the `PROVIDERS` table.
pub struct Service {
    /// The address of its API; `None` if each user has another one, so that `base_url` must be set.
    pub base_url: Option<&'static str>,
    /// The variable with an address, for members without `base_url`.
    pub base_url_variable: Option<&'static str>,
    /// The variables that can hold its keys. All that are set are sent.
    pub keys: &'static [KeyVariable],
    /// True if it refuses requests without a key at its own address.
    pub needs_key: bool,
    /// The path before that of the API, which an address without a path gets.
    pub root: &'static str,
    /// True if each address gets it.
    pub adds_root: bool,
    /// Its API, unless the settings name another one.
    pub api: ApiKind,
    /// Its differences from the API.
    pub compat: Compat,
    /// Returns the context window of this model in tokens, if it is known.
    pub window_tokens: fn(&str) -> Option<u64>,
    /// The facts for a first team.
    pub first_use: FirstUse,
}

/// A variable that can hold a key, and the header that carries it.
pub struct KeyVariable {
    pub name: &'static str,
    pub header: &'static str,
    /// The text before the key in the header.
    pub prefix: &'static str,
}

/// Builds the client for a member, with the commands that print keys.
///
/// # Errors
/// A text that names the missing or wrong setting or variable.
pub fn connect(spec: &ModelSpec, commands: &KeyCommands) -> Result<Arc<dyn ModelClient>, String> {
    let service = provider(&spec.provider).and_then(|provider| provider.service.as_ref());
    let service = service.ok_or_else(|| format!("the provider `{}` has no server", spec.provider))?;
    Ok(Arc::new(service.model_with(spec, &|name| std::env::var(name).ok(), commands)?))
}

impl Service {
    /// Creates a client from these settings and the environment that `variable` reads.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn model(&self, spec: &ModelSpec, variable: &dyn Fn(&str) -> Option<String>) -> Result<HttpModel, String> {
        self.model_with(spec, variable, &KeyCommands::without_runner())
    }

    fn model_with(
        &self,
        spec: &ModelSpec,
        variable: &dyn Fn(&str) -> Option<String>,
        commands: &KeyCommands,
    ) -> Result<HttpModel, String> {
        let (address_setting, base) = self.configured_base(spec, variable).unzip();
        let Some(base) = base.as_deref().or(self.base_url) else {
            return Err(format!("the provider `{}` needs `base_url`, the address of its server", spec.provider));
        };
        self.check_tool_calls(spec)?;
        let api = self.api(spec);
        let url =
            self.url(base, api).map_err(|reason| format!("`{}` {reason}", address_setting.unwrap_or("base_url")))?;
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        for (name, value) in headers_of(api) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let mut key_variables = Vec::new();
        let address = url.origin().ascii_serialization();
        let mut account = vec![address.into_bytes()];
        let key_command = spec.key_command.as_ref().map(|script| {
            let KeyVariable { header, prefix, .. } = self.keys.first().unwrap_or(&BEARER);
            CommandKey { command: commands.command(script, &spec.pass_env), header, prefix }
        });
        // The keys that it prints differ, so its text identifies the account.
        account.extend(spec.key_command.as_ref().map(|script| script.as_bytes().to_owned()));
        let keys = if key_command.is_some() { &[] } else { self.keys };
        for KeyVariable { name, header, prefix } in keys {
            let Some(secret) = variable(name).as_deref().and_then(Secret::new) else { continue };
            headers.insert(*header, secret_header(prefix, &secret).map_err(|reason| format!("{name} {reason}"))?);
            key_variables.push(*name);
            account.push(secret.expose().as_bytes().to_owned());
        }
        for (name, value) in &spec.headers {
            headers.insert(header_name(name)?, header_value(name, value)?);
            if self.is_key_header(name) {
                key_variables.push("`headers`");
                account.push(value.as_bytes().to_owned());
            }
        }
        if key_variables.is_empty() && key_command.is_none() && self.needs_key && self.is_own_address(&url) {
            let names: Vec<&str> = self.keys.iter().map(|key| key.name).collect();
            return Err(format!(
                "{} needs a key: set {} in the environment",
                url.origin().ascii_serialization(),
                names.join(" or ")
            ));
        }
        Ok(HttpModel {
            options: RequestOptions::new(spec, api, self.compat)?.into(),
            key_command,
            api,
            provider: spec.provider.clone(),
            client: http::client(&url)?,
            url,
            // A server on this machine can be off, or at another port.
            address_setting: address_setting.or((!self.needs_key).then_some("base_url")),
            start: self.first_use.start,
            account: AccountId::of(&account.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            context_window_tokens: (self.window_tokens)(&spec.model),
            headers,
            key_variables,
            missing_key: self.keys.first().map_or("", |key| key.name),
        })
    }

    /// Checks that the API of these settings has their form of calls.
    ///
    /// # Errors
    /// A text that names the setting.
    pub fn check_tool_calls(&self, spec: &ModelSpec) -> Result<(), String> {
        match (spec.tool_calls, self.api(spec)) {
            (ToolCalls::Native, _) | (ToolCalls::Json, ApiKind::Chat) => Ok(()),
            (ToolCalls::Json, api) => Err(format!("`tool_calls` = \"json\" needs the API `chat`, not `{api}`")),
        }
    }

    /// Asks the server of this client for its models.
    ///
    /// # Errors
    /// See [`CatalogError`].
    pub async fn catalog(&self, model: &HttpModel) -> Result<Catalog, CatalogError> {
        catalog::list(model, path_of(model.api), self.first_use.windows).await
    }

    /// Returns true if a key can be in this header.
    fn is_key_header(&self, name: &str) -> bool {
        self.keys.iter().chain([&BEARER]).any(|key| key.header.eq_ignore_ascii_case(name))
    }

    /// Returns the API that a member uses.
    fn api(&self, spec: &ModelSpec) -> ApiKind {
        spec.api.unwrap_or(self.api)
    }

    /// Returns the server that the settings or the variable name, as `host:port`; `None` for the service's own address on the internet.
    pub fn server(&self, spec: &ModelSpec) -> Option<String> {
        let configured = self.configured_base(spec, &|name| std::env::var(name).ok()).map(|(_, base)| base);
        let url = self.url(configured.as_deref().or(self.base_url)?, self.api(spec)).ok()?;
        if self.needs_key && self.is_own_address(&url) {
            return None;
        }
        Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
    }

    /// Returns the address in the settings or the variable, and the name of its source.
    fn configured_base(
        &self,
        spec: &ModelSpec,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<(&'static str, String)> {
        let from_variable = || {
            let name = self.base_url_variable?;
            variable(name).filter(|url| !url.trim().is_empty()).map(|url| (name, url))
        };
        spec.base_url.clone().map(|url| ("base_url", url)).or_else(from_variable)
    }

    fn is_own_address(&self, url: &Url) -> bool {
        let own = self.base_url.and_then(|base| base.parse::<Url>().ok());
        own.is_some_and(|own| own.host_str() == url.host_str())
    }

    /// The address of the API below `base`. A base without a path gets the root. It can end with the path of the API.
    fn url(&self, base: &str, api: ApiKind) -> Result<Url, String> {
        let base = base.trim().trim_end_matches('/');
        let has_scheme =
            |scheme: &str| base.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        if !["http://", "https://"].into_iter().any(has_scheme) {
            return Err("must start with http:// or https://".to_owned());
        }
        let base = base.strip_suffix(path_of(api)).unwrap_or(base);
        if let Some(other) = ApiKind::ALL.iter().find(|other| base.ends_with(path_of(**other))) {
            let (path, other, api) = (path_of(*other), other.as_str(), api.as_str());
            return Err(format!("ends with {path}, but the API is `{api}`: remove that, or set `api = \"{other}\"`"));
        }
        let mut url: Url = base.parse().map_err(|error| format!("is not a URL: {error}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            let names: Vec<&str> = self.keys.iter().map(|key| key.name).collect();
            return Err(format!("must not contain a password: set {}", names.join(" or ")));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("must not contain `?` or `#`".to_owned());
        }
        let base = url.path().trim_end_matches('/');
        let lacks_root = if self.adds_root { !base.ends_with(self.root) } else { base.is_empty() };
        url.set_path(&format!("{base}{}{}", if lacks_root { self.root } else { "" }, path_of(api)));
        Ok(url)
    }
}

/// The header that most servers take a key in.
const BEARER: KeyVariable = KeyVariable { name: "", header: "authorization", prefix: "Bearer " };

fn header_name(name: &str) -> Result<HeaderName, String> {
    HeaderName::try_from(name).map_err(|_| format!("`headers` has an invalid name `{}`", name.escape_debug()))
}

/// Returns the value of a configured header, which can be a secret.
fn header_value(name: &str, value: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| format!("`headers.{name}` has characters that an HTTP header cannot carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The headers of an API.
fn headers_of(api: ApiKind) -> &'static [(&'static str, &'static str)] {
    match api {
        ApiKind::Messages => &[("anthropic-version", messages::VERSION)],
        ApiKind::Chat | ApiKind::Responses => &[],
    }
}

/// The path of an API below the root.
fn path_of(api: ApiKind) -> &'static str {
    match api {
        ApiKind::Messages => "/messages",
        ApiKind::Chat => "/chat/completions",
        ApiKind::Responses => "/responses",
    }
}
