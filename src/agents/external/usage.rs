//! The usage of an agent's process, each token counted once. Reports that cannot be true are found.

use super::protocol::ReportedUsage;
use crate::domain::agent::transcript::Usage;
use crate::domain::team::budget::{EXTERNAL_PROMPT_TOKENS_MAX, EXTERNAL_REQUEST_TOKENS_MAX, UsageFault, is_below_text};

/// Compares the usage of the requests that an agent reported one by one with the usage that it reports after its prompts.
#[derive(Debug, Default)]
pub(super) struct UsageCounter {
    /// The usage that was counted since the start of the process.
    counted: Usage,
    /// The usage that was counted since the last report.
    counted_since_report: Usage,
    /// The usage of the session at the start of the process; `None` until that is known.
    session_at_start: Option<Usage>,
    /// The bytes of the last prompt. Each request until the next prompt has them.
    prompt_bytes: u64,
    /// True if a request ended since the last prompt.
    has_request: bool,
}

impl UsageCounter {
    /// Records that the agent gets a prompt of this many bytes.
    pub fn record_prompt(&mut self, bytes: usize) {
        self.prompt_bytes = bytes as u64;
        self.has_request = false;
    }

    /// Returns the reason why a request since the last prompt cannot have used this.
    pub fn request_fault(&self, usage: Usage) -> Option<UsageFault> {
        let input_tokens = usage.total_input();
        if usage.total() > EXTERNAL_REQUEST_TOKENS_MAX {
            return Some(UsageFault::AboveRequest);
        }
        (input_tokens == 0 || is_below_text(input_tokens, self.prompt_bytes)).then_some(UsageFault::BelowText)
    }

    /// Returns the reason why requests without events cannot have used this. `has_answer` is true if the agent answered the prompt.
    pub fn rest_fault(&self, rest: Usage, has_answer: bool) -> Option<UsageFault> {
        if rest.total() > EXTERNAL_PROMPT_TOKENS_MAX {
            return Some(UsageFault::AboveRequest);
        }
        if has_answer && !self.has_request { self.request_fault(rest) } else { None }
    }

    /// Counts a request.
    pub fn record_request(&mut self, usage: Usage) {
        self.has_request = true;
        self.counted = self.counted.plus(usage);
        self.counted_since_report = self.counted_since_report.plus(usage);
    }

    /// Returns true if this report shows the usage that was not counted. The first total of a session shows only its start.
    pub fn shows_uncounted(&self, reported: ReportedUsage) -> bool {
        !matches!(reported, ReportedUsage::OfSession(_)) || self.session_at_start.is_some()
    }

    /// Returns the reported usage that was not counted yet: that of requests without events. Counts it.
    pub fn take_uncounted(&mut self, reported: ReportedUsage) -> Usage {
        let uncounted = match reported {
            ReportedUsage::SinceReport(usage) => usage.minus(self.counted_since_report),
            ReportedUsage::SinceStart(usage) => usage.minus(self.counted),
            ReportedUsage::OfSession(usage) => {
                let at_start = *self.session_at_start.get_or_insert_with(|| usage.minus(self.counted));
                usage.minus(at_start.plus(self.counted))
            }
        };
        self.counted = self.counted.plus(uncounted);
        self.counted_since_report = Usage::default();
        uncounted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(input_tokens: u64, output_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens, ..Usage::default() }
    }

    #[test]
    fn unreported_request_is_counted_once() {
        let mut counter = UsageCounter::default();
        counter.record_request(tokens(100, 20));
        let reported = ReportedUsage::SinceStart(tokens(130, 25));
        assert!(counter.shows_uncounted(reported));
        assert_eq!(counter.take_uncounted(reported), tokens(30, 5));
        assert_eq!(counter.take_uncounted(reported), tokens(0, 0));
    }

    #[test]
    fn total_of_earlier_processes_is_not_counted_again() {
        let mut counter = UsageCounter::default();
        counter.record_request(tokens(100, 20));
        let reported = ReportedUsage::OfSession(tokens(1_100, 220));
        assert!(!counter.shows_uncounted(reported));
        assert_eq!(counter.take_uncounted(reported), tokens(0, 0));
        counter.record_request(tokens(10, 2));
        assert_eq!(counter.take_uncounted(ReportedUsage::OfSession(tokens(1_117, 222))), tokens(7, 0));
    }

    #[test]
    fn usage_since_report_is_counted_after_each_report() {
        let mut counter = UsageCounter::default();
        for _ in 0..2 {
            counter.record_request(tokens(100, 20));
            let reported = ReportedUsage::SinceReport(tokens(130, 25));
            assert!(counter.shows_uncounted(reported));
            assert_eq!(counter.take_uncounted(reported), tokens(30, 5));
        }
    }

    #[test]
    fn smaller_total_after_kill_counts_nothing() {
        let mut counter = UsageCounter::default();
        counter.record_request(tokens(100, 20));
        assert_eq!(counter.take_uncounted(ReportedUsage::OfSession(tokens(40, 5))), tokens(0, 0));
    }

    #[test]
    fn impossible_reports_are_found() {
        let mut counter = UsageCounter::default();
        counter.record_prompt(4_000);
        assert_eq!(counter.request_fault(tokens(200, 1)), None);
        for low in [tokens(0, 90), tokens(199, 90)] {
            assert_eq!(counter.request_fault(low), Some(UsageFault::BelowText), "{low:?}");
        }
        let absurd = tokens(1_000_000_000_000_000_000, 5);
        assert_eq!(counter.request_fault(absurd), Some(UsageFault::AboveRequest));
        assert_eq!(counter.rest_fault(absurd, false), Some(UsageFault::AboveRequest));
        assert_eq!(counter.rest_fault(tokens(0, 0), true), Some(UsageFault::BelowText), "no request, but an answer");
        assert_eq!(counter.rest_fault(tokens(0, 0), false), None);
        counter.record_request(tokens(200, 1));
        assert_eq!(counter.rest_fault(tokens(0, 0), true), None, "the request is counted");
    }
}
