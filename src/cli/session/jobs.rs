//! What a session does beside showing what happens: commands of `brigade`, the mail for the person, what waits for them. Each runs in a
//! thread of its own, so that a slow one holds nothing up.

use std::sync::{Arc, Mutex};

use tokio::task::{JoinError, JoinSet};

use super::columns;
use super::completion::{Ask, Vocabulary, Waits};
use super::screen::Screen;
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::waiting::Waiting;
use crate::domain::name::{HUMAN, LEAD};
use crate::domain::request::Request;
use crate::domain::task::TaskId;
use crate::ports::Board as _;
use crate::stores::open::Purpose;
use crate::ui::approvals;
use crate::ui::text::{cut, one_line};

/// Columns that "no longer waits" takes.
const GONE_WIDTH: usize = 17;

/// A command of `brigade`, without that word.
pub type Words = Vec<String>;

/// What a job brought.
#[derive(Debug)]
pub enum Done {
    /// The commands that were typed are done, and said all they had to say.
    Commands,
    /// What waits for the person was looked at, and the line that is typed knows.
    Looked,
    /// The tasks that were on the board before the session.
    Learned(Vec<(TaskId, String)>),
}

/// What a look at what waits for the person does besides, by how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// Nothing.
    Only,
    /// It shows the mail for the person, and is left out where none is there: for looks again and again.
    ForMail,
    /// It shows that mail, or what waits from before.
    AtMail,
}

/// What the jobs of a session share.
#[derive(Clone)]
struct Desk {
    context: Context,
    screen: Screen,
    vocabulary: Arc<Mutex<Vocabulary>>,
    /// Whether what is typed without a name goes to a lead that reads it.
    lead_thinks: bool,
}

/// The jobs of a session.
pub struct Jobs {
    desk: Desk,
    running: JoinSet<Done>,
    /// Whether somebody looks at what waits, and what the next look is to do.
    is_looking: bool,
    next_look: Option<Look>,
}

impl Jobs {
    /// None yet, for commands given in `context`.
    #[must_use]
    pub fn new(context: Context, screen: Screen, vocabulary: Arc<Mutex<Vocabulary>>, lead_thinks: bool) -> Self {
        let desk = Desk { context, screen, vocabulary, lead_thinks };
        Self { desk, running: JoinSet::new(), is_looking: false, next_look: None }
    }

    /// Waits until one is done; never where there is none.
    pub async fn done(&mut self) -> Done {
        let done: Option<Result<Done, JoinError>> = self.running.join_next().await;
        match done {
            Some(Ok(done)) => {
                if matches!(done, Done::Looked) {
                    self.is_looking = false;
                    self.next_look.take().into_iter().for_each(|look| self.look(look));
                }
                done
            }
            Some(Err(error)) => {
                self.is_looking = false;
                self.desk.screen.note(&format!("a command broke down: {error}"));
                Done::Commands
            }
            None => std::future::pending().await,
        }
    }

    /// Runs commands one after the other, and shows what they say.
    pub fn run(&mut self, commands: Vec<Words>) {
        let desk = self.desk.clone();
        self.running.spawn_blocking(move || {
            commands.into_iter().for_each(|words| desk.answer(words));
            // They may have answered what waited.
            desk.tell(&desk.waiting());
            Done::Commands
        });
    }

    /// Looks at what waits for the person; one look at a time.
    pub fn look(&mut self, look: Look) {
        if self.is_looking {
            self.next_look = self.next_look.max(Some(look));
            return;
        }
        self.is_looking = true;
        let desk = self.desk.clone();
        self.running.spawn_blocking(move || {
            desk.look(look);
            Done::Looked
        });
    }

    /// Learns what is on the board.
    pub fn learn(&mut self) {
        let context = self.desk.context.clone();
        let tasks = async move {
            let view = context.board_to_look_at()?.view().await?;
            Ok(view.tasks.values().map(|task| (task.id, task.subject.clone())).collect())
        };
        self.running.spawn_blocking(move || Done::Learned(wait_for(tasks).unwrap_or_default()));
    }
}

impl Desk {
    /// Runs a command of `brigade` and shows what it says.
    fn answer(&self, words: Words) {
        let words = ["brigade".to_owned()].into_iter().chain(words).collect();
        self.screen.print(&crate::cli::answer(&self.context.in_session(&self.screen), words));
    }

    fn look(&self, look: Look) {
        if look == Look::ForMail && !self.has_mail() {
            return;
        }
        let waiting = self.waiting();
        // First the line knows, then something is printed: only that draws the line anew.
        let gone = self.tell(&waiting);
        if look != Look::Only && waiting.has_new_mail {
            return self.answer(["inbox", "--take"].map(str::to_owned).into());
        }
        if look == Look::AtMail {
            self.say_what_waits(&waiting);
        }
        for ask in gone {
            self.screen.note(&format!("no longer waits: {}", cut(&ask.shown, columns().saturating_sub(GONE_WIDTH))));
        }
    }

    /// Whether there may be mail for the person: nothing is read for that.
    fn has_mail(&self) -> bool {
        let waiting = async { Ok(self.context.stores(Purpose::Look).await?.mailbox.waiting().await?) };
        // What cannot be looked at is named by who reads it.
        wait_for(waiting).map_or(true, |names: Vec<String>| names.iter().any(|name| name == HUMAN))
    }

    /// What waits; nothing where that cannot be read: who reads it says what is wrong.
    fn waiting(&self) -> Waiting {
        wait_for(async { Waiting::of(&self.context.stores(Purpose::Look).await?).await }).unwrap_or_default()
    }

    /// Says what waited before the session began.
    fn say_what_waits(&self, waiting: &Waiting) {
        for question in &waiting.questions {
            let text = format!("{} asked: {}", one_line(&question.from), one_line(&question.text));
            self.screen.note(&cut(&text, columns()));
        }
        let requests: Vec<&Request> = waiting.approvals_for_you().collect();
        self.screen.print(&approvals::list(&requests, self.context.now(), columns()));
    }

    /// Lets the line that is typed know what waits for an answer. Returns what no longer does.
    fn tell(&self, waiting: &Waiting) -> Vec<Ask> {
        let ask = |from: &str, what: &str, typed: String| Ask { shown: one_line(&format!("{from} {what}")), typed };
        let questions = waiting.questions.iter().map(|question| {
            let is_heard = self.lead_thinks && question.from == LEAD;
            let typed = if is_heard { String::new() } else { format!("@{} ", one_line(&question.from)) };
            ask(&question.from, &format!("asks: {}", question.text), typed)
        });
        let approvals = waiting.approvals_for_you().map(|request| {
            let noun = request.kind.noun();
            let what = format!("waits for {noun} {}: {}", request.id, request.plan);
            ask(&request.from, &what, format!("/{noun} approve {}", one_line(&request.id)))
        });
        let ids = waiting.approvals.iter().map(Waits::of).collect();
        Vocabulary::of(&self.vocabulary).wait_for(questions.chain(approvals).collect(), ids)
    }
}

fn wait_for<T>(future: impl Future<Output = CliResult<T>>) -> CliResult<T> {
    crate::cli::on_one_thread(future)
}
