//! For tests: debug builds end themselves, as by kill -9, or wait for somebody else, at a step that the
//! environment names. Release builds do nothing.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Ends the process here if `CODEOID_TEST_STOP_AT` names this step; waits here, if `CODEOID_TEST_WAIT_AT` does,
/// until the file `CODEOID_TEST_WAIT_FOR` exists.
pub fn at(step: &str) {
    if !cfg!(debug_assertions) {
        return;
    }
    let named = |variable: &str| std::env::var_os(variable).is_some_and(|named| named == step);
    if named("CODEOID_TEST_STOP_AT") {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
    }
    if named("CODEOID_TEST_WAIT_AT") {
        let file = std::env::var_os("CODEOID_TEST_WAIT_FOR").map(PathBuf::from).unwrap_or_default();
        let until = Instant::now() + Duration::from_secs(20);
        while !file.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
