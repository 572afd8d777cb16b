//! The outcomes of orders about the team: messages, answers, stops, its state, its work and its usage.

use serde_json::value::RawValue;

use crate::api::Question;
use crate::api::cost::CostView;
use crate::api::lead_status::LeadStatus;
use crate::api::merge::{Merged, SetAside, TakeOver};
use crate::api::request::GivenAnswer;
use crate::api::send::{Reading, Sent};
use crate::api::stop::{NextStart, StopTime, StoppedTeam, TeammateStop};
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::name::ALL;
use crate::domain::team::state::{Mode, SharedState};
use crate::domain::text::units::{count, join_up_to};
use crate::domain::text::{one_line, shell_word};
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::cost;
use crate::front::text::lead_status::delivery;
use crate::front::text::pending::team_branch;
use crate::front::text::style::{BOLD, DIM, paint};
use crate::front::text::team::{process, setter};

/// The most names in a note.
const NAMES_MAX: usize = 10;

/// Sent messages as the answer.
pub fn sent(context: &Context, sent: Sent) -> CliResult<CommandAnswer> {
    let Sent { to, messages, left_out, without_model, reading } = sent;
    let answer = context.output.answer(&messages, || {
        let is_to_all = to.eq_ignore_ascii_case(ALL);
        let whom = if is_to_all { format!("all {}", count(messages.len(), "member")) } else { one_line(&to) };
        format!("sent to {whom}\n")
    })?;
    let answer = answer.notes((!left_out.is_empty()).then(|| {
        let names = join_up_to(left_out.iter(), NAMES_MAX);
        format!("not sent to {names}: not in the running team; the next launch starts the members of the config")
    }));
    let answer = answer.notes(
        without_model.map(|who| format!("{who} has no model (provider runbook): it reads the mail and cannot answer")),
    );
    Ok(answer.notes(match reading {
        Reading::OwnInbox => Some(hint!["it is in your own inbox: ", Question::Inbox]),
        Reading::OnRequest => {
            let whom = one_line(&to);
            Some(format!("{whom} is an agent of another program, and reads its mail when it asks for it").into())
        }
        Reading::AfterStart(start) => {
            Some(format!("{} is stopped, and reads it later: {}", one_line(&to), next_start(start)).into())
        }
        Reading::ByTeam(time) => delivery(time, "message"),
    }))
}

/// A given answer as the answer of the command.
pub fn answered(context: &Context, given: &GivenAnswer) -> CliResult<CommandAnswer> {
    let word = if given.approve { "approved" } else { "rejected" };
    let kind = given.kind;
    let notice = match kind {
        RequestKind::Permission => "continues",
        _ if given.message.is_some() => "is notified",
        _ => "has no inbox and is not notified",
    };
    let (id, from) = (one_line(&given.id), one_line(&given.from));
    let answer = context.output.answer(given, || format!("{} {id} {word}; {from} {notice}\n", kind.noun()))?;
    Ok(answer.notes(delivery(given.delivery, "answer")))
}

/// The stop of a team as the answer.
pub fn team_stopped(context: &Context, stopped: Option<StoppedTeam>) -> CliResult<CommandAnswer> {
    let Some(stopped) = stopped else { return no_team(context) };
    let data = serde_json::json!({ "stopped": true, "team": stopped.team, "pid": stopped.pid });
    context.output.answer(&data, || format!("team {} is stopped\n", one_line(&stopped.team)))
}

/// The result of a request that a teammate stops, as the answer.
pub fn teammate_stopped(context: &Context, name: &str, stop: TeammateStop) -> CliResult<CommandAnswer> {
    match stop {
        TeammateStop::NoTeam => no_team(context),
        TeammateStop::AlreadyStopped { next_start: next } => {
            let done = context.output.answer(&serde_json::json!({ "asked": null, "stopped": name }), String::new)?;
            Ok(done.note(format!("{} is already stopped; {}", one_line(name), next_start(next))))
        }
        TeammateStop::Asked { id, when, next_start: next } => {
            let data = serde_json::json!({ "asked": name, "id": id, "now": when == StopTime::EndsTurn });
            let when = match when {
                StopTime::EndsTurn => "stops now",
                StopTime::Idle => "stops",
                StopTime::AfterTurn => "stops after its turn",
            };
            context.output.answer(&data, || format!("{} {when}; {}\n", one_line(name), next_start(next)))
        }
    }
}

fn no_team(context: &Context) -> CliResult<CommandAnswer> {
    let done = context.output.answer(&serde_json::json!({ "stopped": false }), String::new)?;
    Ok(done.note("no team runs in this workspace"))
}

/// Says when a stopped teammate starts again.
fn next_start(next: NextStart) -> &'static str {
    match next {
        NextStart::NextLaunch => "the next launch starts it again",
        NextStart::Spawn => "it starts again if the lead spawns it",
    }
}

/// The state as the answer, after the person has set it or not.
pub async fn state(context: &Context, state: SharedState, is_set: bool) -> CliResult<CommandAnswer> {
    let lead_status = LeadStatus::with_state(&context.workspace).await.unwrap_or_default();
    let is_running = lead_status.lead.is_some();
    let waiting_for = if is_running { state.waiting_for() } else { None };
    let waiting = waiting_for.map(|reason| format!("waits for {}\n", one_line(&reason.to_string())));
    let text = || process_line(context, &lead_status) + &state_text(&state) + &waiting.unwrap_or_default();
    let answer = context.output.answer(&RawValue::from_string(state.document.to_line()).ok(), text)?;
    let answer = answer.notes(state.unknown_desired_warning().map(|warning| one_line(&warning)));
    Ok(match (is_set, state.current) {
        _ if is_running => answer,
        (true, _) => answer.note("no team runs; the next one obeys this state"),
        (false, Mode::Pause) => answer,
        (false, _) => answer.note("no team runs: the last one was killed before it could report that it paused"),
    })
}

/// The line that says if the team runs; empty if no team is known.
fn process_line(context: &Context, lead_status: &LeadStatus) -> String {
    let only_team = || context.workspace.location.team_if_valid(None).map(|spec| spec.name.to_string());
    let Some(team) = lead_status.team_name(None).or_else(only_team) else { return String::new() };
    format!("{} {}\n", paint(BOLD, &one_line(&team)), process(&lead_status.process(&team, context.workspace.now())))
}

fn state_text(state: &SharedState) -> String {
    let desired = match &state.unknown_desired {
        Some(word) => format!("`{}`", one_line(word)),
        None => state.desired.to_string(),
    };
    let by = setter(&state.set_by).map(|by| format!(" by {by}")).unwrap_or_default();
    let note = if state.note.is_empty() { String::new() } else { format!(": {}", one_line(&state.note)) };
    format!("desired {}{}\ncurrent {}\n", paint(BOLD, &desired), paint(DIM, &format!("{by}{note}")), state.current)
}

/// A merge as the answer.
pub fn merged(context: &Context, merged: &Merged) -> CliResult<CommandAnswer> {
    let Merged { branch, take_over, status, .. } = merged;
    let TakeOver { into, before, after, is_taken, unsigned_commits } = take_over;
    let answer = context.output.answer(merged, || {
        let (branch, into) = (one_line(branch.short()), one_line(into.short()));
        if *is_taken {
            return format!("{into} already has the work of {branch}, in another form\n");
        }
        if before == after {
            return format!("{into} already has all commits of {branch}\n");
        }
        format!("merged {branch} into {into}, which is at {} now\n", short_commit(after))
    })?;
    let unsigned = (*unsigned_commits > 0).then(|| {
        format!(
            "{} of the team without a signature (commit.gpgSign is on). One signed commit instead: `git reset --keep {} && git merge --squash {} && git commit`",
            count(*unsigned_commits, "commit"),
            short_commit(before),
            shell_word(&branch.full())
        )
    });
    let sentence = status.as_ref().and_then(team_branch);
    Ok(answer.notes(unsigned.map(Hint::from).into_iter().chain(sentence)))
}

/// Work that was recorded as taken over, as the answer.
pub fn set_aside(context: &Context, set_aside: &SetAside) -> CliResult<CommandAnswer> {
    context.output.answer(set_aside, || {
        if set_aside.changes.is_empty() {
            return format!("your branch already has all commits of {}\n", one_line(set_aside.branch.short()));
        }
        set_aside.changes.iter().map(|text| format!("{text}\n")).collect()
    })
}

/// The usage as the answer, after a reset or not.
pub fn cost(context: &Context, view: &CostView, is_reset: bool) -> CliResult<CommandAnswer> {
    context.output.answer(view, || {
        let reset =
            if is_reset { format!("the counters of {} are reset\n", one_line(&view.team)) } else { String::new() };
        reset + &cost::render(view, context.output.columns)
    })
}
