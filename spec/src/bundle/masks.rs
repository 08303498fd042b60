//! What hangs on a path that the host may make, replace or remove: masks and pins, and which of them a bundle has.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Mount, MountBuilder, Spec};

use super::{Error, annotation, paths, utf8};
use crate::git::Access;
use crate::mount::Kind;
use crate::plan::Plan;

pub(super) fn mask(path: &Path, nothing: &Path) -> Result<Mount, Error> {
    utf8(path)?;
    let options = vec!["bind".to_owned(), "ro".to_owned()];
    Ok(MountBuilder::default().destination(path).typ("bind").source(nothing).options(options).build()?)
}

/// Sockets of the host whose mask is not in the bundle's mounts: those in a directory that the turn may write. A
/// runtime makes a mount point that is missing; run when the socket is gone, it would make one there, on the host. The
/// annotation [`annotation::WATCH_SOCKETS`] has them, and [`late_masks`] gives their masks.
#[must_use]
pub fn unwritten(plan: &Plan) -> Vec<&PathBuf> {
    let writable = |path: &Path| {
        let around = plan.mounts.iter().rev().find(|mount| mount.covers(path));
        around.is_some_and(|mount| matches!(mount.kind, Kind::Bind { access: Access::Write, .. }))
    };
    plan.sockets.iter().filter(|path| writable(path)).collect()
}

/// What hangs on a path that the host may have made or replaced since the bundle was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// A hidden path, whatever is there.
    Hidden,
    /// The socket of somebody outside.
    Socket,
}

/// The masks that a bundle's mounts lack, for an executor that never makes a mount point on the host: of sockets, and of
/// what has been made since. `nothing` names what is to be seen at a path instead; `None`: nothing has to be hidden
/// there now.
///
/// # Errors
/// When a list is not a JSON array of strings.
pub fn late_masks(
    spec: &Spec,
    nothing: &mut dyn FnMut(&Path, Watched) -> Option<PathBuf>,
) -> Result<Vec<Mount>, Error> {
    let known: HashSet<&PathBuf> = spec.mounts().iter().flatten().map(Mount::destination).collect();
    let mut masks = Vec::new();
    for (list, watched) in
        [(annotation::WATCH_MASKS, Watched::Hidden), (annotation::WATCH_SOCKETS, Watched::Socket)]
    {
        for path in paths(spec, list)?.iter().filter(|path| !known.contains(path)) {
            if let Some(nothing) = nothing(path, watched) {
                masks.push(mask(path, &nothing)?);
            }
        }
    }
    Ok(masks)
}

/// Puts a mount on every directory between a mask and the directory that the turn may write around it, so that the turn
/// cannot rename it (rename(2), EBUSY): the mask would go along, and the next turn find what was hidden under a name that
/// nothing hides. To be called when all masks are there.
///
/// # Errors
/// When a path cannot be expressed in JSON.
pub fn hold_masks(spec: &mut Spec) -> Result<(), Error> {
    let fleeting = Fleeting::of(spec)?;
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let masked: Vec<PathBuf> = mounts
        .iter()
        .filter(|mount| fleeting.is_mask(mount))
        .map(|mount| mount.destination().clone())
        .collect();
    for path in masked {
        // Where it ends whatever the mounts between are: those cannot be renamed either.
        let around = |mount: &&Mount| mount.destination() != &path && path.starts_with(mount.destination());
        let Some(around) =
            mounts.iter().filter(around).max_by_key(|mount| mount.destination().components().count())
        else {
            continue;
        };
        if !is_writable_bind(around) {
            continue;
        }
        let top = around.destination().clone();
        let between: Vec<PathBuf> =
            path.ancestors().skip(1).take_while(|at| *at != top).map(Path::to_owned).collect();
        // The outermost first, and each before all that lies in it.
        for at in between.into_iter().rev() {
            utf8(&at)?;
            let options = vec!["rbind".to_owned()];
            let hold =
                MountBuilder::default().destination(&at).typ("bind").source(&at).options(options).build()?;
            let inside = |mount: &Mount| mount.destination() != &at && mount.destination().starts_with(&at);
            let place = mounts.iter().position(inside).unwrap_or(mounts.len());
            mounts.insert(place, hold);
        }
    }
    spec.set_mounts(Some(mounts));
    Ok(())
}

/// Whether a mount shows the host's own files, writable, under their own name.
fn is_writable_bind(mount: &Mount) -> bool {
    let options = mount.options().as_deref().unwrap_or_default();
    mount.typ().as_deref() == Some("bind")
        && mount.source().as_ref() == Some(mount.destination())
        && !options.iter().any(|option| option == "ro" || option == "rro")
}

/// Which mounts are left out where what they are for is gone when they are made: between plan and start a human may
/// remove a worktree, and a daemon its socket.
#[derive(Debug, Clone, Default)]
pub struct Fleeting {
    masks: HashSet<PathBuf>,
    pins: HashSet<PathBuf>,
    /// Directories that [`hold_masks`] has put a mount on.
    held: HashSet<PathBuf>,
}

impl Fleeting {
    /// Those of a bundle.
    ///
    /// # Errors
    /// When one of its lists is not a JSON array of strings.
    pub fn of(spec: &Spec) -> Result<Self, Error> {
        let masks = [paths(spec, annotation::WATCH_MASKS)?, paths(spec, annotation::WATCH_SOCKETS)?].concat();
        let pins = paths(spec, annotation::WATCH_PINS)?.into_iter().collect();
        // What is writable and lies in something that is writable can be nothing else.
        let writable = spec.mounts().iter().flatten().filter(|mount| is_writable_bind(mount));
        let writable: Vec<&PathBuf> = writable.map(Mount::destination).collect();
        let nested = |path: &&PathBuf| {
            writable.iter().any(|around| around != path && path.starts_with(around))
                && masks.iter().any(|mask| mask.starts_with(path))
        };
        let held = writable.iter().copied().filter(nested).cloned().collect();
        Ok(Self { masks: masks.into_iter().collect(), pins, held })
    }

    /// Whether a mount lies on a path of git's, where nothing may ever be made for it.
    #[must_use]
    pub fn is_pin(&self, mount: &Mount) -> bool {
        self.pins.contains(mount.destination())
    }

    /// Whether a mount is a mask.
    #[must_use]
    pub fn is_mask(&self, mount: &Mount) -> bool {
        self.masks.contains(mount.destination())
    }

    /// The path that has to exist for a mount to be made; `None`: the mount is made, or the start fails.
    ///
    /// For a mask it is what it hides. For what is bound read-only under its own name it is that. Not for a pin of
    /// git's protection; but for that of a worktree's entry, which is gone with the worktree, and for the directory of
    /// all entries, which git removes with the last of them.
    #[must_use]
    pub fn depends_on<'a>(&self, mount: &'a Mount) -> Option<&'a Path> {
        let target = mount.destination();
        if self.masks.contains(target) {
            return Some(target);
        }
        if mount.typ().as_deref() != Some("bind") || mount.source().as_ref() != Some(target) {
            return None;
        }
        let entries =
            |path: Option<&Path>| path.and_then(Path::file_name).is_some_and(|name| name == "worktrees");
        let options = mount.options().as_deref().unwrap_or_default();
        let fleeting = if self.pins.contains(target) {
            entries(Some(target)) || entries(target.parent())
        } else if self.held.contains(target) {
            true
        } else {
            options.iter().any(|option| option == "ro" || option == "rro")
        };
        fleeting.then_some(target)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn bind(source: &str, target: &str, options: &[&str]) -> Mount {
        let options = options.iter().map(|&option| option.to_owned()).collect::<Vec<_>>();
        MountBuilder::default()
            .destination(target)
            .typ("bind")
            .source(source)
            .options(options)
            .build()
            .unwrap()
    }

    fn spec(mounts: Vec<Mount>, masks: &[&str], sockets: &[&str]) -> Spec {
        let mut spec = Spec::default();
        let list = |paths: &[&str]| serde_json::to_string(paths).unwrap();
        let annotations =
            [(annotation::WATCH_MASKS, list(masks)), (annotation::WATCH_SOCKETS, list(sockets))];
        let annotations = annotations.map(|(name, value)| (name.to_owned(), value));
        spec.set_annotations(Some(HashMap::from(annotations)));
        spec.set_mounts(Some(mounts));
        spec
    }

    fn targets(spec: &Spec) -> Vec<&str> {
        spec.mounts().iter().flatten().map(|mount| mount.destination().to_str().unwrap()).collect()
    }

    #[test]
    fn a_mask_that_is_there_is_not_made_twice() {
        let mounts = vec![bind("/w", "/w", &["rbind"]), bind("/no", "/w/a", &["bind", "ro"])];
        let spec = spec(mounts, &["/w/a", "/w/b", "/w/gone"], &["/w/s"]);
        let mut asked = Vec::new();
        let masks = late_masks(&spec, &mut |path, watched| {
            asked.push((path.to_owned(), watched));
            (!path.ends_with("gone")).then(|| PathBuf::from("/nothing"))
        });
        let masks = masks.unwrap();
        let made: Vec<_> = masks.iter().map(|mount| mount.destination().to_str().unwrap()).collect();
        assert_eq!(made, ["/w/b", "/w/s"]);
        assert!(
            masks.iter().all(|mask| mask.options().as_deref() == Some(&["bind".to_owned(), "ro".to_owned()]))
        );
        assert_eq!(asked[2], (PathBuf::from("/w/s"), Watched::Socket));
    }

    #[test]
    fn directories_around_a_mask_are_held_before_what_lies_in_them() {
        let mounts = vec![
            bind("/w", "/w", &["rbind"]),
            bind("/w/a/b/ro", "/w/a/b/ro", &["rbind", "rro"]),
            bind("/no", "/w/a/b/secret", &["bind", "ro"]),
            bind("/no", "/w/top", &["bind", "ro"]),
            bind("/no", "/w/a/b/ro/x", &["bind", "ro"]),
            bind("/no", "/elsewhere/x/secret", &["bind", "ro"]),
        ];
        let masks = ["/w/a/b/secret", "/w/top", "/w/a/b/ro/x", "/elsewhere/x/secret"];
        let mut spec = spec(mounts, &masks, &[]);
        hold_masks(&mut spec).unwrap();
        let expected = [
            "/w",
            "/w/a",
            "/w/a/b",
            "/w/a/b/ro",
            "/w/a/b/secret",
            "/w/top",
            "/w/a/b/ro/x",
            "/elsewhere/x/secret",
        ];
        assert_eq!(targets(&spec), expected);
        // What is held may go away; the workspace may not.
        let fleeting = Fleeting::of(&spec).unwrap();
        let depends: Vec<bool> =
            spec.mounts().iter().flatten().map(|mount| fleeting.depends_on(mount).is_some()).collect();
        assert_eq!(depends, [false, true, true, true, true, true, true, true]);
        let again = spec.clone();
        hold_masks(&mut spec).unwrap();
        assert_eq!(targets(&spec), targets(&again), "nothing is held twice");
    }
}
