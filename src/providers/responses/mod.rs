//! Responses, the newer API of OpenAI, without state on the server: <https://platform.openai.com/docs/api-reference/responses>. Each
//! request has the whole context, with the items of earlier answers as they came.

use super::compat::Compat;
use super::exchange::{Api, Assembler};
use crate::domain::team::team_spec::ApiKind;
use crate::ports::ModelRequest;
use assembly::ResponseAssembler;

// Public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
mod body;

/// The API.
pub struct ResponsesApi;

impl Api for ResponsesApi {
    fn kind(&self) -> ApiKind {
        ApiKind::Responses
    }

    fn body(&self, request: &ModelRequest, compat: &Compat) -> Vec<u8> {
        body::body(request, compat)
    }

    fn assembler(&self, _compat: &Compat) -> Box<dyn Assembler> {
        Box::new(ResponseAssembler::default())
    }
}

#[cfg(test)]
mod tests;
