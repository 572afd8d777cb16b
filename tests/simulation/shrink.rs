//! Makes a plan that fails small: leaves out whatever it fails without.

use super::plan::{Deed, Plan, Setup, Step};
use super::world::{Outcome, run};

/// Lines of the story that a report ends with.
const STORY_LINES_MAX: usize = 120;

/// What is broken, without who and when.
fn law_of(outcome: &Outcome) -> Option<&str> {
    outcome.violations.first().and_then(|what| what.split([':', ',']).next())
}

/// Leaves out runs of steps, long ones first, for as long as the plan still `fails`.
pub fn shrunk(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut least = plan.clone();
    let mut length = least.steps.len().max(1);
    loop {
        let mut at = 0;
        while at < least.steps.len() {
            let mut fewer = least.clone();
            let end = (at + length).min(fewer.steps.len());
            fewer.steps.drain(at..end);
            if fails(&fewer) {
                least = fewer;
            } else {
                at += length;
            }
        }
        if length == 1 {
            return least;
        }
        length = length.div_ceil(2);
    }
}

/// Leaves out what the team is more than plain, for as long as the plan still `fails`.
pub fn plainer(plan: Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let parts: [fn(&mut Setup); 4] = [
        |setup| setup.budget = None,
        |setup| setup.lead_thinks = false,
        |setup| setup.review = None,
        |setup| setup.plan_first = false,
    ];
    parts.into_iter().fold(plan, |least, without| {
        let mut plain = least.clone();
        without(&mut plain.setup);
        if plain != least && fails(&plain) { plain } else { least }
    })
}

/// What fails, the least of it that still does, and how that went.
pub fn report(plan: &Plan) -> String {
    let whole = run(plan);
    let law = law_of(&whole).map(str::to_owned);
    let fails = |fewer: &Plan| law_of(&run(fewer)).map(str::to_owned) == law;
    let least = plainer(shrunk(plan, fails), fails);
    let outcome = run(&least);
    let steps: Vec<String> = least.steps.iter().map(|step| format!("  {step:?}\n")).collect();
    let skip = outcome.story.len().saturating_sub(STORY_LINES_MAX);
    format!(
        "seed {}: {}\n{:?}\nof {} steps these {} are enough:\n{}{}\n{}",
        plan.seed,
        outcome.violations.join("; "),
        least.setup,
        plan.steps.len(),
        least.steps.len(),
        steps.concat(),
        outcome.story[skip..].join("\n"),
        if whole.violations == outcome.violations {
            String::new()
        } else {
            format!("at first: {:?}", whole.violations)
        },
    )
}

#[test]
fn only_what_is_needed_is_left() {
    let steps = (0..20).map(|ms| Step { wait_ms: ms, deed: Deed::JumpClock { ms: 0 } }).collect();
    let plan = Plan { steps, ..Plan::of(1) };
    let has = |plan: &Plan, ms: u64| plan.steps.iter().any(|step| step.wait_ms == ms);
    let setup = Setup { lead_thinks: true, plan_first: true, ..plan.setup };
    let plain = plainer(Plan { setup, ..plan.clone() }, |plan| plan.setup.plan_first);
    assert!(plain.setup.plan_first && !plain.setup.lead_thinks);
    let least = shrunk(&plan, |plan| has(plan, 3) && has(plan, 17));
    assert_eq!(least.steps.iter().map(|step| step.wait_ms).collect::<Vec<_>>(), [3, 17]);
}
