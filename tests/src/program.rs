//! The programs under test. They are copied to a place that every identity can read: a checkout may lie under
//! a directory (`/root`) that an ordinary user cannot enter.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

/// The path of `codeoid-shim`, with `codeoid-hook` beside it.
///
/// # Panics
/// If the programs have not been built, or cannot be copied.
#[must_use]
pub fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let built = built();
        let directory = crate::place::base().join(format!("bin-{}", stamp(&built)));
        forget_old_programs();
        fs::create_dir_all(&directory).expect("the tests' directory is writable");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("it was just made");
        install(&built, &directory);
        let hook = built.with_file_name("codeoid-hook");
        if hook.exists() {
            install(&hook, &directory);
        }
        directory.join("codeoid-shim")
    })
}

/// The text of a document of the project, by its path below the checkout's top.
///
/// # Panics
/// If there is no such document.
#[must_use]
pub fn docs(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `CODEOID_SHIM_BIN`, or the binary of the same build: `target/<profile>/codeoid-shim` beside `deps/`, in
/// which every test executable lies.
fn built() -> PathBuf {
    if let Some(path) = std::env::var_os("CODEOID_SHIM_BIN") {
        return fs::canonicalize(&path).unwrap_or_else(|error| panic!("CODEOID_SHIM_BIN {path:?}: {error}"));
    }
    let test = std::env::current_exe().expect("/proc is mounted");
    let path = test.parent().and_then(Path::parent).map(|dir| dir.join("codeoid-shim")).unwrap_or_default();
    assert!(
        path.exists(),
        "{} does not exist: build it first (`make test`, or `cargo build --workspace`), or set CODEOID_SHIM_BIN",
        path.display()
    );
    path
}

/// Removes copies that were made for earlier builds. Those of the last hour may belong to tests that run.
fn forget_old_programs() {
    for entry in fs::read_dir(crate::place::base()).into_iter().flatten().flatten() {
        let old = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        let program = entry.file_name().to_str().is_some_and(|name| name.starts_with("bin-"));
        if program && old.is_some_and(|age| age > Duration::from_secs(3600)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn stamp(path: &Path) -> String {
    let stamp = |path: &Path| {
        fs::metadata(path).map_or(0, |meta| {
            let changed = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            changed.map_or(0, |age| age.as_nanos()) ^ u128::from(meta.len())
        })
    };
    format!("{:x}", stamp(path) ^ stamp(&path.with_file_name("codeoid-hook")).rotate_left(7))
}

/// Copies once, however many tests start at the same time: under another name first, then rename(2).
fn install(program: &Path, directory: &Path) {
    let target = directory.join(program.file_name().expect("it is a file"));
    if target.exists() {
        return;
    }
    let draft = directory.join(format!(".{}-{:?}", std::process::id(), std::thread::current().id()));
    fs::copy(program, &draft).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("it was just made");
    fs::rename(&draft, &target).expect("same directory");
}
