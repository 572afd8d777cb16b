//! Accounts of models, and their limits. All members with the same address and the same key use one account.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::digest::sha256;
use crate::domain::time::UnixMs;

/// The longest time that a limit holds. A provider that asks for more is asked again after it.
pub const LIMIT_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The identity of an account: a digest of its address and key, so that it can be the name of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccountId(Arc<str>);

impl AccountId {
    /// Returns the account with these parts, such as address and key.
    pub fn of(parts: &[&[u8]]) -> Self {
        Self(sha256(parts).into())
    }

    /// The digest in hexadecimal.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The account that a member uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its identity.
    pub id: AccountId,
    /// Its name for people.
    pub name: Arc<str>,
    /// True if other processes can use it too. Its limits are in a file then.
    pub is_shared: bool,
}

/// A limit of an account. No member sends a request before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountLimit {
    /// The time at which it ends.
    pub until: UnixMs,
    /// True if a quota is used up. Members then release their tasks. Otherwise they wait within their turns.
    #[serde(default, rename = "isQuota")]
    pub is_quota: bool,
    /// The time at which the account was found to have no credit, if it was. Members then do not wait for the end.
    #[serde(default, rename = "noCreditSince", skip_serializing_if = "Option::is_none")]
    pub no_credit_since: Option<UnixMs>,
}

impl AccountLimit {
    /// Returns the limit, which ends at most [`LIMIT_TIME_MAX`] from now.
    #[must_use]
    pub fn cut(self, now: UnixMs) -> Self {
        Self { until: self.until.min(now.plus(LIMIT_TIME_MAX)), ..self }
    }

    /// Returns true if it holds now. One that ends later than any limit can is invalid, and does not hold.
    pub fn holds(self, now: UnixMs) -> bool {
        self.until > now && self.until <= now.plus(LIMIT_TIME_MAX)
    }

    /// Returns true if members wait for its end, which is that of a quota window.
    pub fn is_window(self) -> bool {
        self.is_quota && self.no_credit_since.is_none()
    }

    /// Returns the limit after a later one. It holds as long as one of the two, but missing credit and a limit with an end replace each
    /// other: each shows that the other one does not hold now.
    #[must_use]
    pub fn followed_by(self, later: Self) -> Self {
        match (self.no_credit_since, later.no_credit_since) {
            (Some(_), None) | (None, Some(_)) => later,
            (one, two) => Self {
                until: self.until.max(later.until),
                is_quota: self.is_quota || later.is_quota,
                no_credit_since: one.max(two),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_differs_by_each_part() {
        let id = |parts: &[&[u8]]| AccountId::of(parts);
        assert_eq!(id(&[b"https://a", b"key"]), id(&[b"https://a", b"key"]));
        assert_ne!(id(&[b"https://a", b"key"]), id(&[b"https://a", b"other"]));
        assert_ne!(id(&[b"https://a", b"key"]), id(&[b"https://b", b"key"]));
        assert!(!id(&[b"https://a", b"key"]).as_str().contains("key"));
    }

    #[test]
    fn missing_credit_and_limit_replace_each_other() {
        let limit = |until, no_credit_since| AccountLimit { until: UnixMs(until), is_quota: true, no_credit_since };
        let (early, late) = (limit(10, Some(UnixMs(1))), limit(20, Some(UnixMs(2))));
        assert_eq!((early.followed_by(late), late.followed_by(early)), (late, late));
        let window = limit(5, None);
        assert_eq!((window.followed_by(late), late.followed_by(window)), (late, window));
        let rate = AccountLimit { is_quota: false, ..limit(30, None) };
        assert_eq!((window.followed_by(rate), rate.followed_by(window)), (limit(30, None), limit(30, None)));
        assert!(window.is_window() && !late.is_window());
        let text = serde_json::to_string(&window).unwrap();
        assert!(!text.contains("noCredit"), "{text}");
        assert_eq!(serde_json::from_str::<AccountLimit>(r#"{"until":5,"isQuota":true}"#).unwrap(), window);
    }

    #[test]
    fn limit_beyond_a_day_is_cut_or_invalid() {
        let now = UnixMs(1_000);
        let limit = |until| AccountLimit { until, is_quota: false, no_credit_since: None };
        assert!(limit(UnixMs(1_001)).holds(now) && !limit(now).holds(now) && !limit(UnixMs(i64::MIN)).holds(now));
        assert!(!limit(UnixMs(i64::MAX)).holds(now));
        assert_eq!(limit(UnixMs(i64::MAX)).cut(now), limit(now.plus(LIMIT_TIME_MAX)));
        assert!(limit(UnixMs(i64::MAX)).cut(now).holds(now));
    }
}
