//! The JSON Schema of what this layer takes and returns.

use schemars::{JsonSchema, Schema, schema_for};

use super::consent::Agreed;
use super::cost::CostView;
use super::request::RequestView;
use super::team::TeamView;
use super::why::Reason;
use super::{Order, Outcome, Refusal};
use crate::domain::log::event::Event;

/// The data that front ends and the engine exchange.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Interface {
    /// An order.
    order: Order,
    /// The agreement that comes with an order.
    agreed: Agreed,
    /// The outcome of an order that was carried out.
    outcome: Outcome,
    /// The refusal of an order or a question.
    refusal: Refusal,
    /// The answer to the question about usage.
    cost: CostView,
    /// The answer to the question about a team.
    team: TeamView,
    /// A reason in the answer to the question why a task is in its state.
    reason: Reason,
    /// A request that waits for an answer, or has one.
    request: RequestView<'static>,
    /// An event of the log.
    event: Event,
}

/// Returns one document with the schema of orders, their outcomes, refusals, views and events.
pub fn schema() -> Schema {
    schema_for!(Interface)
}
