//! The limits of one attempt of an agent: what it leaves in the transcript, on the board, in the mail and in the event log.
//!
//! Harness code counts, so a text of the agent changes nothing. At a limit of its records, the attempt fails. At a limit of its tasks
//! and messages, the tool call is refused. Work without a task, such as the answer to mail, counts as an attempt of its own.

use parking_lot::Mutex;

use crate::domain::team::phase::ClaimRef;

/// The most records. A tool call makes about eight: two in the transcript, the others in the event log. So 25,000 calls fit.
pub const RECORDS_MAX: u32 = 200_000;
/// The most bytes of its texts, calls and results. A day of work has at most some ten megabytes of new text, because an agent reads and
/// writes it in a context of about one megabyte. Four such attempts fit into a transcript that can be read again.
pub const RECORDS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest text, call or result, in bytes: as long as the longest answer of a model.
pub const RECORD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The most tasks that it creates. A larger plan belongs into a plan file.
pub const TASKS_MAX: u32 = 500;
/// The most messages that it sends. Each inbox has a limit of its own.
pub const MESSAGES_MAX: u32 = 1_000;
/// The number of times that its program ends by itself.
pub const PROGRAM_ENDS_MAX: u32 = 10;

/// The limit of an attempt that was reached. The text is for people and models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttemptLimit {
    /// It made too many records.
    #[error("its agent made more than {RECORDS_MAX} records, which is the limit of one attempt")]
    Records,
    /// Its records are too long.
    #[error(
        "its agent's texts, calls and results have more than {RECORDS_BYTES_MAX} bytes, which is the limit of one attempt"
    )]
    RecordsBytes,
    /// One record is too long.
    #[error("its agent made a text, call or result of {0} bytes, and {RECORD_BYTES_MAX} is the limit")]
    RecordBytes(usize),
    /// A line of its program passed a limit.
    #[error("{0}, which is the limit")]
    Line(String),
    /// Its program ended too often.
    #[error("its agent's program ended by itself {PROGRAM_ENDS_MAX} times, which is the limit of one attempt: {0}")]
    ProgramEnds(String),
    /// It created too many tasks.
    #[error(
        "an attempt creates at most {TASKS_MAX} tasks, and yours has reached that; do the work in one of the tasks that exist, or tell the lead"
    )]
    Tasks,
    /// It sent too many messages.
    #[error(
        "an attempt sends at most {MESSAGES_MAX} messages, and yours has reached that; write the rest into the result of your task"
    )]
    Messages,
}

/// The counts of a member's current attempt. Each attempt has its own.
#[derive(Debug, Default)]
pub struct AttemptQuota(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    claim: Option<ClaimRef>,
    records: u32,
    records_bytes: usize,
    tasks: u32,
    messages: u32,
    program_ends: u32,
    /// The limit at which the attempt fails.
    passed: Option<AttemptLimit>,
}

impl AttemptQuota {
    /// Reads or changes the counts of the attempt of this claim; `None` is the work without a task.
    fn with<R>(&self, claim: Option<ClaimRef>, act: impl FnOnce(&mut Counts) -> R) -> R {
        let mut counts = self.0.lock();
        if counts.claim != claim {
            *counts = Counts { claim, ..Counts::default() };
        }
        act(&mut counts)
    }

    /// Starts new counts for work without a task.
    pub fn begin_without_task(&self) {
        *self.0.lock() = Counts::default();
    }

    /// Counts a record of this length.
    ///
    /// # Errors
    /// The limit that it passes. The attempt fails, and the record need not be made.
    pub fn add_record(&self, claim: Option<ClaimRef>, bytes: usize) -> Result<(), AttemptLimit> {
        let limit = self.with(claim, |counts| {
            counts.records = counts.records.saturating_add(1);
            counts.records_bytes = counts.records_bytes.saturating_add(bytes);
            if bytes > RECORD_BYTES_MAX {
                Some(AttemptLimit::RecordBytes(bytes))
            } else if counts.records > RECORDS_MAX {
                Some(AttemptLimit::Records)
            } else if counts.records_bytes > RECORDS_BYTES_MAX {
                Some(AttemptLimit::RecordsBytes)
            } else {
                None
            }
        });
        limit.map_or(Ok(()), |limit| {
            self.fail(claim, limit.clone());
            Err(limit)
        })
    }

    /// Counts an end of the agent's program by itself, for this reason. Returns the limit if it is reached. The attempt fails then.
    pub fn add_program_end(&self, claim: Option<ClaimRef>, reason: &str) -> Option<AttemptLimit> {
        let is_limit = self.with(claim, |counts| {
            counts.program_ends += 1;
            counts.program_ends >= PROGRAM_ENDS_MAX
        });
        is_limit.then(|| AttemptLimit::ProgramEnds(reason.to_owned()))
    }

    /// Lets the attempt fail at this limit, unless it has passed another one before.
    pub fn fail(&self, claim: Option<ClaimRef>, limit: AttemptLimit) {
        self.with(claim, |counts| {
            counts.passed.get_or_insert(limit);
        });
    }

    /// Returns the limit at which the attempt fails.
    pub fn passed(&self, claim: Option<ClaimRef>) -> Option<AttemptLimit> {
        self.with(claim, |counts| counts.passed.clone())
    }

    /// Counts a task that it is about to create.
    ///
    /// # Errors
    /// The limit. No task may be created.
    pub fn add_task(&self, claim: Option<ClaimRef>) -> Result<(), AttemptLimit> {
        self.with(claim, |counts| count_up(&mut counts.tasks, TASKS_MAX, AttemptLimit::Tasks))
    }

    /// Counts a message that it is about to send.
    ///
    /// # Errors
    /// The limit. No message may be sent.
    pub fn add_message(&self, claim: Option<ClaimRef>) -> Result<(), AttemptLimit> {
        self.with(claim, |counts| count_up(&mut counts.messages, MESSAGES_MAX, AttemptLimit::Messages))
    }
}

fn count_up(count: &mut u32, max: u32, limit: AttemptLimit) -> Result<(), AttemptLimit> {
    if *count >= max {
        return Err(limit);
    }
    *count += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;

    const CLAIM: Option<ClaimRef> = Some(ClaimRef { task: TaskId(1), attempt: 1 });

    #[test]
    fn attempt_fails_at_each_limit_of_its_records() {
        let quota = AttemptQuota::default();
        assert_eq!(quota.add_record(CLAIM, RECORD_BYTES_MAX), Ok(()));
        let long = AttemptLimit::RecordBytes(RECORD_BYTES_MAX + 1);
        assert_eq!(quota.add_record(CLAIM, RECORD_BYTES_MAX + 1), Err(long.clone()));
        assert_eq!(quota.passed(CLAIM), Some(long));
        assert_eq!(quota.passed(None), None, "another attempt");
        let count = (0..).take_while(|_| quota.add_record(CLAIM, 1024 * 1024).is_ok()).count();
        assert_eq!((count * 1024 * 1024, quota.passed(CLAIM)), (RECORDS_BYTES_MAX, Some(AttemptLimit::RecordsBytes)));
        quota.begin_without_task();
        let count = (0..).take_while(|_| quota.add_record(None, 1).is_ok()).count();
        assert_eq!((count, quota.passed(None)), (RECORDS_MAX as usize, Some(AttemptLimit::Records)));
        quota.begin_without_task();
        assert_eq!(quota.passed(None), None);
    }

    #[test]
    fn tasks_and_messages_are_refused_at_limit() {
        let quota = AttemptQuota::default();
        assert!((0..TASKS_MAX).all(|_| quota.add_task(CLAIM).is_ok()));
        assert!((0..MESSAGES_MAX).all(|_| quota.add_message(CLAIM).is_ok()));
        assert_eq!(quota.add_task(CLAIM), Err(AttemptLimit::Tasks));
        assert_eq!(quota.add_message(CLAIM), Err(AttemptLimit::Messages));
        assert_eq!(quota.passed(CLAIM), None, "the attempt goes on");
        let next = Some(ClaimRef { task: TaskId(1), attempt: 2 });
        assert_eq!((quota.add_task(next), quota.add_message(next)), (Ok(()), Ok(())));
    }
}
