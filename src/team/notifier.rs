//! Sends notifications about a team's events to a command and to an address. It runs beside the team: a slow target delays only later
//! notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::domain::log::event::{Event, EventKind};
use crate::domain::team::notification::Notification;
use crate::domain::team::team_spec::NotifySpec;
use crate::ports::Webhook;
use crate::process::command::{self, CommandContext};
use crate::run::event_sink::EventSink;
use crate::secrets::Secret;

/// The time limit of the command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for the last notifications at the end of the team.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The running notifier of a team.
pub(super) struct Notifier {
    task: JoinHandle<()>,
    targets: Arc<NotificationTargets>,
}

/// The targets of notifications.
pub(super) struct NotificationTargets {
    pub spec: NotifySpec,
    /// The place and the confinement of the command.
    pub command: CommandContext,
    pub webhook: Arc<dyn Webhook>,
    pub events: EventSink,
    /// True if the last notification failed, so that a failing target is reported once.
    pub is_failing: AtomicBool,
}

impl Notifier {
    /// Starts to send notifications about these events, until the team has stopped. Addresses often have a token, so they are masked.
    pub fn start(targets: NotificationTargets, mut events: Receiver<Arc<Event>>) -> Self {
        targets.spec.url.as_deref().and_then(Secret::new);
        let targets = Arc::new(targets);
        let sender = Arc::clone(&targets);
        let task = tokio::spawn(async move {
            loop {
                let event = match events.recv().await {
                    Ok(event) => event,
                    // Old events are left out if a target is too slow.
                    Err(RecvError::Lagged(_)) => continue,
                    Err(RecvError::Closed) => return,
                };
                if let Some(notification) = Notification::of(&event.kind) {
                    sender.send(&notification).await;
                }
                if matches!(event.kind, EventKind::TeamStopped { .. }) {
                    return;
                }
            }
        });
        Self { task, targets }
    }

    /// Waits until the last notifications are sent, for a few seconds at most. A failure is in the event log afterwards.
    pub async fn finish(mut self) {
        if timeout(END_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
            if !self.targets.is_failing.swap(true, Ordering::Relaxed) {
                let text =
                    format!("the last notifications are not sent: a target took over {} s", END_TIMEOUT.as_secs());
                self.targets.events.warn("notify", text);
            }
        }
        self.targets.events.flush().await;
    }
}

impl NotificationTargets {
    async fn send(&self, notification: &Notification) {
        let json = json!({
            "schema_version": 1,
            "team": self.command.team,
            "workspace": self.command.working_dir.to_string_lossy(),
            "kind": notification.kind,
            "task": notification.task,
            "text": notification.text,
        });
        let mut failures = Vec::new();
        if let Some(script) = &self.spec.command {
            let failure = self.run_command(script, notification, &json.to_string()).await.err();
            failures.extend(failure.map(|reason| format!("`{script}`: {reason}")));
        }
        if let Some(url) = &self.spec.url {
            let failure = self.webhook.post(url, json.to_string()).await.err();
            failures.extend(failure.map(|reason| format!("notify.url: {reason}")));
        }
        if !self.is_failing.swap(!failures.is_empty(), Ordering::Relaxed) {
            failures.iter().for_each(|failure| self.events.warn("notify", failure.clone()));
        }
    }

    async fn run_command(&self, script: &str, notification: &Notification, json: &str) -> Result<(), String> {
        let mut context = self.command.clone();
        let variables = [
            ("BRIGADE_NOTICE", notification.text.as_str()),
            ("BRIGADE_NOTICE_KIND", notification.kind.as_str()),
            ("BRIGADE_NOTICE_JSON", json),
        ];
        context.variables.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
        match command::run(script, COMMAND_TIMEOUT, &context).await {
            Ok(outcome) if outcome.is_success() => Ok(()),
            Ok(outcome) => Err(outcome.ending_text()),
            Err(error) => Err(error.to_string()),
        }
    }
}
