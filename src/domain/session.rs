//! Start and end of a session, as a pure function of the lead's inputs.
//!
//! A session is one run of the team. It ends when no task is claimable or in progress, no mail waits, and the lead has reported.

use super::state::Mode;

/// The lead's progress in its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStage {
    /// There is no session.
    NoSession,
    /// The session runs and teammates may work.
    Running(Mode),
    /// All work is done and the lead reports.
    Reporting(Mode),
}

/// The facts for the lead's next decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the facts are independent")]
pub struct SessionInputs {
    /// The desired state.
    pub desired: Mode,
    /// The stage of the session.
    pub stage: SessionStage,
    /// A reachable teammate could claim a task now or after a back-off.
    pub claimable: bool,
    /// A teammate works, or a task is in progress for a live worker or lease.
    pub in_progress: bool,
    /// Mail waits for a member that would react to it.
    pub mail_waits: bool,
    /// Mail waits for the lead.
    pub lead_mail_waits: bool,
    /// The goal has not been given to the lead, the lead is reachable, and no plan replaces the goal.
    pub goal_unplanned: bool,
    /// The lead's model is running a turn.
    pub lead_works: bool,
    /// The process runs one session only, and that session is over.
    pub session_is_over: bool,
}

/// The lead's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Waits for a change.
    Wait,
    /// Starts a session: teammates may claim.
    Begin(Mode),
    /// Lets the lead report.
    Report,
    /// Ends the session.
    Finish,
    /// Reports the pause.
    Pause,
    /// Ends the process.
    Exit,
}

/// Returns true if teammates may claim: a session runs and the desired state is not `pause`.
#[must_use]
pub fn may_claim(stage: SessionStage, desired: Mode) -> bool {
    matches!(stage, SessionStage::Running(_)) && desired != Mode::Pause
}

/// Returns true if an idle teammate may read mail that would start its model. During a pause the mail waits, without model
/// requests.
#[must_use]
pub fn may_read(stage: SessionStage, desired: Mode) -> bool {
    may_claim(stage, desired)
}

/// Returns true if the lead may read mail. It answers teammates during the whole session, also during a pause.
#[must_use]
pub fn lead_may_read(stage: SessionStage) -> bool {
    stage != SessionStage::NoSession
}

/// Returns the next step for these inputs.
#[must_use]
pub fn decide(inputs: &SessionInputs) -> NextStep {
    match inputs.stage {
        SessionStage::NoSession if inputs.session_is_over => NextStep::Exit,
        SessionStage::NoSession => match inputs.desired {
            Mode::Pause => NextStep::Pause,
            mode if mode.is_one_shot() => NextStep::Begin(mode),
            mode if inputs.claimable
                || inputs.in_progress
                || inputs.mail_waits
                || inputs.lead_mail_waits
                || inputs.goal_unplanned =>
            {
                NextStep::Begin(mode)
            }
            _ => NextStep::Wait,
        },
        SessionStage::Running(_) if inputs.in_progress || inputs.lead_works => NextStep::Wait,
        // During a pause, tasks in progress are finished. Claimable tasks and mail wait.
        SessionStage::Running(_) if inputs.desired == Mode::Pause => NextStep::Report,
        SessionStage::Running(_) if inputs.claimable || inputs.mail_waits || inputs.lead_mail_waits => NextStep::Wait,
        // Every session gives the goal to the lead, except a clean-up session.
        SessionStage::Running(mode) if inputs.goal_unplanned && mode != Mode::RunCleanup => NextStep::Wait,
        SessionStage::Running(_) => NextStep::Report,
        SessionStage::Reporting(_) if inputs.lead_works => NextStep::Wait,
        SessionStage::Reporting(_) => NextStep::Finish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: SessionInputs = SessionInputs {
        desired: Mode::Continuous,
        stage: SessionStage::NoSession,
        claimable: false,
        in_progress: false,
        mail_waits: false,
        lead_mail_waits: false,
        goal_unplanned: false,
        lead_works: false,
        session_is_over: false,
    };

    #[test]
    fn session_starts_for_work_or_one_shot_mode() {
        assert_eq!(decide(&QUIET), NextStep::Wait);
        assert_eq!(decide(&SessionInputs { claimable: true, ..QUIET }), NextStep::Begin(Mode::Continuous));
        assert_eq!(decide(&SessionInputs { lead_mail_waits: true, ..QUIET }), NextStep::Begin(Mode::Continuous));
        assert_eq!(decide(&SessionInputs { desired: Mode::RunCleanup, ..QUIET }), NextStep::Begin(Mode::RunCleanup));
        assert_eq!(decide(&SessionInputs { desired: Mode::Pause, claimable: true, ..QUIET }), NextStep::Pause);
        assert_eq!(decide(&SessionInputs { session_is_over: true, claimable: true, ..QUIET }), NextStep::Exit);
    }

    #[test]
    fn session_ends_when_settled_and_lead_has_reported() {
        let running = SessionInputs { stage: SessionStage::Running(Mode::RunOnce), desired: Mode::RunOnce, ..QUIET };
        for unsettled in [
            SessionInputs { claimable: true, ..running },
            SessionInputs { in_progress: true, ..running },
            SessionInputs { mail_waits: true, ..running },
            SessionInputs { lead_works: true, ..running },
            SessionInputs { goal_unplanned: true, ..running },
        ] {
            assert_eq!(decide(&unsettled), NextStep::Wait, "{unsettled:?}");
        }
        assert_eq!(decide(&running), NextStep::Report);
        let reporting = SessionInputs { stage: SessionStage::Reporting(Mode::RunOnce), ..running };
        assert_eq!(decide(&SessionInputs { lead_works: true, ..reporting }), NextStep::Wait);
        assert_eq!(decide(&reporting), NextStep::Finish);
    }

    #[test]
    fn pause_finishes_running_tasks_and_claims_none() {
        let paused = SessionInputs {
            stage: SessionStage::Running(Mode::Continuous),
            desired: Mode::Pause,
            claimable: true,
            ..QUIET
        };
        assert_eq!(decide(&SessionInputs { in_progress: true, ..paused }), NextStep::Wait);
        assert_eq!(decide(&paused), NextStep::Report);
        assert!(!may_claim(paused.stage, paused.desired));
        assert!(may_claim(paused.stage, Mode::RunOnce));
        assert!(!may_claim(SessionStage::NoSession, Mode::Continuous));
    }
}
