//! For tests of recovery: debug builds end themselves, as by kill -9, at a step that the environment names.

/// Ends the process here if `CODEOID_TEST_STOP_AT` names this step. Release builds do nothing.
pub fn at(step: &str) {
    if cfg!(debug_assertions) && std::env::var_os("CODEOID_TEST_STOP_AT").is_some_and(|named| named == step) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
    }
}
