//! The last import of a session that is closed.

use std::collections::{BTreeMap, BTreeSet};

use codeoid_spec::git::Repository;
use gix::ObjectId;
use gix::bstr::{BString, ByteSlice as _};

use super::{Import, Imported, When};
use crate::read::Dir;
use crate::shadow::base::{Base, MAIN};
use crate::shadow::git::Git;
use crate::shadow::objects::Store;
use crate::shadow::place::Place;
use crate::shadow::refs::{self, Refs, Target};
use crate::shadow::{Error, stash};
use crate::text::printable;

/// Keeps what only the shadow has under refs of the session on the host: branches, detached HEADs, stash entries.
pub(crate) fn rescue(
    place: &Place,
    repository: &Repository,
    git: &Git,
    session: &str,
) -> Result<Imported, Error> {
    let Some(base) = Base::load(place)? else { return Ok(Imported::default()) };
    let host = Dir::open(&repository.common_dir)?;
    let kind = crate::shadow::hash_kind(&host)?;
    let shadow = match Dir::open(&place.git()) {
        Ok(shadow) if crate::shadow::is_whole(&shadow)? => shadow,
        _ => return Ok(super::destroyed(repository)),
    };
    let base_refs = Refs::from_text(&base.refs.0);
    let mut import = Import {
        place,
        repository,
        git,
        session,
        when: When::Ended,
        host,
        shadow,
        kind,
        base,
        base_refs,
        done: Imported::default(),
        held: BTreeSet::new(),
        refused: BTreeMap::new(),
    };
    import.rescue()?;
    Ok(import.done)
}

impl Import<'_> {
    fn rescue(&mut self) -> Result<(), Error> {
        let ours = refs::read(&self.shadow, self.kind)?;
        let mut left: Vec<(BString, ObjectId)> = self
            .moved(&ours)
            .into_iter()
            .filter_map(|name| Some((name.clone(), ours.object(name.as_bstr())?)))
            .collect();
        for snapshot in self.snapshots()? {
            if let (true, Some(Target::Object(id))) = (snapshot.touched, &snapshot.head) {
                let name = if snapshot.name == MAIN { "HEAD" } else { snapshot.name.as_str() };
                left.push((format!("refs/detached/{name}").into(), *id));
            }
        }
        let known: BTreeSet<&str> = self.base.stash.iter().map(String::as_str).collect();
        for (number, entry) in stash::read(&self.shadow, self.kind)?.iter().enumerate() {
            if !known.contains(entry.id.to_string().as_str()) {
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
        for (name, tip) in left {
            match self.keep(name.as_bstr(), tip)? {
                Some(kept) => self.done.warnings.push(printable(&format!(
                    "{} of the session is not on the host; it is kept as {kept}",
                    name.to_str_lossy()
                ))),
                None => self.done.warnings.push(printable(&format!("{tip} could not be kept"))),
            }
        }
        store.release()?;
        Ok(())
    }
}
