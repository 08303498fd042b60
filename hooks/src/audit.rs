//! Appending to the audit log: one JSON object per line, each in one write(2) with `O_APPEND`, so that lines of
//! several turns never mix.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use codeoid_spec::audit::Line;
use codeoid_spec::state::StateDir;

/// Why a line could not be appended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log could not be opened. A symlink in its place is not followed.
    #[error("audit log {path}")]
    Open {
        /// The log.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// The log is not a regular file of the caller's own.
    #[error("audit log {path} is not a regular file that belongs to the caller")]
    NotOurs {
        /// The log.
        path: PathBuf,
    },
    /// The line was not written, or not whole.
    #[error("append to the audit log {path}")]
    Write {
        /// The log.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// The line has no JSON.
    #[error("an audit line cannot be written as JSON")]
    Json(#[source] serde_json::Error),
}

/// Appends a line to the audit log, which is made (0600, in a directory of 0700) where there is none.
///
/// # Errors
/// Whatever keeps the line from being in the log, whole.
pub fn append(state: &StateDir, line: &Line) -> Result<(), Error> {
    let path = state.audit_log();
    let mut bytes = serde_json::to_vec(line).map_err(Error::Json)?;
    bytes.push(b'\n');
    let open = |source| Error::Open { path: path.clone(), source };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(state.path()).map_err(open)?;
    let mut file: File = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK)
        .open(&path)
        .map_err(open)?;
    let metadata = file.metadata().map_err(open)?;
    if !metadata.is_file() || metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(Error::NotOurs { path });
    }
    // Not write_all(): the rest of a line that was cut would come behind somebody else's.
    let written = file.write(&bytes).map_err(|source| Error::Write { path: path.clone(), source })?;
    if written == bytes.len() {
        return Ok(());
    }
    // Another line must not go on where this one was cut.
    let _ = file.write(b"\n");
    Err(Error::Write { path, source: std::io::ErrorKind::WriteZero.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeoid_spec::audit::Event;
    use std::os::unix::fs::symlink;

    fn line(text: &str) -> Line {
        Line {
            time: jiff::Timestamp::UNIX_EPOCH,
            event: Event::TurnFinished,
            session: Some("s1".to_owned()),
            turn: None,
            repo: None,
            detail: serde_json::json!({ "text": text }),
        }
    }

    #[test]
    fn lines_are_appended_and_private() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path().join("state"));
        append(&state, &line("one")).unwrap();
        append(&state, &line("two\nlines")).unwrap();
        let text = std::fs::read_to_string(state.audit_log()).unwrap();
        let lines: Vec<Line> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines, [line("one"), line("two\nlines")]);
        assert_eq!(std::fs::metadata(state.audit_log()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(state.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_is_no_log_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path().to_owned());
        let victim = temp.path().join("victim");
        std::fs::write(&victim, "").unwrap();
        symlink(&victim, state.audit_log()).unwrap();
        assert!(matches!(append(&state, &line("x")), Err(Error::Open { .. })));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "");
        std::fs::remove_file(state.audit_log()).unwrap();
        nix::unistd::mkfifo(&state.audit_log(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(append(&state, &line("x")).is_err());
    }
}
