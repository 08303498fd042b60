//! Who is at work. A lock file that nobody holds can be removed, one that a living git holds must not be; an
//! operation that a living git is in the middle of is left alone.
//!
//! Read from `/proc` (proc(5)). A process in another pid namespace is seen there all the same. What another
//! user's process holds is not visible (except to root), so the caller judges only files of its own uid: those
//! were made by a process that is visible here.

use std::path::{Path, PathBuf};

/// A process that is at work on a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name (`comm`).
    pub name: String,
}

/// What is known about a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nobody.
    Nobody,
    /// This one, at least.
    Somebody(Process),
    /// This system does not say.
    Unknown,
}

/// Whether a git process works in one of these directories: its current directory lies there.
#[must_use]
pub fn git_at_work(directories: &[&Path]) -> Answer {
    search(|process, proc| {
        // git's own name, that of its programs (git-remote-https, git-lfs), and of a git that was renamed for
        // a test or a wrapper (git2.39, git.real).
        if !process.name.starts_with("git") {
            return false;
        }
        let here = std::fs::read_link(proc.join("cwd"))
            .is_ok_and(|cwd| directories.iter().any(|directory| cwd.starts_with(directory)));
        here && !is_daemon(&std::fs::read(proc.join("cmdline")).unwrap_or_default())
    })
}

/// Whether a command line is that of a git which only waits to be asked.
fn is_daemon(command_line: &[u8]) -> bool {
    let daemons: [&[u8]; 3] = [b"fsmonitor--daemon", b"credential-cache--daemon", b"daemon"];
    command_line.split(|b| *b == 0).skip(1).take(1).any(|word| daemons.contains(&word))
}

/// Whether a process holds this file open.
#[must_use]
pub fn holder(device: u64, inode: u64) -> Answer {
    use std::os::unix::fs::MetadataExt as _;
    search(|_, proc| {
        let Ok(descriptors) = std::fs::read_dir(proc.join("fd")) else { return false };
        descriptors.flatten().any(|fd| {
            // Following the link asks for the open file itself, whatever its name is by now.
            std::fs::metadata(fd.path()).is_ok_and(|m| m.dev() == device && m.ino() == inode)
        })
    })
}

fn search(mut matches: impl FnMut(&Process, &Path) -> bool) -> Answer {
    let root = Path::new("/proc");
    if !root.join("self/comm").exists() {
        return Answer::Unknown;
    }
    let Ok(list) = std::fs::read_dir(root) else { return Answer::Unknown };
    let own = std::process::id();
    for item in list.flatten() {
        let Some(pid) = item.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let proc: PathBuf = item.path();
        let Ok(name) = std::fs::read(proc.join("comm")) else { continue };
        let process = Process { pid, name: String::from_utf8_lossy(&name).trim_end().to_owned() };
        if pid != own && matches(&process, &proc) {
            return Answer::Somebody(process);
        }
    }
    Answer::Nobody
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Command, Stdio};

    #[test]
    fn a_file_that_somebody_holds_open() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x.lock");
        let file = std::fs::File::create(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let mut child =
            Command::new("sleep").arg("60").stdin(Stdio::from(file)).stdout(Stdio::null()).spawn().unwrap();
        let found = holder(metadata.dev(), metadata.ino());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Answer::Somebody(Process { pid: child.id(), name: "sleep".to_owned() }));
        assert_eq!(holder(metadata.dev(), metadata.ino()), Answer::Nobody);
    }

    #[test]
    fn a_git_that_works_in_a_directory() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap();
        let git = real.join("git");
        std::fs::copy("/bin/sleep", &git).unwrap();
        let mut child = Command::new(&git).arg("60").current_dir(&real).spawn().unwrap();
        // spawn() returns when exec has closed its descriptors, which is shortly before it sets the name.
        let started = std::time::Instant::now();
        let mut found = Answer::Nobody;
        while found == Answer::Nobody && started.elapsed().as_secs() < 10 {
            found = git_at_work(&[&real]);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(&found, Answer::Somebody(p) if p.pid == child.id()), "{found:?}");
        assert_eq!(git_at_work(&[&real]), Answer::Nobody);
    }
}
