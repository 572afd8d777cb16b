//! The work gates of members: whether they may claim and read mail at the moment.

use tokio::sync::watch;

use crate::domain::session::{SessionStage, lead_may_read, may_claim, may_read};
use crate::domain::state::Mode;
use crate::team::supervisor::WorkGateReceivers;
use crate::team::teammate::WorkGate;

/// Sets the current work gates of members.
pub struct WorkGateSenders {
    /// For teammates.
    pub teammates: watch::Sender<WorkGate>,
    /// For the lead's own agent.
    pub lead: watch::Sender<WorkGate>,
}

impl WorkGateSenders {
    /// Returns receivers of the current work gates.
    #[must_use]
    pub fn subscribe(&self) -> WorkGateReceivers {
        WorkGateReceivers { teammates: self.teammates.subscribe(), lead: self.lead.subscribe() }
    }

    /// Sets what members may do in this stage.
    pub(super) fn update(&self, stage: SessionStage, desired: Mode, has_disk_space: bool) {
        let teammates = WorkGate {
            claim: has_disk_space && may_claim(stage, desired),
            read_mail: has_disk_space && may_read(stage, desired),
        };
        let lead = WorkGate { claim: false, read_mail: has_disk_space && lead_may_read(stage) };
        for (sender, work_gate) in [(&self.teammates, teammates), (&self.lead, lead)] {
            sender.send_if_modified(|now| std::mem::replace(now, work_gate) != work_gate);
        }
    }

    /// Closes all work gates.
    pub(super) fn revoke(&self) {
        self.teammates.send_replace(WorkGate::default());
        self.lead.send_replace(WorkGate::default());
    }
}
