//! What is hidden, and by what: a whiteout where a cover is possible, a name that the root directory does not have, or
//! a mask on the path itself.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::plain::Rank;
use super::{View, is_fresh};
use crate::host::Node;
use crate::mount::Kind;
use crate::origin::Sourced;
use crate::paths::{depth, is_same, is_within, split};
use crate::plan::Error;
use crate::plan::cover::Cover;
use crate::secrets;

impl View<'_> {
    /// Decides, for each hidden path, what hides it: a whiteout where a cover is possible, else a mask.
    pub(super) fn hide(&mut self, secrets: &[Sourced<PathBuf>]) -> Result<(), Error> {
        let own = [self.host.state.path().to_owned(), self.host.runtime.clone()];
        let own = own.into_iter().map(Sourced::default_rule);
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut known = HashMap::new();
        let asked: Vec<_> = self.policy.hide.iter().cloned().chain(own).collect();
        let explicit = asked.len();
        // Only where a file system is mounted twice can anything have a second name.
        let doubled = self.doubled();
        for (number, asked) in asked.into_iter().chain(secrets.iter().cloned()).enumerate() {
            let mut places = Vec::new();
            let by_policy = number < self.policy.hide.len();
            if by_policy && ["/proc", "/dev"].iter().any(|own| asked.value.starts_with(own)) {
                return Err(Error::Path {
                    rule: "hide",
                    path: asked.value,
                    why: "every sandbox has its own of what is in there".to_owned(),
                    origin: asked.origin,
                });
            }
            for path in self.places(&asked.value, &mut known) {
                if doubled {
                    let own_home =
                        |alias: &PathBuf| !self.host.home.as_ref().is_some_and(|home| is_within(home, alias));
                    places.extend(self.host.aliases(&path).into_iter().filter(own_home));
                }
                places.push(path);
            }
            for path in places {
                if number < explicit {
                    // What the policy hides, no other rule shows.
                    self.plain.retain(|at, plain| plain.rank == Rank::Own || !is_within(at, &path));
                } else if let Some(shown) = self.shown(&path) {
                    if shown.value == path {
                        self.widened.push(shown);
                        continue;
                    }
                    // Only a part of it is shown: all else of it is not there.
                    let kind = Kind::Tmpfs { mode: 0o700, devices: false };
                    self.push(path.clone(), kind, "hide", "hidden but for a part", asked.origin.clone());
                    self.widened.push(shown);
                }
                if seen.insert(path.as_os_str().to_owned()) {
                    found.push(Sourced::new(path, asked.origin.clone()));
                }
            }
        }
        // A cover of a directory serves for all that is hidden below it, so the highest come first.
        found.sort_by_cached_key(|place: &Sourced<PathBuf>| depth(&place.value));
        for place in found {
            let workspace = &self.request.workspace;
            if is_within(workspace, &place.value) {
                return Err(Error::WorkspaceHidden {
                    workspace: workspace.clone(),
                    hidden: place.value,
                    origin: place.origin,
                });
            }
            let home = self.host.home.as_ref().is_some_and(|home| is_within(home, &place.value));
            if home {
                return Err(Error::Path {
                    rule: "hide",
                    path: place.value,
                    why: "the home is in there; use `home: hidden` for an empty home".to_owned(),
                    origin: place.origin,
                });
            }
            self.hide_one(&place.value);
            // Where the other names are, nobody knows without a look at every file.
            if matches!(self.tree.node(&place.value), Some(Node::File)) && self.tree.links(&place.value) > 1 {
                self.warnings.push(format!(
                    "{} is hidden, but the file has another name (a hard link), under which a turn may find it",
                    place.value.display()
                ));
            }
            self.hidden.push(place);
        }
        Ok(())
    }

    /// Whether some file system is mounted in more than one place.
    fn doubled(&self) -> bool {
        let mut devices = HashSet::new();
        self.host.mounts.iter().any(|mount| !devices.insert(mount.device.as_str()))
    }

    /// The rule that shows a path which is hidden by default, or something in it.
    pub(super) fn shown(&self, hidden: &Path) -> Option<Sourced<PathBuf>> {
        let found = self
            .plain
            .iter()
            .find(|(at, plain)| matches!(plain.rank, Rank::Read | Rank::Write) && is_within(at, hidden));
        found.map(|(at, plain)| Sourced::new(at.clone(), plain.origin.clone()))
    }

    fn hide_one(&mut self, path: &Path) {
        // Below what is seen as it is, only a mask on the path itself is possible.
        let plain = self
            .plain
            .keys()
            .filter(|at| is_within(path, at) && !is_same(at, path))
            .max_by_key(|at| depth(at));
        let around = |cover: &usize| {
            let root = &self.covers[*cover].root;
            is_within(path, root) && !is_same(path, root)
        };
        let cover =
            (0..self.covers.len()).filter(around).max_by_key(|&cover| depth(&self.covers[cover].root));
        let plain_wins = match (plain, cover) {
            (Some(plain), Some(cover)) => is_within(plain, &self.covers[cover].root),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let in_plain_home = self.plain_home.as_ref().is_some_and(|home| is_within(path, home));
        if plain_wins || in_plain_home {
            self.masked.push(path.to_owned());
            return;
        }
        if let Some(cover) = cover {
            // What is mounted below a cover lies on top of it, and needs one of its own.
            let between = |at: &&Path| is_within(path, at) && *at != path;
            let mounted = self.host.mounts_below(&self.covers[cover].root).filter(between);
            match mounted.max_by_key(|at| depth(at)).map(|at| (at, self.tree.node(at))) {
                None => self.covers[cover].hide(path, self.tree),
                Some((at, Some(Node::Directory { mode }))) => {
                    let mut inner = Cover::new(at.to_owned(), mode, false);
                    inner.hide(path, self.tree);
                    self.covers.push(inner);
                }
                Some(_) => self.masked.push(path.to_owned()),
            }
            return;
        }
        if is_within(path, Path::new("/run"))
            || self.mounts.iter().any(|mount| is_fresh(mount) && mount.covers(path))
        {
            // Nothing of the host's is there.
            return;
        }
        if depth(path) == 2 {
            // A name in the root directory, which is ours: it is not made.
            self.mounts.retain(|mount| mount.target != path);
            self.top_hidden.insert(path.to_owned());
            return;
        }
        let parent = split(path).map_or(path, |(parent, _)| parent);
        let is_socket = secrets::root_equivalent_places().any(|place| place == path);
        // Its daemon may make the directories above a socket as well; never a cover of all that is in `/var`.
        let existing = |at: &&Path| depth(at) > 2 && self.tree.node(at).is_some();
        let parent =
            if is_socket { path.ancestors().skip(1).find(existing).unwrap_or(parent) } else { parent };
        match self.tree.node(parent) {
            Some(Node::Directory { mode }) => {
                // An overlay shows nothing of what is mounted below; then the path itself is masked.
                // As root it does not matter: what is mounted below is bound again.
                if !self.host.is_root() && self.host.mounts_below(parent).next().is_some() {
                    match self.tree.node(path) {
                        // What is in there is dead through an overlay of its own, until the host replaces it.
                        Some(Node::Directory { mode })
                            if is_socket && self.host.mounts_below(path).next().is_none() =>
                        {
                            self.covers.push(Cover::new(path.to_owned(), mode, false));
                        }
                        // A daemon that is not there: the path is watched for secrets only.
                        None if is_socket => {}
                        _ => self.masked.push(path.to_owned()),
                    }
                    return;
                }
                let mut cover = Cover::new(parent.to_owned(), mode, false);
                cover.hide(path, self.tree);
                self.covers.push(cover);
            }
            Some(_) => self.masked.push(path.to_owned()),
            // The parent is out of the caller's sight, or does not exist; then nothing can be read there.
            None => {}
        }
    }

    pub(super) fn place_masks(&mut self) {
        self.masked.sort();
        self.masked.dedup();
        let masked = std::mem::take(&mut self.masked);
        self.watched.clone_from(&masked);
        // No mount can lie on a symbolic link; what it leads to is hidden under its own name.
        let link = |path: &PathBuf| matches!(self.tree.node(path), Some(Node::Link(_)));
        let masked = masked.into_iter().chain(self.sockets.iter().cloned());
        self.masked = masked.filter(|path| self.tree.exists(path) && !link(path)).collect();
    }

    /// The command has to be able to stand in the workspace.
    pub(super) fn check_reachable(&self) -> Result<(), Error> {
        let workspace = &self.request.workspace;
        match self.hidden.iter().find(|hidden| is_within(workspace, &hidden.value)) {
            Some(hidden) => Err(Error::WorkspaceHidden {
                workspace: workspace.clone(),
                hidden: hidden.value.clone(),
                origin: hidden.origin.clone(),
            }),
            None => Ok(()),
        }
    }
}
