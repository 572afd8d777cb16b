//! The connections of members to their models: clients, fallbacks and accounts.

use std::sync::Arc;

use crate::agents::builtin::model_chain::{ChainedModel, ModelChain};
use crate::domain::team::account::{Account, AccountId};
use crate::domain::team::team_spec::{AgentKind, ModelSpec};
use crate::ports::ModelClient;
use crate::sandbox::environment::passed_variables;

/// Creates the client of a member's model.
pub type ModelConnector = Arc<dyn Fn(&ModelSpec) -> Result<Arc<dyn ModelClient>, String> + Send + Sync>;

/// Returns the account of a member with these settings. `server` is the account that its model's client reports.
pub(super) fn account_of(spec: &ModelSpec, server: Option<AccountId>) -> Account {
    let name = spec.account();
    let (id, is_shared) = match (spec.agent, server) {
        (AgentKind::Builtin, Some(id)) => (id, true),
        // The program has its own login, unless a variable names another one.
        (AgentKind::Program, _) => {
            let passed = passed_variables(&spec.pass_env);
            let parts = passed.iter().flat_map(|(variable, value)| [variable.as_bytes(), value.as_bytes()]);
            (AccountId::of(&std::iter::once(name.as_bytes()).chain(parts).collect::<Vec<_>>()), true)
        }
        _ => (AccountId::of(&[name.as_bytes()]), false),
    };
    Account { id, name: name.into(), is_shared }
}

/// Checks that a member can be started with this model.
///
/// # Errors
/// A text that names the wrong setting.
pub fn check_model(spec: &ModelSpec, connect: &ModelConnector) -> Result<(), String> {
    match spec.agent {
        AgentKind::Builtin => {
            connect(spec)?;
            let check = |fallback: &ModelSpec| {
                let error = |reason| format!("its fallback `{}`: {reason}", fallback.model);
                connect(fallback).map(drop).map_err(error)
            };
            spec.fallback.iter().try_for_each(check)
        }
        AgentKind::Runbook if spec.base_url.is_some() => {
            Err(format!("the provider `{}` uses no server: remove `base_url`", spec.provider))
        }
        AgentKind::Runbook | AgentKind::Program => Ok(()),
    }
}

/// Connects to a model and its fallbacks.
///
/// # Errors
/// A text that names the wrong setting.
pub(super) fn model_chain(spec: &ModelSpec, connect: &ModelConnector) -> Result<ModelChain, String> {
    let chained = |spec: &ModelSpec| {
        let client = connect(spec)?;
        let account = account_of(spec, client.account());
        Ok::<_, String>(ChainedModel { spec: spec.clone(), client, account })
    };
    let fallbacks = spec.fallback.iter().map(chained).collect::<Result<_, _>>()?;
    Ok(ModelChain::new(chained(spec)?, fallbacks))
}
