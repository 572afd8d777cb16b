//! The reading of a team at one moment, from its config, its roster, the state file and the board.

use std::sync::Arc;

use super::{MemberView, TeamProcess, TeamState, TeamView};
use crate::api::lead_status::LeadStatus;
use crate::api::merge::{TeamBranch, TeamBranchStatus};
use crate::api::next::{Launch, Next, OrderForm};
use crate::api::pending::PendingView;
use crate::api::task::abandoned_tasks;
use crate::api::workspace::Workspace;
use crate::api::{ApiResult, Refusal};
use crate::config::TeamFlags;
use crate::domain::task::Task;
use crate::domain::task::dependencies::count_tasks;
use crate::domain::team::approval::Request;
use crate::domain::team::name::LEAD;
use crate::domain::team::pending_questions::Question;
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::records::{MemberStatus, RosterMember};
use crate::domain::team::state::{Mode, SharedState, TeammateReport, TeammateReports};
use crate::domain::team::state_note::StateNote;
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::team::waiting_for::{WaitKind, WaitingFor};
use crate::domain::text::one_line;
use crate::domain::time::UnixMs;
use crate::ports::BoardView;
use crate::service::pending::PendingForPerson;
use crate::stores::workspace::OpenMode;

/// A team at one moment, and what was read for it.
#[derive(Debug, Clone)]
pub struct TeamStatus {
    /// The team.
    pub team: TeamView,
    /// The board.
    pub board: Arc<BoardView>,
    /// The things that wait for the person.
    pub waiting: PendingForPerson,
    /// The team that runs, and the state file.
    pub lead_status: LeadStatus,
    /// The config of the team, if it is valid.
    pub spec: Option<TeamSpec>,
    /// The tasks that the team held when it was killed.
    pub abandoned: Vec<Arc<Task>>,
}

impl TeamStatus {
    /// Reads the team of this name, else the running one, else the last one.
    ///
    /// # Errors
    /// The team does not exist, or the workspace cannot be read.
    pub async fn read(workspace: &Workspace, named: Option<&String>) -> ApiResult<Self> {
        let lead_status = LeadStatus::with_state(workspace).await?;
        let name = lead_status.team_name(named);
        let spec = workspace.location.team_if_valid(name.as_deref());
        let Some(name) = name.or_else(|| spec.as_ref().map(|spec| spec.name.to_string())) else {
            return Err(choice_refusal(workspace));
        };
        if spec.is_none() && named.is_some() && lead_status.team() != Some(&name) {
            workspace.location.config()?.select(Some(&name))?;
        }
        let stores = workspace.stores(OpenMode::ReadOnly).await?;
        let roster = stores.roster.read().await?;
        let board = stores.board.view().await?;
        let waiting = PendingForPerson::of(&stores).await?;
        let process = lead_status.process(&name, workspace.now());
        let mut team = assemble(name, process, spec.as_ref(), &lead_status, &roster, &board, &waiting);
        mark_waiting(&mut team, &waiting);
        let abandoned = if team.process.running { Vec::new() } else { abandoned_tasks(workspace, &board).await };
        let mut status = Self { team, board, waiting, lead_status, spec, abandoned };
        status.team.next = status.next();
        Ok(status)
    }

    /// Returns the launch that continues a team that was killed, or a run that was stopped before its end.
    pub fn continuing_launch(&self) -> Option<Launch> {
        if self.abandoned.is_empty() {
            return self.is_stopped_run().then_some(Launch::Run { team: None });
        }
        let is_one_run = self.team.state.desired.is_some_and(Mode::is_one_shot);
        Some(if is_one_run { Launch::Run { team: None } } else { Launch::Up { team: None } })
    }

    fn next(&self) -> Vec<Next> {
        let mut next: Vec<Next> = self.continuing_launch().into_iter().map(Next::from).collect();
        if self.team.process.health.is_some() {
            next.push(OrderForm::Stop { now: false }.into());
        }
        if self.team.process.running && self.lead_status.pause().is_some() {
            next.push(OrderForm::SetMode { mode: Mode::Continuous }.into());
        }
        next.extend(PendingView::of(&self.waiting).next);
        next.extend(self.questions().into_iter().map(|question| OrderForm::Send { to: Some(question.from) }.into()));
        next
    }

    /// Reads the branch of a team that does not run, and adds the steps that take it over. While the team runs, its branch grows.
    pub fn read_branch(&mut self, workspace: &Workspace) -> Option<TeamBranchStatus> {
        let spec = self.spec.as_ref().filter(|_| !self.team.process.running)?;
        let branch = TeamBranch::of(spec, &workspace.folder().ok()?)?;
        let status = branch.status(Some(&self.board)).ok()?;
        self.team.next.extend(status.next());
        Some(status)
    }

    /// Returns true if a `brigade run` was stopped before the end of its session, and no team runs now.
    pub fn is_stopped_run(&self) -> bool {
        let state = self.lead_status.state.as_ref();
        !self.team.process.running && state.is_some_and(|state| state.reason() == StateNote::OneSession)
    }

    /// Returns the open questions of members. They include a question that the lead asked without a message.
    pub fn questions(&self) -> Vec<Question> {
        let mut questions = self.waiting.questions.clone();
        let has_mail_of_lead = questions.iter().any(|question| question.from == LEAD);
        let lead_waits_for = self.team.lead.as_ref().and_then(|lead| lead.waiting_for.as_ref());
        if let (Some(WaitingFor::Person(text)), false) = (lead_waits_for, has_mail_of_lead) {
            questions.push(Question { id: None, from: LEAD.to_owned(), text: text.clone() });
        }
        questions
    }
}

/// Marks the members that wait for the answer to a plan, a review or a question.
fn mark_waiting(team: &mut TeamView, waiting: &PendingForPerson) {
    let rows = team.lead.iter_mut().chain(&mut team.members);
    for member in rows.filter(|member| matches!(member.phase, ReportedPhase::Idle | ReportedPhase::Work)) {
        let is_theirs = |from: &str| from.eq_ignore_ascii_case(&member.name);
        // A member at work does not wait for the answer to a question.
        let is_idle = member.phase == ReportedPhase::Idle;
        let question = waiting.questions.iter().find(|question| is_idle && is_theirs(&question.from));
        let question = question.map(|question| WaitingFor::Person(one_line(&question.text)));
        // The state file shows plans and reviews a moment later.
        let is_author = |request: &&Request| is_theirs(&request.from) && request.concerns(member.task);
        let approval = waiting.approvals.iter().find(is_author).map(Request::awaited_answer);
        member.waiting_for = approval.or(question).or(member.waiting_for.take());
    }
}

/// The refusal of a question that does not say which team it is about.
pub fn choice_refusal(workspace: &Workspace) -> Refusal {
    let config = match workspace.location.config() {
        Ok(config) => config,
        Err(error) => return error,
    };
    // A team with an invalid config cannot be chosen.
    match config.select(None).and_then(|name| config.team(&name, &TeamFlags::default())) {
        Err(error) => error.into(),
        Ok(_) => Refusal::invalid("cannot choose a team").next("add the name of the team to the command"),
    }
}

/// The view of a team, from its config, its roster, the state file and the board.
fn assemble(
    team: String,
    process: TeamProcess,
    spec: Option<&TeamSpec>,
    lead_status: &LeadStatus,
    roster: &[RosterMember],
    view: &BoardView,
    waiting: &PendingForPerson,
) -> TeamView {
    let is_running = process.running;
    let reports = lead_status.state.as_ref().map(|state| state.teammates_of(&team)).unwrap_or_default();
    let mut members: Vec<MemberView> = Vec::new();
    let mut add = |name: &str, role: &str, phase: ReportedPhase| {
        if !members.iter().any(|member| member.name.eq_ignore_ascii_case(name)) {
            members.push(MemberView { name: name.into(), role: role.into(), phase, ..MemberView::default() });
        }
    };
    for member in spec.iter().flat_map(|spec| &spec.members) {
        add(member.name.as_str(), &member.role, ReportedPhase::Stopped);
    }
    for member in roster {
        // The rows of a team that has ended may be older than its config.
        let is_member = member.spawned_in(&team).is_some() || is_running || spec.is_none();
        if member.is_outside() || (is_member && member.is_colleague_in(&team)) {
            add(&member.name, &member.role, phase_of(member, is_running));
        }
    }
    for member in &mut members {
        let configured = spec.and_then(|spec| spec.members.iter().find(|one| one.name.as_str() == member.name));
        member.budget = configured.map(|member| member.budget).unwrap_or_default();
        match reports.get(&member.name) {
            Some(report) => fill(member, report, is_running, view),
            None if is_running && starts_at_next_launch(spec, &reports, &member.name) => {
                member.waiting_for = Some(WaitingFor::detail(WaitKind::Launch, ""));
            }
            None => {}
        }
    }
    let state = lead_status.state.as_ref();
    let lead = state.filter(|state| state.team().as_deref() == Some(&team)).and_then(|state| {
        let mut lead = MemberView { name: LEAD.into(), phase: ReportedPhase::Stopped, ..MemberView::default() };
        fill(&mut lead, &*state.lead()?, is_running, view);
        lead.budget = spec.map(|spec| spec.lead.budget).unwrap_or_default();
        Some(lead)
    });
    TeamView {
        team,
        state: state.map(state_of).unwrap_or_default(),
        task_counts: Some(count_tasks(view.tasks.values().map(Arc::as_ref), view)),
        answers_needed: waiting.answers_needed(),
        waiting_for: if is_running { state.and_then(SharedState::waiting_for) } else { None },
        process,
        lead,
        members,
        next: Vec::new(),
    }
}

/// The part of the state file that the view of a team shows.
fn state_of(state: &SharedState) -> TeamState {
    TeamState {
        desired: Some(state.desired),
        current: Some(state.current),
        set_by: state.set_by.clone(),
        note: state.note.clone(),
    }
}

/// The phase of a member by its row in the roster. An agent of another program runs without the team.
fn phase_of(member: &RosterMember, is_running: bool) -> ReportedPhase {
    match member.status {
        _ if !is_running && !member.is_outside() => ReportedPhase::Stopped,
        MemberStatus::Working => ReportedPhase::Work,
        MemberStatus::Idle => ReportedPhase::Idle,
        MemberStatus::Shutdown => ReportedPhase::Stopped,
    }
}

/// Returns true if this member of the config is not in the running team, which has these reports. Before its first report it has none.
pub fn starts_at_next_launch(spec: Option<&TeamSpec>, reports: &TeammateReports, name: &str) -> bool {
    let is_member = spec.is_some_and(|spec| spec.members.iter().any(|member| member.name.is_same(name)));
    is_member && !reports.is_empty() && !reports.keys().any(|known| known.eq_ignore_ascii_case(name))
}

/// The view of a member of a running team. A member without a report has not started yet.
pub fn live_member(name: &str, report: Option<&TeammateReport>, board: &BoardView) -> MemberView {
    let mut member = MemberView { name: name.to_owned(), ..MemberView::default() };
    if let Some(report) = report {
        fill(&mut member, report, true, board);
    }
    member
}

/// Fills in a member's report from the state file; for a stopped team only usage and heartbeat.
fn fill(member: &mut MemberView, report: &TeammateReport, is_running: bool, view: &BoardView) {
    member.role.clone_from(&report.role);
    member.tokens = report.tokens;
    member.cost_usd = report.cost_usd;
    member.heartbeat = UnixMs::from_iso(&report.heartbeat);
    if !is_running {
        return;
    }
    member.phase = report.phase;
    member.task = report.task;
    member.attempt = report.attempt;
    member.subject = report.task.and_then(|task| view.tasks.get(&task)).map(|task| task.subject.clone());
    member.since = UnixMs::from_iso(&report.since);
    member.waiting_for.clone_from(&report.waiting_for);
    member.fallback.clone_from(&report.fallback);
}
