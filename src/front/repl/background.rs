//! The background jobs of an interactive session: the work of typed lines, and polls for mail and open requests. Each runs in its own
//! thread, so that a slow one delays nothing.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::{JoinError, JoinSet};

use super::columns;
use super::completion::{EmptyLine, OpenQuestion};
use super::screen::Printer;
use crate::api::Order;
use crate::api::pending::{self, PendingForPerson};
use crate::domain::team::approval::Request;
use crate::domain::team::name::LEAD;
use crate::domain::text::one_line;
use crate::front::cli::context::{Context, on_one_thread};
use crate::front::cli::inbox::Inbox;
use crate::front::cli::{order, run_typed};
use crate::front::text::lines::cut;
use crate::front::text::requests;

/// Columns of the words before an item that no longer waits.
const GONE_WIDTH: usize = 17;

/// A typed line that is carried out in a thread of its own.
#[derive(Debug, PartialEq, Eq)]
pub enum Work {
    /// A command of `brigade`: its name and the words after it.
    Command(Vec<String>),
    /// An order.
    Order(Order),
}

/// The result of a job.
#[derive(Debug)]
pub enum JobResult {
    /// The work of a typed line is done, and its answers are printed.
    Line,
    /// A poll is done, and the prompt is up to date.
    Polled,
}

/// The extent of a poll, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PollKind {
    /// Updates the prompt.
    Only,
    /// Also shows new mail. Does nothing if the inbox is empty, so it is cheap to repeat.
    ForMail,
    /// Shows new mail, or the open requests of earlier interactive sessions.
    AtMail,
}

#[derive(Clone)]
struct JobContext {
    context: Context,
    screen: Printer,
    empty_line: Arc<Mutex<EmptyLine>>,
    /// True if the lead has a model, so that it reads lines without a name.
    lead_has_model: bool,
}

/// The jobs of an interactive session.
pub struct Jobs {
    context: JobContext,
    running: JoinSet<JobResult>,
    /// True while a poll runs. `next_poll` is the poll to run after it.
    is_polling: bool,
    next_poll: Option<PollKind>,
}

impl Jobs {
    /// No jobs yet. Commands run in `context`.
    pub fn new(context: Context, screen: Printer, empty_line: Arc<Mutex<EmptyLine>>, lead_has_model: bool) -> Self {
        let job_context = JobContext { context, screen, empty_line, lead_has_model };
        Self { context: job_context, running: JoinSet::new(), is_polling: false, next_poll: None }
    }

    /// Waits for the next job to end; forever if there is none.
    pub async fn next_result(&mut self) -> JobResult {
        let done: Option<Result<JobResult, JoinError>> = self.running.join_next().await;
        match done {
            Some(Ok(done)) => {
                if matches!(done, JobResult::Polled) {
                    self.is_polling = false;
                    self.next_poll.take().into_iter().for_each(|kind| self.poll(kind));
                }
                done
            }
            Some(Err(error)) => {
                self.is_polling = false;
                self.context.screen.note(&format!("a command failed: {error}"));
                JobResult::Line
            }
            None => std::future::pending().await,
        }
    }

    /// Does the work of a line in order, and prints the answers.
    pub fn run(&mut self, line: Vec<Work>) {
        let context = self.context.clone();
        self.running.spawn_blocking(move || {
            line.into_iter().for_each(|work| context.answer(work));
            // The line may have answered a request.
            context.update_prompt(&context.waiting());
            JobResult::Line
        });
    }

    /// Polls for mail and open requests; one poll at a time.
    pub fn poll(&mut self, kind: PollKind) {
        if self.is_polling {
            self.next_poll = self.next_poll.max(Some(kind));
            return;
        }
        self.is_polling = true;
        let context = self.context.clone();
        self.running.spawn_blocking(move || {
            context.poll(kind);
            JobResult::Polled
        });
    }
}

impl JobContext {
    /// Does the work, and prints its answer.
    fn answer(&self, work: Work) {
        let context = self.context.in_repl(&self.screen);
        let answer = match work {
            Work::Command(words) => run_typed(&context, words),
            Work::Order(order) => context.text_of(on_one_thread(order::give(&context, order))),
        };
        self.screen.print(&answer.unwrap_or_else(|error| error));
    }

    /// Shows the new mail of the person, and marks it as read.
    fn take_mail(&self) {
        let context = self.context.in_repl(&self.screen);
        let answer = context.text_of(on_one_thread(Inbox::taken().run(&context)));
        self.screen.print(&answer.unwrap_or_else(|error| error));
    }

    fn poll(&self, kind: PollKind) {
        if kind == PollKind::ForMail && !self.has_mail() {
            return;
        }
        let waiting = self.waiting();
        let gone = self.update_prompt(&waiting);
        if kind != PollKind::Only && waiting.has_new_mail {
            self.take_mail();
            // More may have come with the mail since the first poll.
            self.update_prompt(&self.waiting());
            return;
        }
        if kind == PollKind::AtMail {
            self.print_pending(&waiting);
        }
        for question in gone {
            self.screen
                .note(&format!("no longer waits: {}", cut(&question.text, columns().saturating_sub(GONE_WIDTH))));
        }
    }

    /// Returns true if there may be mail for the person. No mail is read for that.
    fn has_mail(&self) -> bool {
        // The command that reads the mail reports the error.
        on_one_thread(async { Ok(pending::has_mail(&self.context.workspace).await?) }).unwrap_or(true)
    }

    /// The things that wait for the person; nothing if they cannot be read, which the commands that show them report.
    fn waiting(&self) -> PendingForPerson {
        on_one_thread(async { Ok(pending::waiting(&self.context.workspace).await?) }).unwrap_or_default()
    }

    /// Prints the things that have waited since before the interactive session began.
    fn print_pending(&self, waiting: &PendingForPerson) {
        for question in &waiting.questions {
            let text = format!("{} asked: {}", one_line(&question.from), one_line(&question.text));
            self.screen.note(&cut(&text, columns()));
        }
        let requests: Vec<&Request> = waiting.approvals_for_person().collect();
        let commands = self.context.in_repl(&self.screen).commands();
        let list = requests::list(&requests, self.context.workspace.now(), columns(), &commands);
        self.screen.print(&list);
    }

    /// Updates the items on the prompt, and draws it again if they are others. Returns those that no longer wait.
    fn update_prompt(&self, waiting: &PendingForPerson) -> Vec<OpenQuestion> {
        let open_question = |from: &str, what: &str, answer_prefix: String, how| {
            let text = one_line(&format!("{from} {what}"));
            OpenQuestion { text, short: None, answer_prefix, how }
        };
        let questions = waiting.questions.iter().map(|question| {
            let is_heard = self.lead_has_model && question.from == LEAD;
            let (answer_prefix, how) = if is_heard {
                (String::new(), "type your answer")
            } else {
                (format!("@{} ", one_line(&question.from)), "Tab starts the answer")
            };
            open_question(&question.from, &format!("asks: {}", question.text), answer_prefix, how)
        });
        let repl = self.context.in_repl(&self.screen);
        let approvals = waiting.approvals_for_person().map(|request| {
            let noun = request.kind.noun();
            let what = format!("asks about {noun} {}", request.id);
            let title = repl.hint(requests::title(request));
            let show = format!("/{noun} show {}", one_line(&request.id));
            let short = one_line(&format!("{} {what}", request.from));
            let question = open_question(&request.from, &format!("{what}: {title}"), show, "Tab shows it");
            OpenQuestion { short: Some(short), ..question }
        });
        let open: Vec<OpenQuestion> = questions.chain(approvals).collect();
        let before = std::mem::replace(&mut self.empty_line.lock().questions, open.clone());
        if before != open {
            self.screen.redraw_prompt();
        }
        before.into_iter().filter(|question| !open.contains(question)).collect()
    }
}
