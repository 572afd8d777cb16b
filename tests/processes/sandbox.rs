//! Commands that try to leave their sandbox, in a real team. Each script finds the effects of the ones before.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use crate::testkit::process::{ProcessOutput, is_root};
use crate::testkit::workspace::TestWorkspace;

/// A workspace below a separate home folder, with one member whose tasks run these scripts in sequence.
pub(super) struct Attack {
    pub workspace: TestWorkspace,
    home: tempfile::TempDir,
}

impl Attack {
    pub fn new(scripts: &[&str]) -> Self {
        let mut plan = String::new();
        for (number, script) in scripts.iter().enumerate() {
            let after = if number == 0 { String::new() } else { format!("Blocked by: S{}\n\n", number - 1) };
            plan.push_str(&format!("## S{number}\n\n{after}```sh\nset +e\n{script}\nexit 0\n```\n\n"));
        }
        Self { workspace: TestWorkspace::with_team(1, &plan), home: tempfile::tempdir().unwrap() }
    }

    pub fn home(&self, name: &str) -> PathBuf {
        self.home.path().canonicalize().unwrap().join(name)
    }

    pub fn brigade(&self, arguments: &[&str]) -> Command {
        let mut command = self.workspace.brigade(arguments);
        command.env("HOME", self.home("")).env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
        command
    }

    /// Returns true if commands are confined here; prints a notice otherwise.
    pub fn is_confined(&self) -> bool {
        let doctor = ProcessOutput::of(self.brigade(&["doctor"]));
        let is_confined = doctor.out.contains("they see the control files read-only");
        if !is_confined {
            println!("skipped: commands are not confined here");
        }
        is_confined
    }

    /// The output of the command of task `id`, from its result.
    pub fn output(&self, id: u64) -> String {
        self.workspace.task(id)["result"]["summary"].as_str().unwrap_or_default().to_owned()
    }

    fn run(&self) -> ProcessOutput {
        let answer = ProcessOutput::of(self.brigade(&["run"]));
        assert_eq!(answer.code, Some(0), "{answer:?}");
        answer
    }
}

/// Tries to write all control files, and reports the ones it could write.
const WRITE_CONTROLS: &str = "echo x >>brigade.toml && echo WROTE config\n\
     echo x >>.tasks/task_1.json && echo WROTE board\n\
     echo x >.team/inbox/lead.jsonl && echo WROTE mail\n\
     echo x >>agent_state.json && echo WROTE state\n\
     cat /proc/$PPID/environ >environ 2>/dev/null && grep -q SECRET_KEY environ && echo READ key\n\
     echo tried";

#[test]
fn command_cannot_lower_confinement() {
    for prepare in [
        "mkdir -p ~/.config; rm -rf ~/.config/brigade; echo >~/.config/brigade",
        "mv ~/.config ~/.other; echo >~/.config",
        "mv ~/.config ~/.other; ln -s / ~/.config; ln -s .config ~/.config",
        "rm -rf .tasks .team agent_state.json brigade.toml; mv \"$PWD\" \"$PWD.old\"; ln -s / .tasks",
        "mkdir -p ~/.config/brigade/config.toml",
    ] {
        let attack = Attack::new(&[prepare, WRITE_CONTROLS]);
        if !attack.is_confined() {
            return;
        }
        attack.run();
        assert_eq!(attack.output(2).lines().last(), Some("tried"), "{prepare}");
        for word in ["WROTE", "READ"] {
            assert!(!attack.output(2).contains(word), "{prepare}: {}", attack.output(2));
        }
    }
}

#[test]
fn odd_user_config_path_keeps_confinement() {
    let long = "x".repeat(255);
    for folder in ["!odd", "a/*", "with space\nand line", &long, &vec![long.as_str(); 20].join("/")] {
        let attack = Attack::new(&[WRITE_CONTROLS]);
        if !attack.is_confined() {
            return;
        }
        let mut run = attack.brigade(&["run"]);
        run.env("XDG_CONFIG_HOME", attack.home(folder));
        let answer = ProcessOutput::of(run);
        assert_eq!(answer.code, Some(0), "{folder}: {answer:?}");
        assert!(!answer.out.contains("not confined") && !answer.err.contains("not confined"), "{folder}: {answer:?}");
        assert_eq!(attack.output(1).lines().last(), Some("tried"), "{folder}");
        assert!(!attack.output(1).contains("WROTE"), "{folder}: {}", attack.output(1));
    }
}

#[test]
fn command_cannot_create_user_config() {
    let evil = "mkdir -p ~/.config/brigade; echo '[teams.t.lead]' >~/.config/brigade/config.toml; \
                mv ~/.config ~/.aside; mkdir -p ~/.config/brigade; echo x >~/.config/brigade/config.toml";
    let (missing, file_in_the_way, linked) = (Attack::new(&[evil]), Attack::new(&[evil]), Attack::new(&[evil]));
    if !missing.is_confined() {
        return;
    }
    missing.run();
    assert!(!missing.home(".config/brigade/config.toml").exists());

    fs::write(file_in_the_way.home(".config"), "mine").unwrap();
    file_in_the_way.run();
    assert_eq!(fs::read_to_string(file_in_the_way.home(".config")).unwrap(), "mine");

    for (link, target) in [(".config/brigade", "../dot/brig"), (".config/brigade/config.toml", "../../dot/config.toml")]
    {
        let attack =
            Attack::new(&["rm -rf ~/.config/brigade ~/.config/brigade/config.toml; mkdir -p ~/.config/brigade; \
            echo x >~/.config/brigade/config.toml; mkdir -p ~/dot; echo x >~/dot/config.toml"]);
        let link = attack.home(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(target, &link).unwrap();
        attack.run();
        assert!(!attack.home(".config/brigade/config.toml").exists() && link.is_symlink(), "{}", attack.output(1));
    }

    let in_home = Attack::new(&["true"]);
    symlink("dot", in_home.home(".config")).unwrap();
    let answer = in_home.run();
    assert!(answer.err.contains("a command can replace") && answer.err.contains(".config"), "{answer:?}");

    fs::create_dir_all(linked.home(".config/brigade")).unwrap();
    fs::write(linked.home("dotfile"), "").unwrap();
    symlink(linked.home("dotfile"), linked.home(".config/brigade/config.toml")).unwrap();
    linked.run();
    assert_eq!(fs::read_to_string(linked.home("dotfile")).unwrap(), "");
    assert_eq!(fs::read_link(linked.home(".config/brigade/config.toml")).unwrap(), linked.home("dotfile"));
}

#[test]
fn confinement_off_is_shown_and_logged() {
    let attack = Attack::new(&["true"]);
    let mut run = attack.brigade(&["run"]);
    run.env("BRIGADE_CONFINEMENT", "off");
    let answer = ProcessOutput::of(run);
    assert!(answer.out.contains("not confined") && answer.out.contains("BRIGADE_CONFINEMENT=off"), "{answer:?}");
    let warnings = attack.workspace.events().into_iter().filter(|event| event["kind"] == "warning");
    assert_eq!(warnings.filter(|warning| warning["about"] == "commands").count(), 1);
}

#[test]
fn confinement_setting_unknown_is_an_error() {
    let attack = Attack::new(&["true"]);
    let mut run = attack.brigade(&["run"]);
    run.env("BRIGADE_CONFINEMENT", "ful");
    let answer = ProcessOutput::of(run);
    assert!(answer.code == Some(2) || answer.code == Some(1), "{answer:?}");
    assert!(answer.err.contains("BRIGADE_CONFINEMENT=ful: expected full, mounts or off"), "{answer:?}");
}

#[test]
fn inherited_files_do_not_reach_commands() {
    for confinement in ["", "mounts", "off"] {
        let attack = Attack::new(&["ls -l /proc/self/fd; (echo x >/proc/self/fd/5/planted) 2>&1; (echo x >&6) 2>&1"]);
        fs::write(attack.home("mine"), "").unwrap();
        // A shell opens these file descriptors and passes them on.
        let script = "exec 5<\"$1\" 6>>\"$2\"; shift 2; exec \"$@\"";
        let run = attack.brigade(&["run"]);
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script, "sh"])
            .arg(attack.workspace.path())
            .arg(attack.home("mine"))
            .arg(run.get_program())
            .arg("run");
        shell.current_dir(attack.workspace.path()).stdin(std::process::Stdio::null());
        shell.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("HOME", attack.home(""));
        shell.env("BRIGADE_CONFINEMENT", confinement);
        let answer = ProcessOutput::of(shell);
        assert_eq!(answer.code, Some(0), "{confinement}: {answer:?}");
        let output = attack.output(1);
        assert!(!output.contains(" 5 -> ") && !output.contains(" 6 -> "), "{confinement}: {output}");
        assert!(!attack.workspace.join("planted").exists() && fs::read(attack.home("mine")).unwrap().is_empty());
    }
}

#[test]
fn plan_argument_may_be_a_pipe() {
    let attack = Attack::new(&["true"]);
    let script = "printf '## From a pipe\\n\\n```sh\\ntrue\\n```\\n' | \"$1\" run --plan /dev/fd/0 2>&1";
    let mut shell = Command::new("sh");
    let program = attack.brigade(&[]).get_program().to_owned();
    shell.args(["-c", script, "sh"]).arg(program).current_dir(attack.workspace.path()).env("HOME", attack.home(""));
    shell.env("BRIGADE_TRUST", "1").env_remove("XDG_STATE_HOME");
    let answer = ProcessOutput::of(shell);
    assert!(answer.out.contains("From a pipe"), "{answer:?}");
    assert_eq!(attack.workspace.task(1)["status"], "completed");
}

#[test]
fn system_settings_are_read_only() {
    let attack = Attack::new(&[
        "for file in $(find /sys/fs/cgroup /proc/sys -type f 2>/dev/null | head -300) /proc/sysrq-trigger; do \
           (exec 9>>$file) 2>/dev/null && echo WRITABLE $file; done; mkdir /sys/fs/cgroup/x 2>/dev/null && echo MADE; echo tried",
    ]);
    if !attack.is_confined() {
        return;
    }
    attack.run();
    let output = attack.output(1);
    assert_eq!(output.lines().last(), Some("tried"), "{output}");
    assert!(!output.contains("WRITABLE") && !output.contains("MADE"), "{output}");
}

#[test]
fn command_sees_only_its_own_terminal() {
    let attack = Attack::new(&["ls /dev/pts; python3 -c 'import pty; pty.spawn([\"tty\"])' 2>/dev/null; echo tried"]);
    if !attack.is_confined() {
        return;
    }
    attack.run();
    let output = attack.output(1);
    let named: Vec<&str> = output.lines().filter(|line| line.parse::<u32>().is_ok()).collect();
    assert_eq!(named, [""; 0], "{output}");
    assert!(output.lines().last() == Some("tried"), "{output}");
}

#[test]
fn lock_files_are_hidden_from_commands() {
    let locks = brigade::stores::file::LOCK_FILES.join(" ");
    let script = format!("for lock in {locks}; do [ -f $lock ] && echo SEEN $lock; done; echo tried");
    let attack = Attack::new(&["true", &script]);
    if !attack.is_confined() {
        return;
    }
    attack.run();
    assert!(attack.workspace.join(".tasks/.lock").is_file() && attack.workspace.join(".team/lead.lock").is_file());
    assert_eq!(attack.output(2), "tried");
}

#[test]
fn verify_ignores_programs_planted_by_command() {
    let evil = "for folder in ~/bin ~/real/bin ~/missing; do mkdir -p $folder; printf '#!/bin/sh\\nexit 0\\n' >$folder/check; \
                chmod +x $folder/check; done; rm ~/bin; mv ~/real ~/aside; echo 'check() { return 0; }' >~/startup; echo tried";
    for variable in ["BASH_ENV", "ENV"] {
        let attack = Attack::new(&[evil]);
        if !attack.is_confined() {
            return;
        }
        fs::create_dir_all(attack.home("real/bin")).unwrap();
        symlink("real/bin", attack.home("bin")).unwrap();
        fs::write(attack.home("startup"), "").unwrap();
        let programs = tempfile::tempdir_in("/tmp").unwrap();
        fs::write(programs.path().join("check"), "#!/bin/sh\necho red\nexit 1\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(programs.path().join("check"), mode).unwrap();
        attack.workspace.write(
            ".tasks/task_1.json",
            &serde_json::json!({ "id": 1, "subject": "s", "status": "pending", "verify": "check", "maxAttempts": 1,
                "description": format!("```sh\nset +e\n{evil}\nexit 0\n```") })
            .to_string(),
        );
        attack.workspace.write_team(1, "");
        let folders = [attack.home("bin"), attack.home("missing"), programs.path().to_owned()];
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&usual))).unwrap();
        let mut run = attack.brigade(&["run"]);
        run.env("PATH", path).env(variable, attack.home("startup"));
        let answer = ProcessOutput::of(run);
        assert_eq!(answer.code, Some(1), "{answer:?}");
        assert_eq!(attack.workspace.task(1)["status"], "failed", "{answer:?}");
        assert!(!attack.home("real/bin/check").exists());
    }
}

/// A command makes folders of `PATH` that did not exist at launch, and puts a `git` there for the next launch.
#[test]
fn command_cannot_create_missing_path_folders() {
    let plant = "put() { mkdir -p \"$1\"; printf '#!/bin/sh\\ntouch %s\\n' ~/ran >\"$1/git\"; chmod +x \"$1/git\"; }\n\
                 put ~/.local/bin; rm -f ~/file; put ~/file/bin; put ~/link; put ~/target; mv ~/.local ~/.aside; put ~/.local/bin";
    let attack = Attack::new(&[plant]);
    if !attack.is_confined() {
        return;
    }
    fs::write(attack.home("file"), "").unwrap();
    symlink("target", attack.home("link")).unwrap();
    // The home folder itself may be a link.
    let named = tempfile::tempdir().unwrap();
    symlink(attack.home(""), named.path().join("me")).unwrap();
    let home = named.path().join("me");
    let folders = [".local/bin", "file/bin", "link"].map(|folder| home.join(folder));
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&usual))).unwrap();
    let brigade = |arguments: &[&str]| {
        let mut command = attack.brigade(arguments);
        ProcessOutput::of({
            command.env("HOME", &home).env("PATH", &path);
            command
        })
    };
    let run = brigade(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    for planted in [".local/bin/git", "file/bin/git", "target/git"] {
        assert!(!attack.home(planted).exists(), "{planted}: {}", attack.output(1));
    }
    let doctor = brigade(&["doctor"]);
    assert!(doctor.out.contains("git version"), "{doctor:?} {}", attack.output(1));
    assert!(!attack.home("ran").exists());
}

/// A program that Brigade starts unconfined, here `git`, finds no key in its parent process. Root may read every
/// process.
#[test]
fn key_is_hidden_from_programs_brigade_starts() {
    let attack = Attack::new(&["true"]);
    let programs = tempfile::tempdir_in("/tmp").unwrap();
    let seen = programs.path().join("environ");
    let script = format!("#!/bin/sh\ncat /proc/$PPID/environ >{}\necho git version 2.40.0\n", seen.display());
    fs::write(programs.path().join("git"), script).unwrap();
    fs::set_permissions(programs.path().join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut user = attack.workspace.command("bash");
    let mut become_user = "";
    if is_root("another user than root") {
        become_user = "setpriv --reuid=54321 --regid=54321 --clear-groups";
        for folder in [attack.workspace.path(), attack.home.path(), programs.path()] {
            chown(folder, Some(54_321), Some(54_321)).unwrap();
        }
    }
    // The program is executed through an open file: that user may not enter its folder.
    let script = format!("exec 9<\"$0\" && exec {become_user} /proc/self/fd/9 doctor");
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let path = [programs.path().to_owned()].into_iter().chain(std::env::split_paths(&usual));
    user.args(["-c", &script, env!("CARGO_BIN_EXE_brigade")]).env("PATH", std::env::join_paths(path).unwrap());
    user.env("HOME", attack.home("")).env("ANTHROPIC_API_KEY", "sk-of-the-person");
    let answer = ProcessOutput::of(user);
    assert!(answer.out.contains("git version 2.40.0"), "{answer:?}");
    assert_eq!(fs::read_to_string(seen).unwrap(), "");
}

/// The config is in another folder. Neither a config in the workspace nor prompts exist at launch.
#[test]
fn config_link_made_by_command_is_refused_next_launch() {
    let outside = tempfile::tempdir().unwrap();
    let attack =
        Attack::new(&[&format!("ln -s x brigade.toml; ln -s x {}/prompts", outside.path().display()), "echo ran"]);
    let config = outside.path().join("team.toml");
    fs::write(&config, attack.workspace.read("brigade.toml")).unwrap();
    fs::rename(attack.workspace.join("plan.md"), outside.path().join("plan.md")).unwrap();
    fs::remove_file(attack.workspace.join("brigade.toml")).unwrap();
    let workspace = attack.workspace.path().display().to_string();
    let arguments = ["run", "--config", config.to_str().unwrap(), "--workspace", &workspace];
    let answer = ProcessOutput::of(attack.brigade(&arguments));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(attack.output(2), "ran");
    let next = ProcessOutput::of(attack.brigade(&arguments));
    let error = format!("cannot use {}: it is a symbolic link", attack.workspace.join("brigade.toml").display());
    assert!(next.code == Some(2) && next.err.contains(&error) && next.err.contains("hint: `rm "), "{next:?}");
}

#[test]
fn command_text_is_no_argument_of_any_process() {
    let attack = Attack::new(&["touch begun; # confidential-text\nwhile ! [ -e go ]; do sleep 0.05; done"]);
    let mut run = attack.brigade(&["run"]);
    let mut child = run.stdout(std::process::Stdio::null()).spawn().unwrap();
    crate::testkit::process::wait_until("the command has started", || attack.workspace.join("begun").exists());
    let arguments: Vec<String> = attack.workspace.processes().into_iter().map(|process| process.command).collect();
    fs::write(attack.workspace.join("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    // Guard and init hide themselves from their own user.
    assert!(
        arguments.len() >= 4 || !crate::testkit::process::is_root("hidden processes"),
        "guard, init or shell are in the list: {arguments:?}"
    );
    assert!(!arguments.iter().any(|line| line.contains("confidential-text")), "{arguments:#?}");
}

#[test]
fn command_of_team_sees_team_as_running() {
    let program = env!("CARGO_BIN_EXE_brigade");
    let script =
        format!("for what in team tasks 'why 1' doctor stop 'send m1 x'; do {program} $what; done >said.txt 2>&1");
    let attack = Attack::new(&[&script]);
    let answer = ProcessOutput::of(attack.brigade(&["run"]));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let output = attack.workspace.read("said.txt");
    assert!(output.contains("crew is running (pid") && output.contains("m1 is working on it"), "{output}");
    assert!(!output.contains("is gone") && !output.contains("killed while it worked"), "{output}");
    if attack.is_confined() {
        assert!(output.contains("cannot stop the team from one of its commands"), "{output}");
        assert!(output.contains("a command that a team runs cannot write the team's control files"), "{output}");
    }
}
