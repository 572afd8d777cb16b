//! The next steps of a person after git refuses something.

use std::fmt;

use crate::domain::task::TaskId;

/// The next steps. As text they are for logs; a front end writes their commands in its own form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy(pub Vec<RemedyStep>);

/// One of the next steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemedyStep {
    /// A step outside of Brigade.
    Outside(String),
    /// A launch of this team creates the branch.
    Launch(String),
    /// The person takes the branch over.
    TakeOver,
    /// If the person's branch has the work of this team already, in another form, the person records it.
    RecordTaken(String),
    /// The commits of these tasks do not exist any more, so the person has them done again.
    Reopen(Vec<TaskId>),
}

impl From<String> for Remedy {
    fn from(step: String) -> Self {
        Self(vec![RemedyStep::Outside(step)])
    }
}

impl From<&str> for Remedy {
    fn from(step: &str) -> Self {
        step.to_owned().into()
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            match step {
                RemedyStep::Outside(step) => f.write_str(step)?,
                RemedyStep::Launch(_) => f.write_str("`brigade run` creates it from your branch")?,
                RemedyStep::TakeOver => f.write_str("`brigade merge` takes it over")?,
                RemedyStep::RecordTaken(team) => {
                    write!(f, "if your branch has this work already, in another form: `brigade merge --taken {team}`")?;
                }
                RemedyStep::Reopen(tasks) => {
                    f.write_str("the commits of some do not exist any more: `brigade tasks reopen")?;
                    tasks.iter().try_for_each(|task| write!(f, " {}", task.0))?;
                    f.write_str("`")?;
                }
            }
        }
        Ok(())
    }
}
