//! The last import of a session that is closed.

use std::collections::{BTreeMap, BTreeSet};

use codeoid_spec::git::{Checkout, Repository};
use gix::ObjectId;
use gix::bstr::{BString, ByteSlice as _};

use super::{Import, Imported, Opened, When};
use crate::read::Dir;
use crate::shadow::base::MAIN;
use crate::shadow::git::Git;
use crate::shadow::objects::Store;
use crate::shadow::place::Place;
use crate::shadow::refs::{self, Target};
use crate::shadow::{Error, entries, stash, unit};
use crate::text::printable;

/// As many branches are kept for their names' sake alone.
const FEW: usize = 100;
/// How commits are named that no ref of the session names.
const DETACHED: &str = "refs/detached/";

/// Keeps what only the shadow has under refs of the session on the host: branches, detached HEADs, stash entries.
pub(crate) fn rescue(
    place: &Place,
    repository: &Repository,
    git: &Git,
    session: &str,
) -> Result<Imported, Error> {
    let mut import = match Import::open(place, repository, git, session, When::Ended)? {
        Opened::Ready(import) => *import,
        Opened::Nothing(imported) => return Ok(imported),
    };
    match import.rescue() {
        Ok(()) => Ok(import.done),
        Err(error) if error.is_below(&place.git()) => Ok(super::destroyed(repository)),
        Err(error) => Err(error),
    }
}

impl Import<'_> {
    fn rescue(&mut self) -> Result<(), Error> {
        let ours = refs::read(&self.shadow, self.kind)?;
        let mut left: Vec<(BString, ObjectId)> = self
            .moved(&ours)
            .into_iter()
            .filter_map(|name| Some((name.clone(), ours.object(name.as_bstr())?)))
            .collect();
        left.extend(self.detached()?);
        let known: BTreeSet<&str> = self.base.stash.iter().map(String::as_str).collect();
        let mut seen = BTreeSet::new();
        for (number, entry) in stash::read(&self.shadow, self.kind)?.iter().enumerate() {
            if !known.contains(entry.id.to_string().as_str()) && seen.insert(entry.id) {
                left.push((format!("refs/stash/{number}").into(), entry.id));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let tips: Vec<ObjectId> = left.iter().map(|(_, id)| *id).collect();
        let shadow = Dir::open(self.shadow.path())?;
        let store = Store::new(self.git, &shadow, &self.place.quarantine(), self.kind, self.is_promisor()?)
            .borrowing(vec![self.place.kept()]);
        let _ = store.gather()?;
        let refused: BTreeMap<ObjectId, String> =
            store.admit(&tips)?.refused().map(|(id, why)| (*id, why.to_owned())).collect();
        self.refused = refused;
        let host = refs::read(&self.host, self.kind)?;
        let here = host.map.values().filter_map(Target::object);
        let lost = self.unreached(left.iter().map(|(_, id)| *id), here);
        let few = left.len() <= FEW;
        for (name, tip) in left {
            // A branch at a commit that is there is worth its name, as long as there are few.
            let is_worth = name.starts_with(b"refs/heads/") && few;
            if !is_worth && lost.as_ref().is_some_and(|lost| !lost.contains(&tip)) {
                continue;
            }
            match self.keep(name.as_bstr(), tip)? {
                Some(kept) => self.done.warnings.push(printable(&format!(
                    "{} of the session is not on the host; it is kept as {kept}",
                    name.to_str_lossy()
                ))),
                None => self.done.left = true,
            }
        }
        store.release()?;
        Ok(())
    }

    /// What checkouts of the shadow hold without a ref: the commit of a detached HEAD, and what an operation in progress
    /// will come back to. Also of worktrees that are gone or elsewhere.
    fn detached(&self) -> Result<Vec<(BString, ObjectId)>, Error> {
        let mut places = Vec::new();
        if matches!(self.repository.checkout, Checkout::Main { .. })
            && let Some(dir) = self.shadow.child(".".as_ref())?
        {
            places.push((MAIN.to_owned(), dir));
        }
        if let Ok(Some(worktrees)) = self.shadow.child("worktrees".as_ref()) {
            for item in worktrees.list()? {
                let Some(id) = item.name.to_str() else { continue };
                if let (false, Ok(Some(dir))) =
                    (entries::is_linked(&worktrees, id)?, worktrees.child(&item.name))
                {
                    places.push((id.to_owned(), dir));
                }
            }
        }
        let mut found = Vec::new();
        for (name, dir) in places {
            if !self.is_touched(&name, &dir)? {
                continue;
            }
            let name = if name == MAIN { "HEAD".to_owned() } else { name };
            if let Some(Target::Object(id)) = unit::head(&dir, self.kind)? {
                found.push((format!("{DETACHED}{name}").into(), id));
            }
            for (number, id) in unit::put_aside(&dir, self.kind)?.into_iter().enumerate() {
                found.push((format!("{DETACHED}{name}-before-{number}").into(), id));
            }
        }
        Ok(found)
    }
}
