//! `brigade mcp` in a member's sandbox, where the board cannot be written: forwards the client to the lead.

use std::path::Path;

use tokio::io::{AsyncWriteExt, copy, stdin, stdout};
use tokio::net::UnixStream;

use crate::front::cli::error::{CliError, CliResult};
use crate::platform::unix_socket;

/// Forwards stdin and stdout to the lead's socket, until the client or the lead ends the connection.
///
/// # Errors
/// The lead cannot be reached: the attempt for which the socket was opened is over.
pub async fn forward(socket: &Path, credential: &str) -> CliResult<()> {
    let failed = |error: std::io::Error| {
        CliError::refused(format!("cannot reach the team's lead at {}: {error}", socket.display()))
            .hint("the socket and its credential end with the attempt that they were made for")
    };
    let stream = unix_socket::connect(socket).map_err(failed)?;
    stream.set_nonblocking(true).map_err(failed)?;
    let (mut output, mut input) = UnixStream::from_std(stream).map_err(failed)?.into_split();
    input.write_all(format!("{credential}\n").as_bytes()).await.map_err(failed)?;
    tokio::spawn(async move {
        // The lead ends the connection after its last response.
        if copy(&mut stdin(), &mut input).await.is_ok() {
            let _ = input.shutdown().await;
        }
    });
    copy(&mut output, &mut stdout()).await.map_err(failed)?;
    Ok(())
}
