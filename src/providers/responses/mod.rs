//! Responses, the newer API of OpenAI, without state on the server: <https://platform.openai.com/docs/api-reference/responses>. Each
//! request has the whole context, with the items of earlier answers as they came.

// Public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
pub(super) mod body;

#[cfg(test)]
mod tests;
