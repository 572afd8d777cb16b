//! Resolves limits, isolation, budgets and prices from all sources.

use std::collections::BTreeMap;

use super::file::{Value, decimal, number};
use super::resolve::{Resolver, Source, Sourced, text_of};
use super::settings::{self, LIMITS};
use crate::domain::budget::{Budget, Price, Prices};
use crate::models::PROVIDERS;
use crate::team::spec::{Isolation, Limits, MemberSpec};

const PREFIX: &str = "prices.";

impl Resolver<'_> {
    /// Returns the isolation and the branch to merge into.
    pub(super) fn isolation(&mut self) -> (Isolation, Option<String>) {
        let isolation = self.text("isolation");
        let is_worktree = isolation.as_ref().is_some_and(|found| found.value == settings::ISOLATIONS[1]);
        let word = settings::ISOLATIONS[usize::from(is_worktree)];
        self.show("isolation", word, isolation.as_ref().map_or(&Source::Default, |found| &found.source));
        let merge_into = self.text("merge_into").filter(|found| !found.value.trim().is_empty());
        if let Some(found) = merge_into.as_ref().filter(|_| !is_worktree) {
            let problem = found.problem("`merge_into` has no effect without isolation: nothing is merged");
            self.problems.push(problem.hint("add isolation = \"worktree\", or remove it"));
        }
        let isolation = if is_worktree { Isolation::Worktree } else { Isolation::None };
        (isolation, merge_into.map(|found| found.value.trim().to_owned()))
    }

    pub(super) fn limits(&mut self) -> Limits {
        let mut limits = Limits::default();
        let mut command_timeout = None;
        for limit in LIMITS {
            let key = format!("limits.{}", limit.key);
            let found = self.find(&key, Some(limit.variable));
            if let Some(found) = &found {
                match number_of(&found.value).filter(|number| (limit.min..=limit.max).contains(number)) {
                    Some(number) => (limit.set)(&mut limits, number),
                    None => {
                        let message = format!("must be a whole number from {} to {}", limit.min, limit.max);
                        self.problems.push(found.problem(message));
                    }
                }
            }
            self.show(key, (limit.get)(&limits), found.as_ref().map_or(&Source::Default, |found| &found.source));
            if limit.key.starts_with("command_timeout") {
                command_timeout = found.or(command_timeout);
            }
        }
        if limits.command_timeout > limits.command_timeout_max
            && let Some(found) = command_timeout
        {
            let message = "`command_timeout_ms` must not be more than `command_timeout_max_ms`";
            self.problems.push(found.problem(message));
        }
        limits
    }

    /// Returns the prices of all models. Each key comes from the first file that has it.
    pub(super) fn prices(&mut self) -> Prices {
        let mut models: BTreeMap<String, BTreeMap<&'static str, Sourced<String>>> = BTreeMap::new();
        for (key, found) in self.outside_teams(PREFIX) {
            // A model's name may have dots.
            let named = key.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('.'));
            let Some((model, short)) = named else { continue };
            let Some(setting) = settings::PRICE_SETTINGS.iter().find(|setting| setting.key == short) else { continue };
            models.entry(model.to_owned()).or_default().entry(setting.key).or_insert(found);
        }
        let mut prices = Prices::new();
        for (model, found) in models {
            for (key, found) in &found {
                self.show(format!("{PREFIX}{model}.{key}"), decimal(&found.value), &found.source);
            }
            let part = |key: &str| found.get(key).and_then(|found| decimal(&found.value));
            let (Some(input), Some(output)) = (part("input_usd_per_mtok"), part("output_usd_per_mtok")) else {
                let message =
                    format!("the price of `{model}` needs both `input_usd_per_mtok` and `output_usd_per_mtok`");
                self.problems.extend(found.values().next().map(|found| found.problem(message)));
                continue;
            };
            let cache_read = part("cache_read_usd_per_mtok").unwrap_or(input);
            let cache_write = part("cache_write_usd_per_mtok").unwrap_or(input);
            prices.insert(model, Price { input, output, cache_read, cache_write });
        }
        prices
    }

    /// Returns the budget. A limit in dollars needs a price for every model that costs money.
    pub(super) fn budget(&mut self, prices: &Prices, lead: &MemberSpec, members: &[MemberSpec]) -> Budget {
        let tokens = self.text("budget.tokens").and_then(|found| number(&found.value));
        let usd = self.text("budget.usd");
        if let Some(found) = &usd {
            let costs = |name: &str| PROVIDERS.iter().any(|provider| provider.name == name && provider.costs);
            let unknown = std::iter::once(lead)
                .chain(members)
                .map(|member| &member.model)
                .find(|model| costs(&model.provider) && !prices.contains_key(&model.model));
            if let Some(model) = unknown {
                let problem =
                    found.problem(format!("`budget.usd` needs the price of every model: `{}` has none", model.model));
                self.problems.push(problem.hint(format!(
                    "add [prices.{:?}] with your provider's input_usd_per_mtok and output_usd_per_mtok, or limit `tokens`",
                    model.model
                )));
            }
        }
        Budget { tokens, usd: usd.and_then(|found| decimal(&found.value)) }
    }
}

fn number_of(value: &Value) -> Option<u64> {
    match value {
        Value::Integer(number) => Some(*number),
        other => number(&text_of(other)),
    }
}
