//! From the shadow into the quarantine.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use gix::ObjectId;

use super::loose::{Budget, Copier, Outcome};
use super::seen::Seen;
use super::{Error, Host, INFLATED, Store, promised};
use crate::os::WriteError;
use crate::read::{self, Dir, Kind, Stamp};
use crate::shadow::git;

/// As many names are looked at in one directory. git spreads loose objects over 256, and packs them when there are
/// some 6,700 in all.
const NAMES: usize = 200_000;

/// What one [`Store::gather`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Loose objects that were brought over.
    pub objects: usize,
    /// Packs that were brought over.
    pub packs: usize,
    /// Files that are not what they say, or that nobody can read; they stay in the shadow. What was hashed in vain is
    /// not hashed, and not counted, again.
    pub refused: usize,
    /// Files that go beyond a limit; they stay in the shadow.
    pub left: usize,
}

impl Gathered {
    /// Whether something new is in the quarantine.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.objects == 0 && self.packs == 0
    }
}

/// One gathering.
struct Run<'s, 'a> {
    store: &'s Store<'a>,
    host: Host,
    seen: Seen,
    budget: Budget,
    copier: Option<Copier>,
    started: Instant,
    done: Gathered,
}

impl Store<'_> {
    /// Reads the shadow's objects, and brings over those that neither the host nor the quarantine has. What is not
    /// what it says is counted and left out. May run while the turn writes: what is not finished is met the next time.
    /// Costs no process unless there is a pack that was not seen.
    ///
    /// # Errors
    /// Those of writing the quarantine, and of running git at all.
    pub fn gather(&self) -> Result<Gathered, Error> {
        let mut run = Run {
            store: self,
            host: Host::new(self),
            seen: Seen::load(&self.quarantine),
            budget: Budget { disk: 0, inflated: INFLATED },
            copier: None,
            started: Instant::now(),
            done: Gathered::default(),
        };
        if let Some(objects) = run.enter(self.shadow, "objects".as_ref())? {
            run.budget.disk = free(&self.quarantine) / 2;
            let names = run.list(&objects)?;
            // What was seen is worth nothing without the quarantine.
            if !self.quarantine.is_dir() {
                run.seen = Seen::default();
            }
            for (name, kind) in names {
                let is_pack = name == "pack";
                if !is_pack && !is_hex(&name, 2) {
                    continue;
                }
                if kind != Kind::Directory {
                    run.done.refused += 1;
                } else if is_pack {
                    run.packs(&objects)?;
                } else {
                    run.fan_out(&objects, &name)?;
                }
            }
        }
        run.seen.store(&self.quarantine)?;
        Ok(run.done)
    }

    /// Makes a directory of the quarantine, and the quarantine.
    fn make(&self, path: &Path) -> Result<(), Error> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(|e| WriteError::new(path, e).into())
    }
}

impl Run<'_, '_> {
    /// Opens a directory of the shadow. What is there instead is counted; so is a directory that nobody may read.
    fn enter(&mut self, parent: &Dir, name: &OsStr) -> Result<Option<Dir>, Error> {
        match parent.child(name) {
            Ok(found) => Ok(found),
            Err(error) => self.refuse(error).map(|()| None),
        }
    }

    /// The shadow's own trouble is counted; the process's (no descriptor left) is an error.
    fn refuse(&mut self, error: read::Error) -> Result<(), Error> {
        use nix::errno::Errno::{EMFILE, ENFILE, ENOMEM};
        match error.errno() {
            Some(EMFILE | ENFILE | ENOMEM) => Err(error.into()),
            _ => {
                self.done.refused += 1;
                Ok(())
            }
        }
    }

    /// Whether there is no room, or no time, for such a file.
    fn is_over(&self, stamp: &Stamp) -> bool {
        stamp.size > self.budget.disk || self.started.elapsed() > git::PATIENCE
    }

    /// The sorted names in a directory of the shadow.
    fn list(&mut self, dir: &Dir) -> Result<Vec<(OsString, Kind)>, Error> {
        let mut names = Vec::new();
        let mut count = 0;
        let visited = dir.visit(|name, kind, _| {
            count += 1;
            if count <= NAMES {
                names.push((OsStr::from_bytes(name.to_bytes()).to_owned(), kind));
            }
        });
        self.done.left += usize::from(count > NAMES);
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        visited.or_else(|error| self.refuse(error)).map(|()| names)
    }

    fn fan_out(&mut self, objects: &Dir, prefix: &OsStr) -> Result<(), Error> {
        let Some(dir) = self.enter(objects, prefix)? else { return Ok(()) };
        let digits = self.store.kind.len_in_hex() - 2;
        let items = self.list(&dir)?;
        let here = self.store.quarantine.join(prefix);
        let have = names(&here)?;
        for (name, kind) in items {
            // Temporary files of git (`tmp_obj_…`), and whatever else has no business there.
            if !is_hex(&name, digits) || have.binary_search(&name).is_ok() {
                continue;
            }
            if kind != Kind::File {
                self.done.refused += 1;
                continue;
            }
            self.loose(&dir, prefix, &name, &here)?;
        }
        Ok(())
    }

    fn loose(&mut self, dir: &Dir, prefix: &OsStr, name: &OsStr, here: &Path) -> Result<(), Error> {
        let text = format!("{}{}", prefix.to_string_lossy(), name.to_string_lossy());
        let Ok(id) = ObjectId::from_hex(text.as_bytes()) else { return Ok(()) };
        if self.host.has(&id) {
            return Ok(());
        }
        let (mut file, stamp) = match dir.open_file(name) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(error) => return self.refuse(error),
        };
        if self.seen.has(&text, &stamp) {
            return Ok(());
        }
        if self.is_over(&stamp) || self.budget.inflated == 0 {
            self.done.left += 1;
            return Ok(());
        }
        self.store.make(here)?;
        let copier = self.copier.get_or_insert_with(|| Copier::new(&self.store.quarantine));
        match copier.copy(&mut file, &id, &here.join(name), &mut self.budget)? {
            Outcome::Brought => self.done.objects += 1,
            Outcome::Left => self.done.left += 1,
            Outcome::Refused => {
                self.done.refused += 1;
                // git writes an object under another name first, so this is none that is not finished yet.
                self.seen.refuse(text, stamp);
            }
        }
        Ok(())
    }

    fn packs(&mut self, objects: &Dir) -> Result<(), Error> {
        let Some(dir) = self.enter(objects, "pack".as_ref())? else { return Ok(()) };
        let names = self.list(&dir)?;
        let is_there = |stem: &str, extension: &str| {
            let name = OsString::from(format!("{stem}.{extension}"));
            let at = names.binary_search_by(|(found, _)| found.cmp(&name));
            at.is_ok_and(|at| names[at].1 == Kind::File)
        };
        let digits = self.store.kind.len_in_hex();
        for (name, kind) in &names {
            let stem = name.to_str().and_then(|name| name.strip_suffix(".pack"));
            let Some(stem) = stem
                .filter(|stem| stem.strip_prefix("pack-").is_some_and(|hex| is_hex(OsStr::new(hex), digits)))
            else {
                continue;
            };
            if *kind != Kind::File {
                self.done.refused += 1;
            } else if is_there(stem, "idx") {
                // git writes the index last; it says that the pack is finished, and is not read.
                self.pack(&dir, stem, is_there(stem, "promisor"))?;
            }
        }
        Ok(())
    }

    fn pack(&mut self, dir: &Dir, stem: &str, fetched: bool) -> Result<(), Error> {
        let name = OsString::from(format!("{stem}.pack"));
        let fetched = fetched && self.store.promisor;
        let key = if fetched { format!("{stem}.promisor") } else { stem.to_owned() };
        let (file, stamp) = match dir.open_file(&name) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(error) => return self.refuse(error),
        };
        if self.seen.has(&key, &stamp) {
            return Ok(());
        }
        if self.is_over(&stamp) {
            self.done.left += 1;
            return Ok(());
        }
        self.store.make(&self.store.quarantine.join("pack"))?;
        let mut args = vec!["index-pack".to_owned(), "--stdin".to_owned(), "--threads=2".to_owned()];
        args.push(format!("--max-input-size={}", stamp.size.max(1)));
        let mut command = self.store.git.command(args);
        command.env("GIT_OBJECT_DIRECTORY", &self.store.quarantine).stdin(Stdio::from(file));
        match self.store.git.run_command(command, b"") {
            Ok(said) => {
                // "pack", a tab, and the checksum that it is called by now.
                let name = String::from_utf8_lossy(&said);
                if let (true, Some(hex)) = (fetched, name.trim_end().rsplit('\t').next()) {
                    promised::claim(&self.store.quarantine.join(format!("pack/pack-{hex}.pack")))?;
                }
                self.budget.disk = self.budget.disk.saturating_sub(stamp.size);
                self.done.packs += 1;
                self.seen.pack(key, stamp);
                Ok(())
            }
            Err(git::Error::Failed { .. } | git::Error::TooLong { .. }) => {
                self.done.refused += 1;
                sweep(&self.store.quarantine.join("pack"))?;
                // One that changed meanwhile may be right the next time.
                if unchanged(dir, &name, &stamp) {
                    self.seen.refuse(key, stamp);
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Removes what index-pack leaves when it refuses a pack.
fn sweep(packs: &Path) -> Result<(), Error> {
    for name in names(packs)? {
        if name.as_encoded_bytes().starts_with(b"tmp_") {
            let path = packs.join(name);
            std::fs::remove_file(&path).map_err(|e| WriteError::new(&path, e))?;
        }
    }
    Ok(())
}

fn unchanged(dir: &Dir, name: &OsStr, stamp: &Stamp) -> bool {
    dir.lstat(name).is_ok_and(|now| now.as_ref() == Some(stamp))
}

fn is_hex(name: &OsStr, digits: usize) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == digits && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The sorted names in a directory of our own; none where it is absent.
fn names(path: &Path) -> Result<Vec<OsString>, Error> {
    let fail = |source| Error::Host { path: path.to_owned(), source };
    let list = match std::fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.map_err(fail)?,
    };
    let mut names =
        list.map(|item| item.map(|item| item.file_name())).collect::<Result<Vec<_>, _>>().map_err(fail)?;
    names.sort();
    Ok(names)
}

/// The free bytes for us on the file system of the quarantine, or of the directory that it will be made in.
#[allow(clippy::unnecessary_cast)] // The widths of these fields differ between systems.
fn free(quarantine: &Path) -> u64 {
    let place = quarantine.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    nix::sys::statvfs::statvfs(place)
        .map_or(0, |vfs| (vfs.blocks_available() as u64).saturating_mul(vfs.fragment_size() as u64))
}
