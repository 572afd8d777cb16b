//! When a session begins and ends, as a pure function of how things stand.
//!
//! A session is one run of the team until nothing is claimable or in progress, no mail waits, and the lead has reported.

use super::state::Mode;

/// Where the lead is with its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    Between,
    /// Teammates work.
    Running(Mode),
    /// All is settled; the lead reports.
    Reporting(Mode),
}

/// What the lead knows when it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of the situation, and they are independent")]
pub struct Situation {
    /// What the person wants.
    pub desired: Mode,
    /// Where the session is.
    pub stage: Stage,
    /// A teammate that can be reached could claim a task now, or will when its back-off ends.
    pub claimable: bool,
    /// A teammate works, or a task is in progress for a worker or a lease that lives.
    pub in_progress: bool,
    /// Mail waits for a member that would act on it.
    pub mail_waits: bool,
    /// Mail waits for the lead.
    pub lead_mail_waits: bool,
    /// The goal was not handed to the lead yet, who can be reached, and no plan stands in for it.
    pub goal_unplanned: bool,
    /// The lead's model is at work.
    pub lead_works: bool,
    /// The process runs one session and exits; it had it already.
    pub had_its_session: bool,
}

/// What the lead does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing until something changes.
    Wait,
    /// Opens the board to the teammates.
    Begin(Mode),
    /// Has the lead report.
    Report,
    /// Ends the session.
    Finish,
    /// Says that it is paused.
    Pause,
    /// Ends the process: its one session is over.
    Exit,
}

/// Whether teammates may claim: never between sessions, nor once the person wants a pause.
#[must_use]
pub fn may_claim(stage: Stage, desired: Mode) -> bool {
    matches!(stage, Stage::Running(_)) && desired != Mode::Pause
}

/// Whether an idle teammate may read mail that would set its model to work. What waits under a pause stays where it is, and
/// costs nothing.
#[must_use]
pub fn may_read(stage: Stage, desired: Mode) -> bool {
    may_claim(stage, desired)
}

/// Whether the lead may: it answers teammates as long as the session lasts, also under a pause.
#[must_use]
pub fn lead_may_read(stage: Stage) -> bool {
    stage != Stage::Between
}

/// What follows from how things stand.
#[must_use]
pub fn decide(now: &Situation) -> Next {
    match now.stage {
        Stage::Between if now.had_its_session => Next::Exit,
        Stage::Between => match now.desired {
            Mode::Pause => Next::Pause,
            mode if mode.is_one_shot() => Next::Begin(mode),
            mode if now.claimable || now.in_progress || now.mail_waits || now.lead_mail_waits || now.goal_unplanned => {
                Next::Begin(mode)
            }
            _ => Next::Wait,
        },
        Stage::Running(_) if now.in_progress || now.lead_works => Next::Wait,
        // Work in hand is finished under a pause too; what waits stays where it is.
        Stage::Running(_) if now.desired == Mode::Pause => Next::Report,
        Stage::Running(_) if now.claimable || now.mail_waits || now.lead_mail_waits => Next::Wait,
        // A goal is handed over in every session but one that tidies up.
        Stage::Running(mode) if now.goal_unplanned && mode != Mode::RunCleanup => Next::Wait,
        Stage::Running(_) => Next::Report,
        Stage::Reporting(_) if now.lead_works => Next::Wait,
        Stage::Reporting(_) => Next::Finish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Situation = Situation {
        desired: Mode::Continuous,
        stage: Stage::Between,
        claimable: false,
        in_progress: false,
        mail_waits: false,
        lead_mail_waits: false,
        goal_unplanned: false,
        lead_works: false,
        had_its_session: false,
    };

    #[test]
    fn a_session_begins_for_work_and_one_shots_begin_at_once() {
        assert_eq!(decide(&QUIET), Next::Wait);
        assert_eq!(decide(&Situation { claimable: true, ..QUIET }), Next::Begin(Mode::Continuous));
        assert_eq!(decide(&Situation { lead_mail_waits: true, ..QUIET }), Next::Begin(Mode::Continuous));
        assert_eq!(decide(&Situation { desired: Mode::RunCleanup, ..QUIET }), Next::Begin(Mode::RunCleanup));
        assert_eq!(decide(&Situation { desired: Mode::Pause, claimable: true, ..QUIET }), Next::Pause);
        assert_eq!(decide(&Situation { had_its_session: true, claimable: true, ..QUIET }), Next::Exit);
    }

    #[test]
    fn a_session_lasts_until_all_is_settled_and_the_lead_has_reported() {
        let running = Situation { stage: Stage::Running(Mode::RunOnce), desired: Mode::RunOnce, ..QUIET };
        for unsettled in [
            Situation { claimable: true, ..running },
            Situation { in_progress: true, ..running },
            Situation { mail_waits: true, ..running },
            Situation { lead_works: true, ..running },
            Situation { goal_unplanned: true, ..running },
        ] {
            assert_eq!(decide(&unsettled), Next::Wait, "{unsettled:?}");
        }
        assert_eq!(decide(&running), Next::Report);
        let reporting = Situation { stage: Stage::Reporting(Mode::RunOnce), ..running };
        assert_eq!(decide(&Situation { lead_works: true, ..reporting }), Next::Wait);
        assert_eq!(decide(&reporting), Next::Finish);
    }

    #[test]
    fn a_pause_lets_work_in_hand_end_and_claims_nothing_more() {
        let paused =
            Situation { stage: Stage::Running(Mode::Continuous), desired: Mode::Pause, claimable: true, ..QUIET };
        assert_eq!(decide(&Situation { in_progress: true, ..paused }), Next::Wait);
        assert_eq!(decide(&paused), Next::Report);
        assert!(!may_claim(paused.stage, paused.desired));
        assert!(may_claim(paused.stage, Mode::RunOnce));
        assert!(!may_claim(Stage::Between, Mode::Continuous));
    }
}
