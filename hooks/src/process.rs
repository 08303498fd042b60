//! Who is at work. A lock file that nobody holds can be removed, one that a living git holds must not be; an
//! operation that a living git is in the middle of is left alone.
//!
//! Read from `/proc` (proc(5)). A process in another pid namespace is seen there all the same. What another
//! user's process holds is not visible (except to root), so the caller judges only files of its own uid: those
//! were made by a process that is visible here.

use std::collections::HashSet;
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

/// What a git process does that matters to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Anything that may hold a lock: all but those that only wait to be asked, as editors keep them.
    Locking,
    /// One of these subcommands.
    Commands(&'static [&'static str]),
}

/// A git process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Git {
    /// The process.
    pub process: Process,
    /// Its current directory.
    pub directory: PathBuf,
    /// Its subcommand; empty where it has none.
    pub subcommand: Vec<u8>,
}

impl Git {
    /// Whether it does such work in one of these directories.
    #[must_use]
    pub fn is_at_work<P: AsRef<Path>>(&self, directories: &[P], work: Work) -> bool {
        let does = match work {
            Work::Locking => !WAITING.contains(&self.subcommand.as_slice()),
            Work::Commands(names) => names.iter().any(|name| self.subcommand == name.as_bytes()),
        };
        does && directories.iter().any(|directory| self.directory.starts_with(directory))
    }
}

/// All git processes that can be seen, wherever they work; `None` where this system does not say.
#[must_use]
pub fn gits() -> Option<Vec<Git>> {
    let mut gits = Vec::new();
    let answer = search(|process, proc| {
        // git's own name, that of its programs (git-remote-https, git-lfs), and of a git that was renamed for
        // a test or a wrapper (git2.39, git.real).
        if process.name.starts_with("git")
            && let Ok(directory) = std::fs::read_link(proc.join("cwd"))
        {
            let command_line = std::fs::read(proc.join("cmdline")).unwrap_or_default();
            let subcommand = subcommand(&command_line).to_owned();
            gits.push(Git { process: process.clone(), directory, subcommand });
        }
        false
    });
    (answer != Answer::Unknown).then_some(gits)
}

/// Whether a git process does such work in one of these directories: its current directory lies there.
#[must_use]
pub fn git_at_work<P: AsRef<Path>>(directories: &[P], work: Work) -> Answer {
    match gits() {
        None => Answer::Unknown,
        Some(gits) => {
            let found = gits.into_iter().find(|git| git.is_at_work(directories, work));
            found.map_or(Answer::Nobody, |git| Answer::Somebody(git.process))
        }
    }
}

/// Subcommands that only wait to be asked, or only read.
const WAITING: [&[u8]; 6] = [
    b"cat-file",
    b"check-attr",
    b"check-ignore",
    b"credential-cache--daemon",
    b"daemon",
    b"fsmonitor--daemon",
];

/// The subcommand in a git command line (proc_pid_cmdline(5)); empty where there is none.
fn subcommand(command_line: &[u8]) -> &[u8] {
    let mut words = command_line.split(|b| *b == 0).skip(1);
    while let Some(word) = words.next() {
        match word {
            // These take the next word as their value (git(1), "OPTIONS").
            b"-c" | b"-C" | b"--git-dir" | b"--work-tree" | b"--namespace" | b"--exec-path" => {
                words.next();
            }
            _ if word.starts_with(b"-") => {}
            _ => return word,
        }
    }
    b""
}

/// Which of these files (device and inode) some process holds open; `None` where this system does not say.
#[must_use]
pub fn held(files: &HashSet<(u64, u64)>) -> Option<HashSet<(u64, u64)>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut held = HashSet::new();
    let answer = search(|_, proc| {
        let Ok(descriptors) = std::fs::read_dir(proc.join("fd")) else { return false };
        // Following the link asks for the open file itself, whatever its name is by now.
        let open = descriptors.flatten().filter_map(|fd| std::fs::metadata(fd.path()).ok());
        held.extend(open.map(|m| (m.dev(), m.ino())).filter(|file| files.contains(file)));
        false
    });
    (answer != Answer::Unknown).then_some(held)
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
        let files = HashSet::from([(metadata.dev(), metadata.ino()), (0, 0)]);
        let found = held(&files);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(HashSet::from([(metadata.dev(), metadata.ino())])));
        assert_eq!(held(&files), Some(HashSet::new()));
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
            found = git_at_work(&[&real], Work::Locking);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(&found, Answer::Somebody(p) if p.pid == child.id()), "{found:?}");
        assert_eq!(git_at_work(&[&real], Work::Locking), Answer::Nobody);
    }

    #[test]
    fn subcommands_are_found_behind_options() {
        for (line, expected) in [
            (&b"git\0status\0"[..], &b"status"[..]),
            (b"git\0-c\0a.b=c\0-C\0/x\0--no-pager\0cat-file\0--batch\0", b"cat-file"),
            (b"git\0--git-dir=/x\0rebase\0--continue\0", b"rebase"),
            (b"git\0-c\0", b""),
            (b"", b""),
        ] {
            assert_eq!(subcommand(line), expected);
        }
    }
}
