//! The commands of Brigade as their reader types them: in a shell, or in an interactive session. No other module writes a command.

use std::fmt;

use anstyle::Style;

use crate::api::next::{Digest, EditForm, Launch, Next, OrderForm};
use crate::api::question::Question;
use crate::domain::task::TaskId;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::state::Mode;
use crate::domain::text::shell_word;

/// The commands that an interactive session lacks: they start a team, remove its files, need the terminal, or serve a shell or an MCP
/// client.
const SHELL_ONLY: [&str; 8] = ["init", "up", "run", "watch", "clean", "mcp", "api", "completions"];
/// The commands that use no workspace.
const WITHOUT_WORKSPACE: [&str; 2] = ["api", "completions"];

/// Returns true for a command that an interactive session shares with the shell.
pub fn is_shared(command: &str) -> bool {
    !SHELL_ONLY.contains(&command)
}

/// The place where the reader of a text types its commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commands {
    /// A shell: a command gets these flags, which name the workspace; empty where none are needed.
    Shell(String),
    /// The line of an interactive session: `/why 3`, and `@ada TEXT` for a message.
    Repl,
}

/// A shell in the workspace.
impl Default for Commands {
    fn default() -> Self {
        Self::Shell(String::new())
    }
}

/// A command: a typed step, or the words of a command line that only this front end has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A question, an order or a launch.
    Step(Next),
    /// A command line without the program's name, such as `tasks --help`.
    Line(String),
}

impl<T: Into<Next>> From<T> for Command {
    fn from(step: T) -> Self {
        Self::Step(step.into())
    }
}

/// A command line that only this front end has, without the program's name.
pub fn line(words: impl Into<String>) -> Command {
    Command::Line(words.into())
}

impl Commands {
    /// Returns the command as it is typed, in a code span. A step outside of Brigade is its text.
    pub fn typed(&self, command: impl Into<Command>) -> String {
        let words = match command.into() {
            Command::Step(Next::Outside { outside }) => return outside,
            Command::Step(Next::Order(OrderForm::Send { to })) if *self == Self::Repl => {
                return format!("`@{} TEXT`", to.as_deref().map_or("NAME".into(), shell_word));
            }
            Command::Step(Next::Order(OrderForm::AsHolder { by, attempt })) => {
                return format!("add `--as {} --attempt {attempt}`", shell_word(&by));
            }
            Command::Step(Next::Order(OrderForm::EndSession)) => return "`/quit`".to_owned(),
            Command::Step(Next::Order(OrderForm::WithForce)) => return "add `--force` as a person".to_owned(),
            Command::Step(Next::Question(question)) => question_words(&question),
            Command::Step(Next::Order(order)) => order_words(&order),
            Command::Step(Next::Launch(launch)) => launch_words(&launch),
            Command::Line(words) => words,
        };
        let name = words.split(' ').next().unwrap_or_default();
        match self {
            Self::Repl if is_shared(name) => format!("`/{words}`"),
            Self::Shell(flags) if !flags.is_empty() && !WITHOUT_WORKSPACE.contains(&name) => {
                format!("`brigade {flags} {words}`")
            }
            Self::Shell(_) | Self::Repl => format!("`brigade {words}`"),
        }
    }

    /// Returns the text with its commands as they are typed.
    pub fn text(&self, hint: &Hint) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Command(command) => self.typed(command.clone()),
        };
        hint.0.iter().map(part).collect()
    }
}

fn question_words(question: &Question) -> String {
    match question {
        Question::Why { task } => format!("why {}", task.map_or("ID".to_owned(), |task| task.0.to_string())),
        Question::Tasks => "tasks".to_owned(),
        Question::Task { task } => format!("tasks show {}", task.0),
        Question::Diff { task } => format!("tasks diff {}", task.0),
        Question::Team => "team".to_owned(),
        Question::Log { task } => format!("log{}", task.map(|task| format!(" --task {}", task.0)).unwrap_or_default()),
        Question::Runs => "log --runs".to_owned(),
        Question::Inbox => "inbox".to_owned(),
        Question::Cost => "cost".to_owned(),
        Question::Config => "config show".to_owned(),
        Question::Doctor => "doctor".to_owned(),
        Question::Leftovers => "clean".to_owned(),
        Question::Requests { kind } => kind.noun().to_owned(),
        Question::Request { kind, id } => format!("{} show{}", kind.noun(), argument(id.as_deref())),
    }
}

fn order_words(order: &OrderForm) -> String {
    match order {
        OrderForm::AddTask => "tasks add SUBJECT".to_owned(),
        OrderForm::ImportPlan => "tasks import FILE".to_owned(),
        OrderForm::Claim { task, by } => {
            let by = by.as_deref().map_or("NAME".into(), shell_word);
            format!("tasks claim{} --as {by}", task.map(|task| format!(" {}", task.0)).unwrap_or_default())
        }
        OrderForm::Release { tasks, force } => {
            format!("tasks release{}{}", numbers(tasks), if *force { " --force" } else { "" })
        }
        OrderForm::Complete { task, by, attempt } => {
            format!("tasks complete {} --as {} --attempt {attempt}", task.0, shell_word(by))
        }
        OrderForm::Fail { task } => format!("tasks fail {} --reason TEXT", task.0),
        OrderForm::Retry { tasks } => format!("tasks retry{}", numbers(tasks)),
        OrderForm::Reopen { tasks } => format!("tasks reopen{}", numbers(tasks)),
        OrderForm::Delete { tasks } => format!("tasks rm{}", numbers(tasks)),
        OrderForm::Update { task, change } => {
            format!("tasks update {}{}", task.0, change.as_ref().map(change_option).unwrap_or_default())
        }
        OrderForm::Send { to } => format!("send {} TEXT", to.as_deref().map_or("NAME".into(), shell_word)),
        OrderForm::TakeMail => "inbox --take".to_owned(),
        OrderForm::Approve { kind, id, digest } => {
            let option = match digest {
                Digest::NotNeeded => String::new(),
                Digest::Shown(digest) => format!(" --digest {digest}"),
                Digest::Open => " --digest DIGEST".to_owned(),
            };
            format!("{} approve {}{option}", kind.noun(), shell_word(id))
        }
        OrderForm::Reject { kind, id, with_feedback } => {
            let option = if *with_feedback { " --feedback TEXT" } else { "" };
            format!("{} reject {}{option}", kind.noun(), shell_word(id))
        }
        OrderForm::SetMode { mode } => format!("state {mode}"),
        OrderForm::Stop { now } => if *now { "stop --now" } else { "stop" }.to_owned(),
        // They are options of a refused command, and a word of a session.
        OrderForm::AsHolder { .. } | OrderForm::WithForce | OrderForm::EndSession => String::new(),
        OrderForm::Merge => "merge".to_owned(),
        OrderForm::MergeTaken { team } => format!("merge --taken {}", shell_word(team)),
        OrderForm::ResetCost => "cost --reset".to_owned(),
    }
}

fn change_option(change: &EditForm) -> String {
    match change {
        EditForm::Description => " --description TEXT".to_owned(),
        EditForm::Verify => " --verify COMMAND".to_owned(),
        EditForm::TokensMax(tokens) => format!(" --tokens-max {tokens}"),
        EditForm::AnyOwner => " --for \"\"".to_owned(),
        EditForm::NoRequirement => " --requires \"\"".to_owned(),
        EditForm::NotAfter(blocker) => format!(" --not-after {}", blocker.0),
    }
}

fn launch_words(launch: &Launch) -> String {
    match launch {
        Launch::Run { team } => format!("run{}", argument(team.as_deref())),
        Launch::Up { team } => format!("up{}", argument(team.as_deref())),
        Launch::Init => "init".to_owned(),
        Launch::Mcp => "mcp --as NAME".to_owned(),
    }
}

/// An argument after a space; nothing without one.
fn argument(word: Option<&str>) -> String {
    word.map(|word| format!(" {}", shell_word(word))).unwrap_or_default()
}

fn numbers(tasks: &[TaskId]) -> String {
    tasks.iter().map(|task| format!(" {}", task.0)).collect()
}

/// A text for a person whose commands are typed data until it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint(Vec<Part>);

/// A part of a [`Hint`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Words.
    Text(String),
    /// A command.
    Command(Command),
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Command> for Part {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

impl From<Next> for Part {
    fn from(step: Next) -> Self {
        Self::Command(step.into())
    }
}

impl From<Question> for Part {
    fn from(question: Question) -> Self {
        Self::Command(question.into())
    }
}

impl From<OrderForm> for Part {
    fn from(order: OrderForm) -> Self {
        Self::Command(order.into())
    }
}

impl From<Launch> for Part {
    fn from(launch: Launch) -> Self {
        Self::Command(launch.into())
    }
}

impl<T: Into<Part>> From<T> for Hint {
    fn from(part: T) -> Self {
        Self(vec![part.into()])
    }
}

/// A text of parts: words, questions, orders, launches, and command lines.
macro_rules! hint {
    ($($part:expr),+ $(,)?) => {{
        let mut hint = $crate::front::text::commands::Hint::default();
        $(hint += $part;)+
        hint
    }};
}
pub(crate) use hint;

impl<T: Into<Hint>> std::ops::AddAssign<T> for Hint {
    fn add_assign(&mut self, other: T) {
        self.0.extend(other.into().0);
    }
}

impl Hint {
    /// The next steps: what each does, where its words do not say it.
    pub fn of_steps(steps: &[Next]) -> Option<Self> {
        let mut steps = steps.iter();
        let mut last = steps.next()?;
        let mut hint = described(last);
        for step in steps {
            let is_outside = |step: &Next| matches!(step, Next::Outside { .. });
            hint += match step {
                Next::Order(OrderForm::WithForce) => ", or ",
                _ if is_outside(last) || is_outside(step) => "; ",
                _ => ", ",
            };
            hint += described(step);
            last = step;
        }
        Some(hint)
    }

    /// The steps that its commands are.
    pub fn steps(&self) -> Vec<Next> {
        let step = |part: &Part| match part {
            Part::Command(Command::Step(step)) => Some(step.clone()),
            _ => None,
        };
        self.0.iter().filter_map(step).collect()
    }

    /// Returns true if it has no text.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty()))
    }

    /// The text in this style.
    pub fn painted(self, style: Style) -> Self {
        hint![style.to_string(), self, format!("{style:#}")]
    }
}

/// Its commands as in a shell in the workspace, for tests and traces.
impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Commands::default().text(self))
    }
}

/// A warning of the event log, with its next steps as in a shell in the workspace.
pub fn warning(about: &str, text: &str, next: &[Next]) -> String {
    let hint = Hint::of_steps(next).map(|steps| format!(". hint: {steps}")).unwrap_or_default();
    format!("warning: {about}: {text}{hint}")
}

/// A step of a refusal, with its effect.
fn described(step: &Next) -> Hint {
    let (before, after) = match step {
        Next::Question(Question::Doctor) => {
            ("", " checks that models and keys are set, and that servers accept connections")
        }
        Next::Question(Question::Team) => ("", " shows what it does"),
        Next::Question(Question::Runs) => ("", " lists them"),
        Next::Question(Question::Leftovers) => ("", " lists it"),
        Next::Question(Question::Requests { .. }) => ("", " lists those that wait for an answer"),
        Next::Question(Question::Request { kind: RequestKind::Permission, id: Some(_) }) => {
            ("", " shows the call and its digest")
        }
        Next::Question(Question::Request { id: None, .. }) => ("to see the answer in a moment: ", ""),
        Next::Order(OrderForm::Approve { digest: Digest::Open, .. }) => ("then ", ""),
        Next::Order(OrderForm::Send { to: None }) => ("to write to the teammate instead: ", ""),
        Next::Order(OrderForm::Send { to: Some(_) }) => ("to write to it: ", ""),
        Next::Order(OrderForm::SetMode { mode: Mode::Pause }) => ("", " pauses the team on any machine"),
        Next::Order(OrderForm::Stop { now: true }) => ("", " does not wait for running turns"),
        Next::Order(OrderForm::Stop { now: false } | OrderForm::EndSession) => ("", " stops the team"),
        Next::Order(OrderForm::Merge) => ("", " takes it over"),
        Next::Order(OrderForm::MergeTaken { .. }) => ("if your branch has this work already, in another form: ", ""),
        Next::Launch(Launch::Run { team: None }) => ("", " continues the work"),
        Next::Launch(Launch::Up { team: None }) => ("", " starts it again"),
        Next::Launch(Launch::Init) => ("", " creates a team here"),
        Next::Launch(Launch::Mcp) => ("pass a name that no member has: ", ""),
        _ => ("", ""),
    };
    hint![before, Command::Step(step.clone()), after]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_command_gets_workspace_flags() {
        let flags = "--workspace w".to_owned();
        let hint = hint![
            OrderForm::Retry { tasks: vec![TaskId(1), TaskId(2)] },
            ", or ",
            Launch::Up { team: None },
            "; ",
            line("api schema"),
            "; `rm a`"
        ];
        let with =
            "`brigade --workspace w tasks retry 1 2`, or `brigade --workspace w up`; `brigade api schema`; `rm a`";
        assert_eq!(Commands::Shell(flags).text(&hint), with);
        assert_eq!(hint.to_string(), with.replace("--workspace w ", ""));
        assert_eq!(hint.steps().len(), 2);
    }

    #[test]
    fn refused_order_is_given_by_holder_or_with_force() {
        let holder = Next::from(OrderForm::AsHolder { by: "ada".into(), attempt: 2 });
        let text = |steps: &[Next]| Hint::of_steps(steps).unwrap().to_string();
        let with_force = Next::from(OrderForm::WithForce);
        assert_eq!(text(std::slice::from_ref(&with_force)), "add `--force` as a person");
        assert_eq!(text(&[holder, with_force]), "add `--as ada --attempt 2`, or add `--force` as a person");
    }

    #[test]
    fn repl_command_gets_slash_or_at() {
        let approve =
            OrderForm::Approve { kind: RequestKind::PlanApproval, id: "9b".into(), digest: Digest::NotNeeded };
        for (command, typed) in [
            (Command::from(approve), "`/plan approve 9b`"),
            (OrderForm::Send { to: Some("ada".into()) }.into(), "`@ada TEXT`"),
            (Question::Why { task: None }.into(), "`/why ID`"),
            (line("send --help"), "`/send --help`"),
            (OrderForm::EndSession.into(), "`/quit`"),
            (Launch::Up { team: None }.into(), "`brigade up`"),
        ] {
            assert_eq!(Commands::Repl.typed(command), typed);
        }
    }
}
