//! The transcript of a member.

use super::members;
use super::refusal::ApiResult;
use super::workspace::Workspace;
use crate::domain::agent::transcript::Record;
use crate::domain::team::name::LEAD;
use crate::stores::workspace::OpenMode;

/// The transcript of one member.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// The name of the member, as the team writes it.
    pub name: String,
    /// All records, oldest first.
    pub records: Vec<Record>,
}

impl Transcript {
    /// Reads the transcript of a teammate or of `lead`; the case of the name does not count.
    ///
    /// # Errors
    /// There is no such member, or its transcript cannot be read.
    pub async fn read(workspace: &Workspace, name: &str) -> ApiResult<Self> {
        let stores = workspace.stores(OpenMode::ReadOnly).await?;
        let name = members::find_name(workspace, name, &[LEAD]).await?;
        Ok(Self { records: stores.transcripts.load(&name).await?, name })
    }
}
