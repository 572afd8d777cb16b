//! Reduces a failing plan to the steps it needs to fail.

use super::plan::{Action, Plan, PlannedAction, Setup};
use super::world::{RunResult, run};

/// The lines of the log at the end of a report.
const LOG_LINES_MAX: usize = 120;

/// The violated invariant, without names and times.
fn invariant_of(outcome: &RunResult) -> Option<&str> {
    outcome.violations.first().and_then(|what| what.split([':', ',']).next())
}

/// Removes runs of steps, long ones first, while the plan still `fails`.
pub fn shrink_steps(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
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

/// Removes features of the team, while the plan still `fails`.
pub fn shrink_setup(plan: Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let parts: [fn(&mut Setup); 6] = [
        |setup| setup.budget = None,
        |setup| setup.budget.iter_mut().for_each(|allowance| allowance.member_tokens = None),
        |setup| setup.budget.iter_mut().for_each(|allowance| allowance.task_tokens = None),
        |setup| setup.lead_has_model = false,
        |setup| setup.review = None,
        |setup| setup.plan_first = false,
    ];
    parts.into_iter().fold(plan, |least, without| {
        let mut simpler = least.clone();
        without(&mut simpler.setup);
        if simpler != least && fails(&simpler) { simpler } else { least }
    })
}

/// The failure, the smallest plan that still fails, and the log of its run.
pub fn report(plan: &Plan) -> String {
    let whole = run(plan);
    let invariant = invariant_of(&whole).map(str::to_owned);
    let fails = |fewer: &Plan| invariant_of(&run(fewer)).map(str::to_owned) == invariant;
    let least = shrink_setup(shrink_steps(plan, fails), fails);
    let outcome = run(&least);
    let steps: Vec<String> = least.steps.iter().map(|step| format!("  {step:?}\n")).collect();
    let skip = outcome.log.len().saturating_sub(LOG_LINES_MAX);
    format!(
        "seed {}: {}\n{:?}\nof {} steps these {} are enough:\n{}{}\n{}",
        plan.seed,
        outcome.violations.join("; "),
        least.setup,
        plan.steps.len(),
        least.steps.len(),
        steps.concat(),
        outcome.log[skip..].join("\n"),
        if whole.violations == outcome.violations {
            String::new()
        } else {
            format!("at first: {:?}", whole.violations)
        },
    )
}

#[test]
fn shrinking_keeps_only_needed_steps() {
    let steps = (0..20).map(|ms| PlannedAction { wait_ms: ms, action: Action::JumpClock { ms: 0 } }).collect();
    let plan = Plan { steps, ..Plan::of(1) };
    let has = |plan: &Plan, ms: u64| plan.steps.iter().any(|step| step.wait_ms == ms);
    let setup = Setup { lead_has_model: true, plan_first: true, ..plan.setup };
    let simpler = shrink_setup(Plan { setup, ..plan.clone() }, |plan| plan.setup.plan_first);
    assert!(simpler.setup.plan_first && !simpler.setup.lead_has_model);
    let least = shrink_steps(&plan, |plan| has(plan, 3) && has(plan, 17));
    assert_eq!(least.steps.iter().map(|step| step.wait_ms).collect::<Vec<_>>(), [3, 17]);
}
