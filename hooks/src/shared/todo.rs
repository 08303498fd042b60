//! Operations in progress that run something when they are continued: `exec` lines of an interactive rebase
//! (git-rebase(1), "EXECUTING COMMANDS"), and a merge strategy that is the name of a program `git-merge-<name>`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::baseline::settled;
use super::fault::Fault;
use crate::bytes::Bytes;
use crate::config;
use crate::process::{Answer, Work, git_at_work};
use crate::read::{self, Dir};

/// The most that is read of a list of things to do, in bytes.
const LIMIT: u64 = 16 * 1024 * 1024;
/// The strategies that git brings along (git-merge(1), "MERGE STRATEGIES").
const STRATEGIES: [&[u8]; 7] =
    [b"ort", b"recursive", b"resolve", b"octopus", b"ours", b"subtree", b"recursive-ours"];

/// The commands that a rebase in progress is going to run, in order.
pub(crate) fn commands(git_dir: &Dir) -> Result<Vec<Bytes>, read::Error> {
    let Some(content) = list(git_dir)? else { return Ok(Vec::new()) };
    Ok(content.split(|b| *b == b'\n').filter_map(command).map(|line| Bytes(line.to_vec())).collect())
}

fn list(git_dir: &Dir) -> Result<Option<Vec<u8>>, read::Error> {
    let Some(dir) = rebase(git_dir, "rebase-merge")? else { return Ok(None) };
    match dir.read("git-rebase-todo".as_ref(), LIMIT) {
        Ok(content) => Ok(content.map(|c| c.bytes)),
        Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn rebase(git_dir: &Dir, name: &str) -> Result<Option<Dir>, read::Error> {
    match git_dir.child(name.as_ref()) {
        Err(read::Error::NotDirectory { .. }) => Ok(None),
        other => other,
    }
}

/// A line that runs something, without white space around it (parse_insn_line() in git's sequencer.c).
fn command(line: &[u8]) -> Option<&[u8]> {
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    [&b"exec"[..], b"x"].contains(&&line[..end]).then_some(line)
}

/// Judges the operation in progress of a git dir or entry. `before` are the commands that were in it.
///
/// While a `git rebase` runs in the checkout, the operation is somebody's who is just doing it, and is left alone.
pub(super) fn judge(
    git_dir: &Dir,
    entry: Option<&str>,
    checkout: Option<&Path>,
    before: &[Bytes],
    taken: i64,
    faults: &mut Vec<Fault>,
) -> Result<(), read::Error> {
    let mut found = Vec::new();
    if let Some(content) = list(git_dir)? {
        let path = git_dir.path().join("rebase-merge/git-rebase-todo");
        let (rest, added) = without_new(&content, before);
        if !added.is_empty() {
            let what: Vec<_> = added.iter().take(3).map(|line| format!("{line:?}")).collect();
            let detail = format!(
                "the rebase in progress would have run {}; these lines do nothing now, the rebase can go on",
                what.join(", ")
            );
            found.push(Fault::removed("todo-exec-added", &path, detail).write(path, rest, 0o644));
        }
    }
    for (dir, file) in [("rebase-merge", "strategy"), ("sequencer", "opts")] {
        found.extend(strategy(git_dir, dir, file, taken)?);
    }
    let places: Vec<PathBuf> =
        checkout.map(Path::to_owned).into_iter().chain([git_dir.path().to_owned()]).collect();
    if !found.is_empty() && !matches!(git_at_work(&places, Work::Commands(&["rebase"])), Answer::Somebody(_))
    {
        faults.extend(found.into_iter().map(|fault| fault.entry(entry)));
    }
    Ok(())
}

/// The list with every command that was not there turned into `noop`, and those commands.
fn without_new(content: &[u8], before: &[Bytes]) -> (Vec<u8>, Vec<Bytes>) {
    let mut allowed = before.to_vec();
    let (mut rest, mut added) = (Vec::with_capacity(content.len()), Vec::new());
    for line in content.split_inclusive(|b| *b == b'\n') {
        let Some(found) = command(line) else {
            rest.extend_from_slice(line);
            continue;
        };
        match allowed.iter().position(|known| known.0 == found) {
            Some(index) => {
                allowed.swap_remove(index);
                rest.extend_from_slice(line);
            }
            None => {
                added.push(Bytes(found.to_vec()));
                rest.extend_from_slice(b"noop\n");
            }
        }
    }
    (rest, added)
}

fn strategy(git_dir: &Dir, dir: &str, file: &str, taken: i64) -> Result<Option<Fault>, read::Error> {
    let Some(operation) = rebase(git_dir, dir)? else { return Ok(None) };
    let Ok(Some(content)) = operation.read(OsStr::new(file), read::POINTER_LIMIT) else { return Ok(None) };
    if settled(&content.stamp, taken) {
        return Ok(None);
    }
    let named = if file == "opts" {
        let opts = config::File::parse(&content.bytes).unwrap_or_default();
        match opts.last("options", "strategy").flatten() {
            Some(strategy) => strategy.to_vec(),
            None => return Ok(None),
        }
    } else {
        content.bytes.trim_ascii().to_vec()
    };
    if STRATEGIES.contains(&named.as_slice()) {
        return Ok(None);
    }
    let path = operation.path().join(file);
    let name = String::from_utf8_lossy(&named).chars().take(80).collect::<String>();
    let detail = format!("the operation in progress would have run git-merge-{}", name.escape_debug());
    Ok(Some(Fault::removed("strategy-added", &path, detail).set_aside(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_commands_are_taken_out() {
        let before = [Bytes(b"exec make test".to_vec())];
        let todo = b"pick 1 a\nexec make test\n  x  evil\nexec make test\n# exec no\nexecute\nx\n";
        let (rest, added) = without_new(todo, &before);
        let expected = "pick 1 a\nexec make test\nnoop\nnoop\n# exec no\nexecute\nnoop\n";
        assert_eq!(String::from_utf8(rest).unwrap(), expected);
        let added: Vec<_> = added.iter().map(|line| String::from_utf8(line.0.clone()).unwrap()).collect();
        assert_eq!(added, ["x  evil", "exec make test", "x"]);
    }
}
