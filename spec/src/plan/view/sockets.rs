//! Sockets that programs of the host listen on.

use std::collections::HashMap;
use std::path::Path;

use super::{View, is_fresh};
use crate::git::Access;
use crate::mount::Kind;
use crate::origin::Sourced;
use crate::paths::is_within;
use crate::plan::Error;

impl View<'_> {
    /// Masks the host's sockets that would answer. An overlay shows another inode than the one that is listened
    /// on, and in `/run` and `/tmp` there is nothing of the host's; everywhere else a socket is seen as it is.
    /// Masks only: sockets come and go, and a layer over a directory that is gone could not be mounted.
    pub(super) fn hide_sockets(&mut self) {
        let mut known = HashMap::new();
        for path in &self.host.sockets {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let path = self.resolved(parent, &mut known).join(name);
            let plain = self.plain.keys().any(|at| is_within(&path, at));
            // A longer rule wins: the workspace below `/tmp`, or in the home.
            let dead = is_within(&path, Path::new("/run"))
                || self.covers.iter().any(|cover| is_within(&path, &cover.root))
                || self.mounts.iter().any(|mount| is_fresh(mount) && mount.covers(&path))
                || self.hidden.iter().any(|hidden| is_within(&path, &hidden.value));
            let listed = || {
                self.policy.sockets.iter().any(|asked| self.tree.real(&asked.value).as_ref() == Some(&path))
            };
            if path.to_str().is_none() || self.sockets.contains(&path) || dead && !plain || listed() {
                continue;
            }
            match self.shown(&path) {
                Some(shown) => self.widened.push(shown),
                None => self.sockets.push(path),
            }
        }
    }

    /// Opens the sockets that the policy lists, for connect(2): each is bound by itself, read-only, so that nothing
    /// beside it comes along, and nobody can remove or replace it. It is a mount point, which the kernel lets nobody
    /// unlink or rename (EBUSY), and so are the directories above it wherever the turn may write.
    pub(super) fn open_sockets(&mut self) -> Result<(), Error> {
        for asked in &self.policy.sockets {
            let refuse = |why: &str| Error::Path {
                rule: "sockets",
                path: asked.value.clone(),
                why: why.to_owned(),
                origin: asked.origin.clone(),
            };
            let real = self.tree.real(&asked.value).ok_or_else(|| refuse("it does not exist"))?;
            if !self.tree.is_socket(&real) {
                return Err(refuse("it is not a socket"));
            }
            if real.to_str().is_none() {
                return Err(refuse("its path is not UTF-8, which an OCI bundle cannot carry"));
            }
            if [self.host.state.path(), &self.host.runtime].iter().any(|own| is_within(&real, own)) {
                return Err(refuse("codeoid-shim's own state is in there"));
            }
            if self.policy.hide.iter().any(|hidden| is_within(&real, &hidden.value)) {
                return Err(refuse("the policy hides it"));
            }
            // A mask lies on top of everything.
            if self.masked.iter().any(|masked| is_within(&real, masked)) {
                return Err(refuse("what it lies in is hidden, and can only be hidden as a whole here"));
            }
            self.pin_above(&real, asked);
            let kind = Kind::Bind { source: real.clone(), access: Access::Read };
            self.push(real.clone(), kind, "sockets", "a socket to connect to", asked.origin.clone());
            self.widened.push(Sourced::new(real, asked.origin.clone()));
        }
        Ok(())
    }

    /// Makes mount points of the directories between a path and the writable mount that it is seen through.
    fn pin_above(&mut self, path: &Path, asked: &Sourced<std::path::PathBuf>) {
        let Some(around) = self.mounts.iter().rev().find(|mount| mount.covers(path)) else { return };
        let (root, kind) = (around.target.clone(), around.kind.clone());
        let mut between: Vec<_> =
            path.ancestors().skip(1).take_while(|at| **at != *root && at.starts_with(&root)).collect();
        between.reverse();
        for at in between {
            let kind = match &kind {
                Kind::Tmpfs { .. } => Kind::Tmpfs { mode: 0o755, devices: false },
                Kind::Bind { access: Access::Write, .. } => {
                    Kind::Bind { source: at.to_owned(), access: Access::Write }
                }
                // Nothing in there can be renamed: it is read-only, or an overlay's lower directory (EXDEV).
                _ => return,
            };
            self.push(at.to_owned(), kind, "sockets", "holds a socket to connect to", asked.origin.clone());
        }
    }
}
