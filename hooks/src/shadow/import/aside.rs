//! Tips that are kept aside because they cannot go where the session has them, the stash, settings.

use gix::ObjectId;
use gix::bstr::{BStr, ByteSlice as _};

use super::{FINDINGS, Import, KEPT, MESSAGE, SHOWN, When, own_stash};
use crate::bytes::Bytes;
use crate::shadow::refs::{Refs, Target};
use crate::shadow::{Error, settings, stash};
use crate::text::printable;

impl Import<'_> {
    /// Keeps a tip that cannot go where the session has it; returns the ref that was made for it.
    pub(super) fn keep(&mut self, name: &BStr, tip: ObjectId) -> Result<Option<String>, Error> {
        if self.refused.contains_key(&tip) || !self.may_try() {
            return Ok(None);
        }
        let rest = name.strip_prefix(b"refs/").unwrap_or(name).to_str_lossy().into_owned();
        let plain = format!("{KEPT}{}/{rest}", self.session);
        let other = format!("{plain}-{}", &tip.to_string()[..8]);
        // Neither may be a name for a ref, or each may be in the way of another.
        let last = format!("{KEPT}{}/commits/{tip}", self.session);
        for candidate in [plain, other, last] {
            let there = crate::shadow::read_ref(&self.host, candidate.as_bytes().as_bstr(), self.kind)?;
            if there == Some(tip) {
                return Ok(Some(candidate));
            }
            let may = there.is_none_or(|there| self.git.is_ancestor(there, tip));
            let old = there.unwrap_or_else(|| ObjectId::null(self.kind)).to_string();
            let args = ["update-ref", "--no-deref", "-m", MESSAGE, &candidate, &tip.to_string(), &old];
            if may && self.git.run(args, b"").is_ok() {
                self.done.promoted.push(format!("{candidate} {tip}"));
                return Ok(Some(candidate));
            }
        }
        if self.done.warnings.len() < FINDINGS {
            let why = format!("{tip} could not be kept on the host; the session's state has it");
            self.done.warnings.push(why);
        }
        Ok(None)
    }

    pub(super) fn stash(&mut self, new: &[&stash::Entry], dropped: &[String]) -> Result<(), Error> {
        if new.is_empty() && dropped.is_empty() {
            return Ok(());
        }
        for entry in new.iter().rev() {
            if let Some(why) = self.refused.get(&entry.id).cloned() {
                if self.done.warnings.len() < FINDINGS {
                    let what = format!("stash entry {} stays with the session: {why}", entry.id);
                    self.done.warnings.push(printable(&what));
                }
            } else if stash::store(self.git, &self.host, self.kind, entry)? {
                self.base.stash.insert(0, entry.id.to_string());
                self.base.created.insert(own_stash(&entry.id.to_string()));
                self.done.promoted.push(format!("stash {}", entry.id));
            }
        }
        if self.when == When::Ended {
            for id in dropped {
                let Ok(object) = ObjectId::from_hex(id.as_bytes()) else { continue };
                let own = self.base.created.contains(&own_stash(id));
                if !own && stash::read(&self.host, self.kind)?.iter().any(|entry| entry.id == object) {
                    // Somebody else's work: the session may have taken it out, or thrown it away.
                    match self
                        .keep(format!("refs/dropped/stash-{}", &id[..8]).as_bytes().as_bstr(), object)?
                    {
                        Some(kept) => self.done.warnings.push(format!(
                            "a stash entry that is not the session's was dropped by it; it is kept as {kept}"
                        )),
                        None => continue,
                    }
                }
                if stash::drop_entry(self.git, &self.host, self.kind, object)? {
                    self.base.stash.retain(|known| known != id);
                    self.base.created.remove(&own_stash(id));
                }
            }
        }
        // The ref is a matter of the list.
        match crate::shadow::read_ref(&self.host, stash::REF.as_bytes().as_bstr(), self.kind)? {
            Some(id) => drop(self.base_refs.map.insert(stash::REF.into(), Target::Object(id))),
            None => drop(self.base_refs.map.remove(BStr::new(stash::REF))),
        }
        Ok(())
    }

    pub(super) fn settings(
        &mut self,
        wanted: &[settings::Setting],
        config: &[u8],
        ours: &Refs,
    ) -> Result<(), Error> {
        let remotes = settings::Remotes::compare(&self.host, &self.shadow)?;
        let mut kept = Vec::new();
        let parsed = crate::config::File::parse(config).unwrap_or_default();
        for setting in wanted {
            if setting.is_importable(&remotes, ours, &parsed) && self.may_try() {
                if setting.write(self.git, &self.host)? {
                    self.done.promoted.push(setting.name());
                }
            } else if self.when == When::Ended {
                kept.push(setting.name());
            }
        }
        if self.when == When::Ended {
            self.base.config = Bytes(config.to_vec());
            if !kept.is_empty() {
                kept.sort();
                kept.dedup();
                self.done.warnings.push(printable(&format!(
                    "configuration that the session changed stays with it: {}{}",
                    kept.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", "),
                    if kept.len() > SHOWN { ", and more" } else { "" }
                )));
            }
        }
        Ok(())
    }
}
