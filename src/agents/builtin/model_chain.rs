//! The model of an agent and its fallbacks. One of them answers: the first, until its service gives no answer. Then the next one answers
//! until the end of the task, or until the last one gives no answer either. Then the first model is asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Turn;
use crate::agents::AgentHost;
use crate::agents::turn_control::StopLevel;
use crate::domain::log::event::EventKind;
use crate::domain::team::account::Account;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::team_spec::ModelSpec;
use crate::ports::{ModelClient, ModelError};

/// A model that can answer.
pub struct ChainedModel {
    pub spec: ModelSpec,
    pub client: Arc<dyn ModelClient>,
    /// The account that its requests use.
    pub account: Account,
}

/// The models of one agent, the first of which it prefers.
pub struct ModelChain {
    models: Vec<ChainedModel>,
    /// The index of the one that answers.
    current: AtomicUsize,
    /// The claim in which a fallback began to answer.
    claim: Mutex<Option<ClaimRef>>,
    /// The context window that an error of the current model reported, if one did.
    reported_window: Mutex<Option<u64>>,
}

impl ModelChain {
    /// Creates a chain in this order. It has at least one model.
    pub fn new(first: ChainedModel, fallbacks: Vec<ChainedModel>) -> Self {
        let models = std::iter::once(first).chain(fallbacks).collect();
        Self { models, current: AtomicUsize::new(0), claim: Mutex::default(), reported_window: Mutex::default() }
    }

    /// Returns the accounts of all models.
    pub fn accounts(&self) -> Vec<Account> {
        self.models.iter().map(|model| model.account.clone()).collect()
    }

    /// Returns the model that answers.
    pub fn current(&self) -> &ChainedModel {
        // The index is always one of the models.
        &self.models[self.index()]
    }

    /// Returns the index of the model that answers.
    pub fn index(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Returns the settings of the model that answers.
    pub fn spec(&self) -> &ModelSpec {
        &self.current().spec
    }

    /// Returns the context window of the model in tokens: from its own error, its settings or its provider, in this order.
    pub fn window_tokens(&self) -> Option<u64> {
        let ChainedModel { spec, client, .. } = self.current();
        let reported = *self.reported_window.lock();
        reported.or(spec.context_window_tokens).or_else(|| client.context_window_tokens())
    }

    /// Records the context window that an error of the model reported.
    pub fn set_reported_window(&self, tokens: Option<u64>) {
        let mut known = self.reported_window.lock();
        *known = tokens.or(*known);
    }

    fn select(&self, index: usize, claim: Option<ClaimRef>) {
        self.current.store(index, Ordering::Relaxed);
        *self.claim.lock() = claim;
        *self.reported_window.lock() = None;
    }

    fn has_fallback_of_other_claim(&self, claim: Option<ClaimRef>) -> bool {
        self.index() > 0 && *self.claim.lock() != claim
    }
}

/// Returns true if another service may answer the request. A context that is too long, and a request that the server does not
/// accept, are not the service's fault.
fn may_be_answered_elsewhere(error: &ModelError) -> bool {
    match error {
        ModelError::Temporary { .. }
        | ModelError::Limited { .. }
        | ModelError::NoServer(_)
        | ModelError::InvalidAnswer(_)
        | ModelError::NoCredit(_)
        | ModelError::WrongSetting(_) => true,
        ModelError::ContextTooLong { .. } | ModelError::Final(_) => false,
    }
}

impl Turn<'_> {
    /// Lets the next model answer after this last error of the one with index `failed`, if there is one. Returns true if another one
    /// answers now.
    pub(super) fn use_fallback(&self, failed: usize, error: &ModelError) -> bool {
        let chain = &self.agent.model;
        let Some(to) = chain.models.get(failed + 1) else { return false };
        if !may_be_answered_elsewhere(error) || self.host.turn_control.level() > StopLevel::Run {
            return false;
        }
        // Another request of the agent can have failed before.
        if chain.index() == failed {
            self.select(failed + 1, &to.spec, error.to_string());
        }
        true
    }

    /// Lets the next model answer while the account of the current one is known to have no quota or no credit.
    pub(super) async fn skip_used_up_models(&self) {
        let chain = &self.agent.model;
        let services = &self.host.services;
        loop {
            let index = chain.index();
            let Some(to) = chain.models.get(index + 1) else { return };
            let limit = services.accounts.limit(&chain.models[index].account).await;
            let Some(limit) = limit.filter(|limit| limit.is_quota) else { return };
            if chain.index() == index {
                let until = limit.until.to_clock_or_date(services.clock.now());
                let reason =
                    if limit.is_window() { "its quota is used up" } else { "its account has no credit, at least" };
                self.select(index + 1, &to.spec, format!("{reason} until {until}"));
            }
        }
    }

    fn select(&self, index: usize, to: &ModelSpec, reason: String) {
        record(self.host, self.agent.model.spec(), to, Some(reason));
        self.agent.model.select(index, self.host.turn_control.claim());
    }

    /// Lets the first model answer again if a fallback answered for another task.
    pub(super) fn end_fallback_of_other_task(&self) {
        if self.agent.model.has_fallback_of_other_claim(self.host.turn_control.claim()) {
            self.end_fallback();
        }
    }

    /// Lets the first model answer again, if a fallback does.
    pub(super) fn end_fallback(&self) {
        let chain = &self.agent.model;
        if chain.index() > 0 {
            record(self.host, chain.spec(), &chain.models[0].spec, None);
            chain.select(0, None);
        }
    }
}

/// Records that another model answers. Without a reason, it is the first one again.
fn record(host: &AgentHost, from: &ModelSpec, to: &ModelSpec, reason: Option<String>) {
    let name = |spec: &ModelSpec| format!("{} of {}", spec.usage_name(), spec.provider);
    host.progress.set_fallback(reason.as_ref().map(|_| to.usage_name().into()));
    host.services.events.record(EventKind::ModelSwitched {
        teammate: host.name().to_owned(),
        task: host.task(),
        from: name(from),
        to: name(to),
        reason,
    });
}
