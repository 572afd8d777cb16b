//! Usage and bills in the reports of servers. All counters of a prompt include those of the cache, and those of an answer include
//! reasoning. Brigade counts each token once.

use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::domain::agent::transcript::{TICKS_PER_USD, Usage};

/// The names of the counters in the reports of an API.
pub struct UsageFields {
    pub input: &'static str,
    pub input_details: &'static str,
    pub output: &'static str,
    pub output_details: &'static str,
}

/// The header of LiteLLM with the bill of an answer, in US dollars.
const COST_HEADER: &str = "x-litellm-response-cost";

/// Returns the usage in a report; `None` if a counter is no count.
pub fn usage_of(report: &Value, fields: &UsageFields) -> Option<Usage> {
    let count = |value: &Value| if value.is_null() { Some(0) } else { value.as_u64() };
    let details = &report[fields.input_details];
    let cached = [&details["cached_tokens"], &report["prompt_cache_hit_tokens"], &report["cached_tokens"]];
    let cached = cached.into_iter().find(|value| !value.is_null()).map_or(Some(0), count)?;
    let written = count(&details["cache_write_tokens"])?;
    let input = count(&report[fields.input])?;
    // Some servers leave reasoning out of the output, and include it in the total.
    let total = report["total_tokens"].as_u64().unwrap_or_default();
    let output = count(&report[fields.output])?.max(total.saturating_sub(input));
    let reasoning = count(&report[fields.output_details]["reasoning_tokens"])?;
    Some(Usage {
        input_tokens: input.saturating_sub(cached).saturating_sub(written),
        output_tokens: output,
        cache_read_tokens: cached,
        cache_write_tokens: written,
        reasoning_tokens: reasoning.min(output),
        cost_ticks: cost_ticks(report),
    })
}

/// Returns the bill in a report, in ticks: that of xAI, or that of OpenRouter, which does not include the bill of a person's own key.
fn cost_ticks(report: &Value) -> Option<u64> {
    if let Some(ticks) = report["cost_in_usd_ticks"].as_u64() {
        return Some(ticks);
    }
    let cost = report["cost"].as_f64()?;
    let upstream = report["cost_details"]["upstream_inference_cost"].as_f64().filter(|_| report["is_byok"] == true);
    ticks_of(cost + upstream.unwrap_or(0.0))
}

/// Returns the bill in the headers of an answer, in ticks. Zero means that it was not known when the answer began.
pub fn cost_ticks_of_headers(headers: &HeaderMap) -> Option<u64> {
    let cost = headers.get(COST_HEADER)?.to_str().ok()?.trim().parse().ok()?;
    ticks_of(cost).filter(|ticks| *ticks > 0)
}

/// Returns an amount in US dollars in ticks; `None` if it is no amount.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a larger amount is the largest one")]
fn ticks_of(usd: f64) -> Option<u64> {
    (usd.is_finite() && usd >= 0.0).then(|| (usd * TICKS_PER_USD).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELDS: UsageFields = UsageFields {
        input: "prompt_tokens",
        input_details: "prompt_tokens_details",
        output: "completion_tokens",
        output_details: "completion_tokens_details",
    };

    #[test]
    fn reported_bill_is_read_in_all_forms() {
        let bill = |report: Value| usage_of(&report, &FIELDS).unwrap().cost_ticks;
        assert_eq!(bill(json!({"cost": 0.25})), Some(2_500_000_000));
        assert_eq!(bill(json!({"cost": 0.25, "cost_details": {"upstream_inference_cost": 1.0}})), Some(2_500_000_000));
        let own_key = json!({"cost": 0.25, "is_byok": true, "cost_details": {"upstream_inference_cost": 1.0}});
        assert_eq!(bill(own_key), Some(12_500_000_000));
        assert_eq!(bill(json!({"cost_in_usd_ticks": 37_756_000})), Some(37_756_000));
        assert_eq!(bill(json!({"cost": 0})), Some(0), "a free model");
        for none in [json!({}), json!({"cost": null}), json!({"cost": -3}), json!({"cost": "1"})] {
            assert_eq!(bill(none.clone()), None, "{none}");
        }
        let header = |text: &str| {
            cost_ticks_of_headers(&HeaderMap::from_iter([(COST_HEADER.parse().unwrap(), text.parse().unwrap())]))
        };
        assert_eq!(
            [header("0.002"), header("0.0"), header("None"), header("-1"), header("NaN")],
            [Some(20_000_000), None, None, None, None]
        );
    }

    #[test]
    fn each_token_is_counted_once() {
        let usage = usage_of(
            &json!({"prompt_tokens": 100, "completion_tokens": 50,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
                "completion_tokens_details": {"reasoning_tokens": 40}}),
            &FIELDS,
        );
        let usage = usage.unwrap();
        assert_eq!((usage.input_tokens, usage.total_input(), usage.output_tokens), (30, 100, 50));
        assert_eq!((usage.total(), usage.reasoning_tokens), (150, 40));
        let apart = json!({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 150,
            "completion_tokens_details": {"reasoning_tokens": 40}});
        let usage = usage_of(&apart, &FIELDS).unwrap();
        assert_eq!((usage.output_tokens, usage.reasoning_tokens), (50, 40), "reasoning that is only in the total");
    }
}
