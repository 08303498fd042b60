//! Links to the host's objects. A session's shadow borrows objects of the host; when the host deletes a branch and
//! collects garbage, the links keep what the session may still need. They cost no space until then.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::linkat;

use super::base::Base;
use super::place::Place;
use super::write;
use crate::os::OsError;
use crate::read::{Dir, Kind};

/// Links what is new of the host's objects. Returns `false` where that is impossible: the state directory is on another
/// file system, or the objects are somebody else's (`fs.protected_hardlinks`, proc_sys_fs(5)).
pub(crate) fn link(objects: &Dir, place: &Place, base: &mut Base) -> Result<bool, write::Error> {
    let to = write::directory(&Dir::open(place.root())?, "kept".as_ref())?;
    if objects.stamp()?.dev != to.stamp()?.dev {
        return Ok(false);
    }
    let mut names = Vec::new();
    objects.visit(|name, kind, _| {
        let bytes = name.to_bytes();
        if kind == Kind::Directory && (bytes == b"pack" || is_fan_out(bytes)) {
            names.push(name.to_owned());
        }
    })?;
    for name in names {
        let name = OsStr::from_bytes(name.to_bytes());
        let Some(from) = objects.child(name)? else { continue };
        let stamp = from.stamp()?;
        let key = name.to_string_lossy().into_owned();
        if base.kept.get(&key) == Some(&stamp) {
            continue;
        }
        if !link_directory(&from, &write::directory(&to, name)?)? {
            return Ok(false);
        }
        base.kept.insert(key, stamp);
    }
    Ok(true)
}

fn is_fan_out(name: &[u8]) -> bool {
    name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit)
}

fn link_directory(from: &Dir, to: &Dir) -> Result<bool, write::Error> {
    let mut there = std::collections::HashSet::new();
    to.visit(|name, _, _| {
        there.insert(name.to_owned());
    })?;
    let mut new = Vec::new();
    from.visit(|name, kind, _| {
        let temporary = name.to_bytes().starts_with(b"tmp_") || name.to_bytes().ends_with(b".lock");
        if kind == Kind::File && !temporary && !there.contains(name) {
            new.push(name.to_owned());
        }
    })?;
    for name in new {
        let name = OsStr::from_bytes(name.to_bytes());
        match linkat(from, name, to, name, AtFlags::empty()) {
            // Collected just now, or linked by nobody else than us.
            Ok(()) | Err(Errno::ENOENT | Errno::EEXIST) => {}
            Err(Errno::EPERM | Errno::EXDEV | Errno::EMLINK | Errno::EACCES) => return Ok(false),
            Err(errno) => return Err(OsError::new("linkat", to.path().join(name), errno).into()),
        }
    }
    Ok(true)
}
