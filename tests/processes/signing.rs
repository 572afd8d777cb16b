//! A person whose git signs commits: `brigade merge` signs its merge with the person's program and key, and never with those of a
//! repository. Tests are skipped without the signing program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::testkit::process::{ProcessOutput, git};
use crate::testkit::workspace::TestWorkspace;

/// A task whose teammate commits, and one whose teammate does not.
const COMMITTED: &str = "## One\n```sh\necho 1 > one.txt\ngit add one.txt\ngit commit -q -m Mine\n```\n\n";
const NOT_COMMITTED: &str = "## Two\n```sh\necho 2 > two.txt\n```\n";
/// Longer than a signing program may take.
const MERGE_TIME_MAX: Duration = Duration::from_secs(60);

struct Signer {
    workspace: TestWorkspace,
    home: tempfile::TempDir,
}

fn has_program(name: &str) -> bool {
    let found = Command::new(name).arg("-?").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: there is no {name}");
    }
    found
}

impl Signer {
    /// A repository with a team of two. The home folder has the person's git settings and no key yet.
    fn new(plan: &str) -> Self {
        let workspace = TestWorkspace::with_team(2, plan);
        workspace.write_team(2, "plan = \"plan.md\"\nisolation = \"worktree\"");
        workspace.write(".gitignore", ".tasks/\n.team/\nagent_state.json\nno-config/\n");
        git(workspace.path(), &["init", "-q", "-b", "main", "."]);
        git(workspace.path(), &["add", "-A"]);
        git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
        let signer = Self { workspace, home: tempfile::tempdir().unwrap() };
        for (key, value) in
            [("user.name", "Person"), ("user.email", "person@example.invalid"), ("commit.gpgSign", "true")]
        {
            signer.set(key, value);
        }
        signer
    }

    /// A signer with a key of SSH that has this passphrase.
    fn with_ssh_key(passphrase: &str, plan: &str) -> Self {
        let signer = Self::new(plan);
        let key = signer.path("key");
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", passphrase, "-f", &key]).status();
        assert!(made.unwrap().success());
        let public = fs::read_to_string(format!("{key}.pub")).unwrap();
        fs::write(signer.path("allowed"), format!("person@example.invalid {public}")).unwrap();
        signer.set("gpg.format", "ssh");
        signer.set("user.signingKey", &format!("{key}.pub"));
        signer.set("gpg.ssh.allowedSignersFile", &signer.path("allowed"));
        signer
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    /// Changes the person's settings.
    fn set(&self, key: &str, value: &str) {
        git(self.home.path(), &["config", "--file", &self.path(".gitconfig"), key, value]);
    }

    fn command(&self, mut command: Command) -> ProcessOutput {
        command.env("HOME", self.home.path()).env_remove("GIT_CONFIG_GLOBAL").env_remove("SSH_ASKPASS");
        command.env_remove("DISPLAY").env_remove("SSH_AUTH_SOCK").env_remove("GNUPGHOME").stdin(Stdio::null());
        for name in ["AUTHOR", "COMMITTER"] {
            command.env_remove(format!("GIT_{name}_NAME")).env_remove(format!("GIT_{name}_EMAIL"));
        }
        ProcessOutput::of(command)
    }

    fn brigade(&self, arguments: &[&str]) -> ProcessOutput {
        self.command(self.workspace.brigade(arguments))
    }

    /// Runs git as the person.
    fn git(&self, arguments: &[&str]) -> String {
        let mut command = self.workspace.command("git");
        command.args(arguments);
        let output = self.command(command);
        assert_eq!(output.code, Some(0), "git {arguments:?}: {output:?}");
        output.out.trim().to_owned()
    }

    fn run(&self) -> ProcessOutput {
        let run = self.brigade(&["run", "crew"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        run
    }
}

#[test]
fn merge_is_signed_and_teammates_signature_kept() {
    if !has_program("ssh-keygen") {
        return;
    }
    let signer = Signer::with_ssh_key("", &format!("{COMMITTED}{NOT_COMMITTED}"));
    let run = signer.run();
    assert!(run.out.contains("Brigade signs only the merge into your branch; commit.gpgSign is on"), "{run:?}");
    let doctor = signer.brigade(&["doctor"]);
    assert!(doctor.out.contains("Brigade signs only"), "{doctor:?}");
    let merge = signer.brigade(&["merge"]);
    assert_eq!(merge.code, Some(0), "{merge:?}");
    assert!(merge.err.contains("3 commits of the team without a signature"), "{merge:?}");
    assert_eq!(
        signer.git(&["log", "-1", "--format=%G? %s %an %cn", "main"]),
        "G Merge branch 'brigade/crew' Person Person"
    );
    let kept = signer.git(&["log", "--format=%G? %ae", "--grep=^Mine$", "main"]);
    assert!(kept.starts_with("G m") && kept.ends_with("@brigade.invalid"), "{kept}");
    assert_eq!(signer.git(&["status", "--porcelain"]), "");
    // The command that the text names.
    let command = merge.err.split('`').nth(1).unwrap();
    let mut shell = signer.workspace.command("sh");
    shell.args(["-c", &format!("{command} --no-edit -q")]);
    let squashed = signer.command(shell);
    assert_eq!(squashed.code, Some(0), "{squashed:?}");
    assert_eq!(signer.git(&["log", "--format=%G?", "main", "-1"]), "G");
    assert_eq!(signer.git(&["diff", "--stat", "main", "brigade/crew"]), "");
}

/// The settings of a repository can be written by others: they switch signatures on, and choose no program and no key.
#[test]
fn repository_chooses_no_signing_program() {
    if !has_program("ssh-keygen") {
        return;
    }
    let signer = Signer::with_ssh_key("", NOT_COMMITTED);
    signer.set("commit.gpgSign", "false");
    let program = signer.path("program");
    fs::write(&program, "#!/bin/sh\ntouch \"$0-ran\"\nexit 1\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    signer.run();
    for key in
        ["gpg.program", "gpg.openpgp.program", "gpg.ssh.program", "gpg.x509.program", "gpg.ssh.defaultKeyCommand"]
    {
        signer.git(&["config", key, &program]);
    }
    for (key, value) in [("commit.gpgSign", "true"), ("gpg.format", "openpgp"), ("user.signingKey", "/other")] {
        signer.git(&["config", key, value]);
    }
    // The name of the person can be that of the repository.
    signer.git(&["config", "user.name", "Here"]);
    let merge = signer.brigade(&["merge"]);
    assert_eq!(merge.code, Some(0), "{merge:?}");
    assert!(!Path::new(&format!("{program}-ran")).exists(), "a program of the repository ran");
    let signature = signer.git(&["-c", "gpg.ssh.program=ssh-keygen", "log", "-1", "--format=%G? %an", "main"]);
    assert_eq!(signature, "G Here");
}

#[test]
fn merge_that_cannot_be_signed_changes_nothing() {
    if !has_program("ssh-keygen") {
        return;
    }
    let signer = Signer::with_ssh_key("a passphrase", NOT_COMMITTED);
    signer.run();
    let slow = signer.path("slow");
    fs::write(&slow, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    let before = signer.git(&["rev-parse", "main"]);
    for (program, reason) in
        [("ssh-keygen", "passphrase"), ("/missing/program", "/missing/program"), (&slow, "longer than")]
    {
        signer.set("gpg.ssh.program", program);
        let started_at = Instant::now();
        let merge = signer.brigade(&["merge"]);
        assert!(started_at.elapsed() < MERGE_TIME_MAX, "{program}: {merge:?}");
        assert_eq!(merge.code, Some(1), "{program}: {merge:?}");
        assert!(
            merge.err.contains("cannot merge brigade/crew: cannot sign the merge: ") && merge.err.contains(reason),
            "{merge:?}"
        );
        assert!(merge.err.contains("hint: `git merge -S brigade/crew`"), "{merge:?}");
        assert_eq!(
            (signer.git(&["rev-parse", "main"]), signer.git(&["status", "--porcelain"])),
            (before.clone(), String::new())
        );
    }
    assert!(!signer.workspace.join(".git/brigade-signing").exists());
}

/// A person who allows nothing but fast-forwards gets one, and hears that the commits are not signed.
#[test]
fn fast_forward_only_takes_unsigned_commits() {
    if !has_program("ssh-keygen") {
        return;
    }
    let signer = Signer::with_ssh_key("", NOT_COMMITTED);
    signer.set("merge.ff", "only");
    signer.run();
    let merge = signer.brigade(&["merge"]);
    assert_eq!(merge.code, Some(0), "{merge:?}");
    assert!(merge.err.contains("commits of the team without a signature"), "{merge:?}");
    assert_eq!(signer.git(&["rev-parse", "main"]), signer.git(&["rev-parse", "brigade/crew"]));
}

#[test]
fn merge_is_signed_by_gpg_with_key_of_name() {
    if !has_program("gpg") || !has_program("gpgconf") {
        return;
    }
    let signer = Signer::new(NOT_COMMITTED);
    let folder = signer.home.path().join(".gnupg");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let as_person = |program: &str, arguments: &[&str]| {
        let mut command = signer.workspace.command(program);
        command.args(arguments);
        signer.command(command)
    };
    let person = "Person <person@example.invalid>";
    let key = as_person("gpg", &["--batch", "--quiet", "--passphrase", "", "--quick-generate-key", person, "ed25519"]);
    assert_eq!(key.code, Some(0), "{key:?}");
    signer.run();
    let merge = signer.brigade(&["merge"]);
    let signature = signer.git(&["log", "-1", "--format=%G? %s", "main"]);
    as_person("gpgconf", &["--kill", "all"]);
    assert_eq!((merge.code, signature.as_str()), (Some(0), "G Merge branch 'brigade/crew'"), "{merge:?}");
}
