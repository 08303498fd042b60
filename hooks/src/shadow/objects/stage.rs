//! A place in the host's objects where git writes what it has not finished checking: as `git receive-pack` does it
//! (tmp-objdir.c), so that nothing of what is refused stays, and that a crash leaves what `git gc` clears away.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;
use crate::os::WriteError;

/// A directory of objects inside the host's; removed when this is dropped.
#[derive(Debug)]
pub(super) struct Stage {
    objects: PathBuf,
    directory: PathBuf,
}

/// The beginning of the names of a quarantine's stages. git's prune knows `tmp_objdir-`.
fn prefix(token: &str) -> String {
    format!("tmp_objdir-codeoid-{token}-")
}

impl Stage {
    pub(super) fn new(objects: &Path, token: &str) -> Result<Self, Error> {
        let directory = objects.join(format!("{}{}", prefix(token), std::process::id()));
        remove(&directory)?;
        let stage = Self { objects: objects.to_owned(), directory };
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        builder.create(&stage.directory).map_err(|e| WriteError::new(&stage.directory, e))?;
        let pack = stage.directory.join("pack");
        builder.create(&pack).map_err(|e| WriteError::new(&pack, e))?;
        Ok(stage)
    }

    /// Has a command write here, and see the host's objects.
    pub(super) fn direct(&self, command: &mut Command) {
        command
            .env("GIT_OBJECT_DIRECTORY", &self.directory)
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", super::admit::quoted(&self.objects));
    }

    /// The pack in it, if one was written.
    pub(super) fn pack(&self) -> Option<PathBuf> {
        let list = std::fs::read_dir(self.directory.join("pack")).ok()?;
        list.flatten().map(|item| item.path()).find(|path| path.extension() == Some(OsStr::new("pack")))
    }

    /// Moves everything to the host's objects. What is there already stays. Returns where the loose objects are.
    pub(super) fn migrate(self) -> Result<Vec<PathBuf>, Error> {
        let mut loose = Vec::new();
        for prefix in names(&self.directory)? {
            if prefix != "pack" && prefix.len() != 2 {
                continue;
            }
            let from = self.directory.join(&prefix);
            let to = self.objects.join(&prefix);
            let mut items = names(&from)?;
            if items.is_empty() {
                continue;
            }
            if prefix == "pack" {
                items.sort_by_key(|name| rank(name));
            }
            self.open_to_host(&to)?;
            for name in items {
                let target = to.join(&name);
                let is_finished = !name.as_encoded_bytes().starts_with(b"tmp_");
                if is_finished && target.symlink_metadata().is_err() {
                    std::fs::rename(from.join(&name), &target).map_err(|e| WriteError::new(&target, e))?;
                }
                if is_finished && prefix != "pack" {
                    loose.push(target);
                }
            }
        }
        Ok(loose)
    }

    /// Makes a directory of the host's objects where it is absent, for those whom the repository is shared with.
    fn open_to_host(&self, path: &Path) -> Result<(), Error> {
        match std::fs::create_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(WriteError::new(path, error).into()),
        }
        let wanted = self.objects.metadata().map_err(|e| WriteError::new(path, e))?.mode() & 0o7777;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(wanted))
            .map_err(|e| WriteError::new(path, e).into())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next stage, or by the host's `git gc`.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Removes what a crash left of a quarantine's stages.
pub(super) fn sweep(objects: &Path, token: &str) -> Result<(), Error> {
    let prefix = prefix(token);
    for name in names(objects)? {
        if name.as_encoded_bytes().starts_with(prefix.as_bytes()) {
            remove(&objects.join(name))?;
        }
    }
    Ok(())
}

/// git finds a pack by its index, so that comes last; what protects or explains the pack comes first.
fn rank(name: &OsStr) -> u8 {
    match Path::new(name).extension().map(OsStr::as_encoded_bytes) {
        Some(b"keep" | b"promisor") => 0,
        Some(b"pack") => 1,
        Some(b"idx") => 3,
        _ => 2,
    }
}

fn names(path: &Path) -> Result<Vec<OsString>, Error> {
    let fail = |source| Error::Host { path: path.to_owned(), source };
    let list = std::fs::read_dir(path).map_err(fail)?;
    list.map(|item| item.map(|item| item.file_name()).map_err(fail)).collect()
}

fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(WriteError::new(path, error).into()),
        _ => Ok(()),
    }
}
