//! What protection `shadow` asks of the sandbox.

use std::path::Path;

use codeoid_spec::git::{Access, Bind, Guard, Protection, Repository};

use super::Error;
use super::build::alternates;
use super::place::{ENTRIES, KEPT, LFS, NO_ALTERNATES, OBJECTS, Place};
use crate::config;
use crate::read::{self, Dir, Kind, POINTER_LIMIT};
use crate::shared;

/// What protection `shadow` asks of the sandbox for this repository. Nothing is made yet.
///
/// # Errors
/// [`Error::Unsupported`] with the reason; the bookkeeping cannot be read.
pub fn guard(repository: &Repository, place: &Place) -> Result<Guard, Error> {
    supported(repository)?;
    let common = &repository.common_dir;
    let mut binds = Vec::new();
    let mut bind = |source: &Path, target: &Path, access, reason: &str| {
        let (source, target) = (source.to_owned(), target.to_owned());
        binds.push(Bind { source, target, access, reason: reason.to_owned() });
    };
    bind(&place.git(), common, Access::Write, "the session's own view of the git dir");
    bind(&common.join("objects"), Path::new(OBJECTS), Access::Read, "the host's objects");
    bind(&place.kept(), Path::new(KEPT), Access::Read, "links that keep the host's objects");
    for (name, target) in [("worktrees", ENTRIES), ("lfs", LFS)] {
        let source = common.join(name);
        if read::lstat(&source)?.is_some_and(|stamp| stamp.kind() == Kind::Directory) {
            bind(&source, Path::new(target), Access::Read, "the host's, to be read");
        }
    }
    if read::lstat(&common.join("objects/info/alternates"))?.is_some_and(|stamp| stamp.kind() == Kind::File) {
        // The shadow names all that the host borrows from, by absolute paths.
        let target = Path::new(OBJECTS).join("info/alternates");
        bind(
            &place.root().join(NO_ALTERNATES),
            &target,
            Access::Read,
            "what the host borrows is named elsewhere",
        );
    }
    for path in alternates(&common.join("objects"))? {
        bind(&path, &path, Access::Read, "objects that the host's repository borrows");
    }
    binds.extend(shared::around(repository).map_err(|error| match error {
        shared::Error::Read(error) => Error::Read(error),
        other => Error::Unsupported { why: other.to_string() },
    })?);
    if let Some(bind) = binds.iter().find(|bind| bind.source.to_str().is_none()) {
        return Err(Error::Unsupported {
            why: format!("{:?} is not UTF-8, and a bundle's paths have to be", bind.source),
        });
    }
    Ok(Guard {
        protection: Protection::Shadow,
        repository: repository.clone(),
        binds,
        env: Vec::new(),
        watch: Vec::new(),
    })
}

/// Refuses by name what is not covered.
fn supported(repository: &Repository) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error::Unsupported { why: why.to_owned() });
    let common = Dir::open(&repository.common_dir)?;
    super::hash_kind(&common)?;
    let bytes =
        common.read("config".as_ref(), POINTER_LIMIT)?.map(|content| content.bytes).unwrap_or_default();
    let file = config::File::parse(&bytes).unwrap_or_default();
    if file.last("extensions", "refstorage").flatten().is_some_and(|name| name != b"files") {
        return refuse("it keeps its refs in another form than files (reftable)");
    }
    if let Ok(Some(modules)) = common.child("modules".as_ref())
        && !modules.list()?.is_empty()
    {
        return refuse("it has submodules whose git dirs lie in it");
    }
    Ok(())
}

/// What protection `shadow` leaves open, in sentences for a person.
#[must_use]
pub fn limits() -> Vec<String> {
    vec![
        "protection shadow: git that runs outside the sandbox inside a directory that the turn writes follows a .git \
         that the turn plants there"
            .to_owned(),
    ]
}
