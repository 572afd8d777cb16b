//! Names, states and decisions of the work in git.

pub mod branch_name;
pub mod caches;
pub mod conflict;
pub mod dropped_lines;
pub mod git_hints;
pub mod ignored_files;
pub mod worktree_name;
pub mod worktree_state;
