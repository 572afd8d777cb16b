//! The members of the teams in a workspace: their names, their inboxes, and their claims.

use std::collections::HashSet;
use std::sync::Arc;

use super::lead_status::LeadStatus;
use super::next::Next;
use super::refusal::{ApiResult, Refusal};
use super::task::ClaimCandidate;
use super::workspace::Workspace;
use crate::config::TeamFlags;
use crate::domain::team::name::Name;
use crate::domain::team::records::RosterMember;
use crate::domain::team::team_spec::{MemberSpec, TeamSpec};
use crate::domain::text::one_line;
use crate::domain::text::suggestion::did_you_mean;
use crate::domain::text::units::join_up_to;
use crate::ports::Stores;
use crate::providers;
use crate::stores::workspace::OpenMode;
use crate::team::model_connection::ModelConnector;
use crate::team::restore_members;

/// The most names that an error lists.
const NAMES_MAX: usize = 20;

/// The members that could claim tasks if this team ran.
pub fn candidates(team: &TeamSpec) -> Vec<ClaimCandidate> {
    let candidate = |member: &MemberSpec| ClaimCandidate {
        scope: team.task_scope(member),
        ..ClaimCandidate::of(member.name.to_string(), member.capabilities())
    };
    team.members.iter().map(candidate).collect()
}

/// The names that the config and the roster have for a team: members, teammates that its lead spawned, and agents of other programs.
/// The lead is left out.
pub fn names_of_team(team: &TeamSpec, roster: &[RosterMember]) -> Vec<Name> {
    let is_member = |row: &&RosterMember| row.is_outside() || row.spawned_in(team.name.as_str()).is_some();
    let others = roster.iter().filter(is_member).filter_map(|row| Name::new(&row.name).ok());
    let mut names: Vec<Name> = Vec::new();
    for name in team.members.iter().map(|member| member.name.clone()).chain(others) {
        if !name.is_reserved() && !names.iter().any(|known| known.is_same(name.as_str())) {
            names.push(name);
        }
    }
    names
}

/// Opens the inboxes of the config's only team if no team runs, because mail can be sent before the first launch. The roster adds
/// teammates that the lead spawned and agents of other programs. A running team has opened the inboxes of its members. Returns
/// the team.
///
/// # Errors
/// The inboxes cannot be opened.
pub async fn open_inboxes(workspace: &Workspace, stores: &Stores) -> ApiResult<Option<TeamSpec>> {
    let lead_status = LeadStatus::of(workspace).await?;
    let team = workspace.location.team_if_valid(lead_status.team());
    if lead_status.lead.is_none()
        && let Some(team) = &team
    {
        let roster = stores.roster.read().await?;
        stores.mailbox.open_inboxes(&names_of_team(team, &roster)).await?;
    }
    Ok(team)
}

/// Returns the team with the members that a launch would take from the roster: those that the lead spawned.
///
/// # Errors
/// The workspace does not exist or cannot be read.
pub async fn with_spawned(workspace: &Workspace, team: TeamSpec) -> ApiResult<TeamSpec> {
    let stores = workspace.stores(OpenMode::ReadOnly).await?;
    let connect: ModelConnector = Arc::new(providers::connect);
    Ok(restore_members(team, &stores, &connect).await?.0)
}

/// The names of the teammates: first the members in the config, then those in the roster, which also has teammates that a lead
/// spawned.
pub async fn all_names(workspace: &Workspace) -> Vec<String> {
    let mut names = Vec::new();
    if let Some(config) = workspace.location.config_if_valid() {
        for team in config.team_names() {
            let Ok(team) = config.team(&team, &TeamFlags::default()) else { continue };
            names.extend(team.spec.members.iter().map(|member| member.name.to_string()));
        }
    }
    if let Ok(stores) = workspace.stores(OpenMode::ReadOnly).await {
        let roster = stores.roster.read().await.unwrap_or_default();
        names.extend(roster.into_iter().map(|member| member.name));
    }
    let mut known = HashSet::new();
    names.retain(|name| !Name::new(name).is_ok_and(|name| name.is_reserved()) && known.insert(name.to_lowercase()));
    names
}

/// The name of the teammate, or of one of these `others`, that a person typed. Without any known name every name is accepted.
///
/// # Errors
/// There is no such member.
pub async fn find_name(workspace: &Workspace, typed: &str, others: &[&str]) -> ApiResult<String> {
    let typed = typed.trim_start_matches('@');
    let mut names = all_names(workspace).await;
    names.extend(others.iter().map(|name| (*name).to_owned()));
    if let Some(name) = names.iter().find(|name| name.eq_ignore_ascii_case(typed)) {
        return Ok(name.clone());
    }
    if names.is_empty() {
        return Ok(typed.to_owned());
    }
    let known = one_line(&join_up_to(names.iter(), NAMES_MAX));
    let message = format!("cannot find the teammate `{}`: there are {known}", one_line(typed));
    let meant = did_you_mean(typed, names.iter().map(String::as_str));
    Err(Refusal::refused(message).steps(meant.map(Next::from)))
}
