//! The agreement of the person to what an order runs, and to what the files of a workspace run, send, store and hand over.

mod list;
mod work;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Refusal, Workspace};
use crate::config::resolve::Resolved;
use crate::config::{Config, TeamFlags};
use crate::domain::task::Task;
use crate::domain::team::approval::Request;
use crate::domain::team::name::Name;
use crate::domain::team::team_spec::TeamSpec;
use crate::embed;
use crate::platform::reading::AllowedKinds;
use crate::sandbox::environment::TRUST_VARIABLE;
pub use list::{ConsentList, Line, Standing};
pub use work::verify_to_ask_about;

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

/// Returns true if the person agrees to everything, by a variable of the environment.
pub fn is_trusted(workspace: &Workspace) -> bool {
    workspace.location.environment().variables.get(TRUST_VARIABLE).is_some_and(|value| value == "1")
}

/// Returns true if the person agreed to the settings of this team, so that programs that they name may be started.
pub fn is_agreed(workspace: &Workspace, config: &Config, resolved: &Resolved) -> bool {
    let Ok(folder) = workspace.folder() else { return false };
    let list = ConsentList::of_settings(config, resolved, &folder);
    list.standing(&folder, &resolved.spec.name) == Standing::Agreed || is_trusted(workspace)
}

/// Records the agreement to a new team, if each line of its list comes from these files, which this program wrote. Returns `None` if
/// they cannot be read, or the record cannot be written.
pub fn record_written(
    workspace: &Workspace,
    team: &Name,
    config: &Path,
    written: &[PathBuf],
    shown: fn(&Line) -> String,
) -> Option<()> {
    let folder = config.parent()?.canonicalize().ok()?;
    let loaded = Config::load_found(Some(config), workspace.location.environment().clone()).ok()?;
    let resolved = loaded.team(team.as_str(), &TeamFlags::default()).ok()?;
    let mut list = ConsentList::of_settings(&loaded, &resolved, &folder);
    let plans = embed::read_plans(&resolved.spec.plans, &folder, AllowedKinds::within_folder_of(config)).ok()?;
    plans.iter().for_each(|plan| list.add_plan(&resolved.spec, plan, &folder));
    if list.lines.iter().all(|line| line.file.as_ref().is_some_and(|file| written.contains(file))) {
        list.record(&folder, team, workspace.now(), false, shown).ok()?;
    }
    Some(())
}
