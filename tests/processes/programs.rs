//! Programs named in git settings: Brigade's own git starts none outside the sandbox, and passes the key of a provider
//! to none.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::testkit::process::{ProcessOutput, git, git_command};
use crate::testkit::workspace::TestWorkspace;

/// The key that no program may see.
const KEY: &str = "sk-ant-never-handed-on";

/// Settings that name a program, and others that make git run one. `PROGRAM` stands for a program that records its run
/// under the first word of the line.
const SETTINGS: &[&str] = &[
    "fsmonitor core.fsmonitor=PROGRAM",
    "hooks core.hooksPath=HOOKS",
    "ssh core.sshCommand=PROGRAM",
    "proxy core.gitProxy=PROGRAM",
    "editor core.editor=PROGRAM",
    "sequence sequence.editor=PROGRAM",
    "pager core.pager=PROGRAM",
    "pager-status pager.status=PROGRAM",
    "pager-log pager.log=PROGRAM",
    "pager-config pager.config=PROGRAM",
    "askpass core.askPass=PROGRAM",
    "alternates core.alternateRefsCommand=PROGRAM",
    "external diff.external=PROGRAM",
    "command diff.evil.command=PROGRAM",
    "textconv diff.evil.textconv=PROGRAM",
    "gpg gpg.program=PROGRAM",
    "gpg-openpgp gpg.openpgp.program=PROGRAM",
    "gpg-ssh gpg.ssh.program=PROGRAM",
    "gpg-key gpg.ssh.defaultKeyCommand=PROGRAM",
    "- commit.gpgSign=true",
    "- tag.gpgSign=true",
    "- log.showSignature=true",
    "- merge.verifySignatures=true",
    "credential credential.helper=!PROGRAM",
    "pack uploadpack.packObjectsHook=PROGRAM",
    "interactive interactive.diffFilter=PROGRAM",
    "trailer-command trailer.brigade-task.command=PROGRAM",
    "trailer-cmd trailer.brigade-task.cmd=PROGRAM",
    "alias alias.status=!PROGRAM",
    "alias-add alias.add=!PROGRAM",
    "hook hook.evil.command=PROGRAM",
    "- hook.evil.event=reference-transaction",
    "remote remote.origin.url=ext::PROGRAM",
    "- remote.origin.promisor=true",
    "- remote.origin.fetch=+refs/heads/*:refs/remotes/origin/*",
    "- protocol.ext.allow=always",
    "receive remote.origin.uploadpack=PROGRAM",
    "mergetool mergetool.evil.cmd=PROGRAM",
    "difftool difftool.evil.cmd=PROGRAM",
    "- submodule.recurse=true",
    "- diff.submodule=diff",
    "- status.submoduleSummary=true",
    "submodule submodule.sub.update=!PROGRAM",
    "trace trace2.eventTarget=ESCAPED",
    "clean filter.evil.clean=PROGRAM",
    "smudge filter.evil.smudge=PROGRAM",
    "merge merge.evil.driver=PROGRAM %O %A %B",
];

/// The programs that Brigade needs: they run in the sandbox.
const NEEDED: [&str; 3] = ["clean", "smudge", "merge"];

/// A workspace and a home folder. Programs record their environment and whether they can write a control file.
struct Setup {
    workspace: TestWorkspace,
    home: tempfile::TempDir,
    /// The value of `BRIGADE_CONFINEMENT`.
    confinement: &'static str,
}

impl Setup {
    fn new(plan: &str) -> Self {
        let setup =
            Self { workspace: TestWorkspace::with_team(2, plan), home: tempfile::tempdir().unwrap(), confinement: "" };
        let workspace = &setup.workspace;
        workspace.write_team(2, "plan = \"plan.md\"\nisolation = \"worktree\"");
        workspace.write("log.txt", &(1..=9).map(|line| format!("line {line}\n")).collect::<String>());
        workspace.write(".gitignore", ".tasks/\n.team/\nagent_state.json*\nsaid-*\nno-config/\n");
        workspace.write(".gitattributes", "*.txt filter=evil diff=evil merge=evil\n");
        git(workspace.path(), &["init", "-q", "-b", "main", "."]);
        setup.add_submodule();
        git(workspace.path(), &["add", "-A"]);
        git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
        for folder in ["marks", "hooks", "programs"] {
            fs::create_dir(setup.home.path().join(folder)).unwrap();
        }
        for hook in ["reference-transaction", "post-checkout", "post-index-change", "pre-commit", "post-merge"] {
            fs::copy(setup.program("hooks"), setup.home.path().join("hooks").join(hook)).unwrap();
        }
        setup
    }

    /// A submodule whose own settings name a program.
    fn add_submodule(&self) {
        let folder = self.workspace.join("sub");
        fs::create_dir(&folder).unwrap();
        let at = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.args(["-c", "user.name=A", "-c", "user.email=a@example.invalid"]).args(arguments);
            assert!(command.current_dir(&folder).status().unwrap().success(), "git {arguments:?}");
        };
        at(&["init", "-q", "."]);
        fs::write(folder.join("f.txt"), "1\n").unwrap();
        at(&["add", "f.txt"]);
        at(&["commit", "-q", "-m", "Within"]);
    }

    /// A program that records its environment, tries to write a control file, and then acts as a filter or merge
    /// driver.
    fn program(&self, name: &str) -> PathBuf {
        let (home, control) = (self.home.path().display(), self.workspace.join(".team").display().to_string());
        let text = format!(
            "#!/bin/sh\nenv > '{home}/marks/{name}'-$$\n(echo x > '{control}/escaped-{name}') 2> /dev/null\n\
             case '{name}' in\nclean | smudge | planted) exec cat ;;\n\
             merge) git merge-file -p \"$2\" \"$1\" \"$3\" > \"$2.new\" && exec mv \"$2.new\" \"$2\" ;;\nesac\nexit 1\n"
        );
        let folder = self.home.path().join("programs");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Writes all settings to `file`.
    fn write_settings(&self, file: &Path) {
        for line in SETTINGS {
            let (name, setting) = line.split_once(' ').unwrap();
            let (key, value) = setting.split_once('=').unwrap();
            let value = value
                .replace("PROGRAM", &self.program(name).display().to_string())
                .replace("HOOKS", &self.home.path().join("hooks").display().to_string())
                .replace("ESCAPED", &self.workspace.join(".team/escaped-trace").display().to_string());
            let file = file.to_str().unwrap();
            git(&self.workspace, &["config", "--file", file, "--add", key, &value]);
        }
    }

    fn brigade(&self, arguments: &[&str]) -> ProcessOutput {
        let mut command = self.workspace.brigade(arguments);
        let path = std::env::var("PATH").unwrap();
        command.env("HOME", self.home.path()).env("ANTHROPIC_API_KEY", KEY);
        command.env("BRIGADE_CONFINEMENT", self.confinement);
        for (name, value) in [("AUTHOR", "Person"), ("COMMITTER", "Person")] {
            command.env(format!("GIT_{name}_NAME"), value);
            command.env(format!("GIT_{name}_EMAIL"), "person@example.invalid");
        }
        command.env("PATH", format!("{}:{path}", self.home.path().join("bin").display()));
        ProcessOutput::of(command)
    }

    /// The programs that ran; asserts that none had the key.
    fn programs_run(&self) -> BTreeSet<String> {
        let marks = fs::read_dir(self.home.path().join("marks")).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().rsplit_once('-').unwrap().0.to_owned();
            assert!(!fs::read_to_string(&path).unwrap().contains(KEY), "{name} got the key");
            name
        };
        marks.map(name).collect()
    }

    fn programs_outside_sandbox(&self) -> Vec<String> {
        let entries = fs::read_dir(self.workspace.join(".team")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("escaped-")).collect()
    }

    /// A commit of the person that conflicts with nothing, so that the team's work needs a merge commit.
    fn commit_as_person(&self) {
        let at = |arguments: &[&str]| {
            let off = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false"];
            git(&self.workspace, &[&off[..], arguments].concat())
        };
        let commit = at(&["commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Mine"]);
        at(&["update-ref", "refs/heads/main", &commit]);
    }

    /// Runs every command that uses the repository, before, during and after a run. Both tasks must be completed.
    fn run_all_commands(&self) -> bool {
        fs::write(self.workspace.join("sub/f.txt"), "2\n").unwrap();
        let doctor = self.brigade(&["doctor"]);
        let is_confined = doctor.out.contains("they see the control files read-only");
        let run = self.brigade(&["run", "crew"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        for arguments in [&["team"][..], &["doctor"], &["clean", "--yes"], &["tasks", "show", "1"], &["run", "crew"]] {
            self.brigade(arguments);
        }
        assert!(self.workspace.all_are("completed"));
        self.commit_as_person();
        // `tests/processes/signing.rs` has the merges that are signed.
        git(&self.workspace, &["config", "commit.gpgSign", "false"]);
        let merge = self.brigade(&["merge"]);
        assert_eq!(merge.code, Some(0), "{merge:?}");
        is_confined
    }

    fn assert_safe(&self, needed: &[&str]) {
        let is_confined = self.run_all_commands();
        let programs_run = self.programs_run();
        assert_eq!(programs_run.iter().map(String::as_str).collect::<Vec<_>>(), needed, "another program ran");
        if is_confined {
            assert_eq!(self.programs_outside_sandbox(), [""; 0], "a program ran outside the sandbox");
        }
        for file in [".worktrees/crew/log.txt", "log.txt"] {
            let merged = self.workspace.read(file);
            assert!(merged.contains("line 1 of one\n") && merged.contains("line 9 of two\n"), "{file}: {merged}");
        }
    }
}

/// Two tasks that change one file at the same time, so that git merges it.
fn plan() -> String {
    // Worktrees are removed after the merge, so each task notes its begin outside.
    let task = |name: &str, line: u32, other: &str| {
        format!(
            "## {name}\n```sh\ntouch ~/begun-{name}; until test -e ~/begun-{other}; do sleep 0.02; done\n\
             sed -i 's/^line {line}$/line {line} of {name}/' log.txt\necho {name} > {name}.txt\n```\n"
        )
    };
    task("one", 1, "two") + &task("two", 9, "one")
}

fn needed() -> Vec<&'static str> {
    let mut needed = NEEDED.to_vec();
    needed.sort_unstable();
    needed
}

#[test]
fn global_git_settings_run_only_in_sandbox() {
    let setup = Setup::new(&plan());
    setup.write_settings(&setup.home.path().join(".gitconfig"));
    setup.assert_safe(&needed());
}

#[test]
fn git_settings_run_only_in_mounts_sandbox() {
    let setup = Setup { confinement: "mounts", ..Setup::new(&plan()) };
    setup.write_settings(&setup.home.path().join(".gitconfig"));
    setup.assert_safe(&needed());
}

/// Filters run as commands do; they do not get the key either.
#[test]
fn unconfined_git_filter_gets_no_key() {
    let setup = Setup { confinement: "off", ..Setup::new(&plan()) };
    setup.write_settings(&setup.home.path().join(".gitconfig"));
    setup.assert_safe(&needed());
    assert!(!setup.programs_outside_sandbox().is_empty(), "filters run in the same place as commands");
}

#[test]
fn included_global_git_settings_run_only_in_sandbox() {
    let setup = Setup::new(&plan());
    setup.write_settings(&setup.home.path().join("work.cfg"));
    let global = setup.home.path().join(".gitconfig");
    let condition = format!("includeIf.gitdir:{}/.path", setup.workspace.path().display());
    git(&setup.workspace, &["config", "--file", global.to_str().unwrap(), &condition, "work.cfg"]);
    setup.assert_safe(&needed());
}

#[test]
fn repository_git_settings_run_only_in_sandbox() {
    let setup = Setup::new(&plan());
    setup.write_settings(&setup.workspace.join(".git/config"));
    setup.assert_safe(&needed());
}

#[test]
fn settings_included_by_repository_run_in_sandbox() {
    let setup = Setup::new(&plan());
    setup.write_settings(&setup.home.path().join("own.cfg"));
    let include = setup.home.path().join("own.cfg").display().to_string();
    git(&setup.workspace, &["config", "includeIf.onbranch:**.path", &include]);
    setup.assert_safe(&needed());
}

/// Hooks in the repository's own folder, and in a folder of the tree that a member changes.
#[test]
fn merge_runs_no_hooks_of_tree_or_git_folder() {
    let hooks =
        ["reference-transaction", "post-checkout", "post-index-change", "pre-merge-commit", "commit-msg", "post-merge"];
    let plan = format!(
        "## Change the hooks\n```sh\nfor hook in {}; do cp ~/programs/hooks .husky/$hook; done\necho one > one.txt\n```\n",
        hooks.join(" ")
    );
    for in_tree in [true, false] {
        let setup = Setup::new(&plan);
        setup.workspace.write(".husky/post-merge", "#!/bin/sh\n");
        git(&setup.workspace, &["add", "-A"]);
        git(&setup.workspace, &["commit", "-q", "-m", "Hooks"]);
        if in_tree {
            git(&setup.workspace, &["config", "core.hooksPath", ".husky"]);
        }
        let run = setup.brigade(&["run", "crew"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        setup.commit_as_person();
        for hook in hooks {
            let file = setup.workspace.join(".git/hooks").join(hook);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::copy(setup.program("hooks"), file).unwrap();
        }
        let merge = setup.brigade(&["merge"]);
        assert_eq!(merge.code, Some(0), "{merge:?}");
        assert!(setup.workspace.join(".husky/commit-msg").exists(), "the team's hooks are in the checkout");
        assert_eq!(setup.programs_run(), BTreeSet::new(), "in the tree: {in_tree}");
        // The person's own git runs them.
        ProcessOutput::of(git_command(setup.workspace.path(), &["commit", "-q", "--allow-empty", "-m", "Mine"]));
        assert!(setup.programs_run().contains("hooks"));
    }
}

#[test]
fn submodule_git_settings_run_nothing() {
    let setup = Setup::new(&plan());
    for (key, name) in
        [("core.fsmonitor", "nested"), ("filter.evil.clean", "nested-clean"), ("diff.external", "nested-diff")]
    {
        let program = setup.program(name).display().to_string();
        let file = setup.workspace.join("sub/.git/config");
        git(&setup.workspace, &["config", "--file", file.to_str().unwrap(), key, &program]);
    }
    fs::write(setup.workspace.join("sub/.gitattributes"), "* filter=evil\n").unwrap();
    setup.assert_safe(&[]);
}

#[test]
fn doctor_runs_no_program_of_repository() {
    let setup = Setup::new("");
    setup.write_settings(&setup.workspace.join(".git/config"));
    setup.workspace.write("brigade.toml", "[teams.crew]\n[[teams.crew.members]]\nname = \"m1\"\nrole = \"worker\"\n");
    let doctor = setup.brigade(&["doctor"]);
    assert!(doctor.out.contains("ok    git: git version"), "{doctor:?}");
    assert_eq!(setup.programs_run(), BTreeSet::new());
}

#[test]
fn doctor_names_pipe_that_blocks_git() {
    let setup = Setup::new("");
    let config = setup.home.path().join(".gitconfig");
    let _ = fs::remove_file(&config);
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    let doctor = setup.brigade(&["doctor"]);
    assert!(doctor.out.contains(".gitconfig is a"), "{doctor:?}");
}

/// A launch looks for uncommitted files, and so runs a filter, before any task.
#[test]
fn git_filter_at_launch_cannot_write_config() {
    let (setup, outside) = (Setup::new(""), tempfile::tempdir().unwrap());
    let config = "[teams.crew]\nplan = \"plan.md\"\nisolation = \"worktree\"\n[[teams.crew.members]]\nname = \"m1\"\n";
    fs::create_dir(outside.path().join("prompts")).unwrap();
    let files = [("team.toml", config), ("plan.md", "## One\n"), ("prompts/lead.md", "")];
    files.iter().for_each(|(name, text)| fs::write(outside.path().join(name), text).unwrap());
    let folder = outside.path().display();
    let filter = format!(
        "cat; for file in {folder}/team.toml {folder}/plan.md {folder}/prompts/lead.md; do (echo '# x' >>$file) 2>&1; done; touch {folder}/ran"
    );
    git(&setup.workspace, &["config", "filter.evil.clean", &filter]);
    // The same size, so that git must read the contents.
    setup.workspace.write("log.txt", &setup.workspace.read("log.txt").to_uppercase());
    if !setup.brigade(&["doctor"]).out.contains("they see the control files read-only") {
        println!("skipped: commands are not confined here");
        return;
    }
    let config = outside.path().join("team.toml").display().to_string();
    let run =
        setup.brigade(&["run", "crew", "--config", &config, "--workspace", setup.workspace.path().to_str().unwrap()]);
    assert!(run.err.contains("uncommitted in your checkout: log.txt"), "{run:?}");
    assert!(outside.path().join("ran").exists(), "the filter did not run");
    for (name, text) in files {
        assert_eq!(fs::read_to_string(outside.path().join(name)).unwrap(), text, "{name}");
    }
}

/// A command of a teammate writes the person's settings and puts a `git` first in `PATH`.
#[test]
fn git_settings_written_by_command_have_no_effect() {
    let setup = Setup::new("");
    let (home, program) = (setup.home.path().display().to_string(), setup.program("planted").display().to_string());
    let plan = format!(
        "## Plant\n```sh\ngit config --global filter.late.clean {program}\ngit config --global core.fsmonitor {program}\n\
         git config --global merge.late.driver {program}\nmkdir -p {home}/bin\ncp {program} {home}/bin/git || true\n\
         echo '* filter=late merge=late' > .gitattributes\necho x > x.txt\n```\n\
         ## Next\nafter: Plant\n```sh\necho y > y.txt\n```\n"
    );
    setup.workspace.write("plan.md", &plan);
    let run = setup.brigade(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(setup.programs_run(), BTreeSet::new());
    assert_eq!(setup.workspace.read(".worktrees/crew/y.txt"), "y\n");
    // Confined commands cannot write a folder of PATH; another program could.
    fs::copy(setup.program("planted"), setup.home.path().join("bin/git")).unwrap();
    // A later launch uses the settings and PATH of that time. Programs from settings run in the sandbox, without the
    // key.
    setup.brigade(&["doctor"]);
    setup.programs_run();
    fs::remove_file(setup.home.path().join("bin/git")).unwrap();
    fs::remove_file(setup.workspace.join(".team/escaped-planted")).unwrap_or_default();
    setup.workspace.write("plan.md", "## Again\n```sh\necho z > z.txt\n```\n");
    let run = setup.brigade(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(setup.programs_run().contains("planted"));
    let is_confined = setup.brigade(&["doctor"]).out.contains("they see the control files read-only");
    assert!(!is_confined || setup.programs_outside_sandbox().is_empty(), "{:?}", setup.programs_outside_sandbox());
}

/// Members change a file of Git LFS in worktrees, by commands.
#[test]
fn git_lfs_files_are_merged_as_pointers() {
    if Command::new("git-lfs").arg("version").output().is_err() {
        println!("skipped: git-lfs is not installed");
        return;
    }
    let plan = "## One\n```sh\ncat old.bin > new.bin; echo more >> new.bin\n```\n## Two\nafter: One\n```sh\ncat new.bin > old.bin\n```\n";
    let setup = Setup::new(plan);
    let global = setup.home.path().join(".gitconfig");
    for (part, command) in [
        ("clean", "git-lfs clean -- %f"),
        ("smudge", "git-lfs smudge -- %f"),
        ("process", "git-lfs filter-process"),
        ("required", "true"),
    ] {
        git(&setup.workspace, &["config", "--file", global.to_str().unwrap(), &format!("filter.lfs.{part}"), command]);
    }
    let at_home = |arguments: &[&str]| {
        let mut command = setup.workspace.command("git");
        command.env("HOME", setup.home.path()).args(["-c", "user.name=P", "-c", "user.email=p@example.invalid"]);
        command.args(arguments);
        let answer = ProcessOutput::of(command);
        assert_eq!(answer.code, Some(0), "{answer:?}");
        answer.out
    };
    setup.workspace.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    setup.workspace.write("old.bin", "of the person\n");
    at_home(&["add", "-A"]);
    at_home(&["commit", "-q", "-m", "Track"]);
    let run = setup.brigade(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    for file in ["old.bin", "new.bin"] {
        assert!(at_home(&["show", &format!("brigade/crew:{file}")]).starts_with("version https://git-lfs"), "{file}");
        assert_eq!(setup.workspace.read(&format!(".worktrees/crew/{file}")), "of the person\nmore\n");
    }
    assert!(at_home(&["lfs", "fsck"]).contains("OK"));
}
