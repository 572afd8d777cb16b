//! Chat completions, the API of OpenAI that most other servers speak: <https://platform.openai.com/docs/api-reference/chat>.

use super::exchange::{Api, Assembler};
use crate::ports::ModelRequest;
use assembly::ChatAssembler;
pub use body::{Compat, MaxTokensField};

// Public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
mod body;

/// The API with the differences of one service.
pub struct ChatApi(pub Compat);

impl Api for ChatApi {
    fn body(&self, request: &ModelRequest) -> Vec<u8> {
        body::body(request, self.0)
    }

    fn assembler(&self) -> Box<dyn Assembler> {
        Box::new(ChatAssembler::default())
    }
}

#[cfg(test)]
mod tests;
