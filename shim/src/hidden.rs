//! The default secrets, turned into paths of this host: patterns expanded, what the caller cannot read anyway
//! left out.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use codeoid_spec::host::Host;
use codeoid_spec::origin::{Origin, Sourced};
use codeoid_spec::paths::is_within;
use codeoid_spec::secrets;
use nix::unistd::{AccessFlags, access};

/// A directory with more names than this is not searched for a pattern; all of its names are treated as
/// matching nothing, and a warning is the caller's.
const MAX_NAMES: usize = 10_000;

/// The paths that are hidden by default.
pub fn defaults(host: &Host) -> Vec<Sourced<PathBuf>> {
    let mut list = Vec::new();
    let mut names = Names::default();
    for home in host.home.iter().chain(&host.other_home) {
        for place in secrets::places(home, |name| host.variable(name).map(Into::into)) {
            let origin = match place.variable {
                Some(variable) => Origin::environment(variable),
                None => Origin::default_rule(),
            };
            for path in names.expand(place.path) {
                let in_home = is_within(&path, home);
                // Hidden from root only: an ordinary user has the file's own mode to stop it, and each cover
                // of a system directory costs a mount.
                if in_home || host.is_root() || access(&path, AccessFlags::R_OK).is_ok() {
                    list.push(Sourced::new(path, origin.clone()));
                }
            }
        }
    }
    // Whether the caller can read their directories says nothing: to connect takes no more than to pass through.
    for socket in secrets::root_equivalent_places() {
        list.push(Sourced::new(socket, Origin::default_rule()));
    }
    list
}

/// The names in directories, each read once: many patterns ask for the same ones.
#[derive(Default)]
struct Names(HashMap<OsString, Vec<OsString>>);

impl Names {
    fn of(&mut self, dir: &Path) -> &[OsString] {
        self.0.entry(dir.as_os_str().to_owned()).or_insert_with(|| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.take(MAX_NAMES).map(|entry| entry.file_name()).collect()
        })
    }

    /// Expands `*` in the components of a path against what exists.
    fn expand(&mut self, path: PathBuf) -> Vec<PathBuf> {
        let is_pattern =
            |part: &Component<'_>| part.as_os_str().to_str().is_some_and(|text| text.contains('*'));
        if !path.as_os_str().as_bytes().contains(&b'*') {
            return vec![path];
        }
        let mut found = vec![PathBuf::new()];
        for part in path.components() {
            if !is_pattern(&part) {
                found.iter_mut().for_each(|at| at.push(part));
                continue;
            }
            let pattern = part.as_os_str().to_str().unwrap_or_default();
            let mut next = Vec::new();
            for dir in &found {
                let names = self.of(dir).iter();
                let matching =
                    names.filter(|name| name.to_str().is_some_and(|name| secrets::matches(pattern, name)));
                next.extend(matching.map(|name| dir.join(name)));
            }
            found = next;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_exists_in_any_component() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["p1.default/key", "p2.default/key", "other/key"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut found = Names::default().expand(dir.path().join("*.default/key"));
        found.sort();
        assert_eq!(found, [dir.path().join("p1.default/key"), dir.path().join("p2.default/key")]);
        let plain = dir.path().join("missing/x");
        assert_eq!(Names::default().expand(plain.clone()), [plain]);
    }
}
