//! The roster at a launch and at a spawn: the teammates that the lead spawned, and the rows of members that are gone.

use super::model_connection::{ModelConnector, check_model};
use super::running_member::roster_row;
use crate::agents::AgentServices;
use crate::domain::team::budget::Budget;
use crate::domain::team::name::Name;
use crate::domain::team::records::{MemberStatus, RosterMember, SpawnSettings, StartedBy};
use crate::domain::team::team_spec::{MEMBERS_MAX, MemberSpec, ModelSpec, TeamSpec};
use crate::ports::{StoreResult, Stores};

/// Adds the teammates that earlier runs spawned to the members of `spec`, except those that were shut down on request. Returns a warning
/// for each teammate that cannot be started.
///
/// # Errors
/// The roster cannot be read.
pub async fn restore_members(
    mut spec: TeamSpec,
    stores: &Stores,
    connect: &ModelConnector,
) -> StoreResult<(TeamSpec, Vec<String>)> {
    let mut warnings = Vec::new();
    for row in stores.roster.read().await? {
        let Some(settings) = row.spawned_in(spec.name.as_str()) else { continue };
        let Ok(name) = Name::new(&row.name) else { continue };
        // A member of the config takes precedence over a row with its name.
        if name.is_reserved() || spec.members.iter().any(|member| member.name.is_same(name.as_str())) {
            continue;
        }
        if spec.members.len() >= MEMBERS_MAX {
            let text = format!("{name} is not started: the team has {MEMBERS_MAX} members, which is the limit");
            warnings.push(text);
            continue;
        }
        let SpawnSettings { prompt, provider, model } = settings;
        let base = if spec.lead.model.provider == *provider {
            spec.lead.model.clone()
        } else {
            ModelSpec::new(provider, model)
        };
        let model = base.with_model(model);
        let member = MemberSpec { model, ..spawned_member(name, &row.role, prompt, &spec.lead) };
        if let Err(reason) = check_model(&member.model, connect) {
            warnings.push(format!("cannot use the model of {}: {reason}", member.name));
            continue;
        }
        spec.members.push(member);
    }
    Ok((spec, warnings))
}

/// Returns the settings of a teammate that the lead spawns: with the model and the permissions of the lead, and no budget of its own.
pub(super) fn spawned_member(name: Name, role: &str, prompt: &str, lead: &MemberSpec) -> MemberSpec {
    MemberSpec {
        name,
        role: role.to_owned(),
        prompt: prompt.to_owned(),
        capabilities: Vec::new(),
        plan_first: false,
        memory: None,
        budget: Budget::default(),
        is_spawned: true,
        ..lead.clone()
    }
}

/// Removes the rows of this team's earlier members that are no members any more. Rows of other programs and other teams stay.
pub(super) async fn remove_stale_rows(spec: &TeamSpec, stores: &Stores) -> StoreResult<()> {
    let team = spec.name.as_str();
    let is_stale = |row: &RosterMember| {
        // A spawned teammate that cannot be started now may be started by a later launch.
        let is_config_member =
            matches!(&row.started_by, StartedBy::Brigade { team: own, spawned: None } if own == team);
        is_config_member && !spec.members.iter().any(|member| member.name.is_same(&row.name))
    };
    let stale: Vec<String> = stores.roster.read().await?.into_iter().filter(is_stale).map(|row| row.name).collect();
    if stale.is_empty() { Ok(()) } else { stores.roster.remove(team, &stale).await }
}

/// Sends instructions to the teammates that an earlier process spawned, if that process ended before it sent them.
pub(super) async fn send_missing_instructions(services: &AgentServices) -> StoreResult<()> {
    let stores = &services.stores;
    for member in services.spec.members.iter().filter(|member| member.is_spawned) {
        let name = member.name.as_str();
        if stores.mailbox.peek(name).await?.is_empty() && stores.transcripts.load(name).await?.is_empty() {
            services.outbox().send_instructions(&member.name, &member.prompt).await?;
        }
    }
    Ok(())
}

/// Returns the names of agents of other programs, which can get mail too.
pub(super) async fn outside_agents(stores: &Stores) -> StoreResult<Vec<Name>> {
    let roster = stores.roster.read().await?;
    let outside = roster.iter().filter(|row| row.is_outside()).filter_map(|row| Name::new(&row.name).ok());
    Ok(outside.filter(|name| !name.is_reserved()).collect())
}

/// Records a teammate in the roster and sends it its instructions, before it starts: so a kill at any time loses no teammate.
pub(super) async fn register_spawned(services: &AgentServices, spec: &MemberSpec, is_spawned: bool) -> StoreResult<()> {
    let stores = &services.stores;
    let team = services.spec.name.as_str();
    stores.mailbox.add_inboxes(std::slice::from_ref(&spec.name)).await?;
    stores.roster.report(team, &[roster_row(spec, team, MemberStatus::Idle, is_spawned)]).await?;
    services.outbox().send_instructions(&spec.name, &spec.prompt).await
}
