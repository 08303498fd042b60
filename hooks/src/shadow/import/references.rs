//! Refs that belong to no checkout, by compare-and-swap: creations and moves first, deletions last. The host wins a
//! conflict, and the session's tip is kept beside it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use gix::ObjectId;
use gix::bstr::{BStr, BString, ByteSlice as _};

use super::{Import, MESSAGE, When};
use crate::shadow::refs::{self, Refs, Target};
use crate::shadow::{Error, settings};
use crate::text::printable;

impl Import<'_> {
    pub(super) fn refs(
        &mut self,
        moved: &[BString],
        ours: &Refs,
        used: &BTreeMap<BString, Vec<String>>,
    ) -> Result<(), Error> {
        let remotes = settings::Remotes::compare(&self.host, &self.shadow)?;
        let (gone, here): (Vec<&BString>, Vec<&BString>) =
            moved.iter().partition(|name| !ours.map.contains_key(*name));
        // The host's of now: the units have moved some.
        let host = refs::read(&self.host, self.kind)?;
        let mut updates = Vec::new();
        for name in here {
            let (s, b) = (&ours.map[name], self.base_refs.map.get(name).cloned());
            let h = host.map.get(name);
            if h == Some(s) || Some(s) == b.as_ref() {
                self.base_refs.map.insert(name.clone(), s.clone());
                continue;
            }
            if self.held.contains(name) || host.broken.contains(name) {
                continue;
            }
            let Target::Object(new) = s else {
                self.symbolic(name.as_bstr(), s, h, &remotes)?;
                continue;
            };
            if matches!(h, Some(Target::Symbolic(_))) {
                self.stays(name.as_bstr(), *new, "it is symbolic on the host")?;
                continue;
            }
            if let Some(why) = self.refused.get(new).cloned() {
                let path = self.host.path().join(OsStr::from_bytes(name));
                let detail = format!("{} stays with the session: {why}", name.to_str_lossy());
                self.report("refused", None, &path, &name.to_str_lossy(), &why, &detail);
                continue;
            }
            if name.starts_with(b"refs/heads/") && used.contains_key(name) {
                if self.when == When::Ended {
                    self.stays(name.as_bstr(), *new, "it is checked out on the host")?;
                }
                continue;
            }
            if name.starts_with(b"refs/tags/") && h.is_some() {
                self.stays(name.as_bstr(), *new, "a tag that the host has is never moved")?;
                continue;
            }
            if let Some(remote) = remotes.of(name.as_bstr())
                && (!remote.agrees || h != b.as_ref())
            {
                continue;
            }
            let h = h.and_then(Target::object);
            let b = b.as_ref().and_then(Target::object);
            if h == b || h.is_some_and(|h| self.git.is_ancestor(h, *new)) {
                updates.push((name.clone(), *new, h));
            } else if h.is_some_and(|h| self.git.is_ancestor(*new, h)) {
                // The host has it, and more.
            } else {
                self.stays(name.as_bstr(), *new, "it has moved on the host meanwhile")?;
            }
        }
        self.update(&updates, &gone, &host, used)?;
        for name in gone {
            self.delete(name.as_bstr(), &host, used, &remotes)?;
        }
        Ok(())
    }

    pub(super) fn stays(&mut self, name: &BStr, tip: ObjectId, why: &str) -> Result<(), Error> {
        if self.when == When::Live {
            // The turn goes on; its end decides.
            return Ok(());
        }
        let kept = self.keep(name, tip)?;
        let shown = name.to_str_lossy();
        let merge =
            kept.map(|kept| format!("; the session's is {kept}, to take it over: `git merge {kept}`"));
        let detail = format!("{shown} stays as the host has it: {why}{}", merge.unwrap_or_default());
        let path = self.host.path().join(OsStr::from_bytes(name));
        self.report("conflict", None, &path, &shown, &tip.to_string(), &detail);
        Ok(())
    }

    /// Moves refs by compare-and-swap: all in one transaction, and each alone where that fails.
    pub(super) fn update(
        &mut self,
        updates: &[(BString, ObjectId, Option<ObjectId>)],
        gone: &[&BString],
        host: &Refs,
        used: &BTreeMap<BString, Vec<String>>,
    ) -> Result<(), Error> {
        if updates.is_empty() {
            return Ok(());
        }
        for (name, new, _) in updates {
            self.base.pending.insert(name.to_str_lossy().into_owned(), new.to_string());
        }
        self.base.store(self.place)?;
        let null = ObjectId::null(self.kind);
        let line = |(name, new, old): &(BString, ObjectId, Option<ObjectId>)| {
            format!("option no-deref\nupdate {} {new} {}\n", name.to_str_lossy(), old.unwrap_or(null))
        };
        let plain = updates.iter().all(|(name, ..)| name.to_str().is_ok());
        let all: String = updates.iter().map(line).collect();
        let together =
            plain && self.git.run(["update-ref", "--stdin", "-m", MESSAGE], all.as_bytes()).is_ok();
        for update in updates {
            let (name, new, old) = update;
            let one = |import: &Self| {
                import.git.run(["update-ref", "--stdin", "-m", MESSAGE], line(update).as_bytes())
            };
            let mut moved = together || one(self).is_ok();
            if !moved {
                // `feat` was deleted and `feat/x` made: the one has to go before the other can come.
                let above = gone.iter().find(|above| {
                    name.starts_with(&[above.as_slice(), b"/"].concat())
                        || above.starts_with(&[name.as_slice(), b"/"].concat())
                });
                if let Some(above) = above
                    && !used.contains_key(*above)
                    && let Some(old) = host.object(above.as_bstr())
                    && self.base_refs.object(above.as_bstr()) == Some(old)
                    && self.remove_ref(above.as_bstr(), old)
                {
                    moved = one(self).is_ok();
                    if moved {
                        self.base_refs.map.remove(*above);
                    } else {
                        let back = format!("option no-deref\ncreate {} {old}\n", above.to_str_lossy());
                        let _ = self.git.run(["update-ref", "--stdin", "-m", MESSAGE], back.as_bytes());
                    }
                }
            }
            if moved {
                if old.is_none() {
                    self.base.created.insert(name.to_str_lossy().into_owned());
                }
                self.base_refs.map.insert(name.clone(), Target::Object(*new));
                self.done.promoted.push(format!("{} {new}", name.to_str_lossy()));
            } else {
                self.stays(
                    name.as_bstr(),
                    *new,
                    "it has just moved on the host, or another ref is in its way",
                )?;
            }
        }
        Ok(())
    }

    pub(super) fn remove_ref(&self, name: &BStr, old: ObjectId) -> bool {
        let text = name.to_str_lossy();
        self.git
            .run(["update-ref", "--no-deref", "-m", MESSAGE, "-d", text.as_ref(), &old.to_string()], b"")
            .is_ok()
    }

    pub(super) fn symbolic(
        &mut self,
        name: &BStr,
        target: &Target,
        host: Option<&Target>,
        remotes: &settings::Remotes,
    ) -> Result<(), Error> {
        let Target::Symbolic(to) = target else { return Ok(()) };
        let below = name.strip_suffix(b"HEAD").filter(|prefix| prefix.starts_with(b"refs/remotes/"));
        let fits = below.is_some_and(|prefix| to.starts_with(prefix))
            && refs::is_importable(to.as_bstr())
            && remotes.of(name).is_some_and(|remote| remote.agrees)
            && host == self.base_refs.map.get(name);
        if fits {
            let (name_text, to_text) = (name.to_str_lossy(), to.to_str_lossy());
            if self
                .git
                .run(["symbolic-ref", "-m", MESSAGE, name_text.as_ref(), to_text.as_ref()], b"")
                .is_ok()
            {
                self.base_refs.map.insert(name.into(), target.clone());
            }
        }
        Ok(())
    }

    pub(super) fn delete(
        &mut self,
        name: &BStr,
        host: &Refs,
        used: &BTreeMap<BString, Vec<String>>,
        remotes: &settings::Remotes,
    ) -> Result<(), Error> {
        let Some(old) = self.base_refs.object(name) else { return Ok(()) };
        let shown = name.to_str_lossy().into_owned();
        let Some(there) = host.object(name) else {
            self.base_refs.map.remove(name);
            return Ok(());
        };
        if self.held.contains(name) || there != old || !self.base_refs.map.contains_key(name) {
            return Ok(());
        }
        let is_remote = name.starts_with(b"refs/remotes/");
        if is_remote && !remotes.of(name).is_some_and(|remote| remote.agrees) {
            return Ok(());
        }
        if name.starts_with(b"refs/tags/") {
            self.done
                .warnings
                .push(printable(&format!("{shown} was deleted in the session; the host keeps it")));
            return Ok(());
        }
        if used.contains_key(name) {
            let why = format!("{shown} was deleted in the session; it is checked out on the host, and stays");
            self.done.warnings.push(printable(&why));
            return Ok(());
        }
        if !is_remote && !self.base.created.contains(&shown) && !self.is_reachable(name, old) {
            // Somebody else's work, merged nowhere: deleting its name must not lose it.
            let deleted = format!("refs/deleted/{}", shown.strip_prefix("refs/").unwrap_or(&shown));
            if let Some(kept) = self.keep(deleted.as_bytes().as_bstr(), old)? {
                self.done.warnings.push(printable(&format!(
                    "{shown} was deleted by the session; its commits are nowhere else, so they are kept as {kept}"
                )));
            }
        }
        if self.remove_ref(name, old) {
            self.base_refs.map.remove(name);
            self.done.promoted.push(format!("{shown} deleted"));
            if let Some(branch) = name.strip_prefix(b"refs/heads/") {
                settings::forget_branch(self.git, &branch.to_str_lossy());
            }
        }
        Ok(())
    }

    /// Whether a commit can be reached by another ref of the host.
    pub(super) fn is_reachable(&self, name: &BStr, id: ObjectId) -> bool {
        let contains = format!("--contains={id}");
        let args = ["for-each-ref", "--count=2", "--format=%(refname)", &contains];
        let Ok(found) = self.git.run(args, b"") else { return false };
        found.split(|byte| *byte == b'\n').any(|line| !line.is_empty() && line != name.as_bytes())
    }
}
