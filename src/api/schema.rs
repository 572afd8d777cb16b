//! The JSON Schema of what this layer takes and returns.

use schemars::{JsonSchema, Schema, schema_for};

use super::consent::Agreed;
use super::cost::CostView;
use super::{Order, Outcome, Refusal};

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
}

/// Returns one document with the schema of orders, their outcomes, refusals and views.
pub fn schema() -> Schema {
    schema_for!(Interface)
}
