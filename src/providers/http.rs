//! HTTP for providers: one connection pool for all members of a process, and bounded reads.
//!
//! HTTP/1.1 only: on one HTTP/2 connection the server limits the parallel requests of all teammates. Redirects are not followed,
//! because they would send a key to another server. Compressed answers are not requested, because a few bytes can expand
//! without bound.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::redirect::Policy;
use reqwest::{Client, Request, Response, Url};

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The most idle connections in the pool, for each host.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// The time that an idle connection is kept. Some servers close one after five seconds.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// The time without data until the system sends TCP keep-alive probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The longest wait for the end of the response after a complete answer. Then its connection can be used again.
const END_TIMEOUT: Duration = Duration::from_millis(100);
/// The most chunks that are read during that wait.
const TRAILING_CHUNKS_MAX: usize = 8;

/// The client for `url`. The process shares four: for HTTP or HTTPS, and for loopback or other servers. Only other servers use
/// the proxy of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
///
/// # Errors
/// The system's certificates, which HTTPS needs, cannot be read.
pub fn client(url: &Url) -> Result<Client, String> {
    static CLIENTS: [OnceLock<Result<Client, String>>; 4] = [const { OnceLock::new() }; 4];
    let (is_secure, is_local) = (url.scheme() == "https", is_loopback(url));
    CLIENTS[usize::from(is_secure) * 2 + usize::from(is_local)].get_or_init(|| build(is_secure, is_local)).clone()
}

/// The servers that have answered this process.
static ANSWERED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Returns true if the server of `url` has answered this process, whatever the answer.
pub fn has_answered(url: &Url) -> bool {
    ANSWERED.lock().contains(url.authority())
}

/// Sends a request.
///
/// # Errors
/// There is no answer.
pub async fn send(client: &Client, request: Request) -> Result<Response, reqwest::Error> {
    let server = request.url().authority().to_owned();
    let response = client.execute(request).await?;
    ANSWERED.lock().insert(server);
    Ok(response)
}

fn build(is_secure: bool, is_local: bool) -> Result<Client, String> {
    // Another part of the program can have installed a provider already, which works too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("brigade/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
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

/// The reason why a request ends without data for this time.
pub fn silent(timeout: Duration) -> String {
    format!("sent nothing for {} s", timeout.as_secs_f32())
}

/// Reads the next chunk of an answer; `None` at its end.
///
/// # Errors
/// A text for people: no data arrived for this time, or the connection failed.
pub async fn next_piece(
    response: &mut Response,
    silence_timeout: Duration,
) -> Result<Option<impl AsRef<[u8]>>, String> {
    match tokio::time::timeout(silence_timeout, response.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => Err(format!("lost the connection: {}", describe(error))),
        Err(_) => Err(silent(silence_timeout)),
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
