//! Unix sockets whose paths may be longer than the system's limit.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// The longest path that is passed to the system, in bytes. Linux accepts 107, macOS 103. See unix(7), `sun_path`.
const PATH_BYTES_MAX: usize = 100;

/// Creates a socket at this path, and listens.
///
/// # Errors
/// The path exists or cannot be written, or it is too long on a system without `/proc`.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    with_short_path(path, UnixListener::bind)
}

/// Connects to the socket at this path.
///
/// # Errors
/// Nothing listens at the path, or the path is too long on a system without `/proc`.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    with_short_path(path, UnixStream::connect)
}

/// Calls `call` with the path, or with a shorter one through a descriptor of its folder.
fn with_short_path<'a, T>(path: &'a Path, call: impl FnOnce(Box<Path>) -> io::Result<T> + 'a) -> io::Result<T> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return call(path.into());
    }
    let folder = File::open(folder)?;
    call(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name).into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn socket_with_long_path_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        for folder in [folder.path().to_owned(), folder.path().join("x".repeat(150))] {
            if !folder.exists() && !Path::new("/proc/self/fd").exists() {
                println!("skipped: this system has no /proc");
                continue;
            }
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join("a.sock");
            let listener = bind(&path).unwrap();
            connect(&path).unwrap().write_all(b"hello").unwrap();
            let mut text = String::new();
            listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
            assert_eq!(text, "hello");
        }
    }
}
