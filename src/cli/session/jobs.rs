//! What a session does beside showing what happens: commands of `brigade`, the mail for the person, what waits for them. Each runs in a
//! thread of its own, so that a slow one holds nothing up.

use tokio::task::{JoinError, JoinSet};

use super::screen::Screen;
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::waiting::Waiting;
use crate::domain::name::HUMAN;
use crate::domain::task::TaskId;
use crate::ports::Board as _;
use crate::stores::open::Purpose;

/// A command of `brigade`, without that word.
pub type Words = Vec<String>;

/// What a job brought.
#[derive(Debug)]
pub enum Done {
    /// The commands that were typed are done, and said all they had to say.
    Commands,
    /// There was nothing to look at.
    Nothing,
    /// What waits for the person now.
    Looked {
        /// That; nothing where it cannot be read.
        waiting: Waiting,
        /// Whether mail was shown before that.
        has_shown_mail: bool,
    },
    /// The tasks that were on the board before the session.
    Learned(Vec<(TaskId, String)>),
}

/// What a look at what waits for the person does besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// It is left out where no mail is there: for looks again and again.
    ForMail,
    /// Nothing.
    Only,
    /// It shows the mail for the person, if there is any.
    AtMail,
}

/// The jobs of a session.
pub struct Jobs {
    context: Context,
    screen: Screen,
    running: JoinSet<Done>,
    /// Whether somebody looks at what waits, and what the next look is to do.
    is_looking: bool,
    next_look: Option<Look>,
}

impl Jobs {
    /// None yet, for commands given in `context`.
    #[must_use]
    pub fn new(context: Context, screen: Screen) -> Self {
        Self { context, screen, running: JoinSet::new(), is_looking: false, next_look: None }
    }

    /// Waits until one is done; never where there is none.
    pub async fn done(&mut self) -> Done {
        let done: Option<Result<Done, JoinError>> = self.running.join_next().await;
        match done {
            Some(Ok(done)) => {
                if matches!(done, Done::Looked { .. } | Done::Nothing) {
                    self.is_looking = false;
                    self.next_look.take().into_iter().for_each(|look| self.look(look));
                }
                done
            }
            Some(Err(error)) => {
                self.is_looking = false;
                self.screen.note(&format!("a command broke down: {error}"));
                Done::Commands
            }
            None => std::future::pending().await,
        }
    }

    /// Runs commands one after the other, and shows what they say.
    pub fn run(&mut self, commands: Vec<Words>) {
        let (context, screen) = (self.context.clone(), self.screen.clone());
        self.running.spawn_blocking(move || {
            commands.into_iter().for_each(|words| answer(&context, &screen, words));
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
        let (context, screen) = (self.context.clone(), self.screen.clone());
        self.running.spawn_blocking(move || {
            if look == Look::ForMail && !has_mail(&context) {
                return Done::Nothing;
            }
            let has_mail = look != Look::Only && waiting(&context).messages > 0;
            if has_mail {
                answer(&context, &screen, ["inbox", "--take"].map(str::to_owned).into());
            }
            Done::Looked { waiting: waiting(&context), has_shown_mail: has_mail }
        });
    }

    /// Learns what is on the board.
    pub fn learn(&mut self) {
        let context = self.context.clone();
        let tasks = async move {
            let view = context.board_to_look_at()?.view().await?;
            Ok(view.tasks.values().map(|task| (task.id, task.subject.clone())).collect())
        };
        self.running.spawn_blocking(move || Done::Learned(wait_for(tasks).unwrap_or_default()));
    }
}

/// Runs a command of `brigade` and shows what it says.
fn answer(context: &Context, screen: &Screen, words: Words) {
    let words = ["brigade".to_owned()].into_iter().chain(words).collect();
    screen.print(&crate::cli::answer(&context.in_session(screen), words));
}

/// Whether there may be mail for the person: nothing is read for that.
fn has_mail(context: &Context) -> bool {
    let waiting = async { Ok(context.stores(Purpose::Look).await?.mailbox.waiting().await?) };
    // What cannot be looked at is named by who reads it.
    wait_for(waiting).map_or(true, |names: Vec<String>| names.iter().any(|name| name == HUMAN))
}

/// What waits; nothing where that cannot be read: who reads it says what is wrong.
fn waiting(context: &Context) -> Waiting {
    wait_for(async { Waiting::of(&context.stores(Purpose::Look).await?).await }).unwrap_or_default()
}

fn wait_for<T>(future: impl Future<Output = CliResult<T>>) -> CliResult<T> {
    crate::cli::on_one_thread(future)
}
