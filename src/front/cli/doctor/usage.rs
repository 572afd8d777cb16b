//! The check of the usage that servers report.

use std::collections::BTreeMap;

use super::{Finding, warn};
use crate::front::cli::context::Context;
use crate::front::text::lines::count;
use crate::stores::workspace::OpenMode;

/// Reports the models of the ledger whose servers never reported a usable usage.
pub(super) async fn check_reports(context: &Context) -> Vec<Finding> {
    let Ok(stores) = context.workspace.stores(OpenMode::ReadOnly).await else { return Vec::new() };
    let Ok(totals) = stores.ledger.read().await else { return Vec::new() };
    let mut requests: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (account, spend) in totals.spent() {
        let (all, unconfirmed) = requests.entry(&account.model).or_default();
        *all += spend.requests;
        *unconfirmed += spend.unconfirmed;
    }
    let without = requests.into_iter().filter(|(_, (all, unconfirmed))| *all > 0 && all == unconfirmed);
    let finding = |(model, (all, _)): (&str, (u64, u64))| {
        let requests = count(usize::try_from(all).unwrap_or(usize::MAX), "request");
        let text = format!("{model}: {requests} without a usable report of usage, so the budget counts bytes");
        warn(
            "usage",
            text,
            "let the server report usage; a budget in bytes ends a team after a quarter of the work or less",
        )
    };
    without.map(finding).collect()
}
