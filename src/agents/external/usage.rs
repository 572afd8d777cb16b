//! The usage of an agent's process, each token counted once.

use super::protocol::ReportedUsage;
use crate::domain::transcript::Usage;

/// Compares the usage of the requests that an agent reported one by one with the usage that it reports after its prompts.
#[derive(Debug, Default)]
pub(super) struct UsageCounter {
    /// The usage that was counted since the start of the process.
    counted: Usage,
    /// The usage that was counted since the last report.
    counted_since_report: Usage,
    /// The usage of the session at the start of the process; `None` until that is known.
    session_at_start: Option<Usage>,
}

impl UsageCounter {
    /// Counts a request.
    pub fn record_request(&mut self, usage: Usage) {
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
}
