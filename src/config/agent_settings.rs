//! The settings of the programs and the permissions of agents, which teams, leads and members share.

use super::settings::{Setting, ValueKind, setting};
use crate::domain::permission::PermissionMode;

pub(super) const MODE: Setting = setting(
    "mode",
    ValueKind::Choice(&PermissionMode::WORDS),
    "The calls of tools about which you are asked: \"auto\" (none), \"accept-edits\" (commands), \"ask\" (commands and changes of files). \"plan\" refuses both. Default: auto; for members the team's.",
);
pub(super) const ALLOW: Setting = setting(
    "allow",
    ValueKind::Words,
    "Calls about which you are not asked, such as [\"bash(cargo test:*)\", \"write_file(docs/*)\"]. They never allow a command with shell operators. Those of the team and of the member hold. Default: none.",
);
pub(super) const DENY: Setting = setting(
    "deny",
    ValueKind::Words,
    "Calls that are refused in every mode, such as [\"bash(git push:*)\"]. They are stronger than `allow`. Those of the team and of the member hold. Default: none.",
);

pub(super) const PROGRAM_COMMAND: Setting = setting(
    "command",
    ValueKind::Command,
    "The command that starts the agent's program, for `claude-code`. Default: `claude`; for members the lead's.",
);
pub(super) const PASS_ENV: Setting = setting(
    "pass_env",
    ValueKind::Words,
    "The environment variables that the agent's program gets although commands do not, such as [\"ANTHROPIC_API_KEY\"], for `claude-code`. Default: none; for members the lead's.",
);
