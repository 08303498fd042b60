//! `.git` files outside the common dir: the workspace's own, and those of submodules. Whoever runs git in
//! there follows them.

use std::path::Path;

use super::baseline::Pointer;
use super::case::{Case, attempt};
use super::fault::{Fault, Step};
use crate::entry::{self, BackPointer};
use crate::read::{self, POINTER_LIMIT};

/// Judges all pointers that are remembered.
pub(super) fn judge(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for pointer in &case.baseline.pointers {
        // Within the checkout that it lies in, a turn can take any permission away.
        let checkout = case.writable.iter().find(|place| pointer.path.starts_with(place));
        let base = checkout.cloned().unwrap_or_else(|| pointer.path.clone());
        let fault = attempt(one(case, pointer), &base, faults);
        faults.extend(fault);
    }
}

fn one(case: &Case<'_>, pointer: &Pointer) -> Result<Option<Fault>, read::Error> {
    let Pointer { path, git_dir, content } = pointer;
    // The worktree or the git dir was removed, or the submodule deinitialised.
    let (Some(top), Some(stamp)) = (path.parent(), read::lstat(git_dir)?) else { return Ok(None) };
    if read::lstat(top)?.is_none_or(|stamp| stamp.kind() != read::Kind::Directory) {
        return Ok(None);
    }
    // What cannot be read is not just missing here.
    if let Err(error @ read::Error::Os(_)) = read::file(path, POINTER_LIMIT) {
        return Err(error);
    }
    let what = match entry::back_pointer(path, &stamp) {
        BackPointer::Agrees => return Ok(None),
        BackPointer::Missing => return Ok(None),
        BackPointer::Elsewhere(to) if claimed(case, &to, path)? => return Ok(None),
        BackPointer::Elsewhere(to) => format!("pointed to {}", to.display()),
        BackPointer::Other(kind) => format!("was {kind} that is no pointer"),
    };
    let detail = format!("this .git {what}; it points to {} again", git_dir.display());
    let fault = Fault::restored("pointer-changed", path, detail);
    Ok(Some(match content {
        Some(content) => fault.write(path, content.0.clone(), 0o644),
        None => fault.set_aside(path).step(Step::Link { path: path.clone(), target: git_dir.clone() }),
    }))
}

/// Whether an entry of this repository says that the pointer is its: the worktree was made anew.
fn claimed(case: &Case<'_>, entry_path: &Path, path: &Path) -> Result<bool, read::Error> {
    let real = entry::real(entry_path);
    if real.parent() != Some(&case.baseline.repository.common_dir.join("worktrees")) {
        return Ok(false);
    }
    let content = match read::file(&real.join("gitdir"), POINTER_LIMIT) {
        Ok(Some(content)) => content.bytes,
        _ => return Ok(false),
    };
    Ok(entry::gitdir_target(&real, &content).is_some_and(|target| entry::real(&target) == path))
}
