//! Hooks of a configuration: small programs of the engine's that run at fixed points of a container's life, with
//! the container's state on their standard input (runtime-spec config.md, "POSIX-platform Hooks").
//!
//! Those before the start are run by libcontainer at the right moments, but with a state that names a directory of
//! ours as the bundle; so each is replaced by this program, which puts the state right and becomes the hook.
//! Those from the start on are run here: a failure of `poststart` and `poststop` is a warning.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use oci_spec::runtime::Hook;
use serde_json::Value;

use super::log::Log;

/// The argument after which this program is a hook: then follow the bundle, the number of the hook's own arguments,
/// its path, and the arguments.
pub const REEXEC: &str = "codeoid-run-hook";

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started, or not be fed.
    #[error("error running hook: {path}: {source}")]
    Start {
        /// Its program.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It said no.
    #[error("error running hook: {path}: {status}")]
    Failed {
        /// Its program.
        path: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// It took longer than its `timeout`.
    #[error("error running hook: {path}: timeout of {seconds} s reached, it was killed")]
    Timeout {
        /// Its program.
        path: String,
        /// The limit.
        seconds: i64,
    },
}

/// Runs one hook to its end.
pub fn run(hook: &Hook, state: &[u8], inherited: &[(OsString, OsString)]) -> Result<(), Error> {
    let path = hook.path().display().to_string();
    let start = |source| Error::Start { path: path.clone(), source };
    let mut command = Command::new(hook.path());
    if let Some((name, rest)) = hook.args().as_ref().and_then(|args| args.split_first()) {
        command.arg0(name).args(rest);
    }
    command.env_clear();
    match hook.env() {
        Some(env) => command.envs(env.iter().filter_map(|entry| entry.split_once('='))),
        None => command.envs(inherited.iter().cloned()),
    };
    command.stdin(stdin(state).map_err(start)?).stdout(Stdio::null());
    let mut child = command.spawn().map_err(start)?;
    let limit = hook.timeout().filter(|seconds| *seconds > 0);
    let begun = Instant::now();
    let status = loop {
        // A thread that waits would forbid every fork after it.
        let ended = if limit.is_none() { child.wait().map(Some) } else { child.try_wait() };
        if let Some(status) = ended.map_err(start)? {
            break status;
        }
        if let Some(seconds) = limit
            && begun.elapsed() >= Duration::from_secs(seconds.unsigned_abs())
        {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::Timeout { path, seconds });
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    if status.success() { Ok(()) } else { Err(Error::Failed { path, status }) }
}

/// Runs hooks whose failure ends nothing: it is said, and the next one runs (runtime-spec runtime.md, "Lifecycle").
pub fn run_all(hooks: Option<&Vec<Hook>>, state: &[u8], kind: &str, log: &Log) {
    for (index, hook) in hooks.into_iter().flatten().enumerate() {
        // As runc: one that names no environment has the runtime's.
        let own: Vec<_> = std::env::vars_os().collect();
        if let Err(error) = run(hook, state, &own) {
            log.warning(&format!("{kind} hook #{index}: {error}"));
        }
    }
}

/// A hook as libcontainer is to run it: this program, which becomes the hook.
pub fn wrapped(hook: &Value, bundle: &Path) -> Value {
    let path = hook.get("path").cloned().unwrap_or_default();
    let args = hook.get("args").and_then(Value::as_array).cloned().unwrap_or_default();
    // Without arguments the program is called by its own path.
    let args = if args.is_empty() { vec![path.clone()] } else { args };
    let mut line =
        vec![Value::from("codeoid-shim"), Value::from(REEXEC), Value::from(bundle.to_string_lossy())];
    line.push(path);
    line.extend(args);
    let mut hook = hook.clone();
    if let Some(members) = hook.as_object_mut() {
        if members.get("env").is_none_or(Value::is_null) {
            let own = std::env::vars_os().filter_map(|(name, value)| {
                Some(Value::from(format!("{}={}", name.to_str()?, value.to_str()?)))
            });
            members.insert("env".to_owned(), own.collect());
        }
        members.insert("path".to_owned(), Value::from("/proc/self/exe"));
        members.insert("args".to_owned(), Value::from(line));
    }
    hook
}

/// Becomes the hook that the arguments name. Returns only where that failed.
#[expect(clippy::print_stderr, reason = "a hook's standard error is where it says why")]
pub fn become_hook(mut args: impl Iterator<Item = OsString>) -> std::process::ExitCode {
    let failed = |why: String| {
        eprintln!("error running hook: {why}");
        std::process::ExitCode::FAILURE
    };
    let (Some(bundle), Some(path), Some(name)) = (args.next(), args.next(), args.next()) else {
        return failed("incomplete arguments".to_owned());
    };
    let mut text = Vec::new();
    if let Err(error) = std::io::stdin().read_to_end(&mut text) {
        return failed(error.to_string());
    }
    let state = match corrected(&text, &bundle) {
        Ok(state) => state,
        Err(error) => return failed(error.to_string()),
    };
    match stdin(&state) {
        Ok(stdin) => {
            let error = Command::new(&path).arg0(name).args(args).stdin(stdin).exec();
            failed(format!("{}: {error}", Path::new(&path).display()))
        }
        Err(error) => failed(error.to_string()),
    }
}

fn corrected(state: &[u8], bundle: &OsStr) -> serde_json::Result<Vec<u8>> {
    let mut state: Value = serde_json::from_slice(state)?;
    if let Some(members) = state.as_object_mut() {
        members.insert("bundle".to_owned(), Value::from(bundle.to_string_lossy()));
    }
    serde_json::to_vec(&state)
}

/// A standard input that gives these bytes, and needs nobody to write them.
fn stdin(bytes: &[u8]) -> std::io::Result<Stdio> {
    let mut file = std::fs::File::from(memfd_create("state", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(json: Value) -> Hook {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_hook_gets_the_state_its_arguments_and_its_own_environment_only() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let script = format!("cat > {0}; echo \"$0 $1 $A-$HOME\" >> {0}", out.display());
        let json = serde_json::json!({ "path": "/bin/sh", "args": ["sh", "-c", script, "zero", "one"],
            "env": ["A=b=c"] });
        run(&hook(json), b"{\"id\":1}\n", &[]).unwrap();
        assert_eq!(std::fs::read_to_string(out).unwrap(), "{\"id\":1}\nzero one b=c-\n");
    }

    #[test]
    fn a_failure_and_a_timeout_are_told_apart() {
        let failing = serde_json::json!({ "path": "/bin/sh", "args": ["sh", "-c", "exit 3"] });
        assert!(run(&hook(failing), b"", &[]).unwrap_err().to_string().contains("exit status: 3"));
        let slow = serde_json::json!({ "path": "/bin/sleep", "args": ["sleep", "60"], "timeout": 1 });
        let begun = Instant::now();
        assert!(matches!(run(&hook(slow), b"", &[]), Err(Error::Timeout { seconds: 1, .. })));
        assert!(begun.elapsed() < Duration::from_secs(30));
        let absent = serde_json::json!({ "path": "/nosuch" });
        assert!(matches!(run(&hook(absent), b"", &[]), Err(Error::Start { .. })));
    }

    #[test]
    fn the_state_names_the_bundle_of_the_engine() {
        let state = corrected(b"{\"bundle\":\"/ours\",\"pid\":7}", OsStr::new("/theirs")).unwrap();
        let state: Value = serde_json::from_slice(&state).unwrap();
        assert_eq!(state, serde_json::json!({ "bundle": "/theirs", "pid": 7 }));
    }
}
