//! Retries a merge while another program writes the file.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use super::{CurrentContent, ExchangeFile, MergeResult, SETTLE_TIME};
use crate::ports::StoreResult;
use crate::stores::file::{blocking, failed};

/// The time after which a call gives up while another program writes the file.
const UNSETTLED_TIME_MAX: Duration = Duration::from_secs(10);
/// The wait before a file that is being written is read again.
const RETRY_TIME: Duration = Duration::from_millis(10);

/// Reads the file. Replaces a file that stays invalid by the content that `repair` returns for it. A process that only reads returns
/// [`MergeResult::Unsettled`] in its place.
///
/// # Errors
/// [`crate::ports::StoreError::Io`].
pub async fn read_or_repair(
    file: &ExchangeFile,
    mut repair: impl FnMut(CurrentContent<'_>) -> Option<String> + Send,
) -> StoreResult<MergeResult> {
    let started_at = Instant::now();
    loop {
        match blocking(|| file.read()).await? {
            MergeResult::Unsettled if !file.is_read_only() => break,
            MergeResult::Unsettled if started_at.elapsed() < SETTLE_TIME => tokio::time::sleep(RETRY_TIME).await,
            settled => return Ok(settled),
        }
    }
    let repair = |base: CurrentContent<'_>| match base {
        CurrentContent::Invalid { .. } => repair(base),
        CurrentContent::Missing | CurrentContent::Valid(_) => None,
    };
    Ok(merge_with_retry(file, None, repair).await?.map_or(MergeResult::Missing, MergeResult::Content))
}

/// Merges, and retries while another program writes the file, for at most `UNSETTLED_TIME_MAX`.
///
/// # Errors
/// [`crate::ports::StoreError::Io`], also if the writes do not pause in that time.
pub async fn merge_with_retry(
    file: &ExchangeFile,
    own_change_ns: Option<i128>,
    mut update: impl FnMut(CurrentContent<'_>) -> Option<String> + Send,
) -> StoreResult<Option<Vec<u8>>> {
    let started_at = Instant::now();
    loop {
        match blocking(|| file.merge(own_change_ns, &mut update)).await? {
            MergeResult::Content(bytes) => return Ok(Some(bytes)),
            MergeResult::Missing => return Ok(None),
            MergeResult::Unsettled if started_at.elapsed() > UNSETTLED_TIME_MAX => {
                let error = io::Error::new(io::ErrorKind::TimedOut, "another program writes it without pause");
                return Err(failed("merge into", &file.path())(error));
            }
            MergeResult::Unsettled => tokio::time::sleep(RETRY_TIME).await,
        }
    }
}
