//! Stands in for the program of an external agent: it plays a recorded conversation, or records one of the real program.
//!
//! ```text
//! agent_stand_in play RECORDING [OPTION]... -- [ARGUMENT]...
//! agent_stand_in record RECORDING PROGRAM -- [ARGUMENT]...
//! ```
//!
//! A recording has one JSON object a line: `start` with the arguments of a process, `in` with a line to the program, `out` with a line
//! of it. The first process of a task plays up to the second `start`, the next one from there. The task number 1 in a recording stands for
//! the number of the agent's task. The options of `play`:
//!
//! - `--die-after N`: the first process kills itself after N recorded lines.
//! - `--stop-after N`: the first process writes the file `stopped` into its config folder after N lines, and then hangs.
//!
//! As the real program, it runs the shell commands of tool calls that Brigade allows, and writes prompts with their keys into a history.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a program for tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Lists in messages of the program that say nothing about the conversation.
const EMPTIED_FIELDS: [&str; 10] = [
    "commands",
    "agents",
    "models",
    "tools",
    "skills",
    "slash_commands",
    "plugins",
    "memory_paths",
    "available_output_styles",
    "terminal_slash_commands",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let (own, rest) = arguments.split_at(end);
    let rest = rest.get(1..).unwrap_or_default();
    match own {
        [role, file, options @ ..] if role == "play" => Player::new(Path::new(file), options, rest).play(),
        [role, file, program] if role == "record" => record(Path::new(file), program, rest),
        _ => {
            eprintln!("usage: see the source");
            exit(2);
        }
    }
}

fn config_folder() -> PathBuf {
    PathBuf::from(std::env::var("CLAUDE_CONFIG_DIR").unwrap())
}

fn session_of(arguments: &[String]) -> String {
    let value = |argument: &String| {
        let (name, value) = argument.split_once('=')?;
        (name == "--session-id" || name == "--resume").then(|| value.to_owned())
    };
    arguments.iter().find_map(value).unwrap_or_default()
}

/// A line of a recording.
struct Step {
    kind: String,
    message: Value,
}

fn read_recording(file: &Path) -> Vec<Step> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let step = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        Step { kind: line["kind"].as_str().unwrap().to_owned(), message: line["message"].take() }
    };
    text.lines().map(step).collect()
}

/// Returns the parts of a message to the program by which the program recognises it.
fn signature(message: &Value) -> Value {
    json!({
        "type": message["type"],
        "request": message["request"]["subtype"],
        "response": message["response"]["request_id"],
    })
}

struct Player {
    steps: Vec<Step>,
    session: String,
    /// The number of the agent's task.
    task: String,
    die_after: Option<usize>,
    stop_after: Option<usize>,
    input: std::io::Lines<BufReader<std::io::Stdin>>,
    /// Lines that were read before the recording expected them.
    early: Vec<Value>,
    /// The command of the tool call that the program asked about, with the id of the question.
    command: Option<(Value, String)>,
}

impl Player {
    fn new(file: &Path, options: &[String], arguments: &[String]) -> Self {
        let number = |name: &str| {
            let at = options.iter().position(|option| option == name)?;
            options.get(at + 1)?.parse().ok()
        };
        let task = std::env::var("BRIGADE_TASK").unwrap_or_default();
        let starts_file = config_folder().join(format!("starts-{task}"));
        let starts: usize = fs::read_to_string(&starts_file).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        fs::write(&starts_file, (starts + 1).to_string()).unwrap();
        let mut parts: Vec<Vec<Step>> = Vec::new();
        for step in read_recording(file) {
            if step.kind == "start" {
                parts.push(Vec::new());
            } else if let Some(part) = parts.last_mut() {
                part.push(step);
            }
        }
        let part = starts.min(parts.len() - 1);
        let is_first = starts == 0;
        Self {
            steps: parts.swap_remove(part),
            session: session_of(arguments),
            task,
            die_after: number("--die-after").filter(|_| is_first),
            stop_after: number("--stop-after").filter(|_| is_first),
            input: BufReader::new(std::io::stdin()).lines(),
            early: Vec::new(),
            command: None,
        }
    }

    fn play(mut self) {
        for (index, step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            if self.die_after == Some(index) {
                let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
            }
            if self.stop_after == Some(index) {
                fs::write(config_folder().join("stopped"), "").unwrap();
                thread::park();
            }
            match step.kind.as_str() {
                "out" => self.say(&step.message),
                "in" => self.expect(&step.message),
                _ => {}
            }
        }
        // The real program waits for the next prompt.
        while let Some(Ok(_)) = self.input.next() {}
    }

    fn say(&mut self, message: &Value) {
        let input = &message["request"]["input"];
        if input["hook_event_name"] == "PreToolUse"
            && let Some(command) = input["tool_input"]["command"].as_str()
        {
            self.command = Some((message["request_id"].clone(), command.to_owned()));
        }
        let mut message = message.clone();
        if let Some(resets_at) = message.pointer_mut("/rate_limit_info/resetsAt") {
            // The recorded time is over.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            *resets_at = (now.as_secs() + 2).into();
        }
        let mut out = std::io::stdout().lock();
        let line = message.to_string().replace("$SESSION", &self.session);
        writeln!(out, "{}", line.replace("\"task_id\":1", &format!("\"task_id\":{}", self.task))).unwrap();
        out.flush().unwrap();
    }

    /// Waits for a message with this signature.
    fn expect(&mut self, expected: &Value) {
        let message = match self.early.iter().position(|early| signature(early) == *expected) {
            Some(at) => self.early.remove(at),
            None => loop {
                let Some(Ok(line)) = self.input.next() else { exit(0) };
                let message: Value = serde_json::from_str(&line).unwrap();
                if signature(&message) == *expected {
                    break message;
                }
                self.early.push(message);
            },
        };
        if message["type"] == "user" {
            self.write_history(&message);
        }
        let answer = &message["response"];
        if let Some((question, command)) = self.command.take_if(|(question, _)| *question == answer["request_id"]) {
            let is_denied = answer["response"]["hookSpecificOutput"]["permissionDecision"] == "deny";
            assert!(!question.is_null());
            if !is_denied {
                let _ = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).stdout(Stdio::null()).status();
            }
        }
    }

    fn write_history(&self, prompt: &Value) {
        let folder = config_folder().join("projects/stand-in");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{}.jsonl", self.session));
        let mut history = fs::File::options().create(true).append(true).open(path).unwrap();
        let record = json!({ "type": "user", "uuid": prompt["uuid"], "message": prompt["message"] });
        writeln!(history, "{record}").unwrap();
    }
}

/// Runs the real program, and appends its conversation to the recording.
fn record(file: &Path, program: &str, arguments: &[String]) {
    let recording = fs::File::options().create(true).append(true).open(file).unwrap();
    let recorder = Arc::new(Recorder {
        recording: Mutex::new(recording),
        replaced: vec![
            (session_of(arguments), "$SESSION"),
            (std::env::current_dir().unwrap().display().to_string(), "$FOLDER"),
            (config_folder().display().to_string(), "$HOME"),
        ],
    });
    let options: Vec<&str> = arguments.iter().filter_map(|argument| argument.split('=').next()).collect();
    recorder.write("start", json!(options));
    let mut command = Command::new(program);
    // The program would make an inherited socket non-blocking.
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child: Child = command.spawn().unwrap();
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let to_program = Arc::clone(&recorder);
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let message = serde_json::from_str(&line).unwrap_or(Value::Null);
            to_program.write("in", signature(&message));
            if writeln!(input, "{line}").is_err() {
                return;
            }
        }
    });
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Ok(message) = serde_json::from_str(&line) {
            recorder.write("out", message);
        }
        println!("{line}");
    }
    exit(child.wait().unwrap().code().unwrap_or(1));
}

struct Recorder {
    recording: Mutex<fs::File>,
    /// Texts that differ in each run, and the words for them.
    replaced: Vec<(String, &'static str)>,
}

impl Recorder {
    fn write(&self, kind: &str, mut message: Value) {
        shorten(&mut message);
        let mut line = json!({ "kind": kind, "message": message }).to_string();
        for (text, word) in self.replaced.iter().filter(|(text, _)| !text.is_empty()) {
            line = line.replace(text, word);
        }
        writeln!(self.recording.lock().unwrap(), "{line}").unwrap();
    }
}

/// Empties long lists.
fn shorten(message: &mut Value) {
    match message {
        Value::Object(fields) => {
            for (name, value) in fields {
                if EMPTIED_FIELDS.contains(&name.as_str()) && value.is_array() {
                    *value = json!([]);
                } else {
                    shorten(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(shorten),
        _ => {}
    }
}
