//! Threads: the size of Brigade's stack, and clear errors if the system has no more threads.
//!
//! `std::thread::spawn` panics if the system refuses a thread. Tokio panics, or waits forever for a missing thread.
//! So Brigade starts threads only through [`std::thread::Builder`], and builds a runtime only after a test has started as many threads
//! as it needs.

use std::io;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// The stack size for [`with_own_stack`], in bytes: the default of a main thread without `ulimit -s`.
const STACK_BYTES: usize = 8 << 20;
/// Threads of a runtime that are not its workers: blocking calls, file events, the terminal, the pipes of git.
const SPARE_THREADS: usize = 8;
/// The time for which an idle thread for blocking calls is kept. It serves later calls if the system gives no new thread.
const BLOCKING_THREAD_KEEP_ALIVE: Duration = Duration::from_secs(60 * 60);
/// The time limit for the start of the first such thread.
const FIRST_THREAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Threads that a command without a team needs, for blocking calls.
const COMMAND_THREADS: usize = 2;

/// Runs `work` on a thread with a large stack and waits for it. `ulimit -s` may make the main thread's stack small.
///
/// # Errors
/// The system gives no thread, which the message says.
pub fn with_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES);
        let worker = builder.spawn_scoped(scope, work).map_err(refused)?;
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A runtime with several threads, for a team.
///
/// # Errors
/// The system gives too few threads, or no event queue; the message says which.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    check_threads(workers + SPARE_THREADS)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = build(builder.worker_threads(workers).thread_keep_alive(BLOCKING_THREAD_KEEP_ALIVE))?;
    // Starts the first of the threads that blocking calls share. If the system gives no more, calls wait for this one.
    // Without any, tokio would let them wait forever.
    let first = async { tokio::time::timeout(FIRST_THREAD_TIMEOUT, tokio::task::spawn_blocking(|| ())).await };
    match runtime.block_on(first) {
        Ok(_) => Ok(runtime),
        Err(_) => {
            runtime.shutdown_background();
            Err(refused(io::ErrorKind::WouldBlock.into()))
        }
    }
}

/// A runtime on the calling thread, for a command. It starts fast.
///
/// # Errors
/// As [`runtime`].
pub fn runtime_on_this_thread() -> io::Result<tokio::runtime::Runtime> {
    check_threads(COMMAND_THREADS)?;
    build(&mut tokio::runtime::Builder::new_current_thread())
}

fn build(builder: &mut tokio::runtime::Builder) -> io::Result<tokio::runtime::Runtime> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot start a runtime: {error}"));
    builder.enable_all().build().map_err(failed)
}

/// Checks that `count` threads can run at once, and ends them.
fn check_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let wait = || drop(gate.lock());
        let _closed = gate.lock();
        (0..count).try_for_each(|_| thread::Builder::new().spawn_scoped(scope, wait).map(drop)).map_err(refused)
    })
}

fn refused(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot start a thread: {error}"))
}
