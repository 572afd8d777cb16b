//! The parser of plan files: Markdown in which each `## Title` section is a task. Text in, tasks out; knows nothing of files or
//! boards.
//!
//! Format: every `## Title` outside code fences is a task. The fields `after:` (titles, comma separated), `requires:`, `verify:`,
//! `priority:` and `task_tokens_max:` follow directly after the title. Their case and order do not matter, and blank lines may separate them. The
//! rest is the description. Text before the first title is for people. A field inside the description and a fence inside another
//! fence are errors. As text they would silently drop a check or a task.

use std::collections::HashMap;

use super::dependencies;
use crate::domain::task::{NewTask, TaskId, subject_problem};
use crate::domain::team::budget::TOKENS_MAX;
use crate::domain::text::code_fence::CodeFence;
use crate::domain::text::suggestion::did_you_mean;

/// Maximum size of a plan file, in bytes.
pub const PLAN_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of tasks in a plan.
pub const PLAN_TASKS_MAX: usize = 5_000;

const FIELDS: [&str; 5] = ["after", "requires", "verify", "priority", TOKENS_FIELD];
/// The field with the most tokens of all attempts of a task.
const TOKENS_FIELD: &str = "task_tokens_max";

/// A problem of a plan and its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PlanError {
    /// Line number, starting at 1.
    pub line: usize,
    /// The problem, for people.
    pub problem: String,
}

/// A section that is being parsed.
#[derive(Debug, Default)]
struct Section<'a> {
    title: &'a str,
    line: usize,
    after: Vec<(usize, &'a str)>,
    requires: Vec<String>,
    verify: Option<String>,
    priority: Option<i64>,
    tokens_max: Option<u64>,
    description: Vec<&'a str>,
}

/// Parses a plan. `name` is the file's path in the workspace, or its full path if it is outside. With the title it identifies a
/// task's source. So a second import creates no duplicates, and two plans are told apart.
///
/// # Errors
/// All problems of the plan. Nothing must be imported then.
pub fn parse(name: &str, text: &str) -> Result<Vec<NewTask>, Vec<PlanError>> {
    if text.len() > PLAN_BYTES_MAX {
        return Err(vec![PlanError { line: 1, problem: too_large() }]);
    }
    let mut parser = Parser::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        parser.read_line(index + 1, line);
    }
    let (sections, mut errors) = parser.finish();
    let tasks = if errors.is_empty() { create_tasks(name, &sections, &mut errors) } else { Vec::new() };
    if errors.is_empty() { Ok(tasks) } else { Err(errors) }
}

/// A line that opens or closes a code fence.
#[derive(Clone, Copy)]
struct OpenFence {
    mark: CodeFence,
    line: usize,
}

#[derive(Default)]
struct Parser<'a> {
    sections: Vec<Section<'a>>,
    errors: Vec<PlanError>,
    fence: Option<OpenFence>,
}

impl<'a> Parser<'a> {
    fn error(&mut self, line: usize, problem: impl Into<String>) {
        self.errors.push(PlanError { line, problem: problem.into() });
    }

    fn read_line(&mut self, number: usize, line: &'a str) {
        let mark = unindented(line).and_then(CodeFence::opening);
        if let Some(open) = self.fence {
            if unindented(line).is_some_and(|line| open.mark.is_closed_by(line)) {
                self.fence = None;
            } else if let Some(mark) = mark.filter(|mark| mark.can_close(open.mark)) {
                let problem = format!(
                    "this code fence is not closed before the next one starts in line {number}: close it, or, if one is inside the other, make the outer one longer (````)"
                );
                self.error(open.line, problem);
                self.fence = Some(OpenFence { mark, line: number });
            }
        } else if let Some(mark) = mark {
            self.fence = Some(OpenFence { mark, line: number });
        } else if let Some(title) = title_of(line) {
            self.start_section(number, title);
            return;
        } else if let Some(title) = title_without_space(line) {
            self.error(number, format!("a task needs a space after `##`: `## {title}`"));
        } else if self.read_field(number, line) {
            return;
        } else if let Some(problem) = self.misplaced_field(line) {
            self.error(number, problem);
        }
        if let Some(section) = self.sections.last_mut() {
            section.description.push(line);
        }
    }

    fn start_section(&mut self, line: usize, title: &'a str) {
        if title.is_empty() {
            self.error(line, "a task needs a title: `## Title`");
        } else if let Some(problem) = subject_problem(title) {
            self.error(line, problem);
        }
        self.sections.push(Section { title, line, ..Section::default() });
    }

    /// Parses the line as `key: value` of the current section, if the description has not started. Returns true if it has a known
    /// or misspelled key.
    fn read_field(&mut self, number: usize, line: &'a str) -> bool {
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
        let problem = match (field_named(key), misspelled(key)) {
            (Some(field), _) => section.set(field, number, value),
            (None, Some(problem)) => Some(problem),
            (None, None) => return false,
        };
        if let Some(problem) = problem {
            self.error(number, problem);
        }
        true
    }

    /// Returns the problem of a field in the description or in a list item.
    fn misplaced_field(&self, line: &str) -> Option<String> {
        let section = self.sections.last()?;
        let text = unindented(line)?;
        let item = text.strip_prefix("- ").or_else(|| text.strip_prefix("* "));
        let (key, value) = item.unwrap_or(text).trim_start_matches(' ').split_once(':')?;
        let key = field_named(key.trim_end())?;
        // A field without a value has no effect anyway, and people write "After:" before an example.
        if value.trim().is_empty() {
            return None;
        }
        let dash = if item.is_some() { ", without the dash" } else { "" };
        Some(format!(
            "`{key}:` is a field only directly after the title `## {}`, before its description: move it there{dash}; if it is text, start the line with another word",
            section.title
        ))
    }

    fn finish(mut self) -> (Vec<Section<'a>>, Vec<PlanError>) {
        if let Some(fence) = self.fence {
            self.error(fence.line, "this code fence is never closed, so the titles after it are not tasks");
        }
        if self.sections.is_empty() && self.errors.is_empty() {
            self.error(1, "the plan has no task: each task starts with a line `## Title`");
        }
        if self.sections.len() > PLAN_TASKS_MAX {
            self.error(self.sections[PLAN_TASKS_MAX].line, too_large());
        }
        (self.sections, self.errors)
    }
}

impl<'a> Section<'a> {
    /// Sets a field, or returns the problem of the line.
    fn set(&mut self, key: &str, number: usize, value: &'a str) -> Option<String> {
        let is_set_twice = match key {
            "verify" => self.verify.is_some(),
            "priority" => self.priority.is_some(),
            TOKENS_FIELD => self.tokens_max.is_some(),
            _ => false,
        };
        match key {
            _ if value.is_empty() => {
                return Some(format!("`{key}:` has no value: write the value in the same line, or remove the line"));
            }
            _ if is_set_twice => return Some(format!("`{key}:` is set twice for this task")),
            "after" => self.after.push((number, value)),
            "requires" => self.requires.extend(split_list(value)),
            "verify" => self.verify = Some(code_span(value).to_owned()),
            TOKENS_FIELD => match value.replace('_', "").parse() {
                Ok(tokens_max @ 1..=TOKENS_MAX) => self.tokens_max = Some(tokens_max),
                _ => {
                    return Some(format!("`{key}: {value}` is not a whole number from 1 to {TOKENS_MAX}"));
                }
            },
            _ => match value.parse() {
                Ok(priority) => self.priority = Some(priority),
                Err(_) => {
                    let text = "is not a whole number, such as 5 or -1; higher goes first";
                    return Some(format!("`priority: {value}` {text}"));
                }
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

fn too_large() -> String {
    format!("the plan is too large: at most {PLAN_BYTES_MAX} bytes and {PLAN_TASKS_MAX} tasks are allowed")
}

fn split_list(value: &str) -> impl Iterator<Item = String> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned)
}

/// Returns the command inside a Markdown code span, or the value itself.
fn code_span(value: &str) -> &str {
    match value.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
        Some(inner) if !inner.contains('`') => inner.trim(),
        _ => value,
    }
}

fn field_named(key: &str) -> Option<&'static str> {
    FIELDS.into_iter().find(|field| field.eq_ignore_ascii_case(key))
}

/// Returns the problem of a key that differs from that of a field by one letter.
fn misspelled(key: &str) -> Option<String> {
    let lower = key.to_lowercase();
    let suggestion = FIELDS.into_iter().find(|field| strsim::osa_distance(field, &lower) == 1)?;
    Some(format!("`{key}:` is not a field of a task; did you mean `{suggestion}:`?"))
}

/// Returns the text after at most three spaces. Four spaces start an indented code block.
fn unindented(line: &str) -> Option<&str> {
    let text = line.trim_start_matches(' ');
    (line.len() - text.len() <= 3).then_some(text)
}

/// Returns the title of a second-level heading.
fn title_of(line: &str) -> Option<&str> {
    let rest = unindented(line)?.strip_prefix("##")?;
    if !rest.is_empty() && !rest.starts_with([' ', '\t']) {
        return None;
    }
    let title = rest.trim();
    // Markdown also allows hashes at the end of a heading.
    let bare = title.trim_end_matches('#');
    Some(if bare.is_empty() || bare.ends_with([' ', '\t']) { bare.trim_end() } else { title })
}

fn title_without_space(line: &str) -> Option<&str> {
    let rest = unindented(line)?.strip_prefix("##")?;
    rest.starts_with(char::is_alphanumeric).then(|| rest.trim())
}

/// Returns the form in which titles are compared: without regard to case and the kind of spaces.
fn title_key(title: &str) -> String {
    title.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Returns the section index of each title. A duplicate title is an error.
fn index_titles(sections: &[Section<'_>], errors: &mut Vec<PlanError>) -> Titles {
    let mut indices: HashMap<String, usize> = HashMap::new();
    for (index, section) in sections.iter().enumerate() {
        let first = *indices.entry(title_key(section.title)).or_insert(index);
        if first != index {
            let title = section.title;
            let first = sections[first].line;
            let problem = format!("the title `{title}` is already used in line {first}: `after:` needs unique titles");
            errors.push(PlanError { line: section.line, problem });
        }
    }
    let commas_max = indices.keys().map(|title| title.matches(',').count()).max().unwrap_or(0);
    Titles { indices, commas_max }
}

/// Creates the tasks of sections and resolves titles to task indices.
fn create_tasks(name: &str, sections: &[Section<'_>], errors: &mut Vec<PlanError>) -> Vec<NewTask> {
    let titles = index_titles(sections, errors);
    let mut tasks = Vec::with_capacity(sections.len());
    for section in sections {
        let mut blockers = Vec::new();
        for (line, value) in &section.after {
            match titles.resolve_list(value) {
                Ok(indices) => blockers.extend(indices),
                Err(title) => {
                    let hint = did_you_mean(&title, sections.iter().map(|section| section.title));
                    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                    let problem = format!("`after:` needs the title of a task, and no task is called `{title}`{hint}");
                    errors.push(PlanError { line: *line, problem });
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
            tokens_max: section.tokens_max,
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
        let names: Vec<&str> = cycle.iter().chain(cycle.first()).map(|index| sections[*index].title).collect();
        let problem = format!("the dependencies of these tasks form a cycle: {}", names.join(" -> "));
        errors.push(PlanError { line, problem });
    }
    tasks
}

/// The titles of a plan and their section indices.
struct Titles {
    indices: HashMap<String, usize>,
    /// Maximum number of commas in one title.
    commas_max: usize,
}

impl Titles {
    /// Returns the indices of the titles in a list, or the first part that is no title. The longest title is tried first, because
    /// titles can have commas.
    fn resolve_list(&self, list: &str) -> Result<Vec<usize>, String> {
        let parts: Vec<&str> = list.split(',').collect();
        let mut parts = parts.as_slice();
        let mut indices = Vec::new();
        while let Some(first) = parts.first() {
            let count_max = parts.len().min(self.commas_max + 1);
            let find = |count: usize| Some((*self.indices.get(&title_key(&parts[..count].join(",")))?, count));
            match (1..=count_max).rev().find_map(find) {
                Some((index, count)) => {
                    indices.push(index);
                    parts = &parts[count..];
                }
                None if first.trim().is_empty() => parts = &parts[1..],
                None => return Err(first.trim().to_owned()),
            }
        }
        Ok(indices)
    }
}

/// Returns the indices of tasks that wait for each other, if there are any.
fn first_cycle(tasks: &[NewTask]) -> Option<Vec<usize>> {
    let index = |id: TaskId| usize::try_from(id.0).ok().filter(|index| *index < tasks.len());
    let blockers_of = |id: TaskId| {
        index(id)
            .map_or_else(Vec::new, |at| tasks[at].blocked_by_new.iter().map(|index| TaskId(*index as u64)).collect())
    };
    let ids = (0..tasks.len()).map(|index| TaskId(index as u64));
    let cycle = dependencies::find_cycles(ids, blockers_of, |_| true).into_iter().next()?;
    Some(cycle.into_iter().filter_map(index).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expect: &[(usize, &str)]) {
        let errors = parse("plan.md", text).unwrap_err();
        let found: Vec<_> = errors.iter().map(|error| (error.line, error.problem.to_string())).collect();
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for ((line, text), (expected_line, part)) in found.iter().zip(expect) {
            assert!(line == expected_line && text.contains(part), "{found:?} has no {part:?} in line {expected_line}");
        }
    }

    #[test]
    fn plan_parses_to_tasks_in_order() {
        let text = "\u{feff}# Port the parser\r\n\r\nafter: no key here\r\n```sh\r\n## no title\r\n```\r\n## Count, lines  ##\r\n\
            PRIORITY: 5\r\nTask_Tokens_Max: 200_000\r\n\r\nrequires: coder, rust\r\nverify: `test -s counts.csv`\r\n\r\nWrite it.\r\n\r\n~~~sh\r\n## no task\r\nwc -l\r\n~~~\r\n\
            what comes after: this is text\r\n## Report\r\nafter: count, Lines\r\n### Not a task\r\n";
        let tasks = parse("plan.md", text).unwrap();
        assert_eq!(tasks.len(), 2);
        let first = &tasks[0];
        assert_eq!((first.subject.as_str(), first.priority), ("Count, lines", 5));
        assert_eq!((first.tokens_max, tasks[1].tokens_max), (Some(200_000), None));
        assert_eq!(first.requires, ["coder", "rust"]);
        assert_eq!(first.verify.as_deref(), Some("test -s counts.csv"));
        assert_eq!(first.description, "Write it.\n\n~~~sh\n## no task\nwc -l\n~~~\nwhat comes after: this is text");
        assert_eq!(first.source.as_deref(), Some("plan:plan.md#Count, lines"));
        assert_eq!(tasks[1].blocked_by_new, [0]);
        assert_eq!(tasks[1].description, "### Not a task");
    }

    #[test]
    fn after_field_resolves_titles_with_commas() {
        let text = "## a\n## a, b\n## b, c\n## d\nafter: b, c, a, b\n## e\nafter: a, b, a,, \n";
        let tasks = parse("p", text).unwrap();
        assert_eq!(tasks[3].blocked_by_new, [1, 2]);
        assert_eq!(tasks[4].blocked_by_new, [0, 1]);
        // The longest title is taken: the rest is no title.
        check("## a\n## a, b\n## b, c\n## d\nafter: a, b, c\n", &[(5, "`c`")]);
    }

    #[test]
    fn plan_error_names_its_line() {
        check("just text\n", &[(1, "no task")]);
        check("", &[(1, "no task")]);
        check("##\n##Oops\n", &[(1, "needs a title"), (2, "`## Oops`")]);
        check("## A\n\n## a\n", &[(3, "already used in line 1")]);
        check(&format!("## A\n## {}\n", "x".repeat(501)), &[(2, "at most 500 characters")]);
        check("## A\n## b\tc\n## \u{1b}[31md\n", &[(2, "one line"), (3, "without control characters")]);
        check("## Build\n## Test\nafter: Biuld, Test\n", &[(3, "did you mean `Build`?")]);
        check("## Build\n## Test\nafter: Build, Xyz\n", &[(3, "`Xyz`")]);
        check("## A\npriority: high\n## B\npriority:\n", &[(2, "`priority: high`"), (4, "`priority:` has no value")]);
        check("## A\nverify:\n  make test\n", &[(2, "`verify:` has no value")]);
        check("## A\nverify: x\nverify: y\n", &[(3, "twice")]);
        check("## A\nrequire: x\n", &[(2, "did you mean `requires:`?")]);
        check("## A\nafter: C\n## B\nafter: A\n## C\nafter: B\n## D\nafter: A\n", &[(1, "A -> C -> B -> A")]);
        check("## A\nafter: A\n", &[(1, "A -> A")]);
        check("## A\n```\n## B\n", &[(2, "never closed")]);
        check("## A\nDo it.\n\nverify: false\n", &[(4, "directly after the title `## A`")]);
        check("## A\n- verify: false\n* After: X\n", &[(2, "without the dash"), (3, "`after:` is a field only")]);
        check("## A\n```sh\necho a\n\n## B\n```sh\necho b\n```\n", &[(2, "starts in line 6")]);
    }

    #[test]
    fn field_like_prose_and_code_stay_description() {
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
    fn long_plan_cycle_is_found_in_bounded_time() {
        let text: String =
            (0..PLAN_TASKS_MAX).map(|n| format!("## t{n}\nafter: t{}\n", (n + 1) % PLAN_TASKS_MAX)).collect();
        assert!(parse("p", &text).unwrap_err()[0].problem.contains("form a cycle"));
    }

    fn render(tasks: &[NewTask]) -> String {
        let mut text = String::from("intro\n\n");
        for task in tasks {
            let titles: Vec<&str> = task.blocked_by_new.iter().map(|index| tasks[*index].subject.as_str()).collect();
            text += &format!("## {}\n", task.subject);
            let verify = task.verify.clone().unwrap_or_default();
            let fields = [("after", titles.join(", ")), ("requires", task.requires.join(", ")), ("verify", verify)];
            for (key, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
                text += &format!("{key}: {value}\n");
            }
            text += &format!("priority: {}\n", task.priority);
            text += &format!("\n{}\n\n", task.description);
        }
        text
    }

    type Blockers = Vec<prop::sample::Index>;

    /// A copy of a task as the `index`-th of a plan, with a unique title and with blockers before it.
    fn indexed_task(index: usize, task: NewTask, blockers: &Blockers) -> NewTask {
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
            rows.into_iter().enumerate().map(|(index, (task, blockers))| indexed_task(index, task, &blockers)).collect()
        })
    }

    proptest! {
        #[test]
        fn rendered_plan_parses_back(tasks in plan(), crlf: bool) {
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
        fn plan_parser_never_panics(text in "(## |after:|```|[a-c,#: \\n]){0,40}") {
            let _ = parse("p", &text);
        }
    }
}
