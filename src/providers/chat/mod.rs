//! Chat completions, the API of OpenAI that most other servers speak: <https://platform.openai.com/docs/api-reference/chat>.

// Public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
pub(super) mod body;
mod json_calls;
mod reasoning;

#[cfg(test)]
mod tests;
