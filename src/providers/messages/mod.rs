//! The Messages API of Anthropic and other servers: <https://platform.claude.com/docs/en/api/messages>.

use super::catalog::FirstUse;
use super::compat::Compat;
use super::service::{KeyVariable, Service};
use crate::domain::team::team_spec::ApiKind;

// Public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
pub(super) mod body;

/// The variable with the API key of Anthropic.
pub const API_KEY: &str = "ANTHROPIC_API_KEY";
/// The variable with a bearer token.
pub const AUTH_TOKEN: &str = "ANTHROPIC_AUTH_TOKEN";
/// The variable with a base URL, for members without `base_url` in the config.
pub const BASE_URL: &str = "ANTHROPIC_BASE_URL";

/// The version of the API (<https://platform.claude.com/docs/en/api/versioning>).
pub const VERSION: &str = "2023-06-01";
/// The smallest context window of all Claude models, in tokens (<https://platform.claude.com/docs/en/build-with-claude/context-windows>).
const CLAUDE_WINDOW_TOKENS: u64 = 200_000;

/// Anthropic's service. Other servers with its API have a `base_url`.
pub const ANTHROPIC: Service = Service {
    base_url: Some("https://api.anthropic.com"),
    base_url_variable: Some(BASE_URL),
    keys: &[
        KeyVariable { name: API_KEY, header: "x-api-key", prefix: "" },
        KeyVariable { name: AUTH_TOKEN, header: "authorization", prefix: "Bearer " },
    ],
    needs_key: true,
    root: "/v1",
    adds_root: true,
    api: ApiKind::Messages,
    compat: Compat::DEFAULT,
    window_tokens: |model| model.starts_with("claude-").then_some(CLAUDE_WINDOW_TOKENS),
    first_use: FirstUse { model: Some("claude-sonnet-4-5"), ..FirstUse::UNKNOWN },
};

#[cfg(test)]
mod tests;
