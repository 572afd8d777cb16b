//! Start and end of a session, as a pure function of the lead's inputs.
//!
//! A run of a team can have several sessions. A session ends when no task is claimable or in progress, no mail waits, and the lead has
//! reported.

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
    /// True if a reachable teammate could claim a task now or after a back-off.
    pub has_claimable_task: bool,
    /// True if a teammate works, or a task is in progress for a live worker or lease.
    pub has_task_in_progress: bool,
    /// True if mail waits for a teammate that would react to it.
    pub has_mail: bool,
    /// True if mail waits for the lead.
    pub has_lead_mail: bool,
    /// True if the lead's model runs a turn, or the goal is being checked.
    pub is_lead_busy: bool,
    /// The mode of the session, if the process runs one session only. It runs that session whatever the desired state is. A pause ends
    /// it, also before its first claim.
    pub only_session: Option<Mode>,
    /// True if the process runs one session only, and that session is over.
    pub is_last_session_over: bool,
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

/// Returns true if teammates may claim, and read mail that would start their model: a session runs and the desired state is not
/// `pause`.
pub fn may_claim(stage: SessionStage, desired: Mode) -> bool {
    matches!(stage, SessionStage::Running(_)) && desired != Mode::Pause
}

/// Returns true if the lead may read mail. It answers teammates during the whole session, also during a pause.
pub fn lead_may_read(stage: SessionStage) -> bool {
    stage != SessionStage::NoSession
}

/// Returns the next step for these inputs.
pub fn decide(inputs: &SessionInputs) -> NextStep {
    match inputs.stage {
        SessionStage::NoSession if inputs.is_last_session_over => NextStep::Exit,
        SessionStage::NoSession => match (inputs.desired, inputs.only_session) {
            (_, Some(mode)) => NextStep::Begin(mode),
            (Mode::Pause, None) => NextStep::Pause,
            (mode, None) if mode.is_one_shot() => NextStep::Begin(mode),
            (mode, None)
                if inputs.has_claimable_task
                    || inputs.has_task_in_progress
                    || inputs.has_mail
                    || inputs.has_lead_mail =>
            {
                NextStep::Begin(mode)
            }
            _ => NextStep::Wait,
        },
        SessionStage::Running(_) if inputs.has_task_in_progress || inputs.is_lead_busy => NextStep::Wait,
        // During a pause, tasks in progress are finished. Claimable tasks and mail wait.
        SessionStage::Running(_) if inputs.desired == Mode::Pause => NextStep::Report,
        SessionStage::Running(_) if inputs.has_claimable_task || inputs.has_mail || inputs.has_lead_mail => {
            NextStep::Wait
        }
        SessionStage::Running(_) => NextStep::Report,
        SessionStage::Reporting(_) if inputs.is_lead_busy => NextStep::Wait,
        SessionStage::Reporting(_) => NextStep::Finish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: SessionInputs = SessionInputs {
        desired: Mode::Continuous,
        stage: SessionStage::NoSession,
        has_claimable_task: false,
        has_task_in_progress: false,
        has_mail: false,
        has_lead_mail: false,
        is_lead_busy: false,
        only_session: None,
        is_last_session_over: false,
    };

    #[test]
    fn session_starts_for_work_or_one_shot_mode() {
        assert_eq!(decide(&QUIET), NextStep::Wait);
        assert_eq!(decide(&SessionInputs { has_claimable_task: true, ..QUIET }), NextStep::Begin(Mode::Continuous));
        assert_eq!(decide(&SessionInputs { has_lead_mail: true, ..QUIET }), NextStep::Begin(Mode::Continuous));
        assert_eq!(decide(&SessionInputs { desired: Mode::RunCleanup, ..QUIET }), NextStep::Begin(Mode::RunCleanup));
        assert_eq!(decide(&SessionInputs { desired: Mode::Pause, has_claimable_task: true, ..QUIET }), NextStep::Pause);
        assert_eq!(
            decide(&SessionInputs { is_last_session_over: true, has_claimable_task: true, ..QUIET }),
            NextStep::Exit
        );
    }

    #[test]
    fn only_session_runs_whatever_is_desired() {
        let only = SessionInputs { only_session: Some(Mode::RunOnce), ..QUIET };
        for desired in Mode::ALL {
            assert_eq!(decide(&SessionInputs { desired, ..only }), NextStep::Begin(Mode::RunOnce), "{desired}");
        }
        let stage = SessionStage::Running(Mode::RunOnce);
        let paused = SessionInputs { stage, desired: Mode::Pause, has_claimable_task: true, ..only };
        assert_eq!(decide(&paused), NextStep::Report, "a pause ends it");
    }

    #[test]
    fn session_ends_when_settled_and_lead_has_reported() {
        let running = SessionInputs { stage: SessionStage::Running(Mode::RunOnce), desired: Mode::RunOnce, ..QUIET };
        for unsettled in [
            SessionInputs { has_claimable_task: true, ..running },
            SessionInputs { has_task_in_progress: true, ..running },
            SessionInputs { has_mail: true, ..running },
            SessionInputs { is_lead_busy: true, ..running },
            SessionInputs { has_lead_mail: true, ..running },
        ] {
            assert_eq!(decide(&unsettled), NextStep::Wait, "{unsettled:?}");
        }
        assert_eq!(decide(&running), NextStep::Report);
        let reporting = SessionInputs { stage: SessionStage::Reporting(Mode::RunOnce), ..running };
        assert_eq!(decide(&SessionInputs { is_lead_busy: true, ..reporting }), NextStep::Wait);
        assert_eq!(decide(&reporting), NextStep::Finish);
    }

    #[test]
    fn pause_finishes_running_tasks_and_claims_none() {
        let paused = SessionInputs {
            stage: SessionStage::Running(Mode::Continuous),
            desired: Mode::Pause,
            has_claimable_task: true,
            ..QUIET
        };
        assert_eq!(decide(&SessionInputs { has_task_in_progress: true, ..paused }), NextStep::Wait);
        assert_eq!(decide(&paused), NextStep::Report);
        assert!(!may_claim(paused.stage, paused.desired));
        assert!(may_claim(paused.stage, Mode::RunOnce));
        assert!(!may_claim(SessionStage::NoSession, Mode::Continuous));
    }
}
