//! `brigade init`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Answer;
use crate::config::CONFIG_FILE;
use crate::domain::name::Name;
use crate::platform::reading::{self, Accept};
use crate::team::spec::Prompts;
use crate::ui::style::{BOLD, DIM, GOOD, WARN, paint};

/// The longest .gitignore that is looked through, in bytes.
const IGNORE_BYTES_MAX: u64 = 1024 * 1024;
/// Former versions of a file that are kept beside it, besides the first.
const BACKUPS_MAX: u32 = 1000;

const CONFIG: &str = include_str!("init/brigade.toml");
const PLAN: &str = include_str!("init/plan.md");
const CODER: &str = include_str!("init/coder.md");
const PROMPTS_README: &str = include_str!("init/prompts.md");

/// Run-time files that git is to ignore.
const IGNORED: [&str; 3] = ["/.tasks/", "/.team/", "/agent_state.json"];

/// Write a brigade.toml that works at once
///
/// Besides, a small plan, prompts/ and the lines that keep run-time files out of git. The team needs no key: it uses the
/// provider `runbook`, which runs the `sh` blocks of its tasks. Files that are there are kept.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// The team's name
    #[arg(default_value = "my-team")]
    team: String,
    /// Write files anew that are there already; what differs is kept as NAME.bak
    #[arg(long)]
    force: bool,
    /// Write the built-in prompts to prompts/ too, to change them
    #[arg(long)]
    prompts: bool,
}

impl Init {
    /// Writes the files.
    ///
    /// # Errors
    /// There is a brigade.toml already, the name is none, or the system would not.
    pub fn run(self, context: &Context) -> CliResult<Answer> {
        let team = Name::new(&self.team)?;
        let folder = context.new_workspace()?;
        let config = folder.join(CONFIG_FILE);
        if config.exists() && !self.force && !self.prompts {
            let message = format!("{} is there already", super::context::shown(&config, context.current_folder()));
            return Err(CliError::usage(message).hint("change it by hand, or write it anew with --force"));
        }
        let prompts = Prompts::default();
        let mut files: Vec<(PathBuf, String)> = vec![
            (CONFIG_FILE.into(), CONFIG.replace("my-team", team.as_str())),
            ("plan.md".into(), PLAN.to_owned()),
            ("prompts/coder.md".into(), CODER.to_owned()),
            ("prompts/README.md".into(), PROMPTS_README.to_owned()),
        ];
        if self.prompts {
            files.extend([
                ("prompts/lead.md".into(), prompts.lead),
                ("prompts/teammate.md".into(), prompts.teammate),
                ("prompts/compact.md".into(), prompts.compact),
                ("prompts/cleanup.md".into(), prompts.cleanup),
            ]);
        }
        let (mut written, mut replaced, mut kept_files) = (Vec::new(), Vec::new(), Vec::new());
        for (path, text) in &files {
            let file = folder.join(path);
            let is_there = file.symlink_metadata().is_ok();
            let there = || reading::read(&file, Accept::FilesWithin(&folder), text.len() as u64);
            let is_same = || there().is_ok_and(|bytes| bytes == text.as_bytes());
            if !is_there {
                write(&file, text)?;
                written.push(path.display().to_string());
            } else if self.force && !is_same() {
                let kept = keep(&file)?;
                write(&file, text)?;
                replaced.push(Replaced {
                    file: path.display().to_string(),
                    kept: path.with_file_name(kept).display().to_string(),
                });
            } else {
                kept_files.push(path.display().to_string());
            }
        }
        if ignore(&folder)? {
            written.push(".gitignore".to_owned());
        }
        // A folder's name may be no text, which JSON cannot say.
        let folder = folder.to_string_lossy();
        let data =
            serde_json::json!({ "folder": folder, "written": written, "replaced": replaced, "kept": kept_files });
        context.output.answer(&data, || said(&written, &replaced, &kept_files, &team))
    }
}

fn said(written: &[String], replaced: &[Replaced], kept_files: &[String], team: &Name) -> String {
    let mut files: String = written.iter().map(|file| format!("  {} {file}\n", paint(GOOD, "wrote"))).collect();
    for Replaced { file, kept } in replaced {
        files.push_str(&format!("  {} {file} (the former is {kept})\n", paint(WARN, "replaced")));
    }
    for file in kept_files {
        files.push_str(&format!("  {} {file}, which was there\n", paint(DIM, "kept")));
    }
    format!(
        "{files}\nSee the team work, without any key:\n  {}\nThen make plan.md and brigade.toml yours; {} checks them.\n",
        paint(BOLD, &format!("brigade run {team}")),
        paint(BOLD, "brigade doctor"),
    )
}

/// A file that was written anew.
#[derive(Debug, serde::Serialize)]
struct Replaced {
    file: String,
    /// The former one's name now.
    kept: String,
}

/// Gives what stands there a name of its own, `NAME.bak` or the first `NAME.bak.N` nothing has, and says which.
fn keep(path: &Path) -> CliResult<String> {
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
    Err(CliError::refused(format!("{} has {BACKUPS_MAX} former versions beside it", path.display()))
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

/// Adds the lines .gitignore lacks; whether there were any.
fn ignore(folder: &Path) -> CliResult<bool> {
    let path = folder.join(".gitignore");
    let old = match reading::read_text(&path, Accept::FilesWithin(folder), IGNORE_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|error| CliError::refused(format!("cannot read {}: {error}", path.display())))?,
    };
    let bare = |line: &str| line.trim().trim_matches('/').trim_end_matches("/*").to_owned();
    let missing: Vec<&str> =
        IGNORED.into_iter().filter(|line| !old.lines().any(|known| bare(known) == bare(line))).collect();
    if missing.is_empty() {
        return Ok(false);
    }
    let gap = if old.is_empty() || old.ends_with('\n') { "" } else { "\n" };
    let text = format!("{old}{gap}# Run-time files of brigade.\n{}\n", missing.join("\n"));
    fs::write(&path, text).map_err(failed(&path))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_ignored_already_are_not_added_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".gitignore");
        fs::write(&path, "target\n.tasks/*\n/.team").unwrap();
        assert!(ignore(folder.path()).unwrap());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "target\n.tasks/*\n/.team\n# Run-time files of brigade.\n/agent_state.json\n");
        assert!(!ignore(folder.path()).unwrap());
    }

    #[test]
    fn the_plan_is_a_plan() {
        assert!(crate::domain::plan::parse("plan.md", PLAN).unwrap().len() >= 3);
    }
}
