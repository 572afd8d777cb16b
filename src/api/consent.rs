//! The agreement of the person to what an order runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Refusal;
use crate::domain::task::Task;
use crate::domain::team::approval::Request;
use crate::domain::team::team_spec::TeamSpec;

/// Agrees for the person to what an order runs. A terminal asks; a page sends the agreement with a second order.
pub trait Consent {
    /// The reason why the person does not agree, or the refusal of the order.
    type Error: From<Refusal>;

    /// Agrees to the verify command of a task.
    ///
    /// # Errors
    /// The person does not agree. The command was not run.
    fn verify(&self, task: &Task, command: &str) -> Result<(), Self::Error>;

    /// Agrees to the settings of a team whose branch is merged.
    ///
    /// # Errors
    /// The person does not agree. Nothing was merged.
    fn merge(&self, team: &TeamSpec) -> Result<(), Self::Error>;

    /// Shows the whole call of a permission, and returns its digest if the person agrees; `None` if it shows nothing.
    ///
    /// # Errors
    /// The person does not agree. The request is not answered.
    fn call(&self, request: &Request) -> Result<Option<String>, Self::Error>;
}

/// The agreement that came with an order, of a front end that cannot ask while the order is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Agreed {
    /// The verify command that the person saw.
    pub verify: Option<String>,
    /// True if the person agrees to the settings of the team whose branch is merged.
    pub merge: bool,
}

impl Consent for Agreed {
    type Error = Refusal;

    fn verify(&self, task: &Task, command: &str) -> Result<(), Refusal> {
        if self.verify.as_deref() == Some(command) {
            return Ok(());
        }
        Err(Refusal::refused(format!("cannot complete {}: you have not agreed to its verify command", task.id)))
    }

    fn merge(&self, team: &TeamSpec) -> Result<(), Refusal> {
        if self.merge {
            return Ok(());
        }
        Err(Refusal::refused(format!("cannot merge: you have not agreed to the settings of team {}", team.name)))
    }

    fn call(&self, _: &Request) -> Result<Option<String>, Refusal> {
        Ok(None)
    }
}
