//! How models are reached: one provider a file, one line in [`PROVIDERS`] each.

use std::sync::Arc;

use crate::ports::{ModelClient, ModelSpec};

pub mod anthropic;
mod http;
pub mod runbook;
pub mod scripted;
mod secret;
// Not for other programs: fuzz targets reach it.
#[doc(hidden)]
pub mod sse;
pub mod tokens;

/// A way to reach models.
pub struct Provider {
    /// What the config calls it.
    pub name: &'static str,
    /// What people read about it.
    pub about: &'static str,
    /// The variables that may hold its key.
    pub keys: &'static [&'static str],
    /// Whether its tokens cost money.
    pub costs: bool,
    /// The server that these settings name, as `host:port`, where they name one.
    pub server: fn(&ModelSpec) -> Option<String>,
    /// Makes a client for one member; the error says what is wrong with its settings.
    pub connect: fn(&ModelSpec) -> Result<Arc<dyn ModelClient>, String>,
}

/// All providers.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        name: "anthropic",
        about: "models behind the Messages API, Anthropic's or another server's; the key is in ANTHROPIC_API_KEY",
        keys: &[anthropic::API_KEY, anthropic::AUTH_TOKEN],
        costs: true,
        server: anthropic::server,
        connect: anthropic::connect,
    },
    Provider {
        name: "runbook",
        about: "needs no key: does a task by running the fenced sh blocks of its description",
        keys: &[],
        costs: false,
        server: |_| None,
        connect: runbook::connect,
    },
    Provider {
        name: "scripted",
        about: "answers from the script file named by `model`: for tests, examples and rehearsals",
        keys: &[],
        costs: false,
        server: |_| None,
        connect: scripted::connect,
    },
];

/// The client for these settings.
///
/// # Errors
/// A sentence that names the setting that is wrong and what is allowed.
pub fn connect(spec: &ModelSpec) -> Result<Arc<dyn ModelClient>, String> {
    let provider = PROVIDERS.iter().find(|provider| provider.name == spec.provider).ok_or_else(|| {
        let known: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
        format!("there is no provider `{}`; there are: {}", spec.provider, known.join(", "))
    })?;
    (provider.connect)(spec)
}
