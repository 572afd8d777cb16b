//! Chat completions, the API of OpenAI that most other servers speak: <https://platform.openai.com/docs/api-reference/chat>.

use super::compat::Compat;
use super::exchange::{Api, Assembler};
use crate::domain::team::team_spec::ApiKind;
use crate::ports::ModelRequest;
use assembly::ChatAssembler;

// Public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
mod body;
mod json_calls;
mod reasoning;

/// The API.
pub struct ChatApi;

impl Api for ChatApi {
    fn kind(&self) -> ApiKind {
        ApiKind::Chat
    }

    fn body(&self, request: &ModelRequest, compat: &Compat) -> Vec<u8> {
        body::body(request, compat)
    }

    fn assembler(&self, compat: &Compat) -> Box<dyn Assembler> {
        Box::new(ChatAssembler::new(compat.tool_calls))
    }
}

#[cfg(test)]
mod tests;
