//! What is seen as it is on the host: the workspace, checkouts and worktrees, what the policy lists.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::{View, is_fresh};
use crate::git::{Access, Checkout};
use crate::host::Node;
use crate::mount::Kind;
use crate::origin::Origin;
use crate::paths::{depth, is_same, split};
use crate::plan::{Error, never_readable, never_writable};

/// Worktrees elsewhere in the home, above which a common parent is bound instead of each of them.
const MANY_WORKTREES: usize = 16;

/// Where a plain bind comes from decides which of two rules for the same path wins; later variants win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Git,
    Read,
    Write,
    Own,
}

pub(super) struct Plain {
    pub(super) rank: Rank,
    pub(super) access: Access,
    pub(super) rule: &'static str,
    pub(super) why: String,
    pub(super) origin: Origin,
}

impl View<'_> {
    /// Collects what is seen as it is on the host: by path, so that parents are mounted before children.
    pub(super) fn collect_plain(&mut self) -> Result<(), Error> {
        let workspace = self.request.workspace.clone();
        if let Some(guard) = self.request.guard.clone() {
            let repository = &guard.repository;
            let git = |what: &str| Origin::git(what);
            if let Some(top) = &repository.main_checkout {
                self.add(top, Rank::Git, Access::Read, "git", "the main checkout", git("main checkout"));
            }
            if let Checkout::Linked { top, .. } = &repository.checkout {
                self.add(top, Rank::Git, Access::Read, "git", "the workspace's checkout", git("worktree"));
            }
            let roots = std::iter::once(&repository.worktrees_root).chain(&repository.other_roots);
            // The session's own folders are made before the turn starts, and what is above them with them.
            let made = |root: &Path| repository.session_folders.iter().any(|folder| folder.starts_with(root));
            for root in roots {
                if self.tree.node(root).is_some() || made(root) {
                    let why = "worktrees of others";
                    self.add(root, Rank::Git, Access::Read, "git", why, git("worktrees"));
                }
            }
            // Where the protection puts something there itself, that is what counts.
            if !guard.binds.iter().any(|bind| bind.target == repository.common_dir) {
                let why = "git's common dir";
                self.add(&repository.common_dir, Rank::Git, Access::Read, "git", why, git("common dir"));
            }
            self.add_worktrees(&repository.entries);
            for folder in &repository.session_folders {
                let why = "the session's folder for worktrees";
                self.add(folder, Rank::Own, Access::Write, "session-folder", why, git("session folder"));
            }
        }
        for (list, rank, access, rule) in [
            (&self.policy.read, Rank::Read, Access::Read, "read"),
            (&self.policy.write, Rank::Write, Access::Write, "write"),
        ] {
            for asked in list {
                let refuse = |why: &str| Error::Path {
                    rule,
                    path: asked.value.clone(),
                    why: why.to_owned(),
                    origin: asked.origin.clone(),
                };
                let real = self.tree.real(&asked.value).ok_or_else(|| refuse("it does not exist"))?;
                if real.to_str().is_none() {
                    return Err(refuse("its path is not UTF-8, which an OCI bundle cannot carry"));
                }
                let refused = match access {
                    Access::Write => never_writable(&real, self.host),
                    Access::Read => never_readable(&real, self.host),
                };
                if let Some(why) = refused {
                    return Err(refuse(why));
                }
                self.add(&real, rank, access, rule, "as the policy says", asked.origin.clone());
            }
        }
        let origin = self.policy.workspace.origin.clone();
        self.add(&workspace, Rank::Own, Access::Write, "workspace", "the workspace", origin);
        if let Some(file) = &self.request.config_file {
            let real = self.tree.real(file).unwrap_or_else(|| file.clone());
            let writable = self.plain.iter().filter(|(_, plain)| plain.access == Access::Write);
            if let Some((at, _)) = writable.into_iter().find(|(at, _)| real.starts_with(at)) {
                return Err(Error::ConfigWritable { file: real, writable: at.clone() });
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &Path,
        rank: Rank,
        access: Access,
        rule: &'static str,
        why: &str,
        origin: Origin,
    ) {
        let plain = Plain { rank, access, rule, why: why.to_owned(), origin };
        match self.plain.get(path) {
            Some(known) if known.rank > rank => {}
            _ => drop(self.plain.insert(path.to_owned(), plain)),
        }
    }

    /// Worktrees that lie elsewhere in the home are copy-on-write there unless they are bound; where there
    /// are very many, a parent directory that holds nothing hidden stands for them.
    fn add_worktrees(&mut self, entries: &[crate::git::Entry]) {
        let mut parents: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
        let mut known = HashMap::new();
        for entry in entries {
            let Some(worktree) = entry.worktree.as_deref() else { continue };
            // Copy-on-write in the home, out of sight below a file system of the sandbox's own: git would take
            // a worktree that it cannot see for one that is gone, and prune its entry.
            let in_home = self.covers.iter().any(|cover| cover.upper && worktree.starts_with(&cover.root));
            let out_of_sight = self.mounts.iter().any(|mount| is_fresh(mount) && mount.covers(worktree));
            let bound = self.plain.keys().any(|known| worktree.starts_with(known));
            if !(in_home || out_of_sight) || bound || never_writable(worktree, self.host).is_some() {
                continue;
            }
            // Most lie side by side, so the directories above them are resolved once.
            let mut resolved = |parent| is_same(&self.resolved(parent, &mut known), parent);
            if split(worktree).is_some_and(|(parent, _)| resolved(parent))
                && matches!(self.tree.node(worktree), Some(Node::Directory { .. }))
            {
                parents.entry(worktree.parent().unwrap_or(worktree)).or_default().push(worktree);
            }
        }
        for (parent, worktrees) in parents {
            let coarse = worktrees.len() > MANY_WORKTREES && never_writable(parent, self.host).is_none();
            for path in if coarse { vec![parent] } else { worktrees } {
                let origin = Origin::git("worktree");
                self.add(path, Rank::Git, Access::Read, "git", "a worktree of others", origin);
            }
        }
    }

    pub(super) fn place_plain(&mut self) {
        let mut plain: Vec<(PathBuf, Plain)> = std::mem::take(&mut self.plain).into_iter().collect();
        plain.sort_by_key(|(path, _)| depth(path));
        for (path, rule) in plain {
            // Already so by the mount that is there: read-only below the read-only root.
            let known = self.mounts.iter().rev().find(|mount| mount.covers(&path));
            let same = known.is_some_and(|mount| match &mount.kind {
                Kind::Bind { access, .. } => *access == rule.access && path != self.request.workspace,
                _ => false,
            });
            if !same {
                self.bind(&path, rule.access, rule.rule, &rule.why, rule.origin);
            }
        }
    }
}
