//! The current permissions of members to claim and to read mail.

use tokio::sync::watch;

use crate::domain::session::{SessionStage, lead_may_read, may_claim, may_read};
use crate::domain::state::Mode;
use crate::team::supervisor::PermissionReceivers;
use crate::team::teammate::Permissions;

/// Sets the current permissions of members.
pub struct PermissionSenders {
    /// For teammates.
    pub teammates: watch::Sender<Permissions>,
    /// For the lead's own agent.
    pub lead: watch::Sender<Permissions>,
}

impl PermissionSenders {
    /// Returns receivers of the current permissions.
    #[must_use]
    pub fn subscribe(&self) -> PermissionReceivers {
        PermissionReceivers { teammates: self.teammates.subscribe(), lead: self.lead.subscribe() }
    }

    /// Sets what members may do in this stage.
    pub(super) fn update(&self, stage: SessionStage, desired: Mode, has_disk_space: bool) {
        let teammates = Permissions {
            claim: has_disk_space && may_claim(stage, desired),
            read_mail: has_disk_space && may_read(stage, desired),
        };
        let lead = Permissions { claim: false, read_mail: has_disk_space && lead_may_read(stage) };
        for (sender, permissions) in [(&self.teammates, teammates), (&self.lead, lead)] {
            sender.send_if_modified(|now| std::mem::replace(now, permissions) != permissions);
        }
    }

    /// Takes all permissions away.
    pub(super) fn revoke(&self) {
        self.teammates.send_replace(Permissions::default());
        self.lead.send_replace(Permissions::default());
    }
}
