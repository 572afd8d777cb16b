//! `scripts/install`: the archive for this machine is installed only if it has the digest that was published for it.

use std::path::Path;

use crate::testkit::process::{ProcessOutput, command};
use crate::testkit::workspace::TestWorkspace;

/// Packs an archive of a program that prints this version, with its digest, in `release/`.
fn release(workspace: &TestWorkspace, version: &str) {
    let name = format!("brigade-{version}-{}-unknown-linux-musl", std::env::consts::ARCH);
    workspace.write(&format!("{name}/brigade"), &format!("#!/bin/sh\necho brigade {version}\n"));
    workspace.write(&format!("{name}/man/brigade.1"), "");
    ["bash", "fish", "zsh"]
        .iter()
        .for_each(|shell| workspace.write(&format!("{name}/completions/brigade.{shell}"), ""));
    let pack = format!(
        "chmod 755 {name}/brigade && mkdir -p release && rm -f release/* && tar -czf release/{name}.tar.gz {name} && rm -r {name} && \
         cd release && sha256sum *.tar.gz > SHA256SUMS"
    );
    let packed = shell(workspace, &pack);
    assert_eq!(packed.code, Some(0), "{packed:?}");
}

fn shell(workspace: &TestWorkspace, text: &str) -> ProcessOutput {
    let mut shell = command("sh", workspace.path());
    shell.args(["-c", text]);
    ProcessOutput::of(shell)
}

/// Runs the script with this argument, and these variables in front.
fn install(workspace: &TestWorkspace, variables: &str, from: &str) -> ProcessOutput {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install");
    shell(workspace, &format!("PREFIX=\"$PWD/prefix\" {variables} sh '{}' {from}", script.display()))
}

#[test]
fn archive_with_published_digest_is_installed() {
    let workspace = TestWorkspace::new();
    release(&workspace, "1.0.0");
    let installed = install(&workspace, "", "release");
    assert_eq!(installed.code, Some(0), "{installed:?}");
    assert!(installed.out.starts_with("installed brigade 1.0.0: "), "{installed:?}");
    assert_eq!(shell(&workspace, "prefix/bin/brigade").out, "brigade 1.0.0\n");
    for file in ["man/man1/brigade.1", "bash-completion/completions/brigade", "zsh/site-functions/_brigade"] {
        assert!(workspace.join(&format!("prefix/share/{file}")).is_file(), "{file}");
    }
    release(&workspace, "1.0.1");
    assert_eq!(install(&workspace, "", "release/").code, Some(0));
    assert_eq!(shell(&workspace, "prefix/bin/brigade").out, "brigade 1.0.1\n");
}

#[test]
fn archive_with_another_digest_changes_nothing() {
    let workspace = TestWorkspace::new();
    release(&workspace, "1.0.0");
    assert_eq!(install(&workspace, "", "release").code, Some(0));
    release(&workspace, "1.0.1");
    let expected = install(&workspace, "DIGEST=0123", "release");
    assert!(expected.code == Some(1) && expected.err.contains(", not 0123\n"), "{expected:?}");
    shell(&workspace, "for archive in release/*.tar.gz; do printf x >> \"$archive\"; done");
    let changed = install(&workspace, "", "release");
    assert!(changed.code == Some(1) && changed.err.contains("has the digest "), "{changed:?}");
    assert_eq!(shell(&workspace, "prefix/bin/brigade").out, "brigade 1.0.0\n");
}

#[test]
fn missing_archive_and_unsafe_address_are_named() {
    let workspace = TestWorkspace::new();
    workspace.write("release/SHA256SUMS", "");
    for (from, reason) in [
        ("release", "release/SHA256SUMS names no archive for "),
        ("elsewhere", "cannot read elsewhere/SHA256SUMS"),
        ("http://example.invalid", "http://example.invalid is no https address"),
        ("", "it needs one argument"),
    ] {
        let refused = install(&workspace, "", from);
        assert!(refused.code == Some(1) && refused.err.contains(reason), "{from}: {refused:?}");
    }
    assert!(!workspace.join("prefix").exists());
}
