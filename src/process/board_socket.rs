//! The socket on which programs in a member's sandbox reach the board: `brigade mcp` forwards the messages of its client, one JSON
//! message in each line.
//!
//! Only processes of one agent are served: those below the guard of its program that know the credential. The credential is in the
//! environment of the program, which ends with its claim. The socket ends with the claim too.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::domain::team::records::GuardProcess;
use crate::platform::{processes, unix_socket};
use crate::sandbox::environment::{BOARD_CREDENTIAL_VARIABLE, BOARD_SOCKET_VARIABLE};
use crate::secrets::{Secret, masked};

/// The most connections at a time. Others wait.
const CONNECTIONS_MAX: usize = 8;
/// The longest line, in bytes. A longer one ends its connection.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// The longest time from a connection to its credential.
const CREDENTIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A request of a client.
struct SocketRequest {
    message: Value,
    response_sender: oneshot::Sender<Option<Value>>,
}

/// A socket. Dropping it ends all connections and removes it.
pub struct BoardSocket {
    path: PathBuf,
    credential: Secret,
    /// The listener, until [`Self::serve`] takes it. Connections wait.
    listener: Option<UnixListener>,
    requests: mpsc::Receiver<SocketRequest>,
    request_sender: mpsc::Sender<SocketRequest>,
    /// The senders of the responses that are not given yet, by the ids of the requests.
    response_senders: HashMap<String, oneshot::Sender<Option<Value>>>,
    last_request: u64,
    accept_task: Option<JoinHandle<()>>,
}

impl BoardSocket {
    /// Opens a socket with a new credential in `folder`, which only its owner can enter.
    ///
    /// # Errors
    /// The folder cannot be written, or its path is too long for this system.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!("{:016x}.sock", fastrand::u64(..)));
        let listener = unix_socket::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let listener = Some(UnixListener::from_std(listener)?);
        let credential = Secret::random()?;
        let (request_sender, requests) = mpsc::channel(CONNECTIONS_MAX);
        let response_senders = HashMap::new();
        Ok(Self {
            path,
            credential,
            listener,
            requests,
            request_sender,
            response_senders,
            last_request: 0,
            accept_task: None,
        })
    }

    /// Serves the processes below this guard, which runs the agent's program.
    pub fn serve(&mut self, guard: GuardProcess) {
        let Some(listener) = self.listener.take() else { return };
        let may_connect = move |peer: UCred| is_below(guard, processes::own_user(), peer);
        let requests = self.request_sender.clone();
        self.accept_task = Some(tokio::spawn(accept(listener, may_connect, self.credential.clone(), requests)));
    }

    /// Returns the variables by which `brigade mcp` finds the socket.
    pub fn variables(&self) -> [(String, String); 2] {
        [
            (BOARD_SOCKET_VARIABLE.to_owned(), self.path.display().to_string()),
            (BOARD_CREDENTIAL_VARIABLE.to_owned(), self.credential.expose().to_owned()),
        ]
    }

    /// Returns the next request: an id for [`Self::respond`], and the message. Cancel safe.
    pub async fn next_request(&mut self) -> Option<(String, Value)> {
        let SocketRequest { message, response_sender } = self.requests.recv().await?;
        self.last_request += 1;
        let id = format!("{}-{}", self.path.display(), self.last_request);
        self.response_senders.insert(id.clone(), response_sender);
        Some((id, message))
    }

    /// Sends the response to a request. A notification gets `None`. Returns false if the socket has no request with this id.
    pub fn respond(&mut self, id: &str, message: Option<&Value>) -> bool {
        let Some(response_sender) = self.response_senders.remove(id) else { return false };
        // The client may have gone.
        let _ = response_sender.send(message.cloned());
        true
    }
}

impl Drop for BoardSocket {
    fn drop(&mut self) {
        if let Some(accept_task) = &self.accept_task {
            accept_task.abort();
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns true if the peer is a process of this user below the guard. On a system that lists no processes, each process of the user
/// counts.
fn is_below(guard: GuardProcess, user: u32, peer: UCred) -> bool {
    let GuardProcess { pid, started_ms } = guard;
    let is_descendant = |peer: i32| started_ms == 0 || processes::descends_from(peer, pid, started_ms);
    peer.uid() == user && peer.pid().is_some_and(is_descendant)
}

/// Removes the sockets that killed processes left in this folder. No agent may run.
pub fn remove_stale_sockets(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Accepts connections of the peers that may connect.
async fn accept(
    listener: UnixListener,
    may_connect: impl Fn(UCred) -> bool,
    credential: Secret,
    requests: mpsc::Sender<SocketRequest>,
) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many files are open, for example.
                tracing::warn!(%error, "cannot accept a connection to the board; trying again");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if !stream.peer_cred().is_ok_and(&may_connect) {
            continue;
        }
        let (credential, requests) = (credential.clone(), requests.clone());
        connections.spawn(async move {
            let _permit = permit;
            if let Err(error) = serve(stream, credential.expose(), &requests).await {
                tracing::debug!(%error, "a connection to the board ended");
            }
        });
    }
}

/// Serves a client: its first line is the credential, and each further one is a message.
async fn serve(stream: UnixStream, credential: &str, requests: &mpsc::Sender<SocketRequest>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let first = timeout(CREDENTIAL_TIMEOUT, read_line(&mut reader)).await??;
    if first.as_deref() != Some(credential) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    while let Some(line) = read_line(&mut reader).await? {
        let Ok(message) = serde_json::from_str(&masked(line)) else { return Err(io::ErrorKind::InvalidData.into()) };
        let (response_sender, response) = oneshot::channel();
        if requests.send(SocketRequest { message, response_sender }).await.is_err() {
            return Ok(());
        }
        if let Ok(Some(response)) = response.await {
            writer.write_all(format!("{response}\n").as_bytes()).await?;
        }
    }
    Ok(())
}

/// Reads a line; `None` at the end.
async fn read_line(input: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<Option<String>> {
    let mut line = String::new();
    match input.take(LINE_BYTES_MAX).read_line(&mut line).await? {
        0 => Ok(None),
        _ if !line.ends_with('\n') => Err(io::ErrorKind::InvalidData.into()),
        _ => Ok(Some(line.trim_end().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn connect(path: &Path, credential: &str) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(path).await.unwrap();
        // The other side may have ended the connection already.
        let _ = stream.write_all(format!("{credential}\n{{\"id\":1}}\n").as_bytes()).await;
        BufReader::new(stream)
    }

    /// Connects with this credential. Asserts that the connection ends without an answer, and that no request arrives.
    async fn assert_refused(path: &Path, credential: &str, requests: &mut mpsc::Receiver<SocketRequest>) {
        let mut client = connect(path, credential).await;
        tokio::select! {
            answer = read_line(&mut client) => assert_eq!(answer.ok().flatten(), None),
            Some(request) = requests.recv() => panic!("{} arrived", request.message),
        }
    }

    fn this_process() -> GuardProcess {
        let pid = i32::try_from(std::process::id()).unwrap();
        GuardProcess { pid, started_ms: processes::own_start_ms() }
    }

    #[tokio::test]
    async fn client_with_credential_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let mut socket = BoardSocket::open(folder.path()).unwrap();
        assert_eq!(fs::metadata(&socket.path).unwrap().permissions().mode() & 0o777, 0o600);
        let credential = socket.credential.expose().to_owned();
        // A connection before that waits.
        socket.serve(this_process());
        let mut client = connect(&socket.path, &credential).await;
        let (id, message) = socket.next_request().await.unwrap();
        assert_eq!(message, json!({ "id": 1 }));
        assert!(!socket.respond("another", None));
        assert!(socket.respond(&id, Some(&json!({ "id": 1, "result": {} }))));
        assert_eq!(read_line(&mut client).await.unwrap().as_deref(), Some("{\"id\":1,\"result\":{}}"));
        let path = socket.path.clone();
        drop(socket);
        assert_eq!(read_line(&mut client).await.unwrap(), None, "the connection ends with the socket");
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn sockets_of_killed_process_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let socket = BoardSocket::open(folder.path()).unwrap();
        let (path, other) = (socket.path.clone(), folder.path().join("other"));
        fs::write(&other, "").unwrap();
        std::mem::forget(socket);
        remove_stale_sockets(folder.path());
        assert!(!path.exists() && other.exists());
    }

    #[tokio::test]
    async fn client_without_credential_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let earlier = BoardSocket::open(folder.path()).unwrap().credential.clone();
        let mut socket = BoardSocket::open(folder.path()).unwrap();
        socket.serve(this_process());
        for credential in ["wrong", "", earlier.expose()] {
            assert_refused(&socket.path, credential, &mut socket.requests).await;
        }
    }

    #[tokio::test]
    async fn client_of_another_user_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut socket = BoardSocket::open(folder.path()).unwrap();
        let (listener, sender) = (socket.listener.take().unwrap(), socket.request_sender.clone());
        let may_connect = |peer: UCred| is_below(this_process(), processes::own_user() + 1, peer);
        let _accept_task = tokio::spawn(accept(listener, may_connect, socket.credential.clone(), sender));
        let credential = socket.credential.expose().to_owned();
        assert_refused(&socket.path, &credential, &mut socket.requests).await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn process_of_another_agent_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut other_agent = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(other_agent.id()).unwrap();
        let mut socket = BoardSocket::open(folder.path()).unwrap();
        socket.serve(GuardProcess { pid, started_ms: processes::process(pid).unwrap().started_ms });
        let credential = socket.credential.expose().to_owned();
        assert_refused(&socket.path, &credential, &mut socket.requests).await;
        other_agent.kill().unwrap();
        other_agent.wait().unwrap();
    }
}
