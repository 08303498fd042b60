//! Large files of git-lfs (its specification, "Objects"): a commit holds a pointer, the content lies beside the objects
//! under its SHA-256. What a session added is brought over before the refs that need it.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::{Error, write};
use crate::os::WriteError;
use crate::read::{self, Dir, Kind};

/// Brings over every large file of the shadow whose content has the hash that its name says, and that the host does
/// not have. Returns how many.
pub(crate) fn import(host: &Dir, shadow: &Dir) -> Result<usize, Error> {
    let source = match shadow.beneath(Path::new("lfs/objects")) {
        Ok(Some(source)) => source,
        Ok(None) | Err(read::Error::NotDirectory { .. }) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut brought = 0;
    for first in parts(&source)? {
        let Ok(Some(above)) = source.child(OsStr::from_bytes(&first)) else { continue };
        for second in parts(&above)? {
            let Ok(Some(dir)) = above.child(OsStr::from_bytes(&second)) else { continue };
            for item in dir.list()? {
                let name = item.name.as_bytes();
                let fits = item.kind == Kind::File
                    && name.len() == 64
                    && name.iter().all(u8::is_ascii_hexdigit)
                    && name.starts_with(&[first.as_slice(), &second].concat());
                if fits && bring(&dir, &item.name, host, &[&first, &second])? {
                    brought += 1;
                }
            }
        }
    }
    Ok(brought)
}

/// The directories of two digits in a directory.
fn parts(dir: &Dir) -> Result<Vec<Vec<u8>>, Error> {
    let mut found = Vec::new();
    dir.visit(|name, kind, _| {
        let name = name.to_bytes();
        if kind == Kind::Directory && name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit) {
            found.push(name.to_vec());
        }
    })?;
    Ok(found)
}

fn bring(from: &Dir, name: &OsStr, host: &Dir, parts: &[&Vec<u8>]) -> Result<bool, Error> {
    let mut relative = Path::new("lfs/objects").to_path_buf();
    relative.extend(parts.iter().map(|part| OsStr::from_bytes(part)));
    if host.lstat(relative.join(name).as_os_str())?.is_some() {
        return Ok(false);
    }
    let Ok(Some((mut source, _))) = from.open_file(name) else { return Ok(false) };
    let Some(to) = write::directories(host, &relative)? else { return Ok(false) };
    let draft = write::draft_name(name);
    let mut file = write::create(&to, &draft, 0o444)?;
    let failed = |source| Error::File(WriteError::new(to.path().join(&draft), source));
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = source.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(failed)?;
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found.as_bytes() != name.as_bytes() {
        // Still being written, or not what it says.
        write::unlink(&to, &draft)?;
        return Ok(false);
    }
    write::rename(&to, &draft, name)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Scratch;

    #[test]
    fn only_what_has_the_hash_that_its_name_says_comes_over() {
        let s = Scratch::new();
        // sha256 of "large\n".
        let name = "9e4c37b3ff9fe7cf4d64b1dbb7d0c28b4ebd2a7e0d8c4d5ef4dc0bb1d2a5b7c1";
        let real = {
            let hash: String = Sha256::digest(b"large\n").iter().map(|byte| format!("{byte:02x}")).collect();
            hash
        };
        let at = |name: &str| format!("lfs/objects/{}/{}/{name}", &name[..2], &name[2..4]);
        s.write(Path::new("shadow").join(at(&real)), "large\n");
        s.write(Path::new("shadow").join(at(name)), "forged\n");
        s.write("shadow/lfs/objects/zz/zz/x", "x");
        std::os::unix::fs::symlink("/etc", s.path("shadow/lfs/objects/ee")).unwrap();
        std::fs::create_dir(s.path("host")).unwrap();
        let (host, shadow) = (Dir::open(&s.path("host")).unwrap(), Dir::open(&s.path("shadow")).unwrap());
        assert_eq!(import(&host, &shadow).unwrap(), 1);
        assert_eq!(s.text(Path::new("host").join(at(&real))), "large\n");
        assert!(!s.path("host").join(at(name)).exists());
        assert_eq!(import(&host, &shadow).unwrap(), 0, "once");
        let left = std::fs::read_dir(s.path("host").join(at(&real)).parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no draft stays");
    }
}
