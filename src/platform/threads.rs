//! Threads: the size of the stack that Brigade works on, and clear errors where the system gives no more threads.
//!
//! `std::thread::spawn` panics where the system refuses a thread. Tokio panics, or waits for ever for a thread that it did not get.
//! So nothing here starts a thread but through [`std::thread::Builder`], and a runtime is built only after as many threads
//! as it needs could be started.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The stack that [`with_own_stack`] works on, in bytes: what a main thread has without `ulimit -s`.
const STACK_BYTES: usize = 8 << 20;
/// Threads of a runtime beside its workers: blocking calls, file events, the terminal, the pipes of a git.
const SPARE_COUNT: usize = 8;
/// The time for which a thread for blocking calls is kept without work. It serves later calls if the system gives no new thread.
const BLOCKING_THREAD_KEEP_ALIVE: Duration = Duration::from_secs(60 * 60);
/// The time that the first of these threads may take to start.
const FIRST_THREAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Threads that a command without a team needs: blocking calls.
const COMMAND_COUNT: usize = 2;

/// Does `work` on a thread with a stack of its own and waits for it. The stack of the main thread is as small as `ulimit -s` says.
///
/// # Errors
/// The system gives no thread; the message says so.
pub fn with_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES);
        let worker = builder.spawn_scoped(scope, work).map_err(refused)?;
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A runtime of several threads, for a team.
///
/// # Errors
/// The system gives too few threads, or no event queue; the message says which.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    check(workers + SPARE_COUNT)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = build(builder.worker_threads(workers).thread_keep_alive(BLOCKING_THREAD_KEEP_ALIVE))?;
    // Makes the first of the threads that blocking calls share. Where the system gives no further one, they wait for it;
    // without any, tokio lets them wait forever.
    let first = async { tokio::time::timeout(FIRST_THREAD_TIMEOUT, tokio::task::spawn_blocking(|| ())).await };
    match runtime.block_on(first) {
        Ok(_) => Ok(runtime),
        Err(_) => {
            runtime.shutdown_background();
            Err(refused(io::ErrorKind::WouldBlock.into()))
        }
    }
}

/// A runtime that works on the calling thread, for a command: it is begun in no time.
///
/// # Errors
/// As [`runtime`].
pub fn runtime_on_this_thread() -> io::Result<tokio::runtime::Runtime> {
    check(COMMAND_COUNT)?;
    build(&mut tokio::runtime::Builder::new_current_thread())
}

fn build(builder: &mut tokio::runtime::Builder) -> io::Result<tokio::runtime::Runtime> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot start a runtime: {error}"));
    builder.enable_all().build().map_err(failed)
}

/// Starts so many threads at once, and ends them.
fn check(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let wait = || drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        (0..count).try_for_each(|_| thread::Builder::new().spawn_scoped(scope, wait).map(drop)).map_err(refused)
    })
}

fn refused(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot start a thread: {error}"))
}
