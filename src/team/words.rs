//! What models say while they say it: a bounded, lossy stream for front ends, beside the event log, which has the whole texts.
//!
//! Nobody waits for who listens: one that falls behind loses pieces, never the team's pace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::broadcast;

use super::progress::Progress;
use super::purse::Reservation;
use crate::domain::transcript::Usage;
use crate::ports::{Listener, ModelRequest};

/// Pieces a slow front end may be behind before it loses some.
pub const WORDS_BEHIND_MAX: usize = 1024;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// Whose model says it.
    pub teammate: Arc<str>,
    /// What.
    pub saying: Saying,
}

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saying {
    /// A request is sent. An answer that had begun before and did not end is void: it is being asked for again.
    Begun,
    /// The model says this next.
    Text(String),
    /// The answer is whole; its texts follow as `said` facts.
    Ended,
}

/// Where pieces go. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mouth(broadcast::Sender<Arc<Words>>);

impl Default for Mouth {
    fn default() -> Self {
        Self(broadcast::channel(WORDS_BEHIND_MAX).0)
    }
}

impl Mouth {
    /// What is said from now on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Arc<Words>> {
        self.0.subscribe()
    }

    /// Says something to whoever listens.
    pub fn say(&self, teammate: &Arc<str>, saying: Saying) {
        if self.0.receiver_count() > 0 {
            // Whoever listened may be gone by now; that is no error.
            let _ = self.0.send(Arc::new(Words { teammate: Arc::clone(teammate), saying }));
        }
    }
}

/// Hears one answer: text goes to the front ends, every sign of life counts as progress, what was used is paid for.
pub struct Ear<'a> {
    /// What is answered.
    pub request: &'a ModelRequest,
    /// What the harness sees of its life.
    pub progress: &'a Progress,
    /// Where text goes, if anywhere.
    pub mouth: Option<&'a Mouth>,
    /// What pays for it, where it costs anything.
    pub paid: Option<&'a Reservation>,
    /// Whether something of the answer came.
    pub has_heard: AtomicBool,
}

impl Ear<'_> {
    /// Says something of the answer to the front ends.
    pub fn say(&self, saying: Saying) {
        if let Some(mouth) = self.mouth {
            mouth.say(&self.request.teammate, saying);
        }
    }
}

impl Listener for Ear<'_> {
    fn alive(&self) {
        self.progress.renew();
    }

    fn text(&self, delta: &str) {
        self.progress.renew();
        self.has_heard.store(true, Ordering::Relaxed);
        self.say(Saying::Text(delta.to_owned()));
    }

    fn wrote(&self, bytes: usize) {
        self.has_heard.store(true, Ordering::Relaxed);
        self.paid.inspect(|paid| paid.wrote(bytes));
    }

    fn used(&self, usage: Usage) {
        self.has_heard.store(true, Ordering::Relaxed);
        let is_possible = self.request.can_have_used(usage);
        self.paid.inspect(|paid| if is_possible { paid.used(usage) } else { paid.misreported() });
    }

    fn declined(&self) {
        self.paid.inspect(|paid| paid.declined());
    }
}
