//! Rules that deny commands, compared with what shells run.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use brigade::domain::agent::permission::{PermissionCall, PermissionDecision, PermissionRule, Permissions, ToolKind};

use crate::testkit::seeds::number;

/// The rules of a careful team.
const RULES: [&str; 8] = [
    "bash(git push:*)",
    "bash(git * push:*)",
    "bash(rm -rf*)",
    "bash(sudo:*)",
    "bash(curl:*)",
    "bash(cargo publish:*)",
    "bash(npm publish:*)",
    "bash(git reset --hard*)",
];

fn decision(rules: &[&str], command: &str) -> PermissionDecision {
    let deny = rules.iter().map(|rule| PermissionRule::parse(rule).unwrap()).collect();
    let call = PermissionCall { tool: "bash".into(), kind: ToolKind::Command, subject: command.into() };
    Permissions { deny, ..Permissions::default() }.decide(&call)
}

fn is_denied(rules: &[&str], command: &str) -> bool {
    matches!(decision(rules, command), PermissionDecision::Deny(_))
}

/// Folders in which shells run commands, with a `git` that only records its arguments.
struct Shells {
    folder: tempfile::TempDir,
    runs: usize,
}

impl Shells {
    fn new() -> Self {
        let shells = Self { folder: tempfile::tempdir().unwrap(), runs: 0 };
        for name in ["bin", "work"] {
            std::fs::create_dir(shells.folder.path().join(name)).unwrap();
        }
        let program = shells.folder.path().join("bin/git");
        std::fs::write(&program, "#!/bin/sh\n{ printf '<%s>' \"$@\"; echo; } >> \"$RECORD\"\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        shells
    }

    /// Runs a command. Returns the arguments of each `git` that ended before it. A later one writes no record of another run.
    fn run(&mut self, shell: &str, command: &str) -> String {
        self.runs += 1;
        let [bin, work] = ["bin", "work"].map(|name| self.folder.path().join(name));
        let record = self.folder.path().join(self.runs.to_string());
        let _ = Command::new(shell)
            .args(["-c", command])
            .current_dir(work)
            .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()))
            .env("RECORD", &record)
            .env("BIN", &bin)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        std::fs::read_to_string(&record).unwrap_or_default()
    }
}

/// Commands that run `git push` in bash.
const HIDDEN: &[&str] = &[
    "git push",
    ">out git push",
    "git >out push",
    "git push>out",
    "2>&1 git push",
    "git 2>&1 push",
    "2>&- git push",
    "{fd}>out git push",
    "git {fd}>out push",
    "&>out git push",
    "git &>>out push",
    ">|out git push",
    "<>out git push",
    "<<<text git push",
    "git <<<text push",
    "<<E git push\ntext\nE",
    "git <<E push\ntext\nE",
    "> >(cat) git push",
    "A=b git push",
    "A='b c' B=\"$(echo x)\" git push",
    "A+=b git push",
    "env git push",
    "env -i PATH=\"$PATH\" RECORD=\"$RECORD\" git push",
    "env -S 'git push'",
    "env -S'git push'",
    "env -vS 'git push'",
    "env --split-string='git push'",
    "command git push",
    "command -p \"$BIN/git\" push",
    "exec git push",
    "exec -a name git push",
    "nohup git push",
    "timeout 5 git push",
    "timeout -k 5 5 git push",
    "nice -n 5 git push",
    "setsid -w git push",
    "stdbuf -oL git push",
    "flock out git push",
    "flock out -c 'git push'",
    "flock -n out sh -ec 'git push'",
    "setpriv --no-new-privs git push",
    "taskset 1 git push",
    "xargs git push </dev/null",
    "echo x | xargs -n1 git push",
    "find . -maxdepth 0 -exec git push \\;",
    "find . -maxdepth 0 -exec git push {} +",
    "find . -maxdepth 0 -exec sh -c 'git push' \\;",
    "time git push",
    "time -p git push",
    "! git push",
    "if git push; then :; fi",
    "if true; then git push; fi",
    "if false; then :; elif true; then :; else :; fi; git push",
    "for x in 1; do git push; done",
    "while git push; do break; done",
    "until git push; do :; done",
    "case x in x) git push;; esac",
    "case x in\n(x) git push\nesac",
    "{ git push; }",
    "(git push)",
    "( ( git push ) )",
    "true && git push",
    "true&&git push",
    "false || git push",
    "true | git push",
    "true |& git push",
    "true; git push",
    "true & git push",
    "true\ngit push",
    "# a comment that isn't closed\ngit push",
    "true # don't\ngit push",
    "echo $(git push)",
    "echo \"$(git push)\"",
    "echo \"a $(echo \"b $(git push)\")\"",
    "echo `git push`",
    "echo \"`git push`\"",
    "echo `echo \\`git push\\``",
    "cat <(git push)",
    "true > >(git push); wait $!",
    "echo ${X:-$(git push)}",
    "echo \"${X:-`git push`}\"",
    "echo $((1 + $(git push; echo 1)))",
    "echo $((1<<2))\ngit push\n2",
    "(( 1 # )) ; git push\n))\ngit push",
    "a[1<<2]=3\ngit push\n2]=3",
    "cat <<E\n$(git push)\nE",
    "cat <<E\n`git push`\nE",
    "cat <<E\na\\\nE\n'\nE\ngit push\n: '",
    "bash <<E\ngit push\nE",
    "bash -s <<'E'\ngit push\nE",
    "bash <<-'E'\n\tgit push\n\tE",
    "cat <<E | bash\ngit push\nE",
    "$BASH <<E\ngit push\nE",
    ". /dev/stdin <<E\ngit push\nE",
    ". <(cat <<E\ngit push\nE\n)",
    "source /dev/stdin <<<'git push'",
    "bash <<<'git push'",
    "echo 'git push' | bash",
    "echo 'git push' | (cd /; sh)",
    "while read -r line; do eval \"$line\"; done <<E\ngit push\nE",
    "cat <<A <<B\nx\nA\ny\nB\ngit push",
    "f() { git push; }; f",
    "f() (git push); f",
    "function f { git push; }; f",
    "coproc git push; wait",
    "coproc X { git push; }; wait",
    "git \\\n push",
    "git pu\\\nsh",
    "g\\\nit push",
    "g\"i\"t pu\\sh",
    "'git' \"push\"",
    "\\git push",
    "$'git' push",
    "$'\\x67it' $'\\160ush'",
    "$'\\u0067it' push",
    "$\"git\" push",
    "g${X}it push",
    "git $X push",
    "git $(true) push",
    "g``it push",
    "git${IFS}push",
    "${X:-git} push",
    "${X:-git push}",
    "{git,push}",
    "git {push,origin}",
    "\"$BIN\"/git push",
    "cd \"$BIN\"; ./git push",
    "../bin/git push",
    "git -C dir push",
    "git -c a=b push",
    "git -c a=b -c c=d push",
    "git --git-dir=x push",
    "git --git-dir x --work-tree . push",
    "git --no-pager push",
    "git -P -C push push",
    "sh -c 'git push'",
    "bash -c -- 'git push'",
    "bash -c -x 'git push'",
    "bash -ec 'git push'",
    "bash -ce 'git push'",
    "bash -co pipefail 'git push'",
    "bash -o pipefail -c 'git push'",
    "bash -c 'sh -c \"git push\"'",
    "bash -c \"bash -c 'bash -c \\\"git push\\\"'\"",
    "sh -c 'true; \"$@\"' x git push",
    "eval git push",
    "eval 'git push'",
    "eval 'git' 'push origin'",
    "eval g'it push'",
    "eval eval 'git push'",
    "eval \"$(echo)git push\"",
    "trap 'git push' EXIT",
    "trap -- 'git push' 0",
    "script -qc 'git push' /dev/null",
    "script -qc'git push' /dev/null",
    "script --command='git push' -q /dev/null",
    "script --command 'git push' -q /dev/null",
    "shopt -s expand_aliases\nalias p='git push'\np",
    "echo $(case x in x) git push;; esac)",
    "echo \"$(case x in x) echo '\"';; esac)\"; git push; echo \"'\"",
    "true '' git; git push",
    "printf 'git push\\n' | sh",
    "printf 'git push\\c' | sh; echo -ne 'git push\\c' | sh",
    "echo -e 'cd .\\ngit push' | bash",
    "printf '\\147it push' | sh",
    "printf '%s\\n' '# it'\\''s' 'git push' | sh",
    "echo 'cd .; git' push | sh",
    "echo \"bash -c 'git push'\" | sh",
    "echo \"'git push'\" | xargs sh -c",
    "echo 'git push' | xargs -I{} sh -c {}",
    "echo 'git push' | while read -r line; do sh -c \"$line\"; done",
    "f() { sh; }; echo 'git push' | f",
    "function f { sh; }; echo 'git push' | f",
    "bash -cO extglob 'git push'",
    "bash -c -O extglob 'git push'",
    "bash -c +O extglob 'git push'",
    "bash -c +o posix -O extglob 'git push'",
    ". <(echo 'git push')",
    "builtin . <(echo 'git push')",
    "A=b source <(echo 'git push')",
    "bash <(echo 'git push')",
    "bash < <(echo 'git push')",
    "bash <(printf 'git push\\n')",
    "BASH_ENV=<(echo 'git push') bash -c true",
    "exec 3< <(echo 'git push'); sh <&3",
    "echo 'git push' > >(sh); wait $!",
    "echo 'git push' | tee >(sh) | cat",
    "coproc sh; echo 'git push' >&${COPROC[1]}; eval \"exec ${COPROC[1]}>&-\"; wait",
    "coproc sh; p=$COPROC_PID; printf 'git push\\nexit\\n' >&${COPROC[1]}; wait $p",
    "coproc { echo 'git push; exit'; read -r line; }; sh <&${COPROC[0]}",
    "eval \"$(echo 'git push')\"",
    "eval `echo 'git push'`",
    "eval \"`cat <<E\ngit push\nE\n`\"",
    "eval true \"; $(printf 'git push\\n')\"",
    "sh -c \"$(echo 'git push')\"",
    "bash <<<\"$(echo 'git push')\"",
    "$(echo 'git push')",
    "X='git push'; $X",
    "X='git push'; eval \"$X\"",
    "X='cd .; git push'; sh -c \"$X\"",
    "sh -c 'eval \"$1\"' x 'git push'",
];

/// Commands that run `git push` in a shell without `$'…'`.
const HIDDEN_IN_DASH: &[&str] =
    &[": $'\\' ; git push ; : ''", ": $'\\' ; git >out push ; : ''", ": $'\\' ; \"git\" 'push' ; : ''"];

/// Commands that run `git push` with programs or rights that a test machine may not have.
const HIDDEN_ELSEWHERE: &[&str] = &[
    "sudo git push",
    "sudo -u x git push",
    "sudo -s <<E\ngit push\nE",
    "doas -u x git push",
    "su -c 'git push'",
    "su - x -c 'git push'",
    "su -c'git push' x",
    "su --command='git push' x",
    "runuser -u x -- git push",
    "chroot dir git push",
    "chroot dir <<E\ngit push\nE",
    "unshare -r git push",
    "nsenter -t 1 -a git push",
    "systemd-run --user git push",
    "parallel git push ::: x",
    "parallel 'git push' ::: x",
    "watch -n 5 git push",
    "watch 'git push'",
    "ssh host git push",
    "ssh host 'cd x && git push'",
    "bash -lc \"git push\"",
    "zsh -c 'git push'",
    "busybox sh -c 'git push'",
    "docker run image sh -c 'git push'",
    "entr -c git push",
    "git -c alias.p='!git push' p",
    "git -c alias.p=push p",
    "git -c Alias.p='push origin' p",
    "git config alias.p '!git push'",
    "git config --global alias.p '!f() { git push; }; f'",
    "git config alias.p push",
    "git -c core.pager='git push' log",
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0='!git push' git p",
    "git submodule foreach git push",
    "git bisect run git push",
    "crontab <<E\n* * * * * git push\nE",
    "/usr/bin/git push",
    "~/bin/git push",
    "echo git push",
];

/// Commands of a normal day. Many mention what [`RULES`] deny.
const EVERYDAY: &[&str] = &[
    "git commit -m \"document git push\"",
    "git commit -m 'push notes' -m \"never run 'rm -rf /' or git push\"",
    "git commit -m\"document git push\"",
    "git commit -am \"docs: cargo publish needs sudo\"",
    "git commit --message=\"document git push\"",
    "git -c user.name=x -c user.email=x@y commit -q -m 'document git push'",
    "git commit -m \"$(cat <<'EOF'\nDocument git push\n\nDon't run rm -rf.\nEOF\n)\"",
    "git commit -F - <<EOF\nDocument git push\nEOF",
    "git add . && git commit -m \"document git push\"",
    "git status && cargo build",
    "git log --oneline --grep='push'",
    "git log -S'git push' --oneline",
    "git log --format='%h %s' -n 5 | cat",
    "git diff HEAD~1 -- docs/push.md",
    "git fetch origin && git rebase origin/main",
    "git checkout -b push-notes",
    "git reset HEAD a.rs",
    "git config user.name x",
    "grep -rn 'rm -rf' .",
    "grep -rn \"git push\" docs | head -20",
    "grep -rln 'git push' docs | xargs sed -i 's/git push/git pull/'",
    "rg --fixed-strings 'git push' -l",
    "sed -i 's/git push/git pull/' README.md",
    "find . -name '*.md' -exec grep -l 'git push' {} +",
    "find . -name target -prune -o -name '*.rs' -print",
    "awk '/git push/ { print $1 }' notes.txt",
    "echo \"git push\"",
    "echo 'run git push' >> README.md",
    "printf '%s\\n' 'git push' | grep -c push",
    "cat > README.md <<'EOF'\n# Release\n\nRun `git push`, don't run `rm -rf /`.\nEOF",
    "cat >> docs/a.md <<EOF\ngit push\nEOF\ngit add docs",
    "cargo test",
    "cargo test --locked --lib git_push -- --nocapture 2>&1 | tail -20",
    "cargo build --release && ls -la target/release",
    "RUST_LOG=debug cargo run -- run demo",
    "cargo publish-check",
    "python3 -c \"print('x')\"",
    "python3 -c \"print('git push')\"",
    "python3 - <<'EOF'\nimport subprocess\nprint('git push')\nEOF",
    "node -e \"console.log('git push')\"",
    "make -C dir",
    "make -j4 test VERBOSE=1",
    "npm run build",
    "npm install --save-dev x && npm test",
    "rm -r build",
    "rm a.txt",
    "mkdir -p src/{a,b} && touch src/a/{x,y}.rs",
    "for file in *.rs; do wc -l \"$file\"; done",
    "if [ -f a ]; then echo \"don't push\"; fi",
    "tar -czf out.tgz src",
    "docker run --rm image make test",
    "wc -c < README.md",
    "bash scripts/test.sh && git commit -m \"document git push\"",
    "bash -c 'cargo test && echo done'",
    "# do not git push here, and don't rm -rf\ncargo test",
    "echo \"${X:-default}\" \"$(git rev-parse HEAD)\"",
    "gh pr create --title \"Document git push\" --body \"Use sudo make install\"",
    "jq '.scripts[\"git push\"]' package.json",
    "echo \"git push\" | tee notes.md",
    "printf 'git push\\n' >> notes.md",
    "printf 'git push\\n' | tee -a notes.md | wc -l",
    "grep -rn 'git push' docs | sort | uniq -c",
    "for f in docs/*.md; do grep -n 'git push' \"$f\"; done",
    "for f in docs/*.md; do grep -n 'git push' \"$f\" | head -1; done",
    "diff <(grep 'git push' a.md) <(grep 'git push' b.md)",
    "find() { grep -rn \"$1\" docs; }; find 'git push'",
    "lines=$(grep -n 'git push' README.md); echo \"$lines\"",
    "echo \"$(git rev-parse HEAD)\" && git commit -m \"document git push\"",
    "bash scripts/test.sh 2>&1 | tail -5 && git commit -m \"document git push\"",
    "bash <<'EOF'\ngit commit -m \"document git push\"\nEOF",
    "bash -lc 'cd src && git commit -m \"document git push\"'",
    ". \"$HOME/.cargo/env\" && cargo test && git commit -m 'document git push'",
    "source .venv/bin/activate && python -m pytest -k 'git push'",
    "ls | xargs -n1 basename && git commit -m 'document git push'",
];

#[test]
fn everyday_command_runs_under_typical_rules() {
    let denied: Vec<String> = EVERYDAY
        .iter()
        .map(|command| (command, decision(&RULES, command)))
        .filter(|(_, decision)| *decision != PermissionDecision::Allow)
        .map(|(command, decision)| format!("{command}: {decision:?}"))
        .collect();
    assert!(denied.is_empty(), "{}", denied.join("\n"));
}

#[test]
fn deny_rule_sees_command_of_other_programs() {
    let permitted: Vec<&&str> =
        HIDDEN_ELSEWHERE.iter().filter(|command| !is_denied(&["bash(git push:*)"], command)).collect();
    assert!(permitted.is_empty(), "{permitted:#?}");
}

#[test]
fn deny_rule_of_one_word_sees_command() {
    let mut faults = Vec::new();
    for command in HIDDEN.iter().filter(|command| command.contains("git push")) {
        for (rule, word) in [("bash(zap)", "zap"), ("bash(zap:*)", "zap"), ("bash(zap)", "zap x")] {
            let command = command.replace("git push", word);
            if !is_denied(&[rule], &command) {
                faults.push(format!("`{rule}` permits: {command}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn deny_rule_sees_command_that_shell_runs() {
    let mut shells = Shells::new();
    let mut faults = Vec::new();
    for (shell, command) in
        HIDDEN.iter().map(|command| ("bash", command)).chain(HIDDEN_IN_DASH.iter().map(|command| ("dash", command)))
    {
        for rule in ["bash(git push:*)", "bash(git push)", "bash(git push*)"] {
            if !is_denied(&[rule], command) {
                faults.push(format!("`{rule}` permits: {command}"));
            }
        }
        let program = command.split([' ', '\n']).next().unwrap_or_default();
        let mut programs = ["flock", "setpriv", "taskset", "script", "stdbuf"]
            .into_iter()
            .filter(|name| *name == program)
            .chain([shell]);
        let is_missing = programs.any(|program| shells.run("sh", &format!("command -v {program} && git x")).is_empty());
        if !is_missing && !shells.run(shell, command).contains("<push>") {
            faults.push(format!("it runs no `git push`: {command}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The code in the last column of a table of the guide to permissions, after this heading.
fn guide_examples(heading: &str) -> Vec<String> {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/permissions.md")).unwrap();
    let (_, section) = guide.split_once(heading).unwrap();
    let rows =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    let cells = rows.map(|row| row.replace("\\|", "\0").split('|').nth(2).unwrap().replace('\0', "|"));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn guide_tells_what_rule_sees() {
    let seen = guide_examples("## Rules that deny commands");
    let not_seen = guide_examples("### Limits of rules");
    assert!(seen.len() > 12 && not_seen.len() > 8, "{seen:?} {not_seen:?}");
    for (command, is_seen) in
        seen.iter().map(|command| (command, true)).chain(not_seen.iter().map(|command| (command, false)))
    {
        assert_eq!(is_denied(&["bash(git push:*)"], command), is_seen, "{command}");
    }
}

/// Pieces of shell text that print nothing, so that no command is built from output.
const PIECES: &[&str] = &[
    " ",
    " ",
    " ",
    " ",
    " ",
    "\n",
    ";",
    "&",
    "&&",
    "||",
    "|",
    "(",
    ")",
    "((",
    "))",
    "{",
    "}",
    "{ ",
    "; }",
    "!",
    "'",
    "\"",
    "\\",
    "\\\n",
    "$",
    "$(",
    "`",
    "$'",
    "\\'",
    "${X",
    "${X:-",
    "${X#",
    "$X",
    "#",
    "<",
    ">",
    ">o",
    "<<E",
    "<<'E'",
    "<<-E",
    "\nE\n",
    "<<<",
    "<(",
    "2>&1",
    "[",
    "]=1",
    "case x in x)",
    ";;",
    "esac",
    "if true; then",
    "fi",
    "A=",
    "eval ",
    "bash -c ",
    "sh -ec ",
    ": ",
    "true",
    "git",
    "push",
    "git push",
    "git push",
    "git push",
    " git push\n",
];

#[test]
fn random_command_that_shell_runs_is_denied() {
    let first = number("BRIGADE_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    let mut shells = Shells::new();
    for seed in first..first + number("BRIGADE_FUZZ_COUNT").unwrap_or(200) {
        let mut random = fastrand::Rng::with_seed(seed);
        let command: String = (0..random.usize(2..16)).map(|_| PIECES[random.usize(..PIECES.len())]).collect();
        if !is_denied(&["bash(git push:*)"], &command) {
            for shell in ["bash", "dash"] {
                let records = shells.run(shell, &command);
                let has_run = records.lines().any(|record| record.starts_with("<push>"));
                assert!(!has_run, "BRIGADE_FUZZ_SEED={seed} BRIGADE_FUZZ_COUNT=1: {shell} runs it: {command:?}");
            }
        }
    }
}
