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
    /// Anything that may hold a lock: all but those that merely read, which a pager can keep for days, or only wait to
    /// be asked, as editors keep them.
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
    /// Whether that merely reads.
    pub reads: bool,
}

impl Git {
    /// Whether it does such work in one of these directories.
    #[must_use]
    pub fn is_at_work<P: AsRef<Path>>(&self, directories: &[P], work: Work) -> bool {
        let does = match work {
            Work::Locking => true,
            Work::Commands(names) => names.iter().any(|name| self.subcommand == name.as_bytes()),
        };
        does && !self.reads && directories.iter().any(|directory| self.directory.starts_with(directory))
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
            let (subcommand, reads) =
                (subcommand(&command_line).to_owned(), reads(&process.name, &command_line));
            gits.push(Git { process: process.clone(), directory, subcommand, reads });
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

/// Subcommands of git itself that merely read, or only wait to be asked. None makes or removes a worktree entry. The
/// most that one does besides is to write the index or a ref as a whole (`diff` what it has found out about unchanged
/// files, `log` a cache of conversions): the lock is open until it is renamed, so it is held, and never left over.
/// git lets nobody give these names another meaning (git-config(1), "alias.*").
const READING: [&[u8]; 33] = [
    b"annotate",
    b"blame",
    b"cat-file",
    b"check-attr",
    b"check-ignore",
    b"check-mailmap",
    b"cherry",
    b"count-objects",
    b"credential-cache--daemon",
    b"daemon",
    b"diff",
    b"diff-files",
    b"diff-index",
    b"diff-tree",
    b"for-each-ref",
    b"fsmonitor--daemon",
    b"grep",
    b"help",
    b"log",
    b"ls-files",
    b"ls-remote",
    b"ls-tree",
    b"merge-base",
    b"name-rev",
    b"range-diff",
    b"rev-list",
    b"rev-parse",
    b"shortlog",
    b"show",
    b"show-branch",
    b"show-ref",
    b"var",
    b"verify-pack",
];

/// The same, of subcommands that do other things besides.
const READING_PARTS: [[&[u8]; 2]; 7] = [
    [b"bisect", b"log"],
    [b"notes", b"list"],
    [b"notes", b"show"],
    [b"reflog", b"show"],
    [b"stash", b"list"],
    [b"stash", b"show"],
    [b"worktree", b"list"],
];

/// Whether a git process merely reads.
fn reads(name: &str, command_line: &[u8]) -> bool {
    // git-lfs, git-annex and the like mean other things by the same words.
    if name.contains('-') {
        return false;
    }
    let mut words = words(command_line);
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    READING.contains(&first) || READING_PARTS.contains(&[first, second])
}

/// The subcommand in a git command line (proc_pid_cmdline(5)); empty where there is none.
fn subcommand(command_line: &[u8]) -> &[u8] {
    words(command_line).next().unwrap_or_default()
}

/// A git command line from its subcommand on.
fn words(command_line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut words = command_line.split(|b| *b == 0).skip(1);
    let mut first = None;
    while let Some(word) = words.next() {
        match word {
            // These take the next word as their value (git(1), "OPTIONS").
            b"-c" | b"-C" | b"--git-dir" | b"--work-tree" | b"--namespace" | b"--exec-path" => {
                words.next();
            }
            _ if word.starts_with(b"-") => {}
            _ => {
                first = Some(word);
                break;
            }
        }
    }
    first.into_iter().chain(words)
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

    #[test]
    fn what_reads_is_told_from_what_writes() {
        for (name, line, expected) in [
            ("git", &b"git\0log\0"[..], true),
            ("git", b"git\0-c\0a.b=c\0diff\0--stat\0", true),
            ("git2.39", b"/usr/bin/git2.39\0show\0", true),
            ("git", b"git\0stash\0list\0", true),
            ("git", b"git\0stash\0", false),
            ("git", b"git\0stash\0push\0-m\0list\0", false),
            ("git", b"git\0worktree\0add\0list\0", false),
            ("git", b"git\0reflog\0expire\0", false),
            ("git", b"git\0commit\0-m\0log\0", false),
            ("git", b"git\0-C\0log\0commit\0", false),
            ("git", b"git\0lg\0log\0", false),
            ("git-annex", b"git-annex\0log\0", false),
            ("git", b"", false),
        ] {
            assert_eq!(reads(name, line), expected, "{}", String::from_utf8_lossy(line));
        }
    }
}
