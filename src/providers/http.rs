//! HTTP for providers: one connection pool for all members of a process, and bounded reads.
//!
//! HTTP/1.1 only: on one HTTP/2 connection the server limits the parallel requests of all teammates. Redirects are not followed,
//! because they would send a key to another server. Compressed answers are not requested, because a few bytes can expand
//! without bound.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use reqwest::redirect::Policy;
use reqwest::{Client, Request, Response, Url};

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The most idle connections in the pool, for each host.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// The time that an idle connection is kept.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time after which a request on a connection that the server has closed fails. A later failure can be that of a server
/// that worked on the request.
const STALE_TIME_MAX: Duration = Duration::from_secs(1);
/// The time without data until the system sends TCP keep-alive probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The longest wait for the end of the response after a complete answer. Then its connection can be used again.
const END_TIMEOUT: Duration = Duration::from_millis(100);
/// The most chunks that are read during that wait.
const TRAILING_CHUNKS_MAX: usize = 8;

/// The reason why a response ended early.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No data arrived for this time.
    #[error("it sent nothing for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// The connection failed.
    #[error("{0}")]
    Failed(String),
}

/// The client for `url`. The process shares four: for HTTP or HTTPS, and for loopback or other servers. Only other servers use
/// the proxy of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
///
/// # Errors
/// The system's certificates, which HTTPS needs, cannot be read.
pub fn client(url: &Url) -> Result<Client, String> {
    shared_client(url, true)
}

/// Returns a client whose requests share a pool of connections, or each have a fresh one.
fn shared_client(url: &Url, is_pooled: bool) -> Result<Client, String> {
    static CLIENTS: [OnceLock<Result<Client, String>>; 8] = [const { OnceLock::new() }; 8];
    let (is_secure, is_local) = (url.scheme() == "https", is_loopback(url));
    let index = usize::from(is_pooled) * 4 + usize::from(is_secure) * 2 + usize::from(is_local);
    CLIENTS[index].get_or_init(|| build(is_secure, is_local, is_pooled)).clone()
}

/// A server that has answered this process.
#[derive(Debug, Clone, Copy, Default)]
struct KnownServer {
    /// The last time at which it closed a connection of the pool that carried a request.
    closed_at: Option<Instant>,
}

/// Returns the servers that have answered this process.
fn known_servers() -> MutexGuard<'static, BTreeMap<String, KnownServer>> {
    static SERVERS: Mutex<BTreeMap<String, KnownServer>> = Mutex::new(BTreeMap::new());
    SERVERS.lock()
}

/// Returns true if the server of `url` has answered this process, whatever the answer.
pub fn has_answered(url: &Url) -> bool {
    known_servers().contains_key(url.authority())
}

/// The reason why a request has no answer.
#[derive(Debug)]
pub enum SendError {
    /// Its connection of the pool was closed at once, most likely before the server saw the request. Sending it again can help.
    Lost(reqwest::Error),
    /// Another reason.
    Failed(reqwest::Error),
}

/// Sends a request once. After the server has closed a connection of the pool, requests get fresh ones for a time: it can have closed
/// the others too.
///
/// # Errors
/// There is no answer.
pub async fn send_once(client: &Client, request: Request) -> Result<Response, SendError> {
    let url = request.url().clone();
    let known = known_servers().get(url.authority()).copied();
    let has_closed = known.and_then(|server| server.closed_at).is_some_and(|at| at.elapsed() < IDLE_CONNECTION_TIMEOUT);
    let fresh = if has_closed { shared_client(&url, false).ok() } else { None };
    let started = Instant::now();
    match fresh.as_ref().unwrap_or(client).execute(request).await {
        Ok(response) => {
            known_servers().entry(url.authority().to_owned()).or_default();
            Ok(response)
        }
        // Only a server that has answered can have a connection in the pool.
        Err(error)
            if known.is_some() && fresh.is_none() && is_closed(&error) && started.elapsed() <= STALE_TIME_MAX =>
        {
            known_servers().entry(url.authority().to_owned()).or_default().closed_at = Some(Instant::now());
            Err(SendError::Lost(error))
        }
        Err(error) => Err(SendError::Failed(error)),
    }
}

/// Sends a request, and once more if it was lost.
///
/// # Errors
/// There is no answer.
pub async fn send(client: &Client, request: Request) -> Result<Response, reqwest::Error> {
    let again = request.try_clone();
    let error = match send_once(client, request).await {
        Ok(response) => return Ok(response),
        Err(SendError::Failed(error)) => return Err(error),
        Err(SendError::Lost(error)) => error,
    };
    let Some(request) = again else { return Err(error) };
    send_once(client, request).await.map_err(|(SendError::Lost(error) | SendError::Failed(error))| error)
}

/// Returns true if the connection was closed before the answer. It was there before: connecting did not fail.
fn is_closed(error: &reqwest::Error) -> bool {
    error.is_request() && !error.is_connect() && !error.is_timeout()
}

fn build(is_secure: bool, is_local: bool, is_pooled: bool) -> Result<Client, String> {
    // Another part of the program can have installed a provider already, which works too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("brigade/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(if is_pooled { IDLE_CONNECTIONS_MAX } else { 0 })
        .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
        .tcp_keepalive(KEEPALIVE);
    if is_local {
        builder = builder.no_proxy();
    }
    if !is_secure {
        // No certificate is checked, so the system needs none.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| format!("cannot use HTTPS: {}", describe(error)))
}

/// Returns true for an address on this machine.
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The innermost cause of an error. It names no address.
pub fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// The reason why a request got no answer: no connection, or the connection closed before the answer.
pub fn no_answer_reason(error: reqwest::Error) -> String {
    let problem = if error.is_connect() { "cannot be reached" } else { "closed the connection before it answered" };
    format!("{problem}: {}", describe(error))
}

/// Reads the next chunk of an answer; `None` at its end.
///
/// # Errors
/// See [`TransportError`].
pub async fn next_piece(
    response: &mut Response,
    silence_timeout: Duration,
) -> Result<Option<impl AsRef<[u8]>>, TransportError> {
    match tokio::time::timeout(silence_timeout, response.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => Err(TransportError::Failed(describe(error))),
        Err(_) => Err(TransportError::Silent(silence_timeout)),
    }
}

/// Reads the first `bytes_max` bytes of an answer, or less if it ends or fails before.
pub async fn read_beginning(mut response: Response, silence_timeout: Duration, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < bytes_max
            && let Ok(Some(piece)) = next_piece(&mut response, silence_timeout).await
        {
            let piece = piece.as_ref();
            bytes.extend_from_slice(&piece[..piece.len().min(bytes_max - bytes.len())]);
        }
    };
    // The timeout cuts a slow answer: its beginning is enough.
    let _ = tokio::time::timeout(silence_timeout, read).await;
    bytes
}

/// Reads the end of the response after a complete answer, so that the next request can use its connection.
pub async fn read_to_end(mut response: Response) {
    let read = async {
        for _ in 0..TRAILING_CHUNKS_MAX {
            if !matches!(response.chunk().await, Ok(Some(_))) {
                break;
            }
        }
    };
    // If the response does not end, its connection is closed.
    let _ = tokio::time::timeout(END_TIMEOUT, read).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_server_is_recognised() {
        let is_local = |url: &str| is_loopback(&url.parse().unwrap());
        assert!(is_local("http://localhost:1/") && is_local("http://127.8.0.1/") && is_local("https://[::1]:2/"));
        assert!(!is_local("http://localhost.example.org/") && !is_local("https://10.0.0.1/"));
    }
}
