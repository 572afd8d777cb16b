//! Plan files: Markdown whose `## Title` sections are tasks. Text in, tasks out; it knows nothing of files or boards.
//!
//! Contract: every `## Title` outside code fences is a task. Lines `after:` (titles, comma separated), `requires:`,
//! `verify:` and `priority:` stand directly below the title, in any case and order, blank lines between them or not; the
//! rest is the description. What stands before the first title is for people. A line that would be such a field further up, and a
//! fence that begins within another, are errors: read as text they would drop a check or a task unsaid.

use std::collections::HashMap;
use std::fmt;

use super::graph;
use super::task::{NewTask, TaskId};

/// The largest plan file that is read, in bytes.
pub const PLAN_BYTES_MAX: usize = 1024 * 1024;
/// The most tasks a plan may have.
pub const PLAN_TASKS_MAX: usize = 5_000;
/// The most problems that are named at once.
const PROBLEMS_MAX: usize = 20;

const KEYS: [&str; 4] = ["after", "requires", "verify", "priority"];

/// Something that is wrong with a plan, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PlanError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: PlanProblem,
}

/// What can be wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanProblem {
    /// No `## Title` at all.
    #[error("the plan has no task: each task begins with a line `## Title`")]
    NoTask,
    /// `##` and nothing behind it.
    #[error("a task needs a title: `## Title`")]
    EmptyTitle,
    /// `##Title`, which no Markdown reader takes for a heading.
    #[error("`##` needs a space behind it to begin a task: `## {0}`")]
    NoSpace(String),
    /// Two tasks of one title.
    #[error("the title `{title}` stands in line {first} already; `after:` could not tell them apart")]
    DuplicateTitle {
        /// The title.
        title: String,
        /// Where it stands first.
        first: usize,
    },
    /// `after:` names no task of the plan.
    #[error("`after:` names `{title}`, and no task is called that{}", suggestion(.meant.as_deref()))]
    UnknownTitle {
        /// What it names.
        title: String,
        /// A title that is spelled much like it.
        meant: Option<String>,
    },
    /// Tasks that wait for each other.
    #[error("these tasks wait for each other in a circle: {}", .0.join(" -> "))]
    Cycle(Vec<String>),
    /// `priority:` is no whole number.
    #[error("`priority: {0}` is not a whole number, such as 5 or -1; higher goes first")]
    BadPriority(String),
    /// A key that may stand once stands twice.
    #[error("`{0}:` stands twice for this task")]
    Twice(&'static str),
    /// A key that is no key, by a letter.
    #[error("`{key}:` is no key of a task; did you mean `{meant}:`?")]
    UnknownKey {
        /// What stands there.
        key: String,
        /// What was meant.
        meant: &'static str,
    },
    /// A key of a task stands where it is only text.
    #[error("`{key}:` counts only directly below the title `## {title}`, above its description: move it there{}; if it is meant as text, begin the line with another word", if *.is_item { ", without the dash" } else { "" })]
    Misplaced {
        /// The key.
        key: &'static str,
        /// The task's title.
        title: String,
        /// Whether it is written as an item of a list.
        is_item: bool,
    },
    /// A code fence begins within another.
    #[error(
        "this code fence is not closed before the next one begins in line {next}, so what stands between them is lost: close it, or, where one is to be within the other, make this one longer (````)"
    )]
    FenceWithinFence {
        /// Where the next one begins.
        next: usize,
    },
    /// A code fence that is never closed swallows what follows.
    #[error("this code fence is never closed, so the titles behind it are no tasks")]
    OpenFence,
    /// The plan is too large.
    #[error("the plan is too large: at most {PLAN_BYTES_MAX} bytes and {PLAN_TASKS_MAX} tasks are read")]
    TooLarge,
}

fn suggestion(meant: Option<&str>) -> String {
    meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default()
}

/// All that is wrong with a plan, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PlanErrors(pub Vec<PlanError>);

impl fmt::Display for PlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().take(PROBLEMS_MAX).enumerate() {
            write!(f, "{}{error}", if index > 0 { "\n" } else { "" })?;
        }
        let more = self.0.len().saturating_sub(PROBLEMS_MAX);
        if more > 0 { write!(f, "\nand {more} more") } else { Ok(()) }
    }
}

/// A section while it is read.
#[derive(Debug, Default)]
struct Section<'a> {
    title: &'a str,
    line: usize,
    after: Vec<(usize, &'a str)>,
    requires: Vec<String>,
    verify: Option<String>,
    priority: Option<i64>,
    description: Vec<&'a str>,
}

/// Reads a plan. `name` is its file's path in the workspace, or its whole path where it lies outside: with a task's title it
/// says where the task comes from, so that importing the plan again adds nothing twice, and two plans are told apart.
///
/// # Errors
/// [`PlanErrors`]: all that is wrong with it; nothing is to be imported then.
pub fn parse(name: &str, text: &str) -> Result<Vec<NewTask>, PlanErrors> {
    if text.len() > PLAN_BYTES_MAX {
        return Err(PlanErrors(vec![PlanError { line: 1, problem: PlanProblem::TooLarge }]));
    }
    let mut reader = Reader::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        reader.line(index + 1, line);
    }
    let (sections, mut errors) = reader.finish();
    let tasks = if errors.is_empty() { link(name, &sections, &mut errors) } else { Vec::new() };
    if errors.is_empty() { Ok(tasks) } else { Err(PlanErrors(errors)) }
}

/// A fence that is open: its character, its length, its line.
type Fence = (char, usize, usize);

#[derive(Default)]
struct Reader<'a> {
    sections: Vec<Section<'a>>,
    errors: Vec<PlanError>,
    fence: Option<Fence>,
}

impl<'a> Reader<'a> {
    fn error(&mut self, line: usize, problem: PlanProblem) {
        self.errors.push(PlanError { line, problem });
    }

    fn line(&mut self, number: usize, line: &'a str) {
        if let Some(open) = self.fence {
            if closes(line, open) {
                self.fence = None;
            } else if let Some((mark, length)) =
                opens(line).filter(|(mark, length)| *mark == open.0 && *length >= open.1)
            {
                self.error(open.2, PlanProblem::FenceWithinFence { next: number });
                self.fence = Some((mark, length, number));
            }
        } else if let Some((mark, length)) = opens(line) {
            self.fence = Some((mark, length, number));
        } else if let Some(title) = title_of(line) {
            self.begin(number, title);
            return;
        } else if let Some(title) = title_without_space(line) {
            self.error(number, PlanProblem::NoSpace(title.to_owned()));
        } else if self.key(number, line) {
            return;
        } else if let Some(problem) = self.misplaced(line) {
            self.error(number, problem);
        }
        if let Some(section) = self.sections.last_mut() {
            section.description.push(line);
        }
    }

    fn begin(&mut self, line: usize, title: &'a str) {
        if title.is_empty() {
            self.error(line, PlanProblem::EmptyTitle);
        }
        self.sections.push(Section { title, line, ..Section::default() });
    }

    /// Takes the line as `key: value` of the present section, where it stands above the description.
    fn key(&mut self, number: usize, line: &'a str) -> bool {
        let Some(section) = self.sections.last_mut() else {
            return false;
        };
        if section.description.iter().any(|line| !line.trim().is_empty()) {
            return false;
        }
        let Some((key, value)) = line.split_once(':') else {
            return false;
        };
        let (key, value) = (key.trim(), value.trim());
        let problem = match KEYS.into_iter().find(|known| known.eq_ignore_ascii_case(key)) {
            Some(known) => section.set(known, number, value),
            None => misspelled(key),
        };
        let known = problem.is_some() || KEYS.iter().any(|known| known.eq_ignore_ascii_case(key));
        if let Some(problem) = problem {
            self.error(number, problem);
        }
        known
    }

    /// A key that stands in the description, or as an item of a list.
    fn misplaced(&self, line: &str) -> Option<PlanProblem> {
        let section = self.sections.last()?;
        let text = unindented(line)?;
        let item = text.strip_prefix("- ").or_else(|| text.strip_prefix("* "));
        let (key, value) = item.unwrap_or(text).trim_start_matches(' ').split_once(':')?;
        let key = KEYS.into_iter().find(|known| known.eq_ignore_ascii_case(key.trim_end()))?;
        // One without a value would say nothing there either, and people write "After:" above an example.
        let (title, is_item) = (section.title.to_owned(), item.is_some());
        (!value.trim().is_empty()).then_some(PlanProblem::Misplaced { key, title, is_item })
    }

    fn finish(mut self) -> (Vec<Section<'a>>, Vec<PlanError>) {
        if let Some((_, _, line)) = self.fence {
            self.error(line, PlanProblem::OpenFence);
        }
        if self.sections.is_empty() && self.errors.is_empty() {
            self.error(1, PlanProblem::NoTask);
        }
        if self.sections.len() > PLAN_TASKS_MAX {
            self.error(self.sections[PLAN_TASKS_MAX].line, PlanProblem::TooLarge);
        }
        (self.sections, self.errors)
    }
}

impl<'a> Section<'a> {
    fn set(&mut self, key: &'static str, number: usize, value: &'a str) -> Option<PlanProblem> {
        match key {
            "after" => self.after.push((number, value)),
            "requires" => self.requires.extend(words(value)),
            "verify" if self.verify.is_some() => return Some(PlanProblem::Twice("verify")),
            "verify" => self.verify = Some(code_span(value).to_owned()),
            _ if self.priority.is_some() => return Some(PlanProblem::Twice("priority")),
            _ => match value.parse() {
                Ok(priority) => self.priority = Some(priority),
                Err(_) => return Some(PlanProblem::BadPriority(value.to_owned())),
            },
        }
        None
    }

    fn description(&self) -> String {
        let blank = |line: &&str| line.trim().is_empty();
        let lines = &self.description;
        let start = lines.iter().position(|line| !blank(line)).unwrap_or(lines.len());
        let end = lines.iter().rposition(|line| !blank(line)).map_or(start, |last| last + 1);
        lines[start..end].join("\n")
    }
}

fn words(value: &str) -> impl Iterator<Item = String> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned)
}

/// The command itself, where it is written as a Markdown code span.
fn code_span(value: &str) -> &str {
    match value.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
        Some(inner) if !inner.contains('`') => inner.trim(),
        _ => value,
    }
}

fn misspelled(key: &str) -> Option<PlanProblem> {
    let lower = key.to_lowercase();
    let meant = KEYS.into_iter().find(|known| strsim::osa_distance(known, &lower) == 1)?;
    Some(PlanProblem::UnknownKey { key: key.to_owned(), meant })
}

/// A line's text behind at most three spaces; four make it an indented code block.
fn unindented(line: &str) -> Option<&str> {
    let text = line.trim_start_matches(' ');
    (line.len() - text.len() <= 3).then_some(text)
}

fn fence_of(line: &str) -> Option<(char, usize, &str)> {
    let text = unindented(line)?;
    let mark = text.chars().next().filter(|first| matches!(first, '`' | '~'))?;
    let rest = text.trim_start_matches(mark);
    let length = text.len() - rest.len();
    (length >= 3).then_some((mark, length, rest))
}

fn opens(line: &str) -> Option<(char, usize)> {
    // Behind an opening fence of backticks no backtick may stand: that is a code span within text.
    fence_of(line).filter(|(mark, _, rest)| *mark == '~' || !rest.contains('`')).map(|(mark, length, _)| (mark, length))
}

fn closes(line: &str, (mark, length, _): Fence) -> bool {
    fence_of(line).is_some_and(|(found, count, rest)| found == mark && count >= length && rest.trim().is_empty())
}

/// The title, if the line is a heading of the second level.
fn title_of(line: &str) -> Option<&str> {
    let rest = unindented(line)?.strip_prefix("##")?;
    if !rest.is_empty() && !rest.starts_with([' ', '\t']) {
        return None;
    }
    let title = rest.trim();
    // Markdown allows hashes at the end of a heading too.
    let bare = title.trim_end_matches('#');
    Some(if bare.is_empty() || bare.ends_with([' ', '\t']) { bare.trim_end() } else { title })
}

fn title_without_space(line: &str) -> Option<&str> {
    let rest = unindented(line)?.strip_prefix("##")?;
    rest.starts_with(char::is_alphanumeric).then(|| rest.trim())
}

/// What makes two titles the same: neither case nor the kind of spaces.
fn title_key(title: &str) -> String {
    title.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Where each title stands; one that stands twice is an error.
fn places(sections: &[Section<'_>], errors: &mut Vec<PlanError>) -> Titles {
    let mut places: HashMap<String, usize> = HashMap::new();
    for (index, section) in sections.iter().enumerate() {
        let first = *places.entry(title_key(section.title)).or_insert(index);
        if first != index {
            let (title, first) = (section.title.to_owned(), sections[first].line);
            errors.push(PlanError { line: section.line, problem: PlanProblem::DuplicateTitle { title, first } });
        }
    }
    let commas_max = places.keys().map(|title| title.matches(',').count()).max().unwrap_or(0);
    Titles { places, commas_max }
}

/// Makes tasks of sections: titles become places in the list.
fn link(name: &str, sections: &[Section<'_>], errors: &mut Vec<PlanError>) -> Vec<NewTask> {
    let titles = places(sections, errors);
    let mut tasks = Vec::with_capacity(sections.len());
    for section in sections {
        let mut blockers = Vec::new();
        for (line, value) in &section.after {
            match titles.places_in(value) {
                Ok(found) => blockers.extend(found),
                Err(title) => {
                    let meant = nearest(&title, sections);
                    errors.push(PlanError { line: *line, problem: PlanProblem::UnknownTitle { title, meant } });
                }
            }
        }
        blockers.sort_unstable();
        blockers.dedup();
        tasks.push(NewTask {
            subject: section.title.to_owned(),
            description: section.description(),
            blocked_by_new: blockers,
            priority: section.priority.unwrap_or(0),
            requires: section.requires.clone(),
            verify: section.verify.clone().filter(|command| !command.is_empty()),
            source: Some(format!("plan:{name}#{}", section.title)),
            source_line: Some(section.line),
            ..NewTask::default()
        });
    }
    if errors.is_empty()
        && let Some(cycle) = first_cycle(&tasks)
    {
        let line = sections[cycle[0]].line;
        let names = cycle.iter().chain(cycle.first()).map(|index| sections[*index].title.to_owned()).collect();
        errors.push(PlanError { line, problem: PlanProblem::Cycle(names) });
    }
    tasks
}

/// The titles of a plan, to be found in lists.
struct Titles {
    places: HashMap<String, usize>,
    /// The most commas one of them has.
    commas_max: usize,
}

impl Titles {
    /// What the parts of a list are when joined: nothing at all, or a title's place; `None` where no title is called that.
    fn place(&self, parts: &[&str]) -> Option<Option<usize>> {
        let text = parts.join(",");
        if text.trim().is_empty() { Some(None) } else { self.places.get(&title_key(&text)).map(|place| Some(*place)) }
    }

    /// Where a title that begins at part `start` may end, the longest first.
    fn ends(&self, start: usize, parts: &[&str]) -> impl Iterator<Item = usize> + use<> {
        (start + 1..=(start + self.commas_max + 1).min(parts.len())).rev()
    }

    /// The places of a comma-separated list. Titles may contain commas: the longest that is known is taken, a shorter one
    /// where the rest would not come out otherwise. The error is the part nobody is called.
    fn places_in(&self, list: &str) -> Result<Vec<usize>, String> {
        let parts: Vec<&str> = list.split(',').collect();
        // From the end: which title begins at each part, and where it ends, such that what follows comes out too.
        let mut steps: Vec<Option<(Option<usize>, usize)>> = vec![None; parts.len() + 1];
        steps[parts.len()] = Some((None, parts.len()));
        for start in (0..parts.len()).rev() {
            steps[start] = self
                .ends(start, &parts)
                .filter(|end| steps[*end].is_some())
                .find_map(|end| self.place(&parts[start..end]).map(|place| (place, end)));
        }
        if steps[0].is_none() {
            return Err(self.unknown_part(&parts));
        }
        let mut found = Vec::new();
        let mut at = 0;
        while let Some((place, end)) = steps[at]
            && at < parts.len()
        {
            found.extend(place);
            at = end;
        }
        Ok(found)
    }

    /// The first part at which no title begins, taking the longest titles before it.
    fn unknown_part(&self, parts: &[&str]) -> String {
        let mut at = 0;
        while at < parts.len() {
            match self.ends(at, parts).find(|end| self.place(&parts[at..*end]).is_some()) {
                Some(end) => at = end,
                None => return parts[at].trim().to_owned(),
            }
        }
        parts.join(",").trim().to_owned()
    }
}

fn nearest(title: &str, sections: &[Section<'_>]) -> Option<String> {
    let wanted = title_key(title);
    let likeness = |section: &&Section<'_>| strsim::jaro_winkler(&title_key(section.title), &wanted);
    sections
        .iter()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
        .filter(|section| likeness(section) > 0.8)
        .map(|section| section.title.to_owned())
}

/// Places of tasks that wait for each other, if there are any.
fn first_cycle(tasks: &[NewTask]) -> Option<Vec<usize>> {
    let place = |id: TaskId| usize::try_from(id.0).ok().filter(|place| *place < tasks.len());
    let blockers_of = |id: TaskId| {
        place(id)
            .map_or_else(Vec::new, |at| tasks[at].blocked_by_new.iter().map(|index| TaskId(*index as u64)).collect())
    };
    let ids = (0..tasks.len()).map(|index| TaskId(index as u64));
    let cycle = graph::find_cycles(ids, blockers_of, |_| true).into_iter().next()?;
    Some(cycle.into_iter().filter_map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expect: &[(usize, &str)]) {
        let errors = parse("plan.md", text).unwrap_err().0;
        let found: Vec<_> = errors.iter().map(|error| (error.line, error.problem.to_string())).collect();
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for ((line, text), (expected_line, part)) in found.iter().zip(expect) {
            assert!(line == expected_line && text.contains(part), "{found:?} has no {part:?} in line {expected_line}");
        }
    }

    #[test]
    fn a_plan_becomes_tasks_in_its_order() {
        let text = "\u{feff}# Port the parser\r\n\r\nafter: no key here\r\n```sh\r\n## no title\r\n```\r\n## Count, lines  ##\r\n\
            PRIORITY: 5\r\n\r\nrequires: coder, rust\r\nverify: `test -s counts.csv`\r\n\r\nWrite it.\r\n\r\n~~~sh\r\n## no task\r\nwc -l\r\n~~~\r\n\
            what comes after: this is text\r\n## Report\r\nafter: count, Lines\r\n### Not a task\r\n";
        let tasks = parse("plan.md", text).unwrap();
        assert_eq!(tasks.len(), 2);
        let first = &tasks[0];
        assert_eq!((first.subject.as_str(), first.priority), ("Count, lines", 5));
        assert_eq!(first.requires, ["coder", "rust"]);
        assert_eq!(first.verify.as_deref(), Some("test -s counts.csv"));
        assert_eq!(first.description, "Write it.\n\n~~~sh\n## no task\nwc -l\n~~~\nwhat comes after: this is text");
        assert_eq!(first.source.as_deref(), Some("plan:plan.md#Count, lines"));
        assert_eq!(tasks[1].blocked_by_new, [0]);
        assert_eq!(tasks[1].description, "### Not a task");
    }

    #[test]
    fn titles_with_commas_are_found_also_where_the_longest_match_is_wrong() {
        let text = "## a\n## a, b\n## b, c\n## d\nafter: a, b, c, a, b\n## e\nafter: a, b, a,, \n";
        let tasks = parse("p", text).unwrap();
        assert_eq!(tasks[3].blocked_by_new, [0, 1, 2]);
        assert_eq!(tasks[4].blocked_by_new, [0, 1]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        check("just text\n", &[(1, "no task")]);
        check("", &[(1, "no task")]);
        check("##\n##Oops\n", &[(1, "needs a title"), (2, "`## Oops`")]);
        check("## A\n\n## a\n", &[(3, "line 1 already")]);
        check("## Build\n## Test\nafter: Biuld, Test\n", &[(3, "did you mean `Build`?")]);
        check("## Build\n## Test\nafter: Build, Xyz\n", &[(3, "`Xyz`")]);
        check("## A\npriority: high\n## B\npriority:\n", &[(2, "`priority: high`"), (4, "`priority: `")]);
        check("## A\nverify: x\nverify: y\n", &[(3, "twice")]);
        check("## A\nrequire: x\n", &[(2, "did you mean `requires:`?")]);
        check("## A\nafter: C\n## B\nafter: A\n## C\nafter: B\n## D\nafter: A\n", &[(1, "A -> C -> B -> A")]);
        check("## A\nafter: A\n", &[(1, "A -> A")]);
        check("## A\n```\n## B\n", &[(2, "never closed")]);
        check("## A\nDo it.\n\nverify: false\n", &[(4, "directly below the title `## A`")]);
        check("## A\n- verify: false\n* After: X\n", &[(2, "without the dash"), (3, "`after:` counts only")]);
        check("## A\n```sh\necho a\n\n## B\n```sh\necho b\n```\n", &[(2, "begins in line 6")]);
    }

    #[test]
    fn prose_and_code_may_hold_what_looks_like_a_field() {
        let description = "Verify that it works: by hand.\nAfter:\n\n    verify: x\n\n````md\n```sh\n## B\nverify: x\n```\n````\n\
            ~~~\n```sh\n~~~\nSee `verify: x`. **requires:** nothing\n> priority: 5\nverify\n";
        let tasks = parse("p", &format!("verify: for people\n## A\nverify: true\n{description}")).unwrap();
        assert_eq!((tasks.len(), tasks[0].verify.as_deref()), (1, Some("true")));
        assert_eq!(tasks[0].description, description.trim_end());
        check(&"x".repeat(PLAN_BYTES_MAX + 1), &[(1, "too large")]);
        let many: String = (0..=PLAN_TASKS_MAX).map(|n| format!("## {n}\n")).collect();
        check(&many, &[(PLAN_TASKS_MAX + 1, "too large")]);
    }

    #[test]
    fn a_long_circle_is_found_in_bounded_time() {
        let text: String =
            (0..PLAN_TASKS_MAX).map(|n| format!("## t{n}\nafter: t{}\n", (n + 1) % PLAN_TASKS_MAX)).collect();
        assert!(matches!(parse("p", &text).unwrap_err().0[0].problem, PlanProblem::Cycle(_)));
    }

    fn render(tasks: &[NewTask]) -> String {
        let mut text = String::from("intro\n\n");
        for task in tasks {
            let titles: Vec<&str> = task.blocked_by_new.iter().map(|index| tasks[*index].subject.as_str()).collect();
            text += &format!("## {}\n", task.subject);
            text += &format!("after: {}\nrequires: {}\n", titles.join(", "), task.requires.join(", "));
            text += &format!("priority: {}\n", task.priority);
            if let Some(command) = &task.verify {
                text += &format!("verify: {command}\n");
            }
            text += &format!("\n{}\n\n", task.description);
        }
        text
    }

    type Blockers = Vec<prop::sample::Index>;

    /// A task as the `index`-th of its plan: its title its own, its blockers before it.
    fn place(index: usize, task: NewTask, blockers: &Blockers) -> NewTask {
        let before = blockers.iter().filter(|_| index > 0).map(|at| at.index(index.max(1)));
        let blocked_by_new = before.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        let subject = format!("t{index}{}e", task.subject);
        NewTask { source: Some(format!("plan:p#{subject}")), subject, blocked_by_new, ..task }
    }

    fn plan() -> impl Strategy<Value = Vec<NewTask>> {
        let line = prop_oneof!["[a-z#,:` ]{0,12}".prop_map(|line| format!("xx{line}")), Just(String::new())];
        let fence = Just("```sh\n## not a task\n```".to_owned());
        let description = prop::collection::vec(prop_oneof![line, fence], 0..4)
            .prop_map(|lines| lines.join("\n").trim_matches('\n').trim_end().to_owned());
        let words = prop::collection::vec("[a-z]{1,5}", 0..3);
        let verify = prop::option::of("[a-z][a-z -]{0,8}[a-z]");
        let task = ("[a-z,]{0,6}", description, words, any::<i64>(), verify).prop_map(
            |(subject, description, requires, priority, verify)| NewTask {
                subject,
                description,
                requires,
                priority,
                verify,
                ..NewTask::default()
            },
        );
        let blockers = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
        prop::collection::vec((task, blockers), 1..8).prop_map(|rows| {
            rows.into_iter().enumerate().map(|(index, (task, blockers))| place(index, task, &blockers)).collect()
        })
    }

    proptest! {
        #[test]
        fn a_rendered_plan_is_read_as_it_was(tasks in plan(), crlf: bool) {
            let text = render(&tasks);
            let text = if crlf { text.replace('\n', "\r\n") } else { text };
            let mut read = parse("p", &text).unwrap();
            for task in &mut read {
                let line = task.source_line.take().unwrap();
                prop_assert_eq!(text.lines().nth(line - 1).unwrap(), format!("## {}", task.subject));
            }
            prop_assert_eq!(read, tasks);
        }

        #[test]
        fn no_text_makes_the_reader_fail(text in "(## |after:|```|[a-c,#: \\n]){0,40}") {
            let _ = parse("p", &text);
        }
    }
}
