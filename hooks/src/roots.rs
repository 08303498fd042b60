//! Judging a directory that the owner wants worktrees in (`worktreeRoots`, `--worktree-root`). It becomes
//! writable for turns, so nothing may lie there that somebody runs, reads as configuration or trusts outside
//! the sandbox. The path is resolved first: a symlink to `~/.config` is judged as `~/.config`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

/// Directories of this system and of this program that a root is judged against. All paths are real paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// The caller's home.
    pub home: PathBuf,
    /// The state directory (session records, journals, audit log).
    pub state_dir: PathBuf,
    /// The runtime directory (`--root`).
    pub runtime_dir: PathBuf,
    /// The owner's configuration file.
    pub config_file: PathBuf,
    /// The common dir of the repository at hand, where there is one.
    pub common_dir: Option<PathBuf>,
}

/// Why a directory cannot be a worktree root.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A relative path means something else in every directory.
    #[error("worktree root {root} is not an absolute path")]
    NotAbsolute {
        /// The root as it was written.
        root: PathBuf,
    },
    /// It does not exist, or cannot be reached.
    #[error("worktree root {root}")]
    Unreachable {
        /// The root as it was written.
        root: PathBuf,
        /// What the kernel answered.
        #[source]
        source: std::io::Error,
    },
    /// It is something else.
    #[error("worktree root {root} is not a directory")]
    NotADirectory {
        /// The root, resolved.
        root: PathBuf,
    },
    /// A bundle's paths have to be UTF-8.
    #[error("worktree root {root:?} is not UTF-8, and a bundle's paths have to be")]
    NotUtf8 {
        /// The root, resolved.
        root: PathBuf,
    },
    /// The root of the file system.
    #[error("a worktree root must not be the root directory")]
    RootDirectory,
    /// The home directory.
    #[error("worktree root {root} is the home directory: take a directory in it")]
    Home {
        /// The root, resolved.
        root: PathBuf,
    },
    /// A directory that the home lies in.
    #[error("worktree root {root} contains the home directory {home}")]
    AboveHome {
        /// The root, resolved.
        root: PathBuf,
        /// The home.
        home: PathBuf,
    },
    /// What lies there is run, or read as configuration, outside the sandbox.
    #[error("worktree root {root} lies in {directory} or contains it, and {why}")]
    RunsOutside {
        /// The root, resolved.
        root: PathBuf,
        /// The directory that is protected.
        directory: PathBuf,
        /// What is there.
        why: &'static str,
    },
    /// The program's own directories.
    #[error("worktree root {root} lies in {directory} or contains it, which is codeoid's own")]
    Codeoid {
        /// The root, resolved.
        root: PathBuf,
        /// The directory that is protected.
        directory: PathBuf,
    },
    /// Nothing of a session is ever put into a checkout.
    #[error("worktree root {root} lies in the checkout {checkout}: take a directory beside it")]
    InCheckout {
        /// The root, resolved.
        root: PathBuf,
        /// The checkout.
        checkout: PathBuf,
    },
    /// The bookkeeping of a repository.
    #[error("worktree root {root} lies inside the git dir {git_dir}")]
    InGitDir {
        /// The root, resolved.
        root: PathBuf,
        /// The git dir.
        git_dir: PathBuf,
    },
    /// Somebody else owns it.
    #[error("worktree root {root} belongs to uid {owner}, not to the caller")]
    NotOwned {
        /// The root, resolved.
        root: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others could put a directory of theirs in its place, or files into it.
    #[error("worktree root {root}: {directory} is writable by others (mode {mode:o})")]
    WritableByOthers {
        /// The root, resolved.
        root: PathBuf,
        /// The root itself, or a directory above it.
        directory: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

const SYSTEM: &[(&str, &str)] = &[
    ("/bin", "programs lie there"),
    ("/sbin", "programs lie there"),
    ("/lib", "libraries of programs lie there"),
    ("/lib32", "libraries of programs lie there"),
    ("/lib64", "libraries of programs lie there"),
    ("/usr", "programs lie there"),
    ("/opt", "programs lie there"),
    ("/etc", "the system's configuration lies there"),
    ("/boot", "the system starts from there"),
    ("/dev", "devices lie there"),
    ("/proc", "it is the kernel's"),
    ("/sys", "it is the kernel's"),
    ("/run", "sockets of services lie there"),
    ("/var/run", "sockets of services lie there"),
    ("/var/lib", "services keep what they run there"),
    ("/var/spool", "scheduled jobs lie there"),
    ("/var/snap", "programs lie there"),
    ("/snap", "programs lie there"),
    ("/nix", "programs lie there"),
    ("/gnu", "programs lie there"),
    ("/home/linuxbrew", "programs lie there"),
    ("/System", "programs lie there"),
    ("/Library", "launch agents and programs lie there"),
    ("/Applications", "programs lie there"),
    ("/private/etc", "the system's configuration lies there"),
    ("/private/var/db", "services keep what they run there"),
];

const PROGRAMS: &str = "programs that run outside the sandbox lie there";
const SETTINGS: &str = "configuration that is read outside the sandbox lies there";
const KEYS: &str = "keys lie there";
const STARTED: &str = "what lies there is started at login";

/// Below the home.
const HOME: &[(&str, &str)] = &[
    (".config", SETTINGS),
    (".local", PROGRAMS),
    ("bin", PROGRAMS),
    (".bin", PROGRAMS),
    (".cargo", PROGRAMS),
    (".rustup", PROGRAMS),
    ("go/bin", PROGRAMS),
    (".npm", PROGRAMS),
    (".npm-global", PROGRAMS),
    (".nvm", PROGRAMS),
    (".volta", PROGRAMS),
    (".bun", PROGRAMS),
    (".deno", PROGRAMS),
    (".yarn", PROGRAMS),
    (".pyenv", PROGRAMS),
    (".rbenv", PROGRAMS),
    (".rvm", PROGRAMS),
    (".asdf", PROGRAMS),
    (".sdkman", PROGRAMS),
    (".nix-profile", PROGRAMS),
    (".linuxbrew", PROGRAMS),
    (".dotnet", PROGRAMS),
    (".gem", PROGRAMS),
    (".krew", PROGRAMS),
    (".cache", "programs keep there what they run (pre-commit, ccache, language servers)"),
    (".conda", PROGRAMS),
    ("miniconda3", PROGRAMS),
    ("anaconda3", PROGRAMS),
    ("miniforge3", PROGRAMS),
    (".venv", PROGRAMS),
    ("venv", PROGRAMS),
    (".virtualenvs", PROGRAMS),
    ("node_modules", PROGRAMS),
    (".fzf", PROGRAMS),
    (".gradle", PROGRAMS),
    (".m2", PROGRAMS),
    ("snap", PROGRAMS),
    (".var", PROGRAMS),
    ("Applications", PROGRAMS),
    ("Library", "launch agents and configuration lie there"),
    (".oh-my-zsh", SETTINGS),
    (".zsh", SETTINGS),
    (".bash.d", SETTINGS),
    (".bashrc.d", SETTINGS),
    (".profile.d", SETTINGS),
    (".vim", SETTINGS),
    (".emacs.d", SETTINGS),
    (".doom.d", SETTINGS),
    (".vscode", SETTINGS),
    (".vscode-server", PROGRAMS),
    (".cursor", SETTINGS),
    (".idea", SETTINGS),
    (".tmux", SETTINGS),
    (".git-templates", "git copies hooks from there"),
    (".githooks", "git runs what lies there"),
    (".claude", SETTINGS),
    (".codex", SETTINGS),
    (".gemini", SETTINGS),
    (".agents", SETTINGS),
    (".docker", SETTINGS),
    (".kube", SETTINGS),
    (".aws", KEYS),
    (".azure", KEYS),
    (".ssh", KEYS),
    (".gnupg", KEYS),
    (".password-store", KEYS),
    (".mozilla", SETTINGS),
    ("Desktop", STARTED),
    (".xsession.d", STARTED),
];

/// Judges a worktree root and returns its real path.
///
/// # Errors
/// Each reason for a refusal is a variant of its own.
pub fn validate(root: &Path, context: &Context) -> Result<PathBuf, Error> {
    if !root.is_absolute() {
        return Err(Error::NotAbsolute { root: root.to_owned() });
    }
    let unreachable = |source| Error::Unreachable { root: root.to_owned(), source };
    let real = root.canonicalize().map_err(unreachable)?;
    let metadata = real.metadata().map_err(unreachable)?;
    if !metadata.is_dir() {
        return Err(Error::NotADirectory { root: real });
    }
    if real.to_str().is_none() {
        return Err(Error::NotUtf8 { root: real });
    }
    place(&real, context)?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(Error::NotOwned { root: real, owner: metadata.uid() });
    }
    writable(&real)?;
    Ok(real)
}

fn place(root: &Path, context: &Context) -> Result<(), Error> {
    let owned = || root.to_owned();
    if root.parent().is_none() {
        return Err(Error::RootDirectory);
    }
    let home = resolved(&context.home);
    if root == home {
        return Err(Error::Home { root: owned() });
    }
    if home.starts_with(root) {
        return Err(Error::AboveHome { root: owned(), home });
    }
    let system = SYSTEM.iter().map(|(path, why)| (PathBuf::from(path), *why));
    let user = HOME.iter().map(|(name, why)| (home.join(name), *why));
    for (directory, why) in system.chain(user) {
        // A system directory that the home lies in (/var/lib/service of a service's user) is judged by the
        // home's own list.
        let directory = resolved(&directory);
        let around_home = home.starts_with(&directory) && root.starts_with(&home);
        if touches(root, &directory) && !around_home {
            return Err(Error::RunsOutside { root: owned(), directory, why });
        }
    }
    let own = [
        Some(home.join(".codeoid")),
        Some(context.state_dir.clone()),
        Some(context.runtime_dir.clone()),
        context.config_file.parent().map(Path::to_owned),
    ];
    for directory in own.into_iter().flatten().filter(|path| path.parent().is_some()) {
        let directory = resolved(&directory);
        if touches(root, &directory) {
            return Err(Error::Codeoid { root: owned(), directory });
        }
    }
    let git_dir = context.common_dir.iter().find(|dir| root.starts_with(resolved(dir))).cloned();
    let any = || root.ancestors().find(|path| is_git_dir(path)).map(Path::to_owned);
    if let Some(git_dir) = git_dir.or_else(any) {
        return Err(Error::InGitDir { root: owned(), git_dir });
    }
    // A home that is a checkout itself (of one's dotfiles) says nothing about what lies in it.
    let checkout = root.ancestors().take_while(|path| *path != home).find(|path| has(path, ".git"));
    match checkout {
        Some(checkout) => Err(Error::InCheckout { root: owned(), checkout: checkout.to_owned() }),
        None => Ok(()),
    }
}

fn touches(root: &Path, directory: &Path) -> bool {
    root.starts_with(directory) || directory.starts_with(root)
}

fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn has(path: &Path, name: &str) -> bool {
    path.join(name).symlink_metadata().is_ok()
}

fn is_git_dir(path: &Path) -> bool {
    has(path, "HEAD") && (has(path, "commondir") || (has(path, "objects") && has(path, "refs")))
}

/// The root must not be writable by others, and nobody else may be able to put something in its place.
fn writable(root: &Path) -> Result<(), Error> {
    for directory in root.ancestors() {
        let unreachable = |source| Error::Unreachable { root: root.to_owned(), source };
        let metadata = directory.metadata().map_err(unreachable)?;
        let mode = metadata.mode();
        // Where every user has a group of their own, directories are made group-writable (umask 002).
        let group = mode & 0o020 != 0 && metadata.gid() != getegid().as_raw() && metadata.gid() != 0;
        let shared = group || mode & 0o002 != 0;
        // In a sticky directory (/tmp) nobody can rename or remove what belongs to somebody else.
        let sticky = mode & 0o1000 != 0 && directory != root;
        if shared && !sticky {
            return Err(Error::WritableByOthers {
                root: root.to_owned(),
                directory: directory.to_owned(),
                mode: mode & 0o7777,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir_all, set_permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    struct Place {
        _temp: tempfile::TempDir,
        root: PathBuf,
        context: Context,
    }

    fn place() -> Place {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        for name in ["u/home/src", "u/home/.config", "u/home/.codeoid", "state/x", "run", "r/.git/x", "wt"] {
            create_dir_all(at(name)).unwrap();
        }
        let context = Context {
            home: at("u/home"),
            state_dir: at("state"),
            runtime_dir: at("run"),
            config_file: at("u/home/.codeoid/config.json"),
            common_dir: Some(at("r/.git")),
        };
        Place { _temp: temp, root, context }
    }

    impl Place {
        fn judge(&self, name: &str) -> Result<PathBuf, Error> {
            validate(&self.root.join(name), &self.context)
        }
    }

    #[test]
    fn an_own_directory_is_accepted_resolved() {
        let p = place();
        symlink("wt", p.root.join("link")).unwrap();
        for name in ["wt", "link", "run/../wt"] {
            assert_eq!(p.judge(name).unwrap(), p.root.join("wt"), "{name}");
        }
        assert!(p.judge("u/home/src").is_ok());
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let p = place();
        std::fs::write(p.root.join("file"), "").unwrap();
        assert!(matches!(validate(Path::new("relative"), &p.context), Err(Error::NotAbsolute { .. })));
        assert!(matches!(p.judge("absent"), Err(Error::Unreachable { .. })));
        assert!(matches!(p.judge("file"), Err(Error::NotADirectory { .. })));
        let latin = p.root.join(std::ffi::OsStr::from_bytes(b"\xff"));
        create_dir_all(&latin).unwrap();
        assert!(matches!(validate(&latin, &p.context), Err(Error::NotUtf8 { .. })));
    }
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn the_root_directory_and_the_home_are_refused() {
        let p = place();
        assert!(matches!(validate(Path::new("/"), &p.context), Err(Error::RootDirectory)));
        assert!(matches!(validate(Path::new("/usr/.."), &p.context), Err(Error::RootDirectory)));
        assert!(matches!(p.judge("u/home"), Err(Error::Home { .. })));
        assert!(matches!(p.judge("u"), Err(Error::AboveHome { .. })));
    }

    #[test]
    fn what_runs_outside_is_refused_however_it_is_spelt() {
        let p = place();
        for name in ["u/home/.local/share", "u/home/bin", "u/home/.cargo/bin", "u/home/.config/systemd/user"]
        {
            create_dir_all(p.root.join(name)).unwrap();
            assert!(matches!(p.judge(name), Err(Error::RunsOutside { .. })), "{name}");
        }
        symlink("u/home/.config", p.root.join("link")).unwrap();
        for name in ["link", "u/home/src/../.config", "u/home/src/../../home/.config"] {
            match p.judge(name) {
                Err(Error::RunsOutside { directory, .. }) => {
                    assert_eq!(directory, p.root.join("u/home/.config"));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        for name in ["/etc", "/usr/local", "/usr/bin", "/opt", "/proc/self", "/var"] {
            assert!(
                matches!(validate(Path::new(name), &p.context), Err(Error::RunsOutside { .. })),
                "{name}"
            );
        }
    }

    #[test]
    fn codeoids_own_directories_are_refused() {
        let p = place();
        for name in ["state", "state/x", "run", "u/home/.codeoid"] {
            assert!(matches!(p.judge(name), Err(Error::Codeoid { .. })), "{name}");
        }
        // A directory that contains the state directory.
        let mut context = p.context.clone();
        context.state_dir = p.root.join("wt/state");
        assert!(matches!(validate(&p.root.join("wt"), &context), Err(Error::Codeoid { .. })));
    }

    #[test]
    fn the_inside_of_a_git_dir_is_refused() {
        let p = place();
        assert!(matches!(p.judge("r/.git/x"), Err(Error::InGitDir { .. })));
        // Any other repository's, too.
        create_dir_all(p.root.join("bare.git/objects/x")).unwrap();
        create_dir_all(p.root.join("bare.git/refs")).unwrap();
        std::fs::write(p.root.join("bare.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        assert!(matches!(p.judge("bare.git/objects/x"), Err(Error::InGitDir { .. })));
    }

    #[test]
    fn the_inside_of_a_checkout_is_refused() {
        let p = place();
        create_dir_all(p.root.join("r/sub")).unwrap();
        for name in ["r", "r/sub"] {
            assert!(matches!(p.judge(name), Err(Error::InCheckout { .. })), "{name}");
        }
        // A home that is a repository of one's dotfiles is no checkout of anything else.
        create_dir_all(p.root.join("u/home/.git")).unwrap();
        create_dir_all(p.root.join("u/home/worktrees")).unwrap();
        assert!(p.judge("u/home/worktrees").is_ok());
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let p = place();
        let mode = |name: &str, mode| {
            set_permissions(p.root.join(name), Permissions::from_mode(mode)).unwrap();
        };
        mode("wt", 0o777);
        assert!(matches!(p.judge("wt"), Err(Error::WritableByOthers { mode: 0o777, .. })));
        mode("wt", 0o1777);
        assert!(matches!(p.judge("wt"), Err(Error::WritableByOthers { .. })), "sticky is for what is in it");
        create_dir_all(p.root.join("wt/mine")).unwrap();
        assert!(p.judge("wt/mine").is_ok());
        mode("wt", 0o777);
        match p.judge("wt/mine") {
            Err(Error::WritableByOthers { directory, .. }) => assert_eq!(directory, p.root.join("wt")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn somebody_elses_directory_is_refused() {
        let p = place();
        if geteuid().is_root() {
            std::os::unix::fs::chown(p.root.join("wt"), Some(12_345), None).unwrap();
            assert!(matches!(p.judge("wt"), Err(Error::NotOwned { owner: 12_345, .. })));
        } else {
            // Only root can give a directory away; /var/tmp itself belongs to root everywhere.
            assert!(matches!(
                validate(Path::new("/var/tmp"), &p.context),
                Err(Error::NotOwned { owner: 0, .. })
            ));
        }
    }
}
