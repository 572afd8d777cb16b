//! The ledger: recorded usage counts once after any crash, and the file stays small.

use std::fs;
use std::sync::Arc;

use brigade::domain::agent::transcript::Usage;
use brigade::domain::team::budget::{LedgerEntry, LedgerRecord, UsageKey};
use brigade::domain::time::UnixMs;
use brigade::ports::Ledger;
use brigade::stores::file::ledger::FileLedger;

use crate::stores::support::{real, store_fixtures};
use crate::testkit::fault_injection::{CallFault, FaultyFileSystem};

fn account() -> UsageKey {
    UsageKey { team: "crew".into(), teammate: "alice".into(), model: "m".into(), task: None }
}

fn usage(input_tokens: u64) -> Usage {
    Usage { input_tokens, ..Usage::default() }
}

/// The start and end of request number `request`, which can use 1,000 tokens and used as many as its number.
fn request(request: u64) -> [LedgerRecord; 2] {
    let sent = LedgerEntry::Sent { request, account: account(), usage: usage(1_000) };
    let ended = LedgerEntry::Ended { request, account: account(), usage: usage(request), confirmed: true };
    [LedgerRecord::new(UnixMs(1), sent), LedgerRecord::new(UnixMs(2), ended)]
}

async fn used(ledger: &dyn Ledger) -> (u64, u64) {
    let mut book = ledger.read().await.unwrap();
    book.settle_open_requests();
    book.spent().get(&account()).map_or((0, 0), |spend| (spend.usage.total(), spend.requests))
}

#[tokio::test]
async fn ledger_counts_appended_requests_in_every_store() {
    for fixture in store_fixtures().await {
        let ledger = &fixture.stores.ledger;
        assert_eq!(used(ledger.as_ref()).await, (0, 0), "{}", fixture.kind);
        let [sent, ended] = request(7);
        ledger.append(vec![sent.clone()]).await.unwrap();
        assert_eq!(used(ledger.as_ref()).await, (1_000, 1), "{}", fixture.kind);
        ledger.append(vec![ended]).await.unwrap();
        assert_eq!(used(ledger.as_ref()).await, (7, 1), "{}", fixture.kind);
        let reset = LedgerEntry::Reset { team: "crew".into() };
        ledger.append(vec![LedgerRecord::new(UnixMs(3), reset), sent]).await.unwrap();
        assert_eq!(used(ledger.as_ref()).await, (1_000, 1), "{}", fixture.kind);
    }
}

#[tokio::test]
async fn large_ledger_is_folded_with_same_totals() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = FileLedger::with_bytes(real(), folder.path(), 4_096);
    for number in 1..=500 {
        ledger.append(request(number).to_vec()).await.unwrap();
    }
    assert_eq!(used(&ledger).await, (500 * 501 / 2, 500));
    let bytes = fs::metadata(folder.path().join("ledger.jsonl")).unwrap().len();
    assert!(bytes < 2 * 4_096 + 1_024, "{bytes}");
    let reopened = FileLedger::with_bytes(real(), folder.path(), 4_096);
    reopened.append(request(1_000).to_vec()).await.unwrap();
    assert_eq!(used(&reopened).await, (500 * 501 / 2 + 1_000, 501));
}

#[tokio::test]
async fn kill_at_any_call_counts_ledger_requests_once() {
    let fates = |call| {
        [
            CallFault::CrashBefore(call),
            CallFault::CrashDuring(call),
            CallFault::DiskFullFrom(call),
            CallFault::FailsAt(call),
        ]
    };
    for fate in (1..36).flat_map(fates) {
        let folder = tempfile::tempdir().unwrap();
        let team = folder.path().join(".team");
        fs::create_dir(&team).unwrap();
        let dying = FileLedger::with_bytes(Arc::new(FaultyFileSystem::new(real(), fate)), &team, 700);
        let (mut accepted, mut tried) = (0, 0);
        for number in 1..=12 {
            for line in request(number) {
                tried += 1;
                match dying.append(vec![line.clone()]).await {
                    Ok(()) => accepted += 1,
                    // The disk has room again: the next append writes the truncated line once.
                    Err(_) if matches!(fate, CallFault::FailsAt(_)) => dying.append(vec![line]).await.unwrap(),
                    Err(_) => {}
                }
            }
        }
        let next = FileLedger::with_bytes(real(), &team, 700);
        next.append(request(100).to_vec()).await.unwrap();
        let (tokens, requests) = used(&next).await;
        if matches!(fate, CallFault::FailsAt(_)) || accepted == tried {
            assert_eq!((tokens, requests), (78 + 100, 13), "{fate:?}");
        } else {
            // Lines are written in pairs, so this many requests were fully accepted; one more may be there with its
            // upper limit.
            let whole = accepted / 2;
            let least = whole * (whole + 1) / 2 + 100;
            assert!((least..=least + 1_000).contains(&tokens), "{fate:?}: {tokens} tokens, {accepted} lines accepted");
            assert!((whole + 1..=whole + 2).contains(&requests), "{fate:?}: {requests} requests");
        }
    }
}
