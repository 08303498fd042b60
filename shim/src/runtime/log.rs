//! The error log, in the shape and wording that engines parse: one line for each event, `level`, `msg` and `time`,
//! as logrus writes it for runc. containerd and podman take the last error of a failed command from it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;

use nix::sys::memfd::{MFdFlags, memfd_create};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `time="…" level=error msg="…"`
    #[default]
    Text,
    /// `{"level":"error","msg":"…","time":"…"}`
    Json,
}

/// Where the events of one command go.
#[derive(Debug)]
pub struct Log {
    file: Option<File>,
    format: Format,
    debug: bool,
}

impl Log {
    /// Opens the log: `path` (nothing, or `/dev/stderr`: the standard error).
    pub fn open(path: Option<&Path>, format: Format, debug: bool) -> std::io::Result<Self> {
        let file = match path {
            None => None,
            Some(path) if path.as_os_str().is_empty() || path == Path::new("/dev/stderr") => None,
            // As runc: appended to, made where it is missing.
            Some(path) => Some(OpenOptions::new().append(true).create(true).mode(0o644).open(path)?),
        };
        Ok(Self { file, format, debug })
    }

    /// Writes an error. Where the log is a file the bare text goes to the standard error too: engines that know no
    /// log file read it there.
    #[expect(clippy::print_stderr, reason = "where the log is a file, runc says it here as well")]
    pub fn error(&self, text: &str) {
        self.write("error", text);
        if self.file.is_some() {
            eprintln!("{}", crate::diagnostic::one_line(&plain(text)));
        }
    }

    /// Writes a warning.
    pub fn warning(&self, text: &str) {
        self.write("warning", text);
    }

    /// Writes what only somebody who looks for a fault wants to know.
    pub fn debug(&self, text: &str) {
        if self.debug {
            self.write("debug", text);
        }
    }

    fn write(&self, level: &str, text: &str) {
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut line = line(self.format, level, &plain(text), &time);
        line.push('\n');
        // There is nobody to tell where the log itself fails.
        let _ = match &self.file {
            Some(file) => (&mut &*file).write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }
}

fn line(format: Format, level: &str, text: &str, time: &str) -> String {
    match format {
        // The keys in logrus's order, which is the alphabet's.
        Format::Json => {
            let quote = |text: &str| serde_json::Value::from(text).to_string();
            format!("{{\"level\":{},\"msg\":{},\"time\":{}}}", quote(level), quote(text), quote(time))
        }
        Format::Text => format!("time=\"{time}\" level={level} msg={}", quoted(text)),
    }
}

/// A value of a text line: quoted as Go's `%q`, unless nothing in it needs quotes (logrus, `needsQuoting`).
fn quoted(text: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
    if !text.is_empty() && text.chars().all(bare) {
        return text.to_owned();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Errors of the system in Go's words, which engines look for ("no such file or directory" decides between exit
/// 127 and 125): Rust and nix put a capital letter and a number around them.
pub fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for phrase in [
        "No such file or directory",
        "Permission denied",
        "Operation not permitted",
        "Not a directory",
        "Is a directory",
        "Exec format error",
        "Invalid argument",
        "File exists",
        "Device or resource busy",
        "No such process",
        "Read-only file system",
        "Too many levels of symbolic links",
        "No space left on device",
    ] {
        if text.contains(phrase) {
            text = text.replace(phrase, &phrase.to_lowercase());
        }
    }
    // " (os error 2)"
    while let Some(at) = text.find(" (os error ") {
        match text[at..].find(')') {
            Some(end) => text.replace_range(at..=at + end, ""),
            None => break,
        }
    }
    text
}

/// What libcontainer says while it fails. Its errors lose their causes on the way from its forked processes to the
/// caller; the events that they leave are kept in a file of memory that all of them share.
pub struct Trail {
    file: File,
}

impl Trail {
    /// Begins to listen. Once for each process.
    pub fn begin() -> std::io::Result<Self> {
        let file = File::from(memfd_create("codeoid-trail", MFdFlags::MFD_CLOEXEC)?);
        let collector = Collector { file: Mutex::new(file.try_clone()?) };
        // A second one would find the first in place, and that one does.
        let _ = tracing::subscriber::set_global_default(collector);
        Ok(Self { file })
    }

    /// What our own part of the process inside has said; else the first event, which is the nearest to the cause.
    pub fn cause(mut self) -> Option<Cause> {
        let mut text = String::new();
        self.file.rewind().ok()?;
        self.file.read_to_string(&mut text).ok()?;
        let own =
            text.lines().find_map(|line| line.strip_prefix(OWN)).map(|text| Cause::Own(text.to_owned()));
        // What is left to do is no failure.
        let theirs = || text.lines().find(|line| !line.contains('\t'));
        own.or_else(|| theirs().map(|text| Cause::Theirs(text.to_owned())))
    }
}

impl Trail {
    /// What the process inside could not do itself, by this name.
    pub fn left(&self, name: &str) -> Vec<String> {
        let mut text = vec![0; self.file.metadata().map_or(0, |meta| meta.len() as usize)];
        let _ = self.file.read_exact_at(&mut text, 0);
        let text = String::from_utf8_lossy(&text);
        let prefix = format!("{name}\t");
        text.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).map(str::to_owned).collect()
    }
}

/// Leaves something to do for whoever waits outside.
pub fn leave(name: &str, what: &str) {
    tracing::error!("{name}\t{what}");
}

/// Why a container could not be made.
#[derive(Debug, PartialEq, Eq)]
pub enum Cause {
    /// In our words, which are to be passed on as they are.
    Own(String),
    /// In libcontainer's.
    Theirs(String),
}

/// Marks a line of ours.
const OWN: &str = "codeoid\t";

/// Leaves a word for whoever waits outside.
pub fn own(text: &str) {
    tracing::error!("{OWN}{text}");
}

struct Collector {
    file: Mutex<File>,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let mut line = said.message;
        for (name, value) in said.fields {
            line.push_str(&format!(": {name}={value}"));
        }
        line = line.replace('\n', " ");
        line.push('\n');
        // The processes take turns; the offset is shared, since the descriptor was inherited.
        if let Ok(file) = self.file.lock() {
            let end = file.metadata().map(|meta| meta.len()).unwrap_or(0);
            let _ = file.write_all_at(line.as_bytes(), end);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.message = text } else { self.fields.push((field.name(), text)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_logrus_writes() {
        let time = "2026-11-30T10:03:35Z";
        assert_eq!(
            line(Format::Json, "error", "exec: \"x\": a\nb", time),
            "{\"level\":\"error\",\"msg\":\"exec: \\\"x\\\": a\\nb\",\"time\":\"2026-11-30T10:03:35Z\"}"
        );
        assert_eq!(
            line(Format::Text, "error", "exec: \"x\": a\u{1b}\n", time),
            "time=\"2026-11-30T10:03:35Z\" level=error msg=\"exec: \\\"x\\\": a\\u001b\\n\""
        );
        assert_eq!(
            line(Format::Text, "error", "word", time),
            format!("time=\"{time}\" level=error msg=word")
        );
    }

    #[test]
    fn errors_of_the_system_are_in_the_words_that_engines_look_for() {
        assert_eq!(
            plain("open x: No such file or directory (os error 2)"),
            "open x: no such file or directory"
        );
        assert_eq!(plain("EACCES: Permission denied"), "EACCES: permission denied");
        assert_eq!(plain("a (os error"), "a (os error");
    }
}
