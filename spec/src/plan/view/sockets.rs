//! Sockets that programs of the host listen on.

use std::collections::HashMap;
use std::path::Path;

use super::{View, is_fresh};
use crate::paths::is_within;

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
            if path.to_str().is_none() || self.sockets.contains(&path) || dead && !plain {
                continue;
            }
            match self.shown(&path) {
                Some(shown) => self.widened.push(shown),
                None => self.sockets.push(path),
            }
        }
    }
}
