//! What protection `shared` asks of the sandbox: binds, environment, and paths to watch.
//!
//! Three facts shape the binds. A pin is stepped around by moving its parent aside, so every directory on the
//! way is bound on itself: renaming a mount point is EBUSY (rename(2)). A pin on a path that the host replaces
//! is gone in the sandbox (the kernel detaches mounts of a dead dentry), so the check does not rely on pins.
//! A mount point that does not exist would have to be made in the user's checkout, so what is absent is watched
//! instead; an empty `commondir` alone would make git fail.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use codeoid_spec::git::{Access, Bind, Checkout, Guard, Protection, Repository};

use super::baseline::Inside;
use super::modules;
use crate::config;
use crate::entry;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};

/// Why a repository cannot be guarded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// A path that no OCI bundle can carry.
    #[error("{path:?} is not UTF-8, and a bundle's paths have to be")]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
}

/// Configuration for git inside the sandbox, so that nothing half-fails on a pin: collecting garbage and
/// expiring reflogs write into every entry, and setting an upstream writes `config`.
pub const CONFIG: [(&str, &str); 5] = [
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("branch.autoSetupMerge", "false"),
    ("gc.reflogExpire", "never"),
    ("gc.reflogExpireUnreachable", "never"),
];

/// Read-only where they exist, watched where they do not; relative to a git dir.
const PINNED: [&str; 9] = [
    "config",
    "config.worktree",
    "hooks",
    "branches",
    "remotes",
    "info/attributes",
    "info/grafts",
    "objects/info/alternates",
    "objects/info/http-alternates",
];

/// What protection `shared` asks of the sandbox for this repository.
///
/// # Errors
/// The bookkeeping cannot be read, or has a name that is not UTF-8.
pub fn guard(repository: &Repository) -> Result<Guard, Error> {
    let mut pins = Pins::default();
    let common = &repository.common_dir;
    pins.hold(common, "the common dir itself cannot be moved aside");
    let worktrees = common.join("worktrees");
    if is(&worktrees, Kind::Directory)? {
        pins.hold(&worktrees, "the worktree entries cannot be moved aside");
    }
    for foreign in repository.entries.iter().filter(|entry| !entry.own) {
        let path = worktrees.join(&foreign.id);
        // What has a worktree was just read as an entry; there may be a thousand of them.
        if foreign.worktree.is_some() || is(&path, Kind::Directory)? {
            pins.pin(&path, "the entry of another worktree");
        }
    }
    pins.git_dir(common, repository.main_checkout.as_deref())?;
    pins.modules(common)?;
    if let Checkout::Linked { entry, .. } = &repository.checkout {
        pins.own_entry(&worktrees.join(entry))?;
    }
    pins.pointer(repository)?;
    pins.checkouts(repository)?;
    let Pins { binds, watch, .. } = pins;
    if let Some(bind) = binds.iter().find(|bind| bind.source.to_str().is_none()) {
        return Err(Error::NotUtf8 { path: bind.source.clone() });
    }
    Ok(Guard {
        protection: Protection::Shared,
        repository: repository.clone(),
        binds,
        env: merge_config(&[], &CONFIG),
        watch,
    })
}

/// The pins that lie outside the common dir, which every protection needs: the workspace's own `.git` file, and the
/// worktrees of others below the workspace.
pub(crate) fn around(repository: &Repository) -> Result<Vec<Bind>, Error> {
    let mut pins = Pins::default();
    pins.pointer(repository)?;
    pins.checkouts(repository)?;
    Ok(pins.binds)
}

fn is(path: &Path, kind: Kind) -> Result<bool, read::Error> {
    Ok(read::lstat(path)?.is_some_and(|stamp| stamp.kind() == kind))
}

#[derive(Default)]
struct Pins {
    binds: Vec<Bind>,
    held: BTreeSet<PathBuf>,
    watch: Vec<PathBuf>,
}

impl Pins {
    fn bind(&mut self, path: &Path, access: Access, reason: &str) {
        self.binds.push(Bind {
            source: path.to_owned(),
            target: path.to_owned(),
            access,
            reason: reason.to_owned(),
        });
    }

    /// Binds a directory on itself, writable: it can then be neither renamed nor removed.
    fn hold(&mut self, path: &Path, reason: &str) {
        if self.held.insert(path.to_owned()) {
            self.bind(path, Access::Write, reason);
        }
    }

    fn pin(&mut self, path: &Path, reason: &str) {
        self.bind(path, Access::Read, reason);
    }

    /// Pins what git executes or follows in a git dir that is held already.
    fn git_dir(&mut self, git_dir: &Path, checkout: Option<&Path>) -> Result<(), Error> {
        self.watch.push(git_dir.join("commondir"));
        let Inside { hooks_path, includes } = Inside::of(&Dir::open(git_dir)?, checkout)?;
        for name in PINNED.into_iter().chain(hooks_path.iter().chain(&includes).map(String::as_str)) {
            let path = git_dir.join(name);
            match read::lstat(&path)?.map(|stamp| stamp.kind()) {
                None => self.watch.push(path),
                Some(Kind::File | Kind::Directory) => {
                    let between: Vec<_> = Path::new(name).ancestors().skip(1).collect();
                    for parent in between.into_iter().rev().filter(|p| !p.as_os_str().is_empty()) {
                        self.hold(&git_dir.join(parent), "what is pinned in it cannot be moved aside");
                    }
                    self.pin(&path, "git executes or follows it");
                }
                // A mount would land on the symlink's target; the check judges the symlink itself.
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn modules(&mut self, place: &Path) -> Result<(), Error> {
        for module in modules::discover(place)? {
            let top = place.join("modules");
            let mut way: Vec<_> = module.ancestors().take_while(|path| path.starts_with(&top)).collect();
            way.reverse();
            for directory in way {
                self.hold(directory, "a submodule's git dir cannot be moved aside");
            }
            let checkout = modules::checkout(&Dir::open(&module)?)?;
            self.git_dir(&module, checkout.as_deref())?;
        }
        Ok(())
    }

    /// The workspace's own entry: its pointers stay, while git works in it. (Entries of the session folders
    /// are left as they are: a turn has to be able to remove them.)
    fn own_entry(&mut self, path: &Path) -> Result<(), Error> {
        self.hold(path, "the workspace's own entry cannot be moved aside");
        for name in ["commondir", "gitdir", "config.worktree"] {
            let file = path.join(name);
            if is(&file, Kind::File)? {
                self.pin(&file, "git follows it");
            } else if name == "config.worktree" {
                self.watch.push(file);
            }
        }
        self.modules(path)
    }

    /// The workspace's `.git`, where it is a file.
    fn pointer(&mut self, repository: &Repository) -> Result<(), Error> {
        if let Checkout::Main { top } | Checkout::Linked { top, .. } = &repository.checkout {
            let path = top.join(".git");
            if is(&path, Kind::File)? {
                self.pin(&path, "git follows it");
            }
        }
        Ok(())
    }

    /// Other worktrees that lie below the workspace's checkout (`repo/.worktrees/x`), and would be writable
    /// with it.
    fn checkouts(&mut self, repository: &Repository) -> Result<(), Error> {
        let base = match &repository.checkout {
            Checkout::Main { top } | Checkout::Linked { top, .. } => top,
            Checkout::Bare => repository.common_dir.parent().unwrap_or(&repository.common_dir),
        };
        for foreign in repository.entries.iter().filter(|entry| !entry.own) {
            let Some(worktree) = &foreign.worktree else { continue };
            let inside = worktree.starts_with(base) && worktree != base;
            // What contains the git dir or a session folder is not just a worktree.
            let around = repository.common_dir.starts_with(worktree)
                || repository.session_folders.iter().any(|folder| folder.starts_with(worktree));
            if inside && !around && is(worktree, Kind::Directory)? {
                self.pin(worktree, "another worktree");
            }
        }
        Ok(())
    }
}

/// Adds configuration to that which the environment has already (`GIT_CONFIG_COUNT`, git-config(1)), and
/// returns all `GIT_CONFIG_*` variables. What is added counts over what was there.
#[must_use]
pub fn merge_config(environment: &[(String, String)], add: &[(&str, &str)]) -> Vec<(String, String)> {
    let value = |name: &str| {
        environment.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let count = value("GIT_CONFIG_COUNT").and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
    // A count beyond what an environment can hold is one that git refuses, too.
    let mut pairs: Vec<(String, String)> = (0..count.min(10_000))
        .filter_map(|n| {
            Some((value(&format!("GIT_CONFIG_KEY_{n}"))?, value(&format!("GIT_CONFIG_VALUE_{n}"))?))
        })
        .collect();
    pairs.extend(add.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let mut result = vec![("GIT_CONFIG_COUNT".to_owned(), pairs.len().to_string())];
    for (n, (key, value)) in pairs.into_iter().enumerate() {
        result.push((format!("GIT_CONFIG_KEY_{n}"), key));
        result.push((format!("GIT_CONFIG_VALUE_{n}"), value));
    }
    result
}

/// What protection `shared` leaves open in this repository, in sentences for a person.
///
/// # Errors
/// The configuration cannot be read.
pub fn limits(guard: &Guard) -> Result<Vec<String>, Error> {
    let repository = &guard.repository;
    let mut limits = vec![
        "protection shared: git that runs outside the sandbox while the turn lasts may follow what the turn \
         writes below .git; it is checked and put back when the turn ends"
            .to_owned(),
        "protection shared: the turn can move and delete any branch, and the contents of packs are not hashed \
         again"
            .to_owned(),
    ];
    let dir = Dir::open(&repository.common_dir)?;
    let config = dir.read("config".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    let file = config::File::parse(&config).unwrap_or_default();
    let writable = |path: &Path| {
        let top = match &repository.checkout {
            Checkout::Main { top } | Checkout::Linked { top, .. } => top.as_path(),
            Checkout::Bare => repository.common_dir.as_path(),
        };
        // Relative to the top for hooks, to the git dir for includes; `~` and absolute paths lie elsewhere.
        [top, &repository.common_dir].iter().any(|base| {
            let path = entry::normal(&base.join(path));
            path.starts_with(top) && !path.starts_with(&repository.common_dir)
        })
    };
    for variable in file.variables() {
        let Some(value) = &variable.value else { continue };
        let path = Path::new(OsStr::from_bytes(value));
        let name = &variable.name;
        let what = if name.is("core", "hookspath") {
            "hooks"
        } else if name.section.starts_with("include") && name.key == "path" {
            "configuration"
        } else {
            continue;
        };
        if !value.starts_with(b"~") && writable(path) {
            limits.push(format!(
                "the repository takes its {what} from {} ({name}), which the turn can write",
                path.display()
            ));
        }
    }
    if dir.lstat("hooks")?.is_some_and(|stamp| stamp.kind() == Kind::Symlink) {
        limits.push("hooks is a symlink: what it points to is not pinned".to_owned());
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Scratch;
    use crate::layout::find;

    fn guarded(path: &Path) -> Guard {
        guard(&find(path, &"s1".parse().unwrap(), &[]).unwrap().unwrap()).unwrap()
    }

    fn list(guard: &Guard, root: &Path) -> Vec<String> {
        guard
            .binds
            .iter()
            .map(|bind| {
                assert_eq!(bind.source, bind.target);
                let access = if bind.access == Access::Read { "ro" } else { "rw" };
                format!("{access} {}", bind.source.strip_prefix(root).unwrap().display())
            })
            .collect()
    }

    #[test]
    fn a_main_checkout() {
        let s = Scratch::new();
        s.repository("repo");
        std::fs::remove_dir_all(s.path("repo/.git/hooks")).unwrap();
        for name in ["branches", "info"] {
            let _ = std::fs::remove_dir_all(s.path("repo/.git").join(name));
        }
        s.git("repo", ["worktree", "add", "-q", "../feat"]);
        s.git("repo", ["worktree", "add", "-q", ".worktrees/in"]);
        let guard = guarded(&s.path("repo"));
        assert_eq!(
            list(&guard, &s.root),
            [
                "rw repo/.git",
                "rw repo/.git/worktrees",
                "ro repo/.git/worktrees/feat",
                "ro repo/.git/worktrees/in",
                "ro repo/.git/config",
                "ro repo/.worktrees/in",
            ]
        );
        for name in ["commondir", "hooks", "config.worktree", "info/attributes", "info/grafts", "remotes"] {
            assert!(guard.watch.contains(&s.path("repo/.git").join(name)), "{name}");
        }
        assert_eq!(guard.env[0], ("GIT_CONFIG_COUNT".to_owned(), CONFIG.len().to_string()));
    }

    #[test]
    fn parents_of_what_is_pinned_are_held() {
        let s = Scratch::new();
        s.repository("repo");
        s.write("repo/.git/info/attributes", "* text\n");
        s.write("repo/.git/objects/info/alternates", "/x\n");
        let list = list(&guarded(&s.path("repo")), &s.root);
        let at = |text: &str| list.iter().position(|line| line == text).unwrap_or_else(|| panic!("{list:?}"));
        assert!(at("rw repo/.git/info") < at("ro repo/.git/info/attributes"));
        assert!(at("rw repo/.git/objects") < at("rw repo/.git/objects/info"));
        assert!(at("rw repo/.git/objects/info") < at("ro repo/.git/objects/info/alternates"));
    }

    #[test]
    fn a_linked_worktree_and_submodules() {
        let s = Scratch::new();
        s.repository("lib");
        s.repository("repo");
        let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "--name", "a/b"];
        s.git("repo", add.into_iter().chain(["../lib", "sub"]));
        s.git("repo", ["worktree", "add", "-q", "../feat"]);
        let list = list(&guarded(&s.path("feat")), &s.root);
        for line in [
            "rw repo/.git",
            "rw repo/.git/modules",
            "rw repo/.git/modules/a",
            "rw repo/.git/modules/a/b",
            "ro repo/.git/modules/a/b/config",
            "ro repo/.git/modules/a/b/hooks",
            "rw repo/.git/worktrees/feat",
            "ro repo/.git/worktrees/feat/commondir",
            "ro repo/.git/worktrees/feat/gitdir",
            "ro feat/.git",
        ] {
            assert!(list.iter().any(|l| l == line), "{line}: {list:?}");
        }
        assert!(!list.iter().any(|line| line == "ro repo/.git/worktrees/feat"));
    }

    #[test]
    fn a_symlink_is_no_mount_point() {
        let s = Scratch::new();
        s.repository("repo");
        std::fs::rename(s.path("repo/.git/hooks"), s.path("repo/githooks")).unwrap();
        std::os::unix::fs::symlink("../githooks", s.path("repo/.git/hooks")).unwrap();
        let guard = guarded(&s.path("repo"));
        assert!(!guard.binds.iter().any(|bind| bind.source.ends_with("hooks")));
        assert!(limits(&guard).unwrap().iter().any(|limit| limit.contains("symlink")));
    }

    #[test]
    fn limits_name_what_lies_in_the_checkout() {
        let s = Scratch::new();
        s.repository("repo");
        let count = limits(&guarded(&s.path("repo"))).unwrap().len();
        s.git("repo", ["config", "core.hooksPath", ".husky"]);
        s.git("repo", ["config", "include.path", "../.gitconfig"]);
        s.git("repo", ["config", "--add", "include.path", "~/mine"]);
        let limits = limits(&guarded(&s.path("repo"))).unwrap();
        assert_eq!(limits.len(), count + 2, "{limits:?}");
    }

    #[test]
    fn configuration_of_the_environment_is_kept_and_outweighed() {
        let user = [("GIT_CONFIG_COUNT", "2"), ("GIT_CONFIG_KEY_0", "a.b"), ("GIT_CONFIG_VALUE_0", "c")];
        let user: Vec<_> = user.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let merged = merge_config(&user, &[("gc.auto", "0")]);
        let expected = [
            ("GIT_CONFIG_COUNT", "2"),
            ("GIT_CONFIG_KEY_0", "a.b"),
            ("GIT_CONFIG_VALUE_0", "c"),
            ("GIT_CONFIG_KEY_1", "gc.auto"),
            ("GIT_CONFIG_VALUE_1", "0"),
        ];
        assert_eq!(merged, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }
}
