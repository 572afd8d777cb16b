//! A signal at one step of a process, by the library `step_signals.c`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The process that gets the signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Brigade alone is killed. Its git goes on.
    Brigade,
    /// Brigade and all processes that it started are killed, as in a power cut.
    All,
    /// The process that makes the step is killed. If that is git, Brigade goes on.
    Process,
    /// As [`Victim::Process`], by SIGTERM: git removes its temporary files.
    Terminated,
    /// As [`Victim::Terminated`], and a git is killed so many steps later, in the middle of that.
    Twice(u32),
    /// The git that started this git gets SIGTERM, and is killed so many steps later. Then this git goes on.
    Parent(u32),
}

/// The file that the child and its git processes share: `struct shared` in `step_signals.c`.
pub struct SharedFile(File);

pub const ARMED: u64 = 0;
pub const COUNT: u64 = 4;
pub const TARGET: u64 = 8;
const IS_AFTER: u64 = 12;
const ACTION: u64 = 16;
const STATE: u64 = 20;
const MORE: u64 = 24;
const STEP: u64 = 28;
const SHARED_BYTES: u64 = 4096;
const WAIT: u32 = 1;
const KILL: u32 = 2;
const TERMINATE: u32 = 3;
const TERMINATE_PARENT: u32 = 4;
const REACHED: u32 = 1;
const RELEASED: u32 = 2;

impl SharedFile {
    pub fn create(path: &Path) -> Self {
        let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
        file.set_len(SHARED_BYTES).unwrap();
        Self(file)
    }

    pub fn open(path: &Path) -> Self {
        Self(File::options().read(true).write(true).open(path).unwrap())
    }

    /// Chooses the step, and what happens there.
    pub fn plan(&self, step: u32, is_after: bool, victim: Victim) {
        let action = match victim {
            Victim::Brigade | Victim::All => WAIT,
            Victim::Process => KILL,
            Victim::Terminated | Victim::Twice(_) => TERMINATE,
            Victim::Parent(_) => TERMINATE_PARENT,
        };
        let more = if let Victim::Twice(more) | Victim::Parent(more) = victim { more } else { 0 };
        for (field, number) in [(TARGET, step), (IS_AFTER, u32::from(is_after)), (ACTION, action), (MORE, more)] {
            self.set(field, number);
        }
    }

    /// Returns true if a process waits at the step until [`SharedFile::release`].
    pub fn is_waiting(&self) -> bool {
        self.number(ACTION) == WAIT && self.number(STATE) == REACHED
    }

    pub fn release(&self) {
        self.set(STATE, RELEASED);
    }

    pub fn number(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        u32::from_ne_bytes(bytes)
    }

    pub fn set(&self, at: u64, number: u32) {
        self.0.write_all_at(&number.to_ne_bytes(), at).unwrap();
    }

    /// The step at which the signal was sent.
    pub fn step(&self) -> String {
        let mut bytes = [0; 1024];
        self.0.read_exact_at(&mut bytes, STEP).unwrap();
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

/// Builds the library. Returns `None`, and prints the reason, if it cannot be preloaded here.
pub fn build(folder: &Path) -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        println!("skipped: the library needs LD_PRELOAD of Linux");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/repository/killed_steps/step_signals.c");
    let library = folder.join("step_signals.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).args([&library, &source]).arg("-ldl");
    match compiler.output() {
        Ok(output) if output.status.success() => Some(library),
        Ok(output) => panic!("cc: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: cannot run cc: {error}");
            None
        }
    }
}
