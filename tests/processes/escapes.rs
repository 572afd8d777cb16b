//! Escapes from the sandbox that need an ordinary user, a terminal multiplexer, or a mount of the person.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use super::sandbox::Attack;
use crate::testkit::process::{ProcessOutput, is_root};

/// Ids of an ordinary user, and of a group that this user is not in.
const USER: u32 = 54321;
const OTHER_GROUP: u32 = 54322;

/// Gives the workspace and the home folder to the ordinary user if root runs the test.
fn give_to_ordinary_user(attack: &Attack) {
    if is_root("another user") {
        for folder in [attack.workspace.path(), &attack.home("")] {
            let owner = format!("{USER}:{USER}");
            assert!(Command::new("chown").args(["-R", &owner]).arg(folder).status().unwrap().success());
        }
    }
}

/// The command prefix that runs a program as the ordinary user.
fn as_user() -> String {
    let is_root = is_root("another user");
    if is_root { format!("setpriv --reuid={USER} --regid={USER} --clear-groups") } else { String::new() }
}

/// Returns true if commands of root and of the ordinary user are confined here.
fn is_confined(attack: &Attack) -> bool {
    let script = format!("exec {} unshare -Urm true", as_user());
    attack.is_confined() && Command::new("sh").args(["-c", &script]).status().is_ok_and(|status| status.success())
}

fn run_as_ordinary_user(attack: &Attack, variables: &[(&str, &str)]) -> ProcessOutput {
    // The program is executed through an open file: that user may not enter its folder.
    let script = format!("exec 9<\"$0\" && exec {} /proc/self/fd/9 run", as_user());
    let answer = run_by_script(attack, attack.brigade(&["run"]), &script, variables);
    assert!(!answer.out.contains("not confined"), "{answer:?}");
    answer
}

/// Runs a script whose `$0` is the program, in the environment of `run`.
fn run_by_script(attack: &Attack, run: Command, script: &str, variables: &[(&str, &str)]) -> ProcessOutput {
    let mut shell = attack.workspace.command("sh");
    shell.args(["-c", script]).arg(run.get_program());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.envs(variables.iter().copied());
    ProcessOutput::of(shell)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn user_cannot_mount_control_groups() {
    let script = "unshare -UrmC echo ENTERED 2>&1; unshare -Urm echo nested 2>&1; echo tried";
    let attack = Attack::new(&[script]);
    if !is_confined(&attack) {
        return;
    }
    give_to_ordinary_user(&attack);
    let answer = run_as_ordinary_user(&attack, &[]);
    let output = attack.output(1);
    assert!(output.ends_with("tried") && !output.contains("ENTERED"), "{answer:?} {output}");
    assert!(output.contains("nested"), "other namespaces stay usable: {output}");
}

#[test]
fn command_cannot_reach_terminal_multiplexers() {
    let script = "env | grep -E '^(TMUX|TMUX_PANE|STY|WINDOW)='; for socket in ~/mux/tmux-*/default ~/named ~/screens/1.x ~/.screen/2.x; \
                  do [ -S $socket ] && echo SEEN $socket; done; echo tried";
    let attack = Attack::new(&[script]);
    if !is_confined(&attack) {
        return;
    }
    let tmux = attack.home(&format!("mux/tmux-{}", rustix::process::geteuid().as_raw()));
    for folder in [&tmux, &attack.home("screens"), &attack.home(".screen")] {
        fs::create_dir_all(folder).unwrap();
        set_mode(folder, 0o700);
    }
    let sockets = [tmux.join("default"), attack.home("named"), attack.home("screens/1.x"), attack.home(".screen/2.x")];
    let _listeners = sockets.map(|socket| UnixListener::bind(socket).unwrap());
    let mut run = attack.brigade(&["run"]);
    run.env("TMUX_TMPDIR", attack.home("mux")).env("TMUX", format!("{},1,0", attack.home("named").display()));
    run.env("TMUX_PANE", "%0").env("STY", "1.x").env("WINDOW", "0").env("SCREENDIR", attack.home("screens"));
    let answer = ProcessOutput::of(run);
    assert_eq!((answer.code, attack.output(1).as_str()), (Some(0), "tried"), "{answer:?}");
}

/// Two tasks: the first closes a folder above a folder of `PATH`, the second opens it and writes a program there.
fn attack_with_closed_folder() -> (Attack, String) {
    let evil = "chmod 755 ~/tools; (echo evil >~/tools/bin/check) 2>/dev/null && echo WROTE; echo tried";
    let attack = Attack::new(&["chmod 000 ~/tools", evil]);
    fs::create_dir_all(attack.home("tools/bin")).unwrap();
    let path = format!("{}:{}", attack.home("tools/bin").display(), std::env::var("PATH").unwrap());
    give_to_ordinary_user(&attack);
    (attack, path)
}

#[test]
fn protected_path_below_closed_folder_is_read_only() {
    let (attack, path) = attack_with_closed_folder();
    if !is_confined(&attack) {
        return;
    }
    let answer = run_as_ordinary_user(&attack, &[("PATH", &path)]);
    assert_eq!((answer.code, attack.output(2).as_str()), (Some(0), "tried"), "{answer:?}");
    assert!(!attack.home("tools/bin/check").exists(), "{answer:?}");
}

#[test]
fn unreachable_protected_path_fails_command() {
    let (attack, path) = attack_with_closed_folder();
    if !is_root("a folder of another group") || !is_confined(&attack) {
        return;
    }
    // Its owner can change its mode, and has no rights over its group in a user namespace.
    chown(attack.home("tools"), None, Some(OTHER_GROUP)).unwrap();
    let answer = run_as_ordinary_user(&attack, &[("PATH", &path)]);
    set_mode(&attack.home("tools"), 0o755);
    let (text, bin) = (format!("{answer:?}"), attack.home("tools/bin").display().to_string());
    assert!(answer.code == Some(1) && text.contains("cannot start the command") && text.contains(&bin), "{text}");
    assert!(!attack.home("tools/bin/check").exists(), "{answer:?}");
}

#[test]
fn mount_below_read_only_folder_is_read_only() {
    let script = "for folder in ~/.config/brigade/below ~/.config/brigade/below/deeper; do \
                  [ -e $folder/mounted ] && (echo x >$folder/new) 2>/dev/null && echo WROTE $folder; done; ls ~/.config/brigade/below; echo tried";
    let attack = Attack::new(&[script]);
    if !is_confined(&attack) {
        return;
    }
    fs::create_dir_all(attack.home(".config/brigade/below")).unwrap();
    let script = "exec unshare -Urm sh -ec 'cd ~/.config/brigade/below; mount -t tmpfs none .; cd ../below; mkdir deeper; touch mounted; \
                  mount -t tmpfs none deeper; touch deeper/mounted; cd \"$1\"; exec \"$0\" run' \"$0\" \"$PWD\"";
    let answer = run_by_script(&attack, attack.brigade(&["run"]), script, &[]);
    assert_eq!((answer.code, attack.output(1).as_str()), (Some(0), "deeper\nmounted\ntried"), "{answer:?}");
}

#[test]
fn closed_user_config_folder_is_protected() {
    let evil = "chmod 755 ~/.config; mkdir -p ~/.config/brigade; echo x >~/.config/brigade/config.toml; echo tried";
    let attack = Attack::new(&[evil]);
    if !is_confined(&attack) {
        return;
    }
    fs::create_dir(attack.home(".config")).unwrap();
    give_to_ordinary_user(&attack);
    set_mode(&attack.home(".config"), 0o555);
    let answer = run_as_ordinary_user(&attack, &[]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(attack.output(1).ends_with("tried"), "{}", attack.output(1));
    assert!(!attack.home(".config/brigade").exists(), "{}", attack.output(1));
}
