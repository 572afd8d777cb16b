//! `brigade stop`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::arguments::number;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Answer;
use super::running::{LeadProcess, Running};
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, Name};
use crate::domain::state::TeammateReport;
use crate::platform;
use crate::ports::Stores;
use crate::stores::file::links::refuse_links;
use crate::stores::open::Purpose;
use crate::ui::text::one_line;

/// How often the workspace is looked at while the team stops.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The time between the two signals of `--now`: the first must have been taken note of.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_millis(200);
/// How long is waited by default.
const WAIT_DEFAULT_S: u64 = 300;

/// Stop the running team, or one teammate, from any terminal
///
/// The team finishes its running turns, releases its claims and exits; `--now` does not wait for the turns. A teammate is
/// asked by mail, and stops after its turn; with `--now` its turn is broken off. Its task goes to somebody else.
#[derive(Debug, clap::Args)]
pub struct Stop {
    /// The teammate [default: the whole team]
    name: Option<String>,
    /// Do not wait for running turns
    #[arg(long)]
    now: bool,
    /// How long to wait for the team to be gone, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_DEFAULT_S, value_parser = number::<u64>(0..=86_400))]
    wait: u64,
}

impl Stop {
    /// Stops the team or the teammate.
    ///
    /// # Errors
    /// No team runs, nobody of that name, or the team did not stop in time.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        let running = context.who_runs()?;
        if let Some(stray) = &running.stray {
            let message = format!("cannot stop a team: {}", stray.says());
            return Err(CliError::refused(message).hint(stray.remedy()));
        }
        let Some(lead) = running.lead.clone() else {
            let done = context.output.answer(&serde_json::json!({ "stopped": false }), String::new)?;
            return Ok(done.note("no team runs in this workspace"));
        };
        match &self.name {
            Some(name) => ask(context, name, self.now).await,
            None => self.stop_team(context, &running, &lead).await,
        }
    }

    async fn stop_team(&self, context: &Context, running: &Running, lead: &LeadProcess) -> CliResult<Answer> {
        if lead.pid == std::process::id() {
            let message = "this session is the team's own";
            return Err(CliError::usage(message).hint("/quit stops the team; /stop NAME stops a teammate"));
        }
        let team = &lead.team;
        if running.hidden_workers.is_some() {
            return Err(CliError::refused("cannot stop the team from one of its commands")
                .hint("a person stops it from another terminal"));
        }
        signal(lead)?;
        if self.now {
            sleep(SECOND_SIGNAL_AFTER).await;
            if still_leads(context, lead)? {
                signal(lead)?;
            }
        }
        let deadline = Instant::now() + Duration::from_secs(self.wait);
        while still_leads(context, lead)? {
            if Instant::now() >= deadline {
                let message =
                    format!("team {} (pid {}) was asked to stop and is not gone yet", one_line(team), lead.pid);
                let pid = lead.pid;
                let hint = match self.now {
                    _ if context.who_runs()?.lead.is_some_and(|lead| lead.is_suspended) => {
                        format!(
                            "it is suspended, and was again after it was told to go on: fg in its terminal, or kill -KILL {pid}, after which the next launch takes up what is left"
                        )
                    }
                    true => "brigade team shows what it does".to_owned(),
                    false => "brigade stop --now does not wait for its turns".to_owned(),
                };
                return Err(CliError::refused(message).hint(hint));
            }
            sleep(LOOK_INTERVAL).await;
        }
        let data = serde_json::json!({ "stopped": true, "team": team, "pid": lead.pid });
        context.output.answer(&data, || format!("team {} is stopped\n", one_line(team)))
    }
}

fn signal(lead: &LeadProcess) -> CliResult<()> {
    if let Some(host) = lead.host.as_ref().filter(|host| **host != platform::host_name()) {
        let message = format!("the team runs on {}, not on this machine", one_line(host));
        return Err(CliError::refused(message).hint("brigade state pause stops it from here"));
    }
    if !lead.is_certain {
        let message = format!(
            "cannot stop the team: .team/lead.json names process {} as its lead, which does not run on this machine, and .team/lead.lock is held",
            lead.pid
        );
        return Err(CliError::refused(message).hint("brigade state pause stops the team, wherever it runs"));
    }
    match platform::processes::terminate(lead.pid) {
        // Gone meanwhile: that is what was wanted.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::refused(format!("process {} cannot be asked to stop: {error}", lead.pid)))
        }
        _ => Ok(()),
    }
}

fn still_leads(context: &Context, lead: &LeadProcess) -> CliResult<bool> {
    Ok(context.who_runs()?.lead.is_some_and(|now| (&now.team, now.pid) == (&lead.team, lead.pid)))
}

/// Asks one teammate, as a person.
async fn ask(context: &Context, name: &str, now: bool) -> CliResult<Answer> {
    if Name::new(name).is_ok_and(|name| name.is_reserved()) {
        let message = format!("`{}` is no teammate", one_line(name));
        return Err(CliError::usage(message).hint("brigade stop without a name stops the whole team"));
    }
    // To look needs no lock, and a request to stop needs none either. The team that runs has opened the inboxes.
    refuse_links(&context.workspace()?)?;
    let stores = context.stores(Purpose::Look).await?;
    if has_stopped(&stores, name).await? {
        let done = context.output.answer(&serde_json::json!({ "asked": null, "stopped": name }), String::new)?;
        return Ok(done.note(format!("{} is stopped already; the next launch of the team starts it", one_line(name))));
    }
    let content = if now { "Stop now; your turn was broken off." } else { "Stop after this turn." };
    let mut message = Message::new(MessageType::ShutdownRequest, HUMAN, content, context.now());
    message.request_id = Some(format!("stop-{}", context.now().0));
    message.now = now.then_some(true);
    let id = stores.mailbox.send(name, message).await?;
    let data = serde_json::json!({ "asked": name, "id": id, "now": now });
    let when = if now { "is told to stop now, and its turn broken off" } else { "is asked to stop after its turn" };
    context.output.answer(&data, || format!("{} {when}; the next launch starts it again\n", one_line(name)))
}

/// Whether the running team says that this teammate is stopped.
async fn has_stopped(stores: &Stores, name: &str) -> CliResult<bool> {
    let Some(state) = stores.state.read().await? else { return Ok(false) };
    let teammates: BTreeMap<String, TeammateReport> =
        state.document.get("teammates").ok().flatten().unwrap_or_default();
    Ok(teammates.iter().any(|(known, report)| known.eq_ignore_ascii_case(name) && report.is_gone()))
}
