//! `brigade init`.

use std::path::{Path, PathBuf};
use std::{fs, io};

mod choice;
mod starter;

use choice::Choice;
use starter::{Provider, Template};

use super::consent;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::location;
use super::nesting::nesting_note;
use super::output::CommandAnswer;
use crate::api::lead_status::LeadStatus;
use crate::api::{Launch, Question};
use crate::config::CONFIG_FILE;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::name::Name;
use crate::domain::team::team_spec::Prompts;
use crate::domain::text::units::count;
use crate::front::text::commands::{Hint, hint, line};
use crate::front::text::lead_status::pause;
use crate::front::text::style::{BOLD, DIM, GOOD, WARN, paint};
use crate::platform::reading::{self, AllowedKinds};

const GITIGNORE: &str = ".gitignore";
/// The longest .gitignore that is read, in bytes.
const IGNORE_BYTES_MAX: u64 = 1024 * 1024;
/// The most numbered backups of a file.
const BACKUPS_MAX: u32 = 1000;

const PLAN_FILE: &str = "plan.md";
const PLAN: &str = include_str!("init/plan.md");
const PLAN_OF_AGENTS: &str = include_str!("init/plan-of-agents.md");
const CODER: &str = include_str!("init/coder.md");
const PROMPTS_README: &str = include_str!("init/prompts.md");

/// The lines of the run-time files in .gitignore. Copies of an invalid state file are next to it.
const IGNORED: [&str; 3] = ["/.tasks/", "/.team/", "/agent_state.json*"];

/// Write a working brigade.toml
///
/// Also writes a small plan, the prompt of a role and .gitignore lines. It asks nothing. The team needs no key: its provider `runbook` runs
/// the `sh` blocks of its tasks. With a model there is no plan: the lead plans your goal. If the server lists its models, a suitable one is
/// chosen. Existing files are kept.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// The name of the team
    #[arg(default_value = "my-team")]
    team: String,
    /// The provider of the members
    #[arg(long, value_name = "NAME", default_value = "runbook", value_parser = Provider::parser())]
    provider: Provider,
    /// The model of the members [default: a suitable one of the server]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The address of the server, if it is not the provider's own
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// The shape of the team [default: two members in one folder]
    #[arg(long, value_name = "NAME")]
    template: Option<Template>,
    /// Overwrite existing files; changed ones are kept as NAME.bak
    #[arg(long)]
    force: bool,
    /// Also write the built-in prompts to prompts/, to edit them
    #[arg(long)]
    prompts: bool,
}

impl Init {
    /// Writes the files.
    ///
    /// # Errors
    /// A brigade.toml exists, the name is invalid, or a file cannot be written.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let team = Name::new(&self.team)?;
        let folder = context.workspace.location.new_workspace()?;
        let config = folder.join(CONFIG_FILE);
        if config.exists() && !self.force && !self.prompts {
            let path = location::display(&context.workspace.location, &config);
            let message = format!("cannot write {path}: it exists already");
            return Err(CliError::usage(message).hint("edit it, or add `--force` to overwrite it"));
        }
        // A config that stays names its model and its plan already.
        let keeps_config = config.exists() && !self.force;
        let Choice { model, notes } = if keeps_config {
            Choice::default()
        } else {
            choice::choose(self.provider, self.model.as_deref(), self.base_url.as_deref()).await?
        };
        let plan = self.plan();
        let keeps_plan = config.exists() || self.force || plan.is_empty();
        let plan_file = if keeps_plan { PLAN_FILE.to_owned() } else { free_plan_file(&folder, plan) };
        let text = starter::config(&team, self.provider, &model, self.template, &plan_file);
        let files = self.files(text, &plan_file);
        // An error must leave the folder as it was.
        let new_gitignore = new_gitignore(&folder)?;
        let mut changes = Changes { folder: folder.to_string_lossy().into_owned(), ..Changes::default() };
        for (path, text) in &files {
            let file = folder.join(path);
            if file.symlink_metadata().is_err() {
                write(&file, text)?;
                changes.written.push(path.display().to_string());
            } else if self.force && !has_text(&file, &folder, text) {
                let kept = back_up(&file)?;
                write(&file, text)?;
                changes.replaced.push(Replaced {
                    file: path.display().to_string(),
                    kept: path.with_file_name(kept).display().to_string(),
                });
            } else {
                changes.kept.push(path.display().to_string());
            }
        }
        if let Some(text) = new_gitignore {
            write(&folder.join(GITIGNORE), &text.text)?;
            changes.gitignore_lines_added = text.lines_added;
        }
        record_agreement(context, &team, &folder, &files);
        let answer = context.output.answer(&changes, || {
            let display = |file: &str| location::display(&context.workspace.location, &folder.join(file));
            let other_plan = if plan_file == PLAN_FILE {
                String::new()
            } else {
                format!("Your {PLAN_FILE} stays as it is: the team uses {plan_file}.\n")
            };
            let next = self.next_text(&team, &folder, &plan_file);
            context.hint(hint![changes_text(&changes, display, self.force), other_plan, next])
        })?;
        let lead_status = LeadStatus::with_state(&context.workspace).await.unwrap_or_default();
        Ok(answer.notes(notes).notes(lead_status.pause().as_ref().map(pause)).notes(nesting_note(context, &folder)))
    }

    /// The files of the team, relative to its folder, and their texts.
    fn files(&self, config: String, plan_file: &str) -> Vec<(PathBuf, String)> {
        let mut files: Vec<(PathBuf, String)> = vec![
            (CONFIG_FILE.into(), config),
            ("prompts/coder.md".into(), CODER.to_owned()),
            ("prompts/README.md".into(), PROMPTS_README.to_owned()),
        ];
        if !self.plan().is_empty() {
            files.push((PathBuf::from(plan_file), self.plan().to_owned()));
        }
        if self.prompts {
            let prompts = Prompts::default();
            files.extend([
                ("prompts/lead.md".into(), prompts.lead),
                ("prompts/teammate.md".into(), prompts.teammate),
                ("prompts/external.md".into(), prompts.external),
                ("prompts/compact.md".into(), prompts.compact),
                ("prompts/cleanup.md".into(), prompts.cleanup),
            ]);
        }
        files
    }

    /// The text of the plan; empty if a lead with a model plans.
    fn plan(&self) -> &'static str {
        match self.provider {
            Provider::Runbook => PLAN,
            Provider::Agent(_) => PLAN_OF_AGENTS,
            Provider::Service(_) => "",
        }
    }

    /// The step that gives the team its key, if it lacks one that it needs.
    fn key_step(&self) -> String {
        let Some(row) = self.provider.row() else { return String::new() };
        let needs_key = row.service.as_ref().is_some_and(|service| service.needs_key) && self.base_url.is_none();
        if !needs_key || row.keys().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
            return String::new();
        }
        match row.keys().next() {
            Some(key) => format!("First set the environment variable {key}.\n"),
            None => String::new(),
        }
    }

    /// The steps before the first run, and the next two commands.
    fn next_text(&self, team: &Name, folder: &Path, plan_file: &str) -> Hint {
        let mut text = Hint::from("\n");
        match self.provider {
            Provider::Runbook => {}
            Provider::Service(_) => text += self.key_step(),
            Provider::Agent(_) => {
                if let Some(program) = self.provider.program() {
                    text += format!("First log in to {}: start `{}` once. ", program.name(), program.default_command());
                }
                text += hint![Question::Doctor, " checks the program.\n"];
            }
        }
        if self.template == Some(Template::Worktrees) || self.provider.program().is_some() {
            text += "Each task has its own git worktree, which has only what is committed. Commit these files:\n";
            text += if folder.join(".git").exists() {
                let plan = if self.plan().is_empty() { String::new() } else { format!(" {plan_file}") };
                format!("  `git add .gitignore brigade.toml prompts{plan} && git commit -m \"Add a team\"`\n")
            } else {
                "  `git init && git add . && git commit -m \"Add a team\"`\n".to_owned()
            };
        }
        let run = match self.provider {
            Provider::Runbook | Provider::Agent(_) => Launch::Run { team: Some(team.to_string()) }.into(),
            Provider::Service(_) => line(format!("run {team} \"Explain this folder in SUMMARY.md\"")),
        };
        text += hint!["Next:\n  ", Hint::from(run).painted(BOLD), " runs the team until its tasks are done\n  "];
        text += hint![Hint::from(Question::Tasks).painted(BOLD), " shows the tasks, and who did them\n"];
        if (self.provider, self.template) == (Provider::Runbook, Some(Template::Review)) {
            let review = Question::Requests { kind: RequestKind::Review };
            text += hint!["The team waits for your approval of each task: run ", review, " in another terminal.\n"];
        }
        text
    }
}

fn changes_text(changes: &Changes, display: impl Fn(&str) -> String, is_forced: bool) -> String {
    let mut files = String::new();
    for file in &changes.written {
        files.push_str(&format!("  {} {}\n", paint(GOOD, "wrote"), display(file)));
    }
    for Replaced { file, kept } in &changes.replaced {
        files.push_str(&format!(
            "  {} {} (the old one is {})\n",
            paint(WARN, "replaced"),
            display(file),
            display(kept)
        ));
    }
    for file in &changes.kept {
        let reason = if is_forced { "is unchanged" } else { "existed" };
        files.push_str(&format!("  {} {}, which {reason}\n", paint(DIM, "kept"), display(file)));
    }
    if changes.gitignore_lines_added > 0 {
        let lines = count(changes.gitignore_lines_added, "line");
        files.push_str(&format!("  {} {lines} to {}\n", paint(GOOD, "added"), display(GITIGNORE)));
    }
    files
}

/// The files of the new workspace, relative to its folder.
#[derive(Debug, Default, serde::Serialize)]
struct Changes {
    /// A name that is not text is shown with replaced bytes.
    folder: String,
    written: Vec<String>,
    replaced: Vec<Replaced>,
    kept: Vec<String>,
    gitignore_lines_added: usize,
}

/// A file that was overwritten.
#[derive(Debug, serde::Serialize)]
struct Replaced {
    file: String,
    /// The name of the backup.
    kept: String,
}

/// Returns the first name for the plan that no other document has.
fn free_plan_file(folder: &Path, text: &str) -> String {
    let others = (2..).map(|number| format!("brigade-plan-{number}.md"));
    let mut names = [PLAN_FILE, "brigade-plan.md"].map(str::to_owned).into_iter().chain(others);
    let is_free = |name: &String| {
        let file = folder.join(name);
        file.symlink_metadata().is_err() || has_text(&file, folder, text)
    };
    names.find(is_free).unwrap_or_default()
}

/// Records the agreement to the new team, if each of these files has the text of `brigade init`.
fn record_agreement(context: &Context, team: &Name, folder: &Path, files: &[(PathBuf, String)]) {
    if files.iter().all(|(path, text)| has_text(&folder.join(path), folder, text)) {
        let files: Vec<PathBuf> = files.iter().map(|(path, _)| folder.join(path)).collect();
        consent::record_written(context, team, &folder.join(CONFIG_FILE), &files);
    }
}

/// Returns true if the file has exactly this text.
fn has_text(file: &Path, folder: &Path, text: &str) -> bool {
    let read = reading::read(file, AllowedKinds::FilesWithin(folder), text.len() as u64);
    read.is_ok_and(|bytes| bytes == text.as_bytes())
}

/// Renames the file to `NAME.bak`, or to the first free `NAME.bak.N`. Returns the new name.
fn back_up(path: &Path) -> CliResult<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names =
        std::iter::once(format!("{name}.bak")).chain((1..=BACKUPS_MAX).map(|number| format!("{name}.bak.{number}")));
    for kept in names {
        let aside = path.with_file_name(&kept);
        if aside.symlink_metadata().is_err() {
            fs::rename(path, &aside).map_err(failed(&aside))?;
            return Ok(kept);
        }
    }
    Err(CliError::refused(format!("cannot overwrite {}: it has {BACKUPS_MAX} backups", path.display()))
        .hint("remove some of them"))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> CliError + '_ {
    move |error| CliError::refused(format!("cannot write {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> CliResult<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed(folder))?;
    }
    fs::write(path, text).map_err(failed(path))
}

/// A .gitignore with the lines that were missing.
#[derive(Debug, PartialEq, Eq)]
struct NewGitignore {
    text: String,
    lines_added: usize,
}

/// Returns the .gitignore to write; `None` if no line is missing.
fn new_gitignore(folder: &Path) -> CliResult<Option<NewGitignore>> {
    let path = folder.join(GITIGNORE);
    let old = match reading::read_text(&path, AllowedKinds::FilesWithin(folder), IGNORE_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|error| CliError::refused(format!("cannot read {}: {error}", path.display())))?,
    };
    let bare = |line: &str| line.trim().trim_matches('/').trim_end_matches("/*").to_owned();
    let missing: Vec<&str> =
        IGNORED.into_iter().filter(|line| !old.lines().any(|known| bare(known) == bare(line))).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let gap = if old.is_empty() || old.ends_with('\n') { "" } else { "\n" };
    let text = format!("{old}{gap}# Run-time files of brigade.\n{}\n", missing.join("\n"));
    let lines_added = text.lines().count() - old.lines().count();
    Ok(Some(NewGitignore { text, lines_added }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_adds_only_missing_gitignore_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".gitignore");
        fs::write(&path, "target\n.tasks/*\n/.team").unwrap();
        let text = "target\n.tasks/*\n/.team\n# Run-time files of brigade.\n/agent_state.json*\n".to_owned();
        let added = new_gitignore(folder.path()).unwrap();
        assert_eq!(added, Some(NewGitignore { text: text.clone(), lines_added: 2 }));
        fs::write(&path, text).unwrap();
        assert_eq!(new_gitignore(folder.path()).unwrap(), None);
    }

    #[test]
    fn sample_plan_of_init_parses() {
        assert!(crate::domain::task::plan::parse("plan.md", PLAN).unwrap().len() >= 3);
    }
}
