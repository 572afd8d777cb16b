//! HTTP as providers use it: one pool of connections for all members of a process, and reading within bounds.
//!
//! HTTP/1.1 only: over one HTTP/2 connection a server decides how many teammates may ask at once. Redirects are not
//! followed, because they would carry a key elsewhere; compressed answers are not asked for, because a few bytes can become
//! any number of them.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections that are kept for the next request.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// How long a connection is kept.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// After so long without data the system asks whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long the end of an answer that is complete already is waited for, so that its connection can be used again.
const END_TIMEOUT: Duration = Duration::from_millis(100);
/// Pieces that are read while waiting for that end.
const PIECES_BEHIND_THE_END_MAX: usize = 8;

/// Why nothing more comes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Nothing came for so long.
    #[error("it sent nothing for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// The connection failed.
    #[error("{0}")]
    Failed(String),
}

/// The client for addresses like `url`: one for each of the four kinds, shared by the whole process. A server on this machine
/// is not looked for behind a proxy; others are, as `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` say.
///
/// # Errors
/// The system's certificates cannot be read, which `https` needs.
pub fn client(url: &Url) -> Result<Client, String> {
    static CLIENTS: [OnceLock<Result<Client, String>>; 4] = [const { OnceLock::new() }; 4];
    let (is_secure, is_here) = (url.scheme() == "https", is_loopback(url));
    let place = usize::from(is_secure) * 2 + usize::from(is_here);
    CLIENTS[place].get_or_init(|| build(is_secure, is_here)).clone()
}

fn build(is_secure: bool, is_here: bool) -> Result<Client, String> {
    // Another part of the program may have chosen already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("brigade/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
        .tcp_keepalive(KEEPALIVE);
    if is_here {
        builder = builder.no_proxy();
    }
    if !is_secure {
        // No certificate is looked at, so a system without any will do.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| format!("HTTPS cannot be used here: {}", describe(error)))
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What an error comes down to: its innermost cause, which names no address.
#[must_use]
pub fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Why a request got no answer: nobody was there, or hung up before it answered.
#[must_use]
pub fn unanswered(error: reqwest::Error) -> String {
    let what = if error.is_connect() { "cannot be reached" } else { "hung up before it answered" };
    format!("{what}: {}", describe(error))
}

/// The next piece of an answer; `None` at its end.
///
/// # Errors
/// See [`Broken`].
pub async fn next_piece(
    response: &mut Response,
    silence_timeout: Duration,
) -> Result<Option<impl AsRef<[u8]>>, Broken> {
    match tokio::time::timeout(silence_timeout, response.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => Err(Broken::Failed(describe(error))),
        Err(_) => Err(Broken::Silent(silence_timeout)),
    }
}

/// The beginning of an answer that is to be shown, at most `bytes_max` of it; what came before it broke.
pub async fn beginning(mut response: Response, silence_timeout: Duration, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < bytes_max
            && let Ok(Some(piece)) = next_piece(&mut response, silence_timeout).await
        {
            let piece = piece.as_ref();
            bytes.extend_from_slice(&piece[..piece.len().min(bytes_max - bytes.len())]);
        }
    };
    // One that trickles is cut off: what there is says enough.
    let _ = tokio::time::timeout(silence_timeout, read).await;
    bytes
}

/// Reads what stands behind a complete answer, so that its connection is free for the next request.
pub async fn to_the_end(mut response: Response) {
    let read = async {
        for _ in 0..PIECES_BEHIND_THE_END_MAX {
            if !matches!(response.chunk().await, Ok(Some(_))) {
                break;
            }
        }
    };
    // One that does not end costs its connection.
    let _ = tokio::time::timeout(END_TIMEOUT, read).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_here_are_known_by_name_and_address() {
        let is_here = |url: &str| is_loopback(&url.parse().unwrap());
        assert!(is_here("http://localhost:1/") && is_here("http://127.8.0.1/") && is_here("https://[::1]:2/"));
        assert!(!is_here("http://localhost.example.org/") && !is_here("https://10.0.0.1/"));
    }
}
