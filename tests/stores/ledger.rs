//! The ledger: what was recorded counts after any death, once, and the file stays small.

use std::fs;
use std::sync::Arc;

use brigade::domain::spend::{Account, LedgerEntry, LedgerLine};
use brigade::domain::time::UnixMs;
use brigade::domain::transcript::Usage;
use brigade::ports::Ledger;
use brigade::stores::file::ledger::FileLedger;
use brigade::stores::fs::dying::{DyingFileSystem, Fate};

use crate::support::{real, worlds};

fn account() -> Account {
    Account { team: "crew".into(), teammate: "alice".into(), model: "m".into() }
}

fn usage(input_tokens: u64) -> Usage {
    Usage { input_tokens, ..Usage::default() }
}

/// A request of this number is sent, which can use 1,000 tokens, and over, having used its number.
fn request(request: u64) -> [LedgerLine; 2] {
    let sent = LedgerEntry::Sent { request, account: account(), usage: usage(1_000) };
    let ended = LedgerEntry::Ended { request, account: account(), usage: usage(request), confirmed: true };
    [LedgerLine::new(UnixMs(1), sent), LedgerLine::new(UnixMs(2), ended)]
}

async fn used(ledger: &dyn Ledger) -> (u64, u64) {
    let mut book = ledger.read().await.unwrap();
    book.close_open();
    book.spent().get(&account()).map_or((0, 0), |spend| (spend.usage.total(), spend.requests))
}

#[tokio::test]
async fn what_was_appended_is_counted_in_every_store() {
    for world in worlds().await {
        let ledger = &world.stores.ledger;
        assert_eq!(used(ledger.as_ref()).await, (0, 0), "{}", world.kind);
        let [sent, ended] = request(7);
        ledger.append(vec![sent.clone()]).await.unwrap();
        assert_eq!(used(ledger.as_ref()).await, (1_000, 1), "{}", world.kind);
        ledger.append(vec![ended]).await.unwrap();
        assert_eq!(used(ledger.as_ref()).await, (7, 1), "{}", world.kind);
        let reset = LedgerEntry::Reset { team: "crew".into() };
        ledger.append(vec![LedgerLine::new(UnixMs(3), reset), sent]).await.unwrap();
        assert_eq!(used(ledger.as_ref()).await, (1_000, 1), "{}", world.kind);
    }
}

#[tokio::test]
async fn a_ledger_that_has_grown_large_is_folded_and_comes_to_the_same() {
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
async fn a_process_killed_at_any_call_loses_and_doubles_no_request() {
    let fates = |call| [Fate::DiesAt(call), Fate::DiesInside(call), Fate::DiskFullFrom(call), Fate::FailsAt(call)];
    for fate in (1..36).flat_map(fates) {
        let folder = tempfile::tempdir().unwrap();
        let team = folder.path().join(".team");
        fs::create_dir(&team).unwrap();
        let dying = FileLedger::with_bytes(Arc::new(DyingFileSystem::new(real(), fate)), &team, 700);
        let (mut accepted, mut tried) = (0, 0);
        for number in 1..=12 {
            for line in request(number) {
                tried += 1;
                match dying.append(vec![line.clone()]).await {
                    Ok(()) => accepted += 1,
                    // A disk that has room again: what was cut off is written once, by the next append.
                    Err(_) if matches!(fate, Fate::FailsAt(_)) => dying.append(vec![line]).await.unwrap(),
                    Err(_) => {}
                }
            }
        }
        let next = FileLedger::with_bytes(real(), &team, 700);
        next.append(request(100).to_vec()).await.unwrap();
        let (tokens, requests) = used(&next).await;
        if matches!(fate, Fate::FailsAt(_)) || accepted == tried {
            assert_eq!((tokens, requests), (78 + 100, 13), "{fate:?}");
        } else {
            // Lines go in pairs, so this many requests were accepted wholly; one more may be there with the most it can use.
            let whole = accepted / 2;
            let least = whole * (whole + 1) / 2 + 100;
            assert!((least..=least + 1_000).contains(&tokens), "{fate:?}: {tokens} tokens, {accepted} lines accepted");
            assert!((whole + 1..=whole + 2).contains(&requests), "{fate:?}: {requests} requests");
        }
    }
}
