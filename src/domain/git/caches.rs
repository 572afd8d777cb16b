//! Files and folders that tools make again: caches, installed packages and builds. A task that leaves only these has left no work.

use crate::domain::text::pattern::matches_pattern;

/// The content with which the file `CACHEDIR.TAG` of a cache begins; see <https://bford.info/cachedir/>.
pub const TAG_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// The file that marks its folder as a cache.
pub const TAG_FILE: &str = "CACHEDIR.TAG";

/// Folders that are caches everywhere.
const CACHE_FOLDERS: [&str; 3] = ["node_modules", "__pycache__", ".venv"];
/// Files that are caches everywhere.
const CACHE_FILES: [&str; 3] = ["*.pyc", ".DS_Store", ".coverage"];

/// The folders of builds, and the files of the tools that make them. Such a folder is a cache if the repository tracks one of these files
/// beside it and its own ignore file names the folder.
#[rustfmt::skip]
const BUILD_FOLDERS: [(&str, &[&str]); 21] = [
    ("target",        &["Cargo.toml", "pom.xml", "build.sbt", "project.clj"]),
    ("build",         &["build.gradle", "build.gradle.kts", "CMakeLists.txt", "meson.build", "package.json", "pyproject.toml", "setup.py", "pubspec.yaml"]),
    ("dist",          &["package.json", "pyproject.toml", "setup.py"]),
    (".gradle",       &["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"]),
    (".next",         &["package.json"]),
    (".nuxt",         &["package.json"]),
    (".svelte-kit",   &["package.json"]),
    (".turbo",        &["package.json"]),
    (".parcel-cache", &["package.json"]),
    ("_build",        &["mix.exs", "dune-project", "rebar.config"]),
    ("deps",          &["mix.exs"]),
    ("zig-out",       &["build.zig"]),
    (".zig-cache",    &["build.zig"]),
    (".dart_tool",    &["pubspec.yaml"]),
    (".build",        &["Package.swift"]),
    ("Pods",          &["Podfile"]),
    ("vendor",        &["composer.json"]),
    (".stack-work",   &["stack.yaml"]),
    ("dist-newstyle", &["cabal.project", "*.cabal"]),
    (".tox",          &["tox.ini", "pyproject.toml"]),
    ("elm-stuff",     &["elm.json"]),
];

/// Returns true if a folder with this name is a cache everywhere.
pub fn is_cache_folder(name: &str) -> bool {
    CACHE_FOLDERS.contains(&name)
}

/// Returns true if a file with this name is a cache everywhere.
pub fn is_cache_file(name: &str) -> bool {
    CACHE_FILES.iter().any(|pattern| matches_pattern(name, pattern))
}

/// Returns true if a tool has builds in folders with this name.
pub fn may_be_build_folder(name: &str) -> bool {
    BUILD_FOLDERS.iter().any(|(folder, _)| *folder == name)
}

/// Returns true if the folder with this name is that of a build: `beside` are the names of the tracked files beside it.
pub fn is_build_folder(name: &str, beside: &[String]) -> bool {
    let tools = BUILD_FOLDERS.iter().find(|(folder, _)| *folder == name).map_or(&[] as &[&str], |(_, tools)| tools);
    tools.iter().any(|tool| beside.iter().any(|file| matches_pattern(file, tool)))
}

/// Returns true if a line of an ignore file names this folder. `path` is relative to the folder of the ignore file.
pub fn names_folder(ignore_file: &str, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ignore_file.lines().any(|line| {
        let line = line.trim();
        let line = line.strip_suffix("/**").or_else(|| line.strip_suffix("/*")).unwrap_or(line);
        let line = line.strip_suffix('/').unwrap_or(line);
        match line.strip_prefix('/') {
            Some(anchored) => anchored == path,
            None => line == path || line.strip_prefix("**/").unwrap_or(line) == name,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_folder_needs_its_tool_beside_it() {
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (folder, beside, is_build) in [
            ("target", &["Cargo.toml", "src"] as &[&str], true),
            ("target", &["README.md"], false),
            ("build", &["build.gradle.kts"], true),
            ("dist-newstyle", &["app.cabal"], true),
            ("reports", &["package.json"], false),
        ] {
            assert_eq!(is_build_folder(folder, &files(beside)), is_build, "{folder} {beside:?}");
        }
        assert!(may_be_build_folder("target") && !may_be_build_folder("reports"));
    }

    #[test]
    fn ignore_file_names_folder_by_its_own_line() {
        for (line, path, is_named) in [
            ("target", "target", true),
            ("/target/", "target", true),
            ("target/*", "crates/a/target", true),
            ("**/target/**", "crates/a/target", true),
            ("/target", "crates/a/target", false),
            ("crates/a/target/", "crates/a/target", true),
            ("# target", "target", false),
            ("!target", "target", false),
            ("*", "target", false),
            ("targets", "target", false),
        ] {
            assert_eq!(names_folder(&format!("*.log\n{line}\n"), path), is_named, "{line}");
        }
    }

    #[test]
    fn common_names_of_work_are_no_caches() {
        for name in ["reports", "out", "coverage", "data", "venv", "cache"] {
            assert!(!is_cache_folder(name), "{name}");
        }
        assert!(is_cache_file("a.pyc") && is_cache_file(".coverage") && !is_cache_file("coverage.xml"));
    }
}
